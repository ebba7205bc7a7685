"""Do late phases of jobs need fewer GPUs? A paired test on a user's own jobs, with a verdict that can be "no".

The claim is that demand is highest early and shrinks towards convergence. The literature does not support its
mechanism: work per token does not depend on the learning rate, and published recipes raise the batch, hence the GPUs
that are useful, as training goes on.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.gpu import GpuModel, as_board

SUPPORTED, NOT_SUPPORTED, CANNOT_TELL = "supported", "not supported", "cannot tell"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, CANNOT_TELL)
PARTS = ("thirds", "phases")
"""What is late: the last third of the run after set-up, against the first; or what comes after the longest phase of
the highest level, against what comes before its end."""
NEEDS = ("both", "sm", "memory")
"""What a GPU is needed for: the greater of SM activity and of memory as a share of the board, or one of them."""
LEAST_DEMAND = 0.01
"""GPUs below which a part demands nothing that a ratio could be taken of."""


@dataclass(frozen=True)
class Claim:
    """Late against early demand.

    Parameters
    ----------
    verdict : str
        One of :data:`VERDICTS`.
    ratio, low, high : float or None
        Median over the jobs of late over early demand, with its interval.
    jobs : int
        Jobs compared.
    reason : str
        One sentence.
    """

    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    jobs: int
    reason: str


INTERVAL_ALPHA = 0.05
"""One minus the level of the interval of the median ratio."""


def judge_claim(ratios: np.ndarray, *, effect: float = 0.10) -> Claim:
    """Judge whether late demand is lower than early demand by at least an effect.

    The interval of the median ratio is the exact one from order statistics: it needs neither symmetry nor normality,
    and holds for ties. The claim is supported if the whole interval lies at or below ``1 - effect``, not supported if
    it lies above, and else cannot be told. Where the true median is above ``1 - effect``, "supported" comes
    with probability at most 2.5 %.

    Parameters
    ----------
    ratios : numpy.ndarray, shape (n,)
        Late over early demand of each job.
    effect : float
        Smallest reduction of interest, as a share.

    Raises
    ------
    SchemaError
        If `effect` is out of range.

    References
    ----------
    Conover, "Practical Nonparametric Statistics", 3rd ed., 1999, section 3.2: interval of a quantile.
    Schuirmann, J. Pharmacokinet. Biopharm. 15(6), 1987: deciding by an interval against a smallest effect.

    Examples
    --------
    >>> judge_claim(np.full(8, 0.7)).verdict, judge_claim(np.full(8, 1.0)).verdict
    ('supported', 'not supported')
    >>> judge_claim(np.full(5, 0.7)).reason
    '5 jobs are fewer than the 6 that an interval of 95 % needs'
    """
    if not 0 < effect < 1:
        text = message("claim", "an effect between 0 and 1", repr(effect), "Use 0.1.")
        raise SchemaError(text)
    n = len(ratios)
    median = float(np.median(ratios)) if n else None
    rank = _rank(n)
    level = f"{100 * (1 - INTERVAL_ALPHA):.3g} %"
    if rank is None:
        fewest = next(count for count in range(1, 10_000) if _rank(count) is not None)
        text = f"{n} jobs are fewer than the {fewest} that an interval of {level} needs"
        return Claim(CANNOT_TELL, median, None, None, n, text)
    ordered = np.sort(ratios)
    low, high = float(ordered[rank - 1]), float(ordered[n - rank])
    border = 1 - effect
    span = f"the {level} interval {low:.2f} to {high:.2f} of late over early demand"
    if high <= border:
        return Claim(SUPPORTED, median, low, high, n, f"{span} lies at or below {border:g}")
    if low > border:
        return Claim(NOT_SUPPORTED, median, low, high, n, f"{span} lies above {border:g}")
    return Claim(CANNOT_TELL, median, low, high, n, f"{span} holds {border:g}: too few jobs, or too unlike")


def late_over_early(
    samples: pl.DataFrame,
    phases: pl.DataFrame,
    board: GpuModel | str,
    *,
    part: str = "thirds",
    need: str = "both",
) -> pl.DataFrame:
    """Compare late with early demand of each job: GPUs held times the fraction of them that is needed.

    Demand is taken from the readings themselves, minute by minute, so that a slow decline counts that is no phase.
    Set-up is left out.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    phases : polars.DataFrame
        From :func:`gpuplanner.phases.phases_of_jobs`: set-up, GPUs held, and where late begins.
    board : GpuModel or str
        The board that was sampled, for its memory.
    part, need : str
        One of :data:`PARTS`, one of :data:`NEEDS`.

    Returns
    -------
    polars.DataFrame
        ``job_id, job_class, early, late`` [GPU] and ``ratio``; jobs without a late part, without readings, or with
        an early demand below :data:`LEAST_DEMAND` have no row.

    Raises
    ------
    SchemaError
        If the part or need is unknown.

    Examples
    --------
    >>> from gpuplanner.phases.demand import phases_of_jobs
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> found = late_over_early(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5", part="phases", need="sm")
    >>> found.select(pl.col("ratio").round(1)).item()
    0.6
    """
    memory = pl.col("memory_used_gib") / as_board(board).memory_gib
    fractions = {
        "both": pl.max_horizontal("sm_activity", memory) + 0 * (pl.col("sm_activity") + memory),
        "sm": pl.col("sm_activity"),
        "memory": memory,
    }
    end_s = (pl.col("end") - pl.col("start").min().over("job_id")).dt.total_microseconds() / 1e6
    top = pl.col("label").is_in(["steady", "long-context"])
    ends = phases.filter(pl.col("label").is_null() | (pl.col("label") != "setup")).with_columns(end_s=end_s)
    borders = ends.group_by("job_id", "job_class").agg(
        pl.col("gpus").max(),
        begin=pl.col("start").min(),
        third_s=pl.col("end_s").max() / 3,
        top_s=pl.col("end_s").filter(top).sort_by(pl.col("run_s").filter(top)).last(),
    )
    try:
        fraction = fractions[need]
        early_until, late_from = {
            "thirds": (pl.col("third_s"), 2 * pl.col("third_s")),
            "phases": (pl.col("top_s"), pl.col("top_s")),
        }[part]
    except KeyError as error:
        text = message(
            "claim", f"a part of {PARTS} and a need of {NEEDS}", f"{part!r} and {need!r}", "Use one of these."
        )
        raise SchemaError(text) from error
    at_s = (pl.col("time") - pl.col("begin")).dt.total_microseconds() / 1e6
    demand = pl.col("gpus") * fraction
    return (
        samples.select("job_id", "time", "sm_activity", "memory_used_gib")
        .join(borders, on="job_id")
        .with_columns(at_s=at_s, demand=demand)
        .filter(pl.col("at_s") >= 0)
        .group_by("job_id", "job_class")
        .agg(
            early=pl.col("demand").filter(pl.col("at_s") < early_until).mean(),
            late=pl.col("demand").filter(pl.col("at_s") >= late_from).mean(),
        )
        .filter((pl.col("early") >= LEAST_DEMAND) & pl.col("late").is_not_null())
        .with_columns(ratio=pl.col("late") / pl.col("early"))
        .sort("job_id")
    )


def claim_table(
    samples: pl.DataFrame,
    phases: pl.DataFrame,
    board: GpuModel | str,
    *,
    effect: float = 0.10,
) -> pl.DataFrame:
    """Judge the claim by every definition of late and of need, so that a verdict that hangs on one is seen.

    Parameters
    ----------
    samples, phases, board
        As in :func:`late_over_early`; filter the phases for the classes that the claim is about.
    effect : float
        As in :func:`judge_claim`, for each row alone. The first row is the test; the others show how it depends on
        the definition and are no further chances.

    Returns
    -------
    polars.DataFrame
        ``part, need, jobs, ratio, low, high, verdict, reason``; the first row is thirds and both needs.

    Examples
    --------
    >>> from gpuplanner.phases.demand import phases_of_jobs
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> table = claim_table(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5")
    >>> table.height, table["verdict"].unique().to_list()
    (6, ['cannot tell'])
    """
    rows = []
    for part in PARTS:
        for need in NEEDS:
            ratios = late_over_early(samples, phases, board, part=part, need=need)["ratio"].to_numpy()
            rows.append({"part": part, "need": need} | asdict(judge_claim(ratios, effect=effect)))
    figures = dict.fromkeys(("ratio", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema_overrides=figures).select(
        "part", "need", "jobs", "ratio", "low", "high", "verdict", "reason"
    )


def claim_by_class(
    samples: pl.DataFrame,
    phases: pl.DataFrame,
    board: GpuModel | str,
    *,
    effect: float = 0.10,
) -> pl.DataFrame:
    """Judge the claim for each class of jobs on its own: :func:`claim_table` with ``job_class`` in front.

    Examples
    --------
    >>> from gpuplanner.phases.demand import phases_of_jobs
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> claim_by_class(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5")["job_class"].unique().to_list()
    ['pretraining']
    """
    parts = [
        claim_table(samples, mine, board, effect=effect).select(
            pl.lit(name, pl.String).alias("job_class"), pl.all()
        )
        for (name,), mine in phases.sort("job_class").group_by("job_class", maintain_order=True)
    ]
    return pl.concat(parts)


def _rank(n: int) -> int | None:
    """Rank r such that the r-th smallest and r-th greatest of n values hold the median with at least 95 %."""
    below, rank = 0.0, 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > INTERVAL_ALPHA:
            break
        rank += 1
    return rank or None
