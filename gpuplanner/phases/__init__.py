"""Phases of jobs: stretches of steady demand, the dips between them, and what follows for slices and plans."""

from gpuplanner.phases.claim import VERDICTS, Claim, claim_by_class, claim_table, judge_claim, late_over_early
from gpuplanner.phases.demand import demand_by_class, phases_of_jobs
from gpuplanner.phases.fit import fit_phases
from gpuplanner.phases.labels import SPIKE_LABELS
from gpuplanner.phases.segments import LABELS, find_phases
from gpuplanner.phases.spikes import Spikes, find_spikes, spikes_of_jobs

__all__ = [
    "LABELS",
    "SPIKE_LABELS",
    "VERDICTS",
    "Claim",
    "Spikes",
    "claim_by_class",
    "claim_table",
    "demand_by_class",
    "find_phases",
    "find_spikes",
    "fit_phases",
    "judge_claim",
    "late_over_early",
    "phases_of_jobs",
    "spikes_of_jobs",
]
