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
    from gpuplanner.decision.capacity_check import CapacityCheck
    from gpuplanner.decision.replanning import FleetEvaluation, WatchState


@app.command()
@takes(
    "check_days", "check_wait_minutes", "check_wait_share", "check_short_chance", "check_miss_chance",
    "check_exhaustion_chance", "purchase_lead_days", "tz", "seed",
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
            help="Folder for check.prom and, on failure, alertmanager.json, chat.json, webhook.json and mail.eml.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test service levels and capacity; exit 1 on failure (for CI).

    Four checks: queue waits of the last week, capacity for the next week, forecast
    accuracy, and growth within the purchase lead time.
    """
    from gpuplanner.decision.capacity_check import Alerts, check_capacity, format_alert_subject

    found = check_capacity(given.scenario(scenario))
    if out is not None:
        _write(found, out)
        say(f"written: {out}", quiet=quiet)
    if as_json:
        show(found.to_dict() | {"alerts": Alerts(found).to_dict()}, as_json=True)
    else:
        width = max(len(one.name) for one in found.checks)
        for one in found.checks:
            word = "FAILED" if not one.passed else "passed" if one.value is not None else "–"
            put(f"{word:<6}  {one.name:<{width}}  {one.sentence}")
        put(
            f"all checks passed (data to {found.data_end:%Y-%m-%d %H:%M} UTC)"
            if found.has_passed
            else format_alert_subject(found)
        )
    if not found.has_passed:
        raise typer.Exit(Exit.CHECK_FAILED)


def _write(found: CapacityCheck, out: Path) -> None:
    """Payloads of what failed; of an earlier run nothing is left where all passed."""
    from gpuplanner.core.output_places import FolderMark
    from gpuplanner.core.output_writing import replace_directory
    from gpuplanner.core.serialization import to_json
    from gpuplanner.decision.capacity_check import CHECK_FORMAT, Alerts, format_alert_mail, format_check_metrics

    names = ("alertmanager.json", "chat.json", "webhook.json", "mail.eml")
    with replace_directory(out, mark=FolderMark("check.prom", CHECK_FORMAT, names)) as folder:
        (folder / "check.prom").write_text(format_check_metrics(found), encoding="utf-8")
        for channel, payload in Alerts(found).to_dict().items():
            if channel == "mail":
                (folder / "mail.eml").write_text(format_alert_mail(found), encoding="utf-8")
            else:
                (folder / f"{channel}.json").write_text(to_json(payload), encoding="utf-8")


KINDS = {"cron": ["crontab"], "systemd": ["service", "timer"], "ci": ["yaml"], "kubernetes": ["yaml"]}


def report_chain(asked: Scenario, text: str, out: Path, again: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    """Report months one after the other, and say where each stands."""
    from gpuplanner.report.monthly_reports import LEFT_OUT, Chain, months_between, report_months

    months = months_between(text, asked)
    if not months:  # a schedule tries again
        say(f"report {text}: no month of the data is complete yet")
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
        str, Option("--data", "--scenario", help="Dataset folder or scenario on the machine that runs the job.")
    ] = "/srv/gpuplanner/cluster",
    out: Annotated[
        str, Option("-o", "--out", help="Folder of the reports on that machine.")
    ] = "/srv/gpuplanner/reports",
    at: Annotated[str, Option(metavar="HH:MM", help="Time of day, UTC.")] = "05:30",
    read: Annotated[
        str, Option(metavar="FILES", help="Files to import before each run: a path, or a pattern with *.")
    ] = "/srv/gpuplanner/new/*",
    image: Annotated[str, Option(help="Container image, for kubernetes and ci.")] = "gpuplanner:latest",
    program: Annotated[str, Option(help="Command that starts gpuplanner on that machine.")] = "gpuplanner",
) -> None:
    """Print a cron, systemd, CI or Kubernetes job for recurring runs.

    Every day the job imports the files that --read names, runs 'gpuplanner check'
    and reports every complete month. Exporting the files is up to you.
    """
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.report.bundle_files import filled_template

    chosen = resolve_name(kind, list(KINDS), subject="KIND")
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at)
    if clock is None:
        raise typer.BadParameter(f"--at: expected HH:MM; got {at!r}")
    if any(sign in one for one in (data, out, read, image, program) for sign in ("\n", "@", "$(", "${{")):
        raise typer.BadParameter("no line break, '@', '$(' or '${{' is allowed in an option")
    if not re.fullmatch(r"[\w./*?-]+", read):
        raise typer.BadParameter(f"--read: expected a path or a pattern with *, without spaces; got {read!r}")
    # A file that cannot be imported, or none, fails the job: old data would pass every check.
    each = f'{program} ingest auto "$file" -o {shlex.quote(data)} --quiet'
    load = f"for file in {read}; do {each} || exit 1; done"
    check = f"{program} check {shlex.quote(data)}"
    report = f"{program} report .. --data {shlex.quote(data)} -o {shlex.quote(out)}"
    both = f"{load}; {report}; made=$?; {check} && exit $made"  # check runs whatever became of the report
    words = {"HOUR": f"{int(clock[1])}", "MINUTE": f"{int(clock[2])}", "AT": at, "IMAGE": json.dumps(image)}
    for number, ending in enumerate(KINDS[chosen]):
        lines = {"IMPORT": load, "CHECK": check, "REPORT": report, "BOTH": both}
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
@takes("watch_chance", "notice_hours", "horizon_intervals", "quantile", "work_limit", "seed")
def watch(
    scenario: ScenarioPath,
    given: Given,
    out: Annotated[Path, Option("-o", "--out", help="Output folder of state, metrics and change bundle.")] = Path(
        "watch"
    ),
    read: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Import this dump (sacct, scontrol, kubectl -o json) before each evaluation; repeatable.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        Option(metavar="URL", help="Import new telemetry from this Prometheus server before each evaluation."),
    ] = None,
    every: Annotated[
        str, Option(metavar="TIME", help="Time between two evaluations, with --once as well: 15m, 6h, 1d.")
    ] = "6h",
    once: Annotated[bool, Option("--once", help="Evaluate once and exit, for cron.")] = False,
    back: Annotated[
        int | None,
        Option("--replay", metavar="DAYS", min=1, help="Show the gain of a watch over the last days, and exit."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Re-plan on an interval; write a change bundle when it pays off.

    Changes nothing on the cluster: people apply the bundle.
    """
    asked, seconds = given.scenario(scenario), _seconds(every)
    if back is not None:
        _replayed(asked, back, seconds, as_json=as_json, quiet=quiet)
        return
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.output_writing import lock_for_writing
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.decision.replanning import read_watch_state, require_watch_folder

    require_watch_folder(out)
    while True:
        with lock_for_writing(out):
            before, after, found = read_watch_state(out), None, None
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
            say(*(f"gpuplanner: {each} Next evaluation in {every}." for each in failed))
            if as_json:
                show(to_plain(after), as_json=True)
            elif after.looks > before.looks or not quiet:
                put(f"{after.at}  {after.sentence}")
        if once:
            return
        threading.Event().wait(seconds)


def _read(asked: Scenario, files: list[Path], prometheus: str | None, seconds: float) -> list[GpuPlannerError]:
    """Read dumps and telemetry into the data; what cannot be read is told, and the look goes on with what is there."""
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.ingest.dataset_import import add_live, add_sources, group_files_by_source

    def read_telemetry() -> object:
        return add_live(str(prometheus), asked.data, until=datetime.now(UTC), at_first_s=seconds)

    failed = []
    dumps = (files, lambda: add_sources(group_files_by_source(files), asked.data))
    for given, reading in (dumps, (prometheus, read_telemetry)):
        try:
            if given:
                reading()
        except GpuPlannerError as error:
            failed.append(error)
    return failed


def _looked(asked: Scenario, out: Path, before: WatchState, every: int) -> tuple[WatchState, FleetEvaluation | None]:
    """One look, and its pack on the disk; data that are those of the last look are not looked at again."""
    from gpuplanner.core.serialization import to_json
    from gpuplanner.core.stage_cache import input_hashes
    from gpuplanner.decision.replanning import BUNDLE_FOLDER, evaluate_fleet, read_past_advice

    data = to_json(input_hashes(asked.data))
    if data == before.data:
        return before, None
    found = evaluate_fleet(asked, every, read_past_advice(out, before))
    after = before.add_evaluation(found, data)
    if found.justified:
        _write_pack(found, out / BUNDLE_FOLDER)
    return after, found


def _keep(state: WatchState, found: FleetEvaluation | None, out: Path, seconds: float, locale: str) -> None:
    """Page and state on the disk; the state last, so that a killed look is looked at again."""
    from gpuplanner.decision.replanning import PAGE_FILE, save_watch_state, write_watch_file
    from gpuplanner.report.monthly_reports import watch_page

    write_watch_file(out / PAGE_FILE, watch_page(state, refresh_s=min(seconds, 60.0), locale=locale))
    save_watch_state(out, state, found)


def _write_pack(found: FleetEvaluation, folder: Path) -> None:
    """The plan, the order of its first change, and the files of its paths where nodes have names and can be cut."""
    from gpuplanner.core.output_places import FolderMark
    from gpuplanner.core.output_writing import replace_directory
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.report.layout_schedule_files import export_plan

    planned = found.planned
    mark = FolderMark("look.txt", "gpuplanner watch 1", ("plan.json", "steps.csv"))
    with replace_directory(folder, mark=mark) as place:
        text = f"gpuplanner watch 1\n{found.at:%Y-%m-%d %H:%M} UTC\n{found.advice_text}\n"
        (place / "look.txt").write_text(text)
        (place / "plan.json").write_text(plan_to_json(planned.plan, planned.problem), encoding="utf-8")
        found.steps.write_csv(place / "steps.csv")
    if planned.problem.gpu_model.profiles and planned.problem.nodes is not None:
        export_plan(folder / "plan.json", folder.with_name(f"{folder.name}-files"))


def _seconds(text: str) -> float:
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if hit is None or not float(hit[1]) > 0:
        raise typer.BadParameter(f"--every: expected a time such as 15m or 6h; got {text!r}")
    return float(hit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[hit[2]]


def _slots(asked: Scenario, seconds: float) -> int:
    return max(round(seconds / SECONDS_PER_HOUR / asked.interval_hours), 1)


def _replayed(asked: Scenario, days: int, seconds: float, *, as_json: bool, quiet: bool) -> None:
    import polars as pl

    from gpuplanner.decision.replanning import replay_past

    slots = _slots(asked, seconds)
    found = replay_past(
        asked, days=days, interval_slots=slots,
        tell=None if quiet else lambda at, one, taken: say(
            f"interval {at}: gain {one.gain:,.0f} GPU-hours, {100 * one.chance:.0f} % likely: "
            f"{'plan taken' if taken else 'no change'}"
        ),
    )  # fmt: skip
    rows = [{"way" if name == "policy" else name: value for name, value in vars(one).items()} for one in found.rows]
    if as_json:
        facts = {"begin": found.begin, "days": days, "looks": found.looks, "refused": found.refused}
        show(facts | {"ways": rows}, as_json=True)
        return
    period = f"{days} days from {found.begin:%Y-%m-%d %H:%M} UTC, an evaluation every {slots} intervals"
    show_frame(pl.DataFrame(rows), title=f"Cost in GPU-hours, {period}")
    put(f"{found.refused} of {found.looks} evaluations wrote no change bundle.")
