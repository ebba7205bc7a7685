"""The notebook of the twenty jobs runs without a person."""

from __future__ import annotations

import nbformat
import pytest

from gpuplanner.report.render import run_notebook


@pytest.mark.long
@pytest.mark.notebook
def test_the_notebook_of_the_twenty_jobs_runs_headless(root, tmp_path):
    few = {"seeds": 3, "ablation_seeds": 2, "harder_seeds": 2}
    run_notebook(root / "notebooks" / "07_twenty_jobs.ipynb", tmp_path / "out.ipynb", few)
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    shown = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)
