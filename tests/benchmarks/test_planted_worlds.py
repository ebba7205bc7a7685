"""Clusters whose truth an independent program has computed: measures, GPUs, limits, causes, gaps, shorter records."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import clusters
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.explained_waits import sum_waits
from gpuplanner.decision.recommendation import DecisionBasis, decide
from gpuplanner.decision.wait_causes import CAUSES

pytestmark = pytest.mark.long
WORLDS = tuple("abcdefgh")
STATED = {"target_wait_minutes": 30.0, "policies": "fewer_nodes", "path": "slurm"}


@pytest.fixture(scope="session")
def answered(tmp_path_factory):
    """Write a world, read its files, and decide."""
    root = tmp_path_factory.mktemp("worlds")

    @cache
    def data(name: str, seed: int, gap: int, assoc: bool) -> tuple[Path, dict[str, Any]]:
        files, out = root / f"{name}-{seed}-{gap}-{assoc}", root / f"{name}-{seed}-{gap}-{assoc}-data"
        truth = clusters.write_cluster(files, name, seed, gap)
        command = ["ingest", "slurm", str(files / "sacct.txt"), "--nodes", str(files / "nodes.txt")]
        parts = [command, *(["ingest", "auto", str(files / more)] for more in ("assoc.txt", "events.txt")
                            if (files / more).exists() and (assoc or more == "events.txt"))]  # fmt: skip
        for part in parts:
            whole = [sys.executable, "-m", "gpuplanner", *part, "--tz", "UTC", "-o", str(out), "--quiet"]
            subprocess.run(whole, check=True)
        return out, truth

    @cache
    def answer(
        name: str, seed: int = 1, gap: int = 2, days: int = 56, *, assoc: bool = True
    ) -> tuple[DecisionBasis, dict]:
        folder, truth = data(name, seed, gap, assoc)
        return decide(Scenario(data=str(folder), history_days=days, **STATED)), truth

    return answer


def near(gpus: int, right: int, answer: DecisionBasis) -> bool:
    assert answer.policy_results is not None
    return abs(gpus - right) <= max(0.1 * right, answer.policy_results.asked_jobs.node_gpus)


@pytest.mark.parametrize("name", WORLDS)
def test_first_measure_and_gpus_are_those_of_the_truth(answered, name):
    answer, truth = answered(name)
    right = truth["answer"]
    assert answer.decision.action == right["measure"], answer.decision.sentence
    assert near(answer.decision.gpus, right["measure_gpus"], answer), answer.decision.sentence


def test_limits_that_bind_are_named_to_the_number_with_and_without_their_statement(answered):
    for assoc in (True, False):
        answer, truth = answered("d", assoc=assoc)
        assert answer.decision.action == "raise_limit"
        found = answer.policy_results
        named = {one.tenant: one.gpus for one in sum_waits(found.asked_jobs, found.replayed_jobs.waits).limits}
        stated = truth["planted"]["tenant_limits"]
        assert len(named) >= len(stated) - 1
        assert all(stated[tenant] == gpus for tenant, gpus in named.items())


@pytest.mark.parametrize("name", ["b", "f"])
def test_the_gap_between_an_end_and_the_next_start_changes_nothing(answered, name):
    answers = [answered(name, gap=gap)[0] for gap in (0, 2, 30)]
    assert len({one.decision.action for one in answers}) == 1
    gpus = [one.decision.gpus for one in answers]
    assert max(gpus) - min(gpus) <= answers[0].policy_results.asked_jobs.node_gpus


@pytest.mark.parametrize("name", ["a", "b", "c", "f"])
def test_a_shorter_record_changes_the_action_only_where_its_interval_is_wide(answered, name):
    whole = answered(name)[0]
    for days in (14, 28):
        part = answered(name, days=days)[0]
        if part.decision.action != whole.decision.action:
            wide = [row for row in part.decision.service if row.low <= row.limit_minutes <= row.high]
            assert wide, (days, part.decision.sentence)


@pytest.mark.parametrize("name", WORLDS)
def test_causes_are_those_of_the_truth(answered, name):
    """Nine tenths of the waiting have the cause that the simulator's own state says."""
    answer, truth = answered(name)
    waits = answer.recommendation.model.waits
    ours = dict(zip(CAUSES, waits.seconds[waits.is_evaluated].sum(axis=0), strict=True))
    right = truth["causes"]["all"]["job_seconds"]
    if sum(right.values()) > 3600:
        alike = sum(min(ours[cause], seconds) for cause, seconds in right.items())
        assert alike >= 0.9 * sum(right.values()), (ours, right)
