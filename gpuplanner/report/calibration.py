"""Simulated beside observed waits: a page of its own, and a picture."""

from __future__ import annotations

from gpuplanner import plot
from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.study.future.calibration import OUTCOMES, Calibration

_FORMATS = {"observed_s": ",.0f", "simulated_s": ",.0f", "level": ".2f"}


def calibration_page(found: Calibration, *, title: str) -> str:
    """A page about how well simulated waits agree with observed ones.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.future.calibration import calibrate
    >>> calibration_page(calibrate(Scenario()), title="Waits").count("<figure>")
    5
    """
    facts = found.facts
    fleet = (
        f"{facts['fleet_gpus']:,} GPUs on {facts['nodes']:,} nodes ({facts['fleet']}), queue {facts['queue']}"
    )
    body = page.section(
        "Waits, simulated and observed",
        page.paragraph(f"{found.outcome}: {OUTCOMES[found.outcome]}."),
        page.paragraph(found.sentence),
        page.figure(
            page.roomy(plot.plot_wait_quantiles(found.quantiles)),
            title="Waits, quantile by quantile",
            alt=f"{plot.wait_quantiles_text(found.quantiles)} On the dashed line the distributions are equal.",
            numbers=found.quantiles,
            formats=_FORMATS,
        ),
        page.figure(
            page.roomy(plot.plot_wait_causes(found.causes)),
            title="What the waits are made of",
            alt=plot.wait_causes_text(found.causes),
            numbers=found.causes,
            formats={"share": ".1%", "hours": ",.0f"},
        ),
        *(_group(found, by) for by in found.groups),
    )
    subtitle = f"{facts['jobs_compared']:,} jobs served again by {fleet}"
    origin = {"source": str(facts["source"]), "base": str(facts["base"]), "gpuplanner": __version__}
    return page.render_page(body, title=title, subtitle=subtitle, provenance=origin)


def calibration_svg(found: Calibration) -> str:
    """One picture of all that is drawn of a calibration."""
    charts = [plot.plot_wait_quantiles(found.quantiles)]
    charts += [plot.plot_wait_groups(group, by) for by, group in found.groups.items()]
    words = [found.sentence, plot.wait_quantiles_text(found.quantiles)]
    words += [plot.wait_groups_text(group, by) for by, group in found.groups.items()]
    words.append(plot.wait_causes_text(found.causes))
    return page.told_svg([*charts, plot.plot_wait_causes(found.causes)], words)


def _group(found: Calibration, by: str) -> str:
    group = found.groups[by]
    return page.figure(
        page.roomy(plot.plot_wait_groups(group, by)),
        title=f"Mean wait by {by}, observed and simulated",
        alt=plot.wait_groups_text(group, by),
        numbers=group,
    )
