"""Looks at a running fleet, one after the other: ``watch``."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame
from gpuplanner.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.recurring.watch import FleetLook

STATE, METRICS, PACK = "watch.json", "watch.prom", "pack"
FORMAT = "gpuplanner.watch/1"


@dataclass(frozen=True)
class Watched:
    """What a watch remembers between looks, and what its metrics say."""

    data: str = ""
    at: str = ""
    gpus: int = 0
    looks: int = 0
    packs: int = 0
    failures: int = 0
    gain: float = 0.0
    chance: float = 0.0
    pack_at: str = ""
    sentence: str = ""

    def metrics(self) -> str:
        """The state as Prometheus reads it from a file of the node exporter's text collector."""
        told = {
            "looks_total": ("counter", self.looks, "Looks at the fleet."),
            "packs_total": ("counter", self.packs, "Change packs written."),
            "failures_total": ("counter", self.failures, "Looks that failed."),
            "gain_gpu_hours": ("gauge", self.gain, "Gain of the last plan over the fleet as it is."),
            "chance_ratio": ("gauge", self.chance, "Chance that the last plan is worth its changes."),
        }
        return "".join(
            f"# HELP gpuplanner_watch_{name} {words}\n# TYPE gpuplanner_watch_{name} {kind}\n"
            f"gpuplanner_watch_{name} {value:.10g}\n"
            for name, (kind, value, words) in told.items()
        )


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
    every: Annotated[str, typer.Option(metavar="TIME", help="Between two looks: 15m, 6h, 1d.")] = "6h",
    once: Annotated[bool, typer.Option("--once", help="One look, for cron.")] = False,
    back: Annotated[
        int | None,
        typer.Option(
            "--replay", metavar="DAYS", min=1, help="Replay the last days instead: what looking had gained."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look at a running fleet again and again, and write a change pack where a plan is worth its changes; dry-run."""
    asked, seconds = given.scenario(scenario), _seconds(every)
    if back is not None:
        _replayed(asked, back, seconds, as_json=as_json, quiet=quiet)
        return
    from gpuplanner.errors import GpuPlannerError
    from gpuplanner.files import sole_writer

    while True:
        with sole_writer(out):
            before = _state(out)
            try:
                after = _looked(asked, read or [], out, before)
            except GpuPlannerError as error:
                _keep(out, replace(before, failures=before.failures + 1))
                if once:
                    raise
                say(f"gpuplanner: {error}; looking again in {every}")
            else:
                if as_json:
                    show(vars(after), as_json=True)
                elif after.looks > before.looks or not quiet:
                    put(f"{after.at}  {after.sentence}")
        if once:
            return
        threading.Event().wait(seconds)


def _looked(asked: Scenario, read: list[Path], out: Path, before: Watched) -> Watched:
    """One look, its state and its pack on the disk; data that are those of the last look are not looked at again."""
    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.files import to_json
    from gpuplanner.inbox.together import add_together, parts_of
    from gpuplanner.study.bundled import input_hashes
    from gpuplanner.study.recurring.watch import look

    if read:
        add_together(parts_of(read), asked.data)
    data = to_json(input_hashes(asked.data))
    if data == before.data:
        return before
    found = look(asked)
    at = f"{found.at:%Y-%m-%dT%H:%M:%SZ}"
    if at < before.at:
        what, todo = "watch: end of the data", "Look at the clock of the source; the state stays as it is."
        raise ScenarioError(message(what, f"{before.at}, which was seen, or later", at, todo))
    gpus = found.planned.problem.gpus
    words = found.sentence
    if before.gpus and gpus != before.gpus:
        words += f" The fleet has {gpus:,} GPUs, at the look before {before.gpus:,}."
    if found.worth:
        _write_pack(found, out / PACK)
    elif before.pack_at:
        words += f" The pack of {before.pack_at} is not confirmed by this look."
    after = replace(
        before, data=data, at=at, gpus=gpus, looks=before.looks + 1, packs=before.packs + found.worth,
        gain=round(found.verdict.gain, 6), chance=round(found.verdict.chance, 6),
        pack_at=at if found.worth else before.pack_at, sentence=words,
    )  # fmt: skip
    _keep(out, after)
    return after


def _write_pack(found: FleetLook, folder: Path) -> None:
    """The plan, the order of its first change, and the files of its paths where nodes have names and can be cut."""
    from gpuplanner.files import Mark, replaced_directory
    from gpuplanner.planner import plan_to_json
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


def _state(out: Path) -> Watched:
    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.plain import of_plain

    place = out / STATE
    if not place.exists():
        return Watched()
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise ValueError(place.name)
        return of_plain(Watched, values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = message(str(place), f"a state of {FORMAT!r}", str(error), "Move it away; counts begin anew.")
        raise ScenarioError(text) from None


def _keep(out: Path, state: Watched) -> None:
    """State and metrics, each whole or not at all; the state last, so that a killed look is looked at again."""
    from gpuplanner.files import to_json, write_atomically

    text = to_json({"format": FORMAT} | vars(state))
    write_atomically(out / METRICS, lambda place: place.write_text(state.metrics(), encoding="utf-8"))
    write_atomically(out / STATE, lambda place: place.write_text(text, encoding="utf-8"))


def _seconds(text: str) -> float:
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if hit is None or not float(hit[1]) > 0:
        wrong = f"--every: expected a time such as 15m or 6h; got {text!r}"
        raise typer.BadParameter(wrong)
    return float(hit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[hit[2]]


def _replayed(asked: Scenario, days: int, seconds: float, *, as_json: bool, quiet: bool) -> None:
    import polars as pl

    from gpuplanner.study.recurring.watch import replay

    slots = max(round(seconds / SECONDS_PER_HOUR / asked.slot_hours), 1)
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
