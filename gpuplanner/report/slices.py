"""MIG layouts drawn as slices to scale, in plain HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from gpuplanner.hardware import GpuModel
from gpuplanner.planner.plan_tables import placement_table
from gpuplanner.schemas import WHOLE_GPU


def drawn_layouts(board: GpuModel, counts: Mapping[str, int | None]) -> str:
    """GPUs by layout: each drawn as wide as its memory slices, with the number of GPUs where there is one.

    Parameters
    ----------
    board : GpuModel
        Board that is cut.
    counts : mapping of str to int or None
        GPUs by layout text, ``"gpu"`` for whole ones; None: no fixed number.

    Examples
    --------
    >>> from gpuplanner.hardware import load_gpu_model
    >>> html = drawn_layouts(load_gpu_model("H100-80GB-SXM5"), {"3g.40gb:2": 5})
    >>> html.count('style="flex:4"'), "5 GPUs" in html
    (2, True)
    """
    return '<div class="boards">' + "".join(_board(board, *one) for one in counts.items()) + "</div>"


def _board(board: GpuModel, layout: str, count: int | None) -> str:
    if layout == WHOLE_GPU:
        parts = [("whole GPU", board.memory_slices or 1)]
    else:
        parts, end = [], 0
        for _, profile, start, size in placement_table(board, [layout]).sort("start").rows():
            parts += [("", start - end)] if start > end else []
            parts.append((profile, size))
            end = start + size
        parts += [("", board.memory_slices - end)] if end < board.memory_slices else []
    cells = "".join(
        f'<span style="flex:{size}" title="{escape(name)}">{escape(name.split(".")[0])}</span>'
        if name
        else f'<i style="flex:{size}" title="not used"></i>'
        for name, size in parts
    )
    said = "not cut" if layout == WHOLE_GPU else layout.replace(",", " + ").replace(":", " × ")
    much = "" if count is None else f"<b>{count:,} GPU{'s' if count != 1 else ''}</b> "
    return (
        f'<figure class="board"><div role="img" aria-label="{escape(said)}">{cells}</div>'
        f"<figcaption>{much}{escape(said)}</figcaption></figure>"
    )
