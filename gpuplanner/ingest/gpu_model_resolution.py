"""GPU models that the words of a source mean, and names in node lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples, resolve
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.catalog import all_boards, boards_called
from gpuplanner.hardware.gpu_model_names import (
    DeviceWord,
    Share,
    boards_meant,
    common_share,
    parse_device,
    profile_on,
)
from gpuplanner.hardware.gpu_models import any_board
from gpuplanner.hardware.layout_enumeration import fewest_gpus
from gpuplanner.hardware.mig_layouts import format_layout

AMBIGUOUS = "?"
"""Word for a device on a node of several kinds, of which nothing tells which one it is."""
SHARES = ("shard", "mps")
"""Resources of Slurm by which jobs share a GPU."""
SHARED = re.compile(rf"(?P<name>{'|'.join(SHARES)})(?::(?P<type>[^@]+))?(?:@(?P<parts>\d+(?:\.\d+)?))?")
"""Word for a share of a GPU, with its type and the number of such parts that the GPU has where these are stated."""
PARTITION = re.compile(r"(?P<word>[^@]+)@(?P<parts>\d+)")
"""Word for a partition of a GPU, with the number of partitions that the GPU has."""
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Device:
    """What one word for a device comes to.

    - ``board``: Board of the catalogue; None if the words do not decide it.
    - ``profile``: MIG profile, as the board lists it where that is known; None for a whole GPU.
    - ``share``: Part of a board that one such device is; None if it is not known.
    - ``maybe``: Boards that may be meant.
    """

    gpu_model: str | None
    profile: str | None
    share: Share | None
    maybe: tuple[str, ...]


@dataclass(frozen=True)
class Boards:
    """How the words of one source are read.

    - ``stated``: What the user said: word (small letters) → board, or board and MIG profile with a colon between them.
    - ``told``: Word for a board → boards that have all the MIG profiles named with it.
    - ``installed``: Boards of the inventory.
    """

    stated: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    installed: tuple[str, ...] = ()

    def device(self, word: str | None, near: Collection[str] = ()) -> Device:
        """Decide what a word for a device means.

        What the user said goes first, then the word and the profile in it, then what is installed where the device
        is, then what is installed at all, then the profiles that the source names with the same word elsewhere.

        Examples
        --------
        >>> Boards().device("a100_3g.20gb").gpu_model, round(Boards().device("1g.10gb").share.compute, 4)
        ('A100-40GB', 0.1429)
        >>> Boards(stated={"a100": "A100-80GB"}).device("a100").gpu_model
        'A100-80GB'
        >>> Boards(stated={"small": "A100-80GB:1g.10gb"}).device("small").profile
        '1g.10gb'
        >>> Boards().device("shard@4").share.compute, Boards().device("mps").share
        (0.25, None)
        """
        if word == AMBIGUOUS:
            return Device(None, None, None, tuple(near))
        if (part := SHARED.fullmatch(word or "")) is not None:
            size = None if part["parts"] is None else 1.0 / float(part["parts"])
            gpu_model = near[0] if len(near := tuple(near)) == 1 else None
            if part["type"]:
                gpu_model = self.device(part["type"], near).gpu_model or part["type"]
            profile, share = (part["name"], None) if size is None else (None, Share(size, size))
            return Device(gpu_model, profile, share, near)
        if (part := PARTITION.fullmatch(word or "")) is not None:
            whole, size = self.device(part["word"], near), 1.0 / int(part["parts"])
            return Device(whole.gpu_model, None, Share(size, size), whole.maybe)
        parts, stated = self.parts(word), (self._stated(word) or "").partition(":")[0]
        maybe = (stated,) if stated else boards_meant(parts.gpu_model, parts.profile)
        nameless = parts.gpu_model is None and parts.profile is None
        for known in (near, self.installed, self.told.get(parts.gpu_model or "", ())):
            there = {gpu_model for name in known for gpu_model in possible_boards(name)}
            here = tuple(gpu_model for gpu_model in maybe if gpu_model in there)
            maybe = (tuple(known) if nameless and not maybe else here) or maybe
        gpu_model = maybe[0] if len(maybe) == 1 else None
        profile = parts.profile and ((gpu_model and profile_on(gpu_model, parts.profile)) or parts.profile)
        return Device(gpu_model, profile, common_share(maybe, parts.profile), maybe)

    def parts(self, word: str | None) -> DeviceWord:
        """Part a word into board and MIG profile, the profile as the user said it if he did."""
        parts = parse_device(word or WHOLE_GPU)
        _, _, profile = (self._stated(word) or "").partition(":")
        return DeviceWord(parts.gpu_model, profile or parts.profile)

    def _stated(self, word: str | None) -> str | None:
        return next((self.stated[key] for key in keys_of(word) if key in self.stated), None)


def possible_boards(model: str) -> tuple[str, ...]:
    """What a model of an inventory may be: itself if the catalogue has it or nothing of its words.

    Examples
    --------
    >>> possible_boards("A100-40GB"), possible_boards("a100"), possible_boards("Tesla")
    (('A100-40GB',), ('A100-40GB', 'A100-80GB'), ('tesla',))
    """
    boards: dict[str, None] = {}
    for word in model.split("|"):
        meant = (word,) if word in all_boards() else boards_meant(parse_device(word).gpu_model, None)
        boards |= dict.fromkeys(meant or (word.lower(),))
    return tuple(boards)


def keys_of(word: str | None) -> tuple[str, ...]:
    """Keys under which the user may have said what a word means: the word itself, then its part for the board.

    Examples
    --------
    >>> keys_of("A100_1g.5gb"), keys_of(None)
    (('a100_1g.5gb', 'a100'), ('gpu',))
    """
    gpu_model = parse_device(word or WHOLE_GPU).gpu_model or WHOLE_GPU
    return tuple(dict.fromkeys(key.casefold() for key in (word or WHOLE_GPU, gpu_model)))


def stated_boards(boards: Mapping[str, str] | None) -> dict[str, str]:
    """Check what the user said of words: each is a GPU model, or with a colon behind it one of its MIG profiles.

    Examples
    --------
    >>> stated_boards({"A100": "a100-80", "gpu": "NVIDIA H100 80GB HBM3", "small": "a100-80:1g.10gb"})
    {'a100': 'A100-80GB', 'gpu': 'H100-80GB-SXM5', 'small': 'A100-80GB:1g.10gb'}
    """
    found: dict[str, str] = {}
    for word, text in (boards or {}).items():
        name, _, stated = text.partition(":")
        where, called = f"GPU model of {word!r}", boards_called(name)
        if len(called) > 1:
            got = f"{name!r}: {examples(called)}"
            raise TraceFormatError(where, "one GPU model", got, "Name one of them.")
        gpu_model = called[0] if called else resolve(name, all_boards(), what="board", error=TraceFormatError)
        profile = profile_on(gpu_model, stated) if stated else None
        if stated and profile is None:
            known = [one.name for one in any_board(gpu_model).profiles]
            expected, todo = f"no profile: {gpu_model} has none", f"Give --map-gpu {word}={name} alone."
            if known:
                expected, todo = f"a MIG profile of {gpu_model}: {', '.join(known)}", "Name one of them."
            raise TraceFormatError(where, expected, repr(stated), todo)
        found[word.casefold()] = f"{gpu_model}:{profile}" if profile else gpu_model
    return found


def layouts_on(boards: Collection[str], counts: Mapping[str, int]) -> list[str] | None:
    """Layouts of the fewest GPUs that hold some instances; None where the boards that may be meant differ in it.

    Examples
    --------
    >>> layouts_on(["A100-40GB"], {"1g.5gb": 9}), layouts_on([], {"1g.5gb": 9})
    (['1g.5gb:7', '1g.5gb:2'], None)
    """
    found = [fewest_gpus(gpu_model, counts) for gpu_model in boards]
    if not found or any(cut is None or len(cut) != len(found[0] or ()) for cut in found):
        return None
    return [format_layout(cut) for cut in found[0] or ()]


def told_by_profiles(words: Iterable[DeviceWord]) -> dict[str, tuple[str, ...]]:
    """Boards that have all the MIG profiles which a source names with one word for the board.

    Examples
    --------
    >>> told_by_profiles([parse_device("a100_1g.5gb"), parse_device("a100"), parse_device("h100")])
    {'a100': ('A100-40GB',)}
    """
    fits: dict[str, list[tuple[str, ...]]] = {}
    for gpu_model, profile in sorted({(word.gpu_model or "", word.profile or "") for word in words}):
        if gpu_model and profile:
            fits.setdefault(gpu_model, []).append(boards_meant(gpu_model, profile))
    common = {word: tuple(b for b in each[0] if all(b in other for other in each)) for word, each in fits.items()}
    return {word: boards for word, boards in common.items() if boards and boards_called(word)}


MAX_NODES = 100_000
GROUP = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\s-]*)\])?([^\[\],\s]*)(?:,\s*|$)")


def expand_node_list(text: str) -> list[str]:
    """Names in a node list of Slurm, or in a list with commas.

    Examples
    --------
    >>> expand_node_list("n[01-03,7],login1")
    ['n01', 'n02', 'n03', 'n7', 'login1']
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = GROUP.match(text, position)
        if match is None or match.end() == position or len(names) > MAX_NODES:
            todo = "Expand it: scontrol show hostnames."
            raise TraceFormatError("node list", "names like n[01-03,7]", repr(text[:80]), todo)
        head, numbers, tail = match.groups()
        names += [f"{head}{number}{tail}" for number in (_numbers(numbers) if numbers else [""])]
        position = match.end()
    return names


def known_nodes(text: str) -> list[str] | None:
    """Names in a node list; None where it names none or cannot be read.

    Examples
    --------
    >>> known_nodes("n[1-2]"), known_nodes("n[1")
    (['n1', 'n2'], None)
    """
    try:
        return expand_node_list(text) or None
    except TraceFormatError:
        return None


def nodes_of_lists(jobs: pl.DataFrame) -> pl.DataFrame:
    """Each different node list of some jobs with the names in it: ``node_list, node``."""
    lists = jobs["node_list"].drop_nulls().unique()
    schema = {"node_list": lists.dtype, "node": pl.List(pl.String)}
    return pl.DataFrame({"node_list": lists, "node": [known_nodes(text) for text in lists]}, schema=schema)


def on_nodes(jobs: pl.DataFrame) -> pl.DataFrame:
    """One row for each job and node, the GPUs of a job spread evenly over its nodes.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [8.0, 1.0], "node_list": ["n[1-2]", None]})
    >>> on_nodes(jobs).select("job_id", "node", "gpus").rows()
    [('1', 'n1', 4.0), ('1', 'n2', 4.0), ('2', None, 1.0)]
    """
    spread = jobs.join(nodes_of_lists(jobs), on="node_list", how="left", maintain_order="left")
    many = pl.col("node").list.len().fill_null(1)
    counted = [name for name in ("gpus", "instances") if name in jobs.columns]
    return spread.with_columns(pl.col(counted) / many).explode("node")


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.replace(" ", "").split(","):
        first, dash, end = part.partition("-")
        last = end if dash else first
        if not (first.isdigit() and last.isdigit()) or int(last) - int(first) > MAX_NODES:
            raise TraceFormatError("node list", "ranges like 01-03", repr(part), "Expand it.")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
