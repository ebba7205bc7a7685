"""The architecture that a row means: a preset, or what its columns say, and what of them does not go together."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from gpuplanner.catalog.loader import facts
from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import nearest
from gpuplanner.sizing.predict.architecture import LABEL_TOLERANCE, Architecture, agree, with_width_for
from gpuplanner.sizing.predict.describe import known_preset, size_in
from gpuplanner.sizing.predict.reading.cells import number
from gpuplanner.sizing.predict.tools import tool_facts

SHAPE = ("layers", "hidden", "heads", "kv_heads", "vocab")
_READ = ("model", "params", "tp", *SHAPE)
_WIDTHS = (0.5, 20.0)
"""Widths of an MLP by hidden size beyond which layers and parameters cannot be of one model."""
_NAME_TOLERANCE = 0.2


@dataclass
class RowModel:
    """The architecture of a row, or None; what was counted otherwise than stated, contradicts or is lacking."""

    model: Architecture | None = None
    said: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def model_of(row: dict[str, str], tool: str) -> RowModel:
    """Read the architecture of a row; rows of one model share it."""
    return _model_of(tuple((name, row[name]) for name in _READ if name in row), tool)


@functools.lru_cache(1024)
def _model_of(items: tuple[tuple[str, str], ...], tool: str) -> RowModel:
    row = dict(items)
    found, name, params = RowModel(), row.get("model", ""), number(row, "params")
    known = known_preset(name)
    shape: dict[str, Any] = {each: int(number(row, each) or 0) for each in SHAPE}
    labelled = size_in(name)
    if known:
        differing = [each for each in SHAPE if shape[each] and getattr(known, each) != shape[each]]
        found.clashes += [
            f"{each}: {shape[each]} is not the {getattr(known, each)} of {known.name}: read as {shape[each]}"
            for each in differing
        ]
        if not differing or not all(shape[each] for each in ("layers", "hidden")):
            if differing:
                found.clashes = [
                    f"{each}: {shape[each]} is not the {getattr(known, each)} of {known.name}, which counts"
                    for each in differing
                ]
            counted = known.params()
            if params and abs(counted - params) > LABEL_TOLERANCE * counted:
                found.clashes.append(
                    f"params: {params:.4g} is not the {counted:.4g} of {known.name}, which counts"
                )
            found.model = known
            return found
    elif labelled and params and abs(labelled / params - 1) > _NAME_TOLERANCE:
        found.clashes.append(
            f"params: {params:.4g} is not the {labelled:.4g} of the name: read as {params:.4g}"
        )
    near = nearest(name, facts("model_presets")["preset"].to_list()) if name and not known else []
    hint = f" (is {near[0]} meant?)" if near else ""
    lacks = [each for each in ("layers", "hidden") if not shape[each]]
    found.lacking = [f"{each}: not given, no preset of this name{hint}; add it" for each in lacks]
    params = params or labelled
    if not params and not lacks:
        found.lacking.append("params: not given, no preset of this name; add it")
    if not found.lacking:
        _shaped(found, row, tool, shape, params or 0.0)
    return found


def _shaped(found: RowModel, row: dict[str, str], tool: str, shape: dict[str, Any], params: float) -> None:
    """An architecture from layers, widths and parameters; what is missing is assumed and said."""
    name = row.get("model", "") or "row"
    if not shape["heads"]:
        ranks, hidden = int(number(row, "tp") or 1), shape["hidden"]
        fitting = [n for n in range(ranks, hidden + 1, ranks) if hidden % n == 0]
        shape["heads"] = min(fitting, key=lambda n: abs(hidden / n - 128), default=1)
        found.lacking.append(f"heads: assumed {shape['heads']}")
    if not shape["vocab"]:
        shape["vocab"] = 32000
        found.lacking.append("vocab: assumed 32000")
    style_facts = tool_facts(tool, frozenset())
    plain = style_facts.get("gated") == "0" or any(
        word in name.lower() for word in ("gpt", "bloom", "opt", "pythia", "neox", "falcon", "bert", "t5")
    )
    style: dict[str, Any] = {
        "gated": not plain,
        "norm": "layer" if plain else "rms",
        "bias": plain,
        "tied": style_facts.get("tied") == "1",
    }
    if style_facts.get("ffn") == "4h" or (plain and "gpt" in name.lower()):
        made = Architecture(name, **shape, ffn=4 * shape["hidden"], **style)
        label = size_in(name) is not None or float(f"{params:.3g}") == params
        said = agree(made, params, label=label)
        found.said += [said] if said else []
        if said and not (0.5 < made.params() / params < 2):
            found.clashes.append(said)
    else:
        made = with_width_for(Architecture(name, **shape, ffn=1, **style), params)
        found.said.append(f"MLP width {made.ffn} from the parameter count")
        ratio = made.ffn / made.hidden
        if not _WIDTHS[0] <= ratio <= _WIDTHS[1]:
            what = f"params: {params:.4g} and {made.layers} layers of {made.hidden}"
            found.clashes.append(f"{what} make an MLP of {ratio:.2g} times the hidden size: read so")
    if made.hidden < made.heads or made.vocab < 2:
        raise ScenarioError(
            message("row, hidden and vocab", "sizes of a model", f"{made.hidden}, {made.vocab}", "Mend them.")
        )
    found.model = made
