"""The fleet as a decision wants it, drawn to scale in plain HTML: one box a GPU, its slices as wide as their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile

from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware import GpuModel, load_gpu_model
from gpuplanner.hardware.enumerate import placement_table
from gpuplanner.report.figures import layout_words, nodes_words, shown
from gpuplanner.study.decision.types import Decision, LayoutOnNodes

MOST_ROWS = 12
"""Nodes that are drawn one by one; larger fleets are drawn by group."""
LONGEST_NAME = 8
"""Characters of a name that fit beside a row of boxes."""
MOST_BOXES = 64
BOXES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""GPUs that one box may stand for."""
WHOLE = "whole"


def fleet_picture(one: Decision) -> str:
    """Draw the fleet of a decision, with its layouts as a table folded under it.

    Nodes with the same layouts stand together, one row a node; of a fleet with more nodes than fit, or with nodes that
    nobody names, one row of boxes stands for each layout. GPUs that rest are outlines.
    """
    if not one.layouts:
        return ""
    board = _board(one.board)
    nodes = list(dict.fromkeys(name for part in one.layouts for name in part.nodes))
    by_node = 0 < len(nodes) <= MOST_ROWS and all(part.nodes for part in one.layouts)
    groups = _by_node(one, board) if by_node else _by_layout(one, board)
    about = "One box is one GPU" if by_node or _box(one) == 1 else f"One box is {_box(one):,} GPUs"
    about += ", its slices as wide as their memory" if one.cut_gpus else ""
    said = "; ".join(_said(part) for part in one.layouts)
    rest = _resting(one)
    return (
        '<div class="fleet">'
        f'<h3>{_title(one)}</h3><p class="about">{about}.</p>'
        f'<div role="img" aria-label="{escape(said)}">{"".join(groups)}{rest}</div>'
        f"{_twin(one)}</div>"
    )


def _title(one: Decision) -> str:
    return {"buy": "The fleet with what is bought", "keep": "The fleet, as it is"}.get(
        one.action, "The fleet from Monday"
    )


def _by_node(one: Decision, board: GpuModel | None) -> Iterator[str]:
    """Groups of nodes with the same layouts: what they hold in words, then one row a node."""
    short = _told_apart([name for part in one.layouts for name in part.nodes])
    for names, parts in _alike(one.layouts):
        gpus = sum(part.gpus for _, part in parts)
        whole = [part.layout for _, part in parts] == [WHOLE]
        total = shown(one, f"layouts.{parts[0][0]}.gpus") if len(parts) == 1 else f"<b>{gpus:,}</b>"
        kind = (
            "whole" if whole else layout_words(parts[0][1].layout) if len(parts) == 1 else "cut into slices"
        )
        yield f"<p><b>{total} × {escape(kind)}</b> on {escape(nodes_words(names))}</p>"
        for place, name in enumerate(names):
            boxes = "".join(
                _gpu(part.layout, board) * _share(part.gpus, len(names), place) for _, part in parts
            )
            full = f' title="{escape(name)}"' if short[name] != name else ""
            yield f'<div class="row"><span{full}>{escape(short[name])}</span><div>{boxes}</div></div>'


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
        where = f" on {escape(nodes_words(part.nodes))}" if part.nodes else ""
        total = shown(one, f"layouts.{place}.gpus")
        yield f"<p><b>{total} × {escape(layout_words(part.layout))}</b>{where}</p>"
        boxes = _gpu(part.layout, board) * max(round(part.gpus / unit), 1)
        yield f'<div class="row loose"><div>{boxes}</div></div>'


def _resting(one: Decision) -> str:
    """GPUs that are not on: outlines, as many as there are."""
    rest = max(one.fleet_gpus - one.gpus, 0)
    if not rest:
        return ""
    boxes = '<i class="gpu rests"></i>' * max(round(rest / _box(one)), 1)
    word = "GPUs rest" if rest > 1 else "GPU rests"
    return f'<p><b>{shown(one, "resting_gpus")} {word}</b></p><div class="row loose"><div>{boxes}</div></div>'


def _alike(
    layouts: Sequence[LayoutOnNodes],
) -> list[tuple[tuple[str, ...], list[tuple[int, LayoutOnNodes]]]]:
    """Layouts by the nodes that they share."""
    found: dict[tuple[str, ...], list[tuple[int, LayoutOnNodes]]] = {}
    for place, part in enumerate(layouts):
        found.setdefault(part.nodes, []).append((place, part))
    return list(found.items())


def _share(gpus: int, nodes: int, place: int) -> int:
    """GPUs of one of some nodes: they are dealt out in turn."""
    return gpus // nodes + (place < gpus % nodes)


def _box(one: Decision) -> int:
    return next((unit for unit in BOXES if max(one.fleet_gpus, one.gpus) <= MOST_BOXES * unit), BOXES[-1])


def _gpu(layout: str, board: GpuModel | None) -> str:
    if layout == WHOLE or board is None or not board.memory_slices:
        return '<i class="gpu whole"></i>'
    parts, end = [], 0
    for _, profile, start, size in placement_table(board, [layout]).sort("start").rows():
        parts += [("", start - end)] if start > end else []
        parts.append((profile, size))
        end = start + size
    parts += [("", board.memory_slices - end)] if end < board.memory_slices else []
    cells = "".join(_slice(name, size) for name, size in parts)
    return f'<i class="gpu" title="{escape(layout_words(layout))}">{cells}</i>'


def _slice(name: str, size: int) -> str:
    if not name:
        return f'<u style="flex:{size}" class="none"></u>'
    kind = name.split(".")[0]
    return f'<u style="flex:{size}" class="g{kind[0]}">{escape(kind) if size > 1 else ""}</u>'


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
        f'<tr><th scope="row">{escape(part.layout)}</th><td class="number">{shown(one, f"layouts.{place}.gpus")}</td>'
        f'<td class="long">{escape(", ".join(part.nodes)) or "–"}</td></tr>'
        for place, part in enumerate(one.layouts)
    )
    return (
        "<details><summary>Layouts and nodes as a table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Layouts and nodes"><table>'
        '<caption>Layouts and nodes</caption><thead><tr><th scope="col">layout</th>'
        '<th scope="col" class="number">GPUs</th><th scope="col">nodes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
