"""Every figure that can be explained comes out of the inputs and rows that are shown with it."""

from __future__ import annotations

import json

import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.study.explain import FIGURES, explained

OF_STUDY = {
    "gpus": lambda study: study.decision.gpus,
    "saving": lambda study: study.decision.saving.value,
    "delay": lambda study: study.decision.service.added_minutes,
    "run-out": lambda study: study.decision.run_out.today.date,
    "shortage": lambda study: study.decision.shortage.jobs,
    "electricity": lambda study: study.decision.worth.kwh_per_week,
    "installed": lambda study: study.headline.installed_gpu_hours,
    "held": lambda study: study.headline.allocated_gpu_hours,
    "idle": lambda study: study.headline.bucket_gpu_hours["held_idle"],
    "lost": lambda study: study.tables["ended"].filter("lost")["gpu_hours"].sum(),
    "cost": lambda study: float(study.headline.cost),
    "energy": lambda study: study.headline.energy_kwh,
    "carbon": lambda study: study.headline.carbon_kg,
}
"""The same figures as page, workbook and JSON have them, read from where those read them."""


@pytest.mark.parametrize("name", FIGURES)
def test_what_its_formula_gives_is_what_the_page_says(study, name):
    one, known = explained(study, name), OF_STUDY[name](study)
    if known is None or isinstance(known, str):
        assert one.value == known
    else:
        assert one.value == pytest.approx(known, rel=1e-3, abs=1e-5)
    assert one.formula
    assert one.inputs or one.rows.height


def test_a_figure_is_found_by_its_beginning_and_an_unknown_one_is_refused(study):
    assert explained(study, "sav").name == "saving"
    with pytest.raises(ScenarioError, match="figure 'price' is unknown"):
        explained(study, "price")


def test_the_command_says_the_same_of_a_folder(study, command, tmp_path):
    study.save(tmp_path / "kept")
    code, out, _ = command("explain", str(tmp_path / "kept"), "saving", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["value"] == pytest.approx(study.decision.saving.value)
    assert told["value"] == pytest.approx(
        told["inputs"]["hours today"] - told["inputs"]["hours as recommended"]
    )
    code, out, _ = command("explain", str(tmp_path / "kept"))
    assert code == 0
    assert all(name in out for name in FIGURES)
    code, out, _ = command("explain", str(tmp_path / "kept"), "held")
    assert "GPU-hours that jobs held" in out
    assert "ledger.parquet" in out
