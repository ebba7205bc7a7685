"""Sources of telemetry; the more special kinds of files stand first."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.source import Sniff, Source, matches, together
from gpuplanner.inbox.telemetry.readers.csv_logs import READING_COLUMNS, read_dcgm_csv, read_node_csv
from gpuplanner.inbox.telemetry.readers.exporter import read_exporter
from gpuplanner.inbox.telemetry.readers.metrics import NODE_CSV
from gpuplanner.inbox.telemetry.readers.monitors import read_dcgmi_dmon, read_smi_dmon, read_smi_pmon
from gpuplanner.inbox.telemetry.readers.pages import Hints
from gpuplanner.inbox.telemetry.readers.prometheus import read_prometheus
from gpuplanner.inbox.telemetry.readers.smi_apps import read_smi_apps
from gpuplanner.inbox.telemetry.readers.smi_query import read_smi_query
from gpuplanner.inbox.telemetry.readers.transcript import read_smi_transcript
from gpuplanner.inbox.telemetry.sample_spans import Way

NODE = frozenset({"node"})
COUNTED = frozenset({"origin", "interval_s"})
ZONED = frozenset({"tz"})


def _telemetry(
    name: str,
    description: str,
    read: Callable[..., Dataset],
    sniff: Sniff,
    hints: frozenset[str],
    *,
    by_metric: bool = False,
    in_blocks: bool = False,
) -> Source:
    """A source whose reader takes what its files leave out as hints; any of them may lack the node."""

    def with_hints(paths: Sequence[str | Path], **options: Any) -> Dataset:  # noqa: ANN401 - fields of Hints
        return read(paths, Hints(**options))

    def months(paths: Sequence[str | Path], into: Path, name: str, **options: Any) -> Dataset:  # noqa: ANN401
        return read(paths, Hints(**options), Way(into, name))

    return Source(
        name,
        description,
        with_hints,
        sniff,
        hints | NODE,
        whole_files=together,
        by_metric=by_metric,
        read_months=months if in_blocks else None,
    )


def _header(*columns: str) -> Sniff:
    """A test for files whose first line names the columns."""
    ahead = "".join(rf'(?=(?:.*[,"\s])?{re.escape(column)}[",\s])' for column in columns)
    return matches(rf"\A{ahead}")


TELEMETRY = (
    _telemetry(
        "dcgm-exporter",
        "text pages of the DCGM exporter, or OpenMetrics (needs origin if without times)",
        read_exporter,
        matches(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_\w+[ {]", re.M),
        COUNTED,
        by_metric=True,
    ),
    _telemetry(
        "dcgm-csv",
        "DCGM exporter readings in long form (CSV)",
        read_dcgm_csv,
        _header(*list(READING_COLUMNS)[:3]),
        ZONED,
        by_metric=True,
        in_blocks=True,
    ),
    _telemetry(
        "node-csv",
        "one row per GPU and time with profiling fields, one file per node (CSV)",
        read_node_csv,
        _header("timestamp", "gpu", *list(NODE_CSV)[:2]),
        ZONED,
        in_blocks=True,
    ),
    _telemetry(
        "prometheus",
        "saved answers of the Prometheus HTTP API (JSON)",
        read_prometheus,
        matches(r'\A\s*\{.*"resultType"', re.S),
        frozenset(),
        by_metric=True,
    ),
    _telemetry(
        "dcgmi-dmon",
        "dcgmi dmon (needs origin)",
        read_dcgmi_dmon,
        matches(r"^\s*#\s*Entity\s", re.M),
        COUNTED,
    ),
    _telemetry(
        "smi-transcript",
        "transcript of nvidia-smi commands with a heading each (its --query-gpu parts)",
        read_smi_transcript,
        matches(r"\A#{20,}"),
        ZONED,
    ),
    _telemetry(
        "smi-pmon",
        "nvidia-smi pmon: processes (needs origin if without times)",
        read_smi_pmon,
        matches(r"\A#.*\bgpu\s+pid\s"),
        COUNTED | ZONED,
    ),
    _telemetry(
        "smi-dmon",
        "nvidia-smi dmon (needs origin if without times)",
        read_smi_dmon,
        matches(r"\A#.*\bgpu\s"),
        COUNTED | ZONED,
    ),
    _telemetry(
        "smi-apps",
        "nvidia-smi --query-compute-apps: processes (CSV; needs gpu)",
        read_smi_apps,
        _header("pid", "process_name"),
        ZONED | {"gpu"},
    ),
    _telemetry(
        "nvidia-smi",
        "nvidia-smi --query-gpu (CSV; needs tz, and columns if without header)",
        read_smi_query,
        matches(r"\A.*(?:power\.draw|memory\.used|utilization\.gpu)"),
        COUNTED | ZONED | {"gpu", "columns"},
        in_blocks=True,
    ),
)
"""The more special ones first."""
