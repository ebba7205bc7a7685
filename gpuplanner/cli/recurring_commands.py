"""Commands that run on a schedule: ``check``, ``watch``, ``schedule`` and reports of several months."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    Given,
    Json,
    Overwrite,
    Quiet,
    ScenarioPath,
    app,
    put,
    say,
    show,
    show_frame,
    takes,
)
from gpuplanner.core.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.capacity_check import Gate
    from gpuplanner.decision.replanning import FleetLook, Watched


@app.command()
@takes(
    "gate_days", "gate_wait_minutes", "gate_late_share", "gate_short_chance", "gate_miss_chance",
    "gate_run_out_chance", "purchase_lead_days", "tz", "seed",
)  # fmt: skip
def check(
    scenario: ScenarioPath,
    given: Given,
    out: Annotated[
        Path | None,
        Option(
            "-o",
            "--alerts",
            metavar="DIR",
            help="Write what failed for alertmanager.json, chat.json, webhook.json and mail.eml, and check.prom.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether a fleet serves its jobs, and will; for pipelines: exit 0 where all is well, 1 where not."""
    from gpuplanner.decision.capacity_check import Alerts, gate, subject

    found = gate(given.scenario(scenario))
    if out is not None:
        _write(found, out)
        say(f"written to {out}", quiet=quiet)
    if as_json:
        show(found.to_dict() | {"alerts": Alerts(found).to_dict()}, as_json=True)
    else:
        width = max(len(one.name) for one in found.checks)
        for one in found.checks:
            word = "FAILED" if not one.passed else "passed" if one.value is not None else "-"
            put(f"{word:<6}  {one.name:<{width}}  {one.sentence}")
        put(f"all checks passed (data to {found.at:%Y-%m-%d %H:%M} UTC)" if found.passed else subject(found))
    if not found.passed:
        raise typer.Exit(Exit.CHECK_FAILED)


def _write(found: Gate, out: Path) -> None:
    """Payloads of what failed; of an earlier run nothing is left where all passed."""
    from gpuplanner.core.output_places import Mark
    from gpuplanner.core.output_writing import replaced_directory
    from gpuplanner.core.serialization import to_json
    from gpuplanner.decision.capacity_check import CHECK_FORMAT, Alerts, mail_text, metrics_text

    names = ("alertmanager.json", "chat.json", "webhook.json", "mail.eml")
    with replaced_directory(out, mark=Mark("check.prom", CHECK_FORMAT, names)) as folder:
        (folder / "check.prom").write_text(metrics_text(found), encoding="utf-8")
        for channel, payload in Alerts(found).to_dict().items():
            if channel == "mail":
                (folder / "mail.eml").write_text(mail_text(found), encoding="utf-8")
            else:
                (folder / f"{channel}.json").write_text(to_json(payload), encoding="utf-8")


KINDS = {"cron": ["crontab"], "systemd": ["service", "timer"], "ci": ["yaml"], "kubernetes": ["yaml"]}


def report_chain(
    asked: Scenario, text: str, out: Path, again: Sequence[str], *, as_json: bool, quiet: bool
) -> None:
    """Report months one after the other, and say where each stands."""
    from gpuplanner.report.monthly_reports import LEFT_OUT, Chain, months_between, report_months

    months = months_between(text, asked)
    if not months:  # a schedule looks again
        say(f"report {text}: no month of the data is whole yet")
        if as_json:
            put(Chain().to_json())
        return
    chain = report_months(asked, months, out, again=again, told=lambda text: say(text, quiet=quiet))
    if as_json:
        put(chain.to_json())
    else:
        for one in chain.months:
            told = next((step.facts.get("sentence") for step in one.steps if step.name == "study"), None)
            put(f"{one.month}  {told or one.steps[-1].error}")
        put(str(out / "index.html"))
    if any(step.state == LEFT_OUT for one in chain.months for step in one.steps):
        raise typer.Exit(Exit.MISSING_PART)


@app.command()
def schedule(
    kind: Annotated[str, Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    data: Annotated[
        str, Option("--data", "--scenario", help="Folder or scenario as the machine that runs it knows it.")
    ] = "/srv/gpuplanner/cluster",
    out: Annotated[
        str, Option("-o", "--out", help="Folder of the reports there.")
    ] = "/srv/gpuplanner/reports",
    at: Annotated[str, Option(metavar="HH:MM", help="Time of the day, UTC.")] = "05:30",
    image: Annotated[str, Option(help="Image with gpuplanner, for kubernetes and ci.")] = "gpuplanner:latest",
    program: Annotated[str, Option(help="How gpuplanner is called there.")] = "gpuplanner",
) -> None:
    """Print a file that runs the gate every day and reports every whole month: cron, systemd, CI, Kubernetes."""
    from gpuplanner.core.errors import resolve
    from gpuplanner.report.bundle_files import filled_template

    chosen = resolve(kind, list(KINDS), what="KIND")
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at)
    if clock is None:
        raise typer.BadParameter(f"--at: expected HH:MM; got {at!r}")
    if any(sign in one for one in (data, out, image, program) for sign in ("\n", "@", "$(", "${{")):
        raise typer.BadParameter("a line break, '@', '$(' or '${{' in a path or a name")
    check = f"{program} check {shlex.quote(data)}"
    report = f"{program} report .. --data {shlex.quote(data)} -o {shlex.quote(out)}"
    both = f"{report}; made=$?; {check} && exit $made"  # neither keeps the other from running, and both are heard
    words = {"HOUR": f"{int(clock[1])}", "MINUTE": f"{int(clock[2])}", "AT": at, "IMAGE": json.dumps(image)}
    for number, ending in enumerate(KINDS[chosen]):
        lines = {"CHECK": check, "REPORT": report, "BOTH": both}
        if chosen == "cron":  # of which a bare per cent sign ends the command
            lines = {name: line.replace("%", r"\%") for name, line in lines.items()}
        elif chosen == "systemd":
            lines = {name: f"/bin/sh -c {_systemd(line)}" for name, line in lines.items()}
        else:
            lines["CHECK"] += " --alerts alerts"  # of which CI keeps what was written
            lines = {name: json.dumps(line) for name, line in lines.items()}
        filled = filled_template(f"templates/schedule_{chosen}.{ending}", words | lines)
        put(("" if number == 0 else "\n") + filled)


def _systemd(line: str) -> str:
    """A shell line as one argument of a unit: quotes, and signs that systemd reads itself, doubled."""
    escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


@app.command()
@takes("watch_chance", "watch_frozen_hours", "horizon_slots", "quantile", "work_limit", "seed")
def watch(
    scenario: ScenarioPath,
    given: Given,
    out: Annotated[Path, Option("-o", "--out", help="Folder of state, metrics and the pack.")] = Path(
        "watch"
    ),
    read: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Read this dump (sacct, scontrol, kubectl -o json) into the data before each look; may be repeated.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Before each look, read telemetry since the last reading from this Prometheus.",
        ),
    ] = None,
    every: Annotated[
        str, Option(metavar="TIME", help="Between two looks, with --once as well: 15m, 6h, 1d.")
    ] = "6h",
    once: Annotated[bool, Option("--once", help="One look, for cron.")] = False,
    back: Annotated[
        int | None,
        Option(
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
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.output_writing import sole_writer
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.decision.replanning import require_free, state_of

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
            say(*(f"gpuplanner: {each}; looking again in {every}" for each in failed))
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
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.ingest.dataset_import import add_live, add_together, parts_of

    def read_telemetry() -> object:
        return add_live(str(prometheus), asked.data, until=datetime.now(UTC), at_first_s=seconds)

    failed = []
    dumps = (files, lambda: add_together(parts_of(files), asked.data))
    for given, reading in (dumps, (prometheus, read_telemetry)):
        try:
            if given:
                reading()
        except GpuPlannerError as error:
            failed.append(error)
    return failed


def _looked(asked: Scenario, out: Path, before: Watched, every: int) -> tuple[Watched, FleetLook | None]:
    """One look, and its pack on the disk; data that are those of the last look are not looked at again."""
    from gpuplanner.core.serialization import to_json
    from gpuplanner.core.stage_cache import input_hashes
    from gpuplanner.decision.replanning import PACK, advice_of, look

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
    from gpuplanner.decision.replanning import PAGE, keep, write_record
    from gpuplanner.report.monthly_reports import watch_page

    write_record(out / PAGE, watch_page(state, refresh_s=min(seconds, 60.0), locale=locale))
    keep(out, state, found)


def _write_pack(found: FleetLook, folder: Path) -> None:
    """The plan, the order of its first change, and the files of its paths where nodes have names and can be cut."""
    from gpuplanner.core.output_places import Mark
    from gpuplanner.core.output_writing import replaced_directory
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.report.layout_schedule_files import export_plan

    planned = found.planned
    mark = Mark("look.txt", "gpuplanner watch 1", ("plan.json", "steps.csv"))
    with replaced_directory(folder, mark=mark) as place:
        text = f"gpuplanner watch 1\n{found.at:%Y-%m-%d %H:%M} UTC\n{found.sentence}\n"
        (place / "look.txt").write_text(text)
        (place / "plan.json").write_text(plan_to_json(planned.plan, planned.problem), encoding="utf-8")
        found.steps.write_csv(place / "steps.csv")
    if planned.problem.board.profiles and planned.problem.nodes is not None:
        export_plan(folder / "plan.json", folder.with_name(f"{folder.name}-files"))


def _seconds(text: str) -> float:
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if hit is None or not float(hit[1]) > 0:
        raise typer.BadParameter(f"--every: expected a time such as 15m or 6h; got {text!r}")
    return float(hit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[hit[2]]


def _slots(asked: Scenario, seconds: float) -> int:
    return max(round(seconds / SECONDS_PER_HOUR / asked.slot_hours), 1)


def _replayed(asked: Scenario, days: int, seconds: float, *, as_json: bool, quiet: bool) -> None:
    import polars as pl

    from gpuplanner.decision.replanning import replay

    slots = _slots(asked, seconds)
    found = replay(
        asked, days=days, every=slots,
        told=None if quiet else lambda at, one, worth: say(
            f"slot {at}: gain {one.gain:,.0f} GPU-hours, {one.chance:.0%} sure: {'taken' if worth else 'left'}"
        ),
    )  # fmt: skip
    rows = [vars(one) for one in found.rows]
    if as_json:
        facts = {"begin": found.begin, "days": days, "looks": found.looks, "refused": found.refused}
        show(facts | {"ways": rows}, as_json=True)
        return
    period = f"{days} days from {found.begin:%Y-%m-%d %H:%M} UTC, a look every {slots} slots"
    show_frame(pl.DataFrame(rows), title=f"{period}: cost in GPU-hours")
    put(f"{found.refused} of {found.looks} looks wrote no pack.")
