"""Templates: measured from jobs, edited by people, applied to jobs that the simulator runs."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.cli.app import main
from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import load_gpu_model
from gpuplanner.phases import (
    Figure,
    Template,
    TemplatePhase,
    TemplateSpike,
    apply_template,
    demand_by_class,
    fit_phases,
    measure_template,
    phases_of_jobs,
    spikes_of_jobs,
    template_from_yaml,
    template_to_yaml,
)

BOARD = "H100-80GB-SXM5"


@pytest.fixture(scope="module")
def measured(training):
    """Phases and dips of four seeded training jobs."""
    samples = pl.concat(
        training(seed).with_columns(job_id=pl.lit(str(seed)), node=pl.lit(f"n{seed}"))
        for seed in (0, 5, 10, 15)
    )
    jobs = pl.DataFrame(
        {"job_id": ["0", "5", "10", "15"], "job_class": "pretraining", "gpus": [1.0, 1.0, 8.0, 8.0]}
    )
    return phases_of_jobs(samples, jobs), spikes_of_jobs(samples)


def test_demand_by_class_has_medians_quartiles_and_counts(measured):
    phases, _ = measured
    table = demand_by_class(phases)
    assert table["label"].to_list() == ["setup", "ramp", "steady", "decay"]
    assert table["jobs"].to_list() == [4] * 4
    for name in ("share", "sm_activity", "memory_peak_gib", "power_w", "gpus"):
        assert (table[f"{name}_q25"] <= table[name]).all()
        assert (table[name] <= table[f"{name}_q75"]).all()
    assert table.filter(label="steady")["gpus"][0] == 4.5
    assert phases.group_by("job_id").agg(pl.col("share").sum())["share"].to_list() == pytest.approx([1.0] * 4)


def test_measured_template_survives_the_file_and_keeps_edits_beside(measured):
    phases, spikes = measured
    template = measure_template(phases, "pretraining", spikes=spikes)
    text = template_to_yaml(template)
    assert template_from_yaml(text) == template
    was = template.phases[2].sm_activity
    line = next(line for line in text.splitlines() if "sm_activity" in line and str(was.measured) in line)
    edited = text.replace(line, line.replace("}", ', edited: 0.5, who: ana, why: "new kernels, 12 % less"}'))
    read = template_from_yaml(edited).phases[2].sm_activity
    assert read == Figure(was.measured, 0.5, "ana", "new kernels, 12 % less")
    assert read.value == 0.5
    assert template_from_yaml(template_to_yaml(template_from_yaml(edited))).phases[2].sm_activity == read


def test_a_class_without_measured_jobs_is_refused(measured):
    with pytest.raises(ScenarioError, match="there are classes \\['pretraining'\\]"):
        measure_template(measured[0], "inference")


PHASE = """job_class: tuning
phases:
  - name: steady
    share_of_time: {measured: 1.0}
    sm_activity: {measured: 0.4}
    memory_gib: {measured: 40}
    gpus: {measured: 1}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sm_activity", "sm_activty", r"line 5: .*Did you mean 'sm_activity'"),
        ("{measured: 0.4}", "{measured: 1.4}", "line 5: measured: expected sm_activity from 0 to 1; got 1.4"),
        ("{measured: 40}", "{edited: 40}", "line 6: memory_gib: expected who edited it and why"),
        ("{measured: 40}", "{edited: 40, who: ana}", "who edited it and why"),
        ("{measured: 40}", "{who: ana}", "a measured or an edited value"),
        ("{measured: 40}", "40 GiB", "memory_gib: expected keys measured"),
        ("    gpus: {measured: 1}\n", "", "gpus: expected a figure; got none"),
        ("{measured: 1}", "{measured: true}", "expected gpus from 0.001"),
        ("tuning", "[1]", "line 1: job_class: expected a name"),
        ("tuning", "!!python/object:os.system x", "plain data"),
        ("tuning", "tuning\njobs: -1", "line 2: jobs: expected a whole number"),
    ],
)
def test_what_is_wrong_in_a_template_is_named_with_its_line(old, new, said):
    assert template_from_yaml(PHASE).phases[0].memory_gib.value == 40.0
    with pytest.raises(ScenarioError, match=said):
        template_from_yaml(PHASE.replace(old, new, 1), where="t.yaml")


names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
figure = st.builds(
    Figure,
    st.one_of(st.none(), st.floats(0.001, 1.0)),
    st.floats(0.001, 1.0),
    names,
    names,
)
phase = st.builds(TemplatePhase, names, figure, figure, figure, figure)
spike = st.builds(TemplateSpike, names, figure, figure)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Template,
        names,
        st.integers(0, 99),
        st.lists(phase, min_size=1).map(tuple),
        st.lists(spike).map(tuple),
    )
)
def test_any_template_reads_back_as_it_was_written(template):
    assert template_from_yaml(template_to_yaml(template)) == template


def test_applied_phases_add_up_and_run_in_the_simulator(measured):
    template = measure_template(measured[0], "pretraining")
    jobs = pl.DataFrame({"job_id": ["a", "b"], "run_s": [7200.0, 600.0], "gpus": [1, 16]})
    rows = apply_template(template, jobs, BOARD)
    assert rows.group_by("job_id", maintain_order=True).agg(pl.col("run_s").sum())["run_s"].to_list() == [
        pytest.approx(7200.0),
        pytest.approx(600.0),
    ]
    assert rows.filter(job_id="b").select("profile", "gpus").unique().rows() == [("gpu", 16)]
    with pytest.raises(ScenarioError, match="run_s of job 'c'"):
        apply_template(template, pl.DataFrame({"job_id": ["c"], "run_s": [0.0]}), BOARD)


def test_fit_by_phase_never_needs_more_than_fit_by_job(measured):
    board = load_gpu_model(BOARD)
    fitted = fit_phases(measured[0], board)
    assert (fitted["saved_gpu_hours"] >= 0).all()
    assert fitted.filter(pl.col("gpus") > 1)["profile_phase"].unique().to_list() == ["gpu"]
    by_hand = sum(
        (board.share(row["profile_job"]) - board.share(row["profile_phase"])) * row["run_s"] / 3600
        for row in fitted.iter_rows(named=True)
    )
    assert fitted["saved_gpu_hours"].sum() == pytest.approx(by_hand)


def test_activity_of_an_instance_is_of_its_own_multiprocessors():
    phases = pl.DataFrame(
        {
            "job_id": "1",
            "gpus": 1.0,
            "profile": "3g.40gb",
            "run_s": 60.0,
            "sm_need": 0.5,
            "memory_peak_gib": 5.0,
        }
    ).head(1)
    assert fit_phases(phases, BOARD).select("sms_needed", "profile_phase").row(0) == (30.0, "2g.20gb")


@pytest.fixture
def run(capsys, monkeypatch):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuplanner", "phases", "sample", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return command


def test_the_command_prints_tables_a_job_and_a_template(run):
    code, out, _ = run("--json")
    tables = json.loads(out)
    assert code == 0
    assert {row["job_class"] for row in tables["demand by class and phase"]} >= {"pretraining", "inference"}
    assert len(tables["do late phases need fewer GPUs?"]) % 6 == 0
    code, out, _ = run("--job", "job-002875")
    assert code == 0
    assert "evaluation" in out
    assert "period_s  4440" in out
    code, out, _ = run("--template", "fine-tuning")
    assert template_from_yaml(out).job_class == "fine-tuning"
    assert run("--job", "nobody")[0] == 3
    assert run("--job", "job-002875", "--template", "fine-tuning")[0] == 2


def test_an_edited_template_says_what_a_job_of_ten_hours_does(run, tmp_path):
    """Half of the first phase is edited away: its share of the ten hours is halved over what is then the sum."""
    path = tmp_path / "mine.yaml"
    text = run("--template", "fine-tuning")[1]
    measured = [phase.share_of_time.value for phase in template_from_yaml(text).phases]
    first = measured[0] / 2
    edit = f"{{measured: {measured[0]}, edited: {first}, who: ana, why: warm cache}}"
    path.write_text(text.replace(f"share_of_time: {{measured: {measured[0]}}}", f"share_of_time: {edit}", 1))
    code, out, _ = run("--apply", str(path), "--run-hours", "10", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["phase"] for row in rows] == [phase.name for phase in template_from_yaml(text).phases]
    assert rows[0]["run_s"] == pytest.approx(36_000 * first / (first + sum(measured[1:])))
    assert sum(row["run_s"] for row in rows) == pytest.approx(36_000)
    held = json.loads(run("--apply", str(path), "--run-hours", "10", "--gpus", "4", "--json")[1])
    assert max(row["gpus"] for row in held) == 4
    assert "fine-tuning, 10 h on" in run("--apply", str(path), "--run-hours", "10")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--apply", "none.yaml", "--run-hours", "1"), 3, "readable UTF-8"),
        (("--apply", "none.yaml"), 2, "go together"),
        (("--gpus", "2"), 2, "go together"),
        (("--apply", "none.yaml", "--run-hours", "0"), 2, "run-hours"),
    ],
)
def test_templates_that_cannot_be_applied(run, arguments, code, said):
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, "")
    assert said in err
