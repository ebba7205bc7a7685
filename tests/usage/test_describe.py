"""What describe says does not depend on how little of the jobs it reads."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage import dataset_description_and_data_quality as description
from gpuplanner.usage.dataset_description_and_data_quality import describe
from gpuplanner.usage.planning_history import load_dataset


def as_told(found):
    """Tables as text and numbers, in the order in which they are shown."""
    return {"facts": found.all_facts} | {name: part.rows(named=True) for name, part in found.tables.items()}


def cut_without_inventory(folder):
    """The sample with every third small job on an instance, and nobody to say what is installed."""
    sample = load_dataset("sample")
    small = (pl.col("gpus") == 1) & (pl.int_range(pl.len()) % 3 == 0)
    jobs = sample.jobs.with_columns(
        gpus=pl.when(small).then(3 / 7).otherwise("gpus"),
        gpus_by_memory=pl.when(small).then(0.5).otherwise("gpus_by_memory"),
        instances=pl.when(small).then(1).otherwise("instances").cast(sample.jobs.schema["instances"]),
        profile_requested=pl.when(small).then(pl.lit("3g.40gb")).otherwise("profile_requested"),
        gpu_model=pl.lit("H100-80GB-SXM5"),
    )
    write_dataset(sample.with_tables(jobs=jobs, inventory=None, samples=None, coverage=None), folder)
    return str(folder)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("smallest_group", [0, 40])
def test_the_columns_that_are_read_are_all_that_is_looked_at(monkeypatch, tmp_path, cut, smallest_group):
    folder = cut_without_inventory(tmp_path / "cut") if cut else "sample"
    some = as_told(describe(folder, smallest_group=smallest_group, nodes=True))
    monkeypatch.setattr(description, "open_long_dataset", load_dataset)
    whole = as_told(describe(folder, smallest_group=smallest_group, nodes=True))
    sums = ("installed_gpu_hours", "unused_share")
    assert some["facts"] == whole["facts"] | {name: pytest.approx(whole["facts"][name]) for name in sums}
    assert some.keys() == whole.keys()
    for name in some.keys() - {"facts", "quality"}:
        assert len(some[name]) == len(whole[name]) > 0
        for one, other in zip(some[name], whole[name], strict=True):
            assert one == {
                key: pytest.approx(value) if isinstance(value, float) else value for key, value in other.items()
            }
