"""Energy and carbon by state: against hand-counted boards, and bounds that hold the value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.cost.energy_and_carbon import Facility, RangedAmount, footprint, state_watts, sum_amount, sum_by_state
from gpuplanner.hardware.power_carbon_and_prices import make_power_model

H100 = "H100-80GB-SXM5"
NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
BUSY = state_watts(H100, 0.5)["busy"]
PLAIN = Facility(RangedAmount(1, 1, 1), RangedAmount(1, 1, 1))


def ledger(rows: list[tuple[str, str, float]], hours: int = 1) -> pl.DataFrame:
    table = pl.DataFrame(rows, schema=["tenant", "bucket", "gpu_hours"], orient="row")
    times = pl.DataFrame({"hour": [NOON + timedelta(hours=hour) for hour in range(hours)]})
    return table.with_columns(gpu_model=pl.lit("X")).join(times, how="cross")


def grid(grams: list[float], market: float = 0.0, pue: float | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "hour": [NOON + timedelta(hours=hour) for hour in range(len(grams))],
            "location_g": grams,
            "market_g": market,
            "pue": pue,
        },
        schema_overrides={"pue": pl.Float64},
    )


def told(booked: pl.DataFrame, **given: object) -> pl.DataFrame:
    how = {"activity": {"a": 0.5}, "facility": PLAIN, "grid": grid([100.0])} | given
    return footprint(booked, {"X": H100}, **how)


def test_idle_is_not_charged_like_busy():
    law = make_power_model(H100)
    rows = told(
        ledger([("a", "used", 10.0), ("a", "allocated_idle", 10.0), ("-", "unallocated", 10.0), ("-", "down", 10.0)])
    )
    kwh = dict(rows.select("bucket", "energy_kwh").iter_rows())
    assert kwh["used"] == pytest.approx(law.busy_w(0.5) / 100)
    assert kwh["allocated_idle"] == kwh["unallocated"] == pytest.approx(law.idle_w / 100)
    assert kwh["down"] == 0.0
    states = dict(sum_by_state(rows).select("state", "gpu_hours").iter_rows())
    assert states == {"off": 10.0, "idle": 20.0, "busy": 10.0}


@given(
    st.lists(
        st.tuples(st.sampled_from("ab-"), st.sampled_from(GPU_TIME_BUCKETS), st.floats(0, 1e4)), min_size=1, max_size=9
    )
)
def test_ranges_hold_the_value_and_states_sum_to_the_rows(rows):
    found = told(ledger(rows), facility=Facility.from_catalog())
    for name in ("energy_kwh", "location_kg", "market_kg", "embodied_kg"):
        whole = sum_amount(sum_by_state(found), name)
        assert whole.low <= whole.value <= whole.high
        assert whole.value == pytest.approx(float(found[name].sum()), abs=1e-6)


def test_carbon_by_hour_is_not_that_of_the_mean():
    """All work in the dirty hour: the mean of the two hours would say half of it."""
    busy = ledger([("a", "used", 1.0)])
    booked = pl.concat([busy, ledger([("-", "down", 1.0)]).with_columns(pl.col("hour") + timedelta(hours=1))])
    rows = told(booked, grid=grid([400.0, 0.0], market=10.0))
    kwh, kg = float(rows["energy_kwh"].sum()), float(rows["location_kg"].sum())
    assert kg == pytest.approx(0.4 * kwh)
    assert float(rows["market_kg"].sum()) == pytest.approx(0.01 * kwh)


@pytest.mark.parametrize(
    ("seen_h", "kwh", "high"),
    [
        pytest.param(10.0, 3.21, 3.21, id="all: what was counted, without a range"),
        pytest.param(4.0, 3.21, 4 * 0.321 + 6 * BUSY.high / 1000, id="a part: the rest is like it"),
        pytest.param(
            0.5,
            (0.5 * 321 + 9.5 * BUSY.value) / 1000,
            (0.5 * 321 + 9.5 * BUSY.high) / 1000,
            id="too little to say more",
        ),
        pytest.param(12.0, 3.21, 3.21, id="more than is booked"),
    ],
)
def test_hours_that_were_measured_are_those_of_the_counter(seen_h: float, kwh: float, high: float):
    """Ten hours of work are booked; the board drew 321 W while it was looked at, less than the law says."""
    row = {"tenant": ["a"], "gpu_model": ["X"], "state": ["busy"], "watts": [321.0], "gpu_hours": [seen_h]}
    measured = pl.DataFrame(row).with_columns(energy_kwh=pl.col("watts") * pl.col("gpu_hours") / 1000)
    rows = told(ledger([("a", "used", 10.0), ("-", "unallocated", 10.0)]), measured=measured)
    found = dict(rows.select("bucket", "energy_kwh").iter_rows())
    assert found == {"used": pytest.approx(kwh), "unallocated": pytest.approx(0.7)}
    assert rows["energy_kwh_high"][0] == pytest.approx(high)
    states = sum_by_state(rows, measured)
    assert states["counted_kwh"].drop_nulls().to_list() == [pytest.approx(0.321 * min(seen_h, 10.0))]


def test_making_a_board_is_spread_over_its_life():
    """One H100 over five years of 8,766 hours: all of its 164 kg, used or not."""
    assert sum_amount(
        sum_by_state(told(ledger([("-", "unallocated", 43_830.0)]))), "embodied_kg"
    ).value == pytest.approx(164)
