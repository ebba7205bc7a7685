"""Damage of any kind gives an error or a reject row: never a wrong number, never a hang."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Samples
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_registry import TELEMETRY_READERS, read

EXAMPLES = settings(max_examples=8, deadline=30_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
Good = tuple[str, str, dict[str, Any], int]

EDGES = st.sampled_from(
    ['"', ",", "#", "{", "}", "[", "\n", "\r", "\t", "\x00", "NaN", "inf", "1e999", "-", "\ufeff", "é", "\\", "٣"]
)
PIECES = st.text(max_size=12) | EDGES

SOURCES = {source.name: source for source in TELEMETRY_READERS}


def attempt(name: str, content: bytes, hints: Mapping[str, Any]) -> Dataset | None:
    """What a reader makes of bytes; None where it refuses them. No row may be lost, no value be off the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "n1.txt"
        path.write_bytes(content)
        try:
            telemetry = read(name, path, **hints)
        except TraceFormatError:
            return None
    facts = telemetry.provenance
    assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]
    assert telemetry.rejects.height == facts["rows_rejected"]
    assert telemetry.rejects["reason"].null_count() == 0
    check_table(telemetry.samples, Samples, source="fuzz")
    return telemetry


@EXAMPLES
@given(content=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
@pytest.mark.parametrize("name", SOURCES)
def test_noise(name: str, content: bytes):
    hints = {"origin": "2026-01-01T00:00:00Z", "tz": "UTC", "gpu": 0, "interval_s": 1}
    attempt(name, content, {hint: value for hint, value in hints.items() if hint in SOURCES[name].options})


@EXAMPLES
@given(place=st.floats(0, 1), length=st.integers(0, 12), piece=PIECES)
def test_a_piece_replaced(good: Good, place: float, length: int, piece: str):
    name, text, hints, _ = good
    at = int(place * len(text))
    attempt(name, (text[:at] + piece + text[at + length :]).encode(), hints)


@EXAMPLES
@given(data=st.data())
def test_lines_dropped_doubled_and_shuffled(good: Good, data: st.DataObject):
    name, text, hints, _ = good
    lines = text.splitlines(keepends=True)
    chosen = data.draw(st.lists(st.sampled_from(lines), max_size=2 * len(lines)))
    attempt(name, "".join(chosen).encode(), hints)


QUANTITIES = ("sm_activity", "tensor_activity", "memory_used_gib", "power_w")


@pytest.fixture
def whole() -> Callable[[str, str, dict[str, Any]], pl.DataFrame]:
    """Samples of the undamaged file."""

    def read_whole(name: str, text: str, hints: dict[str, Any]) -> pl.DataFrame:
        telemetry = attempt(name, text.encode(), hints)
        assert telemetry is not None
        return telemetry.samples

    return read_whole


ROW_SOURCES = ("node-csv", "nvidia-smi", "dcgm-csv")


@EXAMPLES
@given(place=st.floats(0, 0.999), piece=PIECES.filter(lambda piece: not set("\n\r") & set(piece)))
@pytest.mark.parametrize("name", ROW_SOURCES)
def test_damage_in_the_last_line_changes_no_other_row(
    name: str, good_text: Callable[[str], str], whole: Callable[..., pl.DataFrame], place: float, piece: str
):
    hints = {"tz": "UTC"}
    text = good_text(name)
    before, last = text.rstrip("\n").rsplit("\n", 1)
    at = int(place * len(last))
    damaged = attempt(name, f"{before}\n{last[:at]}{piece}{last[at + 1 :]}\n".encode(), hints)
    if damaged is None:
        return
    keys = ["time", "node", "gpu", "instance"]
    sound = whole(name, before + "\n", hints)
    both = sound.join(damaged.samples, on=keys, how="left", nulls_equal=True)
    assert both.height == sound.height
    for quantity in QUANTITIES:
        # the damaged row may have turned into a reading of a device and time that was there without one
        changed = (both[quantity] != both[f"{quantity}_right"]).fill_null(False)
        assert not changed.any()


def test_a_page_of_many_rows_is_read_in_linear_time(tmp_path: Path):
    random.seed(0)
    label = "x" * 2000
    rows = [f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu % 8}",hostname="n{gpu}",a="{label}' for gpu in range(500)]
    path = tmp_path / "a.prom"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(TraceFormatError, match="not a sample of the text format in 500 row"):
        read("dcgm-exporter", path, origin="2026-01-01T00:00:00Z")
