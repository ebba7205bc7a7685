"""What follows from a comparison: one sentence, the lines to set it up, and the points of its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from gpuplanner.catalog import parameter
from gpuplanner.study.equal_service.contenders import MEANINGS, STATIC, TODAY
from gpuplanner.study.equal_service.weeks import WEEK_HOURS


def decision(found: Mapping[str, Any]) -> str:
    """The decision in a sentence or two.

    Parameters
    ----------
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.

    Examples
    --------
    >>> today = {"policy": "today", "gpu_hours": 10752.0}
    >>> decision({"winner": "today", "today": today, "policies": [], "reason": None, "baseline": "today"})
    'Change nothing: no policy that this path can perform holds the target for fewer GPU-hours.'
    """
    if found["reason"]:
        return f"No saving is stated. {found['reason']}"
    winner = found["winner"]
    if winner == TODAY:
        return "Change nothing: no policy that this path can perform holds the target for fewer GPU-hours."
    best = next(one for one in found["policies"] if one["policy"] == winner)
    low, high = found["saving_low"], found["saving_high"]
    spread = "" if low is None else f" ({low:,.0f} to {high:,.0f})"
    text = (
        f"{winner}: {MEANINGS[winner]}. It needs {best['gpu_hours']:,.0f} GPU-hours a week instead of "
        f"{found['today']['gpu_hours']:,.0f}, {found['saving_gpu_hours_per_week']:,.0f}{spread} less, at the same "
        f"service; that is {best['gpu_hours'] / WEEK_HOURS:,.0f} GPUs on average, {best['most_gpus']:,} at most."
    )
    if winner in STATIC:
        return f"{text} Nothing that changes over time is cheaper: size the fleet and leave it."
    more = f"it saves {found['saving_over_static']:,.0f}"
    return f"{text} Against {found['baseline']}, the cheapest fleet that never changes, {more}."


def what_to_set(found: Mapping[str, Any], path: str) -> Iterator[str]:
    """Settings of the winner in the words of what performs it.

    Yields
    ------
    str
        A line for Slurm's power saving or a node autoscaler; the counts of a mix of layouts.

    Examples
    --------
    >>> knobs = {"idle_minutes": 15, "reserve_level": 0.9, "drain_minutes": 15}
    >>> rows = [{"policy": "whole_on_off", "knobs": knobs}]
    >>> won = {"winner": "whole_on_off", "policies": rows, "reason": None}
    >>> for line in what_to_set(won, "slurm"): print(line)
    slurm.conf: SuspendTime=900 ResumeTimeout=300
    """
    mine = [one["knobs"] for one in found["policies"] if one["policy"] == found["winner"]]
    if not mine or found["reason"]:
        return
    knobs, lead = mine[0], parameter("node_lead_s").value
    if "idle_minutes" in knobs and path == "slurm":
        yield f"slurm.conf: SuspendTime={knobs['idle_minutes'] * 60} ResumeTimeout={lead:.0f}"
    elif "idle_minutes" in knobs:
        yield f"cluster-autoscaler: --scale-down-unneeded-time={knobs['idle_minutes']}m"
    for layout in str(knobs.get("pools", "")).split("; ") if "pools" in knobs else ():
        yield f"a pool of nodes: {'not cut' if layout == 'gpu' else f'every GPU {layout}'}"
    layouts = {name: count for name, count in knobs.items() if name == "gpu" or ":" in name}
    for layout, count in layouts.items():
        yield f"{count} GPUs: {'not cut' if layout == 'gpu' else layout}"


def how_sure(found: Mapping[str, Any]) -> Iterator[str]:
    """What the saving rests on: promised and realised, assumptions, hindsight and growth, a sentence each.

    Yields
    ------
    str
        Only what the comparison has.

    Examples
    --------
    >>> promised = {"saving": 6400.0, "low": 5400.0, "high": 7400.0, "level": 0.9, "assumptions": [],
    ...             "draw_of_days": [5500.0, 7300.0], "forecasts_replayed": 0, "forecast_errors": [6400.0, 6400.0]}
    >>> for line in how_sure({"promised": promised, "realised": [6300.0, 4900.0]}): print(line)
    Promised from the weeks before: 6,400 GPU-hours saved in a week, 5,400 to 7,400 in 9 of 10; realised: 6,300; 4,900.
    The draw of days alone gives 5,500 to 7,300.
    """
    hold = [TODAY, *(row["policy"] for row in found.get("policies", ()) if row["meets_target"])]
    alike = [
        row["policy"]
        for row in found.get("told_apart", ())
        if row["unit"] == "GPU h" and row["verdict"] == "not told apart" and row["policy"] in hold
    ]
    if alike:
        yield (
            f"By GPU-hours {found['winner']} is not told apart from {', '.join(alike)} on these weeks (95 %, Holm): "
            "of these take the one that is simplest to run."
        )
    promised = found.get("promised")
    if promised:
        realised = "; ".join(f"{saved:,.0f}" for saved in found["realised"]) or "no whole week was kept back"
        yield (
            f"Promised from the weeks before: {promised['saving']:,.0f} GPU-hours saved in a week, "
            f"{promised['low']:,.0f} to {promised['high']:,.0f} in 9 of 10; realised: {realised}."
        )
        if promised["draw_of_days"] != [promised["saving"]] * 2:
            draw, errors = (
                f"{low:,.0f} to {high:,.0f}"
                for low, high in (promised["draw_of_days"], promised["forecast_errors"])
            )
            replayed = promised["forecasts_replayed"]
            more = f"; the errors of {replayed} past forecasts alone {errors}" if replayed else ""
            yield f"The draw of days alone gives {draw}{more}."
        for row in promised["assumptions"]:
            held = "" if row["holds_target"] else ", and the target is missed"
            yield f"With {row['assumption']} {row['value']:.2g} it would be {row['saving']:,.0f}{held}."
    past = found.get("hindsight")
    if past and past["ratio"] is not None:
        yield (
            f"In hindsight {past['policy']} would need {past['gpu_hours_in_hindsight']:,.0f} GPU-hours; it needs "
            f"{past['ratio']:.2f} times that. The best fleet that never changes would need "
            f"{past['static_gpu_hours']:,.0f}."
        )
    for row in found.get("policies", ()):
        why = "; ".join(f"{part['jobs']:,} {part['reason']}" for part in row["misfits"])
        if why:
            yield f"Under {row['policy']} some jobs can never start: {why}."
    for row in found.get("growth", ()):
        last = row["todays_fleet_until"]
        until = (
            "below half of today's arrivals" if last is None else f"up to {last:.2f} times today's arrivals"
        )
        yield f"Run as {row['policy']}, today's GPUs hold the target {until}."


def out_of_reach(found: Mapping[str, Any]) -> Iterator[str]:
    """For classes that today's fleet does not start within the stated minutes: the least wait that any policy reaches.

    Yields
    ------
    str
        A sentence a class; what fleet would do follows where growth was asked for.

    Examples
    --------
    >>> classes = [{"size_class": "5-8", "minutes": 508.0}]
    >>> rows = [{"policy": name, "by_class": [{"size_class": "5-8", "wait_quantile_min": wait}]}
    ...         for name, wait in (("today", 508.0), ("reactive", 31.0))]
    >>> target = {"quantile": 0.95, "minutes": 10.0, "by_class": classes}
    >>> for line in out_of_reach({"target": target, "today": rows[0], "policies": rows[1:]}): print(line)
    5-8: no policy on this fleet starts 95% within 10 min; the least is 31 min, by reactive.
    """
    target = found["target"]
    rows = [one for one in (found["today"], *found["policies"]) if one]
    for place, part in enumerate(target["by_class"]):
        if part["minutes"] <= target["minutes"]:
            continue
        wait, policy = min((row["by_class"][place]["wait_quantile_min"], row["policy"]) for row in rows)
        said = f"{part['size_class']}: "
        if wait > target["minutes"]:
            said += (
                f"no policy on this fleet starts {target['quantile']:.0%} within {target['minutes']:g} min;"
            )
            yield f"{said} the least is {wait:,.0f} min, by {policy}."
        else:
            said += f"today's fleet does not start {target['quantile']:.0%} within {target['minutes']:g} min;"
            yield f"{said} {policy} does."
    for row in found.get("growth", ()):
        needed = row["gpus_for_stated_wait"]
        if row["policy"] == "today":
            more = "none of up to four times its size does" if needed is None else f"{needed:,} GPUs would"
            yield f"Run as today, every class within {target['minutes']:g} min: {more}."


def target_in_words(found: Mapping[str, Any]) -> str:
    """The service, with the classes that wait longer today than was asked for.

    Examples
    --------
    >>> classes = [{"size_class": "1", "minutes": 10.0}, {"size_class": "5-8", "minutes": 508.0}]
    >>> target_in_words({"target": {"quantile": 0.95, "minutes": 10.0, "by_class": classes}})
    '95% of the jobs of each size start within 10 min; those of size 5-8 within 8.47 h, as they do today.'
    """
    target = found["target"]
    by = target.get("by", "size")
    longer = [
        f"those of {by} {row['size_class']} within {_time(row['minutes'])}"
        for row in target["by_class"]
        if row["minutes"] > target["minutes"]
    ]
    text = f"{target['quantile']:.0%} of the jobs of each {by} start within {target['minutes']:g} min"
    return f"{text}; {', '.join(longer)}, as they do today." if longer else f"{text}."


def _time(minutes: float) -> str:
    return f"{minutes / 60:.3g} h" if minutes >= 120 else f"{minutes:.3g} min"


def frontier_frame(found: Mapping[str, Any], pinned: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Points of a comparison as :func:`gpuplanner.plot.plot_frontier` takes them, today's fleet first.

    Parameters
    ----------
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`; no points if nothing was compared.
    pinned : mapping, optional
        Another one, to stand beside it; each wait is over the target of its own.
    """
    rows = [(found["today"], "today")] if found["today"] else []
    rows += [(row, "tuned") for row in found["policies"]]
    rows += [(row, "setting") for row in found["frontier"] if row["policy"] != TODAY]
    if pinned is not None and pinned["today"]:
        rows += [(row, "pinned") for row in (pinned["today"], *pinned["policies"])]
    numbers = ("gpu_hours", "wait_over_target")
    schema = {"policy": pl.String} | dict.fromkeys(numbers, pl.Float64) | {"kind": pl.String}
    points = [(row["policy"], *(row[name] for name in numbers), kind) for row, kind in rows]
    return pl.DataFrame(points, schema=schema, orient="row")
