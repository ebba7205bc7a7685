"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name

if TYPE_CHECKING:
    from gpuplanner.sizing.advice.hints import hints
    from gpuplanner.sizing.advice.request_lines import FORMS, Request, is_gres_type, request_lines
    from gpuplanner.sizing.past_use import REQUEST, asked_and_used, boards_of
    from gpuplanner.sizing.peak_trend import peak_trends
    from gpuplanner.sizing.profile_sizes import slices, smallest_of_compute, smallest_profile
    from gpuplanner.sizing.requests import resolve_requests, unknown_profiles
    from gpuplanner.sizing.right_profiles import EVIDENCE, keep_requests, rightsize
    from gpuplanner.sizing.shared_gpus import plugin_configs, sharing

# A row is predicted without boards, requests and traces, and shall not wait until all of it is loaded.
_HOME = {
    "EVIDENCE": "right_profiles",
    "FORMS": "advice.request_lines",
    "REQUEST": "past_use",
    "Request": "advice.request_lines",
    "asked_and_used": "past_use",
    "boards_of": "past_use",
    "hints": "advice.hints",
    "is_gres_type": "advice.request_lines",
    "keep_requests": "right_profiles",
    "peak_trends": "peak_trend",
    "plugin_configs": "shared_gpus",
    "request_lines": "advice.request_lines",
    "resolve_requests": "requests",
    "rightsize": "right_profiles",
    "sharing": "shared_gpus",
    "slices": "profile_sizes",
    "smallest_of_compute": "profile_sizes",
    "smallest_profile": "profile_sizes",
    "unknown_profiles": "requests",
}

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


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, _HOME, name)
