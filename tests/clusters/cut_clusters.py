"""Clusters whose GPUs are cut in several ways, with waits that have real causes; four weeks each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.clusters.cluster import Cluster
from tests.clusters.demand import DAY, HOUR, WEEK, Lane, jobs_of, lanes
from tests.clusters.dumps import SERVES
from tests.clusters.model import UNCUT, Job
from tests.clusters.planted import FRIDAY, always, by_day, nodes_of

WEEKS = 4


def slurm_cut(seed: int) -> Cluster:
    """Six nodes of four A100-40GB: two whole, four cut in different ways, for four teams.

    Jobs wait for slices of 3g by day, for a quota of the course, for jobs that they depend on, and for the evening;
    some are arrays, and some are cancelled before they start.
    """
    random = Random(f"slurm {seed}")
    layouts = [
        [UNCUT] * 4,
        [UNCUT] * 4,
        ["1g.5gb:7"] * 4,
        ["3g.20gb:2"] * 4,
        ["2g.10gb:3,1g.5gb:1"] * 2 + ["3g.20gb:2"] * 2,
        [UNCUT] * 2 + ["1g.5gb:7"] * 2,
    ]
    listed = [
        *by_day(24 + random.randrange(6), "course", "notebook", kind="1g.5gb", run_h=2.5, absent=0.2),
        *always(4 + random.randrange(3), "bio", "fold", kind="1g.5gb"),
        *by_day(6 + random.randrange(3), "bio", "embed", kind="2g.10gb", run_h=3.0, absent=0.1),
        *by_day(9 + random.randrange(3), "vision", "train", kind="3g.20gb", run_h=4.0, absent=0.1),
        *always(3, "chem", "screen", kind="3g.20gb"),
        *by_day(2 + random.randrange(2), "vision", "finetune", run_h=3.0),
        *by_day(1, "speech", "train", each=2, run_h=4.0, absent=0.1),
        *always(2, "chem", "md", run_h=10.0),
        *lanes(1, Lane("speech", "pretrain", each=4, nodes=2, run_h=5.0, gap_s=60 * HOUR)),
    ]
    dump = WEEKS * WEEK - FRIDAY
    jobs = _with_causes(jobs_of(listed, dump, random), random)
    jobs, arrays = _with_arrays(jobs, dump, random)
    quotas = {"course": 22}
    name = f"slurm_cut-{seed}"
    return Cluster(name, "slurm", "A100-40GB", nodes_of("slurm", layouts), tuple(jobs), dump, quotas, arrays=arrays)


def kubernetes_cut(seed: int, *, with_nodes: bool = True) -> Cluster:
    """Three nodes of eight H100-80GB, cut in mixed layouts, for three namespaces and pods that serve without end.

    Jobs wait for slices of 3g by day, for the quota of research (gated, as Kueue does), and for jobs before them.
    """
    random = Random(f"kubernetes {seed}")
    layouts = [
        [UNCUT] * 6 + ["3g.40gb:2"] * 2,
        ["1g.10gb:7"] * 4 + ["3g.40gb:2"] * 4,
        ["3g.40gb:1,2g.20gb:1,1g.10gb:2"] * 8,
    ]
    listed = [
        *by_day(26 + random.randrange(8), "research", "notebook", kind="1g.10gb", run_h=2.5, absent=0.2),
        *always(5 + random.randrange(3), "search", "embed", kind="1g.10gb"),
        *by_day(8 + random.randrange(3), "search", "rank", kind="2g.20gb", run_h=3.0, absent=0.1),
        *by_day(18 + random.randrange(3), "nlp", "train", kind="3g.40gb", run_h=4.0, absent=0.1),
        *always(4, "nlp", "sweep", kind="3g.40gb"),
        *by_day(3 + random.randrange(2), "research", "finetune", run_h=3.0),
        *always(1, "nlp", "pretrain", each=2, run_h=12.0),
        *lanes(1, Lane("nlp", "gang", each=2, nodes=1, run_h=6.0, gap_s=40 * HOUR)),
    ]
    dump = WEEKS * WEEK - FRIDAY
    jobs = _with_causes(jobs_of(listed, dump, random), random)
    serving = [
        Job(0, 60 + place, SERVES, SERVES, kind, 1, 1, "serving", f"serv{place + 1:02d}", f"chat-{place + 1}")
        for place, kind in enumerate(["1g.10gb"] * 3 + ["3g.40gb"])
    ]
    name = f"kubernetes_cut-{seed}" + ("" if with_nodes else "-without_nodes")
    numbered = _numbered([*serving, *jobs])
    nodes = nodes_of("kubernetes", layouts)
    return Cluster(
        name, "kubernetes", "H100-80GB", nodes, tuple(numbered), dump, {"research": 30}, with_nodes=with_nodes
    )


def _with_causes(jobs: Sequence[Job], random: Random) -> list[Job]:
    """Some jobs hang on the one before of the same person, some are for the evening, some are given up."""
    found: list[Job] = []
    last: dict[tuple[str, str], Job] = {}
    for job in jobs:
        before = last.get((job.user, job.name))
        draw = random.random()
        new = job
        if before is not None and job.name == "train" and draw < 0.25 and job.submit - before.submit < DAY:
            new = replace(job, submit=before.submit + 5, after=before.number)
        elif job.name in ("fold", "screen") and draw < 0.1:
            new = replace(job, submit=max(1, job.submit - random.randrange(HOUR, 9 * HOUR)), begin=job.submit)
        elif job.name == "notebook" and draw < 0.15:
            new = replace(job, patience=random.randrange(15 * 60, HOUR))
        last[job.user, job.name] = job
        found.append(new)
    return found


def _with_arrays(jobs: Sequence[Job], dump: int, random: Random) -> tuple[list[Job], dict[int, str]]:
    """Arrays of short jobs on slices of 1g, submitted at once in the evening of some days."""
    tasks: list[Job] = []
    for day in range(dump // DAY):
        if day % 7 < 5 and random.random() < 0.5:
            at = day * DAY + 18 * HOUR + random.randrange(2 * HOUR)
            for task in range(random.randrange(6, 16)):
                run = int(HOUR * random.lognormvariate(0.0, 0.3))
                number = -(day * 100 + task + 1)
                tasks.append(Job(number, at, run, 3 * HOUR, "1g.5gb", 1, 1, "bio", "bio01", f"array{day}"))
    both = sorted([*jobs, *tasks], key=lambda job: (job.submit, -job.number))
    numbered = _numbered(both)
    arrays: dict[int, str] = {}
    first: dict[str, int] = {}
    for old, new in zip(both, numbered, strict=True):
        if old.number < 0:
            begin = first.setdefault(old.name, new.number)
            arrays[new.number] = f"{480000 + begin}_{new.number - begin}"
    return numbered, arrays


def _numbered(jobs: Sequence[Job]) -> list[Job]:
    """The jobs by submission, numbered anew."""
    ordered = sorted(jobs, key=lambda job: (job.submit, job.number < 0, abs(job.number)))
    new = {job.number: place for place, job in enumerate(ordered, 1) if job.number}
    return [
        replace(job, number=place, after=None if job.after is None else new[job.after])
        for place, job in enumerate(ordered, 1)
    ]
