"""What past jobs asked for, and what they were seen to use of it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from gpuplanner.catalog.loader import find_board
from gpuplanner.errors import GeometryError
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import USED_FROM, WHOLE_GPU
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import conform
from gpuplanner.sizing.evidence import samples_of_runs
from gpuplanner.sizing.requests import resolve_requests, sizes
from gpuplanner.sizing.right_profiles import EVIDENCE, rightsize

REQUEST = ("tenant", "user", "job_class", "gpu_model", "profile_requested", "gpus")
"""Jobs that are equal in these asked for the same thing."""


def boards_of(
    jobs: pl.DataFrame, boards: Mapping[str | None, str] | None = None
) -> dict[str | None, GpuModel | None]:
    """Boards of the catalogue behind the words of the source.

    Parameters
    ----------
    jobs : polars.DataFrame
        With ``gpu_model``.
    boards : mapping, optional
        Name in the catalogue by word of the source; under None, the board of jobs that name none. Words that are
        left out are looked up in the catalogue, where a unique prefix is enough.

    Returns
    -------
    dict
        Board by word, None where none is known: a board is never guessed.

    Raises
    ------
    GeometryError
        If a name of `boards` is not in the catalogue.

    Examples
    --------
    >>> words = pl.DataFrame({"gpu_model": ["a100", "B200", None]})
    >>> {word: board and board.name for word, board in boards_of(words, {"a100": "A100-80GB"}).items()}
    {None: None, 'B200': 'B200-180GB', 'a100': 'A100-80GB'}
    """
    stated = dict(boards or {})
    found: dict[str | None, GpuModel | None] = {}
    for word in jobs["gpu_model"].cast(pl.String).unique().sort().to_list():
        if word in stated:
            found[word] = as_board(stated[word])
            continue
        try:
            found[word] = None if word is None else as_board(find_board(word))
        except GeometryError:
            found[word] = None
    return found


def asked_and_used(
    jobs: pl.DataFrame,
    boards: Mapping[str | None, str] | None = None,
    *,
    samples: pl.DataFrame | None = None,
    headroom: float = 0.10,
) -> pl.DataFrame:
    """Put what each GPU job asked for beside what it used.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``. Jobs without a GPU, or of which the number of GPUs is not known, are left out.
    boards : mapping, optional
        As for :func:`boards_of`.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    headroom : float
        As for :func:`~gpuplanner.sizing.right_profiles.rightsize`.

    Returns
    -------
    polars.DataFrame
        In the order of `jobs`: ``job_id``, ``attempt``, the columns :data:`REQUEST`, ``nodes``, ``state``,
        ``board`` (of the catalogue), ``profile`` (on it), ``instances``, ``memory_asked_gib`` [GiB, of one GPU or
        instance], ``memory_peak_gib`` [GiB, of the record or the samples], ``sm_activity`` [0-1, of the record,
        else of the samples], ``start_time``, ``run_s``, ``time_limit_s``, ``wait_s`` [s], ``gpus_active`` (that worked
        in some minute; null unless all were sampled), ``profile_needed``, ``size_from`` (the evidence for it),
        ``share_asked`` (of the board, per instance), ``rank_asked``, ``rank_needed`` (sizes of the board in
        order; null where the job cannot be sized), and ``gpu_hours`` [GPU h, of what was asked for].

    Raises
    ------
    SchemaError, GeometryError
        As :func:`~gpuplanner.sizing.right_profiles.rightsize` and :func:`boards_of`.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "COMPLETED", "gpus": 1.0,
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=2),
    ...     "sm_activity": 0.1, "memory_peak_gib": 8.0})
    >>> seen = asked_and_used(jobs, {None: "H100-80GB-SXM5"})
    >>> seen.select("memory_asked_gib", "memory_peak_gib", "profile_needed", "gpu_hours").row(0)
    (79.25, 8.0, '1g.10gb', 2.0)
    """
    table = conform(jobs, Jobs, where="hints: jobs").filter(pl.col("gpus") > 0).with_row_index("row")
    table = table.with_columns(devices=pl.coalesce("instances", "gpus"))
    sized = [
        _sized(table.filter(pl.col("gpu_model").eq_missing(pl.lit(word))), board, samples, headroom)
        for word, board in boards_of(table, boards).items()
    ]
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    return (
        pl.concat([*sized, _sized(table.clear(), None, None, headroom)])
        .sort("row")
        .join(_seen(table, samples), on="row", how="left", maintain_order="left")
        .select(
            "job_id",
            "attempt",
            *REQUEST,
            "nodes",
            "state",
            "board",
            "profile",
            "instances",
            "memory_asked_gib",
            pl.max_horizontal("memory_peak_gib", "sampled_memory_gib"),
            pl.coalesce("sm_activity", "sampled_activity"),
            "start_time",
            hours.mul(3600).alias("run_s"),
            "time_limit_s",
            wait_s=(pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6,
            gpus_active=pl.when(pl.col("gpus_seen") >= pl.col("devices")).then("gpus_active"),
            profile_needed="profile_needed",
            size_from="size_from",
            share_asked="share_asked",
            rank_asked="rank_asked",
            rank_needed="rank_needed",
            gpu_hours=pl.col("share_asked") * pl.col("instances") * hours,
        )
    )


def _sized(
    jobs: pl.DataFrame, board: GpuModel | None, samples: pl.DataFrame | None, headroom: float
) -> pl.DataFrame:
    """Jobs of one board with the request on it and the profile that they needed."""
    if board is None:
        named = pl.col("profile_requested").is_not_null()
        # Without a board a slice has no known memory; a whole GPU is one GPU anywhere.
        share = pl.when(~named).then(pl.lit(1.0))
        of_each = pl.col("gpus") / pl.col("instances")
        return jobs.with_columns(
            board=pl.lit(None, pl.String),
            profile=pl.coalesce("profile_requested", pl.lit(WHOLE_GPU)),
            instances=pl.coalesce("instances", pl.col("gpus").ceil().cast(pl.Int32)),
            memory_asked_gib=pl.lit(None, pl.Float64),
            share_asked=pl.coalesce(of_each, pl.when(pl.col("gpus") < 1).then("gpus").otherwise(share)),
            rank_asked=pl.lit(None, pl.Int32),
            profile_needed=pl.lit(None, pl.String),
            size_from=pl.lit(None, pl.String),
            rank_needed=pl.lit(None, pl.Int32),
        )
    table = sizes(board)
    asked = table.select("profile", memory_asked_gib="memory_gib", share_asked="share", rank_asked="rank")
    needed = rightsize(jobs, board, samples=samples, headroom=headroom)
    ranks = dict(table.select("profile", "rank").iter_rows())
    own = pl.col("size_from").is_in(EVIDENCE[:2])
    return (
        resolve_requests(jobs, board)
        .join(asked, on="profile", how="left", maintain_order="left")
        .with_columns(
            board=pl.lit(board.name), profile_needed=needed["profile_needed"], size_from=needed["evidence"]
        )
        .with_columns(
            rank_needed=pl.when(own & (pl.col("instances") == 1)).then(
                pl.col("profile_needed").replace_strict(ranks, default=None, return_dtype=pl.Int32)
            )
        )
        .select(_sized(jobs.clear(), None, None, headroom).columns)
    )


def _seen(jobs: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """By job: devices with samples and those that worked, mean activity and peak memory."""
    return (
        samples_of_runs(jobs, samples, where="hints: samples")
        .group_by("row", "node", "gpu", "instance", pl.col("time").dt.truncate("1m"))
        .agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max())
        .group_by("row", "node", "gpu", "instance")
        .agg(
            mean=pl.col("sm_activity").sort().mean(),  # floats are added in a fixed order
            highest=pl.col("sm_activity").max(),
            memory=pl.col("memory_used_gib").max(),
        )
        .group_by("row")
        .agg(
            gpus_seen=pl.col("highest").count(),
            gpus_active=(pl.col("highest") >= USED_FROM).sum().cast(pl.Int32),
            sampled_activity=pl.col("mean").sort().mean(),
            sampled_memory_gib=pl.col("memory").max(),
        )
    )
