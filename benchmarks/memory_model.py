"""Fit the shipped model of peaks on public measurements, and write what it reaches into docs/memory.md.

``python benchmarks/memory_model.py --write``, with GPUPLANNER_DATA set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.sizing.predict import (
    TrainingJob,
    evaluate,
    fit_model,
    measured_runs,
    peak_model_text,
    scored,
)
from gpuplanner.sizing.predict.calibrate import Runs, fit_knobs, predicted_gib, source_names
from gpuplanner.sizing.predict.evaluate import Evaluation, accuracy_of
from gpuplanner.sizing.predict.peak import COMPONENTS
from gpuplanner.sizing.predict.tools import ANY

ROOT = Path(__file__).parents[1]
UNDECIDED = ("source", "model", "family", "predicted_gib", "upper_gib", "measured", "accuracy", "missing")
ROWS = "memory/memory_measurements.csv"
HEAD = """# Memory of training jobs: how well it is predicted

Made by `python benchmarks/memory_model.py --write` from `data/{rows}` ({count} runs, {measured} of them measured).
Accuracy is 1 - |error| / measured, not below 0. Knobs are learned from the other sources; what a tool does unasked
is documentation and stays (`gpuplanner/catalog/facts/training_tools.csv`, each fact with its source). The facts were
looked up with these tables at hand, so a source that nobody has seen may do worse than the sources that are left out
here; the line with generic facts says what is left when nothing is known of a tool.
"""


def main() -> None:
    """Fit, evaluate, print or write."""
    path = Path(os.environ["GPUPLANNER_DATA"]) / ROWS
    table = pl.read_csv(path, infer_schema=False)
    runs, held = measured_runs(table)
    model = fit_model(
        runs,
        generic=measured_runs(table, tool="any")[0],
        provenance=f"{len(runs)} measured runs of four public tables, see data/memory in the public data",
    )
    frame, _ = scored(table)
    families = frame.group_by("family").agg(pl.col("accuracy").mean(), rows=pl.len()).sort("family")
    model = replace(model, accuracy={name: (accuracy, rows) for name, accuracy, rows in families.iter_rows()})
    page = HEAD.format(rows=ROWS, count=len(table), measured=len(held)) + _page(
        evaluate(table), ablation(table)
    )
    if "--write" in sys.argv:
        (ROOT / "gpuplanner/sizing/predict/default.json").write_text(peak_model_text(model), "utf-8")
        (ROOT / "docs/memory.md").write_text(page, "utf-8")
    else:
        print(page)


def ablation(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Mean accuracy, each source left out, without one thing at a time."""
    changes: dict[str, Callable[[TrainingJob], TrainingJob] | None] = {
        "nothing: all of it": None,
        "fp32 gradients of DeepSpeed's step (16 bytes, not 18 to 20)": lambda job: _with_regime(job),
        "recompute: as if none": lambda job: replace(job, recompute="none"),
        "flash attention: as if the score matrix were kept": lambda job: replace(job, flash=False),
        "sharding: as if plain data parallel": lambda job: replace(
            job, sharding="ddp", gradients_whole=False
        ),
        "bytes a logit: 4 for all": lambda job: replace(job, logits_bytes=4.0),
    }
    rows = [_left_out(name, measured_runs(table, change=change)[0]) for name, change in changes.items()]
    whole = measured_runs(table)[0]
    for place, name in enumerate(COMPONENTS):
        parts = whole.parts.copy()
        parts[:, place] = 0.0
        rows.append(_left_out(name, replace(whole, parts=np.maximum(parts, 1e-9))))
    rows.append(_left_out("knobs: all at 1", whole, fitted=False))
    rows.append(
        _left_out("what each tool does: generic facts, knobs fitted", measured_runs(table, tool=ANY)[0])
    )
    return [
        {"without": row["without"], "points": 100 * (row["accuracy"] - rows[0]["accuracy"]), **row}
        for row in rows
    ]


def _left_out(name: str, runs: Runs, *, fitted: bool = True) -> dict[str, Any]:
    by_source = {}
    scores = np.empty(len(runs))
    for source in source_names(runs):
        mine = runs.of(source)
        knobs = fit_knobs(runs.take(~mine)) if fitted else np.zeros(len(COMPONENTS))
        scores[mine] = accuracy_of(predicted_gib(runs.parts[mine], knobs), runs.measured[mine])
        by_source[source] = float(scores[mine].mean())
    return {"without": name, "accuracy": float(scores.mean()), **by_source}


def _with_regime(job: TrainingJob) -> TrainingJob:
    regimes = {each: "mixed" for each in (job.regime, job.adapter_regime) if each.startswith("deepspeed")}
    return replace(
        job,
        regime=regimes.get(job.regime, job.regime),
        adapter_regime=regimes.get(job.adapter_regime, job.adapter_regime),
    )


def _page(found: Evaluation, without: list[dict]) -> str:
    told = found.to_dict()
    groups = [{"group": "all", **told["overall"]}, {"group": "decided", **told["decided"]}]
    groups += [row for name in ("sources", "methods", "sizes") for row in told[name]]
    columns = ("rows", "accuracy", "within_15_percent", "cover", "width", "accuracy_after_five", "cover_after_five",
               "width_after_five", "marp", "bytes_per_parameter")  # fmt: skip
    named = [{"group": next(iter(group.values())), **group} for group in groups]
    oom = found.out_of_memory
    return "\n".join([
        "\n## Each source left out\n",
        "`cover` and `width` are of the bound for a tool that was not seen; `after five` after learning from five",
        "random rows of the source (20 draws), where the bound is that of a tool seen. Decided rows state, or their",
        "tool fixes, what decides them.\n",
        _table(named, ("group", *columns)),
        "\n## The facts about its tool taken away as well\n",
        "As somebody would be answered who runs a tool that is not in the table of tools.\n",
        _table(found.strangers.to_dicts(), tuple(found.strangers.columns)),
        f"\nOver all rows: accuracy {found.generic.accuracy:.3f}, cover {found.generic.cover:.3f},",
        f"width {found.generic.width:.2f}.",
        f"Out of memory: {oom.said} of {oom.rows} runs were said so; {oom.above_board_said_to_fit} runs above",
        f"their board were said to fit. Not predicted: {found.not_predicted.rows} rows.",
        "\n## Without one thing at a time\n",
        _table(without, tuple(without[0])),
        "\n## Rows that cannot be told from their columns\n",
        _table(found.undecided.to_dicts(), UNDECIDED),
        "",
    ])  # fmt: skip


def _table(rows: list[dict], columns: tuple[str, ...]) -> str:
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(_cell(row.get(column)) for column in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
