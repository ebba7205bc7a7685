"""Lines with fields in quotation marks: quickly where every field stands in them, else one by one."""

from __future__ import annotations

import csv

import polars as pl

UNIT_SEPARATOR = "\x1f"
"""Stands between the fields of a line once its quotation marks are gone."""

SOME = 8192
"""Lines that are cut at a time, since memory of small pieces is used again; so many also tell whether cells repeat."""


def all_quoted(
    lines: pl.Series, separator: str, count: int, marks: int | None = None
) -> tuple[pl.DataFrame, pl.Series]:
    r"""Fields of lines that surely have so many, each of them in quotation marks.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', '"a","b'])
    >>> cells, sound = all_quoted(lines, ",", 2)
    >>> cells.filter(sound).rows()
    [('a', 'b "c", d')]
    """
    parts = (lines[at : at + SOME] for at in range(0, max(len(lines), 1), SOME))
    cells = pl.concat(part.str.splitn(f'"{separator}"', count).struct.unnest() for part in parts)
    first, last = cells.to_series(0), cells.to_series(-1)
    sound = (first.str.starts_with('"') & last.str.ends_with('"')).fill_null(False)
    cells = cells.with_columns(first.str.strip_prefix('"'))
    whole = sound
    if _come_again(last) or (last.str.find('"', literal=True) < last.str.len_bytes() - 1).any():
        bare, held = _without_twins(last)
        sound = sound & bare.is_not_null()
    else:
        bare, held = last.str.strip_suffix('"'), pl.Series([1]).new_from_index(0, len(last))
    if marks is not None:
        marks -= int(held.filter(whole).sum()) + (2 * count - 1) * int(whole.sum())
        marks -= int(lines.filter(~whole).str.count_matches('"', literal=True).sum())
    for cell in cells.iter_columns() if marks != 0 else ():
        if cell.name != last.name and cell.str.contains('"', literal=True).any():
            among, _ = _without_twins(cell + '"')
            cells, sound = cells.with_columns(among), sound & among.is_not_null()
    return cells.with_columns(bare), sound


def _come_again(cells: pl.Series) -> bool:
    """True if the same few cells, such as labels of devices, come again and again: each is then looked at once."""
    return 2 * cells.head(SOME).n_unique() < min(SOME, len(cells))


def _without_twins(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Cells without the mark at their end and with one mark for two, and the marks in each.

    Null where a mark is left alone: the line was cut in the wrong places.
    """
    text, bare = pl.col(cells.name).str.strip_suffix('"'), pl.col("bare")
    marks, pairs = text.str.count_matches('"', literal=True), text.str.len_bytes() - bare.str.len_bytes()
    table = (
        cells.unique()
        .to_frame()
        .with_columns(bare=text.str.replace_all('""', '"', literal=True))
        .with_columns(bare=pl.when(marks == 2 * pairs).then(bare), marks=marks + 1)
    )
    joined = cells.to_frame().join(table, on=cells.name, how="left", maintain_order="left")
    return joined["bare"].alias(cells.name), joined["marks"]


def unquoted(lines: pl.Series, separator: str) -> pl.Series:
    r"""Lines with quoted fields, with a separator that no field contains; null if a quote is not closed.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', "a,b", '"a,b'])
    >>> unquoted(lines, ",").to_list()
    ['a\x1fb "c", d', 'a\x1fb,c', 'a\x1fb', None]
    """
    text = lines.str.replace_all(separator, UNIT_SEPARATOR, literal=True)
    places = lines.str.contains('"', literal=True).arg_true()
    if places.is_empty():
        return text
    by_one = [cut_by_csv(line, separator) for line in lines.gather(places).to_list()]
    texts = [None if fields is None else UNIT_SEPARATOR.join(fields) for fields in by_one]
    return text.scatter(places, pl.Series(texts, dtype=pl.String))


def cut_by_csv(line: str, separator: str) -> list[str] | None:
    """Fields of a line; None if a quotation mark is not closed."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error:
        return None
