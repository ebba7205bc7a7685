"""Parsing of telemetry files to rows: whole files or blocks of lines, times, numbers and units."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, printable_file_name
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import CONTROL_CHARACTER_REASON, Rows
from gpuplanner.ingest.source_definition import Sniffer, matches_pattern, register_sniffer
from gpuplanner.ingest.source_fields import (
    AMBIGUOUS_COLUMN,
    UTC_TIME_DTYPE,
    convert_to_utc,
    parse_origin,
    seconds_to_duration,
    validate_time_zone,
)
from gpuplanner.ingest.telemetry.metric_definitions import (
    DIMENSION_BY_QUANTITY,
    MIN_BLANK_BY_IS_LARGE_VALUE,
    WIDE_DIMENSIONS,
    Metric,
    is_blank,
    replace_blank_values,
)
from gpuplanner.ingest.text_files import CONTROL_CHARACTER_PATTERN, MAX_TEXT_BYTES, WHOLE_FILE_BYTES, FileBlocks
from gpuplanner.ingest.typed_row_reader import concat_blocks, iterate_line_blocks

NAIVE_TIME_PATTERN = r"^(\d{4})[-/](\d{2})[-/](\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)$"
"""A date and time without a zone."""
OFFSET_TIME_PATTERN = r"^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)(Z|[+-]\d{2}:?\d{2})$"
"""A date and time with a UTC offset."""
EPOCH_SECONDS_PATTERN = r"^(\d{9,10}(?:\.\d{1,9})?)$"
"""Seconds since 1970."""
EPOCH_SECONDS_ASCII_PATTERN = r"^[0-9]{9,10}(?:\.[0-9]{1,9})?$"
"""Seconds since 1970 in ASCII digits, for fast parsing of a column that has no other format."""
CLOCK_TIME_PATTERN = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
"""Time of day within a time text: hours, minutes and seconds."""

SKIPPED_TIME_REASON = "a local time that the clock skipped"
"""Reject reason of a local time that does not exist, as the clocks were put forward."""
AMBIGUOUS_TIME_REASON = "a local time that the clock showed twice: log in UTC"
"""Reject reason of a local time that occurs twice, as the clocks were put back."""


def parse_times(rows: Rows, column: str, tz: str | None, location: str) -> Rows:
    """Parse a column of time texts into ``time``.

    Parameters
    ----------
    rows : Rows
        Rows with the column.
    column : str
        Column of texts, with or without a zone.
    tz : str, optional
        Zone of times without one.
    location : str
        File, for messages.

    Raises
    ------
    TraceFormatError
        If times have no zone and `tz` is None.
    """
    text = rows.good[column].str.strip_chars()
    unique_texts, row_numbers = _deduplicate_runs(text)
    unique = _split_by_zone(unique_texts)
    if unique["naive"].null_count() < unique.height:
        if tz is None:
            sample = unique.filter(pl.col("naive").is_not_null())["text"][0]
            todo = "State their zone, for example tz='UTC' (--tz UTC)."
            raise TraceFormatError(location, "times with their zone", repr(sample), todo)
        unique = convert_to_utc(unique.with_columns(local="naive"), ["local"], validate_time_zone(tz))
        unique = unique.with_columns(time=pl.coalesce("time", "local"))
    else:
        unique = unique.with_columns(pl.lit(None, UTC_TIME_DTYPE).alias("local"), pl.lit(False).alias(AMBIGUOUS_COLUMN))
    is_local = pl.col("naive").is_not_null()
    is_skipped, is_ambiguous = is_local & pl.col("local").is_null(), is_local & pl.col(AMBIGUOUS_COLUMN)
    unique = unique.select("time", skipped=is_skipped, twice=is_ambiguous)
    has_faults = unique.select(pl.any_horizontal("skipped", "twice").any()).item()
    times = unique if row_numbers is None else unique[row_numbers]
    rows = rows.with_columns(text.alias(column), times["time"])
    if not has_faults:
        return rows
    return rows.reject({SKIPPED_TIME_REASON: pl.lit(times["skipped"]), AMBIGUOUS_TIME_REASON: pl.lit(times["twice"])})


def _deduplicate_runs(text: pl.Series) -> tuple[pl.Series, pl.Series | None]:
    """Return the texts with each run of equal ones once, and the index of each row's text; None if few are equal."""
    is_begin = text.ne_missing(text.shift(1))
    if len(text):
        is_begin = is_begin.scatter(0, True)
    if 2 * int(is_begin.sum()) > len(text):
        return text, None
    return text.filter(is_begin), is_begin.cast(pl.UInt32).cum_sum() - 1


def _split_by_zone(text: pl.Series) -> pl.DataFrame:
    """Parse texts to ``text``, ``time`` of times with a zone, and ``naive`` of times without one.

    Most times of a column look alike: those in the format of the first are parsed by it, the others in any format.
    """
    first_text = text[text.is_not_null().arg_max() or 0] if len(text) else None
    time_format = _guess_time_format(first_text)
    if time_format is None:
        return text.to_frame("text").with_columns(*_parse_any_time(pl.col("text")))
    pattern, parsed, name = time_format
    has_format = text.str.contains(pattern).fill_null(False)
    other_name = "naive" if name == "time" else "time"
    dtypes = {"time": UTC_TIME_DTYPE, "naive": pl.Datetime("us")}
    times = text.to_frame("text").select(
        "text", pl.when(pl.lit(has_format)).then(parsed).alias(name), pl.lit(None, dtypes[other_name]).alias(other_name)
    )
    if has_format.all():
        return times
    other_rows = (~has_format & text.is_not_null()).arg_true()
    other_times = text.gather(other_rows).to_frame("text").with_columns(*_parse_any_time(pl.col("text")))
    return times.with_columns(
        times[column].clone().scatter(other_rows, other_times[column]) for column in ("time", "naive")
    )


def _guess_time_format(first_text: str | None) -> tuple[str, pl.Expr, str] | None:
    """Guess the format of the first text: its pattern, an expression that parses it, and ``time`` or ``naive``."""
    text = pl.col("text")
    if first_text is None:
        return None
    match = re.fullmatch(r"[0-9]{4}([-/])[0-9]{2}\1[0-9]{2}([ T])[0-9:]{8}(?:\.[0-9]+)?(Z?)", first_text)
    if match is not None:
        date_separator, time_separator, utc_mark = match.groups()
        date_pattern = rf"[0-9]{{4}}{date_separator}[0-9]{{2}}{date_separator}[0-9]{{2}}"
        pattern = rf"^{date_pattern}{time_separator}{CLOCK_TIME_PATTERN}{utc_mark}$"
        form = f"%Y{date_separator}%m{date_separator}%d{time_separator}%H:%M:%S%.f"
        parsed = text.str.strip_suffix("Z").str.to_datetime(form, time_unit="us", strict=False, cache=False)
        if not utc_mark:
            return pattern, parsed, "naive"
        return (pattern, parsed.dt.replace_time_zone("UTC"), "time") if date_separator == "-" else None
    if re.fullmatch(EPOCH_SECONDS_ASCII_PATTERN[1:-1], first_text):
        return EPOCH_SECONDS_ASCII_PATTERN, _from_epoch(text), "time"
    return None


def _from_epoch(text: pl.Expr) -> pl.Expr:
    """Convert seconds since 1970 to instants."""
    return (text.cast(pl.Float64, strict=False) * 1e6).round().cast(pl.Int64).cast(UTC_TIME_DTYPE)


def _parse_any_time(text: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Parse time texts of any supported format to ``time`` (with a zone) and ``naive`` (without one)."""
    naive_text = text.str.extract_groups(NAIVE_TIME_PATTERN).struct
    naive = pl.concat_str(
        pl.concat_str(*(naive_text[part] for part in range(3)), separator="-"), naive_text[3], separator=" "
    ).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    offset_text = text.str.extract_groups(OFFSET_TIME_PATTERN).struct
    offset = pl.concat_str(
        offset_text[0], pl.lit("T"), offset_text[1], offset_text[2].str.replace("Z", "+00:00", literal=True)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False)
    epoch = _from_epoch(text.str.extract(EPOCH_SECONDS_PATTERN))
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch).alias("time"), naive.alias("naive")


CELL_PATTERN = r"^([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t]*(%|[A-Za-z][A-Za-z/]*)?$"
"""Text of a metric value: a number, with its unit where the cell states one, as in ``85 %``."""


def require_known_unit(metric: Metric, unit: str, location: str) -> Metric:
    """Return the metric with the unit that a column header states; raise an error if its quantity lacks that unit.

    Examples
    --------
    >>> require_known_unit(Metric("power", "W"), "mW", "a.csv").divisor
    1000.0
    """
    if unit not in metric.units:
        expected = f"{metric.quantity} in one of {', '.join(metric.units)}"
        raise TraceFormatError(location, expected, repr(unit), "State the unit in the header.")
    return replace(metric, unit=unit)


def read_wide_values(rows: Rows, columns: Mapping[str, Metric]) -> Rows:
    """Parse the metric columns of telemetry rows (one row per device and time) to a column by quantity, stored unit."""
    values: dict[str, list[pl.Series]] = {quantity: [] for quantity in DIMENSION_BY_QUANTITY}
    faults: dict[str, pl.Expr] = {}
    for column, metric in columns.items():
        value, fault = parse_cells(rows.good[column], metric)
        values[metric.quantity].append(value)
        if fault.any():
            faults[f"{column}: not a number with a known unit"] = pl.lit(fault)
    value_columns = (_first_available(series, rows.good.height).alias(name) for name, series in values.items())
    rows = rows.with_columns(*value_columns)
    return rows.reject(faults) if faults else rows


def _first_available(columns: list[pl.Series], n_rows: int) -> pl.Series:
    """Return for each row the value of the first of several columns that has one."""
    if not columns:
        return pl.Series([None], dtype=pl.Float64).new_from_index(0, n_rows)
    return columns[0] if len(columns) == 1 else pl.select(pl.coalesce(columns)).to_series()


def parse_cells(cells: pl.Series, metric: Metric) -> tuple[pl.Series, pl.Series]:
    """Parse texts of a metric to values in the stored unit, and mark those that are neither a value nor blank.

    Most cells of a column look alike: those that are a number and the unit of the first are cast directly, and only the
    others are matched by a pattern.

    Parameters
    ----------
    cells : polars.Series
        Text, or finite numbers.
    metric : Metric
        Quantity and unit of the column.

    Examples
    --------
    >>> value, fault = parse_cells(pl.Series(["400 W", "[N/A]", "0.5 kW", "2000 mW"]), Metric("power", "W"))
    >>> value.to_list(), fault.to_list()
    ([400.0, None, None, 2.0], [False, False, True, False])
    """
    is_wide = DIMENSION_BY_QUANTITY[metric.quantity] in WIDE_DIMENSIONS
    if cells.dtype == pl.Float64:
        fault = pl.Series([False]).new_from_index(0, len(cells))
        return _convert_unit(cells, metric.divisor, wide=is_wide), fault
    text = cells.str.strip_chars()
    number, divisor = _parse_numbers_with_unit(text, metric)
    is_number = number.is_finite().fill_null(False)
    value = _convert_unit(number, divisor, wide=is_wide)
    if is_number.all():
        return value, ~is_number
    other_rows = (~is_number & text.is_not_null()).arg_true()
    other_texts = text.gather(other_rows)
    parsed_texts = other_texts.unique().to_frame("text").with_columns(_parse_number_and_unit(pl.col("text"), metric))
    other_values = other_texts.to_frame("text").join(parsed_texts, on="text", how="left", maintain_order="left")
    value = pl.select(pl.when(pl.lit(is_number)).then(pl.lit(value))).to_series()
    fault = pl.Series([False]).new_from_index(0, len(text))
    return value.scatter(other_rows, other_values["value"]), fault.scatter(other_rows, other_values["fault"])


def _convert_unit(number: pl.Series, divisor: float, *, wide: bool) -> pl.Series:
    """Divide numbers by the divisor of their unit, after removing the numbers by which DCGM marks missing values.

    With `wide`, large numbers that are no such marks in energies and rates stay.
    """
    largest = number.max()
    value = number
    if number.is_nan().any() or (isinstance(largest, float) and largest >= MIN_BLANK_BY_IS_LARGE_VALUE[wide]):
        value = pl.select(replace_blank_values(pl.lit(number), wide=wide)).to_series()
    if divisor != 1:  # polars would multiply by its inverse, and be off in the last digit
        value = pl.Series(value.to_numpy() / divisor, nan_to_null=True)
    return value


def _parse_numbers_with_unit(text: pl.Series, metric: Metric) -> tuple[pl.Series, float]:
    """Parse cells that have the unit of the first cell, if any; return their numbers and the unit's divisor."""
    match = re.fullmatch(CELL_PATTERN[1:-1], text[text.is_not_null().arg_max() or 0] or "") if len(text) else None
    if match is None or match[2] is None or match[2] not in metric.units:
        return text.cast(pl.Float64, strict=False), metric.divisor
    unit = match[0][match.end(1) :]
    without_unit = text.str.strip_suffix(unit)
    divisor = metric.units[match[2]]
    if divisor != metric.divisor:  # where no unit is stated, another counts
        without_unit = pl.select(pl.when(pl.lit(text).str.ends_with(unit)).then(pl.lit(without_unit))).to_series()
    return without_unit.cast(pl.Float64, strict=False), divisor


def _parse_number_and_unit(text: pl.Expr, metric: Metric) -> tuple[pl.Expr, pl.Expr]:
    """Parse the text of a metric to its value in the stored unit, and whether it is neither a value nor blank."""
    parts = text.str.extract_groups(CELL_PATTERN)
    unit = parts.struct[1].fill_null(metric.unit)
    divisor = unit.replace_strict(metric.units, default=None, return_dtype=pl.Float64)
    number = parts.struct[0].cast(pl.Float64, strict=False)
    is_wide = DIMENSION_BY_QUANTITY[metric.quantity] in WIDE_DIMENSIONS
    fault = ~is_blank(text) & ~(number / divisor).is_finite().fill_null(False)
    return (replace_blank_values(number, wide=is_wide) / divisor).alias("value"), fault.fill_null(False).alias("fault")


def read_long_values(rows: Rows, metrics: Mapping[str, Metric]) -> Rows:
    """Parse the ``value`` texts of telemetry rows with one row per device, time and metric."""
    texts = rows.good["value"].str.strip_chars()
    number = texts.cast(pl.Float64, strict=False)
    is_number = number.is_finite().fill_null(False)
    if not is_number.all():
        other_texts = texts.filter(~is_number).unique().to_frame("text")
        is_nan = pl.col("text").cast(pl.Float64, strict=False).is_nan().fill_null(False)
        faulty_texts = other_texts.filter(~(is_blank(pl.col("text")) | is_nan))["text"].drop_nulls()
        fault = texts.is_in(faulty_texts.implode()) & ~is_number
        rows = rows.reject({"the value is not a number": pl.lit(fault)})
        finite = pl.select(pl.when(pl.lit(is_number)).then(pl.lit(number))).to_series()
        number = finite.filter(~fault.fill_null(False))
    names = rows.good["metric"].unique(maintain_order=True).drop_nulls().to_list()
    by_name = {metric_number: metrics[metric_number] for metric_number in names if metric_number in metrics}
    metric_number = pl.col("metric").cast(pl.Enum(names)).to_physical()
    wide_names = {name for name, metric in by_name.items() if DIMENSION_BY_QUANTITY[metric.quantity] in WIDE_DIMENSIONS}
    is_wide = pl.Series([name in wide_names for name in names], dtype=pl.Boolean)
    divisor = pl.Series([by_name[name].divisor if name in by_name else None for name in names], dtype=pl.Float64)
    quantity = pl.Series([by_name[name].quantity if name in by_name else None for name in names], dtype=pl.String)
    frame = rows.good.with_columns(number.alias("value")).with_columns(
        place=metric_number, quantity=pl.lit(quantity).gather(metric_number) if names else pl.lit(None, pl.String)
    )
    cleared_wide, cleared = (replace_blank_values(pl.col("value"), wide=is_wide) for is_wide in (True, False))
    if names:
        value = pl.when(pl.lit(is_wide).gather("place")).then(cleared_wide).otherwise(cleared)
        frame = frame.with_columns(value=value / pl.lit(divisor).gather("place"))
    unused = (*rows.unused, *sorted(set(names) - metrics.keys()))
    return replace(rows, good=frame.drop("place"), unused=unused)


PageParser = Callable[[Rows], Rows]
"""Function that turns the lines of one file (columns ``file``, ``line``, ``raw``) into rows with more columns."""

STATE_ORIGIN_ADVICE = "Give the time of the first row: --origin 2026-01-31T12:00:00Z."
"""Advice of the error for telemetry files without times: give the time of the first row."""


@dataclass(frozen=True)
class TelemetryOptions:
    """Facts that a telemetry file leaves out, such as time zone and node, as the user states them.

    Attributes
    ----------
    tz : str, optional
        Zone of times without an offset.
    origin : datetime or str, optional
        Instant of the first row, for files without times.
    interval_s : float, optional
        Time between samples, for files without times [s].
    node : str, optional
        Node of files that do not name it; otherwise the file name up to its first dot.
    gpu : int, optional
        Number of the GPU of files that do not name it.
    columns : tuple of str
        Fields of a file without a header, as they were queried.
    query : str, optional
        Query of a saved Prometheus response.
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
        """Return the node name of a file that does not name it: the stated one, else the file name up to its first dot.

        Examples
        --------
        >>> TelemetryOptions().node_of(Path("n07.dmon.txt"))
        'n07'
        """
        return self.node or printable_file_name(path).split(".")[0]

    def nth_instant(self, number: pl.Expr, location: str, default_s: float | None = None) -> pl.Expr:
        """Compute the instants of samples without times from their 0-based number.

        Parameters
        ----------
        number : polars.Expr
            Number of the sample.
        location : str
            File, for messages.
        default_s : float, optional
            Interval of the source where none is stated [s].

        Raises
        ------
        TraceFormatError
            If the origin is not stated, or the interval is neither stated nor known.
        """
        if self.origin is None:
            raise TraceFormatError(location, "times in the file, or --origin", "neither", STATE_ORIGIN_ADVICE)
        step = default_s if self.interval_s is None else self.interval_s
        if step is None:
            todo = "Give the sampling interval in seconds, for example --interval 30."
            raise TraceFormatError(location, "times in the file, or an interval", "neither", todo)
        return pl.lit(parse_origin(self.origin), UTC_TIME_DTYPE) + seconds_to_duration(number * step)


def telemetry_reader(sniff: Sniffer) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Return a decorator that registers a telemetry reader with the test that recognises its files.

    The reader then takes a :class:`TelemetryOptions`, or its fields as keyword arguments.
    """

    def decorate(reader: Callable[..., Dataset]) -> Callable[..., Dataset]:
        """Return the reader, which then takes a TelemetryOptions, or its fields as keyword arguments."""

        @register_sniffer(sniff)
        @functools.wraps(reader)
        def read_with_options(
            paths: Sequence[str | Path],
            options: TelemetryOptions | None = None,
            output: object = None,
            **option_values: Any,  # noqa: ANN401 - fields of TelemetryOptions
        ) -> Dataset:
            """Read telemetry files; facts that the files leave out are given as options, or as fields of them."""
            return reader(paths, options or TelemetryOptions(**option_values), *([] if output is None else [output]))

        return read_with_options

    return decorate


def first_line_names_columns(*columns: str) -> Sniffer:
    """Return a test (sniffer) that recognises files whose first line names all these columns."""
    lookaheads = "".join(rf'(?=(?:.*[,"\s])?{re.escape(column)}[",\s])' for column in columns)
    return matches_pattern(rf"\A{lookaheads}")


def read_pages(paths: Sequence[str | Path], parse: PageParser, *, source: str, allow_duplicates: bool = False) -> Rows:
    """Read telemetry files and parse each file as a whole.

    Parameters
    ----------
    paths : sequence of str or Path
        Files of the source.
    parse : callable
        Function from the lines of a file to rows.
    source : str
        Name of the source, for messages.
    allow_duplicates : bool
        Accept files with equal bytes.
    """
    blocks = FileBlocks(paths, WHOLE_FILE_BYTES, MAX_TEXT_BYTES)
    pages = read_page_blocks(blocks, lambda page, _: parse(page), source=source, allow_duplicates=allow_duplicates)
    return concat_blocks(pages, blocks)


def read_page_blocks(
    blocks: FileBlocks, parse: Callable[[Rows, str | None], Rows], *, source: str, allow_duplicates: bool = False
) -> Iterator[Rows]:
    """Read telemetry files block by block; later blocks are parsed with the first line of their file, its header.

    Parameters
    ----------
    blocks : FileBlocks
        Files in blocks of lines.
    parse : callable
        Function from the lines of a block, and the first line of its file or None, to rows.
    source : str
        Name of the source, for messages.
    allow_duplicates : bool
        Accept files with equal bytes.
    """
    first_lines: dict[int, str] = {}

    blank = pl.col("raw").str.strip_chars() == ""
    for number, block, page in iterate_line_blocks(blocks, blank, source=source, allow_duplicates=allow_duplicates):
        if page.good.width:
            first_line = str(page.good["raw"][0])
            page = parse(page, first_lines.get(number))
            first_lines.setdefault(number, first_line)
            if block.has_controls:
                page = page.reject({CONTROL_CHARACTER_REASON: pl.col("raw").str.contains(CONTROL_CHARACTER_PATTERN)})
        yield page


def page_path(page_rows: Rows) -> Path:
    """Return the path of the file that the rows are from; all must be of one file."""
    return page_rows.files[int(page_rows.good["file"][0])].path


def keep_data_lines(page_rows: Rows, is_data: pl.Expr) -> Rows:
    """Keep the lines where `is_data` is true; comment and header lines are not counted as rows."""
    data = page_rows.good.filter(is_data)
    return replace(page_rows, good=data, count=page_rows.count - (page_rows.good.height - data.height))
