"""Fixtures shared by all tests."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import settings

import gpuplanner
from gpuplanner.cli.application import main
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from tests.examples import QUICK_EXAMPLES

ROOT = Path(__file__).resolve().parent.parent
# The generator of the sample, and programs that fit and score models, are no part of the package.
sys.path += [str(ROOT / "data"), str(ROOT / "benchmarks")]
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip

# Studies are kept by content (scenario, input, code), so tests and the kernels that they start share them.
os.environ["GPUPLANNER_CACHE"] = str(ROOT / "build" / "test-studies")
os.environ["GPUPLANNER_BROWSER"] = ""  # pages are printed where that is what is tested


# Everybody sees the same examples, however slow the machine; "explore" draws new ones (make test-long).
settings.register_profile("same", deadline=None, derandomize=True, max_examples=QUICK_EXAMPLES)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no worker is left with one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def trees() -> dict[Path, ast.Module]:
    """Every module of the package, parsed once for all tests that read code."""
    package = Path(gpuplanner.__file__).parent
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Folder with the public traces; tests that need it are skipped, with a reason, where it is absent."""
    # Tests change the working folder, from which a relative path would lead elsewhere.
    folder = Path(os.environ.get("GPUPLANNER_DATA", ROOT.parent / "shared" / "data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"public traces not found in {folder}; set GPUPLANNER_DATA to their folder")
    return folder


@pytest.fixture
def philly_jobs(public_data: Path) -> pl.DataFrame:
    """Jobs of the public Philly trace on whole GPUs, each of which starts as it is submitted."""
    trace = pl.read_csv(public_data / "philly" / "philly.csv.gz", try_parse_dates=True).drop_nulls()
    submit = pl.col("timestamp").dt.cast_time_unit("us").dt.replace_time_zone("UTC")
    return trace.select(
        job_id=pl.int_range(pl.len()).cast(pl.String),
        attempt=pl.lit(1),
        tenant="cluster",
        submit_time=submit,
        start_time=submit,
        end_time=submit + pl.duration(seconds=pl.col("duration").cast(pl.Int64)),
        state=pl.lit("UNKNOWN"),
        profile=pl.lit("gpu"),
        instances="num_gpus",
    )


@pytest.fixture(scope="module")
def unhurried() -> Iterator[None]:
    """Time limits of searches of two seconds or more are a day, so that no result depends on how busy the machine is.

    A search then ends by its proof or its work limit; a test that wants one to run out of time gives it less.
    """
    begin = SearchEffort.begin

    def patient(*, time_limit_s: float | None = None, **limits: Any) -> SearchEffort:
        hurried = time_limit_s is None or not 2.0 <= time_limit_s < 86_400.0
        return begin(time_limit_s=time_limit_s if hurried else 86_400.0, **limits)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SearchEffort, "begin", patient)
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def quick() -> Scenario:
    """The sample with few replications, a short horizon, and two ways to run the fleet beside today's."""
    return Scenario(
        month="2026-02",
        replications=3,
        horizon_intervals=48,
        gap_target=0.01,
        actuator="slurm",
        policies="mig_static,power_down_idle",
    )


@pytest.fixture(scope="session")
def study(quick: Scenario) -> Study:
    """A study of the sample."""
    return evaluate(quick)


@pytest.fixture(scope="session")
def report(quick: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a report of the sample, to be read alone: made once, by the worker that comes first."""
    from gpuplanner.report.report_rendering import write_report

    place = tmp_path_factory.getbasetemp()
    shared = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with (shared / "report.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "report").exists():
            write_report(quick, shared / "report")
    return shared / "report"


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


@pytest.fixture
def answer(command) -> Callable[..., Any]:
    """Run a command that prints JSON, see that it ends well, and read what it prints."""

    def run(*arguments: object) -> Any:
        code, out, err = command(*map(str, arguments))
        assert code == 0, err
        return json.loads(out)

    return run


# Not for the whole session: while it lives, an event loop seems to run in this process.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser without a way out; the test is skipped, with a reason, where none is installed."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on the path: install it to run the browser tests")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
