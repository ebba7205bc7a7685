"""``gpuplanner compare``: one object as text, JSON and page, and options that mean what they say."""

from __future__ import annotations

import json

import pytest

FEW = ["--set", "month=2026-02", "--replications", "2", "--policies", "static_whole,static_mig"]


def test_text_json_and_page_show_one_object(command, tmp_path):
    page = tmp_path / "page.html"
    code, out, told = command("compare", "sample", *FEW, "--json", "--hindsight", "--chart", page)
    assert code == 0
    found = json.loads(out)
    assert found["target"]["minutes"] == 10.0
    assert [row["policy"] for row in found["policies"]] == ["static_whole", "static_mig"]
    assert found["winner"] in ("today", "static_whole", "static_mig")
    text = page.read_text("utf-8")
    assert f"{found['policies'][1]['gpu_hours']:,.0f}" in text
    code, out, _ = command("compare", "sample", *FEW)
    assert code == 0
    assert f"{found['policies'][1]['gpu_hours']:,.0f}".replace(",", "") in out.replace(",", "")
    assert "tuning static_mig" in told
    assert f"{found['promised']['saving']:,.0f}" in out
    assert found["hindsight"]["ratio"] > 0
    assert "What each lever saves" in text or not found["saving_gpu_hours_per_week"]


def test_growth_is_told_as_a_table_and_on_the_page(command, tmp_path):
    page, whole = tmp_path / "page.html", [*FEW[:4], "--policies", "static_whole"]
    code, out, _ = command("compare", "sample", *whole, "--json", "--growth", "--chart", page)
    assert code == 0
    found = json.loads(out)
    assert found["growth"][0]["policy"] == "today"
    assert found["weeks_ahead"]
    assert "If there were more jobs" in page.read_text("utf-8")


@pytest.mark.long
def test_a_longer_wait_never_costs_more_and_a_lent_gpu_means_nvml(command):
    hours = []
    for minutes in ("2", "240"):
        code, out, _ = command(
            "compare", "sample", *FEW[:4], "--policies", "static_mig", "--wait-minutes", minutes, "--json"
        )
        assert code == 0
        hours.append(json.loads(out)["policies"][0]["gpu_hours"])
    assert hours[1] <= hours[0]
    code, out, _ = command("compare", "sample", *FEW, "--release-unit", "gpu", "--json")
    assert json.loads(out)["release_unit"] == "gpu"


def test_what_makes_no_sense_is_refused(command):
    code, _, err = command("compare", "sample", *FEW[:4], "--policies", "static_wohle")
    assert code == 3
    assert "Did you mean 'static_whole'" in err
    code, _, err = command("compare", "sample", *FEW, "--path", "ansible")
    assert code == 3
    assert "path one of" in err
    code, _, err = command("compare", "sample", *FEW, "--wait-quantile", "2")
    assert code == 3
    assert "wait_quantile between 0.5 and 0.999" in err
