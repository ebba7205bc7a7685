"""Settings: the fields of a scenario with default, unit, rule, meaning and notebook control."""

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

DataclassType = TypeVar("DataclassType", bound=type)
"""Type of a dataclass of settings, such as ``Scenario``."""
_SETTINGS_BY_CLASS: dict[type, Mapping[str, Setting]] = {}
"""Cache of :func:`settings_of`: settings by name, by dataclass."""
NAME_RESOLVER_BY_KIND: dict[str, Callable[[str], str]] = {}
"""Function that completes an abbreviated name, by kind of name such as ``gpu_model``; ``gpuplanner/__init__.py`` adds
them."""


@dataclass(frozen=True)
class SettingRule:
    """Rule for a value of a setting.

    - ``words``: The rule, as an error message states it.
    - ``holds``: Test of a value and of the whole scenario that it belongs to.
    - ``options``: Allowed values, where they can be listed.
    """

    words: str
    holds: Callable[[Any, Any], bool]
    options: Callable[[], Sequence[str]] = tuple


def range_rule(low: float, high: float, note: str = "") -> SettingRule:
    """Make the rule of a number between two bounds, both allowed.

    Parameters
    ----------
    low, high : float
        Bounds, in the unit of the setting.
    note : str
        Text after the bounds in the message.

    Examples
    --------
    >>> range_rule(0, 10_080, ", which is a week").words
    'between 0 and 10080, which is a week'
    """
    return SettingRule(f"between {low:g} and {high:.10g}{note}", lambda value, _: low <= value <= high)


def minimum_rule(low: float) -> SettingRule:
    """Make the rule of a number with a lower bound."""
    return SettingRule(f"at least {low:g}", lambda value, _: value >= low)


def choice_rule(*options: str) -> SettingRule:
    """Make the rule of one of several words.

    Examples
    --------
    >>> choice_rule("size", "tier", "class").words
    "'size', 'tier' or 'class'"
    """
    *first_options, last_option = map(repr, options)
    return SettingRule(
        f"{', '.join(first_options)} or {last_option}", lambda value, _: value in options, lambda: options
    )


@dataclass(frozen=True)
class Slider:
    """Slider of a number in a notebook; a value outside the range widens it."""

    label: str
    low: float
    high: float
    step: float
    decimals: int = 2


@dataclass(frozen=True)
class DropDown:
    """Drop-down list in a notebook, with the options of the rule."""

    label: str


@dataclass(frozen=True)
class Setting:
    """One field of a scenario: the arguments of :func:`setting`, with name, types (without None) and default.

    - ``group``: Heading under which the reference lists the setting, such as ``prices``.
    - ``meaning``: Description; its first sentence is shown by help and controls.
    - ``rule``: Rule of every value but None.
    - ``unit``: Unit of the value.
    - ``none``: Meaning of None; empty if None is not allowed.
    - ``usual``: Text on the default for help, if it depends on the data; empty: ``default`` itself.
    - ``option``: Command line option; None: the name with dashes.
    - ``control``: Notebook control.
    - ``name``, ``kinds``, ``default``: Name, types and default of the field.
    """

    group: str
    meaning: str
    rule: SettingRule | None = None
    unit: str = ""
    none: str = ""
    usual: str = ""
    option: str | None = None
    control: Slider | DropDown | None = None
    name: str = ""
    kinds: tuple[type, ...] = ()
    default: Any = None

    @property
    def flag(self) -> str:
        """Command line option of the setting."""
        return self.option or f"--{self.name.replace('_', '-')}"

    @property
    def summary(self) -> str:
        """First sentence of the meaning, without the full stop."""
        return self.meaning.partition(". ")[0].rstrip(".").replace("``", "")

    @property
    def label(self) -> str:
        """Label of the control, with the unit."""
        title = self.control.label if self.control else self.name
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def allowed_values(self) -> str:
        """The rule in words, with the unit."""
        words = self.rule.words if self.rule else ""
        return f"{words} [{self.unit}]".strip() if self.unit else words

    @property
    def default_text(self) -> str:
        """Default value as text; for None its meaning."""
        if self.default is None:
            return self.none
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def help(self) -> str:
        """Help text of the command line option.

        Examples
        --------
        >>> Setting("plan", "Seconds for the planner. More is better.", unit="s", default=20.0).help
        'Seconds for the planner. [s; default: 20]'
        """
        choices = ", ".join(self.rule.options()) if self.rule else ""
        default = f"default: {self.usual or self.default_text}"
        return f"{self.summary}. [{'; '.join(filter(None, (choices, self.unit, default)))}]"

    @property
    def types(self) -> str:
        """Types of the value as Python writes them."""
        return " or ".join((*(kind.__name__ for kind in self.kinds), *(["None"] if self.none else [])))

    def cast_value(self, value: Any) -> Any:  # noqa: ANN401 - whatever was given
        """Return the value, with an int as float where a float is expected.

        Raises
        ------
        TypeError
            If the value has another type or is not finite.
        """
        if value is None and self.none:
            return None
        if float in self.kinds and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if type(value) in self.kinds and not (type(value) is float and not math.isfinite(value)):
            return value
        raise TypeError(f"{self.name} of type {self.types}")

    def meets_rule(self, value: Any, settings: object) -> bool:  # noqa: ANN401
        """Whether a value meets the rule of the setting, given the object with all settings; None always does."""
        return value is None or self.rule is None or self.rule.holds(value, settings)

    def parse_text(self, text: str) -> Any:  # noqa: ANN401 - of the type of the row, if it is right
        """Parse the text of a command line into a value.

        Examples
        --------
        >>> row = Setting("demand", "Share that asks for too much.", none="as in the trace", kinds=(float,))
        >>> row.parse_text("0.5"), row.parse_text("null")
        (0.5, None)
        """
        import yaml

        parsed = yaml.safe_load(text)
        if self.kinds != (str,) or isinstance(parsed, str):
            return parsed
        # What looks like a date or a switch is a text here.
        return None if self.none and parsed is None else text


def setting(group: str, default: Any, meaning: str, rule: SettingRule | None = None, **how: Any) -> Any:  # noqa: ANN401
    """Make a dataclass field that is a setting.

    Parameters
    ----------
    group : str
        Group of settings in the reference.
    default : object
        Default value.
    meaning : str
        Description; its first sentence is shown by help and controls.
    rule : SettingRule, optional
        Rule of every value but None.
    **how
        Other attributes of :class:`Setting`: ``unit``, ``none``, ``usual``, ``option``, ``control``.
    """
    return dataclasses.field(default=default, metadata={"setting": Setting(group, meaning, rule, **how)})


def settings_of(dataclass_type: type) -> Mapping[str, Setting]:
    """List the settings of a dataclass by name, in the order of its fields."""
    if dataclass_type in _SETTINGS_BY_CLASS:
        return _SETTINGS_BY_CLASS[dataclass_type]
    hints = typing.get_type_hints(dataclass_type)
    settings = {}
    for field in dataclasses.fields(dataclass_type):
        hint = hints[field.name]
        allowed_types = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        settings[field.name] = dataclasses.replace(
            field.metadata["setting"],
            name=field.name,
            kinds=tuple(dataclass_type for dataclass_type in allowed_types if dataclass_type is not types.NoneType),
            default=field.default,
        )
    return _SETTINGS_BY_CLASS.setdefault(dataclass_type, settings)


def check_settings(values: Any, *, source: str, resolve: Callable[[], None]) -> None:  # noqa: ANN401 - a dataclass of settings
    """Cast all fields of a frozen dataclass of settings and check their rules.

    Parameters
    ----------
    values : dataclass instance
        The settings, changed in place.
    source : str
        Origin of the values, for the message.
    resolve : callable
        Called after the cast to replace names by their full form.

    Raises
    ------
    ScenarioError
        If types or rules are broken, with all faults.
    """
    settings, faults = settings_of(type(values)), {}
    for name, setting_row in settings.items():
        try:
            object.__setattr__(values, name, setting_row.cast_value(getattr(values, name)))
        except TypeError as fault:
            faults[name] = str(fault)
    if not faults:
        resolve()
        faults = {
            name: f"{name} {setting_row.rule.words}"
            for name, setting_row in settings.items()
            if setting_row.rule is not None and not setting_row.meets_rule(getattr(values, name), values)
        }
    if faults:
        got = ", ".join(repr(getattr(values, name)) for name in faults)
        raise ScenarioError(source, "; ".join(faults.values()), got, f"Fix {', '.join(faults)}.")


def document_settings(dataclass_type: DataclassType) -> DataclassType:
    """Add the settings of a dataclass to its docstring, and reject unknown arguments with a clear message."""
    rows = ""
    for setting_row in settings_of(dataclass_type).values():
        allowed = f" Allowed: {setting_row.allowed_values}." if setting_row.allowed_values else ""
        rows += f"{setting_row.name} : {setting_row.types}, default: {setting_row.default_text}\n"
        rows += textwrap.indent(textwrap.fill(setting_row.meaning + allowed, 108), "    ") + "\n"
    _check_arguments(dataclass_type)
    listed = textwrap.indent(f"Attributes\n----------\n{rows}\n", "    ")
    dataclass_type.__doc__ = (dataclass_type.__doc__ or "").replace("    Examples\n", f"{listed}    Examples\n", 1)
    return dataclass_type


def _check_arguments(dataclass_type: Any) -> None:  # noqa: ANN401 - a dataclass whose constructor is replaced
    """Make the constructor of a dataclass reject positional and unknown arguments with one sentence."""
    construct = dataclass_type.__init__

    @functools.wraps(construct)
    def checked_init(self: Any, *positional: Any, **values: Any) -> None:  # noqa: ANN401 - as the dataclass
        """Check the arguments, then call the constructor."""
        if positional:
            example = f"{dataclass_type.__name__}({next(iter(settings_of(dataclass_type)))}={positional[0]!r})"
            raise ScenarioError(dataclass_type.__name__, "named arguments", repr(positional[0]), f"Write {example}.")
        construct(self, **dataclass_type._require_known_keys(values, dataclass_type.__name__.lower()))

    dataclass_type.__init__ = checked_init


MIG_PARTITIONERS = ("nvidia-smi", "mig-parted", "mig-manager")
"""Tools that change a MIG layout: NVML instance by instance, mig-parted, the MIG manager of the GPU Operator."""
PARTITIONER_BY_ACTUATOR = {actuator: actuator for actuator in MIG_PARTITIONERS} | {
    "dra": "nvidia-smi",
    "autoscaler": "mig-parted",
    "slurm": "mig-parted",
}
"""Partitioner that each actuator uses. A DRA driver creates instances one by one; mig-parted partitions a node that an
autoscaler or Slurm power saving starts, before the node accepts jobs."""
DRAINED_UNIT_BY_ACTUATOR = {"mig-manager": "node", "slurm": "node", "autoscaler": "node"}
"""Unit that an actuator drains for a layout change: the node; actuators without an entry drain the GPU alone."""
OWNERSHIP_OWNED = "owned"
"""Ownership of GPUs that were bought."""
OWNERSHIP_RESERVED = "reserved"
"""Ownership of GPUs that are reserved for a term."""
OWNERSHIP_RENTED = "rented"
"""Ownership of GPUs that are rented by the hour."""
OWNERSHIPS = (OWNERSHIP_OWNED, OWNERSHIP_RESERVED, OWNERSHIP_RENTED)
"""Ownership of a GPU, which determines who pays while it is not needed: the owner, the holder of a reserved term, or
no one after a rented GPU is returned."""
