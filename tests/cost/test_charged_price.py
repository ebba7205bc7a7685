"""The stated price is the one that was charged, and each row of the price book is used or named."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory
from gpuplanner.cost.monthly_cost_review import CostReview, cost_review, price_rows
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read

JOBS = """job_id,user,team,submit,start,end,gpus,gpu_model
1,ada,vision,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,2,H100-80GB-SXM5
2,bob,speech,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T20:00:00Z,3,A100-80GB
"""
BOOK = """prices:
- {gpu_model: A100-80GB, kind: on_demand, price: 2, unit: EUR per GPU h, from: 2025-01, to: 2026-02, source: offer 1}
- {gpu_model: A100-80GB, kind: on_demand, price: 1, unit: EUR per GPU h, from: 2026-03, source: offer 2}
- {gpu_model: A100-80GB, kind: reserved_3y, price: 0.5, unit: USD per GPU h, from: 2026-01, source: offer 3}
- {gpu_model: T4, kind: spot, price: 0.1, unit: USD per GPU h, from: 2026-01, source: offer 4}
owned:
- {gpu_model: H100-80GB-SXM5, gpus: 2, capex: 43830, unit: USD per GPU, bought: 2025-01-01, life_years: 5,
   staff: 876.6, source: invoice}
rates:
- {from: EUR, to: USD, rate: 1.3, date: 2026-01-02, source: old}
- {from: EUR, to: USD, rate: 1.2, date: 2026-02-02, source: new}
- {from: GBP, to: USD, rate: 1.4, date: 2026-02-02, source: pound}
electricity:
- {price: 0.1, unit: USD per kWh, from: 2026-01, source: supply}
"""


@pytest.fixture
def review(tmp_path: Path):
    def make(ownership: dict[str, str], **settings: object) -> CostReview:
        """Review the cost of two H100 and three A100 with these ownerships by node, over twenty hours."""
        (tmp_path / "jobs.csv").write_text(JOBS)
        (tmp_path / "prices.yaml").write_text(BOOK)
        nodes = {"node": ["h", "a"], "gpu_model": ["H100-80GB-SXM5", "A100-80GB"], "gpus": [2, 3]}
        inventory = pl.DataFrame(nodes).with_columns(ownership=pl.col("node").replace_strict(ownership, default=None))
        inventory = check_table(inventory.filter(pl.col("node").is_in([*ownership])), Inventory, source="inventory")
        dataset = read("job-table", tmp_path / "jobs.csv")
        jobs = dataset.jobs.filter(pl.col("gpu_model").cast(pl.String).is_in(inventory["gpu_model"].to_list()))
        write_dataset(dataset.with_tables(inventory=inventory, jobs=jobs), tmp_path / "data")
        scenario = Scenario(data=str(tmp_path / "data"), price_book=str(tmp_path / "prices.yaml"))
        return cost_review(scenario.but(**settings))

    return make


def check_price(review: CostReview, total: float, components: dict[str, float]) -> None:
    """Check that the stated price times the GPU-hours is the total, as counted by hand, and its parts sum to it."""
    stated, hours = review.to_dict()["price"], review.by_gpu_model["gpu_hours"].sum()
    assert stated["value"] * hours == pytest.approx(float(review.total or 0))
    assert float(review.total or 0) == pytest.approx(total, abs=0.01)
    assert stated["components"] == pytest.approx(components, rel=1e-3)
    assert stated["low"] <= stated["value"] <= stated["high"]
    if components:
        assert sum(stated["components"].values()) == pytest.approx(stated["value"])


def test_owned_gpus_have_the_price_of_owning(review):
    found = review({"h": "owned"})
    kwh = found.energy.value
    parts = {"depreciation": 1.0, "space": 0.0, "support": 0.0, "staff": 0.1, "electricity": 0.1 * kwh / 40}
    check_price(found, 40 * 1.1 + 0.1 * kwh, parts)
    rate, *components = [Decimal(number) for number in re.findall(r"\d\.\d+", found.rate_text)]
    assert sum(components) == rate  # to the last printed digit
    assert [float(part) for part in components] == pytest.approx([1.0, 0.1, 0.1 * kwh / 40], abs=1e-3)


def test_rented_gpus_have_the_price_of_renting(review):
    check_price(review({"a": "on_demand"}), 60 * 1.2, {})


def test_owned_and_rented_gpus_have_the_mean_price(review):
    found = review({"h": "owned", "a": "on_demand"})
    hours = found.by_gpu_model["gpu_hours"].sum()
    owned_hours = hours - 60
    kwh = found.by_ownership.filter(ownership="owned")["energy_kwh"].item()
    parts = {"depreciation": owned_hours, "space": 0.0, "support": 0.0, "staff": 0.1 * owned_hours}
    parts |= {"electricity": 0.1 * kwh, "on_demand": 60 * 1.2}
    check_price(found, sum(parts.values()), {name: part / hours for name, part in parts.items()})


def test_a_rate_of_the_user_and_a_list_price_are_stated_as_they_are(review):
    check_price(review({"h": "owned", "a": "on_demand"}, price_per_gpu_hour=2.5), 250, {})
    both = review({"h": "on_demand", "a": "on_demand"}, price_book=None)
    check_price(both, sum(map(float, both.by_gpu_model["cost"])), {})
    assert both.price.source.startswith("mean by GPU-hours: median of")
    assert "per installed GPU-hour;" in both.total_text
    found = review({"a": "on_demand"}, price_book=None)
    assert found.price.source.startswith("median of")
    check_price(found, 60 * found.price.value, {})


@pytest.mark.parametrize(
    ("ownership", "unused", "used"),
    [
        (
            {"h": "owned", "a": "on_demand"},
            ["reserved_3y, A100-80GB", "spot, T4"],
            ["offer 2", "invoice", "supply", "new"],
        ),
        (
            {"h": "on_demand", "a": "reserved"},
            ["on_demand, A100-80GB", "owned, H100-80GB-SXM5", "spot, T4", "electricity"],
            ["offer 3"],
        ),
    ],
)
def test_each_row_of_the_price_book_is_used_or_named(review, ownership, unused, used):
    found = review(ownership)
    texts = [text for text in found.missing if "not used for this cost" in text]
    assert len(texts) == len(unused)
    for row in unused:
        assert any(f"{row}, is not used" in text or text.startswith(f"prices.yaml: {row} is not") for text in texts)
    shown = [price_rows(review(ownership, gpu_model=name)) for name in ("A100-80GB", "H100-80GB-SXM5")]
    sources = pl.concat(shown).filter("used_for_this_cost")["source"].str.split(":").list.first()
    assert {source for source in sources if not source.startswith(("aws", "azure", "gcp"))} == {*used}


def test_electricity_is_used_by_owned_gpus_alone(review):
    """Rents include electricity; an amount in another currency has the last exchange rate before the end."""
    used = {
        kind: set(price_rows(review({"h": kind})).filter("used_for_this_cost")["kind"])
        for kind in ("owned", "reserved")
    }
    assert used == {"owned": {"owned", "electricity"}, "reserved": {"on_demand"}}
    rented = price_rows(review({"a": "on_demand"})).filter("used_for_this_cost")
    assert rented.select("kind", "source").rows() == [("on_demand", "offer 2"), ("exchange", "new")]


@pytest.mark.parametrize("price", [1.0, 5.511428571, 0.0371])
def test_the_printed_rate_times_the_hours_is_the_total_to_the_cent(review, price):
    found = review({"h": "owned", "a": "owned"}, price_per_gpu_hour=price)
    rate, hours = found.rate_text.split()[0], found.costs["PricingQuantity"].sum()
    assert round(Decimal(rate) * Decimal(repr(hours)), 2) == found.total


def test_gpus_bought_after_the_period_began_are_named(review, tmp_path):
    def texts(day: str) -> list[str]:
        return [text for text in find(day).missing if "bought on" in text]

    def find(day: str) -> CostReview:
        review({"h": "owned"})
        book = (tmp_path / "prices.yaml").read_text().replace("2025-01-01", day)
        (tmp_path / f"{day}.yaml").write_text(book)
        return cost_review(
            Scenario(data=str(tmp_path / "data"), price_book=str(tmp_path / f"{day}.yaml"), ownership="owned")
        )

    assert texts("2026-02-28") == []
    text = "2026-03-02.yaml: owned, H100-80GB-SXM5: 2 GPUs bought on 2026-03-02 are charged from 2026-03-01."
    assert texts("2026-03-02") == [text]


def test_the_json_has_each_team_in_each_month_and_week(review):
    priced = review({"h": "owned", "a": "on_demand"})
    unpriced = replace(priced, costs=priced.costs.clear(), total=None, price=None, rate_parts={}).to_dict()
    assert unpriced["by_team_and_month"] == unpriced["by_team_and_week"] == []  # unknown, not zero
    found = priced.to_dict()
    for table in ("by_team_and_month", "by_team_and_week"):
        assert sum(row["cost"] for row in found[table]) == found["total"]
        assert {row["team"] for row in found[table]} == {row["tenant"] for row in found["by_tenant"]}
