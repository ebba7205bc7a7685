"""Published job lists on which independent simulators agree; values as printed in reference_values.csv."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.lab.job_lists import read_job_list, totals
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

pytestmark = pytest.mark.data
BOARD = "H100-80GB-SXM5"
POLICIES = {
    "fifo strict": GangRules(order="fifo", queue="strict"),
    "sjf strict": GangRules(order="sjf", queue="strict"),
    "fifo, fitting jobs pass": GangRules(order="fifo", queue="pass"),
    "sjf, fitting jobs pass": GangRules(order="sjf", queue="pass"),
}


def fleet_of(row):
    gpus = int(row["gpus"])
    per_node = int(row["gpus_per_node"] or gpus)  # a pool is one node that has all GPUs
    return Fleet(BOARD, gpus // per_node, per_node)


def jobs_of(folder, name):
    (source,) = (folder / "sim").glob(f"{name}.csv*")
    return read_job_list(source)[0]


def differences(found, row):
    """Figures that differ from the reference in a digit that it shows."""
    shown = {name: row[name] for name in ("avg_jct_s", "avg_queueing_delay_s", "last_end_s")}
    return {
        name: (found[name], text)
        for name, text in shown.items()
        if f"{found[name]:.{len(text.partition('.')[2])}f}" != text
    }


def test_every_row_is_met_to_every_digit_shown(public_data):
    rows = pl.read_csv(public_data / "sim" / "reference_values.csv", infer_schema=False)
    rows = rows.filter(pl.col("policy").is_in(list(POLICIES)))
    assert rows.height >= 10
    faults = {}
    for row in rows.iter_rows(named=True):
        jobs = jobs_of(public_data, row["input"])
        outcomes = schedule(jobs, fleet_of(row), POLICIES[row["policy"]], policy="p")
        if found := differences(totals(outcomes), row):
            faults[row["input"], row["policy"], row["placement"]] = found
    assert not faults


def test_the_run_over_a_calendar_meets_the_fifo_rows_too(public_data):
    rows = pl.read_csv(public_data / "sim" / "reference_values.csv", infer_schema=False)
    strict = rows.filter(pl.col("policy") == "fifo strict")
    assert strict.height == 5
    for row in strict.iter_rows(named=True):
        fleet, jobs = fleet_of(row), jobs_of(public_data, row["input"])
        calendar = Calendar.constant({"gpu": fleet.gpus})
        run = simulate(jobs, fleet, calendar, Rules(queue="strict"), policy="fifo")
        assert not differences(totals(run.outcomes.with_columns(queued_s="wait_s")), row)
