"""How close to the bound a week's plan comes, and how fast, from two GPUs to twenty thousand.

Run ``python benchmarks/planner.py`` (all of it takes some minutes) or ``--quick`` (one seed each); with
``--parked 0.02`` the single pools park what they do not need, at that price of an hour. The demand is
made up: six profiles, hourly, with the rhythm of day and week and 10 % noise. Beside each plan stands one
plain integer program, built by PuLP and solved by HiGHS, stopped after the same time: its own gap, and its gap
to our bound. Last come three pools with eight tenants, quotas, maintenance and a limit on switches. Every plan is
checked by ``verify``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import resource
import time
from datetime import UTC, datetime

import numpy as np

from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota, StatePrices
from gpuplanner.planner.fleet_plans_and_comparisons import plan_fleet, verify_fleet
from gpuplanner.planner.interval_milp import build_slot_model
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort, relative_gap
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

BOARD = "H100-80GB-SXM5"
PROFILES = ("7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb")
PARTS = (0.10, 0.10, 0.20, 0.25, 0.10, 0.25)
MONDAY = datetime(2026, 11, 2, tzinfo=UTC)


def weekly_demand(gpus: float, parts: tuple[float, ...], shares: np.ndarray, slots: int, seed: int):
    """Instances by profile and hour, shape (1, n_profiles, n_slots): about ``gpus`` GPUs' worth on average."""
    rng = np.random.default_rng(seed)
    hour = np.arange(slots)
    peak = rng.uniform(11, 17, size=(len(parts), 1))
    day = 1 + 0.4 * np.cos(2 * np.pi * (hour - peak) / 24)
    week = np.where(hour // 24 % 7 >= 5, 0.6, 1.16)
    noise = 1 + 0.1 * rng.standard_normal((len(parts), slots))
    level = gpus * np.array(parts) / shares
    return (level[:, None] * day * week * noise).clip(0)[None]


def week(gpus: float, change: float, seed: int, *, slots: int = 168, whole: float = 0.0, **limits):
    """A week of made-up demand; ``whole`` is the part of it that wants GPUs which are not cut."""
    profiles = (*PROFILES, "gpu") if whole else PROFILES
    parts = (*(part * (1 - whole) for part in PARTS), whole) if whole else PARTS
    bare = PlanProblem(BOARD, 1, 8, MONDAY, 1, ["all"], profiles, np.zeros((1, len(profiles), 1)))
    demand = weekly_demand(gpus, parts, bare.shares, slots, seed)
    fleet = limits.pop("fleet", int(np.ceil(3 * gpus)) + 8)
    return PlanProblem(BOARD, fleet, 8, MONDAY, 1, ["all"], profiles, demand, change_gpu_hours=change, **limits)


POOLS = {
    "A100-80GB": PROFILES,
    "H100-80GB-SXM5": PROFILES,
    "H200-141GB": ("7g.141gb", "4g.71gb", "3g.71gb", "2g.35gb", "1g.35gb", "1g.18gb"),
}
TIERS = ("guaranteed", "guaranteed", "standard", "standard", "standard", *["best_effort"] * 3)
PRICES = (20, 20, 10, 10, 10, 5, 5, 5)


def three_pools(gpus: float, seed: int) -> dict[str, PlanProblem]:
    """Three pools of made-up demand: tenants that peak on other days, quotas in two cohorts, maintenance."""
    pools = {}
    tenants = [f"tenant {place}" for place in range(len(TIERS))]
    for place, (gpu_model, profiles) in enumerate(POOLS.items()):
        bare = PlanProblem(gpu_model, 1, 8, MONDAY, 1, ["all"], profiles, np.zeros((1, len(profiles), 1)))
        total = weekly_demand(gpus, PARTS, bare.shares, 168, 10 * seed + place)[0]
        rng = np.random.default_rng(seed + 100 * place)
        weight = rng.dirichlet(np.full(len(TIERS), 3.0))
        by_day = rng.uniform(0.5, 1.5, (len(TIERS), 1, 7)).repeat(24, axis=2)
        fleet = int(np.ceil(1.8 * gpus / 8)) * 8
        in_service = np.full(168, fleet)
        in_service[30:38] -= 8
        in_service[100:112] -= 16
        quotas = {
            tenant: Quota(1.4 * gpus * part, cohort="ab"[number % 2], borrow=0.1 * gpus)
            for number, (tenant, part) in enumerate(zip(tenants, weight.tolist(), strict=True))
        }
        pools[gpu_model] = PlanProblem(
            gpu_model, fleet, 8, MONDAY, 1, tenants, profiles, total * weight[:, None, None] * by_day,
            tiers=TIERS, unmet_price=PRICES, change_gpu_hours=0.25, available=in_service.clip(0).tolist(),
            limits=Limits(switches_per_day=2, quotas=quotas),
        )  # fmt: skip
    return pools


def report_fleet(name: str, pools: dict[str, PlanProblem], *, time_limit_s: float, gap_target: float) -> None:
    """Print one line for a fleet of several pools."""
    cpu = time.process_time()
    found = plan_fleet(pools, time_limit_s=time_limit_s, gap_target=gap_target)
    cpu = time.process_time() - cpu
    faults = verify_fleet(found, pools)
    for pool, one in found.plans.items():
        faults += verify(one, pools[pool], assign(one, pools[pool]))
    print(
        f"{name:34} {found.objective:11.1f} {100 * found.gap:6.2f} {found.seconds:7.2f} {cpu:7.2f} "
        f"{found.status:10} {'ok' if not faults else 'WRONG':5}",
        flush=True,
    )


def plain_milp(problem: PlanProblem, seconds: float) -> tuple[float | None, float | None]:
    """Cost and bound of one integer program for the whole horizon, without any of our help."""
    effort = SearchEffort.begin(gap_target=0.0, time_limit_s=seconds, seed=0, solver="highs")
    answer = solve(build_slot_model(PlanArrays.from_problem(problem), range(problem.n_slots)).linear, effort)
    return answer.objective, answer.bound


def report(name: str, problem: PlanProblem, *, time_limit_s: float, gap_target: float, plain: bool) -> None:
    """Print one line: our plan, and the plain program after the same time."""
    cpu = time.process_time()
    found = plan(problem, time_limit_s=time_limit_s, gap_target=gap_target)
    cpu = time.process_time() - cpu
    faults = verify(found, problem)
    line = (
        f"{name:34} {found.objective:11.1f} {100 * found.gap:6.2f} {found.seconds:7.2f} {cpu:7.2f} "
        f"{found.stopped_by:10} {'ok' if not faults else 'WRONG':5}"
    )
    if plain:
        cost, bound = plain_milp(problem, found.seconds)
        own = "-" if cost is None else f"{100 * relative_gap(cost, bound):.2f}"
        ours = "-" if cost is None else f"{100 * relative_gap(cost, found.bound):.2f}"
        line += f" {own:>7} {ours:>7}"
    print(line, flush=True)


def idle(change: float, parked: float | None) -> dict[str, StatePrices]:
    """What becomes of GPUs that are not needed: parked, where an hour of that has a price."""
    prices = {} if parked is None else {"parked_price": parked, "dress": change}
    return {"prices": StatePrices.from_change_cost(ChangeCost.from_catalogue(BOARD), 8, **prices)} if prices else {}


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, no plain program")
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--parked", type=float, help="price of an hour parked; GPUs are released if not given")
    given = parser.parse_args()
    seeds = range(1 if given.quick else 5)
    print(
        f"{'case':34} {'cost':>11} {'gap %':>6} {'wall s':>7} {'cpu s':>7} {'stopped':10} {'check':5} "
        "plain program: gap %, gap % to our bound"
    )
    limits = {"time_limit_s": given.time_limit, "gap_target": given.gap, "plain": not given.quick}
    for seed in seeds:
        problem = week(26, 0.25, seed, whole=1 / 3, fleet=64, **idle(0.25, given.parked))
        report(f"64 GPUs, a third whole, seed {seed}", problem, **limits)
    for size, change, seed in itertools.product((2, 20, 200, 2000, 20_000), (0.25, 0.05), seeds):
        report(
            f"{size} GPUs, {change} a change, seed {seed}",
            week(size, change, seed, **idle(change, given.parked)),
            **limits,
        )
    longer = {**limits, "time_limit_s": max(60.0, given.time_limit)}
    for size, slots in ((20, 168), (2, 720), (20, 720), (200, 720)):
        report(f"{size} GPUs, {slots} slots", week(size, 0.25, 0, slots=slots, **idle(0.25, given.parked)), **longer)
    for size, seed in itertools.product((4, 20, 100, 400), seeds):
        report_fleet(
            f"3 pools of {size} GPUs, seed {seed}", three_pools(size, seed), time_limit_s=60.0, gap_target=given.gap
        )
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("pulp", "highspy", "numpy"))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{', '.join(versions)}; most memory {peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
