"""Files for the MIG manager of the GPU operator and for mig-parted.

The MIG manager repartitions GPUs when a node label names a configuration of the ConfigMap. It does not cordon, drain or
wait for jobs; the change script does, and people run it.

mig-parted takes profile counts per device, without placements or an order. Each state is proved to fit before it is
written.
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
from gpuplanner.report.change_bundle_parts import (
    GPU_OPERATOR_NAMESPACE,
    KUBERNETES_NAME_PATTERN,
    MIG_CONFIG_MAP_NAME,
    render_change_script,
)
from gpuplanner.simulator.scheduling_rules import Drain

ALL_DISABLED_CONFIG = "all-disabled"
"""Name of the configuration without MIG, which is the initial node label of the GPU operator."""


def to_mig_parted(plan: pl.DataFrame, gpu_model: GpuModel | str, *, at: datetime | None = None) -> str:
    """Render the node states of a plan as a mig-parted file.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        GPU model of all nodes.
    at : datetime, optional
        Only the states at this time (with its zone); the nodes are then named in comments. None: all states of the
        plan.

    Returns
    -------
    str
        YAML, ``version: v1``. Configurations are sorted by name; the same state has the same name in every plan. There
        is always ``all-disabled``, the label that the operator sets, so that the first change can be rolled back.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or has no interval at this time.
    GeometryError
        If a layout cannot be placed on the GPU model.

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
            known_state, nodes = configs.setdefault(state.config_name, (state, []))
            assert known_state.gpus == state.gpus, "two states share a digest"
            if node not in nodes:
                nodes.append(node)
    lines = [
        f"# MIG configs for {gpu_model.name}, one per distinct state of a node.",
        f"# Check with: gpuplanner verify FILE --gpu-model {gpu_model.name}",
        "version: v1",
        "mig-configs:",
        f"  {json.dumps(ALL_DISABLED_CONFIG)}:",
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


CONFIG_MAP_DATA_KEY = "config.yaml"
"""Key of a ConfigMap under which the MIG manager finds its configuration."""

MAX_CONFIG_MAP_BYTES = 1_000_000
"""Largest text in one ConfigMap [bytes]; Kubernetes refuses more than 1 MiB."""

_DNS_NAME_PATTERN = re.compile(rf"{KUBERNETES_NAME_PATTERN.pattern}(?:\.{KUBERNETES_NAME_PATTERN.pattern})*")
"""Names that Kubernetes allows for nodes."""
_MAX_KUBERNETES_NAME_CHARACTERS = 253
"""Maximum characters of a Kubernetes name."""


def to_config_map(plan: pl.DataFrame, gpu_model: GpuModel | str, *, at: datetime | None = None) -> str:
    """Render the node states of a plan as the ConfigMap that the MIG manager reads.

    Apply it with ``kubectl apply -f``, then name it in the ClusterPolicy: ``spec.migManager.config.name``.

    Parameters
    ----------
    plan, gpu_model, at
        As for :func:`~gpuplanner.report.mig_manager_files.to_mig_parted`.

    Returns
    -------
    str
        YAML with the mig-parted configuration under the data key ``config.yaml``.

    Raises
    ------
    SchemaError, GeometryError
        As ``to_mig_parted``.
    OutputError
        If the text is larger than a ConfigMap may be.
    """
    text = to_mig_parted(plan, gpu_model, at=at)
    if len(text.encode()) > MAX_CONFIG_MAP_BYTES:
        expected = f"at most {MAX_CONFIG_MAP_BYTES} bytes, which is what Kubernetes stores"
        todo = "Export one time of the plan at a time: add --at."
        raise OutputError("ConfigMap", expected, f"{len(text.encode())} bytes", todo)
    body = "".join(f"    {line}\n" for line in text.splitlines())
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {MIG_CONFIG_MAP_NAME}\n"
        f"  namespace: {GPU_OPERATOR_NAMESPACE}\ndata:\n  {CONFIG_MAP_DATA_KEY}: |\n{body}"
    )


def to_change_scripts(
    plan: pl.DataFrame, gpu_model: GpuModel | str, *, change: ChangeCost | None = None, drain: Drain | None = None,
    initial: pl.DataFrame | None = None,
) -> dict[str, str]:  # fmt: skip
    """Render a script for each layout change; equal changes share one.

    For each node, a script cordons, waits for GPU processes to end, drains, labels, waits for the MIG manager, compares
    the resources of the node with the plan, and uncordons; at the timeout it gives up. Its verb ``rollback`` restores
    the earlier label.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        GPU model of all nodes.
    change : ChangeCost, optional
        Duration of a change; None: with the GPU operator, from the catalogue.
    drain, initial
        As for :func:`~gpuplanner.report.change_bundle_parts.change_index`.

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
        If a layout cannot be placed on the GPU model, or Kubernetes does not allow the name of a node.
    """
    gpu_model = as_gpu_model(gpu_model)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    _check_names(frame["node"].unique().sort().to_list())
    scripts: dict[str, str] = {}
    limit_s = cost.drain_s.high if drain is None else drain.limit_s
    for layout_change in list_layout_changes(frame, limit_s, node_states_of_table(initial)):
        drains_gpus = drain is not None and drain.scope == "gpu"
        step = functools.partial(_gpu_script_lines, cost=cost) if drains_gpus else _node_script_line
        steps = "\n".join(step(node, *states) for node, states in layout_change.nodes.items())
        parts = {"CONFIG_MAP": MIG_CONFIG_MAP_NAME, "NAMESPACE": GPU_OPERATOR_NAMESPACE, "STEPS": steps}
        scripts[f"{layout_change.name}.sh"] = render_change_script(
            "change_gpu.sh" if drains_gpus else "change.sh", layout_change, cost, gpu_model, parts
        )
    return scripts


def resource_name(profile: str) -> str:
    """Return the name of the Kubernetes resource of a full GPU or MIG instance under the MIG strategy ``mixed``."""
    return "nvidia.com/gpu" if profile == FULL_GPU else f"nvidia.com/mig-{profile.replace('+', '.')}"


def allocatable_resources(node_state: NodeState) -> dict[str, int]:
    """Count the resources that a node offers in a state under the MIG strategy ``mixed``, by name.

    Examples
    --------
    >>> allocatable_resources(NodeState(((0, "1g.10gb+me:1,1g.10gb:6"), (1, "gpu"))))
    {'nvidia.com/gpu': 1, 'nvidia.com/mig-1g.10gb': 6, 'nvidia.com/mig-1g.10gb.me': 1}
    """
    return dict(sorted((resource_name(profile), count) for profile, count in node_state.totals.items()))


def _node_script_line(node: str, state_before: NodeState | None, state_after: NodeState) -> str:
    """Write the line of a change script that states a node's MIG configuration, resources and number of GPUs."""
    config = f"config[{node}]={shlex.quote(state_after.config_name)}"
    return f"{config} {_expected_resources(node, state_after)} size[{node}]={len(state_after.gpus)}"


def _gpu_script_lines(node: str, state_before: NodeState | None, state_after: NodeState, *, cost: ChangeCost) -> str:
    """Write the lines of a change script that state the MIG placements of each changed GPU; present instances stay."""
    layout_before = dict(state_before.gpus) if state_before else {}
    lines = []
    for gpu, layout in state_after.gpus:
        if layout_before.get(gpu) != layout:
            change = cost.change(layout_before.get(gpu, FULL_GPU), layout)
            places = sorted(change.kept + change.created)
            lines.append(f"target[{node}/{gpu}]={shlex.quote(' '.join(map(str, places)) or 'full')}")
    return "\n".join([*lines, _expected_resources(node, state_after)])


def _expected_resources(node: str, node_state: NodeState) -> str:
    """Write the words of a change script that state which resources a node must offer after the change."""
    counts = " ".join(f"{resource}={count}" for resource, count in allocatable_resources(node_state).items())
    return f"offers[{node}]={shlex.quote(counts)}"


def _check_names(names: list[str]) -> None:
    """Raise ``GeometryError`` if Kubernetes does not allow one of the names of nodes."""
    invalid = [
        name for name in names if len(name) > _MAX_KUBERNETES_NAME_CHARACTERS or not _DNS_NAME_PATTERN.fullmatch(name)
    ]
    if invalid:
        expected = "DNS-1123 names: lower-case letters and digits, with '-' and '.' between them"
        todo = "Use the names that 'kubectl get' prints."
        got = f"{len(invalid)} of {len(names)} others: {examples(invalid)}"
        raise GeometryError("layout plan: node names", expected, got, todo)
