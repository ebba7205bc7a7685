"""What may be headlined: no saving whose waits are worse, and none in a simulator that observation contradicts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from gpuplanner.inbox import read, write_dataset
from gpuplanner.report import tearsheet
from gpuplanner.scenario import Scenario
from gpuplanner.study.findings import findings
from gpuplanner.study.future.saving import HEADLINED, STATUSES, Saving, WaitsCheck, judged_saving, waits_check
from gpuplanner.study.handover import notes
from gpuplanner.study.study import Study
from gpuplanner.study.walk import _saved
from gpuplanner.widgets.answer import answer_html

START = datetime(2026, 3, 2, tzinfo=UTC)


def runs(before, after, *, stuck=(0, 0)):
    sides = (("installed", before, stuck[0]), ("plan", after, stuck[1]))
    return pl.DataFrame(
        [
            {"policy": policy, "replication": number, "mean_queueing_delay_s": wait, "unservable": none}
            for policy, waits, none in sides
            for number, wait in enumerate(waits)
        ]
    )


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ((30.0, 35.0, 31.0), (8600.0, 8700.0, 8500.0), "not comparable"),
        ((30.0, 35.0, 31.0), (29.0, 20.0, 30.0), "shown"),
        ((30.0, 35.0, 31.0), (31.0, 30.0, 36.0), "shown"),  # within the interval of the differences
        (
            (100.0, 900.0, 500.0),
            (110.0, 911.0, 509.0),
            "not comparable",
        ),  # always ten more, however weeks differ
        ((0.0, 0.0, 0.0), (0.0, 9000.0, 0.0), "not comparable"),  # nobody waits today, whatever the weeks
        ((None, None, None), (None, None, None), "shown"),  # nobody came
    ],
)
def test_waits_that_are_worse_are_not_compared(before, after, status):
    found = judged_saving(
        WaitsCheck("explained", "As seen."), runs(before, after), baseline="installed", plan="plan"
    )
    assert (found.status, found.headlined) == (status, status == "shown")
    if not found.headlined:
        assert f"{sum(after) / 180:,.1f} minutes on average instead of {sum(before) / 180:,.1f}" in found.note


def test_what_observation_contradicts_is_withheld_and_what_it_cannot_check_is_marked():
    good = runs((30.0, 40.0), (30.0, 40.0))
    sides = {"baseline": "installed", "plan": "plan"}
    assert judged_saving(WaitsCheck("contradicted", "Days."), good, **sides) == Saving(
        "withheld", "withheld: Days."
    )
    assert judged_saving(WaitsCheck("cannot be checked", "None."), good, **sides).status == "simulated only"
    none_finds_room = runs((30.0, 40.0), (30.0, 40.0), stuck=(0, 3))
    assert (
        "3.0 jobs never find room"
        in judged_saving(WaitsCheck("explained", ""), none_finds_room, **sides).note
    )


@pytest.mark.parametrize("status", STATUSES)
def test_every_door_says_the_same(study: Study, status):
    """Page, workbook, panel, findings and JSON: a figure and its money, or neither."""
    check = WaitsCheck("explained", "Waits are as seen.")
    told = _saved(study.tables["savings"], Saving(status, f"{status}: because."), check)
    headline = {**study.headline, **told}
    here = replace(study, headline=headline, findings=tuple(findings(headline, study.tables)))
    last = study.tables["savings"].row(-1, named=True)
    money = f"{last['saved_cost']:,.2f}"
    summary, savings, panel = tearsheet.summary(here).html, tearsheet.savings(here).html, answer_html(here)
    assert (f"{last['saved_total_gpu_hours']:,.0f} GPU h</dd>" in summary) == (status in HEADLINED)
    for text in (savings, panel):
        assert (f"{money} USD" in text) == (status in HEADLINED)
    assert ("No saving is claimed" in here.findings[2]) == (status not in HEADLINED)
    assert ("imulat" in here.findings[2]) == (status not in ("shown", "no plan"))
    assert notes(here)["Saving"].startswith(status)
    kept = json.loads(here.to_json())["headline"]
    assert (kept["saved_gpu_hours_per_week"] is None) == (kept["saved_cost_per_week"] is None)
    assert (kept["saved_fraction"] is None) == (status not in HEADLINED)
    assert len(here.tables["savings"]) == len(study.tables["savings"]), "tables of policies always stand"


def test_the_sample_explains_its_waits(study: Study):
    assert study.headline["waits_outcome"] == "explained"
    assert study.headline["saving_status"] in STATUSES


@pytest.mark.data
def test_fox_contradicts_the_simulator(public_data, tmp_path):
    """Nobody waits in the simulation of its inferred fleet, and people waited for days."""
    trace = read("slurm", public_data / "slurm" / "sacct_fox_2025.txt", tz="Europe/Oslo")
    write_dataset(trace, tmp_path / "fox")
    found = waits_check(Scenario(data=str(tmp_path / "fox")))
    assert found.outcome == "contradicted"
    assert "mean 0.0 min against 717.5 min observed" in found.sentence
