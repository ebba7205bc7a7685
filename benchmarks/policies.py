"""Evaluate policies on days that they were not fitted on: ``python benchmarks/policies.py --write`` writes the page.

Planted clusters need nothing; public traces need ``GPUPLANNER_DATA``. ``--seeds`` adds seeds of the planted clusters,
``--only`` takes records whose names begin so. Without ``--write`` the table is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), str(ROOT / "benchmarks" / "planted_clusters")]

from planted_clusters.clusters import write_cluster  # noqa: E402

from gpuplanner.core.scenario import Scenario  # noqa: E402
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_MINUTE  # noqa: E402
from gpuplanner.decision.comparison_record import count_power_ups, record_comparison, reprice_comparison  # noqa: E402
from gpuplanner.decision.decision_types import FEWER_NODES, MIG_STATIC, POWER_DOWN_IDLE, TODAY  # noqa: E402
from gpuplanner.decision.policy_comparison import (  # noqa: E402  # noqa: E402
    POLICIES,
    SHORT_NAMES,
    EvaluatedPolicy,
    PolicyResults,
    TuningJobs,
    find_evaluation_day,
    summarize_policy_run,
)
from gpuplanner.decision.policy_layouts import keep_layouts, rank_nodes  # noqa: E402
from gpuplanner.decision.policy_simulation import Mask, PolicyRun  # noqa: E402
from gpuplanner.decision.recommendation import DecisionBasis, decide  # noqa: E402
from gpuplanner.ingest.dataset_import import add_files  # noqa: E402
from gpuplanner.ingest.dataset_writer import write_dataset  # noqa: E402
from tests.clusters import planted, traces  # noqa: E402

PAGE = ROOT / "docs" / "results" / "policies.md"
PLAIN_IDLE_MINUTES = (10, 15, 30)
MAX_OVER_HINDSIGHT = 1.10
HEAD = """# Policies on days that they were not fitted on

Made by `python benchmarks/policies.py --write`. Every [policy](../glossary.md#policy) is fitted in the training
window, the first part of a record, and simulated in the evaluation window, its last days. Slurm powers the nodes; a
boot takes 5 minutes.

- **policy**: policies with settings. `*` marks the one with the fewest GPU-hours in the training window that meets
  the limit in both windows; `r` the recommended one.
- **limit**: whether 95 % of the jobs of each size start at most 10 minutes later than in the simulation of today's
  fleet, in the evaluation window. In brackets: the share of its days on which they do, and the share on which today's
  fleet does if each job arrives up to 30 seconds later.
- **GPU-hours, kWh, power-ups**: per week of the evaluation window; GPU-hours beside today's; kWh is facility energy
  ([PUE](../glossary.md#pue)), if the power of the GPU model is known.
- **hindsight**: GPU-hours over those of the same policy fitted in the evaluation window itself.
- **plain rule**: GPU-hours over those of the simplest rule: all nodes of today, powered down after 10, 15 or 30 idle
  minutes, the shortest timeout with which the training window meets the limit. In brackets: whether it meets the
  limit in the evaluation window.

The Philly and ITP traces have no start times, so they get no recommendation; their jobs arrive at submission. OpenB
has only a small part of its jobs.
"""
COLUMNS = ("record", "policy", "limit", "GPU-hours", "kWh", "power-ups", "hindsight", "plain rule", "setting")


@dataclass(frozen=True)
class Row:
    """A policy in the evaluation window of a record."""

    record: str
    policy: str
    chosen: bool
    recommended: bool
    meets: bool
    days: float
    days_today: float
    training_hours: float
    today_hours: float
    hours: float
    kwh: float | None
    power_ups: float | None
    hindsight: float | None
    plain: float | None
    plain_meets: bool
    setting: str

    def cells(self) -> tuple[str, ...]:
        """The row as the page has it."""
        marks = f"{'*' if self.chosen else ''}{' r' if self.recommended else ''}"
        plain = "none" if self.plain is None else f"{self.plain:.2f}"
        meets = "limit not met in training" if self.plain is None else yes(self.plain_meets)
        return (
            self.record, f"{SHORT_NAMES[self.policy]} {marks}".strip(),
            f"{yes(self.meets)} ({self.days:.0%}, today {self.days_today:.0%})",
            f"{self.hours:,.0f} of {self.today_hours:,.0f}", "–" if self.kwh is None else f"{self.kwh:,.0f}",
            "–" if self.power_ups is None else f"{self.power_ups:,.0f}",
            "–" if self.hindsight is None else f"{self.hindsight:.2f}", f"{plain} ({meets})", self.setting,
        )  # fmt: skip


def yes(value: bool) -> str:
    """Yes or no."""
    return "yes" if value else "no"


def planted_records(folder: Path, seeds: int, every: bool) -> Iterator[tuple[str, Callable[[], Scenario]]]:
    """The planted clusters, read from the files that a site exports."""

    def world(name: str, seed: int) -> Scenario:
        files, data = folder / f"{name}{seed}", folder / f"{name}{seed}-data"
        write_cluster(files, name, seed, 2)
        add_files("slurm", [files / "sacct.txt"], data, nodes=files / "nodes.txt", tz="UTC")
        for more in ("assoc.txt", "events.txt"):
            if (files / more).exists():
                add_files("auto", [files / more], data, tz="UTC")
        return Scenario(data=str(data), actuator="slurm")

    def small(name: str) -> Scenario:
        write_dataset(traces.read_cluster(planted.planted(name).cluster), folder / name)
        return Scenario(data=str(folder / name), actuator="slurm")

    for seed in range(1, seeds + 1):
        for name in "abcdefgh":
            yield f"planted {name}, seed {seed}", lambda name=name, seed=seed: world(name, seed)
    for name in planted.names() if every else ("too_large-1", "too_large-3", "tight-1"):
        yield f"planted {name}", lambda name=name: small(name)


def public_records(folder: Path, data: Path) -> Iterator[tuple[str, Callable[[], Scenario]]]:
    """Public traces: ITP, OpenB, and Philly's virtual clusters in their busiest months."""

    def whole(name: str) -> Scenario:
        write_dataset(traces.PUBLIC[name](data), folder / name)
        return Scenario(data=str(folder / name), actuator="slurm")

    def virtual(number: int) -> Scenario:
        found, month = list(traces.virtual_clusters(data))[number]
        write_dataset(found, folder / f"philly{number}")
        return Scenario(data=str(folder / f"philly{number}"), actuator="slurm", month=month, tz=traces.PACIFIC)

    for name in ("ITP, cluster 3", "OpenB"):
        yield name, lambda name=name: whole(name)
    for number in range(traces.VIRTUAL_CLUSTERS):
        yield f"Philly, virtual cluster {number + 1}", lambda number=number: virtual(number)


def fitted(tuning: TuningJobs, policy: str) -> PolicyRun | None:
    """A policy by the rules of a tuning; fewer nodes, which the wait model finds, by those of the tuning as well."""
    asked = tuning.replayed_jobs.asked_jobs
    if policy != FEWER_NODES:
        return POLICIES[policy].tune(tuning, policy)
    order = rank_nodes(asked)
    tried = tuning.try_counts(lambda count: [keep_layouts(asked, policy, order[:count])], 1, len(order))
    return tuning.choose_cheapest(policy, tried)


def plain_rule(tuning: TuningJobs) -> PolicyRun | None:
    """The shortest of a few idle times with which the training window meets the limit, and no other setting."""
    fixed = keep_layouts(tuning.replayed_jobs.asked_jobs, POWER_DOWN_IDLE, rank_nodes(tuning.replayed_jobs.asked_jobs))
    base = tuning.make_switching(PLAIN_IDLE_MINUTES[0], [0])
    for idle in PLAIN_IDLE_MINUTES:
        switching = replace(base, idle_s=idle * SECONDS_PER_MINUTE)
        run = tuning.replayed_jobs.simulate(
            replace(fixed, switching=switching, placement=tuning.abilities.placements[0])
        )
        if tuning.replayed_jobs.meets_limit(run, tuning.training_jobs):
            return run
    return None


def policy_results_of(answer: DecisionBasis) -> PolicyResults | None:
    """The policies, also of a record without starts, whose jobs arrive when they were submitted; None: too short."""
    policy_results = answer.policy_results
    if policy_results is None or policy_results.has_holdout:
        return policy_results
    replayed_jobs, days = policy_results.replayed_jobs, int(policy_results.asked_jobs.observed_s // SECONDS_PER_DAY)
    split = find_evaluation_day(replace(policy_results.asked_jobs, starts_assumed=False), replayed_jobs, days)
    if split is None:
        return None
    number, before = (
        np.arange(len(replayed_jobs.today.daily_gpu_hours)),
        replayed_jobs.arrival_s < split * SECONDS_PER_DAY,
    )
    windows = (number < split, (number >= split) & (number < days))
    policy_results = replace(
        policy_results, training_jobs=replayed_jobs.is_evaluated & before,
        evaluation_jobs=replayed_jobs.is_evaluated & ~before,
        training_days=windows[0], evaluation_days=windows[1],
    )  # fmt: skip
    is_evaluated, train = [], tuning_of(policy_results, training=True)
    for policy, way in POLICIES.items():
        if (
            policy not in (TODAY, MIG_STATIC)
            and way.find_obstacle(policy_results.abilities, policy_results.job_history.fleet) is None
        ):
            run = fitted(train, policy)
            if run is not None:
                is_evaluated.append(
                    summarize_policy_run(
                        policy, run, holds=replayed_jobs.meets_limit(run, policy_results.evaluation_jobs), days=windows
                    )
                )
    return replace(policy_results, evaluated_policies=tuple(is_evaluated))


def tuning_of(policy_results: PolicyResults, *, training: bool) -> TuningJobs:
    """What policies are fitted on: the training window, or for hindsight the evaluation window."""
    jobs = policy_results.training_jobs if training else policy_results.evaluation_jobs
    days = policy_results.training_days if training else policy_results.evaluation_days
    return TuningJobs(policy_results.replayed_jobs, jobs, days, policy_results.abilities)


def evaluate(record: str, scenario: Scenario) -> tuple[list[Row], str]:
    """Rows of a record, and the recommendation in its sentence."""
    answer = decide(scenario)
    policy_results = policy_results_of(answer)
    sentence = f"{record}: {answer.decision.sentence}"
    if policy_results is None:
        return [], f"{sentence} The record is too short to fit policies on a part of it."
    plain = plain_rule(tuning_of(policy_results, training=True))
    fitted_ones = [one for one in policy_results.evaluated_policies if one.run is not None and one.policy != MIG_STATIC]
    met = [one for one in fitted_ones if one.meets_limit]
    chosen = min(met, key=lambda one: one.training_hours, default=None)
    rows = [row_of(record, answer, policy_results, one, plain, chosen=one is chosen) for one in fitted_ones]
    return rows, sentence


def gpu_hours_of(run: PolicyRun, days: Mask) -> float:
    """Provisioned GPU-hours of a simulation on some days."""
    return float(run.daily_gpu_hours[days].sum())


def row_of(
    record: str,
    answer: DecisionBasis,
    policy_results: PolicyResults,
    one: EvaluatedPolicy,
    plain: PolicyRun | None,
    *,
    chosen: bool,
) -> Row:
    """A policy beside hindsight and the plain rule."""
    replayed_jobs, days, run, late = (
        policy_results.replayed_jobs,
        policy_results.evaluation_days,
        one.run,
        tuning_of(policy_results, training=False),
    )
    assert run is not None
    row = reprice_comparison(policy_results.scenario, record_comparison(policy_results.scenario, answer)).find_row(
        one.policy
    )
    by_hindsight = fitted(late, one.policy)
    today = replace(replayed_jobs.today, waits_s=replayed_jobs.today.waits_s[1:])
    hours = gpu_hours_of(run, days)
    weeks = float(days.sum()) / 7
    return Row(
        record, one.policy, chosen, answer.decision.policy == one.policy,
        replayed_jobs.meets_limit(run, policy_results.evaluation_jobs),
        replayed_jobs.share_of_days_met(run, policy_results.evaluation_jobs),
        replayed_jobs.share_of_days_met(today, policy_results.evaluation_jobs),
        one.training_hours,
        gpu_hours_of(replayed_jobs.today, days) / weeks,
        hours / weeks,
        None if row is None else row.energy_kwh,
        None if run.setting.switching is None else count_power_ups(run, days) / weeks,
        None if by_hindsight is None else hours / gpu_hours_of(by_hindsight, days),
        None if plain is None else hours / gpu_hours_of(plain, days),
        plain is not None and replayed_jobs.meets_limit(plain, policy_results.evaluation_jobs),
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.setting.values.items()),
    )  # fmt: skip


def accepted(rows: list[Row]) -> Iterator[str]:
    """What the chosen policies reach of what is asked of them."""
    chosen, by_record = [row for row in rows if row.chosen], defaultdict(list)
    for row in rows:
        by_record[row.record].append(row)
    first = [min(ones, key=lambda row: row.training_hours) for ones in by_record.values()]
    missed = [row for row in first if not row.meets]
    dear = [row for row in chosen if (row.hindsight or 1.0) > MAX_OVER_HINDSIGHT]
    late = [row for row in chosen if not row.meets or row.days < row.days_today]
    beside = [row for row in chosen if row.plain_meets]
    more = [row for row in beside if (row.plain or 0.0) > 1.0 + 1e-9]
    yield f"- {len(more)} of {len(beside)} cost more than the plain rule where that meets the limit{listed(more)}."
    yield f"- {len(dear)} of {len(chosen)} cost over {MAX_OVER_HINDSIGHT:.2f} times hindsight{listed(dear)}."
    yield f"- {len(late)} of {len(chosen)} meet the limit on fewer days than today's fleet{listed(late)}."
    yield (
        f"- {len(missed)} of {len(first)} that cost fewest GPU-hours in the training window miss the limit in the "
        f"evaluation window, and are not taken{listed(missed)}."
    )


def listed(rows: list[Row]) -> str:
    """Records by name."""
    return f" ({'; '.join(row.record for row in rows)})" if rows else ""


def main() -> None:
    """Evaluate the records, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="all eighteen small clusters as well")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows, sentences = [], []
    with tempfile.TemporaryDirectory() as name:
        records = [("sample", lambda: Scenario(actuator="slurm"))]
        records += planted_records(Path(name), options.seeds, options.all)
        if data := os.environ.get("GPUPLANNER_DATA"):
            records += public_records(Path(name), Path(data))
        for record, scenario in records:
            if record.startswith(options.only):
                began = time.process_time()
                found, sentence = evaluate(record, scenario())
                rows += found
                sentences.append(sentence)
                print(f"{record}: {len(found)} policies, {time.process_time() - began:.0f} CPU s", file=sys.stderr)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    reached = "\n".join(accepted(rows))
    told = [f"- {sentence}" for sentence in sentences]
    below = ["", "Of the policies that are marked with `*`:", "", reached, "", "## Recommendations", "", *told, ""]
    text = "\n".join([HEAD, *lines, *below])
    if options.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
