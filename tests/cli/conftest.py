"""Commands run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from gpuplanner.cli.app import main


@pytest.fixture
def command(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gpuplanner", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return run
