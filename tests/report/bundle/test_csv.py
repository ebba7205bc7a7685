"""CSV: RFC 4180, nothing runs, every value comes back."""

from __future__ import annotations

import csv
import re
import string
from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.output_writing import write_csv_safe
from tests.examples import examples

RISKY = "=+-@\t\r\n＝＋－＠"
texts = st.one_of(st.none(), st.text(alphabet="'=+-@\t\r\n＝＋－＠,\"a ß" + string.digits, max_size=6))


def restored(path, types: dict) -> pl.DataFrame:
    """What was written, with its apostrophes taken away."""

    def bare(text: pl.Expr) -> pl.Expr:
        return text.str.replace(rf"^'('*[{re.escape(RISKY)}])", "${1}")

    def typed(name: str, dtype) -> pl.Expr:
        if isinstance(dtype, pl.Datetime):
            return pl.col(name).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
        return pl.col(name) == "true" if dtype == pl.Boolean else pl.col(name).cast(dtype)

    frame = pl.read_csv(path, infer_schema=False).with_columns(bare(pl.col(pl.String)))
    frame.columns = pl.Series("name", frame.columns).to_frame().select(bare(pl.col("name")))["name"].to_list()
    return frame.with_columns(typed(name, dtype) for name, dtype in types.items())


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=8))
def test_every_text_comes_back_and_no_cell_begins_like_a_formula(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    frame = pl.DataFrame(rows, schema={"a": pl.String, "b": pl.String}, orient="row")
    write_csv_safe(path, frame)
    assert restored(path, {}).equals(frame)
    with path.open(newline="", encoding="utf-8") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert not [cell for cell in cells if cell.startswith(tuple(RISKY))]


def test_types_come_back(tmp_path):
    frame = pl.DataFrame(
        {
            "n": [-1, None],
            "x": [-0.1, 1e-9],
            "ok": [True, None],
            "t": [datetime(2026, 10, 1, 6, 0, 0, 123456, tzinfo=UTC), None],
            "c": pl.Series(["-", "b"], dtype=pl.Categorical),
            "cost": pl.Series(["1.10", "-2.00"]).cast(pl.Decimal(18, 2)),
        }
    )
    path = write_csv_safe(tmp_path / "x.csv", frame)
    assert restored(path, dict(frame.schema)).equals(frame)
    first = path.read_text(encoding="utf-8").splitlines()[1]
    assert first == "-1,-0.1,true,2026-10-01T06:00:00.123456Z,'-,1.10"


def test_lines_end_as_the_standard_says_and_missing_is_not_empty(tmp_path):
    path = write_csv_safe(tmp_path / "x.csv", pl.DataFrame({"a": ["", None], "b": ['x"y', "x,y"]}))
    assert path.read_bytes() == b'a,b\r\n"","x""y"\r\n,"x,y"\r\n'


@pytest.mark.parametrize("name", ["=a", "'=a", "@", "plain"])
def test_column_names_are_guarded_too(tmp_path, name):
    path = write_csv_safe(tmp_path / "x.csv", pl.DataFrame({name: [1]}))
    assert not path.read_text(encoding="utf-8").startswith(tuple(RISKY))
    assert restored(path, {}).columns == [name]
