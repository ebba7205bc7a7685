"""What jobs of one node did together, where nobody can tell which of its devices each of them held."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.inbox.telemetry.holders import TOGETHER, kind_of_device, members_on

BUSIEST_FIRST = ("used", "idle_with_process", "idle_unclear", "idle_without_process")
"""A device that works is held by somebody, and one with a process on it too; one without may be nobody's."""


def seen_together(
    jobs: pl.DataFrame, devices: pl.DataFrame, states: Sequence[str] = BUSIEST_FIRST
) -> pl.DataFrame:
    """Share out what was seen of devices among the jobs that held some of them.

    Jobs that together hold h of the D devices seen on a node are taken to hold the h busiest: a free device does
    nothing. What these did is given to the jobs in proportion to what each holds, so the tenants of a node can be
    told apart only by how much they held.

    Examples
    --------
    Of four GPUs three are held, and two work: the job that holds two of the three has two thirds of that.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "start_time": noon, "end_time": noon + timedelta(hours=1),
    ...     "gpus": [2.0, 1.0], "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"instances": pl.Int32, "profile_requested": pl.String})
    >>> seen = pl.DataFrame({"node": "n1", "kind": "", "minute": [noon] * 4,
    ...     "state": ["used", "used", "idle_without_process", "idle_without_process"]})
    >>> seen_together(jobs, seen).select("job_id", "devices", pl.col("used").round(3)).sort("job_id").rows()
    [('a', 2.0, 1.333), ('b', 1.0, 0.667)]
    """
    key = ["node", "kind"]
    seen = devices.group_by(*key, "minute").agg(
        (pl.col("state") == state).sum().alias(state) for state in states
    )
    members = members_on(jobs, devices.select(key).unique())
    changes = members.select(*key, "at").unique().sort("at")
    placed = (
        seen.sort("minute")
        .join_asof(changes, left_on="minute", right_on="at", by=key, check_sortedness=False)
        .join(members.drop_nulls("job_id"), on=[*key, "at"])
        .with_columns(
            held=pl.min_horizontal(
                pl.col("count").sum().over(*key, "minute"),
                pl.sum_horizontal(pl.col(state) for state in states),
            ),
            part=pl.col("count") / pl.col("count").sum().over(*key, "minute"),
        )
    )
    left, shares = pl.col("held"), {}
    for state in states:
        shares[state] = pl.min_horizontal(pl.col(state).cast(pl.Float64), left)
        left = left - shares[state]
    return (
        placed.with_columns(
            devices=pl.col("held") * pl.col("part"),
            **{state: share * pl.col("part") for state, share in shares.items()},
        )
        .group_by("job_id", "minute")
        .agg(pl.col("devices", *states).sum())
        .sort("job_id", "minute")
    )


def not_told(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples of devices that several may have held, with their ``kind``; of a cut GPU only its instances."""
    return samples.with_columns(kind=kind_of_device()).filter(
        pl.col("job_evidence") == TOGETHER, pl.col("kind").is_not_null()
    )
