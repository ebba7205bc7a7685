"""Claims, a file each, which is found by itself; its name with dashes is the name of the claim."""

from __future__ import annotations

import importlib
import pkgutil

from gpuplanner.lab.claims.published_claim import PublishedClaim

FIRST = ("twenty-jobs", "harder", "late-phases", "memory", "heterogeneity")
"""What is promised of GPU planning as a whole; claims about its parts follow by the alphabet."""


def every_claim() -> dict[str, PublishedClaim]:
    """The ``CLAIM`` of each file of this folder, by its name; :data:`FIRST` come first.

    Examples
    --------
    >>> "twenty-jobs" in every_claim()
    True
    """
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    claims = [importlib.import_module(f"{__name__}.{module}").CLAIM for module in modules]
    found = {claim.name: claim for claim in claims}
    return {name: found[name] for name in FIRST} | found
