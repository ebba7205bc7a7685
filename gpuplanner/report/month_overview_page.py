"""Overview page of the months: reports, savings and past forecasts."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.decision.fleet_checks_and_alerts import INFERRED_FLEET_REASON
from gpuplanner.decision.savings_track_record import (
    baseline_table,
    evaluate_promises,
    read_ledger,
    read_savings,
    savings_file,
    score_forecasts,
)
from gpuplanner.report import html_page as page
from gpuplanner.report.month_records import STEP_DONE, MonthChain, MonthRecord, ledger_path
from gpuplanner.report.number_formats_and_glossary import escape_html
from gpuplanner.usage.installed_capacity import describe_node_changes

MONTH_FILES = {
    "page": "{month}/index.html", "tables": "{month}/workbook.xlsx", "teams": "teams/{month}/scorecard.csv",
    "mail": "mail/{month}.eml",
}  # fmt: skip
"""Paths of the files of a month by link text, with ``{month}`` as placeholder."""
SAVINGS_HEADINGS = read_table_headings("promised savings")
"""Headings of the table of promised and realised savings, by column."""
FORECAST_HEADINGS = read_table_headings("forecast errors")
"""Headings of the table of evaluated forecasts, by column."""


def render_chain_page(chain: MonthChain, out: Path, locale: str = "en") -> str:
    """Render the overview page of a folder of monthly reports, with links to files that exist."""
    reported = [record for record in chain.months if record.has_data]
    inferred_months = [record.month for record in reported if record.facts.get("fleet_inferred")]
    notes = [page.note(f"{', '.join(inferred_months)}: {INFERRED_FLEET_REASON}.")] if inferred_months else []
    for earlier, later in pairwise(reported):
        change_text = describe_node_changes(earlier.nodes, later.nodes)
        notes += [page.note(f"{later.month}: {change_text}")] if change_text else []
    sections = [page.section("Months", _months_table(chain), *notes, _list_month_files(chain, out))]
    if reported:
        ledger = ledger_path(out, reported[-1].month)
        sections += [page.section("Savings: promised and realised", *_savings_parts(ledger)),
                  page.section("Forecast accuracy", *_forecast_parts(ledger))]  # fmt: skip
    months = f"{chain.months[0].month} to {chain.months[-1].month}" if chain.months else "no month yet"
    body, facts = "\n".join(sections), {"gpuplanner": __version__}
    return page.render_page(body, title="GPU reports", subtitle=months, provenance=facts, locale=locale)


def _months_table(chain: MonthChain) -> str:
    """Render the table of months, newest first, with links to their reports."""
    rows = []
    for record in reversed(chain.months):
        facts = record.facts
        sentence = facts.get("sentence", "") if record.has_data else ""
        rows.append({
            "month": record.month, "jobs": facts.get("jobs"), "GPUs": facts.get("fleet_gpus"),
            "advised": facts.get("gpus"), "saves": facts.get("saving_gpu_hours_per_week"),
            "decision": f"{sentence} {_describe_unfinished(record)}".strip(),
        })  # fmt: skip
    headings = {"GPUs": "installed GPUs", "advised": "recommended", "saves": "capacity freed [GPU h per week]"}
    schema = {"month": pl.String, "jobs": pl.Int64, "GPUs": pl.Int64, "advised": pl.Int64, "saves": pl.Float64,
              "decision": pl.String}  # fmt: skip
    table = page.table(
        pl.DataFrame(rows, schema=schema), caption="Months, newest first", headings=headings,
        formats={"saves": ",.0f"},
    )  # fmt: skip
    for record in chain.months:  # a name of digits, and a page that was written
        if record.has_data:
            row = f'<th scope="row">{record.month}</th>'
            link = f'<th scope="row"><a href="{record.month}/index.html">{record.month}</a></th>'
            table = table.replace(row, link)
    return table


def _describe_unfinished(record: MonthRecord) -> str:
    """Describe in a sentence the step at which a month's report stopped; empty if it is complete."""
    unfinished = next((step for step in record.steps if step.state != STEP_DONE), None)
    if unfinished is not None:
        return f"{unfinished.state.capitalize()} ({unfinished.name}): {unfinished.error or ''}"
    return "" if record.is_complete else "Started, not complete."


def _list_month_files(chain: MonthChain, out: Path) -> str:
    """Render links to the existing files of each month."""
    lines = []
    for record in reversed(chain.months):
        paths = {name: path.format(month=record.month) for name, path in MONTH_FILES.items()}
        links = [f'<a href="{path}">{name}</a>' for name, path in paths.items() if (out / path).is_file()]
        lines += [f"<li>{escape_html(record.month)}: {', '.join(links)}</li>"] if links else []
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _savings_parts(ledger: Path) -> list[str]:
    """Render savings promised and realised, month by month."""
    months = read_savings(savings_file(ledger))
    results = list(evaluate_promises(months))
    if not results:
        text = "Savings are measured once the next month is reported, for a fleet with a node list."
        return [page.note(text)]
    if not any(result.promised or result.realised for result in results):
        return [page.note("The measured months had no promised and no realised savings.")]
    fields = attrgetter("month", "next_month", "promised", "realised", "demand", "service", "not_carried_out")
    rows = list(map(fields, results))
    schema = {name: pl.String if name in ("month", "seen") else pl.Float64 for name in SAVINGS_HEADINGS}
    standing = baseline_table(months)
    hours, usd = standing["saved_gpu_hours"].sum(), standing["total_usd"][-1]
    money = f" ({usd:,.2f} USD)" if usd else ""
    total_text = f"All months used {hours:,.0f} GPU-hours less than at the level of the first month{money}."
    return [
        page.paragraph(total_text),
        page.table(pl.DataFrame(rows, schema=schema, orient="row"), caption="Promised and realised savings",
                   headings=SAVINGS_HEADINGS, formats=dict.fromkeys(list(SAVINGS_HEADINGS)[2:], "+,.0f")),
    ]  # fmt: skip


def _forecast_parts(ledger: Path) -> list[str]:
    """Render the accuracy of earlier forecasts."""
    record = score_forecasts(read_ledger(ledger))
    if record.is_empty():
        return [page.note("Forecast accuracy is known in the next month, once the forecast hours are over.")]
    frame = record.select(
        month=pl.col("cutoff").dt.strftime("%Y-%m-%d"), slots="slots", coverage="coverage_90",
        error=pl.col("mae") / pl.col("naive_mae"),
    )  # fmt: skip
    explanation = page.note("Below 1, the forecast beats the naive forecast, which repeats the last value.")
    formats = {"coverage": ".0%", "error": ".2f"}
    return [page.table(frame, caption="Evaluated forecasts", headings=FORECAST_HEADINGS, formats=formats), explanation]
