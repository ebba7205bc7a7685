"""The job table, the recipes of the documentation that make it, and the page that shows both."""

from __future__ import annotations

import gzip
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.schedulers.generic_job_table import JOB_TABLE_COLUMNS_TEXT
from gpuplanner.ingest.source_registry import detect_source, read

HEADER = "job_id,user,team,submit,start,end,gpus"
TIMES = "2026-03-02T08:00:00Z,2026-03-02T09:00:00Z,2026-03-02T11:00:00Z"
CASES = Path(__file__).parents[1] / "cluster_dumps" / "slurm"


def table(folder: Path, text: str, name: str = "jobs.csv", **options: str) -> Dataset:
    path = folder / name
    path.write_text(text)
    assert detect_source(path) == "job-table"
    return read("auto", path, **options)


def test_columns_stand_in_any_order_and_the_optional_ones_may_lack(tmp_path: Path):
    found = table(tmp_path, f"{HEADER}\n7,ada,vision,{TIMES},4\n")
    assert found.jobs["job_id", "user", "tenant", "gpus", "state"].rows() == [("7", "ada", "vision", 4.0, "UNKNOWN")]
    assert found.provenance["gpu_hours"] == 8.0
    other = "gpus,profile,gpu_model,end,start,submit,team,user,job_id,nodes,state,eligible\n"
    row = "2,3g.20gb,a100,2026-03-02T11:00:00Z,2026-03-02T09:00:00Z,2026-03-02T08:00:00Z,vision,ada,7,n1+n2,failed,\n"
    [job] = table(tmp_path, other + row).jobs.to_dicts()
    assert job["gpus"] == pytest.approx(6 / 7)
    assert (job["gpu_model"], job["profile_requested"], job["instances"]) == ("A100-40GB", "3g.20gb", 2)
    assert (job["node_list"], job["nodes"], job["state"]) == ("n1,n2", 2, "FAILED")


@pytest.mark.parametrize(
    "submit",
    [
        "2026-03-02T09:00:00+01:00",
        "2026-03-02 08:00:00Z",
        "2026-03-02T08:00Z",
        "2026-03-02 08:00:00.250 UTC",
        "1772438400",
    ],
)
def test_times_state_their_zone_in_several_forms(tmp_path: Path, submit: str):
    found = table(tmp_path, f"{HEADER}\n7,ada,vision,{submit},,,4\n8,ada,vision,{submit},{submit},,4\n")
    assert found.jobs["submit_time"].unique().to_list() == [datetime(2026, 3, 2, 8, tzinfo=UTC)]
    assert found.jobs["state"].to_list() == ["PENDING", "RUNNING"]


def test_naive_times_need_a_zone_and_other_texts_are_shown(tmp_path: Path):
    naive = f"{HEADER}\n7,ada,vision,2026-03-02 09:00:00,2026-03-02 09:00:00,,4\n"
    with pytest.raises(TraceFormatError, match=r"job-table: times of 1 rows.*--tz Europe/Oslo"):
        table(tmp_path, naive)
    found = table(tmp_path, naive, tz="Europe/Oslo")
    assert found.jobs["submit_time"].to_list() == [datetime(2026, 3, 2, 8, tzinfo=UTC)]
    other = "".join(f"{job},ada,vision,2/3/2026 9:00,,,4\n" for job in range(3))
    with pytest.raises(TraceFormatError, match=r"submit: expected times; got '2/3/2026 9:00'.*2026-03-02T08:00:00Z"):
        table(tmp_path, f"{HEADER}\n{other}")


def test_runs_of_a_job_are_its_attempts_and_faults_reject_their_row(tmp_path: Path):
    later = TIMES.replace("-02T", "-03T")
    rows = f"7,ada,vision,{later},4\n7,ada,vision,{TIMES},4\n7,ada,vision,{TIMES},4\n8,ada,,{TIMES},x\n"
    found = table(tmp_path, f"{HEADER}\n{rows}9,ada,,{TIMES},1\n")
    assert found.jobs["job_id", "attempt", "tenant"].rows() == [
        ("7", 1, "vision"),
        ("9", 1, "unknown"),
        ("7", 2, "vision"),
    ]
    assert found.rejects["row", "reason"].rows() == [
        (4, "the same job and start as an earlier row"),
        (5, "gpus: not a number"),
    ]
    strange = table(tmp_path, f"{HEADER},state\n7,a,b,{TIMES},4,COMPLETED\n8,a,b,{TIMES},4,finished\n")
    assert strange.rejects["row", "reason"].rows() == [(3, "state: not one of Slurm")]


def test_parquet_holds_the_same(tmp_path: Path):
    at = datetime(2026, 3, 2, 8, tzinfo=UTC)
    frame = pl.DataFrame(
        {"gpus": [4], "team": ["vision"], "user": ["ada"], "job_id": [7], "submit": [at],
         "start": [at + timedelta(hours=1)], "end": [at + timedelta(hours=3)]}
    )  # fmt: skip
    path = tmp_path / "jobs.parquet"
    frame.write_parquet(path)
    assert detect_source(path) == "job-table"
    found = read("auto", path)
    assert (found.jobs["job_id"].to_list(), found.provenance["gpu_hours"]) == (["7"], 8.0)
    for kind in (pl.String, pl.Float64, pl.Categorical):
        frame.with_columns(pl.col("gpus").cast(pl.String).cast(kind)).write_parquet(path)
        assert read("auto", path).provenance["gpu_hours"] == 8.0
    frame.with_columns(gpus=pl.lit(b"4")).write_parquet(path)
    with pytest.raises(TraceFormatError, match=r"gpus \(number\) is Binary'. Export numbers as decimals"):
        read("auto", path)


def test_the_node_list_beside_it_says_what_is_installed(tmp_path: Path):
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,gpus,gpu_model\nn1,8,NVIDIA A100-SXM4-80GB\n")
    row = f"7,ada,vision,{TIMES},4,a100,n1\n"
    found = table(tmp_path, f"{HEADER},gpu_model,nodes\n{row}", nodes=str(nodes))
    assert found.jobs["gpu_model"].to_list() == ["A100-80GB"]


# The recipes


def run_recipe(root: Path, folder: Path, name: str, *arguments: str) -> Path:
    recipe = root / "docs" / "recipes" / name
    done = subprocess.run([sys.executable, str(recipe), *arguments], capture_output=True, text=True, check=True)
    path = folder / "jobs.csv"
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize(
    ("recipe", "options", "case", "gpu_hours"),
    [
        ("pbs_to_jobs.py", [], "19-pbs-accounting/20260316", 1919.9197222222222),
        ("condor_to_jobs.py", [], "20-htcondor/history.json", 1919.9197222222222),
        ("lsf_to_jobs.py", ["--zone", "UTC", "--year", "2026"], "21-lsf-bjobs-json/bjobs.json", 1919.9),
    ],
)
def test_recipes_give_the_gpu_hours_of_the_same_jobs_in_slurm(
    root: Path, tmp_path: Path, recipe: str, options: list[str], case: str, gpu_hours: float
):
    dump = tmp_path / "dump"
    dump.write_bytes(gzip.decompress((CASES / f"{case}.gz").read_bytes()))
    found = read("auto", run_recipe(root, tmp_path, recipe, *options, str(dump)))
    assert found.provenance["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-9)
    assert (found.jobs.height, found.rejects.height) == (181, 0)


TORQUE = """\
03/02/2026 09:00:00;S;7.s;user=ada Resource_List.nodes=2:ppn=8:gpus=4 start=1772442000
03/02/2026 11:00:00;E;7.s;user=ada group=bio account=vis ctime=1772438400 start=1772442000 end=1772449200 \
exec_host=n1/0-7+n2/0-7 Resource_List.neednodes=2:ppn=8:gpus=4 Exit_status=271
03/02/2026 12:00:00;E;8.s;user=bob queue=cpu ctime=1772438400 start=1772442000 end=1772449200 Exit_status=0
"""
"""Adaptive Computing, Torque: accounting records; nodes=N:ppn=P:gpus=G asks for G GPUs on each of N nodes."""


def test_torque_counts_gpus_by_node_and_killed_jobs_are_cancelled(root: Path, tmp_path: Path):
    dump = tmp_path / "20260302"
    dump.write_text(TORQUE)
    [job] = read("auto", run_recipe(root, tmp_path, "pbs_to_jobs.py", str(dump))).jobs.to_dicts()
    assert (job["gpus"], job["nodes"], job["state"], job["tenant"]) == (8.0, 2, "CANCELLED", "vis")


JOBCOMP = (
    "JobId=9 UserId=ada(1) GroupId=g(1) Name=a b JobState=COMPLETED Partition=p TimeLimit=60 "
    "StartTime=2026-03-02T09:00:00 EndTime=2026-03-02T11:00:00 NodeList=n[1-2] NodeCnt=2 ProcCnt=8 WorkDir=/a b "
    "ReservationName= Tres=cpu=8,node=2,gres/gpu=4,gres/gpu:a100=4 Account=vis QOS=q WcKey= Cluster=c "
    "SubmitTime=2026-03-02T08:00:00 EligibleTime=2026-03-02T08:00:00 ArrayJobId=7 ArrayTaskId=3 DerivedExitCode=0:0 "
    "ExitCode=0:0 \n"
)


def test_the_completion_log_of_slurm_names_its_tasks(root: Path, tmp_path: Path):
    dump = tmp_path / "slurm_jobcomp.log"
    dump.write_text(JOBCOMP + JOBCOMP.replace(",gres/gpu=4,gres/gpu:a100=4", ""))
    [job] = read("auto", run_recipe(root, tmp_path, "jobcomp_to_jobs.py", str(dump)), tz="UTC").jobs.to_dicts()
    assert (job["job_id"], job["gpus"], job["nodes"], job["tenant"], job["job_name"]) == ("7_3", 4.0, 2, "vis", None)


# The page


def test_page_and_readme_show_the_commands_of_the_catalogue(root: Path):
    page = (root / "docs" / "export_from_your_cluster.md").read_text("utf-8")
    readme = (root / "README.md").read_text("utf-8")
    commands = dict(facts("export_commands").select("name", "command").iter_rows())
    assert [name for name, command in commands.items() if command not in page] == []
    assert commands["sacct"] in readme
    assert "--duplicates" in commands["sacct"]
    assert JOB_TABLE_COLUMNS_TEXT in page
    assert "docs/export_from_your_cluster.md" in readme


def test_every_form_names_a_section_of_the_page_or_a_command(root: Path):
    page = (root / "docs" / "export_from_your_cluster.md").read_text("utf-8")
    sections = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    for form, todo in facts("foreign_forms").select("form", "todo").iter_rows():
        named = todo.partition("shows under '")[2].partition("'")[0] if "{job_table}" in todo else None
        if "completion log" in form:
            named = "Slurm's job completion log"
        assert named in (None, *sections), form
