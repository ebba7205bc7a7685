"""Files that a chart option writes: a page of its own, or one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplanner import plot
from gpuplanner.files import write_atomically

if TYPE_CHECKING:
    from altair.typing import ChartType

ENDINGS = (".html", ".svg")
"""A page of its own; a picture."""


def roomy(chart: ChartType) -> ChartType:
    """Leave room at both sides for names in a font wider than the one that pictures are laid out with."""
    return chart.properties(padding={"left": 40, "top": 5, "right": 60, "bottom": 5})


def told_svg(charts: Sequence[ChartType], words: Sequence[str]) -> str:
    """One picture of several charts, with what they say in words as its title.

    Examples
    --------
    >>> import polars as pl
    >>> costs = plot.plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD")
    >>> told_svg([costs], ["a costs 1 USD."]).count("<title>a costs 1 USD.</title>")
    1
    """
    opening, rest = plot.charts_to_svg(charts).split(">", 1)
    return f'{opening} role="img"><title>{escape(" ".join(words))}</title>{rest}'


def write_drawn(path: str | Path, *, page: Callable[[], str], picture: Callable[[], str]) -> Path:
    """Write a page of its own (``.html``) or a picture (``.svg``), as the ending of the name says."""
    text = picture() if Path(path).suffix == ".svg" else page()
    return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))
