"""Limits of a fleet, prices of GPU states, and conversion of problems to plain values.

Batch systems such as Kueue and Slurm admit work by quota before they place it. A plan that exchanged one team's quota
for a cheaper layout would be rejected by them.

A GPU is *busy* with a layout, or *idle* and powered on with the layout that it has. States and transitions form a
tree: a busy GPU drains and is then idle; an idle GPU takes work again, loses its layout or takes another one;
partitioned and full GPUs lie on two sides of a change of MIG mode. On a tree the cheapest transport sends over each
edge exactly the surplus of one side, so that with u busy GPUs and h GPUs with a layout (busy or idle), layout by
layout, a transition costs

    sum of drain (u - u')+ + wake (u' - u)+ + strip (h - h')+ + dress (h' - h)+  +  mode |m' - m|,

m being the partitioned GPUs; and the node reboots that a GPU model needs for a change of MIG mode.
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
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import MAX_JSON_NUMBER
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.hardware.gpu_models import LABEL_BY_RESOURCE, GpuModel, load_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, TimeRange

T = TypeVar("T")
"""Dataclass that :func:`from_plain` builds."""

_CHANGE_TIME_FIELDS = ("change_s", "instance_s", "reboot_s", "restart_s", "drain_s")
"""Fields of a :class:`ChangeCost` with a time range; also their keys in JSON."""
_JSON_SCALAR_TYPES = {str, int, float, NoneType}
"""Types of fields that JSON holds as they are."""


def to_plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Convert a problem, a plan or a part of one to plain values for JSON; optional fields are written too.

    Examples
    --------
    >>> to_plain(load_gpu_model("A30"))
    {'name': 'A30-24GB'}
    >>> from gpuplanner.hardware.gpu_models import make_non_mig_model
    >>> to_plain(make_non_mig_model("T4"))
    {'name': 'T4', 'whole': {'memory_gib': 15.68, 'sms': 40, 'architecture': 'Turing'}}
    >>> to_plain(ChangeCost.from_catalogue("H100-80GB-SXM5", change_s=90))["change_s"]
    [90.0, 90.0, 90.0, 'as stated']
    """
    match value:
        case GpuModel():
            return _gpu_model_to_plain(value)
        case ChangeCost():
            return {"actuator": value.actuator} | {name: to_plain(getattr(value, name)) for name in _CHANGE_TIME_FIELDS}
        case TimeRange():
            return [value.value, value.low, value.high, value.basis]
        case datetime():
            return value.astimezone(UTC).isoformat()
        case float():
            return value + 0.0  # -0.0 becomes 0.0
        case np.ndarray():
            return (value + 0).tolist()
        case Mapping():
            return {key: to_plain(item) for key, item in value.items()}
        case tuple() | list():
            return [to_plain(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_plain(result_type: type[T], values: Mapping[str, Any], label: str, **read: Callable[[Any], object]) -> T:
    """Build a dataclass from plain values: fields with a default may be missing, unknown fields are rejected.

    Parameters
    ----------
    result_type : type
        The dataclass.
    values : mapping of str to object
        Values by field name. Fields of text and numbers must have their type.
    label : str
        Subject of error messages.
    **read : callable
        By field name: converts a value that JSON has no type for.

    Raises
    ------
    ScenarioError
        If a field is missing, unknown or of the wrong type.

    Examples
    --------
    >>> from_plain(TimeRange, {"value": 1, "low": 0, "high": "2", "basis": ""}, "times")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: times: expected values of the right kind; got another for 'high'. Fix
    these values.
    """
    if not isinstance(values, Mapping):
        raise ScenarioError(label, "values by name", type(values).__name__, "Write 'key: value' pairs.")
    parameters = inspect.signature(result_type).parameters
    required_names = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    if wrong_keys := sorted((set(values) - set(parameters)) | (required_names - set(values))):
        optional_names = ", ".join(sorted(set(parameters) - required_names))
        expected = f"the keys {', '.join(sorted(required_names)) or 'none'}, and of {optional_names}"
        raise ScenarioError(label, expected, f"missing or unknown {examples(wrong_keys)}", "Fix these keys.")
    hints = typing.get_type_hints(result_type.__init__)
    try:
        if wrong := [name for name, value in values.items() if not _matches_annotation(value, hints[name])]:
            raise TypeError(f"another for {examples(wrong)}")
        converted = {
            name: read_field(values[name]) for name, read_field in read.items() if values.get(name) is not None
        }
        return result_type(**{**values, **converted})
    except (ScenarioError, GeometryError):
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ScenarioError(label, "values of the right kind", str(error), "Fix these values.") from error


def _matches_annotation(value: object, annotation: Any) -> bool:  # noqa: ANN401 - an annotation
    """Whether a value matches the type annotation of a field: None where allowed, text, or a number in range.

    Fields of other types check their values themselves.
    """
    types = typing.get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if value is None or not {*types} <= _JSON_SCALAR_TYPES:
        return value is not None or NoneType in types or Any in types
    if isinstance(value, int | float):
        return is_number(value) and (float in types or (int in types and isinstance(value, int)))
    return isinstance(value, str) and str in types


def is_number(value: object) -> bool:
    """Whether a value is a finite number of a size that can be calculated with; booleans are not numbers."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -MAX_JSON_NUMBER <= value <= MAX_JSON_NUMBER
    )


def is_count(value: object, minimum: int = 0, maximum: float = MAX_JSON_NUMBER) -> bool:
    """Whether a value is a whole number within bounds."""
    return isinstance(value, int) and is_number(value) and minimum <= value <= maximum


def is_amount(value: object) -> bool:
    """Whether a value is a number of at least 0."""
    return isinstance(value, int | float) and is_number(value) and value >= 0


MAX_PRICE = 1e6
"""Highest price of a plan problem, on the scale of its other prices: the cost of a plan of the largest fleet stays a
number that its file can hold, and the solvers keep their tolerances."""


def is_price(value: object) -> bool:
    """Whether a value is a number from 0 to :data:`MAX_PRICE`."""
    return is_amount(value) and value <= MAX_PRICE  # type: ignore[operator]


def number_array(values: Any, *number_types: type) -> NDArray[Any]:  # noqa: ANN401 - what a file holds
    """Convert nested lists of numbers to an array; text, booleans and out-of-range numbers raise a ValueError.

    Examples
    --------
    >>> number_array([[1, 2.5]], int, float)
    array([[1. , 2.5]])
    >>> number_array([[1, True]], int)
    Traceback (most recent call last):
        ...
    ValueError: True is no number of the kind that is expected
    """
    numbers = np.array(values, dtype=object)
    if wrong_numbers := [
        number for number in numbers.flat if type(number) not in number_types or not is_number(number)
    ]:
        raise ValueError(f"{wrong_numbers[0]!r:.60} is no number of the kind that is expected")
    return numbers.astype(np.float64 if float in number_types else np.int64)


def text_tuple(names: object) -> tuple[str, ...]:
    """Convert a list of texts to a tuple; anything else raises a ValueError."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names!r:.60} instead of a list of texts")
    return tuple(names)


def _gpu_model_to_plain(gpu_model: GpuModel) -> dict[str, Any]:
    """Describe a GPU model: its name, with profile rows or data-sheet values if the catalogue does not have it."""
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
    shared_columns = ("compute_slices", "memory_slices", "memory_gib", "max_instances", *LABEL_BY_RESOURCE)
    rows = []
    for profile in gpu_model.profiles:
        starts = {"profile": profile.name, "placement_starts": ";".join(map(str, profile.starts))}
        rows.append(totals | {name: getattr(profile, name) for name in shared_columns} | starts)
    return {"name": gpu_model.name, "rows": rows}


def gpu_model_from_plain(values: str | Mapping[str, Any]) -> GpuModel:
    """Read a GPU model that :func:`to_plain` wrote, or a name."""
    if isinstance(values, str):
        return load_gpu_model(values)
    if (whole := values.get("whole")) is not None:
        return GpuModel(values["name"], memory_slices=1, compute_slices=1, profiles=(), **whole)
    return load_gpu_model(values["name"], rows=values.get("rows"))


def change_cost_from_plain(gpu_model: GpuModel, values: str | Mapping[str, Any]) -> ChangeCost:
    """Read a repartitioning cost that :func:`to_plain` wrote, or an actuator name; the catalogue has missing times.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> cost = ChangeCost.from_catalogue("A100-80GB", "nvidia-smi")
    >>> change_cost_from_plain(as_gpu_model("A100-80GB"), to_plain(cost)) == cost
    True
    """
    fields = {"actuator": values} if isinstance(values, str) else values
    wrong_keys = (
        sorted(set(fields) - {"actuator", *_CHANGE_TIME_FIELDS}) if isinstance(fields, Mapping) else [repr(fields)]
    )
    actuator = "" if wrong_keys else fields.get("actuator", "mig-manager")
    if wrong_keys or not isinstance(actuator, str):
        got = ", ".join(wrong_keys) or repr(actuator)
        raise ScenarioError("cost of change", f"actuator, {', '.join(_CHANGE_TIME_FIELDS)}", got, "Fix these keys.")
    try:
        times = {name: TimeRange(*fields[name]) for name in _CHANGE_TIME_FIELDS if fields.get(name) is not None}
    except TypeError as error:
        expected = "times as [value, low, high, basis]"
        raise ScenarioError("cost of change", expected, str(error), "Fix the times.") from error
    absent_times = {name for name in _CHANGE_TIME_FIELDS if name in fields and fields[name] is None}
    if absent_times - {"reboot_s"}:
        expected = "times, and null for reboot_s alone"
        raise ScenarioError("cost of change", expected, str(dict(fields)), "Fix the times.")
    return replace(ChangeCost.from_catalogue(gpu_model, actuator), **times, **dict.fromkeys(absent_times))  # type: ignore[arg-type]


Floats = NDArray[np.float64]
"""Array of floats."""


@dataclass(frozen=True)
class Quota:
    """GPU quota of a tenant, with borrowing and lending within a cohort, as in Kueue.

    Parameters
    ----------
    gpus : float
        Nominal quota; an instance counts with its fraction of a GPU. [GPUs]
    cohort : str, optional
        Tenants of one cohort lend each other unused quota.
    borrow : float, optional
        Borrowing limit above the nominal quota; None: no limit. [GPUs]
    lend : float, optional
        Lending limit of unused quota; None: all of it. [GPUs]
    """

    gpus: float
    cohort: str | None = None
    borrow: float | None = None
    lend: float | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of a pool of GPUs; the defaults limit nothing.

    Parameters
    ----------
    pinned : mapping of str to int
        GPUs that must keep a layout in every interval, by layout text.
    whole_nodes_kept : int
        Nodes, the first ones, whose GPUs always stay full: NVLink domains for large jobs. Whole racks: use a multiple
        of `nodes_per_rack`.
    nodes_per_rack : int
        Nodes in a rack; racks are filled in the order of nodes.
    gpus_on_per_rack : int, optional
        Most GPUs powered on in a rack at once, from its power limit and the power of a GPU. Idle GPUs with a layout
        count as well, so that each can take work where it is. [GPUs]
    switches_per_day : int, optional
        Most layout changes of one GPU within 24 hours, counted from the first interval.
    change_slots : tuple of int, optional
        Intervals at whose start counts may change, such as maintenance windows; all if None.
    node_changes_per_day : int, optional
        Most times that a node is repartitioned within 24 hours, counted from the first interval.
    most_changes : int, optional
        Most node repartitionings in the whole plan. Those before the first interval do not count.
    quotas : mapping of str to Quota
        By tenant. Demand above quota and borrowing limit is rejected before planning and has no price. Tenants without
        a quota are not limited.

    Examples
    --------
    >>> limits = Limits(switches_per_day=2, quotas={"ads": Quota(8, cohort="web")})
    >>> limits.limits_changes
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
        """Convert a list of intervals to a tuple."""
        if isinstance(self.change_slots, list):
            object.__setattr__(self, "change_slots", tuple(self.change_slots))

    @property
    def limits_changes(self) -> bool:
        """Whether layout changes are limited in a way that only numbered GPUs show."""
        limits = (self.switches_per_day, self.change_slots, self.node_changes_per_day, self.most_changes)
        return any(limit is not None for limit in limits)


def find_limit_faults(limits: Limits, tenants: tuple[str, ...]) -> Iterator[str]:
    """Yield a message for each limit that is invalid by itself."""
    optional = ("gpus_on_per_rack", "switches_per_day", "node_changes_per_day", "most_changes")
    counts = {"whole_nodes_kept": 0, "nodes_per_rack": 1} | dict.fromkeys(optional, 0)
    for name, low in counts.items():
        value = getattr(limits, name)
        if not (is_count(value, low) or (value is None and name in optional)):
            yield f"{name} must be a whole number of at least {low}, not {value!r}"
    slots = limits.change_slots
    is_valid = slots is None or (isinstance(slots, tuple) and all(map(is_count, slots)))
    if not is_valid or len(set(slots or ())) < len(slots or ()):
        yield f"change_slots must be numbers of intervals, each once, not {slots!r}"
    bad_counts = [gpus for gpus in limits.pinned.values() if not is_count(gpus)]
    if bad_counts or "off" in limits.pinned:
        yield f"pinned must count GPUs that are on, not {dict(limits.pinned)}"
    unknown_tenants = sorted(set(limits.quotas) - set(tenants))
    if unknown_tenants:
        yield f"quotas must name known teams; unknown: {examples(unknown_tenants)}"
    for tenant, quota in limits.quotas.items():
        amounts = [quota.gpus, *(amount for amount in (quota.borrow, quota.lend) if amount is not None)]
        if not all(is_amount(amount) for amount in amounts):
            yield f"the quota of {tenant} must be numbers of at least 0, not {quota}"
        elif (quota.borrow, quota.lend) != (None, None) and quota.cohort is None:
            yield f"the quota of {tenant} borrows or lends, but names no cohort to do so in"


def apply_quotas(
    demand: Floats, shares: Floats, tenants: Sequence[str], ranks: Sequence[int], quotas: Mapping[str, Quota]
) -> Floats:
    """Return the demand within quotas.

    In each interval a tenant uses its nominal quota first. Unused quota of its cohort is lent to members that request
    more, higher tiers first, and within a tier in proportion to the shortfall. What exceeds that is taken from all
    profiles of the tenant in proportion.

    Parameters
    ----------
    demand : ndarray of float, shape (n_tenants, n_profiles, n_slots)
        Mean concurrent instances.
    shares : ndarray of float, shape (n_profiles,)
        Fraction of a GPU of one instance.
    tenants : sequence of str
        First axis of the demand.
    ranks : sequence of int
        Tier of each tenant, 0 the highest.
    quotas : mapping of str to Quota
        By tenant.

    Examples
    --------
    Three tenants with two GPUs each, one without work; two ask for four GPUs more than they have:

    >>> quotas = {name: Quota(2.0, cohort="lab") for name in "abc"}
    >>> demand = np.array([[[5.0]], [[3.0]], [[0.0]]])
    >>> apply_quotas(demand, np.ones(1), "abc", [0, 0, 0], quotas).ravel().tolist()
    [3.5, 2.5, 0.0]
    >>> apply_quotas(demand, np.ones(1), "abc", [1, 0, 0], quotas).ravel().tolist()
    [3.0, 3.0, 0.0]
    """
    requested = np.einsum("ips,p->is", demand, shares)
    granted = requested.copy()
    cohorts: dict[str, list[int]] = {}
    for position, tenant in enumerate(tenants):
        quota = quotas.get(tenant)
        if quota is not None:
            granted[position] = np.minimum(requested[position], quota.gpus)
            if quota.cohort is not None:
                cohorts.setdefault(quota.cohort, []).append(position)
    for members in cohorts.values():
        member_quotas = {i: quotas[tenants[i]] for i in members}
        unused = np.zeros(requested.shape[1])
        for i in members:
            unused = unused + _cap_gpus(member_quotas[i].gpus - granted[i], member_quotas[i].lend)
        for rank in sorted({ranks[i] for i in members}):
            borrowers = [i for i in members if ranks[i] == rank]
            shortfalls = np.array([_cap_gpus(requested[i] - granted[i], member_quotas[i].borrow) for i in borrowers])
            total = shortfalls.sum(axis=0)
            n_lent = np.minimum(unused, total)
            granted[borrowers] += shortfalls * np.divide(n_lent, total, out=np.zeros_like(total), where=total > 0)
            unused = unused - n_lent
    granted_fraction = np.divide(granted, requested, out=np.ones_like(requested), where=requested > 0)
    admitted: Floats = demand * np.minimum(granted_fraction, 1.0)[:, None, :]
    return admitted


def _cap_gpus(gpus: Floats, max_gpus: float | None) -> Floats:
    """Limit an array of GPUs to a maximum; None: no limit."""
    return gpus if max_gpus is None else np.minimum(gpus, max_gpus)


@dataclass(frozen=True)
class StatePrices:
    """Prices of the states of a GPU (busy, idle, off) and of the transitions between them.

    Parameters
    ----------
    parked_price : float
        Price of an hour of an idle, powered-on GPU, on the scale of ``on_price``: its power where the fleet is owned,
        the full price where it is rented.
    wake : float
        Price at which an idle GPU takes work again. [GPU h]
    dress : float
        Price of taking a layout, the full GPU included. [GPU h]
    instance : float
        Price of creating or removing one instance, on top. [GPU h]
    mode : float
        Price of enabling or disabling MIG mode on a GPU. [GPU h]
    reboot : float
        Price of a node reboot for changes of MIG mode; changes on one node share a reboot. [GPU h]
    drain : float
        Price of draining a busy GPU whose profiles `remaining_h` does not cover. [GPU h]
    remaining_h : mapping of str to sequence of float
        By profile: equally likely remaining run times of running work. A GPU is empty when its last instance is; what
        other instances use meanwhile is not lost. [h]
    limit_h : float, optional
        Longest wait for running work; then it is evicted. None: no limit. [h]
    evicted_h : float
        Work that an evicted instance repeats: half a checkpoint interval, and the restart. [h]
    basis : str
        Source of the price of an idle GPU.

    Raises
    ------
    ScenarioError
        If a price or time is below 0 or not finite.

    Examples
    --------
    Half of the work ends at once, the other half after two hours:

    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> gpu_model = as_gpu_model("A100-40GB")
    >>> prices = StatePrices(drain=0.2, dress=0.1, remaining_h={"1g.5gb": [0.0, 2.0], "gpu": [0.0, 2.0]})
    >>> [round(prices.drain_cost(gpu_model, layout), 3) for layout in ("gpu", "1g.5gb:1", "1g.5gb:7", "3g.20gb:2")]
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
        """Check the values, and convert the remaining run times to sorted tuples."""
        try:
            sorted_times = {str(name): tuple(sorted(times)) for name, times in self.remaining_h.items()}
        except (AttributeError, TypeError, ValueError) as error:
            _raise_price_error(f"remaining_h that is no mapping of times: {error}")
        amounts = {name: getattr(self, name) for name in _STATE_PRICE_AMOUNT_FIELDS}
        wrong = [f"{name} = {value!r}" for name, value in amounts.items() if not is_price(value)]
        wrong += [f"limit_h = {self.limit_h!r}"] * (self.limit_h is not None and not is_amount(self.limit_h))
        bad_profiles = [name for name, times in sorted_times.items() if not times or not all(map(is_amount, times))]
        wrong += [f"remaining_h of {name}" for name in bad_profiles]
        wrong += ["a basis that is no text"] * (not isinstance(self.basis, str))
        if wrong:
            _raise_price_error(", ".join(wrong))
        remaining_h = {name: tuple(map(float, times)) for name, times in sorted(sorted_times.items())}
        object.__setattr__(self, "remaining_h", remaining_h)
        for name, value in amounts.items():  # whole numbers give the same plan, to the byte
            object.__setattr__(self, name, float(value))

    @classmethod
    def from_change_cost(cls, change: ChangeCost, gpus_per_node: int, **stated: Any) -> Self:  # noqa: ANN401
        """Derive the prices of transitions from the cost of repartitioning.

        Parameters
        ----------
        change : ChangeCost
            How layouts are changed, and how long that takes. If it states a price of a change, that is the price of
            taking a layout, with creation of instances and reboots included.
        gpus_per_node : int
            GPUs that are out of service when a node reboots.
        **stated
            Fields with another value.

        Examples
        --------
        >>> prices = StatePrices.from_change_cost(ChangeCost.from_catalogue("A100-80GB"), 8, parked_price=0.1)
        >>> [round(price, 3) for price in (prices.dress, prices.reboot, prices.drain, prices.parked_price)]
        [0.017, 1.333, 0.233, 0.1]
        """
        reboot_s = 0.0 if change.reboot_s is None else change.reboot_s.value * gpus_per_node
        prices = {
            "dress": change.change_s.value / SECONDS_PER_HOUR,
            "instance": change.instance_s.value / SECONDS_PER_HOUR,
            "reboot": reboot_s / SECONDS_PER_HOUR,
            "drain": change.drain_s.value / SECONDS_PER_HOUR,
            "limit_h": change.drain_s.high / SECONDS_PER_HOUR,
        }
        if change.gpu_hours is not None:
            prices |= {"dress": change.gpu_hours, "instance": 0.0, "reboot": 0.0}
        return cls(**{**prices, **stated})

    def drain_cost(self, gpu_model: GpuModel, layout: str) -> float:
        """Return the GPU time lost while a fully busy GPU with a layout drains [GPU h].

        With remaining run times T_i of the instances, each capped at the limit, the GPU is lost for E[max T_i] hours,
        less the fraction of the GPU that running work still uses, sum of share_i * E[T_i]; evicted work repeats
        `evicted_h`. As run times are independent, P(max T_i <= t) is the product of P(T_i <= t).
        """
        instances = parse_layout(layout)
        if not all(name in self.remaining_h for name in instances):
            return self.drain
        max_h = math.inf if self.limit_h is None else self.limit_h
        remaining_h = {name: np.minimum(self.remaining_h[name], max_h) for name in instances}
        end_times_h = np.unique(np.concatenate([[0.0], *remaining_h.values()]))
        ended_probability = np.ones(len(end_times_h))
        used_h = evicted_share = 0.0
        for name, count in instances.items():
            share = count * gpu_model.gpu_fraction(name)
            ended_probability *= (
                np.searchsorted(remaining_h[name], end_times_h, side="right") / len(remaining_h[name])
            ) ** count
            used_h += share * float(remaining_h[name].mean())
            evicted_share += share * float((np.array(self.remaining_h[name]) > max_h).mean())
        expected_longest_h = float(((1 - ended_probability[:-1]) * np.diff(end_times_h)).sum())
        # Rounded, so that layouts with the same loss compare as equal.
        return round(max(0.0, expected_longest_h - used_h) + evicted_share * self.evicted_h, 12)

    def layout_cost(self, layout: str) -> float:
        """Return the price of giving a GPU this layout: one change, and each MIG instance that is created [GPU h]."""
        return self.dress + self.removal_cost(layout)

    def removal_cost(self, layout: str) -> float:
        """Return the price of removing a layout: one price for each MIG instance [GPU h]."""
        return self.instance * sum(n for name, n in parse_layout(layout).items() if name != FULL_GPU)


_STATE_PRICE_AMOUNT_FIELDS = tuple(
    f.name for f in fields(StatePrices) if f.name not in ("remaining_h", "limit_h", "basis")
)
"""Fields of :class:`StatePrices` that must be numbers of at least 0."""


def _raise_price_error(got: str) -> NoReturn:
    """Raise a ScenarioError on the prices of GPU states."""
    expected = f"amounts from 0 to {MAX_PRICE:,.0f}, and times by profile"
    raise ScenarioError("prices of states", expected, got, "Fix these amounts.")
