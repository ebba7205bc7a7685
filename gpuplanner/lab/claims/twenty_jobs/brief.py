"""The comparison column: what others reported, and what counts as near. Nothing here enters a computation."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.lab.claims.twenty_jobs.experiment import CASE_1, CASE_2, summarise

CONFIGURATIONS_TRIED = 36
"""Configurations tried against the four figures before the design of the case was settled."""


@dataclass(frozen=True)
class Target:
    """One reported figure.

    - ``policy``, ``measure``: What it is compared with.
    - ``label``: What it is, for tables.
    - ``reported``: As reported; utilisation as a share.
    - ``margin``: What counts as near: as a share of the figure for times, in points / 100 for shares.
    """

    policy: str
    measure: str
    label: str
    reported: float
    margin: float

    @property
    def band(self) -> tuple[float, float]:
        """Lowest and highest mean that counts as near."""
        half = self.margin * self.reported if self.measure == "completion_min" else self.margin
        return self.reported - half, self.reported + half


TARGETS = (
    Target(CASE_1.name, "completion_min", "completion, case 1 [min]", 114.0, 0.10),
    Target(CASE_1.name, "utilisation_provisioned", "utilisation of provisioned slices, case 1", 0.362, 0.03),
    Target(CASE_2.name, "completion_min", "completion, case 2 [min]", 59.0, 0.10),
    Target(CASE_2.name, "utilisation_provisioned", "utilisation of provisioned slices, case 2", 0.8979, 0.04),
)

DESIGN_SPACE = pl.DataFrame(
    [
        ("time_ratio", 0.36, 0.43, 0.51, 0.57, 0.86),
        ("utilisation_1", 0.20, 0.25, 0.30, 0.35, 0.43),
        ("utilisation_2", 0.58, 0.66, 0.73, 0.78, 0.87),
    ],
    schema=["measure", "p5", "p25", "p50", "p75", "p95"],
    orient="row",
)
"""Percentiles over 2795 kept of 4000 designs, drawn from distributions that are described in words only."""


def comparison(rows: pl.DataFrame) -> pl.DataFrame:
    """Simulated figures beside the reported ones.

    Parameters
    ----------
    rows : polars.DataFrame
        From :func:`gpuplanner.lab.claims.twenty_jobs.experiment.replicate`, with both cases.

    Returns
    -------
    polars.DataFrame
        ``figure, simulated, sd, low, high`` (interval of the mean), ``reported, band_low, band_high, inside``.
    """
    found = []
    for target in TARGETS:
        mine = summarise(rows.filter(policy=target.policy), [target.measure]).row(0, named=True)
        low, high = target.band
        found.append(
            {"figure": target.label, "simulated": mine["mean"]}
            | {name: mine[name] for name in ("sd", "low", "high")}
            | {"reported": target.reported, "band_low": low, "band_high": high}
            | {"inside": low <= mine["mean"] <= high}
        )
    return pl.DataFrame(found)


def implied_slices() -> float:
    """Provisioned slices of case 2 that make the four reported figures agree with each other.

    Work is the same in both cases, so U1 * C1 * T1 = U2 * C2 * T2, with all slices of the fleet for C1.

    Examples
    --------
    >>> round(implied_slices(), 1)
    43.6
    """
    from gpuplanner.lab.claims.twenty_jobs.design import Design

    design = Design()
    time_1, used_1, time_2, used_2 = (target.reported for target in TARGETS)
    return used_1 * design.gpus * design.model.compute_slices * time_1 / (used_2 * time_2)
