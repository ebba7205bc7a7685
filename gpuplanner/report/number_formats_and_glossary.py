"""Formats of figures in HTML: numbers, units, localization and the glossary."""

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
from typing import TYPE_CHECKING, Any

from gpuplanner.core.errors import escape_controls
from gpuplanner.core.units_and_number_formats import (
    LOCALE_BY_NAME,
    MISSING_VALUE_TEXT,
    UNALLOCATED_TEAM,
    day_text,
    localize_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.decision_types import CAUSES, LAYOUT_FULL, Decision, TeamRow
from gpuplanner.report.chart_rendering import VEGA_NUMBER_LOCALE

if TYPE_CHECKING:  # what compares policies takes seconds to import, and only names types here
    from gpuplanner.decision.comparison_record import Comparison

_GLOSSARY_PATH = Path(__file__).parent / "glossary.csv"
"""File of the glossary terms."""
_HTML_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
"""HTML tags, and scripts and styles with their content."""
_PAGE_PARTS = re.compile(
    r'(?P<chart><script type="application/json">.*?</script>)|<(?P<kept>script|style|code|pre)\b.*?</(?P=kept)>'
    r'|(?P<facts><dl>.*?</dl>)|(?P<named><th scope="row".*?</th>)|<[^>]*>',
    re.DOTALL,
)
"""Parts of a page that are not plain text: charts, code and styles, provenance, row headings and tags."""
_TEXT_ATTRIBUTE_PATTERN = re.compile(r'(?<= )(aria-label|alt|title)="([^"]*)"')
"""Attributes of a tag with text that a reader sees or hears."""
_EMBEDDED_SVG = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
"""SVG image embedded as base64; the group is its data."""
_CHART_TEXT_KEYS = ("text", "title", "description", "subtitle", "word", "label")
"""Keys of a Vega-Lite specification, and columns of its data, whose values are texts that a reader sees."""


def escape_html(text: str) -> str:
    r"""Escape text from data for HTML; tags and control characters show as text.

    Examples
    --------
    >>> escape_html("<b>\u202ecod")
    '&lt;b&gt;\\u202ecod'
    """
    return escape(escape_controls(text))


@dataclass(frozen=True)
class GlossaryTerm:
    """A term of the glossary.

    - ``word``: Term as the glossary lists it.
    - ``forms``: Other forms in which pages use the term.
    - ``meaning``: Definition.
    """

    word: str
    forms: tuple[str, ...]
    meaning: str


@functools.cache
def read_glossary() -> tuple[GlossaryTerm, ...]:
    """Read the terms of ``glossary.csv``, in the order of the file."""
    with _GLOSSARY_PATH.open(encoding="utf-8", newline="") as stream:
        return tuple(
            GlossaryTerm(row["word"], tuple(form for form in row["also"].split("|") if form), row["meaning"])
            for row in csv.DictReader(stream)
        )


def heading_html(text: str) -> str:
    """Render a column heading as HTML; a term of the glossary shows its meaning under the pointer.

    Examples
    --------
    >>> heading_html("nodes"), heading_html("PUE [%]")[:12]
    ('nodes', '<abbr title=')
    """
    stem, _, unit = text.partition(" [")
    meaning = _meanings_by_form().get(stem.lower())
    if meaning is None:
        return escape_html(text)
    return f'<abbr title="{escape(meaning)}">{escape_html(stem)}</abbr>' + (f" [{escape_html(unit)}" if unit else "")


def glossary_terms_in(html: str) -> dict[str, str]:
    """Find the terms of the glossary that a page uses, with their meanings.

    Examples
    --------
    >>> list(glossary_terms_in("<p>Allocated but idle.</p>"))
    ['allocated', 'allocated but idle']
    """
    text = unescape(_HTML_TAGS.sub(" ", html)).lower()
    return {
        term.word: term.meaning
        for term in read_glossary()
        if any(re.search(rf"(?<!\w){re.escape(form.lower())}(?!\w)", text) for form in (term.word, *term.forms))
    }


@functools.cache
def _meanings_by_form() -> Mapping[str, str]:
    """Look up the meaning of each term by every form of it, in lower case."""
    return {form.lower(): term.meaning for term in read_glossary() for form in (term.word, *term.forms)}


def to_script_json(spec: Mapping[str, object]) -> str:
    """Write JSON that is safe inside an HTML script element."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def localize_page(html: str, locale: str) -> str:
    """Write numbers and dates of a rendered page in the format of a locale.

    Code, provenance and names in tables stay unchanged.

    Examples
    --------
    >>> localize_page('<p title="1.5 h">1,344.5 h</p><code>0.5</code><th scope="row">0.5</th>', "de")
    '<p title="1,5 h">1.344,5 h</p><code>0.5</code><th scope="row">0.5</th>'
    """
    if locale == next(iter(LOCALE_BY_NAME)):
        return html
    pieces, position = list[str](), 0
    for match in _PAGE_PARTS.finditer(html):
        pieces += [localize_text(html[position : match.start()], locale), _localize_part(match, locale)]
        position = match.end()
    return "".join([*pieces, localize_text(html[position:], locale)])


def _localize_part(match: re.Match[str], locale: str) -> str:
    """Localize one part of a page that :data:`_PAGE_PARTS` matches; code, styles and provenance stay unchanged."""
    if match["chart"]:
        return _localize_chart(match["chart"], locale)
    if match["named"]:
        return localize_text(match["named"], locale, numbers=False)
    return match[0] if match["kept"] or match["facts"] else _localize_tag(match[0], locale)


def _localize_tag(tag: str, locale: str) -> str:
    """Localize the text attributes of a tag, and the text of a picture embedded in it."""
    tag = _TEXT_ATTRIBUTE_PATTERN.sub(lambda match: f'{match[1]}="{localize_text(match[2], locale)}"', tag)
    return _EMBEDDED_SVG.sub(lambda match: f"data:image/svg+xml;base64,{_localize_svg(match[1], locale)}", tag)


def _localize_svg(svg_base64: str, locale: str) -> str:
    """Localize the text of an SVG picture that is encoded as base64."""
    svg = localize_page(base64.b64decode(svg_base64).decode("utf-8"), locale)
    return base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _localize_chart(script: str, locale: str) -> str:
    """Give an embedded chart the number format of a locale and localize its texts; its data stay unchanged."""
    opening, _, json_text = script.partition(">")
    spec = _localize_spec(json.loads(json_text.removesuffix("</script>")), locale)
    number_locale = LOCALE_BY_NAME[locale]
    number_format = VEGA_NUMBER_LOCALE | {"decimal": number_locale.decimal, "thousands": number_locale.thousands}
    spec["config"] = spec.get("config", {}) | {"locale": {"number": number_format}}
    return f"{opening}>{to_script_json(spec)}</script>"


def _localize_spec(value: Any, locale: str, key: str = "") -> Any:  # noqa: ANN401 - JSON of any shape
    """Localize the texts of a Vega-Lite specification, recursively."""
    if isinstance(value, dict):
        return {child_key: _localize_spec(child, locale, child_key) for child_key, child in value.items()}
    if isinstance(value, list):
        return [_localize_spec(child, locale, key) for child in value]
    return localize_text(value, locale) if isinstance(value, str) and key in _CHART_TEXT_KEYS else value


MetricValue = str | int | float | None
"""Value of a number of the report; None: not measured."""
MetricFormat = Callable[[str | int | float], str]
"""Function that formats a number of the report as text."""

MAX_NAMED_NODE_RANGES = 3
"""Maximum number of ranges in a list of node names; a longer list shows its first and last name."""
MEAN_DAYS_PER_MONTH = 365.25 / 12
"""Mean length of a calendar month [days]."""
_NUMBERED_NAME = re.compile(r"(.*?)(\d+)")
"""Name that ends in a number; the groups are prefix and number."""


def format_count(value: str | int | float) -> str:
    """Format a count, or hours rounded to a whole number.

    Examples
    --------
    >>> format_count(2179.05), format_count(-1200)
    ('2,179', '−1,200')
    """
    return f"{float(value):,.0f}".replace("-", "−").replace("−0", "0")


def format_wait(value: str | int | float) -> str:
    """Format a queue wait given in minutes: in minutes below two hours, else in hours.

    Examples
    --------
    >>> format_wait(4.2), format_wait(933)
    ('4 min', '15.6 h')
    """
    return wait_text(float(value))


def format_mean_wait(value: str | int | float) -> str:
    """Format a mean queue wait in tenths of a minute.

    Examples
    --------
    >>> format_mean_wait(0.537)
    '0.5 min'
    """
    return f"{float(value):,.1f} min"


def format_tenth_percent(value: str | int | float) -> str:
    """Format a share [0-1] in percent with one decimal, without the sign.

    Examples
    --------
    >>> format_tenth_percent(0.0941)
    '9.4'
    """
    return f"{100 * float(value):.1f}"


def format_share(value: str | int | float) -> str:
    """Format a share [0-1] as whole percent, with tenths below one percent.

    Examples
    --------
    >>> format_share(0.304), format_share(0.0042), format_share(0.0001), format_share(0), format_share(1)
    ('30 %', '0.4 %', '<0.1 %', '0 %', '100 %')
    """
    share = float(value)
    if 0 < share < 0.0005:
        return "<0.1 %"
    return percent_text(share, ".1f" if 0 < share < 0.00995 else ".0f")


def format_whole_percent(value: str | int | float) -> str:
    """Format a percentage that is a whole number.

    Examples
    --------
    >>> format_whole_percent(82), format_whole_percent(0)
    ('82 %', '0')
    """
    return f"{value} %" if value else "0"


def format_day(value: str | int | float) -> str:
    """Format an ISO date as a calendar day.

    Examples
    --------
    >>> format_day("2027-03-15")
    '15 Mar 2027'
    """
    return day_text(str(value))


def _cause_percent(comparison: Comparison, cause: str) -> int | None:
    """Look up the percentage of hours waited that a cause accounts for; None if causes were not determined."""
    return None if comparison.waits is None else comparison.waits.cause_percent.get(cause)


DECISION_METRICS: Mapping[str, Callable[[Decision], MetricValue]] = {
    "released_gpus": lambda decision: max(decision.fleet_gpus - decision.gpus, 0),
    "more_gpus": lambda decision: max(decision.gpus - decision.fleet_gpus, 0),
    "all_jobs": lambda decision: sum(row.jobs for row in decision.teams),
    "all_allocated": lambda decision: sum(row.allocated_gpu_hours for row in decision.teams),
    "all_idle": lambda decision: _sum_or_none([row.idle_gpu_hours for row in _allocated_teams(decision)]),
    "all_busy": lambda decision: _sum_or_none([row.busy_gpu_hours for row in decision.teams]),
    "teams_allocated": lambda decision: sum(row.allocated_gpu_hours for row in _allocated_teams(decision)),
    "use_known_share": lambda decision: _ratio_or_none(
        sum((row.busy_gpu_hours or 0.0) + (row.idle_gpu_hours or 0.0) for row in _allocated_teams(decision)),
        sum(row.allocated_gpu_hours for row in _allocated_teams(decision))),
    "busy_as_recommended": lambda decision: _ratio_or_none(_sum_or_none([row.busy_gpu_hours for row in decision.teams]),
        sum(row.allocated_gpu_hours for row in decision.teams) * decision.gpus_mean / max(decision.fleet_gpus, 1)),
    "delayed_share": lambda decision: _ratio_or_none(
        sum(row.jobs_delayed for row in decision.service), sum(row.jobs for row in decision.service)),
    "other_jobs": lambda decision: sum(row.jobs for row in _allocated_teams(decision)[MAX_NAMED_TEAMS:]),
    "other_allocated": lambda decision: sum(
        row.allocated_gpu_hours for row in _allocated_teams(decision)[MAX_NAMED_TEAMS:]),
    "other_idle": lambda decision: _sum_or_none(
        [row.idle_gpu_hours for row in _allocated_teams(decision)[MAX_NAMED_TEAMS:]]),
}  # fmt: skip
"""Functions that compute a number of the report from a decision, by its name."""
MAX_NAMED_TEAMS = 6
"""Number of teams with a row of their own in the table by team."""
SHARE_PREFIX = "share of "
"""Prefix of the name of a number that asks for its share of all installed GPU-hours."""
COMPARISON_METRICS: Mapping[str, Callable[[Comparison], MetricValue]] = {
    "months_left": lambda comparison: _months_to_exhaustion(comparison),
    "headroom_share": lambda comparison: None if comparison.headroom is None else comparison.headroom.factor - 1.0,
    "months_left_today": lambda comparison: 0 if sizes_over_limit(comparison.decision) else None,
    "waiting": lambda record: sum(row.waited for row in record.waits.causes.job_size) if record.waits else None,
    **{f"waiting.{cause}": partial(_cause_percent, cause=cause) for cause in CAUSES},
}
"""Functions that compute a number of the report from a policy comparison, by its name."""


def metric_value(source: Decision | Comparison, name: str) -> MetricValue:
    """Look up the value of a number (metric) of a decision or comparison by its name.

    Parameters
    ----------
    source : Decision or Comparison
        Record that has the number.
    name : str
        Key of :data:`DECISION_METRICS` or :data:`COMPARISON_METRICS`, such a key after ``"share of "``, or a path of
        fields such as ``saving.value``.

    Returns
    -------
    str, int, float or None
        None if the number was not measured.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> metric_value(make_empty_decision(Scenario(), "no job states when it ran"), "fleet_gpus")
    0
    """
    if name in DECISION_METRICS and isinstance(source, Decision):
        return DECISION_METRICS[name](source)
    if name in COMPARISON_METRICS and not isinstance(source, Decision):
        return COMPARISON_METRICS[name](source)
    if name.startswith(SHARE_PREFIX):
        part, whole = metric_value(source, name.removeprefix(SHARE_PREFIX)), metric_value(source, "all_allocated")
        return None if part is None or not whole else float(part) / float(whole)
    value: object = source
    for part in name.split("."):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    assert value is None or isinstance(value, str | int | float), name
    return value


def metric_html(source: Decision | Comparison, name: str, form: MetricFormat = format_count) -> str:
    """Render a number as an HTML ``data`` element with its name; a dash if it was not measured.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> one = make_empty_decision(Scenario(), "no job states when it ran")
    >>> metric_html(one, "fleet_gpus")
    '<data data-of="fleet_gpus" value="0">0</data>'
    >>> metric_html(one, "saving.value")
    '<data data-of="saving.value" value="">–</data>'
    """
    value = metric_value(source, name)
    if value is None or value != value:
        return f'<data data-of="{name}" value="">{MISSING_VALUE_TEXT}</data>'
    return f'<data data-of="{name}" value="{escape_html(str(value))}">{escape_html(form(value))}</data>'


def describe_layout(layout: str) -> str:
    """Describe a layout by the number of instances of each profile.

    Examples
    --------
    >>> describe_layout("4g.40gb:1,1g.10gb:3"), describe_layout("full")
    ('4g.40gb + 3 × 1g.10gb', 'full GPU (MIG disabled)')
    """
    if layout == LAYOUT_FULL:
        return "full GPU (MIG disabled)"
    parts = []
    for part in layout.split(","):
        name, _, number = part.partition(":")
        parts.append(name if number in ("", "1") else f"{number} × {name}")
    return " + ".join(parts)


def describe_nodes(names: Sequence[str]) -> str:
    """List node names; consecutive numbers become a range, and many ranges only the first and last name.

    Examples
    --------
    >>> describe_nodes(["n01", "n02", "n03", "n07"]), describe_nodes([f"a{n}-x{7 * n}" for n in range(1, 40)])
    ('n01–n03, n07', 'a1-x7 … a39-x273 (39 nodes)')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _is_next_name(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    if len(runs) > MAX_NAMED_NODE_RANGES:
        return f"{names[0]} … {names[-1]} ({len(names):,} nodes)"
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _months_to_exhaustion(comparison: Comparison) -> str | None:
    """Format the months from the end of the record to the exhaustion date; ``12+`` if none falls within a year.

    ``0`` if the recommended GPUs do not carry the load of the record within the wait limits.
    """
    exhaustion = comparison.exhaustion
    if comparison.headroom is not None and comparison.headroom.factor < 1.0:
        return "0"
    if exhaustion.date is None or comparison.evaluated_to is None:
        return None if exhaustion.probability is None else "12+"
    days = (date.fromisoformat(exhaustion.date) - date.fromisoformat(comparison.evaluated_to[:10])).days
    return f"{max(days, 0) / MEAN_DAYS_PER_MONTH:.0f}"


def sizes_over_limit(decision: Decision) -> list[str]:
    """List the job sizes whose simulated p95 wait of today exceeds their limit."""
    return [size.size for size in decision.service if size.today_p95_minutes > size.limit_minutes]


def _ratio_or_none(part: float | None, total: float) -> float | None:
    """Divide two numbers; None if the part is not known or the total is zero."""
    return None if part is None or not total else part / total


def _allocated_teams(decision: Decision) -> list[TeamRow]:
    """List the rows of teams of a decision, without the row of unallocated GPU-hours."""
    return [row for row in decision.teams if row.team != UNALLOCATED_TEAM]


def _sum_or_none(values: Sequence[float | None]) -> float | None:
    """Sum values; None if one of them was not measured."""
    return None if any(value is None for value in values) else float(sum(value or 0.0 for value in values))


def _is_next_name(before: str, after: str) -> bool:
    """Whether a node name follows another one: the same prefix and the next number."""
    first, second = (_NUMBERED_NAME.fullmatch(name) for name in (before, after))
    return bool(first and second and first[1] == second[1] and int(second[2]) == int(first[2]) + 1)
