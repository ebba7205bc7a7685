"""A layout plan: counts over time, node states and changes, cost, bound and gap."""

from __future__ import annotations

import functools
import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import numpy as np
import polars as pl

from gpuplanner.core.errors import GeometryError, InfeasiblePlanError, ScenarioError, SchemaError, examples
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import FULL_GPU, LayoutPlan
from gpuplanner.core.serialization import load_json, to_json
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, format_layout, parse_layout, prove
from gpuplanner.planner.fleet_limits_and_prices import from_plain, number_array, text_tuple, to_plain
from gpuplanner.planner.plan_problem import Counts, Floats, PlanProblem

MAX_LABEL_CHARS = 63
"""Longest value of a Kubernetes label [characters]."""

_NODE_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Node names that are safe in configuration files."""
_LAYOUT_DIGEST_CHARS = 10
"""Length of the digest at the end of the name of a MIG configuration [characters]."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """MIG layouts of the GPUs of one node.

    Parameters
    ----------
    gpus : tuple of (int, str)
        Index on the node and canonical layout text, ascending by index.
    released : frozenset of int
        Indices of GPUs that are released or powered down; they return as full GPUs.
    """

    gpus: tuple[tuple[int, str], ...]
    released: frozenset[int] = frozenset()

    def without_layout(self, gpus: Collection[int]) -> NodeState:
        """Return the state of the node with some GPUs full (MIG disabled)."""
        return NodeState(tuple((gpu, FULL_GPU if gpu in gpus else layout) for gpu, layout in self.gpus))

    @property
    def totals(self) -> dict[str, int]:
        """Instances of each profile (and full GPUs) on the node, full GPUs first, then largest first."""
        return dict(_count_instances(self))

    @property
    def gpus_by_layout(self) -> dict[str, list[int]]:
        """GPU indices by layout, in the order of the first GPU of each."""
        groups: dict[str, list[int]] = {}
        for gpu, layout in self.gpus:
            groups.setdefault(layout, []).append(gpu)
        return groups

    @property
    def config_name(self) -> str:
        """Name of a MIG configuration for the state: its instances, and a digest of the layout of each GPU.

        The same state has the same name in every plan. The name is a valid Kubernetes label value; ``+`` becomes ``.``.

        Examples
        --------
        >>> NodeState(((0, "3g.40gb:1,1g.10gb+me:1"), (1, "gpu"))).config_name
        '1xgpu_1x3g.40gb_1x1g.10gb.me_802db64e3e'
        """
        digest = hashlib.sha256(";".join(f"{g}={layout}" for g, layout in self.gpus).encode()).hexdigest()
        name = ""
        for profile, count in self.totals.items():
            part = f"{count}x{profile.replace('+', '.')}_"
            if len(name) + len(part) + _LAYOUT_DIGEST_CHARS <= MAX_LABEL_CHARS:
                name += part
        return name + digest[:_LAYOUT_DIGEST_CHARS]


def check_layout_plan(plan: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Return a layout plan sorted and with canonical layouts; raise an error if a layout or range is impossible.

    A GPU that is off has the layout with which it is idle. If it has none, it is released (column ``released``) and
    returns as a full GPU.

    Parameters
    ----------
    plan : polars.DataFrame
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`.
    gpu_model : GpuModel or str
        GPU model of every GPU.

    Raises
    ------
    SchemaError
        If the table or its time ranges are invalid.
    GeometryError
        If the GPU model cannot have a layout, or a node name is unsafe in configuration files.
    """
    frame = check_table(plan, LayoutPlan, source="layout plan").sort("node", "gpu", "slot_start")
    _check_ranges(frame)
    gpu_model = as_gpu_model(gpu_model)
    texts = pl.concat([frame["layout"], frame["parked"].drop_nulls()])
    canonical = {text: _prove_layout(gpu_model, text) for text in texts.unique().sort()}
    _check_node_names(frame["node"].unique().sort().to_list())
    canonical_columns = pl.col("parked", "layout").replace_strict(canonical, default=None, return_dtype=pl.String)
    layout_on_or_idle = pl.coalesce(canonical_columns)
    return frame.with_columns(
        layout=layout_on_or_idle.replace(UNUSED_LAYOUT, FULL_GPU), released=layout_on_or_idle == UNUSED_LAYOUT
    )


def node_states_at(plan: pl.DataFrame, at: datetime) -> dict[str, NodeState]:
    """Return the state of each node at one time, by node name; GPUs without a row at that time are left out."""
    if at.tzinfo is None:
        raise SchemaError("time of export", "a time with its zone", at.isoformat(), "Give it in UTC.")
    rows = plan.filter(pl.col("slot_start") <= at, pl.col("slot_end") > at)
    if rows.is_empty():
        span = f"{format_utc(plan['slot_start'].min())} to {format_utc(plan['slot_end'].max())}"  # type: ignore[arg-type]
        todo = "Choose a time of the plan."
        raise SchemaError("time of export", f"a time within {span}", at.isoformat(), todo)
    return {str(node[0]): _node_state_of_rows(group.iter_rows(named=True)) for node, group in _group_by_node(rows)}


def node_state_timeline(plan: pl.DataFrame, at: datetime | None = None) -> dict[str, dict[datetime, NodeState]]:
    """Return the states of each node by their start time; with `at`, only the state in force at that time."""
    if at is not None:
        return {node: {at: state} for node, state in node_states_at(plan, at).items()}
    timeline: dict[str, dict[datetime, NodeState]] = {}
    for (node,), group in _group_by_node(plan.sort("node", "slot_start", "gpu")):
        in_force: dict[int, dict[str, Any]] = {}
        states = timeline.setdefault(str(node), {})
        for row in group.iter_rows(named=True):
            in_force[row["gpu"]] = row
            start = row["slot_start"]
            states[start] = _node_state_of_rows(row for row in in_force.values() if row["slot_end"] > start)
    return timeline


def format_utc(time: datetime) -> str:
    """Format a time in UTC.

    Examples
    --------
    >>> format_utc(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '2026-11-01T08:00:00Z'
    """
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_file_stamp(time: datetime) -> str:
    """Format a time in UTC for a file name.

    Examples
    --------
    >>> to_file_stamp(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '20261101T080000Z'
    """
    return time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


@functools.lru_cache(maxsize=4096)
def _count_instances(state: NodeState) -> tuple[tuple[str, int], ...]:
    """Count full GPUs and instances of a node state by profile."""
    counts: Counter[str] = Counter()
    for _, layout in state.gpus:
        counts.update(parse_layout(layout))
    whole = counts.pop(FULL_GPU, 0)
    instances = parse_layout(format_layout(counts))
    return (*(((FULL_GPU, whole),) if whole else ()), *instances.items())


def _group_by_node(frame: pl.DataFrame) -> Iterable[tuple[tuple[object, ...], pl.DataFrame]]:
    """Group rows by node, in their order."""
    return frame.group_by("node", maintain_order=True)


def _node_state_of_rows(rows: Iterable[Mapping[str, Any]]) -> NodeState:
    """Build a node state from rows with ``gpu``, ``layout`` and ``released``."""
    gpus = sorted((row["gpu"], row["layout"], row["released"]) for row in rows)
    released = frozenset(gpu for gpu, _, is_released in gpus if is_released)
    return NodeState(tuple((gpu, layout) for gpu, layout, _ in gpus), released)


def _prove_layout(gpu_model: GpuModel, text: str) -> str:
    """Return the canonical text of a layout, or raise a GeometryError if the GPU model cannot have it."""
    counts = parse_layout(text)
    proof = prove(gpu_model, counts)
    if proof.layout is None:
        expected = f"one that a {gpu_model.name} can hold"
        todo = "Nothing is exported; plan for this GPU model: gpuplanner plan --gpu-model."
        raise GeometryError(f"layout plan: layout {text!r}", expected, proof.reason, todo)
    return proof.layout.counts_text if proof.layout.placements else text.strip()


def _check_node_names(names: list[str]) -> None:
    """Raise a GeometryError if a node name has characters that are unsafe in configuration files."""
    bad = [name for name in names if not _NODE_NAME_PATTERN.fullmatch(name)]
    if bad:
        expected = "letters, digits, '-', '_' and '.' only, as names go into configuration lines"
        got = f"{len(bad)} of {len(names)} others: {examples(bad)}"
        raise GeometryError("layout plan: node names", expected, got, "Fix the names in the inventory.")


def _check_ranges(frame: pl.DataFrame) -> None:
    """Raise a SchemaError if the time ranges of a GPU are empty, overlap, or end before they start."""
    overlaps = pl.col("slot_start") < pl.col("slot_end").shift().over("node", "gpu")
    wrong = frame.filter((pl.col("slot_start") >= pl.col("slot_end")) | overlaps.fill_null(value=False))
    if wrong.height or frame.is_empty():
        rows = [f"{row['node']} gpu {row['gpu']} {format_utc(row['slot_start'])}" for row in wrong.to_dicts()]
        expected = "at least one row, and for each GPU ranges that end after they start and do not overlap"
        got = f"{wrong.height} of {frame.height} rows that do not: {examples(rows)}" if rows else "no row"
        raise SchemaError("layout plan", expected, got, "Write the plan again.")


REHEARSAL_COLUMNS = dict.fromkeys(("drain_median_minutes", "drain_p95_minutes", "in_the_way", "in_time"), pl.Float64)
"""Columns, with dtype, that simulated weeks add to a planned layout change: median and p95 of its drain time [min],
instances and GPUs in use when it is due, and share of the weeks in which it was made within its limit [0-1].
"""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Nodes that are repartitioned together, at one time or at several.

    - ``times``: Times of the change; the fleet has the same state before, and the same after, each time.
    - ``nodes``: State before (None if unknown) and after, by node. GPUs that are released then are full in both.
    - ``limit_s``: Longest wait for the nodes to drain: until the change is given up, or the next change of one of them.
      None: no limit. [s]
    """

    times: tuple[datetime, ...]
    nodes: Mapping[str, tuple[NodeState | None, NodeState]]
    limit_s: float | None = None

    @property
    def name(self) -> str:
        """File name of the change, from its first time."""
        return f"change-{to_file_stamp(self.times[0])}"

    @property
    def times_text(self) -> str:
        """Times of the change as text."""
        return ", ".join(map(format_utc, self.times))


def list_layout_changes(
    plan: pl.DataFrame, limit_s: float | None = None, initial: Mapping[str, NodeState] | None = None
) -> list[LayoutChange]:
    """List the changes of a plan that :func:`check_layout_plan` returned, by their first time.

    Parameters
    ----------
    plan : polars.DataFrame
        The plan.
    limit_s : float, optional
        Longest wait of each change for its nodes to drain. [s]
    initial : mapping of str to NodeState, optional
        Known node states before the plan starts.
    """
    changed_at = set(plan.filter("changed").select("node", "slot_start").iter_rows())
    nodes_by_time: dict[datetime, dict[str, tuple[NodeState | None, NodeState]]] = {}
    for node, states in node_state_timeline(plan).items():
        before = (initial or {}).get(node)
        for time, state in states.items():
            # A GPU that is released keeps its layout: it counts as full before and after.
            before = before and before.without_layout(state.released)
            # At the start of the plan only marked nodes change; the state before may be unknown.
            differs = before is None or before.gpus != state.gpus
            if differs and (before is not None or (node, time) in changed_at):
                nodes_by_time.setdefault(time, {})[node] = (before, state)
            before = state
    nodes_by_change: dict[tuple[object, ...], tuple[list[datetime], dict[str, tuple[NodeState | None, NodeState]]]] = {}
    for time, nodes in sorted(nodes_by_time.items()):
        key = (tuple(nodes.items()), tuple(node_states_at(plan, time).items()))
        nodes_by_change.setdefault(key, ([], nodes))[0].append(time)
    times_by_node: dict[str, list[datetime]] = {}
    for time, nodes in sorted(nodes_by_time.items()):
        for node in nodes:
            times_by_node.setdefault(node, []).append(time)
    return [
        LayoutChange(tuple(times), nodes, _shortest_limit(times, nodes, times_by_node, limit_s))
        for times, nodes in nodes_by_change.values()
    ]


def node_states_of_table(layouts: pl.DataFrame | None) -> dict[str, NodeState]:
    """Return the state of each node from a table of node, gpu and layout."""
    gpus_by_node: dict[str, list[tuple[int, str]]] = {}
    for node, gpu, layout in [] if layouts is None else layouts.select("node", "gpu", "layout").iter_rows():
        gpus_by_node.setdefault(node, []).append((gpu, layout))
    return {node: NodeState(tuple(sorted(gpus))) for node, gpus in gpus_by_node.items()}


def _shortest_limit(
    times: Iterable[datetime], nodes: Iterable[str], times_by_node: Mapping[str, list[datetime]], limit_s: float | None
) -> float | None:
    """Return how long a change may wait for its nodes to drain [s]: `limit_s`, or less if a node changes again before.

    Parameters
    ----------
    times : iterable of datetime
        Times of the change.
    nodes : iterable of str
        Its nodes.
    times_by_node : mapping of str to list of datetime
        Times of all changes by node, ascending.
    limit_s : float, optional
        Longest wait for the nodes to drain; None: no limit. [s]
    """
    seconds_to_next = [
        (node_times[position] - time).total_seconds()
        for node_times in (times_by_node[node] for node in nodes)
        for time in times
        if (position := bisect_right(node_times, time)) < len(node_times)
    ]
    return min([*seconds_to_next, *([] if limit_s is None else [limit_s])], default=None)


PLAN_STATUSES = ("optimal", "feasible", "infeasible", "unknown")
"""``optimal``: no plan costs less, within 1e-6. ``feasible``: the gap limits how much less one could cost.
``infeasible``: no plan meets the limits. ``unknown``: none was found, and none was excluded.
"""

PLAN_STOP_REASONS = ("proof", "passes", "time_limit", "work_limit", "user")
"""Why the search ended: the requested gap (or infeasibility) was proven; all passes were made; time limit; work limit;
Ctrl-C.
"""

PLAN_FILE_FORMAT = "gpuplanner.plan/3"
"""Name and version of the plan file format."""

MAX_PLAN_FILE_BYTES = 64_000_000
"""Largest plan file that is read [bytes]. A month of hours for 400 GPU pools is smaller."""

_METHOD_BY_BOUND_NAME = {"all plans": "", "plans without change": "static"}
"""Method of a plan that is read from a file, by its key ``bound_of``: which plans the lower bound holds for."""
_PLAN_FIELDS_NOT_VERIFIED = ("stopped_by", "explanation", "seconds")
"""Fields of a plan that its file leaves out, as they could not be checked there."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A layout plan and a lower bound on the cost of all plans. Costs are in GPU-hours at the prices of the problem.

    Parameters
    ----------
    method : str
        Method of the search, see :data:`gpuplanner.planner.plan_search.PLAN_METHODS`. ``"static"``: the same counts in
        every interval; the bound is then that of all such plans, else that of all plans. Of a plan that was read from a
        file it is ``"static"`` or empty.
    status : str
        One of :data:`PLAN_STATUSES`. Objective, bound and gap are None, and the arrays empty, unless it is ``optimal``
        or ``feasible``.
    objective, bound, gap : float or None
        Cost [GPU h]; lower bound on the cost of all plans [GPU h]; (objective - bound) / objective [0-1].
    layouts : tuple of str
        Layouts in use, as text.
    counts : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs with each layout.
    unmet : ndarray of float, shape (n_tenants, n_profiles, n_slots)
        Mean concurrent instances that are not served.
    changes : int
        GPUs that take a layout over the horizon, also ``"gpu"`` if they had a MIG layout. A released GPU returns as a
        full GPU.
    drained_gpus : int
        Drained GPUs over the horizon: those by which the powered-on GPUs of a layout fall.
    reboots : int
        Node reboots for changes of MIG mode, with numbered GPUs.
    gpu_hours_on, unmet_gpu_hours : float
        GPU-hours of powered-on GPUs, and of unmet demand. [GPU h]
    stopped_by : str
        One of :data:`PLAN_STOP_REASONS`. This and the next two fields are known when a plan is made, but not in its
        file, as they could not be checked there: they are empty in a plan that was read.
    explanation : str
        Text: drivers of the plan, and measures against unmet demand.
    seconds : float or None
        Run time of the search. [s]
    parked : ndarray of int, shape (n_slots, n_layouts)
        Idle, powered-on GPUs with each layout; 0 where GPUs that are not needed are released. All other GPUs are full.
    """

    method: str
    status: str
    objective: float | None
    bound: float | None
    gap: float | None
    layouts: tuple[str, ...]
    counts: Counts
    unmet: Floats
    changes: int
    drained_gpus: int
    reboots: int
    gpu_hours_on: float
    unmet_gpu_hours: float
    stopped_by: str = ""
    explanation: str = ""
    seconds: float | None = None
    parked: Counts = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def __post_init__(self) -> None:
        """Set the idle GPUs to 0 if they are not given."""
        if not self.parked.size and self.parked.shape != self.counts.shape:
            object.__setattr__(self, "parked", np.zeros_like(self.counts))

    def __repr__(self) -> str:
        return f"<Plan ({self.method}): {self.status}. {self.explanation}>"

    @property
    def is_feasible(self) -> bool:
        """Whether a plan was found: a status of ``optimal`` or ``feasible``."""
        return self.status in ("optimal", "feasible")

    @property
    def hit_time_limit(self) -> bool:
        """Whether the search was stopped by its time limit: more time might give a better plan or bound."""
        return self.stopped_by == "time_limit"

    def require(self) -> Plan:
        """Return the plan itself, or raise an error if none was found.

        Raises
        ------
        InfeasiblePlanError
            If the status is infeasible or unknown.
        """
        if self.is_feasible:
            return self
        raise InfeasiblePlanError("plan", "a plan that keeps every limit", self.status, self.explanation)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON, without texts about the plan."""
        plain: dict[str, Any] = to_plain(self)
        left_out = {"method", *_PLAN_FIELDS_NOT_VERIFIED} | (set() if self.parked.any() else {"parked"})
        plain = {name: value for name, value in plain.items() if name not in left_out}
        plain["bound_of"] = "plans without change" if self.method == "static" else "all plans"
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Read the values that :meth:`to_dict` wrote; whether they are right is checked by ``verify``.

        Raises
        ------
        ScenarioError
            If a value is missing, unknown, or of the wrong type.
        """
        fields = {name: value for name, value in values.items() if name != "bound_of"}
        if unproven := sorted(fields.keys() & {"method", *_PLAN_FIELDS_NOT_VERIFIED}):
            _raise_plan_file_error(f"{', '.join(unproven)}, which cannot be checked")
        if values.get("bound_of") not in tuple(_METHOD_BY_BOUND_NAME):
            _raise_plan_file_error(f"a bound_of that is none of {', '.join(_METHOD_BY_BOUND_NAME)}")
        return from_plain(
            cls,
            {**fields, "method": _METHOD_BY_BOUND_NAME[values["bound_of"]]},
            "plan",
            layouts=text_tuple,
            counts=lambda counts: number_array(counts, int).reshape(len(counts), len(values["layouts"])),
            parked=lambda counts: number_array(counts, int).reshape(len(counts), len(values["layouts"])),
            unmet=lambda unmet: number_array(unmet, int, float),
        )


def plan_to_json(plan: Plan, problem: PlanProblem) -> str:
    """Write a plan together with its problem as JSON, so that the file alone can be verified.

    The same plan and problem give the same bytes.

    Parameters
    ----------
    plan : Plan
        The plan.
    problem : PlanProblem
        Its problem.
    """
    return to_json({"format": PLAN_FILE_FORMAT, "plan": plan.to_dict(), "problem": problem.to_dict()})


def plan_from_json(text: str) -> tuple[Plan, PlanProblem]:
    """Read a plan and its problem from JSON of :func:`plan_to_json`.

    Parameters
    ----------
    text : str
        The JSON.

    Raises
    ------
    ScenarioError
        If the text is not such a file.
    GeometryError
        If a GPU model, profile or layout does not exist.
    """
    return plan_from_plain(load_json(text, source="plan file", error=ScenarioError))


def plan_from_plain(values: object) -> tuple[Plan, PlanProblem]:
    """Read a plan and its problem from the values of a plan file."""
    if not isinstance(values, dict) or values.get("format") != PLAN_FILE_FORMAT:
        _raise_plan_file_error(f"no 'format' {PLAN_FILE_FORMAT!r}: no plan file, or one of another version")
    if set(values) != {"format", "plan", "problem"}:
        _raise_plan_file_error("other keys than 'format', 'plan' and 'problem'")
    if not (isinstance(values["plan"], dict) and isinstance(values["problem"], dict)):
        _raise_plan_file_error("a 'plan' or a 'problem' that is no object")
    return Plan.from_dict(values["plan"]), PlanProblem.from_dict(values["problem"])


def _raise_plan_file_error(got: str) -> NoReturn:
    """Raise a ScenarioError on a plan file."""
    raise ScenarioError("plan file", "JSON written by plan_to_json", got, "Plan again.")
