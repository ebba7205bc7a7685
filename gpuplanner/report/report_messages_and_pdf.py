"""A report as a message: plain text, mail, Markdown, PDF and Parquet tables."""

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
from gpuplanner.core.units_and_number_formats import localize_text
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.study import Study
from gpuplanner.report.first_screen import (
    Links,
    confidence_rows,
    describe_fleet,
    make_cards,
    next_step_texts,
    teams_table,
)

MAIL_CSS = "font-family:sans-serif;font-size:15px;line-height:1.45;color:#1a1a1a;max-width:40em"
"""CSS of the body of the mail message."""


def render_mail(study: Study, page: str, *, base_url: str | None = None, node_changes: str = "") -> str:
    """Render the mail message of a report, for ``sendmail -t`` once the addresses are added.

    Parameters
    ----------
    study : Study
        Study of the report.
    page : str
        Path of the report page in the folder of all reports.
    base_url : str, optional
        Address at which the folder of all reports is served.
    node_changes : str
        Sentence on nodes added and removed.

    Returns
    -------
    str
        Message with headers, text and HTML.
    """
    name = " ".join(escape_controls(study.scenario.name).split())
    month = study.scenario.month or "all data"
    locale = study.scenario.number_locale
    sentences = (*study.findings, *filter(None, [node_changes]))
    findings = [localize_text(escape_controls(sentence), locale) for sentence in sentences]
    steps = [localize_text(escape_controls(step.text), locale) for step in study.decision.next_steps]
    address = None if base_url is None else f"{base_url.rstrip('/')}/{page}"
    location = f"{page} in the report folder" if address is None else address
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["Subject"] = f"GPU report {month}: {name}"
    message["Auto-Submitted"] = "auto-generated"
    text = [*(f"{number}. {text}" for number, text in enumerate(findings, start=1)), ""]
    text += ["Next steps:", *(f"- {text}" for text in steps), ""] if steps else []
    message.set_content("\n".join([*text, f"Report: {location}", ""]))
    link = escape(location) if address is None else f'<a href="{escape(address)}">{escape(address)}</a>'
    message.add_alternative(_render_mail_html(f"{name}, {month}", findings, steps, link), subtype="html")
    for number, part in enumerate(message.walk()):
        if part.is_multipart():
            part.set_boundary(f"=_gpuplanner_{number}")  # or each run draws another one
    return message.as_string()


def _render_mail_html(title: str, findings: list[str], steps: list[str], link: str) -> str:
    """Render the HTML part of the mail message."""

    def list_html(tag: str, lines: list[str]) -> str:
        return f"<{tag}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{tag}>"

    todo = f"<p>Next steps:</p>{list_html('ul', steps)}" if steps else ""
    return (
        f'<html lang="en"><body style="{MAIL_CSS}"><h1 style="font-size:20px">{escape(title)}</h1>'
        f"{list_html('ol', findings)}{todo}<p>Report: {link}</p></body></html>\n"
    )


MAX_MESSAGE_CHARACTERS = 3000
"""Maximum characters of a chat message."""
BROWSER_VARIABLE = "GPUPLANNER_BROWSER"
"""Environment variable that names the browser that prints to PDF; empty: no PDF."""
BROWSER_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs that are tried as the browser that prints to PDF, in this order."""
BROWSER_TIMEOUT_S = 300
"""Maximum time for printing a page [s]."""
_MARKUP_TAG = re.compile(r"<[^>]*>")
"""Tag of an HTML fragment."""
_PDF_DATE = re.compile(rb"/(CreationDate|ModDate) \(D:[^)]*\)")
"""Creation and modification date in a PDF, which are removed."""
_PDF_NODE_NAME = re.compile(rb"\(node\d{8}\)")
"""Internal name of a structure element in a PDF, which changes from print to print."""


def to_plain_text(html: str) -> str:
    """Remove the tags of an HTML fragment.

    Examples
    --------
    >>> to_plain_text("<b>8 &lt; 9</b> <i>GPUs</i>")
    '8 < 9 GPUs'
    """
    return " ".join(unescape(_MARKUP_TAG.sub("", html.replace("<br>", " "))).split())


def render_message(comparison: Comparison, title: str, period: str, links: Links, doubts: Sequence[str] = ()) -> str:
    """Render the decision as a chat message of at most :data:`MAX_MESSAGE_CHARACTERS` characters.

    Parts are left out from the end if it would be longer.

    Parameters
    ----------
    comparison : Comparison
        Comparison with its decision.
    title, period : str
        Title and period of the report.
    links : sequence of (str, str)
        Files beside the page: name and path.
    doubts : sequence of str
        Cautions on the data.

    Returns
    -------
    str
        Plain text.
    """
    decision = comparison.decision
    steps = enumerate(next_step_texts(decision, links), start=1)
    parts = [
        [f"{title}, {period}, {describe_fleet(decision)}", "", decision.sentence, ""],
        [f"{label}: {value}" + (f" ({detail})" if detail else "") for label, value, detail in _plain_cards(comparison)],
        ["", "Next steps:", *(f"{number}. {step}" for number, step in steps)],
        ["", *(f"{name}: {text}" for name, text in confidence_rows(decision, doubts))],
        ["", "Allocated GPU-hours by team:", *(f"{row[0]}: {row[2]}" for row in teams_table(decision).rows())],
    ]
    lines: list[str] = []
    for part in parts:
        if len("\n".join([*lines, *part])) > MAX_MESSAGE_CHARACTERS:
            lines += ["", "The report has more."]
            break
        lines += part
    return "\n".join(lines)[:MAX_MESSAGE_CHARACTERS].rstrip() + "\n"


def render_markdown(comparison: Comparison, title: str, period: str, links: Links, doubts: Sequence[str] = ()) -> str:
    """Render the decision as Markdown, for a wiki, an issue or a commit.

    Parameters
    ----------
    comparison : Comparison
        Comparison with its decision.
    title, period : str
        Title and period of the report.
    links : sequence of (str, str)
        Files beside the page: name and path.
    doubts : sequence of str
        Cautions on the data.

    Returns
    -------
    str
        Markdown.
    """
    decision = comparison.decision
    lines = [f"# {_escape_markdown(title)}", "", f"**{_escape_markdown(decision.sentence)}**", ""]
    lines += [_escape_markdown(f"{period}, {describe_fleet(decision)}"), "", "| | | |", "|---|---|---|"]
    lines += [
        f"| {_escape_markdown(label)} | **{_escape_markdown(value)}** | {_escape_markdown(detail)} |"
        for label, value, detail in _plain_cards(comparison)
    ]
    lines += ["", "## Next steps", ""]
    steps = enumerate(next_step_texts(decision, links), start=1)
    lines += [f"{number}. {_escape_markdown(step)}" for number, step in steps]
    table = teams_table(decision)
    if table.height:
        head = table.columns
        lines += ["", "## By team", "", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
        lines += [f"| {' | '.join(_escape_markdown(cell) for cell in row)} |" for row in table.rows()]
    lines += ["", *(f"**{name}.** {_escape_markdown(text)}\n" for name, text in confidence_rows(decision, doubts))]
    lines.append(" · ".join(f"[{name}]({path})" for name, path in (("Page", "index.html"), *links)))
    return "\n".join(lines) + "\n"


def write_tables(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write each table as Parquet, and a README with the unit and meaning of the columns."""
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
        schema = TABLES[name].columns() if name in TABLES else {}
        column_facts = {key: column.metadata for key, column in schema.items()} or meanings
        for column, dtype in table.schema.items():
            facts = column_facts.get(column) or {"unit": "", "meaning": "own column of this report"}
            lines.append(f"| `{column}` | {dtype.base_type()} | {facts['unit'] or '-'} | {facts['meaning']} |")
        lines.append("")
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def find_browser() -> str | None:
    """Find a browser that prints to PDF; None if there is none, or if the variable that names it is empty."""
    configured = os.environ.get(BROWSER_VARIABLE)
    if configured is not None:
        return configured or None
    return next((path for name in BROWSER_PROGRAMS if (path := shutil.which(name))), None)


def print_pdf(page: Path, out: Path, program: str) -> None:
    """Print a page to PDF on A4; the same page gives the same bytes.

    Dates are removed and internal names renumbered in their order. Links to files beside the page become relative to
    the PDF.

    Parameters
    ----------
    page : Path
        HTML page.
    out : Path
        PDF to write.
    program : str
        Browser.

    Raises
    ------
    OutputError
        If the browser fails or ends without a PDF.
    """
    with tempfile.TemporaryDirectory() as profile:
        page_copy = Path(profile).resolve() / page.name  # a place whose name is always as long: links are made of it
        shutil.copyfile(page, page_copy)
        command = [
            program, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--no-pdf-header-footer", "--virtual-time-budget=60000",
            "--window-size=1066,900", f"--user-data-dir={profile}", f"--print-to-pdf={out}", page_copy.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # its sandbox cannot be had as root
            command.insert(1, "--no-sandbox")
        expected, todo = "a browser that prints to PDF", f"Set {BROWSER_VARIABLE}= to skip the PDF."
        try:
            process = subprocess.run(command, capture_output=True, timeout=BROWSER_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OutputError(str(out), expected, str(error), todo) from error
    if process.returncode or not out.is_file():
        message = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        raise OutputError(str(out), expected, message[0], todo)
    pdf = _PDF_DATE.sub(lambda match: b"/%b (D:%b)" % (match[1], b"20000101000000+00'00'"), out.read_bytes())
    number_by_part = {name: position for position, name in enumerate(sorted(set(_PDF_NODE_NAME.findall(pdf))))}
    pdf = _PDF_NODE_NAME.sub(lambda match: b"(node%08d)" % number_by_part[match[0]], pdf)
    local_link = re.compile(rb"\(%b/([^()]*)\)" % re.escape(page_copy.parent.as_uri().encode()))
    # Spaces keep every object at the byte where the table of the file has it.
    out.write_bytes(local_link.sub(lambda match: (b"(%b)" % match[1]).ljust(len(match[0])), pdf))


def _plain_cards(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and details of each of the four cards of the decision as plain text."""
    for label, value, *details in make_cards(comparison):
        yield to_plain_text(label), to_plain_text(value), to_plain_text(" · ".join(details))


def _escape_markdown(text: str) -> str:
    """Escape the characters that Markdown would interpret."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(escape_controls(text).split()))
