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
    Json,
    Overwrite,
    Quiet,
    ScenarioOptions,
    ScenarioPath,
    app,
    echo,
    notify,
    show,
    show_frame,
    with_fields,
)
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.fleet_checks_and_alerts import CapacityCheckReport
    from gpuplanner.decision.replanning import FleetEvaluation, WatchState


@app.command()
@with_fields(
    "check_days", "check_wait_minutes", "check_wait_share", "check_short_chance", "check_miss_chance",
    "check_exhaustion_chance", "purchase_lead_days", "tz", "seed",
)  # fmt: skip
def check(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
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
    from gpuplanner.decision.fleet_checks_and_alerts import Alerts, check_capacity, format_alert_subject

    gate_result = check_capacity(options.make_scenario(scenario_path))
    if out is not None:
        _write_alerts(gate_result, out)
        notify(f"written: {out}", quiet=quiet)
    if as_json:
        show(gate_result.to_dict() | {"alerts": Alerts(gate_result).to_dict()}, as_json=True)
    else:
        width = max(len(item.name) for item in gate_result.checks)
        for item in gate_result.checks:
            state = "FAILED" if not item.passed else "passed" if item.value is not None else "–"
            echo(f"{state:<6}  {item.name:<{width}}  {item.sentence}")
        passed = f"all checks passed (data to {gate_result.data_end:%Y-%m-%d %H:%M} UTC)"
        echo(passed if gate_result.has_passed else format_alert_subject(gate_result))
    if not gate_result.has_passed:
        raise typer.Exit(Exit.CHECK_FAILED)


def _write_alerts(check: CapacityCheckReport, out: Path) -> None:
    """Write metrics, and alert files of the failed checks, in place of those of an earlier run."""
    from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
    from gpuplanner.core.output_writing import replace_directory
    from gpuplanner.core.serialization import to_json
    from gpuplanner.decision.fleet_checks_and_alerts import (
        CHECK_FORMAT,
        Alerts,
        format_alert_mail,
        format_check_metrics,
    )

    names = ("alertmanager.json", "chat.json", "webhook.json", "mail.eml")
    with replace_directory(out, mark=FolderMark("check.prom", CHECK_FORMAT, names)) as folder:
        (folder / "check.prom").write_text(format_check_metrics(check), encoding="utf-8")
        for channel, payload in Alerts(check).to_dict().items():
            if channel == "mail":
                (folder / "mail.eml").write_text(format_alert_mail(check), encoding="utf-8")
            else:
                (folder / f"{channel}.json").write_text(to_json(payload), encoding="utf-8")


FILE_SUFFIXES_BY_SCHEDULER = {
    "cron": ["crontab"],
    "systemd": ["service", "timer"],
    "ci": ["yaml"],
    "kubernetes": ["yaml"],
}
"""Suffixes of the job files that ``schedule`` prints, by kind of scheduler."""


def report_month_range(
    scenario: Scenario, month_range: str, out: Path, months_again: Sequence[str], *, as_json: bool, quiet: bool
) -> None:
    """Write the report of each month of a range, and print the state of each month.

    Parameters
    ----------
    scenario : Scenario
        Data and prices.
    month_range : str
        Range such as ``2026-01..2026-03``; ``..`` for all complete months.
    out : Path
        Folder of the reports.
    months_again : sequence of str
        Months to write again.
    as_json, quiet : bool
        Print JSON; print no messages.
    """
    from gpuplanner.report.month_records import STEP_LEFT_OUT, MonthChain
    from gpuplanner.report.monthly_report_chain import parse_month_range, report_months

    months = parse_month_range(month_range, scenario)
    if not months:  # no error: a schedule runs again later
        notify(f"report {month_range}: no month of the data is complete yet")
        if as_json:
            echo(MonthChain().to_json())
        return
    chain = report_months(
        scenario, months, out, remake=months_again, report_progress=lambda text: notify(text, quiet=quiet)
    )
    if as_json:
        echo(chain.to_json())
    else:
        for month_report in chain.months:
            sentence = next((step.facts.get("sentence") for step in month_report.steps if step.name == "study"), None)
            error = month_report.steps[-1].error if month_report.steps else "started, not complete"
            echo(f"{month_report.month}  {sentence or error}")
        echo(str(out / "index.html"))
    if any(step.state == STEP_LEFT_OUT for month_report in chain.months for step in month_report.steps):
        raise typer.Exit(Exit.MISSING_PART)


@app.command()
def schedule(
    kind: Annotated[str, Argument(metavar="KIND", help=f"One of {', '.join(FILE_SUFFIXES_BY_SCHEDULER)}.")],
    data: Annotated[
        str, Option("--data", "--scenario", help="Dataset folder or scenario on the machine that runs the job.")
    ] = "/srv/gpuplanner/cluster",
    out: Annotated[
        str, Option("-o", "--out", help="Folder of the reports on that machine.")
    ] = "/srv/gpuplanner/reports",
    at: Annotated[str, Option(metavar="HH:MM", help="Time of day, UTC.")] = "05:30",
    files: Annotated[
        str, Option("--read", metavar="FILES", help="Files to import before each run: a path, or a pattern with *.")
    ] = "/srv/gpuplanner/new/*",
    image: Annotated[str, Option(help="Container image, for kubernetes and ci.")] = "gpuplanner:latest",
    program: Annotated[str, Option(help="Command that starts gpuplanner on that machine.")] = "gpuplanner",
) -> None:
    """Print a cron, systemd, CI or Kubernetes job for recurring runs.

    Every day the job imports the files that --read names, runs 'gpuplanner check'
    and reports every complete month. Exporting the files is up to you.
    """
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.report.change_bundle_parts import fill_shipped_file

    resolved_kind = resolve_name(kind, list(FILE_SUFFIXES_BY_SCHEDULER), subject="KIND")
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at)
    if clock is None:
        raise typer.BadParameter(f"--at: expected HH:MM; got {at!r}")
    if any(sign in option for option in (data, out, files, image, program) for sign in ("\n", "@", "$(", "${{")):
        raise typer.BadParameter("no line break, '@', '$(' or '${{' is allowed in an option")
    if not re.fullmatch(r"[\w./*?-]+", files):
        raise typer.BadParameter(f"--read: expected a path or a pattern with *, without spaces; got {files!r}")
    # A file that cannot be imported, or none, fails the job: old data would pass every check.
    import_command = f'{program} ingest auto "$file" -o {shlex.quote(data)} --quiet'
    import_all = f"for file in {files}; do {import_command} || exit 1; done"
    check = f"{program} check {shlex.quote(data)}"
    report = f"{program} report .. --data {shlex.quote(data)} -o {shlex.quote(out)}"
    all_commands = f"{import_all}; {report}; made=$?; {check} && exit $made"  # check runs even if the report fails
    placeholders = {"HOUR": f"{int(clock[1])}", "MINUTE": f"{int(clock[2])}", "AT": at, "IMAGE": json.dumps(image)}
    for number, ending in enumerate(FILE_SUFFIXES_BY_SCHEDULER[resolved_kind]):
        lines = {"IMPORT": import_all, "CHECK": check, "REPORT": report, "BOTH": all_commands}
        if resolved_kind == "cron":  # of which a bare per cent sign ends the command
            lines = {name: line.replace("%", r"\%") for name, line in lines.items()}
        elif resolved_kind == "systemd":
            lines = {name: f"/bin/sh -c {_quote_for_systemd(line)}" for name, line in lines.items()}
        else:
            lines["CHECK"] += " --alerts alerts"  # of which CI keeps what was written
            lines = {name: json.dumps(line) for name, line in lines.items()}
        schedule_file = fill_shipped_file(f"templates/schedule_{resolved_kind}.{ending}", placeholders | lines)
        echo(("" if number == 0 else "\n") + schedule_file)


def _quote_for_systemd(line: str) -> str:
    """Quote a shell line as one argument in a systemd unit, with ``%`` and ``$``, which systemd expands, doubled."""
    escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


@app.command()
@with_fields("watch_chance", "notice_hours", "horizon_intervals", "quantile", "work_limit", "seed")
def watch(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
    out: Annotated[Path, Option("-o", "--out", help="Output folder of state, metrics and change bundle.")] = Path(
        "watch"
    ),
    dumps: Annotated[
        list[Path] | None,
        Option(
            "--read",
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
    replay_days: Annotated[
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
    scenario, interval_s = options.make_scenario(scenario_path), _parse_interval_s(every)
    if replay_days is not None:
        _show_replay(scenario, replay_days, interval_s, as_json=as_json, quiet=quiet)
        return
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.output_writing import lock_for_writing
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.decision.replanning import (
        PAGE_FILE,
        read_watch_state,
        require_watch_folder,
        save_watch_state,
        write_watch_file,
    )
    from gpuplanner.report.watch_page import render_watch_page

    require_watch_folder(out)
    while True:
        with lock_for_writing(out):
            old_watched, new_watched, evaluation = read_watch_state(out), None, None
            errors = _import_new_data(scenario, dumps or [], prometheus, interval_s)
            try:
                n_intervals = _intervals_between(scenario, interval_s)
                new_watched, evaluation = _evaluate(scenario, out, old_watched, n_intervals)
            except GpuPlannerError as error:
                errors.append(error)
            new_watched = replace(new_watched or old_watched, failures=old_watched.failures + len(errors))
            if new_watched != old_watched:
                page = render_watch_page(new_watched, refresh_s=min(interval_s, 60.0), locale=scenario.number_locale)
                write_watch_file(out / PAGE_FILE, page)
                # The state is written last, so that an interrupted evaluation is repeated.
                save_watch_state(out, new_watched, evaluation)
            if errors and once:
                raise errors[0]
            notify(*(f"gpuplanner: {error} Next evaluation in {every}." for error in errors))
            if as_json:
                show(to_plain(new_watched), as_json=True)
            elif new_watched.looks > old_watched.looks or not quiet:
                echo(f"{new_watched.at}  {new_watched.sentence}")
        if once:
            return
        threading.Event().wait(interval_s)


def _import_new_data(
    scenario: Scenario, files: list[Path], prometheus: str | None, interval_s: float
) -> list[GpuPlannerError]:
    """Import dumps and telemetry into the dataset; return the errors, so that the evaluation uses the older data.

    Parameters
    ----------
    scenario : Scenario
        Names the dataset folder.
    files : list of Path
        Dumps of the cluster.
    prometheus : str, optional
        Address of a Prometheus server.
    interval_s : float
        Time between two evaluations. [s]
    """
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.ingest.dataset_import import add_live, add_sources, group_files_by_source

    def read_telemetry() -> object:
        return add_live(str(prometheus), scenario.data, until=datetime.now(UTC), at_first_s=interval_s)

    errors = []
    dumps = (files, lambda: add_sources(group_files_by_source(files), scenario.data))
    for source, import_source in (dumps, (prometheus, read_telemetry)):
        try:
            if source:
                import_source()
        except GpuPlannerError as error:
            errors.append(error)
    return errors


def _evaluate(
    scenario: Scenario, out: Path, old_state: WatchState, n_intervals: int
) -> tuple[WatchState, FleetEvaluation | None]:
    """Evaluate the data and write a change bundle if it pays off; skip data that have not changed.

    Parameters
    ----------
    scenario : Scenario
        Data and settings.
    out : Path
        Folder of the watch.
    old_state : WatchState
        State after the last evaluation.
    n_intervals : int
        Plan intervals until the next evaluation.

    Returns
    -------
    tuple of WatchState, and FleetEvaluation or None
        New state, and the evaluation; None if the data have not changed.
    """
    from gpuplanner.core.serialization import to_json
    from gpuplanner.core.stage_cache_and_data_folders import input_hashes
    from gpuplanner.decision.replanning import BUNDLE_FOLDER, evaluate_fleet, read_past_advice

    data = to_json(input_hashes(scenario.data))
    if data == old_state.data:
        return old_state, None
    evaluation = evaluate_fleet(scenario, n_intervals, read_past_advice(out, old_state))
    new_watched = old_state.add_evaluation(evaluation, data)
    if evaluation.justified:
        _write_change_bundle(evaluation, out / BUNDLE_FOLDER)
    return new_watched, evaluation


def _write_change_bundle(evaluation: FleetEvaluation, folder: Path) -> None:
    """Write the plan, the steps of its first change, and the configuration files where nodes can be partitioned."""
    from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
    from gpuplanner.core.output_writing import replace_directory
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.report.layout_schedule_files import export_plan

    planned = evaluation.planned
    mark = FolderMark("look.txt", "gpuplanner watch 1", ("plan.json", "steps.csv"))
    with replace_directory(folder, mark=mark) as bundle_folder:
        text = f"gpuplanner watch 1\n{evaluation.at:%Y-%m-%d %H:%M} UTC\n{evaluation.advice_text}\n"
        (bundle_folder / "look.txt").write_text(text)
        (bundle_folder / "plan.json").write_text(plan_to_json(planned.plan, planned.problem), encoding="utf-8")
        evaluation.steps.write_csv(bundle_folder / "steps.csv")
    if planned.problem.gpu_model.profiles and planned.problem.nodes is not None:
        export_plan(folder / "plan.json", folder.with_name(f"{folder.name}-files"))


def _parse_interval_s(text: str) -> float:
    """Parse a time such as ``15m`` or ``6h`` to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None or not float(match[1]) > 0:
        raise typer.BadParameter(f"--every: expected a time such as 15m or 6h; got {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def _intervals_between(scenario: Scenario, interval_s: float) -> int:
    """Number of plan intervals between two evaluations, at least 1."""
    return max(round(interval_s / SECONDS_PER_HOUR / scenario.interval_hours), 1)


def _show_replay(scenario: Scenario, days: int, interval_s: float, *, as_json: bool, quiet: bool) -> None:
    """Print the GPU-hours of following ``watch``, and of other policies, over the last `days` days of the data."""
    import polars as pl

    from gpuplanner.decision.replanning import replay_past

    n_intervals = _intervals_between(scenario, interval_s)
    result = replay_past(
        scenario, days=days, interval_slots=n_intervals,
        tell=None if quiet else lambda interval, evaluation, is_taken: notify(
            f"interval {interval}: gain {evaluation.gain:,.0f} GPU-hours, {100 * evaluation.chance:.0f} % likely: "
            f"{'plan taken' if is_taken else 'no change'}"
        ),
    )  # fmt: skip
    rows = [
        {"way" if name == "policy" else name: value for name, value in vars(evaluation).items()}
        for evaluation in result.rows
    ]
    if as_json:
        facts = {"begin": result.begin, "days": days, "looks": result.looks, "refused": result.refused}
        show(facts | {"ways": rows}, as_json=True)
        return
    period = f"{days} days from {result.begin:%Y-%m-%d %H:%M} UTC, an evaluation every {n_intervals} intervals"
    show_frame(pl.DataFrame(rows), title=f"Cost in GPU-hours, {period}")
    echo(f"{result.refused} of {result.looks} evaluations wrote no change bundle.")
