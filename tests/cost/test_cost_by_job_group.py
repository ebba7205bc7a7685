"""The bill by user, partition, project and job class: each table is the same bill."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory
from gpuplanner.cost.monthly_cost_review import JOB_COST_GROUPS, CostReview, cost_review
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.grouped_usage import group_ledger
from gpuplanner.usage.period_accounts import describe_jobs
from gpuplanner.usage.planning_history import load_dataset

JOBS = """job_id,user,team,project,partition,class,submit,start,end,gpus,gpu_model
1,ada,vision,atlas,prod,pretraining,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,2,H100-80GB-SXM5
2,bob,vision,,dev,evaluation,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,1,A100-80GB
3,cyd,speech,atlas,prod,evaluation,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,2026-03-01T20:00:00Z,2,A100-80GB
"""
BOOK = """prices:
- {gpu_model: H100-80GB-SXM5, kind: on_demand, price: 4, unit: USD per GPU h, from: 2026-01, source: offer 1}
- {gpu_model: A100-80GB, kind: on_demand, price: 1, unit: USD per GPU h, from: 2026-01, source: offer 2}
"""


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> CostReview:
    folder = tmp_path_factory.mktemp("bill")
    (folder / "jobs.csv").write_text(JOBS)
    (folder / "prices.yaml").write_text(BOOK)
    nodes = pl.DataFrame({"node": ["h1", "a1"], "gpu_model": ["H100-80GB-SXM5", "A100-80GB"], "gpus": [2, 2]})
    nodes = check_table(nodes, Inventory, source="inventory")
    dataset = read("job-table", folder / "jobs.csv")
    tiers = pl.col("job_id").replace_strict({"1": "gold", "3": "guaranteed"}, default=None)
    jobs = dataset.jobs.with_columns(tier=tiers)
    write_dataset(dataset.with_tables(inventory=nodes, jobs=jobs), folder / "data")
    book = str(folder / "prices.yaml")
    return cost_review(Scenario(data=str(folder / "data"), price_book=book, ownership="rented"))


def _costs(review: CostReview, by: str) -> dict[str, Decimal]:
    return dict(review.table_by(by).select(by, "cost").iter_rows())


def test_each_table_is_the_bill_counted_by_hand(review: CostReview):
    """Twenty hours: 2 H100 at 4 USD and 2 A100 at 1 USD are 200 USD; jobs use 20 H100-hours and 10 + 20 A100-hours."""
    begin, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, 20, tzinfo=UTC)
    assert (review.job_history.begin, review.job_history.end) == (begin, end)
    assert review.total == Decimal("200.00")
    unallocated = {"__unallocated__": Decimal(90)}
    assert _costs(review, "user") == {"ada": 80, "cyd": 20, "bob": 10} | unallocated
    assert _costs(review, "partition") == {"prod": 100, "dev": 10} | unallocated
    assert _costs(review, "project") == {"atlas": 100, "not stated": 10} | unallocated
    assert _costs(review, "tier") == {"gold": 80, "guaranteed": 20, "not stated": 10} | unallocated
    assert _costs(review, "job_class") == {"pretraining": 80, "evaluation": 30} | unallocated
    for by in JOB_COST_GROUPS:
        table = review.table_by(by)
        assert table["cost"].sum() == review.total
        assert table["gpu_hours"].sum() == pytest.approx(80.0)
        assert table["energy_kwh"].sum() == pytest.approx(review.by_tenant["energy_kwh"].sum(), abs=1e-5)


def test_the_bill_of_the_sample_by_user_sums_to_that_of_each_team():
    review = cost_review(Scenario(month="2026-02", price_per_gpu_hour=2.0))
    users = review.table_by("user").filter(pl.col("user") != "__unallocated__")
    teams = users.group_by(tenant=pl.col("user").str.replace(r"-u\d+$", "")).agg(pl.col("cost").sum())
    by_tenant = review.by_tenant.filter(pl.col("tenant") != "__unallocated__").select("tenant", "cost")
    assert dict(teams.iter_rows()) == dict(by_tenant.iter_rows())


def test_tiers_have_the_gpu_hours_of_the_description_and_the_cost_of_the_bill():
    """At 2 USD an hour the cost of each tier is twice its allocated GPU-hours, in the ledger and in the description."""
    cluster = gp.open("sample")
    costs = cluster.cost(by="tier", prices=2.0).df
    assert costs["cost"].sum() == Decimal(86016)
    cost = dict(costs.filter(pl.col("tier") != "Unallocated").select("tier", pl.col("cost").cast(float)).iter_rows())
    described = describe_jobs(load_dataset("sample")).tables["allocated GPU-hours and queue waits by tier"]
    ledger = cluster.ledger(by=["tier", "team", "week"]).df.group_by("tier").agg(pl.col("gpu_hours").sum())
    for table in (described, ledger):
        assert {tier: 2 * hours for tier, hours in table.select("tier", "gpu_hours").iter_rows()} == pytest.approx(
            cost, abs=0.02
        )


def test_a_ledger_by_tier_needs_jobs_that_state_one():
    trace = load_dataset("sample")
    with pytest.raises(TraceFormatError, match="jobs that state their tier"):
        group_ledger(trace.with_tables(jobs=trace.jobs.with_columns(tier=pl.lit(None, pl.String))), "tier")


def test_slurm_keys_are_projects(tmp_path: Path):
    lines = ["JobID|State|Submit|Start|End|AllocTRES|Account|WCKey"]
    times = "2025-09-01T08:00:00+00:00|2025-09-01T09:00:00+00:00|2025-09-01T11:00:00+00:00"
    for number, key in enumerate(("*atlas", "atlas", "", "hermes"), start=1):
        lines.append(f"{number}|COMPLETED|{times}|gres/gpu=1|vision|{key}")
    (tmp_path / "sacct.txt").write_text("\n".join(lines) + "\n")
    jobs = read("slurm", tmp_path / "sacct.txt").jobs.sort("job_id")
    assert jobs["project"].to_list() == ["atlas", "atlas", None, "hermes"]
