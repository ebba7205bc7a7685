"""What kept jobs waiting, summed by job size, team and partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.asked import asked_of, size_classes
from gpuplanner.study.past.history import history
from gpuplanner.study.waits.causes import CAUSES, UNEXPLAINED
from gpuplanner.study.waits.explain import explain_waits
from gpuplanner.units import SECONDS_PER_HOUR

LIMITS = "limits"
HOURS = (*CAUSES[:UNEXPLAINED], LIMITS, CAUSES[UNEXPLAINED])
"""Causes in the order in which they are shown."""
NO_NAME = "-"


@dataclass(frozen=True, eq=False)
class WaitSummary:
    """Hours that jobs waited, by cause.

    Attributes
    ----------
    jobs : int
        Jobs that came within the record.
    by_size, by_team, by_partition : polars.DataFrame
        ``name, jobs, waited_hours`` and a column of hours for each of :data:`HOURS` [h].
    explained_fraction : float or None
        Share of the waiting that the replay of today reproduces; None where nobody waited.
    replay_error : float
        Difference of the waiting simulated and observed, by tenant and size, as a share of what was observed.
    limits : tuple of (str, float)
        Tenants that the record shows at a limit, and the most GPUs that each held.
    """

    jobs: int
    by_size: pl.DataFrame
    by_team: pl.DataFrame
    by_partition: pl.DataFrame
    explained_fraction: float | None
    replay_error: float
    limits: tuple[tuple[str, float], ...]

    @property
    def sentence(self) -> str:
        """The largest cause, in words.

        Examples
        --------
        >>> sum_waits(Scenario()).sentence.split()[:2]
        ['Jobs', 'waited']
        """
        total = float(self.by_size["waited_hours"].sum())
        if total < 1.0:
            return "Jobs waited less than an hour in all."
        hours = {cause: float(self.by_size[cause].sum()) for cause in HOURS}
        cause = max(hours, key=lambda name: hours[name])
        return (
            f"Jobs waited {total:,.0f} hours in all, {hours[cause] / total:.0%} of it {WORDS[cause]}; the replay of "
            f"today differs from that by {self.replay_error:.0%}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        tables = {"job_size": self.by_size, "team": self.by_team, "partition": self.by_partition}
        return {
            "jobs": self.jobs,
            "causes": {
                by: [_row(row) for row in table.iter_rows(named=True)] for by, table in tables.items()
            },
            "explained_fraction": self.explained_fraction,
            "replay_error": round(self.replay_error, 6),
            "limits": [{"tenant": tenant, "gpus": gpus} for tenant, gpus in self.limits],
        }


WORDS = {
    "insufficient": "as too few GPUs were free",
    "fragmented": "as enough GPUs were free, but not together",
    "wrong_layout": "as free GPUs were partitioned into other instances",
    "queued_behind": "behind other jobs",
    "limits": "at limits of tenants",
    "unexplained": "while the jobs fitted, which nothing in the record explains",
}


def sum_waits(scenario: Scenario) -> WaitSummary:
    """Sum what kept the jobs of a dataset waiting.

    Examples
    --------
    >>> sum_waits(Scenario()).by_team.columns[:3]
    ['name', 'jobs', 'waited_hours']
    """
    asked = asked_of(history(scenario))
    waits = explain_waits(asked)
    size, names = size_classes(asked, waits.judged)
    hours = dict(zip(CAUSES, waits.seconds.T / SECONDS_PER_HOUR, strict=True))
    limited = np.isin(waits.queue.tenant, [limit.tenant for limit in waits.queue.limits])
    unexplained = hours[CAUSES[UNEXPLAINED]]
    hours |= {
        LIMITS: np.where(limited, unexplained, 0.0),
        CAUSES[UNEXPLAINED]: np.where(limited, 0.0, unexplained),
    }
    team = asked.jobs["tenant"].cast(pl.String).fill_null(NO_NAME)
    table = pl.DataFrame(
        {
            "size": pl.Series([names[number] for number in size], dtype=pl.Enum(names)),
            "team": team,
            "partition": asked.jobs["partition"].cast(pl.String).fill_null(NO_NAME),
            **{cause: hours[cause] for cause in HOURS},
        }
    ).filter(waits.judged)
    total = pl.sum_horizontal(pl.col(cause).sum() for cause in HOURS)
    by_size, by_team, by_partition = (
        table.group_by(name=by)
        .agg(pl.len().alias("jobs"), total.alias("waited_hours"), pl.col(HOURS).sum())
        .sort("name")
        .cast({"name": pl.String})
        for by in ("size", "team", "partition")
    )
    error = waits.replay_error(size)
    waited = float(by_size["waited_hours"].sum()) > 0.0
    first = dict(zip(waits.queue.tenant.tolist(), team, strict=True))
    return WaitSummary(
        table.height,
        by_size,
        by_team,
        by_partition,
        max(1.0 - error, 0.0) if waited else None,
        error,
        tuple((first[limit.tenant], limit.gpus) for limit in waits.queue.limits),
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
