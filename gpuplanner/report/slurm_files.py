"""Slurm configuration of layouts and of power saving.

Slurm does not cut GPUs: it is told what slices a node has, and drains a node that has fewer. So each switch
of layouts needs these lines changed together with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.stage_cache import data_folder
from gpuplanner.decision.policy_fleets import PoolRule
from gpuplanner.hardware.catalog import derive_slurm_type, facts, find_slurm_type, list_model_aliases
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import (
    LayoutChange,
    NodeState,
    check_layout_plan,
    format_utc,
    list_layout_changes,
    node_states_at,
    node_states_of_table,
    to_file_stamp,
)
from gpuplanner.report.bundle_files import (
    FleetPack,
    Step,
    add_release,
    change_script,
    filled_template,
    lines_of,
    template_text,
)
from gpuplanner.report.mig_manager_files import to_mig_parted
from gpuplanner.simulator.scheduling_rules import Drain

GRES_CONF = """\
# For every node; slurmd detects GPUs and MIG instances by the driver. This needs Slurm's NVML plugin (gpu_nvml.so),
# which some packages (Debian's among them) lack: use the output of static-gres.sh on the node instead.
AutoDetect=nvml
"""
"""Contents of gres.conf on every node."""
STATIC_GRES = "static-gres.sh"
"""Script that prints gres.conf on a node whose Slurm has no NVML."""
INSTALL = "install-gres.sh"
"""Script that puts the Gres of nodes into the lines that slurm.conf has for them."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class GresTypes:
    """GRES types of the nodes, as Slurm shows them today: with others, requests of jobs and limits would not hold.

    - ``full``: Type of a full GPU.
    - ``mig``: Type of a MIG instance, before its profile.
    - ``by_node``: The same two of nodes that have their own.
    - ``shown``: Whether a node shows a type; else the types are those that slurmd detects, or as given.
    """

    full: str
    mig: str
    by_node: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shown: bool = False

    @classmethod
    def of_nodes(cls, gpu_model: GpuModel, texts: Mapping[str, str]) -> GresTypes:
        """Types by ``gres_types`` of the inventory; types that do not end in their profile are not used.

        Examples
        --------
        >>> texts = {"n1": "gpu=a100", "n2": "1g.5gb=a100_1g.5gb,3g.20gb=a100_3g.20gb"}
        >>> types = GresTypes.of_nodes(as_gpu_model("A100-40GB"), texts)
        >>> types.of("n1", "1g.5gb"), types.of("n2", "gpu"), types.of("n3", "2g.10gb")
        ('a100_1g.5gb', 'a100', 'a100_2g.10gb')
        """
        found = {node: _type_parts(text) for node, text in texts.items()}
        full = next((one for one, _ in found.values() if one), None) or find_slurm_type(gpu_model.name)
        mig = next((one for _, one in found.values() if one is not None), f"{full}_")
        own = {
            node: (whole or full, (mig if whole in (None, full) else f"{whole}_") if part is None else part)
            for node, (whole, part) in found.items()
        }
        return cls(full, mig, own, shown=any(map(any, found.values())))

    def of(self, node: str, profile: str) -> str:
        """Type of a full GPU or MIG instance of a node."""
        full, mig = self.by_node.get(node, (self.full, self.mig))
        return full if profile == FULL_GPU else f"{mig}{profile}"


def _type_parts(text: str) -> tuple[str | None, str | None]:
    """Type of a full GPU and the part before the profile, as a node shows them; None: it shows none."""
    types = dict(item.split("=", 1) for item in text.split(",") if _TYPE.fullmatch(item.partition("=")[2]))
    full = types.pop(FULL_GPU, None)
    mig = next((name.removesuffix(profile) for profile, name in types.items() if name.endswith(profile)), None)
    return full or (mig or "").rstrip("_.-") or None, mig


def site_types(data: str, gpu_model: GpuModel) -> GresTypes | None:
    """GRES types that the nodes of a dataset show; None where they show none."""
    file = data_folder(data) / "inventory.parquet"
    if not file.exists() or "gres_types" not in pl.read_parquet_schema(file):
        return None
    nodes = pl.read_parquet(file, columns=["node", "gpu_model", "gres_types"]).drop_nulls("gres_types")
    texts = dict(nodes.filter(pl.col("gpu_model") == gpu_model.name).select("node", "gres_types").iter_rows())
    return GresTypes.of_nodes(gpu_model, texts) if texts else None


def to_slurm_files(
    plan: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    gres_type: GresTypes | str | None = None,
    change: ChangeCost | None = None,
    drain: Drain | None = None,
    initial: pl.DataFrame | None = None,
) -> dict[str, str]:
    """Print gres.conf, and the lines of slurm.conf with the script for each change; alike ones have one together.

    Parameters
    ----------
    plan, board, gres_type
        As for :func:`to_slurm`.
    change : ChangeCost, optional
        How long a change takes: that of the plan; None: by the operator, as the catalogue has it.
    drain, initial
        As for :func:`~gpuplanner.report.bundle_files.change_index`.

    Returns
    -------
    dict of str to str
        Text by file name: ``gres.conf``, ``static-gres.sh`` for builds of Slurm without NVML, ``install-gres.sh``,
        which puts lines into a slurm.conf, ``slurm-<time>.conf`` from the first time of the plan on, in the order of
        time, and ``change-<time>.sh`` for each of them at which some node is cut anew.

    Raises
    ------
    SchemaError, GeometryError
        As :func:`to_slurm`.
    """
    gpu_model = as_gpu_model(gpu_model)
    types = _checked_types(gpu_model, gres_type)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    limit_s = cost.drain_s.high if drain is None else drain.limit_s
    changes = list_layout_changes(frame, limit_s, node_states_of_table(initial))
    first = min(frame["slot_start"])
    times = dict.fromkeys([first, *(one.times[0] for one in changes)])
    lines = {f"slurm-{to_file_stamp(time)}.conf": _lines(frame, gpu_model, time, types) for time in times}
    static = filled_template(STATIC_GRES, {"TYPE": types.full, "MIG": types.mig})
    return (
        {"gres.conf": GRES_CONF, STATIC_GRES: static, INSTALL: template_text(INSTALL)}
        | lines
        | {f"{one.name}.sh": _change_script(one, cost, gpu_model, types) for one in changes}
    )


def to_slurm(
    plan: pl.DataFrame, gpu_model: GpuModel | str, at: datetime, *, gres_type: GresTypes | str | None = None
) -> str:
    """Print the lines of slurm.conf that hold at one time.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        The board of all nodes.
    at : datetime
        With its zone.
    gres_type : GresTypes or str, optional
        Types of the nodes, or that of a full GPU; MIG instances are ``<type>_<profile>``. Slurm drains a node whose
        types are not part of those that slurmd finds. By default what slurmd finds for the usual variant of the board
        (:func:`~gpuplanner.hardware.catalog.derive_slurm_type`), ``nvidia_h100_80gb_hbm3``.

    Returns
    -------
    str
        ``GresTypes`` and one ``NodeName`` line per node. ``AccountingStorageTRES`` with the types of the whole plan
        is a comment, since slurmctld stops at it where there is no slurmdbd. Comments state the layout of each GPU,
        so that the file can be proved again. Parked GPUs count as they are cut, released ones do not count: which nodes
        go while they are idle is up to Slurm's power saving.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or it says nothing about the time.
    GeometryError
        If a layout cannot be placed on the board, or the type is no Slurm type or is needed.

    Examples
    --------
    >>> from datetime import UTC
    >>> start, end = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    >>> plan = pl.DataFrame({
    ...     "node": ["n1", "n1"], "gpu": [0, 1], "slot_start": start, "slot_end": end,
    ...     "layout": ["1g.10gb:7", "gpu"], "changed": True,
    ... })
    >>> print(to_slurm(plan, "H100-80GB-SXM5", start).splitlines()[-1])
    NodeName=n1 Gres=gpu:nvidia_h100_80gb_hbm3:1,gpu:nvidia_h100_80gb_hbm3_1g.10gb:7
    """
    gpu_model = as_gpu_model(gpu_model)
    return _lines(check_layout_plan(plan, gpu_model), gpu_model, at, _checked_types(gpu_model, gres_type))


def _change_script(one: LayoutChange, cost: ChangeCost, gpu_model: GpuModel, types: GresTypes) -> str:
    """The script of a change."""
    steps = [
        f"config[{node}]={shlex.quote(after.config_name)}\n"
        f"gres[{node}]={shlex.quote(','.join(sorted(_counts(node, after, types))))}\n"
        f"before[{node}]={shlex.quote(had.config_name if had else '')} size[{node}]={len(after.gpus)}"
        for node, (had, after) in one.nodes.items()
    ]
    lines = f"slurm-{to_file_stamp(one.times[0])}.conf"
    parts = {"LINES": lines, "STEPS": "\n".join(steps)}
    return change_script("change_slurm.sh", one, cost, gpu_model, parts)


def _counts(node: str, state: NodeState, types: GresTypes) -> list[str]:
    """What a node has without the GPUs that are released: Slurm drains nodes that have fewer than stated, not more."""
    there = NodeState(tuple(one for one in state.gpus if one[0] not in state.released))
    return [f"gpu:{types.of(node, profile)}:{count}" for profile, count in there.totals.items()]


def gres_of(node: str, state: NodeState, gpu_model: GpuModel, gres_type: GresTypes | str | None) -> str:
    """What a node line says of a node's GPUs."""
    return ",".join(_counts(node, state, _checked_types(gpu_model, gres_type)))


def _lines(frame: pl.DataFrame, gpu_model: GpuModel, at: datetime, types: GresTypes) -> str:
    """Lines of one time of a checked plan."""
    states = node_states_at(frame, at)
    everything = NodeState(tuple(enumerate(frame["layout"].unique().sort().to_list())))
    kinds = dict.fromkeys(f"gres/gpu:{types.of(node, profile)}" for profile in everything.totals for node in states)
    lines = [
        f"# Lines of slurm.conf from {format_utc(at)}, GPU model {gpu_model.name}.",
        "# Order: drain the changed nodes, wait until they are empty, repartition their GPUs, copy the Gres of these",
        "# lines into yours ('bash install-gres.sh --dry-run FILE' shows it; a second line for a node is fatal),",
        "# 'scontrol reconfigure' (before Slurm 23.11: restart slurmctld, then slurmd of the nodes), resume.",
        f"# change-{to_file_stamp(at)}.sh does this for repartitioned nodes. Slurm drains nodes with too few devices.",
        *_type_notes(gpu_model, types),
        "# gres.conf: AutoDetect=nvml; if Slurm has no NVML plugin, the output of static-gres.sh on the node.",
        "GresTypes=gpu",
        "# Only with slurmdbd; without it, slurmctld does not start with this line:",
        f"# AccountingStorageTRES={','.join(['gres/gpu', *kinds])}",
    ]
    for node, state in states.items():
        lines += [
            f"# {node} gpu {gpu}: {UNUSED_LAYOUT if gpu in state.released else layout}" for gpu, layout in state.gpus
        ]
        counts = _counts(node, state, types)
        lines.append(f"NodeName={node}" + (f" Gres={','.join(counts)}" if counts else ""))
    return "\n".join(lines) + "\n"


def _type_notes(gpu_model: GpuModel, types: GresTypes) -> list[str]:
    """Comments: for which product the types are those that slurmd finds, and the types of the others."""
    if types.shown:
        return ["# GRES types as the nodes have them today."]
    detected = {name: derive_slurm_type(name) for name in list_model_aliases(gpu_model.name, "nvml")}
    # Before the profile, the type must be the end of the one found.
    fit = [name for name, found in detected.items() if found.endswith(types.full.lower())]
    others = [f"{name}: {found}" for name, found in detected.items() if name not in fit]
    return [
        f"# Types as slurmd detects them on {' and '.join(fit)}." if fit else "# Types as given by --gres-type.",
        *([f"# Other variants of this GPU model need --gres-type: {'; '.join(others)}."] if others else []),
    ]


def _checked_types(gpu_model: GpuModel, gres_type: GresTypes | str | None) -> GresTypes:
    if isinstance(gres_type, GresTypes):
        return gres_type
    whole = gres_type if gres_type is not None else find_slurm_type(gpu_model.name)
    if not _TYPE.fullmatch(whole):
        allowed = "letters, digits, '_', '.' and '-'"
        raise GeometryError("Slurm GRES type", allowed, repr(whole), "Use the type of 'slurmd -G'.")
    return GresTypes(whole, f"{whole}_")


PROGRAMS = "/etc/slurm/gpuplanner"


def power_saving(pack: FleetPack) -> None:
    """Power saving, with a name for each way that a machine may be cut."""
    rules, place = pack.rules, pack.place
    names = _names(rules.pools)
    # Where the type of the GPUs is not known, these fail: before any file is written.
    node_lines = [
        f"NodeName={name} NodeHostname={machine} NodeAddr={machine} Feature={pool.name} State=CLOUD "
        f"Gres={gres_of(pool.nodes[0], pool.state, pack.gpu_model, pack.gres_type)}"
        for pool, name, machine in _cloud(pack, names)
    ]
    gres_lines = _gres_lines(pack, names)
    if pack.gpu_model.profiles:
        says = "MIG configurations, one per pool; `power.sh` applies them on the machine"
        pack.add(to_mig_parted(rules.make_pool_plan(), pack.gpu_model), Step(place("mig-parted.yaml"), says))
    pack.add(GRES_CONF, Step(place("gres.conf"), "for nodes whose Slurm has NVML"))
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
    text = pack.script("pools.conf", **known)
    if not kept:
        text = "".join(line for line in text.splitlines(True) if not line.startswith("SuspendExcNodes="))
    says = "power saving: a Slurm partition per pool, and a node name per MIG layout of a machine"
    pack.add(text, Step(place("pools.conf"), says))
    if gres_lines:
        says = "GPUs of those node names for the controller, which counts none while they are powered down"
        pack.add(
            pack.script("controller_gres.conf", LINES="\n".join(gres_lines)), Step(place("controller-gres.conf"), says)
        )
    programs = {
        "resume.sh": "ResumeProgram: powers a machine up under one node name at a time",
        "suspend.sh": "SuspendProgram: powers machines down",
        "power.sh": "powers one machine up or down: **write it for your site**, the shipped script only logs",
        "reserve.sh": "powers up idle nodes until the reserve is full",
    }
    for name, what in programs.items():
        pack.add(pack.script(name, **known), Step(place(name), what))
    pack.add(pack.script("pools.sh", **known), Step.script(place("pools.sh"), "installs all of this"))
    add_release(pack, rules.released, "drains the nodes of `released.txt`, which are not needed")


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
    >>> _kept(["n01-mig", "n02-mig"], 1), _kept(["n1"], 1), _kept(["n1", "n3"], 1)
    ('n[01-02]-mig:1', 'n1:1', 'n1')
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


def _cloud(pack: FleetPack, names: dict[str, list[str]]) -> Iterator[tuple[PoolRule, str, str]]:
    """Nodes that are not a machine's own name: what it is when it is cut otherwise."""
    for pool in pack.rules.pools:
        for name, machine in zip(names[pool.name], pool.nodes, strict=True):
            if name != machine:
                yield pool, name, machine


def _gres_lines(pack: FleetPack, names: dict[str, list[str]]) -> list[str]:
    """Lines of the controller's gres.conf for the nodes of the cloud, one for each pool and type.

    slurmctld counts files, which need not be there but may not be named twice; a bare count it does not read
    (22.05.8), nor any line where its own file asks the driver, unless the line says otherwise.
    """
    members: dict[str, list[str]] = {}
    for pool, name, _ in _cloud(pack, names):
        members.setdefault(pool.name, []).append(name)
    lines = []
    for pool in pack.rules.pools:
        first = 0
        if pool.name not in members:
            continue  # the GPUs of a machine under its own name are in the site's slurm.conf
        for gres in gres_of(pool.nodes[0], pool.state, pack.gpu_model, pack.gres_type).split(","):
            kind, name, count = gres.split(":")
            files = f"/dev/nvidia[{first}-{first + int(count) - 1}]"
            first += int(count)
            nodes = ",".join(members[pool.name])
            lines.append(f"NodeName={nodes} AutoDetect=off Name={kind} Type={name} File={files}")
    return lines
