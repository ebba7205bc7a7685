"""The core without the lab: what a wheel without it holds, and the core's tests beside it.

``make test-core-alone`` runs them all; ``tests/test_core_alone.py`` runs the demo and some of every folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_THE_REPOSITORY = tuple(
    f"tests/test_{name}.py" for name in ("house", "size", "project", "docs", "core_alone")
)
"""What they check is this checkout: its pages, its map, its rooms with the lab."""
BESIDE = ("tests", "data", "notebooks", "benchmarks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
QUICK = "not long and not slow and not notebook and not browser and not prometheus"
CHOSEN = ("-m", QUICK, *(f"--ignore={name}" for name in OF_THE_REPOSITORY), "tests")


def without_the_lab(place: Path) -> Path:
    """Put the package as a wheel holds it, but for its lab, into a folder."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    ignored = shutil.ignore_patterns("__pycache__", "lab")
    for package in said["wheel"]["packages"]:
        shutil.copytree(ROOT / package, place / package, ignore=ignored)
    for here, there in said["wheel"]["force-include"].items():
        shutil.copytree(ROOT / here, place / there, ignore=ignored)
    return place


def with_tests(place: Path) -> Path:
    """Put the core's tests, and what they read of a checkout, beside the package."""
    for name in BESIDE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "lab"))
        else:
            shutil.copy(ROOT / name, place / name)
    return place


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in that folder, with nothing of this checkout on its path."""
    data = os.environ.get("GPUPLANNER_DATA", str(ROOT.parent / "shared" / "data"))
    told = os.environ | {"PYTHONPATH": str(place), "GPUPLANNER_DATA": data}
    return subprocess.run([sys.executable, *words], cwd=place, env=told, capture_output=True, text=True)


def core_tests(place: Path) -> list[str]:
    """Collect the core's tests; an import of the lab anywhere would fail here."""
    ended = run(place, "-m", "pytest", "--co", "-q", *CHOSEN)
    assert ended.returncode == 0, ended.stdout[-4000:]
    return [line for line in ended.stdout.splitlines() if line.startswith("tests/")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        alone = with_tests(without_the_lab(Path(folder)))
        ended = run(alone, "-m", "pytest", "-q", "-n", "2", *CHOSEN)
        sys.stdout.write(ended.stdout[-20_000:])
        sys.exit(ended.returncode)
