"""One bill through every door: page, workbook, JSON, FOCUS file and the command say the same, to the cent."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastexcel
import polars as pl
import pytest

from gpuplanner.cli.forecast_and_cost_commands import COST_BREAKDOWNS
from gpuplanner.core.errors import ScenarioError, VerificationError
from gpuplanner.core.output_manifests_and_overwrite_checks import write_manifest
from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.monthly_cost_review import COST_TABLE_TITLES, cost_review
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.decision_types import Saving, WeeklyGrowth, compute_impact
from gpuplanner.decision.purchase_and_refresh_plans import plan_purchase
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import check_options
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.report import focus_files_and_workbooks
from gpuplanner.report import monthly_sections as tearsheet
from gpuplanner.report.focus_files_and_workbooks import write_focus, write_study_workbook
from gpuplanner.report.report_rendering import REPORT_FOLDER_MARK
from gpuplanner.usage.allocated_hours import FAILED_JOB_STATES
from gpuplanner.usage.planning_history import load_dataset

AMOUNT = re.compile(r"sum to ([\d,.]+\d) USD")


def _sum(rows: list[dict[str, Any]]) -> Decimal:
    return sum((Decimal(row["cost"]) for row in rows), Decimal())


def _read_back(path: Path) -> dict[str, Any]:
    reading: Any = read("auto", path)
    assert reading.summary()["source"] == "focus"
    assert reading.rejects.is_empty()
    found: dict[str, Any] = reading.summary()
    return found


def test_every_door_shows_the_same_bill(study: Study, quick: Scenario, tmp_path: Path, command):
    (tmp_path / "scenario.yaml").write_text(quick.to_yaml())
    code, out, err = command("cost", str(tmp_path / "scenario.yaml"), "--json", "--focus", str(tmp_path / "bill.csv"))
    assert code == 0, err
    told = json.loads(out)
    total = Decimal(told["total"])
    for table in ("by_tenant", "by_ownership", "by_bucket", "by_gpu_model"):
        assert _sum(told[table]) == total
    assert told["by_tenant"][-1]["tenant"] == "__unallocated__"
    assert study.headline.cost == told["total"]
    assert study.headline.energy_kwh == told["energy_kwh"]
    assert study.headline.carbon_kg == told["carbon_kg"]["location"]["value"]
    assert sum(Decimal(row["EffectiveCost"]) for row in json.loads(study.to_json())["tables"]["costs"]) == total
    shown = AMOUNT.search(tearsheet.costs(study))
    assert shown is not None
    assert Decimal(shown[1].replace(",", "")) == total
    assert Decimal(_read_back(tmp_path / "bill.csv")["EffectiveCost_USD"]) == total
    lines = pl.read_csv(tmp_path / "bill.csv")
    assert lines["x_EnergyKwh"].sum() == pytest.approx(told["energy_kwh"], abs=1e-9)
    assert sum(row["energy_kwh"] for row in told["energy_by_state"]) == pytest.approx(told["energy_kwh"], abs=1e-9)


def test_the_sheet_of_costs_is_read_back_as_a_bill_and_totals_are_named(study: Study, tmp_path: Path):
    book = fastexcel.read_excel(write_study_workbook(tmp_path / "book.xlsx", study))
    book.load_sheet("Costs", dtypes="string").to_polars().write_csv(tmp_path / "sheet.csv")
    assert Decimal(_read_back(tmp_path / "sheet.csv")["EffectiveCost_USD"]) == Decimal(study.headline.cost or 0)
    assert {one.name for one in book.defined_names()} >= {"total_cost", "total_energy_kwh"}
    totals = book.load_sheet("Totals", header_row=None).to_polars().rows()
    assert round(float(totals[0][1]), 2) == float(study.headline.cost or 0)
    parts = totals[[row[0] for row in totals].index("team") + 1 :]
    assert sum(round(float(row[1]), 2) for row in parts) == pytest.approx(float(study.headline.cost or 0), abs=1e-6)


def test_unallocated_hours_of_teams_are_the_sum_of_their_buckets(quick: Scenario):
    found = cost_review(quick)
    amount, *parts = (Decimal(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.\d\d", found.unallocated_text))
    assert amount == sum(parts) == found.by_tenant["cost"][-1]
    for by in ("tenant", "bucket", "ownership"):
        assert found.breakdown(by)["cost"][-1] == found.total


def test_jobs_and_ends_share_what_tenants_were_charged(quick: Scenario):
    found = cost_review(quick)
    held = found.by_tenant.filter(pl.col("tenant") != "__unallocated__")
    assert found.by_end["cost"].sum() == held["cost"].sum()
    by_tenant = dict(found.by_job.group_by("tenant").agg(pl.col("cost").sum()).iter_rows())
    assert by_tenant == dict(held.select("tenant", "cost").iter_rows())


def test_work_done_again_and_tokens_have_their_price(quick: Scenario, tmp_path: Path):
    """Every second job is a second attempt; 5 million tokens were answered by the services of one tenant."""
    trace = load_dataset("sample")
    jobs = trace.jobs.sort("job_id").with_columns(
        attempt=1 + pl.int_range(pl.len()).cast(pl.Int32) % 2,
        job_class=pl.when(pl.col("tenant") == "search").then(pl.lit("service")).otherwise(pl.lit("pretraining")),
    )
    begin, _ = trace.source_facts.span
    asked = {"service": "chat", "time": [begin + timedelta(hours=one) for one in (1, 2)], "prompt_tokens": 2_000_000,
             "generated_tokens": 500_000}  # fmt: skip
    known = trace.with_tables(jobs=jobs, requests=pl.DataFrame(asked))
    write_dataset(known, tmp_path / "again")
    found = cost_review(quick.but(data=str(tmp_path / "again")))
    rows = found.by_job.join(jobs.select("job_id", "attempt"), on="job_id")
    again = rows.filter(pl.col("attempt") == 2)["cost"].sum()
    assert float(found.unit_costs["work_that_was_redone"]) == pytest.approx(float(again), rel=1e-3)
    charged = dict(found.by_tenant.select("tenant", "cost").iter_rows())["search"]
    assert float(found.unit_costs["million_tokens"]) == pytest.approx(float(charged) / 5, rel=0.05)
    usual = cost_review(quick).unit_costs
    assert usual["work_that_was_redone"] is None
    assert "million_tokens" not in usual


@pytest.mark.filterwarnings("ignore:.* jobs name a profile")
def test_without_a_price_there_is_no_total_and_no_file(tmp_path: Path, command):
    words = ("cost", "sample", "--gpu-model", "H20-96GB")
    code, out, _ = command(*words, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["total"] is None
    assert told["by_tenant"] == []
    code, _, err = command(*words, "--focus", str(tmp_path / "bill.csv"))
    assert code == 3
    assert "price" in err


def test_what_the_owner_paid_stands_in_the_place_of_list_prices(quick: Scenario, tmp_path: Path):
    """64 boards at 43,830 USD over five years are 1 USD an hour; electricity comes on top, by the state of the GPU."""
    (tmp_path / "prices.yaml").write_text(
        "owned:\n- {gpu_model: H100-80GB-SXM5, gpus: 64, capex: 43830, unit: USD per GPU, bought: 2025-01-01, "
        "life_years: 5, source: invoice}\n"
        "electricity:\n- {price: 0.1, unit: USD per kWh, from: 2025-01, source: contract, market_g_per_kwh: 0}\n"
    )
    found = cost_review(quick.but(price_book=str(tmp_path / "prices.yaml")))
    assert found.energy is not None
    assert float(found.total or 0) == pytest.approx(64 * 28 * 24 + 0.1 * found.energy.value, abs=0.01)
    assert found.carbon_kg["market"].value == 0.0
    assert found.by_ownership["ownership"].to_list() == ["owned"]
    assert not found.missing


def test_lost_hours_cost_what_the_table_by_end_state_states(study: Study, quick: Scenario, tmp_path: Path):
    """A busy GPU-hour takes more electricity than the mean one: two prices of the same hours would contradict."""
    (tmp_path / "prices.yaml").write_text(
        "owned:\n- {gpu_model: H100-80GB-SXM5, gpus: 64, capex: 43830, unit: USD per GPU, bought: 2025-01-01, "
        "life_years: 5, source: invoice}\n"
        "electricity:\n- {price: 2, unit: USD per kWh, from: 2025-01, source: contract}\n"
    )
    priced = replace(study, scenario=quick.but(price_book=str(tmp_path / "prices.yaml")))
    by_end = cost_review(priced.scenario).by_end
    lost = by_end.filter(pl.col("state").is_in(FAILED_JOB_STATES))["cost"].sum()
    assert f", {lost:,.0f} USD at your rate; work saved" in tearsheet.ledger(priced)


def test_carbon_by_hour_stands_beside_the_yearly_mean(quick: Scenario, tmp_path: Path):
    """A grid that is clean by day: what the fleet does by night is not hidden in a mean."""
    hours = pl.datetime_range(
        pl.datetime(2026, 2, 1), pl.datetime(2026, 2, 28, 23), "1h", time_zone="UTC", eager=True
    ).alias("time")
    grams = pl.when(pl.col("time").dt.hour().is_between(8, 17)).then(0.0).otherwise(400.0)
    grid = pl.DataFrame(hours).with_columns(location_g_per_kwh=grams)
    grid.with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(tmp_path / "grid.csv")
    found = cost_review(quick.but(carbon_file=str(tmp_path / "grid.csv")))
    assert found.energy is not None
    by_hour = found.carbon_kg["location"].value
    assert 0 < by_hour < 0.4 * found.energy.value
    assert found.carbon_at_yearly_mean_kg == pytest.approx(found.energy.value * 208.81 / 1000, abs=1e-5)
    assert by_hour != pytest.approx(found.carbon_at_yearly_mean_kg, rel=0.01)


PRICES = """
prices:
- {gpu_model: H100-80GB-SXM5, kind: on_demand, price: 3.0, unit: USD per GPU h, from: 2025-01, source: quote}
- {gpu_model: H100-80GB-SXM5, kind: reserved_1y, price: 1.8, unit: USD per GPU h, from: 2025-01, source: quote}
- {gpu_model: H100-80GB-SXM5, kind: spot, price: 1.2, unit: USD per GPU h, from: 2025-01, source: quote}
"""


@pytest.mark.long
def test_what_is_reserved_is_cheaper_than_either_plain_way(quick: Scenario, study: Study, tmp_path: Path):
    """A fleet that is rented by the hour, with weeks of 30 GPUs held day and night."""
    (tmp_path / "prices.yaml").write_text(PRICES)
    asked = quick.but(price_book=str(tmp_path / "prices.yaml"), ownership="rented", spot_share=0.2)
    found = plan_purchase(asked, 12)
    mix = found.portfolio
    assert found.action == "reserve"
    assert mix.cost <= min(mix.all_rented, mix.all_reserved) + 1e-6
    assert mix.gap < 1e-3
    assert found.held_gpus == 0
    winner, today = study.comparison.find_row(study.comparison.winner), study.comparison.today
    assert winner is not None
    assert today is not None
    assert found.margin == pytest.approx(winner.gpu_hours / today.busy_gpu_hours)
    assert found.mean_gpus <= max(winner.peak_gpus, 64)
    assert json.loads(json.dumps(found.to_dict(), default=vars))["begin"]


def test_who_owns_enough_waits(quick: Scenario, tmp_path: Path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    found = plan_purchase(quick.but(price_book=str(tmp_path / "prices.yaml")), 3)
    assert found.held_gpus == 64
    assert found.action == "buy nothing, the 64 owned GPUs are enough"
    assert "growth unknown" in found.advice_sentence
    assert f"each hour needs {found.margin:.2f} times its allocated GPUs" in found.advice_sentence
    assert "coverage 100 % of this demand, utilization " in found.advice_sentence
    assert "no purchase advice: growth is unknown" in found.advice_sentence
    assert found.costs.is_empty()


def test_tenants_share_a_bill_to_the_cent_and_one_that_does_not_reconcile_is_refused(
    quick: Scenario, tmp_path: Path, command
):
    (tmp_path / "scenario.yaml").write_text(quick.to_yaml())
    asked = ("cost", str(tmp_path / "scenario.yaml"), "--json")
    lines = quick.but(price_per_gpu_hour=1.234567)
    # A provider bills four fifths of the amortized cost this month.
    costs = cost_review(lines).costs.with_columns(
        ProviderName=pl.lit("cloud"), BilledCost=(pl.col("EffectiveCost") * Decimal("0.8")).cast(pl.Decimal(18, 2))
    )
    write_focus(tmp_path / "bill.csv", costs)
    code, _, err = command("ingest", "focus", str(tmp_path / "bill.csv"), "-o", str(tmp_path / "bill"))
    assert code == 0, err
    code, out, err = command(*asked, "--bill", str(tmp_path / "bill"))
    assert code == 0, err
    told = json.loads(out)
    assert Decimal(told["total"]) == cost_review(lines).total == _sum(told["by_tenant"])
    assert told["price_basis"] == "at the effective (amortized) cost of the bill"
    assert told["price"]["value"] * 43008 == pytest.approx(float(told["total"]))
    assert (told["price"]["source"], told["price"]["components"]) == ("bill", {})
    assert command(*asked, "--bill", str(tmp_path / "bill"), "--focus", str(tmp_path / "shared.csv"))[0] == 0
    shared = _read_back(tmp_path / "shared.csv")
    assert Decimal(shared["BilledCost_USD"]) == costs["BilledCost"].sum()
    assert Decimal(shared["EffectiveCost_USD"]) == costs["EffectiveCost"].sum()
    assert command("ingest", "focus", str(tmp_path / "shared.csv"), "-o", str(tmp_path / "own"))[0] == 0
    code, _, err = command(*asked, "--bill", str(tmp_path / "own"))
    assert code == 1
    assert "expected the charge lines of an invoice; got charge lines that cost --focus wrote" in err
    half = costs.filter(pl.col("SubAccountName") != "__unallocated__")
    write_focus(tmp_path / "half.csv", half)
    assert command("ingest", "focus", str(tmp_path / "half.csv"), "-o", str(tmp_path / "half"))[0] == 0
    code, _, err = command(*asked, "--bill", str(tmp_path / "half"))
    assert code == 1
    assert "a bill of the 43,008.0 installed GPU-hours (2026-02)" in err
    assert "got 20,974.7 GPU-hours (2026-02)" in err
    assert "largest lines" in err


LOT = (
    "owned:\n- {gpu_model: MODEL, gpus: 64, capex: 43830, unit: USD per GPU, bought: 2025-01-01, life_years: 5, "
    "source: invoice}\n"
)


@pytest.fixture
def unstated(tmp_path: Path) -> Path:
    """The sample as a dataset that does not state the ownership of its GPUs."""
    trace = load_dataset("sample")
    inventory = trace.inventory.drop("ownership")
    write_dataset(trace.with_tables(inventory=inventory), tmp_path / "out" / "data")
    return tmp_path / "out" / "data"


def test_a_price_book_is_used_or_refused(unstated: Path, tmp_path: Path, command):
    book = tmp_path / "prices.yaml"
    book.write_text(LOT.replace("MODEL", "H100-80GB-SXM5"))
    words = ("cost", str(unstated), "--price-book", str(book))
    code, _, err = command(*words)
    assert code == 3
    assert "expected the ownership of the H100-80GB-SXM5 GPUs" in err
    assert "--set ownership=owned" in err
    code, out, _ = command(*words, "--set", "ownership=owned")
    assert code == 0
    assert "at your rate (1" in out
    code, out, err = command(*words, "--set", "ownership=rented")
    assert code == 0
    assert "the row owned, H100-80GB-SXM5, is not used for this cost" in err
    book.write_text(LOT.replace("MODEL", "A100-40GB"))
    code, _, err = command(*words, "--set", "ownership=owned")
    assert code == 3
    assert "expected a row of H100-80GB-SXM5; got A100-40GB" in err


def test_a_dataset_takes_its_settings_from_the_scenario_beside_it(unstated: Path, tmp_path: Path, command):
    (unstated.parent / "scenario.yaml").write_text(Scenario(name="mine", data="data", ownership="owned").to_yaml())
    # As start lists it: a scenario that happens to lie beside a dataset does not count.
    write_manifest(unstated.parent, REPORT_FOLDER_MARK, {})
    (tmp_path / "prices.yaml").write_text(LOT.replace("MODEL", "H100-80GB-SXM5"))
    totals = set()
    for given in (unstated, unstated.parent, unstated.parent / "scenario.yaml"):
        code, out, err = command("cost", str(given), "--json", "--price-book", str(tmp_path / "prices.yaml"))
        assert code == 0, err
        totals.add(json.loads(out)["total"])
        assert json.loads(out)["price_basis"] == "at your rate"
    assert len(totals) == 1


def test_charge_lines_of_several_months_are_refused_without_a_month(tmp_path: Path, command):
    times = "2026-01-20T00:00:00Z,2026-01-20T01:00:00Z,2026-02-10T00:00:00Z"
    jobs = f"job_id,user,team,submit,start,end,gpus\n1,a,b,{times},4\n"
    (tmp_path / "jobs.csv").write_text(jobs)
    code, _, err = command("ingest", "auto", str(tmp_path / "jobs.csv"), "-o", str(tmp_path / "two"))
    assert code == 0, err
    words = ("cost", str(tmp_path / "two"), "--gpu-model", "H100-80GB-SXM5", "--set", "price_per_gpu_hour=2")
    code, _, err = command(*words, "--focus", str(tmp_path / "bill.csv"))
    assert code == 3
    assert "one calendar month" in err
    code, _, err = command(*words, "--month", "2026-02", "--focus", str(tmp_path / "bill.csv"))
    assert code == 0
    assert "observed in part, 216 of 672 h" in err
    periods = pl.read_csv(tmp_path / "bill.csv").select("^(Billing|Charge)Period.*$").unique().row(0)
    month = ("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z")
    assert periods == (*month, "2026-02-01T00:00:00Z", "2026-02-10T00:00:00Z")


def test_jobs_on_an_unknown_number_of_gpus_are_no_units(quick: Scenario, tmp_path: Path):
    trace = load_dataset("sample")
    unknown = pl.when(pl.col("job_id").rank("ordinal") > 23).then("gpus")
    write_dataset(trace.with_tables(jobs=trace.jobs.with_columns(gpus=unknown)), tmp_path / "data")
    usual, found = (cost_review(scenario).units for scenario in (quick, quick.but(data=str(tmp_path / "data"))))
    attempts = [
        units.filter(name="cost per job attempt that ran")["number_of_units"].item() for units in (usual, found)
    ]
    assert attempts[0] - attempts[1] == 23


def test_unit_costs_state_what_is_divided_by_what(quick: Scenario):
    found = cost_review(quick)
    for _, cost, basis, amount, count in found.units.iter_rows():
        assert float(cost) == pytest.approx(float(amount) / count, abs=0.01)
        assert (amount == found.total) == basis.startswith("all installed")
    assert all(name.startswith("cost per") for name in found.units["name"])
    assert list(found.work_costs) == [
        "cost of unsuccessful jobs (failed, timed out, out of memory, preempted, cancelled)"
    ]


@pytest.mark.parametrize("by", COST_BREAKDOWNS)
def test_each_breakdown_has_a_table_of_its_own_name(by, quick: Scenario, tmp_path: Path, command):
    """``by team`` is the table by team; the terminal names it as page and workbook do."""
    (tmp_path / "scenario.yaml").write_text(quick.to_yaml())
    code, out, err = command("cost", str(tmp_path / "scenario.yaml"), "--by", by, "--quiet")
    assert code == 0, err
    assert COST_TABLE_TITLES["tenant" if by == "team" else by] in out
    assert "Feb 2026 (UTC)" in out
    assert "yearly mean" not in out
    assert "Your rate per GPU-hour is not set" in err


def test_a_weight_of_the_risk_needs_months(command):
    code, _, err = command("cost", "sample", "--risk", "1")
    assert code == 2
    assert "needs --months" in err


@pytest.mark.long
def test_ways_to_pay_are_for_the_gpus_that_the_report_recommends(quick: Scenario, study: Study):
    found = plan_purchase(quick, 12)
    assert found.decision == study.decision
    assert study.decision.sentence.partition(". ")[0] in found.advice_sentence
    assert "no queue wait is simulated" in found.advice_sentence


def test_gpus_of_unstated_ownership_are_no_purchase_advice(unstated: Path, quick: Scenario):
    found = plan_purchase(quick.but(data=str(unstated)), 3)
    assert found.unstated_gpus == found.held_gpus == 64
    assert "no purchase advice" in found.advice_sentence
    assert "the ownership of 64 GPUs is not stated and they are taken as owned" in found.advice_sentence


def test_a_purchase_is_paid_for_in_every_hour(quick: Scenario, monkeypatch: pytest.MonkeyPatch):
    """The report buys 8 GPUs for the 64 owned: these 8 are needed in every hour, and nothing else."""
    known = compare_policies(quick)
    weekly = WeeklyGrowth(0.001, -0.001, 0.003)
    buys = replace(
        known.decision, action="buy", gpus=72, fleet_gpus=64, sentence="Buy 8 GPUs for the 64 H100s. Waits fall."
    )
    monkeypatch.setattr(
        "gpuplanner.decision.purchase_and_refresh_plans.compare_policies",
        lambda _: replace(known, decision=buys, growth_per_week=weekly),
    )
    found = plan_purchase(quick, 12)
    assert found.mean_gpus == 72
    assert found.begin.rows() == [("reserved_1y", 1, 8.0)]
    assert found.portfolio.coverage == 1
    assert "Recommended: 72 GPUs (Buy 8 GPUs for the 64 H100s)." in found.advice_sentence
    assert "growth +0.1 % per week, from the record, not certain: taken as none" in found.advice_sentence


def test_a_file_that_fails_costs_neither_the_answer_nor_the_other_file(
    quick: Scenario, tmp_path: Path, command, monkeypatch
):
    def fail(path: Path, costs: pl.DataFrame) -> Path:
        raise VerificationError(str(path), "lines that conform", "none", "Report this.")

    monkeypatch.setattr(focus_files_and_workbooks, "write_focus", fail)
    (tmp_path / "scenario.yaml").write_text(quick.to_yaml())
    files = ("--focus", str(tmp_path / "bill.csv"), "--workbook", str(tmp_path / "costs.xlsx"))
    code, out, err = command("cost", str(tmp_path / "scenario.yaml"), "--by", "job", "--json", *files)
    assert code > 0
    assert "lines that conform" in err
    assert (tmp_path / "costs.xlsx").is_file()
    found = json.loads(out)
    assert _sum(found["by_job"]) == Decimal(found["total"]) - Decimal(found["by_tenant"][-1]["cost"])
    assert _sum(found["by_team_and_month"]) == _sum(found["by_team_and_week"]) == Decimal(found["total"])


def test_a_currency_of_the_price_book_is_accepted(tmp_path: Path):
    scenario = Scenario(currency="EUR", price_book=str(tmp_path / "prices.yaml"))
    rate = "rates:\n- {{from: USD, to: {}, rate: 0.92, date: 2026-01-02, source: ECB}}\n"
    (tmp_path / "prices.yaml").write_text(rate.format("EUR"))
    check_options(scenario)
    (tmp_path / "prices.yaml").write_text(rate.format("GBP"))
    with pytest.raises(ScenarioError, match="or one of the price book; got EUR"):
        check_options(scenario)


def test_electricity_saved_has_the_currency_of_the_report(quick: Scenario, tmp_path: Path):
    book = (
        PRICES.replace("USD", "EUR")
        + "electricity:\n- {price: 0.2, unit: EUR per kWh, from: 2026-03, source: contract}\n"
    )
    (tmp_path / "prices.yaml").write_text(book)
    scenario = quick.but(currency="EUR", price_book=str(tmp_path / "prices.yaml"), ownership="owned")
    impact = compute_impact(scenario, Saving(100.0), 60, 64)
    assert " EUR at 0.2 EUR per kWh" in impact.basis
    assert impact.usd_per_week is None
