"""Public data through every door: page, workbooks, JSON, FOCUS file and command say one sum, cent for cent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import fastexcel
import polars as pl
import pytest

AMOUNT = re.compile(r"lines sum to ([\d,.]+\d) USD")
KINDS = {
    "openb": (
        ("auto", "alibaba_gpu_v2023/openb_node_list_gpu_node.csv"),
        ("auto", "alibaba_gpu_v2023/openb_pod_list_default.csv.gz"),
    ),
    "fox": (("slurm", "slurm/sacct_fox_2025.txt", "--tz", "Europe/Oslo"),),
    "philly": (("philly", "philly/philly.csv.gz"),),
}
STATED = {
    "openb": ("price_per_gpu_hour=2.13",),
    "fox": ("price_per_gpu_hour=1.37", "gpu_model=H100-80GB-SXM5"),
    "philly": ("price_per_gpu_hour=0.91", "gpu_model=H100-80GB-SXM5", "month=2017-11"),
}


def lines_of(path: Path) -> tuple[Decimal, float]:
    """What the charge lines of a workbook sum to: money, and energy [kWh]."""
    sheet = fastexcel.read_excel(path).load_sheet("Costs").to_polars()
    cents = sum((Decimal(f"{cost:.2f}") for cost in sheet["EffectiveCost"].to_list()), Decimal())
    return cents, float(sheet["x_EnergyKwh"].cast(pl.Float64).sum())


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["fox", "openb", "philly"])
def test_every_door_says_one_sum(
    public_data: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]], kind: str
):
    data, out = tmp_path / kind, tmp_path / "report"
    for source, file, *more in KINDS[kind]:
        assert command("ingest", source, str(public_data / file), "-o", str(data), *more)[0] == 0
    told = ["--set", "policies=fewer_nodes", *(word for one in STATED[kind] for word in ("--set", one))]
    code, _, err = command("report", str(data), "-o", str(out), *told, "--quiet")
    assert code == 0, err
    files = ("--focus", str(tmp_path / "bill.csv"), "--workbook", str(tmp_path / "book.xlsx"))
    code, text, err = command("cost", str(data), "--json", *files, *told, "--quiet")
    assert code == 0, err
    found = json.loads(text)
    total, kwh = Decimal(found["total"]), found["energy_kwh"] or 0.0
    assert total > 1000
    assert (kwh > 0) == (kind != "openb")
    shown = AMOUNT.search((out / "index.html").read_text("utf-8"))
    assert shown is not None
    kept = json.loads((out / "study.json").read_text("utf-8"))["tables"]["costs"]
    focus = pl.read_csv(tmp_path / "bill.csv", infer_schema=False)
    sums = [
        (Decimal(shown[1].replace(",", "")), kwh),
        (
            sum((Decimal(row["EffectiveCost"]) for row in kept), Decimal()),
            sum(row["x_EnergyKwh"] or 0.0 for row in kept),
        ),
        (sum(map(Decimal, focus["EffectiveCost"]), Decimal()), focus["x_EnergyKwh"].cast(pl.Float64).sum()),
        lines_of(next(out.glob("*.xlsx"))),
        lines_of(tmp_path / "book.xlsx"),
    ]
    names = {one.name for one in fastexcel.read_excel(tmp_path / "book.xlsx").defined_names()}
    assert ("total_energy_kwh" in names) == (kwh > 0)
    for money, energy in sums:
        assert money == total
        assert energy == pytest.approx(kwh, abs=1e-9)
    for table in ("by_tenant", "by_ownership", "by_bucket", "by_gpu_model"):
        assert sum((Decimal(row["cost"]) for row in found[table]), Decimal()) == total
