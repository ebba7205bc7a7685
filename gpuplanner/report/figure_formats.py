"""Formats of figures: units, decimals, headings and glossary."""

from __future__ import annotations

import base64
import csv
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from html import escape, unescape
from pathlib import Path
from typing import Any

from gpuplanner.core.errors import escape_controls
from gpuplanner.core.units import (
    LOCALE_BY_NAME,
    MISSING_VALUE_TEXT,
    UNALLOCATED_TEAM,
    day_text,
    localize_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_types import LAYOUT_FULL, Decision, TeamRow
from gpuplanner.decision.wait_causes import CAUSES

_TABLE = Path(__file__).parent / "glossary.csv"
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
_PARTS = re.compile(
    r'(?P<chart><script type="application/json">.*?</script>)|<(?P<kept>script|style|code|pre)\b.*?</(?P=kept)>'
    r'|(?P<facts><dl>.*?</dl>)|(?P<named><th scope="row".*?</th>)|<[^>]*>',
    re.DOTALL,
)
_SAID = re.compile(r'(?<= )(aria-label|alt|title)="([^"]*)"')
_PICTURE = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
_TEXTS = ("text", "title", "description", "subtitle", "word", "label")
"""Keys of a chart, and columns of its data, under which words stand that a reader sees."""


def safe(text: str) -> str:
    r"""Text from data as markup: what would be a tag, or turn the direction of what follows, is shown as text.

    Examples
    --------
    >>> safe("<b>\u202ecod")
    '&lt;b&gt;\\u202ecod'
    """
    return escape(escape_controls(text))


@dataclass(frozen=True)
class Word:
    """A word of the glossary: its meaning, and other forms in which pages have it."""

    word: str
    forms: tuple[str, ...]
    meaning: str


@functools.cache
def glossary() -> tuple[Word, ...]:
    """The words of ``glossary.csv``, in its order."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        return tuple(
            Word(row["word"], tuple(form for form in row["also"].split("|") if form), row["meaning"])
            for row in csv.DictReader(stream)
        )


def told(text: str) -> str:
    """A heading as markup; where it is a word of the glossary, with its meaning for those who point at it.

    Examples
    --------
    >>> told("nodes"), told("PUE [%]")[:12]
    ('nodes', '<abbr title=')
    """
    stem, _, unit = text.partition(" [")
    meaning = _by_form().get(stem.lower())
    if meaning is None:
        return safe(text)
    return f'<abbr title="{escape(meaning)}">{safe(stem)}</abbr>' + (f" [{safe(unit)}" if unit else "")


def words_on(html: str) -> dict[str, str]:
    """The words of the glossary that a page uses, with their meanings.

    Examples
    --------
    >>> list(words_on("<p>Allocated but idle.</p>"))
    ['allocated', 'allocated but idle']
    """
    text = unescape(_TAGS.sub(" ", html)).lower()
    return {
        one.word: one.meaning
        for one in glossary()
        if any(re.search(rf"(?<!\w){re.escape(form.lower())}(?!\w)", text) for form in (one.word, *one.forms))
    }


@functools.cache
def _by_form() -> Mapping[str, str]:
    """Meanings by every form in which a heading may have a word."""
    return {form.lower(): one.meaning for one in glossary() for form in (one.word, *one.forms)}


def as_json(spec: Mapping[str, object]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def localised(html: str, name: str) -> str:
    """A page of ours with numbers and days written as a locale does; code, provenance and names in tables stay.

    Examples
    --------
    >>> localised('<p title="1.5 h">1,344.5 h</p><code>0.5</code><th scope="row">0.5</th>', "de")
    '<p title="1,5 h">1.344,5 h</p><code>0.5</code><th scope="row">0.5</th>'
    """
    if name == next(iter(LOCALE_BY_NAME)):
        return html
    texts, at = list[str](), 0
    for found in _PARTS.finditer(html):
        texts += [localize_text(html[at : found.start()], name), _part(found, name)]
        at = found.end()
    return "".join([*texts, localize_text(html[at:], name)])


def _part(found: re.Match[str], name: str) -> str:
    if found["chart"]:
        return _chart(found["chart"], name)
    if found["named"]:
        return localize_text(found["named"], name, numbers=False)
    return found[0] if found["kept"] or found["facts"] else _tag(found[0], name)


def _tag(tag: str, name: str) -> str:
    """A tag with what it says in words, and the text of a picture in it."""
    tag = _SAID.sub(lambda found: f'{found[1]}="{localize_text(found[2], name)}"', tag)
    return _PICTURE.sub(lambda found: f"data:image/svg+xml;base64,{_redrawn(found[1], name)}", tag)


def _redrawn(picture: str, name: str) -> str:
    svg = localised(base64.b64decode(picture).decode("utf-8"), name)
    return base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _chart(script: str, name: str) -> str:
    """A chart that formats its numbers so, and says its texts so; data are as they are."""
    opening, _, rest = script.partition(">")
    spec = _worded(json.loads(rest.removesuffix("</script>")), name)
    to = LOCALE_BY_NAME[name]
    marks = {"decimal": to.decimal, "thousands": to.thousands, "grouping": [3], "currency": ["", ""], "percent": " %"}
    spec["config"] = spec.get("config", {}) | {"locale": {"number": marks}}
    return f"{opening}>{as_json(spec)}</script>"


def _worded(value: Any, name: str, key: str = "") -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, dict):
        return {each: _worded(one, name, each) for each, one in value.items()}
    if isinstance(value, list):
        return [_worded(one, name, key) for one in value]
    return localize_text(value, name) if isinstance(value, str) and key in _TEXTS else value


Value = str | int | float | None
"""A figure; None: not measured."""
Form = Callable[[str | int | float], str]

MOST_NODES_NAMED = 3
DAYS_PER_MONTH = 365.25 / 12
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


def mean_minutes(value: str | int | float) -> str:
    """A mean wait, in tenths of a minute.

    Examples
    --------
    >>> mean_minutes(0.537)
    '0.5 min'
    """
    return f"{float(value):,.1f} min"


def tenths(value: str | int | float) -> str:
    """A share in percent to a tenth, without its sign.

    Examples
    --------
    >>> tenths(0.0941)
    '9.4'
    """
    return f"{100 * float(value):.1f}"


def per_cent(value: str | int | float) -> str:
    """A share: whole percent, tenths below one.

    Examples
    --------
    >>> per_cent(0.304), per_cent(0.0042), per_cent(0.0001), per_cent(0), per_cent(1)
    ('30 %', '0.4 %', '<0.1 %', '0 %', '100 %')
    """
    found = float(value)
    if 0 < found < 0.0005:
        return "<0.1 %"
    return percent_text(found, ".1f" if 0 < found < 0.00995 else ".0f")


def whole_percent(value: str | int | float) -> str:
    """A percentage that is a whole number already.

    Examples
    --------
    >>> whole_percent(82), whole_percent(0)
    ('82 %', '0')
    """
    return f"{value} %" if value else "0"


def above_one(value: str | int | float) -> str:
    """A factor as the share by which it is above one.

    Examples
    --------
    >>> above_one(1.257), above_one(0.93)
    ('26 %', '-7 %')
    """
    return per_cent(float(value) - 1.0)


def day(value: str | int | float) -> str:
    """A day of the calendar.

    Examples
    --------
    >>> day("2027-03-15")
    '15 Mar 2027'
    """
    return day_text(str(value))


def _cause_percent(found: Comparison, cause: str) -> int | None:
    """Percentage of the hours of waiting that one cause accounts for."""
    return None if found.waits is None else found.waits.cause_percent.get(cause)


DERIVED: Mapping[str, Callable[[Decision], Value]] = {
    "released_gpus": lambda one: max(one.fleet_gpus - one.gpus, 0),
    "more_gpus": lambda one: max(one.gpus - one.fleet_gpus, 0),
    "all_jobs": lambda one: sum(row.jobs for row in one.teams),
    "all_allocated": lambda one: sum(row.allocated_gpu_hours for row in one.teams),
    "all_idle": lambda one: _sum([row.idle_gpu_hours for row in _teams(one)]),
    "all_busy": lambda one: _sum([row.busy_gpu_hours for row in one.teams]),
    "teams_allocated": lambda one: sum(row.allocated_gpu_hours for row in _teams(one)),
    "use_known_share": lambda one: _ratio(
        sum((row.busy_gpu_hours or 0.0) + (row.idle_gpu_hours or 0.0) for row in _teams(one)),
        sum(row.allocated_gpu_hours for row in _teams(one))),
    "busy_as_recommended": lambda one: _ratio(_sum([row.busy_gpu_hours for row in one.teams]),
        sum(row.allocated_gpu_hours for row in one.teams) * one.gpus_mean / max(one.fleet_gpus, 1)),
    "mean_wait_today_minutes": lambda one: _weighted(one, "today_mean_minutes"),
    "mean_wait_recommended_minutes": lambda one: _weighted(one, "recommended_mean_minutes"),
    "delayed_share": lambda one: _ratio(
        sum(row.jobs_delayed for row in one.service), sum(row.jobs for row in one.service)),
    "other_jobs": lambda one: sum(row.jobs for row in _teams(one)[TEAMS:]),
    "other_allocated": lambda one: sum(row.allocated_gpu_hours for row in _teams(one)[TEAMS:]),
    "other_idle": lambda one: _sum([row.idle_gpu_hours for row in _teams(one)[TEAMS:]]),
}  # fmt: skip
"""Sums and differences of a decision that the first screen shows, by name."""
TEAMS = 6
"""Teams that stand on the first screen by name."""
OF_ALL = "share of "
"""Prefix of names of shares of all installed GPU-hours."""
OF_COMPARISON: Mapping[str, Callable[[Comparison], Value]] = {
    "months_left": lambda found: _months_left(found),
    "headroom_share": lambda found: None if found.headroom is None else found.headroom.factor - 1.0,
    "months_left_today": lambda found: 0 if late_sizes(found.decision) else None,
    "waiting": lambda found: sum(row.waited for row in found.waits.causes.job_size) if found.waits else None,
    **{f"waiting.{cause}": partial(_cause_percent, cause=cause) for cause in CAUSES},
}
"""Figures of a comparison that the first screen shows, by name."""


def value_of(one: Decision | Comparison, name: str) -> Value:
    """The value behind a figure: a field by its path, or one of :data:`DERIVED`.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> value_of(make_empty_decision(Scenario(), "no job states when it ran"), "fleet_gpus")
    0
    """
    if name in DERIVED and isinstance(one, Decision):
        return DERIVED[name](one)
    if name in OF_COMPARISON and isinstance(one, Comparison):
        return OF_COMPARISON[name](one)
    if name.startswith(OF_ALL):
        part, whole = value_of(one, name.removeprefix(OF_ALL)), value_of(one, "all_allocated")
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
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> one = make_empty_decision(Scenario(), "no job states when it ran")
    >>> shown(one, "fleet_gpus")
    '<data data-of="fleet_gpus" value="0">0</data>'
    >>> shown(one, "saving.value")
    '<data data-of="saving.value" value="">–</data>'
    """
    value = value_of(one, name)
    if value is None or value != value:
        return f'<data data-of="{name}" value="">{MISSING_VALUE_TEXT}</data>'
    return f'<data data-of="{name}" value="{safe(str(value))}">{safe(form(value))}</data>'


def layout_words(layout: str) -> str:
    """A layout in words: the number of instances of each profile.

    Examples
    --------
    >>> layout_words("4g.40gb:1,1g.10gb:3"), layout_words("full")
    ('4g.40gb + 3 × 1g.10gb', 'full GPU (MIG disabled)')
    """
    if layout == LAYOUT_FULL:
        return "full GPU (MIG disabled)"
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


def _months_left(found: Comparison) -> str | None:
    """Months from the end of the record until capacity is exhausted; ``12+`` where a year passes without it.

    0 where these GPUs do not carry the load of the record.
    """
    ends = found.exhaustion
    if found.headroom is not None and found.headroom.factor < 1.0:
        return "0"
    if ends.date is None or found.judged_to is None:
        return None if ends.probability is None else "12+"
    days = (date.fromisoformat(ends.date) - date.fromisoformat(found.judged_to[:10])).days
    return f"{max(days, 0) / DAYS_PER_MONTH:.0f}"


def late_sizes(one: Decision) -> list[str]:
    """Job sizes that miss their wait limit today."""
    return [size.size for size in one.service if size.today_p95_minutes > size.limit_minutes]


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def _weighted(one: Decision, field: str) -> float | None:
    """Mean over all jobs of a wait that is known by job size."""
    total = sum(row.jobs * float(getattr(row, field)) for row in one.service)
    return _ratio(total, sum(row.jobs for row in one.service))


def _teams(one: Decision) -> list[TeamRow]:
    return [row for row in one.teams if row.team != UNALLOCATED_TEAM]


def _sum(values: Sequence[float | None]) -> float | None:
    """Of what was measured everywhere; one gap leaves the sum unknown."""
    return None if any(value is None for value in values) else float(sum(value or 0.0 for value in values))


def _follows(before: str, after: str) -> bool:
    first, second = (_NUMBERED.fullmatch(name) for name in (before, after))
    return bool(first and second and first[1] == second[1] and int(second[2]) == int(first[2]) + 1)
