"""Inference services beside jobs: ``services.yaml``, replicas by hour, and the GPUs that they hold in the fleet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError, examples
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU, SERVICE_JOB_CLASS, Jobs
from gpuplanner.core.serialization import read_number, read_rows, read_yaml, require_keys
from gpuplanner.core.stage_cache_and_data_folders import data_folder, stage
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_HOUR, percent_text
from gpuplanner.decision.explained_waits import ExplainedWaits, append_requests
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.service_requests import (
    GAUGES_TABLE,
    REQUEST_TABLES,
    REQUESTS_TABLE,
    SERVING_TABLE,
    count_requests_by_service,
    draw_requests,
    measure_ttft_p99,
    read_request_stream,
)
from gpuplanner.decision.sharing_rules import refuse_duplicates
from gpuplanner.decision.wait_curve import simulate_waits
from gpuplanner.hardware.catalog import read_gpu_model
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.planner.replica_schedule import (
    HOURS_OF_DAY,
    HOURS_OF_WEEK,
    LatencyTargets,
    ReplicaSchedule,
    find_fewest_replicas,
    list_replica_holds,
    plan_replicas,
    plan_replicas_by_activity,
    run_each_alone,
)
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_state import Ints
from gpuplanner.sizing.job_plans import CACHE_BYTES_BY_NUMBER_FORMAT, SizingRequest, resolve_request
from gpuplanner.sizing.llm_service_plans import DEFAULT_ITL_S, DEFAULT_TTFT_S, make_replica_step_times
from gpuplanner.sizing.mig_slices import ServingDevice, iterate_serving_devices
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.replica_queue import ReplicaStepTimes
from gpuplanner.sizing.serving_calibration import SpeedCalibration, calibrate_serving_speed
from gpuplanner.sizing.serving_speed import EngineLoad, compute_serving_work, count_sequences_in_memory, make_layout
from gpuplanner.sizing.training_throughput import find_gpu_spec
from gpuplanner.usage.planning_history import History, history, load_study_dataset
from gpuplanner.usage.study_fleet import planned_fleet

SERVICE_KEYS = (
    "name", "model", "requests", "team", "gpu_model", "profile", "gpus", "precision", "ttft_ms", "itl_ms", "startup_s",
    "min_replicas", "busy_share",
)  # fmt: skip
"""Keys of a service in ``services.yaml``."""
DEFAULT_STARTUP_S = 300.0
"""Default time from the start of a replica until it is ready: image, weights and warm-up. [s]"""
MAX_SCHEDULED_DEVICES = 3
"""Devices of a service for which a schedule of all hours is compared."""


@dataclass(frozen=True)
class InferenceService:
    """A served model, as ``services.yaml`` states it.

    - ``name``, ``model``, ``team``: Service, language model as ``gpuplanner size`` takes it, and team that pays.
    - ``requests``: Name of the service in the request trace.
    - ``gpu_model``, ``profile``, ``gpus``: GPU model, MIG profile and GPUs of a replica; None: chosen.
    - ``precision``: Format of the weights; None: as published.
    - ``ttft_s``, ``itl_s``: Targets of the time to the first token (p99) and per token (p95) [s].
    - ``startup_s``: Time from the start of a replica until it is ready [s].
    - ``min_replicas``: Fewest replicas; 0: none in hours without requests.
    - ``busy_share``: Where only GPU activity is measured: share of the time in which a replica may compute [0-1].
    - ``line``: Line in the file.
    """

    name: str
    model: str
    team: str
    requests: str
    gpu_model: str | None = None
    profile: str | None = None
    gpus: int | None = None
    precision: str | None = None
    ttft_s: float = DEFAULT_TTFT_S
    itl_s: float = DEFAULT_ITL_S
    startup_s: float = DEFAULT_STARTUP_S
    min_replicas: int = 1
    busy_share: float = 0.6
    line: int = 1

    @property
    def targets(self) -> LatencyTargets:
        """Latency targets."""
        return LatencyTargets(self.ttft_s, self.itl_s)


def read_services(path: str | Path) -> tuple[InferenceService, ...]:
    r"""Read ``services.yaml``: a list ``services``, each with ``name`` and ``model``.

    A service may have ``team`` (its name), ``requests`` (name of the service in the request trace: its name),
    ``gpu_model``, ``profile`` or ``gpus`` of a replica, ``precision``, ``ttft_ms`` (1000), ``itl_ms`` (50),
    ``startup_s`` (300) and ``min_replicas`` (1). Of gauges without tokens, replicas follow the GPU activity, with
    ``busy_share`` (0.6).

    Parameters
    ----------
    path : str or Path
        The YAML file.

    Raises
    ------
    ScenarioError
        If a key or a value is wrong, with the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "services.yaml"
    ...     _ = file.write_text("services:\n- {name: chat, model: llama-3.1-8b, ttft_ms: 500}\n")
    ...     read_services(file)[0].ttft_s
    0.5
    """
    file = Path(path).name
    document = require_keys(read_yaml(path), ("services",), f"{file}, the file", 1, required_keys=("services",))
    [entries] = read_rows(document, {"services": (SERVICE_KEYS, ("name", "model"))}, file)
    services = tuple(_read_service(values, file, line) for values, line in entries)
    refuse_duplicates([service.name for service in services], file, "services")
    return services


def _read_service(values: Any, file: str, line: int) -> InferenceService:  # noqa: ANN401 - of a file
    """Read one service of the file; a wrong value is a ``ScenarioError`` with the line."""
    name = str(values["name"])
    numbers = {
        "ttft_s": ("ttft_ms", 1.0, 1e6, 1e-3), "itl_s": ("itl_ms", 0.1, 1e5, 1e-3),
        "startup_s": ("startup_s", 0.0, float(SECONDS_PER_DAY), 1.0), "busy_share": ("busy_share", 0.05, 1.0, 1.0),
    }  # fmt: skip
    stated: dict[str, Any] = {
        field: factor * read_number(values, key, file, low, high)
        for field, (key, low, high, factor) in numbers.items()
        if key in values
    }
    for key, low in (("min_replicas", 0), ("gpus", 1)):
        if key in values:
            stated[key] = int(read_number(values, key, file, low, 10_000, whole=True))
    if "gpu_model" in values:
        stated["gpu_model"] = read_gpu_model(values, file)
    stated |= {key: str(values[key]) for key in ("profile", "precision") if key in values}
    team, requests = (str(values.get(key, name)) for key in ("team", "requests"))
    return InferenceService(name, str(values["model"]), team, requests, line=line, **stated)


@dataclass(frozen=True, eq=False)
class PlannedService:
    """A service with its replicas by hour.

    - ``service``: The service.
    - ``device``: GPUs or MIG slice of a replica.
    - ``step_times``: Speed of a replica; None: replicas follow the measured GPU activity.
    - ``schedule``: Replicas by hour.
    - ``requests``: Requests of the trace, one row each, with ``time`` and ``team``.
    - ``begin``: First hour of the trace [UTC].
    - ``assumptions``: What was assumed, as sentences.
    - ``measured_ttft_s``: Bounds of the measured p99 of the time to the first token; None without a histogram [s].
    """

    service: InferenceService
    device: ServingDevice
    step_times: ReplicaStepTimes | None
    schedule: ReplicaSchedule
    requests: pl.DataFrame
    begin: datetime
    assumptions: tuple[str, ...] = ()
    measured_ttft_s: tuple[float, float] | None = None

    @property
    def gpus_per_replica(self) -> float:
        """GPUs of a replica, a MIG slice as its fraction of one."""
        return self.device.gpus / self.device.instances

    @property
    def profile(self) -> str:
        """MIG profile of a replica, or the full GPU."""
        return FULL_GPU if self.device.profile == "gpu" else self.device.profile

    @cached_property
    def hours(self) -> pl.DataFrame:
        """Hours of the trace as :attr:`ReplicaSchedule.hours`, with ``time`` and ``service`` before them."""
        time = pl.lit(self.begin) + pl.duration(hours=pl.col("hour"))
        named = self.schedule.hours.with_columns(time=time, service=pl.lit(self.service.name))
        return named.select("time", "service", pl.exclude("time", "service", "hour"))


def slots_of_hours(begin: datetime, n_hours: int, n_slots: int, zone: str) -> Ints:
    """Return the slot of each hour: the local hour of the week (0: Monday 00:00), or of the day.

    Examples
    --------
    >>> from datetime import UTC
    >>> slots_of_hours(datetime(2026, 3, 2, 22, tzinfo=UTC), 3, 168, "Europe/Berlin").tolist()
    [23, 24, 25]
    """
    hours = pl.Series([begin + timedelta(hours=hour) for hour in range(n_hours)], dtype=pl.Datetime("us", "UTC"))
    local = hours.dt.convert_time_zone(zone)
    slot = 24 * (local.dt.weekday().cast(pl.Int64) - 1) + local.dt.hour().cast(pl.Int64)
    return slot.to_numpy() % n_slots


def has_job_list(scenario: Scenario) -> bool:
    """Whether the data of a scenario have jobs; without any, services are planned alone."""
    return (data_folder(scenario.data) / "jobs.parquet").is_file()


def load_service_history(scenario: Scenario) -> History:
    """Load the history of a scenario; without jobs, its requests with the fleet of the node list or of the scenario.

    Raises
    ------
    TraceFormatError
        If the data have neither jobs nor requests.
    """
    if has_job_list(scenario):
        return history(scenario)
    dataset = load_study_dataset(scenario)
    # Without requests, the job list is asked for, and its absence is the error.
    times = [dataset.tables[name]["time"] for name in REQUEST_TABLES if name in dataset.tables]
    begin, end = pl.concat(times or [dataset.jobs["submit_time"]]).sort()[[0, -1]].to_list()
    if dataset.inventory is None and not scenario.nodes and scenario.services is not None:
        stated = {service.gpu_model for service in read_services(scenario.services)}
        model = stated.pop() if len(stated) == 1 else None
        scenario = scenario.but(nodes=1, gpu_model=scenario.gpu_model or model)
    jobs = Jobs.create_empty()
    fleet = planned_fleet(scenario, dataset.with_tables(jobs=jobs), begin, end)
    plan_start = end.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return History(dataset, jobs, {}, jobs, begin, end, begin, plan_start, fleet)


@stage
def plan_inference_services(scenario: Scenario) -> tuple[PlannedService, ...]:
    """Plan the replicas of the services of a scenario by hour of the week, from the requests of its dataset.

    Raises
    ------
    ScenarioError
        If a service has no requests in the data, or its GPU model is not clear or not one of the cluster.
    InfeasiblePlanError
        If a model fits no GPU, or a target is below the physical limit.
    """
    if scenario.services is None:
        return ()
    fleet, services = load_service_history(scenario).fleet, read_services(scenario.services)
    if fleet.name is not None:
        models = [str(pool.gpu_model) for pool in fleet.installed.pools if pool.gpu_model is not None and pool.gpus]
        _check_gpu_models(scenario, services, models if scenario.gpu_model is None and models else [fleet.name])
    hosted = (row for row in services if fleet.name is None or row.gpu_model in (None, fleet.name))
    return tuple(plan_service_of_data(scenario, service) for service in hosted)


def _check_gpu_models(scenario: Scenario, services: Sequence[InferenceService], gpu_models: Sequence[str]) -> None:
    """Raise an error for a service that no GPU model of the cluster serves, or that several could serve."""
    for service in services:
        if service.gpu_model not in gpu_models and (service.gpu_model is not None or len(gpu_models) > 1):
            location = _format_service_location(scenario, service)
            expected, todo = f"gpu_model: one of {examples(gpu_models)}", "Set gpu_model: to the one that serves it."
            raise ScenarioError(location, expected, service.gpu_model or "no gpu_model", todo)


def _format_service_location(scenario: Scenario, service: InferenceService) -> str:
    """Format where a service is stated: file, line and name."""
    return f"{Path(scenario.services or 'services.yaml').name}, line {service.line}, {service.name}"


def plan_service_of_data(scenario: Scenario, service: InferenceService) -> PlannedService:
    """Plan the replicas of a service by its requests in the dataset of a scenario, or by its measured GPU activity.

    Parameters
    ----------
    scenario : Scenario
        Data, time zone and quantile of the demand to cover.
    service : InferenceService
        The service.

    Raises
    ------
    ScenarioError, InfeasiblePlanError
        As :func:`plan_inference_services`.
    """
    job_history = load_service_history(scenario)
    tables = job_history.trace.tables
    names = sorted(count_requests_by_service({name: table.lazy() for name, table in tables.items()}))
    if service.requests not in names:
        got = f"requests of {examples(names)}" if names else "no requests in the data"
        todo = "Set requests: to one of these names." if names else "Add a request trace to the files."
        location = _format_service_location(scenario, service)
        raise ScenarioError(location, f"requests of {service.requests!r} in the data", got, todo)
    requests = _find_requests(scenario, job_history, service)
    if requests is None:
        return plan_service_by_activity(scenario, job_history, service, tables[GAUGES_TABLE])
    return plan_service(scenario, job_history, service, *requests)


def plan_service_by_activity(
    scenario: Scenario, job_history: History, service: InferenceService, gauges: pl.DataFrame
) -> PlannedService:
    """Plan the replicas of a service whose source has rates and GPU activity, but no tokens.

    Parameters
    ----------
    scenario : Scenario
        Time zone and quantile of the demand to cover.
    job_history : History
        Fleet.
    service : InferenceService
        The service; its name in the trace is a kind of requests.
    gauges : polars.DataFrame
        Table ``gauges``: duty cycles of containers, and rates of requests.
    """
    rates = gauges.filter(metric="requests", kind=service.requests)
    duty = gauges.filter(metric="gpu_duty_cycle")
    if rates["subject"].drop_nulls().is_empty() or duty.is_empty():
        todo = "Add the file of duty cycles, or name a kind of requests that runs in containers."
        got = "no duty cycles" if duty.is_empty() else "rates without a container"
        raise ScenarioError(f"service {service.name}", "GPU activity beside the rates of requests", got, todo)
    gpu_spec = find_gpu_spec(str(service.gpu_model or job_history.fleet.name))
    if gpu_spec is None:
        got = f"{service.gpu_model or job_history.fleet.name}"
        raise ScenarioError(f"service {service.name}", "a GPU model of the catalog", got, "Add gpu_model:.")
    times: list[datetime] = duty["time"].unique().sort().to_list()
    begin = times[0].replace(minute=0, second=0, microsecond=0)
    step_s = float(np.median([(later - at).total_seconds() for at, later in itertools.pairwise(times)] or [0.0]))
    hour = ((pl.col("time") - begin).dt.total_seconds() // int(SECONDS_PER_HOUR)).cast(pl.Int64).alias("hour")
    busy = duty.group_by("time", maintain_order=True).agg(busy=pl.col("value").sum() / 100)
    counted = rates.group_by("time", maintain_order=True).agg(requests=pl.col("value").sum() * step_s)
    readings = busy.join(counted, on="time", how="left").with_columns(hour, pl.col("requests").fill_null(0.0))
    n_hours = int((times[-1] - begin).total_seconds() // SECONDS_PER_HOUR) + 1
    n_slots = HOURS_OF_WEEK if n_hours > HOURS_OF_WEEK - HOURS_OF_DAY else HOURS_OF_DAY
    schedule = plan_replicas_by_activity(
        readings, slots_of_hours(begin, n_hours, n_slots, scenario.tz), n_slots, busy_share=service.busy_share,
        quantile=scenario.quantile, startup_s=service.startup_s, floor=service.min_replicas,
    )  # fmt: skip
    containers, requests = duty["subject"].n_unique(), float(readings["requests"].sum())
    per_request = float(readings["busy"].sum()) * step_s / requests if requests else 0.0
    notes = [
        f"the source has no tokens and no latencies: replicas keep {containers:,} containers' measured GPU activity at "
        f"{percent_text(service.busy_share)} of the time (p95 of each hour), and no time to the first token is known",
        f"{per_request:,.1f} GPU-seconds of activity a request of the trace, whose rates are scaled",
        "hours are those of the trace's clock, which the source shifted and scaled",
        *_list_assumptions(service, schedule, None),
    ]
    rows = pl.DataFrame(schema={"prompt_tokens": pl.Int64, "generated_tokens": pl.Int64})
    return PlannedService(service, ServingDevice(gpu_spec, "gpu", 1.0, 1), None, schedule, rows, begin, tuple(notes))


def _find_requests(
    scenario: Scenario, job_history: History, service: InferenceService
) -> tuple[pl.DataFrame, pl.DataFrame | None] | None:
    """Find the requests of a service, and its minutes of serving metrics; without a trace, requests are drawn of them.

    None for a service of which rates alone are known.

    Parameters
    ----------
    scenario : Scenario
        Seed.
    job_history : History
        Dataset.
    service : InferenceService
        The service.
    """
    of_service = pl.col("service") == service.requests
    requests, metrics = (job_history.trace.tables.get(name) for name in (REQUESTS_TABLE, SERVING_TABLE))
    minutes = None if metrics is None or metrics.filter(of_service).is_empty() else metrics.filter(of_service)
    if requests is not None and not (rows := requests.filter(of_service).sort("time")).is_empty():
        return rows, minutes
    return None if minutes is None else (draw_requests(minutes, scenario.seed), minutes)


def plan_service(
    scenario: Scenario,
    job_history: History,
    service: InferenceService,
    requests: pl.DataFrame,
    minutes: pl.DataFrame | None = None,
) -> PlannedService:
    """Choose the device of a service by its busiest hour, and plan its replicas.

    Parameters
    ----------
    scenario : Scenario
        Time zone and quantile of the demand to cover.
    job_history : History
        Fleet.
    service : InferenceService
        The service.
    requests : polars.DataFrame
        Its requests, table ``requests``.
    minutes : polars.DataFrame, optional
        Its serving metrics, table ``serving``, by which the speed is calibrated.
    """
    fleet = job_history.fleet
    if fleet.name is None and service.gpu_model is None:
        got = "a fleet of several or unknown GPU models"
        raise ScenarioError(f"service {service.name}", "a gpu_model", got, "Add gpu_model: to services.yaml.")
    gpu_name = service.gpu_model or fleet.name
    stream, begin = read_request_stream(requests)
    n_hours = int(stream.arrival_s[-1] // SECONDS_PER_HOUR) + 1
    hour = (stream.arrival_s // SECONDS_PER_HOUR).astype(np.int64)
    busiest = stream.take(hour == np.bincount(hour, weights=stream.prompt + stream.answer).argmax())
    prompt, answer = stream.mean_running_lengths()
    request, model, gpu_specs, assumed = resolve_request(SizingRequest(
        service.model, "serve", prompt=prompt, answer=answer, seq=int((stream.prompt + stream.answer).max()),
        quantization=service.precision, ttft_s=service.ttft_s, itl_s=service.itl_s, rate=1.0,
        boards={str(gpu_name): fleet.node_size},
    ))  # fmt: skip
    devices = [
        device
        for device in iterate_serving_devices(model, gpu_specs[0][0], fleet.node_size)
        if _is_allowed(service, device, cut=fleet.cut_gpus > 0)
    ]
    calibration = None if minutes is None else calibrate_service(request, model, devices, minutes)
    speed = calibration.speed if isinstance(calibration, SpeedCalibration) else None
    candidates: list[tuple[float, float, ServingDevice, ReplicaStepTimes]] = []
    reasons = []
    for device in devices:
        step_times = make_replica_step_times(request, model, device, speed)
        if isinstance(step_times, str):
            reasons.append(f"{device.words}: {step_times}")
            continue
        ttft_s, itl_s = run_each_alone(step_times, busiest).percentiles()
        if ttft_s > service.ttft_s or itl_s > service.itl_s:
            times_text = f"{1e3 * ttft_s:,.0f} ms to the first token (p99) and {1e3 * itl_s:,.1f} ms a token (p95)"
            reasons.append(f"{device.words}: {times_text} where each request runs alone")
            continue
        unit = device.gpus / device.instances
        gpus = find_fewest_replicas(step_times, busiest, service.targets) * unit
        candidates.append((gpus, unit, device, step_times))
    if not candidates:
        targets = f"first tokens within {1e3 * service.ttft_s:,.0f} ms and {1e3 * service.itl_s:,.0f} ms a token"
        todo = "Relax the target that is named, or name another GPU model or precision."
        raise InfeasiblePlanError(f"service {service.name}, {model.name}", targets, "; ".join(reasons), todo)
    n_slots = HOURS_OF_WEEK if n_hours > HOURS_OF_WEEK - HOURS_OF_DAY else HOURS_OF_DAY
    plan = partial(
        plan_replicas, requests=stream, targets=service.targets,
        slots=slots_of_hours(begin, n_hours, n_slots, scenario.tz), n_slots=n_slots, quantile=scenario.quantile,
        startup_s=service.startup_s, floor=service.min_replicas,
    )  # fmt: skip
    # Of the devices with the fewest GPUs in the busiest hour, the one with the fewest GPU-hours follows demand best.
    candidates = sorted(candidates, key=lambda candidate: candidate[:2])[:MAX_SCHEDULED_DEVICES]
    schedules = [plan(step_times) for *_, step_times in candidates]
    gpu_hours = [
        unit * schedule.compare_replica_hours()["planned"]
        for (_, unit, *_), schedule in zip(candidates, schedules, strict=True)
    ]
    chosen = int(np.argmin(gpu_hours))
    schedule, (*_, device, step_times) = schedules[chosen], candidates[chosen]
    # The length of the context was given above only to find the memory of a sequence.
    assumed = [text for text in assumed if not text.startswith(("context", "seq"))]
    assumed += _list_assumptions(service, schedule, requests)
    if minutes is not None:
        assumed += describe_calibration(calibration, devices, drawn="service" not in requests.columns)
    measured = None if minutes is None else measure_ttft_p99(minutes)
    return PlannedService(service, device, step_times, schedule, requests, begin, tuple(assumed), measured)


def calibrate_service(
    request: SizingRequest, architecture: Architecture, devices: Sequence[ServingDevice], minutes: pl.DataFrame
) -> SpeedCalibration | str:
    """Calibrate the serving speed by the minutes of a service, taken to run on the first device that holds it.

    Parameters
    ----------
    request : SizingRequest
        Lengths of prompt and answer, and number formats.
    architecture : Architecture
        The model.
    devices : sequence of ServingDevice
        Devices of the service, the smallest first.
    minutes : polars.DataFrame
        Table ``serving`` of the service.
    """
    load = partial(EngineLoad, float(request.prompt or 1), float(request.answer or 1))
    cache_bytes = CACHE_BYTES_BY_NUMBER_FORMAT[request.cache_dtype]
    for device in devices:
        layout = make_layout(architecture, request.quantization or "none", device.gpus, cache_bytes=cache_bytes)
        if count_sequences_in_memory(architecture, device.gpu_model, layout, load(1)):
            break
    else:
        return "the model fits none of the devices"
    measured = minutes.select("running", "token_s").drop_nulls().cast(pl.Float64)
    return calibrate_serving_speed(
        lambda number: compute_serving_work(architecture, device.gpu_model, layout, load(number)),
        measured["running"].to_numpy(),
        measured["token_s"].to_numpy(),
    )


def describe_calibration(
    calibration: SpeedCalibration | str | None, devices: Sequence[ServingDevice], *, drawn: bool
) -> list[str]:
    """Describe what serving metrics were used for, as notes."""
    lengths = "the mean lengths of each hour, which scatter as histograms of lengths do where there are any"
    notes = [f"requests: drawn from serving metrics with {lengths}"] * drawn
    if isinstance(calibration, str):
        notes.append(f"speed: not calibrated, {calibration}")
    elif calibration is not None:
        before, after = (percent_text(error) for error in (calibration.error_before, calibration.error_after))
        notes.append(
            f"speed: {' and '.join(calibration.fitted)} calibrated by {calibration.points:,} minutes of time per token "
            f"(median error {before} before, {after} after), measured on {devices[0].words} as the smallest device"
        )
    return notes


def _is_allowed(service: InferenceService, device: ServingDevice, *, cut: bool) -> bool:
    """Whether a service may run on a device: as stated, else on full GPUs, and on slices where the fleet has some."""
    if service.profile is not None:
        return device.profile == ("gpu" if service.profile in ("gpu", "full") else service.profile)
    if service.gpus is not None:
        return device.profile == "gpu" and device.gpus == service.gpus
    return cut or device.profile == "gpu"


def _list_assumptions(service: InferenceService, schedule: ReplicaSchedule, requests: pl.DataFrame | None) -> list[str]:
    """List what was assumed for the replicas of a service."""
    notes, unseen = [], int((~schedule.is_observed).sum())
    if unseen:
        every = "hours of the week" if len(schedule.by_slot) == HOURS_OF_WEEK else "hours of the day"
        notes.append(f"{unseen} of {len(schedule.by_slot)} {every} are not in the trace: planned with the peak")
    elif len(schedule.by_slot) == HOURS_OF_DAY:
        notes.append("the trace is shorter than six days: all days are taken to be alike")
    empty = 0 if requests is None else requests.filter(pl.col("generated_tokens") < 1).height
    if empty:
        notes.append(f"{empty:,} requests have no answer tokens: they count with one")
    notes.append(f"start-up: {service.startup_s:g} s before the hour in which a replica is needed")
    return notes


def count_replicas(planned: PlannedService, begin: datetime, n_hours: int, zone: str) -> Ints:
    """Count the planned replicas of a service in each hour from an instant on."""
    schedule = planned.schedule
    return schedule.by_slot[slots_of_hours(begin, n_hours, len(schedule.by_slot), zone)]


def add_services(
    scenario: Scenario, inputs: JobReplayInputs, waits: ExplainedWaits
) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Add the replicas of the services of a scenario to a record, as services that hold GPUs by schedule.

    What the jobs would wait beside them on today's fleet stands for what was observed.

    Parameters
    ----------
    scenario : Scenario
        Data and services.
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    waits : ExplainedWaits
        Causes of their waits.
    """
    planned_services = plan_inference_services(scenario)
    rows, teams = [], []
    n_hours = int(np.ceil(inputs.observed_s / SECONDS_PER_HOUR))
    for planned in planned_services:
        profile, units, per_node = _request_shape(planned, inputs)
        replicas = count_replicas(planned, inputs.replay_start, n_hours, scenario.tz)
        # Where the fleet has no such slice, full GPUs are partitioned for the replicas.
        counts = replicas if units else -(-replicas // planned.device.instances)
        for begin_s, end_s in list_replica_holds(counts, float(SECONDS_PER_HOUR), planned.service.startup_s):
            since_s = begin_s or -1.0
            rows.append((since_s, since_s, end_s - since_s, end_s - since_s, profile, max(units, 1), per_node))
            teams.append(planned.service.team)
    if not rows:
        return inputs, waits
    n_jobs, is_service = len(inputs.start_s), np.ones(len(rows), np.bool_)
    requests = NodeRequests(*(np.array(column) for column in zip(*rows, strict=True)))
    inputs, waits = append_requests(inputs, waits, requests, is_service)
    of_service = pl.int_range(pl.len()) >= n_jobs
    all_teams = pl.Series([None] * n_jobs + teams, dtype=pl.String)
    jobs = inputs.jobs.with_columns(
        tenant=pl.when(of_service).then(all_teams).otherwise(pl.col("tenant").cast(pl.String)),
        job_class=pl.when(of_service).then(pl.lit(SERVICE_JOB_CLASS)).otherwise(pl.col("job_class").cast(pl.String)),
    )
    inputs = replace(inputs, jobs=jobs)
    # Services come before jobs in the queue.
    head_start_s = waits.queue.rule.head_start_s
    head_start_s = np.zeros(len(inputs.start_s)) if head_start_s is None else head_start_s.copy()
    head_start_s[n_jobs:] = 2 * inputs.observed_s
    waits = replace(waits, queue=replace(waits.queue, rule=replace(waits.queue.rule, head_start_s=head_start_s)))
    every_job = np.arange(len(inputs.start_s))
    simulated_s = simulate_waits(inputs, waits, inputs.fleet, every_job, waits.arrival_s)
    return inputs, replace(waits, waited_s=np.minimum(simulated_s, inputs.observed_s))


def _request_shape(planned: PlannedService, inputs: JobReplayInputs) -> tuple[int, int, int]:
    """Return profile number, GPUs or instances, and nodes of a replica; 0 instances if the fleet has no such slice."""
    if planned.profile == FULL_GPU:
        return 0, planned.device.gpus, -(-planned.device.gpus // inputs.node_gpus)
    if planned.profile in inputs.fleet.profiles:
        number = inputs.fleet.profiles.index(planned.profile)
        if inputs.fleet.capacity[:, 0, number].any():
            return number, 1, 1
    return 0, 0, 1


def add_service_demand(
    scenario: Scenario, tenants: Sequence[str], profiles: Sequence[str], demand: np.ndarray, *, slices: bool
) -> tuple[list[str], list[str], np.ndarray]:
    """Add the replicas of services to the demand of a plan, as their teams: standing and daily demand beside the jobs.

    Parameters
    ----------
    scenario : Scenario
        Data, services and intervals of the plan.
    tenants, profiles : sequence of str
        Teams and MIG profiles of the demand.
    demand : array of float, shape (n_tenants, n_profiles, n_intervals)
        Mean concurrent instances of the jobs.
    slices : bool
        Whether replicas on MIG slices are demanded as slices; else as full GPUs.

    Returns
    -------
    tuple of list of str, list of str, and array of float
        Teams, profiles and demand with the services.
    """
    planned_services = plan_inference_services(scenario)
    teams = [*tenants, *dict.fromkeys(planned.service.team for planned in planned_services)]
    teams = list(dict.fromkeys(teams))
    names = list(dict.fromkeys([*profiles, *(p.profile if slices else FULL_GPU for p in planned_services)]))
    total = np.zeros((len(teams), len(names), demand.shape[2]))
    total[: len(tenants), : len(profiles)] = demand
    begin, hours = history(scenario).plan_start, np.arange(demand.shape[2]) * scenario.interval_hours
    n_hours = int(np.ceil(demand.shape[2] * scenario.interval_hours)) + 1
    for planned in planned_services:
        replicas = count_replicas(planned, begin, n_hours, scenario.tz)
        # Most replicas of the hours of an interval, and of the hour after it, for which replicas start in it.
        ends = hours + scenario.interval_hours + (planned.service.startup_s > 0) - 1e-9
        peaks = np.array([replicas[int(a) : int(b) + 1].max() for a, b in zip(hours, ends, strict=True)])
        as_slices = slices and planned.profile != FULL_GPU
        counts = peaks if as_slices else -(-peaks * planned.device.gpus // planned.device.instances)
        total[teams.index(planned.service.team), names.index(planned.profile if slices else FULL_GPU)] += counts
    return teams, names, total


def gpus_of_services(planned_services: Sequence[PlannedService], gpu_model: GpuModel, replicas: Sequence[Ints]) -> Ints:
    """Count the GPUs that all services hold in each hour; slices of one profile share GPUs.

    Parameters
    ----------
    planned_services : sequence of PlannedService
        The services.
    gpu_model : GpuModel
        GPU model of the fleet.
    replicas : sequence of array of int, shape (n_hours,)
        Replicas of each service.
    """
    gpus = np.zeros_like(replicas[0]) if replicas else np.zeros(0, np.int64)
    by_profile: dict[str, Ints] = {}
    for planned, counts in zip(planned_services, replicas, strict=True):
        if planned.profile == FULL_GPU:
            gpus = gpus + counts * planned.device.gpus
        else:
            by_profile[planned.profile] = by_profile.get(planned.profile, 0) + counts
    for profile, counts in by_profile.items():
        gpus = gpus + -(-counts // gpu_model.profile(profile).max_instances)
    return gpus
