"""What kept jobs waiting, summed by job size, team and partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.study.decision.asked import Asked, size_classes
from gpuplanner.study.decision.types import DECIMALS
from gpuplanner.study.waits.causes import CAUSES, LIMITS
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.units import SECONDS_PER_HOUR, counted

WORDS = {
    "insufficient": "as too few GPUs were free",
    "fragmented": "as enough GPUs were free, but not together",
    "wrong_layout": "as free GPUs were partitioned into other instances",
    "queued_behind": "behind other jobs",
    "limits": "at limits of tenants",
    "unexplained": "while the jobs fitted, which nothing in the record explains",
}
NO_NAME = "-"


@dataclass(frozen=True)
class CauseHours:
    """Hours that some jobs waited, by cause [h]."""

    name: str
    jobs: int
    waited: float
    insufficient: float
    fragmented: float
    wrong_layout: float
    queued_behind: float
    limits: float
    unexplained: float


@dataclass(frozen=True)
class Causes:
    """The same hours by job size, team and partition."""

    job_size: tuple[CauseHours, ...]
    team: tuple[CauseHours, ...]
    partition: tuple[CauseHours, ...]


@dataclass(frozen=True)
class TenantLimit:
    """A tenant that the record shows at a limit, and the most GPUs that it held."""

    tenant: str
    gpus: float


@dataclass(frozen=True)
class WaitSummary:
    """What kept the jobs of a record waiting.

    - ``causes``: Hours by cause, for the jobs that came within the record.
    - ``explained_fraction``: Share of the waiting that the simulation of today reproduces; None where no job waited.
    - ``replay_error``: Difference of the waiting simulated and observed, by tenant and job size, as a share of what was
      observed.
    - ``limits``: Tenants that waited at a limit.
    """

    causes: Causes
    explained_fraction: float | None
    replay_error: float
    limits: tuple[TenantLimit, ...]

    @property
    def sentence(self) -> str:
        """The largest cause, in words."""
        rows = self.causes.job_size
        total = sum(row.waited for row in rows)
        if total < 1.0:
            return "Jobs waited less than an hour in all."
        hours = {cause: sum(getattr(row, cause) for row in rows) for cause in CAUSES}
        cause = max(hours, key=lambda name: hours[name])
        waited, share = counted(round(total), "hour"), f"{hours[cause] / total:.0%}"
        return (
            f"Jobs waited {waited} in all, {share} of it {WORDS[cause]}; the simulation of today reproduces "
            f"{self.explained_fraction or 0.0:.0%} of it."
        )


def cause_table(rows: Sequence[CauseHours]) -> pl.DataFrame:
    """Hours by cause as a table.

    Examples
    --------
    >>> cause_table([CauseHours("1 GPU", 2, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0)]).row(0)[:5]
    ('1 GPU', 2, 3.0, 2.0, 1.0)
    """
    return pl.DataFrame(rows, schema=["name", "jobs", "waited", *CAUSES], orient="row")


def sum_waits(asked: Asked, waits: ExplainedWaits) -> WaitSummary:
    """Sum what kept jobs waiting.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.asked import asked_of
    >>> from gpuplanner.study.past.history import history
    >>> from gpuplanner.study.waits.explain import explain_waits
    >>> asked = asked_of(history(Scenario()))
    >>> [row.name for row in sum_waits(asked, explain_waits(asked)).causes.team][:2]
    ['assistants', 'llm-core']
    """
    size, names = size_classes(asked, waits.judged)
    hours = dict(zip(CAUSES, waits.seconds.T / SECONDS_PER_HOUR, strict=True))
    tenant = asked.jobs["tenant"].cast(pl.String).fill_null(NO_NAME)
    table = pl.DataFrame(
        {
            "job_size": pl.Series([names[number] for number in size], dtype=pl.Enum(names)),
            "team": tenant,
            "partition": asked.jobs["partition"].cast(pl.String).fill_null(NO_NAME),
            **{cause: hours[cause] for cause in CAUSES},
        }
    ).filter(waits.judged)
    held = np.bincount(waits.queue.tenant, waits.seconds[:, LIMITS] * waits.judged) > 0
    first = dict(zip(waits.queue.tenant.tolist(), tenant, strict=True))
    return WaitSummary(
        Causes(*(_by(table, name) for name in ("job_size", "team", "partition"))),
        None if waits.share.fraction is None else round(waits.share.fraction, DECIMALS),
        round(waits.share.error, DECIMALS),
        tuple(
            TenantLimit(first[limit.tenant], limit.gpus) for limit in waits.queue.limits if held[limit.tenant]
        ),
    )


def _by(table: pl.DataFrame, name: str) -> tuple[CauseHours, ...]:
    """Hours by cause of each value of a column."""
    rows = (
        table.group_by(name)
        .agg(pl.len().alias("jobs"), pl.sum_horizontal(CAUSES).sum().alias("waited"), pl.col(CAUSES).sum())
        .sort(name)
        .with_columns(pl.selectors.float().round(DECIMALS))
    )
    return tuple(CauseHours(*row) for row in rows.iter_rows())
