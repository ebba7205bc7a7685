"""One bad row among good ones: it is named with its GPU-hours, and every other figure is what it was without it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

HEADER = "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|NodeList|ReqTRES|AllocTRES|JobName"
NODES = "NodeName=n1 Arch=x86_64\n   Gres=gpu:8\n   State=IDLE\n"
FIRST = datetime(2025, 9, 1)


def row(job, gpus, start, hours, tenant="bio"):
    times = "|".join(f"{time:%Y-%m-%dT%H:%M:%S}" for time in (start, start, start + timedelta(hours=hours)))
    return f"{job}|ann|{tenant}|COMPLETED|{times}|{hours * 3600:g}|4-00:00:00|n1||gres/gpu={gpus:g}|train"


GOOD = [row(100 + n, 8 if n % 3 else 4, FIRST + timedelta(hours=4 * n), 3, f"t{n % 2}") for n in range(30)]
BAD = {
    "overlap": (row(999, 8, FIRST + timedelta(hours=5), 2), "on a node whose GPUs were allocated to other jobs", 16.0),
    "size": (row(999, 100_000, FIRST + timedelta(hours=9), 1), "more than 10 times the peak of GPUs", 100_000.0),
    "long ago": (row(999, 1, datetime(2003, 1, 1), 2), "more than a year away", 2.0),
    "to come": (row(999, 1, datetime(2061, 1, 1), 2), "more than a year away", 2.0),
}  # fmt: skip


@pytest.fixture
def described(command, tmp_path):
    """What describe says of rows with a list of nodes: the summary of ingest, and the description."""

    def describe(name, rows, *, nodes=True):
        (tmp_path / f"{name}.txt").write_text("\n".join([HEADER, *rows]) + "\n")
        (tmp_path / "nodes.txt").write_text(NODES)
        given = ["--nodes", str(tmp_path / "nodes.txt")] if nodes else []
        out = str(tmp_path / name)
        code, text, _ = command(
            "ingest", "slurm", str(tmp_path / f"{name}.txt"), "--tz", "UTC", *given, "-o", out, "--json", "--quiet"
        )
        assert code == 0
        code, told, err = command("describe", out, "--json")
        assert code == 0, err
        return json.loads(text), json.loads(told)

    return describe


# Without a list of nodes nobody knows that there are eight GPUs.
WITH_AND_WITHOUT_NODES = [(kind, nodes) for kind in BAD for nodes in (True, False) if nodes or kind != "overlap"]


@pytest.mark.parametrize(("kind", "nodes"), WITH_AND_WITHOUT_NODES)
def test_one_bad_row_spoils_nothing(described, kind, nodes):
    line, rule, hours = BAD[kind]
    clean_summary, clean = described("clean", GOOD, nodes=nodes)
    summary, told = described("bad", [*GOOD[:15], line, *GOOD[15:]], nodes=nodes)
    named = [each for each in told["quality"] if each["check"].startswith("quarantined: ")]
    assert [(each["rows"], each["severity"], each["example"]) for each in named] == [(1, "error", "job 999")]
    assert rule in named[0]["check"]
    assert f"{hours:,.1f} GPU-hours" in named[0]["effect"]
    assert summary["rows_in"] == 31 == summary["rows_kept"] + summary["rows_rejected"]
    assert summary["rows_kept"] == clean_summary["rows_kept"] + 1
    for fact in ("gpu_hours", "span_start", "span_end"):
        assert summary[fact] == clean_summary[fact]
    assert [(each["count"], each["what"].split(":")[0]) for each in told["warnings"]] == [(1, "quarantined")]
    for part in set(clean) - {"facts", "quality", "warnings"}:
        assert told[part] == clean[part], part
    moved = {name for name, value in clean["facts"].items() if told["facts"][name] != value}
    assert moved <= {"rows_in", "rows_kept", "quarantined"}


def test_all_of_them_at_once_and_a_list_of_nodes_that_is_too_short(described, tmp_path):
    clean = described("clean", GOOD)[1]
    lines = [line.replace("999|", f"99{n}|", 1) for n, (line, _, _) in enumerate(BAD.values())]
    told = described("bad", [*lines, *GOOD])[1]
    assert told["ledger"] == clean["ledger"]
    assert sum(each["rows"] for each in told["quality"] if each["severity"] == "error") == 4
    assert told["facts"]["quarantined"] == {"jobs": 4, "gpu_hours": pytest.approx(16 + 100_000 + 2 + 2)}
    half = [line.replace("|n1|", "|n2|") for line in GOOD[1::3]]  # on a node that the list lacks, at other hours
    assert described("unlisted", [*GOOD[::3], *half])[1]["facts"]["quarantined"] is None


def test_a_list_of_nodes_that_comes_later_judges_the_jobs_that_are_there(command, tmp_path):
    """Jobs alone say nothing of eight GPUs; with the nodes beside them, in whatever order, two at once are too many."""
    (tmp_path / "jobs.txt").write_text("\n".join([HEADER, *GOOD, BAD["overlap"][0]]) + "\n")
    (tmp_path / "nodes.csv").write_text("node,gpus,gpu_model\nn1,8,A100-80GB\n")
    sources = {"slurm": [str(tmp_path / "jobs.txt"), "--tz", "UTC"], "nodes": [str(tmp_path / "nodes.csv")]}
    found = []
    for place, order in (("a", ("slurm", "nodes")), ("b", ("nodes", "slurm"))):
        for source in order:
            code, _, err = command("ingest", source, *sources[source], "-o", str(tmp_path / place), "--quiet")
            assert code == 0, err
        code, told, err = command("describe", str(tmp_path / place), "--json")
        assert code == 0, err
        found.append(json.loads(told))
        (named,) = [each for each in found[-1]["quality"] if each["check"].startswith("quarantined: ")]
        assert (named["rows"], named["example"]) == (1, "job 999")
        assert found[-1]["facts"]["quarantined"] == {"jobs": 1, "gpu_hours": 16.0}
    assert found[0]["ledger"] == found[1]["ledger"]


def test_files_added_one_by_one_are_judged_together(command, tmp_path):
    """A row that is far from the first file's is not from the second's, and the other way round."""
    far = [row(500 + n, 1, datetime(2027, 9, 1) + timedelta(hours=n), 1) for n in range(40)]
    files = {"a": [*GOOD, far[0]], "b": far}
    for name, rows in files.items():
        (tmp_path / f"{name}.txt").write_text("\n".join([HEADER, *rows]) + "\n")
    out = str(tmp_path / "t")
    for name, marked in (("a", 1), ("b", 0)):
        path = str(tmp_path / f"{name}.txt")
        assert command("ingest", "slurm", path, "--tz", "UTC", "--append", "-o", out, "--quiet")[0] == 0
        facts = json.loads(command("describe", out, "--json")[1])["facts"]
        assert (facts["quarantined"] or {"jobs": 0})["jobs"] == marked
    assert facts["jobs"] == len(GOOD) + len(far)
