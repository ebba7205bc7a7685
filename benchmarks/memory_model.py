"""Fit the shipped model of peaks on public measurements, and write what it reaches into docs/memory.md.

``python benchmarks/memory_model.py --write``, with GPUPLANNER_DATA set.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.sizing.predict import (
    ablation,
    evaluate,
    fit_model,
    measured_runs,
    peak_model_text,
    scored,
)

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


def _page(found: dict, without: list[dict]) -> str:
    groups = [found["overall"], found["decided"], *found["sources"], *found["methods"], *found["sizes"]]
    columns = ("rows", "accuracy", "within_15_percent", "cover", "width", "accuracy_after_five", "cover_after_five",
               "width_after_five", "marp", "bytes_per_parameter")  # fmt: skip
    named = [{"group": next(iter(group.values())), **group} for group in groups]
    oom = found["out_of_memory"]
    return "\n".join([
        "\n## Each source left out\n",
        "`cover` and `width` are of the bound for a tool that was not seen; `after five` after learning from five",
        "random rows of the source (20 draws), where the bound is that of a tool seen. Decided rows state, or their",
        "tool fixes, what decides them.\n",
        _table(named, ("group", *columns)),
        f"\nWith generic facts only, and no knob: accuracy {found['generic']['accuracy']:.3f}.",
        f"Out of memory: {oom['said']} of {oom['rows']} runs were said so; {oom['above_board_said_to_fit']} runs above",
        f"their board were said to fit. Not predicted: {found['not_predicted']['rows']} rows.",
        "\n## Without one thing at a time\n",
        _table(without, tuple(without[0])),
        "\n## Rows that cannot be told from their columns\n",
        _table(found["undecided"], UNDECIDED),
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
