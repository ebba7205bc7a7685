"""Control of the replicas of an inference service: its targets and start-up, and the replicas by hour that follow."""

from __future__ import annotations

from dataclasses import replace

from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_answers import answer_service, list_unplanned_requests
from gpuplanner.decision.inference_services import InferenceService, PlannedService, plan_service_of_data, read_services
from gpuplanner.notebook.section_panels import SectionPanel
from gpuplanner.notebook.views_and_panels import button, control_style, dropdown, on_change, slider
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection


class ServicePanel(SectionPanel[InferenceService, PlannedService]):
    """Panel with the services of a scenario, sliders of their targets, and the replicas by hour that meet them.

    ``plan_service_of_data(scenario, panel.question)`` gives the same plan in code.

    Parameters
    ----------
    scenario : Scenario
        Data with requests, and the file of services.

    Attributes
    ----------
    service : ipywidgets.Dropdown
        Name of the service.
    ttft_ms, itl_ms, startup_s, min_replicas : ipywidgets slider
        Targets of the time to the first token and per token [ms], start-up [s], and fewest replicas.

    Raises
    ------
    ScenarioError
        If the scenario names no services.
    """

    def __init__(self, scenario: Scenario) -> None:
        if scenario.services is None:
            todo = "Set services to a services.yaml: see 'Plan an inference fleet' in the how-to."
            got = "; ".join(["none", *(warning["what"] for warning in list_unplanned_requests(scenario))])
            raise ScenarioError("scenario, services", "a file of services", got, todo)
        super().__init__(
            lambda service: plan_service_of_data(scenario, service), show_planned_service,
            working="Finding the replicas of each hour ...",
        )  # fmt: skip
        widgets = import_optional("ipywidgets", extra="notebook")
        self.services = {service.name: service for service in read_services(scenario.services)}
        first = next(iter(self.services.values()))
        style = control_style("15em", "40em") | {"readout_format": ".0f"}
        self.service = dropdown(list(self.services), first.name, "Service", **control_style("15em", "40em"))
        self.ttft_ms = slider(1e3 * first.ttft_s, 50, 5000, 50, "First token p99 [ms]", **style)
        self.itl_ms = slider(1e3 * first.itl_s, 5, 200, 1, "Time per token p95 [ms]", **style)
        self.startup_s = slider(first.startup_s, 0, 1800, 30, "Start-up [s]", **style)
        self.min_replicas = slider(first.min_replicas, 0, 20, 1, "Fewest replicas", **style)
        self.service.observe(self._show_stated_targets, names="value")
        self.button = button("Plan", "Find the replicas of each hour with these targets", self.ask)
        controls = [self.service, self.ttft_ms, self.itl_ms, self.startup_s, self.min_replicas]
        on_change(controls, self.ask_soon)
        self.panel = widgets.VBox([*controls, self.button, self.status, self.answer.box])

    def _show_stated_targets(self, _: object) -> None:
        """Set the sliders to what the file states for the chosen service."""
        chosen = self.services[self.service.value]
        self.ttft_ms.value, self.itl_ms.value = 1e3 * chosen.ttft_s, 1e3 * chosen.itl_s
        self.startup_s.value, self.min_replicas.value = chosen.startup_s, chosen.min_replicas

    @property
    def question(self) -> InferenceService:
        """Chosen service with the targets of the sliders."""
        return replace(
            self.services[self.service.value], ttft_s=self.ttft_ms.value / 1e3, itl_s=self.itl_ms.value / 1e3,
            startup_s=float(self.startup_s.value), min_replicas=int(self.min_replicas.value),
        )  # fmt: skip


def show_planned_service(planned: PlannedService) -> HtmlSection:
    """Render the replicas of a service by hour."""
    answer = answer_service(planned)
    figure = page.figure(
        plots.plot_replicas(planned.hours),
        title=f"Replicas of {answer.name} by hour of the trace",
        alt=answer.zero_text,
    )
    return page.section(answer.name, page.paragraph(f"{answer.sentence} {answer.backtest_text}"), figure)
