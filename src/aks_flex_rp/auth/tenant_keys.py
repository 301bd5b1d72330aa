"""Signing keys of an Entra tenant: fetched from its metadata, refreshed, and kept while the tenant is unreachable."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import urllib3
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from aks_flex_node.bounded_http.connections import bound, protocol_cause
from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit
from aks_flex_rp.auth.auth_errors import TenantUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_rp.auth.auth_settings import TenantSettings

    Fetch = Callable[[str], Any]  # returns the JSON document at a URL; blocks, and raises OSError or ValueError

FRESH_SECONDS = 3600.0  # maximum age of the keys before a refresh
RETRY_SECONDS = 30.0  # between refreshes, so that tokens with invented key IDs do not flood the tenant's endpoint
FIRST_RETRY_SECONDS = 2.0  # while no key is known
MAX_RESPONSE_BYTES = 1 << 20
FETCH_SECONDS = 30.0  # for one document, with its retries

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TenantMetadata:
    """Issuers and signing keys from the metadata of a tenant."""

    issuers: frozenset[str] = frozenset()
    keys: Mapping[str, PyJWK] = field(default_factory=dict)  # by key ID


class TenantKeys:
    """Signing keys of one tenant. Must be used from one event loop only."""

    def __init__(self, tenant: TenantSettings, fetch: Fetch, clock: Callable[[], float]) -> None:
        self.tenant = tenant
        self._fetch = fetch
        self._clock = clock
        self._known = TenantMetadata()
        self._fetched = self._requested = float("-inf")
        self._cause = ""
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def issuers(self) -> frozenset[str]:
        return self._known.issuers

    async def key(self, key_id: str) -> PyJWK | None:
        """Returns a key, or None if the tenant does not have it. Raises TenantUnreachable if it was never reached."""
        found = self._known.keys.get(key_id)
        now = self._clock()
        due = found is None or now - self._fetched > FRESH_SECONDS
        patience = RETRY_SECONDS if self._known.keys else FIRST_RETRY_SECONDS
        if due and (self._refreshing or now - self._requested > patience):
            if self._refreshing is None:
                self._requested = self._clock()
                self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            asking = self._refreshing
            if not found:  # a token with a known key need not wait for the refresh
                await asyncio.shield(asking)
                found = self._known.keys.get(key_id)
        if not self._known.keys:
            raise TenantUnreachable(self.tenant.metadata, self._cause)
        return found

    async def _refresh(self) -> None:
        try:
            self._known = await asyncio.to_thread(self._learn)
            self._fetched = self._clock()
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            self._cause = _plain(error)
            log.warning("Cannot refresh the keys of %s: %s", self.tenant.metadata, self._cause)
        finally:
            self._refreshing = None

    def _learn(self) -> TenantMetadata:
        metadata = _object(self._fetch(self.tenant.metadata))
        address, issuer = str(metadata.get("jwks_uri", "")), str(metadata.get("issuer", ""))
        if not address.lower().startswith("https://") or not issuer:
            raise ValueError("the metadata contains no issuer, or no https:// URL of keys")
        keys = parse_keys(self.tenant.tenant_id, _object(self._fetch(address)))
        if not keys:
            raise ValueError("the tenant publishes no usable key")
        return TenantMetadata(token_issuers(self.tenant.tenant_id, issuer), keys)


def token_issuers(tenant: str, issuer: str) -> frozenset[str]:
    """Returns the issuers of v2.0 tokens (from the metadata) and of v1.0 tokens, which are used for ARM."""
    return frozenset({issuer.replace("{tenantid}", tenant), f"https://sts.windows.net/{tenant}/"})


def parse_keys(tenant: str, document: Mapping[str, Any]) -> dict[str, PyJWK]:
    """Parses the keys that verify signatures of this tenant. Skips keys of other tenants and of unknown types."""
    shown = document.get("keys")
    found = {}
    for each in filter(lambda each: isinstance(each, dict), shown if isinstance(shown, list) else ()):
        if each.get("use", "sig") != "sig" or each.get("kty") not in {"RSA", "EC"} or not each.get("kid"):
            continue
        if tenant not in str(each.get("issuer", tenant)).replace("{tenantid}", tenant):
            continue
        try:
            found[str(each["kid"])] = PyJWK.from_dict(each)
        except (PyJWTError, ValueError):
            log.warning("Skipped a key of the tenant that cannot be parsed.")
    return found


def https_fetcher(ca_file: str | None) -> Fetch:
    """Returns a function that fetches JSON over verified TLS, with the system's CA certificates or the given ones."""
    pool = bound(
        urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file,
            timeout=urllib3.Timeout(connect=5.0, read=10.0),
            retries=urllib3.Retry(2, redirect=0, backoff_factor=0.2, respect_retry_after_header=False),
        )
    )

    def fetch(address: str) -> Any:
        headers = {"Accept": "application/json"}
        with time_limit(FETCH_SECONDS):
            answer = pool.request("GET", address, headers=headers, preload_content=False, redirect=False)
            try:
                if answer.status != 200:
                    raise ValueError(f"unexpected status {answer.status}")
                content = read_body(answer, MAX_RESPONSE_BYTES)
            except BodyLimitError as limit:
                raise ValueError(f"the response cannot be used, {limit}") from None
            finally:
                answer.close()
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("the response is not JSON") from None

    return fetch


def _object(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("the response is not a JSON object")
    return document


def _plain(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    if isinstance(reason, urllib3.exceptions.ProtocolError):
        return protocol_cause(reason)
    return str(error).rsplit(": ", 1)[-1].strip(" ()'\"") or type(error).__name__
