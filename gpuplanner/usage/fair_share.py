"""Entitlement, demand and allocation of tenants, and borrowing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.step_functions import sum_overlap_by_interval
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR


@dataclass(frozen=True, eq=False)
class Claims:
    """GPUs, or their compute slices (units), that jobs request and are allocated over time.

    Units are whole numbers, so that sums are exact.

    Parameters
    ----------
    table : polars.DataFrame
        One row for each attempt of a job: ``tenant``, ``submit_s`` (it waits from then on), ``start_s`` (it is
        allocated units from then on), ``end_s``, all in seconds from one origin, and the units ``wanted`` (requested)
        and ``held`` (allocated). A preempted job has several rows.
    units_per_gpu : int
        Units of a GPU: 1, or the compute slices of the GPU model.
    window : tuple of float
        Begin and end of the accounted period, from the same origin [s].
    """

    table: pl.DataFrame
    units_per_gpu: int
    window: tuple[float, float]

    def by_tenant(self, tenants: frozenset[str] = frozenset()) -> pl.DataFrame:
        """Tabulate allocated and waiting units of each tenant over the whole window.

        Parameters
        ----------
        tenants : frozenset of str
            Tenants to list even if they have no jobs.

        Returns
        -------
        polars.DataFrame
            ``tenant, start_s, end_s, held, waiting`` (allocated and waiting units): adjacent intervals that fill the
            window for every tenant.
        """
        begin, end = self.window
        allocated, wanted = pl.col("held"), pl.col("wanted")
        all_tenants = sorted(tenants.union(self.table["tenant"]))
        none = {"tenant": all_tenants, "at_s": begin, "held": 0, "waiting": 0}
        events = [pl.DataFrame(none, schema={"tenant": pl.String, "at_s": float, "held": int, "waiting": int})]
        changes = (("submit_s", pl.lit(0), wanted), ("start_s", allocated, -wanted), ("end_s", -allocated, pl.lit(0)))
        for instant, allocated_change, waiting_change in changes:
            at = pl.col(instant).clip(begin, end)
            events.append(
                self.table.select("tenant", at_s=at, held=allocated_change.cast(int), waiting=waiting_change.cast(int))
            )
        return sum_steps(pl.concat(events), "tenant", ["held", "waiting"], until_s=end)


def sum_steps(events: pl.DataFrame, by: str, changes: Sequence[str], *, until_s: float) -> pl.DataFrame:
    """Convert changes of amounts over time to their levels from each change to the next, by group.

    Changes of the same instant count together. Integer changes are summed exactly; the cost is that of sorting, O(n log
    n).

    Parameters
    ----------
    events : polars.DataFrame
        `by`, ``at_s`` and the columns `changes`.
    by : str
        Column of a group.
    changes : sequence of str
        Columns that are summed.
    until_s : float
        End of the last interval. [s]

    Examples
    --------
    >>> events = pl.DataFrame({"node": 0, "at_s": [5.0, 0.0, 5.0], "held": [-2, 3, 1]})
    >>> sum_steps(events, "node", ["held"], until_s=9.0).rows()
    [(0, 0.0, 5.0, 3), (0, 5.0, 9.0, 2)]
    """
    following = pl.col("start_s").shift(-1).over(by)
    return (
        events.group_by(by, start_s="at_s")
        .agg(pl.col(changes).sum())
        .sort(by, "start_s")
        .with_columns(pl.col(changes).cum_sum().over(by), end_s=following.fill_null(until_s))
        .filter(pl.col("end_s") > pl.col("start_s"))
        .select(by, "start_s", "end_s", *changes)
    )


TICKS_PER_S = 1_000_000
"""Ticks of a second: instants are counted in microseconds, so that sums are exact."""


def entitled_by_shares(
    gpus: float, tenants: Iterable[str], shares: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Divide the GPUs of a cluster among tenants by their shares.

    Parameters
    ----------
    gpus : float
        GPUs of the cluster.
    tenants : iterable of str
        All tenants.
    shares : mapping of str to float, optional
        Share of each tenant, in any scale; 1 for those not named.

    Returns
    -------
    dict
        GPUs of each tenant, by name; they sum to `gpus`.

    Raises
    ------
    SchemaError
        If a share is below 0, or all are 0.

    Examples
    --------
    >>> entitled_by_shares(64, ["b", "a"], {"a": 3.0})
    {'a': 48.0, 'b': 16.0}
    """
    given = shares or {}
    weights = {tenant: float(given.get(tenant, 1.0)) for tenant in sorted(set(tenants))}
    total = math.fsum(weights.values())
    if weights and not (all(0 <= weight < math.inf for weight in weights.values()) and total > 0):
        raise SchemaError("shares", "finite numbers not below 0, one above", f"{weights}", "Change them.")
    return {tenant: gpus * weight / total for tenant, weight in weights.items()}


def tenant_intervals(claims: Claims, entitled: Mapping[str, float]) -> pl.DataFrame:
    """Tabulate the GPUs of every tenant due, missing and above its entitlement, by interval of constant allocation.

    Parameters
    ----------
    claims : Claims
        GPUs that jobs request and are allocated over time.
    entitled : mapping of str to float
        GPUs to which each tenant is entitled; tenants that are not named are entitled to none.

    Returns
    -------
    polars.DataFrame
        ``tenant, start_s, end_s``, ``held, waiting, entitled`` GPUs, and

        due
            ``min(held + waiting, entitled)``.
        deficit
            ``max(0, due - held)``: due and requested, but not allocated.
        above
            ``max(0, held - entitled)``.
        unclaimed
            ``max(0, entitled - held - waiting)``.
        starving
            Whether jobs wait, no GPU is allocated, and the entitlement is above 0.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x", "y"], "submit_s": 0.0, "start_s": [0.0, 60.0],
    ...     "end_s": [60.0, 90.0], "wanted": [4, 2], "held": [4, 2]})
    >>> pieces = tenant_intervals(Claims(table, 1, (0.0, 90.0)), {"x": 3.0, "y": 1.0})
    >>> pieces.select("tenant", "end_s", "deficit", "above", "unclaimed").rows()
    [('x', 60.0, 0.0, 1.0, 0.0), ('x', 90.0, 0.0, 0.0, 3.0), ('y', 60.0, 1.0, 0.0, 0.0), ('y', 90.0, 0.0, 1.0, 0.0)]
    """
    pieces = claims.by_tenant(frozenset(entitled))
    allocated, entitlement = pl.col("held"), pl.col("entitled")
    share = pl.col("tenant").replace_strict(dict(entitled), default=0.0, return_dtype=pl.Float64)
    return (
        pieces.with_columns(pl.col("held", "waiting") / claims.units_per_gpu, entitled=share)
        .with_columns(due=pl.min_horizontal(allocated + pl.col("waiting"), "entitled"))
        .with_columns(
            deficit=(pl.col("due") - allocated).clip(lower_bound=0.0),
            above=(allocated - entitlement).clip(lower_bound=0.0),
            unclaimed=(entitlement - allocated - pl.col("waiting")).clip(lower_bound=0.0),
            starving=(pl.col("waiting") > 0) & (allocated == 0) & (entitlement > 0),
        )
    )


def tenant_accounts(claims: Claims, entitled: Mapping[str, float]) -> pl.DataFrame:
    """Sum entitled, requested and received GPU-hours of every tenant.

    Integrals are exact: everything is constant between two events.

    Parameters
    ----------
    claims, entitled
        As for :func:`tenant_intervals`.

    Returns
    -------
    polars.DataFrame
        A row per tenant, sorted: ``tenant``, ``entitled_gpus``, ``allocated_gpu_hours``, ``allocated_share`` of the
        GPU-hours allocated to all tenants, ``due_gpu_hours``, ``deficit_gpu_hours``, ``fair_share_received`` (1 -
        deficit / due; null where nothing was due), ``above_gpu_hours``, ``unclaimed_gpu_hours``, ``starved_hours`` and
        ``longest_starvation_h``, its longest stretch.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x", "y"], "submit_s": 0.0, "start_s": [0.0, 3600.0],
    ...     "end_s": [3600.0, 7200.0], "wanted": [4, 2], "held": [4, 2]})
    >>> accounts = tenant_accounts(Claims(table, 1, (0.0, 7200.0)), {"x": 2.0, "y": 2.0})
    >>> accounts.select("tenant", "deficit_gpu_hours", "fair_share_received", "starved_hours").rows()
    [('x', 0.0, 1.0, 0.0), ('y', 2.0, 0.5, 1.0)]
    """
    hours = (pl.col("end_s") - pl.col("start_s")) / SECONDS_PER_HOUR
    stretch = pl.col("starving").rle_id().over("tenant")
    pieces = tenant_intervals(claims, entitled).rename({"held": "allocated"})
    pieces = pieces.with_columns(hours=hours, stretch=stretch)
    starved = pieces.filter("starving").group_by("tenant", "stretch", maintain_order=True).agg(pl.col("hours").sum())
    longest = starved.group_by("tenant", maintain_order=True).agg(longest_starvation_h=pl.col("hours").max())
    sums = ("allocated", "due", "deficit", "above", "unclaimed")
    received = 1 - _ratio_or_null(pl.col("deficit_gpu_hours"), pl.col("due_gpu_hours"))
    return (
        pieces.group_by("tenant")
        .agg(
            pl.col("entitled").first().alias("entitled_gpus"),
            *[(pl.col(name) * pl.col("hours")).sum().alias(f"{name}_gpu_hours") for name in sums],
            starved_hours=pl.col("hours").filter("starving").sum(),
        )
        .join(longest, on="tenant", how="left")
        .sort("tenant")
        .select(
            pl.col("tenant", "entitled_gpus", "allocated_gpu_hours"),
            _ratio_or_null(pl.col("allocated_gpu_hours"), pl.col("allocated_gpu_hours").sum()).alias("allocated_share"),
            pl.col("due_gpu_hours", "deficit_gpu_hours"),
            received.alias("fair_share_received"),
            pl.col("above_gpu_hours", "unclaimed_gpu_hours", "starved_hours"),
            pl.col("longest_starvation_h").fill_null(0.0),
        )
    )


def shares_over_time(claims: Claims, *, slot_s: float) -> pl.DataFrame:
    """Compute the mean allocated GPUs of every tenant in each interval.

    Parameters
    ----------
    claims : Claims
        GPUs that jobs request and are allocated over time.
    slot_s : float
        Length of an interval [s]; the last one may reach beyond the window, where nothing is allocated.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``slot_s`` (start of the interval [s]), ``gpus`` (mean allocated) and ``share`` (of all GPUs
        allocated in the interval [0-1]; null where none were), sorted. Exact to the microsecond.

    Raises
    ------
    SchemaError
        If the interval is not at least a microsecond long.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x", "y"], "submit_s": 0.0, "start_s": [0.0, 60.0],
    ...     "end_s": [60.0, 90.0], "wanted": [4, 2], "held": [4, 2]})
    >>> shares_over_time(Claims(table, 1, (0.0, 90.0)), slot_s=60.0).rows()
    [('x', 0.0, 4.0, 1.0), ('x', 60.0, 0.0, 0.0), ('y', 0.0, 0.0, 0.0), ('y', 60.0, 1.0, 1.0)]
    """
    ticks = round(slot_s * TICKS_PER_S)
    if ticks < 1:
        raise SchemaError("shares over time", "intervals from a microsecond", f"{slot_s!r} s", "Use 3600.")
    begin, end = claims.window
    slots = max(1, math.ceil((end - begin) / slot_s))
    names = claims.table["tenant"].unique().sort()

    def instants(column: str) -> NDArray[np.int64]:
        seconds = claims.table[column].clip(begin, end) - begin
        return (seconds * TICKS_PER_S).round().cast(pl.Int64).to_numpy()

    group = claims.table["tenant"].replace_strict(names, range(len(names)), return_dtype=pl.Int64)
    sums = sum_overlap_by_interval(
        instants("start_s"), instants("end_s"), claims.table["held"].to_numpy(), group.to_numpy(),
        n_groups=len(names), n_intervals=slots, interval_ticks=ticks,
    )  # fmt: skip
    starts = begin + slot_s * np.arange(slots)
    return pl.DataFrame(
        {
            "tenant": names.gather(np.repeat(np.arange(len(names)), slots)),
            "slot_s": np.tile(starts, len(names)),
            "gpus": (sums / (ticks * claims.units_per_gpu)).ravel(),
        }
    ).with_columns(share=_ratio_or_null(pl.col("gpus"), pl.col("gpus").sum().over("slot_s")))


def jain_index(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    """Compute Jain's index of fairness: 1 where all values are equal, 1/n where one tenant has everything.

    ``(sum x)^2 / (n * sum x^2)``.

    Parameters
    ----------
    values : array of float, shape (n,)
        Share of its entitlement that each tenant received; not below 0.

    Returns
    -------
    float or None
        None without values, or where all are 0.

    References
    ----------
    R. Jain, D. Chiu, W. Hawe, A quantitative measure of fairness and discrimination for resource allocation
    in shared computer systems, DEC-TR-301 (1984).

    Examples
    --------
    >>> jain_index([1, 1, 1, 1]), jain_index([1, 0, 0, 0]), jain_index([])
    (1.0, 0.25, None)
    """
    array = np.asarray(values, dtype=np.float64)
    squares = float(array @ array)
    return float(array.sum()) ** 2 / (len(array) * squares) if squares else None


def _ratio_or_null(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Build the ratio of two expressions; null where the denominator is 0."""
    return pl.when(whole > 0).then(part / whole)


NO_TENANT_LABEL = "-"
"""Name that stands for no tenant. As borrower: GPUs that were not allocated. As lender: entitlement that no team
claimed.
"""

ROUNDING_TOLERANCE_GPUS = 1e-9
"""Sums of GPUs up to this are rounding errors and count as 0 [GPUs]."""


def borrowed_hours(claims: Claims, entitled: Mapping[str, float]) -> pl.DataFrame:
    """Attribute GPU-hours above entitlements to the tenants that lacked them.

    At every instant, tenant i holds ``b_i`` GPUs above its entitlement, and tenant j lacks ``d_j`` that are
    due to it. With ``B`` and ``L`` their sums, i borrows ``b_i * d_j / max(B, L)`` from j: everybody who is
    above shares in what everybody lacks. Where more is held above than is lacking, the rest comes from
    entitlement that no team claimed; where more is lacking, the rest stood idle. So all that is above, and all
    that is lacking, is attributed exactly once:

    - what a borrower has from all lenders is its ``above_gpu_hours`` of :func:`tenant_accounts`;
    - what a lender lacks through all borrowers is its ``deficit_gpu_hours``.

    Parameters
    ----------
    claims, entitled
        As for :func:`~gpuplanner.usage.fair_share.tenant_intervals`.

    Returns
    -------
    polars.DataFrame
        ``borrower``, ``lender``, ``gpu_hours`` above 0, sorted by names; :data:`NO_TENANT_LABEL` on either side. Takes
        a sort of the events, and one pass over them for every borrower.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x", "y"], "submit_s": 0.0, "start_s": [0.0, 3600.0],
    ...     "end_s": [3600.0, 7200.0], "wanted": [4, 1], "held": [4, 1]})
    >>> borrowed_hours(Claims(table, 1, (0.0, 7200.0)), {"x": 2.0, "y": 2.0}).rows()
    [('x', '-', 1.0), ('x', 'y', 1.0)]
    """
    names, seconds, tenant, low, high, above, deficit, _ = _interval_arrays(claims, entitled)
    above_all, deficit_all = (_sum_between_edges(values, low, high, len(seconds)) for values in (above, deficit))
    larger = np.maximum(above_all, deficit_all)
    per_gpu = np.divide(seconds, larger, out=np.zeros_like(seconds), where=larger > ROUNDING_TOLERANCE_GPUS)
    idle, unclaimed = ((larger - part) * (larger - part > ROUNDING_TOLERANCE_GPUS) for part in (above_all, deficit_all))
    rows = []
    for rank, borrower in enumerate(names):
        of_borrower = tenant == rank
        # The pieces of one tenant are adjacent, so repeating them lays them out over all edges.
        borrowed = np.repeat(above[of_borrower], (high - low)[of_borrower]) if rank else idle
        so_far = np.append(0.0, np.cumsum(borrowed * per_gpu))
        lent = np.bincount(tenant, deficit * (so_far[high] - so_far[low]), minlength=len(names))
        lent[0] = (borrowed * per_gpu * unclaimed).sum()
        pairs = zip(names, lent / SECONDS_PER_HOUR, strict=True)
        rows += [(borrower, lender, hours) for lender, hours in pairs if hours > 0]
    schema = {"borrower": pl.String, "lender": pl.String, "gpu_hours": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def lent_hours(claims: Claims, entitled: Mapping[str, float]) -> list[tuple[str, float]]:
    """Compute the unclaimed GPU-hours of each tenant's entitlement that other tenants were allocated meanwhile.

    GPUs above a tenant's entitlement come first from the deficits of others, see :func:`borrowed_hours`; then from
    unclaimed entitlement, of each tenant in proportion to what it leaves; last from GPUs without an entitlement.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x"], "submit_s": 0.0, "start_s": [0.0], "end_s": [3600.0], "wanted": [4],
    ...     "held": [4]})
    >>> lent_hours(Claims(table, 1, (0.0, 7200.0)), {"x": 2.0, "y": 1.0, "z": 2.0})
    [('x', 0.0), ('y', 0.66...), ('z', 1.33...)]
    """
    names, seconds, tenant, low, high, above, deficit, unclaimed = _interval_arrays(claims, entitled)
    amounts = (above, deficit, unclaimed)
    above_all, deficit_all, left_all = (_sum_between_edges(values, low, high, len(seconds)) for values in amounts)
    lent_gpus = np.clip(above_all - deficit_all, 0.0, left_all)
    part = np.divide(
        lent_gpus * seconds, left_all, out=np.zeros_like(seconds), where=left_all > ROUNDING_TOLERANCE_GPUS
    )
    so_far = np.append(0.0, np.cumsum(part))
    lent = np.bincount(tenant, unclaimed * (so_far[high] - so_far[low]), minlength=len(names))
    return list(zip(names[1:], (lent[1:] / SECONDS_PER_HOUR).tolist(), strict=True))


def _interval_arrays(
    claims: Claims, entitled: Mapping[str, float]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Convert the intervals of :func:`tenant_intervals` to arrays; edges are all instants at which one begins or ends.

    Returns the tenant names (first :data:`NO_TENANT_LABEL`), the seconds between neighbouring edges, and for each
    interval: position of its tenant, first and last edge, GPUs above the entitlement, deficit and unclaimed GPUs.
    """
    pieces = tenant_intervals(claims, entitled)
    names = [NO_TENANT_LABEL, *pieces["tenant"].unique().sort()]
    number = {name: rank for rank, name in enumerate(names)}
    edges = np.append(np.unique(pieces["start_s"].to_numpy()), claims.window[1])
    tenant, low, high, above, deficit, unclaimed = (
        pieces.with_columns(pl.col("tenant").replace_strict(number, return_dtype=pl.Int64))
        .select("tenant", "start_s", "end_s", "above", "deficit", "unclaimed")
        .to_numpy()
        .T
    )
    low, high = np.searchsorted(edges, low), np.searchsorted(edges, high)
    return names, np.diff(edges), tenant.astype(np.int64), low, high, above, deficit, unclaimed


def _sum_between_edges(values: np.ndarray, low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    """Sum the amounts of the intervals that cover each span between two neighbouring edges.

    Parameters
    ----------
    values : numpy.ndarray, shape (n_intervals,)
        Amount of each interval.
    low, high : numpy.ndarray of int, shape (n_intervals,)
        First and last edge of each interval.
    count : int
        Number of spans between neighbouring edges.
    """
    changes = np.bincount(low, values, minlength=count + 1) - np.bincount(high, values, minlength=count + 1)
    total: np.ndarray = np.cumsum(changes)[:count]
    return total
