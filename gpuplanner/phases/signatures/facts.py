"""Thresholds and advice: rows with a source, shipped beside the code, and exchangeable by the user's own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.names import resolve


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


def load_thresholds(changes: Mapping[str, float] | None = None) -> dict[str, Threshold]:
    """Thresholds of the rules, as shipped or with values of the user's own.

    Parameters
    ----------
    changes : mapping of str to float, optional
        Name → value to use instead; the source of such a row says so.

    Returns
    -------
    dict of str to Threshold
        Name → threshold.

    Raises
    ------
    ScenarioError
        If a name is unknown; the message lists the nearest.

    Examples
    --------
    >>> load_thresholds()["effective_sm"].value
    0.8
    >>> load_thresholds({"bound_dram": 0.6})["bound_dram"].source
    'set by the user; shipped value 0.5'
    """
    known = dict(_shipped())
    for given, value in (changes or {}).items():
        name = resolve(given, known, what="threshold", error=ScenarioError)
        source = f"set by the user; shipped value {known[name].value:g}"
        known[name] = replace(known[name], value=float(value), source=source)
    return known


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


@functools.cache
def _shipped() -> dict[str, Threshold]:
    return {
        row["name"]: Threshold(**(row | {"value": float(row["value"])}))
        for row in _read("thresholds.csv").iter_rows(named=True)
    }


def _read(file: str) -> pl.DataFrame:
    path = resources.files("gpuplanner.phases.signatures") / file
    return pl.read_csv(path.read_bytes(), infer_schema=False)
