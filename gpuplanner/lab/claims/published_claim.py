"""What a claim is, under what conditions it is put to the test, and what then was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from gpuplanner.errors import MissingDependencyError
from gpuplanner.lab.claims.verdict import CANNOT_BE_TESTED_HERE, no_figures, verdict_of


@dataclass(frozen=True)
class Conditions:
    """What a test begins with.

    Parameters
    ----------
    seed : int
        First seed of everything random.
    seeds : int or None
        How many seeds; None for as many as the claim names.
    public : Path or None
        Folder of the public traces; None if there is none.
    own : str or None
        A dataset of the user's own, for claims that can be tested on one.
    """

    seed: int = 0
    seeds: int | None = None
    public: Path | None = None
    own: str | None = None

    def run_over(self, usual: int) -> range:
        """Seeds of a claim that is usually measured over so many.

        Examples
        --------
        >>> Conditions(seed=3).run_over(2), Conditions(seeds=5).run_over(2)
        (range(3, 5), range(0, 5))
        """
        return range(self.seed, self.seed + (self.seeds or usual))

    def folder(self) -> Path:
        """Folder of the public traces, for claims that need some of them and so are not measured without."""
        assert self.public is not None
        return self.public


@dataclass(frozen=True, eq=False)
class Measured:
    """What a test came to.

    Parameters
    ----------
    verdict : str
        One of :data:`gpuplanner.lab.claims.verdict.VERDICTS`.
    why : str
        What it rests on, in a sentence or two, with figures.
    figures : polars.DataFrame
        What was claimed beside what was measured, see :func:`gpuplanner.lab.claims.verdict.figures_of`.
    tables : mapping of str to polars.DataFrame
        What lies behind the figures, by title.
    remarks : tuple of str
        What limits the verdict.
    """

    verdict: str
    why: str
    figures: pl.DataFrame = field(default_factory=no_figures)
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @classmethod
    def by(
        cls,
        figures: pl.DataFrame,
        why: str,
        *,
        tables: Mapping[str, pl.DataFrame] | None = None,
        remarks: tuple[str, ...] = (),
    ) -> Measured:
        """What was measured, with the verdict that follows from the figures."""
        return cls(verdict_of(figures["holds"].to_list()), why, figures, tables or {}, remarks)


@dataclass(frozen=True)
class PublishedClaim:
    """A claim that somebody made, and how it is put to the test.

    Parameters
    ----------
    name, title : str
        What it is called on the command line, and over its section of the page.
    words : str
        The claim, in a sentence.
    source : str
        Who says so, and where.
    on : str
        What it is measured on.
    takes : str
        How long that takes, in words.
    measure : callable
        Measures it.
    seeds : int or None
        Over how many seeds, if none are named; None if nothing in it is random.
    needs : tuple of str
        Files and folders that have to be in the folder of the public traces.
    long : bool
        Whether it takes more than a minute, and so is left out where all are asked for.
    takes_own_data : bool
        Whether it can be measured on a dataset of the user's own.
    """

    name: str
    title: str
    words: str
    source: str
    on: str
    takes: str
    measure: Callable[[Conditions], Measured]
    seeds: int | None = None
    needs: tuple[str, ...] = ()
    long: bool = False
    takes_own_data: bool = False

    def facts(self) -> dict[str, str]:
        """What is known of it before it is measured."""
        return {name: getattr(self, name) for name in ("name", "title", "words", "source", "on", "takes")}


def put_to_the_test(claim: PublishedClaim, conditions: Conditions) -> Measured:
    """Measure a claim; where data or an optional library are absent, say so instead.

    Examples
    --------
    >>> seen = Measured("holds", "")
    >>> claim = PublishedClaim("a", "A", "b", "c", "d", "no time", lambda given: seen, needs=("philly",))
    >>> found = put_to_the_test(claim, Conditions())
    >>> found.verdict, found.why.partition(":")[0]
    ('cannot be tested here', 'philly is absent')
    """
    absent = [
        path for path in claim.needs if conditions.public is None or not (conditions.public / path).exists()
    ]
    if absent:
        is_absent = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} absent"
        todo = "set GPUPLANNER_DATA to the folder of the public traces"
        if conditions.public is not None:
            todo = "the folder that GPUPLANNER_DATA names does not hold it"
        return Measured(CANNOT_BE_TESTED_HERE, f"{is_absent}: {todo}.")
    try:
        return claim.measure(conditions)
    except MissingDependencyError as error:
        return Measured(CANNOT_BE_TESTED_HERE, str(error))
