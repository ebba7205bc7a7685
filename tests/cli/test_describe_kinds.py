"""Every dataset that ingest accepts is described: by facts, quality, and tables of what it is about."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from gpuplanner.cli.application import app, register_commands
from gpuplanner.core.errors import ScenarioError

SEQUENCE = """\
time,total_gpu_num,running_gpu_num,pending_gpu_num,idle_gpu_num,gpu_utilization
2020-05-01 00:00:00,64,59,0,5,0.922
2020-05-01 00:01:00,64,64,8,0,1.0
2020-05-01 00:02:00,64,33,2,31,0.516
"""
REQUESTS = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.680590,374,44
2023-11-16 18:15:50.951069,396,109
"""
CHARGE = {
    "BillingPeriodStart": "2025-09-01T00:00:00Z", "BillingPeriodEnd": "2025-10-01T00:00:00Z",
    "ChargePeriodStart": "2025-09-03T05:00:00Z", "ChargePeriodEnd": "2025-09-03T06:00:00Z",
    "BillingAccountId": "1234", "BillingCurrency": "USD", "ChargeCategory": "Usage", "ProviderName": "AWS",
    "ServiceCategory": "Compute", "ServiceName": "EC2", "PricingQuantity": "1.5", "PricingUnit": "Hours",
    "BilledCost": "82.56", "EffectiveCost": "80.01", "ListCost": "147.48", "SubAccountId": "5678",
    "SubAccountName": "research", "SkuPriceDetails": '{"InstanceType": "p5.48xlarge"}', "Tags": "{}",
}  # fmt: skip
NODES = "node,gpus,gpu_model\nn1,8,A100-80GB\nn2,8,A100-80GB\nn3,4,T4\n"
ONE_INSTANT = (
    "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|NodeList|ReqTRES|AllocTRES|JobName\n"
    "11|ann|bio|PENDING|2025-09-01T08:00:00|Unknown|Unknown|0|04:00:00|None assigned|gres/gpu=2||train\n"
)
SMI = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]\n" + "".join(
    f"2026/03/01 08:{minute:02d}:00.000, 0, 50 %, 1000 MiB, 200.0 W\n" for minute in range(30)
)


def bill() -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, CHARGE, lineterminator="\n")
    writer.writeheader()
    writer.writerows([CHARGE, CHARGE | {"SubAccountName": "teaching", "BilledCost": "0.04"}])
    return out.getvalue()


FILES = {
    "occupancy": ("helios", "vc1/cluster_sequence_vc.csv", SEQUENCE),
    "requests": ("azure-llm", "AzureLLM.csv", REQUESTS),
    "bill": ("focus", "bill.csv", bill()),
    "nodes": ("nodes", "nodes.csv", NODES),
    "one instant": ("slurm", "sacct.txt", ONE_INSTANT),
    "telemetry": ("nvidia-smi", "n1.csv", SMI),
}

IN_LOCAL_TIME = ("azure-llm", "slurm", "nvidia-smi")


def run(*arguments):
    register_commands()
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, (found.output, found.exception)
    return found


@pytest.fixture
def told(tmp_path):
    """What is said of a source's files: facts and tables by title."""

    def tell(source, *paths):
        options = ["--tz", "UTC"] if source in IN_LOCAL_TIME else []
        run("ingest", source, *paths, *options, "-o", tmp_path / "kept", "--quiet")
        run("describe", tmp_path / "kept")  # in words too
        return json.loads(run("describe", tmp_path / "kept", "--json").stdout)

    return tell


@pytest.fixture
def described(told, tmp_path):
    def tell(kind):
        source, name, text = FILES[kind]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return told(source, tmp_path / name)

    return tell


def test_occupancy_of_pools(described):
    found = described("occupancy")
    assert found["facts"]["rows_kept"] == 3
    (pool,) = found["occupancy by pool"]
    assert (pool["readings"], pool["most_allocated"], pool["most_pending"], pool["readings_with_pending"]) == (
        3,
        64,
        8,
        2,
    )
    assert pool["allocated_share"] == pytest.approx((59 + 64 + 33) / (3 * 64))


def test_a_forecast_by_gpu_model_needs_jobs_that_name_one(described, tmp_path):
    described("occupancy")
    found = CliRunner().invoke(app, ["forecast", str(tmp_path / "kept"), "--by", "gpu_model", "--horizon", "2"])
    assert isinstance(found.exception, ScenarioError)
    assert "expected jobs, which name their GPU model; got occupancy" in str(found.exception)


def test_requests_of_services(described):
    (service,) = described("requests")["requests by service"]
    assert (service["requests"], service["mean_prompt_tokens"]) == (2, 385.0)
    assert service["requests_per_s"] == pytest.approx(2 / 4.270479)


def test_bills(described):
    found = described("bill")
    (total,) = found["bill by currency"]
    assert (float(total["BilledCost"]), float(total["EffectiveCost"])) == (82.60, 160.02)
    rows = found["bill by month, tenant and instance type"]
    assert {row["tenant"] for row in rows} == {"research", "teaching"}
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("82.60")


def test_lists_of_nodes(described):
    rows = {row["gpu_model"]: row for row in described("nodes")["nodes by GPU model"]}
    assert {name: (row["nodes"], row["gpus"]) for name, row in rows.items()} == {"A100-80GB": (2, 16), "T4": (1, 4)}


def test_jobs_of_which_no_time_goes_by(described):
    found = described("one instant")
    assert found["facts"]["jobs"] == 1
    assert "ledger" not in found
    assert found["jobs by team"][0]["tenant"] == "bio"


def test_telemetry(described):
    (node,) = described("telemetry")["coverage by node"]
    assert (node["node"], node["samples"], node["covered"]) == ("n1", 30, 1.0)


PUBLIC = {
    "acme": ("acme", "acme/cdf/gpu_power_kalos.csv", "distributions"),
    "genai": ("genai", "alibaba_genai_v2026/qps.csv.gz", "readings by metric"),
    "quotas": ("helios", "helios/Earth_vcs/Earth_gpu_number.csv", "quotas by pool"),
    "nodes": ("spot", "alibaba_spot_gpu_v2026/node_info_df.csv", "nodes by GPU model"),
}  # fmt: skip
COUNTS = ("points", "readings", "days", "nodes", "jobs")


@pytest.mark.data
@pytest.mark.parametrize("kind", PUBLIC)
def test_public_readings_are_described_row_by_row(public_data, told, kind):
    source, path, title = PUBLIC[kind]
    found = told(source, public_data / path)
    rows = found[title]
    count = next(name for name in COUNTS if name in rows[0])
    if kind != "quotas":  # a row of the file is a day of all pools
        assert sum(row[count] for row in rows) == found["facts"]["rows_kept"]
