"""Names in node lists, as Slurm shortens them."""

from __future__ import annotations

import re

import polars as pl

from gpuplanner.errors import TraceFormatError, message

MAX_NODES = 100_000
GROUP = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\s-]*)\])?([^\[\],\s]*)(?:,\s*|$)")


def expand_node_list(text: str) -> list[str]:
    """Names in a node list of Slurm, or in a list with commas.

    Examples
    --------
    >>> expand_node_list("n[01-03,7],login1")
    ['n01', 'n02', 'n03', 'n7', 'login1']
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = GROUP.match(text, position)
        if match is None or match.end() == position or len(names) > MAX_NODES:
            todo = "Expand it: scontrol show hostnames."
            raise TraceFormatError(message("node list", "names like n[01-03,7]", repr(text[:80]), todo))
        head, numbers, tail = match.groups()
        names += [f"{head}{number}{tail}" for number in (_numbers(numbers) if numbers else [""])]
        position = match.end()
    return names


def known_nodes(text: str) -> list[str] | None:
    """Names in a node list; None where it names none or cannot be read.

    Examples
    --------
    >>> known_nodes("n[1-2]"), known_nodes("n[1")
    (['n1', 'n2'], None)
    """
    try:
        return expand_node_list(text) or None
    except TraceFormatError:
        return None


def nodes_of_lists(jobs: pl.DataFrame) -> pl.DataFrame:
    """Each different node list of some jobs with the names in it: ``node_list, node``."""
    lists = jobs["node_list"].drop_nulls().unique()
    schema = {"node_list": lists.dtype, "node": pl.List(pl.String)}
    return pl.DataFrame({"node_list": lists, "node": [known_nodes(text) for text in lists]}, schema=schema)


def on_nodes(jobs: pl.DataFrame) -> pl.DataFrame:
    """One row for each job and node, the GPUs of a job spread evenly over its nodes.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [8.0, 1.0], "node_list": ["n[1-2]", None]})
    >>> on_nodes(jobs).select("job_id", "node", "gpus").rows()
    [('1', 'n1', 4.0), ('1', 'n2', 4.0), ('2', None, 1.0)]
    """
    spread = jobs.join(nodes_of_lists(jobs), on="node_list", how="left", maintain_order="left")
    many = pl.col("node").list.len().fill_null(1)
    counted = [name for name in ("gpus", "instances") if name in jobs.columns]
    return spread.with_columns(pl.col(counted) / many).explode("node")


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.replace(" ", "").split(","):
        first, dash, end = part.partition("-")
        last = end if dash else first
        if not (first.isdigit() and last.isdigit()) or int(last) - int(first) > MAX_NODES:
            raise TraceFormatError(message("node list", "ranges like 01-03", repr(part), "Expand it."))
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
