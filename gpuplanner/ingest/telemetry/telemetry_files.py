"""Telemetry files to rows: pages of metrics, times, numbers and units."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, file_name
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import CONTROL, Rows
from gpuplanner.ingest.row_reader import all_of, in_blocks
from gpuplanner.ingest.source_definition import Sniff, looks, matches
from gpuplanner.ingest.source_fields import AMBIGUOUS, INSTANT, known_origin, known_zone, seconds, to_utc
from gpuplanner.ingest.telemetry.metric_definitions import (
    LEAST_BLANK,
    QUANTITIES,
    WIDE,
    Metric,
    is_blank,
    without_blanks,
)
from gpuplanner.ingest.text_files import CONTROL_PATTERN, MAX_BYTES, WHOLE, FileBlocks

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
            raise TraceFormatError(where, "times with their zone", repr(sample), todo)
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
        "text", pl.when(pl.lit(looks)).then(read).alias(name), pl.lit(None, dtypes[other]).alias(other)
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
        pattern = rf"^[0-9]{{4}}{mark}[0-9]{{2}}{mark}[0-9]{{2}}{gap}{CLOCK}{zulu}$"
        form = f"%Y{mark}%m{mark}%d{gap}%H:%M:%S%.f"
        read = text.str.strip_suffix("Z").str.to_datetime(form, time_unit="us", strict=False, cache=False)
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


CELL = r"^([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t]*(%|[A-Za-z][A-Za-z/]*)?$"
"""A number, and its unit where the cell states one."""

NOT_A_NUMBER = "not a number with a known unit"


def known_unit(metric: Metric, unit: str, where: str) -> Metric:
    """The metric in a unit that a header states.

    Examples
    --------
    >>> known_unit(Metric("power", "W"), "mW", "a.csv").divisor
    1000.0
    """
    if unit not in metric.units:
        expected = f"{metric.quantity} in one of {', '.join(metric.units)}"
        raise TraceFormatError(where, expected, repr(unit), "State the unit in the header.")
    return replace(metric, unit=unit)


def read_wide(rows: Rows, columns: Mapping[str, Metric]) -> Rows:
    """Read the columns of a table with one row per device and time."""
    values: dict[str, list[pl.Series]] = {quantity: [] for quantity in QUANTITIES}
    faults: dict[str, pl.Expr] = {}
    for column, metric in columns.items():
        value, fault = read_cells(rows.good[column], metric)
        values[metric.quantity].append(value)
        if fault.any():
            faults[f"{column}: {NOT_A_NUMBER}"] = pl.lit(fault)
    filled = (_first_given(found, rows.good.height).alias(name) for name, found in values.items())
    rows = rows.with_columns(*filled)
    return rows.reject(faults) if faults else rows


def _first_given(found: list[pl.Series], rows: int) -> pl.Series:
    """Values of the first of several columns that has one."""
    if not found:
        return pl.Series([None], dtype=pl.Float64).new_from_index(0, rows)
    return found[0] if len(found) == 1 else pl.select(pl.coalesce(found)).to_series()


def read_cells(cells: pl.Series, metric: Metric) -> tuple[pl.Series, pl.Series]:
    """Values of cells in our unit, and which cells are neither a value nor a blank; cells may be finite numbers.

    Most cells of a column look alike: those that are a number and the unit of the first are cast as they stand,
    and only the others are taken apart.

    Examples
    --------
    >>> value, fault = read_cells(pl.Series(["400 W", "[N/A]", "0.5 kW", "2000 mW"]), Metric("power", "W"))
    >>> value.to_list(), fault.to_list()
    ([400.0, None, None, 2.0], [False, False, True, False])
    """
    wide = QUANTITIES[metric.quantity] in WIDE
    if cells.dtype == pl.Float64:
        fault = pl.Series([False]).new_from_index(0, len(cells))
        return _in_our_unit(cells, metric.divisor, wide=wide), fault
    text = cells.str.strip_chars()
    number, divisor = _parse_numbers(text, metric)
    read = number.is_finite().fill_null(False)
    value = _in_our_unit(number, divisor, wide=wide)
    if read.all():
        return value, ~read
    rest = (~read & text.is_not_null()).arg_true()
    others = text.gather(rest)
    slow = others.unique().to_frame("text").with_columns(_taken_apart(pl.col("text"), metric))
    found = others.to_frame("text").join(slow, on="text", how="left", maintain_order="left")
    value = pl.select(pl.when(pl.lit(read)).then(pl.lit(value))).to_series()
    fault = pl.Series([False]).new_from_index(0, len(text))
    return value.scatter(rest, found["value"]), fault.scatter(rest, found["fault"])


def _in_our_unit(number: pl.Series, divisor: float, *, wide: bool) -> pl.Series:
    """Numbers without blanks, divided."""
    most = number.max()
    value = number
    if number.is_nan().any() or (isinstance(most, float) and most >= LEAST_BLANK[wide]):
        value = pl.select(without_blanks(pl.lit(number), wide=wide)).to_series()
    if divisor != 1:  # polars would multiply by its inverse, and be off in the last digit
        value = pl.Series(value.to_numpy() / divisor, nan_to_null=True)
    return value


def _parse_numbers(text: pl.Series, metric: Metric) -> tuple[pl.Series, float]:
    """Numbers of cells that state the unit of the first such cell, and what they are divided by."""
    first = re.fullmatch(CELL[1:-1], text[text.is_not_null().arg_max() or 0] or "") if len(text) else None
    if first is None or first[2] is None or first[2] not in metric.units:
        return text.cast(pl.Float64, strict=False), metric.divisor
    unit = first[0][first.end(1) :]
    bare = text.str.strip_suffix(unit)
    divisor = metric.units[first[2]]
    if divisor != metric.divisor:  # where no unit is stated, another counts
        bare = pl.select(pl.when(pl.lit(text).str.ends_with(unit)).then(pl.lit(bare))).to_series()
    return bare.cast(pl.Float64, strict=False), divisor


def _taken_apart(text: pl.Expr, metric: Metric) -> tuple[pl.Expr, pl.Expr]:
    """Value of a cell in our unit, and whether it is neither a value nor a blank."""
    parts = text.str.extract_groups(CELL)
    unit = parts.struct[1].fill_null(metric.unit)
    divisor = unit.replace_strict(metric.units, default=None, return_dtype=pl.Float64)
    number = parts.struct[0].cast(pl.Float64, strict=False)
    wide = QUANTITIES[metric.quantity] in WIDE
    fault = ~is_blank(text) & ~(number / divisor).is_finite().fill_null(False)
    return (without_blanks(number, wide=wide) / divisor).alias("value"), fault.fill_null(False).alias("fault")


def read_long(rows: Rows, metrics: Mapping[str, Metric]) -> Rows:
    """Read the values of a table with one row per device, time and metric."""
    texts = rows.good["value"].str.strip_chars()
    number = texts.cast(pl.Float64, strict=False)
    read = number.is_finite().fill_null(False)
    if not read.all():
        others = texts.filter(~read).unique().to_frame("text")
        is_nan = pl.col("text").cast(pl.Float64, strict=False).is_nan().fill_null(False)
        rest = others.filter(~(is_blank(pl.col("text")) | is_nan))["text"].drop_nulls()
        fault = texts.is_in(rest.implode()) & ~read
        rows = rows.reject({"the value is not a number": pl.lit(fault)})
        finite = pl.select(pl.when(pl.lit(read)).then(pl.lit(number))).to_series()
        number = finite.filter(~fault.fill_null(False))
    names = rows.good["metric"].unique(maintain_order=True).drop_nulls().to_list()
    known = {name: metrics[name] for name in names if name in metrics}
    name = pl.col("metric").cast(pl.Enum(names)).to_physical()
    wide = pl.Series([n in known and QUANTITIES[known[n].quantity] in WIDE for n in names], dtype=pl.Boolean)
    divisor = pl.Series([known[n].divisor if n in known else None for n in names], dtype=pl.Float64)
    quantity = pl.Series([known[n].quantity if n in known else None for n in names], dtype=pl.String)
    frame = rows.good.with_columns(number.alias("value")).with_columns(
        place=name, quantity=pl.lit(quantity).gather(name) if names else pl.lit(None, pl.String)
    )
    cleared_wide, cleared = (without_blanks(pl.col("value"), wide=each) for each in (True, False))
    if names:
        value = pl.when(pl.lit(wide).gather("place")).then(cleared_wide).otherwise(cleared)
        frame = frame.with_columns(value=value / pl.lit(divisor).gather("place"))
    unused = (*rows.unused, *sorted(set(names) - metrics.keys()))
    return replace(rows, good=frame.drop("place"), unused=unused)


Parse = Callable[[Rows], Rows]
"""Turns the lines of one file (``file``, ``line``, ``raw``) into rows with more columns."""

NO_TIME = "Give the time of the first row: --origin 2026-01-31T12:00:00Z."


@dataclass(frozen=True)
class Hints:
    """What a file of telemetry may leave out, stated by who asks for it to be read.

    Attributes
    ----------
    tz : str, optional
        Zone of times without an offset.
    origin : datetime or str, optional
        Instant of the first row, for files without times.
    interval_s : float, optional
        Seconds between samples, for files without times.
    node : str, optional
        Node of files that do not name it; otherwise the file name up to its first dot.
    gpu : int, optional
        Number of the one GPU of files that do not say which.
    columns : tuple of str
        Fields of a file without a header, as they were asked for.
    query : str, optional
        Query that an answer of Prometheus is to.
    """

    tz: str | None = None
    origin: datetime | str | None = None
    interval_s: float | None = None
    node: str | None = None
    gpu: int | None = None
    columns: tuple[str, ...] = ()
    query: str | None = None

    def __post_init__(self) -> None:
        if self.interval_s is not None and not 0 < self.interval_s < 86400:
            expected, todo = "seconds between 0 and a day", "Give a plain number."
            raise TraceFormatError("interval_s", expected, repr(self.interval_s), todo)
        if self.gpu is not None and self.gpu < 0:
            raise TraceFormatError("gpu", "a number from 0", f"{self.gpu}", "Count GPUs from 0.")

    def node_of(self, path: Path) -> str:
        """Node of a file that does not name it.

        Examples
        --------
        >>> Hints().node_of(Path("n07.dmon.txt"))
        'n07'
        """
        return self.node or file_name(path).split(".")[0]

    def nth_instant(self, number: pl.Expr, where: str, default_s: float | None = None) -> pl.Expr:
        """Instants of samples that carry no time, by their 0-based number.

        Raises
        ------
        TraceFormatError
            If the origin is not stated, or the interval is neither stated nor known.
        """
        if self.origin is None:
            raise TraceFormatError(where, "times in the file, or --origin", "neither", NO_TIME)
        step = default_s if self.interval_s is None else self.interval_s
        if step is None:
            todo = "Give the sampling interval in seconds, for example --interval 30."
            raise TraceFormatError(where, "times in the file, or an interval", "neither", todo)
        return pl.lit(known_origin(self.origin), INSTANT) + seconds(number * step)


def reads(sniff: Sniff) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Say of a reader of telemetry how its files look; it then takes :class:`Hints` as such or one by one."""

    def marked(reader: Callable[..., Dataset]) -> Callable[..., Dataset]:
        @looks(sniff)
        @functools.wraps(reader)
        def read(
            paths: Sequence[str | Path],
            hints: Hints | None = None,
            way: object = None,
            **given: Any,  # noqa: ANN401 - fields of Hints
        ) -> Dataset:
            return reader(paths, hints or Hints(**given), *([] if way is None else [way]))

        return read

    return marked


def header_begins(*columns: str) -> Sniff:
    """A test for files whose first line names the columns."""
    ahead = "".join(rf'(?=(?:.*[,"\s])?{re.escape(column)}[",\s])' for column in columns)
    return matches(rf"\A{ahead}")


def read_pages(paths: Sequence[str | Path], parse: Parse, *, source: str, twins: bool = False) -> Rows:
    """Read files and let each be parsed whole."""
    blocks = FileBlocks(paths, WHOLE, MAX_BYTES)
    pages = read_page_blocks(blocks, lambda page, _: parse(page), source=source, twins=twins)
    return all_of(pages, blocks)


def read_page_blocks(
    blocks: FileBlocks, parse: Callable[[Rows, str | None], Rows], *, source: str, twins: bool = False
) -> Iterator[Rows]:
    """Read files block by block; each but the first of a file is parsed with the first line of its file."""
    firsts: dict[int, str] = {}

    blank = pl.col("raw").str.strip_chars() == ""
    for number, block, page in in_blocks(blocks, blank, source=source, twins=twins):
        if page.good.width:
            first = str(page.good["raw"][0])
            page = parse(page, firsts.get(number))
            firsts.setdefault(number, first)
            if block.has_controls:
                page = page.reject({CONTROL: pl.col("raw").str.contains(CONTROL_PATTERN)})
        yield page


def path_of(page: Rows) -> Path:
    """Path of the one file that a page comes from."""
    return page.files[int(page.good["file"][0])].path


def data_only(page: Rows, is_data: pl.Expr) -> Rows:
    """Leave out lines that are no rows: comments and headers. They are not counted."""
    data = page.good.filter(is_data)
    return replace(page, good=data, count=page.count - (page.good.height - data.height))
