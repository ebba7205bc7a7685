"""Classes by rules: on the sample by days, on real job names, and what never happens to a given class."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import sample_generator

from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.usage.job_classes import JOB_CLASSES, classify_jobs, job_facts, shipped_rules
from gpuplanner.usage.planning_history import load_dataset

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)
HALF = date(2026, 2, 15)


@pytest.fixture(scope="module")
def trace():
    return load_dataset("sample")


def by_rules(jobs: pl.DataFrame, samples: pl.DataFrame | None = None) -> pl.DataFrame:
    """What rules name where the source's classes are hidden, beside these classes."""
    hidden = jobs.with_columns(job_class=pl.lit(None, pl.String))
    return classify_jobs(hidden, samples=samples).with_columns(given=jobs["job_class"])


def accuracy(named: pl.DataFrame) -> tuple[float, float]:
    """Share of the jobs that rules decide, and share of these that the source names alike."""
    decided = named.drop_nulls("job_class")
    return decided.height / named.height, (decided["job_class"] == decided["given"]).mean()


@pytest.fixture(scope="module")
def halves(trace):
    named = by_rules(trace.jobs, trace.samples)
    early = trace.jobs["submit_time"].dt.date() < HALF
    return named.filter(early), named.filter(~early)


def test_accuracy_on_the_sample_holds_on_days_apart(halves):
    for part in halves:
        assert part.height > 5000
        coverage, right = accuracy(part)
        assert right > 0.95
        assert coverage > 0.80
        # The commonest class alone would be right in seven of ten.
        commonest = part["given"].value_counts()["count"].max() / part.height
        assert coverage * right > commonest + 0.05 > 0.70
        decided = part.drop_nulls("job_class")
        recall = decided.group_by("given").agg(share=(pl.col("job_class") == pl.col("given")).mean())
        assert set(recall["given"]) == set(JOB_CLASSES)
        assert recall["share"].min() > 0.85


def test_a_given_class_stands_and_needs_no_rule(trace):
    wrong = trace.jobs.with_columns(job_class=pl.lit("pretraining"))
    found = classify_jobs(wrong)
    assert (found["job_class"] == "pretraining").all()
    assert (found["class_source"] == "source").all()
    assert found["rule"].is_null().all()
    foreign = classify_jobs(trace.jobs.with_columns(job_class=pl.lit("mllm")))
    assert (foreign["job_class"] == "mllm").all()


def test_rules_name_the_jobs_that_the_source_does_not(trace):
    some = pl.int_range(pl.len()) % 2 == 0
    jobs = trace.jobs.with_columns(job_class=pl.when(some).then("job_class"))
    found = classify_jobs(jobs, samples=trace.samples)
    hidden = by_rules(trace.jobs, trace.samples)
    named = found.filter(class_source="rule")
    assert named.height > 4000
    # The rules never look at the class: they say the same with and without those of the source.
    assert named["rule"].equals(hidden.filter(found["class_source"] == "rule")["rule"])
    assert found["job_class"].gather_every(2).equals(trace.jobs["job_class"].gather_every(2))


def test_facts_by_hand():
    jobs = pl.DataFrame(
        {
            "job_id": ["1", "2", "3", "4"],
            "attempt": 1,
            "tenant": "t",
            "user": ["u", "u", "u", None],
            "state": "COMPLETED",
            "gpus": 1.0,
            "submit_time": [NINE, NINE, NINE + timedelta(hours=14), NINE],
            "start_time": NINE + timedelta(hours=15),
            "end_time": NINE + timedelta(hours=16),
            "sm_activity": [0.5, None, None, None],
        }
    )
    minutes = [0.1, 0.3, 0.9]
    samples = pl.DataFrame(
        {
            "time": [NINE + timedelta(hours=15, minutes=number) for number in range(2)] + [NINE],
            "node": "n",
            "gpu": 0,
            "job_id": "2",
            "sm_activity": minutes,
            "activity_source": "profiling",
        }
    )
    facts = job_facts(jobs, samples, tz="Europe/Oslo")
    assert facts["hour"].to_list() == [10, 10, 0, 10]
    assert facts["weekday"].to_list() == [1, 1, 2, 1]
    assert facts["repeats"].to_list() == [2, 2, 1, None]  # the third was sent after midnight in Oslo
    assert facts["run_s"].to_list() == [3600.0] * 4
    assert facts["wait_s"].to_list() == [54000.0, 54000.0, 3600.0, 54000.0]
    # The sample before the start is not of the job: mean 0.2, standard deviation 0.1414.
    assert facts["sm_activity"].to_list() == [0.5, pytest.approx(0.2), None, None]
    assert facts["activity_spread"].to_list() == [None, pytest.approx(0.02**0.5), None, None]


def test_work_without_a_gpu_gets_no_class():
    jobs = pl.DataFrame(
        {"job_id": ["1", "2"], "attempt": 1, "tenant": "t", "state": "PENDING", "submit_time": NINE,
         "gpus": [0.0, None], "job_name": "jupyter"}
    )  # fmt: skip
    assert classify_jobs(jobs)["job_class"].to_list() == [None, "interactive"]


@pytest.mark.data
def test_fox_has_nothing_to_decide_by_but_names(public_data: Path):
    jobs = read_slurm([public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo").jobs
    assert classify_jobs(jobs.drop("job_name", "partition"))["job_class"].is_null().all()
    named = classify_jobs(jobs)
    by = dict(named.group_by("job_class").len().iter_rows())
    transcribing = jobs.filter(pl.col("job_name").str.ends_with("transcription-job")).height
    assert by["inference"] == transcribing == 43
    assert named.filter(job_class="interactive")["facts"].str.contains("OOD|interactive|tunnel").all()
    assert set(by) <= {"inference", "interactive", "evaluation", None}


def test_rules_before_the_run_do_not_look_at_its_outcome(trace):
    rules = [rule for rule in shipped_rules() if rule.before_run]
    named = trace.jobs.with_columns(job_name=pl.lit("eval"), job_class=pl.lit(None, pl.String))
    outcome = ["start_time", "end_time", "sm_activity", "memory_peak_gib"]
    blind = named.with_columns(pl.lit(None, named.schema[name]).alias(name) for name in outcome)
    assert classify_jobs(named, rules)["job_class"].equals(classify_jobs(blind, rules)["job_class"])


@pytest.mark.parametrize(
    "change",
    [
        {"run_median_s": lambda kind: 2 * kind.run_median_s},
        {"run_median_s": lambda kind: kind.run_median_s / 2},
        {"duty": lambda kind: (0.7 * kind.duty[0], 0.7 * kind.duty[1])},
        {"jobs_per_day": lambda _: 40.0},
    ],
    ids=["longer", "shorter", "less used", "equal numbers"],
)
def test_rules_hold_on_fleets_that_they_were_not_made_on(change, monkeypatch):
    """Other seeds and settings than the sample's; benchmarks/classes.py prints these and more, with confusion."""
    kinds = tuple(
        replace(kind, **{name: value(kind) for name, value in change.items()}) for kind in sample_generator.JOB_CLASSES
    )
    monkeypatch.setattr(sample_generator, "JOB_CLASSES", kinds)
    requests = sample_generator.make_requests(start=NINE, days=7, seed=910)
    ran = requests.with_columns(
        start_time=pl.col("submit_time"),
        end_time=pl.col("submit_time") + pl.duration(seconds=pl.col("run_s")),
        gpu_model=pl.lit(sample_generator.BOARD),
    )
    coverage, right = accuracy(by_rules(ran))
    assert right >= 0.88
    assert coverage >= 0.75


def test_the_ending_of_a_script_is_no_session():
    names = ["submit.bash", "run_matlab.sh", "bash", "OOD Shell", "notebook.py", "eval.sbatch"]
    jobs = pl.DataFrame({"job_id": names, "attempt": 1, "tenant": "t", "state": "PENDING", "submit_time": NINE})
    found = classify_jobs(jobs.with_columns(job_name=pl.col("job_id")))["job_class"].to_list()
    assert found == [None, "interactive", "interactive", "interactive", "interactive", "evaluation"]
