"""A thin client of Azure Resource Manager: azure-core's pipeline with four verbs, and its errors told to a person."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.core.rest import HttpRequest, HttpResponse

PUBLIC = "https://management.azure.com"
MOST_PAGES = 1000


class ArmReader(Protocol):
    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]: ...

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]: ...


class AzureCallError(FlexError):
    """Azure cannot be asked (status 0), or its answer is no."""

    def __init__(self, name: str, message: str, hint: str, *, again: bool, status: int = 0, code: str = "") -> None:
        super().__init__(name, message, hint, again=again)
        self.status = status
        self.code = code  # ARM's own


class Arm:
    """Every call blocks; from a service that is to go on meanwhile, call it in a thread."""

    def __init__(self, credential: TokenCredential, endpoint: str = PUBLIC, *, ca_file: str | None = None) -> None:
        self._credential = credential
        self._endpoint = endpoint.rstrip("/")
        self._ca_file = ca_file
        self._made: PipelineClient[HttpRequest, HttpResponse] | None = None

    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]:
        return self._call("GET", path, api_version, query)

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]:
        return self._call("POST", path, api_version, {}, body)

    def put(self, path: str, api_version: str, body: Any) -> dict[str, Any]:
        return self._call("PUT", path, api_version, {}, body)

    def delete(self, path: str, api_version: str) -> None:
        self._call("DELETE", path, api_version, {})

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:
        """All pages of a collection."""
        found: list[dict[str, Any]] = []
        for _ in range(MOST_PAGES):
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

    def _call(
        self, method: str, path: str, api_version: str, query: Mapping[str, str], body: Any = None
    ) -> dict[str, Any]:
        from azure.core.exceptions import AzureError, ClientAuthenticationError  # noqa: PLC0415
        from azure.core.rest import HttpRequest  # noqa: PLC0415

        parameters = {"api-version": api_version, **query}
        request = HttpRequest(method, f"{self._endpoint}{path}", params=parameters, json=body)
        try:
            answer = self._client().send_request(request)
            answer.read()
        except ClientAuthenticationError as error:
            raise not_signed_in(error.message) from error
        except AzureError as error:
            raise unreachable(self._endpoint, error.message) from error
        if answer.status_code >= 400:
            raise refused(answer.status_code, answer.text())
        return _object(answer.text())

    def _client(self) -> PipelineClient[HttpRequest, HttpResponse]:
        if self._made is None:
            self._made = _pipeline(self._credential, self._endpoint, self._ca_file)
        return self._made


def _pipeline(
    credential: TokenCredential, endpoint: str, ca_file: str | None
) -> PipelineClient[HttpRequest, HttpResponse]:
    from azure.core import PipelineClient  # noqa: PLC0415
    from azure.core.pipeline import policies  # noqa: PLC0415

    trust: dict[str, Any] = {"connection_verify": ca_file} if ca_file else {}
    return PipelineClient(
        endpoint,
        policies=[
            policies.RequestIdPolicy(),
            policies.HeadersPolicy({"Accept": "application/json"}),
            policies.UserAgentPolicy("aks-flex-node"),
            policies.RetryPolicy(retry_total=4, retry_backoff_factor=0.4, timeout=60),
            policies.BearerTokenCredentialPolicy(credential, f"{endpoint}/.default"),
        ],
        connection_timeout=10,
        read_timeout=60,
        **trust,
    )


def refused(status: int, text: str) -> AzureCallError:
    """ARM's refusal, in ARM's words where it has any."""
    said = _object(text).get("error")
    error: dict[str, Any] = said if isinstance(said, dict) else {}
    code = str(error.get("code") or f"HTTP {status}")
    message = str(error.get("message") or "it gave no reason").rstrip(".")
    hints = {
        401: "Check which identity this uses, and that its tenant is the subscription's.",
        403: "Give this identity a role on the resource: `az role assignment create`.",
        404: "Check the id: subscription, resource group and name.",
        429: "Azure asks for patience; try again in a minute.",
    }
    again = status in {408, 429} or status >= 500
    words = f"Azure refused ({code}): {message}."
    return AzureCallError("arm-refused", words, hints.get(status, ""), again=again, status=status, code=code)


def unreachable(endpoint: str, cause: str) -> AzureCallError:
    return AzureCallError(
        "arm-unreachable",
        f"{endpoint} cannot be reached: {_plain(cause)}.",
        "Check the network, the proxy, and the CA file of a private cloud.",
        again=True,
    )


def not_signed_in(cause: str) -> AzureCallError:
    return AzureCallError(
        "azure-sign-in-failed",
        f"Entra ID gave us no token: {cause.splitlines()[0].strip().rstrip('.') if cause else 'it gave no reason'}.",
        "Check the tenant, the client id and the secret, and whether the secret has expired.",
        again=False,
        status=401,
    )


def _plain(cause: str) -> str:
    return cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
