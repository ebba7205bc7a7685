"""What tuning on past weeks promised, how sure, and what came of it in the weeks kept back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from gpuplanner.hardware import GpuModel
from gpuplanner.metrics.intervals import student_t
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.equal_service.contenders import Contest
from gpuplanner.study.equal_service.judging import JudgedPolicy
from gpuplanner.study.equal_service.levers import RIGHT_SIZE, used
from gpuplanner.study.equal_service.spread import (
    WEEK_DAYS,
    daily_gpu_hours,
    past_misses,
    settled,
    week_spread,
)
from gpuplanner.study.equal_service.weeks import TUNING_WEEKS, Weeks, as_known, drawn_past, usual_weeks
from gpuplanner.study.past.history import History, begin_of, history

PROMISED_LEVEL = 0.9
"""Level of the interval of what a single week to come saves."""
HEADROOMS = (0.0, 0.25)
"""Other headrooms at which the same setting is played."""
OWN = ("telemetry", "job statistics")
"""Evidence of a job's own use; else its right size is that of jobs like it."""
MOST_PAST_DAYS = 182
"""How far back forecasts are replayed."""


class Assumed(NamedTuple):
    """An assumption at another value: the saving [GPU h a week], and whether the target is held."""

    assumption: str
    value: float
    saving: float
    holds_target: bool


@dataclass(frozen=True, eq=False)
class PlanError:
    """The promised saving over today's fleet, and the realised one.

    Attributes
    ----------
    promised : float
        Of the winner on weeks drawn from the past that it was tuned on [GPU h a week].
    by_draw, by_misses, by_week : float
        Half widths of 90 % intervals for a single week to come: of which days it is made; what the weeks after past
        days missed the mean of the days before them by; and what the policy needs in weeks of equal demand.
    most : float
        What today's fleet needs: no less than nothing can be saved, and no more than this [GPU h a week].
    days, replayed : int
        Days behind ``by_draw``, past forecasts behind ``by_misses``: one for every day, so a week of them overlaps;
        none from a thin beginning, see :func:`~gpuplanner.study.equal_service.spread.settled`.
    assumed : tuple of Assumed
        The same setting under other assumptions.
    realised : tuple of float
        Saving in each week kept back, oldest first.
    """

    promised: float
    by_draw: float
    by_misses: float
    by_week: float
    most: float
    days: int
    replayed: int
    assumed: tuple[Assumed, ...]
    realised: tuple[float, ...]

    @property
    def half(self) -> float:
        """Half width of the whole: both variances by the days, and the separate weeks, that they were seen on.

        What was promised is itself the mean of a few draws.
        """
        weeks = self.replayed / WEEK_DAYS
        demand = (self.days * self.by_draw**2 + weeks * self.by_misses**2) / (self.days + weeks)
        return float(np.sqrt((demand + self.by_week**2) * (1 + 1 / TUNING_WEEKS)))

    def bounds(self, half: float) -> list[float]:
        """An interval of that half width around what was promised."""
        return [max(self.promised - half, 0.0), min(self.promised + half, self.most)]

    def to_dict(self) -> dict[str, Any]:
        """The keys ``promised``, ``realised`` and ``coverage`` of a comparison."""
        low, high = self.bounds(self.half)
        inside = [low - 1e-6 <= saved <= high + 1e-6 for saved in self.realised]
        return {
            "promised": {
                "saving": self.promised,
                "low": low,
                "high": high,
                "level": PROMISED_LEVEL,
                "draw_of_days": self.bounds(self.by_draw),
                "forecast_errors": self.bounds(self.by_misses),
                "forecasts_replayed": self.replayed,
                "assumptions": [row._asdict() for row in self.assumed],
            },
            "realised": list(self.realised),
            "coverage": float(np.mean(inside)) if inside else None,
        }


def plan_error(contest: Contest, today: JudgedPolicy, winner: JudgedPolicy) -> PlanError:
    """Hold what the past promised of a winner against the weeks kept back.

    What it needs grows with what jobs ask for; by how much is a straight line through its weeks drawn for tuning,
    as they were and with more jobs.

    Parameters
    ----------
    contest : Contest
        The weeks, and the service by today's waits on those to tune on.
    today, winner : JudgedPolicy
        Between which is saved.
    """
    drawn, played = contest.weeks, contest.played
    usual, heavy = played(winner.setting, drawn.usual), played(winner.setting, drawn.tuning)
    before = float(np.mean([week.gpu_hours for week in played(today.setting, drawn.usual[:1])]))
    asked, needed = (
        np.array([getattr(week, name) for week in (*usual, *heavy)])
        for name in ("busy_gpu_hours", "gpu_hours")
    )
    apart = asked - asked.mean()
    slope = float(apart @ needed / max(apart @ apart, 1e-12))
    rest = needed - needed.mean() - slope * apart
    times = student_t((1 + PROMISED_LEVEL) / 2, len(rest) - 2)
    daily = _daily(contest.known, drawn, winner.setting.view, contest.scenario.seed)
    days = (drawn.split - drawn.begin).days
    misses = past_misses(settled(daily), days)
    per_share = slope * float(asked[: len(usual)].mean())
    missed = np.quantile(np.abs(misses), PROMISED_LEVEL) if len(misses) else 0.0
    return PlanError(
        promised=before - float(np.mean([week.gpu_hours for week in usual])),
        by_draw=abs(per_share) * week_spread(daily[-days:], level=PROMISED_LEVEL),
        by_misses=abs(per_share) * float(missed),
        by_week=times * float(np.sqrt(rest @ rest / (len(rest) - 2))),
        most=before,
        days=days,
        replayed=len(misses),
        assumed=tuple(_assumed(contest, winner, before)),
        realised=tuple(
            one.gpu_hours - other.gpu_hours
            for one, other in zip(today.held_back, winner.held_back, strict=True)
        ),
    )  # fmt: skip


def _daily(known: History, drawn: Weeks, view: str, seed: int) -> np.ndarray:
    """GPU-hours that jobs asked for on each day before the split, whole GPUs by the share of their slices."""
    past = as_known(drawn_past(known), drawn.split, seed)
    # Of what came before the observation only what was still there at its start is known.
    seen = max(begin_of(known.trace), drawn.split - timedelta(days=MOST_PAST_DAYS))
    begin = min(drawn.split - timedelta(days=(drawn.split - seen).days), drawn.begin)
    profiles = past[f"profile_{view}"].unique().drop_nulls().to_list()
    share = _shares(known.fleet.board, profiles)
    size = pl.col(f"profile_{view}").replace_strict(share, default=0.0, return_dtype=pl.Float64)
    return daily_gpu_hours(past, begin, drawn.split, size * pl.col(f"instances_{view}"))


def _shares(board: GpuModel, profiles: Sequence[str]) -> dict[str, float]:
    return {name: 1.0 if name == WHOLE_GPU else board.share(name) for name in profiles}


def _assumed(contest: Contest, winner: JudgedPolicy, before: float) -> Iterator[Assumed]:
    """The setting on the same weeks where jobs are right-sized otherwise; no row where none is."""
    scenario, known, drawn = contest.scenario, contest.known, contest.weeks
    if RIGHT_SIZE not in used(winner):
        return
    others = [
        ("headroom", value, history(replace(scenario, headroom=value)))
        for value in HEADROOMS
        if value != scenario.headroom
    ]
    others.append(("evidence_share", *_by_own_evidence(known)))
    for name, value, other in others:
        weeks = contest.played(winner.setting, usual_weeks(scenario, other, drawn.begin, drawn.split))
        saving = before - float(np.mean([week.gpu_hours for week in weeks]))
        yield Assumed(name, value, saving, contest.target.met(weeks))


def _by_own_evidence(known: History) -> tuple[float, History]:
    """The share of jobs whose own use was seen, and the past with no other job right-sized."""
    own = known.rightsizing["evidence"].cast(pl.String).is_in(OWN)
    asked, sized = known.views["requested"], known.views["rightsized"]
    columns = {
        name: pl.when(pl.lit(own)).then(pl.col(name)).otherwise(pl.lit(asked[name]))
        for name in ("profile", "instances", "sms_needed")
    }
    views = known.views | {"rightsized": sized.with_columns(**columns)}
    return float(own.to_numpy().mean()), replace(known, views=views)
