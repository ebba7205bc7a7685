"""The page of a fleet of several boards or clusters: what to do in all, pool by pool, with a page for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import quote

import polars as pl

from gpuplanner import plot
from gpuplanner.files.folder import replaced_directory
from gpuplanner.files.text import to_json
from gpuplanner.planner.several_pools import fleet_to_json
from gpuplanner.report import page
from gpuplanner.report.first_screen import warning_list
from gpuplanner.report.render import MARK, write_report
from gpuplanner.report.section import Section
from gpuplanner.schemas.vocabulary import BUCKETS
from gpuplanner.study.study import Study
from gpuplanner.study.decision.left_out import warnings_about
from gpuplanner.study.decision.types import Decision
from gpuplanner.study.fleet_decision import FleetCompared, decision_table, fleet_sentence
from gpuplanner.study.future.fleet_plans import FleetPlanned, fleet_planned
from gpuplanner.study.future.plans import Planned
from gpuplanner.study.past.accounts import (ledger)
from gpuplanner.study.past.pools import FleetPools, pool_table
from gpuplanner.study.tenants.fairness import Fairness
from gpuplanner.units import counted

_MOVED = {"instances_for_one": ".2g", "instances": ",.2f", "instances_there": ",.2f"}
FOLDER = "pools"
"""Where the pools have their own pages, each in a folder of its name."""
MOST_POOLS = 20
_FORMATS = {
    "objective": ",.0f",
    "bound": ",.0f",
    "gap": ".2%",
    "mean_gpus": ",.1f",
    "unmet_gpu_hours": ",.1f",
}
_HEADINGS = {
    "pool": "pool", "gpus": "GPUs", "needed": "needed at once", "cut_gpus": "of them cut", "action": "what to do",
    "saved_gpu_hours": "saved a week, GPU h", "objective": "cost, GPU h",
    "bound": "no plan costs less than", "mean_gpus": "on, mean", "most_gpus": "on, most",
    "unmet_gpu_hours": "not met, GPU h", "changes": "GPUs cut anew", "of": "asked of", "to": "served by",
    "tenant": "team", "held_gpu_hours": "got, GPU h", "owed_gpu_hours": "owed, GPU h", "why": "why its jobs waited",
    "next_step": "next step", "instances_for_one": "there for one", "instances": "instances, mean",
    "instances_there": "there, mean",
}  # fmt: skip


def write_fleet_report(
    fleet: FleetPools,
    title: str,
    out: str | Path,
    *,
    inputs: Iterable[str | Path] = (),
    tell: Callable[[str], object] | None = None,
) -> FleetCompared:
    """Write the page of a fleet, with a whole report of each pool under it, in one step.

    ``index.html`` says what to do in all, ``pools/NAME/`` is what :func:`~gpuplanner.report.render.write_report` writes
    of the pool by itself, ``fleet.json`` has the figures and ``plan.json`` the plans of all pools.
    """
    with replaced_directory(out, mark=MARK, inputs=inputs) as folder:
        studies = {}
        (folder / FOLDER).mkdir()
        for name, own in fleet.pools.items():
            if tell is not None:
                tell(name)
            studies[name] = write_report(own, folder / FOLDER / folder_of(name))
        planned = planned_of(fleet, studies)
        (folder / "index.html").write_text(fleet_page(fleet, studies, planned, title=title), encoding="utf-8")
        found = FleetCompared({name: study.comparison for name, study in studies.items()})
        plans = None if planned is None else planned.table.to_dicts()
        (folder / "fleet.json").write_text(to_json(found.to_dict() | {"plans": plans}), encoding="utf-8")
        if planned is not None:
            (folder / "plan.json").write_text(fleet_to_json(planned.plan, planned.problems), encoding="utf-8")
    return found


def folder_of(name: str) -> str:
    """Folder of a pool: its name, whatever may stand in it.

    Examples
    --------
    >>> folder_of("A100-40GB"), folder_of("west/A100|T4"), folder_of("..")
    ('A100-40GB', 'west+A100%7CT4', '%2E%2E')
    """
    text = quote(name.replace("/", "+"), safe="+")
    return text if text.strip(".") else text.replace(".", "%2E")


def planned_of(fleet: FleetPools, studies: Mapping[str, Study]) -> FleetPlanned | None:
    """The plans of the studies as one, with demand sent to substitute models; None where one of them has none."""
    found = {
        name: Planned(study.problem, study.plan)
        for name, study in studies.items()
        if study.plan is not None and study.problem is not None
    }
    same = {(one.problem.slot_start, one.problem.n_slots) for one in found.values()}
    return fleet_planned(fleet, known_plans=found) if len(found) == len(studies) and len(same) == 1 else None


def fleet_page(
    fleet: FleetPools, studies: Mapping[str, Study], planned: FleetPlanned | None, *, title: str
) -> str:
    """The page of a fleet."""
    decisions = {name: study.decision for name, study in studies.items()}
    notes = [page.note(text) for text in _idle(fleet)]
    sources = dict.fromkeys(study.scenario.data for study in studies.values())
    warned = warning_list([warning for data in sources for warning in warnings_about(data)])
    parts = [
        page.section("The decision", warned, _by_pool(decisions), _decisions(decisions), *notes),
        _next_steps(decisions),
        _where_time_went(fleet),
    ]
    if planned is not None:
        parts.append(_plans(planned))
    parts += _teams(studies)
    parts.append(_who_is_there(fleet))
    first = next(iter(studies.values()))
    gpus = sum(one.fleet_gpus for one in decisions.values())
    return page.render_page(
        "\n".join(parts),
        title=f"GPU report: {title}",
        subtitle=f"{gpus:,} GPUs in {counted(len(studies), 'pool')}",
        decision=fleet_sentence(decisions),
        provenance={"pools": ", ".join(studies), "made by": first.provenance.gpuplanner},
        locale=first.scenario.number_locale,
    )


def decided_fleet(found: FleetCompared) -> Section:
    """The decision on the whole fleet without pages around it: for notebooks."""
    parts = [page.paragraph(found.sentence), _decisions(found.decisions)]
    return Section(page.section("The decision, pool by pool", *parts))


def _decisions(decisions: Mapping[str, Decision]) -> str:
    return page.table(
        decision_table(decisions), caption="Decisions, pool by pool", headings=_HEADINGS,
        formats={"saved_gpu_hours": ",.0f"},
    )  # fmt: skip


def _by_pool(decisions: Mapping[str, Decision]) -> str:
    """A line for each pool, which leads to its page."""
    rows = [f"<li>{_link(name)}: {escape(one.sentence)}</li>" for name, one in decisions.items()]
    return f"<ul>{''.join(rows)}</ul>"


def _link(name: str) -> str:
    return f'<a href="{FOLDER}/{quote(folder_of(name))}/index.html">{escape(name)}</a>'


def _next_steps(decisions: Mapping[str, Decision]) -> Section:
    """What to do, pool by pool; the files of each lie in its folder."""
    parts = []
    for name, one in decisions.items():
        steps = "".join(f"<li>{escape(step.text)}</li>" for step in one.next_steps) or "<li>nothing</li>"
        parts.append(f"<h3>{_link(name)}</h3><ol>{steps}</ol>")
    return page.section("Next steps", *parts)


def _where_time_went(fleet: FleetPools) -> Section:
    """GPU-hours of each pool by bucket, from the ledger that the pools share."""
    hours = fleet_hours(fleet)
    shown = hours.group_by("tenant", "bucket").agg(pl.col("gpu_hours").sum())
    wide = shown.pivot("bucket", index="tenant", values="gpu_hours", sort_columns=False)
    order = [name for name in BUCKETS if name in wide.columns]
    wide = wide.select(pl.col("tenant").alias("pool"), *order, installed=pl.sum_horizontal(*order)).fill_null(
        0.0
    )
    wide = wide.sort("installed", "pool", descending=[True, False])
    free = hours.filter(bucket="free").group_by("tenant").agg(pl.col("gpu_hours").sum()).sort("gpu_hours")
    most = free.tail(1).rows()
    said = (
        f"{most[0][0]} has most free time: {most[0][1]:,.0f} GPU-hours." if most else "No GPU-hour was free."
    )
    return page.section(
        "Where time went, board by board",
        page.figure(
            plot.plot_ledger_tenants(hours, top=MOST_POOLS), title="Installed GPU-hours by pool", alt=said,
        ),
        page.table(wide, caption="GPU-hours by pool", formats=dict.fromkeys(wide.columns[1:], ",.0f")),
    )  # fmt: skip


def fleet_hours(fleet: FleetPools) -> pl.DataFrame:
    """Ledger rows of all boards, ``tenant`` being the pool, or the board that no job held."""
    parts, read = [], set()
    for name, own in fleet.pools.items():
        if own.data in read:
            continue
        read.add(own.data)
        prefix = name.rpartition("/")[0]
        alone = name.rpartition("/")[2] if len(fleet.pools) == 1 else "all boards"
        board = pl.col("gpu_model").cast(pl.String).fill_null(alone)
        tenant = pl.concat_str(pl.lit(f"{prefix}/" if prefix else ""), board)
        parts.append(ledger(own).select("bucket", "gpu_hours", tenant=tenant))
    return pl.concat(parts)


def _plans(planned: FleetPlanned) -> Section:
    fleet = planned.plan
    text = "No pool has a plan."
    if fleet.objective is not None and fleet.bound is not None and fleet.gap is not None:
        text = (
            f"In all the plans cost {fleet.objective:,.0f} GPU-hours, and no plans of these pools cost less than "
            f"{fleet.bound:,.0f}: {fleet.gap:.2%} at most lie between. "
            + (planned.sentence or "Demand stays with the GPU model that it ran on.")
        )
    table = page.table(
        planned.table, caption="Plans by pool, and their sum", headings=_HEADINGS, formats=_FORMATS
    )
    moved = [
        page.table(planned.moved, caption="Demand served by another GPU model", headings=_HEADINGS, formats=_MOVED),
        page.note("plan.json has these plans; the page of each pool has the plan of all that ran on it."),
    ]  # fmt: skip
    return page.section(
        "Plans, board by board", page.paragraph(text), table, *(moved if planned.transfers else ())
    )


def _teams(studies: Mapping[str, Study]) -> list[Section]:
    """What each team was due and got on each board, why its jobs waited there, and its next step."""
    found = {name: Fairness.of_tables(study.tables) for name, study in studies.items()}
    rows = [
        one.teams.filter(pl.col("jobs") > 0).select(
            "tenant", pl.lit(name).alias("pool"), "held_gpu_hours", "owed_gpu_hours", "why", "next_step"
        )
        for name, one in found.items()
        if one is not None
    ]
    if not rows:
        return []
    said = page.note(
        "A quota that names no board counts on each; what each team was due and lent stands on the page of the board."
    )
    table = page.table(
        pl.concat(rows).sort("tenant", "pool"), caption="Teams, board by board", headings=_HEADINGS,
        formats={"held_gpu_hours": ",.0f", "owed_gpu_hours": ",.0f"},
    )  # fmt: skip
    return [page.section("Why jobs waited, team by team", table, said)]


def _who_is_there(fleet: FleetPools) -> Section:
    return page.section(
        "The fleet", page.table(pool_table(fleet), caption="Nodes, GPUs and jobs by pool", headings=_HEADINGS)
    )


def _idle(fleet: FleetPools) -> list[str]:
    listed = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    return (
        [f"No job held {listed}: nothing is planned for them, and all of their time is free."]
        if listed
        else []
    )
