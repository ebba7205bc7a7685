"""Forecasts of GPUs by tenant: nothing after the origin is seen, and records that thin out are cut."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples
from gpuplanner.forecast.gpu_demand import lay_out_demand, lay_out_jobs, lay_out_telemetry, name_series
from gpuplanner.forecast.growth_and_announced_demand import complete_until, read_announced
from gpuplanner.forecast.rolling_demand_forecast import forecast_ahead, tomorrow
from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS
from gpuplanner.usage.planning_history import load_dataset

FAST = ("Naive", "SeasonalNaive", "HourOfDay", "RunOff")
END = datetime(2026, 3, 1, tzinfo=UTC)


def noised(jobs, at, seed):
    """The same up to an instant; every later submission, and what remains of every open job, is noise."""
    hours = np.random.default_rng(seed).exponential(40.0, (3, jobs.height))
    once, more, run = (pl.duration(microseconds=pl.Series((each * 3.6e9).astype(np.int64))) for each in hours)
    later, ended = pl.col("submit_time") >= at, (pl.col("end_time") <= at).fill_null(False)
    begun = (pl.col("start_time") < at).fill_null(False)
    submit = pl.when(later).then(pl.lit(at) + once).otherwise("submit_time")
    start = pl.when(begun).then("start_time").otherwise(pl.max_horizontal(submit, pl.lit(at)) + more)
    end = pl.when(ended).then("end_time").otherwise(pl.max_horizontal(start, pl.lit(at)) + run)
    return jobs.with_columns(
        submit_time=submit,
        start_time=pl.when(ended).then("start_time").otherwise(start),
        end_time=end,
        gpus=pl.when(later).then(64.0).otherwise("gpus"),
        state=pl.when(ended).then(pl.col("state").cast(pl.String)).otherwise(pl.lit("COMPLETED")),
    )


def said(jobs, at, models=FAST):
    source = lay_out_jobs(jobs, trace_end=END, at=at)
    choice, table = forecast_ahead(source, horizon=24, gap=6, price=5.0, models=models)
    return choice.write_json() + table.write_json()


@pytest.mark.long
def test_noise_after_the_origin_changes_nothing():
    jobs = load_dataset("sample").jobs
    for day in range(18, 28):
        at = datetime(2026, 2, day, 3 * day % 24, tzinfo=UTC)
        assert said(jobs, at) == said(noised(jobs, at, day), at)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "first"), [("philly", datetime(2017, 11, 2, tzinfo=UTC)), ("itp", datetime(2021, 4, 3, tzinfo=UTC))]
)
def test_noise_after_the_origin_changes_nothing_on_public_traces(public_data, trace, first):
    """Every candidate, ten origins at hours that walk through the day."""
    from gpuplanner.ingest.public.job_lists import ITP_TRACE, PHILLY_TRACE

    if trace == "philly":
        jobs = PHILLY_TRACE([public_data / "philly" / "philly.csv.gz"]).jobs
    else:
        jobs = ITP_TRACE(sorted((public_data / "itp").glob("*.csv.gz"))).jobs
    jobs = jobs.filter(pl.col("gpus") > 0, pl.len().over("tenant") >= 500)
    for number in range(10):
        at = first + number * timedelta(hours=53)
        assert said(jobs, at, CANDIDATE_MODELS) == said(noised(jobs, at, number), at, CANDIDATE_MODELS)


def test_a_record_of_ended_jobs_is_cut_where_it_thins_out():
    rng = np.random.default_rng(1)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    submit = np.sort(rng.uniform(0, 60 * 24, 4000))
    run = rng.exponential(24.0, 4000)
    kept = submit + run < 60 * 24
    jobs = pl.DataFrame(
        {
            "start_time": [begin + timedelta(hours=hour) for hour in submit[kept]],
            "end_time": [begin + timedelta(hours=hour) for hour in (submit + run)[kept]],
            "gpus": 1.0,
        }
    )
    end = begin + timedelta(days=60)
    lost = (end - complete_until(jobs, end)) / timedelta(hours=1)
    # Of exponential runs the share exp(-x / 24) lies behind x hours: a tenth at 55 h.
    assert lost == pytest.approx(24 * np.log(10), abs=8)
    still = jobs.with_columns(end_time=pl.when(pl.col("start_time") < jobs["start_time"].max()).then("end_time"))
    assert complete_until(still, end) == end


def test_an_origin_before_all_jobs_is_refused():
    with pytest.raises(ScenarioError, match="two intervals with jobs"):
        lay_out_demand(Scenario(), at=datetime(2025, 1, 1, tzinfo=UTC))


def test_the_fleet_is_the_sum_of_its_tenants_in_series_and_paths():
    source = lay_out_demand(Scenario(), at=datetime(2026, 2, 20, tzinfo=UTC))
    assert source.ids[-1] == "all/gpu"
    assert source.values[:-1].sum(axis=0) == pytest.approx(source.values[-1])
    paths = source.paths(24, 6, seed=1)
    sums = paths.filter(pl.col("unique_id") != "all/gpu").group_by("path", "ds").agg(pl.col("y").sum())
    both = paths.filter(unique_id="all/gpu").join(sums, on=["path", "ds"], suffix="_sum")
    assert both.height == 200 * 24
    assert both["y"].to_numpy() == pytest.approx(both["y_sum"].to_numpy(), abs=1e-9)


def test_what_runs_is_counted_and_what_is_left_of_it_estimated():
    at = datetime(2026, 2, 20, tzinfo=UTC)
    jobs = load_dataset("sample").jobs
    runs = jobs.filter(pl.col("start_time") < at, (pl.col("end_time") > at) | pl.col("end_time").is_null())
    told = lay_out_demand(Scenario(), at=at).running()
    assert told["gpus"].sum() == pytest.approx(runs["gpus"].sum())
    assert told["jobs"].sum() == runs.height
    assert (told["remaining_q50_h"] < told["remaining_q90_h"]).all()


def released(seed, *, effect):
    """Jobs of eight weeks with 14 release days at random, on which so many times the jobs come."""
    rng = np.random.default_rng(seed)
    days = sorted(rng.choice(np.arange(10, 55), 14, replace=False).tolist())
    rate = np.full(56 * 24, 4.0)
    for day in days:
        rate[24 * day : 24 * day + 24] *= effect
    submit = np.repeat(np.arange(len(rate)), rng.poisson(rate)) + 0.0
    run = rng.exponential(2.0, len(submit))
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    hours = [begin + timedelta(hours=hour) for hour in submit]
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(len(submit)).astype(str),
            "attempt": 1,
            "tenant": "a",
            "submit_time": hours,
            "start_time": hours,
            "end_time": [start + timedelta(hours=hour) for start, hour in zip(hours, run, strict=True)],
            "state": "COMPLETED",
            "gpus": 1.0,
        }
    )
    first = [begin + timedelta(days=day) for day in days]
    calendar = pl.DataFrame(
        {"kind": "release", "start_time": first, "end_time": [day + timedelta(days=1) for day in first]}
    )
    return jobs, calendar, begin, [day for day in days if day > 34]


@pytest.mark.parametrize(("effect", "most"), [(3.0, 0.75), (1.0, 1.05)])
def test_a_calendar_helps_where_it_says_something_and_harms_nowhere(effect, most):
    error = {True: [], False: []}
    for seed in range(3):
        jobs, calendar, begin, days = released(seed, effect=effect)
        wide = lay_out_jobs(jobs, trace_end=begin + timedelta(days=56), at=begin + timedelta(days=56))
        for day in days:
            at = begin + timedelta(days=day)
            for told in error:
                known = lay_out_jobs(jobs, trace_end=at, at=at, calendar=calendar if told else None).run_off
                drawn = np.median(known.draws(["a/gpu"], 24 * day, 24, seed=1)[0], axis=0)
                actual = wide.values[0, 24 * day : 24 * day + 24]
                error[told].append(np.abs(actual - drawn).mean())
    assert np.mean(error[True]) <= most * np.mean(error[False])


def test_announced_jobs_come_on_top_of_every_forecast_and_path():
    at = datetime(2026, 2, 25, tzinfo=UTC)
    source = lay_out_demand(Scenario(), at=at)
    known = next(uid for uid in source.ids if uid != source.whole)
    start, end = at + timedelta(hours=2), at + timedelta(hours=5)
    jobs = pl.DataFrame(
        {
            "tenant": [known.rpartition("/")[0], "newcomers"],
            "start_time": [start, start],
            "end_time": [end, end],
            "gpus": [8.0, 4.0],
        }
    )
    more = replace(source, announced=jobs)
    options = {"horizon": 8, "gap": 0, "price": 5.0, "models": FAST}
    before, after = forecast_ahead(source, **options)[1], forecast_ahead(more, **options)[1]
    for name in ("mean", "q05", "q95"):
        gained = after.with_columns(gained=after[name] - before[name]).filter(pl.col("gained") > 1e-9)
        told = {uid: part["gained"].round(6).to_list() for (uid,), part in gained.group_by("unique_id")}
        assert told == {known: [8.0] * 3, source.whole: [12.0] * 3}
    paths = more.paths(8, 0, 1)["y"] - source.paths(8, 0, 1)["y"]
    assert paths.sum() == pytest.approx(200 * (3 * 8 + 3 * 12))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tenant,start_time,end_time\na,2026-02-01T00:00Z,2026-02-02T00:00Z", "gpus"),
        ("tenant,start_time,end_time,gpus\na,2026-02-01T00:00:00,2026-02-02T00:00:00,1", "zone"),
        ("tenant,start_time,end_time,gpus\na,2026-02-03T00:00:00Z,2026-02-02T00:00:00Z,1", "after its start"),
        ("tenant,start_time,end_time,gpus\na,2026-02-01T00:00:00Z,2026-02-02T00:00:00Z,-1", "above 0"),
    ],
)
def test_what_is_announced_badly_is_refused(tmp_path, text, fault):
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=fault):
        read_announced(path)


def test_a_clock_that_jumped_does_not_stretch_the_series():
    jobs = load_dataset("sample").jobs
    early = jobs.head(2).with_columns(
        pl.col("submit_time", "start_time", "end_time").dt.offset_by("-40y"), job_id=pl.format("old{}", "job_id")
    )
    late = jobs.head(1).with_columns(submit_time=pl.lit(datetime(2088, 1, 1, tzinfo=UTC)), job_id=pl.lit("new"))
    right, wrong = (lay_out_jobs(part, trace_end=END) for part in (jobs, pl.concat([early, jobs, late])))
    assert wrong.start == right.start
    np.testing.assert_array_equal(wrong.values, right.values)
    assert "2 submission(s) lie more than 56 days before the next" in wrong.remarks[0]


HOURS = [timedelta(hours=hour) for hour in range(24 * 8)]


def made(tenants, boards):
    """A job an hour for eight days, each two hours long, tenants in turn and boards too."""
    begin = datetime(2026, 2, 2, tzinfo=UTC)
    rows = [
        {"job_id": f"{number}", "attempt": 1, "tenant": tenants[number % len(tenants)], "state": "COMPLETED",
         "gpus": 1.0 + number % 3, "gpu_model": boards[number // 3 % len(boards)], "submit_time": begin + hour,
         "start_time": begin + hour, "end_time": begin + hour + timedelta(hours=2)}
        for number, hour in enumerate(HOURS)
    ]  # fmt: skip
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("boards", "by", "names"),
    [
        (["A"], "tenant", ["a/x/gpu", "a/y/gpu", "b/gpu", "a/gpu", "all/gpu"]),
        (["A", None], "tenant", ["a/x/gpu", "a/y/gpu", "b/gpu", "a/gpu", "all/gpu"]),
        (["A", "B"], "tenant", None),
        (["A"], "gpu_model", ["A/gpu", "all/gpu"]),
        (["A", "B", None], "gpu_model", ["(GPU model unknown)/gpu", "A/gpu", "B/gpu", "all/gpu"]),
    ],
)
def test_boards_and_teams_have_series_and_every_sum_is_that_of_its_parts(boards, by, names):
    jobs, _ = name_series(made(["a/x", "a/y", "b"], boards), by=by)
    found = lay_out_jobs(jobs, trace_end=END, at=datetime(2026, 2, 9, tzinfo=UTC), series="series")
    if names:
        assert list(found.ids) == names
    else:
        assert {"b/A/gpu", "a/x/B/gpu", "a/A/gpu", "all/A/gpu", "all/gpu"} <= set(found.ids)
        assert {"a/gpu", "a/x/gpu", "b/gpu"} <= set(found.sums)  # over the GPU models of a department and a team
    assert found.whole == "all/gpu"
    rows = dict(zip(found.ids, found.values, strict=True))
    leaves = set(found.ids) - set(found.sums)
    for whole, parts in found.sums.items():
        assert set(parts) <= leaves
        np.testing.assert_allclose(rows[whole], sum(rows[part] for part in parts), atol=1e-9)
    np.testing.assert_allclose(rows["all/gpu"], sum(rows[leaf] for leaf in leaves), atol=1e-9)
    drawn = found.run_off.draws(["all/gpu" if names else "all/A/gpu"], found.slots, 4, seed=1)
    assert drawn.shape[1:] == (200, 4)


def test_a_tenant_whose_name_begins_others_keeps_its_own_jobs_apart():
    found = lay_out_jobs(made(["a", "a/x"], ["A"]), trace_end=END, at=datetime(2026, 2, 9, tzinfo=UTC))
    assert found.sums == {"a/gpu": ("a/(own)/gpu", "a/x/gpu"), "all/gpu": ("a/(own)/gpu", "a/x/gpu")}
    rows = dict(zip(found.ids, found.values, strict=True))
    np.testing.assert_allclose(rows["a/gpu"], rows["all/gpu"])


def test_telemetry_alone_is_forecast_by_what_devices_held():
    """Two GPUs for five days: one works in office hours, the other has a process on it throughout."""
    begin = datetime(2026, 2, 2, tzinfo=UTC)
    times = [begin + timedelta(minutes=20 * step) for step in range(3 * 24 * 5 + 1)]
    busy = [9 <= time.hour < 17 for time in times]
    both = pl.concat(
        pl.DataFrame({"time": times, "sm_activity": work, "memory_used_gib": memory}).with_columns(
            node=pl.lit("n1"), gpu=pl.lit(gpu), activity_source=pl.lit("profiling")
        )
        for gpu, work, memory in ((0, [0.8 * one for one in busy], 0.0), (1, [0.0] * len(times), 20.0))
    )
    found = lay_out_telemetry(conform(both, Samples, source="samples").lazy(), 1.0, None)
    assert found.ids == ("all/gpu",)
    assert found.caps == {"all/gpu": 2}
    assert found.values[0, :24].tolist() == [2.0 if 9 <= hour < 17 else 1.0 for hour in range(24)]
    choice, table = forecast_ahead(found, horizon=24, gap=0, price=5.0, models=FAST)
    assert "HourOfDay" in choice["weights"].item() or "SeasonalNaive" in choice["weights"].item()
    assert table["q95"].max() <= 2
    earlier = lay_out_telemetry(conform(both, Samples, source="samples").lazy(), 1.0, begin + timedelta(days=2))
    assert earlier.slots == 48


def test_what_is_announced_counts_in_its_team_and_in_the_fleet():
    at = datetime(2026, 2, 9, tzinfo=UTC)
    found = lay_out_jobs(made(["a/x", "a/y", "b"], ["A"]), trace_end=END, at=at)
    told = pl.DataFrame({"tenant": ["a/x"], "gpus": [4.0]}).with_columns(
        start_time=pl.lit(at + timedelta(hours=1)), end_time=pl.lit(at + timedelta(hours=2))
    )
    more = dict(zip(found.ids, replace(found, announced=told).announced_job_gpus(3, 0), strict=True))
    for uid in ("a/x/gpu", "a/gpu", "all/gpu"):
        assert more[uid].tolist() == [0.0, 4.0, 0.0]
    assert not more["b/gpu"].any()
    assert not more["a/y/gpu"].any()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def test_tomorrow_in_every_zone(zone):
    found = tomorrow(Scenario(history_days=14, tz=zone))
    assert (f"{found.at:%H:%M}", str(found.at.tzinfo)) == ("12:00", zone)
    assert found.gpus is not None
    assert 0 < found.gpus < 64
