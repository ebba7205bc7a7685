"""Limits of a fleet, prices of node states, and problems as plain values.

Batch systems such as Kueue and Slurm decide by quota which work may ask for GPUs at all; only then does placement
begin. A plan that traded one tenant's quota for a cheaper layout would be one that they refuse.

A GPU is *used* with a layout, or *parked*: idle, with the layout it has. The states and the ways between them are a
star: a used GPU is emptied and then parked, a parked one takes work again, gives its layout up or takes another
one, and those that are cut and those that are not lie on two sides of a change of MIG mode. On a tree the cheapest
way from some counts to others sends over each edge just what one side has too much, so that with u GPUs used and h
GPUs used or parked, layout by layout, a transition costs

    sum of drain (u - u')+ + wake (u' - u)+ + strip (h - h')+ + dress (h' - h)+  +  mode |m' - m|,

m being the GPUs that are cut, whatever GPU does what; and the node reboots that a board asks for with its mode.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.errors import GeometryError, ScenarioError, examples
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.serialization import LARGEST
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.hardware.gpu_models import RESOURCES, GpuModel, load_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, Seconds

T = TypeVar("T")

_TIMES = ("change_s", "instance_s", "reboot_s", "restart_s", "drain_s")
_KINDS = {str, int, float, NoneType}


def to_plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Whatever a problem or a plan holds; a field that a file need not have stands there with its value.

    Examples
    --------
    >>> to_plain(load_gpu_model("A30"))
    {'name': 'A30-24GB'}
    >>> from gpuplanner.hardware.gpu_models import whole_board
    >>> to_plain(whole_board("T4"))
    {'name': 'T4', 'whole': {'memory_gib': 16.0, 'sms': 40, 'architecture': 'Turing'}}
    >>> to_plain(ChangeCost.of("H100-80GB-SXM5", change_s=90))["change_s"]
    [90.0, 90.0, 90.0, 'as stated']
    """
    match value:
        case GpuModel():
            return _board_to_plain(value)
        case ChangeCost():
            return {"actuator": value.actuator} | {name: to_plain(getattr(value, name)) for name in _TIMES}
        case Seconds():
            return [value.value, value.low, value.high, value.basis]
        case datetime():
            return value.astimezone(UTC).isoformat()
        case float():
            return value + 0.0  # no sign before a zero
        case np.ndarray():
            return (value + 0).tolist()
        case Mapping():
            return {key: to_plain(one) for key, one in value.items()}
        case tuple() | list():
            return [to_plain(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_plain(kind: type[T], values: Mapping[str, Any], what: str, **read: Callable[[Any], object]) -> T:
    """A dataclass from plain values: what has a default may be left out, and what it does not have is refused.

    Fields of text and numbers must be of their kind; `read` says how those are read that JSON has no word for.

    Examples
    --------
    >>> from_plain(Seconds, {"value": 1, "low": 0, "high": "2", "basis": ""}, "times")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: times: expected values of the right kind; got another for 'high'. Fix
    these values.
    """
    if not isinstance(values, Mapping):
        raise ScenarioError(what, "values by name", type(values).__name__, "Write 'key: value' pairs.")
    known = inspect.signature(kind).parameters
    needed = {name for name, one in known.items() if one.default is inspect.Parameter.empty}
    if odd := sorted((set(values) - set(known)) | (needed - set(values))):
        others = ", ".join(sorted(set(known) - needed))
        expected = f"the keys {', '.join(sorted(needed)) or 'none'}, and of {others}"
        raise ScenarioError(what, expected, f"missing or unknown {examples(odd)}", "Fix these keys.")
    hints = typing.get_type_hints(kind.__init__)
    try:
        if wrong := [name for name, value in values.items() if not _fits(value, hints[name])]:
            raise TypeError(f"another for {examples(wrong)}")
        read_in = {name: of(values[name]) for name, of in read.items() if values.get(name) is not None}
        return kind(**{**values, **read_in})
    except (ScenarioError, GeometryError):
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ScenarioError(what, "values of the right kind", str(error), "Fix these values.") from error


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - an annotation
    """Whether a value is nothing where that may be, or of a field of text and numbers; other fields look themselves."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None or not {*kinds} <= _KINDS:
        return value is not None or NoneType in kinds or Any in kinds
    if isinstance(value, int | float):
        return is_number(value) and (float in kinds or (int in kinds and isinstance(value, int)))
    return isinstance(value, str) and str in kinds


def is_number(value: object) -> bool:
    """Whether a value is a finite number of a size to calculate with; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def is_count(value: object, low: int = 0, most: float = LARGEST) -> bool:
    """Whether a value is a whole number of at least, and at most, so many."""
    return isinstance(value, int) and is_number(value) and low <= value <= most


def is_amount(value: object) -> bool:
    """Whether a value is a number that something can cost, or last."""
    return isinstance(value, int | float) and is_number(value) and value >= 0


def grid(values: Any, *kinds: type) -> NDArray[Any]:  # noqa: ANN401 - what a file holds
    """Nested lists of numbers of the given kinds as an array: no text, no true or false, nothing beyond measure.

    Examples
    --------
    >>> grid([[1, 2.5]], int, float)
    array([[1. , 2.5]])
    >>> grid([[1, True]], int)
    Traceback (most recent call last):
        ...
    ValueError: True is no number of the kind that is expected
    """
    given = np.array(values, dtype=object)
    if odd := [one for one in given.flat if type(one) not in kinds or not is_number(one)]:
        raise ValueError(f"{odd[0]!r:.60} is no number of the kind that is expected")
    return given.astype(np.float64 if float in kinds else np.int64)


def texts(names: object) -> tuple[str, ...]:
    """A list of texts as a tuple."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names!r:.60} instead of a list of texts")
    return tuple(names)


def _board_to_plain(gpu_model: GpuModel) -> dict[str, Any]:
    """Name of a board of the catalogue; name and profile rows of any other; name and data of one without profiles."""
    if not gpu_model.profiles:
        of_data_sheet = {name: getattr(gpu_model, name) for name in ("memory_gib", "sms", "architecture")}
        return {"name": gpu_model.name, "whole": of_data_sheet}
    try:
        if load_gpu_model(gpu_model.name) == gpu_model:
            return {"name": gpu_model.name}
    except GeometryError:
        pass
    totals = {
        "gpu_model": gpu_model.name,
        "memory_gib_total": gpu_model.memory_gib,
        "memory_slices_total": gpu_model.memory_slices,
        "compute_slices_total": gpu_model.compute_slices,
        "architecture": gpu_model.architecture,
        "board_sms": gpu_model.sms,
    } | ({} if gpu_model.drain_s is None else {"drain_s": gpu_model.drain_s})
    same = ("compute_slices", "memory_slices", "memory_gib", "max_instances", *RESOURCES)
    rows = []
    for profile in gpu_model.profiles:
        starts = {"profile": profile.name, "placement_starts": ";".join(map(str, profile.starts))}
        rows.append(totals | {name: getattr(profile, name) for name in same} | starts)
    return {"name": gpu_model.name, "rows": rows}


def board_from_plain(values: str | Mapping[str, Any]) -> GpuModel:
    """Read a board that :func:`to_plain` wrote, or that is named."""
    if isinstance(values, str):
        return load_gpu_model(values)
    if (whole := values.get("whole")) is not None:
        return GpuModel(values["name"], memory_slices=1, compute_slices=1, profiles=(), **whole)
    return load_gpu_model(values["name"], rows=values.get("rows"))


def change_from_plain(gpu_model: GpuModel, values: str | Mapping[str, Any]) -> ChangeCost:
    """Read what :func:`to_plain` wrote of a change, or its actuator; what is missing is taken from the catalogue.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> cost = ChangeCost.of("A100-80GB", "nvidia-smi")
    >>> change_from_plain(as_board("A100-80GB"), to_plain(cost)) == cost
    True
    """
    given = {"actuator": values} if isinstance(values, str) else values
    odd = sorted(set(given) - {"actuator", *_TIMES}) if isinstance(given, Mapping) else [repr(given)]
    actuator = "" if odd else given.get("actuator", "mig-manager")
    if odd or not isinstance(actuator, str):
        got = ", ".join(odd) or repr(actuator)
        raise ScenarioError("cost of change", f"actuator, {', '.join(_TIMES)}", got, "Fix these keys.")
    try:
        times = {name: Seconds(*given[name]) for name in _TIMES if given.get(name) is not None}
    except TypeError as error:
        expected = "times as [value, low, high, basis]"
        raise ScenarioError("cost of change", expected, str(error), "Fix the times.") from error
    never = {name for name in _TIMES if name in given and given[name] is None}
    if never - {"reboot_s"}:
        expected = "times, and null for reboot_s alone"
        raise ScenarioError("cost of change", expected, str(dict(given)), "Fix the times.")
    return replace(ChangeCost.of(gpu_model, actuator), **times, **dict.fromkeys(never))  # type: ignore[arg-type]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quota:
    """GPUs that a tenant may hold at once, and with whom it shares what it leaves.

    Parameters
    ----------
    gpus : float
        Nominal quota [GPUs]; an instance counts with its share of a GPU.
    cohort : str, optional
        Tenants of one cohort lend each other what they do not use.
    borrow : float, optional
        Most that may be borrowed on top [GPUs]; all that the cohort leaves if None.
    lend : float, optional
        Most that others may borrow of what it leaves [GPUs]; all of it if None.
    """

    gpus: float
    cohort: str | None = None
    borrow: float | None = None
    lend: float | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of a pool; the defaults limit nothing.

    Parameters
    ----------
    pinned : mapping of str to int
        GPUs that must have a layout in every slot, by layout text: placements that must stay.
    whole_nodes_kept : int
        Nodes, the first ones, on which no GPU is ever cut: NVLink islands for large jobs. Whole racks are
        kept by a multiple of `nodes_per_rack`.
    nodes_per_rack : int
        Nodes in a rack; racks are filled in the order of nodes.
    gpus_on_per_rack : int, optional
        Most GPUs that may be on in a rack at once, from its power limit and the power of a GPU. Where GPUs are
        parked, those that keep a layout count as well, so that each can be woken where it is.
    switches_per_day : int, optional
        Most cuts of one GPU within 24 hours, counted from the first slot.
    change_slots : tuple of int, optional
        Slots at whose beginning counts may change; in all others they are those of the slot before. Windows for
        maintenance, for example.
    node_changes_per_day : int, optional
        Most times that GPUs of one node are cut anew within 24 hours, counted from the first slot.
    most_changes : int, optional
        Most of these times in the whole plan, over all nodes. What is cut before the first slot does not count.
    quotas : mapping of str to Quota
        By tenant. What a tenant asks beyond its quota and what it can borrow is refused before planning, and
        has no price. Tenants without one are not limited.

    Examples
    --------
    >>> limits = Limits(switches_per_day=2, quotas={"ads": Quota(8, cohort="web")})
    >>> limits.of_changes
    True
    """

    pinned: Mapping[str, int] = field(default_factory=dict)
    whole_nodes_kept: int = 0
    nodes_per_rack: int = 1
    gpus_on_per_rack: int | None = None
    switches_per_day: int | None = None
    change_slots: tuple[int, ...] | None = None
    node_changes_per_day: int | None = None
    most_changes: int | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take slots as a tuple."""
        if isinstance(self.change_slots, list):
            object.__setattr__(self, "change_slots", tuple(self.change_slots))

    @property
    def of_changes(self) -> bool:
        """Whether changes are limited in a way that counts of GPUs alone do not show."""
        limits = (self.switches_per_day, self.change_slots, self.node_changes_per_day, self.most_changes)
        return any(limit is not None for limit in limits)


def limit_faults(limits: Limits, tenants: tuple[str, ...]) -> Iterator[str]:
    """Yield, in words, each limit that makes no sense by itself."""
    optional = ("gpus_on_per_rack", "switches_per_day", "node_changes_per_day", "most_changes")
    counts = {"whole_nodes_kept": 0, "nodes_per_rack": 1} | dict.fromkeys(optional, 0)
    for name, low in counts.items():
        value = getattr(limits, name)
        if not (is_count(value, low) or (value is None and name in optional)):
            yield f"{name} must be a whole number of at least {low}, not {value!r}"
    slots = limits.change_slots
    sound = slots is None or (isinstance(slots, tuple) and all(map(is_count, slots)))
    if not sound or len(set(slots or ())) < len(slots or ()):
        yield f"change_slots must be numbers of intervals, each once, not {slots!r}"
    bad = [gpus for gpus in limits.pinned.values() if not is_count(gpus)]
    if bad or "off" in limits.pinned:
        yield f"pinned must count GPUs that are on, not {dict(limits.pinned)}"
    strangers = sorted(set(limits.quotas) - set(tenants))
    if strangers:
        yield f"quotas must name known teams; unknown: {examples(strangers)}"
    for tenant, quota in limits.quotas.items():
        amounts = [quota.gpus, *(one for one in (quota.borrow, quota.lend) if one is not None)]
        if not all(is_amount(amount) for amount in amounts):
            yield f"the quota of {tenant} must be numbers of at least 0, not {quota}"
        elif (quota.borrow, quota.lend) != (None, None) and quota.cohort is None:
            yield f"the quota of {tenant} borrows or lends, but names no cohort to do so in"


def admitted_demand(
    demand: Floats,
    shares: Floats,
    tenants: Sequence[str],
    ranks: Sequence[int],
    quotas: Mapping[str, Quota],
) -> Floats:
    """Demand within quotas.

    In each slot a tenant has its own quota first. What members of its cohort leave of theirs is lent to those
    that ask for more, higher tiers first, and within a tier in proportion to what they lack. What is refused
    is taken from all profiles of the tenant in proportion.

    Examples
    --------
    Three tenants with two GPUs each, one without work; two ask for four GPUs more than they have:

    >>> quotas = {name: Quota(2.0, cohort="lab") for name in "abc"}
    >>> demand = np.array([[[5.0]], [[3.0]], [[0.0]]])
    >>> admitted_demand(demand, np.ones(1), "abc", [0, 0, 0], quotas).ravel().tolist()
    [3.5, 2.5, 0.0]
    >>> admitted_demand(demand, np.ones(1), "abc", [1, 0, 0], quotas).ravel().tolist()
    [3.0, 3.0, 0.0]
    """
    wanted = np.einsum("ips,p->is", demand, shares)
    granted = wanted.copy()
    cohorts: dict[str, list[int]] = {}
    for place, tenant in enumerate(tenants):
        quota = quotas.get(tenant)
        if quota is not None:
            granted[place] = np.minimum(wanted[place], quota.gpus)
            if quota.cohort is not None:
                cohorts.setdefault(quota.cohort, []).append(place)
    for members in cohorts.values():
        own = {i: quotas[tenants[i]] for i in members}
        left = np.zeros(wanted.shape[1])
        for i in members:
            left = left + _capped(own[i].gpus - granted[i], own[i].lend)
        for rank in sorted({ranks[i] for i in members}):
            asking = [i for i in members if ranks[i] == rank]
            lacking = np.array([_capped(wanted[i] - granted[i], own[i].borrow) for i in asking])
            total = lacking.sum(axis=0)
            lent = np.minimum(left, total)
            granted[asking] += lacking * np.divide(lent, total, out=np.zeros_like(total), where=total > 0)
            left = left - lent
    part = np.divide(granted, wanted, out=np.ones_like(wanted), where=wanted > 0)
    admitted: Floats = demand * np.minimum(part, 1.0)[:, None, :]
    return admitted


def _capped(gpus: Floats, most: float | None) -> Floats:
    return gpus if most is None else np.minimum(gpus, most)


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

    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> gpu_model = as_board("A100-40GB")
    >>> prices = StatePrices(drain=0.2, dress=0.1, remaining_h={"1g.5gb": [0.0, 2.0], "gpu": [0.0, 2.0]})
    >>> [round(prices.drain_of(gpu_model, layout), 3) for layout in ("gpu", "1g.5gb:1", "1g.5gb:7", "3g.20gb:2")]
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
        bad = [name for name, times in known.items() if not times or not all(map(is_amount, times))]
        wrong += [f"remaining_h of {name}" for name in bad]
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
        reboot_s = 0.0 if change.reboot_s is None else change.reboot_s.value * gpus_per_node
        known = {
            "dress": change.change_s.value / SECONDS_PER_HOUR,
            "instance": change.instance_s.value / SECONDS_PER_HOUR,
            "reboot": reboot_s / SECONDS_PER_HOUR,
            "drain": change.drain_s.value / SECONDS_PER_HOUR,
            "limit_h": change.drain_s.high / SECONDS_PER_HOUR,
        }
        if change.gpu_hours is not None:
            known |= {"dress": change.gpu_hours, "instance": 0.0, "reboot": 0.0}
        return cls(**{**known, **stated})

    def drain_of(self, gpu_model: GpuModel, layout: str) -> float:
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
            share = count * gpu_model.share(name)
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
    raise ScenarioError("prices of states", "amounts from 0, and times by profile", got, "Fix these amounts.")
