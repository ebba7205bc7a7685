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
_kept: OrderedDict[bytes, tuple[Outcome, int]] = OrderedDict()
_lock = Lock()


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
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key][0]
    found = play(requests, fleet, **how)
    found.start_s.flags.writeable = False
    size = found.start_s.nbytes + int(found.on.estimated_size() + found.held.estimated_size())
    with _lock:
        _kept[key] = (found, size)
        while len(_kept) > 1 and sum(each for _, each in _kept.values()) > MOST_BYTES:
            _kept.popitem(last=False)
    return found


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
