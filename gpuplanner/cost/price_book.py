"""The price book: dated prices, owned GPUs, exchange rates and contracts."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuplanner.core.errors import GpuPlannerError, ScenarioError, nearest_names
from gpuplanner.core.serialization import (
    make_file_error,
    read_choice,
    read_day_range,
    read_list,
    read_number,
    read_yaml,
    require_keys,
)
from gpuplanner.core.units import percent_text
from gpuplanner.cost.showback import Rate
from gpuplanner.hardware.catalog import facts, resolve_gpu_model
from gpuplanner.hardware.power_and_carbon import HOURS_PER_YEAR, GpuHourPrice

OWNED, ON_DEMAND, SPOT = "owned", "on_demand", "spot"
RENTED_KINDS = (ON_DEMAND, SPOT, "reserved", "reserved_1y", "reserved_3y", "block")
CONFIDENCES = ("contract", "quote", "list", "estimate")
SECTIONS = ("prices", "owned", "rates", "electricity")
PRICE = (
    "gpu_model", "kind", "price", "unit", "gpus", "from", "to", "source", "region", "instance_type", "billing_step_s",
    "minimum_term_h", "confidence",
)  # fmt: skip
LOT = (
    "gpu_model", "gpus", "capex", "unit", "bought", "life_years", "residual", "space", "support", "staff", "source",
)  # fmt: skip
RATE = ("from", "to", "rate", "date", "source")
POWER = ("price", "unit", "from", "to", "source", "market_g_per_kwh")
UNIT = re.compile(r"([A-Z]{3}) per (GPU h|instance h|GPU|kWh)")
YEARLY = ("space", "support", "staff")
"""What an owned board costs a year beside its purchase and its electricity [currency per GPU and year]."""


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """What a GPU-hour of a board costs from a day to another, both included; ``end`` is None where none is stated."""

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


@dataclass(frozen=True, kw_only=True)
class OwnedLot:
    """Boards that were bought together: what they cost [currency per GPU], and what keeping one costs a year."""

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

    def parts(self, when: date) -> dict[str, float]:
        """Cost of one GPU-hour by part; nothing is written off once the life is over.

        Examples
        --------
        >>> lot = OwnedLot(gpu_model="X", gpus=8, capex=43830.0, currency="USD", bought="2025-01-01", life_years=5.0,
        ...                residual=0.0, space=0.0, support=876.6, staff=0.0, source="invoice")
        >>> lot.parts(date(2026, 1, 1))["depreciation"], lot.parts(date(2031, 1, 1))["depreciation"]
        (1.0, 0.0)
        """
        over = date.fromisoformat(self.bought) + timedelta(days=self.life_years * HOURS_PER_YEAR / 24) <= when
        a_year = 0.0 if over else self.capex * (1 - self.residual) / self.life_years
        yearly = {"depreciation": a_year} | {name: float(getattr(self, name)) for name in YEARLY}
        return {name: amount / HOURS_PER_YEAR for name, amount in yearly.items()}


@dataclass(frozen=True)
class ExchangeRate:
    """So many units of one currency for one of another, on a day."""

    from_currency: str
    to_currency: str
    rate: float
    date: str
    source: str


@dataclass(frozen=True)
class PowerRow:
    """What a kWh costs from a day to another, and the carbon of it by contract [g CO2e per kWh]; None: as the grid."""

    per_kwh: float
    currency: str
    begin: str
    end: str | None
    source: str
    market_g_per_kwh: float | None


@dataclass(frozen=True)
class PriceBook:
    """All that a file of prices says; an empty one says nothing, and the catalogue's list prices hold."""

    prices: tuple[PriceRow, ...] = ()
    owned: tuple[OwnedLot, ...] = ()
    rates: tuple[ExchangeRate, ...] = ()
    electricity: tuple[PowerRow, ...] = ()

    def rate(self, gpu_model: str, kind: str, currency: str, begin: datetime, end: datetime) -> Rate | None:
        """What a GPU-hour of a board costs under an ownership between two instants, or None where no row is of it.

        Where the price changes in between, it is the mean by time; where it ends too early, nothing is guessed.
        """
        if kind == OWNED:
            return self._owned(gpu_model, currency, begin, end)
        for known in (kind, *(one for one in RENTED_KINDS if one.startswith(f"{kind}_"))):
            rows = [row for row in self.prices if row.gpu_model == gpu_model and row.kind == known]
            if rows:
                return Rate(self._price(rows, f"{gpu_model}, {known}", currency, begin, end))
        return None

    def kinds_of(self, gpu_model: str | None) -> list[str]:
        """Ownerships that rows of a GPU model are for, owned first."""
        kinds = {row.kind for row in self.prices if row.gpu_model == gpu_model}
        return [OWNED] * bool(self.lots_of(gpu_model)) + sorted(kinds)

    def lots_of(self, gpu_model: str | None) -> list[OwnedLot]:
        """What was bought of a board, the newest last."""
        return sorted((lot for lot in self.owned if lot.gpu_model == gpu_model), key=lambda lot: lot.bought)

    def per_kwh(self, currency: str, begin: datetime, end: datetime) -> float | None:
        """What a kWh costs between two instants; None where the book says nothing of it."""
        if not self.electricity:
            return None
        parts = _by_time(self.electricity, "electricity", begin, end)
        return sum(share * self.converted(row.per_kwh, row.currency, currency, end) for row, share in parts)

    def market_g(self, begin: datetime, end: datetime) -> float | None:
        """Carbon of a kWh by contract [g CO2e], the mean by time; None where no contract says one."""
        rows = [row for row in self.electricity if row.market_g_per_kwh is not None]
        if not rows:
            return None
        shares = _by_time(rows, "electricity", begin, end)
        return sum(share * (row.market_g_per_kwh or 0.0) for row, share in shares)

    def converted(self, amount: float, currency: str, wanted: str, when: datetime) -> float:
        """An amount in another currency, at the last rate dated at or before a day.

        Examples
        --------
        >>> book = PriceBook(rates=(ExchangeRate("EUR", "USD", 1.25, "2026-01-01", "ECB"),))
        >>> noon = datetime(2026, 2, 1, tzinfo=UTC)
        >>> book.converted(4.0, "EUR", "USD", noon), book.converted(5.0, "USD", "EUR", noon)
        (5.0, 4.0)
        """
        if currency == wanted:
            return amount
        day = when.date().isoformat()
        both = {currency, wanted}
        rows = [row for row in self.rates if {row.from_currency, row.to_currency} == both and row.date <= day]
        pairs = [(row.date, row.rate if row.from_currency == currency else 1 / row.rate) for row in rows]
        if not pairs:
            todo = "Add it to rates with its date and source: nothing is converted without one."
            raise ScenarioError(f"{currency} in {wanted}", f"a rate dated by {day}", "none", todo)
        return amount * max(pairs)[1]

    def _price(self, rows: list[PriceRow], what: str, currency: str, begin: datetime, end: datetime) -> GpuHourPrice:
        """The mean by time, and over places and instance types where there are several."""
        places = sorted({(row.region or "", row.instance_type or "") for row in rows})
        means, parts = [], []
        for place in places:
            here = [row for row in rows if (row.region or "", row.instance_type or "") == place]
            shares = _by_time(here, what, begin, end)
            each = [self.converted(row.per_gpu_hour, row.currency, currency, end) for row, _ in shares]
            means.append(sum(value * share for value, (_, share) in zip(each, shares, strict=True)))
            parts += [(row, value) for (row, _), value in zip(shares, each, strict=True)]
        values = [value for _, value in parts]
        told = "; ".join(dict.fromkeys(f"{row.source} ({row.confidence})" for row, _ in parts))
        newest = max(row.begin for row, _ in parts)
        return GpuHourPrice(sum(means) / len(means), min(values), max(values), currency, told, newest)

    def _owned(self, gpu_model: str, currency: str, begin: datetime, end: datetime) -> Rate | None:
        lots = self.lots_of(gpu_model)
        if not lots:
            return None
        gpus = sum(lot.gpus for lot in lots)
        parts: dict[str, float] = {}
        for lot in lots:
            for name, amount in lot.parts(begin.date()).items():
                share = self.converted(amount, lot.currency, currency, end) * lot.gpus / gpus
                parts[name] = parts.get(name, 0.0) + share
        value = sum(parts.values())
        source = "; ".join(dict.fromkeys(lot.source for lot in lots))
        price = GpuHourPrice(value, value, value, currency, f"cost of owning: {source}", lots[-1].bought)
        return Rate(price, per_kwh=self.per_kwh(currency, begin, end) or 0.0, parts=parts)


def read_price_book(path: str | Path) -> PriceBook:
    r"""Read a price book: lists ``prices``, ``owned``, ``rates`` and ``electricity``; every row has unit, day, source.

    A price has ``gpu_model``, ``kind``, ``price``, ``unit`` (``USD per GPU h``, or ``per instance h`` with ``gpus``),
    ``from`` and ``source``; an owned lot ``gpu_model``, ``gpus``, ``capex``, ``unit`` (``USD per GPU``), ``bought``,
    ``life_years`` and ``source``, and what a GPU costs a year as ``space``, ``support``, ``staff``.

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
    top = require_keys(read_yaml(path), SECTIONS, f"{name}, the file", 1)
    prices, owned, rates, electricity = (read_list(top, key, name) for key in SECTIONS)
    book = PriceBook(
        tuple(_price_row(one, name, at) for one, at in prices), tuple(_lot(one, name, at) for one, at in owned),
        tuple(_exchange(one, name, at) for one, at in rates), tuple(_power(one, name, at) for one, at in electricity),
    )  # fmt: skip
    of_a_kind: dict[Any, list[Any]] = {}
    for row in book.prices:
        of_a_kind.setdefault((row.gpu_model, row.kind, row.region, row.instance_type), []).append(row)
    for rows in [*of_a_kind.values(), list(book.electricity)]:
        ordered = sorted(rows, key=lambda row: row.begin)
        for one, after in itertools.pairwise(ordered):
            if (one.end is not None and after.begin <= one.end) or one.begin == after.begin:
                got = f"two from {after.begin}: {one.source} and {after.source}"
                raise ScenarioError(name, "one price at a time", got, "Let the first end before it.")
    return book


def _price_row(given: Any, file: str, line: int) -> PriceRow:  # noqa: ANN401 - of a file
    values = require_keys(given, PRICE, f"{file}, price", line, required_keys=(*PRICE[:4], "from", "source"))
    currency, per = _unit(values, file, ("GPU h", "instance h"))
    gpus = 1.0
    if per == "instance h":
        if "gpus" not in values:
            raise make_file_error(file, line, "gpus of an instance", "none")
        gpus = read_number(values, "gpus", file, 1, 1e4, whole=True)
    begin, end = read_day_range(values, file)
    return PriceRow(
        gpu_model=_gpu_model(values, file), kind=read_choice(values, "kind", file, RENTED_KINDS), currency=currency,
        per_gpu_hour=read_number(values, "price", file, 0, 1e6) / gpus, begin=begin, end=end,
        source=str(values["source"]), region=values.get("region"), instance_type=values.get("instance_type"),
        confidence=read_choice(values, "confidence", file, CONFIDENCES) if "confidence" in values else "quote",
        **{name: read_number(values, name, file, 0, 1e9) for name in PRICE[10:12] if values.get(name) is not None},
    )  # fmt: skip


def _lot(given: Any, file: str, line: int) -> OwnedLot:  # noqa: ANN401 - of a file
    values = require_keys(given, LOT, f"{file}, owned", line, required_keys=(*LOT[:6], "source"))
    return OwnedLot(
        gpu_model=_gpu_model(values, file), gpus=int(read_number(values, "gpus", file, 1, 1e6, whole=True)),
        capex=read_number(values, "capex", file, 0, 1e8), currency=_unit(values, file, ("GPU",))[0],
        bought=_day(values, "bought", file), life_years=read_number(values, "life_years", file, 0.1, 30),
        residual=read_number(values, "residual", file, 0, 1) if "residual" in values else 0.0,
        source=str(values["source"]),
        **{name: read_number(values, name, file, 0, 1e7) if name in values else 0.0 for name in YEARLY},
    )  # fmt: skip


def _exchange(given: Any, file: str, line: int) -> ExchangeRate:  # noqa: ANN401 - of a file
    values = require_keys(given, RATE, f"{file}, rate", line, required_keys=RATE)
    first, second = (_currency(str(values[key]), file, values.lines[key]) for key in ("from", "to"))
    rate = read_number(values, "rate", file, 1e-9, 1e9)
    return ExchangeRate(first, second, rate, _day(values, "date", file), str(values["source"]))


def _power(given: Any, file: str, line: int) -> PowerRow:  # noqa: ANN401 - of a file
    values = require_keys(given, POWER, f"{file}, electricity", line, required_keys=(*POWER[:3], "source"))
    market = read_number(values, "market_g_per_kwh", file, 0, 5000) if "market_g_per_kwh" in values else None
    return PowerRow(
        read_number(values, "price", file, 0, 1e4), _unit(values, file, ("kWh",))[0], *read_day_range(values, file),
        str(values["source"]), market,
    )  # fmt: skip


def _unit(values: Any, file: str, wanted: tuple[str, ...]) -> tuple[str, str]:  # noqa: ANN401
    """Currency of a unit, and what it is per."""
    hit = UNIT.fullmatch(str(values["unit"]))
    if hit is None or hit[2] not in wanted:
        expected = " or ".join(f"'USD per {one}'" for one in wanted)
        raise make_file_error(file, values.lines["unit"], f"unit {expected}", repr(values["unit"]))
    return _currency(hit[1], file, values.lines["unit"]), hit[2]


def _currency(code: str, file: str, line: int) -> str:
    known = facts("currencies")["code"].to_list()
    if code not in known:
        got = f"{code!r} (did you mean {nearest_names(code, known)[0]!r}?)"
        raise make_file_error(file, line, "a currency of ISO 4217", got)
    return code


def _gpu_model(values: Any, file: str) -> str:  # noqa: ANN401
    try:
        return resolve_gpu_model(str(values["gpu_model"]))
    except GpuPlannerError as error:
        raise make_file_error(file, values.lines["gpu_model"], "a GPU model of the catalog", str(error)) from None


def _day(values: Any, key: str, file: str) -> str:  # noqa: ANN401
    try:
        return date.fromisoformat(str(values[key])[:10]).isoformat()
    except ValueError:
        raise make_file_error(file, values.lines[key], f"{key} as YYYY-MM-DD", repr(values[key])) from None


def _by_time(rows: Any, what: str, begin: datetime, end: datetime) -> list[tuple[Any, float]]:  # noqa: ANN401
    """Rows in force between two instants, each with its share of that time; a row ends where the next one begins."""
    ordered = sorted(rows, key=lambda row: row.begin)
    found, covered = [], 0.0
    whole = max((end - begin).total_seconds(), 1.0)
    for place, row in enumerate(ordered):
        last = None if row.end is None else _instant(row.end) + timedelta(days=1)
        after = _instant(ordered[place + 1].begin) if place + 1 < len(ordered) else None
        until = min(one for one in (last, after, end) if one is not None)
        share = (until - max(_instant(row.begin), begin)).total_seconds() / whole
        if share > 0:
            found.append((row, share))
            covered += share
    if covered < 1 - 1e-9:
        got = f"rows for {percent_text(covered)} of {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
        raise ScenarioError(f"price book, {what}", "a price for the whole period", got, "Add the others.")
    return found


def _instant(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)
