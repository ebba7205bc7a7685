"""The loop over shared nodes of several boards beside the loop over gangs: the same starts, to the digit."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.simulate import Fleet
from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, play
from tests.simulate.test_wide_nodes import as_jobs, drawn_requests


@pytest.mark.parametrize("queue", ["strict", "easy"])
@pytest.mark.long
def test_two_boards_are_two_schedulers_where_jobs_name_their_board(queue):
    """Each board by the loop over gangs, all jobs at once by the shared loop: the same to the digit."""
    for seed in range(100):
        draw = np.random.default_rng(seed)
        submit, run, gpus = drawn_requests(draw, [1, 2, 3, 4, 8], 40)
        limit, board = run + draw.integers(0, 30, 40), draw.integers(0, 2, 40)
        sizes = draw.integers(8, 17, 2)
        fleet = NodeFleet(
            ("a", "b"),
            sizes,
            np.diag(sizes)[:, None, :],
            [0, 0],
            [1.0, 1.0],
            boards=[0, 1],
            sliced=[False, False],
        )
        together = play(
            NodeRequests(submit, submit, run, limit, board, gpus, np.ones(40)), fleet, queue=queue
        )
        for number in range(2):
            mine = board == number
            alone = schedule(
                as_jobs(submit[mine], run[mine], gpus[mine], limit[mine]),
                Fleet("H100-80GB-SXM5", 1, int(sizes[number])), GangRules(queue=queue), policy="p",
            )  # fmt: skip
            assert together.start_s[mine].tolist() == alone["first_start"].to_list()
