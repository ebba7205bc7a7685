"""Plan, numbered GPUs, files for operators and the simulator agree on what changes, and on what that costs."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
import yaml

from gpuplanner.export import to_change_scripts, to_mig_parted
from gpuplanner.export.states import checked_plan, node_states, states_at
from gpuplanner.hardware import parse_layout, reconfiguration_cost
from gpuplanner.planner import PlanProblem, assign, plan, verify
from gpuplanner.planner.steps import steps
from gpuplanner.simulate import Calendar, ChangeCost, Fleet, Rules, simulate

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
BOARDS = {
    "H100-80GB-SXM5": ["1g.10gb", "3g.40gb", "gpu"],
    "A100-80GB": ["1g.10gb", "3g.40gb", "gpu"],
    "A30": ["1g.6gb", "2g.12gb", "gpu"],
}


def tight(board: str, seed: int) -> PlanProblem:
    """Six GPUs, wanted whole and cut by turns, so that layouts have to change; all whole at first."""
    rng = np.random.default_rng(seed)
    demand = rng.integers(0, [[12], [4], [5]], size=(3, 12)) * 1.0
    return PlanProblem(
        board, 6, 3, MONDAY, 1, ["ads"], BOARDS[board], demand[None], initial={}, unmet_price=20.0,
        change_gpu_hours=0.05,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[(board, seed) for board in BOARDS for seed in range(3)], ids=str)
def case(request: pytest.FixtureRequest):
    problem = tight(*request.param)
    found = plan(problem, gap_target=0.01)
    layouts = assign(found, problem)
    assert verify(found, problem, layouts) == []
    assert found.changes >= 4
    return problem, found, layouts


def test_steps_are_as_many_as_the_plan_pays_for(case) -> None:
    problem, found, layouts = case
    done = steps(layouts, problem.board)
    assert done.height == found.changes
    assert done["mode"].is_not_null().sum() == found.mode_changes
    paid = problem.change_gpu_hours * done.height
    paid += problem.mode_gpu_hours * done["mode"].is_not_null().sum()
    slots = problem.on_price * found.gpu_hours_on + problem.unmet_price[0] * found.unmet_gpu_hours
    assert found.objective == pytest.approx(slots + paid)


def test_files_for_operators_lead_from_state_to_state_by_these_steps_alone(case) -> None:
    """Every config named by a script is applied as mig-parted does, to GPUs that are whole at first."""
    problem, found, layouts = case
    configs = yaml.safe_load(to_mig_parted(layouts, problem.board))["mig-configs"]
    has = {(node, gpu): {"gpu": 1} for node in problem.node_names for gpu in range(3)}
    changes = modes = 0
    seconds = 0.0
    for script in to_change_scripts(layouts, problem.board).values():
        for node, name in re.findall(r"^  change (\S+) (\S+) ", script, flags=re.MULTILINE):
            for entry in configs[name]:
                wanted = entry.get("mig-devices", {"gpu": 1})
                assert entry["mig-enabled"] == ("mig-devices" in entry)
                for gpu in entry["devices"]:
                    cost = reconfiguration_cost(problem.board, has[node, gpu], wanted, path="parted")
                    changes += cost.changes
                    modes += cost.mode_change
                    seconds += cost.seconds
                    has[node, gpu] = wanted
        noted = re.findall(r"^#   GPU \d+: (\S+) -> (\S+)$", script, flags=re.MULTILINE)
        assert all(before != after for before, after in noted)
    assert (changes, modes) == (found.changes, found.mode_changes)
    assert seconds == pytest.approx(steps(layouts, problem.board, path="parted")["seconds"].sum())


def test_the_simulator_makes_these_changes_alone(case) -> None:
    """Nobody comes. The first slot is there as the run begins, so that its changes are those of the plan alone."""
    problem, found, layouts = case
    starts = 3600.0 * np.arange(problem.n_slots)
    calendar = Calendar(starts, found.layouts, found.counts, found.held)
    change = ChangeCost(driver_s=0.0, operator_s=60.0, restart_s=0.0)
    fleet = Fleet(problem.board, 2, 3)
    nobody = pl.DataFrame(schema={
        "job_id": pl.String, "tenant": pl.String, "submit_s": pl.Float64, "run_s": pl.Float64, "gpus": pl.Int32,
        "profile": pl.String,
    })  # fmt: skip
    run = simulate(
        nobody, fleet, calendar, Rules(change=change), policy="plan", until_s=3600.0 * problem.n_slots
    )
    begun = run.states.filter(pl.col("state") == "reconfiguring", pl.col("start_s") > 0)
    done = steps(layouts, problem.board).filter(pl.col("slot_start") > problem.slot_times[0])
    took = begun.with_columns(seconds=pl.col("end_s") - pl.col("start_s"))
    # GPUs that only sit through a reboot come up with what they had.
    cut = took.filter(pl.col("seconds") != change.mode_of(problem.board))
    by_slot = cut.group_by(slot=(pl.col("start_s") / 3600).cast(pl.Int64)).len().sort("slot")
    planned = Counter(
        int((time - problem.slot_times[0]).total_seconds() // 3600) for time in done["slot_start"]
    )
    assert dict(by_slot.iter_rows()) == dict(sorted(planned.items()))
    # Changes of MIG mode take the reboot as well, and wait for what else changes on their node.
    modes = done["mode"].is_not_null().sum() if change.mode_of(problem.board) else 0
    assert (cut["seconds"] == 60.0).sum() == done.height - modes
    assert (cut["seconds"] >= 60.0 + change.mode_of(problem.board)).sum() == (modes or done.height)


def test_what_is_needed_is_there_in_every_slot_and_nothing_else_is_touched(case) -> None:
    problem, found, layouts = case
    frame = checked_plan(layouts, problem.board)
    for slot, time in enumerate(problem.slot_times[:-1]):
        had = {(n, g): text for n, state in states_at(frame, time).items() for g, text in state.gpus}
        needed = {(n, g): text for n, s in states_at(frame, time, of="layout").items() for g, text in s.gpus}
        on = Counter(text for text in needed.values() if text != "off")
        counts = dict(zip(found.layouts, found.counts[slot].tolist(), strict=True))
        assert on == +Counter(counts)
        assert all(text in ("off", had[gpu]) for gpu, text in needed.items())
        held = dict(zip(found.layouts, found.held[slot].tolist(), strict=True))
        assert {text: n for text, n in Counter(had.values()).items() if text != "gpu"} == {
            text: n for text, n in held.items() if n and text != "gpu"
        }
        assert all(parse_layout(text) for text in had.values())


def test_a_node_that_reboots_is_out_with_all_its_gpus() -> None:
    rows = [
        ("n1", 0, 0, 1, "gpu", False), ("n1", 0, 1, 2, "3g.40gb:2", True),
        ("n1", 1, 0, 1, "gpu", False), ("n1", 1, 1, 2, "7g.80gb:1", True),
        ("n1", 2, 0, 1, "3g.40gb:2", True), ("n1", 2, 1, 2, "7g.80gb:1", True),
        ("n1", 3, 0, 2, "off", False),
    ]  # fmt: skip
    hours = pl.datetime(2026, 11, 2, time_zone="UTC")
    frame = pl.DataFrame(rows, schema=["node", "gpu", "first", "last", "layout", "changed"], orient="row").select(
        "node", pl.col("gpu").cast(pl.Int32), "layout", "changed",
        slot_start=hours + pl.duration(hours="first"), slot_end=hours + pl.duration(hours="last"),
    )  # fmt: skip
    done = steps(frame, "A100-80GB")
    # At the start GPU 2 is cut, and the node of four is out for it; then two GPUs share another reboot, and the
    # change of GPU 2, which needs none, is made meanwhile.
    assert done.select("gpu", "scope", "gpu_seconds").rows() == [
        (2, "node", 2400.0), (0, "node", 1200.0), (1, "node", 1200.0), (2, "gpu", 0.0),
    ]  # fmt: skip
    assert steps(frame, "H100-80GB-SXM5")["gpu_seconds"].to_list() == [60.0] * 4
    assert node_states(checked_plan(frame, "A100-80GB"))["n1"][frame["slot_start"].min()].gpus[3] == (
        3,
        "gpu",
    )
