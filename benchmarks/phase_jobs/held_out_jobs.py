"""Jobs that the detector was not tuned on, by other rules than :mod:`~phase_jobs.synthetic_jobs`.

Each group differs from a plain job in one respect: how long it is, how noisy, how its levels change, which meters there
are, how often they are read, how much of them is lost, and how its dips come. The settings were written down before
any of these jobs was shown to the detector and have not changed since. Two groups showed faults that were then mended
by rule, with no value fitted to them: short jobs read every 10 s (phases were counted in rows, not minutes), and noise
that wanders (dips were measured by the noise from row to row alone).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Samples
from phase_jobs.synthetic_jobs import BEGIN, SyntheticJob

FINE_S = 5
"""Resolution of the truth, in seconds."""
LEAST_STAGE_S = 1200.0
"""Shortest stage: twice the shortest phase."""
CLEAR_S = 720.0
"""Between a dip and a change of stage, another dip, or an end of the job."""
LEAST_STEP = 0.2
"""Neighbouring stages differ by at least so much SM activity."""
LEAST_DIPS = 3
"""Seen dips in a row from which their pace can be known."""
ALL_METERS = ("sm_activity", "memory_used_gib", "power_w")
Span = tuple[float, float]


@dataclass(frozen=True)
class Setting:
    """How the jobs of a group are drawn; pairs are the ends of a range.

    - ``hours``: Length of a job [h].
    - ``noise``, ``watts``: Standard deviation of the noise of SM activity [0-1] and of power [W].
    - ``memory_of_noise``: Correlation of the noise of neighbouring readings; above 0 its tails are heavy as well.
    - ``ramp_s``: Time from one level to the next [s]; the true change is its middle.
    - ``meters``: Meters that there are, one of these sets a job.
    - ``every_s``: Distance of the readings [s].
    - ``instant``: Whether a reading is of its instant, not the mean since the last.
    - ``lost``: Share of the readings that is missing.
    - ``holes``: Stretches of ten to forty minutes without readings.
    - ``dips``: Dips that fit into a job at their pace.
    - ``dip_s``, ``depth``: Length of a dip [s], and share of the activity that it takes away.
    - ``jitter``: Standard deviation of the instant of a dip, over the pace.
    - ``skipped``: Share of the dips that do not come.
    - ``paced``: Whether dips keep a pace; else they come at random.
    """

    hours: Span = (3.0, 30.0)
    noise: Span = (0.01, 0.04)
    watts: Span = (5.0, 15.0)
    memory_of_noise: float = 0.0
    ramp_s: Span = (0.0, 0.0)
    meters: tuple[tuple[str, ...], ...] = (ALL_METERS,)
    every_s: float = 60.0
    instant: bool = False
    lost: Span = (0.0, 0.02)
    holes: tuple[int, int] = (0, 0)
    dips: Span = (5.0, 12.0)
    dip_s: Span = (70.0, 240.0)
    depth: Span = (0.7, 1.0)
    jitter: float = 0.01
    skipped: float = 0.0
    paced: bool = True


PLAIN = Setting()
GROUPS = {
    "plain": PLAIN,
    "short": replace(PLAIN, hours=(1.0, 3.0), dips=(3.0, 5.0)),
    "long": replace(PLAIN, hours=(30.0, 120.0)),
    "noisy": replace(PLAIN, noise=(0.05, 0.08), watts=(15.0, 40.0)),
    "wandering noise": replace(PLAIN, noise=(0.02, 0.05), memory_of_noise=0.6),
    "ramps": replace(PLAIN, ramp_s=(60.0, 240.0)),
    "some meters": replace(
        PLAIN, meters=(("sm_activity",), ("sm_activity", "memory_used_gib"), ("sm_activity", "power_w"))
    ),
    "power and memory": replace(PLAIN, meters=(("memory_used_gib", "power_w"), ("power_w",))),
    "every 10 s": replace(PLAIN, every_s=10.0, instant=True),
    "every 30 s": replace(PLAIN, every_s=30.0, instant=True),
    "every 10 s, short": replace(PLAIN, hours=(1.0, 3.0), every_s=10.0, instant=True, dips=(3.0, 5.0)),
    "gaps": replace(PLAIN, lost=(0.1, 0.3), holes=(1, 4)),
    "dips often": replace(PLAIN, hours=(10.0, 40.0), dips=(15.0, 26.0), dip_s=(40.0, 120.0)),
    "dips seldom": replace(PLAIN, dips=(3.2, 4.5), dip_s=(120.0, 420.0)),
    "shallow dips": replace(PLAIN, depth=(0.35, 0.6)),
    "dips uneven": replace(PLAIN, dips=(8.0, 16.0), jitter=0.02, skipped=0.15),
    "dips at random": replace(PLAIN, dips=(4.0, 12.0), paced=False),
}
"""Groups by name."""


def make_held_out(group: str, seed: int) -> SyntheticJob:
    """Draw one job of a group.

    Examples
    --------
    >>> job = make_held_out("every 10 s", 0)
    >>> job.shape, len(job.changes), job.samples["time"].diff().min().total_seconds()
    ('every 10 s', 3, 10.0)
    """
    setting = GROUPS[group]
    rng = np.random.default_rng([9217, seed, *group.encode()])
    length_s = rng.uniform(*setting.hours) * 3600
    ends, activity, memory = _levels(length_s, rng)
    course = _course(ends, activity, rng.uniform(*setting.ramp_s))
    spans, pace_s = _dips(setting, ends, length_s, rng)
    memory_course = _course(ends, memory, 0.0)
    for _, start, end in spans:
        course[int(start / FINE_S) : int(end / FINE_S)] *= 1 - rng.uniform(*setting.depth)
    samples = _read(setting, course, memory_course, rng)
    seen = _seen(spans, samples, setting.every_s)
    spikes = pl.DataFrame(
        [(_at(start), _at(end), "checkpoint") for _, start, end in spans],
        schema={"start": Samples.time.dtype, "end": Samples.time.dtype, "label": pl.String},
        orient="row",
    )
    known = setting.paced and _in_a_row(seen) >= LEAST_DIPS and samples["sm_activity"].count() > 0
    period = timedelta(seconds=pace_s) if known else None
    return SyntheticJob(group, samples, tuple(_at(end) for end in ends[:-1]), spikes, period)


def _levels(length_s: float, rng: np.random.Generator) -> tuple[np.ndarray, list[float], list[float]]:
    """Ends of the stages [s], their activity and memory; the first may be a set-up without activity."""
    setup_s = rng.uniform(180, 1500) if rng.random() < 0.7 else 0.0
    most = int((length_s - setup_s) / LEAST_STAGE_S)
    stages = int(rng.integers(1, min(most, 6) + 1))
    spare_s = length_s - setup_s - stages * LEAST_STAGE_S
    lengths = LEAST_STAGE_S + spare_s * rng.dirichlet(np.full(stages, 2.0))
    activity, memory = [float(rng.uniform(0.2, 0.98))], [float(rng.uniform(15, 75))]
    while len(activity) < stages:
        level = float(rng.uniform(0.12, 0.98))
        if abs(level - activity[-1]) >= LEAST_STEP:
            activity.append(level)
            changed = memory[-1] * float(rng.choice([0.7, 1.0, 1.0, 1.3]))
            memory.append(changed if changed < 79 else memory[-1])
    if setup_s:
        lengths = np.concatenate([[setup_s], lengths])
        activity, memory = [0.0, *activity], [float(rng.uniform(0.05, 0.5)) * memory[0], *memory]
    return np.cumsum(lengths), activity, memory


def _course(ends: np.ndarray, levels: list[float], ramp_s: float) -> np.ndarray:
    """Levels over time, with straight ramps about the changes."""
    at = (np.arange(int(ends[-1] / FINE_S)) + 0.5) * FINE_S
    if ramp_s < FINE_S:
        course: np.ndarray = np.asarray(levels)[np.searchsorted(ends, at).clip(max=len(levels) - 1)]
        return course
    knots = np.repeat(ends[:-1], 2) + np.tile([-ramp_s / 2, ramp_s / 2], len(ends) - 1)
    knots = np.concatenate([[0.0], knots, [ends[-1]]])
    sloped: np.ndarray = np.interp(at, knots, np.repeat(levels, 2))
    return sloped


def _dips(
    setting: Setting, ends: np.ndarray, length_s: float, rng: np.random.Generator
) -> tuple[list[tuple[int, float, float]], float]:
    """Number in the pace, start and end [s] of each dip, and the pace [s]."""
    pace_s = max(length_s / rng.uniform(*setting.dips), 2 * CLEAR_S)
    number = int(length_s / pace_s) + 1
    due = (rng.uniform(0.2, 1.0) + np.arange(number)) * pace_s
    starts = due + rng.normal(0, setting.jitter * pace_s, number)
    if not setting.paced:
        starts = np.sort(rng.uniform(0, length_s, number))
    last_s = rng.uniform(*setting.dip_s)
    borders = np.concatenate([[0.0], ends])
    spans: list[tuple[int, float, float]] = []
    for k, start in enumerate(starts):
        end = start + last_s * rng.uniform(0.85, 1.15)
        clear = (np.abs(borders - start).min() > CLEAR_S) and (np.abs(borders - end).min() > CLEAR_S)
        crowded = spans and start - spans[-1][2] < CLEAR_S
        if clear and not crowded and end < length_s and rng.random() >= setting.skipped:
            spans.append((k, float(start), float(end)))
    in_setup = ends[0] if len(ends) > 1 and ends[0] < LEAST_STAGE_S + CLEAR_S else 0.0
    return [span for span in spans if span[1] > in_setup], pace_s


def _read(setting: Setting, activity: np.ndarray, memory: np.ndarray, rng: np.random.Generator) -> pl.DataFrame:
    """What the meters say."""
    every = int(setting.every_s / FINE_S)
    n = len(activity) // every
    cells = slice(0, n * every)

    def read(signal: np.ndarray) -> np.ndarray:
        apart = signal[cells].reshape(n, every)
        values: np.ndarray = apart[:, every // 2] if setting.instant else apart.mean(axis=1)
        return values

    sigma, watts = rng.uniform(*setting.noise), rng.uniform(*setting.watts)
    level = read(activity)
    noise = sigma * _noise(setting.memory_of_noise, n, rng)
    table = pl.DataFrame(
        {
            "sm_activity": np.clip(level + noise * (level > 0.01), 0, 1),
            "memory_used_gib": np.clip(read(memory) + rng.normal(0, rng.uniform(0.05, 0.6), n), 0, None),
            "power_w": np.clip(90 + 480 * level**0.8 + watts * rng.normal(0, 1, n), 40, None),
        }
    )
    kept = rng.random(n) >= rng.uniform(*setting.lost)
    for _ in range(int(rng.integers(setting.holes[0], setting.holes[1] + 1))):
        begin = int(rng.integers(0, n))
        kept[begin : begin + int(rng.uniform(600, 2400) / setting.every_s)] = False
    meters = setting.meters[int(rng.integers(len(setting.meters)))]
    samples = table.select(
        pl.lit("n1").alias("node"),
        *meters,
        gpu=pl.lit(0),
        time=pl.Series([_at(k * setting.every_s) for k in range(n)]),
        job_id=pl.lit("1"),
        activity_source=pl.lit("profiling"),
    )
    return check_table(samples.filter(pl.Series(kept)), Samples, source="held-out job")


def _noise(correlation: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of standard deviation one: white and normal, or correlated with Student's tails of five degrees."""
    if correlation == 0:
        return rng.normal(0, 1, n)
    shocks = rng.standard_t(5, n) * np.sqrt(3 / 5) * np.sqrt(1 - correlation**2)
    noise = np.empty(n)
    last = 0.0
    for k, shock in enumerate(shocks):
        noise[k] = last = correlation * last + shock
    return noise


def _seen(spans: list[tuple[int, float, float]], samples: pl.DataFrame, every_s: float) -> list[int]:
    """Numbers in the pace of the dips during which, and just before and after which, something was read."""
    read_s = (samples["time"] - BEGIN).dt.total_microseconds().to_numpy() / 1e6
    far = 3 * every_s

    def read(start: float, end: float) -> bool:
        return bool(((read_s >= start) & (read_s < end)).any())

    return [
        k
        for k, start, end in spans
        if read(start - every_s / 2, end) and read(start - far, start) and read(end, end + far)
    ]


def _in_a_row(numbers: list[int]) -> int:
    """Longest run of consecutive numbers."""
    longest = run = 0
    for before, number in zip([-9, *numbers], numbers, strict=False):
        run = run + 1 if number == before + 1 else 1
        longest = max(longest, run)
    return longest


def _at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=round(float(seconds), 3))
