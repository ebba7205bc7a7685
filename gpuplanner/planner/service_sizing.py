"""Instances of services: options, integer program and first fit.

Columns, all whole numbers: instances of each option, GPUs of each layout. The rows of floors say nothing that
whole instances would not, but fractions of instances would: with them the relaxed program all but states the
answer, and hundreds of services are proven in seconds.
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
from gpuplanner.hardware.layout_enumeration import pareto_counts
from gpuplanner.planner.linear_model import Effort, LinearModel
from gpuplanner.planner.milp_solver import solve
from gpuplanner.planner.plan_problem import Counts
from gpuplanner.planner.service_profiles import ServiceDemand
from gpuplanner.usage.requested_demand import smallest_of_compute

SHORTFALL = 1e-6
"""A rate counts as met if no more than this share of it is missing: the tolerance of the solvers."""

MAX_GPUS = 100_000
"""A demand for more GPUs than this is a mistake in the rates."""

_RATE_ROUNDING = 1e-9
_LONGEST_TABLE = 500
_ASKED = {"service": pl.String, "allowed_s": pl.Float64}


@dataclass(frozen=True)
class InstanceOption:
    """The best setting of a service on instances of one size.

    - ``service``: The service.
    - ``profile``: The instance.
    - ``batch``, ``processes``: Requests in a batch, and processes that share the instance.
    - ``throughput_per_s``: Requests that all processes of one instance serve [1/s].
    - ``latency_s``: Time from the start of a batch to its end [s].
    """

    service: str
    profile: MigProfile
    batch: int
    processes: int
    throughput_per_s: float
    latency_s: float


@dataclass(frozen=True, eq=False)
class Choices:
    """All that can be chosen from, as arrays.

    - ``gpu_model``: Board of every GPU.
    - ``options``: By service, smallest instance first.
    - ``layouts``: Instances of one GPU; every way to cut it is part of one of them.
    - ``rate_per_s``: Requests of each service [1/s].
    """

    gpu_model: GpuModel
    options: tuple[InstanceOption, ...]
    layouts: tuple[dict[str, int], ...]
    rate_per_s: dict[str, float]

    def of(self, service: str) -> list[int]:
        """Places of a service's options."""
        return [place for place, option in enumerate(self.options) if option.service == service]

    def slices(self, instances: Counts) -> int:
        """Compute slices of so many instances of each option."""
        each = np.array([option.profile.compute_slices for option in self.options], dtype=np.int64)
        return int(each @ instances)

    def holds(self, instances: Counts, on: Counts) -> bool:
        """Whether so many instances of each option serve every rate, and so many GPUs hold them."""
        served = dict.fromkeys(self.rate_per_s, 0.0)
        placed: Counter[str] = Counter()
        for option, number in zip(self.options, instances.tolist(), strict=True):
            served[option.service] += number * option.throughput_per_s
            placed[option.profile.name] += number
        for layout, gpus in zip(self.layouts, on.tolist(), strict=True):
            placed.subtract({name: number * gpus for name, number in layout.items()})
        met = all(served[name] >= rate * (1 - SHORTFALL) for name, rate in self.rate_per_s.items())
        return met and max(placed.values(), default=0) <= 0


@dataclass(frozen=True)
class LeastSlices:
    """No plan takes less: of each service by itself, of all together, and GPUs.

    - ``compute``, ``memory``: Least slices of each service, one kind at a time.
    - ``slices``: Compute slices of all.
    - ``gpus``: GPUs with so many compute and memory slices.
    """

    compute: dict[str, int]
    memory: dict[str, int]
    slices: int
    gpus: int


def choices_for(
    profiles: pl.DataFrame, demands: Mapping[str, ServiceDemand], gpu_model: GpuModel, latency_share: float
) -> Choices:
    """Keep the best setting of each service and size that answers in time.

    Only throughput and the size of the instance matter to a plan, so the setting with the most throughput
    replaces all others that answer in time; of equals the quickest, then that with fewest processes.
    """
    of_size = smallest_of_compute(gpu_model)
    if strange := sorted(set(profiles["compute_slices"].to_list()) - set(of_size)):
        expected = f"instances of {', '.join(map(str, of_size))} compute slices"
        todo = "Give the GPU model on which they were measured: --gpu-model."
        raise GeometryError(f"service profiles on {gpu_model.name}", expected, examples(strange), todo)
    allowed_s = [demand.latency_ms / 1000 * latency_share for demand in demands.values()]
    asked = pl.DataFrame({"service": list(demands), "allowed_s": allowed_s}, schema=_ASKED)
    ran = profiles.filter(pl.col("throughput_per_s") > 0).join(asked, on="service")
    in_time = ran.filter(pl.col("latency_s") <= pl.col("allowed_s") * (1 + _RATE_ROUNDING)).drop("allowed_s")
    _refuse_the_slow(ran, in_time, demands, latency_share)
    order = ["service", "compute_slices", "throughput_per_s", "latency_s", "processes", "batch"]
    best = in_time.sort(order, descending=[name == "throughput_per_s" for name in order]).unique(
        ["service", "compute_slices"], keep="first", maintain_order=True
    )
    rows = best.to_dicts()
    options = tuple(InstanceOption(r.pop("service"), of_size[r.pop("compute_slices")], **r) for r in rows)
    names = sorted({option.profile.name for option in options})
    rates = {name: demand.rate_per_s for name, demand in demands.items()}
    layouts = tuple(pareto_counts(gpu_model, names)) if names else ()
    return Choices(gpu_model, options, layouts, rates)


def least(choices: Choices) -> LeastSlices:
    """What no plan undercuts: the sum of what each service takes by itself, were GPUs cut without loss."""
    compute: dict[str, int] = {}
    memory: dict[str, int] = {}
    for service, rate in choices.rate_per_s.items():
        options = [choices.options[place] for place in choices.of(service)]
        throughput = [option.throughput_per_s for option in options]
        compute[service] = least_weight(throughput, [o.profile.compute_slices for o in options], rate)
        memory[service] = least_weight(throughput, [o.profile.memory_slices for o in options], rate)
    slices = sum(compute.values())
    gpu_model = choices.gpu_model
    gpus = max(-(-slices // gpu_model.compute_slices), -(-sum(memory.values()) // gpu_model.memory_slices))
    if gpus > MAX_GPUS:
        expected = f"a demand for at most {MAX_GPUS} GPUs"
        todo = "Are the rates in requests per second?"
        raise ScenarioError("rates", expected, f"one for at least {gpus}", todo)
    return LeastSlices(compute, memory, slices, gpus)


def least_weight(throughputs: Sequence[float], weights: Sequence[int], rate: float) -> int:
    """Least weight of instances that together serve a rate: an unbounded covering knapsack.

    Examples
    --------
    >>> least_weight([100.0, 250.0], [1, 2], 400.0), least_weight([100.0, 250.0], [1, 2], 450.0)
    (4, 4)
    """
    needed = rate * (1 - SHORTFALL)
    kinds = list(zip(weights, throughputs, strict=True))
    fractional = math.ceil(min(weight * needed / throughput for weight, throughput in kinds) - _RATE_ROUNDING)
    if fractional > _LONGEST_TABLE:
        return fractional
    most = [0.0]  # throughput of at most so much weight
    while most[-1] < needed:
        now = len(most)
        fits = [most[now - weight] + throughput for weight, throughput in kinds if weight <= now]
        most.append(max([most[-1], *fits]))
    return len(most) - 1


def _refuse_the_slow(
    ran: pl.DataFrame, in_time: pl.DataFrame, demands: Mapping[str, ServiceDemand], latency_share: float
) -> None:
    quickest = dict(ran.group_by("service").agg(pl.col("latency_s").min()).iter_rows())
    late = sorted(set(demands) - set(in_time["service"].to_list()))
    if not late:
        return
    faults = []
    for name in late:
        allowed = f"{demands[name].latency_ms * latency_share:g} ms of {demands[name].latency_ms:g} ms"
        reached = f"{1000 * quickest[name]:g} ms" if name in quickest else "none, it ran on no instance"
        faults.append(f"{name}: a batch may take {allowed}, the least latency measured is {reached}")
    got = f"none for {len(late)} of {len(demands)}: {examples(faults)}"
    share = f"raise latency_share (now {latency_share:g})"
    todo = f"Relax the latency limit, {share}, or measure smaller batches."
    raise InfeasiblePlanError("services", "a measured setting of each that answers in time", got, todo)


Content = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sizing:
    """How many instances of each option, and how many GPUs of each layout to hold them.

    - ``instances``, shape (n_options,): Instances.
    - ``on``, shape (n_layouts,): GPUs.
    """

    instances: Counts
    on: Counts

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return int(self.on.sum())


def sized_alone(choices: Choices) -> Sizing:
    """Size every service by itself and pack the instances.

    As many instances as stay busy of the size with the most throughput per compute slice, one more, the
    smallest that will do, for the rest; then all of them onto GPUs, first fit by decreasing size. This is the
    way of ParvaGPU but for its last step, which splits the instances of GPUs that stay half empty.

    References
    ----------
    MunQ-Lee/ParvaGPU_SC24, src/configurator.c (``demand_matching``) and src/allocator.c.
    """
    instances = np.zeros(len(choices.options), dtype=np.int64)
    for service, rate in choices.rate_per_s.items():
        places = choices.of(service)
        throughput = {place: choices.options[place].throughput_per_s for place in places}
        slices = {place: choices.options[place].profile.compute_slices for place in places}
        main = max(places, key=lambda place: (throughput[place] / slices[place], -slices[place]))
        instances[main] = math.floor(rate / throughput[main])
        rest = rate - instances[main] * throughput[main]
        if rest > rate * SHORTFALL:
            instances[next(place for place in places if throughput[place] >= rest)] += 1
    return Sizing(instances, first_fit(choices, instances))


def first_fit(choices: Choices, instances: Counts) -> Counts:
    """Pack instances onto GPUs, largest first, each onto the first GPU that can hold it.

    GPUs that hold the same are handled together, so that the work does not grow with their number.
    """
    profiles = {option.profile.name: option.profile for option in choices.options}
    names = sorted(profiles, key=lambda name: profiles[name].size_order, reverse=True)
    room = np.array([[layout.get(name, 0) for name in names] for layout in choices.layouts], dtype=np.int64)
    groups: list[tuple[Content, int]] = []
    for position, name in enumerate(names):
        of_profile = [option.profile.name == name for option in choices.options]
        left = int(instances[of_profile].sum())
        groups = _add(groups, position, left, room.reshape(-1, len(names)))
    on: Counts = np.zeros(len(choices.layouts), dtype=np.int64)
    for content, gpus in groups:
        on[int(np.flatnonzero((room >= content).all(axis=1))[0])] += gpus
    return on


def _add(groups: list[tuple[Content, int]], position: int, left: int, room: Counts) -> list[tuple[Content, int]]:
    """First fit of so many instances of one profile onto groups of like GPUs, then onto new ones."""
    packed: list[tuple[Content, int]] = []
    for content, gpus in [*groups, ((0,) * room.shape[1], left)]:
        others = np.array(content)
        others[position] = 0
        holding = room[(room >= others).all(axis=1), position]
        each = int(holding.max()) - content[position]
        full = min(gpus, left // each) if each else 0
        partly = left % each if each and full < gpus else 0
        left -= full * each + partly
        untouched = gpus - full - bool(partly) if any(content) else 0
        for number, added in ((full, each), (int(partly > 0), partly), (untouched, 0)):
            if number:
                grown = (*content[:position], content[position] + added, *content[position + 1 :])
                packed.append((grown, number))
    return packed


Aim = Literal["gpus", "slices"]

_PROGRAM_ROUNDING = 1e-6


@dataclass(frozen=True)
class BoundedSizing:
    """The best sizing found, with its bounds.

    - ``sizing``: The answer.
    - ``gpus``: No plan needs fewer GPUs.
    - ``slices``: No plan with at most as many GPUs as the answer takes fewer compute slices.
    """

    sizing: Sizing
    gpus: int
    slices: int


def sized_jointly(choices: Choices, floor: LeastSlices, start: Sizing, effort: Effort) -> BoundedSizing:
    """Choose instances and layouts of all services together."""
    found = BoundedSizing(start, floor.gpus, floor.slices)
    try:
        if found.sizing.gpus > found.gpus:
            sizing, bound = _best(choices, floor, found.sizing, "gpus", effort)
            found = BoundedSizing(sizing, max(bound, floor.gpus), floor.slices)
        if choices.slices(found.sizing.instances) > found.slices:
            sizing, bound = _best(choices, floor, found.sizing, "slices", effort)
            found = BoundedSizing(sizing, found.gpus, max(bound, floor.slices))
    except KeyboardInterrupt:
        return found
    return found


def program(choices: Choices, floor: LeastSlices, aim: Aim, peak_gpus: int) -> LinearModel:
    """The model."""
    model = LinearModel()
    options, layouts = choices.options, choices.layouts
    profiles = [option.profile for option in options]
    # Of the rate; an instance that serves more than all of it is worth no more.
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
        own = choices.of(service)
        model.add_row(f"rate_{number}", instances[own], [served[option] for option in own], ">=", 1.0)
        compute = [profiles[option].compute_slices for option in own]
        model.add_row(f"compute_{number}", instances[own], compute, ">=", floor.compute[service])
        memory = [profiles[option].memory_slices for option in own]
        model.add_row(f"memory_{number}", instances[own], memory, ">=", floor.memory[service])
    for name in sorted({profile.name for profile in profiles}):
        held = [layout.get(name, 0) for layout in layouts]
        wanted = [-1 if profile.name == name else 0 for profile in profiles]
        model.add_row(f"supply_{name}", [*on, *instances], [*held, *wanted], ">=", 0.0)
    model.add_row("fewest_gpus", on, np.ones(len(on)), ">=", floor.gpus)
    model.add_row("peak_gpus", on, np.ones(len(on)), "<=", peak_gpus)
    return model


def _best(choices: Choices, floor: LeastSlices, start: Sizing, aim: Aim, effort: Effort) -> tuple[Sizing, int]:
    """The better of the start and what the solver finds, with the solver's bound (0 if it proved nothing)."""
    model = program(choices, floor, aim, start.gpus)
    answer = solve(model, effort, start=np.concatenate([start.instances, start.on]).astype(float))
    proven = answer.bound or 0.0
    bound = math.ceil(proven - _PROGRAM_ROUNDING * max(1.0, proven))
    if answer.values is None:
        return start, bound
    whole = np.rint(answer.values).astype(np.int64)
    found = Sizing(*np.split(whole, [len(choices.options)]))
    # A solver keeps to its rows within a tolerance: an answer counts once it is checked in whole numbers.
    return (found if choices.holds(found.instances, found.on) else start), bound
