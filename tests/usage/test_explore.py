"""The inbox: cuts of one trace agree with the whole, with the tables they come from, and with each other."""

from __future__ import annotations

import json
from datetime import date

import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage.allocated_hours import allocated_and_active
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, explore_dataset, find_dataset_folder
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket
from gpuplanner.usage.planning_history import load_dataset, observation_begins_at, observation_ends_at


@pytest.fixture(scope="module")
def box():
    return explore_dataset("sample", tz="Europe/Berlin")


def test_months_are_local_and_sum_to_the_ledger(box):
    months = box.months()
    assert months["period"].to_list() == [date(2026, 2, 1), date(2026, 3, 1)]  # one hour of March in Berlin
    assert months["gpu_hours"][1] == pytest.approx(64.0)
    assert months["gpu_hours"].sum() == pytest.approx(hours_by_bucket(box.gpu_hour_ledger)["gpu_hours"].sum(), rel=1e-9)


def test_tenants_partition_what_is_held(box):
    held = [box.months(tenant)["gpu_hours"].sum() for tenant in box.tenants]
    buckets = dict(box.buckets().select(pl.col("bucket").cast(pl.String), "gpu_hours").iter_rows())
    assert sum(held) == pytest.approx(buckets["used"] + buckets["no_telemetry"] + buckets["allocated_idle"], rel=1e-9)
    assert held == sorted(held, reverse=True)


def test_activity_is_that_of_the_ledger(box):
    trace = load_dataset("sample")
    alone = allocated_and_active(
        trace.jobs, trace.samples, start=observation_begins_at(trace), end=observation_ends_at(trace)
    ).drop("active")
    assert box.rows_of(box.activity, "search").equals(alone.filter(tenant="search"))
    assert box.rows_of(box.activity, ALL_TENANTS_LABEL).equals(alone)


def test_jobs_are_those_with_telemetry(box):
    assert len(box.jobs_of()) == 44
    assert set(box.jobs_of("search")) == set(box.jobs_with_telemetry.filter(tenant="search")["job_id"])
    counts = box.trace.samples.filter(job_id=box.jobs_of()[0]).height
    assert box.jobs_with_telemetry["readings"].to_list()[0] == counts == box.jobs_with_telemetry["readings"].max()


def test_a_job_is_the_same_alone_as_among_all(box):
    view = box.job("job-002875")
    among = box.job_phases.filter(job_id="job-002875")
    assert view.phases.select(among.columns).equals(among)
    assert view.phases["bound"].null_count() == 0
    assert view.phases["end"].to_list()[:-1] == view.phases["start"].to_list()[1:]


def test_without_telemetry_there_is_nothing_to_say_of_phases():
    trace = load_dataset("sample")
    tables = {"jobs": trace.jobs, "inventory": trace.inventory}
    blind = explore_dataset(Dataset(tables, trace.rejects, trace.quality, trace.provenance))
    assert blind.jobs_of() == []
    assert (blind.job_phases, blind.signatures, blind.claim, blind.quality_report.coverage) == (None,) * 4
    with pytest.raises(ScenarioError, match="Ingest telemetry"):
        blind.job("job-002875")


@pytest.mark.data
@pytest.mark.parametrize(("name", "kept"), [("fox", None), ("openb", 8152), ("philly", 53257)])
def test_public_traces_open_by_name(public_data, monkeypatch, name, kept):
    monkeypatch.setenv("GPUPLANNER_DATA", str(public_data))
    box = explore_dataset(name)
    assert kept in (None, box.trace.jobs.height)
    assert box.months()["gpu_hours"].sum() == pytest.approx(box.gpu_hour_ledger["gpu_hours"].sum(), rel=1e-9)


@pytest.mark.data
@pytest.mark.parametrize(("name", "jobs"), [("fox", None), ("openb", 8152), ("philly", 53257)])
def test_commands_read_the_names_that_the_notebook_opens(public_data, monkeypatch, tmp_path, command, name, jobs):
    monkeypatch.setenv("GPUPLANNER_DATA", str(public_data))
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # as in the folder of the traces: no dataset
    code, out, err = command("describe", name, "--json")
    assert code == 0, err
    assert json.loads(out)["facts"]["jobs"] == (jobs or explore_dataset(name).trace.jobs.height)
    assert command("waits" if name == "fox" else "cost", name, "--json")[0] == 0
    (folder,) = (tmp_path / "cache" / "traces").iterdir()  # imported once
    assert find_dataset_folder(name) == str(folder / name)
    write_dataset(load_dataset("sample"), tmp_path / name)
    assert find_dataset_folder(name) == name


def test_a_name_of_no_trace_is_still_refused(command, monkeypatch):
    monkeypatch.delenv("GPUPLANNER_DATA", raising=False)
    for arguments in (("describe", "philly"), ("waits", "fox"), ("cost", "philly")):
        code, _, err = command(*arguments)
        assert code == 3
        assert arguments[1] in err


def test_small_tenants_stand_together_in_all_that_is_shown():
    trace = load_dataset("sample")
    first = trace.jobs.filter(tenant="vision")["user"].min()
    alone = pl.when(pl.col("user") == first).then(pl.lit("solo")).otherwise("tenant")
    jobs = trace.jobs.with_columns(tenant=alone)
    box = explore_dataset(trace.with_tables(jobs=jobs), smallest_group=5)
    tables = (box.gpu_hour_ledger, box.demand_series, box.activity, box.allocated_by_end_state, box.jobs_with_telemetry)
    assert all("solo" not in table["tenant"] for table in tables)
    people = box.trace.jobs.group_by("tenant").agg(pl.col("user").n_unique())
    assert people["user"].min() >= 5


def test_demand_in_gpus_weighs_slices_by_their_share(box):
    both = box.demand_series.join(box.demand_gpus, on=["unique_id", "ds"], suffix="_gpus")
    sums = dict(both.group_by("profile").agg(pl.col("y_gpus").sum() / pl.col("y").sum()).iter_rows())
    assert sums["gpu"] == 1.0
    assert sums["3g.40gb"] == pytest.approx(3 / 7)
    assert sums["1g.10gb"] == pytest.approx(1 / 7)
