"""Views that display themselves in a notebook, background answers, and notebooks as pages."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import polars as pl
from altair.typing import ChartType

from gpuplanner._version import __version__
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, resolve_name
from gpuplanner.core.execution import import_optional
from gpuplanner.core.output_places import allow_overwriting_within, require_file
from gpuplanner.core.output_writing import write_atomically, write_csv_safe
from gpuplanner.core.stage_cache import notebook_folder
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.html_page import Section, charts_of, show, still
from gpuplanner.report.report_rendering import cell_text, run_notebook

KINDS = ("text/html", "text/markdown", "image/svg+xml", "text/plain")
"""Of an output, the first of them that it has is shown; charts carry their picture as Markdown."""
WIDGET = "application/vnd.jupyter.widget-view+json"
CONTROLS = "Controls need a kernel: run gpuplanner notebook to open this notebook with them."
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_HEADING = re.compile(r"^(#{1,2}) (.+)\n*")


def write_notebook_page(name: str, out: str | Path, parameters: Mapping[str, str | float | bool | None]) -> Path:
    """Run a notebook, a shipped one by the beginning of its name or one by its path, and write it as a page."""
    source = _found(name)
    require_file(out, inputs=[source])
    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / source.name
        run_notebook(source, ran, parameters)
        html = notebook_page(ran.read_text("utf-8"), source.name, parameters)
    return write_atomically(out, lambda new: new.write_text(html, encoding="utf-8"), inputs=[source])


def notebook_page(text: str, name: str, parameters: Mapping[str, str | float | bool | None] | None = None) -> str:
    """The cells of a notebook, given as its JSON, as a page: a section for each heading, code folded, outputs in full.

    Examples
    --------
    >>> cells = [{"cell_type": "markdown", "source": "# Why?"}, {"cell_type": "markdown", "source": "## So"}]
    >>> '<section id="so"><h2>So</h2>' in notebook_page(json.dumps({"cells": cells}), "why.ipynb")
    True
    """
    title, sections = name, [("", list[str]())]
    for cell in json.loads(text)["cells"]:
        text = cell_text(cell["source"])
        if cell["cell_type"] == "code":
            sections[-1][1].extend(_code(cell, text))
        elif cell["cell_type"] == "markdown":
            heading = _HEADING.match(text)
            if heading and heading[1] == "#":
                title = heading[2]
            elif heading:
                sections.append((heading[2], []))
            sections[-1][1].append(_markdown(_HEADING.sub("", text)))
    body = "\n".join(page.section(heading, *parts) if heading else "\n".join(parts) for heading, parts in sections)
    facts = {"notebook": name, "gpuplanner": __version__}
    facts |= {key: str(value) for key, value in (parameters or {}).items()}
    return page.render_page(body, title=title, subtitle="", provenance=facts)


def _found(name: str) -> Path:
    """A notebook by its path, or a shipped one by the beginning of its name."""
    if Path(name).suffix == ".ipynb":
        if not Path(name).is_file():
            raise ScenarioError(name, "a notebook", "no such file", "Fix the path.")
        return Path(name)
    shipped = [path.stem for path in sorted(notebook_folder().glob("[0-9]*.ipynb"))]
    return notebook_folder() / f"{resolve_name(name, shipped, subject='notebook', error=ScenarioError)}.ipynb"


def _code(cell: Mapping[str, Any], source: str) -> Iterator[str]:
    """What a cell shows, with its code folded above it."""
    yield f'<details class="code"><summary>Code</summary>\n<pre>{safe(source)}</pre>\n</details>'
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if WIDGET in data:
            yield page.note(CONTROLS)
        elif kind := next((kind for kind in KINDS if kind in data), None):
            shown = cell_text(data[kind])
            yield f"<pre>{safe(shown)}</pre>" if kind == "text/plain" else _STYLE.sub("", shown)


def _markdown(text: str) -> str:
    """Markup of Markdown; without markup of its own, which a page of anybody's notebook must not carry."""
    mistune = import_optional("mistune", extra="report")
    html: str = mistune.create_markdown(escape=True, plugins=["table"])(text)
    return html


@dataclass(frozen=True, eq=False)
class View:
    """A part of a page that shows itself in a notebook, and gives what it was made from.

    Attributes
    ----------
    section : Section
        Its markup, with charts, text alternatives and tables; still and offline where it is shown.
    table : polars.DataFrame
        The rows behind it.

    Examples
    --------
    >>> view = View(page.section("Hours", page.note("All of them.")), pl.DataFrame({"gpu_hours": [12.0]}))
    >>> view.frame().rows(), "All of them." in view._repr_html_()
    ([(12.0,)], True)
    """

    section: Section
    table: pl.DataFrame

    def _repr_html_(self) -> str:
        return still(self.section)._repr_html_()

    def _ipython_display_(self) -> None:
        """In a notebook its charts answer the pointer; in what is exported from it they are pictures."""
        show(self.section)

    def frame(self) -> pl.DataFrame:
        """The rows behind it."""
        return self.table

    def chart(self, number: int = 0) -> ChartType:
        """One of its charts, the first by default, as Altair takes it.

        Raises
        ------
        ScenarioError
            If it has no such chart.
        """
        altair = import_optional("altair", extra="plot")
        specs = charts_of(self.section)
        if not -len(specs) <= number < len(specs):
            expected = f"a number below {len(specs)}"
            raise ScenarioError("chart of a view", expected, str(number), "Use frame().")
        found: ChartType = altair.Chart.from_dict(specs[number])
        return found

    def export(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it by the ending of the name: a page (.html), or its rows (.csv, .parquet).

        Parameters
        ----------
        path : str or Path
            File to write.
        overwrite : bool
            Replace a file that gpuplanner did not write.

        Returns
        -------
        Path
            ``path``.

        Raises
        ------
        ScenarioError
            If the name ends otherwise.
        OutputError
            If the file cannot be written, or gpuplanner did not write the one that is there.
        """
        ending = Path(path).suffix
        with allow_overwriting_within(overwrite):
            if ending == ".html":
                return self.to_html(path, overwrite=overwrite)
            if ending == ".csv":
                return write_csv_safe(path, _flat(self.table))
            if ending == ".parquet":
                return write_atomically(path, self.table.write_parquet)
        expected = "a name that ends in .html, .csv or .parquet"
        raise ScenarioError("export of a view", expected, str(path), "Rename it.")

    def to_html(self, path: str | Path, *, title: str = "gpuplanner", overwrite: bool = False) -> Path:
        """Write it as a page of its own, which needs nothing else."""
        html = page.render_page(self.section, title=title, subtitle="", provenance={})
        with allow_overwriting_within(overwrite):
            return write_atomically(path, lambda new: new.write_text(html, encoding="utf-8"))


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """The rows with lists as text, for which a file of rows and columns has no place."""
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    return table.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(" "))


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

    def __init__(self, compute: Callable[[Question], Answer], show: Callable[[Answer], str], *, working: str) -> None:
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


def button(label: str, tooltip: str, do: Callable[[], object], **look: object) -> Any:  # noqa: ANN401 - of ipywidgets
    """A button that does something."""
    widgets = import_optional("ipywidgets", extra="notebook")
    made = widgets.Button(description=label, tooltip=tooltip, **look)
    made.on_click(lambda _: do())
    return made


def control_look(label_width: str, max_width: str) -> dict[str, Any]:
    """How wide a control is, and its label: arguments of ipywidgets."""
    return {"style": {"description_width": label_width}, "layout": {"width": "100%", "max_width": max_width}}


def dropdown(options: Sequence[object], value: object, label: str, **look: object) -> Any:  # noqa: ANN401 - of ipywidgets
    """A list to choose from."""
    widgets = import_optional("ipywidgets", extra="notebook")
    return widgets.Dropdown(options=options, value=value, description=label, **look)


def slider(
    value: float, low: float, high: float, step: float, label: str, tooltip: str | None = None, **look: object
) -> Any:  # noqa: ANN401 - of ipywidgets
    """A slider whose range holds its start, of whole numbers where that is one; a drag ends in one change."""
    widgets = import_optional("ipywidgets", extra="notebook")
    return (widgets.IntSlider if isinstance(value, int) else widgets.FloatSlider)(
        value=value,
        min=min(low, value),
        max=max(high, value),
        step=step,
        description=label,
        tooltip=tooltip,
        continuous_update=False,
        **look,
    )


def watch(controls: Iterable[Any], do: Callable[[], object]) -> None:
    """Do something whenever the value of a control changes."""
    for control in controls:
        control.observe(lambda _: do(), names="value")


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
    head = f"<thead><tr>{head}</tr></thead>"
    return f"<table style='text-align:right'>{title}{head}<tbody>{body}</tbody></table>"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def written(write: Callable[[], Path]) -> str:
    """Write, and say in HTML where the file lies, and the workbook beside it, with links; or why not."""
    try:
        place = write()
    except GpuPlannerError as error:
        return escape(str(error))
    beside = place.with_name("workbook.xlsx")
    files = {escape(str(file)): file for file in (place, beside) if file == place or file.exists()}
    return "Written: " + ", ".join(f'<a href="{file}" target="_blank">{file}</a>' for file in files)


def files_button(write: Callable[[], Path], label: str = "Write the files", tooltip: str = "") -> Any:  # noqa: ANN401 - of ipywidgets
    """A button that writes files, and says where they lie or why they do not.

    Parameters
    ----------
    write : callable
        Writes, and gives the file to begin with.
    label : str
        What stands on the button.
    tooltip : str
        What it says of itself.

    Returns
    -------
    ipywidgets.VBox
        The button, and below it what came of it.

    Examples
    --------
    >>> box = files_button(lambda: Path("build/README.md"))
    >>> box.children[0].click()
    >>> box.children[1].value
    'Written: <a href="build/README.md" target="_blank">build/README.md</a>'
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    told = widgets.HTML()

    def clicked() -> None:
        told.value = written(write)

    return widgets.VBox([button(label, tooltip, clicked, layout={"width": "18em"}), told])
