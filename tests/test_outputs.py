"""What no output destroys: files of datasets, and files that gpuplanner did not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import OutputError
from gpuplanner.core.output_manifests_and_overwrite_checks import (
    allow_overwriting_within,
    is_own_file,
    note_path,
    record_written_file,
)
from gpuplanner.core.output_writing import replace_directory, write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.ingest.dataset_folder import DATASET_MARK
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.views_and_panels import View
from gpuplanner.notebook.what_if import whatif
from gpuplanner.report import html_page as page
from tests.usage.test_fleet import MIXED, TWO_BOARDS, made

OPTIONS = {
    "cost --focus": "csv", "cost --workbook": "xlsx", "forecast --backtest -o": "parquet",
    "forecast --paths": "parquet", "plan -o": "json", "describe --chart": "svg",
    "describe --hours": "parquet", "compare --chart": "html", "fairness --chart": "html",
}  # fmt: skip
"""Command and option that write one file from a dataset, and the ending of its name."""
BESIDE = {
    "size --table jobs.csv -o": "csv", "binpack items.csv -o": "csv", "notebook --export 04 -o": "html",
    "plan problem.json -o": "json", "plan --services s.csv --rates r.csv --latencies l.csv -o": "json",
}  # fmt: skip
"""The same for commands that read files of another kind."""
MINE = "a thesis"


def write(place: Path, text: str) -> Path:
    return write_atomically(place, lambda new: new.write_text(text))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(made(MIXED, TWO_BOARDS), tmp_path_factory.mktemp("kept") / "data")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_file_of_somebody_else_stays_until_it_is_said(tmp_path):
    place = tmp_path / "plan.json"
    place.write_text(MINE)
    with pytest.raises(OutputError, match=r"plan\.json: .*did not write.*--overwrite"):
        write(place, "plan")
    assert place.read_text() == MINE
    with allow_overwriting_within():
        write(place, "plan")
    write(place, "another plan")
    assert place.read_text() == "another plan"
    place.write_text("another plan, corrected by hand")
    with pytest.raises(OutputError, match="changed since"):
        write(place, "plan")
    place.write_text("")
    assert write(place, "plan").read_text() == "plan"


def test_a_run_that_is_killed_before_the_file_is_in_place_leaves_it_ours(tmp_path):
    place, new = write(tmp_path / "a.csv", "old"), tmp_path / "new"
    new.write_text("new")
    record_written_file(place, new)
    assert is_own_file(place)
    new.replace(place)
    assert is_own_file(place)
    note_path(place).write_text("no note of ours\n")
    assert not is_own_file(place)


@pytest.mark.parametrize("name", ["jobs.parquet", "provenance.json", "beside.csv", "sources/below.csv"])
def test_no_file_goes_into_a_dataset(dataset, name):
    before = contents(dataset)
    with allow_overwriting_within(), pytest.raises(OutputError, match="inside the dataset"):
        write(dataset / name, "x")
    with pytest.raises(OutputError, match="inside the dataset"), replace_directory(dataset / "out", mark=DATASET_MARK):
        pass
    assert contents(dataset) == before


@pytest.mark.parametrize("option", OPTIONS)
def test_no_command_destroys_a_file_of_its_dataset_or_of_somebody_else(command, dataset, tmp_path, option):
    before, (name, *flags), ending = contents(dataset), option.split(), OPTIONS[option]
    inside = dataset / f"jobs.{ending}"
    for more in ((), ("--overwrite",)):
        code, _, err = command(name, str(dataset), *flags, str(inside), *more)
        assert (code, "inside the dataset" in err) == (3, True), err
    assert contents(dataset) == before
    place = tmp_path / f"mine.{ending}"
    place.write_text(MINE)
    code, _, err = command(name, str(dataset), *flags, str(place))
    assert (code, str(place) in err, "--overwrite" in err) == (3, True, True), err
    assert place.read_text() == MINE
    assert "--overwrite" in command(name, "--help")[1]


@pytest.mark.parametrize("words", BESIDE)
def test_no_command_destroys_a_file_of_somebody_else(command, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.csv", "items.csv", "problem.json", "s.csv", "r.csv", "l.csv"):
        Path(name).touch()
    place = Path(f"mine.{BESIDE[words]}")
    place.write_text(MINE)
    code, _, err = command(*words.split(), str(place))
    assert (code, str(place) in err, "--overwrite" in err) == (3, True, True), err
    assert place.read_text() == MINE
    assert "--overwrite" in command(words.split()[0], "--help")[1]


def test_watch_keeps_to_names_that_are_free(command, dataset, tmp_path):
    (tmp_path / "watch.html").write_text(MINE)
    code, _, err = command("watch", str(dataset), "-o", str(tmp_path), "--once")
    assert (code, "watch.html" in err) == (3, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["watch.html"]
    assert (tmp_path / "watch.html").read_text() == MINE


def test_exports_of_a_notebook_stop_there_too(dataset, tmp_path):
    view = View(page.section("Jobs", page.note("None.")), made(MIXED, TWO_BOARDS).jobs)
    for ending in ("html", "csv", "parquet"):
        place = tmp_path / f"mine.{ending}"
        place.write_text(MINE)
        with pytest.raises(OutputError, match="overwrite=True"):
            view.export(place)
        assert place.read_text() == MINE
        assert view.export(place, overwrite=True).read_bytes() != MINE.encode()
        with pytest.raises(OutputError, match="inside the dataset"):
            view.export(dataset / f"jobs.{ending}", overwrite=True)
    panel = whatif(Scenario())
    (tmp_path / "mine.yaml").write_text(MINE)
    with pytest.raises(OutputError, match="overwrite=True"):
        panel.save(tmp_path / "mine.yaml")
    panel.save(tmp_path / "mine.yaml", overwrite=True)
