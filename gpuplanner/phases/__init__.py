"""Phases of jobs: stretches of steady demand, and the short dips between them."""

from gpuplanner.phases.segments import LABELS, find_phases
from gpuplanner.phases.spikes import Spikes, find_spikes

__all__ = ["LABELS", "Spikes", "find_phases", "find_spikes"]
