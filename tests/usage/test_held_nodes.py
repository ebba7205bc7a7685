"""GPUs of nodes that no list names, as jobs were seen to hold them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from gpuplanner.usage.current_nodes import observe_nodes
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger

DAY = datetime(2026, 3, 2, tzinfo=UTC)
NEXT = DAY + timedelta(days=1)


def held(*rows: tuple[float, str, str | None, int | None, str]) -> pl.DataFrame:
    """Jobs that ran all day: GPUs, model, profile, instances, node list."""
    table = pl.DataFrame(
        rows, ["gpus", "gpu_model", "profile_requested", "instances", "node_list"], orient="row"
    ).with_row_index("number")
    return table.select(
        pl.exclude("number"),
        job_id=pl.col("number").cast(pl.String),
        attempt=pl.lit(1),
        tenant=pl.lit("vision"),
        state=pl.lit("COMPLETED"),
        submit_time=pl.lit(DAY),
        start_time=pl.lit(DAY),
        end_time=pl.lit(NEXT),
    )


def test_instances_of_a_profile_that_the_model_lacks_count_by_their_share():
    jobs = held((32 / 7, "h100", "4g.40gb", 8, "n1"), (16 / 7, "h100", "2g.20gb", 8, "n2"))
    nodes = observe_nodes(jobs, DAY, NEXT)
    assert nodes["gpus"].to_list() == [5, 3]
    ledger = gpu_time_ledger(jobs, nodes, start=DAY, end=NEXT)
    assert abs(ledger["gpu_hours"].sum() - 8 * 24) < 1e-9


def test_nodes_on_which_two_models_were_held_are_one_pool():
    jobs = held(
        (4.0, "MI300X", None, None, "n1"), (2.0, "RTX-A6000", None, None, "n1"), (1.0, "RTX-A6000", None, None, "n1")
    )
    nodes = observe_nodes(jobs, DAY, NEXT)
    assert nodes.select("node", "gpus", "gpu_model").rows() == [("n1", 7, "MI300X|RTX-A6000")]
    ledger = gpu_time_ledger(jobs, nodes, start=DAY, end=NEXT)
    assert abs(ledger["gpu_hours"].sum() - 7 * 24) < 1e-9
