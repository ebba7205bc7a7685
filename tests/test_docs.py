"""Documentation: every page is in the navigation, every link has a target, every block runs."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_services import read_services
from gpuplanner.decision.sharing_rules import read_quotas
from tests.clusters.cut_clusters import slurm_cut
from tests.ingest.bills.test_focus import USAGE, bill

pytestmark = pytest.mark.lint

LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON_PAGES = {"tutorial.md", "api.md", "extend.md", "where_to_change.md"}
"""Pages whose Python blocks a test runs: here, in ``tests/core/test_plugins.py`` and in ``tests/ingest/schedulers``."""
STUBS = (
    "gpuplanner", "make", "open", "sacct", "scontrol", "sacctmgr", "kubectl", "curl", "nvidia-smi", "bjobs",
    "condor_history", "python", "pre-commit",
)  # fmt: skip
"""Programs of a site, which write down how they were called."""


def pages_of(root: Path) -> list[Path]:
    """README, CONTRIBUTING and every page of the documentation."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page: its headings and the terms of the glossary."""
    text = page.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_every_page_is_in_the_navigation(root):
    site = yaml.safe_load((root / "mkdocs.yml").read_text())
    listed = [page for part in site["nav"] for pages in part.values() for page in pages]
    docs = root / "docs"
    assert sorted(listed) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def test_every_link_has_a_target(root):
    """Pages of notebooks are made with the site."""
    for page in pages_of(root):
        for target, anchor in LINK.findall(page.read_text("utf-8")):
            place = page.parent / target if target else page
            if not target.startswith("notebooks/"):
                assert place.exists(), (page.name, target)
                assert not anchor or anchor in anchors_of(place), (page.name, target, anchor)


def test_pages_link_their_terms_to_the_glossary(root):
    for name in ("tutorial", "howto", "export_from_your_cluster", "method", "recurring", "notebooks", "api"):
        assert "(glossary.md#" in (root / "docs" / f"{name}.md").read_text("utf-8"), name


def test_the_glossary_defines_each_term_once(root):
    with (root / "gpuplanner" / "report" / "glossary.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    forms = [form.lower() for row in rows for form in (row["word"], *filter(None, row["also"].split("|")))]
    assert sorted(forms) == sorted(set(forms))
    assert all(row["meaning"] for row in rows)


def test_readme_and_changelog_are_short(root):
    readme = (root / "README.md").read_text("utf-8").splitlines()
    assert len(readme) < 80
    assert next(line for line in readme if line.startswith(("make", "gpuplanner"))).startswith("make demo")
    changes = (root / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert max(map(len, changes)) <= 120
    assert sum(line.startswith("- ") for line in changes) <= 45


def test_the_python_api_page_lists_every_public_name(root):
    import gpuplanner

    table = (root / "docs" / "api.md").read_text("utf-8").partition("## ")[0]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(name for name in gpuplanner.__all__ if not name.startswith("_"))


def test_every_notebook_has_its_row(root):
    page = (root / "docs" / "notebooks.md").read_text("utf-8")
    linked = re.findall(r"\(notebooks/([^)]+)\.html\)", page)
    assert linked == sorted(path.stem for path in (root / "notebooks").glob("[0-9]*.ipynb"))


def shown(text: str) -> list[list[str]]:
    """Command lines of a page, in blocks and in sentences, as words; what follows a hash is a remark."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M))
    lines = re.findall(r"^gpuplanner ([a-z][^\n#]*)", blocks, re.M) + re.findall(r"`gpuplanner ([a-z][^`\n]*)`", text)
    return [shlex.split(line.replace("…", "").replace("...", "")) for line in lines]


def test_commands_that_pages_show_are_commands_with_these_options(root):
    import typer

    from gpuplanner.cli.application import app, register_commands

    register_commands()
    known = typer.main.get_command(app).commands
    seen = 0
    for path in pages_of(root):
        for name, *words in shown(path.read_text("utf-8")) if path.name != "commands.md" else ():
            assert name in known, (path.name, name)
            options = {option for each in known[name].params for option in (*each.opts, *each.secondary_opts)}
            given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
            assert given <= options, (path.name, name)
            seen += 1
    assert seen > 40


def test_blocks_are_of_a_kind_that_is_run(root):
    for page in pages_of(root):
        for kind, code in BLOCK.findall(page.read_text("utf-8")):
            assert kind in {"sh", "python", "toml", "yaml", "text"}, (page.name, code)
            assert kind != "python" or page.name in PYTHON_PAGES, page.name
            assert kind != "text" or not re.search(r"^(gpuplanner|make) ", code, re.M), (page.name, code)


def test_the_shell_blocks_run_on_a_host_with_these_programs(root, tmp_path):
    """Programs of the site are stubs; options of gpuplanner and its results have tests of their own."""
    programs, folder, calls = (tmp_path / name for name in ("bin", "work", "calls"))
    programs.mkdir()
    folder.mkdir()
    for name in STUBS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (programs / name).chmod(0o755)
    outside = {"PATH": f"{programs}:/usr/bin:/bin", "PROMETHEUS": "http://127.0.0.1:1"}
    for page in pages_of(root):
        for kind, code in BLOCK.findall(page.read_text("utf-8")):
            if kind == "sh":
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", code], cwd=folder, env=outside, capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
                assert done.returncode == 0, (page.name, code, done.stderr)
    called = [line.split() for line in calls.read_text().splitlines()]
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.M))
    assert {words[1] for words in called if words[0] == "make"} <= targets
    recipes = {words[1] for words in called if words[0] == "python"}
    assert len(recipes) == 4
    assert all((root / "docs" / "recipes" / name).is_file() for name in recipes)
    assert {words[0] for words in called} >= set(STUBS)


def test_the_quotas_of_the_page_are_read(root, tmp_path):
    page = (root / "docs" / "howto.md").read_text("utf-8")
    services, rules = (code for kind, code in BLOCK.findall(page) if kind == "yaml")
    (tmp_path / "services.yaml").write_text(services)
    assert read_services(tmp_path / "services.yaml")[0].model == "llama-3.1-8b"
    (tmp_path / "rules.yaml").write_text(rules)
    assert read_quotas(tmp_path / "rules.yaml")


def run_here(folder: Path, root: Path, words: list[str]) -> None:
    """Run a command line of a page in a folder."""
    words = [*words, "--yes"] if words[0] == "start" else words
    done = subprocess.run(
        [sys.executable, "-m", "gpuplanner", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or words[0] == "check", (words, done.stderr)


JOBS = """\
job_id,user,team,submit,start,end,gpus,nodes
1,ada,vision,2026-03-02T08:00:00Z,2026-03-02T09:00:00Z,2026-03-02T11:00:00Z,4,n1
2,bob,speech,2026-03-03T08:00:00Z,2026-03-03T08:00:00Z,2026-03-03T12:00:00Z,2,n1
"""


@pytest.mark.long  # three clusters are read and planned: about two minutes
@pytest.mark.parametrize("page", ["README.md", "docs/export_from_your_cluster.md", "docs/recurring.md"])
def test_the_commands_of_a_page_run_in_their_order(root, tmp_path, page):
    """On the dump of a generated Slurm cluster, on a job table, and on a bill."""
    files = slurm_cut(1).files()
    (tmp_path / "jobs.txt").write_text(files["sacct.txt"])
    (tmp_path / "nodes.txt").write_text(files["nodes.txt"])
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "nodes.csv").write_text("node,gpus,gpu_model\nn1,8,A100-80GB\n")
    (tmp_path / "focus.csv").write_text(bill("1.2", USAGE))
    blocks = [code for kind, code in BLOCK.findall((root / page).read_text("utf-8")) if kind == "sh"]
    ran = [words for code in blocks for words in shown(f"```sh\n{code}```")]
    assert ran
    for number, words in enumerate(ran):  # each start writes a folder of its own
        words = [word.replace("build/mine", f"build/mine-{number}") for word in words]
        run_here(tmp_path, root, [*words, *(["--no-page"] if words[0] == "start" else [])])


@pytest.mark.long  # the demo and a whole cluster: about two minutes
def test_the_commands_of_the_tutorial_run_in_their_order(root, tmp_path):
    """On the dump of a cluster with MIG; another test starts the notebook server."""
    for name, text in slurm_cut(1).files().items():
        (tmp_path / {"sacct.txt": "jobs.txt"}.get(name, name)).write_text(text)
    page = (root / "docs" / "tutorial.md").read_text("utf-8")
    (tmp_path / "build").mkdir()
    kept = Scenario(max_added_wait_minutes=20.0, policies="fewer_nodes").to_yaml()
    (tmp_path / "build" / "what-if-sample-fleet.yaml").write_text(kept)
    ran = [words for words in shown(page) if words != ["notebook"]]
    assert len(ran) > 4
    for words in ran:
        run_here(tmp_path, root, words)


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    for block in re.findall(r"```python\n(.*?)```", (root / "docs" / "tutorial.md").read_text(), re.S):
        exec(compile(block, "tutorial.md", "exec"), {})
    out = capsys.readouterr().out
    assert "gpu_hours" in out
    assert re.search(r"^\d+ ", out, re.M)


@pytest.mark.long  # two studies of the sample: about a minute
def test_the_python_of_the_api_page_runs(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (root / "docs" / "api.md").read_text(), re.S):
        exec(compile(block, "api.md", "exec"), names)
    assert "need 9 memory slices" in capsys.readouterr().out
