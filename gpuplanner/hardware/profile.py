"""Names of MIG profiles, and what one profile takes from its board."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from gpuplanner.errors import GeometryError, message

_NAME = re.compile(
    r"(?:mig[ _-])?(?:(?P<ci>\d+)c\.)?(?P<compute>\d+)g\.?(?P<gb>\d+)gb"
    r"(?:(?P<sign>[+.-])(?P<word>me\.all|me|gfx))?"
)

RESOURCES = {
    "sms": "SMs",
    "copy_engines": "copy engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg_engines": "JPEG engines",
    "ofa_engines": "OFA engines",
}
"""What instances of one board share besides memory slices: column and words for it."""


_NEEDS = ("compute_slices", "memory_slices", "sms", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def refuse(what: str, expected: str, got: str, todo: str) -> NoReturn:
    """Raise ``GeometryError`` with the four parts of its message."""
    raise GeometryError(message(what, expected, got, todo))


@dataclass(frozen=True, slots=True)
class ProfileName:
    """The parts of a profile name, ``[<n>c.]<n>g.<n>gb[<attribute>]``.

    Parameters
    ----------
    compute_slices : int
        Compute slices of the GPU instance. SMs are not proportional to it; read them from the profile.
    memory_gb : int
        Memory as the driver prints it, in whole GB.
    attribute : str
        ``""``, ``"+me"`` (media engines), ``"+me.all"``, ``"-me"`` or ``"+gfx"``.
    compute_instance : int, optional
        Compute slices of a compute instance inside the GPU instance, as in ``1c.3g.20gb``.
    """

    compute_slices: int
    memory_gb: int
    attribute: str = ""
    compute_instance: int | None = None

    @classmethod
    def parse(cls, text: str) -> ProfileName:
        """Read a name as drivers, resource lists, Slurm or DRA write it.

        Raises
        ------
        GeometryError
            If the text is not a profile name.

        Examples
        --------
        >>> str(ProfileName.parse("MIG 1g.10gb.me"))
        '1g.10gb+me'
        >>> ProfileName.parse("1c.3g.20gb").compute_instance
        1
        >>> str(ProfileName.parse("3g40gb"))
        '3g.40gb'
        """
        found = _NAME.fullmatch(text.strip().casefold())
        if found is None or int(found["compute"]) == 0:
            refuse(
                f"MIG profile {text!r}",
                "a name such as '1g.10gb', '1g.10gb+me', '1g.24gb-me' or '1c.3g.20gb'",
                "something else",
                "Take the name from 'nvidia-smi mig -lgip'.",
            )
        word = found["word"]
        sign = "-" if found["sign"] == "-" else "+"
        return cls(
            compute_slices=int(found["compute"]),
            memory_gb=int(found["gb"]),
            attribute=f"{sign}{word}" if word else "",
            compute_instance=int(found["ci"]) if found["ci"] else None,
        )

    def __str__(self) -> str:
        """Print the name as the driver does."""
        inner = f"{self.compute_instance}c." if self.compute_instance is not None else ""
        return f"{inner}{self.compute_slices}g.{self.memory_gb}gb{self.attribute}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One row of the profile table of a board.

    ``None`` stands for what no source states; nothing is filled in from the name.

    Parameters
    ----------
    name : str
        Name as the driver of this board prints it.
    compute_slices, memory_slices : int
        What an instance takes; the second is not the first: on 8-slice boards 3g takes four memory slices.
    max_instances : int
        Most instances of this profile on one board.
    starts : tuple of int
        Memory slices at which an instance may start, ascending.
    memory_gib : float or None
        Memory that the driver reports for one instance [GiB].
    sms : int or None
        Streaming multiprocessors of one instance.
    copy_engines, decoders, encoders, jpeg_engines, ofa_engines : int or None
        Engines of one instance.
    """

    name: str
    compute_slices: int
    memory_slices: int
    max_instances: int
    starts: tuple[int, ...]
    memory_gib: float | None = None
    sms: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None

    @property
    def attribute(self) -> str:
        """The part behind the memory size: ``"+me"``, or empty."""
        return ProfileName.parse(self.name).attribute

    @property
    def size_order(self) -> tuple[int, int, str]:
        """Sort key from small to large: memory slices, compute slices, name."""
        return (self.memory_slices, self.compute_slices, self.name)

    @property
    def compute_order(self) -> tuple[int, int, str]:
        """Sort key from small to large by what runs on it: compute slices, memory slices, name."""
        return (self.compute_slices, self.memory_slices, self.name)

    def serves(self, other: MigProfile) -> bool:
        """Whether an instance of this profile can do the work asked of another.

        It needs at least as many compute slices, memory slices, SMs and media engines; what the profile table
        does not state is not compared. Graphics need a profile with graphics.

        Examples
        --------
        >>> from gpuplanner.hardware.gpu import load_gpu_model
        >>> board = load_gpu_model("H100-80GB-SXM5")
        >>> board.profile("2g.20gb").serves(board.profile("1g.20gb"))
        True
        """
        if other.attribute == "+gfx" and self.attribute != "+gfx":
            return False
        pairs = ((getattr(self, need), getattr(other, need)) for need in _NEEDS)
        return all(has is None or wants is None or has >= wants for has, wants in pairs)

    def amount(self, resource: str) -> int | None:
        """How much of one of :data:`RESOURCES` an instance takes; None where no source says."""
        value: int | None = getattr(self, resource)
        return value
