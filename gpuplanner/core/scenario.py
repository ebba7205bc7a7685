"""A scenario: everything that an evaluation depends on, as one frozen value with a strict YAML form."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypedDict
from zoneinfo import ZoneInfo, available_timezones

from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, nearest
from gpuplanner.core.scenario_fields import (
    CATALOGUES,
    MADE_BY,
    OWNERSHIPS,
    DropDown,
    KnobRule,
    Slider,
    at_least,
    between,
    check_knobs,
    described,
    knob,
    knobs_of,
    one_of,
)
from gpuplanner.core.units import LOCALES, SECONDS_PER_DAY

PRICES = "prices"
FILES = ("projects", "price_book", "carbon_file", "quotas", "quotas_to_try")
"""Fields that name files beside the data."""
NOT_EMPTY = KnobRule("not empty", lambda value, _: value.strip() != "")


@functools.cache
def _zones() -> frozenset[str]:
    """Names of the tz database: to list them its folder is walked."""
    return frozenset(available_timezones())


def windows_of(text: str) -> list[tuple[int, int]] | None:
    """Minutes of the day at which windows begin and how long they last; None if the text is something else.

    Examples
    --------
    >>> windows_of("06:00-08:00, 22:30-01:00"), windows_of("6-8")
    ([(360, 120), (1350, 150)], None)
    """
    found = []
    for part in text.split(","):
        hit = re.fullmatch(r"\s*([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)\s*", part)
        if hit is None:
            return None
        begin, end = (60 * int(hit[side]) + int(hit[side + 1]) for side in (1, 3))
        found.append((begin, (end - begin) % (24 * 60)))
    return found


def slowdowns_of(text: str) -> tuple[float, float] | None:
    """How many times as long jobs take on nodes of one rack and on others; None if the text is something else.

    Examples
    --------
    >>> slowdowns_of("1.1, 1.3"), slowdowns_of("1.3,1.1"), slowdowns_of("fast")
    ((1.1, 1.3), None, None)
    """
    try:
        rack, beyond = map(float, text.split(","))
    except ValueError:
        return None
    return (rack, beyond) if 1 <= rack <= beyond < 1000 else None


class SearchLimits(TypedDict, total=False):
    """How hard a plan is searched for: arguments of :func:`gpuplanner.planner.plan`."""

    time_limit_s: float | None
    gap_target: float
    seed: int
    solver: str
    work_limit: int | None


@described
@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is planned, on what data, by which rules and at which price.

    Examples
    --------
    >>> Scenario(board="h100-80gb-sxm").board
    'H100-80GB-SXM5'
    >>> Scenario(quantile=2)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: scenario: expected quantile between 0.05 and 0.95; got 2.0. Change it.
    """

    name: str = knob("data", "sample fleet", "Title of reports.", NOT_EMPTY)
    data: str = knob(
        "data", "sample", "Folder written by ``gpuplanner ingest``, or ``sample`` for the shipped sample."
    )
    month: str | None = knob(
        "data", None, "Calendar month in ``tz`` that ledger and cost cover.",
        KnobRule("as YYYY-MM", lambda value, _: re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value) is not None),
        none="the whole observation",
    )  # fmt: skip
    tz: str = knob(
        "data", "UTC", "Zone of calendar months, of naive times in files that are read, and of what is shown.",
        KnobRule("a zone of the tz database, such as Europe/Berlin", lambda value, _: value in _zones()),
    )  # fmt: skip
    number_locale: str = knob(
        "data", "en",
        "How numbers and days are written on pages, cards, mails and in workbooks: en 1,234.5 and 2026-03-01, "
        "de 1.234,5 and 01.03.2026, ch 1’234.5, fr 1 234,5. JSON, CSV and Parquet are the same in each.",
        one_of(*LOCALES),
    )  # fmt: skip
    report_url: str | None = knob(
        "data", None, "Address at which the folder of all months is served: mails link to it.",
        KnobRule("an address that begins with https:// or http://",
                 lambda value, _: re.fullmatch(r"https?://[^\s<>\"']+", value) is not None),
        none="mails name the folder",
    )  # fmt: skip
    smallest_group: int = knob(
        "data", 0,
        "Tenants of fewer people stand together, as ``(small groups)``, in every table, chart and export; 0: all by "
        "name. Set it, for example to 5, before a report leaves the team, so that no figure speaks of one person. "
        "Job ids and nodes stay as they are: replace those at ``ingest`` (``--pseudonyms``).",
        at_least(0),
    )  # fmt: skip
    board: str | None = knob(
        "fleet", None,
        "Board to plan for; a unique prefix will do. Another board than the data's is a what-if: every GPU installed "
        "counts as one of it.",
        none="the data's own, of several the largest pool",
    )  # fmt: skip
    pool: str | None = knob(
        "fleet", None,
        "Of a fleet of several boards the one, as the data name it, whose GPUs and jobs alone are planned.", NOT_EMPTY,
        none="each pool by itself where a command shows several, else that of the scenario's board, or the largest",
    )  # fmt: skip
    other_boards: str | None = knob(
        "fleet", None,
        "GPU models that may serve jobs which named none, in order of preference, with commas between: demand goes to "
        "the first that can hold it and has room. A model that is named comes in its turn for its own jobs too; else "
        "it comes last for them.",
        NOT_EMPTY, none="jobs stay with the model that they ran on",
    )  # fmt: skip
    nodes: int = knob(
        "fleet", 0,
        "Nodes of the fleet; 0: the GPUs that the inventory has installed, or the most that were held at once. Nodes "
        "of the inventory keep their own size; of as many as are given here, those that the inventory has stay cut "
        "as they are, and further ones are whole. See :mod:`gpuplanner.usage.planned_fleet`.",
        between(0, 100_000),
    )  # fmt: skip
    gpus_per_node: int = knob("fleet", 8, "GPUs of a node of which no inventory knows.", between(1, 128))
    history_days: int = knob(
        "demand",
        56,
        "How much of the past simulations, forecasts and bootstraps use.",
        at_least(2),
        unit="days",
    )
    slot_hours: float = knob(
        "demand", 1.0, "Length of a slot of the plan.",
        KnobRule("between 1/60 and 168", lambda value, _: 1 / 60 <= value <= 168), unit="h",
    )  # fmt: skip
    horizon_slots: int = knob("demand", 168, "Slots of the plan.", between(1, 10_000))
    quantile: float = knob("demand", 0.9, "Demand quantile that the plan must cover.", between(0.05, 0.95))
    arrival_scale: float = knob(
        "demand", 1.0, "Factor on demand: what if there were so many times the jobs?", between(0.05, 20),
        control=Slider("Demand, times", 0.5, 2.0, 0.05, decimals=2),
    )  # fmt: skip
    path: str = knob(
        "path", "operator",
        "Who changes the fleet: what can be done depends on it. Layouts are changed by the MIG manager of the GPU "
        "operator, by mig-parted, instance by instance through NVML or a DRA driver, or on nodes that an autoscaler "
        "or Slurm's power saving starts. What each of them can do is in :mod:`gpuplanner.hardware.actuators`, which "
        "also knows the usual one of a source of data.",
        KnobRule(
            f"one of {', '.join(MADE_BY)}: no other has a price of a change", lambda value, _: value in MADE_BY,
            lambda: tuple(MADE_BY),
        ),
        control=DropDown("Who changes the fleet"),
    )  # fmt: skip
    node_lead_s: float | None = knob(
        "path", None, "Time until a node that was away takes jobs again, in the middle: policies are compared at it.",
        between(0, SECONDS_PER_DAY), unit="s", none="the catalogue's",
    )  # fmt: skip
    ownership: str | None = knob(
        "path", None,
        "Who pays for GPUs that are not needed: what a saving is worth depends on it. Their owner, who reserved them "
        "for a term, or nobody, because they are given back.",
        KnobRule(f"one of {', '.join(OWNERSHIPS)}", lambda value, _: value in OWNERSHIPS, lambda: OWNERSHIPS),
        none="as the inventory says, and where it says nothing every case is stated",
        control=DropDown("Who pays for the GPUs"),
    )  # fmt: skip
    wait_minutes: float = knob(
        "service", 10.0,
        "How much later than today jobs of every size may start: the service that policies are compared at.",
        between(0, 10_080, ", which is a week"), unit="minutes",
        control=Slider("Your limit", 0, 120, 1, decimals=1),
    )  # fmt: skip
    wait_quantile: float = knob(
        "service", 0.95, "Share of the jobs of each size that keeps the limit.", between(0.5, 0.999),
        control=Slider("Share within the limit", 0.5, 0.99, 0.01),
    )  # fmt: skip
    target_wait_minutes: float | None = knob(
        "service", None,
        "95th percentile of the queue wait that each job size shall meet: sizes above it are late. Where it is stated, "
        "GPUs are bought for it whatever they end of the waiting.",
        between(0, 10_080, ", which is a week"), unit="minutes",
        none="30, and a purchase has to end a tenth of a GPU-hour of waiting for each GPU-hour",
    )  # fmt: skip
    policies: str | None = knob(
        "service", None, "Which policies are compared, names with commas between.",
        none="all",
    )  # fmt: skip
    quotas: str | None = knob(
        "service", None,
        "File of the teams' quotas, weights and tiers, of hours in which jobs may start, and of preemption, "
        "``quotas.yaml``. A plan is of what quotas admit.",
        NOT_EMPTY,
        none="the quotas that the data hold, and they bind nobody in what is played or planned",
    )  # fmt: skip
    quotas_to_try: str | None = knob(
        "service", None,
        "File of other quotas and rules, written as ``quotas``: ``compare`` plays both on the same weeks, and says who "
        "waits more, who less, and what work is lost.",
        NOT_EMPTY, none="quotas that are stated are played against none",
    )  # fmt: skip
    gpu_mtbf_hours: float | str | None = knob(
        "service", None,
        "Mean time between failures of one GPU with which ``compare`` plays the teams: a failed job waits again, and "
        "does over what no checkpoint kept. ``seen``: as often as the failure of a node ended jobs of the data, or "
        "telemetry saw errors of hardware (XID), whichever is more often.",
        KnobRule(
            "between 1 and 1000000000, or 'seen'",
            lambda value, _: value == "seen" or (isinstance(value, float) and 1 <= value <= 1e9),
        ),
        unit="h", none="nothing fails in what is played",
    )  # fmt: skip
    gang_slowdowns: str | None = knob(
        "service", None,
        "How many times as long jobs on several nodes take within one rack, and beyond, stated or measured: "
        "``1.1,1.3``. ``compare`` simulates placements with it.",
        KnobRule(
            "two numbers from 1 up with a comma between, the second not below the first",
            lambda value, _: slowdowns_of(value) is not None,
        ),
        none="placements are not compared",
    )  # fmt: skip
    change_gpu_hours: float | None = knob(
        "plan", None, "What a change of layout costs in the plan.", between(0, 1000),
        unit="GPU h", none="what the catalogue has for board and path",
    )  # fmt: skip
    whole_nodes_kept: int = knob("plan", 0, "Nodes, the first ones, on which no GPU is cut.", at_least(0))
    switches_per_day: int | None = knob(
        "plan", None, "Most cuts of one GPU within a day.", at_least(0), none="any number"
    )
    calendars: int | None = knob(
        "plan", None, "Sets of layouts that a plan may take turns with; 0: any number.", at_least(0),
        none="three where a path empties whole nodes (operator, Slurm, autoscaler), so that people can tell which one "
        "is in force, else any number",
    )  # fmt: skip
    change_windows: str | None = knob(
        "plan", None,
        "Times of the day in ``tz`` at which layouts may change, such as ``06:00-08:00, 18:00-20:00``. A plan changes "
        "at the first slot that begins in one.",
        KnobRule("as HH:MM-HH:MM, several joined by commas", lambda value, _: windows_of(value) is not None),
        none="at any time",
    )  # fmt: skip
    gap_target: float = knob(
        "plan", 0.005, "Gap between plan and bound at which the planner may stop.",
        KnobRule("between 0 and 1", lambda value, _: 0 <= value < 1),
    )  # fmt: skip
    work_limit: int | None = knob(
        "plan", None,
        "Units of work, some 15 ms each, after which the planner may stop: the same plan on any machine, however busy.",
        at_least(1), none="2000, or as many as the time allows where time_limit_s is given", option="--work-limit",
    )  # fmt: skip
    time_limit_s: float | None = knob(
        "plan", None, "Time after which the planner may stop: how far it has come then depends on the machine.",
        KnobRule("between 0 and 86400", lambda value, _: 0 < value <= SECONDS_PER_DAY), unit="s", option="--time-limit",
        none="no limit of time",
    )  # fmt: skip
    queue: str = knob("simulation", "easy", "Backfill rule of every policy.", one_of("easy", "strict"))
    replications: int = knob("simulation", 20, "Bootstrapped weeks.", between(2, 1000))
    seed: int = knob("simulation", 1, "Seed of everything random.", at_least(0))
    price_usd_per_gpu_hour: float = knob(
        PRICES, 0.0,
        "Price of a GPU-hour; 0: the median list price of the board in the catalogue, where it has one.",
        KnobRule("at least 0", lambda value, _: 0 <= value <= 1e6), unit="USD per GPU h",
    )  # fmt: skip
    carbon_region: str = knob(PRICES, "gcp:europe-west4", "Row of the carbon table, ``scope:region``.")
    pue: float = knob(
        PRICES, 0.0, "Energy of the building over that of its machines; 0: the survey average in the catalogue.",
        KnobRule("0 (catalogue) or between 1 and 5", lambda value, _: value == 0 or 1 <= value <= 5),
    )  # fmt: skip
    currency: str = knob(
        PRICES, "USD", "ISO 4217 code of the price.",
        KnobRule("a currency of ISO 4217", lambda value, _: CATALOGUES["currency"](value) == value),
    )  # fmt: skip
    price_book: str | None = knob(
        PRICES, None, "File of own dated prices, owned boards, exchange rates and electricity, ``prices.yaml``.",
        NOT_EMPTY, none="the catalogue's list prices",
    )  # fmt: skip
    carbon_file: str | None = knob(
        PRICES, None, "CSV file of the grid's carbon hour by hour, which goes before ``carbon_region``.", NOT_EMPTY,
        none="the mean of the region over a year",
    )  # fmt: skip
    spot_share: float = knob(
        PRICES, 0.0, "Share of the load that may run on spot GPUs, which are taken back.", between(0, 1)
    )
    spot_interruptions_per_day: float = knob(
        PRICES, 1.0, "How often a spot job is interrupted, as measured or as the provider says.", between(0, 1000),
        unit="per day",
    )  # fmt: skip
    price_usd_per_kwh: float | None = knob(
        PRICES, None, "What a kWh costs the owner of the GPUs.", between(0, 1000), unit="USD per kWh",
        none="the catalogue's", control=Slider("Electricity", 0.0, 1.0, 0.01, decimals=3),
    )  # fmt: skip
    purchase_lead_days: int = knob(
        "outlook", 90,
        "How long it takes until ordered GPUs take jobs: what has to be bought is looked at so far ahead.",
        between(0, 1095), unit="days", control=Slider("Order to delivery", 0, 365, 5),
    )  # fmt: skip
    projects: str | None = knob(
        "outlook", None, "File of announced projects and of a calendar, ``projects.yaml``.", NOT_EMPTY,
        none="nothing is announced",
    )  # fmt: skip

    gate_days: int = knob(
        "gate", 7, "Days back and ahead that ``gpuplanner check`` looks at.", between(1, 28), unit="days"
    )
    gate_wait_minutes: float = knob(
        "gate",
        60.0,
        "A job that waited longer for want of GPUs was not served.",
        between(0, 10_080),
        unit="minutes",
    )
    gate_late_share: float = knob(
        "gate",
        0.1,
        "Share of the jobs of a size that may not be served before the check fails.",
        between(0, 1),
    )
    gate_short_chance: float = knob(
        "gate",
        0.5,
        "Chance that jobs miss the wait target in the days ahead, above which the check fails.",
        between(0, 1),
    )
    gate_miss_chance: float = knob(
        "gate", 0.05,
        "The check fails where what came is so far from the forecast that a miss as large has a smaller chance: 0.02 "
        "is a false alarm a year of weekly looks.",
        between(0, 0.5),
    )  # fmt: skip
    watch_chance: float = knob(
        "gate",
        0.85,
        "How sure ``gpuplanner watch`` must be that a plan gains on average, its changes paid for.",
        between(0.5, 1),
    )
    watch_frozen_hours: float = knob(
        "gate", 2.0, "Between a look and the first change that follows from it: people need the time.",
        between(0, 168), unit="h",
    )  # fmt: skip
    gate_run_out_chance: float = knob(
        "gate", 0.95,
        "Chance that capacity is exhausted within ``purchase_lead_days`` above which the check fails.",
        between(0, 1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Cast, resolve the board and check every value; all faults are reported at once."""
        check_knobs(self, where="scenario", resolve=self._resolve)

    def _resolve(self) -> None:
        if self.board is not None:
            object.__setattr__(self, "board", CATALOGUES["board"](self.board))

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "scenario") -> Self:
        """Make a scenario from plain values; unknown keys are refused and the nearest name is given.

        Examples
        --------
        >>> Scenario.from_dict({"quantil": 0.9})
        Traceback (most recent call last):
            ...
        gpuplanner.core.errors.ScenarioError: scenario: expected known keys; got unknown 'quantil' (did you mean
        'quantile'?). Remove or rename them; a file of a newer version needs that version, this is
        0.1.0.
        """
        return cls(**cls._known(values, where))

    @classmethod
    def _known(cls, values: dict[str, Any], where: str) -> dict[str, Any]:
        known = list(knobs_of(cls))
        unknown = [str(key) for key in values if key not in known]
        if unknown:
            near = [f"{key!r} (did you mean {nearest(key, known)[:1] or known!r}?)" for key in unknown]
            listed = ", ".join(near).replace("[", "").replace("]", "")
            newer = f"a file of a newer version needs that version, this is {__version__}"
            mend = f"Remove or rename them; {newer}."
            raise ScenarioError(where, "known keys", f"unknown {listed}", mend)
        return values

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a scenario file; relative ``data`` and other files are taken from the folder of the file.

        A scenario of own data without a name has that of their folder.

        Raises
        ------
        ScenarioError
            If the file is not a mapping of known keys to fitting values.
        """
        from gpuplanner.core.serialization import read_yaml

        path = Path(path)
        values = read_yaml(path)
        if not isinstance(values, dict):
            expected = "a mapping of scenario keys"
            raise ScenarioError(str(path), expected, type(values).__name__, "Write 'key: value' lines.")
        data = values.get("data", "sample")
        if isinstance(data, str) and data != "sample" and not Path(data).is_absolute():
            values["data"] = str(path.parent / data)
        if isinstance(data, str) and data != "sample" and Path(data).name:
            values.setdefault("name", Path(data).name)
        for key in FILES:
            if isinstance(named := values.get(key), str) and named.strip():
                values[key] = str(path.parent / named)
        return cls.from_dict(values, where=str(path))

    def to_yaml(self) -> str:
        """Print every key, so that nothing depends on defaults that may change."""
        from gpuplanner.core.serialization import to_yaml

        return to_yaml(dataclasses.asdict(self))

    def but(self, **changes: Any) -> Scenario:  # noqa: ANN401 - as the fields
        """The same scenario with other values of some fields.

        Examples
        --------
        >>> Scenario().but(wait_minutes=5).wait_minutes
        5.0
        """
        return replace(self, **changes)

    def without_prices(self) -> Scenario:
        """The same scenario with prices at their default: for what is played, and priced afterwards.

        Examples
        --------
        >>> Scenario(price_usd_per_kwh=0.2, seed=7).without_prices() == Scenario(seed=7)
        True
        """
        rows = knobs_of(Scenario).values()
        return self.but(**{row.name: row.default for row in rows if row.group == PRICES})

    def diff(self, other: Scenario) -> dict[str, tuple[Any, Any]]:
        """Fields that differ, with both values.

        Examples
        --------
        >>> Scenario().diff(Scenario(seed=2))
        {'seed': (1, 2)}
        """
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}

    def with_text(self, assignments: Iterable[str]) -> Self:
        """Apply ``key=value`` texts, as given on a command line.

        Examples
        --------
        >>> Scenario().with_text(["quantile=0.75", "nodes=4"]).quantile
        0.75
        """
        values: dict[str, Any] = {}
        for text in assignments:
            key, equals, value = text.partition("=")
            if not equals:
                raise ScenarioError("--set", "key=value", repr(text), "Write for example quantile=0.95.")
            row = knobs_of(type(self)).get(key.strip())
            values[key.strip()] = value if row is None else row.read(value)
        return replace(self, **self._known(values, "--set"))

    @property
    def effort(self) -> SearchLimits:
        """How hard plans are searched for, as the planner takes it."""
        return {
            "gap_target": self.gap_target,
            "time_limit_s": self.time_limit_s,
            "work_limit": self.work_limit,
            "seed": self.seed,
        }

    @property
    def slot_s(self) -> float:
        """Length of a slot in seconds."""
        return self.slot_hours * 3600.0

    def month_span(self) -> tuple[datetime, datetime] | None:
        """First instant of the month and of the next one, in UTC; None without a month.

        Examples
        --------
        >>> [t.isoformat() for t in Scenario(month="2026-03", tz="Europe/Berlin").month_span()]
        ['2026-02-28T23:00:00+00:00', '2026-03-31T22:00:00+00:00']
        """
        if self.month is None:
            return None
        year, month = map(int, self.month.split("-"))
        zone = ZoneInfo(self.tz)
        first = datetime(year, month, 1, tzinfo=zone)
        after = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=zone)
        return first.astimezone(UTC), after.astimezone(UTC)
