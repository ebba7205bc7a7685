"""The nodes of today's fleet, each with its own GPUs and layouts: as stated, else as jobs were seen to hold them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpuplanner.errors import examples
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import OFF
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import HOUR, Window
from gpuplanner.schemas.check import some_columns
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.study.past.held_nodes import BESIDE, HELD, fewest_cut, most_held, spans_in
from gpuplanner.study.past.todays_layouts import layouts_of_node

if TYPE_CHECKING:
    pass

STILL_RUN, TIMES_BEFORE = 1 / 3, 2.0
"""A list of jobs of which a larger share ran in the last hour, with more GPUs than so many times those of the median
hour before, tells what there was at one moment."""
NOT_A_DIGIT = re.compile(r"\d+")


@dataclass(frozen=True)
class TodaysNodes:
    """Nodes as they are today.

    - ``names``: Those with most uncut GPUs first: plans cut from the last on.
    - ``gpus``: GPUs of each.
    - ``layouts``: One text for each GPU: ``"gpu"`` if it is not cut, its instances as
      :func:`gpuplanner.hardware.parse_layout` reads them, or ``"off"`` if it is cut and holds none.
    - ``inferred``: Sizes follow from what jobs held at once: there may be more.
    - ``named``: Whether nodes of these names exist; otherwise they are made up for the simulation, and no file may
      have them.
    - ``remarks``: What a reader must know of them, in sentences.
    - ``snapshot``: The jobs are those of one moment rather than of a time.
    - ``shared``: Nodes whose GPUs jobs share: they are kept as they are, whoever used them.

    Examples
    --------
    >>> nodes = TodaysNodes(("n1", "n2"), (2, 1), (("gpu", "gpu"), ("1g.5gb:7",)), inferred=False, named=True)
    >>> nodes.total
    3
    """

    names: tuple[str, ...]
    gpus: tuple[int, ...]
    layouts: tuple[tuple[str, ...], ...]
    inferred: bool
    named: bool
    remarks: tuple[str, ...] = ()
    snapshot: bool = False
    shared: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return sum(self.gpus)




def numbered_nodes(gpus: int, size: int, layouts: Mapping[str, int]) -> TodaysNodes:
    """So many GPUs on nodes that are not known: of one size, and one smaller node with what is left.

    Examples
    --------
    >>> nodes = numbered_nodes(21, 8, {"1g.5gb:7": 1, "gpu": 20})
    >>> nodes.gpus, nodes.layouts[2]
    ((8, 8, 5), ('gpu', 'gpu', 'gpu', 'gpu', '1g.5gb:7'))
    """
    full, rest = divmod(gpus, size)
    sizes = [size] * full + ([rest] if rest else [])
    cut = [text for text in sorted(layouts) if text != WHOLE_GPU for _ in range(layouts[text])]
    texts = [WHOLE_GPU] * layouts.get(WHOLE_GPU, 0) + cut
    texts += [OFF] * (gpus - len(texts))
    return TodaysNodes(
        names=tuple(f"node{number:0{len(str(len(sizes) - 1))}d}" for number in range(len(sizes))),
        gpus=tuple(sizes),
        layouts=_dealt(texts, sizes),
        inferred=False,
        named=False,
    )


def nodes_of(inventory: pl.DataFrame, board: GpuModel, *, inferred: bool) -> TodaysNodes:
    """Nodes of an inventory, in the order in which plans count them: the larger and the less cut first.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> table = pl.DataFrame({"node": ["a", "b"], "gpus": [1, 2], "layouts": ["1g.5gb:7", None]})
    >>> found = nodes_of(table, load_gpu_model("A100-40GB"), inferred=False)
    >>> found.names, found.layouts
    (('b', 'a'), (('gpu', 'gpu'), ('1g.5gb:7',)))
    """
    stated = inventory["layouts"] if "layouts" in inventory.columns else [None] * inventory.height
    each = [
        (str(name), int(gpus), layouts_of_node(int(gpus), text, board))
        for name, gpus, text in zip(inventory["node"], inventory["gpus"], stated, strict=True)
    ]
    each.sort(key=lambda node: (-node[1], -node[2].count(WHOLE_GPU), node[0]))
    names, gpus, layouts = (tuple(part) for part in zip(*each, strict=True)) if each else ((), (), ())
    shared = inventory.filter(pl.col("shares").is_not_null())["node"] if "shares" in inventory.columns else ()
    remarks = (
        (f"{examples(sorted(shared))}: jobs share its GPUs, so no GPU of it is released.",)
        if len(shared)
        else ()
    )
    return TodaysNodes(names, gpus, layouts, inferred, BESIDE not in names, remarks, shared=frozenset(shared))


def smaller_than_their_like(nodes: TodaysNodes) -> tuple[str, ...]:
    """A remark for nodes that were seen with fewer GPUs than most of the nodes that are called like them.

    Examples
    --------
    >>> sizes = (8, 8, 8, 5)
    >>> nodes = TodaysNodes(("g1", "g2", "g3", "g4"), sizes, tuple(("gpu",) * n for n in sizes), True, True)
    >>> smaller_than_their_like(nodes)
    ("Of 'g4', jobs held at most 5 GPUs at once, and 8 of most nodes that are called like it: there may be more.",)
    """
    alike: dict[str, list[int]] = {}
    for place, name in enumerate(nodes.names):
        alike.setdefault(NOT_A_DIGIT.sub("#", name), []).append(place)
    remarks = []
    for places in alike.values():
        size, most = Counter(nodes.gpus[place] for place in places).most_common(1)[0]
        small = [place for place in places if nodes.gpus[place] < size]
        if small and 2 * most > len(places):
            named = examples(sorted(nodes.names[place] for place in small))
            seen, it = max(nodes.gpus[place] for place in small), "it" if len(small) == 1 else "them"
            remarks.append(
                f"Of {named}, jobs held at most {seen} GPU{'s' * (seen > 1)} at once, and {size} of most nodes that "
                f"are called like {it}: there may be more."
            )
    return tuple(remarks)


def cut_as_held(
    nodes: TodaysNodes, jobs: pl.DataFrame, board: GpuModel, begin: datetime, end: datetime
) -> TodaysNodes:
    """Nodes of which nobody says how they are cut, with the fewest GPUs cut that hold what was held at once.

    The last GPUs are cut, as plans do it. Where it would take more GPUs than there are, all stay whole.
    """
    cut = fewest_cut(jobs, board, begin, end)
    if not cut or len(cut) > nodes.total:
        return nodes
    texts = [WHOLE_GPU] * (nodes.total - len(cut)) + cut
    return replace(nodes, layouts=_dealt(texts, nodes.gpus))


def largest_on_one_node(jobs: pl.DataFrame) -> int:
    """GPUs of the largest job that held a single node; 0 where no job says so."""
    if "nodes" not in jobs.columns:
        return 0
    return int(np.ceil(jobs.filter(pl.col("nodes") == 1)["gpus"].max() or 0.0))  # type: ignore[arg-type]


def snapshot_remark(jobs: pl.DataFrame, begin: datetime, end: datetime) -> str | None:
    """A sentence if the jobs were listed at one moment rather than recorded over the time; else None."""
    last = end - HOUR
    if last <= begin:
        return None
    window = Window(begin, end)
    held = gpu_jobs(some_columns(jobs, Jobs, HELD, where="jobs"), window).filter(pl.col("start_time") < end)
    running = held.filter(pl.col("end_time").fill_null(end) > last)
    if running.height <= STILL_RUN * held.height:
        return None
    spans = window.spans(held, "start_time", "end_time", "gpus")
    by_hour = spans.by_hour(window.hours, np.zeros(held.height, dtype=np.int64), 1)[0]
    usual = float(np.median(by_hour[: max((last - window.origin) // HOUR, 1)]))
    now = spans_in(running, last, end)
    most = float(most_held(now, "gpus")["level"].max() or 0.0)  # type: ignore[arg-type]
    if most <= TIMES_BEFORE * usual:
        return None
    return (
        f"The jobs look like a list made at one moment, not a record of what ran: {running.height:,} of "
        f"{held.height:,} ran in the last hour, and {most:,.0f} GPUs were held in it, {usual:,.0f} in the median hour "
        "before."
    )


def _dealt(texts: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """One text for each GPU, parted by nodes."""
    dealt = iter(texts)
    return tuple(tuple(islice(dealt, size)) for size in sizes)
