"""Published job lists on which independent simulators agree; values as printed in reference_values.csv."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

pytestmark = pytest.mark.data


def reference(folder, name, placement):
    table = pl.read_csv(folder / "sim" / "reference_values.csv", infer_schema=False)
    return table.filter(
        pl.col("input") == name, pl.col("placement") == placement, pl.col("policy") == "fifo strict"
    ).row(0, named=True)


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("philly_2869ce", "nodes, consolidate"),
        ("syn10k", "nodes, consolidate"),
        ("syn100k", "nodes, consolidate"),
        ("syn10k", "pool"),
        ("syn100k", "pool"),
    ],
)
def test_fifo_strict_meets_the_reference_to_every_digit_shown(public_data, name, placement):
    expected = reference(public_data, name, placement)
    (source,) = (public_data / "sim").glob(f"{name}.csv*")
    jobs = pl.read_csv(source).select(
        pl.col("job_id").cast(pl.String),
        tenant=pl.lit("t"),
        submit_s=pl.col("submit_time").cast(pl.Float64),
        run_s=pl.col("duration").cast(pl.Float64),
        gpus=pl.col("num_gpus").cast(pl.Int32),
        profile=pl.lit("gpu"),
    )
    gpus = int(expected["gpus"])
    # A pool is one node that has all GPUs.
    per_node = int(expected["gpus_per_node"] or gpus)
    run = simulate(
        jobs,
        Fleet("H100-80GB-SXM5", gpus // per_node, per_node),
        Calendar.constant({"gpu": gpus}),
        Rules(queue="strict"),
        policy="fifo",
    )
    assert f"{run.outcomes['jct_s'].mean():.4f}" == expected["avg_jct_s"]
    assert f"{run.outcomes['wait_s'].mean():.4f}" == expected["avg_queueing_delay_s"]
    assert f"{run.outcomes['end'].max():.0f}" == expected["last_end_s"]
