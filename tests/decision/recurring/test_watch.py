"""Looks at a small fleet: a pack where the plan pays, none where it does not, and what looking gains over a replay."""

from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from many_looks import many_looks

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.replanning import evaluate_fleet, replay_past
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.planner.layout_plan import plan_from_json
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.receding_horizon import roll, standing_plan, weigh
from tests.decision.recurring.small_fleets import SmallFleet
from tests.planner.conftest import make_problem

QUICK = ("--set", "horizon_intervals=24", "--set", "work_limit=40")


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """Eight GPUs of which three are wanted."""
    fleet = SmallFleet(2, weeks=4, nodes=1, load=0.3, sizes={1: 1.0})
    return str(fleet.write(tmp_path_factory.mktemp("idle") / "trace"))


def test_a_look_writes_a_pack_and_a_second_one_finds_nothing_new(idle, command, tmp_path):
    out = tmp_path / "watch"
    code, told, _ = command("watch", idle, "--once", "-o", str(out), *QUICK)
    assert code == 0
    assert "worth its changes" in told
    state = json.loads((out / "watch.json").read_text())
    assert (state["looks"], state["packs"], state["gpus"]) == (1, 1, 8)
    assert state["gain"] > 0
    found, problem = plan_from_json((out / "bundle/plan.json").read_text())
    assert problem.slot_start.isoformat() == "2026-02-02T02:00:00+00:00"  # two hours are frozen
    assert found.counts.sum() < 8 * problem.n_slots
    assert (out / "bundle/steps.csv").read_text().startswith("step,node,gpu,action")
    assert "gpuplanner_watch_packs_total 1\n" in (out / "watch.prom").read_text()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert command("watch", idle, "--once", "-o", str(out), *QUICK)[0] == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_full_fleet_gets_no_pack(command, tmp_path):
    full = SmallFleet(2, weeks=4, nodes=1, load=2.0, sizes={1: 1.0}).write(tmp_path / "trace")
    code, told, _ = command("watch", str(full), "--once", "-o", str(tmp_path / "watch"), *QUICK)
    assert code == 0
    assert "the fleet stays as it is" in told
    assert not (tmp_path / "watch/pack").exists()


def test_time_that_goes_back_is_refused_and_the_state_stays(command, tmp_path):
    later, earlier = (SmallFleet(2, weeks=weeks, nodes=1, load=0.3, sizes={1: 1.0}) for weeks in (4, 3))
    folder, out = str(later.write(tmp_path / "trace")), tmp_path / "watch"
    assert command("watch", folder, "--once", "-o", str(out), *QUICK)[0] == 0
    earlier.write(tmp_path / "trace")
    code, _, said = command("watch", folder, "--once", "-o", str(out), *QUICK)
    assert code == 3
    assert "end of the data" in said
    state = json.loads((out / "watch.json").read_text())
    assert (state["looks"], state["failures"]) == (1, 1)


def test_a_replay_knows_nothing_later_and_orders_its_ways(idle):
    asked = Scenario(data=idle, horizon_intervals=24, work_limit=40)
    found = replay_past(asked, days=4, interval_slots=6)
    cost = {one.policy: one.cost for one in found.rows}
    assert found.looks == 16
    assert cost["hindsight"] <= min(cost.values()) + 1e-6
    assert cost["watch"] < cost["never"]
    assert {one.policy: round(one.gain + one.cost - cost["never"], 6) for one in found.rows} == dict.fromkeys(cost, 0.0)
    with pytest.raises(ScenarioError, match="30 days of recent past"):
        replay_past(asked, days=15, interval_slots=6)


def test_a_sure_look_is_as_sure_as_it_says(idle):
    asked = Scenario(data=idle, horizon_intervals=24, work_limit=40)
    assert evaluate_fleet(asked.but(watch_chance=0.5), 6).justified
    found = evaluate_fleet(asked, 6)
    assert found.verdict.low <= found.verdict.high
    assert found.justified == (found.verdict.gain > 0 and found.verdict.chance >= 0.85)


def test_who_accepts_nothing_stays_and_who_accepts_all_rolls():
    problem = make_problem([[[1, 2, 0, 3, 1, 1, 2, 0]]], ["gpu"], initial={"gpu": 2})
    rolled, taken = roll(problem, lambda at: problem.demand[:, :, at:], commit=2, horizon=4), []

    def all_of_them(at, part, standing, new):
        taken.append((at, part.n_slots, standing.counts.shape[0]))
        return True

    alike = roll(problem, lambda at: problem.demand[:, :, at:], commit=2, horizon=4, accept=all_of_them)
    assert alike.cost == pytest.approx(rolled.cost)
    assert taken == [(0, 4, 4), (2, 4, 4), (4, 4, 4), (6, 2, 2)]
    stays = roll(problem, lambda at: problem.demand[:, :, at:], commit=2, horizon=4, accept=lambda *_: False)
    assert stays.replans == 0
    assert (stays.counts.sum(axis=1) == 2).all()
    assert stays.layouts == ("gpu",)


def test_gains_are_differences_of_costs_path_by_path():
    problem = make_problem([[[1, 2, 0, 3]]], ["gpu"], initial={"gpu": 2})
    new = plan(problem)
    paths = np.random.default_rng(1).integers(0, 4, (20, len(problem.profiles), 4)).astype(float)
    same = weigh(problem, new, new, paths)
    assert (same.gain, same.chance, same.worth(0.5)) == (0.0, 0.0, False)
    there, back = (
        weigh(problem, standing_plan(new, problem), new, paths),
        weigh(problem, new, standing_plan(new, problem), paths),
    )
    assert there.gain == pytest.approx(-back.gain)
    assert there.low == pytest.approx(-back.high)


def test_what_can_still_be_done_at_the_next_look_is_no_reason_to_act_now():
    problem = make_problem([[[1, 2, 0, 3]]], ["gpu"], initial={"gpu": 2})
    new, stays = plan(problem), standing_plan(plan(problem), problem)
    paths = np.random.default_rng(1).integers(0, 4, (20, len(problem.profiles), 4)).astype(float)
    goes = [{"gpu": int(n)} for n in new.counts[:, new.layouts.index("gpu")]]
    for until in (1, 2, 3):
        waits = standing_plan(new, problem, [{"gpu": 2}] * until + goes[until:])
        told, whole = weigh(problem, stays, new, paths, decision_slot=until), weigh(problem, waits, new, paths)
        assert (told.gain, told.low, told.high) == pytest.approx((whole.gain, whole.low, whole.high))
    assert weigh(problem, stays, new, paths, decision_slot=4) == weigh(problem, stays, new, paths)


def test_rare_shortage_is_insured_although_most_paths_lose_by_it():
    problem = make_problem([[[3, 3]]], ["gpu"], initial={"gpu": 2})
    paths = np.full((100, 1, 2), 2.0)
    paths[:20] = 3.0
    told = weigh(problem, standing_plan(plan(problem), problem), plan(problem), paths, days=28)
    assert told.gain == pytest.approx(0.2 * 20 - 2)
    assert (told.low, told.high) == (-2.0, 18.0)
    few = weigh(problem, standing_plan(plan(problem), problem), plan(problem), paths, days=5)
    assert 0.5 < few.chance < told.chance < 1


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Eight GPUs for five weeks; in the last of them all nodes are down for an hour."""
    fleet = SmallFleet(5, weeks=5, nodes=1, load=0.35, sizes={1: 1.0}, fault_h=24 * 33 + 9)
    return str(fleet.write(tmp_path_factory.mktemp("faulty") / "trace"))


@pytest.mark.parametrize("days", [3, pytest.param(14, marks=pytest.mark.long)])
def test_days_with_an_hour_of_faults(faulty, days):
    asked, looks = Scenario(data=faulty, horizon_intervals=24, work_limit=20), []
    found = replay_past(asked, days=days, interval_slots=6, tell=lambda at, one, worth: looks.append((one, worth)))
    assert len(looks) == found.looks == 4 * days
    assert all(worth == (one.gain > 0 and one.chance >= 0.85) for one, worth in looks)
    assert sum(not worth for _, worth in looks) == found.refused > 0
    cost = {one.policy: one.cost for one in found.rows}
    assert cost["hindsight"] <= cost["watch"] < cost["never"]
    assert all(one.regret >= -1e-6 for one in found.rows)


def test_what_came_of_a_look_is_told_when_its_hours_are_over(command, tmp_path):
    out, folder = tmp_path / "watch", tmp_path / "trace"
    quick = ("--set", "horizon_intervals=6", "--set", "work_limit=20", "--once", "-o", str(out))
    for day in (20, 20.25, 20.5, 20.75):
        SmallFleet(2, weeks=4, nodes=1, load=0.3, sizes={1: 1.0}, days=day).write(folder)
        assert command("watch", str(folder), *quick)[0] == 0
    state = json.loads((out / "watch.json").read_text())
    told = [one["regret"] is not None for one in state["past"]]
    assert (state["looks"], state["evaluated"], told) == (4, 2, [True, True, False, False])
    known = [one for one in state["past"] if one["regret"] is not None]
    assert state["regret"] == pytest.approx(sum(one["regret"] for one in known))
    assert state["realised"] == pytest.approx(sum(one["realised"] for one in known if one["pack"]))
    assert all(one["regret"] >= 0 for one in known)
    assert {path.name for path in (out / "runs").iterdir()} == {
        f"{one['at'].replace(':', '')}.json" for one in state["past"] if one["regret"] is None
    }
    page = (out / "watch.html").read_text()
    assert '<meta http-equiv="refresh" content="60">' in page
    assert "regret against hindsight" in page
    assert f"gpuplanner_watch_regret_gpu_hours_total {state['regret']:.10g}\n" in (out / "watch.prom").read_text()


def test_a_look_killed_before_its_state_is_kept_is_looked_at_again(idle, command, tmp_path, monkeypatch):
    from gpuplanner.decision import replanning as watched

    asked = ("watch", idle, "--once", "-o", str(tmp_path / "killed"), *QUICK)
    write = watched.write_atomically

    def killed(path, make, **how):
        if path.name == watched.STATE_FILE:
            raise KeyboardInterrupt
        return write(path, make, **how)

    with monkeypatch.context() as during:
        during.setattr(watched, "write_atomically", killed)
        assert command(*asked)[0] != 0
    assert not (tmp_path / "killed" / watched.STATE_FILE).exists()
    assert command(*asked)[0] == 0
    assert command(*asked[:3], "-o", str(tmp_path / "whole"), *QUICK)[0] == 0
    one, other = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("killed", "whole")
    )
    assert one == other


def test_a_prometheus_that_is_away_is_counted_and_the_look_goes_on(idle, command, tmp_path):
    out = tmp_path / "watch"
    code, _, said = command("watch", idle, "--once", "-o", str(out), "--prometheus", "http://127.0.0.1:9", *QUICK)
    assert code == 3
    assert "Prometheus at '127.0.0.1:9'" in said
    state = json.loads((out / "watch.json").read_text())
    assert (state["looks"], state["failures"]) == (1, 1)


@pytest.mark.long
def test_memory_stays_flat_over_looks(tmp_path):
    held = many_looks(120, tmp_path)
    assert max(held[60:]) < 1.05 * held[20]


class GrowingJob(SmallFleet):
    """One job that still runs at the end asked for an eighth of a board, for half a day."""

    def jobs(self):
        frame = super().jobs()
        mine = pl.col("job_id") == frame.filter(pl.col("state") == "RUNNING")["job_id"][0]
        return frame.with_columns(
            profile_requested=pl.when(mine).then(pl.lit("1g.10gb")).otherwise("profile_requested"),
            instances=pl.when(mine).then(1).otherwise("instances").cast(pl.Int32),
            gpus=pl.when(mine).then(1 / 7).otherwise("gpus"),
            gpus_by_memory=pl.when(mine).then(1 / 8).otherwise("gpus_by_memory"),
            time_limit_s=pl.when(mine).then(43_200.0).otherwise("time_limit_s"),
        )


def test_a_running_job_that_outgrows_its_slice_is_told(command, tmp_path):
    fleet = GrowingJob(2, weeks=4, nodes=1, load=0.3, sizes={1: 1.0})
    folder, out, page = fleet.write(tmp_path / "trace"), tmp_path / "watch", tmp_path / "page.prom"
    job = open_dataset(folder).jobs.filter(pl.col("profile_requested") == "1g.10gb")["job_id"][0]
    lines = ["# TYPE DCGM_FI_DEV_FB_USED gauge"]
    for step in range(60):
        at = int((fleet.end - timedelta(minutes=10 * (60 - step))).timestamp() * 1000)
        used = 1024 * (4 + 0.08 * step)
        lines.append(f'DCGM_FI_DEV_FB_USED{{gpu="0",Hostname="n0",hpc_job="{job}"}} {used} {at}')
    page.write_text("\n".join(lines) + "\n")
    add_files("dcgm-exporter", [page], folder)
    assert command("watch", str(folder), "--once", "-o", str(out), *QUICK)[0] == 0
    [told] = json.loads((out / "watch.json").read_text())["jobs"]
    assert (told["job_id"], told["profile"], told["next_profile"]) == (job, "1g.10gb", "1g.20gb")
    assert told["restart_gpu_hours"] > 0
    assert "Jobs to move" in (out / "watch.html").read_text()
    assert "gpuplanner_watch_jobs_to_move 1\n" in (out / "watch.prom").read_text()
    alone = ("--set", "smallest_group=3")
    assert command("watch", str(folder), "--once", "-o", str(tmp_path / "other"), *QUICK, *alone)[0] == 0
    assert json.loads((tmp_path / "other" / "watch.json").read_text())["jobs"] == []
