"""Sources that hold objects of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuplanner.inbox.core.lines.json_items import is_json
from gpuplanner.inbox.core.source import Source, together
from gpuplanner.inbox.kubernetes.reader import read_kubernetes
from gpuplanner.inbox.kubernetes.yaml_items import is_kubernetes_yaml

KUBERNETES_JSON = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')


def looks_like_kubernetes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like objects of Kubernetes.

    Examples
    --------
    >>> looks_like_kubernetes(['{"apiVersion": "v1", "items": [']), looks_like_kubernetes(["kind: List"])
    (True, True)
    """
    if is_json(lines):
        return KUBERNETES_JSON.search("\n".join(lines)) is not None
    return is_kubernetes_yaml(lines)


KUBERNETES = (
    Source(
        "kubernetes",
        "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json (or yaml), with Kueue and DRA (alias: kubectl)",
        read_kubernetes,
        looks_like_kubernetes,
        frozenset({"boards"}),
        whole_files=together,  # pods of one file stand on the nodes of another
    ),
)
