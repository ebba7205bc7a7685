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

from gpuplanner.core.errors import (
    GeometryError,
    InfeasiblePlanError,
    ScenarioError,
    SchemaError,
    examples,
)
from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import WHOLE_GPU, LayoutPlan
from gpuplanner.core.serialization import load_json, to_json
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.mig_layouts import OFF, format_layout, parse_layout, prove
from gpuplanner.planner.fleet_limits import from_plain, grid, texts, to_plain
from gpuplanner.planner.plan_problem import Counts, Floats, PlanProblem

MAX_LABEL = 63
"""Longest value of a Kubernetes label."""

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DIGEST = 10


@dataclass(frozen=True, slots=True)
class NodeState:
    """Layouts of the GPUs of one node.

    Parameters
    ----------
    gpus : tuple of (int, str)
        Index on the node and canonical layout text, ascending by index.
    released : frozenset of int
        Those that are handed back or powered down; they come back whole.
    """

    gpus: tuple[tuple[int, str], ...]
    released: frozenset[int] = frozenset()

    def without_layout(self, gpus: Collection[int]) -> NodeState:
        """The same with some GPUs whole."""
        return NodeState(tuple((gpu, WHOLE_GPU if gpu in gpus else layout) for gpu, layout in self.gpus))

    @property
    def totals(self) -> dict[str, int]:
        """Instances (and whole GPUs) on the node, whole GPUs first, then largest first."""
        return dict(_totals(self))

    @property
    def by_layout(self) -> dict[str, list[int]]:
        """GPU indices that share a layout, in the order of the first of each."""
        groups: dict[str, list[int]] = {}
        for gpu, layout in self.gpus:
            groups.setdefault(layout, []).append(gpu)
        return groups

    @property
    def config_name(self) -> str:
        """Name for the state: what is on the node, and a digest of which GPU has what.

        The same state has the same name in every plan. The name is a legal Kubernetes label value; ``+``
        becomes ``.``.

        Examples
        --------
        >>> NodeState(((0, "3g.40gb:1,1g.10gb+me:1"), (1, "gpu"))).config_name
        '1xgpu_1x3g.40gb_1x1g.10gb.me_802db64e3e'
        """
        digest = hashlib.sha256(";".join(f"{g}={layout}" for g, layout in self.gpus).encode()).hexdigest()
        name = ""
        for profile, count in self.totals.items():
            part = f"{count}x{profile.replace('+', '.')}_"
            if len(name) + len(part) + _DIGEST <= MAX_LABEL:
                name += part
        return name + digest[:_DIGEST]


def checked_plan(plan: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Return the plan sorted, with canonical layouts, once everything in it is known to be possible.

    A GPU that is off has the layout that it is parked with. Else it is released, as the column ``released`` says: it
    comes back whole.
    """
    frame = check(plan, LayoutPlan, where="layout plan").sort("node", "gpu", "slot_start")
    _check_ranges(frame)
    gpu_model = as_board(gpu_model)
    texts = pl.concat([frame["layout"], frame["parked"].drop_nulls()])
    canonical = {text: _proved(gpu_model, text) for text in texts.unique().sort()}
    _check_nodes(frame["node"].unique().sort().to_list())
    columns = pl.col("parked", "layout").replace_strict(canonical, default=None, return_dtype=pl.String)
    held = pl.coalesce(columns)
    return frame.with_columns(layout=held.replace(OFF, WHOLE_GPU), released=held == OFF)


def states_at(plan: pl.DataFrame, at: datetime) -> dict[str, NodeState]:
    """State of each node at one time, by node name; GPUs for which the plan says nothing then are left out."""
    if at.tzinfo is None:
        raise SchemaError("time of export", "a time with its zone", at.isoformat(), "Give it in UTC.")
    rows = plan.filter(pl.col("slot_start") <= at, pl.col("slot_end") > at)
    if rows.is_empty():
        span = f"{stamp(plan['slot_start'].min())} to {stamp(plan['slot_end'].max())}"  # type: ignore[arg-type]
        todo = "Choose a time of the plan."
        raise SchemaError("time of export", f"a time within {span}", at.isoformat(), todo)
    return {str(node[0]): _state(group.iter_rows(named=True)) for node, group in _by_node(rows)}


def node_states(plan: pl.DataFrame, at: datetime | None = None) -> dict[str, dict[datetime, NodeState]]:
    """Each node's states by the time at which they begin; with `at`, only the one in force then."""
    if at is not None:
        return {node: {at: state} for node, state in states_at(plan, at).items()}
    found: dict[str, dict[datetime, NodeState]] = {}
    for (node,), group in _by_node(plan.sort("node", "slot_start", "gpu")):
        in_force: dict[int, dict[str, Any]] = {}
        states = found.setdefault(str(node), {})
        for row in group.iter_rows(named=True):
            in_force[row["gpu"]] = row
            start = row["slot_start"]
            states[start] = _state(held for held in in_force.values() if held["slot_end"] > start)
    return found


def stamp(time: datetime) -> str:
    """Print a time in UTC.

    Examples
    --------
    >>> stamp(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '2026-11-01T08:00:00Z'
    """
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def file_stamp(time: datetime) -> str:
    """Print a time in UTC for a file name.

    Examples
    --------
    >>> file_stamp(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '20261101T080000Z'
    """
    return time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


@functools.lru_cache(maxsize=4096)
def _totals(state: NodeState) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for _, layout in state.gpus:
        found.update(parse_layout(layout))
    whole = found.pop(WHOLE_GPU, 0)
    cut = parse_layout(format_layout(found))
    return (*(((WHOLE_GPU, whole),) if whole else ()), *cut.items())


def _by_node(frame: pl.DataFrame) -> Iterable[tuple[tuple[object, ...], pl.DataFrame]]:
    return frame.group_by("node", maintain_order=True)


def _state(rows: Iterable[Mapping[str, Any]]) -> NodeState:
    there = sorted((row["gpu"], row["layout"], row["released"]) for row in rows)
    released = frozenset(gpu for gpu, _, away in there if away)
    return NodeState(tuple((gpu, layout) for gpu, layout, _ in there), released)


def _proved(gpu_model: GpuModel, text: str) -> str:
    counts = parse_layout(text)
    proof = prove(gpu_model, counts)
    if proof.layout is None:
        expected = f"one that a {gpu_model.name} can hold"
        todo = "Nothing is exported; plan for this GPU model: gpuplanner plan --gpu-model."
        raise GeometryError(f"layout plan: layout {text!r}", expected, proof.reason, todo)
    return proof.layout.text if proof.layout.placements else text.strip()


def _check_nodes(names: list[str]) -> None:
    bad = [name for name in names if not _NODE.fullmatch(name)]
    if bad:
        expected = "letters, digits, '-', '_' and '.' only, as names go into configuration lines"
        got = f"{len(bad)} of {len(names)} others: {examples(bad)}"
        raise GeometryError("layout plan: node names", expected, got, "Fix the names in the inventory.")


def _check_ranges(frame: pl.DataFrame) -> None:
    overlaps = pl.col("slot_start") < pl.col("slot_end").shift().over("node", "gpu")
    wrong = frame.filter((pl.col("slot_start") >= pl.col("slot_end")) | overlaps.fill_null(value=False))
    if wrong.height or frame.is_empty():
        rows = [f"{row['node']} gpu {row['gpu']} {stamp(row['slot_start'])}" for row in wrong.to_dicts()]
        expected = "at least one row, and for each GPU ranges that end after they start and do not overlap"
        got = f"{wrong.height} of {frame.height} rows that do not: {examples(rows)}" if rows else "no row"
        raise SchemaError("layout plan", expected, got, "Write the plan again.")


REHEARSED = dict.fromkeys(("drain_median_minutes", "drain_p95_minutes", "in_the_way", "in_time"), pl.Float64)
"""What weeks that were played say of a change: minutes from its time until the last job has ended, instances and GPUs
in use then, share of the weeks in which it was made within its limit."""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Nodes that are cut anew together, at one time or at several.

    - ``times``: When; the fleet looks the same before, and the same afterwards, each time.
    - ``nodes``: State before (None if nothing is known) and after, by node. GPUs that are released then are whole in
      both.
    - ``limit_s``: How long it waits for its nodes to empty [s]: until it is given up, or the next change of one of
      them. None: for ever.
    """

    times: tuple[datetime, ...]
    nodes: Mapping[str, tuple[NodeState | None, NodeState]]
    limit_s: float | None = None

    @property
    def name(self) -> str:
        """Name of its files, by the first time."""
        return f"change-{file_stamp(self.times[0])}"

    @property
    def stamps(self) -> str:
        """Its times, for people."""
        return ", ".join(map(stamp, self.times))


def layout_changes_of(
    plan: pl.DataFrame, limit_s: float | None = None, initial: Mapping[str, NodeState] | None = None
) -> list[LayoutChange]:
    """List the changes of a plan that :func:`checked_plan` returned, by their first time.

    What nodes hold before the plan begins is `initial`, as far as it is known; each waits `limit_s` at most.
    """
    anew = set(plan.filter("changed").select("node", "slot_start").iter_rows())
    at: dict[datetime, dict[str, tuple[NodeState | None, NodeState]]] = {}
    for node, states in node_states(plan).items():
        before = (initial or {}).get(node)
        for time, state in states.items():
            # Nothing is done to a GPU that goes.
            before = before and before.without_layout(state.released)
            # At first the plan only says what is cut anew; what stays is as it is.
            differs = before is None or before.gpus != state.gpus
            if differs and (before is not None or (node, time) in anew):
                at.setdefault(time, {})[node] = (before, state)
            before = state
    alike: dict[tuple[object, ...], tuple[list[datetime], dict[str, tuple[NodeState | None, NodeState]]]] = {}
    for time, nodes in sorted(at.items()):
        key = (tuple(nodes.items()), tuple(states_at(plan, time).items()))
        alike.setdefault(key, ([], nodes))[0].append(time)
    times_of: dict[str, list[datetime]] = {}
    for time, nodes in sorted(at.items()):
        for node in nodes:
            times_of.setdefault(node, []).append(time)
    return [
        LayoutChange(tuple(times), nodes, _limit(times, nodes, times_of, limit_s)) for times, nodes in alike.values()
    ]


def held_by(layouts: pl.DataFrame | None) -> dict[str, NodeState]:
    """State of each node in a table of node, gpu and layout."""
    found: dict[str, list[tuple[int, str]]] = {}
    for node, gpu, layout in [] if layouts is None else layouts.select("node", "gpu", "layout").iter_rows():
        found.setdefault(node, []).append((gpu, layout))
    return {node: NodeState(tuple(sorted(gpus))) for node, gpus in found.items()}


def _limit(
    times: Iterable[datetime],
    nodes: Iterable[str],
    times_of: Mapping[str, list[datetime]],
    limit_s: float | None,
) -> float | None:
    """The limit, or the shortest time until one of the nodes is changed again."""
    gaps = [
        (mine[after] - time).total_seconds()
        for mine in (times_of[node] for node in nodes)
        for time in times
        if (after := bisect_right(mine, time)) < len(mine)
    ]
    return min([*gaps, *([] if limit_s is None else [limit_s])], default=None)


STATUSES = ("optimal", "feasible", "infeasible", "unknown")
"""``optimal``: no plan costs less, within 1e-6. ``feasible``: the gap says how much less one could cost at
most. ``infeasible``: no plan keeps the limits. ``unknown``: none was found, and none was excluded."""

STOPS = ("proof", "passes", "time_limit", "work_limit", "user")
"""Why the search ended: the gap asked for (or infeasibility) was proven; all passes were made; the time was
up; the work allowed was done; somebody pressed Ctrl-C."""

FORMAT = "gpuplanner.plan/3"

LARGEST_FILE = 64_000_000
"""Bytes; a larger file is refused before it is read. A month of hours for 400 pools has less."""

_BOUND_OF = {"all plans": "", "plans without change": "static"}
_TOLD = ("stopped_by", "explanation", "seconds")


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A plan and a bound on how good it is. Costs are in GPU-hours at the problem's prices.

    Parameters
    ----------
    method : str
        How it was made, see :func:`gpuplanner.planner.layout_plan`. ``"static"``: the same counts in every slot; the
        bound is then that of all such plans. Else the bound is that of all plans. A file says no more than that: of
        a plan that was read, it is ``"static"`` or empty.
    status : str
        One of :data:`STATUSES`. Objective, bound and gap are None, and the arrays empty, unless it is
        ``optimal`` or ``feasible``.
    objective, bound, gap : float or None
        Cost; what no plan undercuts; (objective - bound) / objective.
    layouts : tuple of str
        Layouts in use, as text.
    counts : ndarray of int, shape (n_slots, n_layouts)
        GPUs that are on with each layout.
    unmet : ndarray of float, shape (n_tenants, n_profiles, n_slots)
        Mean concurrent instances that are not served.
    changes : int
        GPUs that take up a layout over the horizon, ``"gpu"`` too where they had another. One that was released had
        none, and comes back whole.
    departures : int
        GPUs emptied over the horizon: those by which a layout's number on falls.
    reboots : int
        Reboots of nodes for changes of MIG mode, of numbered GPUs.
    gpu_hours_on, unmet_gpu_hours : float
        GPU-hours of GPUs that are on, and of demand that is not served [GPU h].
    stopped_by : str
        One of :data:`STOPS`. What follows is told when a plan is made, and stands in no file, where nobody could check
        it: of a plan that was read it is empty.
    explanation : str
        What drives the plan, and what would help, in words.
    seconds : float or None
        Time that the search took [s].
    parked : ndarray of int, shape (n_slots, n_layouts)
        GPUs that keep each layout, and are not on; nothing where GPUs that are not needed are released. Those that
        are neither counted here nor on are not cut.
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
    departures: int
    reboots: int
    gpu_hours_on: float
    unmet_gpu_hours: float
    stopped_by: str = ""
    explanation: str = ""
    seconds: float | None = None
    parked: Counts = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def __post_init__(self) -> None:
        """Nothing is parked where nothing is said of it."""
        if not self.parked.size and self.parked.shape != self.counts.shape:
            object.__setattr__(self, "parked", np.zeros_like(self.counts))

    def __repr__(self) -> str:
        return f"<Plan ({self.method}): {self.status}. {self.explanation}>"

    @property
    def found(self) -> bool:
        """Whether there are counts to act on."""
        return self.status in ("optimal", "feasible")

    @property
    def hit_time_limit(self) -> bool:
        """Whether more time might have given a better plan or a better proof."""
        return self.stopped_by == "time_limit"

    def require(self) -> Plan:
        """Return the plan itself if there is one.

        Raises
        ------
        InfeasiblePlanError
            If the status is infeasible or unknown.
        """
        if self.found:
            return self
        raise InfeasiblePlanError("plan", "a plan that keeps every limit", self.status, self.explanation)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the answer, and no words about it."""
        plain: dict[str, Any] = to_plain(self)
        left_out = {"method", *_TOLD} | (set() if self.parked.any() else {"parked"})
        plain = {name: value for name, value in plain.items() if name not in left_out}
        plain["bound_of"] = "plans without change" if self.method == "static" else "all plans"
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` wrote. Whether it is right is a question for ``verify``.

        Raises
        ------
        ScenarioError
            If a value is missing, unknown, or not what it should be.
        """
        held = {name: value for name, value in values.items() if name != "bound_of"}
        if unproven := sorted(held.keys() & {"method", *_TOLD}):
            _refuse(f"{', '.join(unproven)}, which cannot be checked")
        if values.get("bound_of") not in tuple(_BOUND_OF):
            _refuse(f"a bound_of that is none of {', '.join(_BOUND_OF)}")
        return from_plain(
            cls,
            {**held, "method": _BOUND_OF[values["bound_of"]]},
            "plan",
            layouts=texts,
            counts=lambda counts: grid(counts, int).reshape(len(counts), len(values["layouts"])),
            parked=lambda counts: grid(counts, int).reshape(len(counts), len(values["layouts"])),
            unmet=lambda unmet: grid(unmet, int, float),
        )


def plan_to_json(plan: Plan, problem: PlanProblem) -> str:
    """Print a plan together with its problem, so that the file alone can be verified.

    The same plan and problem give the same bytes.
    """
    return to_json({"format": FORMAT, "plan": plan.to_dict(), "problem": problem.to_dict()})


def plan_from_json(text: str) -> tuple[Plan, PlanProblem]:
    """Read what :func:`plan_to_json` printed.

    Raises
    ------
    ScenarioError
        If the text is not such a file.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    return plan_from_plain(load_json(text, where="plan file", error=ScenarioError))


def plan_from_plain(values: object) -> tuple[Plan, PlanProblem]:
    """A plan and its problem from the values of a plan file."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        _refuse(f"no 'format' {FORMAT!r}: no plan file, or one of another version")
    if set(values) != {"format", "plan", "problem"}:
        _refuse("other keys than 'format', 'plan' and 'problem'")
    if not (isinstance(values["plan"], dict) and isinstance(values["problem"], dict)):
        _refuse("a 'plan' or a 'problem' that is no object")
    return Plan.from_dict(values["plan"]), PlanProblem.from_dict(values["problem"])


def _refuse(got: str) -> NoReturn:
    raise ScenarioError("plan file", "JSON written by plan_to_json", got, "Plan again.")
