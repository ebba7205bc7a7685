"""GPUs of a Kubernetes node, from its labels and its capacity: whole ones, and those that instances are on."""

from __future__ import annotations

from collections.abc import Mapping

from gpuplanner.hardware import boards_meant, fewest_gpus, format_layout
from gpuplanner.inbox.kubernetes.words import Object, count, gpu_resource
from gpuplanner.schemas import WHOLE_GPU

COUNT = "nvidia.com/gpu.count"


def installed_gpus(
    labels: Object,
    resources: Mapping[str, int],
    replicas: Mapping[str, int],
    model: str | None,
    profile: str | None,
) -> tuple[int | None, str | None]:
    """GPUs of a node, and how they are cut.

    The label counts GPUs, except under the MIG strategy ``single``, where it counts instances. Without it the
    capacity counts: GPUs that are not cut, and instances, which are on the fewest boards that can hold them.

    Parameters
    ----------
    labels, resources : mapping
        Labels of the node; its capacity of GPU resources.
    replicas : mapping of str to int
        Resource → pods that share one unit of it; 0 if their number is not told.
    model, profile : str, optional
        Product, and the profile of all its instances under the strategy ``single``.

    Returns
    -------
    gpus : int or None
        None if it does not follow.
    layouts : str or None
        As in ``schemas.Inventory``; None if no GPU is cut, or it does not follow how.

    Raises
    ------
    ValueError
        If the label is no number.

    Examples
    --------
    >>> capacity = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}
    >>> installed_gpus({}, capacity, {}, "NVIDIA-H100-80GB-HBM3", None)
    (8, 'gpu;gpu;gpu;gpu;gpu;gpu;1g.10gb:7;1g.10gb:7')
    >>> installed_gpus({COUNT: "14"}, {"nvidia.com/gpu": 14}, {}, "NVIDIA-H100-80GB-HBM3", "1g.10gb")
    (2, '1g.10gb:7;1g.10gb:7')
    """
    stated = count(labels[COUNT], COUNT) if COUNT in labels else None
    whole = 0
    instances: dict[str, int] = {}
    for name, number in resources.items():
        resource = gpu_resource(name)
        share = replicas.get(name.removesuffix(".shared"), 1)
        if resource is None or share == 0 or number % share or (resource.shared and share == 1):
            whole = -1  # units that stand for a part of a GPU that is not known
            break
        kind = resource.profile or profile
        if kind is None:
            whole += number // share
        elif number:
            instances[kind] = instances.get(kind, 0) + number // share
    if profile is not None and stated is not None:
        whole, instances = 0, {profile: stated}
    if not instances:
        unknown = profile is not None or whole < 0
        return (
            (stated, None) if stated is not None and profile is None else (None if unknown else whole, None)
        )
    cut = None if whole < 0 else _fewest(model, instances)
    if cut is None:
        return (stated if profile is None else None), None
    gpus = whole + len(cut)
    if stated is None or profile is not None:
        return gpus, ";".join([WHOLE_GPU] * whole + cut)
    return stated, ";".join([WHOLE_GPU] * whole + cut) if gpus == stated else None


def _fewest(model: str | None, instances: Mapping[str, int]) -> list[str] | None:
    """Layouts of the fewest GPUs that hold the instances; None where the boards that may be meant differ."""
    meant = [set(boards_meant(model, profile)) for profile in instances]
    boards = sorted(set.intersection(*meant))
    found = [fewest_gpus(board, instances) for board in boards]
    if not found or any(cut is None or len(cut) != len(found[0] or ()) for cut in found):
        return None
    return [format_layout(cut) for cut in found[0] or ()]
