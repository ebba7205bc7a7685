"""Text pages of exporters of GPUs, and OpenMetrics files of the same metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.exposition import SAMPLE, parse_labels
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.core.source_checks import source_finding
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.readers.exported import exported_readings
from gpuplanner.inbox.telemetry.readers.labels import devices
from gpuplanner.inbox.telemetry.readers.metrics import EXPORTED
from gpuplanner.inbox.telemetry.readers.pages import Hints, data_only, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, telemetry_of

NO_ORIGIN = "1970-01-01T00:00:00Z"
END_OF_DAY = pl.lit("1970-01-02T00:00:00Z").str.to_datetime(time_unit="us", time_zone="UTC")
END = "# EOF"
"""Last line of an OpenMetrics file; a Prometheus page has none, which tells their times apart."""


PAGE = (
    r"^(?:# (?:HELP|TYPE) )?(?:dcgm_fi_\w+|(?:amd_)?gpu_(?:(?:gfx|umc)_activity|\w+_vram|\w*power\w*)"
    r"|nvidia_smi_\w+|nvidia_gpu_\w+|slurm_job_\w+_gpu)[ {]"
)


@reads(matches(PAGE, re.M | re.I))
def read_exporter(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read pages of exporters of GPUs, in the order in which they were fetched.

    Pages have no times: the first was fetched at the origin, each other an interval later. Where no origin is given,
    they are counted from 1970, with a warning. Samples that do carry times keep them. ``HELP`` and ``TYPE`` lines are
    not rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.prom"
    ...     _ = path.write_text('DCGM_FI_PROF_SM_ACTIVE{gpu="0",hostname="n1"} 0.25\n')
    ...     page = read_exporter([path], Hints(origin="2026-01-01T00:00:00Z"))
    >>> page.samples["node", "sm_activity", "activity_source"].row(0)
    ('n1', 0.25, 'profiling')
    """
    asked = hints if hints.origin is not None else replace(hints, origin=NO_ORIGIN)
    rows = read_pages(paths, lambda page: _parse(page, asked), source="dcgm-exporter", twins=True)
    rows, found = exported_readings(rows)
    timeless = rows.good.filter(pl.col("time") < END_OF_DAY).height if hints.origin is None else 0
    if timeless:
        found.append(source_finding("metrics: no times", timeless))
    return telemetry_of(rows, Story("dcgm-exporter", more=found), EXPORTED)


def _parse(page: Rows, hints: Hints) -> Rows:
    path, number = path_of(page), int(page.good["file"][0])
    open_metrics = page.good["raw"][-1].strip() == END
    page = data_only(page, ~pl.col("raw").str.strip_chars_start().str.starts_with("#"))
    parts = pl.col("raw").str.extract_groups(SAMPLE).struct
    good = page.good.with_columns(metric=parts[0], labels=parts[1].fill_null(""), value=parts[2], at=parts[3])
    page = replace(page, good=good).reject(
        {
            "not a sample of the text format": pl.col("metric").is_null(),
        }
    )
    texts = page.good["labels"].unique(maintain_order=True)
    table = devices([parse_labels(text) for text in texts], hints.node_of(path))
    per_second = 1e6 if open_metrics else 1e3
    instant = (pl.col("at").cast(pl.Float64, strict=False) * per_second).round().cast(pl.Int64, strict=False)
    if page.good["at"].null_count():
        fetched = hints.nth_instant(pl.lit(number), str(path), None if number else 0.0)
        instant = pl.coalesce(instant.cast(INSTANT), pl.when(pl.col("at").is_null()).then(fetched))
    joined = page.good.join(table.with_columns(labels=texts), on="labels", how="left", maintain_order="left")
    return replace(
        page, good=joined.with_columns(time=instant.cast(INSTANT)).drop("at").rename({"labels": "series"})
    )
