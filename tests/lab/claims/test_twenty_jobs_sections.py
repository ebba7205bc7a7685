"""What the notebook of the twenty jobs says in words is what a few lines find in the same runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gpuplanner.lab.claims import twenty_jobs as cases
from gpuplanner.lab.claims.twenty_jobs import sections
from gpuplanner.report.section import Section


@pytest.fixture(scope="module")
def rows():
    return cases.replicate(cases.CORNERS, range(4))


def text_of(shown) -> str:
    return " ".join(part for part in shown if isinstance(part, Section))


def test_where_the_calibrated_design_lies_among_those_drawn(rows):
    text = text_of(sections.design_space(rows, seed=0))
    drawn = cases.outcomes(cases.draw_designs(cases.Space(), seed=0), cases.Space())
    one, two = (rows.filter(policy=policy.name) for policy in (cases.CASE_1, cases.CASE_2))
    ratio = two["completion_min"].mean() / one["completion_min"].mean()
    smaller = np.mean(drawn["time_ratio"].to_numpy() < ratio)
    near = (
        (abs(drawn["case_1_min"] - 114) <= 11.4)
        & (abs(drawn["utilisation_1"] - 0.362) <= 0.03)
        & (abs(drawn["case_2_min"] - 59) <= 5.9)
        & (abs(drawn["utilisation_2"] - 0.8979) <= 0.04)
    )
    assert f"{ratio:.2f} of the time of case 1: {smaller:.0%} of the designs" in text
    assert f"Inside all four bands lie {near.mean():.1%}." in text
    assert near.sum() > 0


def test_gains_stand_in_minutes_and_points(rows):
    text = text_of(sections.gain(rows))
    mean = {
        policy: rows.filter(policy=policy.name)["utilisation_provisioned"].mean()
        for policy in (cases.CASE_1, cases.CASE_2)
    }
    points = 100 * (mean[cases.CASE_2] - mean[cases.CASE_1])
    together = re.search(r"points\]</th><td>together</td><td class=\"number\">([^<]*)<", text)
    assert together is not None
    assert together[1] == f"+{points:.2f}"
    off = 8 - rows.filter(policy=cases.CASE_2.name)["gpus_on"].mean()
    assert f"the plan leaves {off:.1f} GPUs off" in text
