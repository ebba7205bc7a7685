"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from gpuplanner.sizing.hints.hints import hints
from gpuplanner.sizing.hints.request_lines import FORMS, Request, is_gres_type, request_lines
from gpuplanner.sizing.past_use import REQUEST, asked_and_used, boards_of
from gpuplanner.sizing.requests import resolve_requests, slices, unknown_profiles
from gpuplanner.sizing.rightsize import EVIDENCE, keep_requests, rightsize, rightsize_summary

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
    "request_lines",
    "resolve_requests",
    "rightsize",
    "rightsize_summary",
    "slices",
    "unknown_profiles",
]
