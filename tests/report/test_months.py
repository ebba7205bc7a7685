"""A chain of months: every step once, whatever stops a run, and the same bytes as of one that nothing stopped."""

from __future__ import annotations

import dataclasses
import email
import json
import random
import re
import shutil
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from email.policy import default

import polars as pl
import pytest
import yaml

from gpuplanner.core.errors import GpuPlannerError, MissingDependencyError, OutputError, ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import MANIFEST, FolderMark
from gpuplanner.core.output_writing import lock_for_writing, replace_directory, write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision import recommendation as decide
from gpuplanner.decision.decision_text import NO_TELEMETRY_TEXT, make_empty_decision
from gpuplanner.decision.decision_types import Decision, MissingEvidence, TeamRow
from gpuplanner.decision.savings_track_record import LEDGER_SCHEMA
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.report import monthly_report_chain as room
from gpuplanner.report.month_records import read_chain
from gpuplanner.report.monthly_report_chain import report_months
from gpuplanner.usage.rightsizing import GPU_HOURS_NOTE
from tests.decision.recurring.small_fleets import SmallFleet

MISSING_ON_MIG = f"{NO_TELEMETRY_TEXT}; nvidia-smi has none with MIG: add DCGM_FI_PROF_GR_ENGINE_ACTIVE"
SIX = [f"2026-{number:02d}" for number in range(1, 7)]
MARK = FolderMark(MANIFEST, "gpuplanner report 1", names=("index.html",))


class KilledError(BaseException):
    """The process ends here: nothing that catches errors may notice."""


@dataclass(frozen=True)
class Walked:
    """What the chain asks of a study."""

    scenario: Scenario
    decision: Decision
    findings: tuple[str, ...] = ("Half the time went to <waiting>.", "Nobody asks too much.", "Keep the fleet.")
    plan: None = None

    def to_json(self):
        return self.decision.sentence


class Works:
    """Stands for the walk and the report, which take minutes: counts them, and fails or ends when it is told to."""

    def __init__(self):
        self.done = Counter()
        self.fails = {}
        self.moments, self.ends_at = 0, None
        self.more = ""

    def moment(self):
        self.moments += 1
        if self.moments == self.ends_at:
            raise KilledError

    def evaluate(self, scenario):
        self.moment()
        self.done[scenario.month, "study"] += 1
        sentence = f"Keep the fleet in {scenario.month}."
        teams = (
            TeamRow("a/../b", 100.0, 10.0 + int(scenario.month[-2:]), 3, 88.0 - int(scenario.month[-2:])),
            TeamRow("c", 50.0, None, 2),
        )
        decision = make_empty_decision(scenario, "nobody asked")
        missing = (*decision.missing, MissingEvidence(MISSING_ON_MIG, "gpuplanner ingest prometheus"))
        return Walked(scenario, dataclasses.replace(decision, sentence=sentence, teams=teams, missing=missing))

    def write_report(self, scenario, out, *, inputs, ledger):
        self.done[scenario.month, "report"] += 1
        if failure := self.fails.pop(scenario.month, None):
            raise failure
        rows = pl.DataFrame(
            {key: [None] for key in LEDGER_SCHEMA} | {"unique_id": [scenario.month]}, schema=LEDGER_SCHEMA
        )
        before = [pl.read_parquet(ledger)] if ledger.exists() else []
        self.moment()
        with replace_directory(out, mark=MARK) as folder:
            self.moment()
            (folder / "index.html").write_text(
                f"{scenario.month} after {len(before) and before[0].height}\n{self.more}"
            )
        self.moment()
        write_atomically(ledger, lambda place: pl.concat([*before, rows]).write_parquet(place), protect_foreign=False)
        self.moment()


@pytest.fixture(scope="module")
def half_year(tmp_path_factory):
    fleet = SmallFleet(11, weeks=26, nodes=1, gpus_per_node=4, load=0.3, begin=datetime(2026, 1, 1, tzinfo=UTC))
    return fleet.write(tmp_path_factory.mktemp("half") / "trace")


@pytest.fixture
def works(monkeypatch):
    made = Works()
    monkeypatch.setattr(room, "evaluate", made.evaluate)
    monkeypatch.setattr(room, "write_report", made.write_report)
    write = room._write_text

    def writing(place, text):
        made.moment()
        write(place, text)
        made.moment()

    monkeypatch.setattr(room, "_write_text", writing)
    return made


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    }  # fmt: skip


def run(half_year, months, out, **how):
    told = []
    chain = report_months(Scenario(data=str(half_year)), months, out, report_progress=told.append, **how)
    return chain, told


@pytest.mark.parametrize("most", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_chain_that_is_killed_equals_one_that_is_not(half_year, works, tmp_path, most):
    run(half_year, SIX, tmp_path / "whole")
    moments, rng = works.moments, random.Random(1)
    assert set(works.done.values()) == {1}
    kills, again = 0, []
    while kills < most:
        works.moments, works.ends_at = 0, rng.randrange(1, moments // 2)
        try:
            run(half_year, SIX, tmp_path / "killed", remake=again)
        except KilledError:
            kills, again = kills + 1, []
        else:  # done before that moment came: begin anew somewhere in the middle
            again = [rng.choice(SIX)]
    works.ends_at = None
    run(half_year, SIX, tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_backfill_equals_month_by_month(half_year, works, tmp_path):
    run(half_year, SIX, tmp_path / "at once")
    for month in SIX:
        run(half_year, [month], tmp_path / "one by one")
    run(half_year, SIX[3:], tmp_path / "later first")
    chain, _ = run(half_year, SIX[:3], tmp_path / "later first")
    assert [one.month for one in chain.months] == SIX
    assert files(tmp_path / "at once") == files(tmp_path / "one by one") == files(tmp_path / "later first")
    assert pl.read_parquet(tmp_path / "at once/ledgers/2026-06.parquet")["unique_id"].to_list() == SIX


def test_a_failed_step_goes_on_without_the_earlier_ones(half_year, works, tmp_path):
    works.fails["2026-03"] = GpuPlannerError("cell 4: no")
    with pytest.raises(GpuPlannerError, match="cell 4"):
        run(half_year, SIX, tmp_path)
    failed = read_chain(tmp_path).months[-1]
    assert (failed.month, failed.steps[-1].state, failed.steps[-1].error) == ("2026-03", "failed", "cell 4: no")
    assert not (tmp_path / "ledgers/2026-03.parquet").exists()
    run(half_year, SIX, tmp_path)
    assert {month: works.done[month, "report"] for month in SIX} == dict.fromkeys(SIX, 1) | {"2026-03": 2}
    studies = {month: works.done[month, "study"] for month in SIX}
    assert studies == dict.fromkeys(SIX, 1) | {"2026-03": 2}  # read again from the disk for teams and mail
    assert all(one.is_complete for one in read_chain(tmp_path).months)


def test_a_month_without_data_is_said_and_gone_on_with(half_year, works, tmp_path):
    chain, told = run(half_year, ["2025-12", "2026-01"], tmp_path)
    assert [one.steps[-1].state for one in chain.months] == ["no data", "done"]
    assert any("2025-12: no job was submitted" in one for one in told)
    assert chain.months[1].before is None


def test_data_that_change_during_the_run_are_noticed(half_year, works, tmp_path, monkeypatch):
    whole = open_dataset(half_year)
    write_dataset(whole, tmp_path / "trace")
    report = works.write_report

    def meanwhile(scenario, out, **how):
        report(scenario, out, **how)
        if works.done["2026-01", "report"] == 1:
            write_dataset(whole.with_tables(jobs=whole.jobs.head(900)), tmp_path / "trace")

    monkeypatch.setattr(room, "write_report", meanwhile)
    with pytest.raises(ScenarioError, match="changed data"):
        run(tmp_path / "trace", ["2026-01"], tmp_path / "out")
    assert read_chain(tmp_path / "out").months[0].steps == ()
    chain, _ = run(tmp_path / "trace", ["2026-01"], tmp_path / "out")
    assert chain.months[0].is_complete
    assert works.done["2026-01", "report"] == 2


def test_what_stands_says_what_changed_since(half_year, works, tmp_path, monkeypatch):
    run(half_year, SIX[:2], tmp_path)
    monkeypatch.setattr(room, "__version__", "99.0")
    chain, told = run(half_year, SIX[:3], tmp_path)
    assert "2026-01: up to date, made by version" in told[0]
    assert "--again 2026-01" in told[0]
    assert [one.gpuplanner == "99.0" for one in chain.months] == [False, False, True]
    _, told = run(half_year, SIX[:3], tmp_path, remake=["2026-02"])
    assert works.done["2026-02", "report"] == 2
    assert works.done["2026-03", "report"] == 1  # the month handed on what it had handed on before


def test_jobs_that_came_behind_a_month_are_no_news_to_it(half_year, works, tmp_path):
    whole, cut = open_dataset(half_year), datetime(2026, 3, 1, tzinfo=UTC)
    by_then = (pl.when(pl.col(name) <= cut).then(name) for name in ("start_time", "end_time"))
    early = whole.with_tables(jobs=whole.jobs.filter(pl.col("submit_time") < cut).with_columns(*by_then))
    span = whole.provenance | {"span_end": cut.isoformat()}
    write_dataset(dataclasses.replace(early, provenance=span), tmp_path / "trace")
    run(tmp_path / "trace", SIX[:2], tmp_path / "out")
    write_dataset(whole, tmp_path / "trace")
    _, told = run(tmp_path / "trace", SIX[:3], tmp_path / "out")
    assert told[:2] == ["2026-01: up to date", "2026-02: up to date"]
    write_dataset(whole.with_tables(jobs=whole.jobs.tail(-200)), tmp_path / "trace")
    _, told = run(tmp_path / "trace", SIX[:3], tmp_path / "out")
    assert (
        "2026-01: up to date, made from other jobs than the present data; add --again 2026-01 to make it again" in told
    )
    assert set(works.done.values()) == {1}


def test_a_chain_of_another_form_is_left_as_it_is(half_year, works, tmp_path):
    (tmp_path / "chain.json").write_text('{"format": "gpuplanner.chain/0", "months": []}')
    before = files(tmp_path)
    with pytest.raises(ScenarioError, match=r"chain/1.*chain/0"):
        run(half_year, SIX[:1], tmp_path)
    assert files(tmp_path) == before
    assert not works.done


def places(value, at=()):
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inside:
        yield from places(one, (*at, name))


def changed(value, at, other):
    if not at:
        return other
    copied = value.copy()
    copied[at[0]] = changed(value[at[0]], at[1:], other)
    return copied


def test_a_record_that_nobody_wrote_who_keeps_it_is_refused_or_read_as_it_is(half_year, works, tmp_path):
    chain, _ = run(half_year, SIX[:2], tmp_path)
    place = tmp_path / "chain.json"
    value, refused = json.loads(place.read_text()), []
    strange = [True, -1, 1e308, "", "../../etc/passwd", "\x00", [], {}, [1], {"a": 1}, "2026-13", "NaN", None]
    for at in places(value):
        for other in strange:
            place.write_text(json.dumps(changed(value, at, other)))
            try:
                read = read_chain(tmp_path)
            except ScenarioError as error:
                refused.append(str(error))
            else:
                assert "<html" in room.render_chain_page(read, tmp_path, Scenario().number_locale)
                assert [one.month for one in read.months] in (SIX[:2], [], ["2026-01"], ["2026-02"])
    assert len(refused) > 500
    assert all("nothing was changed" in said or "Mend the file" in said for said in refused)
    for text in ("", "{", "null", "NaN", "{}", "{" * 10_000, '{"format": 1, "format": 2}'):
        place.write_text(text)
        with pytest.raises(ScenarioError):
            read_chain(tmp_path)
    place.write_text(chain.to_json())
    assert read_chain(tmp_path) == chain


def test_a_month_of_no_jobs_in_the_middle_hands_on_what_was_before(half_year, works, tmp_path):
    whole = open_dataset(half_year)
    february = (pl.col("submit_time").dt.month() == 2).or_(pl.col("start_time").dt.month() == 2)
    write_dataset(whole.with_tables(jobs=whole.jobs.remove(february)), tmp_path / "trace")
    chain, told = run(tmp_path / "trace", SIX[:3], tmp_path / "out")
    assert [one.has_data for one in chain.months] == [True, False, True]
    assert any("2026-02: no job was submitted" in one for one in told)
    ledger = pl.read_parquet(tmp_path / "out/ledgers/2026-03.parquet")
    assert ledger["unique_id"].to_list() == ["2026-01", "2026-03"]
    write_dataset(whole, tmp_path / "trace")  # the month comes late: it is made up, and what came behind it anew
    chain, _ = run(tmp_path / "trace", SIX[:3], tmp_path / "out")
    assert all(one.has_data for one in chain.months)
    ledger = pl.read_parquet(tmp_path / "out/ledgers/2026-03.parquet")
    assert ledger["unique_id"].to_list() == SIX[:3]


def test_an_output_that_is_gone_is_made_again_alone(half_year, works, tmp_path):
    run(half_year, SIX[:2], tmp_path)
    before = files(tmp_path)
    (tmp_path / "mail/2026-01.eml").unlink()
    run(half_year, SIX[:2], tmp_path)
    assert files(tmp_path) == before
    assert works.done["2026-01", "report"] == 1


@pytest.mark.parametrize("gone", ["2026-01/index.html", "teams/2026-01/scorecard.csv"])
def test_a_month_whose_page_is_gone_is_made_again(half_year, works, tmp_path, gone):
    run(half_year, SIX[:2], tmp_path)
    before = files(tmp_path)
    (tmp_path / gone).unlink()
    _, told = run(half_year, SIX[:2], tmp_path)
    assert files(tmp_path) == before
    assert "2026-01: up to date" not in told
    assert "2026-02: up to date" in told


def test_a_month_whose_page_somebody_changed_does_not_stand(half_year, works, tmp_path):
    run(half_year, SIX[:1], tmp_path)
    (tmp_path / "2026-01/index.html").write_text("changed by hand")
    with pytest.raises(OutputError, match=r"'index\.html', changed since"):
        run(half_year, SIX[:1], tmp_path)
    assert (tmp_path / "2026-01/index.html").read_text() == "changed by hand"


def test_two_runs_at_once(half_year, works, tmp_path):
    with lock_for_writing(tmp_path / "out"):
        held = {}

        def second():
            try:
                run(half_year, SIX[:1], tmp_path / "out")
            except OutputError as error:
                held["told"] = str(error)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "another run" in held["told"]
    assert not works.done


def test_a_full_disk_stops_cleanly_and_the_next_run_goes_on(half_year, works, tmp_path, monkeypatch):
    works.fails["2026-02"] = OutputError("cannot write: no space left on device")
    with pytest.raises(OutputError, match="no space left"):
        run(half_year, SIX[:2], tmp_path)
    chain, _ = run(half_year, SIX[:2], tmp_path)
    assert all(one.is_complete for one in chain.months)
    assert works.done["2026-01", "report"] == 1


def test_a_missing_library_leaves_one_part_out(half_year, works, tmp_path):
    works.fails["2026-01"] = MissingDependencyError("papermill is missing")
    chain, told = run(half_year, SIX[:1], tmp_path)
    assert [one.state for one in chain.months[0].steps] == ["done", "done", "left out", "done", "done"]
    assert any("report is skipped" in one for one in told)
    chain, _ = run(half_year, SIX[:1], tmp_path)
    assert chain.months[0].is_complete


def test_names_of_teams_become_no_paths_and_cards_tell_of_one_team(half_year, works, tmp_path):
    run(half_year, SIX[:2], tmp_path)
    cards = sorted((tmp_path / "teams/2026-02/cards").iterdir())
    assert [one.name for one in cards] == ["001-a-b.txt", "002-c.txt"]
    first, second = (one.read_text() for one in cards)
    # 12 idle of 12 + 86 GPU-hours with known use, after 11 of 98. Job records state use, too, without any telemetry.
    assert "Allocated but idle: 12 GPU-hours, 12.2 % of those with known use, +1.0 points on the month" in first
    assert first.splitlines()[-1].startswith("gpuplanner rightsize ")
    assert first.splitlines()[-1].endswith(" --team=a/../b --format pod")
    assert "Rank 1 of 2 teams" in first
    assert all(GPU_HOURS_NOTE in card.splitlines() for card in (first, second))
    assert "no telemetry" in second
    # What the page says of missing telemetry, from the same object; only where the team has none.
    assert f"\n{MISSING_ON_MIG}.\n" in second
    assert MISSING_ON_MIG not in first
    assert "nobody asked" not in second
    assert "a/../b" not in second


def test_the_mail_is_whole_and_loads_nothing(half_year, works, tmp_path):
    run(half_year, SIX[:1], tmp_path)
    mail = email.message_from_bytes((tmp_path / "mail/2026-01.eml").read_bytes(), policy=default)
    text, html = (mail.get_body((kind,)).get_content() for kind in ("plain", "html"))
    assert mail["Subject"].startswith("GPU report 2026-01")
    assert "1. Half the time went to <waiting>." in text
    assert "Half the time went to &lt;waiting&gt;." in html
    assert "<script" not in html
    assert "http" not in html
    assert "2026-01/index.html in the report folder" in text
    served = Scenario(data=str(half_year), report_url="https://gpu.example/reports/?a=1&b=2")
    report_months(served, SIX[:1], tmp_path / "served", report_progress=lambda _: None)
    mail = email.message_from_bytes((tmp_path / "served/mail/2026-01.eml").read_bytes(), policy=default)
    address = "https://gpu.example/reports/?a=1&amp;b=2/2026-01/index.html"
    assert f'<a href="{address}">{address}</a>' in mail.get_body(("html",)).get_content()
    for wrong in ("javascript:alert(1)", "https://a b", 'https://a"onclick="', "ftp://a"):
        with pytest.raises(ScenarioError, match="report_url"):
            Scenario(report_url=wrong)


def test_the_overview_leads_to_what_is_there_and_says_which_nodes_came(half_year, works, tmp_path):
    moved = tmp_path / "trace"
    shutil.copytree(half_year, moved)
    data = open_dataset(moved)
    more = pl.DataFrame({"node": ["<b>n9"], "gpu_model": data.inventory["gpu_model"][:1], "gpus": [4],
                         "installed": [datetime(2026, 2, 10, tzinfo=UTC)]})  # fmt: skip
    schema = data.inventory.schema
    grown = pl.concat([data.inventory, more.cast({name: schema[name] for name in more.columns})], how="diagonal")
    write_dataset(data.with_tables(inventory=grown), moved)
    works.fails["2026-03"] = OutputError("the disk is <full>")
    with pytest.raises(OutputError):
        run(moved, SIX[:3], tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text()
    assert '<th scope="row"><a href="2026-02/index.html">2026-02</a></th>' in page
    for link in re.findall(r'<a href="([^#"]*)"', page):
        assert (tmp_path / "out" / link).is_file()
    assert "2026-02: The fleet changed: &lt;b&gt;n9 came (+4 GPUs): 8 GPUs, 4 before." in page
    assert "2026-01: The fleet" not in page
    assert "the disk is &lt;full&gt;" in page
    assert "inferred" not in page
    assert ">+0<" not in page, "months that promised nothing are no rows"
    assert "<script" not in page
    assert "default-src 'none'" in page
    mail = email.message_from_bytes((tmp_path / "out/mail/2026-02.eml").read_bytes(), policy=default)
    assert "4. The fleet changed: <b>n9 came" in mail.get_body(("plain",)).get_content()


def test_jobs_of_a_team_are_those_of_the_month_that_its_hours_are_of(half_year):
    asked = Scenario(data=str(half_year), month="2026-03")
    (begin, end), jobs = asked.month_span(), open_dataset(half_year).jobs
    there = jobs.filter(pl.col("submit_time") < end, pl.col("end_time").is_null() | (pl.col("end_time") > begin))
    counted = {row.team: row.jobs for row in decide.team_rows(asked) if row.jobs}
    assert counted == dict(there.group_by("tenant").len().iter_rows())


def test_a_schedule_asks_for_every_whole_month(half_year, works, command, tmp_path, monkeypatch):
    """Two dots are a range, not the folder above."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("report", "..", "--data", str(half_year), "-o", str(tmp_path / "out"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:-1]] == SIX
    code, out, _ = command("report", "..2026-02", "--data", str(half_year), "-o", str(tmp_path / "out"), "--json")
    assert [one["month"] for one in json.loads(out)["months"]] == SIX
    code, _, err = command("report", "2026-08..", "--data", str(half_year), "-o", str(tmp_path / "later"))
    assert (code, "no month of the data is complete yet" in err) == (0, True)
    assert not (tmp_path / "later").exists()
    code, _, err = command("report", "../nowhere")
    assert (code, "or the folder or scenario to report on" in err) == (3, True)


@pytest.mark.parametrize(("report", "check", "code"), [(0, 0, 0), (0, 1, 1), (3, 0, 3), (7, 1, 1), (0, 0, 4)])
def test_a_schedule_runs_the_gate_whatever_became_of_the_report(command, tmp_path, report, check, code):
    program = tmp_path / "program"
    fails = code == 4  # a file that cannot be imported stops the job: old data would pass
    program.write_text(
        f'#!/bin/sh\necho "$1"\n[ "$1" = ingest ] && exit {4 * fails}\n'
        f'[ "$1" = report ] && exit {report}\nexit {check}\n'
    )
    program.chmod(0o755)
    (tmp_path / "new").mkdir()
    for name in ("jobs.txt", "nodes.txt"):
        (tmp_path / "new" / name).write_text("")
    options = ("--program", str(program), "--read", f"{tmp_path}/new/*")
    job = yaml.safe_load(command("schedule", "kubernetes", *options)[1])
    line = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    ran = "ingest\n" if fails else "ingest\ningest\nreport\ncheck\n"
    assert (done.returncode, done.stdout) == (1 if fails else code, ran)


def test_schedules_are_what_their_programs_take(command, tmp_path):
    service, timer = command("schedule", "systemd", "--program", "/bin/echo")[1].split("\n\n# /etc")
    units = [tmp_path / "gpuplanner.service", tmp_path / "gpuplanner.timer"]
    for unit, text in zip(units, (service, "# /etc" + timer), strict=True):
        unit.write_text(text)
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    steps = yaml.safe_load(command("schedule", "ci")[1])["jobs"]["check"]["steps"]
    assert [one.get("if") for one in steps] == [None, None, "always()", "failure()"]
    job = yaml.safe_load(command("schedule", "kubernetes")[1])
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize("kind", ["cron", "systemd", "ci", "kubernetes"])
def test_schedules_quote_what_they_are_given(kind, command):
    code, out, _ = command("schedule", kind, "--data", "/data/50% of 'us'", "--at", "23:05")
    assert code == 0
    assert re.search("@[A-Z]+@", out) is None
    assert {"cron": "5 23 * * *", "systemd": "23:05:00 UTC", "ci": '"5 23 * * *"', "kubernetes": '"5 23 * * *"'}[
        kind
    ] in out
    assert command("schedule", kind, "--data", "a\nb")[0] == 2


def test_a_chain_that_a_call_at_the_edge_of_the_calendar_has_spoilt_is_read(works, half_year, tmp_path):
    """Such a call recorded a month without a step; later calls ended on it."""
    chain = report_months(Scenario(data=str(half_year)), ["2026-01"], tmp_path, report_progress=lambda _: None)
    values = json.loads((tmp_path / "chain.json").read_text())
    spoilt = values["months"][0] | {"month": "9999-12", "steps": []}
    (tmp_path / "chain.json").write_text(json.dumps(values | {"months": [*values["months"], spoilt]}))
    assert read_chain(tmp_path) == chain
    assert report_months(Scenario(data=str(half_year)), ["2026-01"], tmp_path, report_progress=lambda _: None) == chain
    assert "9999-12" not in (tmp_path / "index.html").read_text()


def test_the_link_of_a_mail_leads_to_a_page_that_is_there(works, half_year, tmp_path):
    works.fails["2026-01"] = MissingDependencyError("papermill is missing")
    scenario = Scenario(data=str(half_year), report_url="https://reports.example")
    report_months(scenario, ["2026-01"], tmp_path, report_progress=lambda _: None)
    assert not (tmp_path / "2026-01").exists()
    assert "https://reports.example/index.html" in (tmp_path / "mail" / "2026-01.eml").read_text()
