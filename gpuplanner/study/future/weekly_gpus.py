"""gpuplanner.study.past.accounts: _fewest_gpus, weeks."""

from __future__ import annotations

import polars as pl

from gpuplanner.demand.series import demand_series, weekly
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.search import plan
from gpuplanner.scenario import Scenario
from gpuplanner.study.cache import stage
from gpuplanner.study.past.accounts import WEEKLY_QUANTILE
from gpuplanner.study.past.history import VIEWS, History, begin_of, history
from gpuplanner.units import HOURS_PER_WEEK


@stage
def weeks(scenario: Scenario) -> pl.DataFrame:
    """Week by week: what each view of the small jobs wants, and the fewest GPUs that serve it.

    Small jobs are those that ask for at most one GPU. The figures cover the 95 % quantile of the hours of each
    week, by the integer optimum of a single slot; ``whole`` gives every such job a GPU of its own.
    """
    known = history(scenario)
    small = {view: known.views[view].filter(pl.col("gpus") <= 1) for view in VIEWS}
    start, end = begin_of(known.trace), known.plan_start
    demand = {
        view: demand_series(
            jobs, start=start.replace(minute=0, second=0, microsecond=0), end=end, clock="wanted"
        )
        for view, jobs in small.items()
    }
    if demand["whole"].is_empty():
        return pl.DataFrame()
    summed = {view: weekly(series, quantile=WEEKLY_QUANTILE) for view, series in demand.items()}
    rows = []
    for week, slots in summed["whole"].select("week", "slots").unique(maintain_order=True).iter_rows():
        fewest = {
            view: _fewest_gpus(scenario, known, table.filter(week=week)) for view, table in summed.items()
        }
        whole = summed["whole"].filter(week=week)
        rows.append(
            {
                "week": week.date(),
                "hours": slots,
                "mean_gpus_whole": float(whole["mean"].sum()),
                "gpus_whole": fewest["whole"][0],
                "gpus_requested": fewest["requested"][0],
                "gpus_rightsized": fewest["rightsized"][0],
                "layouts_rightsized": fewest["rightsized"][1],
            }
        )
    return pl.DataFrame(rows)


def _fewest_gpus(scenario: Scenario, known: History, wanted: pl.DataFrame) -> tuple[int, str]:
    """Fewest GPUs for one demand vector, and their layouts in words."""
    wanted = wanted.filter(pl.col("quantile") > 0)
    if wanted.is_empty():
        return 0, "-"
    ceiling = int(wanted["quantile"].ceil().sum())
    problem = PlanProblem(
        known.fleet.board, ceiling, known.fleet.node_size, wanted["week"][0], HOURS_PER_WEEK, ["all"],
        wanted["profile"].to_list(), wanted["quantile"].to_numpy().reshape(1, -1, 1), unmet_price=1e4,
    )  # fmt: skip
    found = plan(problem, **scenario.but(gap_target=0.0).effort).require()
    layouts = [
        f"{count} x {text}" for text, count in zip(found.layouts, found.counts[0], strict=True) if count
    ]
    return int(found.counts[0].sum()), "; ".join(layouts)
