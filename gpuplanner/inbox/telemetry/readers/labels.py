"""Labels of the DCGM exporter: which GPU or MIG instance a sample belongs to, and which job or pod held it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl

from gpuplanner.inbox.core.times import INSTANT

LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
MAX_INDEX = 1023
"""Larger GPU or instance numbers are faults of a source."""

NODE_LABELS = ("hostname", "Hostname", "node", "kubernetes_node")
POD_LABELS = (("namespace", "pod"), ("exported_namespace", "exported_pod"), ("pod_namespace", "pod_name"))
"""Older and newer names; ``exported_`` is what Prometheus makes of them unless it honours labels."""

DEVICE = pl.Schema(
    {
        "node": pl.String(),
        "gpu": pl.Int32(),
        "instance": pl.Int32(),
        "profile": pl.String(),
        "board": pl.String(),
        "job_id": pl.String(),
        "fault": pl.String(),
    }
)
"""A device as its labels give it; `fault` says why they cannot be read."""

READING = pl.Schema(
    {"file": pl.UInt32(), "line": pl.UInt32(), "raw": pl.String(), "time": INSTANT, **DEVICE}
    | {"metric": pl.String(), "value": pl.String()}
)
"""One value of one metric of one device, before it is read as a number."""


def parse_labels(text: str) -> dict[str, str] | None:
    r"""Labels of one sample, ``a="1", b="2"``; None if they cannot be read.

    Examples
    --------
    >>> parse_labels('gpu="0", pod="x,gpu=\\"7\\""')
    {'gpu': '0', 'pod': 'x,gpu="7"'}
    >>> parse_labels("gpu=0") is None
    True
    """
    labels: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        match = LABEL.match(text, position)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\[\\\"n]", lambda found: ESCAPES[found[0]], match[2])
        position = match.end()
    return labels


def device(labels: Mapping[str, str] | None, default_node: str | None = None) -> tuple[object, ...]:
    """Device of a label set, as a row of :data:`DEVICE`.

    The label ``UUID`` of a MIG sample is the parent's, so an instance is known by ``gpu`` and ``GPU_I_ID``.
    The label ``job`` is the scrape job of Prometheus and says nothing about who computed.

    Examples
    --------
    >>> device({"gpu": "3", "Hostname": "n1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb", "job": "dcgm"})
    ('n1', 3, 7, '1g.10gb', None, None, None)
    """
    if labels is None:
        return (None,) * (len(DEVICE) - 1) + ("labels that cannot be read",)
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
    node = node or default_node or re.sub(r":[0-9]+$", "", labels.get("instance", "")) or None
    gpu = _index(labels.get("gpu") or labels.get("device", "").removeprefix("nvidia"))
    instance_text, profile = labels.get("GPU_I_ID", ""), labels.get("GPU_I_PROFILE") or None
    instance = _index(instance_text)
    fault = None
    if gpu is None:
        fault = "no GPU number in the labels"
    elif node is None:
        fault = "no node in the labels"
    elif instance is None and (profile or instance_text):
        fault = "a MIG instance without its number"
    return node, gpu, instance, profile, labels.get("modelName") or None, _holder(labels), fault


def devices(labels: Iterable[Mapping[str, str] | None], default_node: str | None = None) -> pl.DataFrame:
    """Devices of several label sets, one row each in their order."""
    return pl.DataFrame([device(each, default_node) for each in labels], schema=DEVICE, orient="row")


def _holder(labels: Mapping[str, str]) -> str | None:
    """Job of the job mapping, else namespace/pod of the Kubernetes mapping."""
    if labels.get("hpc_job"):
        return labels["hpc_job"]
    for namespace, pod in POD_LABELS:
        if labels.get(pod):
            return f"{labels[namespace]}/{labels[pod]}" if labels.get(namespace) else labels[pod]
    return None


def _index(text: str) -> int | None:
    """Number of a GPU or instance."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) and int(text) <= MAX_INDEX else None
