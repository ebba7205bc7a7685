"""How each team did in a month: rank and trend in a table, and a card for each that tells of no other team."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.errors import ScenarioError, first_line, message, printable
from gpuplanner.files.manifest import Mark
from gpuplanner.files.folder import replaced_directory
from gpuplanner.report.figures import NOBODY
from gpuplanner.study.decision.types import TeamRow
from gpuplanner.units import in_locale

MARK = Mark("scorecard.csv", "team,jobs,held_gpu_hours", ("cards/*.txt",))
SCHEMA = pl.Schema(
    {
        "team": pl.String(), "jobs": pl.Int64(), "held_gpu_hours": pl.Float64(), "idle_gpu_hours": pl.Float64(),
        "idle_share": pl.Float64(), "rank": pl.Int64(), "held_change": pl.Float64(), "idle_share_change": pl.Float64(),
    }
)  # fmt: skip


def write_scorecards(
    teams: Sequence[TeamRow], folder: Path, month: str, before: Path | None, *, locale: str = "en"
) -> None:
    """Write ``scorecard.csv`` and a card for each team; changes are against the table of an earlier month.

    Teams appear as the scenario shows them: with ``smallest_group`` those of few people stand together.
    """
    table = scorecard(teams, None if before is None or not before.exists() else _read(before))
    with replaced_directory(folder, mark=MARK) as place:
        table.write_csv(place / "scorecard.csv", float_precision=6)
        (place / "cards").mkdir()
        for number, row in enumerate(table.iter_rows(named=True), start=1):
            slug = re.sub(r"[^a-z0-9]+", "-", str(row["team"]).lower()).strip("-")[:40] or "team"
            text = _card(month, table.height, locale, **row)
            (place / "cards" / f"{number:03d}-{slug}.txt").write_text(text, encoding="utf-8")


def scorecard(teams: Sequence[TeamRow], before: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row a team, the least idle share first; those of whom nobody measured any behind them, by hours held.

    Examples
    --------
    >>> teams = [TeamRow("a", 100.0, 20.0, 4), TeamRow("b", 50.0, 5.0, 2), TeamRow("nobody", 9.0, None, 0)]
    >>> scorecard(teams).select("team", "rank", "idle_share").rows()
    [('b', 1, 0.1), ('a', 2, 0.2)]
    """
    rows = [
        {
            "team": one.team,
            "jobs": one.jobs,
            "held_gpu_hours": one.held_gpu_hours,
            "idle_gpu_hours": one.idle_gpu_hours,
        }
        for one in teams
        if one.team != NOBODY
    ]
    known = pl.DataFrame(rows, schema={name: SCHEMA[name] for name in list(SCHEMA)[:4]})
    share = pl.when(pl.col("held_gpu_hours") > 0).then(pl.col("idle_gpu_hours") / pl.col("held_gpu_hours"))
    known = known.with_columns(idle_share=share)
    last = pl.DataFrame(schema=SCHEMA) if before is None else before
    then = last.select("team", held_then="held_gpu_hours", idle_then="idle_share")
    return (
        known.sort("idle_share", "held_gpu_hours", "team", descending=[False, True, False], nulls_last=True)
        .with_columns(rank=pl.when(pl.col("idle_share").is_not_null()).then(pl.int_range(1, pl.len() + 1)))
        .join(then, on="team", how="left", maintain_order="left")
        .with_columns(
            held_change=pl.col("held_gpu_hours") / pl.col("held_then") - 1,
            idle_share_change=pl.col("idle_share") - pl.col("idle_then"),
        )
        .select(list(SCHEMA))
        .cast(SCHEMA)
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path, schema_overrides=dict(SCHEMA)).select(list(SCHEMA)).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        text = message(str(path), "a scorecard", first_line(error), "Remove it, or report its month again.")
        raise ScenarioError(text) from None


def _card(
    month: str, teams: int, locale: str, *, team: str, jobs: int, held_gpu_hours: float, idle_gpu_hours: float | None,
    idle_share: float | None, rank: int | None, held_change: float | None, idle_share_change: float | None,
) -> str:  # fmt: skip
    """What one team is told: its own figures, its place among all, and no other team's name or figure."""
    lines = [
        f"{printable(team)}, {month}".replace("\n", " "),
        f"{jobs:,} jobs held {held_gpu_hours:,.0f} GPU-hours{_by(held_change, ' on the month before')}.",
    ]
    if idle_share is None or idle_gpu_hours is None:
        lines.append("Nobody measured how much of it was idle.")
    else:
        change = (
            ""
            if idle_share_change is None
            else f", {100 * idle_share_change:+.1f} points on the month before"
        )
        lines.append(f"{idle_gpu_hours:,.0f} of them were held idle: {idle_share:.1%}{change}.")
        lines.append(f"Place {rank} of {teams} teams, the least idle first.")
    return "\n".join([lines[0], *(in_locale(line, locale) for line in lines[1:])]) + "\n"


def _by(change: float | None, words: str) -> str:
    return "" if change is None else f", {change:+.0%}{words}"
