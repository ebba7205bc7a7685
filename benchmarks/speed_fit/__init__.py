"""How the shipped model of speeds on slices is fitted to public measurements, and how far it is off."""

from speed_fit.build import fit
from speed_fit.held_out import accuracy, held_out
from speed_fit.measurements import Measurements, measurements, own_measurements, relative_speeds
from speed_fit.text import model_to_json

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
