"""Energy and carbon of ledger rows by the state of the GPU, each with its range; hour by hour where the grid is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gpuplanner.catalog.loader import parameter
from gpuplanner.cost.energy import HOURS_PER_YEAR, power_model
from gpuplanner.units import GRAMS_PER_KILOGRAM, WATTS_PER_KILOWATT

STATE_OF = {
    "used": "busy", "unobserved": "busy", "held_idle": "idle", "free": "idle", "fragmented": "idle",
    "idle_pending": "idle", "reserved": "idle", "reconfiguring": "idle", "down": "off",
}  # fmt: skip
"""State of a GPU by the bucket of its hours; of what nobody observed it is taken to be busy, and may have been idle."""
SIDES = {"": "value", "_low": "low", "_high": "high"}
"""Ends of a range: how columns of it end, and its field in :class:`RangedAmount`."""
FINE = 6
"""Decimals of kWh and kg in every row, so that all sums of them are the same."""
LEAST_SEEN = 1.0
"""GPU-hours from which measured power says something of hours that were not measured."""
AMOUNTS = ("energy_kwh", "location_kg", "market_kg", "embodied_kg")


@dataclass(frozen=True)
class RangedAmount:
    """An amount with the least and the most that it may be."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Facility:
    """Energy of the building over that of the GPUs in it: its servers, and cooling and losses, each with its range.

    Examples
    --------
    >>> round(Facility.of(pue=1.2).factor("value"), 3), round(Facility.of().factor("low"), 3)
    (1.8, 1.43)
    """

    host: RangedAmount
    pue: RangedAmount

    @classmethod
    def of(cls, pue: float = 0.0) -> Facility:
        """By the catalogue, with the PUE that is stated, if one is."""
        host, usual = parameter("host_factor"), parameter("pue")
        return cls(
            RangedAmount(host.value, host.low, host.high),
            RangedAmount(pue, pue, pue) if pue else RangedAmount(usual.value, usual.low, usual.high),
        )

    def factor(self, side: str) -> float:
        """Energy at the meter over that of the GPUs; `side` is ``value``, ``low`` or ``high``."""
        return float(getattr(self.host, side) * getattr(self.pue, side))


def state_watts(board: str, activity: float | None) -> dict[str, RangedAmount]:
    """Power [W] of a GPU in each state, by the two-state law and its ranges; a null activity is anything.

    Examples
    --------
    >>> watts = state_watts("H100-80GB-SXM5", 0.5)
    >>> round(watts["idle"].value), round(watts["busy"].value), watts["off"].value
    (70, 536, 0.0)
    """
    laws = [power_model(board, side=side) for side in ("value", "low", "high")]
    use = (1.0, 0.0, 1.0) if activity is None else (activity,) * 3
    return {
        "off": RangedAmount(0.0, 0.0, 0.0),
        "idle": RangedAmount(*(law.idle_w for law in laws)),
        "busy": RangedAmount(*(law.busy_w(share) for law, share in zip(laws, use, strict=True))),
    }


def footprint(
    hours: pl.DataFrame,
    boards: Mapping[str | None, str | None],
    *,
    activity: Mapping[str, float],
    facility: Facility,
    grid: pl.DataFrame,
    measured: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Add energy and carbon to hours of a ledger, by tenant, board and bucket, each with its range.

    Parameters
    ----------
    hours : polars.DataFrame
        Table ``schemas.Ledger``.
    boards : mapping
        Board of the catalogue by ``gpu_model``; None where its power is not known.
    activity : mapping
        Mean SM activity 0-1 of the jobs of a tenant while they work; a tenant without one may do anything.
    facility : Facility
        From GPUs to the meter.
    grid : polars.DataFrame
        ``hour``, every one of `hours`, ``location_g`` and ``market_g`` [g CO2e per kWh], and ``pue`` (null: the
        facility's).
    measured : polars.DataFrame, optional
        ``tenant, gpu_model, state, gpu_hours, watts``: hours that were measured, and their mean power, which goes
        before the law.

    Returns
    -------
    polars.DataFrame
        ``tenant, gpu_model, bucket, state, gpu_hours`` and the amounts :data:`AMOUNTS` with ``_low`` and ``_high``
        [kWh, kg CO2e]; null where the board is not known.
    """
    cases = hours.select("tenant", "gpu_model", "bucket").unique(maintain_order=True)
    watts = [_watts(row, boards, activity) for row in cases.iter_rows(named=True)]
    schema = {f"watts{side}": pl.Float64 for side in SIDES}
    cases = cases.hstack(pl.DataFrame(watts, schema=schema, orient="row"))
    cases = cases.with_columns(state=pl.col("bucket").cast(pl.String).replace_strict(STATE_OF))
    if measured is not None:
        cases = _with_measured(cases, hours, measured)
    keys = ["tenant", "gpu_model", "bucket"]
    rows = hours.join(cases, on=keys, how="left", nulls_equal=True, maintain_order="left")
    rows = rows.join(grid, on="hour", how="left", maintain_order="left")
    kwh = {
        side: pl.col("gpu_hours") * pl.col(f"watts{side}") / WATTS_PER_KILOWATT
        * getattr(facility.host, SIDES[side]) * pl.col("pue").fill_null(getattr(facility.pue, SIDES[side]))
        for side in SIDES
    }  # fmt: skip
    made = _embodied_kg_per_hour()
    amounts = {f"energy_kwh{side}": kwh[side].sum() for side in SIDES}
    for scope in ("location", "market"):
        grams = pl.col(f"{scope}_g")
        amounts |= {f"{scope}_kg{side}": (kwh[side] * grams).sum() / GRAMS_PER_KILOGRAM for side in SIDES}
    amounts |= {
        f"embodied_kg{side}": pl.col("gpu_hours").sum() * getattr(made, SIDES[side]) for side in SIDES
    }
    found = rows.group_by(*keys, "state", maintain_order=True).agg(
        pl.col("gpu_hours").sum(), known=pl.col("watts").is_not_null().all(), **amounts
    )
    amounts_known = (
        pl.when("known").then(pl.col(f"{name}{side}").round(FINE)).alias(f"{name}{side}")
        for name in AMOUNTS
        for side in SIDES
    )
    return found.with_columns(amounts_known).drop("known")


def _with_measured(cases: pl.DataFrame, hours: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Power of the cases where some of their hours were measured: those hours as the board counted them.

    The hours that nobody measured are like those that were, if these are :data:`LEAST_SEEN` or more, and may be
    anywhere in the range of the law.
    """
    keys, seen = ["tenant", "gpu_model", "state"], pl.col("seen_w")
    keyed = hours.join(cases.select("tenant", "gpu_model", "bucket", "state"), on=["tenant", "gpu_model", "bucket"],
                       nulls_equal=True)  # fmt: skip
    told = (
        measured.select(*keys, seen_w="watts", seen_h="gpu_hours")
        .join(keyed.group_by(keys).agg(pl.col("gpu_hours").sum()), on=keys, nulls_equal=True)
        .with_columns(share=(pl.col("seen_h") / pl.col("gpu_hours")).clip(0.0, 1.0))
    )
    cases = cases.join(told, on=keys, how="left", nulls_equal=True, maintain_order="left")
    sides = {"watts": pl.when(pl.col("seen_h") >= LEAST_SEEN).then(seen).otherwise("watts"),
             "watts_low": pl.min_horizontal(seen, "watts_low"),
             "watts_high": pl.max_horizontal(seen, "watts_high")}  # fmt: skip
    known = seen.is_not_null() & pl.col("watts").is_not_null()
    return cases.with_columns(
        pl.when(known).then(pl.col("share") * seen + (1 - pl.col("share")) * rest).otherwise(name).alias(name)
        for name, rest in sides.items()
    ).drop("seen_w", "seen_h", "gpu_hours", "share")


def by_state(rows: pl.DataFrame, measured: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sums of a footprint by state, in the order of the states: GPU-hours, energy and carbon with their ranges.

    Where boards were measured, ``counted_gpu_hours`` and ``counted_kwh`` beside them: what the boards themselves drew.
    """
    sums = [pl.col("gpu_hours").sum(), *(pl.col(f"{name}{side}").sum() for name in AMOUNTS for side in SIDES)]
    found = rows.drop_nulls("energy_kwh").group_by("state").agg(sums)
    if measured is not None:
        counted = measured.group_by("state").agg(
            counted_gpu_hours=pl.col("gpu_hours").sum(), counted_kwh=pl.col("energy_kwh").sum()
        )
        found = found.join(counted, on="state", how="left", maintain_order="left")
    return found.sort(pl.col("state").cast(pl.Enum(["off", "idle", "busy"])))


def total_of(states: pl.DataFrame, amount: str) -> RangedAmount | None:
    """The sum of an amount over all states; None where nothing is known."""
    if states.is_empty():
        return None
    return RangedAmount(*(round(math.fsum(states[f"{amount}{side}"]), FINE) for side in SIDES))


def _watts(
    row: Mapping[str, object], boards: Mapping[str | None, str | None], activity: Mapping[str, float]
) -> tuple[float | None, ...]:
    """Power of one case: middle, low and high; nothing is known of a board that is not."""
    board = boards.get(row["gpu_model"])  # type: ignore[call-overload]
    if board is None:
        return (None, None, None)
    bucket, everybody = str(row["bucket"]), activity.get("")
    seen = activity.get(str(row["tenant"]), everybody)
    watts = state_watts(board, seen)
    power = watts[STATE_OF[bucket]]
    low = watts["idle"].low if bucket == "unobserved" else power.low
    return power.value, low, power.high


def _embodied_kg_per_hour() -> RangedAmount:
    """Carbon of making a board, spread over its life [kg per GPU-hour]."""
    made, life = parameter("embodied_kg_per_gpu"), parameter("lifetime_years")
    year = HOURS_PER_YEAR
    return RangedAmount(
        made.value / (life.value * year), made.low / (life.high * year), made.high / (life.low * year)
    )
