"""Nodes that Slurm powers down while they are idle, and that come back whole or cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuplanner.catalog.loader import facts
from gpuplanner.export.fleet_rules import PoolRule
from gpuplanner.export.mig_parted import to_mig_parted
from gpuplanner.export.bundle_files import Making, Pack, Step, add_release, lines_of
from gpuplanner.export.slurm import GRES_CONF, gres_of

PROGRAMS = "/etc/slurm/gpuplanner"


def power_saving(making: Making, pack: Pack) -> None:
    """Power saving, with a name for each way that a machine may be cut."""
    rules, place = making.rules, making.place
    names = _names(rules.pools)
    # Where the type of the GPUs is not known, these fail: before any file is written.
    node_lines, gres_lines = _node_lines(making, names), _gres_lines(making, names)
    if making.board.profiles:
        says = "one configuration for each pool; `power.sh` applies it on the machine"
        pack.add(to_mig_parted(rules.pool_plan(), making.board), Step(place("mig-parted.yaml"), says))
    pack.add(GRES_CONF, Step(place("gres.conf"), "for every node with NVML in its Slurm"))
    layouts = [
        f"{name} {machine} {pool.state.config_name}"
        for pool in rules.pools
        for name, machine in zip(names[pool.name], pool.nodes, strict=True)
    ]
    pack.files[place("layouts.txt")] = lines_of(layouts)
    kept = [(pool, pool.kept) for pool in rules.pools if pool.kept]
    headroom = float(facts("controllers").filter(controller="slurm", fact="resume_headroom")["value"].item())
    known = {
        "PROGRAMS": PROGRAMS,
        "LEAD_S": f"{rules.lead_s:.0f}",
        "SLOW_S": f"{rules.lead_slow_s:.0f}",
        "RESUME_TIMEOUT": f"{headroom * rules.lead_slow_s:.0f}",
        "KEPT": ",".join(_kept(names[pool.name], count) for pool, count in kept),
        "NODES": "\n".join(node_lines),
        "PARTITIONS": "\n".join(
            f"PartitionName=gpuplanner-{pool.name} Nodes={','.join(names[pool.name])} "
            f"SuspendTime={rules.idle_s:.0f} MaxTime=INFINITE State=UP"
            for pool in rules.pools
        ),
        "RESERVE": "\n".join(f"keep gpuplanner-{pool.name} {count}" for pool, count in kept) or ":",
    }  # fmt: skip
    text = making.script("pools.conf", **known)
    if not kept:
        text = "".join(line for line in text.splitlines(True) if not line.startswith("SuspendExcNodes="))
    says = (
        "power saving, a partition for each pool, and the nodes that machines are when they are cut otherwise"
    )
    pack.add(text, Step(place("pools.conf"), says))
    if gres_lines:
        says = "GPUs of those nodes, for the controller, which counts none while they are away"
        pack.add(
            making.script("controller_gres.conf", LINES="\n".join(gres_lines)),
            Step(place("controller-gres.conf"), says),
        )
    programs = {
        "resume.sh": "ResumeProgram: one machine is up as one node at a time",
        "suspend.sh": "SuspendProgram",
        "power.sh": "what really switches a machine: **yours to write**, it only logs",
        "reserve.sh": "lets idle nodes come until as many are on as shall be kept",
    }
    for name, what in programs.items():
        pack.add(making.script(name, **known), Step(place(name), what))
    pack.add(making.script("pools.sh", **known), Step.script(place("pools.sh"), "puts all of this in place"))
    add_release(making, pack, rules.released, "drains the nodes of `released.txt`, which are not needed")


def _names(pools: Sequence[PoolRule]) -> dict[str, list[str]]:
    """Names of the nodes of each pool: a machine keeps its own in the first pool that it is in."""
    seen: set[str] = set()
    found = {}
    for pool in pools:
        found[pool.name] = [node if node not in seen else f"{node}-{pool.name}" for node in pool.nodes]
        seen.update(pool.nodes)
    return found


def _kept(names: Sequence[str], count: int) -> str:
    """Nodes of which so many never go: any of those in one range of numbers; else the first so many.

    Examples
    --------
    >>> _kept(["n01-cut", "n02-cut"], 1), _kept(["n1"], 1), _kept(["n1", "n3"], 1)
    ('n[01-02]-cut:1', 'n1:1', 'n1')
    """
    if len(names) == 1:
        return f"{names[0]}:{count}"
    parts = [re.fullmatch(r"(.*?)(\d+)(\D*)", name) for name in names]
    numbers = [part[2] for part in parts if part]
    ends = {part.group(1, 3) if part else None for part in parts}
    wide = {len(number) for number in numbers}
    # 22.05 misreads a list inside the brackets; a range it understands.
    if len(ends) > 1 or len(wide) != 1 or int(numbers[-1]) - int(numbers[0]) + 1 != len(names):
        return ",".join(names[:count])
    head, tail = parts[0].group(1, 3)  # type: ignore[union-attr]
    return f"{head}[{numbers[0]}-{numbers[-1]}]{tail}:{count}"


def _cloud(making: Making, names: dict[str, list[str]]) -> Iterator[tuple[PoolRule, str, str]]:
    """Nodes that are not a machine's own name: what it is when it is cut otherwise."""
    for pool in making.rules.pools:
        for name, machine in zip(names[pool.name], pool.nodes, strict=True):
            if name != machine:
                yield pool, name, machine


def _node_lines(making: Making, names: dict[str, list[str]]) -> list[str]:
    """A line of slurm.conf for each node of the cloud."""
    return [
        f"NodeName={name} NodeHostname={machine} NodeAddr={machine} Feature={pool.name} State=CLOUD "
        f"Gres={gres_of(pool.state, making.board, making.gres_type)}"
        for pool, name, machine in _cloud(making, names)
    ]


def _gres_lines(making: Making, names: dict[str, list[str]]) -> list[str]:
    """Lines of the controller's gres.conf for the nodes of the cloud, one for each pool and type.

    slurmctld counts files, which need not be there but may not be named twice; a bare count it does not read
    (22.05.8), nor any line where its own file asks the driver, unless the line says otherwise.
    """
    members: dict[str, list[str]] = {}
    for pool, name, _ in _cloud(making, names):
        members.setdefault(pool.name, []).append(name)
    lines = []
    for pool in making.rules.pools:
        first = 0
        if pool.name not in members:
            continue  # the GPUs of a machine under its own name are in the site's slurm.conf
        for gres in gres_of(pool.state, making.board, making.gres_type).split(","):
            kind, name, count = gres.split(":")
            files = f"/dev/nvidia[{first}-{first + int(count) - 1}]"
            first += int(count)
            nodes = ",".join(members[pool.name])
            lines.append(f"NodeName={nodes} AutoDetect=off Name={kind} Type={name} File={files}")
    return lines
