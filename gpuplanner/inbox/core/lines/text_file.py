"""Bytes of a source file to numbered lines of text: format, compression, encoding and size, with nothing guessed."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.errors import TraceFormatError, first_line, message
from gpuplanner.files.text import sha256
from gpuplanner.inbox.core.lines.parquet_text import names_of

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
    gpuplanner.errors.TraceFormatError: jobs.parquet: expected UTF-8 text, plain or gzip; got Parquet. Unpack or
    export it first.
    """
    kind = next((name for mark, name in OTHER_FORMATS.items() if data.startswith(mark)), None)
    if kind is None and b"\0" in data[:4] and b"\0" in data[4:8]:
        kind = UTF_16
    if kind is None and data.startswith(TAR, TAR_AT):
        kind = "a tar archive"
    if kind is not None:
        todo = REMEDIES.get(kind, "Unpack or export it first.").replace("FILE", path.name)
        raise TraceFormatError(message(str(path), "UTF-8 text, plain or gzip", kind, todo))


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


def of_text(data: bytes, path: Path, lines_before: int = 0) -> TextFile:
    """A file, or a block of whole lines of one, from its unpacked bytes; without hash and size."""
    require_utf8(data, path, lines_before)
    lines = pl.read_lines(data, name="text", row_index_name="line", row_index_offset=lines_before + 1)
    ends_open = bool(data) and not data.endswith(b"\n")
    return TextFile(
        path=path,
        lines=lines,
        has_quotes=b'"' in data,
        has_controls=_has_controls(data, line_ends=lines.height - ends_open),
        ends_open=ends_open,
        text=data,
    )


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
    raise TraceFormatError(message(LIMIT_VARIABLE, "a number of GiB, such as 8", repr(stated), "Mend it."))


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
        raise TraceFormatError(message(str(path), "a regular file", kind, todo))
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise TraceFormatError(too_large(path, limit, f"{size} bytes"))
    return path


def too_large(path: Path, limit: int, got: str) -> str:
    """What to say of a file that holds too much text."""
    return message(
        str(path),
        f"at most {limit} bytes of text, packed at most {MAX_RATIO} times",
        got,
        f"Split the file by month and give the parts together, or, with memory to spare, allow more bytes: "
        f"{LIMIT_VARIABLE}=8.",
    )


def require_utf8(data: bytes, path: Path, lines_before: int = 0) -> None:
    """Refuse what is no UTF-8, and say where; `lines_before` stand above in the file."""
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines_before + data.count(b"\n", 0, error.start) + 1
        text = message(
            f"{path}, line {line}",
            "UTF-8 text",
            f"byte 0x{data[error.start]:02x} ({error.reason})",
            "Convert the file, for example from Latin-1: iconv -f ISO-8859-1 -t UTF-8.",
        )
        raise TraceFormatError(text) from error


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the disk or gzip says into the four-part message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        text = message(str(path), "a whole gzip file", first_line(error), "Copy or download it again.")
        raise TraceFormatError(text) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        text = message(str(path), "a readable file", reason, "Check the path and its permissions.")
        raise TraceFormatError(text) from error
