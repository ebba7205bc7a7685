"""At most three questions, each with a default; where nobody can answer, the default is taken and said."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from gpuplanner.cli.start.telling import line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplanner.inbox.together import SourcePart

UTC = "UTC"
OFFSET_HOURS = 14


@dataclass
class Asker:
    """Asks on a terminal, and takes defaults elsewhere.

    - ``asks``: Whether somebody is there who may be asked.
    - ``talks``: Whether anything is said.
    """

    asks: bool
    talks: bool

    @classmethod
    def of(cls, *, yes: bool, talks: bool) -> Asker:
        """One who asks if there is a terminal and nobody forbade it."""
        return cls(asks=talks and not yes and sys.stdin.isatty() and sys.stderr.isatty(), talks=talks)

    def said(self, label: str, value: str, basis: str) -> None:
        """Say what is taken, and why."""
        if self.talks:
            line(label, f"{value:<14} {basis}")

    def answer(
        self, label: str, question: str, default: str, check: Callable[[str], str]
    ) -> tuple[str, bool]:
        """The answer to a question, as checked, and whether somebody gave it."""
        if not self.asks:
            return default, False
        while True:
            text = typer.prompt(
                f"{label:<8}{question} [Enter = {default}]", default=default, show_default=False, err=True
            )
            try:
                return check(text.strip()), True
            except ValueError as fault:
                line("", str(fault))


def zone(
    asker: Asker, parts: tuple[SourcePart, ...], stated: str | None
) -> tuple[str | None, str | None, str]:
    """Zone to read naive times in, if there are any; the zone of calendar months, if files say; what both rest on."""
    from gpuplanner.inbox.together import offsets_of

    if stated is not None:
        return stated, stated, "as stated"
    offsets, naive = offsets_of(parts)
    if naive is None:
        return None, zone_of(offsets) if offsets else None, "from the offsets in the file; --tz to change"
    question = f"times such as {naive!r} state no zone; which is it?"
    found, given = asker.answer("Zone", question, UTC, known_zone)
    return (
        found,
        found,
        "as answered" if given else f"taken: times such as {naive} state none; --tz to change",
    )


def zone_of(offsets: tuple[str, ...]) -> str:
    """Name of the zone of one offset of whole hours; UTC for others, and where there are several.

    Examples
    --------
    >>> zone_of(("+01:00",)), zone_of(("Z",)), zone_of(("+01:00", "+02:00"))
    ('Etc/GMT-1', 'UTC', 'UTC')
    """
    if len(offsets) != 1 or offsets[0] in ("Z", UTC):
        return UTC
    sign, digits = offsets[0][0], offsets[0][1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours == 0 or minutes or hours > OFFSET_HOURS:
        return UTC
    return f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"  # POSIX: the sign is the other way round


def known_zone(text: str) -> str:
    """A zone of the tz database."""
    from gpuplanner.inbox.core.times import known_zone as checked

    checked(text)
    return text


def board(asker: Asker) -> str | None:
    """Board of GPUs that nobody names; None: nothing is said of cutting them."""
    from gpuplanner.catalog.loader import find_any_board

    none = "none"
    found, given = asker.answer(
        "Board", "nothing in the data names it; which is it?", none,
        lambda text: none if text == none else find_any_board(text),
    )  # fmt: skip
    basis = "as answered" if given else "the data name none: whole GPUs, not cut; --board to change"
    asker.said("Board", found, basis)
    return None if found == none else found


def ownership(asker: Asker, path: str) -> str:
    """Who pays for the GPUs."""
    from gpuplanner.names import resolve
    from gpuplanner.paths import OWNED, OWNERSHIPS, RENTED

    usual = RENTED if path == "autoscaler" else OWNED
    found, given = asker.answer(
        "Owned?", f"nothing in the data says so; {' / '.join(OWNERSHIPS)}?", usual,
        lambda text: resolve(text, OWNERSHIPS, what="ownership"),
    )  # fmt: skip
    asker.said(
        "Owned?", found, "as answered" if given else "taken: the data do not say; --set ownership=… to change"
    )
    return found
