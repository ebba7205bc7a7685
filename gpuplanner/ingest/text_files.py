"""Text files of any length as numbered lines."""

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

from gpuplanner.core.errors import TraceFormatError, first_line, message
from gpuplanner.core.execution import tell_progress
from gpuplanner.core.serialization import sha256
from gpuplanner.ingest.source_fields import names_of, table_of

GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
PICKLE = "a Python pickle"
UTF_16 = "UTF-16 text"
OTHER_FORMATS = {
    GZIP: "gzip inside gzip",
    b"PK\x03\x04": "a ZIP archive",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"BZh": "bzip2",
    PARQUET: "Parquet",
    b"SQLite format 3": "a SQLite database",
    b"x\x01": "zlib",  # polars would unpack these three, without limit
    b"x\x9c": "zlib",
    b"x\xda": "zlib",
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
    b"ARROW1": "Arrow",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "HDF5",
    **dict.fromkeys([b"(dp", b"(lp", *(bytes([0x80, protocol]) for protocol in range(2, 6))], PICKLE),
}
REMEDIES = {
    UTF_16: "Convert it: iconv -f UTF-16 -t UTF-8.",
    "xz": "Unpack it: xz --decompress --keep FILE.",
    "bzip2": "Unpack it: bunzip2 --keep FILE.",
    "zstandard": "Unpack it: zstd --decompress FILE.",
    "a ZIP archive": "Unpack it: unzip FILE.",
    "a tar archive": "Unpack it: tar -xf FILE.",
    PICKLE: "Export it as CSV or JSON: opening a pickle can run any program, so none is ever opened.",
}
TAR, TAR_AT = b"ustar", 257
"""Mark of a tar archive, and where it stands."""


def refuse_other_formats(data: bytes, path: Path) -> None:
    """Refuse unpacked data that is no text.

    Examples
    --------
    >>> refuse_other_formats(b"PAR1...", Path("jobs.parquet"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: jobs.parquet: expected UTF-8 text, plain or gzip; got Parquet. Unpack or
    export it first.
    """
    kind = next((name for mark, name in OTHER_FORMATS.items() if data.startswith(mark)), None)
    if kind is None and b"\0" in data[:4] and b"\0" in data[4:8]:
        kind = UTF_16
    if kind is None and data.startswith(TAR, TAR_AT):
        kind = "a tar archive"
    if kind is not None:
        todo = REMEDIES.get(kind, "Unpack or export it first.").replace("FILE", path.name)
        raise TraceFormatError(str(path), "UTF-8 text, plain or gzip", kind, todo)


MAX_BYTES = 4 << 30
"""Largest text that is read into memory."""

MAX_STREAM_BYTES = 1 << 40
"""Longest text that is read block by block."""

MAX_DOCUMENT_BYTES = 1 << 30
"""Largest document (JSON) that is read into memory: its parts take several times their text."""

LIMIT_VARIABLE = "GPUPLANNER_MAX_GIB"
"""Environment variable that sets both limits, in GiB."""

MAX_RATIO = 200
"""Text compresses 5 to 50 times; beyond this, and beyond RATIO_FREE_BYTES, a file was made to do harm."""

STEP_BYTES = 64 << 10
HEAD_BYTES = 16 << 10

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CONTROL_PATTERN = r"[\x00-\x08\x0b-\x1f\x7f]"


NO_LINES = pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})

Text = bytes
"""Bytes of text; the name of the type is that of a field below."""


@dataclass(frozen=True, eq=False)
class TextFile:
    """A file of text, or a block of one.

    - ``path``: Where it was read.
    - ``sha256``: Hash of the bytes on disk.
    - ``bytes``: Size on disk.
    - ``lines``: ``line`` (1-based) and ``text``, without the line ends (LF or CR LF).
    - ``has_quotes``, ``has_controls``: A quotation mark, a control character stands somewhere in the text: a reader
      looks line by line only if so.
    - ``ends_open``: The last line has no line end, so it may have been cut.
    - ``table``: What stood in it instead of lines, if it is Parquet.
    - ``text``: Of a block of a file, the text that the lines stand in.
    """

    path: Path
    sha256: str = ""
    bytes: int = 0
    lines: pl.DataFrame = field(default_factory=NO_LINES.clone)
    has_quotes: bool = False
    has_controls: bool = False
    ends_open: bool = False
    table: pl.DataFrame | None = None
    text: Text = b""


def fingerprint(path: str | Path) -> str:
    """Hash (SHA-256) of the bytes of a file that a reader would take, to tell whether it was read before."""
    path = Path(path)
    with explained(path):
        return sha256(regular(path, size_limit(MAX_STREAM_BYTES)))


def size_limit(usual: int) -> int:
    """Bytes of text that may be read: `usual`, or what :data:`LIMIT_VARIABLE` says.

    Examples
    --------
    >>> size_limit(1 << 30)
    1073741824
    """
    stated = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not stated:
        return usual
    try:
        gib = float(stated)
        if 0 < gib < 1 << 20:
            return int(gib * (1 << 30))
    except ValueError:
        pass
    raise TraceFormatError(LIMIT_VARIABLE, "a number of GiB, such as 8", repr(stated), "Set it to 8.")


def head(path: str | Path) -> list[str]:
    """First few kilobytes as lines without blank ones, for telling formats apart; bad bytes become U+FFFD.

    Of a Parquet file, the header line that it would have as CSV.
    """
    path = Path(path)
    with explained(path), regular(path, None).open("rb") as raw:
        packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        data = gzip.GzipFile(fileobj=raw).read(HEAD_BYTES) if packed else raw.read(HEAD_BYTES)
    if data.startswith(PARQUET) and not packed:
        return [",".join(names_of(path))]
    refuse_other_formats(data, path)
    lines = data.removeprefix(BYTE_ORDER_MARK).decode("utf-8", errors="replace").splitlines()
    whole = lines[:-1] if len(data) == HEAD_BYTES and len(lines) > 1 else lines
    return [line for line in whole if line.strip()]


def count_bytes(data: bytes, which: Callable[[np.ndarray], np.ndarray]) -> int:
    """How many bytes are such, of which there may be many; in steps that stay in the cache."""
    codes = np.frombuffer(data, np.uint8)
    steps = range(0, len(codes), STEP_BYTES)
    return sum(int(np.count_nonzero(which(codes[start : start + STEP_BYTES]))) for start in steps)


def _has_controls(data: bytes, line_ends: int) -> bool:
    """True if there is a control character other than tab, LF and CR LF; counted, since that is quick."""
    low = count_bytes(data, lambda codes: codes < ord(" "))
    tabs = data.count(b"\t") if b"\t" in data else 0
    returns = data.count(b"\r\n") if b"\r" in data else 0
    return low != line_ends + tabs + returns or b"\x7f" in data


def regular(path: Path, limit: int | None) -> Path:
    """The path, if it is a file of at most `limit` bytes: a folder or pipe is refused, not waited for."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or device"
        todo = "Give the files themselves; a folder is read as a bill alone, if its source is named."
        raise TraceFormatError(str(path), "a regular file", kind, todo)
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise TraceFormatError(too_large(path, limit, f"{size} bytes"))
    return path


def too_large(path: Path, limit: int, got: str) -> str:
    """What to say of a file that holds too much text."""
    expected = f"at most {limit} bytes of text, packed at most {MAX_RATIO} times"
    more = f"with memory to spare, allow more bytes: {LIMIT_VARIABLE}=8."
    todo = f"Split the file by month and give the parts together, or, {more}"
    return message(str(path), expected, got, todo)


def require_utf8(data: bytes, path: Path, lines_before: int = 0) -> None:
    """Refuse what is no UTF-8, and say where; `lines_before` stand above in the file."""
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
def explained(path: Path) -> Iterator[None]:
    """Turn what the disk or gzip says into the four-part message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        todo = "Copy or download it again."
        raise TraceFormatError(str(path), "a whole gzip file", first_line(error), todo) from error
    except OSError as error:
        reason, todo = error.strerror or first_line(error), "Check the path and its permissions."
        raise TraceFormatError(str(path), "a readable file", reason, todo) from error


BLOCK_BYTES = 24 << 20
"""Text that is read at a time; a line that is longer is read whole."""

WHOLE = 1 << 62
"""Text of a block where a file is one."""

RATIO_FREE_BYTES = 256 << 20

POST_LINES = 1024
"""Lines from one sign-post to the next."""


@dataclass
class FileBlocks:
    """Files that are read one after the other, in blocks of whole lines.

    - ``paths``: The files.
    - ``block_bytes``: Text of a block.
    - ``limit``: Longest text of a file, unless the user states another.
    - ``tables``: Parquet is read too, as one block with a table instead of lines.
    - ``files``: The files without their lines and rows; hash, size and whether the last line is open are known of
      those read.
    - ``posts``: Of a plain file that was read: number of some of its lines → where they begin.
    """

    paths: Sequence[str | Path]
    block_bytes: int = BLOCK_BYTES
    limit: int = MAX_STREAM_BYTES
    tables: bool = False
    files: list[TextFile] = field(init=False)
    posts: dict[int, dict[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.files = [TextFile(Path(path)) for path in self.paths]

    def __iter__(self) -> Iterator[tuple[int, TextFile]]:
        r"""Number of the file, and its next block as if that were the file; lines keep their numbers.

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
        total = sum(_size(file.path) for file in self.files)
        before = 0
        for number, file in enumerate(self.files):
            digest, before_block, ends_open = hashlib.sha256(), 0, False
            limit = size_limit(self.limit)
            with explained(file.path), regular(file.path, limit).open("rb") as raw:
                if self.tables and raw.read(len(PARQUET)) == PARQUET:
                    raw.seek(0)
                    data = raw.read()
                    digest.update(data)
                    table = table_of(data, file.path, limit)
                    yield number, replace(file, table=table)
                    known = replace(file, sha256=digest.hexdigest(), bytes=len(data))
                    self.files[number] = replace(known, table=table.clear())
                    continue
                raw.seek(0)
                for data in self.blocks_of(file.path, raw, digest.update):
                    require_utf8(data, file.path, before_block)
                    first = before_block + 1
                    lines = pl.read_lines(data, name="text", row_index_name="line", row_index_offset=first)
                    ends_open = bool(data) and not data.endswith(b"\n")
                    controls = _has_controls(data, line_ends=lines.height - ends_open)
                    block = TextFile(file.path, "", 0, lines, b'"' in data, controls, ends_open, text=data)
                    self._post(number, first, block, raw.tell() - len(data))
                    before_block += lines.height
                    yield number, block
                    tell_progress(before + raw.tell(), total)
                size = raw.tell()
            before += size
            self.files[number] = replace(file, sha256=digest.hexdigest(), bytes=size, ends_open=ends_open)

    def _post(self, number: int, line: int, block: TextFile, begin: int) -> None:
        """Note where some lines of a block begin; of lines that end in CR LF, the first alone is sure."""
        every = block.lines["text"].str.len_bytes().cast(pl.Int64)
        places = pl.concat([pl.Series([begin]), (every + 1).cum_sum() + begin])[:-1].gather_every(POST_LINES)
        sure = places[:1] if b"\r" in block.text else places
        numbers = range(line, line + POST_LINES * len(sure), POST_LINES)
        self.posts.setdefault(number, {}).update(zip(numbers, sure.to_list(), strict=True))

    def blocks_of(self, path: Path, raw: BinaryIO, seen: Callable[[bytes], object] = lambda _: None) -> Iterator[bytes]:
        """Unpacked text, cut behind line ends; at least one block, which may be empty."""
        head = raw.read(_LOOK_AT)
        raw.seek(0)
        begin = 0
        if head.startswith(GZIP):
            for data in self._unpacked(path, raw, seen):
                if not begin:
                    refuse_other_formats(data, path)
                yield data if begin else data.removeprefix(BYTE_ORDER_MARK)
                begin += len(data)
        else:
            refuse_other_formats(head, path)
            # Where a block ends is looked up first, so that none is copied.
            end = raw.seek(0, io.SEEK_END)
            while begin < end:
                cut = _line_end(raw, begin, begin + self.block_bytes, end)
                raw.seek(begin)
                data = raw.read(cut - begin)
                if not data:  # the file has become shorter
                    break
                seen(data)
                yield data if begin else data.removeprefix(BYTE_ORDER_MARK)
                begin += len(data)
        if not begin:
            yield b""

    def _unpacked(self, path: Path, raw: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[bytes]:
        size, limit = _size(path), size_limit(self.limit)
        waiting: list[bytes] = []
        held = unpacked = 0
        first = True

        def packed() -> Iterator[bytes]:
            while piece := raw.read(STEP_BYTES):
                seen(piece)
                yield piece

        for piece in members(packed()):
            unpacked += len(piece)
            is_bomb = unpacked > RATIO_FREE_BYTES and unpacked > MAX_RATIO * size
            if unpacked > limit or is_bomb:
                raise TraceFormatError(too_large(path, limit, f"more than {unpacked} bytes out of {size}"))
            waiting.append(piece)
            held += len(piece)
            if held < self.block_bytes or (held < _LOOK_AT and first):
                continue
            data = b"".join(waiting)
            end = data.rfind(b"\n") + 1
            if not end:
                continue
            yield data[:end]
            first, waiting, held = False, [data[end:]], len(data) - end
        if data := b"".join(waiting):
            yield data


_LOOK_AT = 512
"""First bytes that tell the format of a file."""


def _line_end(raw: BinaryIO, begin: int, target: int, end: int) -> int:
    """End of the line that `target` lies in, or of one not far before it; `end` is that of the file."""
    if target >= end:
        return end
    low = max(begin, target - STEP_BYTES)
    raw.seek(low)
    last = raw.read(target - low).rfind(b"\n")
    if last >= 0:
        return low + last + 1
    while piece := raw.read(STEP_BYTES):
        found = piece.find(b"\n")
        if found >= 0:
            return raw.tell() - len(piece) + found + 1
    return end


def members(packed: Iterable[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of all members of a gzip file; zeros may pad it, as in the gzip program."""
    member = zlib.decompressobj(wbits=31)
    for piece in packed:
        while piece := piece.lstrip(b"\0") if member.eof else piece:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            yield member.decompress(piece)
            piece = member.unused_data
    if not member.eof:
        raise EOFError("it ends before the end of its data")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_text_file(path: str | Path) -> TextFile:
    r"""Read UTF-8 text, plain or gzip, in one piece.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_bytes(b"x,y\r\n1,2\r\n")
    ...     read_text_file(path).lines.rows()
    [(1, 'x,y'), (2, '1,2')]
    """
    blocks = FileBlocks([path], WHOLE, MAX_BYTES)
    [(_, whole)] = blocks
    return replace(whole, sha256=blocks.files[0].sha256, bytes=blocks.files[0].bytes, text=b"")


def read_document(path: str | Path) -> tuple[TextFile, str]:
    r"""Read UTF-8 text that is one document, plain or gzip, in one piece.

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
    blocks = FileBlocks([path], WHOLE, MAX_DOCUMENT_BYTES)
    with explained(path), regular(path, size_limit(blocks.limit)).open("rb") as raw:
        data = b"".join(blocks.blocks_of(path, raw, digest.update))
        size = raw.tell()
    require_utf8(data, path)
    file = TextFile(path, sha256=digest.hexdigest(), bytes=size, has_quotes=True)
    return file, data.decode("utf-8")


def texts_of_lines(blocks: FileBlocks, wanted: Mapping[int, Collection[int]]) -> dict[tuple[int, int], str]:
    r"""Text of some lines.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_bytes(b"x\ny\nz")
    ...     texts_of_lines(FileBlocks([path], block_bytes=2), {0: [2, 3]})
    {(0, 2): 'y', (0, 3): 'z'}
    """
    found = {}
    for number, lines in wanted.items():
        path = blocks.files[number].path
        missing = sorted(lines, reverse=True)
        with explained(path), path.open("rb") as raw:
            for before, data in _pieces(blocks, number, raw, missing[::-1]):
                texts = data.split(b"\n")
                while missing and missing[-1] <= before + len(texts) - data.endswith(b"\n"):
                    line = missing.pop()
                    found[number, line] = texts[line - before - 1].decode().removesuffix("\r")
                if not missing:
                    break
    return found


def _pieces(blocks: FileBlocks, number: int, raw: BinaryIO, lines: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Pieces of a file that hold lines, in order, and how many lines stand before each; of a packed file, all."""
    posts = blocks.posts.get(number)
    packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    if packed or not posts:
        before = 0
        for data in blocks.blocks_of(blocks.files[number].path, raw):
            yield before, data
            before += data.count(b"\n")
        return
    known = np.array(list(posts))
    for post in np.unique(np.searchsorted(known, lines, "right")).tolist():
        begin = posts[int(known[post - 1])]
        raw.seek(begin)
        yield int(known[post - 1]) - 1, raw.read(posts[int(known[post])] - begin if post < len(known) else -1)


def refuse_twins(files: Sequence[TextFile], source: str) -> None:
    """Refuse the same bytes twice: they would count everything twice."""
    seen: dict[str, TextFile] = {}
    for file in files:
        twin = seen.setdefault(file.sha256, file) if file.sha256 else file
        if twin is not file:
            got = f"{twin.path} and {file.path}, which are equal"
            raise TraceFormatError(source, "different files", got, "Give one of them.")
