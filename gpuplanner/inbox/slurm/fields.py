"""Fields of Slurm accounting: states, trackable resources (TRES), durations, lists of fields of known tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from gpuplanner.catalog.loader import facts
from gpuplanner.inbox.core.boards import SHARES
from gpuplanner.inbox.core.lines.json_items import is_json
from gpuplanner.inbox.core.shares import device_words
from gpuplanner.inbox.core.source import header_has

STATES: dict[str, str] = dict(facts("slurm_states").select("state", "ours").iter_rows())
"""State of Slurm → ours. A suspended or stopped job keeps its GPUs; a requeued one lost them."""

NO_VALUE = ("", "Unknown", "None", "N/A", "None assigned", "(null)")
"""What sacct prints where there is nothing."""

UNSET = (0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
"""Slurm's NO_VAL and INFINITE, 32 and 64 bit: not set, and without limit."""

SONAR_FIELDS = (
    "JobID|JobIDRaw|User|Account|State|Start|End|AveCPU|AveDiskRead|AveDiskWrite|AveRSS|AveVMSize|ElapsedRaw"
    "|ExitCode|Layout|MaxRSS|MaxVMSize|MinCPU|ReqCPUS|ReqMem|ReqNodes|Reservation|Submit|Suspended|SystemCPU"
    "|TimelimitRaw|UserCPU|NodeList|Partition|AllocTRES|Priority|JobName"
)
"""Fields that NordicHPC Sonar asks of sacct, without a header line."""

XDMOD_FIELDS = (
    "JobID|JobIDRaw|Cluster|Partition|QOS|Account|Group|GID|User|UID|Submit|Eligible|Start|End|Elapsed|ExitCode"
    "|State|NNodes|NCPUS|ReqCPUS|ReqMem|ReqTRES|AllocTRES|Timelimit|NodeList|JobName"
)
"""Fields that Open XDMoD asks of sacct, without a header line."""

FIELD_LISTS = tuple(text.split("|") for text in (SONAR_FIELDS, XDMOD_FIELDS))

SACCT_NAMES = frozenset(
    {"jobid", "jobidraw", "state", "submit", "eligible", "start", "end", "elapsed", "elapsedraw"}
    | {"alloctres", "reqtres", "allocgres", "nodelist"}
)
"""Fields of sacct, in small letters, a few of which tell its header line."""
FEWEST_NAMES = 3

INSTANT_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d\d:?\d\d)?|\d{9,11}")
SLURM_JSON = re.compile(r'"(?:slurm_)?jobs"\s*:\s*\[')
OTHER_JSON = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')
TYPED_GPU = re.compile(r"gres/gpu:(.+)")
SHARE_OF_GPU = re.compile(r"gres/(shard|mps)(?::(.+))?")


@dataclass(frozen=True)
class Tres:
    """GPUs and nodes of one TRES text.

    - ``gpus``: Number of devices, GPUs and MIG instances alike: the untyped count where there is one, else the sum of
      the typed ones: never both. None where the devices are shares of GPUs (``gres/shard``, ``gres/mps``), whose size
      the node states.
    - ``types``: Number of different GPU types.
    - ``typed``: Sum of the typed counts.
    - ``devices``: Types and their counts, as :data:`gpuplanner.inbox.core.shares.DEVICES` has them.
    - ``nodes``: Number of nodes.
    """

    gpus: float | None
    types: int
    typed: float
    devices: str | None
    nodes: int | None


def parse_tres(text: str) -> Tres:
    """Read a TRES text such as ``billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G,node=1``.

    Examples
    --------
    >>> parse_tres("cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1").gpus
    4.0
    >>> parse_tres("gres/gpu:a100=2,gres/gpu:nvidia_a100_3g.20gb=1").devices
    'a100=2,nvidia_a100_3g.20gb=1'
    >>> parse_tres("cpu=4,gres/shard=2,gres/shard:a100=2").devices
    'shard:a100=2'
    """
    untyped: int | None = None
    nodes: int | None = None
    typed: dict[str, int] = {}
    shares: dict[str, int] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not (name and equals and value):
            raise ValueError(item)
        if name == "gres/gpu":
            untyped = _count(value)
        elif name == "node":
            nodes = _count(value)
        elif match := TYPED_GPU.fullmatch(name):
            typed[match[1]] = typed.get(match[1], 0) + _count(value)
        elif match := SHARE_OF_GPU.fullmatch(name):
            shares[name.removeprefix("gres/")] = _count(value)
    total = sum(typed.values())
    for name in SHARES:
        # Like GPUs, shares may be counted both with and without a type.
        of_types = sum(count for word, count in shares.items() if word.startswith(f"{name}:"))
        shares[name] = max(shares.get(name, 0) - of_types, 0)
    shared = device_words(dict(sorted(shares.items())))
    return Tres(
        gpus=None if shared else float(total if untyped is None else untyped),
        types=len(typed),
        typed=float(total),
        devices=shared or device_words(dict(sorted(typed.items()))),
        nodes=nodes,
    )


def _count(text: str) -> int:
    """A number of things: decimal digits, and no more of them than a 32-bit table column holds."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(text)
    return int(text)


def slurm_state(text: str) -> str | None:
    """Our state for one of Slurm's; None if it is unknown.

    Examples
    --------
    >>> slurm_state("CANCELLED by 380693"), slurm_state("OUT_OF_ME+"), slurm_state("LOST")
    ('CANCELLED', 'OUT_OF_MEMORY', None)
    """
    word = text.split(" ")[0]
    if not word.endswith("+"):
        return STATES.get(word)
    ours = {state for name, state in STATES.items() if name.startswith(word[:-1]) and len(word) > 3}
    return ours.pop() if len(ours) == 1 else None


def duration_s(text: pl.Expr) -> pl.Expr:
    """Seconds of ``[days-][hours:]minutes:seconds``; null where it is no such text.

    Examples
    --------
    >>> pl.select(duration_s(pl.lit("10-13:27:06"))).item()
    912426.0
    """
    parts = text.str.extract_groups(r"^(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d{1,6})?)$")
    days, hours, minutes, rest = (parts.struct.field(str(place)).cast(pl.Float64) for place in range(1, 5))
    return days.fill_null(0) * 86400 + hours.fill_null(0) * 3600 + minutes * 60 + rest


def known_fields(lines: Sequence[str]) -> list[str] | None:
    """Field names of a file without a header line, from the number of fields and what stands in them.

    Examples
    --------
    >>> known_fields(["JobID|State|Submit"]) is None
    True
    """
    for names in FIELD_LISTS:
        if 2 * sum(_fits(line, names) for line in lines) > len(lines):
            return list(names)
    return None


def _fits(line: str, names: Sequence[str]) -> bool:
    values = dict(zip(names, line.split("|", len(names) - 1), strict=False))
    return (
        len(values) == len(names)
        and slurm_state(values["State"]) is not None
        and INSTANT_PATTERN.fullmatch(values["Submit"]) is not None
    )


def looks_like_slurm(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like output of sacct, as text or JSON.

    Examples
    --------
    >>> looks_like_slurm(["JobID|State|Start"]), looks_like_slurm(['{"meta": {}, "jobs": [']), looks_like_slurm(["a,b"])
    (True, True, False)
    """
    if is_json(lines):
        text = "\n".join(lines)
        return SLURM_JSON.search(text) is not None and not OTHER_JSON.search(text)
    header = {name.strip().casefold() for name in lines[0].split("|")}
    return (
        any(header_has([name, "State"], "|")(lines) for name in ("JobID", "JobIDRaw"))
        or len(header & SACCT_NAMES) >= FEWEST_NAMES
        or known_fields(lines) is not None
    )
