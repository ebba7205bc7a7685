"""Fields of a scenario: default, unit, rule and meaning, and the control that sets each."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuplanner.core.errors import ScenarioError

Kind = TypeVar("Kind", bound=type)
_READ: dict[type, Mapping[str, Knob]] = {}
CATALOGUES: dict[str, Callable[[str], str]] = {}
"""By kind of name, the function that returns its full form. ``gpuplanner/__init__.py`` adds the functions."""


@dataclass(frozen=True)
class KnobRule:
    """What a value must be: in the words of an error, and as a test of the value and the whole that it is part of."""

    words: str
    holds: Callable[[Any, Any], bool]
    options: Callable[[], Sequence[str]] = tuple


def between(low: float, high: float, note: str = "") -> KnobRule:
    """A number between two others, which are allowed.

    Examples
    --------
    >>> between(0, 10_080, ", which is a week").words
    'between 0 and 10080, which is a week'
    """
    return KnobRule(f"between {low:g} and {high:.10g}{note}", lambda value, _: low <= value <= high)


def at_least(low: float) -> KnobRule:
    """A number from another one on."""
    return KnobRule(f"at least {low:g}", lambda value, _: value >= low)


def one_of(*options: str) -> KnobRule:
    """One of a few words.

    Examples
    --------
    >>> one_of("size", "tier", "class").words
    "'size', 'tier' or 'class'"
    """
    *others, last = map(repr, options)
    return KnobRule(f"{', '.join(others)} or {last}", lambda value, _: value in options, lambda: options)


@dataclass(frozen=True)
class Slider:
    """How a notebook asks for a number; a value outside of the range widens it."""

    label: str
    low: float
    high: float
    step: float
    decimals: int = 2


@dataclass(frozen=True)
class DropDown:
    """How a notebook asks for one of the options of the rule."""

    label: str


@dataclass(frozen=True)
class Knob:
    """A row: what :func:`knob` was told, with name, types (None apart) and default of the field."""

    group: str
    meaning: str
    rule: KnobRule | None = None
    unit: str = ""
    none: str = ""
    option: str | None = None
    control: Slider | DropDown | None = None
    name: str = ""
    kinds: tuple[type, ...] = ()
    default: Any = None

    @property
    def flag(self) -> str:
        """Its option on a command line."""
        return self.option or f"--{self.name.replace('_', '-')}"

    @property
    def brief(self) -> str:
        """The first sentence of its meaning, without the full stop: what a control shows."""
        return self.meaning.partition(". ")[0].rstrip(".").replace("``", "")

    @property
    def label(self) -> str:
        """What stands at its control, with the unit."""
        title = self.control.label if self.control else self.name
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def allowed(self) -> str:
        """What a value may be, beyond its type, with its unit."""
        words = self.rule.words if self.rule else ""
        return f"{words} [{self.unit}]".strip() if self.unit else words

    @property
    def usual(self) -> str:
        """What holds where nothing is said."""
        if self.default is None:
            return self.none
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def help(self) -> str:
        """What a command says of its option.

        Examples
        --------
        >>> Knob("plan", "Seconds for the planner. More is better.", unit="s", default=20.0).help
        'Seconds for the planner. [s; default: 20]'
        """
        choices = ", ".join(self.rule.options()) if self.rule else ""
        return f"{self.brief}. [{'; '.join(filter(None, (choices, self.unit, f'default: {self.usual}')))}]"

    @property
    def types(self) -> str:
        """Its types as Python writes them."""
        return " or ".join(kind.__name__ for kind in (*self.kinds, *(() if not self.none else (type(None),))))

    def cast(self, value: Any) -> Any:  # noqa: ANN401 - whatever was given
        """The value, with a whole number as float where a float is wanted; any other type raises ``TypeError``."""
        if value is None and self.none:
            return None
        if float in self.kinds and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if type(value) in self.kinds and not (type(value) is float and not math.isfinite(value)):
            return value
        raise TypeError(f"{self.name} of type {self.types}")

    def keeps_rule(self, value: Any, whole: object) -> bool:  # noqa: ANN401
        """Whether a value keeps the rule; None has its own meaning, and keeps it."""
        return value is None or self.rule is None or self.rule.holds(value, whole)

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the type of the row, if it is right
        """The value that a text on a command line means.

        Examples
        --------
        >>> row = Knob("demand", "Share that asks for too much.", none="as in the trace", kinds=(float,))
        >>> row.read("0.5"), row.read("null")
        (0.5, None)
        """
        import yaml

        read = yaml.safe_load(text)
        if self.kinds != (str,) or isinstance(read, str):
            return read
        # What looks like a date or a switch is a text here.
        return None if self.none and read is None else text


def knob(group: str, default: Any, meaning: str, rule: KnobRule | None = None, **how: Any) -> Any:  # noqa: ANN401
    """A field of a dataclass that says all about itself; further arguments are attributes of :class:`Knob`.

    ``meaning`` begins with the sentence that help and controls show; ``none`` is what None means, and allows it;
    ``rule`` is asked of every other value; ``option`` is for a command line, without it the name with dashes.
    """
    return dataclasses.field(default=default, metadata={"knob": Knob(group, meaning, rule, **how)})


def knobs_of(kind: type) -> Mapping[str, Knob]:
    """Rows of a dataclass by name, in the order of its fields."""
    if kind in _READ:
        return _READ[kind]
    hints = typing.get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[field.name] = dataclasses.replace(
            field.metadata["knob"],
            name=field.name,
            kinds=tuple(kind for kind in kinds if kind is not types.NoneType),
            default=field.default,
        )
    return _READ.setdefault(kind, found)


def check_knobs(values: Any, *, where: str, resolve: Callable[[], None]) -> None:  # noqa: ANN401 - a dataclass of knobs
    """Cast every field of a frozen dataclass, `resolve` what is a name, and check the rules: all faults at once."""
    rows, faults = knobs_of(type(values)), {}
    for name, row in rows.items():
        try:
            object.__setattr__(values, name, row.cast(getattr(values, name)))
        except TypeError as fault:
            faults[name] = str(fault)
    if not faults:
        resolve()
        faults = {
            name: f"{name} {row.rule.words}"
            for name, row in rows.items()
            if row.rule is not None and not row.keeps_rule(getattr(values, name), values)
        }
    if faults:
        got = ", ".join(repr(getattr(values, name)) for name in faults)
        raise ScenarioError(where, "; ".join(faults.values()), got, f"Fix {', '.join(faults)}.")


def described(kind: Kind) -> Kind:
    """Write the rows of a dataclass into its docstring, before its examples, and check its arguments by them."""
    rows = ""
    for row in knobs_of(kind).values():
        about = f"{row.meaning} Allowed: {row.allowed}." if row.allowed else row.meaning
        rows += f"{row.name} : {row.types}, default: {row.usual}\n"
        rows += textwrap.indent(textwrap.fill(about, 108), "    ") + "\n"
    _check_arguments(kind)
    listed = textwrap.indent(f"Attributes\n----------\n{rows}\n", "    ")
    kind.__doc__ = (kind.__doc__ or "").replace("    Examples\n", f"{listed}    Examples\n", 1)
    return kind


def _check_arguments(kind: Any) -> None:  # noqa: ANN401 - a dataclass whose constructor is replaced
    """Let the constructor of a dataclass reject positional and unknown arguments with one sentence."""
    construct = kind.__init__

    @functools.wraps(construct)
    def checked(self: Any, *given: Any, **values: Any) -> None:  # noqa: ANN401 - as the dataclass
        if given:
            example = f"{kind.__name__}({next(iter(knobs_of(kind)))}={given[0]!r})"
            raise ScenarioError(kind.__name__, "named arguments", repr(given[0]), f"Write {example}.")
        construct(self, **kind._known(values, kind.__name__.lower()))

    kind.__init__ = checked


PARTITIONERS = ("nvidia-smi", "mig-parted", "mig-manager")
"""Ways to change a layout: NVML instance by instance, mig-parted, the MIG manager of the GPU operator."""
MADE_BY = {actuator: actuator for actuator in PARTITIONERS} | {
    "dra": "nvidia-smi",
    "autoscaler": "mig-parted",
    "slurm": "mig-parted",
}
"""Who changes a fleet, and which of :data:`PARTITIONERS` it uses: a DRA driver makes instances singly; a node that an
autoscaler or Slurm's power saving starts is cut by mig-parted before it takes jobs."""
EMPTIED = {"mig-manager": "node", "slurm": "node", "autoscaler": "node"}
"""What an actuator empties for a change: a node. Others empty the GPU alone."""
OWNED, RESERVED, RENTED = "owned", "reserved", "rented"
OWNERSHIPS = (OWNED, RESERVED, RENTED)
"""Who pays for a GPU that is not used: its owner, who reserved it for a term, or nobody once it is given back."""
