"""What a decision is made of: the one place that every figure of the first screen is read from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

TODAY, STATIC_WHOLE, STATIC_MIG = "today", "static_whole", "static_mig"
ON_OFF, NODE_POOLS, ON_DEMAND = "whole_on_off", "node_pools", "cut_on_demand"
"""Ways to run a fleet; what each means stands in ``policies``."""
ACTIONS = (
    "keep", "release", "power_down", "autoscale", "repartition", "rightsize", "pack", "raise_limit", "buy", "none",
)  # fmt: skip
"""First measures of a recommendation; ``none``: there is no recommendation."""
NEVER_RAN, NO_GPU = "no job states when it ran", "no job asked for a GPU"
"""Why nothing can be played."""
DECIMALS = 6
ROUNDING_MINUTES = 1 / 60
"""Waits that differ by less are the same [min]."""
CUT_BY_JOBS = "on demand"
"""Layout of GPUs that hold what the jobs on them ask for."""


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
class Measure:
    """One step of a recommendation.

    - ``action``: One of :data:`ACTIONS`.
    - ``text``: What to do.
    - ``gpus``: GPUs that are provisioned from then on.
    - ``condition``: What has to be in force before; None: nothing.
    """

    action: str
    text: str
    gpus: int
    condition: str | None = None


@dataclass(frozen=True)
class NextStep:
    """What somebody does next.

    - ``command``: What to type; None where there is nothing.
    - ``action``: The measure that it is a part of; None: of none.
    """

    who: str
    what: str
    command: str | None = None
    action: str | None = None

    @property
    def text(self) -> str:
        """All of it in a line.

        Examples
        --------
        >>> NextStep("planner", "check again in a week", "gpuplanner start data").text
        'planner: check again in a week: gpuplanner start data'
        """
        return ": ".join(filter(None, (self.who, self.what, self.command)))


@dataclass(frozen=True)
class SizeService:
    """Queue waits of the jobs of one size, as observed, simulated today, and under the recommendation. In minutes.

    - ``low``, ``high``: 80 % interval of the p95 wait under the recommendation.
    - ``jobs_delayed``: Jobs of the record that wait longer under the recommendation.
    - ``limit_minutes``: What the p95 wait is held to.
    """

    size: str
    jobs: int
    observed_p95_minutes: float
    today_p95_minutes: float
    recommended_p95_minutes: float
    low: float
    high: float
    today_mean_minutes: float
    recommended_mean_minutes: float
    jobs_delayed: int
    limit_minutes: float

    @property
    def added_p95_minutes(self) -> float:
        """How much longer the p95 wait is under the recommendation than simulated today [min]."""
        return self.recommended_p95_minutes - self.today_p95_minutes

    @property
    def replay_is_apart(self) -> bool:
        """Whether the p95 wait simulated today is more than a minute and a tenth off what was observed."""
        apart = abs(self.today_p95_minutes - self.observed_p95_minutes)
        return apart > max(1.0, 0.1 * self.observed_p95_minutes)

    @property
    def meets_limit(self) -> bool:
        """Whether the p95 wait is within the limit under the recommendation."""
        return self.recommended_p95_minutes <= self.limit_minutes + ROUNDING_MINUTES


@dataclass(frozen=True)
class CurvePoint:
    """Waits of the jobs of one size on so many GPUs.

    - ``layout``: ``today``, or ``recommended`` where the recommendation changes more than the number of GPUs.
    - ``p95_minutes``, ``low``, ``high``: 95th percentile of the queue wait, and its 80 % interval [min].
    - ``mean_minutes``: Mean queue wait [min].
    - ``utilization``: Share of the provisioned GPU-hours that jobs of all sizes hold.
    - ``gpu_hours``: GPU-hours provisioned a week.
    """

    layout: str
    gpus: int
    job_size: str
    p95_minutes: float
    low: float
    high: float
    mean_minutes: float
    utilization: float
    gpu_hours: float


@dataclass(frozen=True)
class Headroom:
    """Factor of load at which the wait target breaks, and its 80 % interval over drawn records."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True)
class WeeklyGrowth:
    """Growth of the submitted work a week and its 80 % interval: 0.05 for 5 %. None where there is a reason."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Exhaustion:
    """When the growing load breaks the wait target, or why no date is given.

    - ``date``: ISO day by which it does as likely as not.
    - ``probability``: Chance that it does within a year after the record.
    - ``order_by``: ISO day on which more GPUs have to be ordered.
    - ``reason``: Why there is no date.
    """

    date: str | None = None
    probability: float | None = None
    order_by: str | None = None
    reason: str | None = None


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
    """When GPUs are bought next, and what they cost.

    - ``date``, ``order_by``: ISO days on which they are needed and have to be ordered.
    - ``gpus``: The least that is bought at once, a node.
    - ``capital``: What these cost in ``currency``, by the newest lot of the price book; None where it has none.
    """

    date: str
    order_by: str
    gpus: int = 0
    capital: float | None = None
    currency: str = "USD"


@dataclass(frozen=True)
class Worth:
    """What a saving is worth to its owner: money only where somebody is paid less for it.

    It is electricity (``kwh_per_week``), rent that is not paid, or a purchase that is ahead.
    """

    ownership: str
    usd_per_week: float | None
    basis: str
    kwh_per_week: float | None = None
    purchase: NextPurchase | None = None


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

    - ``action``, ``reason``: The first measure, one of :data:`ACTIONS`; why nothing is recommended or to be done.
    - ``measures``: What to do, in order.
    - ``sentence``: The decision in words.
    - ``fleet_gpus``, ``gpus``, ``gpus_mean``: GPUs installed, GPUs that are provisioned at most under the
      recommendation, and their mean.
    - ``layouts``: How they are partitioned; their GPUs sum to ``gpus``.
    - ``policy``, ``path``: How the fleet is run as recommended, and who performs it.
    - ``service``: Queue waits by job size.
    - ``conditions``: What has to be in force for the later measures to hold.
    """

    sentence: str
    action: str
    fleet_gpus: int
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    policy: str
    path: str
    saving: Saving
    worth: Worth
    purchase_lead_days: int
    reason: str | None = None
    measures: tuple[Measure, ...] = ()
    service: tuple[SizeService, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    conditions: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    teams: tuple[TeamRow, ...] = ()
    how_sure: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    left_out_share: float = 0.0
    fleet_inferred: bool = False
    board: str | None = None
    telemetry_matched_gpu_hours: float | None = None
    """Observed GPU-hours whose jobs are known [GPU h]; None without telemetry."""

    @property
    def cut_gpus(self) -> int:
        """GPUs that are not whole."""
        return sum(part.gpus for part in self.layouts if part.layout != "whole")

    @property
    def latest(self) -> SizeService | None:
        """The job size whose p95 wait is longest today; None without any."""
        return max(self.service, key=lambda one: one.today_p95_minutes, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``: plain values, ``saving`` under its full name."""
        found = dataclasses.asdict(self)
        found["saving_gpu_hours_per_week"] = found.pop("saving")
        return found
