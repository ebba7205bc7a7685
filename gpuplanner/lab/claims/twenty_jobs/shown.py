"""The twenty jobs for notebooks: runs of one design, whose parts show themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from gpuplanner.lab.claims import twenty_jobs as cases
from gpuplanner.lab.claims.twenty_jobs import harder_sections, sections
from gpuplanner.report import page
from gpuplanner.report.section import Section, still
from gpuplanner.views import View


@dataclass(frozen=True, eq=False)
class TwentyJobs:
    """Both cases of one design over many seeds; its parts show themselves.

    - ``design``, ``seeds``: What was drawn, and how often.
    """

    design: cases.Design
    seeds: range

    @cached_property
    def rows(self) -> pl.DataFrame:
        """One row a seed and policy."""
        return cases.replicate(cases.CORNERS, self.seeds, self.design)

    def _repr_html_(self) -> str:
        return still(self.both_cases().section)._repr_html_()

    def _view(self, title: str, *parts: Iterable[Section]) -> View:
        return View(page.section(title, *(part for each in parts for part in each)), self.rows)

    def both_cases(self) -> View:
        """The jobs, and both cases over all seeds, beside what was reported."""
        return self._view("Both cases", sections.jobs(self.design), sections.both_cases(self.rows))

    def design_space(self) -> View:
        """Percentiles over designs drawn blindly."""
        return self._view("How ordinary", sections.design_space(self.rows, self.seeds.start))

    def definitions(self) -> View:
        """Three definitions of utilisation, and one seed GPU by GPU."""
        one = sections.one_seed(self.seeds.start, self.design)
        return self._view("Three definitions", sections.definitions(self.rows), one)

    def gain(self) -> View:
        """Which part of the gain is right-sizing, and which is layouts."""
        return self._view("The gain", sections.gain(self.rows))

    def recommender(self) -> View:
        """What wrong recommendations cost."""
        return self._view("The recommender", sections.recommender(self.rows, self.seeds, self.design))

    def one_at_a_time(self, seeds: int = 30) -> View:
        """Both cases with one assumption changed at a time."""
        few = self.seeds[:seeds]
        return self._view("One assumption changed", sections.one_at_a_time(self.rows, few, self.design))

    def harder(self, seeds: int = 12, *, gpus: Iterable[int] = (8, 6)) -> View:
        """A case in which layouts have to change, on fleets of so many GPUs."""
        weeks = range(self.seeds.start, self.seeds.start + seeds)
        fleets = [cases.Harder(design=cases.Design(gpus=count)) for count in gpus]
        return self._view("A harder case", *(harder_sections.compared(weeks, one) for one in fleets))


def twenty_jobs(
    seeds: int = 100, *, first_seed: int = 0, fill_low: float = 0.93, run_widening: float = 1.0
) -> TwentyJobs:
    """Twenty jobs on eight GPUs, as asked on a static layout and right-sized on planned ones.

    Parameters
    ----------
    seeds : int
        Runs.
    first_seed : int
        Seed of the first of them.
    fill_low : float
        Least share of its instance that a job keeps busy.
    run_widening : float
        Width of the range of run times, as a multiple of the design's.

    Returns
    -------
    TwentyJobs
        ``both_cases()``, ``design_space()``, ``definitions()``, ``gain()``, ``recommender()``, ``one_at_a_time()``,
        ``harder()``: a view each.

    Raises
    ------
    ValueError
        If no such design can be drawn.

    Examples
    --------
    >>> twenty_jobs(2).both_cases().frame()["seed"].n_unique()
    2
    """
    shortest, longest = cases.Design().run_min
    more = (run_widening - 1) * (longest - shortest) / 2
    design = cases.Design(fill=(fill_low, 1.0), run_min=(shortest - more, longest + more))
    return TwentyJobs(design, range(first_seed, first_seed + seeds))
