"""How fast a job runs on each MIG profile, relative to the whole GPU, with an interval.

A law of two parameters a slice and one exponent, fitted to public measurements on A100 boards; other boards
are carried over by their SMs, with wider intervals.
"""

from gpuplanner.speed.build import fit
from gpuplanner.speed.evaluate import accuracy, held_out
from gpuplanner.speed.law import SpeedLaw
from gpuplanner.speed.measurements import measurements, own_measurements, relative_speeds
from gpuplanner.speed.model import SpeedModel
from gpuplanner.speed.sizing import SpeedNeeds, smallest_profile
from gpuplanner.speed.store import default_model, model_from_json, model_to_json
from gpuplanner.speed.tables import Measurements, SpeedJobs

__all__ = [
    "Measurements",
    "SpeedJobs",
    "SpeedLaw",
    "SpeedModel",
    "SpeedNeeds",
    "accuracy",
    "default_model",
    "fit",
    "held_out",
    "measurements",
    "model_from_json",
    "model_to_json",
    "own_measurements",
    "relative_speeds",
    "smallest_profile",
]
