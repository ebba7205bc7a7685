"""Parts of a change bundle: templates, scripts, the bundle itself and its index of layout changes."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import SECONDS_PER_MINUTE, count_text
from gpuplanner.decision.decision_text import format_layout_text, format_node_list
from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout, prove
from gpuplanner.hardware.repartitioning_cost import ChangeCost, GpuLayoutChange, TimeRange
from gpuplanner.planner.layout_plan import (
    REHEARSAL_COLUMNS,
    LayoutChange,
    NodeState,
    check_layout_plan,
    format_utc,
    list_layout_changes,
    node_states_of_table,
)
from gpuplanner.simulator.scheduling_rules import Drain

SHARED_SCRIPT_PARTS = {"COMMON": "common.sh", "FAIL": "fail.sh", "KUBERNETES": "kubernetes.sh"}
"""Shell files that several scripts include, by the placeholder that they replace."""


def change_note(cost: ChangeCost, node: str, old_state: NodeState | None, new_state: NodeState) -> str:
    """Describe the layout change of one node as comment lines of a script: old and new layouts, duration, reboot."""
    lines = [f"# {node}: {old_state.config_name if old_state else 'present layout'} -> {new_state.config_name}"]
    layout_before: Mapping[int, str] = dict(old_state.gpus) if old_state else {}
    changes: list[GpuLayoutChange] = []
    for gpu, layout in new_state.gpus:
        if gpu not in layout_before:
            lines.append(f"#   GPU {gpu}: {layout}")
        elif layout_before[gpu] != layout:
            lines.append(f"#   GPU {gpu}: {layout_before[gpu]} -> {layout}")
            changes.append(cost.change(layout_before[gpu], layout))
    if changes:
        switched = sum(change.mode_change for change in changes)
        mode = f", MIG mode changed on {count_text(switched, 'GPU')}" if switched else ""
        longest = max(changes, key=lambda change: change.seconds)
        reboot = "; where the reset of a GPU fails, the node needs a reboot" * longest.reboot
        lines.append(
            f"#   {sum(len(change.destroyed) for change in changes)} instances deleted, "
            f"{sum(len(change.created) for change in changes)} created{mode}; "
            f"{TimeRange(longest.seconds, longest.low_s, longest.high_s, '').describe_time()} by {longest.actuator}, "
            f"without the drain{reboot}"
        )
    return "\n".join(lines)


def render_change_script(
    template: str, layout_change: LayoutChange, cost: ChangeCost, gpu_model: GpuModel, parts: Mapping[str, str]
) -> str:
    """Render the shell script that carries out a layout change, from a template shipped with the package.

    Parameters
    ----------
    template : str
        File name of the template in ``report/bundle``.
    layout_change : LayoutChange
        Nodes that change at the same time, with their states before and after.
    cost : ChangeCost
        Duration of a change.
    gpu_model : GpuModel
        GPU model of the nodes.
    parts : mapping of str to str
        Values of further ``@NAME@`` placeholders, by name.

    Returns
    -------
    str
        Bash script.
    """
    notes = "\n".join(change_note(cost, node, *states) for node, states in layout_change.nodes.items())
    values = {
        "TIME": layout_change.times_text,
        "TIMES": " ".join(map(format_utc, layout_change.times)),
        "NAME": layout_change.name,
        "GPU_MODEL": gpu_model.name,
        "NODES": " ".join(layout_change.nodes),
        "NOTES": notes,
        "TIMEOUT_S": format_timeout_s(layout_change.limit_s),
        "REPARTITION_S": f"{_repartition_timeout_s(cost):.0f}",
    }
    return fill_shipped_file(template, values | dict(parts))


def fill_shipped_file(name: str, values: Mapping[str, str]) -> str:
    """Read a file of ``report/bundle``; fill in its ``@NAME@`` placeholders and :data:`SHARED_SCRIPT_PARTS`."""
    shared = {word: read_template(part) for word, part in SHARED_SCRIPT_PARTS.items()}
    return replace_placeholders(read_template(name), {**shared, **values})


def replace_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder ``@NAME@`` of a text by its value."""
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def read_readme_texts() -> dict[str, str]:
    """Read the text blocks of a bundle's README by heading, such as ``preflight``, or ``preflight slurm``."""
    return dict(block.split("\n", 1) for block in read_template("templates/texts.md").split("\n# ")[1:])


def read_template(name: str) -> str:
    """Read a script or template of the package folder ``report/bundle``."""
    return (resources.files(__package__) / "bundle" / name).read_text(encoding="utf-8")


def _repartition_timeout_s(cost: ChangeCost) -> float:
    """Compute how long a script waits for a drained node to be repartitioned [s]: twice the longest duration."""
    profiles = () if cost.gpu_model is None else cost.gpu_model.profiles
    max_instances = 2 * max((profile.max_instances for profile in profiles), default=0)
    reboot_s = 0.0 if cost.reboot_s is None else cost.reboot_s.high
    return math.ceil(2 * max(cost.change_s.high + max_instances * cost.instance_s.high, reboot_s, SECONDS_PER_MINUTE))


def format_timeout_s(limit_s: float | None) -> str:
    """Format the drain timeout of a script [s]; without a limit, it is 2**31."""
    return f"{2**31 if limit_s is None else limit_s:.0f}"


KUBERNETES_NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Names of Deployments, teams, cohorts and namespaces that Kubernetes allows."""
MIG_CONFIG_MAP_NAME = "gpuplanner-mig-config"
"""Name of the ConfigMap with the MIG configurations."""
GPU_OPERATOR_NAMESPACE = "gpu-operator"
"""Kubernetes namespace of the NVIDIA GPU operator."""
CHECKSUMS_FILE = "SHA256SUMS"
"""File of a bundle with the SHA-256 of its other files."""
CLUSTER_POLICY_PURPOSE = "points the ClusterPolicy at the ConfigMap, for all nodes; saves the previous settings"
"""Purpose of ``policy.sh``, as the README of a bundle states it."""


@dataclass(frozen=True)
class FileStep:
    """A file of a change bundle with the commands that apply, verify and undo it; the README lists them in order.

    - ``file``: Path in the bundle.
    - ``purpose``: What the file is for, as the README lists it.
    - ``do``, ``check``, ``undo``: Commands that apply it, verify it and roll it back.
    - ``action``: Action of the measure that it carries out alone; empty: it is one of the files of a fleet change.
    """

    file: str
    purpose: str
    do: str = ""
    check: str = ""
    undo: str = ""
    action: str = ""

    @classmethod
    def script(cls, file: str, purpose: str) -> FileStep:
        """Make the step of a shell script that takes the arguments ``apply``, ``verify`` and ``rollback``."""
        return cls(file, purpose, *(f"bash {file} {verb}" for verb in ("apply", "verify", "rollback")))

    @classmethod
    def manifest(cls, file: str, purpose: str) -> FileStep:
        """Make the step of a YAML file of Kubernetes objects, with ``kubectl apply`` and ``kubectl delete``."""
        return cls(file, purpose, *(f"kubectl {verb} -f {file}" for verb in ("apply", "get", "delete")))


@dataclass(frozen=True)
class MeasureText:
    """A measure of the decision as the README shows it.

    - ``action``, ``text``: Action and its description.
    - ``condition``: What must be in effect before.
    - ``steps``: Instructions and commands where no file carries it out.
    """

    action: str
    text: str
    condition: str = ""
    steps: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class PageText:
    """Texts of the README about the decision.

    - ``sentence``, ``policy``: Decision and policy.
    - ``reasons``: Lines of the change ticket: reason, effect on waits, cost.
    - ``measures``: Measures in order.
    - ``command``, ``data``: Command that writes the bundle, and its dataset.
    - ``emptying``: How long the nodes would have taken to drain in the record, as text; empty if not known.
    - ``risk``: Queue waits that rise in resampled weeks, to be agreed on; empty if none.
    - ``caution``: Why the actuator may be the wrong one; empty if it fits the data.
    - ``new_pools``: Nodes to buy, those with the same layouts together.
    """

    sentence: str
    policy: str
    reasons: Sequence[str] = ()
    measures: Sequence[MeasureText] = ()
    command: str = "gpuplanner export"
    data: str = "DATA"
    emptying: str = ""
    risk: str = ""
    caution: str = ""
    new_pools: Sequence[PoolRule] = ()


@dataclass
class Bundle:
    """A change bundle: its files, the steps that use them and what is missing.

    - ``files``: Text by path in the bundle.
    - ``steps``: Commands that use the files, in order.
    - ``warnings``: What is missing, and why.
    - ``manual_measures``: Actions that no file carries out.
    """

    files: dict[str, str] = field(default_factory=dict)
    steps: list[FileStep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    manual_measures: list[str] = field(default_factory=list)

    def add(self, text: str, step: FileStep) -> None:
        """Add a file and the step that uses it."""
        self.files[step.file] = text
        self.steps.append(step)

    def write(self, folder: Path) -> None:
        """Write the files and their checksums into a folder."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        hashes = (f"{sha256(text.encode()).hexdigest()}  {name}\n" for name, text in self.files.items())
        (folder / CHECKSUMS_FILE).write_text("".join(hashes), encoding="utf-8")


@dataclass(kw_only=True)
class FleetBundle(Bundle):
    """Change bundle of a fleet, with the inputs of its files.

    - ``rules``: Target fleet: pools, nodes, policy and actuator.
    - ``gpu_model``: GPU model of the fleet.
    - ``change``: Duration of a layout change.
    - ``drain``: How nodes are drained.
    - ``gres_type``: GRES types of the nodes in Slurm, or that of a full GPU; None: as slurmd detects.
    """

    rules: FleetRules
    gpu_model: GpuModel
    change: ChangeCost
    drain: Drain
    gres_type: Any = None  # GresTypes of slurm_files, which imports this module, or a text

    @functools.cached_property
    def index(self) -> pl.DataFrame:
        """Layout changes by node and GPU."""
        return change_index(self.rules.layout_plan(), self.gpu_model, change=self.change, drain=self.drain)

    @property
    def release_instruction(self) -> str:
        """Instruction for nodes that are not needed: rented ones are returned."""
        returned = "return them (delete the node or instance)"
        unreturned = f"power them down or use them for other work; if they are rented, {returned}"
        return returned if self.rules.returned else unreturned

    @property
    def mig_parted_path(self) -> str:
        """Path of mig-parted.yaml on Slurm nodes, new for each bundle: a unit may read an earlier one at boot."""
        return f"/etc/gpuplanner-mig-parted-{self.index['change'][0].removeprefix('change-')}.yaml"

    def path_of(self, name: str) -> str:
        """Return the path of a file in the bundle, such as ``slurm/change.sh``: the actuator is its folder."""
        return f"{self.rules.actuator}/{name}"

    def script(self, template: str, **values: str) -> str:
        """Fill a template of ``report/bundle/templates`` with the values of this fleet and the given ones."""
        known_values = {
            "NAME": self.rules.policy,
            "CONFIG_MAP": MIG_CONFIG_MAP_NAME, "NAMESPACE": GPU_OPERATOR_NAMESPACE, "GPU_MODEL": self.gpu_model.name,
            "TIMEOUT_S": format_timeout_s(self.drain.limit_s),
            "AFTERWARDS": f"Once they are empty, {self.release_instruction}: the saving depends on it; "
                          "no script does it.",
            **values,
        }  # fmt: skip
        return fill_template(template, known_values)

    def add_script(self, template: str, purpose: str, name: str | None = None) -> None:
        """Add a script with the verbs ``apply``, ``verify`` and ``rollback``, named `name` or as its template."""
        self.add(self.script(template), FileStep.script(self.path_of(name or template), purpose))


def read_controller_facts() -> dict[str, str]:
    """Read the facts on controllers in the catalogue, such as the chart of the DRA driver, ``dra.chart``."""
    rows = facts("controllers").select("controller", "fact", "value").iter_rows()
    return {f"{controller}.{fact}": value for controller, fact, value in rows}


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a template; one such as ``@slurm.resume_headroom@`` is a fact of the catalogue.

    Examples
    --------
    >>> fill_template("buffer.yaml", {"POOL": "mig", "LIMITS": "", "KEPT": "1"}).splitlines()[22]
    'apiVersion: autoscaling.x-k8s.io/v1beta1'
    """
    return fill_shipped_file(f"templates/{template}", {**read_controller_facts(), **values})


def add_release_files(
    bundle: FleetBundle, nodes: Sequence[str], purpose: str, guard: Callable[[str], str] = str
) -> None:
    """Add the files that release nodes: ``released.txt`` with their names, and ``release.sh``, which drains them.

    Parameters
    ----------
    bundle : FleetBundle
        Bundle to add to.
    nodes : sequence of str
        Nodes to release; nothing is added if it is empty.
    purpose : str
        What the script does, for the README.
    guard : callable
        Returns the apply command wrapped in a shell condition; default: the command itself.
    """
    if nodes:
        script = "release_slurm.sh" if bundle.rules.actuator == "slurm" else "release.sh"
        bundle.files[bundle.path_of("released.txt")] = join_lines(nodes)
        step = FileStep.script(bundle.path_of("release.sh"), purpose)
        action = "release" if nodes is bundle.rules.released else ""
        bundle.add(bundle.script(script), replace(step, do=guard(step.do), action=action))


def join_lines(words: Sequence[str]) -> str:
    """Join names into a text with one name on each line."""
    return "".join(f"{word}\n" for word in words)


CHANGE_INDEX_SCHEMA: dict[str, Any] = {
    "change": pl.String,
    "planned": pl.Datetime("us", "UTC"),
    "node": pl.String,
    "gpu": pl.Int32,
    "gpus": pl.Int32,
    "before": pl.String,
    "after": pl.String,
    "untouched": pl.String,
    "reserve_from": pl.Datetime("us", "UTC"),
    "give_up_at": pl.Datetime("us", "UTC"),
    "instances_removed": pl.Int32,
}
"""Columns of :func:`change_index` before the simulated drain times. ``untouched``: GPUs of a node that keep their
layout; where whole nodes are drained, jobs on these GPUs have to end too."""


def change_index(
    plan: pl.DataFrame, gpu_model: GpuModel | str, *, change: ChangeCost | None = None, drain: Drain | None = None,
    expected: pl.DataFrame | None = None, initial: pl.DataFrame | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Tabulate the layout changes of a plan, a row for each node, or for each GPU where single GPUs are drained.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        GPU model of all nodes.
    change : ChangeCost, optional
        How changes are made; None: by the operator, as the catalogue has it.
    drain : Drain, optional
        How nodes or GPUs are drained; None: whole nodes, with the time limit of `change`.
    expected : polars.DataFrame, optional
        Simulated drain of each change: ``planned`` (its time), ``node``, ``gpu`` and :data:`REHEARSAL_COLUMNS`.
    initial : polars.DataFrame, optional
        Layouts before the plan begins: ``node``, ``gpu``, ``layout``.

    Returns
    -------
    polars.DataFrame
        Columns of :data:`CHANGE_INDEX_SCHEMA` and :data:`REHEARSAL_COLUMNS`, by time, node and GPU. ``change`` names
        the files. ``before`` is empty, and ``instances_removed`` null, where nothing is known of the time before; null
        ``give_up_at``: never.

    Raises
    ------
    SchemaError, GeometryError
        If the table is not a layout plan, or a layout cannot be placed on the GPU model.
    """
    gpu_model = as_gpu_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    drain = Drain(limit_s=cost.drain_s.high) if drain is None else drain
    flagged = set(frame.filter("changed").select("node", "slot_start", "gpu").iter_rows())
    rows: list[dict[str, Any]] = []
    for layout_change in list_layout_changes(frame, drain.limit_s, node_states_of_table(initial)):
        for node, (before, after) in layout_change.nodes.items():
            layout_before = dict(before.gpus) if before else {}
            for time in layout_change.times:
                changed_gpus = [
                    (gpu, layout_before.get(gpu), layout)
                    for gpu, layout in after.gpus
                    if (layout_before.get(gpu) != layout if before else (node, time, gpu) in flagged)
                ]
                unchanged = [pair for pair in after.gpus if pair[0] not in {gpu for gpu, *_ in changed_gpus}]
                whole_node = drain.scope == "node"
                for unit in [None] if whole_node else [gpu for gpu, _, _ in changed_gpus]:
                    gpus = changed_gpus if unit is None else [row for row in changed_gpus if row[0] == unit]
                    row = {"change": layout_change.name, "planned": time, "node": node, "gpu": unit}
                    row["untouched"] = _format_layouts(unchanged) if whole_node else ""
                    if layout_change.limit_s is not None:
                        row["give_up_at"] = time + timedelta(seconds=layout_change.limit_s)
                    rows.append(row | _layout_cells(gpus, cost))
    # A reservation begins no earlier than the change before it.
    earliest = pl.col("planned") - timedelta(seconds=drain.ahead_s)
    last = pl.col("planned").shift().over("node", "gpu", order_by="planned")
    index = pl.DataFrame(rows, schema=CHANGE_INDEX_SCHEMA).with_columns(reserve_from=pl.max_horizontal(earliest, last))
    index = index.sort("planned", "node", "gpu")
    if expected is None:
        return index.with_columns(pl.lit(None, kind).alias(name) for name, kind in REHEARSAL_COLUMNS.items())
    rehearsed = expected.select("planned", "node", "gpu", *REHEARSAL_COLUMNS)
    return index.join(rehearsed, on=["planned", "node", "gpu"], how="left", nulls_equal=True, maintain_order="left")


def to_index_text(index: pl.DataFrame, gpu_model: GpuModel | str, change: ChangeCost, actuator: str = "") -> str:
    """Render the layout changes as a Markdown table, one row for each node or GPU.

    Drain times are left out if they were not simulated.

    Parameters
    ----------
    index : polars.DataFrame
        From :func:`change_index`.
    gpu_model : GpuModel or str
        GPU model of the nodes.
    change : ChangeCost
        Duration of a change.
    actuator : str
        Actuator that makes all changes once, without planned times; empty: changes of a schedule, with their times.

    Returns
    -------
    str
        Markdown.
    """
    by_gpu = index["gpu"].null_count() < index.height
    blocks = read_readme_texts()
    actuators = [actuator] if actuator else ["nvidia-smi" if by_gpu else "mig-manager", "slurm"]
    orders = {name: blocks.get(f"changes {name}", blocks["changes"]).strip() for name in actuators}
    rows = [_index_cells(row, change, dated=not actuator) for row in index.iter_rows(named=True)]
    heads = [name for name in (rows or [{}])[0] if any(row[name] for row in rows)]
    lines = [heads, ["---"] * len(heads), *([row[name] for name in heads] for row in rows)]
    changed = count_text(index.height, "GPU" if by_gpu else "node")
    count = f"{changed} change{'s' * (index.height == 1)}" if actuator else count_text(index.height, "layout change")
    values = {
        "GPU_MODEL": as_gpu_model(gpu_model).name, "COUNT": count,
        "TOGETHER": "" if actuator else "; what changes at the same time has one script",
        "FILES": count_text(index["change"].n_unique(), "script"), "DURATION": describe_duration(index, change),
        "DRAIN": " *Drain* is the simulated time until a node or GPU is empty." * ("drain, median (p95)" in heads),
        "ROWS": "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "ORDER": "\n\n".join(f"{name}: " * (len(orders) > 1) + text for name, text in orders.items()),
    }  # fmt: skip
    return fill_shipped_file("templates/changes.md", values)


def describe_duration(changes: pl.DataFrame, change_cost: ChangeCost) -> str:
    """Describe how long each layout change of a table of :func:`change_index` takes; one of MIG mode takes longer."""
    # A drained node is out of service once for all its GPUs.
    operation = "node, all its GPUs together" if changes["gpu"].null_count() == changes.height else "GPU"
    no_mode_change = replace(change_cost, reboot_s=None).describe_time().replace("layout change", operation)
    switched = find_mode_change_nodes(changes)
    if change_cost.reboot_s is None or not switched:
        return no_mode_change
    mode_change = f"{change_cost.reboot_s.describe_time()} on {format_node_list(switched)}, where MIG mode changes"
    everywhere = all(switches for _, switches, _ in _iterate_gpu_changes(changes))
    return mode_change if everywhere else f"{no_mode_change}, or {mode_change}"


def find_mode_change_nodes(index: pl.DataFrame) -> list[str]:
    """Find the nodes on which the MIG mode of a GPU changes; a GPU of unknown present layout counts as full."""
    return list(dict.fromkeys(node for node, switches, _ in _iterate_gpu_changes(index) if switches))


def describe_unused_slices(index: pl.DataFrame, gpu_model: GpuModel) -> str:
    """Name the largest MIG instance that still fits beside each new layout; empty text if none fits."""
    profiles = sorted(gpu_model.profiles, key=lambda profile: profile.size_order, reverse=True)
    names = [profile.name for profile in profiles if not {"+", "-"} & {*profile.name}]
    texts = []
    for layout in sorted({after for _, _, after in _iterate_gpu_changes(index) if after != FULL_GPU}):
        fitting = [name for name in names if prove(gpu_model, Counter(parse_layout(layout)) + Counter([name]))]
        texts += [f"{format_layout_text(layout)} leaves slices for {name}" for name in fitting[:1]]
    return "; ".join(texts)


def _iterate_gpu_changes(index: pl.DataFrame) -> Iterator[tuple[str, bool, str]]:
    """Yield the node of each GPU that changes, whether its MIG mode changes, and its new layout."""
    for row in index.iter_rows(named=True):
        before, after = _parse_row_layouts(row)
        for gpu, layout in after.items():
            yield row["node"], (before.get(gpu, FULL_GPU) == FULL_GPU) != (layout == FULL_GPU), layout


def _parse_row_layouts(row: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Parse the layouts in a row of :func:`change_index`: GPU to layout, before and after the change."""
    before, after = (dict(word.split("=") for word in row[name].split()) for name in ("before", "after"))
    return before, after


def _index_cells(row: dict[str, Any], change: ChangeCost, *, dated: bool) -> dict[str, str]:
    """Format a row of :func:`change_index` by column heading; if `dated`, also planned time, timeout and file."""
    before, after = _parse_row_layouts(row)
    changes = [change.change(before[gpu], layout) for gpu, layout in after.items() if gpu in before]
    counts = [sum(len(item.destroyed) for item in changes), sum(len(item.created) for item in changes)]
    deleted, created = map(str, counts) if len(changes) == len(after) else ("not known", "not known")
    median, p95 = row["drain_median_minutes"], row["drain_p95_minutes"]
    cells = {
        "node": row["node"] if row["gpu"] is None else f"{row['node']} GPU {row['gpu']}",
        "layouts, by GPU": f"{_group_gpus(row['before']) or 'present layout'} → {_group_gpus(row['after'])}",
        "unchanged": _group_gpus(row["untouched"]),
        "MIG instances deleted": deleted,
        "MIG instances created": created,
        "drain, median (p95)": "" if median is None else f"{median:.0f} ({p95:.0f}) min",
    }
    if dated:
        ends = "never" if row["give_up_at"] is None else format_utc(row["give_up_at"])
        cells = {"planned (UTC)": format_utc(row["planned"]), **cells, "timeout (UTC)": ends, "file": row["change"]}
    return cells


def _group_gpus(layouts: str) -> str:
    """Turn ``0=7g.80gb:1 1=7g.80gb:1`` into ``0,1: 7g.80gb:1``: the GPUs of each layout together."""
    by_layout: dict[str, list[str]] = {}
    for word in layouts.split():
        gpu, _, layout = word.partition("=")
        by_layout.setdefault(layout, []).append(gpu)
    return "; ".join(f"{','.join(gpus)}: {layout}" for layout, gpus in by_layout.items())


def _layout_cells(gpus: list[tuple[int, str | None, str]], cost: ChangeCost) -> dict[str, Any]:
    """Make the columns on GPUs of :func:`change_index`: number, layouts before and after, instances removed."""
    known_before = [(gpu, old, new) for gpu, old, new in gpus if old is not None]
    return {
        "gpus": len(gpus),
        "before": _format_layouts((gpu, old) for gpu, old, _ in known_before),
        "after": _format_layouts((gpu, new) for gpu, _, new in gpus),
        "instances_removed": sum(cost.change(old, new).drained_units for _, old, new in known_before)
        if len(known_before) == len(gpus)
        else None,
    }


def _format_layouts(layouts: Iterable[tuple[int, str]]) -> str:
    """Format GPUs with their layouts as a text such as ``0=7g.80gb:1 1=gpu``."""
    return " ".join(f"{gpu}={layout}" for gpu, layout in layouts)
