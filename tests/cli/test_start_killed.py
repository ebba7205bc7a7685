"""A run of ``start`` that ends early leaves no page of other data beside its dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.cli.start_dialog import START_REPORT_MARK, withdraw_report
from gpuplanner.core.output_writing import replace_directory


@pytest.fixture
def earlier(tmp_path) -> Path:
    """Results of an earlier start: dataset, page, and a file of the user."""
    out = tmp_path / "out"
    with replace_directory(out, mark=START_REPORT_MARK) as folder:
        (folder / "index.html").write_text("of old data")
        (folder / "workbook.xlsx").write_text("of old data")
        (folder / "export").mkdir()
        (folder / "export" / "README.md").write_text("of old data")
    (out / "data").mkdir()
    (out / "data" / "jobs.parquet").write_text("old")
    (out / "notes.txt").write_text("mine")
    return out


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_new_data_leave_nothing_of_the_earlier_report(earlier):
    with withdraw_report(earlier):
        (earlier / "data" / "jobs.parquet").write_text("new")
    assert names(earlier) == {"data/jobs.parquet", "notes.txt"}
    with replace_directory(earlier, mark=START_REPORT_MARK) as folder:
        (folder / "index.html").write_text("of new data")
    assert names(earlier) == {"data/jobs.parquet", "notes.txt", "index.html", "manifest.json"}


def test_a_run_that_is_killed_leaves_no_page_beside_new_data(earlier):
    block = withdraw_report(earlier)
    block.__enter__()
    (earlier / "data" / "jobs.parquet").write_text("new")  # killed here
    assert not (earlier / "index.html").exists()
    with withdraw_report(earlier):  # the next run, which finds the data as they are
        pass
    assert not (earlier / "index.html").exists()


def test_data_that_stay_keep_their_page(earlier):
    before = names(earlier)
    with withdraw_report(earlier):
        pass
    with pytest.raises(ValueError, match="cannot be read"), withdraw_report(earlier):
        raise ValueError("cannot be read")
    assert names(earlier) == before
    assert (earlier / "index.html").read_text() == "of old data"


def test_a_failed_import_that_changed_data_leaves_no_page(earlier):
    block = withdraw_report(earlier)
    block.__enter__()
    (earlier / "data" / "jobs.parquet").write_text("new")
    failure = ValueError("disk")
    assert not block.__exit__(ValueError, failure, None)
    assert not (earlier / "index.html").exists()


def test_a_first_start_has_nothing_to_withdraw(tmp_path):
    with withdraw_report(tmp_path / "out"):
        pass
    assert not (tmp_path / "out").exists()
