"""The limits panel: set one limit otherwise, and see what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import polars as pl

from gpuplanner._optional import import_optional
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.search import plan
from gpuplanner.planner.variants import price_of_limits, with_limit
from gpuplanner.units import NO_FIGURE
from gpuplanner.widgets.background import BackgroundPanel, table_html


@dataclass(frozen=True)
class LimitControl:
    """One limit and the range of its slider.

    - ``argument``: Of :func:`gpuplanner.planner.variants.with_limit`.
    - ``label``: With its unit.
    - ``help``: What it means; shown when the pointer rests on it and read by screen readers.
    - ``span``: From a problem to the lowest value, the highest one, and the one as the problem stands.
    """

    argument: str
    label: str
    help: str
    span: Callable[[PlanProblem], tuple[int, int, int]]


def _switches(problem: PlanProblem) -> tuple[int, int, int]:
    most = math.ceil(24 / problem.slot_hours)  # once in every slot is as good as no limit
    allowed = problem.limits.switches_per_day
    return 0, most, most if allowed is None else min(allowed, most)


LIMITS = (
    LimitControl(
        "gpus", "GPUs in the fleet", "What would fewer GPUs cost, or more of them save?",
        lambda problem: (1, problem.gpus + 2 * problem.gpus_per_node, problem.gpus),
    ),
    LimitControl(
        "whole_nodes_kept", "Nodes kept whole", "Nodes, the first ones, on which no GPU is ever cut",
        lambda problem: (0, problem.gpus // problem.gpus_per_node, problem.limits.whole_nodes_kept),
    ),
    LimitControl(
        "switches_per_day", "Cuts of one GPU a day, at most", "How often one GPU may be cut anew within a day",
        _switches,
    ),
)  # fmt: skip
_HEADINGS = ("", "cost", "no plan costs less", "price", "at least", "at most")


class LimitsPanel(BackgroundPanel[tuple[LimitControl, int], pl.DataFrame]):
    """Choose a limit and its value, and see the cost before and after and the price of the limit.

    Parameters
    ----------
    problem : PlanProblem
        As it stands; the panel prices one limit at a time against it.
    base : Plan, optional
        Its plan, if there is one already; else it is planned with the first question.
    **how
        Limits of each search, as for :func:`gpuplanner.planner.contract.plan`.

    Attributes
    ----------
    choice : ipywidgets.Dropdown
        Which limit.
    sliders : dict
        ipywidgets controls by argument of ``with_limit``; the one of the chosen limit is shown.
    prices : polars.DataFrame or None
        Newest answer, see :func:`gpuplanner.planner.variants.price_of_limits`.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> panel = LimitsPanel(problem, gap_target=0)
    >>> panel.sliders["gpus"].value = 1
    >>> panel.ask().result()["extra"].round(3).to_list()
    [0.0, 7.521]
    """

    def __init__(self, problem: PlanProblem, *, base: Plan | None = None, **how: Any) -> None:  # noqa: ANN401
        super().__init__(self._priced, price_html, working="Computing: the plan within this limit ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.problem = problem
        self._base = base
        self._how = how
        self.choice = widgets.Dropdown(
            options=[(limit.label, limit) for limit in LIMITS],
            description="Limit",
            style={"description_width": "18em"},
            layout={"width": "38em"},
        )
        self.sliders = {limit.argument: _slider(limit, problem) for limit in LIMITS}
        self.code = widgets.HTML()
        self.button = widgets.Button(description="Plan", tooltip="Plan within the limit as it is set")
        self.choice.observe(lambda _: self._changed(), names="value")
        for control in self.sliders.values():
            control.observe(lambda _: self._changed(), names="value")
        self.button.on_click(lambda _: self.ask())
        self.panel = widgets.VBox(
            [self.choice, *self.sliders.values(), self.button, self.code, self.status, self.answer]
        )
        self._say()

    @property
    def question(self) -> tuple[LimitControl, int]:
        """The chosen limit and its value."""
        limit: LimitControl = self.choice.value
        return limit, self.sliders[limit.argument].value

    @property
    def prices(self) -> pl.DataFrame | None:
        """Newest answer."""
        return self.newest

    def _priced(self, question: tuple[LimitControl, int]) -> pl.DataFrame:
        limit, value = question
        variants = {}
        if value != limit.span(self.problem)[2]:
            variants[_name(limit, value)] = with_limit(self.problem, **{limit.argument: value})
        if self._base is None:
            self._base = plan(self.problem, **self._how)
        return price_of_limits(self.problem, variants, base=self._base, **self._how)

    def _changed(self) -> None:
        self._say()
        self.ask_soon()

    def _say(self) -> None:
        """Show the slider of the chosen limit alone, and the question in code."""
        limit, value = self.question
        for argument, control in self.sliders.items():
            control.layout.display = None if argument == limit.argument else "none"
        asked = f"found.limits({limit.argument}={value})"
        self.code.value = f"<code>{escape(asked)}</code>"


def price_html(prices: pl.DataFrame) -> str:
    """Cost before and after, the price of each limit with its range, and what binds.

    Parameters
    ----------
    prices : polars.DataFrame
        From :func:`gpuplanner.planner.variants.price_of_limits`: the problem as it stands, then its variants.
    """
    rows = list(prices.iter_rows(named=True))
    cells = (
        [row["variant"], *(_number(row[name], "") for name in ("objective", "bound"))]
        + [_number(row[name], "+") for name in ("extra", "extra_low", "extra_high")]
        for row in rows
    )
    said = "".join(
        f"<p><b>{escape(row['variant'])}.</b> {escape(row['explanation'])}</p>" for row in rows[1:] or rows
    )
    caption = "What limits cost [GPU h]: the true price lies between its proven ends"
    return table_html(_HEADINGS, cells, caption=caption) + said


def _number(value: float | None, sign: str) -> str:
    return NO_FIGURE if value is None else format(round(value, 1) + 0.0, f"{sign},.1f").replace("-", "−")


def _name(limit: LimitControl, value: int) -> str:
    return f"{limit.label}: {value}"


def _slider(limit: LimitControl, problem: PlanProblem) -> Any:  # noqa: ANN401 - an ipywidgets control
    """A slider set to the problem as it stands; a drag ends in one change."""
    widgets = import_optional("ipywidgets", extra="notebook")
    low, high, now = limit.span(problem)
    return widgets.IntSlider(
        value=now,
        min=low,
        max=high,
        description=limit.label,
        tooltip=limit.help,
        continuous_update=False,
        style={"description_width": "18em"},
        layout={"width": "38em"},
    )
