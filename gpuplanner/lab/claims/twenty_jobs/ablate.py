"""What the result hangs on: the same experiment with one assumption changed at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import polars as pl

from gpuplanner.lab.claims.twenty_jobs.design import Design, Group
from gpuplanner.lab.claims.twenty_jobs.experiment import CASE_1, CASE_2, VERDICTS, Policy, replicate
from gpuplanner.lab.claims.twenty_jobs.recommend import Profiling

MEASURES = ("completion_min", "mean_jct_min", "utilisation_provisioned", "utilisation_server")


@dataclass(frozen=True)
class Ablation:
    """One assumption changed.

    Parameters
    ----------
    name : str
        What is changed.
    design : Design
        The workload.
    planned : Policy
        What stands for case 2.
    profiling : Profiling
        What the recommender sees.
    speed : str
        Speed model.
    """

    name: str
    design: Design = field(default_factory=Design)
    planned: Policy = CASE_2
    profiling: Profiling = field(default_factory=Profiling)
    speed: str = "slices"


def ablations(design: Design | None = None, profiling: Profiling | None = None) -> tuple[Ablation, ...]:
    """All ablations of a design, the unchanged case first.

    Examples
    --------
    >>> [ablation.name for ablation in ablations()][:3]
    ['as designed', 'wider run times', 'lower fill']
    """
    base, seen = design or Design(), profiling or Profiling()
    low, high = base.run_min
    middle = (low + high) / 2
    blurred = replace(seen, level_seen=(0.4, 1.0), peak_seen=(0.4, 1.0))

    def planned(
        name: str, requests: str = "recommended", layouts: str = "exact", charged: bool = False
    ) -> Ablation:
        return Ablation(name, base, Policy(name, requests, layouts, charged), seen)

    return (
        Ablation("as designed", base, CASE_2, seen),
        Ablation("wider run times", replace(base, run_min=(0.4 * middle, 1.6 * middle)), CASE_2, seen),
        Ablation("lower fill", replace(base, fill=(0.5, 1.0)), CASE_2, seen),
        Ablation("fewer over-requests", replace(base, groups=_halved(base.groups)), CASE_2, seen),
        Ablation("nobody over-requests", base.asking(for_need=True), CASE_2, seen),
        Ablation("everyone over-requests", base.asking(for_need=False), CASE_2, seen),
        planned("right-sized, layout unchanged", layouts="static"),
        planned("as asked, layout planned", requests="asked"),
        planned("greedy layout", layouts="greedy"),
        planned("spare instances kept", layouts="exact_spares"),
        planned("needs known (oracle)", requests="true"),
        planned("shipped right-sizing rule", requests="shipped"),
        planned("profiling runs charged", charged=True),
        Ablation("profiling run too short", base, CASE_2, blurred),
        Ablation("speed by SMs", base, CASE_2, seen, "sms"),
        Ablation("speed by throughput, low", base, CASE_2, seen, "throughput_low"),
        Ablation("speed by throughput, high", base, CASE_2, seen, "throughput_high"),
    )


def ablate(
    chosen: Iterable[Ablation], seeds: Iterable[int], rows: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Run both cases of every ablation on the same seeds.

    Parameters
    ----------
    chosen : iterable of Ablation
        Which.
    seeds : iterable of int
        Seeds.
    rows : polars.DataFrame, optional
        Runs of the first ablation's design on the same seeds, if there are any: case 1 is taken from here where
        it is the same.

    Returns
    -------
    polars.DataFrame
        One row per ablation and seed: ``ablation, seed``, the measures of both cases with the suffixes ``_1``
        and ``_2``, ``time_ratio`` (case 2 over case 1), and ``wrong``, ``restarts``, ``unserved`` of case 2.

    Examples
    --------
    >>> found = ablate(ablations()[:1], seeds=[0])
    >>> found.select("ablation", "wrong").row(0)
    ('as designed', 0)
    """
    numbers, listed = list(seeds), list(chosen)
    known = None if rows is None else rows.filter(pl.col("seed").is_in(numbers), policy=CASE_1.name)
    parts = []
    for ablation in listed:
        same = ablation.design == listed[0].design and ablation.speed == listed[0].speed
        first = known if same else None
        if first is None:
            first = replicate([CASE_1], numbers, ablation.design, ablation.profiling, speed=ablation.speed)
        second = replicate(
            [ablation.planned], numbers, ablation.design, ablation.profiling, speed=ablation.speed
        )
        before = first.select("seed", *(pl.col(name).alias(f"{name}_1") for name in MEASURES))
        after = second.select(
            "seed",
            *(pl.col(name).alias(f"{name}_2") for name in MEASURES),
            "restarts",
            "unserved",
            wrong=pl.sum_horizontal(VERDICTS[1:]),
        )
        parts.append(
            before.join(after, on="seed", maintain_order="left").with_columns(
                ablation=pl.lit(ablation.name),
                time_ratio=pl.col("completion_min_2") / pl.col("completion_min_1"),
            )
        )
    return pl.concat(parts)


def _halved(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Half of those who over-request, rounded down, ask for what they need instead."""
    found = []
    for group in groups:
        honest = 0 if group.need == group.asks_for else (group.jobs + 1) // 2
        found += [replace(group, jobs=group.jobs - honest)]
        found += [replace(group, jobs=honest, asks_for=group.need)] if honest else []
    return tuple(group for group in found if group.jobs)
