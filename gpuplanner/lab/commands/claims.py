"""``claims``: what vendors and papers say, where they say it, and what comes out when it is measured."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Quiet, Seed
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from gpuplanner.lab.claims import Measured, PublishedClaim

ALL = "all"
WIDTH = 100


@app.command()
def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Claims to put to the test, or 'all' quick ones; none lists what there is.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to write a page and claims.json into.")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="With 'all': those that take minutes, too.")] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="Your own dataset, for claims that can be tested on one."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="How many seeds; else as many as the claim names.")
    ] = None,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List published claims, or measure some of them and say whether they hold."""
    from gpuplanner.lab.claims.published import every_claim

    known = every_claim()
    if not names:
        _refuse({"-o": out, "--long": long or None, "--data": data, "--seeds": seeds, "--seed": seed})
        _list(known.values(), as_json=as_json, quiet=quiet)
        return
    chosen = _chosen(names, known, long=long)
    if seeds is not None and all(claim.seeds is None for claim in chosen):
        text = f"--seeds: nothing in {chosen[0].name} is random"
        raise typer.BadParameter(text)
    if data is not None and not any(claim.takes_own_data for claim in chosen):
        own = ", ".join(claim.name for claim in known.values() if claim.takes_own_data)
        text = f"--data: none of these can be measured on data of your own; this can: {own}"
        raise typer.BadParameter(text)
    _measure(chosen, out, data, seeds, seed or 0, as_json=as_json, quiet=quiet)


def _refuse(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        text = f"{', '.join(given)}: without meaning where no claim is named"
        raise typer.BadParameter(text)


def _list(claims: Iterable[PublishedClaim], *, as_json: bool, quiet: bool) -> None:
    facts = [claim.facts() for claim in claims]
    if as_json:
        show({"claims": facts}, as_json=True)
        return
    for each in facts:
        put(f"{each['name']} ({each['takes']})")
        for text in (each["words"], f"Source: {each['source']}.", f"On: {each['on']}."):
            put(_filled(text, "  ", "    "))
    if not quiet:
        say("'gpuplanner claims NAME' measures one, 'gpuplanner claims all -o FOLDER' writes a page of them")


def _chosen(names: list[str], known: Mapping[str, PublishedClaim], *, long: bool) -> list[PublishedClaim]:
    """The claims that were named, each once, in the order of the list."""
    from gpuplanner.errors import ScenarioError
    from gpuplanner.names import resolve

    if names == [ALL]:
        return [claim for claim in known.values() if long or not claim.long]
    if long:
        text = "--long goes with 'all': a claim that is named is measured however long it takes"
        raise typer.BadParameter(text)
    if ALL in names:
        text = f"'{ALL}' stands alone"
        raise typer.BadParameter(text)
    wanted = {resolve(name, known, what="claim", error=ScenarioError) for name in names}
    return [claim for name, claim in known.items() if name in wanted]


def _measure(
    chosen: list[PublishedClaim],
    out: Path | None,
    data: str | None,
    seeds: int | None,
    seed: int,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure, print, and write the page if it is wanted."""
    from gpuplanner.lab.claims import Conditions, put_to_the_test
    from gpuplanner.lab.claims.record import record_of

    folder = os.environ.get("GPUPLANNER_DATA")
    conditions = Conditions(seed, seeds, Path(folder) if folder else None, data)
    with contextlib.ExitStack() as held:
        if out is not None:
            _hold(out, held)
        found = []
        for claim in chosen:
            if not quiet:
                say(f"{claim.name}: takes {claim.takes}")
            found.append((claim, put_to_the_test(claim, conditions)))
            if not as_json:
                _print(*found[-1])
        if as_json:
            show({"claims": [record_of(*each) for each in found]}, as_json=True)
        if out is not None:
            from gpuplanner.lab.claims.page import write_page

            write_page(out, found, conditions)
            if not quiet:
                say(f"written: {out / 'index.html'}")


def _hold(out: Path, held: contextlib.ExitStack) -> None:
    """Miss an optional part, or find the place taken, before the measuring and not behind it."""
    from gpuplanner._optional import import_optional
    from gpuplanner.files import held_directory
    from gpuplanner.lab.claims.page import MARK, NEEDED

    for name, extra in NEEDED.items():
        import_optional(name, extra=extra)
    held.enter_context(held_directory(out, mark=MARK))


def _print(claim: PublishedClaim, measured: Measured) -> None:
    put(f"{claim.name}\n{'=' * len(claim.name)}")
    put(_filled(claim.words))
    put(_filled(f"Source: {claim.source}.", "", "  "))
    put(_filled(f"On: {claim.on}.", "", "  "))
    put(f"\nVerdict: {measured.verdict}")
    put(_filled(measured.why) + "\n")
    if measured.figures.height:
        show_frame(measured.figures, as_json=False, title="claimed and measured")
    for title, frame in measured.tables.items():
        show_frame(frame, as_json=False, title=title)
    for remark in measured.remarks:
        put(_filled(remark, "- ", "  "))
    if measured.remarks:
        put("")


def _filled(text: str, first: str = "", rest: str = "") -> str:
    tied = text.replace(" %", "\N{NO-BREAK SPACE}%")  # a number stays with its unit
    filled = textwrap.fill(tied, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")
