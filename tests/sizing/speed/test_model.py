"""Predictions, their intervals, what they refuse, and the text of a model."""

from __future__ import annotations

import json
import math
import statistics
from importlib import resources

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError, GpuPlannerWarning, SchemaError, TraceFormatError
from gpuplanner.sizing.mig_speed_model import (
    SPEED_MODEL_FILE_NAME,
    SPEED_PREDICTION_COLUMNS,
    default_speed_model,
    speed_model_from_json,
)
from tests.examples import examples

SHIPPED = (resources.files("gpuplanner.sizing") / SPEED_MODEL_FILE_NAME).read_text("utf-8")

# BERT-base inference, sequences/s on an A100 by batch size: 1g.5gb, 2g.10gb, 7g.40gb; read from a figure.
BERT = {
    1: (90, 90, 90),
    4: (340, 357, 345),
    8: (557, 732, 741),
    16: (597, 1284, 1461),
    32: (604, 1309, 2975),
    64: (630, 1286, 4833),
}
BERT_LARGEST = (256, 4835)


def predict(gpu_model="A100-80GB", coverage=0.9, **facts):
    jobs = pl.DataFrame({"job_class": ["a"]} | {name: [value] for name, value in facts.items()})
    return default_speed_model().predict(jobs, gpu_model, coverage=coverage)


def at(table, profile):
    return table.row(by_predicate=pl.col("profile") == profile, named=True)


shares = st.one_of(st.none(), st.floats(0, 1))


@settings(max_examples=examples(30))
@given(shares, shares, shares, st.sampled_from(["A100-40GB", "H100-80GB-SXM5", "A30-24GB", "B200-180GB"]))
def test_speeds_lie_in_their_intervals_and_grow_with_the_slice(power, memory, gpu, gpu_model):
    table = predict(gpu_model, power_share=power, memory_utilisation=memory, gpu_utilisation=gpu)
    assert table.columns == list(SPEED_PREDICTION_COLUMNS)
    ordered = (table["speed_low"] >= 0) & (table["speed_low"] <= table["speed"])
    assert (ordered & (table["speed"] <= table["speed_high"]) & (table["speed_high"] <= 1)).all()
    assert (table["speed"] > 0).all()
    assert table["speed"].is_sorted()
    assert table["speed"][-1] == 1


def test_busier_jobs_lose_more():
    speeds = [at(predict(power_share=share), "2g.20gb")["speed"] for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > 0.95
    assert speeds[-1] < 0.35


def test_the_best_evidence_counts():
    facts = {"kind": "inference", "gpu_utilisation": 0.5, "batch": 8}
    assert at(predict(kind="inference", batch=8), "1g.10gb")["evidence"] == "batch size"
    assert at(predict(kind="training", batch=8), "1g.10gb")["evidence"] == "nothing"
    assert at(predict(**facts), "1g.10gb")["evidence"] == "GPU utilisation"
    facts |= {"step_s": 0.1, "other_batch": 64, "other_step_s": 0.5}
    assert at(predict(**facts), "1g.10gb")["evidence"] == "two batch sizes"
    facts |= {"memory_utilisation": 0.4}
    assert at(predict(**facts), "1g.10gb")["evidence"] == "telemetry"
    facts |= {"measured_profile": "2g.20gb", "measured_speed": 0.5}
    table = predict(**facts)
    assert at(table, "1g.10gb")["evidence"] == "second profile"
    assert (at(table, "2g.20gb")["evidence"], at(table, "2g.20gb")["speed"]) == ("measured", 0.5)


def test_a_wider_coverage_has_a_wider_interval():
    narrow, wide = (at(predict(power_share=0.6, coverage=coverage), "1g.10gb") for coverage in (0.8, 0.9))
    assert wide["speed_low"] <= narrow["speed_low"]
    assert wide["speed_high"] >= narrow["speed_high"]


def test_where_it_does_not_fit_there_is_no_speed():
    assert predict(memory_gib=30.0)["profile"].to_list() == ["3g.40gb", "4g.40gb", "7g.80gb", "gpu"]
    with pytest.warns(GpuPlannerWarning, match=r"more in 1 class\(es\): 'a'"):
        assert predict(memory_gib=300.0).is_empty()


def test_other_boards_are_carried_over_by_sms_with_an_interval_twice_as_wide():
    model = default_speed_model()
    limit = float(model.fitted.law.limit(60 / 132))
    assert 0.51 < limit < 0.59  # between 3g and 4g of an A100, since 60 of 132 SMs are more than 3/7
    row = at(predict("H100-80GB-SXM5", power_share=1.0), "3g.40gb")
    assert row["speed"] == pytest.approx(limit, abs=0.01)
    assert row["evidence"] == "telemetry, carried by SMs"
    same = at(predict("A100-80GB", power_share=1.0), "3g.40gb")
    widths = [math.log(one["speed"] / one["speed_low"]) for one in (row, same)]
    rooms = [math.log(limit), math.log(float(model.fitted.law.limit(3 / 7)))]
    assert widths[0] / widths[1] == pytest.approx(model.widening * rooms[0] / rooms[1])


def test_the_full_profile_is_not_promised_to_be_as_fast_as_the_board_that_is_not_cut():
    assert at(predict("A100-80GB"), "7g.80gb")["speed_low"] == pytest.approx(98 / 108)
    assert at(predict("H100-80GB-SXM5"), "7g.80gb")["speed_low"] == 1


def test_figures_published_elsewhere_lie_near_predictions_from_two_batch_sizes():
    errors, covered = [], []
    other_batch, other_rate = BERT_LARGEST
    for batch, (*slices, whole) in BERT.items():
        facts = {"batch": batch, "step_s": batch / whole, "other_batch": other_batch, "kind": "inference"}
        table = predict("A100-40GB", **facts, other_step_s=other_batch / other_rate)
        for profile, rate in zip(("1g.5gb", "2g.10gb"), slices, strict=True):
            row, measured = at(table, profile), min(1.0, rate / whole)
            errors.append(abs(row["speed"] / measured - 1))
            covered.append(row["speed_low"] <= measured <= row["speed_high"])
    assert statistics.median(errors) < 0.10
    assert all(covered)


@pytest.mark.parametrize(
    ("facts", "error", "said"),
    [
        ({"power_share": 1.4}, SchemaError, "power_share"),
        ({"measured_profile": "2g.20gb"}, SchemaError, "measured profile and measured speed go together"),
        ({"measured_profile": "7g.80gb", "measured_speed": 1.0}, SchemaError, "smaller than 7g.80gb"),
        ({"measured_profile": "2g.10gb", "measured_speed": 0.5}, GeometryError, "unknown"),
        ({"batch": 8, "other_batch": 8, "step_s": 1.0, "other_step_s": 1.0}, SchemaError, "two batch sizes need"),
        ({"kind": "dancing"}, SchemaError, "kind|dancing"),
        ({"coverage": 0.95}, SchemaError, "0.8, 0.9"),
    ],
)
def test_bad_input_is_refused_with_its_name(facts, error, said):
    with pytest.raises(error, match=f"(?i){said}"):
        predict(**facts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"law": {}}, "fractions"),
        ({"slices": [1, 2]}, "one fraction and limit more than slices"),
        ({"links": {"batch": ["x", 1]}}, "ValueError"),
        ({"radii": [[1]]}, "speed model"),
        ({"format": "2"}, "format"),
    ],
)
def test_damaged_text_is_refused(change, said):
    document = json.loads(SHIPPED) | change
    with pytest.raises(TraceFormatError, match=said):
        speed_model_from_json(json.dumps(document))
    with pytest.raises(TraceFormatError, match="expected JSON"):
        speed_model_from_json("{")
    with pytest.raises(TraceFormatError, match="got 'list'"):
        speed_model_from_json("[]")
