"""Where the driver puts an instance when it is asked for a profile without a place.

The driver takes the start that is in the way of the fewest other placements, the lowest of equals. This rule
reproduces every transcript of the MIG User Guide that we know: seven 1g go to 6, 4, 5, 0, 1, 2, 3; three 2g
to 4, 0, 2; a pair of 3g fills 4 first; and two 1g and a 2g leave no room for 3g. It is a rule of thumb for
predicting, not part of any proof: drivers may differ, and only an explicit start is certain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import Layout, Placement
from gpuplanner.hardware.profile import MigProfile


@functools.lru_cache(maxsize=1024)
def driver_starts(board: GpuModel, profile: MigProfile) -> tuple[int, ...]:
    """Start slices of a profile in the order in which the driver tries them.

    Examples
    --------
    >>> board = as_board("A100-40GB")
    >>> driver_starts(board, board.profile("1g.5gb"))
    (6, 4, 5, 0, 1, 2, 3)
    """
    plain = [other for other in board.profiles if not other.attribute] or board.profiles
    masks = [Placement.of(other, start).mask for other in plain for start in other.starts]

    def in_the_way(start: int) -> tuple[int, int]:
        own = Placement.of(profile, start).mask
        return (sum(bool(own & mask) for mask in masks), start)

    return tuple(sorted(profile.starts, key=in_the_way))


def place_in_order(board: GpuModel | str, names: Iterable[str]) -> Layout | None:
    """Predict where instances end up that are created one after another on an empty GPU.

    Returns
    -------
    Layout or None
        None if one of them finds no place.

    Examples
    --------
    >>> str(place_in_order("A100-40GB", ["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"]))
    '1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4'
    >>> place_in_order("A100-40GB", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]) is None
    True
    """
    board = as_board(board)
    layout = Layout()
    for name in names:
        place = _first_free(board, layout, board.profile(name))
        if place is None:
            return None
        layout = Layout((*layout.placements, place))
    return layout


def creation_order(board: GpuModel | str, counts: Mapping[str, int]) -> tuple[str, ...] | None:
    """Order of creation in which the driver, choosing the places, finds one for every instance.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile.

    Returns
    -------
    tuple of str or None
        Largest profiles first: this works for everything that fits on a board of the catalogue. None if it
        does not work here; then give explicit starts.

    Examples
    --------
    >>> creation_order("A100-40GB", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    ('3g.20gb', '2g.10gb', '1g.5gb', '1g.5gb')
    """
    board = as_board(board)
    wanted = sorted(((board.profile(name), count) for name, count in counts.items()), key=_size, reverse=True)
    names = tuple(profile.name for profile, count in wanted for _ in range(count))
    return names if place_in_order(board, names) is not None else None


def _size(wanted: tuple[MigProfile, int]) -> tuple[int, int, str]:
    return wanted[0].size_order


def _first_free(board: GpuModel, layout: Layout, profile: MigProfile) -> Placement | None:
    places = (Placement.of(profile, start) for start in driver_starts(board, profile))
    return next((place for place in places if not place.mask & layout.mask), None)
