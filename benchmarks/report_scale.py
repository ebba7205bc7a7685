"""Memory and CPU seconds of the report of a month of a long record: ``python benchmarks/report_scale.py``.

A synthetic year of 20 million jobs on 8,000 GPUs (``describe_scale.py``) is written, and its November reported
(``--jobs 2000000`` makes it shorter; the whole takes about 20 CPU minutes). The command is a process of its own, as a
user starts it; the notebook kernel that it starts is another. The largest memory of the command, of its kernel, and of
both at once is printed; the command ends with 1 if it takes more than ``--limit`` GiB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 1 << 30
LOOKS_PER_S = 10
"""Looks at the memory in use a second: peaks of whole tables last longer."""


def resident_gib(pid: int) -> float:
    """Memory of a process that is in use [GiB]; 0 once it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / GIB


def children_of(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have started."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(text) for text in tasks.read_text().split()]
        except OSError:
            continue
        found += [*own, *(grandchild for child in own for grandchild in children_of(child))]
    return found


def main() -> None:
    """Write the year, report a month of it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000_000)
    parser.add_argument("--limit", type=float, default=4.0, help="largest memory of the command [GiB]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import describe_scale as made; "
        make += f"made.write_year(made.Path({str(folder / 'data')!r}), {given.jobs}, 0, inventory=True, cut_share=0.0)"
        subprocess.run([sys.executable, "-c", make], check=True)
        (folder / "scenario.yaml").write_text("data: data\nmonth: 2025-11\n", "utf-8")
        environment = os.environ | {"GPUPLANNER_CACHE": str(folder / "cache")}
        command = [sys.executable, "-m", "gpuplanner", "report", str(folder / "scenario.yaml"), "-o", f"{folder}/out"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        largest = dict.fromkeys(("command", "kernel", "both"), 0.0)
        while process.poll() is None:
            own, kernel = resident_gib(process.pid), sum(map(resident_gib, children_of(process.pid)))
            for name, gib in (("command", own), ("kernel", kernel), ("both", own + kernel)):
                largest[name] = max(largest[name], gib)
            time.sleep(1 / LOOKS_PER_S)
        if process.returncode:
            raise SystemExit(f"report ended with {process.returncode}")
        used = os.times()
    gib = ", ".join(f"{name} {value:.2f} GiB" for name, value in largest.items())
    print(f"report of a month of {given.jobs:,} jobs: {gib}, {used.children_user + used.children_system:,.0f} CPU s")
    if largest["command"] > given.limit:
        raise SystemExit(f"more than {given.limit:g} GiB")


if __name__ == "__main__":
    main()
