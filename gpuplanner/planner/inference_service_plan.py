"""Plans of inference services: search, file format and check.

Each service has measured profiles (:mod:`~gpuplanner.planner.inference_service_measurements`), a request rate and a
latency limit. The plan uses the fewest GPUs and, on so few, the fewest compute slices; both come with a
proven lower bound.

The check shares nothing with the search: settings are looked up in the profiles, instances are counted GPU by GPU, and
every GPU is proved by :func:`gpuplanner.hardware.mig_layouts.prove`.
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
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.serialization import to_json
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout, prove
from gpuplanner.planner.fleet_limits_and_prices import gpu_model_from_plain, to_plain
from gpuplanner.planner.inference_service_measurements import PROFILED_GPU_MODEL, ServiceProfiles, service_demands
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.service_sizing import (
    BoundedSizing,
    ServiceChoices,
    Sizing,
    bound_slices,
    build_choices,
    size_services_jointly,
    size_services_separately,
)


@dataclass(frozen=True)
class ServiceInstances:
    """Instances of one service with the same setting.

    - ``service``: Name of the service.
    - ``profile``: MIG profile of the instances.
    - ``compute_slices``: Compute slices of an instance.
    - ``batch``, ``processes``: Requests in a batch, and processes that share an instance.
    - ``throughput_per_s``: Requests that one instance serves. [1/s]
    - ``latency_ms``: Time that a batch takes. [ms]
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
        """Number of instances."""
        return len(self.gpus)


@dataclass(frozen=True, repr=False)
class ServicePlan:
    """Plan of inference services with its lower bounds.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of every GPU.
    latency_share : float
        Fraction of the latency limit that a batch may take. [0-1]
    gpus, bound : int
        GPUs, and the lower bound on the GPUs of any plan.
    slices, slices_bound : int
        Compute slices of all instances, and the lower bound on those of any plan with at most as many GPUs.
    segments : tuple of ServiceInstances
        Groups of instances with the same setting, by service, smallest instance first.
    layouts : tuple of str
        Instances on each GPU, as layout text.
    seconds : float
        Run time of the search. [s]
    """

    gpu_model: GpuModel
    latency_share: float
    gpus: int
    bound: int
    slices: int
    slices_bound: int
    segments: tuple[ServiceInstances, ...]
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
        """Convert to plain values for JSON."""
        segment_rows = [asdict(segment) | {"instances": segment.instances} for segment in self.segments]
        names = ("gpus", "bound", "slices", "slices_bound", "proven", "seconds", "latency_share")
        values = {name: getattr(self, name) for name in names}
        return values | {"gpu_model": self.gpu_model.name, "segments": segment_rows, "layouts": list(self.layouts)}


def assign_instances_to_gpus(
    choices: ServiceChoices, sizing: Sizing
) -> tuple[tuple[ServiceInstances, ...], tuple[str, ...]]:
    """Assign every instance to a GPU; return the instances by service and setting, and the layout of every GPU.

    Instances without load are left out.
    """
    free_gpus: dict[str, list[int]] = {}
    first = 0
    for layout, gpus in zip(choices.layouts, sizing.gpus_per_layout.tolist(), strict=True):
        for gpu in range(first, first + gpus):
            for name, number in layout.items():
                free_gpus.setdefault(name, []).extend([gpu] * number)
        first += gpus
    gpus_by_option: list[tuple[int, list[int]]] = []
    for option_position, (option, number) in enumerate(zip(choices.options, sizing.instances.tolist(), strict=True)):
        if number:
            places = free_gpus[option.profile.name]
            gpus_by_option.append((option_position, places[:number]))
            del places[:number]
    used_gpus = sorted({gpu for _, gpus in gpus_by_option for gpu in gpus})
    new_number = {gpu: number for number, gpu in enumerate(used_gpus)}
    instances_by_gpu: list[Counter[str]] = [Counter() for _ in used_gpus]
    segments = []
    for option_position, gpus in gpus_by_option:
        option = choices.options[option_position]
        for gpu in gpus:
            instances_by_gpu[new_number[gpu]][option.profile.name] += 1
        setting = (option.batch, option.processes, option.throughput_per_s, 1000 * option.latency_s)
        segment_gpus = tuple(new_number[gpu] for gpu in gpus)
        size = option.profile.compute_slices
        segments.append(ServiceInstances(option.service, option.profile.name, size, *setting, segment_gpus))
    return tuple(segments), tuple(map(format_layout, instances_by_gpu))


SERVICE_FILE_FORMAT = "gpuplanner.services/1"
"""Name and version of the file format of service plans."""

_SERVICE_PLAN_FILE_TEXT = "file of a service plan"
"""Name of the file of a service plan in error messages."""


def services_to_json(
    plan: ServicePlan, profiles: pl.DataFrame, rates: Mapping[str, float], latencies: Mapping[str, float]
) -> str:
    """Write a plan of services with profiles, rates and latency limits as JSON; same input, same bytes.

    Parameters
    ----------
    plan : ServicePlan
        The plan.
    profiles : polars.DataFrame
        Table :class:`~gpuplanner.planner.inference_service_measurements.ServiceProfiles`.
    rates, latencies : mapping of str to float
        Requests [1/s] and latency limit [ms] of each service.

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
    values |= {"format": SERVICE_FILE_FORMAT, "gpu_model": to_plain(plan.gpu_model)}
    values["asked"] = [
        {"service": name, "rate_per_s": rate, "latency_ms": latencies.get(name)} for name, rate in rates.items()
    ]
    values["measured"] = profiles.select(ServiceProfiles.column_names()).to_dicts()
    return to_json(values)


def is_service_plan(text: str) -> bool:
    """Whether a text is JSON of :func:`services_to_json`."""
    try:
        values = json.loads(text)
    except (RecursionError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == SERVICE_FILE_FORMAT


def services_from_json(text: str) -> tuple[ServicePlan, pl.DataFrame, dict[str, float], dict[str, float]]:
    """Read plan, profiles, rates and latency limits from JSON of :func:`services_to_json`."""
    try:
        values = json.loads(text)
        plan, requested = _service_plan_of_values(values), values["asked"]
        rates = {row["service"]: float(row["rate_per_s"]) for row in requested}
        with_limit = [row for row in requested if row["latency_ms"] is not None]
        latencies = {row["service"]: float(row["latency_ms"]) for row in with_limit}
        types = {name: column.dtype for name, column in ServiceProfiles.columns().items()}
        profiles = pl.DataFrame(values["measured"], schema=types, orient="row")
    except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        if isinstance(error, ScenarioError):
            raise
        expected = "JSON written by 'gpuplanner plan --services -o'"
        raise ScenarioError(_SERVICE_PLAN_FILE_TEXT, expected, repr(error), "Write the plan again.") from error
    return plan, check_table(profiles, ServiceProfiles, source=_SERVICE_PLAN_FILE_TEXT), rates, latencies


def _service_plan_of_values(values: dict[str, Any]) -> ServicePlan:
    """Build a service plan from the values of its file."""
    segments = []
    for row in values["segments"]:
        parts = {name: row[name] for name in ServiceInstances.__dataclass_fields__}
        segments.append(ServiceInstances(**{**parts, "gpus": tuple(row["gpus"])}))
    gpu_model, layouts = gpu_model_from_plain(values["gpu_model"]), tuple(values["layouts"])
    names = ("latency_share", "gpus", "bound", "slices", "slices_bound")
    figures = {name: values[name] for name in names}
    return ServicePlan(gpu_model=gpu_model, segments=tuple(segments), layouts=layouts, seconds=0.0, **figures)


BATCH_LATENCY_FRACTION = 0.45
"""Fraction of a latency limit that a batch may take, by the rule of ParvaGPU: a half, as a request that arrives just
after a batch has started waits for its end and then for its own, less 10 % for the spread of latencies.
"""

SERVICE_SEARCH_METHODS = ("joint", "alone")
"""``joint``: all services together, by integer program. ``alone``: each service by itself, packed first fit."""


def plan_services(
    profiles: pl.DataFrame,
    rates: Mapping[str, float],
    latencies: Mapping[str, float],
    gpu_model: GpuModel | str = PROFILED_GPU_MODEL,
    *,
    latency_share: float = BATCH_LATENCY_FRACTION,
    method: str = "joint",
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    seed: int = 0,
    solver: str = "highs",
) -> ServicePlan:
    """Size inference services for the fewest GPUs, then for the fewest compute slices.

    Parameters
    ----------
    profiles : polars.DataFrame
        Table :class:`~gpuplanner.planner.inference_service_measurements.ServiceProfiles`, from
        :func:`~gpuplanner.planner.inference_service_measurements.read_service_profiles`. A size is planned on
        the profile with the least memory that has so many compute slices.
    rates : mapping of str to float
        Requests of each service. [1/s]
    latencies : mapping of str to float
        Longest time from a request to its answer, by service. [ms]
    gpu_model : GpuModel or str
        GPU model of every GPU, on which the profiles were measured.
    latency_share : float
        Fraction of the limit that a batch may take, above 0 and at most 1; see :data:`BATCH_LATENCY_FRACTION`. At 1 the
        measured latency of a batch is compared with the limit, as if no request ever waited.
    method : {"joint", "alone"}
        See :data:`SERVICE_SEARCH_METHODS`.
    time_limit_s : float, optional
        Time limit. [s]
    work_limit : int, optional
        Most units of work; see :func:`gpuplanner.planner.plan_search.plan`.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Solver.

    Returns
    -------
    ServicePlan
        If a limit is reached, or at Ctrl-C, the best plan so far with the bounds so far.

    Raises
    ------
    ScenarioError
        If a rate, limit or argument is invalid.
    SchemaError
        If `profiles` is no such table.
    GeometryError
        If the GPU model is unknown or has no instance of a size in the table.
    InfeasiblePlanError
        If a service has no measured setting within its latency limit.
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
    started = time.perf_counter()
    effort = SearchEffort.begin(time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit)
    _require_arguments(latency_share, method)
    gpu_model = as_gpu_model(gpu_model)
    profiles = check_table(profiles, ServiceProfiles, source="service profiles")
    demands = service_demands(rates, latencies, profiles["service"].unique().to_list())
    choices = build_choices(profiles, demands, gpu_model, latency_share)
    bounds = bound_slices(choices)
    start_sizing = size_services_separately(choices)
    bounded_sizing = BoundedSizing(start_sizing, bounds.gpus, bounds.slices)
    if method == "joint":
        bounded_sizing = size_services_jointly(choices, bounds, start_sizing, effort)
    segments, layouts = assign_instances_to_gpus(choices, bounded_sizing.sizing)
    return ServicePlan(
        gpu_model=gpu_model,
        latency_share=latency_share,
        gpus=len(layouts),
        bound=bounded_sizing.gpus,
        slices=choices.count_slices(bounded_sizing.sizing.instances),
        slices_bound=bounded_sizing.slices,
        segments=segments,
        layouts=layouts,
        seconds=time.perf_counter() - started,
    )


def _require_arguments(latency_share: float, method: str) -> None:
    """Raise a ScenarioError if the latency share or the method is invalid."""
    if isinstance(latency_share, bool) or not 0 < latency_share <= 1:
        expected = "a number above 0, at most 1"
        raise ScenarioError("latency_share", expected, repr(latency_share), "Choose one.")
    if method not in SERVICE_SEARCH_METHODS:
        expected = f"one of {', '.join(SERVICE_SEARCH_METHODS)}"
        raise ScenarioError("plan_services: method", expected, repr(method), "Choose one of these.")


_SERVICE_RATE_TOLERANCE = 2e-6
"""Relative tolerance with which a rate counts as served and a latency limit as met."""


def verify_services(
    plan: ServicePlan, profiles: pl.DataFrame, rates: Mapping[str, float], latencies: Mapping[str, float]
) -> list[str]:
    """List everything that is wrong with a plan of services.

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
    faults = list(_find_rate_faults(plan, rates))
    for segment in plan.segments:
        faults += _find_instance_group_faults(plan, segment, profiles, latencies)
    return [*faults, *_find_service_gpu_faults(plan), *_find_total_faults(plan)]


def _find_rate_faults(plan: ServicePlan, rates: Mapping[str, float]) -> Iterator[str]:
    """Yield faults of request rates [1/s]: each must be served, and no service without a rate may have instances."""
    served: defaultdict[str, float] = defaultdict(float)
    for segment in plan.segments:
        served[segment.service] += len(segment.gpus) * segment.throughput_per_s
    for name, rate in rates.items():
        if served.get(name, 0.0) < rate * (1 - _SERVICE_RATE_TOLERANCE):
            yield f"{name}: {rate:g} requests/s requested, its instances serve {served.get(name, 0.0):g}"
    for name in sorted(set(served) - {name for name, rate in rates.items() if rate > 0}):
        yield f"{name}: it has instances, but no requests"


def _find_instance_group_faults(
    plan: ServicePlan, instances: ServiceInstances, profiles: pl.DataFrame, latencies: Mapping[str, float]
) -> Iterator[str]:
    """Yield the faults of a group of instances of one service with the same setting.

    Its batch, processes and compute slices must have been measured, its throughput and latency must be the measured
    ones, the latency must be within the limit, and the MIG profile must have these compute slices.

    Parameters
    ----------
    plan : ServicePlan
        The plan.
    instances : ServiceInstances
        The group of instances.
    profiles : polars.DataFrame
        Measured profiles.
    latencies : mapping of str to float
        Latency limit of each service. [ms]
    """
    context = f"{instances.service} on {instances.profile}, batch {instances.batch}, {instances.processes} processes"
    measured = profiles.filter(
        pl.col("service") == instances.service,
        pl.col("compute_slices") == instances.compute_slices,
        pl.col("batch") == instances.batch,
        pl.col("processes") == instances.processes,
        pl.col("throughput_per_s") > 0,
    )
    if measured.height != 1:
        yield f"{context}: no such setting was measured"
        return
    for name, stated, measured_value in (
        ("throughput [1/s]", instances.throughput_per_s, measured["throughput_per_s"][0]),
        ("latency [ms]", instances.latency_ms, 1000 * measured["latency_s"][0]),
    ):
        if not math.isclose(stated, measured_value, rel_tol=1e-9):
            yield f"{context}: {name} {stated:g}, measured {measured_value:g}"
    limit = latencies.get(instances.service, math.inf)
    if 1000 * measured["latency_s"][0] > limit * plan.latency_share * (1 + _SERVICE_RATE_TOLERANCE):
        allowed = f"{plan.latency_share:g} of {limit:g} ms"
        yield f"{context}: a batch takes {1000 * measured['latency_s'][0]:g} ms, allowed are {allowed}"
    try:
        slices = plan.gpu_model.profile(instances.profile).compute_slices
    except GpuPlannerError as error:
        yield f"{context}: {error}"
        return
    if slices != instances.compute_slices:
        yield f"{context}: measured on {instances.compute_slices} compute slices, the instance has {slices}"
    if not instances.gpus:
        yield f"{context}: no instances"


def _find_service_gpu_faults(plan: ServicePlan) -> Iterator[str]:
    """Yield faults of GPUs: the instances of each must be those of its layout, and the layout possible."""
    on_gpu: dict[int, Counter[str]] = {gpu: Counter() for gpu in range(len(plan.layouts))}
    unknown_gpus: set[int] = set()
    for segment in plan.segments:
        for gpu in segment.gpus:
            if gpu in on_gpu:
                on_gpu[gpu][segment.profile] += 1
            else:
                unknown_gpus.add(gpu)
    if unknown_gpus:
        yield f"layouts: instances on GPUs {sorted(unknown_gpus)}, yet there are {len(plan.layouts)} layouts"
    for gpu, text in enumerate(plan.layouts):
        instances = dict(on_gpu[gpu])
        try:
            stated_layout = parse_layout(text)
            proof = prove(plan.gpu_model, instances)
        except GpuPlannerError as error:
            yield f"GPU {gpu}: {error}"
            continue
        if stated_layout != instances:
            yield f"GPU {gpu}: the layout has {stated_layout}, the segments {instances}"
        if not proof:
            yield f"GPU {gpu}: impossible: {proof.reason}"
        if not instances:
            yield f"GPU {gpu}: it holds nothing"


def _find_total_faults(plan: ServicePlan) -> Iterator[str]:
    """Yield faults of the totals of GPUs and compute slices, and of their lower bounds."""
    slices = sum(len(segment.gpus) * segment.compute_slices for segment in plan.segments)
    if plan.slices != slices:
        yield f"slices: the plan states {plan.slices}, its segments have {slices}"
    if plan.gpus != len(plan.layouts):
        yield f"gpus: the plan states {plan.gpus}, there are {len(plan.layouts)} layouts"
    for name, low, high in (("bound", plan.bound, plan.gpus), ("slices_bound", plan.slices_bound, plan.slices)):
        if not 0 <= low <= high:
            yield f"{name}: {low} is not from 0 to {high}"
