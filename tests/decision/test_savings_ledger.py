"""What was promised and what came: steps that sum, months that telescope, and a fleet that shrank by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import Comparison, PolicyRow
from gpuplanner.decision.decision_text import make_empty_decision
from gpuplanner.decision.decision_types import MIG_STATIC, TODAY, Saving
from gpuplanner.decision.savings_track_record import (
    FEWER_GPUS_SOURCE,
    POWERED_DOWN_SOURCE,
    MeasureHours,
    ObservedMonth,
    SavingPromise,
    SavingsMonth,
    add_month,
    baseline_table,
    evaluate_promises,
    read_savings,
    savings_json,
    savings_table,
)
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage.planning_history import load_dataset

BEGIN = datetime(2026, 2, 1, tzinfo=UTC)
HOURS = st.floats(0, 1e5).map(lambda hours: round(hours, 3))
PROMISE = SavingPromise("cut", "repartition", "power_down_idle", 1, (), 0.0, None, None, 0.95, 10.0, None, None)


def a_month(number: int, *, installed: float, rest: float = 0.0, busy: float = 100.0, later: float | None = None,
            late: float = 0.0, promised: float = 0.0, value: float | None = 2.0) -> SavingsMonth:  # fmt: skip
    begin = BEGIN + timedelta(days=28 * number)
    seen = ObservedMonth(
        begin.isoformat(), (begin + timedelta(days=28)).isoformat(), installed / 168, installed, rest, rest, busy, (),
        late, later, "rented", value, None, measured=True,
    )  # fmt: skip
    return SavingsMonth(f"month {number}", "made up", seen, replace(PROMISE, gpu_hours=promised))


def test_a_plan_that_was_half_carried_out_with_more_work_and_later_jobs():
    """1,000 hours, 400 promised; work rises by a tenth (60 hours of the plan), 750 are on, jobs are 20 hours late."""
    first = a_month(0, installed=1000.0, promised=400.0, busy=500.0, late=5.0)
    then = a_month(1, installed=750.0, busy=550.0, later=25.0, value=1.5)
    [one] = evaluate_promises((first, then))
    assert (one.demand, one.service) == (pytest.approx(-60.0), pytest.approx(-20.0))
    assert one.not_carried_out == pytest.approx(-90.0)
    assert one.realised == pytest.approx(230.0)
    steps = one.money(2.0, 1.5)
    assert steps["realised"] == Decimal("345.00")
    assert steps["price"] == Decimal("-115.00")


def test_less_work_excuses_nothing_and_a_plan_that_was_kept_to_the_letter_leaves_no_rest():
    first = a_month(0, installed=1000.0, promised=400.0)
    [kept] = evaluate_promises((first, a_month(1, installed=600.0, busy=50.0)))
    assert (kept.demand, kept.not_carried_out, kept.realised) == (0.0, 0.0, 400.0)
    [idle] = evaluate_promises((first, a_month(1, installed=1000.0, busy=50.0)))
    assert (idle.demand, idle.not_carried_out, idle.realised) == (0.0, -400.0, 0.0)


@given(st.lists(st.tuples(HOURS, HOURS, HOURS, HOURS, HOURS), min_size=2, max_size=6), st.floats(0.01, 50))
def test_steps_sum_to_what_is_realised_and_months_to_the_frozen_baseline(rows, value):
    months = tuple(
        a_month(number, installed=held, busy=busy, later=later, late=late, promised=min(promised, held), value=value)
        for number, (held, busy, later, late, promised) in enumerate(rows)
    )  # fmt: skip
    found = list(evaluate_promises(months))
    for one in found:
        steps = one.promised + one.demand + one.service + one.not_carried_out
        assert steps == pytest.approx(one.realised, abs=1e-6)
        assert sum(part.gpu_hours for part in one.levers) == pytest.approx(one.realised - one.service, abs=1e-6)
        assert one.service <= 0
    # No hour counts for two promises.
    fewer = sum(one.realised - one.service for one in found)
    assert fewer == pytest.approx(
        months[0].seen.provisioned_gpu_hours - months[-1].seen.provisioned_gpu_hours, abs=1e-6
    )
    table = savings_table(months)
    for row in table.iter_rows(named=True):
        steps = [row[f"{name}_usd"] for name in ("promised", "demand", "service", "not_carried_out", "price")]
        assert sum(steps) == row["realised_usd"]
    standing = baseline_table(months)
    assert standing["saved_usd"].sum() == standing["total_usd"][-1]
    assert standing["saved_gpu_hours"][0] == 0.0


def test_hours_out_of_service_are_rest_only_where_the_plan_lets_gpus_rest():
    first = a_month(0, installed=1000.0)
    [one] = evaluate_promises((first, a_month(1, installed=900.0, rest=300.0)))
    assert one.levers == (MeasureHours(FEWER_GPUS_SOURCE, 100.0), MeasureHours(POWERED_DOWN_SOURCE, 300.0))
    assert one.realised == 400.0


@pytest.fixture(scope="module")
def decided():
    """A comparison that saves 3,000 GPU-hours a week by fewer nodes that are cut."""
    decision = replace(
        make_empty_decision(Scenario(), "synthetic"), policy=MIG_STATIC, saving=Saving(3000.0, 2500.0, 3500.0)
    )
    return Comparison(decision, 10.0, today=PolicyRow(TODAY, "as it is", gpu_hours_promised=64 * 168.0))


@pytest.fixture(scope="module")
def two_months(quick, decided, tmp_path_factory):
    """The sample, and the same jobs four weeks later on a fleet that gave two nodes back."""
    trace = load_dataset("sample")
    four_weeks = timedelta(days=28)
    left = trace.inventory.filter(~pl.col("node").is_in(["n07", "n08"]))
    jobs = trace.jobs.filter(~pl.col("node_list").fill_null("").str.contains("n07|n08"))
    jobs = jobs.with_columns(pl.col("submit_time", "start_time", "end_time") + four_weeks)
    begin, end = (one + four_weeks for one in trace.source_facts.span)
    span = {"span_start": begin.isoformat(), "span_end": end.isoformat()}
    later = replace(trace.with_tables(jobs=jobs, inventory=left), provenance=trace.provenance | span)
    folder = tmp_path_factory.mktemp("later") / "data"
    write_dataset(later, folder)
    march = quick.but(data=str(folder), month="2026-03")
    months = add_month((), quick, decided)
    return months, add_month(months, march, decided), march


def test_the_next_month_s_nodes_say_what_was_realised(two_months):
    first, both, _ = two_months
    promise = first[0].promise
    assert promise.gpu_hours == 3000.0
    [one] = evaluate_promises(both)
    assert one.levers == (
        MeasureHours(FEWER_GPUS_SOURCE, pytest.approx(16 * 168)),
        MeasureHours(POWERED_DOWN_SOURCE, 0.0),
    )
    assert one.realised == pytest.approx(16 * 168 + one.service)
    jobs = load_dataset("sample").jobs.filter(pl.col("start_time").is_not_null())
    begin, end = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    held = pl.min_horizontal("end_time", pl.lit(end)) - pl.max_horizontal("start_time", pl.lit(begin))
    hours = jobs.select((pl.col("gpus") * held.dt.total_seconds().clip(lower_bound=0) / 3600).sum()).item()
    assert first[0].seen.busy_gpu_hours * 4 == pytest.approx(hours, rel=1e-3)


def test_what_was_said_stands_and_months_come_in_order(two_months, quick, decided, tmp_path):
    first, both, march = two_months
    assert add_month(both, march, decided) == both
    assert add_month(both, quick, decided) == both
    assert both[0] == first[0]
    with pytest.raises(ScenarioError, match="a month after its last"):
        add_month(both[1:], quick, decided)
    path = tmp_path / "past.savings.json"
    path.write_text(savings_json(both))
    assert read_savings(path) == both
    assert savings_json(read_savings(path)) == path.read_text()
    path.write_text('{"format": "another"}')
    with pytest.raises(ScenarioError, match="gpuplanner savings 2"):
        read_savings(path)
