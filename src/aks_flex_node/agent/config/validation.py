"""Validates values and combinations of settings. Pure functions that take a NodeConfig and return problems."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.problems import ConfigProblem, format_value, violation_problem
from aks_flex_node.agent.config.resolved import arc_settings, azure_identities, cluster_references, kubelet_auth
from aks_flex_node.api import value_rules as rules
from aks_flex_node.settings.azure_models import AZURE_CLOUDS
from aks_flex_node.settings.setting import MACHINE, NOTHING, PROGRAMS, REACHES
from aks_flex_node.settings.table import keys, nearest_above, reserved_kubelet_option, value_at
from aks_flex_node.settings.value_checks import closest_match, same, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.settings.models import NodeConfig

IDENTITIES = ("azure.servicePrincipal", "azure.managedIdentity", "azure.workloadIdentity", "azure.arc")
EXTRA_CONFIG = "node.kubelet.extraConfig"
SIGNED = "azure.arc.package."  # apt verifies the signatures of what it downloads


def check_remote_settings(settings: Mapping[str, object], own: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Checks the settings of a configuration that another machine sent: the provider, or an AKS pool. `own` are those
    in effect, which may contain settings of this machine.
    """
    signs_in = any(path.startswith(IDENTITIES) for path in own)
    for path, value in settings.items():
        key = nearest_above(path)
        if key is None or (path in own and own[path] == value):
            continue  # names that are no settings are refused when they are read
        setting = key.setting
        if setting.who == MACHINE:
            reason = "" if setting.reaches == NOTHING else f", because {REACHES[setting.reaches]}"
            yield ConfigProblem(path, f"can only be set on the machine itself{reason}.")
        elif setting.provider_value and value != setting.provider_value:
            yield ConfigProblem(path, f"can only be {setting.provider_value} or set on the machine itself.")
        elif setting.peer and signs_in and value != own.get(path, key.default):
            why = "can only be changed on the machine itself, because it sends its credentials there."
            yield ConfigProblem(path, why)
    yield from _check_remote_options(settings.get(EXTRA_CONFIG), own.get(EXTRA_CONFIG))


def _check_remote_options(value: object, own: object) -> Iterator[ConfigProblem]:
    """Checks the options of the kubelet. Those that decide who is root on the node belong to its administrator."""
    options, known = (each if isinstance(each, dict) else {} for each in (value, own))
    for name, chosen in options.items():
        reason = reserved_kubelet_option(str(name))
        if reason and not (name in known and same(known[name], chosen)):
            yield ConfigProblem(
                f"{EXTRA_CONFIG}.{name}", f"can only be set on the machine itself, because it {reason}."
            )


def check_encrypted(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks that programs are downloaded with TLS. Not for a configuration in effect, which a node must not lose."""
    for key in keys():
        value = value_at(config, key) if key.setting.reaches == PROGRAMS else None
        if isinstance(value, str) and not key.path.startswith(SIGNED) and value.lower().startswith("http://"):
            reason = "is not encrypted. Use an https URL. For a private CA, set artifacts.caFile."
            yield ConfigProblem(key.path, reason, format_value(value, key.path))


def check_values(config: NodeConfig) -> Iterator[ConfigProblem]:
    """Checks each setting on its own."""
    for key in keys():
        for each in violations(key.setting, value_at(config, key)):
            yield violation_problem(key.path, each)
    for (_, first), (index, second) in combinations(enumerate(config.node.taints), 2):
        if (first.key, first.effect) == (second.key, second.effect):
            yield ConfigProblem(
                f"node.taints[{index}]",
                f"has the same key {second.key} and effect {second.effect} as an earlier taint.",
            )


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
    found = [kind for kind in azure_identities(config) if kind != "arc"]
    for kind in found[1:]:
        yield ConfigProblem(f"azure.{kind}", f"conflicts with azure.{found[0]}. Set only one Azure identity.")
    for kind in found if azure.arc.enabled else ():
        if kind != "servicePrincipal":  # the operator's, who registers the machine
            reason = "conflicts with azure.arc, which is for machines outside of Azure. Set only one of them."
            yield ConfigProblem(f"azure.{kind}", reason)
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
