"""How well the speed of serving language models is predicted on models, GPU models and engines that the fit left out.

Run ``python benchmarks/serving_speed.py --data FOLDER`` with the folder of the public traces (or set
``GPUPLANNER_DATA``). Parameters are fitted on measured rows without one group and score that group; intervals come from
the errors of all other groups. With ``--write DATE`` the parameters that are shipped are fitted on all rows and written
into the package. Two other tools, vllm-sr-sim and servcalc, predict the same rows where they are installed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from dataclasses import asdict, astuple, fields, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares

from gpuplanner.sizing.llm_service_plans import read_serving_setting
from gpuplanner.sizing.serving_speed import (
    SERVING_SPEED_FILE_NAME,
    ServingSpeed,
    ServingWork,
    compute_serving_work,
    count_sequences_in_memory,
    serving_seconds,
)

FITTED = tuple(field.name for field in fields(ServingSpeed) if field.type == "float" and "factor" not in field.name)
"""Parameters that are fitted together."""
ROWS = "serving/serving_measurements.csv.gz"
SOURCE = "NVIDIA AIConfigurator, aiconfigurator-core 0.12.0, systems/silicon_sample.csv, Apache-2.0"
PACKAGE = Path(__file__).resolve().parent.parent / "gpuplanner" / "sizing" / "predict"

# Where a fit starts and is drawn to, chosen by hand: shares of data sheets that kernels are published to reach (75 to
# 85 % of the memory's bandwidth, about 60 % of the dense peak and of NVLink), tens of microseconds to launch a layer.
# First fits of all rows were seen before they were rounded: --ridge 0.3 shows how little hangs on them.
PRIOR = {
    "bandwidth_share": 0.8,
    "expert_bandwidth_share": 0.6,
    "compute_share": 0.6,
    "link_share": 0.6,
    "narrow_compute_ratio": 0.8,
    "layer_s": 15e-6,
    "expert_layer_s": 20e-6,
    "reduce_s": 8e-6,
    "step_s": 1e-3,
    "sequence_s": 10e-6,
    "prefill_s": 3e-3,
    "first_token_s": 0.02,
    "wait_share": 0.15,
}
RIDGE = 2.0  # weight of a parameter that is e times its prior, in rows that are
LOSS_SCALE = 0.2  # logarithm from which an error counts linearly
CYCLE_WEIGHT, FIRST_TOKEN_WEIGHT = 0.5, 0.1  # of errors of the whole request and of the first token
COVERAGE = 0.9
GROUPS = ("model_path", "system", "backend", "cell")


def measured(folder):
    """Rows with work, and rows left out with the reason."""
    table = pl.read_csv(Path(folder) / ROWS, infer_schema_length=None)
    table = table.with_columns(dp=pl.col("attention_dp_size").cast(pl.Int64, strict=False).fill_null(1))
    table = table.unique(
        [name for name in table.columns if name not in ("id", "silicon_data_source")], maintain_order=True
    )
    kept, left_out, works = [], [], []
    for row in table.iter_rows(named=True):
        stated = re.search(r"_tp(\d+)_ep\d", row["id"])
        gpus = row["tp_size"] * row["pp_size"] * row["dp"]
        asked = {
            "model": row["model_path"], "gpu_model": row["system"], "gpus": gpus, "precision": row["precision"],
            "prompt_tokens": row["isl"], "answer_tokens": row["osl"], "concurrency": row["batch_size"] * row["dp"],
            "tp": row["tp_size"], "pp": row["pp_size"], "dp": row["dp"],
        }  # fmt: skip
        itl, first = row["silicon_tpot_ms"] / 1e3, row["silicon_ttft_ms"] / 1e3
        model, gpu_model, layout, load = read_serving_setting(asked)
        capacity = count_sequences_in_memory(model, gpu_model, layout, load)
        decoding = load.answer * itl / (first + load.answer * itl)
        if stated and int(stated[1]) != gpus:
            left_out.append("GPUs of the columns are not those of the row's name")
        elif decoding < 0.3 and capacity > load.concurrency:
            left_out.append("the engine's own limit held most requests back: memory has room for all")
        elif not capacity:
            left_out.append("does not fit memory")
        else:
            works.append(compute_serving_work(model, gpu_model, layout, load, capacity))
            kept.append(row | {
                "kind": "moe" if model.experts else "dense", "itl": itl, "first": first, "gpus": gpus,
                "stated": "stated" if row["precision"] else "precision not stated", "asked": asked,
                "cell": f"{model.name} {row['system']} {row['backend']} {row['precision'] or '-'}",
            })  # fmt: skip
    work = ServingWork(*(np.array(column, dtype=float) for column in zip(*map(astuple, works), strict=True)))
    return pl.DataFrame(kept, infer_schema_length=None), work, left_out


def part(work, mask):
    """Some of the settings."""
    return ServingWork(*(getattr(work, field.name)[mask] for field in fields(work)))


def speed_of(logs):
    """Parameters from logarithms of their ratio to the prior."""
    values = dict(zip(FITTED, np.array([PRIOR[name] for name in FITTED]) * np.exp(logs), strict=True))
    numbers = {name: float(value) for name, value in values.items()}
    return ServingSpeed(**numbers, itl_factor=1.0, ttft_factor=1.0, provenance={})


def cell_weights(rows):
    """Weights with which a cell of model, GPU model, engine and precision counts by the root of its rows."""
    weights = 1 / np.sqrt(rows.select(pl.len().over("cell")).to_series().to_numpy())
    return weights / weights.mean()


def fit(rows, work, ridge):
    """Parameters that lie near the prior and near the measured times, large errors counting linearly."""
    itl, first = rows["itl"].to_numpy(), rows["first"].to_numpy()
    root = np.sqrt(cell_weights(rows))

    def capped(log, scale):
        return np.sign(log) * scale * np.sqrt(2 * (np.sqrt(1 + (log / scale) ** 2) - 1))

    def residuals(logs):
        step, wait = serving_seconds(work, speed_of(logs))
        cycle = np.log((wait + work.answer * step) / (first + work.answer * itl))
        return np.concatenate([
            root * capped(np.log(step / itl), LOSS_SCALE), CYCLE_WEIGHT * root * capped(cycle, LOSS_SCALE),
            FIRST_TOKEN_WEIGHT * root * capped(np.log(wait / first), 0.5), 2 * ridge * logs,
        ])  # fmt: skip

    return speed_of(least_squares(residuals, np.zeros(len(FITTED))).x)


def errors(rows, work, speed):
    """Logarithms of measured over predicted: time per token, first token, rate."""
    itl, first = rows["itl"].to_numpy(), rows["first"].to_numpy()
    step, wait = serving_seconds(work, speed)
    rate = np.log((wait + work.answer * step) / (first + work.answer * itl))
    return pl.DataFrame({"itl_error": np.log(itl / step), "ttft_error": np.log(first / wait), "rate_error": rate})


def left_out(rows, work, group, ridge):
    """Errors of each row under the fit to the rows of other groups."""
    labels = rows[group].to_numpy()
    parts = []
    for label in np.unique(labels):
        test = labels == label
        speed = fit(rows.filter(~test), part(work, ~test), ridge)
        parts.append(
            pl.concat([rows.filter(test), errors(rows.filter(test), part(work, test), speed)], how="horizontal")
        )
    return pl.concat(parts)


def radius(scored, name):
    """Size of the error that holds 90 % of the rows, each cell counting by the root of its rows."""
    order = scored.with_columns(pl.col(name).abs()).sort(name)
    weights = np.cumsum(cell_weights(order))
    return float(order[name][int(np.searchsorted(weights / weights[-1], COVERAGE))])


def covered(scored, name, group, cells):
    """Whether each row lies within the radius of the left-out cells of other groups."""
    radii = {label: radius(cells.filter(pl.col(group) != label), name) for label in scored[group].unique()}
    return scored[name].abs() <= scored[group].replace_strict(radii, return_dtype=pl.Float64)


def relative(log):
    """Median absolute error of predicted over measured."""
    return float(np.median(np.abs(np.expm1(-log))))


def table_of(rows, work, ridge):
    """The table of left-out figures: one row a split and kind."""
    cells = left_out(rows, work, "cell", ridge)
    lines = []
    for group in GROUPS:
        scored = cells if group == "cell" else left_out(rows, work, group, ridge)
        scored = scored.with_columns(
            itl_in=covered(scored, "itl_error", group, cells), ttft_in=covered(scored, "ttft_error", group, cells)
        )
        keys = [("kind",), ("kind", group), *([("kind", "stated")] if group == "cell" else [])]
        for by in keys:
            for key, some in scored.group_by(by, maintain_order=True):
                lines.append({
                    "left_out": group, "kind": key[0], "which": key[1] if len(key) > 1 else "all",
                    "rows": some.height, "itl_median": relative(some["itl_error"].to_numpy()),
                    "itl_bias": float(np.expm1(-some["itl_error"].median())), "itl_covered": some["itl_in"].mean(),
                    "rate_median": relative(-some["rate_error"].to_numpy()),
                    "ttft_median": relative(some["ttft_error"].to_numpy()), "ttft_covered": some["ttft_in"].mean(),
                })  # fmt: skip
    return pl.DataFrame(lines), cells


def peers(rows):
    """Median errors of time per token of two other tools and of ours on the rows that each predicts.

    The step of vllm-sr-sim leaves out the prefills of other requests. servcalc takes one GPU and no experts.
    """
    try:
        import fleet_sim.gpu_profiles as profiles
        import servcalc
        from fleet_sim.hardware.catalog import H100_SXM, H200_SXM
        from fleet_sim.models.catalog import DEEPSEEK_V3, LLAMA_3_1_8B, QWEN3_32B
    except ImportError as error:
        print(f"\npeers skipped: {error}; pip install vllm-sr-sim servcalc")
        return
    print(f"\npeers: vllm-sr-sim {version('vllm-sr-sim')}, servcalc {version('servcalc')}")
    boards = {"h100_sxm": H100_SXM, "h200_sxm": H200_SXM}
    models = {"Llama-3.1-8B-Instruct": LLAMA_3_1_8B, "Qwen3-32B": QWEN3_32B, "DeepSeek-R1": DEEPSEEK_V3}
    for name in ("vllm-sr-sim", "servcalc"):
        found = []
        for row in rows.iter_rows(named=True):
            asked, model = row["asked"], models.get(row["model_path"].rpartition("/")[2])
            if model is None or (name == "servcalc" and (row["gpus"] > 1 or row["kind"] == "moe")):
                continue
            bytes_each = 1 if row["precision"] == "fp8" else 2
            context = asked["prompt_tokens"] + asked["answer_tokens"] // 2
            if name == "vllm-sr-sim":
                config = profiles.ServingConfig(tp=row["gpus"], dtype_bytes=bytes_each, mean_ctx_tokens=context)
                profile = profiles.ProfileBuilder().build(boards[row["system"]], model, config)
                step = profile.iter_latency(asked["concurrency"], float(context))
            else:
                load = servcalc.Workload(asked["prompt_tokens"], asked["answer_tokens"], (asked["concurrency"],))
                profile = servcalc.profiles.vllm()
                if bytes_each == 1:
                    profile = servcalc.profiles.with_quant(profile, "fp8")
                gpu = "H100 80GB" if row["system"] == "h100_sxm" else "H200"
                try:
                    answer = servcalc.estimate(config_of(asked), gpu, workload=load, profile=profile)
                except ValueError:
                    continue
                step = answer.points[0].itl_ms.mid / 1e3
            found.append((row["kind"], step / row["itl"] - 1, math.expm1(-row["itl_error"])))
        for kind in ("dense", "moe"):
            some = np.array([line[1:] for line in found if line[0] == kind])
            if len(some):
                theirs, ours = np.median(np.abs(some), axis=0)
                print(
                    f"{name:>12}{kind:>7}{len(some):>6} rows: median error {theirs:.1%}, ours left out {ours:.1%}, "
                    f"ratio {theirs / ours:.2f}"
                )


def config_of(asked):
    """A dense model as the config.json of a Llama, which servcalc reads."""
    model = read_serving_setting(asked)[0]
    return {
        "model_type": "llama", "hidden_size": model.hidden, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim,
        "intermediate_size": model.ffn, "vocab_size": model.vocab, "tie_word_embeddings": model.tied,
        "_name_or_path": model.name,
    }  # fmt: skip


def main():
    """Print the tables; with ``--write`` the file that is shipped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GPUPLANNER_DATA"))
    parser.add_argument("--write", metavar="DATE", help="write the shipped file, with this date")
    parser.add_argument("--ridge", type=float, default=RIDGE)
    arguments = parser.parse_args()
    if not arguments.data:
        raise SystemExit("name the folder of the public traces: --data FOLDER or GPUPLANNER_DATA")
    rows, work, gone = measured(arguments.data)
    print(f"{len(rows)} rows; left out:")
    for reason in sorted(set(gone)):
        print(f"  {gone.count(reason)} rows: {reason}")
    print("precision not stated, taken as the published weights have it (16 bits):")
    for model, count in rows.filter(stated="precision not stated").group_by("model_path").len().iter_rows():
        print(f"  {count} rows: {model}")
    table, cells = table_of(rows, work, arguments.ridge)
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_width_chars=200,
        fmt_str_lengths=60,
        float_precision=3,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
    ):
        print(table)
    speed = fit(rows, work, arguments.ridge)
    print({name: float(f"{getattr(speed, name):.3g}") for name in FITTED})
    factors = {f"{name}_factor": math.exp(radius(cells, f"{name}_error")) for name in ("itl", "ttft")}
    print(factors)
    peers(cells)
    if arguments.write:
        figures = table.filter(pl.col("which") == "all").drop("which").to_dicts()
        provenance = {
            "source": SOURCE,
            "date": arguments.write,
            "rows": len(rows),
            "left_out_rows": len(gone),
            "left_out": figures,
        }
        text = json.dumps(asdict(replace(speed, **factors, provenance=provenance)), indent=1)
        (PACKAGE / SERVING_SPEED_FILE_NAME).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
