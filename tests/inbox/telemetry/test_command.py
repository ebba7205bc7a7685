"""Telemetry through the command: one call per kind of file, the same seven facts as for jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.cli import main
from gpuplanner.errors import GpuPlannerWarning
from gpuplanner.inbox import open_dataset
from gpuplanner.inbox.sources import TELEMETRY

SOURCES = {source.name: source for source in TELEMETRY}

File = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]
"""Words of a command → exit code, stdout, stderr on one line."""

OPTIONS = {
    "origin": "--origin=2026-01-01T00:00:00Z",
    "tz": "--tz=UTC",
    "gpu": "--gpu=0",
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process."""

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gpuplanner", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, " ".join(err.replace("│", " ").split())

    return command


def test_ingest_reads_every_source(good, file: File, tmp_path: Path, run: Run):
    name, text, hints, rows = good
    out = tmp_path / "out"
    options = [OPTIONS[hint] for hint in hints]
    code, printed, _ = run("ingest", "auto", str(file(text)), *options, "-o", str(out), "--json")
    assert code == 0
    facts = json.loads(printed)
    assert (facts["source"], facts["rows_in"], facts["rows_kept"]) == (name, rows, rows)
    assert open_dataset(out).summary() == facts


def test_the_list_names_them(run: Run):
    code, printed, _ = run("ingest", "--list", "--json")
    assert code == 0
    assert {*SOURCES, "slurm"} <= set(json.loads(printed))


@pytest.mark.parametrize("source", ["nvidia-smi", "auto"])
def test_columns_interval_and_node(source: str, file: File, tmp_path: Path, run: Run):
    path = file("40 W, 12 %\n41 W, 13 %\n")
    words = [
        source,
        str(path),
        "--columns=power.draw,utilization.gpu",
        "--interval=2",
        "--node=n5",
        "--gpu=1",
    ]
    code, _, err = run("ingest", *words, OPTIONS["origin"], "-o", str(tmp_path / "out"))
    assert code == 0
    assert "warning: times made from a count: 2 row(s)" in err
    samples = open_dataset(tmp_path / "out").samples
    assert samples.select("node", "gpu", "power_w").rows() == [("n5", 1, 40.0), ("n5", 1, 41.0)]


def test_options_that_mean_nothing_are_warned_of(
    file: File, good_text: Callable[[str], str], tmp_path: Path, run: Run
):
    dmon = str(file(good_text("smi-dmon")))
    jobs = str(file("job_id,submission_time,duration,num_gpu\na,0,60,1\n", "c.csv"))
    for source, path, option in (("smi-dmon", dmon, f"--nodes={jobs}"), ("itp", jobs, "--gpu=0")):
        name = option.partition("=")[0].removeprefix("--")
        more = (OPTIONS["origin"],) if source == "smi-dmon" else ()
        with pytest.warns(GpuPlannerWarning, match=f"source '{source}': {name}: changes nothing here"):
            assert run("ingest", source, path, option, *more, "-o", str(tmp_path / source))[0] == 0


def test_a_file_like_nothing_names_the_sources(file: File, run: Run):
    code, _, err = run("ingest", "auto", str(file("40 W, 12 %\n")), "--interval=2", "--gpu=1")
    assert code == 3
    assert "expected the first lines of one of the sources philly, itp" in err
    assert "nvidia-smi without a header needs its columns too" in err
