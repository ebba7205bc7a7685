"""Hand-worked cases of who starts when and where, with layouts that stay as they are."""

from __future__ import annotations

import pytest

from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

BOARD = "H100-80GB-SXM5"


def serve(jobs, nodes=1, per_node=4, layouts=None, **rules):
    fleet = Fleet(BOARD, nodes, per_node)
    calendar = Calendar.constant(layouts or {"gpu": fleet.gpus})
    return simulate(jobs, fleet, calendar, Rules(**rules), policy="p")


class TestWholeGpus:
    def test_strict_queue_lets_nobody_pass_the_head(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 100, 3, "gpu"), ("b", 1, 10, 2, "gpu"), ("c", 2, 10, 1, "gpu"))
        assert starts(serve(jobs, queue="strict")) == {"a": 0, "b": 100, "c": 100}

    def test_easy_lets_a_job_pass_that_ends_before_the_head_can_start(self, jobs_of, starts):
        jobs = jobs_of(
            ("a", 0, 100, 3, "gpu"),
            ("head", 1, 10, 4, "gpu"),
            ("fits", 2, 98, 1, "gpu"),
            ("late", 3, 98, 1, "gpu"),
        )
        # 'fits' ends at 100, when the head can start; 'late' could not start before 100 anyway.
        assert starts(serve(jobs)) == {"a": 0, "head": 100, "fits": 2, "late": 110}

    def test_easy_holds_back_a_job_that_would_delay_the_head(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 100, 3, "gpu"), ("head", 1, 10, 4, "gpu"), ("long", 2, 99, 1, "gpu"))
        assert starts(serve(jobs)) == {"a": 0, "head": 100, "long": 110}

    def test_easy_lets_a_long_job_use_what_the_head_leaves(self, jobs_of, starts):
        # At 100 the node has 4 idle GPUs and the head takes 3: one is spare for 'long', not for 'other'.
        jobs = jobs_of(
            ("a", 0, 100, 2, "gpu"),
            ("head", 1, 10, 3, "gpu"),
            ("long", 2, 1000, 1, "gpu"),
            ("other", 3, 1000, 1, "gpu"),
        )
        assert starts(serve(jobs)) == {"a": 0, "head": 100, "long": 2, "other": 110}

    def test_easy_lets_a_long_job_start_on_another_node(self, jobs_of, starts):
        # Node 0 is the one reserved: it frees first, at 50.
        jobs = jobs_of(
            ("a", 0, 50, 3, "gpu"),
            ("b", 0, 90, 3, "gpu"),
            ("head", 1, 10, 4, "gpu"),
            ("long", 2, 1000, 1, "gpu"),
        )
        run = serve(jobs, nodes=2)
        assert starts(run) == {"a": 0, "b": 0, "head": 50, "long": 2}
        assert run.outcomes["node"].to_list() == [0, 1, 0, 1]

    def test_limits_not_run_times_foretell_ends(self, jobs_of, starts):
        # 'a' ends at 20, but its limit says 100: until then 'pass' seems to end in time.
        jobs = jobs_of(
            ("a", 0, 20, 3, "gpu"),
            ("head", 1, 10, 4, "gpu"),
            ("pass", 2, 90, 1, "gpu"),
            limit_s=[100.0, 10.0, 90.0],
        )
        assert starts(serve(jobs)) == {"a": 0, "head": 92, "pass": 2}

    def test_a_job_beyond_its_limit_is_expected_to_end_at_any_time(self, jobs_of, starts):
        jobs = jobs_of(
            ("a", 0, 100, 3, "gpu"),
            ("head", 50, 10, 4, "gpu"),
            ("pass", 51, 1, 1, "gpu"),
            limit_s=[20.0, 10.0, 1.0],
        )
        assert starts(serve(jobs)) == {"a": 0, "head": 100, "pass": 110}

    def test_a_job_goes_to_the_fullest_node_that_holds_it(self, jobs_of):
        jobs = jobs_of(
            ("a", 0, 100, 1, "gpu"),
            ("b", 1, 100, 4, "gpu"),
            ("c", 2, 100, 2, "gpu"),
            ("d", 3, 100, 3, "gpu"),
            ("e", 4, 100, 1, "gpu"),
        )
        run = serve(jobs, nodes=3, queue="strict")
        placed = run.outcomes.select("job_id", "node", "gpu").rows()
        assert placed == [("a", 0, 0), ("b", 1, 0), ("c", 0, 1), ("d", 2, 0), ("e", 0, 3)]

    def test_a_gang_needs_idle_nodes_and_leaves_the_rest_of_the_last(self, jobs_of, starts):
        # 6 GPUs take nodes 1 and 2, of which the latter keeps 2 GPUs for 'pair'.
        jobs = jobs_of(
            ("one", 0, 100, 1, "gpu"),
            ("gang", 1, 50, 6, "gpu"),
            ("three", 2, 60, 3, "gpu"),
            ("pair", 3, 60, 2, "gpu"),
            ("gang2", 4, 10, 8, "gpu"),
        )
        run = serve(jobs, nodes=3, queue="strict")
        assert starts(run) == {"one": 0, "gang": 1, "three": 2, "pair": 3, "gang2": 63}
        assert run.outcomes["node"].to_list() == [0, 1, 0, 2, 1]

    def test_ends_come_before_arrivals_and_ties_go_by_order(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 10, 4, "gpu"), ("c", 10, 5, 3, "gpu"), ("b", 10, 5, 4, "gpu"))
        assert starts(serve(jobs, queue="strict")) == {"a": 0, "c": 10, "b": 15}

    def test_jobs_without_duration_pass_through_in_one_instant(self, jobs_of):
        jobs = jobs_of(*[(f"j{k}", 5, 0, 4, "gpu") for k in range(20)])
        run = serve(jobs, queue="strict")
        assert run.outcomes["first_start"].to_list() == [5.0] * 20
        assert run.outcomes["end"].to_list() == [5.0] * 20

    def test_jobs_of_before_the_run_are_there_at_its_start(self, jobs_of):
        jobs = jobs_of(("new", 0, 10, 4, "gpu"), ("old", -7, 10, 4, "gpu"))
        outcomes = serve(jobs, queue="strict").outcomes
        assert outcomes["first_start"].to_list() == [10.0, 0.0]
        assert outcomes["wait_s"].to_list() == [10.0, 7.0]


class TestInstances:
    def test_profiles_wait_in_queues_of_their_own(self, jobs_of, starts):
        jobs = jobs_of(
            ("a", 0, 100, 1, "3g.40gb"),
            ("b", 1, 100, 1, "3g.40gb"),
            ("c", 2, 100, 1, "3g.40gb"),
            ("d", 3, 100, 1, "1g.20gb"),
        )
        run = serve(jobs, per_node=1, layouts={"3g.40gb:1,2g.20gb:1,1g.20gb:1": 1}, substitute=False)
        assert starts(run) == {"a": 0, "b": 100, "c": 200, "d": 3}

    def test_the_smallest_larger_instance_stands_in(self, jobs_of):
        jobs = jobs_of(*[(name, 0, 100, 1, "1g.10gb") for name in "abc"], ("d", 1, 10, 1, "2g.20gb"))
        run = serve(jobs, per_node=1, layouts={"3g.40gb:1,2g.20gb:1,1g.10gb:1": 1})
        assert run.outcomes["served_on"].to_list() == ["1g.10gb", "2g.20gb", "3g.40gb", "2g.20gb"]
        assert run.outcomes["profile"].to_list() == ["1g.10gb"] * 3 + ["2g.20gb"]

    def test_an_instance_that_somebody_waits_for_by_name_is_not_taken(self, jobs_of, starts):
        # At 100 the 2g instance frees; 'small' waits longer, but 'named' asked for it by name.
        jobs = jobs_of(
            ("x", 0, 100, 1, "2g.20gb"),
            ("y", 0, 500, 1, "1g.10gb"),
            ("small", 1, 50, 1, "1g.10gb"),
            ("named", 2, 50, 1, "2g.20gb"),
        )
        run = serve(jobs, per_node=1, layouts={"2g.20gb:1,1g.10gb:1": 1})
        assert starts(run) == {"x": 0, "y": 0, "small": 150, "named": 100}

    def test_of_two_heads_the_first_to_arrive_takes_the_larger_instance(self, jobs_of, starts):
        jobs = jobs_of(
            ("x", 0, 100, 1, "3g.40gb"), ("late", 2, 10, 1, "1g.10gb"), ("early", 1, 10, 1, "2g.20gb")
        )
        run = serve(jobs, per_node=1, layouts={"3g.40gb:1": 1})
        assert starts(run) == {"x": 0, "late": 110, "early": 100}

    def test_memory_and_engines_must_suffice_too(self, jobs_of):
        # 2g.20gb has less memory than 3g, and only 1g.10gb+me and 7g have the engines of 1g.10gb+me.
        jobs = jobs_of(("me", 0, 10, 1, "1g.10gb+me"), ("wide", 0, 10, 1, "1g.20gb"))
        run = serve(jobs, per_node=2, layouts={"7g.80gb:1": 1, "4g.40gb:1,1g.10gb:3": 1})
        assert run.outcomes["served_on"].to_list() == ["7g.80gb", "4g.40gb"]

    def test_whole_gpus_never_stand_in(self, jobs_of, starts):
        jobs = jobs_of(("a", 0, 100, 1, "1g.10gb"), *[(f"b{k}", 1, 100, 1, "1g.10gb") for k in range(7)])
        run = serve(jobs, per_node=2, layouts={"gpu": 1, "1g.10gb:7": 1})
        assert starts(run)["b6"] == 100

    @pytest.mark.parametrize(("needed", "factor"), [(None, 1.0), (8.0, 1.0), (16.0, 1.0), (40.0, 2.5)])
    def test_a_job_that_needs_more_sms_runs_longer_and_never_faster(self, jobs_of, needed, factor):
        jobs = jobs_of(("a", 3, 100, 1, "1g.10gb"), sms_needed=[needed])
        run = serve(jobs, per_node=1, layouts={"1g.10gb:7": 1})
        assert run.outcomes["end"].to_list() == [3 + 100 * factor]

    def test_speed_follows_the_sms_of_the_instance_that_serves(self, jobs_of):
        # 1g.20gb has 26 SMs and 1g.10gb has 16, although both have one compute slice.
        jobs = jobs_of(("a", 0, 100, 1, "1g.10gb"), ("b", 0, 100, 1, "1g.10gb"), sms_needed=[52.0, 52.0])
        run = serve(jobs, per_node=1, layouts={"1g.20gb:1,1g.10gb:1": 1})
        assert run.outcomes["end"].to_list() == [325.0, 200.0]

    def test_names_of_other_drivers_are_understood(self, jobs_of):
        run = serve(jobs_of(("a", 0, 1, 1, "3g.39gb")), per_node=1, layouts={"3g.39gb:2": 1})
        assert run.outcomes["served_on"].to_list() == ["3g.40gb"]
