"""Architectures of the models in tables of training runs: from a name, a parameter count and columns with the shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplanner.core.errors import ScenarioError, nearest_names
from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.model_architecture import (
    MAX_PARAMETER_COUNT_DIFFERENCE_FRACTION,
    Architecture,
    compare_params,
    find_nearest_preset,
    find_preset,
    infer_mlp_width,
    parse_params_label,
)
from gpuplanner.sizing.training_job import resolve_tool_facts
from gpuplanner.sizing.training_run_row_parsing import read_number_column, resolve_word

MODEL_SHAPE_COLUMNS = ("layers", "hidden", "heads", "kv_heads", "vocab")
"""Columns of a table of runs with the shape of the model."""
MODEL_STYLE_COLUMNS = ("ffn", "gated", "tied", "head_dim")
"""Columns of a table of runs with what else an architecture may state: MLP width and gate, shared head, head size."""
_ROW_ARCHITECTURE_COLUMNS = ("model", "params", "tp", *MODEL_SHAPE_COLUMNS, *MODEL_STYLE_COLUMNS)
"""Columns of a table of runs that determine the architecture."""
_MLP_WIDTH_RATIO_RANGE = (0.5, 20.0)
"""Plausible ratios of MLP width to hidden size; outside, layers and parameters cannot belong to one model."""
_MAX_PARAMETER_LABEL_DIFFERENCE_FRACTION = 0.2
"""Relative difference of the parameter count from that in the model's name from which they contradict."""


@dataclass
class RowArchitecture:
    """Architecture of a row, or None; with notes, contradictions and missing settings."""

    model: Architecture | None = None
    notes: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def read_row_model(row: dict[str, str], tool: str) -> RowArchitecture:
    """Read the architecture of a row; cached for rows of one model."""
    return _read_row_model(tuple((name, row[name]) for name in _ROW_ARCHITECTURE_COLUMNS if name in row), tool)


@functools.lru_cache(1024)
def _read_row_model(items: tuple[tuple[str, str], ...], tool: str) -> RowArchitecture:
    """Determine the architecture of a row of a table of runs from its model name, parameter count and shape columns."""
    row = dict(items)
    row_model, name, params = RowArchitecture(), row.get("model", ""), read_number_column(row, "params")
    known_architecture = find_preset(name)
    shape: dict[str, Any] = {column: int(read_number_column(row, column) or 0) for column in MODEL_SHAPE_COLUMNS}
    labelled = parse_params_label(name)
    if known_architecture:
        differing = [
            column
            for column in MODEL_SHAPE_COLUMNS
            if shape[column] and getattr(known_architecture, column) != shape[column]
        ]
        preset_counts = not differing or not all(shape[column] for column in ("layers", "hidden"))
        for column in differing:
            preset_value = getattr(known_architecture, column)
            subject = f"{column}: {shape[column]} is not the {preset_value} of {known_architecture.name}"
            reading = ", which counts" if preset_counts else f": read as {shape[column]}"
            row_model.clashes.append(f"{subject}{reading}")
        if preset_counts:
            counted = known_architecture.params()
            if params and abs(counted - params) > MAX_PARAMETER_COUNT_DIFFERENCE_FRACTION * counted:
                subject = f"params: {params:.4g} is not the {counted:.4g} of {known_architecture.name}"
                row_model.clashes.append(f"{subject}, which counts")
            row_model.model = known_architecture
            return row_model
    elif labelled and params and abs(labelled / params - 1) > _MAX_PARAMETER_LABEL_DIFFERENCE_FRACTION:
        subject = f"params: {params:.4g} is not the {labelled:.4g} of the name"
        row_model.clashes.append(f"{subject}: read as {params:.4g}")
    params, lacks = params or labelled, [column for column in ("layers", "hidden") if not shape[column]]
    if lacks and (near := find_nearest_preset(name, params)):
        row_model.model = replace(near, layers=shape["layers"] or near.layers, vocab=shape["vocab"] or near.vocab)
        reading = f"read as {near.name} with {row_model.model.layers} layers; add {' and '.join(lacks)}"
        row_model.clashes.append(f"model: {name or 'without a name'} is not known: {reading}")
        return row_model
    near_names = nearest_names(name, facts("model_presets")["preset"].to_list()) if name else []
    hint = f" (is {near_names[0]} meant?)" if near_names else ""
    row_model.lacking = [f"{column}: not given, no preset of this name{hint}; add it" for column in lacks]
    if not row_model.lacking:
        _build_row_model(row_model, row, tool, shape, params or 0.0)
    return row_model


def _build_row_model(
    row_model: RowArchitecture, row: dict[str, str], tool: str, shape: dict[str, Any], params: float
) -> None:
    """Build an architecture from layers, widths and parameters; missing values are assumed and noted."""
    name = row.get("model", "") or "row"
    if not shape["heads"]:
        ranks, hidden = int(read_number_column(row, "tp") or 1), shape["hidden"]
        fitting = [n for n in range(ranks, hidden + 1, ranks) if hidden % n == 0]
        shape["heads"] = min(fitting, key=lambda n: abs(hidden / n - 128), default=1)
        row_model.lacking.append(f"heads: assumed {shape['heads']}")
    if not shape["vocab"]:
        shape["vocab"] = 32000
        row_model.lacking.append("vocab: assumed 32000")
    style_facts = resolve_tool_facts(tool, frozenset())
    families = ("gpt", "bloom", "opt", "pythia", "neox", "falcon", "bert", "t5")
    plain = style_facts.get("gated") == "0" or any(family in name.lower() for family in families)
    plain = not _read_flag(row, "gated", default=not plain)
    style: dict[str, Any] = {"gated": not plain, "bias": plain, "norm": "layer" if plain else "rms"}
    style["tied"] = _read_flag(row, "tied", default=style_facts.get("tied") == "1")
    style["head_dim"] = int(read_number_column(row, "head_dim") or 0)
    width = int(read_number_column(row, "ffn") or 0)
    if not width and (style_facts.get("ffn") == "4h" or (plain and "gpt" in name.lower())):
        width = 4 * shape["hidden"]
    if not params:
        usual = Architecture(name, **shape, ffn=width or round(shape["hidden"] * (4 if plain else 8 / 3)), **style)
        params = usual.params()
        row_model.lacking += [] if width else [f"params: assumed {params:.3g}, by an MLP of the usual width"]
    if width:
        architecture = Architecture(name, **shape, ffn=width, **style)
        label = parse_params_label(name) is not None or float(f"{params:.3g}") == params
        note = compare_params(architecture, params, label=label)
        row_model.notes += [note] if note else []
        if note and not (0.5 < architecture.params() / params < 2):
            row_model.clashes.append(note)
    else:
        architecture = infer_mlp_width(Architecture(name, **shape, ffn=1, **style), params)
        row_model.notes.append(f"MLP width {architecture.ffn} from the parameter count")
        ratio = architecture.ffn / architecture.hidden
        if not _MLP_WIDTH_RATIO_RANGE[0] <= ratio <= _MLP_WIDTH_RATIO_RANGE[1]:
            subject = f"params: {params:.4g} and {architecture.layers} layers of {architecture.hidden}"
            row_model.clashes.append(f"{subject} make an MLP of {ratio:.2g} times the hidden size: read so")
    if architecture.hidden < architecture.heads or architecture.vocab < 2:
        got = f"{architecture.hidden}, {architecture.vocab}"
        raise ScenarioError("row, hidden and vocab", "sizes of a model", got, "Fix hidden and vocab.")
    row_model.model = architecture


def _read_flag(row: Mapping[str, str], column: str, *, default: bool) -> bool:
    """Read a column of yes or no, or the default where it is absent."""
    return resolve_word("switch", row[column], column=column) == "yes" if column in row else default
