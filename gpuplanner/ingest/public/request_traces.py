"""Readers of requests to language-model services with their tokens: Azure, BurstGPT, and a table of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.public.job_lists import convert_local_times, file_stem, offset_time
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME_CHECK, source_check
from gpuplanner.ingest.source_definition import has_required_columns, register_sniffer
from gpuplanner.ingest.source_fields import FIRST_INSTANT, Field, parse_origin, source_columns, validate_time_zone
from gpuplanner.ingest.table_assembly import assemble_table
from gpuplanner.ingest.text_files import read_head
from gpuplanner.ingest.typed_row_reader import read_rows

TOKEN_COLUMNS = ("prompt_tokens", "generated_tokens")
"""Columns of requests with the numbers of prompt tokens and generated tokens."""

FIELD_BY_AZURE_LLM_COLUMN = source_columns("azure_llm")
"""Column of the Azure LLM request logs → how it is parsed. `TIMESTAMP`: of 2023 with seven decimals and no zone,
truncated to microseconds; of 2024 with its UTC offset."""
FIELD_BY_BURSTGPT_COLUMN = source_columns("burstgpt")
"""Column of BurstGPT → how it is parsed. `Timestamp`: seconds since the begin of the trace; `Response tokens`: 0 of a
request that failed; `Log Type`: conversations or API, which counts as the team."""
FIELD_BY_REQUEST_COLUMN = source_columns("requests")
"""Column of a table of your own requests → how it is parsed."""

REQUEST_CHECKS = (
    source_check("azure-llm: out of order", pl.col("time") < pl.col("time").cum_max()),
    source_check("azure-llm: equal rows", ~pl.col("raw").is_first_distinct()),
    source_check("requests: no answer", pl.col("generated_tokens") == 0),
)
"""Checks of the quality report for requests."""


def _assemble_requests(rows: Rows, source: str, *, zone: str | None = None, notes: Sequence[str] = ()) -> Dataset:
    """Assemble the table of requests; rows without prompt tokens or with fractional numbers of tokens are rejected.

    Parameters
    ----------
    rows : Rows
        Rows with ``time``, ``service`` and tokens.
    source : str
        Name of the source.
    zone : str, optional
        Time zone of naive times.
    notes : sequence of str
        Notes of the provenance.
    """
    tokens = pl.col(TOKEN_COLUMNS)
    rows = rows.reject({
        "not a whole number of tokens": pl.any_horizontal(tokens != tokens.floor()),
        "no prompt tokens: a request has at least one": pl.col("prompt_tokens") < 1,
    })  # fmt: skip
    return assemble_table(
        rows,
        "requests",
        source=source,
        sort_columns=["time"],
        row_word="request",
        checks=(AMBIGUOUS_TIME_CHECK, *REQUEST_CHECKS) if zone else REQUEST_CHECKS,
        totals={name: pl.col(name).cast(pl.Int64).sum() for name in TOKEN_COLUMNS},
        time_zone=zone,
        notes=list(notes),
    )


@register_sniffer(has_required_columns(FIELD_BY_AZURE_LLM_COLUMN))
def read_azure_llm(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read logs of requests to LLM services with their tokens; the name of a file is its service.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, of 2023 or of 2024.
    tz : str
        Time zone of the times; the source of 2023 names none.

    Returns
    -------
    Dataset
        With the table ``requests``. [tokens]

    Raises
    ------
    TraceFormatError
        If no time zone is given and the times have none.

    References
    ----------
    .. [1] Patel et al., Splitwise, ISCA 2024: Azure LLM inference requests, 2023.
    .. [2] Stojkovic et al., DynamoLLM, HPCA 2025: Azure LLM inference requests, 2024.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "conv.csv"
    ...     _ = path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    ...     read_azure_llm([path], tz="UTC").summary()["prompt_tokens"]
    374
    """
    first_rows = [line for path in paths for line in read_head(path)[1:2]]
    if first_rows and all("+" in line.partition(",")[0] for line in first_rows):
        columns = FIELD_BY_AZURE_LLM_COLUMN | {"TIMESTAMP": Field("time", "instant")}
        rows = read_rows(paths, columns, source="azure-llm")
        return _assemble_requests(rows.with_columns(service=file_stem(rows.files)), "azure-llm")
    if tz is None:
        expected, todo = "a stated time zone", "Give the time zone of the times with --tz; UTC is likely."
        raise TraceFormatError("azure-llm: TIMESTAMP", expected, "times without one", todo)
    zone = validate_time_zone(tz)
    rows = convert_local_times(read_rows(paths, FIELD_BY_AZURE_LLM_COLUMN, source="azure-llm"), {"time": "time"}, zone)
    rows = rows.with_columns(service=file_stem(rows.files))
    return _assemble_requests(rows, "azure-llm", zone=zone, notes=["times are truncated to the microsecond"])


@register_sniffer(has_required_columns(FIELD_BY_BURSTGPT_COLUMN))
def read_burstgpt(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read BurstGPT: requests to ChatGPT and GPT-4 of a campus; the log type counts as the team.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files.
    origin : datetime or str, optional
        Begin of the trace, which it does not name.

    Returns
    -------
    Dataset
        With the table ``requests``. [tokens]

    References
    ----------
    .. [1] Wang et al., BurstGPT, KDD 2025; HPMLL/BurstGPT, README.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "BurstGPT_1.csv"
    ...     header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    ...     _ = path.write_text(header + "\n5,ChatGPT,472,18,490,Conversation log\n")
    ...     read_burstgpt([path]).table["service", "team", "generated_tokens"].row(0)
    ('ChatGPT', 'Conversation log', 18)
    """
    begin = FIRST_INSTANT if origin is None else parse_origin(origin)
    rows = read_rows(paths, FIELD_BY_BURSTGPT_COLUMN, source="burstgpt")
    rows = replace(rows, good=rows.good.with_columns(time=offset_time(begin, "time_s")))
    notes = [] if origin else ["the source names no dates: its first day is taken to be 1970-01-01 (--origin)"]
    return _assemble_requests(rows, "burstgpt", notes=notes)


@register_sniffer(has_required_columns(FIELD_BY_REQUEST_COLUMN))
def read_requests(paths: Sequence[str | Path]) -> Dataset:
    r"""Read a table of your own requests, such as of a gateway: time, model, team, tokens of prompt and answer.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files with the columns of :data:`FIELD_BY_REQUEST_COLUMN`; times with their UTC offset.

    Returns
    -------
    Dataset
        With the table ``requests``. [tokens]

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gateway.csv"
    ...     header = "time,model,team,prompt_tokens,generated_tokens"
    ...     _ = path.write_text(header + "\n2026-03-02T08:00:00.5Z,llama-3.1-8b,search,812,90\n")
    ...     read_requests([path]).table["service", "team"].row(0)
    ('llama-3.1-8b', 'search')
    """
    return _assemble_requests(read_rows(paths, FIELD_BY_REQUEST_COLUMN, source="requests"), "requests")
