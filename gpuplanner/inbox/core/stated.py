"""What a source says of itself, with types: the part of its provenance that other rooms read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuplanner.plain import of_plain


@dataclass(frozen=True)
class SourceFile:
    """A file that was read, by its name and the hash of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Where rows come from, and what became of them.

    The span of the observation is in UTC, as text; ``quarantined_gpu_hours`` [GPU h] are those that the jobs in
    quarantine state. Totals of its own and how it was read stand in the provenance alone, as the source wrote them.
    """

    source: str
    rows_in: int
    rows_kept: int
    rows_rejected: int
    span_start: str | None
    span_end: str | None
    time_zone: str | None = None
    files: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()
    gpuplanner: str = "of an unknown version"
    rows_quarantined: int = 0
    quarantined_gpu_hours: float = 0.0

    @classmethod
    def of(cls, provenance: Mapping[str, object]) -> Stated:
        """Read from a provenance; facts that are no field are passed over.

        Examples
        --------
        >>> counts = {"rows_in": 3, "rows_kept": 2, "rows_rejected": 1}
        >>> Stated.of({"source": "itp", **counts, "span_start": None, "span_end": None, "gpus": 8}).rows_kept
        2
        """
        return of_plain(cls, provenance)

    @property
    def span(self) -> tuple[datetime, datetime]:
        """First instant of the observation, and the first after it [UTC]."""
        begin, end = (
            datetime.fromisoformat(str(text)).astimezone(UTC) for text in (self.span_start, self.span_end)
        )
        return begin, end
