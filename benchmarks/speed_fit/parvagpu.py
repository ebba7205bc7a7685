"""Inference on MIG slices, as ParvaGPU publishes it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples, format_message
from gpuplanner.ingest.source_fields import Field
from gpuplanner.ingest.typed_row_reader import read_rows

SOURCE = "parvagpu"
CITATION = "Lee et al., ParvaGPU, SC 2024; MunQ-Lee/ParvaGPU_SC24 @ 5f3de1e18582, MIT"
BOARD = "A100-80GB"
PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
"""Profile by the compute slices that the files name."""

COLUMNS = {
    "Mig instance": Field("slices", "number"),
    "Batch size": Field("batch", "number", low=1),
    "Workload Number": Field("processes", "number", low=1),
    "Throughput": Field("items_per_s", "number"),
}
"""Columns that are read. Latency is batch over throughput, rounded, and says nothing more."""


def read_parvagpu(folder: str | Path) -> pl.DataFrame:
    """Read ParvaGPU's profiles of inference.

    References
    ----------
    Lee et al., ParvaGPU: Efficient Spatial GPU Sharing for Large-Scale DNN Inference in Cloud Environments,
    SC 2024; MunQ-Lee/ParvaGPU_SC24.

    Examples
    --------
    >>> read_parvagpu("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: nowhere/prof_data: expected a file <model>.csv a model; got none. ...
    """
    files = sorted((Path(folder) / "prof_data").glob("*.csv"))
    if not files:
        text = format_message(
            f"{Path(folder) / 'prof_data'}", "a file <model>.csv a model", "none", "Check the folder."
        )
        raise TraceFormatError(text)
    rate = pl.col("items_per_s")
    return (
        pl.concat([_read_file(path) for path in files])
        .with_columns(
            pl.col("batch", "processes").cast(pl.Int64),
            source=pl.lit(SOURCE),
            kind=pl.lit("inference"),
            gpu_model=pl.lit(BOARD),
            profile=pl.col("slices").cast(pl.Int64).replace_strict(PROFILES, return_dtype=pl.String),
            outcome=pl.when(rate > 0).then(pl.lit("measured")).otherwise(pl.lit("not measured")),
            step_s=pl.when(rate > 0).then(pl.col("batch") / rate),
        )
        .sort("model", "batch", "processes", "slices")
    )


def _read_file(path: Path) -> pl.DataFrame:
    rows = read_rows([path], COLUMNS, source="ParvaGPU profiles")
    known = ", ".join(map(str, PROFILES))
    whole = {"Batch size": "batch", "Workload Number": "processes"}
    faults = {f"{header}: not a whole number": pl.col(name) % 1 != 0 for header, name in whole.items()}
    faults[f"Mig instance: none of {known}"] = ~pl.col("slices").is_in([float(size) for size in PROFILES])
    rows = rows.reject(faults)
    if rows.rejects.height or rows.good.is_empty():
        listed = [f"line {row['row']}: {row['reason']}" for row in rows.rejects.to_dicts()]
        got = f"{len(listed)} unusable row(s): {examples(listed)}" if listed else "a header alone"
        raise TraceFormatError(format_message(str(path), "rows of a profile", got, "Mend or remove them."))
    return rows.good.with_columns(model=pl.lit(path.stem))
