"""Dumps of Slurm and of other schedulers in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.catalog import export_command
from gpuplanner.errors import TraceFormatError
from gpuplanner.hardware import parse_device
from gpuplanner.inbox import Dataset
from gpuplanner.inbox.registry import read
from gpuplanner.inbox.schedulers.job_table import JOB_TABLE

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


# What looks like something that is not read, and what to run instead

SACCT_LINE = export_command("sacct")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("08-no-jobid/sacct.txt", ["'State'", "'JobID'", "Submit", SACCT_LINE]),
        ("09-allocgres/sacct.txt", ["'AllocTRES' may be 'AllocGRES' here", SACCT_LINE]),
        ("10-fixed-width/sacct.txt", ["without --parsable2", SACCT_LINE]),
        (
            "11-semicolon-german-dates/sacct.csv",
            ["another delimiter", "02.03.2026 ", "--delimiter", "SLURM_TIME_FORMAT", SACCT_LINE],
        ),
        ("11-semicolon-german-dates/sacct_pipe.txt", ["'02.03.2026 01:03:35'", "Set SLURM_TIME_FORMAT=%s"]),
        ("11-semicolon-german-dates/sacct_semi_iso.csv", ["another delimiter", "--delimiter", SACCT_LINE]),
        ("19-pbs-accounting/20260316", ["PBS", JOB_TABLE, "'PBS'"]),
        ("20-htcondor/history.json", ["condor_history", JOB_TABLE, "'HTCondor'"]),
        ("21-lsf-bjobs-json/bjobs.json", ["bjobs", JOB_TABLE, "'LSF'"]),
        ("22-sreport/sreport_p.txt", ["sreport", "names no job", SACCT_LINE]),
        ("26-scontrol-show-job/jobs.txt", ["scontrol show job", SACCT_LINE]),
        ("30-tools-dumps/meta.json", ["ClusterCockpit", JOB_TABLE]),
        ("30-tools-dumps/squeue.txt", ["squeue", SACCT_LINE]),
        ("32-squeue-json-2108/squeue.json", ["squeue of Slurm 21.08", SACCT_LINE]),
    ],
)
@pytest.mark.parametrize("source", ["auto", "slurm"])
def test_a_form_that_is_not_read_is_named_with_the_command_to_run(
    name: str, words: list[str], source: str, case: Unpack
):
    with pytest.raises(TraceFormatError) as found:
        read(source, case(name), tz="UTC")
    assert [word for word in words if word not in str(found.value)] == []


JOBCOMP = (  # alex at FAU, public log of a support case; the format: SchedMD/slurm jobcomp_filetxt.c
    "JobId=2293679 UserId=ada(210981) GroupId=g(14700) Name=run it.sh JobState=FAILED Partition=a100 TimeLimit=1440 "
    "StartTime=2025-01-11T20:00:00 EndTime=2025-01-11T22:00:00 NodeList=a0532 NodeCnt=1 ProcCnt=16 WorkDir=/home/ada "
    "ReservationName= Tres=cpu=16,mem=240000M,node=1,billing=16,gres/gpu=2,gres/gpu:a100=2 Account=btr0 QOS=normal "
    "WcKey=* Cluster=alex SubmitTime=2025-01-11T19:45:14 EligibleTime=2025-01-11T19:45:14 DerivedExitCode=0:0 "
    "ExitCode=2:0 \n"
)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (JOBCOMP, "job completion log (jobcomp/filetxt)"),
        # SchedMD, sreport(1): the header of a report without --parsable
        (
            "-" * 80 + "\nCluster/Account/User Utilization 2026-03-01T00:00:00 - 2026-03-31T23:59:59\n",
            "sreport",
        ),
        # SchedMD, sinfo(1): default format
        (
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nbatch     up   infinite   2  alloc adev[8-9]\n",
            "sinfo",
        ),
        # IBM Spectrum LSF, lsb.acct
        (
            '"JOB_FINISH" "10.1" 1772416537 40001 1001 33554438 4 1772416500 0 0 1772416537 "u06" "gpu"\n',
            "LSF",
        ),
        # Grid Engine, qacct(1)
        ("=" * 62 + "\nqname        gpu.q\nhostname     n1\nowner        ada\n", "Grid Engine"),
        # HTCondor manual, condor_history
        (
            " ID     OWNER          SUBMITTED   RUN_TIME     ST COMPLETED   CMD\n 7.0   ada  3/2 08:00\n",
            "condor",
        ),
        ("03/02/2026 05:33:09;E;7.torque;user=ada Resource_List.nodes=2:ppn=8:gpus=4\n", "PBS"),
        ("JobID,User,State,AllocTRES\n7,ada,COMPLETED,gres/gpu=1\n", "another delimiter"),
    ],
)
def test_further_forms_are_named_too(text: str, form: str, file: Callable[..., Path]):
    with pytest.raises(TraceFormatError, match=f"got what looks like .*{re.escape(form)}"):
        read("auto", file(text))


def test_the_queue_of_now_is_read_and_said_to_be_no_past(case: Unpack):
    found = read("auto", case("12-squeue-json/squeue.json"))
    rows = found.jobs.select("job_id", "state", "gpus", "end_time", "time_limit_s").sort("job_id").rows()
    assert rows == [
        ("9000", "RUNNING", 4.0, None, 86400.0),
        ("9001", "RUNNING", 2.0, None, 86400.0),
        ("9002", "PENDING", 8.0, None, 86400.0),
        ("9003_[0-9%2]", "PENDING", 1.0, None, 86400.0),
    ]
    assert grave(found)["jobs of one moment, as squeue shows them"] == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("latin1.txt", "line 2: .* iconv -f ISO-8859-1 -t UTF-8"),
        ("utf16.txt", "UTF-16 text. .* iconv -f UTF-16 -t UTF-8"),
        ("sacct.txt.bz2", r"bzip2. Unpack it: bunzip2 --keep sacct\.txt\.bz2"),
        ("sacct.txt.xz", r"xz. Unpack it: xz --decompress --keep sacct\.txt\.xz"),
    ],
)
def test_packings_and_encodings_are_named_with_the_command_that_cures_them(
    name: str, words: str, case: Unpack
):
    with pytest.raises(TraceFormatError, match=words):
        read("slurm", case(f"29-packed/{name}"), tz="UTC")


def test_the_same_jobs_come_of_plain_packed_and_windows_text(case: Unpack):
    plain = read("slurm", case("04-trailing-delimiter-gpuutil/sacct.txt"), tz="UTC")
    for name in ("29-packed/sacct.txt.gz", "29-packed/crlf_bom.txt"):
        assert read("slurm", case(name), tz="UTC").jobs.equals(plain.jobs)
    found = read("slurm", case("29-packed/bar.txt"), tz="UTC")
    assert found.jobs["job_id", "job_name", "gpus"].rows() == [("1", "a|b", 2.0), ("2", "plain", 2.0)]
