"""The control of an inference service: sliders ask what the file states, and what they are moved to."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.notebook import service_panel
from gpuplanner.notebook.service_panel import ServicePanel
from tests.decision.services.test_services_beside_jobs import TWO, cluster

__all__ = ["cluster"]


def test_the_panel_needs_services():
    with pytest.raises(ScenarioError, match="a file of services"):
        ServicePanel(Scenario())


def test_sliders_ask_for_the_service_with_their_targets(tmp_path: Path):
    file = tmp_path / "services.yaml"
    file.write_text(TWO)
    panel = ServicePanel(Scenario(services=str(file)))
    assert (panel.question.name, panel.question.startup_s, panel.question.ttft_s) == ("chat", 600.0, 1.0)
    panel.ttft_ms.value = 500
    panel.min_replicas.value = 3
    assert (panel.question.ttft_s, panel.question.min_replicas) == (0.5, 3)
    panel.service.value = "office"
    assert (panel.question.name, panel.question.ttft_s, panel.question.min_replicas) == ("office", 1.0, 0)


def test_the_answer_shows_the_replicas_of_the_sliders(cluster):
    panel = ServicePanel(cluster(TWO))
    panel.min_replicas.value = 4
    planned = panel.ask().result(timeout=120)
    assert planned.schedule.by_slot.min() == 4
    assert "4 to" in (html := service_panel.show_planned_service(planned)) or "4 replicas" in html
