"""Sums over tenants and summaries by week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Demand
from gpuplanner.usage.requested_demand import pool_demand, weekly_demand

SATURDAY = datetime(2026, 1, 31, tzinfo=UTC)


def make_demand(series, slot=timedelta(hours=12)):
    """Series of values from Saturday on, by tenant/profile."""
    return pl.concat(
        pl.DataFrame(
            {
                "unique_id": uid,
                "ds": [SATURDAY + slot * number for number in range(len(values))],
                "y": values,
                "tenant": uid.split("/")[0],
                "profile": uid.split("/")[1],
            }
        )
        for uid, values in series.items()
    )


def test_pool_adds_tenants_slot_by_slot():
    demand = make_demand({"a/gpu": [1.0, 2.0], "b/gpu": [0.5, 0.0], "b/1g.10gb": [3.0, 4.0]})
    total = check_table(pool_demand(demand), Demand, source="pool")
    assert total.select("unique_id", "y").rows() == [
        ("all/1g.10gb", 3.0),
        ("all/1g.10gb", 4.0),
        ("all/gpu", 1.5),
        ("all/gpu", 2.0),
    ]
    assert set(total["tenant"]) == {"all"}
    assert pool_demand(demand.reverse()).equals(total)


def test_weeks_begin_on_monday_and_show_how_much_of_them_was_seen():
    demand = make_demand({"a/gpu": [1.0, 2.0, 3.0, 4.0, 10.0, 20.0], "b/gpu": [0.0, 0.0, 0.0, 0.0, 0.0, 2.0]})
    weeks = weekly_demand(demand, quantile=0.5)
    assert weeks.rows(named=True) == [
        {"week": SATURDAY - timedelta(days=5), "profile": "gpu", "slots": 4, "mean": 2.5, "peak": 4.0, "quantile": 2.0},
        {
            "week": SATURDAY + timedelta(days=2),
            "profile": "gpu",
            "slots": 2,
            "mean": 16.0,
            "peak": 22.0,
            "quantile": 10.0,
        },
    ]
