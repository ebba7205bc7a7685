"""Several boards, or several clusters: each pool is decided by itself, and told beside the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuplanner.cli.app import put, say
from gpuplanner.cli.show import show, show_frame
from gpuplanner.cli.start import telling
from gpuplanner.errors import GpuPlannerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.scenario import Scenario
    from gpuplanner.study.decision.record import Comparison
    from gpuplanner.study.past.pools import FleetPools


def clusters(files: Sequence[str]) -> bool:
    """Whether several datasets are given, each a cluster."""
    from gpuplanner.inbox.store import MARK

    return len(files) > 1 and all((Path(one) / MARK.file).is_file() for one in files)


def start_pools(
    pools: FleetPools, scenarios: Sequence[Scenario], place: Path, *, as_json: bool, talks: bool, page: bool
) -> None:
    """Decide for each pool, say what comes of all, and write a page with a page of each pool under it."""
    from gpuplanner.study.decision.left_out import warnings_about
    from gpuplanner.study.decision.record import compared
    from gpuplanner.study.fleet_decision import FleetCompared, decision_table

    ways = telling.PlayedWays(talks=talks)
    found: dict[str, Comparison] = {}
    for name, own in pools.pools.items():
        ways.doing(f"tuning {name}")
        found[name] = compared(own)
    ways.done()
    fleet = FleetCompared(found)
    warnings = [
        warning for data in dict.fromkeys(one.data for one in scenarios) for warning in warnings_about(data)
    ]
    decisions = fleet.decisions
    if not as_json:
        put(fleet.sentence)
    if talks:
        telling.warning_lines(warnings)
        show_frame(decision_table(decisions), as_json=False, title="pool by pool")
        for name, one in decisions.items():
            put(f"\n{name}: {one.sentence}")
            for number, step in enumerate(one.next_steps, start=1):
                put(f"  {number}  {step.text}")
    written = _write_pools(pools, scenarios, found, place, talks=talks, page=page)
    if as_json:
        show(fleet.to_dict() | {"warnings": warnings, "folder": str(place)} | written, as_json=True)
    elif talks:
        put(f"\n{'Page':<9} {written['page'] or 'none: ' + str(written['page_reason'])}")


def _write_pools(
    pools: FleetPools,
    scenarios: Sequence[Scenario],
    found: Mapping[str, Comparison],
    place: Path,
    *,
    talks: bool,
    page: bool,
) -> dict[str, str | None]:
    """Write the page, or the files of each pool alone; where the page cannot be made, say why."""
    from gpuplanner.cli.start.folder import pools_into

    title = " + ".join(one.name for one in scenarios)
    reason = "not asked for"
    if page:
        ways = telling.PlayedWays(talks=talks)
        ways.doing("writing the page")
        try:
            pools_into(pools, scenarios, place, title=title)
        except (GpuPlannerError, ImportError) as error:
            reason = str(error)
            if talks:
                say(f"gpuplanner: warning: no page: {error}")
        else:
            return {"page": str(place / "index.html"), "page_reason": None}
        finally:
            ways.done()
    pools_into(pools, scenarios, place, title=title, found=found)
    return {"page": None, "page_reason": reason}
