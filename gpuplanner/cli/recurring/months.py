"""Reports month after month, behind ``report A..B``; and files that start them on time: ``schedule``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import Exit, app, put, say

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario

KINDS = {"cron": ["crontab"], "systemd": ["service", "timer"], "ci": ["yaml"], "kubernetes": ["yaml"]}


def report_chain(
    asked: Scenario, text: str, out: Path, again: Sequence[str], *, as_json: bool, quiet: bool
) -> None:
    """Report months one after the other, and say where each stands."""
    from gpuplanner.report.months import months_between, report_months
    from gpuplanner.report.recurring.chain import LEFT_OUT, Chain

    months = months_between(text, asked)
    if not months:  # a schedule looks again
        say(f"report {text}: no month of the data is whole yet")
        if as_json:
            put(Chain().to_json())
        return
    chain = report_months(asked, months, out, again=again, told=(lambda _: None) if quiet else say)
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
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    data: Annotated[
        str,
        typer.Option("--data", "--scenario", help="Folder or scenario as the machine that runs it knows it."),
    ] = "/srv/gpuplanner/cluster",
    out: Annotated[
        str, typer.Option("-o", "--out", help="Folder of the reports there.")
    ] = "/srv/gpuplanner/reports",
    at: Annotated[str, typer.Option(metavar="HH:MM", help="Time of the day, UTC.")] = "05:30",
    image: Annotated[
        str, typer.Option(help="Image with gpuplanner, for kubernetes and ci.")
    ] = "gpuplanner:latest",
    program: Annotated[str, typer.Option(help="How gpuplanner is called there.")] = "gpuplanner",
) -> None:
    """Print a file that runs the gate every day and reports every whole month: cron, systemd, CI, Kubernetes."""
    from gpuplanner.export.bundle_files import filled_template
    from gpuplanner.names import resolve

    chosen = resolve(kind, list(KINDS), what="KIND")
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at)
    if clock is None:
        text = f"--at: expected HH:MM; got {at!r}"
        raise typer.BadParameter(text)
    if any(sign in one for one in (data, out, image, program) for sign in ("\n", "@", "$(", "${{")):
        text = "a line break, '@', '$(' or '${{' in a path or a name"
        raise typer.BadParameter(text)
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
