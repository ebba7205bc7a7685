"""The same jobs under many layouts and policies, one after the other, until done or cancelled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.hardware import format_layout, pareto_counts
from gpuplanner.metrics import holm, measure, paired, paired_p_value
from gpuplanner.names import resolve
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, Fleet, Rules, Speeds, simulate
from gpuplanner.study.future.workload import fleet_and_rules, past_jobs, replicate, workload
from gpuplanner.study.past.history import history
from gpuplanner.workers import Workers, in_turn

Policies = Mapping[str, Calendar]

MEASURES = (
    "mean_jct_s",
    "p95_jct_s",
    "mean_queueing_delay_s",
    "p95_queueing_delay_s",
    "makespan_s",
    "utilisation_provisioned",
    "utilisation_server",
    "reconfigurations",
)
RANKS = MEASURES[:5]
"""Measures that a sweep can rank by: less is better."""

MOST_MIXES = 200_000
"""Mixes to look at; the fleet is divided into as many parts as that allows."""


@dataclass(frozen=True)
class Sweep:
    """What is known of the policies simulated so far.

    - ``table``: One row per policy, best first: ``rank``, ``policy``, ``unserved`` (jobs that it has no room for or
      leaves waiting), the measures of :func:`gpuplanner.metrics.measure` in :data:`MEASURES`, means over
      replications, and of the measure that ranks ``difference`` to the baseline with ``difference_low``,
      ``difference_high`` (95 %, over replications; null with a single one), ``ratio``, and ``p_holm``, the p-value of
      the difference by Holm's method over all policies: below 0.05 all such differences hold at once.
    - ``asked``: Policies that were to be simulated.
    - ``rank_by``: Measure that ranks.
    - ``baseline``: Policy that the others are compared with.
    """

    table: pl.DataFrame
    asked: int
    rank_by: str
    baseline: str

    @property
    def done(self) -> int:
        """Policies simulated."""
        return self.table.height

    @property
    def complete(self) -> bool:
        """Whether it was not cancelled before its end."""
        return self.done == self.asked


def sweep(
    jobs: pl.DataFrame | Sequence[pl.DataFrame],
    fleet: Fleet,
    policies: Policies,
    rules: Rules,
    *,
    rank_by: str = "mean_jct_s",
    baseline: str | None = None,
    progress: Callable[[int, int, str], object] | None = None,
    cancel: Callable[[], bool] | None = None,
    phases: pl.DataFrame | None = None,
    speeds: Speeds | None = None,
    workers: Workers = 1,
) -> Sweep:
    """Simulate the same jobs under every policy, and rank the policies; workers change nothing of what is found.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": 0.0, "run_s": 60.0, "gpus": 1,
    ...     "profile": "3g.40gb"})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=1)
    >>> policies = {name: Calendar.constant({name: 1}) for name in ("7g.80gb:1", "3g.40gb:2")}
    >>> found = sweep(jobs, fleet, policies, Rules(queue="strict"))
    >>> found.table.select("rank", "policy", "mean_jct_s", "difference").rows()
    [(1, '3g.40gb:2', 60.0, -30.0), (2, '7g.80gb:1', 90.0, 0.0)]
    """
    rank_by = resolve(rank_by, RANKS, what="sweep: rank_by", error=ScenarioError)
    if not policies:
        raise ScenarioError(message("sweep", "at least one policy", "none", "Give policies by name."))
    first = resolve(baseline, policies, what="sweep: baseline", error=ScenarioError) if baseline else None
    ordered = dict(sorted(policies.items(), key=lambda item: item[0] != first)) if first else dict(policies)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, rows in each_policy(
        jobs, fleet, ordered, rules, cancel=cancel, phases=phases, speeds=speeds, workers=workers
    ):
        found[name] = rows
        if progress is not None:
            progress(len(found), len(policies), name)
    return Sweep(_ranked(found, rank_by), len(policies), rank_by, next(iter(ordered)))


def each_policy(
    jobs: pl.DataFrame | Sequence[pl.DataFrame],
    fleet: Fleet,
    policies: Policies,
    rules: Rules,
    *,
    cancel: Callable[[], bool] | None = None,
    phases: pl.DataFrame | None = None,
    speeds: Speeds | None = None,
    workers: Workers = 1,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Simulate policy by policy, in their order; stop asking, or cancel, whenever enough is known."""
    draws, names = [jobs] if isinstance(jobs, pl.DataFrame) else list(jobs), list(policies)
    tasks = [
        (drawn, fleet, policies[name], rules, name, replication, phases, speeds)
        for name in names
        for replication, drawn in enumerate(draws)
    ]
    found: dict[int, dict[str, Any]] = {}
    given = 0
    for number, row in in_turn(measured_run, tasks, workers=workers):
        if cancel is not None and cancel():
            return
        found[number] = row
        while given < len(names) and all(
            place in found for place in range(given * len(draws), (given + 1) * len(draws))
        ):
            yield names[given], [found.pop(given * len(draws) + place) for place in range(len(draws))]
            given += 1


def measured_run(
    drawn: pl.DataFrame, fleet: Fleet, layouts: Calendar, rules: Rules, policy: str, replication: int,
    phases: pl.DataFrame | None, speeds: Speeds | None,
) -> dict[str, Any]:  # fmt: skip
    """One policy on one draw of the jobs: what a sweep keeps of it."""
    run = simulate(
        drawn, fleet, layouts, rules, policy=policy, replication=replication,
        leave_unservable=True, phases=phases, speeds=speeds,
    )  # fmt: skip
    measured = measure(run, fleet.model)
    return {"unserved": measured["unfinished"], **{key: measured[key] for key in MEASURES}}


def static_mixes(jobs: pl.DataFrame, fleet: Fleet, *, most: int = 20) -> dict[str, Calendar]:
    """Static layouts of a fleet that suit some jobs: mixes of undominated layouts, the least loaded first.

    All ways are listed to share the fleet, in equal parts, among layouts to which no further instance of the
    profiles asked for could be added, and whole GPUs. Mixes that a job does not fit into are left out. The others
    are ordered by the load of the profile that is most in demand: work asked of it, by the jobs' own run times,
    over its instances.

    Examples
    --------
    >>> jobs = pl.DataFrame({"profile": ["3g.40gb", "1g.10gb", "gpu"], "gpus": [1, 1, 2],
    ...     "run_s": [600.0, 200.0, 50.0]})
    >>> for name in static_mixes(jobs, Fleet("A100-80GB", nodes=1, gpus_per_node=8), most=2): print(name)
    5 x 3g.40gb:2 + 1 x 3g.40gb:1,1g.10gb:4 + 2 x gpu
    5 x 3g.40gb:2 + 1 x 1g.10gb:7 + 2 x gpu
    """
    board = fleet.model
    asked = jobs.group_by("profile", maintain_order=True).agg(
        work=(pl.col("run_s") * pl.col("gpus")).sum(), largest=pl.col("gpus").max()
    )
    named = [
        (name if name == WHOLE_GPU else board.profile(name).name, work, gpus)
        for name, work, gpus in asked.rows()
    ]
    profiles = [name for name, _, _ in named if name != WHOLE_GPU]
    counts = pareto_counts(board, profiles) if profiles else []
    layouts = [*counts, *([{WHOLE_GPU: 1}] if len(profiles) < len(named) else [])]
    mixes = _compositions(len(layouts), fleet.gpus)
    load = np.zeros(len(mixes))
    for name, work, gpus in named:
        held = mixes @ np.array([layout.get(name, 0) for layout in layouts])
        needed = (
            math.ceil(gpus / fleet.gpus_per_node) * fleet.gpus_per_node
            if gpus > fleet.gpus_per_node
            else gpus
        )
        load = np.maximum(load, np.where(held >= needed, work / np.maximum(held, 1), np.inf))
    best = np.argsort(load, kind="stable")[:most]
    fitting = best[np.isfinite(load[best])]
    if not len(fitting):
        text = message(
            "static mixes of layouts",
            f"a fleet with room for {examples([name for name, _, _ in named])}",
            f"{fleet.gpus} GPUs",
            "Add GPUs, or drop the profile that is asked for least.",
        )
        raise ScenarioError(text)
    texts = [format_layout(layout) for layout in layouts]
    found = {}
    for mix in mixes[fitting].tolist():
        held = {text: count for text, count in zip(texts, mix, strict=True) if count}
        found[" + ".join(f"{count} x {text}" for text, count in held.items())] = Calendar.constant(held)
    return found


def _compositions(layouts: int, gpus: int) -> np.ndarray:
    """GPUs by layout of every way to share the fleet in equal parts, the rest to the first parts."""
    parts = gpus
    while parts > 1 and math.comb(layouts + parts - 1, parts) > MOST_MIXES:
        parts -= 1
    sizes = np.full(parts, gpus // parts)
    sizes[: gpus % parts] += 1
    chosen = np.array(list(itertools.combinations_with_replacement(range(layouts), parts)), np.int64)
    mixes = np.zeros((len(chosen), layouts), np.int64)
    for part, size in enumerate(sizes.tolist()):
        np.add.at(mixes, (np.arange(len(chosen)), chosen[:, part]), size)
    return mixes


def _adjust(rows: list[dict[str, Any]]) -> None:
    """Adjust the p-values of the rows that have one for how many there are."""
    known = [row for row in rows if row.get("p_holm") is not None]
    for row, adjusted in zip(known, holm(np.array([row["p_holm"] for row in known])), strict=True):
        row["p_holm"] = float(adjusted)


def _ranked(found: Mapping[str, list[dict[str, Any]]], rank_by: str) -> pl.DataFrame:
    """Means over replications and differences to the first policy, best first."""
    schema = {"rank": pl.Int64, "policy": pl.String, "unserved": pl.Int64} | dict.fromkeys(
        MEASURES, pl.Float64
    )
    schema |= dict.fromkeys(
        ("difference", "difference_low", "difference_high", "ratio", "p_holm"), pl.Float64
    )
    rows = []
    base = [row[rank_by] for row in next(iter(found.values()), [])]
    for name, replications in found.items():
        row: dict[str, Any] = {"policy": name, "unserved": sum(one["unserved"] for one in replications)}
        for key in MEASURES:
            values = [one[key] for one in replications if one[key] is not None]
            row[key] = float(np.mean(values)) if values else None
        mine = [one[rank_by] for one in replications]
        if None not in (*base, *mine):
            compared = paired(base, mine)
            row |= {
                "difference": compared.difference.mean,
                "difference_low": compared.difference.low,
                "difference_high": compared.difference.high,
                "ratio": compared.ratio,
                "p_holm": None if name == next(iter(found)) else paired_p_value(base, mine),
            }
        rows.append(row)
    _adjust(rows)
    table = pl.DataFrame(rows, schema={name: kind for name, kind in schema.items() if name != "rank"})
    return (
        table.sort("unserved", rank_by, nulls_last=True, maintain_order=True)
        .with_row_index("rank", offset=1)
        .with_columns(pl.col("rank").cast(pl.Int64))
    )


def sweep_layouts(
    scenario: Scenario,
    *,
    most: int = 20,
    rank_by: str = "mean_jct_s",
    progress: Callable[[int, int, str], object] | None = None,
    cancel: Callable[[], bool] | None = None,
    workers: Workers = 1,
) -> Sweep:
    """Simulate the right-sized jobs of a scenario under its most promising static mixes.

    Examples
    --------
    >>> found = sweep_layouts(Scenario(replications=2, horizon_slots=24), most=2)
    >>> found.complete, found.table.height
    (True, 2)
    """
    drawn, fleet, policies, rules = layouts_to_sweep(scenario, most=most)
    return sweep(
        drawn, fleet, policies, rules, rank_by=rank_by, progress=progress, cancel=cancel, workers=workers
    )


def layouts_to_sweep(
    scenario: Scenario, *, most: int = 20
) -> tuple[list[pl.DataFrame], Fleet, Policies, Rules]:
    """What :func:`sweep_layouts` simulates, as :func:`gpuplanner.study.future.sweep.sweep` and its panel take it.

    Examples
    --------
    >>> drawn, fleet, policies, rules = layouts_to_sweep(Scenario(replications=2, horizon_slots=24), most=2)
    >>> len(drawn), fleet.gpus, len(policies)
    (2, 64, 2)
    """
    known = history(scenario)
    known.fleet.require_mig("sweep")
    past = past_jobs(known)
    fleet, rules = fleet_and_rules(scenario, known)
    drawn = [
        workload(replicate(scenario, known, past, number), "rightsized")
        for number in range(scenario.replications)
    ]
    return drawn, fleet, static_mixes(drawn[0], fleet, most=most), rules
