"""How few bins jobs over time need, and how far from the bound: 44 public instances, one core, 5 s each.

Run ``python benchmarks/packing.py`` (a minute or two; ``--plain 0`` leaves out the plain program). The instances
are those of the ``tbpp`` folder of ``GPUPLANNER_DATA``. Beside each packing stand first fit and best fit by start,
and for up to 100 items one plain assignment program, built by PuLP and solved by HiGHS for the same time. At the
end come the 24 smallest instances of the hardest class, 10 s each, and those of 10,000 items, 30 s each.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pulp

from gpuplanner.planner.packing_bounds import martello_toth_weighings, strongest_bound
from gpuplanner.planner.packing_files_and_verification import read_packing, verify_packing
from gpuplanner.planner.packing_heuristics import pack_in_order
from gpuplanner.planner.packing_problem import PackingProblem, build_packing_grid
from gpuplanner.planner.packing_search import pack

PLAIN_ITEMS = 100
KINDS = ("LonLr", "LonSm", "ShLr", "ShSm")


def instance_of(folder: str, n_items: int, horizon: int, kind: str, number: int = 1) -> str:
    """Path of an instance of the sets a1 and a2, such as ``a1/n50_t50_LonSm/cap100_n50_t50_LonSm_1.txt``."""
    group = f"n{n_items}_t{horizon}_{kind}"
    return f"{folder}/{group}/cap100_{group}_{number}.txt"


# Every size and kind of the a sets; of the others, sizes from the smallest to the largest with the variants in turn.
INSTANCES = (
    *(instance_of("a1", n, t, kind) for n, t in ((50, 50), (100, 120), (150, 150), (200, 240)) for kind in KINDS),
    *(instance_of("a2", n, t, kind) for n, t in ((500, 500), (1000, 1200)) for kind in KINDS),
    *(f"b1/{n}/I_{k}.txt" for n, k in zip(range(20, 201, 20), itertools.cycle((1, 50, 100)), strict=False)),
    *("b2/250/I_1.txt", "b2/500/I_50.txt", "b2/750/I_100.txt"),
    *("d1/100_2_1.txt", "d1/200_4_1.txt", "d1/500_8_1.txt", "d1/1000_24_1.txt"),
    *("d2/2000_2_1.txt", "d2/5000_8_1.txt", "d2/10000_inf_1.txt"),
)
SMALL = tuple(instance_of("a1", 50, t, kind, number) for t in (50, 60) for kind in KINDS for number in (1, 2, 3))
DRAWN_WORK = 2000
LARGE = tuple(f"d2/10000_{k}_1.txt" for k in ("2", "4", "8", "24", "inf"))


def fit_by_start(problem: PackingProblem, rule: str) -> int:
    """Bins of first fit or best fit in the order of the starts."""
    order = np.argsort(problem.starts, kind="stable")
    return int(pack_in_order(build_packing_grid(problem), order, rule=rule, max_bins=problem.n_items).bin_of.max()) + 1


def plain_program(problem: PackingProblem, most: int, seconds: float) -> str:
    """Bins and proven bound of the assignment program, given as many bins as best fit takes."""
    grid = build_packing_grid(problem)
    model = pulp.LpProblem("assignment", pulp.LpMinimize)
    used = [pulp.LpVariable(f"z{b}", cat="Binary") for b in range(most)]
    seated = [[pulp.LpVariable(f"x{j}_{b}", cat="Binary") for b in range(most)] for j in range(problem.n_items)]
    model += pulp.lpSum(used)
    for row in seated:
        model += pulp.lpSum(row) == 1
    for t in range(grid.n_moments):
        active = np.flatnonzero((grid.low <= t) & (t < grid.high))
        for b in range(most):
            load = pulp.lpSum(int(problem.sizes[j]) * seated[j][b] for j in active)
            model += load <= problem.capacity * used[b]
    for one, other in itertools.pairwise(used):
        model += one >= other
    model.solve(pulp.HiGHS(msg=False, timeLimit=seconds, threads=1))
    bound = model.solverModel.getInfo().mip_dual_bound
    bins = pulp.value(model.objective) if model.sol_status in (1, 2) else None
    return f"{'-' if bins is None else round(bins)}/{int(np.ceil(bound - 1e-6))}"


def measure(folder: Path, name: str, known: dict[str, int], seconds: float, seed: int, plain: float) -> dict:
    """Pack one instance, print its line, and return the numbers."""
    problem = read_packing(folder / name)
    found = pack(problem, time_limit_s=seconds, seed=seed)
    l2 = strongest_bound(build_packing_grid(problem), martello_toth_weighings(problem))
    first, best = (fit_by_start(problem, rule) for rule in ("first", "best"))
    faults = verify_packing(found, problem)
    if found.bins < known[name]:
        faults.append("below a proven bound")
    label = name if name.count("cap") == 0 else f"{name[:2]}/{name.rsplit('/', 1)[-1]}"
    wanted = plain > 0 and problem.n_items <= PLAIN_ITEMS
    print(
        f"{label:39} {problem.n_items:6} {l2:4} {found.lower_bound:5} "
        f"{found.bins:4} {100 * (found.bins / l2 - 1):6.2f} {'yes' if found.proven else 'no':6} "
        f"{found.seconds:7.3f} {first:5} {best:5} {plain_program(problem, best, plain) if wanted else '':>7} "
        f"{'WRONG ' + faults[0] if faults else 'ok'}",
        flush=True,
    )
    return {
        "gap": found.bins / l2 - 1,
        "own": found.bins / found.lower_bound - 1,
        "proven": found.proven,
        "seconds": found.seconds,
        "first": first / l2 - 1,
        "best": best / l2 - 1,
    }


def table(title: str, names: tuple[str, ...], **settings) -> None:
    """Run instances and print their totals."""
    print(f"\n{title}")
    print(
        f"{'instance':39} {'n':>6} {'L2':>4} {'bound':>5} {'bins':>4} {'gap %':>6} proven seconds  first  best   plain"
    )
    rows = [measure(name=name, **settings) for name in names]
    gap, own, first, best = (100 * np.mean([row[key] for row in rows]) for key in ("gap", "own", "first", "best"))
    print(
        f"mean gap to L2 {gap:.2f} % (first fit by start {first:.1f}, best fit by start {best:.1f}), to the bound "
        f"{own:.2f} %, worst {100 * max(row['own'] for row in rows):.2f} %; proven "
        f"{sum(row['proven'] for row in rows)} of {len(rows)}; longest {max(row['seconds'] for row in rows):.2f} s"
    )


def write_closed(folder: Path, to: Path, most_items: int = 50, seconds: float = 30.0) -> None:
    """Write every instance of few items with both bounds and the processor time it took."""
    pack(PackingProblem([0], [1], [1], 1))  # compiled before anything is measured
    rows, names = [], sorted(str(path.relative_to(folder)) for path in folder.glob("*/**/*.txt"))
    for name in names:
        problem = read_packing(folder / name)
        if problem.n_items > most_items:
            continue
        cpu = time.process_time()
        found = pack(problem, time_limit_s=seconds)
        cpu = time.process_time() - cpu
        faults = verify_packing(found, problem)
        cells = (name, problem.n_items, found.lower_bound, found.bins, "yes" if found.proven else "no")
        rows.append(f"| {' | '.join(map(str, cells))} | {cpu:.1f} | {faults[0] if faults else 'ok'} |")
    closed = sum("| yes |" in row for row in rows)
    head = f"""# Small packing instances

Every public instance of up to {most_items} items: {closed} of {len(rows)} closed within {seconds:g} s of one core. The
bound is our own proof, and `verify_packing` checks the packing. Made by
`python benchmarks/packing.py --closed {to}`.

| instance | items | bound | bins | closed | CPU s | check |
|---|---|---|---|---|---|---|
"""
    to.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


def drawn(members: list[PackingProblem], rng: np.random.Generator) -> PackingProblem:
    """An instance like those of a class: each start, length and size is one of theirs."""
    n_items = int(rng.choice([one.n_items for one in members]))
    starts = rng.choice(np.concatenate([one.starts for one in members]), n_items)
    lengths = rng.choice(np.concatenate([one.ends - one.starts for one in members]), n_items)
    sizes = rng.choice(np.concatenate([one.sizes for one in members]), n_items)
    return PackingProblem(starts, starts + lengths, sizes, members[0].capacity)


def close_drawn(folder: Path, many: int, seed: int, most_items: int = 50) -> None:
    """Draw instances like the public ones of few items, class by class in turn, and print what became of them."""
    classes: dict[str, list[PackingProblem]] = {}
    for path in sorted(folder.glob("*/**/*.txt")):
        problem = read_packing(path)
        if problem.n_items <= most_items:
            classes.setdefault(str(path.parent.relative_to(folder)), []).append(problem)
    closed = dict.fromkeys(classes, 0)
    tried, started = dict(closed), time.process_time()
    for number, (name, members) in zip(range(many), itertools.cycle(classes.items()), strict=False):
        problem = drawn(members, np.random.default_rng([seed, number]))
        cpu = time.process_time()
        # Work, not seconds: about half a minute of one processor, however busy the machine is.
        found = pack(problem, time_limit_s=3600.0, work_limit=DRAWN_WORK, seed=seed)
        cpu = time.process_time() - cpu
        faults = verify_packing(found, problem)
        tried[name] += 1
        closed[name] += found.proven and not faults
        if not found.proven or faults or cpu > 1:
            words = f"bound {found.lower_bound}, bins {found.bins}, {cpu:.1f} CPU s, {found.stopped_by}"
            print(f"number {number}, {name}, {problem.n_items} items: {words}", *faults, flush=True)
    for name, count in closed.items():
        print(f"{name:20} {count} of {tried[name]} closed")
    cpu = time.process_time() - started
    print(f"all                  {sum(closed.values())} of {sum(tried.values())} closed, {cpu:.1f} CPU s")


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", type=float, default=5.0, help="seconds for the plain program; 0 leaves it out")
    parser.add_argument("--closed", type=Path, help="write what becomes of the small instances, and end")
    parser.add_argument("--drawn", type=int, help="draw so many instances like the small ones, and end")
    given = parser.parse_args()
    folder = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data")) / "tbpp"
    if given.closed:
        write_closed(folder, given.closed)
        return
    if given.drawn:
        close_drawn(folder, given.drawn, given.seed)
        return
    with (folder / "best_known.csv").open(encoding="utf-8") as stream:
        known = {row["instance"]: int(row["lower_bound"]) for row in csv.DictReader(stream)}
    used = ", ".join(f"{name} {version(name)}" for name in ("gpuplanner", "numpy", "numba", "highspy", "pulp"))
    print(f"Python {platform.python_version()}, {used}; seed {given.seed}; one thread")
    settings = {"folder": folder, "known": known, "seed": given.seed}
    table("44 instances", INSTANCES, seconds=given.time_limit, plain=given.plain, **settings)
    table("a1, 50 items", SMALL, seconds=10.0, plain=0.0, **settings)
    table("10,000 items", LARGE, seconds=30.0, plain=0.0, **settings)


if __name__ == "__main__":
    main()
