"""Files of a change bundle and its index."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.units import SECONDS_PER_MINUTE
from gpuplanner.decision.policy_fleets import FleetRules
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.repartitioning_cost import ChangeCost, Reconfiguration, minutes
from gpuplanner.planner.layout_plan import (
    REHEARSED,
    LayoutChange,
    NodeState,
    checked_plan,
    held_by,
    layout_changes_of,
    stamp,
)
from gpuplanner.simulator.scheduling_rules import Drain

SHARED_PARTS = {"COMMON": "common.sh", "KUBERNETES": "kubernetes.sh"}
"""Files that several scripts hold, by their word between at-signs."""


def change_note(cost: ChangeCost, node: str, before: NodeState | None, after: NodeState) -> str:
    """Comment lines on one node: what changes and what it costs."""
    lines = [f"# {node}: {before.config_name if before else 'as it is'} -> {after.config_name}"]
    was: Mapping[int, str] = dict(before.gpus) if before else {}
    changes: list[Reconfiguration] = []
    for gpu, layout in after.gpus:
        if gpu not in was:
            lines.append(f"#   GPU {gpu}: {layout}")
        elif was[gpu] != layout:
            lines.append(f"#   GPU {gpu}: {was[gpu]} -> {layout}")
            changes.append(cost.change(was[gpu], layout))
    if changes:
        longest = max(changes, key=lambda change: change.seconds)
        reboots = "; MIG mode changes, which needs a reboot (WITH_REBOOT of the MIG manager)"
        reboot = reboots if longest.reboot else ""
        lines.append(
            f"#   {sum(len(change.destroyed) for change in changes)} instances go, "
            f"{sum(len(change.created) for change in changes)} come; about {minutes(longest.seconds)} "
            f"({longest.low_s / SECONDS_PER_MINUTE:.4g} to {longest.high_s / SECONDS_PER_MINUTE:.4g}) by "
            f"{longest.path}, without the drain{reboot}"
        )
    return "\n".join(lines)


def change_script(
    template: str, one: LayoutChange, cost: ChangeCost, board: GpuModel, parts: Mapping[str, str]
) -> str:
    """A shipped script with what it needs to know of a change: times, board, nodes, notes, how long it waits."""
    notes = "\n".join(change_note(cost, node, *states) for node, states in one.nodes.items())
    known = {
        "TIME": one.stamps,
        "TIMES": " ".join(map(stamp, one.times)),
        "NAME": one.name,
        "BOARD": board.name,
        "NODES": " ".join(one.nodes),
        "NOTES": notes,
        "TIMEOUT_S": timeout_s(one.limit_s),
        "CUT_S": f"{_slowest_s(cost):.0f}",
    }
    return filled_template(template, known | dict(parts))


def filled_template(name: str, values: Mapping[str, str]) -> str:
    """A shipped file with the parts that several scripts share, and its words between at-signs replaced."""
    text = template_text(name)
    shared = {word: template_text(part) for word, part in SHARED_PARTS.items()}
    for key, value in {**shared, **values}.items():
        text = text.replace(f"@{key}@", value)
    return text


def template_text(name: str) -> str:
    """A shipped script or template as text."""
    return (resources.files(__package__) / "bundle" / name).read_text(encoding="utf-8")


def _slowest_s(cost: ChangeCost) -> float:
    """How long cutting an empty node takes where all is slow [s]."""
    profiles = () if cost.board is None else cost.board.profiles
    most = 2 * max((profile.max_instances for profile in profiles), default=0)
    reboot_s = 0.0 if cost.reboot_s is None else cost.reboot_s.high
    return math.ceil(max(cost.change_s.high + most * cost.instance_s.high, reboot_s, SECONDS_PER_MINUTE))


def timeout_s(limit_s: float | None) -> str:
    """How long a script waits for a node to empty, as it is written there [s]."""
    return f"{2**31 if limit_s is None else limit_s:.0f}"


CONFIG_MAP = "gpuplanner-mig-config"


NAMESPACE = "gpu-operator"


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
    """

    action: str
    text: str
    condition: str = ""
    steps: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class PageWords:
    """What the page says in words.

    - ``sentence``, ``policy``: The decision, and the way that was chosen.
    - ``measures``: What is to be done, in order.
    - ``command``: What writes these files.
    - ``touched``: Who is touched and how long it takes.
    - ``means``: What jobs have to do, and what else belongs to it.
    """

    sentence: str
    policy: str
    touched: Sequence[str] = ()
    means: str = ""
    measures: Sequence[MeasureWords] = ()
    command: str = "gpuplanner export"


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


@dataclass(kw_only=True)
class FleetPack(Pack):
    """The pack of a fleet with what its files are made from.

    - ``rules``: The fleet as it shall be run.
    - ``board``: Its board.
    - ``change``: What a change of layout costs.
    - ``drain``: How nodes are emptied.
    - ``gres_type``: Slurm's type of a whole GPU, where it is not what slurmd finds.
    """

    rules: FleetRules
    board: GpuModel
    change: ChangeCost
    drain: Drain
    gres_type: str | None = None

    @property
    def release_words(self) -> str:
        """What is done with nodes that are not needed."""
        return "give them back to whom they belong to" if self.rules.returned else "power them down"

    def place(self, name: str) -> str:
        """Where a file of the path stands in the pack."""
        return f"{self.rules.path}/{name}"

    def script(self, template: str, **values: str) -> str:
        """A shipped script with what it needs to know."""
        known = {
            "NAME": self.rules.policy,
            "CONFIG_MAP": CONFIG_MAP, "NAMESPACE": NAMESPACE, "BOARD": self.board.name,
            "TIMEOUT_S": timeout_s(self.drain.limit_s),
            "AFTERWARDS": f"Once they are empty {self.release_words} by your own means; the plan counts on it.",
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
    >>> filled("buffer.yaml", {"POOL": "cut", "LIMITS": "", "KEPT": "1"}).splitlines()[22]
    'apiVersion: autoscaling.x-k8s.io/v1beta1'
    """
    rows = facts("controllers").select("controller", "fact", "value").iter_rows()
    known = {f"{controller}.{fact}": value for controller, fact, value in rows}
    return filled_template(f"templates/{template}", {**known, **values})


def add_release(
    pack: FleetPack, nodes: Sequence[str], what: str, guarded: Callable[[str], str] = str
) -> None:
    """The nodes that are not needed, and the script that empties them; ``guarded`` says under which condition."""
    if nodes:
        script = "release_slurm.sh" if pack.rules.path == "slurm" else "release.sh"
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
    "if_not_empty": pl.String,
}
"""Columns of the index, before what was rehearsed. ``untouched``: GPUs of the node that its configuration names too and
leaves as they are; where nodes are emptied, their jobs have to end as well."""
GIVEN_UP = (
    "it is given up: nothing is cut; cordon, drain and reservation come off, "
    "and the layout stays until the next change"
)


def change_index(
    plan: pl.DataFrame,
    board: GpuModel | str,
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
    board : GpuModel or str
        The board of all nodes.
    change : ChangeCost, optional
        How changes are made; None: by the operator, as the catalogue has it.
    drain : Drain, optional
        What is emptied, how long ahead, and what happens at the limit; None: whole nodes, as long as `change` waits.
    expected : polars.DataFrame, optional
        ``planned``, ``node``, ``gpu`` and the columns of :data:`REHEARSED`.
    initial : polars.DataFrame, optional
        How GPUs are cut before the plan begins: ``node``, ``gpu``, ``layout``.

    Returns
    -------
    polars.DataFrame
        The columns of :data:`INDEX` and :data:`REHEARSED`, by time, node and GPU. ``change`` names the files.
        ``before`` is empty, and ``instances_removed`` null, where nothing is known of the time before; null
        ``give_up_at``: never.

    Raises
    ------
    SchemaError, GeometryError
        If the table is not a layout plan, or a layout cannot be placed on the board.
    """
    board = as_board(board)
    frame = checked_plan(plan, board)
    cost = ChangeCost.of(board) if change is None else change.on(board)
    drain = Drain(limit_s=cost.drain_s.high) if drain is None else drain
    flagged = set(frame.filter("changed").select("node", "slot_start", "gpu").iter_rows())
    rows: list[dict[str, Any]] = []
    for one in layout_changes_of(frame, drain.limit_s, held_by(initial)):
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
                    row |= {"untouched": _words(left) if whole_node else "", "if_not_empty": GIVEN_UP}
                    if one.limit_s is not None:
                        row["give_up_at"] = time + timedelta(seconds=one.limit_s)
                    rows.append(row | _content(gpus, cost))
    # A reservation begins no earlier than the change before it.
    earliest = pl.col("planned") - timedelta(seconds=drain.ahead_s)
    last = pl.col("planned").shift().over("node", "gpu", order_by="planned")
    index = pl.DataFrame(rows, schema=INDEX).with_columns(reserve_from=pl.max_horizontal(earliest, last))
    index = index.sort("planned", "node", "gpu")
    if expected is None:
        return index.with_columns(pl.lit(None, kind).alias(name) for name, kind in REHEARSED.items())
    known = expected.select("planned", "node", "gpu", *REHEARSED)
    return index.join(
        known, on=["planned", "node", "gpu"], how="left", nulls_equal=True, maintain_order="left"
    )


def to_index_text(index: pl.DataFrame, board: GpuModel | str, change: ChangeCost) -> str:
    """Print an index for people: a line for each change of a node or GPU, in Markdown."""
    first = index.row(0, named=True) if index.height else {"if_not_empty": "nothing changes"}
    values = {
        "BOARD": as_board(board).name, "COUNT": str(index.height), "FILES": str(index["change"].n_unique()),
        "DURATION": change.words(), "ROWS": "\n".join(map(index_line, index.iter_rows(named=True))),
        "IF_NOT_EMPTY": first["if_not_empty"],
    }  # fmt: skip
    return filled_template("templates/changes.md", values)


def index_line(row: dict[str, Any]) -> str:
    """Print a row of the index as a line of its table."""
    unknown = row["drain_median_minutes"] is None
    drain = "not rehearsed"
    if not unknown:
        drain = f"{row['drain_median_minutes']:.0f} ({row['drain_p95_minutes']:.0f}) min"
    cells = [
        stamp(row["planned"]),
        row["node"] if row["gpu"] is None else f"{row['node']} GPU {row['gpu']}",
        f"{_grouped(row['before']) or 'as it is'} → {_grouped(row['after'])}",
        _grouped(row["untouched"]),
        "not known" if row["instances_removed"] is None else str(row["instances_removed"]),
        stamp(row["reserve_from"]),
        "never" if row["give_up_at"] is None else stamp(row["give_up_at"]),
        drain,
        "" if unknown else f"{row['in_the_way']:.1f}",
        "" if unknown else f"{row['in_time']:.0%}",
        row["change"],
    ]
    return f"| {' | '.join(cells)} |"


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
        "instances_removed": sum(cost.change(old, new).emptied for _, old, new in known)
        if len(known) == len(gpus)
        else None,
    }


def _words(layouts: Iterable[tuple[int, str]]) -> str:
    return " ".join(f"{gpu}={layout}" for gpu, layout in layouts)
