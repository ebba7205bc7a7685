"""How fast a job runs on each MIG profile, relative to the whole GPU, with an interval.

A law of two parameters a slice and one exponent, fitted to public measurements on A100 boards; other boards
are carried over by their SMs, with wider intervals.
"""

from gpuplanner.sizing.speed.law import SpeedLaw
from gpuplanner.sizing.speed.model import SpeedModel
from gpuplanner.sizing.speed.speed_tables import SpeedJobs
from gpuplanner.sizing.speed.store import default_model, model_from_json

__all__ = ["SpeedJobs", "SpeedLaw", "SpeedModel", "default_model", "model_from_json"]
