"""Several boards or clusters as one fleet: each job in one pool, figures as of the pool alone, and their sums."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest

from gpuplanner.cli.application import main
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.monthly_cost_review import cost_review
from gpuplanner.decision.decision_text import make_empty_decision
from gpuplanner.decision.gpu_model_decisions import fill_models_in_turn, find_flexible_demand, plan_fleet
from gpuplanner.decision.layout_planning import make_plan_problem, plan_problem_for, plan_view
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW, fleet_forecast
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.planner.fleet_plans_and_comparisons import verify_fleet
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report.report_rendering import combine_plans, fleet_ledger, pool_folder_name, render_fleet_page
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import combine_clusters, history, split_into_pools, tabulate_pools
from tests.clusters.mixed import mixed_fleet, untyped
from tests.clusters.traces import read_cluster
from tests.usage.test_fleet import MIXED, TWO_BOARDS, made, nodes


def told(tmp_path, trace, name="t", **fields):
    write_dataset(trace, tmp_path / name)
    return Scenario(name=name, data=str(tmp_path / name), **{"horizon_intervals": 24, "replications": 2, **fields})


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A generated Slurm fleet of A100, H100 and L40S, as its dumps are read."""
    folder = tmp_path_factory.mktemp("mixed") / "west"
    write_dataset(read_cluster(mixed_fleet(1)), folder)
    return Scenario(name="west", data=str(folder), actuator="slurm")


def test_each_board_that_jobs_held_is_a_pool_with_its_jobs_and_gpus(mixed):
    planted = {pool.catalogued: pool for pool in mixed_fleet(1).pools}
    found = split_into_pools(mixed)
    assert set(found.pools) == set(planted)
    rows = {row["pool"]: row for row in tabulate_pools(found).to_dicts()}
    for name, pool in planted.items():
        assert (rows[name]["gpus"], rows[name]["nodes"]) == (pool.gpus, len(pool.nodes))
        assert rows[name]["jobs"] == len(pool.jobs)
    assert untyped(mixed_fleet(1)) > 100


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A small fleet of A100 and T4."""
    return told(tmp_path_factory.mktemp("two"), made(MIXED, TWO_BOARDS), "two")


def test_series_are_named_by_board_and_profile_and_are_those_of_the_pool(two):
    found = fleet_forecast(split_into_pools(two))[0].forecast
    series = {"A100-40GB/gpu", "A100-40GB/t0/gpu", "T4/gpu", "T4/t0/gpu", "T4/t1/gpu"}
    assert set(found["unique_id"].unique()) == series
    own = OUTLOOK_STAGE_BY_VIEW["rightsized"](two.but(gpu_model="T4")).result.forecast.filter(unique_id="all/gpu")
    assert found.filter(unique_id="T4/gpu").drop("unique_id").equals(own.drop("unique_id"))


def test_a_fleet_costs_what_its_pools_cost_and_the_bounds_add_up(two):
    found = plan_fleet(split_into_pools(two), "greedy")
    assert verify_fleet(found.combined_plan, found.problems) == []
    for gpu_model, one in found.pools.items():
        alone = plan_view(two.but(gpu_model=gpu_model), "rightsized", "greedy")
        assert (one.plan.objective, one.plan.bound) == (alone.plan.objective, alone.plan.bound)
        assert (one.plan.counts == alone.plan.counts).all()
    total = found.summary_table.filter(pool="all").row(0, named=True)
    assert total["objective"] == pytest.approx(sum(one.plan.objective for one in found.pools.values()))
    assert total["bound"] == pytest.approx(sum(one.plan.bound for one in found.pools.values()))
    assert (total["gpus"], total["gap"]) == (20, found.combined_plan.gap)


def test_the_ledger_of_a_fleet_is_kept_by_board(mixed):
    hours = dict(scenario_ledger(mixed).group_by("gpu_model").agg(pl.col("gpu_hours").sum()).iter_rows())
    gpus = {pool.catalogued: pool.gpus for pool in mixed_fleet(1).pools}
    each = {name: hours[name] / gpus[name] for name in gpus}
    assert len({round(one, 6) for one in each.values()}) == 1


def test_a_job_that_waits_and_names_no_board_is_counted_in_one_pool(tmp_path):
    trace = made(MIXED, TWO_BOARDS)
    waits = trace.jobs.head(1).with_columns(
        job_id=pl.lit("waits"), gpu_model=pl.lit(None, pl.String), start_time=None, end_time=None,
        state=pl.lit("PENDING").cast(trace.jobs.schema["state"]), partition=pl.lit("small"),
    )  # fmt: skip
    jobs = trace.jobs.with_columns(
        partition=pl.when(pl.col("gpu_model") == "T4").then(pl.lit("small")).otherwise(pl.lit("large"))
    )
    both = pl.concat([jobs, waits.select(jobs.columns).cast(dict(jobs.schema))])
    known = split_into_pools(told(tmp_path, trace.with_tables(jobs=both)))
    held = {name: set(history(own).jobs["job_id"]) for name, own in known.pools.items()}
    assert [name for name, ids in held.items() if "waits" in ids] == ["T4"]
    assert sum(map(len, held.values())) == both.height


def test_a_board_that_no_job_held_is_named_and_not_planned(tmp_path):
    found = split_into_pools(told(tmp_path, made(MIXED, pl.concat([TWO_BOARDS, nodes(("v1", "L40S", 4))]))))
    assert (list(found.pools), found.idle) == (["A100-40GB", "T4"], {"L40S": 4})
    assert tabulate_pools(found).filter(pool="L40S")["gpus"].item() == 4


def test_a_pool_of_a_board_without_geometry_is_planned_whole(tmp_path):
    """A word of the source that no catalogue has is a pool like any other; its GPUs are never cut."""
    word = "rtx-5090-lab"
    listed = pl.concat([TWO_BOARDS, nodes(("w1", word, 4))])
    found = split_into_pools(told(tmp_path, made([*MIXED, (word, 1, 8, 6)], listed)))
    planned = plan_view(found.pools[word], "rightsized", "greedy")
    assert (planned.problem.gpus, set(planned.plan.layouts)) == (4, {"gpu"})
    with pytest.raises(ScenarioError, match=r"pool 'H100': expected a GPU model of the data; got .*T4"):
        history(found.pools["T4"].but(pool="H100"))


def test_a_plan_is_of_what_quotas_admit(two, tmp_path):
    file = tmp_path / "quotas.yaml"
    file.write_text(
        "teams:\n- {name: t0, gpu_model: T4, gpus: 1, cohort: x}\n- {name: t1, gpus: 0.5, cohort: y}\n"
        "- {name: none, gpus: 1}\n"
        "cohorts:\n- {name: x, parent: all}\n- {name: y, parent: all}\n- {name: all}\n"
    )
    free, held = (make_plan_problem(two.but(gpu_model="T4", quotas=one), "rightsized") for one in (None, str(file)))
    assert set(held.limits.quotas) == {"t0", "t1"} & set(held.tenants)
    assert {one.cohort for one in held.limits.quotas.values()} == {"all"}
    assert (held.demand == free.demand).all()
    asked = held.demand.sum(axis=(0, 1))
    assert held.admitted_demand.sum(axis=(0, 1)) == pytest.approx(np.minimum(asked, 1.5))
    assert asked.max() > 1.5
    assert "Quotas reject" in plan(held).explanation


UNTOLD = [(None, gpus, first, hours) for gpus, first, hours in ((5, 8, 6), (3, 9, 3), (4, 10, 8), (1, 2, 20))]


def test_pools_that_any_job_may_use_cost_what_one_pool_of_all_gpus_costs(tmp_path):
    """Three boards, and jobs that do not say where they ran: filled in turn, nothing is lost, to the digit."""
    listed = nodes(("a1", "A100-40GB", 4), ("t1", "T4", 3), ("l1", "L40S", 8))
    asked = told(tmp_path, made(UNTOLD, listed))
    problems = fill_models_in_turn(asked)
    assert {name: one.gpus for name, one in problems.items()} == {"L40S": 8, "A100-40GB": 4, "T4": 3}
    whole = make_plan_problem(asked, "rightsized")
    parted = sum(one.required_instances[0] for one in problems.values())
    assert (parted == whole.required_instances[0]).all()
    assert whole.required_instances[0].max() > 8, "one pool alone does not hold it"
    found = plan_fleet(split_into_pools(asked), "dp").combined_plan
    one = plan(whole, method="dp")
    assert (found.objective, found.bound) == pytest.approx((one.objective, one.bound), abs=1e-7)


def test_the_sum_is_the_cheapest_of_all_ways_on_two_boards_of_two_gpus(tmp_path):
    """By brute force: every number of GPUs on of each board in each slot."""
    asked = told(
        tmp_path, made([(None, 3, 8, 6), (None, 1, 9, 9)], nodes(("a", "T4", 2), ("b", "L40S", 2))), horizon_intervals=8
    )
    problems = fill_models_in_turn(asked)
    found = plan_fleet(split_into_pools(asked), "dp").combined_plan
    total = sum(one.demand.sum(axis=(0, 1)) for one in problems.values())
    one = next(iter(problems.values()))
    drain = one.prices.drain_cost(one.gpu_model, "gpu")
    parked = one.prices.parked_price

    def step_cost(slot, before, now):
        on, emptied = sum(now), sum(max(was - left, 0) for was, left in zip(before, now, strict=True))
        return on + parked * (4 - on) + one.unmet_price[0] * max(total[slot] - on, 0.0) + drain * emptied

    # The cheapest way through the slots, over all nine states of each; today all GPUs are on.
    states = list(itertools.product(range(3), repeat=2))
    best = {(2, 2): 0.0}
    for slot in range(8):
        best = {now: min(spent + step_cost(slot, was, now) for was, spent in best.items()) for now in states}
    assert found.objective == pytest.approx(min(best.values()), abs=1e-6)


def test_clusters_are_pools_by_their_names(tmp_path):
    west, east = (told(tmp_path, made(MIXED, TWO_BOARDS), name) for name in ("west", "east"))
    found = combine_clusters([west, east])
    assert list(found.pools) == ["west/A100-40GB", "west/T4", "east/A100-40GB", "east/T4"]
    planned = plan_fleet(found, "greedy")
    assert planned.combined_plan.objective == pytest.approx(
        2 * plan_fleet(split_into_pools(west), "greedy").combined_plan.objective
    )
    with pytest.raises(ScenarioError, match="differ in their dataset"):
        combine_clusters([west, west.but(name="again")])
    with pytest.raises(ScenarioError, match=r"differ in their name; got 'west'"):
        combine_clusters([west, east.but(name="west")])


def test_plan_of_several_boards_needs_no_board_and_its_file_holds(two, tmp_path, monkeypatch, capsys):
    (tmp_path / "s.yaml").write_text(two.to_yaml())

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["gpuplanner", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, capsys.readouterr().out

    code, out = run("plan", tmp_path / "s.yaml", "--no-compare", "--quiet", "--json", "-o", tmp_path / "plan.json")
    found = json.loads(out)
    assert code == 0
    assert set(found["pools"]) == {"A100-40GB", "T4"}
    assert found["moves"] == []
    assert found["objective"] == pytest.approx(sum(one["objective"] for one in found["pools"].values()))
    assert run("verify", tmp_path / "plan.json")[0] == 0
    assert run("plan", tmp_path / "s.yaml", "--robust")[0] == 2


def test_start_takes_several_datasets_as_clusters_of_one_fleet(tmp_path, monkeypatch, capsys):
    for name in ("west", "east"):
        told(tmp_path, made(MIXED, TWO_BOARDS), name)
    words = ["start", tmp_path / "west", tmp_path / "east", "--yes", "--no-page", "--json", "-o", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["gpuplanner", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == 0
    assert sorted(found["pools"]) == ["east/A100-40GB", "east/T4", "west/A100-40GB", "west/T4"]
    assert found["fleet"]["fleet_gpus"] == 40
    assert found["fleet"]["gpus"] == sum(one["decision"]["gpus"] for one in found["pools"].values())
    assert {path.name for path in (tmp_path / "out" / "pools").iterdir()} == {
        "west+A100-40GB", "west+T4", "east+A100-40GB", "east+T4",
    }  # fmt: skip


def test_the_page_of_a_fleet_shows_every_pool_and_believes_no_name(two, monkeypatch):
    fleet = split_into_pools(two)
    hours = dict(fleet_ledger(fleet).group_by("tenant").agg(pl.col("gpu_hours").sum()).iter_rows())
    assert hours == pytest.approx({"A100-40GB": 16 * 72, "T4": 4 * 72})
    one = make_empty_decision(two, "nothing")
    row = {
        "tenant": ["t0"],
        "jobs": 1,
        "allocated_gpu_hours": 3.0,
        "shortfall_gpu_hours": 1.0,
        "why": "<i>full</i>",
        "next_step": "wait",
    }
    bare = dict.fromkeys(("mean_slowdown", "max_slowdown", "jain_fair_share_received", "jain_slowdown"))
    facts = pl.DataFrame({"facts": [json.dumps({"rules": {}, "notes": [], "basis": "seen", **bare})]})
    tables = dict.fromkeys(("teams", "team_borrowing", "team_shares"), pl.DataFrame(row)) | {"team_facts": facts}
    study = SimpleNamespace(
        decision=one,
        plan=None,
        problem=None,
        tables=tables,
        provenance=SimpleNamespace(gpuplanner="1"),
        scenario=Scenario(),
    )
    studies = {"A100-40GB": study, "<b>T4</b>": study}
    assert combine_plans(split_into_pools(two), studies) is None
    warned = {"what": "habana.ai/gaudi is not read", "count": 20, "gpu_hours": None}
    monkeypatch.setattr("gpuplanner.report.report_rendering.list_data_warnings", lambda _: [warned])
    text = render_fleet_page(fleet, studies, title="two")
    # Both pools are of one dataset, whose warning stands once.
    assert text.count("<li>habana.ai/gaudi is not read [20 rows]</li>") == 1
    assert "&lt;b&gt;T4&lt;/b&gt;" in text
    assert "<b>T4" not in text
    # Each team's line of each pool says why its jobs waited there.
    assert text.count("&lt;i&gt;full&lt;/i&gt;</td><td>wait") == 2
    assert "<i>full" not in text
    assert f'href="pools/{quote(pool_folder_name("<b>T4</b>"))}/index.html"' in text
    assert all(f'<section id="{one}">' in text for one in ("recommendation", "next-steps", "fleet"))


def test_a_pool_is_charged_by_the_price_book_of_all_pools(two, tmp_path):
    """A lot of A100 alone: T4 have the list price, and no sentence claims that the cluster has no A100."""
    (tmp_path / "prices.yaml").write_text(
        "owned:\n- {gpu_model: A100-40GB, gpus: 16, capex: 43830, unit: USD per GPU, bought: 2026-01-01, "
        "life_years: 5, source: invoice}\n"
    )
    priced = two.but(price_book=str(tmp_path / "prices.yaml"), ownership="owned")
    whole = cost_review(priced)
    pools = {name: cost_review(own) for name, own in split_into_pools(priced).pools.items()}
    assert {name: pool.total for name, pool in pools.items()} == dict(
        whole.by_gpu_model.select("gpu_model", "cost").iter_rows()
    )
    assert pools["A100-40GB"].rate_parts["depreciation"] == pytest.approx(1.0, rel=1e-4)
    assert pools["T4"].price_basis == " at list price"
    assert not any("not used" in text for pool in pools.values() for text in pool.missing)


def test_each_table_of_a_pool_is_of_its_gpus_alone(two):
    """Three days of 16 A100 and 4 T4: what the pools state adds up to what the fleet states."""
    whole, sums = cost_review(two), Counter()
    for name, own in split_into_pools(two).pools.items():
        study, gpus = evaluate(own, cache=False), {"A100-40GB": 16, "T4": 4}[name]
        tables, review = study.tables, cost_review(own)
        assert study.headline.installed_gpus == gpus
        assert study.headline.boards == f"{gpus} × {name}"
        assert not any("Not planned" in text for text in study.provenance.cautions)
        assert set(tables["ledger"]["gpu_model"]) == set(tables["costs"]["x_GpuModel"]) == {name}
        for table, column in (("ledger_buckets", "gpu_hours"), ("energy", "gpu_hours"), ("costs", "PricingQuantity")):
            assert tables[table][column].sum() == pytest.approx(72 * gpus), table
        allocated = {"A100-40GB": 36, "T4": 18}[name]
        for table, column in (
            ("ledger_tenants", "allocated_gpu_hours"),
            ("ended", "gpu_hours"),
            ("rightsizing", "gpu_hours"),
        ):
            assert tables[table][column].sum() == pytest.approx(allocated), table
        assert tables["use"]["allocated_gpus"].sum() * 24 == pytest.approx(allocated)
        assert study.headline.cost == str(review.total)
        assert review.by_job["gpu_hours"].sum() == pytest.approx(allocated)
        for table in map(review.by_team_over_time, ("week", "month")):
            assert table[table.columns[-1]].sum() == review.total
        sums.update(cost=review.total, jobs=review.by_job.height, energy=review.energy.value)
    assert (sums["cost"], sums["jobs"]) == (whole.total, whole.by_job.height)
    assert sums["energy"] == pytest.approx(whole.energy.value)


def bare_problems(pools):
    """A problem without demand for each pool, as wide as its fleet."""
    found = {}
    for name, own in pools.items():
        known = history(own)
        jobs = known.views["rightsized"].drop_nulls("profile")
        tenants, profiles = (jobs[column].unique().sort().to_list() for column in ("tenant", "profile"))
        demand = np.ones((len(tenants), len(profiles), 2))
        found[name] = PlanProblem(
            known.fleet.gpu_model,
            known.fleet.gpus,
            known.fleet.node_size,
            known.plan_start,
            1,
            tenants,
            profiles,
            demand,
        )
    return found


def test_demand_that_named_no_model_is_tried_on_the_models_in_their_order(mixed):
    fleet = split_into_pools(mixed.but(substitute_models="L40S, h100"))
    problems = bare_problems(fleet.pools)
    found = {(one.pool, one.profile): one for one in find_flexible_demand(fleet, problems)}
    assert {profile for _, profile in found} == {"gpu"}

    ampere = found["A100-40GB", "gpu"]
    assert [one.pool for one in ampere.substitutes] == ["L40S", "H100-80GB-SXM5"]
    # The H100 is faster in both ways, which nobody measured here; the L40S has 864 of 1,555 GB/s.
    assert [one.instances_for_one for one in ampere.substitutes] == pytest.approx([1555 / 864, 1.0])
    part = dict(zip(problems["A100-40GB"].tenants, ampere.movable_share.tolist(), strict=True))
    assert part["vision"] == 1.0  # all of its jobs there are called finetune and take any GPU
    assert 0 < part["chem"] < 0.5  # every seventh

    # On its own model it is the turn of the model's own jobs; a model that the order does not name is not tried.
    assert [one.pool for one in found["H100-80GB-SXM5", "gpu"].substitutes] == ["L40S", "H100-80GB-SXM5"]
    assert find_flexible_demand(split_into_pools(mixed), problems) == ()
    with pytest.raises(ScenarioError, match=r"model of substitute_models 'T4' is unknown: expected one of A100"):
        find_flexible_demand(split_into_pools(mixed.but(substitute_models="T4")), problems)


@pytest.mark.long
def test_a_fleet_is_planned_with_the_demand_where_it_was_sent(mixed):
    fleet = split_into_pools(mixed.but(substitute_models="L40S"))
    found = plan_fleet(fleet, "greedy")
    alone = {name: make_plan_problem(own, "rightsized") for name, own in fleet.pools.items()}
    assert verify_fleet(found.combined_plan, found.problems) == []
    assert set(found.transfer_table["to"]) == {"L40S/gpu"}
    moved = found.transfer_table.filter(of="A100-40GB/gpu").row(0, named=True)
    row = alone["A100-40GB"].profiles.index("gpu")
    gone = alone["A100-40GB"].pooled_demand[row] - found.problems["A100-40GB"].pooled_demand[row]
    assert moved["instances"] == pytest.approx(gone.mean())
    came = found.problems["L40S"].pooled_demand.sum(axis=0) - alone["L40S"].pooled_demand.sum(axis=0)
    assert came.mean() == pytest.approx(found.transfer_table["instances_there"].sum())
    assert "goes to another GPU model" in found.transfer_text
    # Plans that are at hand are kept where no demand came or went.
    made = {name: plan_problem_for(one, fleet.pools[name], "greedy") for name, one in alone.items()}
    again = plan_fleet(fleet, "greedy", known_plans=made)
    assert again.combined_plan.objective == pytest.approx(found.combined_plan.objective)
    unmoved = plan_fleet(split_into_pools(mixed), "greedy", known_plans=made)
    assert all(unmoved.pools[name] is made[name] for name in made)
    assert unmoved.transfer_text is None
