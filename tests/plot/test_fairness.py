"""Charts of shares, entitlements and borrowing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import SchemaError
from gpuplanner.plot import prepare

SHARES = pl.DataFrame(
    {"tenant": ["a", "a", "b", "b"], "slot_s": [0.0, 3600.0] * 2, "gpus": [4.0, 2.0, 1.0, 0.0]}
)
ACCOUNTS = pl.DataFrame(
    {
        "tenant": ["a", "<i>b</i>"],
        "held_gpu_hours": [9.0, 3.0],
        "above_gpu_hours": [4.0, 0.0],
        "deficit_gpu_hours": [0.0, 5.0],
    }
)
BORROWED = pl.DataFrame(
    {
        "borrower": ["-", "a", "a", "c"],
        "lender": ["<i>b</i>", "-", "<i>b</i>", "<i>b</i>"],
        "gpu_hours": [1.0, 1.0, 3.0, 1.0],
    }
)
CASES = {
    "shares": (plot.plot_tenant_shares, SHARES),
    "accounts": (plot.plot_entitlements, ACCOUNTS),
    "borrowed": (plot.plot_borrowing, BORROWED),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def values(chart):
    """Rows of all data sets of a chart."""
    return [row for rows in plot.chart_spec(chart)["datasets"].values() for row in rows]


def test_charts_are_drawn_for_wide_and_narrow_pages(case):
    draw, frame = case
    text = json.dumps(plot.chart_spec(draw(frame)))
    assert '"tooltip": [' in text
    assert '"url"' not in text
    for width in (1000, 360):
        svg = plot.chart_to_svg(draw(frame), width=width)
        assert 0.75 * width < float(ET.fromstring(svg).attrib["width"]) <= 1.12 * width
        assert "<i>" not in svg


def test_nothing_is_said_to_be_nothing_and_missing_columns_are_named(case):
    draw, frame = case
    assert ".</text>" in plot.chart_to_svg(draw(frame.clear()))
    with pytest.raises(SchemaError, match="expected columns '"):
        draw(pl.DataFrame({"x": [1]}))


def test_long_runs_are_averaged_until_they_fit_and_keep_their_gpu_time():
    slots = 9_000
    frame = pl.DataFrame(
        {
            "tenant": np.repeat(["a", "b"], slots),
            "slot_s": np.tile(np.arange(slots) * 60.0, 2),
            "gpus": np.tile([1.0, 3.0], slots),
        }
    )
    rows = values(plot.plot_tenant_shares(frame))
    assert len(rows) <= prepare.MAX_ROWS
    assert np.mean([row["gpus"] for row in rows]) == pytest.approx(2.0, abs=0.01)


def test_small_tenants_are_added_up():
    frame = pl.DataFrame({"tenant": list("abcd"), "slot_s": 0.0, "gpus": [4.0, 3.0, 2.0, 1.0]})
    rows = {row["tenant"]: row["gpus"] for row in values(plot.plot_tenant_shares(frame, top=2))}
    assert rows == {"a": 4.0, "b": 3.0, "2 others": 3.0}


def test_parts_of_a_bar_are_what_was_held_and_what_is_missing():
    rows = {
        (row["tenant"], row["part"]): row["gpu_hours"] for row in values(plot.plot_entitlements(ACCOUNTS))
    }
    assert rows["a", "held, within entitlement"] == 5.0
    assert rows["a", "held, above entitlement"] == 4.0
    assert rows["<i>b</i>", "due, but not given"] == 5.0
    order = plot.chart_spec(plot.plot_entitlements(ACCOUNTS))["encoding"]["y"]["sort"]
    assert order == ["<i>b</i>", "a"]  # who lacks most stands first


def test_the_matrix_keeps_the_total_and_names_nobody():
    rows = values(plot.plot_borrowing(BORROWED))
    assert sum(row["gpu_hours"] for row in rows) == BORROWED["gpu_hours"].sum()
    assert {row["borrower"] for row in rows} == {"idle GPUs", "a", "c"}
    assert {row["lender"] for row in rows} == {"unclaimed", "<i>b</i>"}


def test_words_name_what_the_charts_show():
    assert plot.entitlements_text(ACCOUNTS).endswith("<i>b</i> lacks most, 5.0.")
    assert plot.entitlements_text(ACCOUNTS.head(1)) == "No tenant lacks GPU-hours that are due to it."
    assert plot.borrowing_text(BORROWED) == (
        "Tenants borrowed 4.0 GPU-hours that were due to others; most a from <i>b</i>, 3.0. "
        "1.0 more were due while GPUs were idle."
    )
    assert plot.borrowing_text(BORROWED[1:2]) == "No tenant held GPUs that were due to another."
