"""Why no plan can cost less: what the search leaves behind so that others can add it up again.

A bound rests on a linear program over all slots: GPUs on by slot and layout, instances missing, cuts; rows for
coverage, fleet, GPUs kept whole and changes. Rows called *floors* say that a few slots cost at least so much in
whole numbers. Prices of rows, whatever they are, prove a bound by weak duality; each floor has a tree of branchings
with prices at its leaves, which may use the floors before it. Nothing in a certificate needs to be believed: bad
prices prove little, and never anything false.

Names of rows and sums, with the slot counted from 0: ``coverage_S_K`` set K of requests, ``fleet_S``, ``whole_S``,
``change_S_L`` layout L, ``floor_S_W`` of W slots; sums to branch on ``on_S``, ``lacking_S_K`` and ``missing_S_P``
(instances short of set K, of profile P), ``cut_S``; single columns ``on_S_L``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplanner.planner.contract.plain_values import from_plain, is_count, texts

SEARCHED = "a search over all states, or over the whole horizon, that leaves no proof behind"
"""What a bound of a plan may rest on beyond its certificate: nobody can check that again."""


@dataclass(frozen=True, eq=False)
class CutProof:
    """Why slots cost at least so much.

    - ``first``: Slot at which the names in the tree begin; the same tree serves other slots of equal demand.
    - ``tree``: A leaf: prices by name. A branch: name, whole number, the tree with the sum at most that, and the tree
      with the sum above it.
    """

    first: int
    tree: Any


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Proof of a bound.

    - ``bound``: What it proves.
    - ``rest``: What a higher bound of the plan rests on: :data:`SEARCHED`, or empty if there is none.
    - ``layouts``: The layouts that the program has columns for: each other one is covered by one of them, no dearer.
    - ``requests``: Sets of profiles of the coverage rows.
    - ``floors``: First slot, number of slots and proof of each floor.
    - ``tree``: Prices of the rows of the program over all slots; or a tree with such prices at its leaves.
    """

    bound: float
    rest: str
    layouts: tuple[str, ...]
    requests: tuple[tuple[str, ...], ...]
    floors: tuple[tuple[int, int, CutProof], ...]
    tree: Any

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a tree that serves several floors stands once."""
        trees = list({id(proof): proof for *_, proof in self.floors}.values())
        place = {id(proof): index for index, proof in enumerate(trees)}
        return {
            "bound": self.bound,
            "rest": self.rest,
            "layouts": list(self.layouts),
            "requests": [list(names) for names in self.requests],
            "trees": [[proof.first, proof.tree] for proof in trees],
            "floors": [[start, width, place[id(proof)]] for start, width, proof in self.floors],
            "tree": self.tree,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Read what :meth:`to_dict` wrote. What it proves is a question for ``verify_bound``."""
        held = {name: value for name, value in values.items() if name != "trees"}
        return from_plain(
            cls,
            held,
            "plan file: certificate",
            layouts=texts,
            requests=lambda sets: tuple(map(texts, sets)),
            floors=lambda floors: _floors(floors, values["trees"]),
        )


def _floors(floors: Any, trees: Any) -> tuple[tuple[int, int, CutProof], ...]:  # noqa: ANN401 - as above
    numbers = [*(first for first, _ in trees), *(number for floor in floors for number in floor)]
    if not all(map(is_count, numbers)):
        text = "slots that are no whole numbers of at least 0"
        raise ValueError(text)
    proofs = [CutProof(first, tree) for first, tree in trees]
    return tuple((start, width, proofs[place]) for start, width, place in floors)
