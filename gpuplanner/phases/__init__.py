"""Phases of jobs: stretches of steady demand, the dips between them, and what follows for slices and plans."""

from gpuplanner.phases.claim import VERDICTS, Claim, claim_by_class, claim_table, judge_claim, late_over_early
from gpuplanner.phases.demand import demand_by_class, phases_of_jobs
from gpuplanner.phases.fit import apply_template, fit_phases
from gpuplanner.phases.labels import SPIKE_LABELS
from gpuplanner.phases.segments import LABELS, find_phases
from gpuplanner.phases.spikes import Spikes, find_spikes, spikes_of_jobs
from gpuplanner.phases.template_file import read_template, template_from_yaml, template_to_yaml
from gpuplanner.phases.templates import Figure, Template, TemplatePhase, TemplateSpike, measure_template

__all__ = [
    "LABELS",
    "SPIKE_LABELS",
    "VERDICTS",
    "Claim",
    "Figure",
    "Spikes",
    "Template",
    "TemplatePhase",
    "TemplateSpike",
    "apply_template",
    "claim_by_class",
    "claim_table",
    "demand_by_class",
    "find_phases",
    "find_spikes",
    "fit_phases",
    "judge_claim",
    "late_over_early",
    "measure_template",
    "phases_of_jobs",
    "read_template",
    "spikes_of_jobs",
    "template_from_yaml",
    "template_to_yaml",
]
