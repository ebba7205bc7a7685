"""Commands about past jobs: ``hints``, ``phases`` and ``waits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Board,
    Given,
    Json,
    Quiet,
    ScenarioPath,
    SmallestGroup,
    app,
    put,
    say,
    show,
    show_frame,
    show_tables,
    takes,
)

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.hardware.gpu_models import GpuModel


Folder = Annotated[str, Argument(metavar="DIR", help="Folder written by 'ingest', or 'sample'.")]

JOB = (
    "job_id", "attempt", "state", "gpu_model", "profile", "instances", "memory_asked_gib", "memory_peak_gib",
    "sm_activity", "gpus_active", "run_s", "time_limit_s", "wait_s", "profile_needed", "size_from",
)  # fmt: skip
GROUP = (
    "user", "job_class", "profile", "instances", "jobs", "memory_asked_gib", "memory_peak_gib", "profile_hint",
    "instances_hint", "size_risk", "size_risk_at_most", "time_limit_s", "limit_hint_s", "risk_time_out",
    "saved_gpu_hours", "freed_limit_gpu_hours", "size_reason", "limit_reason",
)  # fmt: skip

PLUGIN = "device-plugin"
"""Form of what shares by MPS or in turn."""


@app.command()
def hints(
    folder: Folder,
    tenant: Annotated[str | None, Option(help="Only this tenant.")] = None,
    job: Annotated[str | None, Option(metavar="ID", help="Only this job and its group.")] = None,
    board: Annotated[
        list[str] | None,
        Option(
            metavar="[WORD=]BOARD",
            help="Board behind a word of the source, or of jobs that name none; may be repeated.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        Option("--format", help="Print lines to paste: sbatch, pod or dra; device-plugin with --sharing."),
    ] = None,
    gres_type: Annotated[
        list[str] | None,
        Option(
            metavar="[BOARD=]TYPE",
            help="Slurm's type of a whole GPU in slurm.conf, where it is not what slurmd finds; may be repeated.",
        ),
    ] = None,
    trend: Annotated[
        bool, Option("--trend", help="Where the memory of sampled jobs is heading, and what moving costs.")
    ] = False,
    checkpoint: Annotated[
        float | None, Option(metavar="HOURS", min=0, help="With --trend: hours between checkpoints of a job.")
    ] = None,
    share: Annotated[
        bool,
        Option(
            "--sharing",
            help="How each class may share a GPU: whole, MIG, MPS or time-slicing, and what it means.",
        ),
    ] = False,
    smallest_group: SmallestGroup = 0,
    as_json: Json = False,
) -> None:
    """Compare what past jobs asked for with what they used, and say what to ask for next time."""
    import polars as pl

    from gpuplanner.core.errors import ScenarioError, resolve
    from gpuplanner.sizing.memory_trend import peak_trends
    from gpuplanner.sizing.request_lines import FORMS, plugin_configs, sharing
    from gpuplanner.sizing.request_recommendations import hints as hints_of
    from gpuplanner.usage.job_classes import classify, shipped_rules
    from gpuplanner.usage.job_history import end_of, grouped, load_trace
    from gpuplanner.usage.rightsizing import REQUEST, asked_and_used

    forms = (PLUGIN,) if share else FORMS
    if form is not None and form not in forms:
        raise typer.BadParameter(f"--format: one of {', '.join(forms)}")
    if smallest_group and job is not None:
        raise typer.BadParameter("--job goes without --smallest-group: a job is one person's")
    types = _gres_types(gres_type)
    trace = grouped(load_trace(folder), smallest_group)
    # By how jobs ran, groups would foretell themselves: only rules that can be given before they run.
    rules = [rule for rule in shipped_rules() if rule.before_run]
    jobs = trace.jobs.with_columns(classify(trace.jobs, rules)["job_class"])
    if smallest_group:
        jobs = jobs.with_columns(user=pl.lit(None, pl.String))
    history = asked_and_used(jobs, _boards(board), samples=trace.samples)
    if share:
        table = sharing(history if tenant is None else history.filter(tenant=tenant))
        if form is not None:
            put(plugin_configs(table))
        else:
            show_frame(table, as_json=as_json, title="sharing a GPU, by class")
        return
    if trend:
        if trace.samples is None:
            raise ScenarioError(folder, "telemetry of its jobs", "none", "Add it with 'ingest'.")
        found = peak_trends(history, trace.samples, end_of(trace), checkpoint_h=checkpoint)
        of_all = found.height
        found = found.filter("running" if job is None else pl.col("job_id") == job)
        if found.is_empty():
            hint = "those that ended are followed by --job ID alone"
            say(f"{of_all} sampled jobs, none that is asked for: {hint}")
        show_frame(found, as_json=as_json, title="memory of sampled jobs")
        return
    groups = hints_of(history)
    if tenant is not None:
        names = history["tenant"].unique().sort().to_list()
        groups = groups.filter(tenant=resolve(tenant, names, what="tenant", error=ScenarioError))
    if job is not None:
        history = history.filter(job_id=job)
        if history.is_empty():
            expected = "a job of the trace that has GPUs"
            raise ScenarioError(f"job {job!r}", expected, "none", "Check the id and DIR.")
        groups = groups.join(history.select(REQUEST), on=REQUEST, how="semi", nulls_equal=True)
    lines: list[str | None] = []
    if form is not None:  # under names that differ, so that they are one stream of objects
        numbered = enumerate(groups.iter_rows(named=True), start=1)
        lines = [_lines(row, form, types, f"hint-{number}") for number, row in numbered]
    if as_json:
        rows = groups.to_dicts()
        for row, printed in zip(rows, lines, strict=False):
            row["lines"] = printed
        asked: dict[str, object] = {} if job is None else {"jobs": history.select(JOB)}
        show(asked | {"groups": rows}, as_json=True)
    elif form is not None:
        put(("\n" if form == "sbatch" else "---\n").join(filter(None, lines)) or "# no hint\n")
    else:
        if job is not None:
            show_frame(history.select(JOB), title="asked for and used")
        show_frame(groups.select(GROUP), title="next time")


def _boards(given: list[str] | None) -> dict[str | None, str]:
    boards: dict[str | None, str] = {}
    for text in given or []:
        word, equals, name = text.rpartition("=")
        boards[word if equals else None] = name
    return boards


def _gres_types(given: list[str] | None) -> dict[str | None, str]:
    """Slurm types by board of the catalogue; None: of every other board."""
    from gpuplanner.hardware.catalog import find_board
    from gpuplanner.sizing.request_lines import is_gres_type

    types: dict[str | None, str] = {}
    for text in given or []:
        board, equals, word = text.rpartition("=")
        if not is_gres_type(word):
            raise typer.BadParameter(f"--gres-type: letters, digits, '_', '.' and '-', not {word!r}")
        types[find_board(board) if equals else None] = word
    return types


def _lines(row: dict[str, Any], form: str, types: dict[str | None, str], name: str) -> str | None:
    """Lines for one group, or None where nothing changes."""
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.hardware.gpu_models import load_gpu_model
    from gpuplanner.sizing.request_lines import Request, request_lines

    profile, count = row["profile_hint"] or row["profile"], row["instances_hint"] or row["instances"]
    if (profile, count) == (row["profile"], row["instances"]) and row["limit_hint_s"] is None:
        return None
    of_node = -(-row["instances"] // (row["nodes"] or 1))
    known = row["board"] and load_gpu_model(row["board"])
    who = f"{row['user'] or row['tenant']}, {row['job_class'] or 'class unknown'}"
    note = f"{who}: {row['jobs']} jobs; {row['size_reason']}; {row['limit_reason']}"
    try:
        request = Request(profile, count, row["limit_hint_s"], -(-count // of_node), known)
        return request_lines(request, form, gres_type=_gres_type(row, profile, types), name=name, note=note)
    except GpuPlannerError as error:
        say(f"no lines for {note!a}: {error}")
        return None


def _gres_type(row: dict[str, Any], profile: str, given: dict[str | None, str]) -> str | None:
    """Slurm's type: the one given, the site's own word, or what slurmd finds; none where no board is known."""
    from gpuplanner.core.schemas import WHOLE_GPU
    from gpuplanner.hardware.catalog import slurm_type_of
    from gpuplanner.sizing.request_lines import is_gres_type

    word, board = row["gpu_model"], row["board"]
    named = given.get(board) or given.get(None)
    if named is not None and (word is not None or profile != WHOLE_GPU):
        return named
    if board is not None and (word == board or (word is None and profile != WHOLE_GPU)):
        return slurm_type_of(board)
    return word if word is not None and is_gres_type(word) else None


@app.command()
def phases(
    data: Annotated[
        str, Argument(metavar="DIR", help="A folder written by 'gpuplanner ingest', or 'sample'.")
    ],
    job: Annotated[str | None, Option(help="Show the phases and dips of one job.")] = None,
    board: Board = None,
    effect: Annotated[
        float, Option(min=0.001, max=0.999, help="Smallest reduction of late demand that counts.")
    ] = 0.10,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show phases, dips, bottlenecks and slice fit of jobs with telemetry, by class or of one job."""
    from gpuplanner.usage.dataset_explorer import Inbox
    from gpuplanner.usage.job_history import load_trace
    from gpuplanner.usage.phase_demand import phases_of_jobs

    trace = load_trace(data)
    fleet = Inbox(trace, board).fleet
    samples = _of_jobs(trace.samples, job)
    found = phases_of_jobs(samples, trace.jobs)
    fleet.require_mig("phases")
    if job is not None:
        _one_job(samples, found, trace.jobs, fleet.board, as_json=as_json)
    else:
        _all_jobs(samples, found, trace.jobs, fleet.board, effect, as_json=as_json)
        hint = "--job ID shows one job with its dips and the evidence; --json gives every column"
        say(hint, quiet=quiet or as_json)


def _of_jobs(samples: pl.DataFrame | None, job: str | None) -> pl.DataFrame:
    """Samples that belong to jobs, or to the one job that was asked for."""
    import polars as pl

    from gpuplanner.core.errors import ScenarioError, resolve

    mine = None if samples is None else samples.filter(pl.col("job_id").is_not_null())
    if mine is None or mine.is_empty():
        todo = "Ingest jobs and telemetry into one folder."
        raise ScenarioError("phases", "telemetry that is matched to jobs", "none", todo)
    if job is None:
        return mine
    sampled = mine["job_id"].unique().sort().to_list()
    return mine.filter(job_id=resolve(job, sampled, what="job with telemetry", error=ScenarioError))


def _one_job(
    samples: pl.DataFrame, found: pl.DataFrame, jobs: pl.DataFrame, board: GpuModel, *, as_json: bool
) -> None:
    import polars as pl

    from gpuplanner.usage.bottlenecks import signatures_of
    from gpuplanner.usage.phase_demand import fit_phases
    from gpuplanner.usage.utilization_dips import find_spikes

    fitted = fit_phases(found, board)
    spans = fitted.select("phase", phase_start="start").sort("phase_start")
    placed = samples.sort("time").join_asof(spans, left_on="time", right_on="phase_start")
    by_phase = signatures_of(placed, board, jobs=jobs, by=("job_id", "phase"))
    whole = signatures_of(samples, board, jobs=jobs)
    columns = ["phase", "label", "start", "end", "share", "gpus", "sm_activity", "memory_peak_gib", "power_w",
               "profile_phase", "profile_job", "saved_gpu_hours"]  # fmt: skip
    table = fitted.select(columns).join(by_phase.select("phase", "bound"), on="phase", how="left")
    tables = {"phases": table, "bottleneck": whole.select("job_id", "bound", "evidence")}
    facts: dict[str, Any] = {"period_s": None, "rule": None}
    if samples["sm_activity"].count():
        spikes = find_spikes(samples)
        tables["dips"] = spikes.table.select("start", "end", "label", pl.col("depth").round(3), "evidence")
        period = None if spikes.period is None else spikes.period.total_seconds()
        facts = {"period_s": period, "rule": spikes.rule}
    if as_json:
        show({**tables, **facts}, as_json=True)
    else:
        show_tables(tables)
        show(facts)


def _all_jobs(
    samples: pl.DataFrame,
    found: pl.DataFrame,
    jobs: pl.DataFrame,
    board: GpuModel,
    effect: float,
    *,
    as_json: bool,
) -> None:
    import polars as pl

    from gpuplanner.usage.bottlenecks import signatures_by_class, signatures_of
    from gpuplanner.usage.phase_demand import claim_by_class, demand_by_class, fit_phases
    from gpuplanner.usage.utilization_dips import spikes_of_jobs

    demand = demand_by_class(found)
    bounds = signatures_by_class(signatures_of(samples, board, jobs=jobs), jobs)
    claim = claim_by_class(samples, found, board, effect=effect)
    dips = (
        spikes_of_jobs(samples)
        .join(jobs.select("job_id", "job_class").unique("job_id"), on="job_id", how="left")
        .group_by("job_class", "label")
        .agg(jobs=pl.len(), dips=pl.col("dips").sum(), every_s=pl.col("every_s").median(),
             last_s=pl.col("last_s").median())
        .sort("job_class", "label")
    )  # fmt: skip
    saved = (
        fit_phases(found, board)
        .filter(pl.col("gpus") <= 1)
        .group_by("job_class")
        .agg(jobs=pl.col("job_id").n_unique(), gpu_hours=pl.col("run_s").sum() / 3600.0,
             saved_gpu_hours_at_most=pl.col("saved_gpu_hours").sum())
        .sort("job_class")
    )  # fmt: skip
    tables = {
        "demand by class and phase": demand,
        "dips by class": dips,
        "what the GPUs wait for": bounds,
        "do late phases need fewer GPUs?": claim,
        "slices cut by phase instead of by job, jobs on one GPU": saved,
    }
    if not as_json:
        tables["demand by class and phase"] = demand.select(
            "job_class", "label", "jobs", "share", "share_q25", "share_q75", "sm_activity", "memory_peak_gib",
            "power_w", "gpus",
        )  # fmt: skip
        tables["what the GPUs wait for"] = bounds.drop("board")
        first = (pl.col("part") == "thirds") & (pl.col("need") == "both")
        alike = (pl.col("verdict") == pl.col("verdict").first()).sum().over("job_class")
        verdicts = pl.format("{} of {}", alike, pl.len().over("job_class"))
        tables["do late phases need fewer GPUs?"] = claim.with_columns(same_verdict=verdicts).filter(first)
    show_tables(tables, as_json=as_json)


@app.command()
@takes("tz")
def waits(scenario: ScenarioPath, given: Given, as_json: Json = False) -> None:
    """Say why jobs waited: too few GPUs, not together, wrongly partitioned, behind others, limits."""
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.decision.explained_waits import cause_table, explain_waits, sum_waits
    from gpuplanner.decision.requests import asked_of
    from gpuplanner.usage.job_history import history

    asked = asked_of(history(given.scenario(scenario)))
    found = sum_waits(asked, explain_waits(asked))
    if as_json:
        show(to_plain(found), as_json=True)
        return
    put(found.sentence)
    for by, rows in vars(found.causes).items():
        show_frame(cause_table(rows), title=f"hours waited by {by.replace('_', ' ')}")
    put(*(f"{one.tenant}: its jobs waited as if it were held to {one.gpus:g} GPUs" for one in found.limits))
