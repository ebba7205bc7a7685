"""Carbon intensity of the grid by hour, from a file; gaps are rejected, not filled."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.errors import ScenarioError, first_line, message

BOUNDS = {
    "location_g_per_kwh": (0.0, 5000.0), "market_g_per_kwh": (0.0, 5000.0), "pue": (1.0, 5.0)
}  # fmt: skip
LOCATION, MARKET, PUE = BOUNDS


def read_grid(path: str | Path, hours: pl.Series) -> pl.DataFrame:
    r"""``hour, location_g, market_g, pue`` for each of some hours; null what the file has no column of.

    The file is CSV: ``time`` (ISO 8601 with its offset, the start of an hour), ``location_g_per_kwh``, and, if known,
    ``market_g_per_kwh`` and ``pue``.

    Examples
    --------
    >>> import tempfile
    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 2, 1, 12, tzinfo=UTC)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "grid.csv"
    ...     _ = file.write_text("time,location_g_per_kwh\n2026-02-01T13:00:00+01:00,250\n")
    ...     read_grid(file, pl.Series([noon])).row(0)[1:]
    (250.0, None, None)
    """
    name = Path(path).name
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        text = message(str(path), "a CSV file of hours", first_line(error), "Check the path.")
        raise ScenarioError(text) from error
    there = [one for one in BOUNDS if one in table.columns]
    if not {"time", LOCATION} <= set(table.columns) <= {"time", *BOUNDS}:
        expected = f"columns time, {', '.join(BOUNDS)}, all but the first two if known"
        raise ScenarioError(message(name, expected, ", ".join(table.columns), "Rename them."))
    read = table.select(
        pl.col("time").str.to_datetime("%+", time_zone="UTC", time_unit="us", strict=False),
        pl.col(there).cast(pl.Float64, strict=False),
    ).with_row_index("line", 2)
    sound = [pl.col(one).is_between(*BOUNDS[one]).fill_null(value=False) for one in there]
    wrong = read.filter(~pl.all_horizontal(sound) | pl.col("time").is_null() | pl.col("time").is_duplicated())
    if wrong.height:
        line = wrong["line"][0]
        got = ",".join(str(cell) for cell in table.row(line - 2))
        todo = "Times need an offset, such as Z; each hour stands once; grams are 0 to 5000, a PUE 1 to 5."
        raise ScenarioError(message(f"{name}, line {line}", "an hour and its grams per kWh", got, todo))
    wanted = pl.DataFrame({"hour": hours.unique().sort()}).cast({"hour": pl.Datetime("us", "UTC")})
    found = wanted.join(read.drop("line"), left_on="hour", right_on="time", how="left", maintain_order="left")
    gaps = found.filter(pl.col(LOCATION).is_null())["hour"]
    if len(gaps):
        got = f"{len(gaps)} of them absent, the first {gaps[0]:%Y-%m-%dT%H:%MZ}"
        raise ScenarioError(message(name, f"{found.height} hours", got, "Add them: no gap is filled."))
    rest = {
        name: pl.col(one) if one in there else pl.lit(None, pl.Float64)
        for name, one in (("market_g", MARKET), ("pue", PUE))
    }
    return found.select("hour", location_g=LOCATION, **rest)
