"""Make the shipped sample: a month of jobs on 8 nodes x 8 H100-80GB, scheduled as whole GPUs, with telemetry.

The same seed gives the same bytes. Requests are drawn from a week before the month, so that the month begins
on a busy fleet; the simulator places them under FIFO with EASY backfill on whole GPUs, as the fleet runs now.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from sample_generator import BOARD, as_jobs, make_requests, make_samples

from gpuplanner._version import __version__
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory
from gpuplanner.ingest.dataset import Dataset, gpu_hours
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.quality_report import JOB_LIST_CHECKS, build_quality_report, find_submission_gaps, run_checks
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests, Outcome
from gpuplanner.simulator.simulation_run import simulate_requests

START = datetime(2026, 2, 1, tzinfo=UTC)
END = datetime(2026, 3, 1, tzinfo=UTC)
LEAD_IN = timedelta(days=7)
NODES, GPUS_PER_NODE = 8, 8
SEED = 20260201
JOBS_WITH_TELEMETRY = {"pretraining": 8, "fine-tuning": 10, "evaluation": 10, "inference": 8, "interactive": 8}


def make_sample(seed: int) -> Dataset:
    """Requests, a whole-GPU schedule, and telemetry of a few dozen jobs."""
    lead_in_start = START - LEAD_IN
    requests = make_requests(start=lead_in_start, days=(END - lead_in_start).days, seed=seed)
    placed = _schedule(requests, lead_in_start)
    jobs = as_jobs(requests, placed, start=START, end=END)
    samples = make_samples(_watched(jobs, placed), seed=seed)
    provenance = {
        "source": "synthetic",
        "files": [],
        "rows_in": jobs.height,
        "rows_kept": jobs.height,
        "rows_rejected": 0,
        "span_start": START.isoformat(),
        "span_end": END.isoformat(),
        "gpu_hours": gpu_hours(_within(jobs), END),
        "notes": [f"made by gpuplanner's own generator with seed {seed}; no real cluster is shown"],
        "gpuplanner": __version__,
    }
    in_month = jobs.filter(pl.col("submit_time") >= START)
    rejects = pl.DataFrame(schema={"file": pl.String, "row": pl.Int64, "reason": pl.String, "raw": pl.String})
    return Dataset(
        {"jobs": jobs, "inventory": _inventory(), "samples": samples},
        rejects=rejects,
        quality=build_quality_report(
            [*run_checks(jobs, JOB_LIST_CHECKS), *find_submission_gaps(in_month["submit_time"])]
        ),
        provenance=provenance,
    )


def _schedule(requests: pl.DataFrame, zero: datetime) -> pl.DataFrame:
    """Place the requests on whole GPUs and give back instants and nodes."""
    submit_s = requests.select((pl.col("submit_time") - zero).dt.total_seconds().cast(pl.Float64)).to_series()
    run_s, gpus = requests["run_s"].to_numpy(), requests["gpus"].to_numpy().astype(int)
    none, per_node = np.zeros(len(gpus), int), np.minimum(gpus, GPUS_PER_NODE)
    asked = NodeRequests(
        submit_s, submit_s, run_s, requests["time_limit_s"], none, gpus, -(-gpus // GPUS_PER_NODE), per_node
    )
    outcome = simulate_requests(asked, NodeFleet.of_full_gpus([GPUS_PER_NODE] * NODES), queue="easy")
    placed = requests.select("job_id", "gpus").with_columns(
        start_s=pl.Series(outcome.start_s), end_s=outcome.start_s + run_s, **_first_gpus(outcome, run_s)
    )
    instant = pl.lit(zero).dt.cast_time_unit("us")
    return placed.select(
        "job_id",
        start_time=instant + pl.duration(microseconds=(pl.col("start_s") * 1e6).cast(pl.Int64)),
        end_time=instant + pl.duration(microseconds=(pl.col("end_s") * 1e6).cast(pl.Int64)),
        nodes=((pl.col("gpus") + GPUS_PER_NODE - 1) // GPUS_PER_NODE).cast(pl.Int32),
        # A job on several nodes holds all of each; the sample names its first node only.
        node_list=pl.when(pl.col("gpus") <= GPUS_PER_NODE).then(_node_name(pl.col("node"))),
        node=_node_name(pl.col("node")),
        gpu="gpu",
    )


def _first_gpus(outcome: Outcome, run_s: np.ndarray) -> dict[str, pl.Series]:
    """Lowest node and GPU of each job, where every job takes the lowest GPUs that are free."""
    node, gpu = np.full((2, len(run_s)), -1, np.int32)
    holder = np.full((NODES, GPUS_PER_NODE), -1)
    held = outcome.allocations.with_columns(start_s=outcome.start_s[outcome.allocations["request"]]).sort(
        "start_s", "request", "node"
    )
    end_s = outcome.start_s + run_s
    for request, place, amount, start_s in held.select("request", "node", "amount", "start_s").iter_rows():
        free = np.flatnonzero((holder[place] < 0) | (end_s[holder[place]] <= start_s))[:amount]
        holder[place, free] = request
        if node[request] < 0:
            node[request], gpu[request] = place, free[0]
    return {"node": pl.Series(node), "gpu": pl.Series(gpu)}


def _watched(jobs: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """A few jobs of each class that ran for a while inside the month, with the first GPU of each."""
    ended = jobs.filter(
        pl.col("sm_activity").is_not_null()
        & (pl.col("start_time") >= START)
        & (pl.col("end_time") - pl.col("start_time")).is_between(pl.duration(minutes=40), pl.duration(days=2))
    )
    chosen = [
        ended.filter(job_class=name).gather_every(max(1, ended.filter(job_class=name).height // count)).head(count)
        for name, count in JOBS_WITH_TELEMETRY.items()
    ]
    return pl.concat(chosen).join(placed.select("job_id", "node", "gpu"), on="job_id", maintain_order="left")


def _within(jobs: pl.DataFrame) -> pl.DataFrame:
    return jobs.with_columns(start_time=pl.max_horizontal("start_time", pl.lit(START)))


def _inventory() -> pl.DataFrame:
    nodes = pl.DataFrame({"number": range(NODES)}).select(
        node=_node_name(pl.col("number")),
        gpu_model=pl.lit(BOARD),
        gpus=pl.lit(GPUS_PER_NODE, pl.Int32),
        rack=pl.format("r{}", pl.col("number") // 4 + 1),
        nvlink_domain=_node_name(pl.col("number")),
        ownership=pl.lit("owned"),
        mig_enabled=pl.lit(False),
    )
    return check_table(nodes, Inventory, source="sample inventory")


def _node_name(number: pl.Expr) -> pl.Expr:
    return pl.format("n{}", (number + 1).cast(pl.String).str.zfill(2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).parent / "sample")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    write_dataset(make_sample(arguments.seed), arguments.out)
