"""The smallest profile that is enough: which profiles can be chosen, and which of two is the smaller one.

All that choose a profile choose it here: by SMs and memory, by a share of a GPU, by compute slices, or by the
profiles that it stands in for.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.profile import MigProfile
from gpuplanner.schemas.vocabulary import WHOLE_GPU


def plain_profiles(board: GpuModel) -> tuple[MigProfile, ...]:
    """Profiles from small to large; variants with media or graphics engines compute like the one they vary.

    Examples
    --------
    >>> [profile.name for profile in plain_profiles(as_board("A30-24GB"))]
    ['1g.6gb', '2g.12gb', '4g.24gb']
    """
    plain = (profile for profile in board.profiles if not profile.attribute)
    return tuple(sorted(plain, key=lambda profile: profile.compute_order))


def slices(board: GpuModel | str) -> tuple[MigProfile, ...]:
    """Profiles that a request can be mapped to, small to large: by compute slices, then memory.

    Full-size profiles are left out, since the whole GPU serves as well without being cut; so are variants
    with media or graphics engines, which only a request that names them should get, and profiles whose SMs or
    memory no source states.

    Examples
    --------
    >>> [profile.name for profile in slices("H100-80GB-SXM5")]
    ['1g.10gb', '1g.20gb', '2g.20gb', '3g.40gb', '4g.40gb']
    """
    known = as_board(board)
    return tuple(
        profile
        for profile in plain_profiles(known)
        if profile.memory_slices < known.memory_slices
        and profile.sms is not None
        and profile.memory_gib is not None
    )


def smallest_profile(board: GpuModel | str, sms: pl.Expr, memory_gib: pl.Expr) -> pl.Expr:
    """Smallest of the :func:`slices` of a board that holds a need, else the whole GPU.

    A need that was not observed (null) is as large as the board, never zero. Room to spare is added by who asks.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    sms : polars.Expr
        Streaming multiprocessors needed.
    memory_gib : polars.Expr
        Memory needed [GiB].

    Returns
    -------
    polars.Expr
        Name of the profile, or ``"gpu"``.

    Examples
    --------
    >>> needs = pl.DataFrame({"sms": [14.0, 14.0, None], "memory_gib": [8.8, 10.5, 1.0]})
    >>> found = smallest_profile("H100-80GB-SXM5", pl.col("sms"), pl.col("memory_gib"))
    >>> needs.select(found.alias("profile"))["profile"].to_list()
    ['1g.10gb', '1g.20gb', 'gpu']
    """
    return _first(board, lambda part: (sms <= part.sms) & (memory_gib <= part.memory_gib))


def smallest_of_share(board: GpuModel | str, share: pl.Expr) -> pl.Expr:
    """Smallest slice whose share of the board's SMs and of its memory slices both reach a share of a GPU.

    The whole GPU where none does; null where the share is.

    Examples
    --------
    >>> shares = pl.DataFrame({"gpus": [0.1, 0.2, 0.5, None]})
    >>> shares.select(smallest_of_share("H100-80GB-SXM5", pl.col("gpus"))).to_series().to_list()
    ['1g.10gb', '2g.20gb', 'gpu', None]
    """
    known = as_board(board)

    def reaches(part: MigProfile) -> pl.Expr:
        of_sms = (part.sms or 0) / known.sms if known.sms is not None else 0.0
        return share <= min(of_sms, part.memory_slices / known.memory_slices)

    return pl.when(share.is_not_null()).then(_first(known, reaches))


def smallest_of_compute(board: GpuModel) -> dict[int, MigProfile]:
    """For each number of compute slices the profile with the least memory.

    Examples
    --------
    >>> {slices: p.name for slices, p in smallest_of_compute(as_board("A100-80GB")).items()}
    {1: '1g.10gb', 2: '2g.20gb', 3: '3g.40gb', 4: '4g.40gb', 7: '7g.80gb'}
    """
    found: dict[int, MigProfile] = {}
    for profile in plain_profiles(board):
        found.setdefault(profile.compute_slices, profile)
    return found


def _first(board: GpuModel | str, fits: Callable[[MigProfile], pl.Expr]) -> pl.Expr:
    found = [pl.when(fits(part)).then(pl.lit(part.name)) for part in slices(board)]
    return pl.coalesce(*found, pl.lit(WHOLE_GPU))
