"""Each public job list, inventory, request log and series is read by one command; nothing of it is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.cli.application import main
from gpuplanner.ingest.dataset_folder import open_dataset

HOURS = "gpu_hours"
HELIOS_MINUTES = {
    # GPU-minutes held, as a spreadsheet adds them up, and the constant quota of May 2020
    "vc3sl": (1_792_147, 64),
    "vc8Sj": (1_068_172, 48),
    "vcJkd": (6_068, 16),
    "vcMod": (1_464_715, 64),
    "vcTJs": (1_563_839, 48),
    "vcdI0": (199_192, 16),
    "vchbv": (1_174_384, 64),
    "vcpDC": (2_275_852, 56),
}
# Path, options, rows in (the data README; Philly's last line is empty, its header not counted), a figure by hand.
FILES: list[tuple[str, tuple[str, ...], int, str, float]] = [
    ("philly/philly.csv.gz", (), 53_257, HOURS, 767_719.2966666666),
    ("philly/philly_node_sequence.csv.gz", (), 63_386, "allocated_hours", 21_021_730 / 60),
    ("helios/Earth_vcs/Earth_gpu_number.csv", (), 181, "gpu_days", 180_576),  # sum of its column "total"
    *(
        (f"helios/Earth_vcs/{vc}/cluster_sequence_vc.csv.gz", (), 44_640, "allocated_hours", minutes / 60)
        for vc, (minutes, _) in HELIOS_MINUTES.items()
    ),
    ("itp/cluster01.csv.gz", (), 1_595, HOURS, 81_864_453 / 3600),
    ("itp/cluster02.csv.gz", (), 5_778, HOURS, 445_494_106 / 3600),
    ("itp/cluster03.csv.gz", (), 3_011, HOURS, 595_593_077 / 3600),
    ("itp/cluster06.csv.gz", (), 2_396, HOURS, 445_963_163 / 3600),
    ("itp/cluster07.csv.gz", (), 12_699, HOURS, 1_320_479_327 / 3600),
    ("alibaba_gpu_v2023/openb_pod_list_default.csv.gz", (), 8_152, HOURS, 51_470.674158333335),
    ("alibaba_gpu_v2023/openb_pod_list_cpu050.csv.gz", (), 7_439, HOURS, 51_470.674158333335),
    ("alibaba_gpu_v2023/openb_pod_list_gpuspec10.csv.gz", (), 8_152, HOURS, 51_470.674158333335),
    ("alibaba_gpu_v2023/openb_node_list_all_node.csv", (), 1_523, "gpus", 6_212),
    ("alibaba_gpu_v2023/openb_node_list_gpu_node.csv", (), 1_213, "gpus", 6_212),
    ("alibaba_gpu_v2025/disaggregated_DLRM_trace.csv.gz", (), 13_624, HOURS, 1_390_381.128611111),
    ("alibaba_genai_v2026/pod_gpu_duty_cycle_anon.csv.gz", (), 90_752, "steps", 1_441),
    ("alibaba_genai_v2026/pod_gpu_memory_used_bytes_anon.csv.gz", (), 93_598, "steps", 1_441),
    ("alibaba_genai_v2026/qps.csv.gz", (), 13_936, "containers", 59),
    ("alibaba_spot_gpu_v2026/node_info_df.csv", (), 4_278, "gpus", 10_412),
    ("acme/trace_kalos.head5.csv", (), 5, HOURS, 64 * (8 + 6 + 70 + 92 + 70) / 3600),
    ("acme/trace_kalos.sample_reduced.csv", (), 500, HOURS, 520_924_238 / 3600),
    ("acme/cdf/util_gpu_kalos_full.csv", (), 1_000, "series", 5),
    ("acme/cdf/gpu_power_kalos.csv", (), 1_000, "series", 1),
    ("acme/cdf/gpu_temp_kalos.csv", (), 1_000, "series", 2),
    ("acme/cdf/util_cpu_mem_kalos.csv", (), 1_000, "series", 2),
    ("acme/cdf/util_gpu_philly.csv", (), 1_000, "series", 1),
    ("azure_llm/AzureLLMInferenceTrace_conv.csv.gz", ("--tz", "UTC"), 19_366, "prompt_tokens", 22_361_870),
    ("sim/philly_2869ce.csv", (), 315, HOURS, 252_162_913 / 3600),
    ("sim/syn10k.csv.gz", (), 10_000, HOURS, 220_342_836 / 3600),
    ("sim/syn100k.csv.gz", (), 100_000, HOURS, 2_288_705_634 / 3600),
]


@pytest.fixture
def ingest(capsys, monkeypatch, tmp_path) -> Callable[..., dict[str, object]]:
    def run(path: Path, *options: str) -> dict[str, object]:
        arguments = ["ingest", "auto", str(path), "-o", str(tmp_path / "out"), "--json", "--quiet", *options]
        monkeypatch.setattr(sys, "argv", ["gpuplanner", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.data
@pytest.mark.parametrize(("path", "options", "rows", "figure", "value"), FILES, ids=[each[0] for each in FILES])
def test_one_command_reads_the_whole_file(
    public_data: Path, ingest, tmp_path: Path, path: str, options, rows: int, figure: str, value: float
):
    facts = ingest(public_data / path, *options)
    assert facts["rows_in"] == rows == facts["rows_kept"] + facts["rows_rejected"]
    assert facts["rows_rejected"] == 0
    assert facts[figure] == pytest.approx(value, rel=1e-12)
    opened = open_dataset(tmp_path / "out")
    assert opened.summary() == facts


@pytest.mark.data
def test_the_quota_of_a_helios_pool_fits_its_sequence(public_data: Path, ingest, tmp_path: Path):
    ingest(public_data / "helios" / "Earth_vcs" / "Earth_gpu_number.csv")
    quotas = open_dataset(tmp_path / "out").tables["quotas"]
    may = quotas.filter(quotas["day"].dt.month() == 5)
    for vc, (_, quota) in HELIOS_MINUTES.items():
        assert may.filter(pool=vc)["gpus"].unique().to_list() == [quota]
    facts = ingest(public_data / "helios" / "Earth_vcs" / "vcpDC" / "cluster_sequence_vc.csv.gz")
    first, second = facts, facts["other sources"][0]
    assert {first["table"], second["table"]} == {"quotas", "occupancy"}
    assert max(each.get("total_hours", 0) for each in (first, second)) == 56 * 31 * 24
    assert {"quotas", "occupancy"} <= open_dataset(tmp_path / "out").tables.keys()
