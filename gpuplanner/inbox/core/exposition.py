"""The text format of Prometheus, and the answers of its HTTP API."""

from __future__ import annotations

import re
from typing import Any

from gpuplanner.errors import TraceFormatError, message

LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
SAMPLE = (
    r"^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'\s*(?:\{((?:\s*[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*)\})?'
    r"\s+([^\s#]+)(?:\s+([-+0-9.eE]+))?(?:\s+#.*)?\s*$"
)
"""Metric, labels, value, time: one sample of the Prometheus text format or of OpenMetrics [1]_.

References
----------
.. [1] Prometheus, Exposition formats; OpenMetrics 1.0: the former counts milliseconds, the latter seconds.
"""


def parse_labels(text: str) -> dict[str, str] | None:
    r"""Labels of one sample, ``a="1", b="2"``; None if they cannot be read.

    Examples
    --------
    >>> parse_labels('gpu="0", pod="x,gpu=\\"7\\""')
    {'gpu': '0', 'pod': 'x,gpu="7"'}
    >>> parse_labels("gpu=0") is None
    True
    """
    labels: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        match = LABEL.match(text, position)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\[\\\"n]", lambda found: ESCAPES[found[0]], match[2])
        position = match.end()
    return labels


def series_of_answer(answer: Any, where: str) -> list[Any]:  # noqa: ANN401 - anything that JSON can hold
    """Series of an answer of the HTTP API.

    Examples
    --------
    >>> series_of_answer({"status": "error", "errorType": "bad_data", "error": "parse error"}, "a.json")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: a.json: expected an answer with data; got bad_data: parse error. ...
    """
    expected, todo = "an answer with data", "Fix the query and ask again."
    if isinstance(answer, dict) and answer.get("status") == "error":
        got = f"{answer.get('errorType')}: {str(answer.get('error'))[:300]}"
        raise TraceFormatError(message(where, expected, got, todo))
    data = answer.get("data") if isinstance(answer, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind not in ("matrix", "vector"):
        got = f"resultType {repr(kind)[:80]}"
        raise TraceFormatError(message(where, "an answer with a matrix or a vector", got, todo))
    if not isinstance(data.get("result"), list):  # type: ignore[union-attr]
        raise TraceFormatError(
            message(where, "an answer with series", "no list 'result'", "Save the whole answer.")
        )
    return list(data["result"])  # type: ignore[index]
