"""Unit conversions, rounding, and formats of numbers, days, waits and money."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

SECONDS_PER_MINUTE = 60.0
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86_400.0
HOURS_PER_WEEK = 168.0
MIB_PER_GIB = 1024.0
WATTS_PER_KILOWATT = 1000.0
GRAMS_PER_KILOGRAM = 1000.0
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""English abbreviations of the months, from January."""

UNALLOCATED_TEAM = "__unallocated__"
"""Team name of GPU-hours that were not allocated to any team, as in OpenCost."""
UNALLOCATED_LABEL = "Unallocated"
"""Name of the GPU-hours that no team was allocated, of all causes, in tables and pages."""

MIN_MINUTES_SHOWN_AS_HOURS = 120.0
"""Shortest wait that is printed in hours instead of minutes. [min]"""


def day_text(day: date | str) -> str:
    """Format a day as people write it, in every locale alike.

    Examples
    --------
    >>> day_text("2027-03-15"), day_text(date(2026, 11, 3))
    ('15 Mar 2027', '3 Nov 2026')
    """
    calendar_day = date.fromisoformat(day[:10]) if isinstance(day, str) else day
    return f"{calendar_day.day} {MONTHS[calendar_day.month - 1]} {calendar_day.year}"


def last_day_text(end: str) -> str:
    """Format the last day of a period that ends before a time, ISO 8601.

    Examples
    --------
    >>> last_day_text("2026-03-01T00:00:00+00:00"), last_day_text("2026-03-23T06:00:00+00:00")
    ('28 Feb 2026', '23 Mar 2026')
    """
    return day_text((datetime.fromisoformat(end) - timedelta(microseconds=1)).date())


def waiting_hours_text(hours: float) -> str:
    """Format hours of waiting, below ten with a decimal.

    Examples
    --------
    >>> [waiting_hours_text(hours) for hours in (0.7, 1.0, 1.5, 8.0, 1234.5)]
    ['less than an hour', '1 hour', '1.5 hours', '8 hours', '1,234 hours']
    """
    text = f"{hours:,.{int(hours < 10)}f}".removesuffix(".0")
    return "less than an hour" if hours < 1 else f"{text} hour{'s' * (text != '1')}"


def period_text(begin: str, end: str) -> str:
    """Format a period from its first instant to its end, ISO 8601, by its month or its first and last day.

    A day that is not whole has its time: the end of a period is no day of it.

    Examples
    --------
    >>> period_text("2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00")
    'Feb 2026 (UTC)'
    >>> period_text("2026-03-02T03:00:00+00:00", "2026-03-24T00:00:00+00:00")
    '2 Mar 2026 03:00 to 23 Mar 2026 (UTC)'
    """
    first, stop = datetime.fromisoformat(begin), datetime.fromisoformat(end)
    last = stop - timedelta(microseconds=1)
    midnight = [f"{time:%H:%M}" == "00:00" for time in (first, stop)]
    if all(midnight) and first.day == stop.day == 1 and (first.year, first.month) == (last.year, last.month):
        return f"{MONTHS[first.month - 1]} {first.year} (UTC)"
    days = (
        day_text(day) if whole else f"{day_text(time)} {time:%H:%M}"
        for day, time, whole in zip((first, last), (first, stop), midnight, strict=True)
    )  # fmt: skip
    return f"{' to '.join(days)} (UTC)"


@dataclass(frozen=True)
class Locale:
    """Number and date format: decimal mark, thousands mark, and the order of a day's parts."""

    decimal: str
    thousands: str
    day: str


LOCALE_BY_NAME = {
    "en": Locale(".", ",", "yyyy-mm-dd"),
    "de": Locale(",", ".", "dd.mm.yyyy"),
    "ch": Locale(".", "\N{RIGHT SINGLE QUOTATION MARK}", "dd.mm.yyyy"),
    "fr": Locale(",", "\N{NARROW NO-BREAK SPACE}", "dd/mm/yyyy"),
}
"""Number and date formats by locale name; text is made in the first, ``en``, and converted where it is shown."""
_NUMBER_PATTERN = re.compile(
    r"(?<![\w.,/=@#])(?<!\w-)(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)(?=e[−-]?\d|[^\w/.,]|[.,](?!\d)|$)"
)
"""A number with thousands marks or decimals in a text, not part of a name, version or path."""
_DAY_PATTERN = re.compile(rf"(?<![\w-])(?:(\d{{4}})-(\d\d)-(\d\d)|(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}}))(?![\w-])")
"""A day in a text, as ``2026-02-14`` or ``14 Feb 2026``."""


def localize_text(text: str, name: str, *, numbers: bool = True) -> str:
    """Convert numbers and days in a text to another locale; names and versions with digits stay.

    Examples
    --------
    >>> localize_text("Since 2026-03-01 1,344.5 GPU-hours, 0.25 of 1g.10gb; gpuplanner 0.1.0", "de")
    'Since 01.03.2026 1.344,5 GPU-hours, 0,25 of 1g.10gb; gpuplanner 0.1.0'
    """
    if name == next(iter(LOCALE_BY_NAME)):
        return text
    target_locale = LOCALE_BY_NAME[name]
    marks = str.maketrans({".": target_locale.decimal, ",": target_locale.thousands})
    if numbers:
        text = _NUMBER_PATTERN.sub(lambda match: match[0].translate(marks), text)
    return _DAY_PATTERN.sub(lambda match: _localize_day(match, target_locale), text)


def _localize_day(match: re.Match[str], target_locale: Locale) -> str:
    """Convert one day, a match of ``_DAY_PATTERN``, to another locale."""
    year, month, day, day_of_text, month_name, year_of_text = match.groups()
    parts = (
        (day, month, year) if day else (f"{int(day_of_text):02d}", f"{MONTHS.index(month_name) + 1:02d}", year_of_text)
    )
    return target_locale.day.replace("dd", parts[0]).replace("mm", parts[1]).replace("yyyy", parts[2])


def format_three_digits(value: float) -> str:
    """Format a number with three significant digits and thousands marks.

    Examples
    --------
    >>> [format_three_digits(value) for value in (10752.4, 104.6, 12.345, 0.8381, 0.0, -2.5, 2e-7)]
    ['10,752', '105', '12.3', '0.838', '0', '−2.5', '2e−7']
    """
    text = f"{value:,.0f}" if abs(value) >= 99.95 or value == 0 else f"{value:.3g}".replace("e-0", "e-")
    return text.replace("-", "\N{MINUS SIGN}")


MISSING_VALUE_TEXT = "–"
"""Text in place of a number that was not measured or does not exist."""


def figure_text(value: float | Decimal | None, form: str = "") -> str:
    """Format a number by the specification `form`, else in three significant digits; a dash if missing or not finite.

    Examples
    --------
    >>> figure_text(1234.5, ",.0f"), figure_text(0.8381), figure_text(None), figure_text(float("nan"), ",.0f")
    ('1,234', '0.838', '–', '–')
    >>> figure_text(-0.04, "+,.1f"), figure_text(-0.04, "+.1%")
    ('+0.0', '-4.0 %')
    """
    if value is None or not math.isfinite(value):
        return MISSING_VALUE_TEXT
    if form.endswith(("f", "%")):  # what rounds to zero has no minus
        form = re.sub(r"^[+ -]?", r"\g<0>z", form)
    if form.endswith("%"):
        return percent_text(float(value), f"{form[:-1]}f")
    return format(value, form) if form else format_three_digits(float(value))


def wait_text(minutes: float) -> str:
    """Format a wait [min]: in minutes below two hours, in hours above.

    Examples
    --------
    >>> wait_text(4.2), wait_text(119.6), wait_text(119.4), wait_text(933), wait_text(60000)
    ('4 min', '2.0 h', '119 min', '15.6 h', '1,000 h')
    """
    if round(minutes) < MIN_MINUTES_SHOWN_AS_HOURS:
        return f"{minutes:,.0f} min"
    hours = minutes / 60.0
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.1f} h"


def percent_text(fraction: float, form: str = ".0f") -> str:
    """Format a fraction [0-1] as a percentage, with the format specification `form` of the number.

    Examples
    --------
    >>> percent_text(0.82), percent_text(0.0123, "+.1f")
    ('82 %', '+1.2 %')
    """
    return f"{100 * fraction:{form}} %"


def count_text(number: int, word: str) -> str:
    """Format a count with its noun, in the plural if it is not 1.

    Examples
    --------
    >>> count_text(1, "job"), count_text(1200, "job"), count_text(0, "GPU")
    ('1 job', '1,200 jobs', '0 GPUs')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def gpu_figure_text(gpus: float | None) -> str:
    """Format a number of GPUs: below ten in three significant digits, so that a part of a GPU does not read as 0.

    Examples
    --------
    >>> [gpu_figure_text(gpus) for gpus in (0.0, 3 / 7, 2.0, 1234.4, None)]
    ['0', '0.429', '2', '1,234', '–']
    """
    return figure_text(gpus, ",.0f" if gpus is not None and abs(gpus) >= 9.995 else "")


def gpus_text(gpus: float | None) -> str:
    """Format a number of GPUs, which may be a part of one, with its noun.

    Examples
    --------
    >>> gpus_text(3 / 7), gpus_text(1), gpus_text(63.6)
    ('0.429 GPUs', '1 GPU', '64 GPUs')
    """
    text = gpu_figure_text(gpus)
    return f"{text} GPU{'' if text == '1' else 's'}"


def kwh_from_watt_hours(watt_hours: float) -> float:
    """Convert watt-hours to kilowatt-hours.

    Examples
    --------
    >>> kwh_from_watt_hours(2500)
    2.5
    """
    return watt_hours / WATTS_PER_KILOWATT


def round_money(amount: float, decimals: int = 2) -> Decimal:
    """Round an amount of money to its smallest unit, half to even.

    Sum before rounding; this is the last step before an amount is shown.

    Examples
    --------
    >>> round_money(1234.565)
    Decimal('1234.56')
    """
    return Decimal(repr(float(amount))).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_EVEN)


DECIMALS_BY_CURRENCY = {
    "BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0,
    "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
    "BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
}  # fmt: skip
"""Decimals of currencies that do not have two (ISO 4217, list one)."""


def money_text(amount: Decimal, currency: str) -> str:
    """Format an amount with the decimals of its currency, without an exponent.

    Examples
    --------
    >>> money_text(Decimal("1E+6"), "USD"), money_text(Decimal("98.5"), "JPY"), money_text(Decimal("-0.001"), "EUR")
    ('1,000,000.00', '98', '0.00')
    """
    smallest = Decimal(1).scaleb(-DECIMALS_BY_CURRENCY.get(currency, 2))
    # Bills are exact to 18 decimals, and their sums have as many before the point.
    with localcontext(prec=60):
        rounded = amount.quantize(smallest, rounding=ROUND_HALF_EVEN)
    return f"{rounded if rounded else abs(rounded):,f}"


def split_amount(total: Decimal, weights: Sequence[float]) -> list[Decimal]:
    """Split a rounded amount by weights so that the parts sum to it exactly (largest remainder).

    Examples
    --------
    >>> split_amount(Decimal("10.00"), [1, 1, 1])
    [Decimal('3.34'), Decimal('3.33'), Decimal('3.33')]
    >>> split_amount(Decimal("0.00"), [])
    []
    """
    if not weights:
        return []
    scale = sum(weights)
    shares = [1 / len(weights)] * len(weights) if scale <= 0 else [w / scale for w in weights]
    exponent = total.as_tuple().exponent
    unit = Decimal(1).scaleb(exponent if isinstance(exponent, int) else -2)
    cents = int(total / unit)
    floors = [int(cents * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (floors[i] - cents * shares[i], i))
    short = cents - sum(floors)
    step = 1 if short >= 0 else -1
    for position in range(abs(short)):
        floors[by_remainder[position % len(shares)]] += step
    return [floor * unit for floor in floors]


def split_table(
    row_totals: Mapping[Any, Decimal], amounts: Mapping[tuple[Any, Any], float]
) -> dict[tuple[Any, Any], Decimal]:
    """Round the amounts of a table so that its rows sum to given totals, and its columns to their own rounded sums.

    Each row is split as by :func:`split_amount`; then cents are shifted within rows, where rounding allows it best,
    from columns that are too large to those that are too small. A column stays off only if no row has both.

    Parameters
    ----------
    row_totals : mapping of hashable to decimal.Decimal
        Total of each row, rounded to cents.
    amounts : mapping of (hashable, hashable) to float
        Exact amounts by row and column; an amount of 0 stays 0.

    Examples
    --------
    >>> amounts = {("a", "x"): 0.006, ("a", "y"): 0.004, ("b", "x"): 0.006, ("b", "y"): 0.004}
    >>> [str(cents) for cents in split_table({"a": Decimal("0.01"), "b": Decimal("0.01")}, amounts).values()]
    ['0.00', '0.01', '0.01', '0.00']
    """
    rows: dict[Any, dict[Any, float]] = {row: {} for row in row_totals}
    columns: dict[Any, list[float]] = {}
    for (row, column), amount in amounts.items():
        rows[row][column] = amount
        columns.setdefault(column, []).append(amount)
    goals = split_amount(sum(row_totals.values(), Decimal()), [math.fsum(column) for column in columns.values()])
    excess = {column: -goal for column, goal in zip(columns, goals, strict=True)}
    cells = {}
    for row, parts in rows.items():
        for column, cents in zip(parts, split_amount(row_totals[row], [*parts.values()]), strict=True):
            cells[row, column] = cents
            excess[column] += cents
    while any(excess.values()):
        high, low = max(excess, key=excess.__getitem__), min(excess, key=excess.__getitem__)
        shifts = [
            (float(cells[row, high] - cells[row, low]) - (parts[high] - parts[low]), row)
            for row, parts in rows.items()
            if cells.get((row, high), 0) > 0 and parts.get(low, 0.0) > 0
        ]
        if not shifts:
            break
        row = max(shifts, key=lambda shift: shift[0])[1]
        for column, step in ((high, Decimal("-0.01")), (low, Decimal("0.01"))):
            cells[row, column] += step
            excess[column] += step
    return {key: cells[key] for key in amounts}
