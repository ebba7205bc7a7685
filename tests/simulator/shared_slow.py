"""Teams that share nodes, played by a slow program written from the rules alone: quotas, tiers, stops and failures.

It adds them to the slow program of nodes. Nothing is kept that can be counted anew: what a team holds is counted from
what runs, and whether it may have more by trying whether all quotas hold then.
"""

from __future__ import annotations

import math
import random
from typing import Any

from tests.simulator.nodes_slow import ON, Game, SlurmGame, random_case

ALL = (1 << 64) - 1


def play_shared_slow(case: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    """What becomes of each request, in the order of the rows, and when each node was on."""
    game = SharedSlurm if case["queue"] == "slurm" else SharedGame
    arguments = ("requests", "fleet", "queue", "placement", "larger", "weights", "switching")
    return game(*(case[name] for name in arguments)).with_rules(rules).found()


class Shared:
    """What tenants add to the steps of an instant."""

    rules: dict[str, Any]

    def with_rules(self, rules):
        self.rules, self.groups = rules, rules["groups"]
        for request in self.requests:
            row = request["row"]
            request.update(
                hours=rules["hours"][row], team=rules["team"][row], tier=rules["tier"][row], left=request["run"],
                charge=0.0, starts=0, since=0.0, barred=None, first=math.nan, finished=math.nan,
                queued=0.0, lost=0.0, stops=0, failures=0, slowed=0.0, factor=1.0,
                units=rules["units"][request["profile"]] * request["total"], fails=False,
            )  # fmt: skip
        self.numbers = {id(request): number for number, request in enumerate(self.requests)}
        self.decayed = [0.0] * len(self.groups)
        self.kept_for_heads = [0] * len(self.groups)
        self.lacking: list[dict[str, Any]] = []
        self.wake = math.inf
        return self

    def found(self):
        _, on = self.play()
        names = ("first", "finished", "queued", "lost", "stops", "failures", "slowed")
        rows = {request["row"]: request for request in self.requests}
        blank = {name: math.nan if name in names[:2] else 0 for name in names}
        table = [rows.get(row, blank) for row in range(len(self.start_s))]
        return {name: [each[name] for each in table] for name in names} | {"on": on}

    # Quotas.

    def held(self, team):
        return sum(run["request"]["units"] for run in self.running if run["request"]["team"] == team)

    def children(self, group):
        return [number for number, one in enumerate(self.groups) if one["parent"] == group]

    def is_bound(self, group):
        one = self.groups[group]
        return one["gpus"] is not None or one["parent"] is not None or bool(self.children(group))

    def quota(self, group):
        """Its own, and what those below it have to lend."""
        return (self.groups[group]["gpus"] or 0) + sum(
            self.quota(child) - self.keeps(child) for child in self.children(group)
        )

    def keeps(self, group):
        lend = self.groups[group]["lend"]
        return 0 if lend is None else max(self.quota(group) - lend, 0)

    def use(self, group, of_team):
        if self.children(group):
            return sum(max(self.use(child, of_team) - self.keeps(child), 0) for child in self.children(group))
        return of_team[group] if self.is_bound(group) else 0

    def may_hold(self, team, more):
        """Whether all quotas hold if a team holds so much more."""
        if not self.is_bound(team):
            return True
        of_team = [self.held(number) + self.kept_for_heads[number] for number in range(len(self.groups))]
        of_team[team] += more
        group = team
        while group is not None:
            one, use, quota = self.groups[group], self.use(group, of_team), self.quota(group)
            if one["parent"] is None:
                return use <= quota
            beyond = max(use - self.keeps(group), 0)
            if one["borrow"] is not None and beyond > quota - self.keeps(group) + one["borrow"]:
                return False
            group = one["parent"]
        raise AssertionError

    def own(self, team):
        return (self.groups[team]["gpus"] or 0) if self.is_bound(team) else 0

    # Instants.

    def next_instant(self):
        now = super().next_instant()
        return min([each for each in (now, self.wake) if each is not None and each < math.inf], default=None)

    def end_requests(self):
        if self.rules["half_life"] is not None and self.now > -math.inf:
            self.age()
        self.before = self.now
        over = [run for run in self.running if run["end"] <= self.now]
        super().end_requests()
        for run in over:
            request = run["request"]
            if request["fails"]:
                request["failures"] += 1
                self.save(run, self.rules["restart"])
                self.queue.append(request)
            else:
                request["finished"] = self.now
                request["lost"] += run["start"] - run["begun"] + request["charge"]
                request["lost"] += self.rules["write"] * self.written(request)
                request["slowed"] += request["left"] * (request["factor"] - 1.0)
                request["left"] = 0.0

    def age(self):
        since = getattr(self, "before", self.now)
        seconds, rate = self.now - since, math.log(2) / self.rules["half_life"]
        kept = math.exp(-rate * seconds)
        lasting = (1.0 - kept) / rate if rate else seconds
        for team, one in enumerate(self.groups):
            self.decayed[team] = self.decayed[team] * kept + self.held(team) / 5040 * lasting / one["weight"]

    def requests_join(self):
        for request in self.to_come:
            if request["ready"] <= self.now:
                request["since"] = self.now
        super().requests_join()

    def order(self, request):
        team = request["team"]
        stated = any(map(self.is_bound, range(len(self.groups))))
        over = stated and (not self.is_bound(team) or self.held_at_first[team] >= self.own(team))
        return request["tier"], over, self.decayed[team], self.numbers[id(request)]

    def start_requests(self):
        self.wake, self.lacking = math.inf, []
        self.held_at_first = [self.held(team) for team in range(len(self.groups))]
        self.begin_pass()
        self.kept_for_heads = [0] * len(self.groups)
        shut = set()
        todo = sorted(self.queue, key=self.order)
        while todo:
            request = todo.pop(0)
            if not self.is_hour(request):
                self.lacking.append(request)
                continue
            if request["team"] in shut:
                self.lacking.append(request)
                continue
            behind = self.is_behind(request)
            stops = self.rules["by_tier"] or self.rules["reclaim"]
            if stops and not behind and request["barred"] != self.now:
                todo = sorted(todo + self.make_room(request), key=self.order)
            if not self.may_hold(request["team"], request["units"]):
                self.lacking.append(request)
                if self.strict:
                    shut.add(request["team"])
                continue
            self.plan(request)
            if self.tries(request):
                continue
            if not behind and self.rules["head_keeps_quota"]:
                self.kept_for_heads[request["team"]] += request["units"]
        self.kept_for_heads = [0] * len(self.groups)
        self.queue.sort(key=self.order)

    def is_hour(self, request):
        """Whether it may start now; if not, the next of its hours is an instant."""
        later = [spell for spell in self.rules["openings"][request["hours"]] if self.now < spell[1]]
        if not later or later[0][0] <= self.now:
            return bool(later)
        self.wake = min(self.wake, later[0][0])
        return False

    def start(self, request, profile, amounts, shadow=None):
        super().start(request, profile, amounts, shadow)
        run = self.running[-1]
        run["begun"] = self.now
        request["queued"] += self.now - request["since"]
        if not request["starts"]:
            request["first"] = run["start"]
        request["starts"] += 1

    # Who lacks quota brings no nodes, and keeps none.

    def grow(self):
        everybody = self.queue
        self.queue = [request for request in everybody if request not in self.lacking]
        super().add_level()
        self.queue = everybody

    def shrink(self):
        everybody = self.queue
        self.queue = [request for request in everybody if request not in self.lacking]
        gone = super().shrink()
        self.queue = everybody
        return gone

    # Runs.

    def every(self, request):
        marks = self.rules["every"]
        if marks is None:
            mtbf = self.rules["mtbf"]
            return math.inf if mtbf is None else math.sqrt(2.0 * self.rules["write"] * mtbf / request["total"])
        return marks

    def written(self, request):
        every = self.every(request)
        takes = request["left"] * request["factor"]
        return max(math.ceil(takes / every) - 1.0, 0.0) if 0 < every < math.inf else 0.0

    def plan(self, request):
        run = request["charge"] + request["left"] * request["factor"] + self.rules["write"] * self.written(request)
        request["fails"] = False
        if self.rules["mtbf"] is not None:
            fails = -math.log(self.draw(request)) * (self.rules["mtbf"] / request["total"])
            request["fails"] = fails < run
            run = min(run, fails)
        request["run"] = run

    def draw(self, request):
        state = self.rules["seed"] * 0x9E3779B97F4A7C15 & ALL
        for part in (request["row"], request["starts"]):
            state = state + (part + 1) * 0x9E3779B97F4A7C15 & ALL
            state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & ALL
            state = (state ^ state >> 27) * 0x94D049BB133111EB & ALL
            state ^= state >> 31
        return ((state >> 11) + 0.5) / 2**53

    def save(self, run, charge):
        """A run is over before its work is: it goes on from its last checkpoint."""
        request, every = run["request"], self.every(run["request"])
        worked = max(self.now - run["start"] - request["charge"], 0.0)
        if every == math.inf:
            worked = 0.0
        elif every > 0:
            worked = every * math.floor(worked / (every + self.rules["write"]))
        worked = min(worked, request["left"] * request["factor"])
        request["left"] -= worked / request["factor"]
        request["slowed"] += worked - worked / request["factor"]
        request["lost"] += self.now - run["begun"] - worked
        request["charge"], request["since"] = charge, self.now

    # Stops.

    def make_room(self, request):
        """Stop as few as will do; who they are."""
        profiles = self.open_profiles(request)
        everybody = self.running
        if any(self.fits(request, profile) for profile in profiles):
            return []
        held = self.held(request["team"]) + self.kept_for_heads[request["team"]]
        team = self.groups[request["team"]]
        within = self.is_bound(request["team"]) and held + request["units"] <= (team["gpus"] or 0)
        for profile in profiles:
            taken = []
            while not self.fits(request, profile):
                able = [run for run in self.running if self.may_stop(request, run, within)]
                if not able:
                    break
                able.sort(key=lambda run: (run["request"]["tier"], run["begun"], self.numbers[id(run["request"])]))
                taken.append(able[-1])
                self.running = [run for run in self.running if run is not able[-1]]
            if self.fits(request, profile):
                for run in reversed(list(taken)):
                    without = self.running
                    self.running = [*without, run]
                    if self.fits(request, profile):
                        taken.remove(run)
                    else:
                        self.running = without
                self.running = [run for run in everybody if run not in taken]
                return [self.stop(run, request) for run in taken]
            self.running = everybody
        return []

    def open_profiles(self, request):
        return self.profiles_for(request)

    def may_stop(self, request, run, within):
        other = run["request"]
        by_tier = self.rules["by_tier"] and other["tier"] > request["tier"]
        if other["team"] == request["team"]:
            able = by_tier
        else:
            borrows = self.held(other["team"]) > self.own(other["team"])
            able = borrows and (by_tier or (self.rules["reclaim"] and within))
        free = run["begun"] + self.rules["min_run"]
        if able and free > self.now:
            self.wake = min(self.wake, free)
        return able and free <= self.now

    def fits(self, request, profile):
        if not self.may_hold(request["team"], request["units"]):
            return False
        return self.finds_nodes(request, profile)

    def stop(self, run, request):
        other = run["request"]
        for number in run["amounts"]:
            if self.is_idle(self.nodes[number]):
                self.nodes[number]["since"] = self.now
        if not (self.rules["by_tier"] and other["tier"] > request["tier"]):
            other["barred"] = self.now
        other["stops"] += 1
        self.save(run, self.rules["overhead"])
        self.queue.append(other)
        return other


class SharedGame(Shared, Game):
    def finds_nodes(self, request, profile):
        rooms = [self.free(node, profile) for node in self.nodes if node["state"] == ON]
        per, rest = request["places"][0], request["places"][-1]
        full, last = sum(room >= per for room in rooms), sum(room >= rest for room in rooms)
        return full >= len(request["places"]) - 1 and last >= len(request["places"])


class SharedSlurm(Shared, SlurmGame):
    def finds_nodes(self, request, profile):
        return bool(self.places_on(request, profile))


def random_rules(
    seed: int, case: dict[str, Any], *, stops: bool, failures: bool, quotas: bool, hours: bool = False
) -> dict[str, Any]:
    """Rules under which the teams of a case share: cohorts of cohorts, limits, tiers, checkpoints."""
    rng = random.Random(seed + 10_000)
    teams, cohorts = rng.randint(1, 4), rng.choice([0, 1, 1, 2, 3]) if quotas else 0
    count, installed = len(case["requests"]), sum(case["fleet"]["gpus"])
    # Units as the engine counts them, in 5040ths of a GPU, by the weights of the case.
    units = [5040 * 8, 5040, 5040 * 3][: len(case["weights"])]

    def some(most):
        return rng.randint(0, max(1, round(most))) * 5040 * 8

    def limit(most):
        return some(most) if rng.random() < 0.4 else None

    groups = []
    for team in range(teams + cohorts):
        above = [number for number in range(teams, teams + cohorts) if number > team]
        parent = rng.choice(above) if above and rng.random() < 0.8 else None
        owns = quotas and (team >= teams or rng.random() < 0.85)
        size = installed / teams if team < teams else installed / 4
        groups.append({
            "gpus": some(size) if owns else None, "borrow": limit(size), "lend": limit(size), "parent": parent,
            "weight": rng.choice([1.0, 1.0, 2.0, 0.5]),
        })  # fmt: skip
    tiers = rng.choice([1, 2, 3])
    other = random.Random(seed + 20_000)
    openings = [[(-math.inf, math.inf)], *([_spells(other), _spells(other)] if hours else [])]
    every = rng.choice([None, 0.0, 2.0, 5.0, math.inf])
    return {
        "groups": groups,
        "teams": teams,
        "openings": openings,
        "hours": [other.randrange(len(openings)) for _ in range(count)],
        "team": [rng.randrange(teams) for _ in range(count)],
        "tier": [rng.randrange(tiers) for _ in range(count)],
        "units": units,
        "half_life": rng.choice([None, None, 20.0]),
        "by_tier": stops and rng.random() < 0.7,
        "reclaim": stops and rng.random() < 0.7,
        "min_run": float(rng.choice([0, 0, 3, 8])),
        "overhead": float(rng.choice([0, 1, 2])),
        "every": every,
        "write": 0.0 if every == 0.0 else float(rng.choice([0, 0.5, 1])) if every is not None else 0.5,
        "mtbf": rng.choice([30.0, 100.0, 400.0]) if failures else None,
        "restart": float(rng.choice([0, 1, 4])),
        "seed": rng.randrange(100),
        "head_keeps_quota": other.random() < 0.7,
    }


def _spells(rng: random.Random) -> list[tuple[float, float]]:
    """Hours in which requests may start, the last without an end or not."""
    instants = sorted(rng.sample(range(-5, 120), rng.choice([2, 4, 6, 12])))
    instants[-1:] = [math.inf] if rng.random() < 0.7 else instants[-1:]
    return list(zip(instants[::2], instants[1::2], strict=True))


def shared_case(
    seed: int, *, stops: bool = False, failures: bool = False, quotas: bool = False, hours: bool = False,
    queue: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """A case of nodes that stay, and rules."""
    case = random_case(seed, queue=queue) | {"switching": None}
    first = [max(pool, 0) for pool in case["fleet"]["first"]]
    case["fleet"] = case["fleet"] | {"first": first}
    return case, random_rules(seed, case, stops=stops, failures=failures, quotas=quotas, hours=hours)
