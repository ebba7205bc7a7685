"""Shares, entitlements and borrowing: by hand, second by second, and by identities."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.lab.gangs import GangRules, run_gangs, schedule
from gpuplanner.metrics import (
    NOBODY,
    Claims,
    always_on,
    borrowing,
    claims,
    entitlements,
    jain_index,
    measure,
    shares_over_time,
    tenant_accounts,
)
from gpuplanner.simulate import Calendar, Checkpoints, FairShare, Fleet, Rules, simulate

GPUS = 4
FLEET = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=GPUS)
BY_THE_SECOND = [
    *(GangRules(queue="pass", order=order) for order in ("fifo", "sjf", "fair")),
    GangRules(queue="strict", tiers_preempt=True, checkpoints=Checkpoints(5.0)),
]
"""Rules under which whole seconds stay whole; the last one stops jobs."""


@st.composite
def shared_pools(draw):
    """A small pool shared by up to four tenants, in whole seconds, and entitlements."""
    job = st.tuples(
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(1, GPUS),
        st.sampled_from("abcd"),
        st.integers(0, 1),
    )
    rows = draw(st.lists(job, min_size=1, max_size=30))
    names = ["submit_s", "run_s", "gpus", "tenant", "tier"]
    jobs = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String), profile=pl.lit("gpu")
    )
    rules = draw(st.sampled_from(BY_THE_SECOND))
    shares = {tenant: draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for tenant in "abc"}
    return jobs, rules, entitlements(GPUS, "abcd", shares)


def second_by_second(spells, entitled, until):
    """The definitions, evaluated in the middle of every second: jobs change at whole seconds only."""
    sums: dict[tuple[str, str], float] = {}
    pairs: dict[tuple[str, str], float] = {}
    rows = spells.select("tenant", "since_s", "start_s", "end_s", "gpus").rows()
    for second in range(until):
        now = second + 0.5
        above, lacking = {}, {}
        for tenant, due_to in entitled.items():
            mine = [row[1:] for row in rows if row[0] == tenant]
            held = sum(gpus for _, start, end, gpus in mine if start <= now < end)
            waiting = sum(gpus for submit, start, _, gpus in mine if submit <= now < start)
            due = min(held + waiting, due_to)
            above[tenant], lacking[tenant] = max(0.0, held - due_to), max(0.0, due - held)
            for name, value in (
                ("held", held),
                ("due", due),
                ("deficit", lacking[tenant]),
                ("above", above[tenant]),
                ("unclaimed", max(0.0, due_to - held - waiting)),
                ("starving", float(waiting > 0 and held == 0 and due_to > 0)),
            ):
                sums[tenant, name] = sums.get((tenant, name), 0.0) + value
        more, less = sum(above.values()), sum(lacking.values())
        above[NOBODY], lacking[NOBODY] = max(0.0, less - more), max(0.0, more - less)
        for (one, b), (other, d) in itertools.product(above.items(), lacking.items()):
            if min(b, d) > 1e-9:
                pairs[one, other] = pairs.get((one, other), 0.0) + b * d / max(more, less)
    return sums, pairs


@settings(max_examples=50, deadline=None)
@given(shared_pools())
def test_sweeps_equal_the_definitions_second_by_second(case):
    jobs, rules, entitled = case
    run = run_gangs(jobs, FLEET, rules, policy="p")
    until = int(run.outcomes["end"].max())
    if not until:
        return
    claimed = claims(run, window=(0.0, float(until)))
    accounts = tenant_accounts(claimed, entitled)
    sums, pairs = second_by_second(run.spells, entitled, until)
    assert accounts["tenant"].to_list() == sorted(entitled)
    for row in accounts.iter_rows(named=True):
        for name in ("held", "due", "deficit", "above", "unclaimed"):
            assert row[f"{name}_gpu_hours"] * 3600 == pytest.approx(sums[row["tenant"], name], abs=1e-6)
        assert row["starvation_h"] * 3600 == pytest.approx(sums[row["tenant"], "starving"])
        assert row["longest_starvation_h"] <= row["starvation_h"] + 1e-12
    found = {(b, d): hours * 3600 for b, d, hours in borrowing(claimed, entitled).rows()}
    assert found == pytest.approx(pairs, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(shared_pools())
def test_all_that_is_borrowed_is_lent_and_shares_sum_to_utilisation(case):
    jobs, rules, entitled = case
    run = run_gangs(jobs, FLEET, rules, policy="p")
    if not run.outcomes["end"].max():
        return
    claimed = claims(run, window=(0.0, float(run.outcomes["end"].max())))
    accounts = tenant_accounts(claimed, entitled)
    pairs = borrowing(claimed, entitled)
    for side, total in (("borrower", "above_gpu_hours"), ("lender", "deficit_gpu_hours")):
        attributed = dict(pairs.group_by(side).agg(pl.col("gpu_hours").sum()).iter_rows())
        for tenant, hours in accounts.select("tenant", total).iter_rows():
            assert attributed.get(tenant, 0.0) == pytest.approx(hours, abs=1e-9)
    assert not pairs.filter(pl.col("borrower") == pl.col("lender")).height
    busy = measure(always_on(run, GPUS), "H100-80GB-SXM5")
    assert accounts["held_gpu_hours"].sum() == pytest.approx(busy["busy_gpu_hours"])
    over_time = shares_over_time(claimed, slot_s=7.0)
    assert over_time["gpus"].sum() * 7 / 3600 == pytest.approx(busy["busy_gpu_hours"])
    assert over_time["gpus"].max() <= GPUS
    shares = over_time.drop_nulls("share").group_by("slot_s").agg(pl.col("share").sum())["share"]
    assert np.allclose(shares, 1.0)


def test_alone_nothing_is_lacking_that_could_be_given():
    jobs = pl.DataFrame(
        {
            "job_id": list("abc"),
            "tenant": "only",
            "submit_s": 0.0,
            "run_s": [50.0, 20.0, 10.0],
            "gpus": [2, 2, 4],
            "profile": "gpu",
        }
    )
    claimed = claims(schedule(jobs, FLEET, GangRules(queue="strict"), policy="p"))
    row = tenant_accounts(claimed, {"only": 4.0}).row(0, named=True)
    # From 20 to 50 s two GPUs are due and idle: the queue, not another tenant, is in the way.
    assert row["deficit_gpu_hours"] * 3600 == pytest.approx(60.0)
    assert borrowing(claimed, {"only": 4.0}).rows() == [(NOBODY, "only", pytest.approx(60 / 3600))]
    alone = claims(schedule(jobs.head(2), FLEET, GangRules(queue="strict"), policy="p"))
    assert tenant_accounts(alone, {"only": 4.0})["deficit_gpu_hours"].sum() == 0
    assert borrowing(alone, {"only": 4.0}).is_empty()


def test_instances_count_their_slices():
    jobs = pl.DataFrame(
        {
            "job_id": ["a", "b", "c"],
            "tenant": ["x", "y", "y"],
            "submit_s": 0.0,
            "run_s": 70.0,
            "gpus": 1,
            "profile": ["3g.40gb", "3g.40gb", "3g.40gb"],
        }
    )
    fleet = Fleet("H100-80GB-SXM5", 1, 1)
    run = simulate(jobs, fleet, Calendar.constant({"3g.40gb:2": 1}), Rules(queue="strict"), policy="p")
    claimed = claims(run, "H100-80GB-SXM5")
    rows = tenant_accounts(claimed, {"x": 3 / 7, "y": 4 / 7}).select(
        "tenant", "held_gpu_hours", "deficit_gpu_hours"
    )
    hour = 70 / 3600
    assert rows.rows() == [
        ("x", pytest.approx(3 / 7 * hour), 0.0),
        ("y", pytest.approx(6 / 7 * hour), pytest.approx(1 / 7 * hour)),
    ]
    with pytest.raises(SchemaError, match="Name the board"):
        claims(run)


def test_jobs_that_never_start_or_end_claim_until_the_end_of_the_window():
    outcomes = pl.DataFrame(
        {
            "job_id": ["a", "b"],
            "tenant": ["x", "y"],
            "submit": [0.0, 10.0],
            "first_start": [0.0, None],
            "end": [None, None],
            "gpus": 4,
            "profile": "gpu",
            "served_on": ["gpu", None],
            "preemptions": 0,
        },
        schema_overrides={"end": pl.Float64, "first_start": pl.Float64},
    )
    accounts = tenant_accounts(claims(outcomes, window=(0.0, 3600.0)), {"x": 2.0, "y": 2.0})
    assert accounts["held_gpu_hours"].to_list() == [4.0, 0.0]
    assert accounts["starvation_h"].to_list() == [0.0, pytest.approx(3590 / 3600)]


def test_stopped_jobs_are_refused_by_name():
    outcomes = pl.DataFrame({"job_id": ["a"], "preemptions": [2]})
    with pytest.raises(SchemaError, match=r"1 that were stopped: 'a'.*with its spells"):
        claims(outcomes)


def test_a_stopped_job_can_be_given_as_several_claims():
    table = pl.DataFrame(
        {
            "tenant": "x",
            "submit_s": [0.0, 30.0],
            "start_s": [0.0, 50.0],
            "end_s": [30.0, 60.0],
            "wanted": 1,
            "held": 1,
        }
    )
    row = tenant_accounts(Claims(table, 1, (0.0, 60.0)), {"x": 1.0}).row(0, named=True)
    assert row["held_gpu_hours"] * 3600 == pytest.approx(40.0)
    assert row["starvation_h"] * 3600 == pytest.approx(20.0)


def test_entitlements_follow_the_shares_of_the_rules():
    shares = FairShare(shares={"a": 2.0}).shares
    assert entitlements(9, ["a", "b"], shares) == {"a": 6.0, "b": 3.0}
    with pytest.raises(SchemaError, match="shares"):
        entitlements(9, ["a"], {"a": 0.0})
    assert entitlements(9, []) == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_jain_lies_between_one_nth_and_one(values):
    found = jain_index(values)
    if found is not None:
        assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9


def test_empty_runs_have_empty_accounts():
    nothing = claims(schedule(_no_jobs(), FLEET, GangRules(queue="strict"), policy="p"))
    assert tenant_accounts(nothing, {}).is_empty()
    assert borrowing(nothing, {}).is_empty()


def _no_jobs() -> pl.DataFrame:
    numbers = {"submit_s": float, "run_s": float, "gpus": int}
    return pl.DataFrame(schema={"job_id": pl.String, "tenant": pl.String, "profile": pl.String} | numbers)
