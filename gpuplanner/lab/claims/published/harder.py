"""Twenty jobs that come in the course of a day: planning ahead against cutting on demand."""

from __future__ import annotations

from gpuplanner.lab.claims import twenty_jobs as case
from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.twenty_jobs.compare_harder import (
    BOUND,
    FORECAST,
    GREEDY,
    MEASURES,
    PERFECT,
    STATIC,
)
from gpuplanner.lab.claims.verdict import figure, figures_of

SEEDS = 10
COMPARED = {"mean_wait_min": ("mean wait", "min"), "waiting_gpu_min": ("waits by GPUs needed", "GPU min")}


def measure(conditions: Conditions) -> Measured:
    """Serve the same days by every policy."""
    seeds = conditions.run_over(SEEDS)
    rows = case.replicate_harder(seeds)
    comparable = rows.filter(rows["policy"].is_in([GREEDY, FORECAST, PERFECT, BOUND]))
    against = case.differences(comparable, GREEDY, MEASURES[:4])
    means = case.summarise(rows, MEASURES)
    planned = against.filter(policy=FORECAST).rows_by_key("measure", named=True, unique=True)
    figures = figures_of(
        [
            figure(
                f"{words}, planned less cut on demand",
                unit,
                planned[name]["difference"],
                claimed=(None, 0.0),
                interval=(planned[name]["low"], planned[name]["high"]),
            )
            for name, (words, unit) in COMPARED.items()
        ]
    )
    mean = {(row["policy"], row["measure"]): row["mean"] for row in means.iter_rows(named=True)}
    why = (
        f"The mean wait is {mean[GREEDY, 'mean_wait_min']:.2f} min if GPUs are cut on demand, "
        f"{mean[FORECAST, 'mean_wait_min']:.2f} min planned with the forecast and "
        f"{mean[PERFECT, 'mean_wait_min']:.2f} min with perfect foresight. The layout that is installed never "
        f"serves {mean[STATIC, 'unserved']:.1f} of the jobs."
    )
    return Measured.by(
        figures,
        why,
        tables={"policies": means, "against greedy": against},
        remarks=(f"{len(seeds)} seeds from {conditions.seed}; differences seed by seed, intervals at 95 %.",),
    )


CLAIM = PublishedClaim(
    name="harder",
    title="Planning ahead",
    words="Where needs change in the course of a day, layouts that are planned with a forecast serve jobs sooner than "
    "GPUs that are cut when a job comes.",
    source="What the claim of the twenty jobs would have to mean where layouts must change; nobody published figures",
    on="the totals of the twenty jobs with needs that the installed layout lacks, arrivals and long tails, by seed",
    takes="about 25 s",
    measure=measure,
    seeds=SEEDS,
)
