"""Which nodes came and went between two looks, or two months."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from gpuplanner.errors import printable
from gpuplanner.study.past.installed import in_service

NAMED = 3
"""Nodes that a sentence names; of more it says how many there are."""


def nodes_seen(inventory: pl.DataFrame | None, at: datetime) -> Mapping[str, int]:
    """GPUs of each node that was in service at an instant; none where there is no list of nodes."""
    if inventory is None:
        return {}
    there = in_service(inventory, at).sort("node")
    return dict(zip(there["node"].to_list(), there["gpus"].to_list(), strict=True))


def nodes_changed(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What became of the fleet, in words; nothing where it stayed as it was, or one of the two is not known.

    Examples
    --------
    >>> nodes_changed({"n0": 8, "n1": 8}, {"n1": 4, "n2": 8, "n3": 8})
    'The fleet changed: n2, n3 came (+16 GPUs); n0 went (-8 GPUs); n1 changed size (-4 GPUs): 20 GPUs, 16 before.'
    """
    if not before or not after:
        return ""
    parts = [
        (sorted(after.keys() - before.keys()), "came"),
        (sorted(before.keys() - after.keys()), "went"),
        (sorted(one for one in before.keys() & after.keys() if before[one] != after[one]), "changed size"),
    ]
    told = [
        f"{_named(names)} {words} ({sum(after.get(one, 0) - before.get(one, 0) for one in names):+,} GPUs)"
        for names, words in parts
        if names
    ]
    gpus, then = sum(after.values()), sum(before.values())
    return f"The fleet changed: {'; '.join(told)}: {gpus:,} GPUs, {then:,} before." if told else ""


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED
    told = ", ".join(printable(one) for one in names[:NAMED])
    return f"{told} and {rest:,} more" if rest > 0 else told
