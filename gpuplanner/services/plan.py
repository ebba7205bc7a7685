"""A plan of services: which instances serve whom, on which GPU, and how few could do."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import format_layout
from gpuplanner.services.first_fit import Sizing
from gpuplanner.services.options import Choices


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
    board : GpuModel
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

    board: GpuModel
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
        return f"<ServicePlan: {self.gpus} {self.board.name}, {self.slices} compute slices ({state})>"

    @property
    def proven(self) -> bool:
        """Whether no plan needs fewer GPUs, and none with so few takes fewer slices."""
        return self.gpus == self.bound and self.slices == self.slices_bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [asdict(segment) | {"instances": segment.instances} for segment in self.segments]
        names = ("gpus", "bound", "slices", "slices_bound", "proven", "seconds")
        return {name: getattr(self, name) for name in names} | {
            "board": self.board.name,
            "latency_share": self.latency_share,
            "segments": rows,
            "layouts": list(self.layouts),
        }


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
        segments.append(
            Segment(
                service=option.service,
                profile=option.profile.name,
                compute_slices=option.profile.compute_slices,
                batch=option.batch,
                processes=option.processes,
                throughput_per_s=option.throughput_per_s,
                latency_ms=1000 * option.latency_s,
                gpus=tuple(numbers[gpu] for gpu in gpus),
            )
        )
    return tuple(segments), tuple(map(format_layout, held))
