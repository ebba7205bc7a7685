"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from gpuplanner.sizing.hints.hints import hints
from gpuplanner.sizing.hints.request_lines import FORMS, Request, is_gres_type, request_lines
from gpuplanner.sizing.past_use import REQUEST, asked_and_used, boards_of
from gpuplanner.sizing.peak_trend import peak_trends
from gpuplanner.sizing.requests import resolve_requests, unknown_profiles
from gpuplanner.sizing.rightsize import EVIDENCE, keep_requests, rightsize
from gpuplanner.sizing.sharing import plugin_configs, sharing
from gpuplanner.sizing.smallest_profile import slices, smallest_of_compute, smallest_profile

__all__ = [
    "EVIDENCE",
    "FORMS",
    "REQUEST",
    "Request",
    "asked_and_used",
    "boards_of",
    "hints",
    "is_gres_type",
    "keep_requests",
    "peak_trends",
    "plugin_configs",
    "request_lines",
    "resolve_requests",
    "rightsize",
    "sharing",
    "slices",
    "smallest_of_compute",
    "smallest_profile",
    "unknown_profiles",
]
