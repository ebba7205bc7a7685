"""Objects that draw themselves: each gives markup that needs nothing else, its rows, and its chart."""

from __future__ import annotations

import polars as pl
import pytest

import gpuplanner
from gpuplanner.errors import ScenarioError
from gpuplanner.views import compare, explore
from gpuplanner.views.study import ShownStudy

VIEWS = ("ways", "forecast", "fleet", "teams", "money")


@pytest.fixture(scope="module")
def answer(study):
    return ShownStudy.of(study)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_itself_and_gives_its_rows(answer, name, tmp_path):
    view = getattr(answer, name)()
    html = view._repr_html_()
    assert html.count("<h2>") >= 1
    assert 'src="http' not in html
    assert "<script" not in html
    assert isinstance(view.frame(), pl.DataFrame)
    assert view.frame().height > 0
    page = view.to_html(tmp_path / "view.html", title="A view").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page


def test_a_view_gives_its_charts_and_refuses_one_that_is_not_there(answer):
    assert answer.ways().chart().to_dict()["description"]
    with pytest.raises(ScenarioError, match="chart of a view"):
        answer.ways().chart(9)


def test_the_decision_is_a_card_with_the_fields_of_the_decision(answer, study):
    card = answer.decision
    assert (card.gpus, card.saving.low, card.monday) == (
        study.decision.gpus, study.decision.saving.low, study.decision.monday,
    )  # fmt: skip
    assert f"{card.gpus:,}" in card._repr_html_()
    assert answer.to_json() == study.to_json()


def test_decisions_side_by_side_have_a_column_each_and_one_alone_is_refused(answer):
    frame = compare(answer, answer.comparison).frame()
    assert frame.width == 3
    assert frame.columns[1][2:] == frame.columns[2][2:]
    with pytest.raises(ScenarioError, match="two or more"):
        compare(answer)


def test_a_number_is_explained_as_the_command_does(answer):
    assert "hours today" in answer.explain("saving")._repr_html_()


def test_a_trace_is_looked_into_view_by_view():
    cluster = explore("sample")
    held = cluster.ledger().frame().filter(pl.col("bucket").is_in(["used", "held_idle", "unobserved"]))
    assert held["gpu_hours"].sum() == pytest.approx(20974.7378, rel=1e-6)
    assert "search" in cluster.ledger("search")._repr_html_()
    assert cluster.phases("job-002875").frame()["label"].to_list() == ["setup", "ramp", "steady", "decay"]


def test_about_twenty_names_are_offered_and_each_is_there():
    assert 15 <= len(gpuplanner.__all__) <= 25
    assert all(getattr(gpuplanner, name) is not None for name in gpuplanner.__all__)
