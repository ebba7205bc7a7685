"""Policies that never change: whole GPUs, and one mix of MIG layouts, as few as hold the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, Fleet
from gpuplanner.study.equal_service.play import PolicySetting
from gpuplanner.study.equal_service.tuning import Arena, Trial, cheaper_of
from gpuplanner.study.future.sweep import static_mixes

STATIC_WHOLE, STATIC_MIG = "static_whole", "static_mig"
MIXES = 4
"""Mixes that are tried for a number of GPUs: those with the least load of the profile that is shortest."""
ROUNDS = 12
"""Rounds in which GPUs are taken from a mix that holds the target."""


def static_whole(gpus: int) -> PolicySetting:
    """Whole GPUs, all on, and no more than so many."""
    return PolicySetting(STATIC_WHOLE, "whole", Calendar.constant({WHOLE_GPU: gpus}), {"gpus": gpus})


def tune_static_whole(arena: Arena, unit: int) -> Trial | None:
    """As few whole GPUs as hold the target, in steps of `unit`."""
    most = arena.fleet.gpus // unit
    return arena.least(lambda units: static_whole(units * unit), 1, most)


def static_mig(mix: Mapping[str, int]) -> PolicySetting:
    """One mix of layouts for right-sized requests."""
    kept = {layout: count for layout, count in mix.items() if count}
    return PolicySetting(
        STATIC_MIG, "rightsized", Calendar.constant(kept), {"gpus": sum(kept.values()), **kept}
    )


def tune_static_mig(arena: Arena, unit: int) -> Trial | None:
    """As few GPUs as hold the target in any mix of layouts that the search finds.

    Jobs on instances alone give the least number of cut GPUs and their mix, jobs on whole GPUs then how many of
    these stand beside them; from there GPUs are taken one at a time, of whichever layout can spare one.
    """
    mix = _mix_for_slices(arena)
    if mix is None:
        return None
    cut = sum(mix.values())
    first = -(-cut // unit) * unit - cut

    def setting_of(units: int) -> PolicySetting:
        return static_mig({**mix, WHOLE_GPU: first + units * unit})

    best = arena.least(setting_of, 0, (arena.fleet.gpus - cut - first) // unit)
    return None if best is None else _trimmed(arena, best, unit)


def _mix_for_slices(arena: Arena) -> dict[str, int] | None:
    """The least number of cut GPUs on which jobs that need instances alone hold the target."""
    weeks = [week.only("rightsized", pl.col("profile") != WHOLE_GPU) for week in arena.weeks]
    asked = pl.concat([week.asked["rightsized"] for week in weeks])
    if asked.is_empty():
        return {}
    alone = Arena(arena.fleet, arena.rules, weeks, arena.target)

    def best_of(gpus: int) -> PolicySetting | None:
        mixes = [static_mig(mix) for mix in _mixes(asked, arena.fleet, gpus)]
        return min(mixes, key=lambda mix: alone.trial(mix).excess, default=None)

    found = alone.least(best_of, 1, arena.fleet.gpus)
    return None if found is None else _mix_of(found)


def _mixes(asked: pl.DataFrame, fleet: Fleet, gpus: int) -> list[dict[str, int]]:
    try:
        mixes = static_mixes(asked, Fleet(fleet.board, 1, gpus), most=MIXES)
    except ScenarioError:  # too few GPUs for every profile to have an instance
        return []
    return [
        dict(zip(calendar.layouts, calendar.counts[0].tolist(), strict=True)) for calendar in mixes.values()
    ]


def _trimmed(arena: Arena, best: Trial, unit: int) -> Trial:
    """Take GPUs from a mix while the target is held."""
    for _ in range(ROUNDS):
        found = cheaper_of(arena.trial(static_mig(mix)) for mix in _smaller(_mix_of(best), unit))
        if found is None:
            return best
        best = found
    return best


def _smaller(mix: Mapping[str, int], unit: int) -> Iterator[dict[str, int]]:
    """All mixes with `unit` GPUs less of one layout, most numerous first."""
    for layout, count in sorted(mix.items(), key=lambda item: -item[1]):
        if count >= unit and sum(mix.values()) > unit:
            yield {**mix, layout: count - unit}


def _mix_of(trial: Trial) -> dict[str, int]:
    return {name: int(count) for name, count in trial.setting.knobs.items() if name != "gpus"}
