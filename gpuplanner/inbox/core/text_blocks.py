"""Files of any length as blocks of whole lines, so that no more than a block of one is in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.file_formats import GZIP, refuse_other_formats
from gpuplanner.inbox.core.text_file import (
    BYTE_ORDER_MARK,
    STEP_BYTES,
    TextFile,
    explained,
    is_bomb,
    members,
    of_text,
    regular,
    size_limit,
    too_large,
)

BLOCK_BYTES = 48 << 20
"""Text that is read at a time; a line that is longer is read whole."""

MAX_STREAM_BYTES = 1 << 40
"""Longest text that is read block by block."""

Progress = Callable[[int, int], object]
"""Is told how many bytes of how many were read."""

NO_LINES = pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})


@dataclass
class FileBlocks:
    """Files that are read one after the other, in blocks of whole lines.

    Attributes
    ----------
    paths : sequence of str or Path
        The files.
    block_bytes : int
        Text of a block.
    progress : callable, optional
        Told of every block.
    files : list of TextFile
        The files without their lines; hash, size and whether the last line is open are known of those read.
    """

    paths: Sequence[str | Path]
    block_bytes: int = BLOCK_BYTES
    progress: Progress | None = None
    files: list[TextFile] = field(init=False)

    def __post_init__(self) -> None:
        self.files = [_unread(Path(path)) for path in self.paths]

    def __iter__(self) -> Iterator[tuple[int, TextFile]]:
        r"""Number of the file, and its next block as if that were the file; lines keep their numbers.

        Raises
        ------
        TraceFormatError
            As :func:`gpuplanner.inbox.core.text_file.read_text_file`, once it comes to the fault.

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
            digest, lines, ends_open = hashlib.sha256(), 0, False
            with explained(file.path), regular(file.path, size_limit(MAX_STREAM_BYTES)).open("rb") as raw:
                for data in self._blocks(file.path, raw, digest.update):
                    block = of_text(data, file.path, lines)
                    lines += block.lines.height
                    ends_open = block.ends_open
                    yield number, block
                    if self.progress is not None:
                        self.progress(before + raw.tell(), total)
                size = raw.tell()
            before += size
            self.files[number] = TextFile(
                file.path, digest.hexdigest(), size, NO_LINES, False, False, ends_open
            )

    def _blocks(self, path: Path, raw: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[bytes]:
        """Unpacked text, cut behind line ends; at least one block, which may be empty."""
        size, limit = _size(path), size_limit(MAX_STREAM_BYTES)
        waiting: list[bytes] = []
        held = unpacked = 0
        first = True
        for piece in _pieces(raw, seen):
            unpacked += len(piece)
            if unpacked > limit or is_bomb(unpacked, size):
                raise TraceFormatError(too_large(path, limit, f"more than {unpacked} bytes out of {size}"))
            waiting.append(piece)
            held += len(piece)
            if held < self.block_bytes or (held < _LOOK_AT and first):
                continue
            data = b"".join(waiting)
            end = data.rfind(b"\n") + 1
            if not end:
                continue
            yield _begun(data[:end], path) if first else data[:end]
            first, waiting, held = False, [data[end:]], len(data) - end
        data = b"".join(waiting)
        if first:
            yield _begun(data, path)
        elif data:
            yield data


_LOOK_AT = 512
"""First bytes that tell the format of a file."""


def _pieces(raw: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[bytes]:
    def steps(size: int) -> Iterator[bytes]:
        while piece := raw.read(size):
            seen(piece)
            yield piece

    is_packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    return members(steps(STEP_BYTES)) if is_packed else steps(16 * STEP_BYTES)


def _begun(data: bytes, path: Path) -> bytes:
    refuse_other_formats(data, path)
    return data.removeprefix(BYTE_ORDER_MARK)


def _unread(path: Path) -> TextFile:
    return TextFile(path, "", 0, NO_LINES, False, False, False)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def refuse_twins(files: Sequence[TextFile], source: str) -> None:
    """Refuse the same bytes twice: they would count everything twice.

    Raises
    ------
    TraceFormatError
        Naming both.
    """
    seen: dict[str, TextFile] = {}
    for file in files:
        twin = seen.setdefault(file.sha256, file) if file.sha256 else file
        if twin is not file:
            got = f"{twin.path} and {file.path}, which are equal"
            raise TraceFormatError(message(source, "different files", got, "Give one of them."))
