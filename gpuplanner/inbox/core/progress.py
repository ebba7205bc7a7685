"""How far long reading has come, told on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

BytesRead = Callable[[int, int], object]
"""Is told how many bytes of how many were read."""

_WATCHER: ContextVar[BytesRead | None] = ContextVar("watcher", default=None)
FROM_BYTES = 64 << 20
"""Less is read before anyone wonders."""

WIDTH = 30


def tell_progress(done: int, total: int) -> None:
    """Say that so many bytes of all were read, to whoever watches."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(done, total)


@contextmanager
def watched_by(watcher: BytesRead | None) -> Iterator[None]:
    """Let somebody be told of all that is read inside.

    Examples
    --------
    >>> seen = []
    >>> with watched_by(lambda done, total: seen.append((done, total))):
    ...     tell_progress(1, 2)
    >>> tell_progress(2, 2)
    >>> seen
    [(1, 2)]
    """
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[None]:
    """Show on stderr how far reading has come, if that is a terminal and there is much to read."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    shown = ""

    def show(done: int, total: int) -> None:
        nonlocal shown
        line = bar(done, total)
        if total >= FROM_BYTES and line != shown:
            sys.stderr.write("\r" + line)
            sys.stderr.flush()
            shown = line

    try:
        with watched_by(show):
            yield
    finally:
        if shown:
            sys.stderr.write("\r" + " " * len(shown) + "\r")
            sys.stderr.flush()


def bar(done: int, total: int) -> str:
    """A bar and a percentage; once all is read, what comes then.

    Examples
    --------
    >>> bar(1, 2)
    'reading [###############---------------]  50 %'
    """
    share = done / total if total else 1.0
    full = int(WIDTH * share)
    word = "reading" if done < total else "sorting"
    return f"{word} [{'#' * full}{'-' * (WIDTH - full)}] {share:4.0%}".replace("%", " %")
