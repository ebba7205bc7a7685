"""Damaged dumps: each ends in a decision, or in one sentence that says what to do; never in a traceback.

A mutation is known by its number: the input, the kind of damage and all that is drawn follow from it.
"""

from __future__ import annotations

import gzip
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.cli.application import app, register_commands
from gpuplanner.core.errors import GpuPlannerError, GpuPlannerWarning
from gpuplanner.decision.study_pipeline import summarize_dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_sources, group_files_by_source, require_jobs

CASES = Path(__file__).parent / "cluster_dumps"
INPUTS = (
    ("kubernetes/01-gke-timesharing/dump.json",),
    ("slurm/02-mig-names-no-board/sacct.txt", "slurm/02-mig-names-no-board/nodes.txt"),
    ("kubernetes/04-dcgm-exported/dump.json", "kubernetes/04-dcgm-exported/prom-step600.json"),
    ("slurm/04-trailing-delimiter-gpuutil/sacct.txt", "slurm/04-trailing-delimiter-gpuutil/nodes.txt"),
    ("kubernetes/20-kueue/stuck.json",),
    ("slurm/06b-shard-node/sacct_untracked.txt", "slurm/06b-shard-node/nodes.txt"),
    ("kubernetes/17-ksm/requests.json",),
    ("slurm/16-sacct-json-2405/sacct.json",),
    ("slurm/01-steps-mig-h100/sacct.txt", "slurm/13-nodes-json/nodes.json"),
    ("kubernetes/21-dra-dynmig/ownclass.json",),
    ("slurm/15-arrays-het-requeue/sacct.txt", "slurm/27-node-lists/slurm.conf"),
    ("kubernetes/17-ksm/metrics.prom",),
    ("kubernetes/08-bottlerocket-shared/dump.json",),
    ("slurm/12-squeue-json/squeue.json", "slurm/27-node-lists/sinfo_ranges.txt"),
    ("kubernetes/09-4pd-vgpu/dump.json", "kubernetes/19-bills/focus10-aws.csv"),
    ("slurm/28b-untyped-two-profiles/sacct.txt", "slurm/28b-untyped-two-profiles/nodes.txt"),
    ("kubernetes/25-gangs/dump.yaml",),
    ("slurm/05-two-clusters-one-dump/sacct.txt", "slurm/05-two-clusters-one-dump/nodes.txt"),
    ("kubernetes/26-amd-cpx/single.json", "kubernetes/18-amd-exporter/range.json"),
    ("slurm/36b-one-old-whole-job/sacct.txt", "slurm/36b-one-old-whole-job/nodes.txt"),
    ("kubernetes/23-mixed-shared/dump.json", "kubernetes/18-amd-exporter/metrics.prom"),
    ("slurm/31-mps/sacct.txt", "slurm/31-mps/nodes.txt", "kubernetes/19-bills/cur-legacy.csv"),
    ("kubernetes/07-amd-dra/dump.json", "kubernetes/19-bills/gcp.jsonl"),
    ("slurm/28d-whole-job-on-cut-fleet/sacct.txt", "slurm/28d-whole-job-on-cut-fleet/nodes.txt"),
    ("kubernetes/12-gaudi-mixed/dump.json", "kubernetes/19-bills/azure-ea.csv"),
    ("slurm/07b-mi250x-idle/sacct.txt", "slurm/07b-mi250x-idle/nodes.txt"),
    ("kubernetes/10-aliyun-gpushare/dump.json", "kubernetes/17-ksm/dcgm-lower.json"),
)
WORDS = (
    "", "null", "-1", "0", "1e308", "-1e308", "NaN", "inf", "9" * 40, "abc", "½", "\u202e日本", "a|b", '"', "1.5",
    "0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-02-30T25:61:61", "2026-03-02T08:00:00+99:00", "gres/gpu=-4",
    "gres/gpu:a100=1e30", "gres/gpu:=", "n[1-", "n[1-99999999]", "1g.5gb", "{}", "[]", "-9223372036854775808",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, "", -1, 0, 1e308, -1e308, 10**40, 2**63, 1.5, True, [], {}, [None], {"": None}, [[]], "abc", "-1", "1e308",
    "NaN", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-02-30T25:61:61Z", "999999999999", "½", "\x00", "5Gi",
)  # fmt: skip


def content(name: str) -> bytes:
    """A file of a case, as it was written."""
    path = CASES / name
    return path.read_bytes() if path.exists() else gzip.decompress((CASES / f"{name}.gz").read_bytes())


# Text with columns


def separator_of(text: str) -> str:
    first = text.partition("\n")[0]
    return max("|,;\t ", key=first.count)


def damage_columns(text: str, rng: random.Random) -> str:
    """Drop, repeat, swap, cut, rename or overwrite columns."""
    separator = separator_of(text)
    rows = [line.split(separator) for line in text.splitlines()]
    width = max(len(rows[0]), 1)
    i, j = rng.randrange(width), rng.randrange(width)
    word = rng.choice(WORDS)
    kind = rng.choice(["drop", "repeat", "swap", "cut", "rename", "overwrite", "header", "swap header"])
    for number, row in enumerate(rows):
        if max(i, j) >= len(row):
            continue
        if kind == "drop":
            del row[i]
        elif kind == "repeat":
            row.insert(j, row[i])
        elif kind == "swap" or (kind == "swap header" and number == 0):
            row[i], row[j] = row[j], row[i]
        elif kind == "cut":
            del row[i + 1 :]
        elif kind == "rename" and number == 0:
            row[i] = rng.choice([row[i].lower(), row[i] + "X", row[j], "", word])
        elif kind == "overwrite" and number > 0:
            row[i] = word
    if kind == "header":
        del rows[0]
    return "\n".join(separator.join(row) for row in rows) + "\n"


def damage_cells(text: str, rng: random.Random) -> str:
    """Overwrite single fields, and exchange fields within a line."""
    separator = separator_of(text)
    rows = [line.split(separator) for line in text.splitlines()]
    for row in rows[1:]:
        draw = rng.random()
        if draw < 0.3:
            row[rng.randrange(len(row))] = rng.choice(WORDS)
        elif draw < 0.4:
            i, j = rng.randrange(len(row)), rng.randrange(len(row))
            row[i], row[j] = row[j], row[i]
    return "\n".join(separator.join(row) for row in rows) + "\n"


def damage_lines(text: str, rng: random.Random) -> str:
    """Drop, repeat, shuffle, cut and join lines."""
    lines = text.splitlines()
    kind = rng.choice(["drop", "repeat", "shuffle", "cut", "blank", "join", "header again", "header only"])
    if kind == "drop":
        lines = [line for line in lines if rng.random() < 0.5]
    elif kind == "repeat":
        lines = [line for line in lines for _ in range(rng.choice([1, 1, 2, 3]))]
    elif kind == "shuffle":
        rng.shuffle(lines)
    elif kind == "cut":
        lines = [line[: rng.randrange(len(line) + 1)] if rng.random() < 0.2 else line for line in lines]
    elif kind == "blank":
        lines = [part for line in lines for part in (line, "", "   ")]
    elif kind == "join":
        return " ".join(lines)
    elif kind == "header again":
        lines.insert(rng.randrange(len(lines) + 1), lines[0])
    else:
        del lines[1:]
    return "\n".join(lines) + "\n"


def damage_names(text: str, rng: random.Random) -> str:
    """Replace a word, as labels, resources and metrics have them, wherever it stands."""
    found = sorted({word for word in text.replace('"', " ").replace("=", " ").split() if len(word) > 2})
    word = rng.choice(found) if found else "x"
    return text.replace(word, rng.choice([*WORDS, word.upper(), word[:-1], word * 2]))


# Objects


def places(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[tuple[Any, Any]]]:
    """Containers and keys by path, where all items of a list have one path."""
    found: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    steps: list[tuple[Any, str]] = []
    if isinstance(value, dict):
        steps = [(key, key) for key in value]
    elif isinstance(value, list):
        steps = [(place, "[]") for place in range(len(value))]
    for key, name in steps:
        found.setdefault((*path, name), []).append((value, key))
        for inner, hits in places(value[key], (*path, name)).items():  # type: ignore[index]
            found.setdefault(inner, []).extend(hits)
    return found


def damage_json(text: str, rng: random.Random) -> str:
    """Drop, rename, overwrite, repeat and exchange values: one, some or all of a path."""
    lines = text.splitlines()
    try:
        whole, per_line = json.loads(text), False
    except ValueError:
        whole, per_line = [json.loads(line) for line in lines], True
    for _ in range(rng.choice([1, 1, 2, 5])):
        by_path = places(whole)
        if not by_path:
            break
        hits = by_path[rng.choice(sorted(by_path))]
        kind = rng.choice(["drop", "rename", "value", "value", "value", "repeat", "exchange", "wrap"])
        value, share = rng.choice(VALUES), rng.choice([0.0, 0.3, 1.0])
        chosen = [hit for hit in hits if rng.random() < share] or [rng.choice(hits)]
        for holder, key in reversed(chosen):
            if isinstance(holder, list) and key >= len(holder):
                continue
            if kind == "drop":
                del holder[key]
            elif kind == "rename" and isinstance(holder, dict):
                holder[rng.choice([str(key).upper(), f"{key}x", ""])] = holder.pop(key)
            elif kind == "repeat" and isinstance(holder, list):
                holder.insert(key, holder[key])
            elif kind == "exchange" and isinstance(holder, dict):
                other = rng.choice(sorted(holder))
                holder[key], holder[other] = holder[other], holder[key]
            elif kind == "wrap":
                holder[key] = rng.choice([[holder[key]], {"value": holder[key]}, str(holder[key])])
            else:
                holder[key] = value
    if per_line and isinstance(whole, list):
        return "\n".join(json.dumps(item) for item in whole) + "\n"
    return json.dumps(whole)


# Bytes


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, empty, recode, repack and overwrite bytes."""
    text = data.decode()
    middle = rng.randrange(max(len(data), 1))
    kinds: dict[str, Callable[[], bytes]] = {
        "truncated": lambda: data[:middle],
        "beheaded": lambda: data[middle:],
        "empty": lambda: b"",
        "blank": lambda: b"\n \n\t\n",
        "crlf": lambda: data.replace(b"\n", b"\r\n"),
        "cr": lambda: data.replace(b"\n", b"\r"),
        "bom": lambda: b"\xef\xbb\xbf" + data,
        "utf-16": lambda: text.encode("utf-16"),
        "utf-32": lambda: text.encode("utf-32"),
        "latin-1": lambda: text.replace("a", "ä").encode("latin-1", "replace"),
        "unicode": lambda: text.replace("0", "٠").encode(),
        "nul": lambda: data[:middle] + b"\x00" * 7 + data[middle:],
        "noise": lambda: bytes(byte if rng.random() < 0.999 else rng.randrange(256) for byte in data),
        "twice": lambda: data + data,
        "gzip": lambda: gzip.compress(data, mtime=0),
        "gzip cut": lambda: gzip.compress(data, mtime=0)[: max(middle // 10, 20)],
        "html": lambda: b"<html><body>502 Bad Gateway</body></html>\n",
        "error": lambda: b"slurm_load_jobs error: Unable to contact slurm controller\n",
        "warning": lambda: b"Warning: Permanently added 'login1' to the list of known hosts.\n" + data,
    }
    return kinds[rng.choice(sorted(kinds))]()


def damage_text(data: bytes, rng: random.Random) -> bytes:
    """Damage what the format says, and leave bytes alone."""
    text = data.decode()
    if text.lstrip()[:1] in ("{", "["):
        draw = rng.random()
        damage = damage_json if draw < 0.85 else damage_names
    else:
        damage = rng.choice([damage_columns, damage_columns, damage_cells, damage_cells, damage_lines, damage_names])
    return damage(text, rng).encode("utf-8", "surrogatepass")


def mutation(number: int) -> dict[str, bytes]:
    """Files of an input, one of them damaged; with each tenth number beside a file of another input."""
    rng = random.Random(number)
    names = list(INPUTS[number % len(INPUTS)])
    files = {Path(name).name: content(name) for name in names}
    hurt = Path(rng.choice([names[0], *names])).name
    if number % 10 == 9:
        other = rng.choice(rng.choice(INPUTS))
        if rng.random() < 0.5:
            files[f"other-{Path(other).name}"] = content(other)
        else:
            files[hurt] += content(other)
    elif number % 10 in (0, 5):
        files[hurt] = damage_bytes(files[hurt], rng)
    else:
        files[hurt] = damage_text(files[hurt], rng)
    return files


def write(number: int, folder: Path) -> list[str]:
    """Write the files of a mutation; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = mutation(number)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [str(folder / name) for name in files]


def outcome(number: int, folder: Path) -> str:
    """What comes of reading the files and looking into them: nothing, or the sentence of an error."""
    files = write(number, folder / "in")
    try:
        add_sources(group_files_by_source(files), folder / "data", tz="UTC")
        found = open_dataset(folder / "data")
        require_jobs(found.tables, files, folder / "data")
        summarize_dataset(str(folder / "data"))
    except GpuPlannerError as error:
        return str(error)
    assert 0 <= found.provenance["gpu_hours"] < float("inf")
    return ""


def is_sentence(text: str) -> bool:
    """Whether a message says what was expected, what came and what to do, in words of the field."""
    parts = text.partition(": expected ")[2].partition("; got ")
    words_of_python = ("object has no attribute", "not subscriptable", "unpack", "Internal error", "NoneType")
    return parts[2].endswith(".") and not any(word in text for word in words_of_python)


@pytest.mark.parametrize("number", range(0, 324, 9))
def test_a_damaged_dump_is_read_or_refused_in_words(number: int, tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GpuPlannerWarning)
        text = outcome(number, tmp_path)
    assert not text or is_sentence(text), text


@pytest.mark.long
@pytest.mark.parametrize("number", range(324))
def test_start_ends_in_a_decision_or_in_words(number: int, tmp_path: Path):
    register_commands("start")
    files, out, text = write(number, tmp_path / "in"), tmp_path / "out", ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GpuPlannerWarning)
        try:
            app(["start", *files, "--yes", "--no-page", "-o", str(out)], standalone_mode=False)
        except GpuPlannerError as error:
            text = str(error)
    assert is_sentence(text) if text else (out / "scenario.yaml").is_file(), text
