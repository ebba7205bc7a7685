"""How a way to run a fleet is tuned: settings that are tried on the weeks before those that it is judged on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from gpuplanner.hardware.abilities import PathAbilities
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.nodes.machine import Switching
from gpuplanner.study.decision.arena import Arena, Knobs, Mask, Trial, WaySetting, cut_fleet, least
from gpuplanner.study.decision.asked import REQUESTED, RIGHTSIZED
from gpuplanner.study.decision.layouts import (
    as_they_are,
    deal_layouts,
    kept_longest,
    on_demand_fleet,
    wanted_instances,
)
from gpuplanner.study.decision.types import NODE_POOLS, ON_DEMAND, ON_OFF
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE

USUAL_IDLE_MINUTES = (10, 30)
"""Idle minutes that sites set: a shorter time wears nodes out by boots, and has to be worth it."""
LEAST_GAIN_BY_IDLE = 0.03
LEAST_GAIN_BY_MIXING = 0.02
"""Share of the GPU-hours that a shorter idle time gains, or several layouts on one node, to be chosen."""
MIN_DAYS_WITHIN_LIMIT = 0.9
"""Share of the days in the training window on which a setting meets the limit, if today's fleet replayed does."""
NEAR = 2
"""How many more, or fewer, idle nodes are tried where another knob is turned."""
HOPELESS = 0.05
"""Share of all jobs that wait at once where a setting is given up: one in twenty may be late at all."""
IDLE_MINUTES = (1, 5, 10, 15, 30)
"""For how long a node may be idle before it goes."""
SEARCH_DRAWS = 1
"""Replays while settings are looked for; the chosen one is played in all."""
MOST_CHECKED = 6
"""Settings that are played in full, cheapest first, until one holds."""


@dataclass(eq=False)
class Tuning:
    """What a way is tuned on: an arena, and the jobs of the earlier weeks.

    - ``arena``: The weeks as they were.
    - ``earlier``: Jobs that count.
    - ``days``: Days that count.
    - ``able``: What the path can do.
    - ``tell``: Told of every setting that is tried.
    """

    arena: Arena
    earlier: Mask
    days: Mask
    able: PathAbilities
    tell: Callable[[str, Trial], object] | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    good: set[int] = field(default_factory=set)

    def tuned(self, policy: str, searched: Sequence[Trial]) -> Trial | None:
        """Of settings that were tried the cheapest that holds: on earlier weeks, and at a slow lead."""
        good = sorted(
            (trial for trial in searched if id(trial) in self.good),
            key=lambda trial: (self.rank(trial), trial.setting.gpus, self.strain(trial)),
        )
        for trial in good[:MOST_CHECKED]:
            full = self.arena.play(trial.setting)
            if self.arena.holds(full, self.earlier):
                return full
        if good:
            self.reasons[policy] = "its settings hold in some replays only"
        elif any(self.arena.holds(trial, self.earlier) for trial in searched):
            self.reasons[policy] = (
                "its settings hold on the weeks seen, but not where nodes take long to come"
            )
        else:
            self.reasons[policy] = "no setting of it starts jobs as today's fleet does"
        return None

    def is_good(self, trial: Trial) -> bool:
        """Whether a setting meets the limit in the training window.

        Where nodes take longest to come no class may be later than that by more than nodes are: an idle node kept for
        slow boots alone costs more than they do.
        """
        held, how = self.arena.holds(trial, self.earlier), trial.setting.switching
        held = held and self.arena.share_of_days(trial, self.earlier) >= self.least_days
        if held and how is not None:
            slow = replace(trial.setting, switching=replace(how, lead_s=self.able.lead.high))
            slower_min = (self.able.lead.high - self.able.lead.value) / SECONDS_PER_MINUTE
            held = self.arena.holds(_quickly(self.arena, slow), self.earlier, later_minutes=slower_min)
        if held:
            self.good.add(id(trial))
        return held

    @cached_property
    def least_days(self) -> float:
        """Share of the training days on which a setting has to meet the limit: no more than today's fleet replayed."""
        again = replace(self.arena.today, late_s=self.arena.today.late_s[1:])
        return min(MIN_DAYS_WITHIN_LIMIT, self.arena.share_of_days(again, self.earlier))

    def strain(self, trial: Trial) -> float:
        """How late its jobs start on average [min]: of equals the one with room is taken."""
        late_s = trial.late_s[0, self.earlier]
        return float(late_s.mean()) / SECONDS_PER_MINUTE if len(late_s) else 0.0

    def rank(self, trial: Trial) -> float:
        """GPU-hours by which settings are ranked: those of an unusual one count for more by what it has to gain."""
        hours, setting = float(trial.day_hours[self.days].sum()), trial.setting
        shortest, longest = USUAL_IDLE_MINUTES
        if not shortest <= float(setting.knobs.get("idle_minutes", shortest)) <= longest:
            hours /= 1 - LEAST_GAIN_BY_IDLE
        if any(len(set(layouts)) > 1 for node in setting.layouts for layouts in node):
            hours /= 1 - LEAST_GAIN_BY_MIXING
        return hours

    def try_settings(self, settings: Iterable[WaySetting]) -> list[Trial]:
        """Simulate settings once each, and note which of them are good."""
        tried = []
        for setting in settings:
            trial = _quickly(self.arena, setting)
            if self.tell is not None:
                self.tell(setting.policy, trial)
            self.is_good(trial)
            tried.append(trial)
        return tried

    def try_counts(
        self, settings_of: Callable[[int], Iterable[WaySetting]], fewest: int, most: int
    ) -> list[Trial]:
        """Simulate the settings of as few nodes, GPUs or idle nodes as are enough for one of them to be good."""
        tried: list[Trial] = []

        def good(count: int) -> bool:
            found = self.try_settings(settings_of(count))
            tried.extend(found)
            return any(id(trial) in self.good for trial in found)

        least(good, fewest, most)
        return tried

    def settings_on(self, setting: WaySetting, numbers: Sequence[int]) -> list[WaySetting]:
        """Settings of the same policy on some of today's nodes: as many idle nodes kept, one more, and two more."""
        places = [setting.numbers.index(number) for number in numbers]
        fleet, how = setting.fleet.only(np.array(places)), setting.switching
        assert how is not None
        name = "whole_nodes_kept" if "whole_nodes_kept" in setting.knobs else "idle_nodes_kept"
        more = range(how.kept[0], min(how.kept[0] + NEAR, len(numbers)) + 1)
        return [
            replace(
                setting, fleet=fleet, layouts=tuple(setting.layouts[place] for place in places), numbers=tuple(numbers),
                switching=replace(how, kept=(kept, *how.kept[1:])),
                knobs={**setting.knobs, "gpus": int(fleet.gpus.sum()), name: kept},
            )
            for kept in more
        ]  # fmt: skip

    def switching_of(self, idle: int, kept: Sequence[int]) -> Switching:
        """How nodes come and go after so many idle minutes, with so many idle ones kept in each pool."""
        able, idle_s = self.able, idle * SECONDS_PER_MINUTE
        return Switching(idle_s, able.lead.value + able.scan_s, tuple(kept), able.cool_s, able.look_s)

    def on_off(self) -> list[Trial]:
        """The nodes as they are: idle time, idle nodes kept, and which are filled first."""
        fixed = as_they_are(self.arena.asked, ON_OFF, kept_longest(self.arena.asked))

        def setting(idle: int, placement: str, kept: int) -> WaySetting:
            knobs: Knobs = {"idle_minutes": idle, "idle_nodes_kept": kept, "placement": placement}
            switching = self.switching_of(idle, [kept])
            return replace(fixed, switching=switching, placement=placement, knobs=knobs)

        return self._descend(setting, self.able.placements)

    def _descend(
        self, setting_of: Callable[[int, str, int], WaySetting], placements: Sequence[str]
    ) -> list[Trial]:
        """The fewest idle nodes kept at one idle time, then other idle times and placements from there on."""
        idles = [idle for idle in IDLE_MINUTES if idle * SECONDS_PER_MINUTE >= self.able.shortest_idle_s]
        usual = min(idles, key=lambda idle: abs(idle - USUAL_IDLE_MINUTES[0]))
        most = len(self.arena.asked.nodes.gpus)
        found = self.try_counts(lambda kept: [setting_of(usual, placements[0], kept)], 0, most)
        good = [trial.setting.switching for trial in found if id(trial) in self.good]
        kept = min((how.kept[0] for how in good if how is not None), default=None)
        if kept is None:
            return found
        for placement, idle in itertools.product(placements, idles):
            if (placement, idle) != (placements[0], usual):
                found += self._near(partial(setting_of, idle, placement), kept)
        # The plainest rule, an idle time alone: more idle nodes kept do not always shorten waits.
        plain = (idle for idle in idles if idle >= USUAL_IDLE_MINUTES[0]) if kept else ()
        found += self.try_settings(setting_of(idle, placements[0], 0) for idle in plain)
        return found

    def _near(self, setting_of: Callable[[int], WaySetting], kept: int) -> list[Trial]:
        """So many idle nodes kept, fewer as long as that is good, else a few more until it is."""
        found = self.try_settings([setting_of(kept)])
        down = id(found[0]) in self.good
        for _ in range(NEAR):
            kept += -1 if down else 1
            if not 0 <= kept <= len(self.arena.asked.nodes.gpus):
                break
            found += self.try_settings([setting_of(kept)])
            if (id(found[-1]) in self.good) != down:
                break
        return found

    def _demands(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Views in which jobs ask for slices, with the instances that they need on average, then at most."""
        asked, which = self.arena.asked, self.earlier
        for view in (REQUESTED, RIGHTSIZED):
            for peak in (False, True) if view in asked.views else ():
                requests = asked.views[view].at(self.arena.ready_s)
                span_s = float(self.days.sum()) * SECONDS_PER_DAY
                wanted = wanted_instances(requests, asked.fleet.profiles, which, span_s, peak=peak)
                if wanted:
                    yield view, wanted

    def pools(self) -> list[Trial]:
        """Nodes that come whole, or cut: each in one layout, or in as many as hold the demand closest."""
        asked, order = self.arena.asked, kept_longest(self.arena.asked)
        found = []

        def setting(fixed: WaySetting, cut: int, idle: int, placement: str, kept: int) -> WaySetting:
            knobs: Knobs = {
                "idle_minutes": idle, "whole_nodes_kept": kept, "cut_nodes_kept": cut, "requests": fixed.view,
            }  # fmt: skip
            switching = self.switching_of(idle, [kept, cut])
            return replace(fixed, switching=switching, placement=placement, knobs=knobs)

        gpus = [asked.nodes.gpus[number] for number in order]
        cuts: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        for view, wanted in self._demands():
            by_node = deal_layouts(asked.board, wanted, len(gpus))
            cuts[view, tuple((one,) * count for one, count in zip(by_node, gpus, strict=True))] = None
            mixed = (deal_layouts(asked.board, wanted, count) for count in gpus)
            cuts[view, tuple(tuple(sorted(layouts)) for layouts in mixed)] = None
        for view, cut_nodes in cuts:
            layouts = [((WHOLE_GPU,) * len(cut), cut) for cut in cut_nodes]
            fixed = WaySetting(NODE_POOLS, view, *cut_fleet(asked, order, layouts), tuple(order))
            for cut in (0, 1):
                found += self._descend(partial(setting, fixed, cut), self.able.placements[-1:])
        return found

    def on_demand(self) -> list[Trial]:
        """As few nodes as hold the target, with instances made for each job; all placements on each number of nodes."""
        asked = self.arena.asked
        views = dict.fromkeys(view for view, _ in self._demands())
        how = list(itertools.product(views, self.able.placements))

        def settings_of(count: int) -> Iterator[WaySetting]:
            numbers = kept_longest(asked)[:count]
            fleet, named, switching = on_demand_fleet(asked, numbers, self.able)
            for view, placement in how:
                knobs: Knobs = {
                    "gpus": int(fleet.gpus.sum()), "nodes": count, "requests": view, "placement": placement,
                }  # fmt: skip
                yield WaySetting(ON_DEMAND, view, fleet, named, tuple(numbers), switching, placement, knobs)

        return self.try_counts(settings_of, 1, len(asked.nodes.gpus)) if how else []


def _quickly(arena: Arena, setting: WaySetting) -> Trial:
    """A setting in one replay, given up where it is hopeless."""
    return arena.play(setting, SEARCH_DRAWS, hopeless=HOPELESS)
