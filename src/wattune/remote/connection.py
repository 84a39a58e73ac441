"""HTTP requests to a server: authentication, timeouts, retries, and one-line errors."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_random

from wattune.errors import InputError, ServerError, ServerRefused, ServerUnavailable
from wattune.version import __version__

TOKEN = "WATTUNE_TOKEN"
"""Environment variable with the default token."""

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""Timeouts in seconds for connecting and for silence while reading or writing."""

BACKOFF_S = (0.5, 1.0, 2.0)
"""Waits in seconds between the attempts of one request, with 50 % jitter, so that devices that lost the server at the
same moment do not all reconnect at once."""

MAX_RETRY_AFTER_S = 30.0
"""Upper bound in seconds for a server's Retry-After."""

MAX_BYTES = 64 << 20
"""Maximum size of a JSON response."""

BUSY = (408, 425, 429, 502, 503, 504)
"""Statuses after which a request is retried."""

UNTRUSTED = 0
"""Substitute for the HTTP status if the server's certificate cannot be verified, so that no request was sent."""

LOCAL = ("127.0.0.1", "localhost", "::1")


class Connection:
    """Connection to the server at a URL. Thread-safe.

    ``is_unavailable``: the last request failed, so the next one is not retried. ``sends_plain_token``: the token is
    sent over a network unencrypted.

    Raises: InputError for an invalid URL or token.
    """

    def __init__(self, url: str, *, token: str | None = None, backoff_s: tuple[float, ...] = BACKOFF_S):
        self.url = _checked(url)
        self.is_unavailable = False
        self.sends_plain_token = False
        self._attempts = 1 + len(backoff_s)
        self._backoff = wait_chain(*(wait_random(wait_s / 2, wait_s) for wait_s in backoff_s or (0.0,)))
        headers = {"User-Agent": f"wattune/{__version__}", "Accept": "application/json"}
        token = (token if token is not None else os.environ.get(TOKEN, "")).strip()
        if token:
            if not re.fullmatch(r"[!-~]+", token):
                raise InputError(
                    "malformed token for the server", allowed="the one line that `wattune-server token make` printed"
                )
            headers["Authorization"] = f"Bearer {token}"
            self.sends_plain_token = urlsplit(url).scheme == "http" and f"{urlsplit(url).hostname}" not in LOCAL
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=TIMEOUT,
                # No proxy for servers on this machine.
                mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOCAL},
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY
            raise InputError(
                "cannot use the proxy set in the environment",
                value=_without_password(str(error)),
                allowed="an http or https address in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY",
            ) from error
        except (OSError, ssl.SSLError) as error:  # from SSL_CERT_FILE
            raise InputError("cannot read the certificates in SSL_CERT_FILE", value=str(error)) from error

    @property
    def is_closed(self) -> bool:
        """True after ``close``."""
        return self._client.is_closed

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        retries: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and return its JSON response; None if it has no content.

        ``retries``: retry if the server is busy or unreachable; every request must therefore be idempotent.

        Raises: ServerUnavailable if the server is unreachable or busy, or after ``close``; ServerRefused if it rejects
        the request, or, with the status ``UNTRUSTED``, if its certificate is invalid; ServerError if it fails or is not
        a wattune server.
        """
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        all_headers = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        timeout = TIMEOUT if timeout_s is None else httpx.Timeout(timeout_s)

        def attempt() -> Any:
            with self.stream(
                method, path, params=dict(params or {}), content=content, headers=all_headers, timeout=timeout
            ) as response:
                return _json(response, self.url)

        return self.retrying(self._attempts if retries and not self.is_unavailable else 1)(attempt)

    def retrying(self, attempts: int, *others: type[Exception]) -> Retrying:
        """Retry a call that raises ServerUnavailable or one of the ``others``, up to ``attempts`` calls in all.

        Waits ``backoff_s`` between calls, repeating the last wait, or the server's Retry-After if that is longer.
        """
        return Retrying(
            retry=retry_if_exception_type((ServerUnavailable, *others)),
            stop=stop_after_attempt(attempts),
            wait=self._wait_s,
            reraise=True,
        )

    def _wait_s(self, attempt: RetryCallState) -> float:
        error = attempt.outcome and attempt.outcome.exception()
        retry_after_s = error.retry_after_s if isinstance(error, ServerUnavailable) else 0.0
        return max(min(retry_after_s, MAX_RETRY_AFTER_S), self._backoff(attempt))

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Open the response of one attempt without reading its body. Raises: the errors of ``request``."""
        try:
            with self._client.stream(method, self.url + path, **options) as response:
                self.is_unavailable = response.status_code in BUSY
                if response.status_code in BUSY:
                    raise ServerUnavailable(
                        f"the server {self.url} is busy (status {response.status_code})",
                        retry_after_s=_seconds(response.headers.get("Retry-After")),
                    )
                if response.status_code not in (200, 201, 204, 304):
                    raise _refused(response, self.url)
                yield response
        except httpx.TransportError as error:
            if _is_untrusted(error):
                raise ServerRefused(
                    f"the certificate of {self.url} cannot be verified: {error}",
                    status=UNTRUSTED,
                    hint="for your own certificate authority, set SSL_CERT_FILE to its file",
                ) from error
            self.is_unavailable = True
            why = "timed out" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
            raise ServerUnavailable(f"the server {self.url} cannot be reached: {why}") from error
        except httpx.HTTPError as error:  # e.g. content that cannot be decompressed
            raise ServerError(f"{self.url} is not a wattune server: {error}") from error
        except RuntimeError as error:
            if not self._client.is_closed:  # closed by another thread
                raise
            raise ServerUnavailable(f"the connection to {self.url} was closed") from error


def _checked(url: str) -> str:
    problem = InputError("server", value=_without_password(url), allowed="an address such as http://host:8484")
    try:
        parts = urlsplit(url)
        has_extras = bool(parts.query or parts.fragment or re.search(r"[\s\\]", url))
        is_bad = has_extras or parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        if not is_bad:
            httpx.URL(url).host.encode("idna")  # otherwise the first request would raise
    except (ValueError, httpx.InvalidURL) as error:
        raise problem from error
    if is_bad:
        raise problem
    if parts.username is not None or parts.password is not None:
        raise InputError("server: the address contains a user name or password", hint=f"pass the token in {TOKEN}")
    return url.rstrip("/")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", url)


def _json(response: httpx.Response, url: str) -> Any:
    if response.status_code in (204, 304):
        return None
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > MAX_BYTES:
            raise ServerError(f"the response of the server {url} exceeds {MAX_BYTES >> 20} MiB")
    try:
        return json.loads(bytes(content), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"{url} is not a wattune server: the response is not JSON") from error


def _refused(response: httpx.Response, url: str) -> ServerRefused | ServerError:
    status = response.status_code
    try:
        response.read()
        problem = response.json()
    except (ValueError, httpx.HTTPError):
        problem = None
    problem = problem if isinstance(problem, dict) else {}
    text = {key: str(problem[key])[:500] for key in ("detail", "title", "hint") if problem.get(key)}
    reason = text.get("detail") or text.get("title") or f"status {status}"
    given = text.get("hint")
    hint = None if given is not None and given in reason else given  # the detail of a wattune server ends with it
    if 300 <= status < 400:
        reason, hint = "it has moved", f"use the new address: {response.headers.get('Location', 'unknown')}"
    elif status in (401, 403) and given is None:
        hint = f"pass a token in {TOKEN}"
    if status < 500:
        return ServerRefused(f"the server {url} rejected the request: {reason}", status=status, hint=hint)
    return ServerError(f"the server {url} failed: {reason}")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and re.fullmatch(r"\d{1,6}", retry_after) else 0.0


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a valid JSON number")
