"""Converts error responses of the service to az's error types, with a recommendation."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure.cli.core import azclierror
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError

from azext_aks_flex_node.vendored.node_changes import (
    BOOTSTRAP_TOKEN,
    NO_IDENTITY,
    OptionError,
    UnusedOptionsError,
    setting_options,
)
from azext_aks_flex_node.vendored.rollout_options import rollout_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]

OWNERS_ONLY = re.compile("config URL|Only owners")
CONTRIBUTOR, READER = "Azure Kubernetes Service Contributor Role", "Reader"
# Options by request path, beside those of settings. The longest matching path applies.
OF_REQUEST = {
    "nodeName": "--name",
    "poolName": "--name",
    "rolloutName": "--name",
    "revision": "--revision",
    "$filter": "--label, --ready, --join-state, --kubernetes-version, --pool",
}
OPTIONS = {
    **OF_REQUEST,
    "properties.azureAuth": "--auth-method",
    "properties.azureAuth.servicePrincipal": "--client-id",
    "properties.azureAuth.managedIdentity": "--client-id",
    "properties.kubernetesAuth": "--kubernetes-auth",
    "properties.nodeConfig.vpn": "--vpn",
}
# Error codes of Azure when the resource type does not exist.
NOT_SERVED_CODES = {"InvalidResourceType", "NoRegisteredProviderFound", "InvalidResourceNamespace", "NotFound", ""}

REDIRECTS = range(300, 400)  # neither ARM nor the service redirects


@contextmanager
def explain_errors(ctx: FlexNodeContext) -> Iterator[None]:
    """Raises errors of options and of HTTP as az errors."""
    try:
        yield
    except UnusedOptionsError as error:
        method = BOOTSTRAP_TOKEN if error.value == NO_IDENTITY else error.value
        text = f"A node whose method is {method} {error.reason}."
        raise azclierror.ArgumentUsageError(text, error.hint) from None
    except OptionError as error:
        text = f"--{error.option}: {error.value!r} {error.reason}."
        raise azclierror.InvalidArgumentValueError(text, error.hint) from None
    except HttpResponseError as error:
        raise explain(error, ctx) from error
    except (ServiceRequestError, ServiceResponseError) as error:
        raise _unreachable(error, ctx) from error


def explain(error: HttpResponseError, ctx: FlexNodeContext) -> azclierror.AzCLIError:
    """Returns the az error of an error response."""
    document = _error_document(error)
    code = document.get("code") or f"HTTP {error.status_code}"
    lines = [f"({code}) {_of_option(document, ctx)}{document.get('message') or 'The service returned no message.'}"]
    message = "\n".join(
        [*lines, *(f"  {_of_option(each, ctx)}{each.get('message')}" for each in document.get("details") or ())]
    )
    for kind, advice in _advice(error, document, ctx):
        return kind(message, advice)
    request = _header(error, "x-ms-request-id")
    more = f"Search the service log for the request ID {request}." if request else "Run with --debug for details."
    return azclierror.AzureResponseError(message, more)


def _header(error: HttpResponseError, name: str) -> str:
    answer: Any = error.response
    return str(answer.headers.get(name, ""))


def _error_document(error: HttpResponseError) -> Document:
    """Returns the error of the ARM envelope, or an empty document."""
    answer: Any = error.response
    try:
        document = json.loads(answer.text())
    except ValueError:
        return {}
    found = document.get("error") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _of_option(document: Document, ctx: FlexNodeContext) -> str:
    """Returns the target of an error, after the option that set it. A file or --set may have set a property, too."""
    target = str(document.get("target") or "").replace("properties.template.", "properties.", 1)
    tables = (*setting_options(), *rollout_options())
    rows = [(f"properties.{path}", each.flags[0]) for each in tables for path in each.paths]
    known = {
        path: flag for path, flag in (*rows, *OPTIONS.items()) if path in OF_REQUEST or _name(flag) in ctx.options
    }
    fits = [path for path in known if target == path or target.startswith((f"{path}.", f"{path}["))]
    named = f"{known[max(fits, key=len)]}: " if fits else ""
    return f"{named}{target}: " if target else named


def _name(flag: str) -> str:
    return flag.removeprefix("--").removesuffix("-file").replace("-", "_")


def _advice(
    error: HttpResponseError, document: Document, ctx: FlexNodeContext
) -> Iterator[tuple[type[azclierror.AzCLIError], str]]:
    status, code = error.status_code or 0, str(document.get("code") or "")
    if status in REDIRECTS or (status in {400, 404} and code in NOT_SERVED_CODES):
        yield azclierror.ResourceNotFoundError, _not_served_advice(ctx)
    if code in ADVICE_BY_CODE:
        yield azclierror.ResourceNotFoundError, ADVICE_BY_CODE[code](ctx)
    if code in ROLLOUT_ADVICE:
        yield azclierror.AzureResponseError, f"{ROLLOUT_ADVICE[code]} Nothing was changed."
    if status == 403:
        yield azclierror.ForbiddenError, _role_advice(error, document, ctx)
    if status == 429:
        yield azclierror.AzureResponseError, _retry_advice(error)
    if status >= 500:
        yield azclierror.AzureInternalError, _unavailable_advice(document, ctx)
    if status in ADVICE_BY_STATUS:
        kind, advise = ADVICE_BY_STATUS[status]
        yield kind, advise(ctx)


def _sign_in_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.key_file:
        return f"Check that {ctx.service.key_file} contains the admin key of {ctx.service.endpoint}."
    if ctx.service.endpoint:
        return (
            "Sign in again with `az login`, or use the admin key with --rp-key-file. A self-hosted service accepts "
            "only tokens of the tenants and audiences in its settings (auth.tenants)."
        )
    return "Sign in again with `az login`."


def _role_advice(error: HttpResponseError, document: Document, ctx: FlexNodeContext) -> str:
    answer: Any = error.response
    reads = answer.request.method == "GET"
    role = "Owner" if OWNERS_ONLY.search(str(document.get("message"))) else READER if reads else CONTRIBUTOR
    assign = f'az role assignment create --role "{role}" --scope {_cluster_id(ctx)} --assignee …'
    own = (
        "a grant in the service's settings (auth.roles) or, if it uses Azure roles, " if ctx.service.endpoint else ""
    )
    return f"Check --cluster-name and --resource-group, or ask an owner for {own}a role: {assign}"


def _cluster_id(ctx: FlexNodeContext) -> str:
    args = ctx.options
    return (
        f"/subscriptions/{ctx.subscription_id}/resourceGroups/{args['resource_group']}"
        f"/providers/Microsoft.ContainerService/managedClusters/{args['cluster_name']}"
    )


def _cluster_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.endpoint:
        return "List the clusters with `aks-flex-rp cluster list`, or add one with `aks-flex-rp cluster add`."
    return "List the clusters with `az aks list -o table`, and check --resource-group and --subscription."


def _node_advice(ctx: FlexNodeContext) -> str:
    args = ctx.options
    of = f"-g {args['resource_group']} --cluster-name {args['cluster_name']}"
    return f"List the nodes with `az aks flex-node list {of} -o table`, or create one with `az aks flex-node create`."


def _not_served_advice(ctx: FlexNodeContext) -> str:
    if ctx.service.endpoint:
        return f"{ctx.service.endpoint} is not a flex node resource provider. Check --rp-endpoint."
    return "Azure does not provide flex nodes here. Set --rp-endpoint to a self-hosted resource provider."


def _retry_advice(error: HttpResponseError) -> str:
    seconds = _header(error, "Retry-After")
    return f"The request was retried. Try again in {seconds} s." if seconds else "Try again in a minute."


def _unavailable_advice(document: Document, ctx: FlexNodeContext) -> str:
    for each in document.get("details") or ():  # an error of the service itself: its name is in the catalogue
        return f"Run `aks-flex-rp explain {each.get('code')}` for causes and remedies."
    if ctx.service.endpoint:
        return "Try again in a minute, and check the log of the service."
    return "The resource provider does not respond. Nodes are not affected. Try again in a minute."


ADVICE_BY_CODE: dict[str, Callable[[FlexNodeContext], str]] = {
    "ParentResourceNotFound": _cluster_advice,
    "NodeNotKnown": _node_advice,
    "ResourceNotFound": _node_advice,
    "PoolNotFound": lambda _: "List the pools with `az aks flex-node pool list`, or create one with `pool create`.",
    "RevisionNotFound": lambda _: "List the revisions with `az aks flex-node pool list-revisions`.",
    "RolloutNotFound": lambda _: "List the roll-outs with `az aks flex-node rollout list`.",
    "ResourceGroupNotFound": lambda _: "List the resource groups with `az group list -o table`.",
}
ROLLOUT_ADVICE = {
    "RolloutExists": "Choose another --name.",
    "RolloutActive": "See the active roll-out with `az aks flex-node rollout list`, and wait for its end.",
    "RevisionBarred": "To try it again, lift the bar with `az aks flex-node pool allow-revision`.",
    "DisruptionBudgetExceeded": "Wait until other nodes are updated, or use --override-rollout for this node.",
}
ADVICE_BY_STATUS: dict[int, tuple[type[azclierror.AzCLIError], Callable[[FlexNodeContext], str]]] = {
    400: (azclierror.BadRequestError, lambda _: "Correct the listed values. Nothing was changed."),
    401: (azclierror.UnauthorizedError, _sign_in_advice),
    409: (azclierror.AzureResponseError, lambda _: "Nothing was changed."),
    412: (
        azclierror.ValidationError,
        lambda _: "Another client changes the node. Check it with `az aks flex-node show`, and try again.",
    ),
}


def _unreachable(error: Exception, ctx: FlexNodeContext) -> azclierror.AzCLIError:
    where = ctx.service.endpoint or ctx.cli_ctx.cloud.endpoints.resource_manager
    message = f"{where} does not respond: {str(error).rpartition(': ')[2]}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = f"The certificate of {where} is not trusted."
        advice = "Set --rp-ca-file to the CA certificate: tls/ca.crt in the state directory of `aks-flex-rp`."
    else:
        advice = "Check that the service runs (`aks-flex-rp serve`), and check --rp-endpoint."
    if not ctx.service.endpoint:
        advice = "Check the network, the proxy, and for a private cloud REQUESTS_CA_BUNDLE."
    return azclierror.AzureConnectionError(message, advice)
