"""The gate of a pipeline: ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import Exit, app, put, say
from gpuplanner.cli.options import Given, Json, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show

if TYPE_CHECKING:
    from gpuplanner.study.recurring.gate import Gate


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
        typer.Option(
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
    from gpuplanner.study.recurring.alerts import Alerts, subject
    from gpuplanner.study.recurring.gate import gate

    found = gate(given.scenario(scenario))
    if out is not None:
        _write(found, out)
        if not quiet:
            say(f"written to {out}")
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
    from gpuplanner.files.manifest import Mark
    from gpuplanner.files.folder import replaced_directory
    from gpuplanner.files.text import to_json
    from gpuplanner.study.recurring.alerts import CHECK_FORMAT, Alerts, mail_text, metrics_text

    names = ("alertmanager.json", "chat.json", "webhook.json", "mail.eml")
    with replaced_directory(out, mark=Mark("check.prom", CHECK_FORMAT, names)) as folder:
        (folder / "check.prom").write_text(metrics_text(found), encoding="utf-8")
        for channel, payload in Alerts(found).to_dict().items():
            if channel == "mail":
                (folder / "mail.eml").write_text(mail_text(found), encoding="utf-8")
            else:
                (folder / f"{channel}.json").write_text(to_json(payload), encoding="utf-8")
