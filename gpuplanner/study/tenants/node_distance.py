"""GPU-hours that jobs on several nodes lose to distance, by placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.scenario import Scenario, slowdowns_of
from gpuplanner.simulate.nodes.network import NodeNetwork
from gpuplanner.study.cache import stage
from gpuplanner.study.decision.arena import simulate_once
from gpuplanner.study.decision.asked import AS_TODAY
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.past.history import History
from gpuplanner.study.tenants.tried import a_week, parts_of
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

PLACEMENTS = {"lowest": "first free nodes", "consolidate": "consolidated", "spread": "spread"}
"""Placement rules of the simulator, and what they are called in the table."""


@stage
def placement_table(scenario: Scenario) -> pl.DataFrame:
    """Simulate the recent jobs on today's nodes under each placement rule, with the stated slow-downs by tier.

    A row for each placement: ``jobs``, ``multi_node_jobs``, their ``slowdown`` (mean, weighted by GPU-hours),
    ``lost_gpu_hours`` a week, ``mean_wait_minutes`` of all jobs, and ``never_started``.
    """
    known, _, arena, _ = opened(scenario)
    rack, beyond = slowdowns_of(scenario.gang_slowdowns or "") or (1.0, 1.0)
    network = NodeNetwork(node_domains(known, arena.asked.nodes.names), np.array([1.0, 1.0, rack, beyond]))
    fleet = replace(arena.asked.fleet, network=network)
    requests, evaluated = arena.requests(AS_TODAY), arena.judged
    gpu_seconds = arena.asked.gpus() * requests.run_s
    length, count, _ = parts_of(arena.asked.seen_s)
    found: list[dict[str, Any]] = []
    for rule, name in PLACEMENTS.items():
        outcome = simulate_once(requests, fleet, queue=arena.queue, placement=rule, larger=arena.larger)
        started = ~np.isnan(outcome.start_s)
        wait_s = np.where(started, outcome.start_s, arena.asked.seen_s) - requests.ready_s
        wide = evaluated & started & (requests.nodes > 1)
        factor = np.nan_to_num(outcome.factor, nan=1.0)
        lost = gpu_seconds * (factor - 1.0) * evaluated / SECONDS_PER_HOUR
        weeks = a_week(pl.DataFrame({"at_s": requests.ready_s, "lost": lost}), "lost", length, count)
        found.append({
            "placement": name,
            "jobs": int(evaluated.sum()),
            "multi_node_jobs": int(wide.sum()),
            "slowdown": float(np.average(factor[wide], weights=gpu_seconds[wide])) if wide.any() else 1.0,
            "lost_gpu_hours": float(weeks.mean()),
            "mean_wait_minutes": float(wait_s[evaluated].mean()) / SECONDS_PER_MINUTE if evaluated.any() else 0.0,
            "never_started": int((evaluated & ~started).sum()),
        })  # fmt: skip
    return pl.DataFrame(found)


def node_domains(known: History, names: Sequence[str]) -> np.ndarray:
    """NVLink domain and rack of nodes by number, shape (2, n_nodes); a node without one is a domain of its own."""
    inventory = known.fleet.installed.inventory
    tiers = []
    for column in ("nvlink_domain", "rack"):
        stated: dict[str, str] = {}
        if column in inventory.columns:
            stated = dict(inventory.select("node", column).drop_nulls().iter_rows())
        labels = [(column, stated[name]) if name in stated else ("node", name) for name in names]
        _, numbers = np.unique([f"{kind} {label}" for kind, label in labels], return_inverse=True)
        tiers.append(numbers)
    return np.stack(tiers)
