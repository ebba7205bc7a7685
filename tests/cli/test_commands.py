"""Commands as scripts use them: what they print, what they write, how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from gpuplanner import __version__
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.report.bundle_export import export_decision, make_decision_bundle
from gpuplanner.sizing.training_throughput import find_gpu_spec

CLASSIC = "1g.5gb,2g.10gb,3g.20gb,4g.20gb,7g.40gb"


# Counts of mig.md's table, made there by exhaustive search: placed, placed maximal, multisets, multisets maximal.
@pytest.mark.parametrize(
    ("gpu_model", "profiles", "counts"),
    [
        ("A100-40GB", CLASSIC, (297, 19, 37, 14)),
        ("H200-141GB", None, (2318, 239, 127, 64)),
        ("RTX-PRO-6000", None, (716, 302, 114, 64)),
    ],
)
def test_catalog_layouts(command, gpu_model, profiles, counts):
    chosen = () if profiles is None else ("--profiles", profiles)
    code, out, _ = command("catalog", "layouts", gpu_model, *chosen, "--json")
    assert code == 0
    names = ("placed", "placed_maximal", "multisets", "multisets_maximal")
    assert json.loads(out) == dict(zip(names, counts, strict=True))


def test_catalog_layouts_by_name(command):
    """The 14 counts and 19 placed layouts of the MIG User Guide's figure for the A100; all but few fill the board."""
    code, out, _ = command("catalog", "layouts", "A100-40GB", "--profiles", CLASSIC, "--list", "--json")
    told = json.loads(out)
    assert (code, len(told["by_counts"]), len(told["placed"])) == (0, 14, 19)
    rows = {row["layout"]: row for row in told["by_counts"]}
    assert rows["1g.5gb:7"] == {
        "layout": "1g.5gb:7", "instances": 7, "free_slices": 1, "placed": 1,
        "driver": " ".join(f"1g.5gb@{start}" for start in range(7)),
    }  # fmt: skip
    assert rows["4g.20gb:1,3g.20gb:1"]["driver"] == "4g.20gb@0 3g.20gb@4"
    assert sum(row["placed"] for row in rows.values()) == 19
    for row in told["placed"]:
        names = [word.split("@")[0] for word in row["places"].split()]
        assert row["layout"] == ",".join(f"{name}:{names.count(name)}" for name in sorted(set(names), reverse=True))


def test_catalog_layouts_beside_what_stands(command):
    chosen = ("catalog", "layouts", "A100-40GB", "--profiles", CLASSIC)
    placed = json.loads(command(*chosen, "--list", "--json")[1])["placed"]
    found = json.loads(command(*chosen, "--beside", "1g.5gb@0 3g.20gb@4", "--json")[1])["placed"]
    assert found == [row for row in placed if {"1g.5gb@0", "3g.20gb@4"} <= set(row["places"].split())]
    assert found
    code, _, err = command(*chosen, "--beside", "4g.20gb@0 3g.20gb@0")
    assert (code, "overlap" in err) == (3, True)
    assert "1g.5gb@0" in command(*chosen, "--list")[1]


@pytest.mark.parametrize(
    ("counts", "code", "said"),
    [
        ("{1g.10gb: 4, 1g.5gb: 3}", 1, "need 11 memory slices; A100-40GB has 8"),
        ("{3g.20gb: 2, 1g.5gb: 1}", 1, "need 9 memory slices; A100-40GB has 8"),
        ("{3g.20gb: 1, 4g.20gb: 1}", 0, "4g.20gb@0 3g.20gb@4"),
    ],
)
def test_verify_names_the_placement_or_the_reason(command, tmp_path, counts, code, said):
    path = tmp_path / "config.yaml"
    entry = f"    - devices: all\n      mig-enabled: true\n      mig-devices: {counts}\n"
    path.write_text(f"version: v1\nmig-configs:\n  plan-a:\n{entry}")
    ended, out, _ = command("verify", str(path), "--gpu-model", "A100-40GB", "--json")
    assert ended == code
    report = json.loads(out)
    assert report["ok"] == (code == 0)
    assert any(said in text for text in report["problems"] + report["findings"])


@pytest.fixture(scope="module")
def itp(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("itp") / "cluster01.csv"
    rows = [f"job-{n},{n * 3000},{7000 + n},{1 + n % 2}" for n in range(400)]
    path.write_text("job_id,submission_time,duration,num_gpu\n" + "\n".join(rows) + "\nbad,5,-1,1\n")
    return path


def test_ingest_prints_the_seven_facts(command, itp, tmp_path):
    code, out, err = command("ingest", "auto", str(itp), "-o", str(tmp_path / "t"), "--json")
    assert code == 0
    facts = json.loads(out)
    assert list(facts) == sorted(
        ["source", "rows_in", "rows_kept", "rows_rejected", "span_start", "span_end", "gpu_hours"]
    )
    assert (facts["source"], facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == ("itp", 401, 400, 1)
    by_hand = sum((7000 + n) * (1 + n % 2) for n in range(400)) / 3600
    assert facts["gpu_hours"] == pytest.approx(by_hand)
    assert "1 file(s) added" in err


def test_own_trace_walks_to_a_plan_that_verifies(command, itp, tmp_path):
    trace, plan, out = str(tmp_path / "t"), str(tmp_path / "plan.json"), str(tmp_path / "export")
    assert command("ingest", "itp", str(itp), "-o", trace, "--quiet")[0] == 0
    code, text, _ = command("describe", trace, "--json")
    assert code == 0
    assert json.loads(text)["facts"]["jobs"] == 400
    code, _, err = command("plan", trace, "--set", "horizon_intervals=24", "-o", plan)
    assert (code, "Name one with --gpu-model" in err) == (3, True)
    options = ("--gpu-model", "H100-80GB-SXM5", "--set", "horizon_intervals=24")
    code, text, _ = command("plan", trace, *options, "-o", plan, "--json", "--quiet")
    assert code == 0
    told = json.loads(text)
    assert set(told) == {
        "status", "objective", "bound", "gap", "unmet_gpu_hours", "changes",
        "change_gpu_hours", "change_takes", "layout_changes", "comparison", "drained_gpus", "reboots",
        "gpus_not_needed", "plan_choices", "over_fixed",
    }  # fmt: skip
    # Parked GPUs are cut for the minute that it takes.
    assert told["change_gpu_hours"] == pytest.approx(1 / 60)
    assert told["change_takes"] == "about 1 min (0.5 to 5) per layout change"
    assert sum(change["changes"] for change in told["layout_changes"]) == told["changes"]
    assert command("verify", plan)[0] == 0
    assert command("verify", plan, "--gpu-model", "A100-40GB")[0] == 1
    # Nobody says what the nodes are called: no file is written for names that are made up.
    code, _, err = command("export", plan, "-o", out)
    assert (code, "a plan that names its nodes" in err) == (3, True)
    assert not Path(out).exists()


def test_a_plan_of_named_nodes_is_exported_and_verifies(command, tmp_path, study):
    study.save(tmp_path / "s")
    code, _, err = command("export", str(tmp_path / "s" / "plan.json"), "-o", str(tmp_path / "export"))
    assert code == 0
    assert "mig-parted.yaml" in err
    for name in ("mig-parted/mig-parted.yaml", "mig-manager/configmap.yaml"):
        assert command("verify", f"{tmp_path}/export/{name}", "--gpu-model", "H100-80GB-SXM5")[0] == 0
    as_a_report = command("verify", str(tmp_path), "--gpu-model", "H100-80GB-SXM5")
    assert as_a_report[0] == 0


def test_export_opens_the_study_of_a_folder(command, tmp_path, study, monkeypatch):
    study.save(tmp_path / "s")
    monkeypatch.setattr("gpuplanner.report.bundle_export.study_comparison", None)
    code, _, err = command("export", str(tmp_path / "s"), "-o", str(tmp_path / "export"))
    assert code == 0, err
    page = (tmp_path / "export" / "README.md").read_text()
    assert page.startswith(f"# {study.decision.sentence}\n")
    assert all(f"{tmp_path / 'export' / name}\n" in err for name in ("SHA256SUMS", "manifest.json"))
    for words in (("--to", "runbook"), ("--at", "2026-02-01"), ("--scenario", "sample")):
        code, _, err = command("export", str(tmp_path / "s"), "-o", str(tmp_path / "other"), *words)
        assert (code, f"{words[0]}: only with a plan.json" in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize("actuator", ["dra", "mig-manager"])
def test_the_script_of_a_bundle_has_the_commands_of_its_readme(study, actuator):
    rules = replace(study.comparison.rules, actuator=actuator)
    comparison = replace(study.comparison, rules=rules)
    files = make_decision_bundle(study.scenario.but(actuator=actuator), comparison).files
    script, readme = files[f"{actuator}/change.sh"], files["README.md"]
    for word in ("cordon-ahead", "KEEP_CORDON", "ready to change"):
        assert word in readme
        assert word in script
    # The MIG manager repartitions in both.
    duration = ChangeCost.from_catalogue(rules.gpu_model, "mig-manager").change_s.describe_time()
    assert all(duration in text for text in (readme, script, files[f"{actuator}/changes.md"]))
    assert "REPARTITION_S   (600)" in script


def test_a_decision_that_changes_nothing_has_no_bundle(tmp_path, study):
    kept = replace(study.decision, action="none", measures=(), policy="today", sentence="No recommendation: none.")
    comparison = replace(study.comparison, decision=kept)
    assert make_decision_bundle(study.scenario, comparison) is None
    with pytest.raises(ScenarioError, match="nothing to apply: No recommendation: none"):
        export_decision(study.scenario, tmp_path / "e", kept_study=replace(study, comparison=comparison))
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("plan", "no-such.yaml"), 3, "no such file or folder"),
        (("plan", "sample", "--set", "quantil=0.9"), 3, "did you mean 'quantile'"),
        (("plan", "sample", "--set", "gpu_model=H100"), 3, "ambiguous"),
        (("report", "2031-01"), 3, "no observation in it"),
        (("ingest", "slurm", "/dev/null"), 3, "regular file"),
        (("ingest", "alibaba", "/dev/null"), 3, "unknown"),
        (("catalog", "layouts", "H1000"), 3, "unknown"),
        (("nonsense",), 2, "No such command"),
        (("ingest",), 2, "SOURCE"),
        (("verify", "/dev/null"), 3, "--gpu-model"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_clear_line(command, arguments, code, said):
    ended, out, err = command(*arguments)
    assert ended == code
    assert said in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.long
def test_report_takes_a_scenario_for_the_whole_observation(command, tmp_path):
    text = "name: short\nreplications: 2\nhorizon_intervals: 48\n"
    (tmp_path / "short.yaml").write_text(text)
    out = tmp_path / "out"
    code, said, err = command("report", str(tmp_path / "short.yaml"), "-o", str(out), "--quiet")
    assert code == 0, err
    assert said.strip().endswith(str(out / "index.html"))
    headline = json.loads((out / "study.json").read_text())["headline"]
    assert (headline["observed_from"], headline["observed_to"]) == (
        "2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00",
    )  # fmt: skip


def test_missing_library_ends_with_seven(command, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "statsforecast.models", None)
    monkeypatch.setitem(sys.modules, "pulp", None)
    from gpuplanner.forecast.rolling_demand_forecast import pooled_forecast

    pooled_forecast.forget()
    code, _, err = command("forecast", "sample", "--set", "history_days=27")
    assert code == 7
    assert "pip install 'gpuplanner[forecast]'" in err


@pytest.mark.long
def test_time_limit_is_told(command):
    code, out, _ = command(
        "plan", "sample", "--set", "horizon_intervals=48", "--set", "gap_target=0", "--time-limit", "0.1",
        "--no-compare", "--json", "--quiet",
    )  # fmt: skip
    result = json.loads(out)
    assert result["comparison"] is None
    assert code == {"optimal": 0, "feasible": 5, "unknown": 6}[result["status"]]


@pytest.mark.parametrize("name", ["gpu-models", "profiles", "prices"])
def test_catalog_tables(command, name):
    arguments = () if name == "gpu-models" else ("H100-80GB-SXM5",)
    code, out, _ = command("catalog", name, *arguments, "--json")
    assert code == 0
    assert len(json.loads(out)) > 5


def test_catalog_and_size_have_one_memory_of_a_gpu(command):
    by_model = {
        row["gpu_model"]: row["memory_gib"] for row in json.loads(command("catalog", "gpu-models", "--json")[1])
    }
    full = [
        row for row in json.loads(command("catalog", "profiles", "H200", "--json")[1]) if row["profile"] == "7g.141gb"
    ]
    assert by_model["H200-141GB"] == full[0]["memory_gib"] == find_gpu_spec("H200-141GB").memory_gib
    modes = {row["mode"]: row for row in json.loads(command("catalog", "profiles", "MI300X", "--json")[1])}
    assert modes["NPS1"]["memory_gib"] == find_gpu_spec("MI300X").memory_gib


def test_forecast_and_describe_print_tables(command, quick):
    fields = quick.diff(Scenario())
    assignments = [word for field in fields for word in ("--set", f"{field}={getattr(quick, field)}")]
    code, out, _ = command("forecast", "sample", *assignments, "--json", "--quiet")
    assert code == 0
    assert {row["model"] for row in json.loads(out)["scores"]} >= {"Naive", "SeasonalNaive", "Reverting", "RunOff"}
    assert json.loads(out)["jobs_left_out"] == {"request unknown": 0, "no GPU": 0}
    assert command("forecast", "sample", *assignments)[0] == 0
    assert command("describe", "sample")[0] == 0


@pytest.mark.parametrize("wrapped", [False, True])
def test_interrupt_ends_with_130(command, monkeypatch, wrapped):
    def interrupted(*_: object, **__: object) -> None:
        if wrapped:  # as it comes out of compiled code
            text = "returned a result with an exception set"
            raise SystemError(text) from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuplanner.usage.dataset_description_and_data_quality.describe", interrupted)
    code, _, err = command("describe", "sample")
    assert code == 130
    assert "intact" in err


def test_closed_pipe_is_no_fault():
    command = f"{sys.executable} -c 'from gpuplanner.cli import main; main()' catalog gpu-models --json | head -c 10"
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert "Traceback" not in ended.stderr


def test_one_script_may_give_the_same_options_for_every_source(tmp_path: Path):
    """In a process of its own: there a warning is a line, as whoever runs the script sees it."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submission_time,duration,num_gpu\na,0,3600,2\n")
    words = ["ingest", "itp", str(jobs), "--tz", "Europe/Oslo", "-o", str(tmp_path / "out"), "--json"]
    run = [sys.executable, "-c", "from gpuplanner.cli import main; main()", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["gpu_hours"] == 2.0
    assert done.stderr.splitlines()[0] == "gpuplanner: warning: source 'itp': tz: changes nothing here"


def test_forecast_from_many_origins_names_what_was_chosen_and_keeps_every_fold(command, tmp_path):
    import polars as pl

    place = tmp_path / "folds.parquet"
    models = "Naive,SeasonalNaive,HourOfDay,RunOff"
    code, out, _ = command(
        "forecast", "sample", "--backtest", "--models", models, "--cutoffs", "10", "-o", str(place), "--json", "--quiet"
    )
    assert code == 0
    found = json.loads(out)
    assert set(found["series"][0]) == {
        *(
            "unique_id",
            "model",
            "rule",
            "cutoffs",
            "mase",
            "pinball",
            "coverage_90",
            "realised_cost",
            "cpu_s",
            "weight",
            "chosen",
        )
    }
    assert [row["measure"] for row in found["best_fixed"]] == ["mase", "pinball", "realised_cost"]
    assert {row["model"] for row in found["mean"]} == {*models.split(","), "chosen"}
    assert found["costs"]["unmet_gpu_hour"] == 10
    folds = pl.read_parquet(place)
    assert folds.columns[:6] == ["unique_id", "model", "cutoff", "ds", "y", "mean"]
    assert folds.filter(model="chosen")["unique_id"].n_unique() == 7
    assert folds["cutoff"].n_unique() == 6  # four of ten only calibrate


def test_forecast_at_a_given_time_writes_paths(command, tmp_path):
    import polars as pl

    place = tmp_path / "paths.parquet"
    options = ("--at", "2026-03-01", "--horizon", "6", "--paths", str(place))
    code, out, _ = command("forecast", "sample", *options, "--representatives", "8", "--json", "--quiet")
    assert code == 0
    found = json.loads(out)
    assert {"running", "forecast", "choice"} < set(found)
    means = (
        pl.DataFrame(found["forecast"]).group_by("ds", pool=pl.col("unique_id") == "all/gpu").agg(pl.col("mean").sum())
    )
    apart = means.filter("pool").join(means.filter(~pl.col("pool")), on="ds")
    assert apart.height == 6
    assert (apart["mean"] - apart["mean_right"]).abs().max() < 1e-6
    few = pl.read_parquet(place).filter(unique_id="all/gpu").unique("path")
    assert (few.height, round(few["weight"].sum(), 9)) == (8, 1)
    code, out, _ = command("forecast", "sample", *options, "--json", "--quiet")
    assert len(json.loads(out)["running"]) >= 4
    paths = pl.read_parquet(place)
    assert paths.columns == ["unique_id", "path", "ds", "y"]
    assert paths.height == 7 * 200 * 6
    assert command("forecast", "sample", "--at", "soon")[0] == 2


HELP = """Usage: gpuplanner [OPTIONS] COMMAND [ARGS]...

  Capacity planning for GPU clusters: how many GPUs, how to partition them with
  MIG, who uses them, when they run out, and what changing it saves.

Options:
  -V, --version   Show the version and exit.
  -h, --help      Show this message and exit.
  --install-completion, --show-completion

Get started:
  start      Analyze a cluster's files end to end and recommend what to change
  demo       Run the full analysis on bundled sample data
  notebook   Open the notebooks in JupyterLab, or export one to HTML

Import data:
  ingest     Import job traces, telemetry, bills or node lists into a dataset
  scrape     Import GPU telemetry from a live Prometheus server
  describe   Summarize a dataset: jobs, utilization, waits, data quality

Understand usage:
  waits      Explain queue waits: capacity, fragmentation, layout or limits
  fairness   Report each team's quota, fair share, usage and queue waits
  phases     Detect phases and bottlenecks in jobs with telemetry
  rightsize  Recommend smaller GPU requests from observed usage

Plan:
  size       Estimate GPU memory, speed and cost of a job before it runs
  forecast   Forecast GPU demand, with backtest errors of every model
  simulate   Show queue wait against number of GPUs for a list of jobs
  compare    Compare operating policies by GPU-hours and queue wait
  plan       Compute a MIG layout schedule with a proven optimality gap
  binpack    Pack jobs with known times onto the fewest GPUs
  cost       Report cost, energy and carbon by team (showback)

Deliver:
  report     Write the monthly report (HTML, Excel, PDF, JSON, manifests)
  export     Write MIG, Kubernetes or Slurm configuration from a plan
  diff       Show what a plan would change on a cluster as dumped
  schedule   Print a cron, systemd, CI or Kubernetes job for recurring runs

Verify and monitor:
  verify     Re-check a plan or an exported file independently
  check      Test service levels and capacity; exit 1 on failure (for CI)
  watch      Re-plan on an interval; write a change bundle when it pays off
  catalog    Browse GPU models, MIG profiles, prices and carbon factors
"""


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed_letter_by_letter(command, option):
    code, out, err = command(option)
    assert (code, err) == (0, "")
    assert out == HELP


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("forecats", "sample"), "No such command 'forecats'. Did you mean 'forecast'?"),
        (("check", "sample", "--sed", "3"), "--seed"),
    ],
)
def test_an_unknown_command_or_option_suggests_the_nearest(command, words, hint):
    code, _, err = command(*words)
    assert code == 2
    assert hint in err


def test_help_lists_every_command_under_one_heading():
    from gpuplanner.cli.application import COMMANDS_BY_HEADING, app, register_commands

    register_commands()
    there = {name for name, command in typer.main.get_command(app).commands.items() if not command.hidden}
    named = [name for names in COMMANDS_BY_HEADING.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == there
    assert named[0] == "start"
    shown = subprocess.run([sys.executable, "-m", "gpuplanner", "--help"], capture_output=True, text=True).stdout
    assert there == set(re.findall(r"^  ([a-z-]+) +\S", shown.split("Get started:")[1], re.M))


def test_a_command_is_in_the_module_of_its_name_which_alone_is_loaded():
    from gpuplanner.cli.application import COMMANDS, app, register_commands

    register_commands()
    homes = {each.name or each.callback.__name__: each.callback.__module__ for each in app.registered_commands}
    for module in COMMANDS:
        name = module.rpartition(".")[2]
        assert homes.get(name, "").startswith(f"gpuplanner.cli.{module}") or name not in homes
    said = "import sys, gpuplanner.cli.application as cli; cli.register_commands('size'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True).stdout.split()
    assert "gpuplanner.cli.size_command" in loaded
    assert "gpuplanner.cli.forecast_and_cost_commands" not in loaded


def test_version_and_completion():
    """The version is the package's own; a shell that asks gets the names that begin so."""
    call = [sys.executable, "-m", "gpuplanner"]
    assert subprocess.run([*call, "--version"], capture_output=True, text=True).stdout == f"gpuplanner {__version__}\n"
    asked = {"_GPUPLANNER_COMPLETE": "complete_bash", "COMP_WORDS": "gpuplanner ver", "COMP_CWORD": "1"}
    answer = subprocess.run(
        [Path(sys.executable).with_name("gpuplanner")], env=os.environ | asked, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["verify"]


@pytest.mark.long
def test_loops_are_compiled_ahead_with_a_word_each(command):
    code, out, err = command("compile")
    assert (code, out) == (0, "compiled for this installation\n")
    lines = [line.split(":")[0].strip() for line in err.splitlines() if line.endswith(" s")]
    assert sorted(lines) == ["causes of waiting", "jobs on nodes"]
