"""GPU model and MIG profile that a device name of a scheduler or node label means."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.catalog import board_names, boards_called
from gpuplanner.hardware.gpu_models import ProfileName, load_gpu_model

_SHARED = re.compile(r"[-.]shared$", re.IGNORECASE)
_CUT = re.compile(
    r"(?:(?P<gpu_model>.*?)[-_/.])?(?:mig[-_.])?(?P<profile>(?:\d+c\.)?\d+g[._]\d+gb(?:[.+-](?:me\.all|me|gfx))?)",
    re.IGNORECASE | re.ASCII,
)
_SLICES = re.compile(r"(?P<gpu_model>.+)\.(?P<slices>[1-7])", re.ASCII)
"""Types of sites that name compute slices alone: ``a100l.3`` for ``a100l.3g.40gb`` (docs.mila.quebec, list of GPUs)."""
_RESOURCES = ("nvidia.com", "gpu", "mig", "")
"""What stands before a profile, or alone, and names no board."""


@dataclass(frozen=True, slots=True)
class DeviceWord:
    """The two parts of a word for a device.

    Attributes
    ----------
    gpu_model : str or None
        Word for the board; None if none is named.
    profile : str or None
        MIG profile as drivers print it; None for a whole GPU.
    """

    gpu_model: str | None
    profile: str | None


@dataclass(frozen=True, slots=True)
class Share:
    """What part of a board one device is.

    Attributes
    ----------
    compute : float
        Compute slices over those of the board: what a GPU-hour is counted by.
    memory : float or None
        Memory slices over those of the board; None where the boards that may be meant differ.
    """

    compute: float
    memory: float | None


WHOLE_BOARD = Share(1.0, 1.0)


@functools.lru_cache(maxsize=4096)
def parse_device(word: str) -> DeviceWord:
    """Part a word into board and MIG profile.

    Parameters
    ----------
    word : str
        A type of Slurm (``a100_1g.5gb``, at sites also ``a100l.3g.40gb``, ``a100l.3``), a product label
        (``NVIDIA-H100-80GB-HBM3-MIG-1g.10gb``, also with ``-SHARED`` behind it), a name of NVML, a resource
        (``nvidia.com/mig-1g.10gb.me``) or a bare profile.

    Examples
    --------
    >>> parse_device("nvidia_h100_80gb_hbm3_3g.40gb")
    DeviceWord(gpu_model='nvidia_h100_80gb_hbm3', profile='3g.40gb')
    >>> parse_device("NVIDIA-A30-MIG-1g.6gb.me-SHARED"), parse_device("gpu")
    (DeviceWord(gpu_model='NVIDIA-A30', profile='1g.6gb+me'), DeviceWord(gpu_model=None, profile=None))
    >>> parse_device("h100_1g_10gb"), parse_device("a100l.3")
    (DeviceWord(gpu_model='h100', profile='1g.10gb'), DeviceWord(gpu_model='a100l', profile='3g.40gb'))
    """
    plain = _SHARED.sub("", word.strip())
    match = _CUT.fullmatch(plain)
    if match is None:
        return _sliced(plain) or DeviceWord(None if plain.casefold() in _RESOURCES else plain, None)
    gpu_model = re.sub(r"[-_.]mig$", "", match["gpu_model"] or "", flags=re.IGNORECASE)
    profile = match["profile"].replace("_", ".")
    with contextlib.suppress(GeometryError):  # no compute slices: a name that no board has
        profile = str(ProfileName.parse(profile))
    return DeviceWord(None if gpu_model.casefold() in _RESOURCES else gpu_model, profile)


def _sliced(word: str) -> DeviceWord | None:
    """A GPU model and a number of compute slices: the smallest profile with so many; None where it is no such word."""
    match = _SLICES.fullmatch(word)
    called = boards_called(match["gpu_model"]) if match else ()
    if match is None or len(called) != 1 or called[0] not in board_names():
        return None
    sizes = [one for one in load_gpu_model(called[0]).profiles if one.compute_slices == int(match["slices"])]
    sizes.sort(key=lambda one: (one.memory_slices, len(one.name)))
    return DeviceWord(match["gpu_model"], sizes[0].name) if sizes else None


@functools.lru_cache(maxsize=4096)
def boards_meant(gpu_model: str | None, profile: str | None) -> tuple[str, ...]:
    """Boards that a device of these words may be, or be a part of.

    Boards with a profile of exactly this name come before those where it is another driver's name of one of
    theirs. A word that no board is called by says nothing, and neither does none: any board with the profile.

    Parameters
    ----------
    gpu_model : str or None
        Word for the board.
    profile : str or None
        MIG profile; None for a whole GPU.

    Returns
    -------
    tuple of str
        Boards of the catalogue; empty if there is none.

    Examples
    --------
    >>> boards_meant("a100", None), boards_meant("a100", "1g.5gb")
    (('A100-40GB', 'A100-80GB'), ('A100-40GB',))
    >>> "A30-24GB" in boards_meant(None, "1g.6gb"), boards_meant("site_special", None)
    (True, ())
    """
    called = boards_called(gpu_model) if gpu_model else ()
    if profile is None:
        return called
    cut = [name for name in called or board_names() if name in board_names()]
    exact = tuple(name for name in cut if any(profile == each.name for each in load_gpu_model(name).profiles))
    return exact or tuple(name for name in cut if profile_on(name, profile) is not None)


def profile_on(gpu_model: str, profile: str) -> str | None:
    """Name under which a board of the catalogue lists a profile; None if it has none such.

    Examples
    --------
    >>> profile_on("A100-80GB", "3g.39gb"), profile_on("T4", "1g.5gb")
    ('3g.40gb', None)
    """
    if gpu_model not in board_names():
        return None
    try:
        return load_gpu_model(gpu_model).profile(profile).name
    except GeometryError:
        return None


def common_share(boards: Iterable[str], profile: str | None) -> Share | None:
    """Share of one device, if it is the same on every board that may be meant.

    Parameters
    ----------
    boards : iterable of str
        Boards of the catalogue.
    profile : str or None
        MIG profile; None, or ``"gpu"``, for a whole GPU.

    Returns
    -------
    Share or None
        None if there is no board, one does not have the profile, or their compute shares differ.

    Examples
    --------
    >>> common_share(["A100-80GB", "H100-80GB-SXM5"], "3g.40gb")
    Share(compute=0.42857142857142855, memory=0.5)
    >>> common_share(["A100-40GB", "A100-80GB"], "1g.10gb").memory is None
    True
    >>> common_share(["RTX-PRO-6000-Blackwell-96GB", "RTX-PRO-5000-Blackwell-48GB"], "2g.48gb") is None
    True
    """
    if profile is None or profile == WHOLE_GPU:
        return WHOLE_BOARD
    found = [(gpu_model, profile_on(gpu_model, profile)) for gpu_model in boards]
    parts = [(load_gpu_model(gpu_model), name) for gpu_model, name in found if name is not None]
    sizes = [(gpu_model.profile(name), gpu_model) for gpu_model, name in parts]
    compute = {size.compute_slices / gpu_model.compute_slices for size, gpu_model in sizes}
    memory = {size.memory_slices / gpu_model.memory_slices for size, gpu_model in sizes}
    if len(parts) < len(found) or len(compute) != 1:
        return None
    return Share(compute.pop(), memory.pop() if len(memory) == 1 else None)
