"""Replicas of inference services by hour: the plan, the peak all day and hindsight, and what serving metrics lose.

``python benchmarks/services_by_hour.py`` with GPUPLANNER_DATA set prints the table, and with ``--write`` makes
``docs/results/services.md``. Traces are Azure's hour of 2023, a generated week, and the week of Alibaba's GenAI trace;
the first two also as metrics of vLLM: counters by minute, with and without the histograms of lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpuplanner.core.scenario import Scenario  # noqa: E402
from gpuplanner.decision.inference_services import plan_inference_services  # noqa: E402
from gpuplanner.ingest.dataset_import import add_files  # noqa: E402
from tests.decision.services.request_weeks import azure_csv, request_week  # noqa: E402

PAGE = ROOT / "docs" / "results" / "services.md"
BOUNDS = [float(mantissa * 10**power) for power in range(5) for mantissa in (1, 2, 5)]
"""Bounds of the buckets of lengths as vLLM has them for a context of 50,000 tokens."""
CHAT = "name: chat, model: llama-3.1-8b, gpu_model: L4, ttft_ms: 2000, itl_ms: 100"
"""The service of the requests: its time per token is above 50 ms on this GPU model."""
ART = "name: art, model: sdxl, requests: Generative Requests, gpu_model: A100-80GB"
COLUMNS = ("requests", "source", "GPU", "plan", "peak all day", "hindsight", "first token p99, ms", "token p95, ms")
WORDS = """# Inference services by hour

Made by `python benchmarks/services_by_hour.py --write`: GPU-hours of the replicas planned for the hours of a trace, of
the most replicas kept all day, and of the fewest that each hour needs in hindsight; and the simulated p99 of the time
to the first token and p95 of the time per token on the planned replicas. The service is llama-3.1-8b on L4, with 2,000
ms to the first token and 100 ms a token. Requests are the hour of Azure's trace of 2023 and a generated week with the
rhythm of days (up to 4 requests a second). Alibaba's trace has rates and GPU activity and no tokens.

The same requests were also given as metrics of vLLM, one reading a minute. Counters alone give every request the mean
lengths of its hour, which hides long prompts: the time to the first token comes out too low. The histograms
`request_prompt_tokens` and `request_generation_tokens` restore the scatter of lengths, not their order in time and not
the pairs of prompt and answer.

"""


def metrics_answer(requests: pl.DataFrame, *, lengths: bool) -> str:
    """Answer of Prometheus as vLLM's counters would give it for requests, one reading a minute."""
    minute = requests["time"].dt.epoch("s").to_numpy() // 60
    edges = np.arange(minute[0], minute[-1] + 2)
    series = []

    def add(name: str, weight: np.ndarray, **labels: str) -> None:
        rise = np.bincount(minute - minute[0], weights=weight, minlength=len(edges) - 1)
        total = np.concatenate([[0.0], np.cumsum(rise)])
        values = [[int(60 * edge), f"{value:.0f}"] for edge, value in zip(edges, total, strict=True)]
        metric = {"__name__": f"vllm:{name}", "model_name": "chat", "pod": "a", **labels}
        series.append({"metric": metric, "values": values})

    add("request_success_total", np.ones(len(minute)))
    for column, counter, histogram in (
        ("prompt_tokens", "prompt_tokens_total", "request_prompt_tokens_bucket"),
        ("generated_tokens", "generation_tokens_total", "request_generation_tokens_bucket"),
    ):
        tokens = requests[column].to_numpy()
        add(counter, tokens.astype(float))
        for bound in (*BOUNDS, np.inf) if lengths else ():
            add(histogram, (tokens <= bound).astype(float), le="+Inf" if np.isinf(bound) else f"{bound:.1f}")
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})


def plan(source: str, files: list[Path], folder: Path, service: str) -> dict[str, object]:
    """Plan one service of some files, as a row of the table."""
    data, services = folder / f"data-{source}-{files[0].name}", folder / "services.yaml"
    add_files(source, files, data, **({"tz": "UTC"} if source == "azure-llm" else {}))
    services.write_text(f"services:\n- {{{service}}}\n")
    (planned,) = plan_inference_services(Scenario(name="s", data=str(data), services=str(services), tz="UTC"))
    schedule = planned.schedule
    hours = {name: planned.gpus_per_replica * value for name, value in schedule.compare_replica_hours().items()}
    measured = (schedule.ttft_p99_s, schedule.itl_p95_s) if planned.step_times else (float("nan"), float("nan"))
    values = (planned.device.words, *hours.values(), *(1e3 * value for value in measured))
    return dict(zip(COLUMNS[2:], values, strict=True))


def rows() -> Iterator[dict[str, object]]:
    """Every trace and form of it."""
    public = Path(os.environ["GPUPLANNER_DATA"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        azure = pl.read_csv(public / "azure_llm" / "AzureLLMInferenceTrace_conv.csv.gz")
        (folder / "azure.csv").write_text(azure.write_csv())
        requests = azure.select(
            time=pl.col("TIMESTAMP").str.slice(0, 26).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_zone="UTC"),
            prompt_tokens="ContextTokens", generated_tokens="GeneratedTokens",
        )  # fmt: skip
        week = request_week(1)
        (folder / "week.csv").write_text(azure_csv(week))
        for label, stem, table in (("Azure 2023, an hour", "azure", requests), ("a generated week", "week", week)):
            row = plan("azure-llm", [folder / f"{stem}.csv"], folder, f"{CHAT}, requests: {stem}")
            yield {"requests": label, "source": "requests", **row}
            for lengths, source in ((False, "metrics"), (True, "metrics with histograms of lengths")):
                file = folder / f"{stem}{lengths:d}.json"
                file.write_text(metrics_answer(table, lengths=lengths))
                yield {"requests": label, "source": source, **plan("serving", [file], folder, CHAT)}
        files = [public / "alibaba_genai_v2026" / f"{name}.csv.gz" for name in ("qps", "pod_gpu_duty_cycle_anon")]
        yield {"requests": "Alibaba GenAI", "source": "rates and activity", **plan("auto", files, folder, ART)}


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the page of the documentation")
    asked = parser.parse_args()
    lines = [" | ".join(COLUMNS), " | ".join(["---"] * len(COLUMNS))]
    for row in rows():
        lines.append(" | ".join(_cell(row[name]) for name in COLUMNS))
        print(lines[-1], flush=True)
    if asked.write:
        PAGE.write_text(WORDS + "".join(f"| {line} |\n" for line in lines))


def _cell(value: object) -> str:
    """Text of a cell; a dash where a figure is not known."""
    if not isinstance(value, float):
        return str(value)
    return "-" if np.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
