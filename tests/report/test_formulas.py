"""Every formula of the page gives the figure that page, workbook and JSON have, from the inputs and rows beside it."""

from __future__ import annotations

import pytest

from gpuplanner.report.metric_formulas import list_formulas
from gpuplanner.report.monthly_sections import CARD_FORMULA_NAMES, FORMULA_ANCHOR_PREFIX, numbers
from gpuplanner.report.number_formats_and_glossary import format_share

OF_STUDY = {
    "gpus": lambda study: study.decision.gpus,
    "wait": lambda study: study.decision.most_improved_size.recommended_p95_minutes,
    "saving": lambda study: study.decision.saving.value,
    "utilization": lambda study: format_share(
        sum(row.busy_gpu_hours for row in study.decision.teams)
        / sum(row.allocated_gpu_hours for row in study.decision.teams)
    ),
    "exhaustion": lambda study: study.comparison.exhaustion.date,
    "waiting": lambda study: sum(row.waited for row in study.comparison.waits.causes.team),
    "electricity": lambda study: study.decision.financial_impact.kwh_per_week,
    "installed": lambda study: study.headline.installed_gpu_hours,
    "allocated": lambda study: study.headline.allocated_gpu_hours,
    "idle": lambda study: study.headline.bucket_gpu_hours["allocated_idle"],
    "lost": lambda study: study.tables["ended"].filter("lost")["gpu_hours"].sum(),
    "cost": lambda study: float(study.headline.cost),
    "energy": lambda study: study.headline.energy_kwh,
    "carbon": lambda study: study.headline.carbon_kg,
}
"""The same figures, read from where page, workbook and JSON read them."""


def test_every_formula_gives_the_figure_of_the_study(study):
    found = {one.name: one for one in list_formulas(study)}
    assert list(found) == list(OF_STUDY)
    for name, one in found.items():
        known = OF_STUDY[name](study)
        if known is None or isinstance(known, str):
            assert one.value == known, name
        else:
            assert one.value == pytest.approx(known, rel=1e-3, abs=1e-5), name
        assert one.formula
        assert one.inputs or one.rows.height


def test_the_section_has_a_place_for_every_card(study):
    section = str(numbers(study))
    assert all(f'<details id="{FORMULA_ANCHOR_PREFIX}{name}">' in section for name in CARD_FORMULA_NAMES)
    assert "= provisioned GPU-hours per week today - as recommended" in section
