"""Lists of pods and nodes, as the OpenB traces have them, and of MIG instances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_faultless
from gpuplanner.lab.placement.pods import LARGEST, MAX_GPUS_PER_NODE, MILLI, Nodes, Pods

POD_COLUMNS = {
    "name": Field("names"),
    "cpu_milli": Field("cpu_milli", "number", high=LARGEST),
    "memory_mib": Field("memory_mib", "number", high=LARGEST),
    "num_gpu": Field("gpus", "number", high=MAX_GPUS_PER_NODE),
    "gpu_milli": Field("gpu_milli", "number", high=MILLI),
    "gpu_spec": Field("models", nullable=True, optional=True),
}
"""Column of a pod list, and what :class:`gpuplanner.lab.placement.Pods` calls it."""

NODE_COLUMNS = {
    "sn": Field("names"),
    "cpu_milli": Field("cpu_milli", "number", high=LARGEST),
    "memory_mib": Field("memory_mib", "number", high=LARGEST),
    "gpu": Field("gpus", "number", high=MAX_GPUS_PER_NODE),
    "model": Field("models", nullable=True),
}
"""Column of a node list, and what :class:`gpuplanner.lab.placement.Nodes` calls it."""

INSTANCE_COLUMNS = {"name": Field("name"), "profile": Field("profile")}
"""Columns of a list of instances."""


def read_pods(path: str | Path) -> Pods:
    r"""Read a pod list: ``name,cpu_milli,memory_mib,num_gpu,gpu_milli`` and, if any, ``gpu_spec``.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip; further columns are passed over.

    Returns
    -------
    Pods
        In the order of the file.

    Raises
    ------
    TraceFormatError
        If the file is no such list, or any row is faulty.
    ScenarioError
        If a request makes no sense.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023; alibaba/clusterdata, cluster-trace-gpu-v2023.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pods.csv"
    ...     _ = path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,6000,12288,1,460\n")
    ...     read_pods(path).gpu_milli.tolist()
    [460]
    """
    return Pods(**_columns(path, POD_COLUMNS, "pod list"))


def read_nodes(path: str | Path) -> Nodes:
    r"""Read a node list: ``sn,cpu_milli,memory_mib,gpu,model``.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip.

    Returns
    -------
    Nodes
        In the order of the file.

    Raises
    ------
    TraceFormatError
        If the file is no such list, or any row is faulty.
    ScenarioError
        If a node stands there twice.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n")
    ...     read_nodes(path).models
    ('P100',)
    """
    return Nodes(**_columns(path, NODE_COLUMNS, "node list"))


def read_requests(path: str | Path) -> pl.DataFrame:
    r"""Read MIG instances in order of arrival: ``name,profile``.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip; further columns are passed over.

    Returns
    -------
    polars.DataFrame, shape (n_arrivals, 2)
        ``name, profile`` in the order of the file.

    Raises
    ------
    TraceFormatError
        If the file is no such list, or any row is faulty.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "instances.csv"
    ...     _ = path.write_text("name,profile\na,3g.40gb\n")
    ...     read_requests(path).rows()
    [('a', '3g.40gb')]
    """
    return read_faultless(path, INSTANCE_COLUMNS, "list of instances")


def _columns(path: str | Path, columns: Mapping[str, Field], what: str) -> dict[str, Any]:
    """Columns by our names; a pod left out would change every later placement."""
    good = read_faultless(path, columns, what)
    texts = {name: good[name].fill_null("").to_list() for name in ("names", "models") if name in good}
    return texts | {name: good[name].to_numpy() for name in good.columns if name not in texts}
