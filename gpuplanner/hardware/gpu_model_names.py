"""Parsing of device names: the GPU model and MIG profile that a scheduler type or node label means."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.catalog import match_gpu_models, mig_model_names
from gpuplanner.hardware.gpu_models import ProfileName, load_gpu_model

_SHARED_SUFFIX_PATTERN = re.compile(r"[-.]shared$", re.IGNORECASE)
"""Suffix of the node label ``nvidia.com/gpu.product`` for GPUs with time-slicing or MPS: ``-SHARED``."""
_DEVICE_PROFILE_PATTERN = re.compile(
    r"(?:(?P<gpu_model>.*?)[-_/.])?(?:mig[-_.])?(?P<profile>(?:\d+c\.)?\d+g[._]\d+gb(?:[.+-](?:me\.all|me|gfx))?)",
    re.IGNORECASE | re.ASCII,
)
"""A MIG profile, optionally after a GPU model."""
_SLICE_COUNT_PATTERN = re.compile(r"(?P<gpu_model>.+)\.(?P<slices>[1-7])", re.ASCII)
"""Types of sites that append only the compute slices: ``a100l.3`` for ``a100l.3g.40gb`` (docs.mila.quebec, list of
GPUs)."""
_RESOURCE_PREFIXES = ("nvidia.com", "gpu", "mig", "")
"""Words of a device name that name no GPU model, as before the profile in ``nvidia.com/mig-1g.10gb``."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The parts of a device name such as ``a100_1g.5gb``: word for the GPU model, and MIG profile.

    Attributes
    ----------
    gpu_model : str or None
        Word for the GPU model; None if the name has none.
    profile : str or None
        MIG profile as drivers print it; None for a full GPU.
    """

    gpu_model: str | None
    profile: str | None


@dataclass(frozen=True, slots=True)
class GpuFraction:
    """The fraction of a full GPU that one device is, by compute slices and by memory slices.

    Attributes
    ----------
    compute : float
        Compute slices over those of the GPU, the weight of its GPU-hours. [0-1]
    memory : float or None
        Memory slices over those of the GPU; None if the possible GPU models differ. [0-1]
    """

    compute: float
    memory: float | None


FULL_GPU_FRACTION = GpuFraction(1.0, 1.0)
"""Fraction of a full GPU."""


@functools.lru_cache(maxsize=4096)
def parse_device_name(text: str) -> DeviceName:
    """Split a device name into GPU model and MIG profile.

    Parameters
    ----------
    text : str
        A Slurm type (``a100_1g.5gb``, at some sites ``a100l.3g.40gb`` or ``a100l.3``), a product label
        (``NVIDIA-H100-80GB-HBM3-MIG-1g.10gb``, also with ``-SHARED``), an NVML name, a resource
        (``nvidia.com/mig-1g.10gb.me``) or a bare profile.

    Examples
    --------
    >>> parse_device_name("nvidia_h100_80gb_hbm3_3g.40gb")
    DeviceName(gpu_model='nvidia_h100_80gb_hbm3', profile='3g.40gb')
    >>> parse_device_name("NVIDIA-A30-MIG-1g.6gb.me-SHARED"), parse_device_name("gpu")
    (DeviceName(gpu_model='NVIDIA-A30', profile='1g.6gb+me'), DeviceName(gpu_model=None, profile=None))
    >>> parse_device_name("h100_1g_10gb"), parse_device_name("a100l.3")
    (DeviceName(gpu_model='h100', profile='1g.10gb'), DeviceName(gpu_model='a100l', profile='3g.40gb'))
    """
    plain = _SHARED_SUFFIX_PATTERN.sub("", text.strip())
    match = _DEVICE_PROFILE_PATTERN.fullmatch(plain)
    if match is None:
        return _parse_slice_count(plain) or DeviceName(None if plain.casefold() in _RESOURCE_PREFIXES else plain, None)
    gpu_model = re.sub(r"[-_.]mig$", "", match["gpu_model"] or "", flags=re.IGNORECASE)
    profile = match["profile"].replace("_", ".")
    with contextlib.suppress(GeometryError):  # no compute slices: a name that no board has
        profile = str(ProfileName.parse_name(profile))
    return DeviceName(None if gpu_model.casefold() in _RESOURCE_PREFIXES else gpu_model, profile)


def _parse_slice_count(text: str) -> DeviceName | None:
    """Parse ``a100l.3``, GPU model and number of compute slices, to the smallest such profile; else None."""
    match = _SLICE_COUNT_PATTERN.fullmatch(text)
    models = match_gpu_models(match["gpu_model"]) if match else ()
    if match is None or len(models) != 1 or models[0] not in mig_model_names():
        return None
    candidates = [
        profile for profile in load_gpu_model(models[0]).profiles if profile.compute_slices == int(match["slices"])
    ]
    candidates.sort(key=lambda profile: (profile.memory_slices, len(profile.name)))
    return DeviceName(match["gpu_model"], candidates[0].name) if candidates else None


@functools.lru_cache(maxsize=4096)
def possible_gpu_models(gpu_model: str | None, profile: str | None) -> tuple[str, ...]:
    """List the GPU models that a device may be, or be a part of.

    Models that list exactly this profile name come before those where another driver's name matches. Without a model
    name, or with one that matches nothing, any model with the profile is possible.

    Parameters
    ----------
    gpu_model : str or None
        Word for the GPU model.
    profile : str or None
        MIG profile; None for a full GPU.

    Returns
    -------
    tuple of str
        Models of the catalogue; empty if there is none.

    Examples
    --------
    >>> possible_gpu_models("a100", None), possible_gpu_models("a100", "1g.5gb")
    (('A100-40GB', 'A100-80GB'), ('A100-40GB',))
    >>> "A30-24GB" in possible_gpu_models(None, "1g.6gb"), possible_gpu_models("site_special", None)
    (True, ())
    """
    models = match_gpu_models(gpu_model) if gpu_model else ()
    if profile is None:
        return models
    mig_models = [name for name in models or mig_model_names() if name in mig_model_names()]
    exact = tuple(
        name for name in mig_models if any(profile == listed.name for listed in load_gpu_model(name).profiles)
    )
    return exact or tuple(name for name in mig_models if find_profile_name(name, profile) is not None)


def find_profile_name(gpu_model: str, profile: str) -> str | None:
    """Find the name under which a GPU model lists a profile; None if it has no such profile.

    Examples
    --------
    >>> find_profile_name("A100-80GB", "3g.39gb"), find_profile_name("T4", "1g.5gb")
    ('3g.40gb', None)
    """
    if gpu_model not in mig_model_names():
        return None
    try:
        return load_gpu_model(gpu_model).profile(profile).name
    except GeometryError:
        return None


def common_gpu_fraction(gpu_models: Iterable[str], profile: str | None) -> GpuFraction | None:
    """Return the GPU fraction of a device if it is the same on all possible GPU models.

    Parameters
    ----------
    gpu_models : iterable of str
        Models of the catalogue.
    profile : str or None
        MIG profile; None, or ``"gpu"``, for a full GPU.

    Returns
    -------
    GpuFraction or None
        None if there is no model, one lacks the profile, or their compute fractions differ.

    Examples
    --------
    >>> common_gpu_fraction(["A100-80GB", "H100-80GB-SXM5"], "3g.40gb")
    GpuFraction(compute=0.42857142857142855, memory=0.5)
    >>> common_gpu_fraction(["A100-40GB", "A100-80GB"], "1g.10gb").memory is None
    True
    >>> common_gpu_fraction(["RTX-PRO-6000-Blackwell-96GB", "RTX-PRO-5000-Blackwell-48GB"], "2g.48gb") is None
    True
    """
    if profile is None or profile == FULL_GPU:
        return FULL_GPU_FRACTION
    profile_names = [(gpu_model, find_profile_name(gpu_model, profile)) for gpu_model in gpu_models]
    models_with_profile = [(load_gpu_model(gpu_model), name) for gpu_model, name in profile_names if name is not None]
    sizes = [(gpu_model.profile(name), gpu_model) for gpu_model, name in models_with_profile]
    compute = {size.compute_slices / gpu_model.compute_slices for size, gpu_model in sizes}
    memory = {size.memory_slices / gpu_model.memory_slices for size, gpu_model in sizes}
    if len(models_with_profile) < len(profile_names) or len(compute) != 1:
        return None
    return GpuFraction(compute.pop(), memory.pop() if len(memory) == 1 else None)
