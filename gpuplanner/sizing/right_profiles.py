"""Right-sizing: the smallest profile that holds what a job was seen to use."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import conform
from gpuplanner.sizing.evidence import add_class_needs, add_own_needs, first_text
from gpuplanner.sizing.profile_sizes import slices, smallest_profile
from gpuplanner.sizing.requests import resolve_requests, sizes

EVIDENCE = ("telemetry", "job statistics", "class", "request")
"""What a size rests on, from best to none: samples of the job, its accounting record, jobs of its class, its
own request."""
COLUMNS = (
    "job_id",
    "attempt",
    "tenant",
    "job_class",
    "profile_requested",
    "profile_needed",
    "instances",
    "sms_needed",
    "memory_needed_gib",
    "change",
    "evidence",
    "reason",
    "gpu_hours_requested",
    "gpu_hours_needed",
)

HEADROOM = 0.10
"""Share added to observed use when a request is right-sized."""


def rightsize(
    jobs: pl.DataFrame,
    board: GpuModel | str,
    *,
    samples: pl.DataFrame | None = None,
    headroom: float = HEADROOM,
    minimum_evidence: int = 5,
) -> pl.DataFrame:
    """Say for each job which profile it needs, and what that rests on.

    A need has two parts. SMs: activity times the SMs of what the job *held* (a job that names 1g.10gb but
    held a whole H100 at 20 % uses 26 SMs). Memory: the peak. The profile is the smallest, by compute slices
    and then memory, with enough of both. A part that was not observed counts as large as the request, never
    as zero.

    - telemetry: the 95 % quantile of the minute means of SM activity, over at least `minimum_evidence`
      minutes, and the peak of memory plus headroom;
    - job statistics: mean SM activity and peak memory of the accounting record, plus headroom;
    - class: without either, the 95 % quantile of the needs of observed jobs of the same tenant and class,
      else of the same class, if there are at least `minimum_evidence`;
    - request: without any of them, what was asked for.

    Only jobs on one GPU or slice change. More than the request is said only where the use itself, without
    headroom, is above it.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    board : GpuModel or str
        The board to size for; the activity of whole GPUs is taken to be that of this board.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    headroom : float
        Share added to a mean SM activity and to peak memory.
    minimum_evidence : int
        Fewest minutes of a job, and fewest jobs of a class, that count as evidence.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 14)
        In the order of `jobs`: ``job_id``, ``attempt``, ``tenant``, ``job_class``, ``profile_requested`` (on
        this board), ``profile_needed``, ``instances``, ``sms_needed``, ``memory_needed_gib`` [GiB] (of each
        instance), ``change`` (smaller, same, larger), ``evidence`` (one of :data:`EVIDENCE`), ``reason``,
        ``gpu_hours_requested`` and ``gpu_hours_needed`` [GPU h over the time held; null if that is open].

    Raises
    ------
    GeometryError
        If no source states the SMs of the board.
    SchemaError
        If `headroom` or `minimum_evidence` is out of range.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [1.0, 8.0], "sm_activity": [0.1, 0.1], "memory_peak_gib": [14.0, 14.0]})
    >>> jobs = jobs.with_columns(
    ...     job_id=pl.Series(["1", "2"]),
    ...     attempt=1,
    ...     tenant=pl.lit("a"),
    ...     state=pl.lit("COMPLETED"),
    ...     submit_time=nine,
    ...     start_time=nine,
    ...     end_time=nine + timedelta(hours=7),
    ... )
    >>> sizes = rightsize(jobs, "H100-80GB-SXM5")
    >>> sizes.select("profile_requested", "profile_needed", "gpu_hours_needed").rows()
    [('gpu', '1g.20gb', 1.0), ('gpu', 'gpu', 56.0)]
    """
    if not 0 <= headroom < 1 or minimum_evidence < 1:
        expected = "headroom from 0 to below 1 and minimum_evidence of at least 1"
        got = f"{headroom!r} and {minimum_evidence!r}"
        raise SchemaError(message("rightsize", expected, got, "Use for example 0.1 and 5."))
    known = as_board(board)
    table = conform(jobs, Jobs, where="rightsize: jobs").with_columns(cut=pl.col("instances").is_not_null())
    asked = _asked(resolve_requests(table, known), known)
    observed = add_own_needs(asked, samples, known, headroom=headroom, minimum_minutes=minimum_evidence)
    needs = add_class_needs(observed, minimum_jobs=minimum_evidence).with_columns(
        sms_needed=pl.coalesce("own_sms", "class_sms", "asked_sms"),
        memory_needed_gib=pl.coalesce("own_memory_gib", "class_memory_gib", "asked_memory_gib"),
        evidence=first_text(
            (pl.col("minutes").is_not_null(), "telemetry"),
            (pl.col("own_sms").is_not_null() | pl.col("own_memory_gib").is_not_null(), "job statistics"),
            (pl.col("class_jobs").is_not_null(), "class"),
            (pl.lit(True), "request"),
        ),
    )
    return _explained(_decided(needs, known), known).select(COLUMNS)


def keep_requests(jobs: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """What :func:`rightsize` returns where nothing can be judged: every request stands.

    For boards that cannot be cut, and for those of which no source states the SMs.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    board : GpuModel or str
        The board that requests are read for.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.hardware.whole_boards import whole_board
    >>> jobs = {"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 0.5}
    >>> jobs = pl.DataFrame(jobs).with_columns(submit_time=datetime(2026, 2, 2, tzinfo=UTC))
    >>> keep_requests(jobs, whole_board("T4")).select("profile_needed", "change", "reason").row(0)
    ('gpu', 'same', 'nothing to choose from')
    """
    known = as_board(board)
    asked = resolve_requests(conform(jobs, Jobs, where="keep_requests: jobs"), known)
    names = asked["profile"].drop_nulls().unique().to_list()
    share = pl.col("profile").replace_strict(
        {name: known.share(name) for name in names}, default=None, return_dtype=pl.Float64
    )
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    nothing = pl.lit(None, pl.Float64)
    return asked.with_columns(
        profile_requested="profile",
        profile_needed="profile",
        sms_needed=nothing,
        memory_needed_gib=nothing,
        change=pl.lit("same"),
        evidence=pl.lit("request"),
        reason=pl.lit("nothing to choose from"),
        gpu_hours_requested=share * pl.col("instances") * hours,
        gpu_hours_needed=share * pl.col("instances") * hours,
    ).select(COLUMNS)


def _asked(jobs: pl.DataFrame, board: GpuModel) -> pl.DataFrame:
    """What each job asked for, in SMs and memory of one instance, and whether it can be sized at all."""
    table = sizes(board)
    whole = table.row(by_predicate=pl.col("profile") == WHOLE_GPU, named=True)
    fraction = (pl.col("gpus") < 1) & pl.col("profile_requested").is_null()
    return (
        jobs.with_row_index("row")
        .join(table, on="profile", how="left", maintain_order="left")
        .with_columns(
            asked_sms=pl.when(fraction).then(pl.col("gpus") * whole["sms"]).otherwise("sms"),
            asked_memory_gib=pl.when(fraction)
            .then(pl.col("gpus") * whole["memory_gib"])
            .otherwise("memory_gib"),
            sizable=pl.col("rank").is_not_null() & (pl.col("instances") == 1),
        )
    )


def _decided(needs: pl.DataFrame, board: GpuModel) -> pl.DataFrame:
    """Exchange the profile for the smallest that fits; for a larger one only where the use is larger."""
    ranks = {part.name: rank for rank, part in enumerate(slices(board))}
    full, whole = len(ranks), len(ranks) + 1  # ranks of the sizes that take the whole board
    enough = smallest_profile(board, pl.col("sms_needed"), pl.col("memory_needed_gib"))
    fitting = enough.replace_strict(
        ranks,
        default=pl.when(pl.col("rank") == full).then(full).otherwise(whole),
        return_dtype=pl.Int32,
    )
    use_fits = (pl.col("used_sms") <= pl.col("sms")).fill_null(True) & (
        pl.col("used_memory_gib") <= pl.col("memory_gib")
    ).fill_null(True)
    own = pl.col("evidence").is_in(EVIDENCE[:2])
    larger = pl.col("fitting") > pl.col("rank")
    same = ~pl.col("sizable") | (pl.col("fitting") == pl.col("rank")) | (larger & (use_fits | ~own))
    return needs.with_columns(enough=enough, fitting=fitting).with_columns(
        change=first_text((same, "same"), (larger, "larger"), (pl.lit(True), "smaller")),
        profile_needed=pl.when(same).then("profile").otherwise("enough"),
    )


def _explained(decided: pl.DataFrame, board: GpuModel) -> pl.DataFrame:
    """Add the reason in words, and GPU-hours before and after."""
    by_telemetry = pl.format("95 % quantile of {} minutes, peak memory + headroom", "minutes")
    by_record = pl.concat_str(
        pl.when(pl.col("own_sms").is_not_null()).then(pl.lit("mean activity")),
        pl.when(pl.col("own_memory_gib").is_not_null()).then(pl.lit("peak memory")),
        separator=" and ",
        ignore_nulls=True,
    )
    reason = first_text(
        (pl.col("instances") == 0, "asks for no GPU"),
        (pl.col("profile").is_null(), "request not known"),
        (pl.col("instances") > 1, "more than one GPU or instance: kept"),
        (pl.col("rank").is_null(), "variant of a profile: kept"),
        (pl.col("evidence") == "telemetry", by_telemetry),
        (pl.col("evidence") == "job statistics", pl.format("{} + headroom", by_record)),
        (pl.col("evidence") == "class", pl.format("{} observed jobs of its class", "class_jobs")),
        (pl.lit(True), "nothing observed"),
    )
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    shares = dict(sizes(board).select("profile", "share").iter_rows())
    return decided.with_columns(
        profile_requested="profile",
        reason=reason,
        gpu_hours_requested=pl.col("share") * pl.col("instances") * hours,
        gpu_hours_needed=pl.col("profile_needed").replace_strict(shares, default=None)
        * pl.col("instances")
        * hours,
    )
