"""MIG layouts over time, temporal bin packing, inference services on slices."""

from gpuplanner.core.libraries_plugins_and_workers import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
