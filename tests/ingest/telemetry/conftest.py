"""Small files of each source of telemetry, whole and well-formed, for tests to read and to damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest


def usual_steps(times: list[datetime]) -> list[float]:
    """Usual step at each reading of a series, by a plain loop [s].

    It is the median of the steps of at most an hour that end on the UTC day of the next reading, or of the last day
    before that has any.
    """
    steps: dict[Any, list[float]] = {}
    for one, two in pairwise(times):
        if 0 < (step := (two - one).total_seconds()) <= 3600:
            steps.setdefault(two.date(), []).append(step)
    found, usual = [], 0.0
    for time in [*times[1:], times[-1]]:
        usual = median(steps[time.date()]) if time.date() in steps else usual
        found.append(usual)
    return found


@pytest.fixture(scope="session", name="usual_steps")
def _usual_steps() -> Callable[[list[datetime]], list[float]]:
    return usual_steps


PAGE = """\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",hostname="n1",hpc_job="77"} 0.25
DCGM_FI_PROF_SM_ACTIVE{gpu="0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",hostname="n1",namespace="a",pod="b"} 0.875
DCGM_FI_DEV_FB_USED{gpu="0", UUID="GPU-1", modelName="NVIDIA H100 80GB HBM3", hostname="n1", hpc_job="77"} 2048
DCGM_FI_DEV_GPU_UTIL{gpu="1",modelName="NVIDIA H100 80GB HBM3",hostname="n1"} 99
DCGM_FI_DEV_POWER_USAGE{gpu="1",modelName="NVIDIA H100 80GB HBM3",hostname="n1"} 9223372036854775794
"""

LONG = """\
timestamp,metric_name,gpu_id,device,Hostname,value,labels_raw
'2025-07-18T20:42:34Z','DCGM_FI_DEV_GPU_UTIL','0','nvidia0','n1','98','Hostname=''n1'',gpu=''0'',job=''dcgm'''
'2025-07-18T20:42:36Z','DCGM_FI_DEV_FB_USED','0','nvidia0','n1','1024','Hostname=''n1'',gpu=''0'',job=''dcgm'''
'2025-07-18T20:43:34Z','DCGM_FI_DEV_GPU_UTIL','0','nvidia0','n1','0','Hostname=''n1'',gpu=''0'',job=''dcgm'''
""".replace("'", '"')

NODE = """\
timestamp,phase,gpu,gpu_model,power_w,temp_c,mem_used_mib,mem_total_mib,gpu_util_pct,mem_util_pct,sm_active,\
tensor_active,dram_active,pcie_tx_bytes_s,pcie_rx_bytes_s,nvlink_tx_bytes_s,nvlink_rx_bytes_s
1775016266.006,steady,0,NVIDIA H100 80GB HBM3,400,50,40960,81559,99,10,0.45,0.11,0.3,1000000000,500000000,0,0
1775016266.006,steady,1,NVIDIA H100 80GB HBM3,400,50,40960,81559,99,10,0.46,0.12,0.3,,500000000,0,0
1775016267.006,steady,0,NVIDIA H100 80GB HBM3,401,50,40960,81559,99,10,0.47,0.13,0.3,1000000000,500000000,0,0
"""

QUERY = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W]
2026/07/14 09:00:26.500, 0, NVIDIA H100 80GB HBM3, 98 %, 40960 MiB, 81559 MiB, 631.25 W
2026/07/14 09:00:26.500, 1, NVIDIA H100 80GB HBM3, [N/A], 512 MiB, 81559 MiB, [Not Supported]
2026/07/14 09:00:27.500, 0, NVIDIA H100 80GB HBM3, 97 %, 40960 MiB, 81559 MiB, 630.00 W
"""

DMON = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec     fb   mclk   pclk
# Idx      W      C      C      %      %      %      %     MB    MHz    MHz
    0    631     63     57    100     10      0      0   2048   2619   1980
    1     70     42      -      -      -      -      -      -   2619    345
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec     fb   mclk   pclk
# Idx      W      C      C      %      %      %      %     MB    MHz    MHz
    0    634     63     58     99     10      0      0   2048   2619   1980
    1     70     42      -      -      -      -      -      -   2619    345
"""

PMON = """\
# gpu         pid   type     sm    mem    enc    dec    command
# Idx           #    C/G      %      %      %      %    name
    0      11327     C      99     10      -      -    NVIDIA Share.exe
    0      11328     C      -      -      -      -    memhog
    1          -     -      -      -      -      -    -
    0      11327     C      98     10      -      -    NVIDIA Share.exe
    1          -     -      -      -      -      -    -
"""

DCGMI = """\
#Entity   GRACT        SMACT        TENSO        POWER
ID
GPU 0     N/A          N/A          N/A          75.5
GPU-I 0   0.534        0.250        0.516        N/A
GPU 0     0.846        0.500        0.125        640.5
GPU-I 0   0.987        0.750        0.953        N/A
"""

APPS = """\
timestamp, gpu_name, gpu_bus_id, gpu_serial, gpu_uuid, pid, process_name, used_gpu_memory [MiB]
2026/06/24 10:26:49.980, NVIDIA L40S, 00000000:0C:00.0, [N/A], GPU-0, 5268, /opt/a, b/train.py, 1024 MiB
2026/06/24 10:26:49.980, NVIDIA L40S, 00000000:0C:00.0, [N/A], GPU-0, 5267, ffmpeg, [N/A]
"""

TRANSCRIPT = f"""\
{"#" * 80}
# capabilities :: topo
# $ nvidia-smi topo -m
{"#" * 80}
\t\x1b[4mGPU0\tCPU Affinity\x1b[0m
{"#" * 80}
# idle :: query-gpu
# $ nvidia-smi --query-gpu=timestamp,index --format=csv
{"#" * 80}
{QUERY}

{"#" * 80}
# idle :: dmon
# $ nvidia-smi dmon
{"#" * 80}
{DMON}"""


def answer(*series: dict[str, Any], **more: Any) -> str:
    """A range answer with these series."""
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more})


def series(metric: str, values: list[Any], **labels: str) -> dict[str, Any]:
    """One series of an answer, of GPU 0 on n1 unless said otherwise."""
    return {"metric": {"__name__": metric, "gpu": "0", "hostname": "n1", **labels}, "values": values}


ANSWER = answer(
    series("DCGM_FI_PROF_SM_ACTIVE", [[1775006190, "0.5"], [1775006205.25, "NaN"], [1775006220, "0.75"]]),
    series("DCGM_FI_DEV_POWER_USAGE", [[1775006190, "400.5"], [1775006220, "401"]]),
)

ORIGIN = {"origin": "2026-01-01T00:00:00Z"}

GOOD: dict[str, tuple[str, dict[str, Any], int]] = {
    "dcgm-exporter": (PAGE, ORIGIN, 5),
    "dcgm-csv": (LONG, {}, 3),
    "node-csv": (NODE, {}, 3),
    "nvidia-smi": (QUERY, {"tz": "UTC"}, 3),
    "smi-dmon": (DMON, ORIGIN, 4),
    "smi-pmon": (PMON, ORIGIN, 5),
    "dcgmi-dmon": (DCGMI, ORIGIN, 4),
    "smi-apps": (APPS, {"tz": "UTC", "gpu": 0}, 2),
    "smi-transcript": (TRANSCRIPT, {"tz": "UTC"}, 3),
    "prometheus": (ANSWER, {}, 5),
}
"""Source → a file, the hints it needs, its rows."""


@pytest.fixture(params=sorted(GOOD))
def good(request: pytest.FixtureRequest) -> tuple[str, str, dict[str, Any], int]:
    """Each source in turn: name, a whole file, hints, rows."""
    return request.param, *GOOD[request.param]


@pytest.fixture(scope="session")
def good_text() -> Callable[[str], str]:
    """Text of the whole file of a source."""
    return lambda name: GOOD[name][0]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to a file of the given name."""

    def write(content: str | bytes, name: str = "n1.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
