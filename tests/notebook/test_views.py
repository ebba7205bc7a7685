"""Objects that draw themselves: each gives markup that needs nothing else, its rows, and its chart."""

from __future__ import annotations

import polars as pl
import pytest

import gpuplanner
from gpuplanner.core.errors import ScenarioError
from gpuplanner.notebook.cluster import open
from gpuplanner.notebook.section_panels import FAULT_BORDER
from gpuplanner.notebook.study_views import StudyView

VIEWS = ("policies", "forecast", "fleet", "teams", "costs")


@pytest.fixture(scope="module")
def answer(study):
    return StudyView(study.scenario, study.comparison, study)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_itself_and_gives_its_rows(answer, name, tmp_path):
    view = getattr(answer, name)()
    html = view._repr_html_()
    assert html.count("<h2>") >= 1
    assert 'src="http' not in html
    assert "<script" not in html
    assert isinstance(view.df, pl.DataFrame)
    assert view.df.height > 0
    page = view.export(tmp_path / "view.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page


def test_the_decision_is_a_card_with_the_fields_of_the_decision(answer, study):
    card = answer.decision
    assert (card.gpus, card.saving.low, card.next_steps) == (
        study.decision.gpus, study.decision.saving.low, study.decision.next_steps,
    )  # fmt: skip
    assert f"{card.gpus:,}" in card._repr_html_()
    assert answer.results is study


def test_a_trace_is_looked_into_view_by_view():
    cluster = open("sample")
    held = cluster.ledger().df.filter(pl.col("bucket").is_in(["used", "allocated_idle", "no_telemetry"]))
    assert held["gpu_hours"].sum() == pytest.approx(20974.7378, rel=1e-6)
    assert "search" in cluster.ledger(team="search")._repr_html_()
    assert cluster.phases("job-002875").df["label"].to_list() == ["setup", "ramp", "steady", "decay"]


@pytest.mark.long
def test_plans_of_layouts_show_themselves_and_are_handed_over(tmp_path):
    found = gpuplanner.layouts(gpuplanner.Scenario(horizon_intervals=24, work_limit=60))
    assert found.kinds().df["method"].to_list() == ["static", "calendar (2)", "calendar (4)", "auto"]
    assert found.in_use().chart().to_dict()["description"]
    assert set(found.in_use().df["layout"]) <= set(found.plan.layouts)
    one = found.limits(gpus=found.problem.gpus - 8).df
    assert one["variant"].to_list() == ["as it stands", f"gpus={found.problem.gpus - 8}"]
    assert found.export(tmp_path / "pack").read_text().startswith("#")


def test_a_sized_job_gives_plans_and_memory():
    found = gpuplanner.size("llama-3.2-1b", seq=2048, on="H100-80GB-SXM5=1")
    best = found.sizing.plans[0]
    assert found.memory().df.filter(plan=found.memory().df["plan"][0])["gib"].sum() == pytest.approx(
        best.predicted_gib, abs=0.01
    )
    assert f"{best.predicted_gib:.1f} GiB expected" in found.plans()._repr_html_()
    table = found.costs().df
    front = table.filter("pareto").sort("cost")
    assert front["tokens_per_s"].is_sorted()
    for row in table.filter(~pl.col("pareto")).drop_nulls("cost").iter_rows(named=True):
        better = (pl.col("cost") <= row["cost"]) & (pl.col("tokens_per_s") >= row["tokens_per_s"])
        assert not front.filter(better).is_empty()
    assert found.slices().df["fits"].is_sorted(descending=True)
    same = gpuplanner.size("llama-3.2-1b", seq=2048, on=gpuplanner.open("sample"))
    assert same.plans().df["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]
    with pytest.raises(ScenarioError, match="MODEL=COUNT"):
        gpuplanner.size("gpt2", on="H100-80GB-SXM5=none")


@pytest.mark.parametrize("ending", ["html", "csv", "parquet", "xlsx"])
def test_a_view_is_exported_by_the_ending_of_the_name(answer, ending, tmp_path):
    view = answer.fleet()  # with lists of nodes
    path = view.export(tmp_path / f"fleet.{ending}")
    if ending == "xlsx":
        assert pl.read_excel(path, sheet_name="Table")["layout"].to_list() == view.df["layout"].to_list()
    elif ending == "parquet":
        assert pl.read_parquet(path).equals(view.df)
    else:
        assert view.df["layout"][0] in path.read_text()
    with pytest.raises(ScenarioError, match=r"\.html, \.csv, \.parquet or \.xlsx"):
        view.export(tmp_path / "fleet.docx")


def test_the_size_panel_follows_its_fields_and_marks_what_is_not_known():
    job = gpuplanner.size("gpt2", seq=1024, tokens=1e9, deadline_h=24.0, on="A100-80GB=8")
    panel = job.controls()
    assert panel.question == job.request
    panel.gpu_models.value, panel.tokens.control.value = "A100-80GB=8 H100-80GB-SXM5=4", 2.0
    shown = panel.ask().result(timeout=300)
    assert set(shown.costs().df["gpu_model"]) >= {"A100-80GB", "H100-80GB-SXM5"}
    assert "tokens=2000000000.0" in panel.code.value
    for control, value in ((panel.model, "no-such-model"), (panel.gpu_models, "Z9000=4")):
        control.value, before = value, control.value
        with pytest.raises(ScenarioError, match=value.partition("=")[0]):
            panel.ask().result()
        assert control.layout.border_top == FAULT_BORDER
        control.value = before
    panel.ask().result(timeout=300)
    assert panel.model.layout.border_top is None


def test_a_job_that_fits_nowhere_gives_cards_with_the_fix():
    job = gpuplanner.size("llama-3.1-405b", seq=8192, on="A30=1")
    for view in (job.costs(), job.plans(), job.slices(), job.memory()):
        assert "gp.size(" in view._repr_html_()
