"""How jobs of a class may share a GPU: not at all, as MIG instances, under MPS, or in turn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import polars as pl

from gpuplanner.catalog.loader import facts
from gpuplanner.errors import GeometryError
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.whole_boards import any_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU

WHOLE, MIG, MPS, IN_TURN = "whole", "mig", "mps", "time-slicing"
COVERED = 0.95
"""Share of the jobs of a class that what is advised must be enough for."""
FEWEST = 5
RESTING = 0.10
"""SM activity below which a session rests most of the time: then jobs take turns without meeting."""
MOST_TOGETHER = 8
"""Jobs on one GPU at most: beyond, what is not measured decides."""


def sharing(history: pl.DataFrame) -> pl.DataFrame:
    """Say for each class of jobs, on each board, how its jobs may share a GPU, and what that means for them.

    A slice is advised where one is enough for 95 % of the jobs of the class: nothing else isolates. Where no slice is,
    and the board lets two of them fit by memory and SM activity (both at 95 %), jobs of one user may share under MPS;
    sessions that rest most of the time may take turns. Jobs on more than one GPU, and classes of which fewer than five
    jobs were measured, keep whole GPUs.

    Parameters
    ----------
    history : polars.DataFrame
        From :func:`~gpuplanner.sizing.past_use.asked_and_used`.

    Returns
    -------
    polars.DataFrame
        A row per ``job_class``, ``board`` and ``gpus`` (one or several), most GPU-hours first: ``jobs``, ``measured``,
        ``users``, ``gpu_hours``; ``memory_peak_gib``, ``sm_activity`` (95 % of the measured jobs need no more);
        ``mode`` (``whole``, ``mig``, ``mps``, ``time-slicing``), ``profile`` (of MIG), ``together`` (jobs on one GPU),
        ``slow_at_most`` (how many times as long a job takes if all are as busy as that; null for slices, whose speed is
        measured elsewhere),
        ``why``; and in words, as the catalogue has them: ``isolation``, ``memory_guard``, ``with_whom``, ``slow``,
        ``slurm``, ``kubernetes``.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from gpuplanner.sizing.past_use import asked_and_used
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": list("abcdefgh"), "attempt": 1, "tenant": "t", "user": "u", "state": "COMPLETED",
    ...     "gpus": 1.0, "gpu_model": ["H100-80GB-SXM5"] * 4 + ["T4"] * 4, "job_class": "evaluation",
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=1), "sm_activity": 0.2,
    ...     "memory_peak_gib": 3.0})
    >>> twice = pl.concat([jobs, jobs.with_columns(attempt=pl.lit(2))])
    >>> sharing(asked_and_used(twice)).select("board", "mode", "profile", "together").rows()
    [('H100-80GB-SXM5', 'mig', '2g.20gb', 3), ('T4', 'mps', None, 5)]
    """
    words = {word: _board(word) for word in history["gpu_model"].cast(pl.String).unique().to_list()}
    names = {word: board and board.name for word, board in words.items()}
    known = history.with_columns(
        job_class=pl.col("job_class").cast(pl.String).fill_null("not known"),
        board=pl.coalesce(
            "board", pl.col("gpu_model").cast(pl.String).replace_strict(names, return_dtype=pl.String)
        ),
        several=(pl.col("instances") > 1) & (pl.col("profile").fill_null(WHOLE_GPU) == WHOLE_GPU),
    )
    parts = known.partition_by("job_class", "board", "several", maintain_order=True)
    rows = [_advice(part) for part in parts]
    table = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    told = facts("sharing_modes").pivot(on="fact", index="mode", values="value", maintain_order=True)
    return table.join(told, on="mode", how="left", maintain_order="left").sort(
        "gpu_hours", "job_class", "board", descending=[True, False, False], nulls_last=True
    )


_COLUMNS = {
    "job_class": pl.String, "board": pl.String, "gpus": pl.String, "jobs": pl.Int64, "measured": pl.Int64,
    "users": pl.Int64, "gpu_hours": pl.Float64, "memory_peak_gib": pl.Float64, "sm_activity": pl.Float64,
    "mode": pl.String, "profile": pl.String, "together": pl.Int64, "slow_at_most": pl.Float64, "why": pl.String,
}  # fmt: skip


def _advice(part: pl.DataFrame) -> tuple[object, ...]:
    """The row of one class on one board."""
    job_class, name, several = part["job_class"][0], part["board"][0], part["several"][0]
    measured = part.drop_nulls(["memory_peak_gib", "sm_activity"])
    memory, busy = (_covering(measured[column]) for column in ("memory_peak_gib", "sm_activity"))
    users = part["user"].fill_null(part["tenant"]).n_unique()
    board = None if name is None else _board(name)
    mode, profile, together, why = _mode(part, measured, board, users, memory, busy)
    slow = {WHOLE: 1.0, MIG: None, MPS: max(together * (busy or 0.0), 1.0)}.get(mode, float(together))
    return (
        job_class, name, "several" if several else "one", part.height, measured.height, users, part["gpu_hours"].sum(),
        memory, busy, mode, profile, together, slow, why,
    )  # fmt: skip


def _mode(
    part: pl.DataFrame,
    measured: pl.DataFrame,
    board: GpuModel | None,
    users: int,
    memory: float | None,
    busy: float | None,
) -> tuple[str, str | None, int, str]:
    """Mode, profile of a slice, jobs on one GPU, and why."""
    if board is None:
        return WHOLE, None, 1, "the board is not known"
    if part["several"][0]:
        return WHOLE, None, 1, "jobs on several GPUs talk to each other, which slices and shared GPUs do not"
    if measured.height < FEWEST or memory is None or busy is None:
        return WHOLE, None, 1, f"{measured.height} of its jobs were measured, {FEWEST} are wanted"
    slices = measured.drop_nulls("rank_needed").sort("rank_needed")
    if board.profiles and slices.height:
        needed = slices["profile_needed"][math.ceil(COVERED * slices.height) - 1]
        if needed != WHOLE_GPU and (count := board.profile(needed).max_instances) > 1:
            return MIG, needed, count, f"{needed} is enough for {COVERED:.0%} of its jobs"
    usable = board.memory_gib
    fit = min(int(usable / max(memory, 1e-3)), MOST_TOGETHER)
    if fit < 2:
        return WHOLE, None, 1, f"{COVERED:.0%} of its jobs need up to {memory:.0f} of {usable:.0f} GiB"
    if users == 1 and (beside := min(fit, int(1 / max(busy, 1e-3)))) > 1:
        why = f"{beside} of one user leave memory and SMs free: up to {memory:.0f} GiB and {busy:.0%} each"
        return MPS, None, beside, why
    if part["job_class"][0] == "interactive" and float(measured["sm_activity"].median()) < RESTING:  # type: ignore[arg-type]
        return (
            IN_TURN,
            None,
            fit,
            f"sessions rest most of the time; {fit} fit by memory, which nothing guards",
        )
    who = "one user's" if users == 1 else f"{users} users'"
    return WHOLE, None, 1, f"no slice is enough, and {who} jobs would meet: {busy:.0%} of the SMs each"


def _board(word: str | None) -> GpuModel | None:
    """The board of a word, with MIG or without."""
    try:
        return None if word is None else any_board(word)
    except GeometryError:
        return None


def _covering(values: pl.Series) -> float | None:
    return None if not len(values) else float(values.sort()[math.ceil(COVERED * len(values)) - 1])


def plugin_configs(table: pl.DataFrame) -> str:
    """Configurations of NVIDIA's device plugin for what shares by MPS or in turn: a ConfigMap, one key a class.

    A node takes one by its label ``nvidia.com/device-plugin.config``; the GPU operator reads the ConfigMap where
    ClusterPolicy ``spec.devicePlugin.config.name`` names it.
    """
    keys = "".join(f"  {name}: |\n{body}" for name, body in _configs(table))
    if not keys:
        return "# No class shares by MPS or time-slicing: nothing to configure.\n"
    return (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: gpuplanner-sharing\n  namespace: gpu-operator\ndata:\n"
        f"{keys}"
    )


def _configs(table: pl.DataFrame) -> Iterator[tuple[str, str]]:
    for row in table.filter(pl.col("mode").is_in([MPS, IN_TURN])).iter_rows(named=True):
        key = "mps" if row["mode"] == MPS else "timeSlicing"
        lines = [
            "version: v1", f"# {json.dumps(row['why'])[1:-1]}", "sharing:", f"  {key}:",
            # Two replicas are no two GPUs: a job that asks for two would get one.
            "    failRequestsGreaterThanOne: true", "    resources:", "      - name: nvidia.com/gpu",
            f"        replicas: {row['together']}",
        ]  # fmt: skip
        yield (
            f"{row['job_class']}-{row['board']}".lower().replace(" ", "-"),
            "".join(f"    {one}\n" for one in lines),
        )
