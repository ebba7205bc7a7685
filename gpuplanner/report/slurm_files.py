"""Slurm configuration of MIG layouts and of power saving.

Slurm does not partition GPUs: its configuration declares the MIG instances of a node, and a node with fewer is drained.
So these lines change together with each repartitioning.
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
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.decision.policy_layouts import PoolRule
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
from gpuplanner.report.change_bundle_parts import (
    FileStep,
    FleetBundle,
    add_release_files,
    fill_shipped_file,
    join_lines,
    read_template,
    render_change_script,
)
from gpuplanner.report.mig_manager_files import to_mig_parted
from gpuplanner.simulator.scheduling_rules import Drain

GRES_CONF = """\
# For every node; slurmd detects GPUs and MIG instances by the driver. This needs Slurm's NVML plugin (gpu_nvml.so),
# which some packages (Debian's among them) lack: use the output of static-gres.sh on the node instead.
AutoDetect=nvml
"""
"""Content of gres.conf on every node whose Slurm has the NVML plugin."""
STATIC_GRES_SCRIPT = "static-gres.sh"
"""Name of the script that prints gres.conf on a node whose Slurm has no NVML plugin."""
INSTALL_SCRIPT = "install-gres.sh"
"""Name of the script that writes the Gres of nodes into the lines of the live slurm.conf."""

_SLURM_TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names that Slurm allows for a GRES type."""


@dataclass(frozen=True)
class GresTypes:
    """GRES types of nodes as Slurm shows them today, so that requests of jobs and limits stay valid.

    - ``full``: Type of a full GPU.
    - ``mig``: Prefix of the type of a MIG instance, before its profile.
    - ``by_node``: Both for nodes that have their own.
    - ``is_observed``: Whether a node shows a type; otherwise the types are those that slurmd detects, or as given.
    """

    full: str
    mig: str
    by_node: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_observed: bool = False

    @classmethod
    def from_inventory(cls, gpu_model: GpuModel, texts: Mapping[str, str]) -> GresTypes:
        """Parse the ``gres_types`` of the inventory; types that do not end in their profile are ignored.

        Examples
        --------
        >>> texts = {"n1": "gpu=a100", "n2": "1g.5gb=a100_1g.5gb,3g.20gb=a100_3g.20gb"}
        >>> types = GresTypes.from_inventory(as_gpu_model("A100-40GB"), texts)
        >>> types.type_of("n1", "1g.5gb"), types.type_of("n2", "gpu"), types.type_of("n3", "2g.10gb")
        ('a100_1g.5gb', 'a100', 'a100_2g.10gb')
        """
        parts_by_node = {node: _type_parts(text) for node, text in texts.items()}
        full = next((name for name, _ in parts_by_node.values() if name), None) or find_slurm_type(gpu_model.name)
        mig = next((name for _, name in parts_by_node.values() if name is not None), f"{full}_")
        types_by_node: dict[str, tuple[str, str]] = {}
        for node, (full_type, mig_prefix) in parts_by_node.items():
            # A node that shows only its own type of full GPUs has MIG types that begin with it.
            default_prefix = mig if full_type in (None, full) else f"{full_type}_"
            types_by_node[node] = (full_type or full, default_prefix if mig_prefix is None else mig_prefix)
        return cls(full, mig, types_by_node, is_observed=any(map(any, parts_by_node.values())))

    def type_of(self, node: str, profile: str) -> str:
        """Return the GRES type of a full GPU or MIG instance of a node."""
        full, mig = self.by_node.get(node, (self.full, self.mig))
        return full if profile == FULL_GPU else f"{mig}{profile}"


def _type_parts(text: str) -> tuple[str | None, str | None]:
    """Parse a node's ``gres_types`` into the type of a full GPU and the prefix of MIG types; None for one it lacks."""
    types = dict(item.split("=", 1) for item in text.split(",") if _SLURM_TYPE_NAME.fullmatch(item.partition("=")[2]))
    full = types.pop(FULL_GPU, None)
    mig = next((name.removesuffix(profile) for profile, name in types.items() if name.endswith(profile)), None)
    return full or (mig or "").rstrip("_.-") or None, mig


def read_gres_types(data: str, gpu_model: GpuModel) -> GresTypes | None:
    """Read the GRES types of the nodes in the inventory of a dataset; None if it has none."""
    file = data_folder(data) / "inventory.parquet"
    if not file.exists() or "gres_types" not in pl.read_parquet_schema(file):
        return None
    nodes = pl.read_parquet(file, columns=["node", "gpu_model", "gres_types"]).drop_nulls("gres_types")
    texts = dict(nodes.filter(pl.col("gpu_model") == gpu_model.name).select("node", "gres_types").iter_rows())
    return GresTypes.from_inventory(gpu_model, texts) if texts else None


def to_slurm_files(
    plan: pl.DataFrame, gpu_model: GpuModel | str, *, gres_type: GresTypes | str | None = None,
    change: ChangeCost | None = None, drain: Drain | None = None, initial: pl.DataFrame | None = None,
) -> dict[str, str]:  # fmt: skip
    """Render gres.conf, and the lines of slurm.conf with the script for each layout change.

    Parameters
    ----------
    plan, gpu_model, gres_type
        As for :func:`to_slurm`.
    change : ChangeCost, optional
        Duration of a change; None: with the GPU operator, from the catalogue.
    drain, initial
        As for :func:`~gpuplanner.report.change_bundle_parts.change_index`.

    Returns
    -------
    dict of str to str
        Text by file name: ``gres.conf``, ``static-gres.sh`` for Slurm without NVML, ``install-gres.sh``, which edits
        slurm.conf, ``slurm-<time>.conf`` in the order of time, and ``change-<time>.sh`` for each time at which a node
        is repartitioned.

    Raises
    ------
    SchemaError, GeometryError
        As :func:`to_slurm`.
    """
    gpu_model = as_gpu_model(gpu_model)
    types = _to_gres_types(gpu_model, gres_type)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    frame = check_layout_plan(plan, gpu_model)
    limit_s = cost.drain_s.high if drain is None else drain.limit_s
    changes = list_layout_changes(frame, limit_s, node_states_of_table(initial))
    times = dict.fromkeys([min(frame["slot_start"]), *(layout_change.times[0] for layout_change in changes)])
    lines = {f"slurm-{to_file_stamp(time)}.conf": _slurm_conf_lines(frame, gpu_model, time, types) for time in times}
    static = fill_shipped_file(STATIC_GRES_SCRIPT, {"TYPE": types.full, "MIG": types.mig})
    files = {"gres.conf": GRES_CONF, STATIC_GRES_SCRIPT: static, INSTALL_SCRIPT: read_template(INSTALL_SCRIPT)} | lines
    for layout_change in changes:
        files[f"{layout_change.name}.sh"] = _render_change_script(layout_change, cost, gpu_model, types)
    return files


def to_slurm(
    plan: pl.DataFrame, gpu_model: GpuModel | str, at: datetime, *, gres_type: GresTypes | str | None = None
) -> str:
    """Render the lines of slurm.conf at one time of a plan.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    gpu_model : GpuModel or str
        GPU model of all nodes.
    at : datetime
        Time, with its zone.
    gres_type : GresTypes or str, optional
        GRES types of the nodes, or that of a full GPU; MIG instances are ``<type>_<profile>``. Slurm drains a node
        whose types are not part of those that slurmd detects. Default: the type detected for the usual variant of the
        GPU model (:func:`~gpuplanner.hardware.catalog.derive_slurm_type`), such as ``nvidia_h100_80gb_hbm3``.

    Returns
    -------
    str
        ``GresTypes`` and one ``NodeName`` line for each node. ``AccountingStorageTRES`` is a comment, because slurmctld
        does not start with it without slurmdbd. Comments state the layout of each GPU, so that the file can be
        verified. Idle GPUs keep their layout, released ones do not count.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or has no interval at this time.
    GeometryError
        If a layout cannot be placed on the GPU model, or the GRES type is invalid or missing.

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
    return _slurm_conf_lines(check_layout_plan(plan, gpu_model), gpu_model, at, _to_gres_types(gpu_model, gres_type))


def _render_change_script(layout_change: LayoutChange, cost: ChangeCost, gpu_model: GpuModel, types: GresTypes) -> str:
    """Render the shell script of a layout change on Slurm nodes."""
    steps = [
        f"config[{node}]={shlex.quote(later.config_name)}\n"
        f"gres[{node}]={shlex.quote(','.join(sorted(_gres_items(node, later, types))))}\n"
        f"before[{node}]={shlex.quote(earlier.config_name if earlier else '')} size[{node}]={len(later.gpus)}"
        for node, (earlier, later) in layout_change.nodes.items()
    ]
    lines = f"slurm-{to_file_stamp(layout_change.times[0])}.conf"
    parts = {"LINES": lines, "STEPS": "\n".join(steps)}
    return render_change_script("change_slurm.sh", layout_change, cost, gpu_model, parts)


def _gres_items(node: str, node_state: NodeState, types: GresTypes) -> list[str]:
    """List the GRES of a node without released GPUs; Slurm drains nodes with fewer devices, not with more."""
    kept_state = NodeState(tuple(pair for pair in node_state.gpus if pair[0] not in node_state.released))
    return [f"gpu:{types.type_of(node, profile)}:{count}" for profile, count in kept_state.totals.items()]


def node_gres(node: str, state: NodeState, gpu_model: GpuModel, gres_type: GresTypes | str | None) -> str:
    """Render the Gres value of a node, such as ``gpu:h100:4``, for its line in slurm.conf."""
    return ",".join(_gres_items(node, state, _to_gres_types(gpu_model, gres_type)))


def _slurm_conf_lines(frame: pl.DataFrame, gpu_model: GpuModel, at: datetime, types: GresTypes) -> str:
    """Render the lines of slurm.conf at one time of a validated plan."""
    states = node_states_at(frame, at)
    combined = NodeState(tuple(enumerate(frame["layout"].unique().sort().to_list())))
    kinds = dict.fromkeys(f"gres/gpu:{types.type_of(node, profile)}" for profile in combined.totals for node in states)
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
        counts = _gres_items(node, state, types)
        lines.append(f"NodeName={node}" + (f" Gres={','.join(counts)}" if counts else ""))
    return "\n".join(lines) + "\n"


def _type_notes(gpu_model: GpuModel, types: GresTypes) -> list[str]:
    """Write comments about the GPU variants for which slurmd detects these types."""
    if types.is_observed:
        return ["# GRES types as the nodes have them today."]
    detected = {name: derive_slurm_type(name) for name in list_model_aliases(gpu_model.name, "nvml")}
    # Before the profile, the type must be the end of the one found.
    matching = [name for name, slurm_type in detected.items() if slurm_type.endswith(types.full.lower())]
    other_variants = [f"{name}: {slurm_type}" for name, slurm_type in detected.items() if name not in matching]
    notes = ["# Types as given by --gres-type."]
    if matching:
        notes = [f"# Types as slurmd detects them on {' and '.join(matching)}."]
    if other_variants:
        notes.append(f"# Other variants of this GPU model need --gres-type: {'; '.join(other_variants)}.")
    return notes


def _to_gres_types(gpu_model: GpuModel, gres_type: GresTypes | str | None) -> GresTypes:
    """Convert the type of a full GPU to the GRES types of the nodes; None: the types that slurmd detects."""
    if isinstance(gres_type, GresTypes):
        return gres_type
    full_type = gres_type if gres_type is not None else find_slurm_type(gpu_model.name)
    if not _SLURM_TYPE_NAME.fullmatch(full_type):
        allowed = "letters, digits, '_', '.' and '-'"
        raise GeometryError("Slurm GRES type", allowed, repr(full_type), "Use the type of 'slurmd -G'.")
    return GresTypes(full_type, f"{full_type}_")


SLURM_PROGRAMS_FOLDER = "/etc/slurm/gpuplanner"
"""Folder of the power-saving programs on the Slurm controller."""


def add_power_saving_files(bundle: FleetBundle) -> None:
    """Add Slurm power saving, with a node name for each layout that a machine may have."""
    rules, path_of = bundle.rules, bundle.path_of
    names = _name_pool_nodes(rules.pools)
    # Where the type of the GPUs is not known, these fail: before any file is written.
    node_lines = [
        f"NodeName={name} NodeHostname={machine} NodeAddr={machine} Feature={pool.name} State=CLOUD "
        f"Gres={node_gres(pool.nodes[0], pool.state, bundle.gpu_model, bundle.gres_type)}"
        for pool, name, machine in _renamed_nodes(bundle, names)
    ]
    gres_lines = _controller_gres_lines(bundle, names)
    if bundle.gpu_model.profiles:
        purpose = "MIG configurations, one per pool; `power.sh` applies them on the machine"
        bundle.add(
            to_mig_parted(rules.make_pool_plan(), bundle.gpu_model), FileStep(path_of("mig-parted.yaml"), purpose)
        )
    bundle.add(GRES_CONF, FileStep(path_of("gres.conf"), "for nodes whose Slurm has NVML"))
    layouts = [
        f"{name} {machine} {pool.state.config_name}"
        for pool in rules.pools
        for name, machine in zip(names[pool.name], pool.nodes, strict=True)
    ]
    bundle.files[path_of("layouts.txt")] = join_lines(layouts)
    kept = [(pool, pool.kept) for pool in rules.pools if pool.kept]
    headroom = float(facts("controllers").filter(controller="slurm", fact="resume_headroom")["value"].item())
    values = {
        "PROGRAMS": SLURM_PROGRAMS_FOLDER,
        "LEAD_S": f"{rules.lead_s:.0f}",
        "SLOW_S": f"{rules.lead_slow_s:.0f}",
        "RESUME_TIMEOUT": f"{headroom * rules.lead_slow_s:.0f}",
        "KEPT": ",".join(_idle_node_ranges(names[pool.name], count) for pool, count in kept),
        "NODES": "\n".join(node_lines),
        "PARTITIONS": "\n".join(
            f"PartitionName=gpuplanner-{pool.name} Nodes={','.join(names[pool.name])} "
            f"SuspendTime={rules.idle_s:.0f} MaxTime=INFINITE State=UP"
            for pool in rules.pools
        ),
        "RESERVE": "\n".join(f"keep gpuplanner-{pool.name} {count}" for pool, count in kept) or ":",
    }  # fmt: skip
    text = bundle.script("pools.conf", **values)
    if not kept:
        text = "".join(line for line in text.splitlines(True) if not line.startswith("SuspendExcNodes="))
    purpose = "power saving: a Slurm partition per pool, and a node name per MIG layout of a machine"
    bundle.add(text, FileStep(path_of("pools.conf"), purpose))
    if gres_lines:
        purpose = "GPUs of those node names for the controller, which counts none while they are powered down"
        text = bundle.script("controller_gres.conf", LINES="\n".join(gres_lines))
        bundle.add(text, FileStep(path_of("controller-gres.conf"), purpose))
    programs = {
        "resume.sh": "ResumeProgram: powers a machine up under one node name at a time",
        "suspend.sh": "SuspendProgram: powers machines down",
        "power.sh": "powers one machine up or down: **write it for your site**, the shipped script only logs",
        "reserve.sh": "powers up idle nodes until the reserve is full",
    }
    for name, program_purpose in programs.items():
        bundle.add(bundle.script(name, **values), FileStep(path_of(name), program_purpose))
    bundle.add(bundle.script("pools.sh", **values), FileStep.script(path_of("pools.sh"), "installs all of this"))
    add_release_files(bundle, rules.released, "drains the nodes of `released.txt`, which are not needed")


def _name_pool_nodes(pools: Sequence[PoolRule]) -> dict[str, list[str]]:
    """Name the nodes of each node pool: a machine keeps its own name in the first pool that contains it."""
    named_nodes: set[str] = set()
    names_by_pool = {}
    for pool in pools:
        names_by_pool[pool.name] = [node if node not in named_nodes else f"{node}-{pool.name}" for node in pool.nodes]
        named_nodes.update(pool.nodes)
    return names_by_pool


def _idle_node_ranges(names: Sequence[str], count: int) -> str:
    """Write the nodes of which a number stay powered on: any of a range of numbers, or else the first ones.

    Examples
    --------
    >>> _idle_node_ranges(["n01-mig", "n02-mig"], 1), _idle_node_ranges(["n1"], 1), _idle_node_ranges(["n1", "n3"], 1)
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


def _renamed_nodes(bundle: FleetBundle, names: dict[str, list[str]]) -> Iterator[tuple[PoolRule, str, str]]:
    """Yield node pool, node name and machine for names that differ from the machine's own."""
    for pool in bundle.rules.pools:
        for name, machine in zip(names[pool.name], pool.nodes, strict=True):
            if name != machine:
                yield pool, name, machine


def _controller_gres_lines(bundle: FleetBundle, names: dict[str, list[str]]) -> list[str]:
    """Write lines of the controller's gres.conf for cloud nodes, one for each node pool and type.

    slurmctld counts device files, which need not exist but must be unique; it ignores a count without files (22.05.8),
    and lines without ``AutoDetect=off`` if its own gres.conf detects GPUs.
    """
    members: dict[str, list[str]] = {}
    for pool, name, _ in _renamed_nodes(bundle, names):
        members.setdefault(pool.name, []).append(name)
    lines = []
    for pool in bundle.rules.pools:
        first = 0
        if pool.name not in members:
            continue  # the GPUs of a machine under its own name are in the site's slurm.conf
        for gres in node_gres(pool.nodes[0], pool.state, bundle.gpu_model, bundle.gres_type).split(","):
            kind, name, count = gres.split(":")
            files = f"/dev/nvidia[{first}-{first + int(count) - 1}]"
            first += int(count)
            nodes = ",".join(members[pool.name])
            lines.append(f"NodeName={nodes} AutoDetect=off Name={kind} Type={name} File={files}")
    return lines
