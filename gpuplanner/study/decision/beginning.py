"""What data say before anything is decided: how much there is, in which zone, on which boards, whose, changed how."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.catalog.loader import export_command, paths_by_source
from gpuplanner.errors import ScenarioError, TraceFormatError, message
from gpuplanner.hardware.abilities import default_path
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.store import open_dataset
from gpuplanner.inbox.core.quarantine import believed
from gpuplanner.inbox.store import MARK, told_by
from gpuplanner.inbox.telemetry.join_report import match_words
from gpuplanner.scenario import Scenario
from gpuplanner.study.bundled import data_folder
from gpuplanner.study.decision.left_out import any_ran, correction_of, left_out_rows
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.sentences import no_decision, uncorrected_decision
from gpuplanner.study.decision.types import NEVER_RAN, NO_GPU, Missing
from gpuplanner.study.decision.worth import stated_ownership
from gpuplanner.units import SECONDS_PER_DAY

SLURM, KUBERNETES = "Slurm", "Kubernetes"
NEEDS = {"slurm": SLURM, "operator": KUBERNETES, "dra": KUBERNETES, "autoscaler": KUBERNETES}
"""Path → the scheduler that it is a part of; NVML and mig-parted work beside any."""
SCHEDULERS = {"slurm": SLURM, "operator": KUBERNETES}
"""Usual path of a source → the scheduler that it speaks of."""
EXPORTS = {SLURM: "sacct", KUBERNETES: "kubectl"}
"""Scheduler → the export of its jobs in the catalogue."""


@dataclass(frozen=True)
class Beginning:
    """What data say of themselves.

    - ``source``: Source of the list of jobs.
    - ``jobs``, ``days``, ``teams``: Jobs that can be believed, whole days begun, and who they belong to.
    - ``left_out_rows``: Rows that cannot be read or believed.
    - ``left_out_share``: Their share of all rows.
    - ``zone``: Zone in which the times were read; None: they state their offsets, or their source has one.
    - ``boards``: Boards that the data name.
    - ``ownership``: What the inventory says, if it says one thing.
    - ``nothing``: Why nothing can be played.
    """

    source: str
    jobs: int
    days: int
    teams: int
    left_out_rows: int
    left_out_share: float
    zone: str | None
    boards: tuple[str, ...]
    ownership: str | None
    nothing: str | None
    telemetry: str | None = None
    """How much of the telemetry was matched to jobs, and why the rest was not."""


def beginning(data: str) -> Beginning:
    """Look into a dataset.

    Examples
    --------
    >>> found = beginning("sample")
    >>> found.days, found.boards, found.nothing
    (28, ('H100-80GB-SXM5',), None)
    """
    wanted = ["tenant", "start_time", "end_time", "state", "gpus", "gpu_model", "quarantined"]
    trace = open_dataset(data_folder(data), columns=wanted)
    stated = trace.stated
    if "jobs" not in trace.tables and "job_states" in trace.tables:
        return Beginning(stated.source, 0, 0, 0, 0, 0.0, None, (), None, NEVER_RAN)
    jobs = believed(trace.jobs)
    inventory = trace.inventory
    rows = max(stated.rows_in, trace.jobs.height, 1)
    out = left_out_rows(trace) + trace.jobs.height - jobs.height
    gpus = jobs.filter(pl.col("gpus") > 0)
    correction = correction_of(trace)
    nothing = None
    if correction is not None:
        nothing = correction.reason
    elif gpus.is_empty():
        _require_tracked(trace)
        nothing = NO_GPU
    elif not any_ran(gpus):
        nothing = NEVER_RAN
    begin, end = stated.span
    models = jobs if inventory is None or inventory.is_empty() else inventory
    boards = models["gpu_model"].cast(pl.String).drop_nulls().unique().sort().to_list()
    return Beginning(
        source=stated.source,
        jobs=jobs.height,
        days=max(math.ceil((end - begin).total_seconds() / SECONDS_PER_DAY), 1),
        teams=jobs["tenant"].n_unique(),
        left_out_rows=out,
        left_out_share=out / rows,
        zone=stated.time_zone,
        boards=tuple(boards),
        ownership=stated_ownership(inventory),
        nothing=nothing,
        telemetry=match_words(trace),
    )


def _require_tracked(trace: Dataset) -> None:
    """Refuse accounting of Slurm in which no job has a GPU, where the node list has some."""
    inventory = trace.inventory
    installed = 0 if inventory is None else int(inventory["gpus"].sum() or 0)
    if trace.stated.source != "slurm" or not installed or trace.jobs["gpus"].has_nulls():
        return
    got = f"none in {trace.jobs.height:,} jobs, and {installed} GPUs in the node list"
    todo = (
        "Accounting does not track GPUs: set AccountingStorageTRES=gres/gpu in slurm.conf, with gres/gpu:TYPE for each "
        "type, and restart slurmctld. Past jobs stay without: export again when jobs have run since."
    )
    raise TraceFormatError(message("slurm: AllocTRES", "gres/gpu of jobs", got, todo))


def usual_path(folder: Path) -> str:
    """Who changes the fleet that a dataset speaks of, unless somebody says otherwise."""
    return default_path(told_by(folder).stated.source)


def path_of(source: str, asked: str | None) -> str:
    """The path that was asked for, if the source can have it; else the usual one.

    Examples
    --------
    >>> path_of("slurm", None), path_of("kubernetes", "nvml")
    ('slurm', 'nvml')
    >>> path_of("kubernetes", "slurm")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: path slurm: expected a path that Kubernetes has: operator, parted, nvml, dra, ...
    """
    if asked is None:
        return default_path(source)
    there = SCHEDULERS.get(paths_by_source().get(source, ""))
    needs = NEEDS.get(asked)
    if there is not None and needs is not None and needs != there:
        known = ("operator", "parted", "nvml", "dra", "autoscaler", "slurm")
        fitting = [name for name in known if NEEDS.get(name) in (None, there)]
        expected = f"a path that {there} has: {', '.join(fitting)}"
        got = f"jobs of {there} ({source}), and {asked} is a part of {needs}"
        todo = f"Leave --path out: it is {default_path(source)} then."
        raise ScenarioError(message(f"path {asked}", expected, got, todo))
    return asked


def nothing_known(scenario: Scenario, reason: str, source: str) -> Comparison:
    """The answer where nothing can be played, with the command that writes what is missing."""
    export = export_command(EXPORTS[SCHEDULERS.get(default_path(source), SLURM)])
    command = f"{export} && gpuplanner start {export.rpartition(' ')[2]}"
    has_data = (data_folder(scenario.data) / MARK.file).is_file()
    correction = correction_of(scenario.data) if has_data else None
    decision = replace(no_decision(scenario, reason), missing=(Missing(reason, command),))
    if correction is not None:
        decision = uncorrected_decision(scenario, correction)
    return Comparison(decision, scenario.wait_quantile, scenario.wait_minutes)
