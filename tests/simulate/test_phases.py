"""Jobs in phases, and what changes cost."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import (
    Calendar,
    Fleet,
    Rules,
    simulate,
)
from tests.simulate.unservable import unservable

BOARD = "H100-80GB-SXM5"
ONE = Fleet(BOARD, 1, 1)
MIXED = Calendar.constant({"3g.40gb:1,2g.20gb:1,1g.10gb:1": 1})
RESTART = Rules(
    "strict", substitute=False, change=ChangeCost.of(BOARD, "nvml", instance_s=2.0, restart_s=30.0)
)


def phases_of(*rows):
    return pl.DataFrame(rows, schema={"job_id": str, "profile": str, "run_s": float}, orient="row")


def spells(run, job_id="a"):
    return (
        run.spells.filter(job_id=job_id).select("served_on", "since_s", "start_s", "end_s", "lost_s").rows()
    )


class TestPhases:
    JOBS = ("a", 5, 999, 1, "7g.80gb")
    CHAIN = phases_of(
        ("a", "1g.10gb", 100), ("a", "3g.40gb", 200), ("a", "3g.40gb", 50), ("a", "1g.10gb", 10)
    )

    def test_each_phase_is_served_on_what_it_needs_and_restarts_where_that_changes(self, jobs_of):
        run = simulate(jobs_of(self.JOBS), ONE, MIXED, RESTART, policy="p", phases=self.CHAIN)
        assert spells(run) == [
            ("1g.10gb", 5, 5, 105, 0),
            ("3g.40gb", 105, 105, 335, 30),
            ("3g.40gb", 335, 335, 385, 0),
            ("1g.10gb", 385, 385, 425, 30),
        ]
        outcome = run.outcomes.row(0, named=True)
        assert (outcome["end"], outcome["jct_s"], outcome["lost_gpu_s"], outcome["queued_s"]) == (
            425,
            420,
            60,
            0,
        )
        assert (outcome["profile"], outcome["served_on"]) == ("1g.10gb", "1g.10gb")
        assert run.outcomes["jct_s"].to_list() == [420]

    def test_what_a_phase_gives_back_serves_others_and_it_queues_for_the_next(self, jobs_of):
        jobs = jobs_of(self.JOBS, ("b", 50, 500, 1, "3g.40gb"), ("c", 60, 7, 1, "1g.10gb"))
        run = simulate(jobs, ONE, MIXED, RESTART, policy="p", phases=self.CHAIN)
        assert spells(run, "c") == [("1g.10gb", 60, 105, 112, 0)]
        assert spells(run)[1] == ("3g.40gb", 105, 550, 780, 30)
        assert run.outcomes["queued_s"].to_list() == [445, 0, 45]

    def test_a_substitute_is_kept_if_the_next_phase_gets_the_same_instance(self, jobs_of):
        # There is only 3g.40gb, of which two serve everything.
        rules = Rules("strict", change=RESTART.change)
        run = simulate(
            jobs_of(self.JOBS), ONE, Calendar.constant({"3g.40gb:2": 1}), rules, policy="p", phases=self.CHAIN
        )
        assert run.spells["served_on"].unique().to_list() == ["3g.40gb"]
        assert run.outcomes["lost_gpu_s"].item() == 0

    @pytest.mark.parametrize("queue", ["strict", "easy"])
    def test_whole_gpus_are_phases_too(self, jobs_of, queue):
        chain = phases_of(
            ("a", "gpu", 50), ("a", "gpu", 30), ("a", "1g.10gb", 20), ("a", "gpu", 10)
        ).with_columns(gpus=pl.Series([2, 2, 1, 1]), limit_s="run_s")
        jobs = jobs_of(("a", 0, 1, 2, "gpu"), ("b", 1, 40, 2, "gpu"))
        calendar = Calendar.constant({"gpu": 2, "1g.10gb:7": 1})
        rules = Rules(queue, change=RESTART.change)
        run = simulate(jobs, Fleet(BOARD, 1, 3), calendar, rules, policy="p", phases=chain)
        assert [row[1:4] for row in spells(run)] == [(0, 0, 50), (50, 50, 80), (80, 80, 130), (130, 130, 170)]
        assert spells(run, "b") == [("gpu", 1, 80, 120, 0)]

    def test_sms_count_in_every_phase(self, jobs_of):
        chain = self.CHAIN.with_columns(sms_needed=pl.Series([32.0, 120.0, None, 8.0]))
        run = simulate(jobs_of(self.JOBS), ONE, MIXED, RESTART, policy="p", phases=chain)
        assert (run.spells["end_s"] - run.spells["start_s"] - run.spells["lost_s"]).to_list() == [
            200,
            400,
            50,
            10,
        ]

    def test_phases_of_unknown_jobs_are_refused(self, jobs_of):
        with pytest.raises(SchemaError, match="1 other job_ids: 'z'"):
            simulate(jobs_of(self.JOBS), ONE, MIXED, RESTART, policy="p", phases=phases_of(("z", "gpu", 1)))

    def test_a_phase_that_never_fits_is_named(self, jobs_of):
        chain = phases_of(("a", "1g.10gb", 1), ("a", "7g.80gb", 1))
        assert unservable(jobs_of(self.JOBS), ONE, MIXED, RESTART, phases=chain).rows() == [
            ("a", "7g.80gb", 1, "no slot from its submission on offers 7g.80gb")
        ]
        with pytest.raises(ScenarioError, match=r"'a: no slot .* offers 7g.80gb'"):
            simulate(jobs_of(self.JOBS), ONE, MIXED, RESTART, policy="p", phases=chain)

    def test_under_backfill_whole_phases_need_limits(self, jobs_of):
        with pytest.raises(SchemaError, match="run-time limit"):
            simulate(jobs_of(self.JOBS), ONE, MIXED, Rules(), policy="p", phases=phases_of(("a", "gpu", 1)))

    @pytest.mark.parametrize("bad", [{"run_s": -1.0}, {"profile": "1g.10gb", "gpus": 2}])
    def test_bad_phases_are_refused(self, jobs_of, bad):
        chain = phases_of(("a", "gpu", 1)).with_columns(**{key: pl.lit(value) for key, value in bad.items()})
        with pytest.raises(SchemaError, match="phases of jobs"):
            simulate(jobs_of(self.JOBS), ONE, MIXED, RESTART, policy="p", phases=chain)


class TestCost:
    def test_a_calendar_pays_part_by_part(self, jobs_of):
        calendar = Calendar([0, 100], ("gpu", "3g.40gb:2", "1g.10gb:7"), [[1, 0, 0], [0, 1, 0]])
        jobs = jobs_of(("a", 100, 10, 1, "3g.40gb"))
        for change, start in (
            (None, 160.0),
            (ChangeCost.of(BOARD), 160.0),
            (ChangeCost.of(BOARD, "parted"), 101.0),
            (ChangeCost.of(BOARD, "nvml"), 100.6),
            (ChangeCost.flat(7.0), 107.0),
        ):
            run = simulate(jobs, ONE, calendar, Rules("strict", change=change), policy="p")
            assert run.outcomes["first_start"].item() == pytest.approx(start)

    def test_a_cost_for_another_board_is_refused(self, jobs_of):
        rules = Rules("strict", change=ChangeCost.of("A100-80GB"))
        with pytest.raises(ScenarioError, match="expected one for H100-80GB-SXM5; got A100-80GB"):
            simulate(jobs_of(("a", 0, 1, 1, "1g.10gb")), ONE, MIXED, rules, policy="p")


def test_a_job_that_never_starts_has_a_spell_that_never_begins():
    jobs = pl.DataFrame(
        {
            "job_id": ["served", "never", "stuck"],
            "tenant": "t",
            "submit_s": 0.0,
            "run_s": 10.0,
            "gpus": 1,
            "profile": ["1g.10gb", "gpu", "1g.10gb"],
        }
    )
    phases = pl.DataFrame({"job_id": "stuck", "profile": ["1g.10gb", "3g.40gb"], "run_s": [100.0, 10.0]})
    calendar = Calendar([0.0, 50.0], ("3g.40gb:1,1g.10gb:3", "1g.10gb:7"), [[1, 0], [0, 1]])
    run = simulate(
        jobs, Fleet(BOARD, 1, 1), calendar, Rules("strict", substitute=False, change=ChangeCost.flat(0.0)),
        policy="p", leave_unservable=True, phases=phases,
    )  # fmt: skip
    assert run.spells.select("job_id", "phase", "since_s", "start_s", "end_s", "ended").rows() == [
        ("served", 0, 0.0, 0.0, 10.0, "finished"),
        ("never", 0, 0.0, None, None, None),
        ("stuck", 0, 0.0, 0.0, 100.0, "next phase"),
        ("stuck", 1, 100.0, None, None, None),
    ]
    assert run.outcomes["end"].to_list() == [10.0, None, None]
