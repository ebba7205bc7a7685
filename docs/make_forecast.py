"""Backtest the forecast on public traces and write ``docs/results/forecast.md``: ``python docs/make_forecast.py``.

Needs ``GPUPLANNER_DATA``. Takes about six CPU minutes on one core; the same data give the same figures. ``--quick``
leaves out the weeks ahead, and the readings at all but the first set of cutoffs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.forecast.gpu_demand import DemandHistory, lay_out_jobs, lay_out_occupancy
from gpuplanner.forecast.model_selection import CHOSEN_MODEL_NAME, EvaluatedBacktest, realised_cost
from gpuplanner.forecast.rolling_demand_forecast import rolling_backtest
from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS, QUANTILE_LEVELS
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.public.job_lists import ITP_TRACE, OPENB_TRACE, PHILLY_TRACE
from gpuplanner.ingest.public.usage_and_request_series import read_helios_sequence
from gpuplanner.usage.planning_history import load_dataset, observation_ends_at

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
FEWEST_JOBS = 500
PRICE = 5.0
GAP, HORIZON, CUTOFFS = 6, 24, 20
LEADS = ((0, 6), (6, 30), (30, 72), (72, 168))
LEAD_CUTOFFS = 34
"""Of which 13 only calibrate: 21 are judged."""
CHEAP = ("Naive", "SeasonalNaive", "WeeklyNaive", "WeeklyMean", "Reverting", "HourOfDay")
"""What costs next to nothing and knows no jobs."""
DAY_H = 24
SHIFTS_H = (0, 6, 12, 18)
"""Hours by which all origins are earlier."""
READINGS = "Helios Earth"
MIDDLE = QUANTILE_LEVELS.index(0.5)
LEAST, MOST, BUSY = 0.80, 0.97, 0.1
"""Share of slots that the 90 % interval of one series is to hold, where it has demand in so many of its slots."""
INTRO = """# Forecast backtest

Made by `python docs/make_forecast.py{options}` from public traces and the sample.

**Setup.** Hourly GPU demand by virtual cluster or team with at least {jobs} jobs. {cutoffs}
[cutoffs](../glossary.md#cutoff) over the last half of each trace, at varying hours of the day; the first {calibrate}
only calibrate. The first {gap} hours after a cutoff are not scored, the {horizon} hours after them are. Quantiles and
model weights at a cutoff use earlier cutoffs only.

| column | meaning |
|---|---|
| MASE | [MASE](../glossary.md#mase) of the median, scaled by the seasonal naive error before the cutoff |
| pinball | twice the [pinball loss](../glossary.md#pinball-loss), same scale |
| cost | cost per GPU-hour needed; a missing GPU-hour costs {price:g}, a planned one 1 |
| in 90 % | share of intervals with the actual value inside the 90 % interval |
| ties split | the same; a value equal to an end of the interval counts in part, a forecast constant 0.90 |
| by series | lowest and highest share in the 90 % interval |

Values are means over the series; ± is the standard error over the cutoffs. `chosen` is the forecast that a user gets:
the candidates weighted by their earlier losses.

*By chance*: hours after one cutoff err together. From the correlation of the misses (beta-binomial) follows how often
an exact 90 % interval would show 80 to 97 % on one series with so few cutoffs, how often on three quarters of the
series, and how often the mean would lie between 87 and 93 %, if series were independent.

**Limits.** Hyperparameters (weights of past blocks, pseudo-events of hazards, model priors, forgetting rate) were set
on these traces. The settings of the sample paths (groups of run times, age and kind of day of blocks) were chosen
among seventeen, each source left out in turn; MASE fell on each source left out, here and at cutoffs 3, 9, 15 and 21
hours earlier, which were not used for any choice. On 16 days of MIT Supercloud the mean MASE of RunOff is 1.116
(1.122 before, 1.153 at most); services of the DLRM trace lose 3 %, and Naive is far better there than RunOff; chosen
has 1.006 of its mean MASE there and 0.985 of its pinball loss. AutoETS and Median are baseline models only if jobs
are known: they add nothing to `chosen` there.

**Model selection.** The candidate that is best on a source at four other sets of cutoffs has at most 1.01 of the best
candidate's MASE in 28 of 32 cases, `chosen` in 25. Relative to AutoETS, weights fixed in hindsight reach a MASE of
0.838 here and 0.828 there (one set for all sources), or 0.832 here (one set for each); chosen has 0.838 and 0.827.
Gradient-based weights and sharper or faster weighting are no better; 800 or stratified paths change RunOff by 0.1 to
0.3 %, as much as another seed does.
"""


def sources(shift_h: int = 0) -> Iterator[tuple[str, DemandHistory]]:
    """Every source with its series, up to so many hours before its end."""
    public = DATA / "alibaba_gpu_v2023"
    yield "Philly", _large(PHILLY_TRACE([DATA / "philly" / "philly.csv.gz"]), shift_h)
    yield "ITP", _large(ITP_TRACE(sorted((DATA / "itp").glob("*.csv.gz"))), shift_h)
    nodes = public / "openb_node_list_gpu_node.csv"
    yield "OpenB", _large(OPENB_TRACE([public / "openb_pod_list_default.csv.gz"], nodes=nodes), shift_h)
    yield "sample", _large(load_dataset("sample"), shift_h)
    earth = read_helios_sequence(sorted((DATA / "helios" / "Earth_vcs").glob("*/cluster_sequence_vc.csv.gz")))
    held = earth.tables["occupancy"]
    yield (READINGS, lay_out_occupancy(held, 1.0, held["time"].max() - timedelta(hours=shift_h) if shift_h else None))


def _large(trace: Dataset, shift_h: int) -> DemandHistory:
    """Tenants with enough jobs to be judged; where none has, all of them."""
    jobs = trace.jobs.filter(pl.col("gpus") > 0)
    counts = jobs.group_by("tenant").len()
    large = counts.filter(pl.col("len") >= FEWEST_JOBS)["tenant"].to_list()
    few = load_dataset("sample").jobs.height  # the sample is ours: all of its tenants count
    chosen = large if trace.jobs.height != few else counts["tenant"].to_list()
    kept = jobs.filter(pl.col("tenant").is_in(chosen))
    whole = lay_out_jobs(kept, trace_end=observation_ends_at(trace))
    if not shift_h:
        return whole
    return lay_out_jobs(
        kept, trace_end=observation_ends_at(trace), at=whole.start + timedelta(hours=whole.slots - shift_h)
    )


def tenants(judged: EvaluatedBacktest) -> np.ndarray:
    """Numbers of the series that are not sums of others."""
    return np.flatnonzero([not uid.startswith("all/") for uid in judged.test.grid.ids])


def figures(judged: EvaluatedBacktest, part: slice = slice(None)) -> dict[str, dict[str, np.ndarray]]:
    """Measures by candidate; ``mase`` and ``pinball`` by series and judged origin, the others by series."""
    from short_history import ties_shared_out

    test, rows = judged.test, tenants(judged)
    origins = slice(judged.first, None)
    found = {}
    every = judged.quantiles | {CHOSEN_MODEL_NAME: judged.mixture}
    actual, scale = test.actual[rows, origins, part], test.scale[rows, origins]
    for model, quantiles in every.items():
        said = quantiles[rows, origins, part]
        cost = realised_cost(actual, said, PRICE)
        inside = (actual >= said[..., 0]) & (actual <= said[..., -1])
        found[model] = {
            "mase": np.abs(actual - said[..., MIDDLE]).mean(axis=2) / scale,
            "pinball": 2 * realised_cost(actual, said, None).mean(axis=2) / scale,
            "cost": cost.sum(axis=(1, 2)) / np.maximum(actual.sum(axis=(1, 2)), 1e-9),
            "paid": cost.sum(axis=(1, 2)),
            "inside": inside,
            "coverage": inside.mean(axis=(1, 2)),
            "shared": ties_shared_out(actual, said, inside),
            "busy": (actual > 0).mean(axis=(1, 2)),
        }
    return found


def by_chance(inside: np.ndarray) -> tuple[float, float, float, float, float]:
    """What an interval that holds exactly 90 % would show of so many series, origins and slots.

    Parameters
    ----------
    inside : numpy.ndarray of bool, shape (n_series, n_origins, n_slots)
        Whether what came lay in the interval.

    Returns
    -------
    correlation, independent
        Of misses at one origin; independent slots of a series.
    alone, most, mean
        Probabilities that one series shows 80 to 97 %, that three quarters of the series do, and that the mean over
        the series lies between 87 and 93 %.
    """
    series, origins, slots = inside.shape
    rate = 1 - inside.mean(axis=(1, 2))
    between = (1 - inside.mean(axis=2)).var(axis=1, ddof=1)
    ratio = between.sum() * slots / max((rate * (1 - rate)).sum(), 1e-9)
    correlation = float(np.clip((ratio - 1) / (slots - 1), 0.01, 0.99))
    rng = np.random.default_rng(1)
    missed = rng.beta(0.1 * (1 / correlation - 1), 0.9 * (1 / correlation - 1), (20_000, series, origins))
    shown = 1 - rng.binomial(slots, missed).mean(axis=2) / slots
    good = (shown >= LEAST) & (shown <= MOST)
    mean = shown.mean(axis=1)
    independent = origins * slots / (1 + (slots - 1) * correlation)
    three_quarters = good.mean(axis=1) >= 0.75
    return (
        correlation, float(independent), float(good.mean()), float(three_quarters.mean()),
        float(((mean >= 0.87) & (mean <= 0.93)).mean()),
    )  # fmt: skip


def _good(values: np.ndarray) -> np.ndarray:
    return (values >= LEAST) & (values <= MOST)


def _with_error(values: np.ndarray) -> str:
    """Mean, and its standard error over the origins."""
    by_origin = np.nanmean(values, axis=0)
    return f"{np.nanmean(values):.3f} ± {by_origin.std(ddof=1) / np.sqrt(len(by_origin)):.3f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def _ratios(found: dict[str, dict[str, np.ndarray]]) -> dict[str, list[float]]:
    """Logarithms of what the chosen errs beside others, one a series."""
    return {
        f"{label} / {other}": list(
            np.log(np.nanmean(found[CHOSEN_MODEL_NAME][measure], axis=1) / np.nanmean(found[other][measure], axis=1))
        )
        for label, other, measure in (
            ("MASE", "AutoETS", "mase"), ("MASE", "Naive", "mase"), ("pinball", "AutoETS", "pinball"),
        )
    }  # fmt: skip


def _section(
    name: str, source: DemandHistory, judged: EvaluatedBacktest, found: dict[str, dict[str, np.ndarray]]
) -> list[str]:
    """What is said of a source."""
    rows = [
        [model, _with_error(one["mase"]), _with_error(one["pinball"]), f"{one['cost'].mean():.3f}",
         f"{one['coverage'].mean():.3f}", f"{one['shared'].mean():.3f}",
         f"{one['coverage'].min():.2f} to {one['coverage'].max():.2f}"]
        for model, one in found.items()
    ]  # fmt: skip
    mine, test = found[CHOSEN_MODEL_NAME], judged.test
    busy = mine["busy"] >= BUSY
    shared = mine["shared"].mean(axis=(1, 2))
    first = DAY_H - GAP
    days = (mine["inside"][..., :first].mean(), mine["inside"][..., first:].mean())
    correlation, independent, alone, most, mean = by_chance(mine["inside"][busy])
    remarks = " ".join(f"{one[0].upper()}{one[1:]}." for one in source.remarks)
    return [
        f"## {name}\n",
        f"{len(tenants(judged))} series, {source.slots} hours, cutoffs every {test.step} hours from "
        f"{test.grid.time(test.origins[0]):%Y-%m-%d %H:%M}. {remarks}".rstrip() + "\n",
        _table(["candidate", "MASE", "pinball", "cost", "in 90 %", "ties split", "by series"], rows),
        f"Relative to the best single candidate, chosen has {_fixed(found)}. Of the {busy.sum()} series with demand in "
        f"10 % of the hours, {_good(mine['coverage'])[busy].sum()} have 80 to 97 % in the interval, "
        f"{_good(shared)[busy].sum()} with ties split. Coverage is {days[0]:.3f} on the first lead day and "
        f"{days[1]:.3f} on the second. By chance: correlation {correlation:.2f}, {independent:.0f} independent hours a "
        f"series, {alone:.0%} on a series, {most:.0%} for three quarters, {mean:.0%} for the mean.\n",
    ]  # fmt: skip


def _beside(found: dict[str, dict[str, np.ndarray]], measure: str) -> tuple[float, str]:
    """What chosen has beside the candidate that was best throughout, and its name."""
    mean = {model: float(np.nanmean(one[measure])) for model, one in found.items()}
    mine = mean.pop(CHOSEN_MODEL_NAME)
    best = min(mean, key=mean.__getitem__)
    return mine / mean[best], best


def _cheaply(found: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """What was chosen where no jobs are known, beside the last value and the candidate that was best throughout."""
    mine, naive = found[CHOSEN_MODEL_NAME], found["Naive"]
    mase, pinball = (np.nanmean(mine[one]) / np.nanmean(naive[one]) for one in ("mase", "pinball"))
    return [
        f"{np.nanmean(mine['mase']):.3f}", f"{mase:.3f}", f"{_beside(found, 'mase')[0]:.3f}", f"{pinball:.3f}",
        f"{mine['paid'].sum() / naive['paid'].sum():.3f}", f"{mine['coverage'].mean():.3f}",
    ]  # fmt: skip


def _fixed(found: dict[str, dict[str, np.ndarray]]) -> str:
    told = {"MASE": "mase", "pinball loss": "pinball", "cost": "cost"}
    ratios = {label: _beside(found, measure) for label, measure in told.items()}
    return ", ".join(f"{ratio:.3f} of its {label} ({best})" for label, (ratio, best) in ratios.items())


def main(*, quick: bool) -> None:
    """Measure and write."""
    options = " --quick" if quick else ""
    text = [
        INTRO.format(
            jobs=FEWEST_JOBS, cutoffs=CUTOFFS, calibrate=8, gap=GAP, horizon=HORIZON, price=PRICE, options=options
        )
    ]
    leads, days, together, elsewhere, alone = [], [], [], [], []
    for shift_h in SHIFTS_H:
        logs: dict[str, list[float]] = {}
        covered = []
        for name, source in sources(shift_h):
            if quick and shift_h and name == READINGS:
                continue
            judged = rolling_backtest(
                source, horizon=HORIZON, gap=GAP, cutoffs=CUTOFFS, models=CANDIDATE_MODELS, price=PRICE
            )
            found = figures(judged)
            mine = found[CHOSEN_MODEL_NAME]
            busy = mine["busy"] >= BUSY
            shared = mine["shared"].mean(axis=(1, 2))
            covered.append([mine["coverage"][busy], shared[busy]])
            if source.run_off is not None:
                for label, values in _ratios(found).items():
                    logs.setdefault(label, []).extend(values)
            elsewhere.append(
                [f"{shift_h}", name, f"{np.nanmean(mine['mase']):.3f}", f"{np.nanmean(mine['pinball']):.3f}",
                 f"{_beside(found, 'mase')[0]:.3f}", f"{_beside(found, 'pinball')[0]:.3f}",
                 f"{mine['paid'].sum() / found['Naive']['paid'].sum():.3f}",
                 f"{mine['cost'].mean() / found['Naive']['cost'].mean():.3f}", f"{_beside(found, 'cost')[0]:.3f}",
                 f"{mine['coverage'].mean():.3f}", f"{shared.mean():.3f}"]
            )  # fmt: skip
            cheap = rolling_backtest(
                source, horizon=HORIZON, gap=GAP, cutoffs=CUTOFFS, models=CHEAP, price=PRICE, with_known=False
            )
            alone.append([f"{shift_h}", name, *_cheaply(figures(cheap))])
            if shift_h:
                continue
            text += _section(name, source, judged, found)
            if quick or name not in ("Philly", "ITP"):
                continue
            long = rolling_backtest(
                source, horizon=LEADS[-1][1], gap=0, cutoffs=LEAD_CUTOFFS, models=CANDIDATE_MODELS, price=PRICE
            )
            for begin, end in LEADS:
                part = figures(long, slice(begin, end))
                errors = [_with_error(part[one]["mase"]) for one in ("Naive", "Reverting", "RunOff", CHOSEN_MODEL_NAME)]
                leads.append([name, f"{begin} to {end}", *errors, f"{part[CHOSEN_MODEL_NAME]['coverage'].mean():.3f}"])
            week = figures(long)[CHOSEN_MODEL_NAME]
            for measure, label in (("inside", "in 90 %"), ("shared", "ties split")):
                share = week[measure].reshape(*week[measure].shape[:2], -1, DAY_H).mean(axis=(0, 1, 3))
                chance = f"{by_chance(week['inside'][..., -DAY_H:])[-1]:.0%} on day 7"
                days.append([name, label, *(f"{one:.3f}" for one in share), chance])
        strict, even = (_good(np.concatenate([one[at] for one in covered])) for at in (0, 1))
        together.append(
            [f"{shift_h}", *(f"{np.exp(np.mean(values)):.3f}" for values in logs.values()),
             f"{strict.sum()} of {len(strict)}", f"{even.sum()} of {len(even)}"]
        )  # fmt: skip
    text += [
        "## All sources together\n",
        "Geometric means over the series with jobs, by the number of hours by which the cutoffs are earlier; and the "
        "number of series with demand in 10 % of the hours that have 80 to 97 % in the interval. *cost / Naive* sums "
        "the cost of all series of a source; in the mean over its series, a very small series may dominate.\n",
        _table(["earlier [h]", *logs, "80 to 97 %", "ties split"], together),
        _table(
            [
                "earlier [h]",
                "source",
                "MASE",
                "pinball",
                "MASE / best",
                "pinball / best",
                "cost / Naive",
                "its mean over series",
                "cost / best",
                "in 90 %",
                "ties split",
            ],
            elsewhere,
        ),
    ]
    text += [
        "## Without jobs\n",
        f"The combination of {', '.join(CHEAP[:-1])} and {CHEAP[-1]}, which use the demand only and together take "
        "0.01 CPU seconds per forecast.\n",
        _table(
            [
                "earlier [h]",
                "source",
                "MASE",
                "MASE / Naive",
                "MASE / best",
                "pinball / Naive",
                "cost / Naive",
                "in 90 %",
            ],
            alone,
        ),
    ]
    text += (
        []
        if quick
        else [
            "## By lead time\n",
            f"MASE by hours after the cutoff, {LEAD_CUTOFFS} cutoffs, one week ahead.\n",
            _table(["source", "hours", "Naive", "Reverting", "RunOff", "chosen", "in 90 %"], leads),
            "The chosen forecast, by days after the cutoff.\n",
            _table(["source", "", *(f"day {day}" for day in range(1, 8)), "87 to 93 % by chance"], days),
        ]
    )
    (Path(__file__).parent / "results" / "forecast.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
