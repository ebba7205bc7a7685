"""Time in slabs: however few events a slab holds, levels and ledgers are those of one long sweep."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.step_functions import US_PER_HOUR
from gpuplanner.usage import pool_occupancy_and_inferred_inventory as slabs
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory

HOURS = 5
TICK = st.integers(0, HOURS * 4).map(lambda quarter: quarter * US_PER_HOUR // 4)
INTERVALS = st.lists(st.tuples(TICK, TICK, st.sampled_from([1.0, 2.0, 0.5])), max_size=12)


@settings(deadline=None)
@given(rows=INTERVALS, events=st.integers(1, 9))
def test_levels_are_a_count_at_every_quarter_of_an_hour(rows, events):
    rows = [(min(a, b), max(a, b), weight) for a, b, weight in rows]
    begin, end, weight = (np.array([row[i] for row in rows], dtype=kind) for i, kind in enumerate("qqd"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs, "MAX_EVENTS_PER_SLAB", events)
        cut = slabs.HourSlabs(HOURS, (begin, end))
    steps = slabs.LevelSteps(begin, end, weight, cut)
    kinds = slabs.KindCounts(begin, end, (weight * 2).astype(int), 5, cut)
    assert cut.hours(0)[0] == 0
    assert cut.hours(len(cut) - 1)[1] == HOURS
    for slab in range(len(cut)):
        edges = cut.edges(slab, steps.instants(slab))
        level, counts = steps.level(slab, edges), dict(kinds.counts(slab, edges))
        for place, edge in enumerate(edges[:-1]):
            there = [row for row in rows if row[0] <= edge < row[1]]
            assert level[place] == sum(row[2] for row in there)
            for kind in range(5):
                alike = sum(row[2] * 2 == kind for row in there)
                assert (counts[kind][place] if kind in counts else 0) == alike
        first, last = cut.hours(slab)
        held = [
            sum(w * max(0, min(b, (hour + 1) * US_PER_HOUR) - max(a, hour * US_PER_HOUR)) for a, b, w in rows)
            for hour in range(first, last)
        ]
        assert cut.by_hour(slab, edges, level) * US_PER_HOUR == pytest.approx(held)


@pytest.mark.parametrize("events", [1, 100])
def test_in_an_hour_nothing_may_happen_on_any_node(make_jobs, make_nodes, window, monkeypatch, events):
    """Somebody queues at ten past ten for more than a node has left, and gives up at ten past eleven."""
    monkeypatch.setattr(slabs, "MAX_EVENTS_PER_SLAB", events)
    held = [("a", 1.0, 0, 0, None, {"node_list": node}) for node in ("n0", "n1")]
    jobs = make_jobs(*held, ("b", 2.0, 70, None, 130, {"nodes": 1}))
    ledger = gpu_time_ledger(jobs, make_nodes((2, None, None, None), (2, None, None, None)), **window)
    nobody = ledger.filter(tenant="-").group_by("hour", "bucket").agg(pl.col("gpu_hours").sum()).sort("hour", "bucket")
    assert [(hour.hour, str(bucket), round(hours, 9)) for hour, bucket, hours in nobody.rows()] == [
        (9, "unallocated", 2.0),
        (10, "unallocated", round(1 / 3, 9)),
        (10, "fragmented", round(5 / 3, 9)),
        (11, "unallocated", round(5 / 3, 9)),
        (11, "fragmented", round(1 / 3, 9)),
    ]


@pytest.mark.parametrize("events", [1, 5, 40])
def test_the_ledger_is_the_same_in_any_slabs(make_jobs, make_nodes, window, monkeypatch, events):
    """Waiting jobs, several nodes, shares of GPUs, nodes not known, and the inferred fleet."""
    rng = np.random.default_rng(7)
    where = ["n0", "n1", "n[0-1]", "n2", None]
    rows = []
    for number in range(120):
        submit = int(rng.integers(-20, 170))
        start = submit + int(rng.integers(0, 25))
        node = where[rng.choice(5, p=[0.3, 0.3, 0.15, 0.2, 0.05])]
        many = 2 if node == "n[0-1]" else 1
        rows.append(
            ("ab"[number % 2], float(many * rng.choice([1 / 7, 0.5, 1.0])), submit, start,
             start + int(rng.integers(0, 40)), {"node_list": node, "nodes": many})
        )  # fmt: skip
    jobs = make_jobs(*rows)
    nodes = make_nodes((12, None, None, None), (12, None, None, None), (10, None, 30, 170), (9, None, None, 60))
    whole = gpu_time_ledger(jobs, nodes, **window), gpu_time_ledger(jobs, **window)
    kinds = set(whole[0]["bucket"].cast(pl.String))
    assert {"unallocated", "no_telemetry"} < kinds
    monkeypatch.setattr(slabs, "MAX_EVENTS_PER_SLAB", events)
    parts = gpu_time_ledger(jobs, nodes, **window), gpu_time_ledger(jobs, **window)
    for one, other in zip(whole, parts, strict=True):
        assert one.drop("gpu_hours").equals(other.drop("gpu_hours"))
        assert other["gpu_hours"].to_list() == pytest.approx(one["gpu_hours"].to_list(), abs=1e-9)
    assert inferred_inventory(jobs, **window)["gpus"].sum() > 0
