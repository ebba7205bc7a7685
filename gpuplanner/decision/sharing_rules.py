"""Sharing rules of teams from ``quotas.yaml`` or the data: quotas, weights, tiers, preemption and start hours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.errors import ScenarioError, examples, suggest_name
from gpuplanner.core.scenario import Scenario, parse_change_windows
from gpuplanner.core.serialization import make_file_error, read_choice, read_number, read_rows, read_yaml, require_keys
from gpuplanner.core.units_and_number_formats import gpu_figure_text, gpus_text
from gpuplanner.hardware.catalog import match_gpu_models
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.planner.fleet_limits_and_prices import Quota
from gpuplanner.usage.fair_share import entitled_by_shares
from gpuplanner.usage.planning_history import History

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Abbreviations of the days of the week in start hours, from Monday."""
_HOURS_PATTERN = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?)?\s*([\d:-]+)?")
"""Pattern of one span of hours of the week, such as ``mon-fri 20:00-06:00``: days, then times."""


def parse_week_hours(text: str) -> list[tuple[int, int, int]] | None:
    """Parse hours of the week such as ``mon-fri 20:00-06:00``.

    Parameters
    ----------
    text : str
        Days and times, separated by commas.

    Returns
    -------
    list of tuple of int, or None
        Day of the week (Monday is 0), minute of that day, and length [min] of each span; None for other text.

    Examples
    --------
    >>> parse_week_hours("fri-sat 22:30-01:00, sun"), parse_week_hours("nights")
    ([(4, 1350, 150), (5, 1350, 150), (6, 0, 1440)], None)
    """
    week_spans = []
    for part in text.lower().split(","):
        match = _HOURS_PATTERN.fullmatch(part.strip())
        if match is None or not any(match.groups()):
            return None
        first, last, times = match[1], match[2] or match[1], match[3]
        spans = [(0, 24 * 60)] if times is None else parse_change_windows(times)
        if spans is None or (first is not None and not {first, last} <= set(DAYS)):
            return None
        days = range(7)
        if first is not None:
            begin = DAYS.index(first)
            days = range(begin, begin + (DAYS.index(last) - begin) % 7 + 1)
        week_spans += [(day % 7, minute, minutes) for day in days for minute, minutes in spans if minutes]
    return week_spans or None


def list_openings(week_hours: str, tz: str, replay_start: datetime, observed_s: float) -> tuple[float, ...]:
    """List the times at which given hours of the week begin and end, alternately; adjacent spans are merged.

    The last span has no end: it begins some weeks after the record.

    Parameters
    ----------
    week_hours : str
        Hours of the week, as :func:`parse_week_hours` reads them.
    tz : str
        Time zone of the hours.
    replay_start : datetime
        Instant 0.
    observed_s : float
        Length of the record [s].

    Returns
    -------
    tuple of float
        Begins and ends after `replay_start` [s].

    Examples
    --------
    >>> from datetime import UTC
    >>> found = list_openings("20:00-06:00", "Europe/Berlin", datetime(2026, 3, 27, tzinfo=UTC), 4 * 86_400.0)
    >>> [(begin / 3600, end / 3600) for begin, end in zip(found[:6:2], found[1:6:2])]  # the clocks go on in the second
    [(-5.0, 5.0), (19.0, 29.0), (43.0, 52.0)]
    """
    zone, spells = ZoneInfo(tz), []
    local = replay_start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    # Four weeks after the record the hours no longer end: jobs that still wait may start.
    for day in range(-1, int(observed_s // 86_400) + 28 + 8):
        today = local + timedelta(days=day)
        for weekday, minute, minutes in parse_week_hours(week_hours) or ():
            if today.weekday() == weekday:
                begin = today + timedelta(minutes=minute)
                ends = (begin, begin + timedelta(minutes=minutes))
                spells.append(tuple((end.replace(tzinfo=zone) - replay_start).total_seconds() for end in ends))
    merged: list[list[float]] = []
    for begin_s, end_s in sorted(spells):
        if merged and begin_s <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end_s)
        else:
            merged.append([begin_s, end_s])
    return tuple(instant for spell in merged for instant in spell)[:-1]


QUOTA_FILE_KEYS = (
    "teams", "cohorts", "tiers", "order", "half_life_days", "preemption", "start_hours", "max_run_hours",
)  # fmt: skip
"""Top-level keys of ``quotas.yaml``."""
TEAM_KEYS = ("name", "gpu_model", "gpus", "borrow", "lend", "cohort", "weight", "tier", "gpu_hours_per_month", "risk")
"""Keys of a team in ``quotas.yaml``."""
COHORT_KEYS = ("name", "gpu_model", "parent", "gpus", "borrow", "lend")
"""Keys of a cohort in ``quotas.yaml``."""
START_HOURS_KEYS = ("team", "tier", "hours")
"""Keys of an entry of ``start_hours`` in ``quotas.yaml``."""
MAX_QUOTA_GPUS = 1e7
"""Largest number of GPUs that a quota may state."""


@dataclass(frozen=True)
class TeamQuota:
    """Quota of a team or a cohort in GPUs; None: no limit, or for ``gpus`` no quota at all.

    - ``name``: Name of the team or the cohort.
    - ``gpus``: Nominal quota [GPUs].
    - ``borrow``, ``lend``: Most GPUs borrowed from others, and lent to others.
    - ``cohort``: Cohort within which it lends and borrows; of a cohort its parent.
    - ``weight``: Weight in the fair share, and for GPUs without a quota.
    - ``tier``: Tier of all its jobs; None: as the jobs state.
    - ``gpu_hours_per_month``: Budget [GPU h].
    - ``risk``: Accepted share of the hours in which its quota is too small. [0-1]
    - ``gpu_model``: GPU model of the quota; None: each model that no other row of the name has.
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
class PreemptionRules:
    """When running jobs are preempted, and the cost of a preemption.

    - ``by_tier``: Whether jobs of a less urgent tier are preempted for those that do not fit.
    - ``reclaim``: Whether jobs of borrowing teams are preempted for a team below its quota.
    - ``min_run_minutes``: Jobs that ran for less are not preempted [min].
    - ``restart_minutes``: Additional run time when a preempted job starts again [min].
    - ``checkpoint_minutes``: Work between two checkpoints [min]; 0: nothing is lost; None: all work is lost.
    - ``checkpoint_write_seconds``: Time to write a checkpoint [s].
    """

    by_tier: bool = False
    reclaim: bool = False
    min_run_minutes: float = 0.0
    restart_minutes: float = 0.0
    checkpoint_minutes: float | None = None
    checkpoint_write_seconds: float = 0.0


PREEMPTION_KEYS = tuple(item.name for item in fields(PreemptionRules))
"""Keys of ``preemption`` in ``quotas.yaml``."""


@dataclass(frozen=True)
class StartHours:
    """Hours of the week in which jobs of a team, or of a tier, may start; the team's take precedence.

    - ``hours``: Hours of the week, in local time.
    - ``team``, ``tier``: Team or tier; the other is None.
    """

    hours: str
    team: str | None = None
    tier: str | None = None


@dataclass(frozen=True)
class SharingRules:
    """Rules by which teams share a fleet.

    - ``teams``, ``cohorts``: Quotas; teams without a row have none.
    - ``tiers``: Names, the most urgent first; jobs of other tiers come last.
    - ``order``: Order within a tier: ``fifo``, or ``fair``, by use over weight.
    - ``half_life_days``: Half-life of past use [d].
    - ``stopping``: Preemption.
    - ``source``: Source of the rules, for people.
    - ``start_hours``: Hours in which jobs of a team or a tier may start, in local time.
    - ``max_run_hours``: Limit of the run time of jobs (walltime) [h]; a longer one queues again for the remaining work.
    """

    teams: tuple[TeamQuota, ...] = ()
    cohorts: tuple[TeamQuota, ...] = ()
    tiers: tuple[str, ...] = ()
    order: str = "fifo"
    half_life_days: float = 7.0
    stopping: PreemptionRules = field(default_factory=PreemptionRules)
    source: str = "no quotas"
    start_hours: tuple[StartHours, ...] = ()
    max_run_hours: float | None = None

    def quota_of(self, team: str) -> TeamQuota:
        """Return the quota of a team; a team without a row has no limits."""
        return next((quota for quota in self.teams if quota.name == team), TeamQuota(team))

    def for_gpu_model(self, gpu_model: str, other_models: Iterable[str] = ()) -> SharingRules:
        """Return the rules for the GPUs of one model.

        Parameters
        ----------
        gpu_model : str
            The GPU model.
        other_models : iterable of str
            Other models of the fleet.

        Raises
        ------
        ScenarioError
            If a row is for a model that the fleet does not have.

        Examples
        --------
        >>> rules = SharingRules((TeamQuota("a", 8.0), TeamQuota("a", 2.0, gpu_model="t4")))
        >>> [(one.name, one.gpus) for one in rules.for_gpu_model("T4", ["L4"]).teams]
        [('a', 2.0)]
        """
        gpu_models = [gpu_model, *other_models]
        for quota in (*self.teams, *self.cohorts):
            if quota.gpu_model is not None and not any(is_gpu_model_name(quota.gpu_model, name) for name in gpu_models):
                got = f"{quota.gpu_model!r} for {quota.name!r}"
                todo = "Name it as gpuplanner describe does, or leave it out."
                raise ScenarioError(self.source, f"a GPU model of the fleet ({examples(gpu_models)})", got, todo)
        teams, cohorts = (_rows_for_gpu_model(rows, gpu_model) for rows in (self.teams, self.cohorts))
        return replace(self, teams=teams, cohorts=cohorts)

    @property
    def has_quotas(self) -> bool:
        """Whether any team has a quota."""
        return any(quota.gpus is not None for quota in self.teams)


def read_quotas(path: str | Path) -> SharingRules:
    r"""Read ``quotas.yaml`` strictly: an error names the line.

    ``teams`` is a list of ``name`` and, where they apply, ``gpu_model``, ``gpus``, ``borrow``, ``lend``, ``cohort``,
    ``weight``, ``tier``, ``gpu_hours_per_month`` and ``risk``; ``cohorts`` one of ``name``, ``gpu_model``, ``parent``,
    ``gpus``, ``borrow`` and ``lend``. A name may have a row for each GPU model; one without counts on each model that
    no other is for. ``tiers`` is a list of names, the most urgent first; ``order`` is fifo or fair, with
    ``half_life_days``; ``preemption`` has ``by_tier``, ``reclaim``, ``min_run_minutes``, ``restart_minutes``,
    ``checkpoint_minutes`` and ``checkpoint_write_seconds``; ``start_hours`` is a list of a ``team`` or ``tier`` and the
    ``hours``, in the time zone of the scenario, in which its jobs may start, such as ``mon-fri 20:00-06:00, sat-sun``;
    ``max_run_hours`` limits run times.

    Parameters
    ----------
    path : str or Path
        The YAML file.

    Returns
    -------
    SharingRules

    Raises
    ------
    ScenarioError
        If the file is wrong.

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
    document = require_keys(read_yaml(path), QUOTA_FILE_KEYS, f"{file}, the file", 1)
    tiers = tuple(str(tier) for tier in document.get("tiers") or ())
    keys_by_section = {
        "teams": (TEAM_KEYS, ("name",)),
        "cohorts": (COHORT_KEYS, ("name",)),
        "start_hours": (START_HOURS_KEYS, ("hours",)),
    }
    team_rows, cohort_rows, hour_rows = read_rows(document, keys_by_section, file)
    teams = tuple(_read_quota(values, "cohort", file, tiers) for values, _ in team_rows)
    cohorts = tuple(_read_quota(values, "parent", file, tiers) for values, _ in cohort_rows)
    for kind, rows in (("teams", teams), ("cohorts", cohorts)):
        names = [f"{quota.name} on {quota.gpu_model}" if quota.gpu_model else quota.name for quota in rows]
        refuse_duplicates(names, file, kind)
    refuse_duplicates(list(tiers), file, "tiers")
    cohort_names = {quota.name for quota in cohorts} | {quota.cohort for quota in teams if quota.cohort is not None}
    parent_of = {cohort.name: cohort.cohort for cohort in cohorts}
    for name, parent in parent_of.items():
        if parent is not None and parent not in cohort_names:
            got = f"{parent!r}{suggest_name(parent, sorted(cohort_names))}"
            raise make_file_error(file, 1, f"a cohort that is named as parent of {name!r}", got)
        _refuse_cycle(name, parent_of, file)
    half_life = read_number(document, "half_life_days", file, 1e-3, 1e5) if "half_life_days" in document else 7.0
    order = read_choice(document, "order", file, ("fifo", "fair")) if "order" in document else "fifo"
    hours = tuple(_read_start_hours(values, file, tiers) for values, _ in hour_rows)
    refuse_duplicates([window.team or f"tier {window.tier}" for window in hours], file, "start_hours")
    limit_h = read_number(document, "max_run_hours", file, 0.01, 1e5) if "max_run_hours" in document else None
    preemption = _read_preemption(document, file, tiers)
    return SharingRules(teams, cohorts, tiers, order, half_life, preemption, file, hours, limit_h)


def read_sharing_rules(scenario: Scenario, job_history: History) -> SharingRules:
    """Return the rules that a scenario names, else those in the data, for the planned GPU model."""
    return rules_from_queues(job_history) if scenario.quotas is None else read_rules_file(scenario.quotas, job_history)


def rules_from_queues(job_history: History) -> SharingRules:
    """Return the rules in the data for the planned GPU model; no quotas where the data have none."""
    table = job_history.trace.quotas
    if table is None or table.is_empty():
        return SharingRules()
    return convert_queue_quotas(table, job_history.fleet.gpu_model)


def read_rules_file(path: str, job_history: History) -> SharingRules:
    """Read the rules of a file for the planned GPU model."""
    gpu_models = (str(pool.gpu_model) for pool in job_history.fleet.installed.pools)
    return read_quotas(path).for_gpu_model(job_history.fleet.gpu_model.name, gpu_models)


def planned_quotas(rules: SharingRules, teams: Iterable[str]) -> dict[str, Quota]:
    """Convert quotas of teams to the limits of a plan: all teams below the same root cohort may lend and borrow.

    Quotas and limits of cohorts themselves are not part of a plan.

    Examples
    --------
    >>> rules = SharingRules((TeamQuota("a", 8.0, cohort="x"),), (TeamQuota("x", cohort="all"), TeamQuota("all")))
    >>> planned_quotas(rules, ["a", "b"])
    {'a': Quota(gpus=8.0, cohort='all', borrow=None, lend=None)}
    """
    parent_of = {cohort.name: cohort.cohort for cohort in rules.cohorts}
    quotas = {}
    for name in teams:
        team_quota = rules.quota_of(name)
        root = team_quota.cohort
        while root is not None and parent_of.get(root) is not None:
            root = parent_of[root]
        if team_quota.gpus is not None:
            limits = () if root is None else (team_quota.borrow, team_quota.lend)
            quotas[name] = Quota(team_quota.gpus, root, *limits)
    return quotas


def _read_quota(values: Any, cohort_key: str, file: str, tiers: tuple[str, ...]) -> TeamQuota:  # noqa: ANN401
    """Read a row of ``teams`` or ``cohorts``.

    Parameters
    ----------
    values : LinedMapping
        The row.
    cohort_key : str
        Key of its cohort.
    file : str
        Name of the file, for errors.
    tiers : tuple of str
        Names of the tiers.
    """
    quota_fields: dict[str, Any] = {"name": str(values["name"])}
    limits = {"gpus": (0.0, MAX_QUOTA_GPUS), "borrow": (0.0, MAX_QUOTA_GPUS), "lend": (0.0, MAX_QUOTA_GPUS)}
    limits |= {"weight": (1e-6, 1e6), "gpu_hours_per_month": (0.0, 1e10), "risk": (1e-4, 0.5)}
    for key, (low, high) in limits.items():
        if values.get(key) is not None:
            quota_fields[key] = read_number(values, key, file, low, high)
    for key, key_in_file in (("cohort", cohort_key), ("gpu_model", "gpu_model")):
        quota_fields[key] = None if values.get(key_in_file) is None else str(values[key_in_file])
    if values.get("tier") is not None:
        quota_fields["tier"] = _read_tier(values, file, tiers)
    return TeamQuota(**quota_fields)


def _read_tier(values: Any, file: str, tiers: tuple[str, ...]) -> str:  # noqa: ANN401 - of a file
    """Read the name of a tier, which the file must list."""
    if not tiers:
        got = f"tier {values['tier']!r} and none"
        raise make_file_error(file, values.lines["tier"], "a list tiers in the file", got)
    return read_choice(values, "tier", file, tiers)


def _read_start_hours(values: Any, file: str, tiers: tuple[str, ...]) -> StartHours:  # noqa: ANN401
    """Read a row of ``start_hours``.

    Parameters
    ----------
    values : LinedMapping
        The row.
    file : str
        Name of the file, for errors.
    tiers : tuple of str
        Names of the tiers.
    """
    if (values.get("team") is None) == (values.get("tier") is None):
        got = "neither" if values.get("team") is None else "both"
        raise make_file_error(file, values.lines["hours"], "a team or a tier", got)
    if values.get("tier") is not None:
        _read_tier(values, file, tiers)
    if parse_week_hours(str(values["hours"])) is None:
        text = "hours such as 20:00-06:00 or mon-fri 20:00-06:00, sat-sun"
        raise make_file_error(file, values.lines["hours"], text, repr(values["hours"]))
    team, tier = (None if values.get(key) is None else str(values[key]) for key in ("team", "tier"))
    return StartHours(str(values["hours"]), team, tier)


def is_gpu_model_name(word: str, gpu_model: str) -> bool:
    """Whether a word is the name or an alias of a GPU model."""
    return word.casefold() == gpu_model.casefold() or gpu_model in match_gpu_models(word)


def _rows_for_gpu_model(rows: tuple[TeamQuota, ...], gpu_model: str) -> tuple[TeamQuota, ...]:
    """Select for each name the row for a GPU model, else the row for all models."""
    specific = [row for row in rows if row.gpu_model is not None and is_gpu_model_name(row.gpu_model, gpu_model)]
    specific_names = {row.name for row in specific}
    return tuple(row for row in rows if row in specific or (row.gpu_model is None and row.name not in specific_names))


def _read_preemption(top: Any, file: str, tiers: tuple[str, ...]) -> PreemptionRules:  # noqa: ANN401 - of a file
    """Read ``preemption`` of the file."""
    if top.get("preemption") is None:
        return PreemptionRules()
    values = require_keys(top["preemption"], PREEMPTION_KEYS, f"{file}, preemption", top.lines["preemption"])
    settings: dict[str, Any] = {}
    for key in ("by_tier", "reclaim"):
        if key in values:
            if not isinstance(values[key], bool):
                raise make_file_error(file, values.lines[key], f"{key}, true or false", repr(values[key]))
            settings[key] = values[key]
    if settings.get("by_tier") and len(tiers) < 2:
        raise make_file_error(file, values.lines["by_tier"], "a list of two tiers at least", "by_tier without them")
    for key in PREEMPTION_KEYS[2:]:
        if values.get(key) is not None:
            settings[key] = read_number(values, key, file, 0, 1e6)
    if settings.get("checkpoint_minutes") == 0 and settings.get("checkpoint_write_seconds"):
        got = "0 with checkpoint_write_seconds above 0"
        raise make_file_error(file, values.lines["checkpoint_minutes"], "checkpoint_minutes above 0", got)
    return PreemptionRules(**settings)


def refuse_duplicates(names: list[str], file: str, kind: str) -> None:
    """Raise an error if a name occurs twice in a list of a file."""
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise make_file_error(file, 1, f"{kind} of different names", repr(duplicates[0]))


def _refuse_cycle(name: str, parent_of: Mapping[str, str | None], file: str) -> None:
    """Raise an error if the parents of a cohort form a cycle."""
    path, parent = [name], parent_of.get(name)
    while parent is not None:
        if parent in path:
            raise make_file_error(file, 1, "cohorts that form a tree", f"a circle: {' in '.join([*path, parent])}")
        path.append(parent)
        parent = parent_of.get(parent)


def convert_queue_quotas(table: pl.DataFrame, gpu_model: GpuModel) -> SharingRules:
    """Convert the table of quotas of queues and accounts to sharing rules in GPUs of one model.

    A MIG instance counts as the larger of its shares of compute and memory.

    A resource flavor counts for the GPU model of its nodes, or for each model where it names none.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> row = {"tenant": "ads", "cohort": "web", "gpu_model": None, "profile": None, "nominal": 8.0, "borrow": 4.0,
    ...     "lend": None}
    >>> convert_queue_quotas(pl.DataFrame([row]), load_gpu_model("H100-80GB-SXM5")).teams[0].borrow
    4.0
    """
    quotas: dict[str, TeamQuota] = {}
    profile_names = {profile.name for profile in gpu_model.profiles}
    for row in table.sort("tenant", maintain_order=True).iter_rows(named=True):
        if row["gpu_model"] is not None and not is_gpu_model_name(row["gpu_model"], gpu_model.name):
            continue
        if row["profile"] is not None and row["profile"] not in profile_names:
            continue
        gpu_share = 1.0 if row["profile"] is None else quota_share(gpu_model, row["profile"])
        weight = row.get("weight") or 1.0
        quota = quotas.get(row["tenant"], TeamQuota(row["tenant"], 0.0, 0.0, 0.0, row["cohort"], weight))
        quotas[quota.name] = replace(
            quota,
            gpus=_add_scaled(quota.gpus, row["nominal"], gpu_share),
            borrow=_add_scaled(quota.borrow, row["borrow"], gpu_share),
            lend=_add_scaled(quota.lend, row["lend"], gpu_share),
        )
    return SharingRules(tuple(quotas.values()), source="quotas that the data hold")


def _add_scaled(before: float | None, amount: float | None, scale: float) -> float | None:
    """Add a limit times the GPUs of one instance to a limit in GPUs; None (no limit) if either is None."""
    return None if before is None or amount is None else before + scale * amount


def quota_share(gpu_model: GpuModel, profile: str) -> float:
    """GPUs that a MIG instance counts against a quota: the larger of its shares, 0-1, of compute and memory.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> quota_share(load_gpu_model("H100-80GB-SXM5"), "1g.20gb")
    0.25
    """
    size = gpu_model.profile(profile)
    return max(size.compute_slices / gpu_model.compute_slices, size.memory_slices / gpu_model.memory_slices)


def entitled_gpus(
    rules: SharingRules, teams: Iterable[str], fleet_gpus: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute the GPUs that each team is entitled to, with notes on the quotas.

    Stated quotas count, and teams without one get nothing; without any quota, shares of the entire fleet by weight.
    Quotas above the fleet are scaled down together.

    Parameters
    ----------
    rules : SharingRules
        Quotas and weights.
    teams : iterable of str
        Teams with jobs.
    fleet_gpus : float
        GPUs of the fleet.

    Returns
    -------
    entitled : dict of str to float
        GPUs by team.
    notes : tuple of str

    Examples
    --------
    >>> rules = SharingRules((TeamQuota("a", gpus=60.0), TeamQuota("b", gpus=60.0)), source="q.yaml")
    >>> entitled_gpus(rules, ["a", "b", "c"], 80)
    ({'a': 40.0, 'b': 40.0, 'c': 0.0}, ('Quotas of 120 GPUs stand above 80 installed: each counts 67 % of itself.', ...
    """
    names, notes = sorted(set(teams)), []
    if not rules.has_quotas:
        weights = {quota.name: quota.weight for quota in rules.teams}
        basis = "the weights" if rules.teams else "equal shares"
        note = f"No team has a quota: {basis} of the {gpus_text(fleet_gpus)} stand in."
        return entitled_by_shares(fleet_gpus, names, weights), (note,)
    stated_gpus = {quota.name: quota.gpus or 0.0 for quota in rules.teams}
    total = sum(stated_gpus.values())
    factor = min(1.0, fleet_gpus / total) if total else 1.0
    if factor < 1.0:
        excess = f"Quotas of {gpus_text(total)} stand above {gpu_figure_text(fleet_gpus)} installed"
        notes.append(f"{excess}: each counts {100 * factor:.0f} % of itself.")
    notes += describe_unmatched_teams(rules, names)
    return {name: factor * stated_gpus.get(name, 0.0) for name in dict.fromkeys([*names, *stated_gpus])}, tuple(notes)


def describe_unmatched_teams(rules: SharingRules, team_names: Sequence[str]) -> list[str]:
    """Describe teams without a quota, and quotas and start hours without a team, as sentences."""
    absent_teams = [row.team for row in rules.start_hours if row.team is not None and row.team not in team_names]
    notes = [f"No job is of {examples(absent_teams)}: their start_hours have no effect."] if absent_teams else []
    if not rules.has_quotas:
        return notes
    quota_teams = [quota.name for quota in rules.teams]
    if without_quota := [name for name in team_names if name not in quota_teams]:
        notes.append(f"No quota is stated for {examples(without_quota)}: due nothing, they run on what is free.")
    if absent := [name for name in quota_teams if name not in team_names]:
        hints = [f"{name!r}{suggest_name(name, team_names)}" for name in absent]
        notes.append(f"No job is of {', '.join(hints[:5])}: their quota stands unused.")
    return notes
