"""The jobs that go into a run: their table, and which of them could never start."""

from __future__ import annotations

import dataframely as dy
import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, SchemaError, examples, message
from gpuplanner.schemas import WHOLE_GPU, check
from gpuplanner.simulate.build import Terms
from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.job_phases import in_phases
from gpuplanner.simulate.rules import Rules
from gpuplanner.simulate.slices.world import NONE
from gpuplanner.simulate.tables import Ints


class Workload(dy.Schema):
    """One job to simulate."""

    job_id = dy.String(nullable=False)
    tenant = dy.String(nullable=False)
    submit_s = dy.Float64(nullable=False)
    """From the start of the run; at or below 0 it is there when the run starts."""
    run_s = dy.Float64(nullable=False, min=0.0)
    """On whole GPUs, or on an instance with at least ``sms_needed`` SMs."""
    gpus = dy.Int32(nullable=False, min=1)
    profile = dy.String(nullable=False)
    """MIG profile, or ``"gpu"``."""
    sms_needed = dy.Float64(nullable=True, min=0.0)
    """SMs that the job can use; null if its speed does not depend on the instance."""
    limit_s = dy.Float64(nullable=True, min=0.0)
    """Run-time limit, by which backfill foretells ends."""

    @dy.rule()
    def job_id_occurring_once(cls) -> pl.Expr:
        """Outcomes are found by job_id; attempts of one job need ids of their own."""
        return pl.col("job_id").is_unique()

    @dy.rule()
    def one_instance_per_job(cls) -> pl.Expr:
        """A job on a MIG instance holds one."""
        return (pl.col("profile") == WHOLE_GPU) | (pl.col("gpus") == 1)


def checked_phases(jobs: pl.DataFrame, phases: pl.DataFrame | None, rules: Rules) -> pl.DataFrame:
    """All phases of jobs as a run over layouts needs them, with ``row``, the number of the job, and ``phase``."""
    rows = in_phases(check(jobs, Workload, where="jobs to simulate"), phases)
    refuse_endless(rows, rules)
    return rows


def refuse_endless(jobs: pl.DataFrame, rules: Rules) -> None:
    """Raise if rules that plan by limits find jobs on whole GPUs without one."""
    if not rules.by_limits:
        return
    endless = jobs.filter(pl.col("profile") == WHOLE_GPU, pl.col("limit_s").is_null())["job_id"]
    if len(endless):
        text = message(
            "jobs to simulate: column 'limit_s'",
            "a run-time limit for every job on whole GPUs, since backfill plans by limits",
            f"{len(endless)} without: {examples(endless.to_list())}",
            "Fill it, for example with the default limit of the partition, or use Rules(queue='strict').",
        )
        raise SchemaError(text)


def never_fitting(jobs: pl.DataFrame, terms: Terms, fleet: Fleet, calendar: Calendar) -> pl.DataFrame:
    """Jobs that no slot from their submission on has room for, even in an empty fleet."""
    gpus, per_node = jobs["gpus"].to_numpy(), fleet.gpus_per_node
    sized = jobs.select(
        "row",
        "phase",
        "job_id",
        "profile",
        "gpus",
        needed=np.where(gpus > per_node, -(-gpus // per_node) * per_node, gpus),
        most=_most(jobs, terms, calendar),
    )
    larger = " or larger" if (terms.substitutes != NONE).any() else ""
    whole = pl.format("needs {} whole GPUs; at most {} are whole from its submission on", "needed", "most")
    cut = pl.format("no slot from its submission on offers {}" + larger, "profile")
    reason = pl.when(pl.col("profile") == WHOLE_GPU).then(whole).otherwise(cut)
    return (
        sized.filter(pl.col("most") < pl.col("needed"))
        .sort("row", "phase")
        .unique("row", keep="first", maintain_order=True)
        .select("job_id", "profile", "gpus", reason=reason)
    )


def _most(jobs: pl.DataFrame, terms: Terms, calendar: Calendar) -> Ints:
    """Whole GPUs, or instances, that there may be at once for each job, from its submission on."""
    numbers, starts = terms.numbers_of(jobs), calendar.slot_starts_s
    slot = np.searchsorted(starts, np.maximum(jobs["submit_s"].to_numpy(), 0.0), "right") - 1
    most: Ints = terms.offered()[slot, numbers]
    return most


def refuse(misfits: pl.DataFrame, jobs: int) -> None:
    """Raise if there are jobs that can never start."""
    if misfits.height:
        listed = examples([f"{job_id}: {reason}" for job_id, _, _, reason in misfits.rows()])
        text = message(
            "jobs to simulate",
            "only jobs that the fleet and its calendar have room for",
            f"{misfits.height} of {jobs} that can never start: {listed}",
            "Change the calendar, drop them, or pass leave_unservable=True to leave them unstarted.",
        )
        raise ScenarioError(text)
