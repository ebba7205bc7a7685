"""Layouts decided while jobs come, run and wait: one loop, with more or less foresight.

A policy decides at the beginning of every slot, and whenever a job that came or ended leaves somebody waiting.
It sees which jobs run and wait, and believes something of the slots to come. GPUs with running jobs keep their
layout; the planner chooses for the idle ones from now on, and for the others from when they are believed to be
idle. GPUs for which it has no use keep the layout they have. Then the simulator runs with the calendar so far,
and the next instant at which somebody waits is the next decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.hardware import parse_layout
from gpuplanner.lab.claims.twenty_jobs.harder import (
    MORNING,
    PROFILES,
    Harder,
    forecast_of_day,
    past_runs_min,
    wanted,
)
from gpuplanner.lab.claims.twenty_jobs.serve import LEAD_S, MINUTE_S
from gpuplanner.planner import PlanProblem, plan
from gpuplanner.simulate import Calendar, Fleet, Rules, Run, simulate

FORESIGHT = ("forecast", "perfect")
"""``forecast``: plan for the jobs that are there and for what a forecast from the history says will come; run
times are guessed from the history. ``perfect``: arrivals and run times are known."""

ON_PRICE = 0.01
"""The fleet is owned and on: a GPU-hour costs next to nothing, so that waiting is all that counts."""


@dataclass(frozen=True)
class Scene:
    """What is to be seen at the time of a decision.

    - ``now_min``: Since the beginning of the batch.
    - ``running``, ``waiting``, ``coming``: Jobs, with ``gpu`` and ``start_min`` of those that run. What is coming is
      seen only with perfect foresight.
    - ``layouts``: Layout of each GPU, or the one that it is being given.
    """

    now_min: float
    running: pl.DataFrame
    waiting: pl.DataFrame
    coming: pl.DataFrame
    layouts: dict[int, str]


def roll_layouts(jobs: pl.DataFrame, harder: Harder, foresight: str) -> Run:
    """Serve a batch with layouts that are decided anew when somebody waits.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs.harder import draw_harder
    >>> run = roll_layouts(draw_harder(Harder(), seed=0), Harder(), "perfect")
    >>> run.outcomes["end"].null_count()
    0
    """
    rows, starts = [Counter({harder.design.static_layout: harder.design.gpus})], [0.0]
    now_min: float | None = 0.0
    while now_min is not None:
        scene = _scene(jobs, run_calendar(jobs, harder, rows, starts), now_min)
        row = _decided(scene, harder, foresight)
        if row != rows[-1]:
            rows.append(row)
            starts.append(LEAD_S + MINUTE_S * now_min)
        run = run_calendar(jobs, harder, rows, starts)
        now_min = _next_decision(jobs, run, now_min, harder.slot_min)
    return run


def _next_decision(jobs: pl.DataFrame, run: Run, now_min: float, slot_min: float) -> float | None:
    """When somebody waits next, or a slot begins with jobs still to come; None if neither happens."""
    waits = next(_waits(jobs, run, after_min=now_min), None)
    begins = slot_min * (float(np.floor(now_min / slot_min)) + 1)
    before_all = begins < float(jobs["submit_min"].max())  # type: ignore[arg-type]
    return begins if before_all and (waits is None or begins < waits) else waits


def run_calendar(jobs: pl.DataFrame, harder: Harder, rows: list[Counter[str]], starts: list[float]) -> Run:
    """Run the jobs through layouts given from some instants on [s]."""
    layouts = tuple(dict.fromkeys(layout for row in rows for layout in row))
    counts = np.array([[row[layout] for layout in layouts] for row in rows])
    work = jobs.select(
        "job_id",
        tenant="kind",
        submit_s=LEAD_S + MINUTE_S * pl.col("submit_min"),
        run_s=MINUTE_S * pl.col("run_min"),
        gpus=pl.lit(1, pl.Int32),
        profile="need",
    )
    design = harder.design
    fleet = Fleet(design.board, nodes=1, gpus_per_node=design.gpus)
    rules = Rules(queue="strict", change=design.change)
    calendar = Calendar(np.array(starts), layouts, counts)
    return simulate(work, fleet, calendar, rules, policy="harder", leave_unservable=True)


def _waits(jobs: pl.DataFrame, run: Run, *, after_min: float) -> Iterator[float]:
    """Instants, ascending, at which a job comes or ends and some job is left waiting [min]."""
    submit = jobs["submit_min"].to_numpy()
    start = _minutes(run.outcomes["first_start"])
    events = np.concatenate([submit, _minutes(run.outcomes["end"])])
    for instant in np.unique(events[np.isfinite(events) & (events > after_min)]).tolist():
        if ((submit <= instant) & (start > instant)).any():
            yield instant


def _minutes(seconds: pl.Series) -> np.ndarray:
    """Times of the simulator's clock in minutes of the batch; infinite where they never come."""
    return ((seconds.fill_null(np.inf) - LEAD_S) / MINUTE_S).to_numpy()


def _scene(jobs: pl.DataFrame, run: Run, now_min: float) -> Scene:
    start, end = _minutes(run.outcomes["first_start"]), _minutes(run.outcomes["end"])
    seen = jobs.with_columns(start_min=start, gpu=run.outcomes["gpu"])
    # What runs takes up the instance that it got, which may be larger than what it asked for.
    held = seen.with_columns(need=pl.coalesce(run.outcomes["served_on"], "need"))
    come = jobs["submit_min"].to_numpy() <= now_min
    now_s = LEAD_S + MINUTE_S * now_min
    states = run.states.filter(pl.col("start_s") <= now_s + 1e-6).group_by("gpu", maintain_order=True).last()
    return Scene(
        now_min,
        running=held.filter((start <= now_min) & (end > now_min)),
        waiting=seen.filter(come & (start > now_min)),
        coming=seen.filter(~come),
        layouts=dict(states.select("gpu", "layout").iter_rows()),
    )


def _decided(scene: Scene, harder: Harder, foresight: str) -> Counter[str]:
    """GPUs by layout from now on."""
    busy_until = dict(_believed_ends(scene, harder, foresight).iter_rows())
    busy = Counter(scene.layouts[gpu] for gpu in busy_until)
    idle = Counter(layout for gpu, layout in scene.layouts.items() if gpu not in busy_until)
    slots = harder.horizon
    demand = _believed(scene, harder, foresight)
    edges = scene.now_min + harder.slot_min * np.arange(slots)
    available = np.full(slots, idle.total())
    for gpu, until_min in busy_until.items():
        held = parse_layout(scene.layouts[gpu])
        offers = np.array([held.get(profile, 0) for profile in PROFILES])
        demand -= offers[:, None] * (edges < until_min)
        available += edges >= until_min
    if not idle or not (demand > 0).any():
        return busy + idle
    problem = PlanProblem(
        harder.design.board, harder.design.gpus, harder.design.gpus, MORNING + timedelta(minutes=scene.now_min),
        harder.slot_min / 60.0, ["case"], PROFILES, demand.clip(0.0)[None], on_price=ON_PRICE,
        change=harder.design.change, available=available.tolist(), initial=dict(idle),
    )  # fmt: skip
    best = plan(problem, gap_target=0.02, work_limit=8).require()
    chosen = +Counter(dict(zip(best.layouts, best.counts[0].tolist(), strict=True)))
    spare = idle - chosen
    recut = (chosen - idle).total()
    kept = Counter(sorted(spare.elements())[recut:])
    return busy + chosen + kept


def _believed_ends(scene: Scene, harder: Harder, foresight: str) -> pl.DataFrame:
    """GPUs with running jobs, and when the last of these is believed to end [min]."""
    runs = _believed_runs(scene.running, scene.now_min - scene.running["start_min"], harder, foresight)
    ends = scene.running.select("gpu", until_min=pl.col("start_min") + runs)
    return ends.group_by("gpu", maintain_order=True).agg(pl.col("until_min").max())


def _believed_runs(jobs: pl.DataFrame, age_min: pl.Series, harder: Harder, foresight: str) -> pl.Series:
    """Run times as far as a policy knows them: the mean of those of the history that lasted as long."""
    if foresight == "perfect":
        return jobs["run_min"]
    past = past_runs_min(harder)
    longer = [past[past > age] for age in age_min.to_list()]
    oldest = float(past.max())
    means = [float(some.mean()) if len(some) else oldest + harder.slot_min for some in longer]
    return pl.Series("run_min", means, dtype=pl.Float64)


def _believed(scene: Scene, harder: Harder, foresight: str) -> np.ndarray:
    """Instances believed to be wanted in the slots from now on, shape (n_profiles, n_slots)."""
    now, slots = pl.lit(0.0).alias("submit_min"), harder.horizon
    age = scene.now_min - scene.running["start_min"]
    rest = _believed_runs(scene.running, age, harder, foresight) - age
    none_yet = pl.zeros(scene.waiting.height, eager=True)
    parts = [
        scene.running.select("need", now, run_min=rest),
        scene.waiting.select("need", now, run_min=_believed_runs(scene.waiting, none_yet, harder, foresight)),
    ]
    if foresight == "perfect":
        parts.append(scene.coming.select("need", pl.col("submit_min") - scene.now_min, "run_min"))
    # A job that is there for a part of a slot needs its instance all the same.
    known = sum((_present(part, slots, harder) for part in parts), np.zeros((len(PROFILES), slots)))
    if foresight == "forecast":
        first = int(scene.now_min / harder.slot_min)
        known = np.maximum(known, forecast_of_day(harder)[:, first : first + slots])
    return known


def _present(jobs: pl.DataFrame, slots: int, harder: Harder) -> np.ndarray:
    """Jobs that are there at any time of each slot, shape (n_profiles, n_slots)."""
    first = harder.slot_min * np.floor(pl.Series(jobs["submit_min"]).to_numpy() / harder.slot_min)
    last = harder.slot_min * np.ceil((jobs["submit_min"] + jobs["run_min"]).to_numpy() / harder.slot_min)
    return wanted(jobs.with_columns(submit_min=first, run_min=last - first), slots, harder.slot_min)
