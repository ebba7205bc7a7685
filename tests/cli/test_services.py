"""``gpuplanner plan --services``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplanner.cli.application import Exit

HEADER = "Mig instance,Batch size,Workload Number,Throughput,Latency\n"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two services in two scenarios, as arguments."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "bert.csv").write_text(HEADER + "3,8,1,330,0.024\n4,8,2,200,0.04\n7,8,1,0,0\n")
    (folder / "vgg16.csv").write_text(HEADER + "1,1,1,100,0.01\n2,1,1,150,0.01\n")
    (tmp_path / "rates.csv").write_text("730,N/A\n730,250\n")
    (tmp_path / "limits.csv").write_text("100,N/A\n100,100\n")
    return [
        "--services",
        str(folder),
        "--rates",
        str(tmp_path / "rates.csv"),
        "--latencies",
        str(tmp_path / "limits.csv"),
    ]


def test_json_has_the_size_the_bound_and_the_segments(command, files) -> None:
    code, out, err = command("plan", *files, "--row", "2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["gpus"], found["bound"], found["slices"], found["slices_bound"]) == (2, 2, 10, 10)
    assert found["proven"] is True
    assert found["seconds"] >= 0
    assert found["layouts"] == ["4g.40gb:1,3g.40gb:1", "1g.10gb:3"]
    assert [(row["service"], row["profile"], row["instances"], row["gpus"]) for row in found["segments"]] == [
        ("bert", "3g.40gb", 1, [0]),
        ("bert", "4g.40gb", 1, [0]),
        ("vgg16", "1g.10gb", 3, [1, 1, 1]),
    ]


def test_rows_count_from_1_and_the_first_is_the_default(command, files) -> None:
    answers = [command("plan", *files, *row, "--json")[1] for row in ((), ("--row", "1"))]
    first, same = (json.loads(answer) | {"seconds": 0} for answer in answers)
    assert first == same
    assert {row["service"] for row in first["segments"]} == {"bert"}
    code, _, err = command("plan", *files, "--row", "0")
    assert code == Exit.USAGE
    assert "--row" in err


def test_the_file_is_the_same_each_time(command, files, tmp_path) -> None:
    texts = []
    for name in ("one.json", "two.json"):
        code, _, err = command("plan", *files, "--row", "2", "-o", str(tmp_path / name))
        assert code == 0
        assert name in err
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert "seconds" not in json.loads(texts[0])


def test_the_file_is_verified_alone(command, files, tmp_path) -> None:
    path = tmp_path / "services.json"
    command("plan", *files, "--row", "2", "-o", str(path))
    code, out, _ = command("verify", str(path))
    assert code == 0
    assert "2 x A100-80GB for 2 services" in out
    assert command("verify", str(path), "--gpu-model", "H100-80GB-SXM5")[0] == Exit.CHECK_FAILED
    text = path.read_text()
    for right, wrong, words in (
        ('"rate_per_s": 730.0', '"rate_per_s": 930.0', "930 requests/s requested"),
        ('"slices": 10', '"slices": 9', "slices: the plan states 9, its segments have 10"),
        ("4g.40gb:1,3g.40gb:1", "4g.40gb:1,2g.20gb:1", "GPU 0: the layout has"),
        ('"latency_ms": 100.0', '"latency_ms": 20.0', "allowed are"),
    ):
        assert right in text
        path.write_text(text.replace(right, wrong))
        code, out, _ = command("verify", str(path))
        assert code == Exit.CHECK_FAILED
        assert words in out
    path.write_text(text.replace('"measured"', '"measurde"'))
    code, _, err = command("verify", str(path))
    assert code == Exit.BAD_INPUT
    assert "file of a service plan" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "give a SCENARIO, or --services"),
        (["plan", "sample", "--row", "2"], "need --services"),
        (["plan", "sample", "--services", "x"], "use --services without SCENARIO"),
        (["plan", "--services", "x", "--set", "month=all"], "use --services without SCENARIO"),
        (["plan", "--services", "x", "--rates", "y"], "--services needs --rates and --latencies"),
    ],
)
def test_either_a_scenario_or_services(command, arguments, words) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert words in " ".join(err.split())
