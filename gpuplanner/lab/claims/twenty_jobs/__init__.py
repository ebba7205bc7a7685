"""Two small cases, drawn by seed and run through the project's own planner and simulator.

``twenty-jobs``: 20 jobs on 8 GPUs, as asked on a static layout against right-sized on planned ones. Its design is
calibrated to four figures that others reported, so it shows that they are plausible, not that they are true.
``harder``: the same totals with needs that the static layout lacks, arrivals and long tails.
"""

from gpuplanner.lab.claims.twenty_jobs.ablate import Ablation, ablate, ablations
from gpuplanner.lab.claims.twenty_jobs.account import account
from gpuplanner.lab.claims.twenty_jobs.arrange import LAYOUTS, Arrangement, arrange
from gpuplanner.lab.claims.twenty_jobs.brief import CONFIGURATIONS_TRIED, TARGETS, comparison
from gpuplanner.lab.claims.twenty_jobs.compare_harder import replicate_harder
from gpuplanner.lab.claims.twenty_jobs.decompose import CORNERS, decompose
from gpuplanner.lab.claims.twenty_jobs.design import Design, Group
from gpuplanner.lab.claims.twenty_jobs.draw import draw
from gpuplanner.lab.claims.twenty_jobs.experiment import (
    CASE_1,
    CASE_2,
    Policy,
    differences,
    one,
    replicate,
    summarise,
)
from gpuplanner.lab.claims.twenty_jobs.harder import Harder, draw_harder
from gpuplanner.lab.claims.twenty_jobs.recommend import Profiling, observe, recommend
from gpuplanner.lab.claims.twenty_jobs.serve import ServedBatch, serve
from gpuplanner.lab.claims.twenty_jobs.space import Space, draw_designs, outcomes, percentiles
from gpuplanner.lab.claims.twenty_jobs.speed import SPEEDS

__all__ = [
    "CASE_1",
    "CASE_2",
    "CONFIGURATIONS_TRIED",
    "CORNERS",
    "LAYOUTS",
    "SPEEDS",
    "TARGETS",
    "Ablation",
    "Arrangement",
    "Design",
    "Group",
    "Harder",
    "Policy",
    "Profiling",
    "ServedBatch",
    "Space",
    "ablate",
    "ablations",
    "account",
    "arrange",
    "comparison",
    "decompose",
    "differences",
    "draw",
    "draw_designs",
    "draw_harder",
    "observe",
    "one",
    "outcomes",
    "percentiles",
    "recommend",
    "replicate",
    "replicate_harder",
    "serve",
    "summarise",
]
