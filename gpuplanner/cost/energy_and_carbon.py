"""Energy and carbon of GPU-hours, measured or estimated, each with its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import ScenarioError, first_error_line
from gpuplanner.core.schemas import MIN_USED_SM_ACTIVITY
from gpuplanner.core.units_and_number_formats import GRAMS_PER_KILOGRAM, SECONDS_PER_HOUR, WATTS_PER_KILOWATT
from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.power_carbon_and_prices import HOURS_PER_YEAR, make_power_model
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import (
    GPU_KEY_COLUMNS,
    J_PER_KWH,
    select_gpu_readings,
    split_energy_steps,
)
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import add_reading_spans
from gpuplanner.ingest.telemetry.telemetry_join import (
    INSTANCE_JOBS,
    TOGETHER_JOB,
    count_devices_on_nodes,
    count_named_devices,
    device_kind_expr,
    split_shared_samples,
)
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL

GPU_STATE_BY_BUCKET = {
    "used": "busy", "no_telemetry": "busy", "allocated_idle": "idle", "unallocated": "idle", "fragmented": "idle",
    "idle_pending": "idle", "reserved": "idle", "reconfiguring": "idle", "down": "off",
}  # fmt: skip
"""State of a GPU (busy, idle, off) by the ledger bucket of its hours; hours without telemetry count as busy, and as
idle for the lower bound."""
RANGE_ENDS = {"": "value", "_low": "low", "_high": "high"}
"""Field of :class:`RangedAmount` by the suffix of the columns that hold it: none, ``_low`` or ``_high``."""
AMOUNT_DECIMALS = 6
"""Decimals to which energy [kWh] and carbon [kg] are rounded in each row, so that all groupings have the same sum."""
MIN_MEASURED_GPU_HOURS = 1.0
"""Smallest number of measured GPU-hours whose mean power is also used for unmeasured hours."""
FOOTPRINT_AMOUNTS = ("energy_kwh", "location_kg", "market_kg", "embodied_kg")
"""Columns of energy [kWh] and carbon [kg CO2e] of a footprint."""


@dataclass(frozen=True)
class RangedAmount:
    """An amount with its lower and upper bound, all in the same unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Facility:
    """Ratio of facility energy to GPU energy.

    - ``host``: Energy of the servers over that of their GPUs.
    - ``pue``: Power usage effectiveness: energy of the facility over that of the servers.

    Examples
    --------
    >>> round(Facility.from_catalog(pue=1.2).factor("value"), 3), round(Facility.from_catalog().factor("low"), 3)
    (1.8, 1.43)
    """

    host: RangedAmount
    pue: RangedAmount

    @classmethod
    def from_catalog(cls, pue: float = 0.0) -> Facility:
        """Make the ratios from the catalogue; `pue` above 0 replaces the PUE of the catalogue."""
        host, usual = find_parameter("host_factor"), find_parameter("pue")
        stated = (pue, pue, pue) if pue else (usual.value, usual.low, usual.high)
        return cls(RangedAmount(host.value, host.low, host.high), RangedAmount(*stated))

    def factor(self, side: str) -> float:
        """Return facility energy over GPU energy: the ``value``, or the ``low`` or ``high`` bound, as `side` says."""
        return float(getattr(self.host, side) * getattr(self.pue, side))


def state_watts(gpu_model: str, activity: float | None) -> dict[str, RangedAmount]:
    """Power [W] of a GPU in each state (off, idle, busy), by the two-state power model and its ranges.

    Parameters
    ----------
    gpu_model : str
        Name in the catalogue.
    activity : float, optional
        Mean SM activity of a busy GPU [0-1]; None: unknown, so that the range spans all activities.

    Returns
    -------
    dict of str to RangedAmount
        Power of the states ``off``, ``idle`` and ``busy``. [W]

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
    gpu_models: Mapping[str | None, str | None],
    *,
    activity: Mapping[str, float],
    facility: Facility,
    grid: pl.DataFrame,
    measured: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Sum energy and carbon of the hours of a ledger by tenant, GPU model and bucket.

    Parameters
    ----------
    hours : polars.DataFrame
        Table ``schemas.Ledger``.
    gpu_models : mapping
        Name in the catalogue by ``gpu_model`` of the ledger; None where its power is not known.
    activity : mapping
        Mean SM activity of the running jobs of each tenant [0-1]; a tenant without one gets that of the empty name,
        and without that the range over all activities.
    facility : Facility
        Ratio of facility energy to GPU energy.
    grid : polars.DataFrame
        Every ``hour`` of `hours`, ``location_g`` and ``market_g`` [g CO2e per kWh], and ``pue`` (null: that of the
        facility).
    measured : polars.DataFrame, optional
        ``tenant, gpu_model, state, gpu_hours, watts``: measured hours and their mean power, which replaces the power
        model.

    Returns
    -------
    polars.DataFrame
        ``tenant, gpu_model, bucket, state, gpu_hours`` and the amounts :data:`FOOTPRINT_AMOUNTS` with ``_low`` and
        ``_high`` [kWh, kg CO2e]; null where the GPU model is not known.
    """
    cases = hours.select("tenant", "gpu_model", "bucket").unique(maintain_order=True)
    watts = [_power_range_w(row, gpu_models, activity) for row in cases.iter_rows(named=True)]
    schema = {f"watts{side}": pl.Float64 for side in RANGE_ENDS}
    cases = cases.hstack(pl.DataFrame(watts, schema=schema, orient="row"))
    cases = cases.with_columns(state=pl.col("bucket").cast(pl.String).replace_strict(GPU_STATE_BY_BUCKET))
    if measured is not None:
        cases = _replace_with_measured_power(cases, hours, measured)
    keys = ["tenant", "gpu_model", "bucket"]
    rows = hours.join(cases, on=keys, how="left", nulls_equal=True, maintain_order="left")
    rows = rows.join(grid, on="hour", how="left", maintain_order="left")
    kwh = {
        side: pl.col("gpu_hours") * pl.col(f"watts{side}") / WATTS_PER_KILOWATT
        * getattr(facility.host, field) * pl.col("pue").fill_null(getattr(facility.pue, field))
        for side, field in RANGE_ENDS.items()
    }  # fmt: skip
    embodied = _embodied_kg_per_hour()
    amounts = {f"energy_kwh{side}": kwh[side].sum() for side in RANGE_ENDS}
    for scope in ("location", "market"):
        grams = pl.col(f"{scope}_g")
        amounts |= {f"{scope}_kg{side}": (kwh[side] * grams).sum() / GRAMS_PER_KILOGRAM for side in RANGE_ENDS}
    gpu_hours = pl.col("gpu_hours").sum()
    amounts |= {f"embodied_kg{side}": gpu_hours * getattr(embodied, RANGE_ENDS[side]) for side in RANGE_ENDS}
    groups = rows.group_by(*keys, "state", maintain_order=True)
    summed = groups.agg(gpu_hours, known=pl.col("watts").is_not_null().all(), **amounts)
    amounts_known = (pl.when("known").then(pl.col(name).round(AMOUNT_DECIMALS)).alias(name) for name in amounts)
    return summed.with_columns(amounts_known).drop("known")


def _replace_with_measured_power(cases: pl.DataFrame, hours: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Replace the modelled power of rows of a footprint by measured power, for the measured share of their GPU-hours.

    Unmeasured hours get the same power, up to the upper end of the power model, if at least
    :data:`MIN_MEASURED_GPU_HOURS` were measured; their range stays that of the power model.

    Parameters
    ----------
    cases : polars.DataFrame
        One row by ``tenant, gpu_model, bucket``: its ``state``, and the modelled power of a GPU, ``watts``,
        ``watts_low`` and ``watts_high`` [W].
    hours : polars.DataFrame
        Table ``schemas.Ledger``.
    measured : polars.DataFrame
        ``tenant, gpu_model, state, gpu_hours, watts`` of measured hours.
    """
    keys, measured_w = ["tenant", "gpu_model", "state"], pl.col("seen_w")
    keyed = hours.join(cases.select("tenant", "gpu_model", "bucket", "state"), on=["tenant", "gpu_model", "bucket"],
                       nulls_equal=True)  # fmt: skip
    measured_cases = (
        measured.select(*keys, seen_w="watts", seen_h="gpu_hours")
        .join(keyed.group_by(keys, maintain_order=True).agg(pl.col("gpu_hours").sum()), on=keys, nulls_equal=True)
        .with_columns(share=(pl.col("seen_h") / pl.col("gpu_hours")).clip(0.0, 1.0))
    )
    cases = cases.join(measured_cases, on=keys, how="left", nulls_equal=True, maintain_order="left")
    # A counter that is read just after the end of work states more than an idle GPU can draw.
    possible_w = pl.min_horizontal(measured_w, "watts_high")
    sides = {"watts": pl.when(pl.col("seen_h") >= MIN_MEASURED_GPU_HOURS).then(possible_w).otherwise("watts"),
             "watts_low": pl.min_horizontal(measured_w, "watts_low"),
             "watts_high": pl.max_horizontal(measured_w, "watts_high")}  # fmt: skip
    share = pl.col("share")
    is_measured = measured_w.is_not_null() & pl.col("watts").is_not_null()
    return cases.with_columns(
        pl.when(is_measured).then(share * measured_w + (1 - share) * power).otherwise(name).alias(name)
        for name, power in sides.items()
    ).drop("seen_w", "seen_h", "gpu_hours", "share")


def sum_by_state(rows: pl.DataFrame, measured: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sum a footprint by state of the GPU: GPU-hours, energy and carbon with their ranges.

    Parameters
    ----------
    rows : polars.DataFrame
        Table of :func:`footprint`.
    measured : polars.DataFrame, optional
        Table of :func:`measured_energy`; adds ``counted_gpu_hours`` with an energy reading, and ``counted_kwh``, their
        energy by the counters of the GPUs, without hosts and facility.

    Returns
    -------
    polars.DataFrame
        A row for each of the states off, idle and busy, in this order.
    """
    sums = [
        pl.col("gpu_hours").sum(),
        *(pl.col(f"{name}{side}").sum() for name in FOOTPRINT_AMOUNTS for side in RANGE_ENDS),
    ]
    sums_by_state = rows.drop_nulls("energy_kwh").group_by("state", maintain_order=True).agg(sums)
    if measured is not None:
        # A reading is valid until the next one, so that it may reach beyond the end of its job.
        keys = ["tenant", "gpu_model", "state"]
        hours_by_case = rows.group_by(keys, maintain_order=True).agg(row_hours=pl.col("gpu_hours").sum())
        counted = measured.join(hours_by_case, on=keys, nulls_equal=True).select(
            "state", "watts", counted_gpu_hours=pl.min_horizontal("gpu_hours", "row_hours")
        )
        counted_kwh = (pl.col("counted_gpu_hours") * pl.col("watts")).sum() / WATTS_PER_KILOWATT
        counted = counted.group_by("state", maintain_order=True).agg(
            pl.col("counted_gpu_hours").sum(), counted_kwh=counted_kwh
        )
        sums_by_state = sums_by_state.join(counted, on="state", how="left", maintain_order="left")
    return sums_by_state.sort(pl.col("state").cast(pl.Enum(["off", "idle", "busy"])))


def sum_amount(states: pl.DataFrame, amount: str) -> RangedAmount | None:
    """Sum an amount over all states.

    Parameters
    ----------
    states : polars.DataFrame
        Table of :func:`sum_by_state`.
    amount : str
        One of :data:`FOOTPRINT_AMOUNTS`.

    Returns
    -------
    RangedAmount or None
        The sum in the unit of the amount; None without rows.
    """
    if states.is_empty():
        return None
    return RangedAmount(*(round(math.fsum(states[f"{amount}{side}"]), AMOUNT_DECIMALS) for side in RANGE_ENDS))


def _power_range_w(
    row: Mapping[str, object], gpu_models: Mapping[str | None, str | None], activity: Mapping[str, float]
) -> tuple[float | None, ...]:
    """Modelled power of a GPU in a row of the ledger: value, lower and upper end [W]; None for an unknown GPU model."""
    gpu_model = gpu_models.get(row["gpu_model"])  # type: ignore[call-overload]
    if gpu_model is None:
        return (None, None, None)
    bucket = str(row["bucket"])
    watts = state_watts(gpu_model, activity.get(str(row["tenant"]), activity.get("")))
    power = watts[GPU_STATE_BY_BUCKET[bucket]]
    low = watts["idle"].low if bucket == "no_telemetry" else power.low
    return power.value, low, power.high


def _embodied_kg_per_hour() -> RangedAmount:
    """Embodied carbon of a GPU per hour of its lifetime [kg CO2e per GPU-hour]."""
    embodied_kg, years = find_parameter("embodied_kg_per_gpu"), find_parameter("lifetime_years")
    value = embodied_kg.value / (years.value * HOURS_PER_YEAR)
    low = embodied_kg.low / (years.high * HOURS_PER_YEAR)
    high = embodied_kg.high / (years.low * HOURS_PER_YEAR)
    return RangedAmount(value, low, high)


_GRAMS_BOUNDS = (0.0, 5000.0)
"""Smallest and largest accepted carbon intensity of a grid [g CO2e per kWh]."""
GRID_COLUMN_BOUNDS = {"location_g_per_kwh": _GRAMS_BOUNDS, "market_g_per_kwh": _GRAMS_BOUNDS, "pue": (1.0, 5.0)}
"""Smallest and largest accepted value by column of a file of hourly carbon intensity."""
LOCATION_COLUMN, MARKET_COLUMN, PUE_COLUMN = GRID_COLUMN_BOUNDS
"""Columns of a file of hourly carbon intensity: location-based and market-based factor [g CO2e per kWh], and PUE."""


def read_carbon_file(path: str | Path, hours: pl.Series) -> pl.DataFrame:
    r"""Read the hourly carbon intensity of the grid from a CSV file.

    Parameters
    ----------
    path : str or Path
        CSV file with ``time`` (ISO 8601 with its offset, the start of an hour), ``location_g_per_kwh``, and, if known,
        ``market_g_per_kwh`` and ``pue``.
    hours : polars.Series
        Hours that the file has to cover.

    Returns
    -------
    polars.DataFrame
        ``hour``, ``location_g`` and ``market_g`` [g CO2e per kWh] and ``pue``; null without a column.

    Raises
    ------
    ScenarioError
        If the file cannot be read, has wrong rows or lacks hours.

    Examples
    --------
    >>> import tempfile
    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 2, 1, 12, tzinfo=UTC)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "grid.csv"
    ...     _ = file.write_text("time,location_g_per_kwh\n2026-02-01T13:00:00+01:00,250\n")
    ...     read_carbon_file(file, pl.Series([noon])).row(0)[1:]
    (250.0, None, None)
    """
    name = Path(path).name
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ScenarioError(str(path), "a CSV file of hours", first_error_line(error), "Check the path.") from error
    given_columns = [column for column in GRID_COLUMN_BOUNDS if column in table.columns]
    if not {"time", LOCATION_COLUMN} <= set(table.columns) <= {"time", *GRID_COLUMN_BOUNDS}:
        expected = f"columns time, {', '.join(GRID_COLUMN_BOUNDS)}, all but the first two if known"
        raise ScenarioError(name, expected, ", ".join(table.columns), "Rename them.")
    rows = table.select(
        pl.col("time").str.to_datetime("%+", time_zone="UTC", time_unit="us", strict=False),
        pl.col(given_columns).cast(pl.Float64, strict=False),
    ).with_row_index("line", 2)
    in_bounds = [pl.col(name).is_between(*GRID_COLUMN_BOUNDS[name]).fill_null(value=False) for name in given_columns]
    is_bad_time = pl.col("time").is_null() | pl.col("time").is_duplicated()
    invalid_rows = rows.filter(~pl.all_horizontal(in_bounds) | is_bad_time)
    if invalid_rows.height:
        line = invalid_rows["line"][0]
        got = ",".join(str(cell) for cell in table.row(line - 2))
        todo = "Times need an offset, such as Z; each hour stands once; grams are 0 to 5000, a PUE 1 to 5."
        raise ScenarioError(f"{name}, line {line}", "an hour and its grams per kWh", got, todo)
    wanted_hours = pl.DataFrame({"hour": hours.unique().sort()}).cast({"hour": pl.Datetime("us", "UTC")})
    grid = wanted_hours.join(rows.drop("line"), left_on="hour", right_on="time", how="left", maintain_order="left")
    gaps = grid.filter(pl.col(LOCATION_COLUMN).is_null())["hour"]
    if len(gaps):
        got = f"{len(gaps)} of them absent, the first {gaps[0]:%Y-%m-%dT%H:%MZ}"
        raise ScenarioError(name, f"{grid.height} hours", got, "Add them: no gap is filled.")
    optional_columns = {
        name: pl.col(column) if column in given_columns else pl.lit(None, pl.Float64)
        for name, column in (("market_g", MARKET_COLUMN), ("pue", PUE_COLUMN))
    }
    return grid.select("hour", location_g=LOCATION_COLUMN, **optional_columns)


def measured_energy(samples: pl.DataFrame, jobs: pl.DataFrame, *, idle_w: float) -> pl.DataFrame:
    """Energy of the GPUs with telemetry by tenant and GPU state (busy, idle), which sums to their energy counters.

    The idle power of a GPU is split by the slices of its MIG instances, the power above it by their activity.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; ``job_id`` and ``tenant`` are enough if each sample names its job.
    idle_w : float
        Power of an idle GPU. [W]

    Returns
    -------
    polars.DataFrame
        ``tenant`` (``-``: unallocated), ``state`` (busy, idle), ``energy_kwh``, ``gpu_hours`` and their ratio ``watts``
        [W], sorted; intervals without an energy reading are left out.

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
    steps = split_energy_steps(add_reading_spans(select_gpu_readings(samples), GPU_KEY_COLUMNS)).drop_nulls("energy_j")
    steps = steps.select(pl.col("reading").alias("time"), *GPU_KEY_COLUMNS, "energy_j", "step_s")
    slices = pl.col("profile").cast(pl.String).str.extract(r"^(\d+)g").cast(pl.Float64).fill_null(1.0)
    keys = ["time", *GPU_KEY_COLUMNS]
    rows = (
        _split_among_jobs(samples, jobs)
        .with_columns(slices=slices * pl.col("part"))
        .join(steps.with_row_index("piece"), on=keys)
    )
    keys = ["piece"]
    # Of a partitioned GPU its instances count, not the readings of the full GPU beside them.
    rows = rows.filter(pl.col("instance").is_not_null() | pl.col("instance").is_null().all().over(keys))
    work = pl.col("sm_activity").fill_null(0.0) * pl.col("slices")
    by_slices = pl.col("slices") / pl.col("slices").sum().over(keys)
    all_work = work.sum().over(keys)
    idle_j = pl.min_horizontal("energy_j", pl.col("step_s") * idle_w)
    activity_share = pl.when(all_work > 0).then(work / all_work).otherwise(by_slices)
    # A minute is busy or idle as a whole, as in the ledger: a job that works in bursts is not idle between them.
    minute = [pl.col("time").dt.truncate("1m"), *DEVICE_KEY, "job_id"]
    activity = pl.col("sm_activity").mean().over(minute).fill_null(1.0)
    is_busy = pl.col("job_id").is_not_null() & (pl.col("on_instances") | (activity >= MIN_USED_SM_ACTIVITY))
    tenants = jobs.select("job_id", pl.col("tenant").cast(pl.String)).unique("job_id", keep="last")
    parts = rows.with_columns(
        part_j=idle_j * by_slices + (pl.col("energy_j") - idle_j) * activity_share,
        gpu_hours=by_slices * pl.col("step_s") / SECONDS_PER_HOUR,
        state=pl.when(is_busy).then(pl.lit("busy")).otherwise(pl.lit("idle")),
    ).join(tenants, on="job_id", how="left")
    groups = parts.group_by(pl.col("tenant").fill_null(UNALLOCATED_TENANT_LABEL), "state", maintain_order=True)
    sums = groups.agg(energy_kwh=pl.col("part_j").sum() / J_PER_KWH, gpu_hours=pl.col("gpu_hours").sum())
    watts = pl.col("energy_kwh") * WATTS_PER_KILOWATT / pl.col("gpu_hours")
    return sums.filter(pl.col("gpu_hours") > 0).with_columns(watts=watts).sort("tenant", "state")


def _split_among_jobs(samples: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Split samples among the jobs that were allocated their devices: one row for each job, with its ``part``.

    Where telemetry names no job, the jobs of the node have its busiest devices of the minute, as in the ledger: as many
    as they were allocated, in proportion to these. The remaining part of a device has no job. The column
    ``on_instances`` marks jobs on MIG instances of which telemetry shows the full GPUs only: as in the ledger, their
    hours have no activity and count as busy.

    Parameters
    ----------
    samples, jobs
        As of :func:`measured_energy`.
    """
    columns = ["time", *DEVICE_KEY, "profile", "job_id", "sm_activity", "part", "on_instances"]
    has_several = pl.lit(value=False)
    if "job_evidence" in samples.columns:
        has_several = pl.col("job_evidence").is_in([TOGETHER_JOB, INSTANCE_JOBS]).fill_null(value=False)
    named = split_shared_samples(samples.filter(~has_several)).with_columns(on_instances=False).select(columns)
    if not samples.select(has_several.any()).item():
        return named

    with_kind = samples.with_columns(kind=device_kind_expr())
    keys = ["node", "kind", "at"]
    members = count_devices_on_nodes(jobs, with_kind, count_named_devices(with_kind.lazy()))
    spans = members.group_by(keys).agg(allocated=pl.col("count").sum()).sort("at")

    # Devices of a minute are ranked by activity; those without a reading in it have their share of the allocation.
    minute = [*keys, pl.col("time").dt.truncate("1m")]
    device = pl.struct("gpu", "instance")
    sampled_fraction = device.n_unique().over(minute) / device.n_unique().over(keys)
    rank = pl.struct(-pl.col("activity"), "gpu", "instance").rank("dense").over(minute) - 1.0
    allocated_part = (pl.col("allocated").fill_null(0.0) * sampled_fraction - rank).clip(0.0, 1.0)
    ranked = (
        with_kind.filter(has_several)
        .sort("time")
        .join_asof(spans, left_on="time", right_on="at", by=["node", "kind"], check_sortedness=False)
        .with_columns(activity=pl.col("sm_activity").mean().over([*minute, "gpu", "instance"]).fill_null(1.0))
        .with_columns(allocated_part=allocated_part)
    )
    job_part = pl.col("allocated_part") * pl.col("count") / pl.col("allocated")
    holders = members.drop_nulls("job_id").rename({"job_id": "holder"})
    of_jobs = ranked.join(holders, on=keys).with_columns(job_id="holder", part=job_part)
    # The remaining part of a device with a job did no work, as far as is known.
    unallocated = ranked.with_columns(
        pl.when(pl.col("allocated_part") == 0).then("sm_activity").alias("sm_activity"),
        part=1 - pl.col("allocated_part"),
        on_instances=False,
    )
    parts = [table.filter(pl.col("part") > 0).select(columns) for table in (of_jobs, unallocated)]
    return pl.concat([named, *parts])
