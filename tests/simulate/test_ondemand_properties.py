"""Every run on demand is checked from its tables alone: geometry, sharing, drains, work, restarts, limits."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost, is_valid, load_gpu_model, parse_placements
from gpuplanner.simulate import Fleet, OnDemand, Rules, hold_largest, simulate
from tests.simulate.unservable import unservable

SERVING = ("on", "draining", "changing")
BOARDS = {
    "H100-80GB-SXM5": (
        "gpu",
        "gpu",
        "7g.80gb",
        "4g.40gb",
        "3g.40gb",
        "2g.20gb",
        "1g.20gb",
        "1g.10gb",
        "1g.10gb",
    ),
    "A30-24GB": ("gpu", "4g.24gb", "2g.12gb+me", "2g.12gb", "1g.6gb", "1g.6gb+me"),
}
DAY_S = 86_400.0
STARTS = {"H100-80GB-SXM5": "3g.40gb:1,2g.20gb:1,1g.10gb:1", "A30-24GB": "1g.6gb:4"}


def states_cover_the_run(run, fleet):
    """Every GPU is in one state at every time."""
    assert run.states.select("node", "gpu").n_unique() == fleet.gpus
    end = run.states["end_s"].max()
    for rows in run.states.partition_by("node", "gpu"):
        assert rows["start_s"][0] == 0
        assert rows["end_s"][-1] == end
        assert rows["start_s"].to_list()[1:] == rows["end_s"].to_list()[:-1]
    assert end >= (run.outcomes["end"].max() or 0.0)


def every_placement_is_legal(run, fleet):
    """Starts, overlaps, maxima and engines; the text says the same as the places."""
    for text, layout in run.states.select("placements", "layout").unique().rows():
        placed = parse_placements(fleet.model, text)
        assert is_valid(fleet.model, placed), text
        assert placed.text == layout if text else layout in ("gpu", "off")


def slices_of(spell, fleet):
    """Memory slices that a spell holds on its GPU."""
    if spell["served_on"] == "gpu":
        return set(range(fleet.model.memory_slices))
    return set(range(spell["slice"], spell["slice"] + fleet.model.profile(spell["served_on"]).memory_slices))


def nothing_is_shared(spells, fleet):
    """No slice serves two jobs; gangs of whole GPUs, of which only the first is told, by their number."""
    held = defaultdict(list)
    for spell in spells:
        if spell["end_s"] > spell["start_s"] and spell["gpus"] == 1:
            for piece in slices_of(spell, fleet):
                held[spell["node"], spell["gpu"], piece].append((spell["start_s"], spell["end_s"]))
    for spans in held.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def instances_stand_while_they_are_held(run, spells, fleet):
    """The instance of a job exists, at its place, from its start to its end; whole GPUs are whole."""
    rows_of = {
        key: rows.to_dicts() for key, rows in run.states.partition_by("node", "gpu", as_dict=True).items()
    }
    instants = sorted({spell["start_s"] for spell in spells})
    for spell in spells:
        during = [
            row
            for row in rows_of[spell["node"], spell["gpu"]]
            if row["start_s"] < spell["end_s"] and row["end_s"] > spell["start_s"]
        ]
        for row in during:
            assert row["state"] in SERVING
            if spell["served_on"] == "gpu":
                assert row["layout"] == "gpu"
            else:
                assert f"{spell['served_on']}@{spell['slice']}" in row["placements"].split()
    for instant in instants:
        running = [spell for spell in spells if spell["start_s"] <= instant < spell["end_s"]]
        whole = sum(spell["gpus"] for spell in running if spell["served_on"] == "gpu")
        standing = sum(
            row["layout"] == "gpu" and row["state"] == "on"
            for rows in rows_of.values()
            for row in rows
            if row["start_s"] <= instant < row["end_s"]
        )
        assert whole <= standing


def profiles_suffice(spells, fleet, rules):
    """A job is served on what it asked for, or on a larger instance if it may."""
    for spell in spells:
        if "gpu" in (spell["profile"], spell["served_on"]):
            assert spell["profile"] == spell["served_on"]
            continue
        asked, got = fleet.model.profile(spell["profile"]), fleet.model.profile(spell["served_on"])
        assert got.compute_slices >= asked.compute_slices
        assert got.memory_slices >= asked.memory_slices
        assert rules.substitute or asked == got


def work_is_conserved(run, spells, jobs, fleet, rules, phases):
    """Every phase runs for as long as it needs, after the one before; restarts are paid exactly where due."""
    needs = {row["job_id"]: [row] for row in jobs.to_dicts()}
    if phases is not None:
        for job_id, rows in phases.group_by("job_id", maintain_order=True):
            needs[job_id[0]] = rows.to_dicts()
    of_job = defaultdict(list)
    for spell in spells:
        of_job[spell["job_id"]].append(spell)
    submit = dict(jobs.select("job_id", "submit_s").rows())
    for outcome in run.outcomes.to_dicts():
        mine, due = of_job[outcome["job_id"]], needs[outcome["job_id"]]
        assert len(mine) in (0, len(due))  # nobody is left in the middle
        before, lost = None, 0.0
        for spell, need in zip(mine, due, strict=False):
            assert spell["profile"] == need["profile"]
            since = before["end_s"] if before else max(submit[spell["job_id"]], 0.0)
            assert spell["start_s"] >= since
            place = ("node", "gpu", "slice", "served_on")
            stayed = before is not None and before["end_s"] == spell["start_s"] and all(
                before[name] == spell[name] for name in place
            )  # fmt: skip
            restart = 0.0 if before is None or stayed else rules.change.restart_s.value
            assert spell["lost_s"] == restart
            slow = 1.0
            if spell["served_on"] != "gpu" and need.get("sms_needed"):
                slow = max(1.0, need["sms_needed"] / fleet.model.sms_of(spell["served_on"]))
            assert spell["end_s"] == pytest.approx(spell["start_s"] + restart + need["run_s"] * slow)
            before, lost = spell, lost + restart * spell["gpus"]
        if mine:
            assert outcome["first_start"] == mine[0]["start_s"]
            assert outcome["end"] == mine[-1]["end_s"]
            assert outcome["lost_gpu_s"] == lost
        else:
            assert outcome["first_start"] is outcome["end"] is None


def reboots(change):
    return change.reboot_s is not None and change.reboot_s.value > 0


def limits_are_kept(run, fleet, policy, rules):
    """GPUs that stay whole; changes of a GPU a day, which through the operator are one row each."""
    for (node, gpu), rows in run.states.partition_by("node", "gpu", as_dict=True).items():
        if node * fleet.gpus_per_node + gpu < policy.keep_whole:
            assert set(rows["layout"]) <= {"gpu", "off"}
        changes = rows.filter(pl.col("state").is_in(["reconfiguring", "changing"]))
        if policy.switches_per_day == 0:
            assert not changes.height
        elif policy.switches_per_day and not rules.change.one_by_one and not reboots(rules.change):
            days = (changes["start_s"] // DAY_S).to_numpy()
            assert np.unique(days, return_counts=True)[1].max(initial=0) <= policy.switches_per_day


@st.composite
def cases(draw):
    """Jobs, with phases or not, a fleet, a policy and rules."""
    name = draw(st.sampled_from(sorted(BOARDS)))
    board = load_gpu_model(name)
    fleet = Fleet(board, draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    profile = st.sampled_from(BOARDS[name])
    hour = draw(st.sampled_from([1, 3600]))  # of hours, runs go over several days
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(-2, 60),
                st.lists(st.tuples(profile, st.integers(0, 20)), min_size=1, max_size=3),
                st.integers(1, fleet.gpus_per_node),
                st.sampled_from([None, 8.0, 40.0]),
            ),
            min_size=1,
            max_size=20,
        )
    )
    phases = pl.DataFrame(
        [
            (str(number), name, float(run * hour), gpus if name == "gpu" else 1, sms)
            for number, (_, chain, gpus, sms) in enumerate(rows)
            for name, run in chain
        ],
        schema={"job_id": str, "profile": str, "run_s": float, "gpus": pl.Int32, "sms_needed": float},
        orient="row",
    ).with_columns(limit_s="run_s")
    first = phases.unique("job_id", keep="first", maintain_order=True)
    submit = pl.Series([float(submit * hour) for submit, *_ in rows])
    jobs = first.with_columns(tenant=pl.lit("t"), submit_s=submit)
    keep = draw(st.integers(0, fleet.gpus - 1))
    policy = OnDemand(
        {STARTS[name]: draw(st.integers(0, fleet.gpus - keep))},
        patience_s=float(draw(st.sampled_from([0, 0, 7 * hour]))),
        drain_after_s=draw(st.sampled_from([None, 0.0, 5.0 * hour])),
        switches_per_day=draw(st.sampled_from([None, None, 0, 1, 3])),
        keep_whole=keep,
    )
    change = ChangeCost.of(
        board,
        draw(st.sampled_from(["nvml", "nvml", "operator"])),
        change_s=draw(st.sampled_from([0.0, 0.0, 5.0])),
        instance_s=draw(st.sampled_from([0.0, 0.25, 2.0])),
        reboot_s=draw(st.sampled_from([0.0, 30.0])),
        restart_s=draw(st.sampled_from([0.0, 3.0])),
    )
    rules = Rules(draw(st.sampled_from(["strict", "easy"])), draw(st.booleans()), change=change)
    return jobs, fleet, policy, rules, draw(st.sampled_from([None, phases]))


def run_of(jobs, fleet, policy, rules, phases):
    return simulate(jobs, fleet, policy, rules, policy="p", leave_unservable=True, phases=phases, until_s=1.0)


def changes_are_bounded(run, fleet, needs):
    """A change is begun for somebody who waits, so there are not many more of them than needs."""
    assert run.states.height <= 8 * fleet.gpus_per_node * (fleet.gpus + int(needs["gpus"].sum()))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_nothing_impossible_happens(case):
    jobs, fleet, policy, rules, phases = case
    run = run_of(*case)
    states_cover_the_run(run, fleet)
    every_placement_is_legal(run, fleet)
    spells = run.spells.drop_nulls("start_s").to_dicts()
    nothing_is_shared(spells, fleet)
    instances_stand_while_they_are_held(run, spells, fleet)
    profiles_suffice(spells, fleet, rules)
    work_is_conserved(run, spells, jobs, fleet, rules, phases)
    limits_are_kept(run, fleet, policy, rules)
    changes_are_bounded(run, fleet, jobs if phases is None else phases)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_every_job_that_fits_is_served_in_the_end(case):
    jobs, fleet, policy, rules, phases = case
    assume(policy.switches_per_day != 0)
    misfits = unservable(jobs, fleet, policy, rules, phases=phases)
    assert run_of(*case).outcomes["end"].null_count() == misfits.height == 0


@settings(max_examples=30, deadline=None)
@given(cases())
def test_without_switches_it_is_the_static_layout(case):
    jobs, fleet, policy, rules, _ = case
    frozen = dataclasses.replace(policy, switches_per_day=0)
    on_demand = run_of(jobs, fleet, frozen, rules, None)
    static = run_of(jobs, fleet, frozen.opening(fleet), rules, None)
    assert on_demand.outcomes.equals(static.outcomes)
    assert on_demand.states.drop("placements").equals(static.states)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_holding_the_largest_need_never_moves_a_job(case):
    jobs, fleet, policy, rules, phases = case
    assume(phases is not None)
    run = run_of(jobs, fleet, policy, rules, hold_largest(phases, fleet.model))
    assert run.spells["lost_s"].sum() == 0.0
    for rows in run.spells.partition_by("job_id"):
        assert rows.select("node", "gpu", "slice", "served_on").n_unique() == 1
        assert rows["start_s"].to_list()[1:] == rows["end_s"].to_list()[:-1]


@settings(max_examples=30, deadline=None)
@given(cases())
def test_the_same_input_gives_the_same_run(case):
    one, other = run_of(*case), run_of(*case)
    assert one.outcomes.equals(other.outcomes)
    assert one.states.equals(other.states)
    assert one.spells.equals(other.spells)
