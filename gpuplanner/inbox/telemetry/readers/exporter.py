"""Text pages of the DCGM exporter, and OpenMetrics files of the same metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.readers.labels import devices, parse_labels
from gpuplanner.inbox.telemetry.readers.metrics import DCGM
from gpuplanner.inbox.telemetry.readers.pages import Hints, data_only, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, telemetry_of

SAMPLE = (
    r"^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'\s*(?:\{((?:\s*[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*)\})?'
    r"\s+([^\s#]+)(?:\s+([-+0-9.eE]+))?(?:\s+#.*)?\s*$"
)
"""Metric, labels, value, time: one sample of the Prometheus text format or of OpenMetrics [1]_.

References
----------
.. [1] Prometheus, Exposition formats; OpenMetrics 1.0: the former counts milliseconds, the latter seconds.
"""

END = "# EOF"
"""Last line of an OpenMetrics file; a Prometheus page has none, which tells their times apart."""


@reads(matches(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_\w+[ {]", re.M))
def read_exporter(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read pages of the DCGM exporter, in the order in which they were fetched.

    Pages have no times: the first was fetched at the origin, each other an interval later. Samples that do
    carry times keep them. ``HELP`` and ``TYPE`` lines are not rows.

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
    rows = read_pages(paths, lambda page: _parse(page, hints), source="dcgm-exporter", twins=True)
    return telemetry_of(rows, Story("dcgm-exporter"), DCGM)


def _parse(page: Rows, hints: Hints) -> Rows:
    path, number = path_of(page), int(page.good["file"][0])
    open_metrics = page.good["raw"][-1].strip() == END
    page = data_only(page, ~pl.col("raw").str.strip_chars_start().str.starts_with("#"))
    parts = pl.col("raw").str.extract_groups(SAMPLE).struct
    good = page.good.with_columns(metric=parts[0], labels=parts[1].fill_null(""), value=parts[2], at=parts[3])
    page = replace(page, good=good).reject(
        {
            "not a sample of the text format": pl.col("metric").is_null(),
            "not a GPU metric": ~pl.col("metric").str.starts_with("DCGM_"),
        }
    )
    texts = page.good["labels"].unique(maintain_order=True)
    table = devices(map(parse_labels, texts), hints.node_of(path))
    per_second = 1e6 if open_metrics else 1e3
    instant = (pl.col("at").cast(pl.Float64, strict=False) * per_second).round().cast(pl.Int64, strict=False)
    if page.good["at"].null_count():
        fetched = hints.nth_instant(pl.lit(number), str(path), None if number else 0.0)
        instant = pl.coalesce(instant.cast(INSTANT), pl.when(pl.col("at").is_null()).then(fetched))
    joined = page.good.join(table.with_columns(labels=texts), on="labels", how="left", maintain_order="left")
    return replace(page, good=joined.with_columns(time=instant.cast(INSTANT)).drop("labels", "at"))
