"""Dumps of Slurm and of other schedulers in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.errors import TraceFormatError
from gpuplanner.hardware import parse_device
from gpuplanner.inbox import Dataset
from gpuplanner.inbox.registry import read

CASES = Path(__file__).parent / "cluster_dumps" / "slurm"
Unpack = Callable[[str], Path]


@pytest.fixture
def case(tmp_path: Path) -> Unpack:
    """Path of a file of a case, unpacked as it was written."""

    def unpacked(name: str) -> Path:
        path = CASES / name
        if path.exists():
            return path
        packed = CASES / f"{name}.gz"
        path = tmp_path / name.replace("/", "-")
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        return path

    return unpacked


def gpu_hours_by(found: Dataset, name: str) -> dict[str, float]:
    """GPU-hours of the jobs by a column."""
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    return dict(found.jobs.group_by(name).agg((pl.col("gpus") * hours).sum()).iter_rows())


def grave(found: Dataset) -> dict[str, int]:
    """Warnings and errors of the quality report with their rows, but for days without a job."""
    rows = found.quality.filter(pl.col("severity") != "info", ~pl.col("check").str.contains("no submission"))
    return dict(rows.select("check", "rows").rows())


# Types that sites give to their GPUs


def test_types_of_sites_count_by_compute_sevenths(case: Unpack):
    found = read("slurm", case("18-mig-words-of-sites/sacct.txt"), tz="UTC")
    # Six jobs of seven hours on a node for each word; truth.json, but a100l.3: 3/7 of compute, and not 1/2 of memory.
    sevenths = [2, 4, 7, 1, 1, 2, 1, 1, 1, 2, 3, 1, 1, 7, 3, 1]
    assert gpu_hours_by(found, "node_list") == pytest.approx(
        {f"m{place:02d}": 6.0 * part for place, part in enumerate(sevenths)}
    )
    assert grave(found) == {}


@pytest.mark.parametrize(
    ("word", "board", "profile"),
    [
        ("a100l.1", "a100l", "1g.10gb"),  # docs.mila.quebec, list of GPUs: 1/7 of compute, 10 GB
        ("a100l.2", "a100l", "2g.20gb"),
        (
            "nvidia_h100_80gb_hbm3_2g.20gb",
            "nvidia_h100_80gb_hbm3",
            "2g.20gb",
        ),  # docs.alliancecan.ca, MIG: Fir
        ("T4.2", "T4.2", None),  # a model without MIG has no slices
        ("gtx.7", "gtx.7", None),
    ],
)
def test_a_number_behind_a_model_with_mig_is_its_compute_slices(word: str, board: str, profile: str | None):
    found = parse_device(word)
    assert (found.board, found.profile) == (board, profile)


SACCT = "JobID|Account|State|Submit|Start|End|AllocTRES\n"
EIGHT_TO_NOON = "ling|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T12:00:00"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "sacct.txt") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_what_no_reader_knows_is_said_with_the_option_that_tells_it(file: Callable[..., Path]):
    path = file(f"{SACCT}1|{EIGHT_TO_NOON}|gres/gpu:half=2\n2|{EIGHT_TO_NOON}|gres/gpu:a100=1\n")
    found = read("slurm", path, tz="UTC")
    assert grave(found) == {"GPU type that is not known": 1}
    [effect] = found.quality.filter(check="GPU type that is not known")["effect"]
    assert "counts as a full GPU" in effect
    assert "WORD=MODEL:PROFILE" in effect
    told = read("slurm", path, tz="UTC", boards={"half": "A100-40GB:3g.20gb"})
    assert grave(told) == {}
    assert told.jobs.filter(job_id="1")["gpus", "profile_requested"].rows() == [
        (pytest.approx(6 / 7), "3g.20gb")
    ]


def test_a_stated_profile_that_the_model_has_not_is_refused_with_those_that_it_has(
    file: Callable[..., Path],
):
    path = file(f"{SACCT}1|{EIGHT_TO_NOON}|gres/gpu:half=2\n")
    with pytest.raises(TraceFormatError, match=r"MIG profile of A100-40GB: .*3g\.20gb.*got '3g\.40gb'"):
        read("slurm", path, tz="UTC", boards={"half": "A100-40GB:3g.40gb"})
    with pytest.raises(TraceFormatError, match="T4 has none"):
        read("slurm", path, tz="UTC", boards={"half": "T4:1g.5gb"})
