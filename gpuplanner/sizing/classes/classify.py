"""Give each job a class: that of the source where it has one, else that of the first rule that holds."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.inbox.core.times import known_zone
from gpuplanner.sizing.classes.facts import NUMBERS, job_facts
from gpuplanner.sizing.classes.rules import Rule, shipped_rules

COLUMNS = ("job_id", "attempt", "job_class", "class_source", "rule", "facts")


def classify(
    jobs: pl.DataFrame,
    rules: Sequence[Rule] | None = None,
    *,
    samples: pl.DataFrame | None = None,
    tz: str = "UTC",
) -> pl.DataFrame:
    """Name the class of each job, with the rule that did so and what it saw.

    A class that the source gives stands, whatever a rule says. A job without a GPU gets no class from a rule.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``, with columns ``job_name``, ``partition`` and ``queue`` if there are any.
    rules : sequence of Rule, optional
        Tried in this order; by default the shipped ones.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    tz : str
        Zone of hours and days.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 6)
        In the order of `jobs`: ``job_id``, ``attempt``, ``job_class`` (null if not known), ``class_source``
        (``"source"``, ``"rule"`` or null), and of a class by a rule ``rule`` (its name) and ``facts`` (what it looked
        at).

    Raises
    ------
    SchemaError
        If a table is not as declared.
    TraceFormatError
        If there is no such zone.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "state": "PENDING",
    ...     "submit_time": datetime(2026, 2, 2, tzinfo=UTC), "job_name": ["OOD Jupyter", "train_7b"]})
    >>> classify(jobs).select("job_class", "rule", "facts").rows()
    [('interactive', 'session by name', 'job_name=OOD Jupyter'), (None, None, None)]
    """
    tried = shipped_rules() if rules is None else tuple(rules)
    seen = job_facts(jobs, samples, tz=tz).rename({"job_class": "given"}).with_row_index("row")
    numbers = dict(enumerate(tried))
    first = pl.coalesce(*(pl.when(rule.holds()).then(number) for number, rule in numbers.items()), None)
    # Work without a GPU is of none of the classes; of what is not known, names may yet tell.
    holds_gpu = (pl.col("gpus") != 0).fill_null(True)
    decided = seen.with_columns(number=pl.when(holds_gpu).then(first).cast(pl.Int32))
    named = pl.concat(
        [
            decided.filter(number=number).select(
                "row",
                by_rule=pl.lit(rule.job_class),
                rule=pl.lit(rule.name),
                facts=pl.concat_str(
                    (_shown(condition.fact) for condition in rule.conditions), separator=", "
                ),
            )
            for number, rule in numbers.items()
        ]
    )
    by_source, by_rule = pl.col("given").is_not_null(), pl.col("by_rule").is_not_null()
    evidence = [pl.when(~by_source).then(name).alias(name) for name in ("rule", "facts")]
    return (
        decided.join(named, on="row", how="left", maintain_order="left")
        .with_columns(
            *evidence,
            job_class=pl.coalesce("given", "by_rule"),
            class_source=pl.when(by_source).then(pl.lit("source")).when(by_rule).then(pl.lit("rule")),
        )
        .select(COLUMNS)
    )


def _shown(fact: str) -> pl.Expr:
    """``fact=value`` as text."""
    value = pl.col(fact).cast(pl.Float64).round_sig_figs(4) if fact in NUMBERS else pl.col(fact)
    text = value.cast(pl.String).str.strip_suffix(".0") if fact in NUMBERS else value
    return pl.concat_str(pl.lit(f"{fact}="), text)


SIZES = (0.99, 1.99, 7.99, 31.99)
LENGTHS_S = (600.0, 3600.0, 14_400.0, 86_400.0)
HOURS = (8, 20)
CELL = ("size", "length", "hours")
FEWEST, SURE = 5, 0.5
"""Jobs of known class that a cell must have, and the share of them that must be of one class."""


def class_by_shape(jobs: pl.DataFrame, known: pl.Series, *, tz: str = "UTC") -> pl.DataFrame:
    """Give each job without a class that of most jobs of its size, duration and hour, if more than half are of it.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``gpus, submit_time`` and ``run_s`` [s].
    known : polars.Series
        Class of each where it is known, by the source or by a rule, else null.
    tz : str
        Zone of the hours.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 2)
        In the order of `jobs`: ``job_class``, null where it stays undecided, and ``confidence``, the share of those
        like it that are of this class [0-1]; null where the class was known.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"gpus": [1.0] * 7 + [8.0], "run_s": 120.0})
    >>> jobs = jobs.with_columns(submit_time=datetime(2026, 2, 2, tzinfo=UTC))
    >>> known = pl.Series(["evaluation"] * 5 + ["interactive", None, None])
    >>> class_by_shape(jobs, known).tail(2).rows()
    [('evaluation', 0.8333333333333334), (None, None)]
    """
    hour = pl.col("submit_time").dt.convert_time_zone(known_zone(tz)).dt.hour()
    table = jobs.select(
        size=pl.sum_horizontal(pl.col("gpus") > edge for edge in SIZES),
        length=pl.sum_horizontal(pl.col("run_s") > edge for edge in LENGTHS_S),
        hours=hour.is_between(*HOURS, closed="left"),
    ).with_columns(known=known)
    counts = (
        table.drop_nulls("known")
        .group_by(*CELL, "known")
        .len()
        .sort("len", "known", descending=[True, False])
    )
    total = pl.col("len").sum()
    best = (
        counts.group_by(CELL, maintain_order=True)
        .agg(like=pl.col("known").first(), confidence=pl.col("len").first() / total, jobs=total)
        .filter(pl.col("jobs") >= FEWEST, pl.col("confidence") > SURE)
    )
    return table.join(best, on=CELL, how="left", nulls_equal=True, maintain_order="left").select(
        job_class=pl.coalesce("known", "like"),
        confidence=pl.when(pl.col("known").is_null()).then("confidence"),
    )
