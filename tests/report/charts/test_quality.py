"""Charts of the quality of the data: what is encoded is what was found, at every size."""

from __future__ import annotations

from datetime import date, timedelta

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.report.data_quality_charts import FULL_COVERAGE, NO_ROWS, PARTIAL_COVERAGE


def rows(spec: dict) -> pl.DataFrame:
    (values,) = spec["datasets"].values()
    return pl.DataFrame(values, infer_schema_length=None)


def grid(nodes: int, days: int) -> pl.DataFrame:
    """Nodes seen whole, but node 7 on no day and node 8 half."""
    return (
        pl.DataFrame({"number": range(nodes)})
        .join(pl.DataFrame({"day": [date(2026, 1, 1) + timedelta(day) for day in range(days)]}), how="cross")
        .select(
            pl.format("node-{}", pl.col("number").cast(pl.String).str.zfill(4)).alias("node"),
            "day",
            observed_gpu_h=pl.col("number").replace_strict({7: 0.0, 8: 96.0}, default=192.0),
            expected_gpu_h=192.0,
        )
    )


def test_gravest_findings_stand_first_and_the_title_counts_the_others(findings):
    spec = plots.chart_spec(plots.plot_quality(findings, top=2))
    assert len(spec["encoding"]["y"]["sort"]) == 2
    assert spec["encoding"]["y"]["sort"][1] == "1,200 × no GPU"
    assert spec["title"].endswith("the 2 gravest of 3")


def test_a_bar_is_as_high_as_the_share_and_what_was_barely_seen_is_not_nothing(coverage):
    drawn = rows(plots.chart_spec(plots.plot_coverage(coverage))).filter(name="n2").sort("start")
    assert drawn["state"].to_list() == [PARTIAL_COVERAGE, PARTIAL_COVERAGE, NO_ROWS]
    heights = (drawn["high"] - drawn["low"]).to_list()
    assert heights[0] == pytest.approx(0.42)
    assert 0 < heights[1] < 0.1
    assert heights[2] == 0


def test_a_thousand_nodes_fit_with_the_worst_by_name():
    spec = plots.chart_spec(plots.plot_coverage(grid(1000, 31)))
    drawn = rows(spec)
    names = spec["layer"][0]["encoding"]["y"]["sort"]
    assert names[:2] == ["node-0007", "node-0008"]
    assert names[-1] == "984 others"
    assert drawn.height == 17 * 31
    assert drawn["observed_gpu_h"].sum() == pytest.approx(grid(1000, 31)["observed_gpu_h"].sum())
    assert set(drawn.filter(name="984 others")["state"]) == {FULL_COVERAGE}
    assert "Lowest: node-0007, 0 %." in plots.coverage_text(grid(1000, 31))


def test_intake_marks_days_without_jobs_and_counts_rows_without_a_date(intake):
    drawn = rows(plots.chart_spec(plots.plot_intake(intake)))
    jobs = drawn.filter(pl.col("name").str.starts_with("jobs")).sort("start")
    assert jobs["rows"].to_list() == [40, 0, 10]
    assert jobs["state"].to_list() == ["jobs", NO_ROWS, "jobs"]
    names = plots.chart_spec(plots.plot_intake(intake))["layer"][0]["encoding"]["y"]["sort"]
    assert names[0] == "jobs submitted (50)"
    assert names[2].endswith("(2; 2 not in time)")
    assert plots.intake_text(intake) == "16.7 jobs submitted a day, none on 1 of 3 days. 6 rows were rejected."


def test_a_date_far_from_the_jobs_does_not_stretch_the_axis(intake):
    odd = pl.DataFrame({"what": ["rejected: old"], "day": [date(1970, 1, 1)], "rows": [5]})
    drawn = rows(plots.chart_spec(plots.plot_intake(pl.concat([intake, odd], how="vertical_relaxed"))))
    assert drawn["start"].min() >= "2026"
