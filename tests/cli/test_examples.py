"""Every example of ``catalog example`` is read, and runs in the command that it is for."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import fastexcel
import pytest

from gpuplanner.cli.export_diff_verify_and_catalog_commands import EXAMPLE_FILES
from gpuplanner.core.errors import ScenarioError
from gpuplanner.cost.price_book import read_price_book
from gpuplanner.decision.announced_projects import read_projects
from gpuplanner.decision.sharing_rules import read_quotas
from gpuplanner.forecast.growth_and_announced_demand import read_announced, read_calendar
from gpuplanner.report.focus_files_and_workbooks import NAMED_TOTALS


@pytest.fixture
def example(tmp_path: Path, command):
    """Write an example to a file by its name, as a user does."""

    def write(name: str) -> Path:
        code, out, err = command("catalog", "example", name)
        assert code == 0, err
        path = tmp_path / EXAMPLE_FILES[name]
        path.write_text(out)
        return path

    return write


def test_the_list_names_every_file(command):
    code, out, _ = command("catalog", "example")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(EXAMPLE_FILES.values())


def test_finance_comes_from_the_example_to_a_workbook_that_reconciles(example, tmp_path: Path, command):
    """An owned H100: 31000 x 0.9 / 5 + 900 + 1500 + 1200 USD a year, and electricity at 0.19 EUR x 1.08."""
    book = tmp_path / "costs.xlsx"
    code, out, err = command(
        "cost", "sample", "--month", "2026-02", "--price-book", str(example("prices")), "--burst",
        str(example("burst")), "--workbook", str(book), "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    total = Decimal(told["total"])
    by_hand = 43_008 * (31_000 * 0.9 / 5 + 3600) / 8766 + told["energy_kwh"] * 0.19 * 1.08
    assert float(total) == pytest.approx(by_hand, abs=0.02)
    tables = [name for name in told if name.startswith("by_") and name != "by_end"]
    assert {"by_user", "by_partition", "by_project", "by_tier", "by_job_class"} <= set(tables)
    assert {sum(Decimal(row["cost"]) for row in told[name]) for name in tables} == {total}
    assert told["price"]["value"] * 43_008 == pytest.approx(float(total))
    assert sum(told["price"]["components"].values()) == pytest.approx(told["price"]["value"])
    assert told["burst"]["jobs"]
    reader = fastexcel.read_excel(book)
    assert {name.name for name in reader.defined_names()} >= set(NAMED_TOTALS)
    sheets = [name for name in reader.sheet_names if name.startswith("Cost by ") and "state" not in name]
    assert len(sheets) == 12
    for name in sheets:
        rows = reader.load_sheet(name).to_polars()
        [cost] = [column for column in rows.columns if column.startswith(("cost", "total"))]
        totals = rows.filter(rows.to_series() == "Total")[cost]  # a remark may stand below
        total_of_sheet = totals.item() if name != "Cost by job" else rows[cost].sum() + rows_unallocated(told)
        assert total_of_sheet == pytest.approx(float(total), abs=0.005), name


def rows_unallocated(told: dict) -> float:
    """Cost of the unallocated GPU-hours, which belong to no job."""
    return float(told["by_tenant"][-1]["cost"])


def test_quotas_projects_and_calendars_are_read(example):
    rules = read_quotas(example("quotas"))
    assert sum(team.gpus for team in rules.teams) + sum(cohort.gpus for cohort in rules.cohorts) == 64
    found = read_projects(example("projects"))
    assert [project.concurrent_gpus for project in found.projects] == [8, 1]
    assert [day.factor for day in found.calendar] == [1.5, 0.4]
    assert read_calendar(example("calendar"))["kind"].to_list() == ["holiday", "release", "maintenance"]
    assert read_announced(example("announced"))["gpus"].to_list() == [16.0, 4.0]


def test_quotas_run_in_fairness(example, command):
    code, out, err = command("fairness", "sample", "--set", f"quotas={example('quotas')}", "--json")
    assert code == 0, err
    assert {row["tenant"]: row["entitled_gpus"] for row in json.loads(out)["teams"]}["assistants"] == 14


@pytest.mark.long
def test_projects_run_in_compare_and_calendars_in_forecast(example, command):
    code, out, err = command("compare", "sample", "--projects", str(example("projects")), "--json")
    assert code == 0, err
    assert "atlas" in out
    options = ("--announced", str(example("announced")), "--calendar", str(example("calendar")), "--horizon", "24")
    assert command("forecast", "sample", *options, "--json")[0] == 0


def test_all_missing_keys_are_named_at_once(tmp_path: Path):
    (tmp_path / "prices.yaml").write_text("prices:\n- {gpu_model: T4, price: 0.2}\n")
    with pytest.raises(
        ScenarioError, match="line 2: expected keys kind, unit, from, source; got only gpu_model, price"
    ):
        read_price_book(tmp_path / "prices.yaml")


def test_another_currency_names_the_price_book(command):
    code, _, err = command("cost", "sample", "--month", "2026-02", "--currency", "EUR")
    assert code == 3
    assert "--price-book prices.yaml" in err
    assert "gpuplanner catalog example prices" in err
