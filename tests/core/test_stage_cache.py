"""The cache on disk: a damaged entry is computed again and replaced, whatever was damaged."""

from __future__ import annotations

import json

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import disk_stage

KEPT = {"gpus": 8, "team": "vision"}


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A stage on disk; ``forget`` stands for a new process."""
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path))

    @disk_stage("tried", lambda value: json.dumps(value).encode(), json.loads)
    def value_of(scenario):
        return KEPT | {"seed": scenario.seed}

    return value_of


def damages(written: bytes) -> list[bytes]:
    """Cut off, emptied, replaced, and with one changed letter that still is JSON."""
    return [b"", written[:-3], written[:7], b"{}", b"\x00" * len(written), written.replace(b"vision", b"visios"), b"[1"]


def test_a_damaged_result_is_computed_again_and_heals(stage, tmp_path):
    right = stage(Scenario(seed=3))
    (path,) = tmp_path.rglob("*.result")
    written = path.read_bytes()
    for number, damaged in enumerate(damages(written), start=2):
        path.write_bytes(damaged)
        stage.forget()
        assert stage(Scenario(seed=3)) == right, damaged
        assert stage.computed == number
        assert path.read_bytes() == written
    stage.forget()
    assert stage(Scenario(seed=3)) == right
    assert stage.computed == number  # kept, and read from disk


@pytest.mark.parametrize("damaged", ["", "[", "7", "[7]", "[[7]]", '[["no field"]]', "{}", "[[]]", "null"])
def test_damaged_lists_of_fields_heal(stage, tmp_path, damaged):
    right = stage(Scenario(seed=3))
    (path,) = tmp_path.rglob("reads.json")
    path.write_text(damaged)
    stage.forget()
    assert stage(Scenario(seed=3)) == right
    stage.forget()
    assert stage(Scenario(seed=3)) == right
    assert stage.computed == 2
