"""What a study promises: the comparison at equal service, made once for all that it depends on, and kept on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from gpuplanner.errors import OutputError, ScenarioError
from gpuplanner.files import to_json, write_atomically
from gpuplanner.scenario import Scenario
from gpuplanner.study.bundled import input_hashes
from gpuplanner.study.disk_cache import cache_folder
from gpuplanner.study.equal_service.comparison import equal_service
from gpuplanner.study.equal_service.tuning import Trial
from gpuplanner.study.equal_service.weeks import weeks
from gpuplanner.study.future.waits_check import waits_check
from gpuplanner.study.stages import stage
from gpuplanner.study.study import content_key

UNKNOWN = (
    "today",
    "winner",
    "baseline",
    "tuned_from",
    "judged_from",
    "judged_to",
    "tuned_for_times_the_jobs",
    "promised",
    "coverage",
)
SAVINGS = (
    "saving_gpu_hours_per_week", "saving_low", "saving_high", "saving_over_static", "saving_at_todays_wait",
)  # fmt: skip


def promise_of(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> dict[str, Any]:
    """The comparison at equal service as plain values, from disk where the same was asked before.

    Parameters
    ----------
    scenario : Scenario
        What is compared; of it, the fields of :data:`promise` count.
    tell : callable, optional
        Told of every setting that is tried, see :func:`~gpuplanner.study.equal_service.comparison.equal_service`.

    Returns
    -------
    dict
        :meth:`~gpuplanner.study.equal_service.comparison.EqualService.to_dict`.

    Raises
    ------
    ScenarioError
        If no weeks can be kept back, or a policy is unknown.
    """
    scenario = scenario.projected(promise.fields)
    place = cache_folder() / "promises" / f"{content_key(scenario, input_hashes(scenario.data))}.json"
    with contextlib.suppress(OSError, ValueError):
        kept: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return kept
    found = equal_service(scenario, tell=tell).to_dict()
    text = to_json(found)
    with contextlib.suppress(OutputError):
        write_atomically(place, lambda path: path.write_text(text, encoding="utf-8"))
    # Read back, so that a result is the same object whether it was made or kept.
    again: dict[str, Any] = json.loads(text)
    return again


@stage(
    "queue", "substitute", "path", "release_unit", "reconfigure_minutes", "change_gpu_hours", "wait_minutes",
    "wait_quantile", "policies", after=(weeks, waits_check),
)  # fmt: skip
def promise(scenario: Scenario) -> Mapping[str, Any]:
    """The one saving of a study, by what it depends on: prices and carbon do not tune again.

    Returns
    -------
    mapping
        As :func:`promise_of`; where no weeks can be kept back, the same keys with nothing behind them and a
        ``reason`` in words.

    Examples
    --------
    >>> found = promise(Scenario(month="2026-02", history_days=3))
    >>> found["winner"], found["reason"].split(";")[0][-52:]
    (None, 'tuned on the earlier one and judged on the later one')
    """
    try:
        weeks(scenario)
    except ScenarioError as refused:
        service = {
            "minutes": scenario.wait_minutes,
            "quantile": scenario.wait_quantile,
            "by": scenario.wait_by,
            "by_class": [],
        }
        return {
            "target": service, "policies": [], "frontier": [], "levers": [], "realised": [], "told_apart": [],
            "release_unit": scenario.release_unit,
            **dict.fromkeys((*UNKNOWN, *SAVINGS)), "reason": str(refused), "note": waits_check(scenario).sentence,
        }  # fmt: skip
    return promise_of(scenario)
