"""Laws that hold for every public source and bill: nothing is lost, changed or foreign, whatever comes in."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import TABLES, Jobs
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import CLOUD_BILL_SOURCES, PUBLIC_SOURCES, detect_source, read
from tests.examples import examples

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:30,2020-06-09 18:45:36,246,3
"""
SEQUENCE = """\
time,total_gpu_num,running_gpu_num,pending_gpu_num,idle_gpu_num,gpu_utilization
2020-05-01 00:00:00,64,59,0,5,0.922
2020-05-01 00:01:00,64,64,8,0,1.0
"""
PHILLY_NODES = "time,active,total\n2017-10-03 00:00:00,312,420\n2017-10-03 00:01:00,309,420\n"
QUOTAS = "date,vc1,vc2,total\n2020-04-01,112,0,112\n2020-04-02,112,8,120\n"
KALOS = """\
job_id,user,node_num,gpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
dlc1,u1,8,64,Pretrain,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,18,10,1152.0
dlc2,u1,8,0,Other,COMPLETED,2023-05-17 12:00:00+00:00,2023-05-17 12:00:00+00:00,2023-05-17 12:01:00+00:00,60,0,0.0
"""
REDUCED = "job_id,gpu_num,submit_time,duration,queue\ndlc1,64,2023-05-17 11:00:58+00:00,18,10\n"
CDF = "gpu_power_w,gpu_power_w__cdf_pct\n55.7,0.0\n57.7,50.0\n400.0,100.0\n"
DLRM = """\
instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time
i0,HN,app_0,1,,,3600.0
i1,CN,app_0,0,1800.0,1800.0,
"""
GENAI = "value,timestamp_anon,container_ip\n40.0,1662858720.0,23b8\n0.0,1662858777.0,23b8\n"
SPOT = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,3600,HP
437260,57,A100-SXM4-80GB,15,1,16,7200,3600,Spot
"""
SIMULATOR = "job_id,submit_time,duration,num_gpus\n0,201,12,1\n1,251,8828,8\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log
"""
REQUESTS = """\
time,model,team,prompt_tokens,generated_tokens
2026-03-02T08:00:00.5Z,llama-3.1-8b,search,812,90
2026-03-02T09:00:01+01:00,qwen2.5-72b,,1,0
"""
NODES = "node,gpus,gpu_model\nn1,8,H100\nn2,0,\n"
FOCUS = """\
BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,BillingAccountId,BillingCurrency,\
ChargeCategory,BilledCost,EffectiveCost,ListCost,ServiceCategory,ServiceName,PricingQuantity,PricingUnit,Tags
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,2025-09-03T00:00:00Z,2025-09-04T00:00:00Z,1,USD,\
Usage,55.04,55.04,98.32,Compute,EC2,1,Hours,"{""team"": ""a""}"
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,2025-09-03T00:00:00Z,2025-09-04T00:00:00Z,1,USD,\
Credit,-0.000000012345678901,0,,,,,,
"""
CUR = """\
bill/BillingPeriodStartDate,bill/BillingPeriodEndDate,bill/PayerAccountId,lineItem/UsageAccountId,\
lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/ProductCode,lineItem/UsageType,\
lineItem/UsageAmount,lineItem/CurrencyCode,lineItem/UnblendedCost,resourceTags/user:team
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,1,2,Usage,2025-09-03T00:00:00Z,2025-09-03T01:00:00Z,AmazonEC2,\
USE1-BoxUsage:p5.48xlarge,1,USD,55.04,a
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,1,2,Tax,2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,AmazonEC2,,,USD,4.1,
"""
PAI = """\
4f05,tensorflow,2.0,Terminated,3600.0,7200.0,600.0,29.3,50.0,T4
4f06,ps,1.0,Waiting,9000.0,,600.0,29.3,,CPU
"""
PHILLY_LOG = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:12:09",
                    "end_time": "2017-10-07 02:12:09",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
                }
            ],
            "submitted_time": "2017-10-07 01:11:39",
            "user": "ce2f4c",
        }
    ]
)


@dataclass(frozen=True)
class Case:
    """A small whole file of one kind."""

    text: str
    source: str
    name: str = "file.csv"
    headers: int = 1
    options: dict[str, str] = field(default_factory=dict)

    def read(self, path: Path) -> Dataset:
        return read(self.source, path, **self.options)


CASES = {
    "helios": Case(HELIOS, "helios"),
    "helios-sequence": Case(SEQUENCE, "helios"),
    "helios-quotas": Case(QUOTAS, "helios"),
    "philly-nodes": Case(PHILLY_NODES, "philly"),
    "acme": Case(KALOS, "acme"),
    "acme-reduced": Case(REDUCED, "acme"),
    "acme-cdf": Case(CDF, "acme"),
    "pai": Case(PAI, "pai", headers=0),
    "dlrm": Case(DLRM, "dlrm"),
    "genai": Case(GENAI, "genai", name="pod_gpu_duty_cycle_anon.csv"),
    "spot": Case(SPOT, "spot"),
    "simulator": Case(SIMULATOR, "simulator"),
    "azure-llm": Case(AZURE, "azure-llm", options={"tz": "UTC"}),
    "burstgpt": Case(BURSTGPT, "burstgpt"),
    "requests": Case(REQUESTS, "requests"),
    "nodes": Case(NODES, "nodes"),
    "focus": Case(FOCUS, "focus"),
    "cur": Case(CUR, "cur"),
}


@pytest.fixture(scope="session", params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def lines_of(content: bytes) -> list[str]:
    text = content.decode().removeprefix("\ufeff").removesuffix("\r")
    return text.replace("\r\n", "\n").split("\n")


def law(case: Case, content: bytes) -> Dataset | None:
    """An error of ours, or a full account of every line that is not blank, in a table as declared."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / case.name
        path.write_bytes(content)
        try:
            got = case.read(path)
        except TraceFormatError:
            return None
    lines = lines_of(content)
    facts = got.summary()
    headers = sum(line.split(",")[0] == "job_name" for line in lines[:1]) if case.headers == 0 else 1
    assert facts["rows_in"] == sum(line != "" for line in lines) - headers
    assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]
    for number, raw in got.rejects["row", "raw"].iter_rows():
        assert lines[number - 1] == raw
    check_table(got.table, TABLES[got.kind], source="table")
    return got


def test_whole_files_are_kept_whole_and_found_by_their_content(case: Case, tmp_path: Path):
    path = tmp_path / case.name
    path.write_text(case.text)
    assert detect_source(path) == case.source
    got = case.read(path)
    assert got.summary()["rows_in"] == len(case.text.splitlines()) - case.headers
    assert got.summary()["rows_rejected"] == 0


def test_what_is_written_is_opened_and_gives_the_same_bytes(case: Case, tmp_path: Path):
    path = tmp_path / case.name
    path.write_text(case.text)
    got = case.read(path)
    folders = [write_dataset(got, tmp_path / name) for name in ("a", "b")]
    for file in filter(Path.is_file, folders[0].rglob("*")):
        assert file.read_bytes() == (folders[1] / file.relative_to(folders[0])).read_bytes()
    opened = open_dataset(folders[0])
    assert opened.table.equals(got.table)
    assert opened.kind == got.kind
    assert opened.provenance == got.provenance


NASTY = [
    *b"nan inf -1 1e999 99999999999999999999 0 None NULL 9999-12-31 0001-01-01 2017-02-30 1.5".split(),
    *(b"+08:00", b"Z", b"EUR", b"{", b"[]", b"true", b"", b" ", b",", b'"', b'""', b"\x01", b"\xe9", b"\xff\xfe"),
    *(b"\0", b"\x1f", b"\r", b"\n", b"\r\n", b"\n\n", b"1E-7", b"1,5", b"Tax", b"Usage", b"RUNNING"),
]
mutations = st.lists(
    st.tuples(
        st.floats(0, 1), st.sampled_from([0, 1, 4, 40]), st.one_of(st.sampled_from(NASTY), st.binary(max_size=8))
    ),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, changes: Sequence[tuple[float, int, bytes]]) -> bytes:
    for place, length, new in changes:
        start = int(place * len(content))
        content = content[:start] + new + content[start + length :]
    return content


@settings(max_examples=examples(20), deadline=None)
@given(changes=mutations)
def test_a_damaged_file_gives_an_error_or_a_full_account(case: Case, changes):
    law(case, damaged(case.text.encode(), changes))


@settings(max_examples=examples(30), deadline=None)
@given(changes=mutations)
def test_a_damaged_job_log_gives_an_error_or_a_full_account(changes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster_job_log"
        path.write_bytes(damaged(PHILLY_LOG.encode(), changes))
        try:
            trace = read("philly", path)
        except TraceFormatError:
            return
    assert trace.summary()["rows_in"] == trace.jobs.height + trace.rejects.height
    check_table(trace.jobs, Jobs, source="jobs")


def kept(content: bytes, got: Dataset) -> list[dict[str, str]]:
    """Rows that were kept, read by another program."""
    lines = lines_of(content)
    rejected = set(got.rejects["row"])
    header = next(csv.reader([next(line for line in lines if line)]))
    body = [number for number, line in enumerate(lines, 1) if line][1:]
    rows = (next(csv.reader([lines[number - 1]])) for number in body if number not in rejected)
    return [dict(zip(header, row, strict=True)) for row in rows]


SUMS: dict[str, tuple[str, Callable[[Dataset], object], type]] = {
    "focus": ("BilledCost", lambda got: got.table["BilledCost"].sum(), Decimal),
    "cur": ("lineItem/UnblendedCost", lambda got: got.table["BilledCost"].sum(), Decimal),
    "azure-llm": ("ContextTokens", lambda got: got.table["prompt_tokens"].sum(), float),
    "burstgpt": ("Request tokens", lambda got: got.table["prompt_tokens"].sum(), float),
    "requests": ("generated_tokens", lambda got: got.table["generated_tokens"].sum(), float),
    "helios-sequence": ("running_gpu_num", lambda got: got.table["allocated"].sum(), float),
    "helios": ("gpu_num", lambda got: got.jobs["gpus"].sum(), float),
    "acme": ("gpu_num", lambda got: got.jobs["gpus"].sum(), float),
    "simulator": ("num_gpus", lambda got: got.jobs["gpus"].sum(), float),
}
PLACES = Decimal(1).scaleb(-18)


@pytest.mark.parametrize("name", SUMS)
def test_numbers_of_kept_rows_are_those_of_the_file(name: str):
    case, (column, total, number) = CASES[name], SUMS[name]
    digits = st.decimals(-1000, 1000, places=6).map(str) if number is Decimal else st.integers(0, 1000).map(str)
    values = st.lists(
        st.one_of(digits, st.sampled_from(["1E-7", "1e2", "x", "", "NaN", "-0", "1_0", "0.1234567890123456789"])),
        min_size=1,
        max_size=4,
    )

    @settings(max_examples=examples(20), deadline=None)
    @given(values=values)
    def holds(values: list[str]) -> None:
        header, first, *_ = case.text.splitlines()
        place = next(csv.reader([header])).index(column)
        rows = []
        for seconds, value in enumerate(values):
            cells = next(csv.reader([first.replace(":00:00,", f":00:{seconds:02d},", 1)]))
            cells[place] = value
            if not column.isupper() and cells[0].startswith(("1425511", "dlc1", "0")):
                cells[0] += str(seconds)
            rows.append(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells))
        content = "\n".join([header, *rows, ""]).encode()
        got = law(case, content)
        if got is None:
            return
        expected = sum(
            (
                Decimal(row[column]).quantize(PLACES, ROUND_HALF_EVEN, Context(prec=60))
                for row in kept(content, got)
                if row[column] != ""
            ),
            Decimal(0),
        )
        if number is Decimal:
            assert total(got) == expected
        else:
            assert total(got) == pytest.approx(float(expected), rel=1e-12)

    holds()


def test_every_public_source_and_every_bill_has_a_case():
    # Among the first readers in test_reading; two files, in test_lists; with the readers of Slurm;
    # bills of two clouds in files of their own.
    elsewhere = {"itp", "openb", "miso", "supercloud", "azure", "gcp"}
    told = {source.name for source in (*PUBLIC_SOURCES, *CLOUD_BILL_SOURCES)}
    assert {case.source for case in CASES.values()} | elsewhere == told | {"nodes"}
