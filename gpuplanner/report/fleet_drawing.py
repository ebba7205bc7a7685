"""Drawing of a fleet: its nodes and their MIG layouts, GPUs to buy and GPUs released."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.decision.decision_types import LAYOUT_FULL, Decision, LayoutOnNodes
from gpuplanner.decision.policy_layouts import FleetRules
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.hardware.layout_enumeration import make_placement_table
from gpuplanner.report.number_formats_and_glossary import describe_layout, describe_nodes, escape_html, metric_html

MAX_NODE_ROWS = 10
"""Maximum number of nodes that are drawn one by one."""
MAX_NODE_KINDS = 8
"""Maximum number of node kinds (nodes with the same layouts) that are drawn as a row each in larger fleets."""
MIXED_LAYOUTS = "with mixed layouts"
"""Words of a caption for nodes with several layouts."""
MAX_NODE_LABEL_CHARACTERS = 8
"""Maximum characters of a node name beside its row of GPU boxes; longer names are shortened."""
MAX_FLEET_BOXES = 64
"""Maximum number of boxes in the drawing of a fleet whose nodes are not drawn."""
GPUS_PER_BOX = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Numbers of GPUs that one box of the drawing may stand for."""
MAX_GPUS_PER_ROW = 8
"""Maximum number of GPU boxes side by side in the row of a node."""
FLEET_GPUS_PER_ROW = 16
"""Number of boxes side by side in the drawing of a fleet whose nodes are not drawn."""


def draw_fleet(decision: Decision, rules: FleetRules | None = None) -> str:
    """Draw the target MIG layout of a decision as HTML boxes, followed by a folded table.

    A row of boxes is one node; in a large fleet it stands for all nodes with the same layouts, and where the nodes have
    no names, for all GPUs of a layout. GPUs to release are dashed outlines. With `rules`, the boxes of a node are in
    the order of its GPU indices.
    """
    if not decision.layouts:
        return ""
    gpu_model = _find_gpu_model(decision.gpu_model)
    own_layouts = [part for part in decision.layouts if not part.to_buy]
    kinds: NodesByLayouts = {}
    if own_layouts and all(part.nodes for part in own_layouts):
        kinds = _group_nodes(own_layouts, _gpu_layouts_by_node(rules))
    nodes = sum(map(len, kinds.values()))

    # Small fleets show each node, fleets of few kinds of nodes a row for each kind, others a row for each layout.
    groups, unit = _draw_layouts(decision, gpu_model), _gpus_per_box(decision)
    if 0 < nodes <= MAX_NODE_ROWS or 0 < len(kinds) <= MAX_NODE_KINDS < nodes:
        groups, unit = _draw_nodes(kinds, gpu_model, one_row_each=nodes <= MAX_NODE_ROWS), 1
    about = "One box is a GPU" if unit == 1 else f"One box is {unit:,} GPUs"
    partitioned = decision.partitioned_gpus
    about = "Box: GPU, not by index; width: memory; empty: no instance" if partitioned else about

    bought = sum(part.gpus for part in decision.layouts if part.to_buy)
    full = sum(part.gpus for part in own_layouts if part.layout == LAYOUT_FULL)
    not_kept = max(decision.fleet_gpus - decision.gpus, 0)
    parts = {"full": full, "partitioned": partitioned, released_word(decision): not_kept, "to buy": bought}
    sums = " + ".join(f"{gpus:,} {word}" for word, gpus in parts.items() if gpus)
    label = "; ".join(f"{part.gpus:,} × {describe_layout(part.layout)}" for part in decision.layouts)
    name = "MIG layout" if decision.partitioned_gpus else "fleet"
    title = f"Target {name}" if decision.measures else f"Today's {name}, kept"
    bought_rows = _draw_layouts(decision, gpu_model, to_buy=True)
    pictures = "".join([*groups, _draw_released_gpus(decision), *bought_rows])
    return (
        f'<div class="fleet"><h3>{title}</h3>'
        f'<p class="about">{about}. {sums} = {max(decision.fleet_gpus, decision.gpus):,} GPUs.</p>'
        f'<div role="img" aria-label="{escape_html(label)}">{pictures}</div>'
        f"{_layout_table(decision)}</div>"
    )


def released_word(decision: Decision) -> str:
    """Name what happens to GPUs that are no longer needed: "released" or "powered down"."""
    return "released" if any(step.action == "release" for step in decision.measures) else "powered down"


NodeLayouts = tuple[tuple[str, int], ...]
"""Layouts of a node, each with its number of GPUs."""
NodesByLayouts = dict[NodeLayouts, list[str]]
"""Names of nodes by the layouts that they share."""


def _gpu_layouts_by_node(rules: FleetRules | None) -> dict[str, list[str]]:
    """Look up the layout of each GPU by node, in the order of the GPU indices that the change bundle uses."""
    pools = () if rules is None else rules.pools
    words = {FULL_GPU: LAYOUT_FULL}
    return {name: [words.get(layout, layout) for layout in pool.layouts] for pool in pools for name in pool.nodes}


def _group_nodes(layouts: Sequence[LayoutOnNodes], gpu_layouts: dict[str, list[str]]) -> dict[NodeLayouts, list[str]]:
    """Group nodes that have the same layouts; GPUs are in index order where `gpu_layouts` has the node."""
    on_node: dict[str, list[tuple[str, int]]] = {}
    for part in layouts:
        gpus_per_node, extra_gpus = divmod(part.gpus, max(len(part.nodes), 1))
        counts = part.by_node or [gpus_per_node + (position < extra_gpus) for position in range(len(part.nodes))]
        for name, gpus in zip(part.nodes, counts, strict=True):
            on_node.setdefault(name, []).append((part.layout, gpus))
    kinds: NodesByLayouts = {}
    for name, parts in on_node.items():
        if Counter(gpu_layouts.get(name)) == dict(parts):
            parts = [(layout, len(list(run))) for layout, run in groupby(gpu_layouts[name])]
        kinds.setdefault(tuple(parts), []).append(name)
    return dict(sorted(kinds.items(), key=lambda kind: (len(kind[1][0]), kind[1][0])))


def _draw_nodes(kinds: NodesByLayouts, gpu_model: GpuModel | None, *, one_row_each: bool) -> Iterator[str]:
    """Draw rows of nodes under a caption for each layout; nodes with several layouts share one caption.

    Parameters
    ----------
    kinds : dict of NodeLayouts to list of str
        Node names by the layouts of the node.
    gpu_model : GpuModel or None
        GPU model whose memory slices give the widths; None draws full GPUs.
    one_row_each : bool
        Draw each node; otherwise one row stands for all nodes with the same layouts.

    Yields
    ------
    str
        HTML of a caption or of a row.
    """
    short = _shorten_names([name for names in kinds.values() for name in names])
    columns = min(max(sum(count for _, count in kind) for kind in kinds), MAX_GPUS_PER_ROW)
    captions: dict[str, list[NodeLayouts]] = {}
    for kind in kinds:
        only_layout = kind[0][0] if len(kind) == 1 else ""
        captions.setdefault(describe_layout(only_layout) or MIXED_LAYOUTS, []).append(kind)
    for caption, same_caption in captions.items():
        names = [name for kind in same_caption for name in kinds[kind]]
        gpus = sum(count * len(kinds[kind]) for kind in same_caption for _, count in kind)
        full = sum(count * len(kinds[kind]) for kind in same_caption for layout, count in kind if layout == LAYOUT_FULL)
        counts = f" ({full:,} full, {gpus - full:,} partitioned)" if caption == MIXED_LAYOUTS and full else ""
        yield f"<p>{_caption_gpus(f'{gpus:,}', caption)}{counts} on {escape_html(describe_nodes(names))}</p>"
        for kind in same_caption:
            boxes = "".join(_draw_gpu(layout, gpu_model) * count for layout, count in kind)
            for name in kinds[kind] if one_row_each else kinds[kind][:1]:
                label = short[name] if one_row_each else f"× {len(kinds[kind]):,}"
                tooltip = f' title="{escape_html(name)}"' if label != name else ""
                heading = f'<span class="label"{tooltip}>{escape_html(label)}</span>'
                yield f'<div class="row">{heading}{_draw_grid(boxes, columns)}</div>'


def _draw_grid(boxes: str, columns: int) -> str:
    """Wrap the boxes of GPUs in a grid with a number of columns."""
    return f'<div class="gpus" style="--columns:{columns}">{boxes}</div>'


def _caption_gpus(gpus: str, layout: str) -> str:
    """Render the caption of GPUs with one layout as HTML, such as ``8 full GPUs (MIG disabled)``."""
    if layout == describe_layout(LAYOUT_FULL):
        return f"<b>{gpus} full GPUs</b> (MIG disabled)"
    if layout == MIXED_LAYOUTS:
        return f"<b>{gpus} GPUs</b> {MIXED_LAYOUTS}"
    return f"<b>{gpus} partitioned</b> as {escape_html(layout)}"


def _shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Shorten long node names to the part in which they differ, including its number.

    Examples
    --------
    >>> _shorten_names(["gpu-worker-09.cluster", "gpu-worker-10.cluster"]), _shorten_names(["n01", "n02"])
    ({'gpu-worker-09.cluster': '…09', 'gpu-worker-10.cluster': '…10'}, {'n01': 'n01', 'n02': 'n02'})
    """
    if max(map(len, names)) <= MAX_NODE_LABEL_CHARACTERS or len(set(names)) == 1:
        return {name: name for name in names}
    # Characters are compared, not path components.
    begin = os.path.commonprefix(names).rstrip("0123456789")  # noqa: RUF071
    end = os.path.commonprefix([name[len(begin) :][::-1] for name in names])[::-1].lstrip("0123456789")  # noqa: RUF071
    return {name: "…" * bool(begin) + (name[len(begin) : len(name) - len(end)] or name) for name in names}


def _draw_layouts(decision: Decision, gpu_model: GpuModel | None, *, to_buy: bool = False) -> Iterator[str]:
    """Draw one row of boxes for each layout: of nodes that are not drawn, or of GPUs to buy, as dashed outlines."""
    for position, part in enumerate(decision.layouts):
        if part.to_buy == to_buy:
            on_nodes = f" on {escape_html(describe_nodes(part.nodes))}" if part.nodes else ""
            gpus = metric_html(decision, f"layouts.{position}.gpus")
            caption = _caption_gpus(gpus, describe_layout(part.layout))
            yield f"<p>{caption}{f' {part.node_text}' if to_buy else on_nodes}</p>"
            yield _draw_loose_row(decision, _RELEASED_GPU if to_buy else _draw_gpu(part.layout, gpu_model), part.gpus)


def _draw_released_gpus(decision: Decision) -> str:
    """Draw GPUs that are released or powered down as dashed outlines."""
    gpus = max(decision.fleet_gpus - decision.gpus, 0)
    if not gpus:
        return ""
    caption = f"<p><b>{metric_html(decision, 'released_gpus')} {released_word(decision)}</b></p>"
    return caption + _draw_loose_row(decision, _RELEASED_GPU, gpus)


_RELEASED_GPU = '<div class="gpu released"></div>'
"""Dashed outline of a GPU that is released, or to be bought."""


def _draw_loose_row(decision: Decision, box: str, gpus: int) -> str:
    """Draw a number of GPUs of no named node as equal boxes, at least one."""
    boxes = box * max(round(gpus / _gpus_per_box(decision)), 1)
    return f'<div class="row loose">{_draw_grid(boxes, FLEET_GPUS_PER_ROW)}</div>'


def _gpus_per_box(decision: Decision) -> int:
    """Choose how many GPUs one drawn box stands for, so that a fleet has at most ``MAX_FLEET_BOXES`` boxes."""
    gpus = max(decision.fleet_gpus, decision.gpus)
    return next((unit for unit in GPUS_PER_BOX if gpus <= MAX_FLEET_BOXES * unit), GPUS_PER_BOX[-1])


def _draw_gpu(layout: str, gpu_model: GpuModel | None) -> str:
    """Draw one GPU as a box with its MIG instances, as wide as their memory slices."""
    if layout == LAYOUT_FULL or gpu_model is None or not gpu_model.memory_slices:
        return '<div class="gpu full"></div>'
    parts, end = [], 0
    for _, profile, start, size in make_placement_table(gpu_model, [layout]).sort("start").rows():
        parts += [("", start - end)] if start > end else []
        parts.append((profile, size))
        end = start + size
    parts += [("", gpu_model.memory_slices - end)] if end < gpu_model.memory_slices else []
    cells = "".join(_draw_slice(name, size) for name, size in parts)
    return f'<div class="gpu" title="{escape_html(describe_layout(layout))}">{cells}</div>'


def _draw_slice(name: str, size: int) -> str:
    """Draw one MIG instance, or an unused range of memory slices where the name is empty."""
    if not name:
        return f'<div class="slice none" style="flex:{size}"></div>'
    kind = name.split(".")[0]
    return f'<div class="slice g{kind[0]}" style="flex:{size}"><span>{escape_html(kind)}</span></div>'


def _find_gpu_model(name: str | None) -> GpuModel | None:
    """Load a GPU model by name; None if the catalogue does not have it."""
    with contextlib.suppress(GpuPlannerError):
        return None if name is None else load_gpu_model(name)
    return None


def _layout_table(decision: Decision) -> str:
    """Render layouts, GPUs and nodes as a folded HTML table."""
    rows = "".join(
        f'<tr><th scope="row">{escape_html(part.layout)}</th>'
        f'<td class="number">{metric_html(decision, f"layouts.{position}.gpus")}</td>'
        f'<td class="long">{escape_html(part.node_text) or "–"}</td></tr>'
        for position, part in enumerate(decision.layouts)
    )
    return (
        "<details><summary>Layouts and nodes as a table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Layouts and nodes"><table>'
        '<caption>Layouts and nodes</caption><thead><tr><th scope="col">layout</th>'
        '<th scope="col" class="number">GPUs</th><th scope="col">nodes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
