"""A decision for a stated number of GPUs: nothing of it outlives the data that it was made from."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.decision.fleet_size_decision import _keep_todays_layouts


def test_todays_fleet_is_read_again_after_the_data_were_written_again(tmp_path: Path):
    folder = tmp_path / "data"
    shutil.copytree(data_folder("sample"), folder)
    scenario = Scenario(data=str(folder), actuator="mig-manager")
    before = _keep_todays_layouts(scenario)
    assert _keep_todays_layouts(scenario.but(price_per_gpu_hour=2.0)) is before
    provenance = folder / "provenance.json"
    provenance.write_text(provenance.read_text("utf-8") + "\n", "utf-8")
    assert _keep_todays_layouts(scenario) is not before
