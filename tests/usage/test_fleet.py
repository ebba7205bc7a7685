"""One fleet for ledger, plan, simulation and page: its board and its size, from what the data say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.decision.plan_rehearsal import make_week_requests
from gpuplanner.decision.requested_jobs import count_layout_instances
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.simulator.replications import draw_replication, past_jobs, to_simulator_jobs
from gpuplanner.simulator.simulation_inputs import NodeFleet
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.usage.installed_capacity import find_installed
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import history, load_dataset, observation_begins_at, observation_ends_at
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import installed_gpu_hours
from gpuplanner.usage.study_fleet import UNNAMED_GPU_MODEL, planned_fleet

DAY = datetime(2026, 2, 2, tzinfo=UTC)
DAYS = 3


def made(jobs, inventory=None):
    """A trace of jobs ``(board, GPUs, first hour, hours)``, every day again, each after ten minutes in the queue.

    GPUs may be the name of a profile: one instance of it, of an A100.
    """
    rows = [
        {
            "job_id": f"{day}-{number}",
            "attempt": 1,
            "tenant": f"t{number % 2}",
            "state": "COMPLETED",
            "gpus": int(gpus[0]) / 7 if isinstance(gpus, str) else float(gpus),
            "instances": 1 if isinstance(gpus, str) else None,
            "profile_requested": gpus if isinstance(gpus, str) else None,
            "gpu_model": gpu_model,
            "submit_time": DAY + timedelta(days=day, hours=first) - timedelta(minutes=10),
            "start_time": DAY + timedelta(days=day, hours=first),
            "end_time": DAY + timedelta(days=day, hours=first + hours),
        }
        for day in range(DAYS)
        for number, (gpu_model, gpus, first, hours) in enumerate(jobs)
    ]
    table = conform(pl.DataFrame(rows, infer_schema_length=None), Jobs, source="test")
    span = {"span_start": DAY.isoformat(), "span_end": (DAY + timedelta(days=DAYS)).isoformat()}
    kept = {"source": "test", "rows_in": len(rows), "rows_kept": len(rows), "rows_rejected": 0} | span
    sample = load_dataset("sample")
    empty = sample.rejects.clear(), sample.quality.clear()
    given = None if inventory is None else conform(inventory, Inventory, source="test")
    facts = kept | {"gpu_hours": 0.0, "files": []}
    return Dataset({"jobs": table}, *empty, facts).with_tables(inventory=given)


def nodes(*rows):
    return pl.DataFrame(
        [{"node": name, "gpu_model": gpu_model, "gpus": gpus} for name, gpu_model, gpus in rows],
        schema={"node": pl.String, "gpu_model": pl.String, "gpus": pl.Int32},
    )


def chosen(trace, **fields):
    return planned_fleet(Scenario(**fields), trace, observation_begins_at(trace), observation_ends_at(trace))


H200S = [("H200-141GB", 4, 8, 6), ("H200-141GB", 1, 9, 3)]
MIXED = [("A100-40GB", 2, 8, 6), ("T4", 1, 9, 3), ("T4", 1, 10, 3)]
TWO_BOARDS = nodes(("a1", "A100-40GB", 8), ("a2", "A100-40GB", 8), ("t1", "T4", 4))


def test_the_board_is_the_data_s_own():
    found = chosen(made(H200S))
    assert (found.name, found.gpu_model.name, found.chosen) == ("H200-141GB", "H200-141GB", False)
    assert (found.gpus, found.installed.gpus, found.today.total) == (5, 5, 5)
    assert found.remarks() == []


def test_of_several_boards_the_largest_pool_is_planned_and_the_rest_is_named():
    found = chosen(made(MIXED, TWO_BOARDS))
    assert (found.name, found.gpus, found.node_names) == ("A100-40GB", 16, ("a1", "a2"))
    assert found.installed.gpus == 20
    assert "Of 20 GPUs, the plan is for the 16 × A100-40GB" in found.remarks()[0]
    assert "4 × T4" in found.remarks()[0]
    assert found.jobs_of(made(MIXED).jobs)["gpu_model"].unique().to_list() == ["A100-40GB"]
    small = chosen(made(MIXED, TWO_BOARDS), gpu_model="T4")
    assert (small.name, small.gpus, small.chosen, small.can_be_cut) == ("T4", 4, False, False)


def test_another_board_is_a_what_if_for_the_whole_fleet():
    found = chosen(made(MIXED, TWO_BOARDS), gpu_model="H100-80GB-SXM5")
    assert (found.name, found.gpus, found.pool, found.chosen) == ("H100-80GB-SXM5", 20, None, True)
    assert "What-if" in found.remarks()[0]


def test_boards_that_jobs_do_not_name_are_one_pool_of_whole_gpus():
    found = chosen(made([(None, 2, 8, 6)], TWO_BOARDS))
    assert (found.name, found.gpu_model.name, found.gpus, found.can_be_cut) == (None, UNNAMED_GPU_MODEL, 20, False)
    assert "A100-40GB, T4" in found.remarks()[0]
    with pytest.raises(ScenarioError, match=r"A100-40GB.*Name one with --gpu-model"):
        found.require_catalogue_model("plan")


def test_one_board_of_an_inventory_serves_jobs_that_name_none():
    found = chosen(made([(None, 2, 8, 6)], nodes(("n1", "H200-141GB", 8))))
    assert (found.name, found.gpus) == ("H200-141GB", 8)


@pytest.mark.parametrize("word", [None, "a word of the source"])
def test_a_board_that_nobody_knows_asks_for_one_only_where_it_is_needed(word):
    found = chosen(made([(word, 2, 8, 6)]))
    assert (found.name, found.in_catalogue, found.can_be_cut, found.gpus) == (word, False, False, 2)
    assert "--gpu-model" in found.remarks()[0]
    with pytest.raises(ScenarioError, match="Name one with --gpu-model"):
        found.require_mig("layouts")


def test_nodes_in_service_at_the_end_are_the_fleet():
    dates = nodes(("n1", "H200-141GB", 8), ("n2", "H200-141GB", 8), ("n3", "H200-141GB", 8)).with_columns(
        installed=pl.Series([None, None, DAY + timedelta(days=1)], dtype=pl.Datetime("us", "UTC")),
        retired=pl.Series([None, DAY + timedelta(days=2), None], dtype=pl.Datetime("us", "UTC")),
    )
    trace = made(H200S, dates)
    assert find_installed(trace, observation_begins_at(trace), observation_ends_at(trace)).gpus == 16
    assert chosen(trace).node_names == ("n1", "n3")
    assert installed_gpu_hours(dates, observation_begins_at(trace), observation_ends_at(trace)) == 24 * (
        8 * 3 + 8 * 2 + 8 * 2
    )


@pytest.mark.parametrize("inventory", [None, nodes(("n1", "H200-141GB", 8), ("n2", "H200-141GB", 4))])
def test_ledger_plan_and_simulation_have_the_same_gpus(tmp_path, inventory):
    trace = made(H200S, inventory)
    write_dataset(trace, tmp_path / "t")
    scenario = Scenario(data=str(tmp_path / "t"), horizon_intervals=24, replications=2)
    known = history(scenario)
    hours = float(scenario_ledger(scenario)["gpu_hours"].sum())
    gpus = hours / (24 * DAYS)
    assert gpus == known.fleet.gpus
    study = evaluate(scenario, cache=False)
    assert (
        gpus
        == study.decision.fleet_gpus
        == study.headline.fleet_gpus
        == study.headline.installed_gpus
        == study.problem.gpus
    )


def test_without_a_board_the_study_has_hours_and_waits_and_no_money(tmp_path):
    write_dataset(made([(None, 2, 8, 6), (None, 1, 9, 3)]), tmp_path / "t")
    scenario = Scenario(data=str(tmp_path / "t"), horizon_intervals=24, replications=2)
    study = evaluate(scenario, cache=False)
    assert study.headline.allocated_gpu_hours == DAYS * (2 * 6 + 1 * 3)
    assert [getattr(study.headline, name) for name in ("gpu_model", "cost", "energy_kwh")] == [None] * 3
    assert study.decision.financial_impact.usd_per_week is None
    assert study.tables["costs"].is_empty()
    assert study.decision.action == "none", "a handful of jobs says little"
    assert any("--gpu-model" in text for text in study.provenance.cautions)
    own = evaluate(Scenario(**{**scenario.__dict__, "price_per_gpu_hour": 2.0}), cache=False)
    assert float(own.headline.cost) == 2 * 3 * 24 * DAYS
    assert own.headline.energy_kwh is None


@pytest.mark.long
def test_a_fleet_that_is_cut_is_compared_with_itself_as_it_is_cut(tmp_path):
    cut = nodes(("a1", "A100-40GB", 4), ("a2", "A100-40GB", 4)).with_columns(
        mig_enabled=pl.Series([True, None]), layouts=pl.Series([";".join(["1g.5gb:7"] * 4), None])
    )
    jobs = [("A100-40GB", "1g.5gb", 8, 6)] * 20 + [("A100-40GB", 2, 9, 3)]
    write_dataset(made(jobs, cut), tmp_path / "t")
    study = evaluate(Scenario(data=str(tmp_path / "t"), horizon_intervals=24, replications=2), cache=False)
    assert study.headline.allocated_gpu_hours == pytest.approx(DAYS * (20 * 6 / 7 + 6))
    assert (study.headline.fleet_gpus, study.headline.cut_gpus) == (8, 4)
    assert dict(study.problem.initial) == {"1g.5gb:7": 4, "gpu": 4}
    # Twenty instances at once are three GPUs of the four that are cut; as whole GPUs they would not fit on eight.
    known = history(study.scenario)
    jobs = to_simulator_jobs(draw_replication(study.scenario, known, past_jobs(known), 0), "requested")
    layouts = [text for text, count in known.fleet.layouts.items() for _ in range(count)]
    profiles = ("gpu", "1g.5gb")
    offered = [count_layout_instances(layouts[first : first + 4], profiles) for first in (0, 4)]
    fleet = NodeFleet(profiles, [4, 4], np.array(offered)[:, None], [0, 0], [1.0, 1 / 7])
    requests = make_week_requests(jobs, fleet, known.fleet.gpu_model)
    assert (simulate_requests(requests, fleet).start_s == requests.ready_s).all()
    held = study.tables["layout_plan"].filter(pl.col("layout").str.starts_with("1g."))
    assert held["node"].unique().to_list() == ["a1"]


@pytest.mark.parametrize(
    ("asked", "size", "layouts"),
    [
        (1, 4, {"1g.5gb:7": 4}),
        (2, 4, {"1g.5gb:7": 4, "gpu": 4}),
        (5, 4, {"1g.5gb:7": 4, "gpu": 16}),
        (2, 8, {"gpu": 16}),
    ],
)
def test_of_so_many_nodes_those_that_are_there_stay_cut_and_further_ones_are_whole(asked, size, layouts):
    cut = nodes(("a1", "A100-40GB", 4), ("a2", "A100-40GB", 4)).with_columns(
        mig_enabled=pl.Series([True, None]), layouts=pl.Series([";".join(["1g.5gb:7"] * 4), None])
    )
    found = chosen(made([("A100-40GB", "1g.5gb", 8, 6)] * 3, cut), nodes=asked, gpus_per_node=size)
    assert (found.gpus, dict(found.layouts)) == (asked * size, layouts)
    assert found.note == "as given in the scenario"


def test_a_plan_is_for_one_board_and_the_bill_is_for_all_that_is_installed(tmp_path):
    write_dataset(made(MIXED, TWO_BOARDS), tmp_path / "t")
    study = evaluate(Scenario(data=str(tmp_path / "t"), horizon_intervals=24, replications=2), cache=False)
    assert study.headline.installed_gpu_hours == 20 * 24 * DAYS
    assert study.tables["costs"]["PricingQuantity"].sum() == pytest.approx(20 * 24 * DAYS)
    assert study.headline.fleet_gpus == 16
