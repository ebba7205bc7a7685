"""Rows for a trace from things that are no lines of a table: one record, or one reason, per item of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from gpuplanner.inbox.core.dataset import REJECTS
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.rows import RAW, Rows, typed
from gpuplanner.inbox.core.lines.text_file import TextFile

CONTROL = "a control character"

Record = Mapping[str, str | None]
"""Text of each column of the source that a thing gives; what is absent or None is missing."""


@dataclass
class Records:
    """Collects records and rejects, in their order.

    Attributes
    ----------
    columns : mapping of str to Field
        Column of the source → how to read it.
    """

    columns: Mapping[str, Field]
    _good: list[tuple[object, ...]] = field(default_factory=list)
    _bad: list[tuple[int, int, str, str]] = field(default_factory=list)

    def add(self, file: int, place: int, raw: str, record: Record) -> None:
        """Keep a record of the item at `place` of file number `file`; text that cannot be shown rejects it."""
        values = [record.get(name) for name in self.columns]
        hidden = [
            name for name, value in zip(self.columns, values, strict=True) if not (value or "").isprintable()
        ]
        if hidden:
            self.reject(file, place, raw, f"{hidden[0]}: {CONTROL}")
        else:
            self._good.append((file, place, printable(raw), *values))

    def reject(self, file: int, place: int, raw: str, reason: str) -> None:
        """Reject an item, with its reason."""
        self._bad.append((file, place, printable(reason), printable(raw)))

    def rows(self, files: Sequence[TextFile]) -> Rows:
        """Give all records their types; values that cannot be read reject their row.

        Examples
        --------
        >>> records = Records({"gpus": Field("gpus", "number")})
        >>> records.add(0, 1, "{...}", {"gpus": "8"})
        >>> records.add(0, 2, "{...}", {"gpus": "4"})
        >>> records.rows([]).good["gpus"].to_list()
        [8.0, 4.0]
        """
        texts = {RAW + name: pl.String for name in self.columns}
        empty = Rows(tuple(files), 0, pl.DataFrame(), pl.DataFrame(schema=REJECTS))
        names = empty.file_names()
        rejects = [(names[file], place, reason, raw) for file, place, reason, raw in self._bad]
        rows = Rows(
            files=tuple(files),
            count=len(self._good) + len(self._bad),
            good=pl.DataFrame(
                self._good,
                schema={"file": pl.UInt32, "line": pl.UInt32, "raw": pl.String, **texts},
                orient="row",
            ),
            rejects=pl.DataFrame(rejects, schema=REJECTS, orient="row"),
        )
        return typed(rows, self.columns)


def printable(text: str) -> str:
    r"""Text with a question mark for each character that cannot be shown.

    Examples
    --------
    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
