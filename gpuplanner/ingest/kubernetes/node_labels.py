"""GPU model, number of GPUs, MIG instances and memory that the labels and annotations of a node state."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import MIB_PER_GIB
from gpuplanner.hardware.catalog import (
    CloudInstanceType,
    facts,
    find_instance_type,
    list_node_labels,
    list_partition_modes,
    list_resource_names,
    match_gpu_models,
)
from gpuplanner.hardware.gpu_model_names import find_profile_name, possible_gpu_models
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.mig_layouts import format_layout, prove
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import smallest_layouts
from gpuplanner.ingest.kubernetes.api_objects import (
    MAX_MEMORY_REQUEST_MIB,
    ApiObject,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    to_text,
)

PRODUCT_LABEL_KEY = "nvidia.com/gpu.product"
"""Node label of gpu-feature-discovery with the GPU product, such as ``NVIDIA-H100-80GB-HBM3``."""

GPU_COUNT_LABEL_KEY = "nvidia.com/gpu.count"
"""Node label of gpu-feature-discovery with the number of GPUs, or of instances under the MIG strategy ``single``."""

VGPU_LABEL_KEY = "nvidia.com/vgpu.present"
"""Node label of gpu-feature-discovery that is ``true`` where the GPUs are vGPUs."""

MIG_CONFIG_LABEL_KEY = "nvidia.com/mig.config"
"""Node label of the GPU operator with the name of the MIG configuration, such as ``all-1g.10gb``."""

UNIFORM_MIG_CONFIG_PREFIX = "all-"
"""Prefix of MIG configurations that partition every GPU of a node into instances of one profile."""

MIG_COUNT_SUFFIX = ".count"
"""End of the node labels that count MIG instances, such as ``nvidia.com/mig-1g.10gb.count``."""

REPLICAS_SUFFIX = ".replicas"
"""End of the node labels with the units that share one GPU or instance, such as ``nvidia.com/gpu.replicas``."""

SHARED_PRODUCT_SUFFIX = "-SHARED"
"""End of the GPU product label where units are time-sliced replicas."""

MIG_PRODUCT_SUFFIX_PATTERN = re.compile(r"-MIG-([^-]+(?:-me)?)$")
"""End of the GPU product label under the MIG strategy ``single``, with the profile: ``-MIG-1g.10gb``."""

MIG_PROFILE_PATTERN = re.compile(r"\d+g\.\d+gb(?:[+-]\w+(?:\.all)?)?")
"""A MIG profile, such as ``1g.10gb+me``."""

LABEL_MEMORY_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)")
"""The number at the beginning of a node label with the memory of a GPU."""

UNPARTITIONED_AMD_MODE = "SPX"
"""Compute partition mode in which an AMD GPU is one device."""

MANUAL_LABEL_CATALOG_UNIT = "by hand"
"""Unit, in the catalogue, of node labels that operators set by hand; used where nothing else names the GPU model."""

MAX_LABEL_MEMORY_DEVIATION_FRACTION = 0.15
"""Largest relative difference between the GPU memory on a node label and that of the GPU model. [0-1]"""

MAX_DEVICE_PLUGIN_GPUS = 1024
"""Largest number of GPUs that a device plugin may list in the annotation of a node."""


@dataclass(frozen=True)
class NodeDoubt:
    """A contradiction, or an assumption, in the labels and resources of a node.

    - ``check``: Name in ``source_checks.csv`` of the check that the node fails, such as ``kubernetes: other models``.
    - ``evidence``: Labels and values that contradict each other.
    - ``resource``: Resource whose pods are affected, without its suffix of shared replicas; None for all.
    """

    check: str
    evidence: str
    resource: str | None = None


def gpu_model_from_labels(
    labels: ApiObject, node_type: CloudInstanceType | None = None, registered: str | None = None
) -> tuple[str | None, tuple[str, ...], list[NodeDoubt]]:
    """Find the GPU model of a node by its labels, its cloud instance type and its device plugin.

    Parameters
    ----------
    labels : mapping
        Labels of a node, or of a ResourceFlavor of Kueue.
    node_type : CloudInstanceType, optional
        Its cloud instance type. Default: the one that the labels name.
    registered : str, optional
        GPU type that a device plugin lists in an annotation of the node.

    Returns
    -------
    model : str or None
        Name of the model in the labels, or the GPU model of the catalogue if only all labels together decide it.
    gpu_models : tuple of str
        GPU models of the catalogue that it may be.
    doubts : list of NodeDoubt
        Labels that name different models.

    Examples
    --------
    >>> karpenter = "karpenter.k8s.aws/instance-gpu"
    >>> gpu_model_from_labels({f"{karpenter}-name": "a100", f"{karpenter}-memory": "81920"})
    ('A100-80GB', ('A100-80GB',), [])
    >>> azure = {"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5", "accelerator": "nvidia"}
    >>> gpu_model_from_labels(azure)[0]
    'H100-80GB-SXM5'
    """
    node_type = node_type or instance_type_from_labels(labels)
    units = list_node_labels("model")
    values = {label: to_text(labels.get(label)) for label in units}
    label_words = [(label, str(split_product_label(value)[0])) for label, value in values.items() if value]
    label_words += [("the device plugin's annotation", registered)] if registered else []
    automatic_words = [(label, word) for label, word in label_words if units.get(label) != MANUAL_LABEL_CATALOG_UNIT]
    manual_words = [(label, word) for label, word in label_words if units.get(label) == MANUAL_LABEL_CATALOG_UNIT]
    memory = labelled_memory_gib(labels)

    def find_models(label_words: list[tuple[str, str]]) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return each label whose value names a GPU model, with that value and the models that it may mean."""
        candidates = [(label, word, match_gpu_models(word)) for label, word in label_words]
        return [(label, word, _filter_by_memory(boards, memory)) for label, word, boards in candidates if boards]

    candidates = find_models(automatic_words)
    candidates += [("instance type", node_type.name, (node_type.gpu_model,))] if node_type else []
    candidates = candidates or find_models(manual_words)
    if not candidates:
        return (automatic_words[0][1] if automatic_words else None), (), []

    first_label, word, gpu_models = candidates[0]
    doubts = []
    for label, other_word, other_models in candidates[1:]:
        common_models = tuple(gpu_model for gpu_model in gpu_models if gpu_model in other_models)
        if not common_models:
            doubts.append(NodeDoubt("kubernetes: other models", f"{first_label} {word}, {label} {other_word}"))
        gpu_models = common_models or gpu_models
    is_decided = len(gpu_models) == 1 and match_gpu_models(word) != gpu_models
    return (gpu_models[0] if is_decided else word), gpu_models, doubts


def count_installed_gpus(
    labels: ApiObject,
    resources: Mapping[str, int],
    replicas: Mapping[str, int],
    model: str | None,
    profile: str | None,
    *,
    stated: int | None = None,
    instances_stated: int | None = None,
) -> tuple[int | None, str | None]:
    """Count the GPUs of a node, and infer their MIG layouts.

    If nothing states their number, or a stale label states fewer than it takes, the capacity counts: full GPUs, and
    instances on the fewest GPUs that can hold them.
    If the node has more GPUs than its instances need, the layouts follow only under the GPU operator, which partitions
    all GPUs alike. A node that offers nothing at the moment is partitioned as its labels state.

    Parameters
    ----------
    labels : mapping
        Labels of the node.
    resources : mapping
        GPU resource → number in its capacity.
    replicas : mapping
        Resource → units that share one GPU or instance; 0 if their number is unknown.
    model : str or None
        Name of its GPU model in the source.
    profile : str or None
        MIG profile of the instances that its full-GPU resource represents.
    stated : int, optional
        Number of GPUs by labels, annotations or the instance type.
    instances_stated : int, optional
        Number of instances by the label of gpu-feature-discovery under the MIG strategy ``single``.

    Returns
    -------
    gpus : int or None
        Number of GPUs; None if unknown.
    layouts : str or None
        MIG layout of each GPU, separated by semicolons; None if no GPU is partitioned or it is unknown.

    Examples
    --------
    >>> capacity = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}
    >>> count_installed_gpus({}, capacity, {}, "NVIDIA-H100-80GB-HBM3", None)
    (8, 'gpu;gpu;gpu;gpu;gpu;gpu;1g.10gb:7;1g.10gb:7')
    >>> count_installed_gpus({}, {"nvidia.com/gpu": 14}, {}, "NVIDIA-H100-80GB-HBM3", "1g.10gb", instances_stated=14)
    (2, '1g.10gb:7;1g.10gb:7')
    >>> labels = {MIG_CONFIG_LABEL_KEY: "all-3g.40gb"}
    >>> count_installed_gpus(labels, {"nvidia.com/gpu": 0}, {}, "NVIDIA-H100-80GB-HBM3", None, stated=2)
    (2, '3g.40gb:2;3g.40gb:2')
    """
    full_gpus = 0
    instances: dict[str, int] = {}
    for name, number in resources.items():
        resource = parse_gpu_resource(name)
        share = replicas.get(resource.base_name, 1) if resource else 0
        if resource is None or share == 0 or number % share or (resource.is_shared and share == 1):
            full_gpus = -1  # units that represent unknown fractions of GPUs
            break
        kind = resource.profile or profile
        if kind is None:
            full_gpus += number // share
        elif number:
            instances[kind] = instances.get(kind, 0) + number // share
    max_instances = max_instances_per_gpu(_possible_models(model, [profile]), profile) if profile is not None else None
    if profile is not None and instances_stated is not None:
        full_gpus, instances = 0, {profile: instances_stated}
    elif profile is not None and stated is not None and max_instances:
        return stated, ";".join([format_layout({profile: max_instances})] * stated)
    if not instances and full_gpus == 0 and profile is None and stated:
        instances = instances_from_labels(labels, stated, model)
    if not instances and profile is not None:
        return None, None
    if not instances:
        return (full_gpus if stated is None and full_gpus >= 0 else stated), None
    layouts = None if full_gpus < 0 else smallest_layouts(_possible_models(model, instances), instances)
    if layouts is None:
        return (stated if profile is None else None), None
    if stated is None or profile is not None or full_gpus + len(layouts) > stated:
        return full_gpus + len(layouts), ";".join([FULL_GPU] * full_gpus + layouts)
    if MIG_CONFIG_LABEL_KEY in labels and full_gpus + len(layouts) < stated:
        layouts = _uniform_layouts(model, instances, stated - full_gpus)
    return stated, ";".join([FULL_GPU] * full_gpus + layouts) if full_gpus + len(layouts) == stated else None


def instances_from_labels(labels: ApiObject, gpus: int, model: str | None) -> dict[str, int]:
    """Return MIG profile → instances of a node: as labels count them, else by the name of its MIG configuration.

    Examples
    --------
    >>> instances_from_labels({"nvidia.com/mig-1g.10gb.count": "14"}, 2, None)
    {'1g.10gb': 14}
    >>> instances_from_labels({MIG_CONFIG_LABEL_KEY: "all-2g.20gb"}, 2, "NVIDIA-H100-80GB-HBM3")
    {'2g.20gb': 6}
    """
    instances = {}
    for key, value in labels.items():
        resource = parse_gpu_resource(key.removesuffix(MIG_COUNT_SUFFIX)) if key.endswith(MIG_COUNT_SUFFIX) else None
        if resource is not None and resource.profile is not None and (number := parse_count(value, key)):
            instances[resource.profile] = number
    name = str(labels.get(MIG_CONFIG_LABEL_KEY) or "")
    if instances or not name.startswith(UNIFORM_MIG_CONFIG_PREFIX):
        return instances
    profile = name.removeprefix(UNIFORM_MIG_CONFIG_PREFIX).replace(".me", "+me")
    max_instances = max_instances_per_gpu(_possible_models(model, [profile]), profile)
    return {} if max_instances is None else {profile: gpus * max_instances}


def _possible_models(model: str | None, profiles: Iterable[str]) -> list[str]:
    """Return the GPU models of the catalogue that a product name may mean and that have all these MIG profiles."""
    is_profile = MIG_PROFILE_PATTERN.fullmatch
    models_by_profile = [set(possible_gpu_models(model, word) if is_profile(word) else ()) for word in profiles]
    return sorted(set.intersection(*models_by_profile))


def _uniform_layouts(model: str | None, instances: Mapping[str, int], gpus: int) -> list[str]:
    """Return one MIG layout per GPU if GPUs partitioned alike can have these instances; else an empty list."""
    per_gpu = {profile: number // gpus for profile, number in instances.items()}
    if any(number % gpus for number in instances.values()):
        return []
    is_possible = all(prove(gpu_model, per_gpu) for gpu_model in _possible_models(model, instances))
    return [format_layout(per_gpu)] * gpus if is_possible else []


def split_product_label(product: str | None) -> tuple[str | None, str | None]:
    """Split the product label of a node into GPU model and, under the MIG strategy ``single``, MIG profile.

    Examples
    --------
    >>> split_product_label("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me-SHARED")
    ('NVIDIA-H100-80GB-HBM3', '1g.10gb+me')
    """
    if product is None:
        return None, None
    plain = product.removesuffix(SHARED_PRODUCT_SUFFIX)
    match = MIG_PRODUCT_SUFFIX_PATTERN.search(plain)
    return (plain[: match.start()], match[1].replace(".me", "+me")) if match else (plain, None)


def read_gpu_register(annotations: ApiObject) -> tuple[int, int | None, str | None] | None:
    """Read the GPUs that the device plugin of HAMi or Volcano lists in an annotation of a node.

    Returns
    -------
    tuple or None
        Number of GPUs, memory of each [MiB], and GPU type; memory or type are None if GPUs differ. None without such
        an annotation.

    References
    ----------
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b (fields joined by commas, GPUs by colons); Project-HAMi
    website pull request 835 (JSON since); volcano-sh/volcano, devices/nvidia/vgpu, ``decodeNodeDevices``. The memory is
    that of the GPU times ``deviceMemoryScaling``, of which
    requests are fractions.

    Examples
    --------
    >>> note = "GPU-1,10,32768,100,NVIDIA-Tesla V100,0,true,0,hami-core:GPU-2,10,32768,100,NVIDIA-Tesla V100,0,true:"
    >>> read_gpu_register({"hami.io/node-nvidia-register": note})
    (2, 32768, 'NVIDIA-Tesla V100')
    >>> read_gpu_register({"4pd.io/node-nvidia-register": '[{"id": "GPU-1", "count": 10, "devmem": 81559}]'})
    (1, 81559, None)
    """
    registers = list_resource_names("node_annotation", "register")
    register = next((words for name in registers if (words := to_text(annotations.get(name)))), None)
    if register is None:
        return None
    try:
        if register.startswith("["):
            listed = enumerate(json.loads(register))
            gpus = {str(entry.get("id", number)): (int(entry["devmem"]), entry.get("type")) for number, entry in listed}
        else:
            fields = [entry.split(",") for entry in register.strip(":").split(":")]
            # HAMi lists percent of compute before the type, Volcano does not.
            gpus = {entry[0]: (int(entry[2]), entry[4 if entry[3].isdigit() else 3]) for entry in fields}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    memory_mib = {mib for mib, _ in gpus.values()}
    types = {gpu_type for _, gpu_type in gpus.values()}
    if not 0 < len(gpus) <= MAX_DEVICE_PLUGIN_GPUS or not all(0 < mib <= MAX_MEMORY_REQUEST_MIB for mib in memory_mib):
        return None
    single_type = to_text(types.pop()) if len(types) == 1 else None
    return len(gpus), memory_mib.pop() if len(memory_mib) == 1 else None, single_type


def profile_from_labels(labels: ApiObject) -> str | None:
    """Return the MIG profile of the instances that ``nvidia.com/gpu`` of a node represents, by its labels; else None.

    Examples
    --------
    >>> profile_from_labels({"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}), profile_from_labels({})
    ('1g.5gb', None)
    """
    product_profile = split_product_label(to_text(labels.get(PRODUCT_LABEL_KEY)))[1]
    return product_profile or next(label_values(labels, "profile"), None)


def instance_type_from_labels(labels: ApiObject) -> CloudInstanceType | None:
    """Return the cloud instance type of a node, if its labels name one of the catalogue."""
    names = label_values(labels, "instance_type")
    return next((kind for name in names if (kind := find_instance_type(name))), None)


def label_values(labels: ApiObject, meaning: str) -> Iterator[str]:
    """Yield the values of node labels that have a meaning, such as ``memory``, the most trusted first."""
    return (words for label in list_node_labels(meaning) if (words := to_text(labels.get(label))))


def is_partition_resource(name: str) -> bool:
    """Whether an extended resource represents MIG instances, or partitions of AMD GPUs."""
    resource = parse_gpu_resource(name)
    return resource is not None and (resource.profile or resource.partition_mode) is not None


def counts_from_labels(
    labels: ApiObject, capacity: ApiObject, node_type: CloudInstanceType | None, *, has_product_profile: bool
) -> dict[str, int]:
    """Return resource, label or instance type → number of GPUs of the node that it states, the most trusted first.

    A GPU count label below the number of the instance type is left out: it counts the GPUs that still work.

    Parameters
    ----------
    labels : mapping
        Labels of the node.
    capacity : mapping
        Resource → quantity of the node.
    node_type : CloudInstanceType, optional
        Its cloud instance type.
    has_product_profile : bool
        Whether the product label carries a MIG profile, so that the GPU count label counts instances.
    """
    counts: dict[str, int] = {}
    for name, unit in list_resource_names("resource", "gpus_of_node").items():
        units = parse_quantity(capacity[name], name) if name in capacity else 0
        if units and not units % int(unit or 1):
            counts[name] = int(units) // int(unit or 1)
    for label in list_node_labels("count"):
        counts_instances = has_product_profile and label == GPU_COUNT_LABEL_KEY
        if label in labels and not counts_instances and (number := parse_count(labels[label], label)):
            counts[label] = number
    if node_type is not None:
        if counts.get(GPU_COUNT_LABEL_KEY, node_type.gpus) < node_type.gpus:
            del counts[GPU_COUNT_LABEL_KEY]
        counts[f"instance type {node_type.name}"] = node_type.gpus
    return counts


def labelled_replicas(labels: ApiObject, resources: Mapping[str, int], gpu_models: tuple[str, ...]) -> dict[str, int]:
    """Return shared resource → units that share one GPU or instance, by labels; 0 if no label states the number."""
    counts = {label: parse_count(value, label) for label, value in labels.items() if label.endswith(REPLICAS_SUFFIX)}
    replicas = {label.removesuffix(REPLICAS_SUFFIX): number for label, number in counts.items() if number > 1}
    for words in label_values(labels, "clients"):
        if (number := parse_count(words, "clients per GPU")) > 1:
            replicas["nvidia.com/gpu"] = number
    if (to_text(labels.get(PRODUCT_LABEL_KEY)) or "").endswith(SHARED_PRODUCT_SUFFIX) and not replicas:
        replicas = {resource.base_name: 0 for name in resources if (resource := parse_gpu_resource(name))}
    mode = next(label_values(labels, "partition_mode"), None)
    parts = partitions_in_mode(gpu_models, mode) if mode else _partitions_by_compute_units(labels, gpu_models)
    if parts is not None:
        replicas["amd.com/gpu"] = parts
    for name in resources:
        if (resource := parse_gpu_resource(name)) and resource.partition_mode:
            replicas[name] = partitions_in_mode(gpu_models, resource.partition_mode)
    return replicas


def partitions_in_mode(gpu_models: Iterable[str], mode: str) -> int:
    """Return into how many devices a compute partition mode, such as ``CPX``, divides one AMD GPU; 0 if unknown.

    A memory partition mode may follow it: ``CPX_NPS4``.

    Examples
    --------
    >>> partitions_in_mode(["MI300X"], "cpx"), partitions_in_mode([], "qpx"), partitions_in_mode(["T4"], "cpx")
    (8, 4, 0)
    """
    mode = mode.upper().partition("_")[0]
    if mode == UNPARTITIONED_AMD_MODE:
        return 1
    models = tuple(gpu_models) or tuple(facts("partition_modes")["gpu_model"].unique())
    numbers = {list_partition_modes(model).get(mode, 0) for model in models}
    return numbers.pop() if len(numbers) == 1 else 0


def _partitions_by_compute_units(labels: ApiObject, gpu_models: tuple[str, ...]) -> int | None:
    """Return into how many devices an AMD GPU is divided, by the label of compute units; None if unknown."""
    compute_units = next(label_values(labels, "compute_units"), None)
    if compute_units is None:
        return None
    rows = facts("partition_modes").filter(pl.col("gpu_model").is_in(gpu_models), pl.col("kind") == "compute")
    partitions = rows.filter(pl.col("compute_units").cast(pl.String) == compute_units)["partitions"].unique().to_list()
    return int(partitions[0]) if len(partitions) == 1 else None


def max_instances_per_gpu(gpu_models: Iterable[str], profile: str) -> int | None:
    """Return how many instances of a MIG profile one GPU holds; None if unknown, or the possible GPU models differ."""
    if not MIG_PROFILE_PATTERN.fullmatch(profile):
        return None
    fitting_models = [gpu_model for gpu_model in gpu_models if find_profile_name(gpu_model, profile)]
    numbers = {load_gpu_model(gpu_model).profile(profile).max_instances for gpu_model in fitting_models}
    return numbers.pop() if len(numbers) == 1 else None


def labelled_memory_gib(labels: ApiObject, *, exact: bool = False) -> float | None:
    """Return the memory of one GPU by node labels [GiB]; with `exact` only by labels in MiB, which are not rounded."""
    for label, unit in list_node_labels("memory").items():
        match = LABEL_MEMORY_SIZE_PATTERN.match(to_text(labels.get(label)) or "")
        if match and float(match[1]) and (unit == "MiB" or not exact):
            return float(match[1]) / (MIB_PER_GIB if unit == "MiB" else 1)
    return None


@functools.cache
def _catalogue_memory_gib(gpu_model: str) -> list[float]:
    """Return the memory sizes of a GPU model in the catalogue [GiB, or GB of its data sheet]."""
    sizes = facts("mig_profiles").select(board="gpu_model", gib="memory_gib_total")
    sizes = sizes.vstack(facts("gpu_specs").select(board="gpu_model", gib="memory_gb"))
    return sizes.filter(board=gpu_model)["gib"].unique().to_list()


def _filter_by_memory(gpu_models: tuple[str, ...], memory_gib: float | None) -> tuple[str, ...]:
    """Return those GPU models whose memory is close to that of a label [GiB]; all if none is close, or it is None."""
    if memory_gib is None or len(gpu_models) < 2:
        return gpu_models
    min_gib, max_gib = (memory_gib * math.exp(sign * MAX_LABEL_MEMORY_DEVIATION_FRACTION) for sign in (-1, 1))

    def fits(gpu_model: str) -> bool:
        """Whether a GPU model has a memory size close to that of the label."""
        return any(min_gib < size < max_gib for size in _catalogue_memory_gib(gpu_model))

    return tuple(filter(fits, gpu_models)) or gpu_models


def gpu_memory_mib_from_labels(labels: ApiObject, gpu_models: tuple[str, ...], profile: str | None) -> int | None:
    """Return the memory of one GPU [MiB] by label, else by the catalogue; None if unknown, or with a profile."""
    if profile is not None:
        return None
    labelled_gib = labelled_memory_gib(labels)
    sizes_gib = {size for gpu_model in gpu_models for size in _catalogue_memory_gib(gpu_model)}
    if labelled_gib is not None:
        return round(labelled_gib * MIB_PER_GIB)
    return int(sizes_gib.pop() * MIB_PER_GIB) if len(sizes_gib) == 1 else None
