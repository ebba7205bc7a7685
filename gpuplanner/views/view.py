"""A part of a page that shows itself in a notebook, and gives the rows and charts that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from altair.typing import ChartType

from gpuplanner._optional import import_optional
from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.ours import overwriting
from gpuplanner.files.single import write_atomically
from gpuplanner.files.csv import write_csv_safe
from gpuplanner.report import page
from gpuplanner.report.section import Section, charts_of, show, still


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
            text = message("chart of a view", f"a number below {len(specs)}", str(number), "Take frame().")
            raise ScenarioError(text)
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
        with overwriting(overwrite):
            if ending == ".html":
                return self.to_html(path, overwrite=overwrite)
            if ending == ".csv":
                return write_csv_safe(path, _flat(self.table))
            if ending == ".parquet":
                return write_atomically(path, self.table.write_parquet)
        text = message(
            "export of a view", "a name that ends in .html, .csv or .parquet", str(path), "Rename it."
        )
        raise ScenarioError(text)

    def to_html(self, path: str | Path, *, title: str = "gpuplanner", overwrite: bool = False) -> Path:
        """Write it as a page of its own, which needs nothing else."""
        html = page.render_page(self.section, title=title, subtitle="", provenance={})
        with overwriting(overwrite):
            return write_atomically(path, lambda new: new.write_text(html, encoding="utf-8"))


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """The rows with lists as text, for which a file of rows and columns has no place."""
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    return table.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(" "))
