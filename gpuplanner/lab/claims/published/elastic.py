"""Jobs that grow and shrink by their goodput against jobs of a fixed size."""

from __future__ import annotations

import polars as pl

from gpuplanner.lab.claims.heterogeneous import by_power_mean, rigid_jobs, schedule_elastic
from gpuplanner.lab.claims.heterogeneous.synthetic_fleet import draw_elastic, elastic_models, largest_useful
from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import figure, figures_of, signed
from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.metrics import mean_interval
from gpuplanner.simulate import Fleet

SEEDS = 10
PUBLISHED = 100 * (0.76 / 1.2 - 1)
"""Mean time to completion of 0.76 h against 1.2 h of jobs of tuned size [%]."""
ELASTIC, TUNED, SPARING = "elastic", "fixed, tuned sizes", "elastic, least gain 0.3"
CHOSEN, SHORTEST = "fixed, as users chose", "fixed, as users chose, shortest first"


def measure(conditions: Conditions) -> Measured:
    """Serve the same jobs in five ways, with a noise scale that rises and one that falls."""
    seeds = conditions.run_over(SEEDS)
    rows = pl.concat([_served(seed, rising=rising) for rising in (True, False) for seed in seeds])
    figures = []
    for noise in ("rises", "falls"):
        change = _change(rows.filter(noise=noise))
        name = f"noise scale {noise}: change of mean time"
        figures.append(figure(name, "%", change[0], claimed=(None, PUBLISHED), interval=change[1:]))
    means = rows.group_by("noise", "policy", maintain_order=True).agg(
        pl.col("mean_jct_s", "gpu_hours").mean()
    )
    chosen = [_change(rows.filter(noise=noise), CHOSEN)[0] for noise in ("rises", "falls")]
    why = (
        f"Against tuned sizes the mean time changes by {signed(figures[0]['measured'], 1)} % where the noise scale "
        f"rises and by {signed(figures[1]['measured'], 1)} % where it falls; {signed(PUBLISHED)} % were published. "
        f"Against the sizes that users choose by habit it changes by {signed(chosen[0])} and {signed(chosen[1])} %."
    )
    return Measured.by(
        figures_of(figures),
        why,
        tables={"means over the seeds": means},
        remarks=(
            "The jobs are made up from seeds and the allocation is a greedy one in place of Pollux's genetic "
            "algorithm: this says how the policies compare on such jobs, not what its cluster gained.",
            f"{len(seeds)} seeds from {conditions.seed}; differences seed by seed, intervals at 95 %.",
        ),
    )


def _served(seed: int, *, rising: bool) -> pl.DataFrame:
    """Mean time and GPU-hours of the same jobs under every policy."""
    fleet, passing = Fleet("H100-80GB-SXM5", 8, 8), GangRules(queue="pass")
    jobs, models = draw_elastic(seed), elastic_models(rising=rising)
    sizes = largest_useful(models)
    tuned = jobs.with_columns(gpus=pl.col("job_class").replace_strict(sizes, return_dtype=pl.Int32))
    found = []
    for name, gain in ((ELASTIC, 0.0), (SPARING, 0.3)):
        run = schedule_elastic(
            jobs, models, fleet, policy=name, allocate=by_power_mean(least_gain=gain)
        ).outcomes
        found.append((name, run["jct_s"].mean(), run["gpu_s"].sum() / 3600))
    for name, listed, rules in (
        (CHOSEN, jobs, passing),
        (SHORTEST, jobs, GangRules(queue="pass", order="sjf")),
        (TUNED, tuned, passing),
    ):
        twin = rigid_jobs(listed, models, fleet)
        jct = schedule(twin, fleet, rules, policy=name)["jct_s"].mean()
        found.append((name, jct, (twin["run_s"] * twin["gpus"]).sum() / 3600))
    noise = "rises" if rising else "falls"
    return pl.DataFrame(found, schema=["policy", "mean_jct_s", "gpu_hours"], orient="row").select(
        pl.lit(noise).alias("noise"), pl.lit(seed).alias("seed"), pl.all()
    )


def _change(rows: pl.DataFrame, against: str = TUNED) -> tuple[float, float | None, float | None]:
    """Mean relative change of the mean time by elastic jobs, seed by seed, with its interval [%]."""
    ours, theirs = (
        rows.filter(policy=policy).sort("seed")["mean_jct_s"].to_numpy() for policy in (ELASTIC, against)
    )
    known = mean_interval(100 * (ours / theirs - 1))
    return known.mean, known.low, known.high


CLAIM = PublishedClaim(
    name="elastic",
    title="Elastic jobs",
    words="Jobs that grow and shrink by their goodput end 37 % sooner than jobs of a fixed, tuned size.",
    source="Qiao et al., Pollux, OSDI 2021, table 2: 0.76 h against 1.2 h on 64 GPUs",
    on="160 vision and language jobs in eight hours on 64 GPUs, drawn by seed",
    takes="about 15 s",
    measure=measure,
    seeds=SEEDS,
)
