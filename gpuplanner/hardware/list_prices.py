"""gpuplanner.cost.showback: Price, gpu_hour_price."""

from __future__ import annotations

from dataclasses import dataclass

from gpuplanner.catalog.loader import gpu_price
from gpuplanner.errors import ScenarioError, message


@dataclass(frozen=True)
class Price:
    """One GPU-hour with its range, currency, source and date."""

    value: float
    low: float
    high: float
    currency: str
    source: str
    date: str


def gpu_hour_price(board: str, *, own: float = 0.0, currency: str = "USD", term: str = "on_demand") -> Price:
    """Price of one GPU-hour of a board.

    Parameters
    ----------
    board : str
        Board of the catalogue.
    own : float
        The user's own price; 0 takes the catalogue's list prices.
    currency : str
        ISO 4217 code of ``own``.
    term : {"on_demand", "spot"}
        Kind of purchase of the list prices.

    Returns
    -------
    Price

    Raises
    ------
    ScenarioError
        If the catalogue's prices are in another currency: nothing is converted without a dated rate.

    Examples
    --------
    >>> gpu_hour_price("H100-80GB-SXM5", own=2.5).source
    'own price'
    """
    if own > 0:
        return Price(own, own, own, currency, "own price", "as given")
    listed = gpu_price(board, term=term)
    if listed.currency != currency:
        expected = f"{listed.currency}, the currency of the list prices"
        todo = "Set price_usd_per_gpu_hour to your own price in that currency."
        raise ScenarioError(message("currency", expected, currency, todo))
    source = f"median of {listed.rows} {term.replace('_', '-')} list prices: {listed.source}"
    return Price(listed.value, listed.low, listed.high, currency, source, listed.date)
