"""Twenty jobs on eight H100: whole GPUs, a fixed MIG layout, and GPUs repartitioned for right-sized requests.

Claim: right-sized requests on planned MIG layouts raise the utilization of eight H100 from 36 % to 90 % and finish
twenty jobs in 59 instead of 114 minutes (a vendor's figures for one batch; no data were published).

Run ``python benchmarks/claims/twenty_jobs.py [--seeds N] [--first-seed K]``; 100 seeds take about half a minute.

The jobs are drawn as far as the batch was described. 36 designs were tried against the four reported figures before
this one was settled, so that it shows the figures to be plausible together, not true. 4,000 designs drawn without
reference to the figures say how ordinary such a gain is.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from claim_table import argument_parser, figure_row, figure_table, mean_with_interval, report, share_interval

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, TimeRange
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.usage.requested_demand import plain_profiles

GPU_MODEL = load_gpu_model("H100-80GB-SXM5")
GPUS = 8
STATIC_LAYOUT = "3g.40gb:1,2g.20gb:1,1g.10gb:2"
"""NVIDIA's default "all-balanced" for 80 GB: mig-parted, deployments/systemd/config-default.yaml."""
PROFILES = plain_profiles(GPU_MODEL)
"""MIG profiles from small to large."""
SIZE_ORDER = {profile.name: rank for rank, profile in enumerate(PROFILES)}
SLICES = {profile.name: profile.compute_slices for profile in PROFILES}
SMS = {profile.name: float(profile.sms or 0) for profile in PROFILES}
MEMORY_GIB = {profile.name: float(profile.memory_gib or 0) for profile in PROFILES}
FULL = "gpu"
"""A GPU with MIG disabled, for one job."""
RECONFIGURE_MIN = 1.0

JOB_GROUPS = (
    ("3g.40gb", "3g.40gb", 8),
    ("2g.20gb", "3g.40gb", 5),
    ("1g.10gb", "3g.40gb", 1),
    ("2g.20gb", "2g.20gb", 2),
    ("1g.10gb", "2g.20gb", 1),
    ("1g.10gb", "1g.10gb", 3),
)
"""Smallest profile that holds the job, requested profile, jobs: 20 jobs, 43 compute slices needed."""
BUSY_SHARE = (0.93, 1.0)
"""Share of the needed profile that a job keeps busy."""
RUN_MIN = (52.0, 59.0)
MEMORY_SHARE = (0.55, 0.92)
"""Peak memory as a share of the memory of the needed profile."""

PROFILING_MINUTES = 10
"""Length of the earlier run that is profiled, one sample a minute."""
LEVEL_SHARE_SEEN, PEAK_SHARE_SEEN = (1.0, 1.0), (0.9, 1.0)
"""Activity of the profiled minutes over that of the whole run, and their highest memory over the later peak."""
ACTIVITY_ERROR, MINUTE_NOISE = 0.02, 0.05
"""Relative standard deviation of the profiled run, and from minute to minute."""
ACCEPTED_SLOWDOWN, MEMORY_HEADROOM = 0.05, 0.10

POLICIES = {
    "full GPUs, one job each": ("requested", FULL),
    "as requested, static MIG": ("requested", "static"),
    "right-sized, static MIG": ("right-sized", "static"),
    "as requested, repartitioned": ("requested", "planned"),
    "right-sized, repartitioned": ("right-sized", "planned"),
}
"""Profiles that jobs wait for, and layouts of the GPUs."""
BEFORE, SIZED_ONLY, PLANNED_ONLY, AFTER = list(POLICIES)[1:]
REPORTED = (
    (BEFORE, "completion_min", "completion before", 114.0, 11.4),
    (BEFORE, "utilization", "utilization before", 36.2, 3.0),
    (AFTER, "completion_min", "completion after", 59.0, 5.9),
    (AFTER, "utilization", "utilization after", 89.79, 4.0),
)
"""Reported figures [min, %], and how near counts: 10 % of a time, 3 and 4 points of a utilization."""
METRICS = {
    "completion_min": ("completion of all jobs", "min"),
    "mean_completion_min": ("mean completion of a job", "min"),
    "utilization": ("utilization of provisioned slices", "%"),
    "utilization_of_server": ("utilization of the server", "%"),
    "utilization_of_instances": ("mean utilization of instances", "%"),
    "provisioned_slices": ("provisioned slices", "slices"),
}
"""Figures of :func:`serve`, with name and unit in the tables."""
ORDINARY = 50.0
"""Share of blindly drawn designs from which on an outcome counts as ordinary [%]; the border is ours."""


def draw_jobs(seed: int) -> pl.DataFrame:
    """Draw the jobs of a seed, in the order of the queue.

    Returns
    -------
    polars.DataFrame
        ``requested_profile``, and what no policy may read: ``needed_profile``, ``busy_share``, ``run_min`` and
        ``memory_gib``.
    """
    rng = np.random.default_rng([seed, 0])
    groups = [group for group in JOB_GROUPS for _ in range(group[2])]
    busy, run, memory, _ = rng.random((4, len(groups)))  # the fourth keeps the jobs of earlier versions
    memory_gib = np.array([MEMORY_GIB[needed] for needed, _, _ in groups])
    jobs = pl.DataFrame(
        {
            "needed_profile": [needed for needed, _, _ in groups],
            "requested_profile": [requested for _, requested, _ in groups],
            "busy_share": within(BUSY_SHARE, busy),
            "run_min": within(RUN_MIN, run),
            "memory_gib": within(MEMORY_SHARE, memory) * memory_gib,
        }
    )
    return jobs[rng.permutation(len(groups))]


def within(limits: tuple[float, float], shares: np.ndarray) -> np.ndarray:
    """Values at shares of a range: its low end at 0, its high end at 1."""
    low, high = limits
    return low + (high - low) * shares


def rightsized_profiles(jobs: pl.DataFrame, seed: int) -> list[str]:
    """Smallest profile that covers the activity and memory of a profiled run, never more than requested.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs of :func:`draw_jobs`; their needs are seen only through the noise of the samples.
    seed : int
        Seed of the noise.
    """
    rng = np.random.default_rng([seed, 1])
    count = jobs.height
    requested = jobs["requested_profile"].to_list()
    held_sms = np.array([SMS[name] for name in requested])
    busy_sms = jobs["busy_share"].to_numpy() * np.array([SMS[name] for name in jobs["needed_profile"]])
    level = within(LEVEL_SHARE_SEEN, rng.random(count))
    level *= 1 + ACTIVITY_ERROR * rng.standard_normal(count)
    noise = 1 + MINUTE_NOISE * rng.standard_normal((count, PROFILING_MINUTES))
    activity = ((busy_sms / held_sms * level)[:, None] * noise).clip(0.0, 1.0).mean(axis=1)
    memory_limit = np.array([MEMORY_GIB[name] for name in requested])
    peak = jobs["memory_gib"].to_numpy() * within(PEAK_SHARE_SEEN, rng.random(count))
    memory = np.minimum(peak, memory_limit)

    chosen = []
    for name, sms, gib in zip(requested, activity * held_sms, memory * (1 + MEMORY_HEADROOM), strict=True):
        enough = [
            profile.name
            for profile in PROFILES
            if sms <= SMS[profile.name] * (1 + ACCEPTED_SLOWDOWN) and gib <= MEMORY_GIB[profile.name]
        ]
        smallest = enough[0] if enough else name
        chosen.append(name if SIZE_ORDER[smallest] > SIZE_ORDER[name] else smallest)
    return chosen


@functools.cache
def planned_layouts(requests: tuple[tuple[str, int], ...]) -> list[Counter[str]]:
    """Instances of each GPU by the planner's optimum for one interval: fewest GPUs, then fewest repartitioned.

    Parameters
    ----------
    requests : tuple of (str, int)
        Profiles and how many jobs request each.
    """
    change_s, nothing = TimeRange.exact(60.0 * RECONFIGURE_MIN), TimeRange.exact(0.0)
    names = [name for name, _ in requests]
    demand = np.array([[[jobs] for _, jobs in requests]])
    problem = PlanProblem(
        GPU_MODEL,
        GPUS,
        GPUS,
        datetime(2026, 1, 5, 9, tzinfo=UTC),
        1.0,
        ["batch"],
        names,
        demand,
        change=ChangeCost(GPU_MODEL, "mig-manager", change_s, nothing, None, nothing, nothing),
        initial={STATIC_LAYOUT: GPUS},
    )
    best = plan(problem, gap_target=0).require()
    faults = verify(best, problem, assign(best, problem))
    if faults:
        text = f"the plan for {requests} has faults: {faults}"
        raise RuntimeError(text)
    counts = zip(best.layouts, best.counts[0].tolist(), strict=True)
    return [Counter(parse_layout(layout)) for layout, gpus in counts for _ in range(gpus)]


def instance_profiles(requests: Sequence[str], instances: Counter[str]) -> tuple[list[str], Counter[str]]:
    """Profile that each request waits for, and the instances that nobody waits for.

    The largest requests choose first: an instance of their profile, or else the smallest larger one. A request that
    finds none waits for the smallest profile that serves it.
    """
    left = Counter(instances)
    profiles_of_jobs = [""] * len(requests)
    for number in sorted(range(len(requests)), key=lambda job: -SIZE_ORDER[requests[job]]):
        needed = GPU_MODEL.profile(requests[number])
        able = [name for name in SIZE_ORDER if name in instances and GPU_MODEL.profile(name).serves(needed)]
        idle = [name for name in able if left[name] > 0]
        profiles_of_jobs[number] = idle[0] if idle else able[0]
        left[profiles_of_jobs[number]] -= bool(idle)
    return profiles_of_jobs, +left


def without_spares(gpus: Sequence[Counter[str]], spares: Counter[str]) -> list[Counter[str]]:
    """The same GPUs without the instances that nobody waits for; GPUs left empty are powered down."""
    left = Counter(spares)
    kept = []
    for instances in gpus:
        removed = instances & left
        left -= removed
        kept.append(instances - removed)
    return [instances for instances in kept if instances]


def arrange(requests: Sequence[str], layouts: str) -> tuple[list[Counter[str]], list[str]]:
    """Instances of each powered-on GPU, and the profile that each request waits for.

    Parameters
    ----------
    requests : sequence of str
        Profile of each job.
    layouts : str
        ``FULL``, ``"static"`` or ``"planned"``.
    """
    if layouts == FULL:
        return [Counter({FULL: 1})] * GPUS, [FULL] * len(requests)
    if layouts == "static":
        gpus = [Counter(parse_layout(STATIC_LAYOUT))] * GPUS
        return gpus, instance_profiles(requests, sum(gpus, Counter()))[0]
    gpus = planned_layouts(tuple(sorted(Counter(requests).items())))
    profiles_of_jobs, spares = instance_profiles(requests, sum(gpus, Counter()))
    return without_spares(gpus, spares), profiles_of_jobs


def start_times_min(gpus: Sequence[Counter[str]], profiles_of_jobs: Sequence[str], run_min: np.ndarray) -> np.ndarray:
    """When each job starts: first come, first served by profile; a repartitioned GPU comes after a minute [min].

    Parameters
    ----------
    gpus : sequence of Counter
        Instances of each powered-on GPU.
    profiles_of_jobs : sequence of str
        Profile that each job waits for, in the order of the queue.
    run_min : array of float, shape (n_jobs,)
        Run time of each job on that profile [min].
    """
    static = Counter(parse_layout(STATIC_LAYOUT))
    unchanged = [one for one in gpus if one in (static, Counter({FULL: 1}))]
    repartitioned = [one for one in gpus if one not in (static, Counter({FULL: 1}))]
    groups = [group for group in (unchanged, repartitioned) if group]
    profiles = (FULL, *SIZE_ORDER)
    fleet = NodeFleet(
        profiles,
        gpus=np.array([len(group) for group in groups]),
        capacity=np.array([[[sum(group, Counter())[name] for name in profiles]] for group in groups]),
        first=np.array([0 if group is unchanged else -1 for group in groups]),
        weights=np.array([1.0, *(SLICES[name] / SLICES[PROFILES[-1].name] for name in SIZE_ORDER)]),
    )
    count = len(profiles_of_jobs)
    requests = NodeRequests(
        ready_s=np.zeros(count),
        submit_s=np.zeros(count),
        run_s=60 * run_min,
        limit_s=60 * run_min,
        profile=np.array([profiles.index(name) for name in profiles_of_jobs]),
        total=np.ones(count),
        nodes=np.ones(count),
    )
    lead = NodeAutoscaling(idle_s=1e9, lead_s=60 * RECONFIGURE_MIN)
    return simulate_requests(requests, fleet, queue="strict", switching=lead).start_s / 60


def serve(jobs: pl.DataFrame, requests: Sequence[str], layouts: str) -> dict[str, float]:
    """Serve the jobs of one seed, and sum up.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs of :func:`draw_jobs`.
    requests : sequence of str
        Profile that each job requests.
    layouts : str
        As of :func:`arrange`.

    Returns
    -------
    dict
        ``completion_min`` of the last job and its mean over jobs [min]; ``utilization``: compute slices in use over
        those of the instances that exist; the same over all slices of the server, and as the mean of all instances;
        ``provisioned_slices``.
    """
    gpus, profiles_of_jobs = arrange(requests, layouts)
    capacity = SLICES | {FULL: SLICES[PROFILES[-1].name]}
    memory = MEMORY_GIB | {FULL: float(GPU_MODEL.memory_gib)}
    if (jobs["memory_gib"].to_numpy() > np.array([memory[name] for name in profiles_of_jobs])).any():
        text = "a job runs out of memory on its instance, and nothing here starts it again"
        raise ValueError(text)

    offered = np.array([capacity[name] for name in profiles_of_jobs], np.float64)
    usable = jobs["busy_share"].to_numpy() * np.array([SLICES[name] for name in jobs["needed_profile"]])
    used = np.minimum(offered, usable)
    run_min = jobs["run_min"].to_numpy() * usable / used
    end_min = start_times_min(gpus, profiles_of_jobs, run_min) + run_min

    completion_min = float(end_min.max())
    instances = sum(gpus, Counter())
    provisioned = sum(capacity[name] * number for name, number in instances.items())
    work = float((used * run_min).sum())
    return {
        "completion_min": completion_min,
        "mean_completion_min": float(end_min.mean()),
        "utilization": 100 * work / (provisioned * completion_min),
        "utilization_of_server": 100 * work / (GPUS * capacity[FULL] * completion_min),
        "utilization_of_instances": 100
        * float((used / offered * run_min).sum())
        / (instances.total() * completion_min),
        "provisioned_slices": float(provisioned),
    }


def serve_seeds(seeds: Iterable[int]) -> pl.DataFrame:
    """The jobs of every seed under every policy: ``seed``, ``policy`` and the figures of :func:`serve`."""
    rows = []
    for seed in seeds:
        jobs = draw_jobs(seed)
        requests = {"requested": jobs["requested_profile"].to_list(), "right-sized": rightsized_profiles(jobs, seed)}
        for policy, (requested, layouts) in POLICIES.items():
            rows.append({"seed": seed, "policy": policy} | serve(jobs, requests[requested], layouts))
    return pl.DataFrame(rows)


def policy_means(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean of every metric over the seeds, with its 95 % interval: one row a policy and metric."""
    found = []
    for policy in POLICIES:
        for column, (metric, unit) in METRICS.items():
            mean, (low, high) = mean_with_interval(rows.filter(policy=policy)[column].to_numpy())
            names = {"policy": policy, "metric": metric, "unit": unit}
            found.append(names | {"mean": mean, "low": low, "high": high})
    return pl.DataFrame(found, infer_schema_length=None)


def gain_by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Split the gain into right-sizing and repartitioning: each taken first, taken last, and the mean of both.

    References
    ----------
    L. S. Shapley, A value for n-person games, 1953: with two players, the mean over both orders.
    """
    found = []
    for column, (metric, unit) in list(METRICS.items())[:3]:
        before, sized, planned, after = (
            rows.filter(policy=policy).sort("seed")[column].to_numpy()
            for policy in (BEFORE, SIZED_ONLY, PLANNED_ONLY, AFTER)
        )
        steps = {
            "right-sizing": (sized - before, after - planned),
            "repartitioning": (planned - before, after - sized),
            "both": (after - before, after - before),
        }
        for step, (first, last) in steps.items():
            mean, (low, high) = mean_with_interval((first + last) / 2)
            names = {"metric": metric, "unit": unit, "step": step}
            change = {"taken_first": first.mean(), "taken_last": last.mean(), "mean": mean}
            found.append(names | change | {"low": low, "high": high})
    return pl.DataFrame(found, infer_schema_length=None)


@dataclass(frozen=True)
class BlindDesigns:
    """Batches drawn without reference to the reported figures, shape (n_designs, n_jobs).

    - ``needed_profile``, ``requested_profile``: Places in ``BLIND_PROFILES``.
    - ``run_min``, ``busy_share``: As of :func:`draw_jobs`.
    """

    needed_profile: np.ndarray
    requested_profile: np.ndarray
    run_min: np.ndarray
    busy_share: np.ndarray


BLIND_PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
MOST_SLICES = 54
"""Designs that need more compute slices are dropped: they do not fit on the server at once."""


def draw_designs(designs: int, seed: int, *, jobs: int = 20) -> BlindDesigns:
    """Draw designs: any mix of needs, any share of jobs that request too much, run times and load at random.

    Parameters
    ----------
    designs, seed : int
        How many, and the seed.
    jobs : int
        Jobs of each.
    """
    rng = np.random.default_rng(seed)
    shape = (designs, jobs)
    largest = len(BLIND_PROFILES) - 1
    mix = rng.dirichlet(np.ones(largest + 1), designs).cumsum(axis=1)
    needed = (rng.random(shape)[:, :, None] > mix[:, None, :-1]).sum(axis=2)
    requests_more = rng.random(shape) < rng.random((designs, 1))
    step = 1 + np.floor(rng.random(shape) * (largest - needed)).astype(np.int64)
    larger = np.minimum(needed + step, largest)
    spread = rng.uniform(0.0, 0.5, (designs, 1))
    run_min = 60.0 * (1 + spread * rng.uniform(-1, 1, shape))
    lowest = rng.uniform(0.5, 0.95, (designs, 1))
    busy_share = lowest + (1 - lowest) * rng.random(shape)
    return BlindDesigns(needed, np.where(requests_more, larger, needed), run_min, busy_share)


def design_outcomes(designs: BlindDesigns) -> pl.DataFrame:
    """Completion and utilization of every design before and after, in closed form.

    Before: list scheduling on the instances of the static layout, each job on just the profile that it requests. After:
    one instance of the right size for each job, all at once after the reconfiguration.

    Returns
    -------
    polars.DataFrame
        ``time_ratio`` (after over before), ``utilization_before`` and ``utilization_after`` [%].
    """
    slices = np.array([SLICES[name] for name in BLIND_PROFILES])
    instances = [parse_layout(STATIC_LAYOUT)[name] * GPUS for name in BLIND_PROFILES]
    work = (slices[designs.needed_profile] * designs.busy_share * designs.run_min).sum(axis=1)
    needed = slices[designs.needed_profile].sum(axis=1)
    ends = [
        last_end_min(designs.run_min, designs.requested_profile == profile, count)
        for profile, count in enumerate(instances)
    ]
    before = np.max(ends, axis=0)
    after = RECONFIGURE_MIN + designs.run_min.max(axis=1)
    table = pl.DataFrame(
        {
            "time_ratio": after / before,
            "utilization_before": 100 * work / (int(slices @ instances) * before),
            "utilization_after": 100 * work / (needed * after),
        }
    )
    return table.filter(needed <= MOST_SLICES)


def last_end_min(run_min: np.ndarray, on_profile: np.ndarray, instances: int) -> np.ndarray:
    """When the last of the jobs of one profile ends in each design, each on the instance that is idle first [min].

    Parameters
    ----------
    run_min, on_profile : array, shape (n_designs, n_jobs)
        Run times, and which jobs run on the profile.
    instances : int
        Instances of the profile.
    """
    idle_at = np.zeros((len(run_min), instances))
    design = np.arange(len(run_min))
    for job in range(run_min.shape[1]):
        first = idle_at.argmin(axis=1)
        idle_at[design, first] += np.where(on_profile[:, job], run_min[:, job], 0.0)
    return idle_at.max(axis=1)


def design_percentiles(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Percentiles over the designs, one row a metric."""
    levels = (5, 25, 50, 75, 95)
    rows = [[name, *np.percentile(outcomes[name].to_numpy(), levels).tolist()] for name in outcomes.columns]
    return pl.DataFrame(rows, schema=["metric", *(f"p{level}" for level in levels)], orient="row")


def figures(rows: pl.DataFrame, designs: pl.DataFrame) -> pl.DataFrame:
    """Reported figures beside the measured ones, and how many blind designs reach the reported gain.

    Parameters
    ----------
    rows : polars.DataFrame
        From :func:`serve_seeds`.
    designs : polars.DataFrame
        From :func:`design_outcomes`.
    """
    found = []
    for policy, column, label, reported, margin in REPORTED:
        mean, interval = mean_with_interval(rows.filter(policy=policy)[column].to_numpy())
        unit = METRICS[column][1]
        claimed = (reported - margin, reported + margin)
        found.append(figure_row(label, unit, mean, claimed=claimed, interval=interval))

    (_, _, _, time_before, _), _, (_, _, _, time_after, _), (_, _, _, used_after, _) = REPORTED
    reached = {
        "blind designs that save as much time": designs["time_ratio"] <= time_after / time_before,
        "blind designs with as high a utilization": designs["utilization_after"] >= used_after,
    }
    for label, hits in reached.items():
        count = int(hits.sum())
        low, high = share_interval(count, len(hits))
        share = 100 * count / len(hits)
        interval = (100 * low, 100 * high)
        found.append(figure_row(label, "%", share, claimed=(ORDINARY, None), interval=interval))
    return figure_table(found)


def tables(seeds: int, first_seed: int, *, designs: int = 4000) -> dict[str, pl.DataFrame]:
    """All tables by file name, the figures first.

    Parameters
    ----------
    seeds, first_seed : int
        Number of seeds, and the first.
    designs : int
        Blind designs to draw.
    """
    rows = serve_seeds(range(first_seed, first_seed + seeds))
    outcomes = design_outcomes(draw_designs(designs, first_seed))
    return {
        "twenty_jobs": figures(rows, outcomes),
        "twenty_jobs_policies": policy_means(rows),
        "twenty_jobs_steps": gain_by_step(rows),
        "twenty_jobs_designs": design_percentiles(outcomes),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them."""
    assert __doc__ is not None
    options = argument_parser(__doc__, seeds=100).parse_args(arguments)
    claim = __doc__.split("\n\n")[1]
    remarks = (
        "The design is calibrated to the reported figures, so that agreement of the first four is no evidence.",
        f"An outcome counts as ordinary if {ORDINARY:g} % of the blind designs reach it; that border is ours.",
        f"{options.seeds} seeds from {options.first_seed}; intervals are those of means, at 95 %.",
    )
    report(claim, tables(options.seeds, options.first_seed), remarks, options.out)


if __name__ == "__main__":
    main()
