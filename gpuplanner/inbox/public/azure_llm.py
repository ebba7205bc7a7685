"""Azure LLM inference requests, 2023 (Patel et al., Splitwise, ISCA 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, Check
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import known_zone
from gpuplanner.inbox.public.clocks import localized

MAX_TOKENS = 100_000_000

COLUMN_MAP = {
    "TIMESTAMP": Field("time", "time", format="%Y-%m-%d %H:%M:%S%.f"),
    "ContextTokens": Field("prompt_tokens", "number", high=MAX_TOKENS),
    "GeneratedTokens": Field("generated_tokens", "number", high=MAX_TOKENS),
}
"""`TIMESTAMP`: seven decimals, no zone; what is finer than a microsecond is cut off."""

CHECKS = (
    AMBIGUOUS_TIME,
    Check(
        "out of order in the file",
        "info",
        "none: the rows were sorted",
        pl.col("time") < pl.col("time").cum_max(),
    ),
    Check(
        "equal to an earlier row in every field",
        "info",
        "kept, since requests have no ids: some may be the same request twice",
        ~pl.col("raw").is_first_distinct(),
    ),
)


def read_azure_llm(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read a log of requests with their tokens; the name of a file is its service.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "conv.csv"
    ...     _ = path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    ...     read_azure_llm([path], tz="UTC").summary()["prompt_tokens"]
    374
    """
    if tz is None:
        todo = "Say in which zone the times are, with --tz; UTC is likely."
        raise TraceFormatError(
            message("azure-llm: TIMESTAMP", "a stated time zone", "times without one", todo)
        )
    zone = known_zone(tz)
    rows = localized(read_rows(paths, COLUMN_MAP, source="azure-llm"), ["time"], zone)
    tokens = pl.col("prompt_tokens", "generated_tokens")
    rows = rows.reject({"not a whole number of tokens": pl.any_horizontal(tokens != tokens.floor())})
    services = {number: file_name(file.path).split(".")[0] for number, file in enumerate(rows.files)}
    service = pl.col("file").replace_strict(services, return_dtype=pl.String)
    return assemble_reading(
        replace(rows, good=rows.good.with_columns(service=service)),
        "requests",
        source="azure-llm",
        order=["time"],
        what="request",
        checks=CHECKS,
        totals={name: pl.col(name).cast(pl.Int64).sum() for name in ("prompt_tokens", "generated_tokens")},
        time_zone=zone,
        notes=["times are cut to the microsecond"],
    )
