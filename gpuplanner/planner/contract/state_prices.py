"""What it costs to bring a GPU from one state to another, in pools that park what they do not need.

A GPU is *used* with a layout, or *parked*: idle, with the layout it has. The states and the ways between them are a
star: a used GPU is emptied and then parked, a parked one takes work again, gives its layout up or takes another
one, and those that are cut and those that are not lie on two sides of a change of MIG mode. On a tree the cheapest
way from some counts to others sends over each edge just what one side has too much, so that with u GPUs used and h
GPUs used or parked, layout by layout, a transition costs

    sum of drain (u - u')+ + wake (u' - u)+ + strip (h - h')+ + dress (h' - h)+  +  mode |m' - m|,

m being the GPUs that are cut, whatever GPU does what; and the node reboots that a board asks for with its mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, Self

import numpy as np

from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import parse_layout
from gpuplanner.planner.contract.plain_values import is_amount, refuse
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.units import SECONDS_PER_HOUR


@dataclass(frozen=True)
class StatePrices:
    """Prices of the states of a GPU and of the ways between them [GPU h].

    Parameters
    ----------
    parked_price : float
        Price of an hour of a parked GPU, measured as ``on_price``: that of its power where it is owned, the full
        price where it is rented.
    wake : float
        A parked GPU takes work again.
    dress : float
        A GPU takes up a layout; ``"gpu"`` is one.
    instance : float
        On top, for each instance of a layout that is made or removed.
    mode : float
        MIG mode of a GPU is switched on or off.
    reboot : float
        A node reboots for changes of MIG mode, which are made together where one node can hold them.
    drain : float
        A used GPU is emptied, where `remaining_h` does not say how long its work runs on: ``drain_s`` of the change.
    remaining_h : mapping of str to sequence of float
        By profile: equally likely values of how long running work runs on [h]. A GPU is empty when the longest of
        its instances is; what the others still use meanwhile is not lost.
    limit_h : float, optional
        Longest time that is waited for work to end [h], the high end of ``drain_s``; then it is evicted. None: it is
        waited for.
    evicted_h : float
        What an evicted instance has to do again [h]: half of a checkpoint interval, and the restart.
    basis : str
        Why a parked GPU costs so much, in words.

    Raises
    ------
    ScenarioError
        If a price or time is below 0 or not finite.

    Examples
    --------
    Half of the work ends at once, the other half after two hours:

    >>> from gpuplanner.hardware.gpu import as_board
    >>> board = as_board("A100-40GB")
    >>> prices = StatePrices(drain=0.2, dress=0.1, remaining_h={"1g.5gb": [0.0, 2.0], "gpu": [0.0, 2.0]})
    >>> [round(prices.drain_of(board, layout), 3) for layout in ("gpu", "1g.5gb:1", "1g.5gb:7", "3g.20gb:2")]
    [0.0, 0.857, 0.984, 0.2]
    """

    parked_price: float = 0.0
    wake: float = 0.0
    dress: float = 0.0
    instance: float = 0.0
    mode: float = 0.0
    reboot: float = 0.0
    drain: float = 0.0
    remaining_h: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limit_h: float | None = None
    evicted_h: float = 0.0
    basis: str = ""

    def __post_init__(self) -> None:
        """Check the values, and keep them as plain ones."""
        try:
            known = {str(name): tuple(sorted(times)) for name, times in self.remaining_h.items()}
        except (AttributeError, TypeError, ValueError) as error:
            _refuse(f"remaining_h that is no mapping of times: {error}")
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        wrong = [f"{name} = {value!r}" for name, value in numbers.items() if not is_amount(value)]
        wrong += [f"limit_h = {self.limit_h!r}"] * (self.limit_h is not None and not is_amount(self.limit_h))
        wrong += [
            f"remaining_h of {name}"
            for name, times in known.items()
            if not times or not all(map(is_amount, times))
        ]
        wrong += ["a basis that is no text"] * (not isinstance(self.basis, str))
        if wrong:
            _refuse(", ".join(wrong))
        given = {name: tuple(map(float, times)) for name, times in sorted(known.items())}
        object.__setattr__(self, "remaining_h", given)

    @classmethod
    def of(cls, change: ChangeCost, gpus_per_node: int, **stated: Any) -> Self:  # noqa: ANN401
        """Prices of the ways as the one cost of a change has them; what a drain loses where no run times say so.

        Parameters
        ----------
        change : ChangeCost
            How layouts are changed, and how long that takes. Where it states what a plan pays for a change, that is
            what taking a layout up costs, with all that has to be made or rebooted for it.
        gpus_per_node : int
            GPUs that are out of service when a node reboots.
        **stated
            Any field, instead of that.

        Examples
        --------
        >>> prices = StatePrices.of(ChangeCost.of("A100-80GB"), 8, parked_price=0.1)
        >>> [round(price, 3) for price in (prices.dress, prices.reboot, prices.drain, prices.parked_price)]
        [0.017, 1.333, 0.233, 0.1]
        """
        known = {
            "dress": change.change_s.value / SECONDS_PER_HOUR,
            "instance": change.instance_s.value / SECONDS_PER_HOUR,
            "reboot": 0.0
            if change.reboot_s is None
            else change.reboot_s.value * gpus_per_node / SECONDS_PER_HOUR,
            "drain": change.drain_s.value / SECONDS_PER_HOUR,
            "limit_h": change.drain_s.high / SECONDS_PER_HOUR,
        }
        if change.gpu_hours is not None:
            known |= {"dress": change.gpu_hours, "instance": 0.0, "reboot": 0.0}
        return cls(**{**known, **stated})

    def drain_of(self, board: GpuModel, layout: str) -> float:
        """GPU time that is lost while a GPU with a layout, all of it busy, empties [GPU h].

        The expected longest of the remaining times, each no longer than the limit, less the share of the GPU that
        work still uses meanwhile; and what evicted work has to do again.
        """
        held = parse_layout(layout)
        if not all(name in self.remaining_h for name in held):
            return self.drain
        most = math.inf if self.limit_h is None else self.limit_h
        times = {name: np.minimum(self.remaining_h[name], most) for name in held}
        ends = np.unique(np.concatenate([[0.0], *times.values()]))
        done = np.ones(len(ends))
        used = evicted = 0.0
        for name, count in held.items():
            share = count * board.share(name)
            done *= (np.searchsorted(times[name], ends, side="right") / len(times[name])) ** count
            used += share * float(times[name].mean())
            evicted += share * float((np.array(self.remaining_h[name]) > most).mean())
        longest = float(((1 - done[:-1]) * np.diff(ends)).sum())
        # Rounded, so that layouts which lose the same are told apart by nothing.
        return round(max(0.0, longest - used) + evicted * self.evicted_h, 12)

    def dress_of(self, layout: str) -> float:
        """Price of taking a layout up."""
        return self.dress + self.strip_of(layout)

    def strip_of(self, layout: str) -> float:
        """Price of giving a layout up."""
        return self.instance * sum(n for name, n in parse_layout(layout).items() if name != WHOLE_GPU)


_NUMBERS = tuple(f.name for f in fields(StatePrices) if f.name not in ("remaining_h", "limit_h", "basis"))


def _refuse(got: str) -> NoReturn:
    refuse("prices of states", "amounts of at least 0, and times by profile", got, "Mend them.")
