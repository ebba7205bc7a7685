"""Sources that operators of a cluster have at hand: accounting of Slurm, dumps of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuplanner.traces.jsonfile import is_json
from gpuplanner.traces.kubernetes import read_kubernetes
from gpuplanner.traces.slurm import read_slurm
from gpuplanner.traces.slurm_states import NAMED, TIMES, read_slurm_states
from gpuplanner.traces.slurm_words import known_fields
from gpuplanner.traces.source import Source, columns_of, header_has
from gpuplanner.traces.supercloud import COLUMN_MAP as SUPERCLOUD_COLUMNS
from gpuplanner.traces.supercloud import read_supercloud

SLURM_JSON = re.compile(r'"(?:slurm_)?jobs"\s*:\s*\[')
KUBERNETES_JSON = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')


def looks_like_slurm(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like output of sacct, as text or JSON.

    Examples
    --------
    >>> looks_like_slurm(["JobID|State|Start"]), looks_like_slurm(['{"meta": {}, "jobs": [']), looks_like_slurm(["a,b"])
    (True, True, False)
    """
    if is_json(lines):
        text = "\n".join(lines)
        return SLURM_JSON.search(text) is not None and not KUBERNETES_JSON.search(text)
    return any(header_has([name, "State"], "|")(lines) for name in ("JobID", "JobIDRaw")) or (
        known_fields(lines) is not None
    )


def looks_like_kubernetes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like objects of Kubernetes.

    Examples
    --------
    >>> looks_like_kubernetes(['{"apiVersion": "v1", "items": ['])
    True
    """
    return is_json(lines) and KUBERNETES_JSON.search("\n".join(lines)) is not None


OPERATORS = (
    Source(
        "slurm-states",
        "Slurm accounting without times: what jobs there were and how they ended",
        read_slurm_states,
        lambda lines: header_has(NAMED, "|")(lines) and not any(header_has([n], "|")(lines) for n in TIMES),
        frozenset(),
    ),
    Source(
        "slurm",
        "Slurm accounting: sacct --parsable2, with or without header, or sacct --json (alias: sacct)",
        read_slurm,
        looks_like_slurm,
        frozenset({"tz", "nodes", "columns"}),
    ),
    Source(
        "supercloud",
        "MIT Supercloud Slurm accounting table with integer resources, 2021 (CSV)",
        read_supercloud,
        columns_of(SUPERCLOUD_COLUMNS),
        frozenset(),
    ),
    Source(
        "kubernetes",
        "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json, with Kueue and DRA (alias: kubectl)",
        read_kubernetes,
        looks_like_kubernetes,
        frozenset(),
    ),
)
"""In the order in which files are compared with them."""
