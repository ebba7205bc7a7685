"""Job lists as simulators exchange them: when submitted, how long, on how many GPUs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, first_line, message
from gpuplanner.schemas import WHOLE_GPU

LONGEST_S = 1e12
"""No time in a list may be later or longer [s]: sums of such times still count single milliseconds."""
COLUMNS = ("job_id", "submit_time", "duration", "num_gpus")
RULES = {
    "submit_time": ("a number from 0 to 1e12", pl.col("submit_time").is_between(0, LONGEST_S)),
    "duration": ("a number from 0 to 1e12", pl.col("duration").is_between(0, LONGEST_S)),
    "num_gpus": (
        "a whole number from 1 to 2147483647",
        pl.col("num_gpus").is_between(1, 2**31 - 1) & (pl.col("num_gpus") % 1 == 0),
    ),
    "tier": (
        "a whole number from 0 to 1000, or nothing",
        pl.col("tier").is_between(0, 1000) & (pl.col("tier") % 1 == 0),
    ),
    "limit_s": (
        "a number above 0 and up to 1e12, or nothing",
        pl.col("limit_s").is_between(0, LONGEST_S, closed="right"),
    ),
    "predicted_gpu_s": ("a number not below 0, or nothing", pl.col("predicted_gpu_s").is_between(0, 1e300)),
}
"""What the numbers of a list have to be, for people and for the machine."""


def read_job_list(path: str | Path) -> tuple[pl.DataFrame, list[str]]:
    r"""Read a job list.

    Parameters
    ----------
    path : path
        CSV file, plain or gzip, with the columns ``job_id``, ``submit_time`` [s], ``duration`` [s] and
        ``num_gpus``; if there are, ``tenant``, ``tier``, ``limit_s`` [s] and ``predicted_gpu_s`` too.

    Returns
    -------
    jobs : polars.DataFrame
        As :func:`~gpuplanner.lab.gangs.schedule` takes them, in order of submission; limits are durations where
        the file has none. Where submissions are tied, the order of the file decides.
    remarks : list of str
        What is odd but harmless: rows out of order, tied submissions, durations of zero.

    Raises
    ------
    TraceFormatError
        If the file is not such a list or is empty, or numbers are missing or out of range.

    Examples
    --------
    >>> import tempfile
    >>> text = "job_id,submit_time,duration,num_gpus\nb,9,60,8\na,5,0,1\n"
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write(text), file.flush()
    ...     jobs, remarks = read_job_list(file.name)
    >>> jobs.select("job_id", "submit_s", "run_s", "gpus").rows()
    [('a', 5.0, 0.0, 1), ('b', 9.0, 60.0, 8)]
    >>> remarks
    ['rows out of order of submission: 1; sorted', "durations of zero, which hold no GPU: 1: 'a'"]
    """
    texts = _texts(path)
    absent = [name for name in RULES if name not in texts.columns]
    rows = texts.with_columns(pl.lit(None, pl.String).alias(name) for name in absent).with_columns(
        pl.col(name).str.strip_chars().cast(pl.Float64, strict=False) for name in RULES
    )
    _refuse_bad_rows(rows, texts, path)
    jobs = rows.with_columns(
        submit_s="submit_time", run_s="duration", gpus=pl.col("num_gpus").cast(pl.Int32), profile=pl.lit(WHOLE_GPU)
    ).select(
        "job_id", "submit_s", "run_s", "gpus", "profile",
        tenant=pl.col("tenant") if "tenant" in texts.columns else pl.lit("-"),
        tier=pl.col("tier").cast(pl.Int32),
        limit_s=pl.coalesce("limit_s", "run_s"),
        predicted_gpu_s="predicted_gpu_s",
    )  # fmt: skip
    return jobs.sort("submit_s", maintain_order=True), _remarks(jobs)


def totals(outcomes: pl.DataFrame) -> dict[str, float]:
    """Figures by which simulators are compared.

    Parameters
    ----------
    outcomes : polars.DataFrame
        What :func:`~gpuplanner.lab.gangs.schedule` gives.

    Returns
    -------
    dict
        Mean time from submission to end, mean time in the queue, last end on the clock of the input, and time
        from the first submission to the last end, all in s.
    """
    last_end = outcomes["end"].max()
    row = outcomes.select(
        avg_jct_s=pl.col("jct_s").mean(),
        avg_queueing_delay_s=pl.col("queued_s").mean(),
        last_end_s=pl.lit(last_end),
        makespan_s=last_end - pl.col("submit").min(),
    )
    return row.row(0, named=True)


def _texts(path: str | Path) -> pl.DataFrame:
    """Read the cells as they stand; every column of a list is there, and once."""
    try:
        texts = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.NoDataError:
        texts = pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        got = first_line(error)
        text = message(str(path), "a CSV file, plain or gzip", got, "Give the path of a job list.")
        raise TraceFormatError(text) from None
    known = (*COLUMNS, *RULES, "tenant")
    got = ""
    if missing := [name for name in COLUMNS if name not in texts.columns]:
        got = (
            f"no {', '.join(map(repr, missing))} among {examples(texts.columns)}"
            if texts.columns
            else "nothing"
        )
    elif twice := [name for name in dict.fromkeys(known) if f"{name}_duplicated_0" in texts.columns]:
        got = f"{', '.join(map(repr, twice))} more than once"
    elif not texts.height:
        got = "no rows"
    if got:
        expected = f"columns {', '.join(map(repr, COLUMNS))}, parted by commas, and at least one job"
        raise TraceFormatError(message(str(path), expected, got, "Mend the file."))
    return texts


def _refuse_bad_rows(rows: pl.DataFrame, texts: pl.DataFrame, path: str | Path) -> None:
    """Raise if an identity is missing or stands twice, or a number is not as it has to be; name columns and rows."""
    named = pl.col("job_id").is_not_null()
    _refuse(texts, named, path, "job_id", "an identity")
    _refuse(texts, ~pl.col("job_id").is_duplicated(), path, "job_id", "identities that stand once")
    for name, (expected, rule) in RULES.items():
        if name in texts.columns:
            nothing = pl.lit(value=name not in COLUMNS) & (texts[name].fill_null("").str.strip_chars() == "")
            _refuse(
                texts, rows.select(rule.fill_null(value=False) | nothing).to_series(), path, name, expected
            )


def _refuse(
    texts: pl.DataFrame, sound: pl.Expr | pl.Series, path: str | Path, name: str, expected: str
) -> None:
    """Raise with what stands in the rows that are not sound, counted from 1 below the header."""
    bad = texts.with_row_index("row", offset=1).filter(~sound).select("row", name).rows()
    if bad:
        listed = examples([f"row {row}: {'nothing' if cell is None else cell[:80]}" for row, cell in bad])
        got = f"{len(bad)} of {texts.height} others: {listed}"
        raise TraceFormatError(message(f"{path}: column {name!r}", expected, got, "Mend or drop them."))


def _remarks(jobs: pl.DataFrame) -> list[str]:
    """What is odd but harmless."""
    back = jobs.select((pl.col("submit_s").diff() < 0).sum()).item()
    tied = jobs.height - jobs["submit_s"].n_unique()
    idle = jobs.filter(pl.col("run_s") == 0)["job_id"].to_list()
    found = [
        (back, f"rows out of order of submission: {back}; sorted"),
        (tied, f"submissions at the instant of another: {tied}; the order of the file decides"),
        (idle, f"durations of zero, which hold no GPU: {len(idle)}: {examples(idle)}"),
    ]
    return [text for odd, text in found if odd]
