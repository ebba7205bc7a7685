"""Cut on demand, nobody starves: small jobs that never stop coming do not keep large ones from starting."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Fleet, OnDemand, Rules, simulate

BOARD = "H100-80GB-SXM5"


def play(jobs, policy, nodes=1, per_node=8, *, rules):
    return simulate(jobs, Fleet(BOARD, nodes, per_node), policy, rules, policy="p")


class TestFairness:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10**6), st.sampled_from(["strict", "easy"]), st.sampled_from(["nvml", "operator"]))
    def test_no_job_waits_longer_than_a_drain_after_it_has_waited_as_long_as_one(self, seed, queue, path):
        # Small jobs of at most 1000 s never stop coming; as many whole GPUs are asked for as there are, at any time.
        rng, count, longest = np.random.default_rng(seed), 1500, 1000.0
        small = pl.DataFrame(
            {
                "submit_s": np.sort(rng.random(count) * 40_000.0),
                "run_s": rng.random(count) * longest,
                "gpus": np.ones(count, np.int64),
                "profile": rng.choice(["1g.10gb", "2g.20gb", "3g.40gb"], count),
            }
        )
        whole = pl.DataFrame(
            {
                "submit_s": 10_000.0 + 100.0 * rng.random(3),
                "run_s": 50.0,
                "gpus": rng.integers(1, 3, 3),
                "profile": "gpu",
            }
        )
        jobs = (
            pl.concat([small, whole])
            .with_row_index("job_id")
            .with_columns(pl.col("job_id").cast(pl.String), tenant=pl.lit("t"), limit_s=pl.lit(longest))
        )
        rules = Rules(queue, change=ChangeCost.of(BOARD, path, change_s=0.0, instance_s=0.0))
        run = play(jobs, OnDemand(drain_after_s=200.0), nodes=2, per_node=3, rules=rules)
        waits = run.outcomes.filter(pl.col("profile") == "gpu")["wait_s"]
        assert waits.max() <= 4 * longest  # those before it may need a drain each

    def test_whole_gpus_do_not_starve_beside_slices(self):
        # A week of jobs of which most share GPUs: whole GPUs waited for days while slices waited for minutes.
        rng, count = np.random.default_rng(2), 2000
        profile = rng.choice(["1g.10gb", "2g.20gb", "3g.40gb", "gpu"], count, p=[0.5, 0.25, 0.17, 0.08])
        run_s = np.exp(1.5 * rng.standard_normal(count)) * np.where(profile == "gpu", 1600.0, 2920.0)
        jobs = pl.DataFrame(
            {
                "job_id": np.arange(count).astype(str),
                "tenant": "t",
                "submit_s": np.sort(rng.random(count) * 604_800.0),
                "run_s": run_s,
                "gpus": np.where(profile == "gpu", rng.choice([1, 1, 1, 2, 4], count), 1),
                "profile": profile,
                "limit_s": 2.0 * run_s,
            }
        )
        run = play(jobs, OnDemand(), nodes=2, rules=Rules(change=ChangeCost.of(BOARD, "nvml")))
        waits = pl.col("wait_s") / 60
        by_size = run.outcomes.group_by(whole=pl.col("profile") == "gpu").agg(
            mean=waits.mean(), most=waits.max()
        )
        slices, whole = by_size.sort("whole").drop("whole").rows(named=True)
        # One drain at a time for all of them: 405 and 5890 minutes.
        assert whole["mean"] < 120
        assert whole["most"] < 1000
        assert slices["mean"] < 5
