"""Commands on a fleet of several GPU models: what each says of one is what it says of the pool by itself."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from gpuplanner.cli.application import main
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.quota_and_placement_comparison import compare_stated_rules
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage.planning_history import split_into_pools
from tests.usage.test_fleet import DAY, made, nodes

RUN_H = 1.5


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """One A100 node that six jobs a day queue for, in order, beside a T4 node that is idle but for an hour a day."""
    trace = made([("A100-40GB", 2, 0, 1)] * 6 + [("T4", 1, 0, 1)], nodes(("a1", "A100-40GB", 2), ("t1", "T4", 2)))
    day, number = (pl.col("job_id").str.split("-").list.get(place).cast(pl.Int64) for place in (0, 1))
    hours = number.cast(pl.Float64)

    def at(after_h):
        return pl.lit(DAY) + pl.duration(days=day, seconds=(after_h * 3600).cast(pl.Int64))

    slow = pl.col("gpu_model") == "A100-40GB"
    start = pl.when(slow).then(8 + RUN_H * hours).otherwise(8.0)
    jobs = trace.jobs.with_columns(
        submit_time=at(pl.when(slow).then(8 + hours).otherwise(8.0)).cast(trace.jobs.schema["submit_time"]),
        start_time=at(start).cast(trace.jobs.schema["start_time"]),
        end_time=at(start + pl.when(slow).then(RUN_H).otherwise(1.0)).cast(trace.jobs.schema["end_time"]),
    )
    folder = tmp_path_factory.mktemp("crowded") / "crowded"
    write_dataset(trace.with_tables(jobs=jobs), folder)
    return Scenario(name="crowded", data=str(folder))


def test_fairness_of_several_boards_is_of_all_of_them(crowded, tmp_path, monkeypatch, capsys):
    (tmp_path / "s.yaml").write_text(crowded.to_yaml())
    monkeypatch.setattr(sys, "argv", ["gpuplanner", "fairness", str(tmp_path / "s.yaml"), "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    told = json.loads(capsys.readouterr().out)
    assert left.value.code == 0
    assert set(told["pools"]) == {"A100-40GB", "T4"}
    held = {name: sum(row["allocated_gpu_hours"] for row in one["teams"]) for name, one in told["pools"].items()}
    assert held["A100-40GB"] == pytest.approx(held["T4"] * 6 * 2 * RUN_H, rel=0.1)


def said_by(capsys, monkeypatch, *words):
    """What a command prints."""
    monkeypatch.setattr(sys, "argv", ["gpuplanner", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.long
def test_quotas_and_failures_are_played_on_every_board(crowded, tmp_path, monkeypatch, capsys):
    asked = crowded.but(policies="power_down_idle", gpu_mtbf_hours=50.0)
    (tmp_path / "s.yaml").write_text(asked.to_yaml())
    page = str(tmp_path / "ways.html")
    told = json.loads(
        said_by(capsys, monkeypatch, "compare", str(tmp_path / "s.yaml"), "--json", "--quiet", "--chart", page)
    )
    html = (tmp_path / "ways.html").read_text()
    for name, own in split_into_pools(asked).pools.items():
        assert told["pools"][name]["sharing"] == json.loads(json.dumps(compare_stated_rules(own).to_dict()))
        assert f"Policy comparison on {name}" in html
