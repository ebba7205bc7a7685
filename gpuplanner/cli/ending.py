"""SIGTERM, as Slurm, Kubernetes and systemd send it, ends a run through every clean-up, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATED = 128 + signal.SIGTERM
PATIENCE_S = 0.5
"""Compiled code that has not given way by then is interrupted."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise ``SystemExit`` while the block runs.

    Python runs the handler of a signal between two of its own steps, and one step of polars may take minutes.
    But polars gives way to SIGINT; so a thread, which the system tells of the signal at once, sends one if the
    handler was not run by then.

    Examples
    --------
    >>> with ended_by_sigterm():
    ...     signal.getsignal(signal.SIGTERM).__name__
    'end'
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = threading.Event()

    def end(*_: object) -> None:
        handled.set()
        raise SystemExit(TERMINATED)

    def watch() -> None:
        while told := os.read(reader, 1):
            if told[0] == signal.SIGTERM and not handled.wait(PATIENCE_S):
                os.kill(os.getpid(), signal.SIGINT)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGTERM, end)
    told_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(told_before)
        signal.signal(signal.SIGTERM, before)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _let_go() -> None:
    """A forked child must not tell its parent of its own signals."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_let_go)
