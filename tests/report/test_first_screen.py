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

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import to_json
from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT, gpu_figure_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    PolicyRow,
    format_policies_within_limit,
    make_policy_table,
    make_wait_table,
    study_comparison,
)
from gpuplanner.decision.decision_text import format_resampled_waits, make_empty_decision
from gpuplanner.decision.decision_types import (
    CurvePoint,
    Exhaustion,
    FinancialImpact,
    Headroom,
    JobSizeWaits,
    LayoutOnNodes,
    Measure,
    MissingEvidence,
    NextStep,
    Saving,
    TeamRow,
)
from gpuplanner.decision.explained_waits import CauseHours, WaitCauses, WaitSummary
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.report import number_formats_and_glossary as figures
from gpuplanner.report.first_screen import list_badges, make_cards, render_first_screen
from gpuplanner.report.fleet_drawing import draw_fleet
from gpuplanner.report.html_page import render_page, section
from gpuplanner.report.metric_formulas import layout_table
from gpuplanner.report.policy_and_team_sections import render_policy_section, render_wait_section
from gpuplanner.usage.planning_history import load_dataset
from tests.clusters import planted as clusters

FORMS = {
    "saving": figures.format_count, "left_out_share": figures.format_share,
    "exhaustion.date": figures.format_day, "exhaustion.order_by": figures.format_day,
    "exhaustion.probability": figures.format_share,
    "headroom.factor": figures.format_share,
    "busy_as_recommended": figures.format_share, "delayed_share": figures.format_share,
    "months_left": str, "waiting": figures.format_count, "use_known_share": figures.format_share,
    "headroom_share": figures.format_share, "gpus_mean": gpu_figure_text,
}  # fmt: skip
"""The form of each figure that is not a count."""
START = datetime(2026, 5, 4, tzinfo=UTC)


def test_warnings_come_before_every_figure():
    one = nothing()
    told = [
        {"what": "habana.ai/gaudi is not read", "count": 20, "gpu_hours": None},
        {"what": "jobs <left> out", "count": 3, "gpu_hours": 1234.5},
    ]
    page = render_first_screen(one, warnings=told)
    assert page.startswith('<div class="decision"><ul class="warnings"><li>habana.ai/gaudi is not read [20 rows]</li>')
    assert "<li>jobs &lt;left&gt; out [3 rows, 1,234.5 GPU-hours]</li>" in page
    assert "warnings" not in render_first_screen(one)


def nothing() -> Comparison:
    return Comparison(make_empty_decision(Scenario(), "no job states when it ran"), 10.0)


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
    if name.startswith(figures.SHARE_PREFIX):
        return figures.format_share
    if name.endswith("_mean_minutes"):
        return figures.format_mean_wait
    if name.endswith("_minutes"):
        return figures.format_wait
    if name.startswith("waiting."):
        return figures.format_whole_percent
    return FORMS.get(name, figures.format_count)


def thin_trace(folder) -> str:
    """Three days of a dozen jobs on full GPUs of nodes that are in no list."""
    template = load_dataset("sample").jobs.filter(pl.col("gpus") == 1).head(1)
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
    trace = load_dataset("sample")
    told = {**trace.provenance, "span_start": START.isoformat(), "span_end": (START + timedelta(days=3)).isoformat()}
    write_dataset(Dataset({"jobs": pl.concat(rows)}, trace.rejects, trace.quality, told), folder / "thin")
    return str(folder / "thin")


def large_cluster(folder) -> str:
    """A cluster with more GPUs than its jobs need."""
    files = clusters.planted("too_large-1").cluster.files()
    for name, text in files.items():
        (folder / name).write_text(text)
    nodes = folder / "nodes.txt" if "nodes.txt" in files else None
    write_dataset(read_slurm([folder / "sacct.txt"], tz="UTC", nodes=nodes), folder / "data")
    return str(folder / "data")


@pytest.fixture(scope="module", params=["large", "thin"])
def found(request, tmp_path_factory) -> Comparison:
    folder = tmp_path_factory.mktemp(request.param)
    data = large_cluster(folder) if request.param == "large" else thin_trace(folder)
    return study_comparison(Scenario(data=data, policies="fewer_nodes,power_down_idle", actuator="slurm"))


def planted() -> Comparison:
    """A decision in which every part of the screen has something to say."""
    one = make_empty_decision(Scenario(), "nothing")
    one = dataclasses.replace(
        one, sentence="Release 4 of 16 GPUs.", action="release",
        measures=(Measure("release", "Release 4 GPUs", 12),), reason=None, fleet_gpus=16, gpus=12,
        gpus_mean=9.4,
        layouts=(LayoutOnNodes("full", 8, ("n1",)), LayoutOnNodes("4g.40gb:1,3g.40gb:1", 4, ("n2",))),
        policy="autoscaled_pools", gpu_model="H100-80GB-SXM5", saving=Saving(1108.0, 900.0, 1300.0),
        financial_impact=FinancialImpact("owned", 12.5, "Electricity.", 121.0), left_out_share=0.31,
        service=(JobSizeWaits("1 GPU", 30, 2.0, 3.0, 4.0, 1.0, 9.0, 1.0, 2.0, 3, 12.0, 1.0, 8.0),
                 JobSizeWaits("2-4 GPUs", 12, 500.0, 411.0, 20.0, 9.0, 28.0, 60.0, 3.0, 1, 30.0, 300.0, 500.0)),
        next_steps=(NextStep("platform team", "drain n2", "kubectl drain n2"), NextStep("planner", "check again")),
        missing=(MissingEvidence("nodes", "gpuplanner ingest nodes N"),),
        teams=(TeamRow("a", 55.0, 5.0, 3, 50.0, 200.0, 12.0), TeamRow("__unallocated__", 45.0, 45.0, 0, 0.0)),
        confidence=("Evaluated on 14 days.",),
        assumptions=("actuator slurm (--actuator)",), today_mean_minutes=200.0, recommended_mean_minutes=12.0,
    )  # fmt: skip
    curve = tuple(
        CurvePoint("today", gpus, size, wait, wait / 2, wait * 2, wait / 3, 0.5, 168.0 * gpus)
        for gpus, wait in ((8, 900.0), (12, 20.0), (16, 3.0))
        for size in ("1 GPU", "2-4 GPUs")
    )
    ends = Exhaustion("2027-02-01", 0.83, "2026-11-03")
    hours = CauseHours("2-4 GPUs", 12, 30.0, 7.0, 20.0, 1.0, 1.0, 0.5, 0.5)
    waits = WaitSummary(WaitCauses((hours,), (hours,), (hours,)), 0.94, 0.1, ())
    return Comparison(
        one, 10.0, wait_curve=curve, headroom=Headroom(1.26, 1.1, 1.4), exhaustion=ends, waits=waits,
        evaluated_to="2026-10-01T00:00:00+00:00",
    )  # fmt: skip


def checked(found, html):
    """Every figure in markup is the comparison's own, in its one form; returns their names."""
    told = Figures(html).found
    assert told
    for name, value, text in told:
        expected = value_of(found, name)
        assert value == ("" if expected is None else str(expected)), name
        if name.startswith(figures.SHARE_PREFIX) and expected is not None:  # the table has tenths of a percent
            assert text in (figures.format_share(expected), figures.format_tenth_percent(expected)), name
        else:
            assert text == (MISSING_VALUE_TEXT if expected is None else form_of(name)(expected)), name
    return {name for name, _, _ in told}


def value_of(found: Comparison, name: str):
    beside = name.split(".")[0] in (
        "headroom", "headroom_share", "exhaustion", "waiting", "months_left", "months_left_today",
    )  # fmt: skip
    return figures.metric_value(found if beside else found.decision, name)


def test_every_figure_of_the_screen_is_the_comparisons(found):
    names = checked(found, render_first_screen(found, period="May"))
    assert "all_allocated" in names
    if found.decision.action != "none":
        assert {"gpus", "fleet_gpus"} <= names
    assert (found.decision.saving.value is None) == ("saving.value" not in names)
    assert (found.decision.action == "none") == (found.decision.saving.value is None)


def test_no_figure_stands_outside_of_the_comparison(found):
    for each in (found, planted()):
        one = each.decision
        screen = render_first_screen(each)
        cards = screen.split("</dl>")[0]
        table = re.search(r'<table class="teams">.*?</table>', screen, re.DOTALL)
        for part in (cards, table and table[0]):
            text = " ".join(Figures(part or "").text).replace("p95", "")
            text = re.sub(r"[89]0 % interval", "", text)
            # Reasons and names are the comparison's own words.
            known = [one.reason, one.saving.reason, each.exhaustion.reason,
                     one.longest_waiting and one.longest_waiting.size, each.waits and each.waits.main_cause_text,
                     *(row.team for row in one.teams), *(size.size for size in one.service)]  # fmt: skip
            for words in filter(lambda word: re.search(r"\d", word or ""), known):
                text = text.replace(words, "").replace(words[:1].upper() + words[1:], "")
            assert not re.search(r"\d", re.sub(r"\d+ other teams", "", text)), text


def test_a_screen_shows_all_that_it_has_to_say():
    found = planted()
    screen = render_first_screen(found)
    names = checked(found, screen)
    assert {
        "saving.value", "saving.low", "saving.high", "delayed_share", "share of teams_allocated", "share of all_busy",
        "busy_as_recommended", "months_left", "waiting", "waiting.fragmented", "teams.0.today_mean_minutes",
        "service.1.today_p95_minutes", "service.1.recommended_p95_minutes", "service.1.observed_p95_minutes",
        "service.1.limit_minutes", "exhaustion.date", "exhaustion.order_by", "exhaustion.probability",
        "headroom_share",
        "released_gpus", "layouts.0.gpus", "layouts.1.gpus", "teams.0.allocated_gpu_hours",
    } <= names  # fmt: skip
    for words in ("6.8 h → 20 min", "16 → 12", "1 Feb 2027", "3 Nov 2026", "Queue wait by number of GPUs",
                  "gpuplanner ingest nodes N", "Evaluated on 14 days", "kubectl drain n2", "Platform team:",
                  "actuator slurm (--actuator)", "By team", "Unallocated", "Total", "Next steps",
                  "4g.40gb + 3g.40gb",
                  "8 full + 4 partitioned + 4 released = 16 GPUs", "fragmented 67 %", "limit 30 min"):  # fmt: skip
        assert words in unescape(re.sub(r"<[^>]*>", "", screen)), words
    assert screen.count('class="gpu full"') == 8
    assert screen.count('class="gpu released"') == 4
    assert screen.count('class="slice g4"') == screen.count('class="slice g3"') == 4


def test_the_headroom_card_states_what_the_recommended_gpus_carry():
    found = planted()
    none = dataclasses.replace(found, exhaustion=Exhaustion(reason="no growth is measurable"))
    for headroom, words in (
        (Headroom(1.26, 1.1, 1.4), "headroom 26 %"),
        (Headroom(1.0, 0.93, 1.03), "no headroom"),
        (Headroom(0.61, 0.6, 0.7), "wait target met at 61 % of today's load"),
    ):
        screen = render_first_screen(dataclasses.replace(none, headroom=headroom))
        text = " ".join(unescape(re.sub(r"<[^>]*>", " ", screen)).split())
        assert words in text.replace(" )", ")"), text
        assert "can grow" not in text
        assert ("no growth is measurable" in text) == (headroom.factor >= 1.0)  # the target missed needs no date


def test_a_purchase_is_a_row_beside_the_policies_that_only_keep_to_the_added_wait():
    one, hours = dataclasses.replace(planted().decision, gpus=24, actuator="slurm"), {"gpu_hours": 168.0}
    idle = PolicyRow("power_down_idle", "", **hours, meets_target=True)
    bought = PolicyRow("buy", "", peak_gpus=24, meets_target=True)
    policies = (idle, PolicyRow("fewer_nodes", ""), PolicyRow("mig_dynamic", "", performable=False), bought)
    found = dataclasses.replace(planted(), decision=one, today=PolicyRow("today", "", **hours), policies=policies)
    kept = (
        "1 of 2 policies that slurm can apply keeps to the maximum added wait of 10 min in the recorded weeks "
        "(power down idle nodes)"
    )
    assert format_policies_within_limit(found) == f"{kept}; it does not bring p95 on 2-4 GPUs within the wait limit"
    table = make_policy_table(found).select("policy", "gpu_hours", "peak_gpus", "meets_target").rows()
    assert table[0] == ("today", 168.0, None, None)
    assert table[-1] == ("buy", None, 24, True)
    assert found.recommended_policy == "buy"
    rows = re.search(r"<caption>Policies:.*?</table>", render_policy_section(found), re.DOTALL)[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', rows)[0] == "more GPUs"  # the recommended one comes first


def test_a_wait_outside_the_resampled_ones_has_no_interval():
    size = dataclasses.replace(planted().decision.service[0], today_p95_minutes=90.0, today_low=10.0, today_high=60.0)
    found = dataclasses.replace(planted(), decision=dataclasses.replace(planted().decision, service=(size,)))
    text = unescape(re.sub(r"<[^>]*>", " ", str(render_wait_section(found))))
    assert f"at random, and wait otherwise: {size.size} today 90 min (resampled 10 min to 60 min)" in text
    assert make_wait_table(found).select("today_low", "today_high", "low").row(0) == (None, None, size.low)
    inside = dataclasses.replace(size, today_high=90.0)
    found = dataclasses.replace(found, decision=dataclasses.replace(found.decision, service=(inside,)))
    assert "No interval" not in render_wait_section(found)
    assert make_wait_table(found)["today_high"].to_list() == [90.0]


def test_gpus_to_buy_stand_apart_from_the_nodes_of_today():
    layouts = (
        LayoutOnNodes("full", 16, ("n1", "n2")),
        LayoutOnNodes("full", 8, by_node=(4, 4, 0), to_buy=True, new_nodes=2),
        LayoutOnNodes("3g.40gb:2", 4, by_node=(0, 0, 4), to_buy=True, new_nodes=1),
    )
    one = dataclasses.replace(planted().decision, gpus=28, layouts=layouts, measures=(Measure("buy", "Buy", 28),))
    picture = draw_fleet(one)
    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", picture)).split())
    assert "16 full + 12 to buy = 28 GPUs." in text
    assert "8 full GPUs (MIG disabled) to buy, on 2 new nodes" in text
    assert "4 partitioned as 2 × 3g.40gb to buy, on 1 new node" in text
    assert picture.count('class="gpu full"') == 16
    assert picture.count('class="gpu released"') == 12
    rows = [("full", 8, "to buy, on 2 new nodes"), ("3g.40gb:2", 4, "to buy, on 1 new node")]
    assert layout_table(one).rows() == [("full", 16, "n1, n2"), *rows]
    assert one.nodes_to_buy == {("gpu",) * 4: 2, ("3g.40gb:2",) * 4: 1}


def test_there_is_a_screen_where_nothing_can_be_decided():
    found = nothing()
    one = found.decision
    page = render_page(section("Recommendation", render_first_screen(found)), title="T", subtitle="S", provenance={},
                       decision=one.sentence, badges=list_badges(one))  # fmt: skip
    assert "No recommendation: no job states when it ran." in page
    assert "gpuplanner ingest auto JOBS -o sample" in page
    assert page.count(f'<dd class="value">{MISSING_VALUE_TEXT}</dd>') == 4
    assert "No policy could be simulated." in render_policy_section(found)


def test_data_are_not_good_where_no_telemetry_was_matched_to_jobs():
    for gpu_hours, text in (
        (None, "Data quality: good"),
        (12.0, "Data quality: good"),
        (0.0, "Data quality: no telemetry matched to jobs"),
    ):  # fmt: skip:
        one = dataclasses.replace(planted().decision, left_out_share=0.0, telemetry_matched_gpu_hours=gpu_hours)
        words, warns = list_badges(one)[-1]
        assert words.startswith(text)
        assert warns is (gpu_hours == 0.0)


def test_json_and_page_have_the_same_values(found):
    """What JSON holds is what each figure on the page carries, to the digit."""
    whole = json.loads(to_json(found.to_dict()))
    told = whole["decision"] | {name: whole[name] for name in ("headroom", "exhaustion")}
    told["saving"] = told.pop("saving_gpu_hours_per_week")
    for name, value, _ in Figures(render_first_screen(found)).found:
        if name in {*figures.DECISION_METRICS, *figures.COMPARISON_METRICS} or name.startswith(figures.SHARE_PREFIX):
            continue
        place = told
        for part in name.split("."):
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert value == ("" if place is None else str(place)), name


def test_hostile_names_stay_text():
    evil = "<script>alert(1)</script>"
    found = planted()
    one = dataclasses.replace(
        found.decision, teams=(TeamRow(evil, 1.0, None, 1),), confidence=(evil,), assumptions=(evil,),
        next_steps=(NextStep(evil, evil, evil),), missing=(MissingEvidence(evil, evil),), gpu_model=evil,
        layouts=(LayoutOnNodes("full", 12, (evil,)),),
        service=(dataclasses.replace(found.decision.service[0], size=evil),),
    )  # fmt: skip
    curve = tuple(dataclasses.replace(point, job_size=evil) for point in found.wait_curve)
    shown = render_first_screen(
        dataclasses.replace(found, decision=one, wait_curve=curve), period=evil, doubts=[evil], links=[(evil, evil)]
    )
    assert "<script>alert" not in shown


@pytest.mark.parametrize("gpus", [1, 63, 65, 1016, 30_000])
def test_fleets_of_any_size_are_drawn_within_reason(gpus):
    one = dataclasses.replace(planted().decision, fleet_gpus=gpus, gpus=gpus, layouts=(LayoutOnNodes("full", gpus),))
    drawn = draw_fleet(one).count('class="gpu')
    assert 1 <= drawn <= 64


def test_a_notebook_shows_the_screen_with_its_looks(found):
    shown = section("Recommendation", render_first_screen(found))._repr_mimebundle_()["text/html"]
    assert shown.startswith("<style>")
    assert ".fleet" in shown.split("</style>")[0]
    assert checked(found, shown)


@pytest.mark.parametrize(
    ("today_high", "cause"),
    [(81.0, "the change leaves these jobs no reserve"), (1500.0, "above the limit today as well")],
)
def test_waits_of_resampled_weeks_stand_beside_those_of_today(today_high, cause):
    size = JobSizeWaits("1 GPU", 900, 0.0, 0.0, 0.0, 510.0, 1410.0, 0.0, 0.0, 0, 10.0, 11.0, today_high)
    decision = dataclasses.replace(make_empty_decision(Scenario(), "nothing"), service=(size,))
    assert size.misses_if_resampled
    assert size.rises_if_resampled == (today_high < 510)
    risk = format_resampled_waits(decision)
    assert risk.startswith("Risk: in resampled weeks, p95 queue wait on 1 GPU 8.5 to 23.5 h (today 11 ")
    assert cause in risk
    card = " ".join(make_cards(dataclasses.replace(planted(), decision=decision))[0])
    assert "wait limit met" not in card  # nothing was recommended
    kept = dataclasses.replace(decision, action="keep")
    card = " ".join(make_cards(dataclasses.replace(planted(), decision=kept))[0])
    assert f"missed in resampled weeks on 1 GPU{'' if size.rises_if_resampled else ' (today too)'}" in card
    met = dataclasses.replace(size, low=0.0, high=9.0)
    assert not format_resampled_waits(dataclasses.replace(decision, service=(met,)))


def test_no_recommendation_states_no_figure_that_depends_on_one():
    one = dataclasses.replace(
        planted().decision, action="none", measures=(), reason="why", policy="today", saving=Saving(None, reason="r")
    )
    idle = PolicyRow("power_down_idle", "", gpu_hours=100.0, meets_target=True)
    today = PolicyRow("today", "", gpu_hours=168.0)
    found = dataclasses.replace(planted(), decision=one, headroom=None, today=today, policies=(idle,))
    screen = unescape(re.sub(r"<[^>]*>", "", render_first_screen(found)))
    assert "actuator slurm" not in screen
    assert "headroom" not in screen
    assert format_policies_within_limit(found).endswith("none is recommended, for the reason in the headline")
    assert "Added wait and jobs delayed of the recommended policy" not in str(render_policy_section(found))


def test_months_that_are_not_known_are_words():
    found = dataclasses.replace(
        planted(), headroom=None, exhaustion=Exhaustion(reason="3 whole weeks since the first job ended, 6 needed")
    )
    screen = unescape(re.sub(r"<[^>]*>", "", render_first_screen(found)))
    assert "exhaustednot knowntoday over limit: 2-4 GPUs" in screen
    assert "wait limit met in the recorded period after the change" in screen
    missed = dataclasses.replace(found, headroom=Headroom(0.8, 0.7, 0.9))
    assert make_cards(missed)[3][1] == "target missed"


def test_jobs_without_waits_are_counted_beside_the_tables_of_waits():
    found = planted()
    teams = (dataclasses.replace(found.decision.teams[0], jobs=51), *found.decision.teams[1:])
    found = dataclasses.replace(found, decision=dataclasses.replace(found.decision, teams=teams))
    assert "Waits are those of 42 of 51 jobs" in str(
        render_policy_section(dataclasses.replace(found, today=PolicyRow("today", "", gpu_hours=168.0)))
    )
