"""From frames and names to the flat arrays of the compiled loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.hardware import ChangeCost, MigProfile
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.rules import Drain, Rules
from gpuplanner.simulate.slices.planned_changes import planned_layouts, to_operations
from gpuplanner.simulate.slices.world import (
    CHANGE,
    EVENT,
    GPU,
    IDLE,
    JOB,
    LAYOUT,
    NODE,
    NONE,
    OPERATION,
    PROFILE,
    STATUS,
    WHOLE,
    Floats,
    Ints,
    World,
    table,
)


@dataclass(frozen=True)
class Terms:
    """Profiles and layouts as numbers, the whole GPU first.

    - ``profiles``, ``layouts``: Name of each number.
    - ``numbers``: Profile number of each name that the jobs use.
    - ``targets``, shape (n_slots, n_layouts): GPUs that should have the layout.
    - ``instances``, shape (n_layouts, n_profiles): Instances on one GPU.
    - ``substitutes``, shape (n_profiles, n_profiles): Profiles that may stand in, smallest first, filled up with
      ``NONE``.
    """

    profiles: tuple[str, ...]
    layouts: tuple[str, ...]
    numbers: dict[str, int]
    targets: Ints
    instances: Ints
    substitutes: Ints

    def numbers_of(self, jobs: pl.DataFrame) -> Ints:
        """Profile number of every job."""
        return jobs["profile"].replace_strict(self.numbers, default=NONE).to_numpy().astype(np.int64)

    def offered(self) -> Ints:
        """Most instances that serve a profile at once, from each slot on; shape (n_slots, n_profiles)."""
        own = self.targets @ self.instances
        serving = own.copy()
        for profile, row in enumerate(self.substitutes):
            serving[:, profile] += own[:, row[row != NONE]].sum(axis=1)
        latest_first = np.maximum.accumulate(serving[::-1], axis=0)
        return latest_first[::-1]


def to_terms(jobs: pl.DataFrame, fleet: Fleet, calendar: Calendar, rules: Rules) -> Terms:
    """Number the profiles and layouts of a run."""
    board = fleet.model
    contents = dict(zip(calendar.layouts, calendar.instances(fleet), strict=True))
    counts = dict(zip(calendar.layouts, calendar.counts.T, strict=True))
    layouts = (WHOLE_GPU, *(layout for layout in calendar.layouts if layout != WHOLE_GPU))
    aliases = {
        name: name if name == WHOLE_GPU else board.profile(name).name
        for name in jobs["profile"].unique(maintain_order=True)
    }
    used = {*aliases.values(), *(name for held in contents.values() for name in held)} - {WHOLE_GPU}
    cut = sorted((board.profile(name) for name in used), key=lambda profile: profile.size_order)
    profiles = (WHOLE_GPU, *(profile.name for profile in cut))
    number = {name: rank for rank, name in enumerate(profiles)}
    none = np.zeros(len(calendar.counts), np.int64)
    instances = np.zeros((len(layouts), len(profiles)), np.int64)
    instances[WHOLE, WHOLE] = 1
    for rank, layout in enumerate(layouts[1:], start=1):
        for name, count in contents[layout].items():
            instances[rank, number[name]] = count
    return Terms(
        profiles=profiles,
        layouts=layouts,
        numbers={name: number[known] for name, known in aliases.items()},
        targets=np.column_stack([counts.get(layout, none) for layout in layouts]),
        instances=instances,
        substitutes=_substitutes(cut) if rules.substitute else np.full((len(profiles), 1), NONE),
    )


def _substitutes(cut: list[MigProfile]) -> Ints:
    """For each profile those that have at least as much of everything; never the whole GPU."""
    numbered = list(enumerate(cut, start=1))
    standing_in = np.full((len(cut) + 1, len(cut) + 1), NONE)
    for number, profile in numbered:
        able = [other for other, larger in numbered if other != number and larger.serves(profile)]
        standing_in[number, : len(able)] = able
    return standing_in


def to_world(
    jobs: pl.DataFrame,
    terms: Terms,
    fleet: Fleet,
    calendar: Calendar,
    rules: Rules,
    until_s: float,
) -> World:
    """Fill the arrays for checked phases of jobs: the first ones in order of arrival, then all others."""
    board, status, change = fleet.model, table(STATUS, 1), rules.change_on(fleet.model)
    status.slot = NONE
    work, needed = table(JOB, jobs.height), jobs["sms_needed"].fill_null(0.0).to_numpy()
    work.submit = jobs["submit_s"].clip(lower_bound=0.0)
    work.run, work.gpus = jobs["run_s"], jobs["gpus"]
    work.limit = jobs["limit_s"].fill_null(np.inf)
    work.profile = terms.numbers_of(jobs)
    work.sms_needed = needed
    work.start = work.end = np.nan
    work.gpu = work.served = work.behind = NONE
    work.before, work.then = _links(jobs)
    gpus = table(GPU, fleet.gpus)
    gpus.layout = _first_layouts(terms.targets[0], fleet.gpus)
    parked = np.zeros((0, 0), np.int64)
    if calendar.parked is not None:
        counts = dict(zip(calendar.layouts, calendar.parked.T, strict=True))
        counts[WHOLE_GPU] = fleet.gpus - terms.targets.sum(axis=1) - calendar.parked.sum(axis=1)
        parked = np.column_stack([counts[layout] for layout in terms.layouts]).astype(np.int64)
        gpus.held[gpus.layout == NONE] = np.repeat(np.arange(len(terms.layouts)), parked[0])
    operations, drain = table(OPERATION, 0), rules.drain or Drain()
    numbered = cut = np.zeros((0, 0), np.int64)
    if rules.drain is not None:
        numbered, cut = planned_layouts(calendar, terms.layouts, terms.targets, gpus.layout, fleet)
        operations = to_operations(drain, calendar.slot_starts_s, cut, fleet.gpus_per_node)
        gpus.layout, gpus.held = numbered[0], np.where(cut[0] == NONE, WHOLE, cut[0])
    gpus.operation = NONE
    nodes = table(NODE, fleet.nodes)
    nodes.lowest = fleet.gpus
    idle = table(IDLE, fleet.gpus_per_node + 1)
    idle[0].nodes = fleet.nodes
    profiles = table(PROFILE, len(terms.profiles))
    profiles.slices = [board.compute_slices, *(board.profile(p).compute_slices for p in terms.profiles[1:])]
    # SMs matter only where a job says how many it needs; boards whose SMs no source states can run the rest.
    profiles.sms = [board.sms_of(p) if needed.any() and p != WHOLE_GPU else 1 for p in terms.profiles]
    profiles.lowest = fleet.gpus
    profiles.head = profiles.tail = NONE
    return World(
        per_node=fleet.gpus_per_node,
        arrivals=int((jobs["phase"] == 0).sum()),
        restart_s=change.restart_s.value,
        easy=rules.queue == "easy",
        until_s=float(until_s),
        slot_starts=calendar.slot_starts_s.copy(),
        targets=terms.targets,
        parked=parked,
        instances=terms.instances,
        substitutes=terms.substitutes,
        change_s=_change_seconds(terms, change),
        jobs=work,
        gpus=gpus,
        free=np.zeros((fleet.gpus, len(terms.profiles)), np.int64),
        nodes=nodes,
        idle=idle,
        profiles=profiles,
        layouts=table(LAYOUT, len(terms.layouts)),
        chosen=np.zeros(fleet.nodes, np.int64),
        ends=table(EVENT, jobs.height),
        due=table(EVENT, fleet.gpus),
        coming=table(EVENT, fleet.gpus),
        order=table(EVENT, fleet.gpus),
        log=table(CHANGE, 16 * fleet.gpus),
        status=status,
        operations=operations,
        numbered=numbered,
        cut=cut,
        evict=drain.evict,
        before_change=drain.before_change and bool(len(operations)),
        checkpoint_s=float(drain.checkpoint_s),
    )


def _change_seconds(terms: Terms, change: ChangeCost) -> Floats:
    """Time that an idle GPU is out of service, shape (n_layouts, n_layouts)."""
    held = [
        {terms.profiles[profile]: int(row[profile]) for profile in np.flatnonzero(row)}
        for row in terms.instances
    ]
    return np.array([[change.seconds(before, after) for after in held] for before in held])


def _links(jobs: pl.DataFrame) -> tuple[Ints, Ints]:
    """For every row the one of the phase before, and of the next phase; ``NONE`` where there is none."""
    job, phase = jobs["row"].to_numpy(), jobs["phase"].to_numpy()
    order = np.lexsort((phase, job))
    linked = job[order[1:]] == job[order[:-1]]
    before, then = np.full(len(order), NONE), np.full(len(order), NONE)
    before[order[1:][linked]] = order[:-1][linked]
    then[order[:-1][linked]] = order[1:][linked]
    return before, then


def _first_layouts(target: Ints, gpus: int) -> Ints:
    """Layouts at the start: whole GPUs from the lowest number up, cut ones up to the highest, off between."""
    layout = np.full(gpus, NONE)
    layout[: target[WHOLE]] = WHOLE
    cut = np.repeat(np.arange(1, len(target)), target[1:])
    layout[gpus - len(cut) :] = cut
    return layout
