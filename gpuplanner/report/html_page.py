"""One self-contained HTML page from sections."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.column_headings import column_heading, unit_of
from gpuplanner.core.execution import import_optional
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.units import MISSING_VALUE_TEXT, figure_text
from gpuplanner.report.figure_formats import as_json, localised, safe, told, words_on

if TYPE_CHECKING:
    from altair.typing import ChartType


FRAGMENT = "application/vnd.gpuplanner.fragment+html"
"""Type under which a notebook output carries the fragment for the page."""

_SPEC = re.compile(r'<script type="application/json">.*?</script>', re.DOTALL)
_STILL = re.compile(r"</?noscript>")
_SECTION_CHART = re.compile(
    r'<div class="chart"[^>]*><script type="application/json">(.*?)</script>.*?</noscript></div>', re.DOTALL
)
_FOLD = re.compile(r"<details><summary><h2>.*?</summary>", re.DOTALL)
_HEADING = re.compile(r"<h2>.*?</h2>\s*", re.DOTALL)


class Section(str):
    """A fragment of the page: markup, made by the functions of :mod:`gpuplanner.report.html_page`.

    In a notebook it shows itself with still pictures; the page takes the same fragment with live charts.

    Examples
    --------
    >>> '<div class="gpuplanner"><p>a</p></div>' in Section("<p>a</p>")._repr_mimebundle_()["text/html"]
    True
    """

    __slots__ = ()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {FRAGMENT: str(self), "text/html": still(self)._repr_html_()}


@dataclass(frozen=True)
class Text:
    """A section, or a piece of one between charts, with the looks it has in a notebook.

    - ``html``: Markup; what it leaves open the browser closes.
    """

    html: str

    def _repr_html_(self) -> str:
        return f'<style>\n{section_css()}</style><div class="gpuplanner">{self.html}</div>'


def still(section: Section) -> Text:
    """Give a section as one piece of markup, with pictures in place of live charts.

    Examples
    --------
    >>> still(Section("<p>a</p>"))
    Text(html='<p>a</p>')
    """
    return Text(_STILL.sub("", _SPEC.sub("", section)))


def parts(section: Section) -> list[Text | dict[str, object]]:
    r"""Part a section at its charts, without its heading: the notebook has its own.

    Examples
    --------
    >>> parts(Section("<section><h2>Jobs</h2><p>None.</p></section>"))
    [Text(html='<section><p>None.</p></section>')]

    >>> parts(Section(fold("Jobs", "<p>None.</p>", about="nothing")))
    [Text(html='<section id="jobs" class="folded">\n<p>None.</p>\n</section>')]
    """
    found: list[Text | dict[str, object]] = []
    # A fold cannot hold what stands in several outputs.
    html = _FOLD.sub("", section).replace("</details></section>", "</section>")
    html = _HEADING.sub("", html)
    at = 0
    for match in _SECTION_CHART.finditer(html):
        found += [Text(html[at : match.start()]), json.loads(match[1])]
        at = match.end()
    return [*found, Text(html[at:])]


def charts_of(section: str) -> list[dict[str, object]]:
    """The specifications of the charts of a section, in order.

    Examples
    --------
    >>> charts_of("<p>none</p>")
    []
    """
    return [json.loads(match[1]) for match in _SECTION_CHART.finditer(section)]


def show(section: Section) -> None:
    """Display a section: text, live charts, tables."""
    display = import_optional("IPython.display", extra="notebook").display
    altair = import_optional("altair", extra="plot")
    plots.enable_offline_renderer()
    for part in parts(section):
        display(part if isinstance(part, Text) else altair.Chart.from_dict(part))


@functools.cache
def section_css() -> str:
    """The rules of what a page and a notebook share, all under the class ``gpuplanner``."""
    return (Path(__file__).parent / "section.css").read_text("utf-8")


MAX_ROWS = 200
"""Rows of a table that reach the page; longer ones stall it. The workbook has them all."""
_IN_WORDS = {"tenant": "team", "gpus": "GPUs", "active_gpus": "active GPUs", "gpu_model": "GPU model"} | {
    name: f"{name.split('_')[0]} GPUs" for name in ("requested_gpus", "allocated_gpus", "mean_gpus", "peak_gpus")
}
"""Headings of columns on a page, where the words of the column's name are not enough."""
LONG = 40
"""Characters from which a column of text is wrapped."""
FEWEST_WORDS = 4
"""Words of the glossary from which a page lists them."""
"""Of files that a chart option writes: a page of its own; a picture."""
_HERE = Path(__file__).parent
_SECTION = re.compile(
    r'<section id="([^"]*)"(?: class="folded(?: appendix)?"><details(?: open)?><summary>|>)<h2>(.*?)</h2>'
)
_APPENDIX = re.compile(r'<section id="[^"]*" class="folded appendix">.*?</section>\n?', re.DOTALL)
_CHART_MARKUP = '<script type="application/json">'


def section(title: str, *fragments: str) -> Section:
    r"""Put fragments under a heading that the navigation links to.

    Examples
    --------
    >>> print(section("Where time went", note("All hours.")))
    <section id="where-time-went"><h2>Where time went</h2>
    <p class="note">All hours.</p>
    </section>
    """
    body = "\n".join(fragments)
    return Section(f'<section id="{_anchor(title)}"><h2>{safe(title)}</h2>\n{body}\n</section>')


def fold(title: str, *fragments: str, about: str = "", appendix: bool = False) -> Section:
    """Put fragments under a heading that opens them: closed, it is one line.

    One of the appendix stands on a page of its own where there is one, see :func:`parted`.

    Examples
    --------
    >>> print(fold("Time", note("All hours."), about="hour by hour"))
    <section id="time" class="folded"><details><summary><h2>Time</h2> <span>hour by hour</span></summary>
    <p class="note">All hours.</p>
    </details></section>
    """
    said = f" <span>{safe(about)}</span>" if about else ""
    body = "\n".join(fragments)
    kind = "folded appendix" if appendix else "folded"
    opening = f'<section id="{_anchor(title)}" class="{kind}"><details><summary><h2>{safe(title)}</h2>{said}</summary>'
    return Section(f"{opening}\n{body}\n</details></section>")


def parted(body: str) -> tuple[str, str]:
    """Part a page from its appendix, whose folds are open.

    Examples
    --------
    >>> parted(fold("A", "a") + fold("B", "b", appendix=True))[1].count("<details open>")
    1
    """
    aside = "\n".join(found[0] for found in _APPENDIX.finditer(body))
    return _APPENDIX.sub("", body), aside.replace("<details><summary><h2>", "<details open><summary><h2>")


def paragraph(text: str) -> str:
    """A paragraph of plain text.

    Examples
    --------
    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{safe(text)}</p>"


def note(text: str) -> str:
    """A remark that stands out: an assumption, a limit, a warning.

    Examples
    --------
    >>> note("Prices of 2026-05-01.")
    '<p class="note">Prices of 2026-05-01.</p>'
    """
    return f'<p class="note">{safe(text)}</p>'


def pair(left: str, right: str) -> str:
    """Two fragments side by side where there is room; one alone takes all of it.

    Examples
    --------
    >>> pair("<p>a</p>", "")
    '<div class="pair halves"><div><p>a</p></div></div>'
    """
    parts = "".join(f"<div>{part}</div>" for part in (left, right) if part)
    return f'<div class="pair halves">{parts}</div>'


def figure(
    chart: ChartType,
    *,
    title: str,
    alt: str,
    numbers: pl.DataFrame | None = None,
    formats: Mapping[str, str] | None = None,
) -> str:
    """A chart with its message in words and its numbers as a table.

    The chart is drawn in the browser from the specification embedded here; without scripts, or in a mail
    program, a still picture takes its place.
    """
    spec = {key: value for key, value in plots.chart_spec(chart).items() if key != "title"}
    spec["description"] = f"{title}. {alt}"
    picture = plots.svg_address(plots.chart_to_svg(spec))
    twin = ""
    if numbers is not None:
        rows = table(numbers, caption=title, formats=formats)
        twin = f"<details><summary>Data as a table</summary>\n{rows}\n</details>\n"
    message = safe(alt)
    return (
        f'<figure>\n<figcaption><h3>{safe(title)}</h3><p aria-hidden="true">{message}</p></figcaption>\n'
        f'<div class="chart" role="img" aria-label="{message}">{_CHART_MARKUP}{as_json(spec)}</script><div></div>'
        f'<noscript><img alt="{message}" src="{picture}"></noscript></div>\n'
        f"{twin}</figure>"
    )


def table(
    frame: pl.DataFrame,
    *,
    caption: str,
    formats: Mapping[str, str] | None = None,
    headings: Mapping[str, str] | None = None,
    max_rows: int = MAX_ROWS,
    muted: Sequence[bool] | None = None,
) -> str:
    """An HTML table: numbers to the right with thousands separators, text escaped, missing values as a dash.

    Rows that are ``muted`` are grey; None: none are.

    Examples
    --------
    >>> html = table(pl.DataFrame({"tenant": ["a"], "cost_usd": [1234.5]}), caption="Cost")
    >>> '<th scope="row">a</th><td class="number">1,234.50</td>' in html
    True
    """
    specs, names = formats or {}, headings or {}
    side = [_side(series) for series in frame.get_columns()]
    head = "".join(
        f'<th scope="col"{css}>{told(names.get(name) or _IN_WORDS.get(name) or column_heading(name))}</th>'
        for name, css in zip(frame.columns, side, strict=True)
    )
    columns = [_texts(series.head(max_rows), specs.get(series.name)) for series in frame.get_columns()]
    named = bool(frame.width) and not frame.dtypes[0].is_numeric()
    body = []
    for number, row in enumerate(zip(*columns, strict=True)):
        grey = ' class="muted"' if muted is not None and muted[number] else ""
        cells = [f"<td{css}>{text}</td>" for text, css in zip(row, side, strict=True)]
        if named:
            cells[0] = f'<th scope="row"{side[0]}>{row[0]}</th>'
        body.append(f"<tr{grey}>{''.join(cells)}</tr>")
    rest = frame.height - max_rows
    more = f'<p class="more">First {max_rows:,} of {frame.height:,} rows.</p>\n' if rest > 0 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(caption)}">\n'
        f"<table><caption>{safe(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table>\n{more}</div>"
    )


def answers(rows: Mapping[str, str], *, caption: str, answer: str = "value") -> str:
    """A table of two columns: name and value.

    Examples
    --------
    >>> '<th scope="row">GPU model</th><td>H100</td>' in answers({"GPU model": "H100"}, caption="Facts")
    True
    """
    return table(pl.DataFrame({"name": list(rows), answer: list(rows.values())}), caption=caption)


def render_page(
    body_html: str,
    *,
    title: str,
    subtitle: str,
    provenance: Mapping[str, str],
    decision: str | None = None,
    badges: Sequence[tuple[str, bool]] = (),
    refresh_s: float | None = None,
    locale: str = "en",
) -> str:
    """Wrap fragments into one page that needs nothing else, with numbers and days as a locale writes them.

    Style, scripts and data are inline. The page's policy forbids every request and every script but the two
    that are part of it, named by their hash; so that text which slipped through as markup could not run.

    Examples
    --------
    >>> body = section("A", note("n")) + section("B", note("m"))
    >>> page = render_page(body, title="T", subtitle="S", provenance={"seed": "0"})
    >>> page.count("<script"), '<a href="#a">A</a>' in page
    (0, True)
    """
    scripts = []
    if _CHART_MARKUP in body_html:
        drawing = f"const NAMES_SHARE = {plots.NAMES_SHARE};\n" + (_HERE / "page.js").read_text("utf-8")
        scripts = [_bundle(), drawing]
    links = "".join(f'<li><a href="#{anchor}">{text}</a></li>' for anchor, text in _SECTION.findall(body_html))
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links.count("<li>") > 1 else ""
    facts = (f"<dt>{safe(key)}</dt><dd>{safe(value)}</dd>" for key, value in provenance.items())
    body_html += _words(body_html)
    html = Template((_HERE / "page.html").read_text("utf-8")).substitute(
        policy=_policy(scripts),
        refresh="" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s:.0f}">\n',
        title=safe(title),
        header=_header(title, subtitle, decision, badges, body_html),
        style=section_css() + (_HERE / "page.css").read_text("utf-8"),
        nav=nav,
        body=body_html,
        rests=safe(_named(list(provenance))),
        provenance="\n".join(facts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )
    return localised(html, locale)


def _named(facts: Sequence[str], most: int = 4) -> str:
    """What the provenance says, in one line."""
    first = ", ".join(name[:1].lower() + name[1:] for name in facts[:most])
    return first + (f" and {len(facts) - most} more" if len(facts) > most else "")


def _words(body: str) -> str:
    """What the words of a page mean, folded; nothing on a page that has none of them."""
    used = words_on(body)
    if len(used) < FEWEST_WORDS:
        return ""
    table = answers(used, caption="Terms of this page", answer="meaning")
    return fold("Glossary", table, about=f"{len(used)} terms of this page")


def _header(title: str, subtitle: str, decision: str | None, badges: Sequence[tuple[str, bool]], body: str) -> str:
    if decision is None:
        return f"<h1>{safe(title)}</h1>\n<p>{safe(subtitle)}</p>"
    target = ' href="#data-quality"' if 'id="data-quality"' in body else ""
    corner = "".join(f'<a class="badge{" warns" * warns}"{target}>{text}</a>' for text, warns in badges)
    kicker = f'<p class="kicker"><span>{safe(title)} · {safe(subtitle)}</span><span>{corner}</span></p>'
    return f"{kicker}\n<h1>{safe(decision).replace('. ', '.<br>', 1)}</h1>"


@functools.cache
def _bundle() -> str:
    """The Vega runtime, as one script that defines ``vegaEmbed``."""
    converter = import_optional("vl_convert", extra="plot")
    bundle: str = converter.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def roomy(chart: ChartType) -> ChartType:
    """Leave room at both sides for names in a font wider than the one that pictures are laid out with."""
    return chart.properties(padding={"left": 40, "top": 5, "right": 60, "bottom": 5})


def told_svg(charts: Sequence[ChartType], words: Sequence[str]) -> str:
    """One picture of several charts, with what they say in words as its title.

    Examples
    --------
    >>> import polars as pl
    >>> costs = plots.plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD")
    >>> told_svg([costs], ["a costs 1 USD."]).count("<title>a costs 1 USD.</title>")
    1
    """
    opening, rest = plots.charts_to_svg(charts).split(">", 1)
    return f'{opening} role="img"><title>{escape(" ".join(words))}</title>{rest}'


def write_drawn(path: str | Path, *, page: Callable[[], str], picture: Callable[[], str], locale: str = "en") -> Path:
    """Write a page of its own (``.html``) or a picture (``.svg``), as the ending of the name says, for a locale."""
    text = localised(picture() if Path(path).suffix == ".svg" else page(), locale)
    return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _side(series: pl.Series) -> str:
    if series.dtype.is_numeric():
        return ' class="number"'
    long = series.dtype == pl.String and (series.str.len_chars().max() or 0) > LONG  # type: ignore[operator]
    return ' class="long"' if long else ""


def _texts(series: pl.Series, spec: str | None) -> list[str]:
    """Cells of a column as escaped text: counts and money exactly, measures with three figures, shares as per cents."""
    if spec is None:
        unit = unit_of(series.name)
        if isinstance(series.dtype, pl.Decimal):
            spec = f",.{series.dtype.scale}f"
        elif series.dtype.is_integer():
            spec = ",d"
        else:
            spec = unit.python if unit and (unit.symbol == "%" or unit.is_money) else ""
    return [safe(_text(value, spec)) for value in series.to_list()]


def _text(value: object, spec: str) -> str:
    match value:
        case None:
            return MISSING_VALUE_TEXT
        case bool():
            return "yes" if value else "no"
        case int() | float() | Decimal():
            return figure_text(value, spec).replace("-", "−")
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}" + (f" {value:%Z}" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case _:
            return str(value)
