"""A telemetry folder that grows: only files with new content are read, only months that they touch are written."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.files import sole_writer
from gpuplanner.inbox.core.folder import replace_folder
from gpuplanner.inbox.core.growth import TERMS, files_before, linked, require_terms, terms_of
from gpuplanner.inbox.core.text_file import fingerprint
from gpuplanner.inbox.core.trace import SUMMARY
from gpuplanner.inbox.registry import AUTO, name_of
from gpuplanner.inbox.telemetry.overlay import Grown, grow
from gpuplanner.inbox.telemetry.sources import SOURCES, detect, read
from gpuplanner.inbox.telemetry.store import (
    FILE,
    MARK,
    MONTH,
    PARTS,
    by_month,
    months,
    open_whole,
    tables_of,
    write_month,
)

LASTING = ("tz", "columns")
"""Options that must be the same in every run; the others tell of the files of one run."""

NUMBERED = frozenset({"dcgm-exporter"})
"""Sources whose files, where they carry no times, are numbered through all that are given."""


@dataclass(frozen=True, eq=False)
class Appended:
    """What a run did to a folder.

    Attributes
    ----------
    quality : polars.DataFrame
        Of all that the folder holds now.
    provenance : mapping
        Of all that the folder holds now.
    added, unchanged : tuple of str
        Names of the files that were read, and of those whose content was there already.
    months : tuple of str
        Months that were written, ``2026-01``; the others keep their bytes.
    """

    quality: pl.DataFrame
    provenance: Mapping[str, Any]
    added: tuple[str, ...]
    unchanged: tuple[str, ...]
    months: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The seven facts to show first, of all that the folder holds now."""
        return {key: self.provenance[key] for key in SUMMARY}

    def news(self) -> str:
        """One line: what was done, or that there was nothing to do."""
        if not self.added:
            return f"nothing to do: {len(self.unchanged)} file(s) read before, none new"
        written = f"months written: {', '.join(self.months)}" if self.months else "no month changed"
        return f"{len(self.added)} file(s) added, {len(self.unchanged)} read before; {written}"


def append(
    source: str,
    paths: Sequence[str | Path],
    directory: str | Path,
    **hints: Any,  # noqa: ANN401 - fields of Hints
) -> Appended:
    r"""Add telemetry to a folder; files whose content it knows are not read again, whatever they are called now.

    The new files of a run are read together, as by :func:`gpuplanner.inbox.telemetry.read`. Where they tell of a device
    and an instant that the folder knows, the folder's word counts, see :func:`~.overlay.overlay`.
    So the folder holds the samples that reading all files at once, in the same order, would have given, provided
    that no two runs share what makes one sample: both directions of a link, without which its traffic stays unknown,
    or the readings of one round of a source whose rounds take seconds, which stay two samples.

    Parameters
    ----------
    source : str
        As in :func:`gpuplanner.inbox.telemetry.read`.
    paths : sequence of str or Path
        Files of that source. Files that hold different metrics of the same span belong into one run.
    directory : str or Path
        A folder that this function made, or a new or empty one.
    **hints
        As in :func:`gpuplanner.inbox.telemetry.read`: ``tz`` and ``columns`` the same in every run, the others as they
        hold for the files of this one.

    Returns
    -------
    Appended
        What was done, with quality and provenance of the whole. If nothing is new, nothing is written.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, the folder was not made by this function or on other terms, or pages of an exporter
        without times are given. Nothing is changed then.
    OutputError
        If the folder cannot be written, or another run is writing it.

    Examples
    --------
    >>> import tempfile
    >>> head = "timestamp, index, power.draw [W]\n"
    >>> with tempfile.TemporaryDirectory() as place:
    ...     log, store = Path(place) / "n1.csv", Path(place) / "store"
    ...     _ = log.write_text(head + "2026/01/31 23:59:00, 0, 400 W\n")
    ...     first = append("nvidia-smi", [log], store, tz="UTC")
    ...     again = append("nvidia-smi", [log], store, tz="UTC")
    ...     _ = log.write_text(head + "2026/01/31 23:59:00, 0, 400 W\n2026/02/01 00:00:00, 0, 410 W\n")
    ...     grown = append("nvidia-smi", [log], store, tz="UTC")
    >>> again.news(), grown.months, grown.summary()["rows_rejected"]
    ('nothing to do: 1 file(s) read before, none new', ('2026-02',), 1)
    """
    directory = Path(directory)
    with sole_writer(directory):
        before, told = files_before(directory, MARK, "telemetry")
        hashes = {sha256 for _, sha256 in before}
        fresh = [path for path in paths if fingerprint(path) not in hashes]
        unchanged = tuple(file_name(path) for path in paths if path not in fresh)
        name = str(told["source"]) if source == AUTO and told and not fresh else None
        detected = functools.partial(detect, columns=hints.get("columns"))
        name = name or name_of(source, fresh, SOURCES, detected)
        given = {hint: value for hint, value in hints.items() if value is not None}
        terms = terms_of(name, {hint: given.get(hint) for hint in LASTING})
        require_terms(directory, told, terms)
        if name in NUMBERED and given.keys() & {"origin", "interval_s"}:
            expected = "pages that carry their times"
            todo = "Scrape Prometheus instead, or give all pages at once, without --append."
            raise TraceFormatError(message(f"source {name!r}", expected, "an origin to count from", todo))
        if not fresh:
            known = open_whole(directory)
            return Appended(known.quality, known.provenance, (), unchanged)
        new = read(name, fresh, **given)
        if before:
            grown = grow(directory, new, by_metric=SOURCES[name].by_metric)
        else:
            grown = Grown(tables_of(new), new.quality, new.provenance, by_month(new.samples))
        provenance = {**grown.provenance, TERMS: terms}
        kept = {month: path for month, path in months(directory).items() if month not in grown.months}

        def fill(folder: Path) -> None:
            for month, path in kept.items():
                (folder / PARTS / month).mkdir(parents=True)
                linked(path, folder / PARTS / month / FILE)
            for month, samples in grown.months.items():
                write_month(samples, folder / PARTS / month)

        replace_folder(directory, MARK, grown.tables, grown.quality, provenance, more=fill)
    added = tuple(file_name(path) for path in fresh)
    written = tuple(month.removeprefix(MONTH) for month in grown.months)
    return Appended(grown.quality, provenance, added, unchanged, written)
