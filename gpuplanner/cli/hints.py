"""The command for those who submit jobs: ``hints``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, SmallestGroup
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl

Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder written by 'ingest', or 'sample'.")]

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
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only this job and its group.")
    ] = None,
    board: Annotated[
        list[str] | None,
        typer.Option(
            "--board",
            metavar="[WORD=]BOARD",
            help="Board behind a word of the source, or of jobs that name none; may be repeated.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="Print lines to paste: sbatch, pod or dra; device-plugin with --sharing."
        ),
    ] = None,
    gres_type: Annotated[
        list[str] | None,
        typer.Option(
            "--gres-type",
            metavar="[BOARD=]TYPE",
            help="Slurm's type of a whole GPU in slurm.conf, where it is not what slurmd finds; may be repeated.",
        ),
    ] = None,
    trend: Annotated[
        bool,
        typer.Option("--trend", help="Where the memory of sampled jobs is heading, and what moving costs."),
    ] = False,
    checkpoint: Annotated[
        float | None,
        typer.Option(
            "--checkpoint", metavar="HOURS", min=0, help="With --trend: hours between checkpoints of a job."
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            "--sharing",
            help="How each class may share a GPU: whole, MIG, MPS or time-slicing, and what it means.",
        ),
    ] = False,
    smallest_group: SmallestGroup = 0,
    as_json: Json = False,
) -> None:
    """Compare what past jobs asked for with what they used, and say what to ask for next time."""
    import polars as pl

    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.names import resolve
    from gpuplanner.sizing.advice.request_lines import FORMS
    from gpuplanner.sizing.past_use import REQUEST, asked_and_used
    from gpuplanner.sizing.peak_trend import peak_trends
    from gpuplanner.sizing.shared_gpus import plugin_configs, sharing
    from gpuplanner.sizing.advice.hints import hints as hints_of
    from gpuplanner.study.past.history import end_of, grouped, load_trace

    forms = (PLUGIN,) if share else FORMS
    if form is not None and form not in forms:
        text = f"--format: one of {', '.join(forms)}"
        raise typer.BadParameter(text)
    if smallest_group and job is not None:
        text = "--job goes without --smallest-group: a job is one person's"
        raise typer.BadParameter(text)
    types = _gres_types(gres_type)
    trace = grouped(load_trace(folder), smallest_group)
    jobs = _with_classes(trace.jobs)
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
            raise ScenarioError(message(folder, "telemetry of its jobs", "none", "Add it with 'ingest'."))
        found = peak_trends(history, trace.samples, end_of(trace), checkpoint_h=checkpoint)
        of_all = found.height
        found = found.filter("running" if job is None else pl.col("job_id") == job)
        if found.is_empty():
            say(
                f"{of_all} sampled jobs, none that is asked for: those that ended are followed by --job ID alone"
            )
        show_frame(found, as_json=as_json, title="memory of sampled jobs")
        return
    groups = hints_of(history)
    if tenant is not None:
        names = history["tenant"].unique().sort().to_list()
        groups = groups.filter(tenant=resolve(tenant, names, what="tenant", error=ScenarioError))
    if job is not None:
        history = history.filter(job_id=job)
        if history.is_empty():
            text = message(
                f"job {job!r}", "a job of the trace that has GPUs", "none", "Check the id and DIR."
            )
            raise ScenarioError(text)
        groups = groups.join(history.select(REQUEST), on=REQUEST, how="semi", nulls_equal=True)
    lines = [] if form is None else _all_lines(groups, form, types)
    if as_json:
        rows = groups.to_dicts()
        for row, printed in zip(rows, lines, strict=False):
            row["lines"] = printed
        asked = {} if job is None else {"jobs": history.select(JOB).to_dicts()}
        show((asked | {"groups": rows}), as_json=True)
    elif form is not None:
        put(("\n" if form == "sbatch" else "---\n").join(filter(None, lines)) or "# no hint\n")
    else:
        if job is not None:
            show_frame(history.select(JOB), as_json=False, title="asked for and used")
        show_frame(groups.select(GROUP), as_json=False, title="next time")


def _with_classes(jobs: pl.DataFrame) -> pl.DataFrame:
    """Jobs with the class that a rule can give before they run; by how they ran, groups would foretell themselves."""
    from gpuplanner.sizing.classes.classify import classify
    from gpuplanner.sizing.classes.rules import shipped_rules

    rules = [rule for rule in shipped_rules() if rule.before_run]
    return jobs.with_columns(classify(jobs, rules)["job_class"])


def _boards(given: list[str] | None) -> dict[str | None, str]:
    boards: dict[str | None, str] = {}
    for text in given or []:
        word, equals, name = text.rpartition("=")
        boards[word if equals else None] = name
    return boards


def _gres_types(given: list[str] | None) -> dict[str | None, str]:
    """Slurm types by board of the catalogue; None: of every other board."""
    from gpuplanner.catalog.loader import find_board
    from gpuplanner.sizing.advice.request_lines import is_gres_type

    types: dict[str | None, str] = {}
    for text in given or []:
        board, equals, word = text.rpartition("=")
        if not is_gres_type(word):
            text_out = f"--gres-type: letters, digits, '_', '.' and '-', not {word!r}"
            raise typer.BadParameter(text_out)
        types[find_board(board) if equals else None] = word
    return types


def _all_lines(groups: pl.DataFrame, form: str, types: dict[str | None, str]) -> list[str | None]:
    """Lines of each group, under names that differ, so that they are one stream of objects."""
    rows = groups.iter_rows(named=True)
    return [_lines(row, form, types, f"hint-{number}") for number, row in enumerate(rows, start=1)]


def _lines(row: dict[str, Any], form: str, types: dict[str | None, str], name: str) -> str | None:
    """Lines for one group, or None where nothing changes."""
    from gpuplanner.errors import GpuPlannerError
    from gpuplanner.hardware.gpu import load_gpu_model
    from gpuplanner.sizing.advice.request_lines import Request, request_lines

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
    from gpuplanner.catalog.aliases import slurm_type_of
    from gpuplanner.schemas.vocabulary import WHOLE_GPU
    from gpuplanner.sizing.advice.request_lines import is_gres_type

    word, board = row["gpu_model"], row["board"]
    named = given.get(board) or given.get(None)
    if named is not None and (word is not None or profile != WHOLE_GPU):
        return named
    if board is not None and (word == board or (word is None and profile != WHOLE_GPU)):
        return slurm_type_of(board)
    return word if word is not None and is_gres_type(word) else None
