"""Words of a source → boards of the catalogue, decided once for all figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpuplanner.catalog.aliases import all_boards, boards_called
from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.hardware.names import DeviceWord, Share, boards_meant, common_share, parse_device, profile_on
from gpuplanner.hardware.whole_boards import any_board
from gpuplanner.hardware.spread import fewest_gpus
from gpuplanner.hardware.layout import format_layout
from gpuplanner.names import resolve
from gpuplanner.schemas.vocabulary import WHOLE_GPU

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

    board: str | None
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
        >>> Boards().device("a100_3g.20gb").board, round(Boards().device("1g.10gb").share.compute, 4)
        ('A100-40GB', 0.1429)
        >>> Boards(stated={"a100": "A100-80GB"}).device("a100").board
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
            board = near[0] if len(near := tuple(near)) == 1 else None
            if part["type"]:
                board = self.device(part["type"], near).board or part["type"]
            profile, share = (part["name"], None) if size is None else (None, Share(size, size))
            return Device(board, profile, share, near)
        if (part := PARTITION.fullmatch(word or "")) is not None:
            whole, size = self.device(part["word"], near), 1.0 / int(part["parts"])
            return Device(whole.board, None, Share(size, size), whole.maybe)
        parts, stated = self.parts(word), (self._stated(word) or "").partition(":")[0]
        maybe = (stated,) if stated else boards_meant(parts.board, parts.profile)
        nameless = parts.board is None and parts.profile is None
        for known in (near, self.installed, self.told.get(parts.board or "", ())):
            there = {board for name in known for board in possible_boards(name)}
            here = (
                tuple(known) if nameless and not maybe else tuple(board for board in maybe if board in there)
            )
            maybe = here or maybe
        board = maybe[0] if len(maybe) == 1 else None
        profile = parts.profile and ((board and profile_on(board, parts.profile)) or parts.profile)
        return Device(board, profile, common_share(maybe, parts.profile), maybe)

    def parts(self, word: str | None) -> DeviceWord:
        """Part a word into board and MIG profile, the profile as the user said it if he did."""
        parts = parse_device(word or WHOLE_GPU)
        _, _, profile = (self._stated(word) or "").partition(":")
        return DeviceWord(parts.board, profile or parts.profile)

    def _stated(self, word: str | None) -> str | None:
        return next((self.stated[key] for key in keys_of(word) if key in self.stated), None)


def possible_boards(model: str) -> tuple[str, ...]:
    """What a model of an inventory may be: itself if the catalogue has it or nothing of its words.

    Examples
    --------
    >>> possible_boards("A100-40GB"), possible_boards("a100"), possible_boards("Tesla")
    (('A100-40GB',), ('A100-40GB', 'A100-80GB'), ('tesla',))
    """
    words = model.split("|")
    meant = [
        (word,) if word in all_boards() else boards_meant(parse_device(word).board, None) for word in words
    ]
    return tuple(
        dict.fromkeys(b for word, boards in zip(words, meant, strict=True) for b in boards or (word.lower(),))
    )


def keys_of(word: str | None) -> tuple[str, ...]:
    """Keys under which the user may have said what a word means: the word itself, then its part for the board.

    Examples
    --------
    >>> keys_of("A100_1g.5gb"), keys_of(None)
    (('a100_1g.5gb', 'a100'), ('gpu',))
    """
    board = parse_device(word or WHOLE_GPU).board or WHOLE_GPU
    return tuple(dict.fromkeys(key.casefold() for key in (word or WHOLE_GPU, board)))


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
            raise TraceFormatError(message(where, "one GPU model", got, "Name one of them."))
        board = called[0] if called else resolve(name, all_boards(), what="board", error=TraceFormatError)
        profile = profile_on(board, stated) if stated else None
        if stated and profile is None:
            known = [one.name for one in any_board(board).profiles]
            expected = (
                f"a MIG profile of {board}: {', '.join(known)}" if known else f"no profile: {board} has none"
            )
            todo = "Name one of them." if known else f"Say {word}={name} alone."
            raise TraceFormatError(message(where, expected, repr(stated), todo))
        found[word.casefold()] = f"{board}:{profile}" if profile else board
    return found


def layouts_on(boards: Collection[str], counts: Mapping[str, int]) -> list[str] | None:
    """Layouts of the fewest GPUs that hold some instances; None where the boards that may be meant differ in it.

    Examples
    --------
    >>> layouts_on(["A100-40GB"], {"1g.5gb": 9}), layouts_on([], {"1g.5gb": 9})
    (['1g.5gb:7', '1g.5gb:2'], None)
    """
    found = [fewest_gpus(board, counts) for board in boards]
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
    for board, profile in sorted({(word.board or "", word.profile or "") for word in words}):
        if board and profile:
            fits.setdefault(board, []).append(boards_meant(board, profile))
    common = {
        word: tuple(b for b in each[0] if all(b in other for other in each)) for word, each in fits.items()
    }
    return {word: boards for word, boards in common.items() if boards and boards_called(word)}
