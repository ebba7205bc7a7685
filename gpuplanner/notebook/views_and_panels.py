"""Views of notebooks, and panels that compute in the background."""

from __future__ import annotations

import asyncio
import functools
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import replace_codes_by_text
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.output_writing import write_atomically, write_csv_safe
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection, chart_specs, display_section, to_still_text

if TYPE_CHECKING:
    from altair.typing import ChartType

Shown = TypeVar("Shown")
"""Type of a view or a panel, in place of which a card may be shown."""
Arguments = ParamSpec("Arguments")
"""Type of the arguments of a function that shows a view, which :func:`or_card` keeps."""


def answer_or_card(
    title: str, answer: Callable[[], Shown], fix: str = "", *, errors: type[GpuPlannerError] = GpuPlannerError
) -> Shown | View:
    """Return a view; where the data do not support it, a card that states the reason and the fix in Python.

    A notebook then runs to its end. Mistakes in arguments are to be raised before.

    Parameters
    ----------
    title : str
        Heading of the card.
    answer : callable
        Makes the view, or the panel.
    fix : str
        Python code that leads to an answer.
    errors : type
        Errors for which the card stands; others are raised.

    Examples
    --------
    >>> def fail() -> View:
    ...     raise GpuPlannerError("prices: expected a price; got none. Add a price book.")
    >>> view = answer_or_card("Cost", fail)
    >>> view.df.height, "Add a price book." in view._repr_html_()
    (0, True)
    """
    try:
        return answer()
    except errors as error:
        code = f"<pre>{escape(fix)}</pre>" if fix else ""
        return View(page.section(title, page.note(python_advice(str(error))), code), pl.DataFrame())


def or_card(
    title: str, fix: str = "", *, errors: type[GpuPlannerError] = GpuPlannerError
) -> Callable[[Callable[Arguments, Shown]], Callable[Arguments, Shown | View]]:
    """Make a decorator of a function that shows a view or a panel: see :func:`answer_or_card`."""

    def decorate(show: Callable[Arguments, Shown]) -> Callable[Arguments, Shown | View]:
        @functools.wraps(show)
        def show_or_card(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Shown | View:
            return answer_or_card(title, lambda: show(*args, **kwargs), fix, errors=errors)

        return show_or_card

    return decorate


def require_share(name: str, value: object, high: float = 1.0) -> None:
    """Raise ScenarioError unless an argument is a share above 0.

    Examples
    --------
    >>> require_share("percentile", 95)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: percentile: expected a share above 0, at most 1; got 95. Write 0.95 for 95 %.
    """
    if not isinstance(value, int | float) or not 0.0 < value <= high:
        percent = value if isinstance(value, int | float) and 0 < value <= 100 else 90
        fix = f"Write {percent / 100:g} for {percent:g} %."
        raise ScenarioError(name, f"a share above 0, at most {high:g}", repr(value), fix)


def require_whole_number(name: str, value: object, low: int, high: int) -> None:
    """Raise ScenarioError unless an argument is a whole number within a range."""
    if type(value) is not int or not low <= value <= high:
        raise ScenarioError(name, f"a whole number from {low:,} to {high:,}", repr(value), f"Fix {name}=.")


def python_advice(text: str) -> str:
    """Convert the command-line options that an error message advises to arguments in Python.

    Examples
    --------
    >>> python_advice("Add --gpu-model, or --set ownership=owned.")
    'Add gpu_model=, or ownership=owned.'
    """
    text = re.sub(r"--set ", "", text)
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda option: option[1].replace("-", "_") + "=", text)


@dataclass(frozen=True, eq=False)
class View:
    """A section of a report that a notebook shows, with the table behind it.

    Attributes
    ----------
    section : HtmlSection
        HTML with charts, text alternatives and tables.
    df : polars.DataFrame
        Table behind the section.
    sums : mapping of str to str
        Columns that have a total in an Excel file, with their names there.

    Examples
    --------
    >>> view = View(page.section("Hours", page.note("All of them.")), pl.DataFrame({"gpu_hours": [12.0]}))
    >>> view.df.rows(), "All of them." in view._repr_html_()
    ([(12.0,)], True)
    """

    section: HtmlSection
    df: pl.DataFrame
    sums: Mapping[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return to_still_text(self.section)._repr_html_()

    def _ipython_display_(self) -> None:
        """Show the section with interactive charts; exported notebooks have images instead."""
        display_section(self.section)

    def __repr__(self) -> str:
        return textwrap.shorten(f"View({self.df.height:,} rows: {', '.join(self.df.columns)})", 190)

    def chart(self, number: int = 0) -> ChartType:
        """Return a chart of the section as an Altair chart.

        Parameters
        ----------
        number : int
            Index of the chart.

        Raises
        ------
        ScenarioError
            If the section has no such chart.
        """
        altair = import_optional("altair", extra="plot")
        specs = chart_specs(self.section)
        if not -len(specs) <= number < len(specs):
            raise ScenarioError("chart of a view", f"a number below {len(specs)}", str(number), "Use .df, the table.")
        title, _, subtitle = str(specs[number].get("description", "")).partition(". ")  # a page has them in its HTML
        heading = {"text": title, "subtitle": textwrap.wrap(subtitle, 100), "anchor": "start"}
        chart: ChartType = altair.Chart.from_dict({**specs[number], "title": heading})
        return chart

    def export(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the section as a page (.html) or its table (.csv, .parquet, .xlsx), by the suffix of the file.

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
            If the file has another suffix.
        OutputError
            If the file cannot be written, or exists and was not written by gpuplanner.
        """
        ending = Path(path).suffix
        with allow_overwriting_within(overwrite):
            if ending == ".html":
                html = page.render_page(self.section, title="gpuplanner", subtitle="", provenance={})
                return write_atomically(path, lambda new_path: new_path.write_text(html, encoding="utf-8"))
            if ending == ".csv":
                return write_csv_safe(path, _join_lists(self.df))
            if ending == ".parquet":
                return write_atomically(path, self.df.write_parquet)
            if ending == ".xlsx":
                from gpuplanner.report.focus_files_and_workbooks import write_workbook  # tables need no planner

                specs = chart_specs(self.section)
                title, _, about = str(specs[0].get("description", "") if specs else "").partition(". ")
                remarks = re.sub("<.*?>", "", " ".join(_TEXT_PATTERN.findall(self.section)))
                about = f"{about} {unescape(remarks)}".strip()
                table = replace_codes_by_text(_join_lists(self.df)).rename(self.sums, strict=False)
                totals = [name for name in self.sums.values() if name in table.columns]
                return write_workbook(
                    path, {"Table": table}, title=title or "gpuplanner", notes={"About": about} if about else {},
                    totals={"Table": totals} if totals else None, remarks={"Table": about} if totals else None,
                )  # fmt: skip
        expected = "a name that ends in .html, .csv, .parquet or .xlsx"
        raise ScenarioError("export of a view", expected, str(path), "Rename it.")


_TEXT_PATTERN = re.compile(r'<p(?: class="note")?>(.*?)</p>', re.DOTALL)
"""Paragraph or remark of a section."""


def _join_lists(table: pl.DataFrame) -> pl.DataFrame:
    """Join list columns to text, since CSV has no lists."""
    list_columns = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
    return table.with_columns(pl.col(list_columns).cast(pl.List(pl.String)).list.join(" "))


DEBOUNCE_S = 0.4
"""Time after the last change of a control until the answer is computed [s]."""

Question = TypeVar("Question")
"""Type of the settings of a panel's controls."""
Answer = TypeVar("Answer")
"""Type of the result that a panel computes from its settings."""


class BackgroundPanel(ABC, Generic[Question, Answer]):
    """Panel of controls whose answer is computed in a worker thread.

    A question holds the settings of the controls. Questions are answered one after the other; a newer question cancels
    one that has not started, and one that runs when it next calls :meth:`report_progress`. Only the newest answer is
    shown. Subclasses define ``question`` and arrange ``panel``.

    - ``compute``: Function from a question to its answer; runs in the worker.
    - ``show``: Function from an answer to HTML; runs in the worker.
    - ``working``: Status text while an answer is computed.
    - ``newest``: Shown answer; None before the first.
    - ``status``, ``answer``: Widgets with the status and the newest answer.
    - ``panel``: Widget of the whole panel, set by the subclass.
    """

    panel: Any
    at_once: ClassVar[bool] = False
    """Whether the answer is computed when the panel is first shown."""
    outdated: ClassVar[str] = "Changed. Shown below: the answer before this change."
    """Status from a change of a control until its answer is computed."""

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
        self._n_asked = self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    @abstractmethod
    def question(self) -> Question:
        """Settings of the controls, as the question that the panel answers."""

    def ask(self) -> Future[Answer]:
        """Compute the answer in the background and show it when it is done."""
        self._n_asked += 1
        self.status.value = self._working
        if self._pending is not None:
            self._pending.cancel()  # cancels only a question that has not started
        self._pending = self._worker.submit(self._compute_and_show, self._n_asked, self.question, _running_loop())
        return self._pending

    def ask_soon(self) -> None:
        """Compute the answer :data:`DEBOUNCE_S` after the last change; outside a notebook call :meth:`ask`."""
        self.status.value = self.outdated
        self._call_later("ask", DEBOUNCE_S, self.ask)

    def _call_later(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        """Run an action on the kernel's thread after a delay; a new call with the same name restarts the delay.

        Parameters
        ----------
        name : str
            Name of the timer.
        seconds : float
            Delay. [s]
        action : callable
            Function without arguments.
        """
        loop = _running_loop()
        if loop is None:
            return
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = loop.call_later(seconds, action)

    def report_progress(self, text: str) -> None:
        """Show a status text from the worker; cancel the computation if there is a newer question."""
        if self._running != self._n_asked:
            raise CancelledError
        self._call_in_kernel(self._show_status, self._running, text)

    def _show_status(self, number: int, text: str) -> None:
        """Show a status text, unless there is a newer question than the one with this number."""
        if number == self._n_asked:
            self.status.value = text

    def _compute_and_show(self, number: int, question: Question, loop: asyncio.AbstractEventLoop | None) -> Answer:
        """Compute an answer and its HTML in the worker, and show it on the kernel's thread.

        Parameters
        ----------
        number : int
            Number of the question, counted from 1.
        question : Question
            Settings of the controls.
        loop : asyncio.AbstractEventLoop, optional
            Event loop of the kernel; None outside a notebook.
        """
        self._running, self._loop = number, loop
        try:
            answer = self._compute(question)
            self._call_in_kernel(self._show_answer, number, answer, self._show(answer), "Done.")
        except CancelledError:
            raise
        except Exception as error:
            kind = "" if isinstance(error, GpuPlannerError) else f"{type(error).__name__}: "
            text = f"<b>No answer.</b> {escape(kind + str(error))}"
            self._call_in_kernel(self._show_answer, number, self.newest, self.answer.value, text)
            raise
        return answer

    def _call_in_kernel(self, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Call a function on the kernel's thread, from the worker."""
        if self._loop is None:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    def _show_answer(self, number: int, newest: Answer | None, answer: str, status: str) -> None:
        """Show the HTML of an answer and a status, unless there is a newer question than the one with this number."""
        if number == self._n_asked:  # else a newer question is under way
            self.newest, self.answer.value, self.status.value = newest, answer, status

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        if self.at_once and self.newest is None and self._pending is None:
            self.ask()
        return self.panel._repr_mimebundle_(**arguments)


def button(label: str, tooltip: str, action: Callable[[], object], **style: object) -> Any:  # noqa: ANN401 - of ipywidgets
    """Make a button that runs an action.

    Parameters
    ----------
    label, tooltip : str
        Texts of the button.
    action : callable
        Function without arguments.
    **style
        Further arguments of ``ipywidgets.Button``.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    widget = widgets.Button(description=label, tooltip=tooltip, **style)
    widget.on_click(lambda _: action())
    return widget


def control_style(label_width: str, max_width: str) -> dict[str, Any]:
    """Make the arguments of ipywidgets for the width of a label and the maximum width of a control (CSS lengths)."""
    return {"style": {"description_width": label_width}, "layout": {"width": "100%", "max_width": max_width}}


def dropdown(options: Sequence[object], value: object, label: str, **style: object) -> Any:  # noqa: ANN401 - of ipywidgets
    """Make a drop-down list.

    Parameters
    ----------
    options : sequence
        Values, or pairs of label and value.
    value : object
        Chosen value.
    label : str
        Label of the control.
    **style
        Further arguments of ``ipywidgets.Dropdown``.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    return widgets.Dropdown(options=options, value=value, description=label, **style)


def slider(
    value: float, low: float, high: float, step: float, label: str, tooltip: str | None = None, **style: object
) -> Any:  # noqa: ANN401 - of ipywidgets
    """Make a slider, of integers if the value is one; a drag ends in one change.

    Parameters
    ----------
    value : float
        Initial value; the range is widened to hold it.
    low, high, step : float
        Range and step.
    label : str
        Label of the control.
    tooltip : str, optional
        Tooltip.
    **style
        Further arguments of the ipywidgets slider.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    return (widgets.IntSlider if isinstance(value, int) else widgets.FloatSlider)(
        value=value,
        min=min(low, value),
        max=max(high, value),
        step=step,
        description=label,
        tooltip=tooltip,
        continuous_update=False,
        **style,
    )


def on_change(controls: Iterable[Any], action: Callable[[], object]) -> None:
    """Run an action whenever the value of a control changes."""
    for control in controls:
        control.observe(lambda _: action(), names="value")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of the kernel; None outside a notebook."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def write_and_link(write: Callable[[], Path], contents: str = "", files_to_apply: str | None = None) -> str:
    """Run a function that writes files; return links to its page, workbook and folder of files to apply, or its error.

    Parameters
    ----------
    write : callable
        Writes the files and returns the path of the page.
    contents : str
        Words behind the links.
    files_to_apply : str, optional
        Name of the folder beside the page with the files that operators apply, which may be absent.
    """
    try:
        path = write()
    except GpuPlannerError as error:
        return escape(str(error))
    workbook = path.with_name("workbook.xlsx")
    files = [path, workbook] if workbook != path and workbook.exists() else [path]
    links = [_file_link(str(file)) for file in files]
    if files_to_apply is not None and (folder := path.with_name(files_to_apply)).exists():
        links.append(f"{_file_link(f'{folder}/')} (files to apply)")
    return f"Written: {', '.join(links)}{contents}"


def _file_link(path: str) -> str:
    """Render a link to a file or folder that opens in a new tab."""
    return f'<a href="{escape(path)}" target="_blank">{escape(path)}</a>'


def files_button(
    write: Callable[[], Path], label: str = "Write the files", tooltip: str = "", contents: str = ""
) -> Any:  # noqa: ANN401 - of ipywidgets
    """Make a button that writes files and then shows links to them, or the error.

    Parameters
    ----------
    write : callable
        Writes the files and returns the first one to open.
    label, tooltip : str
        Texts of the button.
    contents : str
        Words behind the links.

    Returns
    -------
    ipywidgets.VBox
        The button, and the links below it.

    Examples
    --------
    >>> box = files_button(lambda: Path("build/README.md"))
    >>> box.children[0].click()
    >>> box.children[1].value
    'Written: <a href="build/README.md" target="_blank">build/README.md</a>'
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    message = widgets.HTML()

    def on_click() -> None:
        message.value = write_and_link(write, contents)

    return widgets.VBox([button(label, tooltip, on_click, layout={"width": "18em"}), message])
