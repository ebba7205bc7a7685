r"""The linear program of a problem, built anew from the problem alone; only names come from a certificate.

Not every layout needs a column. Let L be any multiset of profiles that the board can hold, cut or whole, and M a
layout with a column, cut if L is, that has as many instances as L for every set of requests of the program. If M
also costs no more to empty, to take up and to give up, then wherever a plan has L it can have M, on and parked
alike, and costs no more:

* no limit notices, for as many GPUs are on, parked and cut; coverage can only rise;
* the GPUs with M change by the sum of what those with L and those with M did. An edge costs a price times
  :math:`\max(0, \text{change})`: for a sum no more than for its parts, and for M no more than for L;
* waking has one price, and MIG mode and reboots look at all GPUs that are cut together.

Layouts that are there before the first slot or must stay, whose numbers stand in rows as constants, have columns of
their own. A layout without instances for any set that anybody asks for needs no cover: instead of taking it up, a
GPU is parked with what it had before or, if that was not cut, with what it has next; parked costs no more than on.
Where GPUs are released, all that are cut cost the same, and such a GPU is released. So the least cost over the columns
that are there is the least over all layouts, for windows of slots and for plans without change as well.

Only profiles with demand count for a set: none of the others is ever missing, and without them the rows are narrower
and prove more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpuplanner.hardware import format_layout, multisets, parse_layout, prove
from gpuplanner.planner.contract.certificate import Certificate
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.contract.substitution import serves
from gpuplanner.planner.verification.limits import power_for, within_quotas
from gpuplanner.planner.verification.weak_duality import MOST_LEAVES, NoProof, PricedProgram, Unfinished
from gpuplanner.schemas import WHOLE_GPU

Held: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Edge:
    """GPUs that come to have something, or lose it, from slot to slot, and the price of each batch of them.

    - ``row``, ``column``: How the row and its column are called.
    - ``price``: Price of a batch.
    - ``places``: Columns of GPUs by slot, whose sum it is that changes.
    - ``sign``: 1: what is paid for is that there are more. -1: that there are less.
    - ``batch``: GPUs of a batch.
    """

    row: str
    column: str
    price: float
    places: tuple[int, ...]
    sign: int = 1
    batch: int = 1


class Rebuilt:
    """The problem in numbers, with the layouts and the sets of requests that a certificate names.

    Raises ``NoProof`` if the certificate names what there is not, ``Unfinished`` if it leaves out what a plan may use.
    """

    def __init__(self, certificate: Certificate, problem: PlanProblem) -> None:
        self.problem = problem
        self.layouts = certificate.layouts
        self.steps = missing_steps(problem)
        self.required = [[sum(w for w, _ in steps) for steps in slot] for slot in self.steps]
        wanted = {p for slot in self.required for p, needed in enumerate(slot) if needed}
        self.sets = [_positions(names, problem.profiles) & wanted for names in certificate.requests]
        held = [self._possible(text) for text in self.layouts]
        self.cover = self._cover(held)
        self._check_complete(held)
        self.kept = max(problem.whole_gpus_kept, problem.limits.whole_nodes_kept * problem.gpus_per_node)
        self.fleet = np.minimum(problem.gpus_in_service, power_for(problem))
        self.cuttable = np.minimum(problem.gpus_in_service - self.kept, power_for(problem, cut=True))
        self.held_cut = min(problem.gpus - self.kept, power_for(problem, cut=True))
        self.leaves = iter(range(MOST_LEAVES))
        self.cut = [layout for layout, text in enumerate(self.layouts) if text != WHOLE_GPU]
        # Parked GPUs have columns behind those that are on, one for each layout that is cut.
        self.parked = [] if problem.prices is None else [*self.cut]
        # What has no price is no column: sums of what goes over an edge hold what is paid for.
        self.edges = [edge for edge in self._edges() if edge.price]

    def _possible(self, text: str) -> Held:
        """Instances of a layout that the board can hold."""
        held = parse_layout(text)
        if text != format_layout(held) or not held or not prove(self.problem.board, held):
            reason = f"{text!r:.60} is no layout of {self.problem.board.name}"
            raise NoProof(reason)
        return held

    def _cover(self, layouts: Sequence[Held]) -> list[list[int]]:
        """Instances of each layout that can serve a request of each set, one list a layout."""
        board, profiles = self.problem.board, self.problem.profiles
        able = {
            name: [any(serves(board, name, profiles[p]) for p in places) for places in self.sets]
            for name in {name for held in layouts for name in held}
        }
        return [
            [sum(number for name, number in held.items() if able[name][k]) for k in range(len(self.sets))]
            for held in layouts
        ]

    def _check_complete(self, own: Sequence[Held]) -> None:
        """There must be a column for whatever a plan may use, or for what serves as well at no higher price."""
        problem = self.problem
        named = {*(problem.initial or {}), *(problem.parked or {}), *problem.limits.pinned} - {"off"}
        missing = sorted(named - set(self.layouts))
        if missing or len(set(self.layouts)) < len(self.layouts):
            text = f"its layouts lack {', '.join(missing) or 'names of their own'}"
            raise NoProof(text)
        possible: list[Held] = [
            {WHOLE_GPU: 1},
            *(multisets(problem.board) if problem.board.profiles else []),
        ]
        worth = [self._worth(held, cover) for held, cover in zip(own, self.cover, strict=True)]
        for held, cover in zip(possible, self._cover(possible), strict=True):
            due = self._worth(held, cover)
            if any(cover) and not any(all(map(float.__ge__, its, due)) for its in worth):
                text = f"none of its layouts serves as much as {format_layout(held)} at no higher price of a change"
                raise Unfinished(text)

    def _worth(self, held: Held, cover: Sequence[int]) -> list[float]:
        """What a layout offers: instances for each set, low prices to empty, take up and give up; and its side."""
        cut, prices, text = float(WHOLE_GPU not in held), self.problem.prices, format_layout(held)
        offer = [*map(float, cover), cut, -cut]
        if prices is not None:
            offer += [
                -prices.drain_of(self.problem.board, text),
                -prices.dress_of(text),
                -prices.strip_of(text),
            ]
        return offer

    def _edges(self) -> Iterator[Edge]:
        """What is paid for from slot to slot."""
        problem, prices = self.problem, self.problem.prices
        if prices is None:
            for layout in self.cut:
                yield Edge(f"change_S_{layout}", "cut", problem.change_gpu_hours, (layout,))
            return
        behind = {layout: len(self.layouts) + place for place, layout in enumerate(self.parked)}
        for layout, text in enumerate(self.layouts):
            yield Edge(f"wake_S_{layout}", "wake", prices.wake, (layout,))
            drain = prices.drain_of(problem.board, text)
            yield Edge(f"drain_S_{layout}", "drain", drain, (layout,), -1)
        for layout in self.cut:
            both, text = (layout, behind[layout]), self.layouts[layout]
            yield Edge(f"dress_S_{layout}", "dress", prices.dress_of(text), both)
            yield Edge(f"strip_S_{layout}", "strip", prices.strip_of(text), both, -1)
        if self.cut:
            first, every = self.cut[0], (*self.cut, *behind.values())
            whole, node = prices.mode + prices.dress_of(WHOLE_GPU), problem.gpus_per_node
            yield Edge(f"mode_on_S_{first}", "mode_on", prices.mode, every)
            yield Edge(f"mode_off_S_{first}", "mode_off", whole, every, -1)
            yield Edge(f"reboot_on_S_{first}", "reboot_on", prices.reboot, every, 1, node)
            yield Edge(f"reboot_off_S_{first}", "reboot_off", prices.reboot, every, -1, node)

    def program(
        self,
        slots: range,
        floors: Mapping[tuple[int, int], float],
        *,
        named_from: int,
        entered: bool,
        constant: bool = False,
    ) -> PricedProgram:
        """Rows and columns of consecutive slots."""
        made = PricedProgram(leaves=self.leaves)
        own, entry = [], []
        previous: list[int] | None = None
        for at, slot in enumerate(slots, named_from):
            if constant and previous is not None:
                on = previous
            else:
                on = self._add_on(made, "all" if constant else str(at), slot, len(slots) if constant else 1)
            self._add_fleet(made, at, slot, on)
            own.append([*on, *self._add_missing(made, at, slot, on), *self._add_idle(made, at)])
            paid = entered if previous is None else not constant
            entry.append(self._add_changes(made, at, on, previous) if paid else [])
            previous = on
        for (start, width), cost in floors.items():
            first = start - slots.start
            if first >= 0 and start + width <= slots.stop:
                held = [column for part in own[first : first + width] for column in part]
                held += [column for part in entry[first + 1 : first + width] for column in part]
                name = f"floor_{named_from + first}_{width}"
                made.row(name, {column: made.cost[column] for column in held}, low=cost)
        return made

    def _add_on(self, made: PricedProgram, at: str, slot: int, slots: int) -> list[int]:
        """GPUs on by layout, then GPUs parked, in so many slots."""
        problem, n_on = self.problem, len(self.layouts)
        idle = 0.0 if problem.prices is None else problem.prices.parked_price
        price = (problem.on_price - idle) * problem.slot_hours * slots
        fleet, cuttable = int(self.fleet[slot]), int(self.cuttable[slot])
        columns = []
        for place in range(n_on + len(self.parked)):
            on = place < n_on
            text = self.layouts[place] if on else ""
            most = (fleet if text == WHOLE_GPU else min(fleet, cuttable)) if on else self.held_cut
            least = problem.limits.pinned.get(text, 0) if on else 0
            columns.append(made.column(f"on_{at}_{place}", price if on else 0.0, least, most))
            made.whole[f"on_{at}_{place}"] = np.array(columns[-1:])
        return columns

    def _add_fleet(self, made: PricedProgram, at: int, slot: int, columns: Sequence[int]) -> None:
        """What may be on, and cut."""
        n_on = len(self.layouts)
        made.whole[f"on_{at}"] = np.array(columns[:n_on], dtype=np.int64)
        cut = [columns[layout] for layout in self.cut]
        made.row(f"fleet_{at}", dict.fromkeys(columns[:n_on], 1.0), high=int(self.fleet[slot]))
        made.row(f"whole_{at}", dict.fromkeys(cut, 1.0), high=int(self.cuttable[slot]))
        if self.problem.prices is not None:
            made.row(f"parked_{at}", dict.fromkeys(columns, 1.0), high=power_for(self.problem))
            made.row(f"whole_parked_{at}", dict.fromkeys([*cut, *columns[n_on:]], 1.0), high=self.held_cut)

    def _add_idle(self, made: PricedProgram, at: int) -> list[int]:
        """What a fleet costs of which nothing is on."""
        problem = self.problem
        if problem.prices is None:
            return []
        cost = problem.prices.parked_price * problem.slot_hours * problem.gpus
        return [made.column(f"idle_{at}", cost, 1.0, 1.0)]

    def _add_missing(self, made: PricedProgram, at: int, slot: int, on: Sequence[int]) -> list[int]:
        """Columns of missing instances, and what must be there or missing."""
        by_profile: list[list[int]] = []
        for profile, steps in enumerate(self.steps[slot]):
            columns = [
                made.column(f"short_{at}_{profile}_{step}", cost, 0, width)
                for step, (width, cost) in enumerate(steps)
            ]
            by_profile.append(columns)
            made.whole[f"missing_{at}_{profile}"] = np.array(columns, dtype=np.int64)
        for index, places in enumerate(self.sets):
            lacking = [column for profile in places for column in by_profile[profile]]
            made.whole[f"lacking_{at}_{index}"] = np.array(lacking, dtype=np.int64)
            terms = {on[layout]: float(cover[index]) for layout, cover in enumerate(self.cover)}
            terms |= dict.fromkeys(lacking, 1.0)
            needed = sum(self.required[slot][profile] for profile in places)
            made.row(f"coverage_{at}_{index}", terms, low=needed)
        return [column for columns in by_profile for column in columns]

    def _add_changes(
        self, made: PricedProgram, at: int, on: Sequence[int], previous: Sequence[int] | None
    ) -> list[int]:
        """What is paid to come into a slot: edge by edge, no less than its sum rises, or falls."""
        by_kind: dict[str, list[int]] = {}
        first = [self.problem.initial or {}, self.problem.parked or {}]
        n_on = len(self.layouts)
        for edge in self.edges:
            high = self.problem.gpus
            row = edge.row.replace("S", str(at))
            column = made.column(f"{edge.column} of {row}", edge.price, 0, high)
            by_kind.setdefault(edge.column, []).append(column)
            terms, low = {column: float(edge.batch)}, 0.0
            for place in edge.places:
                terms[on[place]] = -float(edge.sign)
                if previous is not None:
                    terms[previous[place]] = float(edge.sign)
                    continue
                layout = place if place < n_on else self.parked[place - n_on]
                low -= edge.sign * first[place >= n_on].get(self.layouts[layout], 0)
            made.row(row, terms, low=low)
        for kind, columns in by_kind.items():
            made.whole[f"{kind}_{at}"] = np.array(columns, dtype=np.int64)
        return [column for columns in by_kind.values() for column in columns]


def _positions(names: Sequence[str], profiles: Sequence[str]) -> set[int]:
    strangers = sorted(set(names) - set(profiles))
    if strangers:
        text = f"nobody asks for {strangers} here"
        raise NoProof(text)
    return {profiles.index(name) for name in names}


def missing_steps(problem: PlanProblem) -> list[list[list[tuple[int, float]]]]:
    """Instances and their price if missing, dearest first, by slot and profile.

    Whoever pays most is served first, so that the last instance is worth least; what instances are worth changes
    only where the demand of one tenant ends and that of the next begins.
    """
    demand = within_quotas(problem)
    dearest = sorted(range(len(problem.tenants)), key=lambda i: -problem.unmet_price[i])
    slots = []
    for slot in range(problem.n_slots):
        by_profile = []
        for profile, share in enumerate(problem.shares.tolist()):
            wanted = demand[dearest, profile, slot]
            ends = np.append(0.0, np.cumsum(wanted))
            price = [problem.unmet_price[i] * share * problem.slot_hours for i in dearest]
            worth = np.append(0.0, np.cumsum(np.array(price) * wanted))
            needed = math.ceil(float(ends[-1]) - 1e-9)
            near = np.concatenate([np.floor(ends), np.ceil(ends), [0, needed]]).clip(0, needed)
            places = np.unique(near)
            gained = np.diff(np.interp(places, ends, worth))
            widths = np.diff(places)
            pairs = zip(widths.astype(int).tolist(), (gained / widths).tolist(), strict=True)
            by_profile.append(list(pairs))
        slots.append(by_profile)
    return slots
