"""``gpuplanner claims``: the list, a verdict on the terminal, and the page."""

from __future__ import annotations

import json

import pytest

from gpuplanner.lab.claims.published import every_claim


def test_the_list_names_every_claim_with_its_source_and_how_long_it_takes(command):
    code, out, talk = command("claims")
    assert code == 0
    text = " ".join(out.split())
    for claim in every_claim().values():
        assert f"{claim.name} ({claim.takes}) {claim.words} Source: {claim.source}." in text
    assert "claims all -o FOLDER" in talk
    listed = json.loads(command("claims", "--json")[1])["claims"]
    assert [each["name"] for each in listed] == list(every_claim())


def test_twenty_jobs_as_json(command):
    code, out, _ = command("claims", "twenty-jobs", "--seeds", "2", "--json")
    assert code == 0
    (found,) = json.loads(out)["claims"]
    assert [row["reported"] for row in found["tables"]["comparison"]] == [114, 0.362, 59, 0.8979]
    times = [row["mean"] for row in found["tables"]["policies"] if row["measure"] == "completion_min"]
    assert len(times) == 4
    assert times[-1] < 0.6 * times[0]
    assert found["verdict"] == "holds in part"
    inside = [
        row["low"] >= row["claimed_low"] and row["high"] <= row["claimed_high"]
        for row in found["figures"][:4]
    ]
    assert [row["holds"] for row in found["figures"][:4]] == [True if each else None for each in inside]
    assert command("claims", "twenty-jobs", "--seeds", "2", "--json")[1] == out


def test_twenty_jobs_says_that_it_is_calibrated(command):
    code, out, _ = command("claims", "twenty", "--seeds", "2", "--quiet")
    assert code == 0
    assert "decomposition" in out
    assert "36 configurations were tried" in " ".join(out.split())


@pytest.mark.long
def test_harder_compares_with_cutting_on_demand(command):
    code, out, _ = command("claims", "harder", "--seeds", "2", "--json")
    assert code == 0
    (found,) = json.loads(out)["claims"]
    assert {row["policy"] for row in found["tables"]["against greedy"]} == {
        "planned, real forecast",
        "planned, perfect forecast",
        "lower bound: nobody waits",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("forty-jobs",), 3, "twenty-jobs"),
        (("--seeds", "5"), 2, "--seeds: without meaning where no claim is named"),
        (("harder", "--seeds", "1"), 2, "--seeds"),
        (("memory", "--seeds", "5"), 2, "nothing in memory is random"),
        (("harder", "--long"), 2, "--long goes with 'all'"),
        (("all", "harder"), 2, "stands alone"),
        (("harder", "--data", "sample"), 2, "late-phases"),
    ],
)
def test_what_makes_no_sense_is_refused(command, arguments, code, said):
    ended, _, talk = command("claims", *arguments)
    assert ended == code
    assert said in " ".join(talk.replace("│", " ").split())


def test_the_page_and_its_json_stand_in_a_folder_of_their_own(command, tmp_path):
    out = tmp_path / "page"
    code, printed, talk = command("claims", "memory", "-o", str(out), "--json")
    assert code == 0
    assert str(out / "index.html") in talk
    assert json.loads((out / "claims.json").read_text()) == json.loads(printed)
    assert "not yet testable" in (out / "index.html").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    assert command("claims", "memory", "-o", str(tmp_path / "mine"))[0] == 3
    assert (tmp_path / "mine" / "index.html").read_text() == "mine"
