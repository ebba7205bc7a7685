"""Sizing of inference services: instance options, integer program and first fit.

Variables, all whole numbers: n_o instances of each option o, g_l GPUs of each layout l. Minimize GPUs, sum g_l, then
compute slices, sum slices_o n_o, subject to

- rate of each service:  sum over its options of  throughput_o n_o / rate >= 1;
- supply of each profile:  sum over layouts of  instances in l * g_l >= instances of its options;
- valid inequalities:  compute and memory slices of each service, and GPUs, are at least their lower bounds.

The last are implied by whole instances, but not by fractional ones: with them the optimum of the relaxation is close
to that of the program, and hundreds of services are proven optimal in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from gpuplanner.core.errors import GeometryError, InfeasiblePlanError, ScenarioError, examples
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.planner.inference_service_measurements import ServiceDemand
from gpuplanner.planner.linear_programs_and_search_limits import LinearModel, SearchEffort
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.planner.plan_problem import Counts
from gpuplanner.usage.requested_demand import smallest_by_compute

MAX_RATE_SHORTFALL = 1e-6
"""Fraction of a rate that may be missing while the rate counts as met: the tolerance of the solvers."""

MAX_SERVICE_GPUS = 100_000
"""Largest demand that is accepted [GPUs]; more is a mistake in the rates."""

_RATE_ROUNDING_FRACTION = 1e-9
"""Relative rounding error that latency limits and fractional bounds allow for."""
_MAX_SLICES_IN_KNAPSACK_TABLE = 500
"""Largest bound [slices] for which :func:`min_covering_weight` fills its table; beyond it the fractional bound is used.
"""
_LATENCY_LIMIT_SCHEMA = {"service": pl.String, "allowed_s": pl.Float64}
"""Columns of the table of the longest time that a batch of each service may take."""


@dataclass(frozen=True)
class InstanceOption:
    """Best setting of a service on instances of one size.

    - ``service``: Name of the service.
    - ``profile``: MIG profile of the instance.
    - ``batch``, ``processes``: Requests in a batch, and processes that share the instance.
    - ``throughput_per_s``: Requests that all processes of one instance serve. [1/s]
    - ``latency_s``: Time from the start of a batch to its end. [s]
    """

    service: str
    profile: MigProfile
    batch: int
    processes: int
    throughput_per_s: float
    latency_s: float


@dataclass(frozen=True, eq=False)
class ServiceChoices:
    """Options and layouts to choose from, and the rates to serve.

    - ``gpu_model``: GPU model of every GPU.
    - ``options``: By service, smallest instance first.
    - ``layouts``: Instances of one GPU; every possible layout is part of one of them.
    - ``rate_per_s``: Requests of each service. [1/s]
    """

    gpu_model: GpuModel
    options: tuple[InstanceOption, ...]
    layouts: tuple[dict[str, int], ...]
    rate_per_s: dict[str, float]

    def options_of_service(self, service: str) -> list[int]:
        """Return the positions in `options` of those of one service."""
        return [position for position, option in enumerate(self.options) if option.service == service]

    def count_slices(self, instances: Counts) -> int:
        """Return the compute slices of the given numbers of instances of each :class:`InstanceOption`."""
        slices_per_instance = np.array([option.profile.compute_slices for option in self.options], dtype=np.int64)
        return int(slices_per_instance @ instances)

    def meets_rates(self, instances: Counts, on: Counts) -> bool:
        """Whether so many instances of each option serve all request rates, and so many GPUs by layout hold them."""
        served = dict.fromkeys(self.rate_per_s, 0.0)
        placed: Counter[str] = Counter()
        for option, number in zip(self.options, instances.tolist(), strict=True):
            served[option.service] += number * option.throughput_per_s
            placed[option.profile.name] += number
        for layout, gpus in zip(self.layouts, on.tolist(), strict=True):
            placed.subtract({name: number * gpus for name, number in layout.items()})
        met = all(served[name] >= rate * (1 - MAX_RATE_SHORTFALL) for name, rate in self.rate_per_s.items())
        return met and max(placed.values(), default=0) <= 0


@dataclass(frozen=True)
class SliceBounds:
    """Lower bounds on the slices of each service by itself, on those of all together, and on GPUs.

    - ``compute``, ``memory``: Least slices of each service, one resource at a time.
    - ``slices``: Compute slices of all services.
    - ``gpus``: GPUs with so many compute and memory slices.
    """

    compute: dict[str, int]
    memory: dict[str, int]
    slices: int
    gpus: int


def build_choices(
    profiles: pl.DataFrame, demands: Mapping[str, ServiceDemand], gpu_model: GpuModel, latency_share: float
) -> ServiceChoices:
    """Keep the setting of each service and instance size with the highest throughput within the latency limit.

    Only throughput and instance size matter to a plan. Of equals the setting with the lowest latency is kept, then that
    with fewest processes.

    Parameters
    ----------
    profiles : polars.DataFrame
        Measured settings.
    demands : mapping of str to ServiceDemand
        Rate and latency limit of each service.
    gpu_model : GpuModel
        GPU model of every GPU.
    latency_share : float
        Fraction of the latency limit that a batch may take. [0-1]
    """
    profile_of_size = smallest_by_compute(gpu_model)
    if unknown_sizes := sorted(set(profiles["compute_slices"].to_list()) - set(profile_of_size)):
        expected = f"instances of {', '.join(map(str, profile_of_size))} compute slices"
        todo = "Give the GPU model on which they were measured: --gpu-model."
        raise GeometryError(f"service profiles on {gpu_model.name}", expected, examples(unknown_sizes), todo)
    allowed_s = [demand.latency_ms / 1000 * latency_share for demand in demands.values()]
    latency_limits = pl.DataFrame({"service": list(demands), "allowed_s": allowed_s}, schema=_LATENCY_LIMIT_SCHEMA)
    measured = profiles.filter(pl.col("throughput_per_s") > 0).join(latency_limits, on="service")
    in_time = measured.filter(pl.col("latency_s") <= pl.col("allowed_s") * (1 + _RATE_ROUNDING_FRACTION)).drop(
        "allowed_s"
    )
    _require_fast_settings(measured, in_time, demands, latency_share)
    order = ["service", "compute_slices", "throughput_per_s", "latency_s", "processes", "batch"]
    best = in_time.sort(order, descending=[name == "throughput_per_s" for name in order]).unique(
        ["service", "compute_slices"], keep="first", maintain_order=True
    )
    rows = best.to_dicts()
    options = tuple(
        InstanceOption(row.pop("service"), profile_of_size[row.pop("compute_slices")], **row) for row in rows
    )
    names = sorted({option.profile.name for option in options})
    rates = {name: demand.rate_per_s for name, demand in demands.items()}
    layouts = tuple(list_pareto_counts(gpu_model, names)) if names else ()
    return ServiceChoices(gpu_model, options, layouts, rates)


def bound_slices(choices: ServiceChoices) -> SliceBounds:
    """Compute lower bounds: the sum of what each service needs by itself, if GPUs were partitioned without loss."""
    compute: dict[str, int] = {}
    memory: dict[str, int] = {}
    for service, rate in choices.rate_per_s.items():
        options = [choices.options[position] for position in choices.options_of_service(service)]
        throughput = [option.throughput_per_s for option in options]
        compute[service] = min_covering_weight(throughput, [option.profile.compute_slices for option in options], rate)
        memory[service] = min_covering_weight(throughput, [option.profile.memory_slices for option in options], rate)
    slices = sum(compute.values())
    gpu_model = choices.gpu_model
    gpus = max(-(-slices // gpu_model.compute_slices), -(-sum(memory.values()) // gpu_model.memory_slices))
    if gpus > MAX_SERVICE_GPUS:
        expected = f"a demand for at most {MAX_SERVICE_GPUS} GPUs"
        todo = "Are the rates in requests per second?"
        raise ScenarioError("rates", expected, f"one for at least {gpus}", todo)
    return SliceBounds(compute, memory, slices, gpus)


def min_covering_weight(throughputs: Sequence[float], weights: Sequence[int], rate: float) -> int:
    """Return the least weight of instances that together serve a rate: an unbounded covering knapsack.

    With the most throughput of weight w, T(w) = max over instances i of T(w - w_i) + t_i, the answer is the least w
    with T(w) >= rate. Beyond 500 slices it is the fractional bound, ceil(rate * min of w_i / t_i).

    Parameters
    ----------
    throughputs : sequence of float
        t_i: throughput of each kind of instance. [1/s]
    weights : sequence of int
        w_i: its slices.
    rate : float
        Rate to serve. [1/s]

    Examples
    --------
    >>> min_covering_weight([100.0, 250.0], [1, 2], 400.0), min_covering_weight([100.0, 250.0], [1, 2], 450.0)
    (4, 4)
    """
    needed = rate * (1 - MAX_RATE_SHORTFALL)
    weights_and_throughputs = list(zip(weights, throughputs, strict=True))
    fractional = math.ceil(
        min(weight * needed / throughput for weight, throughput in weights_and_throughputs) - _RATE_ROUNDING_FRACTION
    )
    if fractional > _MAX_SLICES_IN_KNAPSACK_TABLE:
        return fractional
    max_throughput = [0.0]  # T(w), by w
    while max_throughput[-1] < needed:
        weight_now = len(max_throughput)
        candidates = [
            max_throughput[weight_now - weight] + throughput
            for weight, throughput in weights_and_throughputs
            if weight <= weight_now
        ]
        max_throughput.append(max([max_throughput[-1], *candidates]))
    return len(max_throughput) - 1


def _require_fast_settings(
    ran: pl.DataFrame, in_time: pl.DataFrame, demands: Mapping[str, ServiceDemand], latency_share: float
) -> None:
    """Raise an InfeasiblePlanError if a service has no measured setting within its latency limit.

    Parameters
    ----------
    ran : polars.DataFrame
        Measured settings.
    in_time : polars.DataFrame
        Those within the latency limit.
    demands : mapping of str to ServiceDemand
        Rates and latency limits.
    latency_share : float
        Fraction of the latency limit for a batch. [0-1]
    """
    quickest = dict(ran.group_by("service").agg(pl.col("latency_s").min()).iter_rows())
    slow_services = sorted(set(demands) - set(in_time["service"].to_list()))
    if not slow_services:
        return
    faults = []
    for name in slow_services:
        allowed = f"{demands[name].latency_ms * latency_share:g} ms of {demands[name].latency_ms:g} ms"
        reached = f"{1000 * quickest[name]:g} ms" if name in quickest else "none, it ran on no instance"
        faults.append(f"{name}: a batch may take {allowed}, the least latency measured is {reached}")
    got = f"none for {len(slow_services)} of {len(demands)}: {examples(faults)}"
    share = f"raise latency_share (now {latency_share:g})"
    todo = f"Relax the latency limit, {share}, or measure smaller batches."
    raise InfeasiblePlanError("services", "a measured setting of each that answers in time", got, todo)


Content = tuple[int, ...]
"""Number of instances of each profile on one GPU."""


@dataclass(frozen=True, eq=False)
class Sizing:
    """Number of instances of each :class:`InstanceOption`, and of GPUs of each layout that hold them.

    - ``instances``, shape (n_options,): Instances.
    - ``gpus_per_layout``, shape (n_layouts,): GPUs.
    """

    instances: Counts
    gpus_per_layout: Counts

    @property
    def n_gpus(self) -> int:
        """Number of all GPUs."""
        return int(self.gpus_per_layout.sum())


def size_services_separately(choices: ServiceChoices) -> Sizing:
    """Size every service by itself and pack the instances first fit.

    Use as many instances as stay busy of the size with the highest throughput per compute slice, and one more, the
    smallest that suffices, for the remaining rate; then pack all of them onto GPUs, first fit by decreasing size. This
    is the method of ParvaGPU without its last step, which splits the instances of GPUs that stay half empty.

    References
    ----------
    MunQ-Lee/ParvaGPU_SC24, src/configurator.c (``demand_matching``) and src/allocator.c.
    """
    instances = np.zeros(len(choices.options), dtype=np.int64)
    for service, rate in choices.rate_per_s.items():
        places = choices.options_of_service(service)
        throughput = {position: choices.options[position].throughput_per_s for position in places}
        slices = {position: choices.options[position].profile.compute_slices for position in places}
        main_option = max(places, key=lambda position: (throughput[position] / slices[position], -slices[position]))
        instances[main_option] = math.floor(rate / throughput[main_option])
        remaining_rate = rate - instances[main_option] * throughput[main_option]
        if remaining_rate > rate * MAX_RATE_SHORTFALL:
            instances[next(position for position in places if throughput[position] >= remaining_rate)] += 1
    return Sizing(instances, pack_first_fit(choices, instances))


def pack_first_fit(choices: ServiceChoices, instances: Counts) -> Counts:
    """Pack instances onto GPUs, largest first, each onto the first GPU that can hold it; return GPUs of each layout.

    GPUs with the same instances are handled together, so that the work does not grow with their number.
    """
    profiles = {option.profile.name: option.profile for option in choices.options}
    names = sorted(profiles, key=lambda name: profiles[name].size_order, reverse=True)
    room = np.array([[layout.get(name, 0) for name in names] for layout in choices.layouts], dtype=np.int64)
    groups: list[tuple[Content, int]] = []
    for position, name in enumerate(names):
        of_profile = [option.profile.name == name for option in choices.options]
        left = int(instances[of_profile].sum())
        groups = _pack_instances(groups, position, left, room.reshape(-1, len(names)))
    on: Counts = np.zeros(len(choices.layouts), dtype=np.int64)
    for content, gpus in groups:
        on[int(np.flatnonzero((room >= content).all(axis=1))[0])] += gpus
    return on


def _pack_instances(
    groups: list[tuple[Content, int]], position: int, n_left: int, room: Counts
) -> list[tuple[Content, int]]:
    """Pack instances of one profile first fit onto groups of equal GPUs, then onto new ones.

    Parameters
    ----------
    groups : list of (tuple of int, int)
        Instances by profile on a GPU, and number of such GPUs.
    position : int
        Position of the profile.
    n_left : int
        Instances to pack.
    room : ndarray of int, shape (n_layouts, n_profiles)
        Instances of each layout.
    """
    packed_groups: list[tuple[Content, int]] = []
    for content, gpus in [*groups, ((0,) * room.shape[1], n_left)]:
        other_instances = np.array(content)
        other_instances[position] = 0
        holding = room[(room >= other_instances).all(axis=1), position]
        n_per_gpu = int(holding.max()) - content[position]
        n_full_gpus = min(gpus, n_left // n_per_gpu) if n_per_gpu else 0
        n_on_last_gpu = n_left % n_per_gpu if n_per_gpu and n_full_gpus < gpus else 0
        n_left -= n_full_gpus * n_per_gpu + n_on_last_gpu
        untouched = gpus - n_full_gpus - bool(n_on_last_gpu) if any(content) else 0
        for number, added in ((n_full_gpus, n_per_gpu), (int(n_on_last_gpu > 0), n_on_last_gpu), (untouched, 0)):
            if number:
                grown = (*content[:position], content[position] + added, *content[position + 1 :])
                packed_groups.append((grown, number))
    return packed_groups


SizingAim = Literal["gpus", "slices"]
"""Objective of the integer program: fewest GPUs, or fewest compute slices."""

_INTEGER_PROGRAM_TOLERANCE = 1e-6
"""Relative tolerance of a solver's bound before it is rounded up to a whole number."""


@dataclass(frozen=True)
class BoundedSizing:
    """Best sizing found, with lower bounds.

    - ``sizing``: The sizing.
    - ``gpus``: No plan needs fewer GPUs.
    - ``slices``: No plan with at most as many GPUs as the sizing takes fewer compute slices.
    """

    sizing: Sizing
    gpus: int
    slices: int


def size_services_jointly(
    choices: ServiceChoices, bounds: SliceBounds, start_sizing: Sizing, effort: SearchEffort
) -> BoundedSizing:
    """Choose instances and layouts of all services together: fewest GPUs, then fewest compute slices.

    Parameters
    ----------
    choices : ServiceChoices
        Options and layouts.
    bounds : SliceBounds
        Lower bounds, as valid inequalities.
    start_sizing : Sizing
        Known sizing to start from.
    effort : SearchEffort
        Time and work limits of the search.
    """
    best = BoundedSizing(start_sizing, bounds.gpus, bounds.slices)
    try:
        if best.sizing.n_gpus > best.gpus:
            sizing, bound = _solve_sizing(choices, bounds, best.sizing, "gpus", effort)
            best = BoundedSizing(sizing, max(bound, bounds.gpus), bounds.slices)
        if choices.count_slices(best.sizing.instances) > best.slices:
            sizing, bound = _solve_sizing(choices, bounds, best.sizing, "slices", effort)
            best = BoundedSizing(sizing, best.gpus, max(bound, bounds.slices))
    except KeyboardInterrupt:
        return best
    return best


def build_sizing_model(choices: ServiceChoices, bounds: SliceBounds, aim: SizingAim, peak_gpus: int) -> LinearModel:
    """Build the integer program of a sizing.

    Parameters
    ----------
    choices : ServiceChoices
        Options and layouts.
    bounds : SliceBounds
        Lower bounds, as valid inequalities.
    aim : {"gpus", "slices"}
        Objective.
    peak_gpus : int
        Most GPUs.
    """
    model = LinearModel()
    options, layouts = choices.options, choices.layouts
    profiles = [option.profile for option in options]
    # Fraction of the rate; capped at 1, as an instance cannot serve more than the rate.
    served = [min(1.0, option.throughput_per_s / choices.rate_per_s[option.service]) for option in options]
    instances = model.add_columns(
        [f"instances_{option}" for option in range(len(options))],
        cost=[profile.compute_slices if aim == "slices" else 0 for profile in profiles],
        high=[math.ceil(1 / share) for share in served],
    )
    n_layouts = len(layouts)
    names = [f"on_{layout}" for layout in range(n_layouts)]
    on = model.add_columns(names, cost=[aim == "gpus"] * n_layouts, high=[peak_gpus] * n_layouts)
    for number, service in enumerate(choices.rate_per_s):
        options_of = choices.options_of_service(service)
        model.add_row(f"rate_{number}", instances[options_of], [served[option] for option in options_of], ">=", 1.0)
        compute = [profiles[option].compute_slices for option in options_of]
        model.add_row(f"compute_{number}", instances[options_of], compute, ">=", bounds.compute[service])
        memory = [profiles[option].memory_slices for option in options_of]
        model.add_row(f"memory_{number}", instances[options_of], memory, ">=", bounds.memory[service])
    for name in sorted({profile.name for profile in profiles}):
        supply = [layout.get(name, 0) for layout in layouts]
        use = [-1 if profile.name == name else 0 for profile in profiles]
        model.add_row(f"supply_{name}", [*on, *instances], [*supply, *use], ">=", 0.0)
    model.add_row("fewest_gpus", on, np.ones(len(on)), ">=", bounds.gpus)
    model.add_row("peak_gpus", on, np.ones(len(on)), "<=", peak_gpus)
    return model


def _solve_sizing(
    choices: ServiceChoices, bounds: SliceBounds, start_sizing: Sizing, aim: SizingAim, effort: SearchEffort
) -> tuple[Sizing, int]:
    """Return the better of the start and the solver's sizing, with the lower bound on GPUs or slices (0: none proven).

    Parameters
    ----------
    choices : ServiceChoices
        Options and layouts.
    bounds : SliceBounds
        Lower bounds.
    start_sizing : Sizing
        Known sizing to start from.
    aim : {"gpus", "slices"}
        Objective.
    effort : SearchEffort
        Time and work limits of the search.
    """
    model = build_sizing_model(choices, bounds, aim, start_sizing.n_gpus)
    answer = solve(
        model, effort, start=np.concatenate([start_sizing.instances, start_sizing.gpus_per_layout]).astype(float)
    )
    proven = answer.bound or 0.0
    bound = math.ceil(proven - _INTEGER_PROGRAM_TOLERANCE * max(1.0, proven))
    if answer.values is None:
        return start_sizing, bound
    whole = np.rint(answer.values).astype(np.int64)
    solved = Sizing(*np.split(whole, [len(choices.options)]))
    # The solver meets rows within a tolerance: an answer counts only if it holds in whole numbers.
    return (solved if choices.meets_rates(solved.instances, solved.gpus_per_layout) else start_sizing), bound
