"""Sections, tables and charts as HTML, and a self-contained page made of them."""

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
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import column_heading, unit_of
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT, figure_text
from gpuplanner.report.number_formats_and_glossary import (
    escape_html,
    glossary_terms_in,
    heading_html,
    localize_page,
    to_script_json,
)

if TYPE_CHECKING:
    from altair.typing import ChartType


FRAGMENT_MIME_TYPE = "application/vnd.gpuplanner.fragment+html"
"""MIME type under which a notebook output carries an HTML fragment for the report page."""

_CHART_SCRIPT_PATTERN = re.compile(r'<script type="application/json">.*?</script>', re.DOTALL)
"""Script element with the Vega-Lite specification of a chart."""
_NOSCRIPT_TAG = re.compile(r"</?noscript>")
"""Tags around the static image of a chart."""
_CHART_BLOCK_PATTERN = re.compile(
    r'<div class="chart" role="img" aria-label="([^"]*)"><script type="application/json">(.*?)</script><div></div>'
    r"(?!<noscript>)",
    re.DOTALL,
)
"""HTML of a chart that has no picture yet; the groups are its text alternative and its Vega-Lite specification."""
_CHART_REST = "</div>"
"""HTML of a chart after its picture."""
_FOLDED_HEADING = re.compile(r"<details><summary><h2>.*?</summary>", re.DOTALL)
"""Heading of a folded section."""
_SECTION_HEADING = re.compile(r"<h2>.*?</h2>\s*", re.DOTALL)
"""Heading of a section that is not folded."""
_ALTAIR_CHART_TYPE = ("altair.vegalite.v6.api", "TopLevelMixin")
"""Module and name of the type of all Altair charts."""


class HtmlSection(str):
    """A fragment of the page: HTML made by the functions of :mod:`gpuplanner.report.html_page`.

    In a notebook it shows static pictures; the page uses the same fragment with interactive charts.

    Examples
    --------
    >>> '<div class="gpuplanner"><p>a</p></div>' in HtmlSection("<p>a</p>")._repr_mimebundle_()["text/html"]
    True
    """

    __slots__ = ()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the section as HTML for notebooks, and as a fragment for the report page, by MIME type."""
        pictured = HtmlSection(add_pictures(self))  # drawn once for both
        return {FRAGMENT_MIME_TYPE: str(pictured), "text/html": to_still_text(pictured)._repr_html_()}


@dataclass(frozen=True)
class Text:
    """HTML of a section, or of a part between its charts, which a notebook displays with the style sheet.

    - ``html``: HTML; the browser closes open tags.
    """

    html: str

    def _repr_html_(self) -> str:
        """Return the HTML with the style sheet, for notebooks."""
        return f'<style>\n{section_css()}</style><div class="gpuplanner">{self.html}</div>'


def to_still_text(section: HtmlSection) -> Text:
    """Convert a section to HTML with pictures instead of interactive charts.

    Examples
    --------
    >>> to_still_text(HtmlSection("<p>a</p>"))
    Text(html='<p>a</p>')
    """
    return Text(_NOSCRIPT_TAG.sub("", _CHART_SCRIPT_PATTERN.sub("", add_pictures(section))))


def add_pictures(html: str) -> str:
    """Draw the charts of sections, for readers without scripts; a section that stays in a notebook needs no pictures.

    Examples
    --------
    >>> add_pictures("<p>a</p>")
    '<p>a</p>'
    """

    def add_picture(block: re.Match[str]) -> str:
        picture = plots.svg_data_url(plots.chart_to_svg(json.loads(block[2])))
        return f'{block[0]}<noscript><img alt="{block[1]}" src="{picture}"></noscript>'

    return _CHART_BLOCK_PATTERN.sub(add_picture, html)


def split_section(section: HtmlSection) -> list[Text | dict[str, object]]:
    r"""Split a section into HTML and Vega-Lite specifications, without its heading, since the notebook has its own.

    Examples
    --------
    >>> split_section(HtmlSection("<section><h2>Jobs</h2><p>None.</p></section>"))
    [Text(html='<section><p>None.</p></section>')]

    >>> split_section(HtmlSection(fold("Jobs", "<p>None.</p>", about="nothing")))
    [Text(html='<section id="jobs" class="folded">\n<p>None.</p>\n</section>')]
    """
    pieces: list[Text | dict[str, object]] = []
    # A fold cannot hold what stands in several outputs; what a page shows unfolded is folded, for want of room.
    html = _FOLDED_HEADING.sub("", section).replace("</details></section>", "</section>")
    html = html.replace("<details open>", "<details>")
    html = _SECTION_HEADING.sub("", html)
    position = 0
    for match in _CHART_BLOCK_PATTERN.finditer(html):
        pieces += [Text(html[position : match.start()]), json.loads(match[2])]
        position = match.end() + len(_CHART_REST)
    return [*pieces, Text(html[position:])]


def chart_specs(section: str) -> list[dict[str, object]]:
    """Extract the Vega-Lite specifications of the charts of a section, in order.

    Examples
    --------
    >>> chart_specs("<p>none</p>")
    []
    """
    return [json.loads(match[2]) for match in _CHART_BLOCK_PATTERN.finditer(section)]


def display_section(section: HtmlSection) -> None:
    """Display a section in a notebook: text, interactive charts and tables.

    Charts of the user's own are displayed without a network from then on; Altair's default loads its runtime.
    """
    ipython = import_optional("IPython", extra="notebook")
    if (shell := ipython.get_ipython()) is not None:  # by its name, since Altair is not needed to show a section
        formatter = shell.display_formatter.mimebundle_formatter
        formatter.for_type_by_name(*_ALTAIR_CHART_TYPE, lambda chart: plots.chart_outputs(chart.to_dict()))
    for part in split_section(section):
        if isinstance(part, Text):
            ipython.display.display(part)
        else:
            ipython.display.display(plots.chart_outputs(part), raw=True)


@functools.cache
def section_css() -> str:
    """Read the style sheet that pages and notebooks share, under the class ``gpuplanner``."""
    return (Path(__file__).parent / "section.css").read_text("utf-8")


MAX_TABLE_ROWS = 200
"""Maximum rows of a table on a page; the table files have all rows."""
_TABLE_COLUMN_HEADINGS = {"tenant": "team", "gpus": "GPUs", "active_gpus": "active GPUs", "gpu_model": "GPU model"} | {
    name: f"{name.split('_')[0]} GPUs" for name in ("requested_gpus", "allocated_gpus", "mean_gpus", "peak_gpus")
}
"""Headings of columns whose names alone would not be clear."""
MIN_WRAPPED_CHARACTERS = 40
"""Length above which texts of a table column are wrapped [characters]."""
MIN_GLOSSARY_TERMS = 4
"""Minimum number of glossary terms on a page for it to list them."""

_REPORT_FOLDER = Path(__file__).parent
"""Folder of this module with style sheets, scripts and templates."""
_SECTION_START_PATTERN = re.compile(
    r'<section id="([^"]*)"(?: class="folded(?: appendix)?"><details(?: open)?><summary>|>)<h2>(.*?)</h2>'
)
"""Start of a section; the groups are its anchor and its heading, for the navigation."""
_APPENDIX_SECTION_PATTERN = re.compile(r'<section id="[^"]*" class="folded appendix">.*?</section>\n?', re.DOTALL)
"""Whole section that belongs to the appendix."""
_CHART_SCRIPT_TAG = '<script type="application/json">'
"""Start of the embedded specification of a chart."""


def section(title: str, *fragments: str) -> HtmlSection:
    r"""Put fragments under a heading that the navigation links to.

    Examples
    --------
    >>> print(section("Where time went", note("All hours.")))
    <section id="where-time-went"><h2>Where time went</h2>
    <p class="note">All hours.</p>
    </section>
    """
    body = "\n".join(fragments)
    return HtmlSection(f'<section id="{_anchor(title)}"><h2>{escape_html(title)}</h2>\n{body}\n</section>')


def fold(title: str, *fragments: str, about: str = "", appendix: bool = False) -> HtmlSection:
    """Put HTML fragments under a heading that unfolds them when it is clicked.

    Parameters
    ----------
    title : str
        Heading.
    *fragments : str
        HTML.
    about : str
        Text beside the heading.
    appendix : bool
        Whether the section moves to the appendix, see :func:`split_appendix`.

    Examples
    --------
    >>> print(fold("Time", note("All hours."), about="hour by hour"))
    <section id="time" class="folded"><details><summary><h2>Time</h2> <span>hour by hour</span></summary>
    <p class="note">All hours.</p>
    </details></section>
    """
    about_html = f" <span>{escape_html(about)}</span>" if about else ""
    summary = f"<summary><h2>{escape_html(title)}</h2>{about_html}</summary>"
    body = "\n".join(fragments)
    kind = "folded appendix" if appendix else "folded"
    opening = f'<section id="{_anchor(title)}" class="{kind}">'
    return HtmlSection(f"{opening}<details>{summary}\n{body}\n</details></section>")


def split_appendix(body: str) -> tuple[str, str]:
    """Split the HTML of a page into page and appendix; the sections of the appendix are unfolded.

    Examples
    --------
    >>> split_appendix(fold("A", "a") + fold("B", "b", appendix=True))[1].count("<details open>")
    1
    """
    appendix = "\n".join(match[0] for match in _APPENDIX_SECTION_PATTERN.finditer(body))
    return _APPENDIX_SECTION_PATTERN.sub("", body), appendix.replace(
        "<details><summary><h2>", "<details open><summary><h2>"
    )


def paragraph(text: str) -> str:
    """Render a paragraph of plain text.

    Examples
    --------
    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{escape_html(text)}</p>"


def note(text: str) -> str:
    """Render a remark that stands out: an assumption, a limit or a warning.

    Examples
    --------
    >>> note("Prices of 2026-05-01.")
    '<p class="note">Prices of 2026-05-01.</p>'
    """
    return f'<p class="note">{escape_html(text)}</p>'


def pair(left: str, right: str) -> str:
    """Put two HTML fragments side by side if there is room; if one is empty, the other takes the whole width.

    Examples
    --------
    >>> pair("<p>a</p>", "")
    '<div class="pair halves"><div><p>a</p></div></div>'
    """
    parts = "".join(f"<div>{part}</div>" for part in (left, right) if part)
    return f'<div class="pair halves">{parts}</div>'


def figure(
    chart: ChartType, *, title: str, alt: str, numbers: pl.DataFrame | None = None,
    formats: Mapping[str, str] | None = None, source: str = "",
) -> str:  # fmt: skip
    """Render a chart with its title, its message and its data as a table.

    The browser draws the chart from the embedded specification; :func:`add_pictures` adds the picture without scripts.

    Parameters
    ----------
    chart : altair chart
        Chart of this package.
    title : str
        Title.
    alt : str
        Message of the chart in words, which is also its text alternative.
    numbers : polars.DataFrame, optional
        Data of the chart.
    formats : mapping of str to str, optional
        Format specifications by column of `numbers`.
    source : str
        File beside the page with every value that is drawn, where `numbers` are a summary.

    Returns
    -------
    str
        HTML.
    """
    spec = {key: value for key, value in plots.chart_spec(chart).items() if key != "title"}
    spec["description"] = f"{title}. {alt}"
    twin = ""
    if numbers is not None:
        rows = table(numbers, caption=title, formats=formats)
        source_text = f"; every value: {escape_html(source)}" if source else ""
        twin = f"<details><summary>Data as a table{source_text}</summary>\n{rows}\n</details>\n"
    message = escape_html(alt)
    return (
        f'<figure>\n<figcaption><h3>{escape_html(title)}</h3><p aria-hidden="true">{message}</p></figcaption>\n'
        f'<div class="chart" role="img" aria-label="{message}">{_CHART_SCRIPT_TAG}{to_script_json(spec)}</script>'
        f"<div></div>{_CHART_REST}\n"
        f"{twin}</figure>"
    )


def table(
    frame: pl.DataFrame, *, caption: str, formats: Mapping[str, str] | None = None,
    headings: Mapping[str, str] | None = None, max_rows: int = MAX_TABLE_ROWS, muted: Sequence[bool] | None = None,
) -> str:  # fmt: skip
    """Render a table as HTML: numbers right-aligned, text escaped, missing values as a dash.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows.
    caption : str
        Caption.
    formats : mapping of str to str, optional
        Python format specifications by column.
    headings : mapping of str to str, optional
        Headings by column.
    max_rows : int
        Rows shown at most.
    muted : sequence of bool, optional
        Rows to show in grey.

    Returns
    -------
    str
        HTML.

    Examples
    --------
    >>> html = table(pl.DataFrame({"tenant": ["a"], "cost_usd": [1234.5]}), caption="Cost")
    >>> '<th scope="row">a</th><td class="number">1,234.50</td>' in html
    True
    """
    specs, names = formats or {}, _TABLE_COLUMN_HEADINGS | dict(headings or {})
    cell_classes = [_cell_class(series) for series in frame.get_columns()]
    head = "".join(
        f'<th scope="col"{css}>{heading_html(names.get(name) or column_heading(name))}</th>'
        for name, css in zip(frame.columns, cell_classes, strict=True)
    )
    columns = [_cell_texts(series.head(max_rows), specs.get(series.name)) for series in frame.get_columns()]
    has_row_heads = bool(frame.width) and not frame.dtypes[0].is_numeric()
    body = []
    for number, row in enumerate(zip(*columns, strict=True)):
        row_class = ' class="muted"' if muted is not None and muted[number] else ""
        cells = [f"<td{css}>{text}</td>" for text, css in zip(row, cell_classes, strict=True)]
        if has_row_heads:
            cells[0] = f'<th scope="row"{cell_classes[0]}>{row[0]}</th>'
        body.append(f"<tr{row_class}>{''.join(cells)}</tr>")
    hidden_rows = frame.height - max_rows
    more_html = f'<p class="more">First {max_rows:,} of {frame.height:,} rows.</p>\n' if hidden_rows > 0 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape_html(caption)}">\n'
        f"<table><caption>{escape_html(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table>\n{more_html}</div>"
    )


def value_table(rows: Mapping[str, str], *, caption: str, answer: str = "value") -> str:
    """Render a table of names and values.

    Examples
    --------
    >>> '<th scope="row">GPU model</th><td>H100</td>' in value_table({"GPU model": "H100"}, caption="Facts")
    True
    """
    return table(pl.DataFrame({"name": list(rows), answer: list(rows.values())}), caption=caption)


def render_page(
    body_html: str, *, title: str, subtitle: str, provenance: Mapping[str, str], decision: str | None = None,
    badges: Sequence[tuple[str, bool]] = (), refresh_s: float | None = None, locale: str = "en",
) -> str:  # fmt: skip
    """Render a self-contained page from fragments.

    Style, scripts and data are inline. The content security policy forbids requests, and all scripts but the two of the
    page, which it names by their hash.

    Parameters
    ----------
    body_html : str
        Fragments.
    title, subtitle : str
        Title, and the text beside it.
    provenance : mapping of str to str
        Facts at the foot of the page: sources and versions.
    decision : str, optional
        Headline; without it, the title is the headline.
    badges : sequence of (str, bool)
        HTML of each badge, and whether it is a warning.
    refresh_s : float, optional
        Interval after which the browser reloads the page. [s]
    locale : str
        Locale of numbers and dates.

    Returns
    -------
    str
        HTML page.

    Examples
    --------
    >>> body = section("A", note("n")) + section("B", note("m"))
    >>> page = render_page(body, title="T", subtitle="S", provenance={"seed": "0"})
    >>> page.count("<script"), '<a href="#a">A</a>' in page
    (0, True)
    """
    scripts = []
    if _CHART_SCRIPT_TAG in body_html:
        drawing = f"const NAMES_SHARE = {plots.NAMES_SHARE};\n" + (_REPORT_FOLDER / "page.js").read_text("utf-8")
        scripts = [_vega_script(), drawing]
    links = "".join(
        f'<li><a href="#{anchor}">{text}</a></li>' for anchor, text in _SECTION_START_PATTERN.findall(body_html)
    )
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links.count("<li>") > 1 else ""
    facts = (f"<dt>{escape_html(key)}</dt><dd>{escape_html(value)}</dd>" for key, value in provenance.items())
    body_html = add_pictures(body_html + _render_glossary(body_html))
    html = Template((_REPORT_FOLDER / "page.html").read_text("utf-8")).substitute(
        policy=_content_policy(scripts),
        refresh="" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s:.0f}">\n',
        title=escape_html(title),
        header=_header(title, subtitle, decision, badges, body_html),
        style=section_css() + (_REPORT_FOLDER / "page.css").read_text("utf-8"),
        nav=nav,
        body=body_html,
        rests=escape_html(_join_fact_names(list(provenance))),
        provenance="\n".join(facts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )
    return localize_page(html, locale)


def _join_fact_names(facts: Sequence[str], max_facts: int = 4) -> str:
    """Join the names of up to `max_facts` provenance facts in one line, for the heading of the folded list."""
    first = ", ".join(name[:1].lower() + name[1:] for name in facts[:max_facts])
    return first + (f" and {len(facts) - max_facts} more entries" if len(facts) > max_facts else "")


def _render_glossary(body: str) -> str:
    """Render the glossary terms of a page as a folded table; empty if the page has only a few."""
    used = glossary_terms_in(body)
    if len(used) < MIN_GLOSSARY_TERMS:
        return ""
    table = value_table(used, caption="Terms of this page", answer="meaning")
    return fold("Glossary", table, about=f"{len(used)} terms of this page")


def _header(title: str, subtitle: str, decision: str | None, badges: Sequence[tuple[str, bool]], body: str) -> str:
    """Render title, subtitle, badges and headline."""
    if decision is None:
        return f"<h1>{escape_html(title)}</h1>\n<p>{escape_html(subtitle)}</p>"
    target = ' href="#data-quality"' if 'id="data-quality"' in body else ""
    corner = "".join(f'<a class="badge{" warns" * warns}"{target}>{text}</a>' for text, warns in badges)
    kicker = f'<p class="kicker"><span>{escape_html(title)} · {escape_html(subtitle)}</span><span>{corner}</span></p>'
    return f"{kicker}\n<h1>{escape_html(decision).replace('. ', '.<br>', 1)}</h1>"


@functools.cache
def _vega_script() -> str:
    """Load the Vega runtime as one script that defines ``vegaEmbed``."""
    converter = import_optional("vl_convert", extra="plot")
    bundle: str = converter.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _content_policy(scripts: Sequence[str]) -> str:
    """Write the content security policy that allows only the given scripts."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def add_side_padding(chart: ChartType) -> ChartType:
    """Add padding to both sides of a chart, for names in fonts wider than that of the layout."""
    return chart.properties(padding={"left": 40, "top": 5, "right": 60, "bottom": 5})


def charts_to_titled_svg(charts: Sequence[ChartType], words: Sequence[str]) -> str:
    """Draw several charts as one SVG, with their messages as its title.

    Examples
    --------
    >>> import polars as pl
    >>> costs = plots.plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD")
    >>> charts_to_titled_svg([costs], ["a costs 1 USD."]).count("<title>a costs 1 USD.</title>")
    1
    """
    opening, svg_body = plots.charts_to_svg(charts).split(">", 1)
    return f'{opening} role="img"><title>{escape(" ".join(words))}</title>{svg_body}'


def write_page_or_picture(
    path: str | Path, *, page: Callable[[], str], picture: Callable[[], str], locale: str = "en"
) -> Path:
    """Write a page (``.html``) or a picture (``.svg``), depending on the suffix of the path.

    Parameters
    ----------
    path : str or Path
        File to write.
    page, picture : callable
        Return the text of the page and of the picture.
    locale : str
        Locale of numbers and dates.

    Returns
    -------
    Path
        The file.
    """
    text = localize_page(picture() if Path(path).suffix == ".svg" else page(), locale)
    return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def _anchor(title: str) -> str:
    """Make the HTML anchor of a section from its title, in lower case with hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _cell_class(series: pl.Series) -> str:
    """Return the CSS class of a table column: numbers and long texts have one, other columns none."""
    if series.dtype.is_numeric():
        return ' class="number"'
    long = series.dtype == pl.String and (series.str.len_chars().max() or 0) > MIN_WRAPPED_CHARACTERS  # type: ignore[operator]
    return ' class="long"' if long else ""


def _cell_texts(series: pl.Series, spec: str | None) -> list[str]:
    """Format the cells of a column as escaped text: counts and money exactly, measures in three digits, shares in %."""
    if spec is None:
        unit = unit_of(series.name)
        if isinstance(series.dtype, pl.Decimal):
            spec = f",.{series.dtype.scale}f"
        elif series.dtype.is_integer():
            spec = ",d"
        else:
            spec = unit.python if unit and (unit.symbol == "%" or unit.is_money) else ""
    return [escape_html(_format_cell(value, spec)) for value in series.to_list()]


def _format_cell(value: object, spec: str) -> str:
    """Format a value of any type by a format specification; a missing value is a dash."""
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
            return format(value, spec or "%Y-%m-%d")
        case _:
            return str(value)
