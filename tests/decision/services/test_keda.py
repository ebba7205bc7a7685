"""Cron triggers of KEDA, read by a plain clock, keep the replicas of the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.report.service_schedule_files import list_cron_triggers


def minutes_on(trigger: dict[str, str]) -> np.ndarray:
    """Minutes of a week from Monday in which a trigger is on: from each start to the next end."""
    edges = np.zeros(7 * 1440, int)
    for key, step in (("start", 1), ("end", -1)):
        minute, hour, _, _, days = trigger[key].split()
        for day in range(7) if days == "*" else [(int(each) - 1) % 7 for each in days.split(",")]:
            edges[1440 * day + 60 * int(hour) + int(minute)] += step
    on = np.cumsum(np.tile(edges, 2))
    return (on - on.min())[7 * 1440 :] > 0


@pytest.mark.parametrize("n_slots", [24, 168])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_triggers_keep_the_schedule_and_its_lead(data, n_slots):
    slots = data.draw(st.lists(st.integers(0, 3), min_size=n_slots, max_size=n_slots))
    lead = data.draw(st.sampled_from([0, 5, 12]))
    wanted = np.repeat(np.tile(slots, 168 // n_slots), 60)
    wanted = np.max([np.roll(wanted, -shift) for shift in range(lead + 1)], axis=0)
    kept = np.full(7 * 1440, min(slots))
    for trigger in list_cron_triggers(slots, 60.0 * lead, "UTC"):
        kept = np.maximum(kept, np.where(minutes_on(trigger), int(trigger["desiredReplicas"]), 0))
    assert (kept == wanted).all()


def test_equal_days_are_one_trigger():
    week = [1] * 168
    for day in range(5):
        week[24 * day + 8 : 24 * day + 18] = [4] * 10
    triggers = list_cron_triggers(week, 300.0, "Europe/Berlin")
    assert {(t["start"], t["end"]) for t in triggers} == {("55 7 * * 1,2,3,4,5", "0 18 * * 1,2,3,4,5")}
    assert [t["desiredReplicas"] for t in triggers] == ["4"]
