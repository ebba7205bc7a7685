"""Dumps of Slurm and of other schedulers in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.data_correction import find_correction
from gpuplanner.decision.decision_text import NO_ACTIVITY_TEXT, NO_MEMORY_TEXT, NO_TELEMETRY_TEXT, has_measured
from gpuplanner.decision.recommendation import decide
from gpuplanner.decision.study_pipeline import summarize_dataset
from gpuplanner.hardware.catalog import export_command, find_data_sheet
from gpuplanner.hardware.gpu_model_names import parse_device_name
from gpuplanner.hardware.power_carbon_and_prices import make_power_model
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_sources, group_files_by_source
from gpuplanner.ingest.schedulers.generic_job_table import JOB_TABLE_COLUMNS_TEXT
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.installed_capacity import find_installed

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
    ("word", "gpu_model", "profile"),
    [
        ("a100l.1", "a100l", "1g.10gb"),  # docs.mila.quebec, list of GPUs: 1/7 of compute, 10 GB
        ("a100l.2", "a100l", "2g.20gb"),
        ("nvidia_h100_80gb_hbm3_2g.20gb", "nvidia_h100_80gb_hbm3", "2g.20gb"),  # docs.alliancecan.ca, MIG: Fir
        ("T4.2", "T4.2", None),  # a model without MIG has no slices
        ("gtx.7", "gtx.7", None),
    ],
)
def test_a_number_behind_a_model_with_mig_is_its_compute_slices(word: str, gpu_model: str, profile: str | None):
    found = parse_device_name(word)
    assert (found.gpu_model, found.profile) == (gpu_model, profile)


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
    assert grave(found) == {"unknown GPU type": 1}
    [effect] = found.quality.filter(check="unknown GPU type")["effect"]
    assert "counts as a full GPU" in effect
    assert "NAME=MODEL:PROFILE" in effect
    told = read("slurm", path, tz="UTC", boards={"half": "A100-40GB:3g.20gb"})
    assert grave(told) == {}
    assert told.jobs.filter(job_id="1")["gpus", "profile_requested"].rows() == [(pytest.approx(6 / 7), "3g.20gb")]


def test_a_stated_profile_that_the_model_has_not_is_refused_with_those_that_it_has(file: Callable[..., Path]):
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
        ("19-pbs-accounting/20260316", ["PBS", JOB_TABLE_COLUMNS_TEXT, "'PBS'"]),
        ("20-htcondor/history.json", ["condor_history", JOB_TABLE_COLUMNS_TEXT, "'HTCondor'"]),
        ("21-lsf-bjobs-json/bjobs.json", ["bjobs", JOB_TABLE_COLUMNS_TEXT, "'LSF'"]),
        ("42-other-tools/qstat.json", ["qstat of PBS", JOB_TABLE_COLUMNS_TEXT, "'PBS'"]),
        ("42-other-tools/flux.json", ["flux jobs", JOB_TABLE_COLUMNS_TEXT, "'Other schedulers'"]),
        ("22-sreport/sreport_p.txt", ["sreport", "names no job", SACCT_LINE]),
        ("26-scontrol-show-job/jobs.txt", ["scontrol show job", SACCT_LINE]),
        ("30-tools-dumps/meta.json", ["ClusterCockpit", JOB_TABLE_COLUMNS_TEXT]),
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
        ("-" * 80 + "\nCluster/Account/User Utilization 2026-03-01T00:00:00 - 2026-03-31T23:59:59\n", "sreport"),
        # SchedMD, sinfo(1): default format
        ("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nbatch     up   infinite   2  alloc adev[8-9]\n", "sinfo"),
        # IBM Spectrum LSF, lsb.acct
        ('"JOB_FINISH" "10.1" 1772416537 40001 1001 33554438 4 1772416500 0 0 1772416537 "u06" "gpu"\n', "LSF"),
        # Grid Engine, qacct(1)
        ("=" * 62 + "\nqname        gpu.q\nhostname     n1\nowner        ada\n", "Grid Engine"),
        # HTCondor manual, condor_history
        (" ID     OWNER          SUBMITTED   RUN_TIME     ST COMPLETED   CMD\n 7.0   ada  3/2 08:00\n", "condor"),
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
def test_packings_and_encodings_are_named_with_the_command_that_cures_them(name: str, words: str, case: Unpack):
    with pytest.raises(TraceFormatError, match=words):
        read("slurm", case(f"29-packed/{name}"), tz="UTC")


def test_the_same_jobs_come_of_plain_packed_and_windows_text(case: Unpack):
    plain = read("slurm", case("04-trailing-delimiter-gpuutil/sacct.txt"), tz="UTC")
    for name in ("29-packed/sacct.txt.gz", "29-packed/crlf_bom.txt"):
        assert read("slurm", case(name), tz="UTC").jobs.equals(plain.jobs)
    found = read("slurm", case("29-packed/bar.txt"), tz="UTC")
    assert found.jobs["job_id", "job_name", "gpus"].rows() == [("1", "a|b", 2.0), ("2", "plain", 2.0)]


# Jobs and node lists together, as start reads them


def together(folder: Path, *files: Path, tz: str | None = "UTC") -> Dataset:
    add_sources(group_files_by_source(files), folder / "data", tz=tz)
    return open_dataset(folder / "data")


def warned(found: Dataset) -> dict[str, str]:
    """Warnings and errors with their effects and examples, but for days without a job."""
    rows = found.quality.filter(pl.col("severity") != "info", ~pl.col("check").str.contains("no submission"))
    return {row["check"]: f"{row['effect']} {row['example']}" for row in rows.iter_rows(named=True)}


@pytest.mark.parametrize(
    ("name", "gpu_hours", "gpus", "warnings"),
    [
        ("01-steps-mig-h100", 1815.7644841269841, 12, []),
        ("02-mig-names-no-board", 411.3064682539683, 4, []),
        ("04-trailing-delimiter-gpuutil", 1801.0927777777779, 8, ["no account"]),
        ("05-two-clusters-one-dump", 3655.0525, 16, []),
        ("06b-shard-node", 5899.174583333333, 16, []),
        ("07b-mi250x-idle", 1443.2380555555555, 16, []),
        ("14-gpu-fell-off", 9613.550277777778, 32, ["node that lists fewer GPUs than jobs were allocated on it"]),
        ("15-arrays-het-requeue", 137.0, 16, ["array of waiting tasks on one row"]),
        (
            "28b-untyped-two-profiles",
            0.0,
            1,
            ["GPUs requested without a type on nodes with several GRES types", "number of GPUs not known"],
        ),
        ("28c-typed-twin", 1172.699484126984, 4, []),
        ("31-mps", 1059.7305555555556, 4, []),
        (
            "36-recut-last-week",
            8884.974722222221,
            25,
            ["277 jobs ask for 1g.5gb of A100-40GB; no GPU has such an instance today"],
        ),
        ("36b-one-old-whole-job", 1817.7644841269841, 12, ["1 job asks for a whole A100-40GB; no GPU is whole today"]),
    ],
)
def test_gpu_hours_and_gpus_of_a_cluster(
    name: str, gpu_hours: float, gpus: int, warnings: list[str], case: Unpack, tmp_path: Path
):
    found = together(tmp_path, case(f"{name}/sacct.txt"), case(f"{name}/nodes.txt"))
    assert found.provenance["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-12, abs=1e-9)
    assert found.inventory is not None
    assert found.inventory["gpus"].sum() == gpus
    assert sorted(warned(found)) == warnings


def test_json_of_sacct_counts_the_same_jobs(case: Unpack):
    found = read("slurm", case("16-sacct-json-2405/sacct.json"))
    assert (found.jobs.height, found.provenance["gpu_hours"]) == (181, pytest.approx(1919.9197222222222))


def test_accounting_without_gpus_names_the_setting(case: Unpack, tmp_path: Path):
    together(tmp_path, case("03-gres-not-tracked/sacct.txt"), case("03-gres-not-tracked/nodes.txt"))
    with pytest.raises(TraceFormatError, match=r"16 GPUs .*AccountingStorageTRES=gres/gpu .*Past jobs stay"):
        summarize_dataset(str(tmp_path / "data"))


def test_steps_state_the_measured_use_of_their_job(case: Unpack):
    found = read("slurm", case("04-trailing-delimiter-gpuutil/sacct.txt"), tz="UTC")
    first = found.jobs.filter(job_id="40001").row(0, named=True)
    assert first["sm_activity"] == pytest.approx(0.12)  # gres/gpuutil=12 over the whole run of one GPU
    assert first["memory_peak_gib"] == pytest.approx(40777 / 1024)
    assert found.jobs["sm_activity"].null_count() == 0


@pytest.mark.parametrize(
    ("absent", "missing"),
    [((), []), (("mem",), [NO_MEMORY_TEXT]), (("util",), [NO_ACTIVITY_TEXT]), (("mem", "util"), [NO_TELEMETRY_TEXT])],
)
def test_only_use_that_no_job_record_has_is_missing(case: Unpack, file: Callable[..., Path], tmp_path, absent, missing):
    text = case("04-trailing-delimiter-gpuutil/sacct.txt").read_text()
    for word in absent:
        text = re.sub(rf"gres/gpu{word}=\w+,", "", text)
    if absent == ("util",):  # jobstats has memory without utilization
        nodes = {"nodes": {"n1": {"gpu_used_memory": {"0": 2**30}}}}
        summary = "JS1:" + base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
        text = re.sub("COMPLETED[|]$", f"COMPLETED|{summary}|", text, flags=re.M)
        text = text.replace("State|", "State|AdminComment|")
    together(tmp_path, file(text), case("04-trailing-delimiter-gpuutil/nodes.txt"))
    decision = decide(Scenario(data=str(tmp_path / "data"), actuator="slurm")).decision
    assert [fact.what for fact in decision.missing if "rightsizing" in fact.what] == missing


def test_telemetry_counts_where_job_records_have_no_use():
    jobs = pl.DataFrame({"sm_activity": [None], "memory_peak_gib": [None]}, schema_overrides=dict.fromkeys(
        ("sm_activity", "memory_peak_gib"), pl.Float64))  # fmt: skip
    samples = pl.DataFrame({"sm_activity": [0.3], "memory_used_gib": [None]})
    dataset = SimpleNamespace(jobs=jobs, samples=samples)
    assert has_measured(dataset, "sm_activity", "sm_activity")
    assert not has_measured(dataset, "memory_peak_gib", "memory_used_gib")
    assert not has_measured(SimpleNamespace(jobs=jobs, samples=None), "sm_activity", "sm_activity")


def test_steps_in_json_state_the_measured_use_of_their_job(case: Unpack):
    found = read("slurm", case("55-use-in-json/sacct.json"), tz="UTC")
    assert found.jobs.select("gpus", "sm_activity").rows() == [(2.0, pytest.approx(0.8))]


def test_a_mean_over_tasks_counts_for_all_tasks_of_a_step(case: Unpack, file: Callable[..., Path]):
    text = case("40-use-per-task/sacct.txt").read_text()
    found = read("slurm", file(text), tz="UTC")
    assert found.jobs.sort("job_id")["sm_activity"].to_list() == pytest.approx([0.8, 0.95, 0.5])
    assert found.jobs.sort("job_id")["memory_peak_gib"].to_list() == [70.0, None, None]
    assert warned(found) == {}
    # Of an unknown number of tasks the use of no GPU follows: it is missing, not zero.
    without_tasks = re.sub(r"\|[^|\n]*$", "", text, flags=re.MULTILINE)
    found = read("slurm", file(without_tasks), tz="UTC")
    assert found.jobs["sm_activity"].null_count() == 3
    unread = found.quality.filter(pl.col("check").str.starts_with("GPU use of steps"))
    assert unread.select("severity", "rows").rows() == [("warning", without_tasks.count("gpuutil="))]
    # Where both are given, the total counts.
    totals = {"JobID": "TRESUsageInTot", "1001.batch": "gres/gpuutil=40", "1001.extern": "gres/gpuutil=0"}
    both = "".join(f"{line}|{totals.get(line.split('|')[0], '')}\n" for line in without_tasks.splitlines())
    assert read("slurm", file(both), tz="UTC").jobs.filter(job_id="1001")["sm_activity"].to_list() == [0.4]


def test_clusters_of_one_file_are_told_apart(case: Unpack):
    found = read("slurm", case("05-two-clusters-one-dump/sacct.txt"), tz="UTC")
    assert found.jobs["attempt"].unique().to_list() == [1]
    assert found.jobs["job_id"].str.extract("^(.*)/").value_counts(sort=True).rows() == [("vega", 190), ("rigel", 160)]


def test_shares_that_accounting_does_not_track_are_named(case: Unpack, tmp_path: Path):
    found = together(tmp_path, case("06b-shard-node/sacct_untracked.txt"), case("06b-shard-node/nodes.txt"))
    effect = warned(found)["shares of GPUs that accounting does not track"]
    assert "AccountingStorageTRES=gres/shard" in effect
    assert effect.endswith("'s02'")
    assert found.provenance["gpu_hours"] == pytest.approx(2799.238611111111)
    # The tracked twin of the file has 3100 GPU-hours of shards, most of them one of four: 53 % of all are not counted.
    correction = find_correction(found)
    assert correction is not None
    assert correction.share == pytest.approx(3100 / 5899, abs=0.001)
    assert "shares of GPUs that accounting does not track" in correction.finding


@pytest.mark.slow
def test_nothing_is_bought_for_waiting_that_sharing_would_end(case: Unpack, tmp_path: Path):
    """The simulation gives each share a GPU of its own, which is not how they ran."""
    together(tmp_path, case("31-mps/sacct.txt"), case("31-mps/nodes.txt"))
    found = decide(Scenario(data=str(tmp_path / "data"), actuator="slurm")).decision
    assert (found.action, found.gpus) == ("none", 4)
    assert "jobs share their GPUs" in found.sentence


def test_rows_that_repeat_a_job_are_no_loss(file: Callable[..., Path]):
    row = f"1|{EIGHT_TO_NOON}|gres/gpu=2\n"
    found = read("slurm", file(SACCT + row * 5), tz="UTC")
    assert (found.provenance["gpu_hours"], find_correction(found)) == (8.0, None)


def test_node_lists_of_two_clusters_are_read_together(file: Callable[..., Path]):
    first = file("NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:4\n", "a.txt")
    second = file("PARTITION GRES NODES NODELIST\ngpu gpu:h100:8 2 h[1-2]\n", "b.txt")
    found = read("nodes", [first, second])
    assert found.inventory is not None
    assert found.inventory["node", "gpus"].rows() == [("h1", 8), ("h2", 8), ("n1", 4)]
    table = file("node,gpus,gpu_model\nt1,2,T4\n", "c.csv")
    with pytest.raises(TraceFormatError, match=r"expected files of one form; got no list of Slurm in .*c\.csv"):
        read("nodes", [first, table])


@pytest.mark.parametrize("node", [{"name": ["n1"], "gres": "gpu:a100:4"}, {"name": "n1", "state": [["IDLE"]]}, 7])
def test_a_node_of_another_form_is_refused_in_words(node: object, file: Callable[..., Path]):
    with pytest.raises(TraceFormatError, match="node 1: expected nodes as scontrol writes them"):
        read("nodes", file(json.dumps({"nodes": [node]}), "nodes.json"))


def test_shares_without_a_node_list_are_not_counted_in_silence(case: Unpack):
    found = read("slurm", case("06b-shard-node/sacct.txt"), tz="UTC")
    assert grave(found)["shares of GPUs on nodes that are not known"] == 2091
    assert found.provenance["gpu_hours"] == pytest.approx(2799.238611111111)


@pytest.mark.parametrize(
    ("gres", "tres", "gpus"),
    [
        ("gpu:2,shard:64", "gres/shard=8", 0.25),  # SchedMD, gres.html, sharding: 32 shards a GPU
        ("gpu:2,mps:200", "gres/mps=50", 0.5),  # SchedMD, gres.html, MPS: 100 a GPU
        ("gpu:a100:4(S:0-1),shard:a100:16", "gres/shard=1,gres/shard:a100=1", 0.25),
        ("gpu:a100:4,shard:16", "gres/gpu=2", 2.0),
    ],
)
def test_a_job_counts_by_the_share_that_its_node_states(
    gres: str, tres: str, gpus: float, file: Callable[..., Path], tmp_path: Path
):
    jobs = f"{SACCT[:-1]}|NodeList\n1|{EIGHT_TO_NOON}|cpu=1,{tres},node=1|tux1\n"
    found = together(tmp_path, file(jobs), file(f"NodeName=tux1\n   Gres={gres}\n", "nodes.txt"))
    assert found.jobs["gpus", "instances", "profile_requested"].rows() == [(gpus, None, None)]
    assert warned(found) == {}


def test_untyped_gpus_are_told_by_nodes_of_one_kind(file: Callable[..., Path], tmp_path: Path):
    rows = "".join(f"{n}|{EIGHT_TO_NOON}|gres/gpu=1|{node}\n" for n, node in enumerate(("m1", "w1", "x1")))
    nodes = "NodeName=m1 Gres=gpu:a100_3g.20gb:2\nNodeName=w1 Gres=gpu:h100:4\n"
    nodes += "NodeName=x1 Gres=gpu:a100:1,gpu:a100_3g.20gb:2\n"
    found = together(tmp_path, file(f"{SACCT[:-1]}|NodeList\n{rows}"), file(nodes, "nodes.txt"))
    assert found.jobs.sort("job_id")["gpus"].to_list() == [pytest.approx(3 / 7), 1.0, None]
    assert "gres/gpu:TYPE" in warned(found)["GPUs requested without a type on nodes with several GRES types"]


def test_a_whole_job_on_a_partitioned_fleet_is_counted_and_named(case: Unpack, tmp_path: Path):
    name = "28d-whole-job-on-cut-fleet"
    found = together(tmp_path, case(f"{name}/mixed.txt"), case(f"{name}/nodes2.txt"))
    assert found.provenance["gpu_hours"] == pytest.approx(10.0 + 2 * 10.0 * 3 / 7)
    assert list(warned(found)) == ["1 job asks for a whole A100-40GB; no GPU is whole today"]


def test_jobs_on_one_model_show_the_nodes_of_a_job_on_two(case: Unpack, file: Callable[..., Path]):
    text = case("41-job-of-two-models/sacct.txt").read_text()
    begin, end = (datetime(2026, 4, day, tzinfo=UTC) for day in (1, 2))
    found = read("slurm", file(text), tz="UTC")
    assert found.provenance["gpu_hours"] == 12.0
    fleet = find_installed(found, begin, end)
    assert fleet.inventory.select("node", "gpu_model", "gpus").rows() == [("gx1", "a100", 2), ("gx2", "v100", 1)]
    assert fleet.words == ("a100", "v100")
    # Without other jobs each of its nodes may have either model, and is named with each once.
    alone = "".join(text.splitlines(keepends=True)[:2])
    fleet = find_installed(read("slurm", file(alone), tz="UTC"), begin, end)
    assert set(fleet.inventory["gpu_model"]) == {"a100|v100"}


def test_two_dies_of_mi250x_are_a_board(case: Unpack):
    found = read("nodes", case("07b-mi250x-idle/nodes.txt"))
    assert found.quality["example"].to_list() == ["16 GCDs = 8 MI250X"]
    assert found.inventory is not None
    [model] = found.inventory["gpu_model"].unique()
    # Two dies draw what the board's data sheet states, 560 W, and a tenth of it idle; each has half its memory.
    assert 2 * make_power_model(model).idle_w == pytest.approx(56.0)
    assert (find_data_sheet(model).tdp_w, find_data_sheet(model).memory_gb) == (280.0, 64.0)


def test_jobstats_in_the_comment_is_measured_use(file: Callable[..., Path]):
    # PrincetonUniversity/jobstats: one entry a node, use and memory a GPU
    nodes = {"n1": {"gpu_utilization": {"0": 90.0, "1": 10.0}, "gpu_used_memory": {"0": 2**34, "1": 2**30}}}
    packed = base64.b64encode(gzip.compress(json.dumps({"nodes": nodes, "gpus": 2}).encode(), mtime=0))
    header = SACCT[:-1] + "|AdminComment|JobName\n"
    text = f"1|{EIGHT_TO_NOON}|gres/gpu=2|JS1:{packed.decode()}|a\n2|{EIGHT_TO_NOON}|gres/gpu=1|JS1:Short|b\n"
    found = read("slurm", file(header + text), tz="UTC")
    assert found.jobs.sort("job_id")["sm_activity", "memory_peak_gib"].rows() == [(0.5, 16.0), (None, None)]


# Node lists


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("13-nodes-json/nodes.json", 12),
        ("27-node-lists/nodes_conf.txt", 24),
        ("27-node-lists/slurm.conf", 24),
        ("27-node-lists/sinfo_ranges.txt", 40),
        ("27-node-lists/scontrol_future.txt", 4),  # a cloud node that does not run is no capacity
    ],
)
def test_node_lists_are_read(name: str, gpus: int, case: Unpack):
    found = read("nodes", case(name), tz="UTC").inventory
    assert found is not None
    assert found["gpus"].sum() == gpus
    assert read("auto", case(name)).kind == "inventory"


@pytest.mark.parametrize(
    "name",
    [
        "27-node-lists/sinfo_O.txt",
        "27-node-lists/sinfo_gresused.txt",
        "27-node-lists/sinfo_noheader.txt",
        "33-sinfo-default/sinfo.txt",
        "33-sinfo-default/sinfo_Nl.txt",
    ],
)
@pytest.mark.parametrize("source", ["auto", "nodes"])
def test_a_node_list_without_gpus_names_the_command(name: str, source: str, case: Unpack):
    with pytest.raises(TraceFormatError, match=re.escape(export_command("nodes"))):
        read(source, case(name))


SINFO_JSON = {  # SchedMD/slurm src/plugins/data_parser/v0.0.40/parsers.c, SINFO_DATA
    "sinfo": [
        {
            "node": {"state": ["IDLE", "DRAIN"]},
            "nodes": {"nodes": ["g1", "g2"]},
            "gres": {"total": "gpu:a100:4", "used": "gpu:a100:0"},
        },
        {"node": {"state": ["IDLE"]}, "nodes": {"nodes": ["c1"]}, "gres": {"total": "", "used": ""}},
    ]
}


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (json.dumps(SINFO_JSON), 8),
        ("NODELIST|GRES|STATE|REASON|TIMESTAMP\ng1|gpu:a100:4(S:0-1)|drained|bad fan|2026-03-22T11:03:34\n", 4),
        # slurm.conf(5): the settings of the cluster come first
        ("ClusterName=tux\nGresTypes=gpu\n# nodes\nNodeName=tux[1-3] Gres=gpu:2,shard:64\n", 6),
    ],
)
def test_further_node_lists_are_read(text: str, gpus: int, file: Callable[..., Path]):
    found = read("auto", file(text, "nodes"), tz="UTC")
    assert found.kind == "inventory"
    assert found.table["gpus"].sum() == gpus


CLOSED = "   State=IDLE+DRAIN\n   Reason=bad GPU [root@{}]\n"


@pytest.mark.parametrize(
    ("text", "tz", "since"),
    [
        ("NodeName=n1 Gres=gpu:4\n" + CLOSED.format("2026-03-22T11:03:34"), "Europe/Oslo", 10),
        ("NodeName=n1 Gres=gpu:4\n" + CLOSED.format("1774173814"), None, 10),  # SLURM_TIME_FORMAT=%s
        ("NODELIST|GRES|STATE|REASON|TIMESTAMP\nn1|gpu:4|drained|bad|2026-03-22T10:03:34\n", "UTC", 10),
        (
            json.dumps({"nodes": [{"name": "n1", "gres": "gpu:4", "state": ["IDLE", "DRAIN"],
                                   "reason_changed_at": {"set": True, "number": 1774173814}}]}),
            None, 10,
        ),
        ("NodeName=n1 Gres=gpu:4\n" + CLOSED.format("2026-03-22T11:03:34"), None, None),
        ("NodeName=n1 Gres=gpu:4\n   State=IDLE\n   Reason=was bad [root@1774173814]\n", None, None),
    ],
)  # fmt: skip
def test_a_closed_node_is_out_of_service_since_the_date_of_its_reason(
    text: str, tz: str | None, since: int | None, file: Callable[..., Path]
):
    found = read("nodes", file(text, "nodes"), tz=tz)
    rows = found.tables["out_of_service"].rows() if "out_of_service" in found.tables else []
    at = None if since is None else datetime(2026, 3, 22, since, 3, 34, tzinfo=UTC)
    assert [(row[0], row[1], row[2]) for row in rows] == ([] if since is None else [("n1", at, None)])
    undated = "node that takes no new jobs since a time that is not known"
    assert (undated in warned(found)) == (since is None and "DRAIN" in text)


def test_events_name_lists_of_nodes_and_the_whole_cluster(case: Unpack):
    found = read("auto", case("39-node-events/events.txt"), tz="UTC")
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_hours()
    by_node = dict(found.table.group_by("node").agg(hours.sum()).iter_rows())
    assert by_node == {"gcn1": 16, "gcn2": 12, "gcn04": 12}
    severities = dict(found.quality.select("check", "severity").iter_rows())
    assert severities.pop("rejected: event of the whole cluster") == "info"
    assert set(severities) == {"rejected: node: no name, and not such as n[1-4]", "rejected: state: missing"}


def test_a_node_whose_gpus_are_shared_is_never_released(file: Callable[..., Path], tmp_path: Path):
    day = "ling|COMPLETED|2026-03-{0:02d}T08:00:00|2026-03-{0:02d}T08:00:00|2026-03-{0:02d}T20:00:00"
    rows = "".join(
        f"{n}{kind}|{day.format(n)}|{tres}|{node}\n"
        for n in range(2, 30)
        for kind, tres, node in (("1", "gres/gpu=4", "s1"), ("2", "cpu=1", "s2"), ("3", "gres/gpu=1", "s3"))
    )
    nodes = "NodeName=s1 Gres=gpu:4\nNodeName=s2 Gres=gpu:4,shard:16\nNodeName=s3 Gres=gpu:4\nNodeName=s4 Gres=gpu:4\n"
    together(tmp_path, file(f"{SACCT[:-1]}|NodeList\n{rows}"), file(nodes, "nodes.txt"))
    decision = decide(Scenario(data=str(tmp_path / "data"), actuator="slurm")).decision
    assert decision.action == "release"
    assert "s2" in {node for layout in decision.layouts for node in layout.nodes}
    assert decision.gpus < decision.fleet_gpus == 16
