"""Hand-worked cases of GPUs that are drained, reconfigured, switched off and on. Reconfiguring takes 60 s."""

from __future__ import annotations

import pytest

from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

BOARD = "H100-80GB-SXM5"
SEVEN, TWO = "1g.10gb:7", "3g.40gb:2"


def serve(jobs, slots, nodes=1, per_node=2, reconfigure_s=60.0, **options):
    layouts = tuple(dict.fromkeys(layout for counts in slots.values() for layout in counts))
    counts = [[wanted.get(layout, 0) for layout in layouts] for wanted in slots.values()]
    calendar = Calendar(list(slots), layouts, counts)
    rules = Rules(queue="strict", change=ChangeCost.flat(reconfigure_s))
    return simulate(jobs, Fleet(BOARD, nodes, per_node), calendar, rules, policy="p", **options)


def test_an_idle_gpu_is_cut_at_once(jobs_of, starts, history):
    jobs = jobs_of(("slice", 500, 100, 1, "1g.10gb"))
    run = serve(jobs, {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}})
    assert history(run, 0, 2) == [(0, 1160, "gpu", "on")]
    assert history(run, 1, 2) == [
        (0, 1000, "gpu", "on"),
        (1000, 1060, SEVEN, "reconfiguring"),
        (1060, 1160, SEVEN, "on"),
    ]
    assert starts(run) == {"slice": 1060}


def test_a_busy_gpu_drains_first_and_starts_nothing_new(jobs_of, starts, history):
    jobs = jobs_of(
        ("a", 0, 3000, 1, "gpu"),
        ("b", 0, 2000, 1, "gpu"),
        ("next", 10, 100, 1, "gpu"),
        ("s", 10, 100, 1, "1g.10gb"),
    )
    run = serve(jobs, {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}})
    assert history(run, 1, 2) == [
        (0, 1000, "gpu", "on"),
        (1000, 2000, "gpu", "draining"),
        (2000, 2060, SEVEN, "reconfiguring"),
        (2060, 3100, SEVEN, "on"),
    ]
    assert starts(run) == {"a": 0, "b": 0, "next": 3000, "s": 2060}


def test_the_last_job_of_a_cut_gpu_ends_the_drain(jobs_of, starts, history):
    jobs = jobs_of(
        ("short", 0, 1500, 1, "3g.40gb"), ("long", 0, 4000, 1, "3g.40gb"), ("whole", 1, 10, 1, "gpu")
    )
    run = serve(jobs, {0: {TWO: 1}, 1000: {"gpu": 1}}, per_node=1)
    assert history(run, 0, 1) == [
        (0, 1000, TWO, "on"),
        (1000, 4000, TWO, "draining"),
        (4000, 4060, "gpu", "reconfiguring"),
        (4060, 4070, "gpu", "on"),
    ]
    assert starts(run)["whole"] == 4060


def test_a_mark_is_withdrawn_when_the_next_target_wants_the_layout(jobs_of, starts, history):
    jobs = jobs_of(("a", 0, 3000, 1, "gpu"), ("b", 0, 2000, 1, "gpu"), ("next", 10, 100, 1, "gpu"))
    run = serve(jobs, {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}, 1500: {"gpu": 2, SEVEN: 0}})
    assert history(run, 1, 2) == [
        (0, 1000, "gpu", "on"),
        (1000, 1500, "gpu", "draining"),
        (1500, 3000, "gpu", "on"),
    ]
    assert starts(run)["next"] == 2000


def test_a_drained_gpu_goes_where_the_target_in_force_wants_it(jobs_of, history):
    jobs = jobs_of(("a", 0, 2000, 1, "gpu"))
    run = serve(jobs, {0: {"gpu": 1}, 1000: {SEVEN: 1}, 1500: {TWO: 1}}, per_node=1, until_s=2100)
    assert history(run, 0, 1)[1:] == [
        (1000, 2000, "gpu", "draining"),
        (2000, 2060, TWO, "reconfiguring"),
        (2060, 2100, TWO, "on"),
    ]


def test_a_layout_no_longer_wanted_while_it_is_made_is_changed_again(jobs_of, history):
    jobs = jobs_of(("a", 0, 1200, 1, "gpu"))
    run = serve(jobs, {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}, 1030: {"gpu": 2}})
    assert history(run, 1, 2) == [
        (0, 1000, "gpu", "on"),
        (1000, 1060, SEVEN, "reconfiguring"),
        (1060, 1120, "gpu", "reconfiguring"),
        (1120, 1200, "gpu", "on"),
    ]


def test_and_kept_if_it_is_wanted_again_before_it_is_done(jobs_of, history):
    slots = {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}, 1030: {"gpu": 2}, 1040: {"gpu": 1, SEVEN: 1}}
    run = serve(jobs_of(("a", 0, 1200, 1, "gpu")), slots)
    assert history(run, 1, 2)[1:] == [(1000, 1060, SEVEN, "reconfiguring"), (1060, 1200, SEVEN, "on")]


def test_gpus_go_off_when_idle_and_come_back(jobs_of, starts, history):
    jobs = jobs_of(("a", 0, 1100, 2, "gpu"), ("whole", 2500, 10, 2, "gpu"), ("s", 3500, 10, 1, "3g.40gb"))
    slots = {
        0: {"gpu": 2},
        1000: {"gpu": 1},
        2000: {"gpu": 0},
        3000: {"gpu": 2},
        4000: {"gpu": 0},
        5000: {TWO: 2},
    }
    run = serve(jobs, slots)
    assert history(run, 1, 2) == [
        (0, 1000, "gpu", "on"),
        (1000, 1100, "gpu", "draining"),
        (1100, 3000, "off", "off"),
        (3000, 4000, "gpu", "on"),
        (4000, 5000, "off", "off"),
        (5000, 5060, TWO, "reconfiguring"),
        (5060, 5070, TWO, "on"),
    ]
    assert starts(run) == {"a": 0, "whole": 3000, "s": 5060}


def test_the_gpu_with_the_fewest_busy_slices_leaves(jobs_of, history):
    jobs = jobs_of(
        ("a", 0, 5000, 1, "3g.40gb"),
        ("b", 0, 500, 1, "3g.40gb"),
        ("c", 0, 4000, 1, "3g.40gb"),
        ("d", 0, 4000, 1, "3g.40gb"),
    )
    run = serve(jobs, {0: {TWO: 2}, 1000: {TWO: 1, SEVEN: 1}})
    assert history(run, 0, 2)[1][2:] == (TWO, "draining")
    assert history(run, 1, 2) == [(0, 5000, TWO, "on")]


def test_cuts_stay_together_on_nodes_that_have_one(jobs_of, history):
    # At 1000 only GPU 0 is idle and is cut. At 2000 all are idle: its neighbour is next, not the highest.
    jobs = jobs_of(
        ("a", 0, 5, 1, "gpu"), *[(name, 0, 1500, 1, "gpu") for name in "bcd"], ("z", 0, 3000, 1, TWO[:7])
    )
    slots = {0: {"gpu": 4}, 1000: {"gpu": 3, TWO: 1}, 2000: {"gpu": 2, TWO: 2}}
    run = serve(jobs, slots, nodes=2)
    cut = [number for number in range(4) if history(run, number, 2)[-1][2] == TWO]
    assert cut == [0, 1]


def test_a_gpu_already_leaving_is_not_swapped_for_another(jobs_of, history):
    # GPU 1 drains from 1000 on. At 1500 GPU 0 is idle, but the same target changes nothing.
    jobs = jobs_of(("a", 0, 1200, 1, "gpu"), ("b", 0, 3000, 1, "gpu"))
    slots = {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}, 1500: {"gpu": 1, SEVEN: 1}}
    run = serve(jobs, slots)
    assert history(run, 0, 2) == [(0, 3000, "gpu", "on")]
    assert history(run, 1, 2)[1] == (1000, 3000, "gpu", "draining")


def test_within_an_instant_ends_come_first_then_the_calendar_then_arrivals(jobs_of, starts, history):
    jobs = jobs_of(("a", 0, 5000, 1, "gpu"), ("b", 0, 1000, 1, "gpu"), ("new", 1000, 10, 1, "gpu"))
    run = serve(jobs, {0: {"gpu": 2}, 1000: {"gpu": 1, SEVEN: 1}})
    assert history(run, 1, 2)[1] == (1000, 1060, SEVEN, "reconfiguring")
    assert starts(run)["new"] == 5000


def test_a_reconfiguration_that_takes_no_time_is_still_one(jobs_of, history):
    run = serve(
        jobs_of(("a", 1000, 10, 1, "1g.10gb")), {0: {"gpu": 1}, 1000: {SEVEN: 1}}, per_node=1, reconfigure_s=0
    )
    assert history(run, 0, 1) == [
        (0, 1000, "gpu", "on"),
        (1000, 1000, SEVEN, "reconfiguring"),
        (1000, 1010, SEVEN, "on"),
    ]


def test_the_fleet_begins_with_whole_gpus_below_and_cut_ones_above(jobs_of, history):
    run = serve(jobs_of(("a", 0, 10, 1, "gpu")), {0: {SEVEN: 1, "gpu": 1, TWO: 1}}, nodes=2)
    assert [history(run, number, 2) for number in range(4)] == [
        [(0, 10, "gpu", "on")],
        [(0, 10, "off", "off")],
        [(0, 10, SEVEN, "on")],
        [(0, 10, TWO, "on")],
    ]


def test_a_reservation_does_not_count_on_gpus_that_are_to_leave(jobs_of, starts):
    # From 1000 on GPU 3 ('c') is to leave. GPU 2 is idle from 1100 on, so the head, which needs three, must
    # wait for 'b' and 'a', until 3000, and 'pass' is out of its way. With GPU 3 it would be until 2000.
    jobs = jobs_of(
        ("a", 0, 3000, 1, "gpu"),
        ("b", 0, 2000, 1, "gpu"),
        ("d", 0, 1100, 1, "gpu"),
        ("c", 0, 1500, 1, "gpu"),
        ("head", 1110, 100, 3, "gpu"),
        ("pass", 1200, 1700, 1, "gpu"),
    )
    calendar = Calendar([0, 1000], ("gpu", SEVEN), [[4, 0], [3, 1]])
    run = simulate(jobs, Fleet(BOARD, 1, 4), calendar, Rules(queue="easy"), policy="p")
    assert starts(run)["pass"] == 1200
    assert starts(run)["head"] == 3000


@pytest.mark.parametrize("until_s", [0.0, 5000.0])
def test_the_states_last_until_asked_for(jobs_of, history, until_s):
    run = serve(jobs_of(("a", 0, 100, 1, "gpu")), {0: {"gpu": 2}, 1000: {"gpu": 1}}, until_s=until_s)
    assert history(run, 0, 2) == [(0, max(100, until_s), "gpu", "on")]
    assert history(run, 1, 2)[-1] == ((1000, 5000, "off", "off") if until_s else (0, 100, "gpu", "on"))


def test_parked_gpus_wake_where_no_other_is_cut(jobs_of, starts):
    """A cut GPU is left on the first node, so that the two of the second one wake side by side for a job on both."""
    jobs = jobs_of(("short", 0, 10, 2, "gpu"), ("long", 0, 500, 2, "gpu"), ("pair", 2100, 100, 2, "gpu"))
    counts = [[4, 0], [3, 1], [0, 0], [2, 0]]
    parked = [[0, 0], [0, 0], [0, 1], [0, 1]]
    calendar = Calendar([0, 100, 200, 2000], ("gpu", SEVEN), counts, parked=parked)
    rules = Rules(queue="strict", change=ChangeCost.flat(60.0))
    run = simulate(jobs, Fleet(BOARD, 2, 2), calendar, rules, policy="p", until_s=5000.0)
    assert starts(run)["pair"] == 2100
