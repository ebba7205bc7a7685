"""MIT Supercloud, 2021: the accounting table of Slurm itself, with numbers for states and resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.catalog.loader import facts
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import columns_of, looks
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.public.trace import plain, told_apart
from gpuplanner.inbox.slurm.accounting_rows import with_resources
from gpuplanner.inbox.slurm.fields import UNSET

COLUMN_MAP = source_columns("supercloud")
"""Times in epoch seconds, 0 for none; `timelimit` in minutes. `mem_req` is not read: with bit 63 set it is
MB per CPU and no longer exact. `gres_used` is always empty. The table has no account: the user is the tenant."""

SLURM_RESOURCES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
TRES_CODES = {str(code): name for code, name in enumerate(SLURM_RESOURCES, 1)}
TRES_CODES |= {"1001": "gres/gpu:tesla", "1002": "gres/gpu:volta"}
"""Code of a resource → its name. Below 1000 Slurm's own, from there those of this cluster."""

CHECKS = (
    source_check("supercloud: shared id", pl.col("twin") > 0),
    source_check("supercloud: rounded user", pl.col("id_user").is_not_null()),
    source_check("supercloud: suspended", pl.col("suspended_s") > 0),
)


@looks(columns_of(COLUMN_MAP))
def read_supercloud(paths: Sequence[str | Path]) -> Dataset:
    r"""Read job tables of MIT Supercloud.

    The ids of the source were rounded and collide: a job is named after its id, task of an array, user and submission
    [epoch s], none of which change while it lives.

    References
    ----------
    Samsi et al., *The MIT Supercloud Dataset*, HPEC 2021.

    Examples
    --------
    >>> import tempfile
    >>> header = "id_job,state,time_submit,time_start,time_end,tres_alloc"
    >>> row = '8.0e12,3,1609535912,1609535920,1609543120,"1=20,2=170000,4=1,5=20,1002=2"'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "slurm-log.csv"
    ...     _ = path.write_text(f"{header}\n{row}\n{row}\n")
    ...     trace = read_supercloud([path])
    >>> trace.jobs["job_id", "gpus", "gpu_model"].rows()
    [('8000000000000-1609535912', 2.0, 'volta'), ('8000000000000-1609535912#2', 2.0, 'volta')]
    >>> trace.summary()["gpu_hours"]
    8.0
    """
    rows = read_rows(paths, COLUMN_MAP, source="supercloud")
    known = facts("slurm_states").drop_nulls("number").select(pl.col("number").cast(pl.Float64), "ours")
    words = dict(known.iter_rows())
    number = pl.col("state_number")
    rows = rows.reject({"state: not a number of a state of Slurm": ~number.is_in(list(words))})
    rows = _with_names_of_resources(rows)
    user = _whole("id_user")
    jobs = rows.good.with_columns(
        job_id=pl.concat_str(
            _whole("id_job"),
            "_" + _whole("array_task"),
            "-" + user,
            "-" + plain("submit_s"),
            ignore_nulls=True,
        ),
        attempt=pl.lit(1),
        account=user,
        user=user,
        node_list=pl.col("node_list").str.replace_all(r"[\[\]' ]", ""),
        state=number.replace_strict(words, return_dtype=pl.String),
        limit_min=_whole("limit_min"),
        limit=pl.lit(None, pl.String),
        **{f"{name}_time": _instant(f"{name}_s") for name in ("submit", "start", "end")},
    )
    rows = replace(rows, good=jobs).reject({"time_submit: missing": pl.col("submit_time").is_null()})
    rows = with_resources(rows)
    return assemble(replace(rows, good=told_apart(rows.good)), source="supercloud", checks=CHECKS)


def _with_names_of_resources(rows: Rows) -> Rows:
    """Resources as sacct prints them: 1=20,1002=2 → cpu=20,gres/gpu:volta=2. Each text is read once."""
    names = ("alloc_tres", "req_tres")
    texts = pl.concat([rows.good[name] for name in names]).drop_nulls().unique().to_list()
    named = {text: _named(text) for text in texts}
    faulty = [text for text, words in named.items() if words is None]
    rows = rows.reject(
        {"tres: not a list of code=count with known codes": pl.any_horizontal(pl.col(names).is_in(faulty))}
    )
    return rows.with_columns(pl.col(names).replace_strict(named, return_dtype=pl.String))


def _named(text: str) -> str | None:
    """One TRES text with names for its codes; None if it is none, or has a code that may be a GPU."""
    pairs = [item.partition("=") for item in text.split(",")]
    if any(code not in TRES_CODES or not (count.isascii() and count.isdigit()) for code, _, count in pairs):
        return None
    return ",".join(f"{TRES_CODES[code]}={count}" for code, _, count in pairs)


def _whole(name: str) -> pl.Expr:
    """Text of a whole number; null where Slurm's number for "not set" or "without limit" stands."""
    value = pl.col(name)
    return (
        pl.when(~value.is_in([float(mark) for mark in UNSET]))
        .then(value.cast(pl.Int64, strict=False))
        .cast(pl.String)
    )


def _instant(name: str) -> pl.Expr:
    """Epoch seconds; 0 stands for no time."""
    return (pl.when(pl.col(name) > 0).then(pl.col(name) * 1e6)).cast(pl.Int64).cast(INSTANT)
