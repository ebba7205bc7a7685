"""Prove the bound of a plan again from its certificate, or say that it is not proven.

The linear program is built anew from the problem, and every floor and the bound are added up from the prices of
the certificate alone, see :mod:`gpuplanner.planner.verification.weak_duality`. No solver takes part, and no word of
the file is repeated.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuplanner.errors import GpuPlannerError
from gpuplanner.planner.contract.certificate import SEARCHED, Certificate
from gpuplanner.planner.contract.plain_values import is_number
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.verification.rebuilt import Rebuilt
from gpuplanner.planner.verification.weak_duality import NoProof, Unfinished

_TOLERANCE = 1e-6

# Windows overlap, but seldom by more than a few slots.
_MOST_FLOORS = 64


class BoundCheck(NamedTuple):
    """What became of the bound of a plan.

    - ``faults``: What is wrong: a bound that the certificate does not prove, or a certificate that is none.
    - ``words``: What was proven, and what was not.
    - ``proven``: Whether bound, gap and status are proven, and not a part of the bound alone.
    """

    faults: list[str]
    words: str
    proven: bool


def verify_bound(plan: Plan, problem: PlanProblem) -> BoundCheck:
    """Prove the bound of a plan again.

    Parameters
    ----------
    plan : Plan
        A plan without other faults, see :func:`~gpuplanner.planner.verify`.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    BoundCheck
        ``faults``, ``words`` and ``proven``. Without faults and not proven: the plan holds, its bound rests on more
        than its certificate shows.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 8, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 12, 4]]]
    ... )
    >>> best = plan(problem, method="milp")
    >>> verify_bound(best, problem).proven
    True
    >>> verify_bound(replace(best, certificate=None), problem).words
    'bound not proven: the plan holds no certificate; plan again to have one'
    """
    if plan.status == "infeasible":
        return BoundCheck([], "no plan keeps the limits: what must stay alone does not", proven=True)
    if not plan.found:
        return BoundCheck([f"status: {plan.status}, there is no plan; plan again"], "", proven=False)
    assert plan.bound is not None
    certificate, constant = plan.certificate, plan.method == "static"
    if certificate is None:
        words = "bound not proven: the plan holds no certificate; plan again to have one"
        return BoundCheck([], words, proven=False)
    try:
        proven = proven_bound(certificate, problem, constant=constant)
    except Unfinished as error:
        return BoundCheck([], f"bound not proven: certificate: {error}; plan again", proven=False)
    except (NoProof, GpuPlannerError, RecursionError) as error:
        fault = f"certificate: it proves nothing for this problem: {error}; plan again, or remove it from the plan"
        return BoundCheck([fault], "", proven=False)
    who = "plan without change" if constant else "plan"
    for stated, by in ((certificate.bound, "certificate"), (plan.bound, "plan")):
        enough = proven >= stated - _TOLERANCE * max(1.0, abs(stated))
        if not enough and (by == "certificate" or certificate.rest != SEARCHED):
            fault = (
                f"bound: the {by} says that no {who} costs less than {stated:.9g}, its certificate proves no more than "
                f"{proven:.9g}; do not trust bound, gap and status: plan again"
            )
            return BoundCheck([fault], "", proven=False)
    if enough:
        words = f"proven again, without a solver: no {who} costs less than {proven:.9g}; status {plan.status}"
        return BoundCheck([], words, proven=True)
    part = 100 * (1 - proven / plan.objective) if plan.objective else 0.0
    return BoundCheck(
        [],
        f"bound not proven above {proven:.9g} (proven again: no {who} is cheaper by more than {part:.2f} %); the "
        f"{plan.bound:.9g} of the plan, and status {plan.status}, rest on {SEARCHED}",
        proven=False,
    )


def proven_bound(certificate: Certificate, problem: PlanProblem, *, constant: bool = False) -> float:
    """Cost that no plan undercuts, or if `constant` none without change, as far as a certificate proves it."""
    if certificate.rest not in ("", SEARCHED) or not is_number(certificate.bound):
        text = "it states a reason or a bound that there is not"
        raise NoProof(text)
    if sum(width for _, width, _ in certificate.floors) > _MOST_FLOORS * problem.n_slots:
        text = f"it has floors of more than {_MOST_FLOORS} times as many slots as there are"
        raise NoProof(text)
    rebuilt = Rebuilt(certificate, problem)
    floors: dict[tuple[int, int], float] = {}
    for start, width, proof in certificate.floors:
        if start < 0 or width < 1 or start + width > problem.n_slots:
            text = f"a floor of {width} slots from slot {start} on, of {problem.n_slots}"
            raise NoProof(text)
        window = range(start, start + width)
        program = rebuilt.program(window, floors, named_from=proof.first, entered=False)
        floors[start, width] = max(program.least(proof.tree), floors.get((start, width), 0.0))
    slots = range(problem.n_slots)
    held = {} if constant else floors
    entered = problem.initial is not None
    whole = rebuilt.program(slots, held, named_from=0, entered=entered, constant=constant)
    return max(0.0, whole.least(certificate.tree))
