"""What a job asks for, as a profile of one board."""

from __future__ import annotations

import warnings

import polars as pl

from gpuplanner.errors import GeometryError, GpuPlannerWarning, examples
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import conform
from gpuplanner.sizing.profile_sizes import slices, smallest_of_share

SIZES = {
    "profile": pl.String,
    "rank": pl.Int32,
    "sms": pl.Float64,
    "memory_gib": pl.Float64,
    "share": pl.Float64,
}
"""Columns of :func:`sizes`."""


def sizes(board: GpuModel) -> pl.DataFrame:
    """All profiles of a board as a table, with the rank by which requests are compared."""
    names = [part.name for part in slices(board)]
    full = [
        part for part in board.profiles if part.memory_slices == board.memory_slices and not part.attribute
    ]
    ranks = {name: rank for rank, name in enumerate(names)} | {part.name: len(names) for part in full}
    rows = [
        (part.name, ranks.get(part.name), part.sms, part.memory_gib, board.share(part.name))
        for part in board.profiles
    ]
    memory_gib = next((part.memory_gib for part in full if part.memory_gib is not None), board.memory_gib)
    whole = (WHOLE_GPU, len(names) + 1, board.sms_of(WHOLE_GPU), memory_gib, 1.0)
    return pl.DataFrame(
        [*rows, whole],
        schema=SIZES,
        orient="row",
    )


def resolve_requests(jobs: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Add what each job asks for in terms of one board.

    - A profile that is named and on the board is taken, under the name of this board; as many instances as
      the job holds, and where it holds whole GPUs as many as these, at least one.
    - A profile that the board does not have is sized by the share of a GPU that each instance is.
    - A fraction of a GPU is the smallest slice whose share of the board's SMs and of its memory slices both
      reach the fraction. Instances do not add up to a whole board (three 2g of an H100 hold 96 of 132 SMs),
      so half a GPU can need a whole one; above what any slice reaches, it is one GPU.
    - One GPU or more are whole GPUs, rounded up.
    - No GPU: no profile and 0 instances. Not known: neither profile nor instances.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; other columns are kept.
    board : GpuModel or str
        The board to size for.

    Returns
    -------
    polars.DataFrame
        `jobs` with ``profile`` (String) and ``instances`` (Int32).

    Warns
    -----
    GpuPlannerWarning
        If profiles are named that the board does not have; those jobs are mapped by their share of a GPU.
        :func:`unknown_profiles` lists them.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> named = [None, None, "3g.39gb", None, None]
    >>> jobs = pl.DataFrame({"gpus": [0.2, 1.0, 1.0, 8.0, 0.0], "profile_requested": named}).with_columns(
    ...     job_id=pl.lit("1"),
    ...     attempt=1,
    ...     tenant=pl.lit("a"),
    ...     state=pl.lit("COMPLETED"),
    ...     submit_time=datetime(2026, 2, 2, tzinfo=UTC),
    ... )
    >>> resolve_requests(jobs, "H100-80GB-SXM5").select("profile", "instances").rows()
    [('2g.20gb', 1), ('gpu', 1), ('3g.40gb', 1), ('gpu', 8), (None, 0)]
    """
    known = as_board(board)
    unknown = unknown_profiles(jobs, known)
    if unknown.height:
        text = (
            f"{unknown['jobs'].sum()} jobs name a profile that {known.name} does not have "
            f"({examples(unknown['profile_requested'].to_list())}); they are sized by their share of a GPU"
        )
        warnings.warn(text, GpuPlannerWarning, stacklevel=2)
    table = conform(jobs, Jobs, where="jobs")
    names = canonical_names(table["profile_requested"], known)
    gpus, named = pl.col("gpus"), pl.col("profile_requested").replace_strict(names, default=None)
    number = pl.coalesce("instances", pl.max_horizontal(gpus.ceil(), 1).cast(pl.Int32))
    each = gpus / pl.coalesce("instances", 1)
    requests = table.select(
        profile=pl.when(gpus == 0).then(None).otherwise(pl.coalesce(named, smallest_of_share(known, each))),
        instances=pl.when(gpus == 0)
        .then(0)
        .when(named.is_not_null())
        .then(number.fill_null(1))
        .when(gpus.is_not_null())
        .then(number),
    )
    return jobs.with_columns(requests["profile"].cast(pl.String), requests["instances"].cast(pl.Int32))


def unknown_profiles(jobs: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Profiles that jobs name but the board does not have.

    Returns
    -------
    polars.DataFrame
        ``profile_requested`` and ``jobs`` (how many name it), sorted by name.
    """
    table = conform(jobs, Jobs, where="jobs")
    known = canonical_names(table["profile_requested"], as_board(board))
    return (
        table.filter(~pl.col("profile_requested").is_in(list(known)))
        .group_by("profile_requested")
        .agg(jobs=pl.len())
        .sort("profile_requested")
    )


def canonical_names(names: pl.Series, board: GpuModel) -> dict[str, str]:
    """Names that are profiles of the board, with the name under which the board lists them."""
    found = {}
    for name in names.drop_nulls().unique().sort():
        if name == WHOLE_GPU:
            found[name] = WHOLE_GPU
            continue
        try:
            found[name] = board.profile(name).name
        except GeometryError:
            continue
    return found
