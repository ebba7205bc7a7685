"""Questions of planners, each in a few lines with the public names alone; answers are checked against the tables."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import partial

import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.hardware.mig_layouts import parse_layout


@pytest.fixture(scope="module")
def cluster():
    return gp.open("sample")


def test_gpu_hours_by_team_and_week(cluster):
    table = cluster.ledger(by=["team", "week"]).df
    assert table["gpu_hours"].sum() == pytest.approx(64 * 24 * 28, rel=1e-9)
    by_team = table.group_by("team").agg(pl.col("gpu_hours").sum())
    assert by_team.filter(team="assistants")["gpu_hours"].item() == pytest.approx(
        cluster.ledger(team="assistants").df["gpu_hours"].sum(), rel=1e-9
    )
    assert "Unallocated" in by_team["team"]


def test_p95_wait_by_requested_gpus(cluster):
    table = cluster.waits(by="job_size", percentile=0.95).df
    jobs = cluster.jobs.filter(pl.col("attempt") == 1, pl.col("profile_requested").is_null(), pl.col("gpus") > 8)
    minutes = (jobs["start_time"] - jobs["submit_time"]).dt.total_microseconds() / 6e7
    row = table.filter(pl.col("job_size").cast(pl.String) == "9+ GPUs")
    smallest = sorted(minutes)[math.ceil(0.95 * len(minutes)) - 1]  # that 95 % of the jobs do not exceed
    assert row["p95_wait_minutes"].item() == pytest.approx(smallest, rel=1e-9)
    assert row["jobs"].item() == minutes.count()


def test_utilization_by_hour_of_day(cluster):
    table = cluster.utilization(by="hour_of_day").df
    assert table["hour_of_day"].to_list() == list(range(24))
    assert table.schema["hour_of_day"] == pl.Int64
    assert table["allocated_gpu_hours"].sum() == pytest.approx(20974.7378, rel=1e-6)
    assert table["gpu_hours"].to_list() == pytest.approx([64 * 28] * 24)
    assert table["used_fraction"].is_between(0, 1).all()


def test_cost_by_team_at_an_own_price(cluster):
    table = cluster.cost(by="team", prices=2.50, month="2026-02").df
    assert table["cost"].sum() == Decimal("2.50") * 64 * 24 * 28


def test_cost_by_team_and_week_is_the_price_of_the_hours_of_the_ledger(cluster):
    table = cluster.cost(by=["team", "week"], prices=2.40).df
    hours = cluster.ledger(by=["team", "week"]).df
    joined = table.join(hours, on=["team", "week"], suffix="_ledger")
    assert joined.height == table.height == hours.height
    exact = [Decimal(repr(value)) * Decimal("2.40") for value in joined["gpu_hours_ledger"]]
    assert all(abs(cost - price) < Decimal("0.01") for cost, price in zip(joined["cost"], exact, strict=True))
    weeks = table.group_by("week", maintain_order=True).agg(pl.col("cost").sum())["cost"].to_list()
    assert weeks == [Decimal(24 * days * 64) * Decimal("2.40") for days in (1, 7, 7, 7, 6)]
    by_team = cluster.cost(by="team", prices=2.40).df
    teams = table.group_by("team", maintain_order=True).agg(pl.col("cost").sum())
    assert dict(teams.iter_rows()) == dict(by_team.select("team", "cost").iter_rows())
    for row in by_team.iter_rows(named=True):
        assert abs(row["cost"] - Decimal(repr(row["gpu_hours"])) * Decimal("2.40")) < Decimal("0.01"), row
    assert table.group_by("week", maintain_order=True).agg(pl.col("days").first())["days"].to_list() == [1, 7, 7, 7, 6]
    assert cluster.cost(by="week", prices=2.40).df["cost"].sum() == Decimal("103219.20")


def test_a_percentile_of_waits_by_cause_is_refused_with_calls_that_work(cluster):
    with pytest.raises(ScenarioError, match="percentile") as error:
        cluster.waits(by=["job_size", "cause"], percentile=0.95)
    assert ".waits(by=['job_size'], percentile=0.95) and .waits(by=['job_size', 'cause'])." in str(error.value)
    assert cluster.waits(by=["job_size"], percentile=0.95).df["p95_wait_minutes"].max() > 900
    assert cluster.waits(by=["job_size", "cause"]).df["wait_hours"].sum() > 0


@pytest.mark.parametrize("month", ["last", "2026-03"])
def test_a_month_that_the_data_lack_is_an_error_with_those_that_they_have(cluster, month):
    for ask in (cluster.waits, cluster.ledger, cluster.cost, cluster.costs, partial(gp.decide, "sample")):
        with pytest.raises(GpuPlannerError, match=f"a month of the data: '2026-02'; got '{month}'"):
            ask(month=month)


def test_a_study_takes_the_fleet_sizes_of_the_wait_curve(cluster):
    points = gp.decide(cluster).wait_curve(gpus=[56, 64]).df
    assert points.equals(gp.wait_curve(cluster, gpus=[56, 64]).df)
    assert points["gpus"].unique().sort().to_list() == [56, 64]


def test_too_much_demand_states_how_many_gpus_are_enough():
    demand = {"3g.40gb": 9, "1g.10gb": 8}
    with pytest.raises(GpuPlannerError, match=r"It needs 6 GPUs: gpus=6\.$"):
        gp.layouts("A100-80GB", gpus=4, demand=demand)
    assert gp.layouts("A100-80GB", gpus=6, demand=demand).df["gpus"].sum() == 6
    with pytest.raises(GpuPlannerError, match="It needs 6 GPUs"):
        gp.layouts("A100-80GB", gpus=5, demand=demand)


def test_a_view_states_its_filters_its_period_and_what_rests_on_few_jobs(cluster):
    view = cluster.waits(team="vision", month="2026-02")
    assert "vision, 1,466 jobs, Feb 2026 (UTC)." in view.section
    assert "p95 rests on fewer than 5 jobs that waited longer" in view.section
    assert "5-8 GPUs (58 jobs)" in view.section
    assert view.df.equals(cluster.waits(team="vision", start="2026-02-01", end="2026-03-01").df)
    assert "vision, 1,466 jobs" in str(view.chart().to_dict()["title"]["subtitle"])
    weeks = cluster.ledger(by="week").section
    assert "week from 26 Jan 2026 (1 day); week from 23 Feb 2026 (6 days)" in weeks
    assert "Observed in part" not in cluster.ledger(by="month").section
    assert "Observed in part" not in cluster.ledger(by="week", start="2026-02-02", end="2026-02-16").section


def test_a_notebook_prints_the_cell_and_the_message_alone(cluster):
    with pytest.raises(ScenarioError) as caught:
        exec(compile('\n\ncluster.waits(team="visoin")', "cell", "exec"), {"cluster": cluster})
    place, message = caught.value._render_traceback_()
    assert place.startswith("Line 3:")
    assert message == f"ScenarioError: {caught.value}"


def test_layouts_for_four_gpus():
    table = gp.layouts("A100-80GB", gpus=4, demand={"3g.40gb": 4, "1g.10gb": 6}).df
    instances = {"3g.40gb": 0, "1g.10gb": 0}
    for layout, gpus in table.select("layout", "gpus").rows():
        for profile, count in parse_layout(layout).items():
            instances[profile] += gpus * count
    assert instances["3g.40gb"] >= 4
    assert instances["1g.10gb"] >= 6
    assert table["gpus"].sum() == 4
    assert table.filter(layout="off").row(0) == ("off", 1, "full GPU")
    assert [text for text in table["left_over"] if text] == ["idle compute slice", "2 × 1g.10gb", "full GPU"]


def test_what_is_left_when_a_larger_instance_serves_a_smaller_one():
    view = gp.layouts("A100-80GB", gpus=1, demand={"3g.40gb": 1, "2g.20gb": 1})
    (layout, _, left_over), *_ = view.df.rows()
    provided = sum(parse_layout(layout).values())
    assert provided - 2 == sum(int(part.partition(" × ")[0]) if " × " in part else 1
                               for part in left_over.split(" + ") if part and "slice" not in part)  # fmt: skip
    assert "left over:" in view.section


@pytest.mark.slow
def test_waits_on_fewer_gpus():
    curve = gp.wait_curve("sample", month="2026-02", gpus=[56, 64]).df
    waits = curve.filter(pl.col("layout") == "today", job_size="5+ GPUs").sort("gpus")
    assert waits["gpus"].to_list() == [56, 64]
    assert waits["p95_minutes"].is_sorted(descending=True)


@pytest.mark.slow
def test_a_fleet_of_another_size_and_its_difference_on_the_same_jobs():
    study = gp.decide("sample", month="2026-02", policies="mig_static", actuator="slurm")
    smaller = study.but(gpus=48)
    table = gp.compare(study, smaller, study.but(gpus=64)).df
    assert table["gpus"].to_list() == [study.decision.gpus, 48, 64]
    difference = table["p95_wait_minutes"][1] - table["p95_wait_minutes"][0]
    value, low, high = table.select("p95_difference_minutes", "p95_difference_low", "p95_difference_high").row(1)
    assert value == pytest.approx(difference, abs=1.0)
    assert low <= high
    assert low > 0  # in 80 % of the resampled records the smaller fleet waits longer
    assert table["p95_difference_minutes"][0] is None
    again = gp.compare(smaller, smaller).df
    assert again.select("p95_difference_minutes", "p95_difference_low", "p95_difference_high").row(1) == (0.0, 0.0, 0.0)


def test_filters_are_alike(cluster):
    week = {"team": "vision", "start": "2026-02-09", "end": "2026-02-16"}
    waits, hours = cluster.waits(**week).df, cluster.ledger(by="day", **week).df
    jobs = cluster.jobs.filter(pl.col("tenant") == "vision", pl.col("attempt") == 1)
    day = pl.col("submit_time").dt.date().cast(pl.String)
    expected = jobs.filter(day.is_between(pl.lit("2026-02-09"), pl.lit("2026-02-15")))
    assert waits.select(pl.col("jobs", "jobs_not_started").sum()).sum_horizontal().item() == expected.height
    assert hours.height <= 7
    assert hours["gpu_hours"].sum() == pytest.approx(cluster.utilization("team", **week).df["gpu_hours"].sum())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda cluster: cluster.ledger(by="teem"), "team"),
        (lambda cluster: cluster.cost(by="teem"), "team"),
        (lambda cluster: cluster.cost(by=["user", "week"]), "several of team, gpu_model, bucket"),
        (lambda cluster: cluster.waits(month="2026-03"), "a month of the data: '2026-02'"),
        (lambda cluster: cluster.waits(start="2026-02"), "month= takes a month"),
        (lambda cluster: cluster.waits(by=["team", "team"]), "different groups"),
        (lambda cluster: cluster.waits(percentile=95), "0 to 1"),
        (lambda cluster: cluster.waits(team="visoin"), "vision"),
        (lambda cluster: cluster.ledger(by="day", start="2027-01-01"), "2026-02-01"),
        (lambda cluster: cluster.utilization(start="soon"), "a date such as"),
        (lambda _: gp.layouts("A100-80GB", demand={"3g.40gb": 4}), "Give gpus="),
        (lambda _: gp.layouts("A100-80GB", gpus=1, demand={"3g.40gb": 4}), "It needs 2 GPUs: gpus=2"),
        (lambda _: gp.wait_curve("sample", gpus=[-8]), "above 0"),
        (lambda _: gp.decide("sample", months="2026-02"), "month"),
    ],
)
def test_mistakes_are_answered_with_the_fix(cluster, call, words):
    with pytest.raises(GpuPlannerError, match=words):
        call(cluster)


def test_files_are_read_in_any_order(tmp_path, cluster):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\nb,3600,3600,1\n")
    found = gp.read(path)
    assert repr(found) == "Cluster(jobs.csv: 9 GPUs, 2 jobs, 4 Mar 2021 to 4 Mar 2021)"
    found.save(tmp_path / "kept")
    assert gp.open(tmp_path / "kept").jobs.equals(found.jobs)
    with pytest.raises(ScenarioError, match="decisions"):
        gp.compare(cluster)


@pytest.mark.slow
def test_requested_gpus_lead_to_the_recommended_number():
    study = gp.decide("sample", month="2026-02", policies="fewer_nodes")
    table = study.reconciliation().df
    gpus = dict(table.select("step", "gpus").iter_rows())
    assert table["reason"].null_count() == 0
    assert gpus["recommended"] == study.decision.gpus
    assert gpus["installed"] == study.decision.fleet_gpus == 64
    assert gpus["to release or power down"] == 64 - study.decision.gpus
    assert 0 < gpus["rightsized at peak"] <= gpus["requested at peak"]


def test_bars_have_their_values_and_long_waits_are_hours(root):
    chart = gp.open("sample").waits(by="job_size").chart().to_dict()
    texts = {row["name"]: row["text"] for row in next(iter(chart["datasets"].values()))}
    assert texts["5-8 GPUs"] == "15.6 h"
    assert "1g.10gb" not in texts  # its p95 is 0
    assert chart["layer"][0]["encoding"]["x"]["title"] == "p95 queue wait [h]"
