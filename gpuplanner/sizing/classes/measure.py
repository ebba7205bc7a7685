"""How often rules are right, where a source names the classes of its jobs."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.sizing.classes.rules import CLASSES

UNKNOWN = "unknown"
"""Heading of the jobs that no rule decided."""
Z_95 = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""


def rule_precision(classified: pl.DataFrame) -> pl.DataFrame:
    """How often each rule gave the class that the source gives.

    Parameters
    ----------
    classified : polars.DataFrame
        From :func:`~gpuplanner.sizing.classes.classify.classify`; jobs without a class from the source, or with one
        that rules do not know, are left out.

    Returns
    -------
    polars.DataFrame
        ``rule``, ``by_rule``, ``jobs`` (that it decided), ``right``, ``precision``, and ``precision_low`` and
        ``precision_high``, Wilson's 95 % interval [1]_; sorted by rule. Empty where the source names no class.

    References
    ----------
    .. [1] E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Examples
    --------
    >>> table = pl.DataFrame({"rule": ["r"] * 4, "by_rule": ["inference"] * 4,
    ...     "given": ["inference"] * 3 + ["evaluation"]})
    >>> rule_precision(table).select("right", pl.col("precision", "^precision_.*$").round(3)).row(0)
    (3, 0.75, 0.301, 0.954)
    """
    return (
        _labelled(classified)
        .filter(pl.col("rule").is_not_null())
        .group_by("rule", "by_rule")
        .agg(jobs=pl.len(), right=(pl.col("given") == pl.col("by_rule")).sum())
        .with_columns(precision=pl.col("right") / pl.col("jobs"))
        .with_columns(precision_low=_wilson(-1), precision_high=_wilson(+1))
        .sort("rule")
    )


def confusion(classified: pl.DataFrame) -> pl.DataFrame:
    """Count the jobs by the class that the source gives and the one that the rules give.

    Returns
    -------
    polars.DataFrame
        ``given``, one column for each of :data:`~gpuplanner.sizing.classes.rules.CLASSES`, and ``unknown``; one row
        for each class that the source gives, in the order of the classes.

    Examples
    --------
    >>> table = pl.DataFrame({"given": ["inference", "inference"], "by_rule": ["evaluation", None]})
    >>> confusion(table).select("given", "evaluation", "inference", "unknown").rows()
    [('inference', 1, 0, 1)]
    """
    decided = pl.col("by_rule").fill_null(UNKNOWN)
    return (
        _labelled(classified)
        .group_by("given")
        .agg((decided == name).sum().alias(name) for name in (*CLASSES, UNKNOWN))
        .sort(pl.col("given").cast(pl.Enum(CLASSES)))
    )


@dataclass(frozen=True)
class RuleAgreement:
    """How far rules and source agree on the classes of jobs; shares are None where nothing was labelled or judged.

    Jobs; those decided by a rule, labelled with a class from the source that rules know, judged (both), and right of
    these. ``coverage`` is judged / labelled, ``accuracy`` right / labelled (an undecided job is not right),
    ``accuracy_of_decided`` right / judged, and ``commonest_share`` the accuracy of always naming the commonest class.
    """

    jobs: int
    decided: int
    labelled: int
    judged: int
    right: int
    coverage: float | None
    accuracy: float | None
    accuracy_of_decided: float | None
    commonest_share: float | None


def agreement(classified: pl.DataFrame) -> RuleAgreement:
    """Say how far rules and source agree: of all jobs, and of those that rules decided.

    Returns
    -------
    RuleAgreement

    Examples
    --------
    >>> table = pl.DataFrame({"given": ["inference", "inference", None], "by_rule": ["inference", None, None]})
    >>> agreement(table).accuracy, agreement(table).accuracy_of_decided
    (0.5, 1.0)
    """
    labelled = _labelled(classified)
    judged = labelled.filter(pl.col("by_rule").is_not_null())
    right = judged.filter(pl.col("given") == pl.col("by_rule")).height
    commonest = int(labelled["given"].value_counts()["count"].to_numpy().max(initial=0))

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    return RuleAgreement(
        classified.height,
        int(classified["by_rule"].count()),
        labelled.height,
        judged.height,
        right,
        coverage=share(judged.height, labelled.height),
        accuracy=share(right, labelled.height),
        accuracy_of_decided=share(right, judged.height),
        commonest_share=share(commonest, labelled.height),
    )


def _labelled(classified: pl.DataFrame) -> pl.DataFrame:
    return classified.filter(pl.col("given").is_in(CLASSES))


def _wilson(sign: int) -> pl.Expr:
    n, share = pl.col("jobs"), pl.col("precision")
    spread = (share * (1 - share) / n + Z_95**2 / (4 * n**2)).sqrt() * Z_95
    return ((share + Z_95**2 / (2 * n) + sign * spread) / (1 + Z_95**2 / n)).clip(0.0, 1.0)
