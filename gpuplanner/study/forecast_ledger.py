"""What each report forecast and what came of it: a small Parquet file that grows by a month a report."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.demand.series import POOL, demand_series, pool
from gpuplanner.errors import ScenarioError, first_line, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.planner.contract.problem import UNMET_PRICE
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.outlook import at_quantile
from gpuplanner.study.past.history import history
from gpuplanner.study.study import Study

KEY = ["unique_id", "cutoff", "ds"]
SCHEMA = pl.Schema(
    {
        "unique_id": pl.String(),
        "cutoff": pl.Datetime("us", "UTC"),
        "ds": pl.Datetime("us", "UTC"),
        "model": pl.String(),
        "q05": pl.Float64(),
        "q50": pl.Float64(),
        "q95": pl.Float64(),
        "planned": pl.Float64(),
        "last_value": pl.Float64(),
        "price": pl.Float64(),
        "y": pl.Float64(),
    }
)
"""``planned`` is the demand at the scenario's quantile, ``last_value`` what the naive forecast says, ``price`` that of
a unit short in units planned, and ``y`` what came: null until a later report has seen the slot."""


def read_ledger(path: str | Path) -> pl.DataFrame:
    """Open a ledger of forecasts; one that does not exist is empty."""
    place = Path(path)
    if not place.exists():
        return pl.DataFrame(schema=SCHEMA)
    try:
        return pl.read_parquet(place).select(list(SCHEMA)).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        expected = f"a ledger of forecasts with {', '.join(SCHEMA)}"
        text = message(str(place), expected, first_line(error), "Name another file.")
        raise ScenarioError(text) from None


def remember(ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Write down what a study forecasts for the pool, and what came of what was forecast before.

    What was once said of a slot stands: a study of the same month changes nothing of it.
    """
    if study.plan is None:
        return ledger
    of_pool = pl.col("unique_id").str.starts_with(f"{POOL}/")
    past = study.tables["demand"].filter(of_pool)
    last = past.sort("ds").group_by("unique_id").agg(last_value=pl.col("y").last())
    forecast = study.tables["forecast"].filter(of_pool)
    planned = at_quantile(forecast, study.scenario.quantile).rename({"y": "planned"})
    new = (
        forecast.join(planned, on=["unique_id", "ds"])
        .join(last, on="unique_id")
        .with_columns(price=pl.lit(UNMET_PRICE), y=pl.lit(None))
        .select(list(SCHEMA))
        .cast(SCHEMA)
    )
    came = pl.concat([_before(past, ledger, study), past.select("unique_id", "ds", came="y")])
    times = pl.lit(came["ds"])
    seen = pl.col("ds").is_between(times.min(), times.max())  # what nobody wanted has no row there
    return (
        pl.concat([ledger, new])
        .unique(KEY, keep="first", maintain_order=True)
        .join(came, on=["unique_id", "ds"], how="left")
        .with_columns(y=pl.coalesce("y", "came", pl.when(seen).then(0.0)))
        .select(list(SCHEMA))
        .sort(KEY)
    )


def _before(past: pl.DataFrame, ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """What came in slots of the ledger that lie before the recent past of a study: months differ in length."""
    missing = ledger.filter(pl.col("y").is_null())["ds"].sort()
    if missing.is_empty() or past.is_empty() or missing[0] >= (begin := past["ds"].sort()[0]):
        return past.select("unique_id", "ds", came="y").clear()
    jobs = history(study.scenario).views["rightsized"]
    earlier = demand_series(
        jobs, slot_hours=study.scenario.slot_hours, start=missing[0], end=begin, clock="wanted"
    )
    return pool(earlier).select("unique_id", "ds", came="y")


def record_of(ledger: pl.DataFrame) -> pl.DataFrame:
    """How good each past forecast was, by its cutoff, over the slots that have come since.

    Examples
    --------
    >>> record_of(pl.DataFrame(schema=SCHEMA)).height
    0
    """
    known = ledger.filter(pl.col("y").is_not_null())

    def cost(plan: str) -> pl.Expr:
        short = (pl.col("y") - pl.col(plan)).clip(lower_bound=0.0)
        return (pl.col(plan) + pl.col("price") * short).sum() / pl.col("y").sum()

    return (
        known.group_by("cutoff")
        .agg(
            slots=pl.col("ds").n_unique(),
            mae=(pl.col("y") - pl.col("q50")).abs().mean(),
            naive_mae=(pl.col("y") - pl.col("last_value")).abs().mean(),
            coverage_90=pl.col("y").is_between("q05", "q95").mean(),
            cost=cost("planned"),
            naive_cost=cost("last_value"),
        )
        .sort("cutoff")
    )


def errors_in_money(
    ledger: pl.DataFrame, scenario: Scenario, board: GpuModel, per_gpu_hour: float
) -> pl.DataFrame:
    """GPU-hours that were planned too many and too few, by cutoff, and what they cost beyond perfect sight.

    An hour too few costs ``price`` planned ones, of which sight would have paid one as well.
    """
    share = {profile.name: board.share(profile.name) for profile in board.profiles}
    name = pl.col("unique_id").str.split("/").list.last()
    hours = name.replace_strict(share, default=1.0, return_dtype=pl.Float64) * scenario.slot_hours
    over = (pl.col("planned") - pl.col("y")) * hours
    short = (-over).clip(lower_bound=0.0)
    cost = (over.clip(lower_bound=0.0) + (pl.col("price") - 1) * short) * per_gpu_hour
    found = ledger.filter(pl.col("y").is_not_null()).group_by("cutoff")
    return found.agg(
        over_gpu_hours=over.clip(lower_bound=0.0).sum(), short_gpu_hours=short.sum(), cost=cost.sum()
    ).sort("cutoff")
