"""GPU models and their MIG profiles, read from the catalogue or from own tables."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.core.errors import GeometryError, examples, nearest_names, resolve_name
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.catalog import facts, find_data_sheet, mig_model_names, non_mig_model_names, resolve_gpu_model

_PROFILE_NAME_PATTERN = re.compile(
    r"(?:mig[ _-])?(?:(?P<ci>\d+)c\.)?(?P<compute>\d+)g\.?(?P<gb>\d+)gb"
    r"(?:(?P<sign>[+.-])(?P<word>me\.all|me|gfx))?"
)
"""A MIG profile name such as ``1g.10gb+me``, as drivers, Kubernetes resource lists, Slurm or DRA spell it."""

LABEL_BY_RESOURCE = {
    "sms": "SMs",
    "copy_engines": "copy engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg_engines": "JPEG engines",
    "ofa_engines": "OFA engines",
}
"""Field of :class:`MigProfile` for a resource that the instances of a GPU share, besides memory slices → its label in
messages."""


_FIELDS_COMPARED_BY_SERVES = ("compute_slices", "memory_slices", *(LABEL_BY_RESOURCE.keys() - {"copy_engines"}))
"""Fields of :class:`MigProfile` in which a profile must be at least as large as the profile whose jobs it is to run."""


@dataclass(frozen=True, slots=True)
class ProfileName:
    """Parts of a profile name, ``[<n>c.]<n>g.<n>gb[<attribute>]``.

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
    def parse_name(cls, text: str, hint: str = "") -> ProfileName:
        """Parse a profile name as drivers, resource lists, Slurm or DRA write it.

        Parameters
        ----------
        text : str
            Name.
        hint : str
            What to do about a text that is no name, such as ``"Did you mean '3g.40gb'?"``.

        Raises
        ------
        GeometryError
            If the text is not a profile name.

        Examples
        --------
        >>> str(ProfileName.parse_name("MIG 1g.10gb.me"))
        '1g.10gb+me'
        >>> ProfileName.parse_name("1c.3g.20gb").compute_instance
        1
        >>> str(ProfileName.parse_name("3g40gb"))
        '3g.40gb'
        """
        match = _PROFILE_NAME_PATTERN.fullmatch(text.strip().casefold())
        if match is None or int(match["compute"]) == 0:
            expected = "a name such as '1g.10gb', '1g.10gb+me', '1g.24gb-me' or '1c.3g.20gb'"
            todo = hint or "Take the name from 'nvidia-smi mig -lgip'."
            raise GeometryError(f"MIG profile {text!r}", expected, "something else", todo)
        attribute = match["word"]
        sign = "-" if match["sign"] == "-" else "+"
        return cls(
            compute_slices=int(match["compute"]),
            memory_gb=int(match["gb"]),
            attribute=f"{sign}{attribute}" if attribute else "",
            compute_instance=int(match["ci"]) if match["ci"] else None,
        )

    def __str__(self) -> str:
        """Format the name as the driver does."""
        inner = f"{self.compute_instance}c." if self.compute_instance is not None else ""
        return f"{inner}{self.compute_slices}g.{self.memory_gb}gb{self.attribute}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One row of the profile table of a GPU model.

    None stands for a figure that no source states; nothing is inferred from the name.

    Parameters
    ----------
    name : str
        Name as the driver prints it for this GPU model.
    compute_slices, memory_slices : int
        Slices of one instance; they differ: with 8 memory slices, 3g takes four of them.
    max_instances : int
        Largest number of instances of this profile on one GPU.
    starts : tuple of int
        Memory slices at which an instance may start, ascending.
    memory_gib : float or None
        Memory of one instance that the driver reports. [GiB]
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
        """The part of the name after the memory size: ``"+me"``, or empty."""
        return ProfileName.parse_name(self.name).attribute

    @property
    def size_order(self) -> tuple[int, int, str]:
        """Sort key by size: memory slices, compute slices, name."""
        return (self.memory_slices, self.compute_slices, self.name)

    @property
    def compute_order(self) -> tuple[int, int, str]:
        """Sort key by speed: compute slices, memory slices, name."""
        return (self.compute_slices, self.memory_slices, self.name)

    def serves(self, requested_profile: MigProfile) -> bool:
        """Whether an instance of this profile can run the jobs of another profile.

        It needs at least as many compute slices, memory slices, SMs and media engines; figures that the table does not
        state are not compared. Graphics need a profile with graphics.

        Examples
        --------
        >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
        >>> gpu_model.profile("2g.20gb").serves(gpu_model.profile("1g.20gb"))
        True
        """
        if requested_profile.attribute == "+gfx" and self.attribute != "+gfx":
            return False
        pairs = ((getattr(self, column), getattr(requested_profile, column)) for column in _FIELDS_COMPARED_BY_SERVES)
        return all(
            own_amount is None or requested_amount is None or own_amount >= requested_amount
            for own_amount, requested_amount in pairs
        )

    def amount(self, resource: str) -> int | None:
        """Return the amount of one of :data:`LABEL_BY_RESOURCE` that an instance takes; None if it is not stated."""
        value: int | None = getattr(self, resource)
        return value


ProfileRows: TypeAlias = pl.DataFrame | Iterable[Mapping[str, Any]]
"""MIG profile tables of GPU models that a user supplies: a polars frame or an iterable of rows."""

# Drivers round the memory in a name differently: 3g.39gb for 3g.40gb, 7g.189gb for 7g.186gb.
_MAX_ALIAS_MEMORY_DIFFERENCE_GB = 1.0
"""Largest difference in memory between two names of one profile, which drivers round differently [GB]."""
_MAX_ALIAS_MEMORY_DIFFERENCE_FRACTION = 0.05
"""Largest difference in memory between two names of one profile, as a fraction of the memory [0-1]."""
MAX_MEMORY_SLICES_PER_GPU = 16
"""Largest number of memory slices of a GPU that is accepted; the number of layouts grows exponentially with it."""

_GPU_MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Characters of a GPU model name."""

DRIVER_MEMORY_FRACTION = 0.98
"""Memory that the driver reports of GPUs without a stated figure, as a fraction of the size in the product name [0-1];
of the GPUs with one it is 0.97 to 0.99.
"""

_TOTAL_SLICE_COLUMNS = ("memory_slices_total", "compute_slices_total")
"""Columns of profile tables with the memory slices and compute slices of a full GPU."""

_PROFILE_COUNT_COLUMNS = ("compute_slices", "memory_slices", "max_instances")
"""Columns of profile tables that must have a whole number for every profile."""


@dataclass(frozen=True)
class GpuModel:
    """One GPU model and its MIG profiles.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    memory_gib : float
        Memory of the full GPU that the driver reports; where no source states it, :data:`DRIVER_MEMORY_FRACTION` of the
        size in the product name, or the total of own profile rows. [GiB]
    memory_slices, compute_slices : int
        Slices of the full GPU.
    profiles : tuple of MigProfile
        Largest first: by memory slices, compute slices, name.
    sms : int or None
        SMs of the full GPU with MIG disabled, from its data sheet; None if unknown.
    architecture : str or None
        For example ``"Ampere"``; None if unknown.
    drain_s : float or None
        GPU time lost while a GPU drains before its layout changes; None: that of the actuator. [s]
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
        """Profiles by name."""
        return {profile.name: profile for profile in self.profiles}

    @functools.cached_property
    def budget(self) -> dict[str, int]:
        """Amount of each resource (SMs, engines) that all instances on one GPU share: that of its full-size profile.

        Resources in :attr:`unstated_resources` are left out.
        """
        full = [profile for profile in self.profiles if self._is_full(profile)]
        tested = [resource for resource in LABEL_BY_RESOURCE if resource not in self.unstated_resources]
        return {resource: max(profile.amount(resource) or 0 for profile in full) for resource in tested}

    @functools.cached_property
    def unstated_resources(self) -> tuple[str, ...]:
        """Resources that the table does not state for every profile, so that their sum cannot be checked."""
        stated = any(self._is_full(profile) for profile in self.profiles)
        return tuple(
            resource
            for resource in LABEL_BY_RESOURCE
            if not stated or any(profile.amount(resource) is None for profile in self.profiles)
        )

    def _is_full(self, profile: MigProfile) -> bool:
        """Whether a profile has all slices of the GPU."""
        return profile.memory_slices == self.memory_slices and profile.compute_slices == self.compute_slices

    def profile(self, name: str) -> MigProfile:
        """Find a profile by its name, or by the name that another driver version prints for it.

        An unknown name is matched by compute slices, attribute and memory, which may differ by 1 GB or 5 %.

        Raises
        ------
        GeometryError
            If the name matches no profile of this model, or several; the profiles are listed.

        Examples
        --------
        >>> load_gpu_model("A100-80GB").profile("3g.39gb").name
        '3g.40gb'
        """
        profile = self._by_name.get(name)
        if profile is not None:
            return profile
        near = nearest_names(name, self._by_name)
        hint = f"Did you mean {examples(near)}?" if near else ""
        profile_name = ProfileName.parse_name(name, hint)
        if profile_name.compute_instance is not None:
            subject = f"{self.name}: {name!r} is a compute instance inside a GPU instance"
            todo = f"Name the GPU instance: {str(profile_name).partition('.')[2]!r}."
            raise GeometryError(subject, "a GPU instance", repr(name), todo)
        same_name = self._by_name.get(str(profile_name))
        if same_name is not None:
            return same_name
        aliases = [
            profile for profile in self.profiles if _is_alias(profile_name, ProfileName.parse_name(profile.name))
        ]
        if len(aliases) == 1:
            return aliases[0]
        subject = f"{self.name}: MIG profile {name!r} is {'ambiguous' if aliases else 'unknown'}"
        expected = f"one of {', '.join(profile.name for profile in reversed(self.profiles))}"
        todo = hint or "Use a name of this list, or check the GPU model."
        raise GeometryError(subject, expected, repr(name), todo)

    def gpu_fraction(self, name: str) -> float:
        """Return the fraction of a GPU-hour that one instance counts for [0-1]: its compute slices over all.

        Examples
        --------
        >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
        >>> gpu_model.gpu_fraction("gpu"), round(gpu_model.gpu_fraction("3g.40gb"), 4)
        (1.0, 0.4286)
        """
        return 1.0 if name == FULL_GPU else self.profile(name).compute_slices / self.compute_slices

    def sms_of(self, name: str) -> int:
        """Return the SMs of one instance; for ``"gpu"`` those of the full GPU with MIG disabled.

        Raises
        ------
        GeometryError
            If no source states them; they are never derived from slices.

        Examples
        --------
        >>> gpu_model = load_gpu_model("A100-40GB")
        >>> gpu_model.sms_of("gpu"), gpu_model.sms_of("7g.40gb")
        (108, 98)
        """
        sms = self.sms if name == FULL_GPU else self.profile(name).sms
        if sms is None:
            todo = (
                "Nothing that counts SMs can be computed for it; give rows of your own with 'sms' "
                "(and 'board_sms'), read from 'nvidia-smi mig -lgip'."
            )
            raise GeometryError(f"{self.name}: SMs of {name!r}", "a number in the catalog", "none", todo)
        return sms


def _is_alias(profile_name: ProfileName, listed_name: ProfileName) -> bool:
    """Whether two profile names differ only in the rounding of the memory."""
    difference_gb = abs(profile_name.memory_gb - listed_name.memory_gb)
    same_slices = profile_name.compute_slices == listed_name.compute_slices
    return (
        same_slices
        and profile_name.attribute == listed_name.attribute
        and difference_gb
        <= max(_MAX_ALIAS_MEMORY_DIFFERENCE_GB, _MAX_ALIAS_MEMORY_DIFFERENCE_FRACTION * listed_name.memory_gb)
    )


def load_gpu_model(name: str, rows: ProfileRows | None = None) -> GpuModel:
    """Load one GPU model with MIG.

    Parameters
    ----------
    name : str
        Name of the model; a unique prefix is enough.
    rows : polars.DataFrame or iterable of mappings, optional
        Profile tables of models that the catalogue does not have, with the columns of ``mig_profiles.csv``, optionally
        with ``architecture``, ``board_sms`` and ``drain_s``. A model with the name of one in the catalogue replaces it.

    Returns
    -------
    GpuModel
        Hashable; models of the catalogue are loaded once.

    Raises
    ------
    GeometryError
        If the model is unknown (it is never guessed), the prefix is ambiguous, or rows are inconsistent; the message
        lists every fault.

    Examples
    --------
    >>> gpu_model = load_gpu_model("B200")
    >>> gpu_model.name, gpu_model.memory_slices, gpu_model.compute_slices, gpu_model.sms
    ('B200-180GB', 8, 7, 148)
    """
    if rows is None:
        return _load_from_catalogue(resolve_name(name, mig_model_names(), subject="gpu_model", error=GeometryError))
    table = rows.to_dicts() if isinstance(rows, pl.DataFrame) else [dict(row) for row in rows]
    own_names = list(dict.fromkeys(str(row.get("gpu_model")) for row in table))
    known_names = dict.fromkeys([*own_names, *mig_model_names()])
    full_name = resolve_name(name, known_names, subject="gpu_model", error=GeometryError)
    if full_name not in own_names:
        return _load_from_catalogue(full_name)
    return _build_gpu_model(full_name, [row for row in table if str(row.get("gpu_model")) == full_name])


def as_gpu_model(gpu_model: GpuModel | str) -> GpuModel:
    """Return the GPU model itself, or load it by its name."""
    return gpu_model if isinstance(gpu_model, GpuModel) else load_gpu_model(gpu_model)


@functools.cache
def _load_from_catalogue(name: str) -> GpuModel:
    """Build a GPU model from the rows of the catalogue."""
    table = facts("mig_profiles").filter(pl.col("gpu_model") == name)
    rows = table.with_columns(pl.col("memory_gib_total") * DRIVER_MEMORY_FRACTION).to_dicts()
    data_sheet = facts("gpu_specs").filter(pl.col("mig_model") == name).to_dicts()
    if data_sheet:
        first = data_sheet[0]
        extra = {"architecture": first["architecture"], "board_sms": first["sm_or_cu_count"]}
        rows = [row | extra for row in rows]
    return _build_gpu_model(name, rows)


def _build_gpu_model(name: str, table: list[dict[str, Any]]) -> GpuModel:
    """Build a GPU model from its profile rows."""
    rows = parse_profile_rows(name, table)
    first_row = rows[0]
    profiles = []
    for row in rows:
        sizes = {name: row[name] for name in (*_PROFILE_COUNT_COLUMNS, "memory_gib", *LABEL_BY_RESOURCE)}
        profiles.append(MigProfile(name=row["profile"], starts=row["placement_starts"], **sizes))
    slices = first_row["memory_slices_total"]
    reported = [profile.memory_gib for profile in profiles if profile.memory_slices == slices and profile.memory_gib]
    return GpuModel(
        name=name,
        memory_gib=max(reported, default=first_row["memory_gib_total"]),
        memory_slices=slices,
        compute_slices=first_row["compute_slices_total"],
        profiles=tuple(sorted(profiles, key=lambda profile: profile.size_order, reverse=True)),
        sms=first_row["board_sms"],
        architecture=first_row["architecture"],
        drain_s=first_row["drain_s"],
    )


def parse_profile_rows(name: str, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert the profile rows of one GPU model to the types of :class:`GpuModel`, and check them.

    Raises
    ------
    GeometryError
        With all faults of the rows.
    """
    faults = [] if _GPU_MODEL_NAME_PATTERN.fullmatch(name) else ["gpu_model must be letters, digits, '.', '_' and '-'"]
    rows: list[dict[str, Any]] = []
    for row in table:
        parsed = _parse_profile_row(row)
        label = row.get("profile") or f"row {len(rows) + 1}"
        faults += [f"{label}: {fault}" for fault in _row_faults(parsed)]
        rows.append(parsed)
    if not faults:
        faults = list(_table_faults(rows))
    if faults:
        expected = "rows like those of mig_profiles.csv, as 'nvidia-smi mig -lgip' and '-lgipp' print them"
        got = f"{len(faults)} fault(s): {'; '.join(faults)}"
        raise GeometryError(f"profile rows of {name!r}", expected, got, "Fix these rows.")
    return rows


def _parse_profile_row(row: dict[str, Any]) -> dict[str, Any]:
    """Convert the values of one profile row; None where a value is invalid."""
    numbers = {
        key: _parse_whole_number(row.get(key))
        for key in (*_TOTAL_SLICE_COLUMNS, *_PROFILE_COUNT_COLUMNS, *LABEL_BY_RESOURCE, "board_sms")
    }
    placement_size = row.get("placement_size")
    return numbers | {
        "profile": row.get("profile"),
        "architecture": row.get("architecture"),
        "memory_gib_total": _parse_positive_number(row.get("memory_gib_total")),
        "memory_gib": _parse_positive_number(row.get("memory_gib")),
        "drain_s": _parse_positive_number(row.get("drain_s")),
        "placement_starts": _parse_starts(row.get("placement_starts")),
        "placement_size": numbers["memory_slices"] if placement_size is None else _parse_whole_number(placement_size),
    }


def _parse_positive_number(value: object) -> float | None:
    """Parse a number above zero; None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _parse_whole_number(value: object) -> int | None:
    """Parse a whole number of at least 0; None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() else None


def _parse_starts(value: object) -> tuple[int, ...] | None:
    """Parse start slices such as ``"0;2;4"`` or a single number; None for anything else."""
    starts = [_parse_whole_number(part) for part in str(value).split(";")]
    valid_starts = [start for start in starts if start is not None]
    return tuple(sorted(set(valid_starts))) if len(valid_starts) == len(starts) else None


def _row_faults(row: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of one row of a profile table, as texts."""
    required_columns = ("memory_gib_total", *_TOTAL_SLICE_COLUMNS, *_PROFILE_COUNT_COLUMNS)
    missing = [key for key in required_columns if not row[key]]
    if missing:
        yield f"{', '.join(missing)} must be above 0"
    try:
        profile_name = ProfileName.parse_name(str(row["profile"]))
    except GeometryError:
        yield "profile is not a name such as '1g.10gb'"
    else:
        if profile_name.compute_instance is not None:
            yield "profile names a compute instance"
        if str(profile_name) != row["profile"]:
            yield f"profile must be written {str(profile_name)!r}"
        if row["compute_slices"] and profile_name.compute_slices != row["compute_slices"]:
            yield f"compute_slices is {row['compute_slices']}, the name states {profile_name.compute_slices}"
    if row["placement_starts"] is None:
        yield "placement_starts must be slices such as '0;2;4'"
    if missing or row["placement_starts"] is None:
        return
    memory_slices_total, memory_slices = row["memory_slices_total"], row["memory_slices"]
    if memory_slices_total > MAX_MEMORY_SLICES_PER_GPU:
        yield f"memory_slices_total is {memory_slices_total}, at most {MAX_MEMORY_SLICES_PER_GPU} are understood"
    if row["compute_slices"] > row["compute_slices_total"]:
        yield f"compute_slices is above compute_slices_total, {row['compute_slices_total']}"
    if row["placement_size"] != memory_slices:
        yield f"placement_size is {row['placement_size']}, memory_slices {memory_slices}"
    if row["placement_starts"][-1] + memory_slices > memory_slices_total:
        yield f"an instance at slice {row['placement_starts'][-1]} would end beyond slice {memory_slices_total - 1}"
    if row["max_instances"] > len(row["placement_starts"]):
        yield f"max_instances is {row['max_instances']} with {len(row['placement_starts'])} start(s)"


def _table_faults(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the faults that show only when the valid rows of a GPU model are compared, as texts."""
    for key in ("memory_gib_total", *_TOTAL_SLICE_COLUMNS):
        values = sorted({row[key] for row in rows})
        if len(values) > 1:
            yield f"{key} differs between rows: {', '.join(map(str, values))}"
    profile_by_geometry: dict[tuple[int, int, str], str] = {}
    for row in rows:
        geometry = (row["compute_slices"], row["memory_slices"], ProfileName.parse_name(row["profile"]).attribute)
        if geometry in profile_by_geometry:
            yield f"{row['profile']} and {profile_by_geometry[geometry]} have the same slices and attribute"
        profile_by_geometry[geometry] = row["profile"]


def make_non_mig_model(name: str) -> GpuModel:
    """Make a GPU model without MIG profiles, from its data sheet if the catalogue has one.

    It has one slice and no profile, so that code that counts full GPUs works for it and lookups of a profile find none.
    Without a data sheet its memory is 0, and SMs and architecture are None.

    Parameters
    ----------
    name : str
        Any name; those of :func:`gpuplanner.hardware.catalog.non_mig_model_names` have a data sheet or a price.

    Examples
    --------
    >>> gpu_model = make_non_mig_model("T4")
    >>> gpu_model.memory_gib, gpu_model.sms, gpu_model.gpu_fraction("gpu"), gpu_model.profiles
    (15.68, 40, 1.0, ())
    >>> make_non_mig_model("a word of the source").memory_gib
    0.0
    """
    if name in non_mig_model_names():
        with contextlib.suppress(GeometryError):  # some have a price alone
            sheet = find_data_sheet(name)
            memory_gib = DRIVER_MEMORY_FRACTION * (sheet.memory_gb or 0.0)
            return GpuModel(name, memory_gib, 1, 1, (), sheet.sm_or_cu_count, sheet.architecture)
    return GpuModel(name, 0.0, 1, 1, ())


def load_any_gpu_model(name: str) -> GpuModel:
    """Load a GPU model of the catalogue, with its profiles if it has MIG, else without.

    Raises
    ------
    GeometryError
        If the model is unknown or the prefix is ambiguous.

    Examples
    --------
    >>> len(load_any_gpu_model("a30").profiles) > 0, load_any_gpu_model("t4").profiles
    (True, ())
    """
    full_name = resolve_gpu_model(name)
    return load_gpu_model(full_name) if full_name in mig_model_names() else make_non_mig_model(full_name)
