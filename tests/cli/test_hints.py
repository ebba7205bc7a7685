"""``hints`` as a user types it."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest
import yaml

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Jobs
from gpuplanner.core.stage_cache_and_data_folders import sample_folder
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset


def test_hints_of_a_tenant_and_a_job(command):
    assert command("rightsize", "sample", "--team", "search")[0] == 0
    lines = command("rightsize", "sample", "--team", "search", "--profile", "3g.40gb", "--format", "pod")[1]
    assert set(re.findall(r"nvidia\.com/\S+:", lines)) == {"nvidia.com/mig-3g.40gb:"}
    assert command("rightsize", "sample", "--profile", "3g40")[0] != 0
    told = json.loads(command("rightsize", "sample", "--job", "job-002703", "--json")[1])
    assert [job["job_id"] for job in told["jobs"]] == ["job-002703"]
    assert [(row["user"], row["job_class"]) for row in told["requests"]] == [("search-u3", "inference")]


def test_the_table_fits_a_terminal_and_says_what_is_saved_and_what_is_missing(command):
    _, text, notes = command("rightsize", "sample", "--team", "vision")
    assert max(map(len, text.splitlines())) <= 100
    assert "0 full runs with samples of all GPUs, 5 needed" in text.split("Main reasons")[1]
    saved, _, unsized = (line for line in notes.splitlines() if "GPU-hours" in line)
    rows = json.loads(command("rightsize", "sample", "--team", "vision", "--json")[1])["requests"]
    hours = {name: sum(row[name] or 0 for row in rows) for name in ("saved_gpu_hours", "gpu_hours")}
    amounts = f"{hours['saved_gpu_hours']:,.1f} of {hours['gpu_hours']:,.1f}"
    assert saved.startswith(f"saved: {amounts} requested GPU-hours (a MIG slice")
    without = sum(row["gpu_hours"] for row in rows if row["recommended_profile"] is None)
    assert unsized.startswith(f"{without:,.1f} GPU-hours without a size: import more telemetry")


def test_profiles_that_no_node_has_are_named(command, tmp_path):
    trace = open_dataset(sample_folder())
    small = {"memory_peak_gib": 8.0, "sm_activity": 0.1, "gpus": 1.0, "nodes": 1}
    jobs = trace.jobs.with_columns(
        *(pl.lit(value, trace.jobs.schema[name]).alias(name) for name, value in small.items()),
        *(pl.lit(None, trace.jobs.schema[name]).alias(name) for name in ("profile_requested", "instances")),
    )
    write_dataset(Dataset({"jobs": jobs}, trace.rejects, trace.quality, trace.provenance), tmp_path / "t")
    assert "no node offers 1g.10gb yet" in command("rightsize", str(tmp_path / "t"))[2]


def test_no_recommendation_has_its_reason(command, tmp_path):
    trace = open_dataset(sample_folder())
    jobs = trace.jobs.head(4).with_columns(
        pl.lit(None, trace.jobs.schema[name]).alias(name)
        for name in ("memory_peak_gib", "time_limit_s", "profile_requested")
    )
    write_dataset(Dataset({"jobs": jobs}, trace.rejects, trace.quality, trace.provenance), tmp_path / "t")
    _, text, notes = command("rightsize", str(tmp_path / "t"), "--format", "pod")
    assert text.startswith("# no recommendation: 0 full runs with ")
    assert "GPU-hours without a size" in notes


def test_hints_that_are_shared_name_nobody(command):
    told = json.loads(command("rightsize", "sample", "--smallest-group", "5", "--json")[1])
    assert told["requests"]
    assert all(row["user"] is None for row in told["requests"])
    together = command("rightsize", "sample", "--smallest-group", "1000", "--format", "sbatch")[1]
    assert "(small groups)" in together
    assert "search" not in together
    code, _, talk = command("rightsize", "sample", "--smallest-group", "5", "--job", "job-002703")
    assert (code, "use either --job or --smallest-group" in talk) == (2, True)


def test_lines_to_paste(command):
    arguments = ("rightsize", "sample", "--team", "search", "--format", "sbatch")
    lines = command(*arguments)[1].splitlines()
    # What slurmd finds for NVIDIA H100 80GB HBM3: lower case, blanks become underscores.
    assert any(line.startswith("#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3_") for line in lines)
    shape = r"#SBATCH --(gres=gpu:TYPE(_\dg\.\d\dgb)?:\d|time=\d+-\d\d:\d\d:\d\d)|# '[^\n]*'|"
    assert all(re.fullmatch(shape.replace("TYPE", "nvidia_h100_80gb_hbm3"), line) for line in lines)
    for given in ("h100", "H100-80GB-SXM5=h100"):
        site = command(*arguments, "--gres-type", given)[1].splitlines()
        assert site == [line.replace("nvidia_h100_80gb_hbm3", "h100") for line in lines]
    assert command(*arguments, "--gres-type", "A30=a30")[1].splitlines() == lines


@pytest.mark.parametrize(("form", "kinds"), [("pod", ["Pod"]), ("dra", ["ResourceClaimTemplate", "Pod"])])
def test_objects_to_paste_are_one_stream(command, form, kinds):
    """One by one and as a stream for kubectl apply: each object once under its name, claims with their pods."""
    arguments = ("rightsize", "sample", "--team", "search", "--format", form)
    rows = json.loads(command(*arguments, "--json")[1])["requests"]
    given = [row["lines"] for row in rows if row["lines"]]
    assert len(given) > 1
    one_by_one = [list(yaml.safe_load_all(lines)) for lines in given]
    assert all([document["kind"] for document in documents] == kinds for documents in one_by_one)
    stream = list(yaml.safe_load_all(command(*arguments)[1]))
    assert stream == [document for documents in one_by_one for document in documents]
    names = [(document["kind"], document["metadata"]["name"]) for document in stream]
    assert len(set(names)) == len(names) == len(kinds) * len(given)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--team", "nobody"], 3, "team 'nobody' is unknown"),
        (["--format", "csv"], 2, "sbatch, pod, dra"),
        (["--gpu-model", "l40s"], 0, ""),
        (["--gres-type", "a b"], 2, "--gres-type: expected letters"),
        (["--gpu-model", "H100-80GB-SXM5=X9"], 3, "gpu_model 'X9' is unknown"),
    ],
)
def test_wrong_use(command, arguments, code, told):
    found, _, talk = command("rightsize", "sample", *arguments)
    assert found == code
    assert told in talk


def test_names_of_users_do_not_act(command, tmp_path):
    trace = open_dataset(sample_folder())
    evil = "x'\n#SBATCH --wrap='rm -rf ~'\x1b[2J"
    jobs = check_table(trace.jobs.with_columns(user=pl.lit(evil), gpu_model=pl.lit("h100; rm")), Jobs, source="test")
    write_dataset(Dataset({"jobs": jobs}, trace.rejects, trace.quality, trace.provenance), tmp_path / "t")
    arguments = ("rightsize", str(tmp_path / "t"), "--gpu-model", "h100; rm=H100-80GB-SXM5", "--format")
    for form in ("sbatch", "pod", "dra"):
        code, text, talk = command(*arguments, form)
        assert code == 0
        assert "\x1b" not in text + talk
        assert not any(line.lstrip().startswith("#SBATCH --wrap") for line in text.splitlines())
        assert all("rm" not in line for line in text.splitlines() if not line.startswith("# "))
    assert "\x1b" not in command(*arguments[:-1])[1]
