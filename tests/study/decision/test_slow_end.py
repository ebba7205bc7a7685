"""Jobs on another size than they asked for: what the slow end is, and that a promise holds there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.asked import AS_TODAY, REQUESTED, RIGHTSIZED, slow_end
from gpuplanner.study.decision.compare import Contest, contest


@pytest.fixture(scope="module")
def found() -> Contest:
    return contest(Scenario(policies="static_mig"))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.integers(1, 7))
def test_bursts_of_the_whole_take_as_many_times_as_long(bursts, times):
    # Second by second: a part of each is work that fills all SMs, of which a slice does one part in so many a second.
    busy, worked = sum(bursts) / len(bursts), 0.0
    for part in bursts:
        worked += (1 - part) + part * times
    assert slow_end(np.array([busy]), np.array([float(times)]))[0] == pytest.approx(worked / len(bursts))


@pytest.mark.long
def test_who_keeps_the_size_keeps_the_pace(found):
    views = found.asked.views
    assert (views[AS_TODAY].slowdown == 1).all()
    assert (views[REQUESTED].slowdown == 1).all()
    moved, asked, needed = views[RIGHTSIZED].slowdown, views[REQUESTED].requests, views[RIGHTSIZED].requests
    assert (moved[asked.profile == needed.profile] == 1).all()
    smaller = (needed.profile > 0) & (needed.profile < asked.profile)
    assert (moved[smaller] > 1).mean() > 0.5
    assert moved.max() <= 8


@pytest.mark.long
def test_what_is_promised_holds_at_the_slow_end(found):
    arena, trial = found.arena, found.winner.trial
    assert trial.setting.view == RIGHTSIZED
    late = arena.play(trial.setting, slow=True).late_s[0, found.later]
    own = arena.asked.views[RIGHTSIZED]
    assert arena.slower(trial) == pytest.approx(own.slowdown[own.slowdown > 1].mean())
    assert np.isfinite(late).all()
    views = arena.asked.views | {RIGHTSIZED: replace(own, slowdown=np.where(own.slowdown > 1, 20.0, 1.0))}
    slower = replace(arena, asked=replace(arena.asked, views=views))
    again = slower.play(trial.setting)
    assert arena.holds(trial, found.later)
    assert np.array_equal(again.late_s, trial.late_s, equal_nan=True), (
        "what is played first is the usual run time"
    )
    assert not slower.holds(again, found.later)
