"""Looks at a running fleet, one after the other: ``watch``."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Overwrite, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame
from gpuplanner.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from gpuplanner.errors import GpuPlannerError
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.recurring.watch import FleetLook
    from gpuplanner.study.recurring.watched import Watched


@app.command()
@takes("watch_chance", "watch_frozen_hours", "horizon_slots", "quantile", "work_limit", "seed")
def watch(
    scenario: ScenarioPath,
    given: Given,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of state, metrics and the pack.")] = Path(
        "watch"
    ),
    read: Annotated[
        list[Path] | None,
        typer.Option(
            "--read",
            metavar="FILE",
            help="Read this dump (sacct, scontrol, kubectl -o json) into the data before each look; may be repeated.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Before each look, read telemetry since the last reading from this Prometheus.",
        ),
    ] = None,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="Between two looks, with --once as well: 15m, 6h, 1d.")
    ] = "6h",
    once: Annotated[bool, typer.Option("--once", help="One look, for cron.")] = False,
    back: Annotated[
        int | None,
        typer.Option(
            "--replay", metavar="DAYS", min=1, help="Replay the last days instead: what looking had gained."
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look at a running fleet again and again, and write a change pack where a plan is worth its changes; dry-run."""
    asked, seconds = given.scenario(scenario), _seconds(every)
    if back is not None:
        _replayed(asked, back, seconds, as_json=as_json, quiet=quiet)
        return
    from gpuplanner.errors import GpuPlannerError
    from gpuplanner.files.lock import sole_writer
    from gpuplanner.plain import to_plain
    from gpuplanner.study.recurring.watched import require_free, state_of

    require_free(out)
    while True:
        with sole_writer(out):
            before, after, found = state_of(out), None, None
            failed = _read(asked, read or [], prometheus, seconds)
            try:
                after, found = _looked(asked, out, before, _slots(asked, seconds))
            except GpuPlannerError as error:
                failed.append(error)
            after = replace(after or before, failures=before.failures + len(failed))
            if after != before:
                _keep(after, found, out, seconds, asked.number_locale)
            if failed and once:
                raise failed[0]
            for each in failed:
                say(f"gpuplanner: {each}; looking again in {every}")
            if as_json:
                show(to_plain(after), as_json=True)
            elif after.looks > before.looks or not quiet:
                put(f"{after.at}  {after.sentence}")
        if once:
            return
        threading.Event().wait(seconds)


def _read(
    asked: Scenario, files: list[Path], prometheus: str | None, seconds: float
) -> list[GpuPlannerError]:
    """Read dumps and telemetry into the data; what cannot be read is told, and the look goes on with what is there."""
    from gpuplanner.errors import GpuPlannerError
    from gpuplanner.inbox.additions import add_live
    from gpuplanner.inbox.together import add_together, parts_of

    failed = []
    for given, reading in (
        (files, lambda: add_together(parts_of(files), asked.data)),
        (
            prometheus,
            lambda: add_live(str(prometheus), asked.data, until=datetime.now(UTC), at_first_s=seconds),
        ),
    ):
        try:
            if given:
                reading()
        except GpuPlannerError as error:
            failed.append(error)
    return failed


def _looked(asked: Scenario, out: Path, before: Watched, every: int) -> tuple[Watched, FleetLook | None]:
    """One look, and its pack on the disk; data that are those of the last look are not looked at again."""
    from gpuplanner.files.text import to_json
    from gpuplanner.study.bundled import input_hashes
    from gpuplanner.study.recurring.watch import look
    from gpuplanner.study.recurring.watched import PACK, advice_of

    data = to_json(input_hashes(asked.data))
    if data == before.data:
        return before, None
    found = look(asked, every, advice_of(out, before))
    after = before.after(found, data)
    if found.worth:
        _write_pack(found, out / PACK)
    return after, found


def _keep(state: Watched, found: FleetLook | None, out: Path, seconds: float, locale: str) -> None:
    """Page and state on the disk; the state last, so that a killed look is looked at again."""
    from gpuplanner.report.recurring.watch import watch_page
    from gpuplanner.study.recurring.watched import PAGE, keep, write_record

    page = watch_page(state, refresh_s=min(seconds, 60.0), locale=locale)
    write_record(out / PAGE, page)
    keep(out, state, found)


def _write_pack(found: FleetLook, folder: Path) -> None:
    """The plan, the order of its first change, and the files of its paths where nodes have names and can be cut."""
    from gpuplanner.files.manifest import Mark
    from gpuplanner.files.folder import replaced_directory
    from gpuplanner.planner.contract.plan import plan_to_json
    from gpuplanner.study.handover.calendar import export_plan

    planned = found.planned
    mark = Mark("look.txt", "gpuplanner watch 1", ("plan.json", "steps.csv"))
    with replaced_directory(folder, mark=mark) as place:
        (place / "look.txt").write_text(
            f"gpuplanner watch 1\n{found.at:%Y-%m-%d %H:%M} UTC\n{found.sentence}\n"
        )
        (place / "plan.json").write_text(plan_to_json(planned.plan, planned.problem), encoding="utf-8")
        found.steps.write_csv(place / "steps.csv")
    if planned.problem.board.profiles and planned.problem.nodes is not None:
        export_plan(folder / "plan.json", folder.with_name(f"{folder.name}-files"))


def _seconds(text: str) -> float:
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if hit is None or not float(hit[1]) > 0:
        wrong = f"--every: expected a time such as 15m or 6h; got {text!r}"
        raise typer.BadParameter(wrong)
    return float(hit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[hit[2]]


def _slots(asked: Scenario, seconds: float) -> int:
    return max(round(seconds / SECONDS_PER_HOUR / asked.slot_hours), 1)


def _replayed(asked: Scenario, days: int, seconds: float, *, as_json: bool, quiet: bool) -> None:
    import polars as pl

    from gpuplanner.study.recurring.watch import replay

    slots = _slots(asked, seconds)
    found = replay(
        asked, days=days, every=slots,
        told=None if quiet else lambda at, one, worth: say(
            f"slot {at}: gain {one.gain:,.0f} GPU-hours, {one.chance:.0%} sure: {'taken' if worth else 'left'}"
        ),
    )  # fmt: skip
    rows = [vars(one) for one in found.rows]
    if as_json:
        show(
            {
                "begin": found.begin,
                "days": days,
                "looks": found.looks,
                "refused": found.refused,
                "ways": rows,
            },
            as_json=True,
        )
        return
    title = (
        f"{days} days from {found.begin:%Y-%m-%d %H:%M} UTC, a look every {slots} slots: cost in GPU-hours"
    )
    show_frame(pl.DataFrame(rows), as_json=False, title=title)
    put(f"{found.refused} of {found.looks} looks wrote no pack.")
