"""The ledger of every source that has an inventory sums to the installed GPU-time, whatever is in it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger, reconcile_ledger
from gpuplanner.usage.planning_history import load_dataset
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory, installed_gpu_hours

OPENB = [(pods, nodes) for pods in ("default", "cpu050", "gpuspec10") for nodes in ("gpu_node", "all_node")]


def balance(trace, inventory):
    begin, end = (datetime.fromisoformat(trace.provenance[name]) for name in ("span_start", "span_end"))
    ledger = gpu_time_ledger(trace.jobs, inventory, start=begin, end=end, samples=trace.samples)
    found = reconcile_ledger(ledger, installed_gpu_hours(inventory, begin, end), tolerance=1e-9)
    return found, ledger, (begin, end)


def test_the_sample_balances():
    trace = load_dataset("sample")
    found, _, _ = balance(trace, trace.inventory)
    assert found["balanced"], found


@pytest.mark.data
@pytest.mark.parametrize(("pods", "nodes"), OPENB)
def test_openb_balances_on_both_node_lists(public_data, pods, nodes):
    folder = public_data / "alibaba_gpu_v2023"
    trace = read(
        "openb",
        folder / f"openb_pod_list_{pods}.csv.gz",
        nodes=folder / f"openb_node_list_{nodes}.csv",
        origin=datetime(2023, 1, 1, tzinfo=UTC),
    )
    assert trace.inventory["gpus"].sum() == 6212
    found, ledger, _ = balance(trace, trace.inventory)
    assert found["balanced"], found
    held = ledger.filter(ledger["tenant"] != "-")["gpu_hours"].sum()
    assert held == pytest.approx(trace.provenance["gpu_hours"], rel=1e-9)


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "path", "options"),
    [
        ("slurm", "slurm/sacct_fox_2025.txt", {"tz": "Europe/Oslo"}),
        ("philly", "philly/philly.csv.gz", {"tz": "America/Los_Angeles"}),
        ("supercloud", "supercloud/slurm-log-queueing-clean.csv.gz", {}),
        ("itp", "itp/cluster01.csv.gz", {}),
    ],
)
def test_sources_without_one_balance_on_the_inferred(public_data, source, path, options):
    trace = read(source, public_data / path, **options)
    begin, end = (datetime.fromisoformat(trace.provenance[name]) for name in ("span_start", "span_end"))
    found, ledger, _ = balance(trace, inferred_inventory(trace.jobs, start=begin, end=end))
    assert found["balanced"], found
    held = ledger.filter(ledger["tenant"] != "-")["gpu_hours"].sum()
    assert held == pytest.approx(trace.provenance["gpu_hours"], rel=1e-9)
