"""Bytes to lines: what a disk, a mail client or an attacker does to a file."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.libraries_plugins_and_workers import report_bytes_read, show_progress_bar
from gpuplanner.ingest import text_files as text_blocks
from gpuplanner.ingest import text_files as text_file
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.text_files import read_head, read_text_file

File = Callable[..., Path]


def lines(path: Path) -> list[tuple[int, str]]:
    return read_text_file(path).lines.rows()


def test_gzip_may_be_padded_with_zeros(file: File):
    text = os.urandom(90_000).hex()
    padded = gzip.compress(text.encode()) + bytes(70_000) + gzip.compress(b"\nend")
    assert lines(file(padded)) == [(1, text), (2, "end")]


def test_a_decompression_bomb_is_stopped_early(file: File, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_blocks, "RATIO_FREE_BYTES", 1 << 20)
    bomb = file(gzip.compress(bytes(64 << 20)))
    unpacked = []
    members = text_blocks.decompress_members
    monkeypatch.setattr(
        text_blocks, "decompress_members", lambda packed: (unpacked.append(len(p)) or p for p in members(packed))
    )
    with pytest.raises(TraceFormatError, match="packed at most 200 times"):
        read_text_file(bomb)
    # At most one step of input beyond the limit was unpacked: DEFLATE makes no more than 1032 bytes of one.
    assert sum(unpacked) <= max(1 << 20, 200 * bomb.stat().st_size) + 1032 * text_file.READ_STEP_BYTES


def test_a_text_above_the_size_limit_is_an_error(file: File, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_blocks, "MAX_TEXT_BYTES", 100)
    for content in (b"x" * 101, gzip.compress(b"x" * 101)):
        with pytest.raises(TraceFormatError, match="expected at most 100 bytes of text"):
            read_text_file(file(content))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("a,b\n".encode("utf-16"), "UTF-16"),
        ("a,b\n".encode("utf-16-be"), "UTF-16"),
        (gzip.compress(gzip.compress(b"a,b\n", mtime=0), mtime=0), "gzip inside gzip"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"\x28\xb5\x2f\xfdrest", "zstandard"),
        (b"x\x01y\n", "zlib"),
        ("x\u0680\n".encode(), "zlib"),  # text, but polars would take it for zlib
        (b"PAR1rest", "Parquet"),
    ],
)
def test_other_formats_are_named(file: File, content: bytes, kind: str):
    path = file(content)
    for read in (read_text_file, read_head):
        with pytest.raises(TraceFormatError, match=kind):
            read(path)


@pytest.mark.parametrize(
    ("content", "controls"),
    [("a\tb\n", False), ("a\r\nb\r\n", False), ("a\rb\n", True), ("a\0\n", True), ("a\x1b[2J\n", True)],
)
def test_control_characters_are_noticed(file: File, content: str, controls: bool):
    assert read_text_file(file(content)).has_controls is controls


def test_a_list_whose_name_is_no_text_is_read_as_any_other(good, tmp_path: Path):
    """Names of files are bytes; what is kept names them in letters, and holds nothing that a terminal obeys."""
    text, reader = good
    path = tmp_path / os.fsdecode(b"log\xe9 \xff\x1b[2J.csv")
    path.write_text(text)
    trace = open_dataset(write_dataset(reader([path]), tmp_path / "t"))
    (tmp_path / "plain.csv").write_text(text)
    said = ("submit_time", "start_time", "end_time", "gpus")
    assert trace.jobs.select(said).equals(reader([tmp_path / "plain.csv"]).jobs.select(said))
    assert [file["name"] for file in trace.provenance["files"]] == [r"log\xe9 \xff\u001b[2J.csv"]
    assert set(trace.rejects["file"]) <= {r"log\xe9 \xff\u001b[2J.csv"}


def test_a_bar_is_shown_on_terminals_alone(monkeypatch: pytest.MonkeyPatch):
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(screen: io.StringIO, *, quiet: bool = False) -> str:
        monkeypatch.setattr("sys.stderr", screen)
        with show_progress_bar(quiet=quiet):
            report_bytes_read(50, 100)
            report_bytes_read(100 << 20, 200 << 20)
        return screen.getvalue()

    assert "50%" in shown(Screen())
    assert shown(Screen(), quiet=True) == ""
    assert shown(io.StringIO()) == ""
