"""Quotas, weights, tiers, preemption and time windows from ``quotas.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.errors import ScenarioError, examples, nearest_names
from gpuplanner.core.scenario import Scenario, parse_change_windows
from gpuplanner.core.serialization import make_file_error, read_choice, read_list, read_number, read_yaml, require_keys
from gpuplanner.hardware.catalog import match_gpu_models
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.planner.fleet_limits import Quota
from gpuplanner.usage.fair_share import entitled_by_shares
from gpuplanner.usage.job_history import History

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_PART = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?)?\s*([\d:-]+)?")


def week_hours_of(text: str) -> list[tuple[int, int, int]] | None:
    """Day of the week, minute of that day and length in minutes of all hours; None if the text is something else.

    Examples
    --------
    >>> week_hours_of("fri-sat 22:30-01:00, sun"), week_hours_of("nights")
    ([(4, 1350, 150), (5, 1350, 150), (6, 0, 1440)], None)
    """
    found = []
    for part in text.lower().split(","):
        hit = _PART.fullmatch(part.strip())
        if hit is None or not any(hit.groups()):
            return None
        first, last, times = hit[1], hit[2] or hit[1], hit[3]
        spans = [(0, 24 * 60)] if times is None else parse_change_windows(times)
        if spans is None or (first is not None and not {first, last} <= set(DAYS)):
            return None
        days = range(7)
        if first is not None:
            begin = DAYS.index(first)
            days = range(begin, begin + (DAYS.index(last) - begin) % 7 + 1)
        found += [(day % 7, minute, minutes) for day in days for minute, minutes in spans if minutes]
    return found or None


def openings(text: str, tz: str, zero: datetime, seen_s: float) -> tuple[float, ...]:
    """When hours begin and end, in turn, in seconds from an instant on; where they meet they are one.

    The last have no end: they begin some weeks after what was seen.

    Examples
    --------
    >>> from datetime import UTC
    >>> found = openings("20:00-06:00", "Europe/Berlin", datetime(2026, 3, 27, tzinfo=UTC), 4 * 86_400.0)
    >>> [(begin / 3600, end / 3600) for begin, end in zip(found[:6:2], found[1:6:2])]  # the clocks go on in the second
    [(-5.0, 5.0), (19.0, 29.0), (43.0, 52.0)]
    """
    zone, spells = ZoneInfo(tz), []
    local = zero.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    # Four weeks after what was seen, hours no longer end: who still waits then starts.
    for day in range(-1, int(seen_s // 86_400) + 28 + 8):
        today = local + timedelta(days=day)
        for weekday, minute, minutes in week_hours_of(text) or ():
            if today.weekday() == weekday:
                begin = today + timedelta(minutes=minute)
                ends = (begin, begin + timedelta(minutes=minutes))
                spells.append(tuple((one.replace(tzinfo=zone) - zero).total_seconds() for one in ends))
    found: list[list[float]] = []
    for begin_s, end_s in sorted(spells):
        if found and begin_s <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end_s)
        else:
            found.append([begin_s, end_s])
    return tuple(instant for spell in found for instant in spell)[:-1]


TOP = ("teams", "cohorts", "tiers", "order", "half_life_days", "preemption", "start_hours")
TEAM = ("name", "gpu_model", "gpus", "borrow", "lend", "cohort", "weight", "tier", "gpu_hours_per_month", "risk")
COHORT = ("name", "gpu_model", "parent", "gpus", "borrow", "lend")
HOURS = ("team", "tier", "hours")
MOST_GPUS = 1e7


@dataclass(frozen=True)
class TeamQuota:
    """What a team or a cohort has, in GPUs; None: no limit, or for ``gpus`` no quota at all.

    - ``gpus``: Its own, also called nominal.
    - ``borrow``, ``lend``: Of others at most, and to others at most.
    - ``cohort``: Within which it lends and borrows; of a cohort the one above it.
    - ``weight``: Its weight of the fair share, and of GPUs without a quota.
    - ``tier``: Of all its jobs; None: as its jobs say.
    - ``gpu_hours_per_month``: Its budget.
    - ``risk``: Share of the hours in which its own GPUs may be too few, for what quota it should have.
    - ``gpu_model``: Whose GPUs these are; None: of each board that no other row of the name is for.
    """

    name: str
    gpus: float | None = None
    borrow: float | None = None
    lend: float | None = None
    cohort: str | None = None
    weight: float = 1.0
    tier: str | None = None
    gpu_hours_per_month: float | None = None
    risk: float | None = None
    gpu_model: str | None = None


@dataclass(frozen=True)
class Stopping:
    """When running jobs are stopped for others, and what that costs them.

    - ``by_tier``: Jobs of a less urgent tier are stopped for those that do not fit.
    - ``reclaim``: Jobs of teams that borrow are stopped for a team that asks for its own.
    - ``min_run_minutes``: Who has run for less is spared.
    - ``restart_minutes``: What a stopped job needs on top when it starts again.
    - ``checkpoint_minutes``: Work between two checkpoints; 0: nothing is lost; None: all of it is.
    - ``checkpoint_write_seconds``: Time that writing one takes.
    """

    by_tier: bool = False
    reclaim: bool = False
    min_run_minutes: float = 0.0
    restart_minutes: float = 0.0
    checkpoint_minutes: float | None = None
    checkpoint_write_seconds: float = 0.0


STOPPING = tuple(one.name for one in fields(Stopping))


@dataclass(frozen=True)
class StartHours:
    """Hours of the week in which jobs of a team, or of a tier, may start; one for their team goes before."""

    hours: str
    team: str | None = None
    tier: str | None = None


@dataclass(frozen=True)
class SharingRules:
    """How teams share a fleet.

    - ``teams``, ``cohorts``: Quotas; teams that are not named have none.
    - ``tiers``: Names, the most urgent first; jobs of others come last.
    - ``order``: Who is first within a tier: who came first, or the team that used least for its weight.
    - ``half_life_days``: In which use is half forgotten.
    - ``stopping``: Preemption.
    - ``start_hours``: When jobs may start that may not at any time, in local time.
    - ``source``: Where they are from, in words.
    """

    teams: tuple[TeamQuota, ...] = ()
    cohorts: tuple[TeamQuota, ...] = ()
    tiers: tuple[str, ...] = ()
    order: str = "fifo"
    half_life_days: float = 7.0
    stopping: Stopping = field(default_factory=Stopping)
    source: str = "no quota is stated"
    start_hours: tuple[StartHours, ...] = ()

    def of(self, team: str) -> TeamQuota:
        """What a team has; nothing is limited where it is not named."""
        return next((one for one in self.teams if one.name == team), TeamQuota(team))

    def on(self, gpu_model: str, boards: Iterable[str] = ()) -> SharingRules:
        """The rules for the GPUs of one board; a row for a board that is not among `boards` is a ``ScenarioError``.

        Examples
        --------
        >>> rules = SharingRules((TeamQuota("a", 8.0), TeamQuota("a", 2.0, gpu_model="t4")))
        >>> [(one.name, one.gpus) for one in rules.on("T4", ["L4"]).teams]
        [('a', 2.0)]
        """
        there = [gpu_model, *boards]
        for one in (*self.teams, *self.cohorts):
            if one.gpu_model is not None and not any(is_board(one.gpu_model, name) for name in there):
                got = f"{one.gpu_model!r} for {one.name!r}"
                todo = "Name it as gpuplanner describe does, or leave it out."
                raise ScenarioError(self.source, f"a GPU model of the fleet ({examples(there)})", got, todo)
        teams, cohorts = (_of_board(rows, gpu_model) for rows in (self.teams, self.cohorts))
        return replace(self, teams=teams, cohorts=cohorts)

    @property
    def stated(self) -> bool:
        """Whether any team has a quota."""
        return any(one.gpus is not None for one in self.teams)


def read_quotas(path: str | Path) -> SharingRules:
    r"""Read ``quotas.yaml`` strictly: what is wrong is named with its line.

    ``teams`` is a list of ``name`` and, where they apply, ``gpu_model``, ``gpus``, ``borrow``, ``lend``, ``cohort``,
    ``weight``, ``tier``, ``gpu_hours_per_month`` and ``risk``; ``cohorts`` one of ``name``, ``gpu_model``, ``parent``,
    ``gpus``, ``borrow`` and ``lend``. A name may have a row for each board; one without counts on each board that no
    other is for. ``tiers`` a list of names, the most urgent first; ``order`` fifo or fair, with ``half_life_days``;
    ``preemption`` has ``by_tier``, ``reclaim``, ``min_run_minutes``, ``restart_minutes``, ``checkpoint_minutes`` and
    ``checkpoint_write_seconds``; ``start_hours`` is a list of a ``team`` or ``tier`` and the ``hours``, in the time
    zone of the scenario, in which its jobs may start, such as ``mon-fri 20:00-06:00, sat-sun``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "quotas.yaml"
    ...     _ = file.write_text("teams:\n- {name: nlp, gpus: 32, cohort: all}\n- {name: web, gpus: 8, weight: 0}\n")
    ...     read_quotas(file)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: quotas.yaml, line 3: expected weight, a number from 1e-06 to 1e+06; got 0. ...
    """
    file = Path(path).name
    top = require_keys(read_yaml(path), TOP, f"{file}, the file", 1)
    tiers = tuple(str(one) for one in top.get("tiers") or ())
    teams = tuple(_quota(one, TEAM, file, at, tiers) for one, at in read_list(top, "teams", file))
    cohorts = tuple(_quota(one, COHORT, file, at, tiers) for one, at in read_list(top, "cohorts", file))
    for kind, rows in (("teams", teams), ("cohorts", cohorts)):
        refuse_twice([f"{one.name} on {one.gpu_model}" if one.gpu_model else one.name for one in rows], file, kind)
    refuse_twice(list(tiers), file, "tiers")
    known = {one.name for one in cohorts} | {one.cohort for one in teams if one.cohort is not None}
    above = {one.name: one.cohort for one in cohorts}
    for name, upper in above.items():
        if upper is not None and upper not in known:
            near = nearest_names(upper, sorted(known))[:1]
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise make_file_error(file, 1, f"a cohort that is named as parent of {name!r}", f"{upper!r}{hint}")
        _refuse_cycle(name, above, file)
    half_life = read_number(top, "half_life_days", file, 1e-3, 1e5) if "half_life_days" in top else 7.0
    order = read_choice(top, "order", file, ("fifo", "fair")) if "order" in top else "fifo"
    hours = tuple(_start_hours(one, file, at, tiers) for one, at in read_list(top, "start_hours", file))
    refuse_twice([one.team or f"tier {one.tier}" for one in hours], file, "start_hours")
    return SharingRules(teams, cohorts, tiers, order, half_life, _stopping(top, file, tiers), file, hours)


def rules_of(scenario: Scenario, known: History) -> SharingRules:
    """The rules that a scenario names, else those that the data hold, for the board that is planned."""
    return rules_of_queues(known) if scenario.quotas is None else rules_in(scenario.quotas, known)


def rules_of_queues(known: History) -> SharingRules:
    """The rules that the data hold for the board that is planned; no quotas where they hold none."""
    table = known.trace.quotas
    return SharingRules() if table is None or table.is_empty() else quotas_of_queues(table, known.fleet.gpu_model)


def rules_in(path: str, known: History) -> SharingRules:
    """The rules of a file for the board that is planned."""
    boards = (str(one.gpu_model) for one in known.fleet.installed.pools)
    return read_quotas(path).on(known.fleet.gpu_model.name, boards)


def planned_quotas(rules: SharingRules, teams: Iterable[str]) -> dict[str, Quota]:
    """Ceilings of teams in a plan: their own, and of what all below the top of their cohorts lend what they borrow.

    What cohorts have and limit by themselves a plan does not know.

    Examples
    --------
    >>> rules = SharingRules((TeamQuota("a", 8.0, cohort="x"),), (TeamQuota("x", cohort="all"), TeamQuota("all")))
    >>> planned_quotas(rules, ["a", "b"])
    {'a': Quota(gpus=8.0, cohort='all', borrow=None, lend=None)}
    """
    above = {one.name: one.cohort for one in rules.cohorts}
    found = {}
    for name in teams:
        own = rules.of(name)
        top = own.cohort
        while top is not None and above.get(top) is not None:
            top = above[top]
        if own.gpus is not None:
            limits = () if top is None else (own.borrow, own.lend)
            found[name] = Quota(own.gpus, top, *limits)
    return found


def _quota(given: Any, keys: tuple[str, ...], file: str, line: int, tiers: tuple[str, ...]) -> TeamQuota:  # noqa: ANN401
    values = require_keys(given, keys, f"{file}, {'team' if keys == TEAM else 'cohort'}", line, required_keys=("name",))
    found: dict[str, Any] = {"name": str(values["name"])}
    limits = {"gpus": (0.0, MOST_GPUS), "borrow": (0.0, MOST_GPUS), "lend": (0.0, MOST_GPUS)}
    limits |= {"weight": (1e-6, 1e6), "gpu_hours_per_month": (0.0, 1e10), "risk": (1e-4, 0.5)}
    for key, (low, high) in limits.items():
        if values.get(key) is not None:
            found[key] = read_number(values, key, file, low, high)
    for key, stated in (("cohort", "cohort" if keys == TEAM else "parent"), ("gpu_model", "gpu_model")):
        found[key] = None if values.get(stated) is None else str(values[stated])
    if values.get("tier") is not None:
        found["tier"] = _tier(values, file, tiers)
    return TeamQuota(**found)


def _tier(values: Any, file: str, tiers: tuple[str, ...]) -> str:  # noqa: ANN401 - of a file
    if not tiers:
        got = f"tier {values['tier']!r} and none"
        raise make_file_error(file, values.lines["tier"], "a list tiers in the file", got)
    return read_choice(values, "tier", file, tiers)


def _start_hours(given: Any, file: str, line: int, tiers: tuple[str, ...]) -> StartHours:  # noqa: ANN401
    values = require_keys(given, HOURS, f"{file}, start_hours", line, required_keys=("hours",))
    if (values.get("team") is None) == (values.get("tier") is None):
        got = "neither" if values.get("team") is None else "both"
        raise make_file_error(file, values.lines["hours"], "a team or a tier", got)
    if values.get("tier") is not None:
        _tier(values, file, tiers)
    if week_hours_of(str(values["hours"])) is None:
        text = "hours such as 20:00-06:00 or mon-fri 20:00-06:00, sat-sun"
        raise make_file_error(file, values.lines["hours"], text, repr(values["hours"]))
    team, tier = (None if values.get(key) is None else str(values[key]) for key in ("team", "tier"))
    return StartHours(str(values["hours"]), team, tier)


def is_board(word: str, gpu_model: str) -> bool:
    """Whether a word is one for a board."""
    return word.casefold() == gpu_model.casefold() or gpu_model in match_gpu_models(word)


def _of_board(rows: tuple[TeamQuota, ...], gpu_model: str) -> tuple[TeamQuota, ...]:
    """Of each name the row for a board, else the one for any."""
    own = [one for one in rows if one.gpu_model is not None and is_board(one.gpu_model, gpu_model)]
    named = {one.name for one in own}
    return tuple(one for one in rows if one in own or (one.gpu_model is None and one.name not in named))


def _stopping(top: Any, file: str, tiers: tuple[str, ...]) -> Stopping:  # noqa: ANN401 - of a file
    if top.get("preemption") is None:
        return Stopping()
    values = require_keys(top["preemption"], STOPPING, f"{file}, preemption", top.lines["preemption"])
    found: dict[str, Any] = {}
    for key in ("by_tier", "reclaim"):
        if key in values:
            if not isinstance(values[key], bool):
                raise make_file_error(file, values.lines[key], f"{key}, true or false", repr(values[key]))
            found[key] = values[key]
    if found.get("by_tier") and len(tiers) < 2:
        raise make_file_error(file, values.lines["by_tier"], "a list of two tiers at least", "by_tier without them")
    for key in STOPPING[2:]:
        if values.get(key) is not None:
            found[key] = read_number(values, key, file, 0, 1e6)
    if found.get("checkpoint_minutes") == 0 and found.get("checkpoint_write_seconds"):
        got = "0 with checkpoint_write_seconds above 0"
        raise make_file_error(file, values.lines["checkpoint_minutes"], "checkpoint_minutes above 0", got)
    return Stopping(**found)


def refuse_twice(names: list[str], file: str, kind: str) -> None:
    """Refuse a list of a file in which a name stands twice."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise make_file_error(file, 1, f"{kind} of different names", repr(twice[0]))


def _refuse_cycle(name: str, above: Mapping[str, str | None], file: str) -> None:
    way, upper = [name], above.get(name)
    while upper is not None:
        if upper in way:
            raise make_file_error(file, 1, "cohorts that form a tree", f"a circle: {' in '.join([*way, upper])}")
        way.append(upper)
        upper = above.get(upper)


def quotas_of_queues(table: pl.DataFrame, gpu_model: GpuModel) -> SharingRules:
    """The quotas of queues and accounts for one board, slices as the larger of their shares of compute and memory.

    A flavor counts for the board of its nodes, or, where those name none, for each.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> row = {"tenant": "ads", "cohort": "web", "gpu_model": None, "profile": None, "nominal": 8.0, "borrow": 4.0,
    ...     "lend": None}
    >>> quotas_of_queues(pl.DataFrame([row]), load_gpu_model("H100-80GB-SXM5")).teams[0].borrow
    4.0
    """
    rows: dict[str, TeamQuota] = {}
    cuts = {one.name for one in gpu_model.profiles}
    for one in table.sort("tenant", maintain_order=True).iter_rows(named=True):
        if one["gpu_model"] is not None and not is_board(one["gpu_model"], gpu_model.name):
            continue
        if one["profile"] is not None and one["profile"] not in cuts:
            continue
        part = 1.0 if one["profile"] is None else quota_share(gpu_model, one["profile"])
        weight = one.get("weight") or 1.0
        before = rows.get(one["tenant"], TeamQuota(one["tenant"], 0.0, 0.0, 0.0, one["cohort"], weight))
        columns = {"gpus": "nominal", "borrow": "borrow", "lend": "lend"}
        sums: dict[str, Any] = {}
        for name, column in columns.items():
            sums[name] = _sum(getattr(before, name), one[column], part)
        rows[before.name] = replace(before, **sums)
    return SharingRules(tuple(rows.values()), source="quotas that the data hold")


def _sum(before: float | None, more: float | None, part: float) -> float | None:
    return None if before is None or more is None else before + part * more


def quota_share(gpu_model: GpuModel, profile: str) -> float:
    """What an instance counts against a quota: the larger of its shares of compute and memory.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> quota_share(load_gpu_model("H100-80GB-SXM5"), "1g.20gb")
    0.25
    """
    one = gpu_model.profile(profile)
    return max(one.compute_slices / gpu_model.compute_slices, one.memory_slices / gpu_model.memory_slices)


def entitled_gpus(
    rules: SharingRules, teams: Iterable[str], fleet_gpus: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    """GPUs that each team is due, and what had to be done about the quotas.

    Quotas where they are stated, and nothing for teams without; else shares of the whole fleet by weight. Quotas above
    the fleet cannot all be honoured at once: they are scaled down together.

    Examples
    --------
    >>> rules = SharingRules((TeamQuota("a", gpus=60.0), TeamQuota("b", gpus=60.0)), source="q.yaml")
    >>> entitled_gpus(rules, ["a", "b", "c"], 80)
    ({'a': 40.0, 'b': 40.0, 'c': 0.0}, ('Quotas of 120 GPUs stand above 80 installed: each counts 67 % of itself.', ...
    """
    names, notes = sorted(set(teams)), []
    if not rules.stated:
        weights = {one.name: one.weight for one in rules.teams}
        by = "the weights" if rules.teams else "equal shares"
        note = f"No team has a quota: {by} of the {fleet_gpus:,.0f} GPUs stand in."
        return entitled_by_shares(fleet_gpus, names, weights), (note,)
    given = {one.name: one.gpus or 0.0 for one in rules.teams}
    total = sum(given.values())
    factor = min(1.0, fleet_gpus / total) if total else 1.0
    if factor < 1.0:
        part = f"{100 * factor:.0f} %"
        notes.append(
            f"Quotas of {total:,.0f} GPUs stand above {fleet_gpus:,.0f} installed: each counts {part} of itself."
        )
    notes += unmatched(rules, names)
    return {name: factor * given.get(name, 0.0) for name in dict.fromkeys([*names, *given])}, tuple(notes)


def unmatched(rules: SharingRules, names: Sequence[str]) -> list[str]:
    """Which teams have no quota, and which quotas and hours no team, in words."""
    late = [one.team for one in rules.start_hours if one.team is not None and one.team not in names]
    notes = [f"No job is of {examples(late)}: their start_hours have no effect."] if late else []
    if not rules.stated:
        return notes
    given = [one.name for one in rules.teams]
    if strange := [name for name in names if name not in given]:
        notes.append(f"No quota is stated for {examples(strange)}: due nothing, they run on what is free.")
    if absent := [name for name in given if name not in names]:
        near = {one: nearest_names(one, names)[:1] for one in absent}
        hints = [f"{one!r} (like {found[0]!r})" if found else repr(one) for one, found in near.items()]
        notes.append(f"No job is of {', '.join(hints[:5])}: their quota stands unused.")
    return notes
