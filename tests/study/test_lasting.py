"""How long today's fleet lasts, beside a count of one's own."""

from __future__ import annotations

from gpuplanner.scenario import Scenario
from gpuplanner.study.future.gpus_wanted import wanted
from gpuplanner.study.future.lasting import lasting
from gpuplanner.study.past.history import history

SAMPLE = Scenario(month="2026-02")


def test_weeks_above_the_fleet_are_counted_and_come_before_it_runs_out() -> None:
    found, begin = lasting(SAMPLE), history(SAMPLE).plan_start
    assert found is not None
    peaks = wanted(SAMPLE, at=begin).weekly_peaks()
    assert (found.above, found.weeks) == (sum(peak > 64 for peak in peaks), 4)
    assert found.early is not None
    assert found.even is not None
    assert begin < found.early <= found.even
    # The last week peaked above the fleet, and a median path of a random walk starts from it.
    assert peaks[-1] > 64
    assert (found.even - begin).days == 7
