"""Plans from a model and a deadline: what fits, what it takes, and why."""

import json

import pytest
from typer.testing import CliRunner

from gpuplanner.cli.app import app, register_commands
from gpuplanner.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.study.job_plans import Wish
from gpuplanner.study.size import sized, stack


@pytest.fixture(scope="module")
def found():
    return sized(Wish("llama-3.1-8b", "train", 8192, tokens=2e9, deadline_h=168))


def test_plans_fit_meet_the_deadline_and_are_ranked_by_cost(found):
    plans = found.plans
    assert len(plans) == 8
    assert all(plan.p_oom <= 0.05 and plan.hours <= 168 for plan in plans)
    assert all(plan.upper_gib <= plan.board_gib * 1.001 for plan in plans)
    costs = [plan.cost for plan in plans]
    assert costs == sorted(costs)
    assert all(plan.energy_kwh > 0 and plan.level == "tool unseen" for plan in plans)


def test_the_first_three_are_explained(found):
    for plan in found.plans[:3]:
        assert plan.why
        assert plan.next_smaller
        assert sum(plan.components.values()) == pytest.approx(plan.predicted_gib)
    assert stack(found.plans)["plan"].n_unique() == 3


def test_gpus_tokens_and_hours_hang_together(found):
    for plan in found.plans:
        assert plan.gpus == plan.job.tp * plan.job.pp * plan.job.dp
        assert plan.hours * 3600 * plan.tokens_per_s == pytest.approx(2e9)
        assert plan.hours_low < plan.hours < plan.hours_high


def test_a_tighter_deadline_never_costs_less_and_a_tool_that_was_seen_has_a_tighter_bound():
    boards = {"A100-80GB": 64}
    costs = [
        sized(Wish("llama-2-7b", "train", 2048, tokens=1e9, deadline_h=hours, boards=boards)).plans[0].cost
        for hours in (200, 20, 5)
    ]
    assert costs == sorted(costs)
    plain = sized(Wish("llama-2-7b", "lora", 2048, boards={"A100-80GB": 1})).plans[0]
    seen = sized(Wish("llama-2-7b", "lora", 2048, "litgpt", boards={"A100-80GB": 1})).plans[0]
    assert seen.level == "tool seen"
    assert seen.upper_gib / seen.predicted_gib < plain.upper_gib / plain.predicted_gib


def test_small_jobs_find_slices_and_pools_join_unlike_boards():
    small = sized(Wish("gpt2", "train", 512, tokens=1e8, boards={"H100-80GB-SXM5": 1}))
    assert any(plan.profile != "gpu" for plan in small.plans)
    pool = sized(
        Wish(
            "llama-3.1-8b",
            "train",
            4096,
            tokens=1e10,
            deadline_h=40,
            boards={"A100-80GB": 8, "H100-80GB-SXM5": 4},
        )
    )
    both = [plan for plan in pool.plans if "+" in plan.board]
    assert both
    assert both[0].request.count("#SBATCH --gres") == 2


def test_serving_meets_its_latency_and_asks_for_replicas():
    wish = Wish(
        "llama-3.1-70b",
        "serve",
        4096,
        tokens=1e9,
        deadline_h=24,
        latency_s=0.05,
        boards={"H100-80GB-SXM5": None},
    )
    plan = sized(wish).plans[0]
    assert plan.engine.step_s <= 0.05
    assert plan.engine.concurrency > 0
    assert plan.tokens_per_s * 86400 >= 1e9


def test_what_cannot_be_says_why():
    with pytest.raises(InfeasiblePlanError, match="p_oom"):
        sized(Wish("llama-3.1-405b", "train", 8192, boards={"A100-80GB": 1}))
    late = sized(Wish("llama-2-7b", "train", 2048, tokens=1e12, deadline_h=1, boards={"A100-80GB": 8}))
    assert "deadline" in late.note
    for wrong in (
        {"task": "fly"},
        {"task": "train", "tokens": -1.0},
        {"task": "train", "quantization": "nf4"},
    ):
        with pytest.raises(ScenarioError):
            Wish(**({"model": "gpt2", "seq": 512} | wrong))


def test_the_command_answers_with_plans_probability_cost_and_energy():
    register_commands()
    words = "size --model llama-3.1-8b --task train --seq 8192 --deadline 7d --tokens 2e9 --json"
    told = CliRunner().invoke(app, words.split())
    first = json.loads(told.stdout)["plans"][0]
    assert {"p_oom", "cost", "energy_kwh", "tokens_per_s_low", "launch", "request"} <= set(first)
    plain = CliRunner().invoke(app, ["size", "--model", "gpt2", "--seq", "512", "--gpus", "A100-80GB=2"])
    assert "next smaller" in plain.stdout
    assert CliRunner().invoke(app, ["size", "--model", "gpt2", "--deadline", "soon"]).exit_code == 2
