"""Sources that hold objects of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuplanner.inbox.core.json_items import is_json
from gpuplanner.inbox.core.source import Source
from gpuplanner.inbox.kubernetes.reader import read_kubernetes

KUBERNETES_JSON = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')


def looks_like_kubernetes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like objects of Kubernetes.

    Examples
    --------
    >>> looks_like_kubernetes(['{"apiVersion": "v1", "items": ['])
    True
    """
    return is_json(lines) and KUBERNETES_JSON.search("\n".join(lines)) is not None


KUBERNETES = (
    Source(
        "kubernetes",
        "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json, with Kueue and DRA (alias: kubectl)",
        read_kubernetes,
        looks_like_kubernetes,
        frozenset(),
    ),
)
