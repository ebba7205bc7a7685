"""Laws that hold for every source: nothing is lost, nothing foreign is raised, nothing depends on the day."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Jobs
from gpuplanner.ingest.dataset import Dataset
from tests.examples import examples

Read = Callable[[Sequence[str | Path]], Dataset]
Good = tuple[str, Read]
File = Callable[..., Path]


def test_kept_and_rejected_rows_make_up_the_file(good: Good, file: File):
    text, read = good
    trace = read([file(text)])
    assert trace.summary()["rows_in"] == len(text.splitlines()) - 1
    assert trace.summary()["rows_in"] == trace.jobs.height + trace.rejects.height
    assert list(trace.summary()) == [
        "source",
        "rows_in",
        "rows_kept",
        "rows_rejected",
        "span_start",
        "span_end",
        "gpu_hours",
    ]


def test_a_header_alone_is_an_error(good: Good, file: File):
    text, read = good
    with pytest.raises(TraceFormatError, match="no rows below the header"):
        read([file(text.splitlines()[0] + "\n")])


def test_only_faulty_rows_are_an_error_that_gives_the_reasons(good: Good, file: File):
    text, read = good
    with pytest.raises(TraceFormatError, match=r"2 rows and none of them: fewer fields than columns in 2 row"):
        read([file(text.splitlines()[0] + "\n?\n!\n")])


def test_a_column_given_twice_is_an_error(good: Good, file: File):
    text, read = good
    separator = "|" if "|" in text.splitlines()[0] else ","
    header, row = text.splitlines()[:2]
    first_name, first_value = header.split(separator)[0], row.split(separator)[0]
    doubled = f"{first_name}{separator}{header}\n{first_value}{separator}{row}\n"
    with pytest.raises(TraceFormatError, match="expected each column once"):
        read([file(doubled)])


NASTY = [
    *b"nan inf -1 1e999 99999999999999999999 0 Unknown None 9999-12-31T23:59:59 0001-01-01T00:00:00".split(),
    *b"2017-02-30T00:00:00 2025-10-26T02:30:00 2025-03-30T02:30:00 1756713600 -2025-01-01T00:00:00".split(),
    *b"gres/gpu=-3 gres/gpu:=1 node=99999999999 gres/gpu:a_1g.5gb.me=1,gres/gpu:b=2 RUNNING C+ 123.4".split(),
    *(b"2017-03-12 02:30:00", b"", b" ", b"=", b",", b"|", b'"', b'""', b"+5", b"0x10", b"^a$", b"x\x01"),
    *(b"\xe9", b"\xc3\xa9", b"\xff\xfe", b"\xef\xbb\xbf", b"\xd9\xa1"),
    *(b"\0", b"\x1f", b"\r", b"\n", b"\r\n", b"\n\n"),
]

mutations = st.lists(
    st.tuples(
        st.floats(0, 1), st.sampled_from([0, 1, 4, 40]), st.one_of(st.sampled_from(NASTY), st.binary(max_size=8))
    ),
    min_size=1,
    max_size=5,
)


def _lawful(read: Read, content: bytes) -> None:
    """An error of ours, or a trace that accounts for every line that is not blank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(content)
        try:
            trace = read([path])
        except TraceFormatError:
            return
    text = content.decode().removeprefix("\ufeff").removesuffix("\r")  # half a CR LF, at the very end
    lines = text.replace("\r\n", "\n").split("\n")
    assert trace.summary()["rows_in"] == sum(line != "" for line in lines) - 1
    assert trace.summary()["rows_in"] == trace.jobs.height + trace.rejects.height
    check_table(trace.jobs, Jobs, source="jobs")
    for number, raw in trace.rejects["row", "raw"].iter_rows():
        assert lines[number - 1] == raw


@settings(max_examples=examples(50), deadline=None)
@given(changes=mutations)
def test_a_damaged_file_gives_an_error_or_a_full_account(good: Good, changes: list[tuple[float, int, bytes]]):
    content = good[0].encode()
    for place, length, new in changes:
        start = int(place * len(content))
        content = content[:start] + new + content[start + length :]
    _lawful(good[1], content)


@settings(max_examples=examples(30), deadline=None)
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_give_an_error_or_a_full_account(good: Good, content: bytes):
    _lawful(good[1], content)
