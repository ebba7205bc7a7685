"""Prices, showback, energy, carbon and capacity purchases."""

from gpuplanner.core.libraries_plugins_and_workers import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
