"""A bare Starlette route that answers every call with about as many bytes: the latency of a server without any work."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.server.clients import WEIGHTS


async def reply(request: Request) -> Response:
    """Read the body, and answer."""
    await request.body()
    if request.url.path.endswith("/weights"):
        return Response(bytes(4 * WEIGHTS))
    return JSONResponse({"id": "0" * 32, "text": "-" * 500})


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        print(listening.getsockname()[1], flush=True)
        app = Starlette(routes=[Route("/{path:path}", reply, methods=["GET", "POST", "PUT"])])
        uvicorn.Server(uvicorn.Config(app, http="h11", log_level="error")).run([listening])
