"""Settings are found that theory, or a count of one's own, says are the least."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar, Drain, Fleet, OnDemand, Release, Rules, simulate
from gpuplanner.study.equal_service.play import PolicySetting, measure_week, play
from gpuplanner.study.equal_service.policies.calendars import hourly_peaks
from gpuplanner.study.equal_service.policies.static_fleets import tune_static_mig, tune_static_whole
from gpuplanner.study.equal_service.target import ServiceTarget
from gpuplanner.study.equal_service.tuning import Arena
from gpuplanner.study.equal_service.weeks import Week, as_known, drawn_past, weeks
from gpuplanner.study.past.history import history

BOARD = "H100-80GB-SXM5"
SAMPLE = Scenario(month="2026-02", replications=3)


def made_week(jobs: pl.DataFrame, *, days: int = 7) -> Week:
    count = jobs.height
    asked = jobs.with_columns(
        job_id=pl.format("j{}", pl.int_range(count)), tenant=pl.lit("t"), sms_needed=pl.lit(None, pl.Float64),
        limit_s=pl.col("run_s"),
    )  # fmt: skip
    size = np.where(jobs["profile"].to_numpy() == "gpu", 1, 0)
    return Week(
        dict.fromkeys(("whole", "rightsized"), asked),
        dict.fromkeys(("whole", "rightsized"), np.arange(count)),
        jobs["submit_s"].to_numpy(), size, 86_400.0, days * 86_400.0,
    )  # fmt: skip


def poisson_jobs(rate_h: float, mean_h: float, days: int, seed: int, profile: str = "gpu") -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_h * 24 * days)
    submit = np.sort(rng.random(count)) * days * 86_400.0
    return pl.DataFrame({"submit_s": submit, "run_s": rng.exponential(3600.0 * mean_h, count)}).with_columns(
        gpus=pl.lit(1), profile=pl.lit(profile)
    )


def late_share(servers: int, load: float, mean_min: float, minutes: float) -> float:
    """P(wait > t) of M/M/c, by Erlang's C formula."""
    if servers <= load:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    waits = blocked / (1 - load / servers * (1 - blocked))
    return waits * math.exp(-(servers - load) * minutes / mean_min)


def test_as_few_whole_gpus_as_erlang_says() -> None:
    fleet = Fleet(BOARD, nodes=1, gpus_per_node=40)
    jobs = poisson_jobs(rate_h=30.0, mean_h=0.5, days=120, seed=1)
    target = ServiceTarget(0.95, ((1,),), (10.0,))
    found = tune_static_whole(Arena(fleet, Rules(), [made_week(jobs, days=120)], target), 1)
    assert found is not None
    least = next(count for count in range(1, 40) if late_share(count, 15.0, 30.0, 10.0) <= 0.05)
    assert found.setting.knobs["gpus"] == least


def test_as_few_cut_gpus_as_one_fewer_would_not_do() -> None:
    fleet = Fleet(BOARD, nodes=2, gpus_per_node=8)
    jobs = pl.concat([
        poisson_jobs(40.0, 0.5, 8, 2, "1g.10gb"), poisson_jobs(6.0, 0.5, 8, 3, "3g.40gb"),
        poisson_jobs(2.0, 1.0, 8, 4),
    ]).sort("submit_s")  # fmt: skip
    target = ServiceTarget(0.95, ((0,), (1,)), (10.0, 10.0))
    arena = Arena(fleet, Rules(), [made_week(jobs, days=8)], target)
    found = tune_static_mig(arena, 1)
    assert found is not None
    assert found.holds
    mix = {name: int(count) for name, count in found.setting.knobs.items() if name != "gpus"}
    for layout, count in mix.items():
        fewer = {name: number for name, number in {**mix, layout: count - 1}.items() if number}
        assert not arena.trial(replace(found.setting, control=Calendar.constant(fewer))).holds
    # The work alone needs 20 * 1/7 + 3 * 3/7 + 2 GPUs.
    assert 6.15 < found.gpu_hours / 168 <= 12


def test_hourly_peaks_equal_a_count_of_every_second_change() -> None:
    jobs = poisson_jobs(20.0, 0.7, 8, 6, "1g.10gb")
    week = made_week(jobs, days=8)
    found = hourly_peaks([week], "rightsized", first_weekday=1)
    start, end = jobs["submit_s"].to_numpy(), (jobs["submit_s"] + jobs["run_s"]).to_numpy()
    for hour in (0, 1, 57, 167):
        begin = week.begin_s + 3600.0 * hour
        moments = [begin, *start[(start >= begin) & (start < begin + 3600.0)]]
        peak = max(int(((start <= moment) & (end > moment)).sum()) for moment in moments)
        days = range(5) if hour // 24 < 5 else range(5, 7)
        others = [
            max(
                int(((start <= moment) & (end > moment)).sum())
                for at in [week.begin_s + 86_400.0 * day + 3600.0 * (hour % 24)]
                for moment in [at, *start[(start >= at) & (start < at + 3600.0)]]
            )
            for day in days
        ]
        assert peak in others
        assert found.mean[0, hour] == pytest.approx(np.mean(others))


def test_a_static_fleet_is_on_all_week_and_waits_are_those_of_the_jobs() -> None:
    jobs = poisson_jobs(6.0, 1.0, 8, 9)
    week, fleet = made_week(jobs, days=8), Fleet(BOARD, nodes=1, gpus_per_node=8)
    setting = PolicySetting("some", "whole", Calendar.constant({"gpu": 7}))
    found = play(setting, week, fleet, Rules())
    assert found.gpu_hours == pytest.approx(7 * 168)
    run = simulate(week.asked["whole"], fleet, setting.control, Rules(), policy="some")
    inside = run.outcomes.filter(pl.col("submit") >= 86_400.0)
    assert found.waits_s == pytest.approx((inside["first_start"] - inside["submit"]).to_numpy())
    held = run.outcomes.select(
        (
            pl.col("end").clip(86_400.0, 8 * 86_400.0) - pl.col("first_start").clip(86_400.0, 8 * 86_400.0)
        ).sum()
    )
    assert found.busy_gpu_hours == pytest.approx(held.item() / 3600.0)


def test_a_job_that_never_starts_has_waited_to_the_end() -> None:
    jobs = poisson_jobs(2.0, 0.5, 8, 9).with_columns(
        gpus=pl.when(pl.int_range(pl.len()) == 200).then(9).otherwise(1)
    )
    week, fleet = made_week(jobs, days=8), Fleet(BOARD, nodes=1, gpus_per_node=8)
    run = simulate(week.asked["whole"], fleet, Calendar.constant({"gpu": 8}), Rules(), policy="some",
                   until_s=week.end_s, leave_unservable=True)  # fmt: skip
    found = measure_week(run, "whole", week, fleet)
    assert found.never_started == 1
    assert found.waits_s.max() == pytest.approx(run.states["end_s"].max() - jobs["submit_s"][200])
    assert np.isnan(found.completion_s).sum() == 1


def test_nothing_is_tuned_on_what_it_is_judged_on() -> None:
    drawn = weeks(SAMPLE)
    tuned, judged = (
        {job.split("#")[0] for week in side for job in week.asked["whole"]["job_id"] if "#open" not in job}
        for side in (drawn.tuning, drawn.judged)
    )
    assert tuned
    assert judged
    assert not {job.split("+")[0] for job in tuned} & {job.split("+")[0] for job in judged}
    assert len(drawn.held_back) == 2


def test_what_ends_after_the_weeks_to_tune_on_says_nothing_of_its_end() -> None:
    known, drawn = history(SAMPLE), weeks(SAMPLE)
    past = drawn_past(known)
    ends = pl.col("submit_time") + pl.duration(microseconds=pl.col("run_s") * 1e6)
    longer = past.with_columns(
        run_s=pl.when(ends > drawn.split).then(pl.col("run_s") + 1e5).otherwise("run_s")
    )
    one, other = (as_known(jobs, drawn.split, 1)["run_s"] for jobs in (past, longer))
    assert one.equals(other)
    assert (past.filter(pl.col("submit_time") < drawn.split)["run_s"] != one).any()


def test_most_gpus_at_once_are_those_of_the_longest_row_of_overlaps() -> None:
    week = made_week(poisson_jobs(4.0, 1.0, 7, 5))
    control = OnDemand(release=Release(unit="gpu", idle_s=600.0, lead_s=300.0), cut=False)
    setting = PolicySetting("whole_on_off", "whole", control)
    fleet = Fleet(BOARD, 1, 16)
    found = play(setting, week, fleet, Rules())
    run = simulate(
        week.asked["whole"],
        fleet,
        control,
        Rules(),
        policy="whole_on_off",
        until_s=week.end_s,
        leave_unservable=True,
    )
    on = run.states.filter(pl.col("state") != "off")
    begun = on.filter(pl.col("start_s").is_between(week.begin_s, week.end_s, closed="left"))[
        "start_s"
    ].unique()
    counts = [
        on.filter((pl.col("start_s") <= at) & (pl.col("end_s") > at)).height for at in [week.begin_s, *begun]
    ]
    assert found.most_gpus == max(counts) > found.gpu_hours / 144


def test_a_change_at_short_notice_is_given_up_where_a_longer_one_is_made() -> None:
    """Jobs of thirty hours keep a node from emptying in an hour; reserved two days ahead it is empty in time."""
    jobs = poisson_jobs(0.3, 1.0, 7, 3).with_columns(run_s=pl.lit(30 * 3600.0))
    week = made_week(jobs)
    layouts = ("gpu", "1g.10gb:7")
    calendar = Calendar(np.array([0.0, 96.0 * 3600]), layouts, np.array([[16, 0], [8, 8]]))
    rules = Rules(drain=Drain(scope="node", ahead_s=0.0, limit_s=3600.0, before_change=True))
    made = {
        hours: play(
            PolicySetting("calendar", "whole", calendar, reserve_hours=hours), week, Fleet(BOARD, 2, 8), rules
        )
        for hours in (1.0, 48.0)
    }
    assert made[1.0].given_up > made[48.0].given_up == 0
    assert made[48.0].waits_s.mean() >= made[1.0].waits_s.mean()
