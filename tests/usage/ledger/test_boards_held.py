"""The fewest boards of jobs on instances and whole GPUs: a count at every start, and never more than they needed."""

from __future__ import annotations

import math
from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import find_fewest_gpus
from gpuplanner.usage import pool_occupancy_and_inferred_inventory as slabs
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory

H100 = "H100-80GB-SXM5"
BOARD = load_gpu_model(H100)
QUARTER = st.integers(0, 12).map(lambda quarter: 15 * quarter)
KINDS = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", None)
JOBS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3), QUARTER, QUARTER), max_size=10)


def row(kind, number, start, end):
    if kind is None:
        return ("a", float(number), 0, start, end, {"gpu_model": H100, "gpus_by_memory": float(number)})
    profile = BOARD.profile(kind)
    memory = number * profile.memory_slices / 8
    named = {"gpu_model": H100, "profile_requested": kind, "instances": number, "gpus_by_memory": memory}
    return ("a", number * profile.compute_slices / 7, 0, start, end, named)


@settings(deadline=None)
@given(drawn=JOBS, events=st.sampled_from([1, 3, 100]))
def test_boards_are_counted_at_every_start_and_are_no_more_than_needed(drawn, events, make_jobs, window):
    jobs = [(kind, number, min(a, b), max(a, b)) for kind, number, a, b in drawn if a != b]
    counted = needed = 0
    for _, _, at, _ in jobs:
        here = [(kind, number) for kind, number, start, end in jobs if start <= at < end]
        whole = sum(number for kind, number in here if kind is None)
        cut = Counter()
        for kind, number in here:
            cut.update({kind: number} if kind else {})
        sizes = {BOARD.profile(kind): number for kind, number in cut.items()}
        of_cut = max(
            math.ceil(sum(n * p.compute_slices for p, n in sizes.items()) / 7),
            math.ceil(sum(n * p.memory_slices for p, n in sizes.items()) / 8),
            *(math.ceil(n / p.max_instances) for p, n in sizes.items()),
            0,
        )
        counted = max(counted, whole + of_cut)
        needed = max(needed, whole + len(find_fewest_gpus(H100, cut)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs, "MAX_EVENTS_PER_SLAB", events)
        found = inferred_inventory(make_jobs(*(row(*job) for job in jobs)), **window)
    assert found["gpus"].sum() == counted
    assert counted <= needed
    assert found.filter(pl.col("gpu_model") != H100).is_empty()
