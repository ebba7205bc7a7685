"""The pages of the documentation: each is in the map of the site, no link leads nowhere, what they show runs."""

from __future__ import annotations

import re

import pytest
import yaml

PAGES = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")


def test_every_page_is_in_the_map_of_the_site_and_no_link_leads_nowhere(root):
    site = yaml.safe_load((root / "mkdocs.yml").read_text())
    listed = [page for part in site["nav"] for pages in part.values() for page in pages]
    there = {path.name for path in (root / "docs").glob("*.md")}
    assert sorted(listed) == sorted(there)
    for name in there:
        linked = set(PAGES.findall((root / "docs" / name).read_text()))
        assert linked <= there, name


def test_commands_that_pages_show_are_commands(root):
    import typer

    from gpuplanner.cli.app import app, register_commands

    register_commands()
    known = set(typer.main.get_command(app).commands)
    for name in ("tutorial.md", "howto.md", "index.md"):
        shown = set(re.findall(r"(?:^|`)gpuplanner ([a-z][a-z-]*)", (root / "docs" / name).read_text(), re.M))
        assert shown or name == "index.md"
        assert shown <= known, name


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    for block in re.findall(r"```python\n(.*?)```", (root / "docs" / "tutorial.md").read_text(), re.S):
        exec(compile(block, "tutorial.md", "exec"), {})
    out = capsys.readouterr().out
    assert "gpu_hours" in out
    assert re.search(r"^\d+ ", out, re.M)
