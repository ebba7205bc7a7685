"""Rankings, Holm's correction and p-values against tables and simulation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.metrics import Measure, holm, paired_p_value, rank_policies, student_t


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("degrees", [1, 2, 9, 30])
def test_p_values_are_the_inverse_of_the_quantiles(degrees, level):
    t = student_t((1 + level) / 2, degrees)
    spread = np.resize([1.0, -1.0], degrees + 1)
    spread -= spread.mean()
    spread /= np.std(spread, ddof=1) / np.sqrt(degrees + 1)  # standard error 1
    assert paired_p_value(np.zeros(degrees + 1), spread + t) == pytest.approx(1 - level, rel=1e-9)


def test_p_values_without_spread():
    assert paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p_value([1.0, 2.0], [2.0, 3.0]) == 0.0
    assert paired_p_value([1.0], [2.0]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_lies_between_the_raw_and_bonferroni(values):
    raw = np.array(values)
    adjusted = holm(raw)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(raw * len(raw), 1.0) + 1e-12).all()
    order = np.argsort(raw, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


def test_holm_published_example():
    """Four p-values at 5 %: 0.01, 0.04, 0.03, 0.005 reject the fourth and the first (Holm's procedure)."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


def runs(replications: int, seed: int = 0) -> pl.DataFrame:
    """Weeks that are hard or easy for all; 'good' saves a tenth of the wait, 'same' nothing but noise."""
    rng = np.random.default_rng(seed)
    week = rng.lognormal(8, 0.7, replications)
    tables = []
    for policy, factor in (("base", 1.0), ("good", 0.9), ("same", 1.0)):
        noise = rng.normal(0, 20, replications) if policy != "base" else 0
        tables.append(
            pl.DataFrame(
                {
                    "policy": policy,
                    "replication": np.arange(replications),
                    "mean_queueing_delay_s": week * factor + noise,
                    "utilisation_server": np.full(replications, 0.5) + (policy == "good") * 0.1,
                }
            )
        )
    return pl.concat(tables)


def test_ranking_sees_through_hard_weeks():
    table = rank_policies(runs(20), baseline="base")
    waits = table.filter(measure="mean wait")
    assert waits["rank"].to_list() == [1, 2, 3]
    assert waits["policy"][0] == "good"
    verdicts = dict(waits.select("policy", "verdict").iter_rows())
    assert verdicts == {"base": "baseline", "good": "better", "same": "not told apart"}
    good = waits.filter(policy="good").row(0, named=True)
    mean = runs(20).filter(policy="base")["mean_queueing_delay_s"].mean() / 60
    assert good["unit"] == "min"
    assert good["difference"] == pytest.approx(-0.1 * mean, rel=0.2)
    assert good["change"] == pytest.approx(-0.1, abs=0.02)
    assert good["low"] < good["difference"] < good["high"] < 0
    use = table.filter(measure="slices held, of the whole fleet")
    assert use["policy"].to_list()[0] == "good"
    assert use["mean"].to_list() == pytest.approx([60.0, 50.0, 50.0])
    assert use.filter(policy="same")["p_value"].item() == 1.0


def test_family_wise_error_is_kept():
    """Without any true difference, at most 5 % of the tables name one; 99.9 % bound for 200 tables."""
    named = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        table = pl.DataFrame(
            {
                "policy": np.repeat(["a", "b", "c", "d", "e"], 8),
                "replication": np.tile(np.arange(8), 5),
                "x": rng.normal(size=40),
            }
        )
        found = rank_policies(table, baseline="a", measures=[Measure("x", "x", "", 1.0, "low", "x")])
        named += bool(found["verdict"].is_in(["better", "worse"]).any())
    assert named <= 20  # binomial(200, 0.05): 10 expected, at most 20 with probability 0.999


def test_single_replications_rank_without_a_verdict():
    table = rank_policies(runs(1), baseline="base").filter(measure="mean wait")
    assert table["p_holm"].null_count() == 3
    assert set(table["verdict"]) == {"baseline", "not told apart"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.filter(pl.col("policy") != "base"), "a policy 'base'"),
        (lambda t: t.tail(-1), "replications"),
        (lambda t: pl.concat([t, t]), "occur twice"),
    ],
)
def test_unpaired_runs_are_refused(change, words):
    with pytest.raises(SchemaError, match=words):
        rank_policies(change(runs(3)), baseline="base")
