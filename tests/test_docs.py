"""The pages of the documentation: each is in the map of the site, no link leads nowhere, what they show runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from gpuplanner.core.scenario import Scenario
from tests.clusters.cut_clusters import slurm_cut

pytestmark = pytest.mark.lint

PAGES = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")


def test_every_page_is_in_the_map_of_the_site_and_no_link_leads_nowhere(root):
    site = yaml.safe_load((root / "mkdocs.yml").read_text())
    listed = [page for part in site["nav"] for pages in part.values() for page in pages]
    docs = root / "docs"
    there = {path.relative_to(docs).as_posix() for path in (*docs.glob("*.md"), *docs.glob("results/*.md"))}
    assert sorted(listed) == sorted(there)
    for name in there:
        for page in PAGES.findall((docs / name).read_text()):
            assert (docs / name).parent.joinpath(page).resolve().relative_to(docs).as_posix() in there, name


def test_every_notebook_has_its_row(root):
    page = (root / "docs" / "notebooks.md").read_text("utf-8")
    linked = re.findall(r"\(notebooks/([^)]+)\.html\)", page)
    assert linked == sorted(path.stem for path in (root / "notebooks").glob("[0-9]*.ipynb"))


def shown(text: str) -> list[list[str]]:
    """Command lines of a page, in blocks and in sentences, as words; what follows a hash is a remark."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M))
    lines = re.findall(r"^gpuplanner ([a-z][^\n#]*)", blocks, re.M) + re.findall(
        r"`gpuplanner ([a-z][^`\n]*)`", text
    )
    return [shlex.split(line.replace("…", "").replace("...", "")) for line in lines]


def test_commands_that_pages_show_are_commands_with_these_options(root):
    import typer

    from gpuplanner.cli.application import app, register_commands

    register_commands()
    known = typer.main.get_command(app).commands
    seen = 0
    for path in (*(root / "docs").glob("*.md"), root / "README.md", root / "CONTRIBUTING.md"):
        for name, *words in shown(path.read_text("utf-8")) if path.name != "commands.md" else ():
            assert name in known, (path.name, name)
            options = {option for each in known[name].params for option in (*each.opts, *each.secondary_opts)}
            given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
            assert given <= options, (path.name, name)
            seen += 1
    assert seen > 40


@pytest.mark.long
def test_the_commands_of_the_tutorial_run_in_their_order(root, tmp_path):
    """On the dump of a cluster that is cut; the server of the notebooks is another test's."""
    for name, text in slurm_cut(1).files().items():
        (tmp_path / {"nodes.txt": "scontrol.txt"}.get(name, name)).write_text(text)
    page = (root / "docs" / "tutorial.md").read_text("utf-8")
    (tmp_path / "build").mkdir()
    kept = Scenario(wait_minutes=20.0, policies="static_whole").to_yaml()
    (tmp_path / "build" / "what-if-sample-fleet.yaml").write_text(kept)
    ran = [words for words in shown(page) if words != ["notebook"]]
    assert len(ran) > 4
    for words in ran:
        words += ["--yes"] if words[0] == "start" else []
        done = subprocess.run(
            [sys.executable, "-m", "gpuplanner", *words], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(root)}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    for block in re.findall(r"```python\n(.*?)```", (root / "docs" / "tutorial.md").read_text(), re.S):
        exec(compile(block, "tutorial.md", "exec"), {})
    out = capsys.readouterr().out
    assert "gpu_hours" in out
    assert re.search(r"^\d+ ", out, re.M)
