"""Sections of the inbox: text before every figure, tables that hold its numbers, and files that stand alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.report import dataset_sections as inbox
from gpuplanner.report.dataset_sections import render_quality_page, render_quality_svg
from gpuplanner.report.html_page import Text, split_section, to_still_text, write_page_or_picture
from gpuplanner.usage.dataset_description_and_data_quality import data_quality
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, explore_dataset
from gpuplanner.usage.planning_history import load_dataset

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def box():
    return explore_dataset("sample", tz="Europe/Berlin")


@pytest.fixture(scope="module")
def blind():
    trace = load_dataset("sample")
    jobs = trace.jobs.head(200).with_columns(pl.col("tenant").replace({"search": HOSTILE}))
    return explore_dataset(Dataset({"jobs": jobs}, trace.rejects, trace.quality.clear(), trace.provenance))


SECTIONS = {
    "quality": lambda box, _team, _job: inbox.render_quality_section(box.quality_report),
    "ledger": lambda box, team, _job: inbox.render_ledger_section(box, team),
    "demand": lambda box, team, _job: inbox.render_demand_section(box, team),
    "phases": lambda box, _team, job: inbox.render_phase_section(box, job),
    "late_demand": lambda box, _team, _job: inbox.render_claim_section(box),
}
"""Functions that render the sections, by name."""


@pytest.mark.parametrize("name", SECTIONS)
def test_every_figure_has_its_message_before_it_and_in_place_of_it(box, name):
    html = to_still_text(SECTIONS[name](box, "vision", "job-002875")).html
    figures = re.findall(r"<figure>(.*?)</figure>", html, re.DOTALL)
    assert figures
    for figure in figures:
        caption, picture = figure.split("</figcaption>")
        (label,) = re.findall(r'role="img" aria-label="([^"]+)"', picture)
        assert label in caption
        assert len(label) > 30


@pytest.mark.parametrize("name", SECTIONS)
def test_without_telemetry_or_faults_every_section_says_so(blind, name):
    html = to_still_text(SECTIONS[name](blind, ALL_TENANTS_LABEL, "")).html
    assert "<script" not in html
    if name == "quality":
        assert "No faults found" in html
    if name in ("quality", "phases", "claim"):
        assert "No telemetry" in html


def test_ledger_names_the_shares_that_its_tables_hold(box):
    html = inbox.render_ledger_section(box, "research")
    sums = box.rows_of(box.activity, "research").row(0, named=True)
    held = sum(value for part, value in sums.items() if part != "tenant")
    assert f"{100 * sums['idle_with_process'] / held:.0f} % idle with a process" in html
    assert "GPU-hours by month (Europe/Berlin), research" in html


def test_phases_of_a_job_name_signature_and_slice(box):
    name = box.jobs_with_telemetry.filter(pl.col("gpus") == 1)["job_id"][0]
    view, html = box.job(name), inbox.render_phase_section(box, name)
    assert f"Bound by: {view.bound}" in html
    assert f"One slice for the whole job is {view.phases['profile_job'][0]}" in html
    hours = (view.phases["run_s"] / 3600 * box.jobs_with_telemetry.filter(job_id=name)["gpus"][0]).to_list()
    assert view.phases["gpu_hours"].to_list() == pytest.approx(hours)
    assert view.phases["cost"].to_list() == pytest.approx([view.price.value * each for each in hours])
    quiet = view.phases.filter(pl.col("label").is_in(["setup", "cool-down", "idle", "input-stall"]))["cost"].sum()
    assert f"Cost: {view.phases['cost'].sum():,.2f} USD at " in html
    assert f"{quiet:,.2f} of it in phases without activity" in html


def test_live_parts_are_the_section_without_its_heading(box):
    section = inbox.render_ledger_section(box)
    found = split_section(section)
    charts = [part for part in found if not isinstance(part, Text)]
    assert len(charts) == section.count("<figure>") == 3
    assert all("usermeta" in chart for chart in charts)
    assert not any("<h2>" in part.html for part in found if isinstance(part, Text))
    assert "<h2>" in to_still_text(section).html


def test_files_stand_alone(tmp_path):
    found = data_quality("sample")

    def written(name: str) -> str:
        file = write_page_or_picture(
            tmp_path / name,
            page=lambda: render_quality_page(found, title=HOSTILE),
            picture=lambda: render_quality_svg(found),
        )
        return file.read_text("utf-8")

    page = written("q.html")
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="https?:', page)
    assert HOSTILE not in page
    picture = written("q.svg")
    root = ET.fromstring(picture)
    assert "running when the observation ended" in root.findtext("{http://www.w3.org/2000/svg}title")
    assert written("r.svg") == picture


@pytest.mark.long
def test_a_page_that_is_shared_names_no_user_and_no_small_tenant():
    box = explore_dataset("sample", smallest_group=1000)
    parts = (
        inbox.render_quality_section(box.quality_report),
        *(part(box) for part in (inbox.render_ledger_section, inbox.render_demand_section, inbox.render_phase_section)),
    )
    page = "".join(part for part in (*parts, inbox.render_claim_section(box), inbox.render_provenance_section(box)))
    users, tenants = (load_dataset("sample").jobs[name].drop_nulls().unique() for name in ("user", "tenant"))
    assert "(small groups)" in page
    assert [name for name in (*users, *tenants) if re.search(rf"\b{name}\b", page)] == []
