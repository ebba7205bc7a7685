"""Files played back: the fleet and the rules that they say, read by none of the code that wrote them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import record_comparison
from gpuplanner.decision.policy_simulation import PolicySetting
from gpuplanner.decision.recommendation import DecisionBasis, decide
from gpuplanner.report.bundle_export import make_decision_bundle
from gpuplanner.simulator.simulation_inputs import NodeFleet

pytestmark = pytest.mark.long


def instances(text: str, gpus: int) -> dict[str, list[dict[str, int]]]:
    """Instances of each GPU by the names of mig-parted's configurations."""
    found: dict[str, list[dict[str, int]]] = {}
    for name, entries in yaml.safe_load(text)["mig-configs"].items():
        found[name] = [{"gpu": 1} for _ in range(gpus)]
        for entry in entries:
            for gpu in range(gpus) if entry["devices"] == "all" else entry["devices"]:
                found[name][gpu] = dict(entry["mig-devices"]) if entry["mig-enabled"] else {"gpu": 1}
    return found


def totals(each: list[dict[str, int]], profiles: tuple[str, ...]) -> list[int]:
    return [sum(one.get(name, 0) for one in each) for name in profiles]


def fixed(folder: Path, today: dict[str, list[int]], profiles: tuple[str, ...]) -> Any:
    """The script of the MIG manager or of Slurm: what it configures by node, and the nodes that are left out."""
    released = folder / "released.txt"
    gone = released.read_text().split() if released.exists() else []
    parted = folder / "mig-parted.yaml"
    text = (
        parted.read_text()
        if parted.exists()
        else yaml.safe_load((folder / "configmap.yaml").read_text())["data"]["config.yaml"]
    )
    configs = instances(text, 8)
    [script] = folder.glob("change.sh")
    labels = dict(re.findall(r"config\[(\S+)\]=(\S+)", script.read_text()))
    kept = [name for name in today if name not in gone]
    table = [[totals(configs[labels[name]], profiles) if name in labels else today[name]] for name in kept]
    return table, kept, None


def autoscaled(folder: Path, today: dict[str, list[int]], profiles: tuple[str, ...]) -> Any:
    """Cluster Autoscaler: groups of nodes that all stay on."""
    groups = json.loads((folder / "node-groups.json").read_text())
    one = []
    for group in groups.values():
        tags = {
            key.rpartition("nvidia.com/")[2]: value for key, value in group["aws_tags"].items() if "resources" in key
        }
        one.append([int(tags.get("gpu" if name == "gpu" else f"mig-{name}", 0)) for name in profiles])
    assert all(group["min"] == group["max"] == group["idle_nodes_kept"] for group in groups.values()), "no node is off"
    table = [[row] for row, group in zip(one, groups.values(), strict=True) for _ in range(group["min"])]
    return table, list(today)[: len(table)], None


READERS = {"mig-manager": fixed, "slurm": fixed, "autoscaler": autoscaled}


@pytest.fixture(scope="module", params=READERS)
def answer(request: pytest.FixtureRequest) -> tuple[str, DecisionBasis, Scenario]:
    asked = Scenario(actuator=request.param)
    return request.param, decide(asked), asked


def test_hours_and_waits_are_those_of_the_comparison(
    answer: tuple[str, DecisionBasis, Scenario], tmp_path: Path
) -> None:
    actuator, found, scenario = answer
    pack = make_decision_bundle(scenario, record_comparison(scenario, found))
    assert pack is not None
    pack.write(tmp_path)
    policy_results = found.policy_results
    assert policy_results is not None
    run, replayed_jobs = policy_results.winner.run, policy_results.replayed_jobs
    assert run is not None
    nodes = policy_results.asked_jobs.nodes
    profiles = policy_results.asked_jobs.fleet.profiles
    today = {
        name: policy_results.asked_jobs.fleet.capacity[number, 0].tolist() for number, name in enumerate(nodes.names)
    }
    table, names, switching = READERS[actuator](tmp_path / actuator, today, profiles)
    numbers = [nodes.names.index(name) for name in names]
    gpus = np.array([nodes.gpus[number] for number in numbers])
    fleet = NodeFleet(profiles, gpus, np.array(table), np.zeros(len(gpus)), policy_results.asked_jobs.fleet.weights)
    told = run.setting
    again = replayed_jobs.simulate(
        PolicySetting(told.policy, told.view, fleet, (), tuple(numbers), switching, told.placement)
    )
    assert again.daily_gpu_hours.sum() == pytest.approx(run.daily_gpu_hours.sum(), rel=0.01)
    mine, theirs = (replayed_jobs.wait_minutes(one, policy_results.evaluation_jobs) for one in (again, run))
    assert mine == pytest.approx(theirs, rel=0.01, abs=0.05)
