"""What it costs to change the layout of one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.catalog import Parameter, parameter
from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware.feasibility import arrangements, prove
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import Layout, Placement, parse_layout
from gpuplanner.names import resolve

PATHS = ("nvml", "parted", "operator")
"""Ways to change a layout: NVML instance by instance, mig-parted, the MIG manager of the GPU operator."""

_RESET_ARCHITECTURES = ("Ampere",)


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of one GPU.

    Parameters
    ----------
    path : str
        One of :data:`PATHS`.
    destroyed, created, kept : tuple of Placement
        Instances that go, come and stay. Work on those that stay is not disturbed.
    mode_change : bool
        Whether MIG mode is switched on or off.
    reboot : bool
        Whether the mode change needs a reboot (a GPU reset at the least) of the node.
    seconds, low_s, high_s : float
        Typical time and its range [s]: per instance through NVML, per GPU through mig-parted, per node
        through the operator or with a reboot.
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


def reconfiguration_cost(
    board: GpuModel | str,
    before: str | Mapping[str, int] | Layout,
    after: str | Mapping[str, int] | Layout,
    *,
    path: str = "operator",
) -> Reconfiguration:
    """Instances destroyed, created and kept when one GPU changes its layout, and the time it takes.

    Through NVML instances that both layouts have may stay where they are. mig-parted and the operator leave a
    GPU alone whose counts already match and otherwise destroy all its instances first. A GPU that is not
    needed is left with MIG mode off.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    before, after : str, mapping of str to int, or Layout
        Layout text, profile counts, or a layout with places. For text and counts the likeliest places are
        taken, `after` so that most instances of `before` stay.
    path : {"operator", "parted", "nvml"}
        How the change is made.

    Returns
    -------
    Reconfiguration
        Seconds are parameters ``reconfigure_*`` of the catalogue.

    Raises
    ------
    GeometryError
        If a layout is impossible, or the path is unknown.

    Examples
    --------
    >>> old, new = "4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3"
    >>> change = reconfiguration_cost("H100-80GB-SXM5", old, new, path="nvml")
    >>> [str(placement) for placement in change.kept], round(change.seconds, 1), change.reboot
    (['4g.40gb@0'], 1.2, False)
    >>> reconfiguration_cost("A100-80GB", "gpu", "3g.40gb:2").reboot
    True
    """
    board = as_board(board)
    path = resolve(path, PATHS, what="reconfiguration path", error=GeometryError)
    old = next(_layouts(board, before))
    new = max(_layouts(board, after), key=lambda layout: len(_common(old, layout)))
    if path != "nvml" and old.counts == new.counts:
        new = old
    stays = _common(old, new) if path == "nvml" or old == new else set()
    destroyed = tuple(placement for placement in old.placements if placement not in stays)
    created = tuple(placement for placement in new.placements if placement not in stays)
    mode_change = bool(old.placements) != bool(new.placements)
    reboot = mode_change and board.architecture in (None, *_RESET_ARCHITECTURES)
    changed = len(destroyed) + len(created)
    figure = parameter("reconfigure_reboot_s" if reboot else f"reconfigure_{path}_s")
    times = changed if path == "nvml" and not reboot else min(changed, 1)
    return Reconfiguration(
        path=path,
        destroyed=destroyed,
        created=created,
        kept=tuple(p for p in old.placements if p in stays),
        mode_change=mode_change,
        reboot=reboot,
        seconds=times * figure.value,
        low_s=times * figure.low,
        high_s=times * figure.high,
        note=_note(board, figure, reboot=reboot),
    )


def _layouts(board: GpuModel, given: str | Mapping[str, int] | Layout) -> Iterator[Layout]:
    """The layout given, or all arrangements of the counts given; a GPU that is not cut has no instances."""
    if isinstance(given, Layout):
        yield given
        return
    counts = parse_layout(given) if isinstance(given, str) else given
    proof = prove(board, counts)
    if proof.layout is None:
        text = message(f"layout of {board.name}", "one that can be placed", proof.reason, "Mend the layout.")
        raise GeometryError(text)
    yield from arrangements(board, proof.layout.counts)


def _common(one: Layout, other: Layout) -> set[Placement]:
    return set(one.placements) & set(other.placements)


def _note(board: GpuModel, figure: Parameter, *, reboot: bool) -> str:
    basis = f"{figure.meaning} ({figure.source})"
    if reboot and board.architecture is None:
        return f"the architecture of {board.name} is not known, so the dearer case is counted: {basis}"
    return basis
