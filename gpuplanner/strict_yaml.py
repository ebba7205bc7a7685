"""Read YAML that anybody may have written: plain data only, no repeated or merged keys, with line numbers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from gpuplanner.errors import GpuPlannerError, TraceFormatError, message

# Nested merges grow without bound: eight short lines can fill the memory.
_MERGE = "tag:yaml.org,2002:merge"


class LinedMapping(dict[Any, Any]):
    """A mapping that knows on which line (from 1) each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class _Loader(yaml.SafeLoader):
    pass


class _Fault(yaml.constructor.ConstructorError):
    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(None, None, problem, node.start_mark)


def _yaml_mapping(loader: _Loader, node: yaml.MappingNode) -> LinedMapping:
    found = LinedMapping()
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            raise _Fault(key_node, "merge keys (<<) are not accepted")
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise _Fault(key_node, "a key must be a word")
        if key in found:
            raise _Fault(key_node, f"key {key!a} stands there twice (first in line {found.lines[key]})")
        found[key] = loader.construct_object(value_node, deep=True)
        found.lines[key] = key_node.start_mark.line + 1
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _yaml_mapping)


def load_strict(text: str, *, where: str, error: type[GpuPlannerError] = TraceFormatError) -> Any:  # noqa: ANN401 - anything that YAML can hold
    r"""Load one YAML document; mappings come as :class:`LinedMapping`.

    Examples
    --------
    >>> load_strict("a: {b: 1}\nc: 2\n", where="x.yaml").lines
    {'a': 1, 'c': 2}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as cause:
        raise _refused(cause, where, error) from cause


def _refused(cause: Exception, where: str, error: type[GpuPlannerError]) -> GpuPlannerError:
    """What is said of a text that is none: with its line, where the reader knows one."""
    mark = getattr(cause, "problem_mark", None)
    fault = getattr(cause, "problem", None) or " ".join(str(cause).split())
    at = f" line {mark.line + 1}" if mark else ""
    return error(
        message(f"{where}{at}", "one YAML document of plain data", str(fault)[:200], "Fix the file there.")
    )
