"""Forms of sharing, one node and one request each, and fleets of pods in one of them."""

from __future__ import annotations

import json
from fractions import Fraction

from hypothesis import strategies as st

from tests.ingest.blind_fleets.kubernetes import SNAPSHOT_S, Node, discovery_labels, instant, node_object
from tests.ingest.blind_fleets.kubernetes_pods import container, pod_object, terminated
from tests.ingest.blind_fleets.kubernetes_shares import (
    HBM3,
    INSTANCE,
    Form,
    claim,
    gpu_device,
    mig_device,
    register,
    register_json,
    reservation,
    second_container,
    sidecar,
    slice_of,
    uses_claim,
    whole_claim,
)  # fmt: skip
from tests.ingest.blind_fleets.truth import Fault, Fleet

H100_NODE = {**discovery_labels(HBM3, 8, 81559), INSTANCE: "bare-metal"}
GPU8 = {"nvidia.com/gpu": "8"}
HAMI8 = {"nvidia.com/gpu": "80"}
A100_TENCENT = {"cloud.tencent.com/tke-accelerator": "A100"}
FORMS: dict[str, Form] = {
    "hami_percentage": Form(
        Fraction(1, 4),
        8,
        HAMI8,
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"},
        {},
        {"hami.io/node-nvidia-register": register(81559, 8)},
    ),
    "hami_json": Form(
        Fraction(20000, 81559),
        8,
        HAMI8,
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"},
        {},
        {"hami.io/node-nvidia-register": register_json(81559, 8)},
    ),
    "hami_two": Form(
        Fraction(40000, 81559),
        8,
        HAMI8,
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "20000"},
        {},
        {"hami.io/node-nvidia-register": register(81559, 8)},
    ),
    "hami_whole": Form(
        Fraction(1),
        8,
        HAMI8,
        {"nvidia.com/gpu": "1"},
        {},
        {"hami.io/node-nvidia-register": register(81559, 8)},
        may_warn=("nvidia.com/gpu",),
    ),
    "hami_cores": Form(
        Fraction(3, 10),
        8,
        HAMI8,
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"},
        {},
        {"hami.io/node-nvidia-register": register(81559, 8)},
    ),
    "tencent_vcuda": Form(
        Fraction(1, 2),
        4,
        {"tencent.com/vcuda-core": "400", "tencent.com/vcuda-memory": "640"},
        {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "40"},
        A100_TENCENT,
    ),
    "tencent_qgpu": Form(
        Fraction(3, 10),
        4,
        {"tke.cloud.tencent.com/qgpu-core": "400", "tke.cloud.tencent.com/qgpu-memory": "160"},
        {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "10"},
        {"qgpu-device-enable": "enable"},
    ),
    "koordinator": Form(
        Fraction(1, 2),
        8,
        {"koordinator.sh/gpu-core": "800", "koordinator.sh/gpu-memory-ratio": "800", "nvidia.com/gpu": "8"},
        {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
        {"node.koordinator.sh/gpu-model": "NVIDIA-H20"},
    ),
    "kai_fraction": Form(Fraction(1, 2), 8, GPU8, {}, H100_NODE, {}, {"gpu-fraction": "0.5"}, objects=reservation),
    "kai_fractions": Form(
        Fraction(1),
        8,
        GPU8,
        {},
        H100_NODE,
        {},
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
        objects=reservation,
    ),
    "kai_memory": Form(
        Fraction(20000, 81559), 8, GPU8, {}, H100_NODE, {}, {"gpu-memory": "20000"}, objects=reservation
    ),
    "aks_mig1g": Form(
        Fraction(1, 7),
        1,
        {"nvidia.com/gpu": "7"},
        {"nvidia.com/gpu": "1"},
        {INSTANCE: "Standard_NC24ads_A100_v4", "accelerator": "nvidia"},
    ),
    "aks_mig1g_8": Form(
        Fraction(2, 7),
        8,
        {"nvidia.com/gpu": "56"},
        {"nvidia.com/gpu": "2"},
        {INSTANCE: "Standard_ND96asr_v4", "accelerator": "nvidia"},
    ),
    "aks_mig_mixed": Form(
        Fraction(1, 7),
        8,
        {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "56"},
        {"nvidia.com/mig-1g.5gb": "1"},
        {INSTANCE: "Standard_ND96asr_v4", "accelerator": "nvidia"},
    ),
    "aws_g6f": Form(
        Fraction(1, 8),
        None,
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "1"},
        {INSTANCE: "g6f.xlarge"},
        may_warn=("g6f", "slice", "vGPU"),
    ),
    "azure_nv6": Form(
        Fraction(1, 6),
        None,
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "1"},
        {INSTANCE: "Standard_NV6ads_A10_v5"},
        may_warn=("NV6ads", "slice", "vGPU"),
    ),
    "aws_gb200": Form(
        Fraction(4), 4, {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "4"}, {INSTANCE: "p6e-gb200.36xlarge"}
    ),
    "mig_media": Form(
        Fraction(1, 7),
        1,
        {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb.me": "1", "nvidia.com/mig-1g.10gb": "6"},
        {"nvidia.com/mig-1g.10gb.me": "1"},
        {**discovery_labels(HBM3, 1, 81559), "nvidia.com/mig.strategy": "mixed"},
    ),
    "nos_mps": Form(
        Fraction(10, 80),
        8,
        {"nvidia.com/gpu": "0", "nvidia.com/gpu-10gb": "64"},
        {"nvidia.com/gpu-10gb": "1"},
        {**H100_NODE, "nos.nebuly.com/gpu-partitioning": "mps"},
        may_warn=("nvidia.com/gpu-10gb",),
    ),
    "intel_shared": Form(
        Fraction(1, 5),
        2,
        {"gpu.intel.com/i915": "10"},
        {"gpu.intel.com/i915": "1"},
        {"gpu.intel.com/device.count": "2", "gpu.intel.com/product": "Flex_170"},
        may_warn=("gpu.intel.com",),
    ),
    "kubevirt": Form(
        Fraction(1),
        2,
        {"nvidia.com/GA102GL_A10": "2"},
        {"nvidia.com/GA102GL_A10": "1"},
        {"nvidia.com/gpu.workload.config": "vm-passthrough"},
        may_warn=("GA102GL_A10",),
    ),
    "sidecar": Form(Fraction(3), 8, GPU8, {"nvidia.com/gpu": "2"}, H100_NODE, change=sidecar),
    "two_containers": Form(Fraction(3), 8, GPU8, {"nvidia.com/gpu": "2"}, H100_NODE, change=second_container),
    "dra_two": Form(Fraction(2), 8, {}, {}, {}, objects=whole_claim(2), change=uses_claim),
    "dra_admin": Form(
        Fraction(0),
        8,
        {},
        {},
        {},
        objects=whole_claim(8, admin=True),
        change=uses_claim,
        may_warn=("adminAccess", "gpu.nvidia.com"),
    ),
    "dra_mig": Form(
        Fraction(1, 7),
        8,
        {},
        {},
        {},
        objects=lambda node, name: [claim(name, node, "mig.nvidia.com", "gpu.nvidia.com", ["gpu-7-mig-0"])],
        change=uses_claim,
    ),
    "amd_spx_no_label": Form(
        Fraction(1, 8),
        8,
        {"amd.com/gpu": "64"},
        {"amd.com/gpu": "1"},
        {INSTANCE: "BM.GPU.MI300X.8", "amd.com/gpu.device-id": "74a1", "amd.com/gpu.cu-count": "38"},
    ),
    "amd_oci_cpx": Form(
        Fraction(1, 8),
        8,
        {"amd.com/gpu": "64"},
        {"amd.com/gpu": "1"},
        {INSTANCE: "BM.GPU.MI300X.8"},
        may_warn=("amd.com/gpu",),
    ),
    "amd_mode_in_docs": Form(
        Fraction(1, 2),
        8,
        {"amd.com/gpu": "16"},
        {"amd.com/gpu": "1"},
        {"amd.com/compute-memory-partition": "dpx_nps1", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
    ),
}


def fleet_of_form(name: str, runs: list[tuple[int, int]]) -> Fleet:
    """One node of a form, and pods one after the other: (seconds that it waits for, seconds that it runs)."""
    form = FORMS[name]
    node = Node("n-1", "", "", form.boards or 0, form.labels, form.capacity, [], form.node_notes)
    items = [node_object(node)]
    if name.startswith("dra"):
        devices = [gpu_device(i) for i in range(7 if name == "dra_mig" else 8)]
        devices += [mig_device(7, i, "1g.10gb") for i in range(7)] if name == "dra_mig" else []
        items.append(slice_of("n-1", "gpu.nvidia.com", devices))
    now_s, hours, number = 0, Fraction(0), 0
    for gap_s, run_s in runs:
        start_s = now_s + gap_s
        now_s = start_s + run_s
        if now_s > SNAPSHOT_S:
            break
        number += 1
        pod = f"q{number}"
        ends = [terminated("main", start_s, now_s)]
        status = {"phase": "Succeeded", "startTime": instant(start_s), "containerStatuses": ends}
        body = pod_object(pod, "n-1", start_s, [container("main", dict(form.limits))], status)
        body["metadata"]["annotations"] = dict(form.pod_notes)
        if form.change:
            form.change(body)
        ends.extend(terminated(more["name"], start_s, now_s) for more in body["spec"]["containers"][1:])
        items.append(body)
        if form.objects and (number == 1 or form.change is uses_claim):
            items += form.objects("n-1", pod)
        hours += form.share * Fraction(run_s, 3600)
    fault = Fault(name, ("n-1", *form.may_warn), frozenset({number, 1, 2, 8})) if form.may_warn else None
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=0)
    return Fleet({"dump.json": text}, hours, form.boards, fault, [name])


@st.composite
def share_fleets(draw: st.DrawFn, names: tuple[str, ...] = tuple(FORMS)) -> Fleet:
    """Pods in one form of sharing."""
    name = names[draw(st.integers(0, len(names) - 1))]
    run = st.tuples(st.integers(0, 60), st.integers(1, 20_000))
    return fleet_of_form(name, draw(st.lists(run, min_size=1, max_size=5)))
