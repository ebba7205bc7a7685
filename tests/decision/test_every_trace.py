"""On every trace, generated or public: its own nodes are late for nobody, and the causes of waits add up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.decision.explained_waits import sum_waits
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from tests.clusters import cut_clusters, traces
from tests.decision.test_replay import jobs_without_room


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
    asked = load_policy_simulation(Scenario(data=ingested(name), actuator="slurm"))[1]
    assert asked.nodes.named
    assert jobs_without_room(asked) == []


def causes_add_up(scenario: Scenario) -> None:
    """Hold the causes of waiting against what jobs waited, by job and by every way to sum them."""
    asked, replayed_jobs = load_policy_simulation(scenario)[1:3]
    is_evaluated, waits = replayed_jobs.waits.is_evaluated, replayed_jobs.waits
    found = sum_waits(asked, waits)
    waited_h = waits.waited_s[is_evaluated].sum() / SECONDS_PER_HOUR
    assert (waits.seconds >= 0.0).all()
    assert waits.seconds[is_evaluated].sum(axis=1) == pytest.approx(
        np.maximum(waits.waited_s[is_evaluated], 0.0), abs=1e-3
    )
    for rows in (found.causes.job_size, found.causes.team, found.causes.partition):
        assert sum(row.jobs for row in rows) == is_evaluated.sum()
        assert sum(row.waited for row in rows) == pytest.approx(waited_h, abs=1e-3)
    assert np.isfinite(replayed_jobs.today.waits_s[:, replayed_jobs.is_evaluated]).all()


def test_causes_add_up_on_the_sample():
    causes_add_up(Scenario())


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_causes_add_up_on_cut_clusters(seed, handed_over):
    causes_add_up(Scenario(data=handed_over(cut_clusters.slurm_cut(seed)), actuator="mig-manager"))
    causes_add_up(Scenario(data=handed_over(cut_clusters.kubernetes_cut(seed)), actuator="mig-manager"))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_causes_add_up_where_nodes_are_not_known(seed, handed_over):
    bare = handed_over(cut_clusters.kubernetes_cut(seed, with_nodes=False))
    causes_add_up(Scenario(data=bare, actuator="mig-manager"))


@pytest.mark.data
@pytest.mark.parametrize("name", list(traces.PUBLIC))
def test_causes_add_up_on_public_traces(name, ingested):
    causes_add_up(Scenario(data=ingested(name), actuator="mig-manager"))


@pytest.mark.data
@pytest.mark.long
def test_causes_add_up_on_philly_and_its_virtual_clusters(ingested, public_data):
    every = [(traces.philly(public_data), "2017-10"), *traces.virtual_clusters(public_data)]
    for number, (found, month) in enumerate(every):
        data = ingested(f"Philly {number}", lambda found=found: found)
        causes_add_up(Scenario(data=data, actuator="mig-manager", month=month, tz=traces.PACIFIC))
