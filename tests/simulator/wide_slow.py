"""Nodes that are far apart, played by a slow program written from the rules alone.

It adds them to the slow program of nodes. Requests for whole GPUs wait behind a head; whatever is claimed, drawn or
far apart is counted anew whenever it is asked for.
"""

from __future__ import annotations

import math
import random
from typing import Any

from tests.simulator.nodes_slow import COMING, OFF, ON, Game, SlurmGame
from tests.simulator.shared_slow import SharedGame, SharedSlurm, random_rules

SHUT = "shut"


class Wide:
    """What networks add to the steps of an instant."""

    # Lines.

    def is_sliced(self, profile):
        return profile > 0

    def line(self, profile):
        return None if self.is_sliced(profile) else 0

    def has_head(self, profile):
        return self.line(profile) in self.heads

    def open_profiles(self, request):
        return [profile for profile in self.profiles_for(request) if not self.has_head(profile)]

    # Networks.

    def tier(self, numbers):
        """0: one node; then the narrowest tier of which one domain has all; at last none."""
        tiers = self.fleet["network"]["domains"]
        if len(numbers) == 1:
            return 0
        same = [tier for tier, of in enumerate(tiers, 1) if len({of[number] for number in numbers}) == 1]
        return min(same, default=len(tiers) + 1)

    def factor(self, request, profile, numbers):
        return self.fleet["network"]["slowdowns"][self.tier(list(numbers))]

    def has_hope(self, request):
        for profile in self.profiles_for(request):
            best = [max(pool[profile] for pool in node) for node in self.fleet["capacity"]]
            per, rest = request["places"][0], request["places"][-1]
            full, last = sum(most >= per for most in best), sum(most >= rest for most in best)
            if full >= request["nodes"] - 1 and last >= request["nodes"]:
                return True
        return False

    # Starts.

    def together(self, request, profile, can_give, order):
        """Amount on each chosen node, or None; consolidated in the narrowest domain that has enough."""
        places = request["places"]
        if self.placement == "consolidate" and len(places) > 1:
            for tier in self.fleet["network"]["domains"]:
                able = []
                for domain in set(tier):
                    nodes = [node for node in self.nodes if tier[node["number"]] == domain]
                    full = sum(can_give(node, places[0], {}) for node in nodes)
                    last = sum(can_give(node, places[-1], {}) for node in nodes)
                    if full >= len(places) - 1 and last >= len(places):
                        spare = sum(self.free(node, profile) for node in nodes if node["state"] == ON)
                        able.append((spare, domain, nodes))
                for _, _, nodes in sorted(able, key=lambda one: one[:2]):
                    if chosen := self.one_by_one(places, nodes, can_give, order):
                        return chosen
        return self.one_by_one(places, self.nodes, can_give, order)

    def one_by_one(self, places, nodes, can_give, order):
        chosen: dict[int, int] = {}
        for need in places:
            able = [n for n in nodes if n["number"] not in chosen and can_give(n, need, chosen)]
            if not able:
                return None
            chosen[min(able, key=order)["number"]] = need
        return chosen

    def key(self, profile):
        if self.placement in ("consolidate", "best"):
            return lambda node: (self.free(node, profile), node["number"])
        if self.placement == "spread":
            return lambda node: (-self.free(node, profile), node["number"])
        return super().key(profile)

    def start(self, request, profile, amounts, shadow=None):
        factor = self.factor(request, profile, amounts)
        shared = hasattr(self, "rules")
        if shared:
            request["factor"] = factor
            self.plan(request)
        super().start(request, profile, amounts, shadow)
        run = self.running[-1]
        self.factors[request["row"]] = factor
        run["end"] = run["start"] + request["run"] * (1.0 if shared else factor)
        run["over_at_the_latest"] = run["start"] + request["limit"] * factor


class WideGame(Wide, Game):
    def begin_pass(self):
        self.blocked: set[int] = set()
        self.heads: dict[int, Any] = {}

    def is_behind(self, request):
        if self.is_sliced(request["profile"]):
            return request["profile"] in self.blocked
        return not self.open_profiles(request)

    def choose_wide(self, request, profile, shadow, over):
        """With an instant at which it is over at the latest: beside what is kept for heads."""

        def can_give(node, need, chosen):
            number = node["number"]
            if node["state"] != ON or self.free(node, profile) < need:
                return False
            if shadow is None or number not in shadow["extra"]:
                return True
            return shadow["extra"][number] >= (need if profile == shadow["wants"] else 0)

        return self.together(request, profile, can_give, self.key(profile))

    def tries(self, request):
        sliced = self.is_sliced(request["profile"])
        if sliced and request["profile"] in self.blocked:
            return False
        for profile in self.profiles_for(request):
            head = self.heads.get(self.line(profile))
            freely = None if head == SHUT else self.choose_wide(request, profile, None, None)
            if freely is None:
                continue
            over = self.now + request["limit"] * self.factor(request, profile, freely)
            late = head if head is not None and over > head["time"] else None
            if chosen := self.choose_wide(request, profile, late, over):
                self.start(request, profile, chosen, late)
                return True
        if sliced:
            self.blocked.add(request["profile"])
        elif self.strict:
            self.heads |= {self.line(one): SHUT for one in self.profiles_for(request) if not self.is_sliced(one)}
        else:
            self.leads(request)
        return False

    def leads(self, request):
        """It is the first of the first line without one in which it will ever start."""
        lines = [(self.line(one), one) for one in self.open_profiles(request) if not self.is_sliced(one)]
        for line, wants in lines:
            shadow = self.shadow_with(request, wants)
            if shadow["time"] < math.inf:
                self.heads[line] = shadow
                return
        if lines:
            self.heads[lines[0][0]] = {"time": math.inf, "extra": {}, "wants": lines[0][1]}


class WideSlurm(Wide, SlurmGame):
    def part(self, request):
        return self.is_sliced(request["profile"])

    def is_behind(self, request):
        return self.part(request) in self.heads

    def open_profiles(self, request):
        return self.profiles_for(request)

    def tries(self, request):
        for profile in self.profiles_for(request):
            chosen = self.places_on(request, profile)
            if chosen:
                for number, need in chosen.items():
                    node = self.nodes[number]
                    if node["state"] == OFF:
                        self.boot(node, self.pools_with(node, profile, need)[0], {})
                self.start(request, profile, chosen)
                return True
        if not self.is_behind(request) and self.reserves(request):
            self.heads.add(self.part(request))
        return False

    def places_on(self, request, profile):
        def order(node):
            key = () if node["state"] == OFF else self.key(profile)(node)
            return [ON, COMING, OFF].index(node["state"]), key, node["number"]

        def chosen_until(over):
            def can_give(node, need, chosen):
                until = self.reserved.get(node["number"], math.inf)
                return self.can_give(node, profile, need) and over <= until

            return self.together(request, profile, can_give, order)

        freely = chosen_until(-math.inf)
        if freely is None:
            return None
        return chosen_until(self.now + request["limit"] * self.factor(request, profile, freely))


class SharedWide(WideGame, SharedGame):
    begin_pass, is_behind = WideGame.begin_pass, WideGame.is_behind


class SharedWideSlurm(WideSlurm, SharedSlurm):
    pass


ARGUMENTS = ("requests", "fleet", "queue", "placement", "larger", "weights", "switching")


def play_wide_slow(case: dict[str, Any], rules: dict[str, Any] | None = None) -> dict[str, Any]:
    """What becomes of each request, in the order of the rows, and when each node was on."""
    slurm = case["queue"] == "slurm"
    kind = (WideSlurm if slurm else WideGame) if rules is None else (SharedWideSlurm if slurm else SharedWide)
    game = kind(*(case[name] for name in ARGUMENTS))
    game.factors = [math.nan] * len(case["requests"])
    if rules is not None:
        return game.with_rules(rules).found() | {"factor": game.factors}
    start_s, on = game.play()
    return {"first": start_s, "on": on, "factor": game.factors}


# Cases.


def wide_case(seed: int, *, queue: str | None = None, rules: bool = False) -> tuple[dict[str, Any], Any]:
    """A small fleet in racks, jobs that instances of several profiles may serve, and how teams share it."""
    rng = random.Random(seed + 77_000)
    wide, nodes = rng.choice([1, 1, 2, 3]), rng.randint(2, 8)
    larger = [tuple(range(one + 1, wide)) if one and rng.random() < 0.7 else () for one in range(wide)]
    gpus = [rng.choice([1, 2, 4, 4, 8]) for _ in range(nodes)]
    pools = rng.choice([1, 1, 2])
    capacity = [
        [[_holds(wide, count, pool, pools, one) for one in range(wide)] for pool in range(pools)] for count in gpus
    ]
    able = [[pool for pool, counts in enumerate(node) if any(counts)] for node in capacity]
    switching = not rules and rng.random() < 0.4
    first = [rng.choice(ways) if ways and rng.random() > (0.4 if switching else 0.05) else -1 for ways in able]
    fleet = {
        "gpus": gpus, "capacity": capacity, "first": first, "flexible": None, "network": _network(rng, nodes),
    }  # fmt: skip
    span = rng.choice([0, 20, 50])
    requests = [_asks(rng, larger, span) for _ in range(rng.randint(2, 40))]
    named = queue or rng.choice(["easy", "easy", "strict"])
    case = {
        "requests": requests, "fleet": fleet, "queue": named, "larger": tuple(larger),
        "placement": rng.choice(["best", "fullest", "lowest", "consolidate", "consolidate", "spread"]),
        "weights": tuple(1.0 if one else 8.0 for one in range(wide)),
        "switching": None,
    }  # fmt: skip
    if switching:
        kept = tuple(rng.choice([0, 0, 1]) for _ in range(pools))
        case["switching"] = {
            "idle_s": float(rng.choice([0, 3, 10])), "lead_s": float(rng.choice([0, 1, 4])), "kept": kept,
            "cool_s": float(rng.choice([0, 2])),
        }  # fmt: skip
    if not rules:
        return case, None
    if named == "slurm":  # who is stopped is weighed node by node
        fleet["network"] = _network(random.Random(0), nodes, plain=True)
    stated = random_rules(seed, case | {"weights": (1.0,)}, stops=True, failures=rng.random() < 0.5, quotas=True)
    stated["units"] = [5040 if one else 5040 * 8 for one in range(wide)]
    return case, stated


def _holds(wide, gpus, pool, pools, profile):
    """Instances of a profile on a node in a pool: whole GPUs, or, if there are slices, two of each GPU."""
    if pools == 1:
        cut = gpus // 2 if wide > 1 else 0
        return 2 * cut if profile else gpus - cut
    return 2 * gpus * (pool == 1) if profile else gpus * (pool == 0)


def _network(rng, nodes, plain=False):
    per_rack, tiers = rng.choice([1, 2, 3]), 0 if plain else rng.choice([0, 1, 2])
    domains = [[node // per_rack ** (tier + 1) for node in range(nodes)] for tier in range(tiers)]
    slowdowns = sorted(rng.choice([1.0, 1.0, 1.25, 1.5, 2.0]) for _ in range(tiers + 2))
    return {"domains": domains, "slowdowns": [1.0] * (tiers + 2) if plain else slowdowns}


def _asks(rng, larger, span):
    ready, run = rng.randint(0, span), rng.choice([0, 1, rng.randint(1, 6), rng.randint(1, 25)])
    profile, nodes = rng.randrange(len(larger)), rng.choice([1, 1, 1, 2, 3])
    per = rng.choice([1, 1, 2, 4, 8])
    total = per * nodes - (rng.randint(0, per - 1) if nodes > 1 else 0)
    return {
        "ready": float(ready), "submit": float(ready), "run": float(run),
        "limit": float(run + rng.choice([0, 0, rng.randint(0, 10), 40])), "profile": profile, "total": total,
        "nodes": nodes if total > math.ceil(total / nodes) * (nodes - 1) else 1,
    }  # fmt: skip
