"""Schedules of inference services for KEDA: replicas by hour as cron triggers of a ScaledObject."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuplanner.core.serialization import to_yaml
from gpuplanner.decision.inference_services import PlannedService
from gpuplanner.planner.replica_schedule import HOURS_OF_DAY
from gpuplanner.report.change_bundle_parts import KUBERNETES_NAME_PATTERN, Bundle, FileStep, join_lines

MINUTES_PER_DAY = 24 * 60
"""Minutes of a day."""
SERVICES_FOLDER = "services"
"""Folder of the files of services in a change bundle."""


def list_cron_triggers(by_slot: Sequence[int], startup_s: float, zone: str) -> list[dict[str, str]]:
    """List the cron triggers of KEDA that keep the planned replicas; several at once count with the most.

    Each run of hours with at least so many replicas is a trigger, which begins `startup_s` earlier. Runs at the same
    hours of several days are one trigger.

    Parameters
    ----------
    by_slot : sequence of int
        Planned replicas by hour of the day, or of the week from Monday 00:00.
    startup_s : float
        Time from the start of a replica until it is ready. [s]
    zone : str
        Time zone of the hours.

    Examples
    --------
    >>> by_slot = [1] * 8 + [3] * 10 + [1] * 6
    >>> list_cron_triggers(by_slot, 300.0, "Europe/Berlin")[0]["start"]
    '55 7 * * *'
    """
    replicas, n_slots = np.asarray(by_slot), len(by_slot)
    lead_min = int(-(-startup_s // 60))
    days_by_spell: dict[tuple[int, int, int, int], list[int]] = {}
    for level in range(int(replicas.min()) + 1, int(replicas.max()) + 1):
        is_on = replicas >= level
        for slot in np.flatnonzero(is_on & ~np.roll(is_on, 1)).tolist():
            length = next(hours for hours in range(1, n_slots + 1) if not is_on[(slot + hours) % n_slots])
            start_min, end_min = 60 * slot - lead_min, 60 * (slot + length)
            day = start_min // MINUTES_PER_DAY
            spell = (start_min % MINUTES_PER_DAY, end_min % MINUTES_PER_DAY, end_min // MINUTES_PER_DAY - day, level)
            days_by_spell.setdefault(spell, []).append(day)
    level_by_times: dict[tuple[str, str], int] = {}
    for (start_min, end_min, days_later, level), days in sorted(days_by_spell.items()):
        ends = [day + days_later for day in days]
        first, last = ("*" if n_slots == HOURS_OF_DAY else _cron_days(numbers) for numbers in (days, ends))
        times = f"{start_min % 60} {start_min // 60} * * {first}", f"{end_min % 60} {end_min // 60} * * {last}"
        # Of triggers at the same times, the one with the most replicas is enough.
        level_by_times[times] = max(level, level_by_times.get(times, 0))
    return [
        {"timezone": zone, "start": start, "end": end, "desiredReplicas": str(level)}
        for (start, end), level in level_by_times.items()
    ]


def _cron_days(days: Sequence[int]) -> str:
    """Format days from Monday as days of the week of cron, in which Sunday is 0."""
    return ",".join(str(day) for day in sorted({(day + 1) % 7 for day in days}))


def make_scaled_object(planned: PlannedService, zone: str) -> dict[str, object]:
    """Make the ScaledObject of a service, whose Deployment has the name of the service."""
    name, schedule = planned.service.name, planned.schedule
    triggers = list_cron_triggers(schedule.by_slot.tolist(), schedule.startup_s, zone)
    return {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"name": name}, "minReplicaCount": int(schedule.by_slot.min()),
            "maxReplicaCount": schedule.peak,
            "triggers": [{"type": "cron", "metadata": trigger} for trigger in triggers],
        },
    }  # fmt: skip


def add_service_files(bundle: Bundle, planned_services: Sequence[PlannedService], zone: str) -> None:
    """Add the schedule of each service to a change bundle; names that Kubernetes does not allow are a warning."""
    for planned in planned_services:
        name = planned.service.name
        if not KUBERNETES_NAME_PATTERN.fullmatch(name):
            bundle.warnings.append(f"no schedule of service {name}: its name is not one of a Deployment")
            continue
        triggers = list_cron_triggers(planned.schedule.by_slot.tolist(), planned.schedule.startup_s, zone)
        if triggers:
            path, purpose = f"{SERVICES_FOLDER}/{name}-keda.yaml", f"replicas of {name} by hour, for KEDA"
            bundle.add(to_yaml(make_scaled_object(planned, zone)), FileStep.manifest(path, purpose))
        else:
            path = f"{SERVICES_FOLDER}/{name}-scale.sh"
            count = planned.schedule.peak
            text = f"#!/bin/sh\nkubectl scale deployment/{name} --replicas={count}\n"
            bundle.add(text, FileStep(path, f"{name} at {count} replicas around the clock", f"sh {path}"))


def make_service_bundle(planned_services: Sequence[PlannedService], zone: str) -> Bundle | None:
    """Make a change bundle of the schedules of services alone, where the fleet stays as it is; None without services.

    Parameters
    ----------
    planned_services : sequence of PlannedService
        The services.
    zone : str
        Time zone of the hours.
    """
    if not planned_services:
        return None
    bundle = Bundle()
    add_service_files(bundle, planned_services, zone)
    steps = (f"- `{step.do}`: {step.purpose}" for step in bundle.steps)
    lines = ["# Schedules of inference services", "", "The fleet stays as it is.", "", *steps]
    bundle.files["README.md"] = join_lines([*lines, *(f"- Not written: {text}" for text in bundle.warnings)])
    return bundle
