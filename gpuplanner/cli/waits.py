"""The command that says what kept jobs waiting: ``waits``."""

from __future__ import annotations

from gpuplanner.cli.app import app, put
from gpuplanner.cli.options import Given, Json, ScenarioPath, takes
from gpuplanner.cli.show import show, show_frame


@app.command()
@takes("tz")
def waits(scenario: ScenarioPath, given: Given, as_json: Json = False) -> None:
    """Say why jobs waited: too few GPUs, not together, wrongly partitioned, behind others, limits."""
    from gpuplanner.plain import to_plain
    from gpuplanner.study.decision.asked import asked_of
    from gpuplanner.study.past.history import history
    from gpuplanner.study.waits.explain import explain_waits
    from gpuplanner.study.waits.summary import cause_table, sum_waits

    asked = asked_of(history(given.scenario(scenario)))
    found = sum_waits(asked, explain_waits(asked))
    if as_json:
        show(to_plain(found), as_json=True)
        return
    put(found.sentence)
    for by, rows in vars(found.causes).items():
        show_frame(cause_table(rows), as_json=False, title=f"hours waited by {by.replace('_', ' ')}")
    for limit in found.limits:
        put(f"{limit.tenant}: its jobs waited as if it were held to {limit.gpus:g} GPUs")
