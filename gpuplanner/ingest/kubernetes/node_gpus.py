"""GPU model, count and shares of a node, from labels, annotations and resources."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import polars as pl

from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import MIB_PER_GIB
from gpuplanner.hardware.catalog import (
    MAX_GPUS_PER_NODE,
    InstanceType,
    board_names,
    boards_called,
    facts,
    instance_type,
    node_labels,
    partitions_of,
    resource_words,
)
from gpuplanner.hardware.gpu_model_names import boards_meant, common_share, profile_on
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.mig_layouts import format_layout, prove
from gpuplanner.ingest.gpu_model_resolution import layouts_on
from gpuplanner.ingest.kubernetes.api_objects import (
    MAX_MEMORY_MIB,
    SHARED,
    Object,
    count,
    gpu_resource,
    quantity,
    text,
    unread_kind,
)
from gpuplanner.ingest.kubernetes.pod_requests import node_memory_words

PRODUCT = "nvidia.com/gpu.product"
COUNT = "nvidia.com/gpu.count"
VGPU = "nvidia.com/vgpu.present"
CONFIG = "nvidia.com/mig.config"
EVERY = "all-"
"""Beginning of the names of configurations that cut every GPU of a node into instances of one profile."""
SLICED = ".count"
REPLICAS = ".replicas"
SHARED_SUFFIX = "-SHARED"
MIG_SUFFIX = re.compile(r"-MIG-([^-]+(?:-me)?)$")
PROFILE = re.compile(r"\d+g\.\d+gb(?:[+-]\w+(?:\.all)?)?")
SIZE = re.compile(r"(\d+(?:\.\d+)?)")
UNDIVIDED = "SPX"
"""Compute partition mode in which an AMD GPU is one device."""
BY_HAND = "by hand"
"""Unit of labels that an operator set by hand: they count where nothing else names the model."""

MEMORY_TOLERANCE = 0.15
"""Share by which the memory that a label states may differ from that of the GPU model."""
MAX_BOARDS = 1024

OTHER_MODEL = "labels of a node name different GPU models"
OTHER_COUNT = "labels of a node state different numbers of GPUs"
SHARED_UNITS = "more units on a node than GPUs: each is a share of a GPU"
ASSUMED_SHARES = "more units on a node than GPUs, taken for equal shares of them"
UNCONFIRMED = "GPUs of a node that only its capacity counts"
UNKNOWN_SHARES = "more units on a node than GPUs, and no label states how they are shared"
FEWER_UNITS = "nodes that offer fewer GPUs than they have"
TOO_MANY = f"more than {MAX_GPUS_PER_NODE} GPUs on a node"
PARTS_OF_BOARDS = "GPUs of nodes that are parts of a physical GPU (vGPU)"


@dataclass(frozen=True)
class Doubt:
    """What a node says and does not fit together.

    - ``check``: What is the matter, one of the constants of this module.
    - ``words``: Labels and values that say so.
    - ``resource``: Resource whose pods are concerned, without its suffix of shared replicas; None for all.
    """

    check: str
    words: str
    resource: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """GPUs of one node.

    - ``model``: GPU model, in the words of the source where these decide it.
    - ``gpus``: GPUs installed; None if it does not follow from what the node tells.
    - ``profile``: Profile of the instances that ``nvidia.com/gpu`` stands for (MIG strategy single).
    - ``memory_mib``: Memory of one board [MiB], as shares of it are counted; None if the node does not tell.
    - ``is_memory_stated``: Labels or annotations tell it; else it is that of the catalogue, a few percent more.
    - ``memory_units``: Resource → units of it that are one GPU.
    - ``replicas``: Resource → units of it that share one GPU or instance, where more than one does; 0 if their number
      is not known.
    - ``units``: Resource → units of it that the node has, shared ones with the others.
    - ``mig``: MIG mode is on.
    - ``layouts``: How its GPUs are partitioned, where that follows.
    - ``withheld``: GPUs installed that the node does not offer to pods.
    - ``unread``: Resource that is not read → its number on the node.
    - ``doubts``: What does not fit together.
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
    doubts: tuple[Doubt, ...] = ()


def gpus_of_node(labels: Object, notes: Object, capacity: Object, allocatable: Object) -> NodeGpus:
    """Read the GPUs of a node.

    Parameters
    ----------
    labels, notes : mapping
        Labels and annotations of the node.
    capacity, allocatable : mapping
        Resource → quantity, of the node and for pods.

    References
    ----------
    NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery: under the MIG strategy ``single`` the labels count
    instances, and the product carries the profile; else they count GPUs, those in MIG mode too.
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b: the annotation lists the boards, while the capacity is
    that number times ``deviceSplitCount``.

    Examples
    --------
    >>> gke = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-accelerator-count": "1"}
    >>> gke["cloud.google.com/gke-max-shared-clients-per-gpu"] = "4"
    >>> found = gpus_of_node(gke, {}, {"nvidia.com/gpu": "4"}, {})
    >>> found.gpus, found.model, found.replicas
    (1, 'nvidia-l4', {'nvidia.com/gpu': 4})
    >>> eight = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    >>> found = gpus_of_node(eight, {}, {"nvidia.com/gpu.shared": "128"}, {})
    >>> found.gpus, found.replicas, [doubt.check for doubt in found.doubts] == [UNKNOWN_SHARES]
    (8, {'nvidia.com/gpu': 0}, True)
    """
    kind = _instance_type(labels)
    register = registered_boards(notes)
    single = board_and_profile(text(labels.get(PRODUCT)))[1]
    profile = profile_of_labels(labels)
    model, gpu_models, doubts = model_of_labels(labels, kind, register[2] if register else None)
    of_node = resource_words("resource", "gpus_of_node")
    gpus_named = [name for name in capacity if gpu_resource(name) and name not in of_node]
    resources = {name: count(capacity[name], name) for name in gpus_named}
    replicas = _replicas(labels, resources, gpu_models)
    counts = _stated_counts(labels, capacity, kind, single=single is not None)
    stated = register[0] if register else next(iter(counts.values()), None)
    if len(set(counts.values())) > 1 and not register:
        doubts.append(Doubt(OTHER_COUNT, ", ".join(f"{name} {number}" for name, number in counts.items())))
    if kind is not None and kind.board_share < 1:
        doubts.append(Doubt(PARTS_OF_BOARDS, f"{kind.name}: {kind.board_share:.3g} of a GPU"))
    elif labels.get(VGPU) == "true":
        doubts.append(Doubt(PARTS_OF_BOARDS, f"{VGPU}: true"))
    noted_by_plugin = any(name.startswith(_plugin_notes()) for name in notes)
    handled = noted_by_plugin or not of_node.keys().isdisjoint(capacity)
    layout_stated = not any(resources.values()) and bool(instances_of_labels(labels, 1, model))
    found = _Units(labels, resources, stated, gpu_models, profile)
    withheld = Fraction(0)
    if not handled:
        replicas, more = found.cross_checked(replicas)
        doubts += more
        withheld = Fraction(0) if layout_stated or not capacity else found.withheld(replicas, allocatable)
        parted, _ = installed_gpus(labels, resources, replicas, model, profile)
        if parted and stated and parted > stated and any(map(_is_parted, resources)):
            doubts.append(Doubt(OTHER_COUNT, f"instances that need {parted} GPUs on {stated} GPUs"))
    instances = count(labels[COUNT], COUNT) if single is not None and COUNT in labels else None
    known = {"stated": stated, "instances_stated": instances}
    installed, layouts = installed_gpus(labels, resources, replicas, model, profile, **known)
    gpus = stated if handled or installed is None else installed
    if withheld and gpus:
        doubts.append(Doubt(FEWER_UNITS, f"{float(gpus - withheld):g} of {gpus}"))
    return NodeGpus(
        model=model,
        gpus=gpus,
        profile=None if profile == "INVALID" else profile,
        memory_mib=(register and register[1]) or _memory_mib(labels, gpu_models, profile),
        is_memory_stated=register is not None or _memory_label(labels, exact=True) is not None,
        memory_units={
            name: Fraction(quantity(capacity[name], name)) / stated
            for name in node_memory_words()
            if name in capacity and stated
        },
        replicas=replicas,
        units=found.full_gpu_units(),
        mig=profile is not None or layout_stated or any(_is_mig(name) for name in resources if resources[name]),
        layouts=None if handled else layouts,
        withheld=withheld if gpus else Fraction(0),
        unread={name: int(quantity(value, name)) for name, value in capacity.items() if unread_kind(name)},
        doubts=tuple(doubts),
    )


@dataclass(frozen=True)
class _Units:
    """Units of GPU resources that a node offers, and what is known of the GPUs behind them."""

    labels: Object
    resources: Mapping[str, int]
    stated: int | None
    gpu_models: tuple[str, ...]
    profile: str | None

    def cross_checked(self, replicas: Mapping[str, int]) -> tuple[dict[str, int], list[Doubt]]:
        """Units that share one GPU where they are more than the GPUs; 0 where that is not certain."""
        found, doubts = dict(replicas), list[Doubt]()
        there = self.units_unshared()
        cut = any(number and _is_parted(name) for name, number in self.resources.items())
        for plain, number in self.full_gpu_units().items():
            known = found.get(plain)
            offered = [name for name in self.resources if name.removesuffix(SHARED) == plain and self.resources[name]]
            words = f"{' and '.join(offered) or plain} {number}"
            if there is None:
                if number > MAX_GPUS_PER_NODE and known is None:
                    found[plain] = 0
                    doubts.append(Doubt(TOO_MANY, words, plain))
                elif number > 1 and known is None and PRODUCT not in self.labels:  # which would say -SHARED
                    kind = next(_texts(self.labels, "instance_type"), None)
                    named = f"instance type {kind} is not in the catalogue" if kind else "no instance type"
                    doubts.append(Doubt(UNCONFIRMED, f"{words}, {named}", plain))
            else:
                words += f" on {self.stated} GPUs" if self.stated else f" of {there} instances"
                if known:
                    fewer = known > 1 and 0 < number < there * known and not cut
                    if number > there * known or fewer:
                        doubts.append(Doubt(OTHER_COUNT, f"{words}, {known} share one", plain))
                elif number > there or (known == 0 and number == there):
                    times, rest = divmod(number, there)
                    found[plain], check = self.shares(0 if rest else times, labelled=known == 0)
                    doubts.append(Doubt(check, words, plain))
            if known == 0 and there is None:
                doubts.append(Doubt(UNKNOWN_SHARES, words, plain))
        return found, doubts

    def full_gpu_units(self) -> dict[str, int]:
        """Units of full GPUs by resource, shared ones with the others."""
        found: dict[str, int] = {}
        for name, number in self.resources.items():
            resource = gpu_resource(name)
            if resource is not None and resource.profile is None and resource.mode is None:
                found[resource.plain] = found.get(resource.plain, 0) + number
        return found

    def units_unshared(self) -> int | None:
        """Units of the plain resource that the node would have if nothing shared them; None if that is not known."""
        each = self.instances_of_gpu()
        if self.stated is not None and each is not None:
            return self.stated * each
        single = board_and_profile(text(self.labels.get(PRODUCT)))[1] is not None
        return count(self.labels[COUNT], COUNT) if single and COUNT in self.labels else None

    def instances_of_gpu(self) -> int | None:
        """Units that a GPU is for its plain resource: one, or as many as it has instances of the one profile."""
        if self.profile is None:
            return 1
        return _most_instances(self.gpu_models, self.profile)

    def shares(self, times: int, *, labelled: bool) -> tuple[int, str]:
        """Units that share one GPU, 0 if that does not follow, and the doubt that is left.

        On a GPU that MIG can partition, units may be instances, whose compute is not an equal part of it, but for as
        many as it has compute slices. On others they may be those of a plugin that parts GPUs by request.

        Parameters
        ----------
        times : int
            Units for each GPU or instance; 0 if they are not equally many.
        labelled : bool
            A label says that they are shared, and not by how many.
        """
        modes = [partitions_of(gpu_model) for gpu_model in self.gpu_models]
        sizes = {
            load_gpu_model(gpu_model).compute_slices for gpu_model in self.gpu_models if gpu_model in board_names()
        }
        if not times or not (self.gpu_models or labelled):
            return 0, UNKNOWN_SHARES
        if labelled or (all(times in mode.values() for mode in modes) if any(modes) else sizes == {times}):
            return times, SHARED_UNITS
        named = self.profile is not None or PRODUCT in self.labels  # gpu-feature-discovery names instances
        certain = named or not (any(modes) or sizes)
        return (times, ASSUMED_SHARES) if certain else (0, UNKNOWN_SHARES)

    def withheld(self, replicas: Mapping[str, int], allocatable: Object) -> Fraction:
        """GPUs that the node has and does not offer: missing from its capacity, or not allocatable."""
        each, whole = self.instances_of_gpu() or 1, self.full_gpu_units()
        missing = Fraction(0)
        if self.stated and not any(number and _is_parted(name) for name, number in self.resources.items()):
            shares = {plain: replicas.get(plain, 1) for plain in whole}
            offered = sum(Fraction(whole[plain], max(share, 1) * each) for plain, share in shares.items())
            if all(shares.values()):
                missing = Fraction(max(self.stated - offered, 0))
        for name, number in self.resources.items():
            lost = number - count(allocatable[name], name) if name in allocatable else 0
            resource = gpu_resource(name)
            if lost <= 0 or resource is None:
                continue
            share = common_share(self.gpu_models, resource.profile) if resource.profile else None
            parts = Fraction(share.compute).limit_denominator(100) if share else Fraction(1, each)
            missing += lost * parts / max(replicas.get(resource.plain, 1), 1)
        return missing


def model_of_labels(
    labels: Object, kind: InstanceType | None = None, registered: str | None = None
) -> tuple[str | None, tuple[str, ...], list[Doubt]]:
    """GPU model of a node by its labels: the word that stands for it, and the models that it may be.

    Parameters
    ----------
    labels : mapping
        Labels of a node, or of the nodes that a Kueue flavor is for.
    kind : InstanceType, optional
        Its instance type; default: as the labels name it.
    registered : str, optional
        Type that a device plugin noted.

    Examples
    --------
    >>> karpenter = "karpenter.k8s.aws/instance-gpu"
    >>> model_of_labels({f"{karpenter}-name": "a100", f"{karpenter}-memory": "81920"})
    ('A100-80GB', ('A100-80GB',), [])
    >>> model_of_labels({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5", "accelerator": "nvidia"})[0]
    'H100-80GB-SXM5'
    """
    kind = kind or _instance_type(labels)
    units = node_labels("model")
    words = [(label, str(board_and_profile(word)[0])) for label in units if (word := text(labels.get(label)))]
    words += [("the device plugin's annotation", registered)] if registered else []
    named = [(label, word) for label, word in words if units.get(label) != BY_HAND]
    by_hand = [(label, word) for label, word in words if units.get(label) == BY_HAND]
    memory = _memory_label(labels)

    def with_boards(words: list[tuple[str, str]]) -> list[tuple[str, str, tuple[str, ...]]]:
        known = [(label, word, boards_called(word)) for label, word in words]
        return [(label, word, _of_size(boards, memory)) for label, word, boards in known if boards]

    known = with_boards(named)
    known += [("instance type", kind.name, (kind.gpu_model,))] if kind else []
    known = known or with_boards(by_hand)
    if not known:
        return (named[0][1] if named else None), (), []
    first, word, gpu_models = known[0]
    doubts = []
    for label, other, others in known[1:]:
        both = tuple(gpu_model for gpu_model in gpu_models if gpu_model in others)
        if not both:
            doubts.append(Doubt(OTHER_MODEL, f"{first} {word}, {label} {other}"))
        gpu_models = both or gpu_models
    decided = len(gpu_models) == 1 and boards_called(word) != gpu_models
    return (gpu_models[0] if decided else word), gpu_models, doubts


def installed_gpus(
    labels: Object,
    resources: Mapping[str, int],
    replicas: Mapping[str, int],
    model: str | None,
    profile: str | None,
    *,
    stated: int | None = None,
    instances_stated: int | None = None,
) -> tuple[int | None, str | None]:
    """GPUs of a node, and how they are partitioned.

    Where nothing states their number the capacity counts: full GPUs, and instances, which are on the fewest boards
    that can hold them. Where more GPUs are counted than must be, it follows only if the operator partitioned them,
    which does it alike for all. A node that offers nothing at the moment is partitioned as its labels say.

    Parameters
    ----------
    labels : mapping
        Labels of the node.
    resources : mapping
        GPU resource → number in its capacity.
    replicas : mapping
        Resource → units that share one GPU or instance; 0 if their number is not known.
    model : str or None
        Word for its GPU model.
    profile : str or None
        Profile of the instances that its full-GPU resource stands for.
    stated : int, optional
        GPUs that labels, annotations or the instance type state.
    instances_stated : int, optional
        Instances that the label of gpu-feature-discovery counts under the MIG strategy ``single``.

    Examples
    --------
    >>> capacity = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}
    >>> installed_gpus({}, capacity, {}, "NVIDIA-H100-80GB-HBM3", None)
    (8, 'gpu;gpu;gpu;gpu;gpu;gpu;1g.10gb:7;1g.10gb:7')
    >>> installed_gpus({}, {"nvidia.com/gpu": 14}, {}, "NVIDIA-H100-80GB-HBM3", "1g.10gb", instances_stated=14)
    (2, '1g.10gb:7;1g.10gb:7')
    >>> installed_gpus({CONFIG: "all-3g.40gb"}, {"nvidia.com/gpu": 0}, {}, "NVIDIA-H100-80GB-HBM3", None, stated=2)
    (2, '3g.40gb:2;3g.40gb:2')
    """
    whole = 0
    instances: dict[str, int] = {}
    for name, number in resources.items():
        resource = gpu_resource(name)
        share = replicas.get(resource.plain, 1) if resource else 0
        if resource is None or share == 0 or number % share or (resource.shared and share == 1):
            whole = -1  # units that stand for a part of a GPU that is not known
            break
        kind = resource.profile or profile
        if kind is None:
            whole += number // share
        elif number:
            instances[kind] = instances.get(kind, 0) + number // share
    most = _most_instances(_boards(model, [profile]), profile) if profile is not None else None
    if profile is not None and instances_stated is not None:
        whole, instances = 0, {profile: instances_stated}
    elif profile is not None and stated is not None and most:
        return stated, ";".join([format_layout({profile: most})] * stated)
    if not instances and whole == 0 and profile is None and stated:
        instances = instances_of_labels(labels, stated, model)
    if not instances and profile is not None:
        return None, None
    if not instances:
        return (whole if stated is None and whole >= 0 else stated), None
    cut = None if whole < 0 else layouts_on(_boards(model, instances), instances)
    if cut is None:
        return (stated if profile is None else None), None
    if stated is None or profile is not None:
        return whole + len(cut), ";".join([WHOLE_GPU] * whole + cut)
    if CONFIG in labels and whole + len(cut) < stated:
        cut = _alike(model, instances, stated - whole)
    return stated, ";".join([WHOLE_GPU] * whole + cut) if whole + len(cut) == stated else None


def instances_of_labels(labels: Object, gpus: int, model: str | None) -> dict[str, int]:
    """Instances of a node by its labels: as counted for each profile, else as its configuration is called.

    Examples
    --------
    >>> instances_of_labels({"nvidia.com/mig-1g.10gb.count": "14"}, 2, None)
    {'1g.10gb': 14}
    >>> instances_of_labels({CONFIG: "all-2g.20gb"}, 2, "NVIDIA-H100-80GB-HBM3")
    {'2g.20gb': 6}
    """
    found = {}
    for key, value in labels.items():
        resource = gpu_resource(key.removesuffix(SLICED)) if key.endswith(SLICED) else None
        if resource is not None and resource.profile is not None and (number := count(value, key)):
            found[resource.profile] = number
    name = str(labels.get(CONFIG) or "")
    if found or not name.startswith(EVERY):
        return found
    profile = name.removeprefix(EVERY).replace(".me", "+me")
    most = {load_gpu_model(gpu_model).profile(profile).max_instances for gpu_model in _boards(model, [profile])}
    return {profile: gpus * most.pop()} if len(most) == 1 else {}


def _boards(model: str | None, profiles: Iterable[str]) -> list[str]:
    """Boards that may be meant by a product and all these profiles."""
    meant = [set(boards_meant(model, each) if PROFILE.fullmatch(each) else ()) for each in profiles]
    return sorted(set.intersection(*meant))


def _alike(model: str | None, instances: Mapping[str, int], gpus: int) -> list[str]:
    """Layouts of so many GPUs that are all cut alike; none if they cannot be."""
    each = {profile: number // gpus for profile, number in instances.items()}
    if any(number % gpus for number in instances.values()):
        return []
    return [format_layout(each)] * gpus if all(prove(b, each) for b in _boards(model, instances)) else []


def board_and_profile(product: str | None) -> tuple[str | None, str | None]:
    """Part the label of a product into board and, under the MIG strategy single, profile.

    Examples
    --------
    >>> board_and_profile("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me-SHARED")
    ('NVIDIA-H100-80GB-HBM3', '1g.10gb+me')
    """
    if product is None:
        return None, None
    plain = product.removesuffix(SHARED_SUFFIX)
    match = MIG_SUFFIX.search(plain)
    return (plain[: match.start()], match[1].replace(".me", "+me")) if match else (plain, None)


def registered_boards(annotations: Object) -> tuple[int, int | None, str | None] | None:
    """Boards that the device plugin of HAMi or Volcano lists, the memory of one [MiB] and its type, if all have one.

    References
    ----------
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b (fields joined by commas, boards by colons); Project-HAMi
    website pull request 835 (JSON since). The memory is that of the board times ``deviceMemoryScaling``, of which
    requests are parts.

    Examples
    --------
    >>> note = "GPU-1,10,32768,100,NVIDIA-Tesla V100,0,true,0,hami-core:GPU-2,10,32768,100,NVIDIA-Tesla V100,0,true:"
    >>> registered_boards({"hami.io/node-nvidia-register": note})
    (2, 32768, 'NVIDIA-Tesla V100')
    >>> registered_boards({"4pd.io/node-nvidia-register": '[{"id": "GPU-1", "count": 10, "devmem": 81559}]'})
    (1, 81559, None)
    """
    registers = resource_words("node_annotation", "register")
    found = next((words for name in registers if (words := text(annotations.get(name)))), None)
    if found is None:
        return None
    try:
        if found.startswith("["):
            listed = enumerate(json.loads(found))
            boards = {str(each.get("id", n)): (int(each["devmem"]), each.get("type")) for n, each in listed}
        else:
            fields = [each.split(",") for each in found.strip(":").split(":")]
            boards = {each[0]: (int(each[2]), each[4]) for each in fields}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    memory, types = ({gpu_model[place] for gpu_model in boards.values()} for place in (0, 1))
    if not 0 < len(boards) <= MAX_BOARDS or not all(0 < each <= MAX_MEMORY_MIB for each in memory):
        return None
    gpu_type = text(types.pop()) if len(types) == 1 else None
    return len(boards), memory.pop() if len(memory) == 1 else None, gpu_type


def profile_of_labels(labels: Object) -> str | None:
    """Profile of the instances that the full-GPU resource of a node stands for, by its labels.

    Examples
    --------
    >>> profile_of_labels({"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}), profile_of_labels({})
    ('1g.5gb', None)
    """
    return board_and_profile(text(labels.get(PRODUCT)))[1] or next(_texts(labels, "profile"), None)


def _instance_type(labels: Object) -> InstanceType | None:
    names = _texts(labels, "instance_type")
    return next((kind for name in names if (kind := instance_type(name))), None)


def _texts(labels: Object, meaning: str) -> Iterator[str]:
    """Values of the labels with one meaning, the most trusted first."""
    return (words for label in node_labels(meaning) if (words := text(labels.get(label))))


def _plugin_notes() -> tuple[str, ...]:
    """Beginnings of the names of the annotations of device plugins that part GPUs by themselves."""
    return (*resource_words("node_annotation", "register"), *resource_words("node_annotation", "handshake"))


def _is_mig(name: str) -> bool:
    """Whether a resource stands for MIG instances."""
    resource = gpu_resource(name)
    return resource is not None and resource.profile is not None


def _is_parted(name: str) -> bool:
    """Whether a resource stands for instances, or for devices of a partition mode."""
    resource = gpu_resource(name)
    return resource is not None and (resource.profile or resource.mode) is not None


def _stated_counts(labels: Object, capacity: Object, kind: InstanceType | None, *, single: bool) -> dict[str, int]:
    """Label, resource or instance type → GPUs that it states, the most trusted first.

    A label that counts fewer than the instance type has counts those that are left of them.
    """
    found: dict[str, int] = {}
    for name, unit in resource_words("resource", "gpus_of_node").items():
        units = quantity(capacity[name], name) if name in capacity else 0
        if units and not units % int(unit or 1):
            found[name] = int(units) // int(unit or 1)
    for label in node_labels("count"):
        if label in labels and not (single and label == COUNT) and (number := count(labels[label], label)):
            found[label] = number
    if kind is not None:
        found = {name: number for name, number in found.items() if name != COUNT or number >= kind.gpus}
        found[f"instance type {kind.name}"] = kind.gpus
    return found


def _replicas(labels: Object, resources: Mapping[str, int], gpu_models: tuple[str, ...]) -> dict[str, int]:
    """Resource → units that share one GPU or instance, by labels; 0 where they share it and no label says how many."""
    found = {
        label.removesuffix(REPLICAS): number
        for label, value in labels.items()
        if label.endswith(REPLICAS) and (number := count(value, label)) > 1
    }
    for words in _texts(labels, "clients"):
        if (number := count(words, "clients per GPU")) > 1:
            found["nvidia.com/gpu"] = number
    if (text(labels.get(PRODUCT)) or "").endswith(SHARED_SUFFIX) and not found:
        found = {resource.plain: 0 for name in resources if (resource := gpu_resource(name))}
    mode = next(_texts(labels, "partition_mode"), None)
    parts = partitions_in_mode(gpu_models, mode) if mode else _partitions_by_units(labels, gpu_models)
    if parts is not None:
        found["amd.com/gpu"] = parts
    for name in resources:
        if (resource := gpu_resource(name)) and resource.mode:
            found[name] = partitions_in_mode(gpu_models, resource.mode)
    return found


def partitions_in_mode(gpu_models: Iterable[str], mode: str) -> int:
    """Devices that one AMD GPU shows in a compute partition mode; 0 if the catalogue does not decide it.

    A memory partition mode may stand behind it: ``CPX_NPS4``.

    Examples
    --------
    >>> partitions_in_mode(["MI300X"], "cpx"), partitions_in_mode([], "qpx"), partitions_in_mode(["T4"], "cpx")
    (8, 4, 0)
    """
    mode = mode.upper().partition("_")[0]
    if mode == UNDIVIDED:
        return 1
    models = tuple(gpu_models) or tuple(facts("partition_modes")["gpu_model"].unique())
    numbers = {partitions_of(model).get(mode, 0) for model in models}
    return numbers.pop() if len(numbers) == 1 else 0


def _partitions_by_units(labels: Object, gpu_models: tuple[str, ...]) -> int | None:
    """Devices of one AMD GPU by the compute units that each has; None where that does not follow."""
    stated = next(_texts(labels, "compute_units"), None)
    if stated is None:
        return None
    rows = facts("partition_modes").filter(pl.col("gpu_model").is_in(gpu_models), pl.col("kind") == "compute")
    alike = rows.filter(pl.col("compute_units").cast(pl.String) == stated)["partitions"].unique().to_list()
    return int(alike[0]) if len(alike) == 1 else None


def _most_instances(gpu_models: Iterable[str], profile: str) -> int | None:
    """Instances of a profile that one GPU holds, where the models that may be meant agree."""
    if not PROFILE.fullmatch(profile):
        return None
    cut = [gpu_model for gpu_model in gpu_models if profile_on(gpu_model, profile)]
    numbers = {load_gpu_model(gpu_model).profile(profile).max_instances for gpu_model in cut}
    return numbers.pop() if len(numbers) == 1 else None


def _memory_label(labels: Object, *, exact: bool = False) -> float | None:
    """Memory of one GPU by its label [GiB]; with `exact` only by those that do not round it to the name of the GPU."""
    for label, unit in node_labels("memory").items():
        match = SIZE.match(text(labels.get(label)) or "")
        if match and float(match[1]) and (unit == "MiB" or not exact):
            return float(match[1]) / (MIB_PER_GIB if unit == "MiB" else 1)
    return None


@functools.cache
def _sizes(gpu_model: str) -> list[float]:
    """Memory of a GPU model in the catalogue [GiB, or GB of its data sheet]."""
    known = facts("mig_profiles").select(board="gpu_model", gib="memory_gib_total")
    known = known.vstack(facts("gpu_specs").select(board="gpu_model", gib="memory_gb"))
    return known.filter(board=gpu_model)["gib"].unique().to_list()


def _of_size(gpu_models: tuple[str, ...], memory_gib: float | None) -> tuple[str, ...]:
    """The models whose memory is about the stated one; all where none is, or none is stated."""
    if memory_gib is None or len(gpu_models) < 2:
        return gpu_models
    least, most = (memory_gib * math.exp(sign * MEMORY_TOLERANCE) for sign in (-1, 1))
    near = (gpu_model for gpu_model in gpu_models if any(least < size < most for size in _sizes(gpu_model)))
    return tuple(near) or gpu_models


def _memory_mib(labels: Object, gpu_models: tuple[str, ...], profile: str | None) -> int | None:
    """Memory of a board [MiB] by its label, else by the catalogue; under the strategy single of an instance: None."""
    if profile is not None:
        return None
    stated = _memory_label(labels)
    sizes = {size for gpu_model in gpu_models for size in _sizes(gpu_model)}
    if stated is not None:
        return round(stated * MIB_PER_GIB)
    return int(sizes.pop() * MIB_PER_GIB) if len(sizes) == 1 else None
