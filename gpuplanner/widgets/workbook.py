"""A button that writes the workbook of a month."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.study.future.cost_review import CostReview
from gpuplanner.study.handover.workbooks import write_cost_workbook


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
    widgets = import_optional("ipywidgets", extra="notebook")
    told = widgets.HTML()
    button = widgets.Button(
        description="Write the workbook",
        tooltip=f"Write the tables of the month to {path}",
        layout={"width": "18em"},
    )

    def write(_: object) -> None:
        try:
            told.value = f"written: {escape(str(write_cost_workbook(path, found)))}"
        except GpuPlannerError as error:
            told.value = escape(str(error))

    button.on_click(write)
    return widgets.VBox([button, told])
