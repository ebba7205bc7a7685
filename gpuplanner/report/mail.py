"""A month as a message that can be sent as it is: text, and the same as plain HTML without script or remote content."""

from __future__ import annotations

from email.message import EmailMessage
from email.policy import SMTP
from html import escape

from gpuplanner.errors import printable
from gpuplanner.study.study import Study
from gpuplanner.units import in_locale

STYLE = "font-family:sans-serif;font-size:15px;line-height:1.45;color:#1a1a1a;max-width:40em"


def report_mail(study: Study, page: str, *, at: str | None = None, fleet: str = "") -> str:
    """The message, for ``sendmail -t`` but for the addresses.

    `page` is the file of the report in the folder of all reports, `at` the address of that folder where it is served;
    `fleet` says which nodes came and went.
    """
    name = " ".join(printable(study.scenario.name).split())
    month = study.scenario.month or "all data"
    findings, steps = (
        [in_locale(printable(one), study.scenario.number_locale) for one in texts]
        for texts in (
            (*study.findings, *filter(None, [fleet])),
            [one.text for one in study.decision.next_steps],
        )
    )
    address = None if at is None else f"{at.rstrip('/')}/{page}"
    where = f"{page} in the folder of the reports" if address is None else address
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["Subject"] = f"GPU report {month}: {name}"
    message["Auto-Submitted"] = "auto-generated"
    text = [*(f"{number}. {one}" for number, one in enumerate(findings, start=1)), ""]
    text += ["What to do:", *(f"- {one}" for one in steps), ""] if steps else []
    message.set_content("\n".join([*text, f"The page: {where}", ""]))
    link = escape(where) if address is None else f'<a href="{escape(address)}">{escape(address)}</a>'
    message.add_alternative(_html(f"{name}, {month}", findings, steps, link), subtype="html")
    for number, part in enumerate(message.walk()):
        if part.is_multipart():
            part.set_boundary(f"=_gpuplanner_{number}")  # or each run draws another one
    return message.as_string()


def _html(title: str, findings: list[str], steps: list[str], link: str) -> str:
    def listed(tag: str, lines: list[str]) -> str:
        return f"<{tag}>{''.join(f'<li>{escape(one)}</li>' for one in lines)}</{tag}>"

    todo = f"<p>What to do:</p>{listed('ul', steps)}" if steps else ""
    return (
        f'<html lang="en"><body style="{STYLE}"><h1 style="font-size:20px">{escape(title)}</h1>'
        f"{listed('ol', findings)}{todo}<p>The page: {link}</p></body></html>\n"
    )
