"""The command that compares layouts: ``sweep``."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from gpuplanner.cli.app import Exit, app, say
from gpuplanner.cli.options import Board, Json, Quiet, ScenarioPath, Seed, Set
from gpuplanner.cli.show import show, show_frame
from gpuplanner.cli.walk import load_scenario


@app.command()
def sweep(
    scenario: ScenarioPath,
    layouts: Annotated[int, typer.Option(min=1, help="Most static mixes of layouts to simulate.")] = 20,
    rank_by: Annotated[
        str,
        typer.Option("--rank-by", help="Measure that ranks, for example mean_jct_s or p95_queueing_delay_s."),
    ] = "mean_jct_s",
    assignments: Set = None,
    board: Board = None,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate the right-sized jobs under many static layouts and cut on demand; Ctrl-C keeps what is done."""
    import polars as pl

    from gpuplanner.study.future.layout_sweep import sweep_layouts

    asked = load_scenario(scenario, assignments, board=board, seed=seed)
    cancelled = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: cancelled.set())

    def progress(done: int, total: int, name: str) -> None:
        if not quiet:
            say(f"{done}/{total}  {name}")

    try:
        found = sweep_layouts(
            asked, most=layouts, rank_by=rank_by, progress=progress, cancel=cancelled.is_set
        )
    finally:
        signal.signal(signal.SIGINT, before)
    if as_json:
        told = {"complete": found.complete, "asked": found.asked, "rank_by": found.rank_by}
        show(told | {"baseline": found.baseline, "table": found.table.to_dicts()}, as_json=True)
    else:
        times = (found.rank_by, "difference", "difference_low", "difference_high")
        shown = found.table.select(
            "rank",
            "policy",
            "unserved",
            (pl.col(times) / 3600).name.map(_in_hours),
            "p_holm",
            "utilisation_server",
        )
        show_frame(
            shown, as_json=False, title=f"{found.done} of {found.asked} policies, ranked by {found.rank_by}"
        )
        if not quiet:
            say(f"differences in {found.rank_by} are to {found.baseline}; 95 % intervals over drawn weeks")
            say("p_holm below 0.05: the policy surely differs, in this table as a whole")
    if not found.complete:
        raise typer.Exit(Exit.INTERRUPTED)


def _in_hours(name: str) -> str:
    return f"{name.removesuffix('_s')}_h"
