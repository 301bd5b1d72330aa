"""The HTTP client of the commands: Azure Resource Manager, or a self-hosted resource provider."""

from __future__ import annotations

import logging
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.cli.core.aaz import register_client
from azure.cli.core.aaz._client import AAZMgmtClient
from azure.cli.core.aaz._command_ctx import AAZCommandCtx
from azure.cli.core.azclierror import (
    ArgumentUsageError,
    FileOperationError,
    InvalidArgumentValueError,
    RequiredArgumentMissingError,
)
from azure.core.credentials import AccessToken
from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy
from knack.log import get_logger
from knack.util import CLIError

from azext_aks_flex_node.secret_input import UNREADABLE, file_error, read_private

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest, PipelineResponse

CLIENT = "AksFlexNodeClient"
SECTION = "aks_flex_node"  # of az's configuration: its variables are AZURE_AKS_FLEX_NODE_…
RETRIED_METHODS = frozenset(
    {"GET"}
)  # what is asked again when no answer came: of a write nobody knows whether it was done
MAX_RETRY_SECONDS = 60.0  # seconds that a command waits because a service asks it to
SECRET = re.compile(r'("(?:clientSecret|configUrl)"\s*:\s*")(?:[^"\\]|\\.)*')
GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
NO_SUBSCRIPTION = "You are not signed in to Azure, and the id of a cluster begins with that of its subscription."
NEVER_EXPIRES = 2**40
logger = get_logger(__name__)


@dataclass(frozen=True)
class ServiceEndpoint:
    endpoint: str = ""  # Azure Resource Manager when empty
    ca_file: str = ""
    key_file: str = ""

    @classmethod
    def of(cls, ctx: FlexNodeContext) -> ServiceEndpoint:
        """From the options, else from az's configuration or its variables."""
        options = {name: str(ctx.options.get(name) or "") for name in ("rp_endpoint", "rp_ca_file", "rp_key_file")}
        configured = ConfiguredEndpoint.of(ctx)
        endpoint = (options["rp_endpoint"] or configured.endpoint).rstrip("/")
        if not endpoint:
            _require_endpoint(options)
            return cls()

        def known(name: str) -> str:
            return options[name] or configured.value_for(endpoint, name)

        return cls(_valid_endpoint(endpoint), _valid_ca_file(known("rp_ca_file")), known("rp_key_file"))


@dataclass(frozen=True)
class ConfiguredEndpoint:
    """What az's configuration and its variables have, each with the place where it stands."""

    found: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, ctx: FlexNodeContext) -> ConfiguredEndpoint:
        return cls({each["name"]: (each["value"], each["source"]) for each in ctx.cli_ctx.config.items(SECTION)})

    @property
    def endpoint(self) -> str:
        return self.found.get("rp_endpoint", ("", ""))[0].rstrip("/")

    def value_for(self, endpoint: str, name: str) -> str:
        """Nothing where it stands beside the address of another service: the key of one is not shown to the other."""
        value, source = self.found.get(name, ("", ""))
        address_in = self.found.get("rp_endpoint", ("", ""))[1]
        if self.endpoint in {"", endpoint} and (source in os.environ or address_in not in os.environ):
            return value
        if value:
            logger.warning("%s of %s is not used: it is not said to be of %s.", name, source, endpoint)
        return ""


def _require_endpoint(options: dict[str, str]) -> None:
    lonely = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if lonely:
        raise ArgumentUsageError(
            f"{' and '.join(lonely)}: there is no self-hosted service to use it with.",
            f"Name one with --rp-endpoint, or with `az config set {SECTION}.rp_endpoint=https://host:8443`.",
        )


def _valid_endpoint(endpoint: str) -> str:
    """Nothing but scheme, host and port: what else is said in an address would be lost, or shown to others."""
    try:
        parts = urlsplit(endpoint)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.hostname and endpoint.lower() == f"https://{host}{port}":
        return endpoint
    raise InvalidArgumentValueError(
        f"--rp-endpoint: {endpoint.rpartition('@')[2]!r} is no address of a service.", "Write https://host:port."
    )


def _valid_ca_file(file: str) -> str:
    """Checked here, because who connects with a wrong one says only that there is no connection."""
    if not file:
        return ""
    try:
        path = Path(file).expanduser()
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise FileOperationError(f"--rp-ca-file: {file} holds no certificate.", "It is to be PEM.") from None
    except UNREADABLE as error:
        raise file_error(file, "--rp-ca-file", error) from None
    return str(path)


class AdminKeyCredential:
    """A credential that is what it shows: the admin key of a service."""

    def __init__(self, key: str) -> None:
        self._key = key

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(self._key, NEVER_EXPIRES)


class FlexNodeContext(AAZCommandCtx):
    """A command's context that knows its service, and may ask it as its administrator."""

    _service: ServiceEndpoint | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, and no others."""
        found: dict[str, Any] = self.args.to_serialized_data()
        return found

    @property
    def service(self) -> ServiceEndpoint:
        if self._service is None:
            self._service = ServiceEndpoint.of(self)
        return self._service

    @property
    def subscription_id(self) -> str:
        """Which one a cluster of a self-hosted service is in, somebody who is not signed in has to say, by its id."""
        if not self.service.key_file:
            return str(super().subscription_id)
        try:
            found = str(super().subscription_id)
        except CLIError:
            raise RequiredArgumentMissingError(NO_SUBSCRIPTION, "Give its id with --subscription.") from None
        if not GUID.fullmatch(found):
            raise InvalidArgumentValueError(
                f"--subscription: you are not signed in, so that nobody knows the id of {found!r}.", "Give its id."
            )
        return found

    def get_login_credential(self) -> Any:
        """The key goes nowhere but to the service that it belongs to."""
        if self.service.endpoint and self.service.key_file:
            return AdminKeyCredential(read_private(self.service.key_file, "--rp-key-file"))
        return super().get_login_credential()


@register_client(CLIENT)
class FlexNodeClient(AAZMgmtClient):
    def __init__(self, ctx: FlexNodeContext, credential: Any, **kwargs: Any) -> None:
        super().__init__(ctx, credential, **kwargs)
        trust = {"connection_verify": ctx.service.ca_file} if ctx.service.ca_file else {}
        self._sending = {"retry_on_methods": RETRIED_METHODS, "permit_redirects": False, **trust}

    def send_request(self, request: Any, stream: bool = False, **kwargs: Any) -> Any:
        return super().send_request(request, stream=stream, **self._sending, **kwargs)

    @classmethod
    def _build_base_url(cls, ctx: FlexNodeContext, **kwargs: Any) -> str:
        return ctx.service.endpoint or str(super()._build_base_url(ctx, **kwargs)).rstrip("/")

    @classmethod
    def _build_configuration(cls, ctx: FlexNodeContext, credential: Any, **kwargs: Any) -> Any:
        own = {**kwargs, "logging_policy": RedactedLoggingPolicy(), "retry_policy": BoundedRetryPolicy()}
        return super()._build_configuration(ctx, credential, **own)

    @classmethod
    def _build_per_call_policies(cls, ctx: FlexNodeContext, **kwargs: Any) -> Any:
        return [] if ctx.service.endpoint else super()._build_per_call_policies(ctx, **kwargs)


class RedactedLoggingPolicy(SansIOHTTPPolicy[Any, Any]):
    """Tells `--debug` what goes over the wire, without secrets and without URLs that are secrets."""

    def on_request(self, request: PipelineRequest[Any]) -> None:
        sent = request.http_request
        logger.debug("Request: %s %s", sent.method, sent.url)
        logger.debug("Request body: %s", _redacted(sent.body))

    def on_response(self, _request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:
        got = response.http_response
        logger.debug("Response: %s, request id %s", got.status_code, got.headers.get("x-ms-request-id"))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Response body: %s", _redacted(got.text()))


def _redacted(body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    return SECRET.sub(r"\1***", text)


class BoundedRetryPolicy(RetryPolicy[Any, Any]):
    """Waits as long as a service asks for, within reason, and says so."""

    def __init__(self) -> None:
        super().__init__(retry_total=4, retry_connect=1, retry_read=1, retry_backoff_factor=0.5)

    def is_retry(self, settings: dict[str, Any], response: PipelineResponse[Any, Any]) -> bool:
        too_long = (self.get_retry_after(response) or 0.0) > MAX_RETRY_SECONDS
        return not too_long and bool(super().is_retry(settings, response))

    def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:
        seconds = self.get_retry_after(response) if response else None
        if seconds:
            logger.warning("The service is busy, and is asked again in %.0f s.", seconds)
        super().sleep(settings, transport, response)
