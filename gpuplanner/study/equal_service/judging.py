"""A tuned policy on weeks that it was not tuned on: what it cost, and who waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.metrics import Measure, mean_interval, rank_policies
from gpuplanner.study.equal_service.play import Played, PolicySetting
from gpuplanner.study.equal_service.target import ServiceTarget, wait_quantile
from gpuplanner.units import SECONDS_PER_MINUTE

LEVEL = 0.95
TOLD_APART_BY = (
    Measure("gpu_hours", "GPU-hours on, a week", "GPU h", 1.0, "low", "GPU-hours that were not off"),
    Measure("wait_mean_min", "mean wait", "min", 1.0, "low", "mean of first start - submission"),
)
"""What policies are told apart by, week by week."""


@dataclass(frozen=True, eq=False)
class JudgedPolicy:
    """A tuned policy on the weeks that it was not tuned on.

    Attributes
    ----------
    setting : PolicySetting
        Its knobs.
    weeks : tuple of Played
        The drawn weeks.
    held_back : tuple of Played
        The weeks as they were.
    """

    setting: PolicySetting
    weeks: tuple[Played, ...]
    held_back: tuple[Played, ...]

    @property
    def policy(self) -> str:
        """Its name."""
        return self.setting.policy

    @property
    def gpu_hours(self) -> np.ndarray:
        """GPU-hours of each drawn week."""
        return np.array([week.gpu_hours for week in self.weeks])

    @property
    def gpu_kwh(self) -> float | None:
        """Energy of the GPUs alone [kWh a week]; None where nobody knows the power of the board."""
        drawn = [week.gpu_kwh for week in self.weeks]
        known = [energy for energy in drawn if energy is not None]
        return float(np.mean(known)) if drawn and len(known) == len(drawn) else None


def policy_row(one: JudgedPolicy, target: ServiceTarget) -> dict[str, Any]:
    """A judged policy as plain values: GPU-hours and energy of a week, waits by class, changes, knobs."""
    hours = mean_interval(one.gpu_hours, level=LEVEL)
    waits = np.concatenate([week.waits_s for week in one.weeks])
    ends = np.concatenate([week.completion_s for week in one.weeks])
    return {
        "policy": one.policy,
        "gpu_hours": hours.mean,
        "gpu_hours_low": hours.low,
        "gpu_hours_high": hours.high,
        "most_gpus": max(week.most_gpus for week in one.weeks),
        "gpu_kwh": one.gpu_kwh,
        "wait_mean_min": float(waits.mean()) / SECONDS_PER_MINUTE,
        "wait_quantile_min": wait_quantile(one.weeks, None, target.quantile) / SECONDS_PER_MINUTE,
        "wait_longest_min": float(waits.max()) / SECONDS_PER_MINUTE,
        "completion_mean_min": float(np.nanmean(ends)) / SECONDS_PER_MINUTE,
        "busy_gpu_hours": float(np.mean([week.busy_gpu_hours for week in one.weeks])),
        **{f"{name}_gpu_hours": _mean_hours(one, name) for name in ("idle", "stranded", "reconfiguring")},
        "by_class": [_class_row(one, target, *group) for group in enumerate(target.groups)],
        "wait_over_target": target.strain(one.weeks),
        "never_started": sum(week.never_started for week in one.weeks),
        "misfits": [
            {"reason": reason, "jobs": jobs}
            for reason, jobs in Counter(why for week in one.weeks for why in week.misfits).most_common(3)
        ],
        "changes": float(np.mean([week.changes for week in one.weeks])),
        "changes_given_up": float(np.mean([week.given_up for week in one.weeks])),
        "meets_target": target.met(one.weeks),
        "knobs": dict(one.setting.knobs),
    }


def _mean_hours(one: JudgedPolicy, name: str) -> float:
    return float(np.mean([week.hours[name] for week in one.weeks]))


def told_apart(policies: Sequence[JudgedPolicy], winner: str) -> list[dict[str, Any]]:
    """Each policy against the winner, on the same drawn weeks: what surely differs, in this table as a whole.

    Returns
    -------
    list of dict
        ``measure, unit, policy, difference, low, high, p_holm, verdict`` of
        :func:`~gpuplanner.metrics.rank_policies`, without the winner's own rows.
    """
    weeks = pl.DataFrame(
        [
            {
                "policy": one.policy, "replication": number, "gpu_hours": week.gpu_hours,
                "wait_mean_min": float(week.waits_s.mean()) / SECONDS_PER_MINUTE,
            }
            for one in policies
            for number, week in enumerate(one.weeks)
        ]
    )  # fmt: skip
    table = rank_policies(weeks, baseline=winner, measures=TOLD_APART_BY, level=LEVEL)
    shown = ("measure", "unit", "policy", "difference", "low", "high", "p_holm", "verdict")
    return table.filter(pl.col("policy") != winner).select(shown).to_dicts()


def _class_row(
    one: JudgedPolicy, target: ServiceTarget, place: int, group: tuple[int, ...]
) -> dict[str, Any]:
    waits = np.concatenate([week.waits_of(group) for week in one.weeks])
    held = target.weeks_held(one.held_back)[place] if one.held_back else None
    p50, p99 = (wait_quantile(one.weeks, group, level) / SECONDS_PER_MINUTE for level in (0.5, 0.99))
    return {
        "size_class": target.names()[place],
        "jobs": len(waits),
        "wait_mean_min": float(waits.mean()) / SECONDS_PER_MINUTE,
        "wait_p50_min": p50,
        "wait_quantile_min": wait_minutes(one, group, target.quantile),
        "wait_p99_min": p99,
        "target_min": target.minutes[place],
        "held_back_weeks_held": held,
    }


def wait_minutes(one: JudgedPolicy, group: tuple[int, ...], quantile: float) -> float:
    """Wait within which that share of the jobs of a group has started, over all drawn weeks [min]."""
    return wait_quantile(one.weeks, group, quantile) / SECONDS_PER_MINUTE
