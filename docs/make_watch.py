"""Gain of ``gpuplanner watch`` on two weeks of Philly clusters and of generated fleets.

Writes the table of ``docs/results/recurring.md``:

    python docs/make_watch.py FOLDER [FLEET]...

Fleets are written into the folder and removed again; needs ``GPUPLANNER_DATA``. With names of fleets, only those are
replayed and printed. A quarter of an hour of CPU time in all. Other seeds chose the default of ``watch_chance``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gpuplanner.core.scenario import Scenario  # noqa: E402
from gpuplanner.decision.replanning import replay_past  # noqa: E402
from gpuplanner.ingest.dataset import Dataset  # noqa: E402
from gpuplanner.ingest.dataset_writer import write_dataset  # noqa: E402
from tests.clusters import traces  # noqa: E402 - of the checkout
from tests.decision.recurring.small_fleets import SmallFleet  # noqa: E402 - of the checkout

DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
WAYS = ("never", "reactive", "always", "watch", "hindsight")
SEEDS = (1,)
ENDS = (datetime(2017, 12, 8, tzinfo=UTC),)
CLUSTERS = ("b436b2", "103959", "ee9e8c", "7f04ca", "2869ce")
DAYS, EVERY = 14, 6
BEGIN, END = "<!-- watch: made by make_watch.py -->\n", "<!-- watch ends -->"
SLICES = {"1g.10gb": (1 / 7, 1 / 8), "2g.20gb": (2 / 7, 2 / 8), "3g.40gb": (3 / 7, 4 / 8), None: (1.0, 1.0)}


class Sliced(SmallFleet):
    """Jobs of one GPU each, of which three in four ask for a slice of it."""

    def jobs(self) -> pl.DataFrame:
        """Table ``schemas.Jobs``."""
        frame = super().jobs()
        drawn = np.random.default_rng(self.seed).choice(len(SLICES), frame.height)
        names, shares = list(SLICES), np.array(list(SLICES.values()))[drawn]
        return frame.with_columns(
            profile_requested=pl.Series([names[one] for one in drawn], dtype=pl.String),
            instances=pl.Series(np.where(drawn < len(names) - 1, 1, 0), dtype=pl.Int32).replace(0, None),
            gpus=pl.Series(shares[:, 0]),
            gpus_by_memory=pl.Series(shares[:, 1]),
        )


FAULT_H = 24.0 * 38 + 9
FLEETS = {
    "16 GPUs, jobs of three hours": (SmallFleet(0, weeks=6, load=0.35), {}),
    "the same, a fault takes the fleet down for an hour": (SmallFleet(0, weeks=6, load=0.35, fault_h=FAULT_H), {}),
    "the same, weekly load varies by 20 %": (SmallFleet(0, weeks=6, load=0.35, weekly_spread=0.2), {}),
    "the same, 50 % more jobs": (SmallFleet(0, weeks=6, load=0.35, factor=1.5, from_day=35), {}),
    "16 GPUs, long and wide jobs": (
        SmallFleet(0, weeks=6, load=0.3, run_h=8.0, sizes={1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}), {},
    ),
    "32 GPUs, high utilization": (SmallFleet(0, weeks=6, load=0.6, nodes=4), {}),
    "8 GPUs in MIG instances": (Sliced(0, weeks=6, load=0.9, nodes=1, sizes={1: 1.0}), {}),
    "8 GPUs in MIG instances, 1 GPU-hour per change": (
        Sliced(0, weeks=6, load=0.9, nodes=1, sizes={1: 1.0}), {"change_gpu_hours": 1.0},
    ),
}  # fmt: skip


def fortnights(folder: Path, wanted: list[str]) -> Iterator[tuple[str, list[Path], dict[str, float]]]:
    """Name of each fleet, its datasets, and what its scenario says besides."""
    for cluster in CLUSTERS:
        name = f"Philly {cluster}"
        if not wanted or name in wanted:
            yield name, [_philly(cluster, end, folder / f"{cluster}-{end:%m%d}") for end in ENDS], {}
    for name, (fleet, more) in FLEETS.items():
        if not wanted or name in wanted:
            yield name, [replace(fleet, seed=seed).write(folder / f"{seed}") for seed in SEEDS], more


def _philly(cluster: str, end: datetime, place: Path) -> Path:
    """The jobs of a virtual cluster as they stood at an instant."""
    whole = traces.philly(DATA)
    jobs = whole.jobs.filter(pl.col("tenant") == cluster, pl.col("submit_time") < end)
    runs = pl.col("end_time") > end
    state = pl.when(runs).then(pl.lit("RUNNING")).otherwise("state").cast(jobs.schema["state"])
    jobs = jobs.with_columns(state=state, end_time=pl.when(~runs).then("end_time"))
    facts = whole.provenance | {"rows_in": jobs.height, "rows_kept": jobs.height, "span_end": end.isoformat()}
    seen = Dataset({"jobs": jobs}, rejects=whole.rejects, quality=whole.quality.clear(), provenance=facts)
    write_dataset(seen, place)
    return place


def row(name: str, places: list[Path], more: dict[str, float]) -> tuple[str, dict[str, float]]:
    """One line, and costs by way: sums over the fortnights of a fleet."""
    cost, packs, looks = dict.fromkeys(WAYS, 0.0), 0, 0
    for place in places:
        found = replay_past(
            Scenario(data=str(place), horizon_intervals=12, work_limit=8, **more), days=DAYS, interval_slots=EVERY
        )
        for one in found.rows:
            cost[one.policy] += one.cost
        packs, looks = packs + found.looks - found.refused, looks + found.looks
        shutil.rmtree(place)
    return line(name, cost, f"{packs} of {looks}"), cost


def line(name: str, cost: dict[str, float], packs: str) -> str:
    """One line of the table."""
    best = min(cost[way] for way in ("never", "reactive", "always"))
    costs = " | ".join(f"{cost[way]:,.0f}" for way in WAYS)
    return f"| {name} | {costs} | {cost['watch'] / best:.3f} | {packs} |"


def main(folder: Path, wanted: list[str]) -> None:
    """Replay, and write the table."""
    lines = [f"| fleet | {' | '.join(WAYS)} | watch / best of never, reactive, always | bundles |", "|---" * 8 + "|"]
    sums: dict[str, dict[str, float]] = {}
    for name, places, more in fortnights(folder, wanted):
        text, cost = row(name, places, more)
        lines.append(text)
        kind = "all of Philly" if name.startswith("Philly") else "all generated"
        sums[kind] = {way: sums.get(kind, {}).get(way, 0.0) + cost[way] for way in WAYS}
        sys.stderr.write(text + "\n")
    lines += [line(f"**{kind}**", cost, "") for kind, cost in sums.items()]
    if wanted:
        sys.stdout.write("\n".join(lines) + "\n")
        return
    page = HERE / "results" / "recurring.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
