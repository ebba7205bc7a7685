"""A Slurm cluster with cut boards: installed and held GPU-hours are those of a plain count, with and without nodes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import numpy as np
import polars as pl
import pytest

from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger
from tests.ingest.slurm.made_up_cluster import Cluster, made_up_cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return made_up_cluster()


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def window(trace):
    start, end = (datetime.fromisoformat(trace.provenance[name]) for name in ("span_start", "span_end"))
    return {"start": start, "end": end}


def booked(trace, inventory=None):
    ledger = gpu_time_ledger(trace.jobs, inventory, **window(trace))
    held = ledger.filter(pl.col("tenant") != "-")["gpu_hours"].sum()
    return ledger["gpu_hours"].sum(), held


def agrees(trace, cluster: Cluster):
    hours = (cluster.end - cluster.begin).total_seconds() / 3600
    assert window(trace) == {"start": cluster.begin, "end": cluster.end}
    assert trace.provenance["gpu_hours"] == pytest.approx(cluster.gpu_hours(), rel=1e-12)
    assert trace.jobs["gpus"].null_count() == 0
    installed, held = booked(trace, trace.inventory)
    assert held == pytest.approx(cluster.gpu_hours(), rel=1e-9)
    gpus = cluster.gpus if trace.inventory is not None else cluster.most_boards()
    assert installed == pytest.approx(gpus * hours, rel=1e-9)


@pytest.mark.parametrize("form", ["csv", "scontrol", "sinfo"])
def test_cluster_with_its_nodes(cluster, tmp_path, form):
    nodes = write(tmp_path, form, cluster.nodes[form])
    trace = read_slurm([write(tmp_path, "sacct.txt", cluster.text)], tz="Europe/Oslo", nodes=nodes)
    assert trace.inventory["gpus"].to_list() == [4] * 6
    assert trace.inventory["mig_enabled"].fill_null(value=False).to_list() == [True] * 3 + [False] * 3
    layouts = Counter(";".join(trace.inventory["layouts"].drop_nulls()).split(";"))
    assert layouts == {"1g.5gb:7": 8, "gpu": 4}
    assert set(trace.inventory["gpu_model"]) == set(trace.jobs["gpu_model"].drop_nulls()) == {"A100-40GB"}
    agrees(trace, cluster)


def test_cluster_without_its_nodes(cluster, tmp_path):
    trace = read_slurm([write(tmp_path, "sacct.txt", cluster.text)], tz="Europe/Oslo")
    assert trace.inventory is None
    agrees(trace, cluster)
    mixed = trace.jobs.filter(pl.col("gpus").is_between(2.1, 3.9))
    assert set(mixed["instances"]) == {3}
    assert mixed["gpus"].to_list() == pytest.approx([2 + 3 / 7] * mixed.height)
    assert mixed["gpus_by_memory"].to_list() == pytest.approx([2 + 3 / 8] * mixed.height)
    assert mixed["profile_requested"].null_count() == mixed.height


def test_the_ledger_is_a_count_of_every_second(cluster, tmp_path):
    """Hour by hour, from the drawing alone: one array of seconds for each tenant."""
    trace = read_slurm([write(tmp_path, "sacct.txt", cluster.text)], tz="Europe/Oslo")
    ledger = gpu_time_ledger(trace.jobs, **window(trace))
    zero = cluster.begin.replace(minute=0, second=0)
    seconds = int((cluster.end - zero).total_seconds())
    for tenant in {job.tenant for job in cluster.jobs}:
        change = np.zeros(seconds + 1)
        for job in cluster.jobs:
            if job.tenant == tenant:
                begin, end = (int((at - zero).total_seconds()) for at in (job.start, job.end))
                change[begin] += job.gpus
                change[end] -= job.gpus
        level = np.cumsum(change)[:-1]
        truth = np.add.reduceat(level, np.arange(0, seconds, 3600)) / 3600
        rows = ledger.filter(tenant=tenant).group_by("hour").agg(pl.col("gpu_hours").sum())
        at = rows.select(((pl.col("hour") - zero).dt.total_hours()).alias("at"), "gpu_hours")
        told = np.zeros(len(truth))
        told[at["at"].to_numpy()] = at["gpu_hours"].to_numpy()
        np.testing.assert_allclose(told, truth, atol=1e-6)
