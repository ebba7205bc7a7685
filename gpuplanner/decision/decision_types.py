"""The types of a decision, and its financial impact by ownership of the GPUs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIP_RESERVED
from gpuplanner.core.units_and_number_formats import count_text, day_text, wait_text
from gpuplanner.cost.period_costs import find_power_model, find_price, find_price_per_kwh, find_pue, load_price_book
from gpuplanner.hardware.actuators import (
    UNNEEDED_NODES_RETURNED,
    ActuatorAbilities,
    find_scenario_abilities,
    parse_ownership,
)
from gpuplanner.hardware.power_carbon_and_prices import (
    GpuHourPrice,
    GpuPowerModel,
    compute_facility_kwh,
    compute_gpu_kwh,
)
from gpuplanner.usage.planning_history import History, history

CAUSES = ("insufficient", "fragmented", "wrong_layout", "queued_behind", "limits", "unexplained")
"""Causes of waiting: insufficient capacity; enough, but fragmented; enough of the GPU model, but other instances; the
job fits, and others precede it by the queue rule; it fits, and its tenant is at its limit; it fits, unexplained."""

TODAY: str = "today"
"""Name of the policy that leaves today's fleet as it is."""
FEWER_NODES: str = "fewer_nodes"
"""Name of the policy with fewer nodes, all powered on."""
MIG_STATIC: str = "mig_static"
"""Name of the policy with fixed MIG layouts."""
POWER_DOWN_IDLE: str = "power_down_idle"
"""Name of the policy that powers idle nodes down."""
AUTOSCALED_POOLS: str = "autoscaled_pools"
"""Name of the policy with autoscaled pools of full and MIG-partitioned nodes."""
MIG_DYNAMIC: str = "mig_dynamic"
"""Name of the policy that creates a MIG instance for each job."""
PARTITION_ACTIONS = ("repartition", "rightsize")
"""Actions that change MIG layouts; ``rightsize`` also asks teams for other requests."""
WAIT_REDUCING_ACTIONS = (*PARTITION_ACTIONS, "pack", "raise_limit")
"""Actions that shorten queue waits on the same number of GPUs: the next measure waits until they have done so."""
IDLE_ACTIONS = ("power_down", "autoscale")
"""Actions that switch idle nodes off; jobs may wait for a node to power up."""
ACTIONS = ("keep", "none", "release", "buy", *WAIT_REDUCING_ACTIONS, *IDLE_ACTIONS)
"""Actions of recommended measures; ``keep``: no change; ``none``: no recommendation."""
REASON_NO_RUN_TIMES, REASON_NO_GPU_REQUESTED = "no job states when it ran", "no job requested a GPU"
"""Reasons why nothing can be simulated."""
REASON_NO_JOB_LIST = "no list of jobs"
"""Reason why services are planned alone."""
RECORD_DECIMALS = 6
"""Decimals to which numbers are rounded in decisions and comparisons on disk."""
WAIT_TOLERANCE_MINUTES = 1 / 60
"""Largest difference between two queue waits that count as equal [min]."""
LAYOUT_PER_JOB = "on demand"
"""Layout name of GPUs on which a MIG instance is created for each job."""
LAYOUT_FULL = "full"
"""Name of the layout of a full GPU (MIG disabled) in decisions; as a MIG profile it is ``schemas.FULL_GPU``."""


@dataclass(frozen=True)
class LayoutOnNodes:
    """GPUs of one layout and their nodes, with the number on each node; nodes are empty if they have no names.

    ``full`` is a GPU with MIG disabled; with ``on demand`` each job gets an instance created for it. GPUs
    ``to_buy`` are on ``new_nodes`` that have no names yet; their ``by_node`` counts the GPUs on each node that is
    bought, 0 included.
    """

    layout: str
    gpus: int
    nodes: tuple[str, ...] = ()
    by_node: tuple[int, ...] = ()
    to_buy: bool = False
    new_nodes: int = 0

    @property
    def node_text(self) -> str:
        """Names of the nodes, or the number of those to buy."""
        return f"to buy, on {count_text(self.new_nodes, 'new node')}" if self.to_buy else ", ".join(self.nodes)


def format_node_count(gpus: int, nodes: int) -> str:
    """Format GPUs as a number of nodes of equal size; as GPUs if they cannot be divided equally among the nodes.

    Examples
    --------
    >>> format_node_count(8, 2), format_node_count(8, 1), format_node_count(3, 0)
    ('2 nodes of 4 GPUs', '1 node of 8 GPUs', '3 GPUs')
    """
    return f"{count_text(nodes, 'node')} of {count_text(gpus // nodes, 'GPU')}" if nodes else count_text(gpus, "GPU")


@dataclass(frozen=True)
class Measure:
    """One measure of a recommendation.

    - ``action``: One of :data:`ACTIONS`.
    - ``text``: Description of the measure.
    - ``gpus``: GPUs that are provisioned with it.
    - ``condition``: Measure that has to be applied before; None: none.
    """

    action: str
    text: str
    gpus: int
    condition: str | None = None


@dataclass(frozen=True)
class NextStep:
    """One next step, with its role.

    - ``who``: Role that does it.
    - ``what``: Task.
    - ``command``: Command to run; None if there is none.
    - ``action``: Action of the measure that it belongs to; None: of none.
    """

    who: str
    what: str
    command: str | None = None
    action: str | None = None

    @property
    def text(self) -> str:
        """Role, task and command in one line.

        Examples
        --------
        >>> NextStep("planner", "check again in a week", "gpuplanner start data").text
        'planner: check again in a week: gpuplanner start data'
        """
        return ": ".join(filter(None, (self.who, self.what, self.command)))


def has_interval(p95_minutes: float, low: float, high: float) -> bool:
    """Whether the interval of resampled weeks is one of a p95 wait [min], which lies within it.

    A resampled week takes days of the record at random: where a queue lasts for days, its waits are not those of the
    record, so that its interval is none of the wait in the record.

    Examples
    --------
    >>> has_interval(75.0, 28.0, 150.0), has_interval(1414.0, 503.6, 989.5)
    (True, False)
    """
    return low - WAIT_TOLERANCE_MINUTES <= p95_minutes <= high + WAIT_TOLERANCE_MINUTES


@dataclass(frozen=True)
class JobSizeWaits:
    """Queue waits of the jobs of one size: observed, simulated today, and simulated as recommended [min].

    - ``low``, ``high``: 80 % interval of the p95 wait as recommended, over resampled weeks.
    - ``today_low``, ``today_high``: The same with the GPUs and layouts of today.
    - ``jobs_delayed``: Jobs that wait longer as recommended than today.
    - ``limit_minutes``: Limit of the p95 wait.
    - ``today_completion_minutes``, ``completion_minutes``: Mean time from eligibility to end, simulated today and as
      recommended; ``completion_low``, ``completion_high``: 80 % interval of the latter over resampled weeks.
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
    today_low: float
    today_high: float
    today_completion_minutes: float | None = None
    completion_minutes: float | None = None
    completion_low: float | None = None
    completion_high: float | None = None

    @property
    def added_p95_minutes(self) -> float:
        """Change of the p95 wait from today to the recommendation, both simulated [min]."""
        return self.recommended_p95_minutes - self.today_p95_minutes

    @property
    def replay_deviates(self) -> bool:
        """Whether the p95 wait simulated today differs from the observed one by over a minute and over 10 %."""
        error_minutes = abs(self.today_p95_minutes - self.observed_p95_minutes)
        return error_minutes > max(1.0, 0.1 * self.observed_p95_minutes)

    @property
    def meets_limit(self) -> bool:
        """Whether the p95 wait as recommended is within its limit."""
        return self.recommended_p95_minutes <= self.limit_minutes + WAIT_TOLERANCE_MINUTES

    @property
    def is_no_worse(self) -> bool:
        """Whether the p95 wait as recommended is within its limit, or no longer than today."""
        return self.meets_limit or self.added_p95_minutes <= WAIT_TOLERANCE_MINUTES

    @property
    def misses_if_resampled(self) -> bool:
        """Whether the p95 wait as recommended is within its limit, but not in most resampled weeks."""
        return self.meets_limit and self.low > self.limit_minutes

    @property
    def rises_if_resampled(self) -> bool:
        """Whether it misses its limit in resampled weeks, and waits longer there than today."""
        return self.misses_if_resampled and self.low > self.today_high


@dataclass(frozen=True)
class CurvePoint:
    """Queue waits of the jobs of one size on a number of GPUs.

    - ``layout``: ``today``, or ``recommended`` if the recommendation changes more than the number of GPUs.
    - ``p95_minutes``, ``low``, ``high``: 95th percentile of the queue wait, and its 80 % interval [min]. None, as in
      all other waits and times: jobs that it counts do not start within the length of the record.
    - ``mean_minutes``: Mean queue wait [min].
    - ``allocation_rate``: Share of the provisioned GPU-hours that is allocated to jobs [0-1].
    - ``gpu_hours``: GPU-hours provisioned a week.
    - ``completion_minutes``, ``completion_low``, ``completion_high``: Mean time from eligibility to end, and its 80 %
      interval [min].
    """

    layout: str
    gpus: int
    job_size: str
    p95_minutes: float | None
    low: float | None
    high: float | None
    mean_minutes: float | None
    allocation_rate: float
    gpu_hours: float
    completion_minutes: float | None = None
    completion_low: float | None = None
    completion_high: float | None = None

    @property
    def p95_text(self) -> str:
        """The p95 wait as text."""
        return "no start within the record" if self.p95_minutes is None else wait_text(self.p95_minutes)

    def exceeds(self, limit_minutes: float) -> bool:
        """Whether the p95 wait exceeds a limit [min]."""
        return self.p95_minutes is None or self.p95_minutes > limit_minutes + WAIT_TOLERANCE_MINUTES


@dataclass(frozen=True)
class Headroom:
    """Load at which the wait target is missed, as a factor of the observed load, and its 80 % interval."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True)
class WeeklyGrowth:
    """Growth of the submitted work a week and its 80 % interval: 0.05 for 5 %; None with a reason."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @property
    def log_slope(self) -> float:
        """Growth of the logarithm a week; 0 if the interval includes no growth."""
        is_significant = (self.low or 0.0) * (self.high or 0.0) > 0
        return math.log1p(self.value or 0.0) if is_significant else 0.0


@dataclass(frozen=True)
class Exhaustion:
    """Exhaustion date: when growth exhausts the capacity, or why no date is given.

    - ``date``: ISO day by which exhaustion is as likely as not.
    - ``probability``: Probability of exhaustion within a year after the record.
    - ``order_by``: ISO day by which more GPUs have to be ordered.
    - ``reason``: Why there is no date.
    """

    date: str | None = None
    probability: float | None = None
    order_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Saving:
    """Provisioned GPU-hours saved a week, with a 90 % interval of a future week; None with a reason.

    ``realised`` has the GPU-hours saved in each week of the evaluation window.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    realised: tuple[float, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether the interval has a width."""
        return None not in (self.low, self.high) and self.low != self.high


@dataclass(frozen=True)
class NextPurchase:
    """Date and cost of the next purchase of GPUs.

    - ``date``, ``order_by``: ISO days on which the GPUs are needed and have to be ordered.
    - ``gpus``: Fewest GPUs that can be bought: a node.
    - ``capital``: Their cost in ``currency``, by the newest lot of the price book; None if the book has none.
    """

    date: str
    order_by: str
    gpus: int = 0
    capital: float | None = None
    currency: str = "USD"


@dataclass(frozen=True)
class FinancialImpact:
    """Financial impact of a saving: money only if spend falls.

    - ``ownership``: Owned, rented or reserved GPUs, or ``unknown``.
    - ``usd_per_week``: Spend that ends [USD a week]; None if it is not known.
    - ``basis``: Sentences on the sum.
    - ``kwh_per_week``: Electricity saved [kWh a week].
    - ``purchase``: Next purchase, if growth exhausts the capacity.
    """

    ownership: str
    usd_per_week: float | None
    basis: str
    kwh_per_week: float | None = None
    purchase: NextPurchase | None = None


@dataclass(frozen=True)
class MissingEvidence:
    """Data that would improve the decision, and the command that adds them."""

    what: str
    command: str


@dataclass(frozen=True)
class TeamRow:
    """GPU-hours and queue waits of a team in the period; None: not measured.

    - ``team``: Name of the team; ``__unallocated__`` for GPU-hours that were allocated to no team.
    - ``allocated_gpu_hours``, ``idle_gpu_hours``, ``busy_gpu_hours``: GPU-hours allocated, and of these measured idle
      and measured busy.
    - ``today_mean_minutes``, ``recommended_mean_minutes``: Mean queue wait, simulated today and as recommended [min].
    """

    team: str
    allocated_gpu_hours: float
    idle_gpu_hours: float | None
    jobs: int
    busy_gpu_hours: float | None = None
    today_mean_minutes: float | None = None
    recommended_mean_minutes: float | None = None


@dataclass(frozen=True)
class Decision:
    """The decision on one fleet.

    - ``action``, ``reason``: Action of the first measure, one of :data:`ACTIONS`; why nothing is recommended or to do.
    - ``measures``: Measures in order.
    - ``sentence``: The decision in one sentence.
    - ``fleet_gpus``, ``gpus``, ``gpus_mean``: GPUs installed; peak and mean of the GPUs provisioned as recommended.
    - ``layouts``: MIG layouts of the ``gpus``.
    - ``policy``, ``actuator``: Recommended policy, and the actuator that applies it.
    - ``service``: Queue waits by job size.
    - ``conditions``: Measures that later measures depend on.
    - ``missing``: Data that would raise the confidence.
    - ``confidence``, ``assumptions``: Sentences on the evidence, and on what is assumed.
    - ``left_out_share``: Share of the GPU-hours of the record that no figure counts [0-1].
    - ``fleet_inferred``: Whether the installed GPUs are inferred from jobs, as there is no node list.
    """

    sentence: str
    action: str
    fleet_gpus: int
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    policy: str
    actuator: str
    saving: Saving
    financial_impact: FinancialImpact
    purchase_lead_days: int
    reason: str | None = None
    measures: tuple[Measure, ...] = ()
    service: tuple[JobSizeWaits, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    conditions: tuple[str, ...] = ()
    missing: tuple[MissingEvidence, ...] = ()
    teams: tuple[TeamRow, ...] = ()
    confidence: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    left_out_share: float = 0.0
    fleet_inferred: bool = False
    gpu_model: str | None = None
    telemetry_matched_gpu_hours: float | None = None
    """Observed GPU-hours whose jobs are known [GPU h]; None without telemetry."""
    today_mean_minutes: float | None = None
    recommended_mean_minutes: float | None = None
    """Mean queue wait of all jobs, simulated today and as recommended [min]; None: not known."""
    arrival_scale: float = 1.0
    """Demand over the recorded one; at another one the ``observed`` waits of ``service`` are those simulated today."""

    @property
    def demand_text(self) -> str:
        """Demand such as ``× 1.30 the recorded demand``; empty at the recorded one."""
        return "" if self.arrival_scale == 1.0 else f"× {self.arrival_scale:.2f} the recorded demand"

    @property
    def partitioned_gpus(self) -> int:
        """GPUs of today's nodes that are MIG-partitioned."""
        return sum(part.gpus for part in self.layouts if part.layout != LAYOUT_FULL and not part.to_buy)

    @property
    def nodes_to_buy(self) -> dict[tuple[str, ...], int]:
        """Number of nodes to buy by the layouts of their GPUs; a full GPU is ``gpu``."""
        bought = [part for part in self.layouts if part.to_buy]
        names = [FULL_GPU if part.layout == LAYOUT_FULL else part.layout for part in bought]
        nodes = zip(*(part.by_node for part in bought), strict=True)
        return Counter(tuple(np.repeat(names, node).tolist()) for node in nodes)

    @property
    def longest_waiting(self) -> JobSizeWaits | None:
        """Job size with the longest p95 wait today; None without any."""
        return max(self.service, key=lambda service: service.today_p95_minutes, default=None)

    @property
    def has_changes(self) -> bool:
        """Whether there is something to apply; there is not if the fleet is kept or nothing is recommended."""
        return bool(self.measures) or self.policy != TODAY

    @property
    def mean_completion_minutes(self) -> tuple[float, float] | None:
        """Mean time from eligibility to end of all jobs, simulated today and as recommended; None without sizes."""
        times = [(row.today_completion_minutes, row.completion_minutes, row.jobs) for row in self.service]
        complete_rows = np.array([row for row in times if None not in row], dtype=float)
        if not complete_rows.sum():
            return None
        today, after = complete_rows[:, :2].T @ complete_rows[:, 2] / complete_rows[:, 2].sum()
        return float(today), float(after)

    @property
    def most_improved_size(self) -> JobSizeWaits | None:
        """Job size whose p95 wait falls most, by a minute at least; else the size with the longest wait today."""
        improved = min(self.service, key=lambda service: service.added_p95_minutes, default=None)
        return improved if improved is not None and improved.added_p95_minutes <= -1.0 else self.longest_waiting

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``--json``: plain values, with ``saving`` under its full name."""
        values = dataclasses.asdict(self)
        values["saving_gpu_hours_per_week"] = values.pop("saving")
        return values


UNKNOWN_OWNERSHIP = "unknown"
"""Value of ``ownership`` if the owner of the GPUs is not known."""
Amount = tuple[float | None, str]
"""Spend that ends [USD a week], None if it is not known, and a sentence on it."""


def compute_financial_impact(
    saving: Saving,
    *,
    gpus_freed_at_peak: int,
    fleet_gpus: int,
    ownership: str | None,
    power: GpuPowerModel | None,
    price_per_kwh: float,
    currency: str,
    price: GpuHourPrice | None,
    purchase: NextPurchase | None,
    off_gpu_hours: float,
    pue: float,
) -> FinancialImpact:
    """Compute the financial impact of a saving, with a sentence for each part of it.

    Owned GPUs save the electricity of the hours in which they are off, and are free for other work; no rental price
    counts. GPUs rented by the hour save the price of the hours. A reservation is paid until its term ends.

    Parameters
    ----------
    saving : Saving
        GPU-hours saved a week.
    gpus_freed_at_peak : int
        GPUs installed less GPUs provisioned at the peak.
    fleet_gpus : int
        GPUs installed.
    ownership : str or None
        Owned, rented or reserved; None: not known.
    power : GpuPowerModel or None
        Power of the GPU model; None: not known.
    price_per_kwh : float
        Price of electricity. [currency/kWh]
    currency : str
        Its currency, ISO 4217.
    price : GpuHourPrice or None
        Price of a GPU-hour; None: not known.
    purchase : NextPurchase or None
        Next purchase, if growth exhausts the capacity.
    off_gpu_hours : float
        GPU-hours a week in which GPUs are powered down.
    pue : float
        Power usage effectiveness of the building.

    Examples
    --------
    >>> from gpuplanner.hardware.power_carbon_and_prices import make_power_model
    >>> law = make_power_model("H100-80GB-SXM5")
    >>> found = compute_financial_impact(
    ...     Saving(1000.0), gpus_freed_at_peak=6, fleet_gpus=24, ownership="owned",
    ...     power=law, price_per_kwh=0.10, currency="USD", price=None, off_gpu_hours=1000.0, pue=1.5,
    ...     purchase=NextPurchase("2027-11-13", "2027-08-15", 8, 240000.0),
    ... )
    >>> round(found.usd_per_week, 2), round(found.kwh_per_week, 1)
    (10.5, 105.0)
    >>> for sentence in found.basis.split(". "):
    ...     print(sentence)
    6 of 24 GPUs are released, counted here as powered down; other work may use them instead
    Electricity: 105 kWh per week (1,000 GPU-hours powered down, 70 W idle, PUE 1.5), 10.50 USD at 0.1 USD per kWh
    The next purchase, of 8 GPUs or more, 240,000 USD, is due on 13 Nov 2027: order by 15 Aug 2027.
    """
    freed_gpu_hours = max(saving.value or 0.0, 0.0)
    kwh = compute_saved_kwh(power, off_gpu_hours, pue)
    none_text = f"Spend unchanged: {(saving.reason or 'no capacity is freed').rstrip('.')}"
    owned_amount = _price_energy(off_gpu_hours, power, kwh, pue, price_per_kwh, currency)
    rented_amount = _price_rent(freed_gpu_hours, price)
    reserved_text = "Spend unchanged: no GPU is released"
    if gpus_freed_at_peak:
        gpus_text = count_text(gpus_freed_at_peak, "GPU")
        reserved_text = f"Spend unchanged until the term ends; then {gpus_text} need not be reserved again"
    if saving.value is None:
        owned_amount = rented_amount = None, none_text
    released_text = _format_released_gpus(gpus_freed_at_peak, fleet_gpus)
    powered_down_text = _format_released_gpus(gpus_freed_at_peak, fleet_gpus, is_powered_down=off_gpu_hours > 0)
    purchase_text = _format_next_purchase(purchase)
    cases = {
        OWNERSHIP_OWNED: (owned_amount[0], _join_sentences(powered_down_text, owned_amount[1], purchase_text)),
        OWNERSHIP_RENTED: (rented_amount[0], _join_sentences(rented_amount[1])),
        OWNERSHIP_RESERVED: (0.0, _join_sentences(released_text, reserved_text, purchase_text)),
    }
    if (owner := parse_ownership(ownership)) is None:
        freed_text = f"{freed_gpu_hours:,.0f} GPU-hours per week; the ownership of the GPUs is not known."
        lines = [_join_sentences(none_text) if saving.value is None else freed_text]
        lines += [f"If {case}: {text}" for case, (_, text) in cases.items()]
        return FinancialImpact(UNKNOWN_OWNERSHIP, None, "\n".join(lines))
    kwh_saved = kwh if owner == OWNERSHIP_OWNED and saving.value is not None else None
    return FinancialImpact(owner, *cases[owner], kwh_saved, None if owner == OWNERSHIP_RENTED else purchase)


def compute_impact(
    scenario: Scenario,
    saving: Saving,
    gpus: int,
    fleet_gpus: int,
    exhaustion: Exhaustion | None = None,
    *,
    permanent: bool = False,
) -> FinancialImpact:
    """Compute the financial impact of a saving with the prices and the ownership of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Data, prices and actuator.
    saving : Saving
        GPU-hours saved a week.
    gpus, fleet_gpus : int
        GPUs provisioned as recommended, and installed.
    exhaustion : Exhaustion, optional
        Exhaustion date; it makes a purchase due, at the price of the newest lot of the price book.
    permanent : bool
        GPUs leave the fleet, so they draw no power, whatever the actuator can switch.
    """
    job_history = history(scenario)
    stated = scenario.ownership or find_stated_ownership(job_history.trace.inventory)
    purchase = None
    if exhaustion is not None and exhaustion.date is not None and exhaustion.order_by is not None:
        node_gpus, lots = job_history.fleet.node_size, load_price_book(scenario).lots_of(job_history.fleet.name)
        capital = (lots[-1].capex * node_gpus, lots[-1].currency) if lots else ()
        purchase = NextPurchase(exhaustion.date, exhaustion.order_by, node_gpus, *capital)
    # The assumed price of electricity is in USD, for which the price book may have no exchange rate.
    currency = scenario.currency if load_price_book(scenario).electricity else "USD"
    off_gpu_hours = saving.value or 0.0 if permanent else count_powered_down_hours(scenario, saving.value or 0.0)
    return compute_financial_impact(
        saving, gpus_freed_at_peak=max(fleet_gpus - gpus, 0), fleet_gpus=fleet_gpus, ownership=stated,
        power=find_power_model(job_history.fleet), price_per_kwh=find_price_per_kwh(scenario, job_history, currency),
        currency=currency, price=find_price(scenario, job_history.fleet),
        off_gpu_hours=max(off_gpu_hours, 0.0), pue=find_pue(scenario), purchase=purchase,
    )  # fmt: skip


def count_powered_down_hours(scenario: Scenario, saved_gpu_hours: float) -> float:
    """Count the GPU-hours of a saving in which GPUs draw no power: all if nodes are powered down or returned."""
    abilities = find_fleet_abilities(scenario, history(scenario))
    return saved_gpu_hours if abilities.switches_nodes or abilities.returns == UNNEEDED_NODES_RETURNED else 0.0


def find_fleet_abilities(scenario: Scenario, job_history: History) -> ActuatorAbilities:
    """Find the abilities of a scenario's actuator on the fleet; ownership from the scenario, else the inventory."""
    stated_ownership = find_stated_ownership(job_history.trace.inventory)
    return find_scenario_abilities(scenario, job_history.fleet.gpu_model, ownership=stated_ownership)


def find_stated_ownership(inventory: pl.DataFrame | None) -> str | None:
    """Find the ownership of the GPUs in an inventory, if all its rows agree."""
    if inventory is None or "ownership" not in inventory.columns:
        return None
    stated = inventory["ownership"].cast(pl.String).drop_nulls().unique().to_list()
    return parse_ownership(stated[0]) if len(stated) == 1 else None


def _price_energy(
    hours: float, power: GpuPowerModel | None, kwh: float | None, pue: float, price_per_kwh: float, currency: str
) -> Amount:
    """Price the electricity that powered-down GPUs save a week.

    Parameters
    ----------
    hours : float
        GPU-hours a week in which GPUs are powered down.
    power : GpuPowerModel or None
        Power of the GPU model.
    kwh : float or None
        Energy saved a week. [kWh]
    pue : float
        Power usage effectiveness of the building.
    price_per_kwh : float
        Price of electricity. [currency/kWh]
    currency : str
        Its currency, ISO 4217.
    """
    if not hours:
        return 0.0, "Spend unchanged while they stay powered on"
    if power is None or kwh is None:
        return None, f"{hours:,.0f} GPU-hours per week are powered down; the power of this GPU model is not known"
    basis = f"{hours:,.0f} GPU-hours powered down, {power.idle_w:.0f} W idle, PUE {pue:g}"
    energy = f"Electricity: {kwh:,.0f} kWh per week ({basis})"
    amount = kwh * price_per_kwh
    text = f"{energy}, {amount:,.2f} {currency} at {price_per_kwh:g} {currency} per kWh"
    return amount if currency == "USD" else None, text


def _price_rent(gpu_hours: float, price: GpuHourPrice | None) -> Amount:
    """Price the rented GPU-hours that are saved a week."""
    if price is None:
        return None, f"{gpu_hours:,.0f} fewer GPU-hours per week are rented; their price is not known"
    amount = gpu_hours * price.value
    rate = f"{price.value:,.2f} {price.currency} ({price.source.partition(':')[0]})"
    text = f"{amount:,.0f} {price.currency} less per week, if billed as used: {gpu_hours:,.0f} GPU-hours at {rate}"
    return amount if price.currency == "USD" else None, text


def _format_released_gpus(freed_gpus: int, fleet_gpus: int, *, is_powered_down: bool = False) -> str | None:
    """Format the number of released GPUs, and whether their energy is saved; None without any."""
    if not freed_gpus:
        return None
    verb = "is" if freed_gpus == 1 else "are"
    powered_down_text = ", counted here as powered down; other work may use them instead"
    use_text = powered_down_text if is_powered_down else " for other work"
    return f"{freed_gpus:,} of {fleet_gpus:,} GPUs {verb} released{use_text}"


def _format_next_purchase(purchase: NextPurchase | None) -> str | None:
    """Format the next purchase with its dates; None without one."""
    if purchase is None:
        return None
    cost = "" if purchase.capital is None else f", {purchase.capital:,.0f} {purchase.currency}"
    due_day, order_day = day_text(purchase.date), day_text(purchase.order_by)
    gpus = count_text(purchase.gpus, "GPU")
    return f"The next purchase, of {gpus} or more{cost}, is due on {due_day}: order by {order_day}"


def compute_saved_kwh(power: GpuPowerModel | None, off_gpu_hours: float, pue: float) -> float | None:
    """Compute the energy that idle GPUs would have used in the hours in which they are off [kWh]; None if not known.

    Hosts do not count: their idle power has no source.
    """
    if not off_gpu_hours:
        return 0.0
    if power is None:
        return None
    idle_kwh = compute_gpu_kwh(power, powered_gpu_hours=off_gpu_hours, resident_gpu_hours=0.0, active_gpu_hours=0.0)
    return compute_facility_kwh(idle_kwh, host_factor=1.0, pue=pue)


def _join_sentences(*parts: str | None) -> str:
    """Join the given sentences, each with a full stop."""
    return " ".join(f"{part}." for part in parts if part)
