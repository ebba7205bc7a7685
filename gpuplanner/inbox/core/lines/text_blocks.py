"""Files of any length as blocks of whole lines, so that no more than a block of one is in memory."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.lines.parquet_text import table_of
from gpuplanner.inbox.core.lines.text_file import (
    BYTE_ORDER_MARK,
    GZIP,
    MAX_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_RATIO,
    MAX_STREAM_BYTES,
    PARQUET,
    STEP_BYTES,
    TextFile,
    explained,
    of_text,
    refuse_other_formats,
    regular,
    require_utf8,
    size_limit,
    too_large,
)
from gpuplanner.inbox.core.progress import tell_progress

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
            digest, lines, ends_open = hashlib.sha256(), 0, False
            limit = size_limit(self.limit)
            with explained(file.path), regular(file.path, limit).open("rb") as raw:
                if self.tables and raw.read(len(PARQUET)) == PARQUET:
                    raw.seek(0)
                    data = raw.read()
                    digest.update(data)
                    table = table_of(data, file.path, limit)
                    yield number, replace(file, table=table)
                    self.files[number] = replace(
                        file, sha256=digest.hexdigest(), bytes=len(data), table=table.clear()
                    )
                    continue
                raw.seek(0)
                for data in self.blocks_of(file.path, raw, digest.update):
                    block = of_text(data, file.path, lines)
                    self._post(number, lines + 1, block, raw.tell() - len(data))
                    lines += block.lines.height
                    ends_open = block.ends_open
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
        self.posts.setdefault(number, {}).update(
            zip(range(line, line + POST_LINES * len(sure), POST_LINES), sure.to_list(), strict=True)
        )

    def blocks_of(
        self, path: Path, raw: BinaryIO, seen: Callable[[bytes], object] = lambda _: None
    ) -> Iterator[bytes]:
        """Unpacked text, cut behind line ends; at least one block, which may be empty."""
        head = raw.read(_LOOK_AT)
        raw.seek(0)
        first, is_packed = True, head.startswith(GZIP)
        if not is_packed:
            refuse_other_formats(head, path)
        cut = self._unpacked(path, raw, seen) if is_packed else self._plain(raw, seen)
        for data in cut:
            if first and is_packed:
                refuse_other_formats(data, path)
            yield data.removeprefix(BYTE_ORDER_MARK) if first else data
            first = False
        if first:
            yield b""

    def _plain(self, raw: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[bytes]:
        """Blocks of text as it lies on disk: where a block ends is looked up first, so that none is copied."""
        end = raw.seek(0, io.SEEK_END)
        begin = 0
        while begin < end:
            cut = _line_end(raw, begin, begin + self.block_bytes, end)
            raw.seek(begin)
            data = raw.read(cut - begin)
            if not data:  # the file has become shorter
                return
            seen(data)
            begin += len(data)
            yield data

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
        cut_short = "it ends before the end of its data"
        raise EOFError(cut_short)


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


def _pieces(
    blocks: FileBlocks, number: int, raw: BinaryIO, lines: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
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
            raise TraceFormatError(message(source, "different files", got, "Give one of them."))
