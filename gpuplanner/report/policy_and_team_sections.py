"""Page sections on policies and teams, pages of their own, and team scorecards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, escape_controls, first_error_line
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.units_and_number_formats import (
    UNALLOCATED_TEAM,
    count_text,
    localize_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.comparison_record import (
    Comparison,
    describe_windows,
    format_left_out_policies,
    format_limit,
    format_policies_within_limit,
    format_wait_target,
    frontier_frame,
    make_policy_table,
    make_wait_table,
)
from gpuplanner.decision.decision_text import NO_TELEMETRY_TEXT
from gpuplanner.decision.decision_types import TODAY, Decision, TeamRow, has_interval
from gpuplanner.decision.explained_waits import make_cause_table
from gpuplanner.decision.gpu_model_decisions import format_fleet_decision
from gpuplanner.decision.policy_comparison import SHORT_NAMES
from gpuplanner.decision.quota_and_placement_comparison import RulesComparison
from gpuplanner.decision.quota_recommendation import QuotaAdvice
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.report import html_page as page
from gpuplanner.report.first_screen import describe_fleet, list_badges, render_first_screen
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.rightsizing import GPU_HOURS_NOTE

if TYPE_CHECKING:
    from altair.typing import ChartType


SCORECARD_FOLDER_MARK = FolderMark("scorecard.csv", "team,jobs,allocated_gpu_hours", ("cards/*.txt",))
"""Recognizes a folder of team scorecards, which new scorecards may replace."""
SCORECARD_SCHEMA = pl.Schema(
    {
        "team": pl.String(), "jobs": pl.Int64(), "allocated_gpu_hours": pl.Float64(), "idle_gpu_hours": pl.Float64(),
        "idle_share": pl.Float64(), "rank": pl.Int64(), "held_change": pl.Float64(), "idle_share_change": pl.Float64(),
    }
)  # fmt: skip
"""Columns of ``scorecard.csv``; changes are against an earlier month."""


def write_scorecards(
    decision: Decision, folder: Path, month: str, before: Path | None, *, data: str, form: str, locale: str = "en"
) -> None:
    """Write ``scorecard.csv`` and a text card for each team.

    Parameters
    ----------
    decision : Decision
        Figures by team, and missing evidence, as on the page. With ``smallest_group`` in the scenario, small teams are
        one row.
    folder : Path
        Folder that is replaced.
    month : str
        Month of the figures, ``YYYY-MM``.
    before : Path or None
        Scorecard of an earlier month, against which changes are computed.
    data : str
        Dataset folder, for the command that each card prints.
    form : str
        Form of the request lines in that command: sbatch, pod or dra.
    locale : str
        Locale of numbers in the cards.
    """
    table = make_scorecard(decision.teams, None if before is None or not before.exists() else _read_scorecard(before))
    missing = [f"{fact.what}." for fact in decision.missing if fact.what.startswith(NO_TELEMETRY_TEXT)]
    with replace_directory(folder, mark=SCORECARD_FOLDER_MARK) as staging:
        table.write_csv(staging / "scorecard.csv", float_precision=6)
        (staging / "cards").mkdir()
        for number, row in enumerate(table.iter_rows(named=True), start=1):
            slug = re.sub(r"[^a-z0-9]+", "-", str(row["team"]).lower()).strip("-")[:40] or "team"
            team = shlex.quote(str(row["team"]))
            command = f"gpuplanner rightsize {shlex.quote(data)} --team={team} --format {form}"
            text = _render_card(month, table.height, locale, command, missing, **row)
            (staging / "cards" / f"{number:03d}-{slug}.txt").write_text(text, encoding="utf-8")


def make_scorecard(teams: Sequence[TeamRow], before: pl.DataFrame | None = None) -> pl.DataFrame:
    """Rank teams by their idle share, lowest first; teams whose use is not known follow by allocated GPU-hours.

    The idle share is that of the page: idle GPU-hours over those used or idle by telemetry or job records.

    Examples
    --------
    >>> teams = [TeamRow("a", 100.0, 20.0, 4, 60.0), TeamRow("b", 50.0, 5.0, 2, 45.0)]
    >>> make_scorecard([*teams, TeamRow("__unallocated__", 9.0, None, 0)]).select("team", "rank", "idle_share").rows()
    [('b', 1, 0.1), ('a', 2, 0.25)]
    """
    own_columns = [*list(SCORECARD_SCHEMA)[:4], "busy_gpu_hours"]
    rows = [tuple(getattr(row, name) for name in own_columns) for row in teams if row.team != UNALLOCATED_TEAM]
    dtypes = {name: SCORECARD_SCHEMA.get(name, pl.Float64()) for name in own_columns}
    scores = pl.DataFrame(rows, schema=dtypes, orient="row")
    measured = pl.col("idle_gpu_hours") + pl.col("busy_gpu_hours")
    scores = scores.with_columns(idle_share=pl.when(measured > 0).then(pl.col("idle_gpu_hours") / measured))
    previous = pl.DataFrame(schema=SCORECARD_SCHEMA) if before is None else before
    earlier = previous.select("team", held_then="allocated_gpu_hours", idle_then="idle_share")
    return (
        scores.sort("idle_share", "allocated_gpu_hours", "team", descending=[False, True, False], nulls_last=True)
        .with_columns(rank=pl.when(pl.col("idle_share").is_not_null()).then(pl.int_range(1, pl.len() + 1)))
        .join(earlier, on="team", how="left", maintain_order="left")
        .with_columns(
            held_change=pl.col("allocated_gpu_hours") / pl.col("held_then") - 1,
            idle_share_change=pl.col("idle_share") - pl.col("idle_then"),
        )
        .select(list(SCORECARD_SCHEMA))
        .cast(SCORECARD_SCHEMA)
    )


def _read_scorecard(path: Path) -> pl.DataFrame:
    """Read a scorecard of an earlier month."""
    try:
        scorecard = pl.read_csv(path, schema_overrides=dict(SCORECARD_SCHEMA))
        return scorecard.select(list(SCORECARD_SCHEMA)).cast(SCORECARD_SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        todo = "Remove it, or report its month again."
        raise ScenarioError(str(path), "a scorecard", first_error_line(error), todo) from None


def _render_card(
    month: str, teams: int, locale: str, command: str, missing: Sequence[str], *, team: str, jobs: int,
    allocated_gpu_hours: float, idle_gpu_hours: float | None,
    idle_share: float | None, rank: int | None, held_change: float | None, idle_share_change: float | None,
) -> str:  # fmt: skip
    """Write the card of one team: its own figures and its rank, without names or figures of other teams."""
    grown = "" if held_change is None else f", {percent_text(held_change, '+.0f')} on the month before"
    lines = [
        f"{escape_controls(team)}, {month}".replace("\n", " "),
        f"{jobs:,} jobs, {allocated_gpu_hours:,.0f} GPU-hours allocated{grown}.",
    ]
    if idle_share is None or idle_gpu_hours is None:
        lines += [
            "Allocated but idle: not known, no telemetry. With telemetry, sizes follow from the use of your jobs.",
            *missing,
        ]
    else:
        points = 100 * (idle_share_change or 0.0)
        change = "" if idle_share_change is None else f", {points:+.1f} points on the month before"
        lines.append(
            f"Allocated but idle: {idle_gpu_hours:,.0f} GPU-hours, {percent_text(idle_share, '.1f')} of those with "
            f"known use{change}."
        )
        without = allocated_gpu_hours - idle_gpu_hours / idle_share if idle_share else 0.0
        lines += [f"Use not known: {without:,.0f} GPU-hours."] if without >= 0.5 else []
        lines.append(f"Rank {rank} of {teams} teams (lowest idle share first).")
    lines.append(GPU_HOURS_NOTE)
    tip = ["Smaller requests for your jobs, with the risk of each, as lines to paste:", escape_controls(command)]
    return "\n".join([lines[0], *(localize_text(line, locale) for line in lines[1:]), *tip]) + "\n"


_FAIRNESS_TITLE = "Fair share by team"
"""Default heading of the section on fair share."""
_HOURS_FORMAT = ",.0f"
"""Format specification of GPU-hours, such as ``1,234``."""
_TEAM_HEADINGS = read_table_headings("fair share")
"""Headings of the fair-share table, by column."""
_SIMULATED_WAIT_COLUMNS = ("waited_before", "waited_after", "change", "change_low", "change_high")
"""Columns of a rules comparison with hours of waiting before and after, and the interval of their change."""
_SIMULATED_LOSS_COLUMNS = ("lost_before", "lost_after", "stops_after", "failures_after")
"""Columns of a rules comparison with GPU-hours lost, preemptions and failures."""
_NEVER_STARTED_HEADINGS = {"never_before": "never started, before", "never_after": "never started, after"}
"""Headings of the numbers of jobs that never start in the simulation, by column."""
_QUOTA_ADVICE_HEADINGS = read_table_headings("quota advice")
"""Headings of the tables of recommended quotas and checkpoint intervals, by column."""
_QUOTA_ADVICE_FORMATS = dict.fromkeys(("risk", "risk_now", "risk_stated", "risk_then"), ".1%")
"""Number formats of the same tables, by column."""
_RULES_COMPARISON_HEADINGS = {"change_low": "change, low", "change_high": "change, high", **_NEVER_STARTED_HEADINGS}
"""Headings of the table of a rules comparison that differ from the column names."""
_MULTI_NODE_HEADINGS = read_table_headings("multi-node jobs")
"""Headings of the table of multi-node jobs by placement, by column."""
_NEXT_STEP_HEADINGS = {"tenant": "team", "why": "cause of waiting", "next_step": "option"}
"""Headings of the table of causes of waiting and options by team, by column."""


def render_team_section(
    fairness: Fairness, quota_advice: QuotaAdvice | None = None, rules_comparison: RulesComparison | None = None, *,
    title: str = _FAIRNESS_TITLE,
) -> HtmlSection:  # fmt: skip
    """Render fair share by team, causes of waiting, and effects of other quotas.

    Parameters
    ----------
    fairness : Fairness
        Fair share received by each team in the record.
    quota_advice : QuotaAdvice, optional
        Recommended quotas for the next weeks.
    rules_comparison : RulesComparison, optional
        Same weeks simulated under other quotas.
    title : str
        Heading of the section.

    Returns
    -------
    HtmlSection
        Folded section.
    """
    table, advice_tables = fairness.teams, () if quota_advice is None else quota_advice.titled_tables
    accounts, causes = _to_entitlements(fairness), table.select(list(_NEXT_STEP_HEADINGS))
    slowdown, slowdown_text = fairness.mean_slowdown, ""
    if slowdown is not None:
        text = f"Slowdown against a dedicated share (finish-time fairness): mean {slowdown:.2f}; 1 is fair."
        slowdown_text = page.paragraph(text)
    return page.fold(
        title,
        page.paragraph(fairness.shortfall_sentence),
        *(page.note(note) for note in fairness.notes),
        page.figure(
            plots.plot_entitlements(accounts),
            title="GPU-hours allocated and short, by team",
            alt=plots.entitlements_text(accounts),
            numbers=table.select("tenant", "allocated_gpu_hours", "borrowed_gpu_hours", "shortfall_gpu_hours"),
        ),
        page.table(
            table.select(list(_TEAM_HEADINGS)),
            caption=f"Quota and use by team ({fairness.rules.source}; {fairness.basis}). A MIG instance counts as the "
            "larger of its compute and memory share, as in quotas; all other GPU-hours of the page count its compute "
            "slices",
            headings=_TEAM_HEADINGS,
            formats=dict.fromkeys([name for name in _TEAM_HEADINGS if name.endswith("_gpu_hours")], _HOURS_FORMAT)
            | {"fair_share_received": ".0%", "slower_share": ".0%", "mean_slowdown": ".2f", "starved_hours": ",.1f"},
        ),
        page.table(
            causes,
            caption="Causes of waiting by team, and other options. If you apply the recommendation, check the waits "
            "again before you take one of these",
            headings=_NEXT_STEP_HEADINGS,
        ),
        slowdown_text,
        "" if rules_comparison is None else render_rules_comparison(rules_comparison),
        *(
            page.table(table, caption=title, headings=_QUOTA_ADVICE_HEADINGS, formats=_QUOTA_ADVICE_FORMATS)
            for title, table in advice_tables
        ),
        *(() if quota_advice is None else map(page.note, quota_advice.notes)),
        page.figure(
            plots.plot_borrowing(fairness.borrowed),
            title="Who used GPU-hours above the fair share, and which team was short of them",
            alt=plots.borrowing_text(fairness.borrowed),
            numbers=fairness.borrowed.select(
                pl.col("borrower").replace("-", "(idle GPUs)").alias("team above its share"),
                pl.col("lender").replace("-", "(no team)").alias("team short"),
                "gpu_hours",
            ),
        )
        if fairness.borrowed.height
        else "",
        page.figure(
            plots.plot_tenant_shares(fairness.shares),
            title="GPUs allocated over time, by team",
            alt="Mean GPUs allocated to each team, in intervals of 1/120 of the record and at least an hour.",
            numbers=fairness.shares.group_by("tenant", maintain_order=True).agg(
                mean_gpus=pl.col("gpus").mean(), peak_gpus=pl.col("gpus").max()
            ),
            source="tables/team_shares.parquet",
        )
        if fairness.shares["gpus"].max()
        else "",
        about="quota or fair share, allocated, lent, borrowed and shortfall",
    )


def render_rules_comparison(rules_comparison: RulesComparison) -> str:
    """Render queue waits, losses and preemptions by team of the same weeks simulated under two sets of quotas."""
    columns = ("team", "jobs", *_SIMULATED_WAIT_COLUMNS, "verdict", *_SIMULATED_LOSS_COLUMNS, *_NEVER_STARTED_HEADINGS)

    rules, blocks = f"{rules_comparison.after} instead of {rules_comparison.before}", rules_comparison.blocks
    formats = dict.fromkeys((*_SIMULATED_WAIT_COLUMNS, *_SIMULATED_LOSS_COLUMNS), ",.1f")
    effects, caption = rules_comparison.teams.select(columns), f"{rules}, GPU-hours per week (intervals {blocks})"
    table = page.table(effects, caption=caption, headings=_RULES_COMPARISON_HEADINGS, formats=formats)
    return "".join([page.paragraph(rules_comparison.verdict_sentence), table, *map(page.note, rules_comparison.notes)])


def render_placement_section(table: pl.DataFrame | None) -> HtmlSection:
    """Render the GPU-hours that multi-node jobs lose to slow networks, by placement on racks; empty without a table."""
    if table is None:
        return HtmlSection("")
    return page.fold(
        "Multi-node placement",
        page.table(
            table,
            caption="Multi-node jobs by placement (GPU-hours per week)",
            headings=_MULTI_NODE_HEADINGS,
            formats=dict.fromkeys(table.columns[4:-1], ",.1f") | {"slowdown": ",.2f"},
        ),
        page.note(
            "Racks and NVLink domains are from the inventory; a node without one is a rack of its own. Run times "
            "in the data count as run times on adjacent nodes. Means and 80 % interval of replays with arrivals up to "
            "half a minute later."
        ),
        about="GPU-hours lost to slowdown on one node, in one rack, and beyond",
        appendix=True,
    )


def _to_entitlements(fairness: Fairness) -> pl.DataFrame:
    """Make the table by team that :func:`~gpuplanner.report.plot_entitlements` draws, with its column names."""
    return fairness.teams.rename({"borrowed_gpu_hours": "above_gpu_hours", "shortfall_gpu_hours": "deficit_gpu_hours"})


def write_team_page(
    fairness_by_pool: Mapping[str, Fairness], path: str | Path, *, title: str,
    advice_by_pool: Mapping[str, QuotaAdvice], locale: str = "en",
) -> Path:  # fmt: skip
    """Write fair share by team, GPU pool by pool, as a page (``.html``) or a chart (``.svg``).

    Parameters
    ----------
    fairness_by_pool : mapping of str to Fairness
        Fair share by team, for each pool.
    path : str or Path
        File to write; its suffix is the format.
    title : str
        Title of the page.
    advice_by_pool : mapping of str to QuotaAdvice
        Recommended quotas, for pools that have them.
    locale : str
        Locale of numbers and dates.

    Returns
    -------
    Path
        The file.
    """
    several, pools = len(fairness_by_pool) > 1, fairness_by_pool.items()
    sentences = [
        f"{name}: {fairness.shortfall_sentence}" if several else fairness.shortfall_sentence for name, fairness in pools
    ]
    titles = {name: f"{_FAIRNESS_TITLE}: {name}" if several else _FAIRNESS_TITLE for name in fairness_by_pool}
    sections = [render_team_section(fair, advice_by_pool.get(name), title=titles[name]) for name, fair in pools]
    sources = "; ".join(dict.fromkeys(fairness.rules.source for _, fairness in pools))
    starts = "; ".join(dict.fromkeys(fairness.basis for _, fairness in pools))
    return page.write_page_or_picture(
        path,
        page=lambda: page.render_page(
            "".join(sections).replace("<details><summary><h2>", "<details open><summary><h2>"),
            title=title,
            subtitle=" ".join(sentences),
            provenance={"entitlements": sources, "starts": starts, "gpuplanner": __version__},
        ),
        picture=lambda: page.charts_to_titled_svg(
            [plots.plot_entitlements(_to_entitlements(fairness)) for _, fairness in pools], sentences
        ),
        locale=locale,
    )


_POLICY_HEADINGS = read_table_headings("policies")
"""Headings of the policy comparison, by column."""
_WAIT_HEADINGS = read_table_headings("queue waits")
"""Headings of the table of queue waits by job size, by column in the order of the table."""
_CAUSE_HEADINGS = {"waited": "hours of waiting", "wrong_layout": "wrong layout", "queued_behind": "queued behind"}
"""Headings of the table of hours of waiting by cause that differ from the column names."""


Comparisons = Mapping[str, Comparison]
"""Comparison of policies for each GPU pool, by pool name."""


def plot_comparison_frontier(comparison: Comparison) -> ChartType:
    """Plot the frontier of a comparison, with the short names of policies."""
    frame = frontier_frame(comparison)
    best = comparison.recommended_policy
    return plots.plot_frontier(frame, limit=comparison.minutes, best=best, names=SHORT_NAMES)


def render_policy_section(comparison: Comparison, pool: str = "") -> HtmlSection:
    """Render all policies: GPU-hours against added queue wait, and the causes of waiting today."""
    title, about = f"Policy comparison{pool and f' on {pool}'}", _summarize_policies(comparison)
    if not comparison.rows:
        return page.fold(title, page.paragraph("No policy could be simulated."), about=about)
    frame, table = frontier_frame(comparison), _order_policies(comparison)
    note = (
        "Added wait, against today's fleet: growth of the p95 queue wait of the job size where it grows most, or of "
        f"the mean wait of all jobs, if larger. {format_limit(comparison)} {format_left_out_policies(comparison)}"
    ).rstrip()
    if comparison.decision.service and comparison.winner != TODAY:
        note += " Added wait and jobs delayed of the recommended policy are of the whole record, as in the table below."
    chart = ""
    if frame.select("gpu_hours", "added_wait_p95_minutes").n_unique() > 1:
        chart = page.figure(
            page.add_side_padding(plot_comparison_frontier(comparison)),
            title="Provisioned GPU-hours per week and added queue wait",
            alt=f"{plots.frontier_text(frame, names=SHORT_NAMES)} Lower: fewer GPU-hours (training "
            "window); left: shorter waits (evaluation window; of other settings, training window). Other settings of "
            "fewer GPU-hours than the chosen one were rejected: they exceed the maximum added wait on too many single "
            "days, in a further replay or with slow node power-up, or mix layouts on a node and gain less than 2 %. "
            "One with as many GPU-hours as the chosen one is not better: its waits are of other days.",
            numbers=_name_policies(frame),
        )
    return page.fold(
        title,
        chart,
        page.table(
            table.select(name for name in _POLICY_HEADINGS if table[name].count()),
            caption=f"Policies: {describe_windows(comparison)}",
            formats=dict.fromkeys(("of_today", "delayed_share"), ".0%"),
            headings=_POLICY_HEADINGS,
            muted=(~table["performable"]).to_list(),
        ),
        page.note(note),
        *_render_waits(comparison),
        about=about,
    )


def render_wait_section(comparison: Comparison, groups: Sequence[str] = ("job_size", "team")) -> HtmlSection:
    """Render queue waits and the causes of waiting, by job size, team, or both."""
    parts = _render_waits(comparison, groups)
    demand = comparison.decision.demand_text
    about = f"simulated at {demand}" if demand else comparison.main_cause_text
    return page.fold("Causes of waiting", *parts, about=about) if parts else HtmlSection()


def _render_waits(comparison: Comparison, groups: Sequence[str] = ("job_size", "team")) -> list[str]:
    """Render queue waits by job size and hours of waiting by cause; empty without simulated waits."""
    waits, decision = comparison.waits, comparison.decision
    if waits is None:
        return []
    period = describe_windows(comparison, split=False)
    basis = "observed, and simulated for today and after the recommended change"
    table = make_wait_table(comparison).select(list(_WAIT_HEADINGS))
    if decision.demand_text:
        table = table.drop("observed_p95_minutes")
        basis = f"simulated at {decision.demand_text}, for today and after the recommended change"
        period += ", at the recorded demand"
    service = page.table(
        table,
        caption=f"Queue wait by job size [min]: p95 and mean; {basis}. Low and high: 80 % interval of resampled weeks",
        headings=_WAIT_HEADINGS,
        formats=dict.fromkeys(_WAIT_HEADINGS, ",.1f") | dict.fromkeys(("jobs", "jobs_delayed"), ",.0f"),
    )
    tables = (
        page.table(
            make_cause_table(rows),
            caption=f"Hours of waiting by cause and {by.replace('_', ' ')}, {period}",
            # With a decimal where a row has less than ten hours: rounded rows would not sum to their total.
            formats=dict.fromkeys(("waited", *CAUSES), f",.{int(any(0 < row.waited < 10 for row in rows))}f"),
            headings=_CAUSE_HEADINGS | {"name": by.replace("_", " ")},
        )
        for by in groups
        for rows in [getattr(waits.causes, by)]
    )
    limits = "; ".join(f"{limit.tenant} at {limit.amount_text}" for limit in waits.limits)
    has_sizes = bool(decision.service) and "job_size" in groups
    service = f"{service}{_render_waits_outside(decision)}" if has_sizes else ""
    waits_first = service if decision.demand_text else ""  # the causes are of another demand
    return [
        waits_first,
        page.paragraph(comparison.main_cause_text),
        "<details open><summary>Queue waits and their causes, by job size and team</summary>",
        page.paragraph(format_wait_target(comparison)) if has_sizes else "",
        page.paragraph(f"Teams at a limit in the record: {limits}.") if limits else "",
        "" if waits_first else service,
        page.paragraph(jobs_text) if (jobs_text := _describe_jobs_without_waits(decision)) else "",
        *tables,
        "</details>",
    ]


def _render_waits_outside(decision: Decision) -> str:
    """Render the p95 waits that lie outside the interval of the resampled weeks; empty if none does."""
    texts = [
        f"{row.size} {name} {wait_text(wait)} (resampled {wait_text(low)} to {wait_text(high)})"
        for row in decision.service
        for name, wait, low, high in (
            ("today", row.today_p95_minutes, row.today_low, row.today_high),
            ("as recommended", row.recommended_p95_minutes, row.low, row.high),
        )
        if not has_interval(wait, low, high)
    ]
    about = "No interval: resampled weeks take days of the record at random, and wait otherwise"
    return page.note(f"{about}: {', '.join(texts)}.") if texts else ""


def _describe_jobs_without_waits(decision: Decision) -> str:
    """Describe how many jobs of the table by team are in no figure of waits; empty if none."""
    jobs, jobs_with_waits = (sum(row.jobs for row in rows) for rows in (decision.teams, decision.service))
    if not jobs_with_waits or jobs <= jobs_with_waits:
        return ""
    return (
        f"Waits are those of {jobs_with_waits:,} of {jobs:,} jobs: without jobs that started before the record or "
        "ended without a start, services, and requests that no node can serve."
    )


def _summarize_policies(comparison: Comparison) -> str:
    """Summarize in one line how many policies meet the limit, and the GPU-hours of the best one."""
    if comparison.today is None or comparison.today.gpu_hours is None:
        return "no policy could be simulated"
    text = f"{format_policies_within_limit(comparison)}; today {comparison.today.gpu_hours:,.0f} GPU-hours per week"
    best = comparison.find_row(comparison.recommended_policy)
    if best is None or best.gpu_hours_promised is None or best.policy == TODAY:
        return text
    return f"{text}, {SHORT_NAMES.get(best.policy, best.policy)} {best.gpu_hours_promised:,.0f}"


def write_policy_page(comparisons: Comparisons, path: str | Path, *, title: str, locale: str = "en") -> Path:
    """Write the policy comparison of each GPU pool as a page (``.html``) or a chart (``.svg``).

    Parameters
    ----------
    comparisons : mapping of str to Comparison
        Comparison by pool.
    path : str or Path
        File to write; its suffix is the format.
    title : str
        Title of the page.
    locale : str
        Locale of numbers and dates.

    Returns
    -------
    Path
        The file.
    """
    sentences = [comparison.decision.sentence for comparison in comparisons.values()]
    if len(comparisons) > 1:
        sentences = [f"{name}: {text}" for name, text in zip(comparisons, sentences, strict=True)]
    return page.write_page_or_picture(
        path,
        page=lambda: _render_policy_page(comparisons, title),
        picture=lambda: page.charts_to_titled_svg(
            [plot_comparison_frontier(comparison) for comparison in comparisons.values()], sentences
        ),
        locale=locale,
    )


def _render_policy_page(comparisons: Comparisons, title: str) -> str:
    """Render the page of one comparison, or of several GPU pools."""
    first = next(iter(comparisons.values()))
    decision = first.decision
    if len(comparisons) == 1:
        origin = {"actuator": decision.actuator, "target": format_wait_target(first), "days": describe_windows(first)}
        return page.render_page(
            page.section("Recommendation", render_first_screen(first)) + render_policy_section(first),
            title=title,
            subtitle=describe_fleet(decision),
            provenance=origin | {"gpuplanner": __version__},
            decision=decision.sentence,
            badges=list_badges(decision),
        )
    body = list[str]()
    for name, comparison in comparisons.items():
        body.append(page.section(f"{name}: {comparison.decision.sentence}", render_first_screen(comparison)))
        body.append(render_policy_section(comparison, name))
    decisions = {name: comparison.decision for name, comparison in comparisons.items()}
    return page.render_page(
        "".join(body),
        title=title,
        subtitle=count_text(len(comparisons), "pool"),
        provenance={"pools": ", ".join(comparisons), "target": format_wait_target(first), "gpuplanner": __version__},
        decision=format_fleet_decision(decisions),
    )


def _name_policies(frame: pl.DataFrame) -> pl.DataFrame:
    """Replace the keys in the columns ``policy`` and ``kind`` of the frontier by the names that the page shows."""
    kinds = {"tuned": "chosen setting", "setting": "other setting"}
    return frame.with_columns(pl.col("policy").replace(SHORT_NAMES), pl.col("kind").replace(kinds))


def _order_policies(comparison: Comparison) -> pl.DataFrame:
    """Order the table of policies: the recommended one first, then by GPU-hours; not performable ones last."""
    today = None if comparison.today is None else comparison.today.gpu_hours_promised
    limit_word = pl.col("meets_target").replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    table = make_policy_table(comparison).with_columns(
        meets_target=pl.when(pl.col("policy") == TODAY).then(pl.lit("baseline")).otherwise(limit_word),
        of_today=pl.col("gpu_hours_promised") / today if today else pl.lit(None, pl.Float64),
        best=pl.col("policy") != comparison.recommended_policy,
        name=pl.col("policy").replace(SHORT_NAMES),
    )
    hours = pl.col("gpu_hours_promised")
    order = ("best", ~pl.col("performable"), hours.is_null(), hours)
    return table.sort(*order, nulls_last=True, maintain_order=True).with_columns(policy="name")
