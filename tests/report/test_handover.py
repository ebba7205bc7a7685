"""Files for operators are asked for by name, and none with layouts that do not fit is handed over."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from gpuplanner.core.errors import OutputError, ScenarioError
from gpuplanner.decision.layout_planning import PlannedProblem
from gpuplanner.notebook.views_and_panels import files_button
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report import layout_schedule_files as calendar
from gpuplanner.report.layout_schedule_files import export_plan, write_plan_handover
from gpuplanner.report.plan_and_bundle_verification import read_plan, summarize_findings, verify_any

START = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A plan of two GPUs: whole on the first day, cut into fourteen on the second."""
    demand = np.array([[[2.0, 0.0], [0.0, 14.0]]])
    problem = PlanProblem("H100-80GB-SXM5", 2, 2, START, 24.0, ["t"], ["gpu", "1g.10gb"], demand, nodes=["n1"])
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan_to_json(plan(problem, gap_target=0), problem))
    return path


@pytest.mark.parametrize("formats", calendar.FORMATS)
def test_each_format_is_files_and_all_is_all_of_them(kept, tmp_path, formats):
    mine, everything = (
        {path.relative_to(tmp_path / out) for path in export_plan(kept, tmp_path / out, formats=each)}
        for out, each in (("mine", formats), ("all", "all"))
    )
    assert mine
    assert mine <= everything
    assert (mine == everything) == (formats == "all")


def test_a_pack_is_verified_as_a_folder_and_names_its_board(kept, tmp_path):
    export_plan(kept, tmp_path / "out")
    found = verify_any(tmp_path / "out", None)
    assert found.ok
    assert found.findings[0].endswith("files unchanged since export, for H100-80GB-SXM5")
    assert verify_any(tmp_path / "out" / "mig-parted" / "mig-parted.yaml", None).ok
    with pytest.raises(ScenarioError, match=r"a change bundle with manifest\.json"):
        verify_any(kept.parent, None)


def test_files_of_a_pack_that_were_edited_are_named(kept, tmp_path):
    export_plan(kept, tmp_path / "out")
    config, timer, script = (
        tmp_path / "out" / "mig-manager" / name for name in ("configmap.yaml", "timer.yaml", "timer.sh")
    )
    assert verify_any(timer, None).findings == ["unchanged since export"]
    for path in (config, timer):
        path.write_text(path.read_text() + "# by hand")
    script.unlink()
    assert verify_any(tmp_path / "out", None).problems == [
        "mig-manager/configmap.yaml: edited since export",
        "mig-manager/timer.sh: missing",
        "mig-manager/timer.yaml: edited since export; this file has no other check",
    ]
    assert verify_any(config, None).ok
    assert verify_any(timer, None).problems == ["edited since export; this file has no other check"]
    config.write_text(config.read_text().replace('"1g.10gb": 7', '"1g.10gb": 8'))
    assert "holds at most 7" in verify_any(config, None).problems[0]
    assert any("holds at most 7" in fault for fault in verify_any(tmp_path / "out", None).problems)


def test_the_command_prints_a_summary_and_each_problem(kept, tmp_path, command):
    out = tmp_path / "out"
    export_plan(kept, out)
    findings = verify_any(out, None).findings
    code, printed, _ = command("verify", str(out))
    lines = printed.splitlines()
    assert (code, lines[0]) == (0, f"ok: {findings[0]}")
    assert len(lines) < 8 < len(findings)
    checked = [finding for finding in findings if "unchanged since export" not in finding]
    in_one_file = sum(finding.startswith("mig-parted/mig-parted.yaml: ") for finding in checked)
    assert f"ok: mig-parted/mig-parted.yaml: {in_one_file} checks passed" in lines
    assert lines[-1] == f"{out}: all checks passed (each check: --all)"

    whole = command("verify", str(out), "--all")[1].splitlines()
    assert whole[:-1] == [f"ok: {finding}" for finding in findings]
    assert json.loads(command("verify", str(out), "--json")[1])["findings"] == findings

    files = len(json.loads((out / "manifest.json").read_text())["files"])
    scripts = sorted(out.glob("*/timer.sh"))
    for script in scripts:
        script.write_text("exit 0\n")
    code, printed, _ = command("verify", str(out))
    lines = printed.splitlines()
    assert (code, lines[0]) == (1, f"ok: {files - len(scripts)} of {files} files unchanged since export")
    problems = [line for line in lines if line.startswith("problem: ")]
    assert len(problems) == len(scripts) > 1
    assert lines[-1].startswith(f"{out}: checks failed: {len(scripts)} problems")


def test_many_nodes_and_files_have_a_line_together():
    nodes = [f"n{node}: as planned" for node in range(40)]
    (line,) = summarize_findings(nodes)
    assert line.startswith("40 checks passed, of 'n0', ")
    assert summarize_findings(nodes[:8]) == nodes[:8]


def test_a_format_that_is_not_known_is_refused_with_the_nearest(kept, tmp_path):
    with pytest.raises(ScenarioError, match="Did you mean 'slurm'"):
        export_plan(kept, tmp_path / "out", formats="slrum")
    assert not (tmp_path / "out").exists()


def test_layouts_that_do_not_hold_are_not_handed_over(kept, tmp_path, monkeypatch):
    lines = {"slurm-0.conf": "NodeName=n1 Gres=gpu:9\n"}
    monkeypatch.setattr(calendar, "to_slurm_files", lambda *_, **__: lines)
    with pytest.raises(OutputError, match=r"slurm-0\.conf: .*do not fit on 2 GPUs"):
        export_plan(kept, tmp_path / "out", formats="slurm")
    assert not (tmp_path / "out").exists()


def test_names_that_nobody_gave_are_not_handed_over(kept, tmp_path):
    """Files for a node0 that is made up would be applied to whatever is called so."""
    found, problem = read_plan(kept)
    nameless = replace(problem, nodes=None)
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(found, nameless))
    assert nameless.node_names == ("node0",)
    with pytest.raises(ScenarioError, match="a plan that names its nodes; got a plan of nodes without names"):
        export_plan(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plan_at_hand_is_written_with_a_workbook_and_linked(kept, tmp_path):
    """The page, the pack and the workbook of the plan that a notebook shows; what cannot be written is said."""
    planned = PlannedProblem(*read_plan(kept)[::-1])
    out = tmp_path / "out"
    box = files_button(lambda: write_plan_handover(planned, out))
    box.children[0].click()
    assert f'<a href="{out}/README.md" target="_blank">' in box.children[1].value
    assert f'<a href="{out}/workbook.xlsx" target="_blank">' in box.children[1].value
    assert (out / "mig-manager/timer.sh").is_file()
    assert (out / "workbook.xlsx").stat().st_size > 5000
    found, problem = read_plan(kept)
    nameless = PlannedProblem(replace(problem, nodes=None), found)
    box = files_button(lambda: write_plan_handover(nameless, tmp_path / "none"))
    box.children[0].click()
    assert "expected a plan that names its nodes" in box.children[1].value
    assert not (tmp_path / "none").exists()
