"""A thin client of Azure Resource Manager on azure-core's pipeline, and its errors as messages for the operator."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from aks_flex_node import __version__
from aks_flex_node.azure import error_messages
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.core.rest import HttpRequest, HttpResponse

PUBLIC_ENDPOINT = "https://management.azure.com"
MAX_PAGES = 1000


class ArmReader(Protocol):
    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]: ...

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]: ...


class AzureCallError(FlexError):
    """Azure cannot be asked (status 0), or its answer is no."""

    def __init__(
        self, name: str, message: str, hint: str, *, retryable: bool, status: int = 0, code: str = ""
    ) -> None:
        super().__init__(name, message, hint, retryable=retryable)
        self.status = status
        self.code = code  # ARM's own


@dataclass(frozen=True)
class ArmReply:
    """An answer that is no refusal, with all that it says."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case


class ArmClient:
    """Every call blocks; from a service that is to go on meanwhile, call it in a thread."""

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
        self._made: PipelineClient[HttpRequest, HttpResponse] | None = None

    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]:
        return self._call("GET", path, api_version, query)

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]:
        return self._call("POST", path, api_version, {}, body)

    def put(self, path: str, api_version: str, body: Any) -> dict[str, Any]:
        return self._call("PUT", path, api_version, {}, body)

    def patch(self, path: str, api_version: str, body: Any) -> dict[str, Any]:
        return self._call("PATCH", path, api_version, {}, body)

    def delete(self, path: str, api_version: str) -> None:
        self._call("DELETE", path, api_version, {})

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:
        """All pages of a collection."""
        found: list[dict[str, Any]] = []
        for _ in range(MAX_PAGES):
            page = self.get(path, api_version, **query)
            found += page.get("value") or []
            following = urlsplit(str(page.get("nextLink") or ""))
            # Only the link's words are taken: where to go, we know, and our token goes nowhere else.
            query = {name: value for name, value in parse_qsl(following.query) if name.lower() != "api-version"}
            if not query:
                break
        return found

    def close(self) -> None:
        if self._made:
            self._made.close()

    def send(
        self,
        method: str,
        where: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ArmReply:
        """One call. `where` is a path, or a full URL that ARM gave: our token goes to ARM, and nowhere else."""
        from azure.core.exceptions import AzureError, ClientAuthenticationError  # noqa: PLC0415
        from azure.core.rest import HttpRequest  # noqa: PLC0415

        url = where if where.startswith("https://") else f"{self._endpoint}{where}"
        if _origin(url) != _origin(self._endpoint):
            raise arm_unreachable_error(self._endpoint, f"it sends us elsewhere, to {urlsplit(url).netloc}")
        request = HttpRequest(method, url, params=dict(query or {}), json=body, headers=dict(headers or {}))
        try:
            answer = self._client().send_request(request)
            answer.read()
        except ClientAuthenticationError as error:
            if is_connection_failure(error):
                raise arm_unreachable_error("Entra ID", error.message) from error
            raise sign_in_failed_error(error.message) from error
        except AzureError as error:
            raise arm_unreachable_error(self._endpoint, error.message) from error
        heard = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status_code >= 400:
            raise refused_error(answer.status_code, answer.text(), heard)
        return ArmReply(answer.status_code, answer.text(), heard)

    def _call(
        self, method: str, path: str, api_version: str, query: Mapping[str, str], body: Any = None
    ) -> dict[str, Any]:
        return _object(self.send(method, path, {"api-version": api_version, **query}, body).text)

    def _client(self) -> PipelineClient[HttpRequest, HttpResponse]:
        if self._made is None:
            self._made = _pipeline(self._credential, self._endpoint, self._ca_file, self._proxy)
        return self._made


def _pipeline(
    credential: TokenCredential, endpoint: str, ca_file: str | None, proxy: str | None
) -> PipelineClient[HttpRequest, HttpResponse]:
    from azure.core import PipelineClient  # noqa: PLC0415
    from azure.core.pipeline import policies  # noqa: PLC0415

    from aks_flex_node.azure.retry_policy import BoundedRetryPolicy  # noqa: PLC0415

    trust: dict[str, Any] = {"connection_verify": ca_file} if ca_file else {}
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
        connection_timeout=10,
        read_timeout=60,
        **trust,
    )


HINTS = {
    401: "Check which identity this uses, and that its tenant is the subscription's.",
    403: "Give this identity a role on the resource: `az role assignment create`.",
    404: "Check the id: subscription, resource group and name.",
    429: "Azure asks for patience; try again in a minute.",
}


def refused_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> AzureCallError:
    """ARM's refusal, in ARM's words where it has any. `headers` have names in lower case."""
    heard = headers or {}
    content = _object(text).get("error")
    error: dict[str, Any] = content if isinstance(content, dict) else {}
    code = str(error.get("code") or f"HTTP {status}")
    message = str(error.get("message") or "it gave no reason").rstrip(".")
    correlation = heard.get("x-ms-correlation-request-id") or heard.get("x-ms-request-id") or ""
    about = f" (correlation id {correlation})" if correlation else ""
    return AzureCallError(
        "arm-request-rejected",
        f"Azure refused ({code}): {message}{about}.",
        _remedy(status, message, heard.get("retry-after", "")),
        retryable=status in {408, 429} or status >= 500,
        status=status,
        code=code,
    )


def _remedy(status: int, message: str, retry_after: str) -> str:
    if status == 403 and (missing := error_messages.parse_forbidden(message)):
        return missing.remedy
    if status == 429 and (moment := error_messages.retry_time(retry_after, datetime.now(timezone.utc))):
        return f"Azure has had too many requests of this identity, and answers again from {moment} on."
    return HINTS.get(status, "")


def arm_unreachable_error(endpoint: str, cause: str) -> AzureCallError:
    return AzureCallError(
        "arm-unreachable",
        f"{endpoint} cannot be reached: {_plain(cause)}.",
        "Check the network, the proxy, and the CA file of a private cloud.",
        retryable=True,
    )


def sign_in_failed_error(cause: str) -> AzureCallError:
    refusal = error_messages.parse_sign_in_error(cause)
    return AzureCallError(
        "azure-sign-in-failed", refusal.sentence(), refusal.remedy, retryable=False, status=401, code=refusal.code
    )


def is_connection_failure(error: BaseException) -> bool:
    """Whether a sign-in failed because nobody answered: MSAL calls that a refusal, too."""
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError  # noqa: PLC0415

    return isinstance(error.__context__, ServiceRequestError | ServiceResponseError)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or 443


def _plain(cause: str) -> str:
    return cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
