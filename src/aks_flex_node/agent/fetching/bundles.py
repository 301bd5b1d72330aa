"""Fetching the bundle behind a configuration URL: once, over TLS that is verified, with bounds on size and time.

Nothing that is said or raised here shows more of the URL than its server.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.causes import causes, explain
from aks_flex_node.agent.artifacts.connections import PASSING, REDIRECTS, make_pool, read_delay
from aks_flex_node.agent.artifacts.persistence import Interrupted, Pace, Persistence
from aks_flex_node.agent.fetching.trust import context_for, untrusted
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from aks_flex_node.agent.artifacts.sources import Sources
    from aks_flex_node.api.config_urls import ConfigUrl

LARGEST = 1 << 20
PIECE = 1 << 16
SECONDS = 60.0  # for all of the body, however slowly it drips
DEAD = {401, 403, 404, 410}


@dataclass(frozen=True)
class Bundle:
    text: str = field(repr=False)  # {"config": …}: it holds secrets
    version: str = ""  # configVersion, if it has one


def fetch(url: ConfigUrl, sources: Sources, pace: Pace = Pace()) -> Bundle:  # noqa: B008 - frozen
    logging.getLogger("urllib3").setLevel(logging.INFO)  # below that it logs whole paths, and ours is a secret
    persistence = Persistence(sources.attempts, pace, threading.Event())
    try:
        content = persistence.pursue(lambda: _attempt(url, sources))
    except Interrupted as fault:
        raise _unreachable(url, fault.cause) from None
    return read_bundle(content, url.origin)


def _attempt(url: ConfigUrl, sources: Sources) -> bytes:
    from urllib3.exceptions import HTTPError

    proxy = sources.proxy_for(url.origin)
    try:
        return _get(url, sources, proxy)
    except (HTTPError, OSError) as error:
        wrong = next((each for each in causes(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
        if wrong:
            raise untrusted(url, f"its certificate is not the right one ({wrong.verify_message})") from None
        raise explain(error, url.origin, proxy, sources.stall_seconds) from None


def _get(url: ConfigUrl, sources: Sources, proxy: str | None) -> bytes:
    pool = make_pool(sources, proxy, context_for(url, sources, proxy))
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "aks-flex-node"}
    try:
        answer = pool.request(
            "GET", url.address, headers=headers, preload_content=False, redirect=False, retries=False
        )
        try:
            _judge(answer, url)
            return _body(answer, url)
        finally:
            answer.close()
    finally:
        pool.clear()


def _judge(answer: BaseHTTPResponse, url: ConfigUrl) -> None:
    status = answer.status
    if status == 200:
        return
    if status in DEAD:
        raise ConfigError(
            "config-url-dead",
            f"{url.origin} no longer has anything at this URL (status {status}): it has expired, was used, or was "
            "replaced.",
            "Ask for a new one: `aks-flex-rp node join-command`, or the regenerateToken action of the API.",
        )
    if status in PASSING or status >= 500:
        after = read_delay(answer.headers.get("Retry-After", ""))
        raise Interrupted(f"it answered with status {status}", after=after)
    what = "sends us elsewhere, which is not followed" if status in REDIRECTS else "does not give us the bundle"
    raise ConfigError(
        "config-url-refused",
        f"{url.origin} {what} (status {status}).",
        "Is this the URL that the service printed? A proxy or a login page in between answers like this, too.",
    )


def _body(answer: BaseHTTPResponse, url: ConfigUrl) -> bytes:
    end, content = time.monotonic() + SECONDS, b""
    while piece := answer.read1(PIECE, decode_content=False):
        content += piece
        if len(content) > LARGEST:
            raise _invalid(url.origin, "it is larger than a megabyte")
        if time.monotonic() > end:
            raise Interrupted(f"its answer took longer than {SECONDS:g} s", again=False)
    return content


def read_bundle(content: bytes, origin: str) -> Bundle:
    """`{"config": {…}, "configVersion": "…"}`; what else a later service may add is not for us."""
    try:
        data: Any = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise _invalid(origin, "it is not JSON") from None
    config = data.get("config") if isinstance(data, dict) else None
    if not isinstance(config, dict):
        raise _invalid(origin, "it has no `config` in it")
    version = str(data.get("configVersion") or "")
    if version and not (version.isascii() and version.isdigit()):
        raise _invalid(origin, "its `configVersion` is not a number")
    kept = {"config": config, **({"configVersion": version} if version else {})}
    return Bundle(json.dumps(kept, indent=1) + "\n", version)


def _invalid(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "bundle-invalid",
        f"What {origin} delivered is not a node's configuration: {why}.",
        "Is this the URL that the service printed? A proxy or a login page in between can answer in its place.",
    )


def _unreachable(url: ConfigUrl, cause: str) -> ConfigError:
    return ConfigError(
        "config-url-unreachable",
        f"The configuration could not be fetched from {url.origin}: {cause}.",
        "Check that this machine reaches it (`curl -v` to the server alone), then run the same command again. "
        "A proxy is given by `--set proxy.https=http://HOST:PORT`.",
        again=True,
    )
