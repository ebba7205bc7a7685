"""A plan of services as a file that can be checked alone: with what was measured and asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.text import to_json
from gpuplanner.planner.contract.plain_values import board_from_plain, to_plain
from gpuplanner.schemas.check import check
from gpuplanner.services.plan import Segment, ServicePlan
from gpuplanner.services.profiles import ServiceProfiles

FORMAT = "gpuplanner.services/1"

_WHERE = "file of a service plan"


def services_to_json(
    plan: ServicePlan, profiles: pl.DataFrame, rates: Mapping[str, float], latencies: Mapping[str, float]
) -> str:
    """Print a plan of services with its profiles, rates and latency limits; the same input gives the same bytes.

    Examples
    --------
    >>> from gpuplanner.services.verify import verify_services
    >>> from gpuplanner.services.search import plan_services
    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> profiles = pl.DataFrame([("bert", 1, 8, 1, 100.0, 0.08)], schema=columns, orient="row")
    >>> asked = {"bert": 340.0}, {"bert": 200.0}
    >>> text = services_to_json(plan_services(profiles, *asked), profiles, *asked)
    >>> verify_services(*services_from_json(text))
    []
    >>> verify_services(*services_from_json(text.replace("340.0", "440.0")))
    ['bert: 440 requests/s asked for, its instances serve 400']
    """
    values = plan.to_dict()
    del values["seconds"]
    asked = [
        {"service": name, "rate_per_s": rate, "latency_ms": latencies.get(name)}
        for name, rate in rates.items()
    ]
    measured = profiles.select(ServiceProfiles.column_names()).to_dicts()
    return to_json(
        {"format": FORMAT, **values, "board": to_plain(plan.board), "asked": asked, "measured": measured}
    )


def is_service_plan(text: str) -> bool:
    """Whether a text is a file of :func:`services_to_json`."""
    try:
        values = json.loads(text)
    except (RecursionError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def services_from_json(
    text: str,
) -> tuple[ServicePlan, pl.DataFrame, dict[str, float], dict[str, float]]:
    """Read what :func:`services_to_json` printed: plan, profiles, rates and latency limits."""
    try:
        values = json.loads(text)
        plan, asked = _plan_of(values), values["asked"]
        rates = {row["service"]: float(row["rate_per_s"]) for row in asked}
        latencies = {
            row["service"]: float(row["latency_ms"]) for row in asked if row["latency_ms"] is not None
        }
        types = {name: column.dtype for name, column in ServiceProfiles.columns().items()}
        profiles = pl.DataFrame(values["measured"], schema=types, orient="row")
    except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        if isinstance(error, ScenarioError):
            raise
        text_out = message(
            _WHERE, "JSON written by 'gpuplanner plan --services -o'", repr(error), "Make it anew."
        )
        raise ScenarioError(text_out) from error
    return plan, check(profiles, ServiceProfiles, where=_WHERE), rates, latencies


def _plan_of(values: dict[str, Any]) -> ServicePlan:
    segments = []
    for row in values["segments"]:
        parts = {name: row[name] for name in Segment.__dataclass_fields__}
        segments.append(Segment(**{**parts, "gpus": tuple(row["gpus"])}))
    names = ("latency_share", "gpus", "bound", "slices", "slices_bound")
    return ServicePlan(
        board=board_from_plain(values["board"]),
        segments=tuple(segments),
        layouts=tuple(values["layouts"]),
        seconds=0.0,
        **{name: values[name] for name in names},
    )
