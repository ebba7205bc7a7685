"""The command ``cost``: what the month cost, for whom, with energy and carbon; as FOCUS lines for finance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Quiet, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame
from gpuplanner.units import money_text

if TYPE_CHECKING:
    from gpuplanner.study.future.cost_review import CostReview

TABLES = ("tenant", "ownership", "bucket", "board", "end", "job")


@app.command()
@takes("month", "board", "price_usd_per_gpu_hour", "price_book", "currency", "carbon_region", "carbon_file")
def cost(
    scenario: ScenarioPath,
    given: Given,
    by: Annotated[
        str, typer.Option("--by", metavar="|".join(TABLES), help="What the cost is parted by, as text.")
    ] = "tenant",
    focus: Annotated[
        Path | None,
        typer.Option(
            "--focus", metavar="FILE.csv", help="Write the charge lines as FOCUS 1.2; they sum to the total."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what the month cost, for whom and why: every sum is the total to the cent, energy and carbon with ranges."""
    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.export.focus import write_focus
    from gpuplanner.files import require_file
    from gpuplanner.study.future.cost_review import cost_review

    if by not in TABLES:
        text = f"one of {', '.join(TABLES)}"
        raise typer.BadParameter(text, param_hint="--by")
    if focus is not None:
        require_file(focus, inputs=[scenario])
    found = cost_review(given.scenario(scenario))
    if focus is not None:
        if found.total is None:
            raise ScenarioError(message("--focus", "a price of the GPUs", found.missing[0], "Give a price."))
        write_focus(focus, found.costs)
        say(f"written: {focus}")
    if as_json:
        show(found.to_dict(), as_json=True)
        return
    _told(found, by)
    if not quiet:
        for text in found.missing:
            say(text)


def _told(found: CostReview, by: str) -> None:
    if found.total is not None:
        put(
            f"{money_text(found.total, found.currency)} {found.currency} from {found.period[0]} to {found.period[1]}"
        )
        show_frame(getattr(found, f"by_{by}"), as_json=False, title=f"Cost by {by}, {found.currency}")
        show(
            {f"cost of a {name.replace('_', ' ')}": value for name, value in found.unit_costs.items()},
            as_json=False,
        )
    if found.energy is not None:
        show_frame(
            found.states.select("state", "gpu_hours", "^energy_kwh.*$"),
            as_json=False,
            title="Energy by state",
        )
        rows = {"energy, kWh": found.energy} | {
            f"{name} carbon, kg": one for name, one in found.carbon_kg.items()
        }
        for name, one in rows.items():
            if one is not None:
                put(f"{name:<20} {one.value:>14,.1f}  ({one.low:,.1f} to {one.high:,.1f})")
        put(f"{'at the yearly mean':<20} {found.carbon_at_yearly_mean_kg or 0.0:>14,.1f}")
