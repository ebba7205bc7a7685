"""Announced projects: read strictly, and answered with and without each, on a record counted by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import to_json
from gpuplanner.decision.announced_projects import (
    ALL_PROJECTS_TITLE,
    ProjectAnswer,
    _describe_concurrent_projects,
    _FleetAssessment,
    answer_projects,
    project_span,
    read_projects,
)
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_text import make_empty_decision
from gpuplanner.decision.headroom_and_growth import fit_growth_per_week
from gpuplanner.ingest.dataset_import import add_files

FIRST = datetime(2026, 1, 5, tzinfo=UTC)
DAYS, NODES = 42, 4
HEADER = "JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"


@pytest.fixture(scope="module")
def flat(tmp_path_factory) -> Scenario:
    """Four nodes of four GPUs: every morning two jobs of four GPUs for ten hours, and 20 of one GPU for an hour."""
    place = tmp_path_factory.mktemp("flat")
    lines = [HEADER]
    for day in range(DAYS):
        begin = FIRST + timedelta(days=day, hours=6)
        held = [(0, 4, 10, f"n{node}") for node in (1, 2)]
        held += [(turn * 30, 1, 1, "n3") for turn in range(20)]
        for minutes, gpus, hours, node in held:
            start = begin + timedelta(minutes=minutes)
            tres = f"cpu=1,gres/gpu:a100={gpus},node=1"
            told = [f"{one:%Y-%m-%dT%H:%M:%S}" for one in (start, start, start + timedelta(hours=hours))]
            team = "vision" if gpus == 4 else "nlp"
            lines.append("|".join([str(len(lines)), team, team, "gpu", "COMPLETED", *told, "1", node, tres, tres]))
    (place / "sacct.txt").write_text("\n".join(lines) + "\n")
    nodes = "\n".join(f"n{number},4,A100-80GB" for number in range(1, NODES + 1))
    (place / "nodes.csv").write_text(f"node,gpus,gpu_model\n{nodes}\n")
    add_files("slurm", [place / "sacct.txt"], place / "data", tz="UTC")
    add_files("nodes", [place / "nodes.csv"], place / "data")
    return Scenario(data=str(place / "data"), actuator="slurm")


def asked(scenario: Scenario, place: Path, text: str) -> tuple[ProjectAnswer, ...]:
    file = place / "projects.yaml"
    file.write_text(text)
    own = Scenario(**{**scenario.__dict__, "projects": str(file)})
    return answer_projects(own)


def test_what_fits_beside_the_peaks_is_taken_and_nobody_waits(flat, tmp_path):
    # Ten GPUs are held at most, of sixteen: four more fit.
    [found] = asked(flat, tmp_path, "projects:\n- {name: x, team: nlp, gpus: 4, from: 2026-03-01, to: 2026-04-30}\n")
    assert (found.fits, found.gpus_more, found.order_by) == (True, 0, None)
    assert (found.fits_chance_without, found.fits_chance) == (1.0, 1.0)
    assert found.served is True
    assert found.waits == ()
    assert "x (4 GPUs from 1 Mar 2026, 100 % likely) fits" in found.sentence


def test_what_does_not_fit_says_who_waits_and_what_to_order_by_when(flat, tmp_path):
    [found] = asked(flat, tmp_path, "projects:\n- {name: x, team: nlp, gpus: 12, from: 2026-09-01, chance: 0.7}\n")
    assert (found.fits, found.gpus_more_without) == (False, 0)
    assert (found.fits_chance, found.fits_chance_without) == (0.0, 1.0)
    # Ten and twelve are 22; two nodes of four make 24.
    assert found.gpus_more == 8
    assert found.order_by == "2026-06-03"  # 90 days before
    assert found.late_days == 0
    assert found.served is False
    # One node is left for both jobs of four GPUs: the second waits ten hours for the first.
    worst = found.waits[0]
    assert worst.added_wait_p95_minutes >= 600
    assert {row.name for row in found.waits if row.kind == "team"} >= {"vision"}


def test_an_order_that_comes_too_late_says_by_how_many_days(flat, tmp_path):
    [found] = asked(flat, tmp_path, "projects:\n- {name: x, team: nlp, gpus: 12, from: 2026-03-16}\n")
    # Seen to 15 or 16 February, and 90 days are needed from then on.
    assert found.late_days in (61, 62)
    assert " now, which is " in found.sentence


@pytest.mark.long
def test_projects_that_fit_alone_and_not_together(flat, tmp_path):
    text = """
projects:
- {name: one, team: a, gpus: 4, from: 2026-03-01}
- {name: two, team: b, jobs: {count: 1, gpus: 4, hours: 1}, from: 2026-04-01, chance: 0.5}
"""
    one, two, both = asked(flat, tmp_path, text)
    assert (one.fits, two.fits, both.fits) == (True, True, False)
    assert (both.name, both.gpus, two.gpus, both.chance) == (ALL_PROJECTS_TITLE, 8, 4, 0.5)
    assert (both.begin, both.fits_chance) == ("2026-04-01", 0.0)


@pytest.mark.long
def test_projects_one_after_the_other_are_not_added(flat, tmp_path):
    text = """
projects:
- {name: one, team: a, gpus: 4, from: 2026-03-01, to: 2026-03-31}
- {name: two, team: b, gpus: 4, from: 2026-04-01}
"""
    assert [found.name for found in asked(flat, tmp_path, text)] == ["one", "two"]


def test_a_project_larger_than_many_times_the_fleet_gets_its_gpus(flat, tmp_path):
    [found] = asked(flat, tmp_path, "projects:\n- {name: x, team: a, gpus: 400, from: 2026-09-01}\n")
    # 10 GPUs on three nodes of four are held beside it, and there are 16.
    assert (found.gpus_more, found.fits_chance, found.served) == (396, 0.0, None)


def test_growth_until_the_begin_and_the_busiest_day_scale_the_load(flat, tmp_path):
    file = tmp_path / "projects.yaml"
    file.write_text("projects:\n- {name: x, team: a, gpus: 4, from: 2026-03-09}\n"
                    "calendar:\n- {kind: release, from: 2026-03-20, to: 2026-03-21, factor: 1.5}\n")  # fmt: skip
    announced = read_projects(file)
    growth = fit_growth_per_week(100 * 1.05 ** np.arange(6.0))
    record = SimpleNamespace(inputs=SimpleNamespace(end=FIRST + timedelta(days=DAYS), observed_s=DAYS * 86_400.0))
    case = _FleetAssessment(flat, record, growth, announced.calendar, np.zeros(0))
    # Three weeks from the end of the record, which is three from its middle.
    assert case.load_during(_describe_concurrent_projects(announced.projects, 1)) == pytest.approx(1.5 * 1.05**6)


@pytest.mark.long
def test_a_freeze_makes_room_and_a_release_takes_it(flat, tmp_path):
    project = "projects:\n- {name: x, team: a, gpus: 4, from: 2026-03-02, to: 2026-03-29}\n"
    spans = "kind: {}, from: 2026-02-20, to: 2026-04-20, factor: {}"
    [plain] = asked(flat, tmp_path, project)
    [release] = asked(flat, tmp_path, f"{project}calendar:\n- {{{spans.format('release', 1.5)}}}\n")
    [freeze] = asked(flat, tmp_path, f"{project}calendar:\n- {{{spans.format('freeze', 0.5)}}}\n")
    assert release.fits_chance < plain.fits_chance <= freeze.fits_chance
    assert release.gpus_more > release.gpus_more_without
    assert (plain.gpus_more, freeze.gpus_more) == (0, 0)


def test_another_board_is_bought_and_held_against_nobody(flat, tmp_path):
    [found] = asked(flat, tmp_path, "projects:\n- {name: x, team: a, gpus: 8, gpu_model: h200, from: 2026-09-01}\n")
    assert (found.fits, found.gpus_more, found.order_by) == (False, 8, "2026-06-03")
    assert found.served is None


@pytest.fixture(scope="module")
def kept(flat, tmp_path_factory):
    place = tmp_path_factory.mktemp("kept")
    answers = asked(flat, place, "projects:\n- {name: <x>, team: a, gpus: 12, from: 2026-09-01}\n")
    return Comparison(make_empty_decision(flat, "nothing was decided"), 10.0, projects=answers)


def test_answers_are_kept_with_the_comparison(kept):
    assert Comparison.from_dict(json.loads(to_json(kept.to_dict()))).projects == kept.projects


def test_answers_stand_on_the_page_of_the_comparison(kept):
    from gpuplanner.report.first_screen import render_first_screen

    assert escape(kept.projects[0].sentence) in render_first_screen(kept)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("projects:\n- name: x\n  team: a\n  gpu: 4\n  from: 2026-03\n", ("line 4", "'gpu'", "4", "'gpus'")),
        ("project: []\n", ("line 1", "'project'", "'projects'")),
        ("projects:\n- {name: x, team: a, gpus: 2, from: march}\n", ("line 2", "YYYY-MM", "'march'")),
        ("projects:\n- {name: x, team: a, gpus: 2, from: 2026-03, to: 2026-02}\n", ("at or after", "2026-02-28")),
        ("projects:\n- {name: x, team: a, gpus: 2, from: 2026-03, gpu_model: h900}\n",
         ("GPU model of the catalog", "h900")),
        ("- a\n", ("projects.yaml", "keys projects, calendar")),
    ],
)  # fmt: skip
def test_a_file_with_faults_is_refused_with_line_value_and_nearest_name(tmp_path, text, parts):
    file = tmp_path / "projects.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as fault:
        read_projects(file)
    assert all(part in str(fault.value) for part in parts), str(fault.value)


def test_a_month_is_its_first_and_its_last_day(tmp_path):
    file = tmp_path / "projects.yaml"
    file.write_text("projects:\n- {name: x, team: a, gpus: 2, from: 2026-02, to: 2026-02}\n")
    [found] = read_projects(file).projects
    assert (found.begin, found.end, found.chance, found.gpu_model) == ("2026-02-01", "2026-02-28", 1.0, None)


def test_an_end_beyond_the_calendar_is_no_end(tmp_path):
    file = tmp_path / "projects.yaml"
    file.write_text("projects:\n- {name: x, team: a, gpus: 4, from: 2026-03, to: 9999-12}\n"
                    "calendar:\n- {kind: freeze, from: 2026-03, to: 9999-12-31, factor: 0.5}\n")  # fmt: skip
    announced = read_projects(file)
    begin, end = project_span(announced.projects[0], "UTC")
    assert announced.projects[0].end is None
    assert (end - begin).days > 30_000
    assert announced.calendar[0].begin == "2026-03-01" < "2199-12-31" < announced.calendar[0].end
    file.write_text("projects:\n- {name: x, team: a, gpus: 4, from: 9999-12}\n")
    with pytest.raises(ScenarioError, match="line 2: expected from in the years 1970 to 2199; got 9999-12-01"):
        read_projects(file)
