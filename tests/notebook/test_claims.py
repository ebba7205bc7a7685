"""The stored results of the twenty jobs: figures and chart from a checkout, and from what a wheel holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib

import polars as pl
import pytest

import gpuplanner as gp


def test_twenty_jobs_show_claim_measurement_and_policies(root):
    view = gp.twenty_jobs()
    html = view._repr_html_()
    stored = pl.read_csv(root / "benchmarks" / "claims" / "results" / "twenty_jobs.csv")
    for row in stored.iter_rows(named=True):
        assert f">{row['figure']}</th>" in html
        assert f">{row['measured']:.3g}<" in html
    panels = view.chart().to_dict()["concat"]
    assert len(panels) == 4
    assert view.df.height == len(set(view.df["policy"])) * len(set(view.df["metric"])) == 30


@pytest.mark.long
def test_an_installed_package_finds_them(root, tmp_path):
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shutil.copytree(root / "gpuplanner", tmp_path / "gpuplanner", ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in wheel["force-include"].items():
        shutil.copytree(root / source, tmp_path / target)
    code = "import gpuplanner as gp; print(gp.__file__); print(gp.twenty_jobs().df.height)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path / "gpuplanner" / "__init__.py"), "30"]
