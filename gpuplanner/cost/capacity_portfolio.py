"""What to buy, reserve and rent over the coming months at least cost.

A commitment is paid whether it is used or not; what it does not hold is rented, spot first. In one month the rule of
the load-duration curve says the answer: commit the next GPU while the share of hours that need it is above the price
of committing over that of renting. Over months, terms overlap, and the mix is a linear model whose corners are whole
numbers, since every term holds months in a row; only a weight on the dearest paths makes it an integer one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.linear_model import Columns, LinearModel, SearchEffort
from gpuplanner.planner.milp_solver import Solution, solve

HOURS_PER_MONTH = 730.5
DEAREST = 0.9
"""Paths beyond this quantile of the cost are the dearest, whose mean is the risk."""
MOST_LEVELS = 200
"""Steps of commitment that are told apart; a larger fleet is looked at in steps of several units."""
ROUNDS = 40
Paths = NDArray[np.float64]
Column = tuple["Offer", int, range]
"""An offer, the month in which it is decided, and the months that it holds."""


@dataclass(frozen=True)
class Offer:
    """One kind of commitment: a number of GPUs for a term, paid by the month.

    - ``name``: Owned, reserved_1y, reserved_3y, block or another name.
    - ``per_gpu_month``: What one GPU costs a month over the term, all of it counted: purchase, power, support.
    - ``term_months``: How long it is paid.
    - ``lead_months``: From the decision until the GPUs take jobs.
    - ``lost_share``: Of what is still owed when the months looked at end, how much is lost: 1 for a reservation, less
      for boards that can be sold.
    - ``only_month``: The one month in which it may begin: a dated block of capacity.
    - ``peak_gpus``: At most so many.
    """

    name: str
    per_gpu_month: float
    term_months: int
    lead_months: int = 0
    lost_share: float = 1.0
    only_month: int | None = None
    peak_gpus: float = math.inf


@dataclass(frozen=True)
class Rent:
    """GPUs by the hour: on demand for all, spot for a share of the load that may be interrupted.

    ``spot_overhead`` is the share of spot hours that interruptions waste, see :func:`spot_overhead`.
    """

    on_demand: float
    spot: float | None = None
    spot_share: float = 0.0
    spot_overhead: float = 0.0

    @property
    def spot_price(self) -> float:
        """What an hour of work on spot GPUs costs; never above on demand, which would be taken instead."""
        if self.spot is None or self.spot_overhead >= 1:
            return self.on_demand
        return min(self.spot / (1 - self.spot_overhead), self.on_demand)


@dataclass(frozen=True, eq=False)
class Portfolio:
    """A mix of commitments, and what it costs over the paths.

    ``begun`` are GPUs by offer and month in which they are decided; ``committed`` GPUs by month; ``cost`` the mean over
    paths, ``risk`` the mean of the dearest tenth; no mix has an objective below ``bound``. ``all_rented`` and
    ``all_reserved`` are what renting everything, and committing the mean once, would cost.
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
        """By how much of the objective a better mix could be cheaper."""
        return max(self.objective - self.bound, 0.0) / max(abs(self.objective), 1.0)


def spot_overhead(interruptions_per_hour: float, *, checkpoint_s: float, restart_s: float) -> float:
    """Share of spot hours that interruptions waste: half an interval between checkpoints, and a restart, for each.

    Interruptions are those of one job an hour; the work between two checkpoints, and the time to load, restart and warm
    up, are seconds.

    Examples
    --------
    >>> spot_overhead(0.1, checkpoint_s=1800, restart_s=300)
    0.03333333333333333
    """
    return min(interruptions_per_hour * (checkpoint_s / 2 + restart_s) / 3600, 1.0)


def reserve_level(hours: Sequence[float] | Paths, committed: float, rented: float) -> int:
    """GPUs to commit for one term by the load-duration rule: while each is needed for long enough.

    Hours are GPUs wanted in each hour of the term; prices are those of an hour of a GPU.

    Examples
    --------
    The third GPU is wanted in 1 hour of 4, and would have to be in 6 of 10:

    >>> reserve_level([2, 2, 3, 1], committed=0.6, rented=1.0)
    2
    """
    load = np.asarray(hours, dtype=float)
    level = 0
    # The share of hours in which one GPU more would work, hours that want a part of it counted by that part.
    while load.size and np.clip(load - level, 0, 1).mean() * rented > committed + 1e-12:
        level += 1
    return level


def choose_portfolio(
    demand: Sequence[Paths],
    offers: Sequence[Offer],
    rent: Rent,
    *,
    unit: int = 1,
    held: Sequence[float] = (),
    risk: float = 0.0,
    gap: float = 1e-3,
    time_limit_s: float | None = None,
    seed: int = 1,
) -> Portfolio:
    """Choose how many GPUs to commit, as what and when, so that commitments and rent cost least.

    Demand is GPUs wanted in the hours of each month, path by path (n_paths, n_hours), where hours may stand for longer
    ones; GPUs are committed in whole units; ``held`` are there anyway, by month. ``risk`` 0-1 is the weight of the mean
    of the dearest tenth beside that of all. The search ends when no mix can be cheaper by more than ``gap``.

    Examples
    --------
    >>> steady = [np.full((1, 4), 3.0)] * 12
    >>> year = Offer("reserved_1y", per_gpu_month=500.0, term_months=12)
    >>> found = choose_portfolio(steady, [year], Rent(on_demand=1.0))
    >>> found.begun, round(found.cost), round(found.all_rented)
    ({('reserved_1y', 0): 3.0}, 18000, 26298)
    """
    _check(demand, offers, rent, risk)
    months, peak = len(demand), max(float(one.max(initial=0.0)) for one in demand)
    step = unit * max(math.ceil(peak / unit / MOST_LEVELS), 1)
    levels = math.ceil(peak / step)
    there = np.zeros(months) if not len(held) else np.asarray(held, dtype=float)
    steps_up = there[:, None] + step * np.arange(levels + 1.0)
    tables = np.stack([_rents(one, rent, up) for one, up in zip(demand, steps_up, strict=True)])
    columns = [
        (offer, month, _active(offer, month, months))
        for offer in offers
        for month in range(months)
        if offer.only_month in (None, month) and month + offer.lead_months < months
    ]
    model = LinearModel()
    price = [step * _paid(offer, active, months) for offer, _, active in columns]
    most = [min(offer.peak_gpus, levels * step) // step for offer, _, _ in columns]
    counts = model.add_columns([f"n{number}" for number in range(len(columns))], cost=price, high=most)
    mean = tables.mean(axis=1)
    worth = (mean[:, :-1] - mean[:, 1:]) * (1 - risk)
    names = [f"s{month}_{level}" for month in range(months) for level in range(levels)]
    steps = model.add_columns(names, cost=-worth.ravel(), high=np.ones(len(names))).reshape(months, levels)
    for month in range(months):
        mine = [column for column, (_, _, active) in zip(counts, columns, strict=True) if month in active]
        factors = [1.0] * len(mine) + [-1.0] * levels
        model.add_row(f"allocated{month}", [*mine, *steps[month]], factors, ">=", 0.0)
    for name, group in itertools.groupby(range(len(columns)), key=lambda one: columns[one][0].name):
        places = list(group)
        cap = columns[places[0]][0].peak_gpus
        if math.isfinite(cap):
            for month in range(months):
                mine = [counts[place] for place in places if month in columns[place][2]]
                model.add_row(f"cap_{name}_{month}", mine, [1.0] * len(mine), "<=", cap // step)
    effort = SearchEffort.begin(gap_target=gap, time_limit_s=time_limit_s, seed=seed)
    rented = float(mean[:, 0].sum())
    best, bound = _search(model, columns, tables, steps, effort, risk, gap, price, rented)
    committed = _committed(best, columns, months)
    paths = _of_paths(tables, committed) + float(np.dot(price, best))
    wanted, paid = sum(float(one.mean()) for one in demand), committed * step + there
    used = sum(float(np.minimum(one, level).mean()) for one, level in zip(demand, paid, strict=True))
    begun = ((offer.name, month, count) for (offer, month, _), count in zip(columns, best, strict=True))
    return Portfolio(
        begun={(name, month): float(count * step) for name, month, count in begun if count},
        committed=committed * step,
        cost=float(paths.mean()), risk=_dearest(paths)[0],
        objective=(1 - risk) * float(paths.mean()) + risk * _dearest(paths)[0], bound=bound,
        all_rented=rented, all_reserved=_reserved_at_the_mean(demand, offers, rent, there, months),
        coverage=used / wanted if wanted else 0.0, utilisation=used / float(paid.sum()) if paid.any() else 0.0,
    )  # fmt: skip


def _search(
    model: LinearModel, columns: list[Column], tables: Paths, steps: Columns, effort: SearchEffort,
    risk: float, gap: float, price: list[float], rented: float,
) -> tuple[Paths, float]:  # fmt: skip
    """Counts that cost least, and a bound: one linear model, or rounds that each add the dearest paths found."""
    if not risk:
        found = solve(model, effort, relaxed=True)
        if found.values is None:
            return np.zeros(len(columns)), -math.inf
        return np.round(found.values[: len(columns)]), _bound(found) + rented
    # What the dearest paths cost in rent, as a whole number of the smallest sum that matters.
    scale = max(rented * gap / 50, 1e-6)
    top = model.add_columns(["dearest"], cost=[risk * scale], high=[1e9])
    months = tables.shape[0]
    weights = np.full(tables.shape[1], 1 / tables.shape[1])
    best, best_cost, bound = np.zeros(len(columns)), math.inf, -math.inf
    for number in range(ROUNDS):
        table = np.einsum("s,msj->mj", weights, tables)
        save = (table[:, :-1] - table[:, 1:]) / scale
        least = float(table[:, 0].sum()) / scale
        model.add_row(f"bound{number}", [*top, *steps.ravel()], [1.0, *save.ravel()], ">=", least)
        found = solve(model, effort, gap=gap / 4)
        if found.values is None:
            break
        bound = max(bound, _bound(found) + (1 - risk) * rented - risk * scale)
        chosen = np.round(found.values[: len(columns)])
        paths = _of_paths(tables, _committed(chosen, columns, months))
        worst, weights = _dearest(paths)
        cost = float(np.dot(price, chosen)) + (1 - risk) * float(paths.mean()) + risk * worst
        if cost < best_cost:
            best, best_cost = chosen, cost
        if best_cost - bound <= gap * abs(best_cost) or effort.is_spent():
            break
    return best, min(bound, best_cost)


def _bound(found: Solution) -> float:
    return -math.inf if found.bound is None else found.bound


def _rents(hours: Paths, rent: Rent, levels: Paths) -> Paths:
    """What the hours of one month cost in rent beyond each level, path by path: shape (n_paths, n_levels)."""
    found = np.empty((len(hours), len(levels)))
    dearer = rent.on_demand - rent.spot_price
    for place, level in enumerate(levels):
        beyond = np.maximum(hours - level, 0.0)
        cost = rent.on_demand * beyond
        if dearer and rent.spot_share:
            cost = cost - dearer * np.minimum(beyond, rent.spot_share * hours)
        found[:, place] = cost.mean(axis=1) * HOURS_PER_MONTH
    return found


def _active(offer: Offer, month: int, months: int) -> range:
    first = month + offer.lead_months
    return range(first, min(first + offer.term_months, months))


def _paid(offer: Offer, active: range, months: int) -> float:
    """What a GPU costs over its months here, and what is lost of the rest of its term."""
    return offer.per_gpu_month * (len(active) + offer.lost_share * (offer.term_months - len(active)))


def cost_of_term(offer: Offer, month: int, months: int) -> float:
    """Cost of one GPU of an offer that is decided in a month, over the months looked at."""
    return _paid(offer, _active(offer, month, months), months)


def _committed(counts: Paths, columns: list[Column], months: int) -> Paths:
    found = np.zeros(months)
    for (_, _, active), count in zip(columns, counts, strict=True):
        found[active.start : active.stop] += count
    return found


def _of_paths(tables: Paths, committed: Paths) -> Paths:
    """Rent of each path; more is held than any hour wants where a level lies beyond the last."""
    places = np.minimum(committed.astype(int), tables.shape[2] - 1)
    return np.asarray(tables[np.arange(tables.shape[0]), :, places].sum(axis=0))


def _dearest(paths: Paths) -> tuple[float, Paths]:
    """Mean of the dearest tenth of the paths, and the weights of its members."""
    share, weights = 1 - DEAREST, np.zeros(len(paths))
    left = share
    for place in np.argsort(-paths, kind="stable"):
        weights[place] = min(left, 1 / len(paths)) / share
        left -= weights[place] * share
        if left <= 1e-12:
            break
    return float(weights @ paths), weights


def _reserved_at_the_mean(
    demand: Sequence[Paths], offers: Sequence[Offer], rent: Rent, there: Paths, months: int
) -> float:
    """The mean demand beyond what is there, committed at once as the cheapest offer and renewed; the rest rented."""
    beyond = [float(one.mean()) - start for one, start in zip(demand, there, strict=True)]
    mean = max(round(float(np.mean(beyond))), 0)
    usual = [offer for offer in offers if offer.only_month is None and not offer.lead_months]
    levels = (there + mean if usual else there)[:, None]
    rest = sum(float(_rents(one, rent, level).mean()) for one, level in zip(demand, levels, strict=True))
    begins = ((offer, range(0, months, offer.term_months)) for offer in usual)
    costs = (sum(_paid(one, _active(one, month, months), months) for month in at) for one, at in begins)
    return mean * min(costs, default=0.0) + rest


def _check(demand: Sequence[Paths], offers: Sequence[Offer], rent: Rent, risk: float) -> None:
    faults = [] if len(demand) and all(one.size for one in demand) else ["no demand"]
    faults += [
        f"{offer.name}: {name} {value:g}"
        for offer in offers
        for name, value, low in (
            ("per_gpu_month", offer.per_gpu_month, 0), ("term_months", offer.term_months, 1),
            ("lead_months", offer.lead_months, 0), ("peak_gpus", offer.peak_gpus, 0),
        )
        if value < low
    ]  # fmt: skip
    if not (rent.on_demand > 0 and 0 <= risk <= 1 and 0 <= rent.spot_share <= 1):
        faults.append("rent or risk out of range")
    if faults:
        got, todo = "; ".join(faults), "Correct the prices and terms."
        raise ScenarioError("portfolio", "demand, and prices and terms not below 0", got, todo)
