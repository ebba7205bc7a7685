"""Panel of quotas, fair share and preemption, which simulates the recorded weeks under other rules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.quota_and_placement_comparison import RulesComparison, compare_rules, rules_or_equal_shares
from gpuplanner.decision.sharing_rules import SharingRules, StartHours, TeamQuota, parse_week_hours
from gpuplanner.notebook.section_panels import SectionPanel
from gpuplanner.notebook.views_and_panels import button, control_style, dropdown, on_change, slider
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection

CHOSEN_RULES_SOURCE = "the chosen rules"
"""Source of sharing rules that are set by the controls of the panel."""
RULES_COMPARISON_COLUMNS = {
    "jobs": ("jobs", ",.0f"), "never_before": ("never start: now", ",.0f"), "never_after": ("never start: new", ",.0f"),
    "wait_before_min": ("mean wait now [min]", ",.1f"), "wait_after_min": ("new [min]", ",.1f"),
    "change": ("added wait [GPU h a week]", "+,.1f"), "lost_after": ("lost [GPU h a week]", ",.1f"),
    "stops_after": ("preemptions a week", ",.1f"),
}  # fmt: skip
"""Heading and number format of each column that the comparison of sharing rules shows."""


class SharingPanel(SectionPanel[SharingRules, RulesComparison]):
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
        Its start hours, as in ``quotas.yaml``; empty: those of the current rules. Other texts are marked.

    Examples
    --------
    >>> panel = SharingPanel(Scenario())
    >>> panel.reclaim.value = True
    >>> panel.question.stopping.reclaim
    True
    """

    def __init__(self, scenario: Scenario) -> None:
        # The recorded weeks under the current rules, and under those of the controls.
        compare = partial(compare_rules, scenario, rules_or_equal_shares(scenario))
        super().__init__(compare, sharing_html, working="Simulating the same weeks ...")
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
        self.reclaim = widgets.Checkbox(value=stops.reclaim, description="Teams reclaim lent quota", **style)
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
        self.panel = widgets.VBox([title, *controls, self.button, self.status, self.answer.box])

    def find_faults(self) -> list[tuple[Any, str]]:
        """List the start hours if they cannot be read, or if there is no tier and no team to restrict."""
        if not self.hours.value.strip() or (self.late.value and parse_week_hours(self.hours.value) is not None):
            return []
        return [(self.hours, f"Start hours: expected {self.hours.placeholder}, got {self.hours.value}")]

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


def sharing_html(rules_comparison: RulesComparison) -> HtmlSection:
    """Render the change of the queue wait of each team under other sharing rules as an HTML table.

    Examples
    --------
    >>> import polars as pl
    >>> row = {"team": "<a>", "jobs": 3, "verdict": "waits less", "lost_before": 0.0}
    >>> row |= dict.fromkeys([name for name in RULES_COMPARISON_COLUMNS if name != "jobs"], 1.0)
    >>> teams = pl.DataFrame([row, row | {"team": "(all)"}])
    >>> text = sharing_html(RulesComparison("now", "then", teams, pl.DataFrame(), "95 %", ()))
    >>> "&lt;a&gt;" in text, "<a>" in text
    (True, False)
    """
    shown = rules_comparison.teams.select("team", *RULES_COMPARISON_COLUMNS, "verdict")
    table = page.table(
        shown,
        caption=f"Intervals: {rules_comparison.blocks}",
        headings={"verdict": "result"} | {name: heading for name, (heading, _) in RULES_COMPARISON_COLUMNS.items()},
        formats={name: form for name, (_, form) in RULES_COMPARISON_COLUMNS.items()},
    )
    notes = map(page.paragraph, rules_comparison.notes)
    return HtmlSection("".join([page.paragraph(rules_comparison.verdict_sentence), table, *notes]))
