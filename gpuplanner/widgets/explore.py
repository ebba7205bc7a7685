"""The explore panel: choose a trace, a tenant, a job and a view, and see that section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from gpuplanner._optional import import_optional
from gpuplanner.study.past.explore import EVERYBODY, Inbox, open_inbox
from gpuplanner.study.past.public_traces import public_traces
from gpuplanner.widgets.background import BackgroundPanel

KEPT = 64
"""Answers that are kept, so that going back is immediate."""
MOST = 200
"""Jobs that are offered: a longer list cannot be read; any job can be shown in code."""


HELP = {
    "quality": "What is wrong with the data, and which time was seen",
    "ledger": "Where the GPU-time went",
    "demand": "What was wanted, by profile",
    "phases": "Phases, dips, signature and slices of the job",
    "claim": "Do late phases need fewer GPUs?",
}
"""What the views show, for those whose pointer rests on their buttons."""


class Shown(Protocol):
    """A section, as a notebook shows it."""

    def _repr_html_(self) -> str: ...


View = Callable[[Inbox, str, str], Shown]


@dataclass(frozen=True)
class Look:
    """What the controls ask for.

    - ``data``: Folder, ``"sample"`` or public trace.
    - ``view``: Name of the view.
    - ``tenant``, ``job``: Tenant or :data:`gpuplanner.study.past.explore.EVERYBODY`; job or ``""`` for the one with
      most telemetry.
    """

    data: str
    view: str
    tenant: str
    job: str


@dataclass(frozen=True, eq=False)
class SeenSection:
    """Answer: the inbox that was opened, and the section as HTML."""

    inbox: Inbox
    tenant: str
    html: str


class ExplorePanel(BackgroundPanel[Look, SeenSection]):
    """Controls over an inbox, the section that they ask for, and the same section in code.

    Traces are read and sections are drawn in a thread of their own. A trace stays open, and a section that was
    shown once is shown again at once.

    Parameters
    ----------
    inbox : Inbox
        Where the panel begins.
    views : mapping
        Name → function from an inbox, a tenant and a job to a section, as in ``gpuplanner.report.inbox.VIEWS``.
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
        self, inbox: Inbox, views: Mapping[str, View], *, data: str = "sample", traces: Sequence[str] = ()
    ) -> None:
        super().__init__(self._seen, lambda seen: seen.html, working="Reading and drawing ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.status.value = ""
        self._views = dict(views)
        self._opened = {data: inbox}
        self._kept: dict[Look, SeenSection] = {}
        self._filling = False

        def choice(label: str, options: Sequence[Any], help_: str) -> Any:  # noqa: ANN401 - an ipywidgets control
            # A drop-down does not show its tooltip; its label does.
            words = f"<span title='{help_}'>{label}</span>"
            return widgets.Dropdown(
                options=options, description=words, description_allow_html=True, tooltip=help_,
                style={"description_width": "6em"}, layout={"width": "24em"},
            )  # fmt: skip

        names = list(dict.fromkeys([data, *traces]))
        self.trace = choice("Trace", names, "Trace to look into: a folder, the sample, or a public trace")
        self.tenant = choice("Tenant", [], "Whose GPU-hours, demand and jobs are shown")
        self.job = choice("Job", [], "Job with telemetry, most readings first; for the view of phases")
        self.view = widgets.ToggleButtons(
            options=list(views), description="View", style={"description_width": "6em", "button_width": "7em"},
            tooltips=[HELP.get(name, f"Show {name}") for name in views],
        )  # fmt: skip
        self.code = widgets.HTML()
        self._fill(inbox, EVERYBODY)
        for control in (self.trace, self.tenant, self.job, self.view):
            control.observe(lambda _: self._changed(), names="value")
        rows = [widgets.HBox([self.trace, self.tenant, self.job], layout={"flex_flow": "row wrap"})]
        self.panel = widgets.VBox([*rows, self.view, self.code, self.status, self.answer])
        self._say()

    @property
    def question(self) -> Look:
        """What is chosen."""
        return Look(self.trace.value, self.view.value, self.tenant.value, self.job.value or "")

    def _seen(self, look: Look) -> SeenSection:
        """Open the trace if need be, and draw the section."""
        if look in self._kept:
            return self._kept[look]
        first = next(iter(self._opened.values()))
        if look.data not in self._opened:
            self._opened[look.data] = open_inbox(
                look.data, board=first.board, tz=first.tz, smallest_group=first.smallest_group
            )
        inbox = self._opened[look.data]
        tenant = look.tenant if look.tenant in inbox.tenants else EVERYBODY
        jobs = inbox.jobs_of(tenant)
        job = look.job if look.job in jobs else next(iter(jobs), "")
        section = self._views[look.view](inbox, tenant, job)
        seen = SeenSection(inbox, tenant, section._repr_html_())
        if len(self._kept) >= KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[look] = seen
        return seen

    def _arrived(self, number: int, newest: SeenSection | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, "" if status == "Done." else status)
        if number == self._asked and newest is not None:
            self._fill(newest.inbox, newest.tenant)

    def _fill(self, inbox: Inbox, tenant: str) -> None:
        """Offer the tenants of the trace and the jobs of the tenant, and keep what was chosen where it is there."""
        self._filling = True
        try:
            jobs = inbox.jobs_of(tenant)[:MOST]
            for control, options, wanted in (
                (self.tenant, [EVERYBODY, *inbox.tenants], tenant),
                (
                    self.job,
                    [(f"{job}", job) for job in jobs] or [("no job with telemetry", "")],
                    self.job.value,
                ),
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
        extra = {"ledger": f", tenant={look.tenant!r}", "demand": f", tenant={look.tenant!r}"}
        extra["phases"] = f", job={look.job!r}"
        first = next(iter(self._opened.values()))
        smallest = f", smallest_group={first.smallest_group}" if first.smallest_group else ""
        board = f", board={first.board!r}" if first.board else ""
        box = f"open_inbox({look.data!r}{board}, tz={first.tz!r}{smallest})"
        box += ".quality" if look.view == "quality" else ""
        self.code.value = f"<code>inbox.{escape(look.view)}({escape(box + extra.get(look.view, ''))})</code>"


def explore_inbox(
    inbox: Inbox, views: Mapping[str, View], *, data: str = "sample", traces: Sequence[str] | None = None
) -> ExplorePanel:
    """Make the explore panel of an inbox.

    Parameters
    ----------
    inbox : Inbox
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
    >>> from gpuplanner.report import inbox
    >>> panel = explore_inbox(open_inbox("sample"), inbox.VIEWS)
    >>> panel.tenant.value = "search"
    >>> panel.view.value = "ledger"
    >>> "Where the GPU-time of search went" in panel.ask().result().html
    True
    """
    others = ["sample", *public_traces()] if traces is None else traces
    return ExplorePanel(inbox, views, data=data, traces=others)
