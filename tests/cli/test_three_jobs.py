"""Ten hours on 1g, on 3g and on two whole A100s are 10/7 + 30/7 + 20 GPU-hours, in every figure and on every page."""

from __future__ import annotations

import json

import pytest

TRUTH = 10 / 7 + 30 / 7 + 20
SACCT = """\
JobID|Account|State|Submit|Start|End|NodeList|AllocTRES
1|bio|COMPLETED|2025-10-01T08:00:00|2025-10-01T08:00:00|2025-10-01T18:00:00|n1|gres/gpu:a100_1g.5gb=1,gres/gpu=1
2|bio|COMPLETED|2025-10-01T08:00:00|2025-10-01T08:00:00|2025-10-01T18:00:00|n1|gres/gpu:a100_3g.20gb=1,gres/gpu=1
3|law|COMPLETED|2025-10-01T08:00:00|2025-10-01T08:00:00|2025-10-01T18:00:00|n2|gres/gpu:a100=2,gres/gpu=2
"""


@pytest.mark.long
def test_three_jobs_on_slices_and_whole_gpus(tmp_path, answer):
    source, folder, page = tmp_path / "sacct.txt", tmp_path / "trace", tmp_path / "report"
    source.write_text(SACCT)
    assert answer("ingest", "auto", source, "--tz", "UTC", "-o", folder, "--json")["gpu_hours"] == pytest.approx(TRUTH)
    told = answer("describe", folder, "--json")
    assert told["facts"]["gpu_hours"] == pytest.approx(TRUTH)
    assert told["facts"]["boards"] == "3 × A100-40GB"
    booked = {row["bucket"]: row["gpu_hours"] for row in told["ledger"]}
    assert booked["no_telemetry"] == pytest.approx(TRUTH)
    assert sum(booked.values()) == pytest.approx(30)  # the two instances fit on one board
    assert sum(row["gpu_hours"] for row in told["GPU-hours by how attempts ended"]) == pytest.approx(TRUTH)
    answer("report", "all", "--data", folder, "-o", page, "--json")
    study = json.loads((page / "study.json").read_text())
    assert study["headline"]["allocated_gpu_hours"] == pytest.approx(TRUTH)
    charged = [row for row in study["tables"]["costs"] if row["SubAccountName"] in ("bio", "law")]
    assert sum(row["PricingQuantity"] for row in charged) == pytest.approx(TRUTH)
    assert study["tables"]["ledger_buckets"]
    assert "25.7" in (page / "index.html").read_text()
