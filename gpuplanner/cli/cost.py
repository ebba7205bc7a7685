"""The command ``cost``: what the month cost, for whom, with energy and carbon; as FOCUS lines for finance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame
from gpuplanner.units import money_text

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.future.burst import BurstPlan
    from gpuplanner.study.future.cost_review import CostReview
    from gpuplanner.study.future.purchase import Purchase, Refresh

LEDGER = {
    "Savings": "what each month promised a week, and what the next month's data show of it",
    "Baseline": "each month beside the first, whose hours are frozen",
}
"""What the tables of a savings ledger are."""
TABLES = ("tenant", "ownership", "bucket", "board", "end", "job")


@app.command()
@takes("month", "board", "price_usd_per_gpu_hour", "price_book", "currency", "carbon_region", "carbon_file")
def cost(
    scenario: ScenarioPath,
    given: Given,
    by: Annotated[
        str, typer.Option("--by", metavar="|".join(TABLES), help="What the cost is parted by, as text.")
    ] = "tenant",
    focus: Annotated[
        Path | None,
        typer.Option(
            "--focus", metavar="FILE.csv", help="Write the charge lines as FOCUS 1.2; they sum to the total."
        ),
    ] = None,
    bill: Annotated[
        Path | None,
        typer.Option(
            "--bill", metavar="DIR", help="Share the total of a bill that 'ingest' wrote; it must reconcile."
        ),
    ] = None,
    workbook: Annotated[
        Path | None, typer.Option("--workbook", metavar="FILE.xlsx", help="Write the tables as a workbook.")
    ] = None,
    months: Annotated[
        int,
        typer.Option(
            "--months", min=0, max=120, help="Also say what to buy, reserve or rent over so many months."
        ),
    ] = 0,
    risk: Annotated[
        float,
        typer.Option("--risk", min=0, max=1, help="With --months: weight of the dearest tenth of the paths."),
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what the month cost, for whom and why: every sum is the total to the cent, energy and carbon with ranges.

    'gpuplanner bill' sums the bill of a cloud, and checks it against its lines.
    """
    import polars as pl

    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.export.focus import write_focus
    from gpuplanner.files import require_file
    from gpuplanner.inbox import open_dataset
    from gpuplanner.study.future.cost_review import cost_review
    from gpuplanner.study.handover.workbooks import write_cost_workbook
    from gpuplanner.study.savings_ledger import read_savings, savings_file, savings_sheets

    if by not in TABLES:
        text = f"one of {', '.join(TABLES)}"
        raise typer.BadParameter(text, param_hint="--by")
    for file in (focus, workbook):
        if file is not None:
            require_file(file, inputs=[scenario])
    asked = given.scenario(scenario)
    found = cost_review(asked, None if bill is None else open_dataset(bill).tables["charges"])
    saved = {} if ledger is None else savings_sheets(read_savings(savings_file(ledger)))
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
        say(f"written: {write_cost_workbook(workbook, found, saved)}")
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
    if bought is not None:
        _told_portfolio(bought)
    if renewed is not None:
        _told_refresh(renewed)
    if sent is not None:
        _told_burst(sent)
    if not quiet:
        for text in found.missing:
            say(text)


def _told(found: CostReview, by: str) -> None:
    if found.total is not None:
        put(
            f"{money_text(found.total, found.currency)} {found.currency} from {found.period[0]} to {found.period[1]}"
        )
        show_frame(getattr(found, f"by_{by}"), as_json=False, title=f"Cost by {by}, {found.currency}")
        show(
            {f"cost of a {name.replace('_', ' ')}": value for name, value in found.unit_costs.items()},
            as_json=False,
        )
    if found.energy is not None:
        show_frame(
            found.states.select("state", "gpu_hours", "^energy_kwh.*$"),
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

    board, _, speed = given.partition("=")
    try:
        faster = float(speed)
    except ValueError:
        faster = 0.0
    if not 0 < faster < float("inf") or not months:
        text = "BOARD=SPEED, as H200=1.4, with --months"
        raise typer.BadParameter(text, param_hint="--refresh")
    return refresh(asked, months, board, faster)


def _told_refresh(found: Refresh) -> None:
    first, last = found.months[0], found.months[-1]
    when = "does not pay" if found.pays_from is None else f"pays from month {found.pays_from} on"
    put(
        f"\n{found.board}, {found.speed:g} of today's GPUs each, {when}: an hour of today's work costs "
        f"{first.today:.3f} {found.currency} and {first.newer:.3f} on it ({first.kind}), in month {last.month} "
        f"{last.today:.3f} and {last.newer:.3f} ({last.kind}); saved by then {found.saves:,.0f} {found.currency}"
    )


def _told_burst(found: BurstPlan) -> None:
    put(
        f"\n{found.over_gpu_hours:,.1f} GPU-hours were wanted beyond what is installed; {found.jobs.height:,} jobs "
        f"go out for {money_text(found.total, found.currency)} {found.currency} (gap {found.gap:.2%}), "
        f"{found.left_gpu_hours:,.1f} GPU-hours stay over"
    )
    show_frame(found.jobs, as_json=False, title="Jobs that go out")
    show_frame(found.stays, as_json=False, title="Jobs of these hours that stay")


def _told_portfolio(found: Purchase) -> None:
    put(f"\nOver {found.months} months: {found.action}")
    for (kind, month), gpus in found.portfolio.begun.items():
        put(f"  month {month + 1:>3}  {gpus:,.0f} GPUs {kind}")
    one = found.portfolio
    for name, amount in found.costs.iter_rows():
        put(f"{name:<26} {amount:>14,.0f} {found.currency}")
    put(
        f"commitments cover {one.coverage:.0%} of demand and are used {one.utilisation:.0%}; gap {one.gap:.2%}"
    )
    put(
        f"the load-duration rule for one term: {found.load_duration_gpus:,} GPUs, those that are held among them"
    )
    for text in found.notes:
        say(text)
