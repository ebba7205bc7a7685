"""Times of telemetry tables: with an offset, in epoch seconds, or naive in a zone that must be stated."""

from __future__ import annotations

import re

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.times import AMBIGUOUS, INSTANT, known_zone, to_utc

NAIVE = r"^(\d{4})[-/](\d{2})[-/](\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)$"
OFFSET = r"^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)(Z|[+-]\d{2}:?\d{2})$"
EPOCH = r"^(\d{9,10}(?:\.\d{1,9})?)$"
EPOCH_ASCII = r"^[0-9]{9,10}(?:\.[0-9]{1,9})?$"
CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"

SKIPPED = "a local time that the clock skipped"
SHOWN_TWICE = "a local time that the clock showed twice: log in UTC"


def with_instants(rows: Rows, column: str, tz: str | None, where: str) -> Rows:
    """Read a column of time texts into ``time``."""
    text = rows.good[column].str.strip_chars()
    texts, runs = _runs(text)
    known = _known(texts)
    if known["naive"].null_count() < known.height:
        if tz is None:
            sample = known.filter(pl.col("naive").is_not_null())["text"][0]
            todo = "State their zone, for example tz='UTC' (--tz UTC)."
            raise TraceFormatError(message(where, "times with their zone", repr(sample), todo))
        known = to_utc(known.with_columns(local="naive"), ["local"], known_zone(tz))
        known = known.with_columns(time=pl.coalesce("time", "local"))
    else:
        known = known.with_columns(pl.lit(None, INSTANT).alias("local"), pl.lit(False).alias(AMBIGUOUS))
    local = pl.col("naive").is_not_null()
    skipped, twice = local & pl.col("local").is_null(), local & pl.col(AMBIGUOUS)
    known = known.select("time", skipped=skipped, twice=twice)
    faulty = known.select(pl.any_horizontal("skipped", "twice").any()).item()
    told = known if runs is None else known[runs]
    rows = rows.with_columns(text.alias(column), told["time"])
    if not faulty:
        return rows
    return rows.reject({SKIPPED: pl.lit(told["skipped"]), SHOWN_TWICE: pl.lit(told["twice"])})


def _runs(text: pl.Series) -> tuple[pl.Series, pl.Series | None]:
    """Texts, each once where the same follow each other, and for each row the number of its text."""
    begins = text.ne_missing(text.shift(1))
    if len(text):
        begins = begins.scatter(0, True)
    if 2 * int(begins.sum()) > len(text):
        return text, None
    return text.filter(begins), begins.cast(pl.UInt32).cum_sum() - 1


def _known(text: pl.Series) -> pl.DataFrame:
    """``text``, ``time`` of times that need no zone, and ``naive`` of those that need one.

    Most times of a column look alike: those of the form of the first are read by that form, the others in every way.
    """
    first = text[text.is_not_null().arg_max() or 0] if len(text) else None
    quick = _parse_times(first)
    if quick is None:
        return text.to_frame("text").with_columns(*_in_every_way(pl.col("text")))
    pattern, read, name = quick
    looks = text.str.contains(pattern).fill_null(False)
    other = "naive" if name == "time" else "time"
    dtypes = {"time": INSTANT, "naive": pl.Datetime("us")}
    known = text.to_frame("text").select(
        "text",
        pl.when(pl.lit(looks)).then(read).alias(name),
        pl.lit(None, dtypes[other]).alias(other),
    )
    if looks.all():
        return known
    rest = (~looks & text.is_not_null()).arg_true()
    slow = text.gather(rest).to_frame("text").with_columns(*_in_every_way(pl.col("text")))
    return known.with_columns(known[each].clone().scatter(rest, slow[each]) for each in ("time", "naive"))


def _parse_times(first: str | None) -> tuple[str, pl.Expr, str] | None:
    """Pattern of texts that look like the first, how such are read, and into which column."""
    text = pl.col("text")
    if first is None:
        return None
    shape = re.fullmatch(r"[0-9]{4}([-/])[0-9]{2}\1[0-9]{2}([ T])[0-9:]{8}(?:\.[0-9]+)?(Z?)", first)
    if shape is not None:
        mark, gap, zulu = shape.groups()
        day, clock = f"%Y{mark}%m{mark}%d", "%H:%M:%S%.f"
        pattern = rf"^[0-9]{{4}}{mark}[0-9]{{2}}{mark}[0-9]{{2}}{gap}{CLOCK}{zulu}$"
        read = text.str.strip_suffix("Z").str.to_datetime(
            f"{day}{gap}{clock}", time_unit="us", strict=False, cache=False
        )
        if not zulu:
            return pattern, read, "naive"
        return (pattern, read.dt.replace_time_zone("UTC"), "time") if mark == "-" else None
    if re.fullmatch(EPOCH_ASCII[1:-1], first):
        return EPOCH_ASCII, _epoch(text), "time"
    return None


def _epoch(text: pl.Expr) -> pl.Expr:
    """Instants of seconds since 1970."""
    return (text.cast(pl.Float64, strict=False) * 1e6).round().cast(pl.Int64).cast(INSTANT)


def _in_every_way(text: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """``time`` and ``naive`` of texts of any form."""
    naive_text = text.str.extract_groups(NAIVE).struct
    naive = pl.concat_str(
        pl.concat_str(*(naive_text[part] for part in range(3)), separator="-"), naive_text[3], separator=" "
    ).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    offset_text = text.str.extract_groups(OFFSET).struct
    offset = pl.concat_str(
        offset_text[0], pl.lit("T"), offset_text[1], offset_text[2].str.replace("Z", "+00:00", literal=True)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False)
    epoch = _epoch(text.str.extract(EPOCH))
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch).alias("time"), naive.alias("naive")
