"""Replay recommendations of gpuplanner in the simulator of the planted clusters, which shares no code with it.

``python benchmarks/planted_clusters/replay_recommendation.py a --seeds 2 4`` writes the files of a world, has
``gpuplanner start`` decide on them, simulates what is recommended (nodes that are kept, placement, idle time, idle
nodes that stay on, boot time) and prints GPU-hours, power-ups and waits of both side by side.

A recommendation to power nodes down hands over Slurm's power saving and a script, ``reserve.sh``, that powers nodes up
until as many are idle as shall be; beside it stands what Slurm's power saving alone comes to. The waits by job size
that gpuplanner states are those of the nodes that are kept, always on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from clusters import make_truth, write_exports
from counterfactuals import Truth, wait_table
from queue_simulator import ALWAYS_ON, PowerRule, SimulationResult
from slurm_files import RECORD_START_S
from workloads import RECORD_S, WEEK_S
from worlds import WORLDS

MAX_HOURS_ERROR, MAX_P95_ERROR_MINUTES = 0.05, 10.0
REPLAYED = {"release", "pack", "power_down"}
SIZES = {"1 GPU": "1", "2-4 GPUs": "2-4", "5-8 GPUs": "5-8", "9+ GPUs": ">8"}
"""Names of job sizes in the decision, and in the world."""


def run_gpuplanner(*words: str) -> dict:
    """Run a command of gpuplanner, and return what it prints as JSON."""
    command = [sys.executable, "-m", "gpuplanner", *words, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def recommend(folder: Path, truth: Truth, settings: list[str]) -> dict:
    """Write the files of a world, and return the comparison of policies and the decision on them."""
    write_exports(folder / "files", truth)
    files = [str(path) for path in sorted((folder / "files").iterdir())]
    given = [word for setting in ["target_wait_minutes=30", *settings] for word in ("--set", setting)]
    out = folder / "out"
    started = run_gpuplanner("start", *files, "--yes", "--no-page", "--tz", "UTC", *given, "-o", str(out))
    compared = run_gpuplanner("compare", str(out / "scenario.yaml"))
    if compared["decision"] != started["decision"]:
        raise ValueError("start and compare decide differently")
    return compared


def replay(truth: Truth, comparison: dict, *, refill: bool) -> SimulationResult:
    """Simulate the jobs of a world on the nodes, and by the rules, that are recommended.

    Parameters
    ----------
    truth : Truth
        The world, with its jobs and today's rules.
    comparison : dict
        What ``gpuplanner compare --json`` prints.
    refill : bool
        Power nodes up until as many are idle as are kept.
    """
    rules, measures = comparison["rules"], {one["action"] for one in comparison["decision"]["measures"]}
    if not measures <= REPLAYED:
        raise ValueError(f"not replayed: {', '.join(sorted(measures - REPLAYED))}")
    power, queue = ALWAYS_ON, truth.policy.rule
    spread = queue.spread and "pack" not in measures
    if "power_down" in measures:
        kept = sum(pool["kept"] for pool in rules["pools"])
        power = PowerRule(int(rules["idle_s"]), int(rules["lead_s"]), kept, refill)
        spread = spread if rules["placement"] == "best" else rules["placement"] == "spread"
    queue = queue._replace(spread=spread, lowest=rules["placement"] == "lowest")
    gpus = sum(pool["count"] * len(pool["layouts"]) for pool in rules["pools"])
    return truth.simulate(replace(truth.policy, rule=queue), (gpus,), power)[1]


def added_wait_p95_minutes(truth: Truth, result: SimulationResult, window: tuple[int, int]) -> float:
    """Return by how much the p95 wait rises, of the size where it rises most. In minutes."""
    today, then = (wait_table(truth.policy.jobs, one, *window) for one in (truth.today, result))
    return max(row["p95_minutes"] - today[size]["p95_minutes"] for size, row in then.items())


def print_replay(title: str, truth: Truth, comparison: dict) -> bool:
    """Print the figures of a recommendation beside those of its replay, and return whether they meet the limits."""
    decision, rules = comparison["decision"], comparison["rules"]
    row = next(one for one in [comparison["today"], *comparison["policies"]] if one["policy"] == decision["policy"])
    dates = [datetime.fromisoformat(comparison[name]) for name in ("evaluated_from", "evaluated_to")]
    window = tuple(int(date.timestamp()) - RECORD_START_S for date in dates)
    weeks = (window[1] - window[0]) / WEEK_S
    powers_down = any(one["action"] == "power_down" for one in decision["measures"])
    replays = {"simulator": replay(truth, comparison, refill=True)}
    if powers_down:
        replays["simulator without reserve.sh"] = replay(truth, comparison, refill=False)

    print(f"\n## {title}: {', then '.join(one['text'] for one in decision['measures']) or decision['action']}\n")
    if powers_down:
        kept = sum(pool["kept"] for pool in rules["pools"])
        print(
            f"{rules['nodes']} nodes, powered down after {rules['idle_s']:.0f} s, idle nodes kept: {kept}, "
            f"placement {rules['placement']}, {rules['lead_s']:.0f} s to boot.\n"
        )
    print("| | " + " | ".join(["gpuplanner", *replays]) + " |\n|---" + (len(replays) + 1) * "|---" + "|")
    node_gpus = truth.world.node_gpus
    hours = [result.node_hours(*window) * node_gpus / weeks for result in replays.values()]
    print_row(f"GPU-hours a week, {dates[0]:%-d %b} to {dates[1]:%-d %b}", row["gpu_hours"], *hours)
    if powers_down:
        ups = [result.power_ups(*window) / weeks for result in replays.values()]
        print_row("power-ups a week, the same days", row["power_ups_per_week"], *ups)
        added = [added_wait_p95_minutes(truth, result, window) for result in replays.values()]
        print_row("added p95 wait, largest of the sizes, the same days, min", row["added_wait_p95_minutes"], *added)
    tables = [wait_table(truth.policy.jobs, result, 0, RECORD_S) for result in replays.values()]
    errors = []
    for size in decision["service"]:
        waits = [table[SIZES[size["size"]]] for table in tables]
        p95_minutes = [one["p95_minutes"] for one in waits]
        counts = " and ".join(str(count) for count in dict.fromkeys([size["jobs"], waits[0]["jobs"]]))
        print_row(
            f"p95 wait of {size['size']}, {counts} jobs, whole record, min",
            size["recommended_p95_minutes"],
            *p95_minutes,
        )
        errors.append(abs(p95_minutes[0] - size["recommended_p95_minutes"]))

    hours_error, p95_error = row["gpu_hours"] / hours[0] - 1, max(errors)
    near = abs(hours_error) <= MAX_HOURS_ERROR and p95_error <= MAX_P95_ERROR_MINUTES
    print(
        f"\n{'Within' if near else 'Not within'} the limits: GPU-hours {hours_error:+.2%} "
        f"(limit {MAX_HOURS_ERROR:.0%}), p95 {p95_error:.1f} min apart (limit {MAX_P95_ERROR_MINUTES:.0f})."
    )
    return near


def print_row(name: str, *values: float) -> None:
    """Print a row of a table."""
    print(f"| {name} | {' | '.join(f'{value:,.1f}' for value in values)} |")


def main(words: Sequence[str] | None = None) -> int:
    """Replay the recommendations for the worlds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="world: " + " ".join(WORLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--gpus", type=int, help="GPUs of the world, in place of its own")
    parser.add_argument("--set", dest="settings", metavar="KEY=VALUE", action="append", default=[])
    options = parser.parse_args(words)
    world, title = WORLDS[options.name], f"cluster {options.name}"
    if options.gpus:
        world, title = replace(world, gpus_by_layout=(options.gpus,)), f"{title} with {options.gpus} GPUs"
    near = True
    for seed in options.seeds:
        truth = make_truth(world, options.name, seed, gap_s=2)
        with tempfile.TemporaryDirectory() as folder:
            comparison = recommend(Path(folder), truth, options.settings)
        near &= print_replay(f"{title}, seed {seed}", truth, comparison)
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
