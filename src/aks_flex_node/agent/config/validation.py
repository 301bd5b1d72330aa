"""Validates values and combinations of settings. Pure functions that take a NodeConfig and return problems."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.azure_models import AZURE_CLOUDS, Azure
from aks_flex_node.agent.config.keys import ConfigKey, keys
from aks_flex_node.agent.config.problems import ConfigProblem, closest_match, format_value
from aks_flex_node.agent.config.resolved import arc_settings, cluster_references, kubelet_auth
from aks_flex_node.agent.config.secret import Secret
from aks_flex_node.agent.redaction import MASK
from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules as rules
from aks_flex_node.api.contract import CLIENT_CERTIFICATE_FILE
from aks_flex_node.azure.roles import CLUSTER_ROLES, find_role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aks_flex_node.agent.config.models import NodeConfig

    Rule = Callable[[str], str | None]

LINK_DIRECTORIES = ("paths.binDir", "paths.sbinDir")


def _certificate_and_key(text: str) -> str | None:
    whole = "-----BEGIN CERTIFICATE-----" in text and "PRIVATE KEY-----" in text
    return None if whole else "is not a certificate with its private key in PEM format (-----BEGIN ...)."


TEXT_RULES: dict[str, Rule] = {
    "node.name": kubernetes.node_name,
    "node.ip": rules.ip,
    "node.kubelet.serverURL": rules.https_url,
    "node.kubelet.dnsServiceIP": rules.ip,
    "node.kubelet.clusterDomain": kubernetes.domain,
    "node.kubelet.nodeStatusUpdateFrequency": kubernetes.duration,
    "kubernetes.urlTemplate": rules.kubernetes_template,
    "containerd.pauseImage": kubernetes.image,
    "containerd.metricsAddress": rules.listen_address,
    "azure.subscriptionId": rules.azure_name,
    "azure.tenantId": rules.azure_name,
    "azure.resourceGroup": rules.azure_name,
    "azure.servicePrincipal.tenantId": rules.azure_name,
    "azure.servicePrincipal.clientId": rules.azure_name,
    "azure.managedIdentity.clientId": rules.azure_name,
    "azure.workloadIdentity.tenantId": rules.azure_name,
    "azure.workloadIdentity.clientId": rules.azure_name,
    "azure.arc.resourceGroup": rules.azure_name,
    "azure.arc.package.repository": rules.url,
    "azure.arc.package.keyURL": rules.url,
    "azure.arc.machineName": rules.azure_name,
    "azure.arc.targetCluster.name": rules.azure_name,
    "azure.arc.targetCluster.resourceGroup": rules.azure_name,
    "azure.targetCluster.resourceId": rules.cluster_id,
    "azure.targetCluster.name": rules.azure_name,
    "azure.targetCluster.resourceGroup": rules.azure_name,
    "azure.targetAgentPoolName": rules.azure_name,
    "aks.machineName": rules.azure_name,
    "azure.vpn.p2sGatewayCIDR": rules.network,
    "azure.vpn.gatewayName": rules.azure_name,
    "azure.vpn.gatewaySKU": rules.azure_name,
    "azure.vpn.gatewaySubnetCIDR": rules.network,
    "artifacts.baseURL": rules.url,
    "proxy.http": rules.proxy,
    "proxy.https": rules.proxy,
    **{f"{part}.url": rules.template for part in ("containerd", "runc", "cni", "npd", "agent")},
    **{f"{part}.version": kubernetes.version for part in ("kubernetes", "containerd", "runc", "cni", "npd")},
}
SECRET_RULES: dict[str, tuple[Rule, ...]] = {
    "azure.bootstrapToken.token": (rules.plain, kubernetes.bootstrap_token),
    "azure.servicePrincipal.clientCertificate": (_certificate_and_key,),  # the only secret with line breaks
}
# For maps: the rules for names and the rule for values.
MAP_RULES: dict[str, tuple[tuple[Rule, ...], Rule]] = {
    "node.labels": ((kubernetes.label_key, kubernetes.own_label), kubernetes.label_value),
    "node.kubelet.kubeReserved": ((kubernetes.reservable,), kubernetes.quantity),
    "node.kubelet.systemReserved": ((kubernetes.reservable,), kubernetes.quantity),
    "node.kubelet.evictionHard": ((kubernetes.eviction_signal,), kubernetes.eviction_threshold),
    "azure.arc.tags": ((rules.plain,), rules.plain),
    **{
        f"{part}.sha256": ((rules.plain,), rules.sha256)
        for part in ("kubernetes", "containerd", "runc", "cni", "npd")
    },
}


# Only the administrator of a machine sets these: in a file on the machine, with an option or with a variable.
PROGRAM_SETTINGS = (
    *(f"{part}.sha256" for part in ("kubernetes", "containerd", "runc", "cni", "npd", "agent")),
    *("artifacts.bundle", "artifacts.caFile", "artifacts.checksumsFile"),
    *("azure.arc.package", "paths"),
)
FILE_SETTINGS = (
    *("agent.logFile", "agent.logDir", "agent.metricsFile", "node.kubelet.caCertFile"),
    *(
        "azure.bootstrapToken.tokenFile",
        "azure.servicePrincipal.clientSecretFile",
        "azure.workloadIdentity.tokenFile",
    ),
)
LOCAL_SETTINGS = {
    **dict.fromkeys(PROGRAM_SETTINGS, "it decides which programs run there"),
    **dict.fromkeys(FILE_SETTINGS, "it names a file that the agent reads or writes there as root"),
}
# Where a joined node sends its credentials. Its provider must not have them sent elsewhere.
CREDENTIAL_PEERS = {"azure.cloud": Azure().cloud, "azure.authorityHost": None, "azure.resourceManager": None}
IDENTITIES = ("azure.servicePrincipal", "azure.managedIdentity", "azure.workloadIdentity", "azure.arc")
CERTIFICATE_SETTING = "azure.servicePrincipal.clientCertificateFile"
EXTRA_CONFIG = "node.kubelet.extraConfig"
ARTIFACT_URLS = (
    *(f"{part}.url" for part in ("containerd", "runc", "cni", "npd", "agent")),
    *("kubernetes.urlTemplate", "artifacts.baseURL"),
)


def check_remote_settings(settings: Mapping[str, object], own: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Checks the settings of a configuration that another machine sent: the provider, or an AKS pool. `own` are those
    in effect, which may contain settings of this machine.
    """
    for path, value in settings.items():
        if path in own and own[path] == value:
            continue
        reasons = (why for each, why in LOCAL_SETTINGS.items() if path == each or path.startswith(f"{each}."))
        if reason := next(reasons, None):
            yield ConfigProblem(path, f"can only be set on the machine itself, because {reason}.")
        elif path == CERTIFICATE_SETTING and value != CLIENT_CERTIFICATE_FILE:
            yield ConfigProblem(path, f"can only be {CLIENT_CERTIFICATE_FILE} or set on the machine itself.")
    yield from _check_remote_options(settings.get(EXTRA_CONFIG), own.get(EXTRA_CONFIG))
    if any(path.startswith(IDENTITIES) for path in own):
        yield from (
            ConfigProblem(path, "can only be changed on the machine itself, because it sends its credentials there.")
            for path, default in CREDENTIAL_PEERS.items()
            if path in settings and settings[path] != own.get(path, default)
        )


def _check_remote_options(value: object, own: object) -> Iterator[ConfigProblem]:
    """Checks the options of the kubelet. Those that decide who is root on the node belong to its administrator."""
    options, known = (each if isinstance(each, dict) else {} for each in (value, own))
    for name, chosen in options.items():
        reason = kubernetes.reserved_kubelet_option(str(name))
        if reason and not (name in known and known[name] == chosen):
            yield ConfigProblem(
                f"{EXTRA_CONFIG}.{name}", f"can only be set on the machine itself, because it {reason}."
            )


def check_encrypted(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks that programs are downloaded with TLS. Not for a configuration in effect, which a node must not lose."""
    for key in keys():
        value = value_at(config, key) if key.path in ARTIFACT_URLS else None
        if isinstance(value, str) and value.lower().startswith("http://"):
            reason = "is not encrypted. Use an https URL. For a private CA, set artifacts.caFile."
            yield ConfigProblem(key.path, reason, format_value(value, key.path))


def value_at(config: NodeConfig, key: ConfigKey) -> object:
    """Returns the value of a key, or None if a parent section is not set."""
    value: object = config
    for attribute in key.attributes:
        value = getattr(value, attribute, None)
    return value


def check_values(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks each setting on its own."""
    for key in keys():
        value = value_at(config, key)
        if isinstance(value, Secret):
            # Not `_violation`, which prints the value.
            of = (_mask, rules.placeholder, *SECRET_RULES.get(key.path, (rules.plain,)))
            reason = next((reason for rule in of if (reason := rule(value.reveal())) is not None), None)
            if reason is not None:
                yield ConfigProblem(key.path, reason)
        elif isinstance(value, str):
            yield from _violation(key.path, value, (rules.placeholder, *_text_rules(key.path)))
        elif key.path == EXTRA_CONFIG:
            yield from _check_free(key.path, value)
        elif isinstance(value, dict) and key.path in MAP_RULES:
            yield from _check_map(key.path, value)
    for index, taint in enumerate(config.node.taints):
        yield from _violation(f"node.taints[{index}].key", taint.key, (kubernetes.label_key,))
        yield from _violation(f"node.taints[{index}].value", taint.value, (kubernetes.label_value,))
    for (_, first), (index, second) in combinations(enumerate(config.node.taints), 2):
        if (first.key, first.effect) == (second.key, second.effect):
            yield ConfigProblem(
                f"node.taints[{index}]",
                f"has the same key {second.key} and effect {second.effect} as an earlier taint.",
            )
    yield from _check_lists(config)


def _text_rules(path: str) -> tuple[Rule, ...]:
    if path.endswith(".caCertData"):
        return (rules.certificate,)  # the only strings with line breaks
    if path.startswith("paths."):
        return (rules.link_directory if path in LINK_DIRECTORIES else rules.directory,)
    return (rules.plain, TEXT_RULES[path]) if path in TEXT_RULES else (rules.plain,)


def _violation(path: str, value: str, of: Iterable[Rule]) -> Iterator[ConfigProblem]:
    """Yields a problem for the first rule that the value violates."""
    reason = next((reason for rule in of if (reason := rule(value)) is not None), None)
    if reason is not None:
        yield ConfigProblem(path, reason, "" if path.endswith("caCertData") else format_value(value, path))


def _mask(text: str) -> str | None:
    return f"is {MASK}, the mask of a hidden secret. Set the secret itself." if text == MASK else None


def _check_map(path: str, entries: Mapping[str, str]) -> Iterator[ConfigProblem]:
    of_name, of_value = MAP_RULES[path]
    for name, value in entries.items():
        reason = next((reason for rule in of_name if (reason := rule(name)) is not None), None)
        if reason is not None:
            yield ConfigProblem(f"{path}.{name}", reason)
        yield from _violation(f"{path}.{name}", value, (of_value,))


def _check_free(path: str, value: object) -> Iterator[ConfigProblem]:
    """Checks that a value can be written as JSON, which has no dates, no infinity and no cycles."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        yield ConfigProblem(path, "contains a value that JSON does not support, such as a date. Put it in quotes.")


def _check_lists(config: NodeConfig) -> Iterator[ConfigProblem]:
    vpn = config.azure.vpn
    for index, entry in enumerate(vpn.dns_servers):
        yield from _violation(f"azure.vpn.dnsServers[{index}]", entry, (rules.ip,))
    for index, entry in enumerate(vpn.dns_domains):
        yield from _violation(f"azure.vpn.dnsDomains[{index}]", entry, (kubernetes.domain,))
    for index, entry in enumerate(config.azure.arc.roles or ()):
        if find_role(entry) is None:
            names = ", ".join(role.name for role in CLUSTER_ROLES)
            why = f"is not one of {names}, and not the ID of a role definition."
            yield ConfigProblem(f"azure.arc.roles[{index}]", why, format_value(entry))
    for index, entry in enumerate(config.proxy.no_proxy):
        yield from _violation(f"proxy.noProxy[{index}]", entry, (rules.no_proxy,))
    for name, mirrors in config.registry_mirrors.items():
        path = f"registryMirrors.{name}"
        if (reason := rules.registry(name)) is not None:
            yield ConfigProblem(path, reason)
        for index, mirror in enumerate(mirrors):
            yield from _violation(f"{path}[{index}]", mirror, (rules.url,))


def check_combinations(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks combinations of settings."""
    kubelet = config.node.kubelet
    if kubelet.image_gc_low_threshold >= kubelet.image_gc_high_threshold:
        reason = f"must be lower than node.kubelet.imageGCHighThreshold, which is {kubelet.image_gc_high_threshold}."
        yield ConfigProblem("node.kubelet.imageGCLowThreshold", reason, str(kubelet.image_gc_low_threshold))
    yield from _check_sign_in(config)
    names = ("subscription", "resource group", "name")
    for (_, first), (path, second) in combinations(cluster_references(config), 2):
        for what, one, two in zip(names, first, second, strict=True):
            if one and two and one.lower() != two.lower():
                yield ConfigProblem(
                    path,
                    f"has the {what} {two}, but another setting has {one} for the same cluster. Set the same value.",
                )
    yield from _check_directories(config)


def _check_sign_in(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks that only one Azure identity is set. A bootstrap token is independent: it is for Kubernetes."""
    azure = config.azure
    identities = {
        "azure.servicePrincipal": azure.service_principal,
        "azure.managedIdentity": azure.managed_identity,
        "azure.workloadIdentity": azure.workload_identity,
    }
    configured = [path for path, value in identities.items() if value is not None]
    for path in configured[1:]:
        yield ConfigProblem(path, f"conflicts with {configured[0]}. Set only one Azure identity.")
    if azure.arc.enabled and azure.managed_identity is not None:
        reason = "is only for Azure VMs, and azure.arc only for other machines. Set only one of them."
        yield ConfigProblem("azure.managedIdentity", reason)
    if azure.arc.enabled and azure.workload_identity is not None:
        yield ConfigProblem("azure.workloadIdentity", "conflicts with azure.arc. Set only one of them.")
    principal = azure.service_principal
    if principal and principal.client_secret and principal.client_certificate:
        reason = "conflicts with azure.servicePrincipal.clientSecret. Set only one of them."
        yield ConfigProblem("azure.servicePrincipal.clientCertificate", reason)


def check_azure(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks that the cloud is known and that the Azure identity can sign in. Stored configurations may lack both:
    they were used without Azure, or their secrets are stored elsewhere. So only a join requires this.
    """
    azure, principal = config.azure, config.azure.service_principal
    if azure.resource_manager is None and azure.cloud.lower() not in map(str.lower, AZURE_CLOUDS):
        near = closest_match(azure.cloud, AZURE_CLOUDS)
        guess = f"Did you mean {near}? " if near else ""
        yield ConfigProblem(
            "azure.cloud",
            f"is not one of {', '.join(AZURE_CLOUDS)}. {guess}For a private cloud, set azure.resourceManager and "
            "azure.authorityHost.",
            format_value(azure.cloud),
        )
    if principal and not (principal.client_secret or principal.client_certificate):
        reason = "is missing. Set it, or set clientSecret, clientCertificate or clientCertificateFile."
        yield ConfigProblem("azure.servicePrincipal.clientSecretFile", reason)
    yield from _check_arc(config)
    signs_in = config.continuous_monitoring or kubelet_auth(config) != "bootstrapToken"
    for name, identity in (("servicePrincipal", principal), ("workloadIdentity", azure.workload_identity)):
        if signs_in and identity and not (identity.tenant_id or azure.tenant_id):
            yield ConfigProblem("azure.tenantId", f"is missing. azure.{name} needs it.")


def _check_arc(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks the settings that a registration with Azure Arc requires."""
    if not config.azure.arc.enabled:
        return
    for path, value in arc_settings(config).items():
        if not value:
            why = "is missing. Registration with Azure Arc requires it. Set it, or set azure.arc.enabled to false."
            yield ConfigProblem(path, why)


def _check_directories(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks that directories with mounts of Kubernetes are not inside of directories that the agent removes."""
    paths = config.paths
    ours = {
        "paths.configDir": paths.config_dir,
        "paths.dataDir": paths.data_dir,
        "paths.logDir": paths.log_dir,
        "paths.installDir": paths.install_dir,
    }
    theirs = {
        "paths.kubernetes.kubeletDir": paths.kubernetes.kubelet_dir,
        "paths.containerdDir": paths.containerd_dir,
        "paths.cni.libDir": paths.cni.lib_dir,
    }
    for (first, one), (second, two) in combinations((*ours.items(), *theirs.items()), 2):
        if rules.overlap(one, two) and (second in theirs or one == two):
            yield ConfigProblem(
                second,
                f"overlaps with {first} ({one}). Use separate directories.",
                format_value(two),
            )
