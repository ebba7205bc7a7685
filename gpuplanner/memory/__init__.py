"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from gpuplanner.memory.hints import hints
from gpuplanner.memory.history import REQUEST, asked_and_used, boards_of
from gpuplanner.memory.request_lines import FORMS, Request, is_gres_type, request_lines
from gpuplanner.memory.requests import resolve_requests, slices, unknown_profiles
from gpuplanner.memory.rightsize import EVIDENCE, keep_requests, rightsize, rightsize_summary

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
