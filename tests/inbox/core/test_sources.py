"""The registry: which source a file is, and options that mean something for it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.errors import GpuPlannerWarning, TraceFormatError
from gpuplanner.inbox import SOURCES, detect, read
from gpuplanner.inbox.core.source import OPTIONS

File = Callable[..., Path]
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 06:13:03,3600.0,4,14400.0,a\n"


@pytest.mark.data
@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("philly/philly.csv.gz", "philly"),
        ("itp/cluster01.csv.gz", "itp"),
        ("alibaba_gpu_v2023/openb_pod_list_cpu050.csv.gz", "openb"),
        ("slurm/sacct_fox_2025.txt", "slurm"),
        ("slurm/sacct_phillips_2016.log.gz", "slurm"),
        ("slurm/sacct_short_ood.txt", "slurm-states"),
        ("slurm/sonar_fox_2025.json", "slurm"),
        ("supercloud/slurm-log-queueing-clean.csv.gz", "supercloud"),
    ],
)
def test_public_files_are_told_apart_by_their_first_lines(public_data: Path, path: str, source: str):
    assert detect(public_data / path) == source


@pytest.mark.data
@pytest.mark.parametrize(
    "path",
    [
        "acme/cluster_summary.csv",
        "memory/memory_measurements.csv",
        "miso_mig/memory.json",
        "miso_mig/feasible/1g_5gb.json",
        "parvagpu/SLO/SLO_req_rate.csv",
        "sim/reference_values.csv",
        "training_logs/bigscience/meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out",
        "training_logs/modded_nanogpt/muon_124M.txt.gz",
        "zeus/summary_train.csv",
        "zeus/summary_power_a40.csv",
    ],
)
def test_files_of_other_things_are_none_of_the_sources(public_data: Path, path: str):
    with pytest.raises(
        TraceFormatError, match="first lines of one of the sources philly, itp, openb, helios"
    ):
        detect(public_data / path)


@pytest.mark.parametrize(
    "content", ["", "\n\n", "{}", "a,b\n1,2\n", b"\xff\xff\xff\xff", gzip.compress(b"", mtime=0)]
)
def test_what_is_no_source_is_an_error_that_lists_them(file: File, content: str | bytes):
    with pytest.raises(TraceFormatError, match="philly, itp, openb, helios"):
        detect(file(content))


def test_auto_equals_the_named_source(file: File):
    path = file(PHILLY)
    for source in ("auto", "philly", "Phil"):
        assert read(source, path).provenance == read("philly", [path]).provenance


def test_sacct_is_another_name_for_slurm(file: File):
    header = "JobID|State|Submit|Start|End|AllocTRES\n"
    path = file(header + "1|COMPLETED|1756706400|1756710000|1756717200|gres/gpu=1\n")
    assert read("sacct", path).summary() == read("auto", path).summary()


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
        assert source.options <= OPTIONS


def test_every_reader_that_is_named_can_be_loaded_and_knows_its_files():
    for source in SOURCES.values():
        assert source.sniff(["no,such,header"]) is False


@pytest.mark.lint
def test_readers_are_loaded_when_they_are_used():
    code = (
        "import sys, gpuplanner.inbox; print(sorted(n for n in sys.modules if n.startswith('gpuplanner.inbox.')"
        " and n.split('.')[2] in ('public', 'bills', 'kubernetes')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
