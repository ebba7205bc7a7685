"""Compute what a planted cluster needs: waits at other fleet sizes and under other measures, and the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from queue_simulator import (
    ALWAYS_ON,
    CAUSES,
    REPARTITIONABLE,
    WRONG_LAYOUT,
    Fleet,
    PowerRule,
    QueueRule,
    SimulationResult,
    make_fleet,
    simulate,
)
from workloads import RECORD_S, RUN_ON_S, TENANT_WEIGHTS, TENANTS, WEEK_S, queue_jobs
from worlds import MAX_SCALE, World, jobs_of_world, make_outages, outage_rows

MAX_WAIT_MINUTES = 30.0
MAX_ADDED_WAIT_MINUTES = 10.0
MEASURES = ("keep", "release", "buy", "pack", "raise_limit", "repartition", "rightsize")
"""In the order of preference between measures that need equally many GPUs."""
SIZE_ORDER = ("1", "2-4", "5-8", ">8")


@dataclass(frozen=True)
class Policy:
    """Jobs, rules and limits of a simulation; the fleet is varied."""

    name: str
    jobs: pl.DataFrame
    rule: QueueRule
    tenant_limits: tuple[int, ...] | None = None


class Truth:
    """Simulations of one world: today's, and those of its counterfactuals."""

    def __init__(self, world: World, seed: int, gap_s: int):
        self.world = world
        self.outages = outage_rows(world, seed)
        self.all_jobs = jobs_of_world(world, seed)
        jobs = self.all_jobs.filter(pl.col("submit_s") < RECORD_S + RUN_ON_S)
        limits = tuple(world.tenant_limits[tenant] for tenant in TENANTS) if world.tenant_limits else None
        weight_s = float(world.fair_share_weight_s)
        rule = QueueRule(world.spread, not world.passing, gap_s=gap_s, fair_share_weight_s=weight_s)
        self.policy = Policy("today", jobs, rule, limits)
        self.gpus = world.gpus_by_layout + (0,) * (len(world.layouts) - len(world.gpus_by_layout))
        self.fleet, self.today = self.simulate(self.policy, self.gpus)
        self.today_waits = wait_table(jobs, self.today)
        self._waits: dict[tuple[str, tuple[int, ...]], dict[str, dict[str, float]]] = {}

    def simulate(
        self, policy: Policy, gpus: tuple[int, ...], power: PowerRule = ALWAYS_ON
    ) -> tuple[Fleet, SimulationResult]:
        """Simulate a policy on a fleet with so many GPUs of each layout, always on or powered down while idle."""
        instances = [layout.instances_per_gpu for layout in self.world.layouts]
        fleet = make_fleet(gpus, instances, self.world.node_gpus)
        result = simulate(
            queue_jobs(policy.jobs), fleet, policy.rule, tenant_limits=policy.tenant_limits,
            tenant_shares=TENANT_WEIGHTS / TENANT_WEIGHTS.sum() if policy.rule.fair_share_weight_s else None,
            outages=make_outages(self.outages, len(fleet.capacity)), window_s=(0, RECORD_S), power=power,
        )  # fmt: skip
        return fleet, result

    def waits(self, policy: Policy, gpus: tuple[int, ...]) -> dict[str, dict[str, float]]:
        """Return p95 and mean wait by job size; a simulation that ran before is not run again."""
        key = (policy.name, gpus)
        if key not in self._waits:
            self._waits[key] = wait_table(policy.jobs, self.simulate(policy, gpus)[1])
        return self._waits[key]

    def targets(self) -> dict[str, float]:
        """Return the p95 wait at which the waits of each job size have ended. In minutes."""
        return {
            size: min(MAX_WAIT_MINUTES, row["p95_minutes"] + MAX_ADDED_WAIT_MINUTES)
            if row["p95_minutes"] <= MAX_WAIT_MINUTES
            else MAX_WAIT_MINUTES
            for size, row in self.today_waits.items()
        }

    def limits_within_reach(self) -> dict[str, float]:
        """Return the wait limit of each job size: its target where more GPUs reach it, else today's p95. In minutes."""
        largest = self.waits(self.policy, tuple(MAX_SCALE * count for count in self.gpus))
        return {
            size: target if largest[size]["p95_minutes"] <= target else self.today_waits[size]["p95_minutes"]
            for size, target in self.targets().items()
        }

    def fewest_gpus(self, policy: Policy, limits: dict[str, float], *, by_gpu: bool = False):
        """Find the fewest GPUs of each layout at which a policy meets the limits; layouts do not touch each other.

        Parameters
        ----------
        policy : Policy
            Jobs and rules that are simulated.
        limits : dict of str to float
            Largest p95 wait by job size. [min]
        by_gpu : bool
            Vary MIG-partitioned layouts by single GPUs, not by whole nodes.

        Returns
        -------
        tuple of int, or None, and list of dict
            GPUs of each layout, and each count that was simulated with its waits.
        """
        rows = []
        fewest = list(self.gpus)
        for layout, today in enumerate(self.gpus):
            if not today:
                continue
            whole = not by_gpu or self.world.layouts[layout].instances_per_gpu == 1
            step = self.world.node_gpus if whole else 1
            sizes = ordered_sizes(policy.jobs.filter(pl.col("layout") == layout))

            def meets(count, layout=layout, sizes=sizes):
                gpus = (*self.gpus[:layout], count, *self.gpus[layout + 1 :])
                waits = {size: self.waits(policy, gpus)[size] for size in sizes}
                met = meets_limits(waits, limits)
                rows.append({"layout": self.world.layouts[layout].gres, "gpus": count, "meets": met, "waits": waits})
                return met

            count = today
            if meets(today):
                while count > step and meets(count - step):
                    count -= step
            else:
                count += step
                while count <= MAX_SCALE * today and not meets(count):
                    count += step
                if count > MAX_SCALE * today:
                    return None, rows
            fewest[layout] = count
        if not by_gpu and any(count > today for count, today in zip(fewest, self.gpus, strict=True)):
            # Nodes of a layout that has too many do not help another one: that would be repartitioning.
            fewest = [max(count, today) for count, today in zip(fewest, self.gpus, strict=True)]
        return tuple(fewest), rows

    def rightsized(self, limits: dict[str, float]):
        """Find the fewest GPUs if jobs of one GPU that use a tenth of it run in MIG instances, seven on a GPU."""
        small = pl.col("low_use") & (pl.col("gpus") == 1)
        jobs = self.policy.jobs.with_columns(layout=small.cast(pl.Int64))
        policy = replace(self.policy, name="rightsize", jobs=jobs)
        jobs = jobs.filter(pl.col("submit_s").is_between(0, RECORD_S, closed="left"))
        load = jobs.filter(pl.col("layout") == 1)["run_s"].sum() / RECORD_S / 7
        rows = []

        def partitioning(total):
            for partitioned in range(max(1, math.floor(load)), min(total, math.ceil(3 * load) + 3)):
                waits = self.waits(policy, (total - partitioned, partitioned))
                met = meets_limits(waits, limits)
                rows.append({"gpus": total, "partitioned_gpus": partitioned, "meets": met, "waits": waits})
                if met:
                    return total - partitioned, partitioned
            return None

        total, step = self.gpus[0], self.world.node_gpus
        best = partitioning(total)
        while best is None and total < MAX_SCALE * self.gpus[0]:
            total += step
            best = partitioning(total)
        while total > step and total <= self.gpus[0] and (fewer := partitioning(total - step)):
            best = fewer
            total -= step
        return best, rows

    def measure_rows(self, limits: dict[str, float]) -> list[dict]:
        """Return each measure that the world allows, with the GPUs at which it meets the limits."""
        world, policy = self.world, self.policy
        today = sum(self.gpus)
        policies = [policy]
        if world.spread:
            policies.append(replace(policy, name="pack", rule=policy.rule._replace(spread=False)))
        if policy.tenant_limits:
            policies.append(replace(policy, name="raise_limit", tenant_limits=None))
        if world.passing:
            rule = policy.rule._replace(reserve_for_head=True)
            policies.append(replace(policy, name="reserve_for_head", rule=rule))
        found = [(other.name, *self.fewest_gpus(other, limits)) for other in policies]
        if len(world.demands) > 1:
            found.append(("repartition", *self.fewest_gpus(policy, limits, by_gpu=True)))
        if any(demand.low_use_fraction for demand in world.demands):
            found.append(("rightsize", *self.rightsized(limits)))
        rows = []
        for measure, gpus, simulated in found:
            total = None if gpus is None else math.ceil(sum(gpus) / world.node_gpus) * world.node_gpus
            if measure == "today":
                measure = "buy" if total is None or total > today else "release" if total < today else "keep"
            rows.append({"measure": measure, "gpus": total, "gpus_by_layout": gpus, "simulated": simulated})
        return rows

    def answer(self) -> tuple[dict, list[dict]]:
        """Return the fewest GPUs under today's rules, the measure that ends the waits, and all counterfactuals."""
        limits, targets = self.limits_within_reach(), self.targets()
        fewest, _ = self.fewest_gpus(self.policy, limits)
        rows = self.measure_rows(targets)
        ended_for = targets
        if all(row["gpus"] is None for row in rows if row["measure"] in MEASURES):
            rows = self.measure_rows(limits)
            ended_for = limits
        candidates = [row for row in rows if row["measure"] in MEASURES and row["gpus"] is not None]
        best = min(candidates, key=lambda row: (row["gpus"], MEASURES.index(row["measure"])))
        names = [layout.gres for layout in self.world.layouts]
        answer = {
            "fewest_gpus": None if fewest is None else sum(fewest),
            "wait_limit_p95_minutes": limits,
            "measure": best["measure"],
            "measure_gpus": best["gpus"],
            "measure_gpus_by_layout": dict(zip(names, best["gpus_by_layout"], strict=True)),
            "measure_limit_p95_minutes": ended_for,
        }
        return answer, rows

    def causes(self) -> dict[str, dict]:
        """Return the waiting within the record by job size and cause, in seconds of jobs and of their GPUs."""
        jobs, cause_s = self.policy.jobs, self.today.cause_s
        fraction = np.array([layout.gpu_fraction for layout in self.world.layouts])[jobs["layout"].to_numpy()]
        gpus = jobs["gpus"].to_numpy() * fraction
        sizes = jobs["size"].to_numpy()
        merged_s = cause_s[:, : len(CAUSES)].copy()
        merged_s[:, WRONG_LAYOUT] += cause_s[:, REPARTITIONABLE]
        table = {}
        for size in (*ordered_sizes(jobs), "all"):
            chosen = np.full(len(jobs), True) if size == "all" else sizes == size
            job_s = merged_s[chosen].sum(axis=0).tolist()
            gpu_s = (merged_s * gpus[:, None])[chosen].sum(axis=0).round().tolist()
            row = {"job_seconds": dict(zip(CAUSES, job_s, strict=True))}
            row["gpu_seconds"] = dict(zip(CAUSES, gpu_s, strict=True))
            if len(self.world.demands) > 1:
                idle_s = (cause_s[:, REPARTITIONABLE] * gpus)[chosen].sum()
                row["gpu_seconds_of_wrong_layout_on_idle_gpus"] = round(float(idle_s))
            table[size] = row
        return table

    def curve(self) -> list[dict]:
        """Return the waits at other counts of GPUs under today's rules; a last node may be a part of one."""
        rows = []
        for scale in (0.75, 1.0, 1.25, 1.5):
            gpus = tuple(math.floor(count * scale + 0.5) for count in self.gpus)
            rows.append({"scale": scale, "gpus": sum(gpus), "waits": self.waits(self.policy, gpus)})
        return rows

    def weeks_ahead(self, block_weeks: int = 4) -> dict:
        """Return the waits of each week if the submitted work goes on to grow, and the GPUs that it then needs."""
        policy = replace(self.policy, name="ahead", jobs=self.all_jobs)
        limits = self.limits_within_reach()
        record_weeks = RECORD_S // WEEK_S
        weeks = record_weeks + self.world.weeks_ahead

        def waits(result, first_week, last_week):
            return wait_table(self.all_jobs, result, first_week * WEEK_S, last_week * WEEK_S)

        _, today = self.simulate(policy, self.gpus)
        by_week = [waits(today, week, week + 1) for week in range(weeks)]
        blocks = [waits(today, week, week + block_weeks) for week in range(weeks - block_weeks + 1)]
        last_met = max((week for week, row in enumerate(blocks) if meets_limits(row, limits)), default=-1)
        needed = []
        gpus = sum(self.fewest_gpus(self.policy, limits)[0] or self.gpus)
        for first_week in range(record_weeks, weeks, block_weeks):
            last_week = first_week + block_weeks
            while not meets_limits(waits(self.simulate(policy, (gpus,))[1], first_week, last_week), limits):
                gpus += self.world.node_gpus
            needed.append({"weeks": [first_week, last_week], "fewest_gpus": gpus})
        return {
            "exhaustion_week": last_met + 1 if last_met + 1 < len(blocks) else None,
            "fewest_gpus_by_weeks": needed,
            "waits_by_week": by_week,
        }


def meets_limits(waits: dict[str, dict[str, float]], limits: dict[str, float]) -> bool:
    """Return whether the p95 wait of each job size is within its limit."""
    return all(row["p95_minutes"] <= limits[size] for size, row in waits.items())


def ordered_sizes(jobs: pl.DataFrame) -> list[str]:
    """Return the job sizes of a frame from small to large, MIG profiles last."""
    sizes = jobs["size"].unique().to_list()
    return sorted(sizes, key=lambda size: (SIZE_ORDER.index(size) if size in SIZE_ORDER else 9, size))


def wait_table(jobs: pl.DataFrame, result: SimulationResult, start_s: int = 0, end_s: int = RECORD_S):
    """Return jobs, p95 and mean wait by job size, for the jobs that become eligible in a window.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs in the order of the result.
    result : SimulationResult
        Outcome of each job; a withdrawn job waited until it was withdrawn.
    start_s, end_s : int
        Window of the time of eligibility. [s]
    """
    waits = jobs.select("size", "eligible_s", minutes=result.wait_s(queue_jobs(jobs)) / 60)
    waits = waits.filter(pl.col("eligible_s").is_between(start_s, end_s, closed="left"))
    table = waits.group_by("size").agg(
        jobs=pl.len(),
        p95_minutes=pl.col("minutes").quantile(0.95, "higher").round(2),
        mean_minutes=pl.col("minutes").mean().round(2),
    )
    rows = {row.pop("size"): row for row in table.iter_rows(named=True)}
    return {size: rows[size] for size in ordered_sizes(table)}
