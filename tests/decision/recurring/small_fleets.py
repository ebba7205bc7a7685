"""Small fleets whose weeks are known because they were drawn: jobs first come, first served on whole GPUs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = 3600.0
BOARD = "H100-80GB-SXM5"


@dataclass(frozen=True)
class SmallFleet:
    """Nodes of a few GPUs, their load, and by what factor arrivals change from which day on.

    ``days`` ends the record earlier, which changes nothing before; from ``fault_h`` on all nodes are down for an hour:
    what runs fails and begins again as a second attempt, and everything later starts an hour later.
    """

    seed: int
    weeks: int = 8
    nodes: int = 2
    gpus_per_node: int = 8
    load: float = 0.45
    factor: float = 1.0
    from_day: float = np.inf
    begin: datetime = MONDAY
    weekly_spread: float = 0.08
    run_h: float = 3.0
    days: float | None = None
    fault_h: float = np.inf
    sizes: dict[int, float] = field(default_factory=lambda: {1: 0.7, 2: 0.2, 4: 0.1})

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def end(self) -> datetime:
        return self.begin + timedelta(days=7 * self.weeks if self.days is None else self.days)

    def asked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Submissions [s], run times [s] and GPUs: Poisson by thinning over the day, lognormal, and drawn by share.

        What comes before ``from_day`` does not depend on ``factor``.
        """
        rng = np.random.default_rng(self.seed)
        mean_size = sum(size * share for size, share in self.sizes.items())
        rate = self.load * self.gpus / (mean_size * self.run_h)
        levels = np.exp(rng.normal(0, self.weekly_spread, self.weeks))
        most = rate * 1.5 * 6.0
        span = 24.0 * 7 * self.weeks
        times = np.sort(rng.uniform(0, span, rng.poisson(most * span)))
        sizes = rng.choice(list(self.sizes), len(times), p=list(self.sizes.values()))
        runs = rng.lognormal(np.log(self.run_h) - 0.5, 1.0, len(times)) * HOUR
        shape = 1 + 0.5 * np.cos((times % 24 - 14) * 2 * np.pi / 24)
        wanted = rate * shape * levels[(times // (24 * 7)).astype(int)]
        wanted = wanted * np.where(times >= 24 * self.from_day, self.factor, 1.0)
        kept = rng.random(len(times)) * most < wanted
        return np.floor(times[kept] * HOUR), np.maximum(np.floor(runs[kept]), 60.0), sizes[kept]

    def jobs(self) -> pl.DataFrame:
        """Table ``schemas.Jobs``, as it stands at the end."""
        submit, run, size = self.asked()
        start, node = self._placed(submit, run, size)
        number, end, fault = np.arange(len(submit)), start + run, self.fault_h * HOUR
        attempt, broken = np.ones(len(submit), int), (start < fault) & (end > fault)
        if broken.any():
            start, end = start + HOUR * (start >= fault), np.where(end > fault, end + HOUR, end)
            again = {"start": np.full(broken.sum(), fault + HOUR), "end": end[broken]}
            end = np.where(broken, fault, end)
            submit, start, end = (
                np.concatenate(pair)
                for pair in ((submit, again["start"] - HOUR), (start, again["start"]), (end, again["end"]))
            )
            run, size, node, number = (np.append(one, one[broken]) for one in (run, size, node, number))
            attempt, broken = (np.append(attempt, attempt[broken] + 1), np.append(broken, broken[broken] & False))
        until = (self.end - self.begin).total_seconds()
        seen = submit < until
        submit, start, end, run, size, node, number, attempt, broken = (
            one[seen] for one in (submit, start, end, run, size, node, number, attempt, broken)
        )
        begun, over = start < until, end <= until

        def instants(seconds: np.ndarray, there: np.ndarray) -> pl.Series:
            zero = pl.lit(self.begin)
            frame = pl.DataFrame({"s": np.where(there, seconds, 0.0), "there": there})
            return frame.select(
                pl.when("there").then(
                    (zero + pl.duration(microseconds=pl.col("s") * 1e6)).cast(pl.Datetime("us", "UTC"))
                )
            ).to_series()

        everyone = np.ones(len(submit), bool)
        tenant = np.where(number % 3 == 0, "vision", "speech")
        frame = pl.DataFrame(
            {
                "job_id": [f"{self.begin:%Y%m%d}-{one:06d}" for one in number],
                "attempt": attempt,
                "tenant": tenant,
                "user": [f"{name}-u{one % 5}" for one, name in zip(number, tenant, strict=True)],
                "submit_time": instants(submit, everyone),
                "start_time": instants(start, begun),
                "end_time": instants(end, over),
                "state": np.where(
                    over, np.where(broken, "NODE_FAIL", "COMPLETED"), np.where(begun, "RUNNING", "PENDING")
                ),
                "gpus": size.astype(float),
                "gpu_model": BOARD,
                "nodes": [1 if one else None for one in begun],
                "node_list": [f"n{number}" if one else None for number, one in zip(node, begun, strict=True)],
                "time_limit_s": run * 2,
                "gpus_by_memory": size.astype(float),
            },
            schema_overrides={"attempt": pl.Int32, "nodes": pl.Int32},
        )
        return check_table(frame.sort("submit_time", "job_id", "attempt"), Jobs, source="a small fleet")

    def write(self, folder: Path) -> Path:
        """A dataset of jobs and nodes."""
        jobs = self.jobs()
        inventory = check_table(
            pl.DataFrame(
                {
                    "node": [f"n{number}" for number in range(self.nodes)],
                    "gpu_model": BOARD,
                    "gpus": self.gpus_per_node,
                    "installed": self.begin.date() - timedelta(days=400),
                },
                schema_overrides={"gpus": pl.Int32},
            ),
            Inventory,
            source="a small fleet",
        )
        facts = {
            "source": "synthetic", "files": [], "rows_in": jobs.height, "rows_kept": jobs.height, "rows_rejected": 0,
            "span_start": self.begin.isoformat(), "span_end": self.end.isoformat(),
        }  # fmt: skip
        rejects = pl.DataFrame(schema={"file": pl.String, "row": pl.Int64, "reason": pl.String, "raw": pl.String})
        quality = pl.DataFrame(
            schema=dict.fromkeys(("check", "severity", "effect", "example"), pl.String) | {"rows": pl.Int64}
        ).select("check", "severity", "rows", "effect", "example")
        write_dataset(
            Dataset({"jobs": jobs, "inventory": inventory}, rejects=rejects, quality=quality, provenance=facts), folder
        )
        return folder

    def _placed(self, submit: np.ndarray, run: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Strict order of arrival, each on the fullest node that holds it."""
        free = [self.gpus_per_node] * self.nodes
        running: list[tuple[float, int, int]] = []
        start, node = np.empty(len(submit)), np.zeros(len(submit), int)
        now = 0.0
        for number, came in enumerate(submit):
            now = max(now, came)
            while True:
                while running and running[0][0] <= now:
                    _, where, gpus = heapq.heappop(running)
                    free[where] += gpus
                fits = [(free[place], place) for place in range(self.nodes) if free[place] >= size[number]]
                if fits:
                    break
                now = running[0][0]
            place = min(fits)[1]
            free[place] -= int(size[number])
            start[number], node[number] = now, place
            heapq.heappush(running, (now + run[number], place, int(size[number])))
        return start, node
