"""Catalogue of facts with sources: GPU models and their aliases, prices, actuators, instance types, node labels."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from types import MappingProxyType
from typing import Any

import polars as pl

from gpuplanner.core.errors import GeometryError, ScenarioError, resolve_name
from gpuplanner.core.serialization import make_file_error, read_packaged_rows

_FACTS_FOLDER = resources.files("gpuplanner.hardware") / "facts"
"""Folder of the CSV tables of facts that are shipped with the package."""
FACT_TABLE_NAMES = tuple(
    sorted(file.name.removesuffix(".csv") for file in _FACTS_FOLDER.iterdir() if file.name.endswith(".csv"))
)
"""Names of the tables of facts, without ``.csv``."""
_NUMBER_DTYPES: dict[str, type[pl.DataType]] = {
    row["column"]: getattr(pl, row["dtype"])
    for row in read_packaged_rows("gpuplanner.hardware", "fact_number_columns.csv")
}
"""Number column of the fact tables → polars type; other columns are text, except ``value`` of ``parameters``."""

DEFAULT_ACTUATOR_ABILITY = "default_for"
"""Value of column ``ability`` in the table ``actuator_abilities`` whose rows name the data sources (such as ``slurm``)
for which an actuator is the default."""


@dataclass(frozen=True)
class CatalogParameter:
    """One row of the table ``parameters``: a named number such as the default PUE, with its range, unit and source."""

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
    """One row of the table ``actuator_abilities``: an ability or delay of an actuator, with range and source."""

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
    """Load one shipped fact table.

    Parameters
    ----------
    name : str
        ``"mig_profiles"``, ``"gpu_specs"``, ``"board_names"``, ``"gpu_prices"``, ``"carbon_intensity"``,
        ``"parameters"``, ``"model_presets"``, ``"training_tools"``, ``"training_methods"``,
        ``"training_words"``, ``"actuator_abilities"``, ``"controllers"``, ``"sharing_modes"``,
        ``"partition_modes"``, ``"telemetry_metrics"``, ``"foreign_forms"``, ``"export_commands"``,
        ``"measures"``, ``"slurm_states"``, ``"currencies"``, ``"instance_types"``, ``"node_labels"``,
        ``"gpu_resources"`` or ``"architecture_keys"``.

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
    table = resolve_name(name, FACT_TABLE_NAMES, subject="fact table", error=ScenarioError)
    rows = pl.read_csv((_FACTS_FOLDER / f"{table}.csv").read_bytes(), infer_schema=False)
    numbers = [name for name in rows.columns if name in _NUMBER_DTYPES or (table, name) == ("parameters", "value")]
    return rows.cast({name: _NUMBER_DTYPES.get(name, pl.Float64) for name in numbers})


@functools.cache
def export_command(name: str) -> str:
    """Return the shell command that exports data which gpuplanner reads.

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


def find_measure_texts(action: str, actuator: str) -> dict[str, str]:
    """Find the texts that tell people how to carry out a measure by hand: what to edit, run, check and undo.

    Parameters
    ----------
    action : str
        ``"pack"``, ``"raise_limit"`` or ``"release"``.
    actuator : str
        Actuator of the cluster.

    Returns
    -------
    dict
        Columns of the table ``measures``; missing texts are empty.

    Examples
    --------
    >>> find_measure_texts("pack", "slurm")["command"]
    'scontrol reconfigure'
    """
    rows = facts("measures").filter(pl.col("actuators").str.split(";").list.contains(actuator), action=action)
    return {name: text or "" for name, text in rows.row(0, named=True).items()}


def mig_model_names() -> list[str]:
    """List the GPU models with a MIG geometry, in the order of the catalogue.

    Examples
    --------
    >>> mig_model_names()[0]
    'A30-24GB'
    """
    return list(_model_names_by_mig()[0])


def resolve_mig_model(text: str) -> str:
    """Resolve the name of a GPU model with MIG: a unique prefix, or its name in NVML, node labels or Slurm.

    Raises
    ------
    GeometryError
        If no model or several match. Unknown models are rejected, never guessed.

    Examples
    --------
    >>> resolve_mig_model("B200"), resolve_mig_model("nvidia_h100_80gb_hbm3")
    ('B200-180GB', 'H100-80GB-SXM5')
    """
    return _resolve_model_name(text, mig_model_names())


def _resolve_model_name(text: str, names: Sequence[str]) -> str:
    """Resolve a GPU model among given names, by alias or by unique prefix."""
    matches = [gpu_model for gpu_model in match_gpu_models(text) if gpu_model in names]
    return matches[0] if len(matches) == 1 else resolve_name(text, names, subject="gpu_model", error=GeometryError)


def non_mig_model_names() -> list[str]:
    """List the GPU models without a MIG geometry, sorted.

    Examples
    --------
    >>> non_mig_model_names()[:3]
    ['A10', 'A10G', 'A16']
    """
    return list(_model_names_by_mig()[1])


@functools.cache
def _model_names_by_mig() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List the names of the GPU models with a MIG geometry, and of those without."""
    mig_models = tuple(facts("mig_profiles")["gpu_model"].unique(maintain_order=True))
    return mig_models, tuple(
        name for name in facts("board_names")["gpu_model"].unique().sort() if name not in mig_models
    )


@functools.cache
def resolve_gpu_model(text: str) -> str:
    """Resolve the name of any GPU model, with or without MIG, as :func:`resolve_mig_model` does.

    Raises
    ------
    GeometryError
        If no model or several match.

    Examples
    --------
    >>> resolve_gpu_model("h200"), resolve_gpu_model("t4")
    ('H200-141GB', 'T4')
    """
    return _resolve_model_name(text, [*mig_model_names(), *non_mig_model_names()])


def read_gpu_model(values: Any, file: str) -> str:  # noqa: ANN401 - of a file
    """Read the GPU model of a row of a configuration file: its name in the catalog.

    Parameters
    ----------
    values : LinedMapping
        Row with the key ``gpu_model``.
    file : str
        File name, for the message.

    Raises
    ------
    ScenarioError
        If no model or several match, with the line.
    """
    try:
        return resolve_gpu_model(str(values["gpu_model"]))
    except GeometryError as error:
        raise make_file_error(file, values.lines["gpu_model"], "a GPU model of the catalog", str(error)) from None


@dataclass(frozen=True)
class GpuDataSheet:
    """Specifications of a GPU model in its vendor's data sheet; None where the data sheet states none.

    Memory [GB], memory bandwidth [GB/s], peak rates without sparsity [TFLOPS], rated power [W], bandwidth to other GPUs
    in both directions [GB/s], and number of multiprocessors.
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
def find_data_sheet(gpu_model: str) -> GpuDataSheet:
    """Find the data sheet of a GPU model, of its first variant where there are several.

    Raises
    ------
    GeometryError
        If the model is unknown or has no data sheet in the catalogue.

    Examples
    --------
    >>> find_data_sheet("H100-80GB-SXM5").tdp_w, find_data_sheet("T4").tdp_w
    (700.0, 70.0)
    """
    name = resolve_gpu_model(gpu_model)
    rows = facts("gpu_specs").filter((pl.col("mig_model") == name) | (pl.col("gpu_model") == name))
    if rows.is_empty():
        todo = "Add the data sheet of the GPU model to gpu_specs.csv."
        raise GeometryError(f"GPU model {name!r}", "a row in gpu_specs", "none", todo)
    sheet = rows.row(0, named=True)
    return GpuDataSheet(*(sheet[field.name] for field in fields(GpuDataSheet)))


@functools.cache
def find_parameter(name: str) -> CatalogParameter:
    """Find a named number of the catalogue's table ``parameters``, by its name or a unique prefix.

    Examples
    --------
    >>> find_parameter("pue").value
    1.56
    """
    table = facts("parameters")
    full_name = resolve_name(name, table["name"], subject="parameter", error=ScenarioError)
    return CatalogParameter(**table.row(by_predicate=pl.col("name") == full_name, named=True))


@functools.cache
def list_actuator_facts(
    actuator: str, *model_names: str | None, any_gpu_model: bool = False
) -> Mapping[str, ActuatorFact]:
    """List the abilities of an actuator, for a GPU model where they depend on it.

    Parameters
    ----------
    actuator : str
        An actuator in the table ``actuator_abilities``.
    *model_names : str, optional
        Architecture and name of the GPU model, for example ``"Hopper"``. Without them, abilities that only some models
        have are left out.
    any_gpu_model : bool
        Include abilities that only some GPU models have.

    Returns
    -------
    mapping of str to ActuatorFact
        By ability.

    Raises
    ------
    ScenarioError
        If the table has no such actuator.

    Examples
    --------
    >>> list_actuator_facts("autoscaler")["cool_s"].value
    '600'
    >>> [list_actuator_facts("dra", gpu_model)["cuts_on_demand"].value for gpu_model in ("Hopper", "Ampere")]
    ['gpus', 'never']
    """
    table = facts("actuator_abilities")
    actuators = table["actuators"].str.split(";")
    full_name = resolve_name(actuator, sorted(set(actuators.explode())), subject="actuator", error=ScenarioError)
    rows = table.filter(actuators.list.contains(full_name), pl.col("ability") != DEFAULT_ACTUATOR_ABILITY)
    facts_by_ability: dict[str, ActuatorFact] = {}
    for row in rows.iter_rows(named=True):
        gpu_models = row.pop("gpu_models")
        del row["actuators"]
        if gpu_models is None:
            facts_by_ability.setdefault(row["ability"], ActuatorFact(**row))
        elif any_gpu_model or not {*model_names}.isdisjoint(gpu_models.split(";")):
            facts_by_ability[row["ability"]] = ActuatorFact(**row)
    return MappingProxyType(facts_by_ability)


@functools.cache
def actuators_by_source() -> Mapping[str, str]:
    """Map data sources, such as ``slurm``, to the default actuator of their clusters.

    Examples
    --------
    >>> actuators_by_source()["kubernetes"]
    'mig-manager'
    """
    rows = facts("actuator_abilities").filter(ability=DEFAULT_ACTUATOR_ABILITY).select("value", "actuators").iter_rows()
    return MappingProxyType({source: actuator for listed, actuator in rows for source in listed.split(";")})


@functools.cache
def has_list_price(gpu_model: str, *, term: str = "on_demand") -> bool:
    """Whether the catalogue has a list price of a GPU model for a type of purchase (`term`).

    Examples
    --------
    >>> has_list_price("H100-80GB-SXM5"), has_list_price("A30-24GB")
    (True, False)
    """
    return not list_prices(resolve_gpu_model(gpu_model), term).is_empty()


def list_prices(gpu_model: str, term: str) -> pl.DataFrame:
    """List the prices of a GPU model and type of purchase; some omit the form factor: V100-16GB for V100-16GB-SXM2.

    Examples
    --------
    >>> list_prices("H100-80GB-SXM5", "on_demand")["currency"].unique().to_list()
    ['USD']
    """
    is_short_name = pl.lit(gpu_model).str.starts_with(pl.format("{}-", "gpu_model"))
    return facts("gpu_prices").filter((pl.col("gpu_model") == gpu_model) | is_short_name, term=term)


_VENDOR_PREFIX_PATTERN = re.compile(r"^(nvidia|amd|tesla|geforce|instinct)+")
"""Vendor and brand words at the beginning of a GPU model name, as in ``nvidiateslat4``, which has only lower-case
letters and digits."""


def match_gpu_models(word: str) -> tuple[str, ...]:
    """List the GPU models that a name may mean.

    Case, blanks, ``-`` and ``_`` do not matter. Exact names come first; only without one is the maker's name ignored
    (``nvidia_a100`` equals ``A100``), then the order of the parts. Known names are those in ``board_names.csv`` (NVML
    and nvidia-smi, the node label ``nvidia.com/gpu.product``, Slurm GPU types, other drivers, clouds and trade), names
    of the catalogue, and types that slurmd derives from them.

    Parameters
    ----------
    word : str
        A name without a MIG profile: ``"NVIDIA-H100-80GB-HBM3"``, ``"a100"``, ``"nvidia_h100_pcie"``.

    Returns
    -------
    tuple of str
        Models in the order of ``board_names.csv``, the more common first; empty if none matches, several if the name is
        ambiguous: ``a100`` may have 40 or 80 GB.

    Examples
    --------
    >>> match_gpu_models("NVIDIA-H100-80GB-HBM3"), match_gpu_models("a100_80")
    (('H100-80GB-SXM5',), ('A100-80GB',))
    >>> match_gpu_models("H100-SXM5-80GB")
    ('H100-80GB-SXM5',)
    >>> match_gpu_models("a100")
    ('A100-40GB', 'A100-80GB')
    >>> match_gpu_models("TPU v5")
    ()
    """
    models_by_alias = _models_by_alias()
    folded = _fold_name(word)
    return (
        models_by_alias.get(folded)
        or models_by_alias.get(_VENDOR_PREFIX_PATTERN.sub("", folded))
        or models_by_alias.get(_sort_name_parts(word))
        or ()
    )


def list_model_aliases(gpu_model: str, kind: str) -> tuple[str, ...]:
    """List a GPU model's names of one kind: ``nvml``, ``product_label``, ``gres_type`` …; the usual one comes first.

    Examples
    --------
    >>> list_model_aliases("A100-40GB", "nvml")[:2]
    ('NVIDIA A100-SXM4-40GB', 'NVIDIA A100-PCIE-40GB')
    """
    return tuple(facts("board_names").filter(gpu_model=gpu_model, kind=kind)["name"])


@functools.cache
def list_gpu_models() -> tuple[str, ...]:
    """List all GPU models of the catalogue, with and without MIG.

    Examples
    --------
    >>> "T4" in list_gpu_models()
    True
    """
    return tuple(facts("board_names")["gpu_model"].unique(maintain_order=True))


def derive_slurm_type(nvml_name: str) -> str:
    """Derive the GPU type that slurmd reports for a full GPU with ``AutoDetect=nvml``.

    It is lower case, with ``_`` for blanks, and ends before the first ``-`` [1]_. A MIG device has ``_`` and its
    profile appended. A type in slurm.conf must be part of this one, or the node is drained.

    References
    ----------
    .. [1] SchedMD/slurm, src/plugins/gpu/nvml/gpu_nvml.c; seen with slurmd 22.05.8.

    Examples
    --------
    >>> derive_slurm_type("NVIDIA A100-SXM4-80GB"), derive_slurm_type("NVIDIA H100 80GB HBM3")
    ('nvidia_a100', 'nvidia_h100_80gb_hbm3')
    """
    return nvml_name.partition("-")[0].strip().lower().replace(" ", "_")


def find_slurm_type(gpu_model: str) -> str:
    """Find the GPU type that slurmd reports for the usual variant of a GPU model.

    Raises
    ------
    GeometryError
        If the catalogue has no NVML name of the model.

    Examples
    --------
    >>> find_slurm_type("H100-80GB-PCIe"), find_slurm_type("H200-141GB")
    ('nvidia_h100_pcie', 'nvidia_h200')
    """
    nvml_names = list_model_aliases(gpu_model, "nvml")
    if not nvml_names:
        expected = "a GPU model with an NVML name in board_names.csv"
        todo = "Give the type that slurmd detects ('slurmd -G') with --gres-type."
        raise GeometryError(f"Slurm type of {gpu_model}", expected, "none", todo)
    return derive_slurm_type(nvml_names[0])


@functools.cache
def _models_by_alias() -> dict[str, tuple[str, ...]]:
    """Map names of GPU models, in lower-case letters and digits only, to models in the order of ``board_names.csv``."""
    models_by_key: dict[str, dict[str, None]] = {}

    def add_alias(name: str, gpu_model: str) -> None:
        """Add a GPU model under the lower-case forms of a name: with and without vendor, and with sorted words."""
        folded = _fold_name(name)
        for key in {folded, _VENDOR_PREFIX_PATTERN.sub("", folded), _sort_name_parts(name)} - {""}:
            models_by_key.setdefault(key, {})[gpu_model] = None

    rows = facts("board_names")
    for gpu_model in rows["gpu_model"].unique(maintain_order=True):
        add_alias(gpu_model, gpu_model)
    for variant, gpu_model in facts("gpu_specs").select("gpu_model", "mig_model").iter_rows():
        add_alias(variant, gpu_model or variant)
    for gpu_model, kind, name in rows.select("gpu_model", "kind", "name").iter_rows():
        if kind == "nvml":
            add_alias(derive_slurm_type(name), gpu_model)
        add_alias(name, gpu_model)
    order = {gpu_model: position for position, gpu_model in enumerate(rows["gpu_model"].unique(maintain_order=True))}
    return {key: tuple(sorted(boards, key=order.__getitem__)) for key, boards in models_by_key.items()}


def _sort_name_parts(name: str) -> str:
    """Sort the words of a GPU model name without the vendor, joined by blanks; empty for a single word."""
    parts = sorted(re.findall(r"[a-z0-9]+", _VENDOR_PREFIX_PATTERN.sub("", name.casefold())))
    return " ".join(parts) if len(parts) > 1 else ""


def _fold_name(name: str) -> str:
    """Reduce a GPU model name to lower-case letters and digits: ``NVIDIA A100-SXM4`` becomes ``nvidiaa100sxm4``."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


@dataclass(frozen=True)
class CloudInstanceType:
    """GPUs of one cloud instance type.

    - ``provider``, ``name``: Cloud, and name of the type in node labels and bills.
    - ``gpu_model``: GPU model of the catalogue.
    - ``gpus``: GPUs that the instance shows.
    - ``board_share``: Fraction of a physical GPU that each of them is; 1 for full GPUs, less for a vGPU.
    """

    provider: str
    name: str
    gpu_model: str
    gpus: int
    board_share: float


def find_instance_type(name: str | None) -> CloudInstanceType | None:
    """Find the GPUs of an instance type; None if it is unknown or has none.

    Examples
    --------
    >>> find_instance_type("p5.48xlarge").gpus, find_instance_type("ml.p4de.24xlarge").gpu_model
    (8, 'A100-80GB')
    >>> find_instance_type("m5.large") is None
    True
    """
    folded_name = (name or "").casefold()
    types = _instance_types()
    # SageMaker and HyperPod write "ml." before an instance type of EC2.
    return types.get(folded_name) or types.get(folded_name.removeprefix("ml."))


@functools.cache
def list_node_labels(meaning: str) -> Mapping[str, str | None]:
    """Map the Kubernetes node labels with one meaning, the most trusted first, to the unit of their values.

    `meaning` is that of a row of the table ``node_labels``, such as ``"model"``, ``"count"``, ``"memory"`` or
    ``"clients"`` (of a time-sliced GPU).

    Examples
    --------
    >>> list(list_node_labels("clients"))
    ['cloud.google.com/gke-max-shared-clients-per-gpu']
    """
    return MappingProxyType(dict(facts("node_labels").filter(meaning=meaning).select("label", "unit").rows()))


@functools.cache
def list_resource_names(location: str, role: str) -> Mapping[str, str | None]:
    """Map the Kubernetes names (resources, annotations …) that have one role to the unit of their amounts.

    Parameters
    ----------
    location : str
        ``"resource"``, ``"node_annotation"``, ``"pod_annotation"``, ``"device_class"`` or ``"dra_driver"``.
    role : str
        Meaning of the name, such as ``"full_gpu"``, ``"cores"`` or ``"accelerator"``.

    Examples
    --------
    >>> list_resource_names("resource", "gpus_of_node")["aliyun.com/gpu-count"]
    '1'
    """
    rows = facts("gpu_resources").filter(place=location, role=role)
    return MappingProxyType(dict(rows.select("word", "unit").rows()))


@functools.cache
def list_sharing_systems() -> tuple[Mapping[str, tuple[str, str | None]], ...]:
    """List the GPU sharing systems for Kubernetes, such as HAMi: role → resource name and its unit.

    Roles are number, cores, memory and memory_percentage.

    Examples
    --------
    >>> list_sharing_systems()[0]["memory"]
    ('nvidia.com/gpumem', 'MiB')
    """
    roles = pl.col("role").is_in(["number", "cores", "memory", "memory_percentage"])
    rows = facts("gpu_resources").filter(pl.col("place") == "resource", roles)
    return tuple(
        {role: (word, unit) for role, word, unit in part.select("role", "word", "unit").rows()}
        for part in rows.partition_by("system", maintain_order=True)
    )


@functools.cache
def list_partition_modes(gpu_model: str) -> Mapping[str, int]:
    """Map the compute partition modes of an AMD GPU to the number of devices; empty for other GPUs.

    Examples
    --------
    >>> list_partition_modes("MI300X")["CPX"], dict(list_partition_modes("T4"))
    (8, {})
    """
    rows = facts("partition_modes").filter(gpu_model=gpu_model, kind="compute")
    return MappingProxyType(dict(rows.select("mode", "partitions").rows()))


MAX_CATALOG_GPUS_PER_NODE = 16
"""Largest number of GPUs of an instance type in the catalogue."""
DEFAULT_GPUS_PER_NODE = 8
"""GPUs of a server if no instance type of the catalogue has the model."""


def infer_partitions(gpu_model: str, units: int) -> int | None:
    """Infer the compute partitions per GPU of a node that lists more devices than a server has GPUs.

    `units` is the number of devices that the node lists. None if it is ambiguous, or no more than a server has GPUs.

    Examples
    --------
    >>> infer_partitions("MI300X", 64), infer_partitions("MI300X", 8), infer_partitions("T4", 64)
    (8, None, None)
    """
    servers = {server.gpus for server in _instance_types().values() if server.gpu_model == gpu_model}
    sizes = servers or {DEFAULT_GPUS_PER_NODE}
    candidates = {n for n in list_partition_modes(gpu_model).values() if units % n == 0 and units // n in sizes}
    return candidates.pop() if units > MAX_CATALOG_GPUS_PER_NODE and len(candidates) == 1 else None


@functools.cache
def _instance_types() -> dict[str, CloudInstanceType]:
    """Index the instance types by their lower-case name."""
    rows = facts("instance_types").select("provider", "instance_type", "gpu_model", "gpus", "board_share")
    return {row[1].casefold(): CloudInstanceType(*row) for row in rows.iter_rows()}
