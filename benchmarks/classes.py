"""How often the shipped rules name the class of a job, where they were not made.

Run ``python benchmarks/classes.py``: fleets of the generator of the sample under other settings, which were written
down before any rule was tried on them, with the classes confused; with ``--data FOLDER`` (or ``GPUPLANNER_DATA``)
public traces of which the classes can be known.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import polars as pl

from gpuplanner.ingest.public.job_lists import DLRM_TRACE
from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.usage.job_classes import JOB_CLASSES, classify_jobs

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import sample_generator

SETTINGS = {
    "other seed": {},
    "runs twice as long": {"run_median_s": lambda kind: 2 * kind.run_median_s},
    "runs half as long": {"run_median_s": lambda kind: kind.run_median_s / 2},
    "run times spread wider": {"run_sigma": lambda kind: 1.5 * kind.run_sigma},
    "GPUs used less": {"duty": lambda kind: (0.7 * kind.duty[0], 0.7 * kind.duty[1])},
    "equal numbers of jobs": {"jobs_per_day": lambda _: 60.0},
    "larger gangs": {"gpus": lambda kind: {2 * n if n > 1 else n: share for n, share in kind.gpus.items()}},
}
START = datetime(2026, 6, 1, tzinfo=UTC)


def fleet(changes, seed, days=10):
    """Jobs that start at once, of classes changed as said, and samples of every fortieth longer one."""
    kinds = tuple(
        replace(kind, **{name: value(kind) for name, value in changes.items()}) for kind in sample_generator.JOB_CLASSES
    )
    with mock.patch.object(sample_generator, "JOB_CLASSES", kinds):
        requests = sample_generator.make_requests(start=START, days=days, seed=seed)
    jobs = requests.with_columns(
        start_time=pl.col("submit_time"),
        end_time=pl.col("submit_time") + pl.duration(seconds=pl.col("run_s")),
        gpu_model=pl.lit(sample_generator.BOARD),
    )
    long = jobs.filter(pl.col("sm_activity").is_not_null() & pl.col("run_s").is_between(2400, 172_800))
    watched = long.gather_every(40).with_columns(node=pl.lit("n1"), gpu=pl.int_range(pl.len()) % 8)
    return jobs, sample_generator.make_samples(watched, seed=seed)


def named_by_rules(jobs, samples=None):
    """Class of each job by rules alone: ``given`` by the source, ``by_rule`` and its ``facts``."""
    blind = jobs.with_columns(job_class=pl.lit(None, pl.String))
    found = classify_jobs(blind, samples=samples).select("facts", by_rule="job_class")
    given = jobs["job_class"] if "job_class" in jobs.columns else pl.lit(None, pl.String)
    return found.with_columns(given=given)


def confusion(named):
    """Jobs by the class that the source gives and the one that rules give, ``unknown`` where none holds."""
    by_rule = pl.col("by_rule").fill_null("unknown")
    columns = [(by_rule == name).sum().alias(name) for name in (*JOB_CLASSES, "unknown")]
    return named.group_by("given").agg(columns).sort(pl.col("given").cast(pl.Enum(JOB_CLASSES)))


def made():
    """Accuracy and confusion on fleets under other settings."""
    print(f"{'setting':<26}{'jobs':>7}{'coverage':>10}{'of decided':>12}{'of all':>8}{'commonest':>11}")
    tables = {}
    for name, changes in SETTINGS.items():
        jobs, samples = fleet(changes, seed=77)
        named = named_by_rules(jobs, samples)
        tables[name] = confusion(named)
        decided = named.drop_nulls("by_rule")
        right = (decided["given"] == decided["by_rule"]).sum()
        commonest = named["given"].value_counts()["count"].max()
        print(
            f"{name:<26}{named.height:>7}{decided.height / named.height:>10.3f}{right / decided.height:>12.3f}"
            f"{right / named.height:>8.3f}{commonest / named.height:>11.3f}"
        )
    print(f"\nconfused, all settings\n{'given':<14}" + "".join(f"{name:>14}" for name in (*JOB_CLASSES, "unknown")))
    counts = pl.concat(tables.values()).group_by("given", maintain_order=True).sum()
    for given, *row in counts.iter_rows():
        print(f"{given:<14}" + "".join(f"{count:>14}" for count in row))


def public(folder):
    """Public traces: what their class must be, and what the rules say."""
    print("\npublic traces")
    served = DLRM_TRACE([folder / "alibaba_gpu_v2025" / "disaggregated_DLRM_trace.csv.gz"]).jobs
    decided = named_by_rules(served)["by_rule"].count()
    print(f"DLRM 2025, all inference: rules decide {decided} of {served.height}")
    fox = named_by_rules(read_slurm([folder / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo").jobs)
    print(f"Fox, by names: {dict(fox.drop_nulls('by_rule').group_by('by_rule').len().sort('by_rule').iter_rows())}")
    hpc = read_slurm([folder / "slurm" / "sacct_phillips_2016.log.gz"], tz="America/New_York").jobs
    chemistry = pl.read_csv(folder / "slurm" / "sacct_short_ood.txt", separator="|", infer_schema=False)
    columns = {"job_id": "JobID", "job_name": "JobName"}
    others = chemistry.select(**columns, attempt=1, tenant=pl.lit("t"), state=pl.lit("PENDING"), submit_time=START)
    for name, jobs in (("HPC of 2016", hpc), ("chemistry", others)):
        # Names alone, as if nothing were known of GPUs: every class is a false one.
        found = named_by_rules(jobs.with_columns(gpus=pl.lit(None, pl.Float64)))
        wrong = found.drop_nulls("by_rule")["facts"].value_counts(sort=True).rows()
        print(f"{name}, none of the classes: {sum(count for _, count in wrong)} of {jobs.height} named: {wrong[:5]}")


def main():
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GPUPLANNER_DATA"), help="folder of the public traces")
    given = parser.parse_args()
    made()
    if given.data is not None and Path(given.data).is_dir():
        public(Path(given.data))


if __name__ == "__main__":
    main()
