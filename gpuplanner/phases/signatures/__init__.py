"""Signatures: what a job's GPUs wait for, by the profiling counters, and what that means for slice and board."""

from gpuplanner.phases.signatures.bounds import BOUNDS, Counters, signature
from gpuplanner.phases.signatures.facts import Threshold, advice, load_thresholds
from gpuplanner.phases.signatures.jobs import signatures_by_class, signatures_of

__all__ = [
    "BOUNDS",
    "Counters",
    "Threshold",
    "advice",
    "load_thresholds",
    "signature",
    "signatures_by_class",
    "signatures_of",
]
