"""JSON item by item: forms, limits and everything that is no JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest import text_files as text_blocks
from gpuplanner.ingest.typed_row_reader import NOT_JSON_REASON, JsonItem, read_items

File = Callable[..., Path]


def items(path: Path, *lists: str) -> list[JsonItem]:
    return list(read_items(path, lists)[1])


def values(path: Path, *lists: str) -> list[Any]:
    return [item.value for item in items(path, *lists)]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(listed=st.lists(plain, max_size=5), indent=st.sampled_from([None, 2]), extra=plain)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, listed: list[Any], indent: int | None, extra: Any
):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps({"meta": extra, "jobs": listed, "errors": []}, indent=indent))
    found = items(path, "jobs")
    assert [item.value for item in found] == listed
    assert [item.position for item in found] == list(range(1, len(listed) + 1))
    assert all(item.around == {"meta": extra} for item in found)


def test_documents_without_a_list_are_items(file: File):
    assert values(file('{"a": 1}\n{"a": 2}\n'), "jobs") == [{"a": 1}, {"a": 2}]
    assert values(file('{"a": 1} {"a":\n 2}'), "jobs") == [{"a": 1}, {"a": 2}]
    assert values(file("[1, [2], {}]"), "jobs") == [1, [2], {}]


def test_each_line_may_be_a_list_of_its_own_and_fail_alone(file: File):
    path = file('{"jobs": [1, 2]}\n\n{"jobs": [3, }\n{"jobs": [4]}\n')
    assert [(item.position, item.value, item.fault) for item in items(path, "jobs")] == [
        (1, 1, ""),
        (1, 2, ""),
        (3, 3, ""),
        (3, None, NOT_JSON_REASON),
        (4, 4, ""),
    ]


@pytest.mark.parametrize(
    "text", ['{"jobs": [1,', '{"jobs"', '{"jobs": [1 2]}', "{1: 2}", '{"a" 1}', "[", '{"a": 1,', "]"]
)
def test_half_a_document_is_an_error_that_names_line_and_column(file: File, text: str):
    with pytest.raises(TraceFormatError, match=r"line 1, column \d+: expected JSON; got"):
        items(file(text), "jobs")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"jobs":' * 100_000 + "[1]"])
def test_deep_nesting_is_refused(file: File, text: str):
    with pytest.raises(TraceFormatError, match="hundreds deep"):
        items(file(text), "jobs")


def test_a_document_above_the_limit_names_the_way_to_raise_it(file: File, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_blocks, "MAX_DOCUMENT_BYTES", 10)
    path = file('{"jobs": [1, 2, 3]}')
    for each in (path, file(gzip.compress(path.read_bytes()), "a.gz")):
        with pytest.raises(TraceFormatError, match=r"expected at most 10 bytes.*GPUPLANNER_MAX_GIB=8"):
            items(each, "jobs")
    monkeypatch.setenv("GPUPLANNER_MAX_GIB", "0.001")
    assert values(path, "jobs") == [1, 2, 3]
