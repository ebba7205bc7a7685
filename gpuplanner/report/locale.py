"""A page in the way of writing of those who read it: numbers and days of its text, pictures and charts."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from gpuplanner.report.page import as_json
from gpuplanner.units import LOCALES, in_locale

_PARTS = re.compile(
    r'(?P<chart><script type="application/json">.*?</script>)|<(?P<kept>script|style|code|pre)\b.*?</(?P=kept)>'
    r'|(?P<facts><dl>.*?</dl>)|(?P<named><th scope="row".*?</th>)|<[^>]*>',
    re.DOTALL,
)
_SAID = re.compile(r'(?<= )(aria-label|alt|title)="([^"]*)"')
_PICTURE = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
_TEXTS = ("text", "title", "description", "subtitle", "word", "label")
"""Keys of a chart, and columns of its data, under which words stand that a reader sees."""


def localised(html: str, name: str) -> str:
    """A page of ours with numbers and days written as a locale does; code, provenance and names in tables stay.

    Examples
    --------
    >>> localised('<p title="1.5 h">1,344.5 h</p><code>0.5</code><th scope="row">0.5</th>', "de")
    '<p title="1,5 h">1.344,5 h</p><code>0.5</code><th scope="row">0.5</th>'
    """
    if name == next(iter(LOCALES)):
        return html
    texts, at = list[str](), 0
    for found in _PARTS.finditer(html):
        texts += [in_locale(html[at : found.start()], name), _part(found, name)]
        at = found.end()
    return "".join([*texts, in_locale(html[at:], name)])


def _part(found: re.Match[str], name: str) -> str:
    if found["chart"]:
        return _chart(found["chart"], name)
    if found["named"]:
        return in_locale(found["named"], name, numbers=False)
    return found[0] if found["kept"] or found["facts"] else _tag(found[0], name)


def _tag(tag: str, name: str) -> str:
    """A tag with what it says in words, and the text of a picture in it."""
    tag = _SAID.sub(lambda found: f'{found[1]}="{in_locale(found[2], name)}"', tag)
    return _PICTURE.sub(lambda found: f"data:image/svg+xml;base64,{_redrawn(found[1], name)}", tag)


def _redrawn(picture: str, name: str) -> str:
    svg = localised(base64.b64decode(picture).decode("utf-8"), name)
    return base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _chart(script: str, name: str) -> str:
    """A chart that formats its numbers so, and says its texts so; data are as they are."""
    opening, _, rest = script.partition(">")
    spec = _worded(json.loads(rest.removesuffix("</script>")), name)
    to = LOCALES[name]
    marks = {"decimal": to.decimal, "thousands": to.thousands, "grouping": [3], "currency": ["", ""]}
    spec["config"] = spec.get("config", {}) | {"locale": {"number": marks}}
    return f"{opening}>{as_json(spec)}</script>"


def _worded(value: Any, name: str, key: str = "") -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, dict):
        return {each: _worded(one, name, each) for each, one in value.items()}
    if isinstance(value, list):
        return [_worded(one, name, key) for one in value]
    return in_locale(value, name) if isinstance(value, str) and key in _TEXTS else value
