"""Panels to explore traces, choose GPU models and change quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import Any, Protocol, TypeVar

from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import figure_text
from gpuplanner.decision.quota_and_placement_comparison import RulesComparison, compare_rules, rules_or_equal_shares
from gpuplanner.decision.sharing_rules import SharingRules, StartHours, TeamQuota, parse_week_hours
from gpuplanner.notebook.views_and_panels import (
    BackgroundPanel,
    button,
    control_style,
    dropdown,
    on_change,
    slider,
    table_html,
)
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset, explore_dataset, public_traces

ALL_GPU_MODELS = "all GPU models"
"""Choice of the drop-down for all GPU models of the fleet."""

PoolResult = TypeVar("PoolResult")
"""Type of the result for one GPU model."""


class GpuModelPanel(BackgroundPanel[str, PoolResult]):
    """Panel with a drop-down of the GPU models of a fleet, and the decision for the chosen one.

    Parameters
    ----------
    pools : mapping of str to Scenario
        Scenario of each GPU model, most GPUs first; the first is chosen.
    compute : callable
        Computes the result for a GPU model, or for :data:`ALL_GPU_MODELS`; runs in the background.
    show : callable
        Makes HTML of a result.

    Attributes
    ----------
    gpu_model : ipywidgets.Dropdown
        GPU models, and :data:`ALL_GPU_MODELS` if there are several.
    scenario : Scenario
        Scenario of the chosen GPU model; of the first one for all.

    Examples
    --------
    >>> panel = GpuModelPanel({"H100": Scenario(), "T4": Scenario(gpu_model="T4")}, str, str)
    >>> panel.gpu_model.value = "T4"
    >>> panel.question, panel.scenario.gpu_model
    ('T4', 'T4')
    """

    def __init__(
        self, pools: Mapping[str, Scenario], compute: Callable[[str], PoolResult], show: Callable[[PoolResult], str]
    ) -> None:
        super().__init__(compute, show, working="Computing the decision for this GPU model ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.pools = dict(pools)
        several = len(self.pools) > 1
        options = [*self.pools, *([ALL_GPU_MODELS] if several else [])]
        layout = {"width": "100%", "max_width": "40em"}
        self.gpu_model = dropdown(options, next(iter(options), None), "GPU model", disabled=not several, layout=layout)
        self.button = button("Show", "Show the decision for this GPU model", self.ask)
        on_change([self.gpu_model], self.ask_soon)
        title_text = f"{len(self.pools)} GPU models, each with its own jobs" if several else "One GPU model"
        title = widgets.HTML(f"<b>{escape(title_text)}</b>")
        self.panel = widgets.VBox([title, self.gpu_model, self.button, self.status, self.answer])

    @property
    def question(self) -> str:
        """Chosen GPU model, or :data:`ALL_GPU_MODELS`."""
        chosen: str = self.gpu_model.value
        return chosen

    @property
    def scenario(self) -> Scenario:
        """Scenario of the chosen GPU model; of the first one for all."""
        return self.pools.get(self.question, next(iter(self.pools.values())))


MAX_CACHED_SECTIONS = 64
"""Number of rendered sections that the explore panel caches."""
MAX_LISTED_JOBS = 200
"""Maximum number of jobs in the drop-down of the explore panel; code can show any job."""


VIEW_TOOLTIPS = {
    "quality": "Data quality and telemetry coverage",
    "ledger": "Use of the installed GPU-hours",
    "demand": "Unconstrained demand by MIG profile",
    "phases": "Phases, dips, bottleneck and slices of a job",
    "late_demand": "Do jobs need fewer GPUs towards their end?",
}
"""Tooltips of the buttons that choose a section, by section name."""


class Displayable(Protocol):
    """Protocol of an object that a notebook shows as HTML."""

    def _repr_html_(self) -> str: ...


SectionRenderer = Callable[[ExploredDataset, str, str], Displayable]
"""Function that renders a section from a dataset, a team and a job."""


@dataclass(frozen=True)
class ExploreQuestion:
    """Settings of the explore panel.

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
class SectionAnswer:
    """Result that the explore panel shows: the opened dataset, the team, and the section as HTML."""

    inbox: ExploredDataset
    tenant: str
    html: str


class ExplorePanel(BackgroundPanel[ExploreQuestion, SectionAnswer]):
    """Panel with controls of dataset, team, job and view, the chosen section, and the code that makes it.

    Datasets are read and sections are drawn in a thread of their own. Datasets stay open, and sections are cached.

    Parameters
    ----------
    inbox : ExploredDataset
        Dataset that is shown first.
    views : mapping
        Function from a dataset, a team and a job to a section, by name, as in
        ``gpuplanner.report.dataset_sections.SECTION_VIEWS``.
    data : str
        Folder or name of the dataset.
    traces : sequence of str
        Other datasets to choose from.

    Attributes
    ----------
    trace, tenant, job, view : ipywidgets controls
        Dataset, team, job and view.
    """

    at_once = True

    def __init__(
        self,
        dataset: ExploredDataset,
        views: Mapping[str, SectionRenderer],
        *,
        data: str = "sample",
        traces: Sequence[str] = (),
    ) -> None:
        cached_section = lru_cache(MAX_CACHED_SECTIONS)(self._draw_section)
        super().__init__(cached_section, lambda section: section.html, working="Reading and drawing ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.status.value = ""
        self._views = dict(views)
        self._opened = {data: dataset}
        self._filling = False

        def choice(label: str, options: Sequence[Any], help_: str) -> Any:  # noqa: ANN401 - an ipywidgets control
            # A drop-down does not show its tooltip; its label does.
            label_html = f"<span title='{help_}'>{label}</span>"
            return widgets.Dropdown(
                options=options, description=label_html, description_allow_html=True, tooltip=help_,
                style={"description_width": "6em"}, layout={"width": "24em"},
            )  # fmt: skip

        names = list(dict.fromkeys([data, *traces]))
        self.trace = choice("Dataset", names, "Dataset to show: a folder, the sample, or a public trace")
        self.tenant = choice("Team", [], "Team whose GPU-hours, demand and jobs are shown")
        self.job = choice("Job", [], "Job with telemetry, most samples first; for the view of phases")
        self.view = widgets.ToggleButtons(
            options=list(views), description="View", style={"description_width": "6em", "button_width": "7em"},
            tooltips=[VIEW_TOOLTIPS.get(name, f"Show {name}") for name in views],
        )  # fmt: skip
        self.code = widgets.HTML()
        self._fill(dataset, ALL_TENANTS_LABEL)
        on_change((self.trace, self.tenant, self.job, self.view), self._on_change)
        row = widgets.HBox([self.trace, self.tenant, self.job], layout={"flex_flow": "row wrap"})
        self.panel = widgets.VBox([row, self.view, self.code, self.status, self.answer])
        self._show_code()

    @property
    def question(self) -> ExploreQuestion:
        """Settings of the controls."""
        return ExploreQuestion(self.trace.value, self.view.value, self.tenant.value, self.job.value or "")

    def _draw_section(self, question: ExploreQuestion) -> SectionAnswer:
        """Open the chosen dataset if it is not open, and render the chosen section."""
        first_inbox = next(iter(self._opened.values()))
        if question.data not in self._opened:
            smallest_group = first_inbox.smallest_group
            self._opened[question.data] = explore_dataset(
                question.data, gpu_model=first_inbox.gpu_model, tz=first_inbox.tz, smallest_group=smallest_group
            )
        inbox = self._opened[question.data]
        tenant = question.tenant if question.tenant in inbox.tenants else ALL_TENANTS_LABEL
        jobs = inbox.jobs_of(tenant)
        job = question.job if question.job in jobs else next(iter(jobs), "")
        section = self._views[question.view](inbox, tenant, job)
        return SectionAnswer(inbox, tenant, section._repr_html_())

    def _show_answer(self, number: int, newest: SectionAnswer | None, answer: str, status: str) -> None:
        """Show the HTML of the newest answer, and fill the drop-downs with its teams and jobs."""
        super()._show_answer(number, newest, answer, "" if status == "Done." else status)
        if number == self._n_asked and newest is not None:
            self._fill(newest.inbox, newest.tenant)

    def _fill(self, dataset: ExploredDataset, tenant: str) -> None:
        """Fill the drop-downs with the teams of the dataset and the jobs of the team; keep valid choices."""
        self._filling = True
        try:
            names = dataset.jobs_of(tenant)[:MAX_LISTED_JOBS]
            jobs = [(f"{job}", job) for job in names] or [("no job with telemetry", "")]
            for control, options, chosen in (
                (self.tenant, [ALL_TENANTS_LABEL, *dataset.tenants], tenant),
                (self.job, jobs, self.job.value),
            ):
                if list(control.options) != options:
                    control.options = options
                values = [option[1] if isinstance(option, tuple) else option for option in options]
                control.value = chosen if chosen in values else values[0]
        finally:
            self._filling = False
        self._show_code()

    def _on_change(self) -> None:
        """Show the new line of code after a change of a control, and compute the new answer."""
        if self._filling:
            return
        self._show_code()
        self.ask_soon()

    def _show_code(self) -> None:
        """Show the line of code that makes the section."""
        question = self.question
        tenant_argument = "" if question.tenant == ALL_TENANTS_LABEL else f"team={question.tenant!r}"
        arguments = {"ledger": tenant_argument, "demand": tenant_argument, "phases": f"job={question.job!r}"}
        first_inbox = next(iter(self._opened.values()))
        group_argument = f", smallest_group={first_inbox.smallest_group}" if first_inbox.smallest_group else ""
        gpu_model = f", gpu_model={first_inbox.gpu_model!r}" if first_inbox.gpu_model else ""
        call = f"gp.open({question.data!r}{gpu_model}, tz={first_inbox.tz!r}{group_argument})"
        self.code.value = f"<code>{escape(f'{call}.{question.view}({arguments.get(question.view, str())})')}</code>"


def make_explore_panel(
    dataset: ExploredDataset,
    views: Mapping[str, SectionRenderer],
    *,
    data: str = "sample",
    traces: Sequence[str] | None = None,
) -> ExplorePanel:
    """Make the explore panel of a dataset.

    Parameters
    ----------
    dataset : ExploredDataset
        Dataset that is shown first.
    views : mapping
        Function from a dataset, a team and a job to a section, by name.
    data : str
        Folder or name of the dataset.
    traces : sequence of str, optional
        Other datasets to choose from; default: the sample and the public traces on this machine.

    Returns
    -------
    ExplorePanel
        The panel.

    Examples
    --------
    >>> from gpuplanner.report import dataset_sections as inbox
    >>> panel = make_explore_panel(explore_dataset("sample"), inbox.SECTION_VIEWS)
    >>> panel.tenant.value = "search"
    >>> panel.view.value = "ledger"
    >>> "GPU-hours of search" in panel.ask().result().html
    True
    """
    other_traces = ["sample", *public_traces()] if traces is None else traces
    return ExplorePanel(dataset, views, data=data, traces=other_traces)


CHOSEN_RULES_SOURCE = "the chosen rules"
"""Source of sharing rules that are set by the controls of the panel."""
RULES_COMPARISON_COLUMNS = {
    "jobs": ("jobs", ",.0f"), "never_before": ("never start: now", ",.0f"), "never_after": ("never start: new", ",.0f"),
    "wait_before_min": ("mean wait now [min]", ",.1f"), "wait_after_min": ("new [min]", ",.1f"),
    "change": ("added wait [GPU h a week]", "+,.1f"), "lost_after": ("lost [GPU h a week]", ",.1f"),
    "stops_after": ("preemptions a week", ",.1f"),
}  # fmt: skip
"""Heading and number format of each column that the comparison of sharing rules shows."""


class SharingPanel(BackgroundPanel[SharingRules, RulesComparison]):
    """Panel that simulates quotas, fair share and preemption, compared with the current rules.

    Parameters
    ----------
    scenario : Scenario
        Its quotas are the initial settings, else those of the data, else equal shares that lend to each other.

    Attributes
    ----------
    quotas, half_life, restart, checkpoint : ipywidgets.FloatSlider
        Factor on all quotas; half-life of usage [days]; restart time and checkpoint interval [min].
    order : ipywidgets.Dropdown
        Queue order.
    reclaim, by_tier : ipywidgets.Checkbox
        Whether teams reclaim lent quota, and whether higher tiers preempt lower ones.
    late : ipywidgets.Dropdown
        Tier or team with restricted start hours.
    hours : ipywidgets.Text
        Its start hours, as in ``quotas.yaml``; while they are invalid, those of the current rules.

    Examples
    --------
    >>> panel = SharingPanel(Scenario())
    >>> panel.reclaim.value = True
    >>> panel.question.stopping.reclaim
    True
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._compare_rules, sharing_html, working="Simulating the same weeks ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        self.base = rules_or_equal_shares(scenario)
        stops = self.base.stopping
        style = control_style("14em", "40em")

        self.quotas = slider(1.0, 0.1, 3.0, 0.1, "Quotas (factor)", "Factor on all quotas", **style)
        orders = [("first come, first served", "fifo"), ("fair share", "fair")]
        self.order = dropdown(orders, self.base.order, "Queue order", tooltip="First job to start", **style)
        half_life, restart = float(self.base.half_life_days), float(stops.restart_minutes)
        self.half_life = slider(half_life, 0.5, 60.0, 0.5, "Fair-share half-life (days)", "Of usage", **style)
        label = "Teams reclaim lent quota"
        self.reclaim = widgets.Checkbox(value=stops.reclaim, description=label, **style)
        self.by_tier = widgets.Checkbox(value=stops.by_tier, description="Preempt lower tiers", **style)
        self.restart = slider(restart, 0.0, 120.0, 1.0, "Restart time (min)", "Of a preempted job", **style)
        checkpoint = float(stops.checkpoint_minutes or 0.0)
        tooltip = "Preemption loses work since the checkpoint"
        self.checkpoint = slider(checkpoint, 0.0, 480.0, 10.0, "Checkpoint interval (min)", tooltip, **style)
        kinds = {"tier": self.base.tiers, "team": sorted(team.name for team in self.base.teams)}
        restricted_groups = [(f"{kind} {name}", (kind, name)) for kind, names in kinds.items() for name in names]
        self.late = widgets.Dropdown(options=restricted_groups, description="Restricted start hours for", **style)
        hours = {"placeholder": "mon-fri 20:00-06:00, sat-sun", "description": "Start hours"}
        self.hours = widgets.Text(**hours, continuous_update=False, **style)
        self.button = button("Simulate", "Simulate the same weeks with these rules", self.ask)
        controls = (
            self.quotas, self.order, self.half_life, self.reclaim, self.by_tier, self.restart, self.checkpoint,
            self.late, self.hours,
        )  # fmt: skip
        on_change(controls, self.ask_soon)
        title = widgets.HTML(f"<b>Baseline: {escape(self.base.source)}</b>")
        self.panel = widgets.VBox([title, *controls, self.button, self.status, self.answer])

    @property
    def question(self) -> SharingRules:
        """Sharing rules of the controls."""
        has_checkpoint = self.checkpoint.value or self.base.stopping.checkpoint_minutes is not None
        stops = replace(
            self.base.stopping,
            reclaim=self.reclaim.value,
            by_tier=self.by_tier.value,
            restart_minutes=self.restart.value,
            checkpoint_minutes=self.checkpoint.value if has_checkpoint else None,
        )
        teams, cohorts = (tuple(map(self._scale_quota, quotas)) for quotas in (self.base.teams, self.base.cohorts))
        return replace(
            self.base, teams=teams, cohorts=cohorts, order=self.order.value, half_life_days=self.half_life.value,
            stopping=stops, source=CHOSEN_RULES_SOURCE, start_hours=self._start_hours(),
        )  # fmt: skip

    def _start_hours(self) -> tuple[StartHours, ...]:
        """Return the start hours of the controls; those of the current rules while the text is invalid."""
        if self.late.value is None or parse_week_hours(self.hours.value) is None:
            return self.base.start_hours
        kind, name = self.late.value
        other_hours = (start_hours for start_hours in self.base.start_hours if getattr(start_hours, kind) != name)
        return (*other_hours, StartHours(self.hours.value, **{kind: name}))

    def _scale_quota(self, team_quota: TeamQuota) -> TeamQuota:
        """Multiply the quota of a team by the factor of the slider."""
        return team_quota if team_quota.gpus is None else replace(team_quota, gpus=team_quota.gpus * self.quotas.value)

    def _compare_rules(self, rules: SharingRules) -> RulesComparison:
        """Simulate the recorded weeks under the current rules and under the rules of the controls."""
        return compare_rules(self.scenario, self.base, rules)


def sharing_html(rules_comparison: RulesComparison) -> str:
    """Render the change of the queue wait of each team under other sharing rules as an HTML table.

    Examples
    --------
    >>> import polars as pl
    >>> row = {"team": "<a>", "jobs": 3, "verdict": "waits less", "lost_before": 0.0}
    >>> row |= dict.fromkeys([name for name in RULES_COMPARISON_COLUMNS if name != "jobs"], 1.0)
    >>> text = sharing_html(RulesComparison("now", "then", pl.DataFrame([row, row | {"team": "(all)"}]), "95 %", ()))
    >>> "&lt;a&gt;" in text, "<a>" in text
    (True, False)
    """
    headings = ["team", *(heading for heading, _ in RULES_COMPARISON_COLUMNS.values()), "result"]
    rows = (
        [
            row["team"],
            *(figure_text(row[name], form) for name, (_, form) in RULES_COMPARISON_COLUMNS.items()),
            row["verdict"],
        ]
        for row in rules_comparison.teams.to_dicts()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in rules_comparison.notes)
    caption = f"Intervals: {rules_comparison.blocks}"
    return f"<p>{escape(rules_comparison.verdict_sentence)}</p>{table_html(headings, rows, caption=caption)}{notes}"
