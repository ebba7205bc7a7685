"""From a stranger's files to every figure, by commands alone: accounting and telemetry of the same hours, joined."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.cli.application import main
from gpuplanner.ingest.dataset_folder import open_dataset

Run = Callable[..., Any]
USED_FROM = 0.05


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    """Run a command that ends well in this process, and give what it printed as JSON."""

    def command(*words: object) -> Any:
        monkeypatch.setattr("sys.argv", ["gpuplanner", *map(str, words), "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert not end.value.code, err
        return json.loads(out)

    return command


def sacct(path: Path, *jobs: tuple[str, str, datetime, datetime, int, str]) -> Path:
    """Accounting lines of jobs: id, account, start, end, GPUs and nodes; submitted a minute before the start."""
    lines = ["JobID|User|Account|State|Submit|Start|End|AllocTRES|NodeList|JobName"]
    for name, account, start, end, gpus, nodes in jobs:
        submit, begin, until = (
            f"{instant:%Y-%m-%dT%H:%M:%S}" for instant in (start - timedelta(minutes=1), start, end)
        )
        tres = f"gres/gpu:h100={gpus},gres/gpu={gpus}"
        lines.append(f"{name}|ann|{account}|COMPLETED|{submit}|{begin}|{until}|{tres}|{nodes}|train")
    path.write_text("\n".join([*lines, ""]))
    return path


def whole_minutes(readings: pl.DataFrame) -> tuple[datetime, datetime]:
    """The minutes in which there are readings, from the beginning of the first to the end of the last."""
    first, last = readings["time"].min(), readings["time"].max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    return first.replace(second=0, microsecond=0), last.replace(second=0, microsecond=0) + timedelta(minutes=1)


def expected_hours(readings: pl.DataFrame, start: datetime, end: datetime) -> tuple[float, float, float]:
    """Used hours, idle with a process and idle without.

    A reading holds until the next one, before a gap for one usual step; those of a minute count as their mean activity
    and peak memory.
    """
    usual = pl.col("step").median().over("gpu")
    minute = ["gpu", pl.col("time").dt.truncate("1m")]
    held = (
        readings.drop_nulls("sm")
        .sort("gpu", "time")
        .with_columns(step=(pl.col("time").shift(-1).over("gpu") - pl.col("time")).dt.total_microseconds())
        .with_columns(held=pl.when(pl.col("step") <= 2.5 * usual).then("step").otherwise(usual))
        .with_columns(pl.col("sm").mean().over(minute), pl.col("gib").max().over(minute))
        .with_columns(
            first=pl.max_horizontal("time", pl.lit(start)),
            last=pl.min_horizontal(pl.col("time") + pl.duration(microseconds="held"), pl.lit(end)),
        )
        .with_columns(hours=(pl.col("last") - pl.col("first")).dt.total_microseconds() / 3.6e9)
        .filter(pl.col("hours") > 0)
    )
    idle = held.filter(pl.col("sm") < USED_FROM)
    busy = idle.filter(pl.col("gib") >= 0.25)["hours"].sum()
    used = held.filter(pl.col("sm") >= USED_FROM)["hours"].sum()
    return used, busy, idle["hours"].sum() - busy


def h100_run(folder: Path, name: str) -> tuple[Path, pl.DataFrame]:
    path = folder / "h100_runs" / f"{name}_telemetry.csv.gz"
    raw = pl.read_csv(gzip.decompress(path.read_bytes()))
    time = (pl.col("timestamp") * 1e6).round().cast(pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return path, raw.select(time=time, gpu="gpu", sm="sm_active", gib=pl.col("mem_used_mib") / 1024)


@pytest.mark.data
@pytest.mark.parametrize("name", ["b1", "t2", "t6", "t13_node0"])
def test_accounting_and_a_node_log_become_one_dataset(public_data: Path, tmp_path: Path, run: Run, name: str):
    log, readings = h100_run(public_data, name)
    start, end = whole_minutes(readings)
    mine = tmp_path / "mine"
    jobs = sacct(tmp_path / "sacct.txt", ("7", "vision", start, end, 8, "n1"), ("8", "speech", start, end, 4, "n2"))
    run("ingest", "slurm", jobs, "--tz", "UTC", "--map-gpu", "h100=H100-80GB-SXM5", "-o", mine)
    told = run("ingest", "auto", log, "--node", "n1", "-o", mine)
    by_job = told["telemetry by job"]
    assert by_job["matched_gpu_hours"] > 0
    assert by_job["unmatched_gpu_hours"] == 0
    facts = run("describe", mine)
    (vision,) = [row for row in facts["allocated GPU-hours by observed activity"] if row["tenant"] == "vision"]
    used, busy, idle = expected_hours(readings, start, end)
    assert vision["used"] == pytest.approx(used, abs=1e-9)
    assert vision["idle_with_process"] == pytest.approx(busy, abs=1e-9)
    assert vision["idle_without_process"] == pytest.approx(idle, abs=1e-9)
    held = 8 * (end - start).total_seconds() / 3600
    assert used + busy + idle + vision["no_telemetry"] == pytest.approx(held, abs=1e-9)
    (speech,) = [row for row in facts["allocated GPU-hours by observed activity"] if row["tenant"] == "speech"]
    assert speech["no_telemetry"] == pytest.approx(held / 2)
    found = run("phases", mine, "--job", "7")
    assert len(found["phases"]) >= 2
    assert found["bottleneck"][0]["job_id"] == "7"
    hinted = run("rightsize", mine)
    assert hinted


NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def smi_log(path: Path, busy: list[int], minutes: int) -> Path:
    """A log of four GPUs of a node, of which some work at 90 %, the next holds a process, and the rest nothing."""
    lines = ["timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    for minute in range(minutes):
        at = NOON + timedelta(minutes=minute)
        for gpu in range(4):
            activity, memory = (90, 60_000) if gpu in busy else (0, 9_000 if gpu == max(busy) + 1 else 0)
            cells = f"NVIDIA H100 80GB HBM3, {activity} %, {memory} MiB, 300.0 W"
            lines.append(f"{at:%Y/%m/%d %H:%M:%S.000}, {gpu}, {cells}")
    path.write_text("\n".join([*lines, ""]))
    return path


def test_jobs_that_share_a_node_are_judged_together(tmp_path: Path, run: Run):
    """Three of four GPUs are held by two jobs and two work: the third held one has a process, the free one nothing."""
    mine = tmp_path / "mine"
    end = NOON + timedelta(hours=2)
    jobs = sacct(tmp_path / "sacct.txt", ("1", "vision", NOON, end, 2, "n1"), ("2", "speech", NOON, end, 1, "n1"))
    log = smi_log(tmp_path / "n1.csv", [0, 1], 120)
    run("ingest", "nvidia-smi", log, "--tz", "UTC", "-o", mine)
    told = run("ingest", "slurm", jobs, "--tz", "UTC", "--map-gpu", "h100=H100-80GB-SXM5", "-o", mine)
    assert told["telemetry by job"]["together_gpu_hours"] == pytest.approx(4 * 2)
    seen = {row["tenant"]: row for row in run("describe", mine)["allocated GPU-hours by observed activity"]}
    for tenant, share in (("vision", 2 / 3), ("speech", 1 / 3)):
        assert seen[tenant]["used"] == pytest.approx(2 * 2 * share)
        assert seen[tenant]["idle_with_process"] == pytest.approx(1 * 2 * share)
        assert seen[tenant]["idle_without_process"] == 0


def exporter_page(path: Path, at: datetime, values: dict[str, float]) -> Path:
    """A page of the exporter with its times: what each pod's GPU did."""
    lines = ["# TYPE DCGM_FI_PROF_SM_ACTIVE gauge"]
    stamp = round(at.timestamp() * 1000)
    for gpu, (pod, activity) in enumerate(values.items()):
        labels = f'gpu="{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="n1",namespace="ads",pod="{pod}"'
        lines.append(f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} {activity} {stamp}")
        lines.append(f"DCGM_FI_DEV_FB_USED{{{labels}}} 20480 {stamp}")
    path.write_text("\n".join([*lines, ""]))
    return path


def kubernetes_dump(path: Path, pods: list[str], end: datetime) -> Path:
    """Pods of one Job on one node."""
    items: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
        }
    ]
    for pod in pods:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1", "controller": True}
        ended = {"terminated": {"finishedAt": f"{end:%Y-%m-%dT%H:%M:%SZ}", "exitCode": 0}}
        items.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod,
                    "namespace": "ads",
                    "uid": pod,
                    "creationTimestamp": f"{NOON:%Y-%m-%dT%H:%M:%SZ}",
                    "ownerReferences": [owner],
                },
                "spec": {
                    "nodeName": "n1",
                    "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                },
                "status": {
                    "phase": "Succeeded",
                    "startTime": f"{NOON:%Y-%m-%dT%H:%M:%SZ}",
                    "containerStatuses": [{"name": "c", "state": ended}],
                },
            }
        )
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def test_a_dump_of_kubernetes_and_pages_of_the_exporter_become_one_dataset(tmp_path: Path, run: Run):
    """Two pods of a Job for an hour, one at work and one idle with a process: by their pod labels, page after page."""
    mine, pods, end = tmp_path / "mine", ["train-0", "train-1"], NOON + timedelta(hours=1)
    run("ingest", "kubernetes", kubernetes_dump(tmp_path / "dump.json", pods, end), "-o", mine)
    for half in range(2):
        pages = [
            exporter_page(
                tmp_path / f"{half}-{minute}.prom",
                NOON + timedelta(minutes=30 * half + minute),
                {"train-0": 0.8, "train-1": 0.0},
            )
            for minute in range(30)
        ]
        told = run("ingest", "dcgm-exporter", *pages, "-o", mine)
    assert told["telemetry by job"]["unmatched_gpu_hours"] == 0
    assert told["telemetry by job"]["matched_gpu_hours"] == pytest.approx(2)
    (ads,) = run("describe", mine)["allocated GPU-hours by observed activity"]
    assert (ads["used"], ads["idle_with_process"]) == pytest.approx((1.0, 1.0))
    assert run("phases", mine, "--job", "ads/train")["phases"]
    assert run("rightsize", mine)


def test_a_node_list_that_comes_later_decides_the_board(tmp_path: Path, run: Run):
    """The word a100 is two boards; the nodes are of one."""
    end = NOON + timedelta(hours=10)
    mine, jobs = tmp_path / "mine", sacct(tmp_path / "sacct.txt", ("1", "vision", NOON, end, 2, "n1"))
    jobs.write_text(jobs.read_text().replace("gpu:h100", "gpu:a100"))
    run("ingest", "slurm", jobs, "--tz", "UTC", "-o", mine)
    before = open_dataset(mine)
    assert before.jobs["gpu_model"].to_list() == ["a100"]
    (tmp_path / "nodes.csv").write_text("node,gpus,gpu_model\nn1,8,A100-80GB\n")
    run("ingest", "nodes", tmp_path / "nodes.csv", "-o", mine)
    after = open_dataset(mine)
    assert after.inventory is not None
    gpu_model = after.inventory["gpu_model"][0]
    assert after.jobs["gpu_model"].to_list() == [gpu_model] != ["a100"]
    assert after.provenance["gpu_hours"] == before.provenance["gpu_hours"] == 20.0
