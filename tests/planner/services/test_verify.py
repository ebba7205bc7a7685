"""Faults planted in a right plan are found, each by its own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest

from gpuplanner.planner.inference_service_plan import ServicePlan, plan_services, verify_services

COLUMNS = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
ROWS = [
    ("bert", 3, 8, 1, 300.0, 0.03),
    ("bert", 4, 8, 1, 400.0, 0.03),
    ("bert", 4, 64, 1, 500.0, 0.3),
    ("vgg16", 1, 8, 2, 100.0, 0.04),
    ("vgg16", 2, 8, 2, 0.0, 0.0),
]
PROFILES = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
RATES, LATENCIES = {"bert": 700.0, "vgg16": 250.0}, {"bert": 100.0, "vgg16": 100.0}


def a_plan() -> ServicePlan:
    return plan_services(PROFILES, RATES, LATENCIES)


def changed(plan: ServicePlan, place: int, **changes: object) -> ServicePlan:
    segments = list(plan.segments)
    segments[place] = replace(segments[place], **changes)  # type: ignore[arg-type]
    return replace(plan, segments=tuple(segments))


def test_the_plan_is_right() -> None:
    plan = a_plan()
    assert plan.layouts == ("4g.40gb:1,3g.40gb:1", "1g.10gb:3")
    assert [segment.profile for segment in plan.segments] == ["3g.40gb", "4g.40gb", "1g.10gb"]
    assert verify_services(plan, PROFILES, RATES, LATENCIES) == []


Spoil = Callable[[ServicePlan], ServicePlan]

FAULTS: list[tuple[Spoil, str]] = [
    (lambda p: replace(p, segments=p.segments[1:]), "bert: 700 requests/s requested, its instances serve 400"),
    (lambda p: replace(p, segments=p.segments[:2]), "vgg16: 250 requests/s requested, its instances serve 0"),
    (lambda p: changed(p, 2, gpus=(1, 1)), "vgg16: 250 requests/s requested, its instances serve 200"),
    (lambda p: changed(p, 2, gpus=(1, 1)), "GPU 1: the layout has {'1g.10gb': 3}, the segments {'1g.10gb': 2}"),
    (lambda p: changed(p, 2, gpus=()), "no instances"),
    (lambda p: changed(p, 2, service="resnet"), "resnet: it has instances, but no requests"),
    (lambda p: changed(p, 2, service="resnet"), "resnet on 1g.10gb, batch 8, 2 processes: no such setting"),
    (lambda p: changed(p, 2, batch=16), "vgg16 on 1g.10gb, batch 16, 2 processes: no such setting was measured"),
    (lambda p: changed(p, 2, compute_slices=2), "no such setting was measured"),
    (lambda p: changed(p, 2, throughput_per_s=125.0), "throughput [1/s] 125, measured 100"),
    (lambda p: changed(p, 2, latency_ms=4.0), "latency [ms] 4, measured 40"),
    (
        lambda p: changed(p, 1, batch=64, throughput_per_s=500.0, latency_ms=300.0),
        "bert on 4g.40gb, batch 64, 1 processes: a batch takes 300 ms, allowed are 0.45 of 100 ms",
    ),
    (lambda p: replace(p, latency_share=0.3), "a batch takes 40 ms, allowed are 0.3 of 100 ms"),
    (lambda p: changed(p, 2, profile="2g.20gb"), "measured on 1 compute slices, the instance has 2"),
    (lambda p: changed(p, 2, profile="5g.50gb"), "MIG profile '5g.50gb' is unknown"),
    (lambda p: changed(p, 2, gpus=(0, 1, 1)), "GPU 0: impossible: "),
    (lambda p: changed(p, 2, gpus=(1, 1, 7)), "layouts: instances on GPUs [7], yet there are 2 layouts"),
    (lambda p: replace(p, layouts=(*p.layouts, "off")), "GPU 2: it holds nothing"),
    (lambda p: replace(p, layouts=(p.layouts[0], "nonsense")), "GPU 1: layout: expected"),
    (lambda p: replace(p, slices=p.slices - 1), "slices: the plan states 9, its segments have 10"),
    (lambda p: replace(p, gpus=1), "gpus: the plan states 1, there are 2 layouts"),
    (lambda p: replace(p, bound=3), "bound: 3 is not from 0 to 2"),
    (lambda p: replace(p, slices_bound=11), "slices_bound: 11 is not from 0 to 10"),
    (lambda p: replace(p, slices_bound=-1), "slices_bound: -1 is not from 0 to 10"),
]


@pytest.mark.parametrize(("spoil", "words"), FAULTS)
def test_a_planted_fault_is_found(spoil: Spoil, words: str) -> None:
    faults = verify_services(spoil(a_plan()), PROFILES, RATES, LATENCIES)
    assert any(words in fault for fault in faults), faults
