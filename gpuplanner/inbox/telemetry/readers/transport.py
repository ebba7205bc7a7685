"""One GET of the Prometheus HTTP API: verified, bounded, and never with the token to another host."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import SplitResult, urlencode, urlsplit

from gpuplanner.errors import TraceFormatError, message

TOKEN_VARIABLE = "GPUPLANNER_PROMETHEUS_TOKEN"
"""Environment variable that holds the bearer token; a secret is never an argument."""

MAX_ANSWER_BYTES = 1 << 30
STEP_BYTES = 1 << 16
PATIENCE = 10
"""A whole answer may take this many times the time-out of a single read."""


@dataclass(frozen=True)
class Server:
    """A Prometheus, or anything that speaks its HTTP API.

    Attributes
    ----------
    url : str
        Up to, and without, ``/api/v1``.
    timeout_s : float
        Seconds to wait for a connection, and for more of an answer.
    ca_file : str or Path, optional
        Certificates to trust, where the system's do not suffice. TLS is always verified.
    """

    url: str
    timeout_s: float = 30.0
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            self.refuse("an http or https address", "none", "Give it like https://prometheus.example:9090.")
        if parts.username or parts.password or parts.query or parts.fragment:
            got = "one with a user, a query or a fragment in it"
            self.refuse("a bare address", got, f"Secrets belong into {TOKEN_VARIABLE}.")

    @property
    def parts(self) -> SplitResult:
        """Parts of the address."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        """Host and port, the only part of the address that messages show."""
        return self.parts.netloc.rpartition("@")[2]

    def get(self, path: str, **fields: str) -> tuple[Any, bytes]:
        """Answer to one query, as read and as sent.

        Raises
        ------
        TraceFormatError
            If the server cannot be reached in time, is not whom its certificate should show, sends the
            query elsewhere, or answers with an error or something else than JSON.
        """
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}?{urlencode(fields)}")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            if self.parts.scheme != "https" and not _is_loopback(self.parts.hostname or ""):
                self.refuse("https where a token is sent", "http", f"Use https, or unset {TOKEN_VARIABLE}.")
            request.add_header("Authorization", f"Bearer {token}")
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            https = urllib.request.HTTPSHandler(context=context)
            opener = urllib.request.build_opener(https, _SameHost(self))
            with opener.open(request, timeout=self.timeout_s) as response:
                body = self._body(response)
        except TraceFormatError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            todo = "Check the address, the network and the certificate (ca_file)."
            self.refuse("an answer", f"{type(reason).__name__}: {str(reason)[:300]}", todo)
        try:
            return json.loads(body), body
        except (ValueError, RecursionError):
            got = repr(body[:100])
            return self.refuse(
                "an answer in JSON", got, "Is the address that of the API, not of a login page?"
            )

    def refuse(self, expected: str, got: str, todo: str) -> NoReturn:
        """Raise the four-part message; it names the host, and neither token nor query."""
        raise TraceFormatError(message(f"Prometheus at {self.host!r}", expected, got, todo))

    def _body(self, response: Any) -> bytes:  # noqa: ANN401 - urllib's own response
        pieces, size, give_up = [], 0, time.monotonic() + PATIENCE * self.timeout_s
        while piece := response.read1(STEP_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                todo = "Ask for fewer series (matchers), or state a shorter chunk."
                self.refuse(f"at most {MAX_ANSWER_BYTES} bytes", "more", todo)
            if time.monotonic() > give_up:
                got = f"a part of it after {PATIENCE * self.timeout_s:g} s"
                self.refuse("a whole answer", got, "Ask for less at a time, or raise timeout_s.")
        stated = response.headers.get("Content-Length")
        if stated is not None and stated.isdigit() and int(stated) != size:
            self.refuse(f"{stated} bytes", f"{size}: the answer was cut short", "Ask again.")
        return b"".join(pieces)

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        """Say what the server's status and its own words mean."""
        try:
            answer = json.loads(error.read(STEP_BYTES))
            words = f"{answer['errorType']}: {str(answer['error'])[:300]}"
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            words = error.reason
        todo = "Mend the query and ask again."
        if error.code in (401, 403):
            todo = f"Put a valid token into {TOKEN_VARIABLE}."
        elif error.code == 404:
            todo = "Give the address up to, and without, /api/v1."
        self.refuse("an answer", f"status {error.code}, {words}", todo)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only where it stays at the same scheme, host and port."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        there, here = urlsplit(newurl), self.server.parts
        if (there.scheme, there.netloc) != (here.scheme, here.netloc):
            fp.close()
            got = f"a redirect to {there.scheme}://{there.netloc.rpartition('@')[2]}"
            self.server.refuse("an answer from this host", got, "Give that address, if you trust it.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
