"""Shares, entitlements and borrowing: by hand, second by second, and by identities."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.simulator.scheduling_rules import Checkpoints, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests
from gpuplanner.usage.fair_share import (
    NO_TENANT_LABEL,
    Claims,
    borrowed_hours,
    entitled_by_shares,
    jain_index,
    shares_over_time,
    tenant_accounts,
)
from tests.examples import examples
from tests.simulator.equal_nodes import start_jobs

GPUS = 4
RULES = ("fifo", "pass", "sjf", "tiers")
"""Queues under which whole seconds stay whole; the last one stops jobs."""


@st.composite
def shared_pools(draw):
    """A small pool shared by up to four tenants, in whole seconds: jobs, a rule and entitlements."""
    job = st.tuples(
        st.integers(0, 40), st.integers(0, 20), st.integers(1, GPUS), st.sampled_from("abcd"), st.integers(0, 1)
    )
    rows = sorted(draw(st.lists(job, min_size=1, max_size=30)), key=lambda row: row[0])
    shares = {tenant: draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for tenant in "abc"}
    return rows, draw(st.sampled_from(RULES)), entitled_by_shares(GPUS, "abcd", shares)


def spells_of(rows, rule):
    """When each job waited and held its GPUs: ``tenant, submit_s, start_s, end_s, wanted, held``, run by run."""
    submit_s, run_s, gpus = (np.array([row[column] for row in rows], float) for column in range(3))
    tenant = [row[3] for row in rows]
    if rule == "tiers":
        none, one = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64)
        tiers = Sharing(none, [row[4] for row in rows], tiers_preempt=True, checkpoints=Checkpoints(5.0))
        requests = NodeRequests(submit_s, submit_s, run_s, run_s, none, gpus, one)
        runs = simulate_shared_requests(requests, NodeFleet.of_full_gpus([GPUS]), tiers, queue="strict").runs()
        number, begun, end = (runs[name].to_numpy() for name in ("request", "begun_s", "at_s"))
    else:
        begun = start_jobs(submit_s, run_s, gpus.astype(np.int64), nodes=1, gpus_per_node=GPUS, queue=rule)
        number, end = np.arange(len(rows)), begun + run_s
    before = np.concatenate([[-1], number[:-1]]) == number  # it waited since its last run ended
    since = np.where(before, np.concatenate([[0.0], end[:-1]]), submit_s[number])
    held = gpus[number].astype(int)
    return pl.DataFrame(
        {
            "tenant": [tenant[job] for job in number], "submit_s": since, "start_s": begun, "end_s": end,
            "wanted": held, "held": held,
        }
    )  # fmt: skip


def second_by_second(spells, entitled, until):
    """The definitions, evaluated in the middle of every second: jobs change at whole seconds only."""
    sums: dict[tuple[str, str], float] = {}
    pairs: dict[tuple[str, str], float] = {}
    rows = spells.select("tenant", "submit_s", "start_s", "end_s", "held").rows()
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
        above[NO_TENANT_LABEL], lacking[NO_TENANT_LABEL] = max(0.0, less - more), max(0.0, more - less)
        for (one, b), (other, d) in itertools.product(above.items(), lacking.items()):
            if min(b, d) > 1e-9:
                pairs[one, other] = pairs.get((one, other), 0.0) + b * d / max(more, less)
    return sums, pairs


@settings(max_examples=examples(50), deadline=None)
@given(shared_pools())
def test_accounts_equal_the_definitions_second_by_second(case):
    rows, rule, entitled = case
    spells = spells_of(rows, rule)
    until = int(spells["end_s"].max())
    if not until:
        return
    claimed = Claims(spells, 1, (0.0, float(until)))
    accounts = tenant_accounts(claimed, entitled)
    sums, pairs = second_by_second(spells, entitled, until)
    assert accounts["tenant"].to_list() == sorted(entitled)
    for row in accounts.iter_rows(named=True):
        for name in ("held", "due", "deficit", "above", "unclaimed"):
            column = "allocated" if name == "held" else name
            assert row[f"{column}_gpu_hours"] * 3600 == pytest.approx(sums[row["tenant"], name], abs=1e-6)
        assert row["starved_hours"] * 3600 == pytest.approx(sums[row["tenant"], "starving"])
        assert row["longest_starvation_h"] <= row["starved_hours"] + 1e-12
    found = {(b, d): hours * 3600 for b, d, hours in borrowed_hours(claimed, entitled).rows()}
    assert found == pytest.approx(pairs, abs=1e-6)


@settings(max_examples=examples(50), deadline=None)
@given(shared_pools())
def test_all_that_is_borrowed_is_lent_and_shares_sum_to_what_was_held(case):
    rows, rule, entitled = case
    spells = spells_of(rows, rule)
    if not spells["end_s"].max():
        return
    claimed = Claims(spells, 1, (0.0, float(spells["end_s"].max())))
    accounts = tenant_accounts(claimed, entitled)
    pairs = borrowed_hours(claimed, entitled)
    for side, total in (("borrower", "above_gpu_hours"), ("lender", "deficit_gpu_hours")):
        attributed = dict(pairs.group_by(side).agg(pl.col("gpu_hours").sum()).iter_rows())
        for tenant, hours in accounts.select("tenant", total).iter_rows():
            assert attributed.get(tenant, 0.0) == pytest.approx(hours, abs=1e-9)
    assert not pairs.filter(pl.col("borrower") == pl.col("lender")).height
    held_h = ((spells["end_s"] - spells["start_s"]) * spells["held"]).sum() / 3600
    assert accounts["allocated_gpu_hours"].sum() == pytest.approx(held_h)
    over_time = shares_over_time(claimed, slot_s=7.0)
    assert over_time["gpus"].sum() * 7 / 3600 == pytest.approx(held_h)
    assert over_time["gpus"].max() <= GPUS
    shares = over_time.drop_nulls("share").group_by("slot_s").agg(pl.col("share").sum())["share"]
    assert np.allclose(shares, 1.0)


def test_instances_count_their_slices():
    """Two of three instances of 3/7 run for 70 s, then the third one."""
    table = pl.DataFrame(
        {
            "tenant": ["x", "y", "y"],
            "submit_s": 0.0,
            "start_s": [0.0, 0.0, 70.0],
            "end_s": [70.0, 70.0, 140.0],
            "wanted": 3,
            "held": 3,
        }
    )
    rows = tenant_accounts(Claims(table, 7, (0.0, 140.0)), {"x": 3 / 7, "y": 4 / 7})
    hour = 70 / 3600
    assert rows.select("tenant", "allocated_gpu_hours", "deficit_gpu_hours").rows() == [
        ("x", pytest.approx(3 / 7 * hour), 0.0),
        ("y", pytest.approx(6 / 7 * hour), pytest.approx(1 / 7 * hour)),
    ]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_jain_lies_between_one_nth_and_one(values):
    found = jain_index(values)
    if found is not None:
        assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
