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
_ROOT = re.compile(r":root \{.*?\}", re.DOTALL)
_SCREEN = re.compile(r"/\* FIRST SCREEN.*?/\* END OF FIRST SCREEN \*/", re.DOTALL)
_CHART = re.compile(
    r'<div class="chart"[^>]*><script type="application/json">(.*?)</script>.*?</noscript></div>', re.DOTALL
)
_FOLD = re.compile(r"<details><summary><h2>.*?</summary>", re.DOTALL)
_HEADING = re.compile(r"<h2>.*?</h2>\s*", re.DOTALL)
_LOOK = """<style>
.gpuplanner section { border: 0; }
.gpuplanner figure { margin: .6em 0; }
.gpuplanner h3 { margin: .8em 0 .2em; }
.gpuplanner table { margin: .4em 0 .8em; border-collapse: collapse; }
.gpuplanner caption { text-align: left; font-weight: 600; padding-bottom: .3em; }
/* Stronger than the rules of JupyterLab. */
.gpuplanner.gpuplanner table :is(th, td) { text-align: left; vertical-align: top; padding: .25em .6em; }
.gpuplanner.gpuplanner table .number { text-align: right; }
.gpuplanner .note { border-left: 4px solid #00558a; background: #f5f7fa; padding: .6em 1em; }
.gpuplanner summary { cursor: pointer; color: #00558a; }
.gpuplanner .scroll { overflow-x: auto; }
.gpuplanner img { max-width: 100%; }
</style>"""


class Section(str):
    """A fragment of the page: markup, made by the functions of :mod:`gpuplanner.report.page`.

    In a notebook it shows itself with still pictures; the page takes the same fragment with live charts.

    Examples
    --------
    >>> Section("<p>a</p>")._repr_mimebundle_()["text/html"]
    '<p>a</p>'
    """

    __slots__ = ()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        still = _STILL.sub("", _SPEC.sub("", self))
        look = _look() if 'id="the-decision"' in still else ""
        return {FRAGMENT: str(self), "text/html": look + still}


@dataclass(frozen=True)
class Text:
    """A section, or a piece of one between charts, with the looks it has in a notebook.

    - ``html``: Markup; what it leaves open the browser closes.
    """

    html: str

    def _repr_html_(self) -> str:
        return f'{_LOOK}<div class="gpuplanner">{self.html}</div>'


def still(section: Section) -> Text:
    """Give a section as one piece of markup, with pictures in place of live charts.

    Examples
    --------
    >>> still(Section("<p>a</p>"))
    Text(html='<p>a</p>')
    """
    return Text(section._repr_mimebundle_()["text/html"])


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
    for match in _CHART.finditer(html):
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
    return [json.loads(match[1]) for match in _CHART.finditer(section)]


def show(section: Section) -> None:
    """Display a section: text, live charts, tables."""
    display = import_optional("IPython.display", extra="notebook").display
    altair = import_optional("altair", extra="plot")
    plot.enable_offline_renderer()
    for part in parts(section):
        display(part if isinstance(part, Text) else altair.Chart.from_dict(part))


@functools.cache
def _look() -> str:
    """The rules of the page for its first screen, which a notebook has not."""
    css = (Path(__file__).parent / "page.css").read_text("utf-8")
    root, screen = _ROOT.search(css), _SCREEN.search(css)
    assert root is not None, "page.css has its colours at the top"
    assert screen is not None, "page.css marks the rules of the first screen"
    return f"<style>\n{root[0]}\n{screen[0]}\n.cards dd {{ margin: 0; }}\n.number {{ text-align: right; }}\n</style>"
