"""Thresholds and advice: rows with a source, shipped beside the code."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import polars as pl


@dataclass(frozen=True)
class Threshold:
    """One figure of the rules.

    Parameters
    ----------
    name : str
        What the rules call it.
    value : float
        In `unit`.
    unit, meaning, source, date : str
        What it is, and where it comes from.
    """

    name: str
    value: float
    unit: str
    meaning: str
    source: str
    date: str


@functools.cache
def load_thresholds() -> dict[str, Threshold]:
    """Thresholds of the rules, as shipped.

    Returns
    -------
    dict of str to Threshold
        Name → threshold.

    Examples
    --------
    >>> load_thresholds()["effective_sm"].value
    0.8
    """
    return {
        row["name"]: Threshold(**(row | {"value": float(row["value"])}))
        for row in _read("thresholds.csv").iter_rows(named=True)
    }


@functools.cache
def advice() -> pl.DataFrame:
    """What each signature means for the slice or board to choose.

    Returns
    -------
    polars.DataFrame
        ``bound, meaning, slice, board, source``, one row for each of :data:`gpuplanner.phases.signatures.BOUNDS`.

    Examples
    --------
    >>> advice().filter(bound="interconnect")["slice"][0]
    'do not cut: instances have no peer-to-peer between GPUs'
    """
    return _read("advice.csv")


def _read(file: str) -> pl.DataFrame:
    path = resources.files("gpuplanner.phases.signatures") / file
    return pl.read_csv(path.read_bytes(), infer_schema=False)
