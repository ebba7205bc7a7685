"""GPU model, number of GPUs, MIG layouts and GPU sharing of a node, from its labels, annotations and capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from gpuplanner.hardware.catalog import (
    MAX_CATALOG_GPUS_PER_NODE,
    list_partition_modes,
    list_resource_names,
    mig_model_names,
)
from gpuplanner.hardware.gpu_model_names import common_gpu_fraction
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.ingest.kubernetes.api_objects import (
    SHARED_RESOURCE_SUFFIX,
    ApiObject,
    classify_unread_resource,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    to_text,
)
from gpuplanner.ingest.kubernetes.gpu_requests import node_defined_memory_units
from gpuplanner.ingest.kubernetes.node_labels import (
    GPU_COUNT_LABEL_KEY,
    PRODUCT_LABEL_KEY,
    VGPU_LABEL_KEY,
    NodeDoubt,
    count_installed_gpus,
    counts_from_labels,
    gpu_memory_mib_from_labels,
    gpu_model_from_labels,
    instance_type_from_labels,
    instances_from_labels,
    is_partition_resource,
    label_values,
    labelled_memory_gib,
    labelled_replicas,
    max_instances_per_gpu,
    profile_from_labels,
    read_gpu_register,
    split_product_label,
)


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """GPU model, number of GPUs, MIG layouts and GPU sharing of one Kubernetes node.

    - ``model``: GPU model, as labels of the node name it where that name is enough.
    - ``gpus``: Number of GPUs installed; None if unknown.
    - ``profile``: MIG profile of the instances that ``nvidia.com/gpu`` represents (MIG strategy ``single``).
    - ``memory_mib``: Memory of one GPU [MiB], of which requests are fractions; None if unknown.
    - ``is_memory_stated``: The memory is from labels or annotations; else from the catalogue, a few percent more.
    - ``memory_units``: Memory resource → units of it that are one GPU.
    - ``replicas``: Resource → units of it that share one GPU or instance, if more than one; 0 if their number is
      unknown.
    - ``units``: Resource → units of it that the node has, replicas included.
    - ``mig``: MIG mode is on.
    - ``layouts``: MIG layouts of its GPUs; None if unknown.
    - ``withheld``: Number of GPUs installed that the node does not offer to pods.
    - ``unread``: Resource that is not read → its number on the node.
    - ``doubts``: Contradictions and assumptions in labels and resources.
    """

    model: str | None = None
    gpus: int | None = None
    profile: str | None = None
    memory_mib: int | None = None
    is_memory_stated: bool = False
    memory_units: Mapping[str, Fraction] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    mig: bool = False
    layouts: str | None = None
    withheld: Fraction = Fraction(0)
    unread: Mapping[str, int] = field(default_factory=dict)
    doubts: tuple[NodeDoubt, ...] = ()


def read_node_gpus(labels: ApiObject, annotations: ApiObject, capacity: ApiObject, allocatable: ApiObject) -> NodeGpus:
    """Read GPU model, number of GPUs, MIG layouts and GPU sharing of a node.

    Parameters
    ----------
    labels, annotations : mapping
        Labels and annotations of the node.
    capacity, allocatable : mapping
        Resource → quantity that the node has, and that it offers to pods.

    Returns
    -------
    NodeGpus

    References
    ----------
    NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery: under the MIG strategy ``single`` the labels count
    instances, and the product carries the profile; else they count GPUs, those in MIG mode too.
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b: the annotation lists the GPUs, while the capacity is
    their number times ``deviceSplitCount``.

    Examples
    --------
    >>> gke = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-accelerator-count": "1"}
    >>> gke["cloud.google.com/gke-max-shared-clients-per-gpu"] = "4"
    >>> found = read_node_gpus(gke, {}, {"nvidia.com/gpu": "4"}, {})
    >>> found.gpus, found.model, found.replicas
    (1, 'nvidia-l4', {'nvidia.com/gpu': 4})
    >>> eight = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    >>> found = read_node_gpus(eight, {}, {"nvidia.com/gpu.shared": "128"}, {})
    >>> found.gpus, found.replicas, [doubt.check for doubt in found.doubts]
    (8, {'nvidia.com/gpu': 0}, ['kubernetes: unknown replicas'])
    """
    node_type = instance_type_from_labels(labels)
    register = read_gpu_register(annotations)
    product_profile = split_product_label(to_text(labels.get(PRODUCT_LABEL_KEY)))[1]
    profile = profile_from_labels(labels)
    model, gpu_models, doubts = gpu_model_from_labels(labels, node_type, register[2] if register else None)
    node_count_resources = list_resource_names("resource", "gpus_of_node")
    gpu_resources = [name for name in capacity if parse_gpu_resource(name) and name not in node_count_resources]
    resources = {name: parse_count(capacity[name], name) for name in gpu_resources}
    replicas = labelled_replicas(labels, resources, gpu_models)
    counts = counts_from_labels(labels, capacity, node_type, has_product_profile=product_profile is not None)
    stated = register[0] if register else next(iter(counts.values()), None)
    if len(set(counts.values())) > 1 and not register:
        evidence = ", ".join(f"{name} {number}" for name, number in counts.items())
        doubts.append(NodeDoubt("kubernetes: other counts", evidence))
    if node_type is not None and node_type.board_share < 1:
        doubts.append(NodeDoubt("kubernetes: vGPU", f"{node_type.name}: {node_type.board_share:.3g} of a GPU"))
    elif labels.get(VGPU_LABEL_KEY) == "true":
        doubts.append(NodeDoubt("kubernetes: vGPU", f"{VGPU_LABEL_KEY}: true"))
    plugin_names = [name for role in ("register", "handshake") for name in list_resource_names("node_annotation", role)]
    has_plugin_annotation = any(name.startswith(tuple(plugin_names)) for name in annotations)
    is_managed_by_plugin = has_plugin_annotation or not node_count_resources.keys().isdisjoint(capacity)
    layout_stated = not any(resources.values()) and bool(instances_from_labels(labels, 1, model))
    gpu_units = _GpuUnits(labels, resources, stated, gpu_models, profile)
    withheld = Fraction(0)
    if not is_managed_by_plugin:
        replicas, unit_doubts = gpu_units.check_replicas(replicas)
        doubts += unit_doubts
        if capacity and not layout_stated:
            withheld = gpu_units.count_withheld_gpus(replicas, allocatable)
        needed, _ = count_installed_gpus(labels, resources, replicas, model, profile)
        if needed and stated and needed > stated and any(map(is_partition_resource, resources)):
            doubts.append(NodeDoubt("kubernetes: other counts", f"instances that need {needed} GPUs on {stated} GPUs"))

    instances = None
    if product_profile is not None and GPU_COUNT_LABEL_KEY in labels:
        instances = parse_count(labels[GPU_COUNT_LABEL_KEY], GPU_COUNT_LABEL_KEY)
    stated_counts = {"stated": stated, "instances_stated": instances}
    installed, layouts = count_installed_gpus(labels, resources, replicas, model, profile, **stated_counts)
    gpus = stated if is_managed_by_plugin or installed is None else installed
    if withheld and gpus:
        doubts.append(NodeDoubt("kubernetes: withheld GPUs", f"{float(gpus - withheld):g} of {gpus}"))
    return NodeGpus(
        model=model,
        gpus=gpus,
        profile=None if profile == "INVALID" else profile,
        memory_mib=(register and register[1]) or gpu_memory_mib_from_labels(labels, gpu_models, profile),
        is_memory_stated=register is not None or labelled_memory_gib(labels, exact=True) is not None,
        memory_units={
            name: Fraction(parse_quantity(capacity[name], name)) / stated
            for name in node_defined_memory_units()
            if name in capacity and stated
        },
        replicas=replicas,
        units=gpu_units.full_gpu_units(),
        mig=profile is not None
        or layout_stated
        or any((unit := parse_gpu_resource(n)) and unit.profile for n, number in resources.items() if number),
        layouts=None if is_managed_by_plugin else layouts,
        withheld=withheld if gpus else Fraction(0),
        unread={n: int(parse_quantity(value, n)) for n, value in capacity.items() if classify_unread_resource(n)},
        doubts=tuple(doubts),
    )


@dataclass(frozen=True)
class _GpuUnits:
    """Units of the GPU resources in the capacity of a node, compared with the GPUs that they represent.

    - ``labels``: Labels of the node.
    - ``resources``: GPU resource → units in its capacity.
    - ``stated``: Number of GPUs by labels, annotations or instance type; None if none states it.
    - ``gpu_models``: GPU models that the node may have.
    - ``profile``: MIG profile of the instances that its full-GPU resource represents.
    """

    labels: ApiObject
    resources: Mapping[str, int]
    stated: int | None
    gpu_models: tuple[str, ...]
    profile: str | None

    def check_replicas(self, replicas: Mapping[str, int]) -> tuple[dict[str, int], list[NodeDoubt]]:
        """Check the units that share one GPU against units and GPUs of the node, and infer them where unlabelled.

        Parameters
        ----------
        replicas : mapping of str to int
            Resource → units that share one GPU, by labels; 0 if a label states sharing without the number.

        Returns
        -------
        replicas : dict of str to int
            Resource → units that share one GPU; 0 if unknown.
        doubts : list of NodeDoubt
            Contradictions and assumptions.
        """
        checked = dict(replicas)
        doubts: list[NodeDoubt] = []
        unshared = self.unshared_units()
        offered = [name for name, number in self.resources.items() if number]
        has_partitions = any(map(is_partition_resource, offered))
        for plain, number in self.full_gpu_units().items():
            labelled = checked.get(plain)
            names = [name for name in offered if name.removesuffix(SHARED_RESOURCE_SUFFIX) == plain]
            words = f"{' and '.join(names) or plain} {number}"
            if unshared is None:
                if number > MAX_CATALOG_GPUS_PER_NODE and labelled is None:
                    checked[plain] = 0
                    doubts.append(NodeDoubt("kubernetes: too many GPUs", words, plain))
                elif number > 1 and labelled is None and PRODUCT_LABEL_KEY not in self.labels:
                    # A product label would end in -SHARED if the units were replicas.
                    type_name = next(label_values(self.labels, "instance_type"), None)
                    in_catalogue = f"instance type {type_name} is not in the catalogue"
                    type_remark = in_catalogue if type_name else "no instance type"
                    doubts.append(NodeDoubt("kubernetes: unconfirmed GPUs", f"{words}, {type_remark}", plain))
            else:
                words += f" on {self.stated} GPUs" if self.stated else f" of {unshared} instances"
                if labelled:
                    is_short = labelled > 1 and 0 < number < unshared * labelled and not has_partitions
                    if number > unshared * labelled or is_short:
                        doubts.append(NodeDoubt("kubernetes: other counts", f"{words}, {labelled} share one", plain))
                elif number > unshared or (labelled == 0 and number == unshared):
                    units_per_share, remainder = divmod(number, unshared)
                    units_per_gpu = 0 if remainder else units_per_share
                    checked[plain], check = self.infer_replicas(units_per_gpu, labelled=labelled == 0)
                    doubts.append(NodeDoubt(check, words, plain))
            if labelled == 0 and unshared is None:
                doubts.append(NodeDoubt("kubernetes: unknown replicas", words, plain))
        return checked, doubts

    def full_gpu_units(self) -> dict[str, int]:
        """Return full-GPU resource, such as ``nvidia.com/gpu`` → its units in the capacity, replicas included."""
        units: dict[str, int] = {}
        for name, number in self.resources.items():
            resource = parse_gpu_resource(name)
            if resource is not None and resource.profile is None and resource.partition_mode is None:
                units[resource.base_name] = units.get(resource.base_name, 0) + number
        return units

    def unshared_units(self) -> int | None:
        """Return how many units of its full-GPU resource the node would have if none were replicas; None if unknown."""
        per_gpu = self.units_per_gpu()
        if self.stated is not None and per_gpu is not None:
            return self.stated * per_gpu
        has_product_profile = split_product_label(to_text(self.labels.get(PRODUCT_LABEL_KEY)))[1] is not None
        if has_product_profile and GPU_COUNT_LABEL_KEY in self.labels:
            return parse_count(self.labels[GPU_COUNT_LABEL_KEY], GPU_COUNT_LABEL_KEY)
        return None

    def units_per_gpu(self) -> int | None:
        """Return the full-GPU units of one GPU: 1, or its MIG instances (strategy ``single``); None if unknown."""
        if self.profile is None:
            return 1
        return max_instances_per_gpu(self.gpu_models, self.profile)

    def infer_replicas(self, units_per_gpu: int, *, labelled: bool) -> tuple[int, str]:
        """Infer how many units share one GPU, 0 if unknown, and the quality check that the node then fails.

        On a GPU that MIG can partition, units may be instances, whose compute is not an equal share of it, unless they
        are as many as its compute slices. On other GPUs they may be of a plugin that divides GPUs by request.

        Parameters
        ----------
        units_per_gpu : int
            Units in the capacity for each GPU or instance; 0 if they do not divide evenly.
        labelled : bool
            Whether a label states that GPUs are shared, without the number.
        """
        modes = [list_partition_modes(gpu_model) for gpu_model in self.gpu_models]
        mig_models = [gpu_model for gpu_model in self.gpu_models if gpu_model in mig_model_names()]
        slice_counts = {load_gpu_model(gpu_model).compute_slices for gpu_model in mig_models}
        if not units_per_gpu or not (self.gpu_models or labelled):
            return 0, "kubernetes: unknown replicas"
        if any(modes):
            are_equal_parts = all(units_per_gpu in mode.values() for mode in modes)
        else:
            are_equal_parts = slice_counts == {units_per_gpu}
        if labelled or are_equal_parts:
            return units_per_gpu, "kubernetes: shared units"
        # gpu-feature-discovery names instances.
        is_labelled = self.profile is not None or PRODUCT_LABEL_KEY in self.labels
        is_certain = is_labelled or not (any(modes) or slice_counts)
        return (units_per_gpu, "kubernetes: assumed shares") if is_certain else (0, "kubernetes: unknown replicas")

    def count_withheld_gpus(self, replicas: Mapping[str, int], allocatable: ApiObject) -> Fraction:
        """Count the installed GPUs that the node does not offer to pods: missing from its capacity, or not allocatable.

        Parameters
        ----------
        replicas : mapping of str to int
            Resource → units that share one GPU; 0 if unknown.
        allocatable : mapping
            Resource → quantity that the node offers to pods.
        """
        per_gpu = self.units_per_gpu() or 1
        full_units = self.full_gpu_units()
        missing = Fraction(0)
        if self.stated and not any(number and is_partition_resource(name) for name, number in self.resources.items()):
            shares = {plain: replicas.get(plain, 1) for plain in full_units}
            offered = sum(Fraction(full_units[plain], max(share, 1) * per_gpu) for plain, share in shares.items())
            if all(shares.values()):
                missing = Fraction(max(self.stated - offered, 0))
        for name, number in self.resources.items():
            withheld_units = number - parse_count(allocatable[name], name) if name in allocatable else 0
            resource = parse_gpu_resource(name)
            if withheld_units <= 0 or resource is None:
                continue
            share = common_gpu_fraction(self.gpu_models, resource.profile) if resource.profile else None
            gpus_per_unit = Fraction(share.compute).limit_denominator(100) if share else Fraction(1, per_gpu)
            missing += withheld_units * gpus_per_unit / max(replicas.get(resource.base_name, 1), 1)
        return missing
