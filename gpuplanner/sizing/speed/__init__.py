"""How fast a job runs on each MIG profile, relative to the whole GPU, with an interval.

A law of two parameters a slice and one exponent, fitted to public measurements on A100 boards; other boards
are carried over by their SMs, with wider intervals.
"""

from gpuplanner.sizing.speed.build import fit
from gpuplanner.sizing.speed.fast_enough import SpeedNeeds, smallest_fast_enough
from gpuplanner.sizing.speed.held_out import accuracy, held_out
from gpuplanner.sizing.speed.law import SpeedLaw
from gpuplanner.sizing.speed.measurements import measurements, own_measurements, relative_speeds
from gpuplanner.sizing.speed.model import SpeedModel
from gpuplanner.sizing.speed.store import default_model, model_from_json, model_to_json
from gpuplanner.sizing.speed.tables import Measurements, SpeedJobs

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
    "smallest_fast_enough",
]
