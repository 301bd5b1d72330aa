"""Fetches the configuration of a node from a configuration URL: selects the URL (flag, file, standard input,
environment), verifies the server with the system's CAs or the CA pinned in the URL, and downloads the bundle with
limits on size and time. Messages show only the origin of the URL, because the URL is a secret.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
import threading
import time
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from aks_flex_node.agent.config.refusals import WrongClockError, check_refusal, parse_pending
from aks_flex_node.agent.config.sources import CONFIG_VARIABLE, URL_VARIABLE, complete, nest
from aks_flex_node.agent.http.client import (
    REDIRECT_STATUSES,
    is_retryable,
    parse_retry_after,
)
from aks_flex_node.agent.http.connections import (
    configured_tls_context,
    explain_failure,
    find_certificate_error,
    make_pool,
    tls_context,
)
from aks_flex_node.api import config_urls, sealed_bundles
from aks_flex_node.api.arm_errors import parse_arm_error
from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, KEY_HEADER, url_audience
from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit
from aks_flex_node.errors import CommandUsageError, ConfigError, FlexError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.retry import AttemptFailed, Retrier, RetryBackoff

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from urllib3 import BaseHTTPResponse

    from aks_flex_node.agent.http.download_options import DownloadOptions
    from aks_flex_node.api.config_urls import ConfigUrl


def tls_context_for(url: ConfigUrl, sources: DownloadOptions, proxy: str | None) -> ssl.SSLContext:
    """Returns the context that verifies the server of the request, including its name."""
    if not url.pin or url.scheme == "http":
        return configured_tls_context(sources.ca_file)
    from aks_flex_node.agent.http.certificate_probe import presented_certificates

    chain = presented_certificates(url.origin, sources, proxy)
    pinned = next((each for each in chain if hashlib.sha256(each).hexdigest() == url.pin), None)
    if pinned is None:
        raise untrusted_error(url, "it does not present the CA certificate that is pinned in the URL")
    # Presenting the CA certificate proves nothing. The request itself verifies that it signed the server's
    # certificate.
    return tls_context(system=False, der=pinned)


def untrusted_error(url: ConfigUrl, cause: str) -> ConfigError:
    hint = (
        "If the URL was not changed, the connection may be intercepted. Request a new URL from the "
        "administrator of the service."
    )
    if not url.pin:
        hint = (
            "If the service has a private CA, the URL must end in `#ca=sha256:…`. Copy the complete URL and put "
            "it in quotes."
        )
    return ConfigError("config-url-untrusted", f"{url.origin} is not trusted: {cause}. No request was sent.", hint)


MAX_BUNDLE_BYTES = 1 << 20
REPORT_SECONDS = 10.0  # limit for a report, which must not delay the error message
BODY_SECONDS = 60.0  # limit for the complete response
MAX_AUDIENCE = 200  # characters of the audience of node keys
VERSION_TEXT = re.compile(r'(W/)?["\w:+=-]{1,256}', re.ASCII)  # a number of the provider, or the eTag of a Machine
EXPIRED_STATUSES = {401, 403, 404, 410}


@frozen
class ConfigBundle:
    text: str = field(repr=False)  # {"config": …}, contains secrets
    version: str = ""  # configVersion, if present
    key_audience: str = ""  # the provider has bound the node key, and assertions have this audience
    key_url: str = field(default="", repr=False)  # at the provider, of a sealed bundle that is not complete
    key: str = ""  # thumbprint of the node key with which it was fetched

    def with_settings(self, own: Mapping[str, Any]) -> ConfigBundle:
        """Returns the bundle with settings of the join that it does not have, so that the daemon keeps them."""
        document = json.loads(self.text)
        document["config"] = complete(document["config"], nest(own))
        return replace(self, text=json.dumps(document, indent=1) + "\n")


@frozen
class ConfigRequest:
    """Who asks for a configuration: this machine, and the proof that it has the node key."""

    machine: MachineIdentity | None = None
    prove: Callable[[str, float], str] | None = None
    facts: Mapping[str, Any] | None = None  # of a machine that enrols
    clock_offset: float = 0.0

    def headers(self, url: ConfigUrl) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "aks-flex-node"}
        if self.machine:
            headers[MACHINE_HEADER] = self.machine.header
        if self.facts is not None:
            headers["Content-Type"] = "application/json"
        elif self.prove and not url.key:  # a storage account binds no key
            headers[KEY_HEADER] = self.proof(url)
        return headers

    def proof(self, url: ConfigUrl) -> str:
        return self.prove(url_audience(url.secret), time.time() + self.clock_offset) if self.prove else ""

    def body(self, url: ConfigUrl) -> bytes | None:
        """Returns what a machine that enrols sends. For the configuration of one node, nothing is sent."""
        if self.facts is None:
            return None
        return json.dumps({"proof": self.proof(url), "facts": self.facts}).encode()


def fetch_config(
    url: ConfigUrl,
    sources: DownloadOptions,
    backoff: RetryBackoff = RetryBackoff(),  # noqa: B008 - frozen
    machine: MachineIdentity | None = None,
    prove: Callable[[str, float], str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ConfigBundle:
    """Fetches the bundle. `machine` is the identity of this machine, by which the service refuses a second one, and
    `prove` returns the proof that this machine has its node key, to which the service binds the URL. With `facts`,
    the machine enrols; raises ApprovalPendingError if it must be approved first.
    """
    logging.getLogger("urllib3").setLevel(logging.INFO)  # debug logs contain the path, which is secret
    retrier = Retrier(sources.attempts, backoff, threading.Event())
    request = ConfigRequest(machine, prove, facts)
    try:
        try:
            content, audience = retrier.run(lambda: _attempt(url, sources, request))
        except WrongClockError as error:
            corrected = ConfigRequest(machine, prove, facts, error.offset)
            content, audience = retrier.run(lambda: _attempt(url, sources, corrected))
    except AttemptFailed as fault:
        raise _unreachable(url, fault.cause) from None
    except WrongClockError:
        raise _unreachable(url, "the clock of this machine is wrong, and the server refuses its time") from None
    opened = _unsealed(content, url)
    bundle = parse_bundle(opened, url.origin)
    if bundle.version and not bundle.version.isdigit():
        raise _invalid(url.origin, "its `configVersion` is not a number")
    key_url = str(json.loads(opened).get(config_urls.KEY_URL) or "") if url.key else ""
    return ConfigBundle(bundle.text, bundle.version, audience, key_url)


def _unsealed(content: bytes, url: ConfigUrl) -> bytes:
    """Opens a bundle from storage that the service does not control. The key says that it must be sealed."""
    if not url.key:
        if content.startswith(sealed_bundles.SEAL_FORMAT):
            raise _invalid(url.origin, "it is sealed, and the URL lacks its part after #, which contains the key")
        return content
    try:
        return sealed_bundles.unseal(content, url.key)
    except sealed_bundles.BundleTampered as error:
        raise ConfigError(
            "config-bundle-tampered",
            f"The configuration from {url.origin} is refused: {error}. Nothing was changed on this machine.",
            "Copy the complete URL again. If it was complete, someone changed the file in the storage account: tell "
            "its administrator, and request a new URL with `aks-flex-rp node join-command --name NODE`.",
        ) from None


def _attempt(url: ConfigUrl, sources: DownloadOptions, request: ConfigRequest) -> tuple[bytes, str]:
    from urllib3.exceptions import HTTPError

    proxy = sources.proxy_for(url.origin)
    try:
        return _send(url, sources, proxy, request)
    except (HTTPError, OSError) as error:
        if verification := find_certificate_error(error):
            raise untrusted_error(url, f"its certificate is not valid ({verification.verify_message})") from None
        raise explain_failure(error, url.origin, proxy, sources.stall_seconds) from None


def report_join_failure(
    url: ConfigUrl,
    sources: DownloadOptions,
    message: str,
    prove: Callable[[str, float], str] | None = None,
) -> bool:
    """Tells the service behind a configuration URL why this machine could not join; returns whether it accepted that.

    A URL of Azure Blob Storage and a used URL do not accept it. An enrolment needs
    the proof of the node key, because many machines have its URL.
    """
    from urllib3 import Timeout
    from urllib3.exceptions import HTTPError

    logging.getLogger("urllib3").setLevel(logging.INFO)  # debug logs contain the path, which is secret
    proxy = sources.proxy_for(url.origin)
    report = {"joinState": "Failed", "joinFailure": message}
    if url.is_enrolment:
        report["proof"] = ConfigRequest(None, prove).proof(url)
    body = json.dumps(report).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "aks-flex-node"}
    try:
        pool = make_pool(sources, proxy, tls_context_for(url, sources, proxy))
        try:
            with time_limit(REPORT_SECONDS):
                answer = pool.request(
                    "POST",
                    url.address,
                    body=body,
                    headers=headers,
                    timeout=Timeout(REPORT_SECONDS),
                    redirect=False,
                    retries=False,
                    preload_content=False,
                )
                answer.close()
            return answer.status == 200
        finally:
            pool.clear()
    except (HTTPError, OSError, FlexError):
        return False


def _send(url: ConfigUrl, sources: DownloadOptions, proxy: str | None, request: ConfigRequest) -> tuple[bytes, str]:
    """Returns the content, and the audience of the node key if the service has bound it."""
    headers, body = request.headers(url), request.body(url)
    method = "GET" if body is None else "POST"
    pool = make_pool(sources, proxy, tls_context_for(url, sources, proxy))
    try:
        with time_limit(BODY_SECONDS):
            response = pool.request(
                method, url.address, body=body, headers=headers, preload_content=False, redirect=False, retries=False
            )
            try:
                if response.status == 202 and body is not None:
                    raise parse_pending(_body(response, url))
                _check_status(response, url)
                audience = response.headers.get(AUDIENCE_HEADER, "") if request.prove else ""
                return _body(response, url), audience[:MAX_AUDIENCE]
            finally:
                response.close()
    finally:
        pool.clear()


def _check_status(response: BaseHTTPResponse, url: ConfigUrl) -> None:
    status = response.status
    if status == 200:
        return
    if status in {400, 404, 409}:
        check_refusal(response.headers, *parse_arm_error(_body(response, url)))
    if status in EXPIRED_STATUSES:
        raise ConfigError(
            "config-url-expired",
            f"The configuration URL at {url.origin} is no longer valid (status {status}): it expired, was already "
            "used, or was replaced.",
            "If this machine is already a node, run `aks-flex-node agent` without the URL. If another machine has "
            "joined with it, create another node for this one with `aks-flex-rp node create --name OTHER "
            "--join-command`, otherwise a new URL with `aks-flex-rp node join-command --name NODE`. Then run the "
            "printed line here.",
        )
    wait = response.headers.get("Retry-After", "")
    is_busy = status == 409 and bool(wait) and url.is_enrolment  # other machines enrol at the same time
    if is_busy or is_retryable(status):
        after = parse_retry_after(wait)
        raise AttemptFailed(f"the server responded with status {status}", after=after)
    problem = "redirects, which is not allowed" if status in REDIRECT_STATUSES else "did not return the configuration"
    raise ConfigError(
        "config-url-rejected",
        f"{url.origin} {problem} (status {status}).",
        "Check that this is the URL that the service printed. A proxy or a sign-in page may have answered instead.",
    )


def _body(response: BaseHTTPResponse, url: ConfigUrl) -> bytes:
    try:
        return read_body(response, MAX_BUNDLE_BYTES)
    except BodyLimitError as limit:
        raise _invalid(url.origin, str(limit)) from None


def parse_bundle(content: bytes, origin: str) -> ConfigBundle:
    """Parses `{"config": {…}, "configVersion": "…"}`. Ignores other keys, which later versions of the service may
    add. The version is a number of the provider or, for a node of an AKS pool, the eTag of its Machine.
    """
    try:
        data: Any = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise _invalid(origin, "it is not JSON") from None
    config = data.get("config") if isinstance(data, dict) else None
    if not isinstance(config, dict):
        raise _invalid(origin, "it has no `config`")
    version = str(data.get("configVersion") or "")
    if version and not VERSION_TEXT.fullmatch(version):
        raise _invalid(origin, "its `configVersion` is not a number or an eTag")
    stored = {"config": config, **({"configVersion": version} if version else {})}
    return ConfigBundle(json.dumps(stored, indent=1) + "\n", version)


def _invalid(origin: str, cause: str) -> ConfigError:
    return ConfigError(
        "config-bundle-invalid",
        f"The response of {origin} is not a node configuration: {cause}.",
        "Check that this is the URL that the service printed. A proxy or a sign-in page may have answered instead.",
    )


def _unreachable(url: ConfigUrl, cause: str) -> ConfigError:
    return ConfigError(
        "config-url-unreachable",
        f"The configuration could not be fetched from {url.origin}: {cause}.",
        "Check that this machine can reach the server (run `curl -v` with its origin only), then run the same "
        "command again. To use a proxy, add `--set proxy.https=http://HOST:PORT`.",
        retryable=True,
    )


STANDARD_INPUT = "-"


def select_config_url(
    url: str | None,
    file: str | None,
    config: Path | None,
    env: Mapping[str, str],
    stdin: TextIO | None = None,
    *,
    plain: bool = False,
    pool: str | None = None,
) -> ConfigUrl | None:
    """Returns the configuration URL, or None if a file or an AKS pool is used. Options override the environment."""
    for other in ({"--config": config}, {"--aks-pool": pool}):  # a file can complete a pool
        options = {**other, "--config-url": url, "--config-url-file": file}
        _one_of([name for name, value in options.items() if value is not None])
    if file is not None:
        return config_urls.parse(_read_url_file(file, stdin or sys.stdin), plain=plain)
    if url is not None:
        return config_urls.parse(url, plain=plain)
    if config is not None or pool is not None or not env.get(URL_VARIABLE):
        return None
    _one_of([name for name in (CONFIG_VARIABLE, URL_VARIABLE) if env.get(name)])
    return config_urls.parse(env[URL_VARIABLE], plain=plain)


def _one_of(names: list[str]) -> None:
    if len(names) > 1:
        raise CommandUsageError(
            "config-source-conflict",
            f"The configuration is set by {' and by '.join(names)}, but only one of them is allowed.",
            "Remove all but one of them.",
        )


def _read_url_file(file: str, stdin: TextIO) -> str:
    try:
        if file == STANDARD_INPUT:
            return stdin.read(config_urls.MAX_URL_LENGTH + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(config_urls.MAX_URL_LENGTH + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CommandUsageError(
            "config-url-unreadable",
            f"The configuration URL cannot be read from {file}: {reason}.",
            "Use a file that contains only the URL, or `-` for standard input.",
        ) from None
