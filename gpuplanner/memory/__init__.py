"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from gpuplanner.memory.requests import resolve_requests, slices, unknown_profiles
from gpuplanner.memory.rightsize import EVIDENCE, rightsize, rightsize_summary

__all__ = [
    "EVIDENCE",
    "resolve_requests",
    "rightsize",
    "rightsize_summary",
    "slices",
    "unknown_profiles",
]
