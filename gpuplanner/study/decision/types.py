"""What a decision is made of: the one place that every figure of the first screen is read from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

TODAY, STATIC_WHOLE, STATIC_MIG = "today", "static_whole", "static_mig"
ON_OFF, NODE_POOLS, ON_DEMAND = "whole_on_off", "node_pools", "cut_on_demand"
"""Ways to run a fleet; what each means stands in ``policies``."""
ACTIONS = ("keep", "cut", "give_back", "buy", "unknown")
HELD_BACK, LEFT_OUT, PEAKS = "held-back weeks", "left-out days", "peaks only"
NEVER_RAN, NO_GPU = "no job states when it ran", "no job asked for a GPU"
"""Why nothing can be played."""
DECIMALS = 6
CUT_BY_JOBS = "on demand"
"""Layout of GPUs that hold what the jobs on them ask for."""
CONFIDENCES = (HELD_BACK, LEFT_OUT, PEAKS)
"""What a decision rests on, the strongest first."""


@dataclass(frozen=True)
class LayoutOnNodes:
    """So many GPUs of one layout, and the nodes that they are on, with how many on each; both are empty if unnamed.

    ``whole`` is not cut; of ``on demand`` every job gets an instance that is made for it.
    """

    layout: str
    gpus: int
    nodes: tuple[str, ...] = ()
    by_node: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shortage:
    """What the fleet itself kept waiting: a week's waiting [GPU h] and jobs, and the GPUs more that would end it.

    ``by_place`` of the jobs waited although enough slices were free, on nodes where they did not fit together.
    """

    gpu_hours: float
    jobs: int
    by_place: int
    gpus_needed: int | None
    by_class: tuple[ClassShortage, ...] = ()


@dataclass(frozen=True)
class ClassShortage:
    """The shortage of one size class: hours of waiting and jobs a week, parted by cause."""

    size_class: str
    hours: float
    jobs: int
    by_count: int
    by_place: int


@dataclass(frozen=True)
class Saving:
    """GPU-hours a week that are saved, with a 90 % interval for a week to come; None with a reason where none is."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    realised: tuple[float, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether weeks are known to differ in what they save."""
        return None not in (self.low, self.high) and self.low != self.high


@dataclass(frozen=True)
class NextPurchase:
    """When GPUs are bought next, under today's way and under the recommended one, and what they cost.

    - ``today``, ``then``: ISO days; None: not in sight.
    - ``gpus``: The least that is bought at once, a node.
    - ``capital``: What these cost in ``currency``, by the newest lot of the price book; None where it has none.
    """

    today: str | None
    then: str | None
    gpus: int = 0
    capital: float | None = None
    currency: str = "USD"


@dataclass(frozen=True)
class Worth:
    """What a saving is worth to its owner: money only where somebody is paid less for it.

    It is electricity (``kwh_per_week``), rent that is not paid, or a purchase that moves.
    """

    ownership: str
    usd_per_week: float | None
    basis: str
    kwh_per_week: float | None = None
    purchase: NextPurchase | None = None


@dataclass(frozen=True)
class ClassService:
    """How much later a size class starts than today, and how much it may [min]."""

    size_class: str
    jobs: int
    today_minutes: float
    minutes: float
    limit_minutes: float

    @property
    def added_minutes(self) -> float:
        """Minutes over today's own."""
        return self.minutes - self.today_minutes


@dataclass(frozen=True)
class Service:
    """How late jobs start: the largest difference to today over all classes, and who pays [min]."""

    quantile: float
    added_minutes: float
    by_class: tuple[ClassService, ...] = ()
    later_share: float | None = None
    longest_minutes: float | None = None
    never_started: int = 0


@dataclass(frozen=True)
class RunOutSide:
    """First week in which a fleet no longer holds the target, more likely than not; None with a reason.

    - ``by_week``: First day of each week ahead, and the chance that it has happened by its end.
    - ``need_by_week``: GPUs needed in each of these weeks: first day, and the 5 %, 50 % and 95 % quantiles.
    - ``needed``: The need of past weeks, by their first day.
    """

    date: str | None
    by_week: tuple[tuple[str, float], ...] = ()
    reason: str | None = None
    need_by_week: tuple[tuple[str, float, float, float], ...] = ()
    needed: tuple[tuple[str, float], ...] = ()

    @property
    def growth(self) -> float | None:
        """Growth of the most likely need from the first week ahead to the last, as a share; None if it is not known."""
        if not self.need_by_week or not self.need_by_week[0][2]:
            return None
        return self.need_by_week[-1][2] / self.need_by_week[0][2] - 1.0


@dataclass(frozen=True)
class RunOut:
    """Run-out under today's way and under the recommended one."""

    today: RunOutSide
    recommended: RunOutSide


@dataclass(frozen=True)
class Missing:
    """Evidence that would make the decision better, and the command that adds it."""

    what: str
    command: str


@dataclass(frozen=True)
class TeamRow:
    """GPU-hours of a team in the window; None: nobody measured it. ``nobody`` is the row of hours that no team held."""

    team: str
    held_gpu_hours: float
    idle_gpu_hours: float | None
    jobs: int


@dataclass(frozen=True)
class Decision:
    """One answer for one fleet.

    - ``sentence``: The decision in words.
    - ``action``: One of :data:`ACTIONS`.
    - ``fleet_gpus``, ``gpus``, ``gpus_mean``: GPUs installed, GPUs that are on at once at most under the recommended
      way, and their mean.
    - ``layouts``: How they are cut; their GPUs sum to ``gpus``.
    - ``policy``, ``path``: The recommended way, and who performs it.
    - ``confidence``: One of :data:`CONFIDENCES`.
    - ``gpus_hold_rate``: Share of the windows left out of tuning in which ``gpus`` were enough.
    """

    sentence: str
    action: str
    fleet_gpus: int
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    policy: str
    path: str
    confidence: str
    shortage: Shortage
    saving: Saving
    worth: Worth
    service: Service
    run_out: RunOut
    horizon_days: int
    purchase_lead_days: int
    monday: tuple[str, ...]
    missing: tuple[Missing, ...]
    teams: tuple[TeamRow, ...] = ()
    how_sure: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    gpus_hold_rate: float | None = None
    left_out_share: float = 0.0
    fleet_inferred: bool = False
    board: str | None = None
    telemetry_matched_gpu_hours: float | None = None
    """Observed GPU-hours whose jobs are known [GPU h]; None without telemetry."""

    @property
    def cut_gpus(self) -> int:
        """GPUs that are not whole."""
        return sum(part.gpus for part in self.layouts if part.layout != "whole")

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``: plain values, ``saving`` under its full name."""
        found = dataclasses.asdict(self)
        found["saving_gpu_hours_per_week"] = found.pop("saving")
        for row, one in zip(found["service"]["by_class"], self.service.by_class, strict=True):
            # Of what is shown: a record that is read again gives the same.
            row["added_minutes"] = round(
                round(one.minutes, DECIMALS) - round(one.today_minutes, DECIMALS), DECIMALS
            )
        return found
