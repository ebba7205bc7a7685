"""Plans of language-model services: simulated queue, number of replicas, settings and cost."""

from __future__ import annotations

import math
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import polars as pl

from gpuplanner.core.errors import (
    GpuPlannerError,
    InfeasiblePlanError,
    ScenarioError,
    SchemaError,
    examples,
    first_error_line,
    nearest_names,
)
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import has_list_price, match_gpu_models, resolve_gpu_model
from gpuplanner.hardware.power_carbon_and_prices import find_gpu_hour_price
from gpuplanner.sizing.job_plans import CACHE_BYTES_BY_NUMBER_FORMAT, SizingRequest, resolve_request
from gpuplanner.sizing.mig_slices import ServingDevice, iterate_serving_devices
from gpuplanner.sizing.model_architecture import Architecture, find_published_preset, load_presets, parse_architecture
from gpuplanner.sizing.replica_queue import QueueResult, ReplicaStepTimes, simulate_queue
from gpuplanner.sizing.serving_speed import (
    EngineLayout,
    EngineLoad,
    ServingPrediction,
    ServingSpeed,
    compute_serving_work,
    count_sequences_in_memory,
    make_layout,
    predict_serving,
    shipped_serving_speed,
    step_and_prefill_seconds,
)
from gpuplanner.sizing.training_run_row_parsing import resolve_word
from gpuplanner.sizing.training_throughput import GpuSpec, find_gpu_spec, make_slice_spec

SERVING_TABLE_COLUMNS = (
    "model", "gpu_model", "profile", "gpus", "precision", "cache_precision", "backend", "prompt_tokens",
    "answer_tokens", "concurrency", "tp", "pp", "dp", "ep",
)  # fmt: skip
"""Columns of a table of serving settings that are read. ``dp`` is data parallelism of attention; ``backend`` and ``ep``
change nothing measurable.
"""
REQUIRED_SERVING_TABLE_COLUMNS = ("model", "gpu_model", "prompt_tokens", "answer_tokens", "concurrency")
"""Columns that a table of serving settings must have."""
PREDICTED_COLUMNS = tuple(field.name for field in fields(ServingPrediction))
"""Columns of predicted times and speed that :func:`predict_serving_table` adds."""
REASON_COLUMN = "reason"
"""Column with the reason why a row of a table of serving settings has no prediction."""
FULL_PROFILE = "full"
"""Word of ``profile`` for a GPU with MIG disabled."""
_WEIGHT_ONLY_FORMAT_PATTERN = re.compile(r"wo\b|a16|weight", re.IGNORECASE)
"""Formats of 8 bits that are unpacked to 16 before they are multiplied."""

_GPU_MODEL_BY_AICONFIGURATOR_WORD = {"a100_sxm": "A100-80GB"}
"""Words of NVIDIA AIConfigurator, from which tables of settings come, that may mean several GPU models elsewhere."""


def predict_serving_table(table: pl.DataFrame, speed: ServingSpeed | None = None) -> pl.DataFrame:
    """Predict times [ms], tokens/s or a reason for each row of a table of serving settings.

    Parameters
    ----------
    table : polars.DataFrame
        Rows with columns of `SERVING_TABLE_COLUMNS`: ``model``, ``gpu_model``, ``prompt_tokens``, ``answer_tokens``,
        ``concurrency`` and ``gpus`` (or ``tp``) are needed. Other columns stay as they are.
    speed : ServingSpeed, optional
        By default the shipped parameters.

    Raises
    ------
    SchemaError
        If a column is missing that is needed.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B", "gpu_model": "h200_sxm", "gpus": 2, "prompt_tokens": 1024, "concurrency": 16}
    >>> predict_serving_table(pl.DataFrame([row | {"answer_tokens": 0}]))["reason"].item()
    'row, answer_tokens: expected a whole number above 0; got 0. Correct it.'
    """
    needed = (*REQUIRED_SERVING_TABLE_COLUMNS, "tp" if "tp" in table.columns else "gpus")
    if missing := [name for name in needed if name not in table.columns]:
        raise SchemaError("table", f"columns {', '.join(needed)}", f"no {examples(missing)}", "Add them.")
    names = [name for name in SERVING_TABLE_COLUMNS if name in table.columns]
    rows = table.select(names).rows()
    answers = {row: _predict_row_columns(dict(zip(names, row, strict=True)), speed) for row in set(rows)}
    columns = {
        name: pl.Series([answers[row].get(name) for row in rows], dtype=pl.Float64).round(4)
        for name in PREDICTED_COLUMNS
    }
    reasons = pl.Series([answers[row].get(REASON_COLUMN) for row in rows], dtype=pl.String)
    return table.drop(*PREDICTED_COLUMNS, REASON_COLUMN, strict=False).with_columns(**columns, reason=reasons)


def _predict_row_columns(row: Mapping[str, Any], speed: ServingSpeed | None) -> dict[str, Any]:
    """Predict the columns of one row, or its reason."""
    try:
        model, gpu_model, layout, load = read_serving_setting(row)
        capacity = count_sequences_in_memory(model, gpu_model, layout, load)
        if not capacity:
            subject = f"memory of {layout.tp * layout.pp * layout.dp} x {gpu_model.name}"
            room = f"memory for {model.name} and a request of {load.prompt + load.answer:,} tokens"
            _reject_row(subject, room, "too little", "Add GPUs.")
        work = compute_serving_work(model, gpu_model, layout, load, capacity)
        return asdict(predict_serving(work, speed))
    except GpuPlannerError as error:
        return {REASON_COLUMN: first_error_line(error)}


def read_serving_setting(row: Mapping[str, Any]) -> tuple[Architecture, GpuSpec, EngineLayout, EngineLoad]:
    """Read the serving setting of a row.

    Raises
    ------
    ScenarioError
        If something is missing or cannot be read.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B-FP8", "gpu_model": "h200_sxm", "gpus": "4", "dp": "2", "prompt_tokens": "1000"}
    >>> read_serving_setting({**row, "answer_tokens": "500", "concurrency": "8"})[2].tp
    2
    """
    name = str(row.get("model") or "")
    is_described = name.endswith(".json") or "=" in name
    model = parse_architecture(name)[0] if is_described else find_published_preset(name) or _reject_model(name)
    if model.kind != "decoder":
        _reject_row("model", "a decoder", f"{model.name}, {model.kind}", "Name another.")
    load = EngineLoad(
        *(_read_whole_number(row, name, None) for name in ("prompt_tokens", "answer_tokens", "concurrency"))
    )
    pp, dp, _ = (_read_whole_number(row, name, 1) for name in ("pp", "dp", "ep"))
    tp = _read_whole_number(row, "tp", 0) or max(_read_whole_number(row, "gpus", None) // (pp * dp), 1)
    gpus = _read_whole_number(row, "gpus", tp * pp * dp)
    if tp * pp * dp != gpus:
        _reject_row("tp x pp x dp", f"{gpus} GPUs", f"{tp * pp * dp}", "Correct them.")
    if model.heads % tp:
        _reject_row("tp", f"a divisor of {model.heads} heads", f"{tp}", "Correct it.")
    if gpus > 1 and row.get("profile") not in (None, "", FULL_PROFILE):  # MIG instances have no NVLink to each other
        _reject_row("gpus", "1 where profile is a MIG slice", f"{gpus}", "Correct it.")
    text = str(row.get("precision") or model.released or "none")
    weights = resolve_word("quantization", text, column="precision")
    cache_bytes = 1.0 if resolve_word("quantization", str(row.get("cache_precision") or "none")) == "fp8" else 2.0
    layout = make_layout(model, weights, tp, pp=pp, dp=dp, cache_bytes=cache_bytes)
    if weights == "int8" and _WEIGHT_ONLY_FORMAT_PATTERN.search(text):
        layout = replace(layout, weights="none")
    return model, _read_gpu_spec(row), layout, load


def _reject_row(column: str, expected: str, got: str, hint: str) -> NoReturn:
    """Raise the error for a cell of a table of services."""
    raise ScenarioError(f"row, {column}", expected, got, hint)


def _reject_model(name: str) -> NoReturn:
    """Raise the error for a model name that is not a preset, with the nearest presets."""
    near = nearest_names(name.rpartition("/")[2], load_presets())
    hint = f"Did you mean {examples(near)}?" if near else "Give the config.json of the model."
    _reject_row("model", "a known model or a config.json", repr(name), hint)


def _read_gpu_spec(row: Mapping[str, Any]) -> GpuSpec:
    """Return the GPU of a row, or the MIG slice in ``profile``; an ambiguous word means the most common model."""
    word, profile = str(row.get("gpu_model") or ""), row.get("profile")
    word = _GPU_MODEL_BY_AICONFIGURATOR_WORD.get(word.lower(), word)
    name = (match_gpu_models(word) or (resolve_gpu_model(word),))[0]
    gpu_model = find_gpu_spec(name)
    if gpu_model is None:
        _reject_row("gpu_model", "a GPU whose data sheet states peak and bandwidth", name, "Name another.")
    return make_slice_spec(gpu_model, str(profile)) if profile and profile != FULL_PROFILE else gpu_model


def _read_whole_number(row: Mapping[str, Any], name: str, default: int | None) -> int:
    """Read a whole number above 0 from a cell, or return the default where the cell is empty."""
    value = row.get(name)
    if value in (None, "") and default is not None:
        return default
    try:
        number = float(value)  # type: ignore[arg-type]  # None: not a number
    except (TypeError, ValueError):
        number = 0.0
    if not 1 <= number < 1e12 or number % 1:
        _reject_row(name, "a whole number above 0", repr(value), "Correct it.")
    return int(number)


DEFAULT_TTFT_S, DEFAULT_ITL_S = 1.0, 0.05
"""Default latency targets: a first token within a second, and twenty tokens a second, four times reading speed."""
MAX_REPLICAS_PER_LOAD_REPLICAS = 4
"""Largest number of replicas tried, as a multiple of the number that carries the rate without a queue."""
MIN_LARGE_GPU_GIB, LARGE_GPU_BATCH_LIMITS = 70.0, (8192, 1024)
"""Memory from which a GPU counts as large [GiB], and vLLM's defaults of --max-num-batched-tokens and --max-num-seqs for
a server on a large GPU.
"""
SMALL_GPU_BATCH_LIMITS = (2048, 256)
"""vLLM's defaults of --max-num-batched-tokens and --max-num-seqs on a GPU or MIG slice with less memory, and on an A100
of any size.
"""
MAX_RATE_HEADROOM_FACTOR, RATE_HEADROOM_BISECTIONS = 4.0, 5
"""Largest multiple of the request rate for which latency targets are tested, and steps of the bisection for the rate up
to which they hold.
"""
MAX_SHOWN_SERVICE_PLANS, MAX_SHOWN_PLAN_COST_RATIO = 8, 3.0
"""Largest number of shown plans, and their largest cost relative to the cheapest."""
MEASURED_GPUS = ("H100", "H200")
"""GPU models on which the parameters of serving speed were fitted."""
MEASURED_MODELS = ("llama-3.1-8b", "qwen3-32b", "gpt-oss-120b", "deepseek-v3")
"""Language models on which the parameters of serving speed were fitted."""
_VLLM_QUANTIZATION_BY_FORMAT = {"fp8": "fp8", "nf4": "bitsandbytes", "nf4-dq": "bitsandbytes", "fp4": "bitsandbytes"}
"""Formats to which vLLM quantises 16 bit weights on loading; others must be in the checkpoint."""


@dataclass(frozen=True)
class ReplicaPlan:
    """Replicas that meet the targets of a service.

    ``gpus`` are full GPUs, those that slices are cut from included. ``ttft_p99_ms`` is the 99th percentile of the time
    to the first token, ``itl_p95_ms`` the 95th of a request's mean time between output tokens, each with the ends of
    its 90 % interval. ``headroom`` is the rate up to which the targets hold, in times that of the service, at most 4.
    Prices are list prices, None where none is known; prompt and answer tokens share the cost by the time of each.
    """

    rank: int
    gpu_model: str
    profile: str
    replicas: int
    gpus_per_replica: int
    gpus: int
    max_num_seqs: int
    max_num_batched_tokens: int
    ttft_p99_ms: float
    ttft_low_ms: float
    ttft_high_ms: float
    itl_p95_ms: float
    itl_low_ms: float
    itl_high_ms: float
    headroom: float
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    usd_per_million_prompt_tokens: float | None
    usd_per_million_answer_tokens: float | None
    launch: str


@dataclass(frozen=True)
class SizedService:
    """Plans for a service, the cheapest first, what was assumed, and what keeps other GPUs from its targets."""

    model: str
    assumed: tuple[str, ...]
    plans: tuple[ReplicaPlan, ...]
    limits: tuple[str, ...]


def size_service(request: SizingRequest) -> SizedService:
    """Plan a service with a request rate: the fewest replicas on each device, the cheapest first.

    Parameters
    ----------
    request : SizingRequest
        With ``prompt``, ``answer`` and ``rate``; latency targets that are not stated have defaults, which ``assumed``
        lists.

    Raises
    ------
    InfeasiblePlanError
        If nothing meets the targets: it names what bounds each GPU.

    Examples
    --------
    >>> request = SizingRequest("llama-3.1-8b", "serve", prompt=1024, answer=512, rate=20, boards={"H100-80GB-SXM5": 8})
    >>> found = size_service(request)
    >>> found.plans[0].ttft_p99_ms < 1000, found.assumed[0]
    (True, 'ttft: 1,000 ms for 99 % of the requests; --ttft-ms to change')
    """
    request, model, boards, request_assumptions = resolve_request(request)
    assumed = []
    if request.ttft_s is None:
        assumed.append(f"ttft: {1e3 * DEFAULT_TTFT_S:,.0f} ms for 99 % of the requests; --ttft-ms to change")
    if request.itl_s is None:
        assumed.append(f"itl: {1e3 * DEFAULT_ITL_S:,.0f} ms a token for 95 % of the requests; --itl-ms to change")
    request = replace(request, ttft_s=request.ttft_s or DEFAULT_TTFT_S, itl_s=request.itl_s or DEFAULT_ITL_S)
    plans: list[ReplicaPlan] = []
    devices_by_reason: dict[str, list[str]] = {}
    for gpu_model, count in boards:
        for device in iterate_serving_devices(model, gpu_model, count):
            plan_or_reason = _find_fewest(request, model, device)
            if isinstance(plan_or_reason, ReplicaPlan) and plan_or_reason.gpus > count:
                plan_or_reason = f"{plan_or_reason.gpus:,} GPUs are needed, {count:,} are at hand"
            if isinstance(plan_or_reason, str):
                devices_by_reason.setdefault(plan_or_reason, []).append(device.words)
            else:
                plans.append(plan_or_reason)
    limits = [f"{', '.join(places)}: {reason}" for reason, places in devices_by_reason.items()]
    if not plans:
        subject = f"serve {model.name} at {request.rate:g} requests/s"
        ttft_s, itl_s = _service_targets(request)[3:]
        targets = f"first tokens within {_format_ms(ttft_s)} and {_format_ms(itl_s)} a token"
        hint = "Relax the target that is named, or add GPUs."
        raise InfeasiblePlanError(subject, targets, "; ".join(limits), hint)

    plans.sort(key=lambda plan: (plan.usd_per_million_tokens or math.inf, plan.gpus, plan.ttft_p99_ms))
    max_usd_per_hour = MAX_SHOWN_PLAN_COST_RATIO * (plans[0].usd_per_hour or math.inf)
    shown = [plan for plan in plans[:MAX_SHOWN_SERVICE_PLANS] if (plan.usd_per_hour or 0.0) <= max_usd_per_hour]
    ranked = tuple(replace(plan, rank=rank) for rank, plan in enumerate(shown, start=1))
    assumed += request_assumptions + describe_speed_evidence(
        model.name, ((plan.gpu_model, plan.profile) for plan in ranked)
    )
    for name in dict.fromkeys(plan.gpu_model for plan in ranked if plan.usd_per_hour is not None):
        price = find_gpu_hour_price(name)
        assumed.append(f"price: {name} {price.value:g} USD an hour, {price.source.partition(':')[0]}")
    assumed.append("requests: at random instants, of one length, each to the replica with the fewest")
    return SizedService(model.name, tuple(assumed), ranked, tuple(limits))


def describe_speed_evidence(model: str, places: Iterable[tuple[str, str]]) -> list[str]:
    """Describe the measurements behind serving speeds, and which models and devices were not measured.

    Examples
    --------
    >>> describe_speed_evidence("gemma-3-27b", [("H200-141GB", "gpu"), ("L40S", "gpu"), ("H200-141GB", "3g.71gb")])[1]
    'not measured: gemma-3-27b, L40S, H200-141GB 3g.71gb: errors may be larger than the intervals'
    """
    source = shipped_serving_speed().provenance["source"]
    notes = [f"speed: measured on {', '.join(MEASURED_MODELS)}, {' and '.join(MEASURED_GPUS)} ({source})"]
    names = (name if profile == "gpu" else f"{name} {profile}" for name, profile in places)
    not_measured = [name for name in dict.fromkeys(names) if not name.startswith(MEASURED_GPUS) or " " in name]
    if not_measured := [model] * (model not in MEASURED_MODELS) + not_measured:
        notes.append(f"not measured: {', '.join(not_measured)}: errors may be larger than the intervals")
    return notes


def make_replica_step_times(
    request: SizingRequest, architecture: Architecture, device: ServingDevice, speed: ServingSpeed | None = None
) -> ReplicaStepTimes | str:
    """Make the step times of a replica on a device, or the reason why a request that runs alone misses a target.

    Parameters
    ----------
    request : SizingRequest
        With ``prompt``, ``answer`` and both latency targets.
    architecture : Architecture
        The model.
    device : ServingDevice
        GPUs or slice of the replica.
    speed : ServingSpeed, optional
        By default the shipped parameters.
    """
    speed = speed or shipped_serving_speed()
    prompt, answer, _, ttft_s, itl_s = _service_targets(replace(request, rate=request.rate or 1.0))
    gpu_model = device.gpu_model
    layout = make_layout(
        architecture,
        request.quantization or "none",
        device.gpus,
        cache_bytes=CACHE_BYTES_BY_NUMBER_FORMAT[request.cache_dtype],
    )
    max_sequences = count_sequences_in_memory(architecture, gpu_model, layout, EngineLoad(prompt, answer, 1))
    if max_sequences < 1:
        return f"weights and one request of {prompt + answer:,} tokens do not fit in memory"
    batched, seqs = (
        SMALL_GPU_BATCH_LIMITS
        if gpu_model.memory_gib < MIN_LARGE_GPU_GIB or gpu_model.name.startswith("A100")
        else LARGE_GPU_BATCH_LIMITS
    )
    running = np.arange(min(max_sequences, seqs) + 1.0)

    work = compute_serving_work(architecture, gpu_model, layout, EngineLoad(prompt, answer, running))
    steps, prefill_s = step_and_prefill_seconds(work, speed)
    per_token = float(np.max(prefill_s)) / prompt
    first_s = speed.first_token_s + float(steps[1]) + per_token * prompt
    single_request_times = {
        "token": (float(steps[1]), float((work.read_s + work.experts_s)[1]), "memory bandwidth", itl_s),
        "first token": (first_s, float(np.max(work.prefill_s)), "peak", ttft_s),
    }
    for name, (taken, bound, limit, target) in single_request_times.items():
        if taken > target:
            return (
                f"a {name} takes {_format_ms(taken)} where one request runs alone, {_format_ms(bound)} at full {limit}"
            )
    return ReplicaStepTimes(steps, per_token, speed.first_token_s, batched)


def _find_fewest(request: SizingRequest, architecture: Architecture, device: ServingDevice) -> ReplicaPlan | str:
    """Find the fewest replicas on a device that meet the targets, or the reason why none do."""
    prompt, answer, rate, ttft_s, itl_s = _service_targets(request)
    engine = make_replica_step_times(request, architecture, device)
    if isinstance(engine, str):
        return engine
    steps, running = engine.step_s, np.arange(engine.max_sequences + 1.0)
    itl = engine.steady_itl_s(prompt, answer)
    max_allowed = max(int((itl <= itl_s).sum()), 1)
    first_s = engine.first_token_s + float(steps[1]) + engine.prompt_token_s * prompt
    rates = running[1:] / (first_s + answer * itl)
    min_replicas = max(math.ceil(rate / float(rates[:max_allowed].max())), 1)
    options: list[tuple[int, ReplicaStepTimes]] = []
    for sequences in sorted({max_allowed, engine.max_sequences}):
        tried_speed = replace(engine, step_s=steps[: sequences + 1])

        def meets(replicas: int, step_times: ReplicaStepTimes = tried_speed) -> bool:
            """Whether a number of replicas meets the latency targets in a simulation."""
            return simulate_queue(step_times, replicas, rate, prompt, answer).meets_targets(ttft_s, itl_s)

        counts = range(min_replicas, MAX_REPLICAS_PER_LOAD_REPLICAS * min_replicas + MAX_REPLICAS_PER_LOAD_REPLICAS)
        enough = counts[bisect_left(counts, True, key=meets) :]
        options += [(count, tried_speed) for count in enough[:1]]
    if not options:
        queue_result = simulate_queue(tried_speed, counts[-1], rate, prompt, answer)
        times_text = (
            f"{_format_ms(queue_result.ttft_p99_s)} to the first token and {_format_ms(queue_result.itl_p95_s)} a token"
        )
        return f"{counts[-1]:,} replicas still take {times_text}"
    return _price_replicas(request, device, *min(options, key=lambda option: option[0]), shipped_serving_speed())


def _service_targets(request: SizingRequest) -> tuple[int, int, float, float, float]:
    """Return tokens of prompt and answer, rate, and both latency targets of a resolved request."""
    targets = (request.prompt, request.answer, request.rate, request.ttft_s, request.itl_s)
    assert None not in targets, "only a service with a rate and targets is planned"
    return targets  # type: ignore[return-value]  # none is None


def _format_ms(seconds: float) -> str:
    """Format seconds as milliseconds with at least two significant digits.

    Examples
    --------
    >>> _format_ms(0.0044), _format_ms(0.3333)
    ('4.4 ms', '333 ms')
    """
    return f"{1e3 * seconds:,.{1 if seconds < 0.01 else 0}f} ms"


def _price_replicas(
    request: SizingRequest, device: ServingDevice, replicas: int, replica_speed: ReplicaStepTimes, speed: ServingSpeed
) -> ReplicaPlan:
    """Make the plan of a number of replicas, with latencies, headroom and cost of a million tokens."""
    prompt, answer, rate, ttft_s, itl_s = _service_targets(request)

    def queue(times: float) -> QueueResult:
        """Simulate the queue at a multiple of the request rate."""
        return simulate_queue(replica_speed, replicas, times * rate, prompt, answer)

    low, high = 1.0, MAX_RATE_HEADROOM_FACTOR
    for _ in range(RATE_HEADROOM_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if queue(middle).meets_targets(ttft_s, itl_s) else (low, middle)
    queue_result = queue(1.0)
    gpus = math.ceil(replicas * device.gpus / device.instances)
    per_hour = (
        gpus * find_gpu_hour_price(device.gpu_model.name).value if has_list_price(device.gpu_model.name) else None
    )
    # Money goes where the time of the replicas goes: prompts are computed once, answers token by token.
    decoding = max(queue_result.running, 1.0)
    prompt_s = prompt * replica_speed.prompt_token_s
    sequences = replica_speed.max_sequences
    answer_s = answer * float(np.interp(decoding, np.arange(sequences + 1), replica_speed.step_s)) / decoding
    share = prompt_s / (prompt_s + answer_s)

    def per_million(part: float, tokens: float) -> float | None:
        """Return the cost per million tokens of a part of the work; None without a price."""
        return None if per_hour is None else 1e6 * per_hour * part / (SECONDS_PER_HOUR * rate * tokens)

    batched = replica_speed.batched_tokens
    ttft, itl = 1e3 * queue_result.ttft_p99_s, 1e3 * queue_result.itl_p95_s
    return ReplicaPlan(
        0, device.gpu_model.name, device.profile, replicas, device.gpus, gpus, sequences, batched,
        ttft, ttft / speed.ttft_factor, ttft * speed.ttft_factor, itl, itl / speed.itl_factor, itl * speed.itl_factor,
        low, per_hour, per_million(1.0, prompt + answer), per_million(share, prompt), per_million(1 - share, answer),
        format_serve_line(request, device.gpus, sequences, replicas, batched_tokens=batched),
    )  # fmt: skip


def format_serve_line(
    request: SizingRequest, tp: int, sequences: int, replicas: int, *, batched_tokens: int = 0, encoder: bool = False
) -> str:
    """Format the vLLM command that starts one replica, with defaults that would depend on the GPU stated."""
    name = request.model if "/" in request.model and " " not in request.model else "MODEL"
    words = [f"vllm serve {shlex.quote(name)} --tensor-parallel-size {tp} --max-model-len {request.seq}"]
    words.append(f"--max-num-seqs {sequences}")
    if batched_tokens:
        words.append(f"--max-num-batched-tokens {batched_tokens}")
    if encoder:
        words.append("--runner pooling")
    if request.cache_dtype == "fp8":
        words.append("--kv-cache-dtype fp8")
    if request.quantization in _VLLM_QUANTIZATION_BY_FORMAT:
        words.append(f"--quantization {_VLLM_QUANTIZATION_BY_FORMAT[request.quantization]}")
    if request.adapters:
        words.append(f"--enable-lora --max-loras {request.adapters}")
    notes = [f"{replicas} times"] * (replicas > 1)
    if request.quantization and request.quantization not in _VLLM_QUANTIZATION_BY_FORMAT:
        notes.append(f"a checkpoint in {request.quantization.replace('gptq', 'GPTQ or AWQ')}")
    return " ".join(words) + (f"  # {', '.join(notes)}" if notes else "")
