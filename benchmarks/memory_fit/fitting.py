"""Fitting what is learned from measured peaks: multipliers, their spread, and the cost of distance from them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpuplanner.sizing.learned_memory import (
    MIN_FEW_ROWS,
    PEAK_NOISE_FRACTION,
    STANDARD_NORMAL_P95,
    Floats,
    MeasuredRuns,
    PeakModel,
    find_run_size_range,
    fit_log_multipliers,
    learn_tool,
    list_sources,
    multipliers_by_component,
    predict_gib,
    weigh_readings,
)
from gpuplanner.sizing.training_job import TOOLS_WITHOUT_RECIPE

LEVEL = 0.95
"""Share of runs that stay below a bound."""
UNCHECKED_SHARE = 0.25
"""Share of the variance of an unknown tool's peaks that stays for a tool whose facts were not checked on runs."""
_SMALLEST = 0.03
_DRAWS = 20
_FAR = 0.4
"""Logarithm of the distance from which a run tells what distance costs."""

STUDENT_T_P95_BY_SIZE = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}
"""One-sided 95 % points of Student's t by number of values; for more values nearly normal."""


def fit_model(
    runs: MeasuredRuns, *, generic: MeasuredRuns | None = None, provenance: str = "", seed: int = 0
) -> PeakModel:
    """Fit everything on runs; ``sources`` of the runs are the names of their tools.

    Parameters
    ----------
    runs, generic : MeasuredRuns
        Measured runs, and the same runs as they would be predicted if their tool were not known.
    provenance : str
        What they are.
    seed : int
        Of the draws of few rows.

    Examples
    --------
    >>> from gpuplanner.sizing.learned_memory import shipped_peak_model
    >>> model = shipped_peak_model()
    >>> sorted(model.tools)
    ['litgpt', 'megatron-deepspeed', 'qwen-finetune', 'torchtune']
    """
    everybody, names = fit_log_multipliers(runs), list_sources(runs)
    tools, radii = {}, {}
    few: dict[bool, list[float]] = {True: [], False: []}
    for name in names:
        own = runs.select(runs.is_from(name))
        # A loop of one's own says nothing of the next one's: it counts among the tools, and is none to be known.
        if len(own) >= MIN_FEW_ROWS and name not in TOOLS_WITHOUT_RECIPE:
            tools[name] = multipliers_by_component(learn_tool(own, everybody))
            radii[name] = max(STANDARD_NORMAL_P95 * PEAK_NOISE_FRACTION, quantile(_crossed(own, everybody), LEVEL))
        if len(own) > 3 * MIN_FEW_ROWS:
            others = runs.select(~runs.is_from(name))
            few[True].append(_few_radius(own, fit_log_multipliers(others), seed, known=True))
            if generic is not None:
                few[False].append(
                    _few_radius(generic.select(runs.is_from(name)), fit_log_multipliers(others), seed, known=False)
                )
    architecture, layout, beyond = _far(runs, everybody)
    checked, unknown = _unseen(runs, runs), 0.8 if generic is None else _unseen(runs, generic)
    return PeakModel(
        provenance=provenance,
        multipliers=multipliers_by_component(everybody),
        tools=tools,
        radii=radii,
        unseen=math.sqrt(checked**2 + UNCHECKED_SHARE * max(0.0, unknown**2 - checked**2)),
        generic=unknown,
        few=max(few[True], default=0.15),
        rows={name: int(runs.is_from(name).sum()) for name in names},
        few_generic=max(few[False], default=0.4),
        architecture=architecture,
        layout=layout,
        beyond=beyond,
        models=tuple(sorted(set(runs.models))),
        extents={
            "": find_run_size_range(runs),
            **{name: find_run_size_range(runs.select(runs.is_from(name))) for name in tools},
        },
        kinds={name: tuple(sorted(set(runs.select(runs.is_from(name)).kinds))) for name in tools},
    )


def few_rows(
    runs: MeasuredRuns, centre: Floats, *, draws: int, seed: int, few: int = MIN_FEW_ROWS, known: bool = True
) -> list[tuple[Floats, MeasuredRuns, Floats]]:
    """Knobs after some random rows of a source, with the rest of its rows and the residuals of those learned from."""
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(draws):
        chosen = np.zeros(len(runs), dtype=np.bool_)
        chosen[random.choice(len(runs), min(few, len(runs) - 1), replace=False)] = True
        weights = weigh_readings(runs.select(chosen), centre, is_known_tool=known)
        own, rest = runs.select(chosen).read_as(weights), runs.select(~chosen).read_as(weights)
        multipliers = learn_tool(own, centre, is_known_tool=known)
        drawn.append((multipliers, rest, np.log(own.measured / predict_gib(own.parts, multipliers))))
    return drawn


def _unseen(runs: MeasuredRuns, read: MeasuredRuns) -> float:
    """The spread between sources, each left out: mean and Student's point of what is above, as there are few.

    `read` are the same runs as they are to be predicted, such as without the facts about their tool.
    """
    # A loop of one's own has no facts that were checked: it tells of unknown tools alone.
    names = [name for name in list_sources(runs) if runs is not read or name not in TOOLS_WITHOUT_RECIPE]
    if len(names) < 2:
        return 0.5
    above = []
    for name in names:
        mine = runs.is_from(name)
        above.append(_above(read.select(mine), fit_log_multipliers(runs.select(~mine))))
    spread = float(np.std(above, ddof=1)) * math.sqrt(1 + 1 / len(above))
    return max(max(above), float(np.mean(above)) + STUDENT_T_P95_BY_SIZE.get(len(above), 1.86) * spread)


def _above(runs: MeasuredRuns, multipliers: Floats) -> float:
    """How far 95 % of measured peaks lie above prediction, where what was not said has its largest answer."""
    predicted = np.maximum(predict_gib(runs.parts, multipliers), runs.worst)
    return max(_SMALLEST, quantile(np.log(runs.measured / predicted), LEVEL))


def _crossed(runs: MeasuredRuns, centre: Floats, folds: int = 5) -> Floats:
    """Residuals of each row under multipliers learned from the other folds of its tool; equal runs stay in one fold."""
    residuals = np.empty(len(runs))
    order = np.unique(np.round(runs.parts, 6), axis=0, return_inverse=True)[1].reshape(-1) % folds
    for fold in range(folds):
        out = order == fold
        if out.any():
            multipliers = learn_tool(runs.select(~out), centre)
            part = runs.select(out)
            predicted = np.maximum(predict_gib(part.parts, multipliers), part.worst)
            residuals[out] = np.log(part.measured / predicted)
    return residuals


def _far(runs: MeasuredRuns, centre: Floats) -> tuple[float, float, float]:
    """What a bound widens by for a new architecture, layout, and factor of e in size, each left out within a tool."""
    near, new, other, slopes = [], [], [], []
    for name in list_sources(runs):
        own = runs.select(runs.is_from(name))
        near.append(_crossed(own, centre))
        for model in sorted(set(own.models)):
            out = np.array([each == model for each in own.models], dtype=np.bool_)
            if not out.all():
                new.append(_left_out(own, out, centre))
        layouts = [kind.rpartition(" on ")[2] for kind in own.kinds]
        for layout in sorted(set(layouts)):
            out = np.array([each == layout for each in layouts], dtype=np.bool_)
            if not out.all():
                other.append(_left_out(own, out, centre))
        for size in range(own.extent.shape[1]):
            edge = np.median(own.extent[:, size])
            out = own.extent[:, size] > edge
            if not out.any():
                continue
            past = own.extent[out, size] - edge
            far = past > _FAR
            slopes.append((_left_out(own, out, centre)[far], past[far]))
    base = quantile(np.concatenate(near), LEVEL)
    strange, laid = (_floored(np.concatenate(each)) if each else 0.0 for each in (new, other))
    beyond = [np.sqrt(np.maximum(0.0, above**2 - base**2)) * (above > 0) / past for above, past in slopes]
    each = np.concatenate(beyond) if beyond else np.zeros(0)
    slope = max(0.05, quantile(each, LEVEL)) if len(each) else 0.05
    return math.sqrt(max(0.0, strange**2 - base**2)), math.sqrt(max(0.0, laid**2 - base**2)), slope


def _floored(above: Floats) -> float:
    """Upper quantile of residuals, at least what noise alone would give in so few rows."""
    floor = STUDENT_T_P95_BY_SIZE.get(len(above), STANDARD_NORMAL_P95) * PEAK_NOISE_FRACTION
    return max(floor * math.sqrt(1 + 1 / len(above)), quantile(above, LEVEL))


def _left_out(runs: MeasuredRuns, out: NDArray[np.bool_], centre: Floats) -> Floats:
    """How far the logarithm of measured peaks lies above prediction for rows that were left out."""
    part = runs.select(out)
    predicted = np.maximum(predict_gib(part.parts, learn_tool(runs.select(~out), centre)), part.worst)
    return np.asarray(np.log(part.measured / predicted), dtype=np.float64)


def _few_radius(runs: MeasuredRuns, centre: Floats, seed: int, *, known: bool) -> float:
    rest = few_rows(runs, centre, draws=_DRAWS, seed=seed, known=known)
    above = [np.log(r.measured / np.maximum(predict_gib(r.parts, multipliers), r.worst)) for multipliers, r, _ in rest]
    return max(_SMALLEST, quantile(np.concatenate(above), LEVEL))


def quantile(values: Floats, level: float) -> float:
    """Upper quantile that a next value stays below with the level, as split-conformal bounds take it.

    Examples
    --------
    >>> quantile(np.arange(1.0, 20.0), 0.95)
    19.0
    """
    if not len(values):
        return float("nan")
    reached = np.arange(1.0, len(values) + 1.0) / (len(values) + 1.0)
    place = int(np.searchsorted(reached, level - 1e-9))
    return float(np.sort(values)[min(place, len(values) - 1)])
