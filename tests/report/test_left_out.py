"""Outputs of a report are independent: one that fails is left out and named, the others are written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuplanner.core.errors import GpuPlannerError, GpuPlannerWarning, MissingDependencyError, OutputError
from gpuplanner.core.scenario import Scenario
from gpuplanner.report import report_rendering as rendering

LINKS = (("Excel", "workbook.xlsx"), ("Notebook", "report.ipynb"), ("JSON", "study.json"), ("PDF", "report.pdf"))


@pytest.fixture
def parts(monkeypatch):
    """A study whose parts are texts; each output can be told to fail."""
    fails: dict[str, Exception] = {}

    def writes(name, text):
        def write(*arguments, **_):
            path = next(one for one in arguments if (hasattr(one, "write_text") and one.suffix) or one is arguments[-1])
            if name in fails:
                raise fails[name]
            path.write_text(text)

        return write

    def run(_, target, *__, **___):
        if "notebook" in fails:
            target.write_text("half")
            raise fails["notebook"]
        target.write_text("notebook")

    def pages(folder, _, body, __):
        links = "".join(f'<a href="{path}">{name}</a> ' for name, path in LINKS)
        (folder / "index.html").write_text(f"{body}{links}")
        (folder / "summary.md").write_text("Page" + "".join(f" · [{name}]({path})" for name, path in LINKS))

    study = SimpleNamespace(scenario=Scenario(), plan=None, problem=None, comparison=None, to_json=lambda: "{}")
    for name, replacement in {
        "check_options": lambda _: None, "evaluate": lambda _: study, "run_notebook": run,
        "join_fragments": lambda _: "<section>of the notebook</section>", "_clean_notebook": lambda _: None,
        "write_study_workbook": lambda path, *_, **__: writes("workbook", "workbook")(path),
        "write_bundle_into": lambda *_: None, "_write_pages": pages, "find_browser": lambda: "browser",
        "print_pdf": lambda _, out, __: writes("PDF", "pdf")(out), "list_downloads": lambda _: LINKS,
        "REPORT_SECTIONS": {"summary": lambda _: "<section>summary</section>", "costs": lambda _: costs()},
    }.items():  # fmt: skip
        monkeypatch.setattr(rendering, name, replacement)

    def costs():
        if "costs" in fails:
            raise fails["costs"]
        return "<section>costs</section>"

    return fails


def reported(tmp_path):
    rendering.write_report(Scenario(), tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    return page, {path.name for path in (tmp_path / "out").iterdir()}


ALL = {"index.html", "summary.md", "study.json", "scenario.yaml", "workbook.xlsx", "report.ipynb", "report.pdf",
       "manifest.json"}  # fmt: skip
FAILURES = {
    "workbook": ("workbook.xlsx", MissingDependencyError("xlsxwriter is not installed")),
    "notebook": ("report.ipynb", GpuPlannerError("cell 3: KeyError: 'gpus'")),
    "PDF": ("report.pdf", OutputError("report.pdf: the browser ended")),
}


def test_nothing_is_left_out_without_a_failure(parts, tmp_path):
    page, files = reported(tmp_path)
    assert files == ALL
    assert "Left out" not in page
    assert "of the notebook" in page


@pytest.mark.parametrize("output", FAILURES)
def test_one_output_that_fails_is_left_out_and_named(parts, tmp_path, output):
    file, parts[output] = FAILURES[output]
    with pytest.warns(GpuPlannerWarning, match=f"no {output}: "):
        page, files = reported(tmp_path)
    assert files == ALL - {file}
    assert f'href="{file}"' not in page
    assert f"({file})" not in (tmp_path / "out" / "summary.md").read_text()
    assert "study.json" in page
    if output != "PDF":  # which is printed of the page
        assert f"Left out of this report: {output}: " in page


def test_without_notebook_the_page_has_its_sections_but_those_that_fail(parts, tmp_path):
    parts |= {"notebook": ModuleNotFoundError("papermill"), "costs": ValueError("no price")}
    with pytest.warns(GpuPlannerWarning) as warned:
        page, files = reported(tmp_path)
    assert [str(one.message) for one in warned] == ["no notebook: papermill", "no section costs: no price"]
    assert "<section>summary</section>" in page
    assert "Left out of this report: section costs: no price" in page
    assert files == ALL - {"report.ipynb"}


def test_all_can_fail_at_once(parts, tmp_path):
    parts |= {output: failure for output, (_, failure) in FAILURES.items()}
    with pytest.warns(GpuPlannerWarning):
        page, files = reported(tmp_path)
    assert files == ALL - {file for file, _ in FAILURES.values()}
    assert "<section>costs</section>" in page


def test_a_full_disk_still_ends_the_report(parts, tmp_path):
    parts["workbook"] = OSError(28, "No space left on device")
    with pytest.raises(OutputError, match="No space left"):
        reported(tmp_path)
    assert not (tmp_path / "out").exists()
