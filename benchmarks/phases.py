"""How well phases, dips and their pace are found, and what it costs.

Run ``python benchmarks/phases.py``: seeded jobs whose truth is known (:mod:`gpuplanner.phases.synthetic`), the
verdicts on the claim about late phases under known effects, and CPU seconds by length of job.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.phases import VERDICTS, find_phases, find_spikes, judge_claim
from gpuplanner.phases.pace import find_pace
from gpuplanner.phases.score import Score, score_changes, tolerance
from gpuplanner.phases.synthetic import make_job

NEAR = timedelta(minutes=3)


def changes(jobs):
    """Precision, recall and Hausdorff distance of the phases, by shape."""
    scores, strict, distances = defaultdict(Score), Score(), []
    for job in jobs:
        length = job.samples["time"][-1] - job.samples["time"][0]
        found = find_phases(job.samples)["start"][1:].to_list()
        score = score_changes(found, job.changes, tolerance(length))
        scores[job.shape] += score
        strict += score_changes(found, job.changes, timedelta(minutes=2))
        distances += [score.hausdorff] if score.hausdorff is not None else []
    scores["all"] = sum(scores.values(), Score())
    scores["all, 2 minutes"] = strict
    print(
        f"\nphases\n{'shape':<16}{'changes':>8}{'found':>8}{'precision':>11}{'recall':>8}{'worst distance':>18}"
    )
    for shape, score in scores.items():
        worst = "-" if score.hausdorff is None else str(score.hausdorff).split(".")[0]
        print(
            f"{shape:<16}{score.true:>8}{score.found:>8}{score.precision:>11.3f}{score.recall:>8.3f}{worst:>18}"
        )
    print(
        "Hausdorff distance by job, s:",
        {q: round(np.quantile(seconds(distances), q)) for q in (0.5, 0.9, 0.99, 1)},
    )


def seconds(spans):
    """Seconds of time spans."""
    return [span.total_seconds() for span in spans]


def dips(jobs):
    """Dips found, labels, and the pace."""
    labels, paces = Counter(), []
    for job in jobs:
        spikes = find_spikes(job.samples)
        if job.period is not None:
            paces.append(np.nan if spikes.period is None else spikes.period / job.period - 1)
        for start, label in job.spikes.select("start", "label").iter_rows():
            near = spikes.table.filter((pl.col("start") - start).abs() <= NEAR)
            labels[label, near["label"][0] if near.height else "not found"] += 1
        for start, label in spikes.table.select("start", "label").iter_rows():
            if not job.spikes.height or (job.spikes["start"] - start).abs().min() > NEAR:
                labels["(none)", label] += 1
    print("\ndips: truth, looks like, how many")
    for (truth, found), count in sorted(labels.items()):
        print(f"{truth:<18}{found:<18}{count:>6}")
    error = np.abs(paces)
    within = np.mean(error <= 0.05)
    print(f"pace of {len(paces)} jobs: within 5 % {within:.3f}, none found {np.isnan(error).mean():.3f}")
    rng = np.random.default_rng(11)
    alarms = [find_pace(np.sort(rng.uniform(0, 86_400, rng.integers(3, 16)))) is not None for _ in range(400)]
    print(f"pace found in dips at random: {np.mean(alarms):.3f} of 400 jobs")


def verdicts():
    """Verdicts on the claim when the true median ratio is known."""
    rng = np.random.default_rng(3)
    print(
        f"\nclaim: 2000 sets of jobs each\n{'true ratio':>10}{'jobs':>6}"
        + "".join(f"{name:>15}" for name in VERDICTS)
    )
    for ratio in (1.0, 0.9, 0.7):
        for n in (8, 20, 60):
            drawn = (judge_claim(ratio * np.exp(rng.normal(0, 0.2, n))).verdict for _ in range(2000))
            counted = Counter(drawn)
            print(f"{ratio:>10}{n:>6}" + "".join(f"{counted[name] / 2000:>15.4f}" for name in VERDICTS))


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
        for find in (find_phases, find_spikes):
            start = time.process_time()
            find(samples)
            taken.append(time.process_time() - start)
        print(f"{n:>10}{taken[0]:>16.2f}{taken[1]:>14.2f}")


def main():
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="seeded jobs")
    jobs = [make_job(seed) for seed in range(parser.parse_args().jobs)]
    changes(jobs)
    dips(jobs)
    verdicts()
    speed()


if __name__ == "__main__":
    main()
