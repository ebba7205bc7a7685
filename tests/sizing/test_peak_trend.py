"""Where memory is heading: planted growth is found and dated, noise, warm-up, waves and steps are not growth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.sizing.memory_trend import peak_trends

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
HOURS, EVERY_S = 12.0, 72
TIMES = np.linspace(0, HOURS, int(HOURS * 3600 / EVERY_S))


def noisy(rng: np.random.Generator, base: float) -> np.ndarray:
    """An allocator's slow noise, quick noise, and the spikes of an evaluation every half hour or so."""
    slow = np.zeros(len(TIMES))
    for at in range(1, len(TIMES)):
        slow[at] = 0.95 * slow[at - 1] + rng.normal(0, 0.003 * base)
    spikes = np.where(np.arange(len(TIMES)) % rng.integers(15, 40) == 0, 0.1 * base, 0.0)
    return base + slow + rng.normal(0, 0.003 * base, len(TIMES)) + spikes


def planted(kind: str, seed: int) -> tuple[np.ndarray, float, float]:
    """Memory of a run, its level at the end without noise, and how fast it grows."""
    rng = np.random.default_rng([seed, 7])
    base, rate = rng.uniform(4, 30), 0.0
    gib = noisy(rng, base)
    if kind == "growth":
        rate = base * rng.uniform(0.02, 0.08)
        gib = gib + rate * TIMES
    elif kind == "warm-up":
        gib = gib * np.clip(TIMES / rng.uniform(0.05, 4.0), 0.1, 1)
    elif kind == "step":
        gib = gib + np.where(HOURS * rng.uniform(0.55, 0.9) < TIMES, 0.3 * base, 0)
    elif kind == "wave":
        gib = gib + 0.05 * base * np.sin(2 * np.pi * TIMES / rng.uniform(0.5, 6) + rng.uniform(0, 6))
    return gib, base * 1.1 + rate * HOURS, rate


def sampled(gib: np.ndarray, *, job: str = "1", gpu: int = 0, evidence: str = "stated by the source") -> pl.DataFrame:
    times = [BEGIN + timedelta(hours=float(at)) for at in TIMES[: len(gib)]]
    return pl.DataFrame(
        {
            "time": times, "node": "n", "gpu": gpu, "job_id": job, "job_evidence": evidence, "activity_source": "none",
            "memory_used_gib": gib,
        }, schema_overrides={"gpu": pl.Int32},
    )  # fmt: skip


def history(room: float, profile: str = "1g.20gb", **more: object) -> pl.DataFrame:
    row = {
        "job_id": "1", "tenant": "a", "board": "H100-80GB-SXM5", "profile": profile, "instances": 1.0, "run_s": None,
        "memory_asked_gib": room, "start_time": BEGIN, "time_limit_s": 48 * 3600.0, "share_asked": 0.25,
    }  # fmt: skip
    return pl.DataFrame([row | more], schema_overrides={"run_s": pl.Float64, "time_limit_s": pl.Float64})


def told(gib: np.ndarray, room: float, **more: object) -> dict[str, object]:
    return peak_trends(history(room, **more), sampled(gib), BEGIN + timedelta(hours=HOURS)).row(0, named=True)


@pytest.mark.parametrize("kind", ["flat", "warm-up", "step", "wave"])
def test_what_does_not_grow_is_not_moved(kind):
    """Of 60 runs at most three are told to move for nothing."""
    moved = 0
    for seed in range(60):
        gib, level, _ = planted(kind, seed)
        moved += told(gib, level * 1.6)["next_profile"] is not None
    assert moved <= 3


def test_planted_growth_is_found_and_dated():
    """Of 60 runs nearly all are found, and the slice is full no earlier than the earliest time that is told."""
    found = dated = near = 0
    for seed in range(60):
        gib, level, rate = planted("growth", seed)
        room = level + rate * 10  # full ten hours after what is known
        row = told(gib, room)
        if row["trend"] != "grows":
            continue
        found += 1
        dated += row["full_in_h_low"] <= 10.5
        near += 7 <= row["full_in_h"] <= 13
    assert found >= 54
    assert dated >= 0.9 * found
    assert near >= 0.9 * found


def test_what_a_move_costs_and_where_to():
    """12 h on a quarter of a board repeat 3 GPU-h; checkpoints every 2 h repeat half of one; the limit ends others."""
    gib = 5.0 + 0.5 * TIMES
    row = told(gib, 14.0)
    assert (row["trend"], row["next_profile"]) == ("grows", "3g.40gb")  # 11 GiB, and 36 h at half a GiB an hour
    assert row["restart_gpu_hours"] == pytest.approx(3.0)
    assert row["full_in_h"] == pytest.approx(6.0, abs=0.1)
    assert row["lost_gpu_hours"] == pytest.approx(3.0 + 0.25 * 6.0, abs=0.03)
    now = BEGIN + timedelta(hours=HOURS)
    kept = peak_trends(history(14.0), sampled(gib), now, checkpoint_h=2.0).row(0, named=True)
    assert kept["restart_gpu_hours"] == kept["lost_gpu_hours"] == pytest.approx(0.5)
    short = told(gib, 14.0, time_limit_s=15 * 3600.0)
    assert (short["next_profile"], short["advice"]) == (None, "grows by 0.5 GiB an hour: its time limit ends it first")
    assert told(gib, 14.0, time_limit_s=None)["next_profile"] is not None


def test_the_fullest_device_counts_and_shared_ones_do_not():
    """A job is as large as on its fullest GPU; what several jobs held together is nobody's."""
    flat, grown = np.full(len(TIMES), 5.0), 5.0 + 0.5 * TIMES
    both = pl.concat([sampled(flat), sampled(grown, gpu=1)])
    now = BEGIN + timedelta(hours=HOURS)
    assert peak_trends(history(14.0), both, now)["trend"].to_list() == ["grows"]
    shared = pl.concat([sampled(flat), sampled(grown, gpu=1, evidence="together")])
    assert peak_trends(history(14.0), shared, now)["trend"].to_list() == ["plateau"]
    assert peak_trends(history(14.0), sampled(grown, job="2"), now).is_empty()


def test_little_is_said_of_little():
    """Half an hour, one sample, or samples at one instant: too short, whatever they look like."""
    for few in (1, 2, 25):
        assert told(5.0 + 3 * TIMES[:few], 14.0)["trend"] == "too short"
    once = sampled(np.full(30, 5.0)).with_columns(time=pl.lit(BEGIN).dt.cast_time_unit("us"))
    assert peak_trends(history(14.0), once, BEGIN + timedelta(hours=1))["trend"].to_list() == ["too short"]
