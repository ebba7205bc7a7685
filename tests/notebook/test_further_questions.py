"""Six further questions of planners, each in at most five lines; every answer is checked by plain loops or by hand."""

from __future__ import annotations

import itertools
import math
from datetime import date, datetime, timedelta

import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import GpuPlannerError

NOON = datetime(2026, 2, 2, 12)


@pytest.fixture(scope="module")
def cluster():
    return gp.open("sample")


def write_accounting(path, *jobs):
    """Write accounting: id, account, partition, submission, start and end [h after noon], GPUs, node."""
    lines = ["JobID|User|Account|Partition|State|Submit|Eligible|Start|End|AllocTRES|NodeList"]
    for name, account, partition, submit, start, end, gpus, node in jobs:
        submitted, began, ended = (f"{NOON + timedelta(hours=hour):%Y-%m-%dT%H:%M:%S}" for hour in (submit, start, end))
        tres = f"gres/gpu:h100={gpus},gres/gpu={gpus}"
        times = f"{submitted}|{submitted}|{began}|{ended}"
        lines.append(f"{name}|ann|{account}|{partition}|COMPLETED|{times}|{tres}|{node}")
    path.write_text("\n".join([*lines, ""]))
    return path


def test_waiting_while_gpus_are_idle_elsewhere_by_cause(cluster):
    table = cluster.waits(by="cause", gpus=(1, 2)).df
    cluster.waits(by="cause", gpus=(1, 2)).chart()
    # By hand: the allocated GPUs at each start and end, and the part of each wait with enough of 64 left.
    is_asked = pl.col("profile_requested").is_null() & pl.col("gpus").is_between(1, 2)
    waiting = cluster.jobs.filter(is_asked, pl.col("start_time") > pl.col("submit_time"))
    runs = cluster.jobs.drop_nulls("start_time").select("start_time", "end_time", "gpus").rows()
    changes = sorted([(start, gpus) for start, _, gpus in runs] + [(end, -gpus) for _, end, gpus in runs if end])
    waited = idle = 0.0
    for submit, start, gpus in waiting.select("submit_time", "start_time", "gpus").rows():
        waited += (start - submit).total_seconds() / 3600
        used, before = 0.0, submit
        for instant, change in changes:
            if submit < instant <= start and 64 - used >= gpus:
                idle += (instant - before).total_seconds() / 3600
            before = min(max(instant, submit), start)
            used += change
            if instant > start:
                break
    assert table["wait_hours"].sum() == pytest.approx(waited, rel=0.01)
    assert table["idle_elsewhere_hours"].sum() == pytest.approx(idle, abs=0.3)


def test_idle_gpus_of_other_partitions(tmp_path):
    jobs = [("1", "a", "small", 0, 0, 6, 4, "n1"), ("2", "a", "large", 0, 0, 3, 4, "n2"),
            ("3", "b", "small", 1, 6, 8, 1, "n1"), ("4", "b", "small", 1, 6, 8, 4, "n1")]  # fmt: skip
    cluster = gp.read(write_accounting(tmp_path / "jobs.txt", *jobs), tz="UTC")
    table = cluster.waits(by=["partition", "cause"], gpus=(1, 2), partition="small").df
    assert table["wait_hours"].sum() == pytest.approx(5.0)  # of job 3; job 4 requests more
    assert table["idle_elsewhere_hours"].sum() == pytest.approx(3.0)  # node n2 is idle from the third hour on
    assert set(table["partition"]) == {"small"}


def test_week_in_which_demand_exceeds_capacity(tmp_path):
    lines = [("1", "vision", "gpu", -1, 0, 24 * 21, 8, "n1"), ("2", "search", "gpu", -1, 0, 24 * 21, 8, "n2")]
    cluster = gp.read(write_accounting(tmp_path / "jobs.txt", *lines), tz="UTC")
    outlook = cluster.forecast(at="2026-02-23T12:00")
    dates = outlook.exhaustion(
        capacity_fraction=2.0, growth_per_week={"vision": 0.05}, added_gpus={"search": (16, "2026-04-01")}, weeks=52
    )
    week, vision = 0, 8 * 1.05
    while vision + 8 + 16 * (date(2026, 2, 23) + timedelta(days=7 * (week + 1)) > date(2026, 4, 1)) <= 2 * 16:
        week, vision = week + 1, vision * 1.05
    begins = date(2026, 2, 23) + timedelta(days=7 * week)
    assert begins == date(2026, 3, 30)  # the week in which the 16 GPUs come
    assert dates.df.rows() == [("early", 0.1, begins), ("median", 0.5, begins), ("late", 0.9, begins)]
    dates.chart()
    # Growth alone: 8 GPUs of vision have to exceed 32 less the 8 of search, three times as many.
    grown = outlook.exhaustion(capacity_fraction=2.0, growth_per_week={"vision": 0.05}, weeks=52).df
    weeks = math.ceil(math.log(3) / math.log(1.05))
    assert set(grown[grown.columns[-1]]) == {date(2026, 2, 23) + timedelta(days=7 * (weeks - 1))}


def test_most_wasteful_users_with_their_worst_jobs(cluster):
    view = cluster.ledger(by=["user", "job_class", "job"], sort="allocated_idle", top=(20, 3))
    table, by_user = view.df, cluster.ledger(by=["user", "job"]).df
    view.chart()
    assert table["user"].n_unique() == 20
    assert table.group_by("user").len()["len"].max() == 3
    wasted: dict[str, list[float]] = {}
    for user, hours in by_user.drop_nulls("allocated_idle").select("user", "allocated_idle").iter_rows():
        wasted.setdefault(user, []).append(hours)
    users = sorted(wasted, key=lambda name: (-sum(wasted[name]), name))[:20]
    assert table["user"].unique(maintain_order=True).to_list() == users
    assert table.filter(user=users[0])["allocated_idle"].to_list() == sorted(wasted[users[0]], reverse=True)[:3]
    # A job without samples is idle for its whole run if its record says so; without a record nothing is known.
    sampled = cluster.samples["job_id"].drop_nulls().unique()
    alone = cluster.jobs.filter(~pl.col("job_id").is_in(sampled.implode()), pl.col("state") != "RUNNING")
    run_h = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / 3600
    alone = alone.filter(pl.col("start_time") >= datetime(2026, 2, 1).astimezone(alone["start_time"][0].tzinfo))
    joined = alone.with_columns(hours=pl.col("gpus") * run_h).join(by_user, left_on="job_id", right_on="job")
    idle = joined.filter(pl.col("sm_activity") < 0.05)
    assert idle.height > 100
    assert idle["allocated_idle"].to_list() == pytest.approx(idle["hours"].to_list())
    unknown = joined.filter(pl.col("sm_activity").is_null())
    assert unknown["allocated_idle"].null_count() == unknown.height > 100
    assert unknown["no_telemetry"].to_list() == pytest.approx(unknown["hours"].to_list())


def test_buying_reserving_and_renting_with_break_even(cluster, root):
    costs = cluster.costs(price_per_gpu_hour=2.5)
    view = costs.commitments(36, gpus=16, used_fraction=0.8, purchase_price=32_000)
    view.chart()
    by_option = {row["option"]: row for row in view.df.to_dicts()}
    rented, bought = by_option["on_demand"], by_option["owned"]
    assert rented["cost"] == pytest.approx(16 * 0.8 * 730.5 * 36 * 2.5)
    assert by_option["reserved_1y"]["break_even_fraction"] == pytest.approx(0.625)  # 37.5 % below on demand
    # Electricity of a GPU and month: 80 % busy, 20 % idle, of the board's power; servers, cooling, price per kWh.
    facts = root / "gpuplanner" / "hardware" / "facts"
    value = dict(pl.read_csv(facts / "parameters.csv").select("name", "value").rows())
    board_w = pl.read_csv(facts / "gpu_specs.csv").filter(gpu_model="H100-80GB-SXM5")["tdp_w"].item()
    busy, idle = value["active_base_fraction"] + value["active_slope_fraction"], value["idle_fraction"]
    mean_kw = board_w * (0.8 * busy + 0.2 * idle) / 1000 * value["host_factor"] * value["pue"]
    electricity = mean_kw * 730.5 * value["electricity_usd_per_kwh"]
    # Rent for three months until delivery, 33 months written off and powered, half of the last 27 months' value lost.
    by_hand = 16 * (0.8 * 730.5 * 3 * 2.5 + 32_000 / 60 * (33 + 0.5 * 27) + electricity * 33)
    assert bought["cost"] == pytest.approx(by_hand)
    paid = rent = 0.0
    behind = 0
    for month in range(1, 37):
        monthly_rent = 16 * 0.8 * 730.5 * 2.5
        rent += monthly_rent
        paid += monthly_rent if month <= 3 else 16 * (electricity + 32_000 * (month == 4))
        behind = month if paid > rent - 1e-6 else behind
    assert bought["break_even_month"] == behind + 1


def test_waits_with_a_shorter_walltime_and_preemptible_borrowing(tmp_path):
    jobs = [("1", "a", "gpu", 0, 0, 10, 1, "n1"), ("2", "b", "gpu", 1, 10, 11, 1, "n1"),
            ("3", "a", "gpu", 24, 24, 25, 1, "n1")]  # fmt: skip
    cluster = gp.read(write_accounting(tmp_path / "jobs.txt", *jobs), tz="UTC")
    cut = cluster.fair_share({"max_run_hours": 2})
    # The long job runs 2 h, the short one 1 h after 1 h of waiting, then the rest without a pause: 1 h of waiting.
    waits = {row["team"]: row for row in cut.df.to_dicts()}
    cut.chart()
    assert waits["b"]["p95_before_minutes"] == pytest.approx(540, abs=2)
    assert waits["b"]["p95_after_minutes"] == pytest.approx(60, abs=2)
    assert waits["a"]["p95_after_minutes"] == pytest.approx(0.95 * 60, abs=2)  # of the waits 0 and 60 min
    quota = {"teams": [{"name": "b", "gpus": 1, "cohort": "all"}, {"name": "a", "gpus": 0, "cohort": "all"}]}
    taken = cluster.fair_share(quota | {"preemption": {"reclaim": True, "checkpoint_minutes": 0}}).df
    assert taken.filter(team="b")["p95_after_minutes"].item() == pytest.approx(0, abs=2)
    assert taken.filter(team="a")["p95_after_minutes"].item() == pytest.approx(0.95 * 60, abs=2)


def smi_minutes():
    """Minutes of three GPUs of node n1 as nvidia-smi prints them, from 30 minutes before noon."""
    yield "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"
    for minute in range(-30, 210):
        instant = NOON + timedelta(minutes=minute)
        yield from (f"{instant:%Y/%m/%d %H:%M:%S}.000, {gpu}, 50 %, 1000 MiB, 200.0 W" for gpu in range(3))


def dcgm_minutes():
    """The same minutes with the metrics of DCGM, one a row."""
    yield "timestamp,metric_name,gpu_id,device,Hostname,value,labels_raw"
    for minute, gpu in itertools.product(range(-30, 210), range(3)):
        instant, labels = NOON + timedelta(minutes=minute), f"Hostname=''n1'',gpu=''{gpu}''"
        for name, value in (("DCGM_FI_PROF_SM_ACTIVE", 0.5), ("DCGM_FI_DEV_FB_USED", 1000)):
            row = f"'{instant:%Y-%m-%dT%H:%M:%S}Z','{name}','{gpu}','nvidia{gpu}','n1','{value}','{labels}'"
            yield row.replace("'", '"')


@pytest.mark.parametrize("minutes", [smi_minutes, dcgm_minutes])
def test_disagreements_of_sources(tmp_path, minutes):
    jobs = [("101", "nlp", "gpu", 0, 0, 2, 2, "n1"), ("102", "vision", "gpu", 0, 0, 1, 1, "n2")]
    (tmp_path / "n1.csv").write_text("\n".join([*minutes(), ""]))
    cluster = gp.read(write_accounting(tmp_path / "sacct.txt", *jobs), tmp_path / "n1.csv", tz="UTC")
    found = cluster.quality(by=["check", "source", "team"])
    found.chart()
    assert set(found.df.rows()) == {
        ("active without a job", "telemetry", None, 360, 6.0),  # 2 h before and after, on 3 GPUs
        ("allocated without telemetry", "slurm", "vision", 1, 1.0),
    }
    other = gp.read(write_accounting(tmp_path / "pods.txt", (*jobs[0][:6], 1, "n1")), tz="UTC")
    lists = cluster.quality(by=["check", "team"], against=other).df.filter(
        ~pl.col("check").str.contains("telemetry|active")
    )
    assert lists.rows() == [("other number of GPUs", "nlp", 1, 2.0), ("job not in slurm", "vision", 1, 1.0)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.waits(team="visoin"), "did you mean 'vision'|vision"),
        (lambda c: c.ledger(by="tema"), "team"),
        (lambda c: c.waits(percentile=95), "0.95"),
        (lambda c: c.waits(gpus=2), "such as \\(1, 2\\)"),
        (lambda c: c.waits(gpus=(2, -1)), "such as \\(1, 2\\)"),
        (lambda c: c.ledger(by="day", start="01.02.2026"), "a date such as"),
        (lambda c: c.ledger(by="day", start=20260201), "a date such as"),
        (lambda c: c.forecast(at="next week"), "a date such as"),
        (lambda c: c.forecast().exhaustion(capacity_fraction=90), "Write 0.9 for 90 %"),
        (lambda c: c.forecast().exhaustion(growth_per_week={"vision": 20}), "0.02 for 2 %"),
        (lambda c: c.forecast().exhaustion(growth_per_week={"visoin": 0.2}), "vision"),
        (lambda c: c.forecast().exhaustion(added_gpus={"vision": 16}), "2026-05-01"),
        (lambda c: c.costs().commitments(36, gpus=-8), "a whole number from 1"),
        (lambda c: c.costs().commitments("36"), "a whole number from 1"),
        (lambda c: c.ledger(by=["user", "job"], top=(20, 3, 1)), "such as \\(20, 3\\)"),
        (lambda c: c.ledger(by="user", sort="wasted"), "sort 'wasted' is unknown"),
        (lambda c: c.ledger(by="user", sort="idle"), "Did you mean 'allocated_idle', 'idle_pending'"),
        (lambda c: c.ledger(by="user", sort="alocated_idle"), "Did you mean 'allocated_idle'"),
        (lambda c: c.quality(by="severity"), "check"),
        (lambda c: c.fair_share({"max_run_hour": 2}), "max_run_hours"),
        (lambda c: c.fair_share({"teams": [{"name": "vision", "gpus": -8}]}), "from 0"),
        (lambda c: gp.wait_curve(c, gpus=64), "numbers of GPUs above 0"),
        (lambda c: gp.wait_curve(c, gpus=["64"]), "numbers of GPUs above 0"),
        (lambda c: gp.decide(c, growth_per_week=20), "growth_per_week"),
        (lambda c: gp.decide(c, gpus=-8), "gpus"),
        (lambda c: gp.decide(c, month="February"), "a month of the data"),
        (lambda c: c.cost(by="team", prices=-1), "prices|price"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_with_the_fix(cluster, call, words):
    with pytest.raises(GpuPlannerError, match=words) as error:
        call(cluster)
    assert str(error.value).count("expected") == 1
    assert "got" in str(error.value)


def test_texts_of_objects_are_short(cluster):
    view = cluster.waits()
    for item in (cluster, view, cluster.forecast(), cluster.costs()):
        assert len(repr(item)) < 200
    assert math.isclose(view.df["wait_hours"].sum(), cluster.waits(by="team").df["wait_hours"].sum())
