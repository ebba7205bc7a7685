"""Pseudonyms for names, and merging of groups that are too small to be shown."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import PrivacyError

PSEUDONYM_KEY_BYTES = 32
"""Length of a key for pseudonyms. [B]"""
_PSEUDONYM_HEX_DIGITS = 10
"""Number of hexadecimal digits of a pseudonym."""


def write_new_key(path: str | Path) -> None:
    """Write a new random key to a file that only its owner can read.

    Keep it apart from the data: with both, pseudonyms can be resolved by trying names; without the key they cannot.
    With the same key a name has the same pseudonym in every month.

    Raises
    ------
    PrivacyError
        If the file exists or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_new_key(Path(folder) / "names.key")
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
            file.write(secrets.token_hex(PSEUDONYM_KEY_BYTES) + "\n")
    except OSError as error:
        Path(path).unlink()
        todo = "Choose another place; no key was made."
        raise PrivacyError(str(path), "a place with free space", str(error.strerror), todo) from None


def read_key(path: str | Path) -> bytes:
    """Read a key file; a file that other users can read is rejected.

    Raises
    ------
    PrivacyError
        If the file is missing, readable by others, or not a key.
    """
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
    if len(key) != PSEUDONYM_KEY_BYTES:
        got = f"{len(text)} characters that are not that"
        expected = f"{2 * PSEUDONYM_KEY_BYTES} hexadecimal digits"
        raise PrivacyError(str(path), expected, got, "Make one with 'gpuplanner keygen'.")
    return key


def make_pseudonym(name: str, key: bytes, kind: str) -> str:
    """Make the pseudonym of a name: its kind and ten digits of a keyed BLAKE2 hash.

    References
    ----------
    RFC 7693, The BLAKE2 Cryptographic Hash and Message Authentication Code.

    Examples
    --------
    >>> make_pseudonym("alice", bytes(32), "user")
    'user-e1085d492d'
    >>> make_pseudonym("alice", bytes(32), "tenant") == make_pseudonym("alice", bytes(32), "user")
    False
    """
    digest = hashlib.blake2b(name.encode(), key=key, person=kind.encode()[:16]).hexdigest()
    return f"{kind}-{digest[:_PSEUDONYM_HEX_DIGITS]}"


def pseudonymise(table: pl.DataFrame, key: bytes, columns: Sequence[str]) -> pl.DataFrame:
    """Replace the names in some columns by pseudonyms; nulls stay null.

    Examples
    --------
    >>> pseudonymise(pl.DataFrame({"user": ["alice", None]}), bytes(32), ["user"])["user"].to_list()
    ['user-e1085d492d', None]
    """
    for column in columns:
        names = table[column].drop_nulls().unique().sort()
        pseudonyms = {name: make_pseudonym(name, key, column) for name in names}
        if len(set(pseudonyms.values())) < len(pseudonyms):
            raise PrivacyError(f"column {column!r}", "a pseudonym for each name", "the same twice", "Use another key.")
        table = table.with_columns(pl.col(column).replace_strict(pseudonyms, default=None, return_dtype=pl.String))
    return table


def count_rows_with_names(
    table: pl.DataFrame, names: Collection[str], *, except_columns: Collection[str] = ()
) -> dict[str, int]:
    """Count, by text column, the rows that contain one of the names as a word (case ignored).

    Parameters
    ----------
    table : polars.DataFrame
        Table to search.
    names : collection of str
        Names to search for; names of one character or without letters are skipped.
    except_columns : collection of str
        Columns that are not searched.

    Returns
    -------
    dict
        Number of rows by column, for columns with at least one.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_name": ["alice_bert", "malice", None], "user": ["u-1", "u-1", "u-2"]})
    >>> count_rows_with_names(jobs, ["Alice"])
    {'job_name': 1}
    """
    searchable_names = [name for name in names if len(name) > 1 and any(character.isalpha() for character in name)]
    row_counts = {}
    for column in table.select(pl.col(pl.String)).columns if searchable_names else ():
        if column in except_columns:
            continue
        texts = table[column].drop_nulls().unique()
        texts = texts.filter(texts.str.contains_any(searchable_names, ascii_case_insensitive=True))
        words = texts.str.extract_many(searchable_names, ascii_case_insensitive=True, overlapping=True)
        pairs = zip(texts, words, strict=True)
        texts_with_names = [
            text for text, words_inside in pairs if any(_contains_word(word, text) for word in words_inside)
        ]
        if texts_with_names:
            row_counts[column] = int(table[column].is_in(texts_with_names).sum())
    return row_counts


def _contains_word(word: str, text: str) -> bool:
    """Whether a text contains a word with neither a letter nor a digit next to it (case ignored)."""
    pattern = rf"(?<![^\W_]){re.escape(word.lower())}(?![^\W_])"
    return re.search(pattern, text.lower()) is not None


def merge_small_tenants_expression(jobs: pl.LazyFrame, min_people: int) -> pl.Expr:
    """Make the expression that renames tenants of too few users to ``(small groups)``, so that none tells of a person.

    If the small tenants together are still too few, the next smallest joins them: otherwise their number could be
    computed from a total. Rows without a user count no user; rows without a tenant are a tenant.

    Parameters
    ----------
    jobs : polars.LazyFrame
        Table with the columns ``tenant`` and ``user``.
    min_people : int
        Smallest tenant that keeps its name. [users]

    Examples
    --------
    >>> jobs = pl.DataFrame({"tenant": [*"aaabc"], "user": [*"12345"]})
    >>> jobs.select(merge_small_tenants_expression(jobs.lazy(), 2))["tenant"].to_list()
    ['a', 'a', 'a', '(small groups)', '(small groups)']
    """
    users = pl.col("user").drop_nulls().n_unique()
    sizes = jobs.group_by("tenant").agg(people=users).collect(engine="streaming").sort("people", "tenant")
    n_small_tenants = sizes.filter(pl.col("people") < min_people).height

    def is_small() -> pl.Expr:
        """Whether a row belongs to one of the smallest `n_small_tenants` tenants."""
        return pl.col("tenant").is_in(sizes["tenant"].head(n_small_tenants).implode(), nulls_equal=True)

    while 0 < n_small_tenants < sizes.height and jobs.filter(is_small()).select(users).collect().item() < min_people:
        n_small_tenants += 1
    return pl.when(is_small()).then(pl.lit("(small groups)")).otherwise("tenant").alias("tenant")
