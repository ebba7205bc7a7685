"""The page of the claims: every verdict at a glance, then each claim with its figures and what limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.files import MANIFEST, Mark, replaced_directory, to_json
from gpuplanner.lab.claims.chart import plot_claimed
from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.record import record_of
from gpuplanner.lab.claims.verdict import VERDICTS
from gpuplanner.report import page

Tested = tuple[PublishedClaim, Measured]
MARK = Mark(MANIFEST, "gpuplanner claims 1", names=("index.html", "claims.json"))
NEEDED = {"altair": "plot", "vl_convert": "plot"}
"""Optional packages that the page takes, and the extras that bring them."""
HEADINGS = {
    "claimed_low": "claimed, least",
    "claimed_high": "claimed, most",
    "low": "low (95\N{NO-BREAK SPACE}%)",
    "high": "high (95\N{NO-BREAK SPACE}%)",
    "holds": "within the claim?",
}


def write_page(out: Path, tested: Sequence[Tested], conditions: Conditions) -> None:
    """Write ``index.html`` and ``claims.json``, the same figures twice, and a manifest."""
    with replaced_directory(out, mark=MARK) as folder:
        (folder / "index.html").write_text(page_of(tested, conditions), encoding="utf-8")
        records = {"claims": [record_of(*each) for each in tested]}
        (folder / "claims.json").write_text(to_json(records), encoding="utf-8")


def page_of(tested: Sequence[Tested], conditions: Conditions) -> str:
    """One page that needs nothing else: an overview, and a section for each claim."""
    said = Counter(measured.verdict for _, measured in tested)
    verdicts = "\n".join(
        f'<div><dt>{verdict}</dt><dd class="value">{said[verdict]}</dd></div>'
        for verdict in VERDICTS
        if said[verdict]
    )
    cards = f'<dl class="cards">\n{verdicts}\n</dl>'
    body = [
        page.section("Verdicts", cards, _listed(*(_at_a_glance(*each) for each in tested))),
        *(section_of(claim, measured) for claim, measured in tested),
    ]
    return page.render_page(
        "\n".join(body),
        title="Published claims put to the test",
        subtitle="What vendors and papers say, and what comes out when it is measured.",
        provenance={
            "first seed": str(conditions.seed),
            "seeds": "as each claim names" if conditions.seeds is None else str(conditions.seeds),
            "public traces": "none" if conditions.public is None else "those that GPUPLANNER_DATA names",
            "own data": conditions.own or "none",
            "made with": f"gpuplanner {__version__}",
        },
    )


def section_of(claim: PublishedClaim, measured: Measured) -> str:
    """What is claimed, the verdict and why, the figures, and what limits them."""
    facts = {
        "claimed by": claim.source,
        "measured on": claim.on,
        "again by": f"gpuplanner claims {claim.name}",
    }
    verdict = f"<strong>Verdict: {escape(measured.verdict)}.</strong> {_text(measured.why)}"
    parts = [
        f"<p>{_text(claim.words)}</p>",
        f'<p class="note">{verdict}</p>',
        _figures(measured),
        *(_folded(title, frame) for title, frame in measured.tables.items()),
        _listed(*map(_text, measured.remarks)),
        '<dl class="facts">'
        + "".join(f"<dt>{escape(key)}</dt><dd>{_text(value)}</dd>" for key, value in facts.items())
        + "</dl>",
    ]
    return page.section(claim.title, *filter(None, parts))


def _at_a_glance(claim: PublishedClaim, measured: Measured) -> str:
    head = f"<strong>{escape(claim.title)}: {escape(measured.verdict)}.</strong>"
    return f"{head} {_text(claim.words)} <em>{_text(measured.why)}</em>"


def _listed(*items: str) -> str:
    rows = "\n".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="findings">\n{rows}\n</ul>' if items else ""


def _text(text: str) -> str:
    """Escaped, with each number beside its unit."""
    return escape(text).replace(" %", "\N{NO-BREAK SPACE}%")


def _figures(measured: Measured) -> str:
    if measured.figures.is_empty():
        return ""
    shown = measured.figures.with_columns(
        pl.col("holds").replace_strict(
            {True: "yes", False: "no"}, default="cannot tell", return_dtype=pl.String
        )
    )
    numbers = ("claimed_low", "claimed_high", "measured", "low", "high")
    table = page.table(
        shown,
        caption="The same in numbers",
        headings=HEADINGS,
        formats=dict.fromkeys(numbers, ",.4g"),
    )
    said = Counter(shown["holds"])
    counted = f"Within the claim {said['yes']} of {shown.height} figures, outside {said['no']}"
    chart = page.figure(
        plot_claimed(measured.figures),
        title="Claimed and measured",
        alt=f"{counted}. Grey: as claimed. Mark: as measured, with its 95 % interval.",
    )
    return chart + table


def _folded(title: str, frame: pl.DataFrame) -> str:
    numbers = {name: ",.4g" for name, dtype in frame.schema.items() if dtype.is_float()}
    rows = page.table(frame, caption=title, formats=numbers)
    return f"<details><summary>{escape(title[:1].upper() + title[1:])}</summary>\n{rows}\n</details>"
