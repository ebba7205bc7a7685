"""Plans of inference services: search, file and check.

Each service has measured profiles (:mod:`~gpuplanner.planner.service_profiles`), a rate and a latency limit.
The plan uses as few GPUs as any can and, on so few, as few compute slices; both come with a proven bound.

Nothing here is shared with the making of plans: settings are looked up in the profiles, instances are counted
GPU by GPU, and every GPU is proved by :func:`gpuplanner.hardware.mig_layouts.prove`.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.core.schema_checks import check
from gpuplanner.core.serialization import to_json
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout, prove
from gpuplanner.planner.fleet_limits import board_from_plain, to_plain
from gpuplanner.planner.linear_model import Effort
from gpuplanner.planner.service_profiles import BOARD, ServiceProfiles, service_demands
from gpuplanner.planner.service_sizing import (
    BoundedSizing,
    Choices,
    Sizing,
    choices_for,
    least,
    sized_alone,
    sized_jointly,
)


@dataclass(frozen=True)
class Segment:
    """Instances of one service that are alike.

    - ``service``: The service.
    - ``profile``: Instance.
    - ``compute_slices``: Its size.
    - ``batch``, ``processes``: Requests in a batch, and processes that share an instance.
    - ``throughput_per_s``: Requests that one instance serves [1/s].
    - ``latency_ms``: Time that a batch takes [ms].
    - ``gpus``: Number of the GPU of each instance, ascending from 0.
    """

    service: str
    profile: str
    compute_slices: int
    batch: int
    processes: int
    throughput_per_s: float
    latency_ms: float
    gpus: tuple[int, ...]

    @property
    def instances(self) -> int:
        """How many there are."""
        return len(self.gpus)


@dataclass(frozen=True, repr=False)
class ServicePlan:
    """A plan with its proof.

    Parameters
    ----------
    gpu_model : GpuModel
        Board of every GPU.
    latency_share : float
        Share of the latency limit that a batch may take.
    gpus, bound : int
        GPUs, and what no plan undercuts.
    slices, slices_bound : int
        Compute slices of all instances, and what no plan with at most as many GPUs undercuts.
    segments : tuple of Segment
        By service, smallest instance first.
    layouts : tuple of str
        Instances on each GPU, as layout text.
    seconds : float
        Time that the search took [s].
    """

    gpu_model: GpuModel
    latency_share: float
    gpus: int
    bound: int
    slices: int
    slices_bound: int
    segments: tuple[Segment, ...]
    layouts: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        state = "proven fewest" if self.proven else f"at least {self.bound} and {self.slices_bound}"
        return f"<ServicePlan: {self.gpus} {self.gpu_model.name}, {self.slices} compute slices ({state})>"

    @property
    def proven(self) -> bool:
        """Whether no plan needs fewer GPUs, and none with so few takes fewer slices."""
        return self.gpus == self.bound and self.slices == self.slices_bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [asdict(segment) | {"instances": segment.instances} for segment in self.segments]
        names = ("gpus", "bound", "slices", "slices_bound", "proven", "seconds", "latency_share")
        known = {name: getattr(self, name) for name in names}
        return known | {"gpu_model": self.gpu_model.name, "segments": rows, "layouts": list(self.layouts)}


def numbered(choices: Choices, sizing: Sizing) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Give every instance a GPU, and every GPU its layout: places that no service takes are left free."""
    free: dict[str, list[int]] = {}
    first = 0
    for layout, gpus in zip(choices.layouts, sizing.on.tolist(), strict=True):
        for gpu in range(first, first + gpus):
            for name, number in layout.items():
                free.setdefault(name, []).extend([gpu] * number)
        first += gpus
    taken: list[tuple[int, list[int]]] = []
    for place, (option, number) in enumerate(zip(choices.options, sizing.instances.tolist(), strict=True)):
        if number:
            places = free[option.profile.name]
            taken.append((place, places[:number]))
            del places[:number]
    used = sorted({gpu for _, gpus in taken for gpu in gpus})
    numbers = {gpu: number for number, gpu in enumerate(used)}
    held: list[Counter[str]] = [Counter() for _ in used]
    segments = []
    for place, gpus in taken:
        option = choices.options[place]
        for gpu in gpus:
            held[numbers[gpu]][option.profile.name] += 1
        measured = (option.batch, option.processes, option.throughput_per_s, 1000 * option.latency_s)
        on = tuple(numbers[gpu] for gpu in gpus)
        size = option.profile.compute_slices
        segments.append(Segment(option.service, option.profile.name, size, *measured, on))
    return tuple(segments), tuple(map(format_layout, held))


FORMAT = "gpuplanner.services/1"

_WHERE = "file of a service plan"


def services_to_json(
    plan: ServicePlan, profiles: pl.DataFrame, rates: Mapping[str, float], latencies: Mapping[str, float]
) -> str:
    """Print a plan of services with its profiles, rates and latency limits; the same input gives the same bytes.

    Examples
    --------
    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> profiles = pl.DataFrame([("bert", 1, 8, 1, 100.0, 0.08)], schema=columns, orient="row")
    >>> asked = {"bert": 340.0}, {"bert": 200.0}
    >>> text = services_to_json(plan_services(profiles, *asked), profiles, *asked)
    >>> verify_services(*services_from_json(text))
    []
    >>> verify_services(*services_from_json(text.replace("340.0", "440.0")))
    ['bert: 440 requests/s requested, its instances serve 400']
    """
    values = plan.to_dict()
    del values["seconds"]
    values |= {"format": FORMAT, "gpu_model": to_plain(plan.gpu_model)}
    values["asked"] = [
        {"service": name, "rate_per_s": rate, "latency_ms": latencies.get(name)} for name, rate in rates.items()
    ]
    values["measured"] = profiles.select(ServiceProfiles.column_names()).to_dicts()
    return to_json(values)


def is_service_plan(text: str) -> bool:
    """Whether a text is a file of :func:`services_to_json`."""
    try:
        values = json.loads(text)
    except (RecursionError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def services_from_json(
    text: str,
) -> tuple[ServicePlan, pl.DataFrame, dict[str, float], dict[str, float]]:
    """Read what :func:`services_to_json` printed: plan, profiles, rates and latency limits."""
    try:
        values = json.loads(text)
        plan, asked = _plan_of(values), values["asked"]
        rates = {row["service"]: float(row["rate_per_s"]) for row in asked}
        limited = [row for row in asked if row["latency_ms"] is not None]
        latencies = {row["service"]: float(row["latency_ms"]) for row in limited}
        types = {name: column.dtype for name, column in ServiceProfiles.columns().items()}
        profiles = pl.DataFrame(values["measured"], schema=types, orient="row")
    except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        if isinstance(error, ScenarioError):
            raise
        expected = "JSON written by 'gpuplanner plan --services -o'"
        raise ScenarioError(_WHERE, expected, repr(error), "Write the plan again.") from error
    return plan, check(profiles, ServiceProfiles, where=_WHERE), rates, latencies


def _plan_of(values: dict[str, Any]) -> ServicePlan:
    segments = []
    for row in values["segments"]:
        parts = {name: row[name] for name in Segment.__dataclass_fields__}
        segments.append(Segment(**{**parts, "gpus": tuple(row["gpus"])}))
    gpu_model, layouts = board_from_plain(values["gpu_model"]), tuple(values["layouts"])
    names = ("latency_share", "gpus", "bound", "slices", "slices_bound")
    told = {name: values[name] for name in names}
    return ServicePlan(gpu_model=gpu_model, segments=tuple(segments), layouts=layouts, seconds=0.0, **told)


LATENCY_SHARE = 0.45
"""Share of a latency limit that a batch may take, by the rule of ParvaGPU: a half, since a request that comes
just after a batch has begun waits for its end and then for its own, less 10 % for the spread of latencies."""

METHODS = ("joint", "alone")
"""``joint``: all services together, by integer program. ``alone``: each by itself, packed first fit."""


def plan_services(
    profiles: pl.DataFrame,
    rates: Mapping[str, float],
    latencies: Mapping[str, float],
    gpu_model: GpuModel | str = BOARD,
    *,
    latency_share: float = LATENCY_SHARE,
    method: str = "joint",
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    seed: int = 0,
    solver: str = "highs",
) -> ServicePlan:
    """Size services for the fewest GPUs, then for the fewest compute slices.

    Parameters
    ----------
    profiles : polars.DataFrame
        A table :class:`~gpuplanner.planner.service_profiles.ServiceProfiles`, as
        :func:`~gpuplanner.planner.service_profiles.read_service_profiles` gives it. A size is planned on the
        profile with the least memory that has so many compute slices.
    rates : mapping of str to float
        Requests of each service [1/s].
    latencies : mapping of str to float
        Longest time from a request to its answer, by service [ms].
    gpu_model : GpuModel or str
        Board of every GPU, on which the profiles were measured.
    latency_share : float
        Share of the limit that a batch may take, above 0 and at most 1; see :data:`LATENCY_SHARE`. At 1 the
        measured latency of a batch is taken for what a user sees, as if no request ever waited.
    method : {"joint", "alone"}
        See :data:`METHODS`.
    time_limit_s : float, optional
        Longest search [s].
    work_limit : int, optional
        Most units of work; see :func:`gpuplanner.planner.plan_search.plan`.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Which solver.

    Returns
    -------
    ServicePlan
        If a limit is reached, or at Ctrl-C, the best plan so far with the bounds so far.

    Raises
    ------
    ScenarioError
        If a rate, limit or argument makes no sense.
    SchemaError
        If `profiles` is no such table.
    GeometryError
        If the board is unknown or has no instance of a size in the table.
    InfeasiblePlanError
        If a service has no measured setting that answers in time.
    MissingDependencyError
        If the solver is not installed.

    References
    ----------
    Lee et al., ParvaGPU, SC 2024; MunQ-Lee/ParvaGPU_SC24, src/configurator.c
    (``target_ltc < (float)(slo_ltc/2 * 0.9)``).

    Examples
    --------
    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> rows = [("bert", 1, 8, 1, 100.0, 0.08), ("bert", 2, 8, 2, 250.0, 0.09), ("bert", 2, 32, 1, 300.0, 0.2)]
    >>> profiles = pl.DataFrame(rows, schema=columns, orient="row")
    >>> plan = plan_services(profiles, {"bert": 340.0}, {"bert": 200.0})
    >>> plan.gpus, plan.slices, plan.proven, plan.layouts
    (1, 3, True, ('2g.20gb:1,1g.10gb:1',))
    >>> [(segment.profile, segment.batch, segment.instances) for segment in plan.segments]
    [('1g.10gb', 8, 1), ('2g.20gb', 8, 1)]
    """
    began = time.perf_counter()
    effort = Effort.begin(time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit)
    _require_arguments(latency_share, method)
    gpu_model = as_board(gpu_model)
    profiles = check(profiles, ServiceProfiles, where="service profiles")
    demands = service_demands(rates, latencies, profiles["service"].unique().to_list())
    choices = choices_for(profiles, demands, gpu_model, latency_share)
    floor = least(choices)
    start = sized_alone(choices)
    sized = BoundedSizing(start, floor.gpus, floor.slices)
    if method == "joint":
        sized = sized_jointly(choices, floor, start, effort)
    segments, layouts = numbered(choices, sized.sizing)
    return ServicePlan(
        gpu_model=gpu_model,
        latency_share=latency_share,
        gpus=len(layouts),
        bound=sized.gpus,
        slices=choices.slices(sized.sizing.instances),
        slices_bound=sized.slices,
        segments=segments,
        layouts=layouts,
        seconds=time.perf_counter() - began,
    )


def _require_arguments(latency_share: float, method: str) -> None:
    if isinstance(latency_share, bool) or not 0 < latency_share <= 1:
        expected = "a number above 0, at most 1"
        raise ScenarioError("latency_share", expected, repr(latency_share), "Choose one.")
    if method not in METHODS:
        expected = f"one of {', '.join(METHODS)}"
        raise ScenarioError("plan_services: method", expected, repr(method), "Choose one of these.")


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

    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> profiles = pl.DataFrame([("bert", 1, 8, 1, 100.0, 0.08)], schema=columns, orient="row")
    >>> plan = plan_services(profiles, {"bert": 340.0}, {"bert": 200.0})
    >>> verify_services(plan, profiles, {"bert": 340.0}, {"bert": 200.0})
    []
    >>> verify_services(plan, profiles, {"bert": 500.0}, {"bert": 200.0})
    ['bert: 500 requests/s requested, its instances serve 400']
    >>> verify_services(replace(plan, slices=3), profiles, {"bert": 340.0}, {"bert": 200.0})[0]
    'slices: the plan states 3, its segments have 4'
    """
    faults = list(_demand_faults(plan, rates))
    for segment in plan.segments:
        faults += _segment_faults(plan, segment, profiles, latencies)
    return [*faults, *_gpu_faults(plan), *_total_faults(plan)]


def _demand_faults(plan: ServicePlan, rates: Mapping[str, float]) -> Iterator[str]:
    """Every rate is served, and nothing else."""
    served: defaultdict[str, float] = defaultdict(float)
    for segment in plan.segments:
        served[segment.service] += len(segment.gpus) * segment.throughput_per_s
    for name, rate in rates.items():
        if served.get(name, 0.0) < rate * (1 - _TOLERANCE):
            yield f"{name}: {rate:g} requests/s requested, its instances serve {served.get(name, 0.0):g}"
    for name in sorted(set(served) - {name for name, rate in rates.items() if rate > 0}):
        yield f"{name}: it has instances, but no requests"


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
        slices = plan.gpu_model.profile(segment.profile).compute_slices
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
            proof = prove(plan.gpu_model, held)
        except GpuPlannerError as error:
            yield f"GPU {gpu}: {error}"
            continue
        if said != held:
            yield f"GPU {gpu}: the layout has {said}, the segments {held}"
        if not proof:
            yield f"GPU {gpu}: impossible: {proof.reason}"
        if not held:
            yield f"GPU {gpu}: it holds nothing"


def _total_faults(plan: ServicePlan) -> Iterator[str]:
    slices = sum(len(segment.gpus) * segment.compute_slices for segment in plan.segments)
    if plan.slices != slices:
        yield f"slices: the plan states {plan.slices}, its segments have {slices}"
    if plan.gpus != len(plan.layouts):
        yield f"gpus: the plan states {plan.gpus}, there are {len(plan.layouts)} layouts"
    for name, low, high in (
        ("bound", plan.bound, plan.gpus),
        ("slices_bound", plan.slices_bound, plan.slices),
    ):
        if not 0 <= low <= high:
            yield f"{name}: {low} is not from 0 to {high}"
