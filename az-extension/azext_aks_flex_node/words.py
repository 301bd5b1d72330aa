"""What somebody typed, as the bodies have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from azure.cli.core.azclierror import FileOperationError, InvalidArgumentValueError

from azext_aks_flex_node import bodies
from azext_aks_flex_node.arguments import COMPONENTS
from azext_aks_flex_node.bodies import PRINCIPAL, Said
from azext_aks_flex_node.private_files import read_private

Document = dict[str, Any]


def said(args: Document) -> Said:
    file = args.get("client_secret_file")
    versions = {name: args.get(f"{name}_version") for name in COMPONENTS}
    return Said(
        auth_method=args.get("auth_method"),
        client_id=args.get("client_id"),
        client_secret=read_private(file, "--client-secret-file") if file else None,
        client_tenant=args.get("client_tenant"),
        principal_id=args.get("principal_id"),
        certificate_on_machine=args.get("certificate_on_machine"),
        kubernetes_auth=args.get("kubernetes_auth"),
        monitor=args.get("continuous_monitoring"),
        versions={name: version for name, version in versions.items() if version is not None},
        max_pods=args.get("max_pods"),
        kubelet=document(args["kubelet_config"], "--kubelet-config") if "kubelet_config" in args else None,
        drift_policy=args.get("drift_policy"),
        pause=args.get("pause"),
        vpn=args.get("vpn"),
        server_url=args.get("server_url"),
        labels=args.get("labels", ()),
        taints=args.get("taints", ()),
    )


def properties(args: Document) -> Document | None:
    """Those in the file that --file names, whether or not ARM's envelope is around them."""
    if "file" not in args:
        return None
    found = document(args["file"], "--file")
    return bodies.writable(found) if isinstance(found.get("properties"), dict) else found


def document(file: str, option: str) -> Document:
    try:
        found = yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is neither JSON nor YAML"
        raise FileOperationError(f"{file} cannot be used: {why}.", f"Check {option}.") from None
    if not isinstance(found, dict):
        raise InvalidArgumentValueError(f"{file} cannot be used: it holds no settings by name.", f"Check {option}.")
    return found


def secret_missing(before: Document, after: Document) -> bool:
    """Whether these properties are of a service principal whose secret nobody has said yet."""
    if bodies.method_of(after) != PRINCIPAL:
        return False
    had, has = ((each.get("azureAuth", {}).get(PRINCIPAL) or {}) for each in (before, after))
    known = bool(had) and had.get("clientId") == has.get("clientId") and not had.get("certificateOnMachine")
    return not known and not has.get("clientSecret") and not has.get("certificateOnMachine")
