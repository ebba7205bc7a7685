"""Jobs on another size than they asked for: what the slow end of their run times is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.policy_comparison import PolicyResults, evaluate_policies
from gpuplanner.decision.requested_jobs import AS_TODAY, REQUESTED, RIGHTSIZED, longest_slowdown


@pytest.fixture(scope="module")
def found() -> PolicyResults:
    return evaluate_policies(Scenario(policies="mig_static"))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.integers(1, 7))
def test_bursts_of_the_whole_take_as_many_times_as_long(bursts, times):
    # Second by second: a part of each is work that fills all SMs, of which a slice does one part in so many a second.
    busy, worked = sum(bursts) / len(bursts), 0.0
    for part in bursts:
        worked += (1 - part) + part * times
    assert longest_slowdown(np.array([busy]), np.array([float(times)]))[0] == pytest.approx(worked / len(bursts))


@pytest.mark.long
def test_who_keeps_the_size_keeps_the_pace(found):
    views = found.asked_jobs.views
    asked, needed = views[REQUESTED], views[RIGHTSIZED]
    assert asked.run_s.tolist() == views[AS_TODAY].run_s.tolist()
    times = needed.run_s / asked.run_s
    assert (times[asked.profile == needed.profile] == 1).all()
    smaller = (needed.profile > 0) & (needed.profile < asked.profile)
    assert (times[smaller] > 1).mean() > 0.5
    assert times.max() <= 8
