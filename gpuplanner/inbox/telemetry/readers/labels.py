"""Labels of exporters: which GPU or MIG instance a sample belongs to, and which job or pod held it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from gpuplanner.inbox.core.times import INSTANT

MAX_INDEX = 1023
"""Larger GPU or instance numbers are faults of a source."""

NODE_LABELS = ("node", "kubernetes_node", "exported_node")
"""Labels of the scrape that name the node itself."""
GPU_LABELS = ("gpu", "gpu_id", "minor_number", "index")
BOARD_LABELS = ("modelname", "card_series", "gpu_type", "name")
JOB_LABELS = ("hpc_job", "slurmjobid", "job_id", "jobid")
"""Labels of jobs: of DCGM's job mapping, slurm-job-exporter, AMD's exporter, jobstats."""
POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("pod_namespace", "pod_name"))
"""``exported_`` is what Prometheus makes of the workload's labels unless it honours labels: ``pod`` is then the
exporter's own [1]_. ``pod_name`` is the older name.

References
----------
.. [1] NVIDIA/dcgm-exporter, deployment/values.yaml: ``honorLabels: false``; Prometheus, scrape_config, honor_labels.
"""
EXPORTER = re.compile(r"(dcgm|metrics|gpu|smi|rocm)[a-z0-9-]*exporter", re.IGNORECASE)
"""Pods that export readings of GPUs, and hold none."""
OTHER_PARTITION = "a partition of an AMD GPU other than the first"

DEVICE = pl.Schema(
    {"node": pl.String(), "gpu": pl.Int32(), "instance": pl.Int32()}
    | dict.fromkeys(("profile", "board", "job_id", "fault"), pl.String())
)
"""A device as its labels give it; `fault` says why they cannot be read."""

READING = pl.Schema(
    {"file": pl.UInt32(), "line": pl.UInt32(), "raw": pl.String(), "time": INSTANT, **DEVICE}
    | {"metric": pl.String(), "value": pl.String()}
)
"""One value of one metric of one device, before it is read as a number."""


def device(labels: Mapping[str, str] | None, default_node: str | None = None) -> tuple[object, ...]:
    """Device of a label set, as a row of :data:`DEVICE`; names of labels are known in any case of their letters.

    The label ``UUID`` of a MIG sample is the parent's, so an instance is known by ``gpu`` and ``GPU_I_ID``. The host
    name may be that of the exporter's pod: labels of the scrape that name the node come first.
    The label ``job`` is the scrape job of Prometheus and says nothing about who computed.

    Examples
    --------
    >>> device({"gpu": "3", "Hostname": "n1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb", "job": "dcgm"})
    ('n1', 3, 7, '1g.10gb', None, None, None)
    >>> device({"gpu": "3", "Hostname": "dcgm-exporter-x7k2p", "node": "n1"})[0]
    'n1'
    """
    if labels is None:
        return (None,) * (len(DEVICE) - 1) + ("labels that cannot be read",)
    labels = {name.lower(): value for name, value in labels.items()}
    node = _node(labels, default_node)
    gpu = _index(next((labels[name] for name in GPU_LABELS if labels.get(name)), ""))
    if gpu is None:
        gpu = _index(labels.get("device", "").removeprefix("nvidia"))
    instance_text, profile = labels.get("gpu_i_id", ""), labels.get("gpu_i_profile") or None
    instance = _index(instance_text)
    fault = None
    if labels.get("gpu_partition_id", "").strip("0").isdigit():  # "NA" in virtual machines
        fault = OTHER_PARTITION
    elif gpu is None:
        fault = "no GPU number in the labels"
    elif node is None:
        fault = "no node in the labels"
    elif instance is None and (profile or instance_text):
        fault = "a MIG instance without its number"
    board = next((labels[name] for name in BOARD_LABELS if labels.get(name)), None)
    return node, gpu, instance, profile, board, _holder(labels), fault


def devices(labels: Sequence[Mapping[str, str] | None], default_node: str | None = None) -> pl.DataFrame:
    """Devices of several label sets, one row each in their order.

    Where a scrape renames the labels of workloads, ``pod`` never names one. Series that know their GPU by its UUID
    alone have the number and model of the series that describes it.
    """
    renamed = {each.get("job") for each in labels if each and "exported_pod" in each}
    described = {
        each["uuid"]: {name: each[name] for name in ("index", "name") if name in each}
        for each in labels
        if each and {"uuid", "index"} <= each.keys()
    }
    told = [
        None
        if each is None
        else described.get(each.get("uuid", ""), {})
        | {name: value for name, value in each.items() if each.get("job") not in renamed or name != "pod"}
        for each in labels
    ]
    return pl.DataFrame([device(each, default_node) for each in told], schema=DEVICE, orient="row")


def _node(labels: Mapping[str, str], default_node: str | None) -> str | None:
    """Name of the node: the host name unless it is that of the exporter's pod, else the address of the scrape."""
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
    host = labels.get("hostname") or None
    own = host is not None and (host == labels.get("pod") or EXPORTER.search(host) is not None)
    address = re.sub(r":[0-9]+$", "", labels.get("instance", "")) or None
    return node or (None if own else host) or default_node or address or host


def _holder(labels: Mapping[str, str]) -> str | None:
    """Job of the job mapping, else namespace/pod of the Kubernetes mapping."""
    job = next((labels[name] for name in JOB_LABELS if labels.get(name)), None)
    if job is not None:
        return job
    for namespace, pod in POD_LABELS:
        if labels.get(pod) and not EXPORTER.search(labels[pod]):
            return f"{labels[namespace]}/{labels[pod]}" if labels.get(namespace) else labels[pod]
    return None


def _index(text: str) -> int | None:
    """Number of a GPU or instance."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) and int(text) <= MAX_INDEX else None
