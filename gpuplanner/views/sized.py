"""A job before it runs, for notebooks and scripts: plans, slices, memory, and what the tool does unasked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page
from gpuplanner.report.section import still
from gpuplanner.scenario import Scenario
from gpuplanner.sizing.predict.model import shipped_model
from gpuplanner.study.past.history import boards_at_hand, boards_of_trace
from gpuplanner.study.size import Sized, sized, stack
from gpuplanner.study.wish import Wish, boards_named
from gpuplanner.views.trace import SeenTrace
from gpuplanner.views.view import View

PLAN = (
    "rank", "board", "profile", "gpus", "predicted_gib", "upper_gib", "board_gib", "p_oom", "tokens_per_s", "hours",
    "price", "energy_kwh",
)  # fmt: skip
REASONS = {
    "why": "why",
    "next_smaller": "the next smaller one",
    "launch": "to start it",
    "request": "to ask for it",
}
_FORMATS = {
    "p_oom": ".1%",
    "tokens_per_s": ",.0f",
    "tokens_per_s_low": ",.0f",
    "tokens_per_s_high": ",.0f",
    "slowdown": ".1%",
    "factor": ".2f",
}
_HEADINGS = {
    "predicted_gib": "expected [GiB]",
    "upper_gib": "at most, in 95 of 100 [GiB]",
    "board_gib": "there is [GiB]",
    "p_oom": "runs out of memory",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_low": "at least",
    "tokens_per_s_high": "at most",
}


@dataclass(frozen=True, eq=False)
class SizedJob:
    """Plans for a job, the best first; its parts show themselves.

    - ``wish``, ``found``: What was asked, and the plans with what was taken for granted.
    """

    wish: Wish
    found: Sized

    def _repr_html_(self) -> str:
        return still(self.plans().section)._repr_html_()

    def plans(self) -> View:
        """The plans, why the first ones are so, and what was assumed."""
        table = self.found.table()
        best = self.found.plans[0]
        said = page.note(
            f"{self.found.note or 'Best'}: {best.gpus} x {best.board} {best.profile.replace('gpu', '')}".rstrip()
            + f", {best.why}."
        )
        rows = page.table(
            table.select(name for name in PLAN if name in table.columns and table[name].count()),
            caption=f"{self.wish.task} {self.found.model.name}, the best plan first",
            formats=_FORMATS,
            headings=_HEADINGS,
        )
        reasons = [
            page.answers(
                {words: getattr(one, name) for name, words in REASONS.items() if getattr(one, name)},
                caption=f"Plan {one.rank}: {one.gpus} x {one.board}",
            )
            for one in self.found.plans[:3]
        ]
        assumed = page.paragraph(f"Assumed: {'; '.join(self.found.assumed) or 'nothing'}.")
        return View(page.section("Plans", said, rows, *reasons, assumed), table)

    def slices(self) -> View:
        """Every slice of the boards at hand, also those that the job does not fit."""
        table = self.found.slice_table()
        shown = (
            page.paragraph("Name the boards at hand (on=) to see their slices.")
            if table.is_empty()
            else page.table(table, caption="Slices", formats=_FORMATS, headings=_HEADINGS)
        )
        return View(page.section("Slices", shown), table)

    def memory(self) -> View:
        """What fills the memory of each plan that is explained."""
        table = stack(self.found.plans)
        best = self.found.plans[0]
        chart = page.figure(
            plot.plot_memory_stack(table),
            title="Memory of each plan, part by part",
            alt=f"Plan 1 is expected to take {best.predicted_gib:.1f} GiB of {best.board_gib:.1f}, and in 95 of 100 "
            f"runs at most {best.upper_gib:.1f}. The thin mark is that bound, the grey one the board.",
            numbers=table,
        )
        return View(page.section("What fills the memory", chart), table)

    def bounds(self) -> View:
        """How wide the bound of the best plan is, by what is known of the tool."""
        known, best = shipped_model(), self.found.plans[0]
        logs = {
            "tool seen, after five runs": known.few,
            "tool unseen": known.unseen,
            "no tool known": known.generic,
        }
        rows = [(name, math.exp(log), best.predicted_gib * math.exp(log)) for name, log in logs.items()]
        table = pl.DataFrame(rows, schema=["what is known", "factor", "upper_gib"], orient="row")
        shown = page.table(
            table, caption=f"{best.predicted_gib:.1f} GiB expected", formats=_FORMATS, headings=_HEADINGS
        )
        return View(page.section("How wide the bound is", shown), table)

    def tool(self) -> View:
        """What the tool does unasked, with sources."""
        table = pl.DataFrame(
            [asdict(one) for one in self.found.tool_does], schema=["fact", "value", "source"]
        )
        return View(
            page.section("What the tool does", page.table(table, caption="What the tool does unasked")), table
        )


def size(
    model: str,
    *,
    task: str = "train",
    seq: int = 4096,
    tool: str | None = None,
    tokens: float | None = None,
    deadline_h: float | None = None,
    on: SeenTrace | Scenario | Mapping[str, int | None] | str | None = None,
) -> SizedJob:
    """Size a job before it runs: memory with a bound that says how sure it is, time, money, and where it runs best.

    Parameters
    ----------
    model : str
        Preset, path of a config.json, or a spec such as ``"layers=32 hidden=4096"``.
    task : str
        ``"train"``, ``"dpo"``, ``"lora"``, ``"qlora"`` or ``"serve"``.
    seq : int
        Tokens of a sequence; serving: of prompt and answer.
    tool : str, optional
        Training tool, as far as its documentation is known.
    tokens : float, optional
        To train on, or to generate.
    deadline_h : float, optional
        Hours until it is done.
    on : SeenTrace, Scenario, Mapping or str, optional
        Boards at hand: those of a trace or of a scenario's fleet, board → GPUs, or words such as
        ``"H100-80GB-SXM5=64 A30"``; default: all with a data sheet and a price.

    Returns
    -------
    SizedJob
        ``plans()``, ``slices()``, ``memory()``, ``bounds()``, ``tool()``: a view each.

    Raises
    ------
    GpuPlannerError
        If the model, a word or a board is not known, or nothing fits; the message says what to do.

    Examples
    --------
    >>> found = size("gpt2", seq=1024, tokens=1e9, deadline_h=24, on="A100-80GB=8")
    >>> found.plans().frame().select("board", "gpus").row(0)
    ('A100-80GB', 1)
    """
    if isinstance(on, SeenTrace):
        boards: Mapping[str, int | None] | None = boards_of_trace(on.box.trace, on.box.board, where=on.name)
    elif isinstance(on, Scenario):
        boards = boards_at_hand(on)
    else:
        boards = boards_named(on.split()) if isinstance(on, str) else on
    wish = Wish(model, task, seq, tool, tokens, deadline_h, boards)
    return SizedJob(wish, sized(wish))
