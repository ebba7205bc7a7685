"""What a file is that should be text and is not: told by its first bytes, and named so that one can mend it."""

from __future__ import annotations

from pathlib import Path

from gpuplanner.errors import TraceFormatError, message

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
        todo = REMEDIES.get(kind, "Unpack or export it first.")
        raise TraceFormatError(message(str(path), "UTF-8 text, plain or gzip", kind, todo))
