"""The first screen of the monthly report: one decision, its frontier, and the nine things one asks about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner import plot
from gpuplanner.hardware import load_gpu_model
from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.report.slices import drawn_layouts
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study import Study
from gpuplanner.study.equal_service.contenders import STATIC, TODAY
from gpuplanner.study.equal_service.tables import rows_of
from gpuplanner.study.equal_service.words import frontier_frame, target_in_words
from gpuplanner.units import HOURS_PER_WEEK

DRAWN = 6
"""Layouts that the first screen has room for."""
TEAMS = 6
BY = {
    "operator": "the GPU operator", "parted": "mig-parted", "nvml": "NVML", "dra": "a DRA driver",
    "autoscaler": "the node autoscaler", "slurm": "Slurm's power saving",
}  # fmt: skip
"""Who performs changes, by the scenario's path."""
SHORT = {
    "static_whole": "leave them whole and always on",
    "static_mig": "cut some once, and leave it",
    "whole_on_off": "give back what stands idle",
    "calendar": "cut them by a calendar",
    "calendar_reserve": "cut them by a calendar, with a reserve of whole ones",
    "cut_on_demand": "cut them when jobs ask for slices",
    "reactive": "cut them on demand and give back what stands idle",
    "commitment_reactive": "keep a part always on, and react with the rest",
    "autoscaled_pools": "keep pools of nodes cut alike, and give back nodes that stand idle",
}


def one_sentence(study: Study) -> str:
    """The decision as a heading."""
    found, fleet = study.promise, _gpus(study.headline["fleet_gpus"], study.headline["board"])
    if found["winner"] is None:
        return "Too little history to promise a saving: change nothing on these figures."
    if found["reason"]:
        return f"Change nothing on these figures: the simulator does not wait as people did on these {fleet}."
    if found["winner"] == TODAY:
        return f"Keep all {fleet} on as they are: nothing holds the target for less."
    best = _winner(found)
    average = "" if found["winner"] in STATIC else f" on average, {best['most_gpus']:,} at most"
    return f"Run {best['gpu_hours'] / HOURS_PER_WEEK:,.0f} of {fleet}{average}: {SHORT[found['winner']]}."


def summary(study: Study) -> Section:
    """The decision with its figures, the frontier, who holds what, and the findings."""
    found = study.promise
    lead = page.paragraph(" ".join(_lead(study)))
    lead += "".join(page.note(text) for text in study.provenance["doubts"])
    hero = page.cards([*_cards(study)])
    left = _frontier(found) if found["today"] else ""
    right = page.facts([*_answers(study)]) + _layouts(study)
    screen = f'{lead}{hero}\n<div class="screen"><div>{left}{_origin(found)}</div><div>{right}</div></div>'
    below = [_teams(study), page.findings(study.findings[:-1])]
    cautions = [page.note(text) for text in study.provenance["cautions"]]
    return Section(page.section("The decision", screen, *below, *cautions))


def _lead(study: Study) -> Iterator[str]:
    found, figures = study.promise, study.headline
    if found["reason"]:
        yield found["reason"]
        return
    if found["winner"] == TODAY:
        yield f"{target_in_words(found)} Today's fleet does that, and no other policy that "
        yield f"{BY[study.scenario.path]} can perform does it for surely fewer GPU-hours."
        return
    fraction = figures["saved_fraction"]
    yield f"{target_in_words(found)} That frees {figures['saved_gpu_hours_per_week']:,.0f} GPU-hours a week"
    yield f"({fraction:.0%} of today's fleet{_money(figures)})."
    yield from _as_good(found)


def _as_good(found: Mapping[str, Any]) -> Iterator[str]:
    """Where a fleet that never changes is as good as one that does, the page says so."""
    if found["winner"] in STATIC:
        yield "A fleet that never changes is as good as any plan here: size it, and leave it."
        return
    base = next(row for row in rows_of(found) if row["policy"] == found["baseline"])
    for row in found["policies"]:
        if row["policy"].startswith("calendar") and row["gpu_hours"] >= base["gpu_hours"]:
            yield (
                f"A calendar of layouts is not: {found['baseline']}, which never changes, needs "
                f"{base['gpu_hours']:,.0f} GPU-hours a week, the {row['policy'].replace('_', ' with ')} "
                f"{row['gpu_hours']:,.0f}."
            )
            return


def _money(figures: Mapping[str, Any]) -> str:
    saved = figures["saved_cost_per_week"]
    return "" if saved is None else f", {Decimal(saved):,.0f} {figures['currency']}"


def _cards(study: Study) -> Iterator[page.Card]:
    found, figures = study.promise, study.headline
    board = figures["board"] or "GPUs"
    best = _winner(found) if found["today"] else None
    if best is None:
        yield page.Card("GPUs", f"{figures['fleet_gpus']:,}", board)
    else:
        low, mean, high = (best[name] and best[name] / HOURS_PER_WEEK for name in _HOURS)
        spread = "" if low is None or low == high else f"95 %: {low:,.0f} to {high:,.0f} · "
        base = next(row for row in rows_of(found) if row["policy"] == found["baseline"])
        plain = f"at most {best['most_gpus']:,} at once · best fixed fleet: {base['gpu_hours'] / HOURS_PER_WEEK:,.0f}"
        yield page.Card("GPUs on, on average, at the target", f"{mean:,.0f} of {figures['fleet_gpus']:,}",
                        f"{board} · {spread}{plain}")  # fmt: skip
    yield _saving_card(found, figures)
    if best is not None:
        yield _wait_card(found, best, figures)
    yield _lasting_card(figures)


_HOURS = ("gpu_hours_low", "gpu_hours", "gpu_hours_high")


def _saving_card(found: Mapping[str, Any], figures: Mapping[str, Any]) -> page.Card:
    title, saved = "Set free a week, at equal service", found["saving_gpu_hours_per_week"]
    if saved is None:
        return page.Card(title, "not stated", "see below")
    low, high = found["saving_low"], found["saving_high"]
    spread = "" if low is None or low == high else f"95 %: {low:,.0f} to {high:,.0f} · "
    worth = "" if figures["saved_cost_low"] is None or not saved else f" · {_worth(figures)}"
    return page.Card(title, f"{saved:,.0f} GPU-hours", f"{spread}against today, all on{worth}")


def _worth(figures: Mapping[str, Any]) -> str:
    return f"{Decimal(figures['saved_cost_per_week']):,.0f} {figures['currency']}"


def _wait_card(found: Mapping[str, Any], best: Mapping[str, Any], figures: Mapping[str, Any]) -> page.Card:
    share, observed = found["target"]["quantile"], figures["observed_wait_mean_min"]
    text = (
        f"target {found['target']['minutes']:g} · today {found['today']['wait_quantile_min']:,.1f}, simulated"
    )
    if observed is not None:
        text += (
            f" · today's mean: {observed:,.1f} observed, {figures['simulated_wait_mean_min']:,.1f} simulated"
        )
    return page.Card(f"{share:.0%} of jobs wait at most", f"{best['wait_quantile_min']:,.1f} min", text)


def _lasting_card(figures: Mapping[str, Any]) -> page.Card:
    title = "Today's fleet lasts until"
    if not figures["lasting_known"]:
        return page.Card(title, "–", "fewer than three weeks of peaks: no forecast of growth")
    early, even = figures["runs_out_early"], figures["runs_out_even"]
    above, weeks = figures["weeks_above_fleet"], figures["weeks_of_peaks"]
    if even is None:
        soon = "none in ten by then" if early is None else f"one in ten: {_day(early)}"
        return page.Card(title, "over a year", f"weekly peaks as they went; {soon}")
    seen = f"{above} of {weeks} weeks had peaks above {figures['installed_gpus']:,} GPUs"
    return page.Card(title, _day(even), f"as likely as not; one in ten: {_day(early)}; {seen}")


def _answers(study: Study) -> Iterator[tuple[str, str]]:
    """What else one asks of a decision, each in a line."""
    found, figures, scenario = study.promise, study.headline, study.scenario
    tenants = f"{figures['tenants']} tenants" if figures["tenants"] != 1 else "one tenant"
    if not found["today"]:
        yield "For whom", f"{figures['jobs']:,} jobs of {tenants}"
        return
    best = _winner(found)
    yield "Switched", _switched(found, best, scenario.path)
    sizes = ", ".join(str(row["size_class"]) for row in best["by_class"])
    yield "For whom", f"all jobs of {tenants}; waits are held by size: {sizes} GPUs"
    yield "From", f"{_day(figures['plan_from'])}, changed by {BY[scenario.path]}"
    yield "How sure", _how_sure(found, best, scenario.replications)
    yield "If it is wrong", _if_wrong(found, best, figures)


def _switched(found: Mapping[str, Any], best: Mapping[str, Any], path: str) -> str:
    knobs = best["knobs"]
    if "idle_minutes" not in knobs:
        return "nothing is switched off and on" if found["winner"] in (TODAY, *STATIC) else "by the calendar"
    unit = "a node" if found["release_unit"] == "node" else "a GPU"
    kept = {
        name: knobs[name] for name in ("idle_nodes_kept", "kept_whole", "reserve_level") if knobs.get(name)
    }
    more = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in kept.items())
    return f"{unit} goes after {knobs['idle_minutes']:g} idle min and comes when jobs wait{more}"


def _how_sure(found: Mapping[str, Any], best: Mapping[str, Any], replications: int) -> str:
    weeks = (
        datetime.fromisoformat(found["judged_to"]) - datetime.fromisoformat(found["judged_from"])
    ).days // 7
    held = [
        row["held_back_weeks_held"] for row in best["by_class"] if row["held_back_weeks_held"] is not None
    ]
    text = f"set before {_day(found['judged_from'])}, judged after it on {replications} drawn weeks"
    if held and weeks:
        text += f"; target held in {min(held) * weeks:.0f} of {weeks} weeks as they were"
    before, realised = found["promised"], found["realised"]
    if before is None or not realised or found["reason"]:
        return text
    came = " and ".join(f"{saved:,.0f}" for saved in realised)
    return f"{text}; {before['low']:,.0f} to {before['high']:,.0f} GPU-hours were promised for these, {came} came"


def _if_wrong(found: Mapping[str, Any], best: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    heavier = found["tuned_for_times_the_jobs"]
    worst = max(best["by_class"], key=lambda row: row["wait_quantile_min"] / max(row["target_min"], 1e-9))
    text = f"set for {heavier:.2f} times the usual work; beyond it jobs of size {worst['size_class']} wait longest"
    text += f" (99 %: {worst['wait_p99_min']:,.0f} min)"
    saved = found["saving_gpu_hours_per_week"]
    return f"{text}; all on again costs {saved:,.0f} GPU h a week{_money(figures)}" if saved else text


def _layouts(study: Study) -> str:
    """How GPUs are cut by the winner, drawn to scale."""
    found, figures = study.promise, study.headline
    if not found["today"] or not figures["board_has_mig"]:
        return ""
    knobs = _winner(found)["knobs"]
    counts: dict[str, int | None] = {name: n for name, n in knobs.items() if name == WHOLE_GPU or ":" in name}
    if "pools" in knobs:
        counts = dict.fromkeys(knobs["pools"].split("; "))
    if not counts:
        return ""
    ranked = dict(sorted(counts.items(), key=lambda one: -(one[1] or 0)))
    shown = dict(list(ranked.items())[:DRAWN])
    more = len(ranked) - len(shown)
    rest = f'<p class="more">and {more} more: see the policies in full</p>' if more else ""
    title = "Pools of nodes, every GPU cut alike" if "pools" in knobs else "GPUs as they are cut"
    return f"<h3>{title}</h3>{drawn_layouts(load_gpu_model(figures['board']), shown)}{rest}"


def _frontier(found: Mapping[str, Any]) -> str:
    frame = frontier_frame(found)
    return page.figure(
        plot.plot_frontier(frame),
        title="Fewest GPU-hours at each wait, by policy",
        alt="Left of the dashed line every size of job waits no longer than it may.",
        table=frame,
    )


def _origin(found: Mapping[str, Any]) -> str:
    """Where the saving comes from, in three rows; nothing where none is stated."""
    saved = found["saving_gpu_hours_per_week"]
    if not saved:
        return ""
    over, same = found["saving_over_static"], found["saving_at_todays_wait"]
    rows = [
        (
            "sizing the fleet",
            saved - over,
            f"{found['baseline']}, fixed, holds the target for less than today's fleet",
        ),
        ("what changes over time", over, f"{found['winner']} over the best fixed fleet"),
        ("of both, at today's waits", same, "no size of job waits longer than today: slack is not booked"),
    ]
    frame = pl.DataFrame(rows, schema=["lever", "gpu_hours", "why"], orient="row")
    return tables.table(frame, caption="Where the saving comes from", formats={"gpu_hours": ",.0f"},
                        headings={"gpu_hours": "GPU h a week"})  # fmt: skip


def _teams(study: Study) -> str:
    """Who held what in the period, and what it cost."""
    held, installed = study.tables["ledger_tenants"], study.headline["installed_gpu_hours"]
    if held.is_empty():
        return ""
    rows = held.head(TEAMS).select(
        "tenant",
        held=pl.col("held_gpu_hours") / max(installed, 1e-9),
        used=pl.col("used") / pl.col("held_gpu_hours")
        if "used" in held.columns
        else pl.lit(None, pl.Float64),
        idle="idle_share",
    )
    costs = study.tables["costs"]
    if costs.height:
        paid = dict(costs.select("SubAccountName", pl.col("EffectiveCost").cast(pl.Float64)).iter_rows())
        rows = rows.with_columns(
            cost=pl.col("tenant").replace_strict(paid, default=None, return_dtype=pl.Float64)
        )
    more = held.height - rows.height
    figures = study.headline
    caption = f"By team, {figures['observed_from'][:10]} to {figures['observed_to'][:10]}: "
    caption += f"{figures['allocated_gpu_hours']:,.0f} of {installed:,.0f} installed GPU-hours were allocated"
    caption += f"; {more} more below" if more > 0 else ""
    formats = {"held": ".0%", "used": ".0%", "idle": ".0%", "cost": ",.0f"}
    headings = {"held": "held, of all", "used": "used, of held", "idle": "held idle",
                "cost": study.headline["currency"] or "cost"}  # fmt: skip
    return tables.table(rows, caption=caption, formats=formats, headings=headings)


def _winner(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(row for row in rows_of(found) if row["policy"] == found["winner"])


def _gpus(count: int, board: str | None) -> str:
    return f"{count:,} {board or 'GPUs'}"


def _day(text: str) -> str:
    day = datetime.fromisoformat(text)
    return f"{day.day} {day:%b %Y}"
