"""How the GPUs of a fleet are cut today, by the layouts that an inventory states."""

from __future__ import annotations

from collections import Counter

import polars as pl

from gpuplanner.errors import GeometryError
from gpuplanner.hardware.layout import OFF, format_layout, parse_layout
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.feasibility import prove
from gpuplanner.schemas.vocabulary import WHOLE_GPU


def todays_layouts(nodes: pl.DataFrame, board: GpuModel) -> dict[str, int]:
    """GPUs by layout, by the board's own names of profiles.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> nodes = pl.DataFrame({"gpus": [4, 2], "layouts": ["1g.5gb:7;1g.5gb:7;gpu", None]})
    >>> todays_layouts(nodes, load_gpu_model("A100-40GB"))
    {'1g.5gb:7': 2, 'gpu': 4}
    """
    counts: Counter[str] = Counter()
    if "layouts" not in nodes.columns:
        nodes = nodes.with_columns(layouts=pl.lit(None, pl.String))
    for gpus, stated in nodes.select("gpus", "layouts").iter_rows():
        counts.update(layouts_of_node(gpus, stated, board))
    return {layout: count for layout, count in sorted(counts.items()) if count and layout != OFF}


def layouts_of_node(gpus: int, stated: str | None, board: GpuModel) -> tuple[str, ...]:
    """Layout of each GPU of a node, whole ones first; GPUs beyond those that are stated are whole.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> layouts_of_node(3, "1g.5gb:7;gpu", load_gpu_model("A100-40GB"))
    ('gpu', 'gpu', '1g.5gb:7')
    """
    texts = [text.strip() for text in (stated or "").split(";") if text.strip()][:gpus]
    each = [_canonical(text, board) for text in texts] + [WHOLE_GPU] * (gpus - len(texts))
    return tuple(sorted(each, key=lambda text: (text != WHOLE_GPU, text == OFF, text)))


def _canonical(text: str, board: GpuModel) -> str:
    try:
        counts = parse_layout(text)
        if WHOLE_GPU in counts:
            return WHOLE_GPU
        held = {board.profile(name).name: count for name, count in counts.items()}
        return format_layout(held) if not held or prove(board, held) else WHOLE_GPU
    except GeometryError:
        return WHOLE_GPU
