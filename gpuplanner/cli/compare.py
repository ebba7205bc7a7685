"""Commands that compare: ``compare`` policies for the fleet, ``fairness`` among teams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import (
    Given,
    Json,
    Overwrite,
    Quiet,
    ScenarioPath,
    drawable,
    takes,
)
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.decision.record import Comparison, PolicyRow
    from gpuplanner.study.past.pools import FleetPools
    from gpuplanner.study.tenants.advice import QuotaAdvice
    from gpuplanner.study.tenants.fairness import Fairness
    from gpuplanner.study.tenants.tried import SharingTried


@app.command()
@takes(
    "wait_minutes", "wait_quantile", "policies", "path", "projects", "quotas", "quotas_to_try", "gpu_mtbf_hours",
    "gang_slowdowns",
    "board", "seed",
)  # fmt: skip
def compare(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart",
            metavar="FILE",
            callback=drawable,
            help="Draw GPU-hours against minutes: .html, a page of its own with all tables, or .svg, a picture.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare ways to run the fleet: each is tuned to today's service on earlier days, and judged on later ones.

    With quotas, quotas to try or failures, also say which team waits more or less under them on the same weeks; with
    slow-downs of jobs on several nodes, the GPU-hours that these lose by placement.
    Of several GPU models, each by itself, quotas as well.
    """
    from gpuplanner.files.place import require_file
    from gpuplanner.study.fleet_decision import FleetCompared
    from gpuplanner.study.past.pools import pools_of

    if chart is not None:
        require_file(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = pools_of(asked)
    each = compare_pools(pools, quiet=quiet)
    if chart is not None:
        from gpuplanner.report.ways import write_ways

        write_ways(each, chart, title=f"Equal service: {asked.name}", locale=asked.number_locale)
        say(f"written: {chart}")
    more = {name: _also_asked(own) for name, own in pools.pools.items()}
    if as_json:
        told = {
            name: one.to_dict()
            | {
                what: part.to_dicts() if what == "placements" else part.to_dict()
                for what, part in more[name].items()
            }
            for name, one in each.items()
        }
        fleet = FleetCompared(each).to_dict() | {"pools": told}
        show(fleet if pools.several else next(iter(told.values())), as_json=True)
        return
    show_pools(each, quiet=quiet, more=more)


def _also_asked(asked: Scenario) -> dict[str, Any]:
    """Effects of sharing rules, failures and distance on the same weeks, where a scenario states them."""
    from gpuplanner.study.tenants.node_distance import placement_table
    from gpuplanner.study.tenants.tried import is_asked, rules_tried

    found: dict[str, Any] = {"sharing": rules_tried(asked)} if is_asked(asked) else {}
    if asked.gang_slowdowns is not None:
        found["placements"] = placement_table(asked)
    return found


def _show_also_asked(found: Mapping[str, Any]) -> None:
    if "sharing" in found:
        _show_tried(found["sharing"])
    if "placements" in found:
        put("")
        show_frame(
            found["placements"], as_json=False, title="Jobs on several nodes by placement; losses a week"
        )


def compare_pools(fleet: FleetPools, *, quiet: bool) -> dict[str, Comparison]:
    """Compare the ways to run each pool, and say which is at hand."""
    from gpuplanner.study.decision.record import compared

    found = {}
    for name, own in fleet.pools.items():
        if not quiet:
            say(f"comparing ways to run {name} at the same service ...")
        found[name] = compared(own)
    return found


def show_pools(
    each: Mapping[str, Comparison], *, quiet: bool, more: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Print what was found of each pool, with projects and `more` where that was asked, and what it is in all."""
    from gpuplanner.study.fleet_decision import FleetCompared

    several = len(each) > 1
    for name, one in each.items():
        if several or more is None:
            _put_heading(name)
        show_comparison(one, quiet=quiet)
        if more is not None:
            for project in one.projects:
                put(project.sentence)
            _show_also_asked(more[name])
    if several:
        put("")
        put(FleetCompared(each).sentence)


def _put_heading(pool: str) -> None:
    put(f"\n{pool}\n{'=' * len(pool)}")


def show_comparison(found: Comparison, *, quiet: bool) -> None:
    """Print a comparison: the ways as a table, the decision in its sentence, what to do and how sure it is."""
    import polars as pl

    from gpuplanner.study.decision.frames import limit_in_words, target_in_words

    if found.rows:
        rows = [_row(one, found) for one in found.rows]
        show_frame(pl.DataFrame(rows, infer_schema_length=None), as_json=False, title=target_in_words(found))
        put(limit_in_words(found))
    one = found.decision
    put(one.sentence)
    for number, step in enumerate(one.next_steps, start=1):
        put(f"  {number}  {step.text}")
    for text in one.how_sure:
        put(text)
    if quiet:
        return
    for missing in one.missing:
        say(f"missing: {missing.what}: {missing.command}")
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        say(
            f"fitted from {found.tuned_from[:10]}, evaluated from {found.judged_from[:10]} to {found.judged_to[:10]}"
        )


def _show_tried(found: SharingTried) -> None:
    put("")
    show_frame(
        found.teams.select(SHOWN_TRIED), as_json=False,
        title=f"{found.after} instead of {found.before}: GPU-hours a week waited and lost; intervals {found.blocks}",
    )  # fmt: skip
    for text in (found.sentence, *found.notes):
        put(text)


SHOWN_TRIED = (
    "team", "jobs", "wait_before_min", "wait_after_min", "waited_before", "waited_after", "change", "change_low",
    "change_high", "never_before", "never_after", "verdict", "lost_before", "lost_after", "stops_after",
    "failures_after",
)  # fmt: skip


def _row(one: PolicyRow, found: Comparison) -> dict[str, object]:
    from gpuplanner.study.decision.types import TODAY

    why = one.reason or ""
    if one.gpu_hours is not None and not one.meets_target and not why:
        why = "later than the limit"
    return {
        "policy": ("* " if one.policy == found.winner else "  ") + one.policy,
        "gpu_hours": one.gpu_hours_promised,
        "most_gpus": one.most_gpus,
        "added_minutes": one.added_minutes,
        "jobs_later": one.later_share,
        "power_ups": one.power_ups_per_week,
        "meets_limit": "baseline" if one.policy == TODAY else "yes" if one.meets_target else f"no: {why}",
    }


@app.command()
@takes("quotas", "board", "seed")
def fairness(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart",
            metavar="FILE",
            callback=drawable,
            help="Draw what teams held, lent and are owed: .html, a page with all tables, or .svg, a picture.",
        ),
    ] = None,
    ahead: Annotated[
        bool,
        typer.Option(
            "--ahead",
            help="Also look ahead: quotas for each team's stated risk and what each step costs the others, budgets and "
            "when they are used up, intervals between checkpoints.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what each team was due and got: lent, borrowed, owed, starved; why its jobs waited, and its next step.

    Of a fleet of several boards, board by board: quotas count on each.
    """
    from gpuplanner.files.place import require_file
    from gpuplanner.study.past.pools import pools_of
    from gpuplanner.study.tenants.fairness import fairness as account

    if chart is not None:
        require_file(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = pools_of(asked)
    each = {name: account(own) for name, own in pools.pools.items()}
    advice: dict[str, QuotaAdvice] = {}
    if ahead:
        from gpuplanner.study.tenants.advice import quota_advice

        advice = {name: quota_advice(own) for name, own in pools.pools.items()}
    if chart is not None:
        from gpuplanner.report.teams import write_teams

        write_teams(each, chart, ahead=advice, title=f"Teams: {asked.name}", locale=asked.number_locale)
        say(f"written: {chart}")
    if as_json:
        told = {name: one.to_dict() for name, one in each.items()}
        told = {
            name: one | ({"ahead": advice[name].to_dict()} if ahead else {}) for name, one in told.items()
        }
        show({"pools": told} if pools.several else next(iter(told.values())), as_json=True)
        return
    for name, one in each.items():
        if pools.several:
            _put_heading(name)
        _show_account(one, quiet=quiet)
        for title, table in advice[name].told if ahead else ():
            show_frame(table, as_json=False, title=title)


def _show_account(found: Fairness, *, quiet: bool) -> None:
    _show_teams(found)
    if not quiet:
        say(f"entitlements: {found.rules.source}; {found.basis}")
        for note in found.notes:
            say(note)


def _show_teams(found: Fairness) -> None:
    from gpuplanner.metrics.borrowing import NOBODY

    put(found.sentence)
    table = found.teams.select(
        "tenant", "entitled_gpus", got="held_gpu_hours", lent="lent_gpu_hours", borrowed="borrowed_gpu_hours",
        owed="owed_gpu_hours", got_of_due="satisfaction", starved_h="starvation_h", rho="mean_rho",
        later_than_alone="late_share",
    )  # fmt: skip
    show_frame(table, as_json=False, title="Teams, in GPU-hours")
    pairs = found.borrowed.filter(borrower=NOBODY, lender=NOBODY)
    between = found.borrowed.join(pairs, on=["borrower", "lender"], how="anti", maintain_order="left")
    show_frame(
        between.sort("gpu_hours", descending=True, maintain_order=True),
        as_json=False,
        title="Who borrowed from whom; '-' lends what nobody asked for, and borrows what stood idle",
    )
    for row in found.teams.iter_rows(named=True):
        put(f"{row['tenant']}: {row['why']} {row['next_step']}")
