"""Measure time and memory of large inputs: ``python docs/make_scale.py --jobs 1e6 5e6 10e6``.

Writes the tables of ``docs/results/scale.md``.

For each number of jobs, a year of accounting text of 8,000 GPUs is generated (``benchmarks/describe_scale.py``),
ingested, described and, up to ``--forecast``, forecast. Each run is a process; memory is its peak, time its CPU time.
The estimate for 100,000 GPUs follows from these figures and the size of rows on disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from gpuplanner.core.stage_cache_and_data_folders import sample_folder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
GIB, YEARS, GPUS, MADE_UP_GPUS = 1 << 30, 3, 100_000, 8_000
MINUTES_A_YEAR, HOURS_A_YEAR = 365 * 24 * 60, 365 * 24
NODE_GIB, CORE_HOURS_A_NIGHT = 64, 8 * 6
"""A usual machine: memory, and the hours of its cores from evening to morning."""


def accounting_text(jobs: int, place: Path) -> None:
    """The synthetic year as ``sacct --parsable2`` prints it."""
    from describe_scale import made_up_jobs

    def clock(name: str) -> pl.Expr:
        return pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%S").fill_null("Unknown")

    made_up_jobs(jobs, 0, 0.0).select(
        JobID="job_id", State=pl.col("state").cast(pl.String), Submit=clock("submit_time"),
        Start=clock("start_time"), End=clock("end_time"),
        AllocTRES=pl.format("gres/gpu={}", pl.col("gpus").cast(pl.Int64)), Account="tenant", User="user",
        Partition="partition", NodeList=pl.col("node_list").fill_null("None assigned"),
        TimelimitRaw=(pl.col("time_limit_s") / 60).cast(pl.Int64), JobName="job_name",
    ).sink_csv(place, separator="|", quote_style="never")  # fmt: skip


def child(*command: str) -> tuple[float, float]:
    """CPU seconds and GiB at most of a command of gpuplanner."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuplanner", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        ended = f"gpuplanner {command[0]} ended with {os.waitstatus_to_exitcode(status)}"
        raise SystemExit(ended)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / GIB


def runs_of(jobs: int, *, forecast: bool) -> tuple[dict[str, tuple[float, float]], float]:
    """What each command took, and the bytes of a job on disk."""
    with tempfile.TemporaryDirectory() as folder:
        text, data = Path(folder) / "sacct.txt", Path(folder) / "data"
        make = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import make_scale; from pathlib import Path"
        subprocess.run(
            [sys.executable, "-c", f"{make}; make_scale.accounting_text({jobs}, Path({str(text)!r}))"], check=True
        )
        found = {"ingest": child("ingest", "slurm", str(text), "-o", str(data), "--tz", "UTC", "--quiet")}
        text.unlink()
        found["describe"] = child("describe", str(data), "--json")
        if forecast:
            os.environ["GPUPLANNER_CACHE"] = str(Path(folder) / "cache")
            found["forecast"] = child("forecast", str(data), "--quiet")
        return found, (data / "jobs.parquet").stat().st_size / jobs


def studied(jobs: int, most: float) -> str:
    """Row of the table of what is said of a year with its list of nodes: described, and up to so many studied."""
    with tempfile.TemporaryDirectory() as folder:
        data, asked = Path(folder) / "data", Path(folder) / "scenario.yaml"
        make = f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import describe_scale as made"
        make += f"; made.write_year(made.Path({str(data)!r}), {jobs}, 0, inventory=True, cut_share=0.0)"
        subprocess.run([sys.executable, "-c", make], check=True)
        asked.write_text(f"data: {data}\nmonth: 2025-11\n", "utf-8")
        os.environ["GPUPLANNER_CACHE"] = str(Path(folder) / "cache")
        runs = [child("describe", str(data), "--json")]
        if jobs <= most:
            runs += [
                child("forecast", str(data), "--quiet"),
                child("report", str(asked), "-o", str(Path(folder) / "out")),
            ]
        cells = [f"{spent:,.0f} | {gib:.2f}" for spent, gib in runs] + ["|"] * (3 - len(runs))
        return f"| {jobs / 1e6:g} | {' | '.join(cells)} |"


def plan_rows(per_job: float, slopes: dict[str, tuple[float, float, float]]) -> list[str]:
    """The plan on paper: sizes of a large fleet over years, from bytes a row and what a million jobs take."""
    files = list((sample_folder() / "samples").rglob("*.parquet"))
    samples = pl.scan_parquet(files).select(pl.len()).collect().item()
    per_sample = sum(file.stat().st_size for file in files) / samples
    jobs_a_year = 10e6 * GPUS / MADE_UP_GPUS
    jobs, readings, hours = (YEARS * one for one in (jobs_a_year, GPUS * MINUTES_A_YEAR, GPUS * HOURS_A_YEAR))
    month = jobs_a_year / 12

    def tib(rows: float, size: float) -> str:
        return f"{rows * size / GIB / 1024:,.2f} TiB"

    base, cpu_s, gib = slopes["ingest"]
    described, _, more = slopes["describe"]
    fits = (NODE_GIB - described) / more * 1e6
    rows: list[tuple[str, str, str]] = [
        ("jobs", f"{jobs / 1e6:,.0f} million, {month / 1e6:,.1f} a month", tib(jobs, per_job)),
        ("telemetry at one minute", f"{readings / 1e9:,.0f} billion readings", tib(readings, per_sample)),
        ("the same by the hour", f"{hours / 1e9:,.1f} billion readings", tib(hours, per_sample)),
        ("a month of telemetry, one file a source",
         f"{readings / YEARS / 12 / 1e9:,.1f} billion readings", tib(readings / YEARS / 12, per_sample)),
        ("ingest of a month's jobs", f"{month / 1e6 * cpu_s / 3600:,.2f} CPU hours",
         f"{base + month / 1e6 * gib:,.1f} GiB of memory"),
        ("ingest of all jobs at once", f"{jobs / 1e6 * cpu_s / 3600:,.1f} CPU hours",
         f"{base + jobs / 1e6 * gib:,.1f} GiB of memory"),
        (f"jobs that describe reads on {NODE_GIB} GiB", f"{fits / 1e6:,.0f} million",
         f"{fits / jobs_a_year * 12:,.0f} months of this fleet"),
        ("readings of a day, at 4 µs a row", f"{GPUS * 1440 / 1e6:,.0f} million",
         f"{GPUS * 1440 * 4e-6 / 3600:,.2f} CPU hours of the {CORE_HOURS_A_NIGHT} of a night"),
    ]  # fmt: skip
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", type=float, default=[1e6, 5e6, 10e6])
    parser.add_argument("--forecast", type=float, default=1e6, help="Most jobs that are forecast.")
    parser.add_argument("--studied", nargs="*", type=float, default=[10e6, 20e6, 50e6], help="With list of nodes.")
    parser.add_argument("--report", type=float, default=20e6, help="Most of these that are forecast and reported.")
    given = parser.parse_args()
    table, sizes, per_job = [], [], 0.0
    for jobs in map(int, given.jobs):
        found, per_job = runs_of(jobs, forecast=jobs <= given.forecast)
        sizes.append(found)
        cells = [
            f"{found[name][0]:,.1f} | {found[name][1]:.2f}" if name in found else "| "
            for name in ("ingest", "describe", "forecast")
        ]
        table.append(f"| {jobs / 1e6:g} | {' | '.join(cells)} |")
        sys.stderr.write(f"{table[-1]}\n")
    low, high = given.jobs[0], given.jobs[-1]
    slopes = {}
    for name in ("ingest", "describe"):
        (cpu_low, gib_low), (cpu_high, gib_high) = sizes[0][name], sizes[-1][name]
        step = (high - low) / 1e6
        gib = (gib_high - gib_low) / step
        slopes[name] = (gib_low - gib * low / 1e6, (cpu_high - cpu_low) / step, gib)
    text = (ROOT / "docs" / "results" / "scale.md").read_text("utf-8")
    studies = [studied(int(jobs), given.report) for jobs in given.studied]
    made = {"MEASURED": table, "STUDIED": studies, "PAPER": plan_rows(per_job, slopes)}
    for mark, rows in made.items():
        before, _, rest = text.partition(f"<!-- {mark} -->\n")
        after = rest.lstrip("\n") if rest.startswith("\n") else rest.partition("\n\n")[2]
        text = f"{before}<!-- {mark} -->\n{HEADS[mark]}\n" + "\n".join(rows) + f"\n\n{after}"
    (ROOT / "docs" / "results" / "scale.md").write_text(text, "utf-8")


HEADS = {
    "MEASURED": "| million jobs | ingest, CPU s | GiB | describe, CPU s | GiB | forecast, CPU s | GiB |\n"
    "|---|---|---|---|---|---|---|",
    "STUDIED": "| million jobs | describe, CPU s | GiB | forecast, CPU s | GiB | report of a month, CPU s | GiB |\n"
    "|---|---|---|---|---|---|---|",
    "PAPER": "| 100,000 GPUs, three years | | |\n|---|---|---|",
}

if __name__ == "__main__":
    main()
