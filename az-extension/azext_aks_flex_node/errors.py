"""Turns error responses of the service into az's error types, with advice what to do."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure.cli.core import azclierror
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]

CONTRIBUTOR, READER = "Azure Kubernetes Service Contributor Role", "Reader"
# Which option a path of the request comes from; the longest that fits counts.
OPTIONS = {
    "nodeName": "--name",
    "$filter": "--label, --ready, --join-state, --kubernetes-version",
    "properties.continuousMonitoring": "--continuous-monitoring",
    "properties.azureAuth": "--auth-method",
    "properties.azureAuth.servicePrincipal": "--client-id",
    "properties.azureAuth.servicePrincipal.clientSecret": "--client-secret-file",
    "properties.azureAuth.servicePrincipal.clientTenant": "--client-tenant",
    "properties.azureAuth.servicePrincipal.certificateOnMachine": "--certificate-on-machine",
    "properties.azureAuth.managedIdentity": "--client-id",
    "properties.azureAuth.managedIdentity.principalId": "--principal-id",
    "properties.azureAuth.arc.principalId": "--principal-id",
    "properties.kubernetesAuth": "--kubernetes-auth",
    "properties.versions.kubernetes": "--kubernetes-version",
    "properties.versions.containerd": "--containerd-version",
    "properties.versions.runc": "--runc-version",
    "properties.versions.cni": "--cni-version",
    "properties.versions.npd": "--npd-version",
    "properties.versions.agent": "--agent-version",
    "properties.nodeConfig.labels": "--labels",
    "properties.nodeConfig.taints": "--taints",
    "properties.nodeConfig.maxPods": "--max-pods",
    "properties.nodeConfig.kubelet": "--kubelet-config",
    "properties.nodeConfig.kubelet.serverURL": "--server-url",
    "properties.nodeConfig.vpn": "--vpn",
    "properties.nodeConfig.driftPolicy": "--drift-policy",
    "properties.nodeConfig.updatePolicy.paused": "--pause",
}
# What Azure says where it has never heard of flex nodes.
NOT_SERVED_CODES = {"InvalidResourceType", "NoRegisteredProviderFound", "InvalidResourceNamespace", "NotFound", ""}

REDIRECTS = range(300, 400)  # neither ARM nor this service sends anybody on


@contextmanager
def explain_errors(ctx: FlexNodeContext) -> Iterator[None]:
    try:
        yield
    except HttpResponseError as error:
        raise explain(error, ctx) from error
    except (ServiceRequestError, ServiceResponseError) as error:
        raise _unreachable(error, ctx) from error


def explain(error: HttpResponseError, ctx: FlexNodeContext) -> azclierror.AzCLIError:
    document = _error_document(error)
    message = _message(error, document)
    for kind, advice in _advice(error, document, ctx):
        return kind(message, advice)
    request = _header(error, "x-ms-request-id")
    more = f"The service's log has more at request {request}." if request else "Try it with --debug to see more."
    return azclierror.AzureResponseError(message, more)


def _header(error: HttpResponseError, name: str) -> str:
    answer: Any = error.response
    return str(answer.headers.get(name, ""))


def _error_document(error: HttpResponseError) -> Document:
    """What ARM's envelope holds, or nothing."""
    answer: Any = error.response
    try:
        document = json.loads(answer.text())
    except ValueError:
        return {}
    found = document.get("error") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _message(error: HttpResponseError, document: Document) -> str:
    code = document.get("code") or f"HTTP {error.status_code}"
    lines = [f"({code}) {_of_option(document)}{document.get('message') or 'The service gave no reason.'}"]
    return "\n".join(
        [*lines, *(f"  {_of_option(each)}{each.get('message')}" for each in document.get("details") or ())]
    )


def _of_option(document: Document) -> str:
    target = str(document.get("target") or "")
    fits = [path for path in OPTIONS if target == path or target.startswith((f"{path}.", f"{path}["))]
    named = f"{OPTIONS[max(fits, key=len)]}: " if fits else ""
    return f"{named}{target}: " if target else named


def _advice(
    error: HttpResponseError, document: Document, ctx: FlexNodeContext
) -> Iterator[tuple[type[azclierror.AzCLIError], str]]:
    status, code = error.status_code or 0, str(document.get("code") or "")
    if status in REDIRECTS or (status in {400, 404} and code in NOT_SERVED_CODES):
        yield azclierror.ResourceNotFoundError, _not_served_advice(ctx)
    if code in ADVICE_BY_CODE:
        yield azclierror.ResourceNotFoundError, ADVICE_BY_CODE[code](ctx)
    if status == 403:
        yield azclierror.ForbiddenError, _role_advice(error, document, ctx)
    if status == 429:
        yield azclierror.AzureResponseError, _retry_advice(error)
    if status >= 500:
        yield azclierror.AzureInternalError, _unavailable_advice(ctx)
    if status in ADVICE_BY_STATUS:
        kind, advise = ADVICE_BY_STATUS[status]
        yield kind, advise(ctx)


def _sign_in_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.key_file:
        return f"{ctx.service.key_file} does not hold the admin key of {ctx.service.endpoint}."
    if ctx.service.endpoint:
        return (
            "Sign in anew with `az login`, or use the admin key with --rp-key-file. A self-hosted service accepts "
            "only tokens of tenants in its settings (auth.tenants)."
        )
    return "Sign in anew with `az login`."


def _role_advice(error: HttpResponseError, document: Document, ctx: FlexNodeContext) -> str:
    answer: Any = error.response
    reads = answer.request.method == "GET"
    role = "Owner" if "config URL" in str(document.get("message")) else READER if reads else CONTRIBUTOR
    assign = f'az role assignment create --role "{role}" --scope {_cluster_id(ctx)} --assignee …'
    own = "a grant in the service's settings (auth.roles) or, where it asks Azure, " if ctx.service.endpoint else ""
    return f"Check the names of the cluster and its resource group, or ask an owner for {own}a role: {assign}"


def _cluster_id(ctx: FlexNodeContext) -> str:
    args = ctx.options
    return (
        f"/subscriptions/{ctx.subscription_id}/resourceGroups/{args['resource_group']}"
        f"/providers/Microsoft.ContainerService/managedClusters/{args['cluster_name']}"
    )


def _cluster_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.endpoint:
        return "See which clusters the service knows with `aks-flex-rp cluster list`; `cluster add` adds one."
    return "See which there are with `az aks list -o table`, and check --resource-group and --subscription."


def _node_advice(ctx: FlexNodeContext) -> str:
    args = ctx.options
    of = f"-g {args['resource_group']} --cluster-name {args['cluster_name']}"
    return f"See which there are with `az aks flex-node list {of} -o table`; `create` makes one."


def _not_served_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.endpoint:
        return f"What answers at {ctx.service.endpoint} is not this service. Check --rp-endpoint."
    return "Azure does not know flex nodes here. Name a self-hosted resource provider with --rp-endpoint."


def _retry_advice(error: HttpResponseError) -> str:
    seconds = _header(error, "Retry-After")
    return f"It was asked several times. Try again in {seconds} s." if seconds else "Try again in a minute."


def _unavailable_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.endpoint:
        return "Try again in a minute; the service's log says what is wrong."
    return "The resource provider behind Azure does not answer. Nodes go on as they are. Try again in a minute."


ADVICE_BY_CODE: dict[str, Callable[[FlexNodeContext], str]] = {
    "ParentResourceNotFound": _cluster_advice,
    "ResourceNotFound": _node_advice,
    "ResourceGroupNotFound": lambda _: "See which there are with `az group list -o table`.",
}
ADVICE_BY_STATUS: dict[int, tuple[type[azclierror.AzCLIError], Callable[[FlexNodeContext], str]]] = {
    400: (azclierror.BadRequestError, lambda _: "Correct what is listed; nothing was changed."),
    401: (azclierror.UnauthorizedError, _sign_in_advice),
    409: (azclierror.AzureResponseError, lambda _: "Nothing was changed."),
    412: (
        azclierror.ValidationError,
        lambda _: "Right now others are changing it. Look at it with `show`, and try again.",
    ),
}


def _unreachable(error: Exception, ctx: FlexNodeContext) -> azclierror.AzCLIError:
    where = ctx.service.endpoint or ctx.cli_ctx.cloud.endpoints.resource_manager
    message = f"{where} gives no answer: {str(error).rpartition(': ')[2]}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = f"{where} does not show a certificate that can be trusted."
        advice = "Give its CA certificate with --rp-ca-file: tls/ca.crt of the state directory of `aks-flex-rp`."
    else:
        advice = "See whether it runs (`aks-flex-rp serve`), and check --rp-endpoint."
    if not ctx.service.endpoint:
        advice = "Check the network, the proxy, and REQUESTS_CA_BUNDLE of a private cloud."
    return azclierror.AzureConnectionError(message, advice)
