"""A page of its own about policies at equal service, or one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import plot
from gpuplanner._version import __version__
from gpuplanner.report import page, tables
from gpuplanner.report.picture import roomy, told_svg, write_drawn
from gpuplanner.report.section import Section
from gpuplanner.study.equal_service.contenders import TODAY
from gpuplanner.study.equal_service.tables import class_table, hours_table, policy_table
from gpuplanner.study.equal_service.weeks import WEEK_HOURS
from gpuplanner.study.equal_service.words import (
    decision,
    frontier_frame,
    how_sure,
    out_of_reach,
    target_in_words,
    what_to_set,
)

_HOURS, _MINUTES = ",.0f", ",.1f"


def write_equal_service(found: Mapping[str, Any], path: str | Path, *, title: str, who: str) -> Path:
    """Write a comparison as a page of its own (``.html``) or as a picture (``.svg``).

    Parameters
    ----------
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.
    path : str or Path
        The suffix says which.
    title : str
        Of the page; plain text.
    who : str
        Who performs changes, the scenario's ``path``.

    Raises
    ------
    OutputError
        If the file cannot be written; what stood there is intact.
    """
    return write_drawn(
        path,
        page=lambda: _page(found, title, who),
        picture=lambda: told_svg([_chart(found)], [decision(found)]),
    )


def answer(found: Mapping[str, Any], who: str) -> Section:
    """What to do, the frontier, and every policy with its waits; the reason alone where nothing could be compared.

    Parameters
    ----------
    found : mapping
        As for :func:`write_equal_service`.
    who : str
        Who performs changes.
    """
    if not found["today"]:
        return Section(page.section("What to do", *map(page.paragraph, (decision(found), found["note"]))))
    body = page.section(
        "What to do",
        page.paragraph(decision(found)),
        *([page.note("Set: " + "; ".join(lines) + ".")] if (lines := list(what_to_set(found, who))) else []),
    ) + page.section(
        "GPU-hours against wait",
        page.paragraph(target_in_words(found)),
        *(page.note(line) for line in out_of_reach(found)),
        page.figure(
            roomy(_chart(found)),
            title="GPU-hours a week against wait",
            alt=plot.frontier_text(frontier_frame(found)),
            table=frontier_frame(found),
        ),
        tables.table(
            policy_table(found),
            caption="Policies, tuned to the target on earlier weeks, on weeks that were kept back",
            formats={
                "gpu_hours": _HOURS,
                "gpu_hours_low": _HOURS,
                "gpu_hours_high": _HOURS,
                "gpu_kwh": _HOURS,
            }
            | dict.fromkeys(("wait_mean_min", "wait_quantile_min", "completion_mean_min"), _MINUTES),
        ),
        tables.table(
            hours_table(found),
            caption="Where the hours of a week went; stranded: free instances of profiles nobody waits for",
            formats=dict.fromkeys(hours_table(found).columns[1:], _HOURS),
        ),
        tables.table(
            class_table(found),
            caption="Waits by how much a job asks for",
            formats=dict.fromkeys(
                ("wait_mean_min", "wait_quantile_min", "wait_p99_min", "target_min"), _MINUTES
            ),
        ),
        page.paragraph(found["note"]),
    )
    return Section(body + sureness(found))


def _page(found: Mapping[str, Any], title: str, who: str) -> str:
    told = f"tuned on {found['tuned_from'][:10]} to {found['judged_from'][:10]}, judged to {found['judged_to'][:10]}"
    origin = {"path": who, "released": found["release_unit"], "weeks": told, "gpuplanner": __version__}
    return page.render_page(answer(found, who).html, title=title, subtitle=told, provenance=origin)


def sureness(found: Mapping[str, Any]) -> str:
    """What each lever saves, what was promised and came of it, and what growth asks for."""
    body = ""
    if found["reason"] is None and any(row["saved"] for row in found["levers"]):
        first = {"lever": "today", "gpu_hours": found["today"]["gpu_hours"]}
        steps = [(row["lever"], *[row["gpu_hours"]] * 3) for row in (first, *found["levers"])]
        frame = pl.DataFrame(steps, schema=["step", "gpu_hours", "low", "high"], orient="row")
        body += page.section(
            "What each lever saves",
            page.figure(
                plot.plot_savings(frame),
                title="GPU-hours needed as levers are added",
                alt="; ".join(f"{row['lever']}: {row['saved']:,.0f}" for row in found["levers"]) + ".",
                table=pl.DataFrame(found["levers"]),
            ),
            page.note("Each at the same waits. saved_reverse: booked from the last lever to the first."),
        )
    body += page.section("How sure", *(page.paragraph(line) for line in how_sure(found)))
    if found.get("growth"):
        body += if_grown(found)
    return body


def if_grown(found: Mapping[str, Any]) -> str:
    """GPUs that hold the target at more arrivals, and weeks ahead where that was asked for as well."""
    frame = growth_frame(found)
    shown = page.figure(
        roomy(plot.plot_growth(frame)),
        title="GPUs that hold the target",
        alt=plot.growth_text(frame),
        table=frame,
    )
    return page.section("If there were more jobs", shown, *weeks_to_come(found.get("weeks_ahead", ())))


def weeks_to_come(ahead: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A sentence and a table of :func:`gpuplanner.study.future.weeks_ahead.weeks_ahead`; nothing of nothing."""
    if not ahead:
        return ()
    last = [row for row in ahead if row["policy"] == ahead[-1]["policy"]]
    told = "; ".join(f"{_fleet_of(row)} in {row['week']} weeks" for row in last)
    way = "Run as today" if last[0]["policy"] == TODAY else f"Run by {last[0]['policy']!r}"
    passed = last[-1]["run_out_by"]
    odds = (
        "" if passed is None else f" With {passed:.0%} today's GPUs are too few at some time within the year."
    )
    columns = {"policy": pl.String, "week": pl.Int64} | dict.fromkeys(
        ("gpus_q05", "gpus_q50", "gpus_q95", "run_out_by"), pl.Float64
    )
    frame = pl.DataFrame(list(ahead), schema=columns)
    gpus = pl.col("gpus_q05", "gpus_q50", "gpus_q95").ceil().cast(pl.Int64)
    return (
        page.paragraph(
            f"{way}, the service target is held by {told}, at the middle of the paths of demand.{odds}"
        ),
        tables.table(
            frame.with_columns(gpus),
            caption="GPUs that hold the target weeks ahead, over paths of demand",
            formats={"run_out_by": ".0%"},
            headings={
                "gpus_q05": "GPUs, 5 %", "gpus_q50": "50 %", "gpus_q95": "95 %",
                "run_out_by": "today's too few by then",
            },
        ),
        page.note("Simulated were 0.8 to 2 times today's arrivals: none is lower, and beyond nothing stands."),
    )  # fmt: skip


def _fleet_of(row: Mapping[str, Any]) -> str:
    middle, high = row["gpus_q50"], row["gpus_q95"]
    if middle is None:
        return "more than were simulated"
    return f"{math.ceil(middle):,} GPUs" + ("" if high is None else f" (95 %: {math.ceil(high):,})")


def growth_frame(found: Mapping[str, Any]) -> pl.DataFrame:
    """Growth of a comparison as :func:`gpuplanner.plot.plot_growth` takes it."""
    installed = found["today"]["gpu_hours"] / WEEK_HOURS
    return pl.DataFrame(
        [
            {"policy": one["policy"], **row, "installed": installed}
            for one in found["growth"]
            for row in one["gpus"]
        ]
    )


def _chart(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 - one of Altair's chart types
    return plot.plot_frontier(frontier_frame(found))
