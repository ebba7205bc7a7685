"""Choose one of the candidates for each series, by what they cost on past origins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from gpuplanner.forecast.candidates import CANDIDATES, RUN_OFF, RUN_OFF_MEDIAN
from gpuplanner.forecast.models import NAIVE

OWN_WEIGHT = 0.25
"""Weight of a series' own record in the choice; the rest is the record of the model on all series. A handful
of backtests is a noisy judge: on the Philly trace, choosing by the own record alone did worse than keeping
the naive forecast everywhere."""
WORST = 3.0
"""Relative records are cut off here, so that one odd series does not judge a model for all."""
PRIOR, UNTRIED, PRIOR_SEASONS = {NAIVE: 1.0, RUN_OFF: 0.85, RUN_OFF_MEDIAN: 0.85}, 1.2, 16.0
"""Cost relative to the naive forecast that a candidate is believed to reach before it was tried here, that of one
not named, and how many seasons that belief counts for: an origin from which a week was forecast says more of it than
one of a day. Public traces stand behind it, see ``docs/forecast.md``."""
FLOOR = 0.05
"""Relative records below it are told apart no further."""


def choose(scores: pl.DataFrame, *, seasons: float = 1.0) -> pl.DataFrame:
    """Choose a model for each series by its record relative to the naive forecast.

    The record of a model is what it cost, or its pinball loss, or its mean MASE (MAE where that is not defined),
    whichever the table has, divided by that of the naive forecast on the same origins. A quarter of it is the
    series' own, the rest the mean over all series of the rule "full" that use the model. Where the table says
    from how many ``windows``, a few are believed less (see :data:`PRIOR`); what is marked ``worse`` is not chosen.
    The best record wins; of equal ones, the simpler model.

    Parameters
    ----------
    scores : polars.DataFrame
        From :func:`score`.
    seasons : float
        How many seasons were forecast from each origin.

    Returns
    -------
    polars.DataFrame
        ``unique_id`` and ``model``, one row per series.

    Examples
    --------
    >>> scores = pl.DataFrame({"unique_id": ["a", "a"], "model": ["Naive", "Median"], "rule": "full"})
    >>> choose(scores.with_columns(mase=pl.Series([2.0, 1.0]), mae=pl.Series([4.0, 2.0]))).rows()
    [('a', 'Median')]
    """
    preferred: list[str] = [name for name in ("realised_cost", "pinball") if name in scores.columns]
    table = scores.with_columns(error=pl.coalesce(preferred or ["mase", "mae"]))
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    models = [model for model in CANDIDATES if (table["model"] == model).any()]
    place = {uid: number for number, uid in enumerate(ids)}
    error = np.full((len(models), len(ids)), np.nan)
    usable, full = np.zeros(error.shape, dtype=bool), np.zeros(len(ids), dtype=bool)
    count = np.zeros(error.shape, dtype=np.int64)
    for row in table.iter_rows(named=True):
        at = models.index(row["model"]), place[row["unique_id"]]
        error[at] = np.nan if row["error"] is None else row["error"]
        usable[at], count[at] = not row.get("worse", False), row.get("windows", 0)
        full[place[row["unique_id"]]] = row["rule"] == "full"
    naive = error[models.index(NAIVE)] if NAIVE in models else np.full(len(ids), np.nan)
    own = relative(error, naive)
    if "windows" in table.columns:
        own = shrunk(own, models, count * seasons)
    chosen = pick(own, full, shut_out=~usable)
    return pl.DataFrame({"unique_id": ids, "model": [models[one] for one in chosen]})


def shrunk(own: np.ndarray, models: Sequence[str], seasons: np.ndarray) -> np.ndarray:
    """Records drawn towards what is believed of each model before it was tried, by the seasons forecast so far.

    Examples
    --------
    >>> shrunk(np.array([[1.0], [0.5]]), ["Naive", "AutoETS"], np.array([[16], [16]])).round(2).tolist()
    [[1.0], [0.77]]
    """
    prior = np.log([PRIOR.get(model, UNTRIED) for model in models])[:, None]
    seen = np.where(np.isnan(own), 0, seasons)
    logs = np.log(np.maximum(np.where(np.isnan(own), 1.0, own), FLOOR))
    return np.asarray(np.exp((seen * logs + PRIOR_SEASONS * prior) / (seen + PRIOR_SEASONS)))


def relative(error: np.ndarray, naive: np.ndarray) -> np.ndarray:
    """Records relative to the naive forecast, cut off at :data:`WORST`.

    Examples
    --------
    >>> relative(np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([2.0, 0.0])).tolist()
    [[1.0, 1.0], [0.5, 3.0]]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(
            naive > 0, error / naive, np.where(error > 0, WORST, np.where(error == 0, 1.0, np.nan))
        )
    return np.minimum(ratio, WORST)


def pick(own: np.ndarray, full: np.ndarray, *, shut_out: np.ndarray) -> np.ndarray:
    """Number of the model with the best record, own and common; of equal ones the first.

    Examples
    --------
    >>> none = np.zeros((2, 1), dtype=bool)
    >>> pick(np.array([[1.0], [0.5]]), np.array([True]), shut_out=none).tolist()
    [1]
    """
    seen = ~np.isnan(own) & full
    count = seen.sum(axis=1)
    common = np.where(count > 0, np.where(seen, own, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)[:, None]
    record = OWN_WEIGHT * own + (1 - OWN_WEIGHT) * np.where(np.isnan(common), own, common)
    record = np.where(shut_out | np.isnan(record), np.inf, record)
    return np.asarray(record.argmin(axis=0))
