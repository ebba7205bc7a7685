"""What becomes of the instances of one GPU when its layout changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpuplanner.hardware.feasibility import arrangements, prove
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import Layout, Placement, parse_layout
from gpuplanner.hardware.profile import refuse

AnyLayout: TypeAlias = str | Mapping[str, int] | Layout
"""A layout as text, as profile counts, or with places."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of one GPU, as :meth:`gpuplanner.hardware.ChangeCost.change` tells it.

    Parameters
    ----------
    path : str
        How it is made, one of :data:`gpuplanner.hardware.PATHS`.
    destroyed, created, kept : tuple of Placement
        Instances that go, come and stay. Work on those that stay is not disturbed.
    mode_change : bool
        Whether MIG mode is switched on or off.
    reboot : bool
        Whether the mode change needs a reboot of the node; then all its GPUs are out of service.
    seconds, low_s, high_s : float
        How long the GPU, or with a reboot the node, is out of service [s]: typical, and the range.
    note : str
        What the figures rest on.
    """

    path: str
    destroyed: tuple[Placement, ...]
    created: tuple[Placement, ...]
    kept: tuple[Placement, ...]
    mode_change: bool
    reboot: bool
    seconds: float
    low_s: float
    high_s: float
    note: str

    @property
    def emptied(self) -> int:
        """What must be empty for it: the instances that go, or the GPU itself, where that was not cut.

        Examples
        --------
        >>> from gpuplanner.hardware.change_cost import ChangeCost
        >>> cost = ChangeCost.of("H100-80GB-SXM5")
        >>> [cost.change(old, "1g.20gb:4").emptied for old in ("1g.10gb:7", "gpu", "1g.20gb:4")]
        [7, 1, 0]
        """
        return len(self.destroyed) or int(self.mode_change)

    @property
    def operations(self) -> int:
        """Instances that are removed and made: what everybody counts who counts the steps of a change."""
        return len(self.destroyed) + len(self.created)


def instances_changed(
    board: GpuModel, before: AnyLayout, after: AnyLayout, *, one_by_one: bool
) -> tuple[tuple[Placement, ...], tuple[Placement, ...], tuple[Placement, ...]]:
    """Say which instances go, come and stay.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> board = as_board("H100-80GB-SXM5")
    >>> parts = instances_changed(board, "4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3", one_by_one=True)
    >>> [" ".join(map(str, part)) for part in parts]
    ['3g.40gb@4', '1g.10gb@4 1g.10gb@5 1g.10gb@6', '4g.40gb@0']
    """
    old = next(_layouts(board, before))
    new = max(_layouts(board, after), key=lambda layout: len(_common(old, layout)))
    if not one_by_one and old.counts == new.counts:
        new = old
    stays = _common(old, new) if one_by_one or old == new else set()
    return (
        tuple(placement for placement in old.placements if placement not in stays),
        tuple(placement for placement in new.placements if placement not in stays),
        tuple(placement for placement in old.placements if placement in stays),
    )


def _layouts(board: GpuModel, given: AnyLayout) -> Iterator[Layout]:
    """The layout given, or all arrangements of the counts given; a GPU that is not cut has no instances."""
    if isinstance(given, Layout):
        yield given
        return
    counts = parse_layout(given) if isinstance(given, str) else given
    proof = prove(board, counts)
    if proof.layout is None:
        refuse(f"layout of {board.name}", "one that can be placed", proof.reason, "Mend the layout.")
    yield from arrangements(board, proof.layout.counts)


def _common(one: Layout, other: Layout) -> set[Placement]:
    return set(one.placements) & set(other.placements)
