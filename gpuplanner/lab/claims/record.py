"""What was measured, as JSON and the page give it."""

from __future__ import annotations

from typing import Any

import polars as pl

from gpuplanner.lab.claims.published_claim import Measured, PublishedClaim


def record_of(claim: PublishedClaim, measured: Measured) -> dict[str, Any]:
    """The claim, its verdict and every figure, as plain values; what is not a number is null.

    Examples
    --------
    >>> claim = PublishedClaim("a", "A", "It is so", "A paper", "seeds", "no time", lambda given: Measured("holds", ""))
    >>> record_of(claim, Measured("holds", "It was seen"))["verdict"]
    'holds'
    """
    return claim.facts() | {
        "verdict": measured.verdict,
        "why": measured.why,
        "figures": _rows(measured.figures),
        "tables": {title: _rows(frame) for title, frame in measured.tables.items()},
        "remarks": list(measured.remarks),
    }


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.with_columns(pl.selectors.float().fill_nan(None)).to_dicts()
