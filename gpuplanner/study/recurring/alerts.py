"""What a failed gate tells others: payloads for Alertmanager, chats, mail and webhooks, each by its own schema."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from gpuplanner.errors import printable
from gpuplanner.files.text import to_json
from gpuplanner.study.recurring.gate import Gate, GateCheck

CHECK_FORMAT = "gpuplanner check 1"
"""First line of ``check.prom``, by which a folder of alerts is known."""
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b"}


@dataclass(frozen=True)
class Alerts:
    r"""What failed, as payloads of each channel, ready to be sent as they are; none where nothing failed.

    - ``alertmanager``: body of ``POST /api/v2/alerts``, one alert a check; it resolves when it is no longer sent.
    - ``chat``: body of an incoming webhook of Slack, Mattermost, Rocket.Chat, Google Chat or Teams: ``{"text": …}``.
    - ``mail``: ``subject`` and ``body``; :func:`mail_text` makes a message of them.
    - ``webhook``: a CloudEvent 1.0 in structured JSON; the same finding has the same ``id``, so that a receiver knows
      what it was told before.

    Nothing here is the clock's: all times are the end of the data.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> late = GateCheck("last week served", False, 0.3, 0.1, "30% waited.")
    >>> found = Gate("lab <1>", datetime(2026, 3, 1, tzinfo=UTC), (late,))
    >>> print(Alerts(found).to_dict()["chat"]["text"])
    gpuplanner: 1 of 1 checks failed for lab &lt;1&gt; (data to 2026-03-01 00:00 UTC)
    - 30% waited.
    """

    found: Gate

    def to_dict(self) -> dict[str, Any]:
        """Payload by channel."""
        found = self.found
        if found.passed:
            return {}
        title, lines = subject(found), [one.sentence for one in found.failed]
        event = found.to_dict() | {"at": _instant(found), "checks": [asdict(one) for one in found.failed]}
        name = hashlib.sha256(to_json(event).encode()).hexdigest()[:32]
        return {
            "alertmanager": [_alert(found, one) for one in found.failed],
            "chat": {"text": _plain_markup("\n".join([title, *(f"- {line}" for line in lines)]))},
            "mail": {"subject": title, "body": "\n".join([*lines, "", f"Data up to {_day(found)}.", ""])},
            "webhook": {
                "specversion": "1.0",
                "id": name,
                "source": f"/gpuplanner/{_word(found.scenario)}",
                "type": "gpuplanner.check.failed",
                "time": _instant(found),
                "datacontenttype": "application/json",
                "data": event,
            },
        }


def subject(found: Gate) -> str:
    """How many checks failed, of what, in one line."""
    name = printable(found.scenario).replace("\n", " ")
    return f"gpuplanner: {len(found.failed)} of {len(found.checks)} checks failed for {name} (data to {_day(found)})"


def mail_text(found: Gate) -> str:
    """A message for ``sendmail -t``, but for the addresses, which a site adds."""
    mail = Alerts(found).to_dict()["mail"]
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["Subject"] = mail["subject"]
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(mail["body"])
    return message.as_string()


def metrics_text(found: Gate) -> str:
    """The checks as Prometheus reads them from a file of the node exporter's text collector."""
    lines = [
        f"# {CHECK_FORMAT}",
        "# HELP gpuplanner_check_passed Whether a check of the fleet passed (1) or failed (0).",
        "# TYPE gpuplanner_check_passed gauge",
        *(f'gpuplanner_check_passed{{check="{_word(one.name)}"}} {int(one.passed)}' for one in found.checks),
        "# HELP gpuplanner_check_data_end_seconds End of the data that were checked.",
        "# TYPE gpuplanner_check_data_end_seconds gauge",
        f"gpuplanner_check_data_end_seconds {found.at.timestamp():.0f}",
    ]
    return "\n".join(lines) + "\n"


def _alert(found: Gate, one: GateCheck) -> dict[str, Any]:
    labels = {
        "alertname": "GpuPlannerCheckFailed",
        "check": _word(one.name),
        "scenario": printable(found.scenario),
        "severity": "warning",
    }
    told = {"summary": f"{one.name}: failed for {printable(found.scenario)}", "description": one.sentence}
    return {"labels": labels, "annotations": told, "startsAt": _instant(found)}


def _instant(found: Gate) -> str:
    return f"{found.at:%Y-%m-%dT%H:%M:%SZ}"


def _day(found: Gate) -> str:
    return f"{found.at:%Y-%m-%d %H:%M} UTC"


def _word(text: str) -> str:
    """Letters, digits and underscores alone: part of an address or of a label."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "unnamed"


def _plain_markup(text: str) -> str:
    """Text of which chats make no link, mention or markup of their own."""
    return "".join(_MARKUP.get(one, one) for one in text)
