"""Definitions of exporter metrics: names, units, labels, limits, and the choice of the activity counter.

Activity is SM activity, else engine activity, else - on a full GPU that is not MIG-partitioned - the legacy counter,
else unknown. A device keeps one counter throughout: where a better one fails for a moment the sample is missing, since
a worse one would put a spike in its place. The legacy counter is the share of time in which any kernel ran: it reads 99
% while a tenth of the tensor cores work, and 100 % on a job that hangs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schema_checks import add_absent_columns, conform
from gpuplanner.core.schemas import Samples
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE

DEVICE_KEY = ("node", "gpu", "instance")
"""Columns that identify a device: a full GPU, or a MIG instance of one."""


DIMENSION_BY_QUANTITY: dict[str, str] = {
    **dict.fromkeys(("sm_active", "tensor_active", "dram_active", "engine_active"), "share"),
    **dict.fromkeys(("sm_occupancy", "gpu_util"), "share"),
    **dict.fromkeys(("memory_used", "memory_total", "memory_free", "memory_reserved"), "memory"),
    "power": "power",
    "energy_counter": "energy",
    "xid": "number",
    **dict.fromkeys(("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx"), "rate"),
}
"""Quantity → its dimension, stored as shares 0-1, memory [GiB], power [W], energy [J], rates [GB/s], plain numbers."""

WIDE_DIMENSIONS = ("energy", "rate")
"""Dimensions whose values may be as large as the 32-bit numbers by which DCGM marks a missing value."""

PERCENT_OR_RATIO = "% or ratio"
"""Unit of a metric that, by the exporter's version, is in percent or from 0 to 1; its values show which."""

DIVISOR_BY_DIMENSION_AND_UNIT: dict[str, dict[str, float]] = {
    "share": {"ratio": 1.0, "%": 100.0, PERCENT_OR_RATIO: 1.0},
    "memory": {"GiB": 1.0, "MiB": 1024.0, "KiB": 1024.0**2, "B": 1024.0**3},
    "power": {"W": 1.0, "mW": 1e3},
    "energy": {"J": 1.0, "mJ": 1e3, "uJ": 1e6},
    "number": {"": 1.0},
    "rate": {"GB/s": 1.0, "MB/s": 1e3, "KB/s": 1e6, "B/s": 1e9, "KB": 1e6},
}
"""Dimension → unit of the source → divisor to the stored unit; an amount in place of a rate is a counter."""


OTHER_EXPORTERS = ("nvidia_gpu_exporter", "slurm_job_exporter", "jobstats")
"""Exporters in the catalogue whose metrics Prometheus scrapes, beside those of DCGM and AMD."""


@dataclass(frozen=True)
class Metric:
    """Definition of a metric: its quantity, and its unit unless the source states another."""

    quantity: str
    unit: str

    @property
    def divisor(self) -> float:
        """Divisor from the unit of the metric to the stored unit.

        Examples
        --------
        >>> Metric("memory_used", "MiB").divisor
        1024.0
        """
        return self.units[self.unit]

    @property
    def units(self) -> dict[str, float]:
        """Unit in which the quantity may be given → divisor to the stored unit."""
        return DIVISOR_BY_DIMENSION_AND_UNIT[DIMENSION_BY_QUANTITY[self.quantity]]


def read_tool_metrics(tool: str) -> dict[str, Metric]:
    """Read the metrics of a tool from the catalogue's ``telemetry_metrics``.

    Examples
    --------
    >>> read_tool_metrics("smi_query")["power.draw"]
    Metric(quantity='power', unit='W')
    """
    rows = facts("telemetry_metrics").filter(tool=tool).select("name", "quantity", "unit")
    return {name: Metric(quantity, unit or "") for name, quantity, unit in rows.iter_rows()}


DCGM_METRICS = read_tool_metrics("dcgm")
"""Fields of DCGM [1]_, under their older and newer names; other fields are not read.

References
----------
.. [1] NVIDIA/dcgm-exporter, etc/default-counters.csv, and the profiling section of the DCGM user guide.
"""

AMD_METRICS = read_tool_metrics("amd")
"""Metrics of AMD's device-metrics-exporter that are read, by name."""

EXPORTED_METRICS = DCGM_METRICS | AMD_METRICS
"""Metrics of all GPU exporters that Prometheus scrapes, by name."""
EXPORTED_METRICS |= {name: metric for tool in OTHER_EXPORTERS for name, metric in read_tool_metrics(tool).items()}
"""Metrics of all exporters of GPUs that Prometheus scrapes, by name."""

DCGMI_METRICS = read_tool_metrics("dcgmi")
"""Column heads of ``dcgmi dmon``."""

SMI_QUERY_METRICS = read_tool_metrics("smi_query")
"""Fields of ``nvidia-smi --query-gpu``, with the units that it prints."""

SMI_DMON_METRICS = read_tool_metrics("smi_dmon")
"""Columns of ``nvidia-smi dmon``. Its ``sm`` is the legacy counter: the share of time in which a kernel ran, on however
few multiprocessors; the SM activity is ``smutil``, of the option ``--gpm-metrics``.
"""

SMI_UNITS = {"%": "%", "W": "W", "MB": "MiB", "MB/s": "MB/s", "GPM:%": "%"}
"""Units in the second header line of ``nvidia-smi dmon``; its MB of memory are MiB."""

NODE_CSV_METRICS = read_tool_metrics("node_csv")
"""Columns of per-node NVML and DCGM logs, as in the public H100 runs."""

OPTIONAL_NODE_CSV_COLUMNS = tuple(facts("telemetry_metrics").filter(tool="node_csv", optional="yes")["name"])
"""Columns of per-node logs (:data:`NODE_CSV_METRICS`) that may be absent."""

GAP_FACTOR = 2.5
"""Step, as a multiple of the usual interval, above which readings have a gap: more than jitter, a sample is
missing."""

MISSING_VALUE_TEXTS = ("", "-", "n/a", "nan", "na", "none", "null", "not supported")
"""Lower-case texts that mean "no value"; so does any text in square brackets, as ``[Not Supported]``."""

INT64_BLANK = float(0x7FFF_FFFF_FFFF_FFF0)
"""First of the 64-bit integers by which DCGM marks a missing value."""

FP64_BLANK = (2.0**47, 2.0**47 + 15)
"""Range of the floating-point numbers by which DCGM marks a missing value."""

INT32_BLANK = (float(0x7FFF_FFF0), float(0x7FFF_FFFF))
"""Range of the 32-bit integers by which DCGM marks a missing value."""

MIN_BLANK_BY_IS_LARGE_VALUE = {True: FP64_BLANK[0], False: INT32_BLANK[0]}
"""Smallest number that may mean "no value", for a dimension in :data:`WIDE_DIMENSIONS` (True) or another (False)."""


def is_blank(text: pl.Expr) -> pl.Expr:
    """Whether a text, such as ``N/A`` or ``[Not Supported]``, means that there is no value.

    Examples
    --------
    >>> pl.select(is_blank(pl.lit("[Not Supported]"))).item()
    True
    """
    fold = text.str.to_lowercase()
    return fold.is_in(MISSING_VALUE_TEXTS) | (text.str.starts_with("[") & text.str.ends_with("]"))


def replace_blank_values(value: pl.Expr, *, wide: bool) -> pl.Expr:
    """Replace NaN and the numbers by which DCGM marks a missing value by null [1]_.

    With `wide`, for dimensions in :data:`WIDE_DIMENSIONS`, the 32-bit ones are values and stay.

    References
    ----------
    .. [1] NVIDIA/DCGM, dcgmlib/dcgm_structs.h: DCGM_INT32_BLANK, INT64_BLANK, DCGM_FP64_BLANK and the
       NOT_FOUND, NOT_SUPPORTED and NOT_PERMISSIONED values that follow each.

    Examples
    --------
    >>> pl.select(replace_blank_values(pl.lit(9223372036854775794.0), wide=False)).item() is None
    True
    """
    blank = ((value >= INT64_BLANK) & (value < math.inf)) | value.is_between(*FP64_BLANK) | value.is_nan()
    if not wide:
        blank |= value.is_between(*INT32_BLANK)
    return pl.when(~blank.fill_null(False)).then(value)


Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
"""Type variable for a polars DataFrame or LazyFrame."""

FROM_PROFILING, FROM_ENGINE, FROM_LEGACY, NO_COUNTER = "profiling", "engine", "legacy", "none"
"""Values of ``activity_source``: the kind of counter that gave the activity of a sample."""

ACTIVITY_SOURCES = (FROM_PROFILING, FROM_ENGINE, FROM_LEGACY, NO_COUNTER)
"""Values of ``activity_source``, best first."""

SAMPLE_KEY_COLUMNS = ("time", *DEVICE_KEY)
"""Columns that identify a sample, time and device, by which samples are sorted."""


def choose_activity_source(measurements: pl.DataFrame) -> pl.DataFrame:
    """Choose the activity counter of every sample by itself; :func:`keep_best_counter` then unifies it per device.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "instance": None}
    >>> row |= dict.fromkeys(["profile", "job_id"]) | {"gpu_util": 0.99}
    >>> rows = [row | {"tensor_active": None}, row | {"gpu": 1, "tensor_active": 0.11}]
    >>> choose_activity_source(pl.DataFrame(rows, infer_schema_length=None))["activity_source"].to_list()
    ['legacy', 'profiling']
    """
    measurements = add_absent_columns(measurements, dict.fromkeys(DIMENSION_BY_QUANTITY, pl.Float64()))
    measurements = measurements.with_columns(pl.col(*DIMENSION_BY_QUANTITY).cast(pl.Float64))
    is_partitioned = pl.col("mig_enabled").fill_null(False) if "mig_enabled" in measurements.columns else pl.lit(False)
    source = (
        pl.when(pl.col("sm_active").is_not_null())
        .then(pl.lit(FROM_PROFILING))
        .when(pl.col("engine_active").is_not_null())
        .then(pl.lit(FROM_ENGINE))
        .when(pl.any_horizontal(pl.col("tensor_active", "dram_active").is_not_null()))
        .then(pl.lit(FROM_PROFILING))
        .when(pl.col("gpu_util").is_not_null() & ~is_partitioned)
        .then(pl.lit(FROM_LEGACY))
        .otherwise(pl.lit(NO_COUNTER))
    )
    activity = (
        pl.when(source == FROM_PROFILING)
        .then("sm_active")
        .when(source == FROM_ENGINE)
        .then("engine_active")
        .when(source == FROM_LEGACY)
        .then("gpu_util")
    )
    samples = measurements.select(
        *SAMPLE_KEY_COLUMNS,
        "profile",
        "job_id",
        sm_activity=activity.clip(upper_bound=1.0),
        tensor_activity=pl.col("tensor_active").clip(upper_bound=1.0),
        dram_activity=pl.col("dram_active").clip(upper_bound=1.0),
        sm_occupancy=pl.col("sm_occupancy").clip(upper_bound=1.0),
        nvlink_gb_s=pl.col("nvlink_tx") + pl.col("nvlink_rx"),
        pcie_gb_s=pl.col("pcie_tx") + pl.col("pcie_rx"),
        memory_used_gib="memory_used",
        power_w="power",
        energy_counter_j="energy_counter",
        xid="xid",
        activity_source=source,
    )
    return conform(samples, Samples, source="telemetry")


def find_device_counters(samples: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Find whether each device ever had SM activity (``has_sm``), or any but the legacy counter (``has_better``)."""
    source = pl.col("activity_source")
    return (
        samples.lazy()
        .group_by(DEVICE_KEY)
        .agg(
            has_sm=((source == FROM_PROFILING) & pl.col("sm_activity").is_not_null()).any(),
            has_better=source.is_in([FROM_PROFILING, FROM_ENGINE]).any(),
        )
        .sort(DEVICE_KEY)
        .collect(engine="streaming")
    )


def merge_device_counters(device_counters: pl.DataFrame) -> pl.DataFrame:
    """Merge rows of :func:`find_device_counters` by device, and add as ``cut`` whether the GPU is MIG-partitioned.

    Examples
    --------
    >>> told = {"node": "n1", "gpu": 0, "instance": [None, None, 7], "has_sm": [False, True, False], "has_better": True}
    >>> merge_device_counters(pl.DataFrame(told)).select("instance", "has_sm", "cut").rows()
    [(None, True, True), (7, False, True)]
    """
    return (
        device_counters.group_by(DEVICE_KEY)
        .agg(pl.col("has_sm", "has_better").any())
        .with_columns(cut=pl.col("instance").is_not_null().any().over("node", "gpu"))
        .sort(DEVICE_KEY)
    )


def keep_best_counter(samples: Frame, device_counters: pl.DataFrame) -> Frame:
    """Remove the activity of samples from a worse counter than the best one that their device ever had.

    More readings of a device can only remove more, so repeating it changes nothing.

    Examples
    --------
    >>> row = {"node": "n1", "gpu": 0, "instance": None, "tensor_activity": None, "dram_activity": None}
    >>> read = {"sm_activity": [0.99, 0.3], "activity_source": ["legacy", "profiling"]}
    >>> samples = pl.DataFrame(read).with_columns(pl.lit(value).alias(name) for name, value in row.items())
    >>> keep_best_counter(samples, find_device_counters(samples))["sm_activity"].to_list()
    [None, 0.3]
    """
    source = pl.col("activity_source")
    is_kept = pl.col("sm_activity").is_not_null() & (
        (source == FROM_PROFILING)
        | ((source == FROM_ENGINE) & ~pl.col("has_sm"))
        | ((source == FROM_LEGACY) & ~pl.col("has_better") & ~pl.col("cut"))
    )
    has_side_activity = pl.any_horizontal(pl.col("tensor_activity", "dram_activity").is_not_null())
    counters = merge_device_counters(device_counters).lazy()
    filtered = (
        samples.lazy()
        .join(counters, on=DEVICE_KEY, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            sm_activity=pl.when(is_kept).then("sm_activity"),
            activity_source=pl.when(is_kept)
            .then(source)
            .otherwise(pl.when(has_side_activity).then(pl.lit(FROM_PROFILING)).otherwise(pl.lit(NO_COUNTER))),
        )
        .select(samples.collect_schema().names())
    )
    return filtered if isinstance(samples, pl.LazyFrame) else filtered.collect()


MAX_DEVICE_INDEX = 1023
"""Largest valid GPU or instance number."""

NODE_NAME_LABELS = ("node", "kubernetes_node", "exported_node")
"""Prometheus labels of the scrape that name the node itself, rather than the exporter's pod."""
GPU_INDEX_LABELS = ("gpu", "gpu_id", "minor_number", "index")
"""Prometheus labels, in lower case, with the number of a GPU on its node."""

GPU_MODEL_LABELS = ("modelname", "card_series", "gpu_type", "name")
"""Prometheus labels, in lower case, with the GPU model."""

JOB_ID_LABELS = ("hpc_job", "slurmjobid", "job_id", "jobid")
"""Prometheus labels with the job id: of DCGM's job mapping, slurm-job-exporter, AMD's exporter, jobstats."""
POD_NAMESPACE_AND_NAME_LABELS = (
    ("exported_namespace", "exported_pod"),
    ("namespace", "pod"),
    ("pod_namespace", "pod_name"),
)
"""Pairs of Prometheus labels with namespace and name of the pod that uses the GPU, the most trusted first: where
Prometheus does not honour labels of the workload, it prefixes them with ``exported_``, and ``pod`` is the exporter's
own [1]_. ``pod_name`` is the older name.

References
----------
.. [1] NVIDIA/dcgm-exporter, deployment/values.yaml: ``honorLabels: false``; Prometheus, scrape_config, honor_labels.
"""
EXPORTER_POD_PATTERN = re.compile(r"(dcgm|metrics|gpu|smi|rocm)[a-z0-9-]*exporter", re.IGNORECASE)
"""Names of exporter pods, which use no GPU themselves."""
OTHER_AMD_PARTITION_REASON = "a partition of an AMD GPU other than the first"
"""Reject reason of readings of AMD GPU partitions other than the first, which are not read."""

TELEMETRY_DEVICE_SCHEMA = pl.Schema(
    {"node": pl.String(), "gpu": pl.Int32(), "instance": pl.Int32()}
    | dict.fromkeys(("profile", "board", "job_id", "fault"), pl.String())
)
"""Device as the labels of a series describe it: node, GPU, instance, model, job; ``fault`` says why they are
malformed."""

READING_SCHEMA = pl.Schema(
    {"file": pl.UInt32(), "line": pl.UInt32(), "raw": pl.String(), "time": UTC_TIME_DTYPE, **TELEMETRY_DEVICE_SCHEMA}
    | {"metric": pl.String(), "value": pl.String()}
)
"""Reading of an exporter: one value, as text, of one metric of one device at one time."""


def parse_device(labels: Mapping[str, str] | None, default_node: str | None = None) -> tuple[object, ...]:
    """Parse the labels of a Prometheus series to a device, a row of :data:`TELEMETRY_DEVICE_SCHEMA`.

    Label names match in any letter case. The label ``UUID`` of a MIG sample is the parent's, so an instance is
    identified by ``gpu`` and ``GPU_I_ID``. The host name may be that of the exporter's pod: labels of the scrape that
    name the node go first. The label ``job`` is the scrape job of Prometheus and not a job of the cluster.

    Examples
    --------
    >>> parse_device({"gpu": "3", "Hostname": "n1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb", "job": "dcgm"})
    ('n1', 3, 7, '1g.10gb', None, None, None)
    >>> parse_device({"gpu": "3", "Hostname": "dcgm-exporter-x7k2p", "node": "n1"})[0]
    'n1'
    """
    if labels is None:
        return (None,) * (len(TELEMETRY_DEVICE_SCHEMA) - 1) + ("labels that cannot be read",)
    labels = {name.lower(): value for name, value in labels.items()}
    node = _find_label_node(labels, default_node)
    gpu = _parse_index(next((labels[name] for name in GPU_INDEX_LABELS if labels.get(name)), ""))
    if gpu is None:
        gpu = _parse_index(labels.get("device", "").removeprefix("nvidia"))
    instance_text, profile = labels.get("gpu_i_id", ""), labels.get("gpu_i_profile") or None
    instance = _parse_index(instance_text)
    fault = None
    if labels.get("gpu_partition_id", "").strip("0").isdigit():  # "NA" in virtual machines
        fault = OTHER_AMD_PARTITION_REASON
    elif gpu is None:
        fault = "no GPU number in the labels"
    elif node is None:
        fault = "no node in the labels"
    elif instance is None and (profile or instance_text):
        fault = "a MIG instance without its number"
    gpu_model = next((labels[name] for name in GPU_MODEL_LABELS if labels.get(name)), None)
    return node, gpu, instance, profile, gpu_model, _find_label_job(labels), fault


def parse_devices(labels: Sequence[Mapping[str, str] | None], default_node: str | None = None) -> pl.DataFrame:
    """Parse the labels of several series to devices, one row each in their order.

    Where a scrape renames the labels of workloads, ``pod`` never names one. Series that identify their GPU by UUID only
    get the number and model from the series that describes it.
    """
    renaming_jobs = {
        series_labels.get("job") for series_labels in labels if series_labels and "exported_pod" in series_labels
    }
    by_uuid = {
        series_labels["uuid"]: {name: series_labels[name] for name in ("index", "name") if name in series_labels}
        for series_labels in labels
        if series_labels and {"uuid", "index"} <= series_labels.keys()
    }
    complete = [
        None
        if series_labels is None
        else by_uuid.get(series_labels.get("uuid", ""), {})
        | {
            name: value
            for name, value in series_labels.items()
            if series_labels.get("job") not in renaming_jobs or name != "pod"
        }
        for series_labels in labels
    ]
    devices = [parse_device(series_labels, default_node) for series_labels in complete]
    return pl.DataFrame(devices, schema=TELEMETRY_DEVICE_SCHEMA, orient="row")


def _find_label_node(labels: Mapping[str, str], default_node: str | None) -> str | None:
    """Return the node that labels name: host name, unless it is of the exporter's pod, else address of the scrape."""
    node = next((labels[name] for name in NODE_NAME_LABELS if labels.get(name)), None)
    host = labels.get("hostname") or None
    is_exporter_pod = host is not None and (host == labels.get("pod") or EXPORTER_POD_PATTERN.search(host) is not None)
    address = re.sub(r":[0-9]+$", "", labels.get("instance", "")) or None
    return node or (None if is_exporter_pod else host) or default_node or address or host


def _find_label_job(labels: Mapping[str, str]) -> str | None:
    """Return the job that labels name: its job id, else namespace/pod; None if they name none."""
    # The epilog of a site may write 0 for a GPU that no job has.
    job = next((labels[name] for name in JOB_ID_LABELS if labels.get(name, "0") not in ("", "0")), None)
    if job is not None:
        return job
    for namespace, pod in POD_NAMESPACE_AND_NAME_LABELS:
        if labels.get(pod) and not EXPORTER_POD_PATTERN.search(labels[pod]):
            return f"{labels[namespace]}/{labels[pod]}" if labels.get(namespace) else labels[pod]
    return None


def _parse_index(text: str) -> int | None:
    """Parse the number of a GPU or instance; None if it is invalid."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) and int(text) <= MAX_DEVICE_INDEX else None


MAX_RATIO_ABOVE_ONE_FRACTION = 0.01
"""Fraction of the values of a ratio that are above 1 from which all are taken to be percent [0-1]; fewer are faults of
single rows."""

RATIO_TOLERANCE = 1e-6
"""Amount by which a ratio may exceed 1 through rounding of the source."""

MAX_EXAMPLE_VALUES = 5
"""Most example values that the error on an unexpected unit shows."""
PERCENT_DIVISOR = DIVISOR_BY_DIMENSION_AND_UNIT["share"]["%"]
"""Divisor from percent to a share."""


@dataclass
class _ValueStatistics:
    """Statistics of the positive values of one quantity in its stored unit, by which a wrong unit is recognised.

    - ``positive``, ``largest``, ``smallest``: Number of values, largest and smallest one.
    - ``fractional``: A utilization in percent is no integer, so that it may be a ratio.
    - ``n_odd``: Number of odd values: shares above 1, or GPUs with less than 1 GiB of memory.
    - ``first``, ``first_odd_values``: The first values, and the first odd ones, as examples.
    """

    positive: int = 0
    largest: float = 0.0
    smallest: float = float("inf")
    fractional: bool = False
    n_odd: int = 0
    first: list[float] = field(default_factory=list)
    first_odd_values: list[float] = field(default_factory=list)


@dataclass
class UnitCheck:
    """Check whether the values of each quantity fit its assumed unit, over all blocks of the files."""

    _statistics: dict[str, _ValueStatistics] = field(
        default_factory=lambda: {name: _ValueStatistics() for name in DIMENSION_BY_QUANTITY}
    )

    def add_values(self, quantity: str, values: np.ndarray) -> None:
        """Add the values of a quantity in a block of rows; NaN is no value."""
        statistics = self._statistics[quantity]
        positive = values[values > 0]
        if not len(positive):
            return
        statistics.positive += len(positive)
        statistics.largest = max(statistics.largest, float(positive.max()))
        statistics.smallest = min(statistics.smallest, float(positive.min()))
        if quantity == "gpu_util" and not statistics.fractional and statistics.largest <= 1 / PERCENT_DIVISOR * 2:
            percent = positive * PERCENT_DIVISOR
            statistics.fractional = bool((np.rint(percent) != percent).any())
        if len(statistics.first) < MAX_EXAMPLE_VALUES:
            statistics.first += positive[: MAX_EXAMPLE_VALUES - len(statistics.first)].tolist()
        odd_values = positive[:0]
        if quantity == "memory_total" and statistics.smallest < 1:
            odd_values = positive[positive < 1]
        elif _is_share(quantity) and statistics.largest > 1 + RATIO_TOLERANCE:
            odd_values = positive[positive > 1 + RATIO_TOLERANCE]
        statistics.n_odd += len(odd_values)
        if len(statistics.first_odd_values) < MAX_EXAMPLE_VALUES:
            statistics.first_odd_values += odd_values[: MAX_EXAMPLE_VALUES - len(statistics.first_odd_values)].tolist()

    def require_expected_units(self, location: str) -> None:
        """Raise an error if values of a quantity reveal another unit than the assumed one.

        A share above 1 shows that percent were given for ratios; smaller percentages among them would pass for ratios,
        so none of the values is reliable. A percentage that is never above 1, but no integer, is a ratio. A GPU with
        less than 1 GiB of memory was given in another unit.

        Examples
        --------
        >>> signs = UnitCheck()
        >>> signs.add_values("sm_active", np.array([0.5, 45.0]))
        >>> signs.require_expected_units("a.csv")
        Traceback (most recent call last):
            ...
        gpuplanner.core.errors.TraceFormatError: a.csv: expected sm_active in the unit of the source; got percent ...
        """
        for quantity, statistics in self._statistics.items():
            if not statistics.positive:
                continue
            suspicion, count, examples_shown = None, statistics.n_odd, statistics.first_odd_values
            if quantity == "gpu_util":
                if statistics.largest * PERCENT_DIVISOR <= 1 and statistics.fractional:
                    suspicion, count = "ratios where percent were expected", statistics.positive
                    examples_shown = [value * PERCENT_DIVISOR for value in statistics.first]
            elif _is_share(quantity) and statistics.n_odd > MAX_RATIO_ABOVE_ONE_FRACTION * statistics.positive:
                suspicion = "percent where ratios were expected"
            elif quantity == "memory_total" and statistics.smallest < 1:
                suspicion = "a unit larger than the one expected"
            if suspicion is not None:
                got = f"{suspicion}: {count} of {statistics.positive} values, such as {examples(examples_shown)}"
                expected = f"{quantity} in the unit of the source"
                raise TraceFormatError(location, expected, got, "Convert the column, or state its unit.")


def _is_share(quantity: str) -> bool:
    """Whether a quantity is a share from 0 to 1."""
    return DIMENSION_BY_QUANTITY[quantity] == "share"


MAX_MEAN_POWER_PER_LIMIT = 1.2
"""Largest mean power over a sampling period, as a multiple of the GPU's power limit."""

MAX_XID_ERROR_NUMBER = 999
"""Largest number that counts as an XID (driver error), far above the catalogue's to admit new ones [1]_.

References
----------
.. [1] NVIDIA, XID Errors: the catalogue ends below 200.
"""

MODEL_MEMORY_SIZE_PATTERN = re.compile("[0-9]{1,4}GB$")
"""Word of a GPU model name that is its memory size, such as ``80GB``."""


@functools.cache
def gpu_model_limits(model: str | None) -> tuple[float, float]:
    """Return the largest power [W] and memory [GB] of the GPU models that a name may mean.

    Examples
    --------
    >>> gpu_model_limits("NVIDIA H100 80GB HBM3")
    (700.0, 80.0)
    """
    specs = facts("gpu_specs")
    words = set(re.split(r"[\s-]+", (model or "").upper()))
    is_meant = [_model_family(name) <= words for name in specs["gpu_model"]]
    rows = specs.filter(is_meant) if any(is_meant) else specs
    sizes_gb = [float(word[:-2]) for word in words if MODEL_MEMORY_SIZE_PATTERN.match(word)]
    rows_of_size = rows.filter(pl.col("memory_gb").is_in(sizes_gb))
    rows = rows if rows_of_size.is_empty() else rows_of_size
    power = rows["tdp_w"].max() or specs["tdp_w"].max()
    return float(power), float(rows["memory_gb"].max())  # type: ignore[arg-type]


def _model_family(name: str) -> set[str]:
    """Return the words of a GPU model name up to the first with a digit: RTX, PRO, 6000; H100."""
    words = name.upper().split("-")
    last_position = next(position for position, word in enumerate(words) if re.search(r"[0-9]", word))
    return set(words[: last_position + 1])


def reject_impossible_values(
    rows: Rows, values: Mapping[str, pl.Expr], extremes: Mapping[str, tuple[float, float]]
) -> Rows:
    """Reject rows with a value below 0, a share above 1, or more power or memory than the GPU has.

    Parameters
    ----------
    rows : Rows
        Rows with GPU model words in ``board``.
    values : mapping of str to polars.Expr
        Quantity → its values.
    extremes : mapping of str to tuple of float
        Quantity → smallest and largest value, so that only quantities with faults are checked row by row.
    """
    if rows.good.is_empty():
        return rows
    models = rows.good["board"].unique().to_list()
    power_limits_w = {model: MAX_MEAN_POWER_PER_LIMIT * gpu_model_limits(model)[0] for model in models}
    memory_limits_gib = {model: gpu_model_limits(model)[1] for model in models}
    max_power_w = pl.col("board").replace_strict(power_limits_w, return_dtype=pl.Float64)
    max_memory_gib = pl.col("board").replace_strict(memory_limits_gib, return_dtype=pl.Float64)
    faults: dict[str, pl.Expr] = {}
    for quantity, value in values.items():
        smallest, largest = extremes.get(quantity, (0.0, 0.0))
        if smallest < 0:
            faults[f"{quantity}: below 0"] = value < 0
        if DIMENSION_BY_QUANTITY[quantity] == "share":
            if largest > 1 + RATIO_TOLERANCE:
                faults[f"{quantity}: above 1"] = value > 1 + RATIO_TOLERANCE
        elif quantity == "xid":
            if largest > 0:
                faults["xid: not the number of an error"] = (value % 1 != 0) | (value > MAX_XID_ERROR_NUMBER)
        elif quantity == "power":
            if largest > min(power_limits_w.values()):
                faults[f"power: above {MAX_MEAN_POWER_PER_LIMIT} x the power limit of the GPU"] = value > max_power_w
        elif quantity.startswith("memory") and largest > min(memory_limits_gib.values()):
            faults[f"{quantity}: more than the GPU has"] = value > max_memory_gib
    if "memory_used" in values and "memory_total" in rows.good.columns:
        faults["memory_used: more than memory_total"] = values["memory_used"] > values["memory_total"]
    return rows.reject(faults) if faults else rows
