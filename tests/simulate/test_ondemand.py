"""Hand-worked cases of GPUs that are cut on demand. Through the driver an instance takes 2 s."""

from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Fleet, OnDemand, Rules, simulate
from tests.simulate.unservable import unservable

BOARD = "H100-80GB-SXM5"
DRIVER = ("nvml", {"instance_s": 2.0})
OPERATOR = ("operator", {"instance_s": 1.0})
DAY_S = 86_400.0


def serve(jobs, policy=OnDemand(), change=DRIVER, nodes=1, per_node=1, board=BOARD, **options):  # noqa: B008
    path, stated = change
    cost = ChangeCost.of(board, path, **stated)
    rules = Rules("strict", substitute=options.pop("substitute", False), change=cost)
    return simulate(jobs, Fleet(board, nodes, per_node), policy, rules, policy="p", **options)


def places(run, gpu=0):
    """What is where on a GPU, from when on."""
    mine = run.states.filter(gpu=gpu)
    return mine.select("start_s", "state", pl.col("placements")).rows()


def test_an_instance_is_made_in_free_slices_while_others_run(jobs_of, starts):
    jobs = jobs_of(("a", 0, 100, 1, "3g.40gb"), ("b", 10, 50, 1, "2g.20gb"))
    run = serve(jobs)
    assert starts(run) == {"a": 2, "b": 12}
    assert places(run) == [
        (0, "reconfiguring", "3g.40gb@4"),
        (2, "on", "3g.40gb@4"),
        (10, "changing", "3g.40gb@4"),
        (12, "on", "2g.20gb@0 3g.40gb@4"),
    ]


def test_idle_instances_make_way_and_busy_ones_stay(jobs_of, starts):
    # All seven slices are cut. At 50 those at 0 to 3 are idle; 5 and 6 are in use until 1000.
    ends = [10, 10, 10, 10, 1000, 1000, 1000]
    jobs = jobs_of(
        *[(f"s{k}", 0, end, 1, "1g.10gb") for k, end in enumerate(ends)], ("b", 50, 10, 1, "4g.40gb")
    )
    run = serve(jobs, OnDemand({"1g.10gb:7": 1}))
    assert starts(run)["b"] == 50 + 5 * 2.0  # four removed, one made
    assert places(run)[1:] == [
        (50, "changing", "1g.10gb@4 1g.10gb@5 1g.10gb@6"),
        (60, "on", "4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6"),
    ]


def test_what_is_busy_is_in_the_way_until_it_ends(jobs_of, starts):
    jobs = jobs_of(("a", 0, 100, 1, "3g.40gb"), ("b", 0, 300, 1, "1g.10gb"), ("c", 10, 5, 1, "7g.80gb"))
    run = serve(jobs)
    assert starts(run) == {"a": 2, "b": 4, "c": 304 + 3 * 2}


def test_the_least_disturbed_gpu_is_cut(jobs_of):
    # GPU 1 has free slices; on GPU 0 an idle instance would have to go; GPU 2 is whole.
    jobs = jobs_of(("a", 0, 1, 1, "1g.10gb"), ("b", 100, 1, 1, "3g.40gb"))
    run = serve(jobs, OnDemand({"7g.80gb:1": 1, "1g.10gb:1": 1}), per_node=3)
    assert run.outcomes["gpu"].to_list() == [2, 2]
    jobs = jobs_of(("b", 100, 1, 1, "3g.40gb"))
    assert serve(jobs, OnDemand({"7g.80gb:1": 1}), per_node=2).outcomes["gpu"].to_list() == [1]


def test_then_the_least_fragmented(jobs_of):
    # Both GPUs have room for 1g; on GPU 1 what is left beside 3g@4 and 2g@0 is of no use to 3g anyway.
    jobs = jobs_of(
        ("a", 0, 900, 1, "3g.40gb"),
        ("b", 0, 900, 1, "3g.40gb"),
        ("c", 1, 900, 1, "2g.20gb"),
        ("d", 50, 1, 1, "1g.10gb"),
    )
    run = serve(jobs, OnDemand({"3g.40gb:1": 1, "3g.40gb:1,2g.20gb:1": 1}), per_node=2)
    assert run.outcomes["gpu"].to_list() == [0, 1, 1, 1]


def test_through_the_operator_an_idle_gpu_is_cut_for_all_who_wait_and_full(jobs_of, starts):
    jobs = jobs_of(("a", 0, 10, 1, "3g.40gb"), ("b", 0, 500, 1, "2g.20gb"), ("c", 100, 10, 1, "1g.10gb"))
    run = serve(jobs, change=OPERATOR)
    # Three instances are made in one change: for the first, for the job behind it, and the largest that then fits.
    # For the last job the GPU is cut anew when it is idle, at 563: three removed, seven made.
    assert [row[2] for row in places(run)[::2]] == [
        "2g.20gb@0 2g.20gb@2 3g.40gb@4",
        " ".join(f"1g.10gb@{start}" for start in range(7)),
    ]
    assert starts(run) == {"a": 63, "b": 63, "c": 633}


def test_through_the_operator_a_gpu_in_use_is_not_cut(jobs_of, starts):
    jobs = jobs_of(("a", 0, 1000, 1, "1g.10gb"), ("b", 10, 10, 1, "7g.80gb"))
    run = serve(jobs, OnDemand({"1g.10gb:1": 1}), change=OPERATOR)
    assert starts(run)["b"] == 1000 + 60 + 2


def test_whole_gpus_are_gathered_on_the_node_where_the_fewest_are_missing(jobs_of):
    # Node 0 has one cut GPU in use, node 1 two that are idle: these two are made whole.
    start = OnDemand({"1g.10gb:7": 3})
    jobs = jobs_of(("a", 0, 500, 1, "1g.10gb"), ("w", 10, 10, 2, "gpu"))
    run = serve(jobs, start, nodes=2, per_node=2)
    gang = run.outcomes.filter(job_id="w")
    assert gang.select("first_start", "node").rows() == [(10 + 7 * 2.0, 1)]


def test_whole_gpus_wait_where_they_can_and_are_not_cut_meanwhile(jobs_of, starts):
    # GPU 0 is whole and idle; the gang waits for GPU 1 until 502. The slice job must not take GPU 0.
    jobs = jobs_of(("a", 0, 500, 1, "7g.80gb"), ("w", 10, 10, 2, "gpu"), ("s", 700, 10, 1, "1g.10gb"))
    run = serve(jobs, OnDemand({"7g.80gb:1": 1}), per_node=2)
    assert starts(run) == {"a": 0, "w": 502, "s": 702}


WALK = """
import numpy as np, polars as pl
from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Fleet, OnDemand, Rules, simulate
rng = np.random.default_rng(7)
n = 90
profile = rng.choice(["gpu", "7g.80gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb"], n)
jobs = pl.DataFrame({
    "job_id": np.arange(n).astype(str), "tenant": "t", "submit_s": np.cumsum(rng.random(n) * 20),
    "run_s": rng.integers(0, 400, n).astype(float), "profile": profile,
    "gpus": np.where(profile == "gpu", rng.integers(1, 5, n), 1)}).with_columns(limit_s=pl.col("run_s") * 2)
phases = jobs.head(30).select("job_id", "profile", "run_s", "gpus", "limit_s")
small = phases.with_columns(profile=pl.lit("1g.10gb"), gpus=pl.lit(1, pl.Int64))
phases = pl.concat([phases, small, phases]).sort("job_id", maintain_order=True)
for path, board in (("nvml", "H100-80GB-SXM5"), ("operator", "A100-80GB")):
    policy = OnDemand({"7g.80gb:1": 2}, drain_after_s=50.0, switches_per_day=30, keep_whole=1)
    rules = Rules(change=ChangeCost.of(board, path))
    run = simulate(jobs, Fleet(board, 3, 2), policy, rules, policy="p", phases=phases)
    print(run.outcomes.hash_rows().implode().hash().item(), run.states.hash_rows().implode().hash().item())
"""


def python(code, **environment):
    """What a fresh interpreter prints."""
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=True
    ).stdout


def test_compiled_and_interpreted_code_agree():
    # Without the compiler every index is checked, and integers do not wrap.
    assert python(WALK, NUMBA_DISABLE_JIT="1") == python(WALK)


class TestPatience:
    def test_a_gpu_is_cut_only_after_the_head_has_waited(self, jobs_of, starts):
        jobs = jobs_of(("a", 5, 100, 1, "1g.10gb"))
        assert starts(serve(jobs, OnDemand(patience_s=30.0))) == {"a": 37}

    def test_and_not_at_all_if_it_is_served_before(self, jobs_of):
        jobs = jobs_of(("a", 0, 20, 1, "3g.40gb"), ("b", 5, 10, 1, "3g.40gb"))
        run = serve(jobs, OnDemand({"3g.40gb:1": 1}, patience_s=30.0))
        assert run.outcomes["first_start"].to_list() == [0, 20]
        assert run.states["state"].to_list() == ["on"]


class TestSwitches:
    def test_a_gpu_at_its_limit_waits_for_the_next_day(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 10, 1, "3g.40gb"), ("b", 100, 10, 1, "7g.80gb"))
        assert starts(serve(jobs, OnDemand(switches_per_day=1)))["b"] == DAY_S + 4
        assert starts(serve(jobs, OnDemand(switches_per_day=2)))["b"] == 104

    def test_all_that_begins_in_one_instant_is_one_switch(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 10, 1, "3g.40gb"), ("b", 0, 10, 1, "3g.40gb"))
        assert starts(serve(jobs, OnDemand(switches_per_day=1))) == {"a": 2, "b": 4}

    def test_without_any_the_start_is_all_there_is(self, jobs_of):
        jobs = jobs_of(("a", 0, 10, 1, "3g.40gb"), ("b", 0, 10, 1, "2g.20gb"))
        policy, fleet = OnDemand({"3g.40gb:2": 1}, switches_per_day=0), Fleet(BOARD, 1, 1)
        rules = Rules("strict", substitute=False)
        assert unservable(jobs, fleet, policy, rules)["job_id"].to_list() == ["b"]
        with pytest.raises(ScenarioError, match="'b: no slot"):
            simulate(jobs, fleet, policy, rules, policy="p")


class TestDrain:
    def test_slices_are_drained_for_a_job_that_has_waited_long(self, jobs_of, starts):
        # Small jobs come and go; without a drain one of them is always in the way of the large one.
        small = [(f"s{k}", 40 * k, 100, 1, "1g.10gb") for k in range(60)]
        jobs = jobs_of(*small, ("large", 50, 10, 1, "7g.80gb"))
        policy = OnDemand({"1g.10gb:7": 1})
        never = serve(jobs, OnDemand({"1g.10gb:7": 1}, drain_after_s=None))
        assert starts(never)["large"] > 2400
        soon = serve(jobs, OnDemand({"1g.10gb:7": 1}, drain_after_s=100.0))
        assert "draining" in soon.states["state"]
        # Drained from 150 on; the last to have started, at 120, ends at 220; seven removed, one made.
        assert starts(soon)["large"] == 220 + 8 * 2
        assert policy.drain_after_s == 3600.0

    def test_only_the_slices_it_needs(self, jobs_of, starts):
        halves = [(f"{side}{k}", 100 * k, 100, 1, "3g.40gb") for side in "ab" for k in range(5)]
        run = serve(
            jobs_of(*halves, ("c", 10, 50, 1, "4g.40gb")), OnDemand({"3g.40gb:2": 1}, drain_after_s=20.0)
        )
        assert starts(run)["c"] == 104
        assert starts(run)["a1"] == 100  # on the other half of the GPU

    def test_a_whole_gpu_in_use_is_claimed(self, jobs_of, starts):
        gangs = [(f"w{k}", 20 * k, 100, 1, "gpu") for k in range(5)]
        jobs = jobs_of(*gangs, ("s", 10, 10, 1, "1g.10gb"))
        assert starts(serve(jobs, OnDemand(drain_after_s=None)))["s"] == 502
        assert starts(serve(jobs, OnDemand(drain_after_s=150.0)))["s"] == 202

    def test_a_node_is_drained_for_whole_gpus(self, jobs_of, starts):
        small = [(f"s{k}", 40 * k, 100, 1, "1g.10gb") for k in range(60)]
        jobs = jobs_of(*small, ("w", 50, 10, 1, "gpu"))
        assert starts(serve(jobs, OnDemand({"1g.10gb:7": 1}, drain_after_s=None)))["w"] > 2400
        assert starts(serve(jobs, OnDemand({"1g.10gb:7": 1}, drain_after_s=100.0)))["w"] == 220 + 7 * 2

    def test_a_gpu_that_may_not_be_cut_is_not_claimed(self, jobs_of, starts):
        # ``b`` has waited long when ``w`` gives the whole GPU back.
        jobs = jobs_of(
            ("w", 0, 200, 1, "gpu"),
            ("v", 0, 10, 1, "gpu"),
            ("a", 0, 300, 1, "3g.40gb"),
            ("b", 0, 10, 1, "3g.40gb"),
        )
        policy = OnDemand({"3g.40gb:1,2g.20gb:1,1g.10gb:1": 1}, drain_after_s=100.0, switches_per_day=0)
        assert starts(serve(jobs, policy, per_node=2)) == {"w": 0, "v": 200, "a": 0, "b": 300}

    def test_a_gpu_claimed_in_vain_serves_others_at_once(self, jobs_of, starts):
        # GPU 1 is cut for ``a`` and may not be cut again; so at 110 ``b`` claims GPU 0. At 152 it follows ``a``.
        jobs = jobs_of(
            ("w", 0, 200, 1, "gpu"),
            ("a", 0, 150, 1, "3g.40gb"),
            ("b", 10, 1000, 1, "3g.40gb"),
            ("v", 20, 10, 1, "gpu"),
        )
        run = serve(jobs, OnDemand(drain_after_s=100.0, switches_per_day=1), per_node=2)
        assert starts(run) == {"w": 0, "a": 2, "b": 152, "v": 200}

    def test_changes_of_the_day_that_were_used_up_meanwhile(self, jobs_of, starts):
        # The lower half is drained for ``d`` from 100 to 300; the upper one is cut for ``e`` at 150.
        jobs = jobs_of(
            ("a", 0, 300, 1, "3g.40gb"),
            ("c", 0, 150, 1, "3g.40gb"),
            ("d", 0, 50, 1, "4g.40gb"),
            ("e", 120, 50, 1, "2g.20gb"),
        )
        policy = OnDemand({"3g.40gb:2": 1}, drain_after_s=100.0, switches_per_day=1)
        run = serve(jobs, policy)
        assert starts(run) == {"a": 0, "c": 0, "d": DAY_S + 4, "e": 154}
        more = serve(jobs, OnDemand({"3g.40gb:2": 1}, drain_after_s=100.0, switches_per_day=2))
        assert starts(more) == {"a": 0, "c": 0, "d": 304, "e": 154}


class TestReboot:
    def test_a_change_of_mode_takes_the_whole_node_where_the_board_needs_a_reboot(self, jobs_of):
        jobs = jobs_of(("s", 10, 10, 1, "1g.10gb"), ("w", 20, 10, 1, "gpu"))
        run = serve(jobs, change=DRIVER, per_node=2, board="A100-80GB")
        assert run.outcomes["first_start"].to_list() == [610, 610]
        assert run.states.filter(state="reconfiguring").select("gpu", "start_s", "end_s").rows() == [
            (0, 10, 610), (1, 10, 610)
        ]  # fmt: skip
        on_hopper = serve(jobs, change=DRIVER, per_node=2)
        assert on_hopper.outcomes["first_start"].to_list() == [12, 20]

    def test_it_waits_until_nothing_runs_on_the_node(self, jobs_of):
        jobs = jobs_of(("w", 0, 300, 1, "gpu"), ("s", 10, 10, 1, "1g.10gb"))
        run = serve(jobs, change=DRIVER, per_node=2, board="A100-80GB")
        assert run.outcomes["first_start"].to_list() == [0, 900]

    def test_one_reboot_serves_all_who_wait(self, jobs_of):
        jobs = jobs_of(("a", 0, 10, 1, "7g.80gb"), ("b", 0, 10, 1, "7g.80gb"))
        run = serve(jobs, change=DRIVER, per_node=2, board="A100-80GB")
        assert run.outcomes["first_start"].to_list() == [600, 600]

    def test_back_to_whole_is_a_change_of_mode_as_well(self, jobs_of):
        jobs = jobs_of(("s", 0, 10, 1, "7g.80gb"), ("w", 20, 10, 1, "gpu"))
        run = serve(jobs, OnDemand({"7g.80gb:1": 1}), DRIVER, board="A100-80GB")
        assert run.outcomes["first_start"].to_list() == [0, 620]


class TestDoors:
    @pytest.mark.parametrize(
        "values",
        [{"patience_s": -1.0}, {"drain_after_s": float("nan")}, {"switches_per_day": -1}, {"keep_whole": -1}],
    )
    def test_the_policy_checks_its_values(self, values):
        with pytest.raises(ScenarioError, match="not below 0"):
            OnDemand(**values)

    def test_more_cut_at_the_start_than_may_be_is_refused(self, jobs_of):
        with pytest.raises(ScenarioError, match="at most 1 cut GPUs"):
            serve(jobs_of(("a", 0, 1, 1, "gpu")), OnDemand({"3g.40gb:2": 2}, keep_whole=1), per_node=2)

    def test_jobs_that_can_never_fit_are_named(self, jobs_of):
        jobs = jobs_of(("large", 0, 1, 3, "gpu"), ("slice", 0, 1, 1, "1g.10gb"), ("fits", 0, 1, 2, "gpu"))
        policy, fleet = OnDemand(keep_whole=2), Fleet(BOARD, 1, 2)
        assert unservable(jobs, fleet, policy, Rules("strict"))["job_id"].to_list() == ["large", "slice"]
        with pytest.raises(ScenarioError, match="2 of 3 that can never start: 'large: needs 4 whole GPUs"):
            simulate(jobs, fleet, policy, Rules("strict"), policy="p")
        left = simulate(jobs, fleet, policy, Rules("strict"), policy="p", leave_unservable=True)
        assert left.outcomes["end"].to_list() == [None, None, 1.0]

    def test_engines_that_idle_instances_hold_are_freed(self, jobs_of, starts):
        # A30 has one set of media engines: the idle 1g+me has to go for 2g+me, wherever that is put.
        jobs = jobs_of(("a", 0, 500, 1, "1g.6gb"), ("b", 10, 10, 1, "2g.12gb+me"))
        run = serve(jobs, OnDemand({"1g.6gb+me:1,1g.6gb:3": 1}), DRIVER, board="A30-24GB")
        assert starts(run)["b"] < 30
        assert "1g.6gb+me" not in run.states["layout"][-1]

    def test_no_jobs_are_a_run_of_no_length(self, jobs_of):
        run = serve(jobs_of(("a", 0, 1, 1, "gpu")).clear(), per_node=2, until_s=10.0)
        assert run.states["end_s"].to_list() == [10.0, 10.0]
