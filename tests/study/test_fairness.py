"""Fairness of whole policies."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import SchemaError
from gpuplanner.simulate import Checkpoints, Failures, FairShare, Fleet, Rules, schedule
from gpuplanner.study.future.fairness import fairness

FLEET = Fleet("H100-80GB-SXM5", nodes=2, gpus_per_node=8)


def two_tenants(jobs: int = 600) -> pl.DataFrame:
    """A tenant that floods the queue at once, and one that comes now and then."""
    rng = np.random.default_rng(2)
    flood = rng.random(jobs) < 0.8
    return pl.DataFrame(
        {
            "job_id": np.arange(jobs).astype(str),
            "tenant": np.where(flood, "flood", "meek"),
            "submit_s": np.where(flood, 0.0, np.sort(rng.uniform(0, 40_000, jobs))),
            "run_s": rng.integers(300, 2000, jobs).astype(float),
            "gpus": rng.choice([1, 2], jobs),
            "profile": "gpu",
        }
    )


def test_fair_share_takes_from_those_who_flood_and_gives_to_the_others():
    jobs = two_tenants()
    fifo = fairness(jobs, FLEET, Rules(queue="strict"))
    fair = fairness(jobs, FLEET, Rules(queue="strict", order="fair"))
    lacking = {
        name: found.tenants.filter(tenant="meek").row(0, named=True)
        for name, found in (("fifo", fifo), ("fair", fair))
    }
    assert lacking["fair"]["deficit_gpu_hours"] < 0.5 * lacking["fifo"]["deficit_gpu_hours"]
    assert lacking["fair"]["mean_rho"] < lacking["fifo"]["mean_rho"]
    assert lacking["fair"]["starvation_h"] < lacking["fifo"]["starvation_h"]
    assert fair.jain_satisfaction > fifo.jain_satisfaction
    parts = dict(fifo.borrowed.filter(lender="meek").select("borrower", "gpu_hours").iter_rows())
    assert set(parts) == {"flood", "-"}
    assert sum(parts.values()) == pytest.approx(lacking["fifo"]["deficit_gpu_hours"])
    assert parts["flood"] > 10 * parts["-"]


def test_everything_is_fair_to_a_single_tenant():
    jobs = two_tenants(200).with_columns(tenant=pl.lit("only"))
    pool = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=16)
    found = fairness(jobs, pool, Rules(queue="pass"))
    assert found.mean_rho == found.max_rho == found.jain_rho == found.jain_satisfaction == 1.0
    assert set(found.borrowed["borrower"]) <= {"-"}


@pytest.mark.parametrize(
    "rules",
    [
        Rules(queue="pass", failures=Failures(mtbf_gpu_h=2.0), checkpoints=Checkpoints(interval_s=600.0)),
    ],
)
def test_where_jobs_are_stopped_tenants_are_charged_for_what_was_held(rules):
    jobs = two_tenants(200)
    found = fairness(jobs, FLEET, rules)
    outcomes = schedule(jobs, FLEET, rules, policy="p")
    assert outcomes["preemptions"].sum() > 20
    held = (jobs["run_s"] * jobs["gpus"] + outcomes["lost_gpu_s"]).sum()
    assert found.tenants["held_gpu_hours"].sum() * 3600 == pytest.approx(held)
    lent = found.borrowed.filter(lender="meek")["gpu_hours"].sum()
    assert lent == pytest.approx(found.tenants.filter(tenant="meek")["deficit_gpu_hours"].item())


def test_shares_come_from_the_rules_unless_given():
    jobs = two_tenants(50)
    rules = Rules(queue="pass", order="fair", fair_share=FairShare(shares={"meek": 3.0}))
    by_rules = fairness(jobs, FLEET, rules).tenants
    assert by_rules["entitled_gpus"].to_list() == [4.0, 12.0]
    given = fairness(jobs, FLEET, rules, shares={"flood": 7.0}).tenants
    assert given["entitled_gpus"].to_list() == [14.0, 2.0]
    with pytest.raises(SchemaError, match="meek"):
        fairness(jobs, FLEET, rules, shares={"meek": 0.0})
