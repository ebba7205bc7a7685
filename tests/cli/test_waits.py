"""``waits``: why jobs waited, alike in the command and in a study."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

import gpuplanner as gp
from gpuplanner.core.serialization import to_plain
from gpuplanner.core.units_and_number_formats import waiting_hours_text
from gpuplanner.decision.wait_causes import CAUSES

HEAD = "JobID|User|Account|State|Submit|Start|End|NodeList|AllocTRES"
HOUR_S = 3600
NOON_S = 1_772_452_800


def accounting(limit: int) -> str:
    """Jobs of an hour each, submitted at once, never more than ``limit`` of them at a time."""
    rows = [HEAD]
    for number in range(40):
        start = NOON_S + HOUR_S * (number // limit) + 2 * (number // limit)
        rows.append(
            f"{number}|ann|a|COMPLETED|{NOON_S}|{start}|{start + HOUR_S}|n1|cpu=1,gres/gpu:h100=1,gres/gpu=1,node=1"
        )
    return "\n".join(rows) + "\n"


def waits_of(command, tmp_path, text: str, nodes: int = 1) -> dict:
    (tmp_path / "sacct.txt").write_text(text)
    node_texts = [f"NodeName=n{number} Arch=x86_64\n   Gres=gpu:h100:8\n" for number in range(1, nodes + 1)]
    (tmp_path / "nodes.txt").write_text("\n".join(node_texts))
    files = map(str, (tmp_path / "sacct.txt", "--nodes", tmp_path / "nodes.txt"))
    assert command("ingest", "slurm", *files, "--tz", "UTC", "-o", str(tmp_path / "data"))[0] == 0
    code, out, err = command("waits", str(tmp_path / "data"), "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_full_fleet_that_hands_over_within_seconds_has_too_few_gpus(command, tmp_path):
    found = waits_of(command, tmp_path, accounting(8))
    (row,) = found["causes"]["team"]
    assert (row["name"], row["jobs"]) == ("a", 40)
    # Eight start at once, and eight more with each hour and two seconds.
    waited_h = sum(8 * number * (HOUR_S + 2) for number in range(5)) / HOUR_S
    assert row["waited"] == pytest.approx(waited_h, abs=1e-6)
    assert row["insufficient"] == row["waited"]
    assert found["replay_error"] < 0.01
    assert found["limits"] == []
    _, text, _ = command("waits", str(tmp_path / "data"))
    (error,) = re.findall(r"in the closest of \d+ replays, ([\d.]+) % on average", text)
    # Replays differ in arrivals of up to 30 s, against two hours of waiting.
    assert float(error) <= 1


def test_a_tenant_at_a_limit_is_named_with_its_number(command, tmp_path):
    found = waits_of(command, tmp_path, accounting(2))
    (row,) = found["causes"]["team"]
    assert row["limits"] > 0.99 * row["waited"]
    assert found["limits"] == [{"tenant": "a", "gpus": 2.0, "amount_text": "2 GPUs"}]


def test_a_job_waits_from_when_it_was_eligible(command, tmp_path):
    """Held back until two hours after submission, it starts an hour later, and has waited that hour."""
    eligible, start = NOON_S + 2 * HOUR_S, NOON_S + 3 * HOUR_S
    text = accounting(8).replace("Submit|", "Submit|Eligible|").replace(f"|{NOON_S}|", f"|{NOON_S}|{NOON_S}|", 40)
    rows = text.splitlines()[:9]
    rows.append(
        f"99|ann|held|COMPLETED|{NOON_S}|{eligible}|{start}|{start + HOUR_S}|n1|cpu=1,gres/gpu:h100=1,gres/gpu=1,node=1"
    )
    found = waits_of(command, tmp_path, "\n".join(rows) + "\n")
    assert [(row["name"], row["waited"]) for row in found["causes"]["team"]] == [("a", 0.0), ("held", 1.0)]
    assert found["explained_fraction"] is None, "too few jobs waited to say how much of it is explained"


def test_the_command_and_a_study_say_the_same(command, study):
    own = json.loads(command("waits", "sample", "--json")[1])
    assert own == to_plain(study.comparison.waits)
    for rows in own["causes"].values():
        for row in rows:
            assert abs(sum(row[cause] for cause in CAUSES) - row["waited"]) < 1e-4


@pytest.mark.parametrize("team", ["research", "llm-core"])
def test_a_team_has_the_hours_that_the_cluster_has_of_it(command, team):
    own = json.loads(command("waits", "sample", "--team", team, "--json")[1])
    view = gp.open("sample").waits(by=["job_size", "cause"], team=team).df
    (of_team,) = own["causes"]["team"]
    assert of_team["name"] == team
    for cause in CAUSES:
        assert of_team[cause] == pytest.approx(view.filter(cause=cause)["wait_hours"].sum(), abs=1e-4)
    by_size = {row["name"]: row["waited"] for row in own["causes"]["job_size"]}
    for (size,), rows in view.filter(pl.col("job_size").cast(pl.String).str.contains("g.")).group_by("job_size"):
        assert by_size[str(size)] == pytest.approx(rows["wait_hours"].sum(), abs=1e-4)
    total = sum(by_size.values())
    assert total == pytest.approx(view["wait_hours"].sum(), abs=1e-3)
    assert total > 0
    _, text, _ = command("waits", "sample", "--team", team)
    assert text.startswith(f"{team}: Jobs waited {waiting_hours_text(total)} in total; main cause ")


def test_a_team_that_is_unknown_names_the_nearest(command):
    code, _, err = command("waits", "sample", "--team", "researchx")
    assert code == 3
    assert "team 'researchx' is unknown" in err
    assert "Did you mean 'research'" in err


def test_only_the_limit_of_the_team_is_named(command, tmp_path):
    others = "\n".join(accounting(8).replace("|a|", "|b|").replace("|n1|", "|n2|").splitlines()[1:])
    others = re.sub(r"^(\d+)", r"9\1", others, flags=re.MULTILINE)
    found = waits_of(command, tmp_path, accounting(2) + others + "\n", nodes=2)
    assert {row["name"] for row in found["causes"]["team"]} == {"a", "b"}
    assert [limit["tenant"] for limit in found["limits"]] == ["a"]
    for team, limits in (("a", ["a"]), ("b", [])):
        own = json.loads(command("waits", str(tmp_path / "data"), "--team", team, "--json")[1])
        assert [limit["tenant"] for limit in own["limits"]] == limits
        assert own["causes"]["team"] == [row for row in found["causes"]["team"] if row["name"] == team]
