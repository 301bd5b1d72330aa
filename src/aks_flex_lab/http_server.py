"""Runs an ASGI application of the lab's Azure with uvicorn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from pathlib import Path

SHUTDOWN_SECONDS = 1  # for requests in progress; long polls end with the server


def serve(app: Any, listen: tuple[str, int], certificate: Path | None = None, key: Path | None = None) -> None:
    """Serves the application until a signal stops it."""
    tls: dict[str, Any] = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)} if certificate else {}
    uvicorn.run(
        app,
        host=listen[0],
        port=listen[1],
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        **tls,
    )
