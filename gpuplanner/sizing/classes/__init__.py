"""Classes of jobs: named by rules where the source does not name them, with the evidence for each."""

from gpuplanner.sizing.classes.classify import class_by_shape, classify
from gpuplanner.sizing.classes.facts import NUMBERS, TEXTS
from gpuplanner.sizing.classes.rules import CLASSES, Range, Rule, Words, read_rules, shipped_rules

__all__ = [
    "CLASSES",
    "NUMBERS",
    "TEXTS",
    "Range",
    "Rule",
    "Words",
    "class_by_shape",
    "classify",
    "read_rules",
    "shipped_rules",
]
