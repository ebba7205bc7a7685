"""Formulas of the figures of the page: each with its inputs and the rows that it is summed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gpuplanner.study import Study
from gpuplanner.study.decision.frames import levers
from gpuplanner.units import HOURS_PER_WEEK, WATTS_PER_KILOWATT, day_text, three_figures

Inputs = Mapping[str, float | str | None]
EVEN_CHANCE = 0.5


@dataclass(frozen=True, eq=False)
class Formula:
    """A figure of the page and how it is computed.

    - ``name``: Anchor on the page.
    - ``label``, ``value``, ``unit``: As the page has them; a value of None is not known.
    - ``formula``: In words, over the names of ``inputs`` and the columns of ``rows``.
    - ``inputs``: Numbers of the formula.
    - ``rows``: Rows that it is summed or searched over.
    - ``source``: File that has the rows in full.
    """

    name: str
    label: str
    value: float | str | None
    unit: str
    formula: str
    inputs: Inputs
    rows: pl.DataFrame
    source: str

    @property
    def sentence(self) -> str:
        """The figure with its unit, as on the page.

        Examples
        --------
        >>> Formula("gpus", "GPUs on", 12.0, "GPUs", "sum", {}, pl.DataFrame(), "decision").sentence
        'GPUs on: 12 GPUs'
        """
        return f"{self.label}: {value_text(self.value)} {self.unit}".rstrip()


def value_text(value: float | str | None) -> str:
    """A value in three significant digits or as a day; a dash where it is not known.

    Examples
    --------
    >>> value_text(1234.5), value_text(None), value_text("2027-03-15")
    ('1,234', '–', '15 Mar 2027')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return day_text(value) if value[:4].isdigit() and value[4:5] == "-" else value
    return three_figures(value)


def formulas(study: Study) -> list[Formula]:
    """Formulas of the figures of the page: the decision's first, then those of the period."""
    return [*_decision_formulas(study), *_period_formulas(study)]


def _decision_formulas(study: Study) -> list[Formula]:
    decision = study.decision
    layouts = pl.DataFrame(
        [(one.layout, one.gpus, ", ".join(one.nodes)) for one in decision.layouts],
        schema={"layout": pl.String, "gpus": pl.Int64, "nodes": pl.String},
        orient="row",
    )
    lever_rows = pl.DataFrame(
        levers(study.comparison), schema={"lever": pl.String, "gpu_hours": pl.Float64}, orient="row"
    )
    delays = pl.DataFrame(
        [(one.size_class, one.jobs, one.today_minutes, one.minutes) for one in decision.service.by_class],
        schema={"size_class": pl.String, "jobs": pl.Int64}
        | dict.fromkeys(("today_minutes", "minutes"), pl.Float64),
        orient="row",
    )
    chances = pl.DataFrame(
        decision.run_out.today.by_week, schema={"week": pl.String, "chance": pl.Float64}, orient="row"
    )
    shortages = pl.DataFrame(
        [
            (one.size_class, one.hours, one.jobs, one.by_count, one.by_place)
            for one in decision.shortage.by_class
        ],
        schema={"size_class": pl.String, "hours": pl.Float64}
        | dict.fromkeys(("jobs", "by_count", "by_place"), pl.Int64),
        orient="row",
    )

    saving_inputs = _saving_inputs(study)
    hours_today, hours_recommended = (
        saving_inputs["hours today"],
        saving_inputs["hours as recommended"],
    )
    saving = None
    if isinstance(hours_today, float) and isinstance(hours_recommended, float):
        saving = hours_today - hours_recommended
    largest_delay = None
    if delays.height:
        largest_delay = float((delays["minutes"] - delays["today_minutes"]).max() or 0.0)  # type: ignore[arg-type]
        largest_delay = max(largest_delay, 0.0)
    likely_weeks = chances.filter(pl.col("chance") >= EVEN_CHANCE)["week"]

    return [
        Formula(
            "gpus", "GPUs on at once, at most", _total(layouts, "gpus"), "GPUs",
            "the GPUs of all layouts, summed: the fewest that held when tuned",
            {"installed": decision.fleet_gpus, "enough on, of the days kept back": decision.gpus_hold_rate},
            layouts, "study.json: decision.layouts",
        ),
        Formula(
            "saving", "Saved a week", saving, "GPU-hours",
            "hours today - hours as recommended, both on, a week, as on the days tuned on",
            saving_inputs, lever_rows, "study.json: comparison",
        ),
        Formula(
            "delay", "Added delay at most", largest_delay, "min",
            "the largest of minutes - today_minutes over the sizes of jobs, not below 0",
            {
                "share of the jobs of each size": decision.service.quantile,
                "your limit [min]": study.comparison.minutes,
            },
            delays, "study.json: decision.service",
        ),
        Formula(
            "run-out", "The fleet is full, as today", likely_weeks[0] if likely_weeks.len() else None, "",
            "the first week by whose end the need passed the GPUs with a chance of 50 %",
            {"GPUs": decision.fleet_gpus, "weeks of need seen": len(decision.run_out.today.needed)},
            chances, "study.json: decision.run_out",
        ),
        Formula(
            "shortage", "Jobs a week that wait for GPUs", _total(shortages, "jobs"), "jobs",
            "by_count + by_place, summed over the sizes of jobs",
            {"GPU-hours of waiting, a week": decision.shortage.gpu_hours},
            shortages, "study.json: decision.shortage",
        ),
        _electricity_formula(study),
    ]  # fmt: skip


def _saving_inputs(study: Study) -> Inputs:
    """GPU-hours a week today and as recommended; unknown with the reason why."""
    comparison, saving = study.comparison, study.decision.saving
    if saving.value is None:
        return {"hours today": None, "hours as recommended": None, "why": saving.reason}
    best, today = comparison.row(comparison.winner), comparison.today
    hours = None if today is None else today.gpu_hours_promised
    if best is None or best is today or hours is None:  # fewer GPUs by their peaks: no policy was simulated
        fleet = float(study.decision.fleet_gpus * HOURS_PER_WEEK)
        return {"hours today": fleet, "hours as recommended": fleet - saving.value}
    recommended = best.gpu_hours_promised
    return {
        "hours today": float(hours),
        "hours as recommended": None if recommended is None else float(recommended),
        "range, low": saving.low,
        "range, high": saving.high,
    }


def _electricity_formula(study: Study) -> Formula:
    saved_kwh, power = study.decision.worth.kwh_per_week, study.provenance.power
    hours_off = study.decision.saving.value if saved_kwh else saved_kwh
    idle_w = None if power is None else power.idle_w
    pue = study.provenance.pue
    known = hours_off is not None and idle_w is not None
    value = hours_off * idle_w * pue / WATTS_PER_KILOWATT if known else None  # type: ignore[operator]
    return Formula(
        "electricity", "Electricity saved a week", value, "kWh",
        "GPU-hours off x W of an idle GPU x PUE / 1000",
        {"GPU-hours off": hours_off, "W of an idle GPU": idle_w, "PUE": pue},
        pl.DataFrame(), "study.json: decision.worth",
    )  # fmt: skip


def _period_formulas(study: Study) -> list[Formula]:
    headline, tables = study.headline, study.tables
    buckets, tenants = tables["ledger_buckets"], tables["ledger_tenants"]
    ended, costs, energy = tables["ended"], tables["costs"], tables["energy"]
    carbon_factor = study.provenance.carbon.gco2e_per_kwh
    price = {"price of a GPU-hour": headline.price_per_gpu_hour}
    return [
        Formula(
            "installed", "Installed GPU-hours", _total(buckets, "gpu_hours"), "GPU-hours",
            "the hours of all buckets of the ledger, summed",
            {"GPUs": headline.installed_gpus}, buckets, "tables/ledger.parquet",
        ),
        Formula(
            "held", "GPU-hours that jobs held", _total(tenants, "held_gpu_hours"), "GPU-hours",
            "what each team held, summed", {}, tenants, "tables/ledger.parquet",
        ),
        Formula(
            "idle", "GPU-hours idle while held", _total(tenants, "held_idle"), "GPU-hours",
            "held_idle of each team, summed: the device was seen not to work",
            {}, tenants, "tables/ledger.parquet",
        ),
        Formula(
            "lost", "GPU-hours of attempts that did not complete",
            _total(ended.filter("lost"), "gpu_hours"), "GPU-hours",
            "gpu_hours of all rows whose state is lost, summed", price, ended, "tables/ended.parquet",
        ),
        Formula(
            "cost", "Cost of the period", _total(costs, "EffectiveCost"), headline.currency or "",
            "EffectiveCost of all charge lines, summed",
            price | {"currency": headline.currency}, costs, "tables/costs.parquet",
        ),
        Formula(
            "energy", "Energy at the building's meter", _total(energy, "energy_kwh"), "kWh",
            "energy of all states of the GPUs, summed",
            {"PUE": study.provenance.pue}, energy, "tables/energy.parquet",
        ),
        Formula(
            "carbon", "Carbon of operation", _total(energy, "location_kg"), "kg CO2e",
            "location_kg of all states of the GPUs, summed",
            {"g CO2e a kWh": carbon_factor}, energy, "tables/energy.parquet",
        ),
    ]  # fmt: skip


def _total(rows: pl.DataFrame, column: str) -> float | None:
    """Sum of the known values of a column; None where there are rows and none is known."""
    if rows.is_empty():
        return 0.0
    if column not in rows.columns:
        return None
    values = rows[column].cast(pl.Float64).drop_nulls()
    return float(values.sum()) if len(values) else None
