"""Job lists as simulators exchange them: when submitted, how long, on how many GPUs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.schemas import WHOLE_GPU

NUMBERS = ("submit_time", "duration", "num_gpus")


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
        As :func:`~gpuplanner.simulate.schedule` takes them, in order of submission; limits are durations where
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
    try:
        raw = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.NoDataError:
        raw = pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        text = message(str(path), "a CSV file, plain or gzip", str(error), "Give the path of a job list.")
        raise TraceFormatError(text) from None
    missing = [name for name in ("job_id", *NUMBERS) if name not in raw.columns]
    if missing or not raw.height:
        got = f"no {', '.join(map(repr, missing))}" if missing else "no rows"
        expected = "columns 'job_id', 'submit_time', 'duration', 'num_gpus' and at least one job"
        raise TraceFormatError(message(str(path), expected, got, "Add what is missing."))
    rows = raw.with_row_index("row", offset=1).with_columns(
        pl.col(NUMBERS).str.strip_chars().cast(pl.Float64, strict=False)
    )
    _refuse_bad_numbers(rows, path)
    jobs = rows.with_columns(
        submit_s="submit_time", run_s="duration", gpus=pl.col("num_gpus").cast(pl.Int32), profile=pl.lit(WHOLE_GPU)
    ).select(
        "job_id", "submit_s", "run_s", "gpus", "profile",
        tenant=pl.col("tenant") if "tenant" in raw.columns else pl.lit("-"),
        tier=_optional(rows, "tier").cast(pl.Int32),
        limit_s=pl.coalesce(_optional(rows, "limit_s"), "run_s"),
        predicted_gpu_s=_optional(rows, "predicted_gpu_s"),
    )  # fmt: skip
    return jobs.sort("submit_s", maintain_order=True), _remarks(jobs)


def totals(outcomes: pl.DataFrame) -> dict[str, float]:
    """Figures by which simulators are compared.

    Parameters
    ----------
    outcomes : polars.DataFrame
        What :func:`~gpuplanner.simulate.schedule` gives.

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


def _optional(rows: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64, strict=False) if name in rows.columns else pl.lit(None, pl.Float64)


def _refuse_bad_numbers(rows: pl.DataFrame, path: str | Path) -> None:
    """Raise if a number is missing or out of range, naming columns and rows."""
    submit, duration, gpus = (pl.col(name) for name in NUMBERS)
    sound = {
        "job_id": pl.col("job_id").is_not_null(),
        "submit_time": submit.is_finite() & (submit >= 0),
        "duration": duration.is_finite() & (duration >= 0),
        "num_gpus": (gpus >= 1) & (gpus < 2**31) & (gpus == gpus.floor()),
    }
    for name, rule in sound.items():
        bad = rows.filter(~rule.fill_null(value=False))
        if bad.height:
            listed = examples([f"row {row}: {value}" for row, value in bad.select("row", name).rows()])
            expected = "a whole number above 0" if name == "num_gpus" else "a number not below 0"
            text = message(
                f"{path}: column {name!r}",
                "an identity" if name == "job_id" else expected,
                f"{bad.height} of {rows.height} others: {listed}",
                "Mend or drop them.",
            )
            raise TraceFormatError(text)


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
