"""The parts of a decision, and its financial impact by ownership."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIP_RESERVED
from gpuplanner.core.units import count_text, day_text
from gpuplanner.cost.period_costs import book_of, per_kwh_of, power_of, price_of, pue_of
from gpuplanner.hardware.actuators import RETURNED_NODES, find_scenario_abilities, parse_ownership
from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.power_and_carbon import PowerModel, Price, compute_facility_kwh, compute_gpu_kwh
from gpuplanner.usage.job_history import history

TODAY: str = "today"
FEWER_NODES: str = "fewer_nodes"
MIG_STATIC: str = "mig_static"
ON_OFF: str = "power_down_idle"
AUTOSCALED_POOLS: str = "autoscaled_pools"
ON_DEMAND: str = "mig_dynamic"
"""Policies; their meanings are in ``policy_comparison``."""
ACTIONS = (
    "keep", "release", "power_down", "autoscale", "repartition", "rightsize", "pack", "raise_limit", "buy", "none",
)  # fmt: skip
"""First measures of a recommendation; ``none``: there is no recommendation."""
NEVER_RAN, NO_GPU = "no job states when it ran", "no job requested a GPU"
"""Why nothing can be simulated."""
DECIMALS = 6
ROUNDING_MINUTES = 1 / 60
"""Waits that differ by less are the same [min]."""
CUT_BY_JOBS = "on demand"
"""Layout of GPUs that hold what the jobs on them request."""
FULL = "full"
"""Layout of a GPU with MIG disabled."""


@dataclass(frozen=True)
class LayoutOnNodes:
    """GPUs of one layout and their nodes, with the number on each node; both are empty where nodes have no names.

    ``full`` is a GPU with MIG disabled; of ``on demand`` every job gets an instance that is made for it. GPUs
    ``to_buy`` are on ``new_nodes`` that have no names yet.
    """

    layout: str
    gpus: int
    nodes: tuple[str, ...] = ()
    by_node: tuple[int, ...] = ()
    to_buy: bool = False
    new_nodes: int = 0

    @property
    def where(self) -> str:
        """Names of the nodes, or the number of those to buy."""
        return f"to buy: {nodes_of(self.gpus, self.new_nodes)}" if self.to_buy else ", ".join(self.nodes)


def nodes_of(gpus: int, nodes: int) -> str:
    """Nodes of equal size as text; GPUs where they fill no such nodes.

    Examples
    --------
    >>> nodes_of(8, 2), nodes_of(8, 1), nodes_of(3, 0)
    ('2 nodes of 4 GPUs', '1 node of 8 GPUs', '3 GPUs')
    """
    return f"{count_text(nodes, 'node')} of {count_text(gpus // nodes, 'GPU')}" if nodes else count_text(gpus, "GPU")


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
    """One next step, with who does it.

    - ``command``: The command; None where there is none.
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

    - ``low``, ``high``: 80 % interval of the p95 wait under the recommendation, over resampled records.
    - ``today_low``, ``today_high``: The same with the GPUs and layouts of today.
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
    today_low: float
    today_high: float

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

    @property
    def rises_if_resampled(self) -> bool:
        """Whether the recommendation brings the p95 wait of resampled records above the limit and today's interval."""
        return self.meets_limit and self.low > max(self.limit_minutes, self.today_high)


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
    """GPU-hours per week that are saved, with a 90 % interval for a week to come; None with a reason where none is."""

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
class FinancialImpact:
    """Financial impact of a saving: money only where spend falls.

    It is electricity (``kwh_per_week``), rent that is no longer paid, or a purchase that is due.
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
    """GPU-hours and queue waits of a team in the window; None: not measured.

    - ``team``: Its name; ``__unallocated__`` for the GPU-hours that were allocated to no team.
    - ``allocated_gpu_hours``, ``idle_gpu_hours``, ``busy_gpu_hours``: GPU-hours allocated, and of these observed idle
      and observed busy.
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
    """One answer for one fleet.

    - ``action``, ``reason``: The first measure, one of :data:`ACTIONS`; why nothing is recommended or to be done.
    - ``measures``: What to do, in order.
    - ``sentence``: The decision in words.
    - ``fleet_gpus``, ``gpus``, ``gpus_mean``: GPUs installed, GPUs that are provisioned at most under the
      recommendation, and their mean.
    - ``layouts``: How they are partitioned; their GPUs sum to ``gpus``.
    - ``policy``, ``actuator``: How the fleet is run as recommended, and who performs it.
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
    actuator: str
    saving: Saving
    financial_impact: FinancialImpact
    purchase_lead_days: int
    reason: str | None = None
    measures: tuple[Measure, ...] = ()
    service: tuple[SizeService, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    conditions: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
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

    @property
    def cut_gpus(self) -> int:
        """GPUs that are MIG-partitioned."""
        return sum(part.gpus for part in self.layouts if part.layout != FULL)

    @property
    def latest(self) -> SizeService | None:
        """The job size whose p95 wait is longest today; None without any."""
        return max(self.service, key=lambda one: one.today_p95_minutes, default=None)

    @property
    def most_improved(self) -> SizeService | None:
        """The job size whose p95 wait falls most, by a minute at least; else the one that waits longest today."""
        found = min(self.service, key=lambda one: one.added_p95_minutes, default=None)
        return found if found is not None and found.added_p95_minutes <= -1.0 else self.latest

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``: plain values, ``saving`` under its full name."""
        found = dataclasses.asdict(self)
        found["saving_gpu_hours_per_week"] = found.pop("saving")
        return found


UNKNOWN = "unknown"
Amount = tuple[float | None, str]
"""Dollars a week that are paid less, None where nobody knows, and the sentence on them."""


def impact_of(
    saving: Saving,
    *,
    gpus_freed_at_peak: int,
    fleet_gpus: int,
    ownership: str | None,
    power: PowerModel | None,
    usd_per_kwh: float,
    price: Price | None,
    next_purchase: NextPurchase | None,
    powered_down_gpu_hours: float,
    pue: float,
) -> FinancialImpact:
    """The financial impact of a saving, with a sentence for each part of it.

    An owner saves the electricity of the hours in which GPUs are off, and has GPUs for other work; no rental price
    is counted. Who rents by the hour saves the price of the hours. A reservation is paid until its term ends, whoever
    uses it.

    Examples
    --------
    >>> from gpuplanner.hardware.power_and_carbon import make_power_model
    >>> law = make_power_model("H100-80GB-SXM5")
    >>> found = impact_of(
    ...     Saving(1000.0), gpus_freed_at_peak=6, fleet_gpus=24, ownership="owned",
    ...     power=law, usd_per_kwh=0.10, price=None, powered_down_gpu_hours=1000.0, pue=1.5,
    ...     next_purchase=NextPurchase("2027-11-13", "2027-08-15", 8, 240000.0),
    ... )
    >>> round(found.usd_per_week, 2), round(found.kwh_per_week, 1)
    (10.5, 105.0)
    >>> for sentence in found.basis.split(". "):
    ...     print(sentence)
    6 of 24 GPUs are released, counted here as powered down; other work may use them instead
    Electricity: 105 kWh per week (1,000 GPU-hours powered down, 70 W idle, PUE 1.5), 10.50 USD at 0.1 USD per kWh
    The next purchase, of 8 GPUs or more, 240,000 USD, is due on 13 Nov 2027: order by 15 Aug 2027.
    """
    hours = max(saving.value or 0.0, 0.0)
    kwh = electricity_kwh(power, powered_down_gpu_hours, pue)
    none = f"Spend unchanged: {(saving.reason or 'no capacity is freed').rstrip('.')}"
    owned = _electricity(powered_down_gpu_hours, power, kwh, pue, usd_per_kwh)
    rented = _rent(hours, price)
    reserved = "Spend unchanged: no GPU is released"
    if gpus_freed_at_peak:
        gpus = count_text(gpus_freed_at_peak, "GPU")
        reserved = f"Spend unchanged until the term ends; then {gpus} need not be reserved again"
    if saving.value is None:
        owned = rented = None, none
    released, upcoming = _released(gpus_freed_at_peak, fleet_gpus), _upcoming(next_purchase)
    cases = {
        OWNERSHIP_OWNED: (owned[0], _text(released, owned[1], upcoming)),
        OWNERSHIP_RENTED: (rented[0], _text(rented[1])),
        OWNERSHIP_RESERVED: (0.0, _text(released, reserved, upcoming)),
    }
    if (payer := parse_ownership(ownership)) is None:
        said = f"{hours:,.0f} GPU-hours per week; the ownership of the GPUs is not known."
        lines = (f"If {case}: {text}" for case, (_, text) in cases.items())
        return FinancialImpact(UNKNOWN, None, "\n".join([_text(none) if saving.value is None else said, *lines]))
    known = kwh if payer == OWNERSHIP_OWNED and saving.value is not None else None
    return FinancialImpact(payer, *cases[payer], known, None if payer == OWNERSHIP_RENTED else next_purchase)


def financial_impact_of(
    scenario: Scenario,
    saving: Saving,
    gpus: int,
    fleet_gpus: int,
    exhaustion: Exhaustion | None = None,
    *,
    gone: bool = False,
) -> FinancialImpact:
    """What a saving that leaves so many GPUs of a fleet is worth by the scenario's prices and who owns the GPUs.

    A fleet that is exhausted is bought for; what a node of it costs is what the newest lot of the price book did. Hours
    that are ``gone`` draw no power, whatever the actuator can switch.
    """
    known = history(scenario)
    owned_as = scenario.ownership or stated_ownership(known.trace.inventory)
    upcoming = None
    if exhaustion is not None and exhaustion.date is not None and exhaustion.order_by is not None:
        node, lots = known.fleet.node_size, book_of(scenario).lots_of(known.fleet.name)
        capital = (lots[-1].capex * node, lots[-1].currency) if lots else ()
        upcoming = NextPurchase(exhaustion.date, exhaustion.order_by, node, *capital)
    off = saving.value or 0.0 if gone else powered_down_hours(scenario, saving.value or 0.0)
    return impact_of(
        saving, gpus_freed_at_peak=max(fleet_gpus - gpus, 0), fleet_gpus=fleet_gpus, ownership=owned_as,
        power=power_of(known.fleet), usd_per_kwh=per_kwh_of(scenario, known, "USD"),
        price=price_of(scenario, known.fleet),
        powered_down_gpu_hours=max(off, 0.0), pue=pue_of(scenario), next_purchase=upcoming,
    )  # fmt: skip


def powered_down_hours(scenario: Scenario, saved_gpu_hours: float) -> float:
    """GPU-hours of a saving in which GPUs draw no power: all where nodes are switched or returned and stay idle."""
    able = find_scenario_abilities(scenario, history(scenario).fleet.gpu_model)
    return saved_gpu_hours if able.switches_nodes or able.returns == RETURNED_NODES else 0.0


def usd_per_kwh_of(scenario: Scenario) -> float:
    """What a kWh costs the owner: the scenario's own, else the catalogue's.

    Examples
    --------
    >>> usd_per_kwh_of(Scenario(price_usd_per_kwh=0.2)), usd_per_kwh_of(Scenario())
    (0.2, 0.122)
    """
    own = scenario.price_usd_per_kwh
    return find_parameter("electricity_usd_per_kwh").value if own is None else own


def stated_ownership(inventory: pl.DataFrame | None) -> str | None:
    """Whose the GPUs are by the inventory, if it says one thing."""
    if inventory is None or "ownership" not in inventory.columns:
        return None
    stated = inventory["ownership"].cast(pl.String).drop_nulls().unique().to_list()
    return parse_ownership(stated[0]) if len(stated) == 1 else None


def _electricity(off: float, power: PowerModel | None, kwh: float | None, pue: float, usd_per_kwh: float) -> Amount:
    if not off:
        return 0.0, "Spend unchanged: no GPU is powered down"
    if power is None or kwh is None:
        return (None, f"{off:,.0f} GPU-hours per week are powered down; the power of this GPU model is not known")
    how = f"{off:,.0f} GPU-hours powered down, {power.idle_w:.0f} W idle, PUE {pue:g}"
    energy = f"Electricity: {kwh:,.0f} kWh per week ({how})"
    return kwh * usd_per_kwh, f"{energy}, {kwh * usd_per_kwh:,.2f} USD at {usd_per_kwh:g} USD per kWh"


def _rent(hours: float, price: Price | None) -> Amount:
    if price is None:
        return None, f"{hours:,.0f} fewer GPU-hours per week are rented; their price is not known"
    amount = hours * price.value
    rate = f"{price.value:,.2f} {price.currency} ({price.source})"
    text = f"{amount:,.0f} {price.currency} per week: {hours:,.0f} GPU-hours at {rate}, billed as used"
    return amount if price.currency == "USD" else None, text


def _released(freed: int, fleet: int) -> str | None:
    if not freed:
        return None
    are = "is" if freed == 1 else "are"
    return f"{freed:,} of {fleet:,} GPUs {are} released, counted here as powered down; other work may use them instead"


def _upcoming(purchase: NextPurchase | None) -> str | None:
    if purchase is None:
        return None
    cost = "" if purchase.capital is None else f", {purchase.capital:,.0f} {purchase.currency}"
    due, order = day_text(purchase.date), day_text(purchase.order_by)
    return f"The next purchase, of {count_text(purchase.gpus, 'GPU')} or more{cost}, is due on {due}: order by {order}"


def electricity_kwh(power: PowerModel | None, off: float, pue: float) -> float | None:
    """Energy [kWh] that GPUs would have drawn idle in the hours that they are off.

    Hosts are left out: their idle power has no source.
    """
    if not off:
        return 0.0
    if power is None:
        return None
    idle = compute_gpu_kwh(power, powered_gpu_hours=off, resident_gpu_hours=0.0, active_gpu_hours=0.0)
    return compute_facility_kwh(idle, host_factor=1.0, pue=pue)


def _text(*parts: str | None) -> str:
    return " ".join(f"{part}." for part in parts if part)
