"""The first screen of the monthly report: headline figures and the findings."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from gpuplanner.report import page
from gpuplanner.report.section import Section
from gpuplanner.study import Study
from gpuplanner.study.future.saving import HEADLINED, SIMULATED_ONLY


def summary(study: Study) -> Section:
    """Headline figures and the three findings."""
    figures = study.headline
    shown = [
        page.Card(
            "Installed GPU-hours",
            f"{figures['installed_gpu_hours']:,.0f}",
            f"{_fleet(figures)}, {figures['fleet_note']}",
        ),
        page.Card(
            "Allocated",
            f"{figures['allocated_gpu_hours'] / max(figures['installed_gpu_hours'], 1e-9):.1%}",
            f"{figures['allocated_gpu_hours']:,.0f} GPU-hours",
        ),
        *_cost_card(figures),
        *([] if study.plan is None else _plan_cards(study)),
    ]
    cautions = [page.note(text) for text in study.provenance["cautions"]]
    return Section(page.section("Summary", page.cards(shown), page.findings(study.findings), *cautions))


def _fleet(figures: Mapping[str, Any]) -> str:
    """The one fleet, and the part of it that is planned."""
    board = f" × {figures['board']}" if figures["board"] else ""
    if figures["fleet_gpus"] == figures["installed_gpus"]:
        return f"{figures['fleet_gpus']:,}{board or ' GPUs'}"
    return f"{figures['installed_gpus']:,} GPUs; planned: {figures['fleet_gpus']:,}{board}"


def _on(study: Study) -> str:
    """How many GPUs of the fleet the plan has on, and how often it cuts one."""
    figures = study.headline
    mean = figures["plan_gpu_hours_on"] / (study.scenario.horizon_slots * study.scenario.slot_hours)
    changes = f", {figures['plan_changes']} layout changes" if figures["board_has_mig"] else ""
    return f"{mean:,.1f} of {figures['fleet_gpus']:,} GPUs on, on average{changes}"


def _plan_cards(study: Study) -> list[page.Card]:
    figures = study.headline
    wait = figures["wait_minutes"]
    return [
        _saving_card(figures, study.tables["savings"].row(-1, named=True)),
        page.Card(
            "Mean wait",
            _minutes(wait["dynamic_rightsized"]["mean"]),
            f"planned; {_minutes(wait['installed']['mean'])} today",
        ),
        page.Card(
            "Plan is proven within",
            f"{figures['plan_gap_fraction']:.2%}",
            f"status {figures['plan_status']}; {_on(study)}",
        ),
    ]


def _saving_card(figures: Mapping[str, Any], last: Mapping[str, Any]) -> page.Card:
    """The saving where it may be a headline; else what it is instead, with the figures that say why."""
    title, status = "Could be set free", figures["saving_status"]
    if status not in HEADLINED:
        wait = figures["wait_minutes"]
        return page.Card(
            title,
            status,
            f"{last['saved_total_gpu_hours']:,.0f} GPU h a week less in simulation, with mean waits of "
            f"{_minutes(wait['dynamic_rightsized']['mean'])} instead of {_minutes(wait['installed']['mean'])}; see "
            "finding 3",
        )
    only = "simulated only; " if status == SIMULATED_ONLY else ""
    return page.Card(
        title,
        f"{last['saved_total_gpu_hours']:,.0f} GPU h",
        f"a week; {only}{last['saved_total_gpu_hours_low']:,.0f} to {last['saved_total_gpu_hours_high']:,.0f} (95 %), "
        "against today's fleet, all on",
    )


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} min"


def _cost_card(figures: Mapping[str, Any]) -> list[page.Card]:
    if figures["cost"] is None:
        return []
    cost = f"{Decimal(figures['cost']):,.2f} {figures['currency']}"
    return [page.Card("Cost of the period", cost, f"at {figures['price_per_gpu_hour']:.2f} a GPU-hour")]
