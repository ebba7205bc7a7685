"""Output of ``nvidia-smi --query-compute-apps``: which processes hold GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.telemetry.readers.csv_logs import node_by_file, node_finding
from gpuplanner.inbox.telemetry.readers.instants import with_instants
from gpuplanner.inbox.telemetry.readers.metrics import Metric
from gpuplanner.inbox.telemetry.readers.numbers import read_wide
from gpuplanner.inbox.telemetry.readers.pages import Hints, header_begins, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import from_table
from gpuplanner.schemas import Processes, conform

SOURCE = "smi-apps"
MEMORY = Metric("memory_used", "MiB")
FIELDS = ("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory [MiB]")


@reads(header_begins("pid", "process_name"))
def read_smi_apps(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read the CSV of ``nvidia-smi --query-compute-apps``, with header and units.

    The list names GPUs by UUID alone: the number of the GPU must be stated, and a list that speaks of several
    GPUs is refused. A header without rows says that there was no process: no samples, no processes.
    """
    if hints.gpu is None:
        todo = "Give the number of the GPU as gpu."
        raise TraceFormatError(message(SOURCE, "the GPU that the list is of", "no number", todo))
    rows = read_pages(paths, _cut, source=SOURCE, twins=True)
    if rows.good["gpu_uuid"].n_unique() > 1:
        got = f"{rows.good['gpu_uuid'].n_unique()} UUIDs"
        raise TraceFormatError(message(SOURCE, "processes of one GPU", got, "Split the list by gpu_uuid."))
    rows = with_instants(rows, "timestamp", hints.tz, SOURCE)
    number = pl.col("pid").cast(pl.Int64, strict=False)
    rows = read_wide(rows.reject({"pid: not a number": number.is_null()}), {FIELDS[-1]: MEMORY})
    good = rows.good.with_columns(gpu=pl.lit(hints.gpu, pl.Int32), node=node_by_file(rows, hints))
    seen = good.select(
        "time",
        "node",
        "gpu",
        number.alias("pid"),
        kind=pl.lit("C"),
        command="process_name",
        memory_gib="memory_used",
    )
    processes = conform(seen, Processes, where=SOURCE)
    return from_table(
        replace(rows, good=good.with_columns(memory_used=pl.lit(None, pl.Float64))),
        source=SOURCE,
        time_zone=hints.tz,
        more=node_finding(rows.files, rows.count, hints),
        processes=processes,
        empty_is_fine=True,
    )


def _cut(page: Rows) -> Rows:
    """Cut lines at their commas; the name of a process is what stands between the pid and the memory."""
    path = page.files[int(page.good["file"][0])].path
    names = [name.strip() for name in page.good["raw"][0].split(",")]
    missing = [name for name in FIELDS if name not in names]
    if missing or names.index("pid") + 2 != names.index("process_name") + 1 or names[-1] != FIELDS[-1]:
        expected = f"columns {', '.join(FIELDS)}, in this order"
        todo = "Ask for timestamp,gpu_uuid,pid,process_name,used_gpu_memory with --format=csv."
        raise TraceFormatError(message(str(path), expected, f"columns {', '.join(names)[:200]}", todo))
    parts = [r"(.*)" if name == "process_name" else r"([^,]*)" for name in names]
    cut = pl.col("raw").str.extract_groups(r"^" + r",\s*".join(parts) + r"$").struct
    body = replace(page, good=page.good.slice(1), count=page.count - 1)
    fields = {name: cut[place].str.strip_chars() for place, name in enumerate(names) if name in FIELDS}
    return replace(body, good=body.good.with_columns(**fields)).reject(
        {"the fields do not match the header": pl.col("timestamp").is_null()}
    )
