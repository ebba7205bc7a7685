"""Templates: the phases of a class of jobs as measured, and as somebody who knows better has edited them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.phases.demand import demand_by_class

FIGURES = {
    "share_of_time": (1e-9, 1.0),
    "sm_activity": (0.0, 1.0),
    "memory_gib": (0.0, 1e4),
    "gpus": (1e-3, 1e5),
}
"""Figures of a phase, with their least and greatest value; the unit stands in the name, activity and share are 0-1."""
SPIKE_FIGURES = {"every_s": (1e-3, 1e9), "last_s": (1e-3, 1e7)}
"""Figures of a spike [s]."""


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, and what somebody put in its place.

    Parameters
    ----------
    measured : float or None
        From jobs; None if it was never measured.
    edited : float or None
        Holds instead, where it is given.
    who, why : str or None
        Who edited it, and why: asked for with every edit.
    """

    measured: float | None = None
    edited: float | None = None
    who: str | None = None
    why: str | None = None

    @property
    def value(self) -> float:
        """The edited value if there is one, else the measured one."""
        chosen = self.edited if self.edited is not None else self.measured
        assert chosen is not None
        return chosen


@dataclass(frozen=True)
class TemplatePhase:
    """One phase of a class: its name, and a :class:`Figure` for each of :data:`FIGURES`."""

    name: str
    share_of_time: Figure
    sm_activity: Figure
    memory_gib: Figure
    gpus: Figure


@dataclass(frozen=True)
class TemplateSpike:
    """Dips of one label, their distance and length."""

    label: str
    every_s: Figure
    last_s: Figure


@dataclass(frozen=True)
class Template:
    """Phases of a class of jobs.

    Parameters
    ----------
    job_class : str
        The class.
    jobs : int
        Jobs that were measured; 0 if none was.
    phases : tuple of TemplatePhase
        In order of time.
    spikes : tuple of TemplateSpike
        Dips that come at a pace.
    """

    job_class: str
    jobs: int
    phases: tuple[TemplatePhase, ...]
    spikes: tuple[TemplateSpike, ...] = ()


def measure_template(phases: pl.DataFrame, job_class: str, *, spikes: pl.DataFrame | None = None) -> Template:
    """Measure the template of a class: medians over its jobs, set-up first, in the order that is usual.

    Parameters
    ----------
    phases : polars.DataFrame
        From :func:`gpuplanner.phases.phases_of_jobs`.
    job_class : str
        The class.
    spikes : polars.DataFrame, optional
        ``job_id``, ``label``, ``every_s`` and ``last_s``: dips that come at a pace, a row for each job and label.

    Raises
    ------
    ScenarioError
        If no job of the class has phases with activity and memory.

    Examples
    --------
    >>> rows = {"job_id": "1", "job_class": "tuning", "label": ["setup", "steady"], "phase": [1, 2]}
    >>> rows |= {"run_s": [60.0, 180.0], "share": [0.25, 0.75], "gpus": 1.0}
    >>> rows |= {"sm_activity": [0.0, 0.8], "memory_peak_gib": 40.0, "power_w": 500.0}
    >>> template = measure_template(pl.DataFrame(rows), "tuning")
    >>> [(phase.name, phase.share_of_time.value) for phase in template.phases]
    [('setup', 0.25), ('steady', 0.75)]
    """
    mine = phases.filter((pl.col("job_class") == job_class) & pl.col("label").is_not_null())
    known = demand_by_class(mine).drop_nulls(["sm_activity", "memory_peak_gib"])
    if known.is_empty():
        classes = phases["job_class"].drop_nulls().unique().sort().to_list()
        text = message(
            f"template of {job_class!r}",
            "jobs with activity and memory",
            f"none; there are classes {classes}",
            "Choose another class.",
        )
        raise ScenarioError(text)
    # A phase that only some jobs have takes its share of the time of an average job of the class.
    often = pl.col("share") * pl.col("jobs") / pl.col("jobs_of_class")
    rows = known.with_columns(often=often / often.sum())
    return Template(
        job_class,
        mine["job_id"].n_unique(),
        tuple(
            TemplatePhase(
                row["label"],
                Figure(_round(row["often"])),
                Figure(_round(row["sm_activity"])),
                Figure(_round(row["memory_peak_gib"])),
                Figure(_round(row["gpus"])),
            )
            for row in rows.iter_rows(named=True)
        ),
        _measured_spikes(spikes, mine),
    )


def _measured_spikes(spikes: pl.DataFrame | None, phases: pl.DataFrame) -> tuple[TemplateSpike, ...]:
    if spikes is None:
        return ()
    medians = (
        spikes.join(phases.select("job_id").unique(), on="job_id", how="semi")
        .group_by("label")
        .agg(pl.col("every_s", "last_s").median())
        .drop_nulls("every_s")
        .sort("label")
    )
    return tuple(
        TemplateSpike(label, Figure(_round(every_s)), Figure(_round(last_s)))
        for label, every_s, last_s in medians.iter_rows()
    )


def _round(value: float) -> float:
    return float(f"{value:.4g}")
