"""Answers on inference services: replicas by hour, GPUs beside jobs, one pool or two, and cost by model and team."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.core.units_and_number_formats import SECONDS_PER_MINUTE, count_text, money_text, percent_text, wait_text
from gpuplanner.cost.period_costs import find_price
from gpuplanner.cost.service_costs import ServiceUse, charge_services, tabulate_token_costs
from gpuplanner.decision.capacity_measures import Recommendation
from gpuplanner.decision.inference_services import (
    PlannedService,
    count_replicas,
    gpus_of_services,
    has_job_list,
    load_service_history,
    plan_inference_services,
    read_services,
)
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.policy_simulation import WAIT_QUANTILE, take_order_statistic
from gpuplanner.decision.recommendation import recommend_from_waits
from gpuplanner.decision.service_requests import REQUEST_TABLES, count_requests_by_service
from gpuplanner.ingest.dataset_folder import read_metadata
from gpuplanner.ingest.quality_report import QualityWarning, list_warnings
from gpuplanner.planner.replica_schedule import HOURS_OF_WEEK, ScheduleBacktest
from gpuplanner.sizing.model_architecture import find_nearest_preset

MODEL_PLACEHOLDER = "MODEL"
"""Stands for a language model in lines that a user completes."""


@dataclass(frozen=True)
class ServiceAnswer:
    """Replicas of a service by hour, and what they reach.

    - ``name``, ``model``, ``team``, ``device``: Service, language model, team, and GPUs of a replica as text.
    - ``replicas_min``, ``replicas_max``: Fewest and most planned replicas of an hour.
    - ``gpu_hours``, ``peak_gpu_hours``, ``hindsight_gpu_hours``: GPU-hours of the trace as planned with start-up, with
      the peak all day, and with the fewest replicas of each hour in hindsight [GPU h].
    - ``ttft_p99_ms``, ``itl_p95_ms``: Simulated latencies of all requests of the trace [ms].
    - ``ttft_target_ms``, ``itl_target_ms``: Their targets [ms].
    - ``sentence``, ``zero_text``: The answer as a sentence, and when the service may go to zero.
    - ``backtest_text``, ``backtest``: What a schedule of all but the last week reaches in that week, as a sentence and
      as numbers; None: not tested.
    - ``assumptions``: What was assumed.
    """

    name: str
    model: str
    team: str
    device: str
    replicas_min: int
    replicas_max: int
    gpu_hours: float
    peak_gpu_hours: float
    hindsight_gpu_hours: float
    ttft_p99_ms: float | None
    itl_p95_ms: float | None
    ttft_target_ms: float
    itl_target_ms: float
    sentence: str
    zero_text: str
    backtest_text: str
    backtest: ScheduleBacktest | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class InferenceAnswer:
    """Services beside the jobs of a fleet.

    - ``services``: Answer for each service.
    - ``standing_gpus``, ``peak_gpus``: GPUs that all services hold at any time, and at most.
    - ``one_pool_gpus``: GPUs recommended for jobs and services on one fleet; None without a recommendation.
    - ``service_pool_gpus``, ``job_pool_gpus``: GPUs of a pool for services alone, in full nodes, and of the jobs alone.
    - ``replica_wait_p95_minutes``: p95 wait of scheduled replicas for GPUs on today's fleet; None without jobs [min].
    - ``sentence``: The answer as sentences.
    """

    services: tuple[ServiceAnswer, ...]
    standing_gpus: int
    peak_gpus: int
    one_pool_gpus: int | None
    service_pool_gpus: int
    job_pool_gpus: int | None
    replica_wait_p95_minutes: float | None
    sentence: str


def answer_services(scenario: Scenario) -> InferenceAnswer | None:
    """Answer how many replicas the services of a scenario need by hour, and whether they share a pool with the jobs.

    Parameters
    ----------
    scenario : Scenario
        Data, fleet and the file of services.

    Returns
    -------
    InferenceAnswer or None
        None without services on this fleet.

    Examples
    --------
    >>> answer_services(Scenario())
    """
    planned_services = plan_inference_services(scenario)
    if not planned_services:
        return None
    fleet = load_service_history(scenario).fleet
    gpus = count_service_gpus(scenario, planned_services)
    standing, peak = int(gpus.min()), int(gpus.max())
    service_pool = -(-peak // fleet.node_size) * fleet.node_size
    answers = tuple(answer_service(planned) for planned in planned_services)
    text = f"Services hold {count_text(standing, 'GPU')} at all times and {peak:,} at most."
    if not has_job_list(scenario):
        text += f" Planned alone, without a list of jobs: {service_pool:,} GPUs in nodes of {fleet.node_size:,}."
        return InferenceAnswer(answers, standing, peak, None, service_pool, None, None, text)
    neutral = scenario.but(policies=None, actuator="mig-manager", ownership=None, node_lead_s=None)
    together, _ = recommend_from_waits(neutral)
    of_jobs, _ = recommend_from_waits(neutral.but(services=None))
    one_pool, job_pool = (_count_needed_gpus(recommendation) for recommendation in (together, of_jobs))
    _, inputs, replayed_jobs, _ = load_policy_simulation(scenario)
    scheduled = inputs.is_service & (inputs.start_s >= 0)
    waited_s = replayed_jobs.waits.waited_s[scheduled]
    wait_minutes = take_order_statistic(waited_s, WAIT_QUANTILE) / SECONDS_PER_MINUTE
    if one_pool is None or job_pool is None:
        text += f" One pool or two: no answer, {together.reason or of_jobs.reason}."
    else:
        two_pools = service_pool + job_pool
        text += (
            f" One pool for jobs and services needs {one_pool:,} GPUs, two pools need {two_pools:,} "
            f"({service_pool:,} for services, {job_pool:,} for jobs)"
        )
        text += f"; in one pool replicas wait {wait_text(wait_minutes)} (p95) for GPUs on today's fleet."
    return InferenceAnswer(answers, standing, peak, one_pool, service_pool, job_pool, wait_minutes, text)


def _count_needed_gpus(recommendation: Recommendation) -> int | None:
    """Return the GPUs that meet the wait target, whether or not a purchase pays off; None without a recommendation."""
    return None if recommendation.action == "none" else max(recommendation.gpus, recommendation.target_gpus)


def count_service_gpus(scenario: Scenario, planned_services: Sequence[PlannedService]) -> np.ndarray:
    """Count the GPUs that services hold in each hour of the week after the record, shape (168,)."""
    job_history = load_service_history(scenario)
    replicas = [
        count_replicas(planned, job_history.plan_start, HOURS_OF_WEEK, scenario.tz) for planned in planned_services
    ]
    return gpus_of_services(planned_services, job_history.fleet.gpu_model, replicas)


def answer_service(planned: PlannedService) -> ServiceAnswer:
    """Answer for one service."""
    schedule, service, per = planned.schedule, planned.service, planned.gpus_per_replica
    hours = {name: per * value for name, value in schedule.compare_replica_hours().items()}
    low, high = int(schedule.by_slot.min()), schedule.peak
    replicas = f"{low} to {high} replicas" if low < high else count_text(high, "replica")
    ttft_ms, itl_ms = 1e3 * schedule.ttft_p99_s, 1e3 * schedule.itl_p95_s
    reached = "latencies are not known"
    if planned.step_times is not None:
        reached = (
            f"first token p99 {ttft_ms:,.0f} ms (target {1e3 * service.ttft_s:,.0f}), time per token p95 "
            f"{itl_ms:,.1f} ms (target {1e3 * service.itl_s:,.0f})"
        )
    if planned.measured_ttft_s is not None:
        low_s, high_s = planned.measured_ttft_s
        up_to = f" to {1e3 * high_s:,.0f}" if math.isfinite(high_s) else " or more"
        reached += f"; measured on the servers {1e3 * low_s:,.0f}{up_to} ms (first token p99)"
        if low_s < service.ttft_s < high_s:
            reached += ", the buckets are too coarse to compare it with the target"
    text = (
        f"{service.name} ({service.model}): {replicas} on {planned.device.words}; {reached}. "
        f"The schedule takes {percent_text(hours['planned'] / hours['peak all day'])} of "
        f"the GPU-hours of the peak all day; the fewest replicas of each hour, in hindsight, take "
        f"{percent_text(hours['hindsight'] / hours['peak all day'])}."
    )
    has_latencies = planned.step_times is not None
    return ServiceAnswer(
        name=service.name, model=service.model, team=service.team, device=planned.device.words,
        replicas_min=low, replicas_max=high, gpu_hours=hours["planned"], peak_gpu_hours=hours["peak all day"],
        hindsight_gpu_hours=hours["hindsight"], ttft_p99_ms=ttft_ms if has_latencies else None,
        itl_p95_ms=itl_ms if has_latencies else None, ttft_target_ms=1e3 * service.ttft_s,
        itl_target_ms=1e3 * service.itl_s, sentence=text, zero_text=describe_zero_hours(planned),
        backtest_text=describe_backtest(planned), backtest=schedule.backtest, assumptions=planned.assumptions,
    )  # fmt: skip


def list_data_warnings(scenario: Scenario) -> list[QualityWarning]:
    """List the warnings and errors of the quality report of the data, most serious first, and unplanned requests.

    Examples
    --------
    >>> list_data_warnings(Scenario())
    []
    """
    return [*list_warnings(read_metadata(data_folder(scenario.data)).quality), *list_unplanned_requests(scenario)]


def list_unplanned_requests(scenario: Scenario) -> list[QualityWarning]:
    """List a warning for the requests in the data for which a scenario names no service, with the lines to add.

    Examples
    --------
    >>> list_unplanned_requests(Scenario())
    []
    """
    folder = data_folder(scenario.data)
    paths = {name: folder / f"{name}.parquet" for name in REQUEST_TABLES}
    counts = count_requests_by_service({name: pl.scan_parquet(path) for name, path in paths.items() if path.is_file()})
    services = () if scenario.services is None else read_services(scenario.services)
    unplanned = {name: n for name, n in counts.items() if name not in {service.requests for service in services}}
    if not unplanned:
        return []
    presets = {name: find_nearest_preset(name, None) for name in unplanned}
    models = {name: MODEL_PLACEHOLDER if preset is None else preset.name for name, preset in presets.items()}
    entries = ", ".join(f"{{name: {json.dumps(name)}, model: {model}}}" for name, model in models.items())
    file = "services.yaml" if scenario.services is None else Path(scenario.services).name
    hint = f" ({MODEL_PLACEHOLDER}: as gpuplanner size takes it)" * (MODEL_PLACEHOLDER in models.values())
    counted = ", ".join(f"{name} {count:,}" for name, count in unplanned.items())
    text = f"requests without a service are not planned ({counted}): add services: [{entries}] to {file}{hint}"
    text += " and give --services services.yaml" * (scenario.services is None)
    return [QualityWarning(what=text, count=sum(unplanned.values()), gpu_hours=None)]


def describe_backtest(planned: PlannedService) -> str:
    """Describe what the schedule of all but the last week reaches in that week, or why that is not tested."""
    backtest, service = planned.schedule.backtest, planned.service
    if backtest is None:
        weeks = planned.schedule.hours.height / HOURS_OF_WEEK
        return f"{service.name}: not tested on a later week, the trace has {weeks:.1f} weeks (two are needed)."
    hours = backtest.replica_hours
    kept, reached = f"{percent_text(service.busy_share)} activity", ""
    if backtest.ttft_p99_s is not None and backtest.itl_p95_s is not None:
        kept = "both targets"
        reached = (
            f": first token p99 {1e3 * backtest.ttft_p99_s:,.0f} ms (target {1e3 * service.ttft_s:,.0f}), time per "
            f"token p95 {1e3 * backtest.itl_p95_s:,.1f} ms (target {1e3 * service.itl_s:,.0f})"
        )
    return (
        f"{service.name}, tested: replicas planned without the last week keep {kept} in {backtest.hours_met:,} of its "
        f"{backtest.hours:,} hours with requests{reached}. They take "
        f"{percent_text(hours['planned'] / hours['peak all day'])} of the GPU-hours of their peak all day, hindsight "
        f"{percent_text(hours['hindsight'] / hours['peak all day'])}. The last week has "
        f"{backtest.requests_per_h:,.0f} requests an hour, the weeks before {backtest.requests_per_h_before:,.0f}."
    )


def describe_zero_hours(planned: PlannedService) -> str:
    """Describe the hours in which a service may run without replicas, and what a request then waits."""
    hours, service = planned.schedule.hours, planned.service
    by_slot = hours.group_by("slot", maintain_order=True).agg(needed=pl.col("needed").sum(), hours=pl.len())
    empty = by_slot.filter(pl.col("needed") == 0)
    if empty.is_empty():
        return f"{service.name}: no hour of the trace is without requests, so it keeps its replicas."
    times = count_text(min(empty["hours"].to_list()), "time")
    period = "week" if len(planned.schedule.by_slot) == HOURS_OF_WEEK else "day"
    wait = wait_text(service.startup_s / SECONDS_PER_MINUTE)
    allowed = "go to zero as planned" if service.min_replicas == 0 else "may go to zero (min_replicas: 0)"
    return (
        f"{service.name}: {empty.height} of {by_slot.height} observed hours of the {period} have no requests, each "
        f"observed {times} at least; "
        f"replicas {allowed} there. A request in such an hour waits {wait} for a replica to start."
    )


def measure_service_use(scenario: Scenario) -> list[ServiceUse]:
    """Measure GPU-hours by reason and tokens by team of each service over its trace."""
    uses = []
    for planned in plan_inference_services(scenario):
        service, requests = planned.service, planned.requests
        if planned.step_times is None:
            prompt_token_s, counted = 0.0, int(planned.schedule.hours["requests"].sum())
            tokens = pl.DataFrame(
                {"team": [service.team], "requests": counted, "prompt_tokens": 0, "generated_tokens": 0}
            )
        else:
            prompt_token_s = planned.step_times.prompt_token_s
            team = pl.lit(service.team) if "team" not in requests.columns else pl.col("team").fill_null(service.team)
            by_team = requests.group_by(team=team.cast(pl.String), maintain_order=True)
            tokens = by_team.agg(pl.len().alias("requests"), pl.col("prompt_tokens", "generated_tokens").sum())
            tokens = tokens.sort("team")
        hours = planned.schedule.split_replica_hours()
        uses.append(ServiceUse(service.name, service.model, planned.gpus_per_replica, prompt_token_s, hours, tokens))
    return uses


def tabulate_services(scenario: Scenario) -> dict[str, pl.DataFrame]:
    """Tabulate services for a study: hours of the trace, charged lines, and cost of a million tokens.

    Returns
    -------
    dict of str to polars.DataFrame
        ``service_hours``, and ``service_costs`` and ``token_costs`` where the price of a GPU-hour is known; empty
        without services.
    """
    planned_services = plan_inference_services(scenario)
    if not planned_services:
        return {}
    tables = {"service_hours": pl.concat([planned.hours for planned in planned_services], how="diagonal_relaxed")}
    job_history = load_service_history(scenario)
    price = find_price(scenario, job_history.fleet, job_history)
    if price is None:
        return tables
    uses = measure_service_use(scenario)
    lines = charge_services(uses, price)
    return tables | {"service_costs": lines, "token_costs": tabulate_token_costs(lines, uses)}


def describe_service_costs(lines: pl.DataFrame) -> str:
    """Describe the cost of services and its idle part by reason."""
    currency = str(lines["currency"][0])
    cost = sum(lines["cost"].to_list(), Decimal())
    by_reason = lines.group_by("reason", maintain_order=True).agg(pl.col("cost").sum())
    parts = ", ".join(
        f"{reason} {percent_text(float(amount / cost) if cost else 0.0)}" for reason, amount in by_reason.iter_rows()
    )
    hours = float(lines["gpu_hours"].sum())
    return f"{money_text(cost, currency)} {currency} for {hours:,.1f} GPU-hours of the trace: {parts}."
