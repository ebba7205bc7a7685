"""A panel that answers in a thread of its own, so that the kernel stays free."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from html import escape
from typing import Any, ClassVar, Generic, TypeVar

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError

DEBOUNCE_S = 0.4
"""Changes that follow each other faster are answered once."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class BackgroundPanel(ABC, Generic[Question, Answer]):
    """Controls that put a question, and the newest answer to it.

    Questions are answered one after the other in a worker thread; one that has not begun when the next comes
    is dropped, one that is under way ends when it next calls :meth:`tell`, and only the newest answer is shown.
    Subclasses say what the controls ask, and arrange ``panel``.

    - ``compute``: From a question to its answer; runs in the worker.
    - ``show``: From an answer to HTML; runs in the worker.
    - ``working``: Shown while an answer is computed.
    - ``newest``: The answer that is shown; None before the first.
    - ``status``, ``answer``: Controls that say what goes on, and show the newest answer.
    - ``panel``: The whole, set by the subclass.
    """

    panel: Any
    at_once: ClassVar[bool] = False
    """Whether the question is put when the panel is first shown."""

    def __init__(
        self, compute: Callable[[Question], Answer], show: Callable[[Answer], str], *, working: str
    ) -> None:
        widgets = import_optional("ipywidgets", extra="notebook")
        self.newest: Answer | None = None
        self.status = widgets.HTML("Move a control, or press the button.")
        self.answer = widgets.HTML()
        self._compute = compute
        self._show = show
        self._working = working
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=type(self).__name__)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pending: Future[Answer] | None = None
        self._asked = self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    @abstractmethod
    def question(self) -> Question:
        """What the controls ask as they stand."""

    def ask(self) -> Future[Answer]:
        """Answer the question in the background and show the answer when it is there."""
        self._asked += 1
        self.status.value = self._working
        if self._pending is not None:
            self._pending.cancel()  # a question that has not begun is not worth answering any more
        self._pending = self._worker.submit(self._work, self._asked, self.question, _running_loop())
        return self._pending

    def ask_soon(self) -> None:
        """Ask once the controls have come to rest; outside a notebook the caller asks."""
        self._soon("ask", DEBOUNCE_S, self.ask)

    def _soon(self, name: str, seconds: float, do: Callable[[], object]) -> None:
        """Do something on the kernel's own thread once it was not asked for anew for so long."""
        loop = _running_loop()
        if loop is None:
            return
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = loop.call_later(seconds, do)

    def tell(self, text: str) -> None:
        """Say from the worker how far it is."""
        if self._running != self._asked:
            raise CancelledError
        self._in_kernel(self._told, self._running, text)

    def _told(self, number: int, text: str) -> None:
        if number == self._asked:
            self.status.value = text

    def _work(self, number: int, question: Question, loop: asyncio.AbstractEventLoop | None) -> Answer:
        """Compute and draw in the worker; hand the finished text to the kernel's own thread."""
        self._running, self._loop = number, loop
        try:
            answer = self._compute(question)
            self._in_kernel(self._arrived, number, answer, self._show(answer), "Done.")
        except CancelledError:
            raise
        except Exception as error:
            kind = "" if isinstance(error, GpuPlannerError) else f"{type(error).__name__}: "
            text = f"<b>No answer.</b> {escape(kind + str(error))}"
            self._in_kernel(self._arrived, number, self.newest, self.answer.value, text)
            raise
        return answer

    def _in_kernel(self, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Call a function on the kernel's own thread, from the worker."""
        if self._loop is None:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    def _arrived(self, number: int, newest: Answer | None, answer: str, status: str) -> None:
        if number == self._asked:  # else a newer question is under way
            self.newest, self.answer.value, self.status.value = newest, answer, status

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        if self.at_once and self.newest is None and self._pending is None:
            self.ask()
        return self.panel._repr_mimebundle_(**arguments)


def table_html(headings: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A small table of plain text, numbers to the right.

    Examples
    --------
    >>> "<tr><th scope='row'>a &lt; b</th><td>9</td></tr>" in table_html(["", "cost"], [["a < b", "9"]])
    True
    """
    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in headings)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f"<table style='text-align:right'>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
