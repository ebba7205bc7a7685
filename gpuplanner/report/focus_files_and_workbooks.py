"""FOCUS cost files and Excel workbooks."""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.core.errors import GpuPlannerWarning, OutputError, SchemaError, VerificationError, examples
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import TEXT_BY_CODE, column_heading, replace_codes_by_text, unit_of
from gpuplanner.core.output_writing import write_atomically, write_csv_safe
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import LOCALE_BY_NAME, UNALLOCATED_TEAM, localize_text, period_text
from gpuplanner.cost.cost_over_time import ROUNDING_TEXT
from gpuplanner.cost.energy_and_carbon import FOOTPRINT_AMOUNTS
from gpuplanner.cost.monthly_cost_review import (
    COST_TABLE_TITLES,
    JOB_COST_GROUPS,
    PAGE_COST_TABLES,
    CostReview,
    cost_review,
    price_basis_phrase,
    price_rows,
    price_text,
)
from gpuplanner.decision.comparison_record import format_wait_target
from gpuplanner.decision.study import Study
from gpuplanner.report.first_screen import Links, confidence_rows, next_step_texts
from gpuplanner.report.metric_formulas import layout_table

FOCUS_RULES = pl.read_csv((resources.files(__package__) / "focus_rules.csv").read_bytes()).rows(named=True)
"""Rules of FOCUS 1.2 by column: whether each file has it, whether it may be empty, and its allowed values or form."""
MANDATORY_FOCUS_COLUMNS = tuple(rule["column"] for rule in FOCUS_RULES if rule["mandatory"] == "yes")
"""Columns that every FOCUS 1.2 file must have."""
FOCUS_TIME_COLUMNS = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
"""Columns of FOCUS with times: start and end of the billing period and of the charge period."""
FOCUS_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""``strftime`` format of times in FOCUS files."""

UNALLOCATED_NAME = pl.col("SubAccountName").replace(UNALLOCATED_TEAM, TEXT_BY_CODE[UNALLOCATED_TEAM])
"""Name of the team of charge lines in files, as pages print it; ``SubAccountId`` keeps the code."""


def write_focus(path: str | Path, costs: pl.DataFrame) -> Path:
    """Write charge lines (``schemas.Costs``) as a FOCUS 1.2 CSV file; lines that break its rules are rejected.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Costs
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_focus(Path(folder) / "bill.csv", make_empty_table(Costs)).read_text()[:41]
    'BillingPeriodStart,BillingPeriodEnd,Charg'
    """
    focus_lines = to_focus_text(costs)
    if problems := check_focus(focus_lines):
        got, todo = "; ".join(problems[:3]), "Report this as a bug of gpuplanner."
        raise VerificationError(str(path), "charge lines that conform to FOCUS 1.2", got, todo)
    return write_csv_safe(path, focus_lines)


def to_focus_text(costs: pl.DataFrame) -> pl.DataFrame:
    """Format charge lines as FOCUS text: times to the second with ``Z``, decimals in full."""
    return costs.with_columns(
        UNALLOCATED_NAME,
        pl.selectors.datetime().dt.convert_time_zone("UTC").dt.strftime(FOCUS_TIME_FORMAT),
        pl.selectors.decimal().cast(pl.String).str.replace(r"(\.\d\d\d*?)0+$", "${1}"),
    )


def check_focus(lines: pl.DataFrame) -> list[str]:
    """Check lines against the rules of FOCUS 1.2; each message names the first line that breaks a rule.

    Lines are text, from :func:`to_focus_text` or from a file that was read without guessing types.

    Examples
    --------
    >>> check_focus(pl.DataFrame({"BilledCost": ["1"]}))[0]
    'BillingAccountId: mandatory column is missing'
    """
    text = lines.select(pl.all().cast(pl.String))
    missing_columns = [
        f"{name}: mandatory column is missing" for name in MANDATORY_FOCUS_COLUMNS if name not in text.columns
    ]
    unknown_columns = [
        f"{name}: neither a FOCUS column nor a custom one (x_...)"
        for name in text.columns
        if not re.fullmatch(r"x_\w+|[A-Z][A-Za-z]+", name)
    ]
    return [*missing_columns, *unknown_columns, *(fault for fault in _find_focus_faults(text) if fault)]


def _find_focus_faults(text: pl.DataFrame) -> Iterator[str]:
    """Yield a message for each FOCUS rule that a line breaks; empty ones for rules that hold."""
    column_values = {name: pl.col(name).fill_null("") for name in text.columns}
    rules = []
    for rule in (rule for rule in FOCUS_RULES if rule["column"] in column_values):
        name, value = rule["column"], column_values[rule["column"]]
        if rule["may_be_null"] == "no":
            rules.append((name, value == "", "must not be null"))
        if rule["allowed"]:
            rules.append((name, ~value.is_in(["", *rule["allowed"].split("|")]), "not an allowed value"))
        if rule["form"]:
            rules.append((name, (value != "") & ~value.str.contains(rule["form"]), "not in the format of FOCUS"))
    rules += [
        (end, column_values[end] <= column_values[start], f"not after {start}")
        for start, end in (FOCUS_TIME_COLUMNS[:2], FOCUS_TIME_COLUMNS[2:])
        if {start, end} <= set(column_values)
    ]
    for name, broken, fault in rules:
        broken_lines = text.with_row_index("line", 1).filter(broken)
        if broken_lines.height:
            yield f"{name}: {fault} in line {broken_lines['line'][0]}: {broken_lines[name][0]!r}"
    if {"ListUnitPrice", "PricingQuantity", "ListCost"} <= set(column_values):
        yield _check_list_costs(text)


def _check_list_costs(text: pl.DataFrame) -> str:
    """Check that each list cost is exactly its unit price times its quantity, except in corrections."""
    for line, row in enumerate(text.iter_rows(named=True), 1):
        price, quantity = row["ListUnitPrice"], row["PricingQuantity"]
        if price and quantity and row.get("ChargeClass") != "Correction":
            with suppress(InvalidOperation):  # no numbers, which another rule names
                if Decimal(price) * Decimal(quantity) != Decimal(row["ListCost"]):
                    return f"ListCost: differs from ListUnitPrice times PricingQuantity in line {line}"
    return ""


MAX_SHEET_ROWS = 1_048_576
"""Maximum rows of an Excel sheet."""
MAX_CELL_CHARACTERS = 32_767
"""Maximum characters of an Excel cell."""
MAX_SHEET_NAME_CHARACTERS = 31
"""Maximum characters of the name of an Excel sheet."""
README_SHEET_NAME = "Read me"
"""Name of the first sheet, which describes the workbook."""
MAX_CHART_BARS = 30
"""Maximum number of bars in the chart on the sheet of totals."""

XlsxObject: TypeAlias = Any
"""Type of xlsxwriter objects (workbooks, sheets, formats), for which the library has no type hints."""
_Formats: TypeAlias = Callable[..., XlsxObject]
"""Function that makes a cell format from its properties."""

_MAX_EXACT_INTEGER = 2**53
"""Largest integer that an Excel cell stores exactly."""
_FORMULA_START_CHARACTERS = tuple("=+-@＝＋－＠\t\r\n'")
"""First characters by which a spreadsheet program takes a text for a formula."""


TOTALS_SHEET_NAME = "Totals"
"""Name of the sheet of totals."""


def write_workbook(
    path: str | Path, sheets: Mapping[str, pl.DataFrame], *, title: str, notes: Mapping[str, str],
    totals: Mapping[str, Sequence[str]] | None = None, facts: Mapping[str, str | Decimal] | None = None,
    locale: str = "en", remarks: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write tables as an XLSX workbook, with a first sheet that describes them.

    Text never becomes a formula, a link or a number: text that looks like a formula is marked as quoted. Amounts of
    type Decimal are exact to the cent, times are UTC. The same input gives the same bytes.

    Parameters
    ----------
    path : str or Path
        File to write.
    sheets : mapping of str to polars.DataFrame
        Tables by sheet name.
    title : str
        Title of the workbook.
    notes : mapping of str to str
        Notes on the first sheet, by heading.
    totals : mapping of str to sequence of str, optional
        Columns of a sheet that have a sum below the last row.
    facts : mapping of str to str or Decimal, optional
        Texts and amounts by name, beside the totals of the sheet ``Costs`` on a sheet of totals.
    locale : str
        Locale of dates.
    remarks : mapping of str to str, optional
        Text below the table of a sheet.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OutputError
        If a table has too many rows for a sheet.
    SchemaError
        If a column to be summed is missing or not numeric.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tables = {"costs": pl.DataFrame({"tenant": ["a"], "cost_usd": [1.5]})}
    ...     totals = {"costs": ["cost_usd"]}
    ...     write_workbook(Path(folder) / "a.xlsx", tables, title="May", notes={}, totals=totals).name
    'a.xlsx'
    """
    sums = dict(totals or {})
    for name, frame in sheets.items():
        _check_table(name, frame, sums.get(name, ()))
        if any((text.str.len_chars() > MAX_CELL_CHARACTERS).any() for text in frame.select(pl.selectors.string())):
            warning = f"sheet {name!r}: texts are truncated to {MAX_CELL_CHARACTERS:,} characters a cell"
            warnings.warn(warning, GpuPlannerWarning, stacklevel=2)
    writer = import_optional("xlsxwriter", extra="report")
    buffer = BytesIO()
    book = writer.Workbook(buffer, {"in_memory": True, "default_date_format": "yyyy-mm-dd"})
    # A fixed time, so that the same tables give the same bytes.
    book.set_properties({"title": title, "created": datetime(2000, 1, 1)})
    names = _to_sheet_names(sheets)
    formats = _make_formats(book, LOCALE_BY_NAME[locale].day)
    reading = "Times are UTC. An empty cell means not known, not zero. The workbook has no macros and no links."
    if sums or facts:
        totals_text = " and on the sheet Totals. Costs has codes, such as __unallocated__" if facts else ""
        reading += f" Its only formulas are sums, in rows named Total{totals_text}."
    notes = {key: localize_text(text, locale) for key, text in {**notes, "How to read": reading}.items()}
    _write_readme(book.add_worksheet(README_SHEET_NAME), formats, title, notes, sheets, names)
    if facts:
        _write_cost_totals(book, formats, sheets["Costs"], facts)
    for name, frame in sheets.items():
        remark = localize_text((remarks or {}).get(name, ""), locale)
        _write_table(book.add_worksheet(names[name]), formats, frame, sums.get(name, ()), remark)
    for sheet in book.worksheets():
        sheet.set_paper(9)  # A4
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)
    book.close()
    return write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


def _make_formats(book: XlsxObject, day: str) -> _Formats:
    """Return a function that makes the cell formats of one workbook, each once, with `day` as the form of dates."""

    @functools.cache
    def make_format(**properties: XlsxObject) -> XlsxObject:
        if "num_format" in properties:
            properties["num_format"] = properties["num_format"].replace("yyyy-mm-dd", day)
        return book.add_format(properties)

    return make_format


def _write_readme(
    sheet: XlsxObject, formats: _Formats, title: str, notes: Mapping[str, str], sheets: Mapping[str, pl.DataFrame],
    names: Mapping[str, str],
) -> None:  # fmt: skip
    """Write the first sheet: notes, and the columns of each table."""
    bold, wrap = formats(bold=True), {"text_wrap": True, "valign": "top"}
    sheet.set_column(0, 0, 28)
    sheet.set_column(1, 1, 90)
    sheet.hide_gridlines(2)
    _write_text(sheet, 0, 0, title, formats, bold=True, font_size=16)
    row = 2
    for key, text in notes.items():
        _write_text(sheet, row, 0, key, formats, bold=True, **wrap)
        _write_text(sheet, row, 1, text, formats, **wrap)
        _fit_row(sheet, row, key, text)
        row += 1
    row += 1
    sheet.write_string(row, 0, "Sheet", bold)
    sheet.write_string(row, 1, "Columns and units", bold)
    for name, frame in sheets.items():
        row += 1
        _write_text(sheet, row, 0, names[name], formats, valign="top")
        text = f"{frame.height:,} row{'s' * (frame.height != 1)}: {', '.join(map(sheet_heading, frame.columns))}"
        _write_text(sheet, row, 1, text, formats, **wrap)
        _fit_row(sheet, row, names[name], text)


def _fit_row(sheet: XlsxObject, row: int, key: str, text: str) -> None:
    """Make a row of the first sheet as high as its wrapped text; not all spreadsheet programs do so themselves."""
    lines = max(-(-len(key) // 24), sum(-(-max(len(line), 1) // 82) for line in text.split("\n")))
    sheet.set_row(row, 15 * lines)


def _write_table(sheet: XlsxObject, formats: _Formats, frame: pl.DataFrame, sums: Collection[str], remark: str) -> None:
    """Write a table to a sheet, with header, column widths, filter, sums of the columns `sums`, and a remark below."""
    width = 0.0
    header = {"bold": True, "bottom": 1, "bg_color": "#E4E7EB"}
    sheet.freeze_panes(1, 0)
    sheet.repeat_rows(0)
    for column, series in enumerate(frame.get_columns()):
        number = _number_format(series)
        style = formats(num_format=number)
        _write_text(sheet, 0, column, sheet_heading(series.name), formats, **header)
        values = _to_cell_values(series)
        for row, value in enumerate(values, start=1):
            _write_cell(sheet, row, column, value, formats, style)
        width += (column_width := _column_width(sheet_heading(series.name), values))
        sheet.set_column(column, column, column_width)
        if series.name in sums and (series.is_empty() or series.count()):  # what no row knows has no total
            _write_sum(sheet, frame.height, column, series, formats(num_format=number, bold=True, top=1))
    if frame.width:
        sheet.autofilter(0, 0, frame.height, frame.width - 1)
    if sums and frame.columns[0] not in sums:
        sheet.write_string(frame.height + 1, 0, "Total", formats(bold=True, top=1))
    if remark:  # over the columns of the table: beyond them, it would make the print of all too small
        row, wrap = frame.height + 3, {"text_wrap": True, "valign": "top"}
        sheet.merge_range(row, 0, row, max(frame.width - 1, 1), "", formats(**wrap))
        _write_text(sheet, row, 0, remark, formats, **wrap)
        sheet.set_row(row, 15 * math.ceil(len(remark) / width))


def _write_cell(sheet: XlsxObject, row: int, column: int, value: object, formats: _Formats, style: XlsxObject) -> None:
    """Write a value of any type to a cell; integers too large for a cell become text."""
    match value:
        case None:
            return
        case bool():
            sheet.write_boolean(row, column, value)
        case int() if abs(value) > _MAX_EXACT_INTEGER:
            sheet.write_string(row, column, str(value))
        case int() | float() | Decimal() if math.isfinite(value):
            sheet.write_number(row, column, value, style)
        case datetime() | date():
            sheet.write_datetime(row, column, value, style)
        case _:
            _write_text(sheet, row, column, str(value), formats)


def _write_text(
    sheet: XlsxObject, row: int, column: int, text: str, formats: _Formats, **properties: XlsxObject
) -> None:
    """Write a text to a cell, marked as quoted if a spreadsheet program could take it for a formula."""
    text = text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "…"
    if text.startswith(_FORMULA_START_CHARACTERS):
        properties["quote_prefix"] = True
    sheet.write_string(row, column, text, formats(**properties) if properties else None)


def _write_sum(sheet: XlsxObject, height: int, column: int, series: pl.Series, style: XlsxObject) -> None:
    """Write the sum of a column below its rows as an Excel formula, with its present value."""
    letters = import_optional("xlsxwriter.utility", extra="report").xl_col_to_name(column)
    finite = series.filter(series.is_finite()) if series.dtype.is_float() else series
    value = float(finite.sum() or 0)
    formula = f"=SUM({letters}2:{letters}{height + 1})" if height else "=0"
    sheet.write_formula(height + 1, column, formula, style, value)


def _write_cost_totals(
    book: XlsxObject, formats: _Formats, lines: pl.DataFrame, facts: Mapping[str, str | Decimal]
) -> None:
    """Write the sheet of totals by formulas over the charge lines: named totals, facts, cost by team with a chart."""
    letter = import_optional("xlsxwriter.utility", extra="report").xl_col_to_name
    sheet, bold = book.add_worksheet(TOTALS_SHEET_NAME), formats(bold=True)
    money = f"{price_basis_phrase(lines).strip()} [{lines['BillingCurrency'][0]}]"
    sheet.set_column(0, 0, 52)
    sheet.set_column(1, 1, 28)

    def column(name: str) -> str:
        letters = letter(lines.get_column_index(name), col_abs=True)
        return f"'Costs'!{letters}$2:{letters}${lines.height + 1}"

    # What no line knows has no total: it is not zero.
    totals = [(name, source, label) for name, (source, label) in NAMED_TOTALS.items() if lines[source].count()]
    for row, (name, source, label) in enumerate(totals):
        style = formats(num_format=_number_format(lines[source]))
        sheet.write_string(row, 0, label + (f" {money}" if name == "total_cost" else ""), bold)
        sheet.write_formula(row, 1, f"=SUM({column(source)})", style, float(lines[source].sum() or 0))
        book.define_name(name, f"={TOTALS_SHEET_NAME}!$B${row + 1}")
    for row, fact in enumerate(facts.items(), len(totals)):
        sheet.write_string(row, 0, fact[0], bold)
        _write_cell(sheet, row, 1, fact[1], formats, formats(num_format="#,##0.00##"))
    first = len(totals) + len(facts) + 2
    style = formats(num_format=_number_format(lines["EffectiveCost"]))
    sheet.write_string(first - 1, 0, column_heading("tenant"), bold)
    sheet.write_string(first - 1, 1, f"cost {money}", bold)
    parts = lines.group_by("SubAccountId", maintain_order=True).agg(pl.col("EffectiveCost").sum())
    for row, (name, amount) in enumerate(parts.iter_rows(), first):
        _write_text(sheet, row, 0, TEXT_BY_CODE[UNALLOCATED_TEAM] if name == UNALLOCATED_TEAM else name, formats)
        # Not SUMIF: that takes a name with a star or an equals sign for a pattern.
        key = f'"{name}"' if name == UNALLOCATED_TEAM else f"A{row + 1}"
        formula = f"=SUMPRODUCT(({column('SubAccountId')}={key})*{column('EffectiveCost')})"
        sheet.write_formula(row, 1, formula, style, float(amount))
    chart = book.add_chart({"type": "bar"})
    last = first + min(parts.height, MAX_CHART_BARS) - 1
    teams, amounts = ([TOTALS_SHEET_NAME, first, index, last, index] for index in (0, 1))
    chart.add_series({"name": f"cost {money}", "categories": teams, "values": amounts})
    chart.set_legend({"none": True})
    chart.set_y_axis({"reverse": True})
    sheet.insert_chart(first, 3, chart, {"description": f"cost {money} by team"})


def _to_cell_values(series: pl.Series) -> list[Any]:
    """Convert a column to values that a cell can hold: times without zone, durations in seconds, lists as text."""
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    elif isinstance(dtype, pl.Duration):
        series = series.dt.total_microseconds() / 1e6
    elif isinstance(dtype, pl.List):
        series = series.list.eval(pl.element().cast(pl.String)).list.join("; ")
    return series.to_list()


def _number_format(series: pl.Series) -> str:
    """Choose the Excel number format of a column by its type, such as ``#,##0.00``."""
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime):
        return 'yyyy-mm-dd hh:mm:ss "UTC"' if dtype.time_zone else "yyyy-mm-dd hh:mm:ss"
    if isinstance(dtype, pl.Date):
        return "yyyy-mm-dd"
    if isinstance(dtype, pl.Decimal):
        return "#,##0" + ("." + "0" * min(dtype.scale, 2) if dtype.scale else "")
    if dtype.is_integer():
        return "0" if series.name.endswith(("id", "gpu", "node")) else "#,##0"
    unit = unit_of(CLEARER_COLUMN_NAMES.get(series.name, series.name))
    return unit.excel if unit else "#,##0.00"


_CLEARER_COLUMN_NAME_LINES = (resources.files(__package__) / "sheet_columns.csv").read_text("utf-8").splitlines()[1:]
"""Lines ``column,clearer name`` of ``sheet_columns.csv``."""
CLEARER_COLUMN_NAMES: dict[str, str] = dict(line.split(",", 1) for line in _CLEARER_COLUMN_NAME_LINES)
"""Clearer names of table columns, from which the headings in workbooks are made."""
_INTERVAL_SUFFIX = re.compile(r"(.+?)(_low|_high)")
"""Name of a column with a bound of an interval: the name of the value, and ``_low`` or ``_high``."""


def sheet_heading(name: str) -> str:
    """Make the heading of a column with its unit; custom columns of FOCUS stay unchanged.

    Examples
    --------
    >>> [sheet_heading(name) for name in ("x_Bucket", "EffectiveCost", "location_kg_low", "idle_share")]
    ['x_Bucket', 'EffectiveCost', 'operational location-based carbon low [kg]', 'idle of measured (used and idle) [%]']
    """
    match = _INTERVAL_SUFFIX.fullmatch(name)
    stem, limit = match.groups() if match else (name, "")
    clearer_name = CLEARER_COLUMN_NAMES.get(name) or CLEARER_COLUMN_NAMES.get(stem, stem) + limit
    return name if name.startswith("x_") else column_heading(clearer_name)


def _column_width(name: str, values: Sequence[object]) -> float:
    """Choose the width of a column [characters]."""
    longest = max((19 if isinstance(value, datetime) else len(str(value)) for value in values[:200]), default=0)
    return min(48, max(10, len(name) + 4, longest + 2))


def _to_sheet_names(names: Collection[str]) -> dict[str, str]:
    r"""Make unique sheet names that Excel allows: 31 characters, none of ``[]:*?/\\``, no quote at the ends.

    Examples
    --------
    >>> _to_sheet_names(["a/b", "a:b"])
    {'a/b': 'a-b', 'a:b': 'a-b (2)'}
    """
    taken = {README_SHEET_NAME.casefold(), TOTALS_SHEET_NAME.casefold(), "history"}
    legal = {}
    for name in names:
        stem = re.sub(r"[\[\]:*?/\\\x00-\x1f]", "-", name).strip().strip("'")[:MAX_SHEET_NAME_CHARACTERS] or "Sheet"
        choice, count = stem, 1
        while choice.casefold() in taken:
            count += 1
            ending = f" ({count})"
            choice = stem[: MAX_SHEET_NAME_CHARACTERS - len(ending)] + ending
        taken.add(choice.casefold())
        legal[name] = choice
    return legal


def _check_table(name: str, frame: pl.DataFrame, sums: Collection[str]) -> None:
    """Raise an error if a table does not fit a sheet, or a column to be summed is not numeric."""
    if frame.height + 2 > MAX_SHEET_ROWS:
        todo = "Write the table as CSV or Parquet."
        raise OutputError(f"sheet {name!r}", f"at most {MAX_SHEET_ROWS - 2:,} rows", f"{frame.height:,}", todo)
    wrong = [column for column in sums if column not in frame.columns or not frame[column].dtype.is_numeric()]
    if wrong:
        todo = "Name numeric columns."
        raise SchemaError(f"totals of sheet {name!r}", "numeric columns of the table", examples(wrong), todo)


_STUDY_SHEET_ROWS = pl.read_csv((resources.files(__package__) / "study_sheets.csv").read_bytes()).fill_null("")
"""Rows of ``study_sheets.csv``: sheet of each table of a study, its summed columns, and new names of its columns, which
tell the period of GPU-hours and the forecast behind an error.
"""
STUDY_SHEETS = {table: (sheet, summed.split()) for table, sheet, summed, _ in _STUDY_SHEET_ROWS.iter_rows()}
"""Sheet name and columns summed below the rows, for each table of a study. Charge lines have no sums there: a file
that ``ingest`` reads as a bill must not have any; they are on the sheet of totals."""
MAX_STUDY_SHEET_ROWS = 100_000
"""Tables of a study with more rows, such as the calendar of a large fleet, are left to the table files."""
COST_WORKBOOK_TABLES = ("ownership", "gpu_model", *JOB_COST_GROUPS)
"""Groups of the further cost tables of the workbook for finance."""
TEAM_PERIOD_SHEET_NAMES = {"week": "Cost by team and week", "month": "Cost by team and month"}
"""Name of the sheet with the cost of each team in each period, by its length."""
CLEARER_NAMES_BY_TABLE = {
    table: dict(name.split("=") for name in names.split()) for table, *_, names in _STUDY_SHEET_ROWS.iter_rows()
}
"""New names of columns in workbooks, by table."""
NAMED_TOTALS = {
    "total_cost": ("EffectiveCost", "Total cost"), "total_gpu_hours": ("PricingQuantity", "Total installed GPU-hours"),
    "total_energy_kwh": ("x_EnergyKwh", "Total energy [kWh]"),
    "total_carbon_kg": ("x_CarbonKg", "Total operational carbon, location-based [kg CO2e]"),
}  # fmt: skip
"""Named Excel cells of totals: the column that is summed, and the label."""


def write_study_workbook(
    path: str | Path, study: Study, extra: Mapping[str, pl.DataFrame] | None = None, *, links: Links = ()
) -> Path:
    """Write the tables of a study, and extra sheets by name, as a workbook with the totals of the report.

    ``links`` are the files beside it, such as the change bundle, which the next steps name.
    """
    review = cost_review(study.scenario)
    steps = pl.DataFrame({"step": next_step_texts(study.decision, links)}, schema={"step": pl.String})
    tables = {"layouts": layout_table(study.decision), "next_steps": steps, **study.tables}
    kept = [name for name in STUDY_SHEETS if name in tables and tables[name].height <= MAX_STUDY_SHEET_ROWS]
    worded = {name: replace_codes_by_text(tables[name]) for name in kept}
    # Energy of the simulated weeks is not that of the period, which has a sheet of its own.
    worded["policies"] = worded.get("policies", pl.DataFrame()).drop("^energy_kwh.*$", "carbon_kg", strict=False)
    renamed = {name: table.rename(CLEARER_NAMES_BY_TABLE[name], strict=False) for name, table in worded.items()}
    sheets = {STUDY_SHEETS[name][0]: table for name, table in renamed.items()} | dict(extra or {})
    return _write_with_totals(path, sheets, review, notes=study_notes(study), totals=dict(STUDY_SHEETS.values()))


def write_cost_workbook(
    path: str | Path, review: CostReview, extra_sheets: Mapping[str, pl.DataFrame] | None = None
) -> Path:
    """Write a cost review as a workbook for finance: charge lines and their sums.

    Parameters
    ----------
    path : str or Path
        File to write.
    review : CostReview
        Cost of a period.
    extra_sheets : mapping of str to polars.DataFrame, optional
        More tables by sheet name.

    Returns
    -------
    Path
        The file.
    """
    sheets = {"Costs": review.costs, COST_TABLE_TITLES["job"]: review.by_job,
              **{COST_TABLE_TITLES[by]: review.breakdown(by).head(-1) for by in COST_WORKBOOK_TABLES},
              "Energy and carbon": replace_codes_by_text(review.states), "Prices": price_rows(review),
              **(extra_sheets or {})}  # fmt: skip
    period_notes = {
        "Period": period_text(*review.period),
        "Data that could not be priced, and assumed prices": " ".join(review.missing) or "none",
    }
    totals = {
        "Energy and carbon": list(FOOTPRINT_AMOUNTS),
        **dict.fromkeys((COST_TABLE_TITLES[by] for by in COST_WORKBOOK_TABLES), tuple(review.sums)),
    }
    return _write_with_totals(path, sheets, review, notes=period_notes, totals=totals)


def _write_with_totals(
    path: str | Path, sheets: Mapping[str, pl.DataFrame], review: CostReview, *, notes: Mapping[str, str],
    totals: Mapping[str, Sequence[str]],
) -> Path:  # fmt: skip
    """Write a workbook of sheets with those of a cost review added, and a sheet of totals of its charge lines."""
    lines, facts = sheets.get("Costs", pl.DataFrame()), dict[str, str | Decimal]()
    if lines.height:
        lines = lines.with_columns(UNALLOCATED_NAME, pl.selectors.datetime().dt.strftime(FOCUS_TIME_FORMAT))
        parts = {COST_TABLE_TITLES[by]: review.breakdown(by).head(-1) for by in PAGE_COST_TABLES}
        by_period = {
            name: replace_codes_by_text(review.by_team_over_time(every).rename({"team": "tenant"}))
            for every, name in TEAM_PERIOD_SHEET_NAMES.items()
        }
        sheets = {**by_period, **parts, "Unit costs": review.units, "Costs": lines} | {**sheets, "Costs": lines}
        period_columns = {name: table.columns[1:] for name, table in by_period.items()}
        totals = {**totals, **period_columns, **dict.fromkeys(parts, tuple(review.sums))}
        facts = {
            "Price basis": review.price_basis.strip(), "Period": period_text(*review.period),
            f"Mean cost of an installed GPU-hour [{review.currency}]": Decimal(repr(review.hourly_cost)),
        }  # fmt: skip
        if hours := review.job_history.trace.source_facts.uncounted_gpu_hours:
            label = "GPU-hours in Unallocated of jobs without countable GPUs (whole record, estimated)"
            facts[label] = Decimal(f"{hours:.2f}")
        for label, amount in review.work_costs.items():
            facts[f"{label[:1].upper()}{label[1:]} [{review.currency}]"] = amount
        notes = {**notes, "Cost": f"{review.total_text}. {review.unallocated_text}"}
    sums = review.sums
    sheets = {name: table.rename(sums, strict=False) for name, table in sheets.items() if table.width}
    totals = {
        name: [sums.get(column, column) for column in columns if sums.get(column, column) in sheets[name].columns]
        for name, columns in totals.items() if name in sheets
    }  # fmt: skip
    title, locale = review.scenario.name, review.scenario.number_locale
    return write_workbook(
        path, sheets, title=title, notes=notes, totals=totals, facts=facts, locale=locale,
        remarks=dict.fromkeys(TEAM_PERIOD_SHEET_NAMES.values(), f"{notes.get('Cost', '')} {ROUNDING_TEXT}"),
    )  # fmt: skip


def carbon_text(study: Study) -> str:
    """Format the carbon intensity of electricity with its region or file, and whether the region is an assumption."""
    scenario, factor = study.scenario, study.provenance.carbon
    if scenario.carbon_file is not None:
        return f"hourly factors of {Path(scenario.carbon_file).name}"
    assumed = "assumed" if scenario.carbon_region == Scenario().carbon_region else "as set"
    region = f"{factor.gco2e_per_kwh:g} g CO2e per kWh, {scenario.carbon_region} ({assumed}, --set carbon_region=…)"
    return f"{region}; {factor.source}; {factor.year}"


def _fair_share_note(study: Study) -> dict[str, str]:
    """Make the note on the sheet of fair share by heading: quotas, why its GPU-hours differ; empty without it."""
    if "team_facts" not in study.tables:
        return {}
    quotas = json.loads(study.tables["team_facts"]["facts"][0])["notes"]
    counts = "Fair share counts a MIG slice by the larger of its compute and memory share, and jobs that still run to"
    basis = "the end of the last full hour; all other tables count compute slices to the end of the data."
    return {STUDY_SHEETS["teams"][0]: " ".join([*quotas, counts, basis])}


WAIT_INTERVAL_TEXT = (
    "The p95 is of the recorded jobs, its 80 % interval of resampled weeks: a p95 can lie outside. Empty: no start."
)
"""Note on the intervals of queue waits by number of GPUs."""
FORECAST_MIX_TEXT = (
    "The forecast is the mean of the models' quantiles. Weights are those for the time ahead, from the errors at all "
    "past cutoffs; the error of the mix at a cutoff is that with the weights known then, and may exceed that of the "
    "model with the largest weight. MASE: mean absolute error over that of the value 24 hours earlier."
)
"""Note on the weights and errors of the forecast models."""


def study_notes(study: Study) -> Mapping[str, str]:
    """Collect the notes of a workbook by heading: decision, period, baseline, price, sources and version."""
    price, source_facts = study.provenance.price, study.provenance.source_facts
    window = (study.comparison.evaluated_from, study.comparison.evaluated_to)
    evaluation = period_text(window[0], window[1]) if window[0] and window[1] else "none"
    changed_fields = [f"{name} = {value}" for name, (_, value) in Scenario().diff(study.scenario).items()]
    return {
        "Decision": study.decision.sentence,
        **dict(confidence_rows(study.decision, study.provenance.doubts)),
        "Period": period_text(study.headline.observed_from, study.headline.observed_to),
        "Source": f"{source_facts.source}, {source_facts.rows_kept:,} of {source_facts.rows_in:,} rows kept",
        "Fleet": f"{study.headline.fleet_gpus} GPUs of {study.headline.gpu_model or study.headline.boards}, "
        f"{study.headline.fleet_note}; {study.headline.installed_gpus} installed",
        "Baseline": study.provenance.policies["today"],
        "Evaluation window": evaluation,
        "Wait limit": format_wait_target(study.comparison),
        "Price": "none" if price is None else f"{price_text(price)}; {price.source}; dated {price.date}",
        "Carbon": carbon_text(study),
        STUDY_SHEETS["wait_curve"][0]: WAIT_INTERVAL_TEXT,
        STUDY_SHEETS["choice"][0]: FORECAST_MIX_TEXT,
        STUDY_SHEETS["energy"][0]: "Low and high: ends of the ranges of power, PUE and, without telemetry, activity.",
        **_fair_share_note(study),
        "Scenario": "; ".join(changed_fields) or "all defaults",
        "Input files": "; ".join(f"{name}: sha256 {sha}" for name, sha in sorted(study.provenance.inputs.items())),
        "gpuplanner": str(study.provenance.gpuplanner),
        "Libraries": ", ".join(f"{name} {number}" for name, number in sorted(study.provenance.libraries.items())),
        "Approved by": study.scenario.approved_by or "not approved yet (--set approved_by=NAME)",
    }
