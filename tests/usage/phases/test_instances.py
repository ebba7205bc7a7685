"""A job on one instance of a board holds its share in phases and bottlenecks, not a whole GPU."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.usage.bottlenecks import classify_bottlenecks
from gpuplanner.usage.demand_by_phase_and_late_demand_test import phases_of_jobs


@pytest.mark.parametrize(("instances", "gpus", "held"), [(1, 1 / 7, 1 / 7), (None, 1.0, 1.0), (None, 0.5, 1.0)])
def test_the_share_of_the_accounting_counts_where_instances_are_known(training, instances, gpus, held):
    samples = training(0)
    first = samples.filter(pl.struct("node", "gpu") == pl.struct("node", "gpu").first())
    jobs = pl.DataFrame(
        {"job_id": ["1"], "job_class": ["pretraining"], "gpus": [gpus], "instances": [instances]},
        schema_overrides={"instances": pl.Int32},
    )
    assert set(phases_of_jobs(first, jobs)["gpus"]) == {held}
    assert classify_bottlenecks(first, "H100-80GB-SXM5", jobs=jobs)["gpus"].to_list() == [held]
