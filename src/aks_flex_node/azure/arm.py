"""A thin client of Azure Resource Manager on azure-core's pipeline, with its errors as messages for operators."""

from __future__ import annotations

import json
from dataclasses import field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from aks_flex_node import __version__
from aks_flex_node.api.arm_errors import parse_object
from aks_flex_node.azure import error_messages
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.core.rest import HttpRequest, HttpResponse

Document = dict[str, Any]

PUBLIC_ENDPOINT = "https://management.azure.com"
MAX_PAGES = 1000
DEFAULT_PAUSE_SECONDS = 10.0  # poll interval if Azure does not specify one
MAX_PAUSE_SECONDS = 60.0


class AzureCallError(FlexError):
    """Azure could not be reached (status 0), or rejected the request."""

    def __init__(
        self,
        name: str,
        message: str,
        hint: str,
        *,
        retryable: bool,
        status: int = 0,
        code: str = "",
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(name, message, hint, retryable=retryable)
        self.status = status
        self.code = code  # error code of ARM
        self.retry_after = retry_after  # seconds that ARM asks to wait; 0 if it does not


@frozen
class ArmReply:
    """A successful response."""

    status: int
    body: Any = None  # the parsed JSON, or the text if it is not JSON
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def pause(self) -> float:
        """Returns the seconds after which to poll again: the Retry-After of Azure, within limits."""
        try:
            return min(max(float(self.headers.get("retry-after", DEFAULT_PAUSE_SECONDS)), 0.2), MAX_PAUSE_SECONDS)
        except ValueError:
            return DEFAULT_PAUSE_SECONDS


class ArmClient:
    """Client of Azure Resource Manager. All calls block, so call it in a thread from asynchronous code."""

    def __init__(
        self,
        credential: TokenCredential,
        endpoint: str = PUBLIC_ENDPOINT,
        *,
        ca_file: str | None = None,
        proxy: str | None = None,
    ) -> None:
        self._credential = credential
        self._endpoint = endpoint.rstrip("/")
        self._ca_file = ca_file
        self._proxy = proxy
        self._pipeline_client: PipelineClient[HttpRequest, HttpResponse] | None = None

    def get(self, path: str, api_version: str, **query: str) -> Document:
        return self._call("GET", path, api_version, **query)

    def find(self, path: str, api_version: str) -> Document | None:
        """Returns a resource, or None if it does not exist."""
        try:
            return self.get(path, api_version)
        except AzureCallError as error:
            if error.status != 404:
                raise
            return None

    def post(self, path: str, api_version: str, body: Any = None) -> Document:
        return self._call("POST", path, api_version, body)

    def put(self, path: str, api_version: str, body: Any) -> Document:
        return self._call("PUT", path, api_version, body)

    def patch(self, path: str, api_version: str, body: Any) -> Document:
        return self._call("PATCH", path, api_version, body)

    def delete(self, path: str, api_version: str) -> None:
        """Deletes a resource, if it exists."""
        try:
            self._call("DELETE", path, api_version)
        except AzureCallError as error:
            if error.status != 404:
                raise

    def list(self, path: str, api_version: str, **query: str) -> list[Document]:
        """Returns the items of all pages of a collection."""
        found: list[Document] = []
        for _ in range(MAX_PAGES):
            page = self.get(path, api_version, **query)
            found += page.get("value") or []
            following = urlsplit(str(page.get("nextLink") or ""))
            # Only the query of the link is used, so that the token is never sent to another host.
            query = {name: value for name, value in parse_qsl(following.query) if name.lower() != "api-version"}
            if not query:
                break
        return found

    def close(self) -> None:
        if self._pipeline_client:
            self._pipeline_client.close()

    def send(
        self,
        method: str,
        where: str,
        api_version: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> ArmReply:
        """Sends one request. `where` is a path, or a URL from ARM, which has its API version. The token is sent only
        to ARM.
        """
        from azure.core.exceptions import AzureError, ClientAuthenticationError  # noqa: PLC0415
        from azure.core.rest import HttpRequest  # noqa: PLC0415

        url = where if where.startswith("https://") else f"{self._endpoint}{where}"
        if _origin(url) != _origin(self._endpoint):
            raise arm_unreachable_error(self._endpoint, f"it redirects to another host, {urlsplit(url).netloc}")
        params = {"api-version": api_version, **query} if api_version else query
        request = HttpRequest(method, url, params=params, json=body, headers=dict(headers or {}))
        try:
            if self._pipeline_client is None:
                self._pipeline_client = _pipeline(self._credential, self._endpoint, self._ca_file, self._proxy)
            response = self._pipeline_client.send_request(request)
            response.read()
        except ClientAuthenticationError as error:
            if is_connection_failure(error):
                raise arm_unreachable_error("Entra ID", error.message) from error
            raise sign_in_failed_error(error.message) from error
        except AzureError as error:
            raise arm_unreachable_error(self._endpoint, error.message) from error
        response_headers = {name.lower(): value for name, value in response.headers.items()}
        text = response.content.decode("utf-8-sig", "replace")
        if response.status_code >= 400:
            raise refused_error(response.status_code, text, response_headers)
        if response.status_code >= 300:
            raise unexpected_error(self._endpoint, response.status_code)
        return ArmReply(response.status_code, _parse(text), response_headers)

    def _call(self, method: str, path: str, api_version: str, body: Any = None, **query: str) -> Document:
        reply = self.send(method, path, api_version, body, {}, **query)
        if reply.body is None and method != "GET":
            return {}
        if not isinstance(reply.body, dict):
            raise unexpected_error(self._endpoint, reply.status)
        return reply.body


def _pipeline(
    credential: TokenCredential, endpoint: str, ca_file: str | None, proxy: str | None
) -> PipelineClient[HttpRequest, HttpResponse]:
    from azure.core import PipelineClient  # noqa: PLC0415
    from azure.core.pipeline import policies  # noqa: PLC0415

    from aks_flex_node.azure.retry_policy import BoundedRetryPolicy  # noqa: PLC0415
    from aks_flex_node.azure.transport import BoundedTransport  # noqa: PLC0415

    trust: Document = {"connection_verify": ca_file} if ca_file else {}
    return PipelineClient(
        endpoint,
        policies=[
            policies.RequestIdPolicy(),
            policies.HeadersPolicy({"Accept": "application/json"}),
            policies.UserAgentPolicy(f"aks-flex-node/{__version__}"),
            policies.ProxyPolicy({"https": proxy} if proxy else None),
            BoundedRetryPolicy(retry_total=4, retry_backoff_factor=0.4, timeout=60),
            policies.BearerTokenCredentialPolicy(credential, f"{endpoint}/.default"),
        ],
        transport=BoundedTransport(**trust),
    )


HINTS = {
    401: "Check the identity in use, and that its tenant is the tenant of the subscription.",
    403: "Assign a role on the resource to this identity with `az role assignment create`.",
    404: "Check the ID: subscription, resource group and name.",
    429: "Azure throttles requests. Run the same command again in a minute.",
}


def refused_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> AzureCallError:
    """Returns the error of a rejected request, with ARM's message if any. `headers` have names in lower case."""
    response_headers = headers or {}
    content = parse_object(text.encode()).get("error")
    error: Document = content if isinstance(content, dict) else {}
    code = str(error.get("code") or f"HTTP {status}")
    message = str(error.get("message") or "no message").rstrip(".")
    correlation = response_headers.get("x-ms-correlation-request-id") or response_headers.get("x-ms-request-id") or ""
    details = f" (correlation ID {correlation})" if correlation else ""
    return AzureCallError(
        "arm-request-rejected",
        f"Azure rejected the request ({code}): {message}{details}.",
        _remedy(status, message, response_headers.get("retry-after", "")),
        retryable=status in {408, 429} or status >= 500,
        status=status,
        code=code,
        retry_after=error_messages.retry_seconds(response_headers.get("retry-after", "")),
    )


def _remedy(status: int, message: str, retry_after: str) -> str:
    if status == 403 and (missing := error_messages.parse_forbidden(message)):
        return missing.remedy
    if status == 429 and (moment := error_messages.retry_time(retry_after, datetime.now(timezone.utc))):
        return f"Azure throttles requests of this identity. Run the same command again after {moment}."
    return HINTS.get(status, "Run the same command again later." if status >= 500 else "")


def arm_unreachable_error(endpoint: str, cause: str) -> AzureCallError:
    text = cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"
    text = f"{text})" if text.count("(") > text.count(")") else text
    return AzureCallError(
        "arm-unreachable",
        f"{endpoint} cannot be reached: {text}.",
        "Check the network, the proxy, and the CA file of a private cloud.",
        retryable=True,
    )


def unexpected_error(endpoint: str, status: int) -> AzureCallError:
    return AzureCallError(
        "arm-unreachable",
        f"The response from {endpoint} with status {status} does not come from Azure.",
        "A proxy or a sign-in page responds in its place. Sign the machine in to its network, or correct the proxy.",
        retryable=True,
    )


def sign_in_failed_error(cause: str) -> AzureCallError:
    failure = error_messages.parse_sign_in_error(cause)
    return AzureCallError(
        "azure-sign-in-failed", failure.sentence(), failure.remedy, retryable=False, status=401, code=failure.code
    )


def is_connection_failure(error: BaseException) -> bool:
    """Returns whether a sign-in failed because of the connection, which MSAL reports as an authentication error."""
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError  # noqa: PLC0415

    return isinstance(error.__context__, ServiceRequestError | ServiceResponseError)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or 443


def _parse(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text
