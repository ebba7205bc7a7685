"""Hand-worked cases of nodes that are drained, partitioned, powered down and up. Partitioning takes 60 s."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.simulator.planned_layout_changes import LayoutChanges
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeNetwork, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.simulator.hand_cases import HALVES, LARGER, OFF, SEVENTHS, WHOLE, fleet_of, pools_of, requests_of, starts_of

INFINITE = math.inf


def drains(*rows, ahead_s=0.0, limit_s=INFINITE, takes_s=60.0, before_change=False, drained=None):
    """Changes of nodes from rows of (node, planned, pool), each given up when the next one of its node is planned."""
    later = [
        min([at for node, at, _ in rows[row + 1 :] if node == mine[0]], default=INFINITE)
        for row, mine in enumerate(rows)
    ]
    node, planned, pool = (np.array(column) for column in zip(*rows, strict=True))
    return LayoutChanges(
        node, planned, np.maximum(planned - ahead_s, 0.0), np.minimum(planned + limit_s, later),
        np.full(len(node), takes_s), pool, drained, before_change,
    )  # fmt: skip


def serve(rows, fleet, changes, queue="strict", **options):
    """Starts by name, and the outcome."""
    outcome = simulate_requests(
        requests_of(*rows, per_node=int(fleet.gpus[0])), fleet, queue=queue, changes=changes, larger=LARGER, **options
    )
    return starts_of(rows, outcome), outcome


def fates(outcome):
    return outcome.changes.drop("row").rows()


class TestDrain:
    def test_an_idle_node_is_partitioned_at_once(self):
        fleet = fleet_of([WHOLE], [SEVENTHS])
        starts, outcome = serve([("slice", 500, 100, 1, "1g.10gb")], fleet, drains((0, 1000, 1)))
        assert starts == {"slice": 1060}
        assert fates(outcome) == [(1000, 1000, 1060, "done")]
        assert pools_of(outcome, 0) == [(-INFINITE, 1060, 0), (1060, INFINITE, 1)]

    def test_a_busy_node_drains_first_and_starts_nothing_new(self):
        rows = [
            ("a", 0, 3000, 1, "gpu"), ("b", 0, 2000, 1, "gpu"),
            ("next", 10, 100, 1, "gpu"), ("s", 10, 100, 1, "1g.10gb"),
        ]  # fmt: skip
        fleet = fleet_of([WHOLE], [SEVENTHS], nodes=2)
        starts, outcome = serve(rows, fleet, drains((1, 1000, 1)))
        assert starts == {"a": 0, "b": 0, "next": 3000, "s": 2060}
        assert fates(outcome) == [(1000, 2000, 2060, "done")]

    def test_the_last_request_of_a_partitioned_node_ends_the_drain(self):
        rows = [("short", 0, 1500, 1, "3g.40gb"), ("long", 0, 4000, 1, "3g.40gb"), ("whole", 1, 10, 1, "gpu")]
        starts, outcome = serve(rows, fleet_of([HALVES], [WHOLE]), drains((0, 1000, 1)))
        assert starts["whole"] == 4060
        assert fates(outcome) == [(1000, 4000, 4060, "done")]

    def test_a_node_is_emptied_partitioned_and_returned_as_a_whole(self):
        rows = [("a", 0, 100, 1, "gpu"), ("b", 60, 5, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb")]
        starts, outcome = serve(rows, fleet_of([WHOLE, WHOLE], [WHOLE, SEVENTHS]), drains((0, 50, 1)))
        assert starts == {"a": 0, "b": 160, "c": 160}
        assert fates(outcome) == [(50, 100, 160, "done")]

    def test_or_a_gpu_alone_where_each_is_a_node(self):
        rows = [("a", 0, 100, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb")]
        starts, outcome = serve(rows, fleet_of([WHOLE], [SEVENTHS], nodes=2), drains((1, 50, 1)))
        assert starts == {"a": 0, "c": 110}
        assert fates(outcome) == [(50, 50, 110, "done")]

    def test_jobs_on_several_gpus_keep_together_where_each_gpu_is_a_node(self):
        """Two real nodes of two GPUs; a pair does not start on the GPU beside the one that is drained."""
        fleet = fleet_of([WHOLE], [SEVENTHS], nodes=4)
        network = NodeNetwork([[0, 0, 1, 1]], np.ones(3))
        fleet = NodeFleet(fleet.profiles, fleet.gpus, fleet.capacity, fleet.first, fleet.weights, network=network)
        rows = [("pair", 60, 10, 2, "gpu"), ("one", 61, 10, 1, "gpu"), ("slice", 61, 10, 1, "1g.10gb")]
        starts, outcome = serve(rows, fleet, drains((1, 50, 1)), placement="consolidate")
        assert starts == {"pair": 60, "one": 61, "slice": 110}
        assert outcome.allocations.sort("request", "node")["node"].to_list() == [2, 3, 0, 1]

    def test_what_does_not_empty_in_time_keeps_its_pool_until_the_next_change(self):
        rows = [("a", 0, 100, 1, "gpu"), ("b", 60, 5, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb")]
        fleet = fleet_of([WHOLE, WHOLE], [WHOLE, SEVENTHS], [WHOLE, HALVES])
        starts, outcome = serve(rows, fleet, drains((0, 50, 1), (0, 120, 2), (0, 300, 1), limit_s=30.0))
        assert fates(outcome)[0] == (50, None, 80, "given up")
        assert [row[-1] for row in fates(outcome)] == ["given up", "done", "done"]
        assert starts == {"a": 0, "b": 80, "c": 180}  # on a larger instance

    def test_one_that_is_late_goes_on_until_its_limit_and_the_next_one_follows(self):
        fleet, rows = fleet_of([WHOLE, WHOLE], [SEVENTHS] * 2, [HALVES] * 2), [("a", 0, 70, 1, "gpu")]
        for then, expected in (
            (200, [(10, 70, 130, "done"), (160, 160, 260, "done")]),
            (60, [(10, None, 60, "given up"), (60, 70, 130, "done")]),
        ):
            changes = drains((0, 50, 1), (0, then, 2), ahead_s=40.0, limit_s=500.0, before_change=True)
            assert fates(serve(rows, fleet, changes)[1]) == expected

    def test_one_whose_deadline_passed_while_another_was_under_way_is_given_up_without_a_cordon(self):
        changes = LayoutChanges([0, 0, 0], [10, 20, 30], [10, 20, 30], [INFINITE, 40, INFINITE], [60.0] * 3, [1, 0, 1])
        assert fates(serve([("a", 0, 5, 1, "gpu")], fleet_of([WHOLE], [SEVENTHS]), changes)[1]) == [
            (10, 10, 70, "done"),
            (None, None, 70, "given up"),
            (70, 70, 130, "done"),
        ]

    def test_within_an_instant_ends_come_first_then_changes_then_arrivals(self):
        rows = [("a", 0, 5000, 1, "gpu"), ("b", 0, 1000, 1, "gpu"), ("new", 1000, 10, 1, "gpu")]
        starts, outcome = serve(rows, fleet_of([WHOLE], [SEVENTHS], nodes=2), drains((1, 1000, 1)))
        assert fates(outcome) == [(1000, 1000, 1060, "done")]
        assert starts["new"] == 5000

    def test_a_change_that_takes_no_time_is_done_before_requests_start(self):
        rows = [("a", 1000, 10, 1, "1g.10gb")]
        starts, outcome = serve(rows, fleet_of([WHOLE], [SEVENTHS]), drains((0, 1000, 1), takes_s=0.0))
        assert (starts, fates(outcome)) == ({"a": 1000}, [(1000, 1000, 1000, "done")])

    def test_rows_of_one_instant_are_made_in_their_order(self):
        changes = LayoutChanges([0, 0], [50, 50], [50, 50], [INFINITE] * 2, [60.0, 1.0], [1, 2])
        starts, outcome = serve([("a", 0, 9, 1, "3g.40gb")], fleet_of([WHOLE], [SEVENTHS], [HALVES]), changes)
        assert (starts, fates(outcome)) == ({"a": 111}, [(50, 50, 110, "done"), (110, 110, 111, "done")])


class TestReservation:
    ROWS = (("long", 20, 100, 1, "gpu"), ("short", 25, 20, 1, "gpu"), ("slice", 30, 5, 1, "1g.10gb"))

    def test_from_the_cordon_on_nothing_starts(self):
        fleet = fleet_of([WHOLE] * 2, [SEVENTHS] * 2)
        starts, outcome = serve(self.ROWS, fleet, drains((0, 50, 1), (0, 400, 0), ahead_s=40.0))
        assert starts == {"long": 420, "short": 420, "slice": 70}
        assert fates(outcome)[0] == (10, 10, 70, "done")

    @pytest.mark.parametrize("queue", ["strict", "easy", "pass", "slurm"])
    def test_but_requests_that_end_before_the_change_where_these_may(self, queue):
        rows = [("first", 0, 30, 1, "gpu"), *self.ROWS]
        changes = drains((0, 50, 1), (0, 400, 0), ahead_s=40.0, before_change=True)
        starts, outcome = serve(rows, fleet_of([WHOLE] * 2, [SEVENTHS] * 2), changes, queue)
        # Empty at 45, it is partitioned when that is planned: who comes until then may still have it.
        assert starts == {"first": 0, "long": 460, "short": 25, "slice": 110}
        assert fates(outcome)[0] == (10, 45, 110, "done")

    def test_limits_not_run_times_say_what_ends_before(self):
        requests = requests_of(("a", 20, 5, 1, "gpu"), ("b", 20, 5, 1, "gpu"), limit_s=[30.0, 31.0])
        changes = drains((0, 50, 1), (0, 400, 0), ahead_s=40.0, before_change=True)
        found = simulate_requests(requests, fleet_of([WHOLE] * 2, [SEVENTHS] * 2), changes=changes)
        assert found.start_s.tolist() == [20.0, 460.0]

    def test_the_next_change_of_a_node_is_reserved_from_the_last_one_on(self):
        # Between 110 and 300 the node is partitioned. Who came at 130 ends by 300 and may start, the other may not.
        rows = [("short", 130, 60, 1, "1g.10gb"), ("long", 130, 220, 1, "1g.10gb"), ("gpu", 300, 9, 1, "gpu")]
        fleet = fleet_of([WHOLE] * 2, [SEVENTHS] * 2)
        reserved = drains((0, 50, 1), (0, 300, 0), ahead_s=1000.0, limit_s=30.0, before_change=True)
        starts, outcome = serve(rows, fleet, reserved)
        assert starts == {"short": 130, "long": None, "gpu": 360}
        assert fates(outcome) == [(0, 0, 110, "done"), (110, 190, 360, "done")]
        free = drains((0, 50, 1), (0, 300, 0), limit_s=30.0, before_change=True)
        starts, outcome = serve(rows, fleet, free)
        assert starts == {"short": 130, "long": 130, "gpu": None}
        assert [row[-1] for row in fates(outcome)] == ["done", "given up"]

    @pytest.mark.parametrize("queue", ["easy", "slurm"])
    def test_no_request_is_promised_a_node_that_closes(self, queue):
        # Node 3 ('c') closes at 1000. The head needs three nodes and has to wait for 'a' until 3000, so that 'pass' is
        # out of its way; with node 3 it would be until 2000.
        rows = [
            ("a", 0, 3000, 1, "gpu"), ("b", 0, 2000, 1, "gpu"), ("d", 0, 1100, 1, "gpu"), ("c", 0, 1500, 1, "gpu"),
            ("head", 1110, 100, 3, "gpu"), ("pass", 1200, 1700, 1, "gpu"),
        ]  # fmt: skip
        starts, _ = serve(rows, fleet_of([WHOLE], [SEVENTHS], nodes=4), drains((3, 1000, 1)), queue)
        assert (starts["pass"], starts["head"]) == (1200, 3000)

    def test_a_request_that_its_pool_does_not_serve_any_more_waits_for_ever_and_the_play_ends(self):
        rows = [("holds", 0, 100, 2, "gpu"), ("late", 10, 5, 2, "gpu"), ("small", 20, 5, 1, "gpu")]
        starts, outcome = serve(rows, fleet_of([WHOLE] * 2, [WHOLE, SEVENTHS]), drains((0, 60, 1)))
        assert starts == {"holds": 0, "late": None, "small": None}
        assert fates(outcome) == [(60, 100, 160, "done")]


class TestPower:
    def test_gpus_are_powered_down_beside_what_runs_and_come_back(self):
        rows = [("a", 0, 1100, 2, "gpu"), ("one", 1050, 10, 1, "gpu"), ("both", 1200, 10, 2, "gpu")]
        changes = drains((0, 1000, 1), (0, 3000, 0), drained=[False, False])
        starts, outcome = serve(rows, fleet_of([WHOLE] * 2, [WHOLE, OFF]), changes)
        assert starts == {"a": 0, "one": 1100, "both": 3000}
        assert pools_of(outcome, 0) == [(-INFINITE, 1000, 0), (1000, 3000, 1), (3000, INFINITE, 0)]
        assert fates(outcome) == [(1000, None, 1000, "done"), (3000, None, 3000, "done")]

    def test_under_a_cordon_as_well(self):
        """A pair may not start on the node from 30 s on, when one of its GPUs is powered down."""
        rows = [("early", 20, 5, 2, "gpu"), ("pair", 35, 5, 2, "gpu"), ("one", 35, 5, 1, "gpu")]
        changes = LayoutChanges(
            [0, 0], [30, 100], [30, 10], [30, INFINITE], [0.0, 60.0], [1, 2], [False, True], before_change=True
        )  # fmt: skip
        starts, outcome = serve(rows, fleet_of([WHOLE] * 2, [WHOLE, OFF], [SEVENTHS] * 2), changes)
        assert starts == {"early": 20, "pair": None, "one": 35}
        assert fates(outcome) == [(30, None, 30, "done"), (10, 40, 160, "done")]

    def test_a_change_that_needs_one_that_was_given_up_is_given_up_too(self):
        changes = LayoutChanges(
            [0, 0, 0], [50, 70, 90], [50, 70, 90], [60, 70, 200], [60.0, 0.0, 60.0], [1, 2, 1], [True, False, True]
        )  # fmt: skip
        fleet = fleet_of([WHOLE] * 2, [SEVENTHS] * 2, [SEVENTHS, OFF])
        assert fates(serve([("a", 0, 100, 1, "gpu")], fleet, changes)[1]) == [
            (50, None, 60, "given up"),
            (70, None, 70, "given up"),
            (90, 100, 160, "done"),
        ]

    def test_and_one_that_comes_after_the_partitioning_of_a_later_one(self):
        changes = LayoutChanges([0, 0], [50, 70], [50, 10], [50, 90], [0.0, 5.0], [1, 2], [False, True])
        assert fates(serve([("a", 0, 1, 1, "gpu")], fleet_of([WHOLE], [OFF], [SEVENTHS]), changes)[1]) == [
            (50, None, 50, "given up"),
            (10, 10, 15, "done"),
        ]

    def test_one_that_follows_a_late_change_waits_for_it(self):
        changes = LayoutChanges([0, 0], [50, 70], [50, 70], [INFINITE, 70], [60.0, 0.0], [1, 2], [True, False])
        fleet = fleet_of([WHOLE] * 2, [SEVENTHS] * 2, [SEVENTHS, OFF])
        starts, outcome = serve([("a", 0, 100, 1, "gpu"), ("s", 20, 9, 14, "1g.10gb")], fleet, changes)
        assert fates(outcome) == [(50, 100, 160, "done"), (160, None, 160, "done")]
        assert starts["s"] is None


class TestRefused:
    @pytest.mark.parametrize(
        "columns",
        [
            ([0], [5.0, 6.0], [5.0], [9.0], [1.0], [1]),
            ([0], [5.0], [6.0], [9.0], [1.0], [1]),
            ([0], [5.0], [5.0], [4.0], [1.0], [1]),
            ([0], [5.0], [5.0], [9.0], [-1.0], [1]),
            ([0], [math.nan], [5.0], [9.0], [1.0], [1]),
            ([-1], [5.0], [5.0], [9.0], [1.0], [1]),
            ([0], [5.0], [-INFINITE], [9.0], [1.0], [1]),
        ],
    )
    def test_columns_fit_together(self, columns):
        with pytest.raises(ScenarioError, match="layout changes: expected"):
            LayoutChanges(*columns)

    @pytest.mark.parametrize(("node", "pool"), [(2, 1), (0, 2), (1, 1)])
    def test_nodes_and_pools_are_those_of_the_fleet(self, node, pool):
        fleet = NodeFleet(("gpu",), [1, 1], [[[1], [0]]] * 2, [0, -1], [1.0])
        with pytest.raises(ScenarioError, match="layout change 1: expected one of 2 nodes that is on at first"):
            simulate_requests(requests_of(("a", 0, 1, 1, "gpu")), fleet, changes=drains((0, 5, 1), (node, 9, pool)))

    def test_nodes_that_come_and_go_have_no_planned_changes(self):
        with pytest.raises(ScenarioError, match="Leave one of them out"):
            simulate_requests(
                requests_of(("a", 0, 1, 1, "gpu")), fleet_of([WHOLE], [SEVENTHS]), changes=drains((0, 5, 1)),
                switching=NodeAutoscaling(1.0, 1.0),
            )  # fmt: skip


def test_the_log_is_emptied_as_often_as_it_fills():
    """A node that changes 20 000 times writes more than the log holds at once."""
    count = 20_000
    rows = np.arange(1, count + 1)
    changes = LayoutChanges(0 * rows, 10.0 * rows, 10.0 * rows, 10.0 * rows + 9, 0.0 * rows + 1, rows % 2)
    nobody = NodeRequests(*([[]] * 7))
    outcome = simulate_requests(nobody, fleet_of([WHOLE], [SEVENTHS]), changes=changes)
    assert outcome.power_intervals.height == count + 1
    assert outcome.changes["ended_s"].to_list() == (10.0 * rows + 1).tolist()
    many = simulate_requests(nobody, fleet_of([WHOLE], [SEVENTHS], nodes=3_000), changes=drains((7, 5, 1), takes_s=1.0))
    assert many.power_intervals.height == 3_001
