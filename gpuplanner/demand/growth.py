"""Growth of a weekly need, and when it passes what there is: trend, independent noise, a walk, all three fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpuplanner.errors import SchemaError, message

FEWEST_WEEKS = 4
"""With less the spread of a week cannot be told from its growth."""
WEEKS_IN_YEAR = 365.25 / 7
PATHS = 8000

NOISES = tuple(np.geomspace(0.01, 0.6, 10))
"""Standard deviations of a week's own noise, as shares of the need; each as likely as the next beforehand."""
WALKS = ((0.0, 0.75), (0.01, 0.06), (0.02, 0.06), (0.04, 0.06), (0.08, 0.05), (0.16, 0.02))
"""Standard deviations of a week's lasting step, and how likely they are before the record is seen: a walk has to be
shown by it."""
TRENDS = ((0.0, 0.2), (0.15, 0.2), (0.5, 0.6))
"""Standard deviations of the growth a year, and how likely: few weeks draw it towards none."""
IN_LOGS = 0.75
"""How likely it is beforehand that growth and noise are shares of the need, not numbers of GPUs."""
JUMP = 0.4
"""Standard deviation of a sudden change of level."""
JUMP_ODDS = 1.0 / WEEKS_IN_YEAR
"""Odds that the level changed suddenly before a given week of the record."""
JUMPS_BEFORE, WEEKS_BEFORE = 0.2, 156.0
"""Sudden changes thought of before the record is seen, and in how many weeks: what lies ahead follows from both."""

Series: TypeAlias = Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class GrowthLaw:
    """What a record of weekly needs says of the weeks to come: laws with their weights, each with its last level.

    - ``weeks``: Weeks with a need in the record.
    - ``unit``: What a need of 1 in the arrays stands for [GPUs].
    - ``whole``: Whether all needs were whole GPUs: those to come are then rounded.
    - ``weight``, shape (n_laws,): Posterior probabilities; they add up to 1.
    - ``logs``, ``peaked``, shape (n_laws,): Whether the law holds for the logarithm of the need, else for the need
      itself; whether a week's own noise is that of a largest value (Gumbel), else normal.
    - ``noise``, ``walk``, ``jumps``, shape (n_laws,): Standard deviations of a week's own noise and of its lasting
      step, and sudden changes of level a week.
    - ``level``, ``trend``, shape (n_laws,): Means of the level in the last week and of its growth a week.
    - ``cov``, shape (3, n_laws): Variance of the level, covariance, variance of the trend.
    """

    weeks: int
    unit: float
    whole: bool
    weight: np.ndarray
    logs: np.ndarray
    peaked: np.ndarray
    noise: np.ndarray
    walk: np.ndarray
    jumps: np.ndarray
    level: np.ndarray
    trend: np.ndarray
    cov: np.ndarray

    @property
    def growth_per_year(self) -> float:
        """Mean growth of a year as a share of the level: 0.5 for half as much again."""
        rise = np.where(
            self.logs,
            np.expm1(self.trend * WEEKS_IN_YEAR),
            self.trend * WEEKS_IN_YEAR / np.maximum(self.level, 1e-9),
        )
        return float(self.weight @ rise)

    def paths(self, weeks_ahead: int = 52, *, seed: int = 1, count: int = PATHS) -> np.ndarray:
        """Draw needs of the weeks to come [GPUs], with laws drawn by their weights: shape (count, weeks_ahead)."""
        rng = np.random.default_rng(seed)
        law = rng.choice(len(self.weight), size=count, p=self.weight)
        first, second = rng.standard_normal((2, count))
        steps, sizes, own = rng.standard_normal((3, count, weeks_ahead))
        falls = rng.random((count, weeks_ahead))
        highest = (rng.gumbel(size=own.shape) - np.euler_gamma) * np.sqrt(6) / np.pi
        own = np.where(self.peaked[law, None], highest, own)
        var_level, both, var_trend = np.maximum(self.cov[:, law], [[0.0], [-np.inf], [0.0]])
        root = np.sqrt(var_level)
        slope = np.divide(both, root, out=np.zeros(count), where=root > 0)
        level = self.level[law] + root * first
        trend = self.trend[law] + slope * first + np.sqrt(np.maximum(var_trend - slope**2, 0.0)) * second
        moves = trend[:, None] + self.walk[law, None] * steps
        moves += JUMP * sizes * (falls < self.jumps[law, None])
        values = level[:, None] + moves.cumsum(axis=1) + self.noise[law, None] * own
        logs = self.logs[law]
        values[logs] = np.exp(np.minimum(values[logs], 50.0))
        return np.asarray(np.maximum(values, 0.0) * self.unit)


def fit_growth(needs: Series) -> GrowthLaw:
    """Fit trend, noise and walk to a record of weekly needs, and keep how sure each is.

    The level of a week moves by a trend, by a lasting step of its own (the walk), and at most once in the record by a
    sudden change; the need is that level with noise of its own on it. Every mixture of the sizes listed in this module
    is weighed by how well it foretold each week from those before (a Kalman filter), for the logarithm of the need and
    for the need itself. Nothing is chosen: what is not told apart stays in with its weight, and widens what is drawn.

    References
    ----------
    Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", Cambridge University Press, 1989.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> law = fit_growth(100 * 1.5 ** (np.arange(52) / 52) * np.exp(0.05 * rng.standard_normal(52)))
    >>> round(law.growth_per_year, 1)
    0.5
    """
    values = _checked(needs)
    known = values[np.isfinite(values)]
    unit = float(known[known > 0].mean())
    parts = [_weighed(values / unit, logs=False)]
    if (known > 0).all():
        parts.append(_weighed(values / unit, logs=True))
    evidence, *columns = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
    weight = np.exp(evidence - evidence.max())
    kept = weight > 1e-6
    whole = bool((known == np.floor(known)).all())
    columns = [column[..., kept] for column in columns]
    return GrowthLaw(len(known), unit, whole, weight[kept] / weight[kept].sum(), *columns)


def _checked(needs: Series) -> np.ndarray:
    """Needs from the first known week on."""
    values = np.asarray(needs, dtype=float)
    finite = np.isfinite(values)
    if finite.sum() < FEWEST_WEEKS or not (values[finite] >= 0).all() or not values[finite].any():
        text = message(
            "growth: weekly needs",
            f"{FEWEST_WEEKS} known weeks or more, none below 0 and not all 0",
            f"{int(finite.sum())} known, {int((values[finite] < 0).sum())} below 0, "
            f"{int((values[finite] > 0).sum())} above",
            "Give a longer history.",
        )
        raise SchemaError(text)
    return values[int(finite.argmax()) :]


def _weighed(needs: np.ndarray, *, logs: bool) -> tuple[np.ndarray, ...]:
    """Logarithm of prior and likelihood of each law, and the columns of :class:`GrowthLaw` from ``logs`` on."""
    weeks = len(needs)
    # A sudden change before week `at`; 0: none. One before the last week alone cannot be told from its noise.
    noise, (walk, walk_odds), (spread, trend_odds), at = _laws(weeks)
    values = np.log(needs) if logs else needs
    scale_odds = IN_LOGS if logs else 1 - IN_LOGS
    evidence = np.log(scale_odds * walk_odds * trend_odds * np.where(at > 0, JUMP_ODDS, 1.0))
    skewed = np.zeros(len(at))
    level = np.full(len(at), values[0])
    trend = np.zeros(len(at))
    own, var_level = noise**2, noise**2
    both, var_trend = np.zeros(len(at)), (spread / WEEKS_IN_YEAR) ** 2
    for week in range(1, weeks):
        level = level + trend
        var_level = var_level + 2 * both + var_trend + walk**2 + JUMP**2 * (at == week)
        both = both + var_trend
        if np.isfinite(values[week]):
            total = var_level + own
            missed = values[week] - level
            evidence -= 0.5 * (np.log(total) + missed**2 / total)
            skewed += _gumbel_over_normal(missed / np.sqrt(total))
            gain, turn = var_level / total, both / total
            level, trend = level + gain * missed, trend + turn * missed
            var_level, both, var_trend = (1 - gain) * var_level, (1 - gain) * both, var_trend - turn * both
    if logs:  # the density of the need itself
        evidence -= np.nansum(values[1:])
    jumps = (JUMPS_BEFORE + (at > 0)) / (WEEKS_BEFORE + weeks)
    cov = np.stack([var_level, both, var_trend])
    once = (noise, walk, jumps, level, trend, cov)
    peaked = np.repeat([False, True], len(at))
    return (
        np.concatenate([evidence, evidence + skewed]),
        np.full(len(peaked), logs),
        peaked,
        *(np.concatenate([column, column], axis=-1) for column in once),
    )


def _gumbel_over_normal(missed: np.ndarray) -> np.ndarray:
    """Logarithm of the ratio of two densities of mean 0 and variance 1."""
    spread = np.pi / np.sqrt(6)
    place = spread * np.maximum(missed, -8.0) + np.euler_gamma
    return np.asarray(np.log(spread * np.sqrt(2 * np.pi)) - place - np.exp(-place) + missed**2 / 2)


def _laws(weeks: int) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Every mixture of noise, walk (with odds), trend (with odds) and week of a sudden change."""
    grid = np.meshgrid(
        np.arange(len(NOISES)), np.arange(len(WALKS)), np.arange(len(TRENDS)), np.arange(weeks), indexing="ij"
    )
    noise, walk, trend, at = (axis.ravel() for axis in grid)
    walks, trends = np.array(WALKS)[walk].T, np.array(TRENDS)[trend].T
    return np.array(NOISES)[noise], tuple(walks), tuple(trends), at
