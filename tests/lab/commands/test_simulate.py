"""``gpuplanner simulate --jobs``: the figures of other simulators, limits, and options that make no sense."""

from __future__ import annotations

import csv
import json
import re

import polars as pl
import pytest

from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.lab.job_lists import read_job_list
from gpuplanner.lab.orders import ORDERS, QUEUES, ResearchRules
from gpuplanner.simulate import Fleet

LIST = "job_id,submit_time,duration,num_gpus\na,0,100,6\nb,1,100,8\nc,2,90,2\nd,3,30,2\n"


@pytest.fixture
def jobs(tmp_path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(LIST)
    return str(path)


@pytest.mark.data
@pytest.mark.parametrize(("order", "queue", "per_node"), [("sjf", "strict", 8), ("fifo", "pass", None)])
def test_it_prints_the_figures_of_the_reference(command, public_data, order, queue, per_node):
    words = {"strict": f"{order} strict", "pass": f"{order}, fitting jobs pass"}[queue]
    rows = csv.DictReader((public_data / "sim" / "reference_values.csv").read_text().splitlines())
    expected = next(
        row for row in rows
        if (row["input"], row["policy"], row["gpus_per_node"]) == ("philly_2869ce", words, str(per_node or ""))
    )  # fmt: skip
    nodes = ("--gpus-per-node", str(per_node)) if per_node else ()
    path = str(public_data / "sim" / "philly_2869ce.csv")
    code, out, err = command(
        "simulate", "--jobs", path, "--gpus", "128", *nodes, "--order", order, "--queue", queue, "--json"
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert set(found) == {
        "avg_jct_s", "avg_queueing_delay_s", "last_end_s", "makespan_s", "seconds", "seconds_with_tables",
        "distribution",
    }  # fmt: skip
    for name in ("avg_jct_s", "avg_queueing_delay_s", "last_end_s"):
        digits = len(expected[name].partition(".")[2])
        assert round(found[name], digits) == float(expected[name])


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_limits_are_multiples_of_durations(command, jobs, factor):
    table, _ = read_job_list(jobs)
    run = schedule(
        table.with_columns(pl.col("limit_s") * factor),
        Fleet("H100-80GB-SXM5", 1, 8),
        GangRules(queue="easy"),
        policy="p",
    )
    code, out, _ = command(
        "simulate", "--jobs", jobs, "--gpus", "8", "--queue", "easy", "--limit-factor", str(factor), "--json"
    )
    assert code == 0
    assert json.loads(out)["avg_queueing_delay_s"] == run["queued_s"].mean()


def test_spread_of_the_waits_and_idle_gpus_are_a_count(command, jobs):
    """8 GPUs: a holds 6 until 100 and c the others until 92, b waits for all 8 from 1 to 100 and d for b until 200."""
    arguments = ("--jobs", jobs, "--gpus", "8", "--queue", "easy", "--idle", "--json")
    found = json.loads(command("simulate", *arguments)[1])
    waits = next(row for row in found["distribution"] if row["measure"] == "queueing_delay_s")
    assert (waits["jobs"], waits["p50"], waits["max"]) == (4, 99 / 2, 197)
    assert waits["p95"] == pytest.approx(99 + 0.85 * (197 - 99))
    # Idle: 2 GPUs until 2, then 2 from 92 to 100, and 6 while d runs alone from 200 to 230.
    assert found["idle_gpu_hours"] * 3600 == pytest.approx(2 * 2 + 2 * 8 + 6 * 30)
    assert found["idle_while_waiting_gpu_hours"] * 3600 == pytest.approx(2 * 1 + 2 * 8)
    assert found["stranded_for_head_gpu_hours"] == found["idle_while_waiting_gpu_hours"]
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(6 * 100 + 8 * 100 + 2 * 90 + 2 * 30)
    assert found["useful_gpu_hours"] == found["busy_gpu_hours"]
    assert "Measures of single jobs" in command("simulate", *arguments[:-1])[1]


def test_looser_limits_let_a_job_pass_that_delays_the_first(command, jobs):
    def waits(factor: str) -> float:
        arguments = ("--jobs", jobs, "--gpus", "8", "--queue", "easy", "--limit-factor", factor, "--json")
        return json.loads(command("simulate", *arguments)[1])["avg_queueing_delay_s"]

    # b waits for a, which ends at 100; c runs beside it until 92. Then d, of 30 s, has to wait for b ...
    assert waits("1") == (0 + 99 + 0 + 197) / 4
    # ... but not if a is thought to take 200 s and d 60 s: it runs until 122, and b after it.
    assert waits("2") == (0 + 121 + 0 + 89) / 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "0"), "greater than or equal to 1"),
        (("--gpus", "8", "--gpus-per-node", "0"), "greater than or equal to 1"),
        (("--gpus", "8", "--gpus-per-node", "3"), "not a number of whole nodes of 3 GPUs"),
        (("--gpus", "8", "--board", "A30", "--seed", "1"), "--board, --seed: without meaning with --jobs"),
        (("--gpus", "8", "--set", "seed=1"), "--set: without meaning with --jobs"),
        (("--gpus", "8", "--limit-factor", "0.5"), "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_before_the_run(command, jobs, arguments, said):
    code, out, err = command("simulate", "--jobs", jobs, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_fleet_that_would_take_all_memory_is_refused(command, jobs) -> None:
    code, out, err = command("simulate", "--jobs", jobs, "--gpus", "99999999999", "--json")
    assert (code, out) == (3, "")
    assert "at most 10000000 GPUs" in err


def test_options_of_a_job_list_are_refused_with_a_scenario(command):
    code, out, err = command("simulate", "sample", "--order", "sjf", "--gpus", "8")
    assert (code, out) == (2, "")
    assert "--gpus, --order: without meaning with SCENARIO" in err


@pytest.mark.parametrize(
    ("order", "queue"),
    [
        ("srtf", "pass"),
        pytest.param("las", "pass", marks=pytest.mark.long),
        pytest.param("fifo", "conservative", marks=pytest.mark.long),
    ],
)
def test_it_prints_what_the_schedule_says(command, jobs, order, queue):
    table, _ = read_job_list(jobs)
    rules = ResearchRules(order=order, queue=queue)
    run = schedule(table, Fleet("H100-80GB-SXM5", 1, 8), rules, policy="p")
    words = ("--jobs", jobs, "--gpus", "8", "--order", order, "--queue", queue, "--json")
    code, out, _ = command("simulate", *words)
    assert code == 0
    assert json.loads(out)["avg_queueing_delay_s"] == run["queued_s"].mean()


def test_what_stops_jobs_has_spells_to_count_idle_gpus_by(command, jobs):
    arguments = ("--jobs", jobs, "--gpus", "8", "--order", "srtf", "--idle", "--json")
    found = json.loads(command("simulate", *arguments)[1])
    assert 0 <= found["stranded_for_head_gpu_hours"] <= found["idle_gpu_hours"]
    assert found["useful_gpu_hours"] * 3600 == pytest.approx(6 * 100 + 8 * 100 + 2 * 90 + 2 * 30)
    assert found["useful_gpu_hours"] < found["busy_gpu_hours"]


@pytest.mark.parametrize(("option", "choices"), [("--order", ORDERS), ("--queue", QUEUES)])
def test_the_help_names_every_choice(root, option, choices):
    said = (
        (root / "docs" / "commands.md").read_text().split("## `gpuplanner simulate`\n")[1].split("\n## ")[0]
    )
    line = next(line for line in said.splitlines() if line.startswith(f"| `{option}"))
    assert [choice for choice in choices if not re.search(rf"\b{choice}\b", line)] == []
