"""The controls of what is ahead, in plain Python: set a value, look at the calendar and the decision."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import ScenarioError
from gpuplanner.notebook.forecast_and_cost_views import forecast_demand
from gpuplanner.notebook.section_panels import FAULT_BORDER


@pytest.fixture(scope="module")
def source():
    return gp.open("sample").forecast()


def test_the_calendar_is_the_quantile_that_a_price_implies(source):
    """Counted anew from the paths: at the same price the planned quantile, day by day the busiest slot."""
    table = source.calendar(48, gap=6, price=5.0).df
    wanted = source.source
    drawn = wanted.run_off.draws([wanted.whole], wanted.slots, 54, 1)[0, :, 6:]
    best = wanted.cost_curve(48, 6, 5.0).filter("best")["quantile"][0]
    slots = np.ceil(np.quantile(drawn, best, axis=0))
    assert table["planned"].max() == slots.max()
    assert table["day"].is_sorted()
    assert (table["low"] <= table["high"]).all()
    dearer = source.calendar(48, gap=6, price=30.0).df
    assert (dearer["planned"] >= table["planned"]).all()
    assert dearer["planned"].sum() > table["planned"].sum()


def test_controls_move_calendar_and_decision(source):
    panel = source.controls()
    first = panel.ask().result(timeout=300)
    assert "GPUs to plan on each day" in first
    panel.controls["price"].control.value = 20.0
    asked = panel.question
    assert (asked.price, asked.horizon, asked.capacity) == (20.0, 48, 64.0)
    second = panel.ask().result(timeout=300)
    assert second != first
    assert "A GPU-hour short costs 20 planned ones" in unescape(second)
    assert (panel.status.value, panel.answer.value) == ("Done.", second)


def test_intervals_that_are_no_hours_are_named_and_bad_numbers_marked():
    panel = forecast_demand(gp.Scenario(interval_hours=4)).controls(12, gap=1)
    assert panel.controls["horizon"].label == "Forecast horizon (intervals of 4 h)"
    panel.controls["horizon"].control.value = 0
    with pytest.raises(ScenarioError, match="Forecast horizon"):
        panel.ask().result()
    assert panel.controls["horizon"].control.layout.border_top == FAULT_BORDER


def test_history_and_past_forecasts_are_drawn(source):
    """Fourteen days before the cutoff; forecasts that do not overlap, over the values that came."""
    spec = source.expected(24).chart().to_dict()
    times = [row["ds"] for rows in spec["datasets"].values() for row in rows if "y" in row]
    assert len(times) == 14 * 24
    past = source.past_errors(24, cutoffs=10, models=("Naive",)).chart(0).to_dict()
    rows = next(rows for rows in past["datasets"].values() if "q95" in rows[0])
    assert len({row["ds"] for row in rows}) == len(rows)
    observed = {f"{ds:%Y-%m-%dT%H:%M:%SZ}": y for ds, y in _whole(source).iter_rows()}
    assert all(row["y"] == pytest.approx(observed[row["ds"]], rel=1e-4, abs=1e-9) for row in rows)


def test_data_without_jobs_give_cards(source, monkeypatch):
    monkeypatch.setitem(source.__dict__, "source", replace(source.source, run_off=None))
    for view in (source.expected(), source.decision(), source.calendar()):
        assert "data with jobs" in view._repr_html_()
        assert "gp.read(" in view._repr_html_()


def _whole(source):
    return source.source.demand_table.filter(unique_id=source.source.whole).select("ds", "y")
