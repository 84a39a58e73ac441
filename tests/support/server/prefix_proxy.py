"""A reverse proxy that offers a server below a path, as nginx and Caddy do: it strips the prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
from tests.support.fake_server import Answer, Asked, Fake, faked

OWN = ("connection", "content-length", "transfer-encoding", "date", "server")
"""Headers of one hop."""


class Proxied(NamedTuple):
    """``url``: of the server, prefix included. ``proxy``: with all requests; ``outside``: those above the prefix."""

    url: str
    proxy: Fake

    @property
    def outside(self) -> list[str]:
        return [asked.path for asked in self.proxy.asked if not asked.path.startswith(urlsplit(self.url).path + "/")]


@contextmanager
def behind_prefix(upstream: str, prefix: str, *, scheme: str = "http") -> Iterator[Proxied]:
    """The server at ``upstream``, below ``prefix``; everything above it is 404. ``scheme``: that clients came by."""
    with httpx.Client(base_url=upstream, trust_env=False, timeout=60) as client:

        def forward(asked: Asked) -> Answer:
            if not asked.path.startswith(prefix + "/"):
                return Answer(404, "not of this server")
            headers = {name: text for name, text in asked.headers.items() if name not in OWN}
            headers |= {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": scheme}
            with client.stream(
                asked.method, asked.path[len(prefix) :], headers=headers, content=asked.body or None
            ) as response:
                content = b"".join(response.iter_raw())
            return Answer(
                response.status_code, content, {k: v for k, v in response.headers.items() if k.lower() not in OWN}
            )

        with faked(forward) as proxy:
            yield Proxied(proxy.url + prefix, proxy)
