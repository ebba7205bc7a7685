"""The repository keeps its own promises: light imports, one list of packages, fresh pages, the same sample."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

import gpuplanner
from gpuplanner.report.layout_schedule_files import FORMATS
from gpuplanner.simulator.job_list_simulation import JOB_LIST_QUEUES

pytestmark = pytest.mark.lint

HEAVY = ("pulp", "highspy", "statsforecast", "altair", "numba", "ipywidgets", "pandas", "papermill", "xlsxwriter")
CONDA_NAMES = {"python-tzdata": "tzdata"}


def in_fresh_python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ended.stdout


def test_import_loads_nothing_heavy():
    loaded = in_fresh_python("import sys, gpuplanner; print(*sorted(sys.modules))").split()
    assert not set(HEAVY) & set(loaded)
    assert "polars" not in loaded


def test_help_does_not_load_polars():
    code = (
        "import sys; sys.argv = ['gpuplanner', '--help']\n"
        "from gpuplanner.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('LOADED', *sorted(sys.modules))"
    )
    help_text, _, loaded = in_fresh_python(code).partition("LOADED")
    assert "ingest" in help_text
    assert not {*HEAVY, "polars"} & set(loaded.split())


PACKAGES = sorted(path.parent.name for path in Path(gpuplanner.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_loads_a_heavy_library_before_it_is_used(package):
    loaded = in_fresh_python(f"import sys, gpuplanner.{package}; print(*sorted(sys.modules))").split()
    assert not set(HEAVY) & set(loaded)


def test_public_names_exist():
    assert all(hasattr(gpuplanner, name) for name in gpuplanner.__all__)
    assert dir(gpuplanner) == gpuplanner.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpuplanner.nothing


def requirements(root: Path) -> dict[str, str]:
    """Base and the extra "all" of pyproject.toml, name to specifier."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = re.match(r"gpuplanner\[(.*)\]", extras["all"][0]).group(1).split(",")
    lines = [*project["dependencies"], *(line for name in names for line in extras[name])]
    return dict(_split(line) for line in lines)


def _split(line: str) -> tuple[str, str]:
    name, specifier = re.match(r"([A-Za-z0-9_.-]+?)(?:\[.*?\])?([<>=!~].*)?$", line.strip()).groups()
    return name.lower().replace("_", "-"), ",".join(sorted((specifier or "").split(",")))


def test_conda_environment_names_the_same_packages(root):
    listed = yaml.safe_load((root / "environment.yml").read_text())["dependencies"]
    conda = dict(_split(line) for line in listed if isinstance(line, str))
    assert conda.pop("python") == ">=3.11"
    del conda["pip"]
    assert {CONDA_NAMES.get(name, name): spec for name, spec in conda.items()} == requirements(root)


def test_packages_fixed_by_the_users_are_there(root):
    fixed = {"jupyterlab", "ipywidgets", "polars", "altair", "pulp", "statsforecast", "papermill"}
    assert fixed <= set(requirements(root))


def test_lock_names_every_package_and_no_host(root):
    text = (root / "requirements.lock").read_text()
    locked = {_split(line.split(";")[0])[0] for line in text.splitlines() if line.strip()}
    assert set(requirements(root)) <= locked
    assert "://" not in text


def test_make_bench_installs_what_the_benchmarks_import(root):
    """What they measure against stands in an extra of its own, which is installed before they run."""
    import ast
    import tomllib

    imported = set()
    for path in (root / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {name.partition(".")[0] for name in names}
    folders = (root / "benchmarks", root / "data")
    ours = {"gpuplanner", "tests", *(path.stem for folder in folders for path in folder.iterdir())}
    peers = imported - ours - set(sys.stdlib_module_names)
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {*requirements(root), *(_split(line)[0] for line in extras["bench"])}
    # pandas and scipy come with statsforecast.
    assert {{"fleet_sim": "vllm-sr-sim"}.get(name, name) for name in peers} <= installed | {"pandas", "scipy"}
    assert {"simpy", "accasim"} <= peers
    rules = (root / "Makefile").read_text()
    assert "\nbench: $(VENV)/.bench" in rules
    assert re.search(r"\n\$\(VENV\)/\.bench:.*\n\t.*\[dev,bench\]", rules)


def test_reference_pages_are_fresh(root):
    spec = importlib.util.spec_from_file_location("make_reference", root / "docs" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.pages().items():
        assert (root / "docs" / name).read_text() == text, f"run 'make docs': docs/{name} is stale"


@pytest.mark.parametrize(
    ("command", "option", "choices"), [("export", "--to", FORMATS), ("simulate", "--queue", JOB_LIST_QUEUES)]
)
def test_the_help_of_an_option_names_every_choice(root, command, option, choices):
    page = (root / "docs" / "commands.md").read_text()
    section = page.split(f"## `gpuplanner {command}`\n")[1].split("\n## ")[0]
    line = next(line for line in section.splitlines() if line.startswith(f"| `{option}"))
    assert [choice for choice in choices if not re.search(rf"\b{choice}\b", line)] == []


def test_sample_is_the_same_when_made_again(root, tmp_path):
    subprocess.run([sys.executable, "data/make_sample.py", "-o", str(tmp_path / "s")], cwd=root, check=True)
    shipped, made = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (root / "data" / "sample", tmp_path / "s")
    )
    # The manifest also has the versions of the libraries here, which are not those that the sample was made with.
    manifests = [json.loads(files.pop(Path("manifest.json"))) for files in (shipped, made)]
    assert manifests[0]["files"] == manifests[1]["files"]
    assert made == shipped
    assert sum(map(len, shipped.values())) < 6_000_000


def test_notebooks_are_thin_and_hold_no_output(root):
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert len(notebook.cells) <= 15, path.name
        if path.name[0].isdecimal():  # those for people; the other is what reports are made by
            deep = re.findall(r"(?m)^ *(?:from|import) +gpuplanner\.", "\n".join(cell.source for cell in code))
            assert deep == [], f"{path.name}: a notebook imports from gpuplanner alone"
        assert not any(cell.outputs for cell in code), path.name
        assert code[0].metadata.tags == ["parameters"], path.name
        assert all(len(cell.source.splitlines()) <= 10 for cell in code), path.name
        assert not any(re.search(r"^\s*(def|class|for|while) ", cell.source, re.M) for cell in code), path.name


def test_repository_speaks_of_the_project_alone(root):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if name.endswith((".parquet", ".lock")) or name == "tests/test_project.py" or not (root / name).is_file():
            continue
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"/(?:work|root)/|/home/[a-z]+/", text), name
