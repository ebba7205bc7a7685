"""Stages of the walk, each remembered by exactly the fields of the scenario that it depends on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuplanner.scenario import Scenario

Result = TypeVar("Result")
KEPT = 12
"""Results kept per stage: enough for a session of moving sliders back and forth."""


class Stage(Generic[Result]):
    """A function of a scenario that sees only the fields it names.

    Moving a price does not plan again, and moving a quantile does not forecast again: fields that a stage
    does not name are at their default inside it, so they can neither change its result nor its key.

    Parameters
    ----------
    function : callable
        From a scenario to a result that callers must not change.
    fields : tuple of str
        Fields that it depends on, those of the stages it calls included.

    Examples
    --------
    >>> double = Stage(lambda scenario: 2 * scenario.seed, ("seed",))
    >>> double(Scenario(seed=3, quantile=0.5)), double(Scenario(seed=3, quantile=0.8))
    (6, 6)
    >>> double.computed
    1
    """

    def __init__(self, function: Callable[[Scenario], Result], fields: tuple[str, ...]) -> None:
        self.fields = tuple(dict.fromkeys(fields))

        @functools.lru_cache(maxsize=KEPT)
        def remembered(scenario: Scenario, data: object) -> Result:
            return function(scenario)

        self._remembered = remembered
        functools.update_wrapper(self, function)

    def __call__(self, scenario: Scenario) -> Result:
        """Compute, or give back what was computed for the same fields."""
        return self._remembered(scenario.projected(self.fields), _fingerprint(scenario.data))

    @property
    def computed(self) -> int:
        """How often the function has run."""
        return self._remembered.cache_info().misses


def _fingerprint(data: str) -> tuple[int, int] | None:
    """Changes when the trace on disk is written anew, so that nothing stale is given back."""
    try:
        stat = (Path(data) / "provenance.json").stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def stage(
    *fields: str, after: tuple[Stage[Any], ...] = ()
) -> Callable[[Callable[[Scenario], Result]], Stage[Result]]:
    """Make a stage of a function: its own fields, and those of the stages that it calls."""
    upstream = tuple(name for earlier in after for name in earlier.fields)
    return lambda function: Stage(function, upstream + fields)
