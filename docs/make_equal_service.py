"""Compare policies at equal service and write ``docs/equal_service.md``: ``python docs/make_equal_service.py``.

Needs ``GPUPLANNER_DATA`` for the public traces. Takes a quarter of an hour on one core; the same data give the same
figures.
"""

from __future__ import annotations

import os
import runpy
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpuplanner.errors import ScenarioError
from gpuplanner.inbox import read, write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.comparison import equal_service
from gpuplanner.study.equal_service.growth import growth
from gpuplanner.study.equal_service.hindsight import hindsight
from gpuplanner.study.equal_service.size_classes import SIZE_CLASSES
from gpuplanner.study.equal_service.words import decision, how_sure, target_in_words

HERE = Path(__file__).parent
DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
BOARD = "A100-80GB"
WEEKS = 8
MONTHS = 20
FIRST_SEED = 1000
INTRO = """# Policies at equal service, measured

Made by `python docs/make_equal_service.py`. Every policy is tuned on the earlier half of a month until the target
holds on weeks with more jobs than usual, and is judged on {weeks} weeks drawn from the later half; GPU-hours are
those of GPUs that are on, a week. Changes of layout take as long as the catalogue has it, planned ones are reserved
an hour ahead (a week where that holds the target at no margin) and given up an hour after their time, and a released
unit comes back after five minutes. `over target` is the wait of the class that is worst off over what it may be: at
most 1 holds. Energy is that of the GPUs alone. What was promised is the saving over today's fleet on the weeks tuned
on, with an interval for a single week; realised is that of each whole week kept back, as it was. In hindsight a
policy is tuned on the weeks that it is judged on. Public traces name no board that can be cut; they are played as a
what-if on {board}.
"""


def scenarios(folder: Path) -> Iterator[tuple[str, Scenario]]:
    """What is compared, with a title."""
    sample = Scenario(month="2026-02", replications=WEEKS)
    yield "Sample, nodes released, NVML", _with(sample, path="nvml")
    yield "Sample, single GPUs lent, NVML", _with(sample, path="nvml", release_unit="gpu")
    yield "Sample, nodes released, GPU operator", sample
    public = DATA / "alibaba_gpu_v2023"
    traces = {
        "OpenB": read("openb", public / "openb_pod_list_default.csv.gz",
                      nodes=public / "openb_node_list_gpu_node.csv"),
        "Philly, October 2017": read("philly", DATA / "philly" / "philly.csv.gz", tz="America/Los_Angeles"),
        "ITP, cluster 3": read("itp", DATA / "itp" / "cluster03.csv.gz"),
        "Fox": read("slurm", DATA / "slurm" / "sacct_fox_2025.txt", tz="Europe/Oslo"),
    }  # fmt: skip
    for title, trace in traces.items():
        place = folder / title.split(",")[0]
        write_dataset(trace, place)
        month = "2017-10" if title.startswith("Philly") else None
        yield title, Scenario(data=str(place), board=BOARD, month=month, path="nvml", replications=WEEKS)


def _with(scenario: Scenario, **changed: Any) -> Scenario:  # noqa: ANN401 - fields of several types
    return scenario.with_text(f"{name}={value}" for name, value in changed.items())


def section(title: str, scenario: Scenario) -> str:
    """One comparison as a table."""
    try:
        found = equal_service(scenario).to_dict()
        found["hindsight"] = hindsight(scenario, found)
        if scenario.data == "sample":
            found["growth"] = growth(scenario, found)
    except ScenarioError as error:
        return f"## {title}\n\nRefused: {str(error).replace(scenario.data, title)}\n"
    lines = [f"## {title}", "", f"{target_in_words(found)} {decision(found)}", ""]
    lines += [
        "| policy | GPU-hours a week | kWh | mean wait [min] | over target | completion [min] | changes | holds |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in (found["today"], *found["policies"]):
        held = "yes" if row["meets_target"] else "no"
        energy = "" if row["gpu_kwh"] is None else f"{row['gpu_kwh']:,.0f}"
        lines.append(
            f"| {row['policy']} | {row['gpu_hours']:,.0f} | {energy} | {row['wait_mean_min']:.1f} | "
            f"{row['wait_over_target']:.2f} | {row['completion_mean_min']:.0f} | {row['changes']:.0f} | {held} |"
        )
    booked = "; ".join(
        f"{row['lever']} {row['saved']:,.0f} ({row['saved_reverse']:,.0f})" for row in found["levers"]
    )
    lines += ["", f"Levers, booked in this order (and in the reverse one): {booked}.", ""]
    return "\n".join([*lines, *(f"- {line}" for line in how_sure(found)), "", f"{found['note']}", ""])


def months(folder: Path) -> str:
    """Months of the generator: how often single held-back weeks keep what was promised."""
    make = runpy.run_path(str(HERE.parent / "data" / "make_sample.py"))["make_sample"]
    kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    hours: dict[str, list[float]] = defaultdict(list)
    met: dict[str, list[bool]] = defaultdict(list)
    inside: list[bool] = []
    for seed in range(FIRST_SEED, FIRST_SEED + MONTHS):
        place = folder / f"month-{seed}"
        write_dataset(make(seed), place)
        asked = Scenario(data=str(place), path="nvml", replications=4)
        found = equal_service(asked, ["static_mig", "reactive"]).to_dict()
        low, high = found["promised"]["low"], found["promised"]["high"]
        inside += [low <= saved <= high for saved in found["realised"]]
        for row in (found["today"], *found["policies"]):
            hours[row["policy"]].append(row["gpu_hours"])
            met[row["policy"]].append(row["meets_target"])
            for part in row["by_class"]:
                kept[row["policy"]][part["size_class"].split(",")[0]].append(part["held_back_weeks_held"])
    lines = [f"## {MONTHS} months of the generator", ""]
    lines += [
        "Share of the held-back weeks, two a month, in which a class waited at most 1.2 times its target."
    ]
    lines += ["A class is named by its smallest jobs. Nodes released, NVML.", ""]
    seen = {name for by_class in kept.values() for name in by_class}
    classes = [name for name in SIZE_CLASSES if name in seen]
    lines += [
        f"| policy | GPU-hours a week | months that hold | {' | '.join(classes)} |",
        "| --- " * (3 + len(classes)) + "|",
    ]
    for policy, by_class in kept.items():
        shares = [f"{np.mean(by_class[name]):.2f}" if by_class[name] else "" for name in classes]
        lines.append(
            f"| {policy} | {np.mean(hours[policy]):,.0f} | {sum(met[policy])} | {' | '.join(shares)} |"
        )
    told = (
        f"Of {len(inside)} held-back weeks, {np.mean(inside):.0%} saved what lay in the 90 % interval that was "
        "promised before them."
    )
    return "\n".join([*lines, "", told, ""])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        parts = [INTRO.format(weeks=WEEKS, board=BOARD)]
        parts += [section(title, scenario) for title, scenario in scenarios(Path(name))]
        parts.append(months(Path(name)))
    (HERE / "equal_service.md").write_text("\n".join(parts), encoding="utf-8")
