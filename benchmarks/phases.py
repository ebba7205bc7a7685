"""How well phases, dips and their pace are found, and what it costs.

Run ``python benchmarks/phases.py``: seeded jobs whose truth is known, those on which the detector was tuned
(:mod:`phase_jobs.synthetic_jobs`) and those of another generator
(:mod:`phase_jobs.held_out_jobs`), the verdicts on the claim about late phases under known effects,
and CPU seconds by length of job.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from datetime import timedelta

import numpy as np
import polars as pl
from phase_jobs.held_out_jobs import GROUPS, make_held_out
from phase_jobs.score import Score, score_changes, tolerance
from phase_jobs.synthetic_jobs import make_job

from gpuplanner.usage.demand_by_phase_and_late_demand_test import LATE_DEMAND_VERDICTS, judge_late_demand
from gpuplanner.usage.job_phases import find_phases
from gpuplanner.usage.utilization_dips import find_dips, find_paces

NEAR = timedelta(minutes=3)


def changes(title, jobs):
    """Precision, recall and Hausdorff distance of the phases, and the pace of dips, by shape or group."""
    scores, strict, distances = defaultdict(Score), Score(), defaultdict(list)
    paces, alarms = defaultdict(list), defaultdict(list)
    for job in jobs:
        length = job.samples["time"][-1] - job.samples["time"][0]
        found = find_phases(job.samples)["start"][1:].to_list()
        score = score_changes(found, job.changes, tolerance(length))
        strict += score_changes(found, job.changes, timedelta(minutes=2))
        right, alarm = pace_found(job)
        for name in (job.shape, "all"):
            scores[name] += score
            distances[name] += [] if score.hausdorff is None else [score.hausdorff.total_seconds()]
            paces[name] += [] if right is None else [right]
            alarms[name] += [] if alarm is None else [alarm]
    scores["all"] = scores.pop("all")
    print(
        f"\n{title}\n{'':<20}{'changes':>8}{'found':>7}{'precision':>11}{'recall':>8}"
        f"{'Hausdorff, s: median':>22}{'p99':>7}{'pace in 5 %':>13}{'of':>5}{'false':>7}{'of':>5}"
    )
    for name, score in scores.items():
        median, p99 = np.quantile(distances[name], (0.5, 0.99)) if distances[name] else (np.nan, np.nan)
        share = f"{np.mean(paces[name]):.3f}" if paces[name] else "-"
        print(
            f"{name:<20}{score.true:>8}{score.found:>7}{score.precision:>11.3f}{score.recall:>8.3f}{median:>22.0f}"
            f"{p99:>7.0f}{share:>13}{len(paces[name]):>5}{sum(alarms[name]):>7}{len(alarms[name]):>5}"
        )
    print(f"within 2 minutes whatever the length: {strict.precision:.3f}, {strict.recall:.3f}")


def pace_found(job):
    """Whether the pace is within 5 % (None without one), and whether one was found where there is none."""
    if job.samples["sm_activity"].count() == 0:
        return None, None
    period = find_dips(job.samples).period
    if job.period is not None:
        return period is not None and abs(period / job.period - 1) <= 0.05, None
    no_pace = job.shape == "dips at random" or job.spikes.height < 3
    return None, (period is not None) if no_pace else None


def dips(jobs):
    """Dips found, their labels, and paces of dips that have none."""
    labels = Counter()
    for job in jobs:
        spikes = find_dips(job.samples)
        for start, label in job.spikes.select("start", "label").iter_rows():
            near = spikes.table.filter((pl.col("start") - start).abs() <= NEAR)
            labels[label, near["label"][0] if near.height else "not found"] += 1
        for start, label in spikes.table.select("start", "label").iter_rows():
            if not job.spikes.height or (job.spikes["start"] - start).abs().min() > NEAR:
                labels["(none)", label] += 1
    print("\ndips: truth, looks like, how many")
    for (truth, found), count in sorted(labels.items()):
        print(f"{truth:<18}{found:<18}{count:>6}")


def alarms():
    """How often events at random seem to have a pace, by their number, with and without kinds."""
    rng = np.random.default_rng(77)
    seen = defaultdict(list)
    for _ in range(1200):
        n = int(rng.integers(3, 16))
        times_s, kind = np.sort(rng.uniform(0, 86_400, n)), rng.random(n) < rng.random()
        seen["3 to 5" if n < 6 else "6 to 10" if n < 11 else "11 to 15"].append(
            bool(find_paces(times_s, (kind, ~kind), grain_s=15))
        )
    print("\npace found among events at random: " + "; ".join(f"{n} {np.mean(seen[n]):.3f}" for n in seen))


def verdicts():
    """Verdicts on the claim when the true median ratio is known."""
    rng = np.random.default_rng(3)
    print(
        f"\nclaim: 2000 sets of jobs each\n{'true ratio':>10}{'jobs':>6}"
        + "".join(f"{name:>15}" for name in LATE_DEMAND_VERDICTS)
    )
    for ratio in (1.0, 0.9, 0.7):
        for n in (8, 20, 60):
            drawn = (judge_late_demand(ratio * np.exp(rng.normal(0, 0.2, n))).verdict for _ in range(2000))
            counted = Counter(drawn)
            print(f"{ratio:>10}{n:>6}" + "".join(f"{counted[name] / 2000:>15.4f}" for name in LATE_DEMAND_VERDICTS))


def speed():
    """CPU seconds of one job by its length."""
    rng = np.random.default_rng(1)
    print(f"\n{'minutes':>10}{'phases, CPU s':>16}{'dips, CPU s':>14}")
    begin = make_job(0).samples["time"][0]
    for n in (600, 6_000, 43_200, 120_000):
        activity = np.clip(np.repeat([0.2, 0.8, 0.5], n // 3) + rng.normal(0, 0.03, n), 0, 1)
        activity[np.arange(n) % 75 < 2] = 0.05
        samples = pl.DataFrame(
            {
                "time": pl.datetime_range(begin, begin + timedelta(minutes=n - 1), "1m", eager=True),
                "sm_activity": activity,
                "memory_used_gib": 40 + rng.normal(0, 0.2, n),
            }
        ).with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
        taken = []
        for find in (find_phases, find_dips):
            start = time.process_time()
            find(samples)
            taken.append(time.process_time() - start)
        print(f"{n:>10}{taken[0]:>16.2f}{taken[1]:>14.2f}")


def main():
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="seeded jobs of the set that the detector was tuned on")
    parser.add_argument("--held-out", type=int, default=40, help="jobs of each group that it was not")
    given = parser.parse_args()
    jobs = [make_job(seed) for seed in range(given.jobs)]
    changes("the set that the detector was tuned on", jobs)
    changes("other seeds", [make_job(seed) for seed in range(10_000, 10_000 + given.jobs)])
    changes("held out", [make_held_out(group, seed) for group in GROUPS for seed in range(given.held_out)])
    dips(jobs)
    alarms()
    verdicts()
    speed()


if __name__ == "__main__":
    main()
