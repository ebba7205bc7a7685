"""Damage that files of clusters suffer on their way: cut, doubled, swapped and falsified parts, other encodings."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES = [
    "",
    "0",
    "-1",
    "1e30",
    "None",
    "nan",
    "Unknown",
    "gpu:?:x",
    "é漢",
    "2026-99-99T00:00:00",
    "[1-",
    "n[1-99999]",
]
JSON_VALUES: list[Any] = [None, "", 0, -1, 1e30, "x", [], {}, [None], {"a": 1}, True]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage a file, packed or not, in one to three ways."""
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
    ways = [*TEXT_WAYS, damage_json, damage_json, damage_json] if text.lstrip()[:1] in "{[" else TEXT_WAYS
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(ways)(text, rng)
    return encode(text, rng)


def encode(text: str, rng: random.Random) -> bytes:
    """Write the text in one of the encodings that files come in, sometimes cut."""
    data = text.encode(rng.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1"]), "replace")
    return data[: rng.randrange(len(data))] if rng.random() < 0.1 and len(data) > 1 else data


def separator(lines: list[str]) -> str:
    """The character that parts the fields of the first line."""
    return max("|,;\t ", key=(lines[0] if lines else "").count)


def on_lines(change: Callable[[list[str], random.Random], list[str]]) -> Callable[[str, random.Random], str]:
    """Make a change of lines one of the text."""

    def changed(text: str, rng: random.Random) -> str:
        lines = text.splitlines()
        return "\n".join(change(lines, rng)) + "\n" if lines else text

    return changed


def drop_lines(lines: list[str], rng: random.Random) -> list[str]:
    """Leave out a part of the lines, the first one among them at times."""
    share = rng.choice([0.05, 0.5, 0.95])
    return [
        line
        for place, line in enumerate(lines)
        if (place == 0 and rng.random() < 0.8) or rng.random() > share
    ]


def repeat_lines(lines: list[str], rng: random.Random) -> list[str]:
    """Repeat a run of lines at the end."""
    first = rng.randrange(len(lines))
    return lines + lines[first : first + rng.randint(1, 20)]


def shuffle_lines(lines: list[str], rng: random.Random) -> list[str]:
    """Put all lines behind the first in another order."""
    rest = lines[1:]
    rng.shuffle(rest)
    return lines[:1] + rest


def cut_lines(lines: list[str], rng: random.Random) -> list[str]:
    """Cut some lines in the middle."""
    return [line[: rng.randrange(len(line))] if line and rng.random() < 0.1 else line for line in lines]


def drop_column(lines: list[str], rng: random.Random) -> list[str]:
    """Leave out one column."""
    mark = separator(lines)
    place = rng.randrange(lines[0].count(mark) + 1)
    return [mark.join(field for at, field in enumerate(line.split(mark)) if at != place) for line in lines]


def swap_columns(lines: list[str], rng: random.Random) -> list[str]:
    """Change two columns of all lines but the first: values stand under another's name."""
    mark = separator(lines)
    count = lines[0].count(mark) + 1
    one, other = rng.randrange(count), rng.randrange(count)

    def swapped(line: str) -> str:
        fields = line.split(mark)
        if max(one, other) < len(fields):
            fields[one], fields[other] = fields[other], fields[one]
        return mark.join(fields)

    return lines[:1] + [swapped(line) for line in lines[1:]]


def falsify_column(lines: list[str], rng: random.Random) -> list[str]:
    """Put another value into one column of some or all lines."""
    mark, share, value = separator(lines), rng.choice([0.05, 0.5, 1.0]), rng.choice(VALUES)
    place = rng.randrange(lines[0].count(mark) + 1)

    def falsified(line: str) -> str:
        fields = line.split(mark)
        if place < len(fields) and rng.random() < share:
            fields[place] = value
        return mark.join(fields)

    return lines[:1] + [falsified(line) for line in lines[1:]]


def end_lines_otherwise(text: str, rng: random.Random) -> str:
    """End lines as other systems do, or put zero bytes between them."""
    return text.replace("\n", rng.choice(["\r\n", "\r", "\n\n", "\x00\n"]))


def damage_json(text: str, rng: random.Random) -> str:
    """Leave out, double or falsify some keys and items of a document."""
    try:
        document = json.loads(text)
    except ValueError:
        return cut_text(text, rng)
    share = rng.choice([0.001, 0.01, 0.1])
    name = rng.choice(sorted(names_in(document)) or [""])
    return json.dumps(damaged(document, rng, share, name))


def names_in(value: Any) -> set[str]:
    """All names of a document."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def damaged(value: Any, rng: random.Random, share: float, name: str) -> Any:
    """The value with some parts missing or other ones, those of one name more often."""
    if isinstance(value, dict):
        found = {}
        for key, item in value.items():
            odds = 0.5 if key == name else share
            if rng.random() < odds:
                if rng.random() < 0.5:
                    continue
                found[key] = rng.choice(JSON_VALUES)
            else:
                found[key] = damaged(item, rng, share, name)
        return found
    if isinstance(value, list):
        items = [damaged(item, rng, share, name) for item in value if rng.random() > share]
        return items + items[:1] if rng.random() < share else items
    return value


def cut_text(text: str, rng: random.Random) -> str:
    """Leave out a run of characters."""
    first = rng.randrange(len(text) + 1)
    return text[:first] + text[first + rng.randint(1, 200) :]


TEXT_WAYS: list[Callable[[str, random.Random], str]] = [
    *map(on_lines, (drop_lines, repeat_lines, shuffle_lines, cut_lines, drop_column, swap_columns, falsify_column)),
    on_lines(falsify_column), end_lines_otherwise, cut_text,
]  # fmt: skip


def mutated_case(case: Path, folder: Path, seed: int) -> list[Path]:
    """Copy the files of a case with one of them damaged, or with none left in it."""
    rng = random.Random(seed)
    files = sorted(path for path in case.iterdir() if path.is_file() and path.name != "truth.json")
    chosen = rng.choice(files)
    out = []
    for path in files:
        target = folder / path.name.removesuffix(".gz")
        data = path.read_bytes()
        if path == chosen:
            target.write_bytes(mutate(data, rng) if rng.random() < 0.97 else b"")
        else:
            target = folder / path.name
            target.write_bytes(data)
        out.append(target)
    return out
