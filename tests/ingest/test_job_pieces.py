"""Jobs read piece by piece: the same rows, every row checked, and text as categories."""

from __future__ import annotations

import shutil

import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError, TraceFormatError
from gpuplanner.core.stage_cache_and_data_folders import sample_folder
from gpuplanner.ingest import chunked_tables as job_pieces
from gpuplanner.ingest.chunked_tables import read_jobs
from gpuplanner.ingest.dataset_folder import open_dataset

COLUMNS = ("job_id", "tenant", "submit_time", "end_time", "gpus", "node_list", "partition", "state")


@pytest.mark.parametrize("rows", [1000, 11_521, 100_000])
def test_pieces_are_the_whole_table(monkeypatch, rows):
    monkeypatch.setattr(job_pieces, "READ_CHUNK_ROWS", rows)
    whole = open_dataset(sample_folder()).jobs
    found = read_jobs(sample_folder() / "jobs.parquet", COLUMNS)
    assert found.columns == list(COLUMNS)
    assert found.schema["job_id"] == pl.String
    assert found.schema["tenant"] == found.schema["partition"] == pl.Categorical
    text = {name: pl.String for name, dtype in found.schema.items() if dtype == pl.Categorical}
    assert found.cast(text).equals(whole.select(COLUMNS))


def test_a_bad_row_in_a_later_piece_is_found_also_in_a_column_not_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(job_pieces, "READ_CHUNK_ROWS", 1000)
    jobs = open_dataset(sample_folder()).jobs.with_columns(
        attempt=pl.when(pl.int_range(pl.len()) == 5007).then(0).otherwise("attempt")
    )
    jobs.write_parquet(tmp_path / "jobs.parquet")
    with pytest.raises(SchemaError, match=r"from row 5000.*attempt below 1 in 1 row\(s\), first 7"):
        read_jobs(tmp_path / "jobs.parquet", ["tenant"])


def test_a_folder_gives_the_columns_asked_for_and_names_where_there_are_samples(tmp_path):
    found = open_dataset(sample_folder(), columns=["gpus"])
    assert found.jobs.columns == ["job_id", "gpus"]
    shutil.copytree(sample_folder(), tmp_path / "damaged")
    (tmp_path / "damaged" / "jobs.parquet").write_bytes(b"PAR1")
    with pytest.raises(TraceFormatError, match="a table written by this program"):
        open_dataset(tmp_path / "damaged", columns=["gpus"])
