"""What each tool calls a quantity, in which unit it gives it, and which texts and numbers mean "no value"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from gpuplanner.catalog.loader import facts

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
    rows = (
        facts("telemetry_metrics").filter(tool=tool).select("name", "quantity", pl.col("unit").fill_null(""))
    )
    return {name: Metric(quantity, unit) for name, quantity, unit in rows.iter_rows()}


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
