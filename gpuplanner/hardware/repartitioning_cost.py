"""Time and GPU-hours of a layout change by GPU model and actuator."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

from gpuplanner.core.errors import GeometryError, ScenarioError, resolve
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import MADE_BY
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.hardware.catalog import actuator_facts, parameter
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.mig_layouts import Layout, Placement, arrangements, parse_layout, prove

AnyLayout: TypeAlias = str | Mapping[str, int] | Layout
"""A layout as text, as profile counts, or with places."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of one GPU, as :meth:`gpuplanner.hardware.repartitioning_cost.ChangeCost.change` tells it.

    Parameters
    ----------
    actuator : str
        How it is made, one of :data:`gpuplanner.core.scenario_fields.PARTITIONERS`.
    destroyed, created, kept : tuple of Placement
        Instances that go, come and stay. Work on those that stay is not disturbed.
    mode_change : bool
        Whether MIG mode is switched on or off.
    reboot : bool
        Whether the mode change needs a reboot of the node; then all its GPUs are out of service.
    seconds, low_s, high_s : float
        How long the GPU, or with a reboot the node, is out of service [s]: typical, and the range.
    """

    actuator: str
    destroyed: tuple[Placement, ...]
    created: tuple[Placement, ...]
    kept: tuple[Placement, ...]
    mode_change: bool
    reboot: bool
    seconds: float
    low_s: float
    high_s: float

    @property
    def emptied(self) -> int:
        """What must be empty for it: the instances that go, or the GPU itself, where that was not cut.

        Examples
        --------
        >>> cost = ChangeCost.of("H100-80GB-SXM5")
        >>> [cost.change(old, "1g.20gb:4").emptied for old in ("1g.10gb:7", "gpu", "1g.20gb:4")]
        [7, 1, 0]
        """
        return len(self.destroyed) or int(self.mode_change)

    @property
    def operations(self) -> int:
        """Instances that are removed and made: what everybody counts who counts the steps of a change."""
        return len(self.destroyed) + len(self.created)


def instances_changed(
    gpu_model: GpuModel, before: AnyLayout, after: AnyLayout, *, one_by_one: bool
) -> tuple[tuple[Placement, ...], tuple[Placement, ...], tuple[Placement, ...]]:
    """Say which instances go, come and stay.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> gpu_model = as_board("H100-80GB-SXM5")
    >>> parts = instances_changed(gpu_model, "4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3", one_by_one=True)
    >>> [" ".join(map(str, part)) for part in parts]
    ['3g.40gb@4', '1g.10gb@4 1g.10gb@5 1g.10gb@6', '4g.40gb@0']
    """
    old = next(_layouts(gpu_model, before))
    new = max(_layouts(gpu_model, after), key=lambda layout: len(_common(old, layout)))
    if not one_by_one and old.counts == new.counts:
        new = old
    stays = _common(old, new) if one_by_one or old == new else set()
    destroyed, created = (tuple(p for p in layout.placements if p not in stays) for layout in (old, new))
    return destroyed, created, tuple(p for p in old.placements if p in stays)


def _layouts(gpu_model: GpuModel, given: AnyLayout) -> Iterator[Layout]:
    """The layout given, or all arrangements of the counts given; a GPU that is not cut has no instances."""
    if isinstance(given, Layout):
        yield given
        return
    counts = parse_layout(given) if isinstance(given, str) else given
    proof = prove(gpu_model, counts)
    if proof.layout is None:
        where = f"layout of {gpu_model.name}"
        raise GeometryError(where, "one that can be placed", proof.reason, "Fix the layout.")
    yield from arrangements(gpu_model, proof.layout.counts)


def _common(one: Layout, other: Layout) -> set[Placement]:
    return set(one.placements) & set(other.placements)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A typical time with its range [s], and what it rests on."""

    value: float
    low: float
    high: float
    basis: str

    def __post_init__(self) -> None:
        """Check that the times are in order."""
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            text = f"{self.low} to {self.value} to {self.high} ({self.basis})"
            expected = "seconds not below 0, the low, usual and high end in order"
            raise ScenarioError("cost of change or lead time", expected, text, "Fix these times.")

    @classmethod
    def given(cls, value: float) -> Self:
        """Take what somebody stated."""
        return cls(value, value, value, "as stated")

    def stated(self, value: float | None) -> Self:
        """What somebody stated of it; the range goes along.

        Examples
        --------
        >>> Seconds(840.0, 0.0, 3600.0, "assumed").stated(420.0)
        Seconds(value=420.0, low=0.0, high=1800.0, basis='as stated; the range by that of the catalogue')
        """
        if value is None:
            return self
        times = value / self.value
        basis = "as stated; the range by that of the catalogue"
        return replace(self, value=float(value), low=self.low * times, high=self.high * times, basis=basis)

    def plus(self, further: Seconds) -> Self:
        """The same with a further step after it; ends add up, as if both were slow together."""
        if not further.high:
            return self
        value, low, high = self.value + further.value, self.low + further.low, self.high + further.high
        return replace(self, value=value, low=low, high=high, basis=f"{self.basis}; {further.basis}")

    def words(self) -> str:
        """Say it with its range, in minutes; in seconds below one minute.

        Examples
        --------
        >>> Seconds(300.0, 60.0, 900.0, "assumed").words(), Seconds.given(30.0).words()
        ('about 5 min (1 to 15)', '30 s')
        """
        unit, name = (SECONDS_PER_MINUTE, "min") if self.value >= SECONDS_PER_MINUTE else (1, "s")
        value, low, high = (f"{each / unit:.4g}" for each in (self.value, self.low, self.high))
        return f"{value} {name}" if low == high else f"about {value} {name} ({low} to {high})"


@functools.cache
def known_seconds(name: str) -> Seconds:
    """Take a parameter of the catalogue, with its source.

    Examples
    --------
    >>> known_seconds("reconfigure_reboot_s").high
    1200.0
    """
    known = parameter(name)
    return Seconds(known.value, known.low, known.high, f"{known.meaning} ({known.source})")


def minutes(seconds: float) -> str:
    """Print a time in minutes, or in seconds where it is shorter than one.

    Examples
    --------
    >>> minutes(600.0), minutes(1.5)
    ('10 min', '1.5 s')
    """
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.3g} s"
    return f"{seconds / SECONDS_PER_MINUTE:.4g} min"


_RESET_ARCHITECTURES = ("Ampere",)
_ONE_BY_ONE = "nvidia-smi"


_NOTHING = Seconds(0.0, 0.0, 0.0, "nothing")


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """What one change of one GPU costs on a board, by one actuator.

    Made by :meth:`of` from the catalogue. Plan, bound, simulation,
    transition, check, scripts and report all take it, so that they mean the same by a change.

    Parameters
    ----------
    gpu_model : GpuModel
        The board.
    actuator : str
        One of :data:`~gpuplanner.core.scenario_fields.PARTITIONERS`. Through nvidia-smi instances are made one by one,
        and those
        that both layouts have stay. mig-parted and the operator make all instances of a GPU anew.
    change_s : Seconds
        One change of one GPU, whatever changes on it.
    instance_s : Seconds
        On top of it, for each instance made or removed.
    reboot_s : Seconds or None
        Instead of both, where MIG mode changes and the node reboots for it: instances are made meanwhile. None
        where MIG mode needs no reboot.
    restart_s : Seconds
        Loading of a checkpoint, start and warm-up of a job that goes on elsewhere.
    drain_s : Seconds
        GPU time that is lost while a GPU empties, before it can be changed, which a plan pays for: in a simulation it
        comes out of the jobs. Its high end is the longest that a change waits for a GPU to empty, in plan, simulation
        and scripts alike.
    gpu_hours : float or None
        What a plan pays for a change [GPU h], if that is stated; None: what :meth:`plan_gpu_hours` works out.

    Examples
    --------
    >>> for gpu_model in ("A100-80GB", "H100-80GB-SXM5"):
    ...     change = ChangeCost.of(gpu_model).change("gpu", "3g.40gb:2")
    ...     print(change.seconds / 60, change.mode_change, change.reboot)
    10.0 True True
    1.0 True False
    """

    gpu_model: GpuModel
    actuator: str
    change_s: Seconds
    instance_s: Seconds
    reboot_s: Seconds | None
    restart_s: Seconds
    drain_s: Seconds
    gpu_hours: float | None = None

    def __post_init__(self) -> None:
        """Check the stated price."""
        if self.gpu_hours is not None and not 0 <= self.gpu_hours < math.inf:
            raise ScenarioError("cost of change", "gpu_hours from 0", repr(self.gpu_hours), "Fix gpu_hours.")

    @classmethod
    def of(
        cls,
        gpu_model: GpuModel | str,
        actuator: str = "mig-manager",
        *,
        gpu_hours: float | None = None,
        **stated: float,
    ) -> Self:
        """Take the costs of a board and a actuator from the catalogue, and what is stated instead of them.

        Parameters
        ----------
        gpu_model : GpuModel or str
            The board.
        actuator : {"mig-manager", "mig-parted", "nvidia-smi", "dra", "autoscaler", "slurm"}
            Who makes the changes; see :data:`~gpuplanner.core.scenario_fields.MADE_BY`.
        gpu_hours : float, optional
            What a plan pays for a change [GPU h].
        **stated : float
            ``change_s``, ``instance_s``, ``reboot_s`` (on boards that reboot) or ``restart_s`` [s].

        Raises
        ------
        GeometryError
            If the board or the actuator is unknown.
        ScenarioError
            If a time or a price is below 0, or a name is none of these.

        Examples
        --------
        >>> ChangeCost.of("A100-80GB", reboot_s=450).change("gpu", "3g.40gb:2").seconds
        450.0
        """
        model = as_board(gpu_model)
        maker = resolve(actuator, MADE_BY, what="reconfiguration actuator", error=GeometryError)
        way = MADE_BY[maker]
        figure = known_seconds(f"reconfigure_{way.replace('-', '_')}_s")
        one_by_one = way == _ONE_BY_ONE
        reboots = model.architecture in (None, *_RESET_ARCHITECTURES)
        cost = cls(
            gpu_model=model,
            actuator=way,
            change_s=_NOTHING if one_by_one else figure,
            instance_s=figure if one_by_one else _NOTHING,
            reboot_s=known_seconds("reconfigure_reboot_s") if reboots else None,
            restart_s=known_seconds("restart_s"),
            drain_s=drain_time(maker, model),
            gpu_hours=None if gpu_hours is None else float(gpu_hours),
        )
        return cost._with(stated)

    def on(self, gpu_model: GpuModel | str) -> Self:
        """The same, if it was made for this board.

        Raises
        ------
        ScenarioError
            If it was made for another board.
        """
        model = as_board(gpu_model)
        if self.gpu_model != model:
            todo = "Compute it for this GPU model."
            raise ScenarioError("cost of change", f"one for {model.name}", self.gpu_model.name, todo)
        return self

    @property
    def one_by_one(self) -> bool:
        """Whether instances are made and removed one by one, so that those beside them stay in use."""
        return self.actuator == _ONE_BY_ONE

    def change(self, before: AnyLayout, after: AnyLayout) -> Reconfiguration:
        """Say what becomes of a GPU when its layout changes, and how long that takes.

        A GPU that is not needed is left with MIG mode off.

        Parameters
        ----------
        before, after : str, mapping of str to int, or Layout
            Layout text, profile counts, or a layout with places. For text and counts the likeliest places are
            taken, `after` so that most instances of `before` stay.

        Raises
        ------
        GeometryError
            If a layout is impossible, or the cost was made for no board.

        Examples
        --------
        >>> cost = ChangeCost.of("H100-80GB-SXM5", "nvidia-smi")
        >>> change = cost.change("4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3")
        >>> [str(placement) for placement in change.kept], round(change.seconds, 1), change.reboot
        (['4g.40gb@0'], 1.2, False)
        """
        destroyed, created, kept = instances_changed(self.gpu_model, before, after, one_by_one=self.one_by_one)
        # One of the two layouts has no instances: then all of the other's go, or come.
        mode_change = bool(destroyed) != bool(created) and not kept
        changed = len(destroyed) + len(created)
        reboot = mode_change and self.reboot_s is not None
        takes = self._times(changed, mode_change=mode_change)
        return Reconfiguration(
            actuator=self.actuator,
            destroyed=destroyed,
            created=created,
            kept=kept,
            mode_change=mode_change,
            reboot=reboot,
            seconds=takes.value,
            low_s=takes.low,
            high_s=takes.high,
        )

    def seconds(self, before: Mapping[str, int], after: Mapping[str, int]) -> float:
        """Time that an idle GPU, or with a reboot its node, is out of service [s]: that of :meth:`change`.

        Parameters
        ----------
        before, after : mapping of str to int
            Instances of each profile; ``{"gpu": 1}``, or nothing, for a GPU that is not cut.
        """
        old, new = (
            tuple(sorted((name, count) for name, count in held.items() if count and name != WHOLE_GPU))
            for held in (before, after)
        )
        if old == new:
            return 0.0
        changed = sum(count for _, count in old + new)
        if self.one_by_one and old and new:
            changed = _changed_one_by_one(self, old, new)
        return self._times(changed, mode_change=bool(old) != bool(new)).value

    def plan_gpu_hours(self, gpus_per_node: int) -> float:
        """What a plan pays whenever a GPU takes up a layout [GPU h].

        Counted as from a GPU that is not cut to as many instances as the board holds. What is out of service is
        paid for, which is the whole node where it reboots, and so is the time in which the GPU empties.

        Parameters
        ----------
        gpus_per_node : int
            GPUs of a node.

        Examples
        --------
        >>> ChangeCost.of("H100-80GB-SXM5").plan_gpu_hours(8)
        0.25
        >>> round(ChangeCost.of("A100-80GB").plan_gpu_hours(8), 3)
        1.567
        """
        if self.gpu_hours is not None:
            return self.gpu_hours
        most = max((profile.max_instances for profile in self.gpu_model.profiles), default=0)
        reboots = self.reboot_s is not None and bool(self.gpu_model.profiles)
        out_s = self._times(max(most, 1), mode_change=reboots).value * (gpus_per_node if reboots else 1)
        return (out_s + self.drain_s.value) / SECONDS_PER_HOUR

    @property
    def longest_s(self) -> float:
        """The longest that a node is out of service for a change, once it is empty [s]; instances take no time here."""
        return max(self.change_s.value, 0.0 if self.reboot_s is None else self.reboot_s.value)

    def words(self) -> str:
        """Say how long a change takes, with its range.

        Examples
        --------
        >>> ChangeCost.of("H100-80GB-SXM5").words()
        'about 1 min (0.5 to 5) per layout change'
        >>> ChangeCost.of("A100-80GB", reboot_s=600).words()
        'about 1 min (0.5 to 5) per layout change, or 10 min and a reboot of the node where MIG mode changes'
        >>> ChangeCost.of("H100-80GB-SXM5", "nvidia-smi").words()
        'about 0.3 s (0.1 to 1) per MIG instance deleted or created'
        """
        times = {"layout change": self.change_s, "MIG instance deleted or created": self.instance_s}
        parts = [f"{one.words()} per {what}" for what, one in times.items() if one.value]
        text = " and ".join(parts) or "no time per layout change"
        if self.reboot_s is not None:
            text += f", or {self.reboot_s.words()} and a reboot of the node where MIG mode changes"
        return text

    def _with(self, stated: Mapping[str, float]) -> Self:
        """The cost with stated times; a reboot is left out where there is none."""
        odd = sorted(set(stated) - set(_TIMES))
        if odd:
            raise ScenarioError("cost of change", ", ".join(_TIMES), ", ".join(odd), "Name one of these.")
        names = [name for name in stated if name != "reboot_s" or self.reboot_s is not None]
        given: dict[str, Any] = {name: Seconds.given(float(stated[name])) for name in names}
        return replace(self, **given)

    def _times(self, changed: int, *, mode_change: bool) -> Seconds:
        """Typical time, range and basis, of a change that makes and removes so many instances together."""
        if mode_change and self.reboot_s is not None:
            return self.reboot_s
        one, each = self.change_s, self.instance_s
        if not changed:
            return Seconds(0.0, 0.0, 0.0, one.basis)
        basis = each.basis if self.one_by_one and each.value else one.basis
        low, high = one.low + changed * each.low, one.high + changed * each.high
        return Seconds(one.value + changed * each.value, low, high, basis)


_TIMES = tuple(field.name for field in fields(ChangeCost) if field.name.endswith("_s") and field.name != "drain_s")


def drain_time(actuator: str = "mig-manager", gpu_model: GpuModel | None = None) -> Seconds:
    """How long a GPU empties before a change: what that loses, and at the high end the longest that is waited [s].

    From the row of the actuator in the catalogue, of the GPU model where it has its own; a model whose own rows state
    a time has that.

    Examples
    --------
    >>> drain_time().value, drain_time("slurm", as_board("H100-80GB-SXM5")).high
    (840.0, 3600.0)
    """
    fact = actuator_facts(actuator, *known_by(gpu_model))["drain_s"]
    basis = f"{fact.meaning} ({fact.source})"
    known = Seconds(float(fact.value or 0), fact.low or 0.0, fact.high or 0.0, basis)
    return known if gpu_model is None else known.stated(gpu_model.drain_s)


def known_by(gpu_model: GpuModel | None) -> tuple[str | None, ...]:
    """What the catalogue may call a board by: its architecture, and its name."""
    return () if gpu_model is None else (gpu_model.architecture, gpu_model.name)


@functools.lru_cache(maxsize=4096)
def _changed_one_by_one(
    cost: ChangeCost, before: tuple[tuple[str, int], ...], after: tuple[tuple[str, int], ...]
) -> int:
    return cost.change(dict(before), dict(after)).operations


def cost_of_change(scenario: Scenario, gpu_model: GpuModel | str) -> ChangeCost:
    """What a change of layout costs on a board, by the scenario's actuator and with what it states itself.

    Examples
    --------
    >>> cost_of_change(Scenario(change_gpu_hours=2.0), "A100-80GB").plan_gpu_hours(8)
    2.0
    """
    return ChangeCost.of(gpu_model, scenario.actuator, gpu_hours=scenario.change_gpu_hours)
