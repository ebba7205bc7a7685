"""Check a plan of services again from scratch, from the measured profiles and what was asked for.

Nothing here is shared with the making of plans: settings are looked up in the profiles, instances are counted
GPU by GPU, and every GPU is proved by :func:`gpuplanner.hardware.prove`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import polars as pl

from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware.layout import parse_layout
from gpuplanner.hardware.feasibility import prove
from gpuplanner.services.plan import Segment, ServicePlan

_TOLERANCE = 2e-6


def verify_services(
    plan: ServicePlan, profiles: pl.DataFrame, rates: Mapping[str, float], latencies: Mapping[str, float]
) -> list[str]:
    """Say everything that is wrong with a plan of services.

    Parameters
    ----------
    plan : ServicePlan
        The plan.
    profiles : polars.DataFrame
        Measured profiles.
    rates, latencies : mapping of str to float
        Requests [1/s] and latency limit [ms] of each service.

    Returns
    -------
    list of str
        Faults; empty if the plan is right.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from gpuplanner.services.search import plan_services
    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> profiles = pl.DataFrame([("bert", 1, 8, 1, 100.0, 0.08)], schema=columns, orient="row")
    >>> plan = plan_services(profiles, {"bert": 340.0}, {"bert": 200.0})
    >>> verify_services(plan, profiles, {"bert": 340.0}, {"bert": 200.0})
    []
    >>> verify_services(plan, profiles, {"bert": 500.0}, {"bert": 200.0})
    ['bert: 500 requests/s asked for, its instances serve 400']
    >>> verify_services(replace(plan, slices=3), profiles, {"bert": 340.0}, {"bert": 200.0})[0]
    'slices: the plan says 3, its segments have 4'
    """
    return [
        *_demand_faults(plan, rates),
        *(
            fault
            for segment in plan.segments
            for fault in _segment_faults(plan, segment, profiles, latencies)
        ),
        *_gpu_faults(plan),
        *_total_faults(plan),
    ]


def _demand_faults(plan: ServicePlan, rates: Mapping[str, float]) -> Iterator[str]:
    """Every rate is served, and nothing else."""
    served: defaultdict[str, float] = defaultdict(float)
    for segment in plan.segments:
        served[segment.service] += len(segment.gpus) * segment.throughput_per_s
    for name, rate in rates.items():
        if served.get(name, 0.0) < rate * (1 - _TOLERANCE):
            yield f"{name}: {rate:g} requests/s asked for, its instances serve {served.get(name, 0.0):g}"
    for name in sorted(set(served) - {name for name, rate in rates.items() if rate > 0}):
        yield f"{name}: it has instances, yet nobody asked for it"


def _segment_faults(
    plan: ServicePlan, segment: Segment, profiles: pl.DataFrame, latencies: Mapping[str, float]
) -> Iterator[str]:
    """The setting was measured so, on an instance of that size, and answers in time."""
    where = f"{segment.service} on {segment.profile}, batch {segment.batch}, {segment.processes} processes"
    measured = profiles.filter(
        pl.col("service") == segment.service,
        pl.col("compute_slices") == segment.compute_slices,
        pl.col("batch") == segment.batch,
        pl.col("processes") == segment.processes,
        pl.col("throughput_per_s") > 0,
    )
    if measured.height != 1:
        yield f"{where}: no such setting was measured"
        return
    for name, said, found in (
        ("throughput [1/s]", segment.throughput_per_s, measured["throughput_per_s"][0]),
        ("latency [ms]", segment.latency_ms, 1000 * measured["latency_s"][0]),
    ):
        if not math.isclose(said, found, rel_tol=1e-9):
            yield f"{where}: {name} {said:g}, measured {found:g}"
    limit = latencies.get(segment.service, math.inf)
    if 1000 * measured["latency_s"][0] > limit * plan.latency_share * (1 + _TOLERANCE):
        allowed = f"{plan.latency_share:g} of {limit:g} ms"
        yield f"{where}: a batch takes {1000 * measured['latency_s'][0]:g} ms, allowed are {allowed}"
    try:
        slices = plan.board.profile(segment.profile).compute_slices
    except GpuPlannerError as error:
        yield f"{where}: {error}"
        return
    if slices != segment.compute_slices:
        yield f"{where}: measured on {segment.compute_slices} compute slices, the instance has {slices}"
    if not segment.gpus:
        yield f"{where}: no instances"


def _gpu_faults(plan: ServicePlan) -> Iterator[str]:
    """The instances of each GPU are those of its layout, and the board can be cut so."""
    on_gpu: dict[int, Counter[str]] = {gpu: Counter() for gpu in range(len(plan.layouts))}
    astray: set[int] = set()
    for segment in plan.segments:
        for gpu in segment.gpus:
            if gpu in on_gpu:
                on_gpu[gpu][segment.profile] += 1
            else:
                astray.add(gpu)
    if astray:
        yield f"layouts: instances on GPUs {sorted(astray)}, yet there are {len(plan.layouts)} layouts"
    for gpu, text in enumerate(plan.layouts):
        held = dict(on_gpu[gpu])
        try:
            said = parse_layout(text)
            proof = prove(plan.board, held)
        except GpuPlannerError as error:
            yield f"GPU {gpu}: {error}"
            continue
        if said != held:
            yield f"GPU {gpu}: the layout says {said}, the segments put {held} there"
        if not proof:
            yield f"GPU {gpu}: impossible: {proof.reason}"
        if not held:
            yield f"GPU {gpu}: it holds nothing"


def _total_faults(plan: ServicePlan) -> Iterator[str]:
    slices = sum(len(segment.gpus) * segment.compute_slices for segment in plan.segments)
    if plan.slices != slices:
        yield f"slices: the plan says {plan.slices}, its segments have {slices}"
    if plan.gpus != len(plan.layouts):
        yield f"gpus: the plan says {plan.gpus}, there are {len(plan.layouts)} layouts"
    for name, least, most in (
        ("bound", plan.bound, plan.gpus),
        ("slices_bound", plan.slices_bound, plan.slices),
    ):
        if not 0 <= least <= most:
            yield f"{name}: {least} is not from 0 to {most}"
