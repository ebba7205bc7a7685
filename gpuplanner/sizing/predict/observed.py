"""Peaks that were seen: which of them are upper bounds, and on which slices a job then fits."""

from __future__ import annotations

import itertools

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.gpu import GpuModel, as_board

HEADROOM = 0.05
"""What is added to a peak that is none but a peak; an upper bound has its headroom within."""
_SAME = 0.001
_FEW = 0.75
"""Share of different peaks among settings up to which they are steps and not needs."""
_MOST = 12
"""Different peaks that steps of any kind have at most: doublings of a GiB pass every board by then."""
_DOUBLING = 1.5


def with_kind(seen: pl.DataFrame) -> pl.DataFrame:
    """Say of each peak whether it is one, or an upper bound of a framework that takes memory in growing steps.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["a", "a", "b", "b"], "peak_gib": [9.7, 9.7, 5.0, 5.6]})
    >>> with_kind(seen)["peak_is"].to_list()
    ['upper bound', 'upper bound', 'peak', 'peak']
    """
    steps = {}
    for (program,), rows in seen.group_by("program"):
        peaks = rows["peak_gib"].drop_nulls().sort().to_list()
        climbs = [high - low for low, high in itertools.pairwise(peaks) if high - low > _SAME * high]
        shared = len(climbs) + 1 <= min(_FEW * len(peaks), _MOST)
        grows = len(climbs) > 1 and all(b >= _DOUBLING * a for a, b in itertools.pairwise(climbs))
        steps[program] = shared or grows
    bounds = [name for name, grown in steps.items() if grown]
    known = pl.when(pl.col("program").is_in(bounds)).then(pl.lit("upper bound")).otherwise(pl.lit("peak"))
    return seen.with_columns(peak_is=known)


def fits(seen: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Whether each job fits each slice of a board: by its peak, overruled by a run on a smaller slice.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5],
    ...     "ran_profile": ["1g.5gb", None], "ran": [True, None]})
    >>> fits(seen, "A100-40GB").filter(pl.col("profile") == "1g.5gb").select("job", "fits", "because").rows()
    [('64', True, 'ran'), ('512', False, 'upper bound')]
    """
    lacking = [name for name in ("program", "job", "peak_gib") if name not in seen.columns]
    if lacking:
        raise SchemaError(
            message("peaks seen", "program, job, peak_gib", f"no {', '.join(lacking)}", "Add them.")
        )
    known = as_board(board)
    sizes = {
        one.name: one.memory_gib
        for one in known.profiles
        if one.memory_gib is not None and "+" not in one.name
    }
    profiles = pl.DataFrame({"profile": list(sizes), "memory_gib": list(sizes.values())})
    tried = seen if {"ran_profile", "ran"} <= set(seen.columns) else seen.with_columns(
        ran_profile=pl.lit(None, pl.String), ran=pl.lit(None, pl.Boolean)
    )  # fmt: skip
    names = {word: known.profile(word).name for word in tried["ran_profile"].drop_nulls().unique().to_list()}
    at = pl.col("ran_profile").replace_strict(
        {word: sizes[name] for word, name in names.items() if name in sizes},
        default=None,
        return_dtype=pl.Float64,
    )
    rows = with_kind(tried).with_columns(ran_gib=at).join(profiles, how="cross")
    larger = pl.col("ran") & (pl.col("memory_gib") >= pl.col("ran_gib"))
    smaller = ~pl.col("ran") & (pl.col("memory_gib") <= pl.col("ran_gib"))
    return rows.with_columns(
        fits=pl.when(larger).then(True).when(smaller).then(False).otherwise(pl.col("peak_gib") <= pl.col("memory_gib")),
        because=pl.when(larger).then(pl.lit("ran")).when(smaller).then(pl.lit("did not run")).otherwise("peak_is"),
    ).select("program", "job", "peak_gib", "peak_is", "profile", "memory_gib", "fits", "because")  # fmt: skip


def smallest_that_fits(seen: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """The smallest slice for each job with room to spare, and the next smaller one that a run would settle.

    A peak gets `HEADROOM`; an upper bound and a run need none. Where a peak is an upper bound, ``try_next`` names the
    largest slice below that only the bound speaks against: a run there overrules it.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5]})
    >>> smallest_that_fits(seen, "A100-40GB").select("profile", "try_next").rows()
    [('1g.10gb', '1g.5gb'), ('1g.10gb', '1g.5gb')]
    """
    slack = pl.when(pl.col("peak_is") == "peak").then(1 + HEADROOM).otherwise(1.0)
    need = with_kind(seen).with_columns(peak_gib=pl.col("peak_gib") * slack).drop("peak_is")
    table = fits(need, board).sort("memory_gib", "profile", maintain_order=True)
    good = table.filter("fits").group_by("program", "job", maintain_order=True).first()
    open_ones = table.filter(~pl.col("fits") & (pl.col("because") == "upper bound"))
    tries = open_ones.group_by("program", "job", maintain_order=True).agg(try_next=pl.col("profile").last())
    found = with_kind(seen).join(
        good.select("program", "job", "profile", "because"), on=["program", "job"], how="left"
    )
    found = found.join(tries, on=["program", "job"], how="left")
    return found.with_columns(
        pl.col("profile").fill_null("gpu"), pl.col("because").fill_null("larger than all slices")
    )
