"""Panels to explore traces, choose GPU models and change quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import Any, Protocol, TypeVar

from gpuplanner.core.execution import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units import figure_text
from gpuplanner.decision.quota_comparison import RulesComparison, compare_rules, rules_or_equal_shares
from gpuplanner.decision.sharing_rules import SharingRules, StartHours, TeamQuota, parse_week_hours
from gpuplanner.notebook.views import BackgroundPanel, button, control_look, dropdown, slider, table_html, watch
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset, open_inbox, public_traces

ALL_BOARDS = "all GPU models"

Found = TypeVar("Found")


class BoardsPanel(BackgroundPanel[str, Found]):
    """A drop-down of the boards of a fleet, with what was found on the one that is chosen.

    Parameters
    ----------
    pools : mapping of str to Scenario
        The scenario of each board, most GPUs first; the first is chosen.
    compute : callable
        From a name, or that of all boards, to what is found there; runs in the background.
    show : callable
        From what is found to markup.

    Attributes
    ----------
    gpu_model : ipywidgets.Dropdown
        The boards, and all of them where there are several.
    scenario : Scenario
        That of the chosen board; of the first where all are.

    Examples
    --------
    >>> panel = BoardsPanel({"H100": Scenario(), "T4": Scenario(gpu_model="T4")}, str, str)
    >>> panel.gpu_model.value = "T4"
    >>> panel.question, panel.scenario.gpu_model
    ('T4', 'T4')
    """

    def __init__(
        self, pools: Mapping[str, Scenario], compute: Callable[[str], Found], show: Callable[[Found], str]
    ) -> None:
        super().__init__(compute, show, working="Computing the decision for this GPU model ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.pools = dict(pools)
        several = len(self.pools) > 1
        options = [*self.pools, *([ALL_BOARDS] if several else [])]
        layout = {"width": "100%", "max_width": "40em"}
        self.gpu_model = dropdown(options, next(iter(options), None), "GPU model", disabled=not several, layout=layout)
        self.button = button("Show", "Show the decision for this GPU model", self.ask)
        watch([self.gpu_model], self.ask_soon)
        said = f"{len(self.pools)} GPU models, each with its own jobs" if several else "One GPU model"
        title = widgets.HTML(f"<b>{escape(said)}</b>")
        self.panel = widgets.VBox([title, self.gpu_model, self.button, self.status, self.answer])

    @property
    def question(self) -> str:
        """The chosen board, or the word for all."""
        chosen: str = self.gpu_model.value
        return chosen

    @property
    def scenario(self) -> Scenario:
        """The scenario of the chosen board; of the first where all are chosen."""
        return self.pools.get(self.question, next(iter(self.pools.values())))


KEPT = 64
"""Answers that are kept, so that going back is immediate."""
MOST = 200
"""Jobs that are offered: a longer list cannot be read; any job can be shown in code."""


HELP = {
    "quality": "Data quality and telemetry coverage",
    "ledger": "Use of the installed GPU-hours",
    "demand": "Unconstrained demand by MIG profile",
    "phases": "Phases, dips, bottleneck and slices of a job",
    "claim": "Do jobs need fewer GPUs towards their end?",
}
"""What the views show, for those whose pointer rests on their buttons."""


class Shown(Protocol):
    """A section, as a notebook shows it."""

    def _repr_html_(self) -> str: ...


View = Callable[[ExploredDataset, str, str], Shown]


@dataclass(frozen=True)
class Look:
    """What the controls ask for.

    - ``data``: Folder, ``"sample"`` or public trace.
    - ``view``: Name of the view.
    - ``tenant``, ``job``: Tenant or :data:`gpuplanner.usage.dataset_explorer.ALL_TENANTS_LABEL`; job or ``""`` for
      the one
      with most telemetry.
    """

    data: str
    view: str
    tenant: str
    job: str


@dataclass(frozen=True, eq=False)
class SeenSection:
    """Answer: the inbox that was opened, and the section as HTML."""

    inbox: ExploredDataset
    tenant: str
    html: str


class ExplorePanel(BackgroundPanel[Look, SeenSection]):
    """Controls over an inbox, the section that they ask for, and the same section in code.

    Traces are read and sections are drawn in a thread of their own. A trace stays open, and a section that was
    shown once is shown again at once.

    Parameters
    ----------
    inbox : ExploredDataset
        Where the panel begins.
    views : mapping
        Name → function from an inbox, a tenant and a job to a section, as in
        ``gpuplanner.report.dataset_sections.VIEWS``.
    data : str
        What the inbox was opened from.
    traces : sequence of str
        Other traces to choose from.

    Attributes
    ----------
    trace, tenant, job, view : ipywidgets controls
        What is chosen.
    """

    at_once = True

    def __init__(
        self, inbox: ExploredDataset, views: Mapping[str, View], *, data: str = "sample", traces: Sequence[str] = ()
    ) -> None:
        kept = lru_cache(KEPT)(self._seen)
        super().__init__(kept, lambda seen: seen.html, working="Reading and drawing ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.status.value = ""
        self._views = dict(views)
        self._opened = {data: inbox}
        self._filling = False

        def choice(label: str, options: Sequence[Any], help_: str) -> Any:  # noqa: ANN401 - an ipywidgets control
            # A drop-down does not show its tooltip; its label does.
            words = f"<span title='{help_}'>{label}</span>"
            return widgets.Dropdown(
                options=options, description=words, description_allow_html=True, tooltip=help_,
                style={"description_width": "6em"}, layout={"width": "24em"},
            )  # fmt: skip

        names = list(dict.fromkeys([data, *traces]))
        self.trace = choice("Dataset", names, "Dataset to show: a folder, the sample, or a public trace")
        self.tenant = choice("Team", [], "Team whose GPU-hours, demand and jobs are shown")
        self.job = choice("Job", [], "Job with telemetry, most samples first; for the view of phases")
        self.view = widgets.ToggleButtons(
            options=list(views), description="View", style={"description_width": "6em", "button_width": "7em"},
            tooltips=[HELP.get(name, f"Show {name}") for name in views],
        )  # fmt: skip
        self.code = widgets.HTML()
        self._fill(inbox, ALL_TENANTS_LABEL)
        watch((self.trace, self.tenant, self.job, self.view), self._changed)
        row = widgets.HBox([self.trace, self.tenant, self.job], layout={"flex_flow": "row wrap"})
        self.panel = widgets.VBox([row, self.view, self.code, self.status, self.answer])
        self._say()

    @property
    def question(self) -> Look:
        """What is chosen."""
        return Look(self.trace.value, self.view.value, self.tenant.value, self.job.value or "")

    def _seen(self, look: Look) -> SeenSection:
        """Open the trace if need be, and draw the section."""
        first = next(iter(self._opened.values()))
        if look.data not in self._opened:
            smallest = first.smallest_group
            self._opened[look.data] = open_inbox(
                look.data, gpu_model=first.gpu_model, tz=first.tz, smallest_group=smallest
            )
        inbox = self._opened[look.data]
        tenant = look.tenant if look.tenant in inbox.tenants else ALL_TENANTS_LABEL
        jobs = inbox.jobs_of(tenant)
        job = look.job if look.job in jobs else next(iter(jobs), "")
        section = self._views[look.view](inbox, tenant, job)
        return SeenSection(inbox, tenant, section._repr_html_())

    def _arrived(self, number: int, newest: SeenSection | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, "" if status == "Done." else status)
        if number == self._asked and newest is not None:
            self._fill(newest.inbox, newest.tenant)

    def _fill(self, inbox: ExploredDataset, tenant: str) -> None:
        """Offer the tenants of the trace and the jobs of the tenant, and keep what was chosen where it is there."""
        self._filling = True
        try:
            jobs = [(f"{job}", job) for job in inbox.jobs_of(tenant)[:MOST]] or [("no job with telemetry", "")]
            for control, options, wanted in (
                (self.tenant, [ALL_TENANTS_LABEL, *inbox.tenants], tenant),
                (self.job, jobs, self.job.value),
            ):
                if list(control.options) != options:
                    control.options = options
                known = [each[1] if isinstance(each, tuple) else each for each in options]
                control.value = wanted if wanted in known else known[0]
        finally:
            self._filling = False
        self._say()

    def _changed(self) -> None:
        if self._filling:
            return
        self._say()
        self.ask_soon()

    def _say(self) -> None:
        """The question in code."""
        look = self.question
        team = f"tenant={look.tenant!r}"
        extra = {"ledger": team, "demand": team, "phases": f"job={look.job!r}"}
        first = next(iter(self._opened.values()))
        smallest = f", smallest_group={first.smallest_group}" if first.smallest_group else ""
        gpu_model = f", gpu_model={first.gpu_model!r}" if first.gpu_model else ""
        opened = f"gp.explore({look.data!r}{gpu_model}, tz={first.tz!r}{smallest})"
        self.code.value = f"<code>{escape(f'{opened}.{look.view}({extra.get(look.view, str())})')}</code>"


def explore_inbox(
    inbox: ExploredDataset, views: Mapping[str, View], *, data: str = "sample", traces: Sequence[str] | None = None
) -> ExplorePanel:
    """Make the explore panel of an inbox.

    Parameters
    ----------
    inbox : ExploredDataset
        Where the panel begins.
    views : mapping
        Name → function from an inbox, a tenant and a job to a section.
    data : str
        What the inbox was opened from.
    traces : sequence of str, optional
        Other traces to choose from; by default the sample and the public traces at hand.

    Returns
    -------
    ExplorePanel
        Shows itself in a notebook.

    Examples
    --------
    >>> from gpuplanner.report import dataset_sections as inbox
    >>> panel = explore_inbox(open_inbox("sample"), inbox.VIEWS)
    >>> panel.tenant.value = "search"
    >>> panel.view.value = "ledger"
    >>> "GPU-hours of search" in panel.ask().result().html
    True
    """
    others = ["sample", *public_traces()] if traces is None else traces
    return ExplorePanel(inbox, views, data=data, traces=others)


AS_SET = "the chosen rules"
COLUMNS = {
    "jobs": ("jobs", ",.0f"), "never_before": ("never start: now", ",.0f"), "never_after": ("never start: new", ",.0f"),
    "wait_before_min": ("mean wait now [min]", ",.1f"), "wait_after_min": ("new [min]", ",.1f"),
    "change": ("added wait [GPU h a week]", "+,.1f"), "lost_after": ("lost [GPU h a week]", ",.1f"),
    "stops_after": ("preemptions a week", ",.1f"),
}  # fmt: skip


class SharingPanel(BackgroundPanel[SharingRules, RulesComparison]):
    """Controls of quotas, fair share and preemption, played against the rules at hand.

    Parameters
    ----------
    scenario : Scenario
        Its quotas, else those of the data, else equal shares that lend to each other: where the controls start.

    Attributes
    ----------
    quotas, half_life, restart, checkpoint : ipywidgets.FloatSlider
        All quotas, as a multiple; days in which use is half forgotten; minutes of a restart, and between checkpoints.
    order : ipywidgets.Dropdown
        Who is first.
    reclaim, by_tier : ipywidgets.Checkbox
        Who stops others.
    late : ipywidgets.Dropdown
        The tier or team whose jobs may start in some hours alone.
    hours : ipywidgets.Text
        Those hours, as in ``quotas.yaml``; while they make no sense, those of the rules at hand.

    Examples
    --------
    >>> panel = SharingPanel(Scenario())
    >>> panel.reclaim.value = True
    >>> panel.question.stopping.reclaim
    True
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._tried, tried_html, working="Simulating the same weeks ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        self.base = rules_or_equal_shares(scenario)
        stops = self.base.stopping
        look = control_look("14em", "40em")

        self.quotas = slider(1.0, 0.1, 3.0, 0.1, "Quotas (factor)", "Factor on all quotas", **look)
        orders = [("first come, first served", "fifo"), ("fair share", "fair")]
        self.order = dropdown(orders, self.base.order, "Queue order", tooltip="First job to start", **look)
        half_life, restart = float(self.base.half_life_days), float(stops.restart_minutes)
        self.half_life = slider(half_life, 0.5, 60.0, 0.5, "Fair-share half-life (days)", "Of usage", **look)
        words = "Teams reclaim lent quota"
        self.reclaim = widgets.Checkbox(value=stops.reclaim, description=words, **look)
        self.by_tier = widgets.Checkbox(value=stops.by_tier, description="Preempt lower tiers", **look)
        self.restart = slider(restart, 0.0, 120.0, 1.0, "Restart time (min)", "Of a preempted job", **look)
        checkpoint = float(stops.checkpoint_minutes or 0.0)
        words = "Preemption loses work since the checkpoint"
        self.checkpoint = slider(checkpoint, 0.0, 480.0, 10.0, "Checkpoint interval (min)", words, **look)
        kinds = {"tier": self.base.tiers, "team": sorted(one.name for one in self.base.teams)}
        late = [(f"{kind} {name}", (kind, name)) for kind, names in kinds.items() for name in names]
        self.late = widgets.Dropdown(options=late, description="Restricted start hours for", **look)
        hours = {"placeholder": "mon-fri 20:00-06:00, sat-sun", "description": "Start hours"}
        self.hours = widgets.Text(**hours, continuous_update=False, **look)
        self.button = button("Simulate", "Simulate the same weeks with these rules", self.ask)
        controls = (
            self.quotas, self.order, self.half_life, self.reclaim, self.by_tier, self.restart, self.checkpoint,
            self.late, self.hours,
        )  # fmt: skip
        watch(controls, self.ask_soon)
        title = widgets.HTML(f"<b>Baseline: {escape(self.base.source)}</b>")
        self.panel = widgets.VBox([title, *controls, self.button, self.status, self.answer])

    @property
    def question(self) -> SharingRules:
        """The rules as the controls stand."""
        stated = self.checkpoint.value or self.base.stopping.checkpoint_minutes is not None
        stops = replace(
            self.base.stopping,
            reclaim=self.reclaim.value,
            by_tier=self.by_tier.value,
            restart_minutes=self.restart.value,
            checkpoint_minutes=self.checkpoint.value if stated else None,
        )
        teams, cohorts = (tuple(map(self._scaled, some)) for some in (self.base.teams, self.base.cohorts))
        return replace(
            self.base, teams=teams, cohorts=cohorts, order=self.order.value, half_life_days=self.half_life.value,
            stopping=stops, source=AS_SET, start_hours=self._start_hours(),
        )  # fmt: skip

    def _start_hours(self) -> tuple[StartHours, ...]:
        if self.late.value is None or parse_week_hours(self.hours.value) is None:
            return self.base.start_hours
        kind, name = self.late.value
        others = (one for one in self.base.start_hours if getattr(one, kind) != name)
        return (*others, StartHours(self.hours.value, **{kind: name}))

    def _scaled(self, one: TeamQuota) -> TeamQuota:
        return one if one.gpus is None else replace(one, gpus=one.gpus * self.quotas.value)

    def _tried(self, rules: SharingRules) -> RulesComparison:
        return compare_rules(self.scenario, self.base, rules)


def tried_html(found: RulesComparison) -> str:
    """Show who waits more and who less.

    Examples
    --------
    >>> import polars as pl
    >>> row = {"team": "<a>", "jobs": 3, "verdict": "waits less"} | dict.fromkeys(COLUMNS, 1.0) | {"lost_before": 0.0}
    >>> text = tried_html(RulesComparison("now", "then", pl.DataFrame([row, row | {"team": "(all)"}]), "95 %", ()))
    >>> "&lt;a&gt;" in text, "<a>" in text
    (True, False)
    """
    headings = ["team", *(heading for heading, _ in COLUMNS.values()), "result"]
    rows = (
        [row["team"], *(figure_text(row[name], form) for name, (_, form) in COLUMNS.items()), row["verdict"]]
        for row in found.teams.to_dicts()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in found.notes)
    caption = f"Intervals: {found.blocks}"
    return f"<p>{escape(found.verdict_sentence)}</p>{table_html(headings, rows, caption=caption)}{notes}"
