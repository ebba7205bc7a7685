"""Jobs on several nodes: how much longer they run where nodes are apart, and what racks that draw less cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl

from gpuplanner.catalog import board_spec
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.scenario import MODEL, Scenario, slowdowns_of
from gpuplanner.simulate.nodes import NodeFleet, NodeNetwork, NodeRequests
from gpuplanner.sizing.predict.throughput import board_facts, slower_beyond_a_node
from gpuplanner.study.decision.arena import Arena
from gpuplanner.study.decision.asked import AS_TODAY
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.past.history import History
from gpuplanner.study.plays import played
from gpuplanner.study.stages import stage
from gpuplanner.study.tenants.tried import a_week, change_and_verdict, parts_of
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

PLACED = {"lowest": "as they come", "consolidate": "consolidated", "spread": "spread"}
"""Placements that are played: the first in the order of nodes."""


@dataclass(frozen=True, eq=False)
class PlacedApart:
    """The same jobs on the same nodes, placed otherwise and with less power.

    - ``ways``: A row for each: jobs and those on several nodes; how many times as long these run, expected and at
      worst; GPU-hours a week by which they run longer, likewise; mean wait of all in minutes; the change of GPU-hours a
      week from submission to end against the first row, with its interval and verdict; jobs that never start.
    - ``blocks``: What intervals are over, in words.
    - ``notes``: What the figures rest on.
    """

    ways: pl.DataFrame
    blocks: str
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        rows = {row["way"]: row for row in self.ways.iter_rows(named=True)}
        first, close = rows[PLACED["lowest"]], rows[PLACED["consolidate"]]
        if not first["gangs"]:
            text = "No job is on several nodes: how far these are apart makes no difference."
        else:
            text = (
                f"Placed close together, the {first['gangs']:,} jobs on several nodes run {close['times']:.2f} times "
                f"as long as on one instead of {first['times']:.2f} (at worst {close['times_worst']:.2f} instead of "
                f"{first['times_worst']:.2f}), {first['longer'] - close['longer']:,.1f} GPU-hours a week less."
            )
        for name, row in rows.items():
            if name not in PLACED.values():
                text += (
                    f" With {name}, jobs wait {row['wait_min']:,.1f} minutes on average instead of "
                    f"{first['wait_min']:,.1f}, and {row['never']:,} never start."
                )
        return text

    @property
    def _facts(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "notes": list(self.notes)}

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        return {"sentence": self.sentence} | self._facts | {"ways": self.ways.to_dicts()}

    def to_tables(self) -> dict[str, pl.DataFrame]:
        """Everything as tables that a study keeps."""
        return {
            "placed_apart": self.ways,
            "placed_apart_facts": pl.DataFrame({"facts": [json.dumps(self._facts)]}),
        }

    @classmethod
    def of_tables(cls, tables: Mapping[str, pl.DataFrame]) -> Self | None:
        """The inverse of :meth:`to_tables`; None where a study placed nothing."""
        if "placed_apart" not in tables:
            return None
        facts = json.loads(tables["placed_apart_facts"]["facts"][0])
        return cls(tables["placed_apart"], facts["blocks"], tuple(facts["notes"]))


def is_placed(scenario: Scenario) -> bool:
    """Whether a scenario states what distance or power of racks is."""
    return scenario.gang_slowdowns is not None or scenario.rack_watts is not None


@stage
def placed_apart(scenario: Scenario) -> PlacedApart:
    """Play the recent past on today's nodes: placed as they come, close together and apart, and with power of racks."""
    known, _, arena, _ = opened(scenario)
    racks, domains, origin = racks_of(scenario, known, arena)
    tiers, (expected, worst), basis = _slowdowns(scenario, arena, racks, domains)
    flat = arena.asked.fleet
    # At worst as a second kind of work, so that one network has both.
    network = NodeNetwork(tiers, np.array([expected, worst]))
    rows, requests = arena.requests(AS_TODAY)
    gpus = arena.asked.gpus()[rows]
    ways: dict[str, tuple[str, NodeFleet]] = {
        said: (placement, replace(flat, network=network)) for placement, said in PLACED.items()
    }
    notes = [origin, basis, "Run times in the data are taken as those on nodes next to each other."]
    if scenario.rack_watts is not None:
        limited, note = _limited(network, scenario.rack_watts, racks, arena)
        ways[f"{scenario.rack_watts:,.0f} W a rack"] = ("lowest", replace(flat, network=limited))
        notes.append(note)
    length, count, blocks = parts_of(arena.asked.seen_s)
    found, first = [], None
    for name, (placement, fleet) in ways.items():
        row, weeks = _row(name, arena, requests, rows, gpus, fleet, placement, length, count)
        first = weeks if first is None else first
        found.append(row | change_and_verdict("spent", first, weeks))
    return PlacedApart(pl.DataFrame(found), blocks, tuple(notes))


def racks_of(scenario: Scenario, known: History, arena: Arena) -> tuple[np.ndarray, np.ndarray, str]:
    """Rack and NVLink domain of each of today's nodes by number, and where they are from."""
    names = arena.asked.nodes.names
    alone = np.arange(len(names))
    listed = known.fleet.installed.inventory
    by_name = {
        column: dict(listed.select("node", column).drop_nulls().iter_rows())
        if column in listed.columns
        else {}
        for column in ("rack", "nvlink_domain")
    }
    domains = _numbered([by_name["nvlink_domain"].get(name, f"alone {name}") for name in names])
    if scenario.nodes_per_rack is not None:
        order = np.argsort(np.argsort(names))
        return (
            order // scenario.nodes_per_rack,
            domains,
            f"Racks of {scenario.nodes_per_rack} nodes, as stated.",
        )
    if not any(name in by_name["rack"] for name in names):
        if scenario.rack_watts is not None:
            text = message(
                "scenario: rack_watts", "racks", "a node list without any",
                "State nodes_per_rack, or ingest a node list that has them.",
            )  # fmt: skip
            raise ScenarioError(text)
        return alone, domains, "Nobody says which nodes share a rack: each counts as one of its own."
    racks = [by_name["rack"].get(name, f"alone {name}") for name in names]
    return _numbered(racks), domains, "Racks and NVLink domains of the node list."


def _numbered(names: list[str]) -> np.ndarray:
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([place[name] for name in names], np.int64)


def _slowdowns(
    scenario: Scenario, arena: Arena, racks: np.ndarray, domains: np.ndarray
) -> tuple[np.ndarray, tuple[list[float], list[float]], str]:
    """Domains by tier; slow-downs on one node, in each and beyond, expected and at worst; where these are from."""
    tiers = np.stack([domains, racks])
    stated = scenario.gang_slowdowns
    if stated is None:
        return (
            tiers,
            ([1.0] * 4, [1.0] * 4),
            "Distance is taken to cost nothing: gang_slowdowns is not stated.",
        )
    measured = slowdowns_of(stated)
    if measured is not None:
        both = [1.0, 1.0, *measured]
        return (
            tiers,
            (both, both),
            f"Slow-downs as stated: {measured[0]:g} within a rack, {measured[1]:g} beyond.",
        )
    try:
        facts = board_facts(arena.asked.board.name)
    except GeometryError:
        facts = None
    if facts is None:
        text = message(
            f"scenario: gang_slowdowns {MODEL!r}", "a board with a data sheet", repr(arena.asked.board.name),
            "State two numbers as measured.",
        )  # fmt: skip
        raise ScenarioError(text)
    _, expected, worst = slower_beyond_a_node(facts)
    basis = (
        f"Slow-downs of the sizing model: {expected:.2f} expected beyond an NVLink domain, {worst:.2f} at worst, for "
        "data parallel training of 7 billion parameters on 16 GPUs (network_gb_s of the catalogue); state what you "
        "measured."
    )
    return tiers, ([1.0, 1.0, expected, expected], [1.0, 1.0, worst, worst]), basis


def _limited(network: NodeNetwork, watts: float, racks: np.ndarray, arena: Arena) -> tuple[NodeNetwork, str]:
    """The network with what racks may draw, each GPU in use as much as its board at most."""
    board = arena.asked.board.name
    try:
        most = board_spec(board).tdp_w
    except GeometryError:
        most = None
    if most is None:
        text = message(
            "scenario: rack_watts", "a board whose power a data sheet states", repr(board),
            "Leave it out, or name the board.",
        )  # fmt: skip
        raise ScenarioError(text)
    each = np.round(most * arena.asked.fleet.weights).astype(np.int64)
    limits = np.full(int(racks.max()) + 1, int(watts), np.int64)
    note = f"A {board} in use draws {most:,.0f} W by its data sheet; what nodes draw besides is not counted."
    return replace(network, racks=racks, rack_watts=limits, watts=each), note


def _row(
    name: str, arena: Arena, requests: NodeRequests, rows: np.ndarray, gpus: np.ndarray, fleet: NodeFleet,
    placement: str, length: float, count: int,
) -> tuple[dict[str, Any], np.ndarray]:  # fmt: skip
    """The row of a way to place jobs, and GPU-hours from submission to end, week by week."""
    judged, ready = arena.judged[rows], requests.ready_s
    how: dict[str, Any] = {"queue": arena.queue, "placement": placement, "larger": arena.larger}
    sides = [played(replace(requests, work=np.full(len(rows), work)), fleet, **how) for work in (0, 1)]
    started = ~np.isnan(sides[0].start_s)
    gangs = judged & started & (requests.nodes > 1)
    weight = gpus * requests.run_s
    wait = np.where(started, sides[0].start_s, arena.asked.seen_s) - ready
    row: dict[str, Any] = {
        "way": name, "jobs": int(judged.sum()), "gangs": int(gangs.sum()),
        "wait_min": float(wait[judged].mean()) / SECONDS_PER_MINUTE if judged.any() else 0.0,
        "never": int((judged & ~started).sum()),
    }  # fmt: skip
    for end, found in zip(("", "_worst"), sides, strict=True):
        factor = np.nan_to_num(found.factor, nan=1.0)
        row[f"times{end}"] = float(np.average(factor[gangs], weights=weight[gangs])) if gangs.any() else 1.0
        table = pl.DataFrame({"at_s": ready, "longer": weight * (factor - 1.0) * judged / SECONDS_PER_HOUR})
        row[f"longer{end}"] = float(a_week(table, "longer", length, count).mean())
    spent = (
        (wait + requests.run_s * np.nan_to_num(sides[0].factor, nan=1.0)) * gpus * judged / SECONDS_PER_HOUR
    )
    return row, a_week(pl.DataFrame({"at_s": ready, "spent": spent}), "spent", length, count)
