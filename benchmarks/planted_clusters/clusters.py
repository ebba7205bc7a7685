"""Write clusters whose truth is planted: the files that a site exports, and what is true of them.

``python benchmarks/planted_clusters/clusters.py OUT a b c --seed 7 --gap 2`` writes ``OUT/a_7_gap2`` and so on, with
sacct.txt, nodes.txt, truth.json, and assoc.txt and events.txt where the world has them. Times are UTC.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from counterfactuals import MAX_ADDED_WAIT_MINUTES, MAX_WAIT_MINUTES, Truth
from slurm_files import RECORD_START_S, write_associations, write_events, write_nodes, write_sacct
from workloads import RECORD_S
from worlds import WORLDS, World

DEFINITIONS = {
    "wait": "from eligibility to start, or to the withdrawal of a job that was withdrawn while it waited",
    "wait_limit": f"p95 wait of each job size: {MAX_WAIT_MINUTES:.0f} min; of a size that meets this today also at "
    f"most {MAX_ADDED_WAIT_MINUTES:.0f} min more than today; today's p95 where more GPUs do not reach it",
    "job_size": "GPUs of a job; the profile of a job that requests a MIG instance",
    "queued_behind": "the request fits on the free GPUs, and the order of the queue holds it back",
    "limits": "the request fits on the free GPUs, and the limit of its tenant holds it back",
    "fragmented": "the free GPUs are enough in sum, but not together on as many nodes as requested",
    "wrong_layout": "the free GPUs of all layouts are enough in sum, those of the requested layout are not",
    "insufficient": "not enough GPUs are free; out of service, or in the seconds after an end, they are not free",
    "exhaustion_week": "the week of the record from which on every four weeks miss the wait limit on today's GPUs",
    "measure": "the measure that ends the waits with the fewest GPUs; the simplest of several",
}


def make_truth(world: World, name: str, seed: int, gap_s: int) -> Truth:
    """Simulate a world; each name has jobs of its own."""
    return Truth(world, 1000 * seed + sum(name.encode()), gap_s)


def write_exports(folder: Path, truth: Truth) -> dict:
    """Write the files that a site exports, and return the sums of the jobs in them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = write_sacct(folder / "sacct.txt", truth)
    write_nodes(folder / "nodes.txt", truth)
    if truth.world.tenant_limits or truth.world.fair_share_weight_s:
        write_associations(folder / "assoc.txt", truth)
    if truth.world.outages:
        write_events(folder / "events.txt", truth)
    return written


def write_cluster(folder: Path, name: str, seed: int, gap_s: int) -> dict:
    """Write a planted cluster and return its truth.

    Parameters
    ----------
    folder : Path
        Folder to write into.
    name : str
        World to write.
    seed : int
        Seed of all that is random; the same seed writes the same bytes.
    gap_s : int
        Seconds between the end of a job and the moment its GPUs are free again. [s]
    """
    world = WORLDS[name]
    truth = make_truth(world, name, seed, gap_s)
    written = write_exports(folder, truth)
    answer, counterfactuals = truth.answer()
    content = {
        "name": name,
        "answer": answer,
        "record": {"start_unix_s": RECORD_START_S, "days": RECORD_S // 86400, "gpus": sum(truth.gpus), **written},
        "today": truth.today_waits,
        "causes": truth.causes(),
        "curve": truth.curve(),
        "counterfactuals": counterfactuals,
        "ahead": truth.weeks_ahead() if world.weeks_ahead else None,
        "planted": asdict(world) | {"gap_s": gap_s, "seed": seed},
        "definitions": DEFINITIONS,
    }
    (folder / "truth.json").write_text(json.dumps(content, indent=1) + "\n")
    return content


def main() -> None:
    """Write the clusters that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(WORLDS), metavar="NAME", help="worlds: " + " ".join(WORLDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=int, default=2, help="seconds between an end and the next start")
    options = parser.parse_args()
    for name in options.names:
        began = time.process_time()
        folder = options.out / f"{name}_{options.seed}_gap{options.gap}"
        truth = write_cluster(folder, name, options.seed, options.gap)
        answer = truth["answer"]
        print(
            f"{folder}: {truth['record']['jobs']} jobs, {truth['record']['gpus']} GPUs today, "
            f"fewest {answer['fewest_gpus']}, {answer['measure']} {answer['measure_gpus']}, "
            f"{time.process_time() - began:.1f} CPU s"
        )


if __name__ == "__main__":
    main()
