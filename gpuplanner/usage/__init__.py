"""What happened: GPU-hours, waits, phases, demand, right sizes and the fleet as observed."""

from gpuplanner.core.execution import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
