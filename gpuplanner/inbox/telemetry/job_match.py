"""Which job held a GPU or MIG instance when it was sampled."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.node_names import expand_node_list
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.coverage import steps
from gpuplanner.inbox.telemetry.metrics import GAP_FACTOR
from gpuplanner.schemas import USED_FROM, Jobs, Samples, check

ALWAYS = pl.datetime(2200, 1, 1, time_unit="us", time_zone="UTC")

STATED, MATCHED, FREE, AMBIGUOUS = "stated", "matched", "free", "ambiguous"
OUTCOMES = (STATED, MATCHED, FREE, AMBIGUOUS)
"""The source named the job; exactly one can have held the device; none can; several can, or only some of the
node's devices were held and the job table does not say which."""


def match_jobs(
    samples: pl.DataFrame, jobs: pl.DataFrame, allocations: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, list[Finding]]:
    """Give samples the job that held their device, where only one can have.

    A job that the source named is kept. Else, with `allocations`, the job that was given this very device
    and ran then. Else the one job that ran on the node then and asked for such a device (the same profile,
    or whole GPUs), provided that it held all of them; otherwise the table of jobs cannot tell which devices
    it held. A GPU that is cut is held by its instances' jobs, not by one.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; jobs without start or nodes match nothing.
    allocations : polars.DataFrame, optional
        ``job_id``, ``node``, ``gpu``, and ``instance`` (null for whole GPUs).

    Returns
    -------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    findings : list of Finding
        How many samples were matched in which way, and jobs seen at work outside their time.

    Raises
    ------
    SchemaError, TraceFormatError
        If a table is not as declared, or a node list cannot be read.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> noon, one = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13))
    >>> seen = {"time": [noon, one], "node": "n1", "gpu": 0, "activity_source": "none"}
    >>> job = {"job_id": "77", "attempt": 1, "tenant": "a", "submit_time": noon, "start_time": noon}
    >>> job |= {"end_time": one, "state": "COMPLETED", "gpus": 1.0, "node_list": "n1"}
    >>> samples, findings = match_jobs(pl.DataFrame(seen), pl.DataFrame([job]))
    >>> samples["job_id"].to_list(), [found.check for found in findings]
    (['77', None], ['job found by node and time', 'no job on the node then'])
    """
    samples = check(samples, Samples, where="samples")
    held = _held(check(jobs, Jobs, where="jobs"))
    cut = pl.col("instance").is_null() & pl.col("instance").is_not_null().any().over("node", "gpu")
    kind = pl.when(~cut).then(pl.when(pl.col("instance").is_null()).then(pl.lit("")).otherwise("profile"))
    numbered = samples.with_row_index("row").with_columns(cut=cut, kind=kind)
    devices = numbered.group_by("node", "kind").agg(devices=pl.struct("gpu", "instance").n_unique())
    exact = pl.DataFrame(schema={"row": pl.UInt32, "job_id": pl.String})
    if allocations is not None:
        given = allocations.select(
            "job_id", "node", pl.col("gpu").cast(pl.Int32), pl.col("instance").cast(pl.Int32)
        ).join(held.drop("kind", "gpus"), on=["job_id", "node"])
        exact = (
            numbered.drop("job_id")
            .join(given, on=["node", "gpu", "instance"], nulls_equal=True)
            .filter(pl.col("time").is_between("begin", "end", closed="left"))
            .select("row", "job_id")
            .filter(pl.len().over("row") == 1)
        )
    candidates = (
        _candidates(numbered, held)
        .join(devices, on=["node", "kind"], how="left")
        .with_columns(sure=(pl.col("jobs") == 1) & (pl.col("gpus") >= pl.col("devices")))
    )
    found = (
        numbered.join(candidates.select("row", "sure", only="job"), on="row", how="left")
        .join(exact.rename({"job_id": "exact"}), on="row", how="left")
        .sort("row")
        .with_columns(
            outcome=pl.when(pl.col("job_id").is_not_null())
            .then(pl.lit(STATED))
            .when(pl.col("exact").is_not_null() | pl.col("sure").fill_null(False))
            .then(pl.lit(MATCHED))
            .when(pl.col("sure").is_null() & ~pl.col("cut"))
            .then(pl.lit(FREE))
            .otherwise(pl.lit(AMBIGUOUS)),
        )
        .with_columns(job_id=pl.coalesce("job_id", "exact", pl.when(pl.col("sure")).then("only")))
    )
    return found.select(samples.columns), [*_counts(found), *_out_of_time(samples, held)]


def _held(jobs: pl.DataFrame) -> pl.DataFrame:
    """One row per job attempt and node: begin, end, kind of device and how many of them on this node."""
    texts = jobs["node_list"].drop_nulls().unique().to_list()
    names = {text: expand_node_list(text) for text in texts}
    table = pl.DataFrame(
        {"node_list": list(names), "node": list(names.values())},
        schema={"node_list": pl.String, "node": pl.List(pl.String)},
    )
    return (
        jobs.filter(pl.col("start_time").is_not_null())
        .join(table, on="node_list")
        .select(
            "job_id",
            "node",
            begin="start_time",
            end=pl.col("end_time").fill_null(ALWAYS.cast(INSTANT)),
            kind=pl.col("profile_requested").fill_null(""),
            gpus=pl.col("gpus") / pl.col("node").list.len(),
        )
        .explode("node")
    )


def _candidates(numbered: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Number of jobs that can have held each sample's device, their devices, and one of them."""
    # Between two instants at which any job begins or ends on a node, the set of its jobs is the same.
    ends = pl.concat([held.select("node", at=name) for name in ("begin", "end")]).unique().sort("node", "at")
    spans = (
        ends.join(held, on="node")
        .filter(pl.col("at").is_between("begin", "end", closed="left"))
        .group_by("node", "kind", "at")
        .agg(jobs=pl.col("job_id").n_unique(), gpus=pl.col("gpus").sum(), job=pl.col("job_id").min())
    )
    placed = numbered.select("row", "node", "kind", "time").sort("time")
    at = placed.join_asof(
        ends.sort("at"), left_on="time", right_on="at", by="node", strategy="backward", check_sortedness=False
    )
    return at.drop("time").join(spans, on=["node", "kind", "at"]).drop("at")


def _counts(found: pl.DataFrame) -> list[Finding]:
    """Samples by outcome, and those of free devices that were at work."""
    words = {
        STATED: ("info", "job named by the source", "none"),
        MATCHED: ("info", "job found by node and time", "none"),
        FREE: ("info", "no job on the node then", "these samples are in no job's figures"),
        AMBIGUOUS: ("warning", "job not known", "these samples are in no job's figures"),
    }
    counts = dict(found.group_by("outcome").len().iter_rows())
    findings = [
        Finding(check, severity, counts[outcome], effect, "")
        for outcome, (severity, check, effect) in words.items()
        if outcome in counts
    ]
    at_work = found.filter(pl.col("sm_activity") >= USED_FROM, outcome=FREE)
    if at_work.height:
        time, node, gpu = at_work["time", "node", "gpu"].row(0)
        example = f"{node} GPU {gpu} at {time:%Y-%m-%d %H:%M:%S} UTC"
        effect = "another user worked there, or the clocks of node and scheduler differ"
        findings.append(Finding("activity without a job", "warning", at_work.height, effect, example))
    return findings


def _out_of_time(samples: pl.DataFrame, held: pl.DataFrame) -> list[Finding]:
    """Jobs that the telemetry saw before they began or after they ended: the clocks differ."""
    usual = steps(samples)["usual_s"].median()
    slack = pl.duration(microseconds=round(1e6 * GAP_FACTOR * float(usual or 0.0)))  # type: ignore[arg-type]
    stated = samples.filter(pl.col("job_id").is_not_null()).group_by("job_id", "node")
    seen = stated.agg(first=pl.col("time").min(), last=pl.col("time").max())
    ran = held.group_by("job_id", "node").agg(pl.col("begin").min(), pl.col("end").max())
    early, late = pl.col("begin") - pl.col("first"), pl.col("last") - pl.col("end")
    off = (
        seen.join(ran, on=["job_id", "node"])
        .with_columns(off=pl.max_horizontal(early, late))
        .filter(pl.col("off") > slack)
        .sort("off", "job_id", descending=[True, False])
    )
    if off.is_empty():
        return []
    worst = off.row(0, named=True)
    return [
        Finding(
            "clock skew: jobs seen outside their time",
            "warning",
            off.height,
            "the clocks of nodes and scheduler differ: activity is given to the wrong minutes or job",
            f"job {worst['job_id']} on {worst['node']}: by {worst['off'].total_seconds():.0f} s",
        )
    ]
