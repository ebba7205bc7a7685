"""Local times: the hours that a clock shows twice, and those that it skips."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.source_fields import (
    AMBIGUOUS_COLUMN,
    convert_to_utc,
    format_utc,
    parse_origin,
    validate_time_zone,
)


def utc(*local: datetime, tz: str = "Europe/Oslo") -> tuple[list[str | None], bool]:
    """Instants of one row (submit, start, end) in UTC, and whether the row is marked."""
    names = ["submit", "start", "end"][: len(local)]
    read = convert_to_utc(pl.DataFrame(dict(zip(names, [[value] for value in local], strict=True))), names, tz)
    return [format_utc(read[name][0]) for name in names], read[AMBIGUOUS_COLUMN][0]


def test_an_hour_shown_twice_is_read_as_the_earliest():
    assert utc(datetime(2025, 10, 26, 2, 30)) == (["2025-10-26T00:30:00Z"], True)


def test_the_second_showing_is_taken_when_the_first_would_run_backwards():
    # Submitted 02:40 and started 02:50 summer time; ended at 02:10, when the clock had gone back.
    read, marked = utc(*(datetime(2025, 10, 26, 2, minute) for minute in (40, 50, 10)))
    assert read == ["2025-10-26T00:40:00Z", "2025-10-26T00:50:00Z", "2025-10-26T01:10:00Z"]
    assert marked


@pytest.mark.parametrize("name", ["Europe/Olso", "", "Europe", "../etc/passwd", "CEST", "+05:45"])
def test_an_unknown_zone_is_an_error(name: str):
    with pytest.raises(TraceFormatError, match="expected a name of the time zone database"):
        validate_time_zone(name)


def test_an_origin_needs_an_offset():
    assert parse_origin("2021-03-04T00:00:00Z") == datetime(2021, 3, 4, tzinfo=UTC)
    for origin in ("2021-03-04", "yesterday", datetime(2021, 3, 4), "1021-03-04T00:00:00Z"):
        with pytest.raises(TraceFormatError, match="origin: expected a date and time with its offset"):
            parse_origin(origin)


@pytest.mark.parametrize(
    "tz",
    [
        "Europe/Oslo",
        "America/Sao_Paulo",  # changed its clocks at midnight
        "Australia/Lord_Howe",  # by half an hour
        "Pacific/Apia",  # left out 2011-12-30
        "UTC",
        "+02:00",
    ],
)
def test_every_half_hour_of_thirty_years_agrees_with_the_time_zone_database(tz: str):
    local = pl.datetime_range(datetime(1995, 1, 1), datetime(2025, 1, 1), "30m", time_unit="us", eager=True).alias("at")
    expected = local.dt.replace_time_zone(tz, ambiguous="earliest", non_existent="null")
    latest = local.dt.replace_time_zone(tz, ambiguous="latest", non_existent="null")
    read = convert_to_utc(local.to_frame(), ["at"], tz)
    assert read["at"].equals(expected.dt.convert_time_zone("UTC"))
    assert read[AMBIGUOUS_COLUMN].equals((expected != latest).fill_null(False), check_names=False)


def test_jobs_that_wait_for_nothing_stay_in_the_first_of_two_hours():
    """Submitted and started at the same time shown twice: equal instants are in order, no hour goes by."""
    read, marked = utc(*(datetime(2025, 10, 26, 2, minute) for minute in (30, 30, 40)))
    assert read == ["2025-10-26T00:30:00Z", "2025-10-26T00:30:00Z", "2025-10-26T00:40:00Z"]
    assert marked


@pytest.mark.parametrize("tz", ["UTC", "Europe/Oslo"])
def test_a_column_without_any_time_has_none_in_utc_either(tz: str):
    """No job of a file has ended: the others are read, and none is marked for what is missing."""
    jobs = pl.DataFrame(
        {"start": [datetime(2025, 7, 1), datetime(2025, 7, 2)], "end": [None, None]},
        schema=dict.fromkeys(("start", "end"), pl.Datetime("us")),
    )
    read = convert_to_utc(jobs, ["start", "end"], tz)
    assert read["end"].to_list() == [None, None]
    assert read["start"].null_count() == 0
    assert read[AMBIGUOUS_COLUMN].to_list() == [False, False]
    assert convert_to_utc(jobs.clear(), ["start", "end"], tz).height == 0
