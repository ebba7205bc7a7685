"""A report as a message: text, HTML, Markdown and PDF."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from html import escape, unescape
from importlib import resources
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import OutputError, escape_controls
from gpuplanner.core.schemas import TABLES
from gpuplanner.core.units import localize_text
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.study import Study
from gpuplanner.report.first_screen import Links, cards, confidence_rows, fleet_words, next_steps, teams_table

STYLE = "font-family:sans-serif;font-size:15px;line-height:1.45;color:#1a1a1a;max-width:40em"


def report_mail(study: Study, page: str, *, at: str | None = None, fleet: str = "") -> str:
    """The message, for ``sendmail -t`` but for the addresses.

    `page` is the file of the report in the folder of all reports, `at` the address of that folder where it is served;
    `fleet` says which nodes came and went.
    """
    name = " ".join(escape_controls(study.scenario.name).split())
    month = study.scenario.month or "all data"
    locale = study.scenario.number_locale
    findings = [localize_text(escape_controls(one), locale) for one in (*study.findings, *filter(None, [fleet]))]
    steps = [localize_text(escape_controls(one.text), locale) for one in study.decision.next_steps]
    address = None if at is None else f"{at.rstrip('/')}/{page}"
    where = f"{page} in the report folder" if address is None else address
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["Subject"] = f"GPU report {month}: {name}"
    message["Auto-Submitted"] = "auto-generated"
    text = [*(f"{number}. {one}" for number, one in enumerate(findings, start=1)), ""]
    text += ["Next steps:", *(f"- {one}" for one in steps), ""] if steps else []
    message.set_content("\n".join([*text, f"Report: {where}", ""]))
    link = escape(where) if address is None else f'<a href="{escape(address)}">{escape(address)}</a>'
    message.add_alternative(_html(f"{name}, {month}", findings, steps, link), subtype="html")
    for number, part in enumerate(message.walk()):
        if part.is_multipart():
            part.set_boundary(f"=_gpuplanner_{number}")  # or each run draws another one
    return message.as_string()


def _html(title: str, findings: list[str], steps: list[str], link: str) -> str:
    def listed(tag: str, lines: list[str]) -> str:
        return f"<{tag}>{''.join(f'<li>{escape(one)}</li>' for one in lines)}</{tag}>"

    todo = f"<p>Next steps:</p>{listed('ul', steps)}" if steps else ""
    return (
        f'<html lang="en"><body style="{STYLE}"><h1 style="font-size:20px">{escape(title)}</h1>'
        f"{listed('ol', findings)}{todo}<p>Report: {link}</p></body></html>\n"
    )


LONGEST_MESSAGE = 3000
"""Characters of a message: what chat programs take."""
BROWSER = "GPUPLANNER_BROWSER"
"""Names the browser that prints; empty: none does."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 300
_TAG = re.compile(r"<[^>]*>")
_WHEN = re.compile(rb"/(CreationDate|ModDate) \(D:[^)]*\)")
_PART = re.compile(rb"\(node\d{8}\)")


def plain(html: str) -> str:
    """The words of a fragment.

    Examples
    --------
    >>> plain("<b>8 &lt; 9</b> <i>GPUs</i>")
    '8 < 9 GPUs'
    """
    return " ".join(unescape(_TAG.sub("", html.replace("<br>", " "))).split())


def message_text(found: Comparison, title: str, period: str, links: Links, doubts: Sequence[str] = ()) -> str:
    """The decision as a message of at most :data:`LONGEST_MESSAGE` characters; what matters least is left out first."""
    one = found.decision
    parts = [
        [f"{title}, {period}, {fleet_words(one)}", "", one.sentence, ""],
        [f"{label}: {value}" + (f" ({detail})" if detail else "") for label, value, detail in _cards(found)],
        ["", "Next steps:", *(f"{number}. {step}" for number, step in enumerate(next_steps(one, links), start=1))],
        ["", *(f"{name}: {text}" for name, text in confidence_rows(one, doubts))],
        ["", "GPU-hours allocated by team:", *(f"{row[0]}: {row[2]}" for row in teams_table(one).rows())],
    ]
    lines: list[str] = []
    for part in parts:
        if len("\n".join([*lines, *part])) > LONGEST_MESSAGE:
            lines += ["", "The report has more."]
            break
        lines += part
    return "\n".join(lines)[:LONGEST_MESSAGE].rstrip() + "\n"


def markdown_text(found: Comparison, title: str, period: str, links: Links, doubts: Sequence[str] = ()) -> str:
    """The decision as Markdown: for a wiki, an issue or a commit."""
    one = found.decision
    lines = [f"# {_cell(title)}", "", f"**{_cell(one.sentence)}**", ""]
    lines += [_cell(f"{period}, {fleet_words(one)}"), "", "| | | |", "|---|---|---|"]
    lines += [f"| {_cell(label)} | **{_cell(value)}** | {_cell(detail)} |" for label, value, detail in _cards(found)]
    lines += ["", "## Next steps", ""]
    lines += [f"{number}. {_cell(step)}" for number, step in enumerate(next_steps(one, links), start=1)]
    table = teams_table(one)
    if table.height:
        head = table.columns
        lines += ["", "## By team", "", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
        lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in table.rows()]
    lines += ["", *(f"**{name}.** {_cell(text)}\n" for name, text in confidence_rows(one, doubts))]
    lines.append(" · ".join(f"[{name}]({path})" for name, path in (("Page", "index.html"), *links)))
    return "\n".join(lines) + "\n"


def tables_into(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write every table as Parquet, and a page with the unit and the meaning of their columns."""
    folder.mkdir(parents=True)
    lines = ["# Tables of this report", "", "Times are UTC; an empty value is not known, never 0.", ""]
    text = (resources.files(__package__) / "table_columns.csv").read_text("utf-8").splitlines()
    meanings = {row["column"]: row for row in csv.DictReader(text)}
    for name, table in sorted(tables.items()):
        if not table.width:
            continue
        table.write_parquet(folder / f"{name}.parquet")
        lines += [f"## {name}.parquet", "", f"{table.height:,} rows.", ""]
        lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        stated = (
            {key: column.metadata for key, column in TABLES[name].columns().items()} if name in TABLES else meanings
        )
        for one, dtype in table.schema.items():
            about = stated.get(one) or {"unit": "", "meaning": "own column of this report"}
            lines.append(f"| `{one}` | {dtype.base_type()} | {about['unit'] or '-'} | {about['meaning']} |")
        lines.append("")
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def browser() -> str | None:
    """The browser that can print a page; None where there is none, or none is wanted."""
    named = os.environ.get(BROWSER)
    if named is not None:
        return named or None
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def pdf_into(page: Path, out: Path, program: str) -> None:
    """Print a page, its folds closed, on A4; the same page gives the same bytes.

    The time of day is taken out, and parts, which a browser numbers now so, now so, are numbered by their order.
    Links to what lies beside the page are taken from beside the PDF, wherever both are moved. A browser that ends
    without having written it is an ``OutputError``.
    """
    with tempfile.TemporaryDirectory() as profile:
        alone = Path(profile).resolve() / page.name  # a place whose name is always as long: links are made of it
        shutil.copyfile(page, alone)
        words = [
            program, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--no-pdf-header-footer", "--virtual-time-budget=60000",
            "--window-size=1066,900", f"--user-data-dir={profile}", f"--print-to-pdf={out}", alone.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # its sandbox cannot be had as root
            words.insert(1, "--no-sandbox")
        try:
            ended = subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OutputError(
                str(out), "a browser that prints to PDF", str(error), f"Set {BROWSER}= to skip the PDF."
            ) from error
    if ended.returncode or not out.is_file():
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {ended.returncode}"]
        raise OutputError(str(out), "a browser that prints to PDF", said[0], f"Set {BROWSER}= to skip the PDF.")
    printed = _WHEN.sub(lambda found: b"/%b (D:%b)" % (found[1], b"20000101000000+00'00'"), out.read_bytes())
    number = {name: place for place, name in enumerate(sorted(set(_PART.findall(printed))))}
    printed = _PART.sub(lambda found: b"(node%08d)" % number[found[0]], printed)
    beside = re.compile(rb"\(%b/([^()]*)\)" % re.escape(alone.parent.as_uri().encode()))
    # Spaces keep every object at the byte where the table of the file has it.
    out.write_bytes(beside.sub(lambda found: (b"(%b)" % found[1]).ljust(len(found[0])), printed))


def _cards(found: Comparison) -> Iterator[tuple[str, str, str]]:
    for label, value, *details in cards(found):
        yield plain(label), plain(value), plain(" · ".join(details))


def _cell(text: str) -> str:
    """Text that means nothing but itself in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(escape_controls(text).split()))
