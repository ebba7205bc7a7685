"""The service that every policy must give: how long jobs of each size may wait, and how many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.study.equal_service.play import Played
from gpuplanner.study.equal_service.size_classes import SIZE_CLASSES, class_name, pooled_classes
from gpuplanner.study.equal_service.weeks import Weeks
from gpuplanner.units import SECONDS_PER_MINUTE

LOOSER = 1.2
"""A single week may exceed the target by this factor before it counts as missed."""
AT_ONCE_S = 1.0
"""Who may not wait at all is measured against a second."""
TIE = 1e-9
"""Shares that differ by less are equal."""


@dataclass(frozen=True)
class ServiceTarget:
    """A quantile of the jobs of every group of classes starts within so many minutes.

    Attributes
    ----------
    quantile : float
        Share of the jobs.
    groups : tuple of tuple of int
        Size classes that are judged together.
    minutes : tuple of float
        For each group, how long that share may wait at most.
    classes : tuple of str
        Names of all classes.
    """

    quantile: float
    groups: tuple[tuple[int, ...], ...]
    minutes: tuple[float, ...]
    classes: tuple[str, ...] = SIZE_CLASSES

    @classmethod
    def against_today(
        cls,
        today: Sequence[Played],
        groups: Sequence[tuple[int, ...]],
        quantile: float,
        minutes: float,
        classes: tuple[str, ...] = SIZE_CLASSES,
    ) -> ServiceTarget:
        """The stated minutes, or for a group today's own wait where that is longer.

        Parameters
        ----------
        today : sequence of Played
            Today's fleet on the weeks that the target is for.
        groups : sequence of tuple of int
            Groups of size classes.
        quantile, minutes : float
            Share of the jobs, and how long it may wait.
        classes : tuple of str
            Names of all classes.
        """
        waits = [wait_quantile(today, group, quantile) / SECONDS_PER_MINUTE for group in groups]
        return cls(quantile, tuple(groups), tuple(max(minutes, wait) for wait in waits), classes)

    def excess(self, weeks: Sequence[Played]) -> float:
        """How far the group that is worst off is from its target: above 0, more jobs are late than may be.

        Returns
        -------
        float
            Share of late jobs, of all weeks together, above the share that may be late.
        """
        worst = -np.inf
        for group, minutes in zip(self.groups, self.minutes, strict=True):
            waits = _waits(weeks, group)
            if len(waits):
                worst = max(
                    worst, float(np.mean(waits > minutes * SECONDS_PER_MINUTE)) - (1.0 - self.quantile)
                )
        return worst

    def met(self, weeks: Sequence[Played]) -> bool:
        """Whether every group of all weeks together keeps its target."""
        return self.excess(weeks) <= TIE

    def strain(self, weeks: Sequence[Played]) -> float:
        """Wait of the group that is worst off over what it may be: above 1 the target is missed."""
        return max(
            wait_quantile(weeks, group, self.quantile) / max(minutes * SECONDS_PER_MINUTE, AT_ONCE_S)
            for group, minutes in zip(self.groups, self.minutes, strict=True)
        )

    def weeks_held(self, weeks: Sequence[Played]) -> list[float]:
        """For each group the share of single weeks whose wait is at most :data:`LOOSER` times the target."""
        return [
            float(np.mean([
                wait_quantile([week], group, self.quantile) <= LOOSER * minutes * SECONDS_PER_MINUTE
                for week in weeks
            ]))
            for group, minutes in zip(self.groups, self.minutes, strict=True)
        ]  # fmt: skip

    def names(self) -> list[str]:
        """Names of the groups."""
        return [class_name(group, self.classes) for group in self.groups]


def target_of(found: Mapping[str, Any], drawn: Weeks) -> ServiceTarget:
    """The target of a comparison that was kept as plain values, see ``EqualService.to_dict``."""
    target = found["target"]
    minutes = tuple(float(row["minutes"]) for row in target["by_class"])
    return ServiceTarget(
        target["quantile"], tuple(pooled_classes(drawn.jobs_by_class())), minutes, drawn.classes
    )


def wait_quantile(weeks: Sequence[Played], group: tuple[int, ...] | None, quantile: float) -> float:
    """Wait within which that share of the jobs of a group, or of all, has started [s]; 0 without jobs.

    No interpolation: it is at most `t` if and only if that share of the jobs waited no longer than `t`.
    """
    waits = _waits(weeks, group)
    return float(np.quantile(waits, quantile, method="inverted_cdf")) if len(waits) else 0.0


def _waits(weeks: Sequence[Played], group: tuple[int, ...] | None) -> NDArray[np.float64]:
    return np.concatenate([week.waits_s if group is None else week.waits_of(group) for week in weeks])
