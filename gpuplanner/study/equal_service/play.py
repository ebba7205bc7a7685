"""One setting of one policy on one week: what was on, and who waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.cost import PowerModel, gpu_kwh
from gpuplanner.metrics import hours_by_condition, instance_fragmentation, instance_totals
from gpuplanner.metrics.power import resident_gpu_hours
from gpuplanner.simulate import AutoscaledPools, Calendar, Fleet, OnDemand, Rules, Run, simulate, unservable
from gpuplanner.study.equal_service.weeks import Week
from gpuplanner.units import SECONDS_PER_HOUR

CHANGES = ("reconfiguring", "changing")


@dataclass(frozen=True, eq=False)
class PolicySetting:
    """A policy with every knob set.

    Attributes
    ----------
    policy : str
        Its name.
    view : str
        What jobs ask for: ``"whole"``, ``"requested"`` or ``"rightsized"``.
    control : Calendar, OnDemand or AutoscaledPools
        What the simulator plays.
    knobs : mapping of str to number or text
        What was set, for people.
    nodes : int or None
        Nodes that there are; None: those of the fleet.
    reserve_hours : float or None
        How long ahead of a planned change jobs that would still run then are kept away [h]; None: as the rules have it.
    exact : bool
        Whether jobs get the instance that they ask for and never a larger one, whatever the rules allow.
    """

    policy: str
    view: str
    control: Calendar | OnDemand | AutoscaledPools
    knobs: Mapping[str, float | int | str] = field(default_factory=dict)
    nodes: int | None = None
    reserve_hours: float | None = None
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Played:
    """What a setting did in one week.

    Attributes
    ----------
    gpu_hours : float
        GPUs that were not off, in GPU-hours of the week.
    busy_gpu_hours : float
        Of these, held by jobs, whole GPUs by the share of their compute slices.
    waits_s : array of float, shape (n_judged,)
        Queueing delay of each job that came in the week [s]; one that never started waited to the end of the run.
    completion_s : array of float, shape (n_judged,)
        Submission to end [s]; NaN if it never ended.
    size : array of int, shape (n_judged,)
        Its class.
    never_started, changes, given_up : int
        Jobs that never started; changes of layout begun; planned ones given up, as the GPUs did not empty in time.
    most_gpus : int
        GPUs that were on at once, at most.
    gpu_kwh : float or None
        Energy of the GPUs alone [kWh]: those that are on without work at idle power, those with work by the SM
        activity of their jobs; None where no law of power was given.
    hours : mapping of str to float
        Where the installed GPU-hours of the week went: ``busy``, ``idle``, ``reconfiguring`` and ``off`` by
        :func:`~gpuplanner.metrics.hours_by_condition`, and of all instances that nobody held ``stranded``, those of
        profiles that none of the waiting jobs asked for; empty where it was not asked.
    misfits : tuple of str
        Why jobs could never start, one reason a job.
    """

    gpu_hours: float
    busy_gpu_hours: float
    waits_s: NDArray[np.float64]
    completion_s: NDArray[np.float64]
    size: NDArray[np.int64]
    never_started: int
    changes: int
    given_up: int
    most_gpus: int = 0
    gpu_kwh: float | None = None
    hours: Mapping[str, float] = field(default_factory=dict)
    misfits: tuple[str, ...] = ()

    def waits_of(self, group: tuple[int, ...]) -> NDArray[np.float64]:
        """Waits of the jobs of some classes [s]."""
        return self.waits_s[np.isin(self.size, group)]


def play(setting: PolicySetting, week: Week, fleet: Fleet, rules: Rules) -> Played:
    """Serve the jobs of a week by a setting."""
    run = _run(setting, week, _served(setting, week, fleet, rules))
    return measure_week(run, setting.view, week, fleet)


def play_in_full(
    setting: PolicySetting, week: Week, fleet: Fleet, rules: Rules, law: PowerModel | None
) -> Played:
    """The same, with where every hour went and, where the law of power is known, the energy."""
    served = _served(setting, week, fleet, rules)
    run = _run(setting, week, served)
    found = measure_week(run, setting.view, week, fleet)
    misfits = unservable(*served)["reason"].to_list() if found.never_started else []
    window = (week.begin_s, week.end_s)
    unheld = instance_totals(instance_fragmentation(run, fleet.board), window=window)
    hours = hours_by_condition(run, fleet.board, window=window)
    return replace(
        found,
        gpu_kwh=None if law is None else _gpu_kwh(run, setting.view, week, found, law),
        hours={**hours, "stranded": unheld["stranded_gpu_hours"]},
        misfits=tuple(misfits),
    )


Served: TypeAlias = tuple[pl.DataFrame, Fleet, Calendar | OnDemand | AutoscaledPools, Rules]


def _run(setting: PolicySetting, week: Week, served: Served) -> Run:
    return simulate(*served, policy=setting.policy, until_s=week.end_s, leave_unservable=True)


def _served(setting: PolicySetting, week: Week, fleet: Fleet, rules: Rules) -> Served:
    """What the simulator plays: jobs, fleet, control and rules."""
    if setting.exact:
        rules = replace(rules, substitute=False)
    if setting.reserve_hours is not None and rules.drain is not None:
        ahead = replace(rules.drain, ahead_s=setting.reserve_hours * SECONDS_PER_HOUR)
        rules = replace(rules, drain=ahead)
    return (
        week.asked[setting.view],
        fleet if setting.nodes is None else Fleet(fleet.board, setting.nodes, fleet.gpus_per_node),
        setting.control,
        rules if isinstance(setting.control, Calendar) else replace(rules, drain=None),
    )


def measure_week(run: Run, view: str, week: Week, fleet: Fleet) -> Played:
    """Count what was on and who waited within a week; a job on several instances waits for the last of them."""
    end_of_run = float(run.states["end_s"].max())  # type: ignore[arg-type]
    owners, jobs = week.owners[view], len(week.submit_s)
    first, last = (run.outcomes[name].to_numpy().astype(np.float64) for name in ("first_start", "end"))
    started, ended = np.full(jobs, -np.inf), np.full(jobs, -np.inf)
    np.maximum.at(started, owners, np.where(np.isnan(first), np.inf, first))
    np.maximum.at(ended, owners, np.where(np.isnan(last), np.inf, last))
    # What asks for nothing in this view waits for nothing.
    judged = week.judged & (started > -np.inf)
    never = judged & (started == np.inf)
    waits = np.where(started == np.inf, end_of_run, started) - week.submit_s
    completion = np.where(np.isfinite(ended), ended - week.submit_s, np.nan)
    inside = (pl.min_horizontal("end_s", week.end_s) - pl.max_horizontal("start_s", week.begin_s)).clip(0.0)
    on = run.states.filter(
        (pl.col("state") != "off") & (pl.col("start_s") < week.end_s) & (pl.col("end_s") > week.begin_s)
    )
    changes = run.states.filter(
        pl.col("state").is_in(CHANGES) & pl.col("start_s").is_between(week.begin_s, week.end_s, closed="left")
    ).height
    return Played(
        gpu_hours=on.select(inside.sum()).item() / SECONDS_PER_HOUR,
        busy_gpu_hours=_busy_gpu_hours(run, week, fleet),
        waits_s=waits[judged],
        completion_s=completion[judged],
        size=week.size[judged],
        never_started=int(never.sum()),
        changes=changes,
        given_up=run.changes.filter(outcome="given up").height,
        most_gpus=_at_once(on["start_s"].to_numpy().clip(week.begin_s), on["end_s"].to_numpy()),
    )


def _at_once(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> int:
    """Most of these intervals that overlap; one that ends when another begins does not."""
    steps = np.concatenate([-np.ones(len(end_s), np.int64), np.ones(len(start_s), np.int64)])
    order = np.argsort(np.concatenate([end_s, start_s]), kind="stable")
    return int(np.cumsum(steps[order]).max(initial=0))


def _busy_gpu_hours(run: Run, week: Week, fleet: Fleet) -> float:
    profiles = run.outcomes["served_on"].unique().drop_nulls().to_list()
    share = pl.col("served_on").replace_strict(
        {name: fleet.model.share(name) for name in profiles}, default=0.0, return_dtype=pl.Float64
    )
    begin, end = pl.max_horizontal("first_start", week.begin_s), pl.min_horizontal("end", week.end_s)
    held = (end - begin).clip(0.0) * share * pl.col("gpus")
    return float(run.outcomes.select(held.sum()).item()) / SECONDS_PER_HOUR


def _gpu_kwh(run: Run, view: str, week: Week, found: Played, law: PowerModel) -> float:
    """Energy of what was on; activity that nobody measured is the mean of what was, and full where nothing was."""
    window = (week.begin_s, week.end_s)
    resident = min(resident_gpu_hours(run, window=window), found.gpu_hours)
    begin, end = (
        np.nan_to_num(run.outcomes[name].to_numpy().astype(np.float64), nan=week.end_s).clip(*window)
        for name in ("first_start", "end")
    )
    gpus = run.outcomes["gpus"].to_numpy()
    per_gpu = week.active[view] / gpus
    mean = float(np.nanmean(per_gpu)) if np.isfinite(per_gpu).any() else 1.0
    active = float(((end - begin) * np.where(np.isfinite(per_gpu), per_gpu, mean) * gpus).sum())
    return gpu_kwh(
        law,
        powered_gpu_hours=found.gpu_hours,
        resident_gpu_hours=resident,
        active_gpu_hours=min(active / SECONDS_PER_HOUR, resident),
    )
