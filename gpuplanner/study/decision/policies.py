"""Ways to run a fleet, the plain ones included, and how each is tuned on the weeks before those it is judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuplanner.hardware.abilities import GPUS, PathAbilities
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.nodes import NodeFleet, Switching
from gpuplanner.study.decision.arena import Arena, Mask, Trial, WaySetting, cut_fleet
from gpuplanner.study.decision.asked import AS_TODAY, REQUESTED, RIGHTSIZED
from gpuplanner.study.decision.layouts import mixed_layouts, on_demand_fleet, wanted_instances
from gpuplanner.units import SECONDS_PER_MINUTE

TODAY, STATIC_WHOLE, STATIC_MIG = "today", "static_whole", "static_mig"
ON_OFF, NODE_POOLS, ON_DEMAND = "whole_on_off", "node_pools", "cut_on_demand"
USUAL_IDLE_MINUTES = 10
NEAR = 2
MOST_CUTS = 24
HOPELESS = 0.05
"""Share of all jobs that wait at once where a setting is given up: one in twenty may be late at all."""
ROUNDS, MORE = 3, 1.3
"""How often, and by how much, the profile that is shortest gets more of the GPUs that are cut."""
"""How many more, or fewer, idle nodes are tried where another knob is turned."""
IDLE_MINUTES = (1, 5, 10, 15, 30, 60)
"""For how long a node may be idle before it goes."""
PLACEMENTS = ("best", "fullest")
SEARCH_DRAWS = 1
"""Replays while settings are looked for; the chosen one is played in all."""
MOST_CHECKED = 6
"""Settings that are played in full, cheapest first, until one holds."""


@dataclass(eq=False)
class Tuning:
    """What a way is tuned on: an arena, the jobs of the earlier weeks, and heavier ones.

    Attributes
    ----------
    arena : Arena
        The weeks as they were.
    earlier : array of bool
        Jobs that count.
    days : array of bool
        Days that count.
    heavier : Arena or None
        The earlier weeks with more jobs.
    able : PathAbilities
        What the path can do.
    tell : callable, optional
        Told of every setting that is tried.
    """

    arena: Arena
    earlier: Mask
    days: Mask
    heavier: Arena | None
    able: PathAbilities
    fine: bool = False
    tell: Callable[[str, Trial], object] | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    good: set[int] = field(default_factory=set)
    strains: dict[int, tuple[float, float]] = field(default_factory=dict)

    def tuned(self, policy: str) -> Trial | None:
        """The cheapest setting that holds on the earlier weeks, heavier ones, and at a slow lead; None: none does."""
        searched = list(WAYS[policy].settings(self))
        good = sorted(
            (trial for trial in searched if id(trial) in self.good),
            key=lambda trial: (self.cost(trial), trial.setting.gpus, self.strain(trial)),
        )
        if not good:
            self.reasons[policy] = self._why_none(searched)
            return None
        for trial in good[:MOST_CHECKED]:
            full = self.arena.play(trial.setting)
            if self.arena.holds(full, self.earlier):
                return full
        self.reasons[policy] = "its settings hold in some replays only"
        return None

    def _why_none(self, searched: Sequence[Trial]) -> str:
        if not any(self.arena.holds(trial, self.earlier) for trial in searched):
            return "no setting of it starts jobs as today's fleet does"
        slow = searched and searched[0].setting.switching is not None
        more = " or where nodes take long to come" if slow else ""
        return f"its settings hold on the weeks seen, but not on heavier ones that today's fleet bears{more}"

    def is_good(self, trial: Trial) -> bool:
        """Whether a setting holds on the earlier weeks; where nodes come and go, on heavier ones and if they are slow.

        How many GPUs there are at all is not left to heavier weeks but to the days left out, see ``compare``.
        """
        held = self.arena.holds(trial, self.earlier)
        if held and trial.setting.switching is not None:
            held = self._holds_slow(trial)
            if held and self.heavier is not None and trial.setting.gpus == self.arena.asked.nodes.total:
                held = self.heavier.holds(
                    self.heavier.play(trial.setting, SEARCH_DRAWS, hopeless=HOPELESS), self.heavier.judged
                )
        if held:
            self.good.add(id(trial))
        return held

    def strain(self, trial: Trial) -> tuple[float, float]:
        """How late its jobs start on heavier weeks, else on those seen [min]: of equals the one with room is taken."""
        if id(trial) not in self.strains:
            arena = self.arena if self.heavier is None else self.heavier
            which = self.earlier if self.heavier is None else arena.judged
            found = (
                trial if self.heavier is None else arena.play(trial.setting, SEARCH_DRAWS, hopeless=HOPELESS)
            )
            self.strains[id(trial)] = max(arena.excess(found, which), 0.0), arena.mean_minutes(found, which)
        return self.strains[id(trial)]

    def cost(self, trial: Trial) -> float:
        """GPU-hours on, on the days that count."""
        return float(trial.day_hours[self.days].sum())

    def fewer(self, trial: Trial, rate: Callable[[Trial], float | None], least_rate: float) -> Trial:
        """The same way on the fewest nodes at once with which it holds, on nine days of ten as well."""
        best, setting = trial, trial.setting
        low, high = 0, len(setting.numbers)
        while high - low > 1:
            middle = (low + high) // 2
            fleet = setting.fleet.only(np.arange(middle))
            knobs = {**setting.knobs, "gpus": int(fleet.gpus.sum())}
            some = replace(setting, fleet=fleet, numbers=setting.numbers[:middle], layouts=setting.layouts[:middle],
                           knobs=knobs)  # fmt: skip
            found = self.arena.play(some)
            if self.is_good(found) and (rate(found) or 0.0) >= least_rate:
                best, high = found, middle
            else:
                low = middle
        return best

    def _try(self, setting: WaySetting) -> Trial:
        trial = self.arena.play(setting, SEARCH_DRAWS, hopeless=HOPELESS)
        if self.tell is not None:
            self.tell(setting.policy, trial)
        return trial

    def _holds_slow(self, trial: Trial) -> bool:
        how = trial.setting.switching
        assert how is not None
        slow = replace(trial.setting, switching=replace(how, lead_s=self.able.lead.high))
        return self.arena.holds(self.arena.play(slow, SEARCH_DRAWS, hopeless=HOPELESS), self.earlier)

    def _least(self, setting_of: Callable[[int], WaySetting | None], low: int, high: int) -> list[Trial]:
        """Settings around the smallest number that holds, by halving; more is taken to be better."""
        tried: dict[int, Trial | None] = {}

        def at(number: int) -> Trial | None:
            if number not in tried:
                setting = setting_of(number)
                tried[number] = None if setting is None else self._try(setting)
            return tried[number]

        last = high
        while low <= high:
            middle = (low + high) // 2
            found = at(middle)
            if found is not None and self.is_good(found):
                high = middle - 1
            else:
                low = middle + 1
        # A little more may hold on more days.
        for more in range(low, min(low + 2, last) + 1):
            found = at(more)
            if found is not None:
                self.is_good(found)
        return [trial for trial in tried.values() if trial is not None]

    def _order(self) -> list[int]:
        """Today's nodes, those that stay longest first: the large, whole ones."""
        nodes = self.arena.asked.nodes
        cut = [sum(layout != WHOLE_GPU for layout in layouts) for layouts in nodes.layouts]
        return sorted(range(len(nodes.gpus)), key=lambda number: (-nodes.gpus[number], cut[number], number))

    def _static_whole(self) -> list[Trial]:
        """As few of today's nodes as hold the target, of each way that they are cut in turn."""
        asked, nodes = self.arena.asked, self.arena.asked.nodes
        kinds: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number in self._order():
            kinds.setdefault((nodes.gpus[number], tuple(sorted(nodes.layouts[number]))), []).append(number)
        kept = {kind: len(numbers) for kind, numbers in kinds.items()}
        found: list[Trial] = []

        def setting(counts: Mapping[tuple[int, tuple[str, ...]], int]) -> WaySetting | None:
            numbers = sorted(number for kind, all_of in kinds.items() for number in all_of[: counts[kind]])
            if not numbers:
                return None
            fleet, layouts = cut_fleet(asked, numbers, [[nodes.layouts[number]] for number in numbers])
            return WaySetting(STATIC_WHOLE, AS_TODAY, fleet, layouts, tuple(numbers),
                           knobs={"gpus": int(fleet.gpus.sum()), "nodes": len(numbers)})  # fmt: skip

        for kind, numbers in sorted(kinds.items(), key=lambda item: -len(item[1]) * item[0][0]):
            tried = self._least(lambda count, kind=kind: setting({**kept, kind: count}), 0, len(numbers))  # type: ignore[misc]
            found += tried
            fits = [trial for trial in tried if id(trial) in self.good]
            if fits:
                best = min(fits, key=lambda trial: trial.setting.gpus)
                kept[kind] = sum(number in best.setting.numbers for number in numbers)
        return found

    def _needs(self) -> tuple[int, float]:
        """Nodes of the largest gang, and the slow end of the lead over what may be added [min]."""
        requests = self.arena.asked.views[AS_TODAY].requests
        return int(requests.nodes[self.arena.played].max(initial=1)), self.able.lead.high / SECONDS_PER_MINUTE

    def _least_kept(self) -> int:
        """Idle nodes that stay on at least: where a node may take longer than a job may be late, the largest gang's."""
        gang, slow = self._needs()
        return min(gang if slow > self.arena.minutes else 0, len(self.arena.asked.nodes.gpus))

    def _idles(self) -> list[int]:
        every = range(1, 61, 2) if self.fine else IDLE_MINUTES
        return [idle for idle in every if idle * SECONDS_PER_MINUTE >= self.able.shortest_idle_s]

    def _switching(self, idle: int, kept: Sequence[int]) -> Switching:
        return Switching(
            idle * SECONDS_PER_MINUTE,
            self.able.lead.value + self.able.scan_s,
            tuple(kept),
            self.able.cool_s,
        )

    def _on_off(self) -> list[Trial]:
        """The nodes as they are: idle time, idle nodes kept, and which are filled first."""
        asked = self.arena.asked
        order = self._order()
        fleet, layouts = cut_fleet(asked, order, [[asked.nodes.layouts[number]] for number in order])

        def setting(kept: int, idle: int, placement: str) -> WaySetting:
            knobs: dict[str, float | int | str] = {
                "idle_minutes": idle, "idle_nodes_kept": kept, "placement": placement,
            }  # fmt: skip
            return WaySetting(ON_OFF, AS_TODAY, fleet, layouts, tuple(order), self._switching(idle, [kept]), placement,
                           knobs)  # fmt: skip

        return self._descend(setting, PLACEMENTS)

    def _descend(
        self, setting_of: Callable[[int, int, str], WaySetting], placements: Sequence[str]
    ) -> list[Trial]:
        """The fewest idle nodes kept at one idle time, then other idle times and placements from there on."""
        idles = self._idles()
        usual = min(idles, key=lambda idle: abs(idle - USUAL_IDLE_MINUTES))
        found, kept = self._fewest_kept(lambda kept: setting_of(kept, usual, placements[0]))
        if kept is None:
            return found
        for placement in placements:
            for idle in idles:
                if (placement, idle) == (placements[0], usual):
                    continue
                found += self._near(lambda kept, idle=idle, how=placement: setting_of(kept, idle, how), kept)  # type: ignore[misc]
        return found

    def _fewest_kept(self, setting_of: Callable[[int], WaySetting]) -> tuple[list[Trial], int | None]:
        """The fewest idle nodes kept with which a setting is good, by doubling and halving."""
        least, most = self._least_kept(), len(self.arena.asked.nodes.gpus)
        tried: dict[int, Trial] = {}

        def good(kept: int) -> bool:
            tried[kept] = self._try(setting_of(kept))
            return self.is_good(tried[kept])

        low, high, step = least - 1, least, 1
        while not good(high):
            if high >= most:
                return list(tried.values()), None
            low, high, step = high, min(high + step, most), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if good(middle) else (middle, high)
        return list(tried.values()), high

    def _near(self, setting_of: Callable[[int], WaySetting], kept: int) -> list[Trial]:
        """So many idle nodes kept, fewer as long as that is good, else a few more until it is."""
        found = [self._try(setting_of(kept))]
        down = self.is_good(found[0])
        for _ in range(NEAR):
            kept += -1 if down else 1
            if not self._least_kept() <= kept <= len(self.arena.asked.nodes.gpus):
                break
            found.append(self._try(setting_of(kept)))
            if self.is_good(found[-1]) != down:
                break
        return found

    def _views(self) -> Iterator[str]:
        for view in (REQUESTED, RIGHTSIZED):
            if view in self.arena.asked.views:
                requests = self.arena.asked.views[view].requests
                if (requests.profile[self.arena.played & self.earlier] > 0).any():
                    yield view

    def _wanted(self, view: str, *, peak: bool) -> dict[str, float]:
        asked = self.arena.asked
        requests = asked.views[view].requests.at(self.arena.ready_s)
        span = float(self.days.sum()) * 86400.0
        return wanted_instances(
            requests, asked.fleet.profiles, self.arena.played & self.earlier, span, peak=peak
        )

    def _static_mig(self) -> list[Trial]:
        """As few nodes, so many GPUs of them cut for what jobs need, as hold the target."""
        found: list[Trial] = []
        nodes, order = self.arena.asked.nodes, self._order()
        for view in self._views():
            for peak in (False, True):
                wanted = self._wanted(view, peak=peak)
                if not wanted:
                    continue
                some = [self._try(setting) for cut in self._cuts(wanted)
                        if (setting := self._mixed(view, wanted, order, cut)) is not None]  # fmt: skip
                found += some
                fits = [trial for trial in some if self.is_good(trial)]
                for trial in sorted(fits, key=lambda one: one.setting.knobs["cut_gpus"])[:2]:
                    cut = int(trial.setting.knobs["cut_gpus"])

                    def some_nodes(
                        count: int, cut: int = cut, view: str = view, wanted: Mapping[str, float] = wanted
                    ) -> WaySetting | None:
                        # Those that are cut are the last; of the others so many stay.
                        last = len(order)
                        while last and sum(nodes.gpus[number] for number in order[last:]) < cut:
                            last -= 1
                        return self._mixed(view, wanted, [*order[:last][:count], *order[last:]], cut)

                    found += self._least(some_nodes, 0, len(order))
        return found

    def recut(self) -> list[Trial]:
        """All of the nodes, so many GPUs of them cut for the requests that are made; more for who waits longest."""
        found = []
        for peak in (False, True):
            wanted = self._wanted(REQUESTED, peak=peak)
            for _ in range(ROUNDS if wanted else 0):
                some = [self._try(setting) for cut in self._cuts(wanted)
                        if (setting := self._mixed(REQUESTED, wanted, self._order(), cut)) is not None]  # fmt: skip
                found += some
                short = self._shortest(min(some, key=self._waits)) if some else None
                if short is None:
                    break
                wanted = {**wanted, short: wanted[short] * MORE}
        if self.able.cuts_on_demand == GPUS:
            found += [self._try(self._cut_by_jobs(REQUESTED, self._order(), how)) for how in PLACEMENTS]
        return found

    def _waits(self, trial: Trial) -> float:
        """Share of the jobs that wait longer than the limit from readiness."""
        return float(np.mean(trial.wait_s[self.earlier] > self.arena.minutes * SECONDS_PER_MINUTE))

    def _shortest(self, trial: Trial) -> str | None:
        """The profile whose jobs wait over the limit most often; None where none of them does."""
        asked = self.arena.asked
        profile = asked.views[trial.setting.view].requests.profile
        late = self.earlier & (trial.wait_s > self.arena.minutes * SECONDS_PER_MINUTE) & (profile > 0)
        counts = np.bincount(profile[late], minlength=len(asked.fleet.profiles))
        return asked.fleet.profiles[int(counts.argmax())] if counts.any() else None

    def _cuts(self, wanted: Mapping[str, float]) -> list[int]:
        """Numbers of GPUs to cut: from what demand fills on average to a multiple of it, in steps; and what is cut."""
        asked = self.arena.asked
        needed = sum(asked.board.share(name) * count for name, count in wanted.items())
        most = asked.nodes.total
        steps = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 2.0, 2.3, 2.6, 3.0, 4.0)
        every = {int(np.ceil(needed * times)) for times in steps}
        every |= {1, 2, sum(layout != WHOLE_GPU for layouts in asked.nodes.layouts for layout in layouts)}
        if self.able.unit == "node":
            # A label or a feature is a node's, but its GPUs may differ.
            every |= {int(np.ceil(count / size) * size) for count in every for size in set(asked.nodes.gpus)}
        return sorted(count for count in every if 1 <= count <= most)[:MOST_CUTS]

    def _mixed(
        self, view: str, wanted: Mapping[str, float], numbers: Sequence[int], cut: int
    ) -> WaySetting | None:
        """The last `cut` GPUs of some nodes in mixed layouts, the others whole."""
        asked, numbers = self.arena.asked, list(numbers)
        gpus = [asked.nodes.gpus[number] for number in numbers]
        if not numbers or cut > sum(gpus):
            return None
        of_node = [0] * len(numbers)
        left = cut
        for place in reversed(range(len(numbers))):
            of_node[place] = min(left, gpus[place])
            left -= of_node[place]
        hands = _dealt(mixed_layouts(asked.board, wanted, cut), of_node)
        layouts = [
            [(*[WHOLE_GPU] * (gpus[place] - of_node[place]), *hands[place])] for place in range(len(numbers))
        ]
        fleet, named = cut_fleet(asked, numbers, layouts)
        knobs: dict[str, float | int | str] = {
            "gpus": int(fleet.gpus.sum()),
            "cut_gpus": cut,
            "requests": view,
        }
        return WaySetting(STATIC_MIG, view, fleet, named, tuple(numbers), knobs=knobs)

    def _pools(self) -> list[Trial]:
        """Nodes that come whole, or cut in one mixed layout."""
        asked, order = self.arena.asked, self._order()
        found = []
        for view in self._views():
            for peak in (False, True):
                wanted = self._wanted(view, peak=peak)
                layouts: list[list[Sequence[str]]] = []
                for number in order:
                    gpus = asked.nodes.gpus[number]
                    layouts.append([(WHOLE_GPU,) * gpus, tuple(mixed_layouts(asked.board, wanted, gpus))])
                fleet, named = cut_fleet(asked, order, layouts)
                least = 1 if self._needs()[1] > self.arena.minutes else 0
                for cut in (least, least + 1):

                    def setting(
                        kept: int, idle: int, placement: str, cut: int = cut, view: str = view,
                        made: tuple[NodeFleet, Any] = (fleet, named),
                    ) -> WaySetting:  # fmt: skip
                        knobs: dict[str, float | int | str] = {
                            "idle_minutes": idle, "whole_nodes_kept": kept, "cut_nodes_kept": cut, "requests": view,
                        }  # fmt: skip
                        return WaySetting(NODE_POOLS, view, *made, tuple(order), self._switching(idle, [kept, cut]),
                                       placement, knobs)  # fmt: skip

                    found += self._descend(setting, PLACEMENTS[1:])
        return found

    def _on_demand(self) -> list[Trial]:
        """As few nodes as hold the target, with instances made for each job."""
        order, found = self._order(), list[Trial]()
        for view in self._views():
            for placement in PLACEMENTS:

                def setting(count: int, view: str = view, placement: str = placement) -> WaySetting | None:
                    return self._cut_by_jobs(view, order[:count], placement) if count else None

                found += self._least(setting, 0, len(order))
        return found

    def _cut_by_jobs(self, view: str, numbers: Sequence[int], placement: str) -> WaySetting:
        """Some nodes whose GPUs are cut as jobs come and go."""
        asked = self.arena.asked
        fleet, named, switching = on_demand_fleet(asked, numbers, self.able)
        knobs: dict[str, float | int | str] = {
            "gpus": int(fleet.gpus.sum()), "nodes": len(numbers), "requests": view, "placement": placement,
        }  # fmt: skip
        return WaySetting(ON_DEMAND, view, fleet, named, tuple(numbers), switching, placement, knobs)


def _dealt(layouts: Sequence[str], room: Sequence[int]) -> list[list[str]]:
    """Layouts dealt out to nodes in turn, each with so much room, so that no profile stands on one node alone.

    Examples
    --------
    >>> _dealt(["a", "a", "b"], [0, 1, 2])
    [[], ['a'], ['a', 'b']]
    """
    hands: list[list[str]] = [[] for _ in room]
    turn = 0
    for layout in layouts:
        while len(hands[turn % len(hands)]) >= room[turn % len(hands)]:
            turn += 1
        hands[turn % len(hands)].append(layout)
        turn += 1
    return hands


@dataclass(frozen=True)
class FleetWay:
    """A way to run a fleet.

    ``meaning`` says what it does, ``short`` is what it is called beside its mark; it is performed on boards that can be
    cut, where it ``cuts``, by a path that ``needs`` allows; all nodes that there are stay on under one that is
    ``stays_on``; and ``settings`` are those that were tried to tune it.
    """

    meaning: str
    short: str
    settings: Callable[[Tuning], Sequence[Trial]]
    cuts: bool = False
    stays_on: bool = False
    needs: Callable[[PathAbilities], bool] = lambda able: True


def _switches(able: PathAbilities) -> bool:
    return able.switches_nodes


WAYS: Mapping[str, FleetWay] = {
    TODAY: FleetWay("the fleet as it is, all on", "as today", lambda tuning: [tuning.arena.today], stays_on=True),
    STATIC_WHOLE: FleetWay(
        "fewer nodes, left as they are cut today and always on", "fewer nodes, always on", Tuning._static_whole,
        stays_on=True,
    ),
    STATIC_MIG: FleetWay(
        "some nodes cut once for what jobs need, all always on", "cut once, always on", Tuning._static_mig, cuts=True,
        stays_on=True,
    ),
    ON_OFF: FleetWay(
        "nodes as they are cut today rest when idle and come back when jobs wait", "rest when idle", Tuning._on_off,
        needs=_switches,
    ),
    NODE_POOLS: FleetWay(
        "nodes come whole or in one mixed layout, as jobs wait, and rest when idle", "mixed pools that rest when idle",
        Tuning._pools, cuts=True, needs=_switches,
    ),
    ON_DEMAND: FleetWay(
        "some nodes, always on: an instance is made for each job, and removed with it", "cut as jobs come and go",
        Tuning._on_demand, cuts=True, stays_on=True, needs=lambda able: able.cuts_on_demand == GPUS,
    ),
}  # fmt: skip
"""Every way, in the order in which they are shown."""
MEANINGS = {name: way.meaning for name, way in WAYS.items()}
SHORT = {name: way.short for name, way in WAYS.items()}
POLICY_NAMES = tuple(name for name in WAYS if name != TODAY)
"""All but today's own."""


def performs(policy: str, able: PathAbilities, *, can_be_cut: bool) -> bool:
    """Whether a path can perform a way on a board."""
    way = WAYS[policy]
    return way.needs(able) and (can_be_cut or not way.cuts)
