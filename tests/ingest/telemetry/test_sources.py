"""Every source, whole and damaged in the ways in which files are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Samples
from gpuplanner.ingest.source_registry import TELEMETRY_READERS, detect_source, read

SOURCES = {source.name: source for source in TELEMETRY_READERS}

File = Callable[..., Path]
Text = Callable[[str], str]
Good = tuple[str, str, dict[str, Any], int]


def test_a_whole_file_is_known_and_read(good: Good, file: File):
    name, text, hints, rows = good
    path = file(text)
    telemetry = read("auto", path, **hints)
    assert detect_source(path) == name == telemetry.provenance["source"]
    assert (telemetry.provenance["rows_in"], telemetry.rejects.height) == (rows, 0)
    assert telemetry.provenance["rows_kept"] == rows
    check_table(telemetry.samples, Samples, source="test")
    assert list(telemetry.summary()) == [
        *("source", "rows_in", "rows_kept", "rows_rejected", "span_start", "span_end", "gpu_hours")
    ]


def test_every_source_has_a_good_file(good_text: Text):
    assert all(good_text(name) for name in SOURCES)


def test_the_file_of_another_source_is_refused(good: Good, file: File):
    name, text, _, _ = good
    path = file(text)
    for other in set(SOURCES) - {name}:
        # dmon and pmon are one program: the process table is a readable device table without quantities
        if {name, other} == {"smi-pmon", "smi-dmon"}:
            continue
        known = {"origin": "2026-01-01T00:00:00Z", "tz": "UTC", "gpu": 0}
        told = {hint: value for hint, value in known.items() if hint in SOURCES[other].options}
        with pytest.raises(TraceFormatError):
            read(other, path, **told)


def test_the_same_file_twice_is_refused_except_pages(good: Good, file: File):
    name, text, hints, rows = good
    paths = [file(text, "a.txt"), file(text, "b.txt")]
    if name in ("dcgm-exporter", "smi-apps"):
        more = {"interval_s": 15} if name == "dcgm-exporter" else {}
        twice = read(name, paths, **more, **hints)
        assert twice.provenance["rows_in"] == 2 * rows
    else:
        with pytest.raises(TraceFormatError, match="expected different files"):
            read(name, paths, **hints)


def test_a_file_like_none_names_the_way_to_all_sources(file: File):
    with pytest.raises(TraceFormatError, match="gpuplanner ingest --list"):
        detect_source(file("hello\nworld\n"))


def test_files_without_times_need_an_origin(file: File, good: Good):
    name, text, hints, _ = good
    if name == "dcgm-exporter":  # a page shows one instant: it is read, with a warning
        told = read(name, file(text))
        assert told.quality.row(0, named=True)["check"] == "readings without times, and no --origin was given"
        assert told.samples["time"].dt.year().unique().to_list() == [1970]
    elif "origin" in hints:
        with pytest.raises(TraceFormatError, match="times in the file, or --origin"):
            read(name, file(text))


def test_naive_times_need_a_zone(file: File, good: Good):
    name, text, hints, _ = good
    if "tz" in hints:
        without = {key: value for key, value in hints.items() if key != "tz"}
        with pytest.raises(TraceFormatError, match="expected times with their zone"):
            read(name, file(text), **without)
        local = read(name, file(text), **without, tz="Europe/Oslo").samples["time"]
        there = read(name, file(text), **without, tz="UTC").samples["time"]
        assert (there - local).unique().dt.total_hours().to_list() == [2]
