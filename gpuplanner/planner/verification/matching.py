"""Matching requests to instances by augmenting paths: the checker's own way, shared with no method."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence


class Matching:
    """A growing assignment of requests to instances, by profile and count.

    Parameters
    ----------
    able : sequence of sequence of str
        For each request profile, the instance profiles that can serve it.
    instances : mapping of str to int
        Instances there are of each profile.

    Examples
    --------
    >>> matching = Matching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 3), matching.serve(0, 1)
    (3, 0)
    >>> matching = Matching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 2), matching.serve(0, 1)
    (2, 1)
    """

    def __init__(self, able: Sequence[Sequence[str]], instances: Mapping[str, int]) -> None:
        self.able = able
        self.free = dict(instances)
        self.used: list[dict[str, int]] = [dict.fromkeys(names, 0) for names in able]

    def serve(self, request: int, wanted: int) -> int:
        """Serve more requests of one profile, moving others aside where that helps; say how many."""
        served = 0
        while served < wanted:
            path = self._path(request)
            if path is None:
                break
            amount = min(wanted - served, self.free[path[-1][1]])
            # Along the path, each request profile but the first gives up the instances of the step before.
            for (_, name), (mover, _) in itertools.pairwise(path):
                amount = min(amount, self.used[mover][name])
            self.free[path[-1][1]] -= amount
            for step, (taker, name) in enumerate(path):
                self.used[taker][name] += amount
                if step + 1 < len(path):
                    self.used[path[step + 1][0]][name] -= amount
            served += amount
        return served

    def _path(self, request: int) -> list[tuple[int, str]] | None:
        """Shortest chain of (request profile, instance profile it takes) that ends at a free instance."""
        came: dict[str, tuple[int, str | None]] = {}
        queue: deque[tuple[int, str | None]] = deque([(request, None)])
        asked = {request}
        while queue:
            taker, via = queue.popleft()
            for name in self.able[taker]:
                if name in came or name not in self.free:
                    continue
                came[name] = (taker, via)
                if self.free[name]:
                    return self._trace(name, came)
                for other, used in enumerate(self.used):
                    if other not in asked and used.get(name):
                        asked.add(other)
                        queue.append((other, name))
        return None

    @staticmethod
    def _trace(name: str, came: Mapping[str, tuple[int, str | None]]) -> list[tuple[int, str]]:
        path = []
        at: str | None = name
        while at is not None:
            taker, via = came[at]
            path.append((taker, at))
            at = via
        return path[::-1]
