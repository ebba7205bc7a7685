"""Requests as lines to paste: sbatch options, a pod with limits, a claim template of Kubernetes DRA with its pod."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.profile import ProfileName
from gpuplanner.schemas.vocabulary import WHOLE_GPU

FORMS = ("sbatch", "pod", "dra")
"""Forms that :func:`request_lines` prints."""

_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_GRES_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class Request:
    """GPUs or MIG instances, for how long.

    Parameters
    ----------
    profile : str
        MIG profile, or ``"gpu"``.
    count : int
        GPUs or instances.
    time_limit_s : float, optional
        Run-time limit [s].
    nodes : int
        Nodes that they are spread over evenly.
    board : GpuModel, optional
        Board on which the profile must exist, and whose name for it is printed.

    Raises
    ------
    GeometryError
        If the profile is none, or not one of the board.
    SchemaError
        If a number is out of range.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> Request("3g.39gb", 1, board=as_board("A100-80GB")).profile
    '3g.40gb'
    """

    profile: str
    count: int = 1
    time_limit_s: float | None = None
    nodes: int = 1
    board: GpuModel | None = None

    def __post_init__(self) -> None:
        if self.profile != WHOLE_GPU:
            name = (
                self.board.profile(self.profile).name if self.board else str(ProfileName.parse(self.profile))
            )
            object.__setattr__(self, "profile", name)
        limit = self.time_limit_s
        if self.count < 1 or self.nodes < 1 or (limit is not None and not 0 < limit < math.inf):
            text = message(
                "request", "a count, nodes and a time limit above 0", repr(self), "Give numbers above 0."
            )
            raise SchemaError(text)


def request_lines(
    request: Request, form: str, *, gres_type: str | None = None, name: str | None = None, note: str = ""
) -> str:
    r"""Print a request in one of the forms.

    Parameters
    ----------
    request : Request
        What to ask for.
    form : {"sbatch", "pod", "dra"}
        Options for the head of a batch script; a Pod with the GPUs as limits; or a ResourceClaimTemplate and the
        Pod that claims by it. Pods name no image: copy their ``spec``, or put yours in. The time limit of both is
        ``activeDeadlineSeconds``.
    gres_type : str, optional
        Slurm's type of a whole GPU, ``nvidia_a100``; a slice has its profile behind it. Without it the line names none
        and gets any GPU; a slice cannot be asked for then.
    name : str, optional
        Name of the objects of Kubernetes, so that many can stand in one stream; by default one by the request.
    note : str
        Comment for the first line. It may be any text: it is printed escaped, between quotation marks.

    Returns
    -------
    str
        Lines, each with its end. Objects of Kubernetes are parted by ``---``; put the same between several texts.
        Nothing in them but `note` comes from a user, and that in a comment.

    Raises
    ------
    SchemaError
        If the form is unknown, the type is no Slurm type or is needed, or the name is none of Kubernetes.

    References
    ----------
    .. [1] SchedMD/slurm, doc/html/gres.shtml; NVIDIA/k8s-device-plugin, README (resource names under the strategy
       mixed); NVIDIA/k8s-dra-driver-gpu, device classes and attribute ``profile``.

    Examples
    --------
    >>> print(request_lines(Request("3g.40gb", 1, 5400), "sbatch", gres_type="h100"), end="")
    #SBATCH --gres=gpu:h100_3g.40gb:1
    #SBATCH --time=0-01:30:00
    >>> print(request_lines(Request("gpu", 8), "pod", note="Anna\n#!"), end="")
    # 'Anna\n#!'
    apiVersion: v1
    kind: Pod
    metadata:
      name: gpus-8
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: IMAGE
        resources:
          limits:
            nvidia.com/gpu: 8
    """
    if form == "sbatch":
        lines = _sbatch(request, gres_type)
    elif form == "pod":
        lines = _pod(request, _object_name(request, name))
    elif form == "dra":
        named = _object_name(request, name)
        lines = [*_claim_template(request, named), "---", *_claiming_pod(request, named)]
    else:
        text = message("form of request lines", f"one of {', '.join(FORMS)}", repr(form), "Use one of these.")
        raise SchemaError(text)
    head = [f"# {note[:200]!a}"] if note else []
    return "".join(f"{line}\n" for line in [*head, *lines])


def is_gres_type(text: str) -> bool:
    """Whether a word can be the type of a GPU in Slurm.

    Examples
    --------
    >>> is_gres_type("a100_80"), is_gres_type("a100|v100")
    (True, False)
    """
    return _GRES_TYPE.fullmatch(text) is not None


def _sbatch(request: Request, gres_type: str | None) -> list[str]:
    """Options of sbatch: GPUs of a node, nodes and time limit, up to the next minute."""
    sliced = request.profile != WHOLE_GPU
    if sliced if gres_type is None else not is_gres_type(gres_type):
        place = f"Slurm GRES type for {request.profile}"
        todo = "Take it from GresTypes of the site, or what slurmd detects."
        raise SchemaError(message(place, "letters, digits, '_', '.' and '-'", repr(gres_type), todo))
    kind = "" if gres_type is None else f"{gres_type}_{request.profile}:" if sliced else f"{gres_type}:"
    of_node, left = divmod(request.count, request.nodes)
    # What does not divide evenly cannot be said by the node, only in all.
    lines = [f"#SBATCH --gpus={kind}{request.count}" if left else f"#SBATCH --gres=gpu:{kind}{of_node}"]
    if request.nodes > 1:
        lines.append(f"#SBATCH --nodes={request.nodes}")
    if request.time_limit_s is not None:
        minutes = math.ceil(request.time_limit_s / 60)
        lines.append(f"#SBATCH --time={minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00")
    return lines


def _object_name(request: Request, name: str | None) -> str:
    """A name for objects of Kubernetes."""
    if name is None:
        kind = "gpus" if request.profile == WHOLE_GPU else f"mig-{re.sub(r'[^a-z0-9]', '-', request.profile)}"
        return f"{kind}-{request.count}"
    if not _OBJECT_NAME.fullmatch(name):
        expected = "up to 63 lower-case letters, digits and '-'"
        raise SchemaError(message("name of Kubernetes objects", expected, repr(name), "Mend it."))
    return name


def _pod(request: Request, name: str) -> list[str]:
    """A Pod with limits; a plus sign cannot stand in the name of a resource."""
    resource = "gpu" if request.profile == WHOLE_GPU else f"mig-{request.profile.replace('+', '.')}"
    return [
        *_pod_head(request, name),
        *_container("    limits:", f"      nvidia.com/{resource}: {request.count}"),
    ]


def _claiming_pod(request: Request, name: str) -> list[str]:
    """A Pod that gets its GPUs by the claim template of the same name."""
    return [
        *_pod_head(request, name),
        "  resourceClaims:",
        "  - name: gpus",
        f"    resourceClaimTemplateName: {name}",
        *_container("    claims:", "    - name: gpus"),
    ]


def _pod_head(request: Request, name: str) -> list[str]:
    limit = request.time_limit_s
    return [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  restartPolicy: Never",
        *([f"  activeDeadlineSeconds: {math.ceil(limit)}"] if limit is not None else []),
    ]


def _container(*resources: str) -> list[str]:
    """The only container; an image in capitals is none, so that nothing runs before one is put in."""
    return [
        "  containers:",
        "  - name: main",
        "    image: IMAGE",
        "    resources:",
        *(f"  {line}" for line in resources),
    ]


def _claim_template(request: Request, name: str) -> list[str]:
    """A claim template of resource.k8s.io/v1, with the profile selected in CEL."""
    whole = request.profile == WHOLE_GPU
    chosen = f"device.attributes['gpu.nvidia.com'].profile == '{request.profile}'"
    return [
        "apiVersion: resource.k8s.io/v1",
        "kind: ResourceClaimTemplate",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  spec:",
        "    devices:",
        "      requests:",
        "      - name: gpus",
        "        exactly:",
        f"          deviceClassName: {'gpu' if whole else 'mig'}.nvidia.com",
        f"          count: {request.count}",
        *(
            []
            if whole
            else ["          selectors:", "          - cel:", f'              expression: "{chosen}"']
        ),
    ]
