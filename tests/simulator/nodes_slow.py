"""Requests on named nodes of unequal size, played by a slow program written from the rules alone.

It shares no code with the compiled loop and keeps no table that could go stale: whatever it wants to know of a node
it counts anew from what runs. Lists and dicts, no arrays; a case of the tests takes milliseconds.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

OFF, COMING, ON = "off", "coming", "on"
CORDONED, PARTITIONING = "cordoned", "partitioning"

# An H100 of 80 GB: memory slices and compute slices of an instance, and its starts in the order that the driver tries.
SLICES = {1: 1, 2: 4}
COMPUTE = {0: 7, 1: 1, 2: 3}
STARTS = {1: (6, 4, 5, 0, 1, 2, 3), 2: (4, 0)}
WHOLE_GPU = frozenset({(0, 0)})


@cache
def ways_to_add(held, profile):
    """Every GPU that one more instance makes of one that holds (profile, start), in the driver's order."""
    if profile == 0:
        return [] if held else [WHOLE_GPU]
    taken = {start + more for other, start in held for more in range(SLICES[other])} if held != WHOLE_GPU else range(8)
    return [
        held | {(profile, start)}
        for start in STARTS[profile]
        if not any(start + more in taken for more in range(SLICES[profile]))
    ]


@cache
def most_more(held, profile):
    """Instances that could be added if places were chosen for them alone."""
    return max((1 + most_more(after, profile) for after in ways_to_add(held, profile)), default=0)


def worth(held, profiles):
    return sum(COMPUTE[profile] * most_more(held, profile) for profile in range(profiles))


@cache
def one_more(held, profile, profiles):
    """The GPU with one more instance where the most stays possible, the driver's order deciding; None: no place."""
    return max(ways_to_add(held, profile), key=lambda after: worth(after, profiles), default=None)


@cache
def room_for(held, profile, profiles):
    after = one_more(held, profile, profiles)
    return 0 if after is None else 1 + room_for(after, profile, profiles)


def play_slow(
    requests: list[dict[str, Any]],
    fleet: dict[str, Any],
    *,
    queue: str,
    placement: str,
    larger: tuple[tuple[int, ...], ...],
    weights: tuple[float, ...],
    switching: dict[str, Any] | None,
) -> tuple[list[float], list[list[tuple[float, float, int]]]]:
    """Start of each request in the order of the rows (nan: never), and (from, until, pool) of each node."""
    rules = SlurmGame if queue == "slurm" else Game
    return rules(requests, fleet, queue, placement, larger, weights, switching).play()


def play_slow_with_changes(
    case: dict[str, Any], changes: list[dict[str, Any]], before_change: bool
) -> tuple[list[float], list[list[tuple[float, float, int]]], list[dict[int, int]], list[tuple]]:
    """As ``play_slow`` a case, and what each request held, and (began, drained, ended, outcome) of each change."""
    rules = SlurmGame if case["queue"] == "slurm" else Game
    game = rules(*case.values())
    game.plan(changes, before_change)
    start_s, on = game.play()
    return start_s, on, game.given, [game.fates[row] for row in range(len(changes))]


class Game:
    """The state of all nodes and requests at one instant, and the six steps of an instant."""

    def __init__(self, requests, fleet, queue, placement, larger, weights, switching):
        self.fleet, self.strict, self.placement = fleet, queue == "strict", placement
        self.passing = queue == "pass"
        self.larger, self.weights, self.switching = larger, weights, switching
        rows = sorted(range(len(requests)), key=lambda row: (requests[row]["ready"], requests[row]["submit"], row))
        self.requests = []  # by number
        for row in rows:
            asked = requests[row]
            per = math.ceil(asked["total"] / asked["nodes"])
            rest = asked["total"] - per * (asked["nodes"] - 1)
            assert rest >= 1
            places = [per] * (asked["nodes"] - 1) + [rest]
            self.requests.append({**asked, "row": row, "per": per, "places": places})
        self.nodes = []
        for number, gpus in enumerate(fleet["gpus"]):
            pool = fleet["first"][number]
            self.nodes.append(
                {
                    "number": number,
                    "gpus": gpus,
                    "state": OFF if pool < 0 else ON,
                    "pool": pool,
                    "since": -math.inf,  # idle since
                    "come_s": math.nan,
                    "on": [] if pool < 0 else [(-math.inf, math.inf, pool)],
                    "was_cut": [False] * gpus,
                    "to_drain": [],  # planned changes, the one under way first
                    "to_power": [],
                    "partitioned_for": None,
                }
            )
        self.now = -math.inf
        self.to_come = [request for request in self.requests if self.has_hope(request)]
        self.queue: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []  # request, start, end, profile served, amounts {node: amount}
        self.flexible = fleet.get("flexible")
        self.last_add = -math.inf
        self.start_s = [math.nan] * len(requests)
        self.given = [{} for _ in requests]
        self.fates: dict[int, tuple] = {}

    def plan(self, changes, before_change):
        """Take note of planned changes."""
        self.before_change = before_change
        for row, change in sorted(enumerate(changes), key=lambda item: (item[1]["planned"], item[0])):
            node = self.nodes[change["node"]]
            mine = {**change, "row": row, "began": None, "emptied": None, "done_s": None}
            mine["after"] = node["to_drain"][-1]["row"] if node["to_drain"] else None
            node["to_drain" if change["drained"] else "to_power"].append(mine)
            self.fates[row] = (None, None, None, None)

    # What is asked again and again.

    def profiles_for(self, request):
        return (request["profile"], *self.larger[request["profile"]])

    def capacity(self, node, profile):
        return self.fleet["capacity"][node["number"]][node["pool"]][profile]

    def is_flexible(self, node):
        return self.flexible is not None and node["pool"] >= 0 and self.flexible["pools"][node["pool"]]

    def on_gpus(self, node, time=None):
        """What each GPU of a flexible node holds, now or when all that is over by its limit is gone."""
        found = [set() for _ in range(node["gpus"])]
        for run in self.running:
            if time is None or max(self.now, run["over_at_the_latest"]) > time:
                for gpu, what in run["places"].get(node["number"], ()):
                    found[gpu].add(what)
        return [frozenset(held) for held in found]

    def room_on(self, node, gpus, profile):
        if not self.capacity(node, profile):
            return 0
        return sum(room_for(held, profile, len(self.weights)) for held in gpus)

    def arrange(self, node, profile, need, shadow, gpus=None):
        """[(gpu, (profile, start))] of so many instances, the GPUs then, and what they cost the head; None: no room."""
        profiles, places, lost = len(self.weights), [], 0
        gpus = self.on_gpus(node) if gpus is None else list(gpus)
        late = shadow is not None and node["number"] in shadow["extra"]
        later = self.on_gpus(node, shadow["time"]) if late else None
        for _ in range(need):
            options = []
            for gpu, held in enumerate(gpus):
                after = one_more(held, profile, profiles)
                if after is None:
                    continue
                [what] = after - held
                cost = 0
                if late:
                    wants = shadow["wants"]
                    then = later[gpu] | {what}
                    cost = room_for(later[gpu], wants, profiles) - room_for(then, wants, profiles)
                if not late or lost + cost <= shadow["extra"][node["number"]]:
                    options.append((worth(held, profiles) - worth(after, profiles), gpu, what, cost))
            if not options:
                return None
            _, gpu, what, cost = min(options)
            gpus[gpu] = gpus[gpu] | {what}
            if late:
                later[gpu] = later[gpu] | {what}
            places.append((gpu, what))
            lost += cost
        return places, gpus, lost

    def free(self, node, profile):
        if self.is_flexible(node):
            return self.room_on(node, self.on_gpus(node), profile)
        held = [run["amounts"].get(node["number"], 0) for run in self.running if run["profile_served"] == profile]
        return self.capacity(node, profile) - sum(held)

    def is_idle(self, node):
        return node["state"] == ON and not any(node["number"] in run["amounts"] for run in self.running)

    def used(self, node):
        return sum(self.weights[run["profile_served"]] * run["amounts"].get(node["number"], 0) for run in self.running)

    def has_hope(self, request):
        """Whether it could be served with every node on, empty, in the pool that suits it best."""
        for profile in self.profiles_for(request):
            best = [max(pool[profile] for pool in node) for node in self.fleet["capacity"]]
            per, rest = request["places"][0], request["places"][-1]
            enough_for_per = sum(most >= per for most in best)
            enough_for_rest = sum(most >= rest for most in best)  # nobody is left out: rest <= per
            if enough_for_per >= request["nodes"] - 1 and enough_for_rest >= request["nodes"]:
                return True
        return False

    # The loop of instants.

    def play(self):
        for _ in range(20_000):
            if (now := self.next_instant()) is None:
                return self.start_s, [node["on"] for node in self.nodes]
            assert now >= self.now
            self.now = now
            self.end_requests()
            for node in self.nodes:
                while self.change_goes_on(node):
                    pass
            self.nodes_come_up()
            self.requests_join()
            self.start_requests()
            self.start_before_changes()
            if self.switching:
                self.grow()
                # What went may have made room, under the most that may be on, for what waits.
                if self.shrink() and self.queue:
                    self.again()
        raise AssertionError("the play never ends")

    def next_instant(self):
        ends = [run["end"] for run in self.running]
        coming = [node["come_s"] for node in self.nodes if node["state"] == COMING]
        ready = [request["ready"] for request in self.to_come]
        return min([*ends, *coming, *ready, *self.timers(), *self.steps_due()], default=None)

    def timers(self):
        """When the next node may go: idle for long enough, then cooled down."""
        if not self.switching:
            return []
        times = []
        for node in self.nodes:
            if self.is_idle(node):
                idle_till = node["since"] + self.switching["idle_s"]
                cool_till = self.last_add + self.switching["cool_s"]
                times.append(idle_till if idle_till > self.now else cool_till)
        return [time for time in times if time > self.now]

    # Step 1: ends.

    def end_requests(self):
        over = [run for run in self.running if run["end"] <= self.now]
        self.running = [run for run in self.running if run["end"] > self.now]
        for run in over:
            for number in run["amounts"]:
                if self.is_idle(self.nodes[number]):
                    self.nodes[number]["since"] = self.now

    # Planned changes.

    def steps_due(self):
        """When planned changes go on, whether their nodes empty or not."""
        times = [node["to_power"][0]["planned"] for node in self.nodes if node["to_power"]]
        for node in self.nodes:
            if node["to_drain"]:
                change = node["to_drain"][0]
                if node["state"] == PARTITIONING:
                    times.append(change["done_s"])
                elif node["state"] != CORDONED:
                    times.append(change["cordon"])
                elif self.before_change and change["planned"] > self.now:
                    times.append(change["planned"])
                else:
                    times.append(change["deadline"])
        return [time for time in times if self.now < time < math.inf]

    def change_goes_on(self, node):
        """Make one step of the changes of a node, if one is due."""
        change = node["to_drain"][0] if node["to_drain"] else None
        if node["state"] == PARTITIONING and change["done_s"] <= self.now:
            self.change_pool(node, change["pool"])
            return self.close_change(node, "done")
        if node["to_power"] and self.power_goes_on(node):
            return True
        if change is None or node["state"] == PARTITIONING:
            return False
        if node["state"] == CORDONED and not self.runs_on(node):
            if change["emptied"] is None:
                change["emptied"] = self.now
            if not self.before_change or self.now >= change["planned"]:
                node["state"], node["partitioned_for"] = PARTITIONING, change["row"]
                change["done_s"] = self.now + change["takes"]
                return True
        if self.now >= change["deadline"]:
            return self.close_change(node, "given up")
        if node["state"] == ON and self.now >= change["cordon"]:
            node["state"], change["began"] = CORDONED, self.now
            return True
        return False

    def close_change(self, node, outcome):
        change = node["to_drain"].pop(0)
        node["state"] = ON
        self.fates[change["row"]] = (change["began"], change["emptied"], self.now, outcome)
        return True

    def power_goes_on(self, node):
        """Power GPUs down or up where the time for it has come and the change before is over."""
        change = node["to_power"][0]
        still_to_come = [other["row"] for other in node["to_drain"]]
        if change["planned"] > self.now or change["after"] in still_to_come:
            return False
        node["to_power"].pop(0)
        as_planned = node["partitioned_for"] == change["after"]
        if as_planned:
            self.change_pool(node, change["pool"])
        self.fates[change["row"]] = (self.now, None, self.now, "done" if as_planned else "given up")
        return True

    def change_pool(self, node, pool):
        if pool != node["pool"]:
            since, _, before = node["on"].pop()
            node["on"] += [(since, self.now, before), (self.now, math.inf, pool)]
            node["pool"] = pool

    def runs_on(self, node):
        return any(node["number"] in run["amounts"] for run in self.running)

    def start_before_changes(self):
        """Who waits may start on cordoned nodes alone if it ends before they are to be changed."""
        if not any(node["state"] == CORDONED for node in self.nodes) or not self.before_change:
            return
        for request in list(self.queue):
            for profile in self.profiles_for(request):
                amounts = self.choose_before_change(request, profile)
                if amounts:
                    self.start(request, profile, amounts)
                    for number in amounts:
                        self.nodes[number]["to_drain"][0]["emptied"] = None
                    break

    def choose_before_change(self, request, profile):
        over = self.now + request["limit"]
        able = [
            node
            for node in self.nodes
            if node["state"] == CORDONED
            and self.now < node["to_drain"][0]["planned"]
            and over <= node["to_drain"][0]["planned"]
        ]
        chosen: dict[int, int] = {}
        for amount in request["places"]:
            left = [
                node
                for node in sorted(able, key=self.key(profile))
                if node["number"] not in chosen and self.free(node, profile) >= amount
            ]
            if not left:
                return None
            chosen[left[0]["number"]] = amount
        return chosen

    # Step 2: nodes that come up.

    def nodes_come_up(self):
        for node in self.nodes:
            if node["state"] == COMING and node["come_s"] <= self.now:
                node["state"], node["since"] = ON, self.now

    # Step 3: requests that are ready.

    def requests_join(self):
        self.queue += [request for request in self.to_come if request["ready"] <= self.now]
        self.to_come = [request for request in self.to_come if request["ready"] > self.now]

    # Step 4: starts, one pass in order of number.

    def start_requests(self):
        self.begin_pass()
        for request in list(self.queue):
            self.tries(request)

    def begin_pass(self):
        self.blocked: set[int] = set()  # profiles of slices
        self.head = False
        self.shadow: dict[str, Any] | None = None

    def is_behind(self, request):
        """Whether somebody on the same line waits before it."""
        sliced = request["profile"] > 0 and not self.flexible
        return request["profile"] in self.blocked if sliced else self.head

    def tries(self, request):
        """Whether it starts; who is the first to wait on its line is noted."""
        if self.passing:
            return self.try_freely(request, None)
        if request["profile"] > 0 and not self.flexible:
            if self.is_behind(request):
                return False
            if self.try_freely(request, None):
                return True
            self.blocked.add(request["profile"])
            return False
        # Where GPUs are flexible all take from the same: one queue.
        if self.head and self.strict:
            return False
        if self.try_freely(request, self.shadow):
            return True
        if not self.head:
            self.head = True
            self.shadow = None if self.strict else self.shadow_of(request)
        return False

    def made_s(self, request, profile):
        if not self.flexible:
            return 0.0
        return request["per"] * self.flexible["make_s"] if profile else self.flexible["whole_s"]

    def is_late(self, request, profile, shadow):
        return shadow is not None and self.now + self.made_s(request, profile) + request["limit"] > shadow["time"]

    def try_freely(self, request, shadow):
        for profile in self.profiles_for(request):
            late = shadow if self.is_late(request, profile, shadow) else None
            amounts = self.choose(request, profile, late)
            if amounts is not None:
                self.start(request, profile, amounts, late)
                return True
        return False

    def choose(self, request, profile, shadow):
        """Amount on each of the chosen nodes, or None; with a shadow the request is over after it."""

        def usable(node, amount):
            if self.free(node, profile) < amount:
                return False
            if shadow is None or node["number"] not in shadow["extra"]:
                return True
            if self.is_flexible(node):
                return self.arrange(node, profile, amount, shadow) is not None
            return shadow["extra"][node["number"]] >= (amount if profile == shadow["wants"] else 0)

        in_order = sorted((node for node in self.nodes if node["state"] == ON), key=self.key(profile))
        chosen: dict[int, int] = {}
        for amount in request["places"]:
            left = [node for node in in_order if node["number"] not in chosen and usable(node, amount)]
            if not left:
                return None
            chosen[left[0]["number"]] = amount
        return chosen

    def key(self, profile):
        return {
            "best": lambda node: (self.free(node, profile), node["number"]),
            "fullest": lambda node: (-self.used(node), node["number"]),
            "lowest": lambda node: node["number"],
        }[self.placement]

    def start(self, request, profile, amounts, shadow=None):
        self.queue.remove(request)
        places, made_s = {}, 0.0
        for number, amount in amounts.items():
            node = self.nodes[number]
            lost = amount if shadow and profile == shadow["wants"] else 0
            if self.is_flexible(node):
                places[number], _, lost = self.arrange(node, profile, amount, shadow)
                gpus = {gpu for gpu, _ in places[number]}
                if profile:
                    made_s = max(made_s, amount * self.flexible["make_s"])
                elif any(node["was_cut"][gpu] for gpu in gpus):
                    made_s = max(made_s, self.flexible["whole_s"])
                for gpu in gpus:
                    node["was_cut"][gpu] = profile > 0
            if shadow and number in shadow["extra"]:
                shadow["extra"][number] -= lost
        begins = self.now + made_s
        self.start_s[request["row"]], self.given[request["row"]] = begins, dict(amounts)
        self.running.append(
            {
                "request": request,
                "start": begins,
                "end": begins + request["run"],
                "over_at_the_latest": begins + request["limit"],
                "profile_served": profile,
                "amounts": amounts,
                "places": places,
            }
        )

    def shadow_of(self, head):
        """When the head can start at the latest, on which nodes, and what they have beyond its need."""
        for wants in self.profiles_for(head):
            shadow = self.shadow_with(head, wants)
            if shadow["time"] < math.inf:
                break
        return shadow

    def shadow_with(self, head, wants):
        def free_at(node, time):
            if node["state"] == COMING:
                return self.capacity(node, wants) if time >= node["come_s"] else 0
            if self.is_flexible(node):
                return self.room_on(node, self.on_gpus(node, time), wants)
            over = [
                run
                for run in self.running
                if run["profile_served"] == wants and max(self.now, run["over_at_the_latest"]) <= time
            ]
            return self.free(node, wants) + sum(run["amounts"].get(node["number"], 0) for run in over)

        def is_to_be_cut_anew(node, need):
            return self.flexible and self.switching and node["state"] == ON and self.capacity(node, wants) < need

        moments = {self.now}
        moments |= {max(self.now, run["over_at_the_latest"]) for run in self.running}
        moments |= {node["come_s"] for node in self.nodes if node["state"] == COMING}
        needs, time = {}, self.now
        for need in head["places"]:
            firsts = []
            for node in self.nodes:
                if node["number"] in needs:
                    continue
                if is_to_be_cut_anew(node, need):
                    if self.pools_with(node, wants, need):
                        here = [run for run in self.running if node["number"] in run["amounts"]]
                        last = max([self.now, *(run["over_at_the_latest"] for run in here)])
                        firsts.append((last, node["number"]))
                elif node["state"] in (ON, COMING):
                    enough = [moment for moment in sorted(moments) if free_at(node, moment) >= need]
                    if enough:
                        firsts.append((enough[0], node["number"]))
            if not firsts:
                return {"time": math.inf, "extra": {}, "wants": wants}
            begins, number = min(firsts)
            needs[number], time = need, max(time, begins)
        extra = {}
        for number, need in needs.items():
            node = self.nodes[number]
            extra[number] = -1 if is_to_be_cut_anew(node, need) else free_at(node, time) - need
        return {"time": time, "extra": extra, "wants": wants}

    # Step 5: nodes are switched on or cut anew.

    def grow(self):
        virtual = self.virtual = {
            node["number"]: self.virtual_free(node) for node in self.nodes if node["state"] in (ON, COMING)
        }
        self.paper = {}
        for request in self.queue:
            for profile in self.profiles_for(request):
                mine: list[int] = []
                for need in request["places"]:
                    number = self.find_place(profile, need, mine, virtual)
                    if number is not None:
                        self.claim(self.nodes[number], profile, need, virtual)
                        mine.append(number)
                if mine:
                    break
        for pool, kept in enumerate(self.switching["kept"]):
            idle = [node for node in self.nodes if self.is_spare(node, pool, virtual)]
            missing = kept - len(idle)
            for _ in range(missing):
                able = [node for node in self.nodes if node["state"] == OFF and any(self.counts(node, pool))]
                if not able:
                    break
                self.boot(able[0], pool, virtual)

    def claim(self, node, profile, need, virtual):
        number = node["number"]
        if not self.is_flexible(node):
            virtual[number][profile] -= need
            return
        gpus = self.paper.get(number, self.on_gpus(node))
        _, self.paper[number], _ = self.arrange(node, profile, need, None, gpus)
        virtual[number] = [self.room_on(node, self.paper[number], other) for other in range(len(self.weights))]

    def virtual_free(self, node):
        if node["state"] == COMING:
            return self.counts(node, node["pool"])
        return [self.free(node, profile) for profile in range(len(self.weights))]

    def counts(self, node, pool):
        return list(self.fleet["capacity"][node["number"]][pool])

    def unclaimed(self, node, virtual):
        return virtual[node["number"]] == self.counts(node, node["pool"])

    def is_spare(self, node, pool, virtual):
        if node["state"] == OFF or node["pool"] != pool or not self.unclaimed(node, virtual):
            return False
        return node["state"] == COMING or self.is_idle(node)

    def find_place(self, profile, need, mine, virtual):
        """Number of a node for one place of a request, which is told to come if it has to be, or None."""
        for state in (ON, COMING):
            for node in self.nodes:
                number = node["number"]
                if node["state"] == state and number not in mine and virtual[number][profile] >= need:
                    return number
        for node in self.nodes:
            if node["state"] == OFF and (pools := self.pools_with(node, profile, need)):
                self.boot(node, pools[0], virtual)
                return node["number"]
        for node in self.nodes:
            convertible = self.is_idle(node) and self.unclaimed(node, virtual) and self.capacity(node, profile) < need
            if convertible and (pools := self.pools_with(node, profile, need)):
                self.leave(node)
                self.boot(node, pools[0], virtual)
                return node["number"]
        return None

    def pools_with(self, node, profile, need):
        pools = self.fleet["capacity"][node["number"]]
        return [pool for pool, counts in enumerate(pools) if counts[profile] >= need]

    def boot(self, node, pool, virtual):
        come_s = self.now + self.switching["lead_s"]
        if look_s := self.switching.get("look_s"):  # somebody looks every so often, and finds it there
            come_s = math.ceil(come_s / look_s) * look_s
        node["state"], node["pool"], node["come_s"] = COMING, pool, come_s
        node["on"].append((self.now, math.inf, pool))
        self.last_add = self.now
        virtual[node["number"]] = self.counts(node, pool)

    def leave(self, node):
        since, _, pool = node["on"].pop()
        node["on"].append((since, self.now, pool))
        node["state"] = OFF

    def again(self):
        self.grow()

    # Step 6: idle nodes go off.

    def holds_back(self, node):
        """Whether an idle node may yet be of use to somebody who waits."""
        wanted = {profile for request in self.queue for profile in self.profiles_for(request)}
        return any(self.capacity(node, profile) > 0 for profile in wanted)

    def shrink(self):
        gone = False
        for node in reversed(self.nodes):
            if not self.is_idle(node):
                continue
            if self.now < node["since"] + self.switching["idle_s"]:
                continue
            if self.now < self.last_add + self.switching["cool_s"]:
                continue
            if self.holds_back(node):
                continue
            idle = [
                other
                for other in self.nodes
                if self.is_idle(other)
                and other["pool"] == node["pool"]
                and (not self.queue or self.unclaimed(other, self.virtual))
            ]
            if len(idle) > self.switching["kept"][node["pool"]]:
                self.leave(node)
                gone = True
        return gone


class SlurmGame(Game):
    """A partition for whole GPUs and one for slices; the first to wait in each reserves nodes, all of each."""

    def begin_pass(self):
        self.heads: set[bool] = set()
        self.reserved: dict[int, float] = {}  # number of a node: from when on

    def is_behind(self, request):
        return (request["profile"] > 0) in self.heads

    def tries(self, request):
        found = self.places_for(request)
        if found:
            profile, numbers = found
            for number, need in zip(numbers, request["places"], strict=True):
                node = self.nodes[number]
                if node["state"] == OFF:
                    self.boot(node, self.pools_with(node, profile, need)[0], {})
            self.start(request, profile, dict(zip(numbers, request["places"], strict=True)))
        elif not self.is_behind(request) and self.reserves(request):
            self.heads.add(request["profile"] > 0)
        return bool(found)

    def start(self, request, profile, amounts, shadow=None):
        super().start(request, profile, amounts, shadow)
        comes = [self.nodes[n]["come_s"] for n in amounts if self.nodes[n]["state"] == COMING]
        begins = max([self.now, *comes])
        self.start_s[request["row"]] = begins
        self.running[-1].update(start=begins, end=begins + request["run"], over_at_the_latest=begins + request["limit"])

    def places_for(self, request):
        """The profile and the nodes that it gets."""
        for profile in self.profiles_for(request):
            if mine := self.places_on(request, profile):
                return profile, mine
        return None

    def places_on(self, request, profile):
        """Nodes that it gets of a profile: those that are on first, then those that come, then others."""
        over = self.now + request["limit"]
        mine: list[int] = []
        for need in request["places"]:
            able = [
                node
                for node in self.nodes
                if node["number"] not in mine
                and self.can_give(node, profile, need)
                and over <= self.reserved.get(node["number"], math.inf)
            ]
            key = self.key(profile)
            able.sort(
                key=lambda node: (
                    [ON, COMING, OFF].index(node["state"]),
                    () if node["state"] == OFF else key(node),
                    node["number"],
                )
            )
            mine += [node["number"] for node in able[:1]]
        return mine if len(mine) == len(request["places"]) else None

    def can_give(self, node, profile, need):
        if node["state"] == OFF:
            return bool(self.switching) and bool(self.pools_with(node, profile, need))
        if node["state"] in (CORDONED, PARTITIONING):
            return False
        return self.free(node, profile) >= need

    def reserves(self, request):
        """Reserve where it can start first, by the limits of all that runs or is to run there."""
        for profile in self.profiles_for(request):
            taken = {}
            for need in request["places"]:
                firsts = []
                for node in self.nodes:
                    if node["state"] in (CORDONED, PARTITIONING):
                        times = []
                    elif node["state"] == OFF:
                        times = [self.now] if self.can_give(node, profile, need) else []
                    else:
                        moments = {self.now} | {max(self.now, run["over_at_the_latest"]) for run in self.running}
                        times = [time for time in sorted(moments) if self.free_then(node, profile, time) >= need]
                    if node["number"] not in taken:
                        firsts += [(time, node["number"]) for time in times[:1]]
                if not firsts:
                    break
                time, number = min(firsts)
                taken[number] = time
            else:
                for number in taken:
                    self.reserved[number] = min(self.reserved.get(number, math.inf), max(taken.values()))
                return True
        return False

    def free_then(self, node, profile, time):
        over = [
            run["amounts"].get(node["number"], 0)
            for run in self.running
            if run["profile_served"] == profile and max(self.now, run["over_at_the_latest"]) <= time
        ]
        return self.free(node, profile) + sum(over)

    def grow(self):
        """Only what is kept idle is brought: who waits has been given what sleeps."""
        self.virtual = {}
        for pool, kept in enumerate(self.switching["kept"]):
            idle = [
                node for node in self.nodes if node["state"] != OFF and node["pool"] == pool and self.is_empty(node)
            ]
            for node in [node for node in self.nodes if node["state"] == OFF and any(self.counts(node, pool))]:
                if len(idle) >= kept:
                    break
                self.boot(node, pool, {})
                idle.append(node)

    def again(self):
        self.start_requests()
        self.grow()

    def is_empty(self, node):
        return not any(node["number"] in run["amounts"] for run in self.running)

    def unclaimed(self, node, virtual):
        return True

    def holds_back(self, node):
        return False


# Cases.


def random_case(seed: int, *, flexible: bool = False, queue: str | None = None) -> dict[str, Any]:
    """What ``play_slow`` takes, by name: a small fleet on which time, GPUs and instances are short.

    If it is flexible, the GPUs of nodes in some pools are cut as jobs come and go. A queue is played under its own
    rules, with a look at nodes that come every so often.
    """
    rng = random.Random(seed)
    nodes, profiles = rng.randint(2, 6), rng.choice([2, 3, 3] if flexible else [1, 2, 3, 3, 3])
    kinds = _pools(rng, profiles)
    most = [1, 2, 3] if flexible else [3, 8, 8]
    gpus = [rng.randint(1, rng.choice(most)) for _ in range(nodes)]
    capacity = [[_counts(rng, kind, count, profiles) for kind in kinds] for count in gpus]
    how = _flexible(rng, gpus, capacity, profiles) if flexible else None
    able = [[pool for pool, counts in enumerate(node) if any(counts)] for node in capacity]
    switched = rng.random() < 0.6
    off = rng.choice([0.2, 0.5, 1.0]) if switched else 0.05
    first = [rng.choice(pools) if pools and rng.random() >= off else -1 for pools in able]
    fleet = {"gpus": gpus, "capacity": capacity, "first": first, "flexible": how}
    span = rng.choice([0, 20, 50, 100])
    requests = [_request(rng, fleet, span) for _ in range(rng.randint(2, 40))]
    substitution = rng.random() < 0.7
    case: dict[str, Any] = {
        "requests": requests,
        "fleet": fleet,
        "queue": rng.choice(["easy", "easy", "strict"]),
        "placement": rng.choice(["best", "fullest", "lowest"]),
        "larger": tuple(
            tuple(range(profile + 1, profiles)) if substitution and profile else () for profile in range(profiles)
        ),
        "weights": (8.0, 1.0, 3.0)[:profiles],
        "switching": _switching(rng, len(kinds)) if switched else None,
    }
    if rng.random() < 0.8:  # else some wait for ever, and whoever they stand before with them
        case["requests"] = requests = [each for each in requests if _starts_alone(each, case)]
    if queue is not None:
        case |= {"queue": queue}
        if case["switching"]:
            case["switching"] = case["switching"] | {"look_s": float(rng.choice([0, 2, 5]))}
    return case


def random_changes(case: dict[str, Any], seed: int) -> tuple[list[dict[str, Any]], bool]:
    """Planned changes of the nodes of a case that are on, in an order of their own; and whether requests precede them.

    Some nodes are drained ever again, with deadlines at which the next change is planned as well as before and after;
    GPUs of some are powered down and up meanwhile.
    """
    rng = random.Random(seed + 1_000_000)
    changes = []
    for node, first in enumerate(case["fleet"]["first"]):
        if first < 0 or rng.random() < 0.2:
            continue
        planned = sorted(float(rng.randint(0, 60)) for _ in range(rng.randint(1, 5)))
        for at, then in zip(planned, [*planned[1:], math.inf], strict=True):
            deadline = at + rng.choice([0, 3, 10, 40, math.inf])
            changes.append(
                {
                    "node": node,
                    "planned": at,
                    "cordon": at - rng.choice([0, 0, 5, 20, 100]),
                    "deadline": min(deadline, then) if rng.random() < 0.5 else deadline,
                    "takes": float(rng.choice([0, 1, 1, 5])),
                    "pool": rng.choice([first, rng.randrange(len(case["fleet"]["capacity"][node]))]),
                    "drained": rng.random() < 0.7,
                }
            )
    rng.shuffle(changes)
    return changes, rng.random() < 0.5


def _starts_alone(request, case):
    [start], _ = play_slow(**{**case, "requests": [request]})
    return not math.isnan(start)


def _pools(rng, profiles):
    """Ways to cut a node: what each GPU of the cut part offers, and whether another part stays whole."""
    whole = {"share_whole": 1.0, "per_gpu": [0] * profiles}
    cuts = {1: [[0]], 2: [[0, 2], [0, 7]], 3: [[0, 7, 0], [0, 1, 2], [0, 3, 1], [0, 0, 2], [0, 0, 2]]}[profiles]
    kinds = [whole]
    kinds += [
        {"share_whole": rng.choice([0.0, 0.0, 0.5]), "per_gpu": cut}
        for cut in rng.sample(cuts, rng.choice([0, 1, 1, 2]) if len(cuts) > 2 else rng.randint(0, len(cuts)))
    ]
    rng.shuffle(kinds)
    return kinds


def _counts(rng, kind, gpus, profiles):
    """What a node offers in a pool; now and then nothing, so that it cannot be in it."""
    if rng.random() < 0.1:
        return [0] * profiles
    whole = math.ceil(gpus * kind["share_whole"])
    return [whole, *((gpus - whole) * each for each in kind["per_gpu"][1:])]


def _flexible(rng, gpus, capacity, profiles):
    """Let some pools be flexible, with whole GPUs for jobs or, as where MIG mode stays, without."""
    pools = [rng.random() < 0.6 for _ in capacity[0]]
    pools[rng.randrange(len(pools))] = True
    for pool in (pool for pool, is_flexible in enumerate(pools) if is_flexible):
        whole = rng.random() < 0.7
        for node, count in zip(capacity, gpus, strict=True):
            node[pool] = [count * whole, 7 * count, 2 * count][:profiles]
    return {"pools": pools, "make_s": rng.choice([0.0, 0.5, 1.0]), "whole_s": rng.choice([0.0, 2.0, 5.0])}


def _request(rng, fleet, span):
    ready, run = rng.randint(0, span), rng.choice([0, 1, rng.randint(1, 6), rng.randint(1, 25)])
    nodes = rng.choices([1, 2, 3], [5, 3, 2])[0]
    most_of = [max(counts) for counts in zip(*(pool for node in fleet["capacity"] for pool in node), strict=True)]
    offered = [profile for profile, most in enumerate(most_of) if most or rng.random() < 0.05]
    profile = rng.choice(offered or [0])
    most = most_of[profile]
    per = rng.randint(1, max(1, min(most + rng.choice([0, 0, 0, 1]), rng.choice([2, 4, 8]))))
    total = per * nodes - (rng.randint(0, per - 1) if nodes > 1 else 0)
    while total <= math.ceil(total / nodes) * (nodes - 1):  # the last node would have nothing
        total += 1
    return {
        "ready": float(ready),
        "submit": float(ready - rng.randint(0, 3)),
        "run": float(run),
        "limit": float(run + rng.choice([0, 0, rng.randint(0, 10), rng.randint(0, 10), 40])),
        "profile": profile,
        "total": total,
        "nodes": nodes,
    }


def _switching(rng, pools):
    return {
        "idle_s": float(rng.choice([0, 1, 3, 10])),
        "lead_s": float(rng.choice([0, 1, 4, 9])),
        "kept": tuple(rng.choice([0, 0, 1, 2]) for _ in range(pools)),
        "cool_s": float(rng.choice([0, 0, 2, 7])),
    }


def spells_of(case, outcome):
    """What was held, by node: (start, end, profile, amount, request)."""
    found = [[] for _ in case["fleet"]["gpus"]]
    for request, node, profile, amount in outcome.allocations.iter_rows():
        start = float(outcome.start_s[request])
        found[node].append((start, start + case["requests"][request]["run"], profile, amount, request))
    return found
