"""Small files of each source, whole and well-formed, for tests to read and to damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.public import job_lists as job_tables
from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import read_supercloud
from gpuplanner.ingest.slurm.accounting import read_slurm

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 06:13:03,3600.0,4,14400.0,6214e9
2017-10-09 06:13:36,1800.0,1,1800.0,6214e9
2017-10-08 23:00:00,7200.0,8,57600.0,103959
"""

ITP = """\
job_id,submission_time,duration,num_gpu
965d744f-0445-c1a8-12af-97e4c536c66e,1932025,3600,64
fb10987f-20ac-3703-eb67-146a77a6e17c,2000581,1800,1
"""

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,36000,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,Burstable,Failed,3600,10800,3600
openb-pod-0002,8000,30517,2,1000,,BE,Succeeded,0,7200,3600
openb-pod-0003,8000,30517,0,0,,Guaranteed,Running,0,7200,3600
openb-pod-0004,8000,30517,1,500,,LS,Pending,100,200,
"""

SLURM = """\
JobID|User|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|NodeList|ReqTRES|AllocTRES|JobName
11|ann|bio|COMPLETED|2025-09-01T08:00:00|2025-09-01T09:00:00|2025-09-01T11:00:00|7200|04:00:00|n1\
|cpu=8,gres/gpu=2|cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1|train|v2
11.batch||bio|COMPLETED|2025-09-01T09:00:00|2025-09-01T09:00:00|2025-09-01T11:00:00|7200||n1\
||cpu=8,gres/gpu:a100=2,gres/gpu=2|batch
12|bob|law|RUNNING|2025-09-01T10:00:00|2025-09-01T10:30:00|Unknown|5400|UNLIMITED|n[2-3]\
||gres/gpu:a100_3g.20gb=1,node=2|serve
13|bob|law|PENDING|2025-09-01T11:00:00|Unknown|Unknown|0|1-00:00:00|None assigned|gres/gpu=4||big
14_3|cat|law|CANCELLED by 77|2025-09-01T11:00:00|None|2025-09-01T11:30:00|0|30:00|None assigned|||oops
"""

SUPERCLOUD = """\
id_job,id_array_task,id_user,nodelist,partition,state,timelimit,time_submit,time_start,time_end,tres_alloc,tres_req
5.1e12,4294967294,4.2e13,['n1'],normal,3,1440,1609535912,1609808470,1609812070,"1=20,2=170000,4=1,5=20,1002=2","1=20"
5.1e12,4294967294,4.2e13,"['n1', 'n2']",normal,5,4294967295,1609536070,1609813789,1609817389,"1=20,4=2,1001=1","1=2"
6.2e12,7,6.1e13,,gaia,4,60,1609536136,0,1609536200,"1=4,4=1","1=4"
"""

GOOD: dict[str, tuple[str, Callable[[Sequence[str | Path]], Dataset]]] = {
    "philly": (PHILLY, job_tables.PHILLY_TRACE),
    "itp": (ITP, job_tables.ITP_TRACE),
    "openb": (OPENB, job_tables.OPENB_TRACE),
    "supercloud": (SUPERCLOUD, read_supercloud),
    "slurm": (SLURM, lambda paths: read_slurm(paths, tz="Europe/Oslo")),
}


@pytest.fixture(scope="session", params=sorted(GOOD))
def good(request: pytest.FixtureRequest) -> tuple[str, Callable[[Sequence[str | Path]], Dataset]]:
    """A small whole file of each source in turn, and its reader."""
    return GOOD[request.param]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to a file of the given name."""

    def write(content: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
