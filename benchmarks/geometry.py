"""All layouts of every board, against a plain search that asks the rules anew for every set of placements.

Run ``python benchmarks/geometry.py``. Both run in one process on one core; seconds are CPU seconds, the least of
some repeats with empty caches. The search is the textbook one: add a placement behind the last, keep what
:func:`gpuplanner.hardware.mig_layouts.find_layout_faults` allows. Its layouts have to be the same.
"""

from __future__ import annotations

import math
import platform
import time

from gpuplanner.hardware import layout_enumeration as enumeration
from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_placed_layouts
from gpuplanner.hardware.mig_layouts import Layout, Placement, find_layout_faults

REPEATS = 3


def plain_search(gpu_model):
    """Every legal set of placements, depth first."""
    places = [Placement.at_start(profile, start) for profile in gpu_model.profiles for start in profile.starts]
    found = []
    waiting = [((), 0)]
    while waiting:
        chosen, first = waiting.pop()
        for at in range(first, len(places)):
            layout = Layout((*chosen, places[at]))
            if not find_layout_faults(gpu_model, layout):
                found.append(layout)
                waiting.append((layout.placements, at + 1))
    return found


def timed(work, repeats):
    """What the work returns, and the least CPU seconds of some repeats."""
    best = math.inf
    for _ in range(repeats):
        enumeration._enumerate_layouts.cache_clear()
        enumeration._count_vectors.cache_clear()
        begin = time.process_time()
        found = work()
        best = min(best, time.process_time() - begin)
    return found, best


def main() -> None:
    """Print one line for each board, and the sums."""
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}\n")
    print(f"{'gpu_model':<24} {'layouts':>8} {'seconds':>8} {'search':>8} {'ratio':>6}")
    total = [0.0, 0.0]
    for name in mig_model_names():
        gpu_model = load_gpu_model(name)
        layouts, seconds = timed(lambda gpu_model=gpu_model: list_placed_layouts(gpu_model), REPEATS)
        theirs, search_seconds = timed(lambda gpu_model=gpu_model: plain_search(gpu_model), 1)
        assert {frozenset(layout.placements) for layout in theirs} == {
            frozenset(layout.placements) for layout in layouts
        }
        total = [total[0] + seconds, total[1] + search_seconds]
        ratio = search_seconds / seconds
        print(f"{name:<24} {len(layouts):>8} {seconds:>8.3f} {search_seconds:>8.3f} {ratio:>6.1f}")
    print(f"{'all':<24} {'':>8} {total[0]:>8.3f} {total[1]:>8.3f} {total[1] / total[0]:>6.1f}")


if __name__ == "__main__":
    main()
