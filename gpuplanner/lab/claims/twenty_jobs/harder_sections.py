"""What the notebook of the twenty jobs shows of the harder case, in which layouts have to change."""

from __future__ import annotations

import polars as pl

from gpuplanner.lab.claims import twenty_jobs as cases
from gpuplanner.lab.claims.twenty_jobs import compare_harder
from gpuplanner.lab.claims.twenty_jobs.sections import Shown, say, table

WAITS = {"mean_wait_min": "mean wait [min]", "waiting_gpu_min": "waits by GPUs needed [GPU min]"}
MOVERS = (compare_harder.GREEDY, compare_harder.FORECAST, compare_harder.PERFECT, compare_harder.BOUND)


def compared(seeds: range, harder: cases.Harder) -> Shown:
    """All policies on one fleet: means, differences seed by seed, and what they say."""
    name = f"{harder.design.gpus} GPUs"
    runs = cases.replicate_harder(seeds, harder)
    means = cases.summarise(runs, compare_harder.MEASURES).pivot("measure", index="policy", values="mean")
    yield table(
        means,
        f"{name}: means over {len(seeds)} seeds; waits, times and utilisation are of jobs that are served",
        headings=WAITS,
        formats={"utilisation_server": ".1%"}
        | dict.fromkeys((*WAITS, "unserved", "reconfigurations"), ".2f"),
    )
    gaps = cases.differences(runs.filter(pl.col("policy").is_in(MOVERS)), compare_harder.GREEDY, tuple(WAITS))
    yield table(
        gaps.with_columns(pl.col("measure").replace(WAITS)),
        f"{name}: less cutting on demand, seed by seed, 95 % intervals",
        formats=dict.fromkeys(("difference", "low", "high"), "+.2f"),
    )
    wait = dict(means.select("policy", "mean_wait_min").iter_rows())
    gap = gaps.filter(policy=compare_harder.FORECAST, measure="mean_wait_min").row(0, named=True)
    told = gap["high"] < 0 or gap["low"] > 0
    sure = (
        "a difference that the seeds show" if told else "a difference that these seeds cannot tell from none"
    )
    unserved = dict(means.select("policy", "unserved").iter_rows())
    left = max(unserved[policy] for policy in MOVERS)
    yield say(
        f"{name}: the installed static layout never serves {unserved[compare_harder.STATIC]:.1f} of "
        f"{harder.design.jobs} jobs; layouts that change leave out {left:.1f} at most. The mean wait is "
        f"{wait[compare_harder.GREEDY]:.2f} min if GPUs are cut on demand, {wait[compare_harder.FORECAST]:.2f} min "
        f"with the real forecast ({sure}), {wait[compare_harder.PERFECT]:.2f} min with perfect foresight."
    )
