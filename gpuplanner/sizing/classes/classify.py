"""Give each job a class: that of the source where it has one, else that of the first rule that holds."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.sizing.classes.facts import NUMBERS, job_facts
from gpuplanner.sizing.classes.measure import rule_precision
from gpuplanner.sizing.classes.rules import CLASSES, Rule, shipped_rules

COLUMNS = (
    "job_id",
    "attempt",
    "tenant",
    "user",
    "job_class",
    "origin",
    "given",
    "by_rule",
    "rule",
    "facts",
    "disagrees",
)
HOLDS_GPU = (pl.col("gpus") != 0).fill_null(True)
"""Work without a GPU is of none of the classes; of what is not known, names may yet tell."""
DIGITS = 4
"""Significant digits of the numbers among the facts seen."""


def classify(
    jobs: pl.DataFrame,
    rules: Sequence[Rule] | None = None,
    *,
    samples: pl.DataFrame | None = None,
    tz: str = "UTC",
) -> pl.DataFrame:
    """Name the class of each job, with the rule that did so and what it saw.

    A class that the source gives stands, whatever a rule says; the rule is reported beside it. Where some jobs
    of the table have a class from the source, the confidence in a rule is how often it agreed with them; where
    none has, there is no confidence, since nothing was measured. A job without a GPU gets no class from a rule.

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
    polars.DataFrame, shape (n_jobs, 14)
        In the order of `jobs`: ``job_id``, ``attempt``, ``tenant``, ``user``, ``job_class`` (null if not known),
        ``origin`` (``"source"``, ``"rule"`` or null), ``given`` (by the source), ``by_rule``, ``rule`` (its
        name), ``facts`` (what the rule looked at), ``disagrees`` (source and rule name two of the classes that
        rules know), ``confidence`` [0-1, precision of the rule], ``confidence_low`` [lower end of its 95 %
        interval] and ``confidence_jobs`` (with a class from the source, decided by the rule).

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
    >>> classify(jobs).select("job_class", "rule", "facts", "confidence").rows()
    [('interactive', 'session by name', 'job_name=OOD Jupyter', None), (None, None, None, None)]
    """
    tried = shipped_rules() if rules is None else tuple(rules)
    seen = job_facts(jobs, samples, tz=tz).rename({"job_class": "given"}).with_row_index("row")
    numbers = dict(enumerate(tried))
    first = pl.coalesce(*(pl.when(rule.holds()).then(number) for number, rule in numbers.items()), None)
    decided = seen.with_columns(number=pl.when(HOLDS_GPU).then(first).cast(pl.Int32))
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
    table = (
        decided.join(named, on="row", how="left", maintain_order="left")
        .with_columns(
            job_class=pl.coalesce("given", "by_rule"),
            origin=pl.when(pl.col("given").is_not_null())
            .then(pl.lit("source"))
            .when(pl.col("by_rule").is_not_null())
            .then(pl.lit("rule")),
            disagrees=(pl.col("given").is_in(CLASSES) & (pl.col("given") != pl.col("by_rule"))).fill_null(
                False
            ),
        )
        .select(COLUMNS)
    )
    measured = rule_precision(table).select(
        "rule", confidence="precision", confidence_low="precision_low", confidence_jobs="jobs"
    )
    return table.join(measured, on="rule", how="left", maintain_order="left")


def _shown(fact: str) -> pl.Expr:
    """``fact=value`` as text."""
    value = pl.col(fact).cast(pl.Float64).round_sig_figs(DIGITS) if fact in NUMBERS else pl.col(fact)
    text = value.cast(pl.String).str.strip_suffix(".0") if fact in NUMBERS else value
    return pl.concat_str(pl.lit(f"{fact}="), text)
