"""The figures of a decision as people read them: each has one name, one value and one form, wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gpuplanner.report.words import safe
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import Decision, TeamRow
from gpuplanner.units import NO_FIGURE, day_text, wait_text

Value = str | int | float | None
"""What a figure may be; None: nobody measured it."""
Form = Callable[[str | int | float], str]

LAYOUTS_IN_A_SENTENCE = 2
MOST_NODES_NAMED = 3
_NUMBERED = re.compile(r"(.*?)(\d+)")


def count(value: str | int | float) -> str:
    """A count, or hours that are rounded to a whole one.

    Examples
    --------
    >>> count(2179.05), count(-1200)
    ('2,179', '−1,200')
    """
    return f"{float(value):,.0f}".replace("-", "−").replace("−0", "0")


def minutes(value: str | int | float) -> str:
    """A wait: minutes below two hours, hours above.

    Examples
    --------
    >>> minutes(4.2), minutes(933)
    ('4 min', '15.6 h')
    """
    return wait_text(float(value))


def per_cent(value: str | int | float) -> str:
    """A share: whole per cents, tenths below one.

    Examples
    --------
    >>> per_cent(0.304), per_cent(0.0042), per_cent(0.0001), per_cent(0), per_cent(1)
    ('30%', '0.4%', '<0.1%', '0%', '100%')
    """
    found = float(value)
    if 0 < found < 0.0005:
        return "<0.1%"
    return f"{found:.1%}" if 0 < found < 0.00995 else f"{found:.0%}"


def times(value: str | int | float) -> str:
    """A factor.

    Examples
    --------
    >>> times(1.257)
    '1.26 times'
    """
    return f"{float(value):.2f} times"


def day(value: str | int | float) -> str:
    """A day of the calendar.

    Examples
    --------
    >>> day("2027-03-15")
    '15 Mar 2027'
    """
    return day_text(str(value))


def money(value: str | int | float) -> str:
    r"""Dollars, to the cent below a hundred.

    Examples
    --------
    >>> money(29.03), money(529.0)
    ('29.03\xa0USD', '529\xa0USD')
    """
    amount = f"{float(value):,.2f}" if 0 < abs(float(value)) < 100 else count(value)
    return f"{amount}\N{NO-BREAK SPACE}USD"


DERIVED: Mapping[str, Callable[[Decision], Value]] = {
    "resting_gpus": lambda one: max(one.fleet_gpus - one.gpus, 0),
    "more_gpus": lambda one: max(one.gpus - one.fleet_gpus, 0),
    "jobs_delayed": lambda one: sum(row.jobs_delayed for row in one.service) if one.service else None,
    "jobs": lambda one: sum(row.jobs for row in one.service) if one.service else None,
    "other_teams": lambda one: max(len(_teams(one)) - TEAMS, 0),
    "all_jobs": lambda one: sum(row.jobs for row in one.teams),
    "all_held": lambda one: sum(row.held_gpu_hours for row in one.teams),
    "all_idle": lambda one: _sum([row.idle_gpu_hours for row in one.teams]),
    "other_jobs": lambda one: sum(row.jobs for row in _teams(one)[TEAMS:]),
    "other_held": lambda one: sum(row.held_gpu_hours for row in _teams(one)[TEAMS:]),
    "other_idle": lambda one: _sum([row.idle_gpu_hours for row in _teams(one)[TEAMS:]]),
}  # fmt: skip
"""Sums and differences of a decision that the first screen shows, by name."""
TEAMS = 6
"""Teams that stand on the first screen by name."""
NOBODY = "nobody"
OF_ALL = "share of "
"""What a name begins with that stands for the share of all GPU-hours."""


def value_of(one: Decision | Comparison, name: str) -> Value:
    """The value behind a figure: a field by its path, or one of :data:`DERIVED`.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> value_of(no_decision(Scenario(), "no job states when it ran"), "fleet_gpus")
    0
    """
    if name in DERIVED and isinstance(one, Decision):
        return DERIVED[name](one)
    if name.startswith(OF_ALL):
        part, whole = value_of(one, name.removeprefix(OF_ALL)), value_of(one, "all_held")
        return None if part is None or not whole else float(part) / float(whole)
    found: object = one
    for part in name.split("."):
        found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
    assert found is None or isinstance(found, str | int | float), name
    return found


def shown(one: Decision | Comparison, name: str, form: Form = count) -> str:
    """A figure as markup that says which one it is; a dash where nobody measured it.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> one = no_decision(Scenario(), "no job states when it ran")
    >>> shown(one, "fleet_gpus")
    '<data data-of="fleet_gpus" value="0">0</data>'
    >>> shown(one, "saving.value")
    '<data data-of="saving.value" value="">–</data>'
    """
    value = value_of(one, name)
    if value is None or value != value:
        return f'<data data-of="{name}" value="">{NO_FIGURE}</data>'
    return f'<data data-of="{name}" value="{safe(str(value))}">{safe(form(value))}</data>'


def layout_words(layout: str) -> str:
    """A layout in words: how many of which slice.

    Examples
    --------
    >>> layout_words("4g.40gb:1,1g.10gb:3"), layout_words("whole")
    ('4g.40gb + 3 × 1g.10gb', 'whole')
    """
    parts = []
    for part in layout.split(","):
        name, _, number = part.partition(":")
        parts.append(name if number in ("", "1") else f"{number} × {name}")
    return " + ".join(parts)


def nodes_words(names: Sequence[str]) -> str:
    """Nodes by name; runs of numbers by their ends, and of many the first and the last.

    Examples
    --------
    >>> nodes_words(["n01", "n02", "n03", "n07"]), nodes_words([f"a{n}-x{7 * n}" for n in range(1, 40)])
    ('n01–n03, n07', 'a1-x7 … a39-x273 (39 nodes)')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    if len(runs) > MOST_NODES_NAMED:
        return f"{names[0]} … {names[-1]} ({len(names):,} nodes)"
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def headline(one: Decision) -> str:
    """The decision's sentence; a long list of layouts in it gives way to how many are whole and how many are cut.

    Which ones they are stands in the picture of the fleet.
    """
    listed = ", ".join(
        f"{part.gpus:,} {'whole' if part.layout == 'whole' else 'as ' + part.layout}" for part in one.layouts
    )
    if len(one.layouts) <= LAYOUTS_IN_A_SENTENCE or listed not in one.sentence:
        return one.sentence
    whole, cut = sum(part.gpus for part in one.layouts) - one.cut_gpus, one.cut_gpus
    told = [f"{whole:,} whole"] if whole else []
    return one.sentence.replace(listed, ", ".join([*told, f"{cut:,} cut into slices"]))


def _teams(one: Decision) -> list[TeamRow]:
    return [row for row in one.teams if row.team != NOBODY]


def _sum(values: Sequence[float | None]) -> float | None:
    """Of what was measured everywhere; one gap leaves the sum unknown."""
    return None if any(value is None for value in values) else float(sum(value or 0.0 for value in values))


def _follows(before: str, after: str) -> bool:
    first, second = (_NUMBERED.fullmatch(name) for name in (before, after))
    return bool(first and second and first[1] == second[1] and int(second[2]) == int(first[2]) + 1)
