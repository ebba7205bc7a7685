"""The index of changes: what each destroys, what it names besides, and how long it waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report.change_bundle_parts import change_index, to_index_text
from gpuplanner.report.layout_schedule_files import make_calendar_bundle
from gpuplanner.report.mig_manager_files import to_change_scripts
from gpuplanner.report.slurm_files import to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain

BOARD = "H100-80GB-SXM5"
START = datetime(2026, 11, 2, tzinfo=UTC)


def test_instances_that_were_there_before_the_plan_are_counted_and_nothing_is_hidden() -> None:
    """Two GPUs of seven instances each are cut anew: fourteen go. The third is named by the file, too."""
    demand = np.array([[[1.0, 1.0], [8.0, 8.0]]])
    problem = PlanProblem(
        BOARD, 3, 3, START, 1.0, ["t"], ["gpu", "1g.20gb"], demand,
        initial={"gpu": 1, "1g.10gb:7": 2}, nodes=["n1"],
    )  # fmt: skip
    files = make_calendar_bundle(plan(problem, gap_target=0), problem).files
    (row,) = pl.read_csv(files["changes.csv"].encode()).iter_rows(named=True)
    assert (row["before"], row["after"]) == ("1=1g.10gb:7 2=1g.10gb:7", "1=1g.20gb:4 2=1g.20gb:4")
    assert (row["instances_removed"], row["untouched"]) == (14, "0=gpu")
    assert "| 1,2: 1g.10gb:7 → 1,2: 1g.20gb:4 | 0: gpu | 14 | 8 |" in files["changes.md"]
    for folder in ("mig-manager", "slurm"):
        script = files[f"{folder}/change-20261102T000000Z.sh"]
        assert "#   14 instances deleted, 8 created;" in script


@pytest.fixture
def turns(make_plan: Callable[..., pl.DataFrame]) -> pl.DataFrame:
    """One GPU that is cut anew after eight hours, and again half an hour later."""
    rows = make_plan([("n1", 0, 0, 8, "gpu", True), ("n1", 0, 8, 9, "1g.10gb:7", True)])
    half = rows[1:].with_columns(slot_end=pl.col("slot_end") - timedelta(minutes=30))
    last = rows[1:].with_columns(slot_start=half["slot_end"], layout=pl.lit("3g.40gb:2"))
    return pl.concat([rows[:1], half, last])


@pytest.mark.parametrize("limit_s", [None, 600.0, 7200.0])
def test_index_and_scripts_wait_equally_long(turns: pl.DataFrame, limit_s: float | None) -> None:
    """Until the limit, or the next change of the node; and both say the same of the end."""
    drain = Drain(limit_s=limit_s)
    index = change_index(turns, BOARD, drain=drain)
    kube = to_change_scripts(turns, BOARD, drain=drain)
    slurm = to_slurm_files(turns, BOARD, drain=drain)
    for row in index.iter_rows(named=True):
        for scripts in (kube, slurm):
            waits = int(re.search(r"TIMEOUT_S:-(\d+)", scripts[f"{row['change']}.sh"])[1])  # type: ignore[index]
            if row["give_up_at"] is None:
                assert waits == 2**31
            else:
                assert row["give_up_at"] - row["planned"] == timedelta(seconds=waits)
    shortest = index.filter(pl.col("planned") == START + timedelta(hours=8))["give_up_at"][0]
    expected = 1800 if limit_s is None else min(limit_s, 1800.0)
    assert shortest == START + timedelta(hours=8, seconds=expected)
    assert "mig-manager: Nodes that one command changes do so in parallel. A node" in to_index_text(
        index, BOARD, ChangeCost.from_catalogue(BOARD)
    )


def test_what_is_not_known_is_not_counted_as_none(turns: pl.DataFrame) -> None:
    index = change_index(turns, BOARD)
    assert index["instances_removed"].to_list() == [None, 1, 7]
    text = to_index_text(index, BOARD, ChangeCost.from_catalogue(BOARD))
    assert "| not known |" in text
