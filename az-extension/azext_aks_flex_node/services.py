"""Which service a command speaks to: Azure Resource Manager, or a resource provider that somebody hosts himself."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.cli.core.aaz import register_client
from azure.cli.core.aaz._client import AAZMgmtClient
from azure.cli.core.aaz._command_ctx import AAZCommandCtx
from azure.cli.core.azclierror import ArgumentUsageError, FileOperationError, InvalidArgumentValueError
from azure.core.credentials import AccessToken
from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy
from knack.log import get_logger

from azext_aks_flex_node.private_files import read_private

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest, PipelineResponse

CLIENT = "AksFlexNodeClient"
API_VERSION = "2026-05-01-preview"
SECTION = "aks_flex_node"  # of az's configuration: its variables are AZURE_AKS_FLEX_NODE_…
READS = frozenset({"GET"})  # what is asked again when no answer came: of a write nobody knows whether it was done
LONGEST = 60.0  # seconds that a command waits because a service asks it to
SECRET = re.compile(r'("(?:clientSecret|configUrl)"\s*:\s*")(?:[^"\\]|\\.)*')
FOREVER = 2**40
logger = get_logger(__name__)


@dataclass(frozen=True)
class Service:
    endpoint: str = ""  # Azure Resource Manager when empty
    ca_file: str = ""
    key_file: str = ""

    @classmethod
    def of(cls, ctx: Context) -> Service:
        """From the options, else from az's configuration or its variables."""

        def said(name: str) -> str:
            return str(ctx.typed.get(name) or "")

        def known(name: str) -> str:
            return said(name) or str(ctx.cli_ctx.config.get(SECTION, name, fallback=""))

        endpoint = known("rp_endpoint").rstrip("/")
        if not endpoint:
            lonely = [f"--{name.replace('_', '-')}" for name in ("rp_ca_file", "rp_key_file") if said(name)]
            if lonely:
                raise ArgumentUsageError(
                    f"{' and '.join(lonely)}: there is no self-hosted service to use it with.",
                    f"Name one with --rp-endpoint, or with `az config set {SECTION}.rp_endpoint=https://host:8443`.",
                )
            return cls()
        return cls(_checked(endpoint), _readable(known("rp_ca_file")), known("rp_key_file"))


def _checked(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme == "https" and parts.hostname and not parts.path:
        return endpoint
    raise InvalidArgumentValueError(
        f"--rp-endpoint: {endpoint!r} is no address of a service.", "Write https://host:port."
    )


def _readable(file: str) -> str:
    path = Path(file).expanduser()
    if file and not os.access(path, os.R_OK):
        raise FileOperationError(f"{file} cannot be read.", "Check --rp-ca-file.")
    return str(path) if file else ""


class Key:
    """A credential that is what it shows: the admin key of a service."""

    def __init__(self, key: str) -> None:
        self._key = key

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(self._key, FOREVER)


class Context(AAZCommandCtx):
    """A command's context that knows its service, and may ask it as its administrator."""

    _service: Service | None = None

    @property
    def typed(self) -> dict[str, Any]:
        """The options that were given, and no others."""
        found: dict[str, Any] = self.args.to_serialized_data()
        return found

    @property
    def service(self) -> Service:
        if self._service is None:
            self._service = Service.of(self)
        return self._service

    def get_login_credential(self) -> Any:
        """The key goes nowhere but to the service that it belongs to."""
        if self.service.endpoint and self.service.key_file:
            return Key(read_private(self.service.key_file, "--rp-key-file"))
        return super().get_login_credential()


@register_client(CLIENT)
class FlexNodeClient(AAZMgmtClient):
    def __init__(self, ctx: Context, credential: Any, **kwargs: Any) -> None:
        super().__init__(ctx, credential, **kwargs)
        trust = {"connection_verify": ctx.service.ca_file} if ctx.service.ca_file else {}
        self._sending = {"retry_on_methods": READS, **trust}

    def send_request(self, request: Any, stream: bool = False, **kwargs: Any) -> Any:
        return super().send_request(request, stream=stream, **self._sending, **kwargs)

    @classmethod
    def _build_base_url(cls, ctx: Context, **kwargs: Any) -> str:
        return ctx.service.endpoint or str(super()._build_base_url(ctx, **kwargs)).rstrip("/")

    @classmethod
    def _build_configuration(cls, ctx: Context, credential: Any, **kwargs: Any) -> Any:
        own = {**kwargs, "logging_policy": Discreet(), "retry_policy": Patience()}
        return super()._build_configuration(ctx, credential, **own)

    @classmethod
    def _build_per_call_policies(cls, ctx: Context, **kwargs: Any) -> Any:
        return [] if ctx.service.endpoint else super()._build_per_call_policies(ctx, **kwargs)


class Discreet(SansIOHTTPPolicy[Any, Any]):
    """Tells `--debug` what goes over the wire, without secrets and without URLs that are secrets."""

    def on_request(self, request: PipelineRequest[Any]) -> None:
        sent = request.http_request
        logger.debug("Request: %s %s", sent.method, sent.url)
        logger.debug("Request body: %s", _shown(sent.body))

    def on_response(self, _request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:
        got = response.http_response
        logger.debug("Response: %s, request id %s", got.status_code, got.headers.get("x-ms-request-id"))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Response body: %s", _shown(got.text()))


def _shown(body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    return SECRET.sub(r"\1***", text)


class Patience(RetryPolicy[Any, Any]):
    """Waits as long as a service asks for, within reason, and says so."""

    def __init__(self) -> None:
        super().__init__(retry_total=4, retry_connect=1, retry_read=1, retry_backoff_factor=0.5)

    def is_retry(self, settings: dict[str, Any], response: PipelineResponse[Any, Any]) -> bool:
        too_long = (self.get_retry_after(response) or 0.0) > LONGEST
        return not too_long and bool(super().is_retry(settings, response))

    def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:
        seconds = self.get_retry_after(response) if response else None
        if seconds:
            logger.warning("The service is busy, and is asked again in %.0f s.", seconds)
        super().sleep(settings, transport, response)
