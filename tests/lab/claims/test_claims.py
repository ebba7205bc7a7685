"""The list of claims, verdicts from figures, and what is said where nothing can be measured."""

from __future__ import annotations

import gzip
import json
import re
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import gpuplanner
from gpuplanner.errors import MissingDependencyError
from gpuplanner.lab.claims import VERDICTS, Conditions, Measured, PublishedClaim, put_to_the_test
from gpuplanner.lab.claims.page import write_page
from gpuplanner.lab.claims.phases.held_out_jobs import GROUPS, make_held_out
from gpuplanner.lab.claims.published import every_claim
from gpuplanner.lab.claims.record import record_of
from gpuplanner.lab.claims.verdict import figure, figures_of, share_interval, share_over_units, verdict_of
from gpuplanner.phases import find_phases

CLAIMS = every_claim()
NO_FIGURES = {"cannot be tested here", "not yet testable"}


def test_every_file_is_a_claim_of_its_name():
    files = {
        path.stem.replace("_", "-")
        for path in (Path(gpuplanner.__file__).parent / "lab" / "claims" / "published").glob("*.py")
        if path.stem != "__init__"
    }
    assert set(CLAIMS) == files
    assert len({claim.title for claim in CLAIMS.values()}) == len(files)
    vendors = {"late-phases", "twenty-jobs", "memory", "heterogeneity"}
    assert vendors <= files


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_says_who_where_and_how_long(claim):
    assert claim.words.endswith(".")
    assert min(len(claim.source), len(claim.on)) > 10
    assert re.search(r"second|minute|\d s$", claim.takes)
    assert not claim.long or "minute" in claim.takes


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS.values() if claim.needs], ids=lambda claim: claim.name
)
def test_absent_data_are_a_verdict(claim, tmp_path):
    for public in (None, tmp_path):
        found = put_to_the_test(claim, Conditions(public=public))
        assert found.verdict == "cannot be tested here"
        assert all(path in found.why for path in claim.needs)
        assert found.figures.is_empty()


def test_an_absent_library_is_a_verdict():
    def lacks(conditions):
        text = "numba is not installed"
        raise MissingDependencyError(text)

    claim = PublishedClaim("a", "A", "It is so.", "a paper", "seeds", "a second", lacks)
    found = put_to_the_test(claim, Conditions())
    assert (found.verdict, found.why) == ("cannot be tested here", "numba is not installed")


@pytest.mark.parametrize(
    ("interval", "claimed", "holds"),
    [
        ((1, 2), (1, 2), True),
        ((1, 2), (None, 1.5), None),
        ((1, 2), (None, 0.9), False),
        ((1, 2), (2.1, None), False),
        ((1, 2), (2, 3), None),  # they touch
        ((None, None), (0, 9), None),
    ],
)
def test_a_figure_holds_if_all_of_its_interval_does(interval, claimed, holds):
    assert figure("x", "", 1.5, claimed=claimed, interval=interval)["holds"] is holds


def test_the_verdict_is_that_of_the_figures():
    for holds in ([True], [True, False], [False], [False, None], [None], [True, None], []):
        verdict = verdict_of(holds)
        assert verdict in VERDICTS
        assert verdict not in NO_FIGURES
        assert (verdict == "holds") == (bool(holds) and set(holds) == {True})
        assert (verdict == "does not hold") == (False in holds and True not in holds)
    rows = [figure("a", "", 1.0, claimed=(0, 2)), figure("b", "", 3.0, claimed=(0, 2))]
    assert Measured.by(figures_of(rows), "").verdict == "holds in part"


def test_intervals_of_shares_hold_the_truth_as_often_as_they_say():
    """Shares of 0.9: of 400 draws about 95 % of the intervals hold it; by units, where jobs of one unit are alike."""
    rng = np.random.default_rng(5)
    alone = [share_interval(int(rng.binomial(60, 0.9)), 60) for _ in range(400)]
    assert 0.92 <= np.mean([low <= 0.9 <= high for low, high in alone]) <= 0.985
    covered = []
    for seed in range(200):
        of = rng.integers(1, 9, 60)
        hits = rng.binomial(of, rng.beta(9, 1, 60))
        low, high = share_over_units(hits.tolist(), of.tolist(), seed=seed)
        covered.append(low <= 0.9 <= high)
    assert 0.88 <= np.mean(covered) <= 0.985


def test_a_record_is_plain_and_has_every_figure():
    rows = figures_of([figure("a", "min", float("nan"), claimed=(None, 2.0), interval=(None, None))])
    claim = CLAIMS["twenty-jobs"]
    record = json.loads(json.dumps(record_of(claim, Measured.by(rows, "why")), allow_nan=False))
    assert record["words"] == claim.words
    assert record["figures"][0] == {
        "figure": "a", "unit": "min", "claimed_low": None, "claimed_high": 2.0, "measured": None, "low": None,
        "high": None, "holds": None,
    }  # fmt: skip


@pytest.mark.data
def test_late_phases_of_the_measured_runs_by_a_count_of_our_own(public_data):
    """Times of a step, read without the reader: late over early is one, and neither three nor five runs can tell."""
    claim = CLAIMS["late-phases"]
    found = put_to_the_test(claim, Conditions(public=public_data))
    assert found.verdict == "cannot tell"
    steps = found.tables["time of a step, training logs"]
    assert steps.height == 5
    path = public_data / "training_logs" / "modded_nanogpt" / "muon_124M.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    until = {}
    for line in text.splitlines():
        if line.startswith("step:") and "train_loss" in line:
            words = dict(word.split(":") for word in line.split())
            until[int(words["step"].split("/")[0])] = words["train_time"].removesuffix("ms")
    took = [
        int(until[step]) - int(until[step - 1])
        for step in range(12, 6201)
        if step - 1 in until and step in until
    ]
    third = len(took) // 3
    ratio = (sum(took[-third:]) / third) / (sum(took[:third]) / third)
    assert steps.filter(log="muon_124M")["ratio"].item() == pytest.approx(ratio, rel=1e-3)
    assert found.figures["measured"][1] == pytest.approx(np.median(steps["ratio"].to_list()))


@pytest.mark.data
def test_the_fewest_gpus_of_the_shipped_plans(public_data):
    """No plan needs fewer GPUs than its slices fill; the verdict is that of the comparison with what is shipped."""
    found = put_to_the_test(CLAIMS["services"], Conditions(public=public_data))
    table = found.tables["scenarios"]
    assert set(table["check"]) == {"sound"}
    assert all(7 * row["least_gpus"] >= row["slices"] for row in table.iter_rows(named=True))
    first = table.filter(throughput_of="process")
    fewer = (first["least_gpus"] < first["shipped_gpus"]).sum()
    assert found.verdict == ("holds" if fewer == 0 else "does not hold" if fewer == 4 else "holds in part")


def test_page_and_json_have_the_same_figures(tmp_path):
    rows = figures_of(
        [
            figure("a", "min", 1234.5, claimed=(None, 2000.0), interval=(1200.0, 1300.0)),
            figure("b", "%", None, claimed=(1, 2)),
        ]
    )
    tested = [(CLAIMS["harder"], Measured.by(rows, "Since <b>.", remarks=("One.",)))]
    write_page(tmp_path / "out", tested, Conditions(seed=7))
    record = json.loads((tmp_path / "out" / "claims.json").read_text())["claims"][0]
    page = (tmp_path / "out" / "index.html").read_text()
    assert (record["verdict"], record["figures"][0]["measured"]) == ("holds in part", 1234.5)
    assert "<b>" not in page.replace("Since &lt;b&gt;.", "")
    for shown in (
        "<strong>Verdict: holds in part.</strong>",
        "1,234",
        "2,000",
        "1,200",
        "1,300",
        "cannot tell",
        record["words"],
        "One.",
    ):
        assert shown in page
    assert page.count(f"{record['figures'][0]['measured']:,.4g}") >= 1
    write_page(tmp_path / "out", tested, Conditions(seed=7))
    assert (tmp_path / "out" / "index.html").read_text() == page


@pytest.mark.long
def test_phases_found_by_a_count_of_our_own():
    """One job of every kind: true changes near which one is reported, counted one by one; the verdict follows."""
    found = put_to_the_test(CLAIMS["phase-detection"], Conditions(seed=4, seeds=1))
    hits = true = 0
    for group in GROUPS:
        job = make_held_out(group, 4)
        times = job.samples["time"]
        near = max(timedelta(minutes=2), (times[-1] - times[0]) / 100)
        said = find_phases(job.samples)["start"][1:].to_list()
        hits += sum(any(abs(change - at) <= near for at in said) for change in job.changes)
        true += len(job.changes)
    counts = found.tables["by group of jobs"].filter(kind="held-out set")
    assert (counts["hit"].sum(), counts["true"].sum()) == (hits, true)
    row = found.figures.filter(figure="true changes, held-out set").row(0, named=True)
    assert row["measured"] == pytest.approx(100 * hits / true)
    inside = [low >= 90 for low in found.figures["low"]]
    outside = [high < 90 for high in found.figures["high"]]
    assert found.verdict == ("holds" if all(inside) else "holds in part")
    assert any(inside)
    assert found.figures["holds"].to_list() == [
        True if within else False if beyond else None for within, beyond in zip(inside, outside, strict=True)
    ]
