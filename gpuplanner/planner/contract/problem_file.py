"""Problems in files: one pool or several, written by hand or taken from a plan file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.contract.problem import PlanProblem

_EXPECTED = "a JSON object: a problem, a plan file, or 'pools' with a problem for each name"


def read_problems(path: str | Path) -> dict[str, PlanProblem]:
    """Read the problem of a file, or of each pool of a fleet.

    Parameters
    ----------
    path : str or Path
        JSON: the values of ``PlanProblem.to_dict`` (what has a default may be left out, and a board may be
        named instead of described), a file that ``plan_to_json`` or ``fleet_to_json`` wrote, or an object
        with ``pools``: a problem for each name.

    Returns
    -------
    dict of str to PlanProblem
        By pool; a single pool bears the name of its board.

    Raises
    ------
    ScenarioError
        If the file is none of these, or a value makes no sense.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(message(str(path), _EXPECTED, str(error), "Check the file.")) from error
    if not isinstance(values, dict):
        raise ScenarioError(message(str(path), _EXPECTED, type(values).__name__, "Check the file."))
    pools = values.get("pools")
    if pools is None:
        found = PlanProblem.from_dict(_problem(values))
        return {found.board.name: found}
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        raise ScenarioError(message(str(path), _EXPECTED, "'pools' of another kind", "Mend it."))
    return {str(name): PlanProblem.from_dict(_problem(pool)) for name, pool in pools.items()}


def _problem(values: dict[str, Any]) -> dict[str, Any]:
    inner = values.get("problem")
    return inner if isinstance(inner, dict) else values
