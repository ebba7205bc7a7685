"""The registry: which source a file is, and options that mean something for it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.core.errors import GpuPlannerWarning, TraceFormatError
from gpuplanner.ingest.source_definition import READER_OPTIONS
from gpuplanner.ingest.source_registry import SOURCES, detect_source, read

File = Callable[..., Path]
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 06:13:03,3600.0,4,14400.0,a\n"


@pytest.mark.parametrize("content", ["", "\n\n", "{}", "a,b\n1,2\n", b"\xff\xff\xff\xff", gzip.compress(b"", mtime=0)])
def test_what_is_no_source_is_an_error_that_names_the_way_out(file: File, content: str | bytes):
    with pytest.raises(TraceFormatError, match=r"what sacct, scontrol, kubectl.*ingest --list") as found:
        detect_source(file(content))
    assert "philly" not in str(found.value)  # a list of all sources helps nobody


def test_an_unknown_source_lists_the_sources(file: File):
    with pytest.raises(TraceFormatError, match=r"source 'xyz' is unknown.*'auto', 'philly'"):
        read("xyz", file(PHILLY))


def test_files_of_different_sources_are_not_mixed(file: File):
    other = file("job_id,submission_time,duration,num_gpu\na,60,600,1\n", "other.csv")
    with pytest.raises(TraceFormatError, match="expected files of one source"):
        read("auto", [file(PHILLY), other])


def test_no_files_is_an_error():
    for source in ("auto", "philly"):
        with pytest.raises(TraceFormatError):
            read(source, [])


def test_an_option_that_changes_nothing_is_warned_of_and_changes_nothing(file: File):
    plain = read("philly", file(PHILLY))
    with pytest.warns(GpuPlannerWarning, match="source 'philly': nodes, origin: changes nothing here"):
        other = read("philly", file(PHILLY), nodes="nodes.csv", origin="2020-01-01T00:00:00Z")
    assert other.summary() == plain.summary()


def test_every_source_describes_itself():
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.description
        assert source.options <= READER_OPTIONS


@pytest.mark.lint
def test_readers_are_loaded_when_they_are_used():
    code = (
        "import sys, gpuplanner.ingest; print(sorted(n for n in sys.modules if n.startswith('gpuplanner.ingest.')"
        " and n.split('.')[2] in ('public', 'bills', 'kubernetes')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
