"""What is done to a GPU when its layout changes, how far it reaches, and how long it takes.

A GPU is in one of two states: MIG mode is off, and it is whole (``"gpu"``); or MIG mode is on, and it has the
instances of a layout, perhaps none. To a GPU that is not needed (``"off"``) nothing is done: it keeps the state it
had, and a plan that needs it again finds it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.catalog import Parameter, parameter
from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware.feasibility import arrangements, prove
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import OFF, Layout, Placement, parse_layout
from gpuplanner.names import resolve
from gpuplanner.schemas import WHOLE_GPU

PATHS = ("nvml", "parted", "operator")
"""Ways to change a layout: NVML instance by instance, mig-parted, the MIG manager of the GPU operator."""

SCOPES = ("nothing", "instance", "gpu", "node")
"""What is out of service meanwhile, least first: the instances that go and come; the GPU; all GPUs of its node."""

_RESET_ARCHITECTURES = ("Ampere",)

State = str | Mapping[str, int] | Layout
"""State of a GPU: layout text, profile counts (``{"gpu": 1}``: whole), or a layout with places and MIG mode on."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of one GPU.

    Parameters
    ----------
    path : str
        One of :data:`PATHS`.
    destroyed, created, kept : tuple of Placement
        Instances that go, come and stay. Work on those that stay is not disturbed.
    mode : {"on", "off"} or None
        What MIG mode is switched to; None if it stays.
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
    mode: str | None
    reboot: bool
    seconds: float
    low_s: float
    high_s: float
    note: str

    @property
    def mode_change(self) -> bool:
        """Whether MIG mode is switched."""
        return self.mode is not None

    @property
    def changes(self) -> bool:
        """Whether anything is done."""
        return bool(self.destroyed or self.created or self.mode_change)

    @property
    def scope(self) -> str:
        """What is out of service meanwhile, one of :data:`SCOPES`."""
        if self.reboot:
            return "node"
        if not self.changes:
            return "nothing"
        return "instance" if self.path == "nvml" and not self.mode_change else "gpu"

    @property
    def steps(self) -> tuple[str, ...]:
        """What is done, in order.

        Examples
        --------
        >>> reconfiguration_cost("A100-80GB", "gpu", "7g.80gb:1").steps
        ('switch MIG mode on', 'reboot the node', 'create 7g.80gb@0')
        >>> reconfiguration_cost("H100-80GB-SXM5", "7g.80gb:1", "gpu").steps
        ('destroy 7g.80gb@0', 'switch MIG mode off')
        """
        return (
            *(f"destroy {placement}" for placement in self.destroyed),
            *([f"switch MIG mode {self.mode}"] if self.mode else []),
            *(["reboot the node"] if self.reboot else []),
            *(f"create {placement}" for placement in self.created),
        )


def mode_seconds(board: GpuModel | str) -> float:
    """Time that a change of MIG mode takes a GPU, beside that of its instances [s].

    None on Hopper and later, where the driver switches at once. On Ampere, and where no source states the
    architecture, the node reboots, so that its other GPUs are out as well.

    References
    ----------
    NVIDIA MIG User Guide, Getting Started (GPU reset on Ampere only); NVIDIA/mig-parted, apply/mode.go, which
    resets all GPUs of a node where a change of mode is pending. Seconds: parameter ``reconfigure_reboot_s``.

    Examples
    --------
    >>> mode_seconds("A100-80GB"), mode_seconds("H100-80GB-SXM5")
    (600.0, 0.0)
    """
    return parameter("reconfigure_reboot_s").value if _reboots(as_board(board)) else 0.0


def reconfiguration_cost(
    board: GpuModel | str,
    before: State,
    after: State,
    *,
    path: str = "operator",
) -> Reconfiguration:
    """Instances destroyed, created and kept when one GPU changes its layout, and the time it takes.

    Through NVML instances that both layouts have may stay where they are. mig-parted and the operator leave a
    GPU alone whose counts already match and otherwise destroy all its instances first.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    before, after : str, mapping of str to int, or Layout
        Layout text, profile counts, or a layout with places, which may be empty while MIG mode is on. For text
        and counts the likeliest places are taken, `after` so that most instances of `before` stay. Nothing is
        done to a GPU that is not needed afterwards (``"off"``).
    path : {"operator", "parted", "nvml"}
        How the change is made.

    Returns
    -------
    Reconfiguration
        Seconds are parameters ``reconfigure_*`` of the catalogue.

    Raises
    ------
    GeometryError
        If a layout is impossible, the path is unknown, or `before` is ``"off"``, which says nothing of the state.

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
    if _not_needed(before):
        text = message(
            "layout before a change", "the state that the GPU has", repr(before), "Say what it was left with."
        )
        raise GeometryError(text)
    after = before if _not_needed(after) else after
    old = next(_layouts(board, before))
    new = max(_layouts(board, after), key=lambda layout: len(_common(old, layout)))
    if path != "nvml" and old.counts == new.counts:
        new = old
    stays = _common(old, new) if path == "nvml" or old == new else set()
    destroyed = tuple(placement for placement in old.placements if placement not in stays)
    created = tuple(placement for placement in new.placements if placement not in stays)
    mode = None if _mig(before) == _mig(after) else "on" if _mig(after) else "off"
    reboot = mode is not None and _reboots(board)
    changed = len(destroyed) + len(created)
    figure = parameter("reconfigure_reboot_s" if reboot else f"reconfigure_{path}_s")
    times = changed if path == "nvml" and not reboot else int(changed > 0 or mode is not None)
    return Reconfiguration(
        path=path,
        destroyed=destroyed,
        created=created,
        kept=tuple(p for p in old.placements if p in stays),
        mode=mode,
        reboot=reboot,
        seconds=times * figure.value,
        low_s=times * figure.low,
        high_s=times * figure.high,
        note=_note(board, figure, reboot=reboot),
    )


def _not_needed(state: State) -> bool:
    return not isinstance(state, Layout) and (
        state.strip() == OFF if isinstance(state, str) else not any(state.values())
    )


def _mig(state: State) -> bool:
    """Whether MIG mode is on."""
    return isinstance(state, Layout) or WHOLE_GPU not in (
        parse_layout(state) if isinstance(state, str) else state
    )


def _reboots(board: GpuModel) -> bool:
    """Whether a change of MIG mode takes the node along; the dearer case where the architecture is not known."""
    return board.architecture in (None, *_RESET_ARCHITECTURES)


def _layouts(board: GpuModel, given: State) -> Iterator[Layout]:
    """The layout given, or all arrangements of the counts given; a GPU that is whole has no instances."""
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
