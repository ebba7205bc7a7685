"""The maximal layouts of a board as tables: what one GPU can be cut into, where, and where the driver puts it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from gpuplanner.errors import GeometryError, examples, message
from gpuplanner.hardware.enumerate import multisets, placed_layouts
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import Layout, format_layout, free_slices, layout_faults
from gpuplanner.hardware.placing import creation_order, place_in_order

BY_COUNTS = {
    "layout": pl.String,
    "instances": pl.Int64,
    "free_slices": pl.Int64,
    "placed": pl.Int64,
    "driver": pl.String,
}
PLACED = {"layout": pl.String, "places": pl.String}


@dataclass(frozen=True, eq=False)
class LayoutList:
    """Layouts to which nothing can be added.

    Parameters
    ----------
    by_counts : polars.DataFrame
        ``layout, instances, free_slices, placed`` (ways to place it) and ``driver``: where its instances end up on
        an empty GPU if they are created largest first without places; none if one of them would find no place.
    placed : polars.DataFrame
        ``layout, places``: each way to place it.
    """

    by_counts: pl.DataFrame
    placed: pl.DataFrame


def list_layouts(
    board: GpuModel | str, profiles: Iterable[str] | None = None, *, beside: Layout | None = None
) -> LayoutList:
    """List the maximal layouts of a board, largest profiles first.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    profiles : iterable of str, optional
        Only these profiles; all of the board if None.
    beside : Layout, optional
        Instances that stand where they are: only layouts that hold them there are listed.

    Returns
    -------
    LayoutList
        By profile counts, and with places.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, what stands there is impossible, or there are too many layouts.

    Examples
    --------
    >>> from gpuplanner.hardware import parse_placements
    >>> found = list_layouts("A30", ["2g.12gb", "4g.24gb"])
    >>> found.by_counts.select("layout", "driver").rows()
    [('4g.24gb:1', '4g.24gb@0'), ('2g.12gb:2', '2g.12gb@0 2g.12gb@2')]
    >>> classic = ["1g.6gb", "2g.12gb", "4g.24gb"]
    >>> list_layouts("A30", classic, beside=parse_placements("A30", "1g.6gb@1")).placed["places"].to_list()
    ['1g.6gb@0 1g.6gb@1 2g.12gb@2', '1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3']
    """
    board = as_board(board)
    standing = beside or Layout()
    faults = layout_faults(board, standing)
    if faults:
        text = message(
            f"layout {str(standing)!r}", f"one that {board.name} can hold", examples(faults), "Mend it."
        )
        raise GeometryError(text)
    chosen = None if profiles is None else tuple(profiles)
    held = set(standing.placements)
    places: dict[str, list[Layout]] = {}
    for layout in placed_layouts(board, chosen, maximal=True):
        if held <= set(layout.placements):
            places.setdefault(layout.text, []).append(layout)
    counts = {format_layout(each): each for each in multisets(board, chosen, maximal=True)}
    rows = []
    for text, each in counts.items():
        if text in places:
            order = creation_order(board, each)
            driver = None if order is None else str(place_in_order(board, order))
            free = len(free_slices(board, places[text][0]))
            rows.append((text, sum(each.values()), free, len(places[text]), driver))
    placed = [(text, str(layout)) for text, *_ in rows for layout in places[text]]
    return LayoutList(
        pl.DataFrame(rows, schema=BY_COUNTS, orient="row"), pl.DataFrame(placed, schema=PLACED, orient="row")
    )
