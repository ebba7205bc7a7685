"""Dumps that say little, or nothing: answered with less, or with the command that adds what is missing."""

from __future__ import annotations

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.recommendation import decide


def line(number, day, hour, hours, gpus=1, node="n1", state="COMPLETED", waited_h=0.0, start=True):
    def at(value):
        whole = int(value * 60)
        return f"2026-03-{day + whole // 1440:02d}T{whole % 1440 // 60:02d}:{whole % 60:02d}:00"

    begun, ended = (at(hour + waited_h), at(hour + waited_h + hours)) if start else ("Unknown", "Unknown")
    tres = f"gres/gpu={gpus},node=1"
    place, held = (node, tres) if start else ("None assigned", "")
    return f"{number}|u|lab|gpu|{state}|{at(hour)}|{begun}|{ended}|1|{place}|{tres}|{held}"


def decided(accounted, name, lines, **more):
    return decide(Scenario(data=accounted(name, lines), actuator="slurm", **more)).decision


def test_one_job(accounted):
    found = decided(accounted, "one", [line(1, 2, 9, 2.0)])
    assert (found.action, found.measures, found.fleet_inferred) == ("none", (), True)
    assert found.reason.startswith("1 job was submitted in ")
    assert "at least 50 jobs over at least 5 days" in found.reason
    assert any("gpuplanner ingest nodes" in row.command for row in found.missing)
    assert any("gpuplanner ingest auto" in row.command for row in found.missing)


def test_one_day(accounted):
    found = decided(accounted, "day", [line(n, 2, n % 20, 1.0) for n in range(1, 60)])
    assert found.action == "none"
    assert found.saving.value is None


def test_no_job_started(accounted):
    found = decided(accounted, "pending", [line(n, 2, n % 20, 1.0, state="PENDING", start=False) for n in range(1, 9)])
    assert (found.action, found.sentence) == ("none", "No recommendation: no job states when it ran.")
    assert found.missing


def test_jobs_longer_than_the_trace(accounted):
    lines = [line(n, 2, 0.1 * n, 1.0, state="RUNNING").replace("|2026-03-02T", "|2026-03-02T") for n in range(1, 6)]
    lines = ["|".join([*row.split("|")[:7], "Unknown", *row.split("|")[8:]]) for row in lines]
    found = decided(accounted, "running", lines)
    assert found.action == "none"


def test_a_fleet_all_of_one_size(accounted):
    lines = [line(n, 2 + n // 8, 3 * (n % 8), 2.0, gpus=8) for n in range(1, 81)]
    found = decided(accounted, "eights", lines)
    assert [row.size for row in found.service] == ["5-8 GPUs"]
    assert (found.action, found.fleet_gpus, found.gpus) == ("keep", 8, 8)


def test_half_idle_nodes_are_released(accounted):
    lines = [line(n, 2, 2.1 * n, 1.0, gpus=8, node=f"n{1 + (n % 4 if n < 8 else 0)}") for n in range(112)]
    found = decided(accounted, "idle", lines)
    assert (found.action, found.fleet_gpus, found.gpus) == ("release", 32, 8)
    assert found.saving.value == 24 * 168
    assert any(step.command and step.command.startswith("scontrol update NodeName=") for step in found.next_steps)
