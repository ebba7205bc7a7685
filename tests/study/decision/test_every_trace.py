"""On every trace, generated or public: its own nodes are late for nobody, and today's waits are told once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.inbox import Dataset, write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.decision.explained import ON_AVERAGE, OVER, REPRODUCES, USUAL
from gpuplanner.study.decision.shortage import WEEK_S, shortage_of, waited_s
from gpuplanner.study.future.calibration import BY_COUNT, BY_PLACE, calibrate
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from tests.clusters import cut_clusters, traces
from tests.study.decision.test_replay import SECOND_S, late_on_its_own_nodes

FACTOR = USUAL.mean_factor


@pytest.fixture(scope="session")
def ingested(tmp_path_factory: pytest.TempPathFactory, public_data: Path) -> Callable[[str], str]:
    """Write a public trace as a dataset, once."""
    known: dict[str, str] = {}

    def ingest(name: str, found: Callable[[], Dataset] | None = None) -> str:
        if name not in known:
            folder = tmp_path_factory.mktemp("trace") / "data"
            write_dataset(traces.PUBLIC[name](public_data) if found is None else found(), folder)
            known[name] = str(folder)
        return known[name]

    return ingest


@pytest.mark.data
@pytest.mark.parametrize("name", ["Fox", "Supercloud", "OpenB"])
def test_todays_fleet_is_late_for_nobody_where_a_trace_names_nodes(name, ingested):
    asked = opened(Scenario(data=ingested(name), path="slurm"))[1]
    assert asked.nodes.named
    assert (late_on_its_own_nodes(asked) <= SECOND_S).all()


def agree(scenario: Scenario, *, nodes_known: bool = True) -> None:
    """Hold what ``calibrate`` says of today's waits against what ``compare`` plays and counts."""
    found = calibrate(scenario)
    asked, arena = opened(scenario)[1:3]
    assert found.facts.fleet_gpus == asked.nodes.total
    assert (found.facts.base, found.facts.queue) == (asked.base, arena.queue)
    assert tuple(found.jobs["size"].dtype.categories) == arena.classes
    assert found.overall.jobs == int(arena.judged.sum())
    # What the fleet itself kept waiting: the same hours, those of jobs that still wait beside them.
    hours = dict(found.causes.select("cause", "hours").rows())
    told = sum(row.hours for row in shortage_of(arena, None).by_class) * asked.seen_s / WEEK_S
    waited, counts = waited_s(arena)
    beside = waited[counts & ~arena.judged].sum() / SECONDS_PER_HOUR
    assert hours[BY_COUNT] + hours[BY_PLACE] == pytest.approx(told - beside, rel=1e-3, abs=0.1)
    late = arena.today.late_s[0]
    for row in found.groups["size"].to_dicts():
        mine = arena.judged & (arena.size == arena.classes.index(row["size"]))
        added = late[mine].mean()
        if row["verdict"] in (REPRODUCES, ON_AVERAGE):  # then today's own fleet is hardly later than it was
            assert added <= (FACTOR - 1) * row["observed_mean_s"] + SECONDS_PER_MINUTE
        if row["verdict"] == OVER:  # and what the one overestimates the other is late by
            assert added >= 0.5 * (row["simulated_mean_s"] - row["observed_mean_s"])
        if nodes_known:
            played = arena.today.wait_s[mine].mean()
            assert played == pytest.approx(waited[mine].mean(), rel=FACTOR - 1, abs=SECONDS_PER_MINUTE)


def test_calibrate_and_compare_agree_on_the_sample():
    # These jobs came through plain backfill, which path slurm does not play.
    agree(Scenario(path="operator"))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calibrate_and_compare_agree_on_cut_clusters(seed, handed_over):
    agree(Scenario(data=handed_over(cut_clusters.slurm_cut(seed)), path="operator"))
    agree(Scenario(data=handed_over(cut_clusters.kubernetes_cut(seed)), path="operator"))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calibrate_and_compare_agree_where_nodes_are_not_known(seed, handed_over):
    bare = handed_over(cut_clusters.kubernetes_cut(seed, with_nodes=False))
    agree(Scenario(data=bare, path="operator"), nodes_known=False)


@pytest.mark.data
@pytest.mark.parametrize("name", list(traces.PUBLIC))
def test_calibrate_and_compare_agree_on_public_traces(name, ingested):
    agree(Scenario(data=ingested(name), path="operator"))


@pytest.mark.data
@pytest.mark.long
def test_calibrate_and_compare_agree_on_philly_and_its_virtual_clusters(ingested, public_data):
    every = [(traces.philly(public_data), "2017-10"), *traces.virtual_clusters(public_data)]
    for number, (found, month) in enumerate(every):
        data = ingested(f"Philly {number}", lambda found=found: found)
        agree(Scenario(data=data, path="operator", month=month, tz=traces.PACIFIC))
