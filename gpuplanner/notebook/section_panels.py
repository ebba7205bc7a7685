"""Panels whose answer is a section with interactive charts, and whose controls show values that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from html import escape
from typing import Any

from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.notebook.views_and_panels import Answer, BackgroundPanel, Question
from gpuplanner.report.html_page import HtmlSection, Text, split_section

FAULT_BORDER = "2px solid #b24a00"
"""Border of a control whose value cannot be used (CSS)."""


class SectionBox:
    """Widget of a section: text, tables and interactive charts, which stay in place while the section changes.

    - ``box``: ipywidgets box of the parts.
    - ``value``: HTML of the section, as in :class:`HtmlSection`.

    Examples
    --------
    >>> shown = SectionBox()
    >>> shown.value = "<section><p>All of them.</p></section>"
    >>> "All of them." in shown.box.children[0].value
    True
    """

    def __init__(self) -> None:
        self.box = import_optional("ipywidgets", extra="notebook").VBox()
        self._html = ""

    @property
    def value(self) -> str:
        """HTML of the section."""
        return self._html

    @value.setter
    def value(self, html: str) -> None:
        self._html = html
        parts = split_section(HtmlSection(html))
        shown = list(self.box.children)
        if [isinstance(part, Text) for part in parts] != [hasattr(widget, "value") for widget in shown]:
            shown = [None] * len(parts)
        self.box.children = [_part_widget(part, widget) for part, widget in zip(parts, shown, strict=True)]


def _part_widget(part: Text | dict[str, Any], shown: Any) -> Any:  # noqa: ANN401 - of ipywidgets
    """Return the widget of a text or a chart of a section; a shown widget of the same kind is updated instead."""
    widgets = import_optional("ipywidgets", extra="notebook")
    if isinstance(part, dict):
        widget = shown or widgets.Output()
        widget.outputs = ({"output_type": "display_data", "data": plots.live_chart_output(part), "metadata": {}},)
        return widget
    widget = shown or widgets.HTML()
    widget.value = part._repr_html_()
    return widget


_BRUSH_MODULE = """export default { async render(view) {
  const code = new Blob([view.model.get("runtime")], { type: "text/javascript" });
  (await import(URL.createObjectURL(code))).default.render(view);
} };"""
"""JavaScript module of a chart with a brush. It loads the runtime when it draws: anywidget gives up on a module that is
not there within two seconds, as that of Altair with its runtime on a busy machine."""


def brush_chart(spec: Mapping[str, Any], brush: str) -> Any:  # noqa: ANN401 - of ipywidgets
    """Make a widget of a chart in which times are marked by dragging.

    Parameters
    ----------
    spec : mapping
        Vega-Lite specification of a chart of :mod:`gpuplanner.report`.
    brush : str
        Name of the selection of times, which ``selections`` of the widget has.
    """
    import_optional("anywidget", extra="notebook")
    altair, traitlets = import_optional("altair", extra="plot"), import_optional("traitlets", extra="notebook")
    altair.JupyterChart.enable_offline()
    names = {"_esm": _BRUSH_MODULE, "runtime": traitlets.Unicode(altair.JupyterChart._esm).tag(sync=True)}
    brush_type = type("BrushChart", (altair.JupyterChart,), names)
    return brush_type(altair.Chart.from_dict(plots.interactive(spec, brush=brush)))


class SectionPanel(BackgroundPanel[Question, Answer]):
    """Panel that shows its answer as a section with interactive charts, and marks values that cannot be used.

    A question with such a value is not answered: the control has a border, and the status states the fault. Subclasses
    list their number fields as ``fields``, and define ``find_faults`` if other values can be wrong too.
    """

    def __init__(
        self, compute: Callable[[Question], Answer], show: Callable[[Answer], HtmlSection], *, working: str
    ) -> None:
        super().__init__(compute, show, working=working)
        self.answer = SectionBox()
        self.fields: list[NumberField] = []
        self._marked: list[Any] = []

    def find_faults(self) -> list[tuple[Any, str]]:
        """List the controls whose values cannot be used, each with the reason."""
        return [
            (field.control, f"{field.label}: expected {field.low:,g} to {field.high:,g}, got {field.value:,g}")
            for field in self.fields
            if not field.low <= field.value <= field.high
        ]

    def ask(self) -> Future[Answer]:
        """Compute the answer in the background.

        Where a control has a value that cannot be used, the control and the status show it, and the future that is
        returned raises ScenarioError.
        """
        faults = self.find_faults()
        for control in self._marked:
            control.layout.border = None
        self._marked = [control for control, _ in faults]
        for control in self._marked:
            control.layout.border = FAULT_BORDER
        if not faults:
            return super().ask()
        texts = "; ".join(text for _, text in faults)
        self.status.value = f"<b>Fix the marked value.</b> {escape(texts)}. Shown below: the answer before."
        failed: Future[Answer] = Future()
        failed.set_exception(ScenarioError("control", "a value that can be used", texts, "Fix the marked value."))
        return failed


@dataclass(frozen=True)
class NumberField:
    """Text field of a number with its range; a value outside is marked, not changed.

    - ``control``: ipywidgets field.
    - ``label``: Label with unit.
    - ``low``, ``high``: Lowest and highest value.
    """

    control: Any
    label: str
    low: float
    high: float

    @property
    def value(self) -> Any:  # noqa: ANN401 - int or float
        """Value of the field."""
        return self.control.value


def number_field(value: float, low: float, high: float, label: str, tooltip: str, **style: object) -> NumberField:
    """Make a field of a number, of an integer if the value is one.

    Parameters
    ----------
    value : float
        Initial value.
    low, high : float
        Range.
    label, tooltip : str
        Label with unit, and explanation.
    **style
        Further arguments of the ipywidgets field.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    kind = widgets.IntText if isinstance(value, int) else widgets.FloatText
    # A field does not show its tooltip; its label does.
    text = f"<span title='{escape(tooltip)}'>{escape(label)}</span>"
    control = kind(
        value=value, description=text, description_allow_html=True, tooltip=tooltip, continuous_update=False, **style
    )
    return NumberField(control, label, low, high)
