"""Buttons that write files: what operators apply, and workbooks."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError


def written(write: Callable[[], Path]) -> str:
    """Write, and say in HTML where the file lies, and the workbook beside it, with links; or why not."""
    try:
        place = write()
    except GpuPlannerError as error:
        return escape(str(error))
    beside = place.with_name("workbook.xlsx")
    links = ", ".join(
        f'<a href="{escape(str(file))}" target="_blank">{escape(str(file))}</a>'
        for file in dict.fromkeys((place, *([beside] if beside.exists() else [])))
    )
    return f"Written: {links}"


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
    button = widgets.Button(description=label, tooltip=tooltip, layout={"width": "18em"})

    def clicked(_: object) -> None:
        told.value = written(write)

    button.on_click(clicked)
    return widgets.VBox([button, told])
