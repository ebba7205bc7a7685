"""Which jobs leave: the cheapest choice of all, by trying every one; and on the sample, with tenants that stay."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from gpuplanner.decision.burst_plan import choose_leaving_jobs, mean_demand_by_hour
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort

RULES = """\
stay: [vision]
spot: [search]
data:
- {tenant: search, gib: 100, source: measured}
move: {price: 0.09, unit: USD per GiB, gbit_per_s: 10, start_minutes: 5, source: quote 7}
"""


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_jobs_is_cheaper(seed: int):
    rng = np.random.default_rng(seed)
    begin, hours = rng.uniform(0, 6, 9).round(2), rng.uniform(0.2, 3, 9).round(2)
    gpus, cost = rng.choice([1.0, 2.0, 4.0], 9), rng.uniform(1, 20, 9).round(2)
    free = rng.random(9) < 0.8
    over = mean_demand_by_hour(begin, hours, gpus, 9) - 4.0
    leave, left, bound = choose_leaving_jobs(begin, hours, gpus, cost, free, over, SearchEffort.begin(), gap=0.0)
    assert not leave[~free].any()

    def beyond(out: np.ndarray) -> float:
        """What stays over in hours that are too full."""
        return float(
            np.maximum(mean_demand_by_hour(begin[~out], hours[~out], gpus[~out], 9) - 4.0, 0)[over > 1e-6].sum()
        )

    assert beyond(leave) == pytest.approx(left, abs=1e-4)
    best = min(
        cost[list(out)].sum() if out else 0.0
        for count in range(free.sum() + 1)
        for out in itertools.combinations(np.flatnonzero(free), count)
        if beyond(np.isin(np.arange(9), out)) <= left + 1e-4
    )
    assert cost[leave].sum() == pytest.approx(best)
    assert bound <= best + 1e-6


def test_the_command_says_who_goes_when_and_at_what_price(tmp_path: Path, command):
    rules = tmp_path / "burst.yaml"
    rules.write_text(RULES)
    asked = ("cost", "sample", "--month", "2026-02", "--set", "price_per_gpu_hour=2", "--burst", str(rules))
    code, out, err = command(*asked, "--json")
    assert code == 0, err
    found = json.loads(out)["burst"]
    assert found["over_gpu_hours"] > 0
    assert sum(Decimal(row["cost"]) for row in found["jobs"]) == Decimal(found["total"])
    assert {row["tenant"] for row in found["jobs"]}.isdisjoint({"vision"})
    for row in found["jobs"]:
        if row["gib"] == 0:
            assert float(row["cost"]) == pytest.approx(2 * row["gpus"] * (row["hours"] + 5 / 60), abs=0.02)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("stay: [visoin]", "stay 'visoin' (did you mean 'vision'?)"),
        ("spot: [search, nobody]", "spot 'nobody'"),
        ("data: [{tenant: Vision, gib: 1, source: x}]", "data 'Vision' (did you mean 'vision'?)"),
    ],
)
def test_a_team_without_jobs_is_refused(line: str, told: str, tmp_path: Path, command):
    rules = tmp_path / "burst.yaml"
    rules.write_text(line + RULES[RULES.index("\nmove") :])
    code, _, err = command("cost", "sample", "--set", "price_per_gpu_hour=2", "--burst", str(rules))
    assert code == 3
    assert "burst rules: expected teams with jobs, 'assistants'" in err
    assert told in err
