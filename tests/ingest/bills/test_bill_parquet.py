"""Bills as Parquet: to the cent and to the row what the same lines give as CSV, or an error that says why not."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_registry import detect_source, read
from tests.examples import examples
from tests.ingest.bills.test_cur import BILLED_USD, EFFECTIVE_USD, LINES, report
from tests.ingest.bills.test_focus import MONTH, bill

File = Callable[..., Path]

COSTS = ["BilledCost", "EffectiveCost", "ListCost", "PricingQuantity"]
TIMES = ["BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"]


def instants(name: str) -> pl.Expr:
    """Times of the CSV files of the tests as timestamps in UTC."""
    text = pl.col(name).str.replace(r" UTC$|Z$", "+00:00").str.replace(" ", "T", literal=True)
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us")


def zoneless(name: str) -> pl.Expr:
    return instants(name).dt.replace_time_zone(None).cast(pl.Datetime("ms"))


def oslo(name: str) -> pl.Expr:
    return instants(name).dt.convert_time_zone("Europe/Oslo").cast(pl.Datetime("ns", "Europe/Oslo"))


def packed(frame: pl.DataFrame, **options: Any) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream, **options)
    return stream.getvalue()


def texts(csv: str) -> pl.DataFrame:
    return pl.read_csv(csv.encode(), infer_schema=False).fill_null("")


def same(one: Dataset, other: Dataset) -> None:
    assert one.table.equals(other.table)
    assert one.provenance["notes"][0] == other.provenance["notes"][0]
    assert one.summary() == other.summary()
    assert one.rejects["row", "reason"].equals(other.rejects["row", "reason"])


FAULTY = {"BilledCost": "5.5", "BillingCurrency": "usd"}

MADE: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "texts": lambda rows: rows,
    "decimals": lambda rows: rows.with_columns(
        pl.col(COSTS).replace("", None).str.to_lowercase().cast(pl.Decimal(38, 18))
    ),
    "floats": lambda rows: rows.with_columns(pl.col(COSTS).replace("", None).cast(pl.Float64)),
    "timestamps": lambda rows: rows.with_columns(instants(name).alias(name) for name in TIMES),
    "timestamps without a zone": lambda rows: rows.with_columns(zoneless(name).alias(name) for name in TIMES),
    "timestamps of another zone": lambda rows: rows.with_columns(oslo(name).alias(name) for name in TIMES),
    "numbers of accounts": lambda rows: rows.with_columns(pl.col("BillingAccountId").cast(pl.Int64)),
    "categories": lambda rows: rows.with_columns(pl.col("ChargeCategory", "PricingUnit").cast(pl.Categorical)),
    "nulls for nothing": lambda rows: rows.with_columns(pl.col(pl.String).replace("", None)),
    "names in small letters": lambda rows: rows.rename(str.lower),
}


@pytest.mark.parametrize("way", MADE)
def test_a_month_of_focus_is_the_same_in_every_way_of_writing_it(file: File, way: str):
    """82.56 + 100 + 18.256 - 50 - 1e-18 USD by hand; one line more is rejected for its currency."""
    csv = bill("1.2", *MONTH.values(), FAULTY)
    path = file(packed(MADE[way](texts(csv))), "part.snappy.parquet")
    assert detect_source(path) == "focus"
    reading = read("focus", path)
    assert isinstance(reading, Dataset)
    same(reading, read("focus", file(csv, "a.csv")))  # type: ignore[arg-type]
    facts = reading.summary()
    assert facts["BilledCost_USD"] == "150.815999999999999999"
    assert facts["BilledCost_EUR"] == "7"
    assert (facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == (9, 8, 1)
    assert reading.rejects["row", "reason"].rows() == [(10, "currency: not three capital letters")]
    assert ("times without a zone in Parquet" in reading.quality["check"].to_list()) == (
        way == "timestamps without a zone"
    )


def test_tags_come_as_maps_structures_and_lists(file: File):
    pairs = [{"key": "team", "value": "vision"}, {"key": "spot", "value": None}]
    rows = texts(bill("1.2", {}, {}))
    arrow = rows.to_arrow()
    place = arrow.schema.get_field_index("Tags")
    tags = pa.array([[("team", "vision"), ("spot", None)], None], pa.map_(pa.string(), pa.string()))
    stream = io.BytesIO()
    pq.write_table(arrow.set_column(place, "Tags", tags), stream)
    for content in (
        stream.getvalue(),
        packed(rows.with_columns(Tags=pl.Series([pairs, None]))),
        packed(rows.with_columns(Tags=pl.Series([{"team": "vision", "spot": None}, None]))),
    ):
        reading = read("focus", file(content, "a.parquet"))
        assert isinstance(reading, Dataset)
        assert reading.table["Tags"].to_list() == ['{"spot":"","team":"vision"}', None]


def test_line_ends_within_a_text_are_blanks_and_control_characters_reject(file: File):
    rows = texts(bill("1.2", {"ChargeDescription": "a\nb"}, {"ChargeDescription": "a\x1bb"}))
    reading = read("focus", file(packed(rows), "a.parquet"))
    assert isinstance(reading, Dataset)
    assert reading.table["ChargeDescription"].to_list() == ["a b"]
    assert reading.rejects["row", "reason"].rows() == [(3, "a control character")]


def test_wide_decimals_of_bigquery_are_exact(file: File):
    arrow = texts(bill("1.2", {})).to_arrow()
    cost = pa.array([Decimal("0.100000000000000001")], pa.decimal256(76, 38))
    stream = io.BytesIO()
    pq.write_table(arrow.set_column(arrow.schema.get_field_index("BilledCost"), "BilledCost", cost), stream)
    assert read("focus", file(stream.getvalue())).summary()["BilledCost_USD"] == "0.100000000000000001"


def test_a_report_of_aws_is_the_same_as_parquet(file: File):
    """Timestamps without a zone, doubles and a map of tags, as Data Exports writes them."""
    csv = report(LINES, legacy=False)
    rows = texts(csv)
    money = [name for name in rows.columns if name.endswith(("_cost", "_amount", "_commitment", "_fee", "_date"))]
    dates = [name for name in money if name.endswith("_date") and not name.endswith("to_date")]
    typed = rows.with_columns(
        *(zoneless(name).alias(name) for name in dates),
        pl.col([name for name in money if name not in dates]).replace("", None).cast(pl.Float64),
        resource_tags=pl.Series(
            [[{"key": "user_team", "value": "vision"}, {"key": "aws:createdBy", "value": "root"}]] * 12
        ),
    )
    reading = read("cur", file(packed(typed), "cur-00001.snappy.parquet"))
    same(reading, read("cur", file(csv, "a.csv")))  # type: ignore[arg-type]
    facts = reading.summary()
    assert (Decimal(facts["BilledCost_USD"]), Decimal(facts["EffectiveCost_USD"])) == (BILLED_USD, EFFECTIVE_USD)
    assert reading.provenance["notes"][0] == "CUR 2.0"


def test_the_legacy_report_as_parquet_has_a_column_for_each_tag(file: File):
    rows = texts(report(LINES, legacy=False)).with_columns(
        resource_tags_user_team=pl.lit("vision"), resource_tags_aws_created_by=pl.lit("")
    )
    reading = read("cur", file(packed(rows.drop("resource_tags")), "cur.parquet"))
    assert isinstance(reading, Dataset)
    assert reading.table["Tags"].unique().to_list() == ['{"team":"vision"}']
    assert reading.provenance["notes"][0] == "legacy report"


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"BilledCost": pl.lit(True)}, r"'BilledCost \(decimal\) is Boolean'"),
        ({"BilledCost": pl.lit(datetime(2025, 9, 1, tzinfo=UTC))}, r"BilledCost \(decimal\) is Datetime"),
        ({"ChargePeriodStart": pl.lit(1756684800)}, r"ChargePeriodStart \(instant\) is Int32"),
    ],
)
def test_a_column_of_the_wrong_type_is_named(file: File, change: dict[str, pl.Expr], got: str):
    path = file(packed(texts(bill("1.2", {})).with_columns(**change)), "a.parquet")
    with pytest.raises(TraceFormatError, match=f"columns of fitting types; got .*{got}"):
        read("focus", path)


def test_values_that_are_no_numbers_reject_their_rows(file: File):
    costs = [float("nan"), float("inf"), 1e13, None, 2.5]
    rows = texts(bill("1.2", *[{} for _ in costs])).with_columns(BilledCost=pl.Series(costs))
    reading = read("focus", file(packed(rows), "a.parquet"))
    assert reading.rejects["row", "reason"].rows() == [
        (2, "BilledCost: not a number"),
        (3, "BilledCost: not a number"),
        (4, "BilledCost: above 1e+12"),
        (5, "BilledCost: missing"),
    ]
    assert reading.summary()["BilledCost_USD"] == "2.5"


def test_every_cut_is_an_error(file: File):
    whole = packed(texts(bill("1.2", *MONTH.values())))
    for length in [*range(4, len(whole), 997), len(whole) - 1]:
        with pytest.raises(TraceFormatError, match="a whole Parquet file"):
            read("focus", file(whole[:length], "a.parquet"))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_damage_is_an_error_or_a_whole_account_of_the_rows(data: st.DataObject):
    whole = bytearray(packed(texts(bill("1.2", *MONTH.values()))))
    for place in data.draw(st.lists(st.integers(4, len(whole) - 1), min_size=1, max_size=5)):
        whole[place] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        path.write_bytes(whole)
        try:
            facts = read("focus", path).summary()
        except TraceFormatError:
            return
    assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]


def test_bombs_are_refused(file: File, monkeypatch: pytest.MonkeyPatch):
    """Many equal rows in less than a byte each, and one long text on every row of a small file."""
    rows = texts(bill("1.2", {}))
    many = packed(rows.select(pl.all().repeat_by(60_000).explode()), compression="zstd", statistics=False)
    with pytest.raises(TraceFormatError, match="no more rows than bytes"):
        read("focus", file(many, "many.parquet"))
    long = rows.select(pl.all().repeat_by(500).explode()).with_columns(ChargeDescription=pl.lit("x" * 100_000))
    small = packed(long)
    monkeypatch.setenv("GPUPLANNER_MAX_GIB", "0.02")
    assert len(small) < 1e6
    with pytest.raises(TraceFormatError, match=r"no more text than memory; got 5\d+ bytes of text"):
        read("focus", file(small, "long.parquet"))


amounts = st.decimals(-(10**9), 10**9, places=4)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(amounts, amounts, st.sampled_from(["USD", "EUR"])), min_size=1, max_size=8), st.booleans())
def test_totals_of_decimals_and_floats_are_those_of_an_exact_sum(
    lines: list[tuple[Decimal, Decimal, str]], exact: bool
):
    """Amounts of 13 digits fit a double: written as doubles or as decimals, they sum to the same text."""
    rows = texts(bill("1.2", *[{"BillingCurrency": currency} for *_, currency in lines])).with_columns(
        BilledCost=pl.Series([billed for billed, *_ in lines], dtype=pl.Decimal(20, 4)),
        EffectiveCost=pl.Series([effective for _, effective, _ in lines], dtype=pl.Decimal(20, 4)),
        ChargePeriodStart=pl.lit(datetime(2025, 9, 1, 2, tzinfo=ZoneInfo("Europe/Oslo"))),
    )
    if not exact:
        rows = rows.with_columns(pl.col("BilledCost", "EffectiveCost").cast(pl.Float64))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        rows.write_parquet(path)
        facts = read("focus", path).summary()
    assert facts["span_start"] == "2025-09-01T00:00:00Z"
    for currency in {currency for *_, currency in lines}:
        for place, cost in enumerate(("BilledCost", "EffectiveCost")):
            by_hand = sum(line[place] for line in lines if line[2] == currency)
            assert Decimal(facts[f"{cost}_{currency}"]) == by_hand
