"""Scenario: all settings that an analysis depends on, as a frozen value with a strict YAML form."""

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
from gpuplanner.core.errors import ScenarioError, nearest_names
from gpuplanner.core.setting_rules_and_controls import (
    NAME_RESOLVER_BY_KIND,
    OWNERSHIPS,
    PARTITIONER_BY_ACTUATOR,
    DropDown,
    SettingRule,
    Slider,
    check_settings,
    choice_rule,
    document_settings,
    minimum_rule,
    range_rule,
    setting,
    settings_of,
)
from gpuplanner.core.units_and_number_formats import LOCALE_BY_NAME, SECONDS_PER_DAY

RECOMMENDED = "recommended"
"""Value of ``mig_layout`` for layouts that a recommendation may change."""
PRICE_GROUP = "prices"
"""Group of scenario fields that change costs only, so that simulations need not run again."""
FILE_PATH_FIELDS = ("projects", "services", "price_book", "carbon_file", "quotas", "quotas_to_try")
"""Scenario fields that name files, relative to the folder of the scenario file."""
FIELD_BY_OLD_NAME = {
    "wait_minutes": "max_added_wait_minutes", "path": "actuator",
    "board": "gpu_model", "other_boards": "substitute_models", "watch_frozen_hours": "notice_hours",
    "gate_days": "check_days", "gate_wait_minutes": "check_wait_minutes", "gate_late_share": "check_wait_share",
    "gate_short_chance": "check_short_chance", "gate_miss_chance": "check_miss_chance",
    "gate_run_out_chance": "check_exhaustion_chance", "slot_hours": "interval_hours",
    "horizon_slots": "horizon_intervals", "price_usd_per_gpu_hour": "price_per_gpu_hour",
}  # fmt: skip
"""Present name of a scenario field by its name in earlier versions, for error messages."""
NOT_EMPTY_RULE = SettingRule("not empty", lambda value, _: value.strip() != "")
"""Setting rule of a text that must not be blank."""


@functools.cache
def _time_zone_names() -> frozenset[str]:
    """Return the names in the tz database; cached, since listing them reads its folder."""
    return frozenset(available_timezones())


def parse_change_windows(text: str) -> list[tuple[int, int]] | None:
    """Parse change windows into begin [minute of the day] and length [min]; None if the text is malformed.

    Examples
    --------
    >>> parse_change_windows("06:00-08:00, 22:30-01:00"), parse_change_windows("6-8")
    ([(360, 120), (1350, 150)], None)
    """
    windows = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)\s*", part)
        if match is None:
            return None
        begin, end = (60 * int(match[group]) + int(match[group + 1]) for group in (1, 3))
        windows.append((begin, (end - begin) % (24 * 60)))
    return windows


def parse_gang_slowdowns(text: str) -> tuple[float, float] | None:
    """Parse the slowdowns of jobs on several nodes, within one rack and across racks; None if malformed.

    Returns
    -------
    tuple of float or None
        Run time relative to one node [ratio, at least 1].

    Examples
    --------
    >>> parse_gang_slowdowns("1.1, 1.3"), parse_gang_slowdowns("1.3,1.1"), parse_gang_slowdowns("fast")
    ((1.1, 1.3), None, None)
    """
    try:
        within_rack, across_racks = map(float, text.split(","))
    except ValueError:
        return None
    return (within_rack, across_racks) if 1 <= within_rack <= across_racks < 1000 else None


def is_month(text: str) -> bool:
    """Whether a text is a calendar month whose begin and end are instants in every time zone.

    Examples
    --------
    >>> is_month("2026-02"), is_month("2026-13"), is_month("9999-12"), is_month("0000-01")
    (True, False, False, False)
    """
    return re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text) is not None and "1900-01" <= text <= "9000-12"


class SearchLimits(TypedDict, total=False):
    """Limits of a plan search: keyword arguments of :func:`gpuplanner.planner.plan`."""

    time_limit_s: float | None
    gap_target: float
    seed: int
    solver: str
    work_limit: int | None


@document_settings
@dataclass(frozen=True, kw_only=True, repr=False)
class Scenario:
    """Data, cluster, rules and prices of an analysis.

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

    name: str = setting("data", "sample fleet", "Name of the cluster, the title of reports.", NOT_EMPTY_RULE)
    data: str = setting("data", "sample", "Dataset folder from ``gpuplanner ingest``, or ``sample``, the bundled one.")
    month: str | None = setting(
        "data", None, "Month to report, YYYY-MM, in the time zone ``tz``.",
        SettingRule("YYYY-MM from 1900-01 to 9000-12", lambda value, _: is_month(value)),
        none="the whole observation",
    )  # fmt: skip
    tz: str = setting(
        "data", "UTC",
        "Time zone of calendar months, of times without an offset, and of the output, such as ``Europe/Berlin``.",
        SettingRule("a time zone, such as Europe/Berlin", lambda value, _: value in _time_zone_names()),
    )  # fmt: skip
    number_locale: str = setting(
        "data", "en",
        "Number and date format of pages, mails and workbooks: en 1,234.5 and 2026-03-01, "
        "de 1.234,5 and 01.03.2026, ch 1’234.5, fr 1 234,5. JSON, CSV and Parquet are the same in each.",
        choice_rule(*LOCALE_BY_NAME)
    )  # fmt: skip
    report_url: str | None = setting(
        "data", None, "Web address of the folder of reports, for links in mails.",
        SettingRule("an address that begins with https:// or http://",
                 lambda value, _: re.fullmatch(r"https?://[^\s<>\"']+", value) is not None),
        none="mails name the folder",
    )  # fmt: skip
    smallest_group: int = setting(
        "data", 0,
        "Teams with fewer people appear as ``(small groups)`` in every table, chart and export; 0: all teams by name. "
        "Set "
        "it, for example to 5, before a report leaves the team, so that no figure is about one person. Job ids and "
        "node names stay: replace them at import (``gpuplanner ingest --pseudonyms``).",
        minimum_rule(0)
    )  # fmt: skip
    gpu_model: str | None = setting(
        "fleet", None,
        "GPU model to plan for; a unique prefix is enough. A model other than the data's is a what-if: every installed "
        "GPU counts as this model.",
        none="the GPU model in the data; if several, that of the largest pool"
    )  # fmt: skip
    pool: str | None = setting(
        "fleet", None,
        "GPU pool to plan and to account for alone, by the name of its GPU model in the data.", NOT_EMPTY_RULE,
        none="each pool separately where a command shows several, else that of gpu_model, or the largest"
    )  # fmt: skip
    substitute_models: str | None = setting(
        "fleet", None,
        "GPU models that may serve jobs without a requested model, in order of preference, separated by commas. Demand "
        "goes to the first model that fits and has capacity. A listed model serves its own jobs in its turn as well; "
        "a model that is not listed serves them last.",
        NOT_EMPTY_RULE, none="jobs stay on the model that they ran on"
    )  # fmt: skip
    nodes: int = setting(
        "fleet", 0,
        "Nodes of the fleet; 0: the installed GPUs of the inventory, or the peak of allocated GPUs. Nodes of the "
        "inventory keep their size and MIG layout; nodes beyond the inventory have MIG disabled.",
        range_rule(0, 100_000)
    )  # fmt: skip
    gpus: int | None = setting(
        "fleet", None,
        "Fleet size to decide for, in whole nodes: waits, policies and costs of so many GPUs at the stated demand, "
        "growth and wait limits, in the MIG layout that is recommended for this demand.",
        range_rule(1, 1_000_000), unit="GPU", none="the recommended number", control=Slider("Fleet size", 8, 96, 8)
    )  # fmt: skip
    gpus_per_node: int = setting("fleet", 8, "GPUs of a node that is not in the inventory.", range_rule(1, 128))
    history_days: int = setting(
        "demand", 56, "History that simulations and forecasts use and resample.", minimum_rule(2), unit="days"
    )
    interval_hours: float = setting(
        "demand", 1.0, "Length of an interval of the plan.",
        SettingRule("between 1/60 and 168", lambda value, _: 1 / 60 <= value <= 168), unit="h"
    )  # fmt: skip
    horizon_intervals: int = setting("demand", 168, "Intervals of the plan.", range_rule(1, 10_000))
    quantile: float = setting("demand", 0.9, "Demand quantile that the plan covers.", range_rule(0.05, 0.95))
    arrival_scale: float = setting(
        "demand", 1.0, "Factor on demand, for what-if questions: 1.2 plans for 20 % more jobs.", range_rule(0.05, 20),
        control=Slider("Demand", 0.5, 2.0, 0.05, decimals=2)
    )  # fmt: skip
    actuator: str = setting(
        "actuator", "mig-manager",
        "Tool that applies changes to the cluster, which determines the changes that can be recommended. Own data: "
        "slurm for Slurm files; for Kubernetes dumps mig-manager, or dra if at least as many pods request GPUs by "
        "ResourceClaims as by the device plugin. Layouts are changed by the MIG manager of the GPU Operator, by "
        "mig-parted, one instance at a time by nvidia-smi or a DRA driver, or on nodes that an autoscaler or Slurm "
        "power saving starts.",
        SettingRule(f"one of {', '.join(PARTITIONER_BY_ACTUATOR)}",
                    lambda value, _: value in PARTITIONER_BY_ACTUATOR, lambda: tuple(PARTITIONER_BY_ACTUATOR)),
        usual="slurm for Slurm data, mig-manager or dra for Kubernetes", control=DropDown("Actuator"),
    )  # fmt: skip
    mig_layout: str = setting(
        "actuator", RECOMMENDED,
        "MIG layouts: ``recommended`` partitions GPUs where that shortens waits or frees GPUs, ``today`` keeps the "
        "layouts of the data.",
        choice_rule(RECOMMENDED, "today"), control=DropDown("MIG partitioning")
    )  # fmt: skip
    node_lead_s: float | None = setting(
        "actuator", None, "Median time from powering a node up until it accepts jobs.",
        range_rule(0, SECONDS_PER_DAY), unit="s", none="the catalog's value"
    )  # fmt: skip
    ownership: str | None = setting(
        "actuator", None,
        "Ownership of the GPUs, which sets the financial impact of released ones: owned GPUs save electricity, rented "
        "ones their price, reserved ones nothing until the term ends.",
        SettingRule(f"one of {', '.join(OWNERSHIPS)}", lambda value, _: value in OWNERSHIPS, lambda: OWNERSHIPS),
        none="as in the inventory; without one, ``start`` assumes and reports owned",
    )  # fmt: skip
    max_added_wait_minutes: float = setting(
        "service", 10.0,
        "Maximum added queue wait of each job size, compared with today.",
        range_rule(0, 10_080, ", which is a week"), unit="minutes",
        control=Slider("Maximum added wait", 0, 60, 1, decimals=0)
    )  # fmt: skip
    target_wait_minutes: float | None = setting(
        "service", None,
        "p95 wait that every job size must meet; if you set it, even to 30, GPUs are bought until it is met; if not, "
        "a purchase must remove 0.1 GPU-hours of waiting per GPU-hour bought. A job size that meets it today may wait "
        "at most 10 min longer; ``max_added_wait_minutes`` replaces the 10 min.",
        range_rule(0, 10_080, ", which is a week"), unit="minutes",
        none="30"
    )  # fmt: skip
    policies: str | None = setting(
        "service", None, "Policies to compare, separated by commas.",
        none="all"
    )  # fmt: skip
    quotas: str | None = setting(
        "service", None,
        "File of team quotas, weights, tiers, allowed start hours and preemption, ``quotas.yaml``. Plans cover the "
        "demand that the quotas admit.",
        NOT_EMPTY_RULE,
        none="the quotas in the data, for the report only: simulations and plans ignore them"
    )  # fmt: skip
    quotas_to_try: str | None = setting(
        "service", None,
        "File of quotas and rules to try, in the form of ``quotas``: ``compare`` simulates both on the same weeks, and "
        "reports the change of each team's queue wait and the work lost to preemption.",
        NOT_EMPTY_RULE, none="without a file, stated quotas are compared with no quotas"
    )  # fmt: skip
    gpu_mtbf_hours: float | str | None = setting(
        "service", None,
        "Mean time between failures of one GPU in the simulation of ``compare``; the word ``observed`` takes the rate "
        "in the data. A failed job queues again and repeats the work since its last checkpoint. The observed rate is "
        "that of jobs ended by node failures or of hardware errors in telemetry (XID), whichever is higher.",
        SettingRule(
            "between 1 and 1000000000, or 'observed'",
            lambda value, _: value == "observed" or (isinstance(value, float) and 1 <= value <= 1e9),
        ),
        unit="h", none="no failures in the simulation",
    )  # fmt: skip
    gang_slowdowns: str | None = setting(
        "service", None,
        "Slowdown of jobs on several nodes within one rack, and across racks: ``1.1,1.3`` for 10 % and 30 % longer. "
        "``compare`` simulates placements with it.",
        SettingRule(
            "two numbers from 1, separated by a comma, the second not below the first",
            lambda value, _: parse_gang_slowdowns(value) is not None,
        ),
        none="placements are not compared",
    )  # fmt: skip
    change_gpu_hours: float | None = setting(
        "plan", None, "Cost of a change of layout in the plan.", range_rule(0, 1000),
        unit="GPU h", none="the catalog's value for GPU model and actuator"
    )  # fmt: skip
    whole_nodes_kept: int = setting("plan", 0, "Nodes, from the first, that stay without MIG.", minimum_rule(0))
    switches_per_day: int | None = setting(
        "plan", None, "Layout changes of one GPU a day, at most.", minimum_rule(0), none="any number"
    )
    calendars: int | None = setting(
        "plan", None, "Maximum number of layout mixes that a plan alternates between; 0: any number.", minimum_rule(0),
        none="3 where the actuator drains whole nodes (mig-manager, slurm, autoscaler), else any number"
    )  # fmt: skip
    change_windows: str | None = setting(
        "plan", None,
        "Times of day in ``tz`` at which layouts may change, such as ``06:00-08:00, 18:00-20:00``. A plan changes "
        "layouts at the first interval that begins within such a window.",
        SettingRule("as HH:MM-HH:MM, several separated by commas",
                    lambda value, _: parse_change_windows(value) is not None),
        none="at any time",
    )  # fmt: skip
    gap_target: float = setting(
        "plan", 0.005, "Optimality gap at which the planner may stop.",
        SettingRule("between 0 and 1", lambda value, _: 0 <= value < 1)
    )  # fmt: skip
    work_limit: int | None = setting(
        "plan", None,
        "Work limit of the planner, in units of about 15 ms. Unlike a time limit, it gives the same plan everywhere.",
        minimum_rule(1), none="2000; none if time_limit_s is set", option="--work-limit"
    )  # fmt: skip
    time_limit_s: float | None = setting(
        "plan", None, "Time limit of the planner; the plan then depends on the speed of the machine.",
        SettingRule("between 0 and 86400", lambda value, _: 0 < value <= SECONDS_PER_DAY), unit="s",
        option="--time-limit", none="no time limit"
    )  # fmt: skip
    queue: str = setting("simulation", "easy", "Backfill rule of every policy.", choice_rule("easy", "strict"))
    replications: int = setting(
        "simulation", 20, "Number of times that the recorded weeks are resampled.", range_rule(2, 1000)
    )
    seed: int = setting("simulation", 1, "Seed of the random numbers.", minimum_rule(0))
    price_per_gpu_hour: float = setting(
        PRICE_GROUP, 0.0,
        "Your rate per GPU-hour for all GPUs, in your ``currency``; 0: not set, the price book or list price holds.",
        SettingRule("at least 0", lambda value, _: 0 <= value <= 1e6), unit="per GPU-hour",
        control=Slider("GPU price", 0, 20, 0.01)
    )  # fmt: skip
    carbon_region: str = setting(PRICE_GROUP, "gcp:europe-west4", "Region of carbon factors, ``scope:region``.")
    pue: float = setting(
        PRICE_GROUP, 0.0,
        "Power usage effectiveness (PUE): facility energy over IT energy; 0: the survey average in the "
        "catalog.",
        SettingRule("0 (catalog) or between 1 and 5", lambda value, _: value == 0 or 1 <= value <= 5),
    )  # fmt: skip
    currency: str = setting(
        PRICE_GROUP, "USD", "Currency of your rates and of the results (ISO 4217).",
        SettingRule("a currency of ISO 4217", lambda value, _: NAME_RESOLVER_BY_KIND["currency"](value) == value),
    )  # fmt: skip
    price_book: str | None = setting(
        PRICE_GROUP, None, "Price book, ``prices.yaml``: your rates, owned GPUs, exchange rates and electricity.",
        NOT_EMPTY_RULE, none="the on-demand list prices of the catalog"
    )  # fmt: skip
    carbon_file: str | None = setting(
        PRICE_GROUP, None, "CSV file of hourly carbon factors of the grid, used instead of ``carbon_region``.",
        NOT_EMPTY_RULE, none="the mean of the region over a year"
    )  # fmt: skip
    spot_share: float = setting(PRICE_GROUP, 0.0, "Share of the load that may run on spot GPUs.", range_rule(0, 1))
    spot_interruptions_per_day: float = setting(
        PRICE_GROUP, 1.0, "Interruptions of a spot job, measured or stated by the provider.", range_rule(0, 1000),
        unit="per day"
    )  # fmt: skip
    price_usd_per_kwh: float | None = setting(
        PRICE_GROUP, None, "Electricity tariff of the owner, always in USD.", range_rule(0, 1000), unit="USD per kWh",
        none="the catalog's value"
    )  # fmt: skip
    approved_by: str | None = setting(
        PRICE_GROUP, None, "Person who approved the recommendation, shown in reports and change bundles.",
        NOT_EMPTY_RULE, none="not approved"
    )  # fmt: skip
    purchase_lead_days: int = setting(
        "outlook", 90,
        "Time from order until GPUs accept jobs: purchases are recommended this far ahead.",
        range_rule(0, 1095), unit="days"
    )  # fmt: skip
    growth_per_week: float | None = setting(
        "outlook", None, "Growth of the submitted work per week, as a share: 0.02 is 2 %.", range_rule(-0.5, 1),
        none="as measured in the record", control=Slider("Growth per week", -0.02, 0.05, 0.005, decimals=3)
    )  # fmt: skip
    projects: str | None = setting(
        "outlook", None, "File of announced projects and holidays, ``projects.yaml``.", NOT_EMPTY_RULE,
        none="no announced projects"
    )  # fmt: skip
    services: str | None = setting(
        "outlook", None, "File of inference services beside the jobs, ``services.yaml``: model, team and targets.",
        NOT_EMPTY_RULE, none="no inference services"
    )  # fmt: skip

    check_days: int = setting(
        "check", 7, "Days to look back and ahead in ``gpuplanner check``.", range_rule(1, 28), unit="days"
    )
    check_wait_minutes: float = setting(
        "check", 60.0,
        "Queue wait that ``gpuplanner check`` tolerates; the report has its own target, ``target_wait_minutes``.",
        range_rule(0, 10_080), unit="minutes"
    )  # fmt: skip
    check_wait_share: float = setting(
        "check", 0.1, "Share of the jobs of a size that wait over ``check_wait_minutes`` at which the check fails.",
        range_rule(0, 1)
    )  # fmt: skip
    check_short_chance: float = setting(
        "check", 0.5, "Probability that jobs miss the wait target in the days ahead, above which the check fails.",
        range_rule(0, 1)
    )  # fmt: skip
    check_miss_chance: float = setting(
        "check", 0.05,
        "Sensitivity of the forecast check: it fails on errors less probable than this, so lower values fail less "
        "often. 0.02 gives about one false alarm per year with weekly runs, 0.05 two to three.",
        range_rule(0, 0.5)
    )  # fmt: skip
    watch_chance: float = setting(
        "check", 0.85, "Probability of a net gain from which ``gpuplanner watch`` writes a change bundle.",
        range_rule(0.5, 1)
    )  # fmt: skip
    notice_hours: float = setting(
        "check", 2.0, "Notice between an evaluation and the first change, for the people who apply it.",
        range_rule(0, 168), unit="h"
    )  # fmt: skip
    check_exhaustion_chance: float = setting(
        "check", 0.95,
        "Probability of capacity exhaustion within ``purchase_lead_days`` above which the check fails.",
        range_rule(0, 1)
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Cast all values, resolve the GPU model and check the rules; all faults are reported at once."""
        check_settings(self, source="scenario", resolve=self._resolve)

    def _resolve(self) -> None:
        """Replace the GPU model by its full name in the catalogue."""
        if self.gpu_model is not None:
            object.__setattr__(self, "gpu_model", NAME_RESOLVER_BY_KIND["gpu_model"](self.gpu_model))

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, source: str = "scenario") -> Self:
        """Make a scenario from plain values.

        Parameters
        ----------
        values : dict
            Values by field name.
        source : str
            Origin of the values, for the message.

        Raises
        ------
        ScenarioError
            If a key is unknown, with the nearest name, or a value breaks its rule.

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
        return cls(**cls._require_known_keys(values, source))

    @classmethod
    def _require_known_keys(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the values, or raise :class:`ScenarioError` with suggestions if a key is not a field."""
        field_names = list(settings_of(cls))
        unknown = [str(key) for key in values if key not in field_names]
        if renamed := [f"{key!r} is now {FIELD_BY_OLD_NAME[key]!r}" for key in unknown if key in FIELD_BY_OLD_NAME]:
            raise ScenarioError(f"{source}: made by an earlier version: {', '.join(renamed)}")
        if unknown:
            suggestions = ((key, nearest_names(key, [*field_names, *FIELD_BY_OLD_NAME])[:1]) for key in unknown)
            texts = (
                repr(key) + "".join(f" (did you mean {FIELD_BY_OLD_NAME.get(name, name)!r}?)" for name in names)
                for key, names in suggestions
            )
            todo = f"Fix these keys (version {__version__})."
            raise ScenarioError(source, "known keys", f"unknown {', '.join(texts)}", todo)
        return values

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a scenario file; relative paths are relative to the folder of the file.

        A scenario without a name gets that of its data folder.

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
        for key in FILE_PATH_FIELDS:
            if isinstance(file_name := values.get(key), str) and file_name.strip():
                values[key] = str(path.parent / file_name)
        return cls.from_dict(values, source=str(path))

    def to_yaml(self) -> str:
        """Format every field as YAML, so that the file does not depend on defaults."""
        from gpuplanner.core.serialization import to_yaml

        return to_yaml(dataclasses.asdict(self))

    def but(self, **changes: Any) -> Scenario:  # noqa: ANN401 - as the fields
        """Return a copy with other values of some fields.

        Examples
        --------
        >>> Scenario().but(max_added_wait_minutes=5).max_added_wait_minutes
        5.0
        """
        return replace(self, **changes)

    def without_prices(self) -> Scenario:
        """Return a copy with default prices, as the key of simulations that are priced afterwards.

        Examples
        --------
        >>> Scenario(price_usd_per_kwh=0.2, seed=7).without_prices() == Scenario(seed=7)
        True
        """
        settings = settings_of(Scenario).values()
        return self.but(
            **{setting_row.name: setting_row.default for setting_row in settings if setting_row.group == PRICE_GROUP}
        )

    def __repr__(self) -> str:
        return f"Scenario({', '.join(f'{name}={value!r}' for name, (_, value) in Scenario().diff(self).items())})"

    def diff(self, other_scenario: Scenario) -> dict[str, tuple[Any, Any]]:
        """Compare two scenarios: the fields that differ, with both values.

        Examples
        --------
        >>> Scenario().diff(Scenario(seed=2))
        {'seed': (1, 2)}
        """
        own_values, other_values = dataclasses.asdict(self), dataclasses.asdict(other_scenario)
        return {
            name: (own_values[name], other_values[name])
            for name in own_values
            if own_values[name] != other_values[name]
        }

    def with_text(self, assignments: Iterable[str]) -> Self:
        """Apply ``key=value`` texts from a command line.

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
            setting_row = settings_of(type(self)).get(key.strip())
            values[key.strip()] = value if setting_row is None else setting_row.parse_text(value)
        return replace(self, **self._require_known_keys(values, "--set"))

    @property
    def search_limits(self) -> SearchLimits:
        """Limits of a plan search, as keyword arguments of the planner."""
        return {
            "gap_target": self.gap_target,
            "time_limit_s": self.time_limit_s,
            "work_limit": self.work_limit,
            "seed": self.seed,
        }

    @property
    def interval_s(self) -> float:
        """Length of an interval of the plan [s]."""
        return self.interval_hours * 3600.0

    def month_span(self) -> tuple[datetime, datetime] | None:
        """Return the first instant of the month and of the next one, in UTC; None without a month.

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
    """Raise ``TypeError`` with an example unless a value is a scenario.

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
