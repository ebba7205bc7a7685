"""Kinds of forgery of a plan file: what each does to the values of one pool, to a fleet, or to the text.

A kind returns whether it could be done to that plan. All of them make the file claim something that is not so, or make
it no plan file at all. A bound within the cost is the planner's word, and no forgery of it is looked for.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

Pool = dict[str, Any]
Forge = Callable[[Pool], bool]


def recosted(pool: Pool, by: float) -> None:
    """Lower the cost by so much, and let bound and gap follow."""
    found = pool["plan"]
    found["objective"] -= by
    found["bound"] = min(found["bound"], found["objective"])
    gap = 1 - found["bound"] / found["objective"]
    found |= {"gap": gap, "status": "feasible"} if gap > 1e-6 else {"gap": 0.0, "status": "optimal"}


def in_plan(**changes: Any) -> Forge:
    """Set fields of the plan; a function gets what stands there."""

    def forge(pool: Pool) -> bool:
        before = copy.deepcopy(pool["plan"])
        for name, value in changes.items():
            pool["plan"][name] = value(pool["plan"].get(name)) if callable(value) else value
        return before != pool["plan"]

    return forge


def in_problem(*path: str, to: Any) -> Forge:
    """Set a value of the problem; a function gets what stands there."""

    def forge(pool: Pool) -> bool:
        at: Any = pool["problem"]
        for name in path[:-1]:
            at = at[name]
            if at is None:
                return False
        before = copy.deepcopy(at.get(path[-1]))
        at[path[-1]] = to(before) if callable(to) else to
        return bool(at[path[-1]] != before)

    return forge


def all_off(status: str) -> Forge:
    """Say that there is no plan."""

    def forge(pool: Pool) -> bool:
        found = pool["plan"]
        found.pop("parked", None)
        empty = [[[] for _ in row] for row in found["unmet"]]
        found |= {"status": status, "objective": None, "bound": None, "gap": None, "layouts": [], "counts": []}
        found |= {"unmet": empty, **dict.fromkeys(("changes", "drained_gpus", "reboots"), 0)}
        found |= {"gpu_hours_on": 0.0, "unmet_gpu_hours": 0.0}
        return True

    return forge


def one_gpu_less(pool: Pool) -> bool:
    """One GPU off in one slot, and its hours saved."""
    found, problem = pool["plan"], pool["problem"]
    for slot, row in enumerate(found["counts"]):
        for layout, gpus in enumerate(row):
            if gpus:
                row[layout] -= 1
                hours = problem["interval_hours"]
                found["gpu_hours_on"] -= hours
                idle = (problem["prices"] or {"parked_price": 0.0})["parked_price"]
                recosted(pool, (problem["on_price"] - idle) * hours)
                return slot >= 0
    return False


def shifted(pool: Pool) -> bool:
    """Every slot gets the counts of the one before."""
    rows = pool["plan"]["counts"]
    pool["plan"]["counts"] = [*rows[-1:], *rows[:-1]]
    return pool["plan"]["counts"] != rows


def columns_swapped(pool: Pool) -> bool:
    """Two layouts change their names; nothing is said by that where as many GPUs have them all the time."""
    names = pool["plan"]["layouts"]
    names[:2] = names[1::-1]
    return len(names) > 1 and any(row[0] != row[1] for row in pool["plan"]["counts"])


def all_served(pool: Pool) -> bool:
    """No demand is left, and its price is saved."""
    found, problem = pool["plan"], pool["problem"]
    if not found["unmet_gpu_hours"] > 1e-3:
        return False
    recosted(pool, found["unmet_gpu_hours"] * min(problem["unmet_price"]))
    found |= {"unmet": [[[0.0 for _ in row] for row in tenant] for tenant in found["unmet"]], "unmet_gpu_hours": 0.0}
    return True


def moved_between_tenants(pool: Pool) -> bool:
    """What one tenant lacks is written down to another that lacks nothing."""
    unmet = pool["plan"]["unmet"]
    wanted = pool["problem"]["demand"]
    for profile in range(len(unmet[0])):
        for slot, lacking in enumerate(unmet[-1][profile]):
            if lacking > 0.01 and len(unmet) > 1 and wanted[0][profile][slot] - unmet[0][profile][slot] > 0.01:
                part = min(lacking, wanted[0][profile][slot] - unmet[0][profile][slot])
                unmet[-1][profile][slot] -= part
                unmet[0][profile][slot] += part
                return True
    return False


def moved_between_slots(pool: Pool) -> bool:
    """What is lacking in one slot is written down in another."""
    for tenant in pool["plan"]["unmet"]:
        for row in tenant:
            for slot, lacking in enumerate(row):
                if lacking > 0.01:
                    other = (slot + 1) % len(row)
                    row[slot], row[other] = 0.0, row[other] + lacking
                    return len(row) > 1
    return False


def parked_for_nothing(pool: Pool) -> bool:
    """GPUs that nobody has are parked with the first layout."""
    found = pool["plan"]
    rows = found.get("parked") or [[0] * len(row) for row in found["counts"]]
    found["parked"] = [[gpus + 1_000 * (not at) for at, gpus in enumerate(row)] for row in rows]
    return True


def without_change(pool: Pool) -> bool:
    """The bound of plans without change for a plan that changes."""
    found = pool["plan"]
    found["bound_of"] = "plans without change"
    return any(row != found["counts"][0] for row in found["counts"])


def turned(names: list[str]) -> list[str]:
    """Layouts with their profiles from small to large."""
    return [",".join(name.split(",")[::-1]) + " " for name in names]


def own_board(pool: Pool) -> bool:
    """A board of the catalogue's name that holds sixty instances."""
    name = pool["problem"]["gpu_model"]["name"]
    row = {"gpu_model": name, "memory_gib_total": 80.0, "memory_slices_total": 8, "compute_slices_total": 7}
    row |= {"architecture": None, "board_sms": None, "placement_starts": "0;1;2;3;4;5;6;7", "compute_slices": 1}
    row |= {"memory_slices": 1, "memory_gib": 10.0, "max_instances": 60, "profile": "1g.10gb"}
    pool["problem"]["gpu_model"] = {"name": name, "rows": [row]}
    return True


PLAN: dict[str, Forge] = {
    "cost a tenth lower": lambda pool: recosted(pool, 0.1 * pool["plan"]["objective"]) or True,
    "cost a little lower": lambda pool: recosted(pool, 1e-5 * pool["plan"]["objective"]) or True,
    "cost below zero": in_plan(objective=lambda cost: -cost, bound=lambda cost: -cost),
    "no cost": in_plan(objective=None, bound=None, gap=None),
    "a little more bound than the gap says": in_plan(bound=lambda bound: bound * (1 - 3e-6)),
    "bound above the cost": in_plan(bound=lambda bound: bound * 3, gap=0.0, status="optimal"),
    "bound below zero": in_plan(bound=-5.0),
    "gap halved": in_plan(gap=lambda gap: gap / 2 + 1e-3),
    "gap below zero": in_plan(gap=-0.5),
    "status turned round": in_plan(status=lambda s: "optimal" if s == "feasible" else "feasible"),
    "status invented": in_plan(status="perfect"),
    "infeasible, yet it is there": in_plan(status="infeasible"),
    "infeasible, and nothing there": all_off("infeasible"),
    "unknown, and nothing there": all_off("unknown"),
    "a change less": in_plan(changes=lambda n: n - 1 if n else 1),
    "a departure less": in_plan(drained_gpus=lambda n: n - 1 if n else 1),
    "a reboot more": in_plan(reboots=lambda n: n + 1),
    "reboots below zero": in_plan(reboots=-1),
    "hours on": in_plan(gpu_hours_on=lambda hours: hours * 0.9 - 0.01),
    "hours unmet": in_plan(unmet_gpu_hours=lambda hours: hours * 0.9 + 0.01),
    "all demand served": all_served,
    "unmet moved to another tenant": moved_between_tenants,
    "unmet moved to another slot": moved_between_slots,
    "unmet transposed": in_plan(unmet=lambda unmet: [list(map(list, zip(*rows, strict=True))) for rows in unmet]),
    "a GPU less, and its hours": one_gpu_less,
    "counts shifted by a slot": shifted,
    "counts without the last slot": in_plan(counts=lambda rows: rows[:-1]),
    "counts with a slot twice": in_plan(counts=lambda rows: [*rows, rows[-1]]),
    "counts below zero": in_plan(counts=lambda rows: [[gpus - 999 for gpus in row] for row in rows]),
    "counts of half a GPU": in_plan(counts=lambda rows: [[gpus + 0.5 for gpus in row] for row in rows]),
    "counts as text": in_plan(counts=lambda rows: [[str(gpus) for gpus in row] for row in rows]),
    "counts as true and false": in_plan(counts=lambda rows: [[bool(gpus) for gpus in row] for row in rows]),
    "counts beyond the fleet": in_plan(counts=lambda rows: [[gpus + 10**9 for gpus in row] for row in rows]),
    "two layouts' names swapped": columns_swapped,
    "a layout that cannot be": in_plan(layouts=lambda names: ["1g.10gb+me:1,1g.10gb:60", *names[1:]]),
    "a layout named twice": in_plan(layouts=lambda names: [names[0]] * max(2, len(names))),
    "a layout in another order": in_plan(layouts=turned),
    "a layout of 5,000 digits": in_plan(layouts=lambda names: ["1g.10gb:" + "9" * 5000, *names[1:]]),
    "parked GPUs that nobody has": parked_for_nothing,
    "another kind of bound": without_change,
    "a kind of bound invented": in_plan(bound_of="all plans of the vendor"),
    "words of its own": in_plan(explanation="saves 90 %"),
    "stopped by proof": in_plan(stopped_by="proof"),
    "seconds": in_plan(seconds=0.1),
    "a method": in_plan(method="dp"),
    "a field of its own": in_plan(saving="90 %"),
    "cost of text": in_plan(objective=str),
    "cost true": in_plan(objective=True),
    "cost of 1e308": in_plan(objective=1e308, bound=1e308),
    "cost no number": in_plan(objective=float("nan"), bound=float("nan"), gap=float("nan")),
    "cost infinite": in_plan(objective=float("inf")),
    "cost -0.0": in_plan(gap=-0.0),
    "changes of 400 digits": in_plan(changes=10**400),
    "a null where there is a number": in_plan(unmet=None),
}  # fmt: skip
"""Kinds that change what a plan says of itself."""

PROBLEM: dict[str, Forge] = {
    "problem: demand lowered": in_problem(
        "demand", to=lambda demand: [[[0.9 * d for d in row] for row in rows] for rows in demand]
    ),
    "problem: more GPUs": in_problem("gpus", to=lambda gpus: gpus + 8),
    "problem: hours cheaper": in_problem("on_price", to=0.9),
    "problem: unmet demand cheaper": in_problem("unmet_price", to=lambda prices: [0.5 * p for p in prices]),
    "problem: changes free": in_problem("change_gpu_hours", to=lambda price: price / 2),
    "problem: draining free": in_problem("prices", "drain", to=0.0),
    "problem: instances free": in_problem("prices", "instance", to=0.0),
    "problem: reboots free": in_problem("prices", "reboot", to=0.0),
    "problem: other words": in_problem("prices", "basis", to="the vendor says so"),
    "problem: nothing there before": in_problem("initial", to=lambda held: {} if held is None else None),
    "problem: maintenance put off": in_problem("available", to=lambda gpus: [0] if gpus is None else None),
    "problem: nothing must stay": in_problem("limits", "pinned", to={}),
    "problem: other tiers": in_problem("tiers", to=lambda tiers: tiers[::-1]),
    "problem: other tenants": in_problem("tenants", to=lambda names: [f"{name}'" for name in names]),
    "problem: another week": in_problem("slot_start", to="2026-11-09T00:00:00+00:00"),
    "problem: another century": in_problem("slot_start", to="9999-12-31T23:00:00+00:00"),
    "problem: shorter slots": in_problem("interval_hours", to=0.5),
    "problem: slots of no length": in_problem("interval_hours", to=1e-9),
    "problem: slots that change twice": in_problem("limits", "change_slots", to=[1, 1]),
    "problem: another board": in_problem("gpu_model", to={"name": "H20-96GB"}),
    "problem: a board of its own": own_board,
    "problem: a board without cuts": in_problem(
        "gpu_model", to={"name": "H100-80GB-SXM5", "whole": {"memory_gib": 80.0, "sms": 1, "architecture": "x"}}
    ),
    "problem: a fleet of 10^14 GPUs": in_problem("gpus", to=10**14),
    "problem: demand of 10^14": in_problem("demand", to=lambda demand: [[[1e14] * len(r) for r in t] for t in demand]),
    "problem: names as one text": in_problem("tenants", to="ads"),
    "problem: profiles that are not there": in_problem("profiles", to=lambda names: ["9g.99gb", *names[1:]]),
}  # fmt: skip
"""Kinds that make the file one about another problem, or about none."""


def pool_of(values: dict[str, Any]) -> Pool:
    """The first pool of a file."""
    return values if "plan" in values else next(iter(values["pools"].values()))


def twice(text: str) -> str:
    """The first key of the plan a second time, with another value."""
    return text.replace('"plan": {', '"plan": {"bound": 0.0, ', 1)


TEXT: dict[str, Callable[[str], str]] = {
    "file: cut off": lambda text: text[: len(text) * 2 // 3],
    "file: empty object": lambda _: "{}",
    "file: two documents": lambda text: text + text,
    "file: a key twice": twice,
    "file: another version": lambda text: text.replace("plan/3", "plan/2"),
    "file: a later version": lambda text: text.replace("plan/3", "plan/4"),
    "file: a field of its own": lambda text: text.replace("{", '{"note": "saves 90 %", ', 1),
    "file: brackets without end": lambda text: '{"format": ' + "[" * 100_000,
    "file: no object": lambda text: json.dumps({"format": "gpuplanner.plan/3", "plan": [], "problem": text[:9]}),
}
"""Kinds that change the text of a file."""
