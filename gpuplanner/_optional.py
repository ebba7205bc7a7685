"""Import optional libraries when they are used, with one clear line when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from gpuplanner.errors import MissingDependencyError


def import_optional(name: str, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Import a library that belongs to an extra.

    Parameters
    ----------
    name : str
        Dotted module name, for example ``"altair"``.
    extra : str
        The extra of ``pyproject.toml`` that installs it.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingDependencyError
        If the library is not installed; the message names the extra.

    Examples
    --------
    >>> import_optional("json", extra="plot").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (
            f"{name} is not installed; this feature needs it. Install the extra: "
            f"pip install 'gpuplanner[{extra}]' ({error})"
        )
        raise MissingDependencyError(missing) from error
