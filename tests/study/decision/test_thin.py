"""Dumps that say little, or nothing: answered with less, or with the command that adds what is missing."""

from __future__ import annotations

from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.decide import decide
from gpuplanner.study.decision.types import ACTIONS, CONFIDENCES


def line(number, day, hour, hours, gpus=1, node="n1", state="COMPLETED", waited_h=0.0, start=True):
    def at(value):
        whole = int(value * 60)
        return f"2026-03-{day + whole // 1440:02d}T{whole % 1440 // 60:02d}:{whole % 60:02d}:00"

    begun, ended = (at(hour + waited_h), at(hour + waited_h + hours)) if start else ("Unknown", "Unknown")
    tres = f"gres/gpu={gpus},node=1"
    place, held = (node, tres) if start else ("None assigned", "")
    return f"{number}|u|lab|gpu|{state}|{at(hour)}|{begun}|{ended}|1|{place}|{tres}|{held}"


def decided(accounted, name, lines, **more):
    return decide(Scenario(data=accounted(name, lines), path="slurm", **more)).decision


def test_one_job(accounted):
    found = decided(accounted, "one", [line(1, 2, 9, 2.0)])
    assert (found.action, found.confidence, found.fleet_inferred) == ("keep", "peaks only", True)
    assert any("gpuplanner ingest nodes" in row.command for row in found.missing)


def test_one_day(accounted):
    found = decided(accounted, "day", [line(n, 2, n % 20, 1.0) for n in range(1, 60)])
    assert found.action in ACTIONS
    assert found.confidence in CONFIDENCES
    assert found.saving.value is None


def test_no_job_started(accounted):
    found = decided(
        accounted, "pending", [line(n, 2, n % 20, 1.0, state="PENDING", start=False) for n in range(1, 9)]
    )
    assert (found.action, found.sentence) == (
        "unknown",
        "Nothing can be decided yet: no job states when it ran.",
    )
    assert found.missing


def test_jobs_longer_than_the_trace(accounted):
    lines = [
        line(n, 2, 0.1 * n, 1.0, state="RUNNING").replace("|2026-03-02T", "|2026-03-02T") for n in range(1, 6)
    ]
    lines = ["|".join([*row.split("|")[:7], "Unknown", *row.split("|")[8:]]) for row in lines]
    found = decided(accounted, "running", lines)
    assert found.action in ("keep", "buy")


def test_a_fleet_all_of_one_class(accounted):
    lines = [line(n, 2 + n // 4, 6 * (n % 4), 5.0, gpus=8) for n in range(1, 41)]
    found = decided(accounted, "eights", lines)
    assert [row.size_class for row in found.service.by_class] == ["5-8 GPUs"]
    assert found.fleet_gpus == 8


def test_few_jobs_of_many_sizes_are_said_to_be_thin(accounted):
    """Ten days, a hundred jobs, most of the fleet at rest: it may be given back, but not without a word."""
    sizes = {1: 8, 2: 8}
    gpus = [size for size, count in sizes.items() for _ in range(count)] + [8] * 96
    lines = [
        line(n, 2, 2.1 * n, 1.0, gpus=size, node=f"n{1 + (n % 4 if n < 8 else 0)}")
        for n, size in enumerate(gpus)
    ]
    found = decided(accounted, "thin", lines)
    assert (found.action, found.confidence) == ("give_back", "left-out days")
    assert any(said.startswith("This is thin: only 112 jobs speak") for said in found.how_sure)
    enough = [line(n, 2, 2.1 * n, 1.0, gpus=8, node=f"n{1 + (n % 4 if n < 8 else 0)}") for n in range(112)]
    assert not any("thin" in said for said in decided(accounted, "enough", enough).how_sure)
