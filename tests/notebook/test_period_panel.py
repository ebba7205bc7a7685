"""The panel of a period in plain Python: days are set or marked in the chart, and the tables are of these days."""

from __future__ import annotations

from datetime import UTC, date, datetime

import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import ScenarioError
from gpuplanner.notebook.section_panels import FAULT_BORDER
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS


@pytest.fixture(scope="module")
def cluster():
    return gp.open("sample")


@pytest.fixture
def panel(cluster):
    return cluster.panel()


def test_tables_are_those_of_the_ledger_of_the_same_days(panel, cluster):
    panel.start.value, panel.end.value = date(2026, 2, 9), date(2026, 2, 15)
    shown = panel.ask().result(timeout=300)
    by_hand = cluster.ledger(by="team", start="2026-02-09", end="2026-02-16").df
    allocated = pl.sum_horizontal(name for name in ALLOCATED_BUCKETS if name in by_hand.columns)
    hours = dict(by_hand.select("team", allocated).iter_rows())
    assert shown.ledger["gpu_hours"].sum() == pytest.approx(by_hand["gpu_hours"].sum())
    assert shown.teams["team"].to_list() == sorted(shown.teams["team"], key=lambda team: -hours[team])
    for team, gpu_hours in shown.teams.select("team", "allocated_gpu_hours").iter_rows():
        assert gpu_hours == pytest.approx(hours[team])
    assert "9 Feb 2026 to 15 Feb 2026" in panel.answer.value
    assert panel.newest is shown


def test_one_team_has_its_own_ledger_and_demand(panel):
    everybody = panel.ask().result(timeout=300)
    panel.team.value = "search"
    search = panel.ask().result(timeout=300)
    hours = everybody.teams.filter(team="search")["allocated_gpu_hours"][0]
    assert search.ledger["gpu_hours"].sum() == pytest.approx(hours)
    assert search.demand["mean_instances"].sum() < everybody.demand["mean_instances"].sum()


def test_days_marked_in_the_chart_set_the_fields_and_an_empty_mark_shows_all(panel):
    class Marked:
        def __init__(self, *days: datetime) -> None:
            self.value = {"start": [1000 * day.timestamp() for day in days]} if days else {}

    panel._on_brush({"new": Marked(datetime(2026, 2, 3, 5, tzinfo=UTC), datetime(2026, 2, 6, tzinfo=UTC))})
    assert (panel.start.value, panel.end.value) == (date(2026, 2, 3), date(2026, 2, 5))
    panel._on_brush({"new": Marked()})
    assert (panel.start.value, panel.end.value) == (date(2026, 2, 1), date(2026, 2, 28))


def test_days_that_cannot_be_used_are_marked_and_the_answer_before_stays(panel):
    shown = panel.ask().result(timeout=300)
    panel.end.value = date(2026, 1, 1)
    with pytest.raises(ScenarioError, match="Last day: expected a day from 2026-02-01 to 2026-02-28"):
        panel.ask().result()
    assert panel.end.layout.border_top == FAULT_BORDER
    assert panel.start.layout.border_top is None
    assert "Fix the marked value." in panel.status.value
    assert panel.newest is shown
    panel.start.value, panel.end.value = date(2026, 2, 10), date(2026, 2, 9)
    with pytest.raises(ScenarioError, match="Last day: expected 2026-02-10 or later"):
        panel.ask().result()
    panel.end.value = date(2026, 2, 11)
    panel.ask().result(timeout=300)
    assert panel.end.layout.border_top is None


def test_without_telemetry_the_ledger_names_the_largest_known_bucket(tmp_path):
    """Used and idle GPU-hours are not known, which is not the largest share."""
    path = tmp_path / "cluster01.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\nb,3600,7200,4\n")
    cluster = gp.read(path)
    shares = cluster.ledger().df
    assert shares["share"].null_count() == 2
    largest = shares.drop_nulls("share").sort("share").row(-1, named=True)
    assert largest["bucket"] == "no_telemetry"
    assert f"no telemetry&quot;, has {100 * largest['share']:.0f} %" in cluster.ledger()._repr_html_()
    assert cluster.panel().ask().result(timeout=300).teams["used_fraction"].null_count() == 1


def test_the_chart_is_ready_before_its_runtime_is_loaded(panel):
    assert len(panel.chart._esm) < 500
    assert "as default" in panel.chart.runtime
    assert len(panel.chart.runtime) > 500_000
