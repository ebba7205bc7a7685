"""The price book: dated prices, owned GPUs, exchange rates and contracts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import ScenarioError, suggest_name
from gpuplanner.core.serialization import (
    make_file_error,
    read_choice,
    read_day,
    read_day_range,
    read_number,
    read_rows,
    read_yaml,
    require_keys,
)
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, percent_text
from gpuplanner.cost.showback import Rate
from gpuplanner.hardware.catalog import facts, read_gpu_model
from gpuplanner.hardware.power_carbon_and_prices import HOURS_PER_YEAR, GpuHourPrice

OWNED, ON_DEMAND, SPOT = "owned", "on_demand", "spot"
"""Ownerships of GPUs, as ``kind`` of a price: bought, rented on demand, rented as spot capacity."""
RENTED_KINDS = (ON_DEMAND, SPOT, "reserved", "reserved_1y", "reserved_3y", "block")
"""Values of ``kind`` in section ``prices``: ownerships of GPUs that are rented or reserved."""
PRICE_CONFIDENCES = ("contract", "quote", "list", "estimate")
"""Values of ``confidence`` of a price: where the price comes from."""
PRICE_ROW_KEYS = (
    "gpu_model", "kind", "price", "unit", "gpus", "from", "to", "source", "region", "instance_type", "billing_step_s",
    "minimum_term_h", "confidence",
)  # fmt: skip
"""Keys of a row of section ``prices``, the required ones first."""
BILLING_KEYS = ("billing_step_s", "minimum_term_h")
"""Keys of a price that state how a rental is billed."""
OWNED_LOT_KEYS = (
    "gpu_model", "gpus", "capex", "unit", "bought", "life_years", "residual", "space", "support", "staff", "source",
)  # fmt: skip
"""Keys of a row of section ``owned``, the required ones first."""
EXCHANGE_RATE_KEYS = ("from", "to", "rate", "date", "source")
"""Keys of a row of section ``rates``, the exchange rates."""
ELECTRICITY_KEYS = ("price", "unit", "from", "to", "source", "market_g_per_kwh")
"""Keys of a row of section ``electricity``, the required ones first."""
PRICE_UNIT_PATTERN = re.compile(r"([A-Z]{3}) per (GPU h|instance h|GPU|kWh)")
"""Pattern of the unit of a price: ISO 4217 currency and denominator, such as ``USD per GPU h``."""
YEARLY_COST_KEYS = ("space", "support", "staff")
"""Keys of the yearly costs of an owned GPU besides purchase and electricity [currency per GPU and year]."""


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """Price of a GPU-hour of a GPU model between two days, both included; ``end`` None: until the next price begins.

    - ``kind``: Ownership: on_demand, spot, reserved, reserved_1y, reserved_3y or block.
    - ``per_gpu_hour``: Price [currency per GPU-hour].
    - ``billing_step_s``: Time unit of the bill, to which a rental is rounded up [s].
    - ``minimum_term_h``: Shortest time that is billed; of ``reserved``, the term [h].
    - ``confidence``: contract, quote, list or estimate.
    """

    gpu_model: str
    kind: str
    per_gpu_hour: float
    currency: str
    begin: str
    end: str | None
    source: str
    region: str | None = None
    instance_type: str | None = None
    billing_step_s: float | None = None
    minimum_term_h: float | None = None
    confidence: str = "quote"

    def is_valid_in(self, begin: datetime, end: datetime) -> bool:
        """Whether the price holds on a day of a period."""
        return _day_start(self.begin) < end and (self.end is None or _day_start(self.end) + timedelta(days=1) > begin)

    @property
    def text(self) -> str:
        """Price with its days, such as ``2.5 EUR from 2026-01-01``."""
        return f"{self.per_gpu_hour:,.6g} {self.currency} from {self.begin}{f' to {self.end}' if self.end else ''}"


@dataclass(frozen=True)
class BillingTerms:
    """How a rental is billed: in steps of so many hours, 0 for none, and at least so many hours."""

    step_h: float = 0.0
    minimum_h: float = 0.0

    def bill_hours(self, hours: pl.Expr) -> pl.Expr:
        """Return the hours that are billed for a rental.

        Examples
        --------
        >>> pl.select(BillingTerms(1.0, 2.0).bill_hours(pl.lit(pl.Series([0.5, 2.25])))).to_series().to_list()
        [2.0, 3.0]
        """
        billed = pl.max_horizontal(hours, pl.lit(self.minimum_h))
        # A rental of whole steps stays: the tolerance takes up rounding of its times.
        return (billed / self.step_h - 1e-9).ceil() * self.step_h if self.step_h else billed

    @property
    def text(self) -> str:
        """Billing as words; empty if every second counts."""
        step = f"in steps of {self.step_h:g} h" if self.step_h else ""
        return " and ".join(filter(None, (step, f"at least {self.minimum_h:g} h" if self.minimum_h else "")))


@dataclass(frozen=True, kw_only=True)
class OwnedLot:
    """GPUs that were bought together.

    - ``capex``: Purchase price [currency per GPU].
    - ``bought``: Day of the purchase, ISO 8601.
    - ``life_years``: Depreciation period [years].
    - ``residual``: Share of the purchase price that remains at its end [0-1].
    - ``space``, ``support``, ``staff``: Yearly costs [currency per GPU and year].
    """

    gpu_model: str
    gpus: int
    capex: float
    currency: str
    bought: str
    life_years: float
    residual: float
    space: float
    support: float
    staff: float
    source: str

    def hourly_costs(self, day: date) -> dict[str, float]:
        """Cost of a GPU-hour on a day by component [currency per GPU-hour]; no depreciation after the lifetime.

        Examples
        --------
        >>> lot = OwnedLot(gpu_model="X", gpus=8, capex=43830.0, currency="USD", bought="2025-01-01", life_years=5.0,
        ...                residual=0.0, space=0.0, support=876.6, staff=0.0, source="invoice")
        >>> lot.hourly_costs(date(2026, 1, 1))["depreciation"], lot.hourly_costs(date(2031, 1, 1))["depreciation"]
        (1.0, 0.0)
        """
        is_written_off = date.fromisoformat(self.bought) + timedelta(days=self.life_years * HOURS_PER_YEAR / 24) <= day
        depreciation = 0.0 if is_written_off else self.capex * (1 - self.residual) / self.life_years
        yearly = {"depreciation": depreciation} | {name: float(getattr(self, name)) for name in YEARLY_COST_KEYS}
        return {name: amount / HOURS_PER_YEAR for name, amount in yearly.items()}


@dataclass(frozen=True)
class ExchangeRate:
    """Exchange rate of a day: units of ``to_currency`` for one unit of ``from_currency``."""

    from_currency: str
    to_currency: str
    rate: float
    date: str
    source: str


@dataclass(frozen=True)
class PowerRow:
    """Price of electricity between two days, and the market-based carbon factor of its contract.

    - ``per_kwh``: Price [currency per kWh].
    - ``market_g_per_kwh``: Carbon factor [g CO2e per kWh]; None: that of the grid.
    """

    per_kwh: float
    currency: str
    begin: str
    end: str | None
    source: str
    market_g_per_kwh: float | None


@dataclass(frozen=True)
class PriceBook:
    """Prices, owned GPUs, exchange rates and electricity contracts of a file; without rows, list prices are used.

    With ``bridges_gaps``, for prices that no GPU is charged at, rows need not cover a period: the mean is of the days
    with a price, else the last price before the period counts, else the first one after it; a reservation has none.
    """

    prices: tuple[PriceRow, ...] = ()
    owned: tuple[OwnedLot, ...] = ()
    rates: tuple[ExchangeRate, ...] = ()
    electricity: tuple[PowerRow, ...] = ()
    bridges_gaps: bool = False

    def find_rate(self, gpu_model: str, kind: str, currency: str, begin: datetime, end: datetime) -> Rate | None:
        """Find the rate of a GPU-hour in a period: the mean over time if the price changes.

        Parameters
        ----------
        gpu_model : str
            Name in the catalogue.
        kind : str
            Ownership, such as ``owned``, ``on_demand``, ``spot`` or ``reserved``.
        currency : str
            Currency of the result, ISO 4217.
        begin, end : datetime
            Period, UTC.

        Returns
        -------
        Rate or None
            Rate [currency per GPU-hour]; None if the book has no row for the GPU model and ownership.

        Raises
        ------
        ScenarioError
            If the rows do not cover the whole period, or an exchange rate is missing.
        """
        if kind == OWNED:
            return self._owned_rate(gpu_model, currency, begin, end)
        for row_kind in (kind, *(rented_kind for rented_kind in RENTED_KINDS if rented_kind.startswith(f"{kind}_"))):
            rows = [row for row in self.prices if row.gpu_model == gpu_model and row.kind == row_kind]
            if self.bridges_gaps and kind.startswith("reserved"):
                rows = [row for row in rows if row.is_valid_in(begin, end)]
            if rows:
                return self._mean_rate(rows, f"{gpu_model}, {row_kind}", currency, begin, end)
        return None

    def find_billing_terms(self, gpu_model: str | None, kind: str, begin: datetime, end: datetime) -> BillingTerms:
        """Find how rentals of a GPU model are billed in a period, by the strictest of its rows.

        Parameters
        ----------
        gpu_model : str, optional
            Name in the catalogue.
        kind : str
            Ownership, such as ``on_demand``, ``spot`` or ``reserved``.
        begin, end : datetime
            Period, UTC.
        """
        rows = [row for row in self.prices if (row.gpu_model, row.kind) == (gpu_model, kind)]
        rows = [row for row in rows if row.is_valid_in(begin, end)]
        steps_s, terms_h = ([getattr(row, name) or 0.0 for row in rows] for name in BILLING_KEYS)
        return BillingTerms(max(steps_s, default=0.0) / SECONDS_PER_HOUR, max(terms_h, default=0.0))

    def kinds_of(self, gpu_model: str | None) -> list[str]:
        """List the ownerships for which the book has rows of a GPU model, owned first."""
        kinds = {row.kind for row in self.prices if row.gpu_model == gpu_model}
        return [OWNED] * bool(self.lots_of(gpu_model)) + sorted(kinds)

    def lots_of(self, gpu_model: str | None) -> list[OwnedLot]:
        """List the purchases of a GPU model, the newest last."""
        return sorted((lot for lot in self.owned if lot.gpu_model == gpu_model), key=lambda lot: lot.bought)

    def mean_price_per_kwh(self, currency: str, begin: datetime, end: datetime) -> float | None:
        """Mean price of electricity in a period, or nearest to it [currency per kWh]; None if the book has none."""
        if not self.electricity:
            return None
        parts = _time_shares(self.electricity, "electricity", begin, end, bridges_gaps=True)
        return sum(share * self.convert(row.per_kwh, row.currency, currency, end) for row, share in parts)

    def mean_market_g(self, begin: datetime, end: datetime) -> float | None:
        """Mean market-based carbon factor of the contracts in a period [g CO2e per kWh]; None without one."""
        rows = [row for row in self.electricity if row.market_g_per_kwh is not None]
        if not rows:
            return None
        shares = _time_shares(rows, "electricity", begin, end)
        return sum(share * (row.market_g_per_kwh or 0.0) for row, share in shares)

    def convert(self, amount: float, currency: str, wanted_currency: str, time: datetime) -> float:
        """Convert an amount of money to another currency, at the last exchange rate dated at or before a time.

        Parameters
        ----------
        amount : float
            Amount in `currency`.
        currency, wanted_currency : str
            ISO 4217 codes.
        time : datetime
            Time of the conversion, UTC.

        Returns
        -------
        float
            Amount in `wanted_currency`.

        Raises
        ------
        ScenarioError
            If the book has no exchange rate of that date.

        Examples
        --------
        >>> book = PriceBook(rates=(ExchangeRate("EUR", "USD", 1.25, "2026-01-01", "ECB"),))
        >>> noon = datetime(2026, 2, 1, tzinfo=UTC)
        >>> book.convert(4.0, "EUR", "USD", noon), book.convert(5.0, "USD", "EUR", noon)
        (5.0, 4.0)
        """
        if currency == wanted_currency:
            return amount
        row = self.find_exchange_rate(currency, wanted_currency, time)
        return amount * row.rate if row.from_currency == currency else amount / row.rate

    def find_exchange_rate(self, currency: str, wanted_currency: str, time: datetime) -> ExchangeRate:
        """Find the last exchange rate between two currencies dated at or before a time; raise an error without one."""
        day, currencies = time.date().isoformat(), {currency, wanted_currency}
        rows = [row for row in self.rates if {row.from_currency, row.to_currency} == currencies and row.date <= day]
        if not rows:
            todo = "Add it to rates with its date and source: nothing is converted without one."
            exchange = f"exchange rate from {currency} to {wanted_currency}"
            raise ScenarioError(exchange, f"one dated {day} or before", "none", todo)
        return max(rows, key=lambda row: row.date)

    def _mean_rate(self, rows: list[PriceRow], subject: str, currency: str, begin: datetime, end: datetime) -> Rate:
        """Rate of rented GPUs: the mean over time, and over regions and instance types, of rows of ``prices``.

        Parameters
        ----------
        rows : list of PriceRow
            Prices of a GPU model and ownership.
        subject : str
            Name of the price in errors.
        currency : str
            Currency of the result, ISO 4217.
        begin, end : datetime
            Period, UTC.
        """
        locations = sorted({(row.region or "", row.instance_type or "") for row in rows})
        means, parts = [], []
        for location in locations:
            location_rows = [row for row in rows if (row.region or "", row.instance_type or "") == location]
            shares = _time_shares(location_rows, subject, begin, end, self.bridges_gaps)
            converted = [self.convert(row.per_gpu_hour, row.currency, currency, end) for row, _ in shares]
            means.append(sum(value * share for value, (_, share) in zip(converted, shares, strict=True)))
            parts += [(row, value) for (row, _), value in zip(shares, converted, strict=True)]
        values = [value for _, value in parts]
        sources = "; ".join(dict.fromkeys(f"{row.source} ({row.confidence})" for row, _ in parts))
        newest = max(row.begin for row, _ in parts)
        price = GpuHourPrice(sum(means) / len(means), min(values), max(values), currency, sources, newest)
        return Rate(price, rows=tuple(row for row, _ in parts))

    def _owned_rate(self, gpu_model: str, currency: str, begin: datetime, end: datetime) -> Rate | None:
        """Rate of owned GPUs: the mean over all purchases, by number of GPUs; None without purchases."""
        lots = self.lots_of(gpu_model)
        if not lots:
            return None
        gpus = sum(lot.gpus for lot in lots)
        parts: dict[str, float] = {}
        for lot in lots:
            for name, amount in lot.hourly_costs(begin.date()).items():
                share = self.convert(amount, lot.currency, currency, end) * lot.gpus / gpus
                parts[name] = parts.get(name, 0.0) + share
        value = sum(parts.values())
        source = "; ".join(dict.fromkeys(lot.source for lot in lots))
        price = GpuHourPrice(value, value, value, currency, f"cost of owning: {source}", lots[-1].bought)
        power = _time_shares(self.electricity, "electricity", begin, end, self.bridges_gaps) if self.electricity else []
        per_kwh = self.mean_price_per_kwh(currency, begin, end) or 0.0
        return Rate(price, per_kwh, parts=parts, rows=(*lots, *(row for row, _ in power)))


def read_price_book(path: str | Path) -> PriceBook:
    r"""Read a price book: lists ``prices``, ``owned``, ``rates`` and ``electricity``; every row has unit, day, source.

    A price has ``gpu_model``, ``kind``, ``price``, ``unit`` (``USD per GPU h``, or ``per instance h`` with ``gpus``),
    ``from`` and ``source``; an owned lot ``gpu_model``, ``gpus``, ``capex``, ``unit`` (``USD per GPU``), ``bought``,
    ``life_years`` and ``source``, and the yearly costs of a GPU ``space``, ``support``, ``staff``.

    Examples
    --------
    >>> import tempfile
    >>> row = "{gpu_model: T4, kind: spot, price: 0.2, unit: USD per GPU h, from: 2026-01, source: quote 7}"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "prices.yaml"
    ...     _ = file.write_text(f"prices:\n- {row}\n")
    ...     read_price_book(file).prices[0].per_gpu_hour
    0.2
    """
    name = Path(path).name
    keys_by_section = {
        "prices": (PRICE_ROW_KEYS, (*PRICE_ROW_KEYS[:4], "from", "source")),
        "owned": (OWNED_LOT_KEYS, (*OWNED_LOT_KEYS[:6], "source")),
        "rates": (EXCHANGE_RATE_KEYS, EXCHANGE_RATE_KEYS),
        "electricity": (ELECTRICITY_KEYS, (*ELECTRICITY_KEYS[:3], "source")),
    }
    sections = require_keys(read_yaml(path), list(keys_by_section), f"{name}, the file", 1)
    prices, owned, rates, electricity = read_rows(sections, keys_by_section, name)
    book = PriceBook(
        tuple(_read_price_row(values, name) for values, _ in prices),
        tuple(_read_lot(values, name) for values, _ in owned),
        tuple(_read_exchange_rate(values, name) for values, _ in rates),
        tuple(_read_power_row(values, name) for values, _ in electricity),
    )
    rows_by_kind: dict[Any, list[Any]] = {}
    for row in book.prices:
        rows_by_kind.setdefault((row.gpu_model, row.kind, row.region, row.instance_type), []).append(row)
    for rows in [*rows_by_kind.values(), list(book.electricity)]:
        ordered = sorted(rows, key=lambda row: row.begin)
        for row, next_row in itertools.pairwise(ordered):
            if (row.end is not None and next_row.begin <= row.end) or row.begin == next_row.begin:
                got = f"two from {next_row.begin}: {row.source} and {next_row.source}"
                raise ScenarioError(name, "one price at a time", got, "Let the first end before it.")
    return book


def _read_price_row(values: Any, file: str) -> PriceRow:  # noqa: ANN401 - of a file
    """Check an entry of ``prices`` and make a row of it."""
    currency, per = _read_unit(values, file, ("GPU h", "instance h"))
    gpus = 1.0
    if per == "instance h":
        if "gpus" not in values:
            raise make_file_error(file, values.lines["unit"], "gpus of an instance", "none")
        gpus = read_number(values, "gpus", file, 1, 1e4, whole=True)
    begin, end = read_day_range(values, file)
    return PriceRow(
        gpu_model=read_gpu_model(values, file), kind=read_choice(values, "kind", file, RENTED_KINDS),
        currency=currency, per_gpu_hour=read_number(values, "price", file, 0, 1e6) / gpus, begin=begin, end=end,
        source=str(values["source"]), region=values.get("region"), instance_type=values.get("instance_type"),
        confidence=read_choice(values, "confidence", file, PRICE_CONFIDENCES) if "confidence" in values else "quote",
        **{
            name: read_number(values, name, file, 0, 1e9)
            for name in BILLING_KEYS
            if values.get(name) is not None
        },
    )  # fmt: skip


def _read_lot(values: Any, file: str) -> OwnedLot:  # noqa: ANN401 - of a file
    """Check an entry of ``owned`` and make an :class:`OwnedLot` of it."""
    return OwnedLot(
        gpu_model=read_gpu_model(values, file), gpus=int(read_number(values, "gpus", file, 1, 1e6, whole=True)),
        capex=read_number(values, "capex", file, 0, 1e8), currency=_read_unit(values, file, ("GPU",))[0],
        bought=str(read_day(values, "bought", file)), life_years=read_number(values, "life_years", file, 0.1, 30),
        residual=read_number(values, "residual", file, 0, 1) if "residual" in values else 0.0,
        source=str(values["source"]),
        **{name: read_number(values, name, file, 0, 1e7) if name in values else 0.0 for name in YEARLY_COST_KEYS},
    )  # fmt: skip


def _read_exchange_rate(values: Any, file: str) -> ExchangeRate:  # noqa: ANN401 - of a file
    """Check an entry of ``rates`` and make an exchange rate of it."""
    first, second = (_check_currency(str(values[key]), file, values.lines[key]) for key in ("from", "to"))
    rate = read_number(values, "rate", file, 1e-9, 1e9)
    return ExchangeRate(first, second, rate, str(read_day(values, "date", file)), str(values["source"]))


def _read_power_row(values: Any, file: str) -> PowerRow:  # noqa: ANN401 - of a file
    """Check an entry of ``electricity`` and make a row of it."""
    market = read_number(values, "market_g_per_kwh", file, 0, 5000) if "market_g_per_kwh" in values else None
    return PowerRow(
        read_number(values, "price", file, 0, 1e4), _read_unit(values, file, ("kWh",))[0],
        *read_day_range(values, file), str(values["source"]), market,
    )  # fmt: skip


def _read_unit(values: Any, file: str, allowed_units: tuple[str, ...]) -> tuple[str, str]:  # noqa: ANN401
    """Split the unit of an entry, such as ``USD per GPU h``, into currency and denominator; raise if not allowed."""
    match = PRICE_UNIT_PATTERN.fullmatch(str(values["unit"]))
    if match is None or match[2] not in allowed_units:
        expected = " or ".join(f"'USD per {per_what}'" for per_what in allowed_units)
        raise make_file_error(file, values.lines["unit"], f"unit {expected}", repr(values["unit"]))
    return _check_currency(match[1], file, values.lines["unit"]), match[2]


def _check_currency(code: str, file: str, line: int) -> str:
    """Return a currency code, or raise an error of the file if it is not in ISO 4217."""
    codes = facts("currencies")["code"].to_list()
    if code not in codes:
        got = f"{code!r}{suggest_name(code, codes)}"
        raise make_file_error(file, line, "a currency of ISO 4217", got)
    return code


def _time_shares(
    rows: Sequence[Any], subject: str, begin: datetime, end: datetime, bridges_gaps: bool = False
) -> list[tuple[Any, float]]:
    """Return the rows that are valid in a period, each with its share of the time [0-1].

    A row ends when the next one begins.

    Parameters
    ----------
    rows : sequence of PriceRow or PowerRow
        Rows with ``begin`` and ``end``.
    subject : str
        Name of the price in errors.
    begin, end : datetime
        Period, UTC.
    bridges_gaps : bool
        Rows need not cover the period, see :class:`PriceBook`.

    Raises
    ------
    ScenarioError
        If the rows do not cover the period, though they must.
    """
    ordered = sorted(rows, key=lambda row: row.begin)
    row_shares = []
    period_s = max((end - begin).total_seconds(), 1.0)
    for index, row in enumerate(ordered):
        row_end = None if row.end is None else _day_start(row.end) + timedelta(days=1)
        next_start = _day_start(ordered[index + 1].begin) if index + 1 < len(ordered) else None
        end_of_row = min(instant for instant in (row_end, next_start, end) if instant is not None)
        share = (end_of_row - max(_day_start(row.begin), begin)).total_seconds() / period_s
        if share > 0:
            row_shares.append((row, share))
    covered = sum(share for _, share in row_shares)
    if bridges_gaps:
        nearest = max((row for row in ordered if _day_start(row.begin) < end), key=ordered.index, default=ordered[0])
        return [(row, share / covered) for row, share in row_shares] or [(nearest, 1.0)]
    if covered < 1 - 1e-9:
        got = f"rows for {percent_text(covered)} of {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
        raise ScenarioError(f"price book, {subject}", "a price for the whole period", got, "Add the others.")
    return row_shares


def _day_start(day: str) -> datetime:
    """First instant of a day, UTC."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC)
