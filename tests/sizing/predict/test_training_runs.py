"""Runs that were measured on a GPU of our own, to which no memory was fitted."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("training_runs", ROOT / "benchmarks" / "training_runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_and_speed_of_strangers_hold(runs):
    ran, lost = runs.compare()
    for number, least in (("1", 0.85), ("2", 0.85), ("3", 0.7)):
        found = runs.figures([row for row in ran if row["set"] == number])
        assert found["accuracy"] >= 0.9
        assert found["below the bound"] >= 0.95
        assert found["bound / measured"] <= 1.35
        assert found["seconds in the interval"] >= least
        assert found["mean factor of error"] <= 1.25
    loops = runs.figures([row for row in ran if row["set"] == "4"])
    assert loops["accuracy"] >= 0.9
    assert loops["below the bound"] >= 0.95
    assert loops["bound / measured"] <= 1.6
    assert lost
    assert all(row["p_oom"] > 0.05 for row in lost)


def test_the_page_is_made_of_the_runs(runs):
    """The page says what the code says now, but for the last digits."""
    page = runs.page(*runs.compare())
    assert page.splitlines()[: len(runs.WORDS)] == runs.PAGE.read_text().splitlines()[: len(runs.WORDS)]
    assert len(page.splitlines()) == len(runs.PAGE.read_text().splitlines())
