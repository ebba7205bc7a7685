"""Small frames for charts, with names that try to be code."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Demand, Forecast, LayoutPlan, Ledger, Samples

START = datetime(2026, 10, 1, tzinfo=UTC)
HOSTILE = ("<script>alert(1)</script>", "=1+1", 'a"b.c[d]\\e', "ß · 漢字")


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


@pytest.fixture
def ledger() -> pl.DataFrame:
    """Three days of four tenants and nobody; every hour adds up to 16 GPU-hours."""
    rows = [
        {"tenant": tenant, "hour": at(hour), "bucket": bucket, "gpu_hours": hours}
        for hour in range(72)
        for tenant, bucket, hours in [
            *itertools.product(HOSTILE, ("used", "allocated_idle"), (1.5,)),
            ("-", "unallocated", 3.0),
            ("-", "fragmented", 1.0),
        ]
    ]
    return conform(pl.DataFrame(rows), Ledger, source="ledger")


@pytest.fixture
def demand() -> pl.DataFrame:
    """Twenty days of two tenants and two profiles; profile 'gpu' is asked for twice as much."""
    rows = [
        {"unique_id": f"{tenant}/{profile}", "tenant": tenant, "profile": profile, "ds": at(h), "y": y + h % 24}
        for tenant in HOSTILE[:2]
        for profile, y in (("gpu", 20.0), ("1g.10gb", 2.0))
        for h in range(480)
    ]
    return conform(pl.DataFrame(rows), Demand, source="demand")


@pytest.fixture
def forecast() -> pl.DataFrame:
    """Two days ahead of ``demand``."""
    quantiles = {f"q{q:02d}": 10.0 + q / 10 for q in (5, 10, 25, 50, 75, 90, 95)}
    rows = [
        {"unique_id": f"{tenant}/{profile}", "ds": at(480 + h), "model": "m", "mean": 15.0, "cutoff": at(479)}
        | quantiles
        for tenant in HOSTILE[:2]
        for profile in ("gpu", "1g.10gb")
        for h in range(48)
    ]
    return conform(pl.DataFrame(rows), Forecast, source="forecast")


@pytest.fixture
def scores() -> pl.DataFrame:
    rows = [(uid, model, mase, 0.9) for uid in HOSTILE for model, mase in (("bad", 1.4), ("good", 0.7))]
    return pl.DataFrame(rows, schema=["unique_id", "model", "mase", "coverage_90"], orient="row")


@pytest.fixture
def layout_plan() -> pl.DataFrame:
    """Two nodes with two GPUs each; one GPU is cut anew at noon."""
    rows = [
        {"node": node, "gpu": gpu, "slot_start": at(0), "slot_end": at(24), "layout": "gpu", "changed": False}
        for node in ("n1", HOSTILE[0])
        for gpu in (0, 1)
    ]
    rows[1] |= {"slot_end": at(12)}
    rows.insert(2, rows[1] | {"slot_start": at(12), "slot_end": at(24), "layout": "1g.10gb:7", "changed": True})
    return conform(pl.DataFrame(rows), LayoutPlan, source="layout_plan")


@pytest.fixture
def counts() -> pl.DataFrame:
    """A day of hourly slots for four GPUs; one of them is cut from noon to 18:00."""
    rows = []
    for hour in range(24):
        cut = int(12 <= hour < 18)
        rows += [(at(hour), "gpu", 4 - cut), (at(hour), "1g.10gb:7", cut)]
    return pl.DataFrame(rows, schema=["slot_start", "layout", "gpus"], orient="row")


@pytest.fixture
def placements() -> pl.DataFrame:
    rows = [("3g.40gb:1,1g.10gb:1", "3g.40gb", 0, 4), ("3g.40gb:1,1g.10gb:1", "1g.10gb", 4, 1)]
    return pl.DataFrame(rows, schema=["layout", "profile", "start", "size"], orient="row")


@pytest.fixture
def bounds() -> pl.DataFrame:
    """Three plans that were found and one that was not."""
    costs = {"static": 9618.7, HOSTILE[0]: 8031.4, "auto": 6985.9, "dp": None}
    rows = [(name, cost, 6973.3, cost and 1 - 6973.3 / cost) for name, cost in costs.items()]
    return pl.DataFrame(rows, schema=["method", "objective", "bound", "gap"], orient="row")


@pytest.fixture
def policies() -> pl.DataFrame:
    rows = [
        (policy, metric, unit, mean, mean - 1, mean + 1)
        for metric, unit in (("queueing delay", "h"), ("energy", "kWh"))
        for policy, mean in (("static", 9.0), (HOSTILE[0], 7.0), ("dynamic", 4.0))
    ]
    return pl.DataFrame(rows, schema=["policy", "metric", "unit", "mean", "low", "high"], orient="row")


@pytest.fixture
def frontier() -> pl.DataFrame:
    """Today's fleet, a way with two settings, one beyond the end of the axis, and one of another comparison."""
    rows = [
        ("today", 9000.0, 0.0, "today"),
        (HOSTILE[0], 7000.0, 3.5, "tuned"),
        (HOSTILE[0], 6500.0, 33.0, "setting"),
        ("pools", 6990.0, 4.0, "tuned"),
        ("pools", 3000.0, 400.0, "setting"),
        ("pools", 8000.0, 2.0, "pinned"),
    ]
    return pl.DataFrame(rows, schema=["policy", "gpu_hours", "added_wait_p95_minutes", "kind"], orient="row")


@pytest.fixture
def wait_curve() -> pl.DataFrame:
    """Two job sizes on three numbers of GPUs, on today's layout and on the recommended one."""
    rows = [
        (layout, gpus, size, wait * factor, wait * factor / 2, wait * factor * 3)
        for layout, factor in (("today", 1.0), ("recommended", 0.2))
        for gpus, wait in ((8, 900.0), (16, 60.0), (32, 0.0))
        for size in ("1 GPU", "<8> GPUs")
    ]
    columns = ("layout", "gpus", "job_size", "p95_minutes", "low", "high")
    return pl.DataFrame(rows, schema=list(columns), orient="row")


@pytest.fixture
def use() -> pl.DataFrame:
    """Two days of which one was measured."""
    days = [at(24 * day).date() for day in range(2)]
    return pl.DataFrame(
        {"day": days, "requested_gpus": [30.0, 20.0], "allocated_gpus": [14.0, 16.0], "active_gpus": [7.0, None]}
    )


@pytest.fixture
def peaks() -> pl.DataFrame:
    rows = [(at(24 * day).date(), float(gpus)) for day, gpus in enumerate((3, 14, 0))]
    return pl.DataFrame(rows, schema=["day", "gpus"], orient="row")


@pytest.fixture
def waterfall() -> pl.DataFrame:
    steps = {"step": ["fewer nodes", "off at night", "all"], "amount": [300.0, 150.0, 450.0]}
    return pl.DataFrame(steps | {"low": [None, None, 380.0], "high": [None, None, 520.0]})


@pytest.fixture
def costs() -> pl.DataFrame:
    return pl.DataFrame({"tenant": list(HOSTILE), "cost": [10.0, 40.0, 30.0, 20.0]})


@pytest.fixture
def samples() -> pl.DataFrame:
    """Two GPUs for 50 minutes, one sample a second; activity is 0.25 and 0.75, with one spike to 1."""
    rows = pl.DataFrame({"second": range(3000)}).join(pl.DataFrame({"gpu": [0, 1]}), how="cross")
    spike = pl.col("second") == 1000
    frame = rows.select(
        "gpu",
        time=pl.lit(START) + pl.duration(seconds=pl.col("second")),
        node=pl.lit("n1"),
        sm_activity=pl.when(spike).then(1.0).otherwise(0.25 + 0.5 * pl.col("gpu")),
        memory_used_gib=pl.lit(40.0),
        activity_source=pl.lit("profiling"),
    )
    return conform(frame, Samples, source="samples")


@pytest.fixture
def phases() -> pl.DataFrame:
    rows = [(at(0), at(0.2), HOSTILE[0]), (at(0.2), at(0.8), "training"), (at(0.8), at(0.83), "last")]
    return pl.DataFrame(rows, schema=["start", "end", "label"], orient="row")


@pytest.fixture
def findings() -> pl.DataFrame:
    """Three faults; the gravest moves two figures."""
    rows = [
        (HOSTILE[0], "error", 3, "left out of every figure", "line 7", "GPU-hours"),
        (HOSTILE[0], "error", 3, "left out of every figure", "line 7", "demand"),
        ("no GPU", "warning", 1200, "demand leaves them out", "job 1", "demand"),
        ("blank lines", "info", 1, "none: not counted as rows", "", "none"),
    ]
    columns = ["check", "severity", "rows", "effect", "example", "figure"]
    return pl.DataFrame(rows, schema=columns, orient="row")


@pytest.fixture
def coverage() -> pl.DataFrame:
    """Two nodes for four days: one seen whole, one half, barely, not at all, and not expected."""
    seen = {HOSTILE[0]: [24.0, 24.0, 24.0, 24.0], "n2": [12.0, 0.1, 0.0, None]}
    rows = [
        (node, at(24 * day).date(), hours, 24.0)
        for node, days in seen.items()
        for day, hours in enumerate(days)
        if hours is not None
    ]
    return pl.DataFrame(rows, schema=["node", "day", "observed_gpu_h", "expected_gpu_h"], orient="row")


@pytest.fixture
def intake() -> pl.DataFrame:
    """Jobs on three days but one, one reason with a date and one without."""
    first, second, third = (at(24 * day).date() for day in range(3))
    rows = [
        *(("jobs submitted", day, count) for day, count in ((first, 40), (second, 0), (third, 10))),
        ("rejected: end before start", second, 4),
        (f"rejected: {HOSTILE[0]}", None, 2),
    ]
    return pl.DataFrame(rows, schema=["what", "day", "rows"], orient="row")


@pytest.fixture
def held() -> pl.DataFrame:
    """GPU-hours of two tenants by what was seen of them."""
    parts = {"used": [6.0, 1.0], "idle_with_process": [2.0, 0.0], "idle_without_process": [1.0, 0.0]}
    return pl.DataFrame({"tenant": HOSTILE[:2]} | parts | {"idle_unclear": 0.0, "no_telemetry": [1.0, 9.0]})


@pytest.fixture
def ended() -> pl.DataFrame:
    rows = [("a", "COMPLETED", False, 6.0), ("b", "COMPLETED", False, 3.0), ("a", "FAILED", True, 1.0)]
    return pl.DataFrame(rows, schema=["tenant", "state", "lost", "gpu_hours"], orient="row")


@pytest.fixture
def memory_stack() -> pl.DataFrame:
    """Two plans of three components."""
    parts = (("states", 12.0), ("activations", 20.0), ("logits", 4.0))
    rows = [(plan, part, gib, 36.0, 44.0, 79.0) for plan in ("1: 8 x A", "2: 4 x B") for part, gib in parts]
    names = ["plan", "component", "gib", "predicted_gib", "upper_gib", "gpu_gib"]
    return pl.DataFrame(rows, schema=names, orient="row")


@pytest.fixture
def fan() -> pl.DataFrame:
    """A day of GPUs: what runs ends, what is to come grows."""
    rows = [
        {"ds": at(hour), "still_running": 24.0 - hour, "to_come": float(hour), "q05": 12.0, "q50": 23.0, "q95": 40.0}
        for hour in range(24)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def cost_curve() -> pl.DataFrame:
    """Cheapest at 80 %."""
    rows = [
        {"quantile": level, "planned": 100 * level, "short": 2.0, "cost": 9 + abs(level - 0.8)}
        for level in (0.5, 0.8, 0.9)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def replicas() -> pl.DataFrame:
    """A day of a service that needs one more replica by day."""
    needed = [1 + (8 <= hour < 18) for hour in range(24)]
    return pl.DataFrame(
        {"time": [at(hour) for hour in range(24)], "planned": [max(n, 1) for n in needed], "needed": needed}
    )
