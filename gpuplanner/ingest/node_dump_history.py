"""Nodes as several dumps of one cluster show them: MIG layouts and outages over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import NodeDumps
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.ingest.source_fields import format_utc


def make_node_dumps(nodes: pl.DataFrame) -> pl.DataFrame | None:
    """Make the table ``node_dumps`` of nodes with the time of their dump; None if no dump is dated.

    Parameters
    ----------
    nodes : polars.DataFrame
        ``node``, ``time`` [UTC], ``mig_enabled`` and ``layouts``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> nodes = pl.DataFrame({"node": "n1", "time": datetime(2026, 2, 2, tzinfo=UTC), "layouts": "1g.5gb:7"})
    >>> make_node_dumps(nodes).select("node", "layouts").rows()
    [('n1', '1g.5gb:7')]
    """
    dated = nodes.filter(pl.col("time").is_not_null())
    return conform(dated, NodeDumps, source="node dumps").sort("node", "time") if dated.height else None


def merge_node_histories(histories: Sequence[Mapping[str, pl.DataFrame | None]]) -> dict[str, pl.DataFrame | None]:
    """Merge the tables on nodes over time of dumps of one cluster.

    A node that one dump shows as out of service is so until the next dump that lists it, whose own outages follow: when
    exactly it came back is not known. Where no dump has a date, the outages of the last one count.

    Parameters
    ----------
    histories : sequence of mapping
        ``node_dumps`` and ``out_of_service`` of each dump, where it has them; earliest dump first.

    Returns
    -------
    dict
        Both tables; None where no dump has one.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> monday, friday = datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 6, tzinfo=UTC)
    >>> first, last = (make_node_dumps(pl.DataFrame({"node": "n1", "time": time})) for time in (monday, friday))
    >>> outage = first.select("node", start_time="time", end_time=pl.lit(None, first["time"].dtype))
    >>> merged = merge_node_histories([{"node_dumps": first, "out_of_service": outage}, {"node_dumps": last}])
    >>> merged["out_of_service"]["end_time"].item() == friday
    True
    """
    dated = [dumps for history in histories if (dumps := history.get("node_dumps")) is not None]
    dumps = _unique_dumps(pl.concat(dated)) if dated else None
    outages: list[pl.DataFrame] = []
    for history in histories:
        table, own_dumps = history.get("out_of_service"), history.get("node_dumps")
        if table is not None and dumps is not None and own_dumps is not None:
            last = own_dumps.group_by("node", maintain_order=True).agg(last=pl.col("time").max())
            later = dumps.join(last, on="node", maintain_order="left").filter(pl.col("time") > pl.col("last"))
            until = later.group_by("node", maintain_order=True).agg(until=pl.col("time").min())
            table = table.join(until, on="node", how="left", maintain_order="left")
            outages.append(table.with_columns(end_time=pl.coalesce("end_time", "until")).drop("until"))
        elif table is not None:
            outages = [*outages, table] if dated else [table]
    merged = outages[0] if outages else None
    if len(outages) > 1:
        key = ["node", "start_time"]
        merged = pl.concat(outages).unique(key, keep="last", maintain_order=True).sort(key)
    return {"node_dumps": None if dumps is None else dumps.sort("node", "time"), "out_of_service": merged}


def _unique_dumps(dumps: pl.DataFrame) -> pl.DataFrame:
    """Drop repeated rows; refuse two dumps of the same time that show a node differently."""
    dumps = dumps.sort("node", "time", "file").unique(["node", "time", "gpus", "layouts"], maintain_order=True)
    repeated = dumps.filter(pl.struct("node", "time").is_duplicated())
    if repeated.is_empty():
        return dumps
    node, time = repeated.select("node", "time").row(0)
    states = repeated.filter(pl.col("node") == node, pl.col("time") == time).select("gpus", "layouts", "file").rows()
    got = " and ".join(f"{gpus} GPUs, layouts {layouts or 'none'} in {file}" for gpus, layouts, file in states)
    expected = f"one state of node {node} at {format_utc(time)}"
    todo = "Leave one dump out, or put its date and time in UTC into the file name, such as nodes-20261102T0630Z.txt."
    raise TraceFormatError("node dumps", expected, got, todo)


CHANGING_COLUMNS = ("layouts", "mig_enabled", "retired")
"""Columns of the inventory that only the latest dump of a node states; of the others, an earlier dump counts where the
latest has none."""


def merge_dated_inventories(parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame | None] | None:
    """Merge the inventories of several dumps, in any order: each node as its latest dump lists it, with its history.

    Parameters
    ----------
    parts : sequence of mapping of str to polars.DataFrame
        Tables of the dumps.

    Returns
    -------
    dict or None
        ``inventory``, ``node_dumps`` and ``out_of_service``; None if one of the dumps has no date.

    Raises
    ------
    TraceFormatError
        If two dumps of the same time show a node differently.
    """
    if not all({"inventory", "node_dumps"} <= part.keys() for part in parts):
        return None
    parts = sorted(parts, key=lambda tables: tables["node_dumps"]["time"].max())  # type: ignore[arg-type, return-value]
    lists = []
    for part in parts:
        times = part["node_dumps"].group_by("node", maintain_order=True).agg(dumped=pl.col("time").max())
        lists.append(part["inventory"].join(times, on="node", how="left", maintain_order="left"))
    rows = pl.concat(lists).sort("dumped", maintain_order=True)
    kept = pl.exclude("node", "dumped", "installed", *CHANGING_COLUMNS).forward_fill().over("node")
    installed = pl.col("installed").cum_min().forward_fill().over("node")  # a node that was created again was there
    nodes = rows.with_columns(kept, installed).unique("node", keep="last", maintain_order=True).drop("dumped")
    return {"inventory": nodes.sort("node"), **merge_node_histories(parts)}


def _list_cluster_dumps(node_dumps: pl.DataFrame) -> list[tuple[datetime, set[str]]]:
    """List the dumps of whole clusters, with their times and the names of their nodes."""
    files = node_dumps.filter("whole_cluster").group_by("time", "file").agg("node").sort("time", "file")
    return [(time, set(nodes)) for time, _, nodes in files.iter_rows()]


def find_unlisted_spans(node_dumps: pl.DataFrame) -> pl.DataFrame:
    """Find nodes that a later or earlier dump of the same cluster does not list.

    Dumps are of the same cluster if they have a node in common. A node came or went at the last dump before the change,
    so that a renamed node is counted once.

    Parameters
    ----------
    node_dumps : polars.DataFrame
        Table ``schemas.NodeDumps``.

    Returns
    -------
    polars.DataFrame
        ``node`` with ``came``, the time of the last dump before the first that lists it, and ``went``, that of the last
        dump that lists it [UTC]; null where no such dump lacks it. Nodes that all dumps list are left out.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> rows = [("n1", 2), ("n2", 2), ("n1", 4), ("n3", 4)]
    >>> nodes, times = zip(*((node, datetime(2026, 2, day, tzinfo=UTC)) for node, day in rows))
    >>> dumps = make_node_dumps(pl.DataFrame({"node": nodes, "time": times, "whole_cluster": True}))
    >>> find_unlisted_spans(dumps).select("node", pl.col("came", "went").dt.day()).rows()
    [('n2', None, 2), ('n3', 2, None)]
    """
    listed, spans = _list_cluster_dumps(node_dumps), []
    for node, first, last in (
        node_dumps.group_by("node").agg(first=pl.col("time").min(), last=pl.col("time").max()).sort("node").iter_rows()
    ):
        near = set().union(*(nodes for _, nodes in listed if node in nodes))
        times = [time for time, nodes in listed if nodes & near]
        came = max((time for time in times if time < first), default=None)
        went = last if any(time > last for time in times) else None
        spans += [(node, came, went)] if came or went else []
    time_type = node_dumps.schema["time"]
    return pl.DataFrame(spans, {"node": pl.String, "came": time_type, "went": time_type}, orient="row")


def date_unlisted_nodes(inventory: pl.DataFrame, node_dumps: pl.DataFrame | None) -> pl.DataFrame:
    """Fill in when nodes were installed and retired, where dumps of other dates do not list them."""
    if node_dumps is None or (spans := find_unlisted_spans(node_dumps)).is_empty():
        return inventory
    dated = inventory.join(spans, on="node", how="left", maintain_order="left")
    dated = dated.with_columns(installed=pl.coalesce("installed", "came"), retired=pl.coalesce("retired", "went"))
    return dated.drop("came", "went")


def layouts_over_time(node_dumps: pl.DataFrame) -> pl.DataFrame:
    """List each node's MIG layouts with the dump that shows them first.

    Parameters
    ----------
    node_dumps : polars.DataFrame
        Table ``schemas.NodeDumps``.

    Returns
    -------
    polars.DataFrame
        ``node``, ``since`` [UTC], ``mig_enabled`` and ``layouts``; the first row of a node holds before its dump, too.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in (2, 3, 4)]
    >>> dumps = make_node_dumps(pl.DataFrame({"node": "n1", "time": days, "layouts": [None, None, "1g.5gb:7"]}))
    >>> layouts_over_time(dumps)["since"].dt.day().to_list()
    [2, 4]
    """
    ordered = node_dumps.sort("node", "time")
    changed = pl.col("layouts").ne_missing(pl.col("layouts").shift().over("node"))
    kept = ordered.filter(pl.col("node").is_first_distinct() | changed)
    return kept.select("node", "mig_enabled", "layouts", since="time")


def split_nodes_by_layout(inventory: pl.DataFrame, node_dumps: pl.DataFrame | None) -> pl.DataFrame:
    """Split each node whose MIG layouts changed into a row for each time span with the same ``layouts``.

    The spans of a node follow each other without gap or overlap, so that installed GPU-hours stay the same.

    Parameters
    ----------
    inventory : polars.DataFrame
        Table ``schemas.Inventory``, one row for each node.
    node_dumps : polars.DataFrame, optional
        Table ``schemas.NodeDumps``.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Inventory``; ``installed`` and ``retired`` bound the spans.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in (2, 4)]
    >>> dumps = make_node_dumps(pl.DataFrame({"node": "n1", "time": days, "layouts": [None, "1g.5gb:7"]}))
    >>> unknown = pl.Series([None], dtype=dumps["time"].dtype)
    >>> nodes = pl.DataFrame({"node": "n1", "gpus": 1, "layouts": "1g.5gb:7", "mig_enabled": True,
    ...     "installed": unknown, "retired": unknown})
    >>> split_nodes_by_layout(nodes, dumps).select("layouts", pl.col("installed", "retired").dt.day()).rows()
    [(None, None, 4), ('1g.5gb:7', 4, None)]
    """
    if node_dumps is None:
        return inventory
    spans = layouts_over_time(node_dumps).filter(pl.len().over("node") > 1)
    spans = spans.with_columns(
        since=pl.when(~pl.col("node").is_first_distinct()).then("since"), until=pl.col("since").shift(-1).over("node")
    )
    joined = inventory.join(spans, on="node", how="left", maintain_order="left", suffix="_then")
    is_split = pl.col("node").is_in(spans["node"].implode())
    split = joined.with_columns(
        layouts=pl.when(is_split).then("layouts_then").otherwise("layouts"),
        installed=pl.max_horizontal("installed", "since"),
        retired=pl.min_horizontal("retired", "until"),
    )
    is_span = (pl.col("installed") < pl.col("retired")).fill_null(value=True) | ~is_split
    return split.filter(is_span).select(inventory.columns)


def describe_layout_changes(node_dumps: pl.DataFrame | None) -> tuple[str, ...]:
    """Describe since when layouts are known, where they differ between dumps, as sentences.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in (2, 4)]
    >>> dumps = make_node_dumps(pl.DataFrame({"node": "n1", "time": days, "layouts": [None, "1g.5gb:7"]}))
    >>> describe_layout_changes(dumps)[0][:48]
    "MIG layouts of 1 node changed between dumps ('n1"
    """
    if node_dumps is None:
        return ()
    sentences = []
    times = layouts_over_time(node_dumps).filter(pl.len().over("node") > 1)
    names = times["node"].unique(maintain_order=True).to_list()
    first, last = node_dumps.select(pl.col("time").min().dt.date(), last=pl.col("time").max().dt.date()).row(0)
    if names:
        sentences.append(
            f"MIG layouts of {count_text(len(names), 'node')} changed between dumps ({examples(names)}; layouts known "
            f"since {first}, before that the first ones are assumed): slices in the accounts follow them over time, "
            f"and simulations use the last ones, of {last}."
        )
    changed = node_dumps.sort("time").filter(pl.col("gpus").n_unique().over("node") > 1)
    sizes = changed.group_by("node", maintain_order=True).agg("gpus").sort("node")
    if changed.height:
        counts = [f"{node}: {', then '.join(map(str, dict.fromkeys(gpus)))}" for node, gpus in sizes.iter_rows()]
        sentences.append(
            f"The number of GPUs of {count_text(len(counts), 'node')} changed between dumps ({examples(counts)}): "
            "the last one is installed all the time, unless jobs were allocated more."
        )
    first_nodes: dict[str, set[str]] = {}
    for _, nodes in _list_cluster_dumps(node_dumps):
        near = nodes.union(*(first_nodes.pop(name) for name in [*first_nodes] if first_nodes[name] & nodes))
        first_nodes[min(near)] = near
    if len(first_nodes) > 1:
        sentences.append(
            f"Dumps with nodes such as {examples([*first_nodes])} have none in common: parts of one cluster, or "
            "several clusters, whose GPUs add up."
        )
    spans = find_unlisted_spans(node_dumps)
    for column, text in (("came", "Listed since a later dump"), ("went", "Not listed any more")):
        if names := spans.filter(pl.col(column).is_not_null())["node"].to_list():
            sentences.append(
                f"{text}: {count_text(len(names), 'node')} ({examples(names)}), installed from or until the last dump "
                "before the change, or the first or last job there."
            )
    return tuple(sentences)
