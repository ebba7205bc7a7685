"""Telemetry through the command: options that tell what the file does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.cli.application import main
from gpuplanner.ingest.dataset_folder import open_dataset

File = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]
"""Words of a command → exit code, stdout, stderr on one line."""


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


@pytest.mark.parametrize("source", ["nvidia-smi", "auto"])
def test_columns_interval_and_node(source: str, file: File, tmp_path: Path, run: Run):
    path = file("40 W, 12 %\n41 W, 13 %\n")
    words = [source, str(path), "--columns=power.draw,utilization.gpu", "--interval=2", "--node=n5", "--gpu=1"]
    code, _, err = run("ingest", *words, "--origin=2026-01-01T00:00:00Z", "-o", str(tmp_path / "out"))
    assert code == 0
    assert "warning: times made from a count: 2 rows" in err
    samples = open_dataset(tmp_path / "out").samples
    assert samples.select("node", "gpu", "power_w").rows() == [("n5", 1, 40.0), ("n5", 1, 41.0)]
