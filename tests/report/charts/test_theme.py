"""Colours that everybody can tell apart, and that stay with their names."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.decision.policy_comparison import MEANINGS
from gpuplanner.report import chart_theme as theme

# Machado, Oliveira & Fernandes (2009), doi:10.1109/TVCG.2009.113, severity 1.0, for linear RGB.
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
RGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour: str) -> np.ndarray:
    channel = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: np.ndarray) -> np.ndarray:
    xyz = RGB_TO_XYZ @ np.clip(sight @ linear(colour), 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((RGB_TO_XYZ[1] @ linear(colour) for colour in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "colours",
    [
        theme.BUCKET_COLOURS,
        plots.tenant_colours([*map(str, range(len(theme.PALETTE))), "-"]),
        plots.layout_colours(["gpu", "off", *map(str, range(10))]),
        theme.POLICY_COLOURS,
    ],
    ids=["buckets", "tenants", "layouts", "policies"],
)
def test_colours_differ_clearly_in_every_kind_of_sight(colours, sight):
    distances = [
        np.linalg.norm(lab(one, SIGHT[sight]) - lab(other, SIGHT[sight]))
        for one, other in itertools.combinations(colours.values(), 2)
    ]
    assert min(distances) > 15  # CIE 1976; 2.3 is the least that can be seen


def test_text_can_be_read_on_white():
    assert contrast(theme.INK, "#ffffff") >= 7
    assert contrast(theme.MUTED, "#ffffff") >= 4.5


def test_a_tenant_keeps_its_colour_whatever_the_order():
    assert plots.tenant_colours(["b", "a", "c"]) == plots.tenant_colours(["c", "b", "a", "a"])


def test_names_beyond_the_palette_share_grey():
    colours = plots.tenant_colours(f"t{rank:03d}" for rank in range(30))
    assert len(set(colours.values())) == len(theme.PALETTE) + 1
    assert colours["t029"] == theme.GREY


def test_every_way_to_run_a_fleet_has_its_colour_and_words_in_it_can_be_read():
    assert set(theme.POLICY_COLOURS) >= set(MEANINGS)
    assert all(contrast(colour, "#ffffff") >= 4.5 for colour in theme.POLICY_COLOURS.values())


def scale_of(chart: alt.Chart) -> dict[str, str]:
    """Colours of the first scale of a chart, by what they stand for."""
    spec = plots.chart_spec(chart)
    layers = spec["concat"][0]["layer"] if "concat" in spec else spec["layer"]
    scale = next(part["encoding"]["color"]["scale"] for part in layers if "color" in part["encoding"])
    return dict(zip(scale["domain"], scale["range"], strict=True))


def page(policies: list[str], best: str) -> list[dict[str, str]]:
    """Colours of the ways that a page compares and recommends, chart by chart."""
    ways = pl.DataFrame({"policy": policies}).with_columns(
        metric=pl.lit("on"), unit=pl.lit("h"), mean=1.0, low=0.5, high=2.0,
        gpu_hours=9.0, added_wait_p95_minutes=1.0, kind=pl.lit("tuned"),
    )  # fmt: skip
    frontier = scale_of(plots.plot_frontier(ways, best=best))
    return [scale_of(plots.plot_policies(ways)), {"today": frontier["today"], best: frontier["best"]}]


def test_one_colour_is_one_way_to_run_a_fleet_on_every_page():
    every = list(MEANINGS)
    pages = [
        page(["autoscaled_pools", "today"], "autoscaled_pools"),
        page(every, "power_down_idle"),
        page(every[::-1], "autoscaled_pools"),
    ]
    seen = {(way, colour) for charts in pages for chart in charts for way, colour in chart.items()}
    assert seen == {(way, theme.POLICY_COLOURS[way]) for way in MEANINGS}


def test_colours_stand_in_the_theme_alone():
    folder = Path(theme.__file__).parent
    charts = [*folder.glob("chart_*.py"), *folder.glob("*_charts.py")]
    assert len(charts) > 6
    colours = {path.name: re.findall("#[0-9a-fA-F]{6}", path.read_text("utf-8")) for path in charts}
    # The colour of text stands where a chart is drawn without altair, and the theme imports it from there.
    assert colours.pop("chart_rendering.py") == [theme.INK]
    assert [name for name, found in colours.items() if found] == ["chart_theme.py"]
