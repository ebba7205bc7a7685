"""Widths, SVG and the notebook renderer."""

from __future__ import annotations

import altair as alt
import bs4
import nbconvert
import nbformat
import polars as pl
import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpuplanner import report as plots
from gpuplanner.report import chart_rendering as render
from gpuplanner.report.html_page import HtmlSection, display_section


def test_container_width_becomes_pixels_and_the_spec_is_left_alone(costs):
    spec = plots.chart_spec(plots.plot_costs(costs, unit="USD"))
    fit = plots.fitted(spec, 500)
    assert fit["width"] == 500
    assert spec["width"] == "container"
    assert "axisYDiscrete" not in spec["config"]


@pytest.mark.parametrize(("width", "columns"), [(1000, 2), (360, 1)])
def test_small_multiples_stand_in_as_many_columns_as_fit(policies, demand, width, columns):
    concat = plots.fitted(plots.chart_spec(plots.plot_policies(policies)), width)
    facet = plots.fitted(plots.chart_spec(plots.plot_demand(demand)), width)
    assert concat["columns"] == facet["columns"] == columns
    assert all(columns * part["width"] < width for part in [*concat["concat"], facet["spec"]])


def test_notebooks_get_a_specification_for_jupyterlab_and_a_picture(policies):
    bundle = plots.chart_outputs(plots.chart_spec(plots.plot_policies(policies)), width=600)
    assert set(bundle) == {
        "application/vnd.vegalite.v5+json", "text/markdown", "image/svg+xml", "text/plain",
    }  # fmt: skip
    assert bundle["application/vnd.vegalite.v5+json"]["columns"] == 1
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "Policy comparison" in bundle["text/plain"]


def test_exported_notebooks_say_what_every_chart_shows(policies, caplog):
    chart = plots.add_description(plots.plot_policies(policies), 'Dynamic waits 4 h, "static" 9 h.')
    own = alt.Chart(pl.DataFrame({"x": [1]}), title="A <b> of mine").mark_point().encode(x="x:Q")
    outputs = [plots.chart_outputs(each.to_dict(), width=600) for each in (chart, own)]
    shown = [nbformat.v4.new_output("display_data", each) for each in outputs]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("0", outputs=shown)])
    page, _ = nbconvert.HTMLExporter(exclude_input=True).from_notebook_node(notebook)
    told = [picture["alt"] for picture in bs4.BeautifulSoup(page, "html.parser").select("img")]
    assert told == ['Policy comparison: mean and interval. Dynamic waits 4 h, "static" 9 h.', "A <b> of mine"]
    assert "Alternative text is missing" not in caplog.text


def test_charts_of_the_user_need_no_network_once_a_section_was_shown(capsys):
    shell = InteractiveShell.instance()
    try:
        display_section(HtmlSection("<p>Any.</p>"))
        own = alt.Chart(pl.DataFrame({"x": [1]}), title="Mine").mark_point().encode(x="x:Q")
        shown, _ = shell.display_formatter.format(own)
    finally:
        InteractiveShell.clear_instance()
    assert shown["image/svg+xml"].startswith("<svg")
    assert shown["application/vnd.vegalite.v5+json"]["title"] == "Mine"
    assert "Any." in capsys.readouterr().out


def test_a_chart_cannot_fetch_data():
    spec = {"data": {"url": "https://example.org/x.csv"}, "mark": "point", "encoding": {}}
    with pytest.raises(ValueError, match="External data url not allowed"):
        render._render_svg(spec)


def test_a_name_of_controls_is_drawn_as_text():
    name = "a\x1b[2J\u202ecod\uffff" + "b" * 300
    chart = plots.plot_costs(pl.DataFrame({"tenant": [name, "c"], "cost": [1.0, 2.0]}), unit="USD")
    assert r"a\u001b[2J\u202ecod\uffff" in plots.chart_to_svg(chart)
    assert r"a\u001b[2J\u202ecod\uffff" in plots.chart_outputs(chart.to_dict())["image/svg+xml"]
