"""The page of a chain: months as rows, what each decided, what became of what it forecast and promised, its files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.report.recurring.chain import DONE, Chain, MonthRecord, ledger_of
from gpuplanner.report.words import safe
from gpuplanner.study.forecast_ledger import read_ledger, record_of
from gpuplanner.study.recurring.gate import INFERRED
from gpuplanner.study.recurring.nodes_seen import nodes_changed
from gpuplanner.study.savings_ledger import outcomes, read_savings, savings_file, standing_table

MONTH_FILES = {
    "page": "{month}/index.html", "tables": "{month}/workbook.xlsx", "teams": "teams/{month}/scorecard.csv",
    "mail": "mail/{month}.eml",
}  # fmt: skip
"""Of each month, how it is called and where it lies; what is not there has no link."""
SAVINGS = {
    "month": "promised in", "seen": "seen in", "promised": "promised [GPU h a week]",
    "realised": "realised [GPU h a week]", "demand": "of the difference: demand", "service": "service",
    "rest": "not carried out",
}  # fmt: skip
FORECASTS = {
    "month": "forecast made on", "slots": "slots that came", "coverage": "came within the 90 % range",
    "error": "mean error, as a share of that of staying as it was",
}  # fmt: skip


def chain_page(chain: Chain, out: Path, locale: str = "en") -> str:
    """The page of a folder of months; it leads to nothing that is not in the folder."""
    told = [one for one in chain.months if one.has_data]
    guessed = [one.month for one in told if one.facts.get("fleet_inferred")]
    notes = [page.note(f"{', '.join(guessed)}: {INFERRED}.")] if guessed else []
    parts = [page.section("Months", *_months(chain), *notes, *_changed(told), _links(chain, out))]
    if told:
        ledger = ledger_of(out, told[-1].month)
        parts += [page.section("Savings: promised and realised", *_savings(ledger)),
                  page.section("Forecasts: how they did", *_forecasts(ledger))]  # fmt: skip
    months = f"{chain.months[0].month} to {chain.months[-1].month}" if chain.months else "no month yet"
    return page.render_page(
        "\n".join(parts),
        title="GPU reports",
        subtitle=months,
        provenance={"gpuplanner": __version__},
        locale=locale,
    )


def _months(chain: Chain) -> list[str]:
    rows = [
        {
            "month": one.month,
            "jobs": one.facts.get("jobs"),
            "GPUs": one.facts.get("fleet_gpus"),
            "advised": one.facts.get("gpus"),
            "saves": one.facts.get("saving_gpu_hours_per_week"),
            "decision": f"{one.facts.get('sentence', '') if one.has_data else ''} {_missing(one)}".strip(),
        }
        for one in reversed(chain.months)
    ]
    names = {"GPUs": "GPUs there", "advised": "GPUs advised", "saves": "would save [GPU h a week]"}
    schema = {"month": pl.String, "jobs": pl.Int64, "GPUs": pl.Int64, "advised": pl.Int64, "saves": pl.Float64,
              "decision": pl.String}  # fmt: skip
    table = page.table(
        pl.DataFrame(rows, schema=schema), caption="Months, the last one first", headings=names,
        formats={"saves": ",.0f"},
    )  # fmt: skip
    for one in chain.months:  # a name of digits, and a page that was written
        if one.has_data:
            row = f'<th scope="row">{one.month}</th>'
            link = f'<th scope="row"><a href="{one.month}/index.html">{one.month}</a></th>'
            table = table.replace(row, link)
    return [table]


def _missing(month: MonthRecord) -> str:
    last = next((step for step in month.steps if step.state != DONE), None)
    if last is not None:
        return f"{last.state.capitalize()} ({last.name}): {last.error or ''}"
    return "" if month.complete else "Begun, and not yet done."


def _changed(months: list[MonthRecord]) -> list[str]:
    changes = [(after.month, nodes_changed(before.nodes, after.nodes)) for before, after in pairwise(months)]
    return [page.note(f"{month}: {words}") for month, words in changes if words]


def _links(chain: Chain, out: Path) -> str:
    """Of each month the files that are there."""
    lines = []
    for one in reversed(chain.months):
        places = {name: place.format(month=one.month) for name, place in MONTH_FILES.items()}
        there = [f'<a href="{place}">{name}</a>' for name, place in places.items() if (out / place).is_file()]
        lines += [f"<li>{safe(one.month)}: {', '.join(there)}</li>"] if there else []
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _savings(ledger: Path) -> list[str]:
    months = read_savings(savings_file(ledger))
    rows = [
        (one.month, one.next_month, one.promised, one.realised, one.demand, one.service, one.not_carried_out)
        for one in outcomes(months)
    ]
    if not rows:
        text = "A promise is due when the month after it has been reported, on a fleet with a list of nodes."
        return [page.note(text)]
    if not any(one.promised or one.realised for one in outcomes(months)):
        return [page.note("Nothing was promised in the months that came due, and nothing saved.")]
    schema = {name: pl.String if name in ("month", "seen") else pl.Float64 for name in SAVINGS}
    standing = standing_table(months)
    hours, worth = standing["saved_gpu_hours"].sum(), standing["total_usd"][-1]
    money = f", worth {worth:,.2f} USD" if worth else ""
    less = f"All months together had {hours:,.0f} GPU-hours less than the first one would have{money}."
    return [
        page.paragraph(less),
        page.table(pl.DataFrame(rows, schema=schema, orient="row"), caption="Promises that came due",
                   headings=SAVINGS, formats=dict.fromkeys(list(SAVINGS)[2:], "+,.0f")),
    ]  # fmt: skip


def _forecasts(ledger: Path) -> list[str]:
    record = record_of(read_ledger(ledger))
    if record.is_empty():
        return [page.note("What a forecast was worth is known when its hours are over: in the month after.")]
    frame = record.select(
        month=pl.col("cutoff").dt.strftime("%Y-%m-%d"), slots="slots", coverage="coverage_90",
        error=pl.col("mae") / pl.col("naive_mae"),
    )  # fmt: skip
    about = page.note("Below 1, the forecast was nearer to what came than the last value seen before it.")
    formats = {"coverage": ".0%", "error": ".2f"}
    return [
        page.table(frame, caption="Forecasts whose hours came", headings=FORECASTS, formats=formats),
        about,
    ]
