"""The text of a model is the model."""

from __future__ import annotations

import polars as pl
from speed_fit import model_to_json

from gpuplanner.sizing.speed import default_model, model_from_json


def test_text_is_the_model_to_the_byte():
    text = model_to_json(default_model())
    again = model_from_json(text)
    assert model_to_json(again) == text
    jobs = pl.DataFrame({"job_class": ["a"], "power_share": [0.6]})
    assert again.predict(jobs, "A100-80GB").equals(default_model().predict(jobs, "A100-80GB"))
