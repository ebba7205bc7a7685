"""How much of its GPUs a job used: by the usage of its steps in Slurm, or by jobstats in AdminComment."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Sequence

import polars as pl

from gpuplanner.errors import examples
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.slurm.fields import duration_s

JOBSTATS = "JS1:"
"""How the summary of jobstats begins that stands in AdminComment: base64 of JSON packed with gzip."""
GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def of_cluster(name: str) -> pl.Expr:
    """Name of a job with its cluster before it, where a file has several."""
    return pl.concat_str([pl.col("cluster"), pl.lit("/"), pl.col(name)]).fill_null(pl.col(name))


def several_clusters(clusters: Collection[str]) -> Finding:
    """A line of the quality report on files of several clusters."""
    effect = "none on jobs, whose ids carry the cluster; nodes are planned together: export each with --clusters=NAME"
    named = examples(sorted(clusters))
    return Finding("jobs of several clusters", "info", len(clusters), effect, named)


def step_use(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Use of GPUs by the steps of jobs: percent summed over GPUs, and GiB, times seconds; none where Slurm has none.

    References
    ----------
    SchedMD, sacct(1): TRESUsageInTot; SchedMD/slurm src/plugins/gpu/nvml: gpu_p_usage_read sums over devices.
    """
    if rows["tres_used"].null_count() == rows.height:
        return []
    used = pl.col("tres_used")
    steps = rows.filter(pl.col("job_id").str.contains(".", literal=True), used.str.contains("gres/gpuutil="))
    memory = used.str.extract_groups(r"gres/gpumem=(\d+(?:\.\d+)?)([KMGT]?)")
    unit = memory.struct.field("2").replace_strict(GIB, default=None, return_dtype=pl.Float64)
    return [
        steps.select(
            "cluster",
            job_id=pl.col("job_id").str.extract(r"^([^.]+)\."),
            percent=used.str.extract(r"gres/gpuutil=(\d+(?:\.\d+)?)").cast(pl.Float64),
            gib=memory.struct.field("1").cast(pl.Float64) * unit,
            seconds=pl.coalesce("elapsed_s", duration_s(pl.col("elapsed"))),
        )
    ]


def with_use(rows: Rows, used: Sequence[pl.DataFrame], *, several: bool) -> Rows:
    """Jobs with the mean activity of their GPUs, and the memory used where they held one.

    Of a job that ran several times it is not known which run a step belongs to, and of MIG instances NVML states no
    use: both stay without. jobstats goes first, as it has each GPU.
    """
    stats = _jobstats(rows.good)
    columns = rows.good.select("job_id").with_columns(
        sm_activity=pl.lit(None, pl.Float64), memory_peak_gib=pl.lit(None, pl.Float64)
    )
    if used:
        steps = pl.concat(used)
        steps = steps.with_columns(job_id=of_cluster("job_id")) if several else steps
        whole = rows.good.select(
            "job_id", "gpus", "attempt", run_s=(pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
        )
        busy = steps.group_by("job_id").agg(
            busy_s=(pl.col("percent") * pl.col("seconds")).sum() / 100.0, gib=pl.col("gib").max()
        )
        once = (pl.len().over("job_id") == 1) & (pl.col("attempt") == 1) & (pl.col("gpus") >= 1)
        once &= ~rows.good["devices"].str.contains(r"\dg\.").fill_null(value=False)
        columns = whole.join(busy, on="job_id", how="left", maintain_order="left").select(
            sm_activity=pl.when(once & (pl.col("run_s") > 0)).then(
                (pl.col("busy_s") / (pl.col("gpus") * pl.col("run_s"))).clip(0.0, 1.0)
            ),
            memory_peak_gib=pl.when(once & (pl.col("gpus") == 1)).then("gib"),
        )
    return rows.with_columns(
        *(
            pl.Series(name, stats[name]).fill_null(columns[name])
            for name in ("sm_activity", "memory_peak_gib")
        )
    )


def _jobstats(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean use of the GPUs of each job, and memory of the fullest, as jobstats summed them up.

    References
    ----------
    PrincetonUniversity/jobstats: jobstats.py, ``force_recalc`` and ``JOBSTATS`` in AdminComment.
    """
    comments = rows.select("admin_comment")
    texts = [text for text in comments["admin_comment"].drop_nulls().unique() if JOBSTATS in text]
    schema = {"admin_comment": pl.String, "sm_activity": pl.Float64, "memory_peak_gib": pl.Float64}
    use = pl.DataFrame([(text, *_summary(text)) for text in texts], schema=schema, orient="row")
    return comments.join(use, on="admin_comment", how="left", maintain_order="left")


def _summary(text: str) -> tuple[float | None, float | None]:
    try:
        packed = base64.b64decode(text.partition(JOBSTATS)[2], validate=False)
        nodes = json.loads(gzip.decompress(packed))["nodes"].values()
        percent = [float(value) for node in nodes for value in node.get("gpu_utilization", {}).values()]
        used = [float(value) for node in nodes for value in node.get("gpu_used_memory", {}).values()]
    except (ValueError, OSError, EOFError, KeyError, AttributeError, TypeError):
        return None, None
    return (
        min(sum(percent) / len(percent) / 100.0, 1.0) if percent else None,
        max(used) * GIB[""] if used else None,
    )
