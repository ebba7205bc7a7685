"""The command ``size``: memory and speed of a job or service before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gpuplanner.cli.application import (
    Json,
    Overwrite,
    ScenarioOptions,
    app,
    echo,
    find_data,
    notify,
    require_outputs,
    show,
    show_frame,
)

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.sizing.job_plans import SizingRequest
    from gpuplanner.sizing.learned_memory import PeakModel


JOB_PLAN_COLUMNS = (  # printed columns of plans for a job
    "rank", "gpu_model", "profile", "gpus", "tp", "pp", "dp", "ep", "sharding", "recompute", "micro_batch",
    "concurrency",
    "predicted_gib", "upper_gib", "gpu_gib", "p_oom", "tokens_per_s", "hours", "price", "energy_kwh",
)  # fmt: skip
"""Printed columns of plans for a training job."""

SERVICE_PLAN_COLUMNS = (  # printed columns of plans for a service
    "rank", "gpu_model", "profile", "replicas", "gpus_per_replica", "gpus", "ttft_p99_ms", "ttft_high_ms", "itl_p95_ms",
    "itl_high_ms", "headroom", "usd_per_hour", "usd_per_million_tokens", "usd_per_million_prompt_tokens",
    "usd_per_million_answer_tokens",
)  # fmt: skip
"""Printed columns of plans for an inference service."""

SHOWN_INPUTS = ("model", "method", "gpu_model", "gpus", "concurrency")
"""Input columns that are printed beside the predictions."""

HOPELESS_OOM_PROBABILITY = 0.99
"""Out-of-memory probability on all MIG profiles above which their table is not printed."""

TableFile = Annotated[
    Path | None,
    Option(
        metavar="ROWS.csv",
        help="Predict the peak memory of each row: framework, model, method, seq_len, micro_batch, precision, "
        "optimizer, quantization, zero_stage, fsdp, tp, pp, dp, cp, ep, device_map, gpu; missing values are assumed. "
        "With --task serve the speed: model, gpu_model, gpus, precision, prompt_tokens, answer_tokens, concurrency.",
    ),
]
"""Option ``--table``: CSV file with a job in each row."""


@app.command()
def size(
    model: Annotated[
        str | None,
        Option(metavar="MODEL", help="Model: a preset name, a config.json, Megatron arguments, or 'layers=32 …'."),
    ] = None,
    task: Annotated[str, Option(help="With --model: train, dpo, lora, qlora or serve; with --table: serve.")] = "train",
    seq: Annotated[int, Option(min=1, help="Sequence length in tokens; serving: prompt plus answer.")] = 4096,
    tool: Annotated[str | None, Option(help="Training tool, such as torchtitan.")] = None,
    tokens: Annotated[float | None, Option(help="Number of tokens to train on or to generate.")] = None,
    deadline: Annotated[str | None, Option(help="Maximum run time: 36h, 7d.")] = None,
    gpus: Annotated[
        list[str] | None, Option(metavar="MODEL[=COUNT]", help="GPU model to use, and the number of GPUs; repeatable.")
    ] = None,
    scenario_path: Annotated[
        str | None,
        Option("--scenario", "--data", callback=find_data, help="Scenario, dataset or 'sample' with the GPU models."),
    ] = None,
    quantization: Annotated[
        str | None, Option(help="Quantization of frozen or served weights: nf4, int8, fp8. [default: as published]")
    ] = None,
    cache_dtype: Annotated[str, Option(help="Serving: data type of the KV cache; fp8 for 8 bits.")] = "",
    adapters: Annotated[int, Option(min=0, help="Serving: number of LoRA adapters.")] = 0,
    prompt: Annotated[int | None, Option(min=1, help="Serving: tokens of a prompt.")] = None,
    answer: Annotated[int | None, Option(min=1, help="Serving: tokens of an answer.")] = None,
    rate: Annotated[float | None, Option(min=1e-6, help="Serving: requests per second.")] = None,
    ttft_ms: Annotated[
        float | None, Option(min=1e-3, help="With --rate: limit of p99 time to first token (ms).")
    ] = None,
    itl_ms: Annotated[float | None, Option(min=1e-3, help="Serving: limit of inter-token latency (ms).")] = None,
    risk: Annotated[float, Option(help="Accepted probability of running out of memory, 0 to 1.")] = 0.05,
    table: TableFile = None,
    measured: Annotated[
        str | None,
        Option(
            metavar="PEAKS.csv|DIR",
            help="Compare measured peaks (job, peak_gib, program, ran_profile, ran) with the predicted ones.",
        ),
    ] = None,
    speed_table: Annotated[
        Path | None,
        Option(
            metavar="OWN.csv",
            help="Measurements of jobs (job_class, memory_gib, power_share, step_s, measured_profile, measured_speed): "
            "shows their speed on each MIG profile of --gpus. With --model: one row, whose measured speed "
            "narrows the speed ranges of that job's MIG plans.",
        ),
    ] = None,
    learn: Annotated[
        Path | None, Option(metavar="RUNS.csv", help="Fit the memory model to your own runs, one row each.")
    ] = None,
    model_file: Annotated[
        Path | None, Option(metavar="MODEL.json", help="Memory model written by --learn. [default: the bundled one]")
    ] = None,
    out: Annotated[Path | None, Option("-o", "--out", help="With --table or --learn: file to write.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Estimate GPU memory, speed and cost of a job before it runs.

    Five uses: one job or service (--model), a table of jobs (--table), measured
    peaks (--measured), fitting to your own runs (--learn), MIG speeds of measured
    jobs (--speed-table). Prices are those of the catalog.

    Example: gpuplanner size --model llama-3.1-8b --task lora --gpus H100-80GB=8

    Example: gpuplanner size --model llama-3.1-8b --task serve --prompt 1000
    --answer 300 --rate 5 --ttft-ms 500 --itl-ms 50 --gpus H100-80GB
    """
    modes = (
        ("--model", model), ("--table", table), ("--measured", measured), ("--learn", learn),
        ("--speed-table", None if model else speed_table),
    )  # fmt: skip
    given_modes = [name for name, value in modes if value]
    if len(given_modes) != 1:
        names = ", ".join(name for name, _ in modes)
        raise typer.BadParameter(f"expected one of {names}; got {' and '.join(given_modes) or 'none'}")
    if model is not None:
        from gpuplanner.sizing.job_plans import SizingRequest

        hours = None if deadline is None else _parse_hours(deadline)
        ttft_s, itl_s = (None if value is None else value / 1000 for value in (ttft_ms, itl_ms))
        gpu_counts = _parse_gpu_counts(gpus) or _gpu_counts_of_scenario(scenario_path)
        request = SizingRequest(
            model, task, seq, tool, tokens, hours, gpu_counts, itl_s, quantization, risk, cache_dtype, adapters,
            prompt, answer, rate, ttft_s,
        )  # fmt: skip
        if rate is not None:
            _show_replicas(request, as_json=as_json)
            return
        speeds = None if speed_table is None else _read_speed_table(speed_table)
        _show_job_plans(request, _read_peak_model(model_file), speeds, as_json=as_json)
    elif table is not None:
        if task not in ("train", "serve"):
            raise typer.BadParameter(f"--table: expected --task train or serve; got {task}")
        _predict_table(table, out, None if task == "serve" else _read_peak_model(model_file), as_json=as_json)
    elif measured is not None:
        _show_measured_peaks(measured, _parse_gpu_counts(gpus), as_json=as_json)
    elif learn is not None:
        _learn_from_runs(learn, out, _read_peak_model(model_file), as_json=as_json)
    elif speed_table is not None:
        _show_speeds(speed_table, _parse_gpu_counts(gpus), as_json=as_json)


def _parse_hours(text: str) -> float:
    """Parse a duration such as ``36h`` or ``7d`` into hours."""
    units = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
    try:
        return float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        expected = "a number with m, h, d or w, such as 7d"
        raise typer.BadParameter(f"--deadline: expected {expected}; got {text!r}") from None


def _parse_gpu_counts(texts: list[str] | None) -> dict[str, int | None] | None:
    """Parse options ``MODEL[=COUNT]`` to the number of GPUs by GPU model, None: as many as needed."""
    from gpuplanner.core.errors import ScenarioError
    from gpuplanner.sizing.job_plans import parse_gpu_counts

    try:
        return parse_gpu_counts(texts or []) or None
    except ScenarioError as error:
        raise typer.BadParameter(str(error), param_hint="--gpus") from None


def _single_gpu_model(gpu_counts: dict[str, int | None] | None, option: str) -> str:
    """Return the only GPU model of ``--gpus``; raise an error that names the option if there is not one."""
    from gpuplanner.sizing.job_plans import resolve_gpu_words

    if gpu_counts is None or len(gpu_counts) != 1:
        raise typer.BadParameter(f"{option} needs one GPU model, for example --gpus A100-40GB")
    (gpu_model,), notes = resolve_gpu_words(gpu_counts)
    notify(*notes)
    return gpu_model


def _gpu_counts_of_scenario(scenario_path: str | None) -> dict[str, int | None] | None:
    """Number of GPUs by GPU model of a scenario or dataset; None without one."""
    if scenario_path is None:
        return None
    from gpuplanner.usage.planning_history import gpus_by_model

    return gpus_by_model(ScenarioOptions({}).make_scenario(scenario_path))


def _read_speed_table(path: Path) -> pl.DataFrame:
    """Read a table of measured jobs; raise an error that names unknown columns."""
    from gpuplanner.core.errors import TraceFormatError, examples
    from gpuplanner.sizing.mig_speed_law import SpeedModelJobs

    rows, names = _read_text_table(path), list(SpeedModelJobs.columns())
    if unknown_columns := [name for name in rows.columns if name not in names]:
        expected = f"columns of {', '.join(names)}"
        todo = "Rename or drop these columns."
        raise TraceFormatError(f"table {path.name}", expected, examples(unknown_columns), todo)
    return rows


def _show_speeds(path: Path, gpu_counts: dict[str, int | None] | None, *, as_json: bool) -> None:
    """Print the speed of measured jobs on each MIG profile of a GPU model."""
    from gpuplanner.sizing.mig_slices import describe_wide_speeds
    from gpuplanner.sizing.mig_speed_model import default_speed_model

    gpu_model = _single_gpu_model(gpu_counts, "--speed-table")
    job_speeds = default_speed_model().predict(_read_speed_table(path), gpu_model, source=f"table {path.name}")
    if as_json:
        show({"gpu_model": gpu_model, "speeds": job_speeds}, as_json=True)
    else:
        show_frame(job_speeds, title=f"Speed relative to a full {gpu_model}")
    if wide_range_note := describe_wide_speeds(job_speeds.select("profile", "speed_low", "speed_high").iter_rows()):
        notify(wide_range_note)


def _show_job_plans(request: SizingRequest, peaks: PeakModel, speeds: pl.DataFrame | None, *, as_json: bool) -> None:
    """Print the GPU counts and MIG profiles on which a job fits, with memory, speed and cost."""
    from gpuplanner.sizing.job_size import size_job

    job_size = size_job(request, peaks, speeds)
    if as_json:
        show(job_size.to_dict(), as_json=True)
        return
    if job_size.note:
        notify(job_size.note)
    table = job_size.plan_table()
    columns = [name for name in JOB_PLAN_COLUMNS if name in table.columns and table[name].count()]
    show_frame(table.select(columns), title=f"{_task_label(request)} {job_size.model.name}")
    for plan in job_size.plans[:3]:
        start = f"   {plan.launch}\n{plan.request}"
        echo(f"{plan.rank}: {plan.why}\n   next smaller: {plan.next_smaller}\n{start}")
    if job_size.slices and min(mig_slice.p_oom for mig_slice in job_size.slices) > HOPELESS_OOM_PROBABILITY:
        needed_gib = min(mig_slice.predicted_gib for mig_slice in job_size.slices)
        echo(f"it fits no MIG profile: it needs {needed_gib:,.0f} GiB")
    elif job_size.slices:
        show_frame(job_size.slice_table(), title="MIG profiles, with those that are too small")
    echo(*(f"assumed: {line}" for line in job_size.assumed), *job_size.bound)


def _show_replicas(request: SizingRequest, *, as_json: bool) -> None:
    """Print plans for an inference service with the number of replicas that its rate of requests needs."""
    import polars as pl

    from gpuplanner.core.serialization import to_plain
    from gpuplanner.sizing.llm_service_plans import size_service

    service_size = size_service(request)
    if as_json:
        show(to_plain(service_size), as_json=True)
        return
    title = f"serve {request.model}: {request.rate:g} requests/s of {request.prompt:,} + {request.answer:,} tokens"
    show_frame(pl.DataFrame(service_size.plans).select(SERVICE_PLAN_COLUMNS), title=title)
    echo(*(f"{plan.rank}: {plan.launch}" for plan in service_size.plans[:3]))
    headroom = "headroom: factor on the rate within the targets, at most 4"
    echo(f"*_high_ms: upper end of the 90 % interval; {headroom}")
    echo(*(f"left out: {line}" for line in service_size.limits), *(f"assumed: {line}" for line in service_size.assumed))


def _task_label(request: SizingRequest) -> str:
    """Name of the task as the user gave it, with the quantization of the weights."""
    quantization_text = f" ({request.quantization})" if request.quantization else ""
    return ("q" if quantization_text and request.task == "lora" else "") + request.task + quantization_text


def _predict_table(path: Path, out: Path | None, model: PeakModel | None, *, as_json: bool) -> None:
    """Predict the peak memory of each row of a table; without a memory model, its serving speed.

    Parameters
    ----------
    path : Path
        CSV table.
    out : Path, optional
        CSV file for the predictions.
    model : PeakModel, optional
        Memory model.
    as_json : bool
        Print JSON.
    """
    from gpuplanner.core.errors import nearest_names
    from gpuplanner.core.output_writing import write_csv_safe
    from gpuplanner.sizing.llm_service_plans import SERVING_TABLE_COLUMNS, predict_serving_table
    from gpuplanner.sizing.training_run_tables import RUN_TABLE_INPUT_COLUMNS, predict_table

    known_columns = SERVING_TABLE_COLUMNS if model is None else RUN_TABLE_INPUT_COLUMNS
    require_outputs(out, inputs=[path])
    rows = _read_text_table(path)
    for name in rows.columns:
        near = [] if name in known_columns else nearest_names(name, known_columns)
        if suggestions := [suggestion for suggestion in near if suggestion not in rows.columns]:
            notify(f"column {name} is ignored: did you mean {suggestions[0]}?")
    predictions = predict_serving_table(rows) if model is None else predict_table(rows, model)
    if out is not None:
        write_csv_safe(out, predictions)
        missing = predictions["itl_ms"].is_null() if model is None else predictions["level"] == "not predicted"
        notify(f"written: {out}; {len(predictions)} rows, {int(missing.sum())} of them not predicted")
    elif as_json:
        show({"rows": predictions}, as_json=True)
    else:
        show_frame(predictions.drop(name for name in rows.columns if name not in SHOWN_INPUTS))


def _show_measured_peaks(source: str, gpu_counts: dict[str, int | None] | None, *, as_json: bool) -> None:
    """Print measured memory peaks of jobs beside the predicted ones."""
    from gpuplanner.sizing.memory_trend import compare_measured_and_predicted_slices, read_dataset_peaks

    gpu_model = _single_gpu_model(gpu_counts, "--measured")
    rows = _read_text_table(Path(source)) if source.endswith(".csv") else read_dataset_peaks(source, gpu_model)
    comparison = compare_measured_and_predicted_slices(rows, gpu_model)
    if as_json:
        show({"gpu_model": gpu_model, "jobs": comparison}, as_json=True)
    else:
        show_frame(comparison, title=f"MIG profiles of {gpu_model}")


def _learn_from_runs(path: Path, out: Path | None, model: PeakModel, *, as_json: bool) -> None:
    """Fit the memory model to measured runs of a CSV file, write it to `out` and print the rows by tool."""
    from gpuplanner.core.output_writing import write_atomically
    from gpuplanner.sizing.learned_memory import format_peak_model, learn_own_runs
    from gpuplanner.sizing.training_run_tables import collect_measured_runs, list_unread_rows

    if out is None:
        raise typer.BadParameter("--learn needs -o MODEL.json")
    require_outputs(out, inputs=[path])
    rows = _read_text_table(path)
    notify(*(f"ignored: {line}" for line in list_unread_rows(rows)))
    runs, _ = collect_measured_runs(rows)
    learned_model = learn_own_runs(model, runs)
    text = format_peak_model(learned_model)
    write_atomically(out, lambda temporary_path: temporary_path.write_text(text, "utf-8"), inputs=[path])
    tool_rows = {}
    for tool in sorted(set(runs.sources)):
        is_changed = learned_model.tools.get(tool) != model.tools.get(tool)
        tool_rows[tool] = {"rows": runs.sources.count(tool), "moved": is_changed}
    notify(f"written: {out}")
    show({"tools": tool_rows} if as_json else tool_rows, as_json=as_json)


def _read_peak_model(path: Path | None) -> PeakModel:
    """Read a memory model from JSON; the shipped one without a file."""
    from gpuplanner.core.errors import TraceFormatError
    from gpuplanner.core.serialization import read_text
    from gpuplanner.sizing.learned_memory import read_peak_model, shipped_peak_model

    if path is None:
        return shipped_peak_model()
    return read_peak_model(read_text(path, error=TraceFormatError, kind="peak model"), source=path.name)


def _read_text_table(path: Path) -> pl.DataFrame:
    """Read a CSV table with every column as text."""
    import polars as pl

    from gpuplanner.core.errors import TraceFormatError, first_error_line

    try:
        return pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        expected = "a readable CSV file with a header"
        todo = f"Check the file {path.name}."
        raise TraceFormatError(f"table {path.name}", expected, first_error_line(error), todo) from error
