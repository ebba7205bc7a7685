"""The queue rule that a record was made by, found again; and what a replay with limits and closed nodes does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.decision.explained_waits import explain_waits
from gpuplanner.decision.free_gpus_over_time import Handover
from gpuplanner.decision.queue_model import (
    EASY_QUEUE,
    PASS_QUEUE,
    QueueModel,
    QueueRule,
    build_closing_requests,
    find_head_starts,
)
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.wait_causes import CAUSES, TenantGpuLimit, observe_tenant_use
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.simulator.scheduling_rules import Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from gpuplanner.usage.current_nodes import TodaysNodes

DAY = 86_400.0
ZERO = datetime(2026, 3, 2, tzinfo=UTC)
FLEET = NodeFleet.of_full_gpus([8, 8, 8, 8])
HANDOVER = Handover(60.0, 0.0)


def busy_jobs(seed: int, jobs: int = 1200, load: float = 0.9) -> tuple[NodeRequests, np.ndarray]:
    """Jobs of 1 to 8 GPUs that keep 32 GPUs nearly busy, and the tenant of each; limits are twice the run time."""
    rng = np.random.default_rng(seed)
    total = rng.choice([1, 2, 4, 8], jobs, p=[0.5, 0.2, 0.2, 0.1])
    run = np.round(rng.exponential(3600.0, jobs)) + 60
    submit = np.sort(np.round(rng.uniform(0, (total * run).sum() / (32 * load), jobs)))
    one = np.ones(jobs, int)
    return NodeRequests(submit, submit, run, 2 * run, 0 * one, total, one), rng.integers(0, 3, jobs)


def asked_of_jobs(requests: NodeRequests, tenant: np.ndarray, queue: QueueModel, **options) -> JobReplayInputs:
    """A record of these jobs as a queue starts them on four nodes of eight GPUs."""
    start = queue.start(requests, FLEET)
    ends = start + requests.run_s
    pins = None
    if queue.closings is None:
        outcome = simulate_requests(requests.with_ready_times(start), FLEET, queue=PASS_QUEUE).allocations.sort(
            "request"
        )
        pins = [[node] for node in outcome["node"].to_list()]
    named = pl.Series([f"t{number}" for number in tenant])
    return JobReplayInputs(
        pl.DataFrame({"tenant": named, "partition": ["gpu"] * len(named), "tier": ["normal"] * len(named)}),
        TodaysNodes(tuple("abcd"), (8,) * 4, (("gpu",) * 8,) * 4, False, True), FLEET,
        load_gpu_model("H100-80GB-SXM5"), {"today": requests}, start, ends,
        pins or [None] * len(start), "observed starts", ZERO, ZERO + timedelta(seconds=float(ends.max())),
        np.zeros(len(start), bool), **options,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["plain", "passing", "head starts"])
def test_the_rule_of_the_record_is_found_again(seed, kind):
    requests, tenant = busy_jobs(seed)
    ahead = np.array([0.0, 0.0, 5 * DAY])[tenant]
    rule = {"plain": QueueRule(), "passing": QueueRule(PASS_QUEUE), "head starts": QueueRule(EASY_QUEUE, ahead)}[kind]
    waits = explain_waits(asked_of_jobs(requests, tenant, QueueModel(HANDOVER, False, tenant, rule=rule)))
    found = waits.queue.rule
    assert (found.queue, found.head_start_s is not None) == (rule.queue, rule.head_start_s is not None)
    assert waits.share.error < 0.2
    assert waits.share.fraction > 0.85
    assert waits.share.gaps == ()
    unexplained = waits.seconds[waits.is_evaluated, CAUSES.index("unexplained")].sum()
    assert unexplained < 0.1 * waits.seconds[waits.is_evaluated].sum()


def pairs_by_hand(requests, start, tenant, gpus, end, most, latency):
    """Every pair of a job that starts and one that could have started in its place, looked at one by one."""
    pairs = []
    for job in range(len(start)):
        for other in range(len(start)):
            waits = requests.ready_s[other] <= start[job] - latency and start[other] > start[job]
            fits = (
                requests.per[other] <= requests.per[job]
                and requests.nodes[other] <= requests.nodes[job]
                and requests.limit_s[other] <= requests.limit_s[job]
            )
            held = (start <= start[job]) & (end > start[job]) & (tenant == tenant[other])
            lawful = gpus[held].sum() + gpus[other] <= most[tenant[other]]
            if waits and fits and lawful and tenant[job] != tenant[other]:
                pairs.append((job, other))
    return pairs


@pytest.mark.parametrize("seed", range(3))
def test_head_starts_contradict_no_pair_where_some_do_not(seed):
    requests, tenant = busy_jobs(seed, jobs=250, load=2.5)
    ahead = np.array([0.0, 4 * 3600.0, 12 * 3600.0])
    limits = (TenantGpuLimit(0, 6.0),)
    queue = QueueModel(HANDOVER, False, tenant, limits, QueueRule(EASY_QUEUE, ahead[tenant]))
    start = queue.start(requests, FLEET)
    end, gpus = start + requests.run_s, requests.total.astype(float)
    keep = np.isfinite(start)
    use = observe_tenant_use(tenant, gpus, np.where(keep, start, np.nan), end, limits)
    queued = np.ones(len(start), bool)
    found = find_head_starts(requests, np.where(keep, start, np.nan), queued, [tenant], use, 60.0)
    pairs = np.array(pairs_by_hand(requests, start, tenant, gpus, end, [6.0, np.inf, np.inf], 60.0))
    assert len(pairs) > 100
    order = requests.ready_s - found
    assert (order[pairs[:, 0]] <= order[pairs[:, 1]] + 1e-6).all()
    assert (requests.ready_s[pairs[:, 0]] > requests.ready_s[pairs[:, 1]]).any()


def test_first_come_first_served_has_no_head_starts():
    requests, tenant = busy_jobs(5)
    tenant[-1] = 9  # a tenant of one job, of which no pair tells anything
    start = simulate_requests(requests, FLEET).start_s
    use = observe_tenant_use(tenant, requests.total.astype(float), start, start + requests.run_s)
    assert find_head_starts(requests, start, np.ones(len(start), bool), [tenant], use, 60.0) is None


@pytest.mark.parametrize("queue", [EASY_QUEUE, PASS_QUEUE])
def test_ranks_order_the_queue_as_tiers_of_shared_nodes_do(queue):
    requests, tenant = busy_jobs(7, load=1.2)
    rank = np.random.default_rng(7).permutation(len(tenant))
    shared = simulate_shared_requests(requests, FLEET, Sharing(0 * tenant, rank), queue=queue)
    assert (
        simulate_requests(requests, FLEET, queue=queue, order=rank.astype(float)).start_s.tolist()
        == shared.start_s.tolist()
    )


def test_who_waits_first_for_nodes_takes_no_quota():
    """Four GPUs are the limit of a tenant: its job of three waits for nodes, and the one behind it starts."""
    zero = np.zeros(3)
    requests = NodeRequests(zero, zero, [100, 50, 10], [100, 50, 10], [0] * 3, [6, 3, 2], [1] * 3)
    for queue in (EASY_QUEUE, PASS_QUEUE):
        model = QueueModel(HANDOVER, False, np.array([0, 1, 1]), (TenantGpuLimit(1, 4.0),), QueueRule(queue))
        assert model.start(requests, NodeFleet.of_full_gpus([8])).tolist() == [0.0, 100.0, 0.0]


def test_a_tenant_below_its_limit_does_not_come_before_others():
    zero = np.zeros(3)
    requests = NodeRequests(zero, zero, [10] * 3, [10] * 3, [0] * 3, [8] * 3, [1] * 3)
    model = QueueModel(HANDOVER, False, np.array([0, 1, 0]), (TenantGpuLimit(1, 8.0),))
    assert model.start(requests, NodeFleet.of_full_gpus([8])).tolist() == [0.0, 10.0, 20.0]


def test_a_closed_node_takes_nothing_in_the_replay():
    requests = NodeRequests([10.0, 10], [10.0, 10], [5.0, 5], [5.0, 5], [0, 0], [8, 8], [1, 1])
    closings = build_closing_requests(
        [(0.0, 90.0, 1, np.inf)], [[0], [0]], np.zeros(0), np.zeros(0), np.array([[8], [8]])
    )
    model = QueueModel(HANDOVER, False, np.zeros(2, int), closings=closings)
    assert model.start(requests, NodeFleet.of_full_gpus([8, 8])).tolist() == [10.0, 15.0]
    assert model.start(requests, NodeFleet.of_full_gpus([8])).tolist() == [
        10.0,
        15.0,
    ]  # the node that is left is in service


def test_nobody_delays_a_job_whose_last_node_takes_the_rest():
    """The second job needs both nodes from 100 on: the third, which takes the smaller one for 1000 s, may not pass."""
    requests = NodeRequests(
        [0.0, 1, 2], [0.0, 1, 2], [100.0, 50, 1000], [100.0, 50, 1000], [0] * 3, [4, 7, 3], [1, 2, 1]
    )
    model = QueueModel(HANDOVER, False, np.zeros(3, int))
    assert model.start(requests, NodeFleet.of_full_gpus([4, 3])).tolist() == [0.0, 100.0, 150.0]


def test_spells_of_a_node_that_overlap_close_it_once():
    requests = NodeRequests([20.0], [20.0], [5.0], [5.0], [0], [8], [1])
    spells = [(0.0, 90.0, 0, np.inf), (10.0, 60.0, 0, np.inf), (50.0, 80.0, 0, 2.0)]
    closings = build_closing_requests(spells, [None], np.zeros(0), np.zeros(0), np.array([[8], [8]]))
    assert closings is not None
    assert closings.requests.run_s.tolist() == [90.0]
    model = QueueModel(HANDOVER, False, np.zeros(1, int), closings=closings)
    assert model.start(requests, NodeFleet.of_full_gpus([8, 8])).tolist() == [20.0]


def test_a_closed_node_offers_neither_slices_nor_whole_gpus():
    """The node has two whole GPUs and fourteen slices; only when it is open again do jobs start on either."""
    capacity = np.array([[2, 14]])
    fleet = NodeFleet(("gpu", "1g.10gb"), np.array([4]), capacity[:, None, :], np.zeros(1, int), np.array([1.0, 1 / 7]))
    requests = NodeRequests([10.0, 10], [10.0, 10], [5.0, 5], [5.0, 5], [0, 1], [1, 1], [1, 1])
    nodes, times = [[0], [0]], np.zeros(0)
    for gpus, start in ((np.inf, [90.0, 90.0]), (2.0, [90.0, 10.0])):
        closings = build_closing_requests([(0.0, 90.0, 0, gpus)], nodes, times, times, capacity)
        model = QueueModel(HANDOVER, False, np.zeros(2, int), closings=closings)
        assert model.start(requests, fleet).tolist() == start


def test_stated_limits_come_before_those_that_are_observed():
    requests, tenant = busy_jobs(3, load=0.5)
    limits = tuple(TenantGpuLimit(number, 10.0) for number in range(2))
    queue = QueueModel(HANDOVER, False, tenant, limits)
    observed = explain_waits(asked_of_jobs(requests, tenant, queue))
    assert {(limit.tenant, limit.gpus) for limit in observed.queue.limits} == {(0, 10.0), (1, 10.0)}
    stated = explain_waits(asked_of_jobs(requests, tenant, queue, tenant_limits={"t0": 10.0, "t1": 10.0, "t2": 99.0}))
    assert {(limit.tenant, limit.gpus) for limit in stated.queue.limits} == {(0, 10.0), (1, 10.0), (2, 99.0)}
    for waits in (observed, stated):
        hours = dict(zip(CAUSES, waits.seconds.sum(axis=0), strict=True))
        assert hours["limits"] > 0.75 * sum(hours.values())
        assert hours["unexplained"] < 0.01 * sum(hours.values())  # short waits on idle GPUs: jobs that start up


def test_a_record_without_the_jobs_that_hold_the_nodes_carries_no_recommendation():
    requests, tenant = busy_jobs(4, load=1.1)
    asked = asked_of_jobs(requests, tenant, QueueModel(HANDOVER, False, tenant))
    rows = np.flatnonzero(np.arange(len(tenant)) % 12 == 0)
    few = JobReplayInputs(**vars(asked) | {
        "jobs": asked.jobs[rows.tolist()], "views": {"today": requests.select(rows)},
        "start_s": asked.start_s[rows], "end_s": asked.end_s[rows],
        "observed_nodes": [asked.observed_nodes[row] for row in rows],
        "is_service": asked.is_service[rows],
    })  # fmt: skip
    share = explain_waits(few).share
    assert share.fraction < 0.005
    assert not share.capacity_is_clear
    assert [gap.withholds for gap in share.gaps] == ["capacity"]
