"""How the shipped model of speeds on slices is fitted to public measurements, and how far it is off."""

from gpuplanner.lab.speed.build import fit
from gpuplanner.lab.speed.held_out import accuracy, held_out
from gpuplanner.lab.speed.measurements import Measurements, measurements, own_measurements, relative_speeds
from gpuplanner.lab.speed.text import model_to_json

__all__ = [
    "Measurements",
    "accuracy",
    "fit",
    "held_out",
    "measurements",
    "model_to_json",
    "own_measurements",
    "relative_speeds",
]
