"""A value cannot leave its place: whatever a setting contains, it is refused by its name, or only the values of
generated files that hold this setting change.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec.structs import fields

from aks_flex_node.agent.arc.machine_agent import SETTINGS_FILE, Azcmagent
from aks_flex_node.agent.arc.packages import AzcmagentPackage
from aks_flex_node.agent.arc.registration_state import desired_machine
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.components.service import completion_unit
from aks_flex_node.agent.components.vpn import HOSTS, client_file, vpn_dir
from aks_flex_node.agent.config.conversion import convert_settings
from aks_flex_node.agent.config.problems import ConfigProblem, violation_problem
from aks_flex_node.agent.config.validation import check_values
from aks_flex_node.agent.machine import read_machine
from aks_flex_node.agent.paths import COMPLETION_UNIT
from aks_flex_node.agent.reconcile.resources import File, FileLine
from aks_flex_node.agent.vpn import openvpn
from aks_flex_node.agent.vpn.client_profile import parse_profile
from aks_flex_node.agent.vpn.dependencies import with_hosts_entry
from aks_flex_node.agent.vpn.local_state import certificate_file
from aks_flex_node.agent.vpn.virtual_network import api_server_address
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.settings import base
from aks_flex_node.settings.azure_models import MICROSOFT_KEYS
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.table import ConfigKey, is_model, keys
from aks_flex_node.settings.value_checks import convert, violations
from tests.hosts.recorded import RecordedHost
from tests.openpgp_keys import FINGERPRINT, KEY
from tests.unit.agent.config.builders import CA, CLUSTER_ID, PEM, TOKEN, Settings
from tests.unit.agent.file_formats import parse_files
from tests.unit.agent.vpn.fakes import PROFILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.settings.models import NodeConfig

EVERYTHING: Settings = {
    "node.kubelet.serverURL": "https://cluster.example:443",
    "node.kubelet.caCertData": CA,
    "node.kubelet.dnsServiceIP": "10.0.0.10",
    "node.kubelet.kubeReserved": {"cpu": "100m"},
    "node.ip": "198.18.0.5",
    "node.labels": {"a": "b"},
    "node.taints": [{"key": "a", "value": "b", "effect": "NoExecute"}],
    "kubernetes.version": "1.34.4",
    "agent.version": "0.2.0",
    "agent.metricsFile": "/srv/metrics/flex.prom",
    "continuousMonitoring": True,
    "registryMirrors": {"docker.io": ["https://mirror.example"]},
    "proxy.http": "http://proxy.example:3128",
    "proxy.https": "http://proxy.example:3129",
    "proxy.noProxy": ["localhost", ".example"],
    "artifacts.caFile": "/etc/mirror.crt",
    "azure.tenantId": "tenant-1",
    "azure.resourceGroup": "group-1",
    "azure.location": "westeurope",
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "azure.vpn.enabled": True,
    "azure.vpn.dnsServers": ["10.1.0.4"],
    "azure.vpn.dnsDomains": ["private.example"],
    "azure.arc.tags": {"site": "a"},
    "azure.arc.targetCluster.name": "cluster-1",
    "azure.arc.package.repository": "https://packages.example/debian",
    "azure.arc.package.suite": "stable",
    "azure.arc.package.keyURL": "https://packages.example/key.asc",
    "azure.arc.package.keyFingerprints": [FINGERPRINT, *MICROSOFT_KEYS],
}
# Nodes that together have every generated file.
NODES: dict[str, Settings] = {
    "bootstrap token": {"azure.bootstrapToken.token": TOKEN, "containerd.version": "1.7.29"},
    "service principal": {"azure.servicePrincipal.clientId": "client-1", "node.kubelet.auth": "exec"},
    "managed identity": {
        "azure.managedIdentity.clientId": "client-1",
        "node.kubelet.auth": "certificate",
        "azure.targetCluster.resourceId": None,
        "azure.subscriptionId": "subscription-1",
        "azure.targetCluster.name": "cluster-1",
        "azure.targetCluster.resourceGroup": "group-2",
    },
    "federated": {
        "azure.workloadIdentity.clientId": "client-1",
        "azure.workloadIdentity.tokenFile": "/run/token",
        "azure.targetCluster.resourceId": None,
        "azure.subscriptionId": "subscription-1",
        "azure.arc.targetCluster.resourceGroup": "group-2",
    },
}
OTHER_TOKEN = f"{TOKEN[:7]}{TOKEN[:6:-1]}"
# Harmless values. The first one that a setting accepts is its sample.
SAMPLES = (
    *("b3nign", "/b3nign/f1le", "b3nign.example", "https://b3nign.example", "https://b3nign.example/{version}"),
    *("http://b3nign.example/%s/%s/%s", "10.99.0.7", "10.99.0.0/24", "9.9.9", "127.0.0.9:999", "b3" * 32, "59s"),
    *("9h", "599Mi", "09:59", "Europe/Berlin", OTHER_TOKEN, CLUSTER_ID.replace("cluster-1", "b3nign")),
    PEM * 2,
    f"{PEM}-----BEGIN PRIVATE KEY-----\nb3nign\n-----END PRIVATE KEY-----\n",
    *("b3b3b3b3-0000-4000-8000-000000000000", "Reader", FINGERPRINT),
    "/subscriptions/b3b3b3b3-0000-4000-8000-000000000000/resourceGroups/b3nign/providers/Microsoft.Network"
    "/virtualNetworks/b3nign",
)
NAMES = ("n4me", "memory", "memory.available")  # of entries of maps
HOSTILE = (
    *r""" \ \n " ' "" \" `id` $ $$ $(id) ${HOME} $HOME % %% %n %%n %i%h %20 %(x)s {} {x} --flag -flag = a=b , ,a=b ;
    & | # //x : [x] *x &x !!python/x @ ?x=y [Unit] true null y no ~ 1e+3 0x1f 1:30 2026-01-01 <x> .. ../x / ~root
    fe80::1%eth0 ::1%-flag fe80::1%$(id) [fe80::1%$(id)] fe80::/64%x """.split(),
    *(" ", "a b", "- flag", " --flag=x", "::1% --flag", '" "', '"; "', "; x", " # x", ": x", "a: b", "- a", "{a: b}"),
    *("\t", "\n", "\r", "\0", "\x1b[2J", "\x7f", "\x85", "\\\n", "x\ny", "\nExecStart=/x", "\n[Service]\nUser=x"),
    # Invisible characters, changes of direction, other alphabets and planes; separators.
    *"\u200b \u200d \ufeff \u00ad \u202e \u2066x\u2069 \U000e0041 \ue000 \ufffe \u0661 \u00e9 \U0001f600".split(" "),
    *("\u2028", "\u2029", "\u00a0", "\u3000", "x" * 5000),
)


def generated_files(config: NodeConfig) -> dict[str, str]:
    """Returns all files that the agent generates on a node, by path."""
    host = RecordedHost()
    machine = read_machine(host, config, "10.244.3.0/24")
    resources = [one for each in (agent.COMPONENT, *ALL) for one in each.desired(config, machine).resources]
    files = {one.path: one.content.decode() for one in resources if isinstance(one, File)}
    files |= {one.path: f"{one.start}{one.rest}" for one in resources if isinstance(one, FileLine)}
    files[COMPLETION_UNIT] = completion_unit(machine).decode()
    server, up = api_server_address(config, {})[0], f"{vpn_dir(config)}/up"
    servers = openvpn.select_name_servers(config.azure.vpn.dns_servers, (), ())
    files[HOSTS] = with_hosts_entry(b"127.0.0.1 localhost\n", server, "10.1.0.5").decode()
    files[up] = openvpn.up_script(servers, config.azure.vpn.dns_domains or (server,)).decode()
    pair, routes = certificate_file(config, machine.node_name(config)), [f"{each}/32" for each in servers]
    files[client_file(config)] = openvpn.client_configuration(parse_profile(PROFILE), pair, routes, up).decode()
    host = RecordedHost({"/usr/bin/apt-get": ""})
    AzcmagentPackage(host, config, lambda _: KEY).install()
    Azcmagent(host, "/bin/azcmagent").connect(desired_machine(config, machine), "token")
    written = [one for one in host.done if isinstance(one, WriteFile) and not one.path.endswith(".gpg")]
    return files | {one.path: one.content.decode() for one in written}


@cache
def node_config(node: str) -> NodeConfig:
    config, problems = convert_settings({**EVERYTHING, **NODES[node]})
    assert not [*problems, *check_values(config)]
    return config


def config_with(node: str, key: ConfigKey, value: object) -> NodeConfig | None:
    """Returns the configuration of a node with this value; None if the node does not have the section."""
    models: list[Any] = [node_config(node)]
    for attribute in key.attributes[:-1]:
        models.append(getattr(models[-1], attribute))
    if models[-1] is None:
        return None
    changed = msgspec.convert(convert(key.shape, value)[0], key.annotation)
    for model, attribute in zip(reversed(models), reversed(key.attributes), strict=True):
        changed = base.replace(model, **{attribute: changed})
    config: NodeConfig = changed
    return config


def sample_of(key: ConfigKey) -> Any:
    """Returns a harmless value of a setting; None for a choice, a number or a boolean."""
    samples: Iterator[Any] = (_sample(key.annotation, text, name) for text in SAMPLES for name in NAMES)
    return None if key.kind in NO_TEXT else next(each for each in samples if not problems_with(key, each))


NO_TEXT = {"choice", "integer", "number", "boolean"}


def _sample(annotation: Any, text: str, name: str) -> Any:
    inner = FieldType.of(annotation).inner
    if get_origin(inner) is tuple:
        return [_sample(get_args(inner)[0], text, name)]
    if get_origin(inner) is dict:
        return {name: _sample(get_args(inner)[1], text, name)}
    if inner is object:
        return [text, {f"{name}-inner": text}]
    if is_model(inner):  # a taint
        values = {info.encode_name: name if info.required else text for info in fields(inner)}
        return {**values, "effect": "NoExecute"}
    choices = get_args(inner)  # a list of choices
    return choices[0] if choices else text


def texts_of(value: Any) -> set[str]:
    """Returns the texts of a sample, also the names of entries."""
    if isinstance(value, str):
        return {value}
    inner = [*value, *value.values()] if isinstance(value, dict) else value or []
    found: set[str] = set().union(*(texts_of(each) for each in inner))
    return found - {"NoExecute", *SECTION_NAMES}


SECTION_NAMES = {"key", "value", "effect"}  # of a taint


def substitute(value: Any, texts: Mapping[str, str]) -> Any:
    """Returns a tree with other texts, also in names."""
    pattern = re.compile("|".join(map(re.escape, texts)))

    def inner(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda found: texts[found[0]], value)
        if isinstance(value, dict):
            return {inner(name): inner(each) for name, each in value.items()}
        return [inner(each) for each in value] if isinstance(value, list | tuple) else value

    return inner(value)


def derived_texts(sample: str, text: str) -> dict[str, str]:
    """Returns a text by that of the sample, and what the agent makes of both: the directory of a path, the host of
    a URL; a slash at its end is dropped before a path.
    """
    if sample.startswith("/"):
        return {sample: text, sample.rpartition("/")[0]: text.rpartition("/")[0]}
    if "://" not in sample:
        return {sample: text}
    hosts = {str(urlsplit(sample).hostname): str(urlsplit(text).hostname)}
    return {f"{sample}/": text.rstrip("/") + "/", sample: text, **hosts}


def places(value: Any, text: str, where: tuple[object, ...] = ()) -> set[tuple[object, ...]]:
    """Returns where a text stands in a tree."""
    if isinstance(value, str):
        return {where} if text in value else set()
    if not isinstance(value, dict | list):
        return set()
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    named = {(*where, name) for name, _ in items if isinstance(name, str) and text in name}
    return named.union(*(places(each, text, (*where, name)) for name, each in items))


def nodes_with(key: ConfigKey, sample: object, text: str) -> list[tuple[str, dict[str, Any], set[str]]]:
    """Returns the nodes in whose files a part of the sample stands in places where no earlier node has it, with what
    their files say, and which files have it.
    """
    found, known = [], set[tuple[object, ...]]()
    for node in NODES:
        config = config_with(node, key, sample)
        files = parse_files(generated_files(config)) if config else {}
        stands = set[tuple[object, ...]]().union(*(places(files, each) for each in derived_texts(text, text)))
        if stands - known:
            found.append((node, files, {str(path) for path, *_ in stands}))
        known |= stands
    return found


def problems_with(key: ConfigKey, value: Any) -> list[ConfigProblem]:
    converted, found = convert(key.shape, value)
    return [violation_problem(key.path, each) for each in (*found, *violations(key.setting, converted))]


def hostile_texts(sample: str) -> list[str]:
    """Returns hostile texts, alone and together with the sample, in which a rule may not look for them."""
    forms = ["{text}", "{sample}{text}", "{text}{sample}"]
    forms += ["{sample}/{text}", "{sample}:{text}"] if "/" in sample or "." in sample else []
    return list(dict.fromkeys(each.format(text=text, sample=sample) for each in forms for text in HOSTILE))


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        return [line for name in names for line in differences(one.get(name), other.get(name), f"{where}[{name!r}]")]
    return [] if one == other else [f"{where}: {one!r} instead of {other!r}"]


@pytest.mark.parametrize("key", list(keys()), ids=lambda key: key.path)
def test_a_value_cannot_leave_its_place(key: ConfigKey) -> None:
    sample = sample_of(key)
    if sample is None:
        for text in HOSTILE:
            assert str(problems_with(key, text)[0]).startswith(key.path)
        return
    for old in sorted(texts_of(sample)):
        nodes = nodes_with(key, sample, old)
        for text in hostile_texts(old):
            value = substitute(sample, {old: text})
            if problems := problems_with(key, value):
                assert all(str(each).startswith(key.path) for each in problems), problems
                continue
            for node, files, touched in nodes:
                config = config_with(node, key, value)
                assert config
                try:
                    found = parse_files(generated_files(config))
                except Exception as error:
                    raise AssertionError(f"With {key.path} = {text!r}, a file cannot be read: {error}") from error
                expected = {path: content for path, content in files.items() if path not in touched}
                expected |= substitute({path: files[path] for path in touched}, derived_texts(old, text))
                if key.path == "azure.arc.tags" and set(text) & set(",='\""):  # azcmagent does not take these
                    expected[SETTINGS_FILE]["tags"] = {}
                assert not differences(found, expected), f"{key.path} = {text!r}"
