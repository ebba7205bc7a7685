"""SRTF and LAS against policies in Python, against theory, by hand, and what their spells say."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError
from gpuplanner.lab.gangs import run_gangs, schedule
from gpuplanner.lab.job_lists import totals
from gpuplanner.lab.orders import ResearchRules
from gpuplanner.metrics import always_on, claims, measure, tenant_accounts
from gpuplanner.simulate import Failures, Fleet, Preemption
from tests.lab.gangs import test_spells as spells
from tests.lab.gangs.test_gangs import NODE, gangs
from tests.lab.gangs.test_gangs_oracle import FREE, assert_same, clusters
from tests.lab.gangs.test_theory_gangs import MEAN_S, contains, exponential, replicate
from tests.lab.job_lists.test_reference import differences, fleet_of, jobs_of

pytestmark = pytest.mark.long
BOARD = "H100-80GB-SXM5"
SRTF = ResearchRules(order="srtf", queue="pass")
SRTF_FREE = ResearchRules(queue="pass", order="srtf", preemption=Preemption(((1, 0.0),), 0.0))


class Quota:
    """SRTF and LAS: waiting, then running jobs sorted by urgency share out all GPUs."""

    def __init__(self, fleet, urgency):
        self.gpus, self.urgency = fleet.gpus, urgency

    def __call__(self, cluster):
        left, chosen = self.gpus, set()
        for job in sorted([*cluster.waiting, *cluster.running], key=lambda job: self.urgency(cluster, job)):
            if job.gpus <= left:
                left -= job.gpus
                chosen.add(job)
        in_turn = sorted(cluster.waiting, key=lambda job: self.urgency(cluster, job))
        for job in [job for job in cluster.running if job not in chosen]:
            cluster.stop(job)
        for job in in_turn:
            if job in chosen:
                cluster.start(job)


def by_remaining(cluster, job):
    return job.tier, cluster.remaining_s(job)


class ByAttained:
    """The step that a job has sunk to, then arrival."""

    def __init__(self, thresholds):
        self.thresholds = thresholds

    def __call__(self, cluster, job):
        attained = job.attained_gpu_s
        running = job in cluster.running
        if running:
            attained += job.gpus * (cluster.now - job.since_s)
        step = sum(limit <= attained + 1e-9 for limit in self.thresholds)
        if running and step < len(self.thresholds):
            cluster.wake_at(cluster.now + (self.thresholds[step] - attained) / job.gpus)
        return job.tier, step, job.number


@settings(max_examples=80, deadline=None)
@given(clusters(), st.sampled_from([Preemption(), FREE]))
def test_shortest_remaining_time(cluster, preemption):
    jobs, fleet = cluster
    rules = ResearchRules(order="srtf", queue="pass", preemption=preemption)
    assert_same(jobs, fleet, rules, Quota(fleet, by_remaining), preemption=preemption)


@settings(max_examples=50, deadline=None)
@given(clusters(), st.sampled_from([(12.0,), (8.0, 24.0)]))
def test_least_attained_service(cluster, thresholds):
    jobs, fleet = cluster
    # Sizes that divide the thresholds, so that jobs sink at whole seconds.
    jobs = jobs.with_columns(
        pl.col("gpus").replace({3: 2, 5: 4, 6: 4, 7: 4} | dict.fromkeys(range(9, 17), 8))
    )
    rules = ResearchRules(order="las", queue="pass", preemption=FREE, las_thresholds_gpu_s=thresholds)

    class Policy(Quota):
        def __call__(self, cluster):
            super().__call__(cluster)
            for job in cluster.running:  # those just started sink some time, too
                self.urgency(cluster, job)

    assert_same(jobs, fleet, rules, Policy(fleet, ByAttained(thresholds)), preemption=FREE)


def test_las_lets_a_job_that_has_had_its_share_wait_for_a_new_one():
    jobs = gangs(("long", 0, 100, 4), ("new", 5, 10, 4))
    rules = ResearchRules(
        order="las", queue="pass", las_thresholds_gpu_s=(80.0,), preemption=Preemption(((1, 0.0),), 0.0)
    )
    run = schedule(jobs, NODE, rules, policy="p")
    assert run["first_start"].to_list() == [0, 20]  # at 20 s it has attained 80 GPU s
    assert run["end"].to_list() == [110, 30]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"order": "srpt"}, "Did you mean 'srtf'"),
        ({"order": "srtf", "queue": "easy"}, "order 'srtf'.*queue 'strict' or 'pass'"),
        ({"order": "las", "queue": "pass", "tiers_preempt": True}, "tiers_preempt"),
        ({"queue": "conservative", "failures": Failures()}, "conservative.*failures"),
        ({"las_thresholds_gpu_s": (10.0, 5.0)}, "ascending"),
    ],
)
def test_rules_that_do_not_go_together(values, words):
    with pytest.raises(ScenarioError, match=words):
        ResearchRules(**values)


def test_no_jobs_give_no_outcomes():
    for rules in (SRTF, ResearchRules(queue="conservative")):
        assert schedule(gangs(("a", 0, 1, 1)).clear(), NODE, rules, policy="p").height == 0


def test_time_in_m_m_1_by_shortest_remaining_time():
    """Schrage and Miller (1966), by numerical integration."""
    load, size = 0.7, np.linspace(0.0, 25.0, 200_001)
    step, density = size[1] - size[0], np.exp(-size)
    below = np.cumsum(load * size * density) * step
    second = np.cumsum(load * size**2 * density) * step
    waiting = (second + load * size**2 * np.exp(-size)) / (2 * (1 - below) ** 2)
    residence = np.cumsum(1 / (1 - below)) * step
    expected = MEAN_S * float(((waiting + residence) * density).sum() * step)
    rules = ResearchRules(queue="pass", order="srtf", preemption=Preemption(((1, 0.0),), 0.0))
    contains(replicate(rules, 1, load, exponential, column="jct_s")[:, 0], expected, 0.1)


@pytest.mark.data
def test_published_lists_are_met_to_every_digit_shown(public_data):
    rows = pl.read_csv(public_data / "sim" / "reference_values.csv", infer_schema=False)
    rows = rows.filter(pl.col("policy") == "srtf, overhead 7/30/60 s")
    assert rows.height >= 1
    for row in rows.iter_rows(named=True):
        outcomes = schedule(jobs_of(public_data, row["input"]), fleet_of(row), SRTF, policy="p")
        assert not differences(totals(outcomes), row)


LAS = ResearchRules(order="las", queue="pass", las_thresholds_gpu_s=(5.0, 30.0))


@pytest.mark.parametrize("rules", [SRTF, LAS])
@settings(max_examples=40, deadline=None)
@given(cluster=spells.clusters())
def test_identities_where_jobs_are_stopped(cluster, rules):
    jobs, fleet = cluster
    run = run_gangs(jobs, fleet, rules, policy="p")
    turns = spells.assert_sound(jobs, run, fleet.gpus)
    work = (jobs["run_s"] * jobs["gpus"]).to_numpy()
    assert np.allclose(turns["gross_gpu_s"], work + turns["lost_gpu_s"].to_numpy())
    found = measure(always_on(run, fleet.gpus), BOARD)
    assert found["useful_gpu_hours"] * 3600 == pytest.approx(work.sum())


def test_more_stops_than_the_loop_keeps_at_once():
    spells.test_more_stops_than_the_loop_keeps_at_once(SRTF_FREE, "preempted")


def test_overhead_is_paid_in_the_run_that_makes_up_for_it():
    jobs = pl.DataFrame(
        {
            "job_id": ["long", "short", "shorter"],
            "tenant": "t",
            "submit_s": [0.0, 10.0, 20.0],
            "run_s": [100.0, 5.0, 1.0],
            "gpus": 1,
            "profile": "gpu",
        }
    )
    rules = ResearchRules(queue="pass", order="srtf")
    run = run_gangs(jobs, Fleet(BOARD, 1, 1), rules, policy="p")
    # Stopped after 10 s; after 4 s of its 7 s of overhead again, which leaves 3 + 7; each last run begins with 1 s.
    assert run.spells.filter(job_id="long").select("start_s", "end_s", "lost_s", "ended").rows() == [
        (0.0, 10.0, 0.0, "preempted"),
        (16.0, 20.0, 4.0, "preempted"),
        (22.0, 123.0, 11.0, "finished"),
    ]
    assert run.outcomes["lost_gpu_s"].to_list() == [15.0, 1.0, 1.0]


def test_where_jobs_are_stopped_tenants_are_charged_for_what_was_held():
    rng = np.random.default_rng(2)
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(200).astype(str),
            "tenant": rng.choice(["flood", "meek"], 200, p=[0.8, 0.2]),
            "submit_s": rng.choice([0.0, 9000.0], 200),
            "run_s": rng.integers(300, 2000, 200).astype(float),
            "gpus": rng.choice([1, 2], 200),
            "profile": "gpu",
        }
    )
    fleet, rules = Fleet(BOARD, 1, 16), ResearchRules(queue="pass", order="las")
    found = run_gangs(jobs, fleet, rules, policy="p")
    outcomes = schedule(jobs, fleet, rules, policy="p")
    assert outcomes["preemptions"].sum() > 20
    held = (jobs["run_s"] * jobs["gpus"] + outcomes["lost_gpu_s"]).sum()
    accounts = tenant_accounts(claims(found), {"flood": 12.0, "meek": 4.0})
    assert accounts["held_gpu_hours"].sum() * 3600 == pytest.approx(held)
