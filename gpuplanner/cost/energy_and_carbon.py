"""Energy and carbon of the ledger's rows, measured or estimated, each with its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import ScenarioError, first_error_line
from gpuplanner.core.schemas import MIN_USED_SM_ACTIVITY
from gpuplanner.core.units import GRAMS_PER_KILOGRAM, SECONDS_PER_HOUR, WATTS_PER_KILOWATT
from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.power_and_carbon import HOURS_PER_YEAR, make_power_model
from gpuplanner.ingest.telemetry.device_hours import GPU_KEY, J_PER_KWH, select_gpu_readings, split_energy_steps
from gpuplanner.ingest.telemetry.sample_buffer import add_reading_spans
from gpuplanner.ingest.telemetry.telemetry_join import split_shared_samples

STATE_OF = {
    "used": "busy", "no_telemetry": "busy", "allocated_idle": "idle", "unallocated": "idle", "fragmented": "idle",
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
        host, usual = find_parameter("host_factor"), find_parameter("pue")
        stated = (pue, pue, pue) if pue else (usual.value, usual.low, usual.high)
        return cls(RangedAmount(host.value, host.low, host.high), RangedAmount(*stated))

    def factor(self, side: str) -> float:
        """Energy at the meter over that of the GPUs; `side` is ``value``, ``low`` or ``high``."""
        return float(getattr(self.host, side) * getattr(self.pue, side))


def state_watts(gpu_model: str, activity: float | None) -> dict[str, RangedAmount]:
    """Power [W] of a GPU in each state, by the two-state law and its ranges; a null activity is anything.

    Examples
    --------
    >>> watts = state_watts("H100-80GB-SXM5", 0.5)
    >>> round(watts["idle"].value), round(watts["busy"].value), watts["off"].value
    (70, 536, 0.0)
    """
    laws = [make_power_model(gpu_model, range_end=side) for side in ("value", "low", "high")]
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
    gpu_hours = pl.col("gpu_hours").sum()
    amounts |= {f"embodied_kg{side}": gpu_hours * getattr(made, SIDES[side]) for side in SIDES}
    groups = rows.group_by(*keys, "state", maintain_order=True)
    found = groups.agg(gpu_hours, known=pl.col("watts").is_not_null().all(), **amounts)
    amounts_known = (pl.when("known").then(pl.col(name).round(FINE)).alias(name) for name in amounts)
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
        counts = {"counted_gpu_hours": pl.col("gpu_hours").sum(), "counted_kwh": pl.col("energy_kwh").sum()}
        counted = measured.group_by("state").agg(**counts)
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
    gpu_model = boards.get(row["gpu_model"])  # type: ignore[call-overload]
    if gpu_model is None:
        return (None, None, None)
    bucket = str(row["bucket"])
    watts = state_watts(gpu_model, activity.get(str(row["tenant"]), activity.get("")))
    power = watts[STATE_OF[bucket]]
    low = watts["idle"].low if bucket == "no_telemetry" else power.low
    return power.value, low, power.high


def _embodied_kg_per_hour() -> RangedAmount:
    """Carbon of making a board, spread over its life [kg per GPU-hour]."""
    made, life = find_parameter("embodied_kg_per_gpu"), find_parameter("lifetime_years")
    middle = made.value / (life.value * HOURS_PER_YEAR)
    low, high = made.low / (life.high * HOURS_PER_YEAR), made.high / (life.low * HOURS_PER_YEAR)
    return RangedAmount(middle, low, high)


_GRAMS = (0.0, 5000.0)
BOUNDS = {"location_g_per_kwh": _GRAMS, "market_g_per_kwh": _GRAMS, "pue": (1.0, 5.0)}
LOCATION, MARKET, PUE = BOUNDS


def read_grid(path: str | Path, hours: pl.Series) -> pl.DataFrame:
    r"""``hour, location_g, market_g, pue`` for each of some hours; null what the file has no column of.

    The file is CSV: ``time`` (ISO 8601 with its offset, the start of an hour), ``location_g_per_kwh``, and, if known,
    ``market_g_per_kwh`` and ``pue``.

    Examples
    --------
    >>> import tempfile
    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 2, 1, 12, tzinfo=UTC)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "grid.csv"
    ...     _ = file.write_text("time,location_g_per_kwh\n2026-02-01T13:00:00+01:00,250\n")
    ...     read_grid(file, pl.Series([noon])).row(0)[1:]
    (250.0, None, None)
    """
    name = Path(path).name
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ScenarioError(str(path), "a CSV file of hours", first_error_line(error), "Check the path.") from error
    there = [one for one in BOUNDS if one in table.columns]
    if not {"time", LOCATION} <= set(table.columns) <= {"time", *BOUNDS}:
        expected = f"columns time, {', '.join(BOUNDS)}, all but the first two if known"
        raise ScenarioError(name, expected, ", ".join(table.columns), "Rename them.")
    read = table.select(
        pl.col("time").str.to_datetime("%+", time_zone="UTC", time_unit="us", strict=False),
        pl.col(there).cast(pl.Float64, strict=False),
    ).with_row_index("line", 2)
    sound = [pl.col(one).is_between(*BOUNDS[one]).fill_null(value=False) for one in there]
    wrong = read.filter(~pl.all_horizontal(sound) | pl.col("time").is_null() | pl.col("time").is_duplicated())
    if wrong.height:
        line = wrong["line"][0]
        got = ",".join(str(cell) for cell in table.row(line - 2))
        todo = "Times need an offset, such as Z; each hour stands once; grams are 0 to 5000, a PUE 1 to 5."
        raise ScenarioError(f"{name}, line {line}", "an hour and its grams per kWh", got, todo)
    wanted = pl.DataFrame({"hour": hours.unique().sort()}).cast({"hour": pl.Datetime("us", "UTC")})
    found = wanted.join(read.drop("line"), left_on="hour", right_on="time", how="left", maintain_order="left")
    gaps = found.filter(pl.col(LOCATION).is_null())["hour"]
    if len(gaps):
        got = f"{len(gaps)} of them absent, the first {gaps[0]:%Y-%m-%dT%H:%MZ}"
        raise ScenarioError(name, f"{found.height} hours", got, "Add them: no gap is filled.")
    rest = {
        name: pl.col(one) if one in there else pl.lit(None, pl.Float64)
        for name, one in (("market_g", MARKET), ("pue", PUE))
    }
    return found.select("hour", location_g=LOCATION, **rest)


NOBODY = "-"


def measured_energy(samples: pl.DataFrame, jobs: pl.DataFrame, *, idle_w: float) -> pl.DataFrame:
    """Energy of the boards that telemetry saw, by who held them and whether they worked; it sums to their counters.

    What a board draws idle is parted by the slices of its instances, what it draws beyond that by their activity.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    jobs : polars.DataFrame
        ``job_id`` and ``tenant``.
    idle_w : float
        Power of the board without work [W].

    Returns
    -------
    polars.DataFrame
        ``tenant`` (``-``: nobody), ``state`` (busy, idle), ``energy_kwh``, ``gpu_hours`` and their ratio ``watts`` [W],
        sorted; steps of which no energy is known are left out.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(minutes=30 * n) for n in range(3)], "node": "n1", "gpu": 0, "instance": None}
    >>> read |= {"profile": None, "job_id": ["1", "1", None], "sm_activity": [0.9, 0.0, None], "power_w": 500.0}
    >>> read = pl.DataFrame(read | {"energy_counter_j": [0.0, 900000.0, 1080000.0]})
    >>> jobs = pl.DataFrame({"job_id": ["1"], "tenant": ["a"]})
    >>> seen = measured_energy(read, jobs, idle_w=70.0)
    >>> seen.select("tenant", "state", pl.col("energy_kwh", "watts").round(6)).rows()
    [('a', 'busy', 0.25, 500.0), ('a', 'idle', 0.05, 100.0)]
    """
    steps = split_energy_steps(add_reading_spans(select_gpu_readings(samples), GPU_KEY)).drop_nulls("energy_j")
    steps = steps.select(pl.col("reading").alias("time"), *GPU_KEY, "energy_j", "step_s")
    slices = pl.col("profile").cast(pl.String).str.extract(r"^(\d+)g").cast(pl.Float64).fill_null(1.0)
    each = ["time", *GPU_KEY]
    rows = (
        split_shared_samples(samples)
        .select(*each, "instance", "job_id", "sm_activity", slices=slices * pl.col("part"))
        .join(steps.with_row_index("piece"), on=each)
    )
    each = ["piece"]
    work = pl.col("sm_activity").fill_null(0.0) * pl.col("slices")
    by_slices = pl.col("slices") / pl.col("slices").sum().over(each)
    all_work = work.sum().over(each)
    rest = pl.min_horizontal("energy_j", pl.col("step_s") * idle_w)
    beyond = pl.when(all_work > 0).then(work / all_work).otherwise(by_slices)
    # A minute is used or idle as a whole, as in the ledger: a job that works in bursts does not rest between them.
    minute = [pl.col("time").dt.truncate("1m"), *GPU_KEY, "instance", "job_id"]
    activity = pl.col("sm_activity").mean().over(minute).fill_null(1.0)
    works = pl.col("job_id").is_not_null() & (activity >= MIN_USED_SM_ACTIVITY)
    known = jobs.select("job_id", pl.col("tenant").cast(pl.String)).unique("job_id", keep="last")
    parts = rows.with_columns(
        part_j=rest * by_slices + (pl.col("energy_j") - rest) * beyond,
        gpu_hours=by_slices * pl.col("step_s") / SECONDS_PER_HOUR,
        state=pl.when(works).then(pl.lit("busy")).otherwise(pl.lit("idle")),
    ).join(known, on="job_id", how="left")
    groups = parts.group_by(pl.col("tenant").fill_null(NOBODY), "state")
    sums = groups.agg(energy_kwh=pl.col("part_j").sum() / J_PER_KWH, gpu_hours=pl.col("gpu_hours").sum())
    watts = pl.col("energy_kwh") * WATTS_PER_KILOWATT / pl.col("gpu_hours")
    return sums.filter(pl.col("gpu_hours") > 0).with_columns(watts=watts).sort("tenant", "state")
