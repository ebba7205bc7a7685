"""Recommended size and time limit of requests, from past runs."""

from __future__ import annotations

import bisect
import heapq
import math

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.usage.requested_demand import PROFILE_SIZE_SCHEMA, profile_sizes
from gpuplanner.usage.rightsizing import SAME_REQUEST_KEY_COLUMNS, first_text

COMPLETE_RUN_STATES = ("COMPLETED", "TIMEOUT")
"""Runs that reached their end or their limit. What failed or was cancelled may have stopped before its peak: it
counts as a lower bound of the need, never as evidence that little was needed."""
MIN_FULL_RUNS = 5
"""Fewest full runs that a recommendation rests on."""
MAX_SIZE_RISK = 0.10
"""Largest rate of past failures with which a recommendation is given [0-1]."""
EXCEEDANCE_CONFIDENCE_PERCENT = 95
"""Confidence of the largest share of later runs that may need more than the recommended size."""


def estimate_size_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Find the largest size that a run of each group needed, and the risk that it is not enough for later runs.

    Parameters
    ----------
    jobs : polars.DataFrame
        Runs with ``group``, ``board`` (GPU model), ``state``, ``run_s`` [s], ``instances``, ``rank_needed``,
        ``memory_peak_gib`` [GiB] and ``gpus_active``.

    Returns
    -------
    polars.DataFrame
        ``group``, ``needed`` and ``share_hint`` (profile, and its share of a GPU), ``rank``, ``active`` (GPUs that
        worked), ``size_runs`` (full runs counted), ``size_risk`` and ``size_risk_at_most`` [0-1], and
        ``size_risk_hours`` (run time of the runs that would have failed) [h].

    References
    ----------
    Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12(1), 1941. Hanley,
    Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249(13), 1983.

    Examples
    --------
    >>> runs = pl.DataFrame({"group": 0, "board": "H100-80GB-SXM5", "state": "COMPLETED", "run_s": 3600.0,
    ...     "instances": 1, "rank_needed": [0, 0, 1], "memory_peak_gib": [8.0, 8.0, 15.0], "gpus_active": None})
    >>> estimate_size_risks(runs).select("needed", "size_runs", pl.col("size_risk").round(3)).row(0)
    ('1g.20gb', 3, 0.333)
    """
    several = pl.col("instances") > 1
    measured = pl.col("memory_peak_gib").is_not_null()
    need = pl.when(several).then("gpus_active").when(measured).then("rank_needed")
    runs = jobs.with_columns(need=need.cast(pl.Int32)).filter(pl.col("need").is_not_null())

    by_group = runs.group_by("group", maintain_order=True).agg(
        pl.col("board", "instances").first(),
        largest=pl.col("need").max(),
        runs_at_largest=(pl.col("need") == pl.col("need").max()).sum(),
        second=pl.col("need").filter(pl.col("need") < pl.col("need").max()).max(),
    )
    is_only_largest = (pl.col("need") == pl.col("largest")) & (pl.col("runs_at_largest") == 1)
    profiles = _profile_ranks(jobs)
    full = (
        runs.join(by_group.drop("board", "instances"), on="group")
        .with_columns(need_of_others=pl.when(is_only_largest).then("second").otherwise("largest"))
        .filter(pl.col("state").is_in(COMPLETE_RUN_STATES) & pl.col("need_of_others").is_not_null())
        .join(profiles, left_on=["board", "need_of_others"], right_on=["board", "rank"], how="left")
    )
    needs_more_gpus = pl.col("need") > pl.col("need_of_others")
    needs_more_memory = pl.col("memory_peak_gib") > pl.col("memory_gib")
    would_fail = pl.when(several).then(needs_more_gpus).otherwise(needs_more_memory)
    risks = full.group_by("group", maintain_order=True).agg(
        size_runs=pl.len(), size_risk=would_fail.mean(), size_risk_hours=pl.col("run_s").filter(would_fail).sum() / 3600
    )

    at_most = 1 - (math.log(1 - EXCEEDANCE_CONFIDENCE_PERCENT / 100) / pl.col("size_runs")).exp()
    rank, active = (pl.when(condition).then("largest") for condition in (~several, several))
    single = by_group.with_columns(rank=rank, active=active)
    return (
        single.join(profiles, on=["board", "rank"], how="left")
        .join(risks, on="group", how="left")
        .select(
            "group", "rank", "active", "size_runs", "size_risk", "size_risk_hours",
            needed="profile", share_hint="share", size_risk_at_most=at_most,
        )
    )  # fmt: skip


def _profile_ranks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Make the ranked profiles of all GPU models, with their names."""
    boards = jobs["board"].drop_nulls().unique().sort()
    tables = [
        profile_sizes(as_gpu_model(name)).select(pl.lit(name).alias("board"), *PROFILE_SIZE_SCHEMA) for name in boards
    ]
    return (
        pl.concat([pl.DataFrame(schema={"board": pl.String, **PROFILE_SIZE_SCHEMA}), *tables])
        .filter(pl.col("rank").is_not_null())
        .unique(["board", "rank"], keep="first", maintain_order=True)
    )


def number_requests(history: pl.DataFrame) -> pl.DataFrame:
    """Add ``group``, equal for the jobs of a user and class that request the same."""
    groups = history.select(SAME_REQUEST_KEY_COLUMNS).unique(maintain_order=True).with_row_index("group")
    return history.join(groups, on=SAME_REQUEST_KEY_COLUMNS, how="left", nulls_equal=True, maintain_order="left")


def recommend_sizes(
    jobs: pl.DataFrame, *, minimum_evidence: int = MIN_FULL_RUNS, highest_risk: float = MAX_SIZE_RISK
) -> pl.DataFrame:
    """Recommend a size for each group of equal requests where evidence is enough and risk is low.

    Parameters
    ----------
    jobs : polars.DataFrame
        From :func:`~gpuplanner.usage.rightsizing.requested_and_used`, with ``group``.
    minimum_evidence : int
        Fewest full runs that a recommendation rests on.
    highest_risk : float
        Largest rate of past failures with which a recommendation is given [0-1].

    Returns
    -------
    polars.DataFrame
        A row per ``group``: its request and use, ``recommended_profile`` and ``instances_hint`` (null without a
        recommendation), ``size_reason``, and the columns of :func:`estimate_size_risks`.

    Raises
    ------
    SchemaError
        If `minimum_evidence` or `highest_risk` is out of range.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from gpuplanner.usage.rightsizing import requested_and_used
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": list("abcdef"), "attempt": 1, "tenant": "t", "state": "COMPLETED",
    ...     "gpus": 1.0, "gpu_model": "H100-80GB-SXM5", "submit_time": nine, "start_time": nine,
    ...     "end_time": nine + timedelta(hours=1), "sm_activity": 0.1, "memory_peak_gib": [8.0] * 5 + [15.0]})
    >>> sizes = recommend_sizes(number_requests(requested_and_used(jobs)), highest_risk=0.2)
    >>> sizes.select("profile", "recommended_profile", "size_runs", pl.col("size_risk").round(2)).row(0)
    ('gpu', '1g.20gb', 6, 0.17)
    """
    if minimum_evidence < 2 or not 0 <= highest_risk <= 1:
        expected = "minimum_evidence of at least 2 and highest_risk from 0 to 1"
        got = f"{minimum_evidence!r} and {highest_risk!r}"
        raise SchemaError("hints", expected, got, "Use for example 5 and 0.1.")
    table = jobs.select("group", *SAME_REQUEST_KEY_COLUMNS).unique("group", keep="first", maintain_order=True)
    for part in (_summarize_groups(jobs), estimate_size_risks(jobs)):
        table = table.join(part, on="group", how="left", maintain_order="left")
    table = table.with_columns(pl.col("size_runs").fill_null(0))
    is_single, no_board = pl.col("instances") == 1, pl.col("board").is_null()
    few_sizes, risky_size = pl.col("size_runs") < minimum_evidence, pl.col("size_risk") > highest_risk
    failures = (pl.col("size_risk") * pl.col("size_runs")).round().cast(pl.Int64), "size_runs"
    sized = _count_expression("size_runs", "full run"), pl.lit(minimum_evidence)
    no_reason = first_text(
        (~is_single & few_sizes, pl.format("{} with samples of all GPUs, {} needed", *sized)),
        (
            ~is_single & risky_size,
            pl.format("not smaller: in {} of {} runs more GPUs worked than in the others", *failures),
        ),
        (is_single & no_board & pl.col("gpu_model").is_null(), "GPU model not named"),
        (is_single & no_board, pl.format("GPU model {} is not in the catalog", "gpu_model")),
        (is_single & pl.col("rank_asked").is_null(), "variant of a profile: kept"),
        (is_single & few_sizes, pl.format("{} with measured memory, {} needed", *sized)),
        (
            is_single & risky_size,
            pl.format("not smaller: {} of {} runs would not have fitted where the others did", *failures),
        ),
    )
    fits_text = pl.format("no run of {} needed more", "size_runs")
    gpus_text = pl.format("at most {} worked in {} full runs", _count_expression("active", "GPU"), "size_runs")
    risk_percent = (100 * pl.col("size_risk_at_most")).ceil().cast(pl.Int64)
    enough_runs = math.ceil(
        math.log(1 - EXCEEDANCE_CONFIDENCE_PERCENT / 100) / math.log1p(-min(max(highest_risk, 1e-9), 0.999))
    )
    too_few = f"; test it first: {enough_runs:,} runs bring this to {100 * highest_risk:g} %"
    test_first = first_text((pl.col("size_risk_at_most") > highest_risk, too_few))
    need_more = f"{{}}; at most {{}} % of later runs need more ({EXCEEDANCE_CONFIDENCE_PERCENT} % confidence){{}}"
    seen_text = pl.when(is_single).then(fits_text).otherwise(gpus_text)
    proven = pl.format(need_more, seen_text, risk_percent, test_first.fill_null(""))
    unchanged = pl.col("rank") == pl.col("rank_asked")
    return table.with_columns(
        recommended_profile=pl.when(no_reason.is_null()).then(
            pl.when(is_single & ~unchanged).then("needed").otherwise("profile")
        ),
        instances_hint=pl.when(no_reason.is_null()).then(
            pl.when(is_single).then(pl.lit(1)).otherwise(pl.max_horizontal("active", 1)).cast(pl.Int32)
        ),
        size_reason=pl.coalesce(no_reason, proven),
    )


def choose_profiles(jobs: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Choose a profile for each job: its own need where it was measured, else what all runs of its group fit.

    Jobs of a group without a recommended size keep their request. Runs of one group may need different profiles: only
    the owner can choose between them before a run.

    Parameters
    ----------
    jobs : polars.DataFrame
        From :func:`number_requests`.
    sizes : polars.DataFrame
        From :func:`recommend_sizes` for these jobs.

    Returns
    -------
    polars.DataFrame
        `jobs` with ``is_sized`` (the group has a recommended size), ``by_owner`` (needs less than it),
        ``chosen_profile``, ``chosen_instances`` and ``chosen_share`` (of a GPU, per instance).
    """
    columns = ("group", "rank", "recommended_profile", "instances_hint")
    is_single, rank = pl.col("instances") == 1, pl.coalesce("rank_needed", "rank")
    shares = _profile_ranks(jobs).select("board", pl.col("profile").alias("ranked"), "share", chosen_rank="rank")
    chosen = (
        jobs.join(sizes.select(columns), on="group", how="left", maintain_order="left")
        .with_columns(is_sized=pl.col("recommended_profile").is_not_null())
        .with_columns(chosen_rank=pl.when("is_sized", is_single, rank != pl.col("rank_asked")).then(rank))
        .join(shares, on=["board", "chosen_rank"], how="left", maintain_order="left")
    )
    return chosen.select(
        *jobs.columns,
        "is_sized",
        by_owner=(pl.col("chosen_rank") < pl.col("rank")).fill_null(value=False),
        chosen_profile=pl.coalesce("ranked", "profile"),
        chosen_instances=pl.coalesce("instances_hint", "instances"),
        chosen_share=pl.coalesce("share", "share_asked"),
    )


def _count_chosen_profiles(chosen: pl.DataFrame) -> pl.DataFrame:
    """Count the jobs of each group by chosen profile, with their GPU-hours."""
    size = pl.col("chosen_share") * pl.col("chosen_instances") / (pl.col("share_asked") * pl.col("instances"))
    on_full_gpus = ~pl.col("is_cut") & (pl.col("profile") != FULL_GPU)
    above_request = (pl.col("gpus") - pl.col("share_asked") * pl.col("instances")) * pl.col("run_s") / 3600
    counts = chosen.group_by("group", "chosen_profile", maintain_order=True).agg(
        jobs=pl.len(),
        gpu_hours=pl.col("gpu_hours").sum(),
        saved_gpu_hours=(pl.col("gpu_hours") * (1 - size)).sum(),
        jobs_on_full_gpus=on_full_gpus.sum(),
        gpu_hours_above_request=above_request.filter(on_full_gpus).sum(),
    )
    counts = counts.sort("group", "jobs", "chosen_profile", descending=[False, True, False])
    part = pl.struct(pl.col("chosen_profile").alias("profile_to_request"), pl.exclude("group", "chosen_profile"))
    return counts.group_by("group", maintain_order=True).agg(jobs_by_profile=part)


def _summarize_groups(jobs: pl.DataFrame) -> pl.DataFrame:
    """Summarise requests and use of each group."""
    group_columns = ("board", "profile", "instances", "memory_asked_gib", "share_asked", "rank_asked")
    return jobs.group_by("group", maintain_order=True).agg(
        *(pl.col(name).first() for name in group_columns),
        pl.col("nodes").max(),
        pl.col("memory_peak_gib").max(),
        *(pl.col(name).median() for name in ("sm_activity", "run_s", "time_limit_s", "wait_s")),
        pl.col("gpu_hours").sum(),
        jobs=pl.len(),
    )


def _count_expression(count: str, noun: str) -> pl.Expr:
    """Make an expression of a number with its noun: "1 run" or "2 runs"."""
    ending = pl.when(pl.col(count) == 1).then(pl.lit("")).otherwise(pl.lit("s"))
    return pl.format("{} " + noun + "{}", count, ending)


COVERED_PERCENT = 95
"""Percentage of later runs that a recommended time limit should cover."""
TIME_LIMIT_MARGIN = 0.75
"""Share by which a limit exceeds the run that it rests on: later runs are not always like earlier ones, and of those
that began lately only the short ones have ended. The smallest multiple of a quarter with which at most 5 % of later
runs outlast the limit on Philly and on ITP; on MIT Supercloud, where it was not chosen, 3.6 % do (9.9 % without)."""


def min_runs_for_limit(percent: int = COVERED_PERCENT) -> int:
    """Return the fewest runs that support a limit: with fewer, even the longest covers a smaller share.

    Examples
    --------
    >>> min_runs_for_limit(), min_runs_for_limit(90)
    (19, 9)
    """
    return next(n for n in range(1, 1000) if _covering_rank(n, percent) <= n)


def estimate_limit_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Find the time limit that covers most later runs of each group, and how often later runs exceeded it.

    References
    ----------
    Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12(1), 1941.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> hours = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=number) for number in range(21)]
    >>> runs = pl.DataFrame({"group": 0, "state": "COMPLETED", "start_time": hours, "run_s": [600.0] * 20 + [3000.0]})
    >>> estimate_limit_risks(runs).select("run_p95_s", "limit", "later_runs", "risk_time_out").row(0)
    (600.0, 5280.0, 2, 0.5)
    """
    full = jobs.filter(pl.col("state").is_in(COMPLETE_RUN_STATES) & pl.col("run_s").is_not_null()).sort("start_time")
    rows = []
    for (group,), runs in full.group_by("group", maintain_order=True):
        run_s = runs["run_s"].to_numpy()
        needed_s = np.where(runs["state"] == "TIMEOUT", math.inf, run_s)
        ordered = np.sort(needed_s).tolist()
        percentile = ordered[-(-COVERED_PERCENT * len(ordered) // 100) - 1]
        overruns = _find_overruns(runs["start_time"].dt.epoch("us").to_numpy() / 1e6, run_s, needed_s)
        risk = sum(overruns) / len(overruns) if overruns else None
        rows.append((group, len(ordered), percentile, _covering_limit_s(ordered), len(overruns), risk))
    whole, figure = pl.Int64(), pl.Float64()
    types = {"limit_runs": whole, "run_p95_s": figure, "limit": figure, "later_runs": whole}
    schema = pl.Schema({"group": jobs.schema["group"], **types, "risk_time_out": figure})
    return pl.DataFrame(rows, schema=schema, orient="row")


def _covering_rank(runs: int, percent: int = COVERED_PERCENT) -> int:
    """Return the rank by length, from 1, of the run that covers the share; above the number of runs if none does."""
    return -(-percent * (runs + 1) // 100)


def _covering_limit_s(ordered: list[float]) -> float | None:
    """Return the time limit from sorted run lengths [s]; None from too few runs."""
    rank = _covering_rank(len(ordered))
    if rank > len(ordered):
        return None
    limit_s = (1 + TIME_LIMIT_MARGIN) * ordered[rank - 1]
    # Slurm keeps time limits in minutes.
    return limit_s if math.isinf(limit_s) else math.ceil(limit_s / 60.0 - 1e-9) * 60.0


def _find_overruns(start_s: np.ndarray, run_s: np.ndarray, needed_s: np.ndarray) -> list[bool]:
    """List for each run whether it needed more than the limit that runs which ended before its start recommend.

    ``needed_s`` is the run time, infinite for a run that timed out; runs without earlier ones are left out.
    """
    ended: list[float] = []
    running: list[tuple[float, float]] = []
    overruns = []
    for start, run, needed in zip(start_s.tolist(), run_s.tolist(), needed_s.tolist(), strict=True):
        while running and running[0][0] <= start:
            bisect.insort(ended, heapq.heappop(running)[1])
        limit = _covering_limit_s(ended)
        if limit is not None:
            overruns.append(needed > limit)
        heapq.heappush(running, (start + run, needed))
    return overruns


def recommend_requests(
    history: pl.DataFrame, *, minimum_evidence: int = MIN_FULL_RUNS, highest_risk: float = MAX_SIZE_RISK
) -> pl.DataFrame:
    """Recommend size and time limit for each group of equal requests, or give the reason for none.

    Parameters
    ----------
    history : polars.DataFrame
        From :func:`~gpuplanner.usage.rightsizing.requested_and_used`.
    minimum_evidence, highest_risk
        As of :func:`recommend_sizes`, for sizes and for time limits.

    Returns
    -------
    polars.DataFrame
        One row per group, most GPU-hours saved first: the columns ``SAME_REQUEST_KEY_COLUMNS``, ``gpu_model``,
        ``profile``, ``instances``, ``nodes`` (most), ``jobs``;
        ``memory_asked_gib``, ``memory_peak_gib`` (highest),
        ``sm_activity`` (median), ``run_s`` (median), ``run_p95_s`` (covers 95 %), ``time_limit_s`` (median asked),
        ``wait_s`` (median); ``recommended_profile``, ``instances_hint``, ``size_runs`` (full runs), ``size_risk``
        (share of these that the others' need would not have held), ``size_risk_at_most`` (share of later runs that
        may need more, with 95 % confidence; null without such runs), ``size_reason``;
        ``recommended_time_limit_s``, ``limit_runs``,
        ``later_runs``, ``risk_time_out`` (null without later runs), ``limit_reason``;
        ``jobs_by_profile`` (by the profile that :func:`choose_profiles` gives them: ``profile_to_request``, ``jobs``,
        ``gpu_hours``, ``saved_gpu_hours``, ``jobs_on_full_gpus`` although they stated a MIG profile, and their
        ``gpu_hours_above_request``); ``gpu_hours`` (asked for, over the time held), ``saved_gpu_hours`` (of these, if
        all request the same), ``at_risk_gpu_hours`` (of
        the runs that would not have fitted, at the size of the hint), ``freed_limit_gpu_hours`` (that limits asked
        for and the hint does not) and ``time_out_gpu_hours`` (up to the limit, of the runs that outlast it).

    Raises
    ------
    SchemaError
        If `minimum_evidence` or `highest_risk` is out of range.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from gpuplanner.usage.rightsizing import requested_and_used
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": list("abcdefghijklmnopqrst"), "attempt": 1, "tenant": "t", "state": "COMPLETED",
    ...     "gpus": 1.0, "gpu_model": "H100-80GB-SXM5", "submit_time": nine, "start_time": nine,
    ...     "end_time": nine + timedelta(hours=1), "time_limit_s": 86400.0, "sm_activity": 0.1,
    ...     "memory_peak_gib": 8.0})
    >>> row = recommend_requests(requested_and_used(jobs)).row(0, named=True)
    >>> row["recommended_profile"], row["recommended_time_limit_s"], round(row["saved_gpu_hours"], 2)
    ('1g.10gb', 6300.0, 17.14)
    >>> row["size_runs"], row["size_risk"], round(row["size_risk_at_most"], 2)
    (20, 0.0, 0.14)
    """
    jobs = number_requests(history)
    table = recommend_sizes(jobs, minimum_evidence=minimum_evidence, highest_risk=highest_risk)
    for part in (estimate_limit_risks(jobs), _count_chosen_profiles(choose_profiles(jobs, table))):
        table = table.join(part, on="group", how="left", maintain_order="left")
    table = table.join(_sum_freed_hours(table, jobs), on="group", how="left", maintain_order="left")
    return (
        _add_gains(_recommend_limits(table, minimum_evidence, highest_risk))
        .sort("saved_gpu_hours", "gpu_hours", "group", descending=[True, True, False], nulls_last=True)
        .drop(INTERMEDIATE_COLUMNS)
    )


INTERMEDIATE_COLUMNS = (
    "group",
    "rank",
    "rank_asked",
    "active",
    "needed",
    "share_hint",
    "share_asked",
    "limit",
    "freed",
)
"""Columns that lead to the recommendations of :func:`recommend_requests` and are not part of them."""


def _recommend_limits(table: pl.DataFrame, minimum: int, highest_risk: float) -> pl.DataFrame:
    """Recommend time limits where evidence is enough and risk is low, with a reason in any case."""
    table = table.with_columns(pl.col("limit_runs", "later_runs").fill_null(0))
    failures = (pl.col("risk_time_out") * pl.col("later_runs")).round().cast(pl.Int64), "later_runs"
    outlasted = pl.format("{} of {} later runs outlast the limit of those before", *failures)
    min_runs, full_runs = max(minimum, min_runs_for_limit()), _count_expression("limit_runs", "full run")
    no_reason = first_text(
        (
            pl.col("limit_runs") < min_runs,
            pl.format("time limit unchanged: {}, a new limit needs {}", full_runs, pl.lit(min_runs)),
        ),
        (
            pl.col("limit").is_infinite(),
            pl.format(f"more than {100 - COVERED_PERCENT} % of {{}} runs were stopped by their limit", "limit_runs"),
        ),
        (pl.col("freed") <= 0, "the requested limits are tighter already"),
        (pl.col("risk_time_out") > highest_risk, pl.format("not recommended: {}", outlasted)),
    )
    tested = first_text((pl.col("later_runs") > 0, outlasted), (pl.lit(True), "no later run to test it on"))
    longer = f"time limit: {100 * TIME_LIMIT_MARGIN:.0f} % above the p{COVERED_PERCENT} of {{}} runs; {{}}"
    return table.with_columns(
        recommended_time_limit_s=pl.when(no_reason.is_null()).then("limit"),
        run_p95_s=pl.when(pl.col("run_p95_s").is_finite()).then("run_p95_s"),
        limit_reason=pl.coalesce(no_reason, pl.format(longer, "limit_runs", tested)),
    )


def _add_gains(table: pl.DataFrame) -> pl.DataFrame:
    """Add GPU-hours saved, at risk, and freed from time limits."""
    is_single = pl.col("instances") == 1
    share = pl.col("share_hint") / pl.col("share_asked")
    size = pl.when(is_single).then(share).otherwise(pl.col("instances_hint") / pl.col("instances"))
    hinted = pl.col("recommended_profile").is_not_null()
    gpus_held = (
        pl.when(is_single).then(pl.col("share_hint")).otherwise(pl.col("share_asked") * pl.col("instances_hint"))
    )
    stopped = pl.col("risk_time_out") * pl.col("limit_runs") * pl.col("recommended_time_limit_s") / 3600
    limited = pl.col("recommended_time_limit_s").is_not_null()
    return table.with_columns(
        saved_gpu_hours=pl.when(hinted).then(pl.col("gpu_hours") * (1 - size)),
        at_risk_gpu_hours=pl.when(hinted).then(pl.col("size_risk_hours") * gpus_held),
        freed_limit_gpu_hours=pl.when(limited).then("freed"),
        time_out_gpu_hours=pl.when(limited).then(stopped * pl.col("share_asked") * pl.col("instances")),
    )


def _sum_freed_hours(table: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Sum the GPU-hours that past limits exceed the recommended limit."""
    limits = table.select("group", "limit")
    runs = jobs.filter(pl.col("run_s").is_not_null()).join(limits, on="group", maintain_order="left")
    beyond = (pl.col("time_limit_s") - pl.col("limit")) * pl.col("share_asked") * pl.col("instances")
    is_known = beyond.is_not_null()
    return runs.filter(is_known).group_by("group", maintain_order=True).agg(freed=beyond.sum() / 3600)
