"""A package without the lab is whole: its help, its demo to the page, and some of the core's tests of every folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core_alone import core_tests, run, with_tests, without_the_lab

MAIN = "import sys; from gpuplanner.cli import main; sys.argv[0] = 'gpuplanner'; main()"
EVERY = 30
"""One test in so many, and the first of each folder; ``make test-core-alone`` runs all."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return without_the_lab(tmp_path_factory.mktemp("alone"))


def test_the_help_knows_nothing_of_the_lab(place):
    ended = run(place, "-c", MAIN, "--help")
    assert ended.returncode == 0
    assert "allocate" not in ended.stdout
    assert "compare" in ended.stdout
    assert run(place, "-c", "import gpuplanner.lab").returncode == 1
    assert "No such command 'claims'" in run(place, "-c", MAIN, "claims").stderr


def test_the_demo_goes_to_its_page(place, tmp_path):
    ended = run(place, "-c", MAIN, "demo", "-o", str(tmp_path / "demo"))
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "demo" / "index.html").stat().st_size > 100_000


def test_the_core_passes_its_own_tests(place):
    named = core_tests(with_tests(place))
    first_of_folder = {Path(name.split("::")[0]).parent: name for name in reversed(named)}
    chosen = [*dict.fromkeys([*first_of_folder.values(), *named[::EVERY]])]
    assert len(first_of_folder) > 20
    ended = run(place, "-m", "pytest", "-q", *chosen)
    assert ended.returncode == 0, ended.stdout[-6000:]
