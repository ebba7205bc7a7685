"""Jobs into bins over time: how few GPUs hold jobs that start, end and take part of a GPU, with a proof.

``pack`` orders, ejects and prices (see :mod:`gpuplanner.packing.search`); ``verify_packing`` checks any packing
again without sharing code with the methods.

Examples
--------
Six jobs over six hours on GPUs of 100 % each; between hours 2 and 4 both GPUs are full:

>>> from gpuplanner.packing import PackingProblem, pack, verify_packing
>>> problem = PackingProblem(
...     starts=[0, 0, 1, 2, 2, 4], ends=[4, 2, 5, 4, 6, 6], sizes=[60, 60, 40, 60, 40, 60], capacity=100
... )
>>> found = pack(problem)
>>> found.bins, found.lower_bound, found.proven, verify_packing(found, problem)
(2, 2, True, [])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name
from gpuplanner.packing.problem import MigPackingProblem, PackingProblem
from gpuplanner.packing.read import read_instances, read_packing
from gpuplanner.packing.result import CostedPacking, Packing
from gpuplanner.packing.verify import verify_cost, verify_packing

if TYPE_CHECKING:
    from gpuplanner.packing.costs import pack_for_cost
    from gpuplanner.packing.search import pack

# The methods are compiled when they are imported, which only a search shall wait for.
_COMPILED = {"pack": "search", "pack_for_cost": "costs"}

__all__ = [
    "CostedPacking",
    "MigPackingProblem",
    "Packing",
    "PackingProblem",
    "pack",
    "pack_for_cost",
    "read_instances",
    "read_packing",
    "verify_cost",
    "verify_packing",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function of a module that is loaded late
    return late_name(__name__, _COMPILED, name)
