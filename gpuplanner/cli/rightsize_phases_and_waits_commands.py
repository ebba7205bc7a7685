"""Commands about past jobs: ``rightsize``, ``phases`` and ``waits``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    GpuModelName,
    Json,
    Quiet,
    ScenarioOptions,
    ScenarioPath,
    SmallestGroup,
    app,
    echo,
    find_data,
    notify,
    show,
    show_frame,
    show_tables,
    with_fields,
)

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.hardware.gpu_models import GpuModel


Folder = Annotated[str, Argument(metavar="DIR", callback=find_data, help="Dataset folder from 'ingest', or 'sample'.")]
"""Argument DIR: dataset folder, or ``sample``."""

SHOWN_JOB_COLUMNS = (
    "job_id", "attempt", "state", "gpu_model", "profile", "instances", "memory_asked_gib", "memory_peak_gib",
    "sm_activity", "gpus_active", "run_s", "time_limit_s", "wait_s", "profile_needed", "size_from",
)  # fmt: skip
"""Printed columns of recommendations for single jobs."""
DEVICE_PLUGIN_FORMAT = "device-plugin"
"""Value of ``--format`` for the NVIDIA device plugin configuration of MPS and time-slicing."""


@app.command()
def rightsize(
    folder: Folder,
    tenant: Annotated[str | None, Option("--team", help="Only the jobs of this team.")] = None,
    user: Annotated[str | None, Option(help="Only the jobs of this user.")] = None,
    job: Annotated[str | None, Option(metavar="ID", help="Only this job and its group.")] = None,
    gpu_model: Annotated[
        list[str] | None,
        Option(
            metavar="[NAME=]MODEL", help="GPU model behind a name in the source, or of jobs that name none; repeatable."
        ),
    ] = None,
    profile: Annotated[str | None, Option(help="Only requests for this profile, as for a part of a change.")] = None,
    form: Annotated[
        str | None, Option("--format", help="Print request lines: sbatch, pod or dra; device-plugin with --sharing.")
    ] = None,
    gres_type: Annotated[
        list[str] | None,
        Option(
            metavar="[MODEL=]TYPE",
            help="GRES type of a full GPU in slurm.conf, if slurmd detects another one; repeatable.",
        ),
    ] = None,
    trend: Annotated[
        bool, Option("--trend", help="Show the memory trend of jobs with telemetry, and the cost of moving them.")
    ] = False,
    checkpoint: Annotated[
        float | None, Option(metavar="HOURS", min=0, help="With --trend: hours between two checkpoints of a job.")
    ] = None,
    share: Annotated[
        bool, Option("--sharing", help="Show how each job class can share a GPU: full GPU, MIG, MPS or time-slicing.")
    ] = False,
    smallest_group: SmallestGroup = 0,
    as_json: Json = False,
) -> None:
    """Recommend smaller GPU requests from observed usage.

    Jobs are grouped by user, class and request. Each group gets a recommended
    profile and time limit, with the risk of running out of memory or time. With
    --format, prints the request lines to paste.

    Example: gpuplanner rightsize build/mine/data --team vision --format pod
    """
    import polars as pl

    from gpuplanner.core.errors import ScenarioError, resolve_name
    from gpuplanner.sizing.memory_trend import peak_trends
    from gpuplanner.sizing.request_lines_and_gpu_sharing import REQUEST_FORMS, format_plugin_configs, recommend_sharing
    from gpuplanner.usage.job_classes import classify_before_run
    from gpuplanner.usage.planning_history import load_dataset, merge_small_tenants, observation_ends_at
    from gpuplanner.usage.request_recommendations import recommend_requests
    from gpuplanner.usage.rightsizing import SAME_REQUEST_KEY_COLUMNS, requested_and_used

    forms = (DEVICE_PLUGIN_FORMAT,) if share else REQUEST_FORMS
    if form is not None and form not in forms:
        raise typer.BadParameter(f"--format: expected one of {', '.join(forms)}; got {form!r}")
    if smallest_group and job is not None:
        raise typer.BadParameter("use either --job or --smallest-group: one job shows one person")
    types = _parse_gres_types(gres_type)
    trace = merge_small_tenants(load_dataset(folder), smallest_group)
    jobs = classify_before_run(trace.jobs)
    if smallest_group:
        jobs = jobs.with_columns(user=pl.lit(None, pl.String))
    history = requested_and_used(jobs, _parse_gpu_models(gpu_model), samples=trace.samples)
    if share:
        table = recommend_sharing(history if tenant is None else history.filter(tenant=tenant))
        if form is not None:
            echo(format_plugin_configs(table))
        else:
            note = "requested GPU-hours: of jobs that ended, whatever they were allocated"
            show_frame(table, as_json=as_json, title=f"How each job class can share a GPU ({note})")
        return
    if trend:
        if trace.samples is None:
            todo = "Import it: gpuplanner ingest auto FILE -o DIR."
            raise ScenarioError(folder, "GPU telemetry of its jobs", "none", todo)
        trends = peak_trends(history, trace.samples, observation_ends_at(trace), checkpoint_h=checkpoint)
        n_jobs = trends.height
        trends = trends.filter("running" if job is None else pl.col("job_id") == job)
        if trends.is_empty():
            notify(f"{n_jobs} jobs have telemetry, and none of them is running; --job ID shows a job that ended")
        show_frame(trends, as_json=as_json, title="Memory trend of jobs with telemetry")
        return
    selected = history
    for column, subject, name in (("tenant", "team", tenant), ("user", "user", user)):
        if name is not None:
            names = history[column].drop_nulls().unique().sort().to_list()
            chosen = resolve_name(name, names, subject=subject, error=ScenarioError)
            selected = selected.filter(pl.col(column) == chosen)
    groups = recommend_requests(selected)
    of_job = selected if job is None else selected.filter(job_id=job)
    if job is not None and of_job.is_empty():
        expected = "a job of the dataset that was allocated GPUs"
        raise ScenarioError(f"job {job!r}", expected, "no such job", "Check the job id and the folder.")
    groups = groups.join(of_job, on=SAME_REQUEST_KEY_COLUMNS, how="semi", nulls_equal=True)
    by_request = groups.rename({"jobs": "jobs_of_request"}).drop("gpu_hours", "saved_gpu_hours")
    parts = by_request.explode("jobs_by_profile").unnest("jobs_by_profile")
    if job is not None and profile is None:  # of the profiles of its request, the one that it needs itself
        needed_profiles = of_job.filter(pl.col("rank_needed").is_not_null())["profile_needed"]
        profile = next((name for name in needed_profiles if name in parts["profile_to_request"]), None)
    if profile is not None:
        names = parts["profile_to_request"].drop_nulls().unique().sort().to_list()
        profile = resolve_name(profile, names, subject="recommended profile", error=ScenarioError)
        parts = parts.filter(profile_to_request=profile)
    requests = parts.to_dicts()
    if form is not None:  # with distinct names, so that they form one stream of objects
        for number, request in enumerate(requests, start=1):
            request["lines"] = _request_lines(request, form, types, f"request-{number}")
    shown_job = of_job.with_columns(gpu_model="board").select(SHOWN_JOB_COLUMNS)
    if as_json:
        show(({} if job is None else {"jobs": shown_job}) | {"requests": requests}, as_json=True)
    elif form is not None:
        why = f"# no recommendation: {'; '.join(_list_reasons(groups).head(3)['reason'])}\n"
        lines = filter(None, (request["lines"] for request in requests))
        echo(("\n" if form == "sbatch" else "---\n").join(lines) or why)
    else:
        if job is not None:
            show_frame(shown_job, title="Requested and used")
        jobs_text = pl.format("{} of {}", "jobs", "jobs_of_request")
        shown = parts.sort("saved_gpu_hours", descending=True, nulls_last=True, maintain_order=True).select(
            *([] if tenant else ["tenant"]), "user", "job_class", request=pl.format("{} x {}", "instances", "profile"),
            recommended=pl.format("{} x {}", "instances_hint", "profile_to_request"), jobs=jobs_text,
            risk=pl.when(pl.col("profile_to_request") == pl.col("recommended_profile")).then("size_risk_at_most"),
            limit_s="recommended_time_limit_s", saved_gpu_hours="saved_gpu_hours",
        )  # fmt: skip
        shown = shown.drop(name for name in ("user", "limit_s") if shown[name].null_count() == shown.height)
        title = "Recommended requests (several profiles: owners choose; risk: so many later runs need more at most)"
        show_frame(shown, title=title)
        show_frame(_list_reasons(groups), title="Main reasons")
    if not as_json:
        notify(*_rightsizing_notes(parts, trace.inventory, history))


def _list_reasons(groups: pl.DataFrame) -> pl.DataFrame:
    """List the main reasons for sizes and time limits with the groups and GPU-hours that they hold for."""
    import polars as pl

    texts = pl.concat_str(pl.col("size_reason", "limit_reason"), separator="; ", ignore_nulls=True).str.split("; ")
    reasons = groups.select("gpu_hours", reason=texts).explode("reason").group_by("reason", maintain_order=True)
    sums = reasons.agg(groups=pl.len(), gpu_hours=pl.col("gpu_hours").sum())
    return sums.sort("gpu_hours", descending=True, maintain_order=True).head(12)


def _rightsizing_notes(parts: pl.DataFrame, inventory: pl.DataFrame | None, history: pl.DataFrame) -> Iterator[str]:
    """Yield the GPU-hours saved and without a size, and recommended MIG profiles that no node or job has."""
    import polars as pl

    from gpuplanner.core.schemas import FULL_GPU
    from gpuplanner.hardware.mig_layouts import parse_layout

    basis = "a MIG slice counts its compute slices, although its memory may take up more of a GPU"
    saved_hours, hours = parts["saved_gpu_hours"].sum(), parts["gpu_hours"].sum()
    yield f"saved: {saved_hours:,.1f} of {hours:,.1f} requested GPU-hours ({basis})"
    if stated := parts["jobs_on_full_gpus"].sum():
        above = f"{parts['gpu_hours_above_request'].sum():,.1f} GPU-hours more than they requested"
        yield f"{stated:,} jobs stated a MIG profile and ran on full GPUs: they were allocated {above}"
    unsized = parts.filter(pl.col("recommended_profile").is_null())
    if n_unknown := unsized.filter(pl.col("board").is_null())["jobs"].sum():
        yield f"{n_unknown:,} jobs have GPU models that are not known: name them with --gpu-model NAME=MODEL"
    if hours_left := unsized.drop_nulls("board")["gpu_hours"].sum():
        yield f"{hours_left:,.1f} GPU-hours without a size: import more telemetry: gpuplanner ingest auto FILE -o DIR"
    layouts = [] if inventory is None else inventory["layouts"].drop_nulls().str.split(";").explode().to_list()
    profiles_in_use = history.filter("is_cut")["profile"]
    offered = {FULL_GPU, *profiles_in_use, *(name for layout in layouts for name in parse_layout(layout))}
    if missing := sorted(set(parts["profile_to_request"].drop_nulls()) - offered):
        yield f"no node offers {', '.join(missing)} yet: requests for it wait until its MIG layout is in force"


def _parse_gpu_models(texts: list[str] | None) -> dict[str | None, str]:
    """Parse options ``[NAME=]MODEL``: GPU model by its label in the source; None: of jobs without a label."""
    parts = (text.rpartition("=") for text in texts or ())
    return {label if equals else None: name for label, equals, name in parts}


def _parse_gres_types(texts: list[str] | None) -> dict[str | None, str]:
    """Parse options ``[MODEL=]TYPE``: GRES type by GPU model of the catalogue; None: of all other models."""
    from gpuplanner.hardware.catalog import resolve_mig_model
    from gpuplanner.sizing.request_lines_and_gpu_sharing import is_gres_type

    types: dict[str | None, str] = {}
    for text in texts or []:
        gpu_model, equals, gres_type = text.rpartition("=")
        if not is_gres_type(gres_type):
            raise typer.BadParameter(f"--gres-type: expected letters, digits, '_', '.' and '-'; got {gres_type!r}")
        types[resolve_mig_model(gpu_model) if equals else None] = gres_type
    return types


def _request_lines(row: dict[str, Any], form: str, types: dict[str | None, str], name: str) -> str | None:
    """Request lines of the jobs of a group that need one profile; None if nothing changes or they cannot be made.

    Parameters
    ----------
    row : dict
        Recommendation for the group, with the profile and number of these jobs.
    form : str
        sbatch, pod or dra.
    types : dict
        GRES type by GPU model of the catalogue; under None, that of all other models.
    name : str
        Name of the Kubernetes objects (pod, resource claim) in the lines.
    """
    from gpuplanner.core.errors import GpuPlannerError
    from gpuplanner.core.schemas import FULL_GPU
    from gpuplanner.core.units_and_number_formats import count_text
    from gpuplanner.hardware.gpu_models import load_gpu_model
    from gpuplanner.sizing.request_lines_and_gpu_sharing import GpuRequest, format_request_lines

    profile, count = row["profile_to_request"], row["instances_hint"] or row["instances"]
    is_kept = (profile, count) == (row["profile"], row["instances"])
    is_stated = row["jobs_on_full_gpus"] > 0
    if is_kept and not is_stated and row["recommended_time_limit_s"] is None:
        return None
    instances_per_node = -(-row["instances"] // (row["nodes"] or 1))
    gpu_model = row["board"] and load_gpu_model(row["board"])
    owner = f"{row['user'] or row['tenant']}, {row['job_class'] or 'class unknown'}"
    today = f"{row['instances']} x {'full GPU' if row['profile'] == FULL_GPU else row['profile']}"
    origin = f"which stated {today} and ran on full GPUs" if is_stated else f"instead of {today}"
    jobs, reason = count_text(row["jobs_of_request"], "job"), row["size_reason"]
    if row["jobs"] < row["jobs_of_request"]:
        jobs = f"{row['jobs']:,} of {jobs}"
        is_less = profile != row["recommended_profile"]
        reason = "needed no more, others with this request did: the owner chooses" if is_less else reason
    note = f"{owner}: {jobs}, {origin}; {reason}; {row['limit_reason']}"
    try:
        request = GpuRequest(
            profile, count, row["recommended_time_limit_s"], -(-count // instances_per_node), gpu_model
        )
        return format_request_lines(request, form, gres_type=_find_gres_type(row, profile, types), name=name, note=note)
    except GpuPlannerError as error:
        notify(f"no request lines for {note!a}: {error}")
        return None


def _find_gres_type(row: dict[str, Any], profile: str, stated_types: dict[str | None, str]) -> str | None:
    """GRES type of a request: as stated, as in the source, or as slurmd detects it; None for unknown GPU models."""
    from gpuplanner.core.schemas import FULL_GPU
    from gpuplanner.hardware.catalog import find_slurm_type
    from gpuplanner.sizing.request_lines_and_gpu_sharing import is_gres_type

    label, gpu_model = row["gpu_model"], row["board"]
    stated_type = stated_types.get(gpu_model) or stated_types.get(None)
    if stated_type is not None and (label is not None or profile != FULL_GPU):
        return stated_type
    if gpu_model is not None and (label == gpu_model or (label is None and profile != FULL_GPU)):
        return find_slurm_type(gpu_model)
    return label if label is not None and is_gres_type(label) else None


@app.command()
def phases(
    data: Folder,
    job: Annotated[str | None, Option(help="Show the phases and utilization dips of this job.")] = None,
    gpu_model: GpuModelName = None,
    effect: Annotated[
        float, Option(min=0.001, max=0.999, help="Smallest drop of GPU demand in final phases that counts, 0 to 1.")
    ] = 0.10,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Detect phases and bottlenecks in jobs with telemetry.

    Shows phases, utilization dips, bottlenecks and the MIG profile that fits, by
    job class or of one job (--job).

    Example: gpuplanner phases build/mine/data --job 4711
    """
    from gpuplanner.usage.dataset_explorer import ExploredDataset
    from gpuplanner.usage.demand_by_phase_and_late_demand_test import phases_of_jobs
    from gpuplanner.usage.planning_history import load_dataset

    trace = load_dataset(data)
    fleet = ExploredDataset(trace, gpu_model).fleet
    samples = _samples_of_jobs(trace.samples, job)
    job_phases = phases_of_jobs(samples, trace.jobs)
    fleet.require_mig("phases")
    if job is not None:
        _show_job_phases(samples, job_phases, trace.jobs, fleet.gpu_model, as_json=as_json)
    else:
        _show_class_phases(samples, job_phases, trace.jobs, fleet.gpu_model, effect, as_json=as_json)
        hint = "--job ID shows one job with its dips and the evidence; --json prints every column"
        notify(hint, quiet=quiet or as_json)


def _samples_of_jobs(samples: pl.DataFrame | None, job: str | None) -> pl.DataFrame:
    """Select the telemetry samples of jobs, or of one job; raise an error if there are none."""
    import polars as pl

    from gpuplanner.core.errors import ScenarioError, resolve_name

    job_samples = None if samples is None else samples.filter(pl.col("job_id").is_not_null())
    if job_samples is None or job_samples.is_empty():
        todo = "Import jobs and telemetry into one folder: gpuplanner ingest SOURCE FILE -o DIR."
        raise ScenarioError("phases", "telemetry that matches jobs", "none", todo)
    if job is None:
        return job_samples
    sampled = job_samples["job_id"].unique().sort().to_list()
    return job_samples.filter(job_id=resolve_name(job, sampled, subject="job with telemetry", error=ScenarioError))


def _show_job_phases(
    samples: pl.DataFrame, job_phases: pl.DataFrame, jobs: pl.DataFrame, gpu_model: GpuModel, *, as_json: bool
) -> None:
    """Print the phases, bottlenecks and utilization dips of one job."""
    import polars as pl

    from gpuplanner.usage.bottlenecks import classify_bottlenecks
    from gpuplanner.usage.demand_by_phase_and_late_demand_test import fit_phases
    from gpuplanner.usage.utilization_dips import find_dips

    fitted = fit_phases(job_phases, gpu_model)
    spans = fitted.select("phase", phase_start="start").sort("phase_start")
    phase_samples = samples.sort("time").join_asof(spans, left_on="time", right_on="phase_start")
    by_phase = classify_bottlenecks(phase_samples, gpu_model, jobs=jobs, by=("job_id", "phase"))
    job_bounds = classify_bottlenecks(samples, gpu_model, jobs=jobs)
    columns = ["phase", "label", "start", "end", "share", "gpus", "sm_activity", "memory_peak_gib", "power_w",
               "profile_phase", "profile_job", "saved_gpu_hours"]  # fmt: skip
    table = fitted.select(columns).join(by_phase.select("phase", "bound"), on="phase", how="left")
    tables = {"phases": table, "bottleneck": job_bounds.select("job_id", "bound", "evidence")}
    facts: dict[str, Any] = {"period_s": None, "rule": None}
    if samples["sm_activity"].count():
        spikes = find_dips(samples)
        tables["dips"] = spikes.table.select("start", "end", "label", pl.col("depth").round(3), "evidence")
        period = None if spikes.period is None else spikes.period.total_seconds()
        facts = {"period_s": period, "rule": spikes.rule}
    if as_json:
        show({**tables, **facts}, as_json=True)
    else:
        show_tables(tables)
        show(facts)


def _show_class_phases(
    samples: pl.DataFrame,
    job_phases: pl.DataFrame,
    jobs: pl.DataFrame,
    gpu_model: GpuModel,
    effect: float,
    *,
    as_json: bool,
) -> None:
    """Print phases, bottlenecks and fitting MIG profile by job class.

    `effect` is the smallest drop of GPU demand late in a job that counts, as a share [0-1].
    """
    import polars as pl

    from gpuplanner.usage.bottlenecks import bottlenecks_by_class, classify_bottlenecks
    from gpuplanner.usage.demand_by_phase_and_late_demand_test import demand_by_class, fit_phases, late_demand_by_class
    from gpuplanner.usage.utilization_dips import dips_of_jobs

    demand = demand_by_class(job_phases)
    bounds = bottlenecks_by_class(classify_bottlenecks(samples, gpu_model, jobs=jobs), jobs)
    claim = late_demand_by_class(samples, job_phases, gpu_model, effect=effect)
    dips = (
        dips_of_jobs(samples)
        .join(jobs.select("job_id", "job_class").unique("job_id"), on="job_id", how="left")
        .group_by("job_class", "label")
        .agg(jobs=pl.len(), dips=pl.col("dips").sum(), every_s=pl.col("every_s").median(),
             last_s=pl.col("last_s").median())
        .sort("job_class", "label")
    )  # fmt: skip
    freed_hours = (
        fit_phases(job_phases, gpu_model)
        .filter(pl.col("gpus") <= 1)
        .group_by("job_class")
        .agg(jobs=pl.col("job_id").n_unique(), gpu_hours=pl.col("run_s").sum() / 3600.0,
             saved_gpu_hours_at_most=pl.col("saved_gpu_hours").sum())
        .sort("job_class")
    )  # fmt: skip
    tables = {
        "demand by class and phase": demand,
        "dips by class": dips,
        "bottlenecks by class": bounds,
        "demand, final against early": claim,
        "GPU-hours freed by a profile for each phase instead of one for the job, jobs on one GPU": freed_hours,
    }
    if not as_json:
        tables["demand by class and phase"] = demand.select(
            "job_class", "label", "jobs", "share", "share_q25", "share_q75", "sm_activity", "memory_peak_gib",
            "power_w", "gpus",
        )  # fmt: skip
        tables["bottlenecks by class"] = bounds.drop("board")
        is_main_row = (pl.col("part") == "thirds") & (pl.col("need") == "both")
        is_same_verdict = (pl.col("verdict") == pl.col("verdict").first()).sum().over("job_class")
        verdicts = pl.format("{} of {}", is_same_verdict, pl.len().over("job_class"))
        tables["demand, final against early"] = claim.with_columns(same_verdict=verdicts).filter(is_main_row)
    show_tables(tables, as_json=as_json)


@app.command()
@with_fields("tz", "month")
def waits(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
    team: Annotated[str | None, Option("--team", help="Only the jobs of this team.")] = None,
    as_json: Json = False,
) -> None:
    """Explain queue waits: capacity, fragmentation, layout or limits.

    Shows the hours waited by cause, in total and by job size, team and partition.

    Example: gpuplanner waits build/mine/data --month 2026-10 --team vision
    """
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.core.units_and_number_formats import percent_text
    from gpuplanner.decision.explained_waits import explain_waits, make_cause_table, sum_waits
    from gpuplanner.decision.recommendation import build_wait_model
    from gpuplanner.decision.requested_jobs import read_replay_inputs
    from gpuplanner.decision.wait_curve import CURVE_RUNS
    from gpuplanner.usage.grouped_usage import UsageFilter
    from gpuplanner.usage.planning_history import history

    job_history = history(options.make_scenario(scenario_path))
    jobs = UsageFilter(team=team).jobs_in(job_history.trace)
    team = team and str(jobs["tenant"][0])  # its whole name
    requests = read_replay_inputs(job_history)
    explained_waits = explain_waits(requests)
    wait_causes = sum_waits(requests, explained_waits, team)
    if as_json:
        show(to_plain(wait_causes), as_json=True)
        return
    echo(f"{team}: {wait_causes.main_cause_text}" if team else wait_causes.main_cause_text)
    if wait_causes.explained_fraction is not None:
        error = percent_text(build_wait_model(requests, explained_waits).mean_replay_error())
        echo(
            f"Replay of {'all teams' if team else 'the record'}, error of the hours waited by team and job size: "
            f"{percent_text(wait_causes.replay_error)} in the closest of {CURVE_RUNS} replays, {error} on average. "
            "The report shows waits by job size if the closest is within 30 %."
        )
    total, counted = jobs.height, sum(row.jobs for row in wait_causes.causes.job_size)
    if counted < total:
        reasons = "have an unknown number of GPUs, never started or were submitted before the period"
        echo(f"{counted:,} of {total:,} jobs count; the others {reasons}.")
    for by, rows in vars(wait_causes.causes).items():
        show_frame(make_cause_table(rows), title=f"Queue wait by {by.replace('_', ' ')} (hours)")
    echo(
        *(
            f"{limit.tenant}: jobs waited whenever the team had {limit.amount_text}: a limit of the team is assumed"
            for limit in wait_causes.limits
        )
    )
