"""The wait curve: queue waits by job size against the number of GPUs, with an interval from drawn records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuplanner.simulate.nodes.machine import NodeFleet
from gpuplanner.simulate.tables import Floats
from gpuplanner.study.decision.types import CurvePoint
from gpuplanner.study.waits.draws import DAYS_A_WEEK, INTERVAL, REPLAYS, percentile
from gpuplanner.study.waits.readings import WaitModel
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

POINTS = 12
DRAWS = 10
SATURATED_S, SATURATED_DRAWS = 4 * SECONDS_PER_HOUR, 3
"""Where 5 % of the jobs wait longer, the queue hardly empties: replays are alike, and take long."""
FACTORS = tuple(np.linspace(0.5, 2.0, POINTS).tolist())
"""Fleets of the curve, in times the one that it is drawn around."""


def curve_points(model: WaitModel, layout: str, fleets: Sequence[NodeFleet]) -> list[CurvePoint]:
    """Waits of each job size on some fleets, with what these cost.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    layout : str
        What the layout of the fleets is called.
    fleets : sequence of NodeFleet
        Fleets; of two with as many GPUs the first counts.
    """
    points, seen_s = [], model.asked.seen_s
    for gpus, fleet in sorted({int(one.gpus.sum()): one for one in reversed(fleets)}.items()):
        middle = [model.replay_waits(fleet)]
        saturated = percentile(middle[0][model.waits.judged]) > SATURATED_S
        middle += [model.replay_waits(fleet, number) for number in range(1, 1 if saturated else REPLAYS)]
        draws = SATURATED_DRAWS if saturated else DRAWS
        drawn = np.array([model.draw(fleet, number) for number in range(draws)])
        allocated = np.median([allocated_gpu_hours(model, waits) for waits in middle])
        hours = gpus * seen_s / SECONDS_PER_HOUR
        for place, number in enumerate(model.sizes):
            mine = model.waits.judged & (model.size == number)
            p95 = [percentile(waits[mine]) for waits in middle]
            low, high = np.quantile(np.minimum(drawn[:, place], seen_s), INTERVAL) / SECONDS_PER_MINUTE
            mean = [float(np.minimum(waits[mine], seen_s).mean()) for waits in middle]
            points.append(
                CurvePoint(
                    layout, gpus, model.names[number], minutes_within(float(np.median(p95)), seen_s), float(low),
                    float(high), float(np.median(mean)) / SECONDS_PER_MINUTE, float(allocated / hours),
                    hours * DAYS_A_WEEK * SECONDS_PER_DAY / seen_s,
                )
            )  # fmt: skip
    return points


def minutes_within(waits_s: float, seen_s: float) -> float:
    """A wait in minutes; who never starts waits to the end of the record."""
    return min(waits_s, seen_s) / SECONDS_PER_MINUTE


def allocated_gpu_hours(model: WaitModel, waits_s: Floats) -> float:
    """GPU-hours that jobs hold within the record if they wait so long."""
    asked, waits = model.asked, model.waits
    begin = waits.eligible_s + waits_s
    run_s = np.minimum(begin + asked.granted.run_s, asked.seen_s) - np.maximum(begin, 0.0)
    return float(np.where(np.isfinite(begin), np.maximum(run_s, 0.0), 0.0) @ asked.gpus() / SECONDS_PER_HOUR)
