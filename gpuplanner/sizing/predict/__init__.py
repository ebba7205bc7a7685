"""Peak GPU memory of a job from the model and the tool, component by component, with bounds that say how sure.

Nothing here reads a measurement but what fits knobs and scores: a prediction knows the job's columns and documentation.
"""

from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.describe import describe
from gpuplanner.sizing.predict.evaluate import ablation, evaluate, scored
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.model import (
    PeakModel,
    default_model,
    fit_model,
    learned,
    model_from_json,
    model_to_json,
)
from gpuplanner.sizing.predict.peak import explained, peak_gib
from gpuplanner.sizing.predict.table import measured_runs, predict_table

__all__ = [
    "Architecture",
    "PeakModel",
    "TrainingJob",
    "ablation",
    "default_model",
    "describe",
    "evaluate",
    "explained",
    "fit_model",
    "learned",
    "measured_runs",
    "model_from_json",
    "model_to_json",
    "peak_gib",
    "predict_table",
    "scored",
]
