"""``gpuplanner simulate --jobs`` with the orders and queues of the lab."""

from __future__ import annotations

import json
import re

import pytest

from gpuplanner.lab.orders import ORDERS, QUEUES, ResearchRules
from gpuplanner.simulate import Fleet, read_job_list, schedule
from tests.cli.test_simulate import LIST


@pytest.fixture
def jobs(tmp_path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(LIST)
    return str(path)


@pytest.mark.parametrize(("order", "queue"), [("srtf", "pass"), ("las", "pass"), ("fifo", "conservative")])
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


@pytest.mark.parametrize(("option", "choices"), [("--order", ORDERS), ("--queue", QUEUES)])
def test_the_help_names_every_choice(root, option, choices):
    said = (
        (root / "docs" / "commands.md").read_text().split("## `gpuplanner simulate`\n")[1].split("\n## ")[0]
    )
    line = next(line for line in said.splitlines() if line.startswith(f"| `{option}"))
    assert [choice for choice in choices if not re.search(rf"\b{choice}\b", line)] == []
