"""How a headline figure comes about: its formula, what stands in it, and the rows that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.names import resolve
from gpuplanner.study.decision.frames import levers
from gpuplanner.units import HOURS_PER_WEEK, WATTS_PER_KILOWATT, counted, day_text, three_figures

if TYPE_CHECKING:
    from gpuplanner.study.study import Study

Inputs = Mapping[str, float | str | None]
"""What stands in a formula, by the words that the formula has for it."""
EVEN = 0.5


@dataclass(frozen=True, eq=False)
class Explained:
    """A figure of a study, explained.

    - ``name``, ``label``, ``unit``: How it is asked for, what it is called on the page, and its unit.
    - ``value``: As the page has it; None where nobody knows.
    - ``formula``: In words, over the names of ``inputs``.
    - ``inputs``: What stands in it.
    - ``rows``: What it is summed or searched over.
    - ``source``: Where the rows are to be found in full.
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
        >>> Explained("gpus", "GPUs on", 12.0, "GPUs", "sum", {}, pl.DataFrame(), "decision").sentence
        'GPUs on: 12 GPUs'
        """
        return f"{self.label}: {told(self.value)} {self.unit}".rstrip()


def told(value: float | str | None) -> str:
    """A value in three figures; a dash where nobody knows.

    Examples
    --------
    >>> told(1234.5), told(None), told("2027-03-15")
    ('1,234', '–', '15 Mar 2027')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return day_text(value) if value[:4].isdigit() and value[4:5] == "-" else value
    return three_figures(value)


@dataclass(frozen=True)
class _Figure:
    """A row of the table of figures: how each is explained, from a study.

    - ``compute``: The figure from its inputs and rows alone: what is printed is what comes out.
    """

    label: str
    unit: str
    formula: str
    source: str
    inputs: Callable[[Study], Inputs]
    rows: Callable[[Study], pl.DataFrame]
    compute: Callable[[Inputs, pl.DataFrame], float | str | None]


def _number(inputs: Inputs, name: str) -> float | None:
    value = inputs[name]
    return None if value is None or isinstance(value, str) else float(value)


def _minus(first: str, second: str) -> Callable[[Inputs, pl.DataFrame], float | None]:
    def found(inputs: Inputs, _: pl.DataFrame) -> float | None:
        one, other = _number(inputs, first), _number(inputs, second)
        return None if one is None or other is None else one - other

    return found


def _sum(column: str, *, of: pl.Expr | None = None) -> Callable[[Inputs, pl.DataFrame], float | None]:
    def found(_: Inputs, rows: pl.DataFrame) -> float | None:
        some = rows if of is None else rows.filter(of)
        known = (
            some[column].cast(pl.Float64).drop_nulls()
            if column in some.columns
            else pl.Series([], dtype=pl.Float64)
        )
        return float(known.sum()) if len(known) or some.is_empty() else None

    return found


def _saving_inputs(study: Study) -> Inputs:
    found, one = study.comparison, study.decision
    if one.saving.value is None:
        return {"hours today": None, "hours as recommended": None, "why": one.saving.reason}
    best, today = found.row(found.winner), found.today
    hours = None if today is None else today.gpu_hours_promised
    if best is None or best is today or hours is None:  # fewer GPUs by their peaks: no way was played
        fleet = float(one.fleet_gpus * HOURS_PER_WEEK)
        return {"hours today": fleet, "hours as recommended": fleet - one.saving.value}
    return {
        "hours today": hours, "hours as recommended": best.gpu_hours_promised,
        "range, low": one.saving.low, "range, high": one.saving.high,
    }  # fmt: skip


def _electricity(study: Study) -> Inputs:
    one, power = study.decision, study.provenance.power
    off = one.saving.value if one.worth.kwh_per_week else 0.0 if one.worth.kwh_per_week is not None else None
    idle = None if power is None else power.idle_w
    return {"GPU-hours off": off, "W of an idle GPU": idle, "PUE": study.provenance.pue}


def _kwh(inputs: Inputs, _: pl.DataFrame) -> float | None:
    off, idle, pue = (_number(inputs, name) for name in ("GPU-hours off", "W of an idle GPU", "PUE"))
    return None if off is None or idle is None or pue is None else off * idle * pue / WATTS_PER_KILOWATT


def _first_even(_: Inputs, rows: pl.DataFrame) -> str | None:
    even = rows.filter(pl.col("chance") >= EVEN)
    return even["week"][0] if even.height else None


def _worst_class(_: Inputs, rows: pl.DataFrame) -> float | None:
    return None if rows.is_empty() else max(float((rows["minutes"] - rows["today_minutes"]).max()), 0.0)  # type: ignore[arg-type]


def _chances(study: Study) -> pl.DataFrame:
    return pl.DataFrame(
        study.decision.run_out.today.by_week, schema={"week": pl.String, "chance": pl.Float64}, orient="row"
    )


def _none(_: Study) -> Inputs:
    return {}


def _levers(study: Study) -> pl.DataFrame:
    return pl.DataFrame(
        levers(study.comparison), schema={"lever": pl.String, "gpu_hours": pl.Float64}, orient="row"
    )


def _layouts(study: Study) -> pl.DataFrame:
    rows = [(one.layout, one.gpus, ", ".join(one.nodes)) for one in study.decision.layouts]
    return pl.DataFrame(
        rows, schema={"layout": pl.String, "gpus": pl.Int64, "nodes": pl.String}, orient="row"
    )


def _classes(study: Study) -> pl.DataFrame:
    rows = [
        (one.size_class, one.jobs, one.today_minutes, one.minutes) for one in study.decision.service.by_class
    ]
    schema = {"size_class": pl.String, "jobs": pl.Int64, "today_minutes": pl.Float64, "minutes": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _short(study: Study) -> pl.DataFrame:
    rows = [
        (one.size_class, one.hours, one.jobs, one.by_count, one.by_place)
        for one in study.decision.shortage.by_class
    ]
    schema = {"size_class": pl.String, "hours": pl.Float64} | dict.fromkeys(
        ("jobs", "by_count", "by_place"), pl.Int64
    )
    return pl.DataFrame(rows, schema=schema, orient="row")


FIGURES: Mapping[str, _Figure] = {
    "gpus": _Figure(
        "GPUs on at once, at most", "GPUs", "the GPUs of all layouts, summed: the fewest that held when tuned",
        "study.json: decision.layouts",
        lambda study: {
            "installed": study.decision.fleet_gpus, "enough on, of the days kept back": study.decision.gpus_hold_rate
        },
        _layouts, _sum("gpus"),
    ),
    "saving": _Figure(
        "Saved a week", "GPU-hours", "hours today - hours as recommended, both on, a week, as on the days tuned on",
        "study.json: comparison", _saving_inputs,
        _levers,
        _minus("hours today", "hours as recommended"),
    ),
    "delay": _Figure(
        "Added delay at most", "min", "the largest of minutes - today_minutes over the sizes of jobs, not below 0",
        "study.json: decision.service",
        lambda study: {
            "share of the jobs of each size": study.decision.service.quantile,
            "your limit [min]": study.comparison.minutes,
        },
        _classes, _worst_class,
    ),
    "run-out": _Figure(
        "The fleet is full, as today", "", "the first week by whose end the need passed the GPUs with a chance of 50 %",
        "study.json: decision.run_out",
        lambda study: {
            "GPUs": study.decision.fleet_gpus, "weeks of need seen": len(study.decision.run_out.today.needed)
        },
        _chances, _first_even,
    ),
    "shortage": _Figure(
        "Jobs a week that wait for GPUs", "jobs", "by_count + by_place, summed over the sizes of jobs",
        "study.json: decision.shortage",
        lambda study: {"GPU-hours of waiting, a week": study.decision.shortage.gpu_hours}, _short, _sum("jobs"),
    ),
    "electricity": _Figure(
        "Electricity saved a week", "kWh", "GPU-hours off x W of an idle GPU x PUE / 1000",
        "study.json: decision.worth",
        _electricity, lambda _: pl.DataFrame(), _kwh,
    ),
    "installed": _Figure(
        "Installed GPU-hours", "GPU-hours", "the hours of all buckets of the ledger, summed", "tables/ledger.parquet",
        lambda study: {"GPUs": study.headline.installed_gpus}, lambda study: study.tables["ledger_buckets"],
        _sum("gpu_hours"),
    ),
    "held": _Figure(
        "GPU-hours that jobs held", "GPU-hours", "what each team held, summed", "tables/ledger.parquet", _none,
        lambda study: study.tables["ledger_tenants"], _sum("held_gpu_hours"),
    ),
    "idle": _Figure(
        "GPU-hours idle while held", "GPU-hours", "held_idle of each team, summed: the device was seen not to work",
        "tables/ledger.parquet", _none, lambda study: study.tables["ledger_tenants"], _sum("held_idle"),
    ),
    "lost": _Figure(
        "GPU-hours of attempts that did not complete", "GPU-hours", "gpu_hours of all rows whose state is lost, summed",
        "tables/ended.parquet", lambda study: {"price of a GPU-hour": study.headline.price_per_gpu_hour},
        lambda study: study.tables["ended"], _sum("gpu_hours", of=pl.col("lost")),
    ),
    "cost": _Figure(
        "Cost of the period", "", "EffectiveCost of all charge lines, summed", "tables/costs.parquet",
        lambda study: {"price of a GPU-hour": study.headline.price_per_gpu_hour, "currency": study.headline.currency},
        lambda study: study.tables["costs"], _sum("EffectiveCost"),
    ),
    "energy": _Figure(
        "Energy at the building's meter", "kWh", "energy of all states of the GPUs, summed", "tables/energy.parquet",
        lambda study: {"PUE": study.provenance.pue}, lambda study: study.tables["energy"], _sum("energy_kwh"),
    ),
    "carbon": _Figure(
        "Carbon of operation", "kg CO2e", "location_kg of all states of the GPUs, summed", "tables/energy.parquet",
        lambda study: {"g CO2e a kWh": study.provenance.carbon.gco2e_per_kwh},
        lambda study: study.tables["energy"], _sum("location_kg"),
    ),
}  # fmt: skip
"""Figures that can be explained, by the name to ask for."""


def explained(study: Study, name: str) -> Explained:
    """Explain a figure of a study; its value is computed from the inputs and rows that are shown.

    Examples
    --------
    >>> explained(None, "price")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: figure 'price' is unknown: expected one of ...
    """
    key = resolve(name, list(FIGURES), what="figure", error=ScenarioError)
    figure = FIGURES[key]
    inputs, rows = figure.inputs(study), figure.rows(study)
    unit = (study.headline.currency or "") if key == "cost" else figure.unit
    return Explained(
        key, figure.label, figure.compute(inputs, rows), unit, figure.formula, inputs, rows, figure.source
    )


def solved(study: Study) -> Mapping[str, str]:
    """What the solver did for the plan, and by which versions: for the provenance of a page."""
    plan = study.plan
    if plan is None:
        return {}
    told = (
        f"{plan.status}; {counted(len(plan.layouts), 'layout')}; it costs {three_figures(plan.objective or 0.0)} "
        f"GPU-hours, no plan less than {three_figures(plan.bound or 0.0)} ({plan.gap or 0.0:.2%})"
    )
    return {"Plan": told, "Search": study.provenance.search}
