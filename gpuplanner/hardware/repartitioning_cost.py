"""Time and GPU-hours of a MIG layout change, by GPU model and actuator."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

from gpuplanner.core.errors import GeometryError, ScenarioError, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.hardware.catalog import find_parameter, list_actuator_facts
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import Layout, Placement, iterate_arrangements, parse_layout, prove

AnyLayout: TypeAlias = str | Mapping[str, int] | Layout
"""A MIG layout in any form: text such as ``3g.20gb:2``, profile counts, or instances with placements."""


@dataclass(frozen=True, slots=True)
class GpuLayoutChange:
    """One layout change of one GPU, returned by :meth:`ChangeCost.change`.

    Parameters
    ----------
    actuator : str
        Partitioner that makes it, one of :data:`gpuplanner.core.setting_rules_and_controls.MIG_PARTITIONERS`.
    destroyed, created, kept : tuple of Placement
        Instances that are deleted, created and kept. Jobs on kept instances continue.
    mode_change : bool
        Whether MIG mode is enabled or disabled.
    reboot : bool
        Whether the mode change needs a reboot of the node, which takes all its GPUs out of service.
    seconds, low_s, high_s : float
        Time that the GPU, or with a reboot the node, is out of service: typical, and the range. [s]
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
    def drained_units(self) -> int:
        """Number of instances that must be drained first: the deleted ones; 1, the full GPU, if MIG was disabled.

        Examples
        --------
        >>> cost = ChangeCost.from_catalogue("H100-80GB-SXM5")
        >>> [cost.change(old, "1g.20gb:4").drained_units for old in ("1g.10gb:7", "gpu", "1g.20gb:4")]
        [7, 1, 0]
        """
        return len(self.destroyed) or int(self.mode_change)

    @property
    def operations(self) -> int:
        """Number of instances deleted and created."""
        return len(self.destroyed) + len(self.created)


def compare_instances(
    gpu_model: GpuModel, before: AnyLayout, after: AnyLayout, *, one_by_one: bool
) -> tuple[tuple[Placement, ...], tuple[Placement, ...], tuple[Placement, ...]]:
    """Determine the instances that a layout change deletes, creates and keeps.

    Parameters
    ----------
    gpu_model : GpuModel
        The GPU model.
    before, after : str, mapping of str to int, or Layout
        Layout text, profile counts, or a layout with placements.
    one_by_one : bool
        Whether instances are changed one by one, so that common instances are kept.

    Returns
    -------
    tuple of tuple of Placement
        Deleted, created and kept instances.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> gpu_model = as_gpu_model("H100-80GB-SXM5")
    >>> parts = compare_instances(gpu_model, "4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3", one_by_one=True)
    >>> [" ".join(map(str, part)) for part in parts]
    ['3g.40gb@4', '1g.10gb@4 1g.10gb@5 1g.10gb@6', '4g.40gb@0']
    """
    old = next(_iterate_layouts(gpu_model, before))
    new = max(_iterate_layouts(gpu_model, after), key=lambda layout: len(_common_placements(old, layout)))
    if not one_by_one and old.counts == new.counts:
        new = old
    common = _common_placements(old, new) if one_by_one or old == new else set()
    destroyed, created = (tuple(p for p in layout.placements if p not in common) for layout in (old, new))
    return destroyed, created, tuple(p for p in old.placements if p in common)


def _iterate_layouts(gpu_model: GpuModel, layout: AnyLayout) -> Iterator[Layout]:
    """Yield the given layout, or all placements of the given profile counts; a full GPU has no instances."""
    if isinstance(layout, Layout):
        yield layout
        return
    counts = parse_layout(layout) if isinstance(layout, str) else layout
    proof = prove(gpu_model, counts)
    if proof.layout is None:
        raise GeometryError(f"layout of {gpu_model.name}", "one that can be placed", proof.reason, "Fix the layout.")
    yield from iterate_arrangements(gpu_model, proof.layout.counts)


def _common_placements(first_layout: Layout, second_layout: Layout) -> set[Placement]:
    """Return the placements that two layouts have in common."""
    return set(first_layout.placements) & set(second_layout.placements)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A duration with its low and high end [s], and ``basis``: the text that says where they come from."""

    value: float
    low: float
    high: float
    basis: str

    def __post_init__(self) -> None:
        """Check that low end, typical time and high end are in order."""
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            text = f"{self.low} to {self.value} to {self.high} ({self.basis})"
            expected = "seconds not below 0, the low, usual and high end in order"
            raise ScenarioError("cost of change or lead time", expected, text, "Fix these times.")

    @classmethod
    def exact(cls, value: float) -> Self:
        """Make the range of a time that the user states [s]: low and high end are equal to it."""
        return cls(value, value, value, "as stated")

    def scaled_to(self, value: float | None) -> Self:
        """Return the time with a stated value [s], its range in proportion; unchanged for None.

        Examples
        --------
        >>> TimeRange(840.0, 0.0, 3600.0, "assumed").scaled_to(420.0)
        TimeRange(value=420.0, low=0.0, high=1800.0, basis='as stated; the range by that of the catalog')
        """
        if value is None:
            return self
        factor = value / self.value
        basis = "as stated; the range by that of the catalog"
        return replace(self, value=float(value), low=self.low * factor, high=self.high * factor, basis=basis)

    def followed_by(self, further_range: TimeRange) -> Self:
        """Return the time of this step and a further one; low and high ends add up, as if both were slow together."""
        if not further_range.high:
            return self
        return replace(
            self,
            value=self.value + further_range.value,
            low=self.low + further_range.low,
            high=self.high + further_range.high,
            basis=f"{self.basis}; {further_range.basis}",
        )

    def describe_time(self) -> str:
        """Format the time with its range, in minutes; in seconds below one minute.

        Examples
        --------
        >>> TimeRange(300.0, 60.0, 900.0, "assumed").describe_time(), TimeRange.exact(30.0).describe_time()
        ('about 5 min (1 to 15)', '30 s')
        """
        unit, unit_name = (SECONDS_PER_MINUTE, "min") if self.value >= SECONDS_PER_MINUTE else (1, "s")
        value, low, high = (f"{time_s / unit:.4g}" for time_s in (self.value, self.low, self.high))
        return f"{value} {unit_name}" if low == high else f"about {value} {unit_name} ({low} to {high})"


@functools.cache
def find_time_parameter(name: str) -> TimeRange:
    """Find a duration in the catalogue's table ``parameters``, such as ``reconfigure_reboot_s``, as a range [s].

    Examples
    --------
    >>> find_time_parameter("reconfigure_reboot_s").high
    1200.0
    """
    parameter = find_parameter(name)
    return TimeRange(parameter.value, parameter.low, parameter.high, f"{parameter.meaning} ({parameter.source})")


_MIG_MODE_REBOOT_ARCHITECTURES = ("Ampere",)
"""Architectures whose nodes reboot when MIG mode changes."""
_ONE_BY_ONE_PARTITIONER = "nvidia-smi"
"""Actuator that deletes and creates the MIG instances of a GPU one by one, so that the others stay in use."""


_ZERO_TIME = TimeRange(0.0, 0.0, 0.0, "nothing")
"""Time of a step that a layout change does not need: 0 s."""


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """Time and GPU-hours that one MIG layout change of one GPU costs, by GPU model and actuator.

    Made by :meth:`from_catalogue`. Plan, bound, simulation, transition, check, scripts and report all use it, so that
    they agree on the cost of a change.

    Parameters
    ----------
    gpu_model : GpuModel
        The GPU model.
    actuator : str
        One of :data:`~gpuplanner.core.setting_rules_and_controls.MIG_PARTITIONERS`. nvidia-smi changes instances one
        by one and keeps those that both layouts have; mig-parted and the GPU Operator create all instances of a GPU
        again.
    change_s : TimeRange
        Time of one change of one GPU, whatever changes on it.
    instance_s : TimeRange
        Additional time for each instance created or deleted.
    reboot_s : TimeRange or None
        Time instead of both where a change of MIG mode reboots the node, including the instances; None if MIG mode
        needs no reboot.
    restart_s : TimeRange
        Time to load a checkpoint, start and warm up a job that was moved to another GPU.
    drain_s : TimeRange
        GPU time lost while a GPU drains before a change, which a plan pays for; in a simulation it results from the
        jobs. Its high end is the longest time that a change waits for a GPU to drain, in plan, simulation and scripts
        alike.
    gpu_hours : float or None
        Stated cost of a change in a plan; None: that of :meth:`plan_gpu_hours`. [GPU h]

    Examples
    --------
    >>> for gpu_model in ("A100-80GB", "H100-80GB-SXM5"):
    ...     change = ChangeCost.from_catalogue(gpu_model).change("gpu", "3g.40gb:2")
    ...     print(change.seconds / 60, change.mode_change, change.reboot)
    10.0 True True
    1.0 True False
    """

    gpu_model: GpuModel
    actuator: str
    change_s: TimeRange
    instance_s: TimeRange
    reboot_s: TimeRange | None
    restart_s: TimeRange
    drain_s: TimeRange
    gpu_hours: float | None = None

    def __post_init__(self) -> None:
        """Check that the stated cost of a change [GPU h] is not below 0."""
        if self.gpu_hours is not None and not 0 <= self.gpu_hours < math.inf:
            raise ScenarioError("cost of change", "gpu_hours from 0", repr(self.gpu_hours), "Fix gpu_hours.")

    @classmethod
    def from_catalogue(
        cls,
        gpu_model: GpuModel | str,
        actuator: str = "mig-manager",
        *,
        gpu_hours: float | None = None,
        **stated: float,
    ) -> Self:
        """Find the cost for a GPU model and actuator in the catalogue; values that are stated replace its own.

        Parameters
        ----------
        gpu_model : GpuModel or str
            The GPU model.
        actuator : {"mig-manager", "mig-parted", "nvidia-smi", "dra", "autoscaler", "slurm"}
            Actuator of the cluster; see :data:`~gpuplanner.core.setting_rules_and_controls.PARTITIONER_BY_ACTUATOR`.
        gpu_hours : float, optional
            Stated cost of a change in a plan. [GPU h]
        **stated : float
            ``change_s``, ``instance_s``, ``reboot_s`` (used on models that reboot) or ``restart_s``. [s]

        Raises
        ------
        GeometryError
            If the model or the actuator is unknown.
        ScenarioError
            If a time or cost is below 0, or a name is none of these.

        Examples
        --------
        >>> ChangeCost.from_catalogue("A100-80GB", reboot_s=450).change("gpu", "3g.40gb:2").seconds
        450.0
        """
        model = as_gpu_model(gpu_model)
        full_name = resolve_name(
            actuator, PARTITIONER_BY_ACTUATOR, subject="reconfiguration actuator", error=GeometryError
        )
        partitioner = PARTITIONER_BY_ACTUATOR[full_name]
        partitioner_time = find_time_parameter(f"reconfigure_{partitioner.replace('-', '_')}_s")
        one_by_one = partitioner == _ONE_BY_ONE_PARTITIONER
        reboots = model.architecture in (None, *_MIG_MODE_REBOOT_ARCHITECTURES)
        cost = cls(
            gpu_model=model,
            actuator=partitioner,
            change_s=_ZERO_TIME if one_by_one else partitioner_time,
            instance_s=partitioner_time if one_by_one else _ZERO_TIME,
            reboot_s=find_time_parameter("reconfigure_reboot_s") if reboots else None,
            restart_s=find_time_parameter("restart_s"),
            drain_s=find_drain_time(full_name, model),
            gpu_hours=None if gpu_hours is None else float(gpu_hours),
        )
        return cost._with_stated_times(stated)

    def require_model(self, gpu_model: GpuModel | str) -> Self:
        """Return the cost itself if it is for this GPU model.

        Raises
        ------
        ScenarioError
            If it is for another model.
        """
        model = as_gpu_model(gpu_model)
        if self.gpu_model != model:
            todo = "Compute it for this GPU model."
            raise ScenarioError("cost of change", f"one for {model.name}", self.gpu_model.name, todo)
        return self

    @property
    def one_by_one(self) -> bool:
        """Whether instances are changed one by one, so that the other instances stay in use."""
        return self.actuator == _ONE_BY_ONE_PARTITIONER

    def change(self, before: AnyLayout, after: AnyLayout) -> GpuLayoutChange:
        """Determine which instances a change between two layouts deletes, creates and keeps, and its time [s].

        A GPU that is not needed has MIG disabled.

        Parameters
        ----------
        before, after : str, mapping of str to int, or Layout
            Layout text, profile counts, or a layout with placements. Text and counts get the likeliest placements;
            those of `after` keep as many instances of `before` as possible.

        Raises
        ------
        GeometryError
            If a layout is infeasible.

        Examples
        --------
        >>> cost = ChangeCost.from_catalogue("H100-80GB-SXM5", "nvidia-smi")
        >>> change = cost.change("4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3")
        >>> [str(placement) for placement in change.kept], round(change.seconds, 1), change.reboot
        (['4g.40gb@0'], 1.2, False)
        """
        destroyed, created, kept = compare_instances(self.gpu_model, before, after, one_by_one=self.one_by_one)
        # MIG mode changes if exactly one of the two layouts has instances.
        mode_change = bool(destroyed) != bool(created) and not kept
        changed = len(destroyed) + len(created)
        reboot = mode_change and self.reboot_s is not None
        takes = self._change_time(changed, mode_change=mode_change)
        return GpuLayoutChange(
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
        """Return the time that an idle GPU, or with a reboot its node, is out of service [s], as :meth:`change` does.

        Parameters
        ----------
        before, after : mapping of str to int
            Number of instances by profile; ``{"gpu": 1}``, or nothing, for a full GPU.
        """
        old, new = (
            tuple(sorted((name, count) for name, count in counts.items() if count and name != FULL_GPU))
            for counts in (before, after)
        )
        if old == new:
            return 0.0
        changed = sum(count for _, count in old + new)
        if self.one_by_one and old and new:
            changed = _count_operations(self, old, new)
        return self._change_time(changed, mode_change=bool(old) != bool(new)).value

    def plan_gpu_hours(self, gpus_per_node: int) -> float:
        """Return the cost of a layout change in a plan [GPU h].

        It is the change from a full GPU to as many instances as it can hold. It counts the GPUs out of service, which
        are all of the node if it reboots, and the drain time of the GPU.

        Parameters
        ----------
        gpus_per_node : int
            GPUs of a node.

        Examples
        --------
        >>> ChangeCost.from_catalogue("H100-80GB-SXM5").plan_gpu_hours(8)
        0.25
        >>> round(ChangeCost.from_catalogue("A100-80GB").plan_gpu_hours(8), 3)
        1.567
        """
        if self.gpu_hours is not None:
            return self.gpu_hours
        max_instances = max((profile.max_instances for profile in self.gpu_model.profiles), default=0)
        reboots = self.reboot_s is not None and bool(self.gpu_model.profiles)
        out_s = self._change_time(max(max_instances, 1), mode_change=reboots).value * (gpus_per_node if reboots else 1)
        return (out_s + self.drain_s.value) / SECONDS_PER_HOUR

    @property
    def longest_s(self) -> float:
        """Longest time that a drained node is out of service for a change [s], without that of single instances."""
        return max(self.change_s.value, 0.0 if self.reboot_s is None else self.reboot_s.value)

    def describe_time(self) -> str:
        """Describe the time of a change with its range.

        Examples
        --------
        >>> ChangeCost.from_catalogue("H100-80GB-SXM5").describe_time()
        'about 1 min (0.5 to 5) per layout change'
        >>> ChangeCost.from_catalogue("A100-80GB", reboot_s=600).describe_time()
        'about 1 min (0.5 to 5) per layout change, or 10 min and a reboot of the node where MIG mode changes'
        >>> ChangeCost.from_catalogue("H100-80GB-SXM5", "nvidia-smi").describe_time()
        'about 0.3 s (0.1 to 1) per MIG instance deleted or created'
        """
        times = {"layout change": self.change_s, "MIG instance deleted or created": self.instance_s}
        parts = [f"{time.describe_time()} per {operation}" for operation, time in times.items() if time.value]
        text = " and ".join(parts) or "no time per layout change"
        if self.reboot_s is not None:
            text += f", or {self.reboot_s.describe_time()} and a reboot of the node where MIG mode changes"
        return text

    def _with_stated_times(self, stated: Mapping[str, float]) -> Self:
        """Return the cost with stated times [s], by field; ``reboot_s`` is ignored for models that do not reboot."""
        unknown = sorted(set(stated) - set(_STATED_TIME_FIELDS))
        if unknown:
            expected, got = ", ".join(_STATED_TIME_FIELDS), ", ".join(unknown)
            raise ScenarioError("cost of change", expected, got, "Name one of these.")
        names = [name for name in stated if name != "reboot_s" or self.reboot_s is not None]
        replaced: dict[str, Any] = {name: TimeRange.exact(float(stated[name])) for name in names}
        return replace(self, **replaced)

    def _change_time(self, changed: int, *, mode_change: bool) -> TimeRange:
        """Return the time of a change that creates and deletes `changed` instances of one GPU together."""
        if mode_change and self.reboot_s is not None:
            return self.reboot_s
        change_time, instance_time = self.change_s, self.instance_s
        if not changed:
            return TimeRange(0.0, 0.0, 0.0, change_time.basis)
        basis = instance_time.basis if self.one_by_one and instance_time.value else change_time.basis
        low, high = change_time.low + changed * instance_time.low, change_time.high + changed * instance_time.high
        return TimeRange(change_time.value + changed * instance_time.value, low, high, basis)


_STATED_TIME_FIELDS = tuple(
    field.name for field in fields(ChangeCost) if field.name.endswith("_s") and field.name != "drain_s"
)
"""Fields of :class:`ChangeCost` whose times a user can state instead of those of the catalogue."""


def find_drain_time(actuator: str = "mig-manager", gpu_model: GpuModel | None = None) -> TimeRange:
    """Find the time that a GPU takes to drain before a change; its high end is the longest wait for it [s].

    It is that of the actuator in the catalogue, by GPU model where the table distinguishes them, unless the GPU model
    was loaded from a user's profile table that states ``drain_s``.

    Examples
    --------
    >>> find_drain_time().value, find_drain_time("slurm", as_gpu_model("H100-80GB-SXM5")).high
    (840.0, 3600.0)
    """
    fact = list_actuator_facts(actuator, *model_names_in_actuator_facts(gpu_model))["drain_s"]
    basis = f"{fact.meaning} ({fact.source})"
    catalogue_time = TimeRange(float(fact.value or 0), fact.low or 0.0, fact.high or 0.0, basis)
    return catalogue_time if gpu_model is None else catalogue_time.scaled_to(gpu_model.drain_s)


def model_names_in_actuator_facts(gpu_model: GpuModel | None) -> tuple[str | None, ...]:
    """Return the names for which the catalogue lists actuator facts of a GPU model: architecture and model."""
    return () if gpu_model is None else (gpu_model.architecture, gpu_model.name)


@functools.lru_cache(maxsize=4096)
def _count_operations(cost: ChangeCost, before: tuple[tuple[str, int], ...], after: tuple[tuple[str, int], ...]) -> int:
    """Count the instances that a one-by-one change deletes and creates; cached."""
    return cost.change(dict(before), dict(after)).operations


def find_change_cost(scenario: Scenario, gpu_model: GpuModel | str) -> ChangeCost:
    """Find the cost of a layout change for a scenario's actuator, with the values that the scenario states.

    Examples
    --------
    >>> find_change_cost(Scenario(change_gpu_hours=2.0), "A100-80GB").plan_gpu_hours(8)
    2.0
    """
    return ChangeCost.from_catalogue(gpu_model, scenario.actuator, gpu_hours=scenario.change_gpu_hours)
