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
RENAMED = {
    "wait_minutes": "max_added_wait_minutes", "wait_quantile": "wait_percentile", "path": "actuator",
    "board": "gpu_model", "other_boards": "substitute_models", "watch_frozen_hours": "notice_hours",
    "gate_days": "check_days", "gate_wait_minutes": "check_wait_minutes", "gate_late_share": "check_wait_share",
    "gate_short_chance": "check_short_chance", "gate_miss_chance": "check_miss_chance",
    "gate_run_out_chance": "check_exhaustion_chance", "slot_hours": "interval_hours",
    "horizon_slots": "horizon_intervals",
}  # fmt: skip
"""Fields of earlier versions, and their names of today."""
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
    """Data, fleet, rules and prices of a plan.

    Examples
    --------
    >>> Scenario(gpu_model="h100-80gb-sxm").gpu_model
    'H100-80GB-SXM5'
    >>> Scenario(quantile=2)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: scenario: expected quantile between 0.05 and 0.95; got 2.0. Fix
    quantile.
    """

    name: str = knob("data", "sample fleet", "Name of the cluster, the title of reports.", NOT_EMPTY)
    data: str = knob("data", "sample", "Dataset folder from ``gpuplanner ingest``, or ``sample``, the bundled one.")
    month: str | None = knob(
        "data", None, "Month to report, YYYY-MM, in the time zone ``tz``.",
        KnobRule("as YYYY-MM", lambda value, _: re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value) is not None),
        none="the whole observation",
    )  # fmt: skip
    tz: str = knob(
        "data", "UTC",
        "Time zone of calendar months, of times without an offset, and of the output, such as ``Europe/Berlin``.",
        KnobRule("a time zone, such as Europe/Berlin", lambda value, _: value in _zones()),
    )  # fmt: skip
    number_locale: str = knob(
        "data", "en",
        "Number and date format of pages, mails and workbooks: en 1,234.5 and 2026-03-01, "
        "de 1.234,5 and 01.03.2026, ch 1’234.5, fr 1 234,5. JSON, CSV and Parquet are the same in each.",
        one_of(*LOCALES)
    )  # fmt: skip
    report_url: str | None = knob(
        "data", None, "Web address of the folder of reports, for links in mails.",
        KnobRule("an address that begins with https:// or http://",
                 lambda value, _: re.fullmatch(r"https?://[^\s<>\"']+", value) is not None),
        none="mails name the folder",
    )  # fmt: skip
    smallest_group: int = knob(
        "data", 0,
        "Teams with fewer people appear as ``(small groups)`` in every table, chart and export; 0: all teams by name. "
        "Set "
        "it, for example to 5, before a report leaves the team, so that no figure is about one person. Job ids and "
        "node names stay: replace them at import (``gpuplanner ingest --pseudonyms``).",
        at_least(0)
    )  # fmt: skip
    gpu_model: str | None = knob(
        "fleet", None,
        "GPU model to plan for; a unique prefix is enough. A model other than the data's is a what-if: every installed "
        "GPU counts as this model.",
        none="the GPU model in the data; if several, that of the largest pool"
    )  # fmt: skip
    pool: str | None = knob(
        "fleet", None,
        "GPU pool to plan alone, by the name of its GPU model in the data.", NOT_EMPTY,
        none="each pool separately where a command shows several, else that of gpu_model, or the largest"
    )  # fmt: skip
    substitute_models: str | None = knob(
        "fleet", None,
        "GPU models that may serve jobs without a requested model, in order of preference, separated by commas. Demand "
        "goes to the first model that fits and has capacity. A listed model serves its own jobs in its turn as well; "
        "a model that is not listed serves them last.",
        NOT_EMPTY, none="jobs stay on the model that they ran on"
    )  # fmt: skip
    nodes: int = knob(
        "fleet", 0,
        "Nodes of the fleet; 0: the installed GPUs of the inventory, or the peak of allocated GPUs. Nodes of the "
        "inventory keep their size and MIG layout; nodes beyond the inventory have MIG disabled. See "
        ":mod:`gpuplanner.usage.planned_fleet`.",
        between(0, 100_000)
    )  # fmt: skip
    gpus_per_node: int = knob("fleet", 8, "GPUs of a node that is not in the inventory.", between(1, 128))
    history_days: int = knob(
        "demand", 56, "History that simulations, forecasts and bootstraps use.", at_least(2), unit="days"
    )
    interval_hours: float = knob(
        "demand", 1.0, "Length of an interval of the plan.",
        KnobRule("between 1/60 and 168", lambda value, _: 1 / 60 <= value <= 168), unit="h"
    )  # fmt: skip
    horizon_intervals: int = knob("demand", 168, "Intervals of the plan.", between(1, 10_000))
    quantile: float = knob("demand", 0.9, "Demand quantile that the plan covers.", between(0.05, 0.95))
    arrival_scale: float = knob(
        "demand", 1.0, "Factor on demand, for what-if questions: 1.2 plans for 20 % more jobs.", between(0.05, 20),
        control=Slider("Demand factor", 0.5, 2.0, 0.05, decimals=2)
    )  # fmt: skip
    actuator: str = knob(
        "actuator", "mig-manager",
        "Tool that applies changes to the cluster, which determines the changes that can be recommended; own data have "
        "the default of their source. Layouts are changed by the MIG manager of the GPU Operator, by mig-parted, one "
        "instance at a time by nvidia-smi or a DRA driver, or on nodes that an autoscaler or Slurm power saving "
        "starts. :mod:`gpuplanner.hardware.actuators` has the abilities of each.",
        KnobRule(f"one of {', '.join(MADE_BY)}", lambda value, _: value in MADE_BY, lambda: tuple(MADE_BY)),
        control=DropDown("Actuator"),
    )  # fmt: skip
    node_lead_s: float | None = knob(
        "actuator", None, "Median time from powering a node up until it accepts jobs.",
        between(0, SECONDS_PER_DAY), unit="s", none="the catalog's value"
    )  # fmt: skip
    ownership: str | None = knob(
        "actuator", None,
        "Ownership of the GPUs, which sets the financial impact of released ones: owned GPUs save electricity, rented "
        "ones their price, reserved ones nothing until the term ends.",
        KnobRule(f"one of {', '.join(OWNERSHIPS)}", lambda value, _: value in OWNERSHIPS, lambda: OWNERSHIPS),
        none="as in the inventory; without one, all three cases are reported",
        control=DropDown("Ownership"),
    )  # fmt: skip
    max_added_wait_minutes: float = knob(
        "service", 10.0,
        "Maximum added queue wait of each job size, compared with today.",
        between(0, 10_080, ", which is a week"), unit="minutes",
        control=Slider("Maximum added wait", 0, 120, 1, decimals=1)
    )  # fmt: skip
    wait_percentile: float = knob(
        "service", 0.95, "Percentile of the added wait that must stay within the maximum, as a fraction.",
        between(0.5, 0.999), control=Slider("Jobs within the limit", 0.5, 0.99, 0.01)
    )  # fmt: skip
    target_wait_minutes: float | None = knob(
        "service", None,
        "Target of the p95 queue wait of each job size. If it is set, a purchase that meets it is recommended however "
        "little waiting it removes.",
        between(0, 10_080, ", which is a week"), unit="minutes",
        none="30, and a purchased GPU-hour must remove at least 0.1 GPU-hours of waiting"
    )  # fmt: skip
    policies: str | None = knob(
        "service", None, "Policies to compare, separated by commas.",
        none="all"
    )  # fmt: skip
    quotas: str | None = knob(
        "service", None,
        "File of team quotas, weights, tiers, allowed start hours and preemption, ``quotas.yaml``. Plans cover the "
        "demand that the quotas admit.",
        NOT_EMPTY,
        none="the quotas in the data, for the report only: simulations and plans ignore them"
    )  # fmt: skip
    quotas_to_try: str | None = knob(
        "service", None,
        "File of quotas and rules to try, in the form of ``quotas``: ``compare`` simulates both on the same weeks, and "
        "reports the change of each team's queue wait and the work lost to preemption.",
        NOT_EMPTY, none="stated quotas are compared with no quotas"
    )  # fmt: skip
    gpu_mtbf_hours: float | str | None = knob(
        "service", None,
        "Mean time between failures of one GPU in the simulation of ``compare``, or ``observed`` for the rate in the "
        "data. A failed job queues again and repeats the work since its last checkpoint. The observed rate is that of "
        "jobs ended by node failures or of hardware errors in telemetry (XID), whichever is higher.",
        KnobRule(
            "between 1 and 1000000000, or 'observed'",
            lambda value, _: value == "observed" or (isinstance(value, float) and 1 <= value <= 1e9),
        ),
        unit="h", none="no failures in the simulation",
    )  # fmt: skip
    gang_slowdowns: str | None = knob(
        "service", None,
        "Slowdown of jobs on several nodes within one rack, and across racks: ``1.1,1.3`` for 10 % and 30 % longer. "
        "``compare`` simulates placements with it.",
        KnobRule(
            "two numbers from 1, separated by a comma, the second not below the first",
            lambda value, _: slowdowns_of(value) is not None,
        ),
        none="placements are not compared",
    )  # fmt: skip
    change_gpu_hours: float | None = knob(
        "plan", None, "Cost of a change of layout in the plan.", between(0, 1000),
        unit="GPU h", none="the catalog's value for GPU model and actuator"
    )  # fmt: skip
    whole_nodes_kept: int = knob("plan", 0, "Nodes, from the first, that stay without MIG.", at_least(0))
    switches_per_day: int | None = knob(
        "plan", None, "Layout changes of one GPU a day, at most.", at_least(0), none="any number"
    )
    calendars: int | None = knob(
        "plan", None, "Maximum number of layout mixes that a plan alternates between; 0: any number.", at_least(0),
        none="3 where the actuator drains whole nodes (mig-manager, slurm, autoscaler), else any number"
    )  # fmt: skip
    change_windows: str | None = knob(
        "plan", None,
        "Times of day in ``tz`` at which layouts may change, such as ``06:00-08:00, 18:00-20:00``. A plan changes "
        "layouts at the first interval that begins within such a window.",
        KnobRule("as HH:MM-HH:MM, several separated by commas", lambda value, _: windows_of(value) is not None),
        none="at any time",
    )  # fmt: skip
    gap_target: float = knob(
        "plan", 0.005, "Optimality gap at which the planner may stop.",
        KnobRule("between 0 and 1", lambda value, _: 0 <= value < 1)
    )  # fmt: skip
    work_limit: int | None = knob(
        "plan", None,
        "Work limit of the planner, in units of about 15 ms. Unlike a time limit, it gives the same plan everywhere.",
        at_least(1), none="2000, or the time limit alone where time_limit_s is set", option="--work-limit"
    )  # fmt: skip
    time_limit_s: float | None = knob(
        "plan", None, "Time limit of the planner; the plan then depends on the speed of the machine.",
        KnobRule("between 0 and 86400", lambda value, _: 0 < value <= SECONDS_PER_DAY), unit="s", option="--time-limit",
        none="no time limit"
    )  # fmt: skip
    queue: str = knob("simulation", "easy", "Backfill rule of every policy.", one_of("easy", "strict"))
    replications: int = knob("simulation", 20, "Number of bootstrap samples of the recorded weeks.", between(2, 1000))
    seed: int = knob("simulation", 1, "Seed of the random numbers.", at_least(0))
    price_usd_per_gpu_hour: float = knob(
        PRICES, 0.0,
        "Your price of a GPU-hour, in ``currency``; 0: the price book, else the median on-demand list price.",
        KnobRule("at least 0", lambda value, _: 0 <= value <= 1e6), unit="per GPU-hour"
    )  # fmt: skip
    carbon_region: str = knob(PRICES, "gcp:europe-west4", "Region of carbon factors, ``scope:region``.")
    pue: float = knob(
        PRICES, 0.0, "Power usage effectiveness (PUE): facility energy over IT energy; 0: the survey average in the "
        "catalog.",
        KnobRule("0 (catalog) or between 1 and 5", lambda value, _: value == 0 or 1 <= value <= 5),
    )  # fmt: skip
    currency: str = knob(
        PRICES, "USD", "Currency of your prices and of the results (ISO 4217).",
        KnobRule("a currency of ISO 4217", lambda value, _: CATALOGUES["currency"](value) == value),
    )  # fmt: skip
    price_book: str | None = knob(
        PRICES, None, "Price book, ``prices.yaml``: prices, owned GPUs, exchange rates and electricity.",
        NOT_EMPTY, none="the on-demand list prices of the catalog"
    )  # fmt: skip
    carbon_file: str | None = knob(
        PRICES, None, "CSV file of hourly carbon factors of the grid, used instead of ``carbon_region``.", NOT_EMPTY,
        none="the mean of the region over a year"
    )  # fmt: skip
    spot_share: float = knob(PRICES, 0.0, "Share of the load that may run on spot GPUs.", between(0, 1))
    spot_interruptions_per_day: float = knob(
        PRICES, 1.0, "Interruptions of a spot job, measured or stated by the provider.", between(0, 1000),
        unit="per day"
    )  # fmt: skip
    price_usd_per_kwh: float | None = knob(
        PRICES, None, "Electricity tariff that the owner of the GPUs pays.", between(0, 1000), unit="USD per kWh",
        none="the catalog's value", control=Slider("Electricity", 0.0, 1.0, 0.01, decimals=3)
    )  # fmt: skip
    purchase_lead_days: int = knob(
        "outlook", 90,
        "Time from order until GPUs accept jobs: purchases are recommended this far ahead.",
        between(0, 1095), unit="days", control=Slider("Order to delivery", 0, 365, 5)
    )  # fmt: skip
    projects: str | None = knob(
        "outlook", None, "File of announced projects and a calendar, ``projects.yaml``.", NOT_EMPTY,
        none="no announced projects"
    )  # fmt: skip

    check_days: int = knob(
        "check", 7, "Days to look back and ahead in ``gpuplanner check``.", between(1, 28), unit="days"
    )
    check_wait_minutes: float = knob(
        "check", 60.0,
        "Queue wait that ``gpuplanner check`` tolerates; the report has its own target, ``target_wait_minutes``.",
        between(0, 10_080), unit="minutes"
    )  # fmt: skip
    check_wait_share: float = knob(
        "check", 0.1, "Share of the jobs of a size that wait over ``check_wait_minutes`` at which the check fails.",
        between(0, 1)
    )  # fmt: skip
    check_short_chance: float = knob(
        "check", 0.5, "Probability that jobs miss the wait target in the days ahead, above which the check fails.",
        between(0, 1)
    )  # fmt: skip
    check_miss_chance: float = knob(
        "check", 0.05,
        "Sensitivity of the forecast check: it fails on errors less probable than this, so lower values fail less "
        "often. 0.02 gives about one false alarm per year with weekly runs, 0.05 two to three.",
        between(0, 0.5)
    )  # fmt: skip
    watch_chance: float = knob(
        "check", 0.85, "Probability of a net gain from which ``gpuplanner watch`` writes a change bundle.",
        between(0.5, 1)
    )  # fmt: skip
    notice_hours: float = knob(
        "check", 2.0, "Notice between an evaluation and the first change, for the people who apply it.",
        between(0, 168), unit="h"
    )  # fmt: skip
    check_exhaustion_chance: float = knob(
        "check", 0.95,
        "Probability of capacity exhaustion within ``purchase_lead_days`` above which the check fails.",
        between(0, 1)
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Cast, resolve the GPU model and check every value; all faults are reported at once."""
        check_knobs(self, where="scenario", resolve=self._resolve)

    def _resolve(self) -> None:
        if self.gpu_model is not None:
            object.__setattr__(self, "gpu_model", CATALOGUES["gpu_model"](self.gpu_model))

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "scenario") -> Self:
        """Make a scenario from plain values; unknown keys are refused and the nearest name is given.

        Examples
        --------
        >>> Scenario.from_dict({"quantil": 0.9})
        Traceback (most recent call last):
            ...
        gpuplanner.core.errors.ScenarioError: scenario: expected known keys; got unknown 'quantil' (did you mean
        'quantile'?). Fix these keys (version 0.1.0).
        >>> Scenario.from_dict({"wait_minutes": 5})
        Traceback (most recent call last):
            ...
        gpuplanner.core.errors.ScenarioError: scenario: made by an earlier version: 'wait_minutes' is now
        'max_added_wait_minutes'
        """
        return cls(**cls._known(values, where))

    @classmethod
    def _known(cls, values: dict[str, Any], where: str) -> dict[str, Any]:
        known = list(knobs_of(cls))
        unknown = [str(key) for key in values if key not in known]
        if renamed := [f"{key!r} is now {RENAMED[key]!r}" for key in unknown if key in RENAMED]:
            raise ScenarioError(f"{where}: made by an earlier version: {', '.join(renamed)}")
        if unknown:
            near = ((key, nearest(key, [*known, *RENAMED])[:1]) for key in unknown)
            hints = (
                repr(key) + "".join(f" (did you mean {RENAMED.get(one, one)!r}?)" for one in hit) for key, hit in near
            )
            todo = f"Fix these keys (version {__version__})."
            raise ScenarioError(where, "known keys", f"unknown {', '.join(hints)}", todo)
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
        >>> Scenario().but(max_added_wait_minutes=5).max_added_wait_minutes
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
        return self.interval_hours * 3600.0

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


def require_scenario(value: object) -> None:
    """Raise TypeError with an example unless a value is a scenario.

    Examples
    --------
    >>> require_scenario("sample")
    Traceback (most recent call last):
        ...
    TypeError: expected a Scenario; got 'sample': write for example gp.Scenario(data='sample')
    """
    if not isinstance(value, Scenario):
        hint = f"Scenario(data={str(value)!r})" if isinstance(value, str | Path) else "Scenario()"
        raise TypeError(f"expected a Scenario; got {value!r}: write for example gp.{hint}")
