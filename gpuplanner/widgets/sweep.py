"""The sweep panel: run many layouts over the same jobs, watch, and stop when enough is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from html import escape
from typing import Any

import polars as pl

from gpuplanner._optional import import_optional
from gpuplanner.simulate import Fleet, Rules
from gpuplanner.study.future.sweep import Policies, Sweep, sweep
from gpuplanner.widgets.background import BackgroundPanel, table_html

HEADINGS = {
    "mean_jct_s": ("mean completion (h)", 3600.0),
    "p95_jct_s": ("95 % complete within (h)", 3600.0),
    "mean_queueing_delay_s": ("mean wait (min)", 60.0),
    "p95_queueing_delay_s": ("95 % wait less than (min)", 60.0),
    "makespan_s": ("all complete after (h)", 3600.0),
    "utilisation_server": ("slices held, of the fleet (%)", 0.01),
}
"""Heading of each measure with its unit, and what divides the figure."""
SHOWN = ("mean_jct_s", "p95_queueing_delay_s", "utilisation_server")
"""Measures in every answer, after the one that ranks."""


class SweepPanel(BackgroundPanel[Policies, Sweep]):
    """A bar, a button that runs the sweep, and one that stops it and keeps what is done.

    Parameters
    ----------
    jobs, fleet, policies, rules
        As for :func:`gpuplanner.study.future.sweep.sweep`;
        :func:`gpuplanner.study.future.sweep.layouts_to_sweep` gives them for a scenario.
    **how
        Its further arguments, but ``progress`` and ``cancel``, which are the panel's.

    Attributes
    ----------
    bar : ipywidgets.IntProgress
        Policies done.
    start, stop : ipywidgets.Button
        Run, and cancel.
    found : Sweep or None
        Newest answer.

    Examples
    --------
    >>> from gpuplanner.simulate import Calendar
    >>> jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "run_s": 60.0, "gpus": 1,
    ...     "profile": "gpu"})
    >>> panel = SweepPanel(jobs, Fleet("A100-80GB", 1, 8), {"whole": Calendar.constant({"gpu": 8})}, Rules("strict"))
    >>> panel.ask().result(timeout=1800).table["mean_jct_s"].to_list(), panel.bar.value
    ([60.0], 1)
    """

    def __init__(
        self,
        jobs: pl.DataFrame | Sequence[pl.DataFrame],
        fleet: Fleet,
        policies: Policies,
        rules: Rules,
        **how: Any,  # noqa: ANN401 - as sweep takes them
    ) -> None:
        super().__init__(self._sweep, sweep_html, working="Simulating ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.policies = dict(policies)
        self._problem = (jobs, fleet, rules)
        self._how = how
        self._cancelled = threading.Event()
        self.bar = widgets.IntProgress(min=0, max=len(self.policies), description="Policies")
        self.start = widgets.Button(description="Run", tooltip="Simulate the jobs under every policy")
        self.stop = widgets.Button(description="Cancel", tooltip="Stop, and keep what is done", disabled=True)
        self.start.on_click(lambda _: self.ask())
        self.stop.on_click(lambda _: self.cancel())
        weeks = [jobs] if isinstance(jobs, pl.DataFrame) else list(jobs)
        each = "" if len(weeks) == 1 else f" in {len(weeks)} weeks"
        self.status.value = (
            f"{len(self.policies)} policies, {sum(week.height for week in weeks):,} jobs{each}."
        )
        buttons = widgets.HBox([self.start, self.stop])
        self.panel = widgets.VBox([buttons, self.bar, self.status, self.answer])

    @property
    def question(self) -> Policies:
        """What is compared."""
        return self.policies

    @property
    def found(self) -> Sweep | None:
        """Newest answer."""
        return self.newest

    def ask(self) -> Future[Sweep]:
        """Run the sweep in the background; one that is under way ends first, with what it has."""
        self._cancelled.set()
        self._cancelled = threading.Event()
        self.bar.value, self.stop.disabled = 0, False
        return super().ask()

    def cancel(self) -> None:
        """Stop before the next run; the answer then shows the policies that are done."""
        self._cancelled.set()

    def _sweep(self, policies: Policies) -> Sweep:
        jobs, fleet, rules = self._problem
        cancelled = self._cancelled

        def progress(done: int, asked: int, name: str) -> None:
            self._in_kernel(self._show_progress, done, asked, name)

        return sweep(jobs, fleet, policies, rules, progress=progress, cancel=cancelled.is_set, **self._how)

    def _show_progress(self, done: int, asked: int, name: str) -> None:
        self.bar.value = done
        self.status.value = f"{done} of {asked} done, last {escape(name)}."

    def _arrived(self, number: int, newest: Sweep | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, status)
        if number == self._asked:
            self.stop.disabled = True


def sweep_html(found: Sweep) -> str:
    """Show a sweep as a table, best policy first.

    Examples
    --------
    >>> from gpuplanner.study.future.sweep import Sweep
    >>> table = pl.DataFrame({"policy": ["<a>"], "unserved": [0], "mean_jct_s": [7200.0],
    ...     "p95_queueing_delay_s": [90.0], "utilisation_server": [0.5], "difference": [None]})
    >>> text = sweep_html(Sweep(table, asked=2, rank_by="mean_jct_s", baseline="<a>"))
    >>> "<td>2.00</td><td>–</td><td>1.50</td><td>50.00</td>" in text
    True
    """
    ranking, unit = HEADINGS[found.rank_by]
    others = {name: HEADINGS[name] for name in SHOWN if name != found.rank_by}
    columns = {found.rank_by: (ranking, unit), "difference": ("difference in it", unit)} | others
    headings = ["policy", *(heading for heading, _ in columns.values()), "jobs not served"]
    rows = (
        [row["policy"]]
        + ["–" if row[name] is None else f"{row[name] / by:,.2f}" for name, (_, by) in columns.items()]
        + [f"{row['unserved']:,}"]
        for row in found.table.to_dicts()
    )
    said = "" if found.complete else f"Cancelled: {found.done} of {found.asked} policies. "
    said += f"Ranked by {ranking}; differences are to {found.baseline}."
    return f"<p>{escape(said)}</p>{table_html(headings, rows)}"
