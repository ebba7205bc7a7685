"""Formulas of the figures on the page, with their inputs and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, WATTS_PER_KILOWATT, day_text, format_three_digits
from gpuplanner.cost.monthly_cost_review import cost_review
from gpuplanner.decision.decision_types import Decision
from gpuplanner.decision.explained_waits import make_cause_table
from gpuplanner.decision.study import Study
from gpuplanner.report.number_formats_and_glossary import SHARE_PREFIX, format_share, metric_value

FormulaInputs = Mapping[str, float | str | None]
"""Numbers that a formula uses, by name; None: not known."""


@dataclass(frozen=True, eq=False)
class Formula:
    """A number of the report page and the formula that computes it.

    - ``name``: Key of the number, and its HTML anchor on the page.
    - ``label``, ``value``, ``unit``: As on the page; a value of None is not known.
    - ``formula``: In words, with the names of ``inputs`` and the columns of ``rows``.
    - ``inputs``: Numbers of the formula.
    - ``rows``: Rows that it sums or searches.
    - ``source``: File with all rows.
    """

    name: str
    label: str
    value: float | str | None
    unit: str
    formula: str
    inputs: FormulaInputs
    rows: pl.DataFrame
    source: str

    @property
    def labelled_value(self) -> str:
        """The number with its label and unit, as on the page.

        Examples
        --------
        >>> Formula("gpus", "GPUs provisioned", 12.0, "GPUs", "sum", {}, pl.DataFrame(), "decision").labelled_value
        'GPUs provisioned: 12 GPUs'
        """
        return f"{self.label}: {value_text(self.value)} {self.unit}".rstrip()


def value_text(value: float | str | None) -> str:
    """Format a value in three significant digits or as a day; a dash if it is not known.

    Examples
    --------
    >>> value_text(1234.5), value_text(None), value_text("2027-03-15")
    ('1,234', '–', '15 Mar 2027')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return day_text(value) if value[:4].isdigit() and value[4:5] == "-" else value
    return format_three_digits(value)


def list_formulas(study: Study) -> list[Formula]:
    """List the formulas of all numbers of the report page: those of the decision first, then those of the period."""
    return [*_decision_formulas(study), *_period_formulas(study)]


def _decision_formulas(study: Study) -> list[Formula]:
    """List the formulas of the decision's numbers, such as GPUs, queue wait and capacity freed."""
    decision = study.decision
    layouts = layout_table(decision)
    measures = pl.DataFrame(decision.measures, infer_schema_length=None)
    measures = measures.rename({"gpus": "gpus_provisioned"}, strict=False)
    service = pl.DataFrame(decision.service)
    improved_size = decision.most_improved_size
    comparison = study.comparison
    exhaustion, growth, headroom = comparison.exhaustion, comparison.growth_per_week, comparison.headroom
    causes = pl.DataFrame() if comparison.waits is None else make_cause_table(comparison.waits.causes.job_size)
    return [
        Formula(
            "gpus", "GPUs needed to meet the wait limit, or recommended where it is not met",
            None if decision.action == "none" else _sum_column(layouts, "gpus"), "GPUs",
            "sum of the GPUs of all layouts. A change that keeps the number of GPUs has to meet the wait limit of each "
            "job size in the record, or not lengthen its wait; GPUs are released or bought only where the wait limits "
            "are also met in 80 % of resampled weeks, each compared with today's fleet in the same weeks; GPUs are "
            "released only if the limits are also met after the measured growth until new GPUs could be delivered",
            {"installed": decision.fleet_gpus}, layouts, "study.json: decision.layouts",
        ),
        Formula(
            "wait", "p95 queue wait as recommended, of the job size that gains most",
            None if improved_size is None else improved_size.recommended_p95_minutes, "min",
            "95th percentile of the queue wait of the jobs of this size, median of replays",
            {} if improved_size is None else {
                "job size": improved_size.size, "today [min]": improved_size.today_p95_minutes,
                "limit [min]": improved_size.limit_minutes
            },
            service, "study.json: decision.service",
        ),
        Formula(
            "saving", "Capacity freed per week", decision.saving.value, "GPU-hours",
            "provisioned GPU-hours per week today - as recommended, in the training window",
            _saving_inputs(study), measures, "study.json: comparison",
        ),
        Formula(
            "utilization", "Utilization, observed", _busy_share(study), "",
            "used GPU-hours / installed GPU-hours", {},
            pl.DataFrame([(team.team, team.busy_gpu_hours, team.allocated_gpu_hours) for team in decision.teams],
                         schema={"team": pl.String, "used": pl.Float64, "allocated": pl.Float64}, orient="row"),
            "study.json: decision.teams",
        ),
        Formula(
            "exhaustion", "Exhaustion date", exhaustion.date, "",
            "day on which the growing load passes the largest load at which every job size meets the wait target",
            {
                "growth per week": growth.value,
                "largest load, times today's (1 + headroom)": None if headroom is None else headroom.factor,
                "probability within a year": exhaustion.probability, "reason without a date": exhaustion.reason,
            },
            pl.DataFrame(), "study.json: comparison.exhaustion",
        ),
        Formula(
            "waiting", "Hours of waiting", _sum_column(causes, "waited"), "hours",
            "sum of waited over job sizes: the sum of all causes", {}, causes,
            "study.json: comparison.waits",
        ),
        _electricity_formula(study),
    ]  # fmt: skip


def layout_table(decision: Decision) -> pl.DataFrame:
    """Tabulate ``layout, gpus, nodes`` of the recommended layouts."""
    rows = [(layout.layout, layout.gpus, layout.node_text) for layout in decision.layouts]
    return pl.DataFrame(rows, schema={"layout": pl.String, "gpus": pl.Int64, "nodes": pl.String}, orient="row")


def _busy_share(study: Study) -> str | None:
    """Format the utilization of installed GPUs in percent; None if it was not measured."""
    value = metric_value(study.decision, f"{SHARE_PREFIX}all_busy")
    return None if value is None else format_share(value)


def _saving_inputs(study: Study) -> FormulaInputs:
    """Return the inputs of the capacity freed: GPU-hours per week today and as recommended, or the reason for none."""
    saving, today = study.decision.saving, float(study.decision.fleet_gpus * HOURS_PER_WEEK)
    if saving.value is None:
        return {"today": today, "as recommended": None, "reason": saving.reason}
    inputs = {"today": today, "as recommended": today - saving.value}
    return inputs | {"90 % interval, low": saving.low, "90 % interval, high": saving.high}


def _electricity_formula(study: Study) -> Formula:
    """Make the formula of the energy that the recommendation saves per week [kWh]."""
    decision, power, pue = study.decision, study.provenance.power, study.provenance.pue
    row = study.comparison.find_row(study.comparison.winner)
    hours_off = decision.saving.value
    if hours_off is not None and row is not None:  # they draw power where nodes cannot be switched
        hours_off = row.off_gpu_hours
    idle_w = None if power is None else power.idle_w
    value = None
    if decision.financial_impact.kwh_per_week is not None and hours_off is not None and idle_w is not None:
        value = hours_off * idle_w * pue / WATTS_PER_KILOWATT
    return Formula(
        "electricity", "Energy saved per week", value, "kWh",
        "GPU-hours powered down x idle power of a GPU [W] x PUE / 1000, without the hosts",
        {"GPU-hours powered down": hours_off, "idle power of a GPU [W]": idle_w, "PUE": pue},
        pl.DataFrame(), "study.json: decision.financial_impact",
    )  # fmt: skip


def _period_formulas(study: Study) -> list[Formula]:
    """List the formulas of the numbers of the period: GPU-hours, cost, energy and carbon."""
    headline, tables = study.headline, study.tables
    buckets, tenants = tables["ledger_buckets"], tables["ledger_tenants"]
    tenants = tenants.rename({"idle_share": "idle of measured_share"})
    ended, costs, energy = tables["ended"], tables["costs"], tables["energy"]
    carbon_factor = study.provenance.carbon.gco2e_per_kwh
    rate, basis = headline.price_per_gpu_hour, cost_review(study.scenario).price_basis
    # Unrounded: it is multiplied by hours.
    price: dict[str, float | str | None] = {"price per GPU-hour": None if rate is None else f"{rate:,.6g}"}
    return [
        Formula(
            "installed", "Installed GPU-hours", _sum_column(buckets, "gpu_hours"), "GPU-hours",
            "sum of the GPU-hours of all buckets",
            {"GPUs": headline.installed_gpus}, buckets, "tables/ledger.parquet",
        ),
        Formula(
            "allocated", "Allocated GPU-hours", _sum_column(tenants, "allocated_gpu_hours"), "GPU-hours",
            "sum of the allocated GPU-hours of all teams", {}, tenants, "tables/ledger.parquet",
        ),
        Formula(
            "idle", "GPU-hours allocated but idle", _sum_column(tenants, "allocated_idle"), "GPU-hours",
            "sum of allocated idle of all teams: telemetry or the job's record shows no activity",
            {}, tenants, "tables/ledger.parquet",
        ),
        Formula(
            "lost", "GPU-hours of unsuccessful jobs",
            _sum_column(ended.filter("lost"), "gpu_hours"), "GPU-hours",
            "sum of the GPU-hours of all rows with lost = yes", {}, ended, "tables/ended.parquet",
        ),
        Formula(
            "cost", "Cost of the period", _sum_column_if_rows(costs, "EffectiveCost"),
            f"{headline.currency or ''}{basis}",
            "sum of EffectiveCost of all charge lines",
            price | {"currency": headline.currency, "priced": basis.strip() or None},
            costs.select("SubAccountName", "x_Bucket", "PricingQuantity", pl.col("EffectiveCost").cast(pl.Float64)),
            "tables/costs.parquet",
        ),
        Formula(
            "energy", "Facility energy (PUE)", _sum_column_if_rows(energy, "energy_kwh"), "kWh",
            "sum of the energy of all states of the GPUs",
            {"PUE": study.provenance.pue, "server over GPU energy": study.provenance.assumptions["host_factor"].value},
            energy, "tables/energy.parquet",
        ),
        Formula(
            "carbon", "Operational carbon", _sum_column_if_rows(energy, "location_kg"), "kg CO2e",
            "sum of location_kg of all states of the GPUs",
            {"g CO2e per kWh": carbon_factor}, energy, "tables/energy.parquet",
        ),
    ]  # fmt: skip


def _sum_column_if_rows(rows: pl.DataFrame, column: str) -> float | None:
    """Sum a column; None for a table without rows, which has none if price or power is not known."""
    return None if rows.is_empty() else _sum_column(rows, column)


def _sum_column(rows: pl.DataFrame, column: str) -> float | None:
    """Sum the known values of a column; 0 without rows, None if no row has a value or the column is missing."""
    if rows.is_empty():
        return 0.0
    if column not in rows.columns:
        return None
    values = rows[column].cast(pl.Float64).drop_nulls()
    return float(values.sum()) if len(values) else None
