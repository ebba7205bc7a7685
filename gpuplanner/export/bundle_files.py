"""gpuplanner.export.changes: SHARED_PARTS, _FOREVER_S, _slowest_s, change_note, change_script, filled_template, template_text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

from gpuplanner.catalog.loader import facts
from gpuplanner.export.changes import LayoutChange
from gpuplanner.export.fleet_rules import FleetRules
from gpuplanner.export.states import NodeState, stamp
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.reconfigure import Reconfiguration
from gpuplanner.hardware.seconds import minutes
from gpuplanner.simulate.rules import (Drain)
from gpuplanner.units import SECONDS_PER_MINUTE

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
        reboot = (
            "; MIG mode changes, which needs a reboot (WITH_REBOOT of the MIG manager)"
            if longest.reboot
            else ""
        )
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
    """A script of this room with what it needs to know of a change: times, board, nodes, notes, how long it waits."""
    notes = "\n".join(change_note(cost, node, *states) for node, states in one.nodes.items())
    known = {
        "TIME": one.stamps,
        "TIMES": " ".join(map(stamp, one.times)),
        "NAME": one.name,
        "BOARD": board.name,
        "NODES": " ".join(one.nodes),
        "NOTES": notes,
        "TIMEOUT_S": f"{_FOREVER_S if one.limit_s is None else one.limit_s:.0f}",
        "CUT_S": f"{_slowest_s(cost):.0f}",
    }
    return filled_template(template, known | dict(parts))


def filled_template(name: str, values: Mapping[str, str]) -> str:
    """A file of this room with what others share with it, and its words between at-signs replaced."""
    text = template_text(name)
    for key, value in {
        **{word: template_text(part) for word, part in SHARED_PARTS.items()},
        **values,
    }.items():
        text = text.replace(f"@{key}@", value)
    return text


def template_text(name: str) -> str:
    """A script of this room as it is shipped."""
    return (resources.files("gpuplanner.export") / name).read_text(encoding="utf-8")


def _slowest_s(cost: ChangeCost) -> float:
    """How long cutting an empty node takes where all is slow [s]."""
    profiles = () if cost.board is None else cost.board.profiles
    most = 2 * max((profile.max_instances for profile in profiles), default=0)
    reboot_s = 0.0 if cost.reboot_s is None else cost.reboot_s.high
    return math.ceil(max(cost.change_s.high + most * cost.instance_s.high, reboot_s, SECONDS_PER_MINUTE))


_FOREVER_S = 2**31
"""A wait without a limit [s]."""


CONFIG_MAP = "gpuplanner-mig-config"


NAMESPACE = "gpu-operator"


SCRIPT = ("apply", "verify", "rollback")


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
    def script(cls, file: str, what: str, before: str = "") -> Step:
        """A script with the three verbs that all have."""
        return cls(file, what, *(f"{before}bash {file} {verb}" for verb in SCRIPT))


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
    - ``not_winner``: Why these are not the files of what was decided.
    """

    sentence: str
    policy: str
    touched: Sequence[str] = ()
    means: str = ""
    not_winner: str | None = None
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


@dataclass(frozen=True)
class Making:
    """What the files of a path are made from.

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

    def place(self, name: str) -> str:
        """Where a file of the path stands in the pack."""
        return f"{self.rules.path}/{name}"

    @property
    def limit_s(self) -> str:
        """How long a script waits for a node to empty [s]."""
        return f"{self.drain.limit_s if self.drain.limit_s is not None else 2**31:.0f}"

    def script(self, template: str, **values: str) -> str:
        """A script of this room with what it needs to know."""
        rules = self.rules
        after = (
            "Once they are empty give them back to whom they belong to"
            if rules.returned
            else "Once they are empty power them down"
        )
        known = {
            "NAME": rules.policy,
            "CONFIG_MAP": CONFIG_MAP, "NAMESPACE": NAMESPACE, "BOARD": self.board.name, "TIMEOUT_S": self.limit_s,
            "AFTERWARDS": f"{after} by your own means; the plan counts on it.", **values,
        }  # fmt: skip
        return filled(template, known)


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its words between at-signs replaced; ``@controller.fact@`` by what the catalogue has.

    Examples
    --------
    >>> filled("buffer.yaml", {"POOL": "cut", "LIMITS": "", "KEPT": "1"}).splitlines()[22]
    'apiVersion: autoscaling.x-k8s.io/v1beta1'
    """
    return filled_template(f"templates/{template}", {**_told_to_controllers(), **values})


def _told_to_controllers() -> dict[str, str]:
    rows = facts("controllers").select("controller", "fact", "value").iter_rows()
    return {f"{controller}.{fact}": value for controller, fact, value in rows}


def add_release(
    making: Making, pack: Pack, nodes: Sequence[str], what: str, guarded: Callable[[str], str] = str
) -> None:
    """The nodes that are not needed, and the script that empties them; ``guarded`` says under which condition."""
    if nodes:
        script = "release_slurm.sh" if making.rules.path == "slurm" else "release.sh"
        pack.files[making.place("released.txt")] = lines_of(nodes)
        step = Step.script(making.place("release.sh"), what)
        action = "release" if nodes is making.rules.released else ""
        pack.add(making.script(script), replace(step, do=guarded(step.do), action=action))


def lines_of(words: Sequence[str]) -> str:
    """A word a line."""
    return "".join(f"{word}\n" for word in words)
