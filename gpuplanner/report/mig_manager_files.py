"""Files for the MIG manager of the GPU operator and for mig-parted.

The MIG manager cuts GPUs when a node label names a config of the ConfigMap. It neither cordons nor drains
nor waits for jobs; the change script does, and it is people who run it.

mig-parted takes profile counts per device, neither places nor an order. Each state is proved to fit before
it is written.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from datetime import datetime

import polars as pl

from gpuplanner.core.errors import GeometryError, OutputError, examples
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import (
    NodeState,
    check_layout_plan,
    list_layout_changes,
    node_state_timeline,
    node_states_of_table,
)
from gpuplanner.report.bundle_files import CONFIG_MAP, NAMESPACE, change_script
from gpuplanner.simulator.scheduling_rules import Drain

ALL_DISABLED = "all-disabled"
"""Config with which the GPU operator labels its MIG nodes; no state of a plan has this name."""


def to_mig_parted(plan: pl.DataFrame, gpu_model: GpuModel | str, *, at: datetime | None = None) -> str:
    """Print the node states of a plan as a mig-parted file.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        The board of all nodes.
    at : datetime, optional
        Only the states in force at this time (with its zone); the nodes are then named in comments. All
        states of the plan if None.

    Returns
    -------
    str
        YAML, ``version: v1``. Configs are sorted by name; the same state has the same name in every plan. Beside
        them stands ``all-disabled``: the operator labels its nodes so, and what a node was labelled before must
        be there for the first change to be taken back.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or it says nothing about the time.
    GeometryError
        If a layout cannot be placed on the board.

    Examples
    --------
    >>> from datetime import UTC
    >>> from gpuplanner.core.schemas import LayoutPlan
    >>> start, end = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    >>> plan = pl.DataFrame({
    ...     "node": ["n1", "n1"], "gpu": [0, 1], "slot_start": start, "slot_end": end,
    ...     "layout": ["3g.40gb:1,2g.20gb:2", "gpu"], "changed": True,
    ... })
    >>> print(to_mig_parted(plan, "H100-80GB-SXM5"), end="")
    # MIG configs for H100-80GB-SXM5, one per distinct state of a node.
    # Check with: gpuplanner verify FILE --gpu-model H100-80GB-SXM5
    version: v1
    mig-configs:
      "all-disabled":
        - devices: all
          mig-enabled: false
      "1xgpu_1x3g.40gb_2x2g.20gb_6212e63e6b":
        - devices: [0]
          mig-enabled: true
          mig-devices:
            "3g.40gb": 1
            "2g.20gb": 2
        - devices: [1]
          mig-enabled: false
    """
    gpu_model = as_gpu_model(gpu_model)
    configs: dict[str, tuple[NodeState, list[str]]] = {}
    for node, states in node_state_timeline(check_layout_plan(plan, gpu_model), at).items():
        for state in dict.fromkeys(states.values()):
            same, nodes = configs.setdefault(state.config_name, (state, []))
            assert same.gpus == state.gpus, "two states share a digest"
            if node not in nodes:
                nodes.append(node)
    lines = [
        f"# MIG configs for {gpu_model.name}, one per distinct state of a node.",
        f"# Check with: gpuplanner verify FILE --gpu-model {gpu_model.name}",
        "version: v1",
        "mig-configs:",
        f"  {json.dumps(ALL_DISABLED)}:",
        "    - devices: all",
        "      mig-enabled: false",
    ]
    for name, (state, nodes) in sorted(configs.items()):
        if at is not None:
            lines.append(f"  # {', '.join(nodes)}")
        lines.append(f"  {json.dumps(name)}:")
        for layout, gpus in state.gpus_by_layout.items():
            lines.append(f"    - devices: [{', '.join(map(str, gpus))}]")
            if layout == FULL_GPU:
                lines.append("      mig-enabled: false")
                continue
            lines += ["      mig-enabled: true", "      mig-devices:"]
            lines += [f"        {json.dumps(name)}: {count}" for name, count in parse_layout(layout).items()]
    return "\n".join(lines) + "\n"


DATA_KEY = "config.yaml"
"""The key under which the MIG manager looks for the configuration."""

MAX_BYTES = 1_000_000
"""Most text that is put into one ConfigMap; Kubernetes refuses more than 1 MiB."""

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_1123 = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_MAX_NAME = 253


def to_config_map(
    plan: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    at: datetime | None = None,
    name: str = CONFIG_MAP,
    namespace: str = NAMESPACE,
) -> str:
    """Print the node states of a plan as the ConfigMap that the MIG manager reads.

    Apply it with ``kubectl apply -f``, then name it in the ClusterPolicy: ``spec.migManager.config.name``.

    Parameters
    ----------
    plan, board, at
        As for :func:`~gpuplanner.report.mig_manager_files.to_mig_parted`.
    name, namespace : str
        Of the ConfigMap; the namespace is that of the operator.

    Returns
    -------
    str
        YAML with the mig-parted configuration under the data key ``config.yaml``.

    Raises
    ------
    SchemaError, GeometryError
        As ``to_mig_parted``, and if a name cannot be one of a Kubernetes object.
    OutputError
        If the text is larger than a ConfigMap may be.
    """
    _check_names("name of the ConfigMap", [name])
    _check_names("namespace", [namespace])
    text = to_mig_parted(plan, gpu_model, at=at)
    if len(text.encode()) > MAX_BYTES:
        expected = f"at most {MAX_BYTES} bytes, which is what Kubernetes stores"
        todo = "Export one time of the plan at a time: add --at."
        raise OutputError("ConfigMap", expected, f"{len(text.encode())} bytes", todo)
    body = "".join(f"    {line}\n" for line in text.splitlines())
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: {namespace}\n"
        f"data:\n  {DATA_KEY}: |\n{body}"
    )


def to_change_scripts(
    plan: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    change: ChangeCost | None = None,
    drain: Drain | None = None,
    initial: pl.DataFrame | None = None,
    name: str = CONFIG_MAP,
    namespace: str = NAMESPACE,
) -> dict[str, str]:
    """Print a script for each change of the layouts of some nodes; changes that are alike have one together.

    For each node a script cordons, waits for GPU work to end, drains, labels, waits for the MIG manager,
    compares what the node then offers with the plan, and uncordons; what has not emptied in time is given up. Its verb
    ``rollback`` gives back the label that was there before.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        The board of all nodes.
    change : ChangeCost, optional
        How long a change takes: that of the plan; None: by the operator, as the catalogue has it.
    drain, initial
        As for :func:`~gpuplanner.report.bundle_files.change_index`.
    name, namespace : str
        Of the ConfigMap.

    Returns
    -------
    dict of str to str
        Bash script by file name, ``change-<first time>.sh``, in the order of time. Every name in it is checked and
        quoted.

    Raises
    ------
    SchemaError
        If the table is not a layout plan.
    GeometryError
        If a layout cannot be placed on the board, or a name cannot be one of a Kubernetes object.
    """
    gpu_model = as_gpu_model(gpu_model)
    _check_names("name of the ConfigMap", [name])
    _check_names("namespace", [namespace])
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    _check_names("layout plan: node names", frame["node"].unique().sort().to_list())
    scripts: dict[str, str] = {}
    limit_s = cost.drain_s.high if drain is None else drain.limit_s
    for one in list_layout_changes(frame, limit_s, node_states_of_table(initial)):
        by_gpu = drain is not None and drain.scope == "gpu"
        step = functools.partial(_gpu_steps, cost=cost) if by_gpu else _node_step
        steps = "\n".join(step(node, *states) for node, states in one.nodes.items())
        parts = {"CONFIG_MAP": name, "NAMESPACE": namespace, "STEPS": steps}
        scripts[f"{one.name}.sh"] = change_script(
            "change_gpu.sh" if by_gpu else "change.sh", one, cost, gpu_model, parts
        )
    return scripts


def allocatable(state: NodeState) -> dict[str, int]:
    """Resources that a node offers in a state under the strategy ``mixed``, by name.

    Examples
    --------
    >>> allocatable(NodeState(((0, "1g.10gb+me:1,1g.10gb:6"), (1, "gpu"))))
    {'nvidia.com/gpu': 1, 'nvidia.com/mig-1g.10gb': 6, 'nvidia.com/mig-1g.10gb.me': 1}
    """
    found = {
        "nvidia.com/gpu" if profile == FULL_GPU else f"nvidia.com/mig-{profile.replace('+', '.')}": count
        for profile, count in state.totals.items()
    }
    return dict(sorted(found.items()))


def _node_step(node: str, before: NodeState | None, after: NodeState) -> str:
    return f"config[{node}]={shlex.quote(after.config_name)} {_offers(node, after)} size[{node}]={len(after.gpus)}"


def _gpu_steps(node: str, before: NodeState | None, after: NodeState, *, cost: ChangeCost) -> str:
    """Where the instances of each GPU shall be that changes, so that most of those that are there stay."""
    was = dict(before.gpus) if before else {}
    lines = []
    for gpu, layout in after.gpus:
        if was.get(gpu) != layout:
            change = cost.change(was.get(gpu, FULL_GPU), layout)
            places = sorted(change.kept + change.created)
            lines.append(f"target[{node}/{gpu}]={shlex.quote(' '.join(map(str, places)) or 'full')}")
    return "\n".join([*lines, _offers(node, after)])


def _offers(node: str, state: NodeState) -> str:
    listed = " ".join(f"{resource}={count}" for resource, count in allocatable(state).items())
    return f"offers[{node}]={shlex.quote(listed)}"


def _check_names(what: str, names: list[str]) -> None:
    bad = [name for name in names if len(name) > _MAX_NAME or not _DNS_1123.fullmatch(name)]
    if bad:
        expected = "DNS-1123 names: lower-case letters and digits, with '-' and '.' between them"
        todo = "Use the names that 'kubectl get' prints."
        raise GeometryError(what, expected, f"{len(bad)} of {len(names)} others: {examples(bad)}", todo)
