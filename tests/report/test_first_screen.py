"""The first screen: every figure has one value, on page, notebook and JSON, and there always is a decision."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser

import polars as pl
import pytest

from gpuplanner.files import to_json
from gpuplanner.inbox import Dataset, write_dataset
from gpuplanner.report import figures
from gpuplanner.report.first_screen import badge, first_screen
from gpuplanner.report.fleet import fleet_picture
from gpuplanner.report.page import render_page, section
from gpuplanner.report.ways import decided, ways
from gpuplanner.scenario import Scenario
from gpuplanner.study import load_trace
from gpuplanner.study.decision.record import Comparison, comparison
from gpuplanner.study.decision.sentences import unknown_decision
from gpuplanner.study.decision.types import (
    ClassService,
    LayoutOnNodes,
    Missing,
    RunOut,
    RunOutSide,
    Saving,
    Service,
    Shortage,
    TeamRow,
    Worth,
)
from gpuplanner.units import NO_FIGURE

FORMS = {
    "saving": figures.count, "left_out_share": figures.per_cent, "gpus_hold_rate": figures.per_cent,
    "service.quantile": figures.share_of_jobs, "service.added_minutes": figures.minutes,
    "service.longest_minutes": figures.minutes, "limit_minutes": figures.minutes,
    "service.later_share": figures.of_hundred, "run_out_chance": figures.of_hundred,
    "run_out.today.date": figures.day, "run_out.recommended.date": figures.day,
    "worth.usd_per_week": figures.money,
}  # fmt: skip
"""The form of each figure that is not a count."""
START = datetime(2026, 5, 4, tzinfo=UTC)


def test_warnings_come_before_every_figure():
    one = unknown_decision(Scenario(), "no job states when it ran")
    told = [
        {"what": "habana.ai/gaudi is not read", "count": 20, "gpu_hours": None},
        {"what": "jobs <left> out", "count": 3, "gpu_hours": 1234.5},
    ]
    page = first_screen(one, warnings=told)
    assert page.startswith(
        '<div class="decision"><ul class="warnings"><li>20: habana.ai/gaudi is not read</li>'
    )
    assert "<li>3 (1,234.5 GPU-hours): jobs &lt;left&gt; out</li>" in page
    assert "warnings" not in first_screen(one)


class Figures(HTMLParser):
    """Figures with their names, in order; and the text without them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: tuple[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "data":
            self._open = (dict(attrs)["data-of"], dict(attrs)["value"])

    def handle_endtag(self, tag):
        if tag == "data":
            self._open = None

    def handle_data(self, data):
        if self._open is None:
            self.text.append(data)
        else:
            self.found.append((*self._open, data))


def form_of(name):
    if name.startswith(figures.OF_ALL):
        return figures.per_cent
    return FORMS.get(name, figures.count)


def thin_trace(folder) -> str:
    """Three days of a dozen jobs on whole GPUs of nodes that nobody lists."""
    template = load_trace("sample").jobs.filter(pl.col("gpus") == 1).head(1)
    rows = []
    for number in range(36):
        begin = START + timedelta(hours=2 * number)
        rows.append(
            template.with_columns(
                job_id=pl.lit(f"j{number}"),
                tenant=pl.lit("ab"[number % 2]),
                submit_time=pl.lit(begin, pl.Datetime("us", "UTC")),
                start_time=pl.lit(begin + timedelta(minutes=1), pl.Datetime("us", "UTC")),
                end_time=pl.lit(begin + timedelta(hours=3), pl.Datetime("us", "UTC")),
            )
        )
    trace = load_trace("sample")
    told = {
        **trace.provenance,
        "span_start": START.isoformat(),
        "span_end": (START + timedelta(days=3)).isoformat(),
    }
    write_dataset(Dataset({"jobs": pl.concat(rows)}, trace.rejects, trace.quality, told), folder / "thin")
    return str(folder / "thin")


@pytest.fixture(scope="module", params=["sample", "thin"])
def found(request, tmp_path_factory) -> Comparison:
    data = "sample" if request.param == "sample" else thin_trace(tmp_path_factory.mktemp("thin"))
    return comparison(Scenario(data=data, policies="static_whole,whole_on_off"))


def planted() -> Comparison:
    """A decision in which every part of the screen has something to say."""
    one = unknown_decision(Scenario(), "nothing")
    weeks = tuple((f"2027-{month:02d}-01", chance) for month, chance in ((1, 0.2), (2, 0.6), (3, 0.9)))
    one = dataclasses.replace(
        one, sentence="Keep 12 of your 16 GPUs on.", action="give_back", fleet_gpus=16, gpus=12, gpus_mean=9.4,
        layouts=(LayoutOnNodes("whole", 8, ("n1",)), LayoutOnNodes("4g.40gb:1,3g.40gb:1", 4, ("n2",))),
        policy="node_pools", confidence="held-back weeks", board="H100-80GB-SXM5", gpus_hold_rate=0.93,
        shortage=Shortage(77.0, 14, 3, 2), saving=Saving(1108.0, 900.0, 1300.0),
        worth=Worth("owned", 12.5, "Electricity.", 121.0), left_out_share=0.31,
        service=Service(0.95, 133.0, (ClassService("1 GPU", 30, 2.0, 6.0, 12.0),), 0.12, 411.0, 1),
        run_out=RunOut(RunOutSide("2027-02-01", weeks), RunOutSide("2027-03-01", weeks)),
        monday=("cut n2", "look again: gpuplanner start x"), missing=(Missing("nodes", "gpuplanner ingest nodes N"),),
        teams=(TeamRow("a", 55.0, None, 3), TeamRow("nobody", 45.0, 45.0, 0)), how_sure=("Judged on 14 days.",),
        assumptions=("path slurm",),
    )  # fmt: skip
    return Comparison(one, 0.95, 10.0)


def checked(one, html):
    """Every figure in markup is the decision's own, in its one form; returns their names."""
    told = Figures(html).found
    assert told
    for name, value, text in told:
        expected = figures.value_of(one, name)
        assert value == ("" if expected is None else str(expected)), name
        assert text == (NO_FIGURE if expected is None else form_of(name)(expected)), name
    return {name for name, _, _ in told}


def test_every_figure_of_the_screen_is_the_decisions(found):
    one = found.decision
    names = checked(one, first_screen(one, period="May"))
    assert {"gpus", "fleet_gpus", "horizon_days", "service.quantile", "all_held"} <= names
    assert (one.saving.value is None) == ("saving.value" not in names)


def test_no_figure_stands_outside_of_the_decision(found):
    for each in (found.decision, planted().decision):
        screen = first_screen(each)
        cards = screen.split("</dl>")[0]
        table = re.search(r'<table class="teams">.*?</table>', screen, re.DOTALL)
        short = re.search(r'<p class="short">.*?</p>', screen, re.DOTALL)
        for part in (cards, table and table[0], short and short[0]):
            text = " ".join(Figures(part or "").text).replace("9 weeks of 10", "")
            # Reasons and names are the decision's own words.
            known = [each.saving.reason, each.run_out.today.reason, *(row.team for row in each.teams)]
            for words in filter(lambda word: re.search(r"\d", word or ""), known):
                text = text.replace(words, "").replace(words.capitalize(), "")
            assert not re.search(
                r"\d", re.sub(r"see command \d|\d+ more teams|by \d+ \w+ \d{4}", "", text)
            ), text


def test_a_screen_shows_all_that_it_has_to_say():
    one = planted().decision
    names = checked(one, first_screen(one))
    assert {
        "saving.value", "saving.low", "saving.high", "worth.kwh_per_week", "worth.usd_per_week", "service.later_share",
        "service.longest_minutes", "service.never_started", "service.added_minutes", "limit_minutes", "shortage.jobs",
        "shortage.gpu_hours", "shortage.by_place", "shortage.gpus_needed", "run_out.today.date",
        "run_out.recommended.date", "resting_gpus", "layouts.0.gpus", "layouts.1.gpus", "teams.0.held_gpu_hours",
    } <= names  # fmt: skip
    screen = first_screen(one)
    for words in ("2.22 h", "6.85 h", "14", "1 Feb 2027", "1 Mar 2027",
                  "gpuplanner ingest nodes N", "Judged on 14 days",
                  "path slurm", "By team", "nobody", "On Monday", "4g.40gb + 3g.40gb"):  # fmt: skip
        assert words in unescape(re.sub(r"<[^>]*>", "", screen)), words
    assert screen.count('class="gpu whole"') == 8
    assert screen.count('class="gpu rests"') == 4
    assert screen.count('class="slice g4"') == screen.count('class="slice g3"') == 4


def test_there_is_a_screen_where_nothing_can_be_decided():
    one = unknown_decision(Scenario(), "no job states when it ran")
    page = render_page(section("The decision", first_screen(one)), title="T", subtitle="S", provenance={},
                       decision=figures.headline(one), badge=badge(one))  # fmt: skip
    assert "Nothing can be decided yet: no job states when it ran." in page
    assert "gpuplanner ingest auto JOBS -o sample" in page
    assert page.count("not known") == 2
    assert "No way could be played." in ways(Comparison(one, 0.95, 0.0))


def test_data_are_not_good_where_no_telemetry_was_matched_to_jobs():
    for gpu_hours, text in ((None, "Data good"), (12.0, "Data good"), (0.0, "No telemetry matched to jobs")):
        one = dataclasses.replace(
            planted().decision, left_out_share=0.0, telemetry_matched_gpu_hours=gpu_hours
        )
        words, warns = badge(one)
        assert words.startswith(text)
        assert warns is (gpu_hours == 0.0)


def test_json_and_page_have_the_same_values(found):
    """What JSON holds is what each figure on the page carries, to the digit."""
    told = json.loads(to_json(found.to_dict()))["decision"]
    told["saving"] = told.pop("saving_gpu_hours_per_week")
    for name, value, _ in Figures(decided(found)).found:
        if name in figures.DERIVED or name.startswith(figures.OF_ALL):
            continue
        place = told
        for part in name.split("."):
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert value == ("" if place is None else str(place)), name


def test_hostile_names_stay_text():
    evil = "<script>alert(1)</script>"
    one = dataclasses.replace(
        planted().decision, teams=(TeamRow(evil, 1.0, None, 1),), how_sure=(evil,), assumptions=(evil,),
        monday=(evil,), missing=(Missing(evil, evil),), layouts=(LayoutOnNodes("whole", 12, (evil,)),), board=evil,
    )  # fmt: skip
    assert "<script>alert" not in first_screen(one, period=evil, doubts=[evil], links=[(evil, evil)])


@pytest.mark.parametrize("gpus", [1, 63, 65, 1016, 30_000])
def test_fleets_of_any_size_are_drawn_within_reason(gpus):
    one = dataclasses.replace(
        planted().decision, fleet_gpus=gpus, gpus=gpus, layouts=(LayoutOnNodes("whole", gpus),)
    )
    drawn = fleet_picture(one).count('class="gpu')
    assert 1 <= drawn <= 64


def test_a_notebook_shows_the_screen_with_its_looks(found):
    shown = decided(found)._repr_mimebundle_()["text/html"]
    assert shown.startswith("<style>")
    assert ".fleet" in shown.split("</style>")[0]
    assert checked(found.decision, shown)
