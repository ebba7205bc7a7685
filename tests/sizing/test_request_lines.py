"""Request lines: read back by our own readers and checks, and no text of a user acts in them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.hardware.catalog import find_slurm_type
from gpuplanner.hardware.gpu_model_names import parse_device_name
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.kubernetes.nodes_and_dra_devices import read_claim
from gpuplanner.ingest.slurm.accounting_fields import parse_duration_s, parse_tres
from gpuplanner.planner.layout_plan import NodeState
from gpuplanner.report.export_verification import check_slurm_conf
from gpuplanner.report.mig_manager_files import allocatable_resources
from gpuplanner.sizing.request_lines_and_gpu_sharing import GpuRequest, format_request_lines
from tests.examples import examples

BOARD = "H100-80GB-SXM5"


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "3g.40gb", "gpu"])
@pytest.mark.parametrize("count", [1, 7])
def test_sbatch_lines_are_read_back_as_asked(profile, count):
    gpu_model = as_gpu_model(BOARD)
    text = format_request_lines(
        GpuRequest(profile, count, 93_600.0, gpu_model=gpu_model), "sbatch", gres_type=find_slurm_type(BOARD)
    )
    gres, time = (line.partition("=")[2] for line in text.splitlines())
    kind, _, number = gres.rpartition(":")
    tres = parse_tres(f"gres/{kind}={number}")
    word, _, number = tres.devices.partition("=")
    named = parse_device_name(word)
    assert (named.gpu_model, named.profile or "gpu", tres.gpus, number) == (
        "nvidia_h100_80gb_hbm3",
        profile,
        count,
        str(count),
    )
    assert pl.select(parse_duration_s(pl.lit(time))).item() == 93_600.0
    faults, _ = check_slurm_conf(f"NodeName=n1 Gres={gres}\n", gpu_model, 8)
    assert faults == []


@pytest.mark.parametrize(
    ("gpu_model", "product", "profile"),
    [
        ("H100-80GB-SXM5", "NVIDIA H100 80GB HBM3", "3g.40gb"),
        ("H100-80GB-PCIe", "NVIDIA H100 PCIe", "1g.10gb"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB", "3g.20gb"),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", "3g.40gb"),
        ("A30-24GB", "NVIDIA A30", "2g.12gb"),
        ("H200-141GB", "NVIDIA H200", "1g.18gb+me"),
    ],
)
def test_types_are_those_that_slurmd_finds(gpu_model, product, profile):
    """Slurmd: lower case, blanks to underscores, cut at the first dash, then the profile."""
    sliced = format_request_lines(
        GpuRequest(profile, gpu_model=as_gpu_model(gpu_model)), "sbatch", gres_type=find_slurm_type(gpu_model)
    )
    found = f"{product.lower().replace(' ', '_').split('-')[0]}_{profile}"
    assert sliced == f"#SBATCH --gres=gpu:{found}:1\n"
    whole = format_request_lines(GpuRequest("gpu"), "sbatch", gres_type=find_slurm_type(gpu_model))
    assert whole.split(":")[1] in product.lower().replace(" ", "_")


def test_sbatch_nodes_and_time():
    assert format_request_lines(GpuRequest("gpu", 16, 59.5, nodes=2), "sbatch", gres_type="a100_80").splitlines() == [
        "#SBATCH --gres=gpu:a100_80:8",
        "#SBATCH --nodes=2",
        "#SBATCH --time=0-00:01:00",
    ]
    assert (
        format_request_lines(GpuRequest("gpu", 3, nodes=2), "sbatch", gres_type="h100").splitlines()[0]
        == "#SBATCH --gpus=h100:3"
    )
    assert format_request_lines(GpuRequest("gpu", 2), "sbatch") == "#SBATCH --gres=gpu:2\n"


def test_pod_limits_are_read_back_as_asked(tmp_path: Path):
    for profile in ("1g.10gb", "1g.10gb+me", "3g.40gb", "gpu"):
        spec = yaml.safe_load(format_request_lines(GpuRequest(profile, 2, 600.0), "pod", note="x"))["spec"]
        (resource,) = spec["containers"][0]["resources"]["limits"]
        assert [resource] == list(
            allocatable_resources(NodeState(((0, "gpu" if profile == "gpu" else f"{profile}:1"),)))
        )
        assert spec["activeDeadlineSeconds"] == 600
        meta = {"name": "p", "namespace": "t", "uid": "1", "creationTimestamp": "2026-02-02T09:00:00Z"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
        path = tmp_path / "pods.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
        (job,) = read_kubernetes([path]).jobs.to_dicts()
        if profile == "gpu":
            assert (job["gpus"], job["profile_requested"]) == (2.0, None)
        else:
            assert job["profile_requested"] == profile


@pytest.mark.parametrize(("profile", "count"), [("3g.40gb", 1), ("1g.10gb+me", 2), ("gpu", 4)])
def test_claim_template_is_read_back_as_asked(profile, count):
    template, pod = yaml.safe_load_all(format_request_lines(GpuRequest(profile, count, 600.0), "dra"))
    assert (template["apiVersion"], template["kind"]) == ("resource.k8s.io/v1", "ResourceClaimTemplate")
    (asked,) = read_claim(template["spec"]["spec"], {}).requests
    assert (asked.number, asked.profile) == (count, None if profile == "gpu" else profile)
    (claim,) = pod["spec"]["resourceClaims"]
    (container,) = pod["spec"]["containers"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    assert pod["spec"]["activeDeadlineSeconds"] == 600


@settings(max_examples=examples(80), deadline=None)
@given(st.text(max_size=300), st.sampled_from(["sbatch", "pod", "dra"]))
def test_any_note_stays_one_comment(note, form):
    request = GpuRequest("gpu", 1, 600.0)
    plain, noted = format_request_lines(request, form), format_request_lines(request, form, note=note)
    head, _, rest = noted.partition("\n") if note else ("", "", noted)
    assert rest == plain
    assert not note or (head.startswith("# ") and head.isascii() and head.isprintable() and not head.startswith("#SB"))


def test_names_that_could_act_are_refused():
    with pytest.raises(GeometryError):
        GpuRequest("3g.40gb\n#SBATCH --wrap=x")
    with pytest.raises(GeometryError, match="unknown"):
        GpuRequest("2g.10gb", gpu_model=as_gpu_model(BOARD))
    for word in ("h100\n", "a b", "h100:8", "", "$(x)"):
        with pytest.raises(SchemaError, match="GRES"):
            format_request_lines(GpuRequest("3g.40gb"), "sbatch", gres_type=word)
    with pytest.raises(SchemaError, match="GRES"):
        format_request_lines(GpuRequest("3g.40gb"), "sbatch")
    with pytest.raises(SchemaError, match="'sbatc'"):
        format_request_lines(GpuRequest("gpu"), "sbatc")
    for numbers in ({"count": 0}, {"nodes": 0}, {"time_limit_s": 0.0}, {"time_limit_s": math.inf}):
        with pytest.raises(SchemaError, match="above 0"):
            GpuRequest("gpu", **numbers)
