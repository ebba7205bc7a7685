"""What happened: GPU-hours, waits, phases, demand, right sizes and the fleet as observed."""

from gpuplanner.core.libraries_plugins_and_workers import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
