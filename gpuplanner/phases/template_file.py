"""Templates as YAML files that people edit: plain data, units in the names, errors that name the line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpuplanner.errors import ScenarioError, message
from gpuplanner.files import read_text
from gpuplanner.names import nearest
from gpuplanner.phases.templates import FIGURES, SPIKE_FIGURES, Figure, Template, TemplatePhase, TemplateSpike
from gpuplanner.strict_yaml import LinedMapping, load_strict

_NOT_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""Words that YAML does not read as text."""


def template_to_yaml(template: Template) -> str:
    """Write a template as YAML that people can read and edit.

    Examples
    --------
    >>> phase = TemplatePhase("steady", Figure(1.0), Figure(0.4, 0.5, "ana", "new kernels"), Figure(40.0), Figure(8.0))
    >>> print(template_to_yaml(Template("pretraining", 3, (phase,))))
    job_class: pretraining
    jobs: 3
    phases:
      - name: steady
        share_of_time: {measured: 1.0}
        sm_activity: {measured: 0.4, edited: 0.5, who: "ana", why: "new kernels"}
        memory_gib: {measured: 40.0}
        gpus: {measured: 8.0}
    spikes: []
    <BLANKLINE>
    """
    lines = [f"job_class: {_scalar(template.job_class)}", f"jobs: {template.jobs}", "phases:"]
    for phase in template.phases:
        lines.append(f"  - name: {_scalar(phase.name)}")
        lines += [f"    {name}: {_flow(getattr(phase, name))}" for name in FIGURES]
    lines.append("spikes:" if template.spikes else "spikes: []")
    for spike in template.spikes:
        lines.append(f"  - label: {_scalar(spike.label)}")
        lines += [f"    {name}: {_flow(getattr(spike, name))}" for name in SPIKE_FIGURES]
    return "\n".join(lines) + "\n"


def template_from_yaml(text: str, *, where: str = "template") -> Template:
    r"""Read a template; nothing but plain data is taken.

    Raises
    ------
    ScenarioError
        Naming the line, and for a key that is not known the nearest one that is.

    Examples
    --------
    >>> template_from_yaml("job_class: tuning\njobs: 0\nphases: []\nspike: []\n")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: template line 4: expected one of job_class, jobs, phases, spikes; got 'spike'.
    Did you mean 'spikes'?
    """
    data = _keys(
        load_strict(text, where=where, error=ScenarioError), [each.name for each in fields(Template)], where
    )
    phases = tuple(_phase(row, where) for row in _rows(data, "phases", where))
    if not phases:
        raise ScenarioError(message(f"{where}: phases", "at least one phase", "none", "Add one."))
    spikes = tuple(_spike(row, where) for row in _rows(data, "spikes", where))
    jobs = data.get("jobs", 0)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0:
        got = repr(jobs)
        raise ScenarioError(message(_at(where, data, "jobs"), "a whole number from 0", got, "Mend it there."))
    return Template(_word(data, "job_class", where), jobs, phases, spikes)


def read_template(path: str | Path) -> Template:
    """Read a template from a file, as :func:`template_from_yaml` does.

    Raises
    ------
    ScenarioError
        If the file cannot be read, or is no template.

    Examples
    --------
    >>> read_template("none.yaml")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: none.yaml: expected a readable UTF-8 text file; got No such file or directory.
    Check the path and encoding.
    """
    return template_from_yaml(read_text(path, error=ScenarioError), where=str(path))


def _scalar(text: str) -> str:
    word = text[0].isalpha() and text.isascii() and text.replace("-", "").replace("_", "").isalpha()
    plain = word and text.casefold() not in _NOT_WORDS
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    # A JSON string is a YAML string, except that YAML joins no surrogate pairs: characters stand as they are.
    return json.dumps(text, ensure_ascii=False)


def _flow(figure: Figure) -> str:
    parts = []
    for each in fields(Figure):
        value = getattr(figure, each.name)
        if value is not None:
            parts.append(f"{each.name}: {_quoted(value) if isinstance(value, str) else repr(value)}")
    return "{" + ", ".join(parts) + "}"


def _at(where: str, mapping: LinedMapping, key: str) -> str:
    line = mapping.lines.get(key)
    return f"{where}: {key}" if line is None else f"{where} line {line}: {key}"


def _keys(data: Any, known: list[str], where: str) -> LinedMapping:  # noqa: ANN401 - whatever YAML holds
    if not isinstance(data, LinedMapping):
        expected = f"keys {', '.join(known)}"
        raise ScenarioError(message(where, expected, type(data).__name__, "Write 'key: value' lines."))
    for key in data:
        if key not in known:
            near = nearest(str(key), known)
            todo = f"Did you mean {near[0]!r}?" if near else "Leave it out."
            text = message(f"{where} line {data.lines[key]}", f"one of {', '.join(known)}", repr(key), todo)
            raise ScenarioError(text)
    return data


def _rows(data: LinedMapping, key: str, where: str) -> list[Any]:
    rows = data.get(key, [])
    if not isinstance(rows, list):
        raise ScenarioError(message(_at(where, data, key), "a list", repr(rows), "Begin each item with '-'."))
    return rows


def _word(data: LinedMapping, key: str, where: str) -> str:
    word = data.get(key)
    if not isinstance(word, str) or not word.strip():
        raise ScenarioError(message(_at(where, data, key), "a name", repr(word), "Give one."))
    return word


def _phase(row: Any, where: str) -> TemplatePhase:  # noqa: ANN401
    data = _keys(row, ["name", *FIGURES], where)
    figures = {name: _figure(data, name, limits, where) for name, limits in FIGURES.items()}
    return TemplatePhase(_word(data, "name", where), **figures)


def _spike(row: Any, where: str) -> TemplateSpike:  # noqa: ANN401
    data = _keys(row, ["label", *SPIKE_FIGURES], where)
    figures = {name: _figure(data, name, limits, where) for name, limits in SPIKE_FIGURES.items()}
    return TemplateSpike(_word(data, "label", where), **figures)


def _figure(data: LinedMapping, name: str, limits: tuple[float, float], where: str) -> Figure:
    at = _at(where, data, name)
    if name not in data:
        raise ScenarioError(
            message(at, "a figure", "none", f"Add '{name}: {{edited: ..., who: ..., why: ...}}'.")
        )
    parts = _keys(data[name], [each.name for each in fields(Figure)], at)
    for key in ("measured", "edited"):
        value, (low, high) = parts.get(key), limits
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and low <= value <= high):
            text = message(
                _at(where, parts, key), f"{name} from {low:g} to {high:g}", repr(value), "Mend it there."
            )
            raise ScenarioError(text)
    if parts.get("measured") is None and parts.get("edited") is None:
        raise ScenarioError(message(at, "a measured or an edited value", "neither", "Give one."))
    notes = [parts.get(key) for key in ("who", "why")]
    if parts.get("edited") is not None and not all(isinstance(note, str) and note.strip() for note in notes):
        raise ScenarioError(message(at, "who edited it and why", repr(notes), "Add 'who: ..., why: ...'."))
    return Figure(
        None if parts.get("measured") is None else float(parts["measured"]),
        None if parts.get("edited") is None else float(parts["edited"]),
        *notes,
    )
