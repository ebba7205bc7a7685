"""Kinds of forgery of a plan file: what each does to the values of one pool, to a fleet, or to the text.

A kind returns whether it could be done to that plan. All of them make the file claim something that is not so, or make
it no plan file at all. Those of :data:`DOWNGRADED` leave a plan that holds, and a bound that nobody can prove.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from gpuplanner.planner.contract.certificate import SEARCHED

Pool = dict[str, Any]
Forge = Callable[[Pool], bool]


def leaves(tree: Any) -> list[dict[str, float]]:
    """Leaves of a tree of prices."""
    return [tree] if isinstance(tree, dict) else [*leaves(tree[2]), *leaves(tree[3])]


def claims_the_optimum(pool: Pool) -> bool:
    """Raise the bound to the cost, in plan and certificate; nothing to do where it is there."""
    found, proof = pool["plan"], pool["plan"]["certificate"]
    if found["objective"] - found["bound"] <= 1e-4 * found["objective"]:
        return False
    found |= {"bound": found["objective"], "gap": 0.0, "status": "optimal"}
    proof["bound"] = found["bound"]
    return True


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


def in_proof(claim: bool = False, **changes: Any) -> Forge:
    """Set fields of the certificate; with a claim, only where a better one can be made of it."""

    def forge(pool: Pool) -> bool:
        if claim and not claims_the_optimum(pool):
            return False
        proof = pool["plan"]["certificate"]
        before = copy.deepcopy(proof)
        for name, value in changes.items():
            proof[name] = value(proof.get(name)) if callable(value) else value
        return before != proof

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


def priced(**prices: Any) -> Forge:
    """Give rows of every leaf prices."""

    def forge(pool: Pool) -> bool:
        for leaf in leaves(pool["plan"]["certificate"]["tree"]):
            leaf |= prices
        return claims_the_optimum(pool) or True

    return forge


def scaled(by: float) -> Forge:
    """Multiply all prices; the claim stays, or grows if they do."""

    def forge(pool: Pool) -> bool:
        proof = pool["plan"]["certificate"]
        told = [leaf for leaf in leaves(proof["tree"]) if leaf]
        for leaf in told:
            leaf |= {name: price * by for name, price in leaf.items()}
        return bool(told) and (by < 1 or claims_the_optimum(pool))

    return forge


def all_off(status: str) -> Forge:
    """Say that there is no plan."""

    def forge(pool: Pool) -> bool:
        found = pool["plan"]
        for name in ("parked", "certificate"):
            found.pop(name, None)
        empty = [[[] for _ in row] for row in found["unmet"]]
        found |= {
            "status": status,
            "objective": None,
            "bound": None,
            "gap": None,
            "layouts": [],
            "counts": [],
        }
        found |= {"unmet": empty, **dict.fromkeys(("changes", "departures", "reboots"), 0)}
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
                hours = problem["slot_hours"]
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
    found |= {
        "unmet": [[[0.0 for _ in row] for row in tenant] for tenant in found["unmet"]],
        "unmet_gpu_hours": 0.0,
    }
    return True


def moved_between_tenants(pool: Pool) -> bool:
    """What one tenant lacks is written down to another that lacks nothing."""
    unmet = pool["plan"]["unmet"]
    wanted = pool["problem"]["demand"]
    for profile in range(len(unmet[0])):
        for slot, lacking in enumerate(unmet[-1][profile]):
            if (
                lacking > 0.01
                and len(unmet) > 1
                and wanted[0][profile][slot] - unmet[0][profile][slot] > 0.01
            ):
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
    """The bound of all plans for that of plans without change, or the other way round, with a claim that needs it."""
    found = pool["plan"]
    if found["bound_of"] == "all plans":
        found["bound_of"] = "plans without change"
        return any(row != found["counts"][0] for row in found["counts"])
    found["bound_of"] = "all plans"
    return found["bound"] > 0.0


def half_a_tree(pool: Pool) -> bool:
    """The half of a branch with the honest plan in it is priced beyond all measure that the file allows."""
    proof = pool["plan"]["certificate"]
    first = next(name for leaf in leaves(proof["tree"]) for name in leaf if name.startswith("coverage"))
    slot = first.split("_")[1]
    proof["tree"] = [f"on_{slot}", 0, {f"on_{slot}": -1e15}, proof["tree"]]
    return claims_the_optimum(pool)


def floors_told(change: Callable[[list[list[int]], int], Any]) -> Forge:
    """Change the floors; with what they prove now, a better claim is made."""

    def forge(pool: Pool) -> bool:
        proof = pool["plan"]["certificate"]
        if not proof["floors"]:
            return False
        slots = len(pool["plan"]["counts"])
        before = copy.deepcopy(proof["floors"])
        proof["floors"] = change(proof["floors"], slots)
        claims_the_optimum(pool)
        return bool(before != proof["floors"])

    return forge


def floors_lifted(pool: Pool) -> bool:
    """Every floor is proven by itself."""
    proof = pool["plan"]["certificate"]
    for start, width, tree in proof["floors"]:
        first = proof["trees"][tree][0]
        proof["trees"][tree] = [first, {f"floor_{first}_{width}": 1.0}]
        assert start >= 0
    return bool(proof["floors"])


def floors_empty(pool: Pool) -> bool:
    """Every floor has a tree that proves nothing, and the rest relies on them."""
    proof = pool["plan"]["certificate"]
    used = any(name.startswith("floor") for leaf in leaves(proof["tree"]) for name in leaf)
    proof["trees"] = [[first, {}] for first, _ in proof["trees"]]
    return used


def other_columns(pool: Pool) -> bool:
    """The cheapest columns are left out: what remains costs more."""
    proof = pool["plan"]["certificate"]
    named = {*(pool["problem"]["initial"] or {}), *(pool["problem"]["parked"] or {})}
    named |= {*pool["problem"]["limits"]["pinned"]}
    proof["layouts"] = [text for text in proof["layouts"] if text in named][:1] or proof["layouts"][:1]
    return claims_the_optimum(pool)


def named_columns_left_out(pool: Pool) -> bool:
    """What is there before the first slot has no column."""
    proof, there = pool["plan"]["certificate"], {*(pool["problem"]["initial"] or {})}
    proof["layouts"] = [text for text in proof["layouts"] if text not in there]
    return bool(there)


def misnamed(pool: Pool) -> bool:
    """Prices of rows that there are none of."""
    tree = pool["plan"]["certificate"]["tree"]
    for leaf in leaves(tree):
        told = dict(leaf)
        leaf.clear()
        leaf |= {f"{name}9": price for name, price in told.items()} or {"coverage_0_99": 1.0}
    return True


def branching(node: list[Any]) -> Forge:
    """A branching at the root, with the honest tree on either side."""

    def forge(pool: Pool) -> bool:
        proof = pool["plan"]["certificate"]
        proof["tree"] = [*node, proof["tree"], proof["tree"]]
        claims_the_optimum(pool)
        return True

    return forge


def dug_in(pool: Pool) -> bool:
    """A tree of five hundred levels, each with the whole proof on one side."""
    proof = pool["plan"]["certificate"]
    tree: Any = {}
    for _ in range(200):
        tree = ["on_0", 0, {"fleet_0": -1.0}, tree]
    proof["tree"] = tree
    claims_the_optimum(pool)
    return True


def first_set(change: Callable[[list[str], list[str]], list[str]]) -> Forge:
    """Change the first set of requests."""

    def forge(pool: Pool) -> bool:
        proof = pool["plan"]["certificate"]
        if not proof["requests"]:
            return False
        before = list(proof["requests"][0])
        proof["requests"][0] = change(before, pool["problem"]["profiles"])
        return claims_the_optimum(pool) and proof["requests"][0] != before

    return forge


def turned(names: list[str]) -> list[str]:
    """Layouts with their profiles from small to large."""
    return [",".join(name.split(",")[::-1]) + " " for name in names]


def own_board(pool: Pool) -> bool:
    """A board of the catalogue's name that holds sixty instances."""
    name = pool["problem"]["board"]["name"]
    row = {"gpu_model": name, "memory_gib_total": 80.0, "memory_slices_total": 8, "compute_slices_total": 7}
    row |= {
        "architecture": None,
        "board_sms": None,
        "placement_starts": "0;1;2;3;4;5;6;7",
        "compute_slices": 1,
    }
    row |= {"memory_slices": 1, "memory_gib": 10.0, "max_instances": 60, "profile": "1g.10gb"}
    pool["problem"]["board"] = {"name": name, "rows": [row]}
    return True


PLAN: dict[str, Forge] = {
    "cost a tenth lower": lambda pool: recosted(pool, 0.1 * pool["plan"]["objective"]) or True,
    "cost a little lower": lambda pool: recosted(pool, 1e-5 * pool["plan"]["objective"]) or True,
    "cost below zero": in_plan(objective=lambda cost: -cost, bound=lambda cost: -cost),
    "no cost": in_plan(objective=None, bound=None, gap=None),
    "optimal, proof and all": claims_the_optimum,
    "bound a little beyond its tolerance": in_plan(bound=lambda bound: bound * (1 + 3e-6)),
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
    "a departure less": in_plan(departures=lambda n: n - 1 if n else 1),
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

PROOF: dict[str, Forge] = {
    "proof: bound raised in the certificate alone": in_proof(bound=lambda bound: bound * 1.01),
    "proof: bound infinite": in_proof(bound=float("inf")),
    "proof: a reason of its own": in_proof(rest="a proof by the vendor"),
    "proof: factor of -1.7e308": priced(fleet_0=-1.7e308),
    "proof: opposite huge prices": priced(coverage_0_0=1.7e308, fleet_0=-1.7e308),
    "proof: huge prices within the range": priced(coverage_0_0=1e15, fleet_0=-1e15),
    "proof: price no number": priced(coverage_0_0=float("nan")),
    "proof: price infinite": priced(coverage_0_0=float("inf")),
    "proof: price as text": priced(coverage_0_0="1"),
    "proof: price true": priced(coverage_0_0=True),
    "proof: price null": priced(coverage_0_0=None),
    "proof: prices halved": scaled(0.5),
    "proof: prices doubled": scaled(2.0),
    "proof: prices turned round": scaled(-1.0),
    "proof: prices of rows that are not there": misnamed,
    "proof: half a tree": half_a_tree,
    "proof: a branch on what is no whole number": branching(["idle_0", 0]),
    "proof: a branch on nothing": branching(["", 0]),
    "proof: a branch at a half": branching(["on_0", 0.5]),
    "proof: a branch below zero": branching(["on_0", -1]),
    "proof: a branch at true": branching(["on_0", True]),
    "proof: a tree of 200 levels": dug_in,
    "proof: an empty tree": in_proof(tree={}),
    "proof: a tree that is a number": in_proof(tree=7),
    "proof: no tree": in_proof(tree=None),
    "proof: floors moved": floors_told(lambda floors, slots: [[a + 1, b, c] for a, b, c in floors]),
    "proof: floors widened": floors_told(lambda floors, slots: [[a, b + 1, c] for a, b, c in floors]),
    "proof: floors of no slots": floors_told(lambda floors, slots: [[a, 0, c] for a, b, c in floors]),
    "proof: floors below zero": floors_told(lambda floors, slots: [[-1, b, c] for a, b, c in floors]),
    "proof: floors without a tree": floors_told(lambda floors, slots: [[a, b, c + 99] for a, b, c in floors]),
    "proof: floors beyond the horizon": floors_told(lambda floors, slots: [[slots, b, c] for a, b, c in floors]),
    "proof: a million floors": floors_told(lambda floors, slots: floors * (200 * slots)),
    "proof: no floors": floors_told(lambda floors, slots: []),
    "proof: floors that rest on themselves": floors_lifted,
    "proof: floors that rest on nothing": floors_empty,
    "proof: a layout that cannot be": in_proof(claim=True, layouts=lambda names: ["1g.10gb:60", *names]),
    "proof: such a layout alone": in_proof(claim=True, layouts=lambda names: ["1g.10gb+me:1,1g.10gb:60", "gpu"]),
    "proof: a layout twice": in_proof(layouts=lambda names: [*names, names[0]]),
    "proof: a layout in another order": in_proof(layouts=turned),
    "proof: layouts that are no text": in_proof(layouts=lambda names: [7, *names]),
    "proof: what is there has no column": named_columns_left_out,
    "proof: sets turned into others": first_set(lambda names, known: [n for n in known if n not in names] or known[:1]),
    "proof: sets of what nobody asks for": first_set(lambda names, known: ["9g.99gb"]),
    "proof: no sets": in_proof(requests=[]),
    "proof: a field left out": lambda pool: pool["plan"]["certificate"].pop("floors") is not None,
    "proof: a field of its own": in_proof(by="the vendor"),
    "proof: no object": in_plan(certificate=[1, 2, 3]),
}  # fmt: skip
"""Kinds that change why the bound holds."""

DOWNGRADED: dict[str, Forge] = {
    "proof: none": lambda pool: pool["plan"].pop("certificate") is not None,
    "proof: a search that nobody saw": lambda pool: (
        claims_the_optimum(pool) and in_proof(rest=SEARCHED, bound=0.0)(pool)
    ),
    "proof: only the dearest columns": other_columns,
}
"""Kinds after which the plan holds and the bound is not proven."""

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
    "problem: shorter slots": in_problem("slot_hours", to=0.5),
    "problem: slots of no length": in_problem("slot_hours", to=1e-9),
    "problem: slots that change twice": in_problem("limits", "change_slots", to=[1, 1]),
    "problem: another board": in_problem("board", to={"name": "H20-96GB"}),
    "problem: a board of its own": own_board,
    "problem: a board without cuts": in_problem(
        "board", to={"name": "H100-80GB-SXM5", "whole": {"memory_gib": 80.0, "sms": 1, "architecture": "x"}}
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
    """The first key of the certificate a second time, with another value."""
    return text.replace('"certificate": {', '"certificate": {"bound": 0.0, ', 1)


TEXT: dict[str, Callable[[str], str]] = {
    "file: cut off": lambda text: text[: len(text) * 2 // 3],
    "file: empty object": lambda _: "{}",
    "file: two documents": lambda text: text + text,
    "file: a key twice": twice,
    "file: another version": lambda text: text.replace("plan/2", "plan/1"),
    "file: a later version": lambda text: text.replace("plan/2", "plan/3"),
    "file: a field of its own": lambda text: text.replace("{", '{"note": "saves 90 %", ', 1),
    "file: brackets without end": lambda text: '{"format": ' + "[" * 100_000,
    "file: no object": lambda text: json.dumps(
        {"format": "gpuplanner.plan/2", "plan": [], "problem": text[:9]}
    ),
}
"""Kinds that change the text of a file."""
