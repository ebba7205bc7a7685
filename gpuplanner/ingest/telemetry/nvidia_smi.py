"""``nvidia-smi`` queries in CSV, and transcripts of its commands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import OTHER_SOURCE, TraceFormatError, examples
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Processes
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import HEADER_AGAIN, PLACE, Rows, together
from gpuplanner.ingest.quality_report import Finding, source_finding
from gpuplanner.ingest.source_definition import matches
from gpuplanner.ingest.source_fields import known_zone, to_utc
from gpuplanner.ingest.telemetry.metric_definitions import QUANTITIES, SMI_QUERY, Metric, is_blank
from gpuplanner.ingest.telemetry.monitor_logs import found_on_trust, node_by_file, node_finding
from gpuplanner.ingest.telemetry.sample_buffer import Gathering
from gpuplanner.ingest.telemetry.sample_table import Story, Way, finish, telemetry_of
from gpuplanner.ingest.telemetry.telemetry_files import (
    Hints,
    header_begins,
    known_unit,
    path_of,
    read_page_blocks,
    read_pages,
    read_wide,
    reads,
    with_instants,
)
from gpuplanner.ingest.text_files import FileBlocks

TITLE = re.compile(r"^([A-Za-z_.]+)(?:\s*\[(.+)\])?$")
"""A field of the query, and its unit where the header states one."""

FACTS = {
    "timestamp": "timestamp",
    "index": "index",
    "gpu": "gpu_text",
    "name": "board",
    "hostname": "host",
    "mig.mode.current": "mig",
}
BLANKS = ' \t"'
QUERY_SOURCE = "nvidia-smi"


@reads(matches(r"\A.*(?:power\.draw|memory\.used|utilization\.gpu)"))
def read_smi_query(paths: Sequence[str | Path], hints: Hints, way: Way | None = None) -> Dataset:
    r"""Read the CSV of ``nvidia-smi --query-gpu``.

    Where the header or a cell states a unit, that unit counts; otherwise nvidia-smi's own: MiB, W, %.
    A column ``gpu``, which some scripts add, is believed before ``index``, which is 0 in every container.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.csv"
    ...     _ = path.write_text("timestamp, index, power.draw [W]\n2026/07/14 09:00:26.5, 0, [N/A]\n")
    ...     read_smi_query([path], Hints(tz="UTC")).samples["node", "power_w"].row(0)
    ('n1', None)
    """
    way = way or Way()
    blocks = FileBlocks(paths, way.block_bytes)
    gathered = Gathering(stream=way.room(), keeps_text=way.into is None)
    turns: dict[int, Turns] = {}
    named, counted = True, 0

    def parse(page: Rows, first: str | None) -> Rows:
        number = int(page.good["file"][0])
        return parse_query(page, hints, first, turns.setdefault(number, {}))

    for rows in read_page_blocks(blocks, parse, source=QUERY_SOURCE):
        if rows.good.width and "named" in rows.good.columns:
            named &= bool(rows.good["named"].all())
            counted += int(rows.good["counted"].sum())
            gathered.add(rows)
        else:
            gathered.blank += rows.blank
    more = found_on_trust(named, counted, blocks.files, gathered.count, hints)
    story = Story(QUERY_SOURCE, hints.tz, more=more)
    return finish(gathered, blocks.files, story, way=way, again=blocks)


def query_telemetry(rows: Rows, source: str, hints: Hints, assumed: Sequence[Finding] = ()) -> Dataset:
    """Telemetry of rows of :func:`parse_query`, with what had to be taken on trust."""
    named, counted = bool(rows.good["named"].all()), int(rows.good["counted"].sum())
    more = [*assumed, *found_on_trust(named, counted, rows.files, rows.count, hints)]
    return telemetry_of(rows, Story(source, hints.tz, more=more))


Turns = dict[tuple[str | None, int | None], int]
"""Node and GPU → rows so far, of a file without times."""


def parse_query(page: Rows, hints: Hints, first: str | None = None, turns: Turns | None = None) -> Rows:
    """Rows of one output: time, node, GPU and quantities."""
    path = path_of(page)
    header = None if hints.columns else str(first or page.good["raw"][0])
    titles = [title.strip(BLANKS) for title in (hints.columns or (header or "").split(","))]
    metrics = _metrics(titles, str(path))
    if header is not None and first is None:
        page = replace(page, good=page.good.slice(1), count=page.count - 1)
    fields = pl.col("fields")
    page = page.with_columns(fields=pl.col("raw").str.split(","))
    page = page.reject(
        {
            HEADER_AGAIN: pl.lit(False) if header is None else pl.col("raw") == header,
            "fewer fields than columns": fields.list.len() < len(titles),
            "more fields than columns": fields.list.len() > len(titles),
        }
    )
    places = {_base(title): place for place, title in enumerate(titles)}
    wanted = {FACTS[base]: places[base] for base in FACTS if base in places}
    wanted |= {title: titles.index(title) for title in metrics}
    cells = {name: fields.list.get(place).str.strip_chars(BLANKS) for name, place in wanted.items()}
    page = replace(page, good=page.good.with_columns(**cells).drop("fields"))
    page = read_wide(_located(page, wanted, hints, path, turns), metrics)
    mig = (pl.col("mig") == "Enabled").fill_null(False) if "mig" in wanted else pl.lit(False)
    if "board" not in wanted:
        page = page.with_columns(board=pl.lit(None, pl.String))
    gpu_model = pl.when(~is_blank(pl.col("board"))).then("board")
    columns = (*PLACE, "time", "node", "gpu", "named", "counted", *QUANTITIES)
    kept = page.good.select(columns, mig_enabled=mig, board=gpu_model)
    unused = tuple(title for title in titles if title not in metrics and _base(title) not in FACTS)
    return replace(page, good=kept, unused=unused)


def _base(title: str) -> str:
    """Name of a field, without its unit."""
    match = TITLE.match(title)
    return match[1] if match else title


def _metrics(titles: Sequence[str], where: str) -> dict[str, Metric]:
    """Titles that are quantities. One that differs from a known name in punctuation alone was renamed."""
    metrics = {}
    for title in titles:
        match = TITLE.match(title)
        if match and match[1] in SMI_QUERY:
            metric = SMI_QUERY[match[1]]
            unit = {None: metric.unit, "bytes": "B"}.get(match[2], match[2])
            metrics[title] = known_unit(metric, unit, f"{where}, column {title!r}")
    letters = {re.sub("[^a-z]", "", name): name for name in SMI_QUERY}
    renamed = {
        title: letters[plain]
        for title in titles
        if (plain := re.sub("[^a-z]", "", _base(title).casefold())) in letters and title not in metrics
    }
    if renamed or not metrics:
        expected = f"columns {', '.join(map(repr, renamed.values() or SMI_QUERY))}"
        got = f"columns {examples(list(renamed) or [title[:40] for title in titles])}"
        todo = "Was a column renamed? Without a header, give the fields of the query as columns."
        raise TraceFormatError(where, expected, got, todo)
    return metrics


def _located(page: Rows, wanted: Collection[str], hints: Hints, path: Path, turns: Turns | None = None) -> Rows:
    """Time, node and GPU number of each row."""
    node = pl.lit(hints.node_of(path))
    named = pl.lit(False)
    if "host" in wanted and hints.node is None:
        named = ~is_blank(pl.col("host"))
        node = pl.when(named).then("host").otherwise(node)
    number = next((name for name in ("gpu_text", "index") if name in wanted), None)
    if number is not None:
        gpu = pl.col(number).cast(pl.Int32, strict=False)
    elif hints.gpu is not None:
        gpu = pl.lit(hints.gpu, pl.Int32)
    else:
        expected, todo = "a column 'index' or 'gpu'", "If all rows are of one GPU, give its number as gpu."
        raise TraceFormatError(str(path), expected, "neither", todo)
    counted = "timestamp" not in wanted
    columns = {"node": node, "named": named, "gpu": gpu, "counted": pl.lit(counted)}
    page = page.with_columns(**columns)
    if not counted:
        return with_instants(page, "timestamp", hints.tz, str(path))
    turn = pl.int_range(pl.len()).over("node", "gpu")
    if turns is not None:
        device = ["node", "gpu"]
        counts = page.good.group_by(device, maintain_order=True).len()
        earlier = pl.Series([turns.get(key, 0) for key in counts.select(device).rows()], dtype=pl.Int64)
        counts = counts.with_columns(before=earlier)
        good = page.good.join(counts, on=device, how="left", nulls_equal=True, maintain_order="left")
        page = replace(page, good=good)
        turn = turn + pl.col("before")
        turns.update({(node, gpu): before + count for node, gpu, count, before in counts.rows()})
    return page.with_columns(time=hints.nth_instant(turn, str(path)))


APPS = "smi-apps"
MEMORY = Metric("memory_used", "MiB")
APP_FIELDS = ("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory [MiB]")


@reads(header_begins("pid", "process_name"))
def read_smi_apps(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read the CSV of ``nvidia-smi --query-compute-apps``, with header and units.

    The list names GPUs by UUID alone: the number of the GPU must be stated, and a list that speaks of several
    GPUs is refused. A header without rows says that there was no process: no samples, no processes.
    """
    if hints.gpu is None:
        todo = "Give the number of the GPU as gpu."
        raise TraceFormatError(APPS, "the GPU that the list is of", "no number", todo)
    rows = read_pages(paths, _cut_apps, source=APPS, twins=True)
    if rows.good["gpu_uuid"].n_unique() > 1:
        got = f"{rows.good['gpu_uuid'].n_unique()} UUIDs"
        raise TraceFormatError(APPS, "processes of one GPU", got, "Split the list by gpu_uuid.")
    rows = with_instants(rows, "timestamp", hints.tz, APPS)
    number = pl.col("pid").cast(pl.Int64, strict=False)
    rows = read_wide(rows.reject({"pid: not a number": number.is_null()}), {APP_FIELDS[-1]: MEMORY})
    good = rows.good.with_columns(gpu=pl.lit(hints.gpu, pl.Int32), node=node_by_file(rows, hints))
    named = {"pid": number, "kind": pl.lit("C"), "command": pl.col("process_name")}
    seen = good.select("time", "node", "gpu", **named, memory_gib="memory_used")
    processes = conform(seen, Processes, where=APPS)
    more = node_finding(rows.files, rows.count, hints)
    rows = replace(rows, good=good.with_columns(memory_used=pl.lit(None, pl.Float64)))
    return telemetry_of(rows, Story(APPS, hints.tz, more=more, processes=processes, empty_is_fine=True))


def _cut_apps(page: Rows) -> Rows:
    """Cut lines at their commas; the name of a process is what stands between the pid and the memory."""
    path = path_of(page)
    names = [name.strip() for name in page.good["raw"][0].split(",")]
    missing = [name for name in APP_FIELDS if name not in names]
    if missing or names.index("pid") + 2 != names.index("process_name") + 1 or names[-1] != APP_FIELDS[-1]:
        expected = f"columns {', '.join(APP_FIELDS)}, in this order"
        todo = "Query timestamp,gpu_uuid,pid,process_name,used_gpu_memory with --format=csv."
        raise TraceFormatError(str(path), expected, f"columns {', '.join(names)[:200]}", todo)
    parts = [r"(.*)" if name == "process_name" else r"([^,]*)" for name in names]
    cut = pl.col("raw").str.extract_groups(r"^" + r",\s*".join(parts) + r"$").struct
    body = replace(page, good=page.good.slice(1), count=page.count - 1)
    fields = {name: cut[place].str.strip_chars() for place, name in enumerate(names) if name in APP_FIELDS}
    body = body.with_columns(**fields)
    return body.reject({"the fields do not match the header": pl.col("timestamp").is_null()})


INSTANT = re.compile(r"^#?\s*\w+:\s+(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))\s*$")
WITHIN = timedelta(minutes=5)
"""Longest time that may pass from the heading to the first row."""
HALF_HOUR = timedelta(minutes=30)
FURTHEST = timedelta(hours=14)
"""No zone is further from UTC; none but UTC itself is nearer to it than an hour."""
ONE_OFFSET = timedelta(days=1)
"""Times this close to the heading are read in its offset: later, clocks may have been changed."""


def stated_instant(lines: Iterable[str]) -> datetime | None:
    """The instant in a line such as ``collected_at: 2026-06-22T21:04:17Z``; None if there is not exactly one.

    Examples
    --------
    >>> stated_instant(["# a heading", "collected_at:   2026-06-22T21:04:17Z", "os: windows"]).isoformat()
    '2026-06-22T21:04:17+00:00'
    """
    found = {match[1] for line in lines if (match := INSTANT.match(line))}
    try:
        return datetime.fromisoformat(found.pop()) if len(found) == 1 else None
    except ValueError:
        return None


def shown_offset(stated: datetime, local: datetime) -> timedelta | None:
    """Offset from UTC of a clock that showed `local` just after an instant; None if no offset fits.

    Examples
    --------
    >>> str(shown_offset(datetime.fromisoformat("2026-06-22T21:04:17Z"), datetime(2026, 6, 22, 23, 4, 18)))
    '2:00:00'
    """
    apart = local - stated.astimezone(UTC).replace(tzinfo=None)
    offset = HALF_HOUR * round(apart / HALF_HOUR)
    possible = not offset or timedelta(hours=1) <= abs(offset) <= FURTHEST
    return offset if possible and abs(apart - offset) <= WITHIN else None


def zone_of(stated: datetime, local: pl.Series, tz: str | None, where: str) -> str | None:
    """Zone of local times under a heading: the one given, if it does not contradict, else that of the heading.

    Examples
    --------
    >>> stated = datetime.fromisoformat("2026-06-22T21:04:17Z")
    >>> zone_of(stated, pl.Series([datetime(2026, 6, 22, 23, 4, 18)]), None, "n1.txt")
    '+02:00'
    """
    first, last = local.min(), local.max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return tz
    offset = shown_offset(stated, first)
    if offset is None:
        return tz
    name = _name(offset)
    if tz is not None:
        instant, shown_twice = to_utc(pl.DataFrame({"local": [first]}), ["local"], known_zone(tz)).row(0)
        if instant is None or shown_twice or abs(first - instant.replace(tzinfo=None) - offset) <= WITHIN:
            return tz
        got = f"{first} in {tz}, which is {instant:%Y-%m-%d %H:%M:%S} UTC"
        todo = f"The times show the offset {name}: state such a zone or none. If the heading is wrong, take it out."
        raise TraceFormatError(where, f"times that fit the heading, {stated}", got, todo)
    if last - first > ONE_OFFSET:
        return None
    if offset % timedelta(hours=1):
        todo = "State their zone, for example tz='Asia/Kolkata' (--tz Asia/Kolkata)."
        raise TraceFormatError(where, "times with their zone", f"{first}, which shows {name}", todo)
    return name if offset else "UTC"


def _name(offset: timedelta) -> str:
    minutes = round(offset / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


TRANSCRIPT_SOURCE = "smi-transcript"
HEADING = "# $ nvidia-smi --query-gpu=..."
QUERY = r"^# \$ nvidia-smi --query-gpu="
COMMAND = "# $ "
RULE = "#" * 20
STAMP = r"(?:^|,)\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(?:\.\d+)?\s*(?:,|$)"
"""A time as nvidia-smi prints it, in whichever column it stands."""


@reads(matches(r"\A#{20,}"))
def read_smi_transcript(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    """Read the CSV that stands under each ``# $ nvidia-smi --query-gpu=...`` heading of a transcript.

    Rows of the other commands are not telemetry of the GPUs over time and are not counted. nvidia-smi prints local
    times; where the transcript begins with an instant that has a zone, as ``collected_at: 2026-06-22T21:04:17Z``,
    the first row tells their offset.
    """
    rows = read_pages(paths, lambda page: _parse(page, hints), source=TRANSCRIPT_SOURCE)
    taken = rows.good.filter(pl.lit(hints.tz is None) & pl.col("zone").is_not_null())
    zones = taken["zone"].unique().sort().to_list()
    if not zones:
        return query_telemetry(rows, TRANSCRIPT_SOURCE, hints)
    example = f"{rows.file_names()[taken['file'][0]]}: {taken['zone'][0]}"
    assumed = source_finding("rows: zone of the heading", taken.height, example)
    return query_telemetry(rows, TRANSCRIPT_SOURCE, replace(hints, tz=", ".join(zones)), [assumed])


def _parse(page: Rows, hints: Hints) -> Rows:
    """Every part of the transcript that is a query of GPUs."""
    raw, is_rule = pl.col("raw"), pl.col("raw").str.starts_with(RULE)
    lines = page.good.with_columns(part=is_rule.cum_sum())
    numbers = lines.filter(raw.str.contains(QUERY))["part"].unique().sort().to_list()
    parts = [
        replace(page, good=part.select(page.good.columns), count=part.height, blank=0)
        for number in numbers
        if (part := lines.filter(pl.col("part") == number + 1, ~is_rule)).height
    ]
    if not parts:
        got = "no output under such a heading"
        raise TraceFormatError(str(path_of(page)), f"a heading {HEADING!r}", got, OTHER_SOURCE)
    here = replace(hints, tz=_zone(page, parts, hints))
    rows = together(page.files, [parse_query(part, here) for part in parts])
    return rows.with_columns(zone=pl.lit(here.tz, pl.String))


def _zone(page: Rows, parts: Sequence[Rows], hints: Hints) -> str | None:
    """Zone of the times of all parts: that of the hints, or the one that the heading shows."""
    raw = page.good["raw"]
    stated = stated_instant(raw.head(raw.str.starts_with(COMMAND).arg_max() or 0))
    stamps = [part.good["raw"].str.extract(STAMP).drop_nulls() for part in parts]
    local = pl.concat(stamps).str.to_datetime("%Y/%m/%d %H:%M:%S", strict=False)
    return hints.tz if stated is None else zone_of(stated, local, hints.tz, str(path_of(page)))
