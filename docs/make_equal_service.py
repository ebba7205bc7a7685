"""Decide on generated clusters and public traces and write ``docs/equal_service.md``.

``python docs/make_equal_service.py`` does all, with names behind it those whose name begins so, printed. Needs
``GPUPLANNER_DATA`` for the public traces. Takes about an hour on one core; the same data give the same figures.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.cli.compare import with_hindsight
from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware.abilities import default_path
from gpuplanner.inbox import Dataset, read, write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import Comparison, compared

HERE = Path(__file__).parent
DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
FEWEST_JOBS = 400
"""Virtual clusters of Philly with more jobs than this are taken alone."""
VIRTUAL_CLUSTERS = 6
SHORT_DAYS = (5, 10, 20)
SHORTENED = ("Sample", "Slurm, cut, 1", "Kubernetes, cut, 1", "Supercloud", "ITP, cluster 3", "Philly, all")
PATHS = ("operator", "parted", "nvml", "dra", "autoscaler", "slurm")
INTRO = """# Ways to run a fleet at equal service, measured

Made by `python docs/make_equal_service.py`. Every way is tuned on the earlier days of a record, on heavier ones than
were seen as far as today's own fleet bears them, and judged on the days kept back: 95 % of the jobs of each size start
at most 10 minutes later than on today's fleet, in the same engine with the same draws. `base` is what service is
counted from, `confidence` what the decision rests on. `GPUs` are those on at most under the recommended way, of those
installed. `GPU-hours` are those on, a week, on the days kept back: today's, and those of the recommended way. `saved`
is what was promised before these days, with its 90 % interval, and what whole weeks of them saved. `hindsight` is what
the way needs over what it would have needed had the days been known. `held` is the share of the days kept back on which
the target was held. Clusters named after a scheduler are generated, with waits that have causes; nodes are listed
unless it says otherwise.
"""
HEAD = (
    "| record | jobs | base | confidence | action | GPUs | way | GPU-hours | saved | hindsight | held |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def records(wanted: tuple[str, ...]) -> Iterator[tuple[str, Dataset, str | None]]:
    """Name, data and month of each record that is asked for."""
    for name, made in (*_generated(), *_public()):
        if not wanted or name.startswith(wanted):
            yield (name, *made())


def _generated():  # noqa: ANN202 - pairs of a name and what makes the data
    sys.path.insert(0, str(HERE.parent))
    from tests.clusters.cut_clusters import kubernetes_cut, slurm_cut

    for seed in (1, 2, 3):
        yield f"Slurm, cut, {seed}", lambda seed=seed: (_read(slurm_cut(seed).files()), None)
        yield f"Kubernetes, cut, {seed}", lambda seed=seed: (_read(kubernetes_cut(seed).files()), None)
        yield (
            f"Kubernetes, cut, {seed}, no node list",
            lambda seed=seed: (_read(kubernetes_cut(seed, with_nodes=False).files()), None),
        )


def _read(files: dict[str, str]) -> Dataset:
    with tempfile.TemporaryDirectory() as name:
        paths = {}
        for file, text in files.items():
            paths[file] = Path(name) / file
            paths[file].write_text(text, encoding="utf-8")
        if "sacct.txt" in paths:
            return read("slurm", paths["sacct.txt"], nodes=paths.get("nodes.txt"), tz="UTC")
        return read("kubernetes", list(paths.values()))


def _public():  # noqa: ANN202 - as above
    openb = DATA / "alibaba_gpu_v2023"
    yield "Fox", lambda: (read("slurm", DATA / "slurm" / "sacct_fox_2025.txt", tz="Europe/Oslo"), None)
    yield "Kalos", lambda: (read("acme", DATA / "acme" / "trace_kalos.sample_reduced.csv"), None)
    yield "Supercloud", lambda: (
        read("supercloud", DATA / "supercloud" / "slurm-log-queueing-clean.csv.gz"), None,
    )  # fmt: skip
    yield "OpenB", lambda: (
        read("openb", openb / "openb_pod_list_default.csv.gz", nodes=openb / "openb_node_list_gpu_node.csv"), None,
    )  # fmt: skip
    yield "ITP, cluster 3", lambda: (read("itp", DATA / "itp" / "cluster03.csv.gz"), None)
    philly = read("philly", DATA / "philly" / "philly.csv.gz", tz="America/Los_Angeles")
    yield "Philly, all", lambda: (philly, "2017-10")
    jobs = (
        philly.jobs.group_by("tenant").len().filter(pl.col("len") > FEWEST_JOBS).sort("len", descending=True)
    )
    for number, name in enumerate(jobs["tenant"].head(VIRTUAL_CLUSTERS), start=1):
        alone = philly.jobs.filter(pl.col("tenant") == name)
        yield (
            f"Philly, virtual cluster {number}",
            lambda alone=alone: (philly.with_tables(jobs=alone), _busiest_month(alone)),
        )


def _busiest_month(jobs: pl.DataFrame) -> str:
    """The month in which most GPU time was asked for."""
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() * pl.col("gpus")
    months = jobs.group_by(month=pl.col("submit_time").dt.strftime("%Y-%m")).agg(hours=hours.sum())
    return str(months.sort("hours", "month", descending=[True, False])["month"][0])


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
    if found.today is None or best is None or best.gpu_hours is None:
        return "–"
    today = f"{found.today.gpu_hours:,.0f}"
    return today if best is found.today else f"{today} → {best.gpu_hours:,.0f}"


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
    best = found.row(found.winner)
    return "–" if best is None or best.hold_rate is None else f"{best.hold_rate:.0%}"


def main(wanted: tuple[str, ...]) -> None:
    """Write the page, or print the lines of what is wanted."""
    lines = [INTRO, "## Records", "", HEAD]
    short: list[str] = []
    sample = Scenario(name="sample", month="2026-02", path="slurm")
    with tempfile.TemporaryDirectory() as folder:
        scenarios = [] if wanted and not "Sample".startswith(wanted) else [("Sample", sample)]
        for name, data, month in records(wanted):
            place = str(Path(folder) / name.replace(", ", "-").replace(" ", "-"))
            write_dataset(data, place)
            path = default_path(str(data.provenance["source"]))
            scenarios.append((name, Scenario(name=name, data=place, month=month, path=path)))
        for name, scenario in scenarios:
            lines.append(row(name, scenario))
            if wanted:
                sys.stdout.write(lines[-1] + "\n")
            if name in SHORTENED:
                short += [
                    row(f"{name}, {days} days", replace(scenario, history_days=days)) for days in SHORT_DAYS
                ]
    if wanted:
        return
    lines += ["", "## Short records", "", "The last days of some of these.", "", HEAD, *short]
    lines += ["", "## The sample on each path", "", HEAD]
    lines += [row(path, replace(sample, path=path, name=path)) for path in PATHS]
    (HERE / "equal_service.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
