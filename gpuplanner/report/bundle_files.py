"""Files of a change bundle and its index."""

from __future__ import annotations

import functools
import math
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
from gpuplanner.core.units import SECONDS_PER_MINUTE, count_text
from gpuplanner.decision.decision_text import format_layout_text, format_node_list
from gpuplanner.decision.policy_fleets import FleetRules
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

SHARED_PARTS = {"COMMON": "common.sh", "FAIL": "fail.sh", "KUBERNETES": "kubernetes.sh"}
"""Files that several scripts hold, by their word between at-signs."""


def change_note(cost: ChangeCost, node: str, before: NodeState | None, after: NodeState) -> str:
    """Comment lines on one node: what changes and what it costs."""
    lines = [f"# {node}: {before.config_name if before else 'present layout'} -> {after.config_name}"]
    was: Mapping[int, str] = dict(before.gpus) if before else {}
    changes: list[GpuLayoutChange] = []
    for gpu, layout in after.gpus:
        if gpu not in was:
            lines.append(f"#   GPU {gpu}: {layout}")
        elif was[gpu] != layout:
            lines.append(f"#   GPU {gpu}: {was[gpu]} -> {layout}")
            changes.append(cost.change(was[gpu], layout))
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


def change_script(
    template: str, one: LayoutChange, cost: ChangeCost, gpu_model: GpuModel, parts: Mapping[str, str]
) -> str:
    """A shipped script with what it needs to know of a change: times, board, nodes, notes, how long it waits."""
    notes = "\n".join(change_note(cost, node, *states) for node, states in one.nodes.items())
    known = {
        "TIME": one.times_text,
        "TIMES": " ".join(map(format_utc, one.times)),
        "NAME": one.name,
        "GPU_MODEL": gpu_model.name,
        "NODES": " ".join(one.nodes),
        "NOTES": notes,
        "TIMEOUT_S": timeout_s(one.limit_s),
        "REPARTITION_S": f"{_slowest_s(cost):.0f}",
    }
    return filled_template(template, known | dict(parts))


def filled_template(name: str, values: Mapping[str, str]) -> str:
    """A shipped file with the parts that several scripts share, and its words between at-signs replaced."""
    shared = {word: template_text(part) for word, part in SHARED_PARTS.items()}
    return replaced(template_text(name), {**shared, **values})


def replaced(text: str, values: Mapping[str, str]) -> str:
    """A text with its words between at-signs replaced."""
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def text_blocks() -> dict[str, str]:
    """Texts of the pages of a change bundle by name, and by name and actuator."""
    return dict(block.split("\n", 1) for block in template_text("templates/texts.md").split("\n# ")[1:])


def template_text(name: str) -> str:
    """A shipped script or template as text."""
    return (resources.files(__package__) / "bundle" / name).read_text(encoding="utf-8")


def _slowest_s(cost: ChangeCost) -> float:
    """How long to wait for an empty node to be repartitioned [s]: twice the time where all is slow."""
    profiles = () if cost.gpu_model is None else cost.gpu_model.profiles
    most = 2 * max((profile.max_instances for profile in profiles), default=0)
    reboot_s = 0.0 if cost.reboot_s is None else cost.reboot_s.high
    return math.ceil(2 * max(cost.change_s.high + most * cost.instance_s.high, reboot_s, SECONDS_PER_MINUTE))


def timeout_s(limit_s: float | None) -> str:
    """How long a script waits for a node to empty, as it is written there [s]."""
    return f"{2**31 if limit_s is None else limit_s:.0f}"


CONFIG_MAP, NAMESPACE, CHECKSUMS = "gpuplanner-mig-config", "gpu-operator", "SHA256SUMS"
POLICY_STEP = "points the ClusterPolicy at the ConfigMap, for all nodes; saves the previous settings"


@dataclass(frozen=True)
class Step:
    """A file in the order in which files are used, and the commands that use it, check it and take it back."""

    file: str
    what: str
    do: str = ""
    check: str = ""
    undo: str = ""
    action: str = ""
    """The measure that it carries out by itself; none: it is one of the files of a change of the fleet."""

    @classmethod
    def script(cls, file: str, what: str) -> Step:
        """A script with the three verbs that all have."""
        return cls(file, what, *(f"bash {file} {verb}" for verb in ("apply", "verify", "rollback")))

    @classmethod
    def manifest(cls, file: str, what: str) -> Step:
        """Objects that kubectl creates and deletes."""
        return cls(file, what, f"kubectl apply -f {file}", "", f"kubectl delete -f {file}")


@dataclass(frozen=True)
class MeasureWords:
    """A measure of the decision as the page shows it.

    - ``action``, ``text``: What it does.
    - ``condition``: What has to be in force, and seen, before.
    - ``steps``: What somebody does and types, where no file performs it.
    - ``bought_gpus``: GPUs that it adds.
    """

    action: str
    text: str
    condition: str = ""
    steps: Sequence[tuple[str, str | None]] = ()
    bought_gpus: int = 0


@dataclass(frozen=True)
class PageWords:
    """What the page says in words.

    - ``sentence``, ``policy``: The decision, and the way that was chosen.
    - ``measures``: What is to be done, in order.
    - ``command``, ``data``: What writes these files, and the data that it reads.
    - ``reasons``: Why, what happens to waits, and what it costs.
    - ``emptying``: How long the nodes needed to empty in the record; empty where it is not known.
    """

    sentence: str
    policy: str
    reasons: Sequence[str] = ()
    measures: Sequence[MeasureWords] = ()
    command: str = "gpuplanner export"
    data: str = "DATA"
    emptying: str = ""


@dataclass
class Pack:
    """Files by their place in the pack, what uses them, and what was left out.

    - ``files``: Text by place.
    - ``steps``: What uses them.
    - ``warnings``: What is missing, and why.
    - ``by_hand``: Measures that no file performs.
    """

    files: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)

    def add(self, text: str, step: Step) -> None:
        """Add a file with what uses it."""
        self.files[step.file] = text
        self.steps.append(step)

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        hashes = (f"{sha256(text.encode()).hexdigest()}  {name}\n" for name, text in self.files.items())
        (folder / CHECKSUMS).write_text("".join(hashes), encoding="utf-8")


@dataclass(kw_only=True)
class FleetPack(Pack):
    """The pack of a fleet with what its files are made from.

    - ``rules``: The fleet as it shall be run.
    - ``gpu_model``: Its board.
    - ``change``: What a change of layout costs.
    - ``drain``: How nodes are emptied.
    - ``gres_type``: Slurm's types of the nodes, or the type of a full GPU, where it is not what slurmd detects.
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
    def release_words(self) -> str:
        """What is done with nodes that are not needed."""
        return "return them to their provider" if self.rules.returned else "power them down"

    @property
    def mig_parted_path(self) -> str:
        """Place of mig-parted.yaml on nodes of Slurm: not that of an earlier bundle, which a unit may read at boot."""
        return f"/etc/gpuplanner-mig-parted-{self.index['change'][0].removeprefix('change-')}.yaml"

    def place(self, name: str) -> str:
        """Where a file of the path stands in the pack."""
        return f"{self.rules.actuator}/{name}"

    def script(self, template: str, **values: str) -> str:
        """A shipped script with what it needs to know."""
        known = {
            "NAME": self.rules.policy,
            "CONFIG_MAP": CONFIG_MAP, "NAMESPACE": NAMESPACE, "GPU_MODEL": self.gpu_model.name,
            "TIMEOUT_S": timeout_s(self.drain.limit_s),
            "AFTERWARDS": f"Once they are empty, {self.release_words}: the saving depends on it; no script does it.",
            **values,
        }  # fmt: skip
        return filled(template, known)

    def add_script(self, template: str, what: str, name: str | None = None) -> None:
        """Add a shipped script that has the three verbs, under its own name or another."""
        self.add(self.script(template), Step.script(self.place(name or template), what))


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its words between at-signs replaced; ``@controller.fact@`` by what the catalogue has.

    Examples
    --------
    >>> filled("buffer.yaml", {"POOL": "mig", "LIMITS": "", "KEPT": "1"}).splitlines()[22]
    'apiVersion: autoscaling.x-k8s.io/v1beta1'
    """
    rows = facts("controllers").select("controller", "fact", "value").iter_rows()
    known = {f"{controller}.{fact}": value for controller, fact, value in rows}
    return filled_template(f"templates/{template}", {**known, **values})


def add_release(pack: FleetPack, nodes: Sequence[str], what: str, guarded: Callable[[str], str] = str) -> None:
    """The nodes that are not needed, and the script that empties them; ``guarded`` says under which condition."""
    if nodes:
        script = "release_slurm.sh" if pack.rules.actuator == "slurm" else "release.sh"
        pack.files[pack.place("released.txt")] = lines_of(nodes)
        step = Step.script(pack.place("release.sh"), what)
        action = "release" if nodes is pack.rules.released else ""
        pack.add(pack.script(script), replace(step, do=guarded(step.do), action=action))


def lines_of(words: Sequence[str]) -> str:
    """A word a line."""
    return "".join(f"{word}\n" for word in words)


INDEX: dict[str, Any] = {
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
"""Columns of the index, before what was rehearsed. ``untouched``: GPUs of the node that its configuration names too and
leaves as they are; where nodes are emptied, their jobs have to end as well."""


def change_index(
    plan: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    change: ChangeCost | None = None,
    drain: Drain | None = None,
    expected: pl.DataFrame | None = None,
    initial: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """List the changes of a plan, one row for each node, or each GPU where these are emptied one by one.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        The board of all nodes.
    change : ChangeCost, optional
        How changes are made; None: by the operator, as the catalogue has it.
    drain : Drain, optional
        What is emptied, how long ahead, and what happens at the limit; None: whole nodes, as long as `change` waits.
    expected : polars.DataFrame, optional
        ``planned``, ``node``, ``gpu`` and the columns of :data:`REHEARSAL_COLUMNS`.
    initial : polars.DataFrame, optional
        How GPUs are cut before the plan begins: ``node``, ``gpu``, ``layout``.

    Returns
    -------
    polars.DataFrame
        The columns of :data:`INDEX` and :data:`REHEARSAL_COLUMNS`, by time, node and GPU. ``change`` names the files.
        ``before`` is empty, and ``instances_removed`` null, where nothing is known of the time before; null
        ``give_up_at``: never.

    Raises
    ------
    SchemaError, GeometryError
        If the table is not a layout plan, or a layout cannot be placed on the board.
    """
    gpu_model = as_gpu_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    drain = Drain(limit_s=cost.drain_s.high) if drain is None else drain
    flagged = set(frame.filter("changed").select("node", "slot_start", "gpu").iter_rows())
    rows: list[dict[str, Any]] = []
    for one in list_layout_changes(frame, drain.limit_s, node_states_of_table(initial)):
        for node, (before, after) in one.nodes.items():
            was = dict(before.gpus) if before else {}
            for time in one.times:
                recut = [
                    (gpu, was.get(gpu), layout)
                    for gpu, layout in after.gpus
                    if (was.get(gpu) != layout if before else (node, time, gpu) in flagged)
                ]
                left = [pair for pair in after.gpus if pair[0] not in {gpu for gpu, *_ in recut}]
                whole_node = drain.scope == "node"
                for unit in [None] if whole_node else [gpu for gpu, _, _ in recut]:
                    gpus = recut if unit is None else [row for row in recut if row[0] == unit]
                    row = {"change": one.name, "planned": time, "node": node, "gpu": unit}
                    row["untouched"] = _words(left) if whole_node else ""
                    if one.limit_s is not None:
                        row["give_up_at"] = time + timedelta(seconds=one.limit_s)
                    rows.append(row | _content(gpus, cost))
    # A reservation begins no earlier than the change before it.
    earliest = pl.col("planned") - timedelta(seconds=drain.ahead_s)
    last = pl.col("planned").shift().over("node", "gpu", order_by="planned")
    index = pl.DataFrame(rows, schema=INDEX).with_columns(reserve_from=pl.max_horizontal(earliest, last))
    index = index.sort("planned", "node", "gpu")
    if expected is None:
        return index.with_columns(pl.lit(None, kind).alias(name) for name, kind in REHEARSAL_COLUMNS.items())
    known = expected.select("planned", "node", "gpu", *REHEARSAL_COLUMNS)
    return index.join(known, on=["planned", "node", "gpu"], how="left", nulls_equal=True, maintain_order="left")


def to_index_text(index: pl.DataFrame, gpu_model: GpuModel | str, change: ChangeCost, actuator: str = "") -> str:
    """Print an index for people: a line for each change of a node or GPU, in Markdown.

    Of the one change of an actuator, or of a schedule, whose changes have times. Drain times only where they were
    simulated.
    """
    by_gpu = index["gpu"].null_count() < index.height
    blocks, actuators = text_blocks(), [actuator] if actuator else ["nvidia-smi" if by_gpu else "mig-manager", "slurm"]
    orders = {name: blocks.get(f"changes {name}", blocks["changes"]).strip() for name in actuators}
    rows = [_index_cells(row, change, dated=not actuator) for row in index.iter_rows(named=True)]
    heads = [name for name in (rows or [{}])[0] if any(row[name] for row in rows)]
    lines = [heads, ["---"] * len(heads), *([row[name] for name in heads] for row in rows)]
    values = {
        "GPU_MODEL": as_gpu_model(gpu_model).name, "COUNT": count_text(index.height, "change"),
        "FILES": count_text(index["change"].n_unique(), "script"), "DURATION": duration_words(index, change),
        "DRAIN": " *Drain* is the simulated time until a node or GPU is empty." * ("drain, median (p95)" in heads),
        "ROWS": "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "ORDER": "\n\n".join(f"{name}: " * (len(orders) > 1) + text for name, text in orders.items()),
    }  # fmt: skip
    return filled_template("templates/changes.md", values)


def duration_words(index: pl.DataFrame, change: ChangeCost) -> str:
    """How long the changes of an index take; the longer time of a changed MIG mode only for the nodes that have it."""
    no_mode_change, switched = replace(change, reboot_s=None).describe_time(), switched_nodes(index)
    if change.reboot_s is None or not switched:
        return no_mode_change
    mode_change = f"{change.reboot_s.describe_time()} on {format_node_list(switched)}, where MIG mode changes"
    everywhere = all(switches for _, switches, _ in _gpu_changes(index))
    return mode_change if everywhere else f"{no_mode_change}, or {mode_change}"


def switched_nodes(index: pl.DataFrame) -> list[str]:
    """Nodes on which the MIG mode of a GPU changes; a GPU whose present layout is not known counts as full."""
    return list(dict.fromkeys(node for node, switches, _ in _gpu_changes(index) if switches))


def unused_slices_text(index: pl.DataFrame, gpu_model: GpuModel) -> str:
    """The largest instance that fits on each new layout in addition; empty where none does."""
    profiles = sorted(gpu_model.profiles, key=lambda profile: profile.size_order, reverse=True)
    names = [profile.name for profile in profiles if not {"+", "-"} & {*profile.name}]
    fitting: dict[str, list[str]] = {}
    for layout in sorted({after for _, _, after in _gpu_changes(index) if after != FULL_GPU}):
        fitting[layout] = [name for name in names if prove(gpu_model, Counter(parse_layout(layout)) + Counter([name]))]
    return "; ".join(
        f"{format_layout_text(layout)} leaves slices for {fits[0]}" for layout, fits in fitting.items() if fits
    )


def _gpu_changes(index: pl.DataFrame) -> Iterator[tuple[str, bool, str]]:
    """Node of each GPU that changes, whether its MIG mode changes, and its new layout."""
    for row in index.iter_rows(named=True):
        before, after = _layouts(row)
        for gpu, layout in after.items():
            yield row["node"], (before.get(gpu, FULL_GPU) == FULL_GPU) != (layout == FULL_GPU), layout


def _layouts(row: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Layouts of the GPUs of a row before and after, by GPU."""
    before, after = (dict(word.split("=") for word in row[name].split()) for name in ("before", "after"))
    return before, after


def _index_cells(row: dict[str, Any], change: ChangeCost, *, dated: bool) -> dict[str, str]:
    """A row of the index by the heads of its columns; empty: none."""
    before, after = _layouts(row)
    known = [change.change(before[gpu], layout) for gpu, layout in after.items() if gpu in before]
    counts = [sum(len(one.destroyed) for one in known), sum(len(one.created) for one in known)]
    deleted, created = map(str, counts) if len(known) == len(after) else ("not known", "not known")
    median, late = row["drain_median_minutes"], row["drain_p95_minutes"]
    cells = {
        "node": row["node"] if row["gpu"] is None else f"{row['node']} GPU {row['gpu']}",
        "layouts, by GPU": f"{_grouped(row['before']) or 'present layout'} → {_grouped(row['after'])}",
        "unchanged": _grouped(row["untouched"]),
        "MIG instances deleted": deleted,
        "MIG instances created": created,
        "drain, median (p95)": "" if median is None else f"{median:.0f} ({late:.0f}) min",
    }
    if dated:
        ends = "never" if row["give_up_at"] is None else format_utc(row["give_up_at"])
        cells = {"planned (UTC)": format_utc(row["planned"]), **cells, "timeout (UTC)": ends, "file": row["change"]}
    return cells


def _grouped(layouts: str) -> str:
    """Name GPUs of one layout together."""
    by_layout: dict[str, list[str]] = {}
    for word in layouts.split():
        gpu, _, layout = word.partition("=")
        by_layout.setdefault(layout, []).append(gpu)
    return "; ".join(f"{','.join(gpus)}: {layout}" for layout, gpus in by_layout.items())


def _content(gpus: list[tuple[int, str | None, str]], cost: ChangeCost) -> dict[str, Any]:
    known = [(gpu, old, new) for gpu, old, new in gpus if old is not None]
    return {
        "gpus": len(gpus),
        "before": _words((gpu, old) for gpu, old, _ in known),
        "after": _words((gpu, new) for gpu, _, new in gpus),
        "instances_removed": sum(cost.change(old, new).drained_units for _, old, new in known)
        if len(known) == len(gpus)
        else None,
    }


def _words(layouts: Iterable[tuple[int, str]]) -> str:
    return " ".join(f"{gpu}={layout}" for gpu, layout in layouts)
