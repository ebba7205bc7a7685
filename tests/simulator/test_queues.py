"""Hand-worked cases of who starts when and where, on nodes that stay as they are."""

from __future__ import annotations

from gpuplanner.simulator.simulation_run import simulate_requests
from tests.simulator.hand_cases import LARGER, WHOLE, fleet_of, requests_of, starts_of


def serve(*rows, nodes=1, per_node=4, queue="easy", limit_s=None):
    """Starts by name on whole GPUs, and the nodes of each request."""
    requests = requests_of(*rows, per_node=per_node, limit_s=limit_s)
    outcome = simulate_requests(requests, fleet_of([WHOLE] * per_node, nodes=nodes), queue=queue)
    held = outcome.allocations.sort("request", "node").group_by("request", maintain_order=True).agg("node")
    return starts_of(rows, outcome), held["node"].to_list()


def serve_instances(*rows, layout, substitute=True):
    """Starts by name on one GPU of a layout, and the profile that serves each request."""
    outcome = simulate_requests(requests_of(*rows), fleet_of([layout]), larger=LARGER if substitute else None)
    served = outcome.allocations.sort("request")["profile"].to_list()
    return starts_of(rows, outcome), served


class TestWholeGpus:
    def test_strict_queue_lets_nobody_pass_the_head(self):
        rows = ("a", 0, 100, 3, "gpu"), ("b", 1, 10, 2, "gpu"), ("c", 2, 10, 1, "gpu")
        assert serve(*rows, queue="strict")[0] == {"a": 0, "b": 100, "c": 100}

    def test_easy_lets_a_job_pass_that_ends_before_the_head_can_start(self):
        rows = [("a", 0, 100, 3, "gpu"), ("head", 1, 10, 4, "gpu")]
        rows += [("fits", 2, 98, 1, "gpu"), ("late", 3, 98, 1, "gpu")]
        # 'fits' ends at 100, when the head can start; 'late' could not start before 100 anyway.
        assert serve(*rows)[0] == {"a": 0, "head": 100, "fits": 2, "late": 110}

    def test_easy_holds_back_a_job_that_would_delay_the_head(self):
        rows = ("a", 0, 100, 3, "gpu"), ("head", 1, 10, 4, "gpu"), ("long", 2, 99, 1, "gpu")
        assert serve(*rows)[0] == {"a": 0, "head": 100, "long": 110}

    def test_easy_lets_a_long_job_use_what_the_head_leaves(self):
        # At 100 the node has 4 idle GPUs and the head takes 3: one is spare for 'long', not for 'other'.
        rows = [("a", 0, 100, 2, "gpu"), ("head", 1, 10, 3, "gpu")]
        rows += [("long", 2, 1000, 1, "gpu"), ("other", 3, 1000, 1, "gpu")]
        assert serve(*rows)[0] == {"a": 0, "head": 100, "long": 2, "other": 110}

    def test_easy_lets_a_long_job_start_on_another_node(self):
        # Node 0 is the one reserved: it frees first, at 50.
        rows = [("a", 0, 50, 3, "gpu"), ("b", 0, 90, 3, "gpu")]
        rows += [("head", 1, 10, 4, "gpu"), ("long", 2, 1000, 1, "gpu")]
        starts, nodes = serve(*rows, nodes=2)
        assert starts == {"a": 0, "b": 0, "head": 50, "long": 2}
        assert nodes == [[0], [1], [0], [1]]

    def test_limits_not_run_times_foretell_ends(self):
        # 'a' ends at 20, but its limit says 100: until then 'pass' seems to end in time.
        rows = ("a", 0, 20, 3, "gpu"), ("head", 1, 10, 4, "gpu"), ("pass", 2, 90, 1, "gpu")
        assert serve(*rows, limit_s=[100.0, 10.0, 90.0])[0] == {"a": 0, "head": 92, "pass": 2}

    def test_a_job_goes_to_the_fullest_node_that_holds_it(self):
        rows = [("a", 0, 100, 1, "gpu"), ("b", 1, 100, 4, "gpu"), ("c", 2, 100, 2, "gpu")]
        rows += [("d", 3, 100, 3, "gpu"), ("e", 4, 100, 1, "gpu")]
        assert serve(*rows, nodes=3, queue="strict")[1] == [[0], [1], [0], [2], [0]]

    def test_a_gang_leaves_the_rest_of_its_last_node(self):
        # 6 GPUs take nodes 1 and 2, of which the latter keeps 2 GPUs for 'pair'.
        rows = [("one", 0, 100, 2, "gpu"), ("gang", 1, 50, 7, "gpu"), ("two", 2, 60, 2, "gpu")]
        rows += [("last", 3, 60, 1, "gpu"), ("gang2", 4, 10, 8, "gpu")]
        starts, nodes = serve(*rows, nodes=3, queue="strict")
        assert starts == {"one": 0, "gang": 1, "two": 2, "last": 3, "gang2": 63}
        assert nodes == [[0], [1, 2], [0], [2], [1, 2]]

    def test_ends_come_before_arrivals_and_ties_go_by_order(self):
        rows = ("a", 0, 10, 4, "gpu"), ("c", 10, 5, 3, "gpu"), ("b", 10, 5, 4, "gpu")
        assert serve(*rows, queue="strict")[0] == {"a": 0, "c": 10, "b": 15}

    def test_jobs_without_duration_pass_through_in_one_instant(self):
        rows = [(f"j{number}", 5, 0, 4, "gpu") for number in range(20)]
        assert set(serve(*rows, queue="strict")[0].values()) == {5.0}


class TestInstances:
    def test_profiles_wait_in_queues_of_their_own(self):
        rows = [("a", 0, 100, 1, "3g.40gb"), ("b", 1, 100, 1, "3g.40gb"), ("c", 2, 100, 1, "3g.40gb")]
        rows += [("d", 3, 100, 1, "1g.10gb")]
        layout = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}
        assert serve_instances(*rows, layout=layout, substitute=False)[0] == {"a": 0, "b": 100, "c": 200, "d": 3}

    def test_the_smallest_larger_instance_stands_in(self):
        rows = [*[(name, 0, 100, 1, "1g.10gb") for name in "abc"], ("d", 1, 10, 1, "2g.20gb")]
        starts, served = serve_instances(*rows, layout={"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1})
        assert (served, starts["d"]) == ([1, 2, 3, 2], 100)

    def test_of_two_that_wait_the_first_to_arrive_takes_the_larger_instance(self):
        rows = ("x", 0, 100, 1, "3g.40gb"), ("late", 2, 10, 1, "1g.10gb"), ("early", 1, 10, 1, "2g.20gb")
        starts, _ = serve_instances(*rows, layout={"3g.40gb": 1})
        assert starts == {"x": 0, "late": 110, "early": 100}

    def test_whole_gpus_never_stand_in(self):
        rows = [("a", 0, 100, 1, "1g.10gb"), *[(f"b{number}", 1, 100, 1, "1g.10gb") for number in range(7)]]
        outcome = simulate_requests(requests_of(*rows), fleet_of([WHOLE, {"1g.10gb": 7}]), larger=LARGER)
        assert starts_of(rows, outcome)["b6"] == 100
