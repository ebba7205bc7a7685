"""Request lines for Slurm and Kubernetes, and recommended GPU sharing modes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.gpu_models import GpuModel, ProfileName, load_any_gpu_model

REQUEST_FORMS = ("sbatch", "pod", "dra")
"""Forms of :func:`format_request_lines`."""
REQUEST_FORM_BY_ACTUATOR = {"slurm": "sbatch", "dra": "dra"}
"""Form of the request lines by actuator; all others have pods."""
MAX_NOTE_LENGTH = 400
"""Longest comment above request lines, in characters; the rest is cut, because it may be untrusted text."""

_KUBERNETES_OBJECT_NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Valid names of Kubernetes objects (DNS labels)."""
_GRES_TYPE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Valid GPU types in Slurm's GRES."""


@dataclass(frozen=True)
class GpuRequest:
    """GPUs or MIG instances with a time limit.

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
    gpu_model : GpuModel, optional
        Board on which the profile must exist, and whose name for it is printed.

    Raises
    ------
    GeometryError
        If the profile is none, or not one of the board.
    SchemaError
        If a number is out of range.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> GpuRequest("3g.39gb", 1, gpu_model=as_gpu_model("A100-80GB")).profile
    '3g.40gb'
    """

    profile: str
    count: int = 1
    time_limit_s: float | None = None
    nodes: int = 1
    gpu_model: GpuModel | None = None

    def __post_init__(self) -> None:
        if self.profile != FULL_GPU:
            name = self.gpu_model.profile(self.profile).name if self.gpu_model else ProfileName.parse_name(self.profile)
            object.__setattr__(self, "profile", str(name))
        limit = self.time_limit_s
        if self.count < 1 or self.nodes < 1 or (limit is not None and not 0 < limit < math.inf):
            expected = "a count, nodes and a time limit above 0"
            raise SchemaError("request", expected, repr(self), "Give numbers above 0.")


def format_request_lines(
    request: GpuRequest, form: str, *, gres_type: str | None = None, name: str | None = None, note: str = ""
) -> str:
    r"""Format a request as lines to paste.

    Parameters
    ----------
    request : GpuRequest
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
    >>> print(format_request_lines(GpuRequest("3g.40gb", 1, 5400), "sbatch", gres_type="h100"), end="")
    #SBATCH --gres=gpu:h100_3g.40gb:1
    #SBATCH --time=0-01:30:00
    >>> print(format_request_lines(GpuRequest("gpu", 8), "pod", note="Anna\n#!"), end="")
    # 'Anna\n#!'
    apiVersion: v1
    kind: Pod
    metadata:
      name: gpus-8
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: IMAGE  # yours; or copy the resources into the specification of your pod or Job
        resources:
          limits:
            nvidia.com/gpu: 8
    """
    if form == "sbatch":
        lines = _format_sbatch(request, gres_type)
    elif form == "pod":
        lines = _format_pod(request, _object_name(request, name))
    elif form == "dra":
        named = _object_name(request, name)
        lines = [*_format_claim_template(request, named), "---", *_format_claiming_pod(request, named)]
    else:
        expected = f"one of {', '.join(REQUEST_FORMS)}"
        raise SchemaError("form of request lines", expected, repr(form), "Use one of these.")
    head = [f"# {note[:MAX_NOTE_LENGTH]!a}"] if note else []
    return "".join(f"{line}\n" for line in [*head, *lines])


def is_gres_type(text: str) -> bool:
    """Whether a word can be a GPU type in Slurm.

    Examples
    --------
    >>> is_gres_type("a100_80"), is_gres_type("a100|v100")
    (True, False)
    """
    return _GRES_TYPE_PATTERN.fullmatch(text) is not None


def _format_sbatch(request: GpuRequest, gres_type: str | None) -> list[str]:
    """Format the sbatch options of a request: GPUs of a node, nodes, and time limit rounded up to the minute."""
    sliced = request.profile != FULL_GPU
    if sliced if gres_type is None else not is_gres_type(gres_type):
        subject = f"Slurm GRES type for {request.profile}"
        todo = "Take it from GresTypes of the site, or what slurmd detects."
        raise SchemaError(subject, "letters, digits, '_', '.' and '-'", repr(gres_type), todo)
    kind = "" if gres_type is None else f"{gres_type}_{request.profile}:" if sliced else f"{gres_type}:"
    per_node, remainder = divmod(request.count, request.nodes)
    # What does not divide evenly cannot be said by the node, only in all.
    lines = [f"#SBATCH --gpus={kind}{request.count}" if remainder else f"#SBATCH --gres=gpu:{kind}{per_node}"]
    if request.nodes > 1:
        lines.append(f"#SBATCH --nodes={request.nodes}")
    if request.time_limit_s is not None:
        minutes = math.ceil(request.time_limit_s / 60)
        lines.append(f"#SBATCH --time={minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00")
    return lines


def _object_name(request: GpuRequest, name: str | None) -> str:
    """Return the name of the Kubernetes objects of a request: the given one, or one made from the request."""
    if name is None:
        kind = "gpus" if request.profile == FULL_GPU else f"mig-{re.sub(r'[^a-z0-9]', '-', request.profile)}"
        return f"{kind}-{request.count}"
    if not _KUBERNETES_OBJECT_NAME_PATTERN.fullmatch(name):
        expected = "up to 63 lower-case letters, digits and '-'"
        raise SchemaError("name of Kubernetes objects", expected, repr(name), "Fix the name.")
    return name


def _format_pod(request: GpuRequest, name: str) -> list[str]:
    """Format a Pod with GPUs or MIG instances as limits; resource names have no plus sign."""
    resource = "gpu" if request.profile == FULL_GPU else f"mig-{request.profile.replace('+', '.')}"
    limit = f"      nvidia.com/{resource}: {request.count}"
    return [*_format_pod_head(request, name), *_format_container("    limits:", limit)]


def _format_claiming_pod(request: GpuRequest, name: str) -> list[str]:
    """Format a Pod that gets its GPUs by the ResourceClaimTemplate of the same name."""
    return [
        *_format_pod_head(request, name),
        "  resourceClaims:",
        "  - name: gpus",
        f"    resourceClaimTemplateName: {name}",
        *_format_container("    claims:", "    - name: gpus"),
    ]


def _format_pod_head(request: GpuRequest, name: str) -> list[str]:
    """Return the lines of a pod specification above its resources."""
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


def _format_container(*resources: str) -> list[str]:
    """Format the only container; its image is a placeholder that cannot be pulled until the user replaces it."""
    return [
        "  containers:",
        "  - name: main",
        "    image: IMAGE  # yours; or copy the resources into the specification of your pod or Job",
        "    resources:",
        *(f"  {line}" for line in resources),
    ]


def _format_claim_template(request: GpuRequest, name: str) -> list[str]:
    """Format a ResourceClaimTemplate of resource.k8s.io/v1 that selects the profile in CEL."""
    whole = request.profile == FULL_GPU
    chosen = f"device.attributes['gpu.nvidia.com'].profile == '{request.profile}'"
    selectors = ["          selectors:", "          - cel:", f'              expression: "{chosen}"']
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
        *(selectors if not whole else []),
    ]


SHARING_FULL, SHARING_MIG, SHARING_MPS, SHARING_TIME_SLICING = "whole", "mig", "mps", "time-slicing"
"""Modes of sharing a GPU: full GPU for each job, MIG slices, MPS, time-slicing."""
COVERED_FRACTION = 0.95
"""Fraction of the jobs of a class for which a recommendation must be enough."""
MIN_MEASURED_JOBS = 5
"""Fewest measured jobs for a recommendation."""
MAX_SHARED_GPU_SM_ACTIVITY = 0.10
"""SM activity below which a session counts as mostly idle, so that time-slicing hardly slows it. [0-1]"""
MAX_RECOMMENDED_JOBS_PER_GPU = 8
"""Largest number of jobs on one GPU that is recommended."""


def recommend_sharing(history: pl.DataFrame) -> pl.DataFrame:
    """Recommend for each class of jobs and GPU model how its jobs may share a GPU.

    A slice is recommended where one is enough for 95 % of the jobs, since nothing else isolates jobs. Otherwise, where
    two jobs fit by memory and SM activity (both at 95 %), jobs of one user may share under MPS, and mostly idle
    sessions may be time-sliced. Jobs on several GPUs, and classes with fewer than five measured jobs, keep full GPUs.

    Parameters
    ----------
    history : polars.DataFrame
        From :func:`~gpuplanner.usage.rightsizing.requested_and_used`.

    Returns
    -------
    polars.DataFrame
        A row per ``job_class``, ``board`` and ``gpus`` (one or several), most GPU-hours first: ``jobs``, ``measured``,
        ``users``, ``requested_gpu_hours`` (the requested part of GPUs over the run time of jobs that ended, whatever
        was allocated [GPU h]); ``memory_peak_gib``, ``sm_activity`` (95 % of the measured jobs need no more);
        ``mode`` (``whole``, ``mig``, ``mps``, ``time-slicing``), ``profile`` (of MIG), ``jobs_per_gpu``,
        ``slow_at_most`` (how many times as long a job takes if all are as busy as that; null for slices, whose speed is
        measured elsewhere),
        ``why``; and in words, as the catalogue has them: ``isolation``, ``memory_guard``, ``with_whom``, ``slow``,
        ``slurm``, ``kubernetes``.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from gpuplanner.usage.rightsizing import requested_and_used
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": list("abcdefgh"), "attempt": 1, "tenant": "t", "user": "u", "state": "COMPLETED",
    ...     "gpus": 1.0, "gpu_model": ["H100-80GB-SXM5"] * 4 + ["T4"] * 4, "job_class": "evaluation",
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=1), "sm_activity": 0.2,
    ...     "memory_peak_gib": 3.0})
    >>> twice = pl.concat([jobs, jobs.with_columns(attempt=pl.lit(2))])
    >>> recommend_sharing(requested_and_used(twice)).select("board", "mode", "profile", "jobs_per_gpu").rows()
    [('H100-80GB-SXM5', 'mig', '2g.20gb', 3), ('T4', 'mps', None, 5)]
    """
    models = {word: _load_gpu_model(word) for word in history["gpu_model"].cast(pl.String).unique().to_list()}
    model_names = {word: gpu_model and gpu_model.name for word, gpu_model in models.items()}
    of_word = pl.col("gpu_model").cast(pl.String).replace_strict(model_names, return_dtype=pl.String)
    classes = history.select(
        pl.col("user", "tenant", "gpu_hours", "memory_peak_gib", "sm_activity", "profile_needed", "rank_needed"),
        job_class=pl.col("job_class").cast(pl.String).fill_null("not known"),
        board=pl.coalesce("board", of_word),
        several=(pl.col("instances") > 1) & (pl.col("profile").fill_null(FULL_GPU) == FULL_GPU),
    )
    parts = classes.partition_by("job_class", "board", "several", maintain_order=True)
    rows = [_make_sharing_row(part) for part in parts]
    table = pl.DataFrame(rows, schema=_DTYPE_BY_SHARING_COLUMN, orient="row")
    mode_texts = facts("sharing_modes").pivot(on="fact", index="mode", values="value", maintain_order=True)
    return table.join(mode_texts, on="mode", how="left", maintain_order="left").sort(
        "requested_gpu_hours", "job_class", "board", descending=[True, False, False], nulls_last=True
    )


_DTYPE_BY_SHARING_COLUMN = {
    "job_class": pl.String, "board": pl.String, "gpus": pl.String, "jobs": pl.Int64, "measured": pl.Int64,
    "users": pl.Int64, "requested_gpu_hours": pl.Float64, "memory_peak_gib": pl.Float64, "sm_activity": pl.Float64,
    "mode": pl.String, "profile": pl.String, "jobs_per_gpu": pl.Int64, "slow_at_most": pl.Float64, "why": pl.String,
}  # fmt: skip
"""Columns of the table of :func:`recommend_sharing`, with dtypes."""


def _make_sharing_row(part: pl.DataFrame) -> tuple[object, ...]:
    """Make the row of one class on one GPU model."""
    job_class, name, several = part["job_class"][0], part["board"][0], part["several"][0]
    measured = part.drop_nulls(["memory_peak_gib", "sm_activity"])
    memory, busy = (_find_covering_quantile(measured[column]) for column in ("memory_peak_gib", "sm_activity"))
    users = part["user"].fill_null(part["tenant"]).n_unique()
    gpu_model = None if name is None else _load_gpu_model(name)
    mode, profile, jobs_per_gpu, why = _choose_sharing(part, measured, gpu_model, users, memory, busy)
    slow = {SHARING_FULL: 1.0, SHARING_MIG: None, SHARING_MPS: max(jobs_per_gpu * (busy or 0.0), 1.0)}.get(
        mode, float(jobs_per_gpu)
    )
    return (
        job_class, name, "several" if several else "one", part.height, measured.height, users, part["gpu_hours"].sum(),
        memory, busy, mode, profile, jobs_per_gpu, slow, why,
    )  # fmt: skip


def _choose_sharing(
    part: pl.DataFrame,
    measured: pl.DataFrame,
    gpu_model: GpuModel | None,
    users: int,
    memory: float | None,
    busy: float | None,
) -> tuple[str, str | None, int, str]:
    """Choose mode, slice profile, jobs per GPU and the reason."""
    if gpu_model is None:
        return SHARING_FULL, None, 1, "the GPU model is not known"
    if part["several"][0]:
        return SHARING_FULL, None, 1, "jobs on several GPUs communicate, which MIG instances and shared GPUs cannot"
    if measured.height < MIN_MEASURED_JOBS or memory is None or busy is None:
        return SHARING_FULL, None, 1, f"{measured.height} of its jobs were measured, {MIN_MEASURED_JOBS} are needed"
    slices = measured.drop_nulls("rank_needed").sort("rank_needed")
    if gpu_model.profiles and slices.height:
        needed = slices["profile_needed"][math.ceil(COVERED_FRACTION * slices.height) - 1]
        if needed != FULL_GPU and (count := gpu_model.profile(needed).max_instances) > 1:
            return SHARING_MIG, needed, count, f"{needed} is enough for {percent_text(COVERED_FRACTION)} of its jobs"
    usable = gpu_model.memory_gib
    max_fitting = min(int(usable / max(memory, 1e-3)), MAX_RECOMMENDED_JOBS_PER_GPU)
    if max_fitting < 2:
        why = f"{percent_text(COVERED_FRACTION)} of its jobs need up to {memory:.0f} of {usable:.0f} GiB"
        return SHARING_FULL, None, 1, why
    if users == 1 and (jobs_per_gpu := min(max_fitting, int(1 / max(busy, 1e-3)))) > 1:
        needs = f"up to {memory:.0f} GiB and {percent_text(busy)} each"
        why = f"{jobs_per_gpu} of one user leave memory and SMs free: {needs}"
        return SHARING_MPS, None, jobs_per_gpu, why
    if part["job_class"][0] == "interactive" and float(measured["sm_activity"].median()) < MAX_SHARED_GPU_SM_ACTIVITY:  # type: ignore[arg-type]
        why = f"sessions rest most of the time; {max_fitting} fit by memory, which nothing guards"
        return SHARING_TIME_SLICING, None, max_fitting, why
    owners = "one user's" if users == 1 else f"{users} users'"
    why = f"no slice is enough, and {owners} jobs would meet: {percent_text(busy)} of the SMs each"
    return SHARING_FULL, None, 1, why


def _load_gpu_model(word: str | None) -> GpuModel | None:
    """Load the GPU model that a word names, with MIG or without; None if unknown."""
    try:
        return None if word is None else load_any_gpu_model(word)
    except GeometryError:
        return None


def _find_covering_quantile(values: pl.Series) -> float | None:
    """Return the value that covers most of the jobs; None without values."""
    return None if not len(values) else float(values.sort()[math.ceil(COVERED_FRACTION * len(values)) - 1])


def format_plugin_configs(table: pl.DataFrame) -> str:
    """Format NVIDIA device plugin configurations for MPS and time-slicing as a ConfigMap with one key per class."""
    keys = "".join(f"  {name}: |\n{body}" for name, body in _iterate_plugin_configs(table))
    if not keys:
        return "# No class shares by MPS or time-slicing: nothing to configure.\n"
    return (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: gpuplanner-sharing\n  namespace: gpu-operator\ndata:\n"
        f"{keys}"
    )


def _iterate_plugin_configs(table: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield name and text of a configuration of the NVIDIA device plugin for each class that shares GPUs."""
    for row in table.filter(pl.col("mode").is_in([SHARING_MPS, SHARING_TIME_SLICING])).iter_rows(named=True):
        key = "mps" if row["mode"] == SHARING_MPS else "timeSlicing"
        lines = [
            "version: v1", f"# {json.dumps(row['why'])[1:-1]}", "sharing:", f"  {key}:",
            # Two replicas are no two GPUs: a job that asks for two would get one.
            "    failRequestsGreaterThanOne: true", "    resources:", "      - name: nvidia.com/gpu",
            f"        replicas: {row['jobs_per_gpu']}",
        ]  # fmt: skip
        name = f"{row['job_class']}-{row['board']}".lower().replace(" ", "-")
        yield name, "".join(f"    {line}\n" for line in lines)
