"""The 20-job case: bands over 100 seeds, the identity of work, and what the figures rest on."""

from __future__ import annotations

import ast
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import parse_layout, prove
from gpuplanner.lab.claims.twenty_jobs import (
    CASE_1,
    CASE_2,
    TARGETS,
    Design,
    Policy,
    Profiling,
    arrange,
    comparison,
    decompose,
    draw,
    observe,
    one,
    recommend,
    replicate,
    serve,
)
from gpuplanner.lab.claims.twenty_jobs.account import account
from gpuplanner.lab.claims.twenty_jobs.arrange import first_fit
from gpuplanner.lab.claims.twenty_jobs.brief import implied_slices
from gpuplanner.lab.claims.twenty_jobs.decompose import CORNERS
from gpuplanner.lab.claims.twenty_jobs.recommend import verdicts
from gpuplanner.lab.claims.twenty_jobs.speed import SPEEDS, capacities

pytestmark = pytest.mark.long
SEEDS = 100


@pytest.fixture(scope="module")
def rows():
    return replicate([CASE_1, CASE_2], range(SEEDS))


@pytest.mark.long
def test_means_over_100_seeds_lie_in_the_bands(rows):
    table = comparison(rows)
    assert rows["seed"].n_unique() == SEEDS
    assert len(table) == len(TARGETS) == 4
    assert table["inside"].to_list() == [True] * 4
    assert (table["high"] - table["low"] > 0).all()


def test_work_is_the_same_in_both_cases_and_as_drawn(rows):
    """U1 * C1 * T1 = U2 * C2 * T2 = sum of run time * demand, to rounding, in every run."""
    identity = rows.select(
        "seed",
        product=pl.col("utilisation_provisioned") * pl.col("provisioned_slices") * pl.col("completion_min"),
    )
    capacity = capacities("H100-80GB-SXM5", "slices")
    for seed, product in identity.iter_rows():
        jobs = draw(Design(), seed)
        drawn = sum(
            run * fill * capacity[need]
            for run, fill, need in jobs.select("run_min", "fill", "need").iter_rows()
        )
        assert product == pytest.approx(drawn, rel=1e-12)


def test_static_case_equals_list_scheduling_by_hand(rows):
    """Case 1 again without the simulator: each profile's instances take its jobs in order."""
    instances = {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16}
    for seed, completion in (
        rows.filter(policy=CASE_1.name).select("seed", "completion_min").head(20).iter_rows()
    ):
        free_at = {profile: [0.0] * count for profile, count in instances.items()}
        for asked, run in draw(Design(), seed).select("asks_for", "run_min").iter_rows():
            queue = free_at[asked]
            queue[queue.index(min(queue))] += run
        assert completion == pytest.approx(max(map(max, free_at.values())), rel=1e-12)


def test_reported_figures_agree_only_over_44_slices():
    assert 43 < implied_slices() < 44


def test_utilisations_are_three_different_things(rows):
    static = rows.filter(policy=CASE_1.name)
    assert np.allclose(static["utilisation_provisioned"], static["utilisation_server"], rtol=1e-12)
    planned = rows.filter(policy=CASE_2.name)
    # 7 GPUs with 43 slices instead of 8 with 56.
    ratio = planned["utilisation_server"] / planned["utilisation_provisioned"]
    assert ratio.is_between(43 / 56 - 1e-9, 48 / 56).all()
    assert not np.allclose(planned["utilisation_instances"], planned["utilisation_provisioned"], rtol=1e-6)


@pytest.mark.parametrize("how", ["exact", "greedy"])
def test_seven_gpus_are_optimal_and_found(how):
    needs = draw(Design(), 0)["need"].to_list()
    found = arrange(needs, Design(), how)
    board = Design().model
    assert (
        found.gpus == 7 == -(-sum(board.profile(need).memory_slices for need in needs) // board.memory_slices)
    )
    assert all(prove(board, parse_layout(layout)) for layout, _ in found.layouts)
    held = sum(
        (gpus * pl.Series(list(parse_layout(layout).values())).sum() for layout, gpus in found.layouts), 0
    )
    assert held == len(needs)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.sampled_from(["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]), min_size=1, max_size=24
    )
)
def test_arrangements_are_legal_and_give_everyone_enough(requests):
    design = Design()
    capacity = capacities(design.board, "slices")
    for how in ("exact", "greedy", "static"):
        found = arrange(requests, design, how)
        assert found.gpus <= design.gpus
        assert all(prove(design.model, parse_layout(layout)) for layout, _ in found.layouts)
        for request, given_ in zip(requests, found.given, strict=True):
            assert given_ is None or capacity[given_] >= capacity[request]


def test_first_fit_leaves_out_what_has_no_room():
    assert first_fit({"7g.80gb": 2, "1g.10gb": 1}, Design().model, 2) == [{"7g.80gb": 1}, {"7g.80gb": 1}]


def test_recommender_sees_samples_and_never_the_truth():
    """The same samples with other truths behind them give the same answer."""
    design, profiling = Design(), Profiling()
    jobs = draw(design, 3)
    samples = observe(jobs, design, 3, profiling)
    liar = jobs.with_columns(need=pl.lit("7g.80gb"), fill=0.01, memory_gib=99.0)
    columns = ["job_id", "asks_for"]
    answer = recommend(jobs.select(columns), samples, design, profiling)
    assert recommend(liar, samples, design, profiling) == answer
    assert (
        recommend(
            jobs.select(columns),
            samples.with_columns(sm_activity=0.01, memory_used_gib=1.0),
            design,
            profiling,
        )
        == ["1g.10gb"] * 20
    )


def test_recommender_errs_rarely_with_a_fair_look_and_often_with_a_poor_one(rows):
    planned = rows.filter(policy=CASE_2.name)
    assert planned["right"].mean() > 19
    poor = Profiling(level_seen=(0.4, 1.0), peak_seen=(0.4, 1.0))
    seen = replicate([CASE_2], range(10), profiling=poor)
    assert seen["right"].mean() < 17
    assert seen["out of memory"].sum() == seen["restarts"].sum() > 0
    assert (seen["lost"] > 0).sum() == (seen["restarts"] > 0).sum()
    assert (seen["identity_error"].abs() < 1e-9).all()


def test_job_too_large_for_its_instance_dies_and_starts_again():
    design = Design()
    jobs = draw(design, 0).with_columns(profile=pl.lit(None, pl.String))
    victim = jobs.filter(need="3g.40gb").row(0, named=True)
    wrong = [
        "1g.10gb" if job == victim["job_id"] else need
        for job, need in jobs.select("job_id", "need").iter_rows()
    ]
    served = serve(jobs.drop("profile"), arrange(wrong, design, "exact"), design)
    tries = served.attempts.filter(job_id=victim["job_id"]).sort("attempt")
    first, second = tries.rows(named=True)
    slowdown = victim["fill"] * 3 / 1
    assert first["dies"]
    assert first["end_min"] - first["start_min"] == pytest.approx(
        victim["run_min"] * slowdown * victim["peak_at_share"]
    )
    assert not second["dies"]
    # The GPU that was off is cut for it within the minute.
    assert second["start_min"] == pytest.approx(first["end_min"] + design.reconfigure_min)
    assert second["end_min"] - second["start_min"] == pytest.approx(victim["run_min"])
    assert account(served, design)["restarts"] == 1


@pytest.mark.parametrize("speed", SPEEDS)
def test_too_small_an_instance_slows_a_job_by_its_capacity(speed):
    design = Design()
    jobs = draw(design, 0).with_columns(memory_gib=1.0)
    served = serve(jobs, arrange(["1g.10gb"] * 20, design, "exact"), design, speed=speed)
    capacity = capacities(design.board, speed)
    for row in served.attempts.iter_rows(named=True):
        slow = max(1.0, row["fill"] * capacity[row["need"]] / capacity["1g.10gb"])
        assert row["end_min"] - row["start_min"] == pytest.approx(row["run_min"] * slow)


def test_decomposition_adds_up():
    found = decompose(replicate(CORNERS, range(6)), ["completion_min", "utilisation_provisioned"])
    for _, parts in found.group_by("measure"):
        sized, layouts, together = (
            parts.filter(part=part).row(0, named=True) for part in ("right-sizing", "layouts", "together")
        )
        assert sized["shapley"] + layouts["shapley"] == pytest.approx(together["shapley"])
        assert sized["first"] + layouts["last"] == pytest.approx(together["shapley"])
    assert found.filter(part="right-sizing", measure="completion_min")["share"].item() > 0.8


def test_same_seed_same_figures():
    assert replicate([CASE_2], [7]).equals(replicate([CASE_2], [7]))


def test_profiling_runs_can_be_charged():
    free = replicate([CASE_2], [0]).row(0, named=True)
    paid = replicate([Policy("paid", "recommended", "exact", profiling_charged=True)], [0]).row(0, named=True)
    # Fourteen ask for eight instances: two waves of ten minutes.
    assert paid["completion_min"] == pytest.approx(free["completion_min"] + 20)
    product = paid["utilisation_provisioned"] * paid["provisioned_slices"] * paid["completion_min"]
    assert product == pytest.approx(free["work_drawn"])


def test_faulty_designs_are_refused_by_name():
    with pytest.raises(ScenarioError, match="fill"):
        Design(fill=(0.9, 1.2))
    with pytest.raises(ScenarioError, match="layouts of static"):
        Policy("x", "asked", "magic")
    with pytest.raises(ScenarioError, match="layouts"):
        arrange(["1g.10gb"], Design(), "magic")


REPORTED = {36.2, 0.362, 89.79, 0.8979, 114, 59, 114 * 60, 59 * 60}


def numbers_in(source: str) -> list[float]:
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    ]


def test_reported_figures_stand_in_the_comparison_alone(root):
    """No code path but the comparison column holds them. The one 59 elsewhere is an input: the longest run time."""
    found = {}
    for path in sorted((root / "gpuplanner" / "lab" / "claims").rglob("*.py")):
        held = [number for number in numbers_in(path.read_text()) if number in REPORTED]
        if held:
            found[path.name] = held
    cells = json.loads((root / "notebooks" / "07_twenty_jobs.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert not [number for number in numbers_in(code) if number in REPORTED]
    assert sorted(found.pop("brief.py")) == [0.362, 0.8979, 59.0, 114.0]
    assert found == {"design.py": [59.0]}
    assert Design().run_min == (52.0, 59.0)


def test_one_seed_is_what_the_table_says(rows):
    served, requested = one(CASE_2, seed=5)
    assert (
        account(served, Design())["completion_min"]
        == rows.filter(policy=CASE_2.name, seed=5)["completion_min"].item()
    )
    assert verdicts(served.attempts, requested, Design()).len() == 20
