"""Several policies on the same replications: who is better than the baseline, by how much, how sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.metrics.intervals import mean_interval, paired, paired_p_value


@dataclass(frozen=True)
class Measure:
    """A measure as it is shown.

    Parameters
    ----------
    column : str
        Its column.
    name, unit : str
        What readers see.
    divisor : float
        What a value is divided by to come out in the unit.
    better : {"low", "high"}
        Which side is better.
    formula, source : str
        Definition and where it comes from.
    """

    column: str
    name: str
    unit: str
    divisor: float
    better: str
    formula: str
    source: str = "docs/glossary.md"


POLICY_MEASURES = (
    Measure("mean_queueing_delay_s", "mean wait", "min", 60.0, "low", "mean of first start - submission"),
    Measure("p95_queueing_delay_s", "95 % wait less than", "min", 60.0, "low", "95 % quantile of the wait"),
    Measure("mean_jct_s", "mean completion time", "h", 3600.0, "low", "mean of end - submission"),
    Measure(
        "mean_bounded_slowdown", "mean bounded slowdown", "x", 1.0, "low",
        "mean of max(1, JCT / max(run time, 10 s))", "Feitelson et al., JSSPP 1997",
    ),
    Measure("makespan_s", "makespan", "h", 3600.0, "low", "last end - first submission"),
    Measure(
        "utilisation_provisioned", "slices held, of those provided", "%", 0.01, "high",
        "slice-seconds held / slice-seconds of instances that existed",
    ),
    Measure(
        "utilisation_server", "slices held, of the whole fleet", "%", 0.01, "high",
        "slice-seconds held / slice-seconds of all GPUs installed",
    ),
    Measure("useful_gpu_hours", "goodput", "GPU h", 1.0, "high", "GPU-hours held - GPU-hours lost to stops"),
)  # fmt: skip
"""Measures of :func:`~gpuplanner.metrics.measure` that tell policies apart."""


def rank_policies(
    runs: pl.DataFrame, *, baseline: str, measures: Sequence[Measure] = POLICY_MEASURES, level: float = 0.95
) -> pl.DataFrame:
    """Compare every policy with a baseline, replication by replication.

    Differences are paired: all policies have to have served the same replications (common random numbers).
    Every comparison of the table belongs to one family: p-values are Holm's, so that the chance of calling
    any difference real that is none is at most ``1 - level``. Intervals are of one comparison each.

    Parameters
    ----------
    runs : polars.DataFrame
        ``policy``, ``replication`` and a column for each measure.
    baseline : str
        Policy that the others are compared with.
    measures : sequence of Measure
        What to compare; those without a column or a value are left out.
    level : float
        Confidence level.

    Returns
    -------
    polars.DataFrame
        By measure, best mean first: ``measure, unit, rank, policy, mean, difference, low, high`` (in the unit;
        value - baseline), ``change`` (difference over the baseline's mean), ``p_value`` and ``p_holm`` (null
        for the baseline and for single replications), and ``verdict``: baseline, better, worse, or not told
        apart.

    Raises
    ------
    SchemaError
        If the baseline is missing, or a policy has other replications than the baseline.

    References
    ----------
    S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).

    Examples
    --------
    >>> runs = pl.DataFrame({"policy": ["fifo"] * 3 + ["sjf"] * 3, "replication": [0, 1, 2] * 2,
    ...     "mean_queueing_delay_s": [600.0, 1200.0, 900.0, 60.0, 720.0, 390.0]})
    >>> table = rank_policies(runs, baseline="fifo")
    >>> table.select("rank", "policy", "mean", "difference", "unit", "verdict").rows()
    [(1, 'sjf', 6.5, -8.5, 'min', 'better'), (2, 'fifo', 15.0, 0.0, 'min', 'baseline')]
    """
    rows = []
    for number, measure in enumerate(measures):
        if measure.column in runs.columns and runs[measure.column].is_not_null().any():
            values = _values(runs, measure.column, baseline)
            rows += [_row(number, measure, name, values, baseline, level) for name in values]
    table = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    adjusted = holm(table["p_value"].drop_nulls().to_numpy())
    compared = table.with_row_index("row").drop_nulls("p_value").select("row", p_holm=pl.Series(adjusted))
    told = pl.col("p_holm") < 1 - level
    return (
        table.with_row_index("row")
        .join(compared, on="row", how="left")
        .with_columns(
            verdict=pl.when(pl.col("policy") == baseline)
            .then(pl.lit("baseline"))
            .when(told & (pl.col("goodness") > 0))
            .then(pl.lit("better"))
            .when(told & (pl.col("goodness") < 0))
            .then(pl.lit("worse"))
            .otherwise(pl.lit("not told apart"))
        )
        .sort("number", pl.col("goodness"), "row", descending=[False, True, False])
        .with_columns(rank=pl.int_range(1, pl.len() + 1).over("number"))
        .select(
            "measure", "unit", "rank", "policy", "mean", "difference", "low", "high", "change", "p_value",
            "p_holm", "verdict",
        )
    )  # fmt: skip


_NUMBERS = ("mean", "difference", "low", "high", "change", "p_value", "goodness")
_SCHEMA = {"number": pl.Int64, "measure": pl.String, "unit": pl.String, "policy": pl.String} | dict.fromkeys(
    _NUMBERS, pl.Float64
)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust p-values for how many there are, by Holm's step-down method.

    Parameters
    ----------
    p_values : array of float, shape (n,)
        Between 0 and 1.

    Returns
    -------
    array of float, shape (n,)
        In the same order, at most 1.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def _values(runs: pl.DataFrame, column: str, baseline: str) -> dict[str, NDArray[np.float64]]:
    """Values of every policy in the order of replications, after checking that they are the same."""
    parts = runs.sort("replication").partition_by("policy", as_dict=True, maintain_order=True)
    found = {str(policy): part for (policy,), part in parts.items()}
    if baseline not in found:
        text = message(
            "policies", f"a policy {baseline!r}", examples(sorted(found)), "Name another baseline."
        )
        raise SchemaError(text)
    usual = found[baseline]["replication"].to_list()
    odd = [
        policy
        for policy, part in found.items()
        if part["replication"].to_list() != usual or part[column].null_count()
    ]
    if odd or len(set(usual)) < len(usual):
        text = message(
            f"policies, column {column!r}",
            f"one value in each of the {len(usual)} replications of {baseline!r}",
            f"others for {examples(odd)}" if odd else "replications that occur twice",
            "Run all policies on the same replications.",
        )
        raise SchemaError(text)
    order = [baseline, *sorted(name for name in found if name != baseline)]
    return {policy: found[policy][column].cast(pl.Float64).to_numpy() for policy in order}


def _row(
    number: int,
    measure: Measure,
    policy: str,
    values: dict[str, NDArray[np.float64]],
    baseline: str,
    level: float,
) -> tuple[object, ...]:
    base, mine = values[baseline] / measure.divisor, values[policy] / measure.divisor
    found = paired(base, mine, level=level)
    change, mean = found.difference, mean_interval(mine).mean
    p_value = None if policy == baseline else paired_p_value(base, mine)
    goodness = change.mean if measure.better == "high" else -change.mean
    share = None if found.ratio is None else found.ratio - 1
    return (
        number, measure.name, measure.unit, policy, mean, change.mean, change.low, change.high, share, p_value,
        goodness,
    )  # fmt: skip
