"""Tables say what the arrays hold."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from gpuplanner.errors import GeometryError
from gpuplanner.hardware import Placement, free_slices, parse_placements
from gpuplanner.hardware.enumerate import placement_table
from gpuplanner.planner import instance_prices, plan
from gpuplanner.planner.program.realised_cost import dearest_instances


def test_placements_are_those_of_the_board() -> None:
    table = placement_table("A100-40GB", ["4g.20gb:1,3g.20gb:1", "gpu", "1g.5gb:7"])
    assert table["layout"].unique(maintain_order=True).to_list() == ["4g.20gb:1,3g.20gb:1", "1g.5gb:7"]
    for layout, rows in table.group_by("layout"):
        text = " ".join(f"{p}@{start}" for p, start in rows.select("profile", "start").iter_rows())
        placed = parse_placements("A100-40GB", text)
        assert placed.text == layout[0]
        assert list(placed.placements) == [
            Placement(start, size, p)
            for p, start, size in rows.select("profile", "start", "size").iter_rows()
        ]
        assert len(free_slices("A100-40GB", placed)) == 8 - rows["size"].sum()


def test_impossible_layouts_are_refused_with_the_reason() -> None:
    with pytest.raises(GeometryError, match=r"layout '4g.20gb:2'"):
        placement_table("A100-40GB", ["4g.20gb:2"])


def test_dearest_instances_are_the_largest_prices(problem_of: Any) -> None:
    problem = problem_of([[[4, 9, 7], [0, 2, 2]]], ["1g.5gb", "3g.20gb"], gpus=1, gpus_per_node=1)
    found = plan(problem, gap_target=0)
    prices = instance_prices(found, problem)
    table = dearest_instances(found, problem, count=3)
    assert table["worth_gpu_hours"].to_list() == sorted(prices.ravel(), reverse=True)[:3]
    for profile, start, worth in table.iter_rows():
        place = problem.profiles.index(profile), problem.slot_times.index(start)
        assert prices[place] == worth > 0


def test_nothing_short_is_an_empty_table(problem_of: Any) -> None:
    problem = problem_of([[[1, 1]]], ["3g.20gb"])
    table = dearest_instances(plan(problem), problem)
    assert table.schema == {
        "profile": pl.String, "slot_start": pl.Datetime("us", "UTC"), "worth_gpu_hours": pl.Float64,
    }  # fmt: skip
    assert table.is_empty()
