"""Folders as providers deliver them: each charge once, from the newest refresh, or an error."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.bills.bill_files_and_charge_lines import select_delivered_files
from gpuplanner.ingest.source_registry import read
from tests.ingest.bills.test_bill_parquet import packed, texts
from tests.ingest.bills.test_cur import LINES, report
from tests.ingest.bills.test_focus import bill

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a file below the delivery, with its folders; a mapping as JSON."""

    def write(name: str, content: Any) -> Path:
        path = tmp_path / "delivery" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def focus(*costs: str, **more: str) -> str:
    return bill("1.2", *[{"BilledCost": cost, "ResourceId": f"i-{cost}"} | more for cost in costs])


def cur(*costs: str) -> str:
    return report([LINES[0] | {"cost": cost} for cost in costs], legacy=False)


def billed(path: Path, source: str = "focus") -> str:
    reading = read(source, path)
    facts = reading.summary()
    assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]
    return str(facts["BilledCost_USD"])


def left_out(path: Path) -> int:
    reading = read("focus", path)
    return dict(reading.quality["check", "rows"].iter_rows()).get("file of an older refresh", 0)


def test_parts_of_a_folder_are_added(put: Put, tmp_path: Path):
    put("BILLING_PERIOD=2025-08/focus-00001.csv.gz", gzip.compress(focus("1.10").encode()))
    put("BILLING_PERIOD=2025-09/focus-00001.csv.gz", gzip.compress(focus("2.20", "3.30").encode()))
    put("BILLING_PERIOD=2025-09/focus-00002.csv.gz", gzip.compress(focus("4.40").encode()))
    put("BILLING_PERIOD=2025-09/_SUCCESS", "")
    put("BILLING_PERIOD=2025-09/.focus-00003.csv", "half a download")
    put("crawler-cfn.yml", "Resources: {}")
    reading = read("focus", tmp_path / "delivery")
    assert reading.summary()["BilledCost_USD"] == "11"  # 1.10 + 2.20 + 3.30 + 4.40
    assert [file["name"] for file in reading.provenance["files"]] == [
        "BILLING_PERIOD=2025-08/focus-00001.csv.gz",
        "BILLING_PERIOD=2025-09/focus-00001.csv.gz",
        "BILLING_PERIOD=2025-09/focus-00002.csv.gz",
    ]


@pytest.mark.parametrize("top", [True, False], ids=["manifest of the period", "manifests of the assemblies"])
def test_the_newest_assembly_of_a_report_replaces_the_older(put: Put, tmp_path: Path, top: bool):
    """20250903 has two parts and replaces 20250902; the month before has one assembly."""
    period = "cur/20250901-20251001"
    put(f"{period}/20250902T081120Z/cur-00001.csv.gz", gzip.compress(cur("5").encode()))
    put(f"{period}/20250903T081120Z/cur-00001.csv.gz", gzip.compress(cur("5", "6").encode()))
    put(f"{period}/20250903T081120Z/cur-00002.csv.gz", gzip.compress(cur("0.25").encode()))
    put("cur/20250801-20250901/20250902T081120Z/cur-00001.csv.gz", gzip.compress(cur("100").encode()))
    for month, run, numbers in (
        ("20250901-20251001", "20250902T081120Z", (1,)),
        ("20250901-20251001", "20250903T081120Z", (1, 2)),
        ("20250801-20250901", "20250902T081120Z", (1,)),
    ):
        keys = [f"bills/cur/{month}/{run}/cur-0000{number}.csv.gz" for number in numbers]
        told = {"assemblyId": run, "reportName": "cur", "reportKeys": keys}
        put(f"cur/{month}/{run}/cur-Manifest.json", told)
        if top:
            put(f"cur/{month}/cur-Manifest.json", told)
    assert billed(tmp_path / "delivery", "cur") == "111.25"
    assert billed(tmp_path / "delivery" / period, "cur") == "11.25"
    assert len(select_delivered_files([tmp_path / "delivery"]).left_out) == 1


def test_data_exports_keep_their_manifests_apart(put: Put, tmp_path: Path):
    for month, cost in (("2025-08", "1.5"), ("2025-09", "2.5")):
        rows = texts(cur(cost))
        put(f"data/BILLING_PERIOD={month}/cur2-00001.snappy.parquet", packed(rows))
        key = f"s3://bucket/prefix/cur2/data/BILLING_PERIOD={month}/cur2-00001.snappy.parquet"
        put(f"metadata/BILLING_PERIOD={month}/cur2-Manifest.json", {"executionId": "x", "dataFiles": [key]})
    assert billed(tmp_path / "delivery", "cur") == "4"


def run(put: Put, period: str, name: str, time: str, *parts: str, more: dict[str, Any] | None = None) -> None:
    """A run of an export of Microsoft: parts and their manifest in one folder."""
    blobs = []
    for number, text in enumerate(parts):
        put(f"{period}/{name}/part_{number}_0001.csv", text)
        blobs.append({"blobName": f"export/focus/{period}/{name}/part_{number}_0001.csv", "dataRowCount": 1})
    facts = {"runId": name, "submittedTime": time, "startDate": f"{period[:4]}-{period[4:6]}-01T00:00:00"}
    told = {"blobs": blobs, "runInfo": facts, "exportConfig": {"exportName": "focus"}}
    put(f"{period}/{name}/manifest.json", told | (more or {}))


def test_the_last_run_of_a_month_to_date_replaces_the_others(put: Put, tmp_path: Path):
    run(put, "20250801-20250831", "b3", "2025-09-01T05:00:00Z", focus("1000"))
    run(put, "20250901-20250930", "c2", "2025-09-02T05:00:00.276245Z", focus("1"))
    run(put, "20250901-20250930", "a1", "2025-09-04T05:00:00.1Z", focus("1", "2"), focus("4"))
    run(put, "20250901-20250930", "d0", "2025-09-03T05:00:00Z", focus("1", "2"))
    assert billed(tmp_path / "delivery") == "1007"
    assert left_out(tmp_path / "delivery") == 2
    assert billed(tmp_path / "delivery" / "20250901-20250930" / "d0") == "3"


def test_a_part_that_is_not_there_is_an_error(put: Put, tmp_path: Path):
    run(put, "20250901-20250930", "a1", "2025-09-04T05:00:00Z", focus("1"), focus("2"))
    (tmp_path / "delivery/20250901-20250930/a1/part_1_0001.csv").unlink()
    with pytest.raises(TraceFormatError, match=r"each part that it lists.*not so for '.*part_1_0001.csv'"):
        read("focus", tmp_path / "delivery")


def test_a_part_of_another_assembly_does_not_stand_in(put: Put, tmp_path: Path):
    put("20250901-20251001/old/cur-1.csv", cur("5"))
    keys = ["bills/cur/20250901-20251001/new/cur-1.csv"]
    put("20250901-20251001/cur-Manifest.json", {"assemblyId": "new", "reportKeys": keys, "reportName": "cur"})
    with pytest.raises(TraceFormatError, match="each part that it lists"):
        read("cur", tmp_path / "delivery")


def test_refreshes_that_cannot_be_ordered_are_refused(put: Put, tmp_path: Path):
    put("data/BILLING_PERIOD=2025-09/x1/cur2-00001.csv", cur("1"))
    put("data/BILLING_PERIOD=2025-09/x2/cur2-00001.csv", cur("1", "2"))
    with pytest.raises(TraceFormatError, match="one refresh of BILLING_PERIOD=2025-09, or a manifest"):
        read("cur", tmp_path / "delivery")
    for name in ("x1", "x2"):
        key = f"s3://b/cur2/data/BILLING_PERIOD=2025-09/{name}/cur2-00001.csv"
        put(f"metadata/BILLING_PERIOD=2025-09/{name}/cur2-Manifest.json", {"dataFiles": [key]})
    with pytest.raises(TraceFormatError, match="one refresh of BILLING_PERIOD=2025-09"):
        read("cur", tmp_path / "delivery")
    (tmp_path / "delivery/metadata/BILLING_PERIOD=2025-09/x1/cur2-Manifest.json").unlink()
    assert billed(tmp_path / "delivery", "cur") == "3"


def test_two_exports_are_not_added(put: Put, tmp_path: Path):
    run(put, "20250901-20250930", "a1", "2025-09-04T05:00:00Z", focus("1"))
    other = {"exportConfig": {"exportName": "amortized"}}
    run(put, "20250901-20250930", "a2", "2025-09-04T05:00:00Z", focus("2"), more=other)
    with pytest.raises(TraceFormatError, match="parts of one export; got 'amortized', 'focus'"):
        read("focus", tmp_path / "delivery")


@pytest.mark.parametrize(
    "told",
    [
        "[]",
        "{",
        '{"blobs": [{"name": 1}]}',
        '{"blobs": [{"blobName": "a.csv"}], "runInfo": 5}',
        '{"blobs": [{"blobName": "a.csv"}], "runInfo": {"startDate": "today"}}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_manifest_that_is_none_is_an_error(put: Put, tmp_path: Path, told: str):
    put("part.csv", focus("1"))
    put("manifest.json", told.encode("latin-1"))
    with pytest.raises(TraceFormatError) as error:
        read("focus", tmp_path / "delivery")
    assert "manifest.json" in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_part_told_twice_is_an_error_however_it_is_packed(put: Put, tmp_path: Path):
    """Equal bytes; equal rows in another packing; equal rows in another order of the columns."""
    csv = focus("1", "2")
    rows = texts(csv)
    put("part-1.csv", csv)
    for content, words in (
        (csv.encode(), "which are equal"),
        (gzip.compress(csv.encode()), "whose rows are the same"),
        (csv.replace("\n", "\r\n").encode(), "whose rows are the same"),
        (rows.select(reversed(rows.columns)).write_csv().encode(), "whose rows are the same"),
        (rows.reverse().write_csv().encode(), "whose rows are the same"),
    ):
        put("part-2.csv", content)
        with pytest.raises(TraceFormatError, match=words):
            read("focus", tmp_path / "delivery")
    put("part-2.csv", focus("1", "3"))  # a row of part 1 again: a warning, since it may be another charge
    reading = read("focus", tmp_path / "delivery")
    checks = dict(reading.quality["check", "rows"].iter_rows())
    assert checks["equal to an earlier row in every field"] == 1
    assert reading.summary()["BilledCost_USD"] == "7"


def test_the_bill_is_kept_and_rejected_to_the_cent(put: Put, tmp_path: Path):
    """What is kept and what is rejected of all parts adds up to what was billed."""
    costs = [["1.01", "2.02"], ["4.04"], ["8.08", "16.16", "32.32"]]
    for number, part in enumerate(costs):
        lines = [{"BilledCost": cost, "ResourceId": cost} for cost in part]
        lines[0] |= {"BillingCurrency": "dollars"} if number % 2 == 0 else {}
        put(f"part-{number}.parquet", packed(texts(bill("1.2", *lines))))
    reading = read("focus", tmp_path / "delivery")
    header = texts(bill("1.2", {})).columns
    lost = [Decimal(raw.split(",")[header.index("BilledCost")]) for raw in reading.rejects["raw"]]
    assert lost == [Decimal("1.01"), Decimal("8.08")]
    kept = Decimal(reading.summary()["BilledCost_USD"])
    assert kept + sum(lost) == sum(Decimal(cost) for part in costs for cost in part)


def test_links_are_refused(put: Put, tmp_path: Path):
    put("a/part.csv", focus("1"))
    loop = tmp_path / "delivery" / "a" / "loop.csv"
    for target, words in (("loop.csv", "symbolic links"), ("..", "loop.csv: .*a link to a folder")):
        loop.symlink_to(target)
        with pytest.raises(TraceFormatError, match=words):
            read("focus", tmp_path / "delivery")
        loop.unlink()
    assert billed(tmp_path / "delivery") == "1"


def test_a_folder_that_cannot_be_listed_is_an_error(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put("a/part.csv", focus("1"))
    put("b/part.csv", focus("2"))
    scan = os.scandir

    def refuse(path: str) -> Any:
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TraceFormatError, match="b: expected a readable folder; got Permission denied"):
        read("focus", tmp_path / "delivery")
