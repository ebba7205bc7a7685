"""How many GPUs hold the service target weeks ahead, and when today's no longer do: a distribution, path by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuplanner.forecast import peak_walks
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import TODAY
from gpuplanner.study.equal_service.growth import growth as fleets_by_growth
from gpuplanner.study.equal_service.tuning import Trial
from gpuplanner.study.future.gpus_wanted import wanted

WEEKS = (4, 8, 13, 26, 52)
FEWEST_PEAKS = 3
SHARES = {"gpus_q05": 0.05, "gpus_q50": 0.5, "gpus_q95": 0.95}


def weeks_ahead(
    scenario: Scenario, grown: Sequence[Mapping[str, Any]], *, growth: float | None = None
) -> list[dict[str, Any]]:
    """Carry the fleets that hold the target at several arrivals over to weeks ahead.

    The demand of each path is a random walk of its weekly peak (:func:`gpuplanner.forecast.peak_walks`); its GPUs lie
    on straight lines between the arrivals that were simulated.

    Parameters
    ----------
    scenario : Scenario
    grown : sequence of mapping
        From :func:`gpuplanner.study.equal_service.growth.growth`.
    growth : float, optional
        Growth a year that is assumed; that of the past where it is not given.

    Returns
    -------
    list of dict
        For each policy and week: ``policy``, ``week``, the quantiles ``gpus_q05``, ``gpus_q50`` and ``gpus_q95`` (None
        where the arrivals lie beyond those that were simulated) and ``run_out_by``, the probability that today's GPUs
        have been too few by then (None where none is known to hold). Empty with less than three weeks of demand.
    """
    source = wanted(scenario)
    peaks = source.weekly_peaks()
    if (peaks > 0).sum() < FEWEST_PEAKS or not peaks[-1] > 0:
        return []
    factors = peak_walks(peaks, weeks=max(WEEKS), growth=growth, seed=scenario.seed) / peaks[-1]
    return over_paths(grown, factors)


def grown_weeks_ahead(
    scenario: Scenario,
    found: Mapping[str, Any] | None = None,
    tell: Callable[[str, Trial], object] | None = None,
    *,
    growth: float | None = None,
) -> dict[str, Any]:
    """The keys ``growth`` and ``weeks_ahead`` of a comparison; without one, of the fleet run as today.

    Parameters
    ----------
    scenario : Scenario
    found : mapping, optional
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.
    tell : callable, optional
        As for :func:`gpuplanner.study.equal_service.growth.growth`.
    growth : float, optional
        As for :func:`weeks_ahead`.
    """
    grown = fleets_by_growth(scenario, found or {"winner": TODAY}, tell)
    return {"growth": grown, "weeks_ahead": weeks_ahead(scenario, grown, growth=growth)}


def over_paths(grown: Sequence[Mapping[str, Any]], factors: np.ndarray) -> list[dict[str, Any]]:
    """GPUs of each policy over paths of arrivals; see :func:`weeks_ahead`.

    Parameters
    ----------
    grown : sequence of mapping
    factors : numpy.ndarray, shape (n_paths, n_weeks)
        Arrivals over those of today.

    Examples
    --------
    >>> sizes = [{"factor": 1.0, "gpus": 8}, {"factor": 2.0, "gpus": 16}]
    >>> row = {"policy": "today", "todays_fleet_until": 1.2, "gpus": sizes}
    >>> found = over_paths([row], np.linspace(1.0, 1.5, 52)[None])
    >>> found[-1]["week"], found[-1]["gpus_q50"], found[-1]["run_out_by"]
    (52, 12.0, 1.0)
    """
    found = []
    for row in grown:
        sizes = [one for one in row["gpus"] if one["gpus"] is not None]
        known_at, known_gpus = ([float(one[name]) for one in sizes] for name in ("factor", "gpus"))
        until = row["todays_fleet_until"]
        for week in WEEKS:
            at = factors[:, week - 1]
            gpus: dict[str, float | None] = dict.fromkeys(SHARES)
            if sizes:
                needed = np.interp(at, known_at, known_gpus, right=np.inf)
                levels = np.quantile(needed, list(SHARES.values()), method="higher")
                gpus = {
                    name: float(value) if np.isfinite(value) else None
                    for name, value in zip(SHARES, levels, strict=True)
                }
            passed = None if until is None else float((factors[:, :week].max(axis=1) > until).mean())
            found.append({"policy": row["policy"], "week": week} | gpus | {"run_out_by": passed})
    return found
