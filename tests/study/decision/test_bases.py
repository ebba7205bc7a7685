"""What a decision is counted from, and by which lever it saves: on queues whose rule is known, and in sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.inbox import write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.ahead import run_out_of
from gpuplanner.study.decision.compare import Contest, contest, opened
from gpuplanner.study.decision.decide import decide
from gpuplanner.study.decision.explained import bases
from gpuplanner.study.decision.frames import bases_in_words, levers
from gpuplanner.study.decision.policies import FEWER, LEVERS, POLICY_NAMES
from gpuplanner.study.decision.record import Comparison, PolicyRow
from gpuplanner.study.decision.sentences import unknown_decision
from gpuplanner.study.decision.types import OBSERVED, QUEUE, TODAY, Saving
from tests.study.test_calibration import GPUS, cluster, trace_of

JOBS = 1500
FEW = {"policies": "static_whole", "path": "operator"}
"""The queue of these clusters is the plain one, which reserves room and not nodes."""


@pytest.fixture(scope="module")
def queued(tmp_path_factory) -> Scenario:
    """A node whose waits one rule explains, every size of job by itself."""
    place = tmp_path_factory.mktemp("queued")
    write_dataset(trace_of(cluster("easy", jobs=JOBS), [GPUS]), place / "data")
    return Scenario(data=str(place / "data"), **FEW)


@pytest.fixture(scope="module")
def found(queued) -> Contest:
    return contest(queued)


def held_back(place, hours: float) -> Scenario:
    """The same node, where jobs of two GPUs start later than the rule lets them, after the others are done."""
    jobs = cluster("easy", jobs=JOBS)
    late = pl.when(pl.col("gpus") == 2).then(hours * 3600).otherwise(0.0)
    jobs = jobs.with_columns(pl.col("start_s", "end_s") + late)
    write_dataset(trace_of(jobs, [GPUS + 8]), place / "data")
    return Scenario(data=str(place / "data"), **FEW)


def test_where_a_rule_explains_every_size_the_queue_leads(found):
    assert (found.arena.base, found.other.base, found.not_queue) == (QUEUE, OBSERVED, None)
    submit = found.asked.views["as today"].requests.submit_s
    assert np.array_equal(found.arena.ready_s, submit), "jobs come at their submission"


def test_todays_service_from_the_queue_is_that_of_all_weeks(found):
    arena, days = found.arena, found.arena.ready_s // 86400
    halves = [arena.judged & (days < days.max() / 2), arena.judged & (days >= days.max() / 2)]
    own = [arena.late_minutes(arena.today, half) for half in (*halves, arena.judged)]
    for half, mine in zip(halves, own, strict=False):
        assert np.array_equal(arena.limits(half), np.maximum(mine, own[2]) + arena.minutes), (
            "or its own, if busier"
        )
    waits = np.sort(arena.today.late_s[:, arena.judged & (arena.size == 0)], axis=1)
    by_hand = np.median(waits[:, int(np.ceil(0.95 * waits.shape[1])) - 1]) / 60 + arena.minutes
    assert min(arena.limits(half)[0] for half in halves) == pytest.approx(by_hand)
    other = found.other
    assert not np.array_equal(other.limits(halves[0]), other.limits(halves[1]))


def test_a_size_that_something_else_keeps_leaves_the_starts_that_were_seen(tmp_path):
    arena, other, why = bases(opened(held_back(tmp_path, 6.0))[2])
    assert (arena.base, other, why) == (OBSERVED, None, None), "a size of job is contradicted"


def test_a_size_of_too_few_jobs_leaves_the_lead_to_starts_and_is_named(tmp_path):
    write_dataset(trace_of(cluster("easy", jobs=600), [GPUS]), tmp_path / "data")
    arena, other, why = bases(opened(Scenario(data=str(tmp_path / "data"), **FEW))[2])
    assert (arena.base, other.base) == (OBSERVED, QUEUE)
    assert "5-8 GPUs (too few to judge)" in why


def test_both_bases_are_told_with_the_one_that_leads(queued):
    decision = decide(queued).decision
    assert [(row.base, row.leads) for row in decision.bases] == [(QUEUE, True), (OBSERVED, False)]
    assert decision.base == QUEUE
    lead, other = bases_in_words(Comparison(decision, 0.95, 10.0))
    assert "queue, from which it was decided" in lead
    assert "observed starts: it adds" in other


def test_a_fleet_that_held_jobs_back_has_a_date_only_where_a_queue_explains_it(found, tmp_path):
    waits = run_out_of(found, rightsized=False).today
    assert found.explained
    assert waits.reason is None or "wait for the fleet" not in waits.reason
    blind = replace(found, arena=found.other, other=None)
    assert not blind.explained
    assert "no replay explains" in run_out_of(blind, rightsized=False).today.reason


HOURS = st.floats(1.0, 1e5)


@given(st.lists(st.tuples(HOURS, st.booleans()), min_size=len(POLICY_NAMES), max_size=len(POLICY_NAMES)),
       st.integers(0, len(POLICY_NAMES) - 1), HOURS)  # fmt: skip
def test_levers_sum_to_the_saving_and_none_takes_back_what_another_gave(rows, winner, today):
    policies = tuple(
        PolicyRow(name, "", gpu_hours_promised=hours, meets_target=holds)
        for name, (hours, holds) in zip(POLICY_NAMES, rows, strict=True)
    )
    saved = max(today - rows[winner][0], 0.0)
    decision = unknown_decision(Scenario(), "nothing was played")
    decision = replace(decision, policy=POLICY_NAMES[winner], saving=Saving(saved))
    found = Comparison(decision, 0.95, 10.0, PolicyRow(TODAY, "", gpu_hours_promised=today), policies)
    split = levers(found)
    assert sum(hours for _, hours in split) == pytest.approx(saved, abs=1e-6)
    assert all(hours >= -1e-6 for _, hours in split)
    assert [name for name, _ in split] == [name for name in LEVERS if name in dict(split)], "in one order"


def test_what_fewer_nodes_would_have_saved_is_not_credited_to_cutting():
    rows = (
        PolicyRow("static_whole", "", gpu_hours_promised=900.0, meets_target=True),
        PolicyRow("static_mig", "", gpu_hours_promised=700.0, meets_target=True),
    )
    decision = replace(unknown_decision(Scenario(), ""), policy="static_mig", saving=Saving(300.0))
    found = Comparison(decision, 0.95, 10.0, PolicyRow(TODAY, "", gpu_hours_promised=1000.0), rows)
    assert levers(found) == ((FEWER, 100.0), ("cut otherwise", 200.0))
    late = replace(found, policies=(replace(rows[0], meets_target=False), rows[1]))
    assert levers(late) == ((FEWER, 0.0), ("cut otherwise", 300.0)), (
        "a way that makes jobs late saves nothing"
    )
