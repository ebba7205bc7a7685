"""Request rates of inference services and measured profiles of their instances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dataframely as dy
import polars as pl

from gpuplanner.core.errors import REPLACE_FILE_FIX, ScenarioError, TraceFormatError, examples
from gpuplanner.core.schema_checks import conform
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.ingest.source_fields import Field
from gpuplanner.ingest.text_files import read_text_file
from gpuplanner.ingest.typed_row_reader import read_rows
from gpuplanner.usage.requested_demand import smallest_by_compute

NOT_SERVED_CELL_TEXT = "N/A"
"""Cell of a file of rates or latency limits for a service that is not served."""


@dataclass(frozen=True)
class ServiceDemand:
    """Load of one inference service and its latency limit.

    - ``rate_per_s``: Requests. [1/s]
    - ``latency_ms``: Longest time from a request to its answer. [ms]
    """

    rate_per_s: float
    latency_ms: float


def service_demands(
    rates: Mapping[str, float], latencies: Mapping[str, float], services: Iterable[str]
) -> dict[str, ServiceDemand]:
    """Join rates and latency limits by service, sorted by name; services of rate 0 are left out.

    Parameters
    ----------
    rates, latencies : mapping of str to float
        Requests [1/s] and latency limit [ms] of each service.
    services : iterable of str
        Services with profiles.

    Raises
    ------
    ScenarioError
        If a service lacks a rate, a limit or a profile, or a value is invalid.

    Examples
    --------
    >>> service_demands({"bert": 19, "vgg16": 0}, {"bert": 6434, "vgg16": 400}, ["bert", "vgg16"])
    {'bert': ServiceDemand(rate_per_s=19.0, latency_ms=6434.0)}
    """
    faults = []
    known_services = set(services)
    if unknown := sorted({*rates, *latencies} - known_services):
        faults.append(f"no profiles of {examples(unknown)}")
    if unpaired := sorted(set(rates) ^ set(latencies)):
        faults.append(f"a rate or a latency limit, not both, of {examples(unpaired)}")
    for name, rate in rates.items():
        if not (_is_number(rate) and rate >= 0):
            faults.append(f"rate of {name} must be at least 0 and finite, not {rate!r}")
    for name, limit in latencies.items():
        if not (_is_number(limit) and limit > 0):
            faults.append(f"latency limit of {name} must be above 0 and finite, not {limit!r}")
    if faults:
        todo = "Name the same services in both, each with a profile file."
        raise ScenarioError("services", "a rate [1/s] and a latency limit [ms] each", "; ".join(faults), todo)
    requested = sorted(name for name, rate in rates.items() if rate > 0)
    return {name: ServiceDemand(float(rates[name]), float(latencies[name])) for name in requested}


def read_service_demands(
    rates: str | Path, latencies: str | Path, services: Sequence[str], *, row: int = 1
) -> tuple[dict[str, float], dict[str, float]]:
    """Read one scenario: the same row of a file of rates and of a file of latency limits.

    Parameters
    ----------
    rates, latencies : str or Path
        CSV files without a header: one row a scenario, one column a service, requests per second and milliseconds;
        ``N/A`` where a service is not served.
    services : sequence of str
        Services in the order of the columns: that of their profile files.
    row : int
        Number of the scenario, from 1; blank lines do not count.

    Returns
    -------
    rates, latencies : dict of str to float
        By service, without those that are not served.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, has no such row, or a cell that is no number; the message names file, row and column.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder) / name for name in ("rates.csv", "limits.csv")]
    ...     _ = [path.write_text(text) for path, text in zip(paths, ["19,N/A", "6434,N/A"], strict=True)]
    ...     read_service_demands(*paths, ["bert", "vgg16"])
    ({'bert': 19.0}, {'bert': 6434.0})
    """
    rates_by_service, latency_limits = (_read_row(Path(path), services, row) for path in (rates, latencies))
    unpaired = sorted(set(rates_by_service) ^ set(latency_limits))
    if unpaired:
        context = f"{rates} and {latencies}, row {row}"
        expected = f"the same services marked {NOT_SERVED_CELL_TEXT}"
        raise TraceFormatError(context, expected, examples(unpaired), "Fix one of the files.")
    return rates_by_service, latency_limits


def _read_row(path: Path, services: Sequence[str], row: int) -> dict[str, float]:
    """Read one row of a file of rates or latency limits, by service."""
    lines = [line for line in read_text_file(path).lines["text"].to_list() if line.strip()]
    if not 1 <= row <= len(lines):
        expected = f"a row from 1 to {len(lines)}"
        raise TraceFormatError(f"{path}, row {row}", expected, "no such row", "Choose one.")
    cells = [cell.strip().strip('"') for cell in lines[row - 1].split(",")]
    if len(cells) != len(services):
        expected_columns = f"{len(services)} columns, one for each of {examples(services)}"
        todo = "Compare with the profile files."
        raise TraceFormatError(f"{path}, row {row}", expected_columns, f"{len(cells)} columns", todo)
    pairs = [(name, cell) for name, cell in zip(services, cells, strict=True) if cell.upper() != NOT_SERVED_CELL_TEXT]
    return {name: _parse_rate_or_limit(cell, f"{path}, row {row}, column {name}") for name, cell in pairs}


def _parse_rate_or_limit(cell: str, context: str) -> float:
    """Parse a cell as a number of at least 0, or raise a TraceFormatError."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        expected = f"a number of at least 0, or {NOT_SERVED_CELL_TEXT}"
        raise TraceFormatError(
            context, expected, repr(cell[:40]), f"Fix this cell: a number or {NOT_SERVED_CELL_TEXT}."
        )
    return value


def _is_number(value: object) -> bool:
    """Whether a value is a finite number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


ThroughputOf = Literal["process", "instance"]
"""Whether a profile file states throughput for each process or for the whole instance."""

PROFILED_GPU_MODEL = "A100-80GB"
"""GPU model of the published profiles, and default of a plan."""

PROFILE_FILE_COLUMNS = {
    "Mig instance": Field("compute_slices", "number"),
    "Batch size": Field("batch", "number"),
    "Workload Number": Field("processes", "number"),
    "Throughput": Field("throughput_per_s", "number"),
    "Latency": Field("latency_s", "number"),
}
"""Columns of a profile file and how they are read."""

_PROFILE_KEY_COLUMNS = ("compute_slices", "batch", "processes")
"""Columns that identify a measured setting of one service."""
_PROFILE_COUNT_HEADERS = {
    field.name: header for header, field in PROFILE_FILE_COLUMNS.items() if field.name in _PROFILE_KEY_COLUMNS
}
"""Header in a profile file of each column that holds a whole number, by column name."""
_MAX_THROUGHPUT_DEVIATION_FRACTION = 0.1
"""Deviation from 1 of throughput times latency over all processes' batches up to which throughput is taken as that of
whole instances.
"""


class ServiceProfiles(dy.Schema):
    """Measured settings of services, one a row; throughput and latency 0: it did not fit or was not run."""

    service = dy.String(nullable=False, primary_key=True)
    compute_slices = dy.Int64(nullable=False, min=1, primary_key=True)
    batch = dy.Int64(nullable=False, min=1, primary_key=True)
    processes = dy.Int64(nullable=False, min=1, primary_key=True)
    throughput_per_s = dy.Float64(nullable=False, min=0, metadata={"meaning": "of all processes together"})
    latency_s = dy.Float64(nullable=False, min=0)

    @dy.rule()
    def throughput_and_latency_are_both_0_or_neither(cls) -> pl.Expr:
        """A setting was measured or it was not."""
        return (pl.col("throughput_per_s") == 0) == (pl.col("latency_s") == 0)


def read_service_profiles(
    folder: str | Path, gpu_model: GpuModel | str = PROFILED_GPU_MODEL, *, throughput_of: ThroughputOf = "process"
) -> pl.DataFrame:
    r"""Read a folder with one profile file a service, in the format of ParvaGPU.

    A file has the columns ``Mig instance`` (compute slices), ``Batch size``, ``Workload Number`` (processes that share
    the instance), ``Throughput`` [1/s] and ``Latency`` [s]. Rows of zeros did not fit or were not run.

    Parameters
    ----------
    folder : str or Path
        Folder of the files; ``bert.csv`` is the service ``bert``.
    gpu_model : GpuModel or str
        GPU model on which they were measured; it has the sizes of instances.
    throughput_of : {"process", "instance"}
        Whose throughput the files state. In ParvaGPU's it is that of one process: throughput times latency is the
        batch, whatever the number of processes, and the authors' planner multiplies by them.

    Returns
    -------
    polars.DataFrame
        Table :class:`ServiceProfiles`, services in the order of their file names.

    Raises
    ------
    TraceFormatError
        If the folder has no such files, or a row of one is invalid; the message names file, line and column. Also if
        `throughput_of` is ``"process"`` and the figures are those of whole instances: by Little's law throughput times
        latency is the number of requests in flight.
    GeometryError
        If the GPU model is unknown.

    References
    ----------
    Lee et al., ParvaGPU: Efficient Spatial GPU Sharing for Large-Scale DNN Inference in Cloud Environments,
    SC 2024; MunQ-Lee/ParvaGPU_SC24, src/data_load.c (``trp = trp*orig_num_proc``).

    Examples
    --------
    >>> import tempfile
    >>> header = "Mig instance,Batch size,Workload Number,Throughput,Latency"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "bert.csv"
    ...     _ = path.write_text(f"{header}\n1,8,2,100.0,0.08\n7,8,2,0,0\n")
    ...     read_service_profiles(folder).rows()
    [('bert', 1, 8, 2, 200.0, 0.08), ('bert', 7, 8, 2, 0.0, 0.0)]
    """
    gpu_model = as_gpu_model(gpu_model)
    if throughput_of not in ("process", "instance"):
        raise TraceFormatError("throughput_of", "'process' or 'instance'", repr(throughput_of), "Choose one.")
    files = sorted(path for path in Path(folder).glob("*.csv") if not path.name.startswith("."))
    if not files:
        got = "none" if Path(folder).is_dir() else "no such folder"
        expected = "a folder with a profile file (*.csv) for each service"
        raise TraceFormatError(str(folder), expected, got, "Check it.")
    table = pl.concat([_read_file(path, gpu_model) for path in files])
    if throughput_of == "instance":
        return table
    _reject_instance_throughput(table, str(folder))
    return table.with_columns(pl.col("throughput_per_s") * pl.col("processes"))


def _read_file(path: Path, gpu_model: GpuModel) -> pl.DataFrame:
    """Read one profile file; any unusable row is an error, as a plan would depend on the missing setting."""
    rows = read_rows([path], PROFILE_FILE_COLUMNS, source="service profiles")
    sizes = sorted(smallest_by_compute(gpu_model))
    throughput, latency = pl.col("throughput_per_s"), pl.col("latency_s")
    sizes_text = f"{gpu_model.name} has instances of {', '.join(map(str, sizes))} compute slices"
    faults: dict[str, pl.Expr] = {
        f"{header}: not a whole number above 0": (pl.col(name) < 1) | (pl.col(name) % 1 != 0)
        for name, header in _PROFILE_COUNT_HEADERS.items()
    }
    faults[f"Mig instance: {sizes_text}"] = ~pl.col("compute_slices").is_in([float(size) for size in sizes])
    faults["Throughput and Latency: one is 0 and the other is not"] = (throughput == 0) != (latency == 0)
    faults[f"{', '.join(_PROFILE_COUNT_HEADERS.values())}: measured more than once"] = pl.struct(
        _PROFILE_KEY_COLUMNS
    ).is_duplicated()
    rows = rows.reject(faults)
    if rows.rejects.height:
        _reject_unusable_rows(path, rows.rejects.to_dicts())
    if rows.good.is_empty():
        raise TraceFormatError(str(path), "rows of service profiles", "a header alone", REPLACE_FILE_FIX)
    named = rows.good.with_columns(service=pl.lit(path.stem))
    return conform(named, ServiceProfiles, source=str(path))


def _reject_unusable_rows(path: Path, rejects: list[dict[str, Any]]) -> None:
    """Raise a TraceFormatError that lists unusable rows."""
    listed = [f"line {reject['row']}: {reject['reason']} ({reject['raw'][:60]})" for reject in rejects]
    got = f"{len(rejects)} unusable row(s): {examples(listed)}"
    expected = "five figures a row that a measurement can give"
    raise TraceFormatError(str(path), expected, got, "Fix or remove these lines.")


def _reject_instance_throughput(table: pl.DataFrame, folder: str) -> None:
    """Raise a TraceFormatError if throughput is already that of whole instances: multiplying it would overstate it."""
    shared = table.filter((pl.col("processes") > 1) & (pl.col("throughput_per_s") > 0))
    in_flight = pl.col("throughput_per_s") * pl.col("latency_s") / (pl.col("batch") * pl.col("processes"))
    likeness = shared.select(in_flight.median()).item()
    if likeness is not None and abs(likeness - 1) < _MAX_THROUGHPUT_DEVIATION_FRACTION:
        expected = "throughput of one process (throughput x latency = batch size)"
        got = "that of all of them (throughput x latency = batch size x workload number)"
        raise TraceFormatError(folder, expected, got, "Read it with throughput_of='instance'.")
