"""The fleet as a decision wants it, drawn to scale in plain HTML: one box a GPU, its slices as wide as their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware.gpu import GpuModel, load_gpu_model
from gpuplanner.hardware.enumerate import placement_table
from gpuplanner.report.figures import layout_words, nodes_words, shown
from gpuplanner.report.words import safe
from gpuplanner.study.decision.types import Decision, LayoutOnNodes

MOST_ROWS, MOST_KINDS = 10, 8
"""Nodes that are drawn one by one, and kinds of nodes that are drawn as one row each where there are more."""
MIXED = "cut into slices"
LONGEST_NAME = 8
"""Characters of a name that fit beside a row of boxes."""
MOST_BOXES = 64
BOXES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""GPUs that one box may stand for."""
MAX_NODE_COLUMNS, FLEET_COLUMNS = 8, 16
"""GPUs in a row of a node, and in a row of a fleet whose nodes are not drawn."""
WHOLE = "whole"


def fleet_picture(one: Decision) -> str:
    """Draw the fleet of a decision, with its layouts as a table folded under it.

    One row is a node; of a fleet with more nodes than fit it is all nodes that hold the same, and where nobody names
    nodes, or few are alike, all GPUs of a layout. GPUs that rest are outlines.
    """
    if not one.layouts:
        return ""
    board = _board(one.board)
    kinds = _kinds(one.layouts) if all(part.nodes for part in one.layouts) else {}
    nodes = sum(map(len, kinds.values()))
    by_node = 0 < nodes <= MOST_ROWS or 0 < len(kinds) <= MOST_KINDS < nodes
    groups = _by_node(kinds, board, single=nodes <= MOST_ROWS) if by_node else _by_layout(one, board)
    about = "One box is one GPU" if by_node or _box(one) == 1 else f"One box is {_box(one):,} GPUs"
    about += ", its slices as wide as their memory" if one.cut_gpus else ""
    said = "; ".join(_said(part) for part in one.layouts)
    rest = _resting(one)
    return (
        '<div class="fleet">'
        f'<h3>{_title(one)}</h3><p class="about">{about}.</p>'
        f'<div role="img" aria-label="{safe(said)}">{"".join(groups)}{rest}</div>'
        f"{_twin(one)}</div>"
    )


def _title(one: Decision) -> str:
    return {"buy": "The fleet with what is bought", "keep": "The fleet, as it is"}.get(
        one.action, "The fleet as recommended"
    )


Kind = tuple[tuple[str, int], ...]
"""What a node holds: its layouts, with the GPUs of each."""


def _kinds(layouts: Sequence[LayoutOnNodes]) -> dict[Kind, list[str]]:
    """Nodes by what they hold, in the order in which layouts name them."""
    held: dict[str, list[tuple[str, int]]] = {}
    for part in layouts:
        counts = part.by_node or [
            _share(part.gpus, len(part.nodes), place) for place in range(len(part.nodes))
        ]
        for name, gpus in zip(part.nodes, counts, strict=True):
            held.setdefault(name, []).append((part.layout, gpus))
    found: dict[Kind, list[str]] = {}
    for name, parts in held.items():
        found.setdefault(tuple(parts), []).append(name)
    return found


def _by_node(kinds: dict[Kind, list[str]], board: GpuModel | None, *, single: bool) -> Iterator[str]:
    """Nodes under a caption for whole ones, one for each layout that fills nodes, and one for all that are mixed.

    A row is a node, or, of many, all nodes that hold the same.
    """
    short = _told_apart([name for names in kinds.values() for name in names])
    columns = min(max(sum(count for _, count in kind) for kind in kinds), MAX_NODE_COLUMNS)
    captions: dict[str, list[Kind]] = {}
    for kind in kinds:
        alone = kind[0][0] if len(kind) == 1 else ""
        captions.setdefault(WHOLE if alone == WHOLE else layout_words(alone) or MIXED, []).append(kind)
    for caption, mine in captions.items():
        names = [name for kind in mine for name in kinds[kind]]
        gpus = sum(count * len(kinds[kind]) for kind in mine for _, count in kind)
        cut = sum(count * len(kinds[kind]) for kind in mine for layout, count in kind if layout != WHOLE)
        many = f"{cut:,} of {gpus:,}" if caption == MIXED and cut < gpus else f"{gpus:,} ×"
        yield f"<p><b>{many} {safe(caption)}</b> on {safe(nodes_words(names))}</p>"
        for kind in mine:
            boxes = "".join(_gpu(layout, board) * count for layout, count in kind)
            for name in kinds[kind] if single else kinds[kind][:1]:
                label = short[name] if single else f"× {len(kinds[kind]):,}"
                full = f' title="{safe(name)}"' if label != name else ""
                yield (
                    f'<div class="row"><span class="label"{full}>{safe(label)}</span>{_grid(boxes, columns)}</div>'
                )


def _grid(boxes: str, columns: int) -> str:
    """A grid of GPUs with a number of columns."""
    return f'<div class="gpus" style="--columns:{columns}">{boxes}</div>'


def _told_apart(names: Sequence[str]) -> dict[str, str]:
    """What fits beside a row: of long names the part that they do not share, with its number whole.

    Examples
    --------
    >>> _told_apart(["gpu-worker-09.cluster", "gpu-worker-10.cluster"]), _told_apart(["n01", "n02"])
    ({'gpu-worker-09.cluster': '…09', 'gpu-worker-10.cluster': '…10'}, {'n01': 'n01', 'n02': 'n02'})
    """
    if max(map(len, names)) <= LONGEST_NAME or len(set(names)) == 1:
        return {name: name for name in names}
    begin = _shared(names).rstrip("0123456789")
    end = _shared([name[len(begin) :][::-1] for name in names])[::-1].lstrip("0123456789")
    return {name: "…" * bool(begin) + (name[len(begin) : len(name) - len(end)] or name) for name in names}


def _shared(texts: Sequence[str]) -> str:
    """The characters that all texts begin with."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)


def _by_layout(one: Decision, board: GpuModel | None) -> Iterator[str]:
    """One row of boxes a layout."""
    unit = _box(one)
    for place, part in enumerate(one.layouts):
        where = f" on {safe(nodes_words(part.nodes))}" if part.nodes else ""
        total = shown(one, f"layouts.{place}.gpus")
        yield f"<p><b>{total} × {safe(layout_words(part.layout))}</b>{where}</p>"
        boxes = _grid(_gpu(part.layout, board) * max(round(part.gpus / unit), 1), FLEET_COLUMNS)
        yield f'<div class="row loose">{boxes}</div>'


def _resting(one: Decision) -> str:
    """GPUs that are not on: outlines, as many as there are."""
    rest = max(one.fleet_gpus - one.gpus, 0)
    if not rest:
        return ""
    boxes = _grid('<div class="gpu rests"></div>' * max(round(rest / _box(one)), 1), FLEET_COLUMNS)
    word = "GPUs rest" if rest > 1 else "GPU rests"
    return f'<p><b>{shown(one, "resting_gpus")} {word}</b></p><div class="row loose">{boxes}</div>'


def _share(gpus: int, nodes: int, place: int) -> int:
    """GPUs of one of some nodes: they are dealt out in turn."""
    return gpus // nodes + (place < gpus % nodes)


def _box(one: Decision) -> int:
    return next((unit for unit in BOXES if max(one.fleet_gpus, one.gpus) <= MOST_BOXES * unit), BOXES[-1])


def _gpu(layout: str, board: GpuModel | None) -> str:
    if layout == WHOLE or board is None or not board.memory_slices:
        return '<div class="gpu whole"></div>'
    parts, end = [], 0
    for _, profile, start, size in placement_table(board, [layout]).sort("start").rows():
        parts += [("", start - end)] if start > end else []
        parts.append((profile, size))
        end = start + size
    parts += [("", board.memory_slices - end)] if end < board.memory_slices else []
    cells = "".join(_slice(name, size) for name, size in parts)
    return f'<div class="gpu" title="{safe(layout_words(layout))}">{cells}</div>'


def _slice(name: str, size: int) -> str:
    if not name:
        return f'<div class="slice none" style="flex:{size}"></div>'
    kind = name.split(".")[0]
    return f'<div class="slice g{kind[0]}" style="flex:{size}"><span>{safe(kind)}</span></div>'


def _board(name: str | None) -> GpuModel | None:
    """The board, if the catalogue has it."""
    if name is None:
        return None
    try:
        return load_gpu_model(name)
    except GpuPlannerError:
        return None


def _said(part: LayoutOnNodes) -> str:
    where = f" on {nodes_words(part.nodes)}" if part.nodes else ""
    return f"{part.gpus:,} × {layout_words(part.layout)}{where}"


def _twin(one: Decision) -> str:
    """Layout, GPUs and nodes as a table: what the picture shows, and what is to be typed."""
    rows = "".join(
        f'<tr><th scope="row">{safe(part.layout)}</th><td class="number">{shown(one, f"layouts.{place}.gpus")}</td>'
        f'<td class="long">{safe(", ".join(part.nodes)) or "–"}</td></tr>'
        for place, part in enumerate(one.layouts)
    )
    return (
        "<details><summary>Layouts and nodes as a table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Layouts and nodes"><table>'
        '<caption>Layouts and nodes</caption><thead><tr><th scope="col">layout</th>'
        '<th scope="col" class="number">GPUs</th><th scope="col">nodes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
