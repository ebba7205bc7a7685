"""Plans of training jobs and services on the available GPU models, with memory, time, cost and energy."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpuplanner.core.errors import GeometryError, ScenarioError
from gpuplanner.hardware.catalog import (
    find_parameter,
    has_list_price,
    match_gpu_models,
    mig_model_names,
    non_mig_model_names,
    resolve_gpu_model,
)
from gpuplanner.hardware.power_carbon_and_prices import (
    compute_facility_kwh,
    compute_gpu_kwh,
    find_gpu_hour_price,
    make_power_model,
)
from gpuplanner.sizing.learned_memory import PeakModel, predict_gib
from gpuplanner.sizing.memory_components import peak_gib
from gpuplanner.sizing.model_architecture import Architecture, find_published_preset, parse_architecture
from gpuplanner.sizing.serving_speed import ServingEstimate
from gpuplanner.sizing.training_job import (
    ADAPTABLE_MATRICES,
    GENERIC_TOOL,
    TOOLS_WITHOUT_RECIPE,
    TrainingJob,
    resolve_tool_facts,
)
from gpuplanner.sizing.training_run_row_parsing import resolve_word
from gpuplanner.sizing.training_run_tables import make_job
from gpuplanner.sizing.training_throughput import GpuSpec, estimate_tokens_per_s, find_gpu_spec

SIZING_TASKS = ("train", "dpo", "lora", "qlora", "serve")
"""Tasks of ``gpuplanner size``: full training, DPO, LoRA, QLoRA, and serving."""
CACHE_BYTES_BY_NUMBER_FORMAT = {"": 2.0, "auto": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of a number in the key and value cache, by its format."""
MAX_OOM_PROBABILITY = 0.05
"""Largest probability of running out of memory that a plan may have."""
_DEFAULT_GPU_COUNT = 1024
"""Number of available GPUs of a model whose number the user did not state."""


@dataclass(frozen=True)
class SizingRequest:
    """What a user wants to size: a model, a task, limits and available GPUs.

    - ``model``: Preset, config.json, Megatron arguments or spec.
    - ``task`` {"train", "dpo", "lora", "qlora", "serve"}: QLoRA is LoRA with 4 bit weights; DPO is full training on
      pairs of answers with a reference copy of the model.
    - ``seq``: Tokens of a sequence; serving: of prompt and answer together.
    - ``tool``: Training tool; None: mixed precision with the settings of each plan.
    - ``tokens``: Tokens to train on or to generate.
    - ``deadline_h``: Time until the job must be finished [h].
    - ``boards``: Available GPUs by GPU model (None: as many as needed); empty: all models with a data sheet and a
      price.
    - ``itl_s``: Serving: largest time between two tokens of an answer [s].
    - ``quantization``: Format of frozen or served weights, in any spelling: ``nf4``, ``4bit double``, ``int8``,
      ``fp8``, ``awq``. None: as published for serving, else 16 bits.
    - ``cache_dtype``: Serving: ``fp8`` stores keys and values in 8 bits; default 16, whatever the weights have.
    - ``adapters``: Serving: LoRA adapters loaded with the model.
    - ``risk``: Largest probability of running out of memory.
    - ``prompt``, ``answer``: Serving: tokens of a prompt and of an answer; None: two thirds of ``seq``, and the rest.
    - ``rate``, ``ttft_s``: Serving: requests per second, and largest time to the first token for 99 % of them [s].
    """

    model: str
    task: str
    seq: int = 4096
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    itl_s: float | None = None
    quantization: str | None = None
    risk: float = MAX_OOM_PROBABILITY
    cache_dtype: str = ""
    adapters: int = 0
    prompt: int | None = None
    answer: int | None = None
    rate: float | None = None
    ttft_s: float | None = None

    def __post_init__(self) -> None:
        """Check all values and resolve the quantization and the task."""
        if self.task not in SIZING_TASKS:
            _reject_option("task", f"one of {', '.join(SIZING_TASKS)}", repr(self.task), "Choose one.")
        for name in ("seq", "tokens", "deadline_h", "itl_s", "risk", "prompt", "answer", "rate", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                _reject_option(name, "a number above 0", repr(value), "Correct it.")
        narrow = resolve_word("quantization", self.quantization) if self.quantization else ""
        if self.task == "qlora":
            object.__setattr__(self, "task", "lora")
            narrow = narrow or "nf4-dq"
        if self.quantization is not None or self.task != "serve":
            object.__setattr__(self, "quantization", "" if narrow == "none" else narrow)
        if self.quantization and self.task in ("train", "dpo"):
            _reject_option("quantization", "task lora or serve", self.task, "Quantised weights are not trained.")
        if self.cache_dtype not in CACHE_BYTES_BY_NUMBER_FORMAT:
            names = ", ".join(name for name in CACHE_BYTES_BY_NUMBER_FORMAT if name)
            _reject_option("cache_dtype", f"one of {names}", repr(self.cache_dtype), "Choose one.")
        served = ("cache_dtype", "adapters", "itl_s", "prompt", "answer", "rate", "ttft_s")
        if self.task != "serve" and (given := [name for name in served if getattr(self, name)]):
            _reject_option(" and ".join(given), "task serve", self.task, "Leave them out.")
        if (self.prompt is None) != (self.answer is None):
            _reject_option("prompt and answer", "tokens of both", f"{self.prompt} and {self.answer}", "State both.")
        if self.prompt is not None and self.answer is not None:
            object.__setattr__(self, "seq", self.prompt + self.answer)
        elif self.rate is not None:
            _reject_option("rate", "prompt and answer beside it", "none", "State the tokens of a request.")
        if self.ttft_s is not None and self.rate is None:
            _reject_option("ttft", "a rate beside it", "none", "State the requests a second.")


def _reject_option(option: str, expected: str, got: str, hint: str) -> NoReturn:
    """Raise :class:`ScenarioError` for an option of ``gpuplanner size``.

    Parameters
    ----------
    option : str
        Name of the option.
    expected, got : str
        The expected value, and the value found.
    hint : str
        The fix.
    """
    raise ScenarioError(f"size, {option}", expected, got, hint)


def parse_gpu_counts(words: Iterable[str]) -> dict[str, int | None]:
    """Parse available GPUs as users write them, ``MODEL`` or ``MODEL=COUNT``, to counts; None: as many as needed.

    A word that may mean several GPU models stays as it is; :func:`resolve_gpu_words` chooses one.

    Examples
    --------
    >>> parse_gpu_counts(["H100-SXM5-80GB=64", "A30", "a100=8"])
    {'H100-80GB-SXM5': 64, 'A30-24GB': None, 'a100': 8}
    """
    counts: dict[str, int | None] = {}
    for word in words:
        name, equals, count = word.partition("=")
        if equals and not (count.isdecimal() and int(count)):
            expected = "MODEL or MODEL=COUNT with a whole number above 0"
            raise ScenarioError("--gpus", expected, repr(word), "Give for example --gpus A100-40GB=8.")
        called = match_gpu_models(name)
        names = name if len(called) > 1 else called[0] if called else resolve_gpu_model(name)
        counts[names] = int(count) if equals else None
    return counts


def resolve_gpu_words(boards: Mapping[str, int | None]) -> tuple[dict[str, int | None], list[str]]:
    """Resolve GPU model names; of several that a word may mean, the most common of the family is assumed and reported.

    Examples
    --------
    >>> resolve_gpu_words({"a100": 8})
    ({'A100-40GB': 8}, ['GPU model a100: assumed A100-40GB, could also be A100-80GB'])
    """
    names: dict[str, int | None] = {}
    assumptions = []
    for word, count in boards.items():
        gpu_model, *alternatives = match_gpu_models(word) or (resolve_gpu_model(word),)
        if alternatives:
            assumptions.append(f"GPU model {word}: assumed {gpu_model}, could also be {', '.join(alternatives)}")
        count_before = names.get(gpu_model, 0)
        names[gpu_model] = None if count is None or count_before is None else count + count_before
    return names, assumptions


def find_available_gpus(requested: Mapping[str, int | None] | None) -> list[tuple[GpuSpec, int]]:
    """List the available GPU models with their numbers; without a statement, all with a data sheet and a price."""
    counts = requested or {name: None for name in (*mig_model_names(), *non_mig_model_names()) if has_list_price(name)}
    available = []
    for name, count in counts.items():
        try:
            gpu_model = find_gpu_spec(name)
        except GeometryError:
            if requested:
                raise
            continue
        if gpu_model is not None:
            available.append((gpu_model, count or _DEFAULT_GPU_COUNT))
        elif requested:
            expected = "a data sheet with peak and bandwidth"
            raise ScenarioError(f"GPU model {name}", expected, "none", "Choose another GPU model.")
    return available


def resolve_request(request: SizingRequest) -> tuple[SizingRequest, Architecture, list[tuple[GpuSpec, int]], list[str]]:
    """Resolve the model and the GPU models of a request, with defaults for what it leaves open.

    Returns
    -------
    tuple
        The completed request, the architecture, GPU models with their numbers, and the assumptions.
    """
    published = find_published_preset(request.model) if request.task == "serve" else None
    model, assumed = (published, []) if published else parse_architecture(request.model)
    if model.positions and request.seq > model.positions:
        if request.prompt:
            expected = f"at most {model.positions:,} tokens, the context of {model.name}"
            _reject_option("prompt and answer", expected, f"{request.seq:,}", "Shorten one of them.")
        beyond = f"{request.seq} is beyond the {model.positions} positions of {model.name}, which are taken"
        assumed.append(f"seq: {beyond}")
        request = replace(request, seq=model.positions)
    elif request.prompt and not model.positions:
        assumed.append(f"context: {model.name} is taken to allow {request.seq:,} tokens; see its config.json")
    if request.quantization is None:
        request = replace(request, quantization=model.released)
        if model.released:
            assumed.append(f"weights: {request.quantization}, as published; --quantization bf16 for 16 bits")
    if request.boards:
        counts, assumptions = resolve_gpu_words(request.boards)
        request = replace(request, boards=counts)
        assumed += assumptions
    else:
        assumed.append("GPU models: all with a list price (--gpus MODEL=COUNT or --data for your own)")
    boards = find_available_gpus(request.boards)
    unpriced = [gpu_model.name for gpu_model, _ in boards if not has_list_price(gpu_model.name)]
    if unpriced:
        assumed.append(f"price: none is known of {', '.join(unpriced)}, plans of it have no cost")
    return request, model, boards, assumed


def tool_condition_tags(request: SizingRequest) -> frozenset[str]:
    """Return the conditions, such as ``lora``, that choose the defaults of a training tool for a request."""
    kind = "lora" if request.task == "lora" else "full"
    return frozenset({"sharded", kind, request.task, *(["quantised"] if request.quantization else [])})


_TRAINING_JOB_FIELDS = ("tp", "pp", "dp", "ep", "sharding", "recompute", "micro_batch", "accumulation", "regime")
"""Fields of the training job that the JSON of a plan shows beside its own."""
_NESTED_PLAN_FIELDS = ("job", "engine", "replicas", "parts")
"""Fields of a plan that its JSON leaves out, as it shows their content in other keys."""
_TEXT_BY_PRICE_UNIT = {"job": "in all", "hour": "an hour"}
"""Unit of a price as text, by the value of ``JobPlan.per``."""
_NULLABLE_PLAN_FIELDS = ("cost", "currency", "energy_kwh")
"""Fields of a plan that its JSON shows as null where they are unknown; other empty fields are left out."""
DEFAULT_TOKENS_PER_STEP = 1 << 20
"""Tokens of a training step, about that of public recipes of this size."""
_ASSUMED_SM_ACTIVITY = 0.9
"""SM activity assumed for the energy of a busy GPU [0-1]."""
_DEFAULT_LORA_RANK = 16
"""Rank of adapters of all linear layers if the tool states none."""
_SHORT_SEQUENCE_TOKENS = 1024
"""Length below which several sequences form a micro-batch, such as those of images. [tokens]"""
_MIXED_POOL_SPEED_FRACTION = 0.95
"""Speed of replicas on different GPU models over the sum of their speeds."""


@dataclass(frozen=True)
class JobPlan:
    """One way to run a job: GPUs, memory, speed and cost.

    Memory is in GiB per GPU; ``p_oom`` is the probability of exceeding it. ``cost`` in ``currency`` and ``energy_kwh``
    are for the whole job if its tokens are known, else for an hour (``per``); they are None if no source states them.
    ``job`` or ``engine`` has the settings. ``parts`` are the GPU models of a mixed pool with their numbers.
    ``gpuplanner size`` fills ``rank`` and the fields after it for the plans that it shows.
    """

    gpu_model: str
    gpus: int
    gpu_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    level: str
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    per: str
    profile: str = "gpu"
    share_of_gpu: float = 1.0
    hours: float | None = None
    hours_low: float | None = None
    hours_high: float | None = None
    cost: float | None = None
    currency: str | None = None
    energy_kwh: float | None = None
    job: TrainingJob | None = None
    engine: ServingEstimate | None = None
    replicas: int = 1
    parts: tuple[tuple[str, int], ...] = ()
    rank: int | None = None
    why: str | None = None
    next_smaller: str | None = None
    components: Mapping[str, float] | None = None
    explained: Mapping[str, str] | None = None
    request: str | None = None
    launch: str | None = None

    def meets_deadline(self, request: SizingRequest) -> bool:
        """Whether the job ends by the deadline."""
        return request.deadline_h is None or self.hours is None or self.hours <= request.deadline_h

    @property
    def name(self) -> str:
        """Number of GPUs with their model and MIG profile."""
        return self.gpu_model if self.parts else f"{self.gpus} × {self.gpu_model} {self.profile}".removesuffix(" gpu")

    @property
    def price(self) -> str | None:
        """Cost with its unit."""
        return None if self.cost is None else f"{self.cost:,.2f} {self.currency} {_TEXT_BY_PRICE_UNIT[self.per]}"

    def to_dict(self) -> dict[str, Any]:
        """Convert the plan to values for JSON and tables, without those that do not apply."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"price": self.price}
        values |= {name: getattr(self.job, name, None) for name in _TRAINING_JOB_FIELDS}
        if self.job is not None and self.job.shards == 1:
            values["sharding"] = "none"
        if self.engine is not None:
            values |= {
                "tp": self.engine.tp, "dp": self.replicas, "concurrency": self.engine.concurrency * self.replicas,
                "seconds_per_token": self.engine.step_s,
            }  # fmt: skip
        names = [name for name, value in values.items() if value is not None or name in _NULLABLE_PLAN_FIELDS]
        return {name: values[name] for name in names if name not in _NESTED_PLAN_FIELDS}


def make_base_job(request: SizingRequest, architecture: Architecture, tool: str) -> TrainingJob:
    """Make the job that all plans share: the settings of the tool in bf16; mixed precision for an unknown tool."""
    method = "lora" if request.task == "lora" else "full"
    row = {"method": method, "precision": "bf16", "quantization": request.quantization or "none"}
    row["optimizer"] = resolve_tool_facts(tool, tool_condition_tags(request)).get("optimizer", "adamw")
    job = make_job(architecture, row, request.seq, tool)
    if tool == GENERIC_TOOL:
        job = replace(
            job, regime="mixed", adapter_regime="amp", lora_rank=_DEFAULT_LORA_RANK, lora_targets=ADAPTABLE_MATRICES
        )
    return replace(job, fused_step=True, reference=request.task == "dpo")


def iterate_shapes(
    request: SizingRequest, architecture: Architecture, tool: str, *, parallel: bool = True
) -> Iterator[TrainingJob]:
    """Yield every parallel layout, sharding, recompute mode and micro-batch of a job, least parallel first.

    The number of replicas is left at its minimum; experts lie on all ranks, or are shared by some.

    Parameters
    ----------
    request : SizingRequest
        The request.
    architecture : Architecture
        The model.
    tool : str
        Training tool.
    parallel : bool
        Also split the model over GPUs.
    """
    facts = resolve_tool_facts(tool, tool_condition_tags(request))
    base = make_base_job(request, architecture, tool)
    kinds, modes = (facts.get("parallel") or "").split(), facts["modes"].split()
    whole = architecture.kind != "diffusion" and parallel
    tensor = [t for t in (1, 2, 4, 8) if whole and architecture.heads % t == 0 and (t == 1 or "tp" in kinds)] or [1]
    pipes = [p for p in (1, 2, 4, 8) if whole and architecture.layers % p == 0 and (p == 1 or "pp" in kinds)] or [1]
    many = whole and architecture.experts % 8 == 0 and "ep" in kinds
    experts = [1, 8] if many and architecture.experts else [1]
    plain = "ddp" if base.frozen else "zero1"
    sequences = 2 if base.reference else 1
    grouped_sequences = (
        sequences
        if architecture.kind == "diffusion"
        else sequences << max(0, (_SHORT_SEQUENCE_TOKENS // request.seq).bit_length() - 1)
    )
    micros = sorted({sequences, *(grouped_sequences * times for times in (1, 2, 4, 8))})
    for p, t, e in itertools.product(pipes, tensor, experts):
        for sharding in ("fsdp", plain) if p == e == 1 and parallel else (plain,):
            for recompute, micro in itertools.product(modes, micros):
                yield replace(
                    base, tp=t, pp=p, ep=e, dp=e, sharding=sharding, recompute=recompute, micro_batch=micro,
                    sequence_parallel=t > 1, inputs_offloaded=base.inputs_offloaded and recompute == "full",
                )  # fmt: skip


def predict_peak_and_radius(job: TrainingJob, tool: str, peaks: PeakModel) -> tuple[float, float]:
    """Predict the peak memory of a job [GiB], and the logarithm of the factor from it to its 95 % upper bound."""
    peak = float(predict_gib(np.array([peak_gib(job)]), peaks.logs(tool))[0])
    return peak, peaks.radius(tool, is_known_tool=tool not in TOOLS_WITHOUT_RECIPE, job=job, decided=True)


def iterate_training_plans(
    request: SizingRequest,
    architecture: Architecture,
    tool: str,
    boards: Sequence[tuple[GpuSpec, int]],
    peaks: PeakModel,
) -> Iterator[JobPlan]:
    """Yield plans that fit, for each shape with more and more replicas until the deadline is met on each GPU model.

    Parameters
    ----------
    request : SizingRequest
        The request.
    architecture : Architecture
        The model.
    tool : str
        Training tool.
    boards : sequence of (GpuSpec, int)
        GPU models with their numbers.
    peaks : PeakModel
        Memory model.
    """
    largest = max(gpu_model.memory_gib for gpu_model, _ in boards)
    max_gpus = max(count for _, count in boards)
    level = "tool measured" if peaks.has_tool(tool) else "tool not measured"
    for shape in iterate_shapes(request, architecture, tool):
        dp, previous_peak = shape.ep, math.inf
        waiting = list(boards)
        while waiting and shape.tp * shape.pp * dp <= max_gpus:
            steps = max(1, round(DEFAULT_TOKENS_PER_STEP / (dp * shape.micro_batch * shape.seq)))
            job = replace(shape, dp=dp, accumulation=steps)
            peak, radius = predict_peak_and_radius(job, tool, peaks)
            if peak > largest and dp > 1 and peak > 0.98 * previous_peak:
                break
            previous_peak = peak
            for gpu_model, count in tuple(waiting):
                p_oom = peaks.p_oom(peak, gpu_model.memory_gib, radius)
                if job.n_gpus > count:
                    waiting.remove((gpu_model, count))
                elif p_oom <= request.risk:
                    memory = JobMemory(gpu_model.memory_gib, peak, peak * math.exp(radius), p_oom, level)
                    plan = replace(
                        price_plan(gpu_model, job.n_gpus, estimate_tokens_per_s(job, gpu_model), memory, request),
                        job=job,
                    )
                    yield plan
                    if plan.meets_deadline(request):
                        waiting.remove((gpu_model, count))
            dp *= 2


class JobMemory(NamedTuple):
    """Memory of a GPU or slice and of a job on it [GiB], and the probability that it is exceeded."""

    gpu_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    level: str


def price_plan(
    gpu_model: GpuSpec,
    gpus: int,
    rates: tuple[float, float, float],
    memory: JobMemory,
    request: SizingRequest,
    share: float = 1.0,
) -> JobPlan:
    """Make a plan with time, cost and energy of GPUs, or of a fraction of one.

    Parameters
    ----------
    gpu_model : GpuSpec
        The GPU model.
    gpus : int
        Number of GPUs.
    rates : tuple of float
        Low, expected and high speed. [tokens/s]
    memory : JobMemory
        Memory of the job.
    request : SizingRequest
        The request.
    share : float
        Fraction of a GPU that is used. [0-1]
    """
    low, rate, high = rates
    hours = [request.tokens / tokens_per_s / 3600 if request.tokens else None for tokens_per_s in rates]
    gpu_hours = gpus * share * (1.0 if hours[1] is None else hours[1])
    price, energy = _gpu_hour_cost(gpu_model.name)
    return JobPlan(
        gpu_model.name, gpus, *memory, rate, low, high, "job" if request.tokens else "hour", share_of_gpu=share,
        hours=hours[1], hours_low=hours[2], hours_high=hours[0],
        cost=None if price is None else gpu_hours * price, currency=None if price is None else "USD",
        energy_kwh=None if energy is None else gpu_hours * energy,
    )  # fmt: skip


@functools.cache
def _gpu_hour_cost(gpu_model: str) -> tuple[float | None, float | None]:
    """Return price [USD] and facility energy [kWh] of one busy GPU-hour; None where no source states them."""
    price = find_gpu_hour_price(gpu_model).value if has_list_price(gpu_model) else None
    try:
        law = make_power_model(gpu_model)
    except ScenarioError:
        return price, None
    energy = compute_gpu_kwh(law, powered_gpu_hours=1, resident_gpu_hours=1, active_gpu_hours=_ASSUMED_SM_ACTIVITY)
    return price, compute_facility_kwh(
        energy, host_factor=find_parameter("host_factor").value, pue=find_parameter("pue").value
    )


def make_pool_plans(plans: Sequence[JobPlan], request: SizingRequest) -> list[JobPlan]:
    """Make plans over two GPU models: replicas of one shape, with micro-batches by the speed of each model."""
    if not request.boards or len(request.boards) < 2:
        return []
    shapes: dict[tuple[object, ...], dict[str, JobPlan]] = {}
    for plan in plans:
        if (job := plan.job) is not None:
            key = (job.tp, job.pp, job.sharding, job.recompute, job.micro_batch)
            kept = shapes.setdefault(key, {}).setdefault(plan.gpu_model, plan)
            if plan.gpus > kept.gpus:
                shapes[key][plan.gpu_model] = plan
    pairs = (itertools.combinations(of_board.values(), 2) for of_board in shapes.values())
    return [_combine_plans(both, request) for both in itertools.chain.from_iterable(pairs)]


def _combine_plans(pair: tuple[JobPlan, JobPlan], request: SizingRequest) -> JobPlan:
    """Combine two plans of one shape; the probability of running out of memory is the higher of the two."""
    names = ("tokens_per_s_low", "tokens_per_s", "tokens_per_s_high")
    low, rate, high = (_MIXED_POOL_SPEED_FRACTION * sum(getattr(plan, name) for plan in pair) for name in names)
    hours = request.tokens / rate / 3600 if request.tokens else None

    def sum_hourly(name: str) -> float | None:
        """Sum hourly figures of both plans over their common run time; None if one is unknown."""
        hourly = [None if (total := getattr(plan, name)) is None else total / (plan.hours or 1.0) for plan in pair]
        known_values = [value for value in hourly if value is not None]
        return sum(known_values) * (hours or 1.0) if len(known_values) == len(pair) else None

    return replace(
        max(pair, key=lambda plan: plan.p_oom),
        gpu_model=" + ".join(f"{plan.gpus} × {plan.gpu_model}" for plan in pair), gpus=sum(plan.gpus for plan in pair),
        parts=tuple((plan.gpu_model, plan.gpus) for plan in pair),
        tokens_per_s=rate, tokens_per_s_low=low, tokens_per_s_high=high,
        hours=hours, hours_low=request.tokens / high / 3600 if request.tokens else None,
        hours_high=request.tokens / low / 3600 if request.tokens else None,
        cost=sum_hourly("cost"), energy_kwh=sum_hourly("energy_kwh"),
    )  # fmt: skip
