"""One section of a report, shown alike on the page and in a notebook: still, or with charts that answer the pointer."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from gpuplanner import plot
from gpuplanner._optional import import_optional

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
    """A fragment of the page: markup, made by the functions of :mod:`gpuplanner.report.page`.

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
    >>> from gpuplanner.report.page import fold
    >>> parts(Section(fold("Jobs", "<p>None.</p>", about="nothing")))
    [Text(html='<section id="jobs" class="fold">\n<p>None.</p>\n</section>')]
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
    plot.enable_offline_renderer()
    for part in parts(section):
        display(part if isinstance(part, Text) else altair.Chart.from_dict(part))


@functools.cache
def section_css() -> str:
    """The rules of what a page and a notebook share, all under the class ``gpuplanner``."""
    return (Path(__file__).parent / "section.css").read_text("utf-8")
