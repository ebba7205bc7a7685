"""gpuplanner.inbox.telemetry.holders: DEVICE_KEY."""

from __future__ import annotations

DEVICE_KEY = ("node", "gpu", "instance")
