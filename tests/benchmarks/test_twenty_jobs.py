"""Twenty jobs on eight H100: conservation of work, list scheduling by hand, and layouts that the GPU can hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
import twenty_jobs as case

from gpuplanner.hardware.mig_layouts import prove

SEEDS = range(2)


@pytest.fixture(scope="module")
def rows():
    return case.serve_seeds(SEEDS)


def list_scheduling_min(jobs: pl.DataFrame, instances: dict[str, int]) -> float:
    """Each job in turn on the instance of its profile that is idle first."""
    idle_at = {profile: [0.0] * count for profile, count in instances.items()}
    for profile, run in jobs.select("requested_profile", "run_min").iter_rows():
        queue = idle_at[profile]
        queue[queue.index(min(queue))] += run
    return max(map(max, idle_at.values()))


def test_work_is_the_same_under_every_policy_and_as_drawn(rows):
    for seed in SEEDS:
        jobs = case.draw_jobs(seed)
        drawn = sum(
            run * busy * case.SLICES[needed]
            for run, busy, needed in jobs.select("run_min", "busy_share", "needed_profile").iter_rows()
        )
        mine = rows.filter(seed=seed)
        work = mine["utilization"] / 100 * mine["provisioned_slices"] * mine["completion_min"]
        assert work.to_list() == pytest.approx([drawn] * len(case.POLICIES), rel=1e-12)


def test_static_policies_equal_list_scheduling_by_hand(rows):
    for seed in SEEDS:
        jobs = case.draw_jobs(seed)
        by_policy = dict(rows.filter(seed=seed).select("policy", "completion_min").iter_rows())
        static = list_scheduling_min(jobs, {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16})
        assert by_policy[case.BEFORE] == pytest.approx(static, rel=1e-12)
        full = list_scheduling_min(jobs.with_columns(requested_profile=pl.lit("gpu")), {"gpu": 8})
        assert by_policy["full GPUs, one job each"] == pytest.approx(full, rel=1e-12)


def test_right_sized_jobs_need_seven_gpus_and_wait_at_most_for_the_reconfiguration():
    jobs = case.draw_jobs(0)
    needed = jobs["needed_profile"].to_list()
    gpus, profiles = case.arrange(needed, "planned")
    memory_slices = sum(case.GPU_MODEL.profile(name).memory_slices for name in needed)
    assert len(gpus) == -(-memory_slices // case.GPU_MODEL.memory_slices) == 7
    assert all(prove(case.GPU_MODEL, dict(instances)) for instances in gpus)
    assert sum(gpus, Counter()) == Counter(needed) == Counter(profiles)
    starts = case.start_times_min(gpus, profiles, jobs["run_min"].to_numpy())
    assert set(starts.tolist()) <= {0.0, case.RECONFIGURE_MIN}
    assert case.RECONFIGURE_MIN in starts


def test_right_sizing_never_requests_more_and_never_too_little_memory():
    for seed in range(20):
        jobs = case.draw_jobs(seed)
        for profile, requested, memory in zip(
            case.rightsized_profiles(jobs, seed), jobs["requested_profile"], jobs["memory_gib"], strict=True
        ):
            assert case.SIZE_ORDER[profile] <= case.SIZE_ORDER[requested]
            assert memory <= case.MEMORY_GIB[profile]


def test_the_closed_form_of_a_blind_design_equals_the_simulation():
    designs = case.draw_designs(12, seed=1)
    outcomes = case.design_outcomes(designs)
    profiles = np.array(case.BLIND_PROFILES)
    slices = np.array([case.SLICES[name] for name in profiles])
    fitting = np.flatnonzero(slices[designs.needed_profile].sum(axis=1) <= case.MOST_SLICES)
    gpus = case.arrange(["1g.10gb"], "static")[0]
    for row, found in zip(fitting, outcomes.iter_rows(named=True), strict=True):
        run_min = designs.run_min[row]
        starts = case.start_times_min(gpus, profiles[designs.requested_profile[row]].tolist(), run_min)
        before_min = (starts + run_min).max()
        work = (slices[designs.needed_profile[row]] * designs.busy_share[row] * run_min).sum()
        assert found["utilization_before"] == pytest.approx(100 * work / (56 * before_min), rel=1e-12)
        after_min = case.RECONFIGURE_MIN + run_min.max()
        assert found["time_ratio"] == pytest.approx(after_min / before_min, rel=1e-12)


def test_the_program_prints_its_tables_and_writes_them(tmp_path, capsys):
    case.main(["--seeds", "2", "--first-seed", "5", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Verdict: holds in part" in printed
    written = pl.read_csv(tmp_path / "twenty_jobs.csv")
    assert written["figure"].to_list()[:2] == ["completion before", "utilization before"]
    policies = pl.read_csv(tmp_path / "twenty_jobs_policies.csv")
    assert policies.height == len(case.POLICIES) * len(case.METRICS)
    steps = pl.read_csv(tmp_path / "twenty_jobs_steps.csv").filter(unit="%")
    gain = dict(steps.select("step", "mean").iter_rows())
    assert gain["both"] == pytest.approx(gain["right-sizing"] + gain["repartitioning"], rel=1e-4)
