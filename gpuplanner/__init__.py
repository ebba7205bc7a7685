"""Capacity planning for GPU clusters: GPUs needed, MIG layouts, forecasts, waits, costs and savings.

Public names are imported when they are first used, so that ``import gpuplanner`` takes almost no time.
"""

from gpuplanner._version import __version__ as __version__
from gpuplanner.core.libraries_plugins_and_workers import public_names
from gpuplanner.core.setting_rules_and_controls import NAME_RESOLVER_BY_KIND

__all__, __getattr__, __dir__ = public_names(__name__, __file__)


def _resolve_gpu_model(text: str) -> str:
    """Resolve the name of a GPU model in the catalogue."""
    from gpuplanner.hardware.catalog import resolve_gpu_model

    return resolve_gpu_model(text)


def _find_currency(code: str) -> str:
    """Return the code of a currency if it is known, else an empty text."""
    from gpuplanner.hardware.catalog import facts

    return code if code == "USD" or code in facts("currencies")["code"] else ""


# What a scenario names is looked up in the catalogue, of which the scenario itself knows nothing.
NAME_RESOLVER_BY_KIND.update(gpu_model=_resolve_gpu_model, currency=_find_currency)
