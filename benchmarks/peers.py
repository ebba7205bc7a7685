"""Peers of the engine benchmark: the same jobs by SimPy and by AccaSim, first come first served on one pool."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import io
import json
import os
import tempfile
import time
from datetime import datetime
from pathlib import Path


def simpy_pool(jobs, gpus):
    """CPU seconds, and mean delay, of the loop that any Python user writes first: a process per job."""
    import simpy

    rows = jobs.select("submit_s", "run_s", "gpus").rows()
    environment = simpy.Environment()
    pool = simpy.Container(environment, capacity=gpus, init=gpus)
    delays = []

    def job(submit, run, size):
        yield environment.timeout(submit)
        yield pool.get(size)
        delays.append(environment.now - submit)
        yield environment.timeout(run)
        yield pool.put(size)

    begin = time.process_time()
    for row in rows:
        environment.process(job(*row))
    environment.run()
    return time.process_time() - begin, sum(delays) / len(delays)


def accasim_pool(jobs, gpus):
    """CPU seconds, and mean delay, of AccaSim with its FIFO dispatcher; it reads and writes files as it goes."""
    if not hasattr(collections, "Mapping"):
        collections.Mapping = collections.abc.Mapping  # AccaSim 1.1.3 imports what Python 3.10 took away
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    system = {
        "groups": {"pool": {"core": gpus, "mem": 1}},
        "resources": {"pool": 1},
        "start_time": 0,
        "equivalence": {"processor": {"core": 1}},
    }
    there = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        try:
            os.chdir(folder)
            Path("system.json").write_text(json.dumps(system))
            with Path("jobs.swf").open("w") as swf:
                for number, (submit, run, size) in enumerate(
                    jobs.select("submit_s", "run_s", "gpus").cast(int).iter_rows(), start=1
                ):
                    swf.write(f"{number} {submit} -1 {run} {size} -1 -1 {size} {run} -1 1 1 1 1 1 1 -1 -1\n")
            begin = time.process_time()
            simulator = Simulator(
                "jobs.swf",
                "system.json",
                FirstInFirstOut(FirstFit()),
                statistics_output=False,
                show_statistics=False,
                RESULTS_FOLDER_NAME="results",
            )
            with contextlib.redirect_stdout(io.StringIO()):
                written = simulator.start_simulation()
            seconds = time.process_time() - begin
            delays = [_delay(line) for line in Path(written["sched-"]).read_text().splitlines()]
        finally:
            os.chdir(there)
    return seconds, sum(delays) / len(delays)


def _delay(line):
    """Seconds between submission and start in a line ``id;user;queued__nodes__start;end;...``."""
    head, _, tail = line.split("__")
    queued, start = head.split(";")[-1], tail.split(";")[0]
    return (datetime.fromisoformat(start) - datetime.fromisoformat(queued)).total_seconds()
