"""Training steps on MIG slices, as MISO publishes them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import TraceFormatError, format_message
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model

SOURCE = "miso"
CITATION = "Li et al., MISO, SoCC 2022; boringlee24/socc22-miso @ 39b1ee69d73c, MIT"
BOARD = "A100-40GB"
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
"""Profiles that were run; the last is the whole GPU of these data."""

POWER_LIMIT_W = 250.0
"""Power limit of the A100-40GB PCIe card [W]; the logs come close to it (240 W) and never exceed it."""

WARM_UP = 0.1
"""Share of the steps of each epoch that is dropped; the first ones are slow."""

_LOG = re.compile(r"(?P<profile>\d+g\.\d+gb)_(?P<model>[\w-]+)_train(?P<batch>\d+)\.json")
_FACTS = {"gpu_utilisation": ("util_sm", 100.0), "memory_utilisation": ("util_mem", 100.0)}


def read_miso(folder: str | Path, *, power_limit_w: float = POWER_LIMIT_W) -> pl.DataFrame:
    """Read MISO's logs of training steps, with means of the whole GPU and the batch sizes that fit.

    References
    ----------
    Li et al., MISO: Exploiting Multi-Instance GPU Capability on Multi-Tenant Systems for Machine Learning,
    SoCC 2022; boringlee24/socc22-miso.

    Examples
    --------
    >>> read_miso("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: nowhere/logs: expected logs <profile>_<model>_train<batch>.json; got ...
    """
    root = Path(folder)
    gpu_model = as_gpu_model(BOARD)
    logs = {_named(path, gpu_model): path for path in sorted((root / "logs").glob("*.json"))}
    if not logs:
        text = format_message(
            f"{root / 'logs'}", "logs <profile>_<model>_train<batch>.json", "none", "Check the folder."
        )
        raise TraceFormatError(text)
    feasible = {name: _load(root / "feasible" / f"{name.replace('.', '_')}.json") for name in PROFILES}
    facts = {model: _facts(root, model, power_limit_w) for model in sorted({model for _, model, _ in logs})}
    rows = []
    for model, batch in sorted({(model, batch) for _, model, batch in logs}):
        for profile in PROFILES:
            log = logs.get((profile, model, batch))
            fits = batch in feasible[profile].get(model, [])
            outcome = "measured" if log else "not measured" if fits else "does not fit"
            row = {"model": model, "batch": batch, "profile": profile, "outcome": outcome}
            rows.append(row | (_steps(log) if log else {}) | facts[model].get(batch, {}))
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(
        source=pl.lit(SOURCE), kind=pl.lit("training"), gpu_model=pl.lit(BOARD), processes=1
    )


def _named(path: Path, gpu_model: GpuModel) -> tuple[str, str, int]:
    found = _LOG.fullmatch(path.name)
    if found is None or found["profile"] not in PROFILES:
        expected = f"<profile>_<model>_train<batch>.json with a profile of {', '.join(PROFILES)}"
        raise TraceFormatError(format_message(str(path), expected, path.name, "Rename it or move it away."))
    return gpu_model.profile(found["profile"]).name, found["model"], int(found["batch"])


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceFormatError(
            format_message(str(path), "a JSON object", str(error), "Fetch the file again.")
        ) from error
    if not isinstance(document, dict):
        raise TraceFormatError(
            format_message(str(path), "a JSON object", type(document).__name__, "Fetch the file again.")
        )
    return document


def _steps(path: Path) -> dict[str, float]:
    """Median step after warm-up, and how far the medians of the epochs lie from it."""
    try:
        epochs = [np.asarray(steps, dtype=np.float64) for steps in _load(path).values()]
        warm = [steps[math.ceil(WARM_UP * len(steps)) :] for steps in epochs if len(steps) > 1]
        every = np.concatenate(warm)
        if not every.size or not (np.isfinite(every) & (every > 0)).all():
            text = f"{np.count_nonzero(~(every > 0))} of {every.size} steps are not above 0"
            raise ValueError(text)
    except (TypeError, ValueError) as error:
        got = str(error)
        text = format_message(str(path), "epochs, each a list of seconds above 0", got, "Fetch the file again.")
        raise TraceFormatError(text) from error
    median = float(np.median(every))
    medians = np.array([np.median(steps) for steps in warm])
    return {"step_s": median, "step_spread": float(np.median(np.abs(medians / median - 1)))}


def _facts(root: Path, model: str, power_limit_w: float) -> dict[int, dict[str, float]]:
    """Means on the whole GPU, by batch size."""
    scales = _FACTS | {"power_share": ("power", power_limit_w)}
    found: dict[int, dict[str, float]] = {}
    for name, (stem, full) in scales.items():
        path = root / "util_collection" / f"{stem}_{model}.json"
        for batch, value in (_load(path) if path.exists() else {}).items():
            found.setdefault(int(batch), {})[name] = float(value) / full
    return found
