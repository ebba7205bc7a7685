"""Plays of requests on a fleet, remembered while the process lives: another limit asks for most of them again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Any

import numpy as np

from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, Outcome, play

MOST_BYTES = 256 << 20
"""What is remembered holds at most so much; what was not asked for longest goes first."""


class Kept:
    """Outcomes by the digest of what was asked, the one that was asked for last at the end."""

    def __init__(self) -> None:
        self.outcomes: OrderedDict[bytes, Outcome] = OrderedDict()
        self.held = 0  # bytes: adding them up at every play would take longer than a small play
        self._lock = Lock()

    def get(self, key: bytes) -> Outcome | None:
        """What came of it, if it is known."""
        with self._lock:
            if key in self.outcomes:
                self.outcomes.move_to_end(key)
            return self.outcomes.get(key)

    def put(self, key: bytes, found: Outcome) -> None:
        """Remember it, and forget what was not asked for longest where all is too much."""
        with self._lock:
            if key not in self.outcomes:
                self.held += _size(found)
            self.outcomes[key] = found
            while self.held > MOST_BYTES and len(self.outcomes) > 1:
                self.held -= _size(self.outcomes.popitem(last=False)[1])


_kept = Kept()


def played(requests: NodeRequests, fleet: NodeFleet, **how: Any) -> Outcome:  # noqa: ANN401 - as play takes them
    """As :func:`gpuplanner.simulate.nodes.play`, once for the same jobs, nodes and rules; nobody may change it.

    Examples
    --------
    >>> asked = NodeRequests([0, 1], [0, 1], [9, 9], [9, 9], [0, 0], [8, 8], [1, 1])
    >>> played(asked, NodeFleet.whole([8])) is played(asked, NodeFleet.whole([8]))
    True
    """
    mark = hashlib.blake2b(digest_size=20)
    _feed(mark, (requests, fleet, how))
    key = mark.digest()
    found = _kept.get(key)
    if found is None:
        found = play(requests, fleet, **how)
        found.start_s.flags.writeable = False
        _kept.put(key, found)
    return found


def kept_plays() -> dict[bytes, Outcome]:
    """Plays that are at hand, by what was asked."""
    return dict(_kept.outcomes)


def keep_plays(found: Mapping[bytes, Outcome]) -> None:
    """Have plays at hand that another process made."""
    for key, outcome in found.items():
        outcome.start_s.flags.writeable = False
        _kept.put(key, outcome)


def _size(found: Outcome) -> int:
    return found.start_s.nbytes + int(found.on.estimated_size() + found.held.estimated_size())


def _feed(mark: Any, value: object) -> None:  # noqa: ANN401 - hashlib names no type
    """Add a value to a digest, such that other values give another one."""
    if isinstance(value, np.ndarray):
        mark.update(f"{value.dtype}{value.shape}".encode())
        mark.update(np.ascontiguousarray(value).data)
    elif is_dataclass(value):
        _feed(mark, [getattr(value, one.name) for one in fields(value)])
    elif isinstance(value, Mapping):
        _feed(mark, list(value.items()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        mark.update(f"[{len(value)}".encode())
        for each in value:
            _feed(mark, each)
    else:
        mark.update(f"{value!r};".encode())
