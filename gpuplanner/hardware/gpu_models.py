"""GPU models, their MIG profiles, and models without MIG."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.core.errors import GeometryError, resolve
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.catalog import board_names, board_spec, facts, find_any_board, whole_board_names

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
            expected = "a name such as '1g.10gb', '1g.10gb+me', '1g.24gb-me' or '1c.3g.20gb'"
            todo = "Take the name from 'nvidia-smi mig -lgip'."
            raise GeometryError(f"MIG profile {text!r}", expected, "something else", todo)
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
        >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
        >>> gpu_model.profile("2g.20gb").serves(gpu_model.profile("1g.20gb"))
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


Rows: TypeAlias = pl.DataFrame | Iterable[Mapping[str, Any]]

# Drivers round the memory in a name differently: 3g.39gb for 3g.40gb, 7g.189gb for 7g.186gb.
_ALIAS_GB = 1.0
_ALIAS_FRACTION = 0.05
MAX_MEMORY_SLICES = 16
"""Boards with more slices are refused: no such board is known, and layouts grow exponentially with it."""

_BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_TOTALS = ("memory_slices_total", "compute_slices_total")

_COUNTS = ("compute_slices", "memory_slices", "max_instances")


@dataclass(frozen=True)
class GpuModel:
    """One board and its MIG profiles.

    Parameters
    ----------
    name : str
        Name of the board in the catalogue.
    memory_gib : float
        Nominal memory, as in the product name; what the driver reports is in the profiles.
    memory_slices, compute_slices : int
        Slices of the whole board.
    profiles : tuple of MigProfile
        Largest first: by memory slices, compute slices, name.
    sms : int or None
        SMs of the whole board when it is not cut, from its data sheet; None where no source states them.
    architecture : str or None
        For example ``"Ampere"``; None where no source states it.
    drain_s : float or None
        GPU time that is lost while one of them empties before its layout changes [s]; None: the path's.
    """

    name: str
    memory_gib: float
    memory_slices: int
    compute_slices: int
    profiles: tuple[MigProfile, ...]
    sms: int | None = None
    architecture: str | None = None
    drain_s: float | None = None

    @functools.cached_property
    def _by_name(self) -> dict[str, MigProfile]:
        return {profile.name: profile for profile in self.profiles}

    @functools.cached_property
    def budget(self) -> dict[str, int]:
        """What the instances of one board may take together of each resource, from its full-size profile.

        A resource that is not stated for every profile is left out and listed in :attr:`untested`.
        """
        full = [profile for profile in self.profiles if self._is_full(profile)]
        tested = [resource for resource in RESOURCES if resource not in self.untested]
        return {resource: max(profile.amount(resource) or 0 for profile in full) for resource in tested}

    @functools.cached_property
    def untested(self) -> tuple[str, ...]:
        """Resources that the table does not state for every profile, so that no sum can be tested."""
        stated = any(self._is_full(profile) for profile in self.profiles)
        return tuple(
            resource
            for resource in RESOURCES
            if not stated or any(profile.amount(resource) is None for profile in self.profiles)
        )

    def _is_full(self, profile: MigProfile) -> bool:
        return profile.memory_slices == self.memory_slices and profile.compute_slices == self.compute_slices

    def profile(self, name: str) -> MigProfile:
        """Find a profile by its name, or by the name that another driver version prints for it.

        A name that is not in the table is matched on compute slices, attribute and memory, where the memory
        may be off by 1 GB or 5 %.

        Raises
        ------
        GeometryError
            If the name is no profile of this board, or fits more than one; the profiles are listed.

        Examples
        --------
        >>> load_gpu_model("A100-80GB").profile("3g.39gb").name
        '3g.40gb'
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        wanted = ProfileName.parse(name)
        if wanted.compute_instance is not None:
            where = f"{self.name}: {name!r} is a compute instance inside a GPU instance"
            todo = f"Name the GPU instance: {str(wanted).partition('.')[2]!r}."
            raise GeometryError(where, "a GPU instance", repr(name), todo)
        exact = self._by_name.get(str(wanted))
        if exact is not None:
            return exact
        near = [profile for profile in self.profiles if _is_alias(wanted, ProfileName.parse(profile.name))]
        if len(near) == 1:
            return near[0]
        where = f"{self.name}: MIG profile {name!r} is {'ambiguous' if near else 'unknown'}"
        expected = f"one of {', '.join(profile.name for profile in reversed(self.profiles))}"
        todo = "Use a name of this list, or check the GPU model."
        raise GeometryError(where, expected, repr(name), todo)

    def share(self, name: str) -> float:
        """Share of the board's GPU-hours that one instance counts for: its compute slices over all.

        Examples
        --------
        >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
        >>> gpu_model.share("gpu"), round(gpu_model.share("3g.40gb"), 4)
        (1.0, 0.4286)
        """
        return 1.0 if name == WHOLE_GPU else self.profile(name).compute_slices / self.compute_slices

    def sms_of(self, name: str) -> int:
        """SMs of one instance; for ``"gpu"`` those of the board that is not cut.

        Raises
        ------
        GeometryError
            If no source states them. They are never derived from the slice count.

        Examples
        --------
        >>> gpu_model = load_gpu_model("A100-40GB")
        >>> gpu_model.sms_of("gpu"), gpu_model.sms_of("7g.40gb")
        (108, 98)
        """
        sms = self.sms if name == WHOLE_GPU else self.profile(name).sms
        if sms is None:
            todo = (
                "Nothing that counts SMs can be computed for it; give rows of your own with 'sms' "
                "(and 'board_sms'), read from 'nvidia-smi mig -lgip'."
            )
            raise GeometryError(f"{self.name}: SMs of {name!r}", "a number in the catalogue", "none", todo)
        return sms


def _is_alias(wanted: ProfileName, known: ProfileName) -> bool:
    off = abs(wanted.memory_gb - known.memory_gb)
    alike = (wanted.compute_slices, wanted.attribute) == (known.compute_slices, known.attribute)
    return alike and off <= max(_ALIAS_GB, _ALIAS_FRACTION * known.memory_gb)


def load_gpu_model(name: str, rows: Rows | None = None) -> GpuModel:
    """Load one board.

    Parameters
    ----------
    name : str
        Name of the board; a unique prefix is enough.
    rows : polars.DataFrame or iterable of mappings, optional
        Profile tables of boards that the catalogue does not have, with the columns of
        ``mig_profiles.csv``. ``architecture``, ``board_sms`` and ``drain_s`` may stand beside them. A board of the same
        name as one in the catalogue takes its place.

    Returns
    -------
    GpuModel
        Hashable; boards of the catalogue are loaded once.

    Raises
    ------
    GeometryError
        If the board is unknown (it is never guessed), the prefix is ambiguous, or rows contradict themselves;
        the message lists every fault.

    Examples
    --------
    >>> gpu_model = load_gpu_model("B200")
    >>> gpu_model.name, gpu_model.memory_slices, gpu_model.compute_slices, gpu_model.sms
    ('B200-180GB', 8, 7, 148)
    """
    if rows is None:
        return _from_catalogue(resolve(name, board_names(), what="gpu_model", error=GeometryError))
    table = rows.to_dicts() if isinstance(rows, pl.DataFrame) else [dict(row) for row in rows]
    own = list(dict.fromkeys(str(row.get("gpu_model")) for row in table))
    known = resolve(name, dict.fromkeys([*own, *board_names()]), what="gpu_model", error=GeometryError)
    if known not in own:
        return _from_catalogue(known)
    return _build(known, [row for row in table if str(row.get("gpu_model")) == known])


def as_board(gpu_model: GpuModel | str) -> GpuModel:
    """Return the board itself, or load it by its name."""
    return gpu_model if isinstance(gpu_model, GpuModel) else load_gpu_model(gpu_model)


@functools.cache
def _from_catalogue(name: str) -> GpuModel:
    rows = facts("mig_profiles").filter(pl.col("gpu_model") == name).to_dicts()
    data_sheet = facts("gpu_specs").filter(pl.col("mig_model") == name).to_dicts()
    if data_sheet:
        first = data_sheet[0]
        extra = {"architecture": first["architecture"], "board_sms": first["sm_or_cu_count"]}
        rows = [row | extra for row in rows]
    return _build(name, rows)


def _build(name: str, table: list[dict[str, Any]]) -> GpuModel:
    rows = board_rows(name, table)
    first = rows[0]
    profiles = []
    for row in rows:
        sizes = {name: row[name] for name in (*_COUNTS, "memory_gib", *RESOURCES)}
        profiles.append(MigProfile(name=row["profile"], starts=row["placement_starts"], **sizes))
    return GpuModel(
        name=name,
        memory_gib=first["memory_gib_total"],
        memory_slices=first["memory_slices_total"],
        compute_slices=first["compute_slices_total"],
        profiles=tuple(sorted(profiles, key=lambda profile: profile.size_order, reverse=True)),
        sms=first["board_sms"],
        architecture=first["architecture"],
        drain_s=first["drain_s"],
    )


def board_rows(name: str, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one board with the types that :class:`~gpuplanner.hardware.gpu_models.GpuModel` needs."""
    faults = [] if _BOARD.fullmatch(name) else ["gpu_model must be letters, digits, '.', '_' and '-'"]
    rows: list[dict[str, Any]] = []
    for row in table:
        typed = _typed(row)
        label = row.get("profile") or f"row {len(rows) + 1}"
        faults += [f"{label}: {fault}" for fault in _row_faults(typed)]
        rows.append(typed)
    if not faults:
        faults = list(_table_faults(rows))
    if faults:
        expected = "rows like those of mig_profiles.csv, as 'nvidia-smi mig -lgip' and '-lgipp' print them"
        got = f"{len(faults)} fault(s): {'; '.join(faults)}"
        raise GeometryError(f"profile rows of {name!r}", expected, got, "Fix these rows.")
    return rows


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    whole = {key: _whole(row.get(key)) for key in (*_TOTALS, *_COUNTS, *RESOURCES, "board_sms")}
    size = row.get("placement_size")
    return whole | {
        "profile": row.get("profile"),
        "architecture": row.get("architecture"),
        "memory_gib_total": _number(row.get("memory_gib_total")),
        "memory_gib": _number(row.get("memory_gib")),
        "drain_s": _number(row.get("drain_s")),
        "placement_starts": _starts(row.get("placement_starts")),
        "placement_size": whole["memory_slices"] if size is None else _whole(size),
    }


def _number(value: object) -> float | None:
    """A number above zero, or None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _whole(value: object) -> int | None:
    """A whole number that is not negative, or None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() else None


def _starts(value: object) -> tuple[int, ...] | None:
    """Start slices from ``"0;2;4"`` (a lone start may have been read as a number), or None."""
    starts = [_whole(part) for part in str(value).split(";")]
    known = [start for start in starts if start is not None]
    return tuple(sorted(set(known))) if len(known) == len(starts) else None


def _row_faults(row: dict[str, Any]) -> Iterator[str]:
    needed = ("memory_gib_total", *_TOTALS, *_COUNTS)
    missing = [key for key in needed if not row[key]]
    if missing:
        yield f"{', '.join(missing)} must be above 0"
    try:
        stated = ProfileName.parse(str(row["profile"]))
    except GeometryError:
        yield "profile is not a name such as '1g.10gb'"
    else:
        if stated.compute_instance is not None:
            yield "profile names a compute instance"
        if str(stated) != row["profile"]:
            yield f"profile must be written {str(stated)!r}"
        if row["compute_slices"] and stated.compute_slices != row["compute_slices"]:
            yield f"compute_slices is {row['compute_slices']}, the name states {stated.compute_slices}"
    if row["placement_starts"] is None:
        yield "placement_starts must be slices such as '0;2;4'"
    if missing or row["placement_starts"] is None:
        return
    total, size = row["memory_slices_total"], row["memory_slices"]
    if total > MAX_MEMORY_SLICES:
        yield f"memory_slices_total is {total}, at most {MAX_MEMORY_SLICES} are understood"
    if row["compute_slices"] > row["compute_slices_total"]:
        yield f"compute_slices is above compute_slices_total, {row['compute_slices_total']}"
    if row["placement_size"] != size:
        yield f"placement_size is {row['placement_size']}, memory_slices {size}"
    if row["placement_starts"][-1] + size > total:
        yield f"an instance at slice {row['placement_starts'][-1]} would end beyond slice {total - 1}"
    if row["max_instances"] > len(row["placement_starts"]):
        yield f"max_instances is {row['max_instances']} with {len(row['placement_starts'])} start(s)"


def _table_faults(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Faults that show only when rows that are sound by themselves are compared."""
    for key in ("memory_gib_total", *_TOTALS):
        values = sorted({row[key] for row in rows})
        if len(values) > 1:
            yield f"{key} differs between rows: {', '.join(map(str, values))}"
    seen: dict[tuple[int, int, str], str] = {}
    for row in rows:
        geometry = (row["compute_slices"], row["memory_slices"], ProfileName.parse(row["profile"]).attribute)
        if geometry in seen:
            yield f"{row['profile']} and {seen[geometry]} have the same slices and attribute"
        seen[geometry] = row["profile"]


def whole_board(name: str) -> GpuModel:
    """A board of that name that nobody can cut.

    It has one slice and no profile, so that everything that counts whole GPUs works for it, and whatever asks for
    a profile finds none. Memory, SMs and architecture are those of its data sheet, where the catalogue has one;
    else memory is 0, and SMs and architecture are not known.

    Parameters
    ----------
    name : str
        Any name; those of :func:`gpuplanner.hardware.catalog.whole_board_names` have a data sheet or a price.

    Examples
    --------
    >>> gpu_model = whole_board("T4")
    >>> gpu_model.memory_gib, gpu_model.sms, gpu_model.share("gpu"), gpu_model.profiles
    (16.0, 40, 1.0, ())
    >>> whole_board("a word of the source").memory_gib
    0.0
    """
    try:
        sheet = board_spec(name) if name in whole_board_names() else None
    except GeometryError:
        sheet = None
    if sheet is None:
        return GpuModel(name, 0.0, 1, 1, ())
    return GpuModel(name, sheet.memory_gb or 0.0, 1, 1, (), sheet.sm_or_cu_count, sheet.architecture)


def any_board(name: str) -> GpuModel:
    """Load a board of the catalogue: with its profiles if it has MIG, else as one that is never cut.

    Raises
    ------
    GeometryError
        If the board is unknown, or a prefix fits several.

    Examples
    --------
    >>> len(any_board("a30").profiles) > 0, any_board("t4").profiles
    (True, ())
    """
    known = find_any_board(name)
    return load_gpu_model(known) if known in board_names() else whole_board(known)
