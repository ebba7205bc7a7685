"""What is loaded when, and what the compiled code depends on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from gpuplanner.core.errors import MissingDependencyError
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests


def python(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"} | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_rooms_does_not_load_numba():
    heavy = "{'numba', 'pandas', 'scipy', 'pulp'}"
    assert python(f"import sys, gpuplanner.simulator, gpuplanner.usage; print({heavy} & sys.modules.keys())") == "set()"


def test_without_numba_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gpuplanner.simulator.")]:
        if name.rpartition(".")[2] in (
            "event_loop",
            "node_placement",
            "node_autoscaling_and_dynamic_mig",
            "planned_layout_changes",
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingDependencyError, match=r"gpuplanner\[simulate\]"):
        simulate_requests(NodeRequests([0], [0], [1], [1], [0], [1], [1]), NodeFleet.of_full_gpus([1]))


WALK = """
import numpy as np
from gpuplanner.simulator.planned_layout_changes import LayoutChanges
from gpuplanner.simulator.simulation_inputs import NodeFleet
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
rng = np.random.default_rng(7)
n = 400
profile = rng.choice([0, 0, 1, 2], n)
run_s = rng.integers(0, 400, n).astype(float)
ready_s = np.cumsum(rng.random(n) * 20)
total = np.where(profile == 0, rng.integers(1, 7, n), 1)
asked = NodeRequests(ready_s, ready_s, run_s, run_s + rng.integers(0, 200, n), profile, total, -(-total // 4))
pools = [[4, 0, 0], [2, 2, 7], [0, 4, 14]]
fleet = NodeFleet(("gpu", "3g.40gb", "1g.10gb"), [4] * 5, [pools] * 5, [0, 0, 1, 2, 0], [1.0, 3 / 7, 1 / 7])
at = np.sort(rng.integers(0, 8000, 60)).astype(float)
changes = LayoutChanges(
    rng.integers(0, 5, 60), at, at - 400.0, at + 300.0, np.full(60, 30.0), rng.integers(0, 3, 60), rng.random(60) < 0.7,
    before_change=True)
found = simulate_requests(asked, fleet, changes=changes, larger=((), (), (1,)))
rows = found.allocations.rows()
print(hash((found.start_s.tobytes(), str(rows), str(found.changes.rows()), str(found.power_intervals.rows()))))
"""


@pytest.mark.long
def test_compiled_and_interpreted_code_agree():
    # Without the compiler every index is checked, and integers do not wrap.
    assert python(WALK, NUMBA_DISABLE_JIT="1") == python(WALK)


def test_where_nothing_can_be_kept_code_is_compiled_in_memory():
    from gpuplanner.core.libraries_plugins_and_workers import compile_event_loop_entry

    names = {}
    exec("def double(number):\n    return 2 * number", names)  # numba finds no folder for it
    assert compile_event_loop_entry(names["double"])(21) == 42


@pytest.mark.long
def test_machine_code_is_kept_and_read_back(tmp_path):
    first = python(WALK, NUMBA_CACHE_DIR=str(tmp_path))
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert len(kept) == 1
    stamp = kept[0].stat().st_mtime_ns
    assert python(WALK, NUMBA_CACHE_DIR=str(tmp_path)) == first
    assert sorted(tmp_path.rglob("*.nbc")) == kept
    assert kept[0].stat().st_mtime_ns == stamp


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "now", "then"),
    [
        ("planned_layout_changes.py", "status.now_s + change.change_s", "status.now_s + 2 * change.change_s"),
        ("event_loop.py", "= time_s, request\n    return size + 1", "= time_s + 1.0, request\n    return size + 1"),
    ],
)
def test_a_change_of_a_function_called_from_another_file_is_compiled_anew(root, tmp_path, file, now, then):
    copy = tmp_path / "gpuplanner"
    shutil.copytree(root / "gpuplanner", copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    before = python(WALK, **environment)
    called = copy / "simulator" / file
    source = called.read_text()
    called.write_text(source.replace(now, then))
    assert called.read_text() != source
    assert python(WALK, **environment) != before
    called.write_text(source)
    assert python(WALK, **environment) == before


CALLS = """
import sys
import gpuplanner.core.libraries_plugins_and_workers as compilers
calls = 0

def counted(function):
    def call(*arguments):
        global calls
        calls += 1
        return function(*arguments)
    return call

compilers.compile_not_inlined = counted
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
nodes, small = int(sys.argv[1]), 200
asked = [8] * nodes + [16] + [1] * small
ready_s = [0] * nodes + list(range(1, 2 + small))
run_s = [1000 + node for node in range(nodes)] + [10] * (1 + small)
requests = NodeRequests(ready_s, ready_s, run_s, run_s, [0] * len(asked), asked, [-(-total // 8) for total in asked])
assert simulate_requests(requests, NodeFleet.of_full_gpus([8] * nodes)).start_s[nodes] == 1001
print(calls)
"""


def test_a_pass_over_the_queue_calls_no_function_for_each_node():
    """Each call that is not inlined copies the state: 200 passes with a waiting head make few for each added node."""
    few, many = (int(python(CALLS, nodes, NUMBA_DISABLE_JIT="1")) for nodes in (10, 100))
    assert few > 1000
    assert many - few < 20 * (100 - 10)
