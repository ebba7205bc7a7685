"""How well changes were found: precision, recall and the Hausdorff distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

SURELY = timedelta(minutes=2)
SHARE = 0.01
"""A change is found if it lies within 2 minutes, or within 1 % of the length of the job, whichever is more."""


@dataclass(frozen=True)
class Score:
    """Changes found against the truth, of one job or summed over many.

    - ``found``, ``right``: Changes reported, and those of them that lie near a true one.
    - ``true``, ``hit``: True changes, and those of them that a reported one lies near.
    - ``hausdorff``: Greatest distance from a change of either set to the nearest of the other; None if one set is
      empty. Of many jobs, the greatest.
    """

    found: int = 0
    right: int = 0
    true: int = 0
    hit: int = 0
    hausdorff: timedelta | None = None

    @property
    def precision(self) -> float:
        """Share of the reported changes that are right; 1 if none was reported."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of the true changes that were found; 1 if there is none."""
        return self.hit / self.true if self.true else 1.0

    def __add__(self, other: Score) -> Score:
        known = [score.hausdorff for score in (self, other) if score.hausdorff is not None]
        return Score(
            self.found + other.found,
            self.right + other.right,
            self.true + other.true,
            self.hit + other.hit,
            max(known, default=None),
        )


def tolerance(length: timedelta, *, surely: timedelta = SURELY) -> timedelta:
    """How far from the truth a change may be reported.

    Examples
    --------
    >>> tolerance(timedelta(hours=1)), tolerance(timedelta(hours=10))
    (datetime.timedelta(seconds=120), datetime.timedelta(seconds=360))
    """
    return max(surely, SHARE * length)


def score_changes(found: Sequence[datetime], true: Sequence[datetime], within: timedelta) -> Score:
    """Compare changes that were found with the true ones.

    References
    ----------
    Truong, Oudre, Vayatis, "Selective review of offline change point detection methods", Signal Processing 167,
    2020, section 3: precision, recall and Hausdorff metric.

    Examples
    --------
    >>> from datetime import UTC
    >>> at = [datetime(2026, 2, 2, 9, minute, tzinfo=UTC) for minute in (10, 11, 40)]
    >>> score = score_changes(at[1:], at[:1], timedelta(minutes=2))
    >>> score.precision, score.recall, score.hausdorff
    (0.5, 1.0, datetime.timedelta(seconds=1800))
    """
    if not found or not true:
        return Score(found=len(found), true=len(true))
    origin = true[0]
    ours, theirs = (
        np.array([(instant - origin).total_seconds() for instant in instants]) for instants in (found, true)
    )
    apart = np.abs(ours[:, None] - theirs[None, :])
    to_true, to_found = apart.min(axis=1), apart.min(axis=0)
    near = within.total_seconds()
    return Score(
        len(found),
        int((to_true <= near).sum()),
        len(true),
        int((to_found <= near).sum()),
        timedelta(seconds=float(max(to_true.max(), to_found.max()))),
    )
