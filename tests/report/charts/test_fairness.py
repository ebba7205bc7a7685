"""Charts of shares, entitlements and borrowing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.report import chart_theme as prepare

SHARES = pl.DataFrame({"tenant": ["a", "a", "b", "b"], "slot_s": [0.0, 3600.0] * 2, "gpus": [4.0, 2.0, 1.0, 0.0]})
ACCOUNTS = pl.DataFrame(
    {
        "tenant": ["a", "<i>b</i>"],
        "allocated_gpu_hours": [9.0, 3.0],
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
    "shares": (plots.plot_tenant_shares, SHARES),
    "accounts": (plots.plot_entitlements, ACCOUNTS),
    "borrowed": (plots.plot_borrowing, BORROWED),
}


def values(chart):
    """Rows of all data sets of a chart."""
    return [row for rows in plots.chart_spec(chart)["datasets"].values() for row in rows]


def test_long_runs_are_averaged_until_they_fit_and_keep_their_gpu_time():
    slots = 9_000
    frame = pl.DataFrame(
        {
            "tenant": np.repeat(["a", "b"], slots),
            "slot_s": np.tile(np.arange(slots) * 60.0, 2),
            "gpus": np.tile([1.0, 3.0], slots),
        }
    )
    rows = values(plots.plot_tenant_shares(frame))
    assert len(rows) <= prepare.MAX_CHART_ROWS
    assert np.mean([row["gpus"] for row in rows]) == pytest.approx(2.0, abs=0.01)


def test_small_tenants_are_added_up():
    frame = pl.DataFrame({"tenant": list("abcd"), "slot_s": 0.0, "gpus": [4.0, 3.0, 2.0, 1.0]})
    rows = {row["tenant"]: row["gpus"] for row in values(plots.plot_tenant_shares(frame, top=2))}
    assert rows == {"a": 4.0, "b": 3.0, "2 others": 3.0}


def test_parts_of_a_bar_are_allocated_hours_and_shortfall():
    rows = {(row["tenant"], row["part"]): row["gpu_hours"] for row in values(plots.plot_entitlements(ACCOUNTS))}
    assert rows["a", "within quota or fair share"] == 5.0
    assert rows["a", "borrowed"] == 4.0
    assert rows["<i>b</i>", "shortfall"] == 5.0
    order = plots.chart_spec(plots.plot_entitlements(ACCOUNTS))["encoding"]["y"]["sort"]
    assert order == ["<i>b</i>", "a"]  # the largest shortfall stands first


def test_the_matrix_keeps_the_total_and_names_no_team():
    rows = values(plots.plot_borrowing(BORROWED))
    assert sum(row["gpu_hours"] for row in rows) == BORROWED["gpu_hours"].sum()
    assert {row["borrower"] for row in rows} == {"(idle GPUs)", "a", "c"}
    assert {row["lender"] for row in rows} == {"(no team)", "<i>b</i>"}
