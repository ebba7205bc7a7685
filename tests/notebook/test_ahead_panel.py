"""The controls of what is ahead, in plain Python: set a value, look at the calendar and the decision."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

import gpuplanner as gp


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
    panel.controls["price"].value = 20.0
    asked = panel.question
    assert (asked.price, asked.horizon) == (20.0, 48)
    second = panel.ask().result(timeout=300)
    assert second != first
    assert "A GPU-hour short costs 20 planned ones" in unescape(second)
    assert panel.status.value == "Done."
    assert re.search(r"gpuplanner-answer", panel.answer.value)
