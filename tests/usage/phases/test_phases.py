"""Phases and dips of seeded jobs whose truth is known, and of measured runs whose phases were logged."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.usage.job_phases import binary_segmentation, choose_grid_step, find_phases
from gpuplanner.usage.utilization_dips import DIP_CAUSE_LABELS, find_dips

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def make_samples(activity, memory_gib=None, power_w=None, step=MINUTE):
    n = len(activity)
    return pl.DataFrame(
        {
            "time": [NINE + step * number for number in range(n)],
            "node": ["n1"] * n,
            "gpu": [0] * n,
            "sm_activity": activity,
            "memory_used_gib": memory_gib,
            "power_w": power_w,
            "activity_source": ["profiling"] * n,
        },
        schema_overrides={
            "sm_activity": pl.Float64,
            "memory_used_gib": pl.Float64,
            "power_w": pl.Float64,
            "time": pl.Datetime("us", "UTC"),
        },
    )


def make_job(seed):
    """A job of 3 to 7 phases of 20 to 120 minutes, with checkpoints of two minutes and noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(20, 120, rng.integers(3, 8))
    levels = [rng.uniform(0.05, 0.9)]
    for _ in lengths[1:]:
        far = [level for level in rng.uniform(0.05, 0.9, 20) if abs(level - levels[-1]) > 0.15]
        levels.append(far[0])
    activity = np.repeat(levels, lengths)
    memory = np.repeat(rng.uniform(10, 70, len(lengths)), lengths) + rng.normal(0, 0.3, lengths.sum())
    power = 100 + 500 * activity + rng.normal(0, 8, lengths.sum())
    noisy = np.clip(activity + rng.normal(0, 0.03, lengths.sum()), 0, 1)
    for minute in range(45, lengths.sum() - 5, 45):
        noisy[minute : minute + 2] *= 0.1
    return np.cumsum(lengths)[:-1], make_samples(noisy, memory, power)


def test_phases_cover_the_job_without_gap():
    _, samples = make_job(3)
    phases = find_phases(samples)
    assert phases["phase"].to_list() == list(range(1, phases.height + 1))
    assert phases["start"][0] == NINE
    assert phases["end"][-1] == NINE + samples.height * MINUTE
    assert phases["start"][1:].to_list() == phases["end"][:-1].to_list()
    assert (phases["end"] - phases["start"]).min() >= timedelta(minutes=10)


def test_noise_alone_is_one_phase():
    rng = np.random.default_rng(1)
    for _ in range(20):
        samples = make_samples(np.clip(rng.normal(0.6, 0.05, 600), 0, 1), rng.normal(40, 0.2, 600))
        assert find_phases(samples).height == 1


def test_gaps_and_several_devices_are_averaged():
    samples = make_samples([0.2] * 30 + [0.8] * 30)
    other = samples.with_columns(gpu=pl.lit(1, pl.Int64), sm_activity=pl.col("sm_activity") + 0.1)
    holes = pl.concat([samples, other]).filter(pl.col("time").dt.minute() % 7 != 3)
    phases = find_phases(holes)
    assert phases["sm_activity"].to_list() == pytest.approx([0.25, 0.85], abs=0.02)


def test_labels_tell_ramp_reduction_and_decay_apart():
    activity = [0.0] * 12 + [0.4] * 40 + [0.8] * 90 + [0.5] * 40 + [0.8] * 60 + [0.6] * 50
    phases = find_phases(make_samples(activity))
    assert phases["label"].to_list() == ["setup", "ramp", "steady", "reduced", "steady", "decay"]


def test_more_memory_at_full_activity_is_a_long_context_stage():
    phases = find_phases(make_samples([0.0] * 12 + [0.8] * 200, [5.0] * 12 + [40.0] * 120 + [55.0] * 80))
    assert phases["label"].to_list() == ["setup", "steady", "long-context"]


@pytest.mark.parametrize(("every_s", "hours", "step_s"), [(1, 0.1, 1), (10, 3, 30), (60, 20, 60), (300, 40, 300)])
def test_the_step_follows_the_sampling(every_s, hours, step_s):
    n = int(hours * 3600 / every_s)
    samples = make_samples([0.1] * (n // 2) + [0.9] * (n - n // 2), step=timedelta(seconds=every_s))
    assert choose_grid_step(samples.with_columns(instance=None)) == timedelta(seconds=step_s)
    edge = find_phases(samples)["start"][1]
    assert abs(edge - (NINE + timedelta(seconds=n // 2 * every_s))) <= timedelta(seconds=step_s)


def test_binary_segmentation_agrees_with_pelt_on_clear_levels():
    """The same changes, within a row, on jobs whose levels lie many sigma apart."""
    import ruptures

    rng = np.random.default_rng(8)
    for _ in range(10):
        lengths = rng.integers(30, 200, 5)
        levels = np.cumsum(rng.choice([-1, 1], (5, 2)) * rng.uniform(6, 12, (5, 2)), axis=0)
        signal = np.repeat(levels, lengths, axis=0) + rng.normal(0, 1, (lengths.sum(), 2))
        penalty = 4 * np.log(len(signal))
        exact = ruptures.KernelCPD(kernel="linear", min_size=10).fit(signal).predict(pen=penalty)
        found = binary_segmentation(signal, 10, penalty)
        assert len(found) == len(exact)
        assert np.abs(np.array(found) - exact).max() <= 1


def test_very_long_jobs_do_not_wait_for_pelt(monkeypatch):
    activity = np.repeat([0.1, 0.8, 0.4], 60_000)
    samples = make_samples(np.clip(activity + np.random.default_rng(2).normal(0, 0.02, 180_000), 0, 1))
    monkeypatch.setitem(sys.modules, "ruptures", None)  # any use of it would fail
    assert find_phases(samples)["start"].to_list() == [NINE + k * MINUTE for k in (0, 60_000, 120_000)]


def make_dips(every, last, seed=1, memory_factor=1.0):
    rng = np.random.default_rng(seed)
    activity = np.clip(rng.normal(0.8, 0.03, 600), 0, 1)
    memory = rng.normal(40, 0.2, 600)
    starts = list(range(every, 560, every))
    for start in starts:
        activity[start : start + last] *= 0.2
        memory[start : start + last] *= memory_factor
    return starts, make_samples(activity, memory)


@pytest.mark.parametrize(("every", "last"), [(40, 1), (60, 2), (75, 6)])
def test_checkpoints_are_found_with_their_period(every, last):
    starts, samples = make_dips(every, last)
    spikes = find_dips(samples)
    assert spikes.table["start"].to_list() == [NINE + start * MINUTE for start in starts]
    assert spikes.table["end"].to_list() == [NINE + (start + last) * MINUTE for start in starts]
    assert spikes.table["depth"].to_list() == pytest.approx([0.64] * len(starts), abs=0.1)
    assert spikes.period == every * MINUTE
    assert spikes.rule == "gaps"
    assert set(spikes.table["label"]) == {"checkpoint" if last > 1 else "data-epoch edge"}
    assert set(spikes.table["label"]) <= set(DIP_CAUSE_LABELS)


def test_dips_with_a_change_of_memory_look_like_evaluations():
    _, samples = make_dips(80, 5, memory_factor=0.75)
    assert set(find_dips(samples).table["label"]) == {"evaluation"}


def test_irregular_dips_have_no_period():
    activity = np.full(600, 0.8)
    for start in (30, 57, 150, 171, 300, 334, 520):
        activity[start : start + 2] = 0.1
    spikes = find_dips(make_samples(activity))
    assert spikes.table.height == 7
    assert spikes.period is None
