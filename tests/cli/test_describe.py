"""``describe``: traces and telemetry in words, JSON and a chart."""

from __future__ import annotations

import json

import polars as pl
import pytest


@pytest.fixture
def telemetry(command, tmp_path) -> str:
    path = tmp_path / "node1.csv"
    lines = ["timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    lines += [f"2026/03/01 08:{minute:02d}:00.000, 0, 50 %, 1000 MiB, 200.0 W" for minute in range(30)]
    path.write_text("\n".join(lines) + "\n")
    assert command("ingest", "auto", str(path), "--tz", "UTC", "-o", str(tmp_path / "t"), "--quiet")[0] == 0
    return str(tmp_path / "t")


def test_telemetry_is_described(command, telemetry):
    code, text, _ = command("describe", telemetry, "--json")
    assert code == 0
    told = json.loads(text)
    assert told["facts"]["rows_in"] == 30
    assert told["coverage by node"][0]["covered"] == 1.0


@pytest.mark.parametrize("suffix", ["html", "svg"])
def test_chart_is_written_and_talk_goes_to_stderr(command, telemetry, tmp_path, suffix):
    out = tmp_path / f"quality.{suffix}"
    code, text, err = command("describe", telemetry, "--json", "--chart", str(out))
    assert code == 0
    json.loads(text)
    assert f"written: {out}" in err
    assert "node1" in out.read_text("utf-8")


def test_a_description_that_is_shared_shows_small_tenants_together(command, telemetry):
    alone, together = (
        json.loads(command("describe", "sample", "--smallest-group", few, "--json")[1])
        for few in ("0", "1000")
    )
    assert {row["tenant"] for row in together["tenants"]} == {"(small groups)"}
    assert "llm-core" not in json.dumps(together)
    held = [sum(row["held_gpu_hours"] for row in told["tenants"]) for told in (alone, together)]
    assert held[0] == pytest.approx(held[1], rel=1e-12)
    code, _, err = command("describe", telemetry, "--smallest-group", "5")
    assert code == 0
    assert "means nothing without jobs" in err


def test_other_suffixes_are_refused_before_anything_is_read(command, tmp_path):
    code, _, err = command("describe", "no/such/folder", "--chart", str(tmp_path / "q.png"))
    assert code == 2
    assert ".html or .svg" in err
    assert not (tmp_path / "q.png").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_telemetry_by_hour_is_written(command, telemetry, tmp_path, suffix):
    """Half an hour at 200 W, a sample a minute: 29 minutes seen, 200 W x 29 min."""
    out = tmp_path / f"hours.{suffix}"
    assert command("describe", telemetry, "--json", "--hours", str(out))[0] == 0
    (row,) = (pl.read_csv if suffix == "csv" else pl.read_parquet)(out).to_dicts()
    assert (row["samples"], row["sm_activity"]) == (30, 0.5)
    assert row["energy_kwh"] == pytest.approx(0.2 * 29 / 60)
    assert row["covered"] == pytest.approx(29 / 60)


def test_hours_of_jobs_alone_are_refused(command, tmp_path):
    code, _, err = command("describe", "sample", "--hours", str(tmp_path / "hours.xlsx"))
    assert code == 2
    assert ".csv or .parquet" in err
