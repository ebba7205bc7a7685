"""Measured step times on MIG slices, in one tidy table whatever the source, and one row a job of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dataframely as dy
import polars as pl

from gpuplanner.core.errors import TraceFormatError, format_message
from gpuplanner.core.schema_checks import check_table, conform
from gpuplanner.core.schemas import column_metadata, number_column
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.sizing.mig_speed_law import BOUNDNESS_TELEMETRY_COLUMNS, JOB_KINDS, sm_fraction
from speed_fit.miso import read_miso
from speed_fit.parvagpu import read_parvagpu

OUTCOMES = ("measured", "does not fit", "not measured")
"""What became of a setting. A job that does not fit a slice is not slow on it: it has no speed there."""

JOB = ("source", "kind", "gpu_model", "model", "batch", "processes")
"""Columns of :class:`Measurements` that name a job: what was run, without where."""


class Measurements(dy.Schema):
    """One setting of one model on one profile a row."""

    source = dy.String(nullable=False, primary_key=True, metadata=column_metadata("data set"))
    kind = dy.Enum(JOB_KINDS, nullable=False, primary_key=True)
    gpu_model = dy.String(nullable=False, primary_key=True, metadata=column_metadata("board of the catalogue"))
    model = dy.String(nullable=False, primary_key=True, metadata=column_metadata("network that was run"))
    batch = dy.Int64(nullable=False, min=1, primary_key=True, metadata=column_metadata("items a step"))
    processes = dy.Int64(nullable=False, min=1, primary_key=True, metadata=column_metadata("sharing the instance"))
    profile = dy.String(nullable=False, primary_key=True, metadata=column_metadata("MIG profile of the board"))
    outcome = dy.Enum(OUTCOMES, nullable=False, metadata=column_metadata("what became of it"))
    step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=column_metadata("median time of a step", "s"))
    step_spread = number_column("median deviation of the epochs' medians, over the median", nullable=True)
    gpu_utilisation = number_column("share of time with a kernel running", "0-1", nullable=True, high=1.0)
    memory_utilisation = number_column(
        "share of time with memory being read or written", "0-1", nullable=True, high=1.0
    )
    power_share = number_column("mean power over the power limit", "0-1", nullable=True, high=1.0)

    @dy.rule()
    def step_s_is_there_if_and_only_if_measured(cls) -> pl.Expr:
        """A step time stands in every row that was measured, and in no other."""
        return pl.col("step_s").is_not_null() == (pl.col("outcome") == "measured")


def measurements(path: str | Path) -> pl.DataFrame:
    r"""Read all data sets with measured speeds on MIG slices.

    Parameters
    ----------
    path : str or Path
        Folder with ``miso_mig``, ``parvagpu`` and ``own``, CSV files of one's own measurements, or some of them.

    Returns
    -------
    polars.DataFrame
        A table :class:`~speed_fit.measurements.Measurements`.

    Raises
    ------
    TraceFormatError
        If the folder has none of them, or one of them cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "parvagpu" / "prof_data").mkdir(parents=True)
    ...     header = "Mig instance,Batch size,Workload Number,Throughput,Latency"
    ...     rows = "1,8,1,100,0.08\n7,8,1,500,0.016\n7,9,1,0,0\n"
    ...     _ = (Path(folder) / "parvagpu" / "prof_data" / "bert.csv").write_text(f"{header}\n{rows}")
    ...     measurements(folder).select("model", "batch", "profile", "outcome", "step_s").rows()
    [('bert', 8, '1g.10gb', 'measured', 0.08),
     ('bert', 8, '7g.80gb', 'measured', 0.016),
     ('bert', 9, '7g.80gb', 'not measured', None)]
    """
    folders = {Path(path) / name: read for name, read in READERS.items() if (Path(path) / name).is_dir()}
    if not folders:
        expected = f"a folder with {' or '.join(READERS)}"
        raise TraceFormatError(
            format_message(str(path), expected, "none of them", "Name the folder of the public data.")
        )
    tables = [
        check_table(conform(read(folder), Measurements, source=str(folder)), Measurements, source=str(folder))
        for folder, read in folders.items()
    ]
    return pl.concat(tables)


def own_measurements(frame: pl.DataFrame, *, source: str = "own") -> pl.DataFrame:
    """Make a table of measurements from a user's own, to fit a model to them or to add them to the public ones.

    Parameters
    ----------
    frame : polars.DataFrame
        ``kind``, ``gpu_model``, ``model``, ``batch``, ``profile`` and ``step_s`` [s] (null: it did not fit), and any
        other column of :class:`~speed_fit.measurements.Measurements`.
    source : str
        Name of the data set.

    Returns
    -------
    polars.DataFrame
        A table :class:`~speed_fit.measurements.Measurements`.

    Raises
    ------
    SchemaError
        If columns are missing, or a row breaks a rule of the table.

    Examples
    --------
    >>> frame = pl.DataFrame({"kind": "inference", "gpu_model": "A100-80GB", "model": "m", "batch": 8,
    ...     "profile": ["1g.10gb", "7g.80gb"], "step_s": [0.4, 0.1]})
    >>> own_measurements(frame).select("source", "profile", "outcome").rows()
    [('own', '1g.10gb', 'measured'), ('own', '7g.80gb', 'measured')]
    """
    outcome = pl.when(pl.col("step_s").is_null()).then(pl.lit("does not fit")).otherwise(pl.lit("measured"))
    usual = {"source": pl.lit(source), "processes": pl.lit(1)}
    usual |= {"outcome": outcome} if "step_s" in frame.columns else {}
    filled = frame.with_columns(**{name: value for name, value in usual.items() if name not in frame.columns})
    return check_table(filled, Measurements, source=f"measurements {source!r}")


def relative_speeds(table: pl.DataFrame) -> pl.DataFrame:
    """Speed of each job on each smaller profile, relative to the whole GPU.

    Parameters
    ----------
    table : polars.DataFrame
        A table :class:`~speed_fit.measurements.Measurements`. The whole GPU is the full-size profile of its
        board: both sources ran with MIG on.

    Returns
    -------
    polars.DataFrame
        A row for each job and profile, sorted: the columns of :data:`~speed_fit.measurements.JOB`,
        ``step_s`` on the whole GPU [s], the telemetry, ``other_batch`` and ``other_step_s`` [s] (of the
        largest batch size that ran on the whole GPU; for that one, of the next smaller), and of the profile
        ``compute_slices``, ``memory_slices``, ``fraction`` of the SMs and
        ``speed``, as measured: noise can take it above 1.

    Raises
    ------
    TraceFormatError
        If no job was measured on the whole GPU and on another profile.

    Examples
    --------
    >>> frame = pl.DataFrame({"kind": "inference", "gpu_model": "A100-80GB", "model": "m", "batch": 8,
    ...     "profile": ["1g.10gb", "7g.80gb"], "step_s": [0.4, 0.1]})
    >>> relative_speeds(own_measurements(frame)).select("model", "compute_slices", "speed").rows()
    [('m', 1, 0.25)]
    """
    geometry = _geometry(table)
    measured = table.filter(pl.col("outcome") == "measured").join(geometry, on=["gpu_model", "profile"])
    whole = measured.filter(pl.col("fraction") == 1).select(*JOB, "step_s", *BOUNDNESS_TELEMETRY_COLUMNS)
    slices = ("compute_slices", "memory_slices", "fraction")
    parts = measured.filter(pl.col("fraction") < 1).select(*JOB, *slices, part_s="step_s")
    rows = _with_neighbours(whole).join(parts, on=JOB)
    if rows.is_empty():
        text = format_message(
            "measurements",
            "jobs measured both on the full-size profile and on a smaller one",
            f"{table.height} rows without such a job",
            "Measure one job on both.",
        )
        raise TraceFormatError(text)
    return rows.with_columns(speed=pl.col("step_s") / pl.col("part_s")).drop("part_s").sort(*JOB, "fraction")


def _geometry(table: pl.DataFrame) -> pl.DataFrame:
    """Slices of each profile that occurs, and its SMs over those of the full-size profile."""
    rows = []
    for name, profile_name in table.select("gpu_model", "profile").unique(maintain_order=True).iter_rows():
        gpu_model = as_gpu_model(name)
        profile = gpu_model.profile(profile_name)
        rows.append(
            (name, profile_name, profile.compute_slices, profile.memory_slices, sm_fraction(gpu_model, profile))
        )
    names = ["gpu_model", "profile", "compute_slices", "memory_slices", "fraction"]
    return pl.DataFrame(rows, schema=names, orient="row")


def _with_neighbours(whole: pl.DataFrame) -> pl.DataFrame:
    """Add what other batch sizes of the same model say on the whole GPU."""
    sweep = [name for name in JOB if name != "batch"]
    is_largest = pl.col("batch") == pl.col("batch").max()
    others = {
        f"other_{name}": pl.when(is_largest).then(pl.col(name).shift(1)).otherwise(pl.col(name).last())
        for name in ("batch", "step_s")
    }
    return whole.sort(JOB).with_columns(**{name: other.over(sweep) for name, other in others.items()})


def read_own(folder: Path) -> pl.DataFrame:
    """One's own measurements: CSV files as :func:`own_measurements` takes them, each a data set of its name."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise TraceFormatError(
            format_message(str(folder), "CSV files", "none", "Put measurements there, or drop the folder.")
        )
    return pl.concat(own_measurements(pl.read_csv(file), source=file.stem) for file in files)


READERS: dict[str, Callable[[Path], pl.DataFrame]] = {"miso_mig": read_miso, "parvagpu": read_parvagpu, "own": read_own}
"""Folder of each data set and what reads it."""
