"""Text files of any length, plain or gzip, as numbered lines."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.core.errors import TraceFormatError, first_error_line, format_message
from gpuplanner.core.libraries_plugins_and_workers import report_bytes_read
from gpuplanner.core.serialization import read_packaged_rows, sha256
from gpuplanner.ingest.source_fields import decode_parquet, read_parquet_names

GZIP_MARK = b"\x1f\x8b"
"""First bytes of a gzip file."""
PARQUET_MARK = b"PAR1"
"""First bytes of a Parquet file."""
UTF_16_FORMAT = "UTF-16 text"
"""Name of the UTF-16 text format in error messages."""
FILE_FORMATS = read_packaged_rows("gpuplanner.ingest", "file_formats.csv")
"""Formats that are not text: first bytes (hexadecimal; none if they do not show it), name, and what to run to get text.

zlib has three marks: polars would unpack such a file, without limit.
"""
FORMAT_BY_FILE_MARK = {bytes.fromhex(row["mark_hex"]): row["format"] for row in FILE_FORMATS if row["mark_hex"]}
"""First bytes of a file → name of its format, for formats that are not text."""
ADVICE_BY_FORMAT = {row["format"]: row["advice"] for row in FILE_FORMATS if row["advice"]}
"""Name of a format that is not text → advice of the error message: what to run to get text."""
TAR_MARK = b"ustar"
"""Bytes that mark a tar archive, at :data:`TAR_MARK_OFFSET_BYTES`."""
TAR_MARK_OFFSET_BYTES = 257
"""Position of :data:`TAR_MARK` in a tar archive [bytes]."""


def require_text(data: bytes, path: Path) -> None:
    """Refuse uncompressed data that is not text.

    Examples
    --------
    >>> require_text(b"PAR1...", Path("jobs.parquet"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: jobs.parquet: expected UTF-8 text, plain or gzip; got Parquet. Unpack or
    export it first.
    """
    kind = next((name for mark, name in FORMAT_BY_FILE_MARK.items() if data.startswith(mark)), None)
    if kind is None and b"\0" in data[:4] and b"\0" in data[4:8]:
        kind = UTF_16_FORMAT
    if kind is None and data.startswith(TAR_MARK, TAR_MARK_OFFSET_BYTES):
        kind = "a tar archive"
    if kind is not None:
        todo = ADVICE_BY_FORMAT.get(kind, "Unpack or export it first.").replace("FILE", path.name)
        raise TraceFormatError(str(path), "UTF-8 text, plain or gzip", kind, todo)


MAX_TEXT_BYTES = 4 << 30
"""Largest text that is read into memory [bytes]."""

MAX_STREAM_BYTES = 1 << 40
"""Longest text that is read block by block [bytes]."""

MAX_DOCUMENT_BYTES = 1 << 30
"""Largest JSON document that is read into memory; its values take several times its text [bytes]."""

SIZE_LIMIT_ENVIRONMENT_VARIABLE = "GPUPLANNER_MAX_GIB"
"""Environment variable that sets the largest size of text and documents that are read [GiB]."""

MAX_COMPRESSION_RATIO = 200
"""Largest accepted ratio of text to compressed bytes beyond :data:`RATIO_FREE_BYTES`, against decompression bombs; text
compresses 5 to 50 times."""

READ_STEP_BYTES = 64 << 10
"""Bytes of a file that are read or counted in one step."""
SNIFFED_HEAD_BYTES = 16 << 10
"""First bytes of a file from which its source is detected."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Byte order mark at the beginning of UTF-8 text."""
CONTROL_CHARACTER_PATTERN = r"[\x00-\x08\x0b-\x1f\x7f]"
"""A control character other than tab and line ends."""


EMPTY_LINE_TABLE = pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})
"""A table without lines."""

TextBytes = bytes
"""Alias of ``bytes``, since a field of :class:`TextFile` has that name."""


@dataclass(frozen=True, eq=False)
class TextFile:
    """A text file, or a block of one.

    - ``path``: Path of the file.
    - ``sha256``: Hash of the bytes on disk.
    - ``bytes``: Size on disk.
    - ``lines``: ``line`` (1-based) and ``text``, without the line ends (LF or CR LF).
    - ``has_quotes``, ``has_controls``: The text has a quotation mark, a control character; readers check lines only
      then.
    - ``ends_open``: The last line has no line end, so it may be truncated.
    - ``table``: Content of a Parquet file, which has no lines.
    - ``text``: Text of the lines of a block.
    """

    path: Path
    sha256: str = ""
    bytes: int = 0
    lines: pl.DataFrame = field(default_factory=EMPTY_LINE_TABLE.clone)
    has_quotes: bool = False
    has_controls: bool = False
    ends_open: bool = False
    table: pl.DataFrame | None = None
    text: TextBytes = b""


def hash_file(path: str | Path) -> str:
    """Hash the bytes of a file (SHA-256), to tell whether it was imported before."""
    path = Path(path)
    with explain_read_errors(path):
        return sha256(require_regular_file(path, read_size_limit(MAX_STREAM_BYTES)))


def read_size_limit(usual: int) -> int:
    """Return the largest text to read: that of :data:`SIZE_LIMIT_ENVIRONMENT_VARIABLE`, or `usual` without it [bytes].

    Examples
    --------
    >>> read_size_limit(1 << 30)
    1073741824
    """
    stated = os.environ.get(SIZE_LIMIT_ENVIRONMENT_VARIABLE, "").strip()
    if not stated:
        return usual
    try:
        gib = float(stated)
        if 0 < gib < 1 << 20:
            return int(gib * (1 << 30))
    except ValueError:
        pass
    raise TraceFormatError(SIZE_LIMIT_ENVIRONMENT_VARIABLE, "a number of GiB, such as 8", repr(stated), "Set it to 8.")


def read_head(path: str | Path) -> list[str]:
    """Read the first few kilobytes as lines without blank ones, to detect formats; bad bytes become U+FFFD.

    Of a Parquet file, return the header line that it would have as CSV.
    """
    path = Path(path)
    with explain_read_errors(path), require_regular_file(path, None).open("rb") as raw:
        is_gzip = raw.read(len(GZIP_MARK)) == GZIP_MARK
        raw.seek(0)
        data = gzip.GzipFile(fileobj=raw).read(SNIFFED_HEAD_BYTES) if is_gzip else raw.read(SNIFFED_HEAD_BYTES)
    if data.startswith(PARQUET_MARK) and not is_gzip:
        return [",".join(read_parquet_names(path))]
    require_text(data, path)
    lines = data.removeprefix(BYTE_ORDER_MARK).decode("utf-8", errors="replace").splitlines()
    complete_lines = lines[:-1] if len(data) == SNIFFED_HEAD_BYTES and len(lines) > 1 else lines
    return [line for line in complete_lines if line.strip()]


def count_bytes(data: bytes, select: Callable[[np.ndarray], np.ndarray]) -> int:
    """Count the bytes of which `select`, given byte values (0-255), is true, in steps that fit the CPU cache."""
    codes = np.frombuffer(data, np.uint8)
    steps = range(0, len(codes), READ_STEP_BYTES)
    return sum(int(np.count_nonzero(select(codes[start : start + READ_STEP_BYTES]))) for start in steps)


def _has_control_characters(data: bytes, n_line_feeds: int) -> bool:
    """Whether the text, with so many LF bytes, has a control character other than tab, LF and CR LF."""
    low = count_bytes(data, lambda codes: codes < ord(" "))
    tabs = data.count(b"\t") if b"\t" in data else 0
    returns = data.count(b"\r\n") if b"\r" in data else 0
    return low != n_line_feeds + tabs + returns or b"\x7f" in data


def require_regular_file(path: Path, limit: int | None) -> Path:
    """Return the path of a regular file of at most `limit` bytes; refuse folders, pipes and larger files."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or device"
        todo = "Give the files themselves; a folder is read as a bill alone, if its source is named."
        raise TraceFormatError(str(path), "a regular file", kind, todo)
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise TraceFormatError(too_large_message(path, limit, f"{size} bytes"))
    return path


def too_large_message(path: Path, limit: int, got: str) -> str:
    """Return the error message for a file with more than `limit` bytes of text; `got` is its size as text."""
    expected = f"at most {limit} bytes of text, packed at most {MAX_COMPRESSION_RATIO} times"
    limit_advice = f"with memory to spare, allow more bytes: {SIZE_LIMIT_ENVIRONMENT_VARIABLE}=8."
    todo = f"Split the file by month and give the parts together, or, {limit_advice}"
    return format_message(str(path), expected, got, todo)


def require_utf8(data: bytes, path: Path, lines_before: int = 0) -> None:
    """Refuse text that is not UTF-8, with its line number; `lines_before` lines precede it in the file."""
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines_before + data.count(b"\n", 0, error.start) + 1
        got = f"byte 0x{data[error.start]:02x} ({error.reason})"
        todo = "Convert the file, for example from Latin-1: iconv -f ISO-8859-1 -t UTF-8."
        raise TraceFormatError(f"{path}, line {line}", "UTF-8 text", got, todo) from error


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk or gzip into a TraceFormatError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        todo = "Copy or download it again."
        raise TraceFormatError(str(path), "a whole gzip file", first_error_line(error), todo) from error
    except OSError as error:
        reason, todo = error.strerror or first_error_line(error), "Check the path and its permissions."
        raise TraceFormatError(str(path), "a readable file", reason, todo) from error


TEXT_BLOCK_BYTES = 24 << 20
"""Size of a block of lines that is read at a time [bytes]; a longer line is read whole."""

WHOLE_FILE_BYTES = 1 << 62
"""Block size that reads a file in one block [bytes]."""

RATIO_FREE_BYTES = 256 << 20
"""Size of text up to which the compression ratio of a gzip file is not checked [bytes]."""

LINES_PER_RECORDED_OFFSET = 1024
"""Lines between two lines whose position in a file is recorded."""


@dataclass
class FileBlocks:
    """Files that are read one after the other, in blocks of whole lines.

    - ``paths``: The files.
    - ``block_bytes``: Text of a block [bytes].
    - ``limit``: Longest text of a file that is read, unless the user sets another by
      :data:`SIZE_LIMIT_ENVIRONMENT_VARIABLE` [bytes].
    - ``tables``: Parquet files are read too, as one block with a table instead of lines.
    - ``files``: The files without lines and tables; those already read have their hash, size and ``ends_open``.
    - ``line_offsets``: Number of an uncompressed file that was read → line number → offset of that line [bytes], of
      every :data:`LINES_PER_RECORDED_OFFSET`-th line of a block.
    """

    paths: Sequence[str | Path]
    block_bytes: int = TEXT_BLOCK_BYTES
    limit: int = MAX_STREAM_BYTES
    tables: bool = False
    files: list[TextFile] = field(init=False)
    line_offsets: dict[int, dict[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.files = [TextFile(Path(path)) for path in self.paths]

    def __iter__(self) -> Iterator[tuple[int, TextFile]]:
        r"""Yield the number of a file and its next block, as a text file whose lines keep their numbers.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.csv"
        ...     _ = path.write_bytes(b"x,y\n1,2\n3,4")
        ...     blocks = FileBlocks([path], block_bytes=4)
        ...     [block.lines.rows() for _, block in blocks], blocks.files[0].bytes
        ([[(1, 'x,y')], [(2, '1,2')], [(3, '3,4')]], 11)
        """
        total = sum(_file_size(file.path) for file in self.files)
        bytes_before = 0
        for number, file in enumerate(self.files):
            digest, lines_before, ends_open = hashlib.sha256(), 0, False
            limit = read_size_limit(self.limit)
            with explain_read_errors(file.path), require_regular_file(file.path, limit).open("rb") as raw:
                if self.tables and raw.read(len(PARQUET_MARK)) == PARQUET_MARK:
                    raw.seek(0)
                    data = raw.read()
                    digest.update(data)
                    table = decode_parquet(data, file.path, limit)
                    yield number, replace(file, table=table)
                    read_file = replace(file, sha256=digest.hexdigest(), bytes=len(data))
                    self.files[number] = replace(read_file, table=table.clear())
                    continue
                raw.seek(0)
                for data in self.iterate_raw_blocks(file.path, raw, digest.update):
                    require_utf8(data, file.path, lines_before)
                    first_line_number = lines_before + 1
                    lines = pl.read_lines(data, name="text", row_index_name="line", row_index_offset=first_line_number)
                    ends_open = bool(data) and not data.endswith(b"\n")
                    has_controls = _has_control_characters(data, n_line_feeds=lines.height - ends_open)
                    block = TextFile(file.path, "", 0, lines, b'"' in data, has_controls, ends_open, text=data)
                    self._note_line_offsets(number, first_line_number, block, raw.tell() - len(data))
                    lines_before += lines.height
                    yield number, block
                    report_bytes_read(bytes_before + raw.tell(), total)
                size = raw.tell()
            bytes_before += size
            self.files[number] = replace(file, sha256=digest.hexdigest(), bytes=size, ends_open=ends_open)

    def _note_line_offsets(self, number: int, line: int, text_file: TextFile, begin: int) -> None:
        """Record the offset in the file of every :data:`LINES_PER_RECORDED_OFFSET`-th line of a block [bytes].

        With CR LF line ends only the first offset is certain.

        Parameters
        ----------
        number : int
            Number of the file.
        line : int
            Number of the first line of the block in the file.
        text_file : TextFile
            The block.
        begin : int
            Offset at which the block begins [bytes].
        """
        line_bytes = text_file.lines["text"].str.len_bytes().cast(pl.Int64)
        offsets = pl.concat([pl.Series([begin]), (line_bytes + 1).cum_sum() + begin])[:-1].gather_every(
            LINES_PER_RECORDED_OFFSET
        )
        certain_offsets = offsets[:1] if b"\r" in text_file.text else offsets
        numbers = range(line, line + LINES_PER_RECORDED_OFFSET * len(certain_offsets), LINES_PER_RECORDED_OFFSET)
        self.line_offsets.setdefault(number, {}).update(zip(numbers, certain_offsets.to_list(), strict=True))

    def iterate_raw_blocks(
        self, path: Path, raw: BinaryIO, on_read: Callable[[bytes], object] = lambda _: None
    ) -> Iterator[bytes]:
        """Yield uncompressed text in blocks that end at line ends; at least one block, which may be empty.

        Parameters
        ----------
        path : Path
            The file, for messages.
        raw : binary file
            The opened file.
        on_read : callable
            Called with the bytes on disk as they are read, such as to hash them.
        """
        first_bytes = raw.read(_SNIFFED_FORMAT_BYTES)
        raw.seek(0)
        begin = 0
        if first_bytes.startswith(GZIP_MARK):
            for data in self._decompress(path, raw, on_read):
                if not begin:
                    require_text(data, path)
                yield data if begin else data.removeprefix(BYTE_ORDER_MARK)
                begin += len(data)
        else:
            require_text(first_bytes, path)
            # Where a block ends is looked up first, so that none is copied.
            end = raw.seek(0, io.SEEK_END)
            while begin < end:
                block_end = _find_line_end(raw, begin, begin + self.block_bytes, end)
                raw.seek(begin)
                data = raw.read(block_end - begin)
                if not data:  # the file has become shorter
                    break
                on_read(data)
                yield data if begin else data.removeprefix(BYTE_ORDER_MARK)
                begin += len(data)
        if not begin:
            yield b""

    def _decompress(self, path: Path, raw: BinaryIO, on_read: Callable[[bytes], object]) -> Iterator[bytes]:
        """Yield the text of a gzip file in blocks that end at line ends."""
        packed_bytes, limit = _file_size(path), read_size_limit(self.limit)
        waiting: list[bytes] = []
        waiting_bytes = unpacked_bytes = 0
        is_first = True

        def iterate_packed() -> Iterator[bytes]:
            """Yield the compressed bytes piece by piece and report how many were read."""
            while piece := raw.read(READ_STEP_BYTES):
                on_read(piece)
                yield piece

        for piece in decompress_members(iterate_packed()):
            unpacked_bytes += len(piece)
            is_bomb = unpacked_bytes > RATIO_FREE_BYTES and unpacked_bytes > MAX_COMPRESSION_RATIO * packed_bytes
            if unpacked_bytes > limit or is_bomb:
                got = f"more than {unpacked_bytes} bytes out of {packed_bytes}"
                raise TraceFormatError(too_large_message(path, limit, got))
            waiting.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes < self.block_bytes or (waiting_bytes < _SNIFFED_FORMAT_BYTES and is_first):
                continue
            data = b"".join(waiting)
            end = data.rfind(b"\n") + 1
            if not end:
                continue
            yield data[:end]
            is_first = False
            waiting = [data[end:]]
            waiting_bytes = len(data) - end
        if data := b"".join(waiting):
            yield data


_SNIFFED_FORMAT_BYTES = 512
"""First bytes of a file from which its format (text, gzip, Parquet) is detected."""


def _find_line_end(raw: BinaryIO, begin: int, target: int, end: int) -> int:
    """Find the offset after the line end at which a block of lines is to end [bytes].

    It is the last line end at most :data:`READ_STEP_BYTES` before `target`, else the first one after it.

    Parameters
    ----------
    raw : binary file
        The opened file.
    begin : int
        Offset at which the block begins [bytes].
    target : int
        Offset at which it should end [bytes].
    end : int
        End of the file [bytes].
    """
    if target >= end:
        return end
    search_start = max(begin, target - READ_STEP_BYTES)
    raw.seek(search_start)
    last_line_end = raw.read(target - search_start).rfind(b"\n")
    if last_line_end >= 0:
        return search_start + last_line_end + 1
    while piece := raw.read(READ_STEP_BYTES):
        position = piece.find(b"\n")
        if position >= 0:
            return raw.tell() - len(piece) + position + 1
    return end


def decompress_members(packed: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the uncompressed bytes of all members of a gzip file; trailing zeros are ignored, as by gzip."""
    member = zlib.decompressobj(wbits=31)
    for piece in packed:
        while piece := piece.lstrip(b"\0") if member.eof else piece:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            yield member.decompress(piece)
            piece = member.unused_data
    if not member.eof:
        raise EOFError("it ends before the end of its data")


def _file_size(path: Path) -> int:
    """Return the size of a file; 0 if it is unknown [bytes]."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_text_file(path: str | Path) -> TextFile:
    r"""Read UTF-8 text, plain or gzip, at once.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_bytes(b"x,y\r\n1,2\r\n")
    ...     read_text_file(path).lines.rows()
    [(1, 'x,y'), (2, '1,2')]
    """
    blocks = FileBlocks([path], WHOLE_FILE_BYTES, MAX_TEXT_BYTES)
    [(_, text_file)] = blocks
    return replace(text_file, sha256=blocks.files[0].sha256, bytes=blocks.files[0].bytes, text=b"")


def read_document(path: str | Path) -> tuple[TextFile, str]:
    r"""Read UTF-8 text that is one document, plain or gzip, at once.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.json"
    ...     _ = path.write_text('{"jobs": []}')
    ...     read_document(path)[1]
    '{"jobs": []}'
    """
    path, digest = Path(path), hashlib.sha256()
    blocks = FileBlocks([path], WHOLE_FILE_BYTES, MAX_DOCUMENT_BYTES)
    with explain_read_errors(path), require_regular_file(path, read_size_limit(blocks.limit)).open("rb") as raw:
        data = b"".join(blocks.iterate_raw_blocks(path, raw, digest.update))
        size = raw.tell()
    require_utf8(data, path)
    file = TextFile(path, sha256=digest.hexdigest(), bytes=size, has_quotes=True)
    return file, data.decode("utf-8")


def read_lines(blocks: FileBlocks, lines_by_file: Mapping[int, Collection[int]]) -> dict[tuple[int, int], str]:
    r"""Read the text of the lines `lines_by_file` (number of the file → line numbers) by file and line number.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_bytes(b"x\ny\nz")
    ...     read_lines(FileBlocks([path], block_bytes=2), {0: [2, 3]})
    {(0, 2): 'y', (0, 3): 'z'}
    """
    texts_by_line = {}
    for number, lines in lines_by_file.items():
        path = blocks.files[number].path
        missing = sorted(lines, reverse=True)
        with explain_read_errors(path), path.open("rb") as raw:
            for lines_before, data in _iterate_pieces(blocks, number, raw, missing[::-1]):
                texts = data.split(b"\n")
                while missing and missing[-1] <= lines_before + len(texts) - data.endswith(b"\n"):
                    line = missing.pop()
                    texts_by_line[number, line] = texts[line - lines_before - 1].decode().removesuffix("\r")
                if not missing:
                    break
    return texts_by_line


def _iterate_pieces(
    blocks: FileBlocks, number: int, raw: BinaryIO, lines: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of a file that hold some lines, each with the number of lines before it.

    Parameters
    ----------
    blocks : FileBlocks
        Files that were read before, with line offsets.
    number : int
        Number of the file.
    raw : binary file
        The opened file.
    lines : sequence of int
        Line numbers, ascending.
    """
    line_offsets = blocks.line_offsets.get(number)
    is_gzip = raw.read(len(GZIP_MARK)) == GZIP_MARK
    raw.seek(0)
    if is_gzip or not line_offsets:
        lines_before = 0
        for data in blocks.iterate_raw_blocks(blocks.files[number].path, raw):
            yield lines_before, data
            lines_before += data.count(b"\n")
        return
    known_lines = np.array(list(line_offsets))
    for offset_number in np.unique(np.searchsorted(known_lines, lines, "right")).tolist():
        begin = line_offsets[int(known_lines[offset_number - 1])]
        raw.seek(begin)
        yield (
            int(known_lines[offset_number - 1]) - 1,
            raw.read(line_offsets[int(known_lines[offset_number])] - begin if offset_number < len(known_lines) else -1),
        )


def reject_duplicate_files(files: Sequence[TextFile], source: str) -> None:
    """Refuse files with equal bytes, which would count everything twice."""
    files_by_hash: dict[str, TextFile] = {}
    for file in files:
        first_file = files_by_hash.setdefault(file.sha256, file) if file.sha256 else file
        if first_file is not file:
            got = f"{first_file.path} and {file.path}, which are equal"
            raise TraceFormatError(source, "different files", got, "Give one of them.")
