"""Readers of ``nvidia-smi`` queries in CSV, and of transcripts of its commands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import NAME_SOURCE_FIX, TraceFormatError, examples
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Processes
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import POSITION_COLUMNS, REPEATED_HEADER_REASON, Rows, concat_rows
from gpuplanner.ingest.quality_report import source_finding
from gpuplanner.ingest.source_definition import matches_pattern
from gpuplanner.ingest.source_fields import convert_to_utc, source_values, validate_time_zone
from gpuplanner.ingest.telemetry.metric_definitions import DIMENSION_BY_QUANTITY, SMI_QUERY_METRICS, Metric, is_blank
from gpuplanner.ingest.telemetry.monitor_logs import assumption_findings, file_node_findings, node_by_file
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import SampleBuffer
from gpuplanner.ingest.telemetry.sample_table_writer import (
    SampleOutput,
    SourceNotes,
    build_buffered_telemetry,
    build_telemetry,
)
from gpuplanner.ingest.telemetry.telemetry_row_parsing import (
    TelemetryOptions,
    first_line_names_columns,
    page_path,
    parse_times,
    read_page_blocks,
    read_pages,
    read_wide_values,
    require_known_unit,
    telemetry_reader,
)
from gpuplanner.ingest.text_files import FileBlocks

SMI_FIELD_HEADER_PATTERN = re.compile(r"^([A-Za-z_.]+)(?:\s*\[(.+)\])?$")
"""Column header of a query: the field, with its unit if stated, as in ``power.draw [W]``."""

COLUMN_BY_SMI_FIELD = source_values("nvidia-smi field")
"""Field of ``nvidia-smi --query-gpu`` → column of telemetry rows."""
CELL_PADDING = ' \t"'
"""Characters that are stripped around the cells of nvidia-smi's CSV."""
SMI_QUERY_SOURCE = "nvidia-smi"
"""Name of the source ``nvidia-smi --query-gpu`` in messages and provenance."""


@telemetry_reader(matches_pattern(r"\A.*(?:power\.draw|memory\.used|utilization\.gpu)"))
def read_smi_query(
    paths: Sequence[str | Path], options: TelemetryOptions, output: SampleOutput | None = None
) -> Dataset:
    r"""Read the CSV of ``nvidia-smi --query-gpu``.

    Where the header or a cell states a unit, that unit counts; otherwise nvidia-smi's own: MiB, W, %.
    A column ``gpu``, which some scripts add, is believed before ``index``, which is 0 in every container.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.csv"
    ...     _ = path.write_text("timestamp, index, power.draw [W]\n2026/07/14 09:00:26.5, 0, [N/A]\n")
    ...     read_smi_query([path], TelemetryOptions(tz="UTC")).samples["node", "power_w"].row(0)
    ('n1', None)
    """
    output = output or SampleOutput()
    blocks = FileBlocks(paths, output.block_bytes)
    sample_buffer = SampleBuffer(stream=output.open_spill(), keeps_text=output.folder is None)
    row_counts: RowCounts = {}
    has_node_names, n_counted_times = True, 0
    parse = partial(parse_query, options=options, row_counts=row_counts)
    for rows in read_page_blocks(blocks, parse, source=SMI_QUERY_SOURCE):
        sample_buffer.add_rows(rows)
        if rows.good.width:
            has_node_names &= bool(rows.good["named"].all())
            n_counted_times += int(rows.good["counted"].sum())
    findings = assumption_findings(has_node_names, n_counted_times, blocks.files, sample_buffer.count, options)
    notes = SourceNotes(SMI_QUERY_SOURCE, options.tz, extra_findings=findings)
    return build_buffered_telemetry(sample_buffer, blocks.files, notes, output=output, reread_blocks=blocks)


RowCounts = dict[tuple[object, ...], int]
"""File, node and GPU → number of rows read so far, by which rows without times are counted from the origin."""


def parse_query(page_rows: Rows, first_line: str | None, options: TelemetryOptions, row_counts: RowCounts) -> Rows:
    """Parse the CSV lines of one ``nvidia-smi --query-gpu`` run to time, node, GPU and quantities.

    Parameters
    ----------
    page_rows : Rows
        Lines of a file, or of a block of one.
    first_line : str, optional
        Header of the file, for a later block.
    options : TelemetryOptions
        Time zone, origin, interval, node and GPU that the user stated for files that lack them.
    row_counts : dict
        Rows so far of each GPU, which is updated.
    """
    path = page_path(page_rows)
    header = None if options.columns else str(first_line or page_rows.good["raw"][0])
    titles = [title.strip(CELL_PADDING) for title in (options.columns or (header or "").split(","))]
    metrics = _map_titles_to_metrics(titles, str(path))
    if header is not None and first_line is None:
        page_rows = replace(page_rows, good=page_rows.good.slice(1), count=page_rows.count - 1)
    fields = pl.col("fields")
    page_rows = page_rows.with_columns(fields=pl.col("raw").str.split(","))
    page_rows = page_rows.reject(
        {
            REPEATED_HEADER_REASON: pl.lit(False) if header is None else pl.col("raw") == header,
            "fewer fields than columns": fields.list.len() < len(titles),
            "more fields than columns": fields.list.len() > len(titles),
        }
    )
    positions = {_field_name(title): position for position, title in enumerate(titles)}
    position_by_name = {column: positions[name] for name, column in COLUMN_BY_SMI_FIELD.items() if name in positions}
    position_by_name |= {title: titles.index(title) for title in metrics}
    cells = {
        name: fields.list.get(position).str.strip_chars(CELL_PADDING) for name, position in position_by_name.items()
    }
    page_rows = replace(page_rows, good=page_rows.good.with_columns(**cells).drop("fields"))
    page_rows = read_wide_values(_add_time_node_gpu(page_rows, position_by_name, options, path, row_counts), metrics)
    has_mig = (pl.col("mig") == "Enabled").fill_null(False) if "mig" in position_by_name else pl.lit(False)
    if "board" not in position_by_name:
        page_rows = page_rows.with_columns(board=pl.lit(None, pl.String))
    gpu_model = pl.when(~is_blank(pl.col("board"))).then("board")
    columns = (*POSITION_COLUMNS, "time", "node", "gpu", "named", "counted", *DIMENSION_BY_QUANTITY)
    selected = page_rows.good.select(columns, mig_enabled=has_mig, board=gpu_model)
    unused = tuple(title for title in titles if title not in metrics and _field_name(title) not in COLUMN_BY_SMI_FIELD)
    return replace(page_rows, good=selected, unused=unused)


def _field_name(title: str) -> str:
    """Return the field of a column header without its unit: ``power.draw [W]`` is ``power.draw``."""
    match = SMI_FIELD_HEADER_PATTERN.match(title)
    return match[1] if match else title


def _map_titles_to_metrics(titles: Sequence[str], location: str) -> dict[str, Metric]:
    """Map column headers to metrics; raise an error for one that differs from a known field only in punctuation."""
    metrics = {}
    for title in titles:
        match = SMI_FIELD_HEADER_PATTERN.match(title)
        if match and match[1] in SMI_QUERY_METRICS:
            metric = SMI_QUERY_METRICS[match[1]]
            unit = {None: metric.unit, "bytes": "B"}.get(match[2], match[2])
            metrics[title] = require_known_unit(metric, unit, f"{location}, column {title!r}")
    letters = {re.sub("[^a-z]", "", name): name for name in SMI_QUERY_METRICS}
    renamed = {
        title: letters[letters_only]
        for title in titles
        if (letters_only := re.sub("[^a-z]", "", _field_name(title).casefold())) in letters and title not in metrics
    }
    if renamed or not metrics:
        expected = f"columns {', '.join(map(repr, renamed.values() or SMI_QUERY_METRICS))}"
        got = f"columns {examples(list(renamed) or [title[:40] for title in titles])}"
        todo = "Was a column renamed? Without a header, give the fields of the query as columns."
        raise TraceFormatError(location, expected, got, todo)
    return metrics


def _add_time_node_gpu(
    page_rows: Rows, known_names: Collection[str], options: TelemetryOptions, path: Path, row_counts: RowCounts
) -> Rows:
    """Add time, node and GPU number to each row of a query.

    Parameters
    ----------
    page_rows : Rows
        Rows with the text columns of the query.
    known_names : collection of str
        Columns that the query has.
    options : TelemetryOptions
        Time zone, origin, interval, node and GPU that the user stated for files that lack them.
    path : Path
        The file, for messages.
    row_counts : dict
        Rows so far of each GPU, which is updated.
    """
    node = pl.lit(options.node_of(path))
    has_node_name = pl.lit(False)
    if "host" in known_names and options.node is None:
        has_node_name = ~is_blank(pl.col("host"))
        node = pl.when(has_node_name).then("host").otherwise(node)
    number_column = next((name for name in ("gpu_text", "index") if name in known_names), None)
    if number_column is not None:
        gpu = pl.col(number_column).cast(pl.Int32, strict=False)
    elif options.gpu is not None:
        gpu = pl.lit(options.gpu, pl.Int32)
    else:
        expected, todo = "a column 'index' or 'gpu'", "If all rows are of one GPU, give its number as gpu."
        raise TraceFormatError(str(path), expected, "neither", todo)
    are_times_counted = "timestamp" not in known_names
    columns = {"node": node, "named": has_node_name, "gpu": gpu, "counted": pl.lit(are_times_counted)}
    page_rows = page_rows.with_columns(**columns)
    if not are_times_counted:
        return parse_times(page_rows, "timestamp", options.tz, str(path))
    device_columns = ["file", "node", "gpu"]
    counts = page_rows.good.group_by(device_columns, maintain_order=True).agg(rows=pl.len().cast(pl.Int64))
    rows_before = [row_counts.get(key, 0) for key in counts.select(device_columns).rows()]
    counts = counts.with_columns(before=pl.Series(rows_before, dtype=pl.Int64))
    row_counts.update({tuple(device): rows + before for *device, rows, before in counts.rows()})
    good = page_rows.good.join(counts, on=device_columns, how="left", nulls_equal=True, maintain_order="left")
    row_number = pl.int_range(pl.len()).over(device_columns) + pl.col("before")
    return replace(page_rows, good=good).with_columns(time=options.nth_instant(row_number, str(path)))


SMI_APPS_SOURCE = "smi-apps"
"""Name of the source ``nvidia-smi --query-compute-apps`` in messages and provenance."""

APPS_FIELDS = ("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory [MiB]")
"""Columns of ``--query-compute-apps`` in their order."""


@telemetry_reader(first_line_names_columns("pid", "process_name"))
def read_smi_apps(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read the CSV of ``nvidia-smi --query-compute-apps``, with header and units.

    The list identifies GPUs by UUID only: the number of the GPU must be stated, and a list of several GPUs is refused.
    A header without rows means that there was no process: no samples, no processes.
    """
    if options.gpu is None:
        todo = "Give the number of the GPU as gpu."
        raise TraceFormatError(SMI_APPS_SOURCE, "the GPU that the list is of", "no number", todo)
    rows = read_pages(paths, _split_app_fields, source=SMI_APPS_SOURCE, allow_duplicates=True)
    if rows.good["gpu_uuid"].n_unique() > 1:
        got = f"{rows.good['gpu_uuid'].n_unique()} UUIDs"
        raise TraceFormatError(SMI_APPS_SOURCE, "processes of one GPU", got, "Split the list by gpu_uuid.")
    rows = parse_times(rows, "timestamp", options.tz, SMI_APPS_SOURCE)
    number = pl.col("pid").cast(pl.Int64, strict=False)
    rows = rows.reject({"pid: not a number": number.is_null()})
    rows = read_wide_values(rows, {APPS_FIELDS[-1]: Metric("memory_used", "MiB")})
    good = rows.good.with_columns(gpu=pl.lit(options.gpu, pl.Int32), node=node_by_file(rows, options))
    process_columns = {"pid": number, "kind": pl.lit("C"), "command": pl.col("process_name")}
    process_rows = good.select("time", "node", "gpu", **process_columns, memory_gib="memory_used")
    processes = conform(process_rows, Processes, source=SMI_APPS_SOURCE)
    findings = file_node_findings(rows.files, rows.count, options)
    rows = replace(rows, good=good.with_columns(memory_used=pl.lit(None, pl.Float64)))
    notes = SourceNotes(SMI_APPS_SOURCE, options.tz, extra_findings=findings, processes=processes, allow_empty=True)
    return build_telemetry(rows, notes)


def _split_app_fields(page_rows: Rows) -> Rows:
    """Split compute-apps lines into their fields at commas; the process name, between pid and memory, may have some."""
    path = page_path(page_rows)
    names = [name.strip() for name in page_rows.good["raw"][0].split(",")]
    missing = [name for name in APPS_FIELDS if name not in names]
    if missing or names.index("pid") + 2 != names.index("process_name") + 1 or names[-1] != APPS_FIELDS[-1]:
        expected = f"columns {', '.join(APPS_FIELDS)}, in this order"
        todo = "Query timestamp,gpu_uuid,pid,process_name,used_gpu_memory with --format=csv."
        raise TraceFormatError(str(path), expected, f"columns {', '.join(names)[:200]}", todo)
    field_patterns = [r"(.*)" if name == "process_name" else r"([^,]*)" for name in names]
    field_columns = pl.col("raw").str.extract_groups(r"^" + r",\s*".join(field_patterns) + r"$").struct
    data_rows = replace(page_rows, good=page_rows.good.slice(1), count=page_rows.count - 1)
    fields = {
        name: field_columns[position].str.strip_chars() for position, name in enumerate(names) if name in APPS_FIELDS
    }
    data_rows = data_rows.with_columns(**fields)
    return data_rows.reject({"the fields do not match the header": pl.col("timestamp").is_null()})


HEADING_TIME_PATTERN = re.compile(r"^#?\s*\w+:\s+(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))\s*$")
"""Heading line of a transcript with an instant and its zone, such as ``collected_at: 2026-06-22T21:04:17Z``."""
MAX_HEADING_DELAY = timedelta(minutes=5)
"""Longest time from the instant in a heading to the first row, when the UTC offset of rows is inferred."""
UTC_OFFSET_STEP = timedelta(minutes=30)
"""Step between the UTC offsets that are tried for local times."""
MAX_UTC_OFFSET = timedelta(hours=14)
"""Largest UTC offset of a zone; except for UTC itself, none is below an hour."""
MAX_CONSTANT_OFFSET_SPAN = timedelta(days=1)
"""Longest time after a heading for which local times surely have its UTC offset; later, clocks may change."""


def find_heading_time(lines: Iterable[str]) -> datetime | None:
    """Find the instant in a line such as ``collected_at: 2026-06-22T21:04:17Z``; None unless there is exactly one.

    Examples
    --------
    >>> find_heading_time(["# a heading", "collected_at:   2026-06-22T21:04:17Z", "os: windows"]).isoformat()
    '2026-06-22T21:04:17+00:00'
    """
    times = {match[1] for line in lines if (match := HEADING_TIME_PATTERN.match(line))}
    try:
        return datetime.fromisoformat(times.pop()) if len(times) == 1 else None
    except ValueError:
        return None


def infer_utc_offset(heading_time: datetime, local_time: datetime) -> timedelta | None:
    """Infer the UTC offset of a clock that showed `local_time` just after an instant; None if no offset fits.

    Examples
    --------
    >>> str(infer_utc_offset(datetime.fromisoformat("2026-06-22T21:04:17Z"), datetime(2026, 6, 22, 23, 4, 18)))
    '2:00:00'
    """
    difference = local_time - heading_time.astimezone(UTC).replace(tzinfo=None)
    offset = UTC_OFFSET_STEP * round(difference / UTC_OFFSET_STEP)
    is_possible = not offset or timedelta(hours=1) <= abs(offset) <= MAX_UTC_OFFSET
    return offset if is_possible and abs(difference - offset) <= MAX_HEADING_DELAY else None


def choose_zone(heading_time: datetime, local_times: pl.Series, tz: str | None, location: str) -> str | None:
    """Choose the zone of local times under a heading: the stated one if it fits, else that of the heading.

    Parameters
    ----------
    heading_time : datetime
        Instant in the heading, with its zone.
    local_times : polars.Series
        Local times under it.
    tz : str, optional
        Zone that the user stated.
    location : str
        File, for messages.

    Returns
    -------
    str or None
        Name of a zone or an offset; None if it is unknown.

    Examples
    --------
    >>> stated = datetime.fromisoformat("2026-06-22T21:04:17Z")
    >>> choose_zone(stated, pl.Series([datetime(2026, 6, 22, 23, 4, 18)]), None, "n1.txt")
    '+02:00'
    """
    first, last = local_times.min(), local_times.max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return tz
    offset = infer_utc_offset(heading_time, first)
    if offset is None:
        return tz
    name = _format_offset(offset)
    if tz is not None:
        instant, is_ambiguous = convert_to_utc(pl.DataFrame({"local": [first]}), ["local"], validate_time_zone(tz)).row(
            0
        )
        if instant is None or is_ambiguous or abs(first - instant.replace(tzinfo=None) - offset) <= MAX_HEADING_DELAY:
            return tz
        got = f"{first} in {tz}, which is {instant:%Y-%m-%d %H:%M:%S} UTC"
        todo = f"The times show the offset {name}: state such a zone or none. If the heading is wrong, take it out."
        raise TraceFormatError(location, f"times that fit the heading, {heading_time}", got, todo)
    if last - first > MAX_CONSTANT_OFFSET_SPAN:
        return None
    if offset % timedelta(hours=1):
        todo = "State their zone, for example tz='Asia/Kolkata' (--tz Asia/Kolkata)."
        raise TraceFormatError(location, "times with their zone", f"{first}, which shows {name}", todo)
    return name if offset else "UTC"


def _format_offset(offset: timedelta) -> str:
    """Format a UTC offset as ``+02:00``."""
    minutes = round(offset / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


SMI_TRANSCRIPT_SOURCE = "smi-transcript"
"""Name of the source of nvidia-smi transcripts in messages and provenance."""

SMI_QUERY_HEADING = "# $ nvidia-smi --query-gpu=..."
"""Heading of a query in a transcript, for messages."""

SMI_QUERY_HEADING_PATTERN = r"^# \$ nvidia-smi --query-gpu="
"""Line of a transcript that heads the output of ``nvidia-smi --query-gpu``."""

TRANSCRIPT_COMMAND_PREFIX = "# $ "
"""Beginning of a transcript line that shows a command."""

TRANSCRIPT_RULE_PREFIX = "#" * 20
"""Beginning of a transcript line that is a horizontal rule between parts."""

SMI_TIME_PATTERN = r"(?:^|,)\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(?:\.\d+)?\s*(?:,|$)"
"""A time as nvidia-smi prints it, in any column."""


@telemetry_reader(matches_pattern(r"\A#{20,}"))
def read_smi_transcript(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    """Read the CSV under each ``# $ nvidia-smi --query-gpu=...`` heading of a transcript.

    Rows of other commands are not telemetry over time and are not counted. nvidia-smi prints local times; where the
    transcript begins with an instant that has a zone, as ``collected_at: 2026-06-22T21:04:17Z``, the first row reveals
    their offset.
    """
    rows = read_pages(paths, lambda page: _parse_transcript(page, options), source=SMI_TRANSCRIPT_SOURCE)
    taken = rows.good.filter(pl.lit(options.tz is None) & pl.col("zone").is_not_null())
    has_node_names, n_counted_times = bool(rows.good["named"].all()), int(rows.good["counted"].sum())
    findings = assumption_findings(has_node_names, n_counted_times, rows.files, rows.count, options)
    zone = options.tz
    if taken.height:
        zone = ", ".join(taken["zone"].unique().sort())
        example = f"{rows.file_names()[taken['file'][0]]}: {taken['zone'][0]}"
        findings.insert(0, source_finding("rows: zone of the heading", taken.height, example))
    return build_telemetry(rows, SourceNotes(SMI_TRANSCRIPT_SOURCE, zone, extra_findings=findings))


def _parse_transcript(page_rows: Rows, options: TelemetryOptions) -> Rows:
    """Parse every part of a transcript that is a query of GPUs."""
    raw, is_rule = pl.col("raw"), pl.col("raw").str.starts_with(TRANSCRIPT_RULE_PREFIX)
    lines = page_rows.good.with_columns(part=is_rule.cum_sum())
    numbers = lines.filter(raw.str.contains(SMI_QUERY_HEADING_PATTERN))["part"].unique().sort().to_list()
    parts = [
        replace(page_rows, good=part.select(page_rows.good.columns), count=part.height, blank=0)
        for number in numbers
        if (part := lines.filter(pl.col("part") == number + 1, ~is_rule)).height
    ]
    if not parts:
        got = "no output under such a heading"
        raise TraceFormatError(str(page_path(page_rows)), f"a heading {SMI_QUERY_HEADING!r}", got, NAME_SOURCE_FIX)
    part_hints = replace(options, tz=_choose_transcript_zone(page_rows, parts, options))
    rows = concat_rows(page_rows.files, [parse_query(part, None, part_hints, {}) for part in parts])
    return rows.with_columns(zone=pl.lit(part_hints.tz, pl.String))


def _choose_transcript_zone(page_rows: Rows, parts: Sequence[Rows], options: TelemetryOptions) -> str | None:
    """Choose the zone of the times of all parts: the stated one, or the one that the heading reveals."""
    raw = page_rows.good["raw"]
    heading_time = find_heading_time(raw.head(raw.str.starts_with(TRANSCRIPT_COMMAND_PREFIX).arg_max() or 0))
    stamps = [part.good["raw"].str.extract(SMI_TIME_PATTERN).drop_nulls() for part in parts]
    local = pl.concat(stamps).str.to_datetime("%Y/%m/%d %H:%M:%S", strict=False)
    return (
        options.tz if heading_time is None else choose_zone(heading_time, local, options.tz, str(page_path(page_rows)))
    )
