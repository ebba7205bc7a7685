"""The first screen of the monthly report: one decision, and everything that one asks about it."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from gpuplanner.report import page
from gpuplanner.report.first_screen import Links, first_screen
from gpuplanner.report.section import Section
from gpuplanner.study import Study

HELD = ("used", "held_idle", "unobserved")
"""Parts of the installed hours that somebody held."""
FILES = (("Workbook", "workbook.xlsx"), ("Notebook", "report.ipynb"), ("JSON file", "study.json"))
"""What always stands beside the page."""


def summary(study: Study) -> Section:
    """The decision, read from the study's one object."""
    return Section(
        page.section(
            "The decision",
            first_screen(
                study.decision,
                peaks=daily_peaks(study),
                period=period(study),
                links=links(study),
                doubts=study.provenance["doubts"],
                projects=[one.sentence for one in study.comparison.projects],
            ),
        )
    )


def daily_peaks(study: Study) -> pl.DataFrame:
    """``day, gpus``: GPUs that were held in the busiest hour of each day of the report's zone."""
    held = pl.when(pl.col("bucket").cast(pl.String).is_in(HELD)).then("gpu_hours").otherwise(0.0)
    hours = study.tables["ledger"].group_by("hour").agg(gpus=held.sum())
    day = pl.col("hour").dt.convert_time_zone(study.scenario.tz).dt.date()
    return hours.group_by(day=day).agg(pl.col("gpus").max()).sort("day")


def period(study: Study) -> str:
    """What the report covers, in words."""
    first, after = (datetime.fromisoformat(study.headline[f"observed_{side}"]) for side in ("from", "to"))
    return f"{_day(first)} to {_day(after)}"


def links(study: Study) -> Links:
    """Files that stand beside the page."""
    pack = study.plan is not None and study.headline["board_has_mig"]
    return (*FILES, *([("Change pack", "export/")] if pack else []))


def _day(found: datetime) -> str:
    return f"{found.day} {found:%b %Y}"
