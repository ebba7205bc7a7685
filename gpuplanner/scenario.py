"""A scenario: everything that a study depends on, in one frozen value with a strict YAML form."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from zoneinfo import ZoneInfo, available_timezones

from gpuplanner.catalog import find_any_board, parameter
from gpuplanner.errors import ScenarioError, message
from gpuplanner.files import read_yaml, to_yaml
from gpuplanner.hardware import MADE_BY, ChangeCost, GpuModel, any_board
from gpuplanner.hardware.abilities import OWNERSHIPS, PathAbilities, abilities
from gpuplanner.names import nearest
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is planned, on what data, by which rules and at which price.

    Attributes
    ----------
    name : str
        Title of reports.
    data : str
        Folder written by ``gpuplanner ingest``, or ``"sample"`` for the shipped sample.
    month : str or None
        Calendar month ``YYYY-MM`` in ``tz`` that ledger and cost cover; None: the whole observation.
    tz : str
        Zone of calendar months and of what is shown.
    smallest_group : int
        Tenants with fewer users are shown together, as ``(small groups)``, in every table, chart and export, so
        that no figure speaks of one person; 0, the default: all by name. Set it, for example to 5, before a report
        leaves the team. Job ids and nodes stay as they are: replace those at ``ingest`` (``--pseudonyms``).
    workload : {"all", "fractional"}
        All jobs, or only those that ask for less than one GPU.
    board : str or None
        Board to plan for; a unique prefix is enough. None: the data's own, of several the largest pool. Another
        board than the data's is a what-if: every GPU installed counts as one of it.
    nodes, gpus_per_node : int
        Fleet; ``nodes`` 0: the GPUs that the inventory has installed, or the most that were held at once, see
        :mod:`gpuplanner.study.past.fleet`. Nodes of the inventory keep their own size; of as many as are given here,
        those that the inventory has stay cut as they are, and further ones are whole.
    history_days : int
        How much of the past forecasts and bootstraps use.
    slot_hours, horizon_slots
        Grid of the plan.
    quantile : float
        Demand quantile that the plan must cover.
    headroom : float
        Added to observed use when a request is right-sized.
    arrival_scale : float
        Factor on demand: what if there were so many times the jobs?
    over_request_share : float or None
        Share of the jobs that can shrink and still ask for too much; None: as in the trace.
    path : {"operator", "parted", "nvml", "dra", "autoscaler", "slurm"}
        How layouts are changed: by the MIG manager of the GPU operator, by mig-parted, instance by instance through
        NVML or a DRA driver, or on nodes that an autoscaler or Slurm's power saving starts. What each of them can do
        is in :mod:`gpuplanner.hardware.abilities`, which also knows the usual one of a source of data.
    node_lead_s, node_lead_slow_s : float or None
        Time until a node that was away takes jobs again [s]: the middle, at which policies are compared, and the slow
        end, at which a promise must hold too. None: the catalogue's; a slow end that is not stated is as many times
        the middle as there.
    ownership : {"owned", "reserved", "rented"} or None
        Who pays for GPUs that are not needed: their owner, who reserved them for a term, or nobody, because they are
        given back. None: what the inventory says; where it says nothing, every case is stated.
    returnable : bool or None
        Nodes that are not needed can be given to somebody else; if not they stay, and rest. None: what is rented can,
        what is owned or reserved cannot.
    wait_minutes, wait_quantile : float
        The service that policies are compared at: such a share of the jobs of each size starts within so many
        minutes, or within today's own simulated wait where that is longer.
    policies : str or None
        Which policies are compared so, names with commas between; None: all that the path can perform.
    reconfigure_minutes, change_gpu_hours : float or None
        Time for which a GPU is out of service for a change of layout, and what a change costs in the plan; None:
        what the catalogue has for the board and the path, see :meth:`change`.
    parked_price : float, "released" or None
        Price of an hour of a GPU that is not needed and parked: idle, with the layout it has. A plan then pays for
        emptying GPUs by how long their work runs on, and for each step of a change. ``"released"``: GPUs that are not
        needed are handed back or powered down, and cut anew when they come back. None: that of its power where it is
        owned; released where the path starts and stops nodes, and where most are rented by the hour, see
        :mod:`gpuplanner.study.future.idle_gpus`.
    whole_gpus_kept, whole_nodes_kept : int
        GPUs that are never cut, and nodes, the first ones, on which none is.
    switches_per_day : int or None
        Most cuts of one GPU within a day; None for any number.
    calendars : int or None
        Sets of layouts that a plan may take turns with; 0: any number. None: three where a path empties whole nodes
        (operator, Slurm, autoscaler), so that people can tell which one is in force, else any number.
    change_windows : str or None
        Times of the day in ``tz`` at which layouts may change, such as ``"06:00-08:00, 18:00-20:00"``; a plan changes
        at the first slot that begins in one. None: at any.
    node_changes_per_day, most_changes : int or None
        Most changes of one node within a day, and of all nodes in the whole plan; None for any number.
    reserve_hours : float
        How long before a planned change the scheduler keeps jobs away that would run past it, from the last change of
        the same node on at the earliest.
    drain_minutes, drain_limit_minutes : float or None
        GPU time that is lost while a GPU empties before its layout changes, which a plan pays where run times do not
        say it; and how long after its time a change waits for jobs to end before it is given up, in windows no longer
        than leaves time to cut. None: the catalogue's for path and board; if one is stated, the other goes along.
    unmet_price : float
        Price of one GPU-hour of demand not covered, in GPU-hours.
    gap_target, time_limit_s : float
        When the planner may stop.
    queue : {"easy", "strict"}
        Backfill rule of every policy.
    substitute : bool
        A larger free instance may serve a smaller request. It can only take away what the path can do: device plugins
        and typed GRES match names exactly, and no setting makes them give a job more than it named.
    replications, seed : int
        Bootstrapped weeks and their seed.
    price_usd_per_gpu_hour : float
        0: median list price of the board in the catalogue, where it has one.
    carbon_region : str
        Row of the carbon table, ``scope:region``.
    pue : float
        0: the survey average in the catalogue.
    currency : str
        ISO 4217 code of the price.
    price_usd_per_kwh : float or None
        What electricity costs the owner; None: the catalogue's.
    value_freed_at : float or None
        What a freed GPU-hour is worth to its owner [USD], who has other work for it. None: freed hours have no
        price, and what is saved on owned GPUs is their electricity.
    horizon_days : int
        How far ahead peaks, growth and what is given back are looked at.
    purchase_lead_days : int
        From an order until its GPUs take jobs: what has to be bought is looked at so far ahead.
    projects : str or None
        File of announced projects and of a calendar, ``projects.yaml``; None: nothing is announced.

    Examples
    --------
    >>> Scenario(board="h100-80gb-sxm").board
    'H100-80GB-SXM5'
    >>> Scenario(quantile=2)
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: scenario: expected quantile between 0.05 and 0.95; got 2.0. Change it.
    """

    name: str = "sample fleet"
    data: str = "sample"
    month: str | None = None
    tz: str = "UTC"
    smallest_group: int = 0
    workload: str = "all"
    board: str | None = None
    nodes: int = 0
    gpus_per_node: int = 8
    history_days: int = 28
    slot_hours: float = 1.0
    horizon_slots: int = 168
    quantile: float = 0.9
    headroom: float = 0.1
    arrival_scale: float = 1.0
    over_request_share: float | None = None
    path: str = "operator"
    node_lead_s: float | None = None
    node_lead_slow_s: float | None = None
    ownership: str | None = None
    returnable: bool | None = None
    wait_minutes: float = 10.0
    wait_quantile: float = 0.95
    policies: str | None = None
    reconfigure_minutes: float | None = None
    change_gpu_hours: float | None = None
    parked_price: float | str | None = None
    whole_gpus_kept: int = 0
    whole_nodes_kept: int = 0
    switches_per_day: int | None = None
    calendars: int | None = None
    change_windows: str | None = None
    node_changes_per_day: int | None = None
    most_changes: int | None = None
    reserve_hours: float = 168.0
    drain_minutes: float | None = None
    drain_limit_minutes: float | None = None
    unmet_price: float = 10.0
    gap_target: float = 0.005
    time_limit_s: float = 20.0
    queue: str = "easy"
    substitute: bool = True
    replications: int = 20
    seed: int = 1
    price_usd_per_gpu_hour: float = 0.0
    carbon_region: str = "gcp:europe-west4"
    pue: float = 0.0
    currency: str = "USD"
    price_usd_per_kwh: float | None = None
    value_freed_at: float | None = None
    horizon_days: int = 28
    purchase_lead_days: int = 90
    projects: str | None = None

    def __post_init__(self) -> None:
        """Cast, resolve the board and check every value; all faults are reported at once."""
        faults = [fault for field in fields(self) if (fault := self._cast(field))]
        if not faults:
            if self.board is not None:
                object.__setattr__(self, "board", find_any_board(self.board))
            faults = [text for ok, text in self._rules() if not ok]
        if faults:
            text = message("scenario", "; ".join(faults), self._got(faults), "Change it.")
            raise ScenarioError(text)

    def _cast(self, field: dataclasses.Field[Any]) -> str | None:
        """Accept an int where a float is wanted; refuse any other type."""
        value = getattr(self, field.name)
        wanted = _field_types()[field.name]
        kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
        if value is None and type(None) in kinds:
            return None
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(self, field.name, float(value))
            return None
        if type(value) in kinds and not (isinstance(value, float) and not math.isfinite(value)):
            return None
        return f"{field.name} of type {' or '.join(kind.__name__ for kind in kinds)}"

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (self.name.strip() != "", "name not empty"),
            (self.month is None or re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", self.month) is not None,
             "month as YYYY-MM"),
            (self.tz in available_timezones(), "tz a zone of the tz database, such as Europe/Berlin"),
            (self.workload in ("all", "fractional"), "workload 'all' or 'fractional'"),
            (0 <= self.nodes <= 100_000, "nodes between 0 and 100000"),
            (1 <= self.gpus_per_node <= 128, "gpus_per_node between 1 and 128"),
            (self.history_days >= 2, "history_days at least 2"),
            (1 / 60 <= self.slot_hours <= 168, "slot_hours between 1/60 and 168"),
            (1 <= self.horizon_slots <= 10_000, "horizon_slots between 1 and 10000"),
            (0.05 <= self.quantile <= 0.95, "quantile between 0.05 and 0.95"),
            (0 <= self.headroom <= 2, "headroom between 0 and 2"),
            (0.05 <= self.arrival_scale <= 20, "arrival_scale between 0.05 and 20"),
            (self.over_request_share is None or 0 <= self.over_request_share <= 1,
             "over_request_share between 0 and 1"),
            (self.path in MADE_BY, f"path one of {', '.join(MADE_BY)}: no other has a price of a change"),
            (self.node_lead_s is None or 0 <= self.node_lead_s <= SECONDS_PER_DAY,
             "node_lead_s between 0 and 86400"),
            (self.node_lead_slow_s is None or self._middle_lead_s() <= self.node_lead_slow_s <= SECONDS_PER_DAY,
             "node_lead_slow_s at most 86400 and not below node_lead_s, or the catalogue's where that is not stated"),
            (self.ownership in (None, *OWNERSHIPS), f"ownership one of {', '.join(OWNERSHIPS)}"),
            (0 <= self.wait_minutes <= 10_080, "wait_minutes between 0 and 10080, which is a week"),
            (0.5 <= self.wait_quantile <= 0.999, "wait_quantile between 0.5 and 0.999"),
            (self.reconfigure_minutes is None or 0 <= self.reconfigure_minutes <= 24 * 60,
             "reconfigure_minutes between 0 and 1440"),
            (self.change_gpu_hours is None or 0 <= self.change_gpu_hours <= 1000,
             "change_gpu_hours between 0 and 1000"),
            (self.parked_price in (None, "released")
             or (isinstance(self.parked_price, float) and 0 <= self.parked_price <= 1),
             "parked_price between 0 and 1, or 'released'"),
            (self.smallest_group >= 0, "smallest_group at least 0"),
            (self.whole_gpus_kept >= 0, "whole_gpus_kept at least 0"),
            (self.whole_nodes_kept >= 0, "whole_nodes_kept at least 0"),
            (self.switches_per_day is None or self.switches_per_day >= 0, "switches_per_day at least 0"),
            (self.calendars is None or self.calendars >= 0, "calendars at least 0"),
            (self.change_windows is None or windows_of(self.change_windows) is not None,
             "change_windows as HH:MM-HH:MM, several joined by commas"),
            (self.node_changes_per_day is None or self.node_changes_per_day >= 0,
             "node_changes_per_day at least 0"),
            (self.most_changes is None or self.most_changes >= 0, "most_changes at least 0"),
            (0 <= self.reserve_hours <= 24 * 28, "reserve_hours between 0 and 672"),
            (0 <= (self.drain_minutes or 0) <= 7 * 24 * 60, "drain_minutes between 0 and 10080"),
            (0 <= (self.drain_limit_minutes or 0) <= 7 * 24 * 60, "drain_limit_minutes between 0 and 10080"),
            (0 < self.unmet_price <= 1e6, "unmet_price above 0"),
            (0 <= self.gap_target < 1, "gap_target between 0 and 1"),
            (0 < self.time_limit_s <= 86_400, "time_limit_s between 0 and 86400"),
            (self.queue in ("easy", "strict"), "queue 'easy' or 'strict'"),
            (2 <= self.replications <= 1000, "replications between 2 and 1000"),
            (self.seed >= 0, "seed at least 0"),
            (0 <= self.price_usd_per_gpu_hour <= 1e6, "price_usd_per_gpu_hour at least 0"),
            (self.pue == 0 or 1 <= self.pue <= 5, "pue 0 (catalogue) or between 1 and 5"),
            (re.fullmatch(r"[A-Z]{3}", self.currency) is not None, "currency a code of three letters"),
            (self.price_usd_per_kwh is None or 0 <= self.price_usd_per_kwh <= 1000,
             "price_usd_per_kwh between 0 and 1000"),
            (self.value_freed_at is None or 0 <= self.value_freed_at <= 1e6, "value_freed_at between 0 and 1000000"),
            (1 <= self.horizon_days <= 730, "horizon_days between 1 and 730"),
            (0 <= self.purchase_lead_days <= 1095, "purchase_lead_days between 0 and 1095"),
            (self.projects is None or self.projects.strip() != "", "projects not empty"),
        ]  # fmt: skip

    def _middle_lead_s(self) -> float:
        return parameter("node_lead_s").value if self.node_lead_s is None else self.node_lead_s

    def _got(self, faults: list[str]) -> str:
        return ", ".join(str(getattr(self, fault.split()[0])) for fault in faults)

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "scenario") -> Self:
        """Make a scenario from plain values; unknown keys are refused and the nearest name is given.

        Examples
        --------
        >>> Scenario.from_dict({"quantil": 0.9})
        Traceback (most recent call last):
            ...
        gpuplanner.errors.ScenarioError: scenario: expected known keys; got unknown 'quantil' (did you mean
        'quantile'?). Remove or rename them.
        """
        known = [field.name for field in fields(cls)]
        unknown = [str(key) for key in values if key not in known]
        if unknown:
            near = [f"{key!r} (did you mean {nearest(key, known)[:1] or known!r}?)" for key in unknown]
            listed = ", ".join(near).replace("[", "").replace("]", "")
            text = message(where, "known keys", f"unknown {listed}", "Remove or rename them.")
            raise ScenarioError(text)
        return cls(**values)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a scenario file; relative ``data`` and ``projects`` are taken from the folder of the file.

        Raises
        ------
        ScenarioError
            If the file is not a mapping of known keys to fitting values.
        """
        path = Path(path)
        values = read_yaml(path)
        if not isinstance(values, dict):
            text = message(
                str(path), "a mapping of scenario keys", type(values).__name__, "Write 'key: value' lines."
            )
            raise ScenarioError(text)
        data = values.get("data", "sample")
        if isinstance(data, str) and data != "sample" and not Path(data).is_absolute():
            values["data"] = str(path.parent / data)
        if isinstance(announced := values.get("projects"), str) and announced.strip():
            values["projects"] = str(path.parent / announced)
        return cls.from_dict(values, where=str(path))

    def to_yaml(self) -> str:
        """Print every key, so that nothing depends on defaults that may change."""
        return to_yaml(dataclasses.asdict(self))

    def projected(self, names: typing.Iterable[str]) -> Self:
        """The scenario with every other field at its default: a key for what depends on these alone.

        Examples
        --------
        >>> Scenario(seed=7, quantile=0.8).projected(["seed"]).quantile
        0.9
        """
        return type(self)(**{name: getattr(self, name) for name in names})

    def diff(self, other: Scenario) -> dict[str, tuple[Any, Any]]:
        """Fields that differ, with both values.

        Examples
        --------
        >>> Scenario().diff(Scenario(seed=2))
        {'seed': (1, 2)}
        """
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}

    def with_text(self, assignments: typing.Iterable[str]) -> Self:
        """Apply ``key=value`` texts, as given on a command line.

        Examples
        --------
        >>> Scenario().with_text(["quantile=0.75", "workload=fractional"]).quantile
        0.75
        """
        import yaml

        values: dict[str, Any] = {}
        for text in assignments:
            key, equals, value = text.partition("=")
            if not equals:
                text_out = message("--set", "key=value", repr(text), "Write for example quantile=0.95.")
                raise ScenarioError(text_out)
            parsed = yaml.safe_load(value) if key.strip() not in ("month", "name", "data") else value
            values[key.strip()] = parsed
        known = {field.name for field in fields(self)}
        return replace(self, **values) if values.keys() <= known else self.from_dict(values, where="--set")

    @property
    def slot_s(self) -> float:
        """Length of a slot in seconds."""
        return self.slot_hours * 3600.0

    def change(self, board: GpuModel | str) -> ChangeCost:
        """What a change of layout costs on a board, by the scenario's path and with what it states itself.

        Examples
        --------
        >>> Scenario().change("A100-80GB").words()
        '1 min for a layout change, or 10 min and a reboot of the node where MIG mode changes'
        >>> Scenario(reconfigure_minutes=2).change("H100-80GB-SXM5").change("gpu", "3g.40gb:2").seconds
        120.0
        """
        seconds, drain_s, drain_limit_s = (
            None if minutes is None else minutes * SECONDS_PER_MINUTE
            for minutes in (self.reconfigure_minutes, self.drain_minutes, self.drain_limit_minutes)
        )
        return ChangeCost.of(
            board, self.path, seconds=seconds, gpu_hours=self.change_gpu_hours, drain_s=drain_s,
            drain_limit_s=drain_limit_s,
        )  # fmt: skip

    def abilities(
        self, board: GpuModel | str | None = None, *, ownership: str | None = None
    ) -> PathAbilities:
        """What the scenario's path can do, with what the scenario states itself.

        Parameters
        ----------
        board : GpuModel or str, optional
            On what; None: on boards that allow it.
        ownership : str, optional
            What the inventory says, which counts where the scenario says nothing.

        Examples
        --------
        >>> Scenario(path="slurm").abilities("A100-80GB").cuts_on_demand
        'empty nodes'
        >>> Scenario(node_lead_s=120).abilities().lead.words()
        '2 min, at the slow end 6 min'
        """
        return abilities(
            self.path,
            board if board is None else any_board(board) if isinstance(board, str) else board,
            returnable=self.returnable,
            lead_s=self.node_lead_s,
            lead_slow_s=self.node_lead_slow_s,
            ownership=self.ownership or ownership,
        )

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


@functools.cache
def _field_types() -> dict[str, Any]:
    return typing.get_type_hints(Scenario)
