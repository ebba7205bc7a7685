"""What is refused, and in which words; what is loaded when; what the compiled code depends on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import polars as pl
import pytest

from gpuplanner.errors import GeometryError, MissingDependencyError, ScenarioError, SchemaError
from gpuplanner.hardware import ChangeCost
from gpuplanner.schemas import Outcomes, check
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from tests.simulate.unservable import unservable

BOARD = "H100-80GB-SXM5"
FLEET = Fleet(BOARD, 2, 4)
WHOLE = Calendar.constant({"gpu": 8})
STRICT = Rules(queue="strict")


class TestNouns:
    @pytest.mark.parametrize(("nodes", "gpus"), [(0, 8), (1, 0), (-1, 8), (1, 2**31)])
    def test_a_fleet_has_gpus(self, nodes, gpus):
        with pytest.raises(ScenarioError, match="at least one node and one GPU"):
            Fleet(BOARD, nodes, gpus)

    @pytest.mark.parametrize(
        ("starts", "layouts", "counts", "words"),
        [
            ([], (), [], "begin at 0"),
            ([1.0], ("gpu",), [[1]], "begin at 0"),
            ([0.0, 5.0, 5.0], ("gpu",), [[1], [1], [1]], "ascend"),
            ([0.0, float("inf")], ("gpu",), [[1], [1]], "finite"),
            ([0.0], ("gpu", "gpu"), [[1, 1]], "each once"),
            ([0.0], ("off",), [[1]], "none of them 'off'"),
            ([0.0], ("gpu",), [[1, 2]], r"shape \(1, 1\)"),
            ([0.0], ("gpu",), [[-1]], "not below 0"),
            ([0.0], ("gpu",), [[0.5]], "whole numbers"),
        ],
    )
    def test_a_calendar_fits_together(self, starts, layouts, counts, words):
        with pytest.raises(ScenarioError, match=words):
            Calendar(starts, layouts, counts)

    @pytest.mark.parametrize("values", [{"queue": "lifo"}, {"queue": "pass"}])
    def test_rules_are_known_ones(self, values):
        with pytest.raises(ScenarioError, match="rules"):
            Rules(**values)


class TestInput:
    def test_a_slot_cannot_want_more_gpus_than_there_are(self, jobs_of):
        calendar = Calendar([0, 60], ("gpu",), [[8], [9]])
        with pytest.raises(ScenarioError, match=r"slot 1: expected at most the 8 GPUs of the fleet; got 9"):
            simulate(jobs_of(("a", 0, 1, 1, "gpu")), FLEET, calendar, STRICT, policy="p")

    def test_a_profile_must_be_one_of_the_board(self, jobs_of):
        with pytest.raises(GeometryError, match=r"1g\.5gb"):
            simulate(jobs_of(("a", 0, 1, 1, "1g.5gb")), FLEET, WHOLE, STRICT, policy="p")

    def test_every_fault_of_the_jobs_is_told_at_once(self, jobs_of):
        jobs = jobs_of(
            ("a", 0, -1, 1, "gpu"),
            ("b", float("nan"), 1, 0, "gpu"),
            ("b", 0, 1, 2, "1g.10gb"),
            ("c", 0, 1, 1, None),
        )
        with pytest.raises(SchemaError) as caught:
            simulate(jobs, FLEET, WHOLE, STRICT, policy="p")
        for words in (
            "run_s below 0",
            "submit_s not a number",
            "gpus below 1",
            "one instance per job",
            "job id occurring once",
            "profile missing",
        ):
            assert words in str(caught.value)
        assert "4 of 4 rows" in str(caught.value)

    def test_easy_needs_limits_of_jobs_on_whole_gpus_only(self, jobs_of):
        jobs = jobs_of(("a", 0, 1, 1, "gpu"), ("b", 0, 1, 1, "1g.10gb"), limit_s=[None, None])
        with pytest.raises(SchemaError, match="1 without: 'a'"):
            simulate(jobs, FLEET, WHOLE, Rules(), policy="p")
        calendar = Calendar.constant({"1g.10gb:7": 1})
        run = simulate(jobs[1:], FLEET, calendar, Rules(), policy="p")
        assert run.outcomes["end"].to_list() == [1.0]


class TestUnservable:
    def test_jobs_that_can_never_start_are_named_with_the_reason(self, jobs_of):
        jobs = jobs_of(
            ("fits", 0, 1, 8, "gpu"),
            ("large", 0, 1, 9, "gpu"),
            ("uneven", 0, 1, 5, "gpu"),
            ("slice", 0, 1, 1, "2g.20gb"),
        )
        calendar = Calendar([0, 60], ("gpu", "1g.10gb:7"), [[8, 0], [7, 1]])
        assert unservable(jobs, FLEET, calendar, STRICT).select("job_id", "reason").rows() == [
            ("large", "needs 12 whole GPUs; at most 8 are whole from its submission on"),
            ("slice", "no slot from its submission on offers 2g.20gb or larger"),
        ]
        with pytest.raises(ScenarioError, match=r"2 of 4 that can never start: 'large: needs 12 whole GPUs"):
            simulate(jobs, FLEET, calendar, STRICT, policy="p")

    def test_only_slots_from_the_submission_on_count(self, jobs_of):
        jobs = jobs_of(("before", 59, 1, 8, "gpu"), ("after", 60, 1, 8, "gpu"), ("odd", 60, 1, 5, "gpu"))
        calendar = Calendar([0, 60], ("gpu",), [[8], [7]])
        assert unservable(jobs, FLEET, calendar, STRICT)["job_id"].to_list() == ["after", "odd"]

    def test_a_larger_instance_counts_if_it_may_stand_in(self, jobs_of):
        jobs = jobs_of(("a", 0, 1, 1, "1g.10gb"))
        calendar = Calendar.constant({"3g.40gb:2": 1})
        assert unservable(jobs, FLEET, calendar, STRICT).height == 0
        alone = Rules(queue="strict", substitute=False)
        assert unservable(jobs, FLEET, calendar, alone)["reason"].to_list() == [
            "no slot from its submission on offers 1g.10gb"
        ]

    def test_left_out_on_request_they_stay_unstarted_and_block_nobody(self, jobs_of):
        jobs = jobs_of(("large", 0, 1, 9, "gpu"), ("a", 0, 5, 1, "gpu"))
        run = simulate(jobs, FLEET, WHOLE, STRICT, policy="p", leave_unservable=True)
        outcomes = check(run.outcomes, Outcomes, where="outcomes")
        assert outcomes.select("first_start", "end", "served_on", "node", "gpu", "wait_s").rows() == [
            (None,) * 6,
            (0.0, 5.0, "gpu", 0, 0, 0.0),
        ]

    def test_a_job_whose_slot_has_passed_waits_for_ever_and_the_run_ends(self, jobs_of):
        jobs = jobs_of(("holds", 0, 100, 8, "gpu"), ("late", 10, 5, 8, "gpu"), ("small", 20, 5, 1, "gpu"))
        calendar = Calendar([0, 60], ("gpu", "1g.10gb:7"), [[8, 0], [4, 4]])
        run = simulate(jobs, FLEET, calendar, Rules(queue="strict", change=ChangeCost.flat(10)), policy="p")
        assert run.outcomes["first_start"].to_list() == [0.0, None, None]
        assert run.states["end_s"].max() == 110


def test_a_board_without_known_sms_can_be_simulated_until_they_matter(jobs_of):
    rows = [
        {
            "gpu_model": "NEW-40GB", "memory_gib_total": 40,
            "memory_slices_total": 4, "compute_slices_total": 4,
            "profile": profile, "compute_slices": size, "memory_slices": size, "max_instances": 4 // size,
            "placement_starts": ";".join(map(str, range(0, 4, size))), "placement_size": size,
        }
        for profile, size in (("1g.10gb", 1), ("2g.20gb", 2), ("4g.40gb", 4))
    ]  # fmt: skip
    from gpuplanner.hardware import load_gpu_model

    fleet = Fleet(load_gpu_model("NEW-40GB", rows=rows), 1, 1)
    calendar = Calendar.constant({"2g.20gb:2": 1})
    jobs = jobs_of(("a", 0, 7, 1, "2g.20gb"))
    assert simulate(jobs, fleet, calendar, STRICT, policy="p").outcomes["end"].to_list() == [7.0]
    with pytest.raises(GeometryError, match="SMs of"):
        simulate(jobs.with_columns(sms_needed=20.0), fleet, calendar, STRICT, policy="p")


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_rooms_does_not_load_numba():
    heavy = "{'numba', 'pandas', 'scipy', 'pulp'}"
    assert (
        python(f"import sys, gpuplanner.simulate, gpuplanner.metrics; print({heavy} & sys.modules.keys())")
        == "set()"
    )


def test_without_numba_the_extra_is_named(jobs_of, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gpuplanner.simulate.")]:
        if name.rpartition(".")[2] in ("calendar_loop", "engine", "heap", "jit", "layout_changes", "nodes"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingDependencyError, match=r"gpuplanner\[simulate\]"):
        simulate(jobs_of(("a", 0, 1, 1, "gpu")), FLEET, WHOLE, STRICT, policy="p")


WALK = """
import numpy as np, polars as pl
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
rng = np.random.default_rng(7)
n = 400
profile = rng.choice(["gpu", "gpu", "3g.40gb", "1g.10gb"], n)
run_s = rng.integers(0, 400, n).astype(float)
jobs = pl.DataFrame({
    "job_id": np.arange(n).astype(str), "tenant": "t", "submit_s": np.cumsum(rng.random(n) * 20),
    "run_s": run_s, "limit_s": run_s + rng.integers(0, 200, n), "profile": profile,
    "gpus": np.where(profile == "gpu", rng.integers(1, 7, n), 1), "sms_needed": 32.0})
counts = [[10, 1, 1], [6, 3, 2], [8, 0, 0], [4, 4, 4]]
calendar = Calendar(np.arange(4) * 1000.0, ("gpu", "3g.40gb:2", "1g.10gb:7"), counts)
run = simulate(jobs, Fleet("H100-80GB-SXM5", 3, 4), calendar, Rules(), policy="p", leave_unservable=True)
print(run.outcomes.hash_rows().implode().hash().item(), run.states.hash_rows().implode().hash().item())
"""


@pytest.mark.long
def test_compiled_and_interpreted_code_agree():
    # Without the compiler every index is checked, and integers do not wrap.
    assert python(WALK, NUMBA_DISABLE_JIT="1") == python(WALK)


def test_where_nothing_can_be_kept_code_is_compiled_in_memory():
    from gpuplanner.simulate.jit import entry

    names = {}
    exec("def double(number):\n    return 2 * number", names)  # numba finds no folder for it
    assert entry(names["double"])(21) == 42


@pytest.mark.long
def test_machine_code_is_kept_and_read_back(tmp_path):
    first = python(WALK, NUMBA_CACHE_DIR=str(tmp_path))
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert len(kept) == 1
    stamp = kept[0].stat().st_mtime_ns
    assert python(WALK, NUMBA_CACHE_DIR=str(tmp_path)) == first
    assert sorted(tmp_path.rglob("*.nbc")) == kept
    assert kept[0].stat().st_mtime_ns == stamp


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "now", "then"),
    [
        ("slices/layout_changes.py", "now + seconds", "now + 2 * seconds"),
        ("slices/whole_gpus.py", "max(shadow, w.due[rank].at)", "w.due[rank].at + 100.0"),
        ("heap.py", "= at, who\n    return size + 1", "= at + 1.0, who\n    return size + 1"),
    ],
)
def test_a_change_of_a_function_called_from_another_file_is_compiled_anew(root, tmp_path, file, now, then):
    copy = tmp_path / "gpuplanner"
    shutil.copytree(root / "gpuplanner", copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    before = python(WALK, **environment)
    called = copy / "simulate" / file
    source = called.read_text()
    called.write_text(source.replace(now, then))
    assert called.read_text() != source
    assert python(WALK, **environment) != before
    called.write_text(source)
    assert python(WALK, **environment) == before


def test_states_and_outcomes_have_the_types_that_readers_expect(jobs_of):
    run = simulate(jobs_of(("a", 0, 1, 1, "gpu")), FLEET, WHOLE, STRICT, policy="static", replication=3)
    assert run.states.schema == {
        "node": pl.Int32, "gpu": pl.Int32, "start_s": pl.Float64, "end_s": pl.Float64,
        "layout": pl.String, "state": pl.String,
    }  # fmt: skip
    assert check(run.outcomes, Outcomes, where="outcomes").select("policy", "replication").rows() == [
        ("static", 3)
    ]
