"""The panel of money in plain Python: what is set is what is asked, and it says what the review by hand says."""

from __future__ import annotations

import ast
import re
import zipfile
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import fastexcel
import nbformat
import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import money_text
from gpuplanner.cost.monthly_cost_review import cost_review
from gpuplanner.decision.purchase_and_refresh_plans import plan_purchase
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel, observed_months
from gpuplanner.notebook.section_panels import FAULT_BORDER
from gpuplanner.report.focus_files_and_workbooks import write_study_workbook
from gpuplanner.usage.planning_history import load_dataset

ASKED = Scenario(month="2026-02", actuator="slurm", policies="mig_static,power_down_idle")


@pytest.fixture
def panel(tmp_path):
    return CostPanel(ASKED, tmp_path / "costs.xlsx")


def test_it_begins_at_the_scenario_and_nothing_is_changed(panel):
    asked = panel.question
    assert asked.scenario == ASKED
    assert (asked.tenant, asked.months, asked.risk) == ("", 12, 0.0)
    tenants = [value for _, value in panel.tenant.options][1:]
    assert sorted(tenants) == sorted(cost_review(ASKED).by_tenant["tenant"])
    assert [value for _, value in panel.month.options] == ["", *observed_months(ASKED)]


def test_what_is_set_is_asked(panel):
    panel.price.control.value, panel.owner.value, panel.month.value = 2.5, "reserved", ""
    panel.price_book.value, panel.months.control.value, panel.risk.control.value = " own.yaml ", 24, 0.5
    asked = panel.question
    assert asked.scenario == ASKED.but(price_per_gpu_hour=2.5, ownership="reserved", month=None, price_book="own.yaml")
    assert (asked.months, asked.risk) == (24, 0.5)


def test_the_button_writes_the_month_of_the_controls_before_any_answer(panel, tmp_path):
    panel.price.control.value = 2.0
    button, message = panel.files.children
    button.click()
    assert "Written" in message.value
    book = fastexcel.read_excel(tmp_path / "costs.xlsx")
    sheets = [book.load_sheet(name).to_polars() for name in book.sheet_names]
    amounts = [Decimal(str(cost)) for one in sheets if "EffectiveCost" in one.columns for cost in one["EffectiveCost"]]
    assert (
        sum(amounts).quantize(Decimal("0.01"))
        == Decimal("86016.00")
        == cost_review(ASKED.but(price_per_gpu_hour=2.0)).total
    )


@pytest.mark.long
def test_lines_of_a_tenant_sum_to_its_share_and_all_shares_to_the_total(panel):
    panel.price.control.value = 2.0
    everybody = panel.ask().result(timeout=600)
    total = everybody.review.total
    assert f"all teams: {money_text(total, 'USD')} USD" in panel.answer.value
    shares = Decimal(0)
    for _, tenant in panel.tenant.options[1:]:
        panel.tenant.value = tenant
        found = panel.ask().result(timeout=600)
        mine = found.review.costs.filter(pl.col("SubAccountName") == tenant)["EffectiveCost"].sum()
        assert f"{tenant.strip('_')}: {money_text(Decimal(str(mine)), 'USD')} of" in panel.answer.value
        shares += Decimal(str(mine))
    assert shares == total
    panel.months.control.value = 36
    assert panel.ask().result(timeout=600).purchase.months == 36
    assert "Commitments" in panel.answer.value


def test_a_price_out_of_range_and_a_missing_price_book_are_marked(panel):
    panel.price.control.value, panel.price_book.value = -1.0, "nowhere.yaml"
    with pytest.raises(ScenarioError, match=r"Price book: expected a file, got nowhere\.yaml"):
        panel.ask().result()
    assert [control.layout.border_top for control in (panel.price.control, panel.price_book)] == [FAULT_BORDER] * 2
    assert "expected 0 to 10,000, got -1" in panel.status.value


@pytest.mark.parametrize("every", ["week", "month"])
def test_periods_sum_to_the_cost_of_the_month(every):
    costs = gp.open("sample").costs(month="2026-02", price_per_gpu_hour=2.0)
    view = costs.over_time(every)
    table = view.df
    chart = view.chart().to_json()
    assert ('"Feb 2026"' in chart, "2026-02-23 (6 of 7 days)" in chart) == (every == "month", every == "week")
    assert ("2026-02-0" in view.section) == (every == "week")
    assert "Data as a table" in view.section
    assert "-0.0 %" not in view.section
    assert table["cost"].sum() == Decimal("86016.00")
    assert table["days"].sum() == 28
    assert table["change_fraction"][0] is None
    daily = table["cost_per_day"]
    assert table["change_fraction"][1:].to_list() == pytest.approx((daily[1:] / daily[:-1] - 1).to_list(), abs=1e-6)


def test_the_notebook_of_costs_runs_as_it_is_stored_up_to_the_prices(root):
    cells = nbformat.read(root / "notebooks" / "06_cost_review.ipynb", as_version=4).cells
    shown: list[Any] = []
    names: dict[str, Any] = {"display": lambda *views: shown.extend(views)}
    for source in [cell.source for cell in cells if cell.cell_type == "code"][:5]:
        *statements, last = ast.parse(source).body
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        is_value = isinstance(last, ast.Expr)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if is_value else exec(source, names)
        shown.extend([] if value is None else [value])
    assert isinstance(shown[0], CostPanel)
    assert [view.df.height > 0 for view in shown[1:]] == [True] * 4
    assert names["costs"].review.price_basis == " at list price"


@pytest.mark.long
def test_commitments_are_for_the_fleet_that_the_notebook_of_policies_recommends(root):
    names: dict[str, Any] = {}
    for name in ("03_static_vs_dynamic", "06_cost_review"):
        cells = nbformat.read(root / "notebooks" / f"{name}.ipynb", as_version=4).cells
        for cell in [cell for cell in cells if cell.cell_type == "code"][:2]:
            exec(cell.source, names)
    recommended = names["gp"].decide(names["panel"].scenario).decision
    found = plan_purchase(names["costs"].scenario, 12)
    assert (found.decision.gpus, found.decision.action) == (recommended.gpus, recommended.action)
    assert found.decision.sentence == recommended.sentence


def rows_of(path, sheet: str) -> list[tuple]:
    """Cells of a sheet as text, with the header."""
    return fastexcel.read_excel(path).load_sheet(sheet, header_row=None, dtypes="string").to_polars().rows()


def test_teams_by_week_sum_to_the_sheet_of_teams_to_the_cent(tmp_path):
    costs = gp.open("sample", tz="Europe/Oslo").costs(month="2026-02", prices=2.4)
    path = costs.to_excel(tmp_path / "costs.xlsx")
    header, *rows = rows_of(path, "Cost by team and week")
    assert header[1] == "week from Mon 2026-01-26, 1 day [USD]"
    teams = rows[: rows.index(next(row for row in rows if row[0] == "Total"))]
    for name, *weeks, total in teams:
        assert sum(map(Decimal, weeks)) == Decimal(total), name
    by_team = {row[0]: row[1] for row in rows_of(path, "Cost by team")}
    assert {name: total for name, *_, total in teams} == {name: by_team[name] for name, *_ in teams}
    assert len(teams) == len(by_team) - 2  # without header and Total
    assert "2.40 USD per installed GPU-hour" in rows[-1][0]


def test_teams_by_month_sum_to_the_other_sheets_to_the_cent(study, tmp_path):
    """A whole month and 25 days of the next one, in the workbook of costs; and the workbook of a report."""
    trace = load_dataset("sample")
    later = timedelta(days=25)
    times = [name for name, dtype in trace.jobs.schema.items() if isinstance(dtype, pl.Datetime)]
    moved = trace.jobs.with_columns(pl.col(times) + later, job_id=pl.col("job_id") + "-later")
    span = {"span_end": (trace.source_facts.span[1] + later).isoformat()}
    dataset = replace(trace, provenance={**trace.provenance, **span}).with_tables(jobs=pl.concat([trace.jobs, moved]))
    write_dataset(dataset, tmp_path / "data")
    cost_file = gp.open(tmp_path / "data").costs(prices=2.4).to_excel(tmp_path / "costs.xlsx")
    for path in (cost_file, write_study_workbook(tmp_path / "study.xlsx", study)):
        header, *rows = rows_of(path, "Cost by team and month")
        teams = rows[: [row[0] for row in rows].index("Total")]
        for name, *months, total in teams:
            assert sum(map(Decimal, months)) == Decimal(total), name
        by_team = {row[0]: row[1] for row in rows_of(path, "Cost by team")[1:-1]}
        assert {name: total for name, *_, total in teams} == by_team
        assert sum(Decimal(row[-1]) for row in teams) == round(Decimal(rows_of(path, "Totals")[0][1]), 2)
        if path == cost_file:
            assert header[1:] == ("Feb 2026 [USD]", "Mar 2026, 25 days [USD]", "total [USD]")
    with zipfile.ZipFile(cost_file) as book:  # the note of both sheets stays within the columns of the table
        merged = [re.findall('mergeCell ref="([A-Z0-9:]+)"', book.read(name).decode()) for name in book.namelist()
                  if name.startswith("xl/worksheets/sheet")]  # fmt: skip
    assert ["A11:D11"] in merged
    assert sum(map(len, merged)) == 2


def test_an_exported_cost_has_a_total_its_price_and_a_description_of_this_file(tmp_path):
    view = gp.open("sample").cost(by=["team", "week"], prices=2.4, month="2026-02")
    path = view.export(tmp_path / "teams.xlsx")
    header, *rows = rows_of(path, "Table")
    assert header[-1] == "cost [USD]"
    (total,) = [row for row in rows if row[0] == "Total"]
    assert total[-1] == "103219.2"
    for text in (rows[-1][0], dict(row[:2] for row in rows_of(path, "Read me"))["About"]):
        assert "103,219.20 USD at your rate (2.40 USD per GPU-hour), Feb 2026" in text
        assert "week from 26 Jan 2026 (1 day)" in text
    assert "Totals" not in str(rows_of(path, "Read me"))


def test_the_table_of_the_panel_has_a_total(panel):
    assert "Total</th>" in panel.answer.value
