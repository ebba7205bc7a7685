"""Lists of jobs: what is read and rejected, the published figures of other simulators, and the command."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.simulator.job_list_simulation import read_job_list, simulate_job_list, summarize_run
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests

HEAD = "job_id,submit_time,duration,num_gpus\n"
WITH_LIMIT = "job_id,submit_time,duration,num_gpus,limit_s\n"
FOUR_JOBS = HEAD + "a,0,100,6\nb,1,100,8\nc,2,90,2\nd,3,30,2\n"
PUBLISHED_RULES = {
    "fifo strict": ("strict", False),
    "sjf strict": ("strict", True),
    "fifo, fitting jobs pass": ("pass", False),
    "sjf, fitting jobs pass": ("pass", True),
}

PUBLISHED_COLUMNS = {
    "avg_jct_s": "mean_completion_s",
    "avg_queueing_delay_s": "mean_wait_s",
    "last_end_s": "last_end_s",
}
COMMAND_QUEUES = {"fifo strict": "fifo", "sjf strict": "sjf", "fifo, fitting jobs pass": "pass"}


@pytest.fixture
def write_list(tmp_path):
    def write(text):
        path = tmp_path / "jobs.csv"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected columns 'job_id'.*got nothing"),
        ("job_id;submit_time;duration;num_gpus\na;0;5;1\n", "got no 'job_id'.* among 'job_id;submit_time;"),
        ("job_id,submit_time,duration,num_gpus,num_gpus\na,0,5,1,8\n", "got 'num_gpus' more than once"),
        (HEAD + "a,0,5\nb,0,5,1,7\n", "expected a CSV file.*output of sacct or another scheduler use gpuplanner start"),
        (HEAD, "at least one job; got no rows"),
        ("job_id,submit_time,num_gpus\na,0,1\n", "got no 'duration'"),
        (HEAD + "a,0,5,1\nb,0,-5,1\n", "'duration': expected a number from 0 to 1e12; got 1 of 2 others: 'row 2: -5'"),
        (HEAD + "a,0,5,0\n", "'num_gpus': expected a whole number from 1"),
        (HEAD + "a,0,5,1.5\n", "'num_gpus'.*row 1: 1.5"),
        (HEAD + "a,soon,5,1\n", "'submit_time'.*row 1: soon"),
        (HEAD + "a,0,1e308,1\n", "'duration'.*from 0 to 1e12.*row 1: 1e308"),
        (HEAD + "a,0,5,1e20\n", "'num_gpus'.*row 1: 1e20"),
        (HEAD + "a,0,5,\n", "'num_gpus'.*row 1: nothing"),
        (HEAD + ",0,5,1\n", "'job_id': expected an id.*row 1: nothing"),
        (HEAD + "a,0,5,1\nb,0,5,1\na,0,5,1\n", "that stand once; got 2 of 3 others: 'row 1: a', 'row 3: a'"),
        (WITH_LIMIT + "a,0,5,1,never\n", "'limit_s'.*row 1: never"),
        (WITH_LIMIT + "a,0,5,1,0\n", "'limit_s'.*row 1: 0"),
        (HEAD + "a,0,inf,1\n", "'duration'.*inf"),
    ],
)
def test_bad_lists_are_rejected_by_column_and_row(write_list, text, words):
    with pytest.raises(TraceFormatError, match=words):
        read_job_list(write_list(text))


def test_gzip_optional_columns_and_remarks(tmp_path):
    path = tmp_path / "jobs.csv.gz"
    rows = "job_id,submit_time,duration,num_gpus,tenant,limit_s,tier\nb,1,5,1,y,,0\na,0,5,1,x,9,1\nz,0,0,1,x,,0\n"
    path.write_bytes(gzip.compress(rows.encode()))
    jobs, remarks = read_job_list(path)
    assert jobs.select("job_id", "tenant", "limit_s").rows() == [("a", "x", 9.0), ("z", "x", 0.0), ("b", "y", 5.0)]
    assert [remark.partition(":")[0] for remark in remarks] == [
        "columns that are not read", "rows out of order of submission", "submissions at the instant of another",
        "durations of zero",
    ]  # fmt: skip
    assert remarks[0].endswith("'tier'")


def published_rows(folder):
    """Rows of the reference values that do not stop running jobs, with their jobs, nodes and GPUs of each node."""
    rows = pl.read_csv(folder / "sim" / "reference_values.csv", infer_schema=False)
    for row in rows.filter(pl.col("policy").is_in(list(PUBLISHED_RULES))).iter_rows(named=True):
        (source,) = (folder / "sim").glob(f"{row['input']}.csv*")
        gpus = int(row["gpus"])
        per_node = int(row["gpus_per_node"] or gpus)
        yield row, read_job_list(source)[0], gpus // per_node, per_node


def assert_published(row, jobs, start_s):
    """The figures of a run have every digit that was published."""
    outcomes = jobs.with_columns(start_s=start_s).with_columns(end_s=pl.col("start_s") + pl.col("run_s"))
    summary = summarize_run(outcomes, gpus=int(row["gpus"]))
    for published, name in PUBLISHED_COLUMNS.items():
        digits = len(row[published].partition(".")[2])
        assert f"{summary[name]:.{digits}f}" == row[published], (row, name)


@pytest.mark.data
def test_published_figures_hold_to_every_digit(public_data):
    rows = list(published_rows(public_data))
    assert len(rows) == 10
    for row, jobs, nodes, per_node in rows:
        submit_s, run_s, gpus = (jobs[name].to_numpy() for name in ("submit_s", "run_s", "gpus"))
        per, (queue, shortest_first) = np.minimum(gpus, per_node), PUBLISHED_RULES[row["policy"]]
        asked = NodeRequests(submit_s, submit_s, run_s, run_s, 0 * gpus, gpus, -(-gpus // per_node), per)
        fleet, order = NodeFleet.of_full_gpus([per_node] * nodes), run_s if shortest_first else None
        assert_published(row, jobs, pl.Series(simulate_requests(asked, fleet, queue=queue, order=order).start_s))


@pytest.mark.data
def test_the_command_prints_the_published_figures(command, public_data):
    path = str(public_data / "sim" / "philly_2869ce.csv")
    rows = [(row, nodes, size) for row, _, nodes, size in published_rows(public_data) if "philly" in row["input"]]
    assert len(rows) == 3
    for row, nodes, per_node in rows:
        fleet = ("--gpus", str(nodes * per_node), "--gpus-per-node", str(per_node))
        queue = COMMAND_QUEUES[row["policy"]]
        code, out, err = command("simulate", path, *fleet, "--queue", queue, "--json")
        assert (code, err) == (0, "")
        printed = json.loads(out)
        for published, name in PUBLISHED_COLUMNS.items():
            digits = len(row[published].partition(".")[2])
            assert f"{printed[name]:.{digits}f}" == row[published], (row, name)


@pytest.mark.parametrize(
    ("queue", "starts"),
    [
        ("fifo", [0.0, 100.0, 200.0, 200.0]),
        ("pass", [0.0, 122.0, 2.0, 92.0]),
        ("backfill", [0.0, 100.0, 2.0, 200.0]),
        ("sjf", [0.0, 122.0, 2.0, 92.0]),
    ],
)
def test_starts_of_four_jobs_on_eight_gpus_by_hand(write_list, queue, starts):
    jobs, _ = read_job_list(write_list(FOUR_JOBS))
    assert simulate_job_list(jobs, gpus=8, gpus_per_node=8, queue=queue)["start_s"].to_list() == starts


def test_fair_share_serves_the_team_that_used_least(write_list):
    """Team x ran for an hour; then its second job and y's first wait for the same GPUs, and y goes first."""
    text = "job_id,submit_time,duration,num_gpus,tenant\na,0,3600,8,x\nb,1,60,8,x\nc,2,60,8,y\n"
    jobs, _ = read_job_list(write_list(text))
    fair = simulate_job_list(jobs, gpus=8, gpus_per_node=8, queue="fair")
    assert fair["start_s"].to_list() == [0.0, 3660.0, 3600.0]


def test_looser_limits_let_a_job_pass_that_delays_the_first(write_list):
    """If a is limited to 200 s and d to 60 s, d passes b and delays it by 22 s."""
    text = WITH_LIMIT + "a,0,100,6,200\nb,1,100,8,200\nc,2,90,2,180\nd,3,30,2,60\n"
    jobs, _ = read_job_list(write_list(text))
    outcomes = simulate_job_list(jobs, gpus=8, gpus_per_node=8, queue="backfill")
    assert outcomes["start_s"].to_list() == [0.0, 122.0, 2.0, 92.0]


def test_the_command_prints_figures_and_a_table_of_waits(command, write_list):
    path = str(write_list(FOUR_JOBS))
    code, out, err = command("simulate", path, "--gpus", "8", "--queue", "backfill", "--json")
    printed = json.loads(out)
    assert (code, err) == (0, "")
    assert printed["mean_wait_s"] == (0 + 99 + 0 + 197) / 4
    assert printed["utilization"] == pytest.approx((600 + 800 + 180 + 60) / (8 * 230))
    waits = printed["waits"][0]
    assert (waits["measure"], waits["p50"], waits["max"]) == ("wait_s", 99 / 2, 197)
    assert waits["p95"] == pytest.approx(99 + 0.85 * (197 - 99))
    text = command("simulate", path, "--gpus", "8", "--queue", "backfill")[1]
    assert re.search(r"mean queue wait \(s\) +74\b", text)
    assert re.search(r"queue wait \(s\) +74 +49\.5 ", text.split("Queue wait and completion time of the jobs")[1])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpus", "8", "--queue", "lifo"], 3, "queue 'lifo' is unknown"),
        (["--gpus", "4"], 3, "'num_gpus'.*at most the 4 GPUs.*2 larger jobs: 'a', 'b'"),
        (["--gpus", "12", "--gpus-per-node", "8"], 3, "full nodes of 8 GPUs"),
        (["--gpus", "99999999999"], 3, "at most 10000000 GPUs"),
        (["--gpus", "0"], 2, ">=1|greater than or equal to 1"),
        ([], 2, "--gpus"),
    ],
)
def test_the_command_rejects_what_makes_no_fleet(command, write_list, arguments, code, words):
    ended, out, err = command("simulate", str(write_list(FOUR_JOBS)), *arguments)
    assert (ended, out) == (code, "")
    assert re.search(words, err)


def test_resampled_lists_bound_completion_time_and_makespan(command, write_list):
    rng = np.random.default_rng(3)
    rows = [f"j{number},{60 * number},{rng.integers(60, 900)},{rng.integers(1, 8)}\n" for number in range(200)]
    path = write_list(HEAD + "".join(rows))
    asked = ("simulate", str(path), "--gpus", "16", "--replications", "20", "--json", "--quiet")
    code, out, err = command(*asked)
    assert code == 0, err
    told = json.loads(out)
    for name in ("makespan_s", "mean_completion_s", "mean_wait_s"):
        low, high = told["intervals"][name]
        assert 0 < low < high
    low, high = told["intervals"]["mean_completion_s"]
    assert low < told["mean_completion_s"] < high
    assert command(*asked)[1] == out
    # Of equal jobs, every resampled list is the list itself.
    path = write_list(HEAD + "".join(f"j{number},{number},100,4\n" for number in range(9)))
    told = json.loads(command("simulate", str(path), "--gpus", "8", "--replications", "3", "--json")[1])
    assert all(ends == [told[name]] * 2 for name, ends in told["intervals"].items())


@pytest.mark.parametrize(
    ("gpus", "more", "fleets"),
    [
        (16, [], [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32]),
        (16, ["--gpus-per-node", "4"], [8, 12, 16, 20, 24, 28, 32]),
        (10, [], [8, 9, 10, 11, 12, 14, 15, 16, 18, 19, 20]),
        (12, ["--gpus-per-node", "6"], [12, 18, 24]),
    ],
)
def test_the_wait_curve_covers_half_to_twice_the_fleet_or_names_where_it_begins(
    command, write_list, gpus, more, fleets
):
    path = str(write_list(FOUR_JOBS))
    code, out, err = command("simulate", path, "--gpus", str(gpus), *more, "--curve", "--json")
    assert code == 0
    points = {row["gpus"]: row["mean_wait_s"] for row in json.loads(out)["curve"]}
    assert list(points) == fleets
    assert points[gpus] == json.loads(out)["mean_wait_s"]
    of_nodes = " of whole nodes" if more else ""
    named = f"begins at {fleets[0]} GPUs: no smaller fleet{of_nodes} has the GPUs of the largest job, 8"
    assert (named in err) == (fleets[0] > gpus / 2)
