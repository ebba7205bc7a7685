"""Commands that compare: ``sweep`` layouts on drawn weeks, ``compare`` policies at the same service."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import Exit, app, put, say
from gpuplanner.cli.options import Board, Json, Quiet, ScenarioPath, Seed, Set, drawable
from gpuplanner.cli.show import show, show_frame
from gpuplanner.cli.walk import load_scenario

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplanner.study.equal_service.tuning import Trial

SHOWN = ("gpu_hours", "wait_mean_min", "wait_quantile_min", "completion_mean_min", "changes", "never_started")


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
    """Simulate the right-sized jobs under many static layouts and cut on demand, then compare at equal service.

    Ctrl-C keeps what is done of the sweep.
    """
    import polars as pl

    from gpuplanner.study.equal_service.promise import promise
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
    if found.complete and not quiet:
        say("comparing policies at equal service ...")
    kept = promise(asked) if found.complete else None
    if as_json:
        told = {"complete": found.complete, "asked": found.asked, "rank_by": found.rank_by, "promise": kept}
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
        if kept is not None:
            show_promise(kept, asked.path, quiet=quiet)
    if not found.complete:
        raise typer.Exit(Exit.INTERRUPTED)


def _in_hours(name: str) -> str:
    return f"{name.removesuffix('_s')}_h"


@app.command()
def compare(
    scenario: ScenarioPath,
    wait_minutes: Annotated[
        float | None,
        typer.Option("--wait-minutes", help="How long jobs of each size may wait; 10 by default."),
    ] = None,
    wait_quantile: Annotated[
        float | None, typer.Option("--wait-quantile", help="Share of them that must not wait longer; 0.95.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option("--policies", help="Names with commas between; else what the path can perform."),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option("--path", help="Who changes the fleet: operator, nvml, dra, autoscaler or slurm."),
    ] = None,
    release_unit: Annotated[
        str | None,
        typer.Option(
            "--release-unit", help="What is given away when idle: node, or gpu (which means --path nvml)."
        ),
    ] = None,
    replications: Annotated[
        int | None, typer.Option("--replications", min=2, help="Weeks that policies are judged on.")
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart",
            metavar="FILE",
            callback=drawable,
            help="Draw GPU-hours against waits: .html, a page of its own with all tables, or .svg, a picture.",
        ),
    ] = None,
    hindsight: Annotated[
        bool,
        typer.Option(
            "--hindsight", help="Also tune the winner on the weeks that it is judged on: what was lost."
        ),
    ] = False,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth", help="Also say how many GPUs hold the target as arrivals grow, 0.8 to 2 times."
        ),
    ] = False,
    assignments: Set = None,
    board: Board = None,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare policies at equal service: each is tuned to the same waits on past weeks, and judged on later ones."""
    from gpuplanner.files import require_file
    from gpuplanner.study.equal_service.promise import promise_of

    if chart is not None:
        require_file(chart, inputs=[scenario])

    asked = load_scenario(
        scenario,
        assignments,
        board=board,
        seed=seed,
        wait_minutes=wait_minutes,
        wait_quantile=wait_quantile,
        replications=replications,
        release_unit=release_unit,
        path=path or ("nvml" if release_unit == "gpu" else None),
        policies=policies,
    )
    told = None if quiet else Told()
    found = promise_of(asked, told)
    if hindsight:
        from gpuplanner.study.equal_service.hindsight import hindsight as tuned_in_hindsight

        found["hindsight"] = tuned_in_hindsight(asked, found, told)
    if growth:
        from gpuplanner.study.future.weeks_ahead import grown_weeks_ahead

        found |= grown_weeks_ahead(asked, found, told)
    if chart is not None:
        from gpuplanner.report.equal_service import write_equal_service

        write_equal_service(found, chart, title=f"Equal service: {asked.name}", who=asked.path)
        say(f"written: {chart}")
    if as_json:
        show(found, as_json=True)
        return
    show_promise(found, asked.path, quiet=quiet)
    if found.get("weeks_ahead"):
        import polars as pl

        ahead = pl.DataFrame(found["weeks_ahead"], infer_schema_length=None)
        show_frame(ahead, as_json=False, title="GPUs that hold the target weeks ahead, over paths of demand")


def show_promise(found: Mapping[str, Any], path: str, *, quiet: bool) -> None:
    """Print a comparison: the policies as a table, the decision in a sentence, and what to set."""
    import polars as pl

    from gpuplanner.study.equal_service.tables import rows_of
    from gpuplanner.study.equal_service.words import (
        decision,
        how_sure,
        out_of_reach,
        target_in_words,
        what_to_set,
    )

    rows = [_row(one) for one in rows_of(found)]
    if rows:
        show_frame(pl.DataFrame(rows), as_json=False, title=target_in_words(found))
    put(decision(found))
    for line in (*what_to_set(found, path), *out_of_reach(found), *how_sure(found)):
        put(line)
    if not quiet and rows:
        say(f"tuned before {found['judged_from'][:10]}, judged from then to {found['judged_to'][:10]}")
        say(found["note"])


class Told:
    """Says which policy is being tuned, once for each."""

    def __init__(self) -> None:
        self.policy = ""

    def __call__(self, policy: str, trial: Trial) -> None:
        """Say it where the policy is another one than before."""
        if policy != self.policy:
            self.policy = policy
            say(f"tuning {policy}")


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    missed = [
        row["size_class"] for row in one["by_class"] if row["wait_quantile_min"] > row["target_min"] + 1e-6
    ]
    held = "yes" if one["meets_target"] else f"no: {'; '.join(missed)}"
    return {"policy": one["policy"]} | {name: one[name] for name in SHOWN} | {"holds_target": held}
