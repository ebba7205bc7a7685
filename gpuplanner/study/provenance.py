"""What a study rests on: inputs with hashes, versions, prices and assumptions with their sources, and what to doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuplanner._version import __version__
from gpuplanner.catalog.loader import Parameter, parameter
from gpuplanner.cost.energy import CarbonFactor, PowerModel
from gpuplanner.hardware.list_prices import Price
from gpuplanner.inbox.core.dataset import (Stated)
from gpuplanner.ledger.account import ONE_POOL, assumptions
from gpuplanner.study.decision.policies import MEANINGS
from gpuplanner.study.future.money import Money
from gpuplanner.study.past.history import History

ASSUMED = ("pue", "host_factor", "idle_fraction", "active_base_fraction", "active_slope_fraction")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a study rests on.

    - ``cautions``, ``not_stated``, ``doubts``: Sentences: what to know before trusting a figure, what is left out and
      why, what speaks against the figures.
    - ``gpuplanner``: Version that made the study.
    - ``inputs``: Hash of each input file.
    - ``trace``: What the inbox kept of where the jobs come from; :attr:`read` is what of it is told.
    - ``price``, ``power``, ``carbon``, ``pue``: What money, energy and carbon rest on; None where it is not known.
    - ``assumptions``: Assumed figures with range and source.
    - ``policies``: What each way to run a fleet means.
    - ``search``: How the search for the plan ended, in words: files of plans hold only what can be checked.
    """

    cautions: tuple[str, ...]
    not_stated: tuple[str, ...]
    doubts: tuple[str, ...]
    gpuplanner: str
    inputs: Mapping[str, str]
    trace: Mapping[str, object]
    price: Price | None
    power: PowerModel | None
    carbon: CarbonFactor
    pue: float
    assumptions: Mapping[str, Parameter]
    policies: Mapping[str, str]
    search: str = ""

    @property
    def read(self) -> Stated:
        """Where the jobs come from, and what became of the rows."""
        return Stated.of(self.trace)


def provenance_of(
    known: History,
    priced: Money,
    inputs: Mapping[str, str],
    cautions: Sequence[str],
    doubts: Sequence[str],
    search: str,
) -> Provenance:
    """What a study of some history rests on."""
    return Provenance(
        cautions=(*_cautions(known, priced), *cautions),
        not_stated=priced.missing,
        doubts=tuple(doubts),
        gpuplanner=__version__,
        inputs=inputs,
        trace=known.trace.provenance,
        price=priced.price,
        power=priced.power,
        carbon=priced.carbon,
        pue=priced.pue,
        assumptions={name: parameter(name) for name in ASSUMED},
        policies=MEANINGS,
        search=search,
    )


def _cautions(known: History, priced: Money) -> list[str]:
    """What a reader must know before trusting a figure, in sentences."""
    texts = assumptions(known.trace.jobs, known.trace.inventory, start=known.begin, end=known.end)
    if known.fleet.name is None and len(known.fleet.installed.words) > 1:
        # The remark says the same of the boards, and what follows from it.
        texts = [text for text in texts if text != ONE_POOL]
    texts += known.fleet.remarks()
    texts += [text for text in [known.trace.stated.shortened] if text]
    texts += known.how_played()
    if known.fleet.in_catalogue:
        texts += priced.missing
    return texts
