"""Numbers of GPUs that come from fractions: a part of a GPU does not read as 0, a missing number not as 0 either."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from gpuplanner.report.monthly_sections import _describe_expected_demand
from gpuplanner.report.team_share_peak_and_wait_charts import peaks_text, use_text

HIDES_PARTS = re.compile(r":,?\.[01]f\} GPUs\b")
"""A number of GPUs in whole GPUs or tenths: 3/7 of a GPU would read as 0 or 0.4."""


def use(requested: float | None, allocated: float | None, active: float | None) -> pl.DataFrame:
    days = {"day": [date(2026, 3, 1)]}
    return pl.DataFrame(days | {"requested_gpus": [requested], "allocated_gpus": [allocated], "active_gpus": [active]})


def test_the_peak_of_a_part_of_a_gpu_is_not_zero():
    days = pl.DataFrame({"day": [date(2026, 3, 1), date(2026, 3, 2)], "gpus": [0.0, 3 / 7]})
    assert peaks_text(days) == "Peak: 0.429 GPUs allocated on average in an hour, on 2 Mar 2026."


def test_means_of_parts_of_gpus_are_not_zero_and_missing_ones_are_a_dash():
    assert use_text(use(0.296, 0.292, 0.02)).startswith(
        "On average 0.296 GPUs were requested and 0.292 allocated; 0.02 active"
    )
    assert use_text(use(None, 64.2, None)).startswith("On average – GPUs were requested and 64 allocated")


def test_the_expected_demand_of_a_part_of_a_gpu_has_its_interval():
    headline = SimpleNamespace(
        tomorrow_at="2026-03-02T12:00:00+00:00", tomorrow_gpus=0.43, tomorrow_low=0.14, tomorrow_high=0.86
    )
    text = _describe_expected_demand(SimpleNamespace(headline=headline), "")
    assert text == "Mon 2 Mar 2026, 12:00: 0.43 GPUs (90 % interval 0.14 to 0.86)"


@pytest.mark.lint
def test_no_text_rounds_a_number_of_gpus_to_tenths_or_whole_ones(root: Path):
    texts = {path: path.read_text("utf-8") for path in sorted((root / "gpuplanner").rglob("*.py"))}
    assert {str(path): found for path, text in texts.items() if (found := HIDES_PARTS.findall(text))} == {}
