"""Buttons that write files: what operators apply, and workbooks."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.study.future.cost_review import CostReview
from gpuplanner.study.handover.workbooks import write_cost_workbook


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


def workbook_button(found: CostReview, path: str | Path = "costs.xlsx") -> Any:  # noqa: ANN401 - of ipywidgets
    """A button that writes the tables of a review as a workbook, and says where it is or why it is not.

    Parameters
    ----------
    found : CostReview
        From :func:`gpuplanner.study.future.cost_review.cost_review`.
    path : str or Path
        Where to write; a file of that name is replaced.

    Returns
    -------
    ipywidgets.VBox
        The button, and below it what came of it.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.future.cost_review import cost_review
    >>> box = workbook_button(cost_review(Scenario()), "costs.xlsx")
    >>> box.children[0].description
    'Write the workbook'
    """
    told = f"Write the tables of the month to {path}"
    return files_button(lambda: write_cost_workbook(path, found), "Write the workbook", told)
