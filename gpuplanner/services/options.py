"""What can be chosen from: the best setting of every service on every instance size, and layouts for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.errors import GeometryError, InfeasiblePlanError, ScenarioError, examples, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.profile import MigProfile
from gpuplanner.hardware.enumerate import pareto_counts
from gpuplanner.planner.contract.problem import Counts
from gpuplanner.services.demands import ServiceDemand
from gpuplanner.sizing.profile_sizes import smallest_of_compute

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

    - ``board``: Board of every GPU.
    - ``options``: By service, smallest instance first.
    - ``layouts``: Instances of one GPU; every way to cut it is part of one of them.
    - ``rate_per_s``: Requests of each service [1/s].
    """

    board: GpuModel
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
    profiles: pl.DataFrame, demands: Mapping[str, ServiceDemand], board: GpuModel, latency_share: float
) -> Choices:
    """Keep the best setting of each service and size that answers in time.

    Only throughput and the size of the instance matter to a plan, so the setting with the most throughput
    replaces all others that answer in time; of equals the quickest, then that with fewest processes.
    """
    of_size = smallest_of_compute(board)
    if strange := sorted(set(profiles["compute_slices"].to_list()) - set(of_size)):
        text = message(
            f"service profiles on {board.name}",
            f"instances of {', '.join(map(str, of_size))} compute slices",
            examples(strange),
            "Give the board on which they were measured.",
        )
        raise GeometryError(text)
    allowed_s = [demand.latency_ms / 1000 * latency_share for demand in demands.values()]
    asked = pl.DataFrame({"service": list(demands), "allowed_s": allowed_s}, schema=_ASKED)
    ran = profiles.filter(pl.col("throughput_per_s") > 0).join(asked, on="service")
    in_time = ran.filter(pl.col("latency_s") <= pl.col("allowed_s") * (1 + _RATE_ROUNDING)).drop("allowed_s")
    _refuse_the_slow(ran, in_time, demands, latency_share)
    order = ["service", "compute_slices", "throughput_per_s", "latency_s", "processes", "batch"]
    best = in_time.sort(order, descending=[name == "throughput_per_s" for name in order]).unique(
        ["service", "compute_slices"], keep="first", maintain_order=True
    )
    options = tuple(
        InstanceOption(row.pop("service"), of_size[row.pop("compute_slices")], **row)
        for row in best.to_dicts()
    )
    names = sorted({option.profile.name for option in options})
    rates = {name: demand.rate_per_s for name, demand in demands.items()}
    layouts = tuple(pareto_counts(board, names)) if names else ()
    return Choices(board, options, layouts, rates)


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
    board = choices.board
    gpus = max(-(-slices // board.compute_slices), -(-sum(memory.values()) // board.memory_slices))
    if gpus > MAX_GPUS:
        text = message(
            "rates",
            f"a demand for at most {MAX_GPUS} GPUs",
            f"one for at least {gpus}",
            "Are the rates in requests per second?",
        )
        raise ScenarioError(text)
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
    text = message(
        "services",
        "a measured setting of each that answers in time",
        f"none for {len(late)} of {len(demands)}: {examples(faults)}",
        f"Relax the latency limit, raise latency_share (now {latency_share:g}), or measure smaller batches.",
    )
    raise InfeasiblePlanError(text)
