"""The harder case under every policy: static layouts, greedy, planned with a forecast or with the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import polars as pl

from gpuplanner.hardware import GpuModel, parse_layout
from gpuplanner.lab.claims.twenty_jobs.harder import MORNING, PROFILES, Harder, draw_harder, forecast_of_day
from gpuplanner.lab.claims.twenty_jobs.rolling import ON_PRICE, roll_layouts, run_calendar
from gpuplanner.lab.claims.twenty_jobs.serve import LEAD_S, MINUTE_S
from gpuplanner.lab.claims.twenty_jobs.speed import capacities, demand
from gpuplanner.planner import PlanProblem, plan
from gpuplanner.planner.contract.substitution import serves
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Run
from gpuplanner.simulate.nodes import Flexible, NodeFleet, NodeRequests, play

STATIC, STATIC_PLANNED = "static, as installed", "static, planned"
GREEDY, FORECAST, PERFECT = "greedy, cut on demand", "planned, real forecast", "planned, perfect forecast"
BOUND = "lower bound: nobody waits"
POLICIES = (STATIC, STATIC_PLANNED, GREEDY, FORECAST, PERFECT, BOUND)
MEASURES = (
    "mean_wait_min", "waiting_gpu_min", "mean_jct_min", "completion_min", "utilisation_server",
    "unserved", "reconfigurations",
)  # fmt: skip


def replicate_harder(seeds: Iterable[int], harder: Harder | None = None) -> pl.DataFrame:
    """Serve the batch of every seed under every policy.

    Returns
    -------
    polars.DataFrame
        ``seed, policy`` and

        mean_wait_min, mean_jct_min
            Over the jobs that are served.
        waiting_gpu_min
            Waits weighed by the compute slices needed over those of a GPU, summed: what the planner's price of
            unmet demand is about.
        completion_min
            When the last job ends.
        utilisation_server
            Work over all compute slices of the fleet, until then.
        unserved
            Jobs that the layouts never have room for.
        reconfigurations
            Changes of layout; on demand, instances made.

    Examples
    --------
    >>> rows = replicate_harder([0])
    >>> rows.height, rows.filter(policy=BOUND)["mean_wait_min"].item()
    (6, 0.0)
    """
    harder = harder or Harder()
    fixed = {
        STATIC: Counter({harder.design.static_layout: harder.design.gpus}),
        STATIC_PLANNED: static_layouts(harder),
    }
    looking_ahead = {FORECAST: "forecast", PERFECT: "perfect"}
    rows = []
    for seed in seeds:
        jobs = draw_harder(harder, seed)
        for policy in POLICIES:
            if policy in fixed:
                served = degraded(jobs, fixed[policy], harder)
                found = _run(jobs, run_calendar(served, harder, [fixed[policy]], [0.0]), harder)
            elif policy in looking_ahead:
                found = _run(jobs, roll_layouts(jobs, harder, looking_ahead[policy]), harder)
            elif policy == GREEDY:
                found = _cut_on_demand(jobs, harder)
            else:
                found = _bound(jobs, harder)
            rows.append({"seed": seed, "policy": policy} | found)
    return pl.DataFrame(rows, infer_schema_length=None)


def static_layouts(harder: Harder) -> Counter[str]:
    """The best layouts for good by the forecast of the day; GPUs without use keep the installed layout."""
    wanted = forecast_of_day(harder)
    busiest = wanted[:, : int(np.flatnonzero(wanted.any(axis=0)).max()) + 1]
    design = harder.design
    problem = PlanProblem(
        design.board, design.gpus, design.gpus, MORNING, harder.slot_min / 60.0, ["case"], PROFILES, busiest[None],
        on_price=ON_PRICE, change_gpu_hours=0.0,
    )  # fmt: skip
    best = plan(problem, method="static", gap_target=0.01, work_limit=40).require()
    chosen = +Counter(dict(zip(best.layouts, best.counts[0].tolist(), strict=True)))
    return chosen + Counter({design.static_layout: design.gpus - chosen.total()})


def degraded(jobs: pl.DataFrame, layouts: Counter[str], harder: Harder) -> pl.DataFrame:
    """What becomes of jobs on layouts that lack instances of what they need.

    A job whose need no instance serves runs, slower, on the one with the most capacity among those that hold
    its memory. Where there is none it is left out.

    Examples
    --------
    >>> jobs = draw_harder(Harder(), seed=1)
    >>> left = degraded(jobs, Counter({"3g.40gb:1,2g.20gb:1,1g.10gb:2": 8}), Harder())
    >>> set(left["need"]) <= {"1g.10gb", "2g.20gb", "3g.40gb"}
    True
    """
    design = harder.design
    capacity = capacities(design.board, "slices")
    offered = sorted(
        {profile for layout in layouts for profile in parse_layout(layout)}, key=capacity.__getitem__
    )
    wants = demand(jobs, capacity)
    served_on, factors = [], []
    for need, memory_gib, wanted in zip(jobs["need"], jobs["memory_gib"], wants.tolist(), strict=True):
        found = _stand_in(need, memory_gib, offered, design.model)
        served_on.append(found)
        factors.append(1.0 if found in (need, None) else max(1.0, wanted / capacity[found]))
    return jobs.with_columns(
        need=pl.Series(served_on, dtype=pl.String), run_min=pl.col("run_min") * pl.Series(factors)
    ).filter(pl.col("need").is_not_null())


def _stand_in(need: str, memory_gib: float, offered: list[str], board: GpuModel) -> str | None:
    """The need itself if some instance serves it, else the largest that holds the memory."""
    if any(serves(board, instance, need) for instance in offered):
        return need
    holding = [name for name in offered if memory_gib <= (board.profile(name).memory_gib or 0.0)]
    return holding[-1] if holding else None


def _run(jobs: pl.DataFrame, run: Run, harder: Harder) -> dict[str, float | int]:
    ended = run.outcomes.filter(pl.col("end").is_not_null()).select("job_id", "wait_s", "jct_s", "end")
    done = jobs.join(ended, on="job_id", maintain_order="left")
    return _measured(done, run.states.filter(pl.col("state") == "reconfiguring").height, harder)


def _cut_on_demand(jobs: pl.DataFrame, harder: Harder) -> dict[str, float | int]:
    """Make an instance for each job when it comes, in the stated time of a change, beside those in use."""
    design = harder.design
    profiles = (WHOLE_GPU, *PROFILES)
    how = Flexible.of(design.model, profiles, design.change)
    offer = np.array([[how.capacity(design.gpus, whole=True)]])
    shares = np.array([1.0, *(design.model.share(name) for name in PROFILES)])
    one = np.ones(jobs.height, np.int64)
    fleet = NodeFleet(profiles, np.array([design.gpus]), offer, np.array([0]), shares, how)
    ready, run_s = (MINUTE_S * jobs[name].to_numpy() for name in ("submit_min", "run_min"))
    need = jobs["need"].replace_strict(
        {name: number for number, name in enumerate(profiles)}, return_dtype=pl.Int64
    )
    asked = NodeRequests(ready + LEAD_S, ready + LEAD_S, run_s, run_s, need.to_numpy(), one, one)
    wait_s = play(asked, fleet, queue="strict").start_s - asked.ready_s
    done = jobs.with_columns(wait_s=wait_s, jct_s=wait_s + run_s, end=asked.ready_s + wait_s + run_s)
    return _measured(done, jobs.height, harder)


def _measured(done: pl.DataFrame, reconfigurations: int, harder: Harder) -> dict[str, float | int]:
    slices = done["need"].replace_strict(capacities(harder.design.board, "slices")).to_numpy()
    completion_min = (float(done["end"].max()) - LEAD_S) / MINUTE_S  # type: ignore[arg-type]
    return {
        "mean_wait_min": float(done["wait_s"].mean()) / MINUTE_S,  # type: ignore[arg-type]
        "waiting_gpu_min": float((done["wait_s"].to_numpy() * slices).sum())
        / MINUTE_S
        / harder.design.model.compute_slices,
        "mean_jct_min": float(done["jct_s"].mean()) / MINUTE_S,  # type: ignore[arg-type]
        "completion_min": completion_min,
        "utilisation_server": _work(done, harder) / (_server(harder) * completion_min),
        "unserved": harder.design.jobs - done.height,
        "reconfigurations": reconfigurations,
    }


def _bound(jobs: pl.DataFrame, harder: Harder) -> dict[str, float | int]:
    """No policy ends a job before its arrival and its run time on a large enough instance."""
    completion_min = float((jobs["submit_min"] + jobs["run_min"]).max())  # type: ignore[arg-type]
    return {
        "mean_wait_min": 0.0,
        "waiting_gpu_min": 0.0,
        "mean_jct_min": float(jobs["run_min"].mean()),  # type: ignore[arg-type]
        "completion_min": completion_min,
        "utilisation_server": _work(jobs, harder) / (_server(harder) * completion_min),
        "unserved": 0,
        "reconfigurations": 0,
    }


def _work(jobs: pl.DataFrame, harder: Harder) -> float:
    """Slice-minutes of work."""
    return float((demand(jobs, capacities(harder.design.board, "slices")) * jobs["run_min"].to_numpy()).sum())


def _server(harder: Harder) -> int:
    return harder.design.gpus * harder.design.model.compute_slices
