"""A Slurm fleet of three boards, one of them cut, with jobs that name a type of GPU and jobs that take any; four weeks.

Each pool is played apart: Slurm has decided which board a job without a type ran on. Accounts span the boards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.clusters.demand import WEEK, Lane, jobs_of
from tests.clusters.dumps import A100_40, H100_80, Board, sacct, scontrol
from tests.clusters.model import UNCUT, WHOLE, Job, Node, play
from tests.clusters.planted import FRIDAY, always, by_day

WEEKS = 4
ANY = ("finetune", "sweep")
"""Names of the jobs that take whatever GPU is free."""
L40S = Board("l40s", "l40s", "NVIDIA-L40S", 46068)
TYPE = re.compile(r"gres/gpu:[^=|,]+=\d+,")


@dataclass(frozen=True)
class BoardPool:
    """Nodes of one board with the jobs that ran on them; `catalogued` is what the catalogue calls the board."""

    catalogued: str
    gpu_model: Board
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)


@dataclass(frozen=True)
class MixedFleet:
    """Pools of several boards under one controller, and the instant of the dump."""

    name: str
    pools: tuple[BoardPool, ...]
    dump: int
    source: str = "slurm"

    def files(self) -> dict[str, str]:
        """One list of jobs and one of nodes, as Slurm prints them."""
        rows = [row for pool in self.pools for row in self._rows(pool)]
        nodes = [scontrol(pool.nodes, pool.gpu_model, self.dump) for pool in self.pools]
        return {"sacct.txt": "\n".join(dict.fromkeys(rows)) + "\n", "nodes.txt": "\n".join(nodes)}

    def _rows(self, pool: BoardPool) -> Iterator[str]:
        """Of a job that takes any GPU, what was asked for names no type; what it got does."""
        played = play(pool.jobs, pool.nodes, until=self.dump)
        for row in sacct(pool.jobs, played, pool.nodes, pool.gpu_model, self.dump).splitlines():
            fields = row.split("|")
            if fields[-1] in ANY:
                fields[-3] = TYPE.sub("", fields[-3])
            yield "|".join(fields)


def mixed_fleet(seed: int) -> MixedFleet:
    """Four nodes of four A100-40GB, two of them cut, two of eight H100 and three of four L40S."""
    random = Random(f"mixed {seed}")
    dump = WEEKS * WEEK - FRIDAY
    ampere = [[UNCUT] * 4, [UNCUT] * 4, ["1g.5gb:7"] * 4, ["3g.20gb:2"] * 4]
    listed: dict[str, list[Lane]] = {
        "A100-40GB": [
            *by_day(3, "vision", "finetune", run_h=3.0),
            *always(2, "chem", "md", run_h=10.0),
            *by_day(16 + random.randrange(4), "course", "notebook", kind="1g.5gb", run_h=2.5, absent=0.2),
            *always(3, "bio", "screen", kind="3g.20gb"),
        ],
        "H100-80GB": [
            *always(1, "speech", "pretrain", each=4, run_h=12.0),
            *by_day(4, "vision", "train", run_h=4.0, absent=0.1),
            *by_day(3, "speech", "sweep", run_h=3.0),
        ],
        "L40S": [
            *always(2, "render", "frames", run_h=6.0),
            *by_day(3, "course", "finetune", run_h=2.0, absent=0.1),
            *always(2, "bio", "sweep", run_h=5.0),
        ],
    }
    facts = {
        "A100-40GB": ("A100-40GB", A100_40, _nodes("ga", ampere)),
        "H100-80GB": ("H100-80GB-SXM5", H100_80, _nodes("gh", [[UNCUT] * 8] * 2)),
        "L40S": ("L40S", L40S, _nodes("gl", [[UNCUT] * 4] * 3)),
    }
    pools, first = [], 0
    for name, lanes in listed.items():
        jobs = [replace(job, number=job.number + first) for job in jobs_of(lanes, dump, random)]
        first = jobs[-1].number
        pools.append(BoardPool(*facts[name], tuple(jobs)))
    return MixedFleet(f"mixed-{seed}", tuple(pools), dump)


def untyped(fleet: MixedFleet) -> int:
    """Jobs that named no type of GPU: those of the names that take any, and of others every seventh."""
    whole = (job for pool in fleet.pools for job in pool.jobs if job.kind == WHOLE)
    return sum(job.name in ANY or job.number % 7 == 0 for job in whole)


def _nodes(prefix: str, layouts: list[list[str]]) -> tuple[Node, ...]:
    return tuple(Node(f"{prefix}{place + 1:02d}", tuple(each)) for place, each in enumerate(layouts))
