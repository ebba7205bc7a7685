"""The generated clusters: what is read back, what the simulator may not do, and that each truth is beyond doubt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest

from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.slurm.accounting import read_slurm
from tests.clusters import planted, truth
from tests.clusters.cluster import Cluster
from tests.clusters.cut_clusters import kubernetes_cut, slurm_cut
from tests.clusters.model import UNCUT, WHOLE, Job, Node, play
from tests.clusters.search import LATE_S, fewest_gpus, kept, tried

QUICK = ["too_large-1", "short-1", "quota_bound-3"]


def read(cluster: Cluster, folder):
    paths = {}
    for name, text in cluster.files().items():
        paths[name] = folder / name
        paths[name].write_text(text)
    if cluster.source == "slurm":
        return read_slurm([paths["sacct.txt"]], tz="UTC", nodes=paths.get("nodes.txt"))
    return read_kubernetes(list(paths.values()))


@pytest.mark.parametrize(
    "cluster",
    [
        lambda: planted.planted("too_large-3").cluster,
        lambda: planted.planted("short-2").cluster,
        pytest.param(lambda: planted.planted("wrongly_cut-2").cluster, marks=pytest.mark.long),
        lambda: planted.planted("quota_bound-3").cluster,
        lambda: slurm_cut(1),
        lambda: kubernetes_cut(3),
        pytest.param(lambda: kubernetes_cut(1, with_nodes=False), marks=pytest.mark.long),
    ],
    ids=["too_large", "short", "wrongly_cut", "quota_bound", "slurm_cut", "kubernetes_cut", "without_nodes"],
)
def test_dumps_are_read_back_with_the_planted_numbers(cluster, tmp_path):
    cluster = cluster()
    trace, counts = read(cluster, tmp_path), cluster.planted()
    jobs = trace.jobs
    assert trace.rejects.height == 0
    states = jobs["state"].cast(str).to_list()
    assert (jobs.height, states.count("RUNNING"), states.count("PENDING")) == (
        counts["jobs"],
        counts["running"],
        counts["pending"],
    )
    assert jobs["start_time"].is_not_null().sum() == counts["started"]
    asked = sorted(job.kind for job in cluster.jobs if job.kind != WHOLE)
    if not any(over is not None for over in cluster.played.cancelled):
        assert sorted(jobs["profile_requested"].drop_nulls()) == asked
    if set(asked) == set():
        ended = jobs.filter(jobs["end_time"].is_not_null())
        hours = (ended["gpus"] * (ended["end_time"] - ended["start_time"]).dt.total_seconds()).sum() / 3600
        still = sum(
            job.devices * (cluster.dump - at)
            for job, at in zip(cluster.jobs, cluster.played.start, strict=True)
            if at is not None and at + job.run > cluster.dump
        )
        assert hours + still / 3600 == pytest.approx(counts["device_hours"], abs=0.01)
    if cluster.with_nodes:
        assert dict(trace.inventory["node", "gpus"].iter_rows()) == {n.name: n.gpus for n in cluster.nodes}
    else:
        assert trace.inventory is None


def test_a_job_keeps_its_nodes_and_its_account_through_the_dump(tmp_path):
    cluster = slurm_cut(2)
    trace = read(cluster, tmp_path)
    told = {row[0]: row[1:] for row in trace.jobs["job_id", "node_list", "tenant"].iter_rows()}
    for job, places in zip(cluster.jobs, cluster.played.nodes, strict=True):
        nodes, tenant = told[cluster.arrays.get(job.number) or str(480000 + job.number)]
        assert tenant == job.account
        if len(places) == 1:
            assert nodes == cluster.nodes[places[0]].name
    assert sum(len(places) > 1 for places in cluster.played.nodes) >= 2
    assert cluster.arrays


def some_jobs(seed: int, number: int = 300) -> tuple[list[Job], list[Node], dict[str, int]]:
    random = Random(seed)
    nodes = [Node("a", (UNCUT,) * 4), Node("b", (UNCUT,) * 2 + ("1g.5gb:7",)), Node("c", (UNCUT,) * 8)]
    jobs = []
    for place in range(number):
        kind, each, wide = random.choice(
            [(WHOLE, 1, 1), (WHOLE, 2, 1), (WHOLE, 4, 1), (WHOLE, 4, 2), (WHOLE, 2, 3), ("1g.5gb", 1, 1)]
        )
        run = random.randrange(10, 4000)
        after = random.randrange(1, place + 1) if place and random.random() < 0.1 else None
        jobs.append(
            Job(
                place + 1,
                random.randrange(100_000),
                run,
                run + random.randrange(0, 3000),
                kind,
                each,
                wide,
                random.choice("xy"),
                after=after,
                patience=random.randrange(10, 9000) if random.random() < 0.1 else None,
            )
        )
    return jobs, nodes, {"x": 9}


@pytest.mark.parametrize("seed", range(8))
def test_the_simulator_obeys_capacity_quota_and_order(seed):
    jobs, nodes, quotas = some_jobs(seed)
    out = play(jobs, nodes, quotas=quotas)
    changes = []
    ends = {job.number: at + job.run for job, at in zip(jobs, out.start, strict=True) if at is not None}
    for job, at, places, gone in zip(jobs, out.start, out.nodes, out.cancelled, strict=True):
        if at is None:
            # Only those are left out that were cancelled, or hang on such a one.
            assert gone is not None or (job.after is not None and job.after not in ends)
            continue
        assert at >= job.submit
        assert gone is None
        assert job.after is None or at >= ends[job.after]
        assert len(set(places)) == job.nodes
        for node in places:
            changes += [(at, 1, node, job.kind, job.each), (at + job.run, 0, node, job.kind, job.each)]
        if job.account == "x":
            changes += [(at, 1, -1, "quota", job.devices), (at + job.run, 0, -1, "quota", job.devices)]
    held = defaultdict(int)
    for _, begins, node, kind, number in sorted(changes):
        held[node, kind] += number if begins else -number
        assert held[node, kind] <= (9 if node < 0 else nodes[node].devices()[kind])
    assert not any(held.values())


def test_backfill_does_not_hold_up_the_first_that_waits():
    nodes = [Node("a", (UNCUT,) * 4)]
    jobs = [
        Job(1, 0, 100, 100, each=3),
        Job(2, 1, 50, 50, each=4),  # waits for 100
        Job(3, 2, 99, 99),  # would end at 101 by its limit
        Job(4, 3, 97, 97),  # ends in time
    ]
    assert play(jobs, nodes).start == [0, 100, 150, 3]
    early = [replace(jobs[0], run=40), *jobs[1:]]  # ends before its limit: the first starts once the fourth is done
    assert play(early, nodes).start == [0, 100, 150, 3]
    assert play(jobs, nodes, until=99).start == [0, None, None, 3]


@pytest.mark.parametrize("name", ["too_large-1", "quota_bound-1", "tight-1"])
def test_more_nodes_are_never_worse(name):
    cluster = planted.planted(name).cluster
    than = cluster.to_the_end.start
    trials = [tried(cluster.jobs, fleet, than, cluster.judged, cluster.quotas) for fleet in kept(cluster.nodes)]
    assert [trial.gpus for trial in trials] == sorted({trial.gpus for trial in trials})
    late = [trial.late_s for trial in trials]
    assert late == sorted(late, reverse=True)
    assert late[-1] == 0


def test_fewest_gpus_mixes_profiles_only_where_that_is_legal():
    assert fewest_gpus("A100-40GB", {"1g.5gb": 7})[0] == 1
    assert fewest_gpus("A100-40GB", {"1g.5gb": 4, "3g.20gb": 1})[0] == 1
    assert fewest_gpus("A100-40GB", {"1g.5gb": 5, "3g.20gb": 1})[0] == 2
    assert fewest_gpus("A100-40GB", {"4g.20gb": 2})[0] == 2
    assert fewest_gpus("H100-80GB", {"gpu": 2, "2g.20gb": 4})[0] == 4


def beyond_doubt(name: str) -> None:
    cluster, found = planted.planted(name).cluster, truth.truth(name)
    family, each = planted.planted(name).family, cluster.nodes[0].gpus
    waits = found.waits
    assert max(cluster.gpus, found.right_gpus) <= (40 if family == "growing" else 32)
    assert 1000 <= len(cluster.jobs) <= 6000
    assert found.holds is not None
    assert found.holds.holds
    assert found.holds.late98_s <= LATE_S / 10
    assert found.fails is not None
    assert found.fails.late_s >= 6 * LATE_S
    whole = {job.kind for job in cluster.jobs} == {WHOLE}
    if family in ("too_large", "quota_bound"):
        assert found.right_gpus == found.fails.gpus + each < cluster.gpus
        assert whole or found.right_gpus - each < found.figures["gpus_recut"] <= found.right_gpus
    if family == "quota_bound":
        assert waits["held_by_quota"] > 0.3
        assert waits["short_by_count"] == 0
    if family == "short":
        assert waits["short_by_count"] > 0.1
        assert found.more_gpus == found.figures["more_as_seen"] > 0
    if family == "wrongly_cut":
        assert waits["short_by_count"] > 0.1
        for fewest in ("gpus_recut", "gpus_as_late_as_today"):
            assert cluster.gpus - each < found.figures[fewest] <= cluster.gpus
    if family == "tight":
        assert found.fails.gpus + each == cluster.gpus
        assert waits["waited"] < 0.01
        assert whole or found.figures["gpus_recut"] == cluster.gpus
        mean, most = cluster.busy()
        assert mean > 0.95 * most
    if family == "growing":
        assert waits["waited"] < 0.01
        assert found.figures["fewest_today"] == cluster.gpus
        days = found.figures["full_in_days"]
        assert days <= 21 if found.actions == ("buy",) else days >= 56


@pytest.mark.parametrize("name", QUICK)
def test_the_truth_is_beyond_doubt(name):
    beyond_doubt(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in planted.names() if name not in QUICK])
def test_the_truth_of_the_others_is_beyond_doubt(name):
    beyond_doubt(name)


def test_what_a_reader_sees_of_readiness():
    """The second waits for three at once until a long job ends; the fourth is held by its quota beside an idle GPU."""
    node = Node("a", (UNCUT,) * 3)
    jobs = (
        Job(1, 0, 1000, 1000),
        Job(2, 10, 5000, 5000, each=3),
        Job(3, 20, 500, 500, account="small"),
        Job(4, 30, 100, 100, account="small"),
    )
    cluster = Cluster("x", "slurm", "A100-80GB", (node,), jobs, 50_000, {"small": 1})
    assert cluster.played.start == [0, 1000, 20, 520]
    assert cluster.ready_as_seen() == [0, 10, 20, 520]
    assert cluster.waits()["held_by_quota"] == 0  # it waited 490 s
