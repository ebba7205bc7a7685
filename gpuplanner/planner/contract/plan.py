"""The answer: counts of layouts over time, what they cost, and how far from the best they can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from gpuplanner.errors import InfeasiblePlanError, ScenarioError, message
from gpuplanner.files.text import to_json
from gpuplanner.planner.contract.plain_values import from_plain, grid, refuse, texts, to_plain
from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.strict_json import load_json

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
        How it was made, see :func:`gpuplanner.planner.contract.plan`. ``"static"``: the same counts in every slot; the
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
        text = message("plan", "a plan that keeps every limit", self.status, self.explanation)
        raise InfeasiblePlanError(text)

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
            _refuse(f"{', '.join(unproven)}, which nobody can check")
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
    refuse("plan file", "JSON written by plan_to_json", got, "Plan again.")
