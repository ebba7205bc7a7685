"""Price of one GPU-hour: the user's own, or the median of the shipped list prices."""

from __future__ import annotations

from dataclasses import dataclass

from gpuplanner.catalog import gpu_price
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


def gpu_hour_price(board: str, *, own: float = 0.0, currency: str = "USD") -> Price:
    """Price of one GPU-hour of a board.

    Parameters
    ----------
    board : str
        Board of the catalogue.
    own : float
        The user's own price; 0 takes the catalogue's on-demand list prices.
    currency : str
        ISO 4217 code of ``own``.

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
    listed = gpu_price(board)
    if listed["currency"] != currency:
        text = message(
            "currency",
            f"{listed['currency']}, the currency of the list prices",
            currency,
            "Set price_usd_per_gpu_hour to your own price in that currency.",
        )
        raise ScenarioError(text)
    return Price(
        listed["value"],
        listed["low"],
        listed["high"],
        currency,
        f"median of {listed['rows']} on-demand list prices: {listed['source']}",
        listed["date"],
    )
