"""Compose one self-contained HTML page: no network, no code from data, the same bytes each time."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import plot
from gpuplanner._optional import import_optional
from gpuplanner.report import tables

if TYPE_CHECKING:
    from altair.typing import ChartType

_HERE = Path(__file__).parent
_SECTION = re.compile(r'<section id="([^"]*)"><h2>(.*?)</h2>')
_CHART = '<script type="application/json">'


@dataclass(frozen=True)
class Card:
    """One headline number.

    Attributes
    ----------
    label : str
        What it is.
    value : str
        The number as shown, with its unit.
    detail : str
        Range, baseline or period.
    """

    label: str
    value: str
    detail: str = ""


def section(title: str, *fragments: str) -> str:
    r"""Put fragments under a heading that the navigation links to.

    Examples
    --------
    >>> section("Where time went", note("All hours."))
    '<section id="where-time-went"><h2>Where time went</h2>\n<p class="note">All hours.</p>\n</section>'
    """
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
    body = "\n".join(fragments)
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{body}\n</section>'


def fold(title: str, *fragments: str, about: str = "") -> str:
    """Put fragments under a heading that opens them: closed, it is one line.

    Examples
    --------
    >>> print(fold("Time", note("All hours."), about="hour by hour"))
    <section id="time" class="fold"><details><summary><h2>Time</h2> <span>hour by hour</span></summary>
    <p class="note">All hours.</p>
    </details></section>
    """
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
    said = f" <span>{escape(about)}</span>" if about else ""
    body = "\n".join(fragments)
    return (
        f'<section id="{anchor}" class="fold"><details><summary><h2>{escape(title)}</h2>{said}</summary>\n{body}\n'
        "</details></section>"
    )


def paragraph(text: str) -> str:
    """A paragraph of plain text.

    Examples
    --------
    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """A remark that stands out: an assumption, a limit, a warning.

    Examples
    --------
    >>> note("Prices of 2026-05-01.")
    '<p class="note">Prices of 2026-05-01.</p>'
    """
    return f'<p class="note">{escape(text)}</p>'


def findings(texts: Sequence[str]) -> str:
    r"""Findings, most important first, as a numbered list.

    Examples
    --------
    >>> findings(["Idle: 20 %"])
    '<ol class="findings">\n<li>Idle: 20 %</li>\n</ol>'
    """
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ol class="findings">\n{items}\n</ol>'


def cards(values: Sequence[Card]) -> str:
    """Headline numbers side by side.

    Examples
    --------
    >>> print(cards([Card("GPUs", "64")]))
    <dl class="cards">
    <div><dt>GPUs</dt><dd class="value">64</dd></div>
    </dl>
    """
    items = []
    for card in values:
        detail = f'<dd class="detail">{escape(card.detail)}</dd>' if card.detail else ""
        items.append(
            f'<div><dt>{escape(card.label)}</dt><dd class="value">{escape(card.value)}</dd>{detail}</div>'
        )
    return '<dl class="cards">\n' + "\n".join(items) + "\n</dl>"


def facts(values: Sequence[tuple[str, str]]) -> str:
    """Short answers side by side with what they answer.

    Examples
    --------
    >>> facts([("From", "Monday")])
    '<dl class="facts"><dt>From</dt><dd>Monday</dd></dl>'
    """
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in values)
    return f'<dl class="facts">{items}</dl>'


def figure(
    chart: ChartType,
    *,
    title: str,
    alt: str,
    table: pl.DataFrame | None = None,
    formats: Mapping[str, str] | None = None,
) -> str:
    """A chart with its message in words and its numbers as a table.

    The chart is drawn in the browser from the specification embedded here; without scripts, or in a mail
    program, a still picture takes its place.
    """
    spec = {key: value for key, value in plot.chart_spec(chart).items() if key != "title"}
    spec["description"] = f"{title}. {alt}"
    picture = plot.svg_address(plot.spec_to_svg(spec))
    twin = ""
    if table is not None:
        rows = tables.table(table, caption=title, formats=formats)
        twin = f"<details><summary>The numbers as a table</summary>\n{rows}\n</details>\n"
    message = escape(alt)
    return (
        f'<figure>\n<figcaption><h3>{escape(title)}</h3><p aria-hidden="true">{message}</p></figcaption>\n'
        f'<div class="chart" role="img" aria-label="{message}">{_CHART}{_json(spec)}</script><div></div>'
        f'<noscript><img alt="{message}" src="{picture}"></noscript></div>\n'
        f"{twin}</figure>"
    )


def render_page(
    body_html: str,
    *,
    title: str,
    subtitle: str,
    provenance: Mapping[str, str],
    decision: str | None = None,
    badge: tuple[str, bool] | None = None,
) -> str:
    """Wrap fragments into one page that needs nothing else.

    Style, scripts and data are inline. The page's policy forbids every request and every script but the two
    that are part of it, named by their hash; so that text which slipped through as markup could not run.

    Examples
    --------
    >>> body = section("A", note("n")) + section("B", note("m"))
    >>> page = render_page(body, title="T", subtitle="S", provenance={"seed": "0"})
    >>> page.count("<script"), '<a href="#a">A</a>' in page
    (0, True)
    """
    scripts = [_bundle(), _script()] if _CHART in body_html else []
    links = "".join(
        f'<li><a href="#{anchor}">{text}</a></li>' for anchor, text in _SECTION.findall(body_html)
    )
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links.count("<li>") > 1 else ""
    facts = (f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in provenance.items())
    return Template((_HERE / "page.html").read_text("utf-8")).substitute(
        policy=_policy(scripts),
        title=escape(title),
        header=_header(title, subtitle, decision, badge, body_html),
        style=(_HERE / "page.css").read_text("utf-8"),
        nav=nav,
        body=body_html,
        provenance="\n".join(facts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _header(
    title: str, subtitle: str, decision: str | None, badge: tuple[str, bool] | None, body: str
) -> str:
    if decision is None:
        return f"<h1>{escape(title)}</h1>\n<p>{escape(subtitle)}</p>"
    corner = ""
    if badge is not None:
        kind, target = "badge warns" if badge[1] else "badge", ' href="#data"' if 'id="data"' in body else ""
        corner = f'<a class="{kind}"{target}>{badge[0]}</a>'
    kicker = f'<p class="kicker"><span>{escape(title)} · {escape(subtitle)}</span>{corner}</p>'
    return f"{kicker}\n<h1>{escape(decision)}</h1>"


def _json(spec: Mapping[str, object]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@functools.cache
def _bundle() -> str:
    """The Vega runtime, as one script that defines ``vegaEmbed``."""
    converter = import_optional("vl_convert", extra="plot")
    bundle: str = converter.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _script() -> str:
    return f"const NAMES_SHARE = {plot.NAMES_SHARE};\n" + (_HERE / "page.js").read_text("utf-8")


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data:; font-src data:; base-uri 'none'; form-action 'none'"
    )
