"""The decisions of several pools as one: what is kept, given back and bought in all, and what it saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import DECIMALS, Decision
from gpuplanner.units import counted


@dataclass(frozen=True)
class FleetDecision:
    """What the decisions of all pools come to.

    - ``fleet_gpus``, ``gpus``: GPUs there are, and GPUs on at once at most in each pool, added up.
    - ``saving``: GPU-hours a week that the pools save, with the sum of their intervals' ends: as wide as if all pools
      erred the same way. None where none is saved.
    - ``usd_per_week``: Money of those that are paid less for; None where no pool is.
    """

    fleet_gpus: int
    gpus: int
    saving: float | None
    low: float | None
    high: float | None
    usd_per_week: float | None


def fleet_decision(decisions: Mapping[str, Decision]) -> FleetDecision:
    """Add up the decisions of pools that share no GPU and no job.

    Examples
    --------
    >>> fleet_decision({}).gpus
    0
    """
    saved = [one.saving for one in decisions.values() if one.saving.value is not None]
    paid = [one.worth.usd_per_week for one in decisions.values() if one.worth.usd_per_week is not None]
    known = bool(saved) and all(one.low is not None and one.high is not None for one in saved)
    return FleetDecision(
        fleet_gpus=sum(one.fleet_gpus for one in decisions.values()),
        gpus=sum(one.gpus for one in decisions.values()),
        saving=round(sum(one.value or 0.0 for one in saved), DECIMALS) if saved else None,
        low=round(sum(one.low or 0.0 for one in saved), DECIMALS) if known else None,
        high=round(sum(one.high or 0.0 for one in saved), DECIMALS) if known else None,
        usd_per_week=round(sum(paid), DECIMALS) if paid else None,
    )


def fleet_sentence(decisions: Mapping[str, Decision]) -> str:
    """The decision on the whole fleet in words: how many GPUs of how many, what is saved, and which pools do what."""
    one = fleet_decision(decisions)
    text = f"Of {one.fleet_gpus:,} GPUs in {counted(len(decisions), 'pool')}, {one.gpus:,} are needed at once"
    if one.saving is not None:
        span = "" if one.low is None else f" (range {one.low:,.0f} to {one.high:,.0f})"
        text += f": {one.saving:,.0f} GPU-hours a week are saved{span}"
    by_action: dict[str, list[str]] = {}
    for name, own in decisions.items():
        by_action.setdefault(own.action, []).append(name)
    parts = [f"{', '.join(names)}: {action.replace('_', ' ')}" for action, names in by_action.items()]
    return f"{text}. {'; '.join(parts)}."


@dataclass(frozen=True)
class FleetCompared:
    """What was compared and decided for each pool, by name."""

    pools: Mapping[str, Comparison]

    @property
    def decisions(self) -> dict[str, Decision]:
        """The decision of each pool."""
        return {name: one.decision for name, one in self.pools.items()}

    @property
    def sentence(self) -> str:
        """The decision on the whole fleet in words."""
        return fleet_sentence(self.decisions)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``compare --json`` for several pools: each by its name, and their sum."""
        pools = {name: one.to_dict() for name, one in self.pools.items()}
        return {"fleet": vars(fleet_decision(self.decisions)), "pools": pools}


def decision_table(decisions: Mapping[str, Decision]) -> pl.DataFrame:
    """A row for each pool: GPUs there are, GPUs needed, what to do, and what it saves."""
    rows = [
        {
            "pool": name, "gpus": one.fleet_gpus, "needed": one.gpus, "cut_gpus": one.cut_gpus,
            "action": one.action.replace("_", " "), "saved_gpu_hours": one.saving.value,
        }
        for name, one in decisions.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)
