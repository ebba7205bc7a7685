"""Weeks ahead in words: whole GPUs, and nothing where nothing was simulated."""

from __future__ import annotations

from gpuplanner.report.equal_service import weeks_to_come

ROW = {
    "policy": "today",
    "week": 4,
    "gpus_q05": 64.0,
    "gpus_q50": 74.2,
    "gpus_q95": 108.3,
    "run_out_by": 0.78,
}


def test_gpus_are_whole_and_what_was_not_simulated_is_not_named():
    far = ROW | {"week": 52, "gpus_q50": None, "gpus_q95": None, "run_out_by": 0.96}
    text = "".join(weeks_to_come([ROW, far]))
    assert "Run as today, the service target is held by 75 GPUs (95 %: 109) in 4 weeks" in text
    assert "more than were simulated in 52 weeks" in text
    assert "With 96%" in text
    assert weeks_to_come([]) == ()
