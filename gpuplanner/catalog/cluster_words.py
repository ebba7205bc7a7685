"""Words of clusters: instance types of clouds, labels of nodes, and resources by which GPUs are asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from gpuplanner.catalog.loader import facts


@dataclass(frozen=True)
class InstanceType:
    """GPUs of one instance type of a cloud.

    - ``provider``, ``name``: Cloud and name of the type, as node labels and bills have it.
    - ``gpu_model``: GPU model of the catalogue.
    - ``gpus``: GPUs that the instance shows.
    - ``board_share``: Part of a board that each of them is; 1 for full GPUs, less for a vGPU.
    """

    provider: str
    name: str
    gpu_model: str
    gpus: int
    board_share: float


def instance_type(name: str | None) -> InstanceType | None:
    """GPUs of an instance type; None where the catalogue does not know it, or it has none.

    Examples
    --------
    >>> instance_type("p5.48xlarge").gpus, instance_type("ml.p4de.24xlarge").gpu_model
    (8, 'A100-80GB')
    >>> instance_type("m5.large") is None
    True
    """
    word = (name or "").casefold()
    types = _instance_types()
    # SageMaker and HyperPod write "ml." before an instance type of EC2.
    return types.get(word) or types.get(word.removeprefix("ml."))


@functools.cache
def node_labels(meaning: str) -> Mapping[str, str | None]:
    """Labels of Kubernetes nodes with one meaning, the most trusted first, each with the unit of its value.

    Examples
    --------
    >>> list(node_labels("clients"))
    ['cloud.google.com/gke-max-shared-clients-per-gpu']
    """
    return MappingProxyType(dict(facts("node_labels").filter(meaning=meaning).select("label", "unit").rows()))


@functools.cache
def resource_words(place: str, role: str) -> Mapping[str, str | None]:
    """Words that stand in one place of a Kubernetes object for one thing, each with its unit.

    Parameters
    ----------
    place : str
        ``"resource"``, ``"node_annotation"``, ``"pod_annotation"``, ``"device_class"`` or ``"dra_driver"``.
    role : str
        What the word stands for, such as ``"full_gpu"``, ``"cores"`` or ``"accelerator"``.

    Examples
    --------
    >>> resource_words("resource", "gpus_of_node")["aliyun.com/gpu-count"]
    '1'
    """
    rows = facts("gpu_resources").filter(place=place, role=role)
    return MappingProxyType(dict(rows.select("word", "unit").rows()))


@functools.cache
def sharing_systems() -> tuple[Mapping[str, tuple[str, str | None]], ...]:
    """For each way to share GPUs: role (number, cores, memory, memory_percentage) → resource and its unit.

    Examples
    --------
    >>> sharing_systems()[0]["memory"]
    ('nvidia.com/gpumem', 'MiB')
    """
    roles = pl.col("role").is_in(["number", "cores", "memory", "memory_percentage"])
    rows = facts("gpu_resources").filter(pl.col("place") == "resource", roles)
    return tuple(
        {role: (word, unit) for role, word, unit in part.select("role", "word", "unit").rows()}
        for part in rows.partition_by("system", maintain_order=True)
    )


@functools.cache
def partitions_of(gpu_model: str) -> Mapping[str, int]:
    """Compute partition modes of an AMD GPU → devices that it shows; empty for others.

    Examples
    --------
    >>> partitions_of("MI300X")["CPX"], dict(partitions_of("T4"))
    (8, {})
    """
    rows = facts("partition_modes").filter(gpu_model=gpu_model, kind="compute")
    return MappingProxyType(dict(rows.select("mode", "partitions").rows()))


MAX_GPUS_PER_NODE = 16
"""Most GPUs that an instance type of the catalogue has."""
USUAL_GPUS = 8
"""GPUs of a server where no instance type of the catalogue has the model."""


def partitions_of_units(gpu_model: str, units: int) -> int | None:
    """Partitions of each GPU of a node that lists more units than a server has; None where it does not follow.

    Examples
    --------
    >>> partitions_of_units("MI300X", 64), partitions_of_units("MI300X", 8), partitions_of_units("T4", 64)
    (8, None, None)
    """
    servers = {kind.gpus for kind in _instance_types().values() if kind.gpu_model == gpu_model} or {
        USUAL_GPUS
    }
    fits = {n for n in partitions_of(gpu_model).values() if units % n == 0 and units // n in servers}
    return fits.pop() if units > MAX_GPUS_PER_NODE and len(fits) == 1 else None


@functools.cache
def _instance_types() -> dict[str, InstanceType]:
    rows = facts("instance_types").select("provider", "instance_type", "gpu_model", "gpus", "board_share")
    return {row[1].casefold(): InstanceType(*row) for row in rows.iter_rows()}
