"""Decide on generated clusters and public traces and write ``docs/equal_service.md``.

``python docs/make_equal_service.py FOLDER`` does all, with names behind it those whose name begins so, printed. What
was read and each line are kept in the folder, so that a run that was stopped goes on where it was; rules that changed
want a new one. Needs ``GPUPLANNER_DATA`` for the public traces. Takes about eight minutes on one core; the same data
give the same figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuplanner.cli.compare import with_hindsight
from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware.abilities import default_path
from gpuplanner.inbox import Dataset, open_dataset, write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import Comparison, compared

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from tests.clusters import traces  # noqa: E402 - of the checkout
from tests.clusters.cut_clusters import kubernetes_cut, slurm_cut  # noqa: E402

DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
SHORT_DAYS = (5, 10, 20)
SHORTENED = ("Sample", "Slurm, cut, 1", "Kubernetes, cut, 1", "Supercloud", "ITP, cluster 3", "Philly, all")
SAMPLE = Scenario(name="sample", month="2026-02", path="slurm")
PATHS = ("operator", "parted", "nvml", "dra", "autoscaler", "slurm")
INTRO = """# Ways to run a fleet at equal service, measured

Made by `python docs/make_equal_service.py FOLDER`. Every way is tuned on the earlier days of a record, on heavier ones
than were seen as far as today's own fleet bears them, and judged on the days kept back: 95 % of the jobs of each size
start at most 10 minutes later than on today's fleet, in the same engine with the same draws. `base` is what service is
counted from, `confidence` what the decision rests on. `GPUs` are those on at most under the recommended way, of those
installed. `GPU-hours` are those on, a week, on the days kept back: today's, and those of the recommended way. `saved`
is what was promised before these days, with its 90 % interval, and what whole weeks of them saved. `hindsight` is what
the way needs over what it would have needed had the days been known. `held` is the share of the days kept back on
which the target was held. A fleet that is only cut otherwise keeps all GPUs on: its hours are today's. Clusters named
after a scheduler are generated, with waits that have causes; nodes are listed unless it says otherwise.
"""
NOTES = """
The table is made anew with the program; the figures in the text below were measured apart from it, by hand, and stay as
they were measured.

Where hindsight needs much less, what bounds it is how many GPUs there must be at all: the fewest that held on earlier
days held later in about half of the cases, so the cap stays near the most that was ever needed, and a quieter month
afterwards shows as a ratio above one. Philly's largest virtual cluster by jobs, under Slurm's power saving, is the case
of the other knob: 20,800 jobs in the days tuned on and 1,283 after them, five idle nodes against two, 1.52 times.

The DRA driver on Hopper and newer makes an instance for each job: two nodes stay off. On 48 GPUs the jobs on 2 to 4
whole GPUs then start 7.8 minutes later than they did on average (2.2 at the quantile); with the static layouts tuned
for as many it is 11.2 (28.5), which breaks the target. Nothing that is shipped does so through NVML or on A100.

On path slurm the engine plays what Slurm does: the first job that waits in a partition reserves whole nodes, a job
stays with the nodes that it woke, batch jobs start up to 30 s after their node is there, and the lowest number is taken
first.

## Beside a real controller

`make replay-slurm` plays a generated day of 235 jobs (170 on slices, 62 on 1 to 8 GPUs, 3 on two machines of 8)
through Debian's slurmctld 22.05.8 under the power-saving block of a pack, a slurmd a machine, at 120 times the speed of
the clock, with a lead of 300 s; machines are whole or cut as jobs ask. Waits are minutes from submission to start, mean
and quantile at 95 %; "apart" are jobs whose waits differ by more than a minute; idle times are minutes. "As elsewhere"
is the engine by its rules for other paths. With five machines jobs queue.

Node-hours lie within 3.1 % in eight of nine days, and 6.0 % too low in the one whose gangs wait two hours. With room
every class is within a minute at the quantile in four of five days; in the other one three starts of 235 differ, and
one class by five minutes. Days part ways where an end and an arrival lie seconds apart: a boot took 340 to 420 s on a
busy host, the engine has 310 to 340.

| day | idle | machines | | node-hours | wakes | slices | 1 GPU | 2 to 4 | 5 to 8 | 16 GPUs | apart |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 1 | 10 | 8 | Slurm | 63.6 | 18 | 0.1, 0.0 | 0.2, 0.1 | 1.0, 5.8 | 4.6, 6.2 | 5.6, 5.8 | – |
| 1 | 10 | 8 | engine | 62.6 (-1.5 %) | 18 | 0.1, 0.0 | 0.3, 5.3 | 1.0, 5.3 | 4.3, 5.6 | 3.6, 5.5 | 3 |
| 1 | 10 | 8 | as elsewhere | 64.2 (+1.0 %) | 19 | 0.1, 0.0 | 0.3, 5.2 | 0.9, 5.2 | 4.1, 5.2 | 3.4, 5.2 | 4 |
| 2 | 10 | 8 | Slurm | 64.3 | 31 | 0.3, 3.0 | 1.4, 5.5 | 1.6, 5.6 | 3.9, 5.6 | 5.5, 5.6 | – |
| 2 | 10 | 8 | engine | 62.3 (-3.1 %) | 29 | 0.3, 2.1 | 1.2, 5.5 | 1.5, 5.3 | 3.9, 5.6 | 5.4, 5.5 | 2 |
| 2 | 10 | 8 | as elsewhere | 61.8 (-3.8 %) | 30 | 0.2, 2.0 | 1.1, 5.2 | 1.8, 5.2 | 3.0, 5.2 | 5.2, 5.2 | 8 |
| 3 | 10 | 8 | Slurm | 69.2 | 24 | 0.2, 0.0 | 0.9, 5.6 | 2.2, 5.7 | 12.9, 31.2 | 5.7, 5.8 | – |
| 3 | 10 | 8 | engine | 69.1 (-0.2 %) | 24 | 0.2, 0.0 | 0.8, 5.5 | 2.1, 5.5 | 12.7, 30.7 | 5.4, 5.5 | 0 |
| 3 | 10 | 8 | as elsewhere | 71.5 (+3.3 %) | 27 | 0.2, 1.1 | 0.8, 5.2 | 2.2, 5.2 | 7.7, 16.8 | 5.2, 5.2 | 12 |
| 1 | 30 | 8 | Slurm | 68.8 | 13 | 0.1, 0.0 | 0.2, 0.0 | 0.8, 5.7 | 4.3, 5.7 | 3.6, 5.6 | – |
| 1 | 30 | 8 | engine | 68.7 (-0.1 %) | 13 | 0.1, 0.0 | 0.2, 0.0 | 0.7, 5.3 | 4.3, 5.6 | 3.6, 5.5 | 0 |
| 1 | 30 | 8 | as elsewhere | 69.8 (+1.6 %) | 16 | 0.1, 0.0 | 0.1, 0.0 | 0.9, 5.2 | 4.1, 5.2 | 3.4, 5.2 | 2 |
| 3 | 30 | 8 | Slurm | 76.0 | 18 | 0.1, 0.0 | 0.5, 5.5 | 1.7, 5.7 | 11.2, 31.6 | 5.6, 5.9 | – |
| 3 | 30 | 8 | engine | 75.9 (-0.2 %) | 19 | 0.1, 0.0 | 0.7, 5.5 | 1.9, 5.5 | 10.9, 30.7 | 5.4, 5.5 | 3 |
| 3 | 30 | 8 | as elsewhere | 79.1 (+4.0 %) | 22 | 0.1, 0.0 | 0.6, 5.2 | 1.9, 5.2 | 6.0, 16.8 | 5.2, 5.2 | 15 |
| 1 | 10 | 5 | Slurm | 61.1 | 14 | 0.2, 0.0 | 0.7, 5.8 | 2.1, 8.9 | 9.1, 28.8 | 41.7, 119.0 | – |
| 1 | 10 | 5 | engine | 60.7 (-0.6 %) | 14 | 0.2, 0.0 | 0.3, 5.3 | 1.7, 5.4 | 20.3, 85.2 | 26.1, 72.7 | 10 |
| 1 | 10 | 5 | as elsewhere | 60.6 (-0.8 %) | 18 | 0.3, 1.6 | 0.3, 5.2 | 2.0, 5.2 | 14.7, 51.6 | 18.1, 49.1 | 18 |
| 2 | 10 | 5 | Slurm | 62.8 | 25 | 0.3, 2.6 | 1.2, 5.6 | 1.5, 5.6 | 10.6, 43.5 | 18.5, 44.3 | – |
| 2 | 10 | 5 | engine | 61.4 (-2.3 %) | 25 | 0.3, 2.1 | 1.2, 5.5 | 1.4, 5.3 | 10.5, 43.3 | 18.2, 44.0 | 4 |
| 2 | 10 | 5 | as elsewhere | 60.2 (-4.2 %) | 26 | 0.3, 2.0 | 1.1, 5.2 | 2.2, 6.6 | 3.6, 9.1 | 12.6, 27.6 | 13 |
| 3 | 10 | 5 | Slurm | 70.4 | 23 | 0.5, 5.4 | 1.3, 6.0 | 6.8, 40.3 | 53.2, 124.9 | 92.9, 145.2 | – |
| 3 | 10 | 5 | engine | 66.2 (-6.0 %) | 24 | 0.5, 5.2 | 1.7, 8.1 | 6.6, 40.1 | 40.6, 84.3 | 32.2, 86.0 | 16 |
| 3 | 10 | 5 | as elsewhere | 70.1 (-0.4 %) | 22 | 0.2, 1.1 | 1.6, 8.1 | 4.8, 30.6 | 26.2, 68.8 | 61.9, 108.3 | 28 |
| 2 | 30 | 5 | Slurm | 69.5 | 15 | 0.1, 0.0 | 0.8, 5.4 | 1.1, 5.5 | 9.0, 43.5 | 16.3, 33.2 | – |
| 2 | 30 | 5 | engine | 68.1 (-1.9 %) | 15 | 0.1, 0.0 | 0.8, 5.5 | 1.1, 5.3 | 8.9, 43.3 | 16.0, 32.9 | 2 |
| 2 | 30 | 5 | as elsewhere | 66.7 (-4.1 %) | 20 | 0.2, 0.0 | 0.8, 5.2 | 2.0, 6.6 | 2.7, 8.3 | 12.6, 27.6 | 11 |
"""
HEAD = (
    "| record | jobs | base | confidence | action | GPUs | way | GPU-hours | saved | hindsight | held |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def records() -> Iterator[tuple[str, Callable[[], tuple[Dataset, str | None]]]]:
    """Name of each record, and what reads its data and says its month."""
    for seed in (1, 2, 3):
        yield f"Slurm, cut, {seed}", lambda seed=seed: (traces.read_cluster(slurm_cut(seed)), None)
        for nodes, words in ((True, ""), (False, ", no node list")):
            yield (
                f"Kubernetes, cut, {seed}{words}",
                lambda seed=seed, nodes=nodes: (
                    traces.read_cluster(kubernetes_cut(seed, with_nodes=nodes)),
                    None,
                ),
            )
    for name, made in traces.PUBLIC.items():
        yield name, lambda made=made: (made(DATA), None)
    yield "Philly, all", lambda: (traces.philly(DATA), "2017-10")
    for number in range(traces.VIRTUAL_CLUSTERS):
        yield (
            f"Philly, virtual cluster {number + 1}",
            lambda number=number: list(traces.virtual_clusters(DATA))[number],
        )


def scenarios(folder: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, Scenario]]:
    """Each record that is asked for as a dataset of its own, the sample first; read once for all runs in a folder."""
    if not wanted or "Sample".startswith(wanted):
        yield "Sample", SAMPLE
    for name, made in records():
        if wanted and not name.startswith(wanted):
            continue
        place = folder / "data" / name.replace(", ", "-").replace(" ", "-")
        told = place.with_suffix(".month")
        if not told.exists():
            data, month = made()
            write_dataset(data, place)
            told.write_text(month or "", encoding="utf-8")
        source = str(open_dataset(place).provenance["source"])
        month = told.read_text(encoding="utf-8") or None
        yield name, Scenario(name=name, data=str(place), month=month, path=default_path(source))


def kept_row(folder: Path, name: str, scenario: Scenario) -> str:
    """The line of a record: from the folder where it was made before, so that a run that was stopped goes on."""
    place = folder / "rows" / f"{name.replace(', ', '-').replace(' ', '-')}.md"
    if not place.exists():
        begun = time.process_time()
        line = row(name, scenario)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(line + "\n", encoding="utf-8")
        sys.stderr.write(f"{time.process_time() - begun:6.0f} CPU s  {name}\n")
    return place.read_text(encoding="utf-8").rstrip("\n")


def row(name: str, scenario: Scenario) -> str:
    """One decision as a line of the table; a refusal in its own words."""
    try:
        found = compared(scenario)
        if found.today is not None:
            found = with_hindsight(scenario, found, quiet=True)
    except GpuPlannerError as error:
        return f"| {name} | refused: {str(error).replace(scenario.data, name)} |" + " |" * 9
    one = found.decision
    gpus, action = f"{one.gpus:,} of {one.fleet_gpus:,}", one.action.replace("_", " ")
    cells = [
        name, _jobs(found), one.base, one.confidence, action, gpus, one.policy, _hours(found), _saved(found),
        _hindsight(found), _held(found),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _jobs(found: Comparison) -> str:
    return "–" if found.today is None else f"{sum(part.jobs for part in found.today.by_class):,}"


def _hours(found: Comparison) -> str:
    best = found.row(found.winner)
    if found.today is None or best is None or (best.gpu_hours is None and found.decision.action != "cut"):
        return "–"
    today = f"{found.today.gpu_hours:,.0f}"
    return (
        today if found.decision.action == "cut" or best is found.today else f"{today} → {best.gpu_hours:,.0f}"
    )


def _saved(found: Comparison) -> str:
    saving = found.decision.saving
    if saving.value is None:
        return "–"
    spread = "" if saving.low is None else f" ({saving.low:,.0f} to {saving.high:,.0f})"
    weeks = ", ".join(f"{week:,.0f}" for week in saving.realised)
    return f"{saving.value:,.0f}{spread}" + (f"; {weeks}" if weeks else "")


def _hindsight(found: Comparison) -> str:
    best = found.row(found.winner)
    if best is None or best.gpu_hours is None or not found.hindsight_gpu_hours:
        return "–"
    return f"{best.gpu_hours / found.hindsight_gpu_hours:.2f}"


def _held(found: Comparison) -> str:
    rate = found.decision.gpus_hold_rate
    return "–" if rate is None else f"{rate:.0%}"


def main(folder: Path, wanted: tuple[str, ...]) -> None:
    """Write the page, or print the lines of what is wanted."""
    lines = [INTRO, "## Records", "", HEAD]
    short: list[str] = []
    for name, scenario in scenarios(folder, wanted):
        lines.append(kept_row(folder, name, scenario))
        if wanted:
            sys.stdout.write(lines[-1] + "\n")
        elif name in SHORTENED:
            for days in SHORT_DAYS:
                cut = replace(scenario, history_days=days)
                short.append(kept_row(folder, f"{name}, {days} days", cut))
    if wanted:
        return
    lines += ["", "## Short records", "", "The last days of some of these.", "", HEAD, *short]
    lines += ["", "## The sample on each path", "", HEAD]
    lines += [kept_row(folder, path, replace(SAMPLE, path=path, name=path)) for path in PATHS]
    (HERE / "equal_service.md").write_text("\n".join(lines) + "\n" + NOTES, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
