"""Where the slices of cut GPUs went: held, cut and idle, or lost to the layout."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.whole_boards import any_board
from gpuplanner.hardware.layout import parse_layout
from gpuplanner.inbox.core.long_jobs import LongJobs
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import Inventory, Jobs
from gpuplanner.schemas.check import conform, some_columns

PARTS = ("held", "cut_idle", "lost_to_layout", "whole")
"""What a slice-hour was.

held
    In an instance that a job held.
cut_idle
    In an instance that nobody held.
lost_to_layout
    On a cut GPU and in no instance: the layout leaves it over.
whole
    On a GPU that was not cut.
"""
TOLERANCE = 1e-9
_OF_SLICES = (
    "submit_time", "start_time", "end_time", "state", "gpus", "gpu_model", "profile_requested", "instances",
)  # fmt: skip


def slice_hours(
    jobs: pl.DataFrame | LongJobs, inventory: pl.DataFrame, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Account for every compute slice and memory slice installed, by the layouts that the inventory states.

    A slice is a seventh of the compute and an eighth of the memory of most boards; 3g + 3g takes all memory
    and leaves one compute slice that nothing can use.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; those with ``instances`` hold so many of ``profile_requested``. Where a job holds
        several profiles, the table does not say how many of each: its slices are under ``cut_idle``.
    inventory : polars.DataFrame
        Table ``schemas.Inventory`` with ``gpu_model`` and ``layouts`` (null: not cut).
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``gpu_model``, ``part`` (one of :data:`PARTS`), ``compute_slice_hours``, ``memory_slice_hours``. The
        parts of a board sum to all its slices.

    Raises
    ------
    SchemaError
        If more instances of a profile are held than the layouts have, or a table is not as declared.
    CatalogError, GeometryError
        If a board or a profile is unknown.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpus": [1], "gpu_model": "H100-80GB-SXM5", "layouts": "3g.40gb:2"})
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 3 / 7,
    ...     "instances": 1, "submit_time": nine, "start_time": nine, "profile_requested": "3g.40gb"})
    >>> slice_hours(jobs, nodes, start=nine, end=nine + timedelta(hours=1)).drop("gpu_model").rows()
    [('held', 3.0, 4.0), ('cut_idle', 3.0, 4.0), ('lost_to_layout', 1.0, 0.0), ('whole', 0.0, 0.0)]
    """
    window = Window(start, end)
    nodes = conform(inventory, Inventory, where="inventory").with_columns(
        hours=window.overlap_h("installed", "retired")
    )
    each = []
    for part in LongJobs.of(jobs).parts(_OF_SLICES):
        asked = gpu_jobs(some_columns(part, Jobs, _OF_SLICES, where="jobs"), window)
        cut = asked.drop_nulls(["instances", "profile_requested", "start_time"])
        hours = window.overlap_h("start_time", "end_time") * pl.col("instances")
        words = pl.col("gpu_model", "profile_requested").cast(pl.String)
        each.append(cut.group_by(words, maintain_order=True).agg(instance_hours=hours.sum()))
    held = pl.concat(each)
    names = nodes["gpu_model"].drop_nulls().unique().sort()
    tables = []
    for name in names:
        # Jobs that name no board can only be on the one board there is.
        here = pl.col("gpu_model") == name if len(names) > 1 else pl.lit(value=True)
        tables.append(_board(any_board(name), nodes.filter(gpu_model=name), held.filter(here), name))
    schema = {"gpu_model": pl.String, "part": pl.String}
    schema |= {"compute_slice_hours": pl.Float64, "memory_slice_hours": pl.Float64}  # type: ignore[dict-item]
    return pl.concat([pl.DataFrame(schema=schema), *tables])


def _board(board: GpuModel, nodes: pl.DataFrame, held: pl.DataFrame, name: str) -> pl.DataFrame:
    cut: dict[str, float] = defaultdict(float)
    cut_gpu_hours = whole_gpu_hours = 0.0
    for layouts, gpus, hours in nodes.select("layouts", "gpus", "hours").iter_rows():
        texts = (layouts or "").split(";") if layouts else []
        stated = [text for text in texts if text.strip() not in ("", WHOLE_GPU, "off")]
        cut_gpu_hours += hours * len(stated)
        whole_gpu_hours += hours * (gpus - len(stated))
        for text in stated:
            for profile, count in parse_layout(text.strip()).items():
                cut[board.profile(profile).name] += count * hours
    used: dict[str, float] = defaultdict(float)
    for profile, hours in held.select("profile_requested", "instance_hours").iter_rows():
        used[board.profile(profile).name] += hours
    _refuse_more_than_cut(cut, used, name)

    def slices(instances: dict[str, float]) -> tuple[float, float]:
        sizes = [(board.profile(profile), hours) for profile, hours in instances.items()]
        return (
            sum(size.compute_slices * hours for size, hours in sizes),
            sum(size.memory_slices * hours for size, hours in sizes),
        )

    all_cut, all_held = slices(cut), slices(used)
    of_board = (board.compute_slices, board.memory_slices)
    kinds = [
        [all_held[kind], all_cut[kind] - all_held[kind], cut_gpu_hours * each - all_cut[kind],
         whole_gpu_hours * each]
        for kind, each in enumerate(of_board)
    ]  # fmt: skip
    return pl.DataFrame(
        {
            "gpu_model": [name] * len(PARTS),
            "part": PARTS,
            "compute_slice_hours": kinds[0],
            "memory_slice_hours": kinds[1],
        },
        schema_overrides={"compute_slice_hours": pl.Float64, "memory_slice_hours": pl.Float64},
    )


def _refuse_more_than_cut(cut: dict[str, float], used: dict[str, float], name: str) -> None:
    for profile, hours in used.items():
        if hours > cut[profile] * (1 + TOLERANCE):
            text = message(
                f"slices of {name}, profile {profile}",
                f"at most the {cut[profile]:g} instance-hours that the layouts of the inventory have",
                f"{hours:g} held by jobs",
                "State the layouts in force during this time.",
            )
            raise SchemaError(text)
