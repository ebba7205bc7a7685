"""Say how many GPUs are needed, cut how, for whom, by when, how sure that is, and what it saves.

The names below are loaded when they are first used, so that ``import gpuplanner`` costs next to nothing.
"""

from gpuplanner._version import __version__ as __version__
from gpuplanner.core.execution import public_names
from gpuplanner.core.scenario_fields import CATALOGUES

__all__, __getattr__, __dir__ = public_names(__name__, __file__)


def _find_board(text: str) -> str:
    from gpuplanner.hardware.catalog import find_any_board

    return find_any_board(text)


def _find_currency(code: str) -> str:
    from gpuplanner.hardware.catalog import facts

    return code if code == "USD" or code in facts("currencies")["code"] else ""


# What a scenario names is looked up in the catalogue, of which the scenario itself knows nothing.
CATALOGUES.update(gpu_model=_find_board, currency=_find_currency)
