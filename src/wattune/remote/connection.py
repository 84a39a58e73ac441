"""Requests to a server: with a token, with patience where it is busy, and with one plain line where it refuses."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from wattune.errors import InputError, ServerAway, ServerError, ServerRefused
from wattune.version import __version__

TOKEN = "WATTUNE_TOKEN"
"""Environment variable with the token, where none is given."""

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""Seconds without a byte after which a request has failed."""

WAITS_S = (0.5, 1.0, 2.0)
"""Seconds between the attempts of one request, each made shorter by up to half at random: devices that lost the server
at the same moment do not all come back in the same one."""

LONGEST_WAIT_S = 30.0
"""The longest that a server's Retry-After is followed."""

LARGEST_BYTES = 64 << 20
"""An answer in JSON that is larger is refused."""

BUSY = (408, 425, 429, 502, 503, 504)
"""Statuses that say: later."""

UNTRUSTED = 0
"""Stands for a status of HTTP in the refusal of a server whose certificate cannot be verified: it was asked nothing."""

LOCAL = ("127.0.0.1", "localhost", "::1")


class Connection:
    """One server by its URL. It may be used from several threads.

    ``is_away``: whether the last request did not get through; the next one is then tried once alone.
    ``is_open_to_others``: whether the token goes over a network unencrypted.

    Raises: InputError for a URL or a token that is none.
    """

    def __init__(self, url: str, *, token: str | None = None, waits_s: tuple[float, ...] = WAITS_S):
        self.url = _checked(url)
        self.is_away = False
        self.is_open_to_others = False
        self._waits_s = waits_s
        headers = {"User-Agent": f"wattune/{__version__}", "Accept": "application/json"}
        token = (token if token is not None else os.environ.get(TOKEN, "")).strip()
        if token:
            if not re.fullmatch(r"[!-~]+", token):
                raise InputError(
                    "the server's token is no token", allowed="the one line that `wattune token make` gave"
                )
            headers["Authorization"] = f"Bearer {token}"
            self.is_open_to_others = urlsplit(url).scheme == "http" and f"{urlsplit(url).hostname}" not in LOCAL
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=TIMEOUT,
                # What is on this machine is not reached through a proxy.
                mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOCAL},
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY
            raise InputError(
                "the proxy that the environment names cannot be used",
                value=_without_password(str(error)),
                allowed="an http or https address in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY",
            ) from error
        except (OSError, ssl.SSLError) as error:  # of SSL_CERT_FILE
            raise InputError("the certificates of SSL_CERT_FILE cannot be read", value=str(error)) from error

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._client.is_closed

    def close(self) -> None:
        """Give the sockets back."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        patient: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        """The JSON of the answer, None where it has no content. Every request here may be sent twice.

        ``patient``: where the server is busy or not reached, it is asked again a few times.

        Raises: ServerAway where it is not reached or busy for too long, or after ``close``; ServerRefused where it
        refuses, and with the status ``UNTRUSTED`` for its certificate; ServerError where it fails, or what answers is
        no wattune server.
        """
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        timeout = TIMEOUT if timeout_s is None else httpx.Timeout(timeout_s)
        attempts = 1 + (len(self._waits_s) if patient and not self.is_away else 0)
        for attempt in itertools.count():
            options = {"params": dict(params or {}), "content": content, "headers": sent, "timeout": timeout}
            try:
                with self.stream(method, path, **options) as response:
                    return _json(response, self.url)
            except ServerAway as error:
                if attempt == attempts - 1:
                    raise
                self.rest(attempt, error.retry_after_s)

    def rest(self, attempt: int, retry_after_s: float = 0.0) -> None:
        """Wait before the next attempt, the first of which is 0."""
        wait_s = self._waits_s[min(attempt, len(self._waits_s) - 1)] if self._waits_s else 0.0
        time.sleep(max(min(retry_after_s, LONGEST_WAIT_S), wait_s * random.uniform(0.5, 1.0)))

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """One attempt of a request, its answer not read yet. Raises: as ``request``."""
        try:
            with self._client.stream(method, self.url + path, **options) as response:
                self.is_away = response.status_code in BUSY
                if response.status_code in BUSY:
                    raise ServerAway(
                        f"the server {self.url} is busy (status {response.status_code})",
                        retry_after_s=_seconds(response.headers.get("Retry-After")),
                    )
                if response.status_code not in (200, 201, 204, 206, 304, 416):
                    raise _refused(response, self.url)
                yield response
        except httpx.TransportError as error:
            if _is_untrusted(error):
                raise ServerRefused(
                    f"the certificate of {self.url} cannot be verified: {error}",
                    status=UNTRUSTED,
                    hint="where it is your own, name the file of its authority in SSL_CERT_FILE",
                ) from error
            self.is_away = True
            raise ServerAway(f"the server {self.url} cannot be reached: {_why(error)}") from error
        except httpx.HTTPError as error:  # such as content that does not decompress
            raise ServerError(f"what answers at {self.url} is no wattune server: {error}") from error
        except RuntimeError as error:
            if not self._client.is_closed:  # by another thread, meanwhile
                raise
            raise ServerAway(f"the connection to {self.url} was closed") from error


def _checked(url: str) -> str:
    problem = InputError("server", value=_without_password(url), allowed="an address such as http://host:8484")
    try:
        parts = urlsplit(url)
        says_more = bool(parts.query or parts.fragment or re.search(r"[\s\\]", url))
        bad = says_more or parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        if not bad:
            httpx.URL(url).host.encode("idna")  # each would raise at the first request
    except (ValueError, httpx.InvalidURL) as error:
        raise problem from error
    if bad:
        raise problem
    if parts.username is not None or parts.password is not None:
        raise InputError("server: a name or a password in the address", hint=f"give the token by {TOKEN}")
    return url.rstrip("/")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", url)


def _json(response: httpx.Response, url: str) -> Any:
    if response.status_code in (204, 304):
        return None
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > LARGEST_BYTES:
            raise ServerError(f"the server {url} gave an answer of more than {LARGEST_BYTES >> 20} MiB")
    try:
        return json.loads(bytes(content), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"what answers at {url} is no wattune server: no JSON came back") from error


def _refused(response: httpx.Response, url: str) -> ServerRefused | ServerError:
    status = response.status_code
    try:
        response.read()
        problem = response.json()
    except (ValueError, httpx.HTTPError):
        problem = None
    problem = problem if isinstance(problem, dict) else {}
    text = {key: str(problem[key])[:500] for key in ("detail", "title", "hint") if problem.get(key)}
    said = text.get("detail") or text.get("title") or f"status {status}"
    hint = text.get("hint")
    if 300 <= status < 400:
        said, hint = "it is elsewhere", f"give that address: {response.headers.get('Location', 'unknown')}"
    elif status in (401, 403) and hint is None:
        hint = f"give a token by {TOKEN}"
    if status < 500:
        return ServerRefused(f"the server {url} refuses: {said}", status=status, hint=hint)
    return ServerError(f"the server {url} failed: {said}")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and re.fullmatch(r"\d{1,6}", retry_after) else 0.0


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _why(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")
