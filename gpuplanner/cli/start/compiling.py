"""The command that compiles the loops of the simulator ahead of the first question: ``compile``."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from gpuplanner.cli.app import app, put, say

LOOPS = ("jobs on nodes", "causes of waiting")
"""What is compiled, each by a process of its own; alone or with teams, jobs on nodes share most of what they need."""


@app.command(hidden=True)
def compile() -> None:
    """Compile what plays jobs through fleets, once for this installation, so that no first answer waits for it."""
    workers = min(os.cpu_count() or 1, len(LOOPS))
    say(f"compiling: {', '.join(LOOPS)} ...")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        for done in as_completed([processes.submit(compiled, name) for name in LOOPS]):
            name, seconds = done.result()
            say(f"  {name}: {seconds:.1f} s")
    put("compiled; it is kept for as long as this version is installed")


def compiled(name: str) -> tuple[str, float]:
    """Play a job by one of the loops, and say how long that took."""
    import numpy as np

    from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests
    from gpuplanner.simulate.nodes.play import play
    from gpuplanner.simulate.nodes.shared_play import play_shared
    from gpuplanner.simulate.nodes.sharing import QuotaGroup, Sharing
    from gpuplanner.study.waits.causes import attribute_waits, find_fits
    from gpuplanner.study.waits.limits import observe_use
    from gpuplanner.study.waits.occupancy import close_gaps, observe_occupancy

    began = time.perf_counter()
    first, last, gpus, once = np.zeros(1), np.full(1, 9.0), np.full(1, 8), np.ones(1, np.int64)
    none = np.zeros(1, np.int64)
    one, node = NodeRequests(first, first, last, last, none, gpus, once), NodeFleet.whole([8])
    if name == LOOPS[0]:
        play(one, node)
        play_shared(one, node, Sharing(none, none, (QuotaGroup(8.0),)))
    else:
        seen = observe_occupancy(one, first, last, [[0]], node.capacity[:, 0, :])
        fits = find_fits(one, close_gaps(seen, 60.0), node.weights)
        attribute_waits(fits, first, last, last, 60.0, observe_use(none, last, first, last))
    return name, time.perf_counter() - began
