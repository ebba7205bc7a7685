"""Cost of services: to the cent, by model and team, idle by reason."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.cost.service_costs import ServiceUse, charge_services, tabulate_token_costs
from gpuplanner.cost.showback import Rate, showback
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.planner.replica_schedule import REPLICA_HOUR_REASONS

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def priced(value: float) -> GpuHourPrice:
    return GpuHourPrice(value, value, value, "USD", "own rate", "as given")


def use(service: str, hours: list[float], tokens: list[tuple[str, int, int]], per: float = 1.0) -> ServiceUse:
    teams = pl.DataFrame(
        [(team, 1, prompt, answer) for team, prompt, answer in tokens],
        schema=["team", "requests", "prompt_tokens", "generated_tokens"],
        orient="row",
    )
    return ServiceUse(
        service, f"{service}-8b", per, 1e-4, pl.DataFrame([hours], list(REPLICA_HOUR_REASONS), orient="row"), teams
    )


uses = st.lists(
    st.tuples(
        st.lists(st.integers(0, 500_000).map(lambda number: number / 1000), min_size=6, max_size=6),
        st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**8)), min_size=1, max_size=4),
        st.sampled_from([1.0, 8.0, 1 / 7]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=100, deadline=None)
@given(uses, st.integers(1, 5000).map(lambda cents: cents / 100))
def test_models_and_teams_sum_to_the_ledger_to_the_cent(rows, price):
    services = [
        use(f"s{number}", hours, [(f"t{place}", *pair) for place, pair in enumerate(tokens)], per)
        for number, (hours, tokens, per) in enumerate(rows)
    ]
    lines = charge_services(services, priced(price))
    table = tabulate_token_costs(lines, services)
    # The ledger knows nothing of tokens: GPU-hours by team, charged by the showback of the fleet.
    ledger = lines.group_by(tenant="team", bucket=pl.col("reason")).agg(pl.col("gpu_hours").sum())
    ledger = ledger.with_columns(gpu_model=pl.lit("X"), ownership=pl.lit("owned"))
    total = float(np.sum([hours * each.gpus_per_replica for each in services for hours in each.replica_hours.row(0)]))
    assert float(ledger["gpu_hours"].sum()) == pytest.approx(total, rel=1e-9, abs=1e-9)
    charged = showback(ledger, {("X", "owned"): Rate(priced(price))}, start=DAY, end=DAY)["EffectiveCost"].sum()
    assert table["cost"].sum() == lines["cost"].sum()
    assert abs(lines["cost"].sum() - charged) <= Decimal("0.01")  # each rounds its sum of GPU-hours once


def test_a_bill_counted_by_hand():
    # 10 h of computing, of which 1e6 prompt tokens take 100 s each team; the rest goes by answer tokens, 3 to 1.
    service = use("chat", [10.0, 1.0, 2.0, 0.0, 0.0, 3.0], [("a", 1_000_000, 300_000), ("b", 1_000_000, 100_000)])
    lines = charge_services([service], priced(2.0))
    table = tabulate_token_costs(lines, [service])
    prompt_h = 100 / 3600
    share = (prompt_h + 0.75 * (10 - 2 * prompt_h)) / 10
    cost = dict(table.select("team", pl.col("cost").cast(pl.Float64)).iter_rows())
    assert cost["a"] == pytest.approx(32 * share, abs=0.01)
    assert cost["a"] + cost["b"] == pytest.approx(32.0)
    row = table.row(0, named=True)
    assert float(row["idle_cost"]) == pytest.approx(12 * share, abs=0.01)
    assert row["per_million_tokens"] == pytest.approx(cost["a"] / 1.3)
    parts = row["per_million_prompt_tokens"] * 1.0 + row["per_million_answer_tokens"] * 0.3
    assert parts == pytest.approx(cost["a"], rel=1e-6)
    idle = dict(lines.group_by("reason").agg(pl.col("cost").sum().cast(pl.Float64)).iter_rows())
    assert idle == pytest.approx(
        {"serving": 20, "start-up": 2, "no requests": 4, "floor": 0, "schedule": 0, "rounding": 6}
    )
