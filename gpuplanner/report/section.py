"""One section of a report, shown alike in a notebook and on the page."""

from __future__ import annotations

import re
from dataclasses import dataclass

FRAGMENT = "application/vnd.gpuplanner.fragment+html"
"""Type under which a notebook output carries the fragment for the page."""

_SPEC = re.compile(r'<script type="application/json">.*?</script>', re.DOTALL)
_STILL = re.compile(r"</?noscript>")


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
        return {FRAGMENT: self.html, "text/html": _STILL.sub("", _SPEC.sub("", self.html))}
