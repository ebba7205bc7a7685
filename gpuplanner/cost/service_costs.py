"""Cost of inference services by model and team, in cents that sum to the cost of the GPU-hours of their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, round_money, split_amount
from gpuplanner.cost.showback import CENTS_DTYPE
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.planner.replica_schedule import REPLICA_HOUR_REASONS

SERVING = REPLICA_HOUR_REASONS[0]
"""Name of the part of the GPU-hours of replicas in which they compute, as against idle ones."""


@dataclass(frozen=True, eq=False)
class ServiceUse:
    """GPU-hours and tokens of a service in a period.

    - ``service``, ``model``: Service, and its language model.
    - ``gpus_per_replica``: GPUs of a replica, a MIG slice as its fraction of one.
    - ``prompt_token_s``: Time of a replica for a prompt token [s].
    - ``replica_hours``: Hours of all replicas together, one row an hour, in a column for each of
      :data:`~gpuplanner.planner.replica_schedule.REPLICA_HOUR_REASONS` [h].
    - ``tokens``: ``team``, ``requests``, ``prompt_tokens`` and ``generated_tokens`` of the period, one row a team.
    """

    service: str
    model: str
    gpus_per_replica: float
    prompt_token_s: float
    replica_hours: pl.DataFrame
    tokens: pl.DataFrame

    def gpu_hours(self) -> dict[str, float]:
        """Sum the GPU-hours of the replicas by reason: serving, or why they were idle."""
        return {name: self.gpus_per_replica * float(self.replica_hours[name].sum()) for name in REPLICA_HOUR_REASONS}


def charge_services(uses: Sequence[ServiceUse], price: GpuHourPrice) -> pl.DataFrame:
    """Charge the GPU-hours of services to models and teams, serving and idle by reason, to the cent.

    The cost of all GPU-hours is rounded once, and its cents are split by largest remainder, so that the lines sum to
    it. Each team pays for the time in which replicas compute its tokens, and shares the idle time of a service in the
    same proportion.

    Parameters
    ----------
    uses : sequence of ServiceUse
        Services.
    price : GpuHourPrice
        Price of a GPU-hour.

    Returns
    -------
    polars.DataFrame
        ``service``, ``model``, ``team``, ``reason``, ``gpu_hours``, ``cost`` and ``currency``.

    Examples
    --------
    >>> hours = pl.DataFrame({"serving": [0.5], "start-up": 0.0, "no requests": 0.0, "floor": 0.0, "schedule": 0.0,
    ...                       "rounding": 0.5})
    >>> tokens = pl.DataFrame({"team": ["a", "b"], "requests": 1, "prompt_tokens": 0, "generated_tokens": [100, 50]})
    >>> price = GpuHourPrice(2.0, 2.0, 2.0, "USD", "own rate", "as given")
    >>> lines = charge_services([ServiceUse("chat", "llama-3.1-8b", 1.0, 0.0, hours, tokens)], price)
    >>> lines.filter(pl.col("cost") > 0).select("team", "reason", pl.col("cost").cast(pl.String)).rows()
    [('a', 'serving', '0.67'), ('a', 'rounding', '0.67'), ('b', 'serving', '0.33'), ('b', 'rounding', '0.33')]
    """
    rows = []
    for use in uses:
        shares = share_work(use)
        for team, share in zip(use.tokens["team"].to_list(), shares, strict=True):
            for reason, hours in use.gpu_hours().items():
                rows.append((use.service, use.model, team, reason, share * hours))
    schema = {"service": pl.String, "model": pl.String, "team": pl.String, "reason": pl.String, "gpu_hours": pl.Float64}
    lines = pl.DataFrame(rows, schema=schema, orient="row")
    total = round_money(price.value * float(lines["gpu_hours"].sum()))
    cents = split_amount(total, lines["gpu_hours"].to_list())
    return lines.with_columns(cost=pl.Series(cents, dtype=CENTS_DTYPE), currency=pl.lit(price.currency))


def share_work(use: ServiceUse) -> list[float]:
    """Return the share of each team in the computing of a service, by the time of its prompt and answer tokens."""
    prompt_h, answer_token_h = _token_hours(use)
    token_hours = pl.col("prompt_tokens") * prompt_h + pl.col("generated_tokens") * answer_token_h
    tokens = use.tokens.select(token_hours).to_series()
    total = float(tokens.sum())
    return [1 / len(tokens)] * len(tokens) if total <= 0 else (tokens / total).to_list()


def _token_hours(use: ServiceUse) -> tuple[float, float]:
    """Return the replica-hours of a prompt token, and of an answer token: serving hours less those of the prompts."""
    serving_h, prompts = float(use.replica_hours[SERVING].sum()), int(use.tokens["prompt_tokens"].sum())
    answers = int(use.tokens["generated_tokens"].sum())
    prompt_h = min(prompts * use.prompt_token_s / SECONDS_PER_HOUR, serving_h)
    return prompt_h / max(prompts, 1), (serving_h - prompt_h) / max(answers, 1)


def tabulate_token_costs(lines: pl.DataFrame, uses: Sequence[ServiceUse]) -> pl.DataFrame:
    """Tabulate the cost of a million tokens by model and team from charged lines.

    Parameters
    ----------
    lines : polars.DataFrame
        Lines of :func:`charge_services`.
    uses : sequence of ServiceUse
        Services with their tokens.

    Returns
    -------
    polars.DataFrame
        ``service``, ``model``, ``team``, ``requests``, ``prompt_tokens``, ``generated_tokens``, ``gpu_hours``,
        ``cost``, ``idle_cost``, ``currency``, and the cost of a million tokens: ``per_million_tokens`` of all,
        ``per_million_prompt_tokens`` and ``per_million_answer_tokens``.
    """
    named = (use.tokens.with_columns(service=pl.lit(use.service)) for use in uses)
    tokens = pl.concat(list(named), how="diagonal_relaxed")
    is_serving = pl.col("reason") == SERVING
    costs = lines.group_by("service", "model", "team", maintain_order=True).agg(
        pl.col("gpu_hours").sum(),
        pl.col("cost").sum(),
        idle_cost=pl.col("cost").filter(~is_serving).sum(),
        currency=pl.col("currency").first(),
    )
    table = costs.join(tokens, on=["service", "team"], how="left", maintain_order="left")
    by_service = {use.service: _token_hours(use) for use in uses}
    prompt_h, answer_h = (
        pl.col("service").replace_strict({name: hours[part] for name, hours in by_service.items()}) for part in (0, 1)
    )
    cost, prompts, answers = pl.col("cost").cast(pl.Float64), pl.col("prompt_tokens"), pl.col("generated_tokens")
    work = prompts * prompt_h + answers * answer_h
    has_tokens = prompts + answers > 0
    return table.select(
        "service", "model", "team", "requests", "prompt_tokens", "generated_tokens", "gpu_hours", "cost", "idle_cost",
        "currency",
        per_million_tokens=pl.when(has_tokens).then(1e6 * cost / (prompts + answers)),
        per_million_prompt_tokens=pl.when(has_tokens & (work > 0)).then(1e6 * cost * prompt_h / work),
        per_million_answer_tokens=pl.when(has_tokens & (work > 0)).then(1e6 * cost * answer_h / work),
    )  # fmt: skip
