"""Sources that hold what Slurm says of itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuplanner.inbox.core.lines.json_items import is_json
from gpuplanner.inbox.core.source import Source, header_has, together
from gpuplanner.inbox.slurm.job_states import NAMED, TIMES, read_slurm_states
from gpuplanner.inbox.slurm.nodes import looks_like_nodes, read_nodes
from gpuplanner.inbox.slurm.sacct import read_slurm
from gpuplanner.inbox.slurm.words import known_fields

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


SLURM = (
    Source(
        "slurm-states",
        "Slurm accounting without times: what jobs there were and how they ended",
        read_slurm_states,
        lambda lines: header_has(NAMED, "|")(lines) and not any(header_has([n], "|")(lines) for n in TIMES),
        whole_files=together,
    ),
    Source(
        "slurm",
        "Slurm accounting: sacct --parsable2, with or without header, or sacct --json (alias: sacct)",
        read_slurm,
        looks_like_slurm,
        frozenset({"tz", "nodes", "columns", "boards"}),
    ),
    Source(
        "nodes",
        "node list: node, gpus, gpu_model (CSV), or scontrol show node, sinfo -N, kubectl get nodes -o json",
        read_nodes,
        looks_like_nodes,
        frozenset({"boards"}),
        whole_files=together,
    ),
)
"""In the order in which files are compared with them."""
