"""Plays that are remembered are those that would be played again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, Switching, play
from gpuplanner.study import plays

ASKED = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [8, 8, 4], [1, 1, 1])
FLEET = NodeFleet.whole([8, 4])


def test_another_job_node_or_rule_is_another_play():
    other = [
        (replace(ASKED, run_s=np.array([100.0, 100.0, 11.0])), FLEET, {}),
        (ASKED, NodeFleet.whole([8, 8]), {}),
        (ASKED, FLEET, {"queue": "strict"}),
        (ASKED, FLEET, {"switching": Switching(idle_s=60.0, lead_s=300.0)}),
        (ASKED, FLEET, {"switching": Switching(idle_s=60.0, lead_s=301.0)}),
        (ASKED, FLEET, {"larger": [[]]}),
    ]
    first = plays.played(ASKED, FLEET)
    for requests, fleet, how in other:
        found = plays.played(requests, fleet, **how)
        assert found is not first
        np.testing.assert_array_equal(found.start_s, play(requests, fleet, **how).start_s)
        assert plays.played(requests, fleet, **how) is found


def test_nobody_changes_what_is_remembered():
    with pytest.raises(ValueError, match="read-only"):
        plays.played(ASKED, FLEET).start_s[0] = 1.0


def test_what_was_not_asked_for_longest_goes_first(monkeypatch):
    monkeypatch.setattr(plays, "_kept", plays.Kept())
    monkeypatch.setattr(plays, "MOST_BYTES", 1)
    first = plays.played(ASKED, FLEET)
    plays.played(ASKED, FLEET, queue="strict")
    assert len(plays._kept.outcomes) == 1
    assert plays.played(ASKED, FLEET) is not first
