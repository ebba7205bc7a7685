"""Files that nobody should trust, given to every source: an error of ours or a reject row, and nothing written."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuplanner import ingest as traces
from gpuplanner.cli.application import main
from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest import text_files as text_blocks
from gpuplanner.ingest import text_files as text_file

TABLE = "job_id,submission_time,duration,num_gpu\na,0,7200,8\n"
SOURCES = sorted(traces.SOURCES)
LIKELY = {"tz": "UTC", "origin": "2026-01-01T00:00:00Z", "gpu": 0, "interval_s": 1}


@dataclass(frozen=True)
class Door:
    """A source with the options that it needs, and names that it takes for its own."""

    read: Callable[[Sequence[Path]], Any]
    names: tuple[str, ...]

    def give(self, folder: Path, make: Callable[[Path], object]) -> list[Path]:
        """Make its files in a new folder, all of them alike."""
        folder.mkdir()
        paths = [folder / name for name in self.names]
        for path in paths:
            make(path)
        return paths


NAMES = {"miso": ("trace_1.json", "exp_1.json"), "genai": ("pod_gpu_duty_cycle_anon.csv",)}


@pytest.fixture(params=SOURCES)
def door(request: pytest.FixtureRequest) -> Door:
    """Each source in turn."""
    name = request.param
    known = traces.SOURCES[name].options
    given = {option: value for option, value in LIKELY.items() if option in known}
    return Door(lambda paths: traces.read(name, paths, **given), NAMES.get(name, ("jobs.csv",)))


def zipped(text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("jobs.csv", text)
    return packed.getvalue()


def tarred(text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("jobs.csv")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


class Bomb:
    """What a pickle can do: this one leaves a file where it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("opened",)


PACKED = gzip.compress(TABLE.encode())
FILES = {
    "a zip": (zipped(TABLE), "a ZIP archive"),
    "a tar": (tarred(TABLE), "a tar archive"),
    "a tar in gzip": (gzip.compress(tarred(TABLE)), "a tar archive"),
    "gzip in gzip": (gzip.compress(PACKED), "gzip inside gzip"),
    "half a gzip": (PACKED[: len(PACKED) // 2], "a whole gzip file"),
    "gzip and rubbish": (PACKED + b"rubbish", "a whole gzip file"),
    "gzip and half a gzip": (PACKED + PACKED[:9], "a whole gzip file"),
    "a pickle of protocol 0": (pickle.dumps({"a": 1}, 0), "a Python pickle"),
    "a pickle of protocol 2": (pickle.dumps(Bomb(), 2), "a Python pickle"),
    "a pickle of protocol 5": (pickle.dumps(Bomb(), 5), "a Python pickle"),
    "a packed pickle": (gzip.compress(pickle.dumps(Bomb())), "a Python pickle"),
    "a NumPy array": (b"\x93NUMPY\x01\x00v\x00{}", "a NumPy array"),
}


def test_what_is_no_text_is_named(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, (content, words) in FILES.items():
        paths = door.give(tmp_path / name, partial(Path.write_bytes, data=content))
        with pytest.raises(TraceFormatError, match=words):
            door.read(paths)
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()  # nothing was written, no pickle opened


def test_limits_of_size_and_ratio_hold(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(name: str, content: bytes, words: str) -> None:
        with pytest.raises(TraceFormatError, match=words):
            door.read(door.give(tmp_path / name, partial(Path.write_bytes, data=content)))

    monkeypatch.setattr(text_blocks, "RATIO_FREE_BYTES", 1 << 16)
    refused("bomb", gzip.compress(b"0" * (1 << 20)), "packed at most 200 times")
    monkeypatch.setenv(text_file.SIZE_LIMIT_ENVIRONMENT_VARIABLE, str(100 / (1 << 30)))
    refused("large", b"0" * 101, "expected at most 100 bytes")
    refused("large when unpacked", gzip.compress(b"0" * 101), "expected at most 100 bytes")


def test_what_is_no_file_is_refused_at_once(door: Door, tmp_path: Path):
    """A pipe without a writer would wait for ever, and a device would never end."""
    for name, make, words in (
        ("pipe", os.mkfifo, "a pipe or device"),
        ("device", partial(Path.symlink_to, target="/dev/zero"), "a pipe or device"),
        ("folder", Path.mkdir, "a folder"),
        ("link to a folder", partial(Path.symlink_to, target="."), "a folder"),
        ("link to nothing", partial(Path.symlink_to, target="nothing"), "No such file"),
        ("circle", lambda path: path.symlink_to(path.name), "symbolic links"),
    ):
        with pytest.raises(TraceFormatError, match=words):
            door.read(door.give(tmp_path / name, make))


HOSTILE = {
    "a line of 10 MB": TABLE + "x" * (10 << 20) + "\n",
    "1 MB of separators": TABLE + "," * (1 << 20),
    "1 MB of quotation marks": TABLE + '"' * (1 << 20),
    "1 MB of brackets": "[" * (1 << 20),
    "deep JSON": '{"jobs":' * 100_000,
    "NUL bytes": TABLE + "a\0,1,1,1\n" + "\0" * 1000,
    "a number of 1 MB": TABLE + "b,1," + "9" * (1 << 20) + ",1\n",
    "no line but ends": "\n" * 100_000,
    "nothing": "",
}


def test_hostile_text_is_an_error_or_a_reject(door: Door, tmp_path: Path):
    for name, text in HOSTILE.items():
        paths = door.give(tmp_path / name, partial(Path.write_text, data=text))
        try:
            facts = door.read(paths).provenance
        except TraceFormatError as error:
            said = str(error)
            assert len(said) < 2000, "a message quotes little of what it refuses"
            continue
        assert facts["source"] == "itp", name  # whose table it is: the row that is whole is read, the others are not
        assert (facts["rows_kept"], facts["gpu_hours"]) == (1, 16.0)
        assert facts["rows_in"] == 1 + facts["rows_rejected"] > 1


MIXED = {
    "azure-llm": (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        ("2023-11-16 18:15:46.5,374,44", "2023-11-16T18:15:47.5+08:00,1,1", "2023-11-16 18:15:48 PST,1,1"),
    ),
    "philly": (
        "timestamp,duration,num_gpus,gpu_time,cluster",
        ("2017-10-09 06:13:03,1,1,1,a", "2017-10-09 06:13:03 PST,1,1,1,a", "2017-10-09 06:13:03+02:00,1,1,1,a"),
    ),
    "nvidia-smi": (
        "timestamp, index, power.draw [W]",
        ("2026/07/14 09:00:26.500, 0, 70 W", "2026/07/14 09:00:27.500 CET, 0, 70 W", "yesterday, 0, 70 W"),
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_second_zone_in_one_column_rejects_its_rows(name: str, tmp_path: Path):
    header, lines = MIXED[name]
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join([header, *lines, ""]))
    got = traces.read(name, path, tz="UTC")
    assert got.rejects["row"].to_list() == [3, 4]
    assert got.provenance["rows_kept"] == 1


CLOTHES: dict[str, Callable[[str], bytes]] = {
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "two members of gzip": lambda text: gzip.compress(text[:50].encode()) + gzip.compress(text[50:].encode()),
}


@pytest.mark.parametrize("clothes", CLOTHES)
def test_the_same_text_in_other_clothes_is_the_same(good: Any, tmp_path: Path, clothes: str):
    text, reader = good
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    plain = reader([path])
    path.write_bytes(CLOTHES[clothes](text))
    other = reader([path])
    assert other.jobs.equals(plain.jobs)
    assert other.summary() == plain.summary()


ODD = ("-8", "nan", "9" * 30, "\uff18", "1_000")


def test_an_odd_value_in_any_field_is_accounted_for(good: Any, tmp_path: Path):
    """Digits of other scripts and Python's 1_000 are no numbers; hours are never negative, infinite or none."""
    text, reader = good
    *lines, last = text.rstrip("\n").split("\n")
    separator = "|" if "|" in last else ","
    path = tmp_path / "jobs.csv"
    for place, value in itertools.product(range(last.count(separator) + 1), ODD):
        fields = last.split(separator)
        fields[place] = value
        path.write_text("\n".join([*lines, separator.join(fields), ""]))
        facts = reader([path]).summary()
        assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"] == len(lines)
        assert 0 <= facts["gpu_hours"] < 1e9


def test_a_refused_file_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "jobs.csv"
    path.write_bytes(pickle.dumps(Bomb()))
    for words in (("itp",), ("auto",), ("nvidia-smi",), ("itp", "--append")):
        command = ["gpuplanner", "ingest", words[0], str(path), "-o", str(tmp_path / "out"), *words[1:]]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 3
        assert list(tmp_path.iterdir()) == [path]
