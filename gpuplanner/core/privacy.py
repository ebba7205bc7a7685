"""Pseudonyms for names, and small groups that are not shown by themselves."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import PrivacyError

KEY_BYTES = 32
SMALLEST_GROUP = 5
"""Fewest people of a group that a shared report shows by itself."""
_DIGITS = 10


def new_key(path: str | Path) -> None:
    """Write a new random key that its owner alone can read.

    Keep it apart from the data: who has both can tell by trial which pseudonym a name has. Without the key
    nobody can, and with the same key the same name gets the same pseudonym in every month.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     new_key(Path(folder) / "names.key")
    ...     len(read_key(Path(folder) / "names.key"))
    32
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        todo = "Keep the old key if there is one: pseudonyms depend on it."
        raise PrivacyError(str(path), "a new file", str(error.strerror), todo) from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
    except OSError as error:
        Path(path).unlink()
        todo = "Choose another place; no key was made."
        raise PrivacyError(str(path), "a place with free space", str(error.strerror), todo) from None


def read_key(path: str | Path) -> bytes:
    """Read a key, and refuse one that others can read."""
    try:
        file = Path(path)
        mode = file.stat().st_mode
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        todo = "Make one with 'gpuplanner keygen'."
        raise PrivacyError(str(path), "a key file", "none that can be read", todo) from None
    if os.name == "posix" and mode & 0o077:
        raise PrivacyError(str(path), "a file only you can read", oct(mode & 0o777), "chmod 600 it.")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        got = f"{len(text)} characters that are not that"
        expected = f"{2 * KEY_BYTES} hexadecimal digits"
        raise PrivacyError(str(path), expected, got, "Make one with 'gpuplanner keygen'.")
    return key


def pseudonym(name: str, key: bytes, kind: str) -> str:
    """Pseudonym of a name: the kind and ten digits of a keyed BLAKE2 hash.

    References
    ----------
    RFC 7693, The BLAKE2 Cryptographic Hash and Message Authentication Code.

    Examples
    --------
    >>> pseudonym("alice", bytes(32), "user")
    'user-e1085d492d'
    >>> pseudonym("alice", bytes(32), "tenant") == pseudonym("alice", bytes(32), "user")
    False
    """
    digest = hashlib.blake2b(name.encode(), key=key, person=kind.encode()[:16]).hexdigest()
    return f"{kind}-{digest[:_DIGITS]}"


def pseudonymise(table: pl.DataFrame, key: bytes, columns: Sequence[str]) -> pl.DataFrame:
    """Replace the names in some columns; nulls stay null.

    Examples
    --------
    >>> pseudonymise(pl.DataFrame({"user": ["alice", None]}), bytes(32), ["user"])["user"].to_list()
    ['user-e1085d492d', None]
    """
    for column in columns:
        names = table[column].drop_nulls().unique().sort()
        given = {name: pseudonym(name, key, column) for name in names}
        if len(set(given.values())) < len(given):
            todo = "Use another key."
            raise PrivacyError(f"column {column!r}", "a pseudonym for each name", "the same twice", todo)
        table = table.with_columns(pl.col(column).replace_strict(given, default=None, return_dtype=pl.String))
    return table


def rows_that_name(table: pl.DataFrame, names: Collection[str], *, but: Collection[str] = ()) -> dict[str, int]:
    """Rows of each column of text in which one of some names stands as a word, upper case or lower.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_name": ["alice_bert", "malice", None], "user": ["u-1", "u-1", "u-2"]})
    >>> rows_that_name(jobs, ["Alice"])
    {'job_name': 1}
    """
    telling = [name for name in names if len(name) > 1 and any(each.isalpha() for each in name)]
    found = {}
    for column in table.select(pl.col(pl.String)).columns if telling else ():
        if column in but:
            continue
        texts = table[column].drop_nulls().unique()
        texts = texts.filter(texts.str.contains_any(telling, ascii_case_insensitive=True))
        words = texts.str.extract_many(telling, ascii_case_insensitive=True, overlapping=True)
        pairs = zip(texts, words, strict=True)
        named = [text for text, inside in pairs if any(_stands(word, text) for word in inside)]
        if named:
            found[column] = int(table[column].is_in(named).sum())
    return found


def _stands(word: str, text: str) -> bool:
    """True if a word stands in a text with neither a letter nor a digit beside it; case does not matter."""
    alone = rf"(?<![^\W_]){re.escape(word.lower())}(?![^\W_])"
    return re.search(alone, text.lower()) is not None


def merge_small_groups(table: pl.DataFrame, by: str, people: str, *, smallest: int = SMALLEST_GROUP) -> pl.DataFrame:
    """Put the groups of too few people under one name, so that no figure speaks of one person.

    Where the small groups together are still too few, the next smallest joins them: what is left out of a
    table with a total could be computed from it. Rows without a person count for nobody, rows without a group
    are a group.

    Examples
    --------
    >>> jobs = pl.DataFrame({"tenant": [*"aaabc"], "user": [*"12345"]})
    >>> merge_small_groups(jobs, "tenant", "user", smallest=2)["tenant"].to_list()
    ['a', 'a', 'a', '(small groups)', '(small groups)']
    """
    return table.with_columns(merged_groups(table.lazy(), by, people, smallest))


def merged_groups(table: pl.LazyFrame, by: str, people: str, smallest: int) -> pl.Expr:
    """The column that :func:`merge_small_groups` puts in the place of `by`."""
    known = pl.col(people).drop_nulls().n_unique()
    sizes = table.group_by(by).agg(people=known).collect(engine="streaming").sort("people", by)
    few = sizes.filter(pl.col("people") < smallest).height

    def merged() -> pl.Expr:
        return pl.col(by).is_in(sizes[by].head(few).implode(), nulls_equal=True)

    while 0 < few < sizes.height and table.filter(merged()).select(known).collect().item() < smallest:
        few += 1
    return pl.when(merged()).then(pl.lit("(small groups)")).otherwise(by).alias(by)
