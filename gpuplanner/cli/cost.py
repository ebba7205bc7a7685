"""The command ``cost``: what the month cost, for whom, with energy and carbon; as FOCUS lines for finance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Overwrite, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame
from gpuplanner.units import money_text

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.future.cost_review import CostReview
    from gpuplanner.study.future.purchase import Refresh

LEDGER = {
    "Savings": "what each month promised a week, and what the next month's data show of it",
    "Baseline": "each month beside the first, whose hours are frozen",
    "Forecasts": "GPU-hours planned too many and too few, and what they cost beyond perfect sight",
}
"""What the tables of a savings ledger are."""
TABLES = ("tenant", "ownership", "bucket", "board", "end", "job")


@app.command()
@takes("month", "board", "price_usd_per_gpu_hour", "price_book", "currency", "carbon_region", "carbon_file")
def cost(
    scenario: ScenarioPath,
    given: Given,
    by: Annotated[
        str, typer.Option(metavar="|".join(TABLES), help="What the cost is parted by, as text.")
    ] = "tenant",
    focus: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the charge lines as FOCUS 1.2; they sum to the total."),
    ] = None,
    bill: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Share the total of a bill that 'ingest' wrote; it must reconcile."),
    ] = None,
    workbook: Annotated[
        Path | None, typer.Option(metavar="FILE.xlsx", help="Write the tables as a workbook.")
    ] = None,
    months: Annotated[
        int, typer.Option(min=0, max=120, help="Also say what to buy, reserve or rent over so many months.")
    ] = 0,
    risk: Annotated[
        float, typer.Option(min=0, max=1, help="With --months: weight of the dearest tenth of the paths.")
    ] = 0.0,
    refresh: Annotated[
        str | None,
        typer.Option(
            metavar="BOARD=SPEED",
            help="With --months: when a newer board pays that does the work of so many of today's GPUs.",
        ),
    ] = None,
    burst: Annotated[
        Path | None,
        typer.Option(
            metavar="RULES.yaml",
            help="Also say which jobs to send to rented GPUs where more is wanted than there is; who may leave, and "
            "with what data, stands in the file.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Ledger that 'report --ledger' keeps: also say what was promised, what came, and why they differ.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what the month cost, for whom and why: every sum is the total to the cent, energy and carbon with ranges.

    'gpuplanner bill' sums the bill of a cloud, and checks it against its lines.
    """
    import polars as pl

    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.export.focus import write_focus
    from gpuplanner.files.place import require_file
    from gpuplanner.inbox.store import open_dataset
    from gpuplanner.study.forecast_ledger import errors_in_money, read_ledger
    from gpuplanner.study.future.cost_review import cost_review
    from gpuplanner.study.handover.workbooks import write_cost_workbook
    from gpuplanner.study.past.history import history
    from gpuplanner.study.savings_ledger import forecasts_file, read_savings, savings_file, savings_sheets

    if by not in TABLES:
        text = f"one of {', '.join(TABLES)}"
        raise typer.BadParameter(text, param_hint="--by")
    for file in (focus, workbook):
        if file is not None:
            require_file(file, inputs=[scenario])
    asked = given.scenario(scenario)
    found = cost_review(asked, None if bill is None else open_dataset(bill).tables["charges"])
    saved = {} if ledger is None else savings_sheets(read_savings(savings_file(ledger)))
    if ledger is not None and found.price is not None:
        kept = read_ledger(forecasts_file(ledger))
        if kept.height:
            saved["Forecasts"] = errors_in_money(kept, asked, history(asked).fleet.board, found.price.value)
    bought, sent = None, None
    if burst is not None:
        from gpuplanner.study.future.burst import burst_plan, read_burst

        sent = burst_plan(asked, read_burst(burst))
    if months:
        from gpuplanner.study.future.purchase import purchase

        bought = purchase(asked, months, risk=risk)
    renewed = None if refresh is None else _renewed(asked, months, refresh)
    if focus is not None:
        if found.total is None:
            raise ScenarioError(message("--focus", "a price of the GPUs", found.missing[0], "Give a price."))
        write_focus(focus, found.costs)
        say(f"written: {focus}")
    if workbook is not None:
        say(f"written: {write_cost_workbook(workbook, found, saved, locale=asked.number_locale)}")
    if as_json:
        more: dict[str, object] = {} if bought is None else {"portfolio": bought.to_dict()}
        more |= {} if renewed is None else {"refresh": renewed}
        more |= {} if sent is None else {"burst": sent}
        more |= {name.lower(): table for name, table in saved.items()}
        show(found.to_dict() | more, as_json=True)
        return
    _told(found, by)
    for name, table in saved.items():
        shown = table.select(
            pl.exclude(
                "demand_ratio", "^(low|high)_gpu_hours$", "^(promised|demand|service|not|price).*_usd$"
            )
        )
        show_frame(shown, as_json=False, title=f"{name}: {LEDGER[name]}")
    notes = list(found.missing)
    for part, tables in (
        (bought, {"begin": "What is begun when", "costs": "Cost by way to pay"}), (renewed, {}),
        (sent, {"jobs": "Jobs that go out", "stays": "Jobs of these hours that stay"}),
    ):  # fmt: skip
        if part is not None:
            put(f"\n{part.sentence}")
            notes += getattr(part, "notes", ())
            for name, title in tables.items():
                show_frame(getattr(part, name), as_json=False, title=title)
    for text in [] if quiet else notes:
        say(text)


def _told(found: CostReview, by: str) -> None:
    if found.total is not None:
        put(
            f"{money_text(found.total, found.currency)} {found.currency} from {found.period[0]} to {found.period[1]}"
        )
        show_frame(getattr(found, f"by_{by}"), as_json=False, title=f"Cost by {by}, {found.currency}")
        show({f"cost of {name}": value for name, value in found.units_in_words.items()}, as_json=False)
    if found.energy is not None:
        show_frame(
            found.states.select("state", "gpu_hours", "^(energy|counted)_.*$"),
            as_json=False,
            title="Energy by state",
        )
        rows = {"energy, kWh": found.energy} | {
            f"{name} carbon, kg": one for name, one in found.carbon_kg.items()
        }
        for name, one in rows.items():
            if one is not None:
                put(f"{name:<20} {one.value:>14,.1f}  ({one.low:,.1f} to {one.high:,.1f})")
        put(f"{'at the yearly mean':<20} {found.carbon_at_yearly_mean_kg or 0.0:>14,.1f}")


def _renewed(asked: Scenario, months: int, given: str) -> Refresh:
    """When a newer board pays, of the text of ``--refresh``."""
    from gpuplanner.study.future.purchase import refresh

    board, speed = _named_number("--refresh", given, "BOARD=SPEED, as H200=1.4")
    if not months:
        lacks = "expected --months as well"
        raise typer.BadParameter(lacks, param_hint="--refresh")
    return refresh(asked, months, board, speed)


def _named_number(option: str, given: str, expected: str) -> tuple[str, float]:
    """The two sides of ``NAME=NUMBER``, the number above 0."""
    name, _, number = given.partition("=")
    try:
        found = float(number)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        text = f"expected {expected}; got {given!r}"
        raise typer.BadParameter(text, param_hint=option)
    return name, found
