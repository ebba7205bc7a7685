"""Training methods, from ``catalog/facts/training_methods.csv``: what each trains of a model or beside it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from gpuplanner.catalog.loader import facts
from gpuplanner.sizing.predict.architecture import Architecture

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""Matrices of a layer that a method may adapt."""
_NUMBERS = (
    "rank", "r_in", "r_out", "r_sq", "in", "out", "in_out", "each", "layer_h", "layer_kv", "fixed_h", "kept_out",
    "dense",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """What one method trains: all (``trained``), some layers (``layers``) or what it adds to a ``frozen`` model.

    ``counts`` are coefficients of trained parameters: of an adapted matrix by its rank, inputs, outputs and products of
    them; of a layer by hidden size and by width of the keys; once by the hidden size. ``kept_out`` are bytes that
    backward keeps of each adapted output; ``dense`` says that a matrix as large as the adapted one is made.
    """

    name: str
    base: str
    targets: tuple[str, ...]
    counts: dict[str, float]
    layers: int

    @functools.cached_property
    def adapts(self) -> bool:
        """Whether it adds to matrices of the model."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq", "in", "out", "in_out", "each"))

    @functools.cached_property
    def of_rank(self) -> bool:
        """Whether a rank says how much is trained."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq"))

    def matrix_params(self, inputs: int, outputs: int, rank: int) -> float:
        """Trained parameters of one adapted matrix."""
        n = self.counts
        ranked = rank * (n["r_in"] * inputs + n["r_out"] * outputs + n["r_sq"] * rank)
        return ranked + n["in"] * inputs + n["out"] * outputs + n["in_out"] * inputs * outputs + n["each"]


@functools.cache
def methods() -> dict[str, Method]:
    """Every method by its name.

    Examples
    --------
    >>> methods()["dora"].base, methods()["freeze"].layers
    ('frozen', 2)
    """
    return {
        row["method"]: Method(
            row["method"],
            row["base"],
            tuple((row["targets"] or "").split()),
            {name: float(row[name] or 0) for name in _NUMBERS},
            int(row["trained_layers"] or 0),
        )
        for row in facts("training_methods").iter_rows(named=True)
    }


@functools.cache
def method_names() -> dict[str, str]:
    """Method by each of its names, in lower case and with ``_`` between words."""
    table = facts("training_methods").select("method", "called").iter_rows()
    return {name: method for method, called in table for name in (method, *(called or "").split())}


def matrices(model: Architecture, targets: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of the adapted matrices of a layer; a plain MLP has no gate.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> matrices(preset("llama-2-7b"), ("q", "down"))
    [('q', 4096, 4096), ('down', 11008, 4096)]
    """
    sides = model.sides
    return [(name, *sides[name]) for name in targets if name != "gate" or model.gated]
