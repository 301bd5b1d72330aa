"""HTTP client of the commands, for Azure Resource Manager or a self-hosted resource provider."""

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
from azure.cli.core.aaz._client import AAZClientConfiguration, AAZMgmtClient
from azure.cli.core.aaz._command_ctx import AAZCommandCtx
from azure.cli.core.auth.util import resource_to_scopes
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
from azext_aks_flex_node.vendored.audiences import may_send_token

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest, PipelineResponse

CLIENT = "AksFlexNodeClient"
SECTION = "aks_flex_node"  # of az's configuration; environment variables: AZURE_AKS_FLEX_NODE_…
SERVICE_OPTIONS = ("rp_endpoint", "rp_ca_file", "rp_key_file", "rp_audience")
RETRIED_METHODS = frozenset({"GET"})  # a write without a response may have succeeded
MAX_RETRY_SECONDS = 60.0  # limit of a Retry-After that a command waits for
SECRET = re.compile(r'("(?:clientSecret|configUrl)"\s*:\s*")(?:[^"\\]|\\.)*')
GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
NO_SUBSCRIPTION = "The subscription of the cluster is unknown, because you are not signed in to Azure."
NEVER_EXPIRES = 2**40
logger = get_logger(__name__)


@dataclass(frozen=True)
class ServiceEndpoint:
    """URL, CA file, admin key file and token audience of the service."""

    endpoint: str = ""  # Azure Resource Manager when empty
    ca_file: str = ""
    key_file: str = ""
    audience: str = ""

    @classmethod
    def of(cls, ctx: FlexNodeContext) -> ServiceEndpoint:
        """Reads the endpoint from the options, or from az's configuration and environment variables."""
        options = {name: str(ctx.options.get(name) or "") for name in SERVICE_OPTIONS}
        configured = ConfiguredEndpoint.of(ctx)
        endpoint = (options["rp_endpoint"] or configured.endpoint).rstrip("/")
        if not endpoint:
            _require_endpoint(options)
            return cls()

        def known(name: str) -> str:
            return options[name] or configured.value_for(endpoint, name)

        key_file, manager = known("rp_key_file"), str(ctx.cli_ctx.cloud.endpoints.resource_manager)
        audience = "" if key_file else _valid_audience(known("rp_audience"), _valid_endpoint(endpoint), manager)
        return cls(_valid_endpoint(endpoint), _valid_ca_file(known("rp_ca_file")), key_file, audience)


@dataclass(frozen=True)
class ConfiguredEndpoint:
    """Values of az's configuration and environment variables, with their sources."""

    found: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, ctx: FlexNodeContext) -> ConfiguredEndpoint:
        return cls({each["name"]: (each["value"], each["source"]) for each in ctx.cli_ctx.config.items(SECTION)})

    @property
    def endpoint(self) -> str:
        return self.found.get("rp_endpoint", ("", ""))[0].rstrip("/")

    def value_for(self, endpoint: str, name: str) -> str:
        """Returns a configured value only if it belongs to this endpoint: the key of one service must not be sent to
        another."""
        value, source = self.found.get(name, ("", ""))
        endpoint_source = self.found.get("rp_endpoint", ("", ""))[1]
        if self.endpoint in {"", endpoint} and (source in os.environ or endpoint_source not in os.environ):
            return value
        if value:
            logger.warning("Ignoring %s from %s: it is not configured for %s.", name, source, endpoint)
        return ""


def _require_endpoint(options: dict[str, str]) -> None:
    unused = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if unused:
        raise ArgumentUsageError(
            f"{' and '.join(unused)} requires --rp-endpoint.",
            f"Set --rp-endpoint, or run `az config set {SECTION}.rp_endpoint=https://HOST:8443`.",
        )


def _valid_endpoint(endpoint: str) -> str:
    """Accepts only scheme, host and port. Other parts would be ignored, or could leak credentials."""
    try:
        parts = urlsplit(endpoint)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.hostname and endpoint.lower() == f"https://{host}{port}":
        return endpoint
    raise InvalidArgumentValueError(
        f"--rp-endpoint: {endpoint.rpartition('@')[2]!r} is not a valid service URL.", "Use https://HOST:PORT."
    )


def _valid_audience(audience: str, endpoint: str, resource_manager: str) -> str:
    """Accepts only an audience of the service's own: with a token for Azure, the service could act as the user."""
    if not audience:
        raise RequiredArgumentMissingError(
            f"--rp-audience is required: which tokens does {endpoint} accept?",
            "Set --rp-audience to the audience in the service's settings (auth.tenants[].audiences), such as "
            f"api://CLIENT-ID, or run `az config set {SECTION}.rp_audience=…`. Alternatively, use its admin key with "
            "--rp-key-file.",
        )
    if not may_send_token(audience, endpoint, resource_manager):
        raise InvalidArgumentValueError(
            f"--rp-audience: tokens for {audience} are not sent to {endpoint}, because another service may accept "
            "them.",
            "Use the audience of the service's own application, such as api://CLIENT-ID.",
        )
    return audience


def _valid_ca_file(file: str) -> str:
    """Validates the CA file. With an invalid one, the HTTP client only reports a failed connection."""
    if not file:
        return ""
    try:
        path = Path(file).expanduser()
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise FileOperationError(f"--rp-ca-file: {file} does not contain a certificate.", "Use a PEM file.") from None
    except UNREADABLE as error:
        raise file_error(file, "--rp-ca-file", error) from None
    return str(path)


class AdminKeyCredential:
    """A credential that returns the admin key as the token."""

    def __init__(self, key: str) -> None:
        self._key = key

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(self._key, NEVER_EXPIRES)


class FlexNodeContext(AAZCommandCtx):
    """Context of a command, with its service endpoint and credential."""

    _service: ServiceEndpoint | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options on the command line."""
        found: dict[str, Any] = self.args.to_serialized_data()
        return found

    @property
    def service(self) -> ServiceEndpoint:
        if self._service is None:
            self._service = ServiceEndpoint.of(self)
        return self._service

    @property
    def subscription_id(self) -> str:
        """The subscription ID. A self-hosted service accepts also an ID that Azure does not know."""
        if not self.service.endpoint:
            return str(super().subscription_id)
        try:
            found = str(super().subscription_id)
        except CLIError:
            if not self.service.key_file:
                raise
            raise RequiredArgumentMissingError(NO_SUBSCRIPTION, "Set its ID with --subscription.") from None
        if not GUID.fullmatch(found):
            raise InvalidArgumentValueError(
                f"--subscription: {found!r} is not an ID, and az knows no subscription of this name.",
                "Set the subscription ID.",
            )
        return found

    def get_login_credential(self) -> Any:
        """Returns the admin key only for its own service."""
        if self.service.endpoint and self.service.key_file:
            return AdminKeyCredential(read_private(self.service.key_file, "--rp-key-file"))
        if self.service.endpoint and not self._is_known_subscription():
            credential, _, _ = self.profile.get_login_credentials()  # of the default account
            return credential
        return super().get_login_credential()

    def _is_known_subscription(self) -> bool:
        known = {str(each["id"]).lower() for each in self.profile.load_cached_subscriptions()}
        return self.subscription_id.lower() in known


@register_client(CLIENT)
class FlexNodeClient(AAZMgmtClient):
    """Client without redirects that retries only reads."""

    def __init__(self, ctx: FlexNodeContext, credential: Any, **kwargs: Any) -> None:
        super().__init__(ctx, credential, **kwargs)
        trust = {"connection_verify": ctx.service.ca_file} if ctx.service.ca_file else {}
        self._send_options = {"retry_on_methods": RETRIED_METHODS, "permit_redirects": False, **trust}

    def send_request(self, request: Any, stream: bool = False, **kwargs: Any) -> Any:
        return super().send_request(request, stream=stream, **self._send_options, **kwargs)

    @classmethod
    def _build_base_url(cls, ctx: FlexNodeContext, **kwargs: Any) -> str:
        return ctx.service.endpoint or str(super()._build_base_url(ctx, **kwargs)).rstrip("/")

    @classmethod
    def _build_configuration(cls, ctx: FlexNodeContext, credential: Any, **kwargs: Any) -> Any:
        own = {**kwargs, "logging_policy": RedactedLoggingPolicy(), "retry_policy": BoundedRetryPolicy()}
        if not ctx.service.endpoint:
            return super()._build_configuration(ctx, credential, **own)
        scopes = resource_to_scopes(ctx.service.audience or ctx.service.endpoint)  # the admin key has no scope
        return AAZClientConfiguration(credential=credential, credential_scopes=scopes, **own)

    @classmethod
    def _build_per_call_policies(cls, ctx: FlexNodeContext, **kwargs: Any) -> Any:
        return [] if ctx.service.endpoint else super()._build_per_call_policies(ctx, **kwargs)


class RedactedLoggingPolicy(SansIOHTTPPolicy[Any, Any]):
    """Logs requests and responses for `--debug`, without secrets."""

    def on_request(self, request: PipelineRequest[Any]) -> None:
        sent = request.http_request
        logger.debug("Request: %s %s", sent.method, sent.url)
        logger.debug("Request body: %s", _redacted(sent.body))

    def on_response(self, _request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:
        got = response.http_response
        logger.debug("Response: %s, request ID %s", got.status_code, got.headers.get("x-ms-request-id"))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Response body: %s", _redacted(got.text()))


def _redacted(body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    return SECRET.sub(r"\1***", text)


class BoundedRetryPolicy(RetryPolicy[Any, Any]):
    """Honours Retry-After up to a limit, and logs the wait."""

    def __init__(self) -> None:
        super().__init__(retry_total=4, retry_connect=1, retry_read=1, retry_backoff_factor=0.5)

    def is_retry(self, settings: dict[str, Any], response: PipelineResponse[Any, Any]) -> bool:
        too_long = (self.get_retry_after(response) or 0.0) > MAX_RETRY_SECONDS
        return not too_long and bool(super().is_retry(settings, response))

    def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:
        seconds = self.get_retry_after(response) if response else None
        if seconds:
            logger.warning("The service is busy. Retrying in %.0f s.", seconds)
        super().sleep(settings, transport, response)
