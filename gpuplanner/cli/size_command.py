"""The command ``size``: memory and speed of a job or service before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gpuplanner.cli.application import Given, Json, Overwrite, app, put, require_outputs, say, show, show_frame

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.sizing.job_plans import SizingRequest
    from gpuplanner.sizing.learned_memory import PeakModel


PLAN = (
    "rank", "gpu_model", "profile", "gpus", "tp", "pp", "dp", "ep", "sharding", "recompute", "micro_batch",
    "concurrency",
    "predicted_gib", "upper_gib", "gpu_gib", "p_oom", "tokens_per_s", "hours", "price", "energy_kwh",
)  # fmt: skip

SERVICE_PLAN = (
    "rank", "gpu_model", "profile", "replicas", "gpus_per_replica", "gpus", "ttft_p99_ms", "ttft_high_ms", "itl_p95_ms",
    "itl_high_ms", "headroom", "usd_per_hour", "usd_per_million_tokens", "usd_per_million_prompt_tokens",
    "usd_per_million_answer_tokens",
)  # fmt: skip

SHOWN_INPUTS = ("model", "method", "gpu_model", "gpus", "concurrency")
"""Columns of a table of rows that are printed beside what is predicted."""

HOPELESS = 0.99
"""Probability to run out of memory on every slice, from which no table of them is shown."""

Rows = Annotated[
    Path | None,
    Option(
        metavar="ROWS.csv",
        help="Predict the peak memory of each row: framework, model, method, seq_len, micro_batch, precision, "
        "optimizer, quantization, zero_stage, fsdp, tp, pp, dp, ep, device_map, gpu; missing values are assumed. "
        "With --task serve the speed: model, gpu_model, gpus, precision, prompt_tokens, answer_tokens, concurrency.",
    ),
]


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
        list[str] | None,
        Option(metavar="MODEL[=COUNT]", help="GPU model to use, and the number of GPUs; repeatable."),
    ] = None,
    scenario: Annotated[
        str | None,
        Option("--scenario", "--data", help="Scenario, dataset folder or 'sample' with the GPU models."),
    ] = None,
    quantization: Annotated[
        str | None,
        Option(help="Quantization of frozen or served weights: nf4, int8, fp8. [default: as published]"),
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
    table: Rows = None,
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
            "shows their speed on each MIG profile of --gpus. With --model one row, which narrows the plans.",
        ),
    ] = None,
    learn: Annotated[
        Path | None,
        Option(metavar="RUNS.csv", help="Fit the memory model to your own runs, one row each."),
    ] = None,
    model_file: Annotated[
        Path | None,
        Option(metavar="MODEL.json", help="Memory model written by --learn. [default: the bundled one]"),
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
    asked = [name for name, value in modes if value]
    if len(asked) != 1:
        names = ", ".join(name for name, _ in modes)
        raise typer.BadParameter(f"expected one of {names}; got {' and '.join(asked) or 'none'}")
    if model is not None:
        from gpuplanner.sizing.job_plans import SizingRequest

        hours = None if deadline is None else _hours(deadline)
        ttft_s, itl_s = (None if value is None else value / 1000 for value in (ttft_ms, itl_ms))
        boards = _counts(gpus) or _at_hand(scenario)
        request = SizingRequest(
            model, task, seq, tool, tokens, hours, boards, itl_s, quantization, risk, cache_dtype, adapters,
            prompt, answer, rate, ttft_s,
        )  # fmt: skip
        if rate is not None:
            _show_replicas(request, as_json=as_json)
            return
        speeds = None if speed_table is None else _own_speeds(speed_table)
        _plans(request, _model(model_file), speeds, as_json=as_json)
    elif table is not None:
        if task not in ("train", "serve"):
            raise typer.BadParameter(f"--table: expected --task train or serve; got {task}")
        _predict(table, out, None if task == "serve" else _model(model_file), as_json=as_json)
    elif measured is not None:
        _seen(measured, _counts(gpus), as_json=as_json)
    elif learn is not None:
        _learn(learn, out, _model(model_file), as_json=as_json)
    elif speed_table is not None:
        _speeds(speed_table, _counts(gpus), as_json=as_json)


def _hours(text: str) -> float:
    """Hours of ``36h``, ``7d`` and the like."""
    units = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
    try:
        return float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        expected = "a number with m, h, d or w, such as 7d"
        raise typer.BadParameter(f"--deadline: expected {expected}; got {text!r}") from None


def _counts(given: list[str] | None) -> dict[str, int | None] | None:
    """GPUs at hand by board; None: as many as are needed."""
    from gpuplanner.core.errors import ScenarioError
    from gpuplanner.sizing.job_plans import parse_gpu_counts

    try:
        return parse_gpu_counts(given or []) or None
    except ScenarioError as error:
        raise typer.BadParameter(str(error), param_hint="--gpus") from None


def _one_board(boards: dict[str, int | None] | None, option: str) -> str:
    from gpuplanner.sizing.job_plans import resolve_gpu_words

    if boards is None or len(boards) != 1:
        raise typer.BadParameter(f"{option} needs one GPU model, for example --gpus A100-40GB")
    (gpu_model,), taken = resolve_gpu_words(boards)
    say(*taken)
    return gpu_model


def _at_hand(scenario: str | None) -> dict[str, int | None] | None:
    """Boards of a dataset or scenario; None where none was named."""
    if scenario is None:
        return None
    from gpuplanner.usage.job_history import gpus_by_model

    return gpus_by_model(Given({}).scenario(scenario))


def _own_speeds(path: Path) -> pl.DataFrame:
    """A table of what is known of jobs; columns that nobody reads are named."""
    from gpuplanner.core.errors import TraceFormatError, examples
    from gpuplanner.sizing.mig_speed_law import SpeedJobs

    rows, names = _read(path), list(SpeedJobs.columns())
    if other := [name for name in rows.columns if name not in names]:
        expected = f"columns of {', '.join(names)}"
        raise TraceFormatError(f"table {path.name}", expected, examples(other), "Rename or drop these columns.")
    return rows


def _speeds(path: Path, boards: dict[str, int | None] | None, *, as_json: bool) -> None:
    """Speeds of the jobs of a table on the slices of a board."""
    from gpuplanner.sizing.mig_slices import describe_wide_speeds
    from gpuplanner.sizing.mig_speed_model import default_speed_model

    gpu_model = _one_board(boards, "--speed-table")
    found = default_speed_model().predict(_own_speeds(path), gpu_model, source=f"table {path.name}")
    if as_json:
        show({"gpu_model": gpu_model, "speeds": found}, as_json=True)
    else:
        show_frame(found, title=f"Speed relative to a full {gpu_model}")
    if wide := describe_wide_speeds(found.select("profile", "speed_low", "speed_high").iter_rows()):
        say(wide)


def _plans(request: SizingRequest, peaks: PeakModel, speeds: pl.DataFrame | None, *, as_json: bool) -> None:
    from gpuplanner.sizing.job_size import size_job

    found = size_job(request, peaks, speeds)
    if as_json:
        show(found.to_dict(), as_json=True)
        return
    if found.note:
        say(found.note)
    table = found.plan_table()
    shown = [name for name in PLAN if name in table.columns and table[name].count()]
    show_frame(table.select(shown), title=f"{_task(request)} {found.model.name}")
    for plan in found.plans[:3]:
        start = f"   {plan.launch}\n{plan.request}"
        put(f"{plan.rank}: {plan.why}\n   next smaller: {plan.next_smaller}\n{start}")
    if found.slices and min(one.p_oom for one in found.slices) > HOPELESS:
        put(f"it fits no MIG profile: it needs {min(one.predicted_gib for one in found.slices):,.0f} GiB")
    elif found.slices:
        show_frame(found.slice_table(), title="MIG profiles, with those that are too small")
    put(*(f"assumed: {line}" for line in found.assumed))


def _show_replicas(request: SizingRequest, *, as_json: bool) -> None:
    """Replicas for a rate of requests."""
    import polars as pl

    from gpuplanner.core.serialization import to_plain
    from gpuplanner.sizing.service_plans import size_service

    found = size_service(request)
    if as_json:
        show(to_plain(found), as_json=True)
        return
    title = f"serve {request.model}: {request.rate:g} requests/s of {request.prompt:,} + {request.answer:,} tokens"
    show_frame(pl.DataFrame(found.plans).select(SERVICE_PLAN), title=title)
    put(*(f"{plan.rank}: {plan.launch}" for plan in found.plans[:3]))
    headroom = "headroom: factor on the rate within the targets, at most 4"
    put(f"*_high_ms: upper end of the 90 % interval; {headroom}")
    put(*(f"left out: {line}" for line in found.limits), *(f"assumed: {line}" for line in found.assumed))


def _task(request: SizingRequest) -> str:
    """The task in the word that was asked for, where weights are narrow with what they are."""
    narrow = f" ({request.quantization})" if request.quantization else ""
    return ("q" if narrow and request.task == "lora" else "") + request.task + narrow


def _predict(path: Path, out: Path | None, model: PeakModel | None, *, as_json: bool) -> None:
    """Predict each row of a table: the peak of training, or without a model of peaks the speed of serving."""
    from gpuplanner.core.errors import nearest_names
    from gpuplanner.core.output_writing import write_csv_safe
    from gpuplanner.sizing.run_tables import INPUT_COLUMNS, predict_table
    from gpuplanner.sizing.service_plans import SERVING_TABLE_COLUMNS, predict_serving_table

    known = SERVING_TABLE_COLUMNS if model is None else INPUT_COLUMNS
    require_outputs(out, inputs=[path])
    rows = _read(path)
    for name in rows.columns:
        if name not in known and (near := [one for one in nearest_names(name, known) if one not in rows.columns]):
            say(f"column {name} is ignored: did you mean {near[0]}?")
    found = predict_serving_table(rows) if model is None else predict_table(rows, model)
    if out is not None:
        write_csv_safe(out, found)
        missing = found["itl_ms"].is_null() if model is None else found["level"] == "not predicted"
        say(f"written: {out}; {len(found)} rows, {int(missing.sum())} of them not predicted")
    elif as_json:
        show({"rows": found}, as_json=True)
    else:
        show_frame(found.drop(name for name in rows.columns if name not in SHOWN_INPUTS))


def _seen(place: str, boards: dict[str, int | None] | None, *, as_json: bool) -> None:
    from gpuplanner.sizing.memory_trend import compare_measured_and_predicted, read_dataset_peaks

    gpu_model = _one_board(boards, "--measured")
    rows = _read(Path(place)) if place.endswith(".csv") else read_dataset_peaks(place, gpu_model)
    found = compare_measured_and_predicted(rows, gpu_model)
    if as_json:
        show({"gpu_model": gpu_model, "jobs": found}, as_json=True)
    else:
        show_frame(found, title=f"MIG profiles of {gpu_model}")


def _learn(path: Path, out: Path | None, model: PeakModel, *, as_json: bool) -> None:
    from gpuplanner.core.output_writing import write_atomically
    from gpuplanner.sizing.learned_memory import format_peak_model, learn_own_runs
    from gpuplanner.sizing.run_tables import collect_measured_runs, list_unread_rows

    if out is None:
        raise typer.BadParameter("--learn needs -o MODEL.json")
    require_outputs(out, inputs=[path])
    rows = _read(path)
    say(*(f"ignored: {line}" for line in list_unread_rows(rows)))
    runs, _ = collect_measured_runs(rows)
    after = learn_own_runs(model, runs)
    write_atomically(out, lambda place: place.write_text(format_peak_model(after), "utf-8"), inputs=[path])
    told = {}
    for tool in sorted(set(runs.sources)):
        moved = after.tools.get(tool) != model.tools.get(tool)
        told[tool] = {"rows": runs.sources.count(tool), "moved": moved}
    say(f"written: {out}")
    show({"tools": told} if as_json else told, as_json=as_json)


def _model(path: Path | None) -> PeakModel:
    from gpuplanner.core.errors import TraceFormatError
    from gpuplanner.core.serialization import read_text
    from gpuplanner.sizing.learned_memory import read_peak_model, shipped_peak_model

    if path is None:
        return shipped_peak_model()
    return read_peak_model(read_text(path, error=TraceFormatError, kind="peak model"), source=path.name)


def _read(path: Path) -> pl.DataFrame:
    """A CSV table, every column as text."""
    import polars as pl

    from gpuplanner.core.errors import TraceFormatError, first_error_line

    try:
        return pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        expected = "a readable CSV file with a header"
        todo = f"Check the file {path.name}."
        raise TraceFormatError(f"table {path.name}", expected, first_error_line(error), todo) from error
