"""Least-cost mix of bought, reserved and rented GPUs over the coming months.

A commitment is paid whether it is used or not; demand above it is rented, spot first. In a single month the
load-duration curve gives the answer: commit one more GPU while the share of hours that need it exceeds the ratio of
the committed to the rented price. Over several months the terms overlap, and the mix is a linear model. Its vertices
are integral, since every term covers consecutive months; only a weight on the CVaR makes it a mixed-integer model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.linear_programs_and_search_limits import Columns, LinearModel, SearchEffort
from gpuplanner.planner.milp_solvers import Solution, solve

HOURS_PER_MONTH = 730.5
"""Mean number of hours in a month."""
CVAR_QUANTILE = 0.9
"""Quantile of the cost over the demand paths: the CVaR is the mean cost of the paths above it."""
MAX_COMMITMENT_LEVELS = 200
"""Largest number of GPU counts for which the model tabulates the rent; larger fleets are modelled in steps of several
GPUs."""
MAX_CVAR_ROUNDS = 40
"""Largest number of solver rounds, each of which adds a bound on the CVaR (cutting plane)."""
FloatArray = NDArray[np.float64]
"""Array of floating-point numbers."""
CommitmentColumn = tuple["Offer", int, range]
"""An offer, the month in which it is decided, and the months in which its GPUs take jobs."""


@dataclass(frozen=True)
class Offer:
    """A kind of commitment: GPUs for a term, paid by the month.

    - ``name``: ``owned``, ``reserved_1y``, ``reserved_3y``, ``block`` or another name.
    - ``per_gpu_month``: Cost of one GPU over the term, with purchase, power and support [currency per month].
    - ``term_months``: Length of the term that is paid [months].
    - ``lead_months``: Time from the decision until the GPUs take jobs [months].
    - ``lost_share``: Share of the payments (of ``upfront``, where stated) after the end of the planning period that
      is lost: 1 for a reservation, less for GPUs that can be sold [0-1].
    - ``first_month``: Index of the first month in which it may be decided.
    - ``upfront``: Part of the cost of a term that is paid when it begins, such as a purchase price [currency per GPU].
    """

    name: str
    per_gpu_month: float
    term_months: int
    lead_months: int = 0
    lost_share: float = 1.0
    upfront: float = 0.0
    first_month: int = 0


@dataclass(frozen=True)
class Rent:
    """Prices of GPUs that are rented by the hour.

    - ``on_demand``: Price of an on-demand GPU [currency per GPU-hour].
    - ``spot``: Price of a spot GPU [currency per GPU-hour]; None: spot is not used.
    - ``spot_share``: Share of the load that may be interrupted [0-1].
    - ``spot_overhead``: Share of spot hours that interruptions waste, see :func:`spot_overhead` [0-1].
    """

    on_demand: float
    spot: float | None = None
    spot_share: float = 0.0
    spot_overhead: float = 0.0

    @property
    def price_kind(self) -> str:
        """Code of the rented GPUs: on demand, with spot for the load that may be interrupted, where that is cheaper."""
        return "on_demand_and_spot" if self.spot_share and self.spot_price < self.on_demand else "on_demand"

    @property
    def spot_price(self) -> float:
        """Cost of an hour of useful work on spot GPUs, at most the on-demand price [currency per GPU-hour]."""
        if self.spot is None or self.spot_overhead >= 1:
            return self.on_demand
        return min(self.spot / (1 - self.spot_overhead), self.on_demand)


@dataclass(frozen=True, eq=False)
class Portfolio:
    """A mix of commitments and its cost over the demand paths.

    - ``begun``: GPUs by offer name and index of the month in which they are decided.
    - ``committed``: Committed GPUs by month, shape (n_months,).
    - ``cost``: Mean cost over the paths [currency].
    - ``risk``: CVaR: mean cost of the costliest tenth of the paths [currency].
    - ``objective``: Weighted mean of ``cost`` and ``risk`` [currency].
    - ``bound``: Lower bound of the objective of every mix [currency].
    - ``all_rented``: Cost of renting all demand [currency].
    - ``all_reserved``: Cost of committing the mean demand, in whole units, and renting the rest [currency].
    - ``coverage``: Share of the demand that commitments and existing GPUs serve [0-1].
    - ``utilisation``: Share of the paid GPUs that demand uses [0-1].
    """

    begun: dict[tuple[str, int], float]
    committed: NDArray[np.float64]
    cost: float
    risk: float
    objective: float
    bound: float
    all_rented: float
    all_reserved: float
    coverage: float
    utilisation: float

    @property
    def gap(self) -> float:
        """Optimality gap: largest share of the objective by which another mix could be cheaper [0-1]."""
        return max(self.objective - self.bound, 0.0) / max(abs(self.objective), 1.0)


def spot_overhead(interruptions_per_hour: float, *, checkpoint_s: float, restart_s: float) -> float:
    """Share of spot GPU-hours that interruptions waste.

    Each interruption costs half a checkpoint interval and a restart.

    Parameters
    ----------
    interruptions_per_hour : float
        Interruptions of one job. [1/h]
    checkpoint_s : float
        Time between two checkpoints. [s]
    restart_s : float
        Time to load, restart and warm up. [s]

    Returns
    -------
    float
        Wasted share of the hours. [0-1]

    Examples
    --------
    >>> spot_overhead(0.1, checkpoint_s=1800, restart_s=300)
    0.03333333333333333
    """
    return min(interruptions_per_hour * (checkpoint_s / 2 + restart_s) / 3600, 1.0)


def compare_payments(
    offers: Sequence[Offer], rent: Rent, *, gpus: int, used_fraction: float, months: int, unit: int = 1
) -> pl.DataFrame:
    """Compare paying for GPUs by each offer, renewed, with renting them for the hours in which they are used.

    Parameters
    ----------
    offers : sequence of Offer
        Commitments; until the GPUs of one take jobs, the used hours are rented.
    rent : Rent
        Prices of rented GPUs.
    gpus : int
        GPUs needed; committed in multiples of `unit`.
    used_fraction : float
        Share of the hours in which they are used. [0-1]
    months : int
        Months compared.
    unit : int
        GPUs of a node.

    Returns
    -------
    polars.DataFrame
        ``option``; ``gpus`` paid for; ``cost`` over the months, the cheapest first [currency];
        ``break_even_fraction``, the share of the hours in use above which the option is cheaper than rented GPUs [0-1],
        and ``break_even_month``, the month from whose end on it has cost less, with the purchase price paid at the
        begin of the term; null: not within these months.

    Examples
    --------
    >>> offers = [Offer("reserved_1y", 365.25, 12), Offer("owned", 300.0, 48, lost_share=0.0, upfront=9600.0)]
    >>> table = compare_payments(offers, Rent(on_demand=1.0), gpus=8, used_fraction=0.75, months=24)
    >>> table.select("option", pl.col("cost").round(), "break_even_fraction", "break_even_month").rows()
    [('owned', 57600.0, 0.41..., 22), ('reserved_1y', 70128.0, 0.5, 1), ('on_demand', 105192.0, None, None)]
    """
    hourly = rent.on_demand - (rent.on_demand - rent.spot_price) * rent.spot_share
    used_month = gpus * used_fraction * HOURS_PER_MONTH * hourly
    rows: list[tuple[Any, ...]] = [(rent.price_kind, gpus, used_month * months, None, None)]
    for offer in offers:
        committed = math.ceil(gpus / unit) * unit
        starts = range(offer.first_month, months - offer.lead_months, offer.term_months)
        active = [_active_months(offer, month, months) for month in starts]
        commitment = committed * sum(cost_of_term(offer, month, months) for month in starts)
        served = sum(map(len, active))
        fraction = commitment / (gpus * served * HOURS_PER_MONTH * hourly) if served else None
        # In cash: what is paid at the begin of each term, then the rest of its cost month by month.
        monthly = offer.per_gpu_month - offer.upfront / offer.term_months
        cash = np.full(months, used_month)
        for term in active:
            cash[term.start : term.stop] = committed * monthly
            cash[term.start] += committed * offer.upfront
        ahead = np.cumsum(cash) < used_month * np.arange(1, months + 1)
        # From the last month in which it had cost more.
        month = int(np.flatnonzero(~ahead).max(initial=-1)) + 2
        cost = commitment + used_month * (months - served)
        rows.append((offer.name, committed, cost, fraction, month if month <= months else None))
    schema = {"option": pl.String, "gpus": pl.Int64, "cost": pl.Float64, "break_even_fraction": pl.Float64}
    return pl.DataFrame(rows, schema=schema | {"break_even_month": pl.Int64}, orient="row").sort("cost", "option")


def choose_portfolio(
    demand: Sequence[FloatArray],
    offers: Sequence[Offer],
    rent: Rent,
    *,
    unit: int = 1,
    existing_gpus: Sequence[float] = (),
    risk: float = 0.0,
    gap_target: float = 1e-3,
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    seed: int = 1,
) -> Portfolio:
    """Choose the commitments that minimize the cost of committed and rented GPUs.

    Parameters
    ----------
    demand : sequence of numpy.ndarray, each of shape (n_paths, n_hours)
        Demand on each path in the hours of each month; an hour may represent several. [GPUs]
    offers : sequence of Offer
        Commitments to choose from.
    rent : Rent
        Prices of rented GPUs.
    unit : int
        GPUs are committed in multiples of this number.
    existing_gpus : sequence of float, shape (n_months,)
        GPUs that are available without a new commitment, by month; empty: none.
    risk : float
        Weight of the CVaR (mean of the costliest tenth) against the mean cost. [0-1]
    gap_target : float
        Optimality gap at which the search ends. [0-1]
    time_limit_s : float, optional
        Time limit of the search. [s]
    work_limit : int, optional
        Work limit of the search; without any limit, that of :class:`SearchEffort`.
    seed : int
        Seed of the solver.

    Returns
    -------
    Portfolio
        The mix, its cost and its bound.

    Raises
    ------
    ScenarioError
        If demand is empty, or a price or term is out of range.

    Examples
    --------
    >>> steady = [np.full((1, 4), 3.0)] * 12
    >>> year = Offer("reserved_1y", per_gpu_month=500.0, term_months=12)
    >>> found = choose_portfolio(steady, [year], Rent(on_demand=1.0))
    >>> found.begun, round(found.cost), round(found.all_rented)
    ({('reserved_1y', 0): 3.0}, 18000, 26298)
    """
    _check_inputs(demand, offers, rent, risk)
    months = len(demand)
    peak = max(float(hours.max(initial=0.0)) for hours in demand)

    # Levels of commitment above the existing GPUs, and the rent of each month and path at each level.
    step = unit * max(math.ceil(peak / unit / MAX_COMMITMENT_LEVELS), 1)
    levels = math.ceil(peak / step)
    existing = np.zeros(months) if not len(existing_gpus) else np.asarray(existing_gpus, dtype=float)
    level_gpus = existing[:, None] + step * np.arange(levels + 1.0)
    tables = np.stack([_tabulate_rent(hours, rent, gpus) for hours, gpus in zip(demand, level_gpus, strict=True)])

    # One column for each offer and month in which it may be decided.
    commitments = [
        (offer, month, _active_months(offer, month, months))
        for offer in offers
        for month in range(offer.first_month, months)
        if month + offer.lead_months < months
    ]
    model = LinearModel()
    prices = [step * cost_of_term(offer, month, months) for offer, month, _ in commitments]
    counts = model.add_columns([f"n{index}" for index in range(len(prices))], cost=prices, high=[levels] * len(prices))

    # One column for each month and level, paid by the rent that it saves; rent is convex, so levels fill in order.
    mean_rent = tables.mean(axis=1)
    saved_rent = (mean_rent[:, :-1] - mean_rent[:, 1:]) * (1 - risk)
    step_names = [f"s{month}_{level}" for month in range(months) for level in range(levels)]
    steps = model.add_columns(step_names, cost=-saved_rent.ravel(), high=np.ones(len(step_names)))
    steps = steps.reshape(months, levels)
    for month in range(months):
        terms = [column for column, (_, _, active) in zip(counts, commitments, strict=True) if month in active]
        factors = [1.0] * len(terms) + [-1.0] * levels
        model.add_row(f"allocated{month}", [*terms, *steps[month]], factors, ">=", 0.0)

    effort = SearchEffort.begin(gap_target=gap_target, time_limit_s=time_limit_s, work_limit=work_limit, seed=seed)
    all_rented = float(mean_rent[:, 0].sum())
    best, bound = _search_counts(model, commitments, tables, steps, effort, risk, gap_target, prices, all_rented)

    committed = _committed_by_month(best, commitments, months)
    path_costs = _rent_by_path(tables, committed) + float(np.dot(prices, best))
    demand_sum = sum(float(hours.mean()) for hours in demand)
    paid_gpus = committed * step + existing
    used_gpus = sum(float(np.minimum(hours, gpus).mean()) for hours, gpus in zip(demand, paid_gpus, strict=True))
    decided = ((offer.name, month, count) for (offer, month, _), count in zip(commitments, best, strict=True))
    return Portfolio(
        begun={(offer_name, month): float(count * step) for offer_name, month, count in decided if count},
        committed=committed * step,
        cost=float(path_costs.mean()), risk=_costliest_tenth(path_costs)[0],
        objective=(1 - risk) * float(path_costs.mean()) + risk * _costliest_tenth(path_costs)[0], bound=bound,
        all_rented=all_rented, all_reserved=_cost_of_mean_reservation(demand, offers, rent, existing, step),
        coverage=used_gpus / demand_sum if demand_sum else 0.0,
        utilisation=used_gpus / float(paid_gpus.sum()) if paid_gpus.any() else 0.0,
    )  # fmt: skip


def _search_counts(
    model: LinearModel, commitments: list[CommitmentColumn], tables: FloatArray, steps: Columns, effort: SearchEffort,
    risk: float, gap: float, prices: list[float], all_rented: float,
) -> tuple[FloatArray, float]:  # fmt: skip
    """Find the numbers of GPUs to commit that minimize the objective, by linear programming.

    Without risk one linear model is solved; with it, each round adds a bound on the CVaR of the last solution.

    Parameters
    ----------
    model : LinearModel
        Model with the columns of commitments and of saved rent.
    commitments : list of CommitmentColumn
        Offer, month and active months of each count.
    tables : numpy.ndarray, shape (n_months, n_paths, n_levels)
        Cost of renting the demand above each number of committed GPUs; level k is k steps. [currency]
    steps : numpy.ndarray, shape (n_months, n_levels - 1)
        Numbers of the model's columns for the rent that the next committed step saves.
    effort : SearchEffort
        Limits of the search.
    risk, gap : float
        Weight of the CVaR and optimality gap. [0-1]
    prices : list of float
        Cost of one step, the number of GPUs that are committed together, of each commitment. [currency]
    all_rented : float
        Mean cost of renting all demand. [currency]

    Returns
    -------
    tuple of numpy.ndarray, shape (n_commitments,), and float
        Counts, in steps, and the lower bound of the objective. [currency]
    """
    if not risk:
        solution = solve(model, effort, relaxed=True)
        if solution.values is None:
            return np.zeros(len(commitments)), -math.inf
        return np.round(solution.values[: len(commitments)]), _objective_bound(solution) + all_rented
    # The CVaR of the rent, scaled to a multiple of the smallest amount that matters.
    scale = max(all_rented * gap / 50, 1e-6)
    risk_column = model.add_columns(["dearest"], cost=[risk * scale], high=[1e9])
    months = tables.shape[0]
    weights = np.full(tables.shape[1], 1 / tables.shape[1])
    best, best_cost, bound = np.zeros(len(commitments)), math.inf, -math.inf
    for round_number in range(MAX_CVAR_ROUNDS):
        table = np.einsum("s,msj->mj", weights, tables)
        saved_rent = (table[:, :-1] - table[:, 1:]) / scale
        min_rent = float(table[:, 0].sum()) / scale
        row_columns = [*risk_column, *steps.ravel()]
        model.add_row(f"bound{round_number}", row_columns, [1.0, *saved_rent.ravel()], ">=", min_rent)
        solution = solve(model, effort, gap=gap / 4)
        if solution.values is None:
            break
        bound = max(bound, _objective_bound(solution) + (1 - risk) * all_rented - risk * scale)
        counts = np.round(solution.values[: len(commitments)])
        path_costs = _rent_by_path(tables, _committed_by_month(counts, commitments, months))
        risk_cost, weights = _costliest_tenth(path_costs)
        cost = float(np.dot(prices, counts)) + (1 - risk) * float(path_costs.mean()) + risk * risk_cost
        if cost < best_cost:
            best, best_cost = counts, cost
        if best_cost - bound <= gap * abs(best_cost) or effort.is_spent():
            break
    return best, min(bound, best_cost)


def _objective_bound(solution: Solution) -> float:
    """Lower bound of the objective that the solver proved; minus infinity without one."""
    return -math.inf if solution.bound is None else solution.bound


def _tabulate_rent(hours: FloatArray, rent: Rent, levels: FloatArray) -> FloatArray:
    """Cost of renting a month's demand above each level of committed GPUs [currency], shape (n_paths, n_levels)."""
    rents = np.empty((len(hours), len(levels)))
    spot_saving = rent.on_demand - rent.spot_price
    for index, level in enumerate(levels):
        beyond = np.maximum(hours - level, 0.0)
        cost = rent.on_demand * beyond - spot_saving * np.minimum(beyond, rent.spot_share * hours)
        rents[:, index] = cost.mean(axis=1) * HOURS_PER_MONTH
    return rents


def _active_months(offer: Offer, month: int, months: int) -> range:
    """Months of the planning period in which GPUs take jobs whose purchase or lease is decided in `month`."""
    first = month + offer.lead_months
    return range(first, min(first + offer.term_months, months))


def cost_of_term(offer: Offer, month: int, months: int) -> float:
    """Cost of one GPU of an offer over its active months, and the lost share of the payments after them [currency].

    Parameters
    ----------
    offer : Offer
        The commitment.
    month : int
        Index of the month in which it is decided.
    months : int
        Length of the planning period. [months]
    """
    n_active = len(_active_months(offer, month, months))
    # What was paid at once is lost in part; power and support of later months are not needed.
    lost_per_month = offer.lost_share * (offer.upfront / offer.term_months or offer.per_gpu_month)
    return offer.per_gpu_month * n_active + lost_per_month * (offer.term_months - n_active)


def _committed_by_month(counts: FloatArray, commitments: list[CommitmentColumn], months: int) -> FloatArray:
    """Number of committed steps (groups of GPUs) in each month, shape (n_months,)."""
    committed = np.zeros(months)
    for (_, _, active), count in zip(commitments, counts, strict=True):
        committed[active.start : active.stop] += count
    return committed


def _rent_by_path(tables: FloatArray, committed: FloatArray) -> FloatArray:
    """Rent of each demand path over all months [currency], shape (n_paths,); 0 above the highest tabulated level."""
    level_indices = np.minimum(committed.astype(int), tables.shape[2] - 1)
    return np.asarray(tables[np.arange(tables.shape[0]), :, level_indices].sum(axis=0))


def _costliest_tenth(path_costs: FloatArray) -> tuple[float, FloatArray]:
    """Return the CVaR, the mean cost of the costliest tenth of the paths, and the weight of each path in it."""
    share, weights = 1 - CVAR_QUANTILE, np.zeros(len(path_costs))
    remaining = share
    for index in np.argsort(-path_costs, kind="stable"):
        weights[index] = min(remaining, 1 / len(path_costs)) / share
        remaining -= weights[index] * share
        if remaining <= 1e-12:
            break
    return float(weights @ path_costs), weights


def _cost_of_mean_reservation(
    demand: Sequence[FloatArray], offers: Sequence[Offer], rent: Rent, existing: FloatArray, step: int
) -> float:
    """Cost of committing the mean uncovered demand as the cheapest offer, renewed, and renting above it [currency].

    The mean is rounded to a multiple of ``step``, as every commitment is, so that no mix is dearer by rounding.
    """
    beyond = [float(hours.mean()) - gpus for hours, gpus in zip(demand, existing, strict=True)]
    months, mean_gpus = len(demand), step * max(round(float(np.mean(beyond)) / step), 0)
    renewable_offers = [offer for offer in offers if not offer.lead_months + offer.first_month]
    levels = (existing + mean_gpus if renewable_offers else existing)[:, None]
    rents = (_tabulate_rent(hours, rent, gpus) for hours, gpus in zip(demand, levels, strict=True))
    rented_cost = sum(float(costs.mean()) for costs in rents)
    costs = (
        sum(cost_of_term(offer, month, months) for month in range(0, months, offer.term_months))
        for offer in renewable_offers
    )
    return mean_gpus * min(costs, default=0.0) + rented_cost


def _check_inputs(demand: Sequence[FloatArray], offers: Sequence[Offer], rent: Rent, risk: float) -> None:
    """Raise a ScenarioError if demand is empty, or a price or term is out of range."""
    faults = [] if len(demand) and all(hours.size for hours in demand) else ["no demand"]
    faults += [
        f"{offer.name}: {name} {getattr(offer, name):g}"
        for offer in offers
        for name, minimum in (("per_gpu_month", 0), ("term_months", 1), ("lead_months", 0), ("first_month", 0))
        if getattr(offer, name) < minimum
    ]
    if not (rent.on_demand > 0 and 0 <= risk <= 1 and 0 <= rent.spot_share <= 1):
        faults.append("rent or risk out of range")
    if faults:
        got, todo = "; ".join(faults), "Correct the prices and terms."
        raise ScenarioError("portfolio", "demand, and prices and terms not below 0", got, todo)
