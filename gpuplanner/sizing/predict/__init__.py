"""Peak GPU memory of a job from the model and the tool, component by component, with bounds that say how sure.

Nothing here reads a measurement but what fits knobs and scores: a prediction knows the job's columns and documentation.
"""

from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.describe import describe
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.learning import learned
from gpuplanner.sizing.predict.model import PeakModel, peak_model_text, read_peak_model, shipped_model
from gpuplanner.sizing.predict.peak import explained, peak_gib
from gpuplanner.sizing.predict.table import measured_runs, predict_table, unread_rows

__all__ = [
    "Architecture",
    "PeakModel",
    "TrainingJob",
    "describe",
    "explained",
    "learned",
    "measured_runs",
    "peak_gib",
    "peak_model_text",
    "predict_table",
    "read_peak_model",
    "shipped_model",
    "unread_rows",
]
