"""Jobs and services before they run: memory, speed, slices, requests."""

from gpuplanner.core.execution import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
