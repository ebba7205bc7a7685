"""Metrics of exporters: names, units, labels, limits, and which counter gives the activity.

SM activity, else engine activity, else - on a whole GPU that is not cut - the legacy counter, else nothing.
A device stands on one rung throughout: where a better counter fails for a moment the sample is missing, since
a worse one would put a spike in its place. The legacy counter is the share of time in which any kernel ran:
it reads 99 % while a tenth of the tensor cores work, and 100 % on a job that hangs.
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
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.source_fields import INSTANT

DEVICE_KEY = ("node", "gpu", "instance")


QUANTITIES: dict[str, str] = {
    **dict.fromkeys(("sm_active", "tensor_active", "dram_active", "engine_active"), "share"),
    **dict.fromkeys(("sm_occupancy", "gpu_util"), "share"),
    **dict.fromkeys(("memory_used", "memory_total", "memory_free", "memory_reserved"), "memory"),
    "power": "power",
    "energy_counter": "energy",
    "xid": "number",
    **dict.fromkeys(("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx"), "rate"),
}
"""What can be read, and its dimension; inside: shares 0-1, memory GiB, power W, energy J, rates GB/s, numbers as
they are."""

WIDE = ("energy", "rate")
"""Dimensions whose values may be as large as the 32-bit numbers by which DCGM says "no value"."""

PERCENT_OR_RATIO = "% or ratio"
"""Unit of a metric that is in percent or from 0 to 1 by the version of its exporter: its values tell."""

DIVISORS: dict[str, dict[str, float]] = {
    "share": {"ratio": 1.0, "%": 100.0, PERCENT_OR_RATIO: 1.0},
    "memory": {"GiB": 1.0, "MiB": 1024.0, "KiB": 1024.0**2, "B": 1024.0**3},
    "power": {"W": 1.0, "mW": 1e3},
    "energy": {"J": 1.0, "mJ": 1e3, "uJ": 1e6},
    "number": {"": 1.0},
    "rate": {"GB/s": 1.0, "MB/s": 1e3, "KB/s": 1e6, "B/s": 1e9, "KB": 1e6},
}
"""Dimension → unit → what a value in it is divided by; an amount that stands for a rate is that of a counter."""


EXPORTERS = ("nvidia_gpu_exporter", "slurm_job_exporter", "jobstats")
"""Tools of the catalogue whose metrics Prometheus scrapes, beside DCGM's and AMD's."""


@dataclass(frozen=True)
class Metric:
    """What a source calls a quantity, and the unit in which it gives it unless it says otherwise."""

    quantity: str
    unit: str

    @property
    def divisor(self) -> float:
        """What a value is divided by.

        Examples
        --------
        >>> Metric("memory_used", "MiB").divisor
        1024.0
        """
        return self.units[self.unit]

    @property
    def units(self) -> dict[str, float]:
        """Units in which this quantity may be given, with their divisors."""
        return DIVISORS[QUANTITIES[self.quantity]]


def metrics_of(tool: str) -> dict[str, Metric]:
    """What a tool calls the quantities that are read of it; rows of the catalogue's ``telemetry_metrics``.

    Examples
    --------
    >>> metrics_of("smi_query")["power.draw"]
    Metric(quantity='power', unit='W')
    """
    rows = facts("telemetry_metrics").filter(tool=tool).select("name", "quantity", "unit")
    return {name: Metric(quantity, unit or "") for name, quantity, unit in rows.iter_rows()}


DCGM = metrics_of("dcgm")
"""Fields of DCGM [1]_, under their older and newer names; other fields are seen but not read.

References
----------
.. [1] NVIDIA/dcgm-exporter, etc/default-counters.csv, and the profiling section of the DCGM user guide.
"""

AMD = metrics_of("amd")
EXPORTED = DCGM | AMD
EXPORTED |= {name: metric for tool in EXPORTERS for name, metric in metrics_of(tool).items()}
"""Metrics of all exporters of GPUs that Prometheus scrapes, by name."""

DCGMI = metrics_of("dcgmi")
"""Column heads of ``dcgmi dmon``."""

SMI_QUERY = metrics_of("smi_query")
"""Fields of ``nvidia-smi --query-gpu``; the units are those that it prints where it prints any."""

SMI_DMON = metrics_of("smi_dmon")
"""Columns of ``nvidia-smi dmon``. Its ``sm`` is the legacy counter: the share of time in which a kernel ran,
on however few multiprocessors; the SM activity is ``smutil``, of the option ``--gpm-metrics``."""

SMI_UNITS = {"%": "%", "W": "W", "MB": "MiB", "MB/s": "MB/s", "GPM:%": "%"}
"""Units in the second header line of ``nvidia-smi dmon``; its MB of memory are MiB."""

NODE_CSV = metrics_of("node_csv")
"""Columns of per-node NVML and DCGM logs, as in the public H100 runs."""

NODE_CSV_OPTIONAL = tuple(facts("telemetry_metrics").filter(tool="node_csv", optional="yes")["name"])
"""Of them, those that a log may lack."""

GAP_FACTOR = 2.5
"""A step longer than this many usual intervals is a gap: at least one sample, and not just its jitter, is
missing."""

BLANK_TEXTS = ("", "-", "n/a", "nan", "na", "none", "null", "not supported")
"""Folded texts that mean "no value"; so does any text in square brackets, as ``[Not Supported]``."""

INT64_BLANK = float(0x7FFF_FFFF_FFFF_FFF0)
FP64_BLANK = (2.0**47, 2.0**47 + 15)
INT32_BLANK = (float(0x7FFF_FFF0), float(0x7FFF_FFFF))
LEAST_BLANK = {True: FP64_BLANK[0], False: INT32_BLANK[0]}
"""Of a dimension in :data:`WIDE`, or another: below this, no number says "no value"."""


def is_blank(text: pl.Expr) -> pl.Expr:
    """True where a text means that there is no value.

    Examples
    --------
    >>> pl.select(is_blank(pl.lit("[Not Supported]"))).item()
    True
    """
    fold = text.str.to_lowercase()
    return fold.is_in(BLANK_TEXTS) | (text.str.starts_with("[") & text.str.ends_with("]"))


def without_blanks(value: pl.Expr, *, wide: bool) -> pl.Expr:
    """Null for NaN and for the numbers by which DCGM says "no value" [1]_.

    References
    ----------
    .. [1] NVIDIA/DCGM, dcgmlib/dcgm_structs.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK and the
       NOT_FOUND, NOT_SUPPORTED and NOT_PERMISSIONED values that follow each.

    Examples
    --------
    >>> pl.select(without_blanks(pl.lit(9223372036854775794.0), wide=False)).item() is None
    True
    """
    blank = ((value >= INT64_BLANK) & (value < math.inf)) | value.is_between(*FP64_BLANK) | value.is_nan()
    if not wide:
        blank |= value.is_between(*INT32_BLANK)
    return pl.when(~blank.fill_null(False)).then(value)


Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

PROFILING, ENGINE, LEGACY, NO_COUNTER = "profiling", "engine", "legacy", "none"
RUNGS = (PROFILING, ENGINE, LEGACY, NO_COUNTER)
"""Values of ``activity_source``, best first."""

PROFILED = ("tensor_active", "dram_active")
ORDER = ("time", *DEVICE_KEY)
"""Order of samples, of which this is the key."""


def climbed(wide: pl.DataFrame) -> pl.DataFrame:
    """Climb down the ladder for every sample by itself; :func:`on_one_rung` then holds each device to one rung.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "instance": None}
    >>> row |= dict.fromkeys(["profile", "job_id"]) | {"gpu_util": 0.99}
    >>> rows = [row | {"tensor_active": None}, row | {"gpu": 1, "tensor_active": 0.11}]
    >>> climbed(pl.DataFrame(rows, infer_schema_length=None))["activity_source"].to_list()
    ['legacy', 'profiling']
    """
    absent = [pl.lit(None, pl.Float64).alias(name) for name in QUANTITIES if name not in wide.columns]
    wide = wide.with_columns(absent).with_columns(pl.col(*QUANTITIES).cast(pl.Float64))
    cut = pl.col("mig_enabled").fill_null(False) if "mig_enabled" in wide.columns else pl.lit(False)
    rung = (
        pl.when(pl.col("sm_active").is_not_null())
        .then(pl.lit(PROFILING))
        .when(pl.col("engine_active").is_not_null())
        .then(pl.lit(ENGINE))
        .when(pl.any_horizontal(pl.col(*PROFILED).is_not_null()))
        .then(pl.lit(PROFILING))
        .when(pl.col("gpu_util").is_not_null() & ~cut)
        .then(pl.lit(LEGACY))
        .otherwise(pl.lit(NO_COUNTER))
    )
    activity = (
        pl.when(rung == PROFILING)
        .then("sm_active")
        .when(rung == ENGINE)
        .then("engine_active")
        .when(rung == LEGACY)
        .then("gpu_util")
    )
    samples = wide.select(
        *ORDER,
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
        activity_source=rung,
    )
    return conform(samples, Samples, where="telemetry")


def rungs(samples: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """What each device was ever read by."""
    source = pl.col("activity_source")
    return (
        samples.lazy()
        .group_by(DEVICE_KEY)
        .agg(
            has_sm=((source == PROFILING) & pl.col("sm_activity").is_not_null()).any(),
            has_better=source.is_in([PROFILING, ENGINE]).any(),
        )
        .sort(DEVICE_KEY)
        .collect(engine="streaming")
    )


def best_rungs(ever: pl.DataFrame) -> pl.DataFrame:
    """What :func:`rungs` tell of each device, with whether its GPU is ``cut``: has instances.

    Examples
    --------
    >>> told = {"node": "n1", "gpu": 0, "instance": [None, None, 7], "has_sm": [False, True, False], "has_better": True}
    >>> best_rungs(pl.DataFrame(told)).select("instance", "has_sm", "cut").rows()
    [(None, True, True), (7, False, True)]
    """
    return (
        ever.group_by(DEVICE_KEY)
        .agg(pl.col("has_sm", "has_better").any())
        .with_columns(cut=pl.col("instance").is_not_null().any().over("node", "gpu"))
        .sort(DEVICE_KEY)
    )


def on_one_rung(samples: Frame, ever: pl.DataFrame) -> Frame:
    """Take away activity that comes from a worse counter than the best that the device was ever read by.

    What is told of a device later can only take more away, so doing it again changes nothing.

    Examples
    --------
    >>> row = {"node": "n1", "gpu": 0, "instance": None, "tensor_activity": None, "dram_activity": None}
    >>> read = {"sm_activity": [0.99, 0.3], "activity_source": ["legacy", "profiling"]}
    >>> samples = pl.DataFrame(read).with_columns(pl.lit(value).alias(name) for name, value in row.items())
    >>> on_one_rung(samples, rungs(samples))["sm_activity"].to_list()
    [None, 0.3]
    """
    source = pl.col("activity_source")
    stays = pl.col("sm_activity").is_not_null() & (
        (source == PROFILING)
        | ((source == ENGINE) & ~pl.col("has_sm"))
        | ((source == LEGACY) & ~pl.col("has_better") & ~pl.col("cut"))
    )
    left = pl.any_horizontal(pl.col("tensor_activity", "dram_activity").is_not_null())
    judged = (
        samples.lazy()
        .join(best_rungs(ever).lazy(), on=DEVICE_KEY, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            sm_activity=pl.when(stays).then("sm_activity"),
            activity_source=pl.when(stays)
            .then(source)
            .otherwise(pl.when(left).then(pl.lit(PROFILING)).otherwise(pl.lit(NO_COUNTER))),
        )
        .select(samples.collect_schema().names())
    )
    return judged if isinstance(samples, pl.LazyFrame) else judged.collect()


MAX_INDEX = 1023
"""Larger GPU or instance numbers are faults of a source."""

NODE_LABELS = ("node", "kubernetes_node", "exported_node")
"""Labels of the scrape that name the node itself."""
GPU_LABELS = ("gpu", "gpu_id", "minor_number", "index")
BOARD_LABELS = ("modelname", "card_series", "gpu_type", "name")
JOB_LABELS = ("hpc_job", "slurmjobid", "job_id", "jobid")
"""Labels of jobs: of DCGM's job mapping, slurm-job-exporter, AMD's exporter, jobstats."""
POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("pod_namespace", "pod_name"))
"""``exported_`` is what Prometheus makes of the workload's labels unless it honours labels: ``pod`` is then the
exporter's own [1]_. ``pod_name`` is the older name.

References
----------
.. [1] NVIDIA/dcgm-exporter, deployment/values.yaml: ``honorLabels: false``; Prometheus, scrape_config, honor_labels.
"""
EXPORTER = re.compile(r"(dcgm|metrics|gpu|smi|rocm)[a-z0-9-]*exporter", re.IGNORECASE)
"""Pods that export readings of GPUs, and hold none."""
OTHER_PARTITION = "a partition of an AMD GPU other than the first"

DEVICE = pl.Schema(
    {"node": pl.String(), "gpu": pl.Int32(), "instance": pl.Int32()}
    | dict.fromkeys(("profile", "board", "job_id", "fault"), pl.String())
)
"""A device as its labels give it; `fault` says why they cannot be read."""

READING = pl.Schema(
    {"file": pl.UInt32(), "line": pl.UInt32(), "raw": pl.String(), "time": INSTANT, **DEVICE}
    | {"metric": pl.String(), "value": pl.String()}
)
"""One value of one metric of one device, before it is read as a number."""


def device(labels: Mapping[str, str] | None, default_node: str | None = None) -> tuple[object, ...]:
    """Device of a label set, as a row of :data:`DEVICE`; names of labels are known in any case of their letters.

    The label ``UUID`` of a MIG sample is the parent's, so an instance is known by ``gpu`` and ``GPU_I_ID``. The host
    name may be that of the exporter's pod: labels of the scrape that name the node come first.
    The label ``job`` is the scrape job of Prometheus and says nothing about who computed.

    Examples
    --------
    >>> device({"gpu": "3", "Hostname": "n1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb", "job": "dcgm"})
    ('n1', 3, 7, '1g.10gb', None, None, None)
    >>> device({"gpu": "3", "Hostname": "dcgm-exporter-x7k2p", "node": "n1"})[0]
    'n1'
    """
    if labels is None:
        return (None,) * (len(DEVICE) - 1) + ("labels that cannot be read",)
    labels = {name.lower(): value for name, value in labels.items()}
    node = _node(labels, default_node)
    gpu = _index(next((labels[name] for name in GPU_LABELS if labels.get(name)), ""))
    if gpu is None:
        gpu = _index(labels.get("device", "").removeprefix("nvidia"))
    instance_text, profile = labels.get("gpu_i_id", ""), labels.get("gpu_i_profile") or None
    instance = _index(instance_text)
    fault = None
    if labels.get("gpu_partition_id", "").strip("0").isdigit():  # "NA" in virtual machines
        fault = OTHER_PARTITION
    elif gpu is None:
        fault = "no GPU number in the labels"
    elif node is None:
        fault = "no node in the labels"
    elif instance is None and (profile or instance_text):
        fault = "a MIG instance without its number"
    gpu_model = next((labels[name] for name in BOARD_LABELS if labels.get(name)), None)
    return node, gpu, instance, profile, gpu_model, _holder(labels), fault


def devices(labels: Sequence[Mapping[str, str] | None], default_node: str | None = None) -> pl.DataFrame:
    """Devices of several label sets, one row each in their order.

    Where a scrape renames the labels of workloads, ``pod`` never names one. Series that know their GPU by its UUID
    alone have the number and model of the series that describes it.
    """
    renamed = {each.get("job") for each in labels if each and "exported_pod" in each}
    described = {
        each["uuid"]: {name: each[name] for name in ("index", "name") if name in each}
        for each in labels
        if each and {"uuid", "index"} <= each.keys()
    }
    told = [
        None
        if each is None
        else described.get(each.get("uuid", ""), {})
        | {name: value for name, value in each.items() if each.get("job") not in renamed or name != "pod"}
        for each in labels
    ]
    return pl.DataFrame([device(each, default_node) for each in told], schema=DEVICE, orient="row")


def _node(labels: Mapping[str, str], default_node: str | None) -> str | None:
    """Name of the node: the host name unless it is that of the exporter's pod, else the address of the scrape."""
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
    host = labels.get("hostname") or None
    own = host is not None and (host == labels.get("pod") or EXPORTER.search(host) is not None)
    address = re.sub(r":[0-9]+$", "", labels.get("instance", "")) or None
    return node or (None if own else host) or default_node or address or host


def _holder(labels: Mapping[str, str]) -> str | None:
    """Job of the job mapping, else namespace/pod of the Kubernetes mapping."""
    job = next((labels[name] for name in JOB_LABELS if labels.get(name)), None)
    if job is not None:
        return job
    for namespace, pod in POD_LABELS:
        if labels.get(pod) and not EXPORTER.search(labels[pod]):
            return f"{labels[namespace]}/{labels[pod]}" if labels.get(namespace) else labels[pod]
    return None


def _index(text: str) -> int | None:
    """Number of a GPU or instance."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) and int(text) <= MAX_INDEX else None


MIXED_SHARE = 0.01
"""Share of values above 1 from which ratios are taken to be percent; fewer are single faults."""

ROUNDING = 1e-6
"""By how much a mean of ratios may exceed 1 through rounding of the source."""

SHOWN = 5
PERCENT = DIVISORS["share"]["%"]


@dataclass
class _Signs:
    positive: int = 0
    most: float = 0.0
    least: float = float("inf")
    fractional: bool = False
    odd: int = 0
    first: list[float] = field(default_factory=list)
    first_odd: list[float] = field(default_factory=list)


@dataclass
class UnitSigns:
    """Counts of values by quantity, of all blocks seen so far."""

    _signs: dict[str, _Signs] = field(default_factory=lambda: {name: _Signs() for name in QUANTITIES})

    def see(self, quantity: str, values: np.ndarray) -> None:
        """Count the values of a block; NaN is no value."""
        signs = self._signs[quantity]
        positive = values[values > 0]
        if not len(positive):
            return
        signs.positive += len(positive)
        signs.most = max(signs.most, float(positive.max()))
        signs.least = min(signs.least, float(positive.min()))
        if quantity == "gpu_util" and not signs.fractional and signs.most <= 1 / PERCENT * 2:
            percent = positive * PERCENT
            signs.fractional = bool((np.rint(percent) != percent).any())
        if len(signs.first) < SHOWN:
            signs.first += positive[: SHOWN - len(signs.first)].tolist()
        odd = positive[:0]
        if quantity == "memory_total" and signs.least < 1:
            odd = positive[positive < 1]
        elif _is_share(quantity) and signs.most > 1 + ROUNDING:
            odd = positive[positive > 1 + ROUNDING]
        signs.odd += len(odd)
        if len(signs.first_odd) < SHOWN:
            signs.first_odd += odd[: SHOWN - len(signs.first_odd)].tolist()

    def refuse_mixed(self, where: str) -> None:
        """Refuse files whose values betray another unit than the one that was assumed.

        A share above 1 shows that percent were given for ratios; the smaller ones among them would pass for
        ratios, so not one of them can be believed. A percentage that is never above 1, yet no whole number, is
        a ratio. A GPU with less than 1 GiB of memory was given in another unit.

        Examples
        --------
        >>> signs = UnitSigns()
        >>> signs.see("sm_active", np.array([0.5, 45.0]))
        >>> signs.refuse_mixed("a.csv")
        Traceback (most recent call last):
            ...
        gpuplanner.core.errors.TraceFormatError: a.csv: expected sm_active in the unit of the source; got percent ...
        """
        for quantity, signs in self._signs.items():
            if not signs.positive:
                continue
            suspicion, count, shown = None, signs.odd, signs.first_odd
            if quantity == "gpu_util":
                if signs.most * PERCENT <= 1 and signs.fractional:
                    suspicion, count = "ratios where percent were expected", signs.positive
                    shown = [value * PERCENT for value in signs.first]
            elif _is_share(quantity) and signs.odd > MIXED_SHARE * signs.positive:
                suspicion = "percent where ratios were expected"
            elif quantity == "memory_total" and signs.least < 1:
                suspicion = "a unit larger than the one expected"
            if suspicion is not None:
                got = f"{suspicion}: {count} of {signs.positive} values, such as {examples(shown)}"
                expected = f"{quantity} in the unit of the source"
                raise TraceFormatError(where, expected, got, "Convert the column, or state its unit.")


def _is_share(quantity: str) -> bool:
    return QUANTITIES[quantity] == "share"


POWER_MARGIN = 1.2
"""A mean over a sampling period does not exceed the board's power limit by more than this."""

MAX_XID = 999
"""Errors of the driver are numbered from 1; beyond this there is none [1]_.

References
----------
.. [1] NVIDIA, XID Errors: the catalogue ends below 200.
"""

SIZE = re.compile("[0-9]{1,4}GB$")


@functools.cache
def board_limits(model: str | None) -> tuple[float, float]:
    """Largest power and memory of the boards that a model name may mean.

    Examples
    --------
    >>> board_limits("NVIDIA H100 80GB HBM3")
    (700.0, 80.0)
    """
    specs = facts("gpu_specs")
    words = set(re.split(r"[\s-]+", (model or "").upper()))
    named = [_family(name) <= words for name in specs["gpu_model"]]
    rows = specs.filter(named) if any(named) else specs
    sized = rows.filter(pl.col("memory_gb").is_in([float(word[:-2]) for word in words if SIZE.match(word)]))
    rows = rows if sized.is_empty() else sized
    power = rows["tdp_w"].max() or specs["tdp_w"].max()
    return float(power), float(rows["memory_gb"].max())  # type: ignore[arg-type]


def _family(name: str) -> set[str]:
    """Words of a catalogue name up to the first with a figure: RTX, PRO, 6000; H100."""
    words = name.upper().split("-")
    last = next(place for place, word in enumerate(words) if re.search(r"[0-9]", word))
    return set(words[: last + 1])


def reject_impossible(rows: Rows, values: Mapping[str, pl.Expr], extremes: Mapping[str, tuple[float, float]]) -> Rows:
    """Reject rows with a value below 0, a share above 1, or more power or memory than the board has."""
    if rows.good.is_empty():
        return rows
    models = rows.good["board"].unique().to_list()
    power = {model: POWER_MARGIN * board_limits(model)[0] for model in models}
    memory = {model: board_limits(model)[1] for model in models}
    watts = pl.col("board").replace_strict(power, return_dtype=pl.Float64)
    gib = pl.col("board").replace_strict(memory, return_dtype=pl.Float64)
    faults: dict[str, pl.Expr] = {}
    for quantity, value in values.items():
        least, most = extremes.get(quantity, (0.0, 0.0))
        if least < 0:
            faults[f"{quantity}: below 0"] = value < 0
        if QUANTITIES[quantity] == "share":
            if most > 1 + ROUNDING:
                faults[f"{quantity}: above 1"] = value > 1 + ROUNDING
        elif quantity == "xid":
            if most > 0:
                faults["xid: not the number of an error"] = (value % 1 != 0) | (value > MAX_XID)
        elif quantity == "power":
            if most > min(power.values()):
                faults[f"power: above {POWER_MARGIN} x the power limit of the GPU"] = value > watts
        elif quantity.startswith("memory") and most > min(memory.values()):
            faults[f"{quantity}: more than the GPU has"] = value > gib
    if "memory_used" in values and "memory_total" in rows.good.columns:
        faults["memory_used: more than memory_total"] = values["memory_used"] > values["memory_total"]
    return rows.reject(faults) if faults else rows
