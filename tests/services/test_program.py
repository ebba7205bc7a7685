"""Parts of joint sizing: the rows of the program, the floors under it, and the packing it begins with."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import as_board, prove
from gpuplanner.services.demands import ServiceDemand
from gpuplanner.services.first_fit import first_fit
from gpuplanner.services.options import choices_for, least_weight

COLUMNS = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]


def test_of_equal_throughput_the_quickest_setting_is_kept() -> None:
    rows = [
        ("a", 1, 8, 2, 100.0, 0.08),
        ("a", 1, 4, 1, 100.0, 0.04),
        ("a", 1, 2, 1, 90.0, 0.02),
        ("a", 1, 64, 1, 500.0, 0.64),
        ("b", 1, 1, 1, 900.0, 0.01),
    ]
    profiles = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    choices = choices_for(profiles, {"a": ServiceDemand(1.0, 200.0)}, as_board("A100-80GB"), 0.45)
    assert [(o.service, o.batch, o.processes, o.throughput_per_s) for o in choices.options] == [
        ("a", 4, 1, 100.0)
    ]


kinds = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(kinds, st.integers(1, 300))
def test_least_weight_is_the_least_of_all(kinds: list[tuple[int, int]], rate: int) -> None:
    most = [math.ceil(rate / throughput) for _, throughput in kinds]
    if math.prod(number + 1 for number in most) > 20_000:
        return
    tried = [
        sum(n * weight for n, (weight, _) in zip(chosen, kinds, strict=True))
        for chosen in itertools.product(*(range(number + 1) for number in most))
        if sum(n * throughput for n, (_, throughput) in zip(chosen, kinds, strict=True)) >= rate
    ]
    weights, throughputs = zip(*kinds, strict=True)
    assert least_weight(throughputs, weights, rate) == min(tried)


@pytest.mark.parametrize("seed", range(20))
def test_first_fit_is_that_of_one_instance_after_another(seed: int) -> None:
    """The packing that handles like GPUs together against the textbook's, on the board itself."""
    rng = np.random.default_rng(seed)
    board = as_board("A100-80GB")
    rows = [("a", size, 1, 1, 100.0 * size, 0.01) for size in (1, 2, 3, 4, 7)]
    profiles = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    choices = choices_for(profiles, {"a": ServiceDemand(1.0, 100.0)}, board, 0.45)
    instances = rng.integers(0, 9, size=5)
    on = first_fit(choices, instances)
    gpus: list[dict[str, int]] = []
    largest_first = sorted(
        zip(choices.options, instances.tolist(), strict=True),
        key=lambda pair: pair[0].profile.size_order,
        reverse=True,
    )
    for option, number in largest_first:
        name = option.profile.name
        for _ in range(number):
            for held in gpus:
                if prove(board, {**held, name: held.get(name, 0) + 1}):
                    held[name] = held.get(name, 0) + 1
                    break
            else:
                gpus.append({name: 1})
    assert int(on.sum()) == len(gpus)
    supply = {
        p: sum(int(n) * layout.get(p, 0) for n, layout in zip(on, choices.layouts, strict=True))
        for p in {option.profile.name for option in choices.options}
    }
    assert all(supply[o.profile.name] >= n for o, n in zip(choices.options, instances.tolist(), strict=True))
