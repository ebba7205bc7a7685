"""Prove the bound of a plan again from its certificate, or say that it is not checked.

The linear program is built anew from the problem, and every floor and the bound are added up from the prices of
the certificate alone, see :mod:`gpuplanner.planner.verification.weak_duality`. No solver takes part.
"""

from __future__ import annotations

from gpuplanner.errors import GpuPlannerError
from gpuplanner.planner.contract.certificate import Certificate
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.verification.rebuilt import Rebuilt
from gpuplanner.planner.verification.weak_duality import NoProof

_TOLERANCE = 1e-6


def verify_bound(plan: Plan, problem: PlanProblem) -> tuple[list[str], str]:
    """Prove the bound of a plan again.

    Parameters
    ----------
    plan : Plan
        A plan without other faults, see :func:`~gpuplanner.planner.verify`.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    faults : list of str
        What is wrong: a bound or a status that the certificate does not prove, or a certificate that is none.
    words : str
        What was proven, and what was not checked.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 30, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 25, 4]]]
    ... )
    >>> best = plan(problem, method="milp")
    >>> verify_bound(best, problem)[0]
    []
    >>> verify_bound(replace(best, certificate=None), problem)[1]
    'bound not checked: the plan holds no certificate; plan again to have one'
    """
    if not plan.found:
        return [], f"status {plan.status}: there is no bound to check"
    assert plan.bound is not None
    certificate = plan.certificate
    if certificate is None:
        return [], "bound not checked: the plan holds no certificate; plan again to have one"
    constant = plan.method == "static"
    try:
        proven = proven_bound(certificate, problem, constant=constant)
    except (NoProof, GpuPlannerError, RecursionError) as error:
        return [
            f"certificate: it proves nothing for this problem: {error}; plan again, or remove it from the plan: "
            "the bound is then not checked"
        ], ""
    slack = _TOLERANCE * max(1.0, abs(plan.bound))
    if proven + slack < min(plan.bound, certificate.bound):
        stated = min(plan.bound, certificate.bound)
        return [
            f"bound: the plan says that none costs less than {stated:.9g}, its certificate proves no more than "
            f"{proven:.9g}; do not trust bound, gap and status: plan again"
        ], ""
    if proven + slack >= plan.bound:
        return [], f"bound {plan.bound:.9g} and status {plan.status} proven again, without a solver"
    if not certificate.rest:
        return [
            f"bound: the plan says {plan.bound:.9g}, its certificate {certificate.bound:.9g}; plan again"
        ], ""
    part = 1 - proven / plan.objective if plan.objective else 0.0
    who = "plan without change" if constant else "plan"
    return [], (
        f"bound not checked above {proven:.9g} (proven again: no {who} is cheaper by more than {100 * part:.2f} %); "
        f"the {plan.bound:.9g} of the plan, status {plan.status}, rest on {certificate.rest}"
    )


def proven_bound(certificate: Certificate, problem: PlanProblem, *, constant: bool = False) -> float:
    """Cost that no plan undercuts, or if `constant` none without change, as far as a certificate proves it."""
    rebuilt = Rebuilt(certificate, problem)
    floors: dict[tuple[int, int], float] = {}
    for start, width, proof in certificate.floors:
        if width < 1 or start + width > problem.n_slots:
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
