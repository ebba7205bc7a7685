"""Numbered GPUs: every planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

HOUR = timedelta(hours=1)
Change = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture(scope="module", params=[None, {"3g.20gb:2": 1}], ids=["fresh", "initial"])
def problem(problem_of: Any, request: pytest.FixtureRequest) -> PlanProblem:
    demand = [[[4, 2, 4, 2], [0, 2, 1, 3]]]
    return problem_of(demand, ["3g.20gb", "gpu"], gpus=5, initial=request.param)


@pytest.fixture(scope="module")
def right(problem: PlanProblem) -> Plan:
    return plan(problem, gap_target=0)


@pytest.fixture(scope="module")
def frame(right: Plan, problem: PlanProblem) -> pl.DataFrame:
    made = assign(right, problem)
    assert made["changed"].any()
    return made


def edited(row: int, **values: pl.Expr) -> Change:
    """One row with other values, given as expressions."""

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        here = pl.int_range(pl.len()) == row % frame.height
        return frame.with_columns(
            pl.when(here).then(value).otherwise(pl.col(name)).alias(name) for name, value in values.items()
        )

    return change


PLANTED: dict[str, tuple[Change, str]] = {
    "row missing": (lambda f: f[1:], "layout plan"),
    "GPU missing": (lambda f: f.filter(~((pl.col("node") == "node0") & (pl.col("gpu") == 0))), "expected 5"),
    "GPU too many": (
        lambda f: pl.concat([f, f.filter(node="node2").with_columns(gpu=pl.lit(1, pl.Int32))]),
        "expected 5",
    ),
    "GPU beyond its node": (lambda f: f.with_columns(gpu=pl.col("gpu") + 3), "which has 2"),
    "row twice": (lambda f: pl.concat([f, f[:1]]), "two layouts at once"),
    "ranges overlap": (lambda f: f.with_columns(slot_end=pl.col("slot_end").max()), "two layouts at once"),
    "late begin": (lambda f: f.filter(pl.col("slot_start") > f["slot_start"].min()), "layout plan"),
    "gap at the start": (edited(0, slot_start=pl.col("slot_start") + HOUR), "layout plan"),
    "gap in the middle": (
        lambda f: f.with_columns(
            slot_end=pl.when(pl.col("slot_end") - pl.col("slot_start") > HOUR)
            .then(pl.col("slot_end") - HOUR)
            .otherwise(pl.col("slot_end"))
        ),
        "no layout",
    ),
    "gap at the end": (
        lambda f: f.filter(pl.col("slot_start") + HOUR < f["slot_end"].max()).with_columns(
            slot_end=pl.min_horizontal("slot_end", pl.lit(f["slot_end"].max() - HOUR))
        ),
        "no layout",
    ),
    "within a slot": (edited(0, slot_end=pl.col("slot_end") - HOUR / 2), "within an interval"),
    "beyond the horizon": (edited(-1, slot_end=pl.col("slot_end") + HOUR), "beyond the horizon"),
    "backwards": (
        lambda f: f.with_columns(slot_start=pl.col("slot_end"), slot_end=pl.col("slot_start")),
        "ends before it begins",
    ),
    "unknown layout": (edited(0, layout=pl.lit("1g.5gb:7")), "that the plan does not have"),
    "another layout": (lambda f: f.with_columns(pl.col("layout").replace({"gpu": "3g.20gb:2"})), "the plan has"),
    "off instead of on": (lambda f: f.with_columns(layout=pl.lit("off")), "the plan has"),
    "changes not marked": (lambda f: f.with_columns(changed=pl.lit(False)), "not marked as changed"),
    "all marked": (lambda f: f.with_columns(changed=pl.lit(True)), "marked as changed"),
    "column missing": (lambda f: f.drop("layout"), "'layout'"),
}  # fmt: skip


def test_a_right_table_has_no_faults(right: Plan, problem: PlanProblem, frame: pl.DataFrame) -> None:
    assert verify(right, problem, frame) == []
    assert verify(right, problem, frame.reverse()) == []


@pytest.mark.parametrize("kind", PLANTED)
def test_every_planted_fault_is_found(right: Plan, problem: PlanProblem, frame: pl.DataFrame, kind: str) -> None:
    change, words = PLANTED[kind]
    faults = verify(right, problem, change(frame))
    assert faults
    assert words in " ".join(faults)


def test_marks_in_the_first_slot_are_counted(right: Plan, problem: PlanProblem, frame: pl.DataFrame) -> None:
    first = (pl.col("slot_start") == frame["slot_start"].min()) & (pl.col("layout") == "3g.20gb:2")
    wrong = frame.with_columns(changed=pl.when(first).then(~pl.col("changed").first()).otherwise("changed"))
    faults = verify(right, problem, wrong)
    assert any("in the first interval" in fault for fault in faults)
