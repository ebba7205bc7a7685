"""The panel of teams: change how they share the fleet, and see on the same weeks who waits more, who less."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario
from gpuplanner.study.tenants.hours import week_hours_of
from gpuplanner.study.tenants.quotas import SharingRules, StartHours, TeamQuota
from gpuplanner.study.tenants.tried import SharingTried, rules_at_hand, tried_with
from gpuplanner.units import figure_text
from gpuplanner.widgets.background import BackgroundPanel, table_html

AS_SET = "the rules as set"
COLUMNS = {
    "jobs": ("jobs", ",.0f"), "never_before": ("never start before", ",.0f"), "never_after": ("after", ",.0f"),
    "wait_before_min": ("wait before, min", ",.1f"), "wait_after_min": ("after", ",.1f"),
    "change": ("GPU h a week waited more", "+,.1f"), "lost_after": ("GPU h a week lost", ",.1f"),
    "stops_after": ("stops a week", ",.1f"),
}  # fmt: skip


class SharingPanel(BackgroundPanel[SharingRules, SharingTried]):
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
        super().__init__(self._tried, tried_html, working="Playing the same weeks ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        self.base = rules_at_hand(scenario)
        stops = self.base.stopping
        look = {"style": {"description_width": "14em"}, "layout": {"width": "100%", "max_width": "40em"}}

        def slider(text: str, value: float, low: float, high: float, step: float) -> Any:  # noqa: ANN401 - an ipywidgets control
            return widgets.FloatSlider(
                value=value, min=min(low, value), max=max(high, value), step=step, description=text,
                continuous_update=False, **look,
            )  # fmt: skip

        self.quotas = slider("All quotas, times", 1.0, 0.1, 3.0, 0.1)
        self.order = widgets.Dropdown(
            options=[("came first", "fifo"), ("used least for its weight", "fair")], value=self.base.order,
            description="First is who", **look,
        )  # fmt: skip
        self.half_life = slider("Use half forgotten (days)", self.base.half_life_days, 0.5, 60.0, 0.5)
        self.reclaim = widgets.Checkbox(
            value=stops.reclaim, description="Owners take back what they lent", **look
        )
        self.by_tier = widgets.Checkbox(value=stops.by_tier, description="Urgent tiers stop others", **look)
        self.restart = slider("Restart takes (min)", stops.restart_minutes, 0.0, 120.0, 1.0)
        self.checkpoint = slider("Checkpoints every (min)", stops.checkpoint_minutes or 0.0, 0.0, 480.0, 10.0)
        kinds = {"tier": self.base.tiers, "team": sorted(one.name for one in self.base.teams)}
        late = [(f"{kind} {name}", (kind, name)) for kind, names in kinds.items() for name in names]
        self.late = widgets.Dropdown(options=late, description="Starts in hours alone", **look)
        self.hours = widgets.Text(
            placeholder="mon-fri 20:00-06:00, sat-sun",
            description="Those hours",
            continuous_update=False,
            **look,
        )
        self.button = widgets.Button(description="Play", tooltip="Play the same weeks under these rules")
        self.button.on_click(lambda _: self.ask())
        controls = (
            self.quotas, self.order, self.half_life, self.reclaim, self.by_tier, self.restart, self.checkpoint,
            self.late, self.hours,
        )  # fmt: skip
        for control in controls:
            control.observe(lambda _: self.ask_soon(), names="value")
        title = widgets.HTML(f"<b>Against: {escape(self.base.source)}</b>")
        self.panel = widgets.VBox([title, *controls, self.button, self.status, self.answer])

    @property
    def question(self) -> SharingRules:
        """The rules as the controls stand."""
        stops = replace(
            self.base.stopping,
            reclaim=self.reclaim.value,
            by_tier=self.by_tier.value,
            restart_minutes=self.restart.value,
            checkpoint_minutes=self.checkpoint.value
            if self.checkpoint.value or self.base.stopping.checkpoint_minutes is not None
            else None,
        )
        teams, cohorts = (tuple(map(self._scaled, some)) for some in (self.base.teams, self.base.cohorts))
        return replace(
            self.base, teams=teams, cohorts=cohorts, order=self.order.value, half_life_days=self.half_life.value,
            stopping=stops, source=AS_SET, start_hours=self._start_hours(),
        )  # fmt: skip

    def _start_hours(self) -> tuple[StartHours, ...]:
        if self.late.value is None or week_hours_of(self.hours.value) is None:
            return self.base.start_hours
        kind, name = self.late.value
        others = (one for one in self.base.start_hours if getattr(one, kind) != name)
        return (*others, StartHours(self.hours.value, **{kind: name}))

    def _scaled(self, one: TeamQuota) -> TeamQuota:
        return one if one.gpus is None else replace(one, gpus=one.gpus * self.quotas.value)

    def _tried(self, rules: SharingRules) -> SharingTried:
        return tried_with(self.scenario, self.base, rules)


def tried_html(found: SharingTried) -> str:
    """Show who waits more and who less.

    Examples
    --------
    >>> import polars as pl
    >>> row = {"team": "<a>", "jobs": 3, "verdict": "waits less"} | dict.fromkeys(COLUMNS, 1.0) | {"lost_before": 0.0}
    >>> text = tried_html(SharingTried("now", "then", pl.DataFrame([row, row | {"team": "(all)"}]), "95 %", ()))
    >>> "&lt;a&gt;" in text, "<a>" in text
    (True, False)
    """
    headings = ["team", *(heading for heading, _ in COLUMNS.values()), "so it"]
    rows = (
        [row["team"]]
        + [figure_text(row[name], form) for name, (_, form) in COLUMNS.items()]
        + [row["verdict"]]
        for row in found.teams.to_dicts()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in found.notes)
    caption = f"Intervals: {found.blocks}"
    return f"<p>{escape(found.sentence)}</p>{table_html(headings, rows, caption=caption)}{notes}"
