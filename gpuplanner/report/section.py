"""One section of a report, shown alike in a notebook and on the page."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

FRAGMENT = "application/vnd.gpuplanner.fragment+html"
"""Type under which a notebook output carries the fragment for the page."""

_SPEC = re.compile(r'<script type="application/json">.*?</script>', re.DOTALL)
_STILL = re.compile(r"</?noscript>")
_ROOT = re.compile(r":root \{.*?\}", re.DOTALL)
_SCREEN = re.compile(r"/\* FIRST SCREEN.*?/\* END OF FIRST SCREEN \*/", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A fragment of the page.

    In a notebook it shows itself with still pictures; the page takes the same fragment with live charts.

    Attributes
    ----------
    html : str
        Made by the functions of :mod:`gpuplanner.report.page`.

    Examples
    --------
    >>> Section("<p>a</p>")._repr_mimebundle_()["text/html"]
    '<p>a</p>'
    """

    html: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        still = _STILL.sub("", _SPEC.sub("", self.html))
        look = _look() if 'id="the-decision"' in still else ""
        return {FRAGMENT: self.html, "text/html": look + still}


@functools.cache
def _look() -> str:
    """The rules of the page for its first screen, which a notebook has not."""
    css = (Path(__file__).parent / "page.css").read_text("utf-8")
    root, screen = _ROOT.search(css), _SCREEN.search(css)
    assert root is not None, "page.css has its colours at the top"
    assert screen is not None, "page.css marks the rules of the first screen"
    return f"<style>\n{root[0]}\n{screen[0]}\n.cards dd {{ margin: 0; }}\n.number {{ text-align: right; }}\n</style>"
