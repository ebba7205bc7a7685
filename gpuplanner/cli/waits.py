"""The command that says what kept jobs waiting: ``waits``."""

from __future__ import annotations

from gpuplanner.cli.app import app, put
from gpuplanner.cli.options import Given, Json, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame


@app.command()
@takes("tz")
def waits(scenario: ScenarioPath, given: Given, as_json: Json = False) -> None:
    """Say why jobs waited: too few GPUs, not together, wrongly partitioned, behind others, limits."""
    from gpuplanner.study.waits.summary import sum_waits

    found = sum_waits(given.scenario(scenario))
    if as_json:
        show(found.to_dict(), as_json=True)
        return
    put(found.sentence)
    for title, table in (
        ("hours by job size", found.by_size),
        ("hours by team", found.by_team),
        ("hours by partition", found.by_partition),
    ):
        show_frame(table, as_json=False, title=title)
    for tenant, gpus in found.limits:
        put(f"{tenant}: its jobs waited as if it were held to {gpus:g} GPUs")
