"""One saving: page, workbook, findings and JSON say what the comparison at equal service says, or why it says none."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from gpuplanner.inbox import read, write_dataset
from gpuplanner.report import tearsheet
from gpuplanner.report.tearsheet.headline import one_sentence
from gpuplanner.scenario import Scenario
from gpuplanner.study.findings import findings
from gpuplanner.study.future.waits_check import waits_check
from gpuplanner.study.handover import notes
from gpuplanner.study.study import Study
from gpuplanner.study.walk import money, promised_figures


def retold(study: Study, **changed) -> Study:
    """The study as it would be with another comparison."""
    kept = {**study.promise, **changed}
    headline = {**study.headline, **promised_figures(kept, money(study.scenario))}
    told = tuple(findings(headline, study.tables, kept))
    return replace(study, headline=headline, promise=kept, findings=told)


def test_every_door_says_the_same(study: Study):
    saved = study.promise["saving_gpu_hours_per_week"]
    assert saved > 0
    assert study.headline["saved_gpu_hours_per_week"] == saved
    worth = Decimal(study.headline["saved_cost_per_week"])
    assert float(worth) == pytest.approx(saved * study.headline["price_per_gpu_hour"], abs=0.01)
    summary = tearsheet.summary(study).html
    for text in (summary, study.findings[2], notes(study)["Saving"]):
        assert f"{saved:,.0f}" in text
    assert f"{worth:,.0f} USD" in summary
    assert json.loads(study.to_json())["promise"] == study.promise
    rows = {row["policy"]: row["gpu_hours"] for row in study.tables["policies"].iter_rows(named=True)}
    assert rows["today"] - rows[study.promise["winner"]] == pytest.approx(saved, abs=1e-5)


NOTHING = dict.fromkeys(
    (
        "saving_gpu_hours_per_week",
        "saving_low",
        "saving_high",
        "saving_over_static",
        "saving_at_todays_wait",
    )
)


def test_what_observation_contradicts_is_withheld_at_every_door(study: Study):
    here = retold(study, reason="The simulator does not wait as was observed: days.", **NOTHING)
    assert here.headline["saved_cost_per_week"] is None
    assert here.headline["saved_fraction"] is None
    assert "does not wait as people did" in one_sentence(here)
    summary = tearsheet.summary(here).html
    assert "does not wait as was observed: days." in summary
    assert "not stated" in summary
    assert "USD</dd>" not in summary
    for text in (here.findings[2], notes(here)["Saving"]):
        assert text.startswith("No saving is stated")
    assert "What each lever saves" not in tearsheet.comparison(here).html, (
        "tables of policies stand, savings do not"
    )
    assert "Policies on weeks that none was tuned on" in tearsheet.comparison(here).html


def test_where_a_fixed_fleet_is_as_good_the_page_says_so(study: Study):
    static = retold(study, winner="static_mig", baseline="static_mig")
    assert "never changes is as good as any plan here" in tearsheet.summary(static).html
    same = retold(study, winner="today", baseline="today", **dict.fromkeys(NOTHING, 0.0))
    assert (
        one_sentence(same) == "Keep all 64 H100-80GB-SXM5 on as they are: nothing holds the target for less."
    )


def test_the_sample_explains_its_waits(study: Study):
    assert study.headline["waits_outcome"] == "explained"
    both = [f"{study.headline[f'{side}_wait_mean_min']:,.1f} {side}" for side in ("observed", "simulated")]
    assert all(text in tearsheet.summary(study).html for text in both)


@pytest.mark.data
def test_fox_contradicts_the_simulator(public_data, tmp_path):
    """Nobody waits in the simulation of its inferred fleet, and people waited for days."""
    trace = read("slurm", public_data / "slurm" / "sacct_fox_2025.txt", tz="Europe/Oslo")
    write_dataset(trace, tmp_path / "fox")
    found = waits_check(Scenario(data=str(tmp_path / "fox")))
    assert found.outcome == "contradicted"
    assert "mean 0.0 min against 717.5 min observed" in found.sentence
