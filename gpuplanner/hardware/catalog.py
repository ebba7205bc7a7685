"""The catalogue of facts: tables with sources, names of GPU models, words of clusters."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from types import MappingProxyType

import polars as pl

from gpuplanner.core.errors import GeometryError, ScenarioError, resolve

FACT_TABLES = (
    "mig_profiles", "gpu_specs", "gpu_prices", "board_names", "carbon_intensity", "parameters", "model_presets",
    "training_tools", "training_methods", "training_words", "actuator_abilities", "controllers", "sharing_modes",
    "partition_modes", "telemetry_metrics", "foreign_forms", "export_commands", "measures", "slurm_states",
    "currencies", "instance_types", "node_labels", "gpu_resources",
)  # fmt: skip
_FLOATS = (
    "memory_gib_total", "memory_gib", "memory_gb", "memory_bandwidth_gb_s", "dense_bf16_tflops", "fp32_tflops",
    "dense_fp16_tflops", "dense_fp8_tflops", "tdp_w", "idle_w", "nvlink_or_fabric_total_gb_s",
    "price_per_instance_hour", "price_per_gpu_hour", "gco2e_per_kwh", "carbon_free_fraction", "low", "high",
    "board_share",
)  # fmt: skip
_INTEGERS = (
    "memory_slices_total", "compute_slices_total", "gi_profile_id", "compute_slices", "memory_slices", "sms",
    "copy_engines", "max_instances", "placement_size", "decoders", "encoders", "jpeg_engines", "ofa_engines",
    "sm_or_cu_count", "mig_max_instances", "gpu_count", "partitions", "compute_units", "minor_units", "gpus",
)  # fmt: skip
_NUMBERS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_FLOATS, pl.Float64),
    **dict.fromkeys(_INTEGERS, pl.Int32),
    **dict.fromkeys(("params_published", "number"), pl.Int64),
}
"""Columns of numbers, whatever the table; every other column is text, but for the values of ``parameters``."""

DEFAULT_FOR = "default_for"
"""Rows of ``actuator_abilities`` that name sources of data, and no ability."""


@dataclass(frozen=True)
class Parameter:
    """One figure with its range, unit and source."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    meaning: str
    source: str
    date: str


@dataclass(frozen=True)
class ActuatorFact:
    """One thing that a path can or cannot do, in the words of the table, with its range and source."""

    ability: str
    value: str | None
    low: float | None
    high: float | None
    unit: str | None
    meaning: str
    source: str
    date: str


@functools.cache
def facts(name: str) -> pl.DataFrame:
    """One shipped fact table.

    Parameters
    ----------
    name : str
        ``"mig_profiles"``, ``"gpu_specs"``, ``"board_names"``, ``"gpu_prices"``, ``"carbon_intensity"``,
        ``"parameters"``, ``"model_presets"``, ``"training_tools"``, ``"training_methods"``,
        ``"training_words"``, ``"actuator_abilities"``, ``"partition_modes"``, ``"telemetry_metrics"``,
        ``"foreign_forms"``, ``"export_commands"``, ``"measures"``, ``"slurm_states"``, ``"currencies"``,
        ``"instance_types"``, ``"node_labels"`` or ``"gpu_resources"``.

    Returns
    -------
    polars.DataFrame
        The rows as shipped, with ``source`` and, where one is known, ``date``.

    Raises
    ------
    ScenarioError
        If there is no such table.

    Examples
    --------
    >>> facts("mig_profiles").filter(gpu_model="A30-24GB")["profile"].to_list()
    ['1g.6gb', '1g.6gb+me', '2g.12gb', '2g.12gb+me', '4g.24gb']
    """
    table = resolve(name, FACT_TABLES, what="fact table", error=ScenarioError)
    path = resources.files("gpuplanner.hardware") / "facts" / f"{table}.csv"
    rows = pl.read_csv(path.read_bytes(), infer_schema=False)
    numbers = [name for name in rows.columns if name in _NUMBERS or (table, name) == ("parameters", "value")]
    return rows.cast({name: _NUMBERS.get(name, pl.Float64) for name in numbers})


@functools.cache
def export_command(name: str) -> str:
    """The command line that writes what gpuplanner reads.

    Parameters
    ----------
    name : str
        ``"sacct"``, ``"nodes"`` or ``"kubectl"``.

    Examples
    --------
    >>> export_command("nodes")
    'scontrol show node > nodes.txt'
    """
    return str(facts("export_commands").row(by_predicate=pl.col("name") == name, named=True)["command"])


def measure_words(action: str, actuator: str) -> dict[str, str]:
    """How people carry out a measure that no file performs: what to edit, to run, to check and to undo.

    Parameters
    ----------
    action : str
        ``"pack"``, ``"raise_limit"`` or ``"release"``.
    actuator : str
        Who changes the fleet.

    Examples
    --------
    >>> measure_words("pack", "slurm")["command"]
    'scontrol reconfigure'
    """
    rows = facts("measures").filter(pl.col("actuators").str.split(";").list.contains(actuator), action=action)
    return {name: text or "" for name, text in rows.row(0, named=True).items()}


def board_names() -> list[str]:
    """Boards with a MIG geometry, in the order of the catalogue.

    Examples
    --------
    >>> board_names()[0]
    'A30-24GB'
    """
    return list(_names()[0])


def find_board(text: str) -> str:
    """Resolve a board name; a unique prefix is enough, and so is what NVML, node labels or Slurm call it.

    Raises
    ------
    GeometryError
        If no board, or more than one, is called so. Unknown boards are refused, never guessed.

    Examples
    --------
    >>> find_board("B200"), find_board("nvidia_h100_80gb_hbm3")
    ('B200-180GB', 'H100-80GB-SXM5')
    """
    return _resolved(text, board_names())


def _resolved(text: str, names: Sequence[str]) -> str:
    called = [gpu_model for gpu_model in boards_called(text) if gpu_model in names]
    return called[0] if len(called) == 1 else resolve(text, names, what="gpu_model", error=GeometryError)


def whole_board_names() -> list[str]:
    """Boards of the catalogue without a MIG geometry, sorted.

    Examples
    --------
    >>> whole_board_names()[:3]
    ['A10', 'A10G', 'A16']
    """
    return list(_names()[1])


@functools.cache
def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Boards with a MIG geometry and without."""
    cut = tuple(facts("mig_profiles")["gpu_model"].unique(maintain_order=True))
    return cut, tuple(name for name in facts("board_names")["gpu_model"].unique().sort() if name not in cut)


@functools.cache
def find_any_board(text: str) -> str:
    """Resolve the name of a board, with a MIG geometry or without, as :func:`find_board` does.

    Raises
    ------
    GeometryError
        If no board, or more than one, is called so.

    Examples
    --------
    >>> find_any_board("h200"), find_any_board("t4")
    ('H200-141GB', 'T4')
    """
    return _resolved(text, [*board_names(), *whole_board_names()])


@dataclass(frozen=True)
class DataSheet:
    """What the data sheet of a board states; None where it does not.

    Memory [GB] and its bandwidth [GB/s], peaks without sparsity [TFLOPS], the rating [W], bandwidth to other GPUs of
    both directions [GB/s], and multiprocessors.
    """

    gpu_model: str
    mig_model: str | None
    architecture: str | None
    memory_gb: float | None
    memory_bandwidth_gb_s: float | None
    dense_bf16_tflops: float | None
    dense_fp16_tflops: float | None
    fp32_tflops: float | None
    dense_fp8_tflops: float | None
    tdp_w: float | None
    nvlink_or_fabric_total_gb_s: float | None
    sm_or_cu_count: int | None
    source: str


@functools.cache
def board_spec(gpu_model: str) -> DataSheet:
    """Data-sheet facts of a board, of its first variant where there are several.

    Raises
    ------
    GeometryError
        If the board is unknown, or the catalogue has no data sheet of it.

    Examples
    --------
    >>> board_spec("H100-80GB-SXM5").tdp_w, board_spec("T4").tdp_w
    (700.0, 70.0)
    """
    name = find_any_board(gpu_model)
    sheets = facts("gpu_specs")
    rows = sheets.filter((pl.col("mig_model") == name) | (pl.col("gpu_model") == name))
    if rows.is_empty():
        todo = "Add the data sheet of the GPU model to gpu_specs.csv."
        raise GeometryError(f"GPU model {name!r}", "a row in gpu_specs", "none", todo)
    sheet = rows.row(0, named=True)
    return DataSheet(*(sheet[field.name] for field in fields(DataSheet)))


@functools.cache
def parameter(name: str) -> Parameter:
    """One sourced figure with its range.

    Examples
    --------
    >>> parameter("pue").value
    1.56
    """
    table = facts("parameters")
    known = resolve(name, table["name"], what="parameter", error=ScenarioError)
    return Parameter(**table.row(by_predicate=pl.col("name") == known, named=True))


@functools.cache
def actuator_facts(actuator: str, *gpu_model: str | None, any_board: bool = False) -> Mapping[str, ActuatorFact]:
    """What an actuator can do, by ability; on one GPU model where that matters.

    Parameters
    ----------
    actuator : str
        One of the actuators that ``actuator_abilities`` has rows of.
    *board : str, optional
        Its architecture, for example ``"Hopper"``, and its name; what holds for some boards alone is left out without
        them.
    any_board : bool
        Take what holds on some boards: what the actuator can do where the boards allow it.

    Raises
    ------
    ScenarioError
        If the table has no such actuator.

    Examples
    --------
    >>> actuator_facts("autoscaler")["cool_s"].value
    '600'
    >>> [actuator_facts("dra", gpu_model)["cuts_on_demand"].value for gpu_model in ("Hopper", "Ampere")]
    ['gpus', 'never']
    """
    table = facts("actuator_abilities")
    actuators = table["actuators"].str.split(";")
    known = resolve(actuator, sorted(set(actuators.explode())), what="actuator", error=ScenarioError)
    mine = table.filter(actuators.list.contains(known), pl.col("ability") != DEFAULT_FOR)
    found: dict[str, ActuatorFact] = {}
    for row in mine.iter_rows(named=True):
        wanted = row.pop("gpu_models")
        del row["actuators"]
        if wanted is None:
            found.setdefault(row["ability"], ActuatorFact(**row))
        elif any_board or not {*gpu_model}.isdisjoint(wanted.split(";")):
            found[row["ability"]] = ActuatorFact(**row)
    return MappingProxyType(found)


@functools.cache
def actuators_by_source() -> Mapping[str, str]:
    """Sources of data whose clusters have an actuator of their own, and that actuator.

    Examples
    --------
    >>> actuators_by_source()["kubernetes"]
    'mig-manager'
    """
    rows = facts("actuator_abilities").filter(ability=DEFAULT_FOR).select("value", "actuators").iter_rows()
    return MappingProxyType({source: actuator for listed, actuator in rows for source in listed.split(";")})


@dataclass(frozen=True)
class ListPrice:
    """Median of list prices of one GPU-hour, with their range [currency per GPU-hour], number and newest date."""

    value: float
    low: float
    high: float
    currency: str
    rows: int
    source: str
    date: str


@functools.cache
def gpu_price(gpu_model: str, *, term: str = "on_demand") -> ListPrice:
    """Median list price of one GPU-hour.

    The price of an instance is divided by its GPUs, so host CPU and disk are included.

    Parameters
    ----------
    gpu_model : str
        Board of the catalogue, with a MIG geometry or without.
    term : {"on_demand", "spot"}
        Kind of purchase.

    Returns
    -------
    ListPrice

    Raises
    ------
    ScenarioError
        If no shipped row matches.

    Examples
    --------
    >>> gpu_price("H100-80GB-SXM5").currency
    'USD'
    """
    name = find_any_board(gpu_model)
    rows = _prices(name, term)
    if rows.is_empty():
        expected = "at least one row in gpu_prices"
        todo = "Set price_usd_per_gpu_hour in the scenario."
        raise ScenarioError(f"price of {name} ({term})", expected, "none", todo)
    prices = rows["price_per_gpu_hour"]
    middle, low, high = (float(each) for each in (prices.median(), prices.min(), prices.max()))  # type: ignore[arg-type]
    source = "; ".join(rows["source"].unique().sort())
    return ListPrice(middle, low, high, rows["currency"][0], rows.height, source, str(rows["date"].max()))


@functools.cache
def has_price(gpu_model: str, *, term: str = "on_demand") -> bool:
    """Whether a price of a board is shipped.

    Examples
    --------
    >>> has_price("H100-80GB-SXM5"), has_price("A30-24GB")
    (True, False)
    """
    return not _prices(find_any_board(gpu_model), term).is_empty()


def _prices(gpu_model: str, term: str) -> pl.DataFrame:
    """Prices of a board; some lists name it without its form: V100-16GB for V100-16GB-SXM2."""
    listed = pl.lit(gpu_model).str.starts_with(pl.format("{}-", "gpu_model"))
    return facts("gpu_prices").filter((pl.col("gpu_model") == gpu_model) | listed, term=term)


_VENDOR = re.compile(r"^(nvidia|amd|tesla|geforce|instinct)+")


def boards_called(word: str) -> tuple[str, ...]:
    """Boards that a word may mean.

    Case, blanks, ``-`` and ``_`` do not matter. Words that name a board in full come first: only if there is none
    is the maker's name left out (``nvidia_a100`` and ``A100`` are then the same), then the order of the parts.
    Names are those of ``board_names.csv`` (what NVML and nvidia-smi print, the label ``nvidia.com/gpu.product`` of a
    Kubernetes node, types of a GPU in Slurm, names of the same board in other drivers, in clouds and in trade), names
    of the catalogue, and types as slurmd derives them.

    Parameters
    ----------
    word : str
        A name without a MIG profile: ``"NVIDIA-H100-80GB-HBM3"``, ``"a100"``, ``"nvidia_h100_pcie"``.

    Returns
    -------
    tuple of str
        Boards in the order of ``board_names.csv``, the more common of a family first; empty if no board is called
        so. Several if the word alone does not decide: ``a100`` may have 40 or 80 GB.

    Examples
    --------
    >>> boards_called("NVIDIA-H100-80GB-HBM3"), boards_called("a100_80")
    (('H100-80GB-SXM5',), ('A100-80GB',))
    >>> boards_called("H100-SXM5-80GB")
    ('H100-80GB-SXM5',)
    >>> boards_called("a100")
    ('A100-40GB', 'A100-80GB')
    >>> boards_called("TPU v5")
    ()
    """
    table = _index()
    fold = _fold(word)
    return table.get(fold) or table.get(_VENDOR.sub("", fold)) or table.get(_parts(word)) or ()


def names_of(gpu_model: str, kind: str) -> tuple[str, ...]:
    """Names of one kind that a board goes by, the usual one first.

    Examples
    --------
    >>> names_of("A100-40GB", "nvml")[:2]
    ('NVIDIA A100-SXM4-40GB', 'NVIDIA A100-PCIE-40GB')
    """
    return tuple(facts("board_names").filter(gpu_model=gpu_model, kind=kind)["name"])


@functools.cache
def all_boards() -> tuple[str, ...]:
    """Boards with a name in the catalogue, with and without MIG.

    Examples
    --------
    >>> "T4" in all_boards()
    True
    """
    return tuple(facts("board_names")["gpu_model"].unique(maintain_order=True))


def slurm_type(nvml_name: str) -> str:
    """Type that slurmd gives to a whole GPU with ``AutoDetect=nvml``.

    Lower case, blanks become ``_``, and only what stands before the first ``-`` is kept [1]_. A MIG device has ``_``
    and its profile behind it. A type in slurm.conf must be part of this one, or the node is drained.

    References
    ----------
    .. [1] SchedMD/slurm, src/plugins/gpu/nvml/gpu_nvml.c; seen with slurmd 22.05.8.

    Examples
    --------
    >>> slurm_type("NVIDIA A100-SXM4-80GB"), slurm_type("NVIDIA H100 80GB HBM3")
    ('nvidia_a100', 'nvidia_h100_80gb_hbm3')
    """
    return nvml_name.partition("-")[0].strip().lower().replace(" ", "_")


def slurm_type_of(gpu_model: str) -> str:
    """Type that slurmd finds for the usual variant of a board.

    Raises
    ------
    GeometryError
        If no NVML name of the board is known.

    Examples
    --------
    >>> slurm_type_of("H100-80GB-PCIe"), slurm_type_of("H200-141GB")
    ('nvidia_h100_pcie', 'nvidia_h200')
    """
    found = names_of(gpu_model, "nvml")
    if not found:
        expected = "a GPU model with an NVML name in board_names.csv"
        todo = "Give the type that slurmd detects ('slurmd -G') with --gres-type."
        raise GeometryError(f"Slurm type of {gpu_model}", expected, "none", todo)
    return slurm_type(found[0])


@functools.cache
def _index() -> dict[str, tuple[str, ...]]:
    """Boards by folded name, each list in the order of the table."""
    found: dict[str, dict[str, None]] = {}

    def add(name: str, gpu_model: str) -> None:
        fold = _fold(name)
        for key in {fold, _VENDOR.sub("", fold), _parts(name)} - {""}:
            found.setdefault(key, {})[gpu_model] = None

    rows = facts("board_names")
    for gpu_model in rows["gpu_model"].unique(maintain_order=True):
        add(gpu_model, gpu_model)
    for variant, gpu_model in facts("gpu_specs").select("gpu_model", "mig_model").iter_rows():
        add(variant, gpu_model or variant)
    for gpu_model, kind, name in rows.select("gpu_model", "kind", "name").iter_rows():
        if kind == "nvml":
            add(slurm_type(name), gpu_model)
        add(name, gpu_model)
    order = {gpu_model: place for place, gpu_model in enumerate(rows["gpu_model"].unique(maintain_order=True))}
    return {key: tuple(sorted(boards, key=order.__getitem__)) for key, boards in found.items()}


def _parts(name: str) -> str:
    """Parts of a name but the maker's in order of the alphabet, apart; of one part alone nothing."""
    parts = sorted(re.findall(r"[a-z0-9]+", _VENDOR.sub("", name.casefold())))
    return " ".join(parts) if len(parts) > 1 else ""


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


@dataclass(frozen=True)
class InstanceType:
    """GPUs of one instance type of a cloud.

    - ``provider``, ``name``: Cloud and name of the type, as node labels and bills have it.
    - ``gpu_model``: GPU model of the catalogue.
    - ``gpus``: GPUs that the instance shows.
    - ``board_share``: Part of a board that each of them is; 1 for full GPUs, less for a vGPU.
    """

    provider: str
    name: str
    gpu_model: str
    gpus: int
    board_share: float


def instance_type(name: str | None) -> InstanceType | None:
    """GPUs of an instance type; None where the catalogue does not know it, or it has none.

    Examples
    --------
    >>> instance_type("p5.48xlarge").gpus, instance_type("ml.p4de.24xlarge").gpu_model
    (8, 'A100-80GB')
    >>> instance_type("m5.large") is None
    True
    """
    word = (name or "").casefold()
    types = _instance_types()
    # SageMaker and HyperPod write "ml." before an instance type of EC2.
    return types.get(word) or types.get(word.removeprefix("ml."))


@functools.cache
def node_labels(meaning: str) -> Mapping[str, str | None]:
    """Labels of Kubernetes nodes with one meaning, the most trusted first, each with the unit of its value.

    Examples
    --------
    >>> list(node_labels("clients"))
    ['cloud.google.com/gke-max-shared-clients-per-gpu']
    """
    return MappingProxyType(dict(facts("node_labels").filter(meaning=meaning).select("label", "unit").rows()))


@functools.cache
def resource_words(place: str, role: str) -> Mapping[str, str | None]:
    """Words that stand in one place of a Kubernetes object for one thing, each with its unit.

    Parameters
    ----------
    place : str
        ``"resource"``, ``"node_annotation"``, ``"pod_annotation"``, ``"device_class"`` or ``"dra_driver"``.
    role : str
        What the word stands for, such as ``"full_gpu"``, ``"cores"`` or ``"accelerator"``.

    Examples
    --------
    >>> resource_words("resource", "gpus_of_node")["aliyun.com/gpu-count"]
    '1'
    """
    rows = facts("gpu_resources").filter(place=place, role=role)
    return MappingProxyType(dict(rows.select("word", "unit").rows()))


@functools.cache
def sharing_systems() -> tuple[Mapping[str, tuple[str, str | None]], ...]:
    """For each way to share GPUs: role (number, cores, memory, memory_percentage) → resource and its unit.

    Examples
    --------
    >>> sharing_systems()[0]["memory"]
    ('nvidia.com/gpumem', 'MiB')
    """
    roles = pl.col("role").is_in(["number", "cores", "memory", "memory_percentage"])
    rows = facts("gpu_resources").filter(pl.col("place") == "resource", roles)
    return tuple(
        {role: (word, unit) for role, word, unit in part.select("role", "word", "unit").rows()}
        for part in rows.partition_by("system", maintain_order=True)
    )


@functools.cache
def partitions_of(gpu_model: str) -> Mapping[str, int]:
    """Compute partition modes of an AMD GPU → devices that it shows; empty for others.

    Examples
    --------
    >>> partitions_of("MI300X")["CPX"], dict(partitions_of("T4"))
    (8, {})
    """
    rows = facts("partition_modes").filter(gpu_model=gpu_model, kind="compute")
    return MappingProxyType(dict(rows.select("mode", "partitions").rows()))


MAX_GPUS_PER_NODE = 16
"""Most GPUs that an instance type of the catalogue has."""
USUAL_GPUS = 8
"""GPUs of a server where no instance type of the catalogue has the model."""


def partitions_of_units(gpu_model: str, units: int) -> int | None:
    """Partitions of each GPU of a node that lists more units than a server has; None where it does not follow.

    Examples
    --------
    >>> partitions_of_units("MI300X", 64), partitions_of_units("MI300X", 8), partitions_of_units("T4", 64)
    (8, None, None)
    """
    servers = {kind.gpus for kind in _instance_types().values() if kind.gpu_model == gpu_model}
    sizes = servers or {USUAL_GPUS}
    fits = {n for n in partitions_of(gpu_model).values() if units % n == 0 and units // n in sizes}
    return fits.pop() if units > MAX_GPUS_PER_NODE and len(fits) == 1 else None


@functools.cache
def _instance_types() -> dict[str, InstanceType]:
    rows = facts("instance_types").select("provider", "instance_type", "gpu_model", "gpus", "board_share")
    return {row[1].casefold(): InstanceType(*row) for row in rows.iter_rows()}
