"""A linear model as text, to be held against a stored one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from gpuplanner.solving import solver
from gpuplanner.solving.linear import LinearModel


def lp_text(model: LinearModel) -> str:
    """A model in LP format, as PuLP writes it."""
    problem, _ = solver._to_pulp(model, relaxed=False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.lp"
        problem.writeLP(str(path))
        return path.read_text(encoding="utf-8")
